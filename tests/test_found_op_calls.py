"""Calls of single ops, found by `python -m tests.op_database`, that once did something else
compiled than in eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import ingot
from tests.op_outcome import assert_op

f16, f32, f64, bf16 = torch.float16, torch.float32, torch.float64, torch.bfloat16
LAST_3D = torch.channels_last_3d


def halves(dtype: torch.dtype) -> torch.Tensor:
    """All of them."""
    return torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16).view(dtype)


STEPS = [
    (0, 2, 0.5),
    (2.1, -2.9, -1.0),
    (0.0, -8.000001, -4.0),
    (1.9, 5, 1),
    (0, 5, 1.9),
    (-0.5, 3.9, 1),
    (0, 1, -0.5),
    # fmt: skip
    (0, 5.5, 1.0),
    (0.9, 5, 2),
    (3, -1.5, -1),
    (200, 203.5, 1),
    (0, 1, 1.5),
    (7, 7.5, 1),
]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, f32], ids=str)
@pytest.mark.parametrize("steps", STEPS, ids=str)
def test_arange_of_broken_numbers(steps: tuple[Any, ...], dtype: torch.dtype) -> None:
    """Eager truncates the start and the step of integers, and until torch 2.14 counts what is left
    of those of int64, where the end is truncated as well."""
    if dtype is torch.int64 and abs(steps[2]) < 1 and torch.__version__ < "2.13":
        pytest.skip("eager itself divides by zero, which ends the process")
    assert_op(lambda x: torch.arange(*steps, dtype=dtype), torch.ones(1))


EXACT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sinc": torch.sinc,
    "round down": lambda x: torch.round(x, decimals=-3),
    "round": lambda x: torch.round(x, decimals=1),
    "round up": lambda x: torch.round(x, decimals=5),
    "next": lambda x: torch.nextafter(x, x.flip(0)),
    "next to zero": lambda x: torch.nextafter(x, torch.zeros_like(x)),
    "next to infinity": lambda x: torch.nextafter(x, torch.full_like(x, float("inf"))),
}


@pytest.mark.parametrize("dtype", [f16, bf16], ids=str)
@pytest.mark.parametrize("name", EXACT)
def test_all_halves(name: str, dtype: torch.dtype) -> None:
    x = halves(dtype)
    ours, theirs = ingot.compile(EXACT[name])(x), EXACT[name](x)
    assert torch.equal(ours.isnan(), theirs.isnan())
    known = ~theirs.isnan()
    assert torch.equal(ours[known].view(torch.int16), theirs[known].view(torch.int16))


@pytest.mark.parametrize("value", [1, 0.7])
@pytest.mark.parametrize("dtype", [f32, f64, bf16], ids=str)
def test_addcmul_rounds_as_eager(dtype: torch.dtype, value: float) -> None:
    """The last product and the sum are one rounding, and overflow together."""
    x, a, b = torch.randn(3, 1003, dtype=dtype)
    x[0], a[0], b[0] = float("inf"), torch.finfo(dtype).max, -2.5

    def function(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(x, a, b, value=value)

    ours, theirs = ingot.compile(function)(x, a, b), function(x, a, b)
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [f32, f64, bf16], ids=str)
@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("convolve", [F.conv3d, F.conv_transpose3d])
def test_layout_of_convolutions(
    convolve: Callable[..., torch.Tensor], batched: bool, dtype: torch.dtype
) -> None:
    """Not every kernel of eager's knows of channels last."""
    x = torch.randn(2, 4, 5, 6, 7, dtype=dtype).contiguous(memory_format=LAST_3D)
    assert_op(convolve, x if batched else x[0], torch.randn(4, 4, 3, 3, 3, dtype=dtype))


@pytest.mark.parametrize("sizes", [(5, 4, 3), (2, 2)])
def test_a_resized_tensor(sizes: tuple[int, ...]) -> None:
    def function(x: torch.Tensor, like: torch.Tensor) -> Any:
        y = torch.resize_as_(x.clone(), like)
        return y.shape, y.stride()

    assert_op(function, torch.randn(3, 4, 5).permute(2, 1, 0), torch.ones(sizes))


