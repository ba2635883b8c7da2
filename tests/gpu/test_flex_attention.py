"""flex_attention on a GPU: fused, forward and backward, beside a formula in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import ingot
from ingot.compiler import Compiler

BATCH, HEADS, LENGTH = 2, 4, 300
Function = Callable[..., Tensor]


def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def window(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q >= k) & (q - k <= 20)


def prefix(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q >= k) | (k < 50)


def nothing(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q > 30) & (k < 40)


def every_fifth(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return (q - k) % 5 == 0


def capped(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return 2.0 * torch.tanh(s / 2.0)


def divided(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return s / (k + 1)


def functions() -> dict[str, tuple[Function | None, Function | None]]:
    slopes = torch.linspace(0.1, 0.5, HEADS, device="cuda")
    documents = torch.arange(LENGTH, device="cuda") // 70
    table = torch.randn(HEADS, LENGTH, LENGTH, device="cuda")

    def alibi(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return s + slopes[h] * (k - q)

    def biased(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return s + table[h, q, k]

    def present(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return documents[k] < 3

    def same(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (documents[q] == documents[k]) & (q >= k)

    return {
        "plain": (None, None), "causal": (None, causal), "window": (None, window),
        "prefix": (None, prefix), "nothing": (None, nothing), "capped": (capped, causal),
        "divided": (divided, causal), "alibi": (alibi, causal), "table": (biased, None),
        "documents": (None, same), "present": (None, present), "every fifth": (None, every_fifth),
    }  # fmt: skip


def exact(score: Function | None, mask: Function | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    shared = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
    return torch.softmax(scores_of(score, mask, q, k), -1).nan_to_num(0.0) @ v


def logarithms(score: Function | None, mask: Function | None, q: Tensor, k: Tensor) -> Tensor:
    return scores_of(score, mask, q, k).logsumexp(-1)


def scores_of(score: Function | None, mask: Function | None, q: Tensor, k: Tensor) -> Tensor:
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    b, h, i, j = (torch.arange(n, device="cuda") for n in scores.shape)
    places = b[:, None, None, None], h[:, None, None], i[:, None], j
    if score is not None:
        scores = score(scores, *places)
    if mask is not None:
        scores = scores.masked_fill(~mask(*places), -math.inf)
    return scores


def off(actual: Tensor, expected: Tensor) -> float:
    return ((actual.double() - expected).norm() / expected.norm().clamp(min=1e-3)).item()


def attend(score: Function | None, mask: Function | None, length: int = LENGTH) -> Any:
    blocks = None
    if mask is not None:
        blocks = create_block_mask(mask, None, None, length, length, device="cuda")

    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v, score, blocks, enable_gqa=q.shape[1] != k.shape[1])

    return ingot.compile(function, fullgraph=True)


@pytest.mark.parametrize("width, heads", [(64, HEADS), (16, HEADS), (96, 2), (128, 1)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", "plain causal window prefix nothing capped divided".split())
def test_results_and_gradients(name: str, dtype: torch.dtype, width: int, heads: int) -> None:
    check(name, dtype, width, heads)


@pytest.mark.parametrize("name", ["alibi", "table", "documents", "present", "every fifth"])
def test_what_scores_read(name: str) -> None:
    check(name, torch.bfloat16, 64, HEADS)


def late(s: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return torch.where(k >= 1500, s, -math.inf)


@pytest.mark.parametrize("queries, keys", [(1, 2048), (1, 1000), (37, 1024)])
@pytest.mark.parametrize("score", [None, capped], ids=["plain", "capped"])
def test_few_queries(score: Function | None, queries: int, keys: int) -> None:
    compare(score, None, torch.bfloat16, [(BATCH, HEADS, n, 64) for n in (queries, keys, keys)])


def of_documents(length: int) -> Function:
    documents = torch.arange(length, device="cuda") // 70
    return lambda b, h, q, k: (documents[q] == documents[k]) & (q >= k)


@pytest.mark.parametrize("name", ["plain", "causal", "window", "prefix", "capped", "documents"])
def test_lengths_that_vary(name: str) -> None:
    """One entry behind the first, each length with a mask of its own; the logarithms too."""
    score = capped if name == "capped" else None

    def function(q: Tensor, k: Tensor, v: Tensor, blocks: Any) -> Any:
        return flex_attention(q, k, v, score, blocks, return_lse=True)

    compiled = ingot.compile(function, fullgraph=True)
    for length in (300, 520, 64, 1000, 129):
        mask: Function | None = {"causal": causal, "window": window, "prefix": prefix}.get(name)
        if name == "documents":
            mask = of_documents(length)
        blocks = None
        if mask is not None:
            blocks = create_block_mask(mask, None, None, length, length, device="cuda")
        shape = BATCH, HEADS, length, 64
        args = [torch.randn(shape, device="cuda").bfloat16() for _ in range(3)]
        leaves = [t.clone().requires_grad_() for t in args]
        wide = [t.double().requires_grad_() for t in args]
        ours, expected = compiled(*leaves, blocks), [exact(score, mask, *wide)]
        expected.append(logarithms(score, mask, wide[0], wide[1]))
        assert ours[1].dtype is torch.float32
        tangents = [torch.randn_like(t) for t in expected]
        given = [tangents[0].bfloat16(), tangents[1].float()]
        true = torch.autograd.grad(expected, wide, [t.double() for t in given])
        eps = torch.finfo(torch.bfloat16).eps
        for one, other in zip(ours, expected, strict=True):
            assert off(one.detach(), other.detach()) < 2 * eps
        for one, other in zip(torch.autograd.grad(ours, leaves, given), true, strict=True):
            assert off(one, other) < 3 * eps
    compiler = Compiler.of(compiled)
    assert compiler is not None and len(compiler.compilations) == 2


@pytest.mark.parametrize("batch, queries", [(1, 1), (1, 64), (2, 64)])
def test_what_follows_the_gradients_of_values(batch: int, queries: int) -> None:
    """The kernel that writes them does not read them."""
    shapes = [(batch, 4, n, 64) for n in (queries, 4096, 4096)]
    args = [torch.randn(s, device="cuda").bfloat16() for s in shapes]

    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        return flex_attention(q, k, v * 2.0)

    compiled = ingot.compile(function, fullgraph=True)
    for _ in range(5):
        leaves = [t.clone().requires_grad_() for t in args]
        wide = [t.double().requires_grad_() for t in args]
        result = compiled(*leaves)
        tangent = torch.randn_like(result)
        expected = exact(None, None, wide[0], wide[1], wide[2] * 2.0)
        true = torch.autograd.grad(expected, wide, tangent.double())
        for ours, theirs in zip(torch.autograd.grad(result, leaves, tangent), true, strict=True):
            assert off(ours, theirs) < 3 * torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("written", ["query", "key", "value", "result"])
def test_what_is_saved_is_not_written(written: str) -> None:
    """Eager's backward reads these, and says so where they were written behind the call."""
    messages = []
    for compile_ in (ingot.compile, lambda f: f):
        leaves = [torch.randn(1, 2, 256, 64, device="cuda", requires_grad=True) for _ in range(3)]
        query, key, value = (t.bfloat16() for t in leaves)
        result = compile_(flex_attention)(query, key, value)
        places = {"query": query, "key": key, "value": value, "result": result}
        with torch.no_grad():
            places[written].add_(1)
        with pytest.raises(RuntimeError) as raised:
            torch.autograd.grad(result.sum(), leaves)
        messages.append(str(raised.value).partition("Hint")[0][:60])
    assert messages[0] == messages[1]


