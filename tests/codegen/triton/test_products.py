"""Matrix products as kernels, under Triton's interpreter beside eager, and compiled for devices
that need not be there. As in test_interpreted.py, this file runs itself once more where the
interpreter is chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ingot.codegen.triton import Gpu, compile_kernels, supported, write_kernel
from ingot.codegen.triton.module import available
from ingot.loops.lowering.lower import lower
from ingot.loops.target import GPU
from ingot.loops.verify import verify
from ingot.schedule import schedule
from ingot.schedule.kernel import Tiling
from ingot.schedule.plan import KernelStep, LibraryStep, Plan
from ingot.schedule.templates import Choice, Site
from tests.codegen.triton.interpreting import INTERPRETED, interpreted, run_interpreted
from tests.long import long
from tests.loops.test_lowering import traced
from tests.oracle import AGAINST_FLOAT64, assert_call
from tests.oracle import copies as copied

if not available():
    pytest.skip("Triton is not installed", allow_module_level=True)

if not INTERPRETED:

    @long
    def test_under_the_interpreter() -> None:
        run_interpreted(__file__)

else:
    from tests.codegen.triton.interpreter import run

compiled = pytest.mark.skipif(INTERPRETED, reason="compiles")

TILING = Tiling(32, 16, 16, 2, 4, group=3)


def planned(
    fn: Callable[..., Any], *args: torch.Tensor, tiling: Tiling = TILING, form: int = 0
) -> Plan:
    """The GPU's plan of a function, all products that can be kernels being some, in the form of
    this number."""
    loops = lower(traced(fn, *args), supported, target=GPU)

    def choose(sites: Sequence[Site], plan: Callable[[Site, Choice], Plan]) -> list[Choice]:
        chosen: list[Choice] = [(site.forms[form], tiling) for site in sites]
        for site, choice in zip(sites, chosen):
            assert len(plan(site, None).steps) == len(site.positions)
            assert not any(isinstance(step, LibraryStep) for step in plan(site, choice).steps)
        return chosen

    verify(loops)
    return schedule(loops, target=GPU, choose=choose)


def calls(plan: Plan) -> int:
    return sum(isinstance(step, LibraryStep) for step in plan.steps)


def assert_planned(
    fn: Callable[..., Any],
    *args: torch.Tensor,
    tiling: Tiling = TILING,
    form: int = 0,
    launches: int = 1,
) -> Plan:
    """The plan calls no library and gives what eager gives, with no more error against float64."""
    plan = planned(fn, *args, tiling=tiling, form=form)
    assert (calls(plan), len(plan.kernels)) == (0, launches)

    def run_plan(*own: torch.Tensor) -> Any:
        return run(plan, list(own))

    assert_call(run_plan, fn, *args, numbers=AGAINST_FLOAT64, structure=False)
    return plan


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(dtype)


def gelu_linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w, b))


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(
    "sizes", [(32, 16, 16), (96, 48, 64), (45, 35, 37), (1, 70, 5), (200, 1, 20)], ids=str
)
def test_interpreted_sizes(sizes: tuple[int, int, int], dtype: torch.dtype) -> None:
    m, n, k = sizes
    plan = assert_planned(
        gelu_linear, draw(m, k, dtype=dtype), draw(n, k, dtype=dtype), draw(n, dtype=dtype)
    )
    text = write_kernel(plan.kernels[0]).source  # type: ignore[arg-type]
    assert text.count("mask = ") == sum((m % 32 > 0, n % 16 > 0, 2 * (k % 16 > 0)))


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_interpreted_operands_of_either_order(dtype: torch.dtype) -> None:
    for left in (
        draw(40, 24, dtype=dtype),
        draw(24, 40, dtype=dtype).t(),
        draw(40, 50, dtype=dtype)[:, 1:25],
    ):
        for right in (draw(24, 33, dtype=dtype), draw(33, 24, dtype=dtype).t()):
            assert_planned(lambda x, y: (x @ y).relu(), left, right)
        assert_planned(lambda x, y: (x @ y.expand(24, 33)).relu(), left, draw(24, 1, dtype=dtype))


@interpreted
def test_interpreted_batches() -> None:
    x, y = draw(3, 2, 20, 24), draw(3, 2, 24, 18)
    assert_planned(lambda x, y: x @ y, x, y)
    assert_planned(lambda x, y: (x @ y).relu() + 1, x, y)
    assert_planned(lambda x, y: (x @ y.transpose(-1, -2)).relu(), x, x)
    assert_planned(lambda x, w, b: F.gelu(F.linear(x, w, b)), x, draw(18, 24), draw(18))
    assert_planned(lambda x, y, z: torch.baddbmm(z, x, y).tanh(), x[0], y[0], draw(2, 20, 18))
    assert_planned(lambda x, y: (x @ y).sum(1) * 2, x, y, launches=2)


@interpreted
def test_interpreted_epilogues() -> None:
    x, w, b, r = draw(40, 24), draw(33, 24), draw(33), draw(40, 33)
    assert_planned(lambda x, w, b, r: r + F.linear(x, w, b), x, w, b, r)
    assert_planned(lambda x, w, b, r: (F.linear(x, w, b) * r[:, :1]).half(), x, w, b, r)
    assert_planned(lambda x, w, b, r: torch.where(r > 0, F.linear(x, w, b).relu(), r), x, w, b, r)
    assert_planned(
        lambda x, w, b, r: (F.linear(x, w, b), F.linear(x, w, b).sigmoid() * r), x, w, b, r
    )
    assert_planned(lambda x, w, b, r: F.silu(x @ w.t()) * (x @ w.t() + b), x, w, b, r, launches=1)
    assert_planned(
        lambda x, w, b, r: F.silu(x @ w.t()) * (x @ r.t()[:24] + b[:1]),
        x,
        w,
        b,
        draw(33, 24),
        launches=2,
    )


@interpreted
@pytest.mark.parametrize("form", [0, 1])
def test_interpreted_prologues(form: int) -> None:
    """What computes an operand cheaply is part of the kernel, or, in another form, a kernel of its
    own."""
    x, w, b = draw(40, 37), draw(33, 37, dtype=torch.float16), draw(33, dtype=torch.float16)
    assert_planned(
        lambda x, w, b: F.linear(cast(x, torch.half), w, b).relu(),
        x,
        w,
        b,
        form=form,
        launches=1 + form,
    )
    assert_planned(
        lambda x, w, b: (cast(x, torch.half) * 2 - 1) @ w.t(), x, w, b, form=form, launches=1 + form
    )
    assert_planned(
        lambda x, w: x @ (cast(w, torch.float) + 1).t(), x, w, form=form, launches=1 + form
    )
    assert_planned(
        lambda x, w: (x + 1) @ (cast(w, torch.float) * 0.5).t() - 1,
        x,
        w,
        form=form,
        launches=1 + 2 * form,
    )
    assert_planned(lambda x: (x * 2) @ (x * 2).t(), x, form=form, launches=1 + form)
    assert_planned(
        lambda x, y: (x + x[:, :1]) @ (-y),
        draw(3, 20, 24),
        draw(3, 24, 18),
        form=form,
        launches=1 + 2 * form,
    )


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_interpreted_sums_in_parts(dtype: torch.dtype) -> None:
    x, w, b = draw(20, 1024, dtype=dtype), draw(33, 1024, dtype=dtype), draw(33, dtype=dtype)
    for form, parts in ((1, 2), (2, 4), (3, 8)):
        plan = assert_planned(gelu_linear, x, w, b, form=form, launches=2)
        assert plan.kernels[0].product is not None and plan.kernels[0].points.constant == parts * 3  # type: ignore
    assert_planned(
        lambda x, w, b: F.layer_norm(F.linear(x, w, b), (33,)), x, w, b, form=1, launches=3
    )
    assert_planned(lambda x, w, b: (x * 2) @ w.t(), x, w, b, form=3, launches=2)


@interpreted
def test_interpreted_order() -> None:
    """What is written in between stays in between."""
    x, w = draw(40, 24), draw(24, 33)

    def before(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = x @ w
        x.add_(1)
        return (y + 1).relu(), x.sum()

    def operand(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = x * 2
        x.add_(1)
        z = y @ w
        w.mul_(2)
        return z.relu()

    def twice(x: torch.Tensor, w: torch.Tensor) -> Any:
        y = x @ w
        return y.relu(), y.softmax(-1), (y @ w.t()).relu() + x

    def overwritten(x: torch.Tensor, w: torch.Tensor) -> Any:
        x.copy_((x @ w[:, :24]).relu())
        return x + 1

    for fn in (before, operand, twice, overwritten):
        plan = planned(fn, x, w)
        assert calls(plan) == 0
        ours, eagers = copied((x, w)), copied((x, w))
        found, expected = run(plan, ours), fn(*eagers)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for a, b in zip([*found, *ours], [*expected, *eagers], strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)


@interpreted
def test_interpreted_text() -> None:
    plan = assert_planned(gelu_linear, draw(40, 24), draw(33, 24), draw(33))
    text = write_kernel(plan.kernels[0]).source  # type: ignore[arg-type]
    assert (
        text.startswith("@triton.jit\ndef linear_gelu(")
        and "tl.dot(" in text
        and "helpers.gelu(" in text
    )


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return x if x.dtype is torch.float64 else x.to(dtype)


DEVICES = [Gpu("cuda", 80), Gpu("cuda", 90), Gpu("cuda", 100), Gpu("hip", "gfx942")]


@compiled
@pytest.mark.parametrize("gpu", DEVICES, ids=str)
def test_products_compile(gpu: Gpu) -> None:
    shapes = {torch.bfloat16: Tiling(64, 64, 32, 2, 4), torch.float32: Tiling(32, 32, 16, 2, 2)}
    for dtype, tiling in shapes.items():
        plan = planned(
            gelu_linear,
            draw(70, 64, dtype=dtype),
            draw(96, 64, dtype=dtype),
            draw(96, dtype=dtype),
            tiling=tiling,
        )
        (step,) = plan.steps
        assert isinstance(step, KernelStep)
        binary = compile_kernels([step], gpu).binary(step.kernel)  # type: ignore[arg-type]
        assert binary.image[:4] == b"\x7fELF" and binary.threads == tiling.warps * gpu.warp_size


@compiled
def test_what_products_are_made_of() -> None:
    """Halves go to tensor cores, float32 to them only where torch's settings allow it; sums of
    float32 are fused."""
    texts = {}
    for dtype, precision in (
        (torch.bfloat16, "ieee"),
        (torch.float32, "ieee"),
        (torch.float32, "tf32"),
    ):
        tiling = Tiling(64, 64, 32, 3, 4, precision=precision)
        plan = planned(
            lambda x, y: x @ y, draw(64, 64, dtype=dtype), draw(64, 64, dtype=dtype), tiling=tiling
        )
        compiled = compile_kernels(
            [s for s in plan.steps if isinstance(s, KernelStep)], Gpu("cuda", 80)
        )
        texts[dtype, precision] = compiled.assembly()
    assert (
        ".bf16.bf16.f32" in texts[torch.bfloat16, "ieee"]
        and "cp.async" in texts[torch.bfloat16, "ieee"]
    )
    assert (
        "mma." not in texts[torch.float32, "ieee"] and "fma.rn.f32" in texts[torch.float32, "ieee"]
    )
    assert ".tf32.tf32.f32" in texts[torch.float32, "tf32"]


@compiled
def test_what_stays_a_call() -> None:
    """Other types, symbolic sizes, and what another step needs in between."""
    loops = lower(
        traced(gelu_linear, draw(40, 24), draw(33, 24), draw(33), dynamic=True),
        supported,
        target=GPU,
    )
    assert calls(schedule(loops, target=GPU, choose=lambda sites, plan: [TILING] * len(sites))) == 1
    assert (
        calls(
            planned(
                lambda x, y: x @ y, draw(8, 8, dtype=torch.float64), draw(8, 8, dtype=torch.float64)
            )
        )
        == 1
    )


@compiled
def test_what_comes_next_may_not_be_computed_on_tiles() -> None:
    plan = planned(lambda x, y: (x @ y).softmax(-1), draw(40, 24), draw(24, 33))
    assert calls(plan) == 0 and len(plan.kernels) == 2
    plan = planned(lambda x, y: (x @ y)[torch.arange(3)] * 2, draw(40, 24), draw(24, 33))
    assert calls(plan) == 0 and len(plan.kernels) >= 2


@compiled
def test_tilings_of_one_text_have_code_of_their_own() -> None:
    tilings = [
        Tiling(32, 32, 16, 2, 2),
        Tiling(32, 32, 32, 2, 2),
        Tiling(32, 32, 16, 3, 2),
        Tiling(32, 32, 16, 2, 4),
    ]
    x = draw(64, 64, dtype=torch.float16)
    plans = [planned(lambda x, y: x @ y, x, x, tiling=tiling) for tiling in tilings]
    made = [step for plan in plans for step in plan.steps if isinstance(step, KernelStep)]
    compiled = compile_kernels(made, Gpu("cuda", 90))
    assert len({compiled.ir(step.kernel) for step in made}) == 1 and compiled.function_count == 4
    binaries = [compiled.binary(step.kernel) for step in made]  # type: ignore[arg-type]
    assert len({b.image for b in binaries}) == 4 and [b.threads for b in binaries] == [
        64,
        64,
        64,
        128,
    ]
