"""What a call of an object means during capture.

In goes an object that the program calls, out comes its `Meaning`: how the call is captured, and by
which rule. An object has one meaning. It is stated by `means`, beside the rule; where none is, it
follows from what the object is.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, TypeVar

from ingot.capture import torch_calls

_F = TypeVar("_F")


class How(enum.Enum):
    """How a call is captured, and the arguments of the rule where there is one."""

    # stated by `means`
    RULE = "by a rule on values that are used: rule(session, *args, **kwargs)"
    UNREALIZED = "by a rule on values that may be lazy: rule(session, args, kwargs)"
    FORWARD = (
        "as the call of another value: rule(session, args, kwargs) gives that value and its "
        "arguments, or None where the rule `otherwise` captures it"
    )
    OPERATION = "as a node of the graph; rule(session, args, kwargs) comes first, and may give None"
    METHOD = (
        "as the method of its first argument; for a tensor, rule(session, tensor, args, kwargs) "
        "comes first, and may give None"
    )
    STATE = (
        "as a question about the state around the call, whose answer guards fix: "
        "rule(session, args, kwargs)"
    )
    POLYFILL = "by inlining the rule, a Python function or class, in its place"
    PURE = "by calling it when all arguments are known; it changes nothing"
    BINARY = "as a binary operator"
    UNARY = "as the unary operator that the rule is"
    INSTANCE = "by a rule, for subclasses too: rule(session, cls, args, kwargs)"
    NEW = (
        "as `__new__` of a class written in C, for its subclasses: rule(session, cls, args, kwargs)"
    )
    APPLY = "as `apply` of an autograd.Function: rule(session, args)"
    CODE = (
        "by a rule for all functions that share a code object: "
        "rule(session, function, args, kwargs)"
    )
    # following from what the object is
    REPLACED = "as the call of the rule, which torch.compile has wrapped"
    INLINE = "by running its bytecode"
    CLASS = "by its metaclass, or by `__new__` and `__init__`"
    BREAK = "not at all: the rule says why"
    UNKNOWN = "not at all: a C function that nobody has stated the meaning of"


@dataclass(frozen=True, slots=True)
class Meaning:
    """How a call of an object is captured, and by which rule."""

    how: How
    rule: Any = None
    otherwise: Callable[..., Any] | None = None


MEANINGS: dict[Any, Meaning] = {}
"""By object: the meaning that is stated. A name, "module.function" or "module.Class.method", stands
for a function whose module need not be loaded."""

INLINE, CLASS, UNKNOWN = map(Meaning, (How.INLINE, How.CLASS, How.UNKNOWN))
_PURE, _METHOD, _NEW, _OPERATION = map(Meaning, (How.PURE, How.METHOD, How.NEW, How.OPERATION))

_PURE_CLASSES = frozenset({str, bytes, int, float, complex, bool})
"""Their class and static methods are pure."""

_NESTED = 0x10  # CO_NESTED


def means(
    *objects: Any, how: How = How.RULE, otherwise: Callable[..., Any] | None = None
) -> Callable[[_F], _F]:
    """States the meaning of objects, by the rule that it decorates."""

    def state(rule: _F) -> _F:
        meaning = Meaning(how, rule, otherwise)
        for object_ in objects:
            if object_ in MEANINGS:
                raise ValueError(f"a second meaning of {object_!r}")
            MEANINGS[object_] = meaning
        return rule

    return state


def means_pure(*objects: Any) -> None:
    """States that objects may be called for real when all their arguments are known."""
    for object_ in objects:
        MEANINGS.setdefault(object_, _PURE)


def stated(object_: Any) -> Meaning | None:
    """The meaning that is stated for an object itself, or for a function by its name; an unhashable
    one has none."""
    try:
        meaning = MEANINGS.get(object_)
    except TypeError:
        return None
    if meaning is None and isinstance(object_, FunctionType):
        return MEANINGS.get(f"{object_.__module__}.{object_.__qualname__}")
    return meaning


def meaning_of(object_: Any) -> Meaning:
    """What a call of an object means: the first of these that holds."""
    if (meaning := stated(object_)) is not None:
        return meaning
    if isinstance(object_, FunctionType):
        if (original := torch_calls.wrapped_by_dynamo(object_)) is not None:
            return Meaning(How.REPLACED, original)
        if reason := torch_calls.why_not_captured(object_):
            return Meaning(How.BREAK, reason)
        if torch_calls.is_whole(object_):
            return _OPERATION
        return meaning_of_code(object_.__code__) or INLINE
    if isinstance(object_, type):
        if isinstance(object_, enum.EnumMeta):
            return _PURE
        return CLASS
    if torch_calls.is_operation(object_):
        return _OPERATION
    if getattr(object_, "__objclass__", None) is not None:
        return _METHOD
    owner = getattr(object_, "__self__", None)
    if isinstance(owner, type) and object_.__name__ == "__new__":
        return _NEW
    if isinstance(owner, type) and owner in _PURE_CLASSES:
        return _PURE
    return UNKNOWN


def meaning_of_code(code: CodeType) -> Meaning | None:
    """The meaning that is stated for all inner functions of a code object."""
    if code.co_flags & _NESTED:
        return MEANINGS.get(code)
    return None


def meaning_of_construction(cls: type) -> Meaning | None:
    """The rule by which calling `cls` makes an instance: that of the nearest class in its MRO that
    states one for itself and its subclasses."""
    for base in cls.__mro__:
        meaning = MEANINGS.get(base)
        if meaning is not None and meaning.how is How.INSTANCE:
            return meaning
    return None


_IN_PLACE_OF_C = frozenset({How.RULE, How.UNREALIZED, How.POLYFILL, How.PURE, How.BINARY})


def is_known_in_c(object_: Any) -> bool:
    """Whether capture can call a C function that was found on a class."""
    if isinstance(object_, functools._lru_cache_wrapper):
        return True
    meaning = stated(object_)
    return meaning is not None and meaning.how in _IN_PLACE_OF_C
