"""From a plan and its machine code to a native program: a flat list of steps that C runs without
Python frames.

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
views        ((buffer, dtype, sizes, strides, offset), ...): windows that library calls or the user
             are given
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
===========  =======================================================================================

Of a launch, `kernel` is what `_native.load_cuda` gave; the buffers, the values of `sizes` and
`hidden` null pointers are its parameters, or, over several sets of buffers, a table of them (see
`codegen.triton.kernel.TritonKernel`), with `places` for their first blocks, of `points` each;
`shared` are the bytes of shared memory of each. Of the forms, each (grid, conditions, kernel,
threads, shared, hidden), the first is launched whose conditions, (value, number), hold: the value
is not greater. `grid` is the position of the number of its blocks. In place of the last four there
may be what loads the kernel and returns them, and keeps it, which is called when the form is first
launched. A product is cuBLAS's if of all `conditions`, (function, value), the function returns the
value, and else the `call`. `parts` are the extents of a launch over several sets of buffers (which
`buffers` holds one after the other), or empty; `offsets`, which may be empty as well, say at which
byte of each buffer its part of the memory begins. A kernel's `work` is nanoseconds per point on one
core, unless `varying work` is the position of its picoseconds; `unit` is the multiple of points
that a thread's share is rounded to, `scratch` the position of the bytes each thread needs, or -1.
An item of a call is ("object", anything), ("int", value), ("buffer", buffer), ("view", view),
("list", items) or ("tuple", items); `keywords` names the last items (None: none); `targets` are the
buffers that the results become (-1: nobody uses it); `written` those written through out=, which
must not be resized. A call of a stage gives symbols values: `bindings` are (symbol, position among
the results, dimension or -1 for the result itself, least value, greatest value). The expressions of
its stage are evaluated then, and the `checks`, (left, "==" | "!=" | "<" | "<=", right, message) of
values, must hold.

Kernel ABI: `int32_t kernel(void *const *buffers, const int64_t *sizes, int64_t begin, int64_t end,
void *scratch)`. `sizes` begins with the values of the size symbols; [begin, end) are points of the
collapsed parallel loops; `scratch` is 64-byte aligned and private to the thread, which may call it
for several pieces; what it keeps there from one to the next begins with a word that is 0 before the
first. It returns 0, or 1 + k for the k-th of `errors`, each (exception type, message).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ingot.errors import CompilerBug
from ingot.loops.apart import mm_in_parts, views_of_parts
from ingot.loops.expr import Expr, Symbol, as_expr, integer
from ingot.loops.ir import Buffer, Fault, Library, View
from ingot.loops.lowering import cost
from ingot.loops.postfix import postfix
from ingot.loops.side_effects import acts
from ingot.native import _native
from ingot.schedule.kernel import AnyKernel, Kernel
from ingot.schedule.memory import JOINED_BYTES
from ingot.schedule.plan import KernelStep, LibraryStep, Plan
from ingot.torch_private import (
    aten,
    get_cublas_allow_bf16_reduced_precision_reduction,
    get_cublas_allow_fp16_accumulation,
    get_cublas_allow_fp16_reduced_precision_reduction,
    increment_version,
)

if TYPE_CHECKING:
    from ingot.codegen.triton.module import Binary, CompiledForm, CompiledKernels

log = logging.getLogger("ingot")

_ATTENTIONS = ("flash", "efficient", "cudnn")

# Ops whose entry point in torch takes the same arguments as their overloads, and is reached sooner:
# an overload object parses its arguments in Python and again in pybind, half a microsecond more.
_FASTER = {
    getattr(getattr(aten, name), overload): getattr(torch, name)
    for name, overloads in {
        **dict.fromkeys(
            ("mm", "addmm", "bmm", "baddbmm", "gather", "index_select"), ("default", "out")
        ),
        **dict.fromkeys(("index_add", "index_copy", "scatter_add"), ("default", "out")),
        **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp", "logsumexp"), ("default", "out")),
        "scatter": ("src", "src_out", "value", "value_out"),
        **dict.fromkeys(("sort", "topk", "convolution"), ("default",)),
        **dict.fromkeys(
            (f"_scaled_dot_product_{kind}_attention" for kind in _ATTENTIONS), ("default",)
        ),
        **dict.fromkeys(
            (name for name, _ in cost.FUNCTIONS if hasattr(torch, name)), ("default", "out")
        ),
    }.items()
    for overload in overloads
}

_CPU = torch.device("cpu")

# What is in the memory of which GPU. A user's CUDA graph may launch it when its program is long
# gone; and while one is recorded, nothing may be unloaded.
_LOADED: dict[tuple[Binary, int], Any] = {}

# Products that cuBLAS is asked for without torch in between, which tells it with each call how it
# may sum halves.
_SUMS_AS_USUAL: Mapping[torch.dtype, tuple[tuple[Callable[[], Any], Any], ...]] = {
    torch.float32: (),
    torch.float16: (
        (get_cublas_allow_fp16_reduced_precision_reduction, (True, True)),
        (get_cublas_allow_fp16_accumulation, False),
    ),
    torch.bfloat16: ((get_cublas_allow_bf16_reduced_precision_reduction, (True, True)),),
}

# places whose tensors are let go when they are dead
_RELEASED = ("library", "own", "small", "input")

# Points that make a whole cache line of every element type; two threads then never write to one.
_POINTWISE_UNIT = 16


class MachineCode(Protocol):
    """What code generation hands over (`codegen.llvm.CompiledKernels`)."""

    def address(self, kernel: AnyKernel) -> int: ...
    def scratch_bytes(self, kernel: AnyKernel) -> Expr: ...
    def errors(self, kernel: AnyKernel) -> tuple[Fault, ...]: ...


class Program:
    """A compiled graph: `program(inputs)` returns its outputs, tensors and ints, in a list.

    `native` is what the dispatcher runs. The inputs must be as the guards promise: only their
    number is checked here. What is loaded into a GPU stays there, if it is to be `lasting`.
    """

    def __init__(
        self,
        plan: Plan,
        compiled: MachineCode | CompiledKernels,
        device: torch.device = _CPU,
        lasting: bool = True,
    ) -> None:
        self.plan = plan
        on_cpu = device.type == "cpu"
        description = (
            _Description(plan, compiled, device)
            if on_cpu
            else _OnGpu(plan, compiled, device, lasting)
        )
        self._errors = description.errors
        self.native = _native.Program(description.build())
        self._plan_steps = description.plan_steps

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        return list(self.native(*inputs))

    @property
    def arena_bytes(self) -> Expr:
        """The size of the block that all temporaries share, an expression over the size symbols."""
        return self.plan.arena_bytes

    @property
    def peak_bytes(self) -> Expr:
        """The most bytes held at once: inputs, outputs, arena and library results."""
        return self.plan.peak_bytes

    def profile(self, on: bool) -> list[float]:
        """Begin (anew) or end to measure what the steps take. Returns the seconds of each step of
        the plan, with what it allocates and releases, over all calls since it began; nothing if it
        was off."""
        measured = self.native.profile(on)
        seconds = [0.0] * len(self.plan.steps) if measured else []
        for position, nanoseconds in zip(self._plan_steps, measured):
            if position is not None:
                seconds[position] += nanoseconds * 1e-9
        return seconds

    @property
    def fails_first(self) -> bool:
        """Whether what may raise an error for what its tensors hold comes before all that writes
        inputs or has an effect, so that it leaves them alone."""
        behind = self.plan.steps[first_trace(self.plan) :]
        return not any(self._may_fail(step) for step in behind)

    @property
    def leaves_traces(self) -> bool:
        """Whether a step writes an input or has an effect."""
        return first_trace(self.plan) < len(self.plan.steps)

    @property
    def written_inputs(self) -> set[int]:
        """The positions of the inputs that are written."""
        names = _mutated(self.plan)
        return {k for k, name in enumerate(self.plan.graph.inputs) if name in names}

    @property
    def counted_writes(self) -> set[int]:
        """Those of whose writes autograd is told."""
        return {
            k
            for k in self.written_inputs
            if self.plan.graph.inputs[k] not in self.plan.graph.uncounted
        }

    def _may_fail(self, step: KernelStep | LibraryStep) -> bool:
        if isinstance(step, KernelStep):
            return bool(self._errors(step.kernel))
        if step.node.binds:  # where sizes that are found are checked
            return True
        # capture has seen to what acts and raises itself
        return step.node.may_raise and not _acts(step)

    @property
    def layout_mismatches(self) -> int:
        """How many library results so far had another layout than predicted, and were copied."""
        return self.native.layout_mismatches

    def __str__(self) -> str:
        """The steps, one per line, and where every buffer lives."""
        lines = [f"arena {self.arena_bytes} bytes, peak {self.peak_bytes} bytes"]
        for step in self.plan.steps:
            lines.append(f"  {_step_text(step, self.plan)}")
        lines.append(
            "  return " + ", ".join(_view_text(output) for output in self.plan.graph.outputs)
        )
        return "\n".join(lines)


def _step_text(step: KernelStep | LibraryStep, plan: Plan) -> str:
    def places(names: Iterable[str | None]) -> str:
        return ", ".join(
            "_" if name is None else f"{name}:{_place_text(plan, name)}" for name in names
        )

    if isinstance(step, KernelStep):
        return f"kernel {step.kernel.name}({places(step.arguments)}) over {step.extent}"
    return f"call {step.node.function}({places(sorted(step.node.reads()))}) -> {places(step.node.targets)}"


def _place_text(plan: Plan, name: str) -> str:
    place = plan.places[name]
    return f"arena+{place.offset}" if place.kind == "arena" else place.kind


def _view_text(output: View | Expr) -> str:
    return (
        f"{output.buffer}[{', '.join(map(str, output.sizes))}]"
        if isinstance(output, View)
        else str(output)
    )


class _Description:
    """Numbers the values, buffers and views of a plan as they are met."""

    def __init__(self, plan: Plan, compiled: Any, device: torch.device) -> None:
        self.plan, self.compiled, self.device = plan, compiled, device
        self.symbols = {
            symbol: position for position, (symbol, *_) in enumerate(plan.graph.symbols)
        }
        self.constants = {name: position for position, name in enumerate(plan.graph.constants)}
        self.expressions: dict[Expr, int] = {}
        self.buffers: dict[str, int] = {}
        self.buffer_rows: list[tuple[Any, ...]] = []
        self.views: dict[tuple[Any, ...], int] = {}
        self.allocated: set[str] = set()
        self.first_write = next(
            (k for k, step in enumerate(plan.steps) if _written_inputs(step, plan)), None
        )
        # of each native step: the step of the plan that it belongs to
        self.plan_steps: list[int | None] = []
        self.stages: dict[Symbol, int] = {}  # the call that binds a symbol: 1, 2, ...
        calls = [
            step.node for step in plan.steps if isinstance(step, LibraryStep) and step.node.binds
        ]
        for stage, node in enumerate(calls, 1):
            self.stages.update((symbol, stage) for symbol, *_ in node.binds)

    def build(self) -> tuple[Any, ...]:
        graph = self.plan.graph
        arena, peak, joined = (
            self.value(self.plan.arena_bytes),
            self.peak(),
            self.value(self.plan.joined_bytes),
        )
        steps: list[tuple[Any, ...]] = []
        if self.first_write is None:  # what is written has no elements, or gets its own value
            steps += self.version_step()
            self.plan_steps += [None] * len(steps)
        for position in range(len(self.plan.steps)):
            described = self.steps(position)
            self.plan_steps += [position] * len(described)
            steps += described
        returned = [output.buffer for output in graph.outputs if isinstance(output, View)]
        steps += self.allocations(returned)  # of what no step writes: empty tensors
        self.plan_steps += [None] * (len(steps) - len(self.plan_steps))
        outputs = self.outputs()
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
        )

    def traces_from(self, otherwise: int) -> int:
        """The first native step that leaves a trace of itself."""
        first = first_trace(self.plan)
        return next(
            (n for n, k in enumerate(self.plan_steps) if k is not None and k >= first), otherwise
        )

    def peak(self) -> int:
        """The position of the bytes that a call takes at once, as far as its inputs tell: sizes
        that the program finds in the data are as a rule parts of what there is, and count as the
        least that they can be."""
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
        """When the values of expressions are known: 0 from the start, else when that call has
        returned."""
        return (
            max((self.stages.get(s, 0) for e in exprs for s in e.symbols), default=0)
            if self.stages
            else 0
        )

    def kind(self, name: str) -> str:
        place = self.plan.places.get(name)
        return place.kind if place else "output"

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
            place = kind
            self.buffer_rows.append(
                (place, buffer.dtype, *geometry, position, *self.alignment(name))
            )
        return self.buffers[name]

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
        """An item for a view: the buffer's own tensor where it is the whole of it, which costs
        nothing."""
        if self.kind(view.buffer) not in ("arena", "small") and _is_whole(
            view, self.plan.graph.buffers[view.buffer]
        ):
            return "buffer", self.buffer(view.buffer)
        return "view", self.view(view)

    # -- steps -------------------------------------------------------------------------------------

    def steps(self, position: int) -> list[tuple[Any, ...]]:
        """The native steps of one step of the plan: with what it writes allocated before, and the
        dead released."""
        step = self.plan.steps[position]
        if isinstance(step, KernelStep):
            described = [*self.allocations(step.arguments), self.kernel(step)]
        else:
            # what is read may be empty: nobody wrote it
            touched = (*sorted(step.node.reads()), *step.node.writes())
            described = [*self.allocations(touched), *self.calls(step.node)]
        dead = [
            self.buffer(name)
            for name in self.plan.last_use.get(position, ())
            if self.kind(name) in _RELEASED
        ]
        described = [*(self.version_step() if position == self.first_write else ()), *described]
        return [*described, ("release", tuple(dead))] if dead else described

    def version_step(self) -> list[tuple[Any, ...]]:
        """Tell autograd of the inputs that are written, before the first of them is: what it saved
        of them no longer holds."""
        counted = _mutated(self.plan) - self.plan.graph.uncounted
        if not counted:
            return []
        items = tuple(("buffer", self.buffer(name)) for name in sorted(counted))
        return [("call", increment_version, (("tuple", items),), None, (), ())]

    def allocations(self, names: Iterable[str]) -> list[tuple[Any, ...]]:
        made = ("output", "own", "small")
        fresh = [
            n for n in dict.fromkeys(names) if self.kind(n) in made and n not in self.allocated
        ]
        self.allocated.update(fresh)
        lenders = self.plan.lenders
        return [
            ("allocate", self.buffer(n), *map(self.buffer, [lenders[n]] if n in lenders else []))
            for n in fresh
        ]

    def alignment(self, name: str) -> tuple[bool, ...]:
        """What is said of a buffer's alignment."""
        return ()

    def errors(self, kernel: AnyKernel) -> tuple[Fault, ...]:
        """What a kernel may report."""
        return self.compiled.errors(kernel)

    def kernel(self, step: KernelStep) -> tuple[Any, ...]:
        kernel = step.kernel
        scratch = self.compiled.scratch_bytes(kernel)
        pointwise = (
            isinstance(kernel, Kernel) and kernel.parallel == 1 and kernel.loops == (kernel.vector,)
        )
        return (
            "kernel",
            self.compiled.address(kernel),
            tuple(map(self.buffer, step.arguments)),
            self.value(step.extent),
            0.0 if isinstance(step.work, Expr) else step.work,
            _POINTWISE_UNIT if pointwise else 1,
            -1 if scratch.constant == 0 else self.value(scratch),
            tuple((fault.error, fault.message) for fault in self.compiled.errors(kernel)),
            self.values(step.parts),
            self.value(step.work) if isinstance(step.work, Expr) else -1,
            self.offsets(step),
        )

    def offsets(self, step: KernelStep) -> tuple[int, ...]:
        """At which byte of each buffer a launch begins."""
        return self.values(k * p.dtype.itemsize for k, p in zip(step.offsets, step.parameters))

    def calls(self, node: Library) -> list[tuple[Any, ...]]:
        return [self.call(node)]

    def call(self, node: Library) -> tuple[Any, ...]:
        kwargs = dict(node.kwargs)
        written: tuple[int, ...] = ()
        targets = [None if t is None else self.buffer(t) for t in node.targets]
        if node.out is not None:
            views = tuple(_whole(self.plan.graph.buffers[t]) for t in node.targets if t is not None)
            kwargs[node.out] = views[0] if len(views) == 1 else views
            written, targets = tuple(t for t in targets if t is not None), []
        items = tuple(self.item(argument, node) for argument in (*node.args, *kwargs.values()))
        function = _FASTER.get(node.function) or getattr(node.function, "_op", node.function)
        positions = tuple(-1 if t is None else t for t in targets)
        step = "call", function, items, tuple(kwargs) or None, positions, written
        return (*step, self.bindings(node)) if node.binds else step

    def bindings(self, node: Library) -> tuple[Any, ...]:
        """What a call binds, and is checked when it has."""
        stage, least, most = self.stages[node.binds[0][0]], -(1 << 62), 1 << 62
        bindings = [
            (
                self.symbols[s],
                result,
                dim,
                least if s.lower is None else s.lower,
                most if s.upper is None else s.upper,
            )
            for s, result, dim in node.binds
        ]
        checks = [
            (
                self.value(left),
                relation,
                self.value(right),
                f"{left} {relation} {right} does not hold ({where})",
            )
            for left, relation, right, where in self.plan.graph.checks
            if self.stage(left, right) == stage
        ]
        return stage, tuple(bindings), tuple(checks)

    def item(self, argument: Any, node: Library) -> tuple[str, Any]:
        """What a call is given in one place: a part without tensors and sizes is passed as it
        stands."""
        if isinstance(argument, View):
            return self.tensor(argument)
        if isinstance(argument, Expr):
            return (
                ("int", self.value(argument))
                if argument.constant is None
                else ("object", argument.constant)
            )
        if type(argument) in (list, tuple):
            items = tuple(self.item(part, node) for part in argument)
            if any(kind != "object" for kind, _ in items):
                return ("list" if type(argument) is list else "tuple"), items
            return "object", type(argument)(part for _, part in items)
        if isinstance(argument, dict):
            raise CompilerBug(
                "program", "a library call takes a dict", node.name, node.origin.where
            )
        return "object", argument

    def outputs(self) -> list[tuple[str, int]]:
        """What is returned. An alias of an input, and a second view of one buffer, are tensor
        objects of their own."""
        described: list[tuple[str, int]] = []
        given: set[int] = set()
        shown = Counter(
            output.buffer for output in self.plan.graph.outputs if isinstance(output, View)
        )
        for output in self.plan.graph.outputs:
            if isinstance(output, Expr):
                described.append(("int", self.value(output)))
                continue
            kind, index = self.tensor(output)
            place = self.kind(output.buffer)
            if place == "arena":
                raise CompilerBug("program", f"the output {output.buffer} lies in the arena")
            if kind == "buffer" and place in ("output", "library") and index not in given:
                given.add(index)
                described.append((kind, index))
            else:
                alone = place != "input" and shown[output.buffer] == 1
                described.append(
                    (
                        "copy" if place == "constant" else "alone" if alone else "view",
                        self.view(output),
                    )
                )
        return described


