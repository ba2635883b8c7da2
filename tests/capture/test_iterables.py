"""What reads an iterable does so as CPython does: in which order, how far, and what is there when
it raises.

`python -m tests.capture.test_iterables` runs every cell of the table, here is a part of them.
"""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ingot
from ingot.capture.values.base import Raised
from ingot.errors import Unsupported
from tests.capture.iterable_cases import RECEIVERS, arguments_of, cases, program_of
from tests.capture.pure import interpret

Case = tuple[str, str, str, str]
_PART = 8
"""One case of this many is run by the suite."""


def _outcome(function: Callable[..., Any], arguments: list[Any]) -> str:
    try:
        return repr(function(*arguments))
    except Unsupported:
        raise
    except Raised as raised:
        return raised.value.python_type().__name__
    except Exception as error:
        return type(error).__name__


def _differs(case: Case) -> str:
    """How capture and CPython differ about a case whose receiver is made by the program; "" if not,
    or if it is left to eager."""
    receiver, operation, iterable, kind = case
    program = program_of(receiver, operation, iterable, made=True)
    expected = _outcome(program, arguments_of(receiver, kind))
    try:
        found = _outcome(lambda *args: interpret(program, *args), arguments_of(receiver, kind))
    except Unsupported:
        return ""
    return "" if found == expected else f"{case}: {found} is not {expected}"


def _differs_outside(case: Case) -> str:
    """The same for a receiver that existed before the call; a graph break in there does no harm."""
    receiver, operation, iterable, kind = case
    program = program_of(receiver, operation, iterable, made=False)
    arguments, others = arguments_of(receiver, kind), arguments_of(receiver, kind)
    expected = _outcome(program, arguments)
    found = _outcome(ingot.compile(program, backend="eager"), others)
    same = found == expected and repr(arguments) == repr(others)
    return "" if same else f"{case}: {found}, {others} is not {expected}, {arguments}"


def _part(receiver: str, operation: str, part: int) -> list[Case]:
    """Some of the cases of an operation, others than of the next one."""
    mine = [case for case in cases() if case[:2] == (receiver, operation)]
    first = list(RECEIVERS[receiver][1]).index(operation) % part
    return list(itertools.islice(mine, first, None, part))


_OPERATIONS = [
    (receiver, operation) for receiver, (_, rows, _) in RECEIVERS.items() for operation in rows
]


@pytest.mark.parametrize(("receiver", "operation"), _OPERATIONS)
def test_of_what_the_program_makes(receiver: str, operation: str) -> None:
    found = [_differs(case) for case in _part(receiver, operation, _PART)]
    assert not list(filter(None, found))


_CHANGING = [pair for pair in _OPERATIONS if RECEIVERS[pair[0]][1][pair[1]].startswith("c")]


@pytest.mark.parametrize(("receiver", "operation"), _CHANGING)
def test_of_what_was_there_before(receiver: str, operation: str) -> None:
    found = [_differs_outside(case) for case in _part(receiver, operation, 5 * _PART)]
    assert not list(filter(None, found))


def main(every: int) -> int:
    """Runs all cases, those with a receiver from before once in `every`."""
    torch.set_num_threads(1)
    found: list[str] = []
    for i, case in enumerate(cases()):
        found.append(_differs(case))
        if i % every == 0:
            found.append(_differs_outside(case))
    wrong = list(filter(None, found))
    print(*wrong[:50], sep="\n")
    print(
        f"{len(found)} programs, {len(wrong)} differ",
        Counter(str(w.split("',")[:2]) for w in wrong),
    )
    return len(wrong)


if __name__ == "__main__":
    sys.exit(bool(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)))
