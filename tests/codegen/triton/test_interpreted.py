"""Kernels under Triton's interpreter, on CPU tensors, beside eager. The interpreter is chosen when
Triton is imported: this file runs itself once more, in a process where it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from examples.functions import FUNCTIONS
from ingot.codegen.triton.module import available
from ingot.graph.passes.sums import sum_pieces
from ingot.loops.target import Target
from ingot.schedule.blocks import choose_blocks
from ingot.schedule.plan import KernelStep, LibraryStep
from tests.codegen.test_reference import SHAPES
from tests.codegen.triton.interpreting import (
    FEW_BLOCKS,
    INTERPRETED,
    NARROW,
    draw,
    interpreted,
    run_interpreted,
    with_blocking,
)
from tests.long import long
from tests.oracle import CLOSE, EXACT, Numbers, assert_call
from tests.oracle import copies as copied

if not available():
    pytest.skip("Triton is not installed", allow_module_level=True)

if not INTERPRETED:

    @long
    def test_under_the_interpreter() -> None:
        run_interpreted(__file__)

else:
    from ingot.codegen.triton import supported, write_kernel
    from ingot.codegen.triton.forms import forms_of, general_form
    from ingot.loops.lowering.lower import lower
    from ingot.schedule import schedule
    from tests.codegen.triton import interpreter
    from tests.codegen.triton.interpreter import planned, planned_beside, run
    from tests.loops.test_lowering import traced


def assert_planned(
    fn: Callable[..., Any],
    *args: torch.Tensor,
    dynamic: bool = False,
    numbers: Numbers = CLOSE,
    target: Target = FEW_BLOCKS,
) -> Any:
    """The GPU's plan of a function does what eager does; returns the plan."""
    plan = planned(fn, *args, dynamic=dynamic, target=target)
    assert_call(lambda *own: run(plan, list(own)), fn, *args, numbers=numbers, structure=False)
    return plan


@interpreted
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    fn, args = FUNCTIONS[name].make(shape=SHAPES[name])
    assert_planned(fn, *args)


@interpreted
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_halves(name: str) -> None:
    """In float16: the interpreter does not round to bfloat16, it truncates."""
    fn, args = FUNCTIONS[name].make(shape=SHAPES[name], dtype=torch.float16)
    (found,) = run(planned(fn, *args), copied(args))
    exact = fn(*(a.double() if a.is_floating_point() else a for a in args))
    ours, eagers = (((a.double() - exact).norm() / exact.norm()).item() for a in (found, fn(*args)))
    assert ours <= max(1.1 * eagers, 4 * torch.finfo(torch.float16).eps)


@interpreted
@pytest.mark.parametrize("name", ["layer_norm_gelu", "masked_softmax", "rms_norm_rotary"])
def test_functions_in_steps(name: str) -> None:
    fn, args = FUNCTIONS[name].make(shape=SHAPES[name])
    assert_planned(fn, *args, target=NARROW)


REDUCTIONS: dict[str, Callable[[torch.Tensor, int], Any]] = {
    "sum": lambda x, d: x.sum(d),
    "amax": lambda x, d: x.amax(d),
    "min": lambda x, d: x.amin(d, keepdim=True),
    "prod": lambda x, d: x.prod(d),
    "argmax": lambda x, d: x.argmax(d),
    "argmin": lambda x, d: x.argmin(d),
    "any": lambda x, d: (x > 1).any(d),
    "all": lambda x, d: (x > -1).all(d),
    "softmax": lambda x, d: x.softmax(d),
    "normalized": lambda x, d: (x - x.mean(d, keepdim=True)) / x.std(d, keepdim=True),
}


@interpreted
@pytest.mark.parametrize("target", [FEW_BLOCKS, NARROW], ids=["whole", "steps"])
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name: str, dim: int, target: Target) -> None:
    x = draw(5, 7, 19)
    x[2, 3, 4] = torch.nan
    assert_planned(lambda x: REDUCTIONS[name](x, dim), x, target=target)


