"""Joint graphs and where they are cut: what is kept, what is computed again, what is not computed
at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.graph import AtenGraph, FakeContext
from ingot.graph.joint import trace_joint
from ingot.graph.partition import Partition, partition
from ingot.loops.training_contract import Slot
from tests.graph.tracing import graph_of

aten = torch.ops.aten


def cut(function: Callable[..., Any], *inputs: Tensor) -> Partition:
    context = FakeContext()
    with context:
        fakes = [context.fake(tensor) for tensor in inputs]
    return partition(trace_joint(graph_of(function), fakes, context))


def kept(parts: Partition) -> list[str]:
    """Where the backward finds what it reads."""
    return sorted(saved.role for saved in parts.saved)


def products(graph: AtenGraph) -> int:
    return len(graph.nodes_of(aten.mm.default)) + len(graph.nodes_of(aten.linear.default))


def wanted(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


def test_the_two_graphs_are_the_program() -> None:
    x, w = wanted(3, 4), wanted(4, 5)

    def function(x: Tensor, w: Tensor) -> Tensor:
        return torch.tanh(x.sin() @ w)

    parts = cut(function, x, w)
    (y, *others) = parts.forward.function()(x.detach(), w.detach())
    tangent = torch.randn(3, 5)
    places = {"input": (x.detach(), w.detach()), "output": (y,), "kept": others}
    gradients = parts.backward.function()(
        *(places[s.role][s.position] for s in parts.saved), tangent
    )
    expected = torch.autograd.grad(function(x, w), (x, w), tangent)
    for gradient, value in zip(gradients, expected, strict=True):
        torch.testing.assert_close(gradient, value)


def test_a_cheap_chain_is_computed_again() -> None:
    parts = cut(lambda x: (x.sin() * 3).exp().sum(), wanted(1000))
    assert parts.saved == (Slot("input", 0),) and len(parts.forward.outputs) == 1


def test_of_equal_sizes_what_takes_less_work_is_kept() -> None:
    """The results of a product would do as well, but their tanh would be computed again."""
    parts = cut(lambda x, w: (x @ w).tanh().sum(), wanted(4, 5), wanted(5, 6))
    assert parts.forward.nodes_of(aten.tanh.default) and not parts.backward.nodes_of(
        aten.tanh.default
    )


def test_an_input_that_eager_does_not_read_is_not_read_late() -> None:
    """The user may write to it in between."""
    parts = cut(lambda x, b: torch.exp(x + b), wanted(1000), wanted(1000))
    assert kept(parts) == ["output"]


def test_a_matmul_runs_once() -> None:
    parts = cut(lambda x, w: (x @ w).relu().sum(), wanted(8, 8), wanted(8, 8))
    assert products(parts.forward) == 1
    assert products(parts.backward) == 2  # one for each gradient


def test_scores_are_kept_as_they_are() -> None:
    """Not their softmax, which the forward has in registers only."""
    target = torch.arange(8) % 50
    parts = cut(lambda x, w: F.cross_entropy(x @ w, target), wanted(8, 8), wanted(8, 50))
    kept = [
        n for n in parts.forward.graph.nodes if n in {s.node for s in parts.forward.outputs[1:]}
    ]
    assert [n.target for n in kept if n.meta["val"].numel() == 400] == [aten.mm.default]


def test_scores_of_halves_are_kept_rather_than_what_softmax_gave() -> None:
    """A library leaves them in memory, where the softmax would have to write what it gives."""
    labels = torch.zeros(64, dtype=torch.int64)
    x, w = (wanted(*shape).detach().bfloat16().requires_grad_() for shape in ((64, 16), (16, 512)))
    parts = cut(lambda x, w: F.nll_loss(torch.log_softmax(x @ w, -1).float(), labels), x, w)
    large = [
        node
        for node in parts.forward.outputs
        if node.node is not None and node.node.meta["val"].numel() > 64
    ]
    assert [output.node.target for output in large if output.node is not None] == [aten.mm.default]


def test_random_numbers_are_drawn_once() -> None:
    parts = cut(lambda x: F.dropout(x.sin(), 0.5), wanted(100))
    drawn = [n for n in parts.backward.graph.nodes if "bernoulli" in str(n.target)]
    assert drawn == [] and "kept" in kept(parts)


def test_a_gradient_nobody_wants_is_not_computed() -> None:
    frozen = torch.randn(8, 8)
    parts = cut(lambda x, w: (x @ w).sum(), wanted(8, 8), frozen)
    assert products(parts.backward) == 1
    assert parts.joint.contract.gradient_inputs == (0,)


def test_no_sum_where_nothing_was_broadcast() -> None:
    sums = [op for op in (aten.sum.dim_IntList, aten.sum.default)]

    def count(*inputs: Tensor) -> int:
        return sum(len(cut(lambda x, b: x + b, *inputs).backward.nodes_of(op)) for op in sums)

    assert count(wanted(4, 5), wanted(4, 5)) == 0
    assert count(wanted(4, 5), wanted(5)) == 1


def test_outputs_that_share_memory_have_one_tangent() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = x.exp()
        return y, y[0], y.detach()

    parts = cut(function, wanted(3, 4))
    assert len(parts.joint.contract.tangents) == 1
    assert [w.output for w in parts.joint.contract.windows] == [0, 1, 2]
    assert [w.tracked for w in parts.joint.contract.windows] == [True, True, False]
