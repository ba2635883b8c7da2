"""A kernel whose product has weights, as one LLVM function: attention with scores of the program's
own, or a part of its gradients.

A block of rows is transposed once, so that a vector holds one feature of neighbouring rows. It
takes up to `CHUNK` steps at a time: their products, laid out as (step, row), become weights where
they are, by vectors of rows, and are then added up times the right operand. All products are made
of the tiles that matrix products have. The softmax is taken online: the largest score so far, and
the sum of the exponentials of what scores are below it, are kept for each row (Milakov and
Gimelshein, 2018). What is not in float32, or not adjacent, is copied first, a few rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd, inf
from typing import NamedTuple

import torch

from ingot.codegen.llvm import tiles
from ingot.codegen.llvm.emitter import Value, Variable
from ingot.codegen.llvm.function import Function
from ingot.codegen.llvm.math import exp_of_negative
from ingot.codegen.llvm.scalar import convert
from ingot.codegen.llvm.single_rows import RowEmitter
from ingot.codegen.llvm.target import Target
from ingot.codegen.llvm.transpose import PREFETCH, transpose
from ingot.codegen.llvm.weighted import CHUNK, SIZE, WeightedEmitter, known, logarithm, padded
from ingot.loops.expr import ONE, ZERO, Symbol
from ingot.loops.ir import Access, Body
from ingot.loops.weights import InnerProduct
from ingot.loops.windows import ALL
from ingot.schedule.kernel import Kernel, Product

TOGETHER = 4  # vectors
IN_A_ROW = 32  # weights that are added one by one: longer sums would round worse


class _Rows(NamedTuple):
    """Rows of adjacent floats: where they begin, and how many floats lie between beginnings."""

    address: Value
    stride: Value

    def at(self, number: Value) -> Value:
        return self.address.emitter.pointer(self.address, "float", number * self.stride)


class _Factors(NamedTuple):
    """An inner product: the block's rows turned, sums of a tile, and memory for rows that are
    copied."""

    product: InnerProduct
    turned: Value
    sums: Value
    copies: Value


class _Sum(NamedTuple):
    """A sum over steps.

    It has the tile it is taken in, the weights, the sums so far, tile by tile, and memory for rows
    that are copied.
    """

    column: Symbol
    right: Access
    tile: tiles.Tile
    weights: Value
    totals: Value
    copies: Value


def emit_scored_attention(
    kernel: Kernel, symbols: Sequence[Symbol], target: Target, check_bounds: bool = False
) -> Function:
    """The LLVM function of a kernel whose product has weights; size symbols and checks are as in
    `emit_kernel`."""
    assert kernel.product is not None
    emitter: type[WeightedEmitter] = _BlockEmitter
    if kernel.product.row_block == 1:
        emitter = RowEmitter
    return emitter(kernel, kernel.product, symbols, target, check_bounds).function()


class _BlockEmitter(WeightedEmitter):
    first: Value  # the block's first row,
    height: Value  # ... and how many it has

    def __init__(
        self,
        kernel: Kernel,
        product: Product,
        symbols: Sequence[Symbol],
        target: Target,
        check_bounds: bool,
    ) -> None:
        super().__init__(kernel, product, symbols, target, check_bounds)
        self.target = target
        self.tile = tiles.choose_tile("float", self.block, target)  # its columns are rows
        self.offsets = self._floats(2)
        longest = CHUNK
        for p in self.weights.products:
            longest = max(longest, known(p.depth))
        self.entries = (longest // tiles.UNROLL + 1) * tiles.SOON
        self.soon = self._floats(2 * self.entries)
        self.factors: list[_Factors] = []
        for p in self.weights.products:
            depth = known(p.depth)
            turned, sums = self._floats(depth * self.block), self._floats_of(self.tile)
            rows = max(CHUNK, self.block)
            self.factors.append(_Factors(p, turned, sums, self._floats(rows * padded(p.depth))))
        self.sums = [self._sum(self.column, product.right)]
        if self.weights.beside is not None:
            self.sums.append(self._sum(self.weights.beside.column, self.weights.beside.right))
        self.tops, self.totals, self.shares = map(self._floats, [self.block] * 3)

    def _floats_of(self, tile: tiles.Tile) -> Value:
        return self._floats(tile.rows * tile.width)

    def _sum(self, column: Symbol, right: Access) -> _Sum:
        tile = tiles.choose_tile("float", padded(column), self.target, self.block)
        down = -(-self.block // tile.rows)
        weights = self._floats(CHUNK * self.block + tile.rows)  # the last tile may go beyond
        totals = self._floats(down * tile.rows * padded(column))
        return _Sum(column, right, tile, weights, totals, self._floats(CHUNK * padded(column)))

    def begin(self) -> None:
        e = self.e
        e.line(f"store i64 0, ptr {self.offsets.text}, align 8")
        tiles.clear_entries(e, self.soon, self.entries, self.factors[0].sums)

    # -- one block of rows -------------------------------------------------------------------------

    def rows_from(self, first: Value, rows: Value) -> None:
        self.first, self.height = first, rows
        for factors in self.factors:
            self._turn(factors)
        for each in self.sums:
            down = -(-self.block // each.tile.rows)
            self._fill(each.totals, down * each.tile.rows * padded(each.column), 0.0)
        self._fill(self.tops, self.block, -inf)
        self._fill(self.totals, self.block, 0.0)
        self.all_steps(first, rows)
        if self.weights.softmax:
            self._finish_softmax()
        self._store_sums(self.sums[0], self._run_epilogue)
        if self.weights.beside is not None:
            self._store_sums(self.sums[1], self._store_beside)

    def _fill(self, start: Value, count: int, number: float) -> None:
        e = self.e
        with e.loop(e.constant(0, "i64"), e.constant(count, "i64"), self.lanes, sure=True) as at:
            self._put(e.constant(number, "float"), e.pointer(start, "float", at))

    def _turn(self, factors: _Factors) -> None:
        """Transpose the block's rows into panels as wide as a tile."""
        e, p, width = self.e, factors.product, self.tile.width
        depth = known(p.depth)
        rows = self._rows_of(p.left, self.row, self.first, self.height, p.depth, factors.copies)
        name, text = transpose("float", width, self.lanes * SIZE)
        e.declarations.add(text)
        e.declare("void", PREFETCH, "ptr, i32, i32, i32")
        e.declare("i64", "llvm.smin.i64", "i64, i64")
        with e.loop(e.constant(0, "i64"), self.height, width, True, width == self.block) as at:
            there = e.intrinsic("smin", (self.height - at, width))
            panel = e.pointer(factors.turned, "float", at * depth)
            partial = e.compare("slt", there, width)
            end = e.select(partial, e.constant(width * depth, "i64"), e.constant(0, "i64"))
            with e.loop(e.constant(0, "i64"), end, self.lanes, sure=False) as element:
                self._put(e.constant(0.0, "float"), e.pointer(panel, "float", element))
            values = f"i64 {rows.stride.text}, ptr {panel.text}, i64 {there.text}, i64 {depth}"
            e.line(f"call void {name}(ptr {rows.at(at).text}, {values})")

    # -- some steps --------------------------------------------------------------------------------

    def steps_from(self, body: Body, start: Value, count: Value) -> None:
        e, tile, rights = self.e, self.tile, list[_Rows]()
        for factors in self.factors:
            p = factors.product
            rows = self._rows_of(p.right, self.step, start, count, p.depth, factors.copies)
            rights.append(rows)
        zero = e.constant(0, "i64")
        with e.loop(zero, count, tile.rows, sure=True) as step:
            there = e.intrinsic("smin", (count - step, tile.rows))
            with e.loop(zero, self.height, tile.width, True, tile.width == self.block) as at:
                for factors, right in zip(self.factors, rights):
                    self._multiply_rows(factors, right, step, count, at)
                with e.loop(zero, there, 1, sure=True) as number:
                    self.memory.bound[self.step] = start + step + number
                    self._weigh(body, step, number, at)
        if self.weights.softmax:
            self._exponentials(count)
        for each in self.sums:
            self._add(each, start, count)

    def _multiply_rows(
        self, factors: _Factors, right: _Rows, step: Value, count: Value, at: Value
    ) -> None:
        """The products of a tile: steps that are not there are read as the last one."""
        e, depth = self.e, known(factors.product.depth)
        rows = []
        for r in range(self.tile.rows):
            rows.append(right.at(e.intrinsic("smin", (step + r, count - 1))))
        panel = e.pointer(factors.turned, "float", at * depth)
        along, steps = e.constant(self.tile.width * SIZE, "i64"), e.constant(depth, "i64")
        self._multiply(self.tile, rows, SIZE, (panel, along), steps, factors.sums, add=False)

    def _weigh(self, body: Body, step: Value, number: Value, at: Value) -> None:
        """The weights, or scores, of one step, for the rows of a tile."""
        e, memory = self.e, self.memory
        memory.vector, memory.bound[self.row] = self.row, self.first + at
        for shift in range(0, self.tile.width, self.lanes):
            memory.shift = shift
            if self.row.extent % self.block is not ZERO:
                memory.mask = e.compare("slt", e.iota("i64"), self.height - at - shift)
            products = {}
            for factors in self.factors:
                place = e.pointer(factors.sums, "float", number * self.tile.width)
                pointer = e.pointer(place, "float", shift)
                products[factors.product.name] = self._vector_at(pointer)
            for each, weight in zip(self.sums, self.weights_of(body, products)):
                place = e.pointer(each.weights, "float", (step + number) * self.block + at)
                self._put(weight, e.pointer(place, "float", shift))
        memory.vector, memory.shift, memory.mask = None, 0, None

    def _exponentials(self, count: Value) -> None:
        """Turn scores into weights, and let the sums so far decay."""
        e, together = self.e, gcd(TOGETHER, self.block // self.lanes)
        width, zero = together * self.lanes, e.constant(0, "i64")
        with e.loop(zero, self.height, width, True, width == self.block) as at:
            scores = e.pointer(self.sums[0].weights, "float", at)
            tops = self._each(scores, count, together, -inf, lambda v, score, place: score)
            bases, decays = [], []
            for v, highest in enumerate(tops):
                place = e.pointer(e.pointer(self.tops, "float", at), "float", v * self.lanes)
                old = self._vector_at(place)
                top = e.intrinsic("maxnum", (old, highest))
                self._put(top, place)
                is_empty = e.compare("oeq", top, -inf)
                bases.append(e.select(is_empty, e.constant(0.0, "float"), top))
                decays.append(exp_of_negative(old - bases[v]))

            def weigh(v: int, score: Value, place: Value) -> Value:
                weight = exp_of_negative(score - bases[v])
                self._put(weight, place)
                return weight

            sums = self._each(scores, count, together, 0.0, weigh)
            for v, (decay, total) in enumerate(zip(decays, sums)):
                place = e.pointer(e.pointer(self.totals, "float", at), "float", v * self.lanes)
                self._put(e.fma(self._vector_at(place), decay, total), place)
                place = e.pointer(e.pointer(self.shares, "float", at), "float", v * self.lanes)
                self._put(decay, place)

    def _each(
        self, start: Value, count: Value, together: int, first: float,
        value: Callable[[int, Value, Value], Value],
    ) -> list[Value]:  # fmt: skip
        """For vectors side by side: the sum of a value over all steps, or the largest one if that
        is -inf at `first`."""
        e, is_sum = self.e, first != -inf
        variables, totals = self._variables(together, first), self._variables(together, first)
        with e.loop(e.constant(0, "i64"), count, IN_A_ROW, sure=True) as begin:
            end = e.intrinsic("smin", (begin + IN_A_ROW, count))
            with e.loop(begin, end, 1, sure=True) as step:
                row = e.pointer(start, "float", step * self.block)
                for v, variable in enumerate(variables):
                    place = e.pointer(row, "float", v * self.lanes)
                    term, before = value(v, self._vector_at(place), place), variable.load()
                    if is_sum:
                        variable.store(before + term)
                    else:
                        variable.store(e.intrinsic("maxnum", (before, term)))
            for total, variable in zip(totals, variables if is_sum else ()):
                total.store(total.load() + variable.load())
                variable.store(e.constant(0.0, "float"))
        return list(map(Variable.load, totals if is_sum else variables))

    def _variables(self, count: int, first: float) -> list[Variable]:
        variables = []
        for _ in range(count):
            variables.append(self.e.variable("float", self.lanes))
        for variable in variables:
            variable.store(self.e.constant(first, "float"))
        return variables

    def _add(self, each: _Sum, start: Value, count: Value) -> None:
        """Add steps to a sum, which decays before."""
        e, tile, width = self.e, each.tile, padded(each.column)
        right = self._rows_of(
            each.right, self.step, start, count, each.column, each.copies, whole_vectors=True
        )
        with e.loop(e.constant(0, "i64"), self.height, tile.rows, sure=True) as row:
            begin, end = self._seen_by(row, tile.rows, start, count)
            rows, place = [], begin * self.block + row
            for r in range(tile.rows):
                rows.append(e.pointer(e.pointer(each.weights, "float", place), "float", r))
            with e.loop(e.constant(0, "i64"), e.constant(width, "i64"), tile.width, True) as column:
                sums = e.pointer(each.totals, "float", row * width + column * tile.rows)
                if self.weights.softmax:
                    self._decay(sums, row, tile)
                panel = e.pointer(right.at(begin), "float", column), right.stride * SIZE
                with e.loop(begin, end, 1, sure=self.window == ALL, once=True):
                    step = self.block * SIZE
                    self._multiply(tile, rows, step, panel, end - begin, sums, add=True)

    def _seen_by(self, row: Value, rows: int, start: Value, count: Value) -> tuple[Value, Value]:
        """Where the steps begin and end that are not empty for rows of the block."""
        e = self.e
        zero = e.constant(0, "i64")
        if self.window == ALL:
            return zero, count
        last = e.intrinsic("smin", (row + rows, self.height)) - 1
        begin, end = self.range_of(self.window, self.first + row, self.first + last)
        begin = e.intrinsic("smax", (begin - start, zero))
        return begin, e.intrinsic("smin", (end - start, count))

    def _decay(self, sums: Value, row: Value, tile: tiles.Tile) -> None:
        e = self.e
        for r in range(tile.rows):
            share = self._number_at(e.pointer(e.pointer(self.shares, "float", row), "float", r))
            for v in range(tile.vectors):
                place = e.pointer(sums, "float", r * tile.width + v * self.lanes)
                self._put(self._vector_at(place) * share, place)

    def _multiply(
        self, tile: tiles.Tile, rows: Sequence[Value], step: int, panel: tuple[Value, Value],
        count: Value, sums: Value, add: bool,
    ) -> None:  # fmt: skip
        """The sums of a tile: of `count` elements of the rows times the rows of a panel.

        Elements are `step` bytes apart. A panel is given by where it begins, and how many bytes
        lie between its rows.
        """
        e, helper = self.e, tiles.multiply(tile, step)
        e.declarations |= {helper.text, *helper.declarations}
        pointers = "".join(map("ptr {0.text}, ".format, rows))
        e.line(
            f"call void @{helper.name}({pointers}i64 {step}, ptr {self.offsets.text}, "
            f"ptr {panel[0].text}, i64 {panel[1].text}, i64 {count.text}, i64 0, i64 1, "
            f"ptr {sums.text}, i1 {str(add).lower()}, ptr {self.soon.text})"
        )

    # -- the end of a block ------------------------------------------------------------------------

    def _finish_softmax(self) -> None:
        """Leave one over the sums of exponentials, and store their logarithms."""
        e, memory, logarithms = self.e, self.memory, self.weights.logarithms
        memory.vector, memory.bound[self.row] = self.row, self.first
        for shift in range(0, self.block, self.lanes):
            memory.shift = shift
            memory.mask = e.compare("slt", e.iota("i64"), self.height - shift)
            total = self._vector_at(e.pointer(self.totals, "float", shift))
            top = self._vector_at(e.pointer(self.tops, "float", shift))
            share = 1.0 / total
            if self.weights.zero_rows:
                share = e.select(e.compare("oeq", total, 0.0), e.constant(0.0, "float"), share)
            self._put(share, e.pointer(self.shares, "float", shift))
            if logarithms is not None:
                value = logarithm(e, top, total)
                memory.store(logarithms.buffer, logarithms.index, value, "store")
        memory.vector, memory.shift, memory.mask = None, 0, None

    def _store_sums(self, each: _Sum, store: Callable[[], None]) -> None:
        """`store()` for each vector of the finished sums."""
        e, tile, width = self.e, each.tile, padded(each.column)
        with e.loop(e.constant(0, "i64"), self.height, tile.rows, sure=True) as row:
            there = e.intrinsic("smin", (self.height - row, tile.rows))
            with e.loop(e.constant(0, "i64"), there, 1, sure=True) as number:
                self.memory.bound[self.row] = self.first + row + number
                share = e.constant(1.0, "float")
                if self.weights.softmax:
                    share = self._number_at(e.pointer(self.shares, "float", row + number))
                for column in range(0, width, tile.width):
                    stop = min(column + tile.width, known(each.column))
                    place = row * width + (number * tile.width + column * tile.rows)
                    self.place = e.pointer(each.totals, "float", place), share
                    self.vectors_along(each.column, column, stop, store)

    def _store_beside(self) -> None:
        assert self.weights.beside is not None
        target = self.weights.beside.target
        value = convert(self._finished(), torch.float32, self.memory.dtypes[target.buffer])
        self.memory.store(target.buffer, target.index, value, "store")

    # -- operands ----------------------------------------------------------------------------------

    def _rows_of(
        self, access: Access, loop: Symbol, first: Value, count: Value, along: Symbol,
        copies: Value, whole_vectors: bool = False,
    ) -> _Rows:  # fmt: skip
        """Rows of an operand as adjacent floats: where they lie, or as copies.

        If whole vectors are read, copies are padded by zeros.
        """
        e, memory = self.e, self.memory
        linear = access.index.linear((loop, along))
        whole = not whole_vectors or padded(along) == known(along)
        if linear is not None and memory.dtypes[access.buffer] is torch.float32 and whole:
            if linear[1].get(along) is ONE or known(along) == 1:
                memory.bound[loop], memory.bound[along] = first, e.constant(0, "i64")
                base, index = memory.base[access.buffer], memory.index(access.index)
                stride = memory.index(linear[1].get(loop, ZERO))
                rows = _Rows(e.pointer(base, "float", index), stride)
                self._check_rows(access, rows, count, known(along))
                return rows
        width = padded(along)
        with e.loop(e.constant(0, "i64"), count, 1, sure=True) as number:
            memory.bound[loop] = first + number
            row = e.pointer(copies, "float", number * width)

            def copy(number: int) -> None:
                value = memory.load(access.buffer, access.index, None)
                value = convert(value, memory.dtypes[access.buffer], torch.float32)
                place = e.pointer(row, "float", memory.bound[along])
                self._put(value, e.pointer(place, "float", memory.shift))

            extent = known(along)
            zero, end = e.constant(0, "i64"), e.constant(extent, "i64")
            self._vector_loop(along, zero, end, extent, TOGETHER, copy)
        return _Rows(copies, e.constant(width, "i64"))

    def _check_rows(self, access: Access, rows: _Rows, count: Value, length: int) -> None:
        """Where bounds are checked: the first and the last element."""
        last = self.e.pointer(rows.at(count - 1), "float", length - 1)
        for pointer in (rows.address, last):
            self.memory.check(access.buffer, pointer, False, None)
