"""What makes one token on a GPU that is not there: plans, and values under Triton's
interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.codegen.triton import supported
from ingot.codegen.triton.module import Gpu, available, compile_kernels
from ingot.explain.traffic import step_bytes
from ingot.graph import FakeContext, few_queries, trace
from ingot.graph.passes.pipeline import PASSES, run_passes
from ingot.loops.lowering.lower import lower
from ingot.loops.target import GPU
from ingot.loops.verify import verify
from ingot.ops import reductions
from ingot.schedule import schedule
from ingot.schedule.plan import KernelStep, Plan
from tests.codegen.triton.interpreting import INTERPRETED, interpreted, run_interpreted
from tests.graph.tracing import graph_of

if not available():
    pytest.skip("Triton is not installed", allow_module_level=True)

if not INTERPRETED:

    def test_under_the_interpreter() -> None:
        run_interpreted(__file__)

else:
    from tests.codegen.triton.interpreter import run

compiled = pytest.mark.skipif(INTERPRETED, reason="compiles")


ARITIES: dict[int, Callable[..., Any]] = {
    1: lambda fn: lambda x: fn(x),
    5: lambda fn: lambda q, k, v, position, new: fn(q, k, v, position, new),
    3: lambda fn: lambda q, k, v: fn(q, k, v),
    4: lambda fn: lambda q, k, v, mask: fn(q, k, v, mask),
}


def planned(fn: Callable[..., Any], *args: Tensor) -> Plan:
    """The GPU's plan of a function, traced on the CPU."""
    context = FakeContext()
    with torch.no_grad(), context, mock.patch.object(few_queries, "DEVICE", "cpu"):
        fakes = [context.fake(a) for a in args]
        aten = trace(graph_of(ARITIES[len(args)](fn)), fakes, context)
    run_passes(aten, PASSES)
    loops = lower(aten, supported, target=GPU)
    verify(loops)
    return schedule(loops, target=GPU, frugal=True)


def moved(plan: Plan) -> int:
    """Bytes that all steps of a plan read and write."""
    return sum(sum(step_bytes(step, plan.graph, {})) for step in plan.steps)


def inputs(
    batch: int, heads: int, groups: int, keys: int, width: int = 32,
    dtype: torch.dtype = torch.float16,
) -> list[Tensor]:  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    shapes = (batch, heads, 1, width), (batch, groups, keys, width), (batch, groups, keys, width)
    return [torch.randn(s, generator=generator).to(dtype) for s in shapes]


