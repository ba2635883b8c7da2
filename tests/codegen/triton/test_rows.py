"""Products of one row on a GPU, with the norm before them and what comes next: plans, and values
under Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.codegen.triton import Gpu, compile_kernels, supported
from ingot.codegen.triton.module import available
from ingot.loops.lowering.lower import lower
from ingot.loops.target import GPU
from ingot.loops.verify import verify
from ingot.schedule import schedule
from ingot.schedule.kernel import Kernel, Tiling
from ingot.schedule.plan import KernelStep, Plan
from ingot.schedule.templates import Choice, Choose, Site
from tests.codegen.triton.interpreting import INTERPRETED, interpreted, run_interpreted
from tests.loops.test_lowering import traced

if not available():
    pytest.skip("Triton is not installed", allow_module_level=True)

if not INTERPRETED:

    def test_under_the_interpreter() -> None:
        run_interpreted(__file__)

else:
    from tests.codegen.triton.interpreter import run

compiled = pytest.mark.skipif(INTERPRETED, reason="compiles")


def planned(fn: Callable[..., Any], *args: Tensor, choose: Choose | None = None) -> Plan:
    loops = lower(traced(fn, *args), supported, target=GPU)
    verify(loops)
    return schedule(loops, target=GPU, frugal=True, choose=choose)


def tiles(sites: Sequence[Site], plan: Callable[[Site, Choice], Plan]) -> list[Choice]:
    """All products are kernels of small tiles."""
    return [(site.forms[0], Tiling(16, 32, 32, 3, 4)) for site in sites]


def draw(*shape: int, dtype: torch.dtype = torch.float16, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return (torch.randn(shape, generator=generator) / shape[-1] ** 0.25).to(dtype)


def rms(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


def layer(x: Tensor, weight: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, weight)


def gated(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


def of_attention(x: Tensor, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    return F.linear(x, query), F.linear(x, key), F.linear(x, value)


WEIGHTS = [(512, 320), (512, 320)]
PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]], int]] = {
    "linear": (F.linear, [(512, 320)], 1),
    "bias": (F.linear, [(512, 320), (512,)], 1),
    "no vector": (F.linear, [(301, 130)], 1),
    "added": (lambda x, w: F.linear(x, w) + x, [(320, 320)], 1),
    "gated": (gated, WEIGHTS, 1),
    "rms": (lambda x, n, g, u: gated(rms(x, n), g, u), [(320,), *WEIGHTS], 1),
    "layer": (lambda x, n, g, u: gated(layer(x, n), g, u), [(320,), *WEIGHTS], 1),
    "attention": (
        lambda x, n, *w: of_attention(rms(x + 1, n), *w),
        [(320,), (512, 320), (256, 320), (256, 320)],
        1,
    ),
}
"""A function of a row and of tensors of these shapes, and how many launches it takes."""


def arguments(name: str, dtype: torch.dtype = torch.float16, rows: int = 1) -> list[Tensor]:
    _, shapes, _ = PROGRAMS[name]
    width = next(s[1] for s in shapes if len(s) == 2)
    return [draw(*s, dtype=dtype, seed=k) for k, s in enumerate([(rows, width), *shapes])]


@interpreted
@pytest.mark.parametrize("name", PROGRAMS)
def test_values(name: str) -> None:
    fn, args = PROGRAMS[name][0], arguments(name)
    plan = planned(_named(fn), *args)
    found = run(plan, list(args))
    exact, eager = fn(*(t.double() for t in args)), fn(*args)
    if isinstance(eager, Tensor):
        exact, eager = (exact,), (eager,)
    for mine, its, true in zip(found, eager, exact, strict=True):
        error, of_eager = ((t.double() - true).norm() for t in (mine, its))
        assert mine.dtype is its.dtype and error <= 1.1 * of_eager + 1e-6


def _named(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which a graph can name."""

    def program(*args: Tensor) -> Any:
        return fn(*args)

    return program


