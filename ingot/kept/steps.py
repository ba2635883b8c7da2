"""The steps of a description that is kept: which kinds can be, and what their names stand for."""

from __future__ import annotations

from typing import Any

from ingot.kept.names import NotKept

Row = tuple[Any, ...]

OWNER, STEPS, CONSTANTS = 10, 6, 3
"""Positions in a description: of what lives as long as the program, of the steps, and of the
constants."""

_ON_A_GPU = "it launches kernels on a GPU"

STEP_KINDS: dict[str, str] = {
    "allocate": "",
    "kernel": "",
    "call": "",
    "release": "",
    "launch": _ON_A_GPU,
    "launch parts": _ON_A_GPU,
    "product": "it asks cuBLAS for a product",
}
"""Each kind of step that `runtime/description.py` has, and why a program with one is not kept;
empty where it is."""


def require_kept(steps: tuple[Row, ...]) -> None:
    """Raises NotKept for a step of a kind that is not kept, or of which nothing is known here."""
    for kind, *_ in steps:
        reason = STEP_KINDS.get(kind, f"it has a step of the kind {kind!r}")
        if reason:
            raise NotKept(reason)


def with_addresses(step: Row, addresses: Any) -> Row:
    """A step that was kept, with what its names stand for in this process."""
    if step[0] == "kernel":
        return ("kernel", addresses[step[1]], *step[2:])
    if step[0] == "call":
        return ("call", getattr(step[1], "_op", step[1]), *step[2:])
    return step
