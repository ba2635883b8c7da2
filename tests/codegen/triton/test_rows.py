"""Products of one row on a GPU, with the norm before them and what comes next: plans, and values
under Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.codegen.triton import supported
from ingot.codegen.triton.module import available
from ingot.loops.lowering.lower import lower
from ingot.loops.target import GPU
from ingot.loops.verify import verify
from ingot.schedule import schedule
from ingot.schedule.plan import KernelStep, Plan
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


def planned(fn: Callable[..., Any], *args: Tensor) -> Plan:
    loops = lower(traced(fn, *args), supported, target=GPU)
    verify(loops)
    return schedule(loops, target=GPU, frugal=True)


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
        2,
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
