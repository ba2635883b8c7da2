"""The way through: a captured graph goes in, and its program comes out.

`compile_graph` is the whole way. `build` is what every ATen graph takes, be it a forward, a
backward or a graph without gradients. Each step gets its input as an argument and gives its result.
The log is written to for reports, and never read.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from ingot.built import Built, CompiledGraph, Risks
from ingot.capture import Captured
from ingot.capture.inner_calls import unwatched
from ingot.codegen.llvm.prepack import prepack
from ingot.compilation import Compilation, Log
from ingot.devices import DEVICES, require_code
from ingot.errors import Unsupported
from ingot.gradients.backwards import Backwards
from ingot.gradients.captured_graph import CapturedGraph, wants_gradients
from ingot.gradients.higher_order import higher_order_program
from ingot.gradients.layered import LayeredBackwards, Whole, show_whole
from ingot.graph import trace_alike
from ingot.graph.ambient import Modes, preserved, undisturbed
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.control_ops import Compiled, control_flow, control_nodes
from ingot.graph.differentiation import forget_histories, new_leaves
from ingot.graph.donating import donate, keep_all
from ingot.graph.fake_context import FakeContext
from ingot.graph.joint import trace_joint
from ingot.graph.layers import shorter, tells_all
from ingot.graph.longer import in_all_layers, repeated
from ingot.graph.memory_budget import BUDGET, WHOLE
from ingot.graph.nodes import fake_result
from ingot.graph.output_windows import output_window, size_places
from ingot.graph.partition import Partition, partition
from ingot.graph.passes.pipeline import LIBRARY_PASSES, run_passes
from ingot.graph.symbols import to_expr
from ingot.graph.tracing import trace
from ingot.loops.expr import Symbol
from ingot.loops.ir import LoopGraph
from ingot.loops.layers import NotAlike
from ingot.loops.lowering.lower import lower
from ingot.loops.sides import device_of
from ingot.loops.training_contract import OutputWindow, Slot
from ingot.loops.verify import verify
from ingot.options import Options
from ingot.precision import float32_precisions
from ingot.runtime.control_calls import control_call
from ingot.runtime.cuda_capture import machine_of
from ingot.runtime.cuda_graphs import Machine, Replayed, why_not
from ingot.runtime.program import Program
from ingot.runtime.training import TrainingProgram, WithLeaves
from ingot.runtime.windows import Windows, WithWindows
from ingot.schedule import schedule
from ingot.schedule.few_rows import FewRows
from ingot.torch_private import GRADIENTS, require

if TYPE_CHECKING:
    from ingot.runtime.tuning import Tuner

NO_HINTS: Mapping[Symbol, int] = MappingProxyType({})


def compile_graph(
    captured: Captured,
    compilation: Compilation,
    options: Options,
    frozen: Mapping[int, torch.Tensor],
) -> CompiledGraph:
    """A captured graph becomes a program.

    The inputs at the positions in `frozen` always have these values, which is made use of where no
    gradients are wanted. Raises Unsupported for what cannot be compiled.
    """
    fakes = [i.fake for i in captured.inputs]
    graph = captured.graph_module.graph
    with DEVICES[_device(graph).type].ready(len(graph.nodes)):
        compiled = _compiled(captured, compilation, options, frozen)
        if captured.donations.given and _fails_late(captured, compiled.built.risks):
            captured.donations = captured.donations.all_kept(
                "the graph may fail for its data behind it"
            )
            compilation.log.start_over()
            compiled = _compiled(captured, compilation, options, frozen)
    leaves = new_leaves(fakes)
    if not leaves:
        return compiled
    return compiled._replace(run=WithLeaves(compiled.run, leaves))


def _compiled(
    captured: Captured,
    compilation: Compilation,
    options: Options,
    frozen: Mapping[int, torch.Tensor],
) -> CompiledGraph:
    if not wants_gradients(captured):
        return compile_inference(captured, compilation.log, options, frozen)
    captured.donations = captured.donations.all_kept(
        "the call records gradients, and autograd holds its arguments"
    )
    context, fakes = captured.context, [i.fake for i in captured.inputs]
    graph = CapturedGraph(captured.graph_module, fakes, context, Modes.now())
    return compile_training(graph, compilation, options, context.shapes.hints)


def _fails_late(captured: Captured, risks: Risks) -> bool:
    """Whether eager may have to run a call whose donated arguments are gone."""
    if risks.fails_at is None or risks.fails_first:
        return False
    return risks.checks or captured.protects or bool(captured.residual.effects)


def compile_inference(
    captured: Captured, log: Log, options: Options, frozen: Mapping[int, torch.Tensor]
) -> CompiledGraph:
    """A captured graph without gradients: trace, build, and the views among its outputs."""
    context, fakes = captured.context, [i.fake for i in captured.inputs]
    given = captured.donations.given
    if not frozen and not given and _may_be_shorter(captured.graph_module, context, options):
        layered = _compile_layers(captured, log, options)
        if layered is not None:
            return layered
    with log.stage("trace"):
        aten = log.aten = trace_alike(captured.graph_module, fakes, context, frozen)
    donate(aten, given, log.donated.append)
    built = build(aten, log, options, context.shapes.hints)
    windows = _detached_windows(aten, fakes)
    if not windows:
        return CompiledGraph(built.run, built)
    views = Windows(windows, size_places(windows, aten.symbols, aten.outputs))
    return CompiledGraph(WithWindows(built.run, views, len(aten.outputs)), built)


def _may_be_shorter(module: torch.fx.GraphModule, context: FakeContext, options: Options) -> bool:
    """Whether a few layers of a program may stand for all."""
    varies = context.shapes.hints or context.shapes.unbacked.roots
    is_plain = not (varies or options.freeze or options.tunes or BUDGET in module.meta)
    return is_plain and _device(module.graph).type == "cpu"


def _compile_layers(captured: Captured, log: Log, options: Options) -> CompiledGraph | None:
    """The same by way of a graph with fewer of the layers that are alike. None where it has few, or
    where the others cannot be told from some."""
    module, fakes = captured.graph_module, [i.fake for i in captured.inputs]
    with log.stage("trace"):
        short = shorter(module, fakes)
        if short is None:
            return None
        aten = trace(short.module, short.fakes, captured.context)
    if not tells_all(aten) or _detached_windows(aten, short.fakes):
        return None
    aten.layers = short.layers
    attempt = log.attempt()
    try:
        repeated(aten, short.layers)
        built = build(aten, attempt, options)
    except NotAlike:
        return None
    log.adopt(attempt)
    modes = Modes.now()

    def whole() -> AtenGraph:
        with unwatched(), undisturbed(), preserved():
            modes.set()
            return trace_alike(module, fakes, captured.context)

    show_whole(log, whole, _lowering(options))
    return CompiledGraph(built.run, built)


def compile_training(
    graph: CapturedGraph,
    compilation: Compilation,
    options: Options,
    hints: Mapping[Symbol, int] = NO_HINTS,
) -> CompiledGraph:
    """A captured graph that records gradients: differentiate, partition, build the forward, and
    join it to its backward programs. These are built when they are first asked for; one of them
    may be planned while others compile the kernels of the forward."""
    require(GRADIENTS)
    saves_all = options.memory_budget in (None, WHOLE)
    if saves_all and _may_be_shorter(graph.module, graph.context, options):
        layered = _compile_training_layers(graph, compilation, options)
        if layered is not None:
            return layered
    with compilation.log.stage("differentiate"):
        joint = trace_joint(graph.module, graph.fakes, graph.context)
        forget_histories(graph.module)
        cut = partition(joint, graph.module.meta.get(BUDGET, options.memory_budget))
        graph.context.shapes.unbacked.settle()
    compilation.log.partition = cut
    compilation.log.aten = cut.forward
    forward = Building(cut.forward, compilation.log, options, hints, frugal=True)
    forward.plan()
    contract, backwards = cut.contract(), None
    if contract.tangents or contract.refused_outputs:
        backwards = Backwards(graph, cut, contract, compilation, _begin_backward(options))
        if _is_planned_ahead(cut, options, hints):
            backwards.plan_ahead(forward.is_awaited)
    try:
        built = forward.finish()
    except BaseException:
        compilation.backward = None
        raise
    run: Callable[..., Sequence[Any]] = built.run
    if backwards is not None:
        run = _with_gradients(built, graph, cut, backwards, compilation, options)
    if contract.windows:
        places = contract.window_places if contract.views else {}
        run = WithWindows(run, Windows(contract.views, places), contract.user_outputs)
    return CompiledGraph(run, built)


def _is_planned_ahead(cut: Partition, options: Options, hints: Mapping[Symbol, int]) -> bool:
    """Whether a backward may be planned before it is asked for.

    Questions about sizes that vary would be guards of the forward's. Nothing is timed while others
    work, and the forward does not wait for the kernels of a backward's inner graphs.
    """
    varies = bool(hints or cut.symbols or cut.decided)
    return not (varies or options.tunes or any(control_nodes(cut.backward.graph)))


def _with_gradients(
    built: Built,
    graph: CapturedGraph,
    cut: Partition,
    backwards: Backwards | LayeredBackwards,
    compilation: Compilation,
    options: Options,
) -> TrainingProgram:
    """A forward that was built, with its backwards."""
    compile_vjp = functools.partial(compile_training, options=options)
    higher_order = higher_order_program(graph, cut, backwards, compilation, compile_vjp)
    if built.replayed is not None:
        built.replayed.visible = len(backwards.contract.outputs)
    return TrainingProgram(built.run, backwards.contract, backwards, higher_order)


def _lowering(options: Options) -> Callable[[AtenGraph], LoopGraph]:
    """Lowers graphs for the CPU, as `build` does."""
    return functools.partial(lower, fast_libraries=options.numerics == "fast")


def _compile_training_layers(
    graph: CapturedGraph, compilation: Compilation, options: Options
) -> CompiledGraph | None:
    """The same by way of a graph with fewer of the layers that are alike. None where it has few, or
    where the others cannot be told from some."""
    log, context = compilation.log, graph.context
    with log.stage("differentiate"):
        short = shorter(graph.module, graph.fakes)
        if short is None:
            return None
        try:
            joint = trace_joint(short.module, short.fakes, context)
            cut = partition(joint)
            if not (tells_all(cut.forward) and tells_all(cut.backward) and joint.contract.tangents):
                return None
            whole = Whole.of(cut, short.layers)
        except (NotAlike, Unsupported):
            return None
        forward, some = cut.forward, graph._replace(module=short.module, fakes=short.fakes)
    forward.layers = whole.forward
    attempt, lowering = log.attempt(), _lowering(options)
    try:
        built = build(forward, attempt, options, frugal=True)
        backwards = LayeredBackwards(whole, some, compilation, _begin_backward(options), lowering)
    except NotAlike:
        return None
    log.adopt(attempt)
    log.partition, log.whole = cut, whole
    forget_histories(graph.module)
    forget_histories(short.module)
    show_whole(log, functools.partial(in_all_layers, forward, whole.forward), lowering)
    run = _with_gradients(built, graph, cut, backwards, compilation, options)
    return CompiledGraph(run, built)


def _begin_backward(options: Options) -> Callable[[AtenGraph, Log], Building]:
    return functools.partial(Building, options=options, frugal=True, soon=False)


def build(
    aten: AtenGraph,
    log: Log,
    options: Options,
    hints: Mapping[Symbol, int] = NO_HINTS,
    frugal: bool = False,
) -> Built:
    """An ATen graph becomes a program: lower, verify, schedule, prepack, generate code, load.

    `hints` are the sizes of the call at hand. A `frugal` program keeps no memory between calls.
    """
    return Building(aten, log, options, hints, frugal).finish()


class Building:
    """An ATen graph on its way to a program, see `build`. `advance` takes the next step, up to the
    generation of code. Others may be at its kernels then, sooner if the program is wanted `soon`;
    `finish` waits for them."""

    def __init__(
        self,
        aten: AtenGraph,
        log: Log,
        options: Options,
        hints: Mapping[Symbol, int] = NO_HINTS,
        frugal: bool = False,
        soon: bool = True,
    ) -> None:
        self._aten, self._log, self._options, self._hints = aten, log, options, hints
        self._soon, self._device = soon, _device(aten.graph)
        self._row = DEVICES[self._device.type]
        self._target, self._machine = self._row.target, None
        if options.replays:
            self._machine = machine_of(self._device)
        # a GPU's allocator keeps memory, for each stream; what is donated is to be let go early
        is_on_cpu = self._device.type == "cpu"
        self._frugal = frugal or bool(aten.donated) or self._machine is not None or not is_on_cpu
        self._steps = iter([self._prepare, self._lower, self._schedule, self._generate])

    def advance(self) -> bool:
        """Whether there was a step to take."""
        step = next(self._steps, None)
        if step is not None:
            step()
        return step is not None

    def plan(self) -> None:
        """Takes all steps but those of `finish`."""
        while self.advance():
            pass

    def is_awaited(self) -> bool:
        """Whether others are at the kernels of what is planned."""
        return self._row.begin is not None and not self._code.is_done

    def finish(self) -> Built:
        self.plan()
        if self._row.begin is not None:
            with self._log.stage("codegen"):
                self._code.wait()
        return self._load()

    # -- the steps ---------------------------------------------------------------------------------

    def _prepare(self) -> None:
        aten, log = self._aten, self._log
        # which knows more that may follow a product in its kernel
        if self._device.type == "cuda" and not self._options.tunes:
            run_passes(aten, LIBRARY_PASSES)
        log.rewrites += aten.rewrites
        build_control_flow(aten, log, self._options, self._hints)
        if self._machine is not None:
            keep_all(aten, "the program is replayed as a CUDA graph", log.donated.append)
            # a table of buffers is made for each call
            self._target = replace(self._target, shares_launches=False)

    def _lower(self) -> None:
        log, is_fast = self._log, self._options.numerics == "fast"
        with log.stage("lower"):
            self._loops = lower(self._aten, self._row.supported(), is_fast, self._target)
            log.loops = self._loops
            # 1% of the time, and what is wrong does not reach anybody's memory
            verify(self._loops)

    def _schedule(self) -> None:
        log = self._log
        with log.stage("schedule"):
            choose = _tuner if self._options.tunes else _estimator
            tuner = choose(self._device)
            note = log.decisions.append
            self._plan = schedule(self._loops, note, self._frugal, self._target, tuner)
            log.plan = self._plan
        if tuner is not None:
            log.tuned += tuner.notes
        if self._options.freeze and self._device.type == "cpu":
            with log.stage("prepack"):
                prepack(self._plan)

    def _generate(self) -> None:
        given = self._plan, self._device, self._hints, self._options
        with self._log.stage("codegen"):
            if self._row.begin is None:
                self._code = self._row.machine_code(*given)
            else:
                self._code = self._row.begin(*given, self._soon)
            self._log.code = self._code

    def _load(self) -> Built:
        log, plan, code, device = self._log, self._plan, self._code, self._device
        with log.stage("load"):
            program = log.program = Program(plan, code, device)
        replayed: Replayed | None = None
        if self._options.replays:
            replay = log.replayed = _replay(program, code, device, self._machine)
            if not isinstance(replay, str):
                replayed = replay
        return Built(self._aten, self._loops, plan, code, program, replayed)


def build_control_flow(
    aten: AtenGraph, log: Log, options: Options, hints: Mapping[Symbol, int]
) -> None:
    """The graphs of each `cond` and `while_loop` become programs, which the nodes name then."""
    for node in control_nodes(aten.graph):
        number, *others, tensors, sizes = node.args
        op, programs = control_flow(number), []  # type: ignore[arg-type]
        fakes = list(map(fake_result, tensors))  # type: ignore[arg-type]
        with log.stage("trace"):
            graphs, symbols = op.traced(fakes)
        for graph in graphs:
            inside = Log(aten=graph)
            log.inside += [inside]
            programs.append(build(graph, inside, options, hints).program)
        call = control_call(op.__name__, programs, op.parameters)
        compiled = node.meta["compiled"] = Compiled(op, call)
        integers = *op.integers_among(sizes, fakes), *map(to_expr, symbols)  # type: ignore[arg-type]
        node.args = (compiled.number, *others, tensors, integers)


def _device(graph: torch.fx.Graph) -> torch.device:
    """The device of all tensors of a graph, or the GPU where some are on the CPU. Raises
    Unsupported for other two devices, and for one that there is no code for."""
    device, where = device_of(graph)
    require_code(device, where)
    return device


def _replay(
    program: Program, code: Any, device: torch.device, machine: Machine | None
) -> Replayed | str:
    """What replays a program as CUDA graphs, or why nothing does."""
    if machine is None:
        return "there are none on a CPU"
    programs: tuple[Program, Program] | None = None
    recorded, plans = program, program.plan.split_by_device()
    if plans:
        programs = Program(plans[0], code, device), Program(plans[1], code, device)
        recorded = programs[0]
    return why_not(recorded, machine.costs) or Replayed(program, machine, programs)


def _detached_windows(aten: AtenGraph, fakes: Sequence[Any]) -> list[OutputWindow]:
    """The outputs that are views of inputs with a history, and have none themselves."""
    windows = []
    for k, spec in enumerate(aten.outputs):
        base = spec.position
        if base is not None and fakes[base].requires_grad and not spec.tracked:
            windows.append(output_window(k, Slot("input", base), spec).converted(to_expr))
    return windows


def _estimator(device: torch.device) -> FewRows | None:
    """What chooses among ways to compute products of a few rows, on a GPU."""
    if device.type != "cuda" or torch.version.hip:
        return None
    from ingot.runtime.measuring import chip_of

    return FewRows(chip_of(device))


def _tuner(device: torch.device) -> Tuner | None:
    """What chooses among ways to compute a product, on a GPU."""
    if device.type == "cpu" or torch.version.hip:
        return None
    from ingot.runtime.measuring import Measurement, chip_of
    from ingot.runtime.tuning import Tuner

    full = float32_precisions()[0] != "tf32"
    chip = chip_of(device)
    return Tuner(chip, Measurement(device, chip), ("ieee",) if full else ("ieee", "tf32"))
