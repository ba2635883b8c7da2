"""`mode="max-autotune"` on the device: products as kernels, beside eager, and what is measured."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import ingot
import ingot.pipeline
from ingot.codegen.store import Store
from ingot.runtime import measuring, tuning
from tests.gpu.checks import agree, copied, gradients_agree
from tests.gpu.test_programs import draw

FLOATS = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best kernel is taken, however long the library takes. None gives a wrong result."""
    tuner_of = ingot.pipeline._tuner

    def lenient(device: torch.device) -> Any:
        tuner = tuner_of(device)
        tuner.margin = 1e6
        return tuner

    monkeypatch.setattr(ingot.pipeline, "_tuner", lenient)
    monkeypatch.setattr(measuring.log, "warning", lambda *text: pytest.fail(text[0] % text[1:]))


def tuned(fn: Callable[..., Any]) -> Any:
    return ingot.compile(fn, fullgraph=True, mode="max-autotune")


def check(fn: Callable[..., Any], *args: torch.Tensor, calls: int = 0) -> None:
    compiled = tuned(fn)
    agree(compiled, fn, *args)
    report = ingot.explain(compiled)(*copied(args))
    assert (
        sum(kernel.kind == "extern" for kernel in report.kernels) == calls
        and len(report.tuned) >= 1
    )


def gelu_linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w, b))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "sizes",
    [(197, 768, 3072), (8, 1000, 130), (1, 70, 50), (333, 65, 129), (1024, 256, 512)],
    ids=str,
)
def test_products_with_what_comes_next(
    always: None, sizes: tuple[int, int, int], dtype: torch.dtype
) -> None:
    rows, depth, columns = sizes
    check(
        gelu_linear, *(draw(*s, dtype=dtype) for s in ((rows, depth), (columns, depth), (columns,)))
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_operands_of_either_order(always: None, dtype: torch.dtype) -> None:
    x, y = draw(64, 96, dtype=dtype), draw(96, 80, dtype=dtype)
    for left in (x, x.t().contiguous().t()):
        for right in (y, y.t().contiguous().t()):
            check(lambda x, y: (x @ y).relu(), left, right)
    check(
        lambda x, y: (x @ y.transpose(1, 2)).relu(),
        draw(6, 65, 64, dtype=dtype),
        draw(6, 70, 64, dtype=dtype),
    )


def test_gradients(always: None) -> None:
    x, w, b = draw(130, 96, grad=True), draw(80, 96, grad=True), draw(80, grad=True)
    gradients_agree(gelu_linear, x, w, b, compiled=tuned(gelu_linear))


def test_what_was_measured_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tuning, "store_in", lambda name: Store(tmp_path))
    args = draw(120, 96), draw(88, 96), draw(88)
    reports = [ingot.explain(tuned(gelu_linear))(*args) for _ in range(2)]
    assert all(len(r.tuned) == 1 for r in reports) and "measured before" in reports[1].tuned[0]


def test_while_a_graph_is_recorded() -> None:
    """Nothing is measured: the library is called."""
    x, w, b = draw(72, 96), draw(88, 96), draw(88)
    expected = gelu_linear(x, w, b)  # and the library is ready
    compiled, graph = tuned(gelu_linear), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        out = compiled(x, w, b)
    graph.replay()
    torch.testing.assert_close(out, expected)
