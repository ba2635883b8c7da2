"""One readable Triton kernel for each kernel of the schedule.

A block of threads takes some points of the outer loops, the axis `x`; inner loops are the axis `r`
beside it, whole where the schedule says so (`schedule/blocks.py`), else in steps. A tile has two
axes of outer loops, `y` and `x`.
"""

from __future__ import annotations

import functools
import keyword
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from ingot.codegen.triton import ops
from ingot.codegen.triton.conditions import holds_mostly, is_left_out
from ingot.codegen.triton.rewrite import in_other_words, settled
from ingot.errors import unsupported
from ingot.loops.expr import Expr, FloorDiv, Max, Min, Mod, Symbol, integer, maximum, product
from ingot.loops.ir import Instruction
from ingot.schedule.blocks import (
    Blocks,
    Condition,
    blocks_for_some_sizes,
    choose_blocks,
    inner_size,
    power_of_two,
)
from ingot.schedule.kernel import Accumulate, Kernel, Parameter, Stage, Store, loans, scaling
from ingot.schedule.online import POWERS, in_one_pass

SHORT = 2**31
WIDE_BYTES = 16  # that a thread loads at once, at most
MOST_STEPS_AHEAD = 2  # that a block loads before it computes ...
SHARED = 48 << 10  # ... into so many bytes of shared memory
L2 = 64 << 20  # bytes, more than a GPU's cache has
REST = 4  # what whole steps leave of a row is taken in steps of which so many make a whole one
_TAKEN = {"tl", "triton", "libdevice", "helpers"}
_NO_AXES: frozenset[str] = frozenset()
Body = tuple[str, tuple[tuple[str, int], ...], int, int]


@dataclass(frozen=True)
class TritonKernel:
    """The text of a kernel and how it is launched: with the buffers of `parameters`, then the
    values of `sizes`, in `grid` blocks of `warps` warps; `constants` are its block sizes, `stages`
    how far a loop reads ahead, where that is said. Index arithmetic and sizes are in 32 bits if it
    is `short`, else in 64.

    With a `table` it takes the address of one instead, of 64-bit integers: the first block of each
    set of buffers, in `table` places, of which those that are left over hold the largest integer;
    and a row for each set, of its first block, its number of points, and the address, or the
    number, of each parameter."""

    name: str
    source: str
    parameters: tuple[Parameter, ...]
    sizes: tuple[Symbol, ...]
    constants: tuple[tuple[str, int], ...]
    grid: Expr
    warps: int
    asserts: bool
    short: bool = False
    table: int = 0
    stages: int = 0

    @property
    def body(self) -> Body:
        """What tells its code from another's."""
        return self.source, self.constants, self.warps, self.stages


class Value(NamedTuple):
    """A variable, and the axes along which it varies."""

    text: str
    axes: frozenset[str]


@dataclass(frozen=True)
class Form:
    """A way to compute a kernel: in these blocks, with index arithmetic in 32 bits if it is
    `short`, where each of the `conditions` holds: an expression is not greater than a number."""

    blocks: Blocks
    short: bool
    conditions: tuple[Condition, ...] = ()


def forms_of(kernel: Kernel) -> list[Form]:
    """The forms of a kernel, of which the first is launched whose conditions hold. The last one has
    none, and there is no other where all sizes are known. Index arithmetic is in 32 bits where that
    is ever right."""
    blocks = choose_blocks(kernel)
    some = blocks_for_some_sizes(kernel)
    slack = max(b.slack for b in (blocks, *(b for b, _ in some)))
    if fits_short(kernel, slack):
        return [*(Form(b, True, conditions) for b, conditions in some), Form(blocks, True)]
    limit = _short_limit(kernel, slack)
    if limit is None or limit.constant is not None:
        return [*(Form(b, False, conditions) for b, conditions in some), Form(blocks, False)]
    short = limit, SHORT - 1
    forms = [Form(b, True, (*conditions, short)) for b, conditions in some]
    return [*forms, Form(blocks, True, (short,)), Form(blocks, False)]


def general_form(kernel: Kernel) -> Form:
    """The form for sizes of all kinds, but for those that need 64 bits where that is asked at each
    launch."""
    blocks = choose_blocks(kernel)
    return next(form for form in forms_of(kernel) if form.blocks == blocks)


def write_kernel(
    kernel: Kernel, form: Form | None = None, sizes: Sequence[Symbol] = ()
) -> TritonKernel:
    """The Triton code of a form, by default the general one, of a kernel whose rows, if it has any,
    fit registers. The sizes that it takes begin with `sizes`. Raises Unsupported for what has no
    code."""
    kernel = replace(kernel, stages=tuple(in_other_words(stage) for stage in kernel.stages))
    if kernel.product is not None:
        from ingot.codegen.triton.product import write_product

        return write_product(kernel)
    form = form or general_form(kernel)
    if not form.blocks.persistent:
        kernel = in_one_pass(kernel)
    return Writer(kernel, form.blocks, form.short, sizes).write()


