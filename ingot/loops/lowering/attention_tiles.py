"""Lists of the tiles of keys that matter to a tile of queries, and of those of queries that matter
to one of keys. Which they are may depend on the tensors that a mask reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import filterfalse

import torch

from ingot.loops import ops
from ingot.loops.expr import ONE, ZERO, Expr, Symbol, as_expr, loop_symbol, product
from ingot.loops.ir import Access, Body, BodyBuilder, Instruction
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.values import Index, LoopTensor, contiguous
from ingot.loops.spaces import address_of, contiguous_strides, extents_of
from ingot.loops.weights import TILE, TileList, Tiles
from ingot.loops.windows import Conditions, symbols_of

# The condition is computed at one of so many of the scores, at most; on a CPU at all of them.
SHARE = 4
MANY = 1 << 30  # what a symbolic extent is taken for


def tiles_of(
    lw: Lowering, weight: Body, softmax: bool, batch: Sequence[Symbol], row: Symbol, step: Symbol
) -> Tiles | None:
    """The lists of attention whose scores are made by `weight`, or whose weights are.

    None where there are few tiles, where the window of the indices says as much, or where the lists
    would take too long.
    """
    for loop in (row, step):
        if (loop.extent.constant or MANY) <= TILE:
            return None
    conditions = Conditions(weight, softmax, row, step)
    of_places = conditions.of_places
    if all(map(conditions.is_told, of_places)):
        return None
    condition = _Condition(conditions.joined(of_places), tuple(batch), frozenset((row, step)))
    share = SHARE if lw.target.has_registers else 1
    if condition.is_dear(share):
        return None
    if condition not in lw.tile_counts:
        lw.tile_counts[condition] = condition.counts(lw)
    key = condition, row
    if key not in lw.tiles:
        lw.tiles[key] = _Lists(lw, condition, row, step).tiles
    return lw.tiles[key]


@dataclass(frozen=True)
class _Condition:
    """Whether a query sees a key: `seen` at the loops of the `batch` and at `places`, theirs."""

    seen: Body
    batch: tuple[Symbol, ...]
    places: frozenset[Symbol]

    @property
    def loops(self) -> tuple[Symbol, ...]:
        """The loops that it depends on: those of the batch, then places in the order of names."""
        symbols = symbols_of(self.seen, range(len(self.seen.instructions)))
        return tuple(filter(symbols.__contains__, (*self.batch, *self.in_order)))

    @property
    def in_order(self) -> list[Symbol]:
        return sorted(self.places, key=lambda loop: loop.name)

    def is_dear(self, share: int) -> bool:
        """Whether it is computed at more than one of so many scores."""
        others = filterfalse(self.loops.__contains__, (*self.batch, *self.places))
        return (product(extents_of(others)).constant or MANY) < share

    @property
    def points(self) -> int:
        """The places of a pair of tiles that the condition tells apart."""
        return TILE ** len(self.places.intersection(self.loops))

    def counts(self, lw: Lowering) -> LoopTensor:
        """Of the points of each pair of tiles, at how many the condition holds."""
        loops, sizes, dims = self.loops, list[Expr](), list[int]()
        for loop in loops:
            if loop in self.places:
                dims.append(len(sizes) + 1)
                sizes += [tiles_along(loop), as_expr(TILE)]
            else:
                sizes.append(loop.extent)

        def at(index: Index) -> int:
            left, values = list(index), dict[Symbol, Expr]()
            for loop in loops:
                values[loop] = left.pop(0)
                if loop in self.places:
                    values[loop] = values[loop] * TILE + left.pop(0)
            return self.at(values)

        counts = LoopTensor(sizes, contiguous_strides(sizes), torch.bool, at)
        if not lw.target.has_registers:
            return _sum(lw, counts, dims)
        for dim in reversed(dims):  # short rows: a block with all of a pair would be alone
            counts = _sum(lw, counts, [dim])
        return counts

    def at(self, values: Mapping[Symbol, Expr]) -> int:
        """The condition at a point. The last tiles may reach beyond the end, where it is false."""
        recorder, inside = ops.recorder(), None
        for loop in self.in_order:
            if loop in values and loop.extent % TILE is not ZERO:
                holds = ops.apply("lt", ops.index(values[loop]), ops.index(loop.extent))
                inside = holds if inside is None else ops.apply("logical_and", inside, holds)

        def visit(builder: BodyBuilder, i: Instruction) -> int:
            if inside is not None:
                i = builder.under(inside, i)
            return builder.append(i)

        value = recorder.copy(self.seen.substitute(values), visit)[self.seen.results[0]]
        if inside is None:
            return value
        return ops.apply("logical_and", inside, value)


class _Lists:
    """The lists, for tiles of `row`, of tiles of `step`."""

    def __init__(self, lw: Lowering, condition: _Condition, row: Symbol, step: Symbol) -> None:
        self.lw, self.condition, self.row, self.step = lw, condition, row, step
        self.groups = tuple(filter(condition.loops.__contains__, condition.batch))
        self.of_rows, self.of_steps = ONE, tiles_along(step)
        if row in condition.loops:
            self.of_rows = tiles_along(row)
        self.sizes = (*extents_of(self.groups), self.of_rows, self.of_steps)

    @property
    def tiles(self) -> Tiles:
        rows = loop_symbol("rows", tiles_along(self.row))
        entry = loop_symbol("entry", self.of_steps)
        index = (*self.groups, ZERO if self.of_rows is ONE else rows, entry)
        return Tiles(
            rows, entry, self.list(self.is_partial, index), self.list(self.is_whole, index)
        )

    def is_whole(self, index: Index) -> int:
        """Whether the condition holds everywhere in a pair of tiles, and all steps are there."""
        is_whole = ops.apply("eq", self.count(index), self.every)
        if self.step.extent % TILE is ZERO or self.step in self.condition.loops:
            return is_whole
        there = ops.apply("lt", ops.index(index[-1]), ops.index(self.step.extent // TILE))
        return ops.apply("logical_and", is_whole, there)

    def is_partial(self, index: Index) -> int:
        is_seen = ops.apply("gt", self.count(index), ops.constant(0, torch.int64))
        return ops.apply("logical_and", is_seen, ops.apply("logical_not", self.is_whole(index)))

    @property
    def every(self) -> int:
        return ops.constant(self.condition.points, torch.int64)

    def list(self, holds: Callable[[Index], int], index: Index) -> TileList:
        """The tiles for which a condition holds, at the index of an entry."""

        def is_listed_till(index: Index) -> int:
            """Whether a tile, the last index, is listed and not behind the one before it."""
            *place, last, tile = index
            reached = ops.apply("le", ops.index(tile), ops.index(last))
            return ops.apply("logical_and", holds((*place, tile)), reached)

        ranks = self.sum(is_listed_till)

        def comes_before(index: Index) -> int:
            *place, last, tile = index
            return ops.apply("le", ranks.load((*place, tile)), ops.index(last))

        # the tile at a place comes behind those whose ranks, of which 1 is the first, reach no more
        numbers = self.sum(comes_before)
        last = (*index[:-1], self.of_steps - 1)
        return TileList(_access(self.lw, numbers, index), _access(self.lw, ranks, last))

    def count(self, index: Index) -> int:
        """The count of a pair, at (group, tile of rows, tile of steps)."""
        *groups, rows, steps = index
        tiles = {self.row: rows, self.step: steps}
        counts = self.lw.tile_counts[self.condition]
        for loop in self.condition.in_order:
            if loop in self.condition.loops:
                groups.append(tiles[loop])
        return counts.load(tuple(groups))

    def sum(self, holds: Callable[[Index], int]) -> LoopTensor:
        """How many tiles there are, the last index, for which a condition holds."""
        sizes = (*self.sizes, self.of_steps)
        whole = LoopTensor(sizes, contiguous_strides(sizes), torch.bool, holds)
        return _sum(self.lw, whole, [len(sizes) - 1])


def tiles_along(loop: Symbol) -> Expr:
    return (loop.extent + (TILE - 1)) // TILE


def _sum(lw: Lowering, value: LoopTensor, dims: Sequence[int]) -> LoopTensor:
    sizes = list[Expr]()
    for d, size in enumerate(value.sizes):
        if d not in dims:
            sizes.append(size)
    spec = contiguous(sizes, torch.int64)
    return lw.reduce(spec, "sum", value, dims, torch.int64, lambda v: ops.to(v, torch.int64))


def _access(lw: Lowering, value: LoopTensor, index: Index) -> Access:
    view = lw.view(value)
    return Access(view.buffer, address_of(index, view.strides, view.offset))
