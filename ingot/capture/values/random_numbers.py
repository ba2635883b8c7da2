"""Draws from Python's global random generator: `random.random()`, `random.randint(1, 6)`.

A draw is an op of the graph, and its result a number that only the running program knows. So each
call changes the generator's state as eager does, and nothing is compiled for a drawn number.
"""

from __future__ import annotations

import ast
import random
from types import FunctionType
from typing import TYPE_CHECKING, Any

from ingot.capture.guards import Kind
from ingot.capture.meanings import How, means
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.functions import FunctionValue
from ingot.capture.values.numbers import HELD_AS, NumberValue
from ingot.capture.values.sequences import ListValue, TupleValue
from ingot.capture.values.tensor import TensorValue
from ingot.graph import python_random
from ingot.wrapped import is_transformed

if TYPE_CHECKING:
    from ingot.capture.session import Session

_LARGEST = 1 << 62

_CAPTURED = frozenset(
    """
    random getrandbits uniform randint randrange choice gauss normalvariate expovariate seed
    """.split()
)
"""Methods whose errors follow from their arguments, whatever is drawn."""

_OTHERS = frozenset(
    """
    shuffle sample choices triangular betavariate binomialvariate gammavariate lognormvariate
    paretovariate vonmisesvariate weibullvariate randbytes getstate setstate
    """.split()
)


def _is_global(session: Session, args: Arguments) -> bool:
    """Whether a method is called on the generator that the functions of `random` share."""
    if not args:
        return False
    generator = session.realize(args[0])
    if generator.identity() is not python_random.GENERATOR or generator.source is None:
        return False
    session.guard(generator.source, Kind.IDENTITY, python_random.GENERATOR)
    return True


def _refused(session: Session, name: str, why: str) -> Exception:
    function = getattr(random, name, None)
    return session.unsupported("python-random", f"random.{name}(){why}", of=function)


def _plain(session: Session, name: str, value: Value) -> Any:
    """The constant that an argument is."""
    value = session.realize(value)
    if isinstance(value, ConstantValue):
        return value.object
    if isinstance(value, (ListValue, TupleValue)) and value.cls in (list, tuple):
        items = []
        for item in value.items:
            items.append(_plain(session, name, item))
        return value.cls(items)
    raise _refused(session, name, f" is given {value.describe()}")


def _draw(session: Session, name: str, args: Arguments, kwargs: Keywords) -> Value:
    """What a method of the global generator gives."""
    if name not in _CAPTURED or is_transformed():
        raise _refused(session, name, " is called")
    known: list[Any] = []
    for value in args:
        known.append(_plain(session, name, value))
    named = {}
    for key, value in kwargs.items():
        named[key] = _plain(session, name, value)
    arguments = repr((tuple(known), named))
    if not _is_read_alike(arguments):
        raise _refused(session, name, " is given arguments that text does not stand for")
    # a generator of its own shows the errors, and the type of the result
    result = session.python(getattr(random.Random(0), name), *known, **named)
    texts = ConstantValue(name), ConstantValue(arguments)
    if name == "seed":
        session.call_function(python_random.seed, ConstantValue(arguments))
        return NONE
    cls = type(result)
    if cls not in HELD_AS or not _fits(name, cls, known, named):
        raise _refused(session, name, f" may give a {cls.__name__} that no tensor holds")
    dtype = ConstantValue(HELD_AS[cls])
    number = session.call_function(python_random.draw, *texts, dtype)
    assert isinstance(number, TensorValue)
    return NumberValue(cls, number)


def _is_read_alike(arguments: str) -> bool:
    try:
        return repr(ast.literal_eval(arguments)) == arguments
    except (ValueError, SyntaxError):
        return False


def _fits(name: str, cls: type, known: list[Any], named: dict[str, Any]) -> bool:
    """Whether all that may be drawn is of a type, and fits 64 bits."""
    if cls is float and name != "choice":
        return True
    numbers = [*known, *named.values()]
    if name == "choice":
        (numbers,) = numbers
        if set(map(type, numbers)) != {cls}:
            return False
    elif name == "getrandbits":
        return max(numbers) < 63
    return cls is not int or max(map(abs, filter(None, numbers)), default=0) < _LARGEST


class _Draw(Value):
    """A method of the global generator."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def describe(self) -> str:
        return f"random.{self.name}"

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        return _draw(session, self.name, args, kwargs)


def _state_meaning(name: str) -> None:
    """States what a method of the global generator means. That of another generator is inlined, if
    it is written in Python."""
    method: Any = getattr(random.Random, name)

    def rule(session: Session, args: Arguments, kwargs: Keywords) -> Any:
        if _is_global(session, args):
            return _Draw(name), args[1:], kwargs
        return None

    def otherwise(session: Session, args: Arguments, kwargs: Keywords) -> Value:
        if isinstance(method, FunctionType):
            function = session.builtin(method)
            assert isinstance(function, FunctionValue)
            return session.inline(function, args, kwargs)
        raise session.unsupported("python-random", f"{name}() of a random.Random of the program")

    def in_c(session: Session, args: Arguments, kwargs: Keywords) -> Value:
        if _is_global(session, args):
            return _draw(session, name, args[1:], kwargs)
        return otherwise(session, args, kwargs)

    if isinstance(method, FunctionType):
        means(method, how=How.FORWARD, otherwise=otherwise)(rule)
    else:
        means(method, how=How.UNREALIZED)(in_c)


for _name in (*_CAPTURED, *_OTHERS):
    if hasattr(random.Random, _name):  # binomialvariate came with Python 3.12
        _state_meaning(_name)
