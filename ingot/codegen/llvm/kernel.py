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

from ingot.codegen.llvm.bodies import BodyEmitter, Row
from ingot.codegen.llvm.emitter import Value
from ingot.codegen.llvm.function import Function, function_of
from ingot.codegen.llvm.reductions import BLOCK, Reduction
from ingot.codegen.llvm.scans import Running
from ingot.codegen.llvm.streams import (
    Stream,
    fetch_row,
    fetch_vector,
    most_terms,
    product_terms,
    streams,
)
from ingot.codegen.llvm.target import Target
from ingot.codegen.llvm.transpose import PREFETCH, transpose
from ingot.codegen.llvm.types import REPRESENTATIONS
from ingot.codegen.llvm.unrolling import (
    additions_in_a_row,
    choose_lanes,
    choose_unroll,
    extent_of,
    lanes_of_register,
    most_copies,
    surely_runs,
)
from ingot.loops.expr import ZERO, Expr, Symbol, as_expr, maximum
from ingot.loops.spaces import points_of
from ingot.schedule.kernel import Kernel, Stage, loans, scaling
from ingot.schedule.tiling import transposed_loads

TILE_BYTES = 256  # of a transposed block along the tile loop: four cache lines
LINE = 64  # elements of one byte in a line of the cache
PAIRED_ROWS = 64, 1024  # of rows longer than this, up to this, two are computed together
POINTS_TOGETHER = 8  # of sums of products, and as many more as there are of each point
COPIES_OF_STREAMS = 2  # of a body that reads several rows at a time


def emit_kernel(
    kernel: Kernel, symbols: Sequence[Symbol], target: Target, check_bounds: bool = False
) -> Function:
    """The LLVM function of `kernel`.

    Its size symbols are read from `sizes` at their position in `symbols`. With `check_bounds`, an
    access outside of a buffer of known length reports `OutOfBounds`.
    """
    return KernelEmitter(kernel, symbols, target, check_bounds).function()


