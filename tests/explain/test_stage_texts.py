"""Each stage's text is what it says: graphs and loop IR run as Python and give the program's
results, LLVM's, Triton's and C++'s texts compile. Thirty programs, forward and backward."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import llvmlite.binding as llvm
import pytest
import torch

import ingot
from ingot.codegen.cpp import module as cpp
from ingot.codegen.installed_triton import available
from ingot.codegen.llvm.target import chosen
from ingot.codegen.mixed import MixedKernels
from ingot.compilation import Compilation
from ingot.compiler import Compiler
from ingot.explain.programs import complete, with_inside
from ingot.explain.stages import stage_report
from ingot.loops.lowering.lower import lower
from ingot.loops.target import GPU
from ingot.schedule import schedule
from ingot.schedule.kernel import Kernel
from ingot.schedule.plan import KernelStep
from ingot.torch_private import tree_flatten
from tests.explain.stage_programs import PROGRAMS
from tests.long import long

QUICK = ("layer_norm_gelu", "flex_attention", "scatter", "dynamic")
"""What `make test` runs; `make test-long` runs all."""


def each(quick: Sequence[str] = QUICK) -> Any:
    """A test's program, by name."""
    names = [name if name in quick else pytest.param(name, marks=long) for name in PROGRAMS]
    return pytest.mark.parametrize("name", names)


@dataclass
class Known:
    """A program that was compiled and has not run, and what eager gives.

    `inputs` are those of the captured graph before the call, `written` after it. `gradients` are
    those of the inputs that the joint graph has gradients of, for these `tangents`.
    """

    compilation: Compilation
    inputs: list[Any]
    written: list[Any]
    results: list[Any]
    tangents: list[torch.Tensor]
    gradients: list[torch.Tensor]

    def given(self) -> list[Any]:
        """Copies of the inputs, and the random numbers that eager drew."""
        torch.manual_seed(1)
        return snapshot(self.inputs)

    def programs(self) -> Iterator[Compilation]:
        """The forward, the backward, and what is inside of them."""
        yield from with_inside(self.compilation)
        if self.compilation.backward is not None:
            yield from with_inside(self.compilation.backward)


def snapshot(values: Sequence[Any]) -> list[Any]:
    """Tensors as copies in their layout, that have no history."""
    copies = []
    for value in values:
        if isinstance(value, torch.Tensor):
            own = value.detach()
            value = torch.empty_strided(own.shape, own.stride(), dtype=own.dtype).copy_(own)
        copies.append(value)
    return copies


@functools.cache
def known(name: str) -> Known:
    program = PROGRAMS[name]
    torch.manual_seed(0)
    function, arguments = program.make()
    for x in arguments:
        if program.trained and isinstance(x, torch.Tensor) and x.is_floating_point():
            x.requires_grad_()
    with torch.set_grad_enabled(program.trained):
        compiled: Any = ingot.compile(function, fullgraph=True, dynamic=program.dynamic or None)
        inputs = ingot.graph_for(compiled)(*arguments).inputs
        (compilation,) = Compiler.of(compiled).compilations  # type: ignore[union-attr]
        complete(compilation)
        before = snapshot(inputs)
        torch.manual_seed(1)
        results = tree_flatten((program.eager or function)(*arguments))[0]
    found = Known(compilation, before, snapshot(inputs), results, [], [])
    cut = compilation.log.partition
    if cut is not None:
        contract = cut.joint.contract
        differentiated = [results[k] for k in contract.differentiable_outputs]
        found.tangents += [torch.randn_like(result) for result in differentiated]
        leaves = [inputs[k] for k in contract.gradient_inputs]
        found.gradients += torch.autograd.grad(differentiated, leaves, found.tangents)
    return found


def assert_same(found: Sequence[Any], expected: Sequence[Any]) -> None:
    """Tensors of the same dtypes and shapes, and values up to what rounding makes of them."""
    assert len(found) >= len(expected) > 0
    for mine, theirs in zip(found, expected):
        if isinstance(theirs, torch.Tensor):
            torch.testing.assert_close(mine, theirs.detach(), rtol=1e-5, atol=2e-6)
        else:
            assert mine == theirs


def saved(known: Known, forward: Sequence[Any]) -> list[Any]:
    """What the backward's graph is given, of what the forward's gave."""
    cut, given = known.compilation.log.partition, []
    assert cut is not None
    places = {"input": known.written, "output": forward}
    places["kept"] = forward[len(cut.joint.contract.outputs) :]
    for slot in cut.saved:
        given.append(places[slot.role][slot.position])
    given += known.tangents
    for position, kind, dim in cut.symbols.values():
        number = known.inputs[position]
        given.append(number if kind == "value" else number.shape[dim])
    return given + list(forward[len(forward) - len(cut.decided) :])[: len(cut.decided)]


