"""What reads an iterable does so as CPython does: in which order, how far, and what is there when
it raises.

`python -m tests.capture.test_iterables` runs every cell of the table, here is a part of them.
"""

from __future__ import annotations

import gc
import itertools
import operator
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ingot
from ingot.capture.values.base import Raised
from ingot.errors import Unsupported
from ingot.native import _native
from tests.capture import iterable_cases
from tests.capture.iterable_cases import ITERABLES, RECEIVERS, arguments_of, cases, program_of
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


_ITERATORS = [
    name
    for name, text in ITERABLES.items()
    if "(Sequence" in text or "Sized" in text or "refus" in text
]
_ITERATORS += ["deque", "set", "dict", "items view", "map over shared"]
_OF_CONTAINERS = {
    "OrderedDict": "collections.OrderedDict.fromkeys(items)",
    "items of OrderedDict": "collections.OrderedDict.fromkeys(items).items()",
    "reversed OrderedDict": "reversed(collections.OrderedDict.fromkeys(items))",
    "defaultdict": "collections.defaultdict(list, dict.fromkeys(items))",
    "reversed deque": "reversed(collections.deque(items))",
    "list subclass": "Items(items)",
    "reversed list subclass": "reversed(Items(items))",
    "map over list subclass": "map(seen, Items(items))",
    "enumerate over deque": "enumerate(collections.deque(items))",
    "zip": "zip(collections.OrderedDict.fromkeys(items), collections.deque(items))",
    "product": "itertools.product(Items(items), [3])",
}


def _kept(iterable: str, before: int, function: Callable[..., Any]) -> Any:
    """What a program sees of an iterable that is alive behind a break; `before`: elements taken
    until then."""
    text = f"""
def program(x, items, log, stop):
    LOG.clear()
    it = iter({({**ITERABLES, **_OF_CONTAINERS})[iterable]})
    taken = [next(it, None) for _ in range({before})]
    stop()
    y = x + 1
    try:
        rest = list(it)
    except Exception as error:
        rest = type(error).__name__
    return y, taken, rest, it
"""
    namespace = {**iterable_cases.CLASSES, "seen": abs}
    exec(text, namespace)
    log: list[Any] = []
    y, taken, rest, it = function(namespace["program"])(
        torch.zeros(2), [3, 1, 4], log, ingot.disable(lambda: None)
    )
    return y.tolist(), taken, rest, type(it), [*log], [*namespace["LOG"]], next(it, None)


@pytest.mark.parametrize("before", [0, 1, 3, 4])
@pytest.mark.parametrize("iterable", [*_ITERATORS, *_OF_CONTAINERS])
def test_iterators_that_are_made_again(iterable: str, before: int) -> None:
    """Behind a graph break a real one stands in the captured one's place: nobody is asked for
    that."""
    assert _kept(iterable, before, ingot.compile) == _kept(
        iterable, before, lambda program: program
    )


def test_a_reversed_object_in_its_place() -> None:
    asked: list[int] = []

    class Asked(list):  # type: ignore[type-arg]
        def __len__(self) -> int:
            asked.append(1)
            return list.__len__(self)

    sequence = Asked("abc")
    references = sys.getrefcount(sequence)
    for index, ended, expected in (
        (2, False, "cba"),
        (0, False, "a"),
        (-1, False, ""),
        (2, True, ""),
    ):
        # 3.14 does not ask where it stands before the first
        asks = not ended and (index >= 0 or sys.version_info < (3, 14))
        made = _native.reversed_at(sequence, index, ended)
        assert type(made) is reversed and gc.is_tracked(made)
        assert operator.length_hint(made) == len(expected) and len(asked) == asks
        assert "".join(made) == expected and "".join(made) == ""
        asked.clear()
    del made
    assert sys.getrefcount(sequence) == references


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