@pytest.mark.parametrize("draw", [torch.Tensor.normal_, torch.Tensor.exponential_])
@pytest.mark.parametrize("part", [slice(None), slice(1, None, 2)], ids=["whole", "gaps"])
def test_draws_into_gaps(draw: Callable[..., torch.Tensor], part: slice) -> None:
    assert_op(lambda x: draw(x[:, part]) * 2, torch.zeros(5, 40))


@pytest.mark.parametrize("name", ["i0", "i0e", "i1", "i1e"])
def test_bessel_functions_of_doubles(name: str) -> None:
    x = torch.cat(
        [torch.linspace(-20, 20, 1001, dtype=f64), torch.tensor([-0.0, 8, -8, 700], dtype=f64)]
    )
    assert_op(getattr(torch.special, name), x, native=True)


def test_powers_of_doubles() -> None:
    """Within an ulp of eager's from one end of the range to the other; C's special cases are
    eager's."""
    generator = torch.Generator().manual_seed(0)
    x = torch.exp(torch.empty(20_000, dtype=f64).uniform_(-300, 300, generator=generator))
    y = torch.empty(20_000, dtype=f64).uniform_(-700, 700, generator=generator) / x.log().abs()
    ends = [0, 1, 2, 3, 0.5, float("inf"), 1e308, 5e-324, 1e-310, 1074, 1 - 2**-53, 1 + 2**-52]
    table = torch.tensor([*ends, *(-n for n in ends), float("nan")], dtype=f64)
    compiled = ingot.compile(torch.pow)
    for a, b in ((x, y), torch.meshgrid(table, table, indexing="ij")):
        ours, theirs = compiled(a, b), torch.pow(a, b)
        assert torch.allclose(ours, theirs, rtol=2**-51, atol=0, equal_nan=True)
        assert torch.equal(ours.signbit() | ours.isnan(), theirs.signbit() | theirs.isnan())


NOTHING: dict[str, Callable[[torch.Tensor], Any]] = {
    "std_mean": lambda x: torch.std_mean(x, 1, correction=-1),
    "logsumexp": lambda x: torch.logsumexp(x, 0),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, 2, 1),
    "cross": lambda x: torch.linalg.cross(x, x, dim=1),
    "isin": lambda x: torch.isin(torch.ones(2), x),
    "not isin": lambda x: torch.isin(torch.ones(2), x, invert=True),
    "aminmax": lambda x: torch.aminmax(x, dim=1),
}


@pytest.mark.parametrize("name", NOTHING)
def test_reductions_of_nothing(name: str) -> None:
    assert_op(NOTHING[name], torch.empty(0, 3), native=True)


def test_logsumexp_of_integers() -> None:
    assert_op(lambda x: torch.logsumexp(x, 1), torch.arange(-6, 6).view(3, 4), native=True)


def test_running_statistics_are_rounded_once() -> None:
    x, mean, var = torch.tensor([[-7.9375], [3.6094]]), torch.tensor([-8.5]), torch.tensor([1.7656])
    assert_op(
        lambda x, mean, var: F.batch_norm(x, mean, var, training=True, momentum=0.3),
        *(t.to(bf16) for t in (x, mean, var)),
    )


def test_written_arguments_are_judged_by_float64() -> None:
    """Eager rounds the mean of halves before it joins the running one."""
    x, mean, var = (
        torch.tensor([[-7.9375], [3.6094]]),
        torch.tensor([2.3438]),
        torch.tensor([3.2969]),
    )
    assert_op(
        lambda x, mean, var: torch.native_batch_norm(x, None, None, mean, var, True, 0.5, 1e-5),
        *(t.to(bf16) for t in (x, mean, var)),
    )


@pytest.mark.parametrize("rows", [2, 37])
def test_lookups_in_rows_that_lanes_have_of_their_own(rows: int) -> None:
    """Rows that are computed side by side, one to a lane, are looked up by each lane in its own."""
    x = torch.randn(3, rows).t()
    assert_op(
        lambda x, t: F.cross_entropy(x, t, reduction="none"), x, torch.arange(rows) % 3, native=True
    )
    assert_op(
        lambda x, at: torch.gather(torch.softmax(x, 1), 1, at),
        x,
        torch.tensor([[2, 0, 1]]).repeat(rows, 1),
    )


