"""The steps of a description that is kept: which kinds can be, and what their names stand for."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ingot.kept.names import NotKept
from ingot.runtime.entry_points import called_for

Row = tuple[Any, ...]

OWNER, DEVICE, STEPS, BUFFERS, CONSTANTS, NAMES = 10, 11, 6, 4, 3, -2
"""Positions in a description: of what lives as long as the program, of its device, of the steps,
the buffers and the constants. The last is of the steps' names."""

STEP_KINDS: dict[str, str] = {
    "allocate": "",
    "kernel": "",
    "call": "",
    "release": "",
    "launch": "",
    "launch parts": "",
    "product": "",
}
"""Each kind of step that `runtime/description.py` has, and why a program with one is not kept;
empty where it is."""


Packed = tuple[tuple[str, ...], tuple[bytes, ...], tuple[tuple[Any, ...], ...]]
"""Names of a program's kernels for the CPU, the object files that have them, and images of those
for a GPU.

An image has the fields of `codegen.loaded_kernels.Image`.
"""


class Code(NamedTuple):
    """What the names in a description stand for in this process.

    Kernels for the CPU have `addresses`, by name. What a launch has of those for a GPU is in
    `launched`, by number. `form` loads one that no file has, by the number of its step in the plan
    and its own among the forms of the step.
    """

    addresses: Mapping[str, int]
    launched: Sequence[Row]
    form: Callable[[int, int], Row]


def require_kept(steps: tuple[Row, ...]) -> None:
    """Raises NotKept for a step of a kind that is not kept, or of which nothing is known here."""
    for kind, *_ in steps:
        reason = STEP_KINDS.get(kind, f"it has a step of the kind {kind!r}")
        if reason:
            raise NotKept(reason)


def with_addresses(step: Row, code: Code) -> Row:
    """A step that was kept, with what its names stand for in this process."""
    kind, *parts = step
    if kind == "kernel":
        return ("kernel", code.addresses[step[1]], *step[2:])
    if kind == "call":
        return ("call", called_for(step[1]), *step[2:])
    if kind == "launch":
        forms = []
        for form in parts[-1]:
            forms.append(_loaded(form, code))
        return ("launch", *parts[:-1], tuple(forms))
    if kind == "launch parts":
        return _loaded(step, code)
    if kind == "product":
        return ("product", *parts[:-1], with_addresses(parts[-1], code))
    return step


def _loaded(row: Row, code: Code) -> Row:
    """A row whose last entry is the number of a kernel, or (step, form) of one that no file has."""
    *parts, kernel = row
    if isinstance(kernel, int):
        return (*parts, *code.launched[kernel])
    return (*parts, functools.partial(code.form, *kernel))
