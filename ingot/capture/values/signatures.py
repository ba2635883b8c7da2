"""Which arguments the methods of built-in types take, and how these fail: asked of CPython
itself."""

from __future__ import annotations

import functools
import inspect
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import MappingProxyType, MethodDescriptorType, WrapperDescriptorType
from typing import Any

_CLASSES = (
    list, tuple, dict, set, frozenset, str, int, float, complex, bool, bytes, Counter, OrderedDict,
    defaultdict, deque, type(None),
)  # fmt: skip
EMPTY: dict[type, Callable[[], Any]] = {
    **dict(zip(_CLASSES, _CLASSES)),
    slice: lambda: slice(None),
    range: lambda: range(0),
    MappingProxyType: lambda: MappingProxyType({}),
    type({}.keys()): lambda: {}.keys(),
    type({}.values()): lambda: {}.values(),
    type({}.items()): lambda: {}.items(),
}
"""By built-in class: an instance that holds nothing, of which a method may be called for real to
see how it fails."""

_WITH_KEYWORDS = frozenset(
    {dict.update, OrderedDict.update, dict.__init__, OrderedDict.__init__, defaultdict.__init__}
)
"""Methods that say nothing of their arguments, and take some by name."""


_METHODS = (MethodDescriptorType, WrapperDescriptorType)


def method_of(cls: type, name: str) -> Any:
    """The method in C that instances of a class have under a name; None where it is none."""
    for owner in cls.__mro__:
        if name in owner.__dict__:
            raw = owner.__dict__[name]
            if isinstance(raw, _METHODS):
                return raw
            break
    return None


@functools.cache
def _signature(method: Any) -> inspect.Signature | None:
    try:
        return inspect.signature(method)
    except (TypeError, ValueError):  # it says nothing of them
        return None


@functools.cache
def refuses(function: Any, count: int, names: tuple[str, ...]) -> bool:
    """Whether a C function refuses so many positional arguments (with the instance, of a method)
    and these keywords, whatever they are."""
    signature = _signature(function)
    if signature is None:
        return bool(names) and isinstance(function, _METHODS) and function not in _WITH_KEYWORDS
    try:
        signature.bind(*[None] * count, **dict.fromkeys(names))
    except TypeError:
        return True
    return False


def model_of(cls: type) -> Any:
    """An empty instance of a built-in class; None where there is none."""
    return EMPTY.get(cls, type(None))()
