"""Calls of NumPy's functions that are one node, which calls NumPy when the graph runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ingot.capture.values.array_errors import refuse_modes
from ingot.capture.values.array_operands import asked_numpy, operand_of
from ingot.capture.values.arrays import ArrayValue, ScalarValue
from ingot.capture.values.base import Arguments, Keywords, NotConstant, Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.sequences import ListValue, TupleValue
from ingot.capture.values.tensor import TensorValue
from ingot.capture.values.tensor_lists import fakes_in
from ingot.graph.arrays.whole_calls import BY_RESULTS, FUNCTIONS, Results, results_of
from ingot.graph.geometry import has_symbols

if TYPE_CHECKING:
    from ingot.capture.session import Session

_NAMES = dict(zip(FUNCTIONS.values(), FUNCTIONS))
_PLAIN = frozenset({int, float, bool, str, type(None)})


def whole_call(session: Session, function: Any, args: Arguments, kwargs: Keywords) -> Value | None:
    """What a function gives that is called as a whole; None for all others."""
    name = _NAMES.get(function)
    if name is None:
        return None
    refuse_modes(session)
    if kwargs.keys() & {"out", "overwrite_input"}:
        raise session.unsupported("numpy", f"numpy.{name}(out=...)")
    arrays: list[Value] = []
    positional = tuple([*map(lambda value: _described(session, value, arrays), args)])
    named = []
    for keyword, value in kwargs.items():
        named.append((keyword, _described(session, value, arrays)))
    text = repr((positional, tuple(named)))
    results = _results(session, name, text, arrays)
    texts = map(ConstantValue, (name, text))
    given = session.call_function(BY_RESULTS[len(results.looks)], *texts, ListValue(arrays, list))
    tensors: Any = [given]
    if isinstance(given, TupleValue):
        tensors = given.items
    values: list[Value] = []
    for tensor, is_number in zip(tensors, results.are_numbers):
        values.append(ScalarValue(tensor) if is_number else ArrayValue(tensor))
    if results.cls is None:
        return values[0]
    return TupleValue(values, results.cls)


def _results(session: Session, name: str, text: str, arrays: list[Value]) -> Results:
    shapes, dtypes = [], []
    for fake in fakes_in(arrays):
        if has_symbols(fake.shape):
            raise session.unsupported("numpy", f"numpy.{name} of arrays of sizes that vary")
        shapes.append(tuple(fake.shape))
        dtypes.append(fake.dtype)
    try:
        return asked_numpy(  # type: ignore[no-any-return]
            session, results_of, name, text, tuple(shapes), tuple(dtypes)
        )
    except (KeyError, ArithmeticError) as error:
        raise session.unsupported("numpy", f"numpy.{name} in this form: {error}") from None


def _described(session: Session, value: Value, arrays: list[Value]) -> Any:
    """An argument as a literal; an array becomes its place among `arrays`."""
    value = session.realize(value)
    if isinstance(value, (ArrayValue, TensorValue)):
        if isinstance(value, TensorValue):
            raise session.unsupported("numpy", "a function of NumPy is given a tensor")
        tensor = operand_of(session, value).tensor
        assert tensor is not None
        arrays.append(session.call_function(torch.clone, tensor))
        return {len(arrays) - 1: None}
    if isinstance(value, (ListValue, TupleValue)):
        items = []
        for item in value.items:
            items.append(_described(session, item, arrays))
        return value.cls(items)
    try:
        constant = session.known(value)
    except NotConstant:
        constant = ...
    if hasattr(constant, "item"):
        constant = constant.item()
    if type(constant) not in _PLAIN or constant != constant or constant in (_INF, -_INF):
        raise session.unsupported("numpy", f"a function of NumPy is given {value.describe()}")
    return constant


_INF = float("inf")
