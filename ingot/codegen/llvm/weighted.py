"""What all kernels share whose product has weights: which steps matter to a block of rows, and what
the program makes of their products."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from math import inf

import torch

from ingot.codegen.llvm.emitter import Emitter, Value
from ingot.codegen.llvm.kernel import KernelEmitter
from ingot.codegen.llvm.math import log
from ingot.codegen.llvm.memory import fits_short
from ingot.codegen.llvm.scalar import convert
from ingot.codegen.llvm.target import Target
from ingot.loops.expr import Expr, Symbol
from ingot.loops.ir import Access, Body, Instruction
from ingot.loops.weights import TILE, TileList
from ingot.loops.windows import ALL, Bound, Conditions, Window, index_of
from ingot.schedule.kernel import Kernel, Product

SIZE = 4  # bytes of an element
CHUNK = 2 * TILE  # steps whose weights are in scratch at once
MULTIPLE = 16  # elements that rows in scratch are padded to
_PREDICATES = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}


class WeightedEmitter(KernelEmitter):
    """A point of the parallel range is a block of rows of one point of the batch.

    Lanes are of floats, as all weights and sums are.
    """

    window: Window = ALL  # of the present steps, of which some rows may see few
    place: tuple[Value, Value] | None = None  # where the sums of a row begin, and their share

    def __init__(
        self,
        kernel: Kernel,
        product: Product,
        symbols: Sequence[Symbol],
        target: Target,
        check_bounds: bool,
    ) -> None:
        super().__init__(kernel, symbols, target, check_bounds, target.vector_bytes // 4)
        assert product.weights is not None
        self.product, self.weights, self.block = product, product.weights, product.row_block
        (self.row,), (self.step,) = product.rows, product.reduced
        (self.column,) = product.columns
        weights = self.weights
        self.lanes = self.e.lanes
        self.conditions = Conditions(weights.body, weights.softmax, self.row, self.step)

    # -- blocks ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """What is done once for all points."""

    def rows_from(self, first: Value, rows: Value) -> None:
        """All of a block of so many rows."""
        raise NotImplementedError

    def steps_from(self, body: Body, start: Value, count: Value) -> None:
        """Add up to `CHUNK` steps, whose weights `body` makes."""
        raise NotImplementedError

    def _outer_loops(self) -> None:
        e = self.e
        begin, end = Value(e, "%begin", "i64", 1, 0), Value(e, "%end", "i64", 1, 0)
        self.begin()
        with e.loop(begin, end, 1, sure=True) as point:
            blocks = self.memory.index(self.product.row_blocks)
            first = e.binary("urem", point, blocks) * self.block
            self._bind_point(e.binary("udiv", point, blocks), self.kernel.loops)
            rows = e.intrinsic("smin", (self.memory.index(self.row.extent) - first, self.block))
            self.rows_from(first, rows)

    # -- the steps that matter ---------------------------------------------------------------------

    def all_steps(self, first: Value, rows: Value) -> None:
        """Add all steps that matter to the rows."""
        conditions, window, last = self.conditions, ALL, first + rows - 1
        if self.weights.softmax or self.weights.zero_rows:
            window = conditions.window(conditions.all)
        seen = self.range_of(window, first, last)
        if self.weights.tiles is None:
            self._steps_of_window(window, first, last, seen)
            return
        tiles = self.weights.tiles
        self.memory.bound[tiles.rows] = self.e.binary("udiv", first, TILE)
        inner = conditions.where_hold(conditions.of_places)
        self._steps_of_list(tiles.whole, inner, tiles.entry, seen)
        self.window = window
        self._steps_of_list(tiles.partial, self.weights.body, tiles.entry, seen)
        self.window = ALL

    def _steps_of_list(
        self, listed: TileList, body: Body, entry: Symbol, seen: tuple[Value, Value]
    ) -> None:
        """The steps of tiles, as far as they are `seen` by any of the rows."""
        e = self.e
        with e.loop(e.constant(0, "i64"), self._number(listed.length), 1, sure=False) as at:
            self.memory.bound[entry] = at
            start = self._number(listed.numbers) * TILE
            begin = e.intrinsic("smax", (start, seen[0]))
            self._steps(body, begin, e.intrinsic("smin", (start + TILE, seen[1])))

    def _number(self, access: Access) -> Value:
        return self.memory.load(access.buffer, access.index, None)

    def _steps_of_window(
        self, window: Window, first: Value, last: Value, seen: tuple[Value, Value]
    ) -> None:
        """First those that all of the rows see, which need no conditions, then the others."""
        e, conditions, body, (begin, end) = self.e, self.conditions, self.weights.body, seen
        told = conditions.told
        inner = conditions.window(told)
        if window == ALL or inner == ALL:
            self._steps(body, begin, end)
            return
        start, stop = self.range_of(inner, last, first)
        start = e.intrinsic("smin", (start, e.intrinsic("smax", (end, begin))))
        stop = e.intrinsic("smax", (stop, start))
        self._steps(conditions.where_hold(told), start, stop)
        with e.loop(e.constant(0, "i64"), e.constant(2, "i64"), 1, sure=True) as part:
            before = e.compare("eq", part, 0)
            self.window = window
            self._steps(body, e.select(before, begin, stop), e.select(before, start, end))
            self.window = ALL

    def _steps(self, body: Body, begin: Value, end: Value) -> None:
        with self.e.loop(begin, end, CHUNK, sure=False) as start:
            self.steps_from(body, start, self.e.intrinsic("smin", (end - start, CHUNK)))

    def range_of(self, window: Window, rising: Value, falling: Value) -> tuple[Value, Value]:
        """Where the steps begin and end that are within a window for a row of the block.

        That is any row where bounds that rise with it are taken at the first one, and every row
        where they are taken at the last one.
        """
        e = self.e
        begin, end = e.constant(0, "i64"), self.memory.index(self.step.extent)
        for bound in window.lower:
            begin = e.intrinsic("smax", (self._at_end(bound, rising, falling, "smin"), begin))
        for bound in window.upper:
            limit = self._at_end(bound, falling, rising, "smax") + 1
            end = e.intrinsic("smin", (e.intrinsic("smax", (limit, 0)), end))
        return begin, end

    def _at_end(self, bound: Bound, rising: Value, falling: Value, weakest: str) -> Value:
        """A bound at one of the block's rows, by whether it rises or falls with the row."""
        values = []
        for expression in bound:
            linear = expression.linear([self.row])
            assert linear is not None
            slope = linear[1].get(self.row)
            self.memory.bound[self.row] = rising
            if slope is not None and (slope.constant or 0) < 0:
                self.memory.bound[self.row] = falling
            values.append(self.memory.index(expression))
        return reduce(lambda a, b: self.e.intrinsic(weakest, (a, b)), values)

    # -- what the program makes of products --------------------------------------------------------

    def weights_of(self, body: Body, products: Mapping[str, Value]) -> list[Value]:
        """The body's results, as floats, for the present vector."""
        self.scalars.update(products)
        self.memory.strided = []
        for load in body.loads:
            if not load.args:
                self.memory.strided.append(load.attrs)
        values: list[Value] = []
        for i in body.instructions:
            value = self._of_indices(body, i) or self._instruction(i, values, body.instructions)
            values.append(value)
        results = []
        for k in body.results:
            value = convert(values[k], body.instructions[k].dtype, torch.float32)
            results.append(self.e.splat(value, self.e.lanes))
        return results

    def _of_indices(self, body: Body, i: Instruction) -> Value | None:
        """A comparison or a conversion of indices, in 32 bits where these are enough."""
        index, instructions = self.memory.index, body.instructions
        places = list(map(partial(index_of, instructions), i.args))
        if not all(map(_is_short, places)):
            return None
        if i.op in _PREDICATES:
            left, right = places
            assert left is not None and right is not None
            return self.e.compare(_PREDICATES[i.op], index(left, "i32"), index(right, "i32"))
        if i.op == "to" and i.dtype is torch.float32 and places[0] is not None:
            return self.e.cast("sitofp", index(places[0], "i32"), "float")
        return None

    # -- finished sums -----------------------------------------------------------------------------

    def vectors_along(self, loop: Symbol, start: int, stop: int, run: Callable[[], None]) -> None:
        """`run()` for each vector of a loop from `start`, a multiple of the lanes, to `stop`."""
        e, memory = self.e, self.memory
        memory.vector = loop
        memory.bound[loop] = e.constant(start, "i64")
        for shift in range(0, stop - start, e.lanes):
            memory.shift, memory.mask = shift, None
            left = stop - start - shift
            if left < e.lanes:
                memory.mask = e.compare("slt", e.iota("i32"), e.constant(left, "i32"))
            run()
        memory.vector, memory.shift, memory.mask = None, 0, None

    def _finished(self) -> Value:
        """The present vector of a sum."""
        assert self.place is not None
        pointer, share = self.place
        shift = self.memory.shift
        return self._vector_at(self.e.pointer(pointer, "float", shift)) * share

    def _scalar(self, i: Instruction, args: list[Value], program: Sequence[Instruction]) -> Value:
        if i.attrs[0] == self.product.name:
            return self._finished()
        return super()._scalar(i, args, program)

    def _run_epilogue(self) -> None:
        (stage,) = self.kernel.stages
        self._body(stage, [], 0, self.memory.mask)

    # -- scratch -----------------------------------------------------------------------------------

    def _vector_at(self, pointer: Value) -> Value:
        vector = f"<{self.lanes} x float>"
        return self.e.here(f"load {vector}, ptr {pointer.text}, align 4", "float", self.lanes)

    def _number_at(self, pointer: Value) -> Value:
        return self.e.here(f"load float, ptr {pointer.text}, align 4", "float", 1)

    def _put(self, value: Value, pointer: Value) -> None:
        text = self.e.argument(value, self.lanes)
        self.e.line(f"store <{self.lanes} x float> {text}, ptr {pointer.text}, align 4")

    def _floats(self, count: int) -> Value:
        """The address of so many floats of scratch, which begin on a line."""
        return self._take_scratch(SIZE * count)


def logarithm(e: Emitter, top: Value, total: Value) -> Value:
    """That of the sum of exponentials of scores, of which `top` is the largest, and `total` the sum
    of what they are above it."""
    is_infinite = e.compare("oeq", e.intrinsic("fabs", (top,)), inf)
    return e.select(is_infinite, top, top + log(total))


def known(loop: Symbol) -> int:
    assert loop.extent.constant is not None
    return loop.extent.constant


def padded(loop: Symbol) -> int:
    return -(-known(loop) // MULTIPLE) * MULTIPLE


def _is_short(place: Expr | None) -> bool:
    if place is None:
        return False
    low, high = place.bounds
    if low is not None and low >= 0:
        return fits_short(place)
    return low is not None and high is not None and -low < 2**31 and high < 2**31
