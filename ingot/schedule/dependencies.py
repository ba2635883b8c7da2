"""Dependencies between nodes as symbolic memory addresses, and the order they impose.

Two accesses of one buffer conflict when either writes. Inside a kernel a conflict is harmless if
both touch the same element at the same point, or if the later access stays within what the earlier
one covers during the same outer point.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ingot.loops.expr import ONE, ZERO, Expr, Symbol, known_less, known_less_equal
from ingot.loops.ir import Buffer, Library, LoopGraph, Node, symbols_in
from ingot.loops.ops import DIVISIONS
from ingot.loops.side_effects import acts
from ingot.schedule.nests import ALIKE, Compute


def used_nodes(graph: LoopGraph) -> list[Node]:
    """The nodes that a result, a mutated input or an effect needs. A node that may be an error, or
    binds a size, stays, though readers may look at nothing of what checks an index: `x ** 0`. Loops
    over no points do nothing."""
    kept: list[Node] = []
    needed = graph.required
    for name, buffer in graph.buffers.items():
        if not buffer.is_temporary:
            needed.add(name)
    for node in reversed(graph.nodes):
        if isinstance(node, Compute) and any(s.extent.constant == 0 for s in node.loops):
            continue
        if _has_effect(node) or not needed.isdisjoint(node.writes()):
            kept.append(node)
            needed |= node.reads()
    return kept[::-1]


def _has_effect(node: Node) -> bool:
    """Whether a node does something beside what it writes."""
    return may_fail(node) or isinstance(node, Library) and bool(node.ordered or node.binds)


def readers_and_writers(nodes: Sequence[Node]) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """The positions of the nodes that read each buffer, and of those that write it; none for
    others."""
    readers, writers = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    for position, node in enumerate(nodes):
        for name in node.reads():
            readers[name].append(position)
        for name in node.writes():
            writers[name].append(position)
    return readers, writers


def direct_dependencies(nodes: Sequence[Node], buffers: Mapping[str, Buffer]) -> list[set[int]]:
    """For each node, the positions of earlier nodes that must run before it.

    Two writers of one buffer without a read between them (the pieces of a concatenation) are
    independent when both write it wholly by loops; anything that reads the buffer waits for all of
    its writers so far. What depends on a size, or writes a buffer of such a size, waits for the
    call that binds it. Calls with effects keep their order, and what acts its place among what may
    be an error: only that happens which eager does before the error. (Random draws do not: they
    join what is around them.)
    """
    binders: dict[Symbol, int] = {}
    for k, node in enumerate(nodes):
        if isinstance(node, Library):
            binders.update((symbol, k) for symbol, *_ in node.binds)
    writers, readers = defaultdict[str, list[int]](list), defaultdict[str, list[int]](list)
    effects = _Effects()
    result: list[set[int]] = []
    for k, node in enumerate(nodes):
        before = effects.before(k, node)
        if binders:
            before.update(binders[s] for s in _sizes_of(node, buffers) if s in binders)
        for name in node.reads():
            before.update(writers[name])
        for name in node.writes():
            before.update(readers[name])
            before.update(w for w in writers[name] if not _disjoint_pieces(nodes[w], node))
        before.discard(k)
        result.append(before)
        for name in node.reads():
            readers[name].append(k)
        for name in node.writes():
            writers[name].append(k)
    return result


class _Effects:
    """The order of effectful calls, and of what may be an error among them."""

    def __init__(self) -> None:
        self.last_ordered: int | None = None
        self.last_acting: int | None = None
        self.failing: list[int] = []  # what may be an error behind the last call that acts

    def before(self, k: int, node: Node) -> set[int]:
        """The earlier nodes that node number k waits for; it is one of those now."""
        earlier: set[int | None] = set()
        is_ordered = isinstance(node, Library) and node.ordered
        if is_ordered:
            earlier.add(self.last_ordered)
            self.last_ordered = k
        if isinstance(node, Library) and is_ordered and acts(node.function):
            earlier.update(self.failing)
            self.last_acting, self.failing = k, []
        elif may_fail(node) or _may_divide_by_zero(node):
            earlier.add(self.last_acting)
            self.failing.append(k)
        result = set()
        for position in earlier:
            if position is not None:
                result.add(position)
        return result


def _sizes_of(node: Node, buffers: Mapping[str, Buffer]) -> frozenset[Symbol]:
    """The symbols in a node and in the sizes of what it writes. The latter may be more: a piece of
    a concatenation has sizes of its own."""
    symbols = symbols_in(node)
    for name in node.writes():
        symbols |= symbols_in((buffers[name].sizes, buffers[name].strides))
    return symbols


def may_fail(node: Node) -> bool:
    """Whether a loop nest checks an index that it loads, or a call may raise for what it gets, or
    is made for that."""
    if isinstance(node, Compute):
        return any(i.op == "indirect" and i.attrs[2].possible for i in node.body.instructions)
    return not node.writes() or isinstance(node, Library) and node.may_raise


def _may_divide_by_zero(node: Node) -> bool:
    """Whether a loop nest divides integers by what may be 0."""
    if not isinstance(node, Compute):
        return False
    instructions = node.body.instructions
    for i in instructions:
        if i.op in DIVISIONS and not i.dtype.is_floating_point:
            divisor = instructions[i.args[1]]
            if divisor.op != "constant" or divisor.attrs[0] == 0:
                return True
    return False


def _disjoint_pieces(first: Node, second: Node) -> bool:
    """Whether two writers of one buffer provably write different elements. Their address ranges do
    not meet, or only in strides that interleave (pieces of a concatenation along an inner
    dimension)."""
    a, b = _piece(first), _piece(second)
    return a is not None and b is not None and _are_disjoint(a, b)


def _are_disjoint(a: _Piece, b: _Piece) -> bool:
    if disjoint_ranges(a.index, b.index):
        return True
    outer_a, outer_b = a.by_stride(), b.by_stride()
    for (stride_a, extent_a), (stride_b, extent_b) in zip(outer_a, outer_b):
        if stride_a != stride_b or extent_a != extent_b:
            return False
        a, b = a.without(stride_a), b.without(stride_b)
        is_inside = _within(a.index, stride_a) and _within(b.index, stride_b)
        if is_inside and disjoint_ranges(a.index, b.index):
            return True
    return False


@dataclass(frozen=True)
class _Piece:
    """The elements offset + sum(stride * loop) that a node writes."""

    index: Expr
    loops: tuple[Symbol, ...]

    def by_stride(self) -> list[tuple[Expr, Expr]]:
        linear = self.index.linear(self.loops)
        assert linear is not None
        pairs = []
        for loop, stride in linear[1].items():
            if loop.extent is not ONE and stride.constant is not None:
                pairs.append((stride, loop.extent))
        return sorted(pairs, key=lambda pair: -(pair[0].constant or 0))

    def without(self, stride: Expr) -> _Piece:
        linear = self.index.linear(self.loops)
        assert linear is not None
        symbol = next(s for s, c in linear[1].items() if c == stride)
        loops = tuple([s for s in self.loops if s is not symbol])
        return _Piece(self.index.substitute({symbol: 0}), loops)


def _piece(node: Node) -> _Piece | None:
    if not isinstance(node, Compute) or getattr(node, "scatters", False):
        return None
    if node.index.linear(node.loops) is not None:
        return _Piece(node.index, node.loops)
    return None


def _within(e: Expr, limit: Expr) -> bool:
    return known_less_equal(ZERO, e) and known_less(e, limit)


def disjoint_ranges(a: Expr, b: Expr) -> bool:
    """Whether the value ranges of two expressions provably do not meet."""
    (low_a, high_a), (low_b, high_b) = a.bounds, b.bounds
    if high_a is not None and low_b is not None and high_a < low_b:
        return True
    return high_b is not None and low_a is not None and high_b < low_a


# Conflicts inside a kernel
# --------------------------------------------------------------------------------------------

SAME_POINT = "same point"  # both touch the same element at the same point of a common stage
SAME_ROW = "same row"  # the accesses of one outer point meet only accesses of that outer point


@lru_cache(ALIKE)
def relation(first: Expr, second: Expr, outer: tuple[Symbol, ...]) -> str | None:
    """How two addresses in one buffer, both over the outer loops `outer`, relate; None when they
    may meet across outer points.

    Equal expressions are the same point. Otherwise each must be `row + inner`, with one `row`
    linear in the outer loops that all have nonzero strides, and 0 <= inner < the smallest of those
    strides.
    """
    if first == second and not first.is_indirect:
        return SAME_POINT
    split_first, split_second = _row_and_inner(first, outer), _row_and_inner(second, outer)
    if split_first is None or split_second is None or split_first[0] != split_second[0]:
        return None
    strides, inner_first, inner_second = split_first[0], split_first[1], split_second[1]
    for loop in outer:
        if loop.extent is ONE:
            continue
        stride = strides.get(loop, ZERO)
        if not (_within(inner_first, stride) and _within(inner_second, stride)):
            return None
    return SAME_ROW


@lru_cache(ALIKE)
def pieces(
    first: Expr, second: Expr, loops: tuple[Symbol, ...], others: tuple[Symbol, ...]
) -> bool:
    """Whether two addresses in one buffer, each over its own loops, are never the same at any of
    their points. Pieces that are put together along an inner dimension have such addresses."""
    if first.linear(loops) is None or second.linear(others) is None:
        return False
    return _are_disjoint(_Piece(first, loops), _Piece(second, others))


def never_meet(first: Expr, second: Expr, outer: tuple[Symbol, ...]) -> bool:
    """Whether two addresses in one buffer are never the same, neither at one outer point nor at
    two."""
    if relation(first, second, outer) != SAME_ROW:
        return False
    one, other = _row_and_inner(first, outer), _row_and_inner(second, outer)
    return one is not None and other is not None and disjoint_ranges(one[1], other[1])


def _row_and_inner(
    address: Expr, outer: Sequence[Symbol]
) -> tuple[dict[Symbol, Expr], Expr] | None:
    """(strides over the outer loops, the rest), or None."""
    linear = address.linear(outer)
    if linear is None:
        return None
    rest, strides = linear
    return {s: c for s, c in strides.items() if c.constant != 0}, rest
