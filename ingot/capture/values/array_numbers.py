"""NumPy's numbers from outside or known during capture: np.float64(2), an np.int64 argument."""

from __future__ import annotations

import operator
from types import MethodDescriptorType
from typing import TYPE_CHECKING, Any

import numpy as np

from ingot.capture.guards import Kind
from ingot.capture.meanings import How, means
from ingot.capture.sources import ConstSource, Source
from ingot.capture.values.array_operands import operand_of, tensor_in, torch_dtype
from ingot.capture.values.arrays import ScalarValue
from ingot.capture.values.base import (
    Arguments,
    Keywords,
    Leaf,
    NotConstant,
    Value,
)
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.known_calls import called_for_real, constant_value
from ingot.capture.values.wording import described
from ingot.capture.values.wrap import WRAPPERS, wrap_as_constant, wraps
from ingot.graph.arrays.dtypes import TORCH_DTYPES

if TYPE_CHECKING:
    from ingot.capture.session import Session


class NumpyNumber(ConstantValue):
    """A float, integer or truth value of NumPy's. An operation with a tensor takes it as the Python
    number that it holds; a function of torch may look at its type."""

    __slots__ = ()

    def argument(self, leaf: Leaf) -> Any:
        if type(self.object) is np.int64:
            return int(self.object)
        raise NotConstant(self)

    def as_operand(self, session: Session) -> ConstantValue:
        """The Python number that an operation with a tensor takes it for."""
        return ConstantValue(self.object.item())

    def get_attribute(self, session: Session, name: str) -> Value:
        attribute = session.python(getattr, self.object, name)
        if callable(attribute) and isinstance(vars(np.generic).get(name), MethodDescriptorType):
            return NumberMethod(self, name)
        if isinstance(attribute, np.ndarray):
            raise session.unsupported("numpy", f"{name} of a number")
        return super().get_attribute(session, name)

    def get_item(self, session: Session, key: Value) -> Value:
        item = session.python(operator.getitem, self.object, session.known(key))
        return constant_value(session, item) or super().get_item(session, key)


class NumberMethod(Value):
    """A method of a known number, bound to it."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: NumpyNumber, name: str) -> None:
        super().__init__()
        self.owner, self.name = owner, name

    def python_type(self) -> type:
        return type([].append)

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        method = getattr(self.owner.object, self.name)
        result = called_for_real(session, method, args, kwargs)
        if result is not None:
            return result
        operand = operand_of(session, self.owner)
        number = ScalarValue(tensor_in(session, operand, operand.dtype))
        return session.call(number.get_attribute(session, self.name), args, kwargs)


def number_in(number: Any) -> Any:
    """The Python number that one of NumPy's holds."""
    return number.item()


def _content(number: Any) -> tuple[str, bytes]:
    """What tells one number of NumPy's from another."""
    return number.dtype.str, number.tobytes()


@wraps(np.floating, np.integer, np.bool_)
def wrap_number(session: Session, object_: Any, source: Source) -> Value:
    if object_.dtype.itemsize > 8:
        raise session.unsupported("numpy", f"{described(type(object_).__name__, source)}")
    if isinstance(source, ConstSource):
        return NumpyNumber(object_, source)
    session.guard(source, Kind.TYPE, type(object_))
    if object_.dtype not in TORCH_DTYPES or object_.dtype.kind == "b":
        session.guard_derived(_content, object_, source)
        return NumpyNumber(object_, source)
    held = session.realize(session.wrap_derived(number_in, object_, source))
    if isinstance(held, ConstantValue):
        return NumpyNumber(object_, source)
    return ScalarValue(None, held, object_.dtype, source, object_)


WRAPPERS[np.dtype] = wrap_as_constant


@means(np.generic, how=How.INSTANCE)
def _make_number(session: Session, cls: Any, args: Arguments, kwargs: Keywords) -> Value:
    """np.float32(x) and the like."""
    if kwargs or not issubclass(cls, (np.floating, np.integer, np.bool_)) or len(args) > 1:
        raise session.unsupported("construction", f"a numpy.{cls.__name__} is made")
    values = list(map(session.realize, args))
    if values and not values[0].is_constant():
        return _computed(session, cls, values[0])
    number = session.python(cls, *map(session.known, values))
    if type(number) is not cls:
        raise session.unsupported(
            "numpy", f"numpy.{cls.__name__}() gives a {type(number).__name__}"
        )
    return session.wrap_constant(number)


def _computed(session: Session, cls: Any, value: Value) -> Value:
    """A number of NumPy's of one in the graph."""
    operand = operand_of(session, value)
    if operand.rank:
        raise session.unsupported("numpy", f"numpy.{cls.__name__}() of an array")
    torch_dtype(session, np.dtype(cls))
    if operand.size is not None and issubclass(cls, np.int64):
        return ScalarValue(None, operand.size, np.dtype(cls))
    return ScalarValue(tensor_in(session, operand, np.dtype(cls)))
