"""Built-in functions: the pure ones are called when all is known, the others have a rule or a
polyfill in Python."""

from __future__ import annotations

import builtins
import cmath
import functools
import math
import operator
import os
from collections.abc import Callable
from types import MethodDescriptorType
from typing import TYPE_CHECKING, Any

from ingot.capture.meanings import How, Meaning, meaning_of, means, stated
from ingot.capture.values import signatures
from ingot.capture.values.base import (
    Arguments,
    Callee,
    Keywords,
    KnownObject,
    NotConstant,
    Operator,
    Value,
    find_missing,
    map_values,
    wrong_arguments,
)
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.functions import BoundMethod
from ingot.capture.values.objects import BINARY_METHODS, INPLACE_METHODS, ObjectValue
from ingot.capture.values.operator_methods import EQUALITIES
from ingot.capture.values.subclasses import BuiltinObject
from ingot.capture.values.wording import public_name

if TYPE_CHECKING:
    from ingot.capture.session import Session

_UNASKED = frozenset({ord, os.fspath, math.trunc, str.maketrans, bytes.maketrans})
"""Do not ask an instance for its number."""

_OF_INTEGERS = frozenset({math.gcd, math.lcm, math.factorial, math.comb, math.perm, math.isqrt})
_OF_FLOATS = {*filter(callable, (*vars(math).values(), *vars(cmath).values()))} - _OF_INTEGERS
_HARMLESS = frozenset(
    map(
        vars(builtins).__getitem__,
        "len isinstance issubclass callable hasattr getattr repr hash iter divmod pow round "
        "format".split(),
    )
)
"""May be called for real to see how they fail."""

means(*BINARY_METHODS, *INPLACE_METHODS, how=How.BINARY)(None)
for _operator in (operator.neg, operator.pos, operator.invert, builtins.abs):
    means(_operator, how=How.UNARY)(_operator)
means(operator.inv, how=How.UNARY)(operator.invert)
means(operator.abs, how=How.UNARY)(builtins.abs)


class BuiltinValue(KnownObject):
    """A C function, or a class with a meaning that is stated."""

    __slots__ = ()

    def describe(self) -> str:
        return f"{getattr(self.object, '__qualname__', self.object)}()"

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        if function in EQUALITIES and isinstance(other, BuiltinValue):
            return ConstantValue(function(self.object, other.object))
        return None

    def get_attribute(self, session: Session, name: str) -> Value:
        if name in (
            "__name__",
            "__qualname__",
            "__doc__",
            "__module__",
            "__text_signature__",
            "__objclass__",
        ):
            return session.wrap_result(getattr, self.object, name)
        if name == "__get__" and not find_missing(type(self.object), name):
            return session.builtin(_get_method)
        if isinstance(self.object, property) and name in ("getter", "setter", "deleter"):
            return BoundMethod(session.builtin(getattr(property, name)), self)
        if isinstance(self.object, property):
            value = session.python(getattr, self.object, name)
            return session.realize(session.wrap_class_member(value))
        return super().get_attribute(session, name)

    def callee(self, session: Session, args: Arguments, kwargs: Keywords) -> Callee | None:
        meaning = stated(self.object)
        if meaning is None or meaning.how is not How.POLYFILL:
            return None
        if _is_of_content(session, self.object, args):
            return None
        _check_arguments(session, self.object, args, kwargs)
        return session.builtin(meaning.rule).callee(session, args, kwargs)

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        return call_as(session, meaning_of(self.object), self.object, args, kwargs)


def _get_method() -> None:
    """Stands for the `__get__` of a C function, of which nothing is asked yet."""


def call_as(
    session: Session, meaning: Meaning, function: Any, args: Arguments, kwargs: Keywords
) -> Value:
    """Calls a function or class in the way that its meaning says."""
    carry_out = _CALLS.get(meaning.how, _call_unknown)
    return carry_out(session, meaning, function, args, kwargs)


def _call_rule(
    session: Session, meaning: Meaning, function: Any, args: Arguments, kwargs: Keywords
) -> Value:
    try:
        result: Value = meaning.rule(
            session, *map(session.realize, args), **session.realize_all(kwargs)
        )
        return result
    except NotConstant as unknown:
        raise _unknown(session, function, unknown) from None
    except TypeError as error:
        model = None
        if isinstance(function, type) or function in _HARMLESS:
            model = function
        raise wrong_arguments(session, BuiltinValue(function), error, model, args, kwargs) from None


def _call_unrealized(
    session: Session, meaning: Meaning, function: Any, args: Arguments, kwargs: Keywords
) -> Value:
    result: Value = meaning.rule(session, args, kwargs)
    return result


def _call_forward(
    session: Session, meaning: Meaning, function: Any, args: Arguments, kwargs: Keywords
) -> Value:
    target = meaning.rule(session, args, kwargs)
    if target is not None:
        return session.call(*target)
    assert meaning.otherwise is not None
    result: Value = meaning.otherwise(session, args, kwargs)
    return result


def _call_polyfill(
    session: Session, meaning: Meaning, function: Any, args: Arguments, kwargs: Keywords
) -> Value:
    if _is_of_content(session, function, args):
        return _call_method(session, meaning, function, args, kwargs)
    _check_arguments(session, function, args, kwargs)
    return session.call(session.builtin(meaning.rule), args, kwargs)


def _call_binary(
    session: Session, meaning: Meaning, function: Any, args: Arguments, kwargs: Keywords
) -> Value:
    if len(args) != 2:
        return _call_unknown(session, meaning, function, args, kwargs)
    return session.binary(function, args[0], args[1])


