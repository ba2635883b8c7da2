"""What calls of built-in functions mean: a rule for each, on values that are used.

Nothing is imported from here: the rules are found by way of `meaning_of`.
"""

from __future__ import annotations

import builtins
import cmath
import math
import operator
import os
import typing
from types import FunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any

from ingot.capture import iterators, polyfills
from ingot.capture.guards import MISSING, class_attribute
from ingot.capture.meanings import means, means_pure
from ingot.capture.values.base import (
    NULL,
    NotConstant,
    Raised,
    Value,
    constants,
    find_missing,
    is_c_class,
    is_not_implemented,
    map_values,
    type_name,
)
from ingot.capture.values.builtins import call_pure, of_number_in_graph, special_first
from ingot.capture.values.constant import NONE, ConstantValue, as_value
from ingot.capture.values.functions import GeneratorValue
from ingot.capture.values.membership import answer_of_data
from ingot.capture.values.objects import ObjectValue, plain_base
from ingot.capture.values.sequences import RangeIterator
from ingot.capture.values.subclasses import SEQUENCES
from ingot.errors import Unsupported

if TYPE_CHECKING:
    from ingot.capture.session import Session


# -- what the polyfills ask ------------------------------------------------------------------------


@means(polyfills.fails)
def fails(session: Session, function: Value, *args: Value, **kwargs: Value) -> Value:
    known = list(map(session.stand_in, args))
    session.python(function.constant(), *known, **map_values(session.stand_in, kwargs))
    raise session.unsupported(
        "argument-kind", f"{function.describe()} is given arguments that it may refuse"
    )


_PLAIN = frozenset({int, float, bool, str, bytes, type(None)})


def _is_plain(value: Any) -> bool:
    return type(value) in _PLAIN or type(value) is tuple and all(map(_is_plain, value))


@means(polyfills.ranking)
def ranking(session: Session, ranks: Value, reverse: Value) -> Value:
    try:
        known = constants(session.realized_items(ranks))
    except NotConstant:
        return NONE
    if not all(map(_is_plain, known)):
        return NONE
    order = session.python(
        sorted, range(len(known)), key=known.__getitem__, reverse=session.truth(reverse)
    )
    return session.wrap_constant(order)


class _Unanswered(Exception):
    """list.sort compares the elements at two positions."""


@means(polyfills.sorting)
def sorting(session: Session, ranks: Value, reverse: Value, answers: Value) -> Value:
    known = iter(session.known(answers))

    def less(i: int, j: int) -> bool:
        answer = next(known, "")
        if not answer:
            raise _Unanswered(i, j)
        return answer == "1"

    count, reverses = len(session.unpacked(ranks)), session.truth(reverse)
    try:
        order = polyfills.sorted_positions(count, reverses, less)
    except _Unanswered as question:
        return session.wrap_constant((None, *question.args))
    return session.wrap_constant((order, 0, 0))


@means(polyfills.is_number)
def is_number(session: Session, value: Value) -> Value:
    return ConstantValue(value.is_constant() and type(value.constant()) in (int, float, bool))


@means(polyfills.sum_of_numbers)
def sum_of_numbers(session: Session, numbers: Value, start: Value) -> Value:
    return session.wrap_result(sum, session.known(numbers), session.known(start))


# -- questions -------------------------------------------------------------------------------------


@means(builtins.len)
def len_(session: Session, value: Value) -> Value:
    return as_value(value.length(session))


@means(builtins.callable)
def callable_(session: Session, value: Value) -> Value:
    return ConstantValue(not find_missing(value.python_type(), "__call__"))


def _name(session: Session, name: Value, function: Any) -> str:
    if not issubclass(name.python_type(), str):
        session.python(function, None, session.refused(name))
    text = session.known(name)
    if type(text) is not str:
        raise session.unsupported(
            "library-function", f"{function.__name__}() of a name that is no plain str"
        )
    return text


@means(builtins.hasattr)
def hasattr_(session: Session, value: Value, name: Value) -> Value:
    try:
        value.get_attribute(session, _name(session, name, hasattr))
    except Raised as raised:
        if raised.is_a(AttributeError):
            return ConstantValue(False)
        raise
    except Unsupported:
        if not _is_native_method(value, session.known(name)):
            raise
    return ConstantValue(True)


