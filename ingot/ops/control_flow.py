"""Branches and loops that data decide: calls of programs by native code."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ingot.graph.control_ops import call_of, cond, control_flow, scan, while_loop
from ingot.graph.meta.basis import fresh
from ingot.loops.lowering.rules import LibraryCall
from ingot.ops.op import op
from ingot.sequences import Args, Kwargs
from ingot.torch_private import OpOverload


def as_captured(op: OpOverload, args: Args, kwargs: Kwargs) -> list[Tensor]:
    """The results as they were when the graphs of the op were captured."""
    results = []
    for look in control_flow(args[0]).results:
        results.append(fresh(look.sizes, look.dtype, look.strides))
    return results


def may_end_otherwise(args: Args, result: Any) -> bool:
    """What is inside may raise an error, and a loop may never end."""
    return True


def _called(args: Args) -> tuple[Any, Args]:
    """What native code calls, with all operands side by side."""
    number, *operands = args
    flat: list[Any] = []
    for operand in operands:
        flat += operand if isinstance(operand, (list, tuple)) else [operand]
    return call_of(number), tuple(flat)


OPS = (
    op(
        cond,
        while_loop,
        scan,
        meta=as_captured,
        may_raise=may_end_otherwise,
        library=LibraryCall(direct=_called),
    ),
)
