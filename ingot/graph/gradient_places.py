"""Where the ops of a backward come from: the user's line, and the module, of the operation that
they are the gradient of.

Autograd numbers the nodes of its graph as it makes them. In: the places of a captured graph's
operations, as they run. Out: the place of the node whose formula runs now.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from ingot.torch_private import Missing, current_autograd_node, get_sequence_nr


class UsersPlace(NamedTuple):
    """A line, "file:line", and the path of the module whose forward runs; "" for what is not
    known."""

    where: str = ""
    module: str = ""


NOWHERE = UsersPlace()


class GradientPlaces:
    """The places of the operations that one trace has run."""

    def __init__(self) -> None:
        self._first: list[int] = []  # number of a node of autograd's, for each of the places
        self._places: list[UsersPlace] = []

    def begin(self, place: UsersPlace) -> None:
        """The operations from now on are from here."""
        if not isinstance(get_sequence_nr, Missing):
            self._first.append(get_sequence_nr())
            self._places.append(place)

    def now(self) -> UsersPlace:
        """The place of the operation whose gradient is computed now."""
        number = getattr(current_autograd_node(), "_sequence_nr", None)
        if number is None or not self._first:
            return NOWHERE
        position = bisect_right(self._first, number())
        if position in (0, len(self._first)):  # made before, or behind all operations
            return NOWHERE
        return self._places[position - 1]
