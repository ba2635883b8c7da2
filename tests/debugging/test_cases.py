"""Captured graphs as text: written, read again, run, and taken apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ingot
from ingot.compiler import Compiler
from ingot.debugging.cases import Case, case_from, case_of
from ingot.debugging.naming import NotWritable
from tests.oracle import EXACT, assert_results


def captured(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The graph of a call."""
    compiled = ingot.compile(function, fullgraph=True, **options)
    compiled(*args)
    compiler = Compiler.of(compiled)
    assert compiler is not None
    return compiler.compilations[0].captured.graph_module.graph


def program(x: Tensor, index: Tensor) -> tuple[Tensor, ...]:
    hidden = F.layer_norm(F.gelu(x), (8,))
    with torch.no_grad():
        total = hidden.sum()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        product = hidden @ x
    largest, place = torch.max(product.float(), -1)
    view = hidden[..., None, 2:5]
    view[0].add_(1)
    picked = hidden.reshape(x.shape[0] * 8)[index]
    filled = x.masked_fill(hidden > 0, float("inf")).to(torch.complex64) * 2j
    return total, largest + place, view, picked, filled, torch.full((2,), float("nan"))


def test_a_graph_survives_being_written_and_read() -> None:
    x, index = torch.randn(8, 8), torch.arange(8)
    case = case_of(captured(program, x, index))
    text = "\n".join(case.imports) + "\n" + case.source()
    again = case_from(text)
    assert again == case
    assert "# " in text and "test_cases.py:" in text
    expected = program(x.clone(), index)
    for run in (case, case.function(), ingot.compile(again.function(), fullgraph=True)):
        results = run(x.clone(), index)
        for result, eager in zip(results, expected, strict=True):
            torch.testing.assert_close(result, eager, equal_nan=True)


def test_a_part_takes_what_it_lacks_as_parameters() -> None:
    def chain(x: Tensor) -> Tensor:
        a = x.sin()
        b = a.cos()
        return b.exp() + a

    x = torch.randn(3)
    case = case_of(captured(chain, x))
    names = [s.name for s in case.statements]
    part = case.part(names[1:3])
    assert part.parameters == (names[0],) and part.results == (names[2],)
    assert_results(part(x.sin()), (x.sin().cos().exp(),), EXACT)
    prefix = case.prefix(2, set(names))
    assert prefix.results == (names[0], names[1]) and prefix.parameters == case.parameters
    [seen_a, seen_b] = case.exposing(names[:2])(x)
    assert torch.equal(seen_a, x.sin()) and torch.equal(seen_b, x.sin().cos())


def test_dead_statements_go_and_writes_stay() -> None:
    text = """
import torch
def graph(x, y):
    a = x.sin()
    b = y.cos()
    c = torch.clone(a)
    d = c.mul_(2)
    return (c,)
"""
    case = case_from(text).without_dead()
    assert [s.name for s in case.statements] == ["a", "c", "d"] and case.parameters == ("x",)
    assert torch.equal(case(torch.ones(2))[0], torch.ones(2).sin() * 2)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("x = 1\n", "there is no function graph"),
        ("def graph(x):\n    x += 1\n    return (x,)\n", "line 2 is no assignment"),
    ],
)
def test_text_that_is_no_case(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        case_from(text)


def test_a_graph_inside_a_graph_has_no_text() -> None:
    def branches(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))

    with torch.no_grad(), pytest.raises(NotWritable):
        case_of(captured(branches, torch.ones(2)))


def test_names_that_hide_modules_are_changed() -> None:
    def shadows(torch: Tensor, graph: Tensor) -> Tensor:
        return torch.sin() + graph

    x = torch.randn(3)
    case: Case = case_of(captured(shadows, x, x.cos()))
    assert "torch" not in case.parameters and "graph" not in case.parameters
    torch.testing.assert_close(case.function()(x, x), (x.sin() + x,))
