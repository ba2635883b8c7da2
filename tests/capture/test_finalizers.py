"""Objects at whose end something happens: `__del__`, weak references and their callbacks."""

# ruff: noqa: F841  (a variable is written to drop what it holds)
from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot

ENDED: list[Any] = []


class Plain:
    """An object that only weak references see the end of."""


class Ending:
    def __init__(self, number: int) -> None:
        self.number = number

    def __del__(self) -> None:
        ENDED.append(self.number)


class Heir(Ending):
    """Its finalizer is that of its base."""


class EndingList(list[int]):
    def __del__(self) -> None:
        ENDED.append("list")


class EndingModule(torch.nn.Module):
    def __del__(self) -> None:
        ENDED.append("module")


def replaced(x: Tensor) -> Tensor:
    ending = Ending(1)
    ending = None  # type: ignore[assignment]
    ENDED.append("after")
    return x + 1


def at_the_end(x: Tensor) -> Tensor:
    ending = Heir(2)
    ENDED.append("after")
    return x + ending.number


def inside(x: Tensor) -> Tensor:
    def inner() -> Tensor:
        return x + Ending(3).number

    result = inner()
    ENDED.append("after")
    return result


def behind_a_break(x: Tensor) -> Tensor:
    str(x)
    ending = Ending(4)
    del ending
    ENDED.append("after")
    return x + 1


def of_a_list(x: Tensor) -> Tensor:
    numbers = EndingList([1])
    x = x + numbers[0]
    numbers = None  # type: ignore[assignment]
    ENDED.append("after")
    return x


def of_a_module(x: Tensor) -> Tensor:
    x = EndingModule().training + x
    ENDED.append("after")
    return x


def returned(x: Tensor) -> Any:
    return x + 1, Ending(5)


def referred_to(x: Tensor) -> Tensor:
    plain = Plain()
    reference = weakref.ref(plain)
    ENDED.append(reference() is plain)
    plain = None  # type: ignore[assignment]
    ENDED.append(reference())
    return x + 1


def finalized(x: Tensor) -> Tensor:
    plain = Plain()
    weakref.finalize(plain, ENDED.append, "finalized")
    del plain
    ENDED.append("after")
    return x + 1


def called_back(x: Tensor) -> Tensor:
    plain = Plain()
    reference = weakref.ref(plain, lambda _: ENDED.append("gone"))
    plain = None  # type: ignore[assignment]
    ENDED.append(reference())
    return x + 1


def in_a_table(x: Tensor) -> Tensor:
    plain, table = Plain(), weakref.WeakValueDictionary[str, Plain]()
    table["a"] = plain
    del plain
    ENDED.append(len(table))
    return x + 1


def by_proxy(x: Tensor) -> Tensor:
    plain = Plain()
    proxy = weakref.proxy(plain)
    plain.number = 3  # type: ignore[attr-defined]
    x = x + proxy.number  # type: ignore[attr-defined]
    del plain
    ENDED.append(weakref.getweakrefcount(proxy))
    return x


def of_a_tensor(x: Tensor) -> Tensor:
    y = x + 1
    reference = weakref.ref(y)
    y = y * 2
    ENDED.append(reference() is None)
    return y


PROGRAMS = (
    replaced, at_the_end, inside, behind_a_break, of_a_list, of_a_module, returned, referred_to,
    finalized, called_back, in_a_table, by_proxy, of_a_tensor,
)  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_what_happens_at_the_end_of_an_object(program: Callable[[Tensor], Any]) -> None:
    """It happens when it does in eager, in each call."""
    compiled = ingot.compile(program)
    for _ in range(3):
        assert _ended(compiled) == _ended(program)


def _ended(function: Callable[[Tensor], Any]) -> list[Any]:
    ENDED.clear()
    function(torch.ones(3))
    return list(ENDED)


def test_the_reason() -> None:
    for program in (replaced, referred_to):
        report = ingot.explain(program)(torch.ones(3))
        assert re.search("__del__|weak reference", report.breaks[0].reason)


def test_weak_references_to_what_is_outside() -> None:
    held = Plain()

    def program(x: Tensor) -> Any:
        reference = weakref.ref(held)
        return x + 1, reference() is held

    assert ingot.compile(program)(torch.ones(3))[1] is True
