"""Two equal worlds, one changed by a function in eager, the other by the same function compiled."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import CellType, FunctionType, MethodType
from typing import Any

import torch

import ingot
from ingot.compiler import Compiler

_ATOMS = (int, float, complex, str, bytes, bool, type(None), type, torch.dtype, range)


class Mirror:
    """Compares two structures: equal types and values, and the same pattern of identity."""

    def __init__(self) -> None:
        self.partners: dict[int, Any] = {}
        self.kept: list[Any] = []  # so that no id is used twice

    def same(self, a: Any, b: Any, path: str = "world") -> None:
        assert type(a) is type(b), f"{path}: {a!r} and {b!r}"
        if isinstance(a, _ATOMS):
            assert a == b or a != a, f"{path}: {a!r} is not {b!r}"
            return
        if id(a) in self.partners:
            assert self.partners[id(a)] is b, f"{path}: another object than where it was met before"
            return
        assert not any(b is partner for partner in self.partners.values()), (
            f"{path}: the same object as elsewhere"
        )
        self.partners[id(a)] = b
        self.kept.append(a)
        self._parts(a, b, path)

    def _parts(self, a: Any, b: Any, path: str) -> None:
        if isinstance(a, torch.Tensor):
            assert (a.dtype, a.shape, a.requires_grad) == (b.dtype, b.shape, b.requires_grad), path
            torch.testing.assert_close(
                a.detach(), b.detach(), equal_nan=True, msg=lambda text: f"{path}: {text}"
            )
        elif isinstance(a, dict):
            assert len(a) == len(b), f"{path}: keys {list(a)} and {list(b)}"
            for left, right in zip(a, b):
                self.same(left, right, f"a key of {path}")
                self.same(
                    dict.__getitem__(a, left), dict.__getitem__(b, right), f"{path}[{left!r}]"
                )
        elif isinstance(a, (list, tuple, deque)):
            assert len(a) == len(b), f"{path}: {len(a)} and {len(b)} items"
            for i, (left, right) in enumerate(zip(a, b)):
                self.same(left, right, f"{path}[{i}]")
        elif isinstance(a, (set, frozenset)):
            assert a == b, f"{path}: {a} and {b}"
        elif isinstance(a, FunctionType):
            self._function(a, b, path)
        elif isinstance(a, CellType):
            self.same(_content(a), _content(b), f"{path}.cell_contents")
        elif isinstance(a, MethodType):
            self.same(a.__func__, b.__func__, f"{path}.__func__")
            self.same(a.__self__, b.__self__, f"{path}.__self__")
        for name in {name for cls in type(a).__mro__ for name in vars(cls).get("__slots__", ())} - {
            "__dict__"
        }:
            assert hasattr(a, name) == hasattr(b, name), f"{path}.{name} is set in one"
            if hasattr(a, name):
                self.same(getattr(a, name), getattr(b, name), f"{path}.{name}")
        if hasattr(a, "__dict__") and not isinstance(a, torch.Tensor | FunctionType):
            self.same(vars(a), vars(b), f"vars({path})")

    def _function(self, a: Any, b: Any, path: str) -> None:
        assert a.__code__ is b.__code__, f"{path}: other code"
        for name in (
            "__defaults__",
            "__kwdefaults__",
            "__dict__",
            "__annotations__",
            "__qualname__",
            "__doc__",
        ):
            self.same(getattr(a, name), getattr(b, name), f"{path}.{name}")
        for i, (left, right) in enumerate(zip(a.__closure__ or (), b.__closure__ or ())):
            self.same(left, right, f"{path}.__closure__[{i}]")


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return "empty"


def outcome(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """What a call gives, or the exception it raises."""
    try:
        return fn(*args)
    except Exception as error:
        return "raises", type(error), str(error)


def same_world(
    fn: Callable[..., Any],
    make: Callable[[], tuple[Any, ...]],
    calls: int = 3,
    compiled: Any = None,
    **options: Any,
) -> Any:
    """Asserts that `fn(*make())`, called several times on the same arguments, gives and leaves what
    it does in eager. Gives the compiler."""
    if compiled is None:
        compiled = ingot.compile(fn, **{"fullgraph": True, "backend": "eager", **options})
    ours, theirs = make(), make()
    with torch.no_grad():
        for call in range(calls):
            expected, actual = outcome(fn, theirs), outcome(compiled, ours)
            Mirror().same((expected, theirs), (actual, ours), f"after call {call + 1}: ")
    return Compiler.of(compiled)


def compilations(compiler: Any) -> int:
    return len(compiler.compilations)
