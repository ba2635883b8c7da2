"""Launches of users' Triton kernels."""

from __future__ import annotations

from typing import Any

from ingot.loops.launches import launch, launch_of
from ingot.loops.lowering.rules import LibraryCall
from ingot.ops.op import op
from ingot.sequences import Args


def _launched(args: Args) -> tuple[Any, Args]:
    """The launch that a number stands for, and its operands."""
    number, written, read, floats, sizes = args
    return launch_of(number), (*written, *read, *floats, *sizes)


OPS = (op(launch, library=LibraryCall(direct=_launched)),)
