"""`__torch_function__` of classes that are no tensors', as a library's dictionary of tensors has
it: eager is the oracle, for results, the types that are asked, and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from ingot.errors import GraphBreakError


class Box:
    """Holds a tensor and the names of the classes that were asked for it. It refuses `mul`."""

    def __init__(self, tensor: Tensor, asked: tuple[str, ...] = ()) -> None:
        self.tensor, self.asked = tensor, asked

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.mul:
            return NotImplemented
        named = {name: opened(value) for name, value in (kwargs or {}).items()}
        result = func(*map(opened, args), **named)
        return cls(result, tuple(each.__name__ for each in types))


class Crate(Box):
    """Is asked before a box."""


class Labelled(Tensor):
    """A tensor whose class leaves all to the others."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return NotImplemented


def opened(value: Any) -> Any:
    if isinstance(value, Box):
        return value.tensor
    if isinstance(value, (list, tuple)):
        return [opened(item) for item in value]
    return value


OUTSIDE = Box(torch.arange(3.0))
LABELLED = torch.arange(3.0).as_subclass(Labelled)

PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "a function of C": lambda x: torch.sin(Box(x)),
    "a function of Python": lambda x: torch.nn.functional.dropout(Box(x), 0.5, False),
    "a list": lambda x: torch.stack([Box(x), Box(x + 1)], 0),
    "one of several": lambda x: torch.cat([x, OUTSIDE]),
    "behind a tensor": lambda x: torch.add(x, Box(x)),
    "a method": lambda x: x.add(Box(x)),
    "a keyword": lambda x: torch.add(x, other=Box(x)),
    "outside": lambda x: torch.where(x > 1, OUTSIDE, x),
    "two classes": lambda x: torch.add(Box(x), Crate(x)),
    "the base last": lambda x: torch.add(Crate(x), Box(x)),
    "the result again": lambda x: torch.exp(torch.sin(Box(x * 2))),
    "no function that asks": lambda x: (torch.is_tensor(OUTSIDE), x),
    "a refusal": lambda x: torch.mul(x, Box(x)),
}


def outcome(function: Callable[[Tensor], Any], x: Tensor) -> Any:
    try:
        result = function(x)
    except Exception as error:
        return type(error)
    if isinstance(result, Box):
        return type(result), result.asked, result.tensor
    return result


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph_and_eagers_result(name: str) -> None:
    function, x = PROGRAMS[name], torch.arange(3.0)
    compiled, expected = ingot.compile(function, fullgraph=True), outcome(function, x)
    for _ in range(2):
        found = outcome(compiled, x)
        assert_same(found, expected)


def assert_same(found: Any, expected: Any) -> None:
    if not isinstance(expected, tuple):
        assert found == expected
        return
    assert found[:-1] == expected[:-1]
    torch.testing.assert_close(found[-1], expected[-1])


def switched_off(x: Tensor) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return torch.sin(OUTSIDE), x  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "function",
    [lambda x: x + Box(x), lambda x: torch.add(LABELLED, Box(x)), switched_off],
    ids=["an operator", "beside a subclass that leaves it", "switched off"],
)
def test_others_are_eagers_as_well(function: Any) -> None:
    x = torch.arange(3.0)
    assert_same(outcome(ingot.compile(function), x), outcome(function, x))


def test_an_operator_breaks_the_graph() -> None:
    with pytest.raises(GraphBreakError, match="Box"):
        ingot.compile(lambda x: x + Box(x), fullgraph=True)(torch.ones(2))
