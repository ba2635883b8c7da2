"""One `Kernel` as one LLVM function.

    int32_t kernel(void *const *buffers, const int64_t *sizes, int64_t begin, int64_t end, void
    *scratch)

runs the points [begin, end) of the collapsed parallel loops and returns 0, or 1 + k for the k-th of
its `errors`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

from ingot.codegen.llvm.emitter import Emitter, Value
from ingot.codegen.llvm.memory import Memory, fits_short
from ingot.codegen.llvm.scalar import (
    INTEGER_DIVISIONS,
    TABLE,
    Accumulator,
    combine,
    convert,
    identity,
)
from ingot.codegen.llvm.scans import Running
from ingot.codegen.llvm.target import Target
from ingot.codegen.llvm.transpose import PREFETCH, transpose
from ingot.codegen.llvm.types import REPRESENTATIONS
from ingot.errors import unsupported
from ingot.loops.expr import ZERO, Expr, Symbol, as_expr, maximum, product
from ingot.loops.ir import Fault, Instruction
from ingot.loops.ops import HALVES
from ingot.schedule.kernel import Accumulate, Kernel, Row, Stage, loans, scaling
from ingot.schedule.tiling import transposed_loads

ZERO_DIVISION = Fault(RuntimeError, "ZeroDivisionError")
EXPENSIVE = frozenset(TABLE) & set(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh "
    "atanh erf erfc erfinv "
    "lgamma digamma sigmoid gelu pow atan2 gcd".split()
)
TILE_BYTES = 256  # of a transposed block along the tile loop: four cache lines
PAIRED_ROWS = 64, 1024  # of rows longer than this, up to this, two are computed together
ROW_BYTES = 1 << 18  # of rows of scratch memory for columns that are computed side by side
BLOCK = 32  # additions in a row to one accumulator of a sum: longer chains have larger errors


class _Row(NamedTuple):
    """What differs between outer points that are computed together: their indices, where their rows
    of scratch memory lie, and what was reduced."""

    bound: dict[Symbol, Value]
    bases: dict[str, Value]
    scalars: dict[str, Value]
    running: dict[Instruction, Running]


class Function(NamedTuple):
    """LLVM text in which the function is called `@KERNEL`, what it declares, and what its caller
    must know."""

    text: str
    declarations: frozenset[str]
    errors: tuple[Fault, ...]
    scratch_bytes: Expr


def emit_kernel(
    kernel: Kernel, symbols: Sequence[Symbol], target: Target, check_bounds: bool = False
) -> Function:
    """The LLVM function of `kernel`, whose size symbols are read from `sizes` at their position in
    `symbols`. With `check_bounds`, an access outside of a buffer of known length reports
    `OutOfBounds`."""
    return KernelEmitter(kernel, symbols, target, check_bounds).function()


# -- choices
# -------------------------------------------------------------------------------------------------------------


def cost(stages: Sequence[Stage]) -> int:
    """About how many vector instructions the bodies take."""
    instructions = (i for stage in stages for i in stage.body.instructions)
    return sum(
        15 if i.op in EXPENSIVE else 0 if i.op in ("constant", "scalar") else 1
        for i in instructions
    )


def choose_unroll(stages: Sequence[Stage]) -> int:
    """Copies of the body in the main loop: more gain nothing once the processor's window is full,
    and cost time. Few where numbers are multiplied up: products that come to nothing pass through
    denormal ones, each copy's by itself."""
    if any(r.kind == "prod" for s in stages for r in s.reductions):
        return 2
    weight = cost(stages)
    return 4 if weight <= 16 else 2 if weight <= 60 else 1


def lanes_of_register(kernel: Kernel, target: Target) -> int:
    """Lanes that fill a vector register with the dtype most values have."""
    dtypes = {
        i.dtype
        for s in kernel.stages
        for i in s.body.instructions
        if i.op not in ("constant", "index", "indirect")
    }
    if torch.float64 in dtypes:
        size = 8
    elif dtypes <= HALVES:  # which are moved, or change their signs
        size = 2
    elif dtypes & {torch.float32, torch.int32, torch.bfloat16, torch.float16}:
        size = 4
    else:
        size = max((d.itemsize for d in dtypes), default=8)
    return target.vector_bytes // size


def choose_lanes(kernel: Kernel, target: Target) -> int:
    """Lanes that fill a vector register, or four where columns are reduced: they take the place of
    several accumulators and go through memory in wider steps. Fewer where the vector loops are
    shorter."""
    lanes = lanes_of_register(kernel, target)
    if kernel.vector is not None:
        vector_loops = [kernel.vector]
        if any(s.loops for s in kernel.stages) and _rows_fit(kernel.rows, 4 * lanes):
            lanes *= 4
    else:
        vector_loops = [s.loops[-1] for s in kernel.stages if s.loops]
    longest = max((extent_of(s) for s in vector_loops), default=1)
    while lanes > 4 and lanes // 2 >= longest:
        lanes //= 2
    return lanes


