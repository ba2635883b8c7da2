"""A native program of a description that another process packed, and of its object files.

Nothing here plans or generates code, so a process that only loads programs imports none of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ingot.native import _native

OWNER, STEPS, CONSTANTS = 10, 6, 3
"""Positions in a description: of what lives as long as the program, of the steps, and of the
constants."""


def native_program(
    description: Sequence[Any], names: Sequence[str], images: Sequence[bytes]
) -> _native.Program:
    """The program of a description in which kernels stand by their names. `images` are the object
    files that have them; they are linked, and nothing is generated."""
    addresses: Any = {}
    if names:
        from ingot.codegen.llvm.library import link

        addresses = link(images, names)
    steps = []
    for step in description[STEPS]:
        if step[0] == "kernel":
            step = ("kernel", addresses[step[1]], *step[2:])
        elif step[0] == "call":
            step = ("call", getattr(step[1], "_op", step[1]), *step[2:])
        steps.append(step)
    parts = list(description)
    parts[STEPS], parts[OWNER] = tuple(steps), addresses
    return _native.Program(tuple(parts))
