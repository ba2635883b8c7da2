"""The state that a call may change: all tensors and numbers that its function and its arguments
hold."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch

_NUMBERS = (int, float, complex, str, bytes, type(None))
_MOST = 100_000
"""Places that are looked at."""


def state_of(**roots: Any) -> dict[str, Any]:
    """Tensors, their gradients, and numbers by the names of their places, each object once."""
    state: dict[str, Any] = {}
    objects: dict[int, Any] = {}  # by their ids, which stay theirs while they are held
    waiting = deque(roots.items())
    while waiting and len(objects) < _MOST:
        place, value = waiting.popleft()
        if isinstance(value, _NUMBERS) or isinstance(value, torch.Tensor):
            state[place] = value
        if isinstance(value, _NUMBERS) or id(value) in objects:
            continue
        objects[id(value)] = value
        waiting.extend((f"{place}{name}", member) for name, member in _members(value))
    return state


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """What an object holds, without a call of its own code."""
    if isinstance(value, torch.Tensor):
        if value.is_leaf:
            yield ".grad", value.grad
    elif isinstance(value, Mapping):
        for key, member in value.items():
            yield f"[{key!r}]", member
    elif isinstance(value, (list, tuple, deque)):
        for k, member in enumerate(value):
            yield f"[{k}]", member
    elif isinstance(value, FunctionType):
        yield from _captured(value)
    elif isinstance(value, MethodType):
        yield from ((".__self__", value.__self__), (".__func__", value.__func__))
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, torch.Generator):
        yield ".state", value.get_state()
    elif _is_users(value):
        for name, member in vars(value).items():
            yield f".{name}", member


def _captured(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function's variables from around it hold, as far as they are used."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or ())
    for name, cell in cells:
        try:
            yield f".{name}", cell.cell_contents
        except ValueError:  # it is empty yet
            continue
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f".{name}", function.__globals__[name]


def _is_users(value: Any) -> bool:
    """Whether a call may change the attributes of an object. Those of classes and Python modules do
    not count, and of libraries' objects only those of modules and optimizers do."""
    if isinstance(value, (type, ModuleType)) or not hasattr(value, "__dict__"):
        return False
    kinds = torch.nn.Module, torch.optim.Optimizer
    package = type(value).__module__.partition(".")[0]
    return isinstance(value, kinds) or package not in ("builtins", "torch", "numpy", "ingot")
