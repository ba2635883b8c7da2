"""Calls with DTensors and numbers that only the running program knows.

An optimizer that counts its steps makes such calls. A tensor of rank 0 holds the number, which to
DTensors is replicated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.number_arguments import with_number
from ingot.capture.values.numbers import NumberValue
from ingot.capture.values.tensor import TensorValue
from ingot.capture.values.wrapper_objects import NUMBER_RULES
from ingot.graph.dtensors import is_dtensor_class

if TYPE_CHECKING:
    from ingot.capture.session import Session


def _with_number(session: Session, name: str, args: Arguments, kwargs: Keywords) -> Value | None:
    values = (*args, *kwargs.values())
    if not any(map(_is_dtensor, values)) or not any(map(_is_number, values)):
        return None
    result = with_number(session, name, args, kwargs)
    if not isinstance(result, TensorValue):
        return result
    if name.endswith("_"):
        session.graph.writes = True
    return session.graph.objects[id(result.fake)]


def _is_dtensor(value: Value) -> bool:
    return isinstance(value, TensorValue) and is_dtensor_class(type(value.fake))


def _is_number(value: Value) -> bool:
    return isinstance(value, NumberValue)


NUMBER_RULES.append(_with_number)
