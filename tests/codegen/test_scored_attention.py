"""Attention with scores of the program's own on a CPU: errors against float64 beside eager's, at
sizes around the block and the vector, on this machine's vectors and on narrower ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from ingot.compiler import Compiler
from ingot.explain.report import Report
from ingot.graph import FakeContext
from ingot.graph.joint import trace_joint
from ingot.graph.partition import partition
from ingot.graph.passes.dead_code import remove_dead_code
from ingot.graph.passes.scores import recognize_scores_on_cpu
from ingot.loops.ir import Contraction
from ingot.loops.own_ops import scored_attention, scored_product, scored_square
from tests.graph.tracing import graph_of

Function = Callable[[Tensor, Tensor, Tensor], Tensor]
Scores = Callable[[Tensor], Tensor]
SAFE = torch.ops.aten._safe_softmax.default
SLOPES = torch.tensor([0.25, -0.5])
IDS = torch.arange(300) // 37
OF_BATCH = torch.stack([IDS, (torch.arange(300) + 20) // 150])
TABLE = torch.randn(2, 300, 300)


def attention(change: Scores) -> Function:
    """What capture makes of flex_attention: the scores are in float32, or in float64."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        wide = torch.promote_types(q.dtype, torch.float32)
        k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
        scores = q.to(wide) @ k.to(wide).transpose(-2, -1) * 0.125
        return SAFE(change(scores), -1).to(q.dtype) @ v

    return attend


def places(s: Tensor) -> tuple[Tensor, Tensor]:
    return torch.arange(s.shape[-2])[:, None], torch.arange(s.shape[-1])


