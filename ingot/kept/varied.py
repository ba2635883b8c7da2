"""Sizes and integers that were seen to vary, remembered for later processes.

A file has their names ("x.shape[0]"), under the name and the place of the function that they are
arguments of; and those of further sizes that became symbols beside them. They decide what becomes a
symbol at the first call, where no program is kept that is compiled for just its sizes. So they need
not hold: a name that means nothing any more has no effect, and one that means something else costs
a symbol.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from ingot.capture.guards import Quantity
from ingot.codegen.store import store_in
from ingot.kept.contents import FORMAT
from ingot.kept.format import packed, unpacked
from ingot.kept.names import NotKept
from ingot.kept.programs import is_missing

if TYPE_CHECKING:
    from ingot.capture import Captured
    from ingot.options import Options

MOST_NAMES = 64

Names = tuple[tuple[str, ...], tuple[str, ...]]
"""Of what was seen to vary, and of what was not, and became a symbol beside it."""

_of_this_process: dict[str, Names] = {}
"""What this process has remembered, by its key; it is for others."""


class Varied(NamedTuple):
    """What was seen to vary, and further sizes that became symbols beside it."""

    observed: frozenset[Quantity] = frozenset()
    speculative: frozenset[Quantity] = frozenset()


def remember(function: tuple[str, str], varied: Varied) -> None:
    """Remembers what varied in calls of a function, which its name and its "file:line" tell."""
    store = store_in("varied")
    if not store.is_open:
        return
    key = _key(function)
    known = _of_this_process.get(key)
    if known is None:
        known = _read(key)
    names = _joined(known[0], varied.observed), _joined(known[1], varied.speculative)
    if names != _of_this_process.get(key):
        _of_this_process[key] = names
        store.put(key, packed(names))


def _joined(known: tuple[str, ...], quantities: Iterable[Quantity]) -> tuple[str, ...]:
    names = set(known)
    for quantity in quantities:
        names.add(quantity.name)
    return tuple(sorted(names)[:MOST_NAMES])


def recalled(function: tuple[str, str], captured: Captured, options: Options) -> Varied:
    """What earlier processes saw to vary, of that which a captured call would be compiled for.
    Nothing where its program is kept, or is not to be kept."""
    key = _key(function)
    if not store_in("varied").is_open or key in _of_this_process:
        return Varied()
    names = _read(key)
    if not names[0] or not is_missing(captured, options):
        return Varied()
    observed, speculative = [], []
    for quantity in _fixed(captured):
        if quantity.name in names[0]:
            observed.append(quantity)
        elif quantity.name in names[1]:
            speculative.append(quantity)
    return Varied(frozenset(observed), frozenset(speculative))


def _fixed(captured: Captured) -> Iterator[Quantity]:
    """The sizes and integers that a captured call is compiled for."""
    for source, sizes in captured.guards.sizes().items():
        for dim, size in enumerate(sizes):
            if size is not None:
                yield Quantity(source, "size", dim)
    for source in captured.guards.integers():
        yield Quantity(source, "value")


def _key(function: tuple[str, str]) -> str:
    return hashlib.sha256(packed((FORMAT, *function))).hexdigest()


def _read(key: str) -> Names:
    content = store_in("varied").get(key)
    if content is not None:
        try:
            return names_in(content)
        except NotKept:  # it is written anew
            pass
    return (), ()


def names_in(content: bytes) -> Names:
    """What a file holds. Raises NotKept for one that is none."""
    names = unpacked(content)
    if not isinstance(names, tuple) or [*map(type, names)] != [tuple, tuple]:
        raise NotKept("it is no file of names")
    if not {*map(type, (*names[0], *names[1]))} <= {str}:
        raise NotKept("it has names that are none")
    return names
