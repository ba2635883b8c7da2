"""A budget of memory for what a forward saves: it saves less, and the backward computes more again.

In: the cuts of a joint graph, by the price of computing a value again, and a share of the bytes
that the usual cut saves. Out: a cut that saves no more than that share, or as few bytes as there is
a cut for. Where the price falls, more is computed again. The first search finds the highest price
that fits, for the whole graph. Layers that are alike would then all be computed again, or none; so
the second search finds how far from the graph's beginning this price has to reach.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch.fx import Node

BUDGET = "memory_budget"
"""In the meta of a captured graph's module: the budget that the program asks for inside."""

WHOLE = 1.0
"""The budget of the usual cut."""

Price = Callable[[Node], float | None]
"""What a byte's worth of computing a node again costs, in bytes saved. None: what it usually does,
where what is usually not computed again is not."""

_PRICES = (-12, 9)  # the lowest and the highest, as powers of two


def usual_price(node: Node) -> None:
    """That of the cut without a budget."""


def within(
    budget: float,
    cut: Callable[[Price], list[Node]],
    size: Callable[[Sequence[Node]], int],
    places: Mapping[Node, int],
) -> list[Node]:
    """What is saved under a budget; `size` counts the bytes, `places` are those in the graph."""
    usual = cut(usual_price)
    limit = budget * size(usual)
    fits = cut(lambda node: 0.0)
    if size(fits) >= limit:
        return fits
    price, above = 0.0, None
    low, high = _PRICES
    while low <= high:
        middle = (low + high) // 2
        found = cut(lambda node, at=2.0**middle: at)  # type: ignore[misc]
        if size(found) <= limit:
            fits, price, low = found, 2.0**middle, middle + 1
        else:
            above, high = 2.0**middle, middle - 1
    return _reaching(limit, cut, size, places, price, above) or fits


def _reaching(
    limit: float,
    cut: Callable[[Price], list[Node]],
    size: Callable[[Sequence[Node]], int],
    places: Mapping[Node, int],
    price: float,
    above: float | None,
) -> list[Node] | None:
    """The cut whose nodes have this price as far from the graph's beginning as they must, and the
    one above behind that."""
    best = None
    low, high = 0, len(places)
    while low < high:
        middle = (low + high) // 2

        def of_part(node: Node, end: int = middle) -> float | None:
            if places[node] < end:
                return price
            return above

        found = cut(of_part)
        if size(found) <= limit:
            best, high = found, middle
        else:
            low = middle + 1
    return best