def masked(s: Tensor, condition: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    return torch.where(condition(*places(s)), s, -math.inf)


def causal(s: Tensor) -> Tensor:
    return masked(s, lambda q, k: q >= k)


SCORES: dict[str, Scores] = {
    "plain": lambda s: s,
    "causal": causal,
    "window": lambda s: masked(s, lambda q, k: (q >= k) & (q - k <= 9)),
    "prefix": lambda s: masked(s, lambda q, k: (q >= k) | (k < 30)),
    "above": lambda s: masked(s, lambda q, k: k > q),
    "nothing seen": lambda s: masked(s, lambda q, k: (k < 5) & (q < 5)),
    "documents": lambda s: masked(s, lambda q, k: (IDS[q] == IDS[k]) & (q >= k)),
    "documents of a batch": lambda s: masked(
        s, lambda q, k: OF_BATCH[:, None, q] == OF_BATCH[:, None, k]
    ),
    "every fifth": lambda s: masked(s, lambda q, k: (q - k) % 5 == 0),
    "alibi": lambda s: causal(s + SLOPES[:, None, None] * (places(s)[1] - places(s)[0])),
    "table": lambda s: s + TABLE[:, : s.shape[-2], : s.shape[-1]],
    "capped": lambda s: causal(3 * torch.tanh(s / 3)),
    "twice": lambda s: s * torch.sigmoid(s) + s,
    "low scores are masked": lambda s: torch.where(s < -1, -math.inf, s),
}
# queries, keys, the width of keys, that of values, heads of keys
SIZES = [
    (3, 5, 8, 4, 2), (77, 77, 20, 24, 1), (130, 200, 64, 64, 2), (300, 260, 16, 130, 2),
    (1, 77, 32, 16, 2), (2, 300, 24, 48, 1), (4, 260, 20, 130, 2),
]  # fmt: skip


def inputs(sizes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    queries, keys, width, value_width, heads = sizes
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 2, queries, width), (2, heads, keys, width), (2, heads, keys, value_width)
    results = []
    for shape in shapes:
        results.append(torch.randn(shape, generator=generator).to(dtype))
    return results


def leaves_of(args: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    return [t.to(dtype, copy=True).requires_grad_() for t in args]


def off(actual: Any, exact: Any) -> float:
    """The relative distance of tensors, all together."""
    distance, size = 0.0, 1e-6
    for a, b in zip(actual, exact, strict=True):
        distance += (a.double() - b).pow(2).sum().item()
        size += b.pow(2).sum().item()
    return math.sqrt(distance / size)


def runs_of(
    compiled: Function, function: Function, args: Sequence[Tensor]
) -> Iterator[tuple[Sequence[Tensor], Tensor]]:
    """Leaves and result of what is compiled, of eager, and of eager in float64."""
    for run, dtype in (
        (compiled, torch.float32),
        (function, torch.float32),
        (function, torch.float64),
    ):
        leaves = leaves_of(args, dtype)
        yield leaves, run(*leaves)


def trainings(
    compiled: Function, function: Function, args: Sequence[Tensor]
) -> list[tuple[Tensor, ...]]:
    """The result and the gradients of what is compiled, of eager, and of eager in float64."""
    runs: list[tuple[Tensor, ...]] = []
    for leaves, result in runs_of(compiled, function, args):
        tangent = torch.ones_like(result).cumsum(-1)
        runs.append((result.detach(), *torch.autograd.grad(result, leaves, tangent)))
    return runs


def report(function: Function, *args: Tensor) -> Report:
    return ingot.explain(ingot.compile(function, fullgraph=True))(*args)


@pytest.fixture(autouse=True, params=["own vectors", "avx2, with checks"])
def target(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "own vectors":
        monkeypatch.setenv("INGOT_TARGET", "avx2")
        monkeypatch.setenv("INGOT_CHECK_BOUNDS", "1")


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("name", SCORES)
def test_results_and_gradients(name: str, sizes: tuple[int, ...]) -> None:
    function, args = attention(SCORES[name]), inputs(sizes)
    compiled, wide = ingot.compile(function, fullgraph=True), [t.double() for t in args]
    with torch.no_grad():
        ours, eager, exact = compiled(*args), function(*args), function(*wide)
    trained, of_eager, of_exact = trainings(compiled, function, args)
    floor = 4 * torch.finfo(torch.float32).eps
    assert ours.stride() == eager.stride()
    assert off([ours], [exact]) <= max(1.1 * off([eager], [exact]), floor)
    assert off(trained, of_exact) <= max(1.2 * off(of_eager, of_exact), floor)


@pytest.mark.parametrize("sizes", [(1, 1024, 24, 40, 1), (3, 1536, 16, 16, 2)], ids=str)
@pytest.mark.parametrize("name", ["plain", "causal", "alibi", "capped", "twice"])
def test_few_queries(name: str, sizes: tuple[int, ...]) -> None:
    """Parts of the keys, side by side: of the result's sum, and of that of the query's gradient."""
    function, args = attention(SCORES[name]), inputs(sizes)
    compiled = ingot.compile(function, fullgraph=True)
    trained, of_eager, of_exact = trainings(compiled, function, args)
    floor = 4 * torch.finfo(torch.float32).eps
    assert off(trained, of_exact) <= max(1.2 * off(of_eager, of_exact), floor)
    compiler, of_parts = Compiler.of(compiled), []
    assert compiler is not None
    forward = compiler.compilations[-1]
    for compilation in (forward, forward.backward):
        for node in compilation.log.loops.nodes:
            if isinstance(node, Contraction) and node.weights is not None:
                of_parts.append((node.rows[0].name, node.batch[-1].name == "part"))
    assert sorted(of_parts) == [("k", False), ("k", False), ("q", True), ("q", True)]


@pytest.mark.parametrize("sizes", [(130, 200, 24, 40, 1), (130, 130, 32, 32, 2)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["causal", "documents", "alibi", "table"])
def test_halves(name: str, dtype: torch.dtype, sizes: tuple[int, ...]) -> None:
    function, args = attention(SCORES[name]), inputs(sizes, dtype)
    runs = []
    for run, kind in (
        (ingot.compile(function), dtype),
        (function, dtype),
        (function, torch.float64),
    ):
        leaves = leaves_of(args, kind)
        result = run(*leaves)
        runs.append(
            (result.detach(), *torch.autograd.grad(result, leaves, torch.ones_like(result)))
        )
    ours, eager, exact = runs
    floor = 4 * torch.finfo(dtype).eps
    for kind in (slice(0, 1), slice(1, 4)):
        assert off(ours[kind], exact[kind]) <= max(off(eager[kind], exact[kind]), floor)


VARIED = [(70, 90), (130, 200), (280, 260), (33, 290), (2, 40)]  # queries, and keys


@pytest.mark.parametrize("name", SCORES)
def test_lengths_that_vary(name: str) -> None:
    """One entry behind the first, whose products are fused as those of known lengths."""
    function = attention(SCORES[name])
    compiled = ingot.compile(function, fullgraph=True)
    for queries, keys in VARIED:
        ours, eager, exact = trainings(compiled, function, inputs((queries, keys, 16, 24, 2)))
        floor = 4 * torch.finfo(torch.float32).eps
        assert off(ours, exact) <= max(1.2 * off(eager, exact), floor)
    compiler = Compiler.of(compiled)
    assert compiler is not None and len(compiler.compilations) == 2
    loops = compiler.compilations[-1].log.loops
    assert loops is not None
    weighted = []
    for node in loops.nodes:
        if isinstance(node, Contraction):
            weighted.append(node.weights is not None)
    assert weighted == [True]


def with_logarithms(change: Scores) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
    """As `return_lse` has it."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        scores = change(q @ k.transpose(-2, -1) * 0.125)
        return SAFE(scores, -1) @ v, scores.logsumexp(-1)

    return attend


@pytest.mark.parametrize("queries", [1, 90])
@pytest.mark.parametrize("name", ["plain", "causal", "documents", "alibi", "nothing seen"])
def test_logarithms_are_the_kernels(name: str, queries: int) -> None:
    """They need no scores in memory, and have gradients."""
    function = with_logarithms(SCORES[name])
    args = inputs((queries, 512, 16, 24, 2) if queries == 1 else (queries, 130, 16, 24, 2))
    if name == "documents":
        args = [t[:, :, :290] for t in args]
    compiled, runs = ingot.compile(function, fullgraph=True), []
    for run, dtype in (
        (compiled, torch.float32),
        (function, torch.float32),
        (function, torch.float64),
    ):
        leaves = leaves_of(args, dtype)
        result, logarithms = run(*leaves)
        tangents = torch.ones_like(result).cumsum(-1), torch.ones_like(logarithms).cumsum(-1)
        gradients = torch.autograd.grad((result, logarithms), leaves, tangents)
        known = logarithms.detach().isfinite()
        runs.append((result.detach(), logarithms.detach()[known], *gradients))
        expected = function(*args)[1]
        assert torch.equal(logarithms.detach().isneginf(), expected.isneginf())
    ours, eager, exact = runs
    floor = 4 * torch.finfo(torch.float32).eps
    assert off(ours, exact) <= max(1.5 * off(eager, exact), floor)
    compiler = Compiler.of(compiled)
    assert compiler is not None
    loops = compiler.compilations[-1].log.loops
    assert loops is not None
    for node in loops.nodes:
        assert not isinstance(node, Contraction) or node.weights is not None


def test_logarithms_of_infinite_scores() -> None:
    """A row with an infinite score has an infinite logarithm, and weights that are NaN."""
    q, k, v = inputs((40, 40, 16, 16, 2))
    k[0, 0, 3], q[0, 0] = math.inf, q[0, 0].abs()
    function = with_logarithms(causal)
    runs = []
    for run in (ingot.compile(function, fullgraph=True), function):
        leaves = leaves_of((q, k, v), torch.float32)
        result, logarithms = run(*leaves)
        gradients = torch.autograd.grad(result.sum(), leaves)
        runs.append((result.detach(), logarithms.detach(), *gradients))
    for one, other in zip(*runs, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True, rtol=1e-4, atol=1e-5)
    assert runs[0][1].isinf().any()


# whose tiles that matter are listed before, by three kernels
LISTED = ("documents", "documents of a batch", "every fifth", "nothing seen")


@pytest.mark.parametrize("name", SCORES)
def test_one_kernel(name: str) -> None:
    """Nothing of the size of the scores is in memory."""
    args = inputs((300, 260, 16, 16, 2))
    with torch.no_grad():
        found = report(attention(SCORES[name]), *args)
    assert found.arena_bytes < 4 * 300 * 260
    assert len(found.kernels) == (4 if name in LISTED else 1)


# keys that the last 64 queries of 300 do not see, and which these are if not the first ones
UNSEEN = {"window": slice(0, 200), "documents": slice(0, 128), "above": slice(0, 230)}


@pytest.mark.parametrize("name", UNSEEN)
def test_what_the_mask_empties_is_not_read(name: str) -> None:
    """Zero times NaN would be NaN."""
    q, k, v = inputs((300, 300, 16, 16, 2))
    clean = ingot.compile(attention(SCORES[name]))(q, k, v)
    k[:, :, UNSEEN[name]] = v[:, :, UNSEEN[name]] = math.nan
    result = ingot.compile(attention(SCORES[name]))(q, k, v)
    assert torch.equal(result[:, :, 256:], clean[:, :, 256:])


@pytest.mark.parametrize("queries", [1, 64])
def test_scores_that_are_far_apart(queries: int) -> None:
    q, k = torch.ones(1, 1, queries, 4), torch.linspace(-2000, 0, 256)[:, None].expand(1, 1, 256, 4)
    v, function = torch.eye(256)[None, None], attention(lambda s: s)
    exact = function(q.double(), k.double(), v.double())
    with torch.no_grad():
        result = ingot.compile(function)(q, k, v)
        assert (result - exact).abs().max() <= 1e-6
        k = torch.where(torch.arange(256)[:, None] == 9, math.nan, k)
        assert ingot.compile(function)(q, k, v).isnan().all()
        k = torch.where(k.isnan(), math.inf, k)
        assert ingot.compile(function)(q, k, v).isnan().all()


def test_an_epilogue() -> None:
    """What follows is part of the kernel, the transposition too."""
    attend, bias = attention(causal), torch.randn(2, 1, 16)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.relu(attend(q, k, v) + bias).transpose(1, 2).flatten(2)

    args = inputs((70, 70, 16, 16, 2))
    with torch.no_grad():
        assert len(report(function, *args).kernels) == 1
        torch.testing.assert_close(ingot.compile(function)(*args), function(*args))


def test_an_index_out_of_range() -> None:
    far = torch.full((70,), 70)
    function = attention(lambda s: s + TABLE[:, far[places(s)[0]] + 230, places(s)[1]])
    args = inputs((70, 70, 16, 16, 2))
    for call in (function, ingot.compile(function)):
        with pytest.raises(IndexError, match="out of"):
            call(*args)


def test_gradients_of_keys_that_are_read_twice() -> None:
    """The sums of two attentions' gradients wait for both."""
    attend, args = attention(causal), inputs((90, 90, 16, 16, 2))

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(attend(q, k, v), k, v)

    runs = []
    for run, dtype in ((ingot.compile(function), torch.float32), (function, torch.float64)):
        leaves = leaves_of(args, dtype)
        runs.append(torch.autograd.grad(run(*leaves).sum(), leaves))
    assert off(*runs) <= 1e-6


# a bias that scores read, its shape, and how they do
BIASES: dict[str, tuple[tuple[int, ...], Callable[[Tensor, Tensor], Tensor]]] = {
    "slopes": ((2,), lambda s, b: s + b[:, None, None] * (places(s)[1] - places(s)[0]) * 0.01),
    "table": ((2, 90, 90), lambda s, b: s + b),
    "distances": ((2, 180), lambda s, b: s + b[:, places(s)[0] - places(s)[1] + 90]),
    "scale": ((1,), lambda s, b: s * b),
}


@pytest.mark.parametrize("name", BIASES)
def test_gradients_of_what_scores_read(name: str) -> None:
    """Only what that gradient is made of is in memory, in the backward alone."""
    shape, change = BIASES[name]

    def function(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return attention(lambda s: causal(change(s, bias)))(q, k, v)

    compiled, runs = ingot.compile(function, fullgraph=True), []
    args = [*inputs((90, 90, 16, 24, 1)), torch.randn(shape)]
    for leaves, result in runs_of(compiled, function, args):
        runs.append(torch.autograd.grad(result, leaves, torch.ones_like(result)))
    ours, eager, exact = runs
    floor = 4 * torch.finfo(torch.float32).eps
    assert off(ours, exact) <= max(1.2 * off(eager, exact), floor)


@pytest.mark.parametrize("name", BIASES)
def test_no_scores_are_saved(name: str) -> None:
    shape, change = BIASES[name]

    def function(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return attention(lambda s: change(s, bias))(q, k, v)

    context = FakeContext()
    leaves = leaves_of([*inputs((90, 90, 16, 24, 2)), torch.randn(shape)], torch.float32)
    with context:
        fakes = list(map(context.fake, leaves))
    joint = trace_joint(graph_of(function), fakes, context)
    recognize_scores_on_cpu(joint.aten)
    remove_dead_code(joint.aten)
    parts = partition(joint)
    ops = []
    for part in (parts.forward, parts.backward):
        targets = []
        for node in part.graph.nodes:
            targets.append(node.target)
        names = scored_attention, scored_product, scored_square, torch.ops.aten.bmm.default
        ops.append(tuple(map(targets.count, names)))
    assert ops == [(1, 0, 0, 0), (0, 3, 1, 0)]


def test_gradients_of_a_bias_alone() -> None:
    q, k, v = inputs((90, 90, 16, 24, 1))
    gradients = []
    shape, change = BIASES["slopes"]
    start = torch.randn(shape)
    for compile_ in (lambda f: f, ingot.compile):
        bias = start.clone().requires_grad_()
        function = compile_(lambda q, k, v, b: attention(lambda s: change(s, b))(q, k, v))
        function(q, k, v, bias).pow(2).sum().backward()
        gradients.append(bias.grad)
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
