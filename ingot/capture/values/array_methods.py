"""Methods of NumPy's arrays and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ingot.capture.meanings import How, means
from ingot.capture.values.array_functions import dot_rule
from ingot.capture.values.array_indexing import ReadOnlyArray, permuted
from ingot.capture.values.array_operands import (
    as_dtype,
    asked_numpy,
    dtype_of,
    operand_of,
    tensors_in,
    torch_dtype,
)
from ingot.capture.values.array_ufuncs import axes_of, write_into
from ingot.capture.values.arrays import (
    ArrayValue,
    ScalarValue,
    refused_by_numpy,
    result_of,
)
from ingot.capture.values.base import Arguments, Keywords, NotConstant, Value
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.sequences import ListValue, SliceValue, TupleValue
from ingot.capture.values.tensor import TensorValue, is_none
from ingot.graph.arrays import functions, methods, private

if TYPE_CHECKING:
    from ingot.capture.session import Session


def _method(*names: str) -> Any:
    """States the rule of methods, whose parameters are NumPy's."""

    def state(rule: Any) -> Any:
        @means(*map(vars(np.ndarray).__getitem__, names), how=How.METHOD)
        def carry_out(
            session: Session, array: ArrayValue, args: Arguments, kwargs: Keywords
        ) -> Value:
            values, named = list(map(session.realize, args)), session.realize_all(kwargs)
            try:
                result: Value = rule(session, array, *values, **named)
            except NotConstant as unknown:
                value = unknown.args[0]
                raise session.unsupported(
                    "numpy", f"numpy.ndarray.{names[0]} is given {value.describe()}"
                ) from None
            return result

        return rule

    return state


def _in_python(name: str, function: Any) -> None:
    """States that a method is a function that NumPy has written in Python."""

    @_method(name)
    def rule(session: Session, array: ArrayValue, *args: Value, **kwargs: Value) -> Value:
        return session.call(session.builtin(function), [array, *args], kwargs)


for _name in ("sum", "prod", "max", "min", "any", "all", "mean", "std", "var", "clip"):
    _implementation = {"max": "_amax", "min": "_amin"}.get(_name, f"_{_name}")
    _in_python(_name, private.method_in_python(_implementation))


def _view(session: Session, tensor: Any) -> Value:
    return ArrayValue(tensor)


def _refuse_out(session: Session, out: Value | None) -> None:
    if out is not None and not is_none(out):
        raise session.unsupported("numpy", "out= of a method of arrays")


# -- shapes ----------------------------------------------------------------------------------------


def _order(session: Session, order: Value | None) -> str:
    if order is None:
        return "C"
    name = session.known(order)
    if name not in ("C", "F"):
        raise session.unsupported("numpy", f"order={name!r}")
    return name  # type: ignore[no-any-return]


@_method("reshape")
def _reshape(
    session: Session,
    array: ArrayValue,
    *shape: Value,
    order: Value | None = None,
    copy: Value | None = None,
) -> Value:
    if copy is not None and not is_none(copy):
        raise session.unsupported("numpy", "numpy.ndarray.reshape(copy=...)")
    sizes: Any = map(_as_integer, _integers(session, shape))
    sizes = session.deep(TupleValue(sizes, tuple))
    tensor = array.tensor(session)
    if isinstance(array, ScalarValue):
        tensor = session.call_method("clone", tensor)  # type: ignore[assignment]
    if _order(session, order) == "F":
        return _view(session, session.call_function(methods.reshape_in_columns, tensor, sizes))
    return _view(session, session.call_method("reshape", tensor, sizes))


def _integers(session: Session, values: Sequence[Value]) -> Sequence[Value]:
    """Sizes or dimensions that are given one by one, or as one sequence."""
    if len(values) == 1 and isinstance(values[0], (TupleValue, ListValue)):
        return list(map(session.realize, values[0].items))
    if len(values) == 1 and type(values[0]) is ArrayValue and values[0].sizes(session):
        return session.unpacked(session.iterate(values[0]))
    return values


def _as_integer(value: Value) -> Value:
    if isinstance(value, ConstantValue) and isinstance(value.object, np.integer):
        return ConstantValue(int(value.object))
    return value


@_method("ravel")
def _ravel(session: Session, array: ArrayValue, order: Value | None = None) -> Value:
    if order is not None and session.known(order) in ("K", "A"):
        return _view(
            session, session.call_function(functions.ravel_in_memory, array.tensor(session))
        )
    return _reshape(session, array, ConstantValue(-1), order=order)  # type: ignore[no-any-return]


@_method("flatten")
def _flatten(session: Session, array: ArrayValue, order: Value | None = None) -> Value:
    flat = _reshape(session, array, ConstantValue(-1), order=order)
    return _view(session, session.call_method("clone", flat.tensor(session)))


