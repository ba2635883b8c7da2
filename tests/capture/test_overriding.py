"""Whether torch's functions are overridden by what they are given is answered as in eager."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import overrides

import ingot


class Like:
    """Like a tensor to torch's functions."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Like:
        args = [arg.tensor if isinstance(arg, Like) else arg for arg in args]
        return Like(func(*args, **(kwargs or {})))


class Method:
    def __torch_function__(self, *args: Any, **kwargs: Any) -> int:
        return 1


class Nothing:
    __torch_function__ = None


class Disabled:
    __torch_function__ = torch._C._disabled_torch_function_impl


class OfInstance:
    def __init__(self) -> None:
        self.__torch_function__ = 3


class Property:
    @property
    def __torch_function__(self) -> Any:
        raise AttributeError


class Asked:
    def __getattr__(self, name: str) -> Any:
        if name == "__torch_function__":
            return 4
        raise AttributeError(name)


class Plain:
    pass


class Subclass(torch.Tensor):
    pass


class DisabledSubclass(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


_MADE: dict[str, Callable[[torch.Tensor], Any]] = {
    "tensor": lambda x: x,
    "Like": Like,
    "Method": lambda x: Method(),
    "Nothing": lambda x: Nothing(),
    "Disabled": lambda x: Disabled(),
    "OfInstance": lambda x: OfInstance(),
    "Property": lambda x: Property(),
    "Asked": lambda x: Asked(),
    "Plain": lambda x: Plain(),
    "a class": lambda x: Like,
    "a number": lambda x: 3,
    "None": lambda x: None,
    "a list": lambda x: [Like(x)],
    "a module of Python": lambda x: torch,
}
_GIVEN: dict[str, Callable[[torch.Tensor], Any]] = {
    **_MADE,
    "parameter": torch.nn.Parameter,
    "subclass": lambda x: x.as_subclass(Subclass),
    "disabled subclass": lambda x: x.as_subclass(DisabledSubclass),
    "module": lambda x: torch.nn.Linear(1, 1),
}
_QUESTIONS: dict[str, Callable[[Any], Any]] = {
    "unary": lambda v: overrides.has_torch_function_unary(v),
    "variadic": lambda v: overrides.has_torch_function_variadic(1, v),
    "tuple": lambda v: overrides.has_torch_function((v,)),
    "list": lambda v: overrides.has_torch_function([1, v]),
    "generator": lambda v: overrides.has_torch_function(i for i in (v,)),  # type: ignore[arg-type]
    "C": lambda v: torch._C._has_torch_function_unary(v),  # type: ignore[attr-defined]
    "C, tuple": lambda v: torch._C._has_torch_function((v,)),  # type: ignore[attr-defined]
    "C, variadic": lambda v: torch._C._has_torch_function_variadic(v, 2),
    # type: ignore[attr-defined]
    "nothing": lambda v: overrides.has_torch_function(()),
    "is_tensor_like": lambda v: overrides.is_tensor_like(v),
    "what is no sequence": lambda v: overrides.has_torch_function(3),  # type: ignore[arg-type]
}


def _outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("question", _QUESTIONS)
@pytest.mark.parametrize("mode", [False, True])
def test_questions(question: str, mode: bool) -> None:
    ask, x = _QUESTIONS[question], torch.ones(3)
    with torch.device("cpu") if mode else contextlib.nullcontext():
        for name, make in _MADE.items():
            ask_of_made = lambda x, make=make: (ask(make(x)), x + 1)[0]  # noqa: E731
            whole = ingot.compile(ask_of_made, backend="eager", fullgraph=True)
            assert _outcome(whole, x) == _outcome(ask_of_made, x), name
        for name, make in _GIVEN.items():
            given = make(x)
            compiled = ingot.compile(ask, backend="eager")
            assert _outcome(compiled, given) == _outcome(ask, given), name


_CALLS: dict[str, Callable[[Any], Any]] = {
    "relu": lambda like: F.relu(like),
    "linear": lambda like: F.linear(like, torch.ones(2, 3)),
    "add": lambda like: torch.add(like, 1),
    "dropout": lambda like: F.dropout(like, 0.0),
    "softmax": lambda like: F.softmax(like, 0),
    "einsum": lambda like: torch.einsum("i,i->", like, like),
    "norm": lambda like: torch.functional.norm(like),
    "layer_norm": lambda like: F.layer_norm(like, (3,)),
}


@pytest.mark.parametrize("name", _CALLS)
def test_functions_are_overridden(name: str) -> None:
    call = lambda x: _CALLS[name](Like(x)).tensor  # noqa: E731
    x = torch.rand(3)
    assert torch.equal(ingot.compile(call, backend="eager")(x), call(x))
