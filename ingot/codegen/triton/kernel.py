"""One readable Triton kernel for each kernel of the schedule.

A block of threads takes some points of the outer loops, the axis `x`; inner loops are the axis `r`
beside it, whole where the schedule says so (`schedule/blocks.py`), else in steps. A tile has two
axes of outer loops, `y` and `x`.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ingot.codegen.triton import ops
from ingot.codegen.triton.accesses import (
    AccessWriter,
    all_of,
    elements_at_once,
    reads_along,
    with_mask,
)
from ingot.codegen.triton.block import NO_AXES, Value, bracketed, joined_axes
from ingot.codegen.triton.conditions import is_left_out
from ingot.codegen.triton.forms import Form, general_form
from ingot.codegen.triton.rewrite import in_first_steps, with_cheaper_ops
from ingot.errors import unsupported
from ingot.loops.expr import Expr, Symbol, integer
from ingot.loops.ir import Instruction
from ingot.schedule.blocks import (
    Blocks,
    begins_with_shared_row,
    inner_size,
    power_of_two,
    reads_weights,
)
from ingot.schedule.kernel import Accumulate, Kernel, Parameter, Stage, loans, scaling
from ingot.schedule.online import POWERS, in_one_pass

MOST_STEPS_AHEAD = 2  # that a block loads before it computes ...
SHARED = 48 << 10  # ... into so many bytes of shared memory
REST = 4  # what whole steps leave of a row is taken in steps of which so many make a whole one
_RESERVED = {"tl", "triton", "libdevice", "helpers"}
XR = frozenset("xr")
Body = tuple[str, tuple[tuple[str, int], ...], int, int]


@dataclass(frozen=True)
class TritonKernel:
    """The text of a kernel and how it is launched.

    It takes the buffers of `parameters`, then the values of `sizes`, and is launched in `grid`
    blocks of `warps` warps; `constants` are its block sizes, `stages` how far a loop reads ahead,
    or 0. Index arithmetic and sizes are in 32 bits if it is `short`, else in 64.

    With a `table` it takes the address of one instead, of 64-bit integers: the first block of each
    set of buffers, in `table` places, of which those that are left over hold the largest integer;
    and a row for each set, of its first block, its number of points, and the address, or the
    number, of each parameter.
    """

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


def write_kernel(
    kernel: Kernel, form: Form | None = None, sizes: Sequence[Symbol] = ()
) -> TritonKernel:
    """The Triton code of a form, by default the general one, of a kernel.

    Rows, if the kernel has any, must fit registers. The sizes that it takes begin with `sizes`.
    Raises Unsupported for what has no code.
    """
    if kernel.members:
        from ingot.codegen.triton.members import write_members

        return write_members(kernel)
    return writer_of(kernel, form, sizes).write()


def writer_of(kernel: Kernel, form: Form | None = None, sizes: Sequence[Symbol] = ()) -> Writer:
    """What writes a kernel that has no members."""
    kernel = replace(kernel, stages=tuple(map(with_cheaper_ops, kernel.stages)))
    form = form or general_form(kernel)
    writer: type[Writer] = Writer
    if kernel.product is not None:
        from ingot.codegen.triton.attention import AttentionWriter
        from ingot.codegen.triton.product import ProductWriter

        writer = ProductWriter if kernel.product.weights is None else AttentionWriter
    elif kernel.depthwise is not None:
        from ingot.codegen.triton.depthwise import DepthwiseWriter

        writer = DepthwiseWriter
    elif not form.blocks.persistent:
        kernel = in_one_pass(kernel)
    return writer(kernel, form.blocks, form.short, sizes)


class Writer(AccessWriter):
    """Writes the stages of a kernel for one block of threads."""

    def __init__(
        self, kernel: Kernel, blocks: Blocks, short: bool, sizes: Sequence[Symbol] = ()
    ) -> None:
        super().__init__(kernel, blocks, short, sizes)
        self.scalars: dict[str, Value] = {}
        self.asserts = False
        self.early: set[tuple[object, ...]] = set()  # loads at the beginning

    def write(self) -> TritonKernel:
        kernel, name = self.kernel, identifier(self.kernel.name)
        self.skip()
        self.outer()
        self.stages()
        if kernel.run:
            self.end_of_run()
        if kernel.table:
            parameters = ["table"]
        else:
            parameters = [p.name for p in kernel.parameters]
        parameters += self.sizes.values()
        for block in self.constants:
            parameters.append(f"{block}: tl.constexpr")
        lines = ["@triton.jit", f"def {name}({', '.join(parameters)}):"]
        if kernel.origin.where:
            lines.append(f"    # {kernel.origin.where}")
        return TritonKernel(
            name,
            "\n".join([*lines, *self.lines]) + "\n",
            kernel.parameters,
            tuple(self.sizes),
            tuple(self.constants.items()),
            self.grid,
            self.blocks.warps,
            self.asserts,
            self.short,
            table=kernel.table,
        )

    def skip(self) -> None:
        """Nothing is done where elements are to be multiplied by 1 in their place."""
        scaled = scaling(self.kernel)
        if scaled is not None:
            positions = scaled.source, scaled.factor, scaled.target
            source, factor, target = (self.kernel.parameters[k].name for k in positions)
            same = f"{source}.to(tl.int64) == {target}.to(tl.int64)"
            self.line(f"if ({same}) & (tl.load({factor} + {scaled.offset}) == 1):")
            self.line("    return")

    # -- rows one after the other ------------------------------------------------------------------

    def outer(self) -> None:
        if self.kernel.run:
            self.constants["XBLOCK"] = self.blocks.points
            self.in_runs()
        else:
            super().outer()

    def in_runs(self) -> None:
        """The points of this block, one or some after the other.

        What belongs to columns stays in registers.
        """
        run, stages = self.kernel.run, [stage for stage in self.kernel.stages if stage.loops]
        self.line(f"block = {self.wide(self.program)}")
        self.inner_loops = stages[0].loops
        self.inner(stages[0], inner_size(stages[0]))
        for stage in stages:
            self.before_steps(stage, stage.loops)
            for store in stage.stores:
                if store.mode == "total":
                    dtype = stage.body.instructions[store.value].dtype
                    name = self.totals[store.buffer, store.index] = f"t{len(self.totals)}"
                    self.line(f"{name} = tl.full({self.shape('xr')}, 0, {ops.TYPES[dtype]})")
        steps = self.steps_ahead()
        ahead = ""
        if steps > 1:
            ahead = f", num_stages={steps}"
        self.line(f"for start in tl.range(0, {run}, XBLOCK{ahead}):")
        self.indent += 1
        self.line(f"x = block * {run} + start + tl.arange(0, XBLOCK)[:, None]")
        self.masks["x"] = None
        self.split("x", "x", self.kernel.loops)

    def before_steps(self, stage: Stage, axes: Sequence[Symbol]) -> None:
        """Load what does not change from step to step: what depends on `axes` alone."""
        changing = self.written | self.rows.keys() | self.numbers.keys()
        for i in stage.body.loads:
            if not i.args and i.attrs[1].symbols.issubset(axes) and i.attrs[0] not in changing:
                self.instruction(i, [], stage)

    def steps_ahead(self) -> int:
        """In how many steps of a run a block may be: it computes one and loads the others.

        One where it loads what it has stored before, or where there is no memory for more.
        """
        stored: dict[str, set[tuple[Expr, tuple[Symbol, ...]]]] = {}
        elements = self.blocks.points * self.blocks.inner
        loaded: dict[tuple[str, Expr], int] = {}
        for stage in self.kernel.stages:
            for i in stage.body.loads:
                name, index = i.attrs
                loops = loops_along(index, stage)
                if name in stored and (i.args or stored[name] != {(index, loops)}):
                    return 1
                if loops and name not in (stored.keys() | self.rows.keys()):
                    loaded[name, index] = elements * i.dtype.itemsize
            for store in stage.stores:
                place = store.index, loops_along(store.index, stage)
                stored.setdefault(store.buffer, set()).add(place)
        return 1 + min(MOST_STEPS_AHEAD, SHARED // max(1, sum(loaded.values())))

    def end_of_run(self) -> None:
        """Store the sums of columns, at the place that all points of the run name."""
        self.indent -= 1
        self.line(f"first = block * {self.kernel.run}")
        self.split("first", "", self.kernel.loops)
        mask = with_mask(self.masks["r"])
        for (buffer, index), name in self.totals.items():
            pointer = f"{buffer} + {bracketed(self.index(index).text)}"
            self.line(f"tl.store({pointer}, tl.sum({name}, 0)[None, :]{mask})")

    # -- stages ------------------------------------------------------------------------------------

    def stages(self) -> None:
        """All stages, with a barrier where other threads of the block have read or written."""
        touched: set[str] = set()
        stored: set[str] = set()
        parameters = self.kernel.parameters
        lent = {}
        for k, to in loans(parameters):
            lent[parameters[k].name] = parameters[to].name
        self.ask_early()
        for number, stage in enumerate(self.kernel.stages):
            self.stage_number = number
            loads = set()
            for i in stage.body.loads:
                name = i.attrs[0]
                if name not in self.rows and self.stored(i, stage) is None:
                    loads.add(lent.get(name, name))
            stores = {store.buffer for store in stage.stores} - self.rows.keys()
            if loads & stored or stores & touched:
                self.line("tl.debug_barrier()")
            touched |= loads | stores
            stored |= stores
            self.stage(stage)

    def ask_early(self) -> None:
        """Load first what products of a row read of memory, and what is added to their sums.

        A block would wait for the row, or for the sums, and then for that.
        """
        if not self.blocks.persistent or self.kernel.run or not reads_weights(self.kernel):
            return
        for stage in self.kernel.stages:
            if stage.loops and not begins_with_shared_row(self.kernel):
                continue
            if stage.loops:
                self.inner_loops = stage.loops
                self.inner(stage, inner_size(stage))
            for i in stage.body.loads:
                if self.may_be_early(i, stage):
                    key = self.key(i, [], stage)
                    self.known[key] = self.emit(i, [], [])
                    self.early.add(key)

    def may_be_early(self, i: Instruction, stage: Stage) -> bool:
        """Whether a load of what belongs to points or rows finds at the kernel's beginning what it
        would find in its place."""
        name, index = i.attrs
        if i.args or name in self.rows or name in self.numbers:
            return False
        loops = (*self.kernel.loops, *stage.loops)
        if not reads_along(index, loops) or not index.symbols.issubset(loops):
            return False
        if name not in self.written:
            return True
        places = {load.attrs[1] for load in self.kernel.loads if load.attrs[0] == name}
        places.update(store.index for store in self.kernel.stores if store.buffer == name)
        return len(places) == 1 and index.symbols.issubset(self.kernel.loops)

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
        if block == self.blocks.inner:
            name = "r"
        else:
            name = f"r{block}_"
        self.inner_block = f"{name.upper()}BLOCK"
        self.constants[self.inner_block] = block
        self.inner_axis = name
        if ("inner", name) not in self.known:
            self.known["inner", name] = Value(name, frozenset("r"))
            self.line(f"{name} = {self.wide(f'tl.arange(0, {self.inner_block})')}[None, :]")
        self.mask("r", size, block, name)
        self.split(name, "r", stage.loops)

    def looped(self, stage: Stage, size: Expr) -> None:
        """A stage whose inner loops are taken in steps: whole ones without masks, then a part."""
        self.inner_block = "RBLOCK"
        self.before_steps(stage, self.kernel.loops)
        accumulators = self.accumulators(stage)
        count, block = size.constant or 0, self.blocks.inner
        whole = count // block * block
        if self.kernel.vector is None and 0 < whole < count:
            divisor = self.rest_divisor(accumulators, block)
            self.steps(in_first_steps(stage, whole), "0", integer(whole), block, accumulators)
            self.steps(stage, str(whole), size, block // divisor, accumulators)
        else:
            self.steps(stage, "0", size, block, accumulators)
        for a, names in accumulators:
            self.reduce(a, names, self.partial_dtype(a, stage))

    def rest_divisor(self, accumulators: Sequence[tuple[Accumulate, list[str]]], block: int) -> int:
        """How many times as short as a step those are over what whole steps leave of a row.

        1 where a reduction's accumulator has an element for each of a step.
        """
        if not all(names[0].endswith("_top") for _, names in accumulators):
            return 1
        return min(REST, self.group if accumulators else block)

    def steps(
        self,
        stage: Stage,
        begin: str,
        end: Expr,
        block: int,
        accumulators: Sequence[tuple[Accumulate, list[str]]],
    ) -> None:
        """A loop over steps of a stage's inner loops, as one axis."""
        divisor = self.blocks.inner // block
        if divisor == 1:
            self.inner_block = "RBLOCK"
        else:
            self.inner_block = f"REST{divisor}"
        self.constants |= {"RBLOCK": self.blocks.inner, self.inner_block: block}
        number, self.count = self.count, self.count + 1
        known, self.known = self.known, dict(self.known)
        end_text = self.index(end).text
        self.line(f"for start{number} in range({begin}, {end_text}, {self.inner_block}):")
        self.indent += 1
        name = self.inner_axis = f"r{number}"
        places = self.wide(f"tl.arange(0, {self.inner_block})")
        self.line(f"{name} = start{number} + {places}[None, :]")
        self.mask("r", end, block, name)
        self.split(name, "r", stage.loops)
        values = self.body(replace(stage, reductions=()), frozenset("xr"))
        for a, (_, names) in zip(stage.reductions, accumulators):
            self.accumulate(a, names, self.reduced(a, values, stage), stage)
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
            value, dtype = self.reduced(a, values, stage, True), self.partial_dtype(a, stage)
            if self.masks["r"] is not None:
                text = self.in_range(value.text, ops.identity(a.kind, dtype))
                value = self.fresh(text, value.axes)
            names = [value.text]
            if a.kind.startswith("arg"):
                names.append(self.position())
            self.reduce(a, names, dtype, value.axes)
        return values

    # -- reductions --------------------------------------------------------------------------------

    def reduced(
        self, a: Accumulate, values: Sequence[Value], stage: Stage, at_once: bool = False
    ) -> Value:
        """What a reduction is of, in the dtype of its partial results. Of one that is done at once,
        a row that all points share is left alone."""
        dtype, i = self.partial_dtype(a, stage), stage.body.instructions[a.value]
        if dtype is i.dtype:
            value = values[a.value]
            if at_once and a.kind == "sum" and value.axes == frozenset("r"):
                return value
            return self.full(value)
        value = self.full(values[i.args[0]])
        return self.fresh(ops.convert(value.text, torch.bool, dtype), value.axes)

    def partial_dtype(self, a: Accumulate, stage: Stage) -> torch.dtype:
        """That of a reduction's partial results. Conditions are counted in 32 bits where these are
        enough."""
        body = stage.body.instructions
        i = body[a.value]
        if a.kind == "sum" and i.op == "to" and body[i.args[0]].dtype is torch.bool:
            if i.dtype is torch.int64 and self.short:
                return torch.int32
        return i.dtype

    def in_range(self, text: str, otherwise: str) -> str:
        """A value where the axis r has elements."""
        mask = self.masks["r"]
        if mask is None:
            return text
        return f"tl.where({mask}, {text}, {otherwise})"

    def position(self) -> str:
        """The number of each element among those that are reduced."""
        return f"tl.broadcast_to({self.inner_axis}.to(tl.int64), {self.shape('xr')})"

    def accumulators(self, stage: Stage) -> list[tuple[Accumulate, list[str]]]:
        """The variables of partial results. Those of powers have the largest elements besides."""
        powers = {a.value: f"{a.name}_top" for a in stage.reductions if a.kind == POWERS}
        accumulators = []
        for a in stage.reductions:
            if a.kind == "max" and a.value in powers:
                names = [powers[a.value]]
            else:
                names = self.accumulator(a, stage)
            accumulators.append((a, names))
        return accumulators

    def accumulator(self, a: Accumulate, stage: Stage) -> list[str]:
        """The variables of a partial result for each element of a step, holding that of nothing."""
        dtype = self.partial_dtype(a, stage)
        if a.kind == POWERS:
            self.group, self.wide_group = self.group_of_powers(stage)
            shape = f"[XBLOCK, RBLOCK // {self.group}]"
            names = [f"{a.name}_top", f"{a.name}_all"]
            for name, number in zip(names, ('float("-inf")', 0)):
                self.line(f"{name} = tl.full({shape}, {number}, {ops.TYPES[dtype]})")
            return names
        names, shape = [f"{a.name}_all"], self.shape("xr")
        start = ops.identity(a.kind, dtype)
        self.line(f"{names[0]} = tl.full({shape}, {start}, {ops.TYPES[dtype]})")
        if a.kind.startswith("arg"):
            names.append(f"{a.name}_at")
            self.line(f"{names[1]} = tl.full({shape}, {2**63 - 1}, tl.int64)")
        return names

    def group_of_powers(self, stage: Stage) -> tuple[int, bool]:
        """How many elements a partial result of powers is of, and whether they are loaded at once.

        Those are the elements of a step that a thread has, or has loaded at once, if more than one.
        """
        loads = []
        for i in stage.body.loads:
            if reads_along(i.attrs[-1], stage.loops):
                loads.append(i)
        each = max(1, self.blocks.inner * self.blocks.points // (32 * self.blocks.warps))
        if self.kernel.vector is not None or not loads:
            return 1, False
        together = min(elements_at_once(i, stage) for i in loads)
        if together > 1:
            return (min(together, each), True)
        return (each, False)

    def accumulate(self, a: Accumulate, names: list[str], value: Value, stage: Stage) -> None:
        dtype = self.partial_dtype(a, stage)
        variables = ", ".join(names)
        if names[0].endswith("_top"):
            if a.kind == POWERS:
                masked = self.in_range(value.text, 'float("-inf")')
                group = self.group * self.constants[self.inner_block] // self.constants["RBLOCK"]
                arguments = f"{variables}, {masked}, {group}, {self.wide_group}"
                self.line(f"{variables} = helpers.add_powers({arguments})")
        elif len(names) == 2:
            masked = self.in_range(value.text, ops.identity(a.kind, dtype))
            arguments = f"{variables}, {masked}, {self.position()}"
            self.line(f"{variables} = helpers.{_FURTHER[a.kind]}({arguments})")
        else:
            total = ops.combine(a.kind, dtype, names[0], value.text)
            self.line(f"{names[0]} = {self.in_range(total, names[0])}")

    def reduce(
        self, a: Accumulate, names: list[str], dtype: torch.dtype, axes: frozenset[str] = XR
    ) -> None:
        """Finish a reduction of a value along these axes: its result becomes the scalar."""
        variables = ", ".join(names)
        if a.kind in _FURTHER:
            ignored, at = f"{a.name}_value", f"{a.name}_position"
            self.line(f"{ignored}, {at} = tl.reduce(({variables}), 1, helpers.{_FURTHER[a.kind]})")
            result = f"{at}[:, None]"
        elif a.kind == POWERS:
            result = f"helpers.join_powers({variables})"
        else:
            result = ops.reduce_block(a.kind, dtype, names[0])
            if a.dtype is not dtype:
                result = ops.convert(f"({result})", dtype, a.dtype)
        self.line(f"{a.name} = {result}")
        self.scalars[a.name] = Value(a.name, axes - {"r"})

    # -- instructions ------------------------------------------------------------------------------

    def instruction(self, i: Instruction, values: list[Value], stage: Stage) -> Value:
        arguments = [values[k] for k in i.args]
        if i.op == "scalar":
            return self.scalars[i.attrs[0]]
        if i.op == "load":
            if i.attrs[0] in self.rows:
                row = self.row_values[i.attrs[0]]
                return self.with_conditions(row, arguments, len(values), stage)
            value = self.stored(i, stage)
            if value is not None:
                return value
            if arguments and self.may_be_read(i, stage):
                everywhere = self.instruction(i._replace(args=()), values, stage)
                return self.with_conditions(everywhere, arguments, len(values), stage)
        key = self.key(i, arguments, stage)
        changes = i.op == "indirect" or (i.op == "load" and i.attrs[0] in self.written)
        if (changes and key not in self.early) or key not in self.known:
            dtypes = []
            for k in i.args:
                dtypes.append(stage.body.instructions[k].dtype)
            self.known[key] = self.emit(i, arguments, dtypes)
        return self.known[key]

    def key(self, i: Instruction, arguments: Sequence[Value], stage: Stage) -> tuple[object, ...]:
        """What tells the value of an instruction from others'."""
        attrs: tuple[object, ...] = i.attrs
        if i.op == "constant":
            attrs = (repr(i.attrs[0]),)
        loops: tuple[Symbol, ...] = ()
        if i.op in ("load", "index"):
            loops = loops_along(i.attrs[-1], stage)
        return (i.op, tuple(a.text for a in arguments), i.dtype, attrs, loops)

    def with_conditions(
        self, value: Value, conditions: list[Value], at: int, stage: Stage
    ) -> Value:
        """A value that was loaded without its conditions: 0 where these do not hold.

        It is left as it is where nothing reads it outside of the conditions.
        """
        if not conditions or is_left_out(stage, at):
            return value
        text = f"tl.where({all_of(conditions)}, {value.text}, 0).to({value.text}.dtype)"
        return self.fresh(text, value.axes | joined_axes(conditions))

    def emit(self, i: Instruction, arguments: list[Value], dtypes: list[torch.dtype]) -> Value:
        axes = joined_axes(arguments)
        texts = [a.text for a in arguments]
        if i.op == "constant":
            return self.fresh(ops.literal(i.attrs[0], i.dtype), NO_AXES)
        if i.op == "load":
            return self.load(i, arguments)
        if i.op == "indirect":
            return self.indirect(i, arguments)
        if i.op == "index":
            if i.attrs[0].constant is not None:
                return self.fresh(ops.literal(i.attrs[0].constant, i.dtype), NO_AXES)
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
        """Name an index that is a value.

        Where it may be out of range that is asserted, as in eager's kernels.
        """
        symbol, extent, fault = i.attrs
        value, size = arguments[0], self.index(extent).text
        axes, at = value.axes, value
        if fault.possible:
            wrapped = f"tl.where({value.text} < 0, {value.text} + {bracketed(size)}, {value.text})"
            at = self.fresh(wrapped, axes)
            mask = with_mask(self.joined_mask(axes, arguments[1:]))
            condition = f"({at.text} >= 0) & ({at.text} < {size})"
            self.line(f"tl.device_assert({condition}, {fault.message!r}{mask})")
            self.asserts = True
        if self.short:
            at = self.fresh(f"{at.text}.to(tl.int32)", axes)
        elif not fault.possible:
            at = self.fresh(f"{at.text}.to(tl.int64)", axes)
        self.symbols[symbol] = at
        return at


_FURTHER = {"argmax": "further_up", "argmin": "further_down"}


def loops_along(index: Expr, stage: Stage) -> tuple[Symbol, ...]:
    """The stage's loops, if an index depends on one of them."""
    if reads_along(index, stage.loops):
        return stage.loops
    return ()


def identifier(name: str) -> str:
    name = re.sub(r"\W", "_", name)
    if not name or name[0].isdigit() or keyword.iskeyword(name) or name in _RESERVED:
        name = f"kernel_{name}"
    return name