@_method("transpose")
def _transpose(session: Session, array: ArrayValue, *axes: Value) -> Value:
    if not axes or is_none(axes[0]):
        return permuted(session, array, list(reversed(range(array.tensor(session).fake.dim()))))
    dims = []
    for axis in _integers(session, axes):
        dims.append(int(session.integer(axis)))
    return permuted(session, array, dims)


@_method("swapaxes")
def _swapaxes(session: Session, array: ArrayValue, axis1: Value, axis2: Value) -> Value:
    rank = array.tensor(session).fake.dim()
    dims = list(range(rank))
    ((first,), (second,)) = map(partial(axes_of, session, rank=rank, instead=None), (axis1, axis2))
    dims[first], dims[second] = second, first
    return permuted(session, array, dims)


@_method("squeeze")
def _squeeze(session: Session, array: ArrayValue, axis: Value | None = None) -> Value:
    tensor = array.tensor(session)
    dims = []
    for dim in axes_of(session, axis, tensor.fake.dim(), None):
        if tensor.fake.shape[dim] == 1:
            dims.append(dim)
        elif axis is not None and not is_none(axis):
            message = "cannot select an axis to squeeze out which has size not equal to one"
            raise refused_by_numpy(session, ValueError(message))
    return _view(
        session, session.call_method("squeeze", tensor, session.wrap_constant(tuple(dims)))
    )


@_method("diagonal")
def _diagonal(
    session: Session,
    array: ArrayValue,
    offset: Value | None = None,
    axis1: Value | None = None,
    axis2: Value | None = None,
) -> Value:
    args = (offset or ConstantValue(0), axis1 or ConstantValue(0), axis2 or ConstantValue(1))
    diagonal = session.call_method("diagonal", array.tensor(session), *args)
    return ReadOnlyArray(diagonal)  # type: ignore[arg-type]


@_method("trace")
def _trace(
    session: Session,
    array: ArrayValue,
    offset: Value | None = None,
    axis1: Value | None = None,
    axis2: Value | None = None,
    dtype: Value | None = None,
    out: Value | None = None,
) -> Value:
    diagonal = _diagonal(session, array, offset, axis1, axis2)
    named = {"axis": ConstantValue(-1), "dtype": dtype or NONE, "out": out or NONE}
    method = diagonal.get_attribute(session, "sum")
    return session.call(method, [], named)


@_method("repeat")
def _repeat(
    session: Session, array: ArrayValue, repeats: Value, axis: Value | None = None
) -> Value:
    count = session.known(repeats)
    if not isinstance(count, (int, np.integer)):
        raise session.unsupported("numpy", "numpy.repeat by different numbers")
    tensor, dim = array.tensor(session), 0
    if axis is None or is_none(axis):
        tensor = session.call_method("reshape", tensor, ConstantValue(-1))  # type: ignore[assignment]
    else:
        (dim,) = axes_of(session, axis, tensor.fake.dim(), None)
    args = map(ConstantValue, (int(count), dim))
    return _view(session, session.call_method("repeat_interleave", tensor, *args))


# -- copies and types ------------------------------------------------------------------------------


@_method("copy", "__copy__")
def _copy(session: Session, array: ArrayValue, order: Value | None = None) -> Value:
    name = "C"
    if order is not None:
        name = session.known(order)
    if isinstance(array, ScalarValue):
        return array
    if name in ("K", "A"):
        copied = session.call_method("clone", array.tensor(session))
    elif name == "F":
        copied = session.call_function(functions.in_columns, array.tensor(session))
        copied = session.call_method("clone", copied)
    else:
        memory = ConstantValue(torch.contiguous_format)
        copied = session.call_method("clone", array.tensor(session), memory_format=memory)
    return _view(session, copied)


@_method("astype")
def _astype(
    session: Session,
    array: ArrayValue,
    dtype: Value,
    order: Value | None = None,
    casting: Value | None = None,
    subok: Value | None = None,
    copy: Value | None = None,
) -> Value:
    target_dtype = dtype_of(session, dtype) or np.dtype(float)
    if casting is not None:
        rule = session.known(casting)
        if not asked_numpy(session, np.can_cast, array.dtype(session), target_dtype, rule):
            raise refused_by_numpy(
                session, TypeError(f"Cannot cast array data to {target_dtype!r}")
            )
    if order is not None and session.known(order) not in ("K", "A"):
        raise session.unsupported("numpy", "numpy.ndarray.astype(order=...)")
    tensor = array.tensor(session)
    result = as_dtype(session, tensor, torch_dtype(session, target_dtype))
    if isinstance(array, ScalarValue):
        return ScalarValue(result)
    if result is tensor:
        if copy is not None and not session.known(copy):
            return array
        result = session.call_method("clone", tensor)  # type: ignore[assignment]
    return ArrayValue(result)


