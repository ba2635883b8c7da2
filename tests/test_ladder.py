"""The ladder of attempts: which rungs are tried, in which order, and what they teach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from ingot.compiler import Compiler
from ingot.errors import Evidence, unsupported
from ingot.ladder import LADDER, Ladder, Rung, SizePolicy, Sizes, has_symbols
from ingot.options import Options
from ingot.reasons import LARGE_INTEGER, STATIC

SPECULATIVE, SYMBOLIC, FIXED = Sizes


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Rung]:
    """The rungs that compilations have tried."""
    rungs = list[Rung]()
    original = Ladder._try

    def noted(ladder: Ladder, rung: Rung) -> Any:
        rungs.append(rung)
        return original(ladder, rung)

    monkeypatch.setattr(Ladder, "_try", noted)
    return rungs


def rungs_of(tried: list[Rung], call: Callable[..., Any], *args: Any) -> list[Sizes]:
    tried.clear()
    with torch.no_grad():
        call(*args)
    return [rung.sizes for rung in tried]


def policy_of(compiled: Any) -> SizePolicy:
    compiler = Compiler.of(compiled)
    assert compiler is not None
    return compiler.sizes


def test_a_size_that_varies(tried: list[Rung]) -> None:
    compiled = ingot.compile(lambda x: torch.softmax(x * 2, -1) + 1)
    assert rungs_of(tried, compiled, torch.ones(2, 3)) == [SYMBOLIC]
    assert rungs_of(tried, compiled, torch.ones(2, 4)) == [SPECULATIVE]
    assert rungs_of(tried, compiled, torch.ones(7, 9)) == []
    assert all(rung.data_dependent for rung in tried)


def test_no_symbols_where_there_is_no_rule_for_them(tried: list[Rung]) -> None:
    compiled = ingot.compile(lambda x: torch.fft.rfft(x).abs() + 1)
    assert rungs_of(tried, compiled, torch.ones(4, 6)) == [SYMBOLIC]
    assert rungs_of(tried, compiled, torch.ones(4, 8)) == [SPECULATIVE, SYMBOLIC, FIXED]
    policy = policy_of(compiled)
    assert policy.is_static and not policy.speculates and policy.speculative is None
    assert rungs_of(tried, compiled, torch.ones(4, 10)) == [FIXED]
    ingot.reset()
    assert not policy_of(compiled).is_static


def test_a_call_with_a_large_integer_teaches_nothing(tried: list[Rung]) -> None:
    def signs(x: Tensor, n: int) -> Tensor:
        return (n + 1) * x if n >= 0 else x / n

    compiled, x = ingot.compile(signs), torch.ones(3)
    for n in (2, 3):
        rungs_of(tried, compiled, x, n)
    assert rungs_of(tried, compiled, x, -(1 << 63)) == [SPECULATIVE, SYMBOLIC, FIXED]
    assert not policy_of(compiled).is_static and policy_of(compiled).speculates


def test_without_data_dependent_sizes(tried: list[Rung], monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = ingot.compile(lambda x: x[x > 0] * 2)
    original = Compiler.add_entry

    def refuse(self: Compiler, compilation: Any, captured: Any, *rest: Any, **named: Any) -> Any:
        if captured.context.shapes.unbacked.roots:
            compilation.captured = captured
            raise RuntimeError("no such size")
        return original(self, compilation, captured, *rest, **named)

    monkeypatch.setattr(Compiler, "add_entry", refuse)
    x = torch.tensor([1.0, -1.0, 2.0])
    with torch.no_grad():
        assert torch.equal(compiled(x), x[x > 0] * 2)
    assert tried[:2] == [Rung(SYMBOLIC, True), Rung(SYMBOLIC, False)]
    compiler = Compiler.of(compiled)
    assert compiler is not None and not compiler.sizes.data_dependent
    (line,) = compiler.compilations[-1].fixed_sizes or compiler.compilations[0].fixed_sizes
    assert line.startswith("sizes that the data decide break the graph: ")


def fail_with_symbols(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Has what comes after capture raise an error where there are symbols."""
    original = Compiler.add_entry

    def fail(self: Compiler, compilation: Any, captured: Any, *rest: Any, **named: Any) -> Any:
        if captured.guards.symbols:
            raise error
        return original(self, compilation, captured, *rest, **named)

    monkeypatch.setattr(Compiler, "add_entry", fail)


def fixed_sizes_of_last(compiled: Any) -> list[str]:
    compiler = Compiler.of(compiled)
    assert compiler is not None
    return compiler.compilations[-1].fixed_sizes


@pytest.mark.parametrize("error", [AttributeError("x"), UnboundLocalError("x"), TypeError("x")])
def test_a_mistake_of_ingots_own_is_named(
    error: Exception, tried: list[Rung], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = ingot.compile(lambda x: x * 2 + 1)
    rungs_of(tried, compiled, torch.ones(2, 3))
    fail_with_symbols(monkeypatch, error)
    assert rungs_of(tried, compiled, torch.ones(2, 4)) == [SPECULATIVE, SYMBOLIC, FIXED]
    *mistakes, fixed = fixed_sizes_of_last(compiled)
    assert len(mistakes) == 2  # of two rungs
    for line in mistakes:
        assert line.startswith("internal error in compiler.py:")
        assert line.endswith(f": {type(error).__name__}: x")
    assert fixed == "all sizes and integers are those of the call: x"


def test_a_refusal_is_no_mistake(tried: list[Rung], monkeypatch: pytest.MonkeyPatch) -> None:
    for error in (RuntimeError("x"), unsupported("attribute", "x")):
        compiled = ingot.compile(lambda x: x * 2 + 1)
        rungs_of(tried, compiled, torch.ones(2, 3))
        fail_with_symbols(monkeypatch, error)
        rungs_of(tried, compiled, torch.ones(2, 4))
        (line,) = fixed_sizes_of_last(compiled)
        assert line.startswith("all sizes and integers are those of the call: ")
        monkeypatch.undo()


def test_what_a_policy_allows() -> None:
    policy = SizePolicy(Options())
    assert [rung for rung in LADDER if policy.allows(rung)] == [
        Rung(SYMBOLIC, True),
        Rung(FIXED, True),
    ]
    policy.data_dependent, policy.is_static = False, True
    assert [rung for rung in LADDER if policy.allows(rung)] == [Rung(FIXED, False)]


def test_whether_a_failure_is_of_symbols() -> None:
    class Guards:
        symbols: tuple[Any, ...] = ()

    known = Evidence(Guards())
    plain = unsupported("attribute", "x.y")
    assert has_symbols(RuntimeError()) and has_symbols(plain)  # nothing is known
    plain.evidence = known
    assert not has_symbols(plain)
    for reason in (
        unsupported("attribute", "x.y", action=STATIC),
        unsupported(LARGE_INTEGER, "an integer of more than 63 bits"),
    ):
        reason.evidence = known
        assert has_symbols(reason)
