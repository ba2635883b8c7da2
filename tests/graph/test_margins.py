"""Products whose rows are given margins for a GPU's tensor cores."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx

from ingot.codegen.reference import run_graph
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.aten_tracer import AtenTracer
from ingot.graph.fake_context import FakeContext
from ingot.graph.fakes import FakeTensor
from ingot.graph.passes.margins import give_margins
from ingot.graph.passes.pipeline import PASSES, Pass, run_passes
from ingot.graph.tracing import run_nodes
from ingot.loops.ir import Library, LoopGraph
from ingot.loops.lowering.lower import lower
from ingot.loops.target import GPU, Speed
from ingot.loops.verify import verify
from tests.oracle import copies

PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "linear": (F.linear, [(5, 16), (13, 16)]),
    "linear of many": (lambda x, w: F.linear(x, w).relu(), [(2, 5, 16), (13, 16)]),
    "biased": (F.linear, [(5, 16), (13, 16), (13,)]),
    "inner": (lambda x, y: x @ y, [(8, 13), (13, 16)]),
    "inner, across": (lambda x, y: x @ y.t(), [(8, 13), (16, 13)]),
    "rows": (lambda x, y: x.t() @ y, [(16, 13), (16, 8)]),
    "all": (lambda x, y: x @ y, [(3, 5), (5, 7)]),
    "batches": (torch.bmm, [(2, 8, 13), (2, 13, 11)]),
    "a part": (lambda x, y: x.narrow(1, 1, 13) @ y, [(8, 20), (13, 16)]),
}


ALWAYS = Speed(unaligned=1e-9)
"""Margins pay for small products too."""


def traced(
    fn: Callable[..., Any],
    *args: torch.Tensor,
    device: str = "cuda:0",
    speed: Speed = GPU.speed,
) -> AtenGraph:
    """The graph of a function of tensors on a device of some speed that need not be there."""

    def at_speed(step: Pass) -> Pass:
        return partial(give_margins, speed=speed) if step is give_margins else step

    graph, context = fx.Graph(), FakeContext()
    graph.output(
        graph.call_function(fn, tuple(graph.placeholder(f"x{k}") for k in range(len(args))))
    )
    fakes = [FakeTensor(context.fake(a).meta, torch.device(device)) for a in args]
    module, tracer = fx.GraphModule(torch.nn.Module(), graph), AtenTracer(context)
    with torch.no_grad(), tracer:
        outputs = run_nodes(module, tracer, tracer.inputs(module.graph.nodes, fakes))
    aten = tracer.finish(outputs)
    run_passes(aten, tuple((name, at_speed(step)) for name, step in PASSES))
    return aten


def lowered(fn: Callable[..., Any], *args: torch.Tensor, speed: Speed = GPU.speed) -> LoopGraph:
    graph = lower(traced(fn, *args, speed=speed), target=GPU)
    verify(graph)
    return graph


def sizes(graph: LoopGraph) -> list[list[tuple[Any, ...]]]:
    """Of each product, the sizes of what it multiplies."""
    return [
        [tuple(s.constant for s in view.sizes) for view in node.args[-2:]]
        for node in graph.nodes
        if isinstance(node, Library)
    ]


@pytest.mark.parametrize("name", PROGRAMS)
def test_products_with_margins(name: str) -> None:
    fn, shapes = PROGRAMS[name]
    generator = torch.Generator().manual_seed(0)
    args = [torch.randint(-4, 5, shape, generator=generator).bfloat16() for shape in shapes]
    args[0].view(-1)[0] = torch.nan
    args[1].view(-1)[-1] = torch.inf
    graph = lowered(fn, *args, speed=ALWAYS)
    ((left, right),) = sizes(graph)
    assert left[-1] == right[-2] and right[-1] % 8 == 0
    (result,) = run_graph(graph, copies(args))
    expected = fn(*args)
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)
    assert result.stride() == expected.stride()


def test_a_copy_serves_both_gradients() -> None:
    def fn(slope: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> Any:
        return slope.t() @ x, slope @ weight

    args = [torch.randn(*shape).bfloat16() for shape in ((16, 13), (16, 24), (13, 24))]
    graph = lowered(fn, *args, speed=ALWAYS)
    assert sizes(graph) == [[(16, 16), (16, 24)], [(16, 16), (16, 24)]]
    first, second = (node.args[-2].buffer for node in graph.nodes if isinstance(node, Library))
    assert first == second
    for result, expected in zip(run_graph(graph, copies(args)), fn(*args), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(
    ("dtype", "rows", "columns", "wide"),
    [
        (torch.bfloat16, 8192, 50257, True),
        (torch.float16, 8192, 50257, True),
        (torch.bfloat16, 8192, 50264, False),
        (torch.bfloat16, 16, 50257, False),  # the weight's copy would take longer
        (torch.bfloat16, 100, 101, False),
        (torch.float32, 8192, 50257, False),
    ],
)
def test_where_margins_pay(dtype: torch.dtype, rows: int, columns: int, wide: bool) -> None:
    x, weight = torch.empty(rows, 768, dtype=dtype), torch.empty(columns, 768, dtype=dtype)
    ((_, right),) = sizes(lowered(lambda x, weight: F.linear(x, weight).relu(), x, weight))
    assert right == (768, 50264 if wide else columns)


def test_a_cpu_takes_products_as_they_are() -> None:
    args = (torch.randn(8, 13).bfloat16(), torch.randn(13, 11).bfloat16())
    assert "constant_pad_nd" not in str(traced(torch.mm, *args, device="cpu", speed=ALWAYS).graph)


def test_what_is_computed_is_made_with_its_margin() -> None:
    """And others read it there: nothing is in memory twice."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> Any:
        slope = x.sigmoid()
        return slope @ y, slope.float().sum(0)

    args = [torch.randn(8, 13).bfloat16(), torch.randn(13, 16).bfloat16()]
    graph = lowered(fn, *args, speed=ALWAYS)
    made = [
        tuple(s.constant for s in b.sizes) for b in graph.buffers.values() if b.role == "temporary"
    ]
    # the sigmoid with its margin, and the result
    assert (8, 13) not in made and made.count((8, 16)) == 2
    for result, expected in zip(run_graph(graph, copies(args)), fn(*args), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-2, atol=1e-2)