class KernelEmitter(BodyEmitter):
    """The loops of one kernel; `lanes` are chosen by what it computes unless given."""

    def __init__(
        self,
        kernel: Kernel,
        symbols: Sequence[Symbol],
        target: Target,
        check_bounds: bool,
        lanes: int | None = None,
    ) -> None:
        super().__init__(lanes or choose_lanes(kernel, target), symbols, target, check_bounds)
        self.kernel = kernel
        self.scratch: Expr = ZERO
        self.streams: list[Stream] = []  # of the present stage
        self.registers = max(1, self.e.lanes // lanes_of_register(kernel, target))

    def function(self) -> Function:
        self._bind_buffers()
        self._outer_loops()
        shared = set()
        for pair in loans(self.kernel.parameters):
            for k in pair:
                shared.add(k)
        return function_of(
            self.e,
            len(self.kernel.parameters),
            self.errors,
            self.scratch,
            shared,
            first="  %nowhere = alloca i64\n",  # written by lanes that are out of range
            skip=self._skip(),
            unit=self._unit(),
        )

    def _unit(self) -> int:
        """How many points of the parallel range are computed at a time.

        At least as many as make a line of the cache of each type: two threads never write to one.
        """
        kernel = self.kernel
        if kernel.tile is not None or kernel.vector not in kernel.loops[: kernel.parallel]:
            return 1
        if any(stage.loops for stage in kernel.stages):
            return self.e.lanes
        return max(LINE, self.e.lanes)

    def _skip(self) -> str:
        """Text that ends the function where elements are to be multiplied by 1 in their place."""
        scaled = scaling(self.kernel)
        if scaled is None:
            return ""
        type = REPRESENTATIONS[self.kernel.parameters[scaled.factor].dtype].memory
        return (
            f"  %same = icmp eq ptr %p{scaled.source}, %p{scaled.target}\n"
            f"  %at = getelementptr {type}, ptr %p{scaled.factor}, i64 {scaled.offset}\n"
            f"  %factor = load {type}, ptr %at\n  %one = fcmp oeq {type} %factor, 1.0\n"
            "  %unchanged = and i1 %same, %one\n"
            "  br i1 %unchanged, label %done, label %changed\nchanged:\n"
        )

    def _bind_buffers(self) -> None:
        memory, e = self.memory, self.e
        for position, parameter in enumerate(self.kernel.parameters):
            memory.base[parameter.name] = Value(e, f"%p{position}", "ptr", 1, 0)
            memory.dtypes[parameter.name] = parameter.dtype
            if parameter.written or parameter.lends >= 0:
                memory.mutable.add(parameter.name)
            if parameter.length is not None:
                memory.lengths[parameter.name] = parameter.length
        copies = 1
        if self.kernel.vector is not None:
            copies = e.lanes
        rows_together = self._points_together()
        for row in self.kernel.rows:
            size = as_expr(row.length) * (row.dtype.itemsize * copies * rows_together)
            memory.base[row.name] = self._take_scratch(size)
            memory.dtypes[row.name] = row.dtype
            memory.mutable.add(row.name)
            if copies > 1:
                memory.per_lane.add(row.name)
            memory.lengths[row.name] = as_expr(row.length) * copies

    def _take_scratch(self, size: Expr | int) -> Value:
        """The address of so many bytes of scratch memory, whole cache lines of it."""
        e = self.e
        place = e.pointer(Value(e, "%scratch", "ptr", 1, 0), "i8", self.memory.index(self.scratch))
        self.scratch = self.scratch + (size + 63) // 64 * 64
        return place

    # -- loops -------------------------------------------------------------------------------------

    def _outer_loops(self) -> None:
        kernel, e = self.kernel, self.e
        begin, end = Value(e, "%begin", "i64", 1, 0), Value(e, "%end", "i64", 1, 0)
        collapsed, inner = kernel.loops[: kernel.parallel], kernel.loops[kernel.parallel :]
        if kernel.tile is not None:
            self._tiles(begin, end, collapsed)
        elif self._points_together() > 1:
            together = self._points_together()
            middle = self._end_of_whole(begin, end, together)
            for start, stop, step in ((begin, middle, together), (middle, end, 1)):
                with e.loop(start, stop, step, sure=False) as point:
                    self._together([point + k for k in range(step)], collapsed)
        elif kernel.vector is None or kernel.vector not in collapsed:
            with e.loop(begin, end, 1, sure=True) as point:
                self._bind_point(point, collapsed)
                self._nest(inner)
        else:
            with self._last_of(collapsed, begin, end) as (start, stop):
                self._points(kernel.vector, start, stop, None)

    def _points_together(self) -> int:
        """How many outer points are computed at a time.

        Sums of what is looked up leave the processor time for little else: what does not depend on
        the outer point is computed once for several. Several rows of a large array that are read
        side by side come from memory in less time than one after the other.
        """
        if self._is_paired():
            return 2
        kernel = self.kernel
        looped = [stage for stage in kernel.stages if stage.loops]
        if kernel.vector is not None or len(looped) != 1 or kernel.parallel != len(kernel.loops):
            return 1
        scatters = any(store.scatters for stage in kernel.stages for store in stage.stores)
        (stage,) = looped
        if scatters or not (self._lookups(stage, stage.loops[-1]) or streams(kernel, stage)):
            return 1
        return max(1, POINTS_TOGETHER // (1 + len(stage.reductions)))

    def _is_paired(self) -> bool:
        """Whether two outer points are computed at a time.

        They are where rows are short: the end of a reduction, where few lanes are left, and what
        waits for it would take longer than all else.
        """
        kernel = self.kernel
        if kernel.vector is not None or kernel.parallel != len(kernel.loops):
            return False
        looped = []
        for stage in kernel.stages:
            if stage.loops:
                looped.append(stage)
        reduces = any(stage.reductions for stage in kernel.stages)
        if len(looped) < 2 or not reduces or kernel.points.constant == 1:
            return False
        if any(store.scatters for stage in kernel.stages for store in stage.stores):
            return False
        low, high = self._row_length().bounds
        shortest, longest = PAIRED_ROWS
        return (high is None or shortest < high) and (low is None or low <= longest)

    def _row_length(self) -> Expr:
        """The points of the longest of the loops within an outer point."""
        lengths = []
        for stage in self.kernel.stages:
            if stage.loops:
                lengths.append(points_of(stage.loops))
        return functools.reduce(maximum, lengths, ZERO)

    def _end_of_whole(self, begin: Value, end: Value, together: int) -> Value:
        """Where in [begin, end) the last of the outer points ends that are computed `together`.

        It is at the beginning if rows of symbolic length turn out to be too short or too long for
        pairs.
        """
        middle, length = begin + ((end - begin) & -together), self._row_length()
        if length.constant is not None or not self._is_paired():
            return middle
        count, (shortest, longest) = self.memory.index(length), PAIRED_ROWS
        middle = self.e.select(self.e.compare("sgt", count, shortest), middle, begin)
        return self.e.select(self.e.compare("sle", count, longest), middle, begin)

    def _together(self, points: Sequence[Value], loops: Sequence[Symbol]) -> None:
        """Run the stages for several outer points, each stage for all of them."""
        memory, bases_before, rows_before = self.memory, self.memory.base, self.rows
        self.rows = []
        for number, point in enumerate(points):
            self._bind_point(point, loops)
            bases = dict(bases_before)
            for row in self.kernel.rows if number else ():
                type, length = REPRESENTATIONS[row.dtype].memory, memory.index(as_expr(row.length))
                bases[row.name] = self.e.pointer(bases[row.name], type, length)
            self.rows.append(Row({loop: memory.bound[loop] for loop in loops}, bases, {}, {}))
        self._run_stages()
        self.rows, memory.base = rows_before, bases_before

    def _bind_point(self, point: Value, loops: Sequence[Symbol]) -> None:
        """Bind the indices of collapsed `loops` for the number `point`."""
        for loop in reversed(loops[1:]):
            extent = self.memory.index(loop.extent)
            self.memory.bound[loop] = self.e.binary("urem", point, extent)
            point = self.e.binary("udiv", point, extent)
        if loops:
            self.memory.bound[loops[0]] = point

    @contextmanager
    def _last_of(
        self, collapsed: Sequence[Symbol], begin: Value, end: Value
    ) -> Iterator[tuple[Value, Value]]:
        """A loop over the others of the collapsed loops, giving the range of the last one.

        Only its first and its last range may be partial.
        """
        e = self.e
        if len(collapsed) == 1:
            yield begin, end
            return
        extent = self.memory.index(collapsed[-1].extent)
        first, last = e.binary("udiv", begin, extent), e.binary("udiv", end - 1, extent)
        with e.loop(first, last + 1, 1, sure=True) as point:
            self._bind_point(point, collapsed[:-1])
            start = e.intrinsic("smax", (begin - point * extent, 0))
            yield start, e.intrinsic("smin", (end - point * extent, extent))

    # -- transposed blocks -------------------------------------------------------------------------

    def _tiles(self, begin: Value, end: Value, collapsed: Sequence[Symbol]) -> None:
        """Blocks of the tile loop by one vector of points.

        Loads whose elements are apart along the vector are transposed into scratch memory first.
        """
        e, memory, tile, vector = self.e, self.memory, collapsed[-1], self.kernel.vector
        assert vector is not None
        loads = transposed_loads(self.kernel.stages, tile, vector)
        length = max(TILE_BYTES // load.dtype.itemsize for load in loads)
        blocks: dict[tuple[str, Expr], Value] = {}
        for load in loads:
            if load.attrs not in blocks:
                blocks[load.attrs] = self._take_scratch(length * e.lanes * load.dtype.itemsize)
        with (
            self._last_of(collapsed, begin, end) as (start, stop),
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
        """Transpose a block of `buffer` into `block`.

        It has the `count` points of the tile loop from `first` on, by the present vector.
        """
        e, memory, tile, vector = self.e, self.memory, self.kernel.tile, self.kernel.vector
        assert tile is not None and vector is not None
        linear = index.linear((tile, vector))
        assert linear is not None
        stride = memory.index(linear[1][vector])
        offset = memory.index(linear[0]) + first + memory.bound[vector] * stride
        dtype = memory.dtypes[buffer]
        type, elements = REPRESENTATIONS[dtype].memory, TILE_BYTES // dtype.itemsize
        # The function prefetches the next block: there are more rows than a CPU foresees.
        e.declare("void", PREFETCH, "ptr, i32, i32, i32")
        name, text = transpose(type, e.lanes, e.vector_bytes, elements)
        e.declarations.add(text)
        e.declare("i64", "llvm.smin.i64", "i64, i64")
        source = e.pointer(memory.base[buffer], type, offset)
        for row in (0, self.present - 1) if memory.fail_if else ():
            for column in (0, count - 1):
                corner = e.pointer(e.pointer(source, type, stride * row), type, column)
                memory.check(buffer, corner, False, None)
        e.line(
            f"call void {name}(ptr {source.text}, i64 {stride.text}, ptr {block.text}, "
            f"i64 {self.present.text}, i64 {count.text})"
        )

    # -- vectors of points -------------------------------------------------------------------------

    def _nest(self, loops: Sequence[Symbol]) -> None:
        """Run the stages within `loops`, of which the vector loop takes a vector at a time."""
        if not loops:
            self._run_stages()
            return
        loop = loops[0]
        zero, extent = self.e.constant(0, "i64"), self.memory.index(loop.extent)
        if loop is self.kernel.vector:
            self._points(loop, zero, extent, loop.extent.constant)
            return
        sure = surely_runs(loop)
        with self.e.loop(zero, extent, 1, sure=sure, once=loop.extent.constant == 1) as index:
            self.memory.bound[loop] = index
            self._nest(loops[1:])

    def _points(self, symbol: Symbol, start: Value, stop: Value, size: int | None) -> None:
        """The outer vector loop around all stages."""
        simple = not any(s.loops for s in self.kernel.stages) and not self.kernel.rows
        unroll = 1
        if simple:
            unroll = choose_unroll(self.kernel.stages)
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
        if size is not None:
            middle = e.constant(size // step * step, "i64")
        elif step & (step - 1) == 0:
            middle = start + ((stop - start) & -step)
        else:
            middle = stop - e.binary("urem", stop - start, step)

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
        remaining = None
        if size is not None:
            remaining = size - int(start.text)
        once = unroll == 1 or (remaining is not None and remaining <= lanes)
        with e.loop(start, stop, lanes, remaining is not None, once) as index:
            e.scopes[-1].sure = sure
            memory.bound[symbol] = index
            if remaining is None or remaining > lanes:
                if remaining is None or remaining % lanes:
                    left = stop - index
                    self.present = e.intrinsic("smin", (left, lanes))
                    memory.mask = e.compare("slt", e.iota("i32"), e.cast("trunc", left, "i32"))
            elif remaining < lanes:
                self.present = e.constant(remaining, "i64")
                memory.mask = e.compare("slt", e.iota("i32"), e.constant(remaining, "i32"))
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
        reductions = []
        for _ in self.rows:
            reductions.append(self._reductions(stage, unroll, bool(flushes)))
        for row in self.rows:
            row.running.clear()
            for i in stage.body.instructions:
                if i.op == "running":
                    dtype = stage.body.instructions[i.args[0]].dtype
                    place = self._position_type(stage)
                    row.running[i] = Running(self.e, i.attrs[0], dtype, across, place)

        def flush() -> None:
            for of_row in reductions:
                for reduction in of_row:
                    reduction.flush()

        self.streams = streams(self.kernel, stage)
        self._fetch_rows(stage)
        self._stage_loops(stage, 0, reductions, unroll, flushes, flush)
        for row, of_row in zip(self.rows, reductions, strict=True):
            self._enter(row)
            for reduction in of_row:
                self.scalars[reduction.spec.name] = reduction.result(across)

    def _fetch_rows(self, stage: Stage) -> None:
        """Fetch the next rows of what is the same in all lanes."""
        for stream in self.streams:
            if stage.loops[-1] not in stream.inner.symbols:
                for row in self.rows:
                    self._enter(row)
                    fetch_row(self.memory, stream, len(self.rows))

    def _fetch_vectors(self, stage: Stage) -> None:
        """Fetch what is behind the present vectors, of whole ones."""
        if self.memory.mask is not None:
            return
        for stream in self.streams:
            if stage.loops[-1] in stream.inner.symbols:
                for row in self.rows:
                    self._enter(row)
                    fetch_vector(self.memory, stream, len(self.rows))

    def _reductions(self, stage: Stage, unroll: int, flushed: bool) -> list[Reduction]:
        reductions = []
        for spec in stage.reductions:
            dtype = stage.body.instructions[spec.value].dtype
            wide = None
            if flushed and spec.kind == "sum" and spec.dtype.is_floating_point:
                wide = "double"
                if product_terms(stage.body, spec.value) and self._is_short(stage, unroll):
                    wide = REPRESENTATIONS[dtype].register
            position = self._position_type(stage)
            reductions.append(Reduction(self.e, spec, dtype, unroll, wide, position))
        return reductions

    def _unroll(self, stage: Stage) -> int:
        """Copies of the body in the main loop of a stage.

        Two rows at a time fill the processor's window with half as many; where the length is
        symbolic that saves code, as each loop is there for pairs, for single rows and masked. A
        row alone has as many: how it is summed must not depend on where a thread's share ends.
        """
        copies = choose_unroll((stage,)) // self.registers
        if self._is_paired() and self._row_length().constant is None:
            copies = 1
        if streams(self.kernel, stage):
            copies = min(copies, COPIES_OF_STREAMS)
        return max(1, copies)

    def _is_short(self, stage: Stage, unroll: int) -> bool:
        """Whether the blocks of a sum are so few that their sums are a chain as short as theirs."""
        additions = most_terms(stage) * additions_in_a_row(
            extent_of(stage.loops[-1]), self.e.lanes, unroll
        )
        for loop in stage.loops[:-1]:
            additions *= extent_of(loop)
        return additions <= BLOCK * BLOCK

    def _flushes(self, stage: Stage, unroll: int) -> dict[int, int]:
        """Which loops of a stage empty the accumulators of its sums, and after how many iterations.

        Loops are named by their level; of the innermost one, rounds of `unroll` copies count. No
        accumulator takes more than about `BLOCK` additions in a row then.
        """
        if not any(r.kind == "sum" and r.dtype.is_floating_point for r in stage.reductions):
            return {}
        flushes: dict[int, int] = {}
        additions = most_terms(stage)
        lanes, copies = self.e.lanes if self.kernel.vector is None else 1, unroll
        for level in range(len(stage.loops) - 1, -1, -1):
            loop = stage.loops[level]
            chain = additions * additions_in_a_row(extent_of(loop), lanes, copies)
            if chain > BLOCK:
                flushes[level] = max(1, BLOCK // additions)
                if loop.extent.constant is not None or level < len(stage.loops) - 1:
                    break
                chain = unroll  # it may be shorter than a round, and empties nothing then
            additions, lanes, copies = chain, 1, 1
        return flushes

    def _stage_loops(
        self,
        stage: Stage,
        level: int,
        reductions: list[list[Reduction]],
        unroll: int,
        flushes: dict[int, int],
        flush: Callable[[], None],
    ) -> None:
        loop = stage.loops[level]
        e, memory = self.e, self.memory
        zero, extent, size = e.constant(0, "i64"), memory.index(loop.extent), loop.extent.constant
        block = flushes.get(level)
        if level == len(stage.loops) - 1:
            if self.kernel.vector is not None:
                self._columns(stage, loop, reductions, unroll, block, flush)
                return

            def run(copy: int) -> None:
                self._bodies(stage, reductions, copy, memory.mask)
                self._fetch_vectors(stage)

            self._vector_loop(loop, zero, extent, size, unroll, run, block, flush)
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
        self, stage: Stage, loop: Symbol, reductions: list[list[Reduction]], unroll: int,
        block: int | None,
        flush: Callable[[], None],
    ) -> None:  # fmt: skip
        """The last loop of a stage where an outer one fills the vectors.

        It takes `unroll` iterations at a time, then single ones. After every `block` rounds,
        `flush()`.
        """
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
            once = size is not None and size % unroll == 1
            rounds(middle, extent, 1, size is not None, once=once)
