"""`ingot.graph_for`: the text of the graph that a call would run, fed back and held against
eager."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ingot
from tests.oracle import tensors_in

X = torch.linspace(-2, 2, 24).reshape(4, 6)
LAYER = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))
TABLE = {"scale": torch.full((6,), 3.0), "shift": 0.5}


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project, self.scale = nn.Linear(6, 12), 0.25

    def forward(self, x):
        keys, values = self.project(x).chunk(2, -1)
        scores = keys @ keys.T * self.scale
        return torch.softmax(scores, -1) @ values


@ingot.allow_in_graph
def taken_whole(x):
    return x.abs().sqrt()


def several(x, k):
    total = x
    for step in range(k):
        total = total + x * step
    return total, {"mean": total.mean(-1), "k": k}


def with_a_literal(x):
    return x * torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]) + TABLE["scale"] * TABLE["shift"]


def with_modes(x):
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ x.T
    with torch.no_grad():
        return y.float() + 1, y.dtype == torch.bfloat16


def with_other_constants(x):
    y = x.to(torch.float64).clamp(min=-math.inf, max=math.inf)
    return torch.cat([y, torch.full_like(y, math.nan)], 0), torch.zeros(2, device=x.device)


def with_slices(x):
    return x[1:, ::2], x[..., None, -1], x[[0, 2]], x.view(-1)[3:9]


PROGRAMS = {
    "a function": (lambda x: torch.relu(x + 1).sum(-1), (X,)),
    "methods": (lambda x: x.sin().mul(2).transpose(0, 1).contiguous(), (X,)),
    "layers": (LAYER, (X,)),
    "a module": (Attention(), (X,)),
    "a loop and containers": (several, (X, 3)),
    "globals and a literal": (with_a_literal, (X,)),
    "modes": (with_modes, (X,)),
    "infinities": (with_other_constants, (X,)),
    "slices": (with_slices, (X,)),
    "a function taken whole": (lambda x: taken_whole(x) + 1, (X,)),
    "library calls": (lambda x: F.cross_entropy(x, torch.arange(4)), (X,)),
    "nothing": (lambda x: x, (X,)),
    "splits": (lambda x: torch.split(x, [2, 4], 1)[1] * torch.ones(4), (X,)),
}


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_text_does_what_eager_does(name):
    function, arguments = PROGRAMS[name]
    graph = ingot.graph_for(function)(*arguments)
    results = tensors_in(graph.function()(*graph.inputs))
    expected = [t for t in tensors_in(function(*arguments)) if name != "nothing"]
    assert len(results) == len(expected)
    for result, eager in zip(results, expected):
        assert result.dtype == eager.dtype and result.stride() == eager.stride()
        assert torch.equal(result.nan_to_num(7.0), eager.nan_to_num(7.0))


def test_sizes_that_vary():
    compiled = ingot.compile(lambda x, k: x * x.shape[0] + k, dynamic=True)
    for rows in (4, 3):
        graph = ingot.graph_for(compiled)(X[:rows], rows + 5)
        (result,) = graph.function()(*graph.inputs)
        assert torch.equal(result, X[:rows] * rows + (rows + 5))
    assert ingot.explain(compiled)(X, 9).graph_count == 1


def test_gradients_reach_the_inputs():
    with torch.enable_grad():
        w = torch.rand(6, 2, requires_grad=True)
        graph = ingot.graph_for(lambda x, w: torch.tanh(x @ w).sum())(X, w)
        (result,) = graph.function()(*graph.inputs)
        (gradient,) = torch.autograd.grad(result, w)
        (expected,) = torch.autograd.grad(torch.tanh(X @ w).sum(), w)
    assert torch.equal(gradient, expected)


def test_the_function_is_not_run():
    said = []

    def function(x):
        said.append("run")
        print("run")
        x.add_(1)
        return x * 2

    x = X.clone()
    graph = ingot.graph_for(function)(x)
    assert said == [] and torch.equal(x, X)
    assert "run" in graph.result and "add_" in graph.code
    (result,) = graph.function()(*[value.clone() for value in graph.inputs])
    assert torch.equal(result, (X + 1) * 2) and torch.equal(x, X)


def test_each_line_has_the_users():
    graph = ingot.graph_for(several)(X, 2)
    first = several.__code__.co_firstlineno
    assert graph.where == f"{__file__}:{first}"
    assert f"# {__file__}:{first + 3}" in graph.code and f"# {__file__}:{first + 4}" in graph.code
    assert graph.sources == ["x"] and graph.inputs[0] is X
    assert any(guard.startswith("k == 2") for guard in graph.guards)
    text = str(graph)
    assert "# its inputs are\n#   x\n" in text and text.endswith(graph.code)


def test_it_is_that_of_the_entry_that_holds():
    compiled = ingot.compile(lambda x, flag: x.sin() if flag else x.cos())
    codes = {flag: ingot.graph_for(compiled)(X, flag).code for flag in (True, False)}
    assert "sin" in codes[True] and "cos" in codes[False]
    before = len(ingot.explain(compiled)(X, True).compilations)
    assert "sin" in ingot.graph_for(compiled)(X, True).code
    assert len(ingot.explain(compiled)(X, True).compilations) == before == 2


def test_up_to_a_graph_break():
    ran = []

    @ingot.disable
    def watch(y):
        ran.append(y)

    def function(x):
        y = x.sin()
        watch(y)
        return y.cos()

    graph = ingot.graph_for(function)(X)
    assert ran == [] and "sin" in graph.code and "cos" not in graph.code
    assert graph.break_ is not None and "watch() is disabled" in graph.break_.reason
    (result,) = graph.function()(*graph.inputs)
    assert torch.equal(result, X.sin())


def test_a_method_that_is_compiled():
    class Scaled:
        scale = 3.0

        @ingot.compile
        def call(self, x):
            return x * self.scale

    graph = ingot.graph_for(Scaled().call)(X)
    assert torch.equal(graph.function()(*graph.inputs)[0], X * 3)


def test_a_call_that_runs_in_eager():
    @ingot.disable
    def function(x):
        return x + 1

    compiled = ingot.compile(function)
    for _ in range(2):
        with pytest.raises(ingot.Unsupported, match="disabled"):
            ingot.graph_for(compiled)(X)


def test_a_call_beyond_the_limit():
    compiled = ingot.compile(lambda x, k: x * int(k), recompile_limit=1)
    compiled(X, "1")
    with pytest.raises(ingot.Unsupported, match="more than 1"):
        ingot.graph_for(compiled)(X, "2")


def test_mistakes():
    with pytest.raises(TypeError, match=r"ingot.graph_for: expected a function"):
        ingot.graph_for(3)
    with pytest.raises(TypeError):
        ingot.graph_for(several)(X)
