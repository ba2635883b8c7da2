"""The verifier names what is wrong; the printer shows what there is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import ingot.pipeline
from ingot.errors import CompilerBug
from ingot.loops.expr import integer, loop_symbol
from ingot.loops.ir import (
    Access,
    Body,
    Buffer,
    Contraction,
    Instruction,
    LoopGraph,
    Origin,
    Pointwise,
    View,
)
from ingot.loops.show import show
from ingot.loops.verify import verify

f32 = torch.float32
i = loop_symbol("i", 4)


def _graph() -> LoopGraph:
    graph = LoopGraph()
    for name, role in (("x", "input"), ("y", "temporary")):
        graph.buffers[name] = Buffer(name, f32, (integer(4),), (integer(1),), role)
    graph.inputs.append("x")
    body = Body((Instruction("load", (), f32, ("x", i)), Instruction("sin", (0,), f32)), (1,))
    graph.nodes.append(
        Pointwise("n0", Origin(("aten.sin.default",), "model.py:7"), (i,), body, "y", i)
    )
    graph.outputs.append(View("y", (integer(4),), (integer(1),), integer(0), f32))
    return graph


def _with_body(*instructions: Instruction) -> LoopGraph:
    graph = _graph()
    graph.nodes[0] = replace(graph.nodes[0], body=Body(instructions, (len(instructions) - 1,)))  # type: ignore[call-arg]
    return graph


def test_a_good_graph_passes_and_prints() -> None:
    graph = _graph()
    verify(graph)
    text = show(graph)
    assert "# n0: sin  model.py:7" in text and "y[i] = x1" in text and "for i in grid(4):" in text


LOAD = Instruction("load", (), f32, ("x", i))
BAD = {
    "no such op": _with_body(LOAD, Instruction("sine", (0,), f32)),
    "uses a later value": _with_body(LOAD, Instruction("sin", (1,), f32)),
    "arguments of": _with_body(LOAD, Instruction("floordiv", (0, 0), f32)),
    "is declared": _with_body(LOAD, Instruction("lt", (0, 0), f32)),
    "takes 2 arguments": _with_body(LOAD, Instruction("add", (0,), f32)),
    "unknown symbols": _with_body(Instruction("load", (), f32, ("x", loop_symbol("k", 3)))),
    "is accessed at": _with_body(Instruction("load", (), f32, ("x", i + 1))),
    "accessed at -1": _with_body(Instruction("load", (), f32, ("x", integer(-1)))),
    "read before it is written": _with_body(Instruction("load", (), f32, ("y", i))),
    "loads": _with_body(Instruction("load", (), torch.float64, ("x", i))),
    "is stored into": _with_body(LOAD, Instruction("to", (0,), torch.int64)),
}


@pytest.mark.parametrize("problem", BAD)
def test_what_is_wrong_is_named_with_the_node_and_the_line(problem: str) -> None:
    with pytest.raises(CompilerBug) as caught:
        verify(BAD[problem])
    message = str(caught.value)
    assert problem in message and "n0" in message and "model.py:7" in message


@pytest.mark.internal_error
def test_what_is_wrong_runs_in_eager(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lower = ingot.pipeline.lower

    def one_too_far(*args: Any) -> LoopGraph:
        graph = lower(*args)
        graph.nodes[0] = replace(graph.nodes[0], index=graph.nodes[0].index + 1)
        return graph

    monkeypatch.setattr(ingot.pipeline, "lower", one_too_far)
    x = torch.rand(4)
    assert torch.equal(ingot.compile(torch.sin)(x), x.sin())
    assert "internal error" in caplog.text and "is accessed at 1 .. 4" in caplog.text


def _contraction(**changes) -> LoopGraph:
    """c[m, n] = sum over k of a[m, k] * b[k, n], for 2, 3 and 4 of them."""
    graph = LoopGraph()
    m, n, k = loop_symbol("m", 2), loop_symbol("n", 3), loop_symbol("k", 4)
    for name, count, role in (("a", 8, "input"), ("b", 12, "input"), ("c", 6, "temporary")):
        graph.buffers[name] = Buffer(name, f32, (integer(count),), (integer(1),), role)
    graph.inputs += ["a", "b"]
    node = Contraction(
        "n0", Origin(("aten.mm.default",), "model.py:7"), (), (m,), (n,), (k,),
        Access("a", m * 4 + k), Access("b", k * 3 + n), "c", m * 3 + n, f32,
    )  # fmt: skip
    graph.nodes.append(replace(node, **changes))
    graph.outputs.append(View("c", (integer(6),), (integer(1),), integer(0), f32))
    return graph


def test_a_contraction_passes_and_prints() -> None:
    verify(_contraction())
    text = show(_contraction())
    assert "for m, n, k in grid(2, 3, 4):" in text
    assert "c[3*m + n] = product(a[k + 4*m], b[3*k + n], over=k)" in text


@pytest.mark.parametrize(
    "problem, changes",
    [
        ("a loop occurs twice", {"batch": (loop_symbol("m", 2), loop_symbol("m", 2))}),
        ("one column loop", {"columns": ()}),
        ("right index has unknown symbols", {"right": Access("b", loop_symbol("other", 2))}),
        ("is accessed at", {"left": Access("a", integer(9))}),
        ("holds torch.float32, not", {"dtype": torch.float64}),
        ("read before it is written", {"left": Access("c", integer(0))}),
    ],
)
def test_what_is_wrong_with_a_contraction(problem, changes) -> None:
    with pytest.raises(CompilerBug, match="n0.*") as caught:
        verify(_contraction(**changes))
    assert problem in str(caught.value)


def test_an_unwritten_output_is_a_bug() -> None:
    graph = _graph()
    graph.nodes.clear()
    with pytest.raises(CompilerBug, match="never written"):
        verify(graph)