@_method("view")
def _view_as(
    session: Session, array: ArrayValue, dtype: Value | None = None, type: Value | None = None
) -> Value:
    tensor = array.tensor(session)
    if dtype is None:
        return _view(session, session.call_method("view_as", tensor, array.tensor(session)))
    named = session.known(dtype)
    if named is np.ndarray or type is not None:
        raise session.unsupported("numpy", "numpy.ndarray.view(type)")
    target_dtype = asked_numpy(session, np.dtype, named)
    if target_dtype.subdtype is not None and tensor.fake.is_complex():
        if target_dtype.subdtype[1] == (2,):
            return _view(session, session.call_function(torch.view_as_real, tensor))
    dtype_value = ConstantValue(torch_dtype(session, target_dtype))
    return _view(session, session.call_method("view", tensor, dtype_value))


@_method("__array_wrap__")
def _array_wrap(
    session: Session,
    array: ArrayValue,
    other: Value,
    context: Value | None = None,
    return_scalar: Value | None = None,
) -> Value:
    is_scalar = return_scalar is not None and session.known(return_scalar)
    if is_scalar and isinstance(other, ArrayValue) and not other.tensor(session).fake.dim():
        return ScalarValue(other.tensor(session))
    return other


@_method("fill")
def _fill(session: Session, array: ArrayValue, value: Value) -> Value:
    array.set_item(session, ConstantValue(...), value)
    return NONE


@_method("item")
def _item(session: Session, array: ArrayValue, *args: Value) -> Value:
    if not args:
        return array.number(session)
    key: Value = TupleValue(args, tuple)
    if len(args) == 1 and isinstance(args[0], TupleValue):
        key = args[0]
    elif len(args) == 1:
        array = _reshape(session, array, ConstantValue(-1))
    element = array.get_item(session, key)
    if not isinstance(element, ScalarValue):
        raise refused_by_numpy(session, ValueError("incorrect number of indices for array"))
    return element.number(session)


@_method("tolist")
def _tolist(session: Session, array: ArrayValue) -> Value:
    known = session.graph.known.of(array.tensor(session).fake)
    if known is not None:
        return session.wrap_constant(known.tolist())
    if isinstance(array, ScalarValue):
        return array.number(session)
    raise session.unsupported("data-conversion", "numpy.ndarray.tolist depends on the data")


# -- numbers ---------------------------------------------------------------------------------------


@_method("conj", "conjugate")
def _conjugate(session: Session, array: ArrayValue) -> Value:
    if array.tensor(session).fake.is_complex():
        return session.call_builtin(np.conjugate, array)
    return array


@_method("round")
def _round(
    session: Session,
    array: ArrayValue,
    decimals: Value | None = None,
    out: Value | None = None,
) -> Value:
    _refuse_out(session, out)
    places = 0
    if decimals is not None:
        places = session.known(decimals)
    kind = array.dtype(session).kind
    if kind not in "fc" and places < 0 or kind == "b":
        raise session.unsupported("numpy", "numpy.ndarray.round of such numbers")
    result = session.call_function(methods.round_to, array.tensor(session), ConstantValue(places))
    return type(array)(result)  # type: ignore[arg-type]


def _cumulative(name: str, ufunc: np.ufunc) -> None:
    @_method(name)
    def rule(
        session: Session,
        array: ArrayValue,
        axis: Value | None = None,
        dtype: Value | None = None,
        out: Value | None = None,
    ) -> Value:
        values: Value = array
        if axis is None or is_none(axis):
            values, axis = _reshape(session, array, ConstantValue(-1)), ConstantValue(0)
        accumulate = session.builtin(ufunc).get_attribute(session, "accumulate")
        args = [values, axis, dtype or NONE, out or NONE]
        return session.call(accumulate, args, {})


_cumulative("cumsum", np.add)
_cumulative("cumprod", np.multiply)


def _extreme(name: str) -> None:
    @_method(name)
    def rule(
        session: Session,
        array: ArrayValue,
        axis: Value | None = None,
        out: Value | None = None,
        *,
        keepdims: Value | None = None,
    ) -> Value:
        _refuse_out(session, out)
        tensor = array.tensor(session)
        if tensor.fake.is_complex():
            raise session.unsupported("numpy", f"numpy.{name} of complex numbers")
        if tensor.fake.dtype is torch.bool:
            tensor = as_dtype(session, tensor, torch.uint8)
        dims = axes_of(session, axis, tensor.fake.dim(), None)
        is_whole = axis is None or is_none(axis)
        if not is_whole and len(dims) != 1 and tensor.fake.dim():
            raise refused_by_numpy(session, TypeError("axis must be an integer"))
        dim = NONE if is_whole or not tensor.fake.dim() else ConstantValue(dims[0])
        kept = keepdims is not None and bool(session.known(keepdims))
        result = session.call_method(name, tensor, dim, ConstantValue(kept))
        return result_of(session, result)  # type: ignore[arg-type]