@pytest.mark.parametrize("dtype", [torch.int64, f32, bf16, torch.bool], ids=str)
def test_writes_where_a_mask_holds(dtype: torch.dtype) -> None:
    def put(x: torch.Tensor, row: torch.Tensor) -> Any:
        y, z = x.clone(), x.transpose(0, 2).clone()
        y[row > 0] = 1
        z[:, row[0] > 0] = row[:, :1, None][0].to(x.dtype)
        return y, z

    assert_op(put, torch.randn(4, 5, 6).to(dtype), torch.randn(4, 5), native=True)


def test_layout_of_ldexp() -> None:
    assert_op(
        torch.ldexp, torch.randn(5, 1, 10).permute(2, 1, 0), torch.randn(5, 10).t(), native=True
    )


@pytest.mark.parametrize(
    "shape", [(2, 3, 4, 5), (2, 1, 4, 5), (1, 3, 1, 2), (2, 3, 2, 3, 2), (2, 0, 3, 4)], ids=str
)
def test_layout_of_roll(shape: tuple[int, ...]) -> None:
    """All the way round, too, and back."""
    x = torch.randn(shape)
    last = x.contiguous(memory_format=torch.channels_last if len(shape) == 4 else LAST_3D)
    for t in (x, last, x.transpose(0, -1).contiguous().transpose(0, -1)):
        for shift in (0, 1, -2, 3, -6):
            for dims in [(d,) for d in range(len(shape))]:
                assert_op(torch.roll, t, (shift,), dims)
            assert_op(torch.roll, t, (shift, 1), (0, len(shape) - 1))
            assert_op(torch.roll, t, (1, shift), (1, 0))
            assert_op(torch.roll, t, (shift,))


LAID_OUT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "expanded": lambda t: t[:, :1].expand(4, 6),
    "expanded twice": lambda t: t[:1, :1].expand(4, 6),
    "transposed": lambda t: t.t().contiguous().t(),
    "every second": lambda t: t.repeat(2, 1)[::2],
}


@pytest.mark.parametrize("layout", LAID_OUT)
@pytest.mark.parametrize("seen", [torch.int16, torch.float16, torch.uint8, torch.int32], ids=str)
def test_seen_as_another_type(seen: torch.dtype, layout: str) -> None:
    for dtype in (torch.float16, torch.int16, torch.int32):
        x = LAID_OUT[layout](torch.randint(0, 9, (4, 6)).to(dtype))
        assert_op(lambda x: x.view(seen).to(torch.int64) + 1, x)
        assert_op(lambda x: x.view(seen).transpose(0, 1).to(torch.int64), x)
        assert_op(lambda x: x.view(seen).clone(), x)
        assert_op(lambda x: (x.view(seen), x.view(seen).abs()), x)


REALS = [torch.float16, torch.bfloat16, f32, f64]


@pytest.mark.parametrize(
    "power", [torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, f32, f64], ids=str
)
@pytest.mark.parametrize("dtype", [*REALS, torch.int32, torch.uint8, torch.bool], ids=str)
def test_scaled_by_a_power_of_two(dtype: torch.dtype, power: torch.dtype) -> None:
    """All the way out of the dtype's range and back in, where eager rounds once and where it does
    not."""
    least, most = (-128, 127) if power is torch.int8 else (-2200, 2200)
    powers = [
        least,
        -1100,
        -1074,
        -1022,
        -300,
        -149,
        -127,
        -126,
        -20,
        -1,
        0,
        1,
        15,
        24,
        127,
        128,
        300,
        1023,
        1024,
    ]
    powers = torch.tensor([p for p in [*powers, most] if least <= p <= most]).to(power)
    numbers = torch.tensor(
        [0.0, -0.0, 1, -1.5, math.pi, 6e-8, 1e-38, 1e-45, 3e38, 5e-324, 1.7e308, math.inf, math.nan]
    )
    if not dtype.is_floating_point:
        numbers = torch.tensor([0, 1, 2, 77])
    numbers = numbers.double().to(dtype)[:, None]
    assert_op(torch.ldexp, numbers, powers, native=True)
    assert_op(
        torch.ldexp, numbers.expand(-1, len(powers)).t().contiguous().t(), powers, native=True
    )
    assert_op(torch.ldexp, numbers[0, 0], powers[-1], native=True)
    assert_op(torch.ldexp, numbers[0, 0], powers, native=True)


