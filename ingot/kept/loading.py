"""A native program of a description that another process packed, and of its object files.

Nothing here plans or generates code, so a process that only loads programs imports none of that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ingot.kept.steps import OWNER, STEPS, with_addresses
from ingot.native import _native


def native_program(
    description: Sequence[Any], names: Sequence[str], images: Sequence[bytes]
) -> _native.Program:
    """The program of a description in which kernels stand by their names. `images` are the object
    files that have them; they are linked, and nothing is generated."""
    addresses, owner = _linked(names, images)
    steps = []
    for step in description[STEPS]:
        steps.append(with_addresses(step, addresses))
    parts = list(description)
    parts[STEPS], parts[OWNER] = tuple(steps), owner
    return _native.Program(tuple(parts))


def _linked(names: Sequence[str], images: Sequence[bytes]) -> tuple[Any, Any]:
    """The addresses of functions in object files, by name, and what holds their memory."""
    if not names:
        return {}, None
    loaded = _native.load_objects(tuple(images), frozenset(names))
    if loaded is not None:
        return loaded
    from ingot.codegen.llvm.library import link

    linked = link(images, names)
    return linked, linked
