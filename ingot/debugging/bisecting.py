"""`python -m ingot bisect`: which stage, which pass of it, or which kernel is at fault.

In: a script that fails. Out: a `Verdict`. The graph goes through the compiler step by step, and
each step's artefact can be run without what follows: ATen graphs by eager, after each pass; loop IR
and plans by NumPy; a plan kernel by kernel, each beside its reference. The first that is wrong
tells. Of a program that records gradients, the joint graph of forward and backward goes that way.
"""

from __future__ import annotations

import ctypes
import functools
import warnings
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ingot.capture import Captured, Request, capture_call
from ingot.capture.inner_calls import unwatched
from ingot.capture.sources import ArgSource
from ingot.codegen.llvm.module import CompiledKernels, compile_kernels
from ingot.codegen.reference import run_graph, run_kernel, run_plan
from ingot.debugging.comparing import Comparison, Outcome, outcome, tangent_of
from ingot.debugging.inputs import copies
from ingot.debugging.locating import locate
from ingot.debugging.repro import Repro, compiler_of, failure, in_modes
from ingot.errors import ReproError
from ingot.explain import measure
from ingot.explain.trial import tolerance
from ingot.gradients.captured_graph import wants_gradients
from ingot.graph.ambient import undisturbed
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.joint import trace_joint
from ingot.graph.passes.pipeline import JOINT_PASSES, PASSES, TRAINING_PASSES, changes
from ingot.graph.tracing import trace
from ingot.loops.ir import LoopGraph
from ingot.loops.lowering.lower import lower
from ingot.loops.verify import verify
from ingot.options import Options
from ingot.rules import hand_over
from ingot.schedule import schedule
from ingot.schedule.kernel import Kernel
from ingot.schedule.plan import KernelStep, Plan

Run = Callable[..., Sequence[Any]]


class Verdict(NamedTuple):
    """The step at fault, and lines about it: what differs behind it, which kernel or rewrites."""

    step: str
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n  ".join((f"at fault: {self.step}", *self.details))


class _Found(Exception):
    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.step)
        self.verdict = verdict


