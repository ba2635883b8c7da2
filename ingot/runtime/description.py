"""A plan and its machine code as the description that a native program is made of.

The description that `ingot.native._native.Program` takes is one tuple, so that it can be printed
and compared:

===========  =======================================================================================
inputs       how many tensors the program takes, and ints after them
symbols      ((input, "size" | "stride", dimension) or (input, "value", 0), ...): where each size
             symbol is read at the start of a call; (-1, "bound", 0): a library call binds it
expressions  (postfix steps, ...): integers over the symbols (see `loops.postfix`), evaluated when
             the symbols change. All sizes, strides, offsets and extents below are positions in the
             table of values: first the symbols, then the expressions.
constants    (tensor, ...)
buffers      ((place, dtype, sizes, strides, position), ...); the place is "input" (its position
             among the inputs), "constant" (among the constants), "arena" or "small" (its offset in
             bytes, among the values), "output", "own" or "library" (0); a sixth entry says whether
             an input that is not aligned to 16 bytes is copied first, a seventh whether it is in
             the CPU's memory whatever the device: a launch is then given the number in it
views        ((buffer, dtype, sizes, strides, offset), ...): arguments of library calls, and outputs
steps        ("allocate", buffer): a fresh tensor | ("allocate", buffer, lender): in the memory of
             an input that dies with the next step, if only we hold it | ("kernel", address,
             buffers, extent, work, unit, scratch, errors, parts, varying work, offsets) | ("call",
             function, items, keywords, targets, written) | the same with (stage, bindings, checks)
             | ("release", buffers): the references to library results are dropped | ("launch",
             buffers, offsets, sizes, forms): of a CUDA kernel | ("launch parts", buffers, offsets,
             extents, places, points, kernel, threads, shared, hidden) | ("product", type, (left,
             right, out), conditions, call): of views of matrices, or of batches of them
outputs      ("buffer", buffer) the tensor itself | ("view", view) | ("alone", view): of memory that
             no other output shows, and so no view to autograd | ("copy", view) | ("int", value)
arena        the position of the arena's size in bytes among the values
byte         torch.uint8, the arena's dtype
owner        what must live as long as the program: the machine code
device       the torch.device of all tensors
stages       (number, ...) of each expression: 0 where it follows from the inputs, else that of the
             call that binds the last of its symbols
frugal       whether the arena is made anew for each call
peak         the position of the bytes that a call takes at once: where they are many, memory of
             what dies is held for further results (see native/heap.h)
joined       the position of the arena's size with the "small" buffers in it ...
most joined  ... and the most bytes of such an arena: if they are more, each small buffer has memory
             of its own
traces from  the first step that writes an input or has an effect
names        of each step: what profilers call it, None for one that they do not see
donated      ((buffer, text), ...): inputs whose memory the program takes where it may, and how
             errors call each argument
===========  =======================================================================================

Kernel. `work` is nanoseconds per point on one core, unless `varying work` is the position of its
picoseconds; `unit` is the multiple of points that a thread's share is rounded to, `scratch` the
position of the bytes that each thread needs, or -1. `parts` are the extents of a launch over
several sets of buffers (which `buffers` holds one after the other), or empty; `offsets`, which may
be empty as well, say at which byte of each buffer its part of the memory begins.

Launch. `kernel` is a result of `_native.load_cuda`; the buffers, the values of `sizes` and `hidden`
null pointers are its parameters, or, over several sets of buffers, a table of them (see
`codegen.triton.kernel.TritonKernel`), with `places` for their first blocks, of `points` each;
`shared` are the bytes of shared memory of a block. Each of the forms is (grid, conditions, kernel,
threads, shared, hidden), with the position of the number of its blocks; the first is launched whose
conditions, (value, number), hold: the value is not greater. In place of the last four there may be
a callable that loads and keeps the kernel and returns them. It is called when the form is first
launched.

Product. It is cuBLAS's if of all `conditions`, (function, value), the function returns the value,
and else the `call`.

Call. An item is ("object", anything), ("int", value), ("buffer", buffer), ("view", view),
("list", items) or ("tuple", items); `keywords` names the last items (None: none); `targets` are the
buffers that the results become (-1: nobody uses it); `written` are those written through out=,
which must not be resized. A call with a stage gives symbols their values: `bindings` are (symbol,
position among the results, dimension or -1 for the result itself, least value, greatest value). The
expressions of its stage are evaluated then, and the `checks`, (left, "==" | "!=" | "<" | "<=",
right, message) of values, must hold.

Kernel ABI: `int32_t kernel(void *const *buffers, const int64_t *sizes, int64_t begin, int64_t end,
void *scratch)`. `sizes` begins with the values of the size symbols; [begin, end) are points of the
collapsed parallel loops; `scratch` is 64-byte aligned and private to the thread, which may call it
for several pieces; what it keeps there from one to the next begins with a word that is 0 before the
first. It returns 0, or 1 + k for the k-th of `errors`, each (exception type, message).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from ingot.codegen.perf_map import name_code
from ingot.errors import CompilerBug
from ingot.loops.expr import Expr, Symbol, as_expr, integer
from ingot.loops.ir import Buffer, Fault, Library, View
from ingot.loops.lowering import cost
from ingot.loops.postfix import postfix
from ingot.runtime.entry_points import called_for
from ingot.runtime.step_names import MEMORY_STEPS, step_names
from ingot.runtime.traces import first_trace, first_write, mutated_inputs, returned_buffers
from ingot.schedule.kernel import AnyKernel
from ingot.schedule.memory import JOINED_BYTES
from ingot.schedule.plan import KernelStep, LibraryStep, Plan
from ingot.sequences import at, present
from ingot.torch_private import aten, increment_version

_WITH_OUT = ("default", "out")
_ENTRY_POINTS = {
    **dict.fromkeys("mm addmm bmm baddbmm gather index_select".split(), _WITH_OUT),
    **dict.fromkeys("index_add index_copy scatter_add".split(), _WITH_OUT),
    **dict.fromkeys("cumsum cumprod logcumsumexp logsumexp".split(), _WITH_OUT),
    "scatter": ("src", "src_out", "value", "value_out"),
    **dict.fromkeys("sort topk convolution".split(), ("default",)),
    "_scaled_dot_product_flash_attention": ("default",),
    "_scaled_dot_product_efficient_attention": ("default",),
    "_scaled_dot_product_cudnn_attention": ("default",),
    **{name: _WITH_OUT for name, _ in cost.FUNCTIONS if hasattr(torch, name)},
}
# Ops whose entry point in torch takes the same arguments as their overloads, and is reached sooner:
# an overload object parses its arguments in Python and again in pybind, half a microsecond more.
_FASTER: dict[Any, Any] = {}
for _name, _overloads in _ENTRY_POINTS.items():
    for _overload in _overloads:
        _FASTER[getattr(getattr(aten, _name), _overload)] = getattr(torch, _name)


def faster(op: Any) -> Any:
    """An entry point of torch's that does what an op does, and is reached sooner, if there is
    one."""
    return _FASTER.get(op)


# places whose tensors are let go when they are dead
_RELEASED = ("library", "own", "small", "input")
# places of which each call makes a tensor
_ALLOCATED = ("output", "own", "small")

Row = tuple[Any, ...]


class _Code(NamedTuple):
    """What a launch says of its kernel's code.

    `unit` is the multiple of points that a thread's share is rounded to, `scratch_bytes` the
    position of the bytes that it needs."""

    address: Any
    unit: int
    scratch_bytes: int
    errors: tuple[tuple[type[Exception], str], ...]


class Description:
    """Numbers the values, buffers and views of a plan in the order of their first use."""

    def __init__(self, plan: Plan, compiled: Any, device: torch.device) -> None:
        graph = plan.graph
        self.plan, self.compiled, self.device = plan, compiled, device
        self.symbols = {symbol: number for number, (symbol, *_) in enumerate(graph.symbols)}
        self.constants = dict(zip(graph.constants, itertools.count()))
        self.expressions: dict[Expr, int] = {}
        self.buffers: dict[str, int] = {}
        self.buffer_rows: list[Row] = []
        self.views: dict[Row, int] = {}
        self.allocated: set[str] = set()
        self.codes: dict[AnyKernel, _Code] = {}
        self.first_write = first_write(plan)
        # of each native step: the step of the plan that it belongs to
        self.plan_steps: list[int | None] = []
        self.stages: dict[Symbol, int] = {}  # the call that binds a symbol: 1, 2, ...
        stage = 0
        for step in plan.steps:
            if isinstance(step, LibraryStep) and step.node.binds:
                stage += 1
                for symbol, *_ in step.node.binds:
                    self.stages[symbol] = stage

    def build(self) -> Row:
        graph = self.plan.graph
        arena, peak = self.value(self.plan.arena_bytes), self.peak()
        joined = self.value(self.plan.joined_bytes)
        steps: list[Row] = []
        # what is written has no elements, or gets its own value
        if self.first_write is None:
            steps += self.version_step()
            self.plan_steps += [None] * len(steps)
        for position in range(len(self.plan.steps)):
            native_steps = self.steps(position)
            self.plan_steps += [position] * len(native_steps)
            steps += native_steps
        steps += self.allocations(
            returned_buffers(self.plan)
        )  # of what no step writes: empty tensors
        self.plan_steps += [None] * (len(steps) - len(self.plan_steps))
        outputs, names = self.outputs(), self.names(steps)
        name_code(steps, names)
        return (
            len(graph.inputs) + graph.integers,
            tuple((position, kind, dim) for _, position, kind, dim in graph.symbols),
            tuple(postfix(expr, self.symbols) for expr in self.expressions),
            tuple(graph.constants.values()),
            tuple(self.buffer_rows),
            tuple(self.views),
            tuple(steps),
            tuple(outputs),
            arena,
            torch.uint8,
            self.compiled,
            self.device,
            tuple(map(self.stage, self.expressions)),
            self.plan.frugal,
            peak,
            joined,
            JOINED_BYTES,
            self.traces_from(len(steps)),
            names,
            self.donated(),
        )

    def donated(self) -> tuple[Row, ...]:
        """The inputs that the caller gives up, as far as the program reads them."""
        rows = []
        for name, what in self.plan.graph.donated.items():
            if name in self.buffers:
                rows.append((self.buffers[name], what))
        return tuple(rows)

    def names(self, steps: Sequence[Row]) -> tuple[str | None, ...]:
        """What profilers call each native step."""
        known = step_names(self.plan)
        names: list[str | None] = []
        for (kind, *_), position in zip(steps, self.plan_steps, strict=True):
            name = MEMORY_STEPS.get(kind)
            if name is None and position is not None:
                name = known[position]
            names.append(name)
        return tuple(names)

    def traces_from(self, otherwise: int) -> int:
        """The first native step that leaves a trace of itself."""
        first = first_trace(self.plan, donations=False)  # which depend on the call
        for number, position in enumerate(self.plan_steps):
            if position is not None and position >= first:
                return number
        return otherwise

    def peak(self) -> int:
        """The position of the bytes that a call takes at once, as far as its inputs tell.

        Sizes that the program finds in the data count as the least that they can be: as a rule
        they are parts of sizes that the inputs have.
        """
        unknown = {symbol: symbol.bounds[0] or 0 for symbol in self.plan.graph.bound}
        return self.value(self.plan.peak_bytes.substitute(unknown))

    # -- values, buffers, views --------------------------------------------------------------------

    def value(self, expr: Expr | int) -> int:
        """The position of an integer in the table of values."""
        expr = as_expr(expr)
        if expr in self.symbols:
            return self.symbols[expr]  # type: ignore[index]
        return len(self.symbols) + self.expressions.setdefault(expr, len(self.expressions))

    def values(self, exprs: Iterable[Expr | int]) -> tuple[int, ...]:
        return tuple(map(self.value, exprs))

    def stage(self, *exprs: Expr) -> int:
        """When the values of expressions are known: 0 from the start, else after that call."""
        if not self.stages:
            return 0
        return max([self.stages.get(s, 0) for e in exprs for s in e.symbols], default=0)

    def kind(self, name: str) -> str:
        place = self.plan.places.get(name)
        if place:
            return place.kind
        return "output"

    def buffer(self, name: str) -> int:
        if name not in self.buffers:
            self.buffers[name] = len(self.buffers)
            buffer, kind, position = self.plan.graph.buffers[name], self.kind(name), 0
            if kind == "input":
                position = self.plan.places[name].position
            elif kind == "constant":
                position = self.constants[name]
            elif kind in ("arena", "small"):
                position = self.value(self.plan.places[name].offset or integer(0))
            geometry = self.values(buffer.sizes), self.values(buffer.strides)
            row = (kind, buffer.dtype, *geometry, position, *self.alignment(name))
            self.buffer_rows.append(row)
        return self.buffers[name]

    def buffer_numbers(self, names: Iterable[str]) -> tuple[int, ...]:
        return tuple(map(self.buffer, names))

    def view(self, view: View) -> int:
        row = (
            self.buffer(view.buffer),
            view.dtype,
            self.values(view.sizes),
            self.values(view.strides),
            self.value(view.offset),
        )
        return self.views.setdefault(row, len(self.views))

    def tensor(self, view: View) -> tuple[str, int]:
        """An item for a view: the buffer's own tensor, which costs nothing, where it shows all."""
        own_tensor = self.kind(view.buffer) not in ("arena", "small")
        if own_tensor and view == whole(self.plan.graph.buffers[view.buffer]):
            return "buffer", self.buffer(view.buffer)
        return "view", self.view(view)

    # -- steps -------------------------------------------------------------------------------------

    def steps(self, position: int) -> list[Row]:
        """The native steps of one step of the plan.

        Its results are allocated before, what is dead is released behind.
        """
        step = self.plan.steps[position]
        if isinstance(step, KernelStep):
            steps = [*self.allocations(step.arguments), self.kernel(step)]
        else:
            # what is read may be empty: nobody wrote it
            touched = (*sorted(step.node.reads()), *step.node.writes())
            steps = [*self.allocations(touched), *self.calls(step.node)]
        last_used = self.plan.last_use.get(position, ())
        dead = self.buffer_numbers(name for name in last_used if self.kind(name) in _RELEASED)
        if position == self.first_write:
            steps = [*self.version_step(), *steps]
        if dead:
            return [*steps, ("release", dead)]
        return steps

    def version_step(self) -> list[Row]:
        """Tell autograd of the inputs that are written, before the first of them is.

        What it saved of them no longer holds.
        """
        counted = mutated_inputs(self.plan) - self.plan.graph.uncounted
        if not counted:
            return []
        numbers = self.buffer_numbers(sorted(counted))
        items = tuple(zip(itertools.repeat("buffer"), numbers))
        function = self.entry_point(increment_version)
        return [("call", function, (("tuple", items),), None, (), ())]

    def allocations(self, names: Iterable[str]) -> list[Row]:
        lenders = self.plan.lenders
        steps: list[Row] = []
        for name in names:
            if self.kind(name) not in _ALLOCATED or name in self.allocated:
                continue
            self.allocated.add(name)
            step: Row = ("allocate", self.buffer(name))
            if name in lenders:
                step += (self.buffer(lenders[name]),)
            steps.append(step)
        return steps

    def alignment(self, name: str) -> tuple[bool, ...]:
        """The last entries of a buffer's row: whether it is copied, and is in the CPU's memory."""
        return ()

    def errors(self, kernel: AnyKernel) -> tuple[Fault, ...]:
        """The faults that a kernel may report."""
        return self.compiled.errors(kernel)

    def kernel(self, step: KernelStep) -> Row:
        work, varying_work = step.work, -1
        buffers, extent = self.buffer_numbers(step.arguments), self.value(step.extent)
        code = self.codes.get(step.kernel)
        if code is None:
            code = self.codes[step.kernel] = self.code(step.kernel)
        extents = self.values(step.extents)
        if isinstance(step.work, Expr):
            work, varying_work = 0.0, self.value(step.work)
        return (
            "kernel",
            code.address,
            buffers,
            extent,
            work,
            code.unit,
            code.scratch_bytes,
            code.errors,
            extents,
            varying_work,
            self.offsets(step),
        )

    def code(self, kernel: AnyKernel) -> _Code:
        """What a launch of a kernel says of its code."""
        scratch = self.compiled.scratch_bytes(kernel)
        scratch_bytes = -1
        if scratch.constant != 0:
            scratch_bytes = self.value(scratch)
        errors = tuple([(fault.error, fault.message) for fault in self.compiled.errors(kernel)])
        return _Code(self.address(kernel), self.compiled.unit(kernel), scratch_bytes, errors)

    def address(self, kernel: AnyKernel) -> Any:
        """Where a kernel's code is."""
        return self.compiled.address(kernel)

    def entry_point(self, function: Any) -> Any:
        """What is called for an op, or for another function."""
        return faster(function) or called_for(function)

    def offsets(self, step: KernelStep) -> tuple[int, ...]:
        """At which byte of each buffer a launch begins."""
        return self.values(k * p.dtype.itemsize for k, p in zip(step.offsets, step.parameters))

    def calls(self, node: Library) -> list[Row]:
        return [self.call(node)]

    def call(self, node: Library) -> Row:
        kwargs = dict(node.kwargs)
        written: tuple[int, ...] = ()
        targets = tuple([-1 if t is None else self.buffer(t) for t in node.targets])
        if node.out is not None:
            out = tuple(map(whole, at(self.plan.graph.buffers, present(node.targets))))
            kwargs[node.out] = out[0] if len(out) == 1 else out
            written, targets = tuple([t for t in targets if t >= 0]), ()
        items = tuple([self.item(argument, node) for argument in (*node.args, *kwargs.values())])
        step = (
            "call",
            self.entry_point(node.function),
            items,
            tuple(kwargs) or None,
            targets,
            written,
        )
        if node.binds:
            return (*step, self.bindings(node))
        return step

    def bindings(self, node: Library) -> Row:
        """The symbols that a call binds, and the checks that follow it."""
        stage, least, most = self.stages[node.binds[0][0]], -(1 << 62), 1 << 62
        bindings, checks = [], []
        for symbol, result, dim in node.binds:
            if symbol.lower is None:
                lower = least
            else:
                lower = symbol.lower
            if symbol.upper is None:
                upper = most
            else:
                upper = symbol.upper
            bindings.append((self.symbols[symbol], result, dim, lower, upper))
        for left, relation, right, where in self.plan.graph.checks:
            if self.stage(left, right) == stage:
                message = f"{left} {relation} {right} does not hold ({where})"
                checks.append((self.value(left), relation, self.value(right), message))
        return stage, tuple(bindings), tuple(checks)

    def item(self, argument: Any, node: Library) -> tuple[str, Any]:
        """An argument of a call. One without tensors and sizes is passed as it stands."""
        if isinstance(argument, View):
            return self.tensor(argument)
        if isinstance(argument, Expr):
            if argument.constant is None:
                return "int", self.value(argument)
            return "object", argument.constant
        if type(argument) in (list, tuple):
            items = tuple([self.item(element, node) for element in argument])
            if {kind for kind, _ in items} <= {"object"}:
                return "object", type(argument)([element for _, element in items])
            return type(argument).__name__, items
        if isinstance(argument, dict):
            raise CompilerBug(
                "program", "a library call takes a dict", node.name, node.origin.where
            )
        return "object", argument

    def outputs(self) -> list[tuple[str, int]]:
        """What is returned.

        An alias of an input, and a second view of one buffer, are tensor objects of their own.
        """
        shown = Counter(returned_buffers(self.plan))
        outputs: list[tuple[str, int]] = []
        returned: set[int] = set()
        for output in self.plan.graph.outputs:
            if isinstance(output, Expr):
                outputs.append(("int", self.value(output)))
                continue
            kind, index = self.tensor(output)
            place = self.kind(output.buffer)
            if place == "arena":
                raise CompilerBug("program", f"the output {output.buffer} lies in the arena")
            if kind == "buffer" and place in ("output", "library") and index not in returned:
                returned.add(index)
                outputs.append((kind, index))
                continue
            if place == "constant":
                kind = "copy"
            elif place != "input" and shown[output.buffer] == 1:
                kind = "alone"
            else:
                kind = "view"
            outputs.append((kind, self.view(output)))
        return outputs


def whole(buffer: Buffer) -> View:
    """A view of all of a buffer."""
    return View(buffer.name, buffer.sizes, buffer.strides, integer(0), buffer.dtype)
