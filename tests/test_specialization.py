"""What a compiled graph is made for: which arguments are there, and which sizes broadcast. Seen in
the graphs."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ingot
from ingot.compiler import Compiler
from tests.tracked import Tracked

OPTIONAL = {
    "shift": torch.add,
    "factor": torch.mul,
    "less": torch.sub,
    "floor": torch.maximum,
    "top": torch.minimum,
}


def with_options(
    x: Tensor,
    shift: Tensor | None = None,
    factor: Tensor | None = None,
    less: Tensor | None = None,
    floor: Tensor | None = None,
    top: Tensor | None = None,
) -> Tensor:
    y = torch.sin(x)
    if shift is not None:
        y = torch.add(y, shift)
    y = torch.mul(y, factor) if factor is not None else y
    if less is not None:
        y = torch.sub(y, less)
    for limit, function in ((floor, torch.maximum), (top, torch.minimum)):
        if limit is not None:
            y = function(y, limit)
    return y


@pytest.mark.parametrize("dynamic", [None, True])
def test_optional_tensors_in_all_patterns(dynamic: bool | None) -> None:
    """Each pattern of tensors that are there has a graph of its own with nothing in it but what is
    computed."""
    tracked = Tracked(with_options, dynamic=dynamic, fullgraph=True)
    patterns = list(itertools.product([False, True], repeat=len(OPTIONAL)))
    for pattern in patterns:
        given = {name: torch.randn(4, 6) for name, there in zip(OPTIONAL, pattern) if there}
        assert tracked(torch.randn(4, 6), **given) == 1
        captured = tracked.compiler.compilations[-1].captured
        assert captured is not None
        nodes = [
            node
            for node in captured.graph_module.graph.nodes
            if node.op not in ("placeholder", "output")
        ]
        assert [node.target for node in nodes] == [torch.sin, *(OPTIONAL[name] for name in given)]
        assert len(captured.inputs) == 1 + len(given)
    assert len(patterns) == 32 and tracked.skips == []
    for pattern in patterns:
        given = {name: torch.randn(4, 6) for name, there in zip(OPTIONAL, pattern) if there}
        assert tracked(torch.randn(4, 6), **given) == 0
    if dynamic:
        assert (
            tracked(torch.randn(9, 5)) == 0
            and tracked(torch.randn(3, 7), top=torch.randn(3, 7)) == 0
        )


def test_optional_tensors_with_gradients() -> None:
    compiled = ingot.compile(with_options, dynamic=True, fullgraph=True)
    for pattern in itertools.product([False, True], repeat=len(OPTIONAL)):
        for n in (4, 7):
            given = {
                k: torch.randn(n, 6, requires_grad=True)
                for k, there in zip(OPTIONAL, pattern)
                if there
            }
            x = torch.randn(n, 6, requires_grad=True)
            tangent, inputs = torch.randn(n, 6), [x, *given.values()]
            found = [
                torch.autograd.grad(f(x, **given), inputs, tangent)
                for f in (compiled, with_options)
            ]
            torch.testing.assert_close(*found)
    assert len(Compiler.of(compiled).compilations) == 32


def biased_mlp(x: Tensor, weights: list[Tensor], biases: list[Tensor]) -> Tensor:
    """Two products, each with a bias that may have a row for each of the input's, or one for
    all."""
    return (x @ weights[0] + biases[0]).relu() @ weights[1] + biases[1]


@pytest.mark.parametrize("shapes", [*itertools.product([(8,), (5, 8), (1, 8)], [(3,), (5, 3)])])
@pytest.mark.usefixtures("nothing_is_kept")
def test_sums_of_a_bias_gradient_are_there_where_it_was_broadcast(
    shapes: tuple[tuple[int, ...], ...],
) -> None:
    compiled = ingot.compile(biased_mlp, dynamic=True, fullgraph=True)
    drawn = partial(torch.randn, dtype=torch.float64, requires_grad=True)
    weights, biases = (
        [drawn(shape) for shape in ((6, 8), (8, 3))],
        [drawn(shape) for shape in shapes],
    )
    x, inputs = torch.randn(5, 6, dtype=torch.float64), [*weights, *biases]
    found = [
        torch.autograd.grad(f(x, weights, biases).square().sum(), inputs)
        for f in (compiled, biased_mlp)
    ]
    torch.testing.assert_close(*found)
    (made,) = Compiler.of(compiled).compilations
    # the rows are a symbol
    assert made.backward is not None and ", size_s" in str(made.backward.log.aten)
    calls = [
        node.target
        for node in made.backward.log.aten.graph.nodes
        if node.target is not operator.getitem
    ]
    sums = calls.count(torch.ops.aten.sum.dim_IntList)
    assert (
        sums
        == sum(shape != (5, shape[-1]) for shape in shapes)
        == str(made.backward.log.aten).count("aten.sum")
    )


def grouped(x: Tensor) -> tuple[Tensor, Tensor]:
    scaled = x * 2
    return F.group_norm(scaled, 1).sum(-1), scaled


def cut(x: Tensor) -> tuple[Tensor, Tensor]:
    first, second, third = torch.tensor_split(x, 3, -1)
    return (first / second).sum(), third + x[:, x.shape[1] // 3 * 3 - 1 :]


@pytest.mark.parametrize(("function", "size"), [(grouped, (7, 1)), (cut, (5, 3))])
@pytest.mark.usefixtures("nothing_is_kept")
def test_a_part_of_the_gradients_depends_on_no_further_sizes(
    function: Callable[[Tensor], tuple[Tensor, Tensor]], size: tuple[int, int]
) -> None:
    """What it asks about sizes, the guards say in other words: no zeros go where no gradient comes
    from."""
    compiled, x = (
        ingot.compile(function, dynamic=True, fullgraph=True),
        torch.randn(size, requires_grad=True),
    )
    tangent = torch.randn_like(function(x)[1])
    found = [torch.autograd.grad(f(x)[1], x, tangent) for f in (compiled, function)]
    torch.testing.assert_close(*found)
    assert len(Compiler.of(compiled).compilations[-1].partial_backwards) == 1
