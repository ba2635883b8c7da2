"""What a graph break hands over: an iterator over a dict that changes behind the break, and an int of a subclass whose
comparisons tell when they are called."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import ingot

CHANGES = {
    "grows": lambda d, k: d.update({k * 2: 3}),
    "grows by two": lambda d, k: d.update({k * 2: 3, k * 3: 4}),
    "shrinks": lambda d, k: d.pop("c", None),
    "is emptied": lambda d, k: d.clear(),
    "stays": lambda d, k: d.update({k: 9}),
}


@pytest.mark.parametrize("kind", ["keys", "values", "items"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_dict_that_changes_behind_a_break(change: str, kind: str) -> None:
    def program(v: torch.Tensor) -> Any:
        table, notes = {"a": 1, "b": 2, "c": 3}, []
        try:
            for found in getattr(table, kind)():
                notes.append(found)
                if v.sum() > 0:
                    CHANGES[change](table, "a")
        except RuntimeError as error:
            notes.append(str(error))
        return notes, table

    assert ingot.compile(program, backend="eager")(torch.ones(3)) == program(torch.ones(3))


NOTES: list[str] = []


class Telling(int):
    def __eq__(self, other: object) -> bool:
        NOTES.append("==")
        return True

    def __le__(self, other: object) -> bool:
        NOTES.append("<=")
        return True

    def __ge__(self, other: object) -> bool:
        NOTES.append(">=")
        return True

    __hash__ = int.__hash__


@pytest.mark.parametrize("number", [0, 1, 3, 2**70])
def test_capture_compares_no_int_of_a_subclass(number: int) -> None:
    def program(v: torch.Tensor, n: int) -> Any:
        return v + 1, n + 1

    NOTES.clear()
    results = ingot.compile(program, backend="eager")(torch.ones(3), Telling(number))
    assert NOTES == []
    assert results[1] == number + 1
