"""Common causes of graph breaks and errors: what is said of each, as users would, and where."""

from __future__ import annotations

import io
import json
import re
import sys
import traceback
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import ingot
from ingot import events
from ingot.capture.values.wording import public_name
from ingot.errors import GraphBreakError
from ingot.spots import Spot
from tests.explain.causes import CAUSES, LOCK, MARK, Cause
from tests.explain.causes_page import PAGE, marked_line, page, said_of

BREAKS = [cause for cause in CAUSES if not cause.is_error]
ERRORS = [cause for cause in CAUSES if cause.is_error]

INTERNAL = re.compile(
    r"""method_descriptor|wrapper_descriptor|builtin_function_or_method|getset_|cython|
    an\ operand|L\['|FakeTensor|\baten\.|<locals>|__self__|\b[A-Z]+_[A-Z_]+\b(?<!LAST_SHAPE)|
    ,,|,$|\bu\d+\b|\boperator\.\w""",
    re.VERBOSE,
)
"""Words that only Ingot and CPython know."""


@pytest.fixture(autouse=True)
def nothing_to_read(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "stdin", io.StringIO("2\n"))
    yield
    ingot.reset()


def lines(spots: tuple[Spot, ...]) -> list[str]:
    return [spot.text.partition(MARK)[0] for spot in spots]


def test_there_are_sixty_and_more() -> None:
    assert len(CAUSES) >= 60 and len({cause.name for cause in CAUSES}) == len(CAUSES)


@pytest.mark.parametrize("cause", BREAKS, ids=lambda cause: cause.name)
def test_what_is_said_of_a_break(cause: Cause) -> None:
    said = said_of(cause)
    reason, blamed = said.reason, marked_line(cause)
    assert isinstance(said.error, GraphBreakError) and reason is not None
    assert reason.wrote and reason.wrote in lines(reason.stack)[-1]
    assert blamed in lines(reason.stack)[-2:]  # a coroutine begins in a function of its own
    assert reason.stack[0].function == cause.name
    assert reason.hint and not INTERNAL.search(reason.sentence), reason.sentence
    assert said.text.startswith(f"`{reason.wrote}`: {reason.sentence} at {reason.where}")
    if len(reason.stack) > 1:
        shown = [line.partition(MARK)[0].strip() for line in said.text.splitlines()]
        assert [line for line in shown if line in lines(reason.stack)] == lines(reason.stack)


@pytest.mark.parametrize("cause", ERRORS, ids=lambda cause: cause.name)
def test_errors_are_those_of_eager(cause: Cause) -> None:
    """Type, text and the user's lines; what the report says of it is about the same line."""
    said = said_of(cause)
    with pytest.raises(Exception) as eager:
        cause.function(*cause.arguments)
    assert type(said.error) is eager.type and str(said.error) == str(eager.value)
    assert users_lines(said.error) == users_lines(eager.value)
    if said.reason is not None:
        assert lines(said.reason.calls)[-1] == marked_line(cause)
        assert not INTERNAL.search(said.reason.sentence), said.reason.sentence


def users_lines(error: BaseException | None) -> list[int | None]:
    assert error is not None
    lines = []
    for frame in traceback.extract_tb(error.__traceback__):
        if frame.filename.endswith("causes.py") and not re.search("said_of|^test_", frame.name):
            lines.append(frame.lineno)
    return lines


@pytest.mark.skipif(
    sys.version_info[:2] != (3, 11), reason="Python words some errors otherwise in each version"
)
def test_the_page_is_what_the_programs_say() -> None:
    assert PAGE.read_text("utf-8") == page(), "python -m tests.explain.causes_page"


# -- what the user wrote ---------------------------------------------------------------------------


def test_an_expression_on_several_lines_is_one() -> None:
    def f(x):
        return torch.where(x > 0, x, x.sum()).reshape(
            1, -1,
        ) if x.sum(
            0
        ).any() else x  # fmt: skip

    with pytest.raises(GraphBreakError) as caught:
        ingot.compile(f, fullgraph=True)(torch.ones(3))
    assert "x.sum(0).any()" in caught.value.wrote


def test_columns_are_bytes() -> None:
    def f(x):
        größe = "ü" if x.sum() > 0 else "é"
        return größe

    with pytest.raises(GraphBreakError) as caught:
        ingot.compile(f, fullgraph=True)(torch.ones(3))
    assert caught.value.wrote == "if x.sum() > 0"