def test_parts_of_which_nothing_is_seen() -> None:
    compare(late, None, torch.bfloat16, [(BATCH, HEADS, n, 64) for n in (1, 2048, 2048)])


def check(name: str, dtype: torch.dtype, width: int, heads: int) -> None:
    score, mask = functions()[name]
    compare(score, mask, dtype, [(BATCH, n, LENGTH, width) for n in (HEADS, heads, heads)])


def compare(
    score: Function | None,
    mask: Function | None,
    dtype: torch.dtype,
    shapes: list[tuple[int, ...]],
) -> None:
    args = [torch.randn(s, device="cuda").to(dtype) for s in shapes]
    function = attend(score, mask)
    eps = torch.finfo(dtype).eps
    wide = [t.double().requires_grad_() for t in args]
    expected = exact(score, mask, *wide)
    with torch.no_grad():
        assert off(function(*args), expected) < 2 * eps
    leaves = [t.clone().requires_grad_() for t in args]
    result = function(*leaves)
    tangent = torch.randn_like(result)
    gradients = torch.autograd.grad(result, leaves, tangent)
    assert off(result, expected) < 2 * eps
    for ours, true in zip(
        gradients, torch.autograd.grad(expected, wide, tangent.double()), strict=True
    ):
        assert off(ours, true) < 3 * eps


def test_memory() -> None:
    """Nothing of the size of the scores is in memory, forward and backward."""
    length = 4096
    args = [
        torch.randn(1, 4, length, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for _ in range(3)
    ]
    function = attend(capped, causal, length)
    torch.autograd.grad(function(*args).sum(), args)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    torch.autograd.grad(function(*args).sum(), args)
    inputs = sum(t.numel() * t.element_size() for t in args)
    assert torch.cuda.max_memory_allocated() - before < 6 * inputs < 4 * length * length
