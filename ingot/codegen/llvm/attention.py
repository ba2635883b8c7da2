"""An `AttentionKernel` as one LLVM function.

A block of queries is transposed into scratch once, so that a vector holds one feature of
neighbouring queries. Scores are then computed with the keys' elements broadcast from where they
lie, and land in scratch as (keys, queries): the maximum, the exponentials and the sum of each query
are plain vector operations down the columns. The product with the values broadcasts the weights
instead, and its vectors are the values' rows. Neither keys nor values are copied.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import inf

from ingot.codegen.llvm.emitter import Value, Variable
from ingot.codegen.llvm.function import Function
from ingot.codegen.llvm.heads import HeadEmitter, known
from ingot.codegen.llvm.math import exp, log
from ingot.codegen.llvm.target import Target
from ingot.loops.expr import ZERO, Expr, Symbol
from ingot.schedule.kernel import AttentionKernel, Operand, ceil_div

CHUNK = 64  # keys
UNROLL = 4  # steps of the features' loop written out
# of queries, or of a value's row, held at once: by the bytes of a register
MOST_VECTORS = {64: 4, 32: 2, 16: 4}
REGISTERS = {64: 32, 32: 16, 16: 32}
_MANY = sys.maxsize


def tile_rows(vectors: int, vector_bytes: int) -> int:
    """Rows of a tile of accumulators `vectors` wide.

    They leave registers for a row of operands and a few more.
    """
    return max(1, min(16, (REGISTERS[vector_bytes] - 2 - vectors) // vectors))


def emit_attention(
    kernel: AttentionKernel, symbols: Sequence[Symbol], target: Target, check_bounds: bool = False
) -> Function:
    """The LLVM function of attention.

    Its size symbols are read from `sizes` at their position in `symbols`. With `check_bounds`, an
    access outside of a buffer of known length reports `OutOfBounds`.
    """
    return _AttentionEmitter(kernel, symbols, target, check_bounds).function()


class _AttentionEmitter(HeadEmitter):
    def __init__(
        self, kernel: AttentionKernel, symbols: Sequence[Symbol], target: Target, check_bounds: bool
    ) -> None:
        super().__init__(kernel.parameters, symbols, target, check_bounds)
        self.kernel = kernel
        _, heads, self.queries, self.keys, width, value_width = kernel.sizes
        self.heads, self.width, self.value_width = known(heads), known(width), known(value_width)
        if self.keys.constant is None:
            self.most_keys = _MANY
        else:
            self.most_keys = self.keys.constant
        self.vectors = min(MOST_VECTORS[self.bytes], kernel.query_block // self.lanes)
        self.block = self.vectors * self.lanes
        self.mask_row = self.width + self.keys + 1
        self.turns_mask = kernel.mask is not None and kernel.mask.strides[2] is not ZERO
        self.scratch_rows = self.mask_row
        if self.turns_mask:
            rows = self.keys
            if rows.constant is None:
                rows = ceil_div(rows, self.lanes) * self.lanes
            self.scratch_rows = self.scratch_rows + rows

    def scratch_bytes(self) -> Expr:
        return 4 * (self.block * self.scratch_rows + self.lanes * REGISTERS[self.bytes])

    def scratch(self, row: int | Expr) -> Value:
        """The address of a row of `block` floats in scratch: queries, scores, sums, mask."""
        return self.e.pointer(self.value("%scratch", "ptr"), "float", self.number(row * self.block))

    def scratch_vector(self, number: int) -> Value:
        """The address of a vector behind the rows."""
        at = self.block * self.scratch_rows + number * self.lanes
        return self.e.pointer(self.value("%scratch", "ptr"), "float", self.number(at))

    # -- one block of queries ----------------------------------------------------------------------

    def point(self, point: Value) -> None:
        """A block of the schedule's, in pieces that fit the registers."""
        e, kernel = self.e, self.kernel
        blocks = self.number(kernel.blocks)
        first = e.binary("urem", point, blocks) * kernel.query_block
        outer = e.binary("udiv", point, blocks)
        head, batch = e.binary("urem", outer, self.heads), e.binary("udiv", outer, self.heads)
        end = self.smaller(first + kernel.query_block, self.number(self.queries))
        once = self.block == kernel.query_block
        with e.loop(first, end, self.block, sure=True, once=once) as start:
            self.piece(batch, head, start)

    def piece(self, batch: Value, head: Value, first: Value) -> None:
        """`block` queries from `first` on."""
        e, kernel = self.e, self.kernel
        key_head = e.binary("udiv", head, self.heads // kernel.key_heads)
        stop = self.number(self.keys)
        if kernel.causal:
            stop = self.smaller(stop, first + self.block)
        queries = self.at(kernel.query, batch, head)
        self.transpose(kernel.query, queries, first, kernel.sizes[4], self.scratch(0))
        mask = None
        if kernel.mask is not None:
            mask = self.at(kernel.mask, batch, head)
            if self.turns_mask:
                self.transpose(kernel.mask, mask, first, self.keys, self.scratch(self.mask_row))
        largest = self.scores(self.at(kernel.key, batch, key_head), mask, first, stop)
        self.exponentials(largest, stop)
        if kernel.logarithms is not None:
            self.store_logarithms(kernel.logarithms, self.at(kernel.logarithms, batch, head), first)
        values, target = self.at(kernel.value, batch, key_head), self.at(kernel.target, batch, head)
        self.products(values, target, first, stop)

    def transpose(
        self, operand: Operand, source: Value, first: Value, columns: Expr, target: Value
    ) -> None:
        """`block` rows of an operand's array, from row `first` on, to rows of `block` elements.

        A row has `columns` elements; the last row of all stands for those behind it.
        """
        e, lanes = self.e, self.lanes
        last, stride = self.number(self.queries - 1), self.number(operand.strides[2])
        zero, block, once = self.number(0), self.number(self.block), self.vectors == 1
        with e.loop(zero, block, lanes, sure=True, once=once) as group:
            rows = []
            for k in range(lanes):
                row = self.smaller(first + group + k, last) * stride
                rows.append(e.pointer(source, "float", row))

            def tile(column: Value, count: int | Value) -> None:
                pointers = []
                for row in rows:
                    pointers.append(self.check(operand, e.pointer(row, "float", column), count))
                loaded = []
                for pointer in pointers:
                    loaded.append(self.load_first(pointer, count))
                present = lanes
                if isinstance(count, int):
                    present = count
                for k, turned in enumerate(self.transposed(loaded)[:present]):
                    place = (column + k) * self.block + group
                    self.store(turned, e.pointer(target, "float", place))

            if columns.constant is not None:
                return self.steps(columns.constant, lanes, tile)
            with e.loop(self.number(0), self.number(columns), lanes, sure=True) as column:
                tile(column, self.smaller(self.number(columns) - column, self.number(lanes)))

    def steps(self, count: int, step: int, body: Callable[[Value, int], None]) -> None:
        """`body(start, length)` for pieces of `step`, and the rest as a last piece."""
        whole = count // step * step
        if whole:
            zero, end = self.number(0), self.number(whole)
            with self.e.loop(zero, end, step, sure=True, once=whole == step) as start:
                body(start, step)
        if whole < count:
            body(self.number(whole), count - whole)

    def transposed(self, rows: list[Value]) -> list[Value]:
        """A square of as many vectors as they have lanes, turned."""
        lanes, distance = self.lanes, 1
        while distance < lanes:
            low, high = list(range(lanes)), list(range(lanes, 2 * lanes))
            for k in range(lanes):
                if k & distance:
                    low[k] = lanes + k - distance
                else:
                    high[k] = k + distance
            turned = list(rows)
            for i in range(lanes):
                if not i & distance:
                    a, b = rows[i], rows[i + distance]
                    turned[i] = self.e.shuffle(a, b, low)
                    turned[i + distance] = self.e.shuffle(a, b, high)
            rows, distance = turned, distance * 2
        return rows

    # -- scores ------------------------------------------------------------------------------------

    def scores(self, keys: Value, mask: Value | None, first: Value, stop: Value) -> list[Value]:
        """Scaled and masked scores in scratch; returns the largest of each query."""
        e = self.e
        largest = self.variables(self.vectors, -inf)
        rows = min(tile_rows(self.vectors, self.bytes), self.most_keys)
        stride = self.kernel.key.strides[2]
        step = self.number(stride)
        with e.loop(self.number(0), stop, rows, sure=True) as key:
            if self.keys.constant is not None:
                key = self.smaller(key, self.number(self.keys - rows))
                numbers = [key + r for r in range(rows)]
                begins = []
                for r in range(rows):
                    begins.append((e.pointer(keys, "float", key * step), stride * r))
            else:
                # there may be fewer than a tile has rows: the last key stands for those behind it
                numbers = []
                for r in range(rows):
                    numbers.append(self.smaller(key + r, self.number(self.keys - 1)))
                begins = [(e.pointer(keys, "float", number * step), ZERO) for number in numbers]
            sums = self.score_tile(begins)
            for number, row in zip(numbers, sums):
                for v, total in enumerate(row):
                    score = self.finished_score(total, mask, first, number, v)
                    self.store(score, self.weight(number, v))
                    largest[v].store(e.intrinsic("maxnum", (largest[v].load(), score)))
        return list(map(Variable.load, largest))

    def weight(self, key: Value, vector: int) -> Value:
        """The address of a vector of scores."""
        scores = self.scratch(self.width)
        return self.e.pointer(scores, "float", key * self.block + vector * self.lanes)

    def score_tile(self, keys: list[tuple[Value, Expr]]) -> list[list[Value]]:
        """The products of keys, which begin so far behind an address, with the block's queries."""
        e, queries = self.e, self.scratch(0)
        sums = []
        for _ in keys:
            sums.append(self.variables(self.vectors))

        def features(start: Value, count: int) -> None:
            for u in range(count):
                at = e.pointer(queries, "float", (start + u) * self.block)
                query = []
                for v in range(self.vectors):
                    query.append(self.load(e.pointer(at, "float", v * self.lanes), aligned=True))
                for (address, behind), row in zip(keys, sums):
                    begin = e.pointer(address, "float", start)
                    pointer = e.pointer(begin, "float", self.number(behind + u))
                    key = self.load_scalar(self.check(self.kernel.key, pointer))
                    for variable, vector in zip(row, query):
                        variable.store(e.fma(key, vector, variable.load()))

        self.steps(self.width, UNROLL, features)
        return [list(map(Variable.load, row)) for row in sums]

    def finished_score(
        self, total: Value, mask: Value | None, first: Value, key: Value, vector: int
    ) -> Value:
        e, kernel = self.e, self.kernel
        score = total * kernel.scale
        if mask is not None and kernel.mask is not None:
            if self.turns_mask:
                masks = self.scratch(self.mask_row)
                row = e.pointer(masks, "float", key * self.block + vector * self.lanes)
                added = self.load(row, aligned=True)
            else:
                pointer = e.pointer(mask, "float", key * self.number(kernel.mask.strides[3]))
                added = self.load_scalar(self.check(kernel.mask, pointer))
            if kernel.replaces:
                score = e.select(e.compare("uno", added, added), score, added)
            else:
                score = score + added
        if kernel.causal:
            query = e.iota("i64") + (first + vector * self.lanes)
            query = self.smaller(query, self.number(self.queries - 1))
            score = e.select(e.compare("sge", query, key), score, e.constant(-inf, "float"))
        return score

    # -- softmax -----------------------------------------------------------------------------------

    def exponentials(self, largest: Sequence[Value], stop: Value) -> None:
        """Turn scores into weights, and leave one over their sums in scratch."""
        e = self.e
        if self.kernel.zero_rows:
            zero = e.constant(0.0, "float")
            largest = [e.select(e.compare("oeq", m, -inf), zero, m) for m in largest]
        totals, sums = self.variables(len(largest)), self.variables(len(largest))
        with self.chunks(stop) as keys:
            with e.loop(*keys, 1, sure=True) as key:
                for v, top in enumerate(largest):
                    weight = exp(self.load(self.weight(key, v), aligned=True) - top)
                    self.store(weight, self.weight(key, v))
                    sums[v].store(sums[v].load() + weight)
            for total, chunk_sum in zip(totals, sums):
                total.store(total.load() + chunk_sum.load())
                chunk_sum.store(e.constant(0.0, "float"))
        for v, variable in enumerate(totals):
            whole = variable.load()
            if self.kernel.zero_rows:
                whole = e.select(e.compare("oeq", whole, 0.0), e.constant(1.0, "float"), whole)
            if self.kernel.logarithms is not None:  # the queries are not needed any more
                row = e.pointer(self.scratch(0), "float", v * self.lanes)
                self.store(largest[v] + log(whole), row)
            self.store(1.0 / whole, self.weight(self.number(self.keys), v))

    def store_logarithms(self, operand: Operand, target: Value, first: Value) -> None:
        """Those of the block, which are in scratch, one by one: their stride is any."""
        e, stride = self.e, self.number(operand.strides[2])
        queries = self.smaller(self.number(self.queries) - first, self.number(self.block))
        with e.loop(self.number(0), queries, 1, sure=True) as at:
            value = self.load_scalar(e.pointer(self.scratch(0), "float", at))
            pointer = self.check(operand, e.pointer(target, "float", (first + at) * stride))
            e.line(f"store float {value.text}, ptr {pointer.text}, align 4")

    @contextmanager
    def chunks(self, stop: Value) -> Iterator[tuple[Value, Value]]:
        """The keys in pieces of `CHUNK`, whose sums are added: longer chains would round worse."""
        e = self.e
        with e.loop(self.number(0), stop, CHUNK, sure=True, once=self.most_keys <= CHUNK) as start:
            yield start, self.smaller(start + CHUNK, stop)

    def variables(self, count: int, value: float = 0.0) -> list[Variable]:
        """Vectors whose elements are a value at first."""
        variables = []
        for _ in range(count):
            variables.append(self.e.variable("float", self.lanes))
        for variable in variables:
            variable.store(self.e.constant(value, "float"))
        return variables

    # -- the product with the values ---------------------------------------------------------------

    def products(self, values: Value, target: Value, first: Value, stop: Value) -> None:
        """Weights @ values over the sums, to the target."""
        e, widest = self.e, MOST_VECTORS[self.bytes] * self.lanes
        queries = self.smaller(self.number(self.queries) - first, self.number(self.block))

        def columns(start: Value, count: int) -> None:
            rows = tile_rows(-(-count // self.lanes), self.bytes)
            here, there = e.pointer(values, "float", start), e.pointer(target, "float", start)
            with e.loop(self.number(0), queries, rows, sure=True) as at:
                query = self.smaller(at, self.number(self.block - rows))
                self.product_tile(here, there, first, query, rows, count, stop)

        self.steps(self.value_width, widest, columns)

    def product_tile(
        self,
        values: Value,
        target: Value,
        first: Value,
        query: Value,
        rows: int,
        count: int,
        stop: Value,
    ) -> None:
        e, kernel = self.e, self.kernel
        value_stride, target_stride = map(
            self.number, (kernel.value.strides[2], kernel.target.strides[2])
        )
        pieces = []
        for start in range(0, count, self.lanes):
            pieces.append(min(self.lanes, count - start))
        several = self.most_keys > CHUNK
        totals = [
            [self.scratch_vector(r * len(pieces) + v) for v in range(len(pieces))]
            for r in range(rows)
        ]
        for pointer in itertools.chain(*totals) if several else ():
            self.store(e.constant(0.0, "float"), pointer)
        weights = e.pointer(self.scratch(self.width), "float", query)
        with self.chunks(stop) as keys:
            sums = []
            for _ in range(rows):
                sums.append(self.variables(len(pieces)))
            with e.loop(*keys, 1, sure=True) as key:
                at = e.pointer(values, "float", key * value_stride)
                pointers = [e.pointer(at, "float", v * self.lanes) for v in range(len(pieces))]
                loaded = [
                    self.load_first(self.check(self.kernel.value, p, n), n)
                    for p, n in zip(pointers, pieces)
                ]
                beside = e.pointer(weights, "float", key * self.block)
                for r, row in enumerate(sums):
                    weight = self.load_scalar(e.pointer(beside, "float", r))
                    for variable, vector in zip(row, loaded):
                        variable.store(e.fma(weight, vector, variable.load()))
            if several:
                for variable, pointer in zip(itertools.chain(*sums), itertools.chain(*totals)):
                    self.store(self.load(pointer, aligned=True) + variable.load(), pointer)
        shares = e.pointer(weights, "float", self.number(self.keys * self.block))
        for r, row in enumerate(sums):
            share = self.load_scalar(e.pointer(shares, "float", r))
            line = self.smaller(first + query + r, self.number(self.queries - 1)) * target_stride
            for v, (variable, n) in enumerate(zip(row, pieces)):
                if several:
                    total = self.load(totals[r][v], aligned=True)
                else:
                    total = variable.load()
                pointer = e.pointer(e.pointer(target, "float", line), "float", v * self.lanes)
                self.store_first(total * share, self.check(self.kernel.target, pointer, n), n)
