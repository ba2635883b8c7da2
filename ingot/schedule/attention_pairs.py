"""Gradients of attention that are computed together.

Those of keys and of values take the same steps and need the same weights: two contractions become
one, of which the second sum is `Weights.beside`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TypeGuard

from ingot.loops.ir import Access, BodyBuilder, Buffer, Contraction, Node, Pointwise
from ingot.loops.weights import Beside, Weights
from ingot.schedule.dependencies import direct_dependencies, readers_and_writers
from ingot.schedule.epilogue import laid_over_contraction


def paired(nodes: Sequence[Node], buffers: Mapping[str, Buffer], required: set[str]) -> list[Node]:
    """The nodes with such contractions as pairs. The buffers `required` must be written."""
    result = list(nodes)
    weighted = list(filter(_has_weights, nodes))
    while weighted:
        first = weighted.pop(0)
        for second in weighted:
            together = _together(result, first, second, buffers, required)
            if together is not None:
                weighted.remove(second)
                result = together
                break
    return result


def _has_weights(node: Node) -> TypeGuard[Contraction]:
    return isinstance(node, Contraction) and node.weights is not None


def _together(
    nodes: list[Node], first: Contraction, second: Contraction, buffers: Mapping[str, Buffer],
    required: set[str],
) -> list[Node] | None:  # fmt: skip
    """The nodes with two contractions as one, if they may be."""
    assert first.weights is not None and second.weights is not None
    less, more = first, second
    if len(first.weights.products) > len(second.weights.products):
        less, more = second, first
    at, later = nodes.index(first), nodes.index(second)
    waiting = _dependents(direct_dependencies(nodes, buffers), at)
    if later in waiting or not _takes_the_same_steps(less, more):
        return None
    target, finish = Access(less.target, less.index), _conversion(nodes, less, required)
    if finish is not None:
        target = finish[1]
    pair = _pair(less, more, target)
    if pair is None:
        return None
    before, behind = nodes[:at], list[Node]()
    for k in range(at + 1, later):
        (behind if k in waiting else before).append(nodes[k])
    result = [*before, pair, *behind, *nodes[later + 1 :]]
    if finish is not None:
        result.remove(finish[0])
    return result


def _dependents(dependencies: Sequence[set[int]], position: int) -> set[int]:
    """The positions of nodes that must run after the one at a position."""
    result = {position}
    for k in range(position + 1, len(dependencies)):
        if not dependencies[k].isdisjoint(result):
            result.add(k)
    return result


def _takes_the_same_steps(less: Contraction, more: Contraction) -> bool:
    a, b = less.weights, more.weights
    assert a is not None and b is not None
    if a.softmax or b.softmax or a.beside or b.beside or a.zero_rows is not b.zero_rows:
        return False
    loops = less.batch, less.rows, less.reduced
    same = loops == (more.batch, more.rows, more.reduced) and a.tiles == b.tiles
    return same and b.products[: len(a.products)] == a.products


def _conversion(
    nodes: Sequence[Node], node: Contraction, required: set[str]
) -> tuple[Node, Access] | None:
    """The only reader of a contraction, if it does nothing but convert, and where it writes."""
    readers = readers_and_writers(nodes)[0][node.target]
    if len(readers) != 1 or node.target in required:
        return None
    reader = nodes[readers[0]]
    laid = laid_over_contraction(reader, [node], along=False)
    if laid is None:
        return None
    whole, conversion = laid
    assert isinstance(whole, Contraction) and isinstance(conversion, Pointwise)
    ops = tuple(map(attrgetter("op"), conversion.body.instructions))
    if whole.loops != node.loops or ops != ("load", "to"):
        return None
    return reader, Access(conversion.target, conversion.index)


def _pair(less: Contraction, more: Contraction, target: Access) -> Contraction | None:
    """`more`, with the sum of `less` beside it."""
    a, b = less.weights, more.weights
    assert a is not None and b is not None
    if a.body.lookups and b.body.lookups:  # which name values alike
        return None
    builder = BodyBuilder()
    results = []
    for body in (b.body, a.body):
        results.append(builder.copy(body)[body.results[0]])
    weights: Weights = replace(
        b, body=builder.body(*results), beside=Beside(less.columns[0], less.right, target)
    )
    origin = less.origin.merged(more.origin)
    return replace(more, weights=weights, origin=origin)