# -- Python ----------------------------------------------------------------------------------------


def test_there_are_thirty_programs():
    assert len(PROGRAMS) >= 30 and set(QUICK) < set(PROGRAMS)


@each()
@pytest.mark.parametrize("stage", ["capture", "aten", "loops"])
def test_a_forward_runs_as_python(name, stage):
    own = known(name)
    given = own.given()
    with torch.set_grad_enabled(PROGRAMS[name].trained):
        results = stage_report(own.compilation, stage).function()(*given)
    assert_same(results, own.results)
    if given:
        assert_same(given, own.written)


@each()
@pytest.mark.parametrize("stage", ["joint", "aten", "loops"])
def test_a_backward_runs_as_python(name, stage):
    if not PROGRAMS[name].trained:
        pytest.skip("this program has no backward")
    own = known(name)
    backward, given = own.compilation.backward, own.given()
    assert backward is not None
    with torch.set_grad_enabled(PROGRAMS[name].trained):
        if stage == "joint":
            run = stage_report(own.compilation, "joint").function()
            gradients = run(*given, *own.tangents)[-len(own.gradients) :]
        else:
            forward = stage_report(own.compilation, "aten").function()(*given)
            gradients = stage_report(backward, stage).function()(*saved(own, forward))
    assert_same(gradients, own.gradients)


def test_what_is_no_python_says_so():
    report = stage_report(known("pointwise").compilation, "llvm")
    with pytest.raises(TypeError, match="the llvm stage of .* has no Python that runs"):
        report.function()


# -- what compilers read ---------------------------------------------------------------------------


@each()
def test_llvm_compiles(name):
    machine = chosen().machine()
    for program in known(name).programs():
        text = stage_report(program, "llvm").text
        assert text is not None
        parsed = llvm.parse_assembly(text)
        parsed.verify()
        written = {kernel.kernel.name for kernel in program.log.kernel_steps}
        assert bool(list(parsed.functions)) == bool(written)
        assert machine.emit_object(parsed)[:4] == b"\x7fELF"


@each()
def test_cpp_compiles(name, monkeypatch):
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++ here")
    monkeypatch.setattr(cpp.CompiledKernels, "_compile", lambda self: None)
    monkeypatch.setattr(cpp.CompiledKernels, "_load", lambda self: None)
    for program in known(name).programs():
        plan = program.log.plan
        assert plan is not None
        kernels = [step.kernel for step in program.log.kernel_steps]
        code = cpp.compile_kernels(kernels, [symbol for symbol, *_ in plan.graph.symbols])
        text = stage_report(replace(program, log=replace(program.log, code=code)), "cpp").text
        assert text is not None
        command = [compiler, "-std=c++17", "-fsyntax-only", "-x", "c++", "-"]
        run = subprocess.run(command, input=text, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr


@pytest.mark.skipif(not available(), reason="Triton is not installed")
@each(quick=("layer_norm_gelu",))
def test_triton_compiles(name):
    from ingot.codegen.triton import Gpu, compile_kernels, supported

    for program in known(name).programs():
        assert program.log.aten is not None
        plan = schedule(lower(program.log.aten, supported, target=GPU), target=GPU)
        steps = []
        for step in plan.steps:
            if isinstance(step, KernelStep) and not step.on_host:
                steps.append(step)
        kernels = [step.kernel for step in steps]
        compiled = compile_kernels(steps, Gpu("cuda", 90))
        code = replace(program, log=replace(program.log, code=compiled, plan=plan))
        text = stage_report(code, "llvm").text
        assert text is not None and "import triton" in text
        for kernel in kernels:
            assert isinstance(kernel, Kernel)
            assert f"def {compiled.written(kernel).name}(" in text
            assert compiled.binary(kernel).image[:4] == b"\x7fELF"
        compile(text, "<kernels>", "exec")


class Side:
    """Code for one device."""

    seconds: dict[str, float] = {}

    def __init__(self, name: str) -> None:
        self.name = name

    def module_text(self, kernels: Sequence[Any]) -> str:
        return f"{self.name}: {', '.join(kernel.name for kernel in kernels)}"


def test_the_sides_of_a_program_are_one_file_each():
    steps = []
    for program in known("softmax").programs():
        steps += program.log.kernel_steps
    assert len(steps) > 2
    steps[1] = replace(steps[1], on_host=True)
    mixed: Any = MixedKernels(Side("GPU"), Side("CPU"), steps)  # type: ignore[arg-type]
    kernels = [step.kernel for step in steps]
    names = [kernel.name for kernel in kernels if kernel is not kernels[1]]
    text = f"GPU: {', '.join(names)}\n\nCPU: {kernels[1].name}"
    assert mixed.module_text(kernels) == text
    assert mixed.module_text(kernels[1:2]) == f"CPU: {kernels[1].name}"
