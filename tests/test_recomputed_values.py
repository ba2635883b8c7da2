"""A value that is computed in two kernels has the same bits in both: what is compared with it, or
chosen by it, may not fall out otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import ingot

# Each is about the element of a row whose elements are equal: rounding decides which is larger.
STATISTICS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "mean": lambda x, dim: x.mean(dim, keepdim=True),
    "root of the mean square": lambda x, dim: (x * x).mean(dim, keepdim=True).sqrt(),
    "mean by softmax": lambda x, dim: (x.softmax(dim) * x).sum(dim, keepdim=True),
    "logarithm of a mean": lambda x, dim: x.exp().mean(dim, keepdim=True).log(),
}
# What else is computed with the rows, so that the backward's kernels are not the forward's.
BESIDE: dict[str, Callable[[Tensor, Tensor, int], Tensor]] = {
    "a sum": lambda x, y, dim: y + F.gelu(x).sum(dim, keepdim=True) * 0,
    "a scan": lambda x, y, dim: y * torch.ones_like(x.cumsum(0)),
}


@pytest.mark.parametrize(
    ("shape", "dim"),
    [((64, 100), 1), ((64, 1000), 1), ((300, 300), 1), ((64, 700), 1), ((1000, 33), 0)],
)
@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("name", STATISTICS)
def test_choices_in_a_checkpoint(name: str, beside: str, shape: tuple[int, int], dim: int) -> None:
    """The backward doubles the gradients of those elements that the forward doubled."""
    torch.manual_seed(0)
    sizes = [1 if k == dim else n for k, n in enumerate(shape)]
    x = torch.rand(sizes).expand(shape).contiguous().requires_grad_()

    def block(x: Tensor) -> Tensor:
        doubled = torch.where(x >= STATISTICS[name](x, dim), x * 2, x)
        return BESIDE[beside](x, doubled, dim)

    y = ingot.compile(lambda x: checkpoint(block, x, use_reentrant=False), fullgraph=True)(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient.round(), (y / x).detach().round())


POINTWISE: dict[str, Callable[[Tensor], Tensor]] = {
    **{
        name: getattr(torch, name)
        for name in "exp expm1 log2 sqrt sin tan atan sinh tanh erf sigmoid rsqrt".split()
    },
    "gelu": F.gelu,
    "softplus": F.softplus,
    "power": lambda x: x.abs() ** 1.7,
    "quotient": lambda x: x / 3,
    "polynomial": lambda x: x * x * 0.3 + x * 0.7 + 0.1,
    "logaddexp": lambda x: torch.logaddexp(x, 2 * x),
    "lerp": lambda x: torch.lerp(x, x * 2, 0.3),
}

# Other ways to the same elements: in other loops, as single numbers, left behind whole vectors.
WAYS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Tensor]] = {
    "beside its double": lambda f, x: _first(f(x), f(x) * 2),
    "beside sums of rows": lambda f, x: _first(f(x), f(x).view(64, -1).sum(1)),
    "beside sums of columns": lambda f, x: _first(
        f(x.view(64, -1)).view(-1), f(x.view(64, -1)).sum(0)
    ),
    "transposed": lambda f, x: f(x.view(64, -1).t().contiguous()).t().reshape(-1),
    "strided": lambda f, x: torch.stack([f(x[::2]), f(x[1::2])], 1).view(-1),
    "one for each row": lambda f, x: f(x.view(-1, 1).sum(1)),
    "in pieces": lambda f, x: torch.cat([f(x[:3]), f(x[3:4]), f(x[4]).view(1), f(x[5:])]),
    "looked up": lambda f, x: f(x[torch.arange(len(x) - 1, -1, -1)]).flip(0),
}


def _first(value: Tensor, other: Tensor) -> Tensor:
    return value + torch.where(other.isnan().any(), 0, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", POINTWISE)
def test_functions_in_kernels_of_many_shapes(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x = torch.randn(64 * 67).abs().add(0.01).to(dtype)
    function = POINTWISE[name]
    results = ingot.compile(lambda x: [way(function, x) for way in WAYS.values()], fullgraph=True)(
        x
    )
    first = results[0]  # a function alone may be eager's kernel, with the bits of its library
    for way, result in zip(WAYS, results, strict=True):
        assert torch.equal(result, first), way