_extreme("argmax")
_extreme("argmin")

_dot = _method("dot")(dot_rule)

# -- order -----------------------------------------------------------------------------------------


def _sorted(
    session: Session, array: ArrayValue, axis: Value | None, order: Value | None
) -> tuple[TensorValue, TensorValue]:
    """Values in order, and where they were."""
    if order is not None and not is_none(order):
        raise session.unsupported("numpy", "the fields of an order")
    tensor = array.tensor(session)
    if tensor.fake.is_complex():
        raise session.unsupported("numpy", "the order of complex numbers")
    dim: Value = axis or ConstantValue(-1)
    if is_none(dim):
        tensor = session.call_method("reshape", tensor, ConstantValue(-1))  # type: ignore[assignment]
        dim = ConstantValue(-1)
    axes_of(session, dim, tensor.fake.dim(), None)
    pair = session.call_function(methods.sort, tensor, dim)
    assert isinstance(pair, TupleValue)
    values, places = pair.items
    return values, places  # type: ignore[return-value]


@_method("sort")
def _sort(
    session: Session,
    array: ArrayValue,
    axis: Value | None = None,
    kind: Value | None = None,
    order: Value | None = None,
    *,
    stable: Value | None = None,
) -> Value:
    values, _ = _sorted(session, array, axis, order)
    write_into(session, array, values)
    return NONE


@_method("argsort")
def _argsort(
    session: Session,
    array: ArrayValue,
    axis: Value | None = None,
    kind: Value | None = None,
    order: Value | None = None,
    *,
    stable: Value | None = None,
) -> Value:
    _, places = _sorted(session, array, axis, order)
    return ArrayValue(places)


@_method("searchsorted")
def _searchsorted(
    session: Session,
    array: ArrayValue,
    v: Value,
    side: Value | None = None,
    sorter: Value | None = None,
) -> Value:
    if sorter is not None and not is_none(sorter):
        raise session.unsupported("numpy", "numpy.searchsorted(sorter=...)")
    operand, own = operand_of(session, v), operand_of(session, array)
    target_dtype = np.promote_types(own.strong, operand.strong)
    if target_dtype.kind not in "iuf":
        raise session.unsupported("numpy", f"numpy.searchsorted in {target_dtype}")
    tensors = tensors_in(session, (own, operand), target_dtype)
    is_right = side is not None and session.known(side) == "right"
    result = session.call_function(torch.searchsorted, *tensors, right=ConstantValue(is_right))
    return result_of(session, result)  # type: ignore[arg-type]


# -- elements --------------------------------------------------------------------------------------


@_method("take")
def _take(
    session: Session,
    array: ArrayValue,
    indices: Value,
    axis: Value | None = None,
    out: Value | None = None,
    mode: Value | None = None,
) -> Value:
    _refuse_out(session, out)
    if mode is not None and session.known(mode) != "raise":
        raise session.unsupported("numpy", f"numpy.take(mode={session.known(mode)!r})")
    if axis is None or is_none(axis):
        array, dim = _reshape(session, array, ConstantValue(-1)), 0
    else:
        (dim,) = axes_of(session, axis, array.tensor(session).fake.dim(), None)
    whole = SliceValue(NONE, NONE, NONE)
    if isinstance(indices, (TupleValue, ListValue)):
        indices = session.call_builtin(np.array, indices)
    result = array.get_item(session, TupleValue([*[whole] * dim, indices], tuple))
    if isinstance(result, ScalarValue):
        return result
    copied = session.call_method("clone", result.tensor(session))  # type: ignore[attr-defined]
    return _view(session, copied)


@_method("nonzero")
def _nonzero(session: Session, array: ArrayValue) -> Value:
    tensor = array.tensor(session)
    if tensor.fake.dim() == 0:
        raise refused_by_numpy(session, ValueError("Calling nonzero on 0d arrays is not allowed."))
    places = session.call_method("nonzero", tensor, as_tuple=ConstantValue(True))
    assert isinstance(places, TupleValue)
    return TupleValue(map(ArrayValue, places.items), tuple)  # type: ignore[arg-type]


@_method("put")
def _put(
    session: Session,
    array: ArrayValue,
    indices: Value,
    values: Value,
    mode: Value | None = None,
) -> Value:
    if mode is not None and session.known(mode) != "raise":
        raise session.unsupported("numpy", f"numpy.put(mode={session.known(mode)!r})")
    if isinstance(indices, (TupleValue, ListValue)):
        indices = session.call_builtin(np.array, indices)
    array.get_attribute(session, "flat").set_item(session, indices, values)
    return NONE
