"""Arguments whose names are instances of a subclass of str: functions that do not name them see the
instances."""

from __future__ import annotations

import collections
import enum
import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ingot


class Name(str):
    pass


class Letter(enum.StrEnum):
    A = "a"


def inner(**named: Any) -> Any:
    return named


def outer(**named: Any) -> Any:
    return inner(**named)


@functools.wraps(inner)
def wrapper(*args: Any, **named: Any) -> Any:
    return inner(*args, **named)


def knows(a: int, b: int = 2) -> Any:
    return a, b


class Kept:
    def __init__(self, **named: Any) -> None:
        self.named = named

    def __call__(self, *args: Any, **named: Any) -> Any:
        return args, named

    @classmethod
    def of_class(cls, **named: Any) -> Any:
        return named

    @staticmethod
    def of_none(b: int = 0, **named: Any) -> Any:
        return b, named


class Table(dict[str, Any]):
    pass


def _updated(names: dict[str, int]) -> dict[str, int]:
    table = {"c": 1}
    table.update(**names)
    return table


Pair = collections.namedtuple("Pair", "a")
CALLS: dict[str, Callable[[dict[str, int]], Any]] = {
    "a function": lambda names: inner(**names),
    "two functions": lambda names: outer(**names),
    "a wrapper": lambda names: wrapper(**names),
    "one that names them": lambda names: knows(**names),
    "a lambda": lambda names: (lambda **named: named)(**names),
    "a generator": lambda names: list((lambda **named: (yield from named))(**names)),
    "an __init__": lambda names: Kept(**names).named,
    "a __call__": lambda names: Kept()(1, **names),
    "a class method": lambda names: Kept.of_class(**names),
    "a static method": lambda names: Kept.of_none(**names),
    "behind its own name": lambda names: (lambda a=0, /, **named: (a, named))(**names),
    "beside others": lambda names: inner(**names, z=1),
    "dict": lambda names: dict(**names),
    "a derived dict": lambda names: Table(**names),
    "OrderedDict": lambda names: collections.OrderedDict(**names),
    "defaultdict": lambda names: collections.defaultdict(int, **names),
    "Counter": lambda names: collections.Counter(**names),
    "update": _updated,
    "partial": lambda names: functools.partial(inner, **names)(),
    "partial's own": lambda names: functools.partial(inner, **names).keywords,
    "a namespace": lambda names: vars(types.SimpleNamespace(**names)),
    "a namespace's text": lambda names: repr(types.SimpleNamespace(**names)),
    "a named tuple": lambda names: Pair(**names),
    "format": lambda names: "{a}".format(**names),
    "the same object": lambda names: [a is b for a in inner(**names) for b in names],
    "looked up": lambda names: inner(**names)["a"],
    "given twice": lambda names: inner(a=1, **names),
}


def _told(value: Any) -> Any:
    """The classes of all that is in a value, keys of dicts among them."""
    if isinstance(value, dict):
        return type(value), [(type(k), str(k), _told(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [_told(v) for v in value]
    return type(value), repr(value)


def _outcome(program: Callable[..., Any], name: str) -> Any:
    try:
        return _told(program(torch.ones(2), name)[1])
    except TypeError as error:
        return str(error)


@pytest.mark.parametrize(
    "name", [Name("a"), Letter.A, "a"], ids=["an instance", "a member", "a str"]
)
@pytest.mark.parametrize("call", CALLS)
def test_names(call: str, name: str) -> None:
    def program(x: torch.Tensor, name: str) -> Any:
        return x + 1, CALLS[call]({name: 3})

    assert _outcome(ingot.compile(program), name) == _outcome(program, name)
