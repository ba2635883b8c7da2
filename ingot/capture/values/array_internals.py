"""Objects of NumPy's that its own functions are written with: types of elements, broadcasting,
conversions of arguments, `flat`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ingot.capture.meanings import How, means
from ingot.capture.values.array_indexing import ReadOnlyArray
from ingot.capture.values.array_operands import (
    asked_numpy,
    operand_of,
    refused_by_numpy,
    result_dtype,
    tensor_in,
)
from ingot.capture.values.arrays import ArrayValue, ScalarValue
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.sequences import ListValue, SliceValue, TupleValue
from ingot.capture.values.tensor import TensorValue, is_none
from ingot.capture.values.wrap import WRAPPERS, wrap_as_constant
from ingot.graph.arrays import private

if TYPE_CHECKING:
    from ingot.capture.session import Session

WRAPPERS[type(private.no_value)] = wrap_as_constant


@means(np.dtype, how=How.INSTANCE)
def _make_dtype(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    known = list(map(session.known, args))
    named = {}
    for name, value in kwargs.items():
        named[name] = session.known(value)
    return session.wrap_constant(asked_numpy(session, cls, *known, **named))


# -- broadcasting ----------------------------------------------------------------------------------


class BroadcastValue(Value):
    """np.broadcast. Its elements are known where those of its arguments are."""

    __slots__ = ("elements", "sizes")

    def __init__(self, sizes: tuple[Any, ...], elements: list[Value] | None) -> None:
        super().__init__()
        self.sizes, self.elements = sizes, elements

    def python_type(self) -> type:
        return np.broadcast

    def get_attribute(self, session: Session, name: str) -> Value:
        if name == "shape":
            return session.wrap_constant(self.sizes)
        if name in ("ndim", "nd"):
            return ConstantValue(len(self.sizes))
        raise session.unsupported("numpy", f"numpy.broadcast.{name}")

    def iterate(self, session: Session) -> Value:
        if self.elements is None:
            raise session.unsupported("numpy", "iteration over numpy.broadcast of arrays")
        return session.iterate(TupleValue(self.elements, tuple))


@means(np.broadcast, how=How.INSTANCE)
def _make_broadcast(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    values = list(map(session.realize, args))
    if all(map(partial(_is_known, session), values)):
        broadcast = asked_numpy(session, np.broadcast, *map(session.known, values))
        elements = list(map(session.wrap_constant, broadcast))
        return BroadcastValue(broadcast.shape, elements)
    shapes = []
    for value in values:
        operand = operand_of(session, value)
        if operand.tensor is not None:
            shapes.append(tuple(operand.tensor.fake.shape))
    for shape in shapes:
        if torch.SymInt in map(type, shape):
            raise session.unsupported("numpy", "numpy.broadcast of sizes that vary")
    return BroadcastValue(asked_numpy(session, np.broadcast_shapes, *shapes), None)


def _is_known(session: Session, value: Value) -> bool:
    if isinstance(value, ArrayValue):
        return value.known_elements(session) is not None
    if isinstance(value, (ListValue, TupleValue)):
        return all(map(partial(_is_known, session), map(session.realize, value.items)))
    return value.is_constant()


@means("numpy.lib._stride_tricks_impl._broadcast_to", how=How.UNREALIZED)
def _broadcast_to(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    array, shape = map(session.realize, args[:2])
    operand = operand_of(session, array)
    tensor = tensor_in(session, operand, operand.strong)
    sizes: Any = shape
    if not isinstance(shape, (TupleValue, ListValue)):
        sizes = TupleValue([shape], tuple)
    sizes = TupleValue(map(session.realize, sizes.items), tuple)
    if any(map(_is_negative, sizes.items)):
        message = "all elements of broadcast shape must be non-negative"
        raise refused_by_numpy(session, ValueError(message))
    spread = session.call_method("expand", tensor, session.deep(sizes))
    return ReadOnlyArray(spread)  # type: ignore[arg-type]


def _is_negative(size: Value) -> bool:
    return isinstance(size, ConstantValue) and size.object < 0


@means("numpy.broadcast_shapes", how=How.UNREALIZED)
def _broadcast_shapes(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    shapes = map(session.known, args)
    return session.wrap_constant(asked_numpy(session, np.broadcast_shapes, *shapes))


# -- conversions of arguments ----------------------------------------------------------------------


class ConverterValue(Value):
    """What NumPy's functions make arrays of their arguments with."""

    __slots__ = ("args",)

    def __init__(self, args: list[Value]) -> None:
        super().__init__()
        self.args = args

    def python_type(self) -> type:
        cls: type = private.converter
        return cls

    def get_attribute(self, session: Session, name: str) -> Value:
        if name == "scalar_input":
            answers = list(map(_is_scalar, self.args))
            if len(answers) == 1:
                return ConstantValue(answers[0])
            return session.wrap_constant(tuple(answers))
        return super().get_attribute(session, name)

    def get_item(self, session: Session, key: Value) -> Value:
        return _as_array(session, self.args[session.known(key)])

    def iterate(self, session: Session) -> Value:
        return session.iterate(TupleValue(map(partial(_as_array, session), self.args), tuple))

    def method_as_arrays(
        self, session: Session, subok: Value | None = None, pyscalars: Value | None = None
    ) -> Value:
        policy = "convert_if_no_array"
        if pyscalars is not None:
            policy = session.known(pyscalars)
        are_numbers = all(map(_is_python_number, self.args))
        keeps = policy == "preserve" or policy == "convert_if_no_array" and not are_numbers
        results = []
        for arg in self.args:
            if keeps and _is_python_number(arg):
                results.append(arg)
            else:
                results.append(_as_array(session, arg))
        return TupleValue(results, tuple)

    def method_result_type(
        self,
        session: Session,
        extra_dtype: Value | None = None,
        ensure_inexact: Value | None = None,
    ) -> Value:
        operands = []
        for arg in self.args:
            operands.append(operand_of(session, arg))
        dtype = result_dtype(session, operands)
        if extra_dtype is not None and not is_none(extra_dtype):
            dtype = np.result_type(dtype, session.known(extra_dtype))
        if ensure_inexact is not None and session.known(ensure_inexact):
            dtype = np.result_type(dtype, 0.0)
        return session.wrap_constant(dtype)

    def method_wrap(self, session: Session, arr: Value, to_scalar: Value | None = None) -> Value:
        is_scalar = all(map(_is_scalar, self.args))
        if to_scalar is not None and not is_none(to_scalar):
            is_scalar = session.known(to_scalar)
        if is_scalar and isinstance(arr, ArrayValue) and not arr.tensor(session).fake.dim():
            return arr.get_item(session, TupleValue([], tuple))
        return arr