def _rows_fit(rows: Sequence[Row], copies: int) -> bool:
    """Whether the cache holds so many copies of the rows."""
    lengths = [row.length.constant for row in rows]
    return (
        None not in lengths
        and copies * sum((n or 0) * r.dtype.itemsize for n, r in zip(lengths, rows)) <= ROW_BYTES
    )


def extent_of(symbol: Symbol) -> int:
    """A loop's extent where it is constant; a large number otherwise."""
    return symbol.extent.constant if symbol.extent.constant is not None else 1 << 62


def most_copies(size: int, lanes: int, unroll: int) -> int:
    """Copies of the body in a loop of `size` iterations: a power of two, at most `unroll` and the
    number of whole vectors."""
    return min(unroll, 1 << max(1, size // lanes).bit_length() - 1)


def additions_in_a_row(size: int, lanes: int, unroll: int) -> int:
    """How many additions a loop of `size` iterations does to the accumulator of the first copy
    of the body, which has the most: it also takes the vectors that are left in the end."""
    rounds, rest = divmod(size, lanes * most_copies(size, lanes, unroll))
    return rounds - -rest // lanes


def surely_runs(symbol: Symbol) -> bool:
    return (symbol.extent.bounds[0] or 0) > 0


# -- reductions
# ----------------------------------------------------------------------------------------------------------


class _Reduction:
    """The accumulators of one `Accumulate`: one per unrolled copy, and for long sums a wider one
    that they are emptied into. No type is wider than a double, so a sum of doubles is compensated:
    `lost` is the sum of its rounding errors."""

    def __init__(
        self,
        emitter: Emitter,
        spec: Accumulate,
        dtype: torch.dtype,
        lanes: int,
        copies: int,
        wide: bool,
        position: str,
    ) -> None:
        self.emitter, self.spec, self.dtype, self.lanes = emitter, spec, dtype, lanes
        self.start = identity(spec.kind, dtype, emitter.constant, position)
        self.copies = [[emitter.variable(v.type, lanes) for v in self.start] for _ in range(copies)]
        self.wide = emitter.variable("double", lanes) if wide else None
        self.lost = emitter.variable("double", lanes) if wide and dtype is torch.float64 else None
        self._reset()
        for variable in (self.wide, self.lost):
            if variable is not None:
                variable.store(emitter.constant(0.0, "double"))

    def _reset(self) -> None:
        for copy in self.copies:
            for variable, value in zip(copy, self.start, strict=True):
                variable.store(value)

    def add(self, copy: int, value: Accumulator, mask: Value | None) -> None:
        """Take `value` in; where `mask` does not hold, nothing."""
        e = self.emitter
        old = tuple(v.load() for v in self.copies[copy])
        new = combine(self.spec.kind, self.dtype, old, value)
        for variable, before, after in zip(self.copies[copy], old, new, strict=True):
            variable.store(after if mask is None else e.select(mask, after, before))

    def _merged(self) -> Accumulator:
        values = [tuple(v.load() for v in copy) for copy in self.copies]
        while len(values) > 1:
            values = [
                combine(self.spec.kind, self.dtype, a, b)
                for a, b in zip(values[::2], values[1::2], strict=True)
            ]
        return values[0]

    def flush(self) -> None:
        """Empty the accumulators into the wider one."""
        if self.wide is None:
            return
        before, more = self.wide.load(), self.emitter.cast("fpext", self._merged()[0], "double")
        after = before + more
        self.wide.store(after)
        if self.lost is not None:
            added = after - before
            rounded_off = (before - (after - added)) + (more - added)
            self.lost.store(self.lost.load() + rounded_off)
        self._reset()

    def _total(self) -> Value:
        """The sum in the wider accumulator."""
        assert self.wide is not None
        total = self.wide.load()
        if self.lost is None:
            return total
        lost = self.lost.load()
        finite = self.emitter.compare("ord", lost, lost)
        return total + self.emitter.select(finite, lost, 0.0)

    def result(self, across_lanes: bool) -> Value:
        """The reduced value, of the type of `spec.dtype`."""
        dtype = self.dtype
        values = self._merged()
        if self.wide is not None:
            self.flush()
            values, dtype = (self._total(),), torch.float64
        while across_lanes and values[0].lanes > 1:
            low, high = zip(*(self.emitter.half_vectors(v) for v in values), strict=True)
            values = combine(self.spec.kind, dtype, low, high)
        if self.spec.kind.startswith("arg"):
            return self.emitter.cast("sext", values[1], "i64")
        return convert(values[0], dtype, self.spec.dtype)


# -- the function
# --------------------------------------------------------------------------------------------------------


class KernelEmitter:
    """Emits one kernel; `lanes` are chosen by what it computes unless given."""

    def __init__(
        self,
        kernel: Kernel,
        symbols: Sequence[Symbol],
        target: Target,
        check_bounds: bool,
        lanes: int | None = None,
    ) -> None:
        self.kernel = kernel
        self.e = Emitter(
            lanes or choose_lanes(kernel, target), target.vector_bytes, target.rounds_brains
        )
        self.memory = Memory(self.e, {s: position for position, s in enumerate(symbols)})
        self.errors: list[Fault] = []
        self.checked: set[tuple[str, Fault]] = set()
        self.scalars: dict[str, Value] = {}
        # those that are computed together
        self.rows = [_Row({}, self.memory.base, self.scalars, {})]
        self.scratch: Expr = ZERO
        self.registers = max(1, self.e.lanes // lanes_of_register(kernel, target))
        self.present = self.e.constant(self.e.lanes, "i64")  # lanes in range
        if check_bounds:
            self.memory.fail_if = self._fail_if

    def function(self) -> Function:
        self._bind_buffers()
        self._outer_loops()
        shared = {k for pair in loans(self.kernel.parameters) for k in pair}
        arguments = "".join(
            f"ptr {'' if k in shared else 'noalias '}%p{k}, "
            for k in range(len(self.kernel.parameters))
        )
        loads = "".join(
            f"  %a{k} = getelementptr ptr, ptr %buffers, i64 {k}\n  %p{k} = load ptr, ptr %a{k}\n"
            for k in range(len(self.kernel.parameters))
        )
        passed = "".join(f"ptr %p{k}, " for k in range(len(self.kernel.parameters)))
        fails = "".join(f"fail{k}:\n  ret i32 {k + 1}\n" for k in range(len(self.errors)))
        lines = self.e.entry + self.e.scopes[0].lines
        found = scaling(self.kernel)
        # nothing is done where elements are to be multiplied by 1 in their place
        if found is not None:
            type = REPRESENTATIONS[self.kernel.parameters[found.factor].dtype].memory
            loads += (
                f"  %same = icmp eq ptr %p{found.source}, %p{found.target}\n"
                f"  %at = getelementptr {type}, ptr %p{found.factor}, i64 {found.offset}\n"
                f"  %factor = load {type}, ptr %at\n  %one = fcmp oeq {type} %factor, 1.0\n"
                "  %unchanged = and i1 %same, %one\n  br i1 %unchanged, label %done, label "
                "%changed\nchanged:\n"
            )
        text = (
            f"define internal i32 @KERNEL.body({arguments}ptr noalias %sizes, i64 %begin, i64 "
            "%end, "
            "ptr noalias %scratch) "
            "nounwind {\n"
            "  %nowhere = alloca i64\n  " + "\n  ".join(lines) + "\n  ret i32 0\n" + fails + "}\n"
            "define i32 @KERNEL(ptr %buffers, ptr %sizes, i64 %begin, i64 %end, ptr %scratch) "
            "nounwind {\n"
            "  %some = icmp slt i64 %begin, %end\n  br i1 %some, label %work, label %done\nwork:\n"
            f"{loads}  %status = call i32 @KERNEL.body({passed}ptr %sizes, i64 %begin, i64 %end, "
            "ptr %scratch)\n"
            "  ret i32 %status\ndone:\n  ret i32 0\n}\n"
        )
        return Function(text, frozenset(self.e.declarations), tuple(self.errors), self.scratch)

    def _bind_buffers(self) -> None:
        memory, e = self.memory, self.e
        for position, parameter in enumerate(self.kernel.parameters):
            memory.base[parameter.name] = Value(e, f"%p{position}", "ptr", 1, 0)
            memory.dtypes[parameter.name] = parameter.dtype
            if parameter.written or parameter.lends >= 0:
                memory.mutable.add(parameter.name)
            if parameter.length is not None:
                memory.lengths[parameter.name] = parameter.length
        scratch = Value(e, "%scratch", "ptr", 1, 0)
        for row in self.kernel.rows:
            memory.base[row.name] = e.pointer(scratch, "i8", memory.index(self.scratch))
            memory.dtypes[row.name] = row.dtype
            memory.mutable.add(row.name)
            copies = e.lanes if self.kernel.vector is not None else 1
            if copies > 1:
                memory.per_lane.add(row.name)
            memory.lengths[row.name] = as_expr(row.length) * copies
            together = 2 if self._is_paired() else 1
            size = as_expr(row.length) * (row.dtype.itemsize * copies * together)
            self.scratch = self.scratch + (size + 63) // 64 * 64

    # -- loops -------------------------------------------------------------------------------------

    def _outer_loops(self) -> None:
        kernel, e = self.kernel, self.e
        begin, end = Value(e, "%begin", "i64", 1, 0), Value(e, "%end", "i64", 1, 0)
        shared, rest = kernel.loops[: kernel.parallel], kernel.loops[kernel.parallel :]
        if kernel.tile is not None:
            self._tiles(begin, end, shared)
        elif self._is_paired():
            middle = self._end_of_pairs(begin, end)
            for start, stop, together in ((begin, middle, 2), (middle, end, 1)):
                with e.loop(start, stop, together, sure=False) as point:
                    self._together([point + k for k in range(together)], shared)
        elif kernel.vector is None or kernel.vector not in shared:
            with e.loop(begin, end, 1, sure=True) as point:
                self._bind_point(point, shared)
                self._nest(rest, self._run_stages)
        elif len(shared) == 1:
            self._points(kernel.vector, begin, end, None)
        else:
            self._divided_vector_loop(begin, end, shared)

    def _is_paired(self) -> bool:
        """Whether two outer points are computed at a time: each has rows so short that the end of a
        reduction, where few lanes are left, and what waits for it take longer than the rest."""
        kernel = self.kernel
        stores = [store for stage in kernel.stages for store in stage.stores]
        low, high = self._row_length().bounds
        return (
            kernel.vector is None
            and sum(bool(stage.loops) for stage in kernel.stages) > 1
            and any(stage.reductions for stage in kernel.stages)
            and kernel.parallel == len(kernel.loops)
            and (high is None or PAIRED_ROWS[0] < high)
            and (low is None or low <= PAIRED_ROWS[1])
            and not any(store.scatters for store in stores)
            and (kernel.points.constant or 2) > 1
        )

    def _row_length(self) -> Expr:
        """The points of the longest of the loops within an outer point."""
        counts = [
            product(s.extent for s in stage.loops) for stage in self.kernel.stages if stage.loops
        ]
        return functools.reduce(maximum, counts, ZERO)

    def _end_of_pairs(self, begin: Value, end: Value) -> Value:
        """Where in [begin, end) the last pair of outer points ends: at once if rows of symbolic
        length turn out to be too short or too long."""
        middle, length = begin + ((end - begin) & -2), self._row_length()
        if length.constant is not None:
            return middle
        count, (shortest, longest) = self.memory.index(length), PAIRED_ROWS
        middle = self.e.select(self.e.compare("sgt", count, shortest), middle, begin)
        return self.e.select(self.e.compare("sle", count, longest), middle, begin)

    def _together(self, points: Sequence[Value], loops: Sequence[Symbol]) -> None:
        """Run the stages for several outer points, each stage for all of them."""
        memory, own, alone = self.memory, self.memory.base, self.rows
        self.rows = []
        for number, point in enumerate(points):
            self._bind_point(point, loops)
            bases = dict(own)
            for row in self.kernel.rows if number else ():
                type = REPRESENTATIONS[row.dtype].memory
                bases[row.name] = self.e.pointer(
                    bases[row.name], type, memory.index(as_expr(row.length))
                )
            self.rows.append(_Row({loop: memory.bound[loop] for loop in loops}, bases, {}, {}))
        self._run_stages()
        self.rows, memory.base = alone, own

    def _bind_point(self, point: Value, loops: Sequence[Symbol]) -> None:
        """Bind the indices of collapsed `loops` for the number `point`."""
        for loop in reversed(loops[1:]):
            extent = self.memory.index(loop.extent)
            self.memory.bound[loop] = self.e.binary("urem", point, extent)
            point = self.e.binary("udiv", point, extent)
        if loops:
            self.memory.bound[loops[0]] = point

    def _divided_vector_loop(self, begin: Value, end: Value, shared: Sequence[Symbol]) -> None:
        """The vector loop is the last of several collapsed loops."""
        with self._divided(begin, end, shared) as (start, stop):
            self._points(shared[-1], start, stop, None)

    @contextmanager
    def _divided(
        self, begin: Value, end: Value, shared: Sequence[Symbol]
    ) -> Iterator[tuple[Value, Value]]:
        """The runs over the last of the collapsed loops, of which only the first and the last may
        be partial."""
        e = self.e
        if len(shared) == 1:
            yield begin, end
            return
        extent = self.memory.index(shared[-1].extent)
        first, last = e.binary("udiv", begin, extent), e.binary("udiv", end - 1, extent)
        with e.loop(first, last + 1, 1, sure=True) as point:
            self._bind_point(point, shared[:-1])
            start = e.intrinsic("smax", (begin - point * extent, 0))
            yield start, e.intrinsic("smin", (end - point * extent, extent))

    # -- transposed blocks -------------------------------------------------------------------------

    def _tiles(self, begin: Value, end: Value, shared: Sequence[Symbol]) -> None:
        """Blocks of the tile loop by one vector: what lies apart along the vector is transposed
        into scratch memory first."""
        e, memory, tile, vector = self.e, self.memory, shared[-1], self.kernel.vector
        assert vector is not None
        loads = transposed_loads(self.kernel.stages, tile, vector)
        length = max(TILE_BYTES // load.dtype.itemsize for load in loads)
        blocks: dict[tuple[str, Expr], Value] = {}
        for load in loads:
            if load.attrs not in blocks:
                blocks[load.attrs] = e.pointer(
                    Value(e, "%scratch", "ptr", 1, 0), "i8", memory.index(self.scratch)
                )
                self.scratch = (
                    self.scratch + (length * e.lanes * load.dtype.itemsize + 63) // 64 * 64
                )
        with (
            self._divided(begin, end, shared) as (start, stop),
            e.loop(start, stop, length, sure=True) as first,
        ):
            count = e.intrinsic("smin", (stop - first, length))

            def vectors(copy: int) -> None:
                for (buffer, index), block in blocks.items():
                    self._transpose(buffer, index, first, count, block)
                with e.loop(e.constant(0, "i64"), count, 1, sure=True) as row:
                    memory.bound[tile] = first + row
                    for (buffer, index), block in blocks.items():
                        type = REPRESENTATIONS[memory.dtypes[buffer]].memory
                        memory.transposed[buffer, index] = e.pointer(block, type, row * e.lanes)
                    self._run_stages()
                memory.transposed.clear()

            zero, extent = e.constant(0, "i64"), memory.index(vector.extent)
            self._vector_loop(vector, zero, extent, vector.extent.constant, 1, vectors)

    def _transpose(
        self, buffer: str, index: Expr, first: Value, count: Value, block: Value
    ) -> None:
        """Transpose the block of `buffer` at `count` points of the tile loop from `first` on, by
        the present vector."""
        e, memory, tile, vector = self.e, self.memory, self.kernel.tile, self.kernel.vector
        assert tile is not None and vector is not None
        linear = index.linear((tile, vector))
        assert linear is not None
        stride = memory.index(linear[1][vector])
        offset = memory.index(linear[0]) + first + memory.bound[vector] * stride
        type = REPRESENTATIONS[memory.dtypes[buffer]].memory
        # of the next block: there are more rows than a CPU foresees
        e.declare("void", PREFETCH, "ptr, i32, i32, i32")
        name, text = transpose(
            type, e.lanes, e.vector_bytes, TILE_BYTES // memory.dtypes[buffer].itemsize
        )
        e.declarations.add(text)
        e.declare("i64", "llvm.smin.i64", "i64, i64")
        source = e.pointer(memory.base[buffer], type, offset)
        for row in (0, self.present - 1) if memory.fail_if else ():
            for column in (0, count - 1):
                corner = e.pointer(e.pointer(source, type, stride * row), type, column)
                memory.check(buffer, corner, False, None)
        e.line(
            f"call void {name}(ptr {source.text}, i64 {stride.text}, ptr {block.text}, i64 "
            f"{self.present.text}, "
            f"i64 {count.text})"
        )

    def _nest(self, loops: Sequence[Symbol], run: Callable[[], None]) -> None:
        """Run within `loops`, the outer vector loop among them taking its points a vector at a
        time."""
        if not loops:
            run()
            return
        loop = loops[0]
        zero, extent = self.e.constant(0, "i64"), self.memory.index(loop.extent)
        if loop is self.kernel.vector:
            self._points(loop, zero, extent, loop.extent.constant)
            return
        sure = surely_runs(loop)
        with self.e.loop(zero, extent, 1, sure=sure, once=loop.extent.constant == 1) as index:
            self.memory.bound[loop] = index
            self._nest(loops[1:], run)

    def _points(self, symbol: Symbol, start: Value, stop: Value, size: int | None) -> None:
        """The outer vector loop around all stages."""
        simple = not any(s.loops for s in self.kernel.stages) and not self.kernel.rows
        unroll = choose_unroll(self.kernel.stages) if simple else 1
        self._vector_loop(symbol, start, stop, size, unroll, lambda copy: self._run_stages())

    def _vector_loop(
        self, symbol: Symbol, start: Value, stop: Value, size: int | None, unroll: int,
        run: Callable[[int], None],
        block: int | None = None, flush: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """`run(copy)` for each vector of [start, stop): unrolled while that many are left, then
        single and masked.

        `size` is the constant number of iterations, from 0, where known. After every `block`
        vectors of the unrolled loop, `flush()`.
        """
        e, memory = self.e, self.memory
        lanes = e.lanes
        sure = not start.constant or surely_runs(symbol)  # a thread's own range is never empty
        if size is not None:
            unroll = most_copies(size, lanes, unroll)
        step = lanes * unroll
        memory.vector = symbol
        if size is None:
            whole = step & (step - 1) == 0
            middle = (
                start + ((stop - start) & -step)
                if whole
                else stop - e.binary("urem", stop - start, step)
            )
        else:
            middle = e.constant(size // step * step, "i64")

        def vectors(first: Value, end: Value, sure_here: bool) -> None:
            with e.loop(first, end, step, sure_here, once=size == step) as index:
                e.scopes[-1].sure = sure
                memory.bound[symbol] = index
                for copy in range(unroll):
                    memory.shift = copy * lanes
                    run(copy)
                memory.shift = 0

        if size is None or size >= step:
            if block is None:
                vectors(start, middle, size is not None)
            else:
                with e.loop(start, middle, block * step, size is not None) as first:
                    e.scopes[-1].sure = sure
                    vectors(first, e.intrinsic("smin", (first + block * step, middle)), True)
                    flush()
        if size is None or size % step:
            self._masked_vectors(symbol, middle, stop, size, sure, run, unroll)
        memory.vector = None

    def _masked_vectors(
        self, symbol: Symbol, start: Value, stop: Value, size: int | None, sure: bool,
        run: Callable[[int], None],
        unroll: int,
    ) -> None:  # fmt: skip
        """The vectors that are left, fewer than `unroll` and a part of one."""
        e, memory = self.e, self.memory
        lanes = e.lanes
        rest = None if size is None else size - int(start.text)
        once = unroll == 1 or (rest is not None and rest <= lanes)
        with e.loop(start, stop, lanes, rest is not None, once) as index:
            e.scopes[-1].sure = sure
            memory.bound[symbol] = index
            if rest is None or rest % lanes:
                left = stop - index if rest is None or rest > lanes else e.constant(rest, "i64")
                self.present = (
                    left
                    if rest is not None and rest < lanes
                    else e.intrinsic("smin", (left, lanes))
                )
                short = (
                    e.constant(int(left.text), "i32")
                    if left.constant
                    else e.cast("trunc", left, "i32")
                )
                memory.mask = e.compare("slt", e.iota("i32"), short)
            run(0)
            memory.mask, self.present = None, e.constant(lanes, "i64")

    # -- stages ------------------------------------------------------------------------------------

    def _run_stages(self) -> None:
        for stage in self.kernel.stages:
            self._stage(stage)

    def _stage(self, stage: Stage) -> None:
        if not stage.loops:
            self._bodies(stage, [[] for _ in self.rows], 0, None)
            return
        across = self.kernel.vector is None
        unroll = self._unroll(stage)
        flushes = self._flushes(stage, unroll)
        reductions = [
            [
                _Reduction(
                    self.e, spec, stage.body.instructions[spec.value].dtype, self.e.lanes, unroll,
                    bool(flushes) and spec.kind == "sum" and spec.dtype.is_floating_point,
                    self._position_type(stage),
                )
                for spec in stage.reductions
            ]
            for _ in self.rows
        ]  # fmt: skip

        for row in self.rows:
            row.running.clear()
            for i in stage.body.instructions:
                if i.op == "running":
                    dtype, place = (
                        stage.body.instructions[i.args[0]].dtype,
                        self._position_type(stage),
                    )
                    row.running[i] = Running(self.e, i.attrs[0], dtype, across, place)

        def flush() -> None:
            for of_row in reductions:
                for reduction in of_row:
                    reduction.flush()

        self._stage_loops(stage, 0, reductions, unroll, flushes, flush)
        for row, of_row in zip(self.rows, reductions, strict=True):
            self._enter(row)
            for reduction in of_row:
                self.scalars[reduction.spec.name] = reduction.result(across)

    def _unroll(self, stage: Stage) -> int:
        """Copies of the body in the main loop of a stage. Two rows at a time fill the processor's
        window with half as many; where the length is symbolic that saves code, as each loop is
        there for pairs, for single rows and masked. A row alone has as many: how it is summed must
        not depend on where a thread's share ends."""
        copies = choose_unroll((stage,)) // self.registers
        if self._is_paired() and self._row_length().constant is None:
            copies = 1
        return max(1, copies)

    def _flushes(self, stage: Stage, unroll: int) -> dict[int, int]:
        """Which loops of a stage empty the accumulators of its sums, by level, and after how many
        iterations (rounds of `unroll` copies in the innermost loop), so that no accumulator takes
        more than about `BLOCK` additions in a row."""
        if not any(r.kind == "sum" and r.dtype.is_floating_point for r in stage.reductions):
            return {}
        found: dict[int, int] = {}
        additions, lanes, copies = 1, self.e.lanes if self.kernel.vector is None else 1, unroll
        for level in range(len(stage.loops) - 1, -1, -1):
            loop = stage.loops[level]
            chain = additions * additions_in_a_row(extent_of(loop), lanes, copies)
            if chain > BLOCK:
                found[level] = max(1, BLOCK // additions)
                if loop.extent.constant is not None or level < len(stage.loops) - 1:
                    break
                chain = unroll  # it may be shorter than a round, and empties nothing then
            additions, lanes, copies = chain, 1, 1
        return found

    def _stage_loops(
        self,
        stage: Stage,
        level: int,
        reductions: list[list[_Reduction]],
        unroll: int,
        flushes: dict[int, int],
        flush: Callable[[], None],
    ) -> None:
        loop = stage.loops[level]
        e, memory = self.e, self.memory
        zero, extent, size = e.constant(0, "i64"), memory.index(loop.extent), loop.extent.constant
        last, block = level == len(stage.loops) - 1, flushes.get(level)
        if last and self.kernel.vector is None:
            self._vector_loop(
                loop,
                zero,
                extent,
                size,
                unroll,
                lambda copy: self._bodies(stage, reductions, copy, memory.mask),
                block,
                flush,
            )
            return

        if last:
            self._columns(stage, loop, reductions, unroll, block, flush)
            return

        def iterations(first: Value, end: Value, sure: bool) -> None:
            with e.loop(first, end, 1, sure, once=size == 1) as index:
                memory.bound[loop] = index
                self._stage_loops(stage, level + 1, reductions, unroll, flushes, flush)

        if block is None:
            iterations(zero, extent, surely_runs(loop))
            return
        with e.loop(zero, extent, block, surely_runs(loop)) as first:
            iterations(first, e.intrinsic("smin", (first + block, extent)), True)
            flush()

    def _columns(
        self, stage: Stage, loop: Symbol, reductions: list[list[_Reduction]], unroll: int,
        block: int | None,
        flush: Callable[[], None],
    ) -> None:  # fmt: skip
        """The last loop of a stage where an outer one fills the vectors: `unroll` iterations at a
        time, then single ones. After every `block` rounds, `flush()`."""
        e, size = self.e, loop.extent.constant
        zero, extent, sure = e.constant(0, "i64"), self.memory.index(loop.extent), surely_runs(loop)
        if size is None:
            middle = extent - e.binary("urem", extent, unroll)
        else:
            unroll = max(1, min(unroll, size))
            middle = e.constant(size // unroll * unroll, "i64")

        def rounds(first: Value, end: Value, step: int, sure: bool, once: bool = False) -> None:
            with e.loop(first, end, step, sure, once=once) as index:
                for copy in range(step):
                    self.memory.bound[loop] = index + copy
                    self._bodies(stage, reductions, copy, None)

        sure_whole = sure and (size is not None or unroll == 1)
        if block is None:
            rounds(zero, middle, unroll, sure_whole, once=size == unroll)
        else:
            with e.loop(zero, middle, block * unroll, sure_whole) as first:
                rounds(first, e.intrinsic("smin", (first + block * unroll, middle)), unroll, True)
                flush()
        if unroll > 1 and (size is None or size % unroll):
            rounds(
                middle, extent, 1, size is not None, once=size is not None and size % unroll == 1
            )

    def _enter(self, row: _Row) -> None:
        """Have what follows computed for one of the rows that are computed together."""
        self.memory.bound.update(row.bound)
        self.memory.base, self.scalars, self.running = row.bases, row.scalars, row.running

    def _bodies(
        self, stage: Stage, reductions: list[list[_Reduction]], copy: int, mask: Value | None
    ) -> None:
        """One evaluation of the body for each of the rows that are computed together."""
        for row, of_row in zip(self.rows, reductions, strict=True):
            self._enter(row)
            self._body(stage, of_row, copy, mask)

    def _body(
        self, stage: Stage, reductions: list[_Reduction], copy: int, mask: Value | None
    ) -> None:
        """One evaluation of the body; `mask` says which lanes count in the reductions."""
        body, self.stage = stage.body, stage
        values: list[Value] = []
        self.memory.strided = [i.attrs for i in body.loads if not i.args]
        for instruction in body.instructions:
            values.append(self._instruction(instruction, values, body.instructions))
        stores = []
        for store in stage.stores:
            dtype = body.instructions[store.value].dtype
            value = convert(values[store.value], dtype, self.memory.dtypes[store.buffer])
            stores.append((store.buffer, store.index, value, store.mode))
        self.memory.store_all(stores)
        for reduction in reductions:
            value = values[reduction.spec.value]
            pair = (
                (value, self._position(stage))
                if reduction.spec.kind.startswith("arg")
                else (value,)
            )
            reduction.add(copy, pair, mask)
        for define in stage.scalars:
            self.scalars[define.name] = values[define.value]

    def _position(self, stage: Stage) -> Value:
        """The number of the present point in the row-major order of the stage's loops."""
        position: Expr = ZERO
        for level, loop in enumerate(stage.loops):
            position = position + loop * product(s.extent for s in stage.loops[level + 1 :])
        return self.memory.index(position, self._position_type(stage))

    @staticmethod
    def _position_type(stage: Stage) -> str:
        """The type of the numbers of a stage's points, and of one more that stands for none."""
        return "i32" if fits_short(product(s.extent for s in stage.loops)) else "i64"

    # -- instructions ------------------------------------------------------------------------------

    def _instruction(
        self, i: Instruction, values: list[Value], program: Sequence[Instruction]
    ) -> Value:
        special = _STRUCTURAL.get(i.op)
        args = [values[a] for a in i.args]
        if special is not None:
            return getattr(self, special)(i, args, program)
        source = program[i.args[-1]].dtype
        row = TABLE.get(i.op)
        if row is None or source not in row[0] and i.op != "where":
            raise unsupported("no-code", f"no code for {i.op} of {source}")
        if i.op in INTEGER_DIVISIONS and not source.is_floating_point:
            args[1] = self._divisor(args[1])
        return row[1](REPRESENTATIONS[source].kind, *args)

    def _divisor(self, b: Value) -> Value:
        """`b`, or 1 where it is 0 after that has been reported."""
        if b.constant and b.text != "0":
            return b
        zero = self.e.compare("eq", b, 0)
        self._fail_if(zero, ZERO_DIVISION, None)
        return self.e.select(zero, 1, b)

    def _fail_if(self, bad: Value, fault: Fault, condition: Value | None) -> None:
        """Leave the kernel with `fault` if a lane in range, for which `condition` holds, is
        `bad`."""
        e, memory = self.e, self.memory
        if condition is not None:
            bad = bad & condition
        if memory.mask is not None and bad.lanes > 1:
            bad = bad & memory.mask
        test = e.any_lane(bad)
        if (test.text, fault) in self.checked:
            return
        self.checked.add((test.text, fault))
        if fault not in self.errors:
            self.errors.append(fault)
        depth, fine = memory.sure_depth(test.depth), e.name("fine")
        e.line(
            f"br i1 {test.text}, label %fail{self.errors.index(fault)}, label %{fine}, !prof !0",
            depth,
        )
        e.line(f"{fine}:", depth)

    def _constant(self, i: Instruction, args: list[Value], program: Sequence[Instruction]) -> Value:
        if i.dtype is torch.bfloat16:
            return self.e.constant(
                torch.tensor(i.attrs[0], dtype=i.dtype).view(torch.int16).item(), "i16"
            )
        return self.e.constant(i.attrs[0], REPRESENTATIONS[i.dtype].register)

    def _index(self, i: Instruction, args: list[Value], program: Sequence[Instruction]) -> Value:
        return self.memory.index(i.attrs[0])

    def _load(self, i: Instruction, args: list[Value], program: Sequence[Instruction]) -> Value:
        return self.memory.load(i.attrs[0], i.attrs[1], args[0] if args else None)

    def _scalar(self, i: Instruction, args: list[Value], program: Sequence[Instruction]) -> Value:
        return self.scalars[i.attrs[0]]

    def _running(self, i: Instruction, args: list[Value], program: Sequence[Instruction]) -> Value:
        running, source = self.running[i], program[i.args[0]].dtype
        if running.kind.startswith("arg"):
            _, position = running.step((args[0], self._position(self.stage)), False, self.present)
            return self.e.cast("sext", position, "i64")
        in_order = source.is_floating_point and running.kind == "prod"
        return convert(running.step((args[0],), in_order, self.present)[0], source, i.dtype)

    def _convert(self, i: Instruction, args: list[Value], program: Sequence[Instruction]) -> Value:
        return convert(args[0], program[i.args[0]].dtype, i.dtype)

    def _indirect(self, i: Instruction, args: list[Value], program: Sequence[Instruction]) -> Value:
        e = self.e
        symbol, bound, fault = i.attrs
        extent, value = self.memory.index(bound), args[0]
        wrapped = e.select(e.compare("slt", value, 0), value + extent, value)
        outside = e.compare("uge", wrapped, extent)
        self._fail_if(outside, fault, args[1] if len(args) > 1 else None)
        self.memory.bound[symbol] = wrapped
        return wrapped


# The methods that emit what is no row of the scalar op table.
_STRUCTURAL = {
    "constant": "_constant",
    "index": "_index",
    "load": "_load",
    "scalar": "_scalar",
    "indirect": "_indirect",
    "running": "_running",
    "to": "_convert",
}