def grouped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def written_out(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    k, v = (t[:, :, None].expand(-1, -1, 4, -1, -1).flatten(1, 2) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def in_turns(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Scaled otherwise, of queries that lie as a linear layer gives them."""
    q = (q * 2).transpose(1, 2).flatten(2).unflatten(-1, (8, -1)).transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, mask, scale=0.1, enable_gqa=True) + 1


def masks(batch: int, heads: int, keys: int) -> dict[str, Tensor | None]:
    generator = torch.Generator().manual_seed(1)
    seen = torch.rand(batch, 1, 1, keys, generator=generator) < 0.5
    seen[0] = False  # a row that sees nothing
    return {
        "none": None,
        "lengths": seen,
        "one for all": torch.arange(keys)[None] < keys // 3,
        "added": torch.randn(1, heads, 1, keys, generator=generator).half(),
        "by head": torch.rand(batch, heads, 1, keys, generator=generator) < 0.5,
    }


@interpreted
@pytest.mark.parametrize("kind", ["none", "lengths", "one for all", "added", "by head"])
@pytest.mark.parametrize("function", [grouped, written_out, in_turns])
def test_values(function: Callable[..., Tensor], kind: str) -> None:
    args = inputs(2, 8, 2, 256)
    mask = masks(2, 8, 256)[kind]
    if mask is not None:
        args.append(mask)
    found = run(planned(function, *args), list(args))[0]
    exact = function(*(t.double() if t.is_floating_point() else t for t in args))
    eager = function(*args)
    error, of_eager = ((t.double() - exact).norm() for t in (found, eager))
    assert error <= 1.5 * of_eager + 1e-6


@interpreted
def test_parts_of_the_keys() -> None:
    args = inputs(1, 4, 1, 1024)
    mask = torch.arange(1024)[None] < 300  # some parts see nothing
    plan = planned(grouped, *args, mask)
    assert len(plan.steps) == 2
    found, exact = run(plan, [*args, mask])[0], grouped(*(t.double() for t in args), mask)
    torch.testing.assert_close(found.double(), exact, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize("function", [grouped, written_out])
def test_keys_are_read_once_and_where_they_lie(function: Callable[..., Tensor]) -> None:
    args = inputs(32, 32, 8, 2048, 64)
    mask = torch.ones(32, 1, 1, 2048, dtype=torch.bool)
    plan = planned(function, *args, mask)
    attend, together = plan.steps
    assert isinstance(attend, KernelStep) and attend.extent.constant == 512
    assert isinstance(together, KernelStep)
    assert moved(plan) <= 1.03 * sum(t.nbytes for t in args)


def test_a_small_batch_takes_the_keys_in_parts() -> None:
    plan = planned(grouped, *inputs(1, 32, 8, 2048, 64))
    attend, together = plan.steps
    assert isinstance(attend, KernelStep) and attend.extent.constant == 8 * 16
    assert isinstance(together, KernelStep)


@pytest.mark.parametrize(
    "change",
    [
        lambda q, k, v: (q, k[:, :, :64], v[:, :, :64]),
        lambda q, k, v: (q.float(), k.float(), v.float()),
        lambda q, k, v: (k, k, v),
        lambda q, k, v: (q.requires_grad_(), k, v),
    ],
    ids=["few keys", "float32", "many queries", "gradients"],
)
def test_what_the_library_computes(change: Callable[..., Any]) -> None:
    q, k, v = inputs(2, 8, 8, 256)
    with mock.patch.object(few_queries, "DEVICE", "cpu"):
        assert few_queries.few_queries(*change(q, k, v)) is None
        assert few_queries.few_queries(q.detach(), k, v) is not None


@compiled
def test_it_compiles_for_a_gpu() -> None:
    mask = torch.ones(32, 1, 1, 2048, dtype=torch.bool)
    plans = [planned(written_out, *inputs(32, 32, 8, 2048, 64), mask)]
    plans.append(planned(grouped, *inputs(1, 32, 8, 2048, 128)))
    steps = [step for plan in plans for step in plan.steps if isinstance(step, KernelStep)]
    assert compile_kernels(steps, Gpu("cuda", 90)).function_count == len(steps) == 4


# -- the cache is written in place -----------------------------------------------------------------


def copied_into(q: Tensor, k: Tensor, v: Tensor, position: Tensor, new: Tensor) -> Tensor:
    k, v = k.index_copy_(2, position, new * 2), v.index_copy_(2, position, new)
    return F.scaled_dot_product_attention(q, k, v)


def put_into(q: Tensor, k: Tensor, v: Tensor, position: Tensor, new: Tensor) -> Tensor:
    k[:, :, position], v[:, :, position] = new * 2, new
    return F.scaled_dot_product_attention(q, k, v)


def read_before(q: Tensor, k: Tensor, v: Tensor, position: Tensor, new: Tensor) -> Tensor:
    """What is written after a read of what was there."""
    before = F.scaled_dot_product_attention(q, k, v)
    return before + copied_into(q, k, v, position, new)


def cached(batch: int = 2, heads: int = 4, keys: int = 256) -> list[Tensor]:
    q, k, v = inputs(batch, heads, heads, keys)
    return [q, k, v, torch.tensor([keys - 7]), q * 3]


@interpreted
@pytest.mark.parametrize("function", [copied_into, put_into, read_before])
def test_a_written_cache(function: Callable[..., Tensor]) -> None:
    args, expected = cached(), cached()
    found = run(planned(function, *args), args)[0]
    torch.testing.assert_close(found, function(*expected), rtol=2e-2, atol=2e-3)
    for actual, other in zip(args[1:3], expected[1:3]):
        assert torch.equal(actual, other)


@pytest.mark.parametrize("function", [copied_into, put_into])
def test_a_cache_is_written_where_it_lies(function: Callable[..., Tensor]) -> None:
    args = cached(keys=4096)
    plan = planned(function, *args)
    read_once = args[1].nbytes + args[2].nbytes
    assert read_once < moved(plan) < 1.1 * read_once


def test_what_is_read_afterwards_is_copied_before() -> None:
    """The caller's cache is as it was until what reads the old one has run."""

    def kept(q: Tensor, k: Tensor, v: Tensor, position: Tensor, new: Tensor) -> Any:
        written = k.index_copy(2, position, new)
        return F.scaled_dot_product_attention(q, written, v), k * 2

    args = cached(keys=4096)
    assert moved(planned(kept, *args)) > 3 * args[1].nbytes


# -- the position of the largest of a long row -----------------------------------------------------

LARGEST: dict[str, Callable[[Tensor], Any]] = {
    "argmax": lambda x: x.argmax(-1),
    "kept": lambda x: x.argmin(-1, keepdim=True),
    "of a token": lambda x: x[:, None][:, -1].argmax(-1),
    "with the value": lambda x: (x * 2).max(-1),
}


@interpreted
@pytest.mark.parametrize("name", LARGEST)
def test_positions_in_parts(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of equal numbers, or of those that are NaN."""
    monkeypatch.setattr(reductions, "SHORTEST_PART", 16)
    x = torch.randint(-20, 20, (3, 192), generator=torch.Generator().manual_seed(0)).half()
    x[1, 150], x[2] = float("nan"), 1
    expected = LARGEST[name](x)
    plan = planned(LARGEST[name], x)
    assert len(plan.steps) == 2
    found = run(plan, [x])
    for actual, other in zip(found, expected if isinstance(expected, tuple) else (expected,)):
        torch.testing.assert_close(actual, other, rtol=0, atol=0, equal_nan=True)


def test_a_long_row_is_shared_by_many_blocks() -> None:
    each, together = planned(LARGEST["argmax"], torch.zeros(1, 128256)).steps
    assert isinstance(each, KernelStep) and each.extent.constant == 96
    assert isinstance(together, KernelStep)