class _OnGpu(_Description):
    """Of a GPU's program: kernels run on torch's current stream, and memory is its caching
    allocator's, which knows of streams. So nothing is kept between calls, which may be on another
    stream: the plan is frugal."""

    def __init__(self, plan: Plan, compiled: Any, device: torch.device, lasting: bool) -> None:
        super().__init__(plan, compiled, device)
        self.unaligned = unaligned_inputs(plan)
        self.loaded: dict[tuple[Binary, int], Any] = _LOADED if lasting else {}
        constants = plan.graph.constants
        ours = {name: c for name, c in constants.items() if not plan.graph.buffers[name].on_host}
        # tables of lowering's own
        constants.update((name, tensor.to(device)) for name, tensor in ours.items())

    def alignment(self, name: str) -> tuple[bool, ...]:
        on_host = self.plan.graph.buffers[name].on_host
        return self.kind(name) == "input" and name not in self.unaligned and not on_host, on_host

    def errors(self, kernel: AnyKernel) -> tuple[Fault, ...]:
        return ()  # what is out of range fails an assertion on the device, as in eager

    def kernel(self, step: KernelStep) -> tuple[Any, ...]:
        if step.on_host:
            return super().kernel(step)
        assert isinstance(step.kernel, Kernel)
        if step.parts:
            return self.parts(step, step.kernel)
        buffers, sizes = (
            tuple(map(self.buffer, step.arguments)),
            self.values(self.compiled.written(step.kernel).sizes),
        )
        forms = tuple(map(self.form, self.compiled.forms(step.kernel)))
        return "launch", buffers, self.offsets(step), sizes, forms

    def calls(self, node: Library) -> list[tuple[Any, ...]]:
        """Products are asked of cuBLAS; such as come in parts, one after the other."""
        if not LibraryStep(node).multiplies:
            return super().calls(node)
        (out,) = (
            _whole(self.plan.graph.buffers[target]) for target in node.targets if target is not None
        )
        if node.function is not mm_in_parts:
            return [self.product((*node.args, out), self.call(node))]
        found, (left, right) = [], node.args
        for views in views_of_parts(left, right, out):
            items = tuple(("view", self.view(view)) for view in views)
            function = torch.mm if len(views[0].sizes) == 2 else torch.bmm
            call = ("call", function, items, ("out",), (), (self.buffer(out.buffer),))
            found.append(self.product(views, call))
        return found

    def product(self, views: Sequence[View], call: tuple[Any, ...]) -> tuple[Any, ...]:
        """A product of two views that is written to a third, which else is the call."""
        dtype = views[-1].dtype
        if dtype not in _SUMS_AS_USUAL:
            return call
        return (
            "product",
            str(dtype).removeprefix("torch."),
            tuple(map(self.view, views)),
            _SUMS_AS_USUAL[dtype],
            call,
        )

    def parts(self, step: KernelStep, kernel: Kernel) -> tuple[Any, ...]:
        """A launch over several sets of buffers."""
        written, buffers = self.compiled.written(kernel), tuple(map(self.buffer, step.arguments))
        points = dict(written.constants)["XBLOCK"]
        loaded = load_binary(self.compiled.binary(kernel), self.loaded, self.device.index)
        return (
            "launch parts",
            buffers,
            self.offsets(step),
            self.values(step.parts),
            written.table,
            points,
            *loaded,
        )

    def form(self, form: CompiledForm) -> tuple[Any, ...]:
        conditions = tuple((self.value(e), most) for e, most in form.conditions)
        load = _Loader(form, self.loaded, self.device.index)
        return self.value(form.grid), conditions, *(load() if form.is_compiled else [load])


