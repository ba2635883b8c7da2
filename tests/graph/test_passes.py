"""The passes over ATen graphs: what they remove, what they must keep, and the verifier."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import ingot
from ingot.errors import CompilerBug
from ingot.graph.passes.verify import verify
from tests.graph.tracing import assert_traced

aten = torch.ops.aten
X, W, B = torch.randn(4, 6), torch.randn(5, 6), torch.randn(5)


def calls(graph) -> int:
    return sum(n.op == "call_function" for n in graph.graph.nodes)


def test_dead_matmuls_are_removed() -> None:
    def f(x, w, b):
        unused = F.linear(x, w) @ w
        return F.relu(F.linear(x, w, b)) + unused.sum().new_zeros(())

    assert len(assert_traced(f, X, W, B).nodes_of(aten.linear.default)) == 1


def test_common_subexpressions_are_shared() -> None:
    assert calls(assert_traced(lambda x: x.sin() * 2 + x.sin() * 2, X)) == 3


def test_numbers_of_different_type_are_not_common() -> None:
    assert calls(assert_traced(lambda x: (torch.full((2,), 1), torch.full((2,), 1.0)), X)) == 2


def test_random_ops_are_never_shared_or_removed() -> None:
    graph = assert_traced(
        lambda x: (torch.rand_like(x), torch.rand_like(x), torch.rand_like(x))[1], X
    )
    assert len(graph.nodes_of(aten.rand_like.default)) == 3


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x * 1 + x, lambda x: x.view(4, 6) + 1, lambda x: x.expand(4, 6) + 1,
        lambda x: x.t().t() + 1, lambda x: x.clone() + 1, lambda x: x.to(torch.float32) + 1,
        lambda x: x.neg().neg() + 1, lambda x: (x - 0.0) + 1, lambda x: x.contiguous()[:] + 1,
        lambda x: x / 1 + 1,
        lambda x: x.detach() + 1, lambda x: (x + -0.0) + 1,
    ],
)  # fmt: skip
def test_no_ops_are_removed(fn) -> None:
    assert calls(assert_traced(fn, X)) == 1


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x + 0.0,
        lambda x: x * 1.0j,
        lambda x: x.t() + 1,
        lambda x: x.to(torch.float64),
        lambda x: x.neg(),
    ],
)
def test_what_changes_a_bit_stays(fn) -> None:
    x = X.clone()
    x[0, 0] = -0.0
    graph = assert_traced(fn, x)
    assert calls(graph) >= 1
    if x.dtype == graph.outputs[0].dtype:
        assert torch.equal(torch.signbit(graph.function()(x)[0]), torch.signbit(fn(x)))


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.cat(x.chunk(2, -1), -1) + 1,
        lambda x: torch.cat([x[:1], x[1:]]) + 1,
        lambda x: torch.hstack(torch.cat([x[:1], x[1:]]).split([1, 5], 1)) + 1,
    ],
)
def test_a_tensor_that_is_split_and_joined_is_read_as_it_is(fn) -> None:
    assert calls(assert_traced(fn, X)) == 1


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: torch.cat(x.chunk(2, -1), 0) + 1,
        lambda x: torch.cat(x.chunk(2, -1)[::-1], -1) + 1,
        lambda x: torch.cat([x[:1], x[2:]]) + 1,
        lambda x: torch.cat([x[:3], x[2:]]) + 1,
        lambda x: torch.cat([x[:1], x[1:3]]) + 1,
        lambda x: torch.cat([x[:1], (x * 2)[1:]]) + 1,
        lambda x: torch.cat([x[:2], x[2:]]).as_strided((2, 2), (6, 1), 1) + 1,
    ],
)
def test_other_pieces_are_joined(fn) -> None:
    assert len(assert_traced(fn, X).nodes_of(aten.cat.default)) == 1


def test_a_tensor_that_is_split_and_joined_is_a_new_one() -> None:
    def f(x):
        y = torch.cat(x.chunk(2))
        x.add_(1)
        return y

    x, other = X.clone(), X.clone()
    assert torch.equal(ingot.compile(f)(x), f(other)) and torch.equal(x, other)


def test_constants_are_folded() -> None:
    graph = assert_traced(lambda x: x * (torch.tensor([2.0] * 6) + 1).sqrt(), X)
    assert calls(graph) == 1 and len(graph.constants) == 1


def test_a_constant_that_is_returned_is_a_fresh_tensor_each_time() -> None:
    graph = assert_traced(lambda x: torch.tensor([1.0, 2.0]), X)
    run = graph.function()
    first = run(X)[0]
    first.add_(1)
    assert torch.equal(run(X)[0], torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize("x", [X, torch.randn(2, 4, 6), torch.randn(2, 3, 4, 6)])
@pytest.mark.parametrize(
    "fn",
    [lambda x, w, b: F.linear(x, w, b), lambda x, w, b: F.linear(x, w), lambda x, w, b: x @ w.t()],
)
def test_linear_layers_are_one_call_on_the_weight_as_it_lies(fn, x) -> None:
    graph = assert_traced(lambda x, w, b: fn(x, w, b) * 2, x, W, B)
    assert calls(graph) == 2 and len(graph.nodes_of(aten.linear.default)) == 1


def test_a_matmul_with_two_readers_keeps_its_value() -> None:
    assert_traced(
        lambda x, w: ((x.view(-1, 6) @ w.t()).view(2, 4, 5), (x.view(-1, 6) @ w.t()).sum()),
        torch.randn(2, 4, 6),
        W,
    )


def test_outputs_do_not_alias_what_eager_keeps_apart() -> None:
    assert_traced(lambda x: (x.clone(), x * 1, x + 1, x + 1, x.t().clone().t()), X)


def test_swapped_inputs() -> None:
    def swap(x, y):
        old = x.clone()
        x.copy_(y)
        y.copy_(old)

    assert_traced(lambda x, y: (swap(x, y), x.sum())[1:], torch.randn(3), torch.randn(3))


def test_verifier_names_the_node_and_the_line() -> None:
    graph = assert_traced(lambda x: x.sin().cos(), X)
    sin, cos = graph.nodes_of(aten.sin.default)[0], graph.nodes_of(aten.cos.default)[0]
    sin.meta["where"] = cos.meta["where"] = "user.py:9"
    cos.append(sin)
    with pytest.raises(CompilerBug, match="before|after.*user.py:9"):
        verify(graph)
    cos.prepend(sin)
    cos.target = aten.cos_.default
    with pytest.raises(CompilerBug, match="side effects.*user.py:9"):
        verify(graph)


def test_every_pass_is_timed_by_name() -> None:
    assert {"remove dead code", "share common subexpressions", "verify"} <= set(
        assert_traced(lambda x: x + 1, X).seconds
    )


@pytest.mark.parametrize("biased", [False, True])
def test_linear_layers_over_rows_that_lie_apart(biased) -> None:
    """Of one batch; the rows of several are no matrix, and are multiplied as batches."""

    def f(x, w, b):
        return F.linear(x.transpose(1, 2), w, b if biased else None)

    for batches, linears in ((1, 1), (2, 0)):
        graph = assert_traced(f, torch.randn(batches, 6, 7), W, B)
        assert len(graph.nodes_of(aten.linear.default)) == linears


def test_a_batched_product_with_one_matrix_is_a_linear_layer() -> None:
    graph = assert_traced(lambda x, w: torch.bmm(x, w.t().expand(3, 6, 5)), torch.randn(3, 4, 6), W)
    assert len(graph.nodes_of(aten.linear.default)) == 1 and calls(graph) == 1


def test_one_hot_rows_are_not_summed() -> None:
    """The gradient of a loss by classes: each row's sum is known."""
    targets = torch.tensor([0, 4, 3, 2])

    def gradient(x: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return torch.autograd.grad(F.cross_entropy(x, targets, **kwargs), x)[0]

    for kwargs in ({}, {"ignore_index": 4}, {"reduction": "sum"}, {"weight": torch.rand(5)}):
        fn = ingot.compile(lambda x, kwargs=kwargs: F.cross_entropy(x, targets, **kwargs))
        x = torch.randn(4, 5, requires_grad=True)
        (slope,) = torch.autograd.grad(fn(x), x)
        torch.testing.assert_close(slope, gradient(x, **kwargs))
        backward = ingot.explain(fn)(x).compilations[0].backward
        sums = [
            n for n in backward.log.aten.graph.nodes if n.target is torch.ops.aten.sum.dim_IntList
        ]
        assert len(sums) == ("weight" in kwargs)  # whose weights vary along the row


def test_one_hot_rows_of_halves_are_not_summed() -> None:
    def fn(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.arange(7) == i, x, 0).float().sum(1, keepdim=True)

    x, i = torch.randn(3, 1).bfloat16(), torch.tensor([[0], [7], [6]])
    graph = assert_traced(fn, x, i)
    assert "sum" not in str(graph.graph)


def test_a_number_is_no_one_hot_row() -> None:
    x, mask = torch.tensor(-8.0), torch.tensor(True)
    assert_traced(lambda x, mask: torch.where(mask, x, 0).sum(0, keepdim=True), x, mask)


@pytest.mark.parametrize(
    "count, classes, index",
    [
        (5, torch.int64, torch.tensor([[0.0], [0.5], [7.0]])),
        (300, torch.int64, torch.tensor([[0], [44], [255]], dtype=torch.uint8)),
        (300, torch.bfloat16, torch.tensor([[256], [257], [299]])),
    ],
)
def test_rows_that_are_not_one_hot_are_summed(
    count: int, classes: torch.dtype, index: torch.Tensor
) -> None:
    """Where an index lies between two classes, or several classes are rounded to one."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.where(torch.arange(count, dtype=classes) == index, x, 0).sum(1, keepdim=True)

    assert_traced(fn, torch.randn(3, 1))
