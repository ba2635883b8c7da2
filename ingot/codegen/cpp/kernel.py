"""One `Kernel` as one C++ function of the kernel ABI (`runtime/description.py`).

    int32_t kernel(void *const *buffers, const int64_t *sizes, int64_t begin, int64_t end,
                   void *scratch)

Loops are those of the kernel, by its names. The innermost one is marked for vectors where its
iterations do not depend on each other. Where an outer loop fills the lanes (`Kernel.vector`), it
goes in blocks of `LANES` points, and what a stage reduces is an array over these.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

from ingot.codegen.cpp.accumulators import Accumulator, identity
from ingot.codegen.cpp.body import Key, Scan, is_rare, memory_pointer
from ingot.codegen.cpp.function import Function, driver_of, head_of
from ingot.codegen.cpp.loops import LoopWriter
from ingot.codegen.cpp.prelude import RARE
from ingot.codegen.cpp.statements import Item, Statements
from ingot.codegen.cpp.types import PRODUCT, SUM, TYPES, Code, atom, binary, call, memory_type
from ingot.codegen.llvm.memory import fits_short
from ingot.codegen.llvm.target import host
from ingot.loops.expr import Expr, Symbol, as_expr
from ingot.loops.ir import Instruction
from ingot.loops.spaces import points_of
from ingot.schedule.kernel import Kernel, Stage, Store, loans, scaling

LANES = 64  # points of a block whose lanes are an outer loop
BLOCK = 256  # ... of a block between two calls of functions of arrays
TILE = 32  # ... along each loop of a transposed block
SPREAD = 4  # vectors over which a sum is spread: an addition takes as many cycles
SUMMED = 2048  # additions to one float, spread over a vector, before its sum goes to a double
SUMMED_ALONE = 128  # ... where it is one after the other


class Part(NamedTuple):
    """What is left of a stage for its innermost loop: its values, and their keys by position."""

    stage: Stage
    items: list[tuple[Key, Item]]
    accumulators: list[Accumulator]
    prefix: Key


def write_kernel(
    kernel: Kernel,
    symbols: Sequence[Symbol],
    check_bounds: bool = False,
    buffers: Sequence[str] = (),
) -> Function:
    """The C++ function of a kernel without a product.

    Sizes are read at their position in `symbols`. The parameters may be called as `buffers`.
    """
    return KernelWriter(kernel, symbols, check_bounds, buffers).function()


class KernelWriter(LoopWriter):
    """The loops of one kernel."""

    def __init__(
        self,
        kernel: Kernel,
        symbols: Sequence[Symbol],
        check_bounds: bool,
        buffers: Sequence[str] = (),
    ) -> None:
        super().__init__(check_bounds)
        self.buffers = list(buffers)
        self.kernel, self.symbols = kernel, list(symbols)
        self.codes: dict[Key, Code] = {}
        self.stage_number = 0
        self.block_size = BLOCK
        if self.in_lanes:
            self.block_size = LANES
        elif kernel.tile is not None:
            self.block_size = TILE

    # -- the function ------------------------------------------------------------------------------

    def function(self) -> Function:
        self.bind()
        body = self.depth, len(self.lines)
        self.outer_loops()
        self.line("return 0;")
        text = "\n".join([*self.sizes_used(body[1]), *self.lines[body[1] :]])
        return Function(
            f"{head_of()}\n{text}\n}}\n",
            self.driver(),
            frozenset(self.functions),
            tuple(self.errors),
            self.scratch,
            self.unit(),
        )

    def unit(self) -> int:
        """How many points of the parallel range a thread should take at least."""
        kernel = self.kernel
        if kernel.tile is not None or kernel.vector not in kernel.loops[: kernel.parallel]:
            return 1
        return LANES

    def driver(self) -> str:
        """A function that runs the whole kernel by OpenMP's threads."""
        points, scratch = self.index(self.kernel.points).text, self.index(self.scratch).text
        lines = []
        for k, symbol in enumerate(self.symbols):
            name = self.index.codes[symbol].text
            if re.search(rf"\b{name}\b", f"{points} {scratch}"):
                lines.append(f"  const int64_t {name} = sizes[{k}];")
        return driver_of(lines, points, scratch)

    def sizes_used(self, start: int) -> list[str]:
        """The lines before the loops: buffers, and those of the sizes that something mentions."""
        mentioned = set(re.findall(r"\w+", "\n".join(self.lines)))
        lines = []
        for k, symbol in enumerate(self.symbols):
            name = self.index.codes[symbol].text
            if name in mentioned:
                lines.append(f"  const int64_t {name} = sizes[{k}];")
        return lines + self.lines[:start]

    def bind(self) -> None:
        """Buffers, sizes and rows by name."""
        kernel = self.kernel
        for symbol in self.symbols:
            self.name_of(symbol)
        shared: set[int] = set()
        for pair in loans(kernel.parameters):
            shared.update(pair)
        for k, p in enumerate(kernel.parameters):
            label = self.buffers[k] if self.buffers else p.name
            name = self.pointers[p.name] = self.names.fresh(label)
            self.dtypes[p.name] = p.dtype
            if p.written or p.lends >= 0:
                self.mutable.add(p.name)
            if p.length is not None:
                self.lengths[p.name] = p.length
            type = memory_pointer(p.dtype, not p.written)
            apart = "" if k in shared else "__restrict "
            self.line(f"{type}{apart}{name} = static_cast<{type.strip()}>(buffers[{k}]);")
        self.line("if (begin >= end) return 0;")
        copies = LANES if self.in_lanes else 1
        for row in kernel.rows:
            name = self.pointers[row.name] = self.names.fresh(row.name)
            self.dtypes[row.name] = row.dtype
            self.mutable.add(row.name)
            self.lengths[row.name] = as_expr(row.length)
            if copies > 1:
                self.per_lane.add(row.name)
            size = as_expr(row.length) * (row.dtype.itemsize * copies)
            self.take_scratch(memory_type(row.dtype), name, size)
        self.skip()

    def skip(self) -> None:
        """A line that ends the function where elements are to be multiplied by 1 in their place."""
        scaled = scaling(self.kernel)
        if scaled is not None:
            source, target, factor = scaled.source, scaled.target, scaled.factor
            number = self.pointers[self.kernel.parameters[factor].name]
            at = self.index(scaled.offset).text
            same = f"buffers[{source}] == buffers[{target}]"
            self.line(f"if ({same} && {number}[{at}] == 1) return 0;  // all is there")

    @property
    def in_lanes(self) -> bool:
        """Whether stages run for blocks of points of the outer vector loop."""
        if self.kernel.vector is None or self.kernel.tile is not None:
            return False
        return bool(self.kernel.rows) or any(stage.loops for stage in self.kernel.stages)

    # -- outer loops -------------------------------------------------------------------------------

    def outer_loops(self) -> None:
        kernel = self.kernel
        collapsed, inner = kernel.loops[: kernel.parallel], kernel.loops[kernel.parallel :]
        if kernel.tile is not None:
            self.tiles(collapsed)
        elif kernel.vector is None or kernel.vector not in collapsed:
            with self.each_point(collapsed):
                self.nest(inner)
        else:
            self.last_of(collapsed, lambda start, stop: self.points(collapsed[-1], start, stop))

    @contextmanager
    def each_point(self, loops: Sequence[Symbol]) -> Iterator[None]:
        """A loop over the points of collapsed loops, which are bound in it."""
        if len(loops) == 1:
            with self.loop(loops[0], "begin", "end"):
                yield
            return
        point = self.names.fresh("point")
        with self.block(f"for (int64_t {point} = begin; {point} < end; ++{point})"):
            self.bind_point(point, loops)
            yield

    def bind_point(self, point: str, loops: Sequence[Symbol]) -> None:
        """The indices of collapsed loops for the number of a point."""
        inside: Expr | None = None
        for loop in reversed(loops):
            code = atom(point)
            if inside is not None:
                code = binary("/", code, self.index(inside))
            if loop is not loops[0]:
                code = binary("%", code, self.index(loop.extent))
            self.line(f"const int64_t {self.name_of(loop)} = {code.text};")
            inside = loop.extent if inside is None else inside * loop.extent

    def last_of(self, loops: Sequence[Symbol], run: Callable[[str, str], None]) -> None:
        """`run` for the range of the last of collapsed loops, within the others; the first and the
        last range may be partial."""
        if len(loops) == 1:
            run("begin", "end")
            return
        last, extent = self.name_of(loops[-1]), self.index(loops[-1].extent).inside(PRODUCT + 1)
        row = self.names.fresh("row") if len(loops) > 2 else self.name_of(loops[0])
        head = f"for (int64_t {row} = begin / {extent}; {row} <= (end - 1) / {extent}; ++{row})"
        with self.block(head):
            if len(loops) > 2:
                self.bind_point(row, loops[:-1])
            start, stop = self.names.fresh(f"{last}_begin"), self.names.fresh(f"{last}_stop")
            before = f"{row} * {extent}"
            self.line(
                f"const int64_t {start} = ingot::larger(begin - {before}, 0);",
                f"const int64_t {stop} = ingot::smaller(end - {before}, {extent});",
            )
            run(start, stop)

    def nest(self, loops: Sequence[Symbol]) -> None:
        """The stages within `loops`, the last of which may be the vector loop."""
        if not loops:
            for stage in self.kernel.stages:
                self.stage(stage, (), None)
            return
        extent = self.index(loops[0].extent).text
        if loops[0] is self.kernel.vector:
            self.points(loops[0], "0", extent)
            return
        with self.loop(loops[0], "0", extent):
            self.nest(loops[1:])

    def tiles(self, collapsed: Sequence[Symbol]) -> None:
        """Blocks of the tile loop by blocks of the vector loop: what lies along the former stays in
        the cache."""
        vector, tile = self.kernel.vector, collapsed[-1]
        assert vector is not None
        name = self.name_of(tile)

        def run(start: str, stop: str) -> None:
            extent = self.index(vector.extent).text
            with (
                self.blocks(tile, start, stop, TILE) as (first, end),
                self.blocks(vector, "0", extent, TILE) as (left, right),
            ):
                with self.block(f"for (int64_t {name} = {first}; {name} < {end}; ++{name})"):
                    self.simple(vector, left, right, left)

        self.last_of(collapsed, run)

    def points(self, vector: Symbol, start: str, stop: str) -> None:
        """The vector loop around all stages."""
        if not self.in_lanes:
            if self.has_rare(self.kernel.stages):
                with self.blocks(vector, start, stop, BLOCK) as (first, end):
                    self.simple(vector, first, end, first)
            else:
                self.simple(vector, start, stop, "")
            return
        self.lane_count = LANES
        with self.blocks(vector, start, stop, LANES) as (first, end):
            self.lane_offset = f"{self.name_of(vector)} - {first}"
            for stage in self.kernel.stages:
                self.stage(stage, (first, end), vector)

    def has_rare(self, stages: Sequence[Stage]) -> bool:
        """Whether the one stage has values that are computed as arrays."""
        return len(stages) == 1 and any(map(is_rare, stages[0].body.instructions))

    # -- stages ------------------------------------------------------------------------------------

    def simple(self, vector: Symbol, start: str, stop: str, base: str) -> None:
        """Stages without loops of their own in the vector loop."""
        parts = []
        for stage in self.kernel.stages:
            prefix = self.next_prefix()
            levels = self.placed(stage, prefix, (vector,))
            self.statements(levels[0], self.later(levels, 0, stage, prefix))
            parts.append(Part(stage, levels[1], [], prefix))
        self.innermost(vector, start, stop, parts, base)

    def next_prefix(self) -> Key:
        self.stage_number += 1
        return self.stage_number

    def stage(
        self, stage: Stage, lanes: tuple[str, str] | tuple[()], vector: Symbol | None
    ) -> None:
        """A stage with its loops, and the loop over `lanes`, if there are any, within them."""
        prefix = self.next_prefix()
        nest = stage.loops
        if vector is not None:
            nest = (*nest, vector)
        self.declare_scans(stage, vector is not None)
        levels = self.placed(stage, prefix, nest)
        accumulators = self.accumulators(stage, vector is not None)
        spread = self.spread_of(Part(stage, levels[-1], accumulators, prefix))
        for accumulator in accumulators:
            accumulator.spread = spread
            self.line(*accumulator.declarations())
        if vector is not None:
            for define in stage.scalars:
                type = TYPES[stage.body.instructions[define.value].dtype]
                name = self.names.fresh(define.name)
                self.line(f"{type} {name}[{LANES}];")
                self.scalars[define.name] = (atom(f"{name}[{self.lane_offset}]"), True)
        self.stage_loops(stage, prefix, nest, levels, accumulators, lanes, 0)
        for accumulator in accumulators:
            spec, result = accumulator.spec, accumulator.result()
            if vector is None and not result.text.isidentifier():
                name = self.names.fresh(spec.name)
                self.line(f"const {TYPES[spec.dtype]} {name} = {result.text};")
                result = atom(name)
            self.scalars[spec.name] = (result, vector is not None)

    def accumulators(self, stage: Stage, in_lanes: bool) -> list[Accumulator]:
        results = []
        most = SUMMED_ALONE if in_lanes else SUMMED
        points = points_of(stage.loops)
        count = points.constant
        for spec in stage.reductions:
            dtype = stage.body.instructions[spec.value].dtype
            wide = spec.kind == "sum" and dtype.is_floating_point and (count or most + 1) > most
            lanes = LANES if in_lanes else 0
            fresh, offset, short = self.names.fresh, self.lane_offset, fits_short(points)
            results.append(Accumulator(spec, dtype, wide, lanes, fresh, offset, short))
        return results

    def spread_of(self, part: Part) -> int:
        """The elements over which a stage's sums are spread; 0 if they are not. They are where a
        vector loop has whole rounds, and the stage has no other reductions."""
        stage, dtypes = part.stage, set[torch.dtype]()
        for accumulator in part.accumulators:
            if accumulator.spec.kind != "sum" or accumulator.lanes:
                return 0
            dtypes.add(accumulator.dtype)
        if (
            len(dtypes) != 1
            or self.has_rare([stage])
            or not self.may_be_vectors(part, stage.loops[-1])
        ):
            return 0
        (dtype,) = dtypes
        spread = SPREAD * host().vector_bytes // dtype.itemsize
        count = stage.loops[-1].extent.constant or 0
        if not dtype.is_floating_point or count < 2 * spread or count % spread:
            return 0
        return spread

    def declare_scans(self, stage: Stage, in_lanes: bool) -> None:
        self.scans.clear()
        for i in stage.body.instructions:
            if i.op != "running":
                continue
            kind, dtype = i.attrs[0], stage.body.instructions[i.args[0]].dtype
            position, offset = "", ""
            value = self.names.fresh("so_far")
            declared = [(TYPES[dtype], value, identity(kind, dtype).text)]
            if kind.startswith("arg"):
                position = self.names.fresh("so_far_at")
                declared.append(("int64_t", position, "INT64_MAX"))
            for type, name, start in declared:
                if in_lanes:
                    self.line(f"{type} {name}[{LANES}];")
                    self.line(f"for (int64_t l = 0; l < {LANES}; ++l) {name}[l] = {start};")
                    offset = f"[{self.lane_offset}]"
                else:
                    self.line(f"{type} {name} = {start};")
            self.scans[i] = Scan(kind, value, position, offset)

    def stage_loops(
        self, stage: Stage, prefix: Key, nest: Sequence[Symbol],
        levels: list[list[tuple[Key, Item]]], accumulators: list[Accumulator],
        lanes: tuple[str, str] | tuple[()], level: int,
    ) -> None:  # fmt: skip
        """The loops of a stage from `level` on."""
        part = Part(stage, levels[level], accumulators, prefix)
        if level == len(nest):
            self.statements(part.items, self.roots(stage, prefix))
            self.finish(part, 0)
            return
        self.statements(levels[level], self.later(levels, level, stage, prefix))
        loop, own = nest[level], len(stage.loops)
        if level == len(nest) - 1 and lanes:
            inner = Part(stage, levels[level + 1], accumulators, prefix)
            self.innermost(loop, *lanes, [inner], lanes[0])
            return
        extent = self.index(loop.extent)

        def run(start: str, stop: str, base: str) -> None:
            if level == len(nest) - 1:
                inner = Part(stage, levels[level + 1], accumulators, prefix)
                self.innermost(loop, start, stop, [inner], base)
                return
            with self.loop(loop, start, stop):
                self.stage_loops(stage, prefix, nest, levels, accumulators, lanes, level + 1)

        wide = level == own - 1 and any(a.wide for a in accumulators)
        rare = level == len(nest) - 1 and self.has_rare([stage])
        size = BLOCK if rare else SUMMED_ALONE if lanes else SUMMED
        count = loop.extent.constant
        if (wide or rare) and (count is None or count > size):
            with self.blocks(loop, "0", extent.text, size) as (first, end):
                self.summed(accumulators, lambda: run(first, end, first))
        elif wide:
            self.line("{")
            self.depth += 1
            self.summed(accumulators, lambda: run("0", extent.text, "0" if rare else ""))
            self.depth -= 1
            self.line("}")
        else:
            run("0", extent.text, "0" if rare else "")

    def summed(self, accumulators: list[Accumulator], run: Callable[[], None]) -> None:
        """`run` within a block of a long sum."""
        for accumulator in accumulators:
            self.line(*accumulator.part_declarations())
        run()
        for accumulator in accumulators:
            self.line(*accumulator.flush())

    # -- where values are computed -----------------------------------------------------------------

    def placed(
        self, stage: Stage, prefix: Key, nest: Sequence[Symbol]
    ) -> list[list[tuple[Key, Item]]]:
        """The values of a stage by the level of the nest at which they are computed."""
        levels: list[list[tuple[Key, Item]]] = []
        for _ in range(len(nest) + 1):
            levels.append([])
        level_of: dict[Key, int] = {}
        program = stage.body.instructions
        for key, item in self.items(stage, prefix):
            i = program[key[1]]
            level = max(map(level_of.__getitem__, item.args), default=0)
            for depth, loop in enumerate(nest):
                if i.expression is not None and loop in i.expression.symbols:
                    level = max(level, depth + 1)
            if self.is_pinned(i):
                level = len(nest)
            if item.lines is not None or (i.op == "load" and not i.args):
                for depth in range(level, len(nest)):
                    if not self.runs(nest[depth]):
                        level = depth + 1
            level_of[key] = level
            levels[level].append((key, item))
        return levels

    def is_pinned(self, i: Instruction) -> bool:
        """Whether an instruction stays in the innermost loop: it has another value each time."""
        if i.op == "load":
            return i.attrs[0] in self.mutable or i.attrs[0] in self.per_lane
        if i.op == "scalar":
            known = self.scalars.get(i.attrs[0])
            return known is None or known[1]
        return i.op == "running"

    def runs(self, loop: Symbol) -> bool:
        """Whether a loop runs at least once: threads' shares, and blocks, are not empty."""
        if loop in self.kernel.loops[: self.kernel.parallel]:
            return True
        if self.in_lanes and loop is self.kernel.vector:
            return True
        return (loop.extent.bounds[0] or 0) > 0

    def roots(self, stage: Stage, prefix: Key) -> list[Key]:
        """The keys of what a stage stores, reduces or names, once for each time it is written."""
        results = []
        for store in stage.stores:
            results.append((prefix, store.value))
        for spec in stage.reductions:
            results += [(prefix, spec.value)] * (2 if spec.kind.startswith("arg") else 1)
        for define in stage.scalars:
            results += [(prefix, define.value)] * (1 if self.lane_offset else 2)
        return results

    def later(
        self, levels: list[list[tuple[Key, Item]]], level: int, stage: Stage, prefix: Key
    ) -> list[Key]:
        """What is used behind a level: each is named there, unless it is trivial."""
        used = self.roots(stage, prefix)
        for items in levels[level + 1 :]:
            for _, item in items:
                used += item.args
        return used + used

    def statements(self, items: Sequence[tuple[Key, Item]], roots: Sequence[Key]) -> None:
        self.line(*Statements(self.codes, self.names.fresh).write(items, roots))

    # -- the innermost loop ------------------------------------------------------------------------

    def innermost(self, loop: Symbol, start: str, stop: str, parts: list[Part], base: str) -> None:
        """A loop whose body is no loop. With a `base`, its iterations are numbered from there, and
        what may call the C library is computed as arrays."""
        if any(accumulator.spread for accumulator in parts[0].accumulators):
            self.spread_sums(loop, start, stop, parts[0])
            return
        vector = all(self.may_be_vectors(part, loop) for part in parts)
        clauses = ""
        for part in parts:
            for accumulator in part.accumulators:
                clauses += accumulator.clause()
        pragma = f"#pragma omp simd{clauses}"
        phases = [parts[0].items]
        if base and vector and len(parts) == 1:
            phases = self.phases(parts[0])
        if len(phases) > 1:
            self.in_phases(loop, start, stop, parts[0], phases, base, pragma)
            return
        if vector:
            self.line(pragma)
        with self.loop(loop, start, stop):
            for part in parts:
                self.statements(part.items, self.roots(part.stage, part.prefix))
                self.finish(part, 1)

    def spread_sums(self, loop: Symbol, start: str, stop: str, part: Part) -> None:
        """A loop whose sums are spread, in rounds of as many elements."""
        name, spread = self.name_of(loop), part.accumulators[0].spread
        first, lane = self.names.fresh(f"{name}_first"), self.names.fresh("l")
        with self.count(first, stop, start, str(spread)):
            self.line("#pragma omp simd")
            with self.count(lane, str(spread)):
                for accumulator in part.accumulators:
                    accumulator.offset = lane
                self.index.codes[loop] = Code(f"{first} + {lane}", SUM)
                self.statements(part.items, self.roots(part.stage, part.prefix))
                self.finish(part, 1)
            self.index.codes.pop(loop)

    def may_be_vectors(self, part: Part, loop: Symbol) -> bool:
        """Whether the iterations of the innermost loop do not depend on each other's order."""
        for _, item in part.items:
            if item.lines is not None and not (self.lane_offset and item.name == ""):
                return False
        for accumulator in part.accumulators:
            if accumulator.position and not accumulator.lanes:
                return False
        return all(self.is_apart(store, loop) for store in part.stage.stores)

    def is_apart(self, store: Store, loop: Symbol) -> bool:
        if self.check_bounds and store.buffer in self.lengths:
            return False  # it may have to leave the loop
        return not store.scatters and (store.buffer in self.per_lane or loop in store.index.symbols)

    def finish(self, part: Part, inside: int) -> None:
        """What a body does with its values: stores, reductions, names."""
        stage, program = part.stage, part.stage.body.instructions
        for store in stage.stores:
            code = self.codes[part.prefix, store.value]
            self.line(*self.store(store, code, program[store.value].dtype))
        for accumulator in part.accumulators:
            position = atom("0")
            if accumulator.spec.kind.startswith("arg"):
                position = self.position(stage)
            self.line(
                *accumulator.update(self.codes[part.prefix, accumulator.spec.value], position)
            )
        for define in stage.scalars:
            code = self.codes[part.prefix, define.value]
            known = self.scalars.get(define.name)
            if inside and known is not None and known[1]:
                self.line(f"{known[0].text} = {code.text};")
            else:
                self.scalars[define.name] = (code, False)

    # -- functions of arrays -----------------------------------------------------------------------

    def phases(self, part: Part) -> list[list[tuple[Key, Item]]]:
        """The values of a body in the order of the calls of functions of arrays between them."""
        program = part.stage.body.instructions
        phase: dict[Key, int] = {}
        for key, item in part.items:
            mine = 0
            for arg in item.args:
                if arg in phase:
                    mine = max(mine, phase[arg] + is_rare(program[arg[1]]))
            phase[key] = mine
        last = 0
        for key, _ in part.items:
            last = max(last, phase[key] + is_rare(program[key[1]]))
        users: dict[Key, list[int]] = {}
        for key in self.roots(part.stage, part.prefix):
            users.setdefault(key, []).append(last)
        for key, item in reversed(part.items):
            where = users.get(key, [])
            if where and not is_rare(program[key[1]]):
                phase[key] = max(phase[key], min(where))
            for arg in item.args:
                users.setdefault(arg, []).append(phase[key])
        results: list[list[tuple[Key, Item]]] = [[] for _ in range(last + 1)]
        for key, item in part.items:
            results[phase[key]].append((key, item))
        return results

    def in_phases(
        self, loop: Symbol, start: str, stop: str, part: Part,
        phases: list[list[tuple[Key, Item]]], base: str, pragma: str,
    ) -> None:  # fmt: skip
        """Loops over one block, with calls of functions of arrays between them."""
        program, count = part.stage.body.instructions, f"{stop} - {start}"
        offset = self.name_of(loop) if base == "0" else f"{self.name_of(loop)} - {base}"
        size = self.block_size
        arrays: dict[Key, str] = {}

        def array(key: Key, name: str) -> str:
            arrays[key] = self.names.fresh(name)
            self.line(f"{TYPES[program[key[1]].dtype]} {arrays[key]}[{size}];")
            return arrays[key]

        for number, items in enumerate(phases):
            rare = [key for key, _ in items if is_rare(program[key[1]])]
            kept = self.kept(part, phases, number, arrays)
            for key in kept:
                array(key, "block")
            for key in rare:
                array(key, f"{program[key[1]].op}_block")
            is_last = number == len(phases) - 1
            if is_last:
                self.line(pragma)
            else:
                flag = self.names.fresh("rare")
                self.line(f"int32_t {flag} = 0;", f"#pragma omp simd reduction(| : {flag})")
            with self.loop(loop, start, stop):
                roots = [*kept, *rare]
                for key in rare:
                    roots += [(part.prefix, a) for a in program[key[1]].args]
                if is_last:
                    roots += self.roots(part.stage, part.prefix)
                self.statements(self.usual(items, program), roots)
                for key in (*kept, *rare):
                    self.line(f"{arrays[key]}[{offset}] = {self.codes[key].text};")
                for key in rare:
                    i = program[key[1]]
                    args = ", ".join([self.codes[part.prefix, a].text for a in i.args])
                    self.line(f"{flag} |= ingot::{RARE[i.op]}_is_rare({args});")
                if is_last:
                    self.finish(part, 1)
            for key in (*kept, *rare):
                self.codes[key] = atom(f"{arrays[key]}[{offset}]")
            for key in rare:
                i = program[key[1]]
                args = ", ".join([arrays[part.prefix, a] for a in i.args])
                result = arrays[key]
                self.line(f"if ({flag}) ingot::repair_{RARE[i.op]}({args}, {result}, {count});")

    @staticmethod
    def usual(
        items: list[tuple[Key, Item]], program: Sequence[Instruction]
    ) -> list[tuple[Key, Item]]:
        """The values, of which those that may be rare are the usual results."""
        results = []
        for key, item in items:
            i = program[key[1]]
            if is_rare(i):
                build = functools.partial(call, f"ingot::usual_{RARE[i.op]}")
                item = item._replace(build=build)
            results.append((key, item))
        return results

    def kept(
        self, part: Part, phases: list[list[tuple[Key, Item]]], number: int, arrays: dict[Key, str]
    ) -> list[Key]:
        """The values that later phases, or the functions of arrays behind this one, take from
        it."""
        program, here = part.stage.body.instructions, dict(phases[number])
        wanted: dict[Key, None] = {}
        for key in here:
            if is_rare(program[key[1]]):
                wanted |= dict.fromkeys(here[key].args)
        results = [key for key in wanted if key not in arrays]
        later = []
        if number < len(phases) - 1:
            later += self.roots(part.stage, part.prefix)
        for items in phases[number + 1 :]:
            for _, item in items:
                later += item.args
        for key in dict.fromkeys(later):
            if key in here and key not in wanted and not here[key].trivial:
                if not is_rare(program[key[1]]):
                    results.append(key)
        return results