def _call_unary(
    session: Session, meaning: Meaning, function: Any, args: Arguments, kwargs: Keywords
) -> Value:
    if len(args) != 1:
        return _call_unknown(session, meaning, function, args, kwargs)
    return session.realize(args[0]).unary(session, meaning.rule)


def _call_method(
    session: Session, meaning: Meaning, function: Any, args: Arguments, kwargs: Keywords
) -> Value:
    """A method of a built-in type, called on an instance that is its first argument."""
    args = list(map(session.realize, args))
    if not args or not issubclass(args[0].python_type(), function.__objclass__):
        return _call_unknown(session, meaning, function, args, kwargs)
    first = args[0]
    if isinstance(first, ObjectValue):
        return session.call(first.bind(session, function, function.__name__), args[1:], kwargs)
    return session.call(first.get_attribute(session, function.__name__), args[1:], kwargs)


def _call_new(
    session: Session, meaning: Meaning, function: Any, args: Arguments, kwargs: Keywords
) -> Value:
    return session.new(function.__self__, list(map(session.realize, args)), kwargs)


def _call_pure(
    session: Session, meaning: Meaning, function: Any, args: Arguments, kwargs: Keywords
) -> Value:
    return call_pure(session, function, list(map(session.realize, args)), kwargs)


def _call_unknown(
    session: Session, meaning: Meaning, function: Any, args: Arguments, kwargs: Keywords
) -> Value:
    for arg in args:
        session.realize(arg)
    raise session.unsupported(
        "c-function",
        f"{public_name(function)}() is written in C, and Ingot has no rule for it",
        of=function,
    )


_CALLS: dict[How, Callable[[Session, Meaning, Any, Arguments, Keywords], Value]] = {
    How.RULE: _call_rule,
    How.UNREALIZED: _call_unrealized,
    How.FORWARD: _call_forward,
    How.POLYFILL: _call_polyfill,
    How.BINARY: _call_binary,
    How.UNARY: _call_unary,
    How.METHOD: _call_method,
    How.NEW: _call_new,
    How.PURE: _call_pure,
}
"""What carries out a call, by how it is captured. Other values than `BuiltinValue` carry out the
rest."""


def _is_of_content(session: Session, function: Any, args: Arguments) -> bool:
    """Whether it is `__reversed__` of a built-in class, called on an instance of a subclass."""
    return (
        isinstance(function, MethodDescriptorType)
        and function.__name__ == "__reversed__"
        and bool(args)
        and isinstance(session.realize(args[0]), ObjectValue)
    )


def _check_arguments(session: Session, function: Any, args: Arguments, kwargs: Keywords) -> None:
    """Raises what a C function raises for a wrong number of arguments, or wrong names."""
    if not signatures.refuses(function, len(args), tuple(kwargs)):
        return
    models: list[Any] = [None] * len(args)
    if getattr(function, "__objclass__", None) is not None and args:
        models[0] = signatures.model_of(session.realize(args[0]).python_type())
    session.python(function, *models, **dict.fromkeys(kwargs))


def call_pure(session: Session, function: Any, args: Arguments, kwargs: Keywords) -> Value:
    """Calls a pure function for real, as all its arguments are known."""
    result = of_number_in_graph(session, function, args, kwargs)
    if result is not None:
        return result
    methods: tuple[str, ...] = ("__index__",)
    if function in _UNASKED:
        methods = ()
    elif function in _OF_FLOATS:
        methods = ("__float__", "__index__")
    known = map(functools.partial(_number_of, session, methods=methods), args)
    return session.wrap_result(function, *known, **map_values(session.known, kwargs))


def of_number_in_graph(
    session: Session, function: Any, args: Arguments, kwargs: Keywords
) -> Value | None:
    """The result of a pure function of constants and one symbolic number; None for all else."""
    numbers, before, after = list[Value](), list[Any](), list[Any]()
    for value in map(session.realize, args):
        if not isinstance(value, ConstantValue):
            numbers.append(value)
        elif numbers:
            after.append(value.object)
        else:
            before.append(value.object)
    if len(numbers) != 1 or kwargs or not numbers[0].in_graph:
        return None
    return numbers[0].applied(session, function, tuple(before), tuple(after))


_KINDS = {"__float__": float, "__index__": int}
_ASKS = {"__float__": float, "__index__": operator.index}


def _number_of(session: Session, value: Value, methods: tuple[str, ...]) -> Any:
    """The Python object of an argument; an instance that has one of these methods is asked for its
    number, unless it is such a number."""
    value = session.realize(value)
    if isinstance(value, ObjectValue):
        for name in methods:
            if not find_missing(value.cls, name):
                if isinstance(value, BuiltinObject) and issubclass(value.cls, _KINDS[name]):
                    return session.known(value.content)
                return session.known(session.call_builtin(_ASKS[name], value))
        return session.stand_in(value)
    return session.known(value)


def _unknown(session: Session, function: Any, unknown: NotConstant) -> Exception:
    value = unknown.args[0].describe()
    sentence = f"{public_name(function)}() needs the value of {value}, which only a call knows"
    return session.unsupported("unknown-value", sentence)


def special_first(session: Session, value: Value, name: str, *args: Value) -> Value | None:
    """What a special method of an instance gives; None for other values, and where its class has
    none."""
    if isinstance(value, ObjectValue):
        return value.special(session, name, *args)
    return None