def _is_native_method(value: Value, name: str) -> bool:
    """Whether an attribute is a method of a class written in C, which every instance has."""
    cls = value.python_type()
    if cls.__getattribute__ is not object.__getattribute__ and not is_c_class(cls):
        return False
    raw = class_attribute(cls, name)
    return isinstance(raw, (MethodDescriptorType, WrapperDescriptorType, str))


@means(builtins.getattr)
def getattr_(session: Session, value: Value, name: Value, default: Value = NULL) -> Value:
    try:
        return value.get_attribute(session, _name(session, name, getattr))
    except Raised as raised:
        if default is not NULL and raised.is_a(AttributeError):
            return default
        raise


@means(builtins.setattr)
def setattr_(session: Session, owner: Value, name: Value, value: Value) -> Value:
    owner.set_attribute(session, session.known(name), value)
    return NONE


@means(builtins.delattr)
def delattr_(session: Session, owner: Value, name: Value) -> Value:
    owner.delete_attribute(session, session.known(name))
    return NONE


@means(object.__setattr__)
def object_setattr(session: Session, owner: Value, name: Value, value: Value) -> Value:
    if isinstance(owner, ObjectValue):
        owner.assign(session, session.known(name), value)
    else:
        owner.set_attribute(session, session.known(name), value)
    return NONE


@means(object.__delattr__)
def object_delattr(session: Session, owner: Value, name: Value) -> Value:
    if isinstance(owner, ObjectValue):
        owner.drop(session, session.known(name))
    else:
        owner.delete_attribute(session, session.known(name))
    return NONE


@means(object.__getattribute__)
def object_getattribute(session: Session, owner: Value, name: Value) -> Value:
    if not isinstance(owner, ObjectValue):
        return owner.get_attribute(session, session.known(name))
    value = owner.plain_attribute(session, session.known(name))
    if value is None:
        raise owner.attribute_error(session, session.known(name))
    return value


# -- what object has -------------------------------------------------------------------------------


@means(object.__init__, object.__init_subclass__)
def object_init(session: Session, *args: Value, **kwargs: Value) -> Value:
    return NONE


@means(object.__eq__)
def object_eq(session: Session, a: Value, b: Value) -> Value:
    return ConstantValue(session.same(a, b) or NotImplemented)


@means(object.__ne__)
def object_ne(session: Session, a: Value, b: Value) -> Value:
    answer = session.call(a.get_attribute(session, "__eq__"), [b], {})
    if is_not_implemented(answer):
        return answer
    return ConstantValue(not session.truth(answer))


@means(*map(vars(object).get, ("__lt__", "__le__", "__gt__", "__ge__")))
def object_order(session: Session, a: Value, b: Value) -> Value:
    return ConstantValue(NotImplemented)


@means(object.__str__)
def object_str(session: Session, value: Value) -> Value:
    return ConstantValue(session.text_of(value, repr))


@means(object.__format__)
def object_format(session: Session, value: Value, spec: Value) -> Value:
    if session.known(spec):
        kind = type_name(value.python_type())
        raise session.raised(TypeError, f"unsupported format string passed to {kind}.__format__")
    return ConstantValue(session.text_of(value, str))


@means(builtins.dir)
def dir_(session: Session, *values: Value) -> Value:
    if not values:
        return session.list_of(session.call_builtin(sorted, locals_(session)))
    (value,) = values
    answer = special_first(session, value, "__dir__")
    if answer is not None:
        return session.call_builtin(sorted, answer)
    if not isinstance(value, ObjectValue):
        return session.wrap_result(dir, session.known(value))
    names = {*dir(value.cls), *value.attributes}
    if value.source is not None:
        raise session.unsupported("library-function", f"dir() of {value.describe()}")
    return session.wrap_constant(sorted(names))


@means(builtins.vars)
def vars_(session: Session, value: Value | None = None) -> Value:
    if value is None:
        return locals_(session)
    try:
        return value.get_attribute(session, "__dict__")
    except Raised as raised:
        if raised.is_a(AttributeError):
            raise session.raised(
                TypeError, "vars() argument must have __dict__ attribute"
            ) from None
        raise


