"""Calls of NumPy's functions with known arguments only: they are made during capture, and what they
give is a constant. An array is made of it anew at each call, as anybody may write it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ingot.capture.values.base import Arguments, Keywords, NotConstant, Value, map_values
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.sequences import ListValue, TupleValue
from ingot.graph.arrays.dtypes import TORCH_DTYPES

if TYPE_CHECKING:
    from ingot.capture.session import Session

MOST = 4096
"""Elements of an array that is a constant of the graph."""

_WRITERS = frozenset({np.copyto, np.put, np.place, np.putmask, np.fill_diagonal, np.put_along_axis})
_KNOWN = (int, float, complex, bool, str, type(None), np.generic, np.dtype, slice, type)


def called_for_real(
    session: Session, function: Callable[..., Any], args: Arguments, kwargs: Keywords
) -> Value | None:
    """What a function gives whose arguments are known; None where they are not, or where what it
    gives is too large."""
    values, named = list(map(session.realize, args)), session.realize_all(kwargs)
    if function in _WRITERS or "out" in kwargs:
        return None
    try:
        constant = partial(_constant, session)
        known = list(map(constant, map(session.deep, values)))
        known_named = map_values(constant, map_values(session.deep, named))
    except NotConstant:
        return None
    with np.errstate(all="raise"):
        try:
            result = session.python(function, *known, **known_named)
        except FloatingPointError as error:
            name = getattr(function, "__name__", "")
            raise session.unsupported("numpy", f"numpy.{name}() warns: {error}") from None
    if _shares_memory(result, known):
        return None
    return constant_value(session, result)


def _constant(session: Session, value: Value) -> Any:
    known = getattr(value, "known_elements", None)
    if known is not None:
        elements = known(session)
        if elements is not None:
            return elements
    return value.constant()


def _shares_memory(result: Any, known: Any) -> bool:
    """Whether there are arrays in both of which one may be a view of the other."""
    if isinstance(result, (list, tuple)):
        return any(map(partial(_shares_memory, known=known), result))
    if not isinstance(result, np.ndarray):
        return False
    return any(map(partial(np.may_share_memory, result), filter(_is_array, known)))


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray)


def constant_value(session: Session, result: Any) -> Value | None:
    """The value of what NumPy gave; None where there is none."""
    if type(result) is np.ndarray:
        return constant_array(session, result)
    if type(result) in (tuple, list):
        items = []
        for item in result:
            items.append(constant_value(session, item))
        if None in items:
            return None
        if type(result) is list:
            return ListValue(items, list)  # type: ignore[arg-type]
        return TupleValue(items, tuple)  # type: ignore[arg-type]
    if isinstance(result, _KNOWN):
        return session.wrap_constant(result)
    return None


def constant_array(session: Session, array: Any) -> Value | None:
    """A new array with known elements; None where there are too many, or none in a tensor."""
    from ingot.capture.values.arrays import ArrayValue  # whose operators call this

    if array.size > MOST or array.dtype not in TORCH_DTYPES:
        return None
    data = session.wrap_constant(array.ravel().tolist())
    dtype = ConstantValue(TORCH_DTYPES[array.dtype])
    tensor = session.call_function(torch.tensor, data, dtype=dtype, device=ConstantValue("cpu"))
    if array.ndim != 1:
        tensor = session.call_method("reshape", tensor, session.wrap_constant(array.shape))
    return ArrayValue(tensor)  # type: ignore[arg-type]