@means(private.converter, how=How.INSTANCE)
def _make_converter(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    values = list(map(session.realize, args))
    for value in values:
        if isinstance(value, TensorValue):
            raise session.unsupported("numpy", "a function of NumPy is given a tensor")
    return ConverterValue(values)


def _as_array(session: Session, value: Value) -> Value:
    return session.call_builtin(np.asarray, value)


def _is_scalar(value: Value) -> bool:
    return isinstance(value, ScalarValue) or not isinstance(
        value, (ArrayValue, ListValue, TupleValue)
    )


def _is_python_number(value: Value) -> bool:
    return value.python_type() in (int, float, complex)


# -- flat ------------------------------------------------------------------------------------------


class FlatValue(Value):
    """`flat` of an array: its elements in order."""

    __slots__ = ("array",)

    def __init__(self, array: ArrayValue) -> None:
        super().__init__()
        self.array = array

    def python_type(self) -> type:
        return np.flatiter

    def _elements(self, session: Session) -> ArrayValue:
        method = self.array.get_attribute(session, "reshape")
        return session.call(method, [ConstantValue(-1)], {})  # type: ignore[return-value]

    def length(self, session: Session) -> Any:
        return self._elements(session).length(session)

    def iterate(self, session: Session) -> Value:
        return self._elements(session).iterate(session)

    def get_item(self, session: Session, key: Value) -> Value:
        item = self._elements(session).get_item(session, key)
        if isinstance(item, ScalarValue) or not isinstance(item, ArrayValue):
            return item
        return ArrayValue(session.call_method("clone", item.tensor(session)))  # type: ignore[arg-type]

    def set_item(self, session: Session, key: Value, value: Value) -> None:
        key = session.realize(key)
        elements = self._elements(session)
        if not isinstance(key, (SliceValue, ConstantValue, ArrayValue)):
            raise session.unsupported("numpy", f"flat[{key.describe()}] is set")
        operand = operand_of(session, value)
        if operand.tensor is not None and operand.tensor.fake.numel() != 1:
            target = elements.get_item(session, key)
            count = target.tensor(session).fake.numel()  # type: ignore[attr-defined]
            if operand.tensor.fake.numel() != count or operand.rank != 1:
                raise session.unsupported("numpy", "flat is set to other numbers of elements")
        elif operand.tensor is not None:
            value = ArrayValue(session.call_method("reshape", operand.tensor, ConstantValue(())))  # type: ignore[arg-type]
        elements.set_item(session, key, value)
        if not self.array.tensor(session).fake.is_contiguous():
            whole = session.call_method(
                "reshape", elements.tensor(session), TupleValue(self.array.sizes(session), tuple)
            )
            session.call_method("copy_", self.array.tensor(session), whole)


@means(vars(np.ndarray)["flat"], how=How.METHOD)
def _flat(session: Session, array: ArrayValue, args: Arguments, kwargs: Keywords) -> Value:
    return FlatValue(array)
