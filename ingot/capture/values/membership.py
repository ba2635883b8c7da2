"""`item in container` where the data decide: the answer is a bool that the graph computes."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch

from ingot.capture.values.base import LazyValue, Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.numbers import NumberValue, call, method
from ingot.capture.values.sequences import ListValue, TupleValue
from ingot.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from ingot.capture.session import Session

_CONSTANTS = (int, float, complex, str, type(None))


def answer_of_data(session: Session, container: Value, item: Value) -> Value | None:
    """Whether an item is in a container; None where capture has to know, or does."""
    if isinstance(container, TensorValue):
        return _in_tensor(session, container, item)
    if not isinstance(container, (ListValue, TupleValue)) or container.cls not in (list, tuple):
        return None
    if not any(map(_is_of_data, (item, *container.items))):
        return None
    elements = list(map(session.realize, container.items))
    if not all(map(_is_compared, (item, *elements))):
        return None
    answer: Value = ConstantValue(False)
    for element in elements:
        if session.same(element, item):
            return ConstantValue(True)
        is_equal = session.binary(operator.eq, element, item)
        if isinstance(is_equal, TensorValue):
            is_equal = is_equal.as_bool(session)
        answer = _either(session, answer, is_equal)
    return answer


def _in_tensor(session: Session, tensor: TensorValue, item: Value) -> Value | None:
    """What Tensor.__contains__ gives."""
    is_number = isinstance(item, ConstantValue) and isinstance(item.object, (int, float))
    if not is_number and not isinstance(item, TensorValue):
        return None
    return method(session, "any", call(session, operator.eq, item, tensor)).as_bool(session)


def _is_of_data(value: Value) -> bool:
    if isinstance(value, LazyValue):
        return isinstance(value.object, torch.Tensor)
    return isinstance(value, TensorValue) or type(value) is NumberValue


def _is_compared(value: Value) -> bool:
    """Whether its comparison with any other such value gives one truth, and no error."""
    if isinstance(value, TensorValue):
        return tuple(value.fake.shape) in ((), (1,))
    if isinstance(value, ConstantValue):
        return type(value.object) in (*_CONSTANTS, bool)
    return type(value) is NumberValue


def _either(session: Session, answer: Value, is_equal: Value) -> Value:
    """`answer or is_equal`."""
    for first, second in ((answer, is_equal), (is_equal, answer)):
        if isinstance(first, ConstantValue):
            if first.object:
                return first
            return second
    return session.binary(operator.or_, answer, is_equal)