class _Loader:
    """Loads a form of a kernel into a GPU, and keeps it there as long as this lives."""

    def __init__(
        self, form: CompiledForm, loaded: dict[tuple[Binary, int], Any], device: int
    ) -> None:
        self.form, self.loaded, self.device = form, loaded, device

    def __call__(self) -> tuple[Any, int, int, int]:
        try:
            return load_binary(self.form.binary, self.loaded, self.device)
        except Exception as problem:  # the core looks for another form
            log.warning("a kernel for some sizes could not be compiled or loaded: %s", problem)
            raise


def load_binary(
    binary: Binary, loaded: dict[tuple[Binary, int], Any], device: int
) -> tuple[Any, int, int, int]:
    """(kernel, threads, shared, hidden) of a description."""
    key = binary, device
    if key not in loaded:
        loaded[key] = _native.load_cuda(binary.image, binary.function, binary.shared, device)
    return loaded[key], binary.threads, binary.shared, binary.hidden


def unaligned_inputs(plan: Plan) -> set[str]:
    """The inputs that may lie anywhere when a kernel gets them: those that a copy could not stand
    for, since they are written or their elements may share memory."""
    written = {name for step in plan.steps for name in _written_inputs(step, plan)}
    buffers = plan.graph.buffers
    return {name for name in plan.graph.inputs if name in written or not _is_dense(buffers[name])}


