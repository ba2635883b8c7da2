"""Which arguments the methods of built-in types take, and how these fail: asked of CPython
itself."""

from __future__ import annotations

import functools
import inspect
import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import (
    BuiltinFunctionType,
    MappingProxyType,
    MethodDescriptorType,
    WrapperDescriptorType,
)
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


_ALL_POSITIONAL = re.compile(r"\(\$?\w+(, \w+(=[\w.-]+)?)*, /\)")
"""The text of a signature without keywords and stars, whose defaults are names and numbers."""


def counts_taken(function: Any) -> range | None:
    """How many positional arguments a C function takes (with the instance, of a method), where it
    takes no others. That is read from its text: a signature takes long to make."""
    text = getattr(function, "__text_signature__", None)
    if type(function) not in (BuiltinFunctionType, *_METHODS) or not text:
        return None
    if _ALL_POSITIONAL.fullmatch(text) is None:
        return None
    parameters = text[1:-4].split(", ")
    if type(function) is BuiltinFunctionType and parameters[0].startswith("$"):  # it is bound
        del parameters[0]
    optional = sum(map(_has_default, parameters))
    return range(len(parameters) - optional, len(parameters) + 1)


def _has_default(parameter: str) -> bool:
    return "=" in parameter


@functools.cache
def refuses(function: Any, count: int, names: tuple[str, ...]) -> bool:
    """Whether a C function refuses so many positional arguments (with the instance, of a method)
    and these keywords, whatever they are."""
    counts = counts_taken(function)
    if counts is not None:
        return bool(names) or count not in counts
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
