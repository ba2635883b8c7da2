"""What backends find beside the graph, as torch.compile's do: the nodes' meta, and a tracing
context."""

from __future__ import annotations

import copy
import gc
import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import nn
from torch._functorch.aot_autograd import aot_module_simplified
from torch._guards import TracingContext, detect_fake_mode
from torch._inductor.compile_fx import compile_fx
from torch._subclasses.fake_tensor import FakeTensor

import ingot
from ingot.compiler import Compiler

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return halved(self.layers(x)) + x.shape[0]


def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


class Recording:
    """A backend that notes what `look` finds in each graph."""

    def __init__(self, look: Any) -> None:
        self.look, self.found = look, list[Any]()

    def __call__(self, gm: Any, inputs: Any) -> Any:
        self.found.append(self.look(gm, inputs))
        return gm.forward


def seen_by(compile: Any, function: Any, look: Any, *args: Any) -> Any:
    """What `look` finds in the only graph of a call."""
    backend = Recording(look)
    compile(function, backend=backend)(*args)
    [found] = backend.found
    return found


def geometry(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride(), value.dtype, value.device, value.requires_grad
    return value


def operations(gm: Any) -> list[Any]:
    return [node for node in gm.graph.nodes if node.op.startswith("call")]


def test_example_values_are_those_of_torch_compile() -> None:
    def look(gm: Any, inputs: Any) -> Any:
        for node in gm.graph.nodes:
            assert "example_value" in node.meta or node.op == "output"
        values = [node.meta["example_value"] for node in operations(gm)]
        assert {type(value) for value in values} == {FakeTensor}
        return list(map(geometry, values))

    block = Block()
    torch._dynamo.reset()
    assert seen_by(ingot.compile, block, look, X) == seen_by(torch.compile, block, look, X)


def test_they_are_copied_with_the_node() -> None:
    def look(gm: Any, inputs: Any) -> Any:
        [sine, _] = operations(gm)
        copied = copy.copy(sine.meta)
        assert copied["example_value"] is sine.meta["example_value"]
        assert sine.meta.get("nothing", 3) == 3
        with pytest.raises(KeyError):
            sine.meta["nothing"]
        return copied.get("example_value").shape

    assert seen_by(ingot.compile, lambda x: x.sin().cos(), look, X) == (3, 4)


def test_where_nodes_come_from() -> None:
    def look(gm: Any, inputs: Any) -> Any:
        found = []
        for node in operations(gm):
            classes = [cls for _, cls in node.meta["nn_module_stack"].values()]
            found.append((node.name, node.meta["stack_trace"], classes))
        return found

    linear, relu, division, addition = seen_by(ingot.compile, Block(), look, X)
    assert linear[2] == [Block, nn.Sequential, nn.Linear] and relu[2][-1] is nn.ReLU
    assert addition[2] == [Block]
    files = [line for line in division[1].splitlines() if line.startswith("  File")]
    assert [line.rpartition("in ")[2] for line in files] == ["forward", "halved"]
    assert "return x / 2" in division[1] and "torch/nn" not in linear[1]


def test_the_tracing_context() -> None:
    def look(gm: Any, inputs: Any) -> Any:
        context = TracingContext.get()
        mode = detect_fake_mode(inputs)
        assert context.fake_mode is mode is detect_fake_mode(inputs)
        [node] = operations(gm)
        assert node.meta["example_value"].fake_mode is mode
        return mode.shape_env

    assert seen_by(ingot.compile, torch.sin, look, X) is None
    assert TracingContext.try_get() is None


def test_modes_and_effects_stay_as_they_were() -> None:
    def switching(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = x.sin()
        x.add_(1)
        return y * x

    def look(gm: Any, inputs: Any) -> Any:
        return [node.meta.get("example_value") is None for node in operations(gm)]

    x = X.clone()
    seen_by(ingot.compile, switching, look, x)
    assert torch.is_grad_enabled() and torch.equal(x, X + 1)


def test_an_operation_that_fails_on_fakes_has_none() -> None:
    @ingot.allow_in_graph
    def read(x: torch.Tensor) -> torch.Tensor:
        if type(x) is FakeTensor:
            raise RuntimeError("its elements are needed")
        return x + 1

    def look(gm: Any, inputs: Any) -> Any:
        return ["example_value" in node.meta for node in operations(gm)]

    assert seen_by(ingot.compile, lambda x: read(x.sin()).cos(), look, X)[0]


def test_the_tensors_of_the_call_are_let_go() -> None:
    def look(gm: Any, inputs: Any) -> Any:
        return gm

    x = X.clone()
    gm = seen_by(ingot.compile, torch.sin, look, x)
    alive = weakref.ref(x)
    del x
    gc.collect()
    assert alive() is None
    assert "example_value" not in operations(gm)[0].meta  # nobody asked in time


def aot(gm: Any, inputs: Any) -> Any:
    return aot_module_simplified(gm, inputs, fw_compiler=lambda g, _: make_boxed_func(g.forward))


@pytest.mark.parametrize("backend", [aot, compile_fx], ids=["aot", "inductor"])
def test_compilers_of_torch_as_backends(backend: Any) -> None:
    block, x = Block(), X.clone().requires_grad_()
    compiled: Any = ingot.compile(block, backend=backend)
    for run in (compiled, block):
        run(x).sum().backward()
    assert torch.allclose(compiled(x), block(x), atol=1e-6)
    assert x.grad is not None
    expected = torch.autograd.grad(block(x).sum(), x)[0]
    assert torch.allclose(x.grad, 2 * expected, atol=1e-6)


def test_a_backend_that_traces_compiles_for_each_size() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * x.shape[0]

    compiled = ingot.compile(scaled, backend=aot, dynamic=True)
    report = ingot.explain(compiled)(torch.ones(3, 2))
    assert "the backend 'aot' traces sizes" in report.fixed_sizes[0]
    for rows in (3, 5, 3):
        x = torch.ones(rows, 2)
        assert torch.equal(compiled(x), scaled(x))
    compiler = Compiler.of(compiled)
    assert compiler is not None and len(compiler.entries) == 2

    plain = ingot.compile(scaled, backend=lambda gm, inputs: gm.forward, dynamic=True)
    for rows in (3, 5):
        plain(torch.ones(rows, 2))
    compiler = Compiler.of(plain)
    assert compiler is not None and len(compiler.entries) == 1


PROGRAM = """
import sys, torch, ingot
ingot.compile(torch.sin, backend=lambda gm, inputs: gm.forward)(torch.ones(3))
print("torch._dynamo" in sys.modules)
"""


def test_nothing_is_imported_for_a_backend_that_does_not_ask() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