def test_row_numbers_are_made_up_in_their_range() -> None:
    """LAPACK counts rows from one, and goes where it is told to."""
    matrix = torch.randn(4, 4, dtype=f64)
    factors, pivots = torch.linalg.ldl_factor(matrix + matrix.mT)
    assert_op(torch.linalg.ldl_solve, factors, pivots, torch.randn(4, 2, dtype=f64))
    assert_op(torch.linalg.lu_solve, *torch.linalg.lu_factor(matrix), torch.randn(4, 2, dtype=f64))
    assert_op(torch.lu_unpack, *torch.linalg.lu_factor(matrix))


@pytest.mark.parametrize(
    "margins", [(-5, 1), (-5, 6), (6, -5), (-2, -3), (-2, -2), (-4, 3)], ids=str
)
def test_padding_that_takes_away(margins: tuple[int, int]) -> None:
    assert_op(lambda x: F.pad(x, margins), torch.randn(3, 4))


@pytest.mark.parametrize("dtype", [torch.int64, f32, bf16], ids=str)
def test_backward_of_dropout(dtype: torch.dtype) -> None:
    """The mask is multiplied first, which keeps the signs of eager's zeros, of integers too."""
    grad, kept = (
        torch.tensor([-8, -7, 6, 5, 0]).to(dtype),
        torch.tensor([False, True, False, True, True]),
    )
    assert_op(lambda g, k: torch.ops.aten.native_dropout_backward(g, k, 1.1), grad, kept)


@pytest.mark.parametrize(
    "copied", [torch.diagonal_copy, torch.diag, lambda x: torch.as_strided_copy(x, (1,), (7,))]
)
def test_strides_of_a_copied_view_of_one_element(
    copied: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    x = torch.randn(9, 1)
    assert ingot.compile(copied)(x).stride() == copied(x).stride() == (1,)


REFUSED: dict[str, tuple[Callable[..., Any], tuple[float, ...]]] = {
    "softshrink": (F.softshrink, (-1.5, math.nan, math.inf, 1e300)),
    "rrelu from": (lambda x, s: F.rrelu(x, s, 0.9), (1.5, math.inf, math.nan)),
    "rrelu to": (lambda x, s: F.rrelu(x, 0.1, s), (-1.5, math.inf, math.nan)),
    "rrelu in training": (
        lambda x, s: F.rrelu(x, s, 0.9, training=True),
        (1.5, -math.inf, math.nan),
    ),
    "the end of arange": (lambda x, s: x + torch.arange(0, s, 2.0).sum(), (-1.5, -6.0)),
    "the step of arange": (lambda x, s: x + torch.arange(0, 4.0, s).sum(), (-1.5, 0.0)),
    "mvlgamma": (lambda x, s: torch.mvlgamma(x.abs() + 3, int(s)), (-1.5, 0.0)),
    "interpolate": (lambda x, s: F.interpolate(x.long()[None], scale_factor=s), (1.5, 2.0)),
}


@pytest.mark.parametrize("outside", [False, True], ids=["constants", "inputs"])
@pytest.mark.parametrize("name", REFUSED)
def test_numbers_that_eager_refuses(name: str, outside: bool) -> None:
    function, numbers = REFUSED[name]
    x = torch.linspace(-2, 2, 15).reshape(3, 5)
    compiled = ingot.compile(function)
    if outside and name != "interpolate":
        for s in (0.5, 0.75) if name != "mvlgamma" else (1.0, 2.0):
            torch.manual_seed(0)
            expected = function(x, s)
            torch.manual_seed(0)
            torch.testing.assert_close(compiled(x, s), expected)
    for s in numbers:
        with pytest.raises((RuntimeError, NotImplementedError)) as refused:
            function(x, s)
        with pytest.raises(refused.type) as raised:
            compiled(x, s) if outside else ingot.compile(lambda x: function(x, s))(x)  # noqa: B023
        assert str(raised.value) == str(refused.value)


@pytest.mark.parametrize("eps", [0.25, 0.5, 0.75, 1.5, 0.0, -0.5, math.nan])
def test_bounds_of_logit_that_are_not_in_order(eps: float) -> None:
    assert_op(torch.logit, torch.linspace(-0.5, 1.5, 33), eps, native=True)
