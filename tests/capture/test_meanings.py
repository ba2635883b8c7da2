"""What a call of an object means: one table, and the precedence of `meaning_of`."""

from __future__ import annotations

import builtins
import enum
import functools
import math
import operator
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.capture.meanings import MEANINGS, How, meaning_of, meaning_of_construction, means


def plain(x: torch.Tensor) -> torch.Tensor:
    return x + 1


class Colour(enum.Enum):
    RED = 1


class Layer(nn.Module):
    pass


CASES: dict[How, list[Any]] = {
    How.RULE: [len, isinstance, dict, super, torch.clear_autocast_cache],
    How.UNREALIZED: [print, warnings.warn, nn.Module.__getattr__],
    How.FORWARD: [nn.Module.__call__, torch.utils.checkpoint.checkpoint],
    How.OPERATION: [torch.where, torch.add, torch.nn.functional.gelu, torch.autograd.grad],
    How.METHOD: [torch.Tensor.item, list.append, str.join],
    How.STATE: [torch.is_grad_enabled, torch.compiler.is_compiling],
    How.POLYFILL: [zip, sorted, functools.reduce, math.prod],
    How.PURE: [math.sin, torch.device, Colour, str.maketrans],
    How.BINARY: [operator.add, operator.iadd, operator.eq],
    How.UNARY: [operator.neg, abs],
    How.INSTANCE: [nn.Module, torch.Tensor],
    How.NEW: [object.__new__, tuple.__new__],
    How.APPLY: [torch.utils.checkpoint.CheckpointFunction.apply],
    How.CODE: [functools.singledispatch(plain).dispatch],
    How.INLINE: [plain, torch.nn.functional.interpolate],
    How.CLASS: [Layer, type("Own", (), {})],
    How.BREAK: [torch.compile, torch.func.linearize],
    How.UNKNOWN: [builtins.open, builtins.eval],
}


@pytest.mark.parametrize("how", CASES, ids=lambda how: how.name)
def test_how(how: How) -> None:
    assert [meaning_of(called).how for called in CASES[how]] == [how] * len(CASES[how])


def test_every_way_but_one_has_a_case() -> None:
    """torch.compile wraps functions once it is loaded, which these tests never do."""
    assert set(How) - CASES.keys() == {How.REPLACED}


def test_subclasses_of_a_class_with_a_rule() -> None:
    assert meaning_of_construction(Layer) is MEANINGS[nn.Module]
    assert meaning_of_construction(Colour) is None


def test_an_object_has_one_meaning() -> None:
    with pytest.raises(ValueError, match="a second meaning of <built-in function len>"):
        means(len)(lambda session, value: value)


def test_unhashable_objects_have_no_stated_meaning() -> None:
    class Unhashable:
        __hash__: Callable[..., Any] = None  # type: ignore[assignment]

        def __call__(self) -> None: ...

    assert meaning_of(Unhashable()).how is How.UNKNOWN


def test_a_new_meaning_is_stated_in_one_place() -> None:
    def answer(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("it is not inlined")

    @means(answer, how=How.UNREALIZED)
    def rule(session: Any, args: Any, kwargs: Any) -> Any:
        return session.call(session.builtin(torch.neg), args, kwargs)

    try:
        compiled = ingot.compile(lambda x: answer(x) * 2)
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), -2.0))
    finally:
        del MEANINGS[answer]
