"""Tables of questions about an object, which is made in the compiled function or given to it; eager
is the oracle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

import ingot
from tests.oracle import assert_same, outcome


def unlike_eager(
    questions: Mapping[str, Callable[[Any], Any]],
    make: Callable[[], Any],
    turn: int,
    always_given: bool = False,
) -> dict[str, str]:
    """What differs, by question. Every other one is asked of an object that is given; which begin,
    says `turn`."""
    differing = {}
    for number, (name, ask) in enumerate(questions.items(), turn):
        try:
            _compare(ask, make, always_given or number % 2 == 1)
        except Exception as error:
            differing[name] = repr(error)[:200]
    return differing


@torch.no_grad()
def _compare(ask: Callable[[Any], Any], make: Callable[[], Any], given: bool) -> None:
    def of_given(x: Any, object: Any) -> Any:
        return x + 1, ask(object)

    def of_own(x: Any) -> Any:
        return x + 1, ask(make())

    program: Any = of_given if given else of_own
    compiled, x = ingot.compile(program, backend="eager"), torch.ones(1)
    args, others = ((make(),), (make(),)) if given else ((), ())
    expected, found = outcome(program, x, *args), outcome(compiled, x, *others)
    assert repr(found.raised) == repr(expected.raised)
    assert_same(found, expected)
