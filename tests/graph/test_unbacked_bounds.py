"""Relations of unbacked symbols that follow from their bounds and guards on the other symbols."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ingot.errors import Unsupported
from ingot.graph.shape_context import Bounds, ShapeContext


def sizes(bounds: Bounds | None = None) -> tuple[ShapeContext, Any, Any]:
    """A size of 5, and one from 0 to 10 that the data decide."""
    context = ShapeContext()
    return context, context.size(5, "x", 0, bounds), context.decided_by_data(0, 10)


QUESTIONS = {
    "a sum": (lambda s, u: s + u <= 100, "s0 + 10 <= 100"),
    "less than": (lambda s, u: s + u < 100, "s0 + 10 < 100"),
    "from above": (lambda s, u: s * 20 > u * 9, "90 < 20*s0"),
    "a difference": (lambda s, u: s - u <= 7, "s0 <= 7"),
    "a multiple": (lambda s, u: s + 3 * u <= 40, "s0 + 30 <= 40"),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_guard_on_the_other_symbols(name: str) -> None:
    question, guard = QUESTIONS[name]
    context, s, u = sizes()
    assert question(s, u)
    (made,) = context.guards
    assert str(made) == guard
    for n in range(1, 200):
        implied = all(question(n, k) for k in range(11))
        assert made.holds({s.node.first: n}) == implied
    assert context.unbacked.checks == []


def test_bounds_that_say_enough_leave_no_guard() -> None:
    context, s, u = sizes(Bounds(1, 50))
    assert s + u <= 60
    assert context.guards == [] and context.unbacked.checks == []


@pytest.mark.parametrize(
    "question", [lambda s, u: s + u <= 14, lambda s, u: u <= s, lambda s, u: s * u <= 20]
)
def test_what_bounds_do_not_say_is_refused(question: Any) -> None:
    _, s, u = sizes()
    with pytest.raises(Unsupported, match="which the data decide"):
        bool(question(s, u))


def test_once_code_is_in_use() -> None:
    context, s, u = sizes()
    context.closed = True
    with pytest.raises(Unsupported):
        assert s + u <= 100
    assert u <= 10 and torch.sym_max(u, 0) is not None
