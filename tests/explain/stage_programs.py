"""Thirty small programs of many kinds, whose stages' texts are run and compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import flex_attention


@dataclass(frozen=True)
class Program:
    """`make()` gives the function or module, and its arguments; those of `trained` programs that
    are floating point get gradients. `dynamic` sizes are symbols. `eager` computes the same where
    eager does not run the function."""

    make: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
    trained: bool = True
    dynamic: bool = False
    eager: Callable[..., Any] | None = None


def of(function: Callable[..., Any], *shapes: tuple[int, ...], **flags: Any) -> Program:
    """A function of random tensors."""
    return Program(lambda: (function, tuple(map(torch.randn, shapes))), **flags)


def given(function: Callable[..., Any], *arguments: Any, **flags: Any) -> Program:
    """A function of these arguments."""
    return Program(lambda: (function, arguments), **flags)


def module(make: Callable[[], nn.Module], *shape: int) -> Program:
    return Program(lambda: (make(), (torch.randn(shape),)))


def norm_and_activation(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(F.layer_norm(x, weight.shape, weight, bias))


def group_norm(x: Tensor) -> Tensor:
    return F.silu(F.group_norm(x, 2))


def written_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.transpose(-1, -2) / 4
    return torch.softmax(scores, -1) @ v


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def with_distance(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return torch.where(q >= k, score - (q - k) * 0.1, -float("inf"))


def scored_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    result = flex_attention(q, k, v, score_mod=with_distance)
    assert isinstance(result, Tensor)
    return result


def scored_in_eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """flex_attention has no gradients on CPUs in eager."""
    place = torch.arange(q.shape[2])
    scores = q @ k.mT / q.shape[3] ** 0.5
    scores = with_distance(scores, place, place, place[:, None], place)
    return torch.softmax(scores, -1) @ v


def convolution(x: Tensor, weight: Tensor) -> Tensor:
    return F.relu(F.conv2d(x, weight, stride=2, padding=1))


def pooling(x: Tensor) -> tuple[Tensor, Tensor]:
    return F.max_pool2d(x, 2), F.interpolate(F.avg_pool2d(x, 2), scale_factor=2.0)


def products(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    return torch.addmm(c, a, b).relu() @ b.T


def looked_up(ids: Tensor, table: Tensor) -> Tensor:
    return F.embedding(ids, table).sum(1) * 2


def indexed(x: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    return x[at].exp(), x[:, None, 1:3].flip(0) + x.gather(1, at[:, None] % 3)[:1, :, None]


def scattered(x: Tensor, at: Tensor) -> Tensor:
    return torch.zeros(5, 4).index_add(0, at, x).scatter(0, at[None, :4], x[:1, :4] * 2)


def running(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.cumsum(0) * 2, x.sigmoid().cumprod(1)


def dropped(x: Tensor) -> Tensor:
    return F.dropout(x, 0.5, training=True) * x + torch.rand_like(x)


def written(x: Tensor, state: Tensor) -> Tensor:
    state.add_(x).mul_(2)
    return state[0] + x.sum()


def viewed(x: Tensor) -> tuple[Tensor, Tensor]:
    turned = x.t().reshape(2, 3, 4).permute(2, 0, 1)
    return turned.contiguous() + 1, x.unfold(1, 2, 1).sum(-1)


def complex_numbers(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.complex(x, y)
    return (z * z.conj()).real, torch.view_as_real(z * 1j)


def integers(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    both = (x > y) & (y != 0)
    return both.any(1), x // 3 % 5, (x << 1) ^ y, both.sum(), x.argmax(1)


def any_size(x: Tensor, n: int) -> Tensor:
    return torch.softmax(x.reshape(-1, n), 0).sum(1) + x.shape[0]


def halved_until_small(x: Tensor) -> Tensor:
    def goes_on(x: Tensor) -> Tensor:
        return x.abs().sum() > 1

    def half(x: Tensor) -> tuple[Tensor]:
        return (x.sin() / 2,)

    (result,) = while_loop(goes_on, half, (x,))
    return result * 3


def combined(x: Tensor) -> Tensor:
    return associative_scan(lambda a, b: a + b, x, 0, combine_mode="generic")


def chosen(x: Tensor) -> Tensor:
    return x[x > 0] * 2


def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target, label_smoothing=0.1)


def of_eight_bits(x: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    return F.linear(x, weight.to(x.dtype) * scale[:, None])


def rounded(x: Tensor, low: float, high: float) -> Tensor:
    return torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255).clamp(low, high)


def halves(x: Tensor, y: Tensor) -> Tensor:
    return (x.bfloat16() * y.bfloat16()).float().softmax(-1)


def moments(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.var(1), x.amax(0), torch.logsumexp(x, 1)


def sorted_ends(x: Tensor) -> tuple[Tensor, Tensor]:
    values, order = torch.sort(x, dim=1, stable=True)
    return values[:, :2] + 1, order


def small_network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))


def images() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.lstm(x)[0]
        return result


HEADS = ((1, 2, 8, 8),) * 3
SEQUENCES = ((1, 2, 16, 16),) * 3
INTEGERS = torch.arange(-6, 6).reshape(3, 4), torch.arange(12).reshape(3, 4) - 3

PROGRAMS = {
    "pointwise": of(lambda x, y: (x + y[:1]) * 2 - torch.sin(x) / 3, (6, 5), (6, 5)),
    "layer_norm_gelu": of(norm_and_activation, (5, 8), (8,), (8,)),
    "group_norm": of(group_norm, (2, 4, 3, 3)),
    "softmax": of(lambda x: torch.softmax(x * 2, -1) + torch.log_softmax(x, 0), (5, 7)),
    "moments": of(moments, (5, 7)),
    "attention_written_out": of(written_attention, *HEADS),
    "attention": of(causal_attention, *HEADS),
    "flex_attention": of(scored_attention, *SEQUENCES, eager=scored_in_eager),
    "convolution": of(convolution, (2, 3, 7, 7), (4, 3, 3, 3)),
    "pooling": of(pooling, (1, 2, 4, 4)),
    "products": of(products, (4, 6), (6, 5), (5,)),
    "embedding": Program(lambda: (looked_up, (torch.tensor([[1, 0], [3, 1]]), torch.randn(4, 3)))),
    "indexing": Program(lambda: (indexed, (torch.randn(4, 3), torch.tensor([2, 0, 0])))),
    "scatter": Program(lambda: (scattered, (torch.randn(4, 4), torch.tensor([2, 0, 2, 1])))),
    "scans": of(running, (5, 3)),
    "random": of(dropped, (4, 5)),
    "mutation": of(written, (3, 4), (3, 4), trained=False),
    "views": of(viewed, (6, 4)),
    "complex": of(complex_numbers, (3, 4), (3, 4)),
    "integers": given(integers, *INTEGERS, trained=False),
    "dynamic": Program(lambda: (any_size, (torch.randn(6, 4), 3)), dynamic=True),
    "while_loop": of(halved_until_small, (4,), trained=False),
    "associative_scan": of(combined, (6, 3), trained=False),
    "sizes_of_the_data": of(chosen, (4, 3)),
    "cross_entropy": Program(
        lambda: (cross_entropy, (torch.randn(4, 5), torch.tensor([1, 0, 4, 2])))
    ),
    "weights_of_8_bits": Program(
        lambda: (
            of_eight_bits,
            (torch.randn(3, 6), torch.randint(-99, 99, (4, 6), dtype=torch.int8), torch.rand(4)),
        )
    ),
    "fake_quantization": Program(lambda: (rounded, (torch.randn(4, 5), 0.2, 3.0))),
    "halves": of(halves, (3, 8), (3, 8)),
    "sorting": of(sorted_ends, (4, 5)),
    "network": module(small_network, 4, 6),
    "images": module(images, 2, 2, 6, 6),
    "lstm": module(Recurrent, 3, 2, 3),
}
