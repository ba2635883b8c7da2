"""flex_attention in the graph: eager is the oracle of results, a dense formula that of gradients,
which eager does not have on a CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import flex_attention as flex
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import ingot
from ingot.compiler import Compiler
from ingot.graph.aten_tracer import EAGER_SAVES

BATCH, HEADS, LENGTH, WIDTH = 2, 4, 40, 16
Q, K, V = (torch.randn(BATCH, HEADS, LENGTH, WIDTH) for _ in range(3))
SLOPES = torch.randn(BATCH, HEADS)
TABLE = torch.randn(HEADS, LENGTH, LENGTH)
DOCUMENTS = torch.randint(0, 3, (BATCH, LENGTH))
B = torch.arange(BATCH)[:, None, None, None]
H = torch.arange(HEADS)[:, None, None]
ROW, COLUMN = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)


@pytest.fixture(autouse=True)
def plain_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eager itself, and not torch.compile, which it calls otherwise."""
    monkeypatch.setattr(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def block_mask(mask: Callable[..., Tensor], batch: int | None = None) -> Any:
    return create_block_mask(mask, batch, None, LENGTH, LENGTH, device="cpu")


# A score function, a mask function, and both on all scores at once.
CASES: dict[str, tuple[Any, Any, Callable[[Tensor], Tensor]]] = {
    "plain": (None, None, lambda s: s),
    "relative": (lambda s, b, h, i, j: s + (i - j) * 0.1, None, lambda s: s + (ROW - COLUMN) * 0.1),
    "alibi": (
        lambda s, b, h, i, j: s + SLOPES[b, h] * (i - j) * 0.1, None,
        lambda s: s + SLOPES[B, H] * (ROW - COLUMN) * 0.1,
    ),
    "table": (lambda s, b, h, i, j: s + TABLE[h][i][j], None, lambda s: s + TABLE),
    "soft cap": (
        lambda s, b, h, i, j: 2 * torch.tanh(s / 2), None, lambda s: 2 * torch.tanh(s / 2),
    ),
    "causal": (None, lambda b, h, i, j: i >= j, lambda s: s.where(ROW >= COLUMN, -math.inf)),
    "window": (
        None, lambda b, h, i, j: (i >= j) & (i - j < 7),
        lambda s: s.where((ROW >= COLUMN) & (ROW - COLUMN < 7), -math.inf),
    ),
    "prefix": (
        None, lambda b, h, i, j: (j < 5) | (i >= j),
        lambda s: s.where((COLUMN < 5) | (ROW >= COLUMN), -math.inf),
    ),
    "documents": (
        lambda s, b, h, i, j: s * 2, lambda b, h, i, j: DOCUMENTS[b, i] == DOCUMENTS[b, j],
        lambda s: (s * 2).where(
            DOCUMENTS[:, None, :, None] == DOCUMENTS[:, None, None, :], -math.inf
        ),
    ),
}  # fmt: skip


def dense(change: Callable[[Tensor], Tensor], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(change(q @ k.transpose(-2, -1) / math.sqrt(WIDTH)), -1) @ v


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name: str) -> None:
    score, mask, change = CASES[name]
    blocks = None if mask is None else block_mask(mask, BATCH if name == "documents" else None)

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, score_mod=score, block_mask=blocks)

    compiled = ingot.compile(function, fullgraph=True)
    torch.testing.assert_close(compiled(Q, K, V), function(Q, K, V))
    ours, theirs = ([t.clone().requires_grad_() for t in (Q, K, V)] for _ in range(2))
    outputs = compiled(*ours), dense(change, *theirs)
    weight = torch.randn_like(outputs[0])
    for output in outputs:
        (output * weight).sum().backward()
    for one, other in zip(ours, theirs):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_gradients_of_what_the_score_function_captures() -> None:
    slopes = [SLOPES.clone().requires_grad_() for _ in range(2)]

    @ingot.compile(fullgraph=True)
    def function(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
        return flex_attention(q, k, v, lambda s, b, h, i, j: s + slopes[b, h] * (i - j) * 0.1)

    function(Q, K, V, slopes[0]).pow(2).sum().backward()
    dense(lambda s: s + slopes[1][B, H] * (ROW - COLUMN) * 0.1, Q, K, V).pow(2).sum().backward()
    torch.testing.assert_close(slopes[0].grad, slopes[1].grad, rtol=1e-4, atol=1e-4)


CAUSAL = block_mask(lambda b, h, i, j: i >= j)
CAUSAL_OF_BATCH = block_mask(lambda b, h, i, j: i >= j, BATCH)
LATE = block_mask(lambda b, h, i, j: (i > 3) & (j > 2))
LAID_OUT = torch.randn(BATCH, LENGTH, HEADS, WIDTH).transpose(1, 2)
CALLS: dict[str, Callable[[], Any]] = {
    "grouped": lambda: flex_attention(Q, K[:, :2], V[:, :2], enable_gqa=True, block_mask=CAUSAL),
    "scale": lambda: flex_attention(Q, K, V, scale=0.3),
    "other width of values": lambda: flex_attention(Q, K, torch.cat([V, V], -1)),
    "strides": lambda: flex_attention(LAID_OUT, K, V),
    "strides of another query": lambda: flex_attention(
        torch.randn(HEADS, LENGTH, BATCH, WIDTH).zero_().permute(2, 0, 1, 3), K, V
    ),
    "one query": lambda: flex_attention(Q[:, :, :1], K, V, lambda s, b, h, i, j: s + j * 0.1),
    "shared keys": lambda: flex_attention(Q, K[:1], V[:1], block_mask=CAUSAL_OF_BATCH),
    "rows without a key": lambda: flex_attention(Q, K, V, block_mask=LATE, return_lse=True),
    "lse": lambda: flex_attention(Q, K, V, block_mask=CAUSAL, return_lse=True),
    "float64": lambda: flex_attention(Q.double(), K.double(), V.double()),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls(name: str) -> None:
    expected, actual = CALLS[name](), ingot.compile(CALLS[name], fullgraph=True)()
    torch.testing.assert_close(actual, expected)
    if isinstance(expected, Tensor):
        assert actual.stride() == expected.stride()


def test_halves() -> None:
    """Closer to float64 than eager, which rounds the weights."""

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flex_attention(q, k, v, block_mask=CAUSAL)

    args = Q.bfloat16(), K.bfloat16(), V.bfloat16()
    exact = function(*(t.double() for t in args))
    actual, expected = ingot.compile(function, fullgraph=True)(*args), function(*args)
    assert actual.dtype is torch.bfloat16
    assert (actual - exact).norm() <= (expected - exact).norm()


@pytest.mark.skipif(not hasattr(flex, "AuxRequest"), reason="return_aux is of later torch")
def test_auxiliary_outputs() -> None:
    def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
        request = flex.AuxRequest(lse=True)
        return flex_attention(q, k, v, block_mask=CAUSAL, return_aux=request)

    expected, actual = function(Q, K, V), ingot.compile(function)(Q, K, V)
    torch.testing.assert_close(actual[0], expected[0])
    assert type(actual[1]) is type(expected[1])
    torch.testing.assert_close(actual[1].lse, expected[1].lse)
    assert actual[1].max_scores is None


def test_compiled_itself() -> None:
    score = CASES["soft cap"][0]
    for compiled in (ingot.compile(flex_attention), ingot.compile(torch.compile(flex_attention))):
        actual = compiled(Q, K, V, score_mod=score)
        torch.testing.assert_close(actual, flex_attention(Q, K, V, score_mod=score))


MASKS: dict[str, Callable[[Tensor], Any]] = {
    "causal": lambda documents: lambda b, h, i, j: i >= j,
    "documents": lambda documents: lambda b, h, i, j: documents[b, i] == documents[b, j],
}


@pytest.mark.parametrize("name", [None, *MASKS])
def test_lengths_that_vary(name: str | None) -> None:
    """Behind the first one, an entry serves them all, each with a mask of its own."""

    def function(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Any:
        return flex_attention(
            q, k, v, lambda s, b, h, i, j: s - (i - j).abs(), mask, return_lse=True
        )

    compiled = ingot.compile(function, fullgraph=True)
    for length in (16, 20, 24, 33, 140):
        args: list[Any] = [torch.randn(BATCH, HEADS, length, WIDTH) for _ in range(3)]
        mask = None
        if name is not None:
            documents = torch.randint(0, 3, (BATCH, length))
            condition = MASKS[name](documents)
            mask = create_block_mask(condition, BATCH, None, length, length, device="cpu")
        torch.testing.assert_close(compiled(*args, mask), function(*args, mask))
    compiler = Compiler.of(compiled)
    assert compiler is not None and len(compiler.compilations) == 2


WRONG: dict[str, Callable[[], Any]] = {
    "heads": lambda: flex_attention(Q, K[:, :2], V[:, :2]),
    "length of the mask": lambda: flex_attention(Q[:, :, :9], K, V, block_mask=CAUSAL),
    "dimensions": lambda: flex_attention(Q[0], K[0], V[0]),
    "width": lambda: flex_attention(Q, K[..., :8], V),
    "batch": lambda: flex_attention(Q, K[:1], V[:1]),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_eager_refuses(name: str) -> None:
    with pytest.raises(Exception) as expected:
        WRONG[name]()
    with pytest.raises(type(expected.value)) as actual:
        ingot.compile(WRONG[name])()
    assert str(actual.value) == str(expected.value)


def test_what_eager_keeps_for_its_backward() -> None:
    """The arguments and the result are marked, so that no copies of them are made."""
    marked: list[str] = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        for node in graph.graph.nodes:
            if EAGER_SAVES in node.meta:
                marked.append(node.op)
        return graph

    args = [torch.randn(1, 2, 16, 8) for _ in range(3)]
    function = ingot.compile(lambda q, k, v: flex_attention(q, k, v) + 1, backend=backend)
    function(*args)
    assert not marked
    function(*(t.requires_grad_() for t in args))
    assert marked == [*["placeholder"] * 3, "call_function"]