def _is_dense(buffer: Buffer) -> bool:
    """Whether the elements of a buffer are known to lie side by side, each for itself."""
    count = 1
    known = (
        (stride.constant or 0, size.constant or 0)
        for stride, size in zip(buffer.strides, buffer.sizes)
    )
    for stride, size in sorted(known):
        if size != 1 and stride != count:
            return False
        count *= size
    return True


def _written(step: KernelStep | LibraryStep) -> Iterable[str]:
    """The buffers that a step writes."""
    if isinstance(step, LibraryStep):
        return step.node.writes()
    return [name for name, parameter in zip(step.arguments, step.parameters) if parameter.written]


def _written_inputs(step: KernelStep | LibraryStep, plan: Plan) -> set[str]:
    return {
        name for name in _written(step) if name in plan.places and plan.places[name].kind == "input"
    }


def first_trace(plan: Plan) -> int:
    """The position of the first step that writes an input or has an effect; how many there are if
    none does."""
    steps = plan.steps
    return next(
        (k for k, step in enumerate(steps) if _written_inputs(step, plan) or _acts(step)),
        len(steps),
    )


def _acts(step: KernelStep | LibraryStep) -> bool:
    return isinstance(step, LibraryStep) and step.node.ordered and acts(step.node.function)


def _mutated(plan: Plan) -> set[str]:
    """The inputs that are written, those without elements too."""
    return plan.graph.mutated.union(*[_written_inputs(step, plan) for step in plan.steps])


def _whole(buffer: Buffer) -> View:
    return View(buffer.name, buffer.sizes, buffer.strides, integer(0), buffer.dtype)


def _is_whole(view: View, buffer: Buffer) -> bool:
    return view == _whole(buffer)