class Writer:
    def __init__(
        self, kernel: Kernel, blocks: Blocks, short: bool, sizes: Sequence[Symbol] = ()
    ) -> None:
        self.kernel, self.blocks = kernel, blocks
        self.lines: list[str] = []
        self.indent = 1
        self.rank = 1 if not blocks.tile and not blocks.inner else 2
        self.sizes = {size: f"size{k}" for k, size in enumerate(sizes)}
        self.symbols: dict[Symbol, Value] = {}
        self.masks: dict[str, str | None] = {}
        self.constants: dict[str, int] = {}
        self.written = {store.buffer for stage in kernel.stages for store in stage.stores}
        self.numbers = {p.name: p.dtype for p in kernel.parameters if p.on_host}
        self.lengths = {
            p.name: p.length.constant if p.length is not None else None for p in kernel.parameters
        }
        self.rows = {row.name: row for row in kernel.rows}
        self.row_values: dict[str, Value] = {}
        # What was last stored in a buffer, and where.
        self.held: dict[str, tuple[Expr, tuple[Symbol, ...], torch.dtype, Value]] = {}
        self.totals: dict[tuple[str, Expr], str] = {}
        self.scalars: dict[str, Value] = {}
        self.known: dict[tuple[object, ...], Value] = {}  # what has been computed in this scope
        self.count = 0
        self.stage_number = 0
        self.reads_later = _rows_read_again(kernel) if not blocks.persistent else []
        self.asserts = False
        self.short = short

    def write(self) -> TritonKernel:
        name = _identifier(self.kernel.name)
        self.skip()
        self.outer()
        touched: set[str] = set()
        stored: set[str] = set()
        parameters = self.kernel.parameters
        lent = {parameters[k].name: parameters[to].name for k, to in loans(parameters)}
        for number, stage in enumerate(self.kernel.stages):
            self.stage_number = number
            loads = {
                i.attrs[0] for i in stage.body.loads if self.stored(i, stage) is None
            } - self.rows.keys()
            loads = {lent.get(name, name) for name in loads}
            stores = {store.buffer for store in stage.stores} - self.rows.keys()
            if loads & stored or stores & touched:
                # other threads of the block have written or read there
                self.line("tl.debug_barrier()")
            touched |= loads | stores
            stored |= stores
            self.stage(stage)
        if self.kernel.run:
            self.end_of_run()
        names = ["table"] if self.kernel.table else [p.name for p in self.kernel.parameters]
        arguments = names + list(self.sizes.values())
        constants = [f"{block}: tl.constexpr" for block in self.constants]
        where = [f"    # {self.kernel.origin.where}"] if self.kernel.origin.where else []
        head = f"def {name}({', '.join([*arguments, *constants])}):"
        return TritonKernel(
            name,
            "\n".join(["@triton.jit", head, *where, *self.lines]) + "\n",
            self.kernel.parameters,
            tuple(self.sizes),
            tuple(self.constants.items()),
            self.grid,
            self.blocks.warps,
            self.asserts,
            self.short,
            table=self.kernel.table,
        )

    def skip(self) -> None:
        """Nothing is done where elements are to be multiplied by 1 in their place."""
        found = scaling(self.kernel)
        if found is not None:
            positions = found.source, found.factor, found.target
            source, factor, target = (self.kernel.parameters[k].name for k in positions)
            same = f"{source}.to(tl.int64) == {target}.to(tl.int64)"
            self.line(f"if ({same}) & (tl.load({factor} + {found.offset}) == 1):")
            self.line("    return")

    @property
    def grid(self) -> Expr:
        return self.blocks.count(self.kernel)

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def fresh(self, text: str, axes: frozenset[str]) -> Value:
        value = Value(f"v{self.count}", axes)
        self.count += 1
        self.line(f"{value.text} = {text}")
        return value

    # -- axes --------------------------------------------------------------------------------------

    def outer(self) -> None:
        """The points of this block."""
        if self.kernel.table:
            return self.in_table()
        block = "tl.program_id(0)" if self.short else "tl.program_id(0).to(tl.int64)"
        self.constants["XBLOCK"] = self.blocks.points
        if self.kernel.run:
            return self.in_runs(block)
        if self.blocks.most:
            shares = self.index(self.blocks.shares(self.kernel)).text
            self.line(f"for share in range({block}, {shares}, tl.num_programs(0)):")
            self.indent += 1
            block = "share"
        if not self.blocks.tile:
            column = "[:, None]" if self.rank == 2 else ""
            fixed = self.loops_of_block()
            if fixed:
                blocks = (
                    product(s.extent for s in self.kernel.loops[fixed:]).constant or 0
                ) // self.blocks.points
                self.line(f"block = {block} // {blocks}")
                self.split("block", "", self.kernel.loops[:fixed])
                block += f" % {blocks}"
            self.line(f"x = {block} * XBLOCK + tl.arange(0, XBLOCK){column}")
            self.mask("x", self.kernel.points, self.blocks.points)
            self.split("x", "x", self.kernel.loops[fixed:])
            return
        *rest, tile, vector = self.kernel.loops
        self.constants["YBLOCK"] = self.blocks.tile
        across, down = (
            self.index((s.extent + (b - 1)) // b).text
            for s, b in ((vector, self.blocks.points), (tile, self.blocks.tile))
        )
        self.line(f"block = {block}")
        self.line(f"x = block % {_factor(across)} * XBLOCK + tl.arange(0, XBLOCK)[None, :]")
        self.line(
            f"y = block // {_factor(across)} % {_factor(down)} * YBLOCK + tl.arange(0, YBLOCK)[:, "
            "None]"
        )
        self.mask("x", vector.extent, self.blocks.points)
        self.mask("y", tile.extent, self.blocks.tile)
        self.symbols[vector] = Value("x", frozenset("x"))
        self.symbols[tile] = Value("y", frozenset("y"))
        if rest:
            self.line(f"z = block // ({_factor(across)} * {_factor(down)})")
            self.split("z", "", rest)

    def in_runs(self, block: str) -> None:
        """The points of this block, one or some after the other. What belongs to columns stays in
        registers."""
        run, stages = self.kernel.run, [stage for stage in self.kernel.stages if stage.loops]
        self.line(f"block = {block}")
        self.inner_loops = stages[0].loops
        self.inner(stages[0], inner_size(stages[0]))
        for stage in stages:
            self.before_steps(stage, stage.loops)
            for store in stage.stores:
                if store.mode == "total":
                    dtype = stage.body.instructions[store.value].dtype
                    name = self.totals[store.buffer, store.index] = f"t{len(self.totals)}"
                    self.line(f"{name} = tl.full({self.shape('xr')}, 0, {ops.TYPES[dtype]})")
        ahead = f", num_stages={steps}" if (steps := self.steps_ahead()) > 1 else ""
        self.line(f"for start in tl.range(0, {run}, XBLOCK{ahead}):")
        self.indent += 1
        self.line(f"x = block * {run} + start + tl.arange(0, XBLOCK)[:, None]")
        self.masks["x"] = None
        self.split("x", "x", self.kernel.loops)

    def before_steps(self, stage: Stage, axes: Sequence[Symbol] | None = None) -> None:
        """Load what does not change from step to step: what depends on `axes` alone, by default on
        outer loops."""
        axes = self.kernel.loops if axes is None else axes
        for i in stage.body.loads:
            fixed = not i.args and i.attrs[1].symbols.issubset(axes)
            if fixed and i.attrs[0] not in (self.written | self.rows.keys() | self.numbers.keys()):
                self.instruction(i, [], stage)

    def steps_ahead(self) -> int:
        """In how many steps of a run at once a block may be, of which one computes and the others
        load. One where it loads what it has stored before, or where there is no memory for more."""
        stored: dict[str, set[tuple[Expr, tuple[Symbol, ...]]]] = {}
        elements = self.blocks.points * self.blocks.inner
        loaded: dict[tuple[str, Expr], int] = {}
        for stage in self.kernel.stages:
            for i in stage.body.loads:
                name, index = i.attrs
                loops = stage.loops if not index.symbols.isdisjoint(stage.loops) else ()
                if name in stored and (i.args or stored[name] != {(index, loops)}):
                    return 1
                if loops and name not in (stored.keys() | self.rows.keys()):
                    loaded[name, index] = elements * i.dtype.itemsize
            for store in stage.stores:
                loops = stage.loops if not store.index.symbols.isdisjoint(stage.loops) else ()
                stored.setdefault(store.buffer, set()).add((store.index, loops))
        return 1 + min(MOST_STEPS_AHEAD, SHARED // max(1, sum(loaded.values())))

    def end_of_run(self) -> None:
        """Store the sums of columns, at the place that all points of the run name."""
        self.indent -= 1
        self.line(f"first = block * {self.kernel.run}")
        self.split("first", "", self.kernel.loops)
        mask = self.masks["r"]
        for (buffer, index), name in self.totals.items():
            pointer = f"{buffer} + {summand(self.index(index).text)}"
            total = f"tl.sum({name}, 0)[None, :]"
            self.line(f"tl.store({pointer}, {total}{'' if mask is None else f', mask={mask}'})")

    def loops_of_block(self) -> int:
        """How many of the outer loops, from the outermost one, have one index in a block: blocks
        fill those within."""
        for k in range(len(self.kernel.loops) - 1, 0, -1):
            within = product(s.extent for s in self.kernel.loops[k:]).constant
            if self.blocks.points == 1 or within is None:
                return 0
            if within % self.blocks.points == 0:
                return k
        return 0

    def in_table(self) -> None:
        """The points of this block, of one of many sets of buffers, and where that is."""
        self.constants |= {"XBLOCK": self.blocks.points, "PARTS": self.kernel.table}
        number = "tl.int32" if self.short else "tl.int64"
        self.line("block = tl.program_id(0)")
        self.line(
            "part = tl.sum((tl.load(table + tl.arange(0, PARTS)) <= block).to(tl.int32), 0) - 1"
        )
        self.line(f"row = table + PARTS + part * {len(self.kernel.parameters) + 2}")
        self.line(f"x = (block - tl.load(row)).to({number}) * XBLOCK + tl.arange(0, XBLOCK)")
        self.line(f"xmask = x < tl.load(row + 1).to({number})")
        for k, p in enumerate(self.kernel.parameters, 2):
            pointer = f"tl.pointer_type({ops.TYPES[p.dtype]})"
            text = (
                f"tl.load((row + {k}).to({pointer}))"
                if p.on_host
                else f"tl.load(row + {k}).to({pointer})"
            )
            self.line(f"{p.name} = {text}")
        self.masks["x"] = "xmask"
        self.split("x", "x", self.kernel.loops)

    def mask(self, axis: str, extent: Expr, block: int, name: str = "") -> None:
        """The mask of an axis; none where blocks fill its extent."""
        name = name or axis
        self.masks[axis] = None
        if extent.constant is None or extent.constant % block:
            self.line(f"{name}mask = {name} < {self.index(extent).text}")
            self.masks[axis] = f"{name}mask"

    def split(self, name: str, axes: str, loops: Sequence[Symbol]) -> None:
        """The indices of loops that one number runs through."""
        inner = integer(1)
        varies = frozenset(axes)
        for k, symbol in enumerate(reversed(loops)):
            text = name
            if inner.constant != 1:
                text += f" // {_factor(self.index(inner).text)}"
            if k < len(loops) - 1:
                text += f" % {_factor(self.index(symbol.extent).text)}"
            if text != name:
                part = f"{name}{len(loops) - 1 - k}"
                self.line(f"{part} = {text}")
                text = part
            self.symbols[symbol] = Value(text, varies)
            inner = inner * symbol.extent

    def shape(self, axes: Iterable[str]) -> str:
        if self.rank == 1:
            return "[XBLOCK]"
        first, second = ("y", "x") if self.blocks.tile else ("x", "r")
        sizes = {"x": "XBLOCK", "y": "YBLOCK", "r": self.inner_block}
        return (
            "[" + ", ".join(sizes[axis] if axis in axes else "1" for axis in (first, second)) + "]"
        )

    @property
    def point_axes(self) -> frozenset[str]:
        return frozenset("xy" if self.blocks.tile else "x")

    # -- stages ------------------------------------------------------------------------------------

    inner_block = inner_axis = ""  # the names of the axis r of the present stage, and of its size
    inner_loops: tuple[Symbol, ...] = ()

    def stage(self, stage: Stage) -> None:
        self.inner_loops = stage.loops
        if not stage.loops:
            self.body(stage, self.point_axes)
            return
        size = inner_size(stage)
        if self.blocks.persistent:
            if not self.kernel.run:
                self.inner(stage, size)
            self.body(stage, frozenset("xr"))
        else:
            self.looped(stage, size)

    def inner(self, stage: Stage, size: Expr) -> None:
        """The whole of a stage's inner loops as an axis."""
        block = power_of_two(self.blocks.length(stage))
        name = "r" if block == self.blocks.inner else f"r{block}_"
        self.inner_block = f"{name.upper()}BLOCK"
        self.constants[self.inner_block] = block
        self.inner_axis = name
        if ("inner", name) not in self.known:
            self.known["inner", name] = Value(name, frozenset("r"))
            self.line(f"{name} = {self.wide(f'tl.arange(0, {self.inner_block})')}[None, :]")
        self.mask("r", size, block, name)
        self.split(name, "r", stage.loops)

    def wide(self, text: str) -> str:
        return text if self.short else f"{text}.to(tl.int64)"

    def looped(self, stage: Stage, size: Expr) -> None:
        """A stage whose inner loops are taken in steps: whole ones, without masks, and what is
        left."""
        self.inner_block = "RBLOCK"
        self.before_steps(stage)
        accumulators = self.accumulators(stage)
        count, block = size.constant or 0, self.blocks.inner
        whole = count // block * block
        if self.kernel.vector is None and 0 < whole < count:
            powers = [a for a, names in accumulators if names[0].endswith("_top")]
            parts = (
                (min(REST, self.group) if powers else min(REST, block))
                if len(powers) == len(accumulators)
                else 1
            )
            self.steps(settled(stage, whole), "0", integer(whole), block, accumulators)
            self.steps(stage, str(whole), size, block // parts, accumulators)
        else:
            self.steps(stage, "0", size, block, accumulators)
        for a, names in accumulators:
            self.reduce(a, names, stage.body.instructions[a.value].dtype)

    def steps(
        self,
        stage: Stage,
        begin: str,
        end: Expr,
        block: int,
        accumulators: Sequence[tuple[Accumulate, list[str]]],
    ) -> None:
        """A loop over steps of a stage's inner loops, as one axis."""
        self.inner_block = (
            "RBLOCK" if block == self.blocks.inner else f"REST{self.blocks.inner // block}"
        )
        self.constants |= {"RBLOCK": self.blocks.inner, self.inner_block: block}
        number, self.count = self.count, self.count + 1
        known, self.known = self.known, dict(self.known)
        self.line(
            f"for start{number} in range({begin}, {self.index(end).text}, {self.inner_block}):"
        )
        self.indent += 1
        name = self.inner_axis = f"r{number}"
        self.line(
            f"{name} = start{number} + {self.wide(f'tl.arange(0, {self.inner_block})')}[None, :]"
        )
        self.mask("r", end, block, name)
        self.split(name, "r", stage.loops)
        values = self.body(replace(stage, reductions=()), frozenset("xr"))
        for a, (_, names) in zip(stage.reductions, accumulators):
            self.accumulate(a, names, self.full(values[a.value]), stage)
        self.indent -= 1
        self.known = known

    def body(self, stage: Stage, axes: frozenset[str]) -> list[Value]:
        values: list[Value] = []
        for i in stage.body.instructions:
            values.append(self.instruction(i, values, stage))
        for store in stage.stores:
            self.store(store, values[store.value], axes, stage)
        for define in stage.scalars:
            self.scalars[define.name] = values[define.value]
        for a in stage.reductions:
            dtype = stage.body.instructions[a.value].dtype
            value = self.full(values[a.value])
            mask = self.masks["r"]
            if mask is not None:
                value = self.fresh(
                    f"tl.where({mask}, {value.text}, {ops.identity(a.kind, dtype)})", value.axes
                )
            self.reduce(
                a,
                [value.text, self.position()] if a.kind.startswith("arg") else [value.text],
                dtype,
            )
        return values

    # -- reductions --------------------------------------------------------------------------------

    def full(self, value: Value) -> Value:
        """A value at each element of the block."""
        if value.axes == frozenset("xr"):
            return value
        return self.fresh(f"tl.broadcast_to({value.text}, {self.shape('xr')})", frozenset("xr"))

    def position(self) -> str:
        """The number of each element among those that are reduced."""
        return f"tl.broadcast_to({self.inner_axis}.to(tl.int64), {self.shape('xr')})"

    def accumulators(self, stage: Stage) -> list[tuple[Accumulate, list[str]]]:
        """The variables of partial results. Those of powers have the largest elements besides."""
        powers = {a.value: f"{a.name}_top" for a in stage.reductions if a.kind == POWERS}
        found = {
            a: [powers[a.value]] for a in stage.reductions if a.kind == "max" and a.value in powers
        }
        return [(a, found.get(a) or self.accumulator(a, stage)) for a in stage.reductions]

    def accumulator(self, a: Accumulate, stage: Stage) -> list[str]:
        """The variables of a partial result for each element of a step, holding that of nothing."""
        dtype = stage.body.instructions[a.value].dtype
        if a.kind == POWERS:
            self.group, self.wide_group = self.group_of_powers(stage)
            shape = f"[XBLOCK, RBLOCK // {self.group}]"
            names = [f"{a.name}_top", f"{a.name}_all"]
            for name, number in zip(names, ('float("-inf")', 0)):
                self.line(f"{name} = tl.full({shape}, {number}, {ops.TYPES[dtype]})")
            return names
        names = [f"{a.name}_all"]
        self.line(
            f"{names[0]} = tl.full({self.shape('xr')}, {ops.identity(a.kind, dtype)}, "
            f"{ops.TYPES[dtype]})"
        )
        if a.kind.startswith("arg"):
            names.append(f"{a.name}_at")
            self.line(f"{names[1]} = tl.full({self.shape('xr')}, {2**63 - 1}, tl.int64)")
        return names

    def group_of_powers(self, stage: Stage) -> tuple[int, bool]:
        """How many elements of a step a thread has, or of those that it loads at once, if these are
        more than one."""
        loads = [i for i in stage.body.loads if not i.attrs[-1].symbols.isdisjoint(stage.loops)]
        each = max(1, self.blocks.inner * self.blocks.points // (32 * self.blocks.warps))
        if self.kernel.vector is not None or not loads:
            return 1, False
        together = min(_elements_at_once(i, stage) for i in loads)
        return (min(together, each), True) if together > 1 else (each, False)

    def accumulate(self, a: Accumulate, names: list[str], value: Value, stage: Stage) -> None:
        dtype, mask = stage.body.instructions[a.value].dtype, self.masks["r"]
        if names[0].endswith("_top"):
            if a.kind == POWERS:
                masked = (
                    value.text if mask is None else f'tl.where({mask}, {value.text}, float("-inf"))'
                )
                group = self.group * self.constants[self.inner_block] // self.constants["RBLOCK"]
                grouping = f"{group}, {self.wide_group}"
                self.line(
                    f"{', '.join(names)} = helpers.add_powers({', '.join(names)}, {masked}, "
                    f"{grouping})"
                )
            return
        if len(names) == 2:
            masked = (
                value.text
                if mask is None
                else f"tl.where({mask}, {value.text}, {ops.identity(a.kind, dtype)})"
            )
            function = "further_up" if a.kind == "argmax" else "further_down"
            self.line(
                f"{', '.join(names)} = helpers.{function}({', '.join(names)}, {masked}, "
                f"{self.position()})"
            )
            return
        total = ops.combine(a.kind, dtype, names[0], value.text)
        self.line(
            f"{names[0]} = {total if mask is None else f'tl.where({mask}, {total}, {names[0]})'}"
        )

    def reduce(self, a: Accumulate, names: list[str], dtype: torch.dtype) -> None:
        """Finish a reduction: its result becomes the scalar."""
        if a.kind.startswith("arg"):
            function = "further_up" if a.kind == "argmax" else "further_down"
            ignored, at = f"{a.name}_value", f"{a.name}_position"
            self.line(f"{ignored}, {at} = tl.reduce(({', '.join(names)}), 1, helpers.{function})")
            result = f"{at}[:, None]"
        elif a.kind == POWERS:
            result = f"helpers.join_powers({', '.join(names)})"
        else:
            result = ops.reduce_block(a.kind, dtype, names[0])
            if a.dtype is not dtype:
                result = ops.convert(f"({result})", dtype, a.dtype)
        self.line(f"{a.name} = {result}")
        self.scalars[a.name] = Value(a.name, frozenset("x"))

    # -- instructions ------------------------------------------------------------------------------

    def instruction(self, i: Instruction, values: list[Value], stage: Stage) -> Value:
        arguments = [values[k] for k in i.args]
        if i.op == "scalar":
            return self.scalars[i.attrs[0]]
        if i.op == "load" and i.attrs[0] in self.rows:
            return self.where_wanted(self.row_values[i.attrs[0]], arguments, len(values), stage)
        if i.op == "load" and (held := self.stored(i, stage)) is not None:
            return held
        if i.op == "load" and arguments and self.may_be_read(i, stage):
            everywhere = self.instruction(i._replace(args=()), values, stage)
            return self.where_wanted(everywhere, arguments, len(values), stage)
        attrs: tuple[object, ...] = (repr(i.attrs[0]),) if i.op == "constant" else i.attrs
        loops: tuple[Symbol, ...] = ()
        if i.op in ("load", "index") and not i.attrs[-1].symbols.isdisjoint(stage.loops):
            loops = stage.loops
        key = (i.op, tuple(a.text for a in arguments), i.dtype, attrs, loops)
        if (
            i.op == "indirect"
            or (i.op == "load" and i.attrs[0] in self.written)
            or key not in self.known
        ):
            self.known[key] = self.emit(
                i, arguments, [stage.body.instructions[k].dtype for k in i.args]
            )
        return self.known[key]

    def where_wanted(self, value: Value, conditions: list[Value], at: int, stage: Stage) -> Value:
        """What a load gives that was made without its conditions: 0 where these do not hold, unless
        nobody asks."""
        if not conditions or is_left_out(stage, at):
            return value
        holds = " & ".join(c.text for c in conditions)
        axes = value.axes.union(*(c.axes for c in conditions))
        return self.fresh(f"tl.where({holds}, {value.text}, 0).to({value.text}.dtype)", axes)

    def emit(self, i: Instruction, arguments: list[Value], dtypes: list[torch.dtype]) -> Value:
        axes = _NO_AXES.union(*(a.axes for a in arguments))
        texts = [a.text for a in arguments]
        if i.op == "constant":
            return self.fresh(ops.literal(i.attrs[0], i.dtype), _NO_AXES)
        if i.op == "load":
            return self.load(i, arguments)
        if i.op == "indirect":
            return self.indirect(i, arguments)
        if i.op == "index":
            if i.attrs[0].constant is not None:
                return self.fresh(ops.literal(i.attrs[0].constant, i.dtype), _NO_AXES)
            value = self.index(i.attrs[0])
            return self.fresh(f"({value.text}).to(tl.int64)", value.axes)
        if i.op == "to":
            return self.fresh(ops.convert(texts[0], dtypes[0], i.dtype), axes)
        dtype = dtypes[-1]
        if not ops.supported(i.op, dtype):
            raise unsupported(
                "no-code", f"{i.op} of {dtype} has no Triton code", self.kernel.origin.where
            )
        if i.op == "div" and dtype is torch.float32 and arguments[1].axes < axes:
            return self.fresh(f"helpers.divide_by_few({texts[0]}, {texts[1]})", axes)
        return self.fresh(ops.call(i.op, dtype, texts), axes)

    def indirect(self, i: Instruction, arguments: list[Value]) -> Value:
        """Name an index that is a value, and assert that it is in range, as eager's kernels do,
        where it may not be."""
        symbol, extent, fault = i.attrs
        value, size = arguments[0], self.index(extent).text
        axes = value.axes
        if not fault.possible:
            at = self.fresh(f"{value.text}.to({'tl.int32' if self.short else 'tl.int64'})", axes)
            self.symbols[symbol] = at
            return at
        at = self.fresh(
            f"tl.where({value.text} < 0, {value.text} + {_factor(size)}, {value.text})", axes
        )
        mask = self.joined_mask(axes, arguments[1:])
        condition = f"({at.text} >= 0) & ({at.text} < {size})"
        message = repr(fault.message)
        self.line(
            f"tl.device_assert({condition}, {message}{'' if mask is None else f', mask={mask}'})"
        )
        self.asserts = True
        if self.short:
            at = self.fresh(f"{at.text}.to(tl.int32)", axes)
        self.symbols[symbol] = at
        return at

    # -- memory ------------------------------------------------------------------------------------

    def joined_mask(self, axes: Iterable[str], conditions: Sequence[Value]) -> str | None:
        present = [m for axis in sorted(axes) if (m := self.masks[axis]) is not None]
        present += [c.text for c in conditions]
        return " & ".join(present) or None

    def load(self, i: Instruction, conditions: list[Value]) -> Value:
        buffer, offset = i.attrs
        if buffer in self.numbers:
            return self.number(buffer, conditions)
        index = self.index(offset)
        axes = index.axes.union(*(c.axes for c in conditions))
        pointer = f"{buffer} + {summand(index.text)}"
        if axes != index.axes:
            pointer = f"tl.broadcast_to({pointer}, {self.shape(axes)})"
        end = self.end_with_margin(buffer, offset, i.dtype.itemsize) if "r" in axes else None
        mask = self.joined_mask(axes, conditions)
        if end is not None:
            mask = self.joined_mask(axes - {"r"}, [self.before(end), *conditions])
        masked = "" if mask is None else f", mask={mask}, other=0"
        hint = self.hint(buffer, False) if "r" in axes else ""
        return self.fresh(f"tl.load({pointer}{masked}{hint})", axes)

    def hint(self, buffer: str, stored: bool) -> str:
        """What the L2 cache is to keep: rows that a later stage reads, where all of them together
        do not fit."""
        if not self.reads_later:
            return ""
        later = any(buffer in names for names in self.reads_later[self.stage_number + 1 :])
        if later and not stored:
            return ', eviction_policy="evict_last"'
        first = not later and (
            stored or any(buffer in names for names in self.reads_later[: self.stage_number])
        )
        return ', eviction_policy="evict_first"' if first else ""

    def may_be_read(self, i: Instruction, stage: Stage) -> bool:
        """Whether a load needs no conditions: there is memory for all points, and these rule out
        none or few of them. Loads are as wide as they can be then, and those that do not depend on
        a loop leave it."""
        buffer, offset = i.attrs
        length, (low, high) = self.lengths[buffer], offset.bounds
        inside = (
            length is not None
            and low is not None
            and high is not None
            and low >= 0
            and high < length
        )
        if not inside or not offset.symbols.issubset((*self.kernel.loops, *stage.loops)):
            return False
        return all(holds_mostly(stage.body.instructions, k, offset.symbols) for k in i.args)

    def end_with_margin(self, buffer: str, offset: Expr, itemsize: int) -> int | None:
        """Where loads along the axis r may end instead, at a multiple of 16 bytes, so that they can
        be as wide: where rows begin at such multiples and have a margin. None where nothing is
        gained, or where rows are looked up by what was loaded along the axis, in whose margin there
        may be anything. What is loaded of the margin takes part in nothing: reductions and stores
        have the mask of the axis."""
        unit = WIDE_BYTES // itemsize
        if self.masks["r"] is None or len(self.inner_loops) != 1:
            return None
        (loop,), length = self.inner_loops, self.lengths[buffer]
        size = loop.extent.constant
        rest = offset - loop
        wide = (
            size is not None
            and size % unit
            and loop not in rest.symbols
            and "r" not in self.index(rest).axes
        )
        if (
            not wide
            or size is None
            or length is None
            or any(coefficient % unit for coefficient, _ in rest.terms)
        ):
            return None
        end = -(-size // unit) * unit
        highest = rest.bounds[1]
        return end if highest is not None and highest + end <= length else None

    def before(self, end: int) -> Value:
        """Whether the axis r is before a place."""
        key = ("before", self.inner_axis, end)
        if key not in self.known:
            self.known[key] = self.fresh(f"{self.inner_axis} < {end}", frozenset("r"))
        return self.known[key]

    def number(self, name: str, conditions: list[Value]) -> Value:
        """What the kernel is given in place of an address."""
        if not conditions:
            return Value(name, _NO_AXES)
        axes = _NO_AXES.union(*(c.axes for c in conditions))
        holds = " & ".join(c.text for c in conditions)
        return self.fresh(f"tl.where({holds}, {name}, 0).to({ops.TYPES[self.numbers[name]]})", axes)

    def store(self, store: Store, value: Value, axes: frozenset[str], stage: Stage) -> None:
        if store.buffer in self.rows:
            self.row_values[store.buffer] = value
            return
        if store.mode == "total":
            name = self.totals[store.buffer, store.index]
            self.line(f"{name} = {name} + {self.full(value).text}")
            return
        if store.scatters:
            raise unsupported("no-code", "a scatter has no Triton code", self.kernel.origin.where)
        index = self.index(store.index)
        pointer = f"{store.buffer} + {summand(index.text)}"
        if index.axes != axes:
            pointer = f"tl.broadcast_to({pointer}, {self.shape(axes)})"
        mask = self.joined_mask(axes, ())
        hint = self.hint(store.buffer, True) if stage.loops else ""
        self.line(
            f"tl.store({pointer}, {value.text}{'' if mask is None else f', mask={mask}'}{hint})"
        )
        self.held.pop(store.buffer, None)
        if self.blocks.persistent or not stage.loops:
            dtype = stage.body.instructions[store.value].dtype
            self.held[store.buffer] = store.index, stage.loops, dtype, value

    def stored(self, i: Instruction, stage: Stage) -> Value | None:
        """The value that a load would find where this thread has stored it, and that is still in a
        register."""
        if i.args or i.attrs[0] not in self.held:
            return None
        index, loops, dtype, value = self.held[i.attrs[0]]
        if i.attrs[1] != index or i.dtype is not dtype:
            return None
        beside = "r" not in value.axes and index.symbols.isdisjoint((*loops, *stage.loops))
        return value if beside or stage.loops == loops else None

    # -- index expressions -------------------------------------------------------------------------

    def index(self, e: Expr) -> Value:
        """The text of an index expression."""
        if e.constant is not None:
            return Value(str(e.constant), _NO_AXES)
        parts, axes = [], _NO_AXES
        for coefficient, atoms in e.terms:
            values = [self.atom(a) for a in atoms]
            axes = axes.union(*(v.axes for v in values))
            factors = [v.text for v in values]
            if coefficient != 1 or not factors:
                factors.append(str(coefficient))
            parts.append(" * ".join(factors))
        return Value(" + ".join(parts).replace("+ -", "- "), axes)

    def atom(self, atom: Expr) -> Value:
        if isinstance(atom, Symbol):
            if atom in self.symbols:
                return self.symbols[atom]
            return Value(self.sizes.setdefault(atom, f"size{len(self.sizes)}"), _NO_AXES)
        assert isinstance(atom, (FloorDiv, Mod, Max, Min))
        left, right = self.index(atom.left), self.index(atom.right)
        axes = left.axes | right.axes
        if isinstance(atom, (Max, Min)):
            function = "maximum" if isinstance(atom, Max) else "minimum"
            return Value(f"tl.{function}({left.text}, {right.text})", axes)
        low = atom.left.bounds[0]
        if low is None or low < 0:
            function = "floor_divide" if isinstance(atom, FloorDiv) else "floor_remainder"
            return Value(f"helpers.{function}({left.text}, {right.text})", axes)
        sign = "//" if isinstance(atom, FloorDiv) else "%"
        return Value(f"({_factor(left.text)} {sign} {_factor(right.text)})", axes)


def _rows_read_again(kernel: Kernel) -> list[set[str]]:
    """The large buffers that each stage reads along its loops; nothing where no two read the
    same."""
    large = {
        p.name
        for p in kernel.parameters
        if ((p.length and p.length.constant) or 0) * p.dtype.itemsize >= L2
    }
    read = [
        {i.attrs[0] for i in s.body.loads if not i.attrs[1].symbols.isdisjoint(s.loops)} & large
        for s in kernel.stages
    ]
    return read if len(set().union(*read)) < sum(map(len, read)) else []


def _elements_at_once(load: Instruction, stage: Stage) -> int:
    """How many neighbours of a row a thread loads at once: one where they do not begin at multiples
    of that."""
    unit, rest = WIDE_BYTES // load.dtype.itemsize, load.attrs[1] - stage.loops[-1]
    linear = len(stage.loops) == 1 and rest.symbols.isdisjoint(stage.loops)
    return unit if linear and not any(coefficient % unit for coefficient, _ in rest.terms) else 1


def _identifier(name: str) -> str:
    name = re.sub(r"\W", "_", name)
    if not name or name[0].isdigit() or keyword.iskeyword(name) or name in _TAKEN:
        name = f"kernel_{name}"
    return name


def _factor(text: str) -> str:
    """A text that may stand beside an operator that binds closely."""
    return text if re.fullmatch(r"\w+", text) else f"({text})"


def summand(text: str) -> str:
    """An index beside a pointer: summed before it is added."""
    return text if re.fullmatch(r"\w+", text) else f"({text})"


def fits_short(kernel: Kernel, slack: int) -> bool:
    """Whether 32 bits are enough for all index arithmetic, where blocks go beyond the end by less
    than `slack`."""
    lengths = [p.length.constant if p.length is not None else None for p in kernel.parameters]
    counts = [product(s.extent for s in kernel.loops).constant]
    counts += [inner_size(stage).constant for stage in kernel.stages]
    if any(n is None or n + slack >= SHORT for n in (*lengths, *counts)):
        return False
    stages = [*kernel.stages]
    if kernel.product is not None:
        if not all(map(_is_short, (kernel.product.left.index, kernel.product.right.index))):
            return False
        stages += [Stage((), body) for body in kernel.product.prologues if body is not None]
    return all(_is_short(e) for stage in stages for e in _indices(stage))


def _indices(stage: Stage) -> Iterable[Expr]:
    yield from (store.index for store in stage.stores)
    for i in stage.body.instructions:
        if i.op in ("load", "index"):
            yield i.attrs[-1]
        elif i.op == "indirect":
            yield i.attrs[1]


def _is_short(e: Expr) -> bool:
    """Whether an expression and what it is summed from are less than 2**31 in magnitude."""
    total = 0
    for coefficient, atoms in e.terms:
        size = abs(coefficient)
        for atom in atoms:
            low, high = atom.bounds
            if low is None or high is None:
                return False
            if isinstance(atom, (FloorDiv, Mod, Max, Min)) and not (
                _is_short(atom.left) and _is_short(atom.right)
            ):
                return False
            size *= max(abs(low), abs(high))
        total += size
    return total < SHORT


def _short_limit(kernel: Kernel, slack: int) -> Expr | None:
    """What must be less than 2**31 for 32 bits to be enough: the largest of what is compared,
    divided, or an index. Sums and products may overflow on the way to a result that fits. None
    where that is not known."""
    lengths = [p.length for p in kernel.parameters]
    extents = [s.extent for s in kernel.loops] + [
        s.extent for stage in kernel.stages for s in stage.loops
    ]
    counts = [product(s.extent for s in kernel.loops), *map(inner_size, kernel.stages)]
    if any(length is None for length in lengths):
        return None
    needed = [n + slack for n in (*lengths, *counts) if n is not None]
    for e in (*extents, *(e for stage in kernel.stages for e in _indices(stage))):
        size = _magnitude(e, needed)
        if size is None:
            return None
        needed.append(size)
    return functools.reduce(maximum, needed)


def _magnitude(e: Expr, needed: list[Expr]) -> Expr | None:
    """A bound of an expression's magnitude, over sizes; what its operations need besides is added
    to `needed`."""
    total = integer(0)
    for coefficient, atoms in e.terms:
        size = integer(abs(coefficient))
        for atom in atoms:
            factor = _atom_magnitude(atom, needed)
            if factor is None:
                return None
            size = size * factor
        total = total + size
    return total


def _atom_magnitude(atom: Expr, needed: list[Expr]) -> Expr | None:
    if isinstance(atom, Symbol):
        if atom.kind != "size":
            return _magnitude(atom.extent, needed)
        return atom if atom.lower >= 0 else None
    assert isinstance(atom, (FloorDiv, Mod, Max, Min))
    left, right = _magnitude(atom.left, needed), _magnitude(atom.right, needed)
    if left is None or right is None:
        return None
    needed += [left, right]
    if isinstance(atom, (Max, Min)):
        return left + right
    least = atom.right.bounds[0]
    if least is None or least < 1:
        return None
    return left if isinstance(atom, FloorDiv) else right