def test_code_without_a_file_has_no_text() -> None:
    assert Spot("<string>", 1, "f", 1, 0, 3).wrote == ""
    scope: dict[str, object] = {}
    exec("def f(x):\n    return x if x.sum() > 0 else -x", scope)
    with pytest.raises(GraphBreakError, match="^a branch on the values of a tensor at <string>:2"):
        ingot.compile(scope["f"], fullgraph=True)(torch.ones(3))  # type: ignore[arg-type]


def test_an_attribute_is_shown_with_its_call_and_no_more() -> None:
    def asked(x):
        return LOCK.locked and x

    def called(x):
        return LOCK.locked() and x

    for function, wrote in ((asked, "LOCK.locked"), (called, "LOCK.locked()")):
        with pytest.raises(GraphBreakError) as caught:
            ingot.compile(function, fullgraph=True)(torch.ones(3))
        assert caught.value.wrote == wrote


def test_long_expressions_are_cut() -> None:
    wrote = Spot(__file__, 1, "f", 3, 0, 80).wrote
    assert len(wrote) <= 100


def test_events_have_the_same_words(tmp_path: Path) -> None:
    def inner(x):
        return x if x.sum() > 0 else -x

    def outer(x):
        return inner(x.sin())

    trace = tmp_path / "trace.jsonl"
    events.trace_to(trace)
    try:
        report = ingot.explain(outer)(torch.ones(3))
    finally:
        events.trace_to(None)
    noted = [json.loads(line) for line in trace.read_text("utf-8").splitlines()]
    [event] = [event for event in noted if event["event"] == "break"]
    [found] = report.breaks
    words = found.id, found.wrote, found.reason, found.hint
    assert words == (event["cause"], event["wrote"], event["reason"], event["hint"])
    assert [place.rpartition(".")[2] for place in event["stack"]] == ["outer", "inner"]


# -- breaks by their causes ------------------------------------------------------------------------


def report_of(loss: float) -> float:
    return loss * 2


def test_a_loop_sums_its_breaks_by_cause() -> None:
    def losses(x):
        seen = []
        for _ in range(3):
            x = x.sin()
            seen.append(report_of(x.sum().item()) > 1 and 1)
            if x.max() > 5:
                x = x / 2
        return x

    report = ingot.explain(losses)(torch.ones(4))
    causes = {cause.id: cause for cause in report.causes}
    assert causes["data-branch"].times >= 1 and causes["number-in-tensor"].times >= 1
    assert sum(cause.places for cause in report.causes) == len(report.breaks)
    total = sum(cause.seconds for cause in report.causes)
    compiling = sum(entry.seconds for entry in report.history)
    assert 0 < total <= compiling
    assert "breaks by cause" in str(report)


def test_what_runs_in_eager_costs_no_more_than_that() -> None:
    def rows(x):
        for row in x:
            yield row * 2

    [found] = ingot.explain(rows)(torch.ones(2, 2)).breaks
    assert found.eager and found.cost == "what follows runs in eager, op by op"
    assert (found.line, found.wrote) == (rows.__code__.co_firstlineno, "def rows(x)")


def test_a_training_step_sums_its_breaks_by_cause() -> None:
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def clipped(loss):
        if loss > 10:
            return loss * 0.1
        return loss

    def step(x):
        optimizer.zero_grad()
        loss = clipped(model(x).square().mean())
        loss.backward()
        optimizer.step()
        return loss

    report = ingot.explain(step)(torch.ones(2, 4))
    [found] = [item for item in report.breaks if item.id == "data-branch"]
    assert found.wrote == "if loss > 10" and found.seconds > 0
    assert [call.text for call in found.stack] == [
        "loss = clipped(model(x).square().mean())",
        "if loss > 10:",
    ]
    assert "leaves the compiled code here, and compiling" in found.cost
    assert "through" in str(report) and "`if loss > 10`" in str(report)
    plain = report.to_dict()["breaks"][0]
    assert plain["stack"][0]["text"].startswith("loss = clipped")


def test_words_run_no_code_of_the_programs() -> None:
    asked = []

    class Proxied:
        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            raise RuntimeError(name)

    owner = Proxied()
    gone = weakref.proxy(Proxied())
    for thing in (owner, weakref.proxy(owner), gone):
        assert isinstance(public_name(thing), str)
    assert not asked