@means(builtins.locals)
def locals_(session: Session) -> Value:
    """A new dict at each call, as it is from Python 3.13 on."""
    frame = session.frames[-1]
    if frame.names is not None:
        raise session.unsupported("class-definition", "locals() of a class that is defined")
    variables = {}
    for name, value in zip(frame.program.names, frame.slots):
        content = getattr(value, "content", value)
        if content is not NULL and value is not NULL and not name.startswith("."):
            variables[name] = content
    return session.dict_of_values(variables)


@means(builtins.globals)
def globals_(session: Session) -> Value:
    return session.wrap_constant(session.frames[-1].function.namespace)


@means(builtins.hash)
def hash_(session: Session, value: Value) -> Value:
    raw = MISSING
    if isinstance(value, ObjectValue):
        raw = session.class_lookup(value.cls, "__hash__")
    if isinstance(raw, FunctionType):
        answer = session.realize(session.call_member(raw, value))
        if not issubclass(answer.python_type(), int):
            raise session.raised(TypeError, "__hash__ method should return an integer")
        return ConstantValue(hash(_Hashed(session.known(answer))))
    if (
        raw is None
        or find_missing(value.python_type(), "__hash__")
        or value.python_type().__hash__ is None
    ):
        raise session.raised(TypeError, f"unhashable type: '{type_name(value.python_type())}'")
    if raw is not object.__hash__:
        # of an instance of a subclass of a built-in class
        value = getattr(value, "content", None) or value
    return ConstantValue(session.python(hash, session.known(value)))


