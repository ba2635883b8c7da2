"""Attention's results are written where a copy would put them, unless somebody could tell."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ingot
from ingot.compiler import Compiler
from ingot.explain.measure import error


def gradients(function: Callable[..., Tensor], x: Tensor, layer: nn.Module) -> list[str]:
    """The names of the backward's kernels; gradients are eager's."""
    compiled = ingot.compile(function, fullgraph=True)
    leaves = [x, *layer.parameters()]
    found, eager = (torch.autograd.grad(f(x).sin().sum(), leaves) for f in (compiled, function))
    assert error(found, eager) < 1e-5
    compiler = Compiler.of(compiled)
    assert compiler is not None and compiler.compilations[-1].backward is not None
    return [kernel.name for kernel in compiler.compilations[-1].backward.log.plan.kernels]


def attend(*parts: Tensor) -> Tensor:
    heads = (t.unflatten(2, (2, -1)).transpose(1, 2) for t in parts)
    return F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("tokens", [50, 1 + 64])
def test_gradients_of_one_projection_lie_side_by_side(tokens: int) -> None:
    layer, x = nn.Linear(24, 96), torch.randn(3, tokens, 24, requires_grad=True)
    names = gradients(lambda x: attend(*layer(x).split(32, 2)), x, layer)
    assert "attention_backward" in names and not any("cat" in name for name in names)


def test_and_beside_what_else_belongs_there() -> None:
    """The gradient of a fourth piece is made by a kernel of its own, before or after."""
    layer, x = nn.Linear(24, 128), torch.randn(3, 50, 24, requires_grad=True)

    def gated(x: Tensor) -> Tensor:
        *parts, gate = layer(x).split(32, 2)
        return attend(*parts) * gate.sigmoid() + gate.softmax(-1)

    names = gradients(gated, x, layer)
    assert names.count("attention_backward") == 1 and not any(
        name.startswith("cat") for name in names
    )


def test_heads_side_by_side_in_each_token() -> None:
    """(token, head, query or key or value): pieces of 8 elements, each in another place."""
    layer, x = nn.Linear(24, 96), torch.randn(3, 50, 24, requires_grad=True)

    def mixed(x: Tensor) -> Tensor:
        q, k, v = layer(x).view(3, 50, 4, 24).transpose(1, 2).chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    assert "attention_backward" in gradients(mixed, x, layer)


def test_what_is_read_twice_is_not_moved() -> None:
    layer, x = nn.Linear(24, 32), torch.randn(3, 50, 24, requires_grad=True)

    def shared(x: Tensor) -> Tensor:
        y = layer(x)
        return attend(y, y * 2, y.sin())

    assert "attention_backward" in gradients(shared, x, layer)


def test_pieces_that_a_slice_covers_again_are_right() -> None:
    q, k, v = (torch.randn(2, 2, 33, 16) for _ in range(3))

    def covered(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = torch.cat(
            [F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2), q.sum(1)], 2
        )
        return out.slice_scatter(k.sum(1)[:, :, :8], 2, 4, 12)

    with torch.no_grad():
        torch.testing.assert_close(
            ingot.compile(covered)(q, k, v), covered(q, k, v), rtol=1e-5, atol=1e-5
        )


def test_a_result_is_written_into_its_piece() -> None:
    q, k, v, other = (torch.randn(2, 33, 32) for _ in range(4))

    def beside(q: Tensor, k: Tensor, v: Tensor, other: Tensor) -> Tensor:
        return torch.cat([other.cos(), attend(q, k, v)], 2)

    with torch.no_grad():
        compiled = ingot.compile(beside, fullgraph=True)
        torch.testing.assert_close(
            compiled(q, k, v, other), beside(q, k, v, other), rtol=1e-5, atol=1e-5
        )
        names = [kernel.name for kernel in ingot.explain(compiled)(q, k, v, other).kernels]
    assert sorted(name.partition("_")[0] for name in names) == ["attention", "cos"]


def test_pieces_written_before_are_not_written_over() -> None:
    """A temporary as large as the whole, of which one piece is made in place, may not lie where
    other pieces are."""
    a, b, z, w = (
        torch.randn(100, 32),
        torch.randn(32, 64),
        torch.randn(100, 128),
        torch.randn(128, 128) / 10,
    )

    def pieces(a: Tensor, b: Tensor, z: Tensor, w: Tensor) -> Tensor:
        y = (z @ w).softmax(0) @ w
        return torch.cat([(a @ b).relu(), (y[:, 64:] - y.logsumexp(0)[64:]).relu()], 1)

    with torch.no_grad():
        torch.testing.assert_close(
            ingot.compile(pieces)(a, b, z, w), pieces(a, b, z, w), rtol=1e-5, atol=1e-5
        )