def bisect(repro: Repro, note: Callable[[str], object] = lambda text: None) -> Verdict:
    """Which step is at fault. Raises ReproError for a script that does not fail, or is of a GPU.

    `note` is told of each step that was right.
    """
    found = failure(repro)
    if not found.kind:
        raise ReproError("the script does not fail: nothing is at fault")
    inputs = repro.made()
    if any(isinstance(value, Tensor) and value.device.type != "cpu" for value in inputs):
        raise ReproError("bisect is for programs on a CPU: move the inputs of the script there")
    note(f"{found.kind}: {found.what}")
    hand_over()
    walk = _Walk(repro, inputs, note)
    with in_modes(repro.modes), unwatched(), undisturbed(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        try:
            walk.go()
        except _Found as end:
            return end.verdict
        except Exception as error:
            if type(error).__name__ == found.kind:
                return Verdict(walk.step, (str(error),))
            raise
    return Verdict("none of the steps by itself", ("each gives what eager does", found.what))


class _Walk:
    """The steps, one after the other; `step` is the one at work."""

    def __init__(self, repro: Repro, inputs: Sequence[Any], note: Callable[[str], object]) -> None:
        self.repro, self.note = repro, note
        self.inputs = list(inputs)
        self.step = "capture"
        self.tangents: list[Tensor] = []

    def go(self) -> None:
        """Raises `_Found` at the first that is wrong."""
        captured = self._captured()
        aten = self._traced(captured)
        self.step = "lowering"
        loops = lower(aten, fast_libraries=self.repro.options.get("numerics") == "fast")
        self.step = "the verifier of loop IR"
        verify(loops)
        self._require("lowering", lambda *given: run_graph(loops, given), self._named)
        self.step = "the schedule"
        plan = schedule(loops, frugal=bool(self.tangents))
        self._require(
            "the schedule",
            lambda *given: run_plan(plan, given),
            lambda: _of_schedule(self, loops, plan),
        )
        self.step = "code generation"
        code = compile_kernels(plan.kernels, [symbol for symbol, *_ in plan.graph.symbols])
        kernels = _Kernels(code)
        self._outcome(lambda *given: run_plan(plan, given, kernels.run))
        if kernels.wrong:
            details = (*_about(kernels.wrong), *self._named())
            raise _Found(Verdict(f"the code of the kernel {kernels.wrong[0].name}", details))
        self.note("the code of each kernel is right")
        self.step = "what follows: memory, steps and, of gradients, the cut into two programs"

    # -- the steps ---------------------------------------------------------------------------------

    def _captured(self) -> Captured:
        """Captures the graph again, and puts case and inputs in its order."""
        function, given = self.repro.case.function(), self.inputs
        options = Options.checked(fullgraph=True, **self.repro.options)
        captured = capture_call(function, given, {}, Request(replace(options, dynamic=False)))
        names = []
        for each in captured.inputs:
            if not isinstance(each.source, ArgSource):
                raise ReproError(f"an input of the graph is no argument: {each.source.name}")
            names.append(self.repro.case.parameters[each.source.index])
        by_name = dict(zip(self.repro.case.parameters, given))
        case = replace(self.repro.case, parameters=tuple(names))
        self.inputs = list(map(by_name.__getitem__, names))
        rest = {name: value for name, value in by_name.items() if name not in names}

        def eager(*values: Any) -> tuple[Any, ...]:
            order = (*names, *rest)
            return replace(case, parameters=order).run((*values, *rest.values()))

        self.comparison = Comparison(eager, self.inputs, self.repro.gradients)
        return captured

    def _traced(self, captured: Captured) -> AtenGraph:
        module, fakes = captured.graph_module, [each.fake for each in captured.inputs]
        self.step = "tracing"
        if not wants_gradients(captured):
            passes = functools.partial(self._simplify, PASSES)
            return trace(module, fakes, captured.context, simplify=passes)
        for value in self.comparison.expected.results:
            if isinstance(value, Tensor) and value.requires_grad:
                self.tangents.append(tangent_of(value))
        passes = functools.partial(self._simplify, (*JOINT_PASSES, *TRAINING_PASSES))
        return trace_joint(module, fakes, captured.context, passes).aten

    def _simplify(self, passes: Any, aten: AtenGraph) -> None:
        """Runs the passes of a graph, and the graph after each."""
        self._require("tracing, or a decomposition", lambda *g: aten.function()(*g), self._named)
        before = list(aten.graph.nodes)
        for name, run in passes:
            self.step = f"the pass {name!r}"
            run(aten)
            after = list(aten.graph.nodes)
            if after == before:
                continue
            rewrites = functools.partial(tuple, changes(name, before, after))
            self._require(self.step, lambda *given: aten.function()(*given), rewrites)
            before = after

    # -- runs --------------------------------------------------------------------------------------

    def _require(
        self, step: str, run: Run, details: Callable[[], Sequence[str]] = lambda: ()
    ) -> None:
        """Raises `_Found` where what runs is wrong."""
        actual = self._outcome(run)
        if actual is None:
            self.note(f"{step}: its artefact cannot be run by itself")
            return
        difference = self.comparison.between(actual, only_values=True)
        if difference is not None:
            raise _Found(Verdict(step, (str(difference), *details())))
        self.note(f"{step} is right")

    def _outcome(self, run: Run) -> Outcome | None:
        """What a run gives, in the order of eager's results; None where it cannot be run."""
        expected = self.comparison.expected
        given = copies(self.inputs, requires_grad=False)
        with torch.no_grad():
            found = outcome(
                lambda *values: run(*values, *self.tangents), given, False, self.comparison.state
            )
        if found.raised:
            return None
        count, gradients = len(expected.results), []
        remaining = iter(found.results[count:])
        for gradient in expected.gradients:
            gradients.append(None if gradient is None else next(remaining, None))
        return Outcome(found.results[:count], found.inputs, tuple(gradients))

    def _named(self) -> tuple[str, ...]:
        """A line about the first op that differs."""
        repro = self.repro
        located = locate(repro.case, repro.made(), compiler_of(repro), repro.gradients)
        if located is None:
            return ()
        return (f"op: {located.statement.callee}  {located.statement.where}", located.what)


# -- schedules -------------------------------------------------------------------------------------


def _of_schedule(walk: _Walk, loops: LoopGraph, plan: Plan) -> tuple[str, ...]:
    """Whether it is fusion, and in which kernel values begin to differ."""
    apart = schedule(loops, frugal=plan.frugal, fuses=False)
    actual = walk._outcome(lambda *given: run_plan(apart, given))
    lines = []
    if actual is not None and walk.comparison.between(actual, only_values=True) is None:
        lines.append("with a kernel for each loop nest it is right: fusion is at fault")
    step = _first_wrong_step(walk, loops, plan)
    if step is not None:
        origin = step.kernel.origin
        lines.append(f"kernel {step.kernel.name}: {', '.join(origin.ops)}  {origin.where}")
    return tuple(lines)


def _first_wrong_step(walk: _Walk, loops: LoopGraph, plan: Plan) -> KernelStep | None:
    """The first launch that leaves something else in a buffer than the loop graph does."""
    expected: dict[str, Tensor] = {}
    wrong: list[KernelStep] = []

    def keep(node: Any, memory: Mapping[str, Tensor]) -> None:
        for name in node.writes():
            if name in memory:
                expected[name] = memory[name].clone()

    def look(step: Any, memory: Mapping[str, Tensor]) -> None:
        if not isinstance(step, KernelStep):
            return
        for name, parameter in zip(step.arguments, step.parameters):
            if parameter.written and name in expected and not wrong:
                if differs(memory[name], expected[name]):
                    wrong.append(step)

    walk._outcome(lambda *given: run_graph(loops, given, keep))
    walk._outcome(lambda *given: run_plan(plan, given, seen=look))
    return wrong[0] if wrong else None


def differs(value: Tensor, expected: Tensor) -> bool:
    """Whether two flat memories differ by more than rounding, elements that nobody wrote aside."""
    if value.shape != expected.shape:
        return False
    return not measure.error(value, expected) <= tolerance(None, expected)


# -- kernels ---------------------------------------------------------------------------------------

_FUNCTION = ctypes.CFUNCTYPE(
    ctypes.c_int32,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_void_p,
)


class _Kernels:
    """Runs kernels beside their references; `wrong` are those that differ."""

    def __init__(self, code: CompiledKernels) -> None:
        self.code = code
        self.wrong: list[Kernel] = []

    def run(
        self, kernel: Any, arrays: MutableMapping[str, Tensor], sizes: Mapping[Any, int]
    ) -> None:
        """Leaves what the reference does in `arrays`."""
        if not isinstance(kernel, Kernel):
            run_kernel(kernel, arrays, sizes)
            return
        own = {}
        for name, array in arrays.items():
            own[name] = array.clone()
        status = self._launch(kernel, own, sizes)
        run_kernel(kernel, arrays, sizes)
        written = [p.name for p in kernel.parameters if p.written]
        if status or any(differs(own[name], arrays[name]) for name in written):
            self.wrong.append(kernel)

    def _launch(
        self, kernel: Kernel, arrays: Mapping[str, Tensor], sizes: Mapping[Any, int]
    ) -> int:
        """Runs the machine code over all points; its status."""
        tensors = [arrays[p.name] for p in kernel.parameters]
        scratch = torch.empty(
            self.code.scratch_bytes(kernel).evaluate(dict(sizes)) + 64, dtype=torch.uint8
        )
        aligned = (scratch.data_ptr() + 63) // 64 * 64
        buffers = (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])
        values = (ctypes.c_int64 * (len(sizes) + 1))(*sizes.values())
        function = _FUNCTION(self.code.address(kernel))
        status: int = function(buffers, values, 0, kernel.points.evaluate(dict(sizes)), aligned)
        return status


def _about(wrong: Sequence[Kernel]) -> tuple[str, ...]:
    """Lines about the first kernel that is wrong."""
    origin = wrong[0].origin
    line = f"ops: {', '.join(origin.ops)}  {origin.where}"
    if len(wrong) > 1:
        return line, f"and the code of {len(wrong) - 1} more"
    return (line,)