def beside(
    fn: Callable[..., Any], *args: torch.Tensor, target: Target = FEW_BLOCKS
) -> tuple[int, int]:
    """The GPU's plan of a function, whose arguments of rank 0 are on the CPU, gives what eager
    gives, what it writes included; returns how many kernels it has there and here."""
    plan = planned_beside(fn, *args, target=target)
    given, expected_args = copied(args), copied(args)
    found, expected = run(plan, given), fn(*expected_args)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for a, b in zip([*found, *given], [*expected, *expected_args], strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        torch.testing.assert_close(a, b, equal_nan=True)
    sides = [step.on_host for step in plan.steps if hasattr(step, "kernel")]
    return sum(sides), len(sides) - sum(sides)


NUMBERS = [torch.tensor(v, dtype=d) for v, d in (
    (2.5, torch.float32), (-1 / 3, torch.float64), (1.5, torch.float16), (3, torch.int64),
    (-2, torch.int8),
    (7, torch.uint8), (True, torch.bool), (False, torch.bool),
)]  # fmt: skip


@interpreted
@pytest.mark.parametrize("number", NUMBERS, ids=str)
def test_numbers_on_the_cpu(number: torch.Tensor) -> None:
    x = draw(5, 40)
    assert beside(lambda x, n: x * n, x, number) == (0, 1)
    assert beside(lambda x, n: torch.where(x > n, x.exp(), n), x, number) == (0, 1)
    assert beside(lambda x, n: F.pad(torch.where(x > 0, n, x), (1, 2)), x, number) == (0, 1)


@interpreted
def test_what_is_computed_of_numbers_is_on_the_cpu() -> None:
    x, step, rate = draw(5, 40), torch.tensor(3.0), torch.tensor(0.1, dtype=torch.float64)

    def update(x: torch.Tensor, step: torch.Tensor, rate: torch.Tensor) -> Any:
        before = x * step
        step += 1
        x.sub_(rate / (1 - 0.9**step) * x.sign())
        return before, step * 2, rate.sqrt()

    assert beside(update, x, step, rate) == (3, 1)


@interpreted
def test_copies_from_side_to_side() -> None:
    x, n = draw(5, 40), torch.tensor(0.5)
    copy = torch.ops.aten._to_copy.default
    assert beside(
        lambda x, n: (copy(n, device=x.device), copy(n, device=x.device).exp()), x, n
    ) == (0, 2)
    assert beside(lambda x, n: (copy(x.exp().sum(), device=n.device) + n) * x, x, n) == (1, 2)


def updates(*args: torch.Tensor) -> torch.Tensor:
    """Moves each first tensor of three by the second, as fast as the third says."""
    for value, grad, rate in zip(args[::3], args[1::3], args[2::3]):
        value.sub_(grad.sign() * (rate + 1))
    return args[0]


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_many_small_tensors_in_one_launch(dtype: torch.dtype) -> None:
    """Several sizes, of a block and of more, and a number for each."""
    args: list[torch.Tensor] = []
    for k, shape in enumerate([(3, 5), (2100,), (1,), (64, 16), (7,), (1025,)]):
        args += [
            draw(*shape, dtype=dtype),
            draw(*shape, dtype=dtype, seed=1),
            torch.tensor(k / 4, dtype=torch.float64),
        ]
    assert beside(updates, *args) == (1, 2)  # that of one element has no loop
    assert beside(updates, *args[:9]) == (1, 3)  # too few to make up for a table
    assert {kernel.table for kernel in planned_beside(updates, *args).kernels} == {0, 8}


@interpreted
def test_more_tensors_than_a_table_has() -> None:
    args = [
        t for k in range(14) for t in (draw(k + 2), draw(k + 2, seed=1), torch.tensor(float(k)))
    ]
    assert beside(updates, *args, target=replace(FEW_BLOCKS, most_sharing=5)) == (1, 3)


@interpreted
def test_large_tensors_are_launched_alone() -> None:
    args = [
        t
        for k in range(14)
        for t in (draw(2 * k + 2), draw(2 * k + 2, seed=1), torch.tensor(float(k)))
    ]
    assert beside(updates, *args, target=replace(FEW_BLOCKS, shared_points=20)) == (1, 1 + 4)


@interpreted
def test_a_long_reduction_is_split() -> None:
    plan = assert_planned(lambda x: x.sum(), draw(1 << 16))
    assert len(plan.kernels) == 2


@interpreted
@pytest.mark.parametrize("width", [48, 128, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_columns_are_summed_in_runs_of_rows(dtype: torch.dtype, width: int) -> None:
    def fn(
        g: torch.Tensor, x: torch.Tensor, rest: torch.Tensor, weight: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        g = g.float() / 16  # so that the sums are small beside what float32 leaves out of them
        normal = (x - x.mean(-1, True)) * x.var(-1, keepdim=True).rsqrt()
        inner = g * weight
        total = rest / 16 + (
            inner - inner.mean(-1, True) - normal * (inner * normal).mean(-1, True)
        )
        return total, (g * normal).sum((0, 1)), g.sum((0, 1)), total.sum((0, 1)) * 2

    g, *others = (draw(8, 128, width, seed=k) for k in range(3))
    args = g.to(dtype), *others, draw(width, seed=3)
    plan = assert_planned(fn, *args, target=with_blocking(threads=1 << 11))
    assert sorted(k.run for k in plan.kernels)[-1] >= 64  # type: ignore[union-attr]
    assert len(plan.kernels) == 4


@interpreted
@pytest.mark.parametrize("keep", [True, False])
def test_what_is_joined_is_summed_on_the_way(keep: bool) -> None:
    def fn(*pieces: torch.Tensor) -> tuple[torch.Tensor, ...]:
        joined = torch.cat(pieces, -1).view(4096, -1)
        return joined, joined.sum([0], keepdim=keep)

    args = [draw(4, 1024, 64, seed=k) / 16 for k in range(3)]
    plan = planned_beside(fn, *args, passes=(("sum pieces", sum_pieces),))
    for found, expected in zip(run(plan, args), fn(*args), strict=True):
        assert found.shape == expected.shape
        torch.testing.assert_close(found, expected)
    first = plan.kernels[0]
    assert [len(stage.stores) for stage in first.stages if stage.loops] == [3]  # type: ignore[union-attr]
    large = [
        p for p in first.parameters if p.length is not None and p.length.constant == args[0].numel()
    ]
    assert len(large) == 3


@interpreted
def test_joined_numbers_and_joined_nothing_are_summed() -> None:
    """Over no dimensions means over all, and an empty piece may have fewer dimensions than the
    others."""
    passes = (("sum pieces", sum_pieces),)
    a, b = draw(1, 3), draw(1, 3, seed=1)
    for fn, args in (
        (lambda x, y: (torch.cat([x, y], -1).view(6).sum([]),), (a, b)),
        (lambda x, y: (torch.cat([x, y], -1).sum([0]),), (torch.empty(0), a)),
    ):
        found, expected = run(planned_beside(fn, *args, passes=passes), list(args)), fn(*args)
        torch.testing.assert_close(found[0], expected[0])


@interpreted
def test_a_library_writes_into_what_a_kernel_makes() -> None:
    def fn(x: torch.Tensor, places: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = x.float().index_put([places], rows, accumulate=True)
        return total, total * 2 + x, x.index_put([places], rows.half())

    plan = assert_planned(
        fn, draw(10, 4, dtype=torch.float16), torch.tensor([1, 9, 1]), draw(3, 4, seed=1)
    )
    calls = [step.node for step in plan.steps if isinstance(step, LibraryStep)]
    assert len(calls) == 2 and all(call.mutates and call.targets == (None,) for call in calls)


@interpreted
def test_what_a_library_writes_into_lies_as_its_result() -> None:
    """Also where what it is made of has gaps between its elements."""

    def fn(x: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, ...]:
        part = x[:2, 1::3, ::2]
        total = part.index_put([places], part[0], accumulate=True)
        turned = x.permute(2, 0, 1)[1:4].index_put([places], x[0, 0, 0])
        return total, total.sum(0), part.unsqueeze(0), turned, turned * 2

    assert_planned(fn, draw(4, 2, 6), torch.arange(7) % 2)


@interpreted
@pytest.mark.parametrize("eps", [None, 1e-3, 1e-6])
def test_bounds_of_a_logit_of_halves_are_not_rounded(eps: float | None) -> None:
    x = torch.cat([torch.tensor([0.0, 1.0, -1.0, 2.0, 0.9995]), torch.rand(100)]).half()
    (found,) = run(planned(lambda x: x.logit(eps), x), [x])
    torch.testing.assert_close(
        found, x.double().logit(eps).half(), rtol=2**-10, atol=0, equal_nan=True
    )


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gelu_takes_no_tanh(dtype: torch.dtype) -> None:
    def fn(g: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.gelu(x, approximate="tanh"), torch.ops.aten.gelu_backward(g, x, approximate="tanh")

    ends = torch.tensor(
        [0.0, -0.0, 1e-30, -1e-30, 9.0, -9.0, 100.0, -100.0, 1e10, -1e10, torch.nan]
    )
    x = torch.cat([ends, draw(1000), draw(1000) * 4]).to(dtype)
    plan = assert_planned(fn, torch.ones_like(x), x)
    for kernel in plan.kernels:
        source = write_kernel(kernel).source  # type: ignore[arg-type]
        assert "libdevice.tanh" not in source and "one_plus_tanh" in source


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gelu_and_its_gradient_share_the_normal_distribution(dtype: torch.dtype) -> None:
    def fn(g: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return F.gelu(x), torch.ops.aten.gelu_backward(g, x)

    ends = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 9.0, -9.0, 100.0, 1e10, -1e10, torch.nan])
    x = torch.cat([ends, draw(1000), draw(1000) * 4]).to(dtype)
    plan = assert_planned(fn, torch.ones_like(x), x)
    (kernel,) = plan.kernels
    source = write_kernel(kernel).source  # type: ignore[arg-type]
    assert "libdevice.erf" not in source and "helpers.normal_cdf" in source


@interpreted
def test_gelu_keeps_its_digits_where_it_is_small() -> None:
    """Where 1 + erf(x) has none left, which is what eager computes."""
    x = torch.linspace(-12, 5, 10001)
    (found,) = run(planned(F.gelu, x), [x])
    expected = x.double() * torch.special.erfc(x.double() * -math.sqrt(0.5)) / 2
    assert ((found - expected).abs() <= 8e-6 * expected.abs()).all()
    close = x > -3
    assert ((found - expected).abs() <= 6e-7 * expected.abs())[close].all()


@interpreted
def test_erf_that_is_wanted_stays() -> None:
    plan = assert_planned(lambda x: (x.erf(), 2 + x.erf(), (1 + x.erf()) * 0.5), draw(1000) * 3)
    (kernel,) = plan.kernels
    source = write_kernel(kernel).source  # type: ignore[arg-type]
    assert "libdevice.erf" in source and "normal_cdf" not in source


@interpreted
def test_tanh_that_is_wanted_stays() -> None:
    plan = assert_planned(lambda x: (1 + x.tanh(), 1 - x.tanh() ** 2, 2 + x.tanh()), draw(1000) * 3)
    (kernel,) = plan.kernels
    assert "libdevice.tanh" in write_kernel(kernel).source  # type: ignore[arg-type]


@interpreted
def test_what_is_no_factor_is_made_of_tanh() -> None:
    """Where tanh is 1, the logarithm of what is left to 1 is eager's: minus infinity, and never
    that of less than 0."""
    x = torch.cat([torch.tensor([-12.0, -11.0, 11.0, 12.0]), draw(1000).clamp(-2, 2)])
    plan = assert_planned(lambda x: (torch.log(1 - x.tanh() ** 2), torch.log(1 + x.tanh())), x)
    (kernel,) = plan.kernels
    source = write_kernel(kernel).source  # type: ignore[arg-type]
    assert "libdevice.tanh" in source and "one_" not in source


@interpreted
def test_tanh_is_computed_once_where_a_product_takes_it_too() -> None:
    plan = assert_planned(
        lambda x, g: (g * x.tanh(), g * (1 - x.tanh() ** 2)), draw(1000) * 3, draw(1000, seed=1)
    )
    (kernel,) = plan.kernels
    source = write_kernel(kernel).source  # type: ignore[arg-type]
    assert source.count("libdevice.tanh") == 1 and "one_" not in source


@interpreted
def test_what_was_stored_is_not_read_again() -> None:
    def fn(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = x + y
        mean = total.mean(1, True)
        return total, mean, (total - mean).to(torch.bfloat16)

    plan = assert_planned(fn, draw(6, 100), draw(6, 100, dtype=torch.bfloat16, seed=1))
    (kernel,) = plan.kernels
    source = write_kernel(kernel).source  # type: ignore[arg-type]
    assert source.count("tl.load") == 2 and "barrier" not in source


@interpreted
def test_what_was_stored_elsewhere_in_the_row_is_read() -> None:
    plan = assert_planned(lambda x: (y := x * 2, (y - y.flip(1)).exp()), draw(6, 100))
    assert plan.kernels


@interpreted
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8, torch.uint8], ids=str)
def test_integers(dtype: torch.dtype) -> None:
    x = torch.arange(-60, 60).to(dtype)
    y = torch.arange(120).fmod(7).add(1).to(dtype)
    assert_planned(
        lambda x, y: (
            x // y, x % y, torch.fmod(x, y), x << (y % 8), x >> (y % 8), -x, ~x, x & y, x ^ y,
            x.sign(), x.sum(), x.max(), torch.maximum(x, y), x.bool(), x < y, x.to(torch.float32),
            x * y,
            torch.div(x, y, rounding_mode="trunc"),
        ),
        x, y, numbers=EXACT,
    )  # fmt: skip


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_floats(dtype: torch.dtype) -> None:
    x = torch.tensor(
        [0.0, -0.0, 1.5, -2.5, torch.inf, -torch.inf, torch.nan, 3e-3, 7.0], dtype=dtype
    )
    y = torch.tensor([2.0, -3.0, 0.0, 1.5, -1.0, torch.nan, 1.0, -7.0, 7.0], dtype=dtype)
    assert_planned(
        lambda x, y: (
            -x, x.abs(), x.sign(), x.signbit(), torch.copysign(x, y), torch.maximum(x, y),
            torch.minimum(x, y), torch.fmod(x, y), torch.remainder(x, y), x / y, x / 3, x.floor(),
            x.round(), x.trunc(), x.sqrt(), x.rsqrt(), x == y, x.isnan(), x.isinf(),
            torch.where(x > y, x, y), x.sigmoid(), x.tanh(), x.exp(), x.relu(),
            x.clamp(-1, 1), F.gelu(x.clamp(-9, 9)),
        ),
        x, y,
    )  # fmt: skip


@interpreted
def test_layouts() -> None:
    x = draw(2, 37, 3, 34)
    plan = assert_planned(lambda x: x.transpose(1, 3).contiguous(), x, numbers=EXACT)
    assert choose_blocks(plan.kernels[0]).tile
    assert_planned(lambda x: x.permute(3, 2, 1, 0) + 1, x, numbers=EXACT)
    assert_planned(
        lambda x, y: x + y, x, x.contiguous(memory_format=torch.channels_last), numbers=EXACT
    )
    assert_planned(lambda x: x.flip(1).roll(3, 2)[:, ::2, 1:], x, numbers=EXACT)
    assert_planned(lambda x: F.pad(x, (1, 2, 3, 0), value=1.0), x, numbers=EXACT)
    assert_planned(
        lambda x: torch.cat([x[:, :, :, :10].neg(), x[:, :, :, 7:], x], -1), x, numbers=EXACT
    )
    assert_planned(lambda x: F.max_pool2d(x, 3, 2, 1), x, numbers=EXACT)
    assert_planned(lambda x: F.avg_pool2d(x, 3, 2, 1), x)


@interpreted
def test_indices() -> None:
    table, at = (
        draw(50, 33),
        torch.randint(0, 50, (7, 9), generator=torch.Generator().manual_seed(0)),
    )
    assert_planned(lambda t, i: F.embedding(i, t) * 2, table, at, numbers=EXACT)
    assert_planned(lambda t, i: t[-i - 1, :9], table, at[:, 0], numbers=EXACT)
    assert_planned(lambda t, i: t.gather(0, i), table, at, numbers=EXACT)
    assert_planned(
        lambda t, i: t.index_put((i[0],), t[i[1]] * 2),
        table,
        torch.stack([at[0].unique(), at[0].unique()]),
    )


@interpreted
def test_rows_with_a_margin() -> None:
    """They are loaded in whole vectors, but for rows that an index with a margin of its own
    tells."""
    table, index = draw(10, 16), torch.full((10, 16), 1 << 20)
    index[:, :13] = torch.arange(9).repeat(10, 2)[:, :13]
    plan = assert_planned(lambda x, i: (x[:9, :13] * i[:9, :13]).sum(1), table, index)
    assert "r < 16" in write_kernel(plan.kernels[0]).source
    for kernel in planned(
        lambda x, i: x[:9, :13].gather(0, i[:9, :13]).sum(1), table, index
    ).kernels:
        assert "r < 16" not in write_kernel(kernel).source
    assert_planned(lambda x, i: x[:9, :13].gather(0, i[:9, :13]).sum(1), table, index)


@interpreted
@pytest.mark.parametrize("factor", [1.0, 2.0])
@pytest.mark.parametrize("lends", [False, True])
def test_what_is_scaled_in_its_memory(factor: float, lends: bool) -> None:
    """By 1, nothing is done: what is not in that memory is copied. Few blocks find that out."""
    target = with_blocking(most_scaling=2)
    args = draw(77, 40), torch.tensor(factor)
    scaled = traced(lambda x, y: torch.where(x == 0, x, x * y), *args)
    loops = lower(scaled, supported, target=target)
    loops.lends = {"in0"} if lends else set()
    plan = schedule(loops, target=target, frugal=True)
    (step,) = plan.steps
    assert isinstance(step, KernelStep) and ("return" in write_kernel(step.kernel).source) == lends
    assert (write_kernel(step.kernel).grid.constant == 2) == lends
    plan.lenders = plan.lenders if lends else {}
    assert torch.equal(run(plan, copied(args))[0], args[0] * factor)
    plan.lenders = {}
    assert torch.equal(run(plan, copied(args))[0], args[0] * factor)


LENT: dict[str, Callable[..., Any]] = {
    "points": lambda x, y: x * y + 1,
    "rows": lambda x, y: y - x.exp() * y.sum(-1, keepdim=True),
    "normalized rows": lambda x, y: (x - x.mean(-1, keepdim=True)) * y,
    "columns": lambda x, y: x - x.sum(0) * y,
    "one of two": lambda x, y: (x + y, (x * y).sum(-1)),
}


@interpreted
@pytest.mark.parametrize("shape", [(5, 40), (2, 300)])
@pytest.mark.parametrize("target", [FEW_BLOCKS, NARROW], ids=["whole", "steps"])
@pytest.mark.parametrize("name", LENT)
def test_what_is_read_lends_its_memory(name: str, target: Target, shape: tuple[int, int]) -> None:
    """A result is written over an argument: each element when it has been read for the last
    time."""
    args = draw(*shape), draw(*shape, seed=1)
    loops = lower(traced(LENT[name], *args), supported, target=target)
    expected = run(schedule(loops, target=target, frugal=True), copied(args))
    loops.lends = set(loops.inputs)
    plan = schedule(loops, target=target, frugal=True)
    assert plan.lenders or name in ("columns", "one of two")
    assert all(map(torch.equal, run(plan, copied(args)), expected))


@interpreted
def test_libraries_between_kernels() -> None:
    x, w = draw(12, 8), draw(8, 6, seed=1)
    plan = assert_planned(lambda x, w: (torch.relu(x @ w + 1) @ w.t()).softmax(-1), x, w)
    assert sum(not hasattr(step, "kernel") for step in plan.steps) == 2


@interpreted
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_sizes_that_are_symbols(rows: int) -> None:
    plan = assert_planned(
        lambda x: (F.gelu(x) + 1, x.softmax(-1), x.sum(0)),
        draw(40, 24),
        dynamic=True,
        target=NARROW,
    )
    x = draw(rows, 24, seed=1)
    found = run(plan, [x])
    torch.testing.assert_close(tuple(found), (F.gelu(x) + 1, x.softmax(-1), x.sum(0)))


@interpreted
@pytest.mark.parametrize("wide", [False, True])
def test_both_forms_of_symbolic_sizes(wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    def write(kernel: Any, form: Any) -> Any:
        form = forms_of(kernel)[-1] if wide else general_form(kernel)
        written.append(write_kernel(kernel, form))
        return written[-1]

    monkeypatch.setattr(interpreter, "write_kernel", write)

    def fn(x: torch.Tensor) -> Any:
        return x.t() * 2, x[1:].softmax(-1), x.sum(0), x.argmax(-1), torch.cat([x, x * 3])

    plan = planned(fn, draw(40, 24), dynamic=True)
    for rows in (2, 9, 70):
        x = draw(rows, 24, seed=rows)
        torch.testing.assert_close(tuple(run(plan, [x])), fn(x))
    assert all(w.short is not wide for w in written if w.sizes) and any(w.sizes for w in written)


def rows_of_any_length(x: torch.Tensor) -> Any:
    x = F.softmax(x * 2 + x.mean(0), -1)
    joined = torch.cat([x, x.sin()], -1)
    return (
        (joined - joined.mean(-1, keepdim=True)) * x.shape[1],
        x.argmax(-1),
        x.softmax(0),
        x.sum(),
    )


@interpreted
def test_forms_for_some_sizes() -> None:
    """Rows of symbolic length stay in registers where they fit, and are taken in steps where they
    do not."""
    target = with_blocking(few_blocks=8, largest_row=256, short_rows=512)
    plan = planned(rows_of_any_length, draw(9, 24), dynamic=(0, 1), target=target)
    asked = []
    for shape in ((3, 1), (5, 63), (2, 65), (9, 100), (2, 520), (40, 3)):
        x = draw(*shape, seed=shape[1])
        torch.testing.assert_close(
            tuple(run(plan, [x])), rows_of_any_length(x), rtol=2e-5, atol=1e-5
        )
        sizes = dict(zip((symbol for symbol, *_ in plan.graph.symbols), shape))
        asked.append([interpreter.form_for(kernel, sizes).blocks for kernel in plan.kernels])
    persistent = [sum(b.persistent for b in each) for each in asked]
    assert persistent[0] == max(persistent) > persistent[4] and len(set(map(tuple, asked))) > 3


@interpreted
@pytest.mark.parametrize("width", [8, 6])
def test_steps_share_kernels(width: int) -> None:
    """What tells them apart is where they begin, but for what is less than 16 bytes."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(x.shape[1:])
        for step in x.unbind():
            state = (state + step).softmax(0).softmax(1)
        return state

    kernels = [
        step for step in assert_planned(fn, draw(9, 5, width)).steps if isinstance(step, KernelStep)
    ]
    assert len({step.kernel for step in kernels}) <= 12 < len(kernels)
    begins = [offset.constant for step in kernels for offset in step.offsets]
    assert any(begins) and all(begin is not None and begin % 4 == 0 for begin in begins)
