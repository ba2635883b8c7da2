"""How far reductions are from float64, beside eager's: along every set of dimensions.

The error of an accumulator grows with the number of additions to it in a row.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ingot
from tests.op_outcome import ERROR_FLOOR, ERROR_RATIO

Dims = tuple[int, ...]
Function = Callable[[Tensor, Dims], Tensor]

SHAPES = (
    (100_000,), (100_000, 4), (4, 100_000), (197, 256), (511, 100), (300, 5), (33, 257), (2, 2),
    (1000, 1000), (2, 197, 256), (3, 1000, 17), (16, 512, 300), (50, 50, 50), (5000, 2, 3),
    (20, 7, 3, 50), (16, 8, 28, 28),
)  # fmt: skip

# Sums of terms of one sign, and functions of such sums that magnify no error.
SUMS: dict[str, Function] = {
    "sum": lambda x, dims: x.sum(dims),
    "mean": lambda x, dims: x.mean(dims),
    "sum of squares": lambda x, dims: (x * x).sum(dims),
    "sum of exponentials": lambda x, dims: x.exp().sum(dims),
    "var": lambda x, dims: x.var(dims, correction=0),
    "std": lambda x, dims: x.std(dims, correction=0),
    "var_mean": lambda x, dims: torch.var_mean(x, dims, correction=0)[0],
    "norm of order 1": lambda x, dims: torch.linalg.vector_norm(x, 1, dims),
    "norm of order 2": lambda x, dims: torch.linalg.vector_norm(x, 2, dims),
    "norm of order 3": lambda x, dims: torch.linalg.vector_norm(x, 3, dims),
    "logsumexp": lambda x, dims: x.logsumexp(dims),
    "sum to size": lambda x, dims: x.sum_to_size(
        [1 if k in dims else n for k, n in enumerate(x.shape)]
    ),
}
ALONG_ONE: dict[str, Callable[[Tensor, int], Tensor]] = {
    "softmax": lambda x, dim: x.softmax(dim),
    "log_softmax": lambda x, dim: x.log_softmax(dim),
    "normalize": lambda x, dim: F.normalize(x, dim=dim),
    "cumsum": lambda x, dim: x.cumsum(dim),
}

HARD: tuple[tuple[tuple[int, ...], Dims], ...] = (
    ((2, 197, 256), (1,)), ((5000, 2, 3), (0, 2)), ((511, 100), (0,)), ((16, 8, 28, 28), (0, 2)),
    ((16, 512, 30), (1,)), ((3000, 4), (0, 1)), ((100_000,), (0,)),
)  # fmt: skip


def reductions() -> Iterator[tuple[tuple[int, ...], Dims]]:
    for shape in SHAPES:
        for count in range(1, len(shape) + 1):
            for dims in itertools.combinations(range(len(shape)), count):
                yield shape, dims


def assert_as_good(function: Callable[..., Tensor], *args: Tensor, **options: bool) -> None:
    """The error is at most 1.1 times eager's, or 4 eps: that of all elements together, and that of
    the worst of them."""
    exact = function(*(a.double() if a.is_floating_point() else a for a in args))
    expected, result = function(*args), ingot.compile(function, fullgraph=True, **options)(*args)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    eps = torch.finfo(result.dtype).eps
    for order in (2, torch.inf):
        unit = torch.linalg.vector_norm(exact, order) * eps
        ours = torch.linalg.vector_norm(result.double() - exact, order) / unit
        theirs = torch.linalg.vector_norm(expected.double() - exact, order) / unit
        message = f"order {order}: {ours:.2f} eps, eager {theirs:.2f}"
        assert ours <= max(ERROR_RATIO * theirs, ERROR_FLOOR), message


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize(("shape", "dims"), reductions())
def test_sums_of_every_shape(shape: tuple[int, ...], dims: Dims) -> None:
    assert_as_good(lambda x: x.sum(dims), torch.rand(shape))


@pytest.mark.parametrize(("shape", "dims"), HARD)
@pytest.mark.parametrize("name", SUMS)
def test_what_is_made_of_sums(name: str, shape: tuple[int, ...], dims: Dims) -> None:
    function = SUMS[name]
    assert_as_good(lambda x: function(x, dims), torch.rand(shape))


@pytest.mark.parametrize(
    ("shape", "dim"), [((511, 100), 0), ((2, 197, 256), 1), ((8, 5000), 1), ((3, 1000, 17), 1)]
)
@pytest.mark.parametrize("name", ALONG_ONE)
def test_what_is_computed_along_a_dimension(name: str, shape: tuple[int, ...], dim: int) -> None:
    function = ALONG_ONE[name]
    assert_as_good(lambda x: function(x, dim), torch.rand(shape))


@pytest.mark.parametrize(("shape", "dims"), HARD)
@pytest.mark.parametrize("name", ["sum", "mean", "var", "norm of order 2"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves(dtype: torch.dtype, name: str, shape: tuple[int, ...], dims: Dims) -> None:
    """Halves are summed in float32: the results are halves, or float32."""
    function = SUMS[name]
    x = (torch.rand(shape) / 64).to(dtype)
    assert_as_good(lambda x: function(x, dims), x)
    assert_as_good(lambda x: function(x if x.dtype is torch.float64 else x.float(), dims), x)


@pytest.mark.parametrize(("shape", "dims"), HARD)
def test_strided_elements(shape: tuple[int, ...], dims: Dims) -> None:
    x = torch.rand(*shape[:-1], shape[-1] * 2)[..., ::2]
    assert_as_good(lambda x: x.sum(dims), x)


@pytest.mark.parametrize(("shape", "dims"), HARD)
def test_reversed_dimensions(shape: tuple[int, ...], dims: Dims) -> None:
    x = torch.rand(shape[::-1]).permute(*range(len(shape))[::-1])
    assert_as_good(lambda x: x.sum(dims), x)


@pytest.mark.parametrize(("shape", "dims"), HARD)
def test_sizes_that_are_symbols(shape: tuple[int, ...], dims: Dims) -> None:
    """The code does not know how long its loops are."""
    assert_as_good(lambda x: x.sum(dims), torch.rand(shape), dynamic=True)


@pytest.mark.parametrize(("shape", "dims"), HARD)
def test_float64(shape: tuple[int, ...], dims: Dims) -> None:
    """Nothing is wider than float64, so `math.fsum` is the oracle."""
    x = torch.rand(shape, dtype=torch.float64)
    rest = [n for k, n in enumerate(shape) if k not in dims]
    columns = x.movedim(dims, [*range(-len(dims), 0)]).reshape(math.prod(rest), -1)
    result = ingot.compile(lambda x: x.sum(dims), fullgraph=True)(x).flatten()
    eps = torch.finfo(torch.float64).eps
    for total, column in zip(result.tolist(), columns.tolist(), strict=True):
        exact = math.fsum(column)
        assert abs(total - exact) <= ERROR_FLOOR * eps * exact


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e308])
def test_float64_that_is_not_finite(value: float) -> None:
    x = torch.rand(5000, 3, dtype=torch.float64)
    x[7, 0], x[4000, 0], x[9, 1] = value, value, -value
    compiled = ingot.compile(lambda x: (x.sum(0), x.sum()), fullgraph=True)
    torch.testing.assert_close(compiled(x), (x.sum(0), x.sum()), equal_nan=True)


def gradient(function: Callable[..., Tensor], which: int) -> Callable[..., Tensor]:
    """The gradient of `function` for argument number `which`; the last argument is the tangent."""

    def result(*args: Tensor) -> Tensor:
        leaf = args[which].detach().requires_grad_()
        y = function(*args[:which], leaf, *args[which + 1 : -1])
        return torch.autograd.grad(y, leaf, args[-1])[0]

    return result


def _places(count: int, among: int) -> Tensor:
    return torch.randint(0, among, (count,))


GRADIENTS: dict[str, tuple[Callable[..., Tensor], int, tuple[Tensor, ...]]] = {
    # the function, the argument that the gradient is of, the arguments
    "bias": (torch.add, 1, (torch.rand(600, 70), torch.rand(70))),
    "bias of images": (
        lambda x, b: x + b[:, None, None], 1, (torch.rand(64, 8, 20, 20), torch.rand(8)),
    ),
    "scale": (torch.mul, 1, (torch.rand(4, 500, 33), torch.rand(33))),
    "a column of scales": (torch.mul, 1, (torch.rand(9, 500, 33), torch.rand(500, 1))),
    "linear": (F.linear, 2, (torch.rand(700, 20), torch.rand(30, 20), torch.rand(30))),
    "layer norm": (
        lambda x, w, b: F.layer_norm(x, (64,), w, b), 2,
        (torch.rand(900, 64), torch.rand(64), torch.rand(64)),
    ),
    "batch norm": (
        lambda x, w, b: F.batch_norm(x, None, None, w, b, True), 2,
        (torch.rand(64, 8, 20, 20), torch.rand(8), torch.rand(8)),
    ),
    "expand": (lambda x: x.expand(2000, 30), 0, (torch.rand(30),)),
    # Eager adds one row after the other, too.
    "embedding": (F.embedding, 1, (_places(200, 3), torch.rand(3, 20))),
    "index": (lambda x, i: x[i], 0, (torch.rand(3, 20), _places(200, 3))),
}  # fmt: skip


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    function, which, args = GRADIENTS[name]
    tangent = torch.rand_like(function(*args))
    assert_as_good(gradient(function, which), *args, tangent)


SCATTERS: dict[str, Callable[..., Tensor]] = {
    "index_add": lambda x, places: x.new_zeros(5, x.shape[1]).index_add(0, places, x),
    "scatter_add": lambda x, places: x.new_zeros(5, x.shape[1]).scatter_add(
        0, places[:, None].expand_as(x), x
    ),
    "scatter mean": lambda x, places: x.new_zeros(5, x.shape[1]).scatter_reduce(
        0, places[:, None].expand_as(x), x, "mean"
    ),
    "index_put": lambda x, places: x.new_zeros(5, x.shape[1]).index_put(
        (places,), x, accumulate=True
    ),
    "index_reduce": lambda x, places: x.new_zeros(5, x.shape[1]).index_reduce(0, places, x, "mean"),
    "segments": lambda x, places: torch.segment_reduce(
        x, "sum", lengths=torch.tensor([100, 0, 300]), unsafe=True
    ),
}


@pytest.mark.parametrize("name", SCATTERS)
def test_sums_at_places(name: str) -> None:
    assert_as_good(SCATTERS[name], torch.rand(400, 20), _places(400, 5))


OF_ZEROS: dict[str, Function] = {
    "sum": lambda x, dims: x.sum(dims),
    "mean": lambda x, dims: x.mean(dims),
    "nansum": lambda x, dims: x.nansum(dims),
    "of products": lambda x, dims: (x * 2).sum(dims, keepdim=True),
    "in float64": lambda x, dims: x.sum(dims, dtype=torch.float64),
}


@pytest.mark.parametrize("name", OF_ZEROS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(1, 3), (3, 1), (2, 3), (1, 1), (64, 3), (3, 64)], ids=str)
def test_a_sum_begins_at_zero(shape: Dims, dtype: torch.dtype, name: str) -> None:
    """It is never -0.0, also of single elements."""
    x = torch.full(shape, -0.0, dtype=dtype)
    for dims in ((0,), (1,), (0, 1)):
        ours = ingot.compile(OF_ZEROS[name])(x, dims)
        assert torch.equal(ours.signbit(), OF_ZEROS[name](x, dims).signbit()), dims


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_products_that_are_small_or_large_on_the_way(dtype: torch.dtype) -> None:
    """Factors are multiplied in float64, where nothing is lost, and nothing becomes denormal."""
    tiny, huge = 2.0**-14, 2.0**14
    x = torch.tensor([tiny] * 40 + [huge] * 40 + [3.0, 0.5], dtype=dtype)
    found = ingot.compile(lambda x: x.prod(0), fullgraph=True)(x)
    assert found.dtype is dtype and found.item() == 1.5
