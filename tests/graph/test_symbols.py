"""Symbolic sizes: arithmetic, proofs, guards, and graphs that hold for every batch size."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.nn.functional as F

from ingot.errors import Unsupported
from ingot.graph import FakeContext, ShapeContext, to_expr
from tests.graph.tracing import assert_traced, traced


def sizes(*hints: int) -> tuple[ShapeContext, list[torch.SymInt]]:
    context = ShapeContext()
    return context, [context.size(h) for h in hints]


def test_arithmetic_gives_expressions() -> None:
    context, (n, m) = sizes(6, 4)
    results = [
        n + 1,
        2 * n - m,
        n * m // m,
        (n * 8) // 4,
        (4 * n + 3) % 4,
        -n,
        torch.sym_max(n, m),
        torch.sym_min(n, 1),
    ]
    texts = [str(to_expr(r)) if isinstance(r, torch.SymInt) else str(r) for r in results]
    assert texts[2:4] == ["s0", "2*s0"] and texts[4] == "3" and texts[7] == "1"
    assert [context.hint(to_expr(r)) for r in results[:2]] == [7, 8]
    assert to_expr(5).constant == 5 and not context.guards


def test_what_follows_from_algebra_leaves_no_guard() -> None:
    context, (n, m) = sizes(6, 4)
    assert n * m == m * n and n > 0 and n + 1 != n and n * 2 >= n and not n == 0 and n <= n
    assert context.guards == []


def test_a_size_ends_before_the_largest_integer() -> None:
    """Which is how torch writes the end of a slice that goes to the end."""
    context, (n, m) = sizes(6, 4)
    assert n <= sys.maxsize and not n * m > sys.maxsize
    assert context.guards == []


def test_other_comparisons_are_decided_by_the_hint_and_guarded_once() -> None:
    context, (n, m) = sizes(6, 4)
    context.where = "user.py:3"
    assert n > m and n != 7 and not n == m and not n < m and n > m
    assert [str(g) for g in context.guards] == ["s1 < s0", "s0 != 7", "s0 != s1", "s1 <= s0"]
    assert {g.where for g in context.guards} == {"user.py:3"}
    assert all(eval(str(g), {"s0": 6, "s1": 4}) for g in context.guards)


def test_a_size_used_as_an_int_is_pinned() -> None:
    context, (n,) = sizes(6)
    assert list(range(n))[-1] == 5
    assert [str(g) for g in context.guards] == ["s0 == 6"]


def test_sizes_of_a_contiguous_tensor_give_its_strides() -> None:
    context = FakeContext()
    fake = context.fake(torch.rand(4, 3, 5), frozenset({0, 1}), "x")
    assert [str(s) for s in (*fake.shape, *fake.stride())] == ["s0", "s1", "5", "5*s1", "5", "1"]
    assert [context.shapes.sources[s] for s in context.shapes.sources] == [("x", 0), ("x", 1)]


def test_zero_and_one_are_not_made_symbolic() -> None:
    context = FakeContext()
    assert tuple(context.fake(torch.rand(1, 0, 3), frozenset({0, 1})).shape) == (1, 0, 3)


def mlp(x, w1, b1, w2, g):
    h = F.layer_norm(F.gelu(F.linear(x, w1, b1), approximate="tanh"), (16,), g, g)
    h = F.softmax(F.relu(F.linear(h, w2)), -1) + h.mean(-1, keepdim=True)
    return (
        h,
        h.view(-1, 2, 2).transpose(1, 2).reshape(x.shape[0], 4),
        h.flatten(),
        h.sum(0),
        h.unsqueeze(0).permute(1, 0, 2),
    )


def mlp_inputs(batch: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(s, generator=generator) for s in [(batch, 8), (16, 8), (16,), (4, 16), (16,)]
    ]


def test_one_graph_serves_every_batch() -> None:
    graph = traced(mlp, *mlp_inputs(5), dynamic={0: {0}})
    assert graph.shapes.guards == []
    for batch in (5, 2, 17):
        assert_traced(mlp, *mlp_inputs(batch), graph=graph)


def test_sizes_that_meet_fixed_ones_are_pinned() -> None:
    graph = traced(mlp, *mlp_inputs(5), dynamic={0: {0, 1}, 1: {0}, 4: {0}})
    assert {str(g) for g in graph.shapes.guards} == {"s1 == 8", "s2 == 16", "s3 == 16"}
    for batch in (5, 2):
        assert_traced(mlp, *mlp_inputs(batch), graph=graph)


def test_sizes_that_must_agree_become_one_symbol() -> None:
    graph = traced(
        lambda x, y: (x + y).view(-1),
        torch.rand(3, 4),
        torch.rand(3, 4),
        dynamic={0: {0, 1}, 1: {0, 1}},
    )
    assert [str(g) for g in graph.shapes.guards] == ["s0 == s2", "s1 == s3"]
    assert (
        len(
            {
                s
                for node in graph.graph.nodes
                if node.op == "call_function"
                for s in map(str, node.meta["val"].shape)
            }
        )
        == 2
    )
    assert_traced(lambda x, y: (x + y).view(-1), torch.rand(5, 2), torch.rand(5, 2), graph=graph)


def test_nodes_recorded_before_a_size_was_pinned_name_no_dead_symbol() -> None:
    def f(x, y):
        return x.new_zeros(x.shape[1], 3) + y

    graph = traced(f, torch.rand(3, 4), torch.rand(4, 3), dynamic={0: {0, 1}})
    assert [str(g) for g in graph.shapes.guards] == ["s1 == 4"]
    assert_traced(f, torch.rand(6, 4), torch.rand(4, 3), graph=graph)


def test_three_dimensional_input_keeps_its_linear_layers_whole() -> None:
    def f(x, w, b):
        return F.gelu(F.linear(x, w, b)).transpose(1, 2)

    graph = traced(f, torch.rand(3, 4, 8), torch.rand(6, 8), torch.rand(6), dynamic={0: {0, 1}})
    assert len(graph.nodes_of(torch.ops.aten.linear.default)) == 1 and not graph.nodes_of(
        torch.ops.aten.view.default
    )
    for shape in [(3, 4, 8), (2, 9, 8)]:
        assert_traced(f, torch.rand(shape), torch.rand(6, 8), torch.rand(6), graph=graph)


PROGRAMS = [
    lambda x: x.reshape(-1, 2).sum(1),
    lambda x: x[1:], lambda x: x[:, 1], lambda x: x[-1],
    lambda x: torch.cat([x, x]), lambda x: x.expand(2, -1, -1), lambda x: x.unsqueeze(1).squeeze(1),
    lambda x: x.var(0), lambda x: x + x.t().t(), lambda x: x.view(x.shape[0], 3, 2).flatten(1),
    lambda x: x.new_zeros(x.shape[0], 2), lambda x: torch.zeros_like(x),
    lambda x: x.clone().add_(1), lambda x: x.add_(1).view(-1), lambda x: x.softmax(0),
    lambda x: x.chunk(2, 1)[1], lambda x: x.contiguous() @ x.t(),
    lambda x: x.masked_fill(x > 0, 0.0), lambda x: x.amax(0),
    lambda x: (x.shape[0] * 2, x * x.shape[0]),
]  # fmt: skip


@pytest.mark.parametrize("position", range(len(PROGRAMS)))
def test_program_holds_for_other_sizes(position: int) -> None:
    fn = PROGRAMS[position]
    graph = traced(fn, torch.rand(7, 6), dynamic={0: {0}})
    for rows in (7, 4):
        assert all(eval(str(g), {"s0": rows}) for g in graph.shapes.guards)
        assert_traced(fn, torch.rand(rows, 6), graph=graph)


def test_ops_without_a_symbolic_rule_are_unsupported() -> None:
    with pytest.raises(Unsupported, match="symbolic"):
        traced(lambda x: torch.fft.rfft(x), torch.rand(7, 6), dynamic={0: {0}})


def test_tensors_that_share_memory_are_not_made_symbolic() -> None:
    x = torch.rand(6, 6)
    with pytest.raises(Unsupported, match="share memory"):
        traced(lambda x, y: x[1:] + y, x, x[1:], dynamic={0: {0}, 1: {0}})
