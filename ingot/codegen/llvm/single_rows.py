"""A kernel whose product has weights, of few rows: one row at a time, as in decoding.

Lanes are steps where weights are computed, and features where products are summed: each operand is
read where it lies, once, as vectors of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import torch

from ingot.codegen.llvm.emitter import Value, Variable
from ingot.codegen.llvm.math import exp
from ingot.codegen.llvm.scalar import convert
from ingot.codegen.llvm.target import Target
from ingot.codegen.llvm.weighted import CHUNK, WeightedEmitter, known, logarithm, padded
from ingot.loops.expr import Symbol
from ingot.loops.ir import Access, Body
from ingot.loops.weights import InnerProduct
from ingot.schedule.kernel import Kernel, Product

TOGETHER = 8  # vectors of sums that are in registers at once


class RowEmitter(WeightedEmitter):
    """Of a kernel without a sum beside, whose blocks are single rows."""

    def __init__(
        self,
        kernel: Kernel,
        product: Product,
        symbols: Sequence[Symbol],
        target: Target,
        check_bounds: bool,
    ) -> None:
        super().__init__(kernel, product, symbols, target, check_bounds)
        self.lefts: list[Value] = []
        for p in self.weights.products:
            self.lefts.append(self._floats(padded(p.depth)))
        self.scores, self.sums = self._floats(CHUNK), self._floats(padded(self.column))
        self.top, self.total = self._floats(1), self._floats(1)

    def rows_from(self, first: Value, rows: Value) -> None:
        e, memory = self.e, self.memory
        memory.bound[self.row] = first
        for left, p in zip(self.lefts, self.weights.products):
            for shift in range(0, known(p.depth), self.lanes):
                part = self._part(p.left, p.depth, shift)
                self._put(part, e.pointer(left, "float", shift))
        for shift in range(0, padded(self.column), self.lanes):
            self._put(e.constant(0.0, "float"), e.pointer(self.sums, "float", shift))
        self._put_number(e.constant(-inf, "float"), self.top)
        self._put_number(e.constant(0.0, "float"), self.total)
        self.all_steps(first, rows)
        memory.bound[self.row] = first
        share = e.constant(1.0, "float")
        if self.weights.softmax:
            share = self._finish_softmax()
        for start in range(0, known(self.column), self.lanes):
            self.place = e.pointer(self.sums, "float", start), share
            stop = min(start + self.lanes, known(self.column))
            self.vectors_along(self.column, start, stop, self._run_epilogue)

    def _part(self, access: Access, along: Symbol, start: int) -> Value:
        """A vector of an operand at the present point, as floats; zeros behind its end."""
        e, memory = self.e, self.memory
        memory.vector, memory.bound[along] = along, e.constant(start, "i64")
        left = known(along) - start
        if left < self.lanes:
            memory.mask = e.compare("slt", e.iota("i32"), e.constant(left, "i32"))
        value = memory.load(access.buffer, access.index, None)
        memory.vector, memory.mask = None, None
        value = convert(value, memory.dtypes[access.buffer], torch.float32)
        return e.splat(value, self.lanes)

    # -- some steps --------------------------------------------------------------------------------

    def steps_from(self, body: Body, start: Value, count: Value) -> None:
        e = self.e
        lefts = []
        for left, p in zip(self.lefts, self.weights.products):
            vectors = []
            for shift in range(0, known(p.depth), self.lanes):
                vectors.append(self._vector_at(e.pointer(left, "float", shift)))
            lefts.append(vectors)
        highest = e.variable("float", self.lanes)
        highest.store(e.constant(-inf, "float"))
        with e.loop(e.constant(0, "i64"), count, self.lanes, sure=True) as step:
            weight = self._weigh(body, start + step, count - step, lefts)
            self._put(weight, e.pointer(self.scores, "float", step))
            highest.store(e.intrinsic("maxnum", (highest.load(), weight)))
        decay = e.constant(1.0, "float")
        if self.weights.softmax:
            decay = self._exponentials(count, highest)
        for first in range(0, known(self.column), TOGETHER * self.lanes):
            last = min(first + TOGETHER * self.lanes, known(self.column))
            self._add(range(first, last, self.lanes), start, count, decay)

    def _weigh(
        self, body: Body, step: Value, left: Value, lefts: Sequence[Sequence[Value]]
    ) -> Value:
        """The weights, or scores, of a vector of steps, of which so many are left."""
        e, memory, products = self.e, self.memory, {}
        for p, vectors in zip(self.weights.products, lefts):
            products[p.name] = self._products(p, step, left, vectors)
        memory.vector, memory.bound[self.step] = self.step, step
        memory.mask = e.compare("slt", e.iota("i64"), left)
        (weight,) = self.weights_of(body, products)
        nothing = e.constant(-inf if self.weights.softmax else 0.0, "float")
        weight = e.select(memory.mask, weight, nothing)
        memory.vector, memory.mask = None, None
        return weight

    def _products(
        self, p: InnerProduct, step: Value, left: Value, vectors: Sequence[Value]
    ) -> Value:
        """The row times each of a vector of steps; the last one stands for those behind it."""
        e, sums = self.e, list[Value]()
        for lane in range(self.lanes):
            self.memory.bound[self.step] = step + e.intrinsic("smin", (left - 1, lane))
            total: Value | None = None
            for number, vector in enumerate(vectors):
                part = self._part(p.right, p.depth, number * self.lanes)
                total = part * vector if total is None else e.fma(part, vector, total)
            assert total is not None
            sums.append(total)
        return self._sums_of(sums)

    def _sums_of(self, vectors: list[Value]) -> Value:
        """A vector of the sums of as many vectors as it has lanes.

        Neighbours become one vector, whose halves, quarters, ... are partial sums of theirs.
        """
        e, length = self.e, self.lanes
        while len(vectors) > 1:
            low: list[int] = []
            for start in range(0, 2 * self.lanes, length):
                low += range(start, start + length // 2)
            high = [lane + length // 2 for lane in low]
            results = []
            for a, b in zip(vectors[::2], vectors[1::2]):
                results.append(e.shuffle(a, b, low) + e.shuffle(a, b, high))
            vectors, length = results, length // 2
        return vectors[0]

    def _exponentials(self, count: Value, highest: Variable) -> Value:
        """Turn scores into weights; returns by how much the sums so far decay."""
        e, total = self.e, self.e.variable("float", self.lanes)
        old = self._number_at(self.top)
        top = e.intrinsic("maxnum", (old, self._reduced("fmax", highest.load())))
        self._put_number(top, self.top)
        base = e.select(e.compare("oeq", top, -inf), e.constant(0.0, "float"), top)
        total.store(e.constant(0.0, "float"))
        with e.loop(e.constant(0, "i64"), count, self.lanes, sure=True) as step:
            place = e.pointer(self.scores, "float", step)
            weight = exp(self._vector_at(place) - base)
            self._put(weight, place)
            total.store(total.load() + weight)
        decay = exp(old - base)
        more = e.fma(self._number_at(self.total), decay, self._sum(total.load()))
        self._put_number(more, self.total)
        return decay

    def _sum(self, vector: Value) -> Value:
        while vector.lanes > 1:
            low, high = self.e.half_vectors(vector)
            vector = low + high
        return vector

    def _reduced(self, name: str, vector: Value) -> Value:
        function, type = f"llvm.vector.reduce.{name}.v{self.lanes}f32", f"<{self.lanes} x float>"
        self.e.declare("float", function, type)
        return self.e.here(f"call float @{function}({type} {vector.text})", "float", 1)

    def _add(self, columns: range, start: Value, count: Value, decay: Value) -> None:
        """Add the steps to the sums of columns, which decay before."""
        e, sums = self.e, list[Variable]()
        for _ in columns:
            sums.append(e.variable("float", self.lanes))
        for variable in sums:
            variable.store(e.constant(0.0, "float"))
        with e.loop(e.constant(0, "i64"), count, 1, sure=True) as step:
            self.memory.bound[self.step] = start + step
            weight = self._number_at(e.pointer(self.scores, "float", step))
            for column, variable in zip(columns, sums):
                part = self._part(self.product.right, self.column, column)
                variable.store(e.fma(part, weight, variable.load()))
        for column, variable in zip(columns, sums):
            place = e.pointer(self.sums, "float", column)
            self._put(e.fma(self._vector_at(place), decay, variable.load()), place)

    # -- the end -----------------------------------------------------------------------------------

    def _finish_softmax(self) -> Value:
        """One over the sum of exponentials, whose logarithm is stored."""
        e, logarithms = self.e, self.weights.logarithms
        total, top = self._number_at(self.total), self._number_at(self.top)
        share = 1.0 / total
        if self.weights.zero_rows:
            share = e.select(e.compare("oeq", total, 0.0), e.constant(0.0, "float"), share)
        if logarithms is not None:
            value = logarithm(e, top, total)
            self.memory.store(logarithms.buffer, logarithms.index, value, "store")
        return share

    def _put_number(self, value: Value, pointer: Value) -> None:
        self.e.line(f"store float {value.text}, ptr {pointer.text}, align 4")
