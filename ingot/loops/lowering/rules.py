"""What lowering knows of each op: tables by ATen overload, filled by `ingot.rules`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ingot.sequences import Args
from ingot.tables import Table

Rule = Callable[..., Any]


class LibraryCall(NamedTuple):
    """How a library computes an op, where that is not a plain call of the overload."""

    binding: Callable[..., Any] | None = None
    """Takes out=, and is quicker to call than the overload."""

    in_place: Any = None
    """The overload that writes to its first argument, which is then computed into memory of its
    own rather than copied there."""

    bias_rows: int = 0
    """Each row of `attn_bias` begins at a multiple of so many elements, unless this is 0."""

    resizes_out: bool = False
    """Whether `out` holds the terms before it holds their sum."""

    direct: Callable[[Args], tuple[Callable[..., Any], Args]] | None = None
    """Of an op that stands for another function: what the program calls in its place, and with
    which of its arguments."""


RULES: Table[Rule] = Table("lower")
LIBRARY_CALLS: Table[LibraryCall] = Table("library")
READS_PART: Table[bool] = Table("reads_part")
"""Ops that may read only some elements of an argument."""


class NotLowered(Exception):
    """Raised by a rule for a form of its op that it does not take: the op is then called in
    ATen."""