@pytest.mark.parametrize("name", PROGRAMS)
def test_launches(name: str) -> None:
    fn, _, launches = PROGRAMS[name]
    args = arguments(name)
    plan = planned(_named(fn), *args)
    assert len(plan.steps) == launches
    assert all(isinstance(step, KernelStep) for step in plan.steps)


@compiled
def test_it_compiles_for_a_gpu() -> None:
    args = arguments("attention")
    plan = planned(_named(PROGRAMS["attention"][0]), *args)
    assert compile_kernels(plan.steps, Gpu("cuda", 90)).function_count == 1  # type: ignore[arg-type]


@compiled
def test_tiles_that_share_a_launch_share_memory() -> None:
    """A block has the shared memory of one product, whichever it computes."""
    x, weight = draw(16, 512), draw(64, 512)
    alone = planned(F.linear, x, weight, choose=tiles)
    plan = planned(_named(of_attention), x, weight, weight.clone(), weight.clone(), choose=tiles)
    (step,), (other,) = plan.steps, alone.steps
    assert isinstance(step, KernelStep) and isinstance(other, KernelStep)
    assert isinstance(step.kernel, Kernel) and isinstance(other.kernel, Kernel)
    assert len(step.kernel.members) == 3
    binaries = compile_kernels([step, other], Gpu("cuda", 90))
    assert binaries.binary(step.kernel).shared == binaries.binary(other.kernel).shared


@interpreted
@pytest.mark.parametrize("rows", [16, 5])
def test_tiles_that_share_a_launch(rows: int) -> None:
    args = [draw(rows, 96), draw(80, 96), draw(33, 96), draw(48, 96)]
    plan = planned(_named(of_attention), *args, choose=tiles)
    assert len(plan.steps) == 1
    for mine, its in zip(run(plan, list(args)), of_attention(*args), strict=True):
        torch.testing.assert_close(mine, its, rtol=2e-3, atol=2e-3)


# -- launches that need not wait for each other ----------------------------------------------------


def in_order(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """The second needs the first; the third is a different loop that needs neither."""
    first = (x * 2).flip(0)
    return first, first.flip(0).cumsum(0)[:4] + 1, (y + 1).flip(0)


def overwritten(x: Tensor, y: Tensor) -> Tensor:
    """The input is read before it is written."""
    total = (x.flip(0) * 3).clone()
    x.copy_(y.sin())
    return total


def small(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return x.t().exp(), y * 2, y[:7].sin()


@interpreted
@pytest.mark.parametrize("fn", [in_order, overwritten, small])
def test_small_kernels(fn: Callable[..., Any]) -> None:
    args, expected = ([draw(40, 24), draw(40, 24, seed=1)] for _ in range(2))
    found = run(planned(fn, *args), args)
    eager = fn(*expected)
    for mine, its in zip(found, (eager,) if isinstance(eager, Tensor) else eager, strict=True):
        torch.testing.assert_close(mine, its, rtol=2e-3, atol=2e-3)
    for mine, its in zip(args, expected):
        torch.testing.assert_close(mine, its, rtol=2e-3, atol=2e-3)


def test_small_kernels_are_one_launch() -> None:
    (step,) = planned(small, draw(40, 24), draw(40, 24)).steps
    assert isinstance(step, KernelStep) and isinstance(step.kernel, Kernel)
    assert len(step.kernel.members) > 1


def test_what_is_needed_is_waited_for() -> None:
    def fn(x: Tensor) -> Tensor:
        return torch.cat([x * 2, x.t() + 1]).flip(0).t().contiguous()

    for plan in (planned(fn, draw(24, 24)), planned(overwritten, draw(24, 24), draw(24, 24))):
        written: set[str] = set()
        for step in plan.steps:
            if isinstance(step, KernelStep):
                reads = {n for n, p in zip(step.arguments, step.parameters) if p.read}
                writes = {n for n, p in zip(step.arguments, step.parameters) if p.written}
                members = getattr(step.kernel, "members", ())
                if members:
                    assert reads.isdisjoint(writes)
                written |= writes
        assert written
