"""What functions of NumPy are given, as arrays or numbers of the graph, with NumPy's type."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from ingot.capture.values.arrays import (
    ArrayValue,
    ScalarValue,
    array_over,
    as_dtype,
    filled,
    refused_by_numpy,
    torch_dtype,
)
from ingot.capture.values.base import NotConstant, Value
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.numbers import NumberValue
from ingot.capture.values.sequences import ListValue, TupleValue
from ingot.capture.values.tensor import SymIntValue, TensorValue, is_none
from ingot.graph.arrays.dtypes import NUMPY_DTYPES

if TYPE_CHECKING:
    from ingot.capture.session import Session

_WEAK = (int, float, complex)


class Operand(NamedTuple):
    """An argument that NumPy takes for an array. `dtype` is its type, or that of a Python number,
    which has no say; `number` is a constant, else `tensor` or `size` is in the graph."""

    dtype: Any
    tensor: TensorValue | None = None
    number: Any = None
    size: SymIntValue | None = None

    @property
    def is_weak(self) -> bool:
        return isinstance(self.dtype, type)

    @property
    def strong(self) -> Any:
        """Its type where it stands alone."""
        return np.dtype(self.dtype)

    @property
    def rank(self) -> int:
        if self.tensor is None:
            return 0
        return self.tensor.fake.dim()


def operand_of(session: Session, value: Value) -> Operand:
    """An argument of a function of NumPy's. Breaks the graph for what is no array or number."""
    value = session.realize(value)
    if isinstance(value, (ListValue, TupleValue)):
        value = session.call_builtin(np.array, value)
    if isinstance(value, ScalarValue) and isinstance(value.held, SymIntValue):
        return Operand(value.dtype(session), size=value.held)
    if isinstance(value, ArrayValue):
        tensor = value.tensor(session)
        return Operand(NUMPY_DTYPES[tensor.fake.dtype], tensor)
    if isinstance(value, TensorValue):
        array = array_over(session, value)
        if array is not None:
            return operand_of(session, array)
    if isinstance(value, NumberValue):
        dtype: Any = value.cls
        if dtype is bool:
            dtype = np.dtype(bool)
        return Operand(dtype, value.tensor)
    if isinstance(value, SymIntValue):
        return Operand(int, size=value)
    try:
        number = value.constant()
    except NotConstant:
        number = None
    if isinstance(number, (np.number, np.bool_)) and number.dtype in NUMPY_DTYPES.values():
        return Operand(number.dtype, number=number)
    if type(number) is bool:
        return Operand(np.dtype(bool), number=np.bool_(number))
    if type(number) in _WEAK:
        return Operand(type(number), number=number)
    raise session.unsupported("numpy", f"a function of NumPy is given {value.describe()}")


def operands_of(session: Session, values: Iterable[Value]) -> list[Operand]:
    return list(map(partial(operand_of, session), values))


def result_dtype(session: Session, operands: Iterable[Operand]) -> Any:
    """The type in which arrays and numbers meet."""
    examples = []
    for operand in operands:
        example = operand.dtype
        if operand.is_weak:
            example = operand.dtype(0)
        examples.append(example)
    return asked_numpy(session, np.result_type, *examples)


def number_in(session: Session, operand: Operand, dtype: Any) -> Any:
    """The Python number that a constant is in a type of elements."""
    number = operand.number
    if operand.is_weak and np.dtype(dtype).kind in "iu":
        info = np.iinfo(dtype)
        if not info.min <= number <= info.max:
            message = f"Python integer {number} out of bounds for {dtype}"
            raise refused_by_numpy(session, OverflowError(message))
    with np.errstate(all="ignore"):
        return np.asarray(number).astype(dtype).item()


def tensor_in(session: Session, operand: Operand, dtype: Any) -> TensorValue:
    """An operand as a tensor of this type of elements."""
    target_dtype = torch_dtype(session, np.dtype(dtype))
    is_narrow = np.dtype(dtype).kind in "iu" and np.dtype(dtype) != np.int64
    if operand.is_weak and operand.number is None and is_narrow:
        # NumPy raises an error for one that does not fit
        raise session.unsupported("numpy", f"an integer that varies, as {dtype}")
    if operand.tensor is not None:
        return as_dtype(session, operand.tensor, target_dtype)
    if operand.size is not None:
        tensor = filled(session, operand.size, torch.int64)
        return as_dtype(session, tensor, target_dtype)
    return filled(session, ConstantValue(number_in(session, operand, dtype)), target_dtype)


def tensors_in(session: Session, operands: Iterable[Operand], dtype: Any) -> list[TensorValue]:
    """Operands as tensors of one type of elements."""
    return list(map(partial(tensor_in, session, dtype=dtype), operands))


def asked_numpy(session: Session, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What a function of NumPy's gives for real; the program raises what it raises."""
    try:
        return function(*args, **kwargs)
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        if type(error) not in (TypeError, ValueError, IndexError, OverflowError):
            raise refused_by_numpy(session, error) from None
        raise session.raised(type(error), str(error)) from None


def dtype_of(session: Session, value: Value | None) -> Any:
    """The type that an argument `dtype` names; None where it is left out."""
    if value is None:
        return None
    value = session.realize(value)
    if is_none(value):
        return None
    named = session.known(value)
    if isinstance(named, type) and issubclass(named, np.dtype):
        return asked_numpy(session, named)
    return asked_numpy(session, np.dtype, named)


def default(value: Value | None, instead: Any = None) -> Value:
    """An argument, or what stands for it where it is left out."""
    if value is None:
        return NONE if instead is None else ConstantValue(instead)
    return value