class _Hashed:
    """Hashes to what a `__hash__` gave, shortened as Python does."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __hash__(self) -> int:
        return self.number


@means(builtins.id)
def id_(session: Session, value: Value) -> Value:
    return session.identity_number(value)


# -- operators -------------------------------------------------------------------------------------


@means(operator.getitem)
def getitem(session: Session, owner: Value, key: Value) -> Value:
    return session.get_item(owner, key)


@means(operator.contains)
def contains(session: Session, container: Value, item: Value) -> Value:
    return answer_of_data(session, container, item) or ConstantValue(
        session.contains(container, item)
    )


@means(operator.setitem)
def setitem(session: Session, owner: Value, key: Value, value: Value) -> Value:
    owner.set_item(session, key, value)
    return NONE


@means(operator.delitem)
def delitem(session: Session, owner: Value, key: Value) -> Value:
    owner.delete_item(session, key)
    return NONE


@means(operator.is_)
def is_(session: Session, a: Value, b: Value) -> Value:
    return ConstantValue(session.same(a, b))


@means(operator.is_not)
def is_not(session: Session, a: Value, b: Value) -> Value:
    return ConstantValue(not session.same(a, b))


@means(operator.not_)
def not_(session: Session, value: Value) -> Value:
    return session.negation(value)


_NO_LENGTH = ConstantValue(0)


@means(operator.length_hint)
def length_hint(session: Session, obj: Value, default: Value = _NO_LENGTH) -> Value:
    if not issubclass(default.python_type(), int):
        session.python(operator.length_hint, None, session.refused(default))
    if not find_missing(obj.python_type(), "__len__"):
        length = session.unless_type_error(lambda session: len_(session, obj))
        if length is not None:
            return length
    if find_missing(obj.python_type(), "__length_hint__"):
        return default
    if not isinstance(obj, ObjectValue):
        raise session.unsupported("operator", f"operator.length_hint() of {obj.describe()}")
    return session.ask_hint(obj) or default


@means(operator.concat)
def concat(session: Session, a: Value, b: Value) -> Value:
    kind, name = plain_base(a.python_type()), "__add__"
    if kind in SEQUENCES and not (isinstance(a, ObjectValue) and a.overrides(session, name)):
        left, right = getattr(a, "content", a), getattr(b, "content", b)
        result = left.binary(session, operator.add, right, False)
        if result is None:
            session.python(operator.concat, session.refused(a), session.refused(b))
            raise session.unsupported(
                "operator", f"operator.concat() of {a.describe()} and {b.describe()}"
            )
        return result
    if not (_is_sequence(a.python_type()) and _is_sequence(b.python_type())):
        named = type_name(a.python_type())
        raise session.raised(TypeError, f"'{named}' object can't be concatenated")
    return session.binary(operator.add, a, b)


def _is_sequence(cls: type) -> bool:
    """PySequence_Check."""
    return not issubclass(cls, dict) and not find_missing(cls, "__getitem__")


if hasattr(operator, "call"):

    @means(operator.call)
    def call(session: Session, function: Value, *args: Value, **kwargs: Value) -> Value:
        return session.call(function, args, kwargs)


@means(builtins.pow)
def pow_(session: Session, base: Value, exp: Value, mod: Value = NONE) -> Value:
    if mod.identity() is None:
        return session.binary(operator.pow, base, exp)
    answer = special_first(session, base, "__pow__", exp, mod)
    if answer is not None:
        return answer
    return session.wrap_constant(session.really(pow, [base, exp, mod], {}))


_OBJECTS = (ConstantValue, ObjectValue)


def _is_real(value: Value) -> bool:
    return issubclass(value.python_type(), (int, float))


@means(builtins.divmod)
def divmod_(session: Session, a: Value, b: Value) -> Value:
    for owner, name, other in ((a, "__divmod__", b), (b, "__rdivmod__", a)):
        answer = special_first(session, owner, name, other)
        if answer is not None and not is_not_implemented(answer):
            return answer
    are_objects = isinstance(a, _OBJECTS) and isinstance(b, _OBJECTS)
    if not are_objects and _is_real(a) and _is_real(b):
        quotient = session.binary(operator.floordiv, a, b)
        return session.tuple_of_values([quotient, session.binary(operator.mod, a, b)])
    return session.wrap_constant(session.really(divmod, [a, b], {}))


@means(builtins.round)
def round_(session: Session, number: Value, ndigits: Value = NONE) -> Value:
    if ndigits.identity() is None:
        digits = []
    else:
        digits = [ndigits]
    answer = special_first(session, number, "__round__", *digits)
    if answer is not None:
        return answer
    result = of_number_in_graph(session, round, [number, *digits], {})
    return result or session.wrap_constant(session.really(round, [number, *digits], {}))


def _to_integer(function: Any, name: str) -> None:
    @means(function)
    def convert(session: Session, number: Value) -> Value:
        return special_first(session, number, name) or call_pure(session, function, [number], {})


_to_integer(math.floor, "__floor__")
_to_integer(math.ceil, "__ceil__")
_to_integer(math.trunc, "__trunc__")


@means(operator.index)
def index(session: Session, value: Value) -> Value:
    if value.is_symbolic and value.python_type() is int:
        return value
    return ConstantValue(operator.index(session.integer(value)))


@means(builtins.format)
def format_(session: Session, value: Value, spec: Value | None = None) -> Value:
    if spec is not None and not issubclass(spec.python_type(), str):
        session.python(format, "", session.refused(spec))
    return ConstantValue(session.format_of(value, "" if spec is None else session.known(spec)))


@means(builtins.repr)
def repr_(session: Session, value: Value) -> Value:
    return ConstantValue(session.text_of(value, repr))


@means(builtins.ascii)
def ascii_(session: Session, value: Value) -> Value:
    return ConstantValue(session.text_of(value, ascii))


# -- iterators -------------------------------------------------------------------------------------


@means(builtins.iter)
def iter_(session: Session, value: Value, sentinel: Value = NULL) -> Value:
    if sentinel is NULL:
        return value.iterate(session)
    if find_missing(value.python_type(), "__call__"):
        session.really(iter, [value, sentinel], {})
    return session.call_builtin(iterators.calls_until, value, sentinel)


@means(builtins.next)
def next_(session: Session, iterator: Value, default: Value = NULL) -> Value:
    if default is not NULL:
        return iterator.next(session) or default
    if isinstance(iterator, ObjectValue):
        return iterator.step(session)
    element = iterator.next(session)
    if element is not None:
        return element
    if isinstance(iterator, GeneratorValue):
        raise iterator.stopped(session)
    raise session.raised(StopIteration)


@means(range.__reversed__)
def reversed_range(session: Session, value: Value) -> Value:
    return RangeIterator(iter(session.known(value)[::-1]))


# -- typing ----------------------------------------------------------------------------------------


@means(typing.cast)
def cast(session: Session, typ: Value, val: Value) -> Value:
    return val


# -- pure functions --------------------------------------------------------------------------------

means_pure(bin, chr, hex, oct, ord)
means_pure(str.maketrans, bytes.maketrans, os.fspath)
for _module in (math, cmath):  # all of their functions that have no rule and no polyfill
    means_pure(*(f for n, f in vars(_module).items() if callable(f) and not n.startswith("_")))
