"""What follows from the values of the size symbols, made once for each set of values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from ingot.loops.expr import Symbol
from ingot.loops.training_contract import SizePlace

Item = TypeVar("Item")


class BySizes(Generic[Item]):
    """What `make` makes of the values of the size symbols, which are read at `places` in a call."""

    most = 256  # sets of values that are remembered

    def __init__(
        self, make: Callable[[Mapping[Symbol, int]], Item], places: Mapping[Symbol, SizePlace]
    ) -> None:
        self.make, self.places = make, dict(places)
        self._items: dict[tuple[int, ...], Item] = {}

    def read(self, inputs: Sequence[Any], results: Sequence[Any] = ()) -> tuple[int, ...]:
        """The values of the symbols in a call."""
        return tuple([_read(inputs, results, *place) for place in self.places.values()])

    def at(self, values: tuple[int, ...]) -> Item:
        """The item for these values."""
        item = self._items.get(values)
        if item is None:
            if len(self._items) >= self.most:
                self._items.clear()
            item = self._items[values] = self.make(dict(zip(self.places, values)))
        return item


def _read(inputs: Sequence[Any], results: Sequence[Any], position: int, kind: str, dim: int) -> int:
    value = (results if kind.startswith("result") else inputs)[position]
    if kind.endswith("size"):
        return value.shape[dim]
    if kind == "stride":
        return value.stride(dim)
    return value
