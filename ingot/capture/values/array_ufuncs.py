"""NumPy's universal functions: calls of them and of their methods.

NumPy itself says which of a function's loops it takes, and so of which types operands and results
are; `ingot.graph.arrays.ufuncs` says what the loop computes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ingot.capture.guards import Kind
from ingot.capture.sources import Source
from ingot.capture.values.array_errors import handler_of, refuse_modes
from ingot.capture.values.array_indexing import accumulate
from ingot.capture.values.array_operands import (
    Operand,
    as_dtype,
    asked_numpy,
    dtype_of,
    number_in,
    operand_of,
    tensor_in,
)
from ingot.capture.values.arrays import (
    ArrayValue,
    refused_by_numpy,
    result_of,
    torch_dtype,
)
from ingot.capture.values.base import Arguments, Keywords, NativeMethod, Value
from ingot.capture.values.builtins import BuiltinValue
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.known_calls import called_for_real
from ingot.capture.values.sequences import ListValue, TupleValue
from ingot.capture.values.tensor import TensorValue, is_none
from ingot.capture.values.tensor_lists import dtypes_in
from ingot.capture.values.wrap import wraps
from ingot.graph.arrays import private
from ingot.graph.arrays.calls import BY_RESULTS, along
from ingot.graph.arrays.dtypes import TORCH_DTYPES
from ingot.graph.arrays.ufuncs import (
    ACCUMULATIONS,
    COMPARISONS,
    OF_REAL_NUMBERS,
    REDUCTIONS,
    TAKES_NUMBER,
    UFUNCS,
)
from ingot.graph.geometry import has_symbols

if TYPE_CHECKING:
    from ingot.capture.session import Session

_METHODS = frozenset({"reduce", "accumulate", "outer", "at"})


class UfuncValue(BuiltinValue):
    """A universal function."""

    __slots__ = ()

    def describe(self) -> str:
        return f"numpy.{self.object.__name__}()"

    def get_attribute(self, session: Session, name: str) -> Value:
        if name in _METHODS:
            return NativeMethod(self, name, globals()[f"_{name}"])
        if name in ("nin", "nout", "nargs", "__name__", "__qualname__", "__doc__", "identity"):
            return session.wrap_constant(getattr(self.object, name))
        raise session.unsupported("attribute", f"attribute {name!r} of {self.describe()}")

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        known = called_for_real(session, self.object, args, kwargs)
        if known is not None:
            return known
        return _called(session, self.object, args, kwargs)


@wraps(np.ufunc, guards=Kind.IDENTITY)
def _wrap_ufunc(session: Session, object_: Any, source: Source) -> Value:
    return UfuncValue(object_, source)


# -- calls -----------------------------------------------------------------------------------------


def _called(session: Session, ufunc: np.ufunc, args: Arguments, kwargs: Keywords) -> Value:
    refuse_modes(session)
    kwargs = session.realize_all(kwargs)
    if ufunc not in UFUNCS and ufunc.signature is not None:
        return _by_numpy(session, ufunc, args, kwargs)
    outs, kept = _out_arguments(session, ufunc, args[ufunc.nin :], kwargs.pop("out", None))
    where = kwargs.pop("where", None)
    if where is not None and where.is_constant() and where.constant() is True:
        where = None
    values = list(map(session.realize, args[: ufunc.nin]))
    if len(values) < ufunc.nin:
        message = f"{ufunc.__name__}() takes from {ufunc.nin} positional arguments"
        raise refused_by_numpy(session, TypeError(message))
    operands = list(map(partial(operand_of, session), values))
    loop = _loop(session, ufunc, operands, outs, kwargs)
    if ufunc.signature is None:
        _check_shapes(session, operands)
    results = _applied(session, ufunc, operands, loop)
    if where is not None:
        results = _where(session, results, where, outs)
    if kept or outs.count(None) < len(outs):
        return _written(session, results, outs)
    if any(map(_is_tensor, values)):
        return _as_tensors(session, ufunc, results)
    return _single(list(map(partial(result_of, session), results)))


def _check_shapes(session: Session, operands: Sequence[Operand]) -> None:
    """Raises NumPy's error where shapes do not go together."""
    shapes = []
    for operand in operands:
        if operand.tensor is not None and not has_symbols(operand.tensor.fake.shape):
            shapes.append(tuple(operand.tensor.fake.shape))
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        texts = map(_shape_text, shapes)
        message = f"operands could not be broadcast together with shapes {' '.join(texts)} "
        raise session.raised(ValueError, message) from None


def _shape_text(shape: tuple[int, ...]) -> str:
    return str(shape).replace(" ", "")


def _is_tensor(value: Value) -> bool:
    return isinstance(value, TensorValue)


def _as_tensors(session: Session, ufunc: np.ufunc, results: Sequence[TensorValue]) -> Value:
    """What a function gives for tensors: tensors, of results that are not of truth values."""
    if torch.bool in dtypes_in(results):
        raise session.unsupported("numpy", f"numpy.{ufunc.__name__} of a tensor gives truth values")
    return _single(list(results))


def _single(results: list[Any]) -> Value:
    if len(results) == 1:
        result: Value = results[0]
        return result
    return TupleValue(results, tuple)


def _out_arguments(
    session: Session, ufunc: np.ufunc, positional: Arguments, named: Value | None
) -> tuple[list[ArrayValue | None], bool]:
    """The arrays that the results are written to, and whether results of rank 0 stay arrays."""
    values: list[Value] = list(positional)
    if named is not None:
        if isinstance(named, TupleValue):
            values = list(named.items)
        else:
            values = [named]
    outs: list[ArrayValue | None] = []
    kept = False
    for value in map(session.realize, values):
        if is_none(value):
            outs.append(None)
        elif value.is_constant() and value.constant() is ...:
            kept = True
            outs.append(None)
        elif type(value) is ArrayValue:
            outs.append(value)
        else:
            raise session.unsupported("numpy", f"out={value.describe()}")
    return outs + [None] * (ufunc.nout - len(outs)), kept


def _loop(
    session: Session,
    ufunc: np.ufunc,
    operands: Sequence[Operand],
    outs: Sequence[ArrayValue | None],
    kwargs: Keywords,
) -> tuple[Any, ...]:
    """The types of operands and results of the loop that NumPy takes."""
    named: dict[str, Any] = {}
    for name, value in kwargs.items():
        if name == "dtype":
            dtype = dtype_of(session, value)
            if dtype is not None:
                named["signature"] = (None,) * ufunc.nin + (dtype,) * ufunc.nout
        elif name == "casting":
            named["casting"] = session.known(value)
        elif name == "axis" and ufunc.signature is not None and session.known(value) == -1:
            continue
        elif name not in ("order", "subok"):
            raise session.unsupported("numpy", f"numpy.{ufunc.__name__}({name}=...)")
    if named.get("casting") is None:
        named.pop("casting", None)
    all_weak = all(map(attrgetter("is_weak"), operands))
    dtypes: list[Any] = []
    for operand in operands:
        dtypes.append(operand.strong if all_weak else operand.dtype)
    for out in outs:
        dtypes.append(None if out is None else out.dtype(session))
    loop: tuple[Any, ...] = asked_numpy(session, ufunc.resolve_dtypes, tuple(dtypes), **named)
    for dtype in loop:
        torch_dtype(session, dtype)
    return loop


def _applied(
    session: Session, ufunc: np.ufunc, operands: Sequence[Operand], loop: Sequence[Any]
) -> list[TensorValue]:
    """The results of a loop, in its types."""
    if ufunc not in UFUNCS or _is_numpys(ufunc, operands, loop):
        tensors = list(map(partial(tensor_in, session), operands, loop))
        return _of_numpy(session, ufunc, tensors, "")
    args: list[Value] = []
    for operand, dtype in zip(operands, loop):
        if operand.number is not None and ufunc in TAKES_NUMBER and dtype.kind != "b":
            args.append(ConstantValue(_number(session, ufunc, operand, dtype)))
        else:
            args.append(tensor_in(session, operand, dtype))
    function = UFUNCS[ufunc]
    if ufunc is np.divide and operands[1].number is not None:
        number = number_in(session, operands[1], loop[1])
        if number != 0:
            args[1] = ConstantValue(number)
    result = session.call_function(function, *args)
    results: list[Value] = [result]
    if isinstance(result, TupleValue):
        results = result.items
    tensors = []
    for value, dtype in zip(results, loop[ufunc.nin :]):
        assert isinstance(value, TensorValue)
        tensors.append(as_dtype(session, value, TORCH_DTYPES[dtype]))
    return tensors


def _number(session: Session, ufunc: np.ufunc, operand: Operand, dtype: Any) -> Any:
    if ufunc in COMPARISONS and operand.is_weak and dtype.kind in "iu":
        info = np.iinfo(dtype)
        if not info.min <= operand.number <= info.max:
            raise session.unsupported("numpy", f"a comparison of {dtype} with {operand.number}")
    return number_in(session, operand, dtype)


def _is_numpys(ufunc: np.ufunc, operands: Sequence[Operand], loop: Sequence[Any]) -> bool:
    """Whether torch does not have this loop, or has other errors for it."""
    kind = loop[0].kind
    if ufunc is np.power and loop[1].kind == "i":
        # of a negative exponent, NumPy raises an error
        return operands[1].number is None or operands[1].number < 0
    if kind != "c":
        return ufunc is np.reciprocal and kind in "iub"
    return ufunc in OF_REAL_NUMBERS


_HOMES = (private.UNIVERSAL, private.LINEAR_ALGEBRA, private.TRANSFORMS)
"""The modules in which NumPy's universal functions are found by their names."""


def _home_of(session: Session, ufunc: np.ufunc) -> str:
    for home in _HOMES:
        if getattr(private.module_of(home), ufunc.__name__, None) is ufunc:
            return home
    raise session.unsupported("numpy", f"{ufunc.__name__}, a function of another library")


def _of_numpy(
    session: Session, ufunc: np.ufunc, tensors: Sequence[Value], signature: str
) -> list[TensorValue]:
    """The results of a call of NumPy itself, which is one node."""
    names = (_home_of(session, ufunc), ufunc.__name__, signature, handler_of(session))
    texts = map(ConstantValue, names)
    result = session.call_function(BY_RESULTS[ufunc.nout], *texts, ListValue(tensors, list))
    if isinstance(result, TupleValue):
        return list(result.items)  # type: ignore[arg-type]
    return [result]  # type: ignore[list-item]


_WRITE_OPERAND = frozenset({"qr_r_raw"})


def _by_numpy(session: Session, ufunc: np.ufunc, args: Arguments, kwargs: Keywords) -> Value:
    """A function of whole vectors or matrices."""
    operands = list(map(partial(operand_of, session), args[: ufunc.nin]))
    if kwargs.keys() == {"axes", "out"} and ufunc.nin == 2:
        return _along(session, ufunc, operands, kwargs)
    if kwargs.keys() - {"signature"} or len(args) != ufunc.nin or ufunc.__name__ in _WRITE_OPERAND:
        raise session.unsupported("numpy", f"numpy's {ufunc.__name__} in this form")
    signature = ""
    if "signature" in kwargs:
        signature = session.known(kwargs["signature"])
    dtypes = (*map(attrgetter("strong"), operands), *[None] * ufunc.nout)
    named = {"signature": signature} if signature else {}
    loop = asked_numpy(session, ufunc.resolve_dtypes, dtypes, casting="unsafe", **named)
    tensors = list(map(partial(tensor_in, session), operands, loop))
    results = _of_numpy(session, ufunc, tensors, signature)
    return _single(list(map(partial(result_of, session), results)))


def _along(
    session: Session, ufunc: np.ufunc, operands: Sequence[Operand], kwargs: Keywords
) -> Value:
    """A Fourier transform along one dimension."""
    out, axes = kwargs["out"], session.known(kwargs["axes"])
    (dim,) = axes[0]
    if type(out) is not ArrayValue or axes != [(dim,), (), (dim,)]:
        raise session.unsupported("numpy", f"numpy's {ufunc.__name__} in this form")
    dtypes = (*map(attrgetter("dtype"), operands), out.dtype(session))
    loop = asked_numpy(session, ufunc.resolve_dtypes, dtypes)
    tensors = map(partial(tensor_in, session), operands, loop)
    args = (ConstantValue(dim), out.sizes(session)[dim], ConstantValue(TORCH_DTYPES[loop[2]]))
    texts = map(ConstantValue, (_home_of(session, ufunc), ufunc.__name__))
    result = session.call_function(along, *texts, *tensors, *args)
    write_into(session, out, result)  # type: ignore[arg-type]
    return out


def _where(
    session: Session,
    results: list[TensorValue],
    where: Value,
    outs: Sequence[ArrayValue | None],
) -> list[TensorValue]:
    mask = tensor_in(session, operand_of(session, where), np.dtype(bool))
    chosen = []
    for result, out in zip(results, outs):
        if out is None:
            raise session.unsupported("numpy", "where= without out=")
        target = out.tensor(session)
        result = as_dtype(session, result, target.fake.dtype)
        chosen.append(session.call_function(torch.where, mask, result, target))
    return chosen  # type: ignore[return-value]


def _written(
    session: Session, results: Sequence[TensorValue], outs: Sequence[ArrayValue | None]
) -> Value:
    values: list[Value] = []
    for result, out in zip(results, outs):
        if out is None:
            values.append(ArrayValue(result))
        else:
            write_into(session, out, result)
            values.append(out)
    return _single(values)


def write_into(session: Session, out: ArrayValue, result: TensorValue) -> None:
    """Writes a result to an array, whose type may be another."""
    target = out.tensor(session)
    if result.fake.dim() > target.fake.dim():
        message = "output parameter has too few dimensions"
        raise refused_by_numpy(session, ValueError(message))
    session.call_method("copy_", target, as_dtype(session, result, target.fake.dtype))


# -- methods ---------------------------------------------------------------------------------------


def axes_of(session: Session, axis: Value | None, rank: int, instead: Any) -> tuple[int, ...]:
    """The dimensions that `axis` names; None names all of them."""
    given = instead
    if axis is not None:
        given = session.known(axis)
    if given is None:
        return tuple(range(rank))
    if not isinstance(given, tuple):
        given = (given,)
    dims = []
    for dim in given:
        if not -rank <= dim < rank and not (rank == 0 and dim in (0, -1)):
            raise refused_by_numpy(session, np.exceptions.AxisError(dim, rank))
        dims.append(dim % max(rank, 1))
    if len(set(dims)) < len(dims):
        raise refused_by_numpy(session, ValueError("duplicate value in 'axis'"))
    return tuple(dims)[: len(dims) if rank else 0]


def _reduction_dtype(session: Session, ufunc: np.ufunc, operand: Operand, dtype: Any) -> Any:
    """The type in which a reduction of an array is computed, as NumPy has it."""
    example = np.ones((1,), operand.strong)
    with np.errstate(all="ignore"):
        result = asked_numpy(session, ufunc.reduce, example, dtype=dtype)
    return result.dtype


def _reduce(
    ufunc_value: UfuncValue,
    session: Session,
    array: Value,
    axis: Value | None = None,
    dtype: Value | None = None,
    out: Value | None = None,
    keepdims: Value | None = None,
    initial: Value | None = None,
    where: Value | None = None,
) -> Value:
    ufunc: Any = ufunc_value.object
    if ufunc not in REDUCTIONS:
        raise session.unsupported("numpy", f"numpy.{ufunc.__name__}.reduce")
    refuse_modes(session)
    operand = operand_of(session, array)
    loop_dtype = _reduction_dtype(session, ufunc, operand, dtype_of(session, dtype))
    named = {}
    if dtype is not None:
        named["dtype"] = dtype_of(session, dtype)
    kept = keepdims is not None and bool(session.known(keepdims))
    tensor = _loop_tensor(session, ufunc, operand, loop_dtype)
    dims = axes_of(session, axis, tensor.fake.dim(), 0)
    start = _initial(session, ufunc, initial, loop_dtype)
    if where is not None and not (where.is_constant() and where.constant() is True):
        mask = tensor_in(session, operand_of(session, where), np.dtype(bool))
        neutral = start
        if neutral is None or ufunc in (np.add, np.multiply):
            neutral = _identity(session, ufunc, loop_dtype)
        tensor = session.call_function(torch.where, mask, tensor, neutral)  # type: ignore[assignment]
    elif math.prod(map(tensor.fake.shape.__getitem__, dims)) == 0 and start is None:
        if ufunc.identity is None:
            message = (
                f"zero-size array to reduction operation {ufunc.__name__} which has no identity"
            )
            raise refused_by_numpy(session, ValueError(message))
    result: Any = tensor
    if tensor.fake.dim():
        dims_value = session.wrap_constant(dims)
        result = session.call_function(
            REDUCTIONS[ufunc], tensor, dims_value, ConstantValue(kept)
        ) if dims else session.call_method("clone", tensor)  # fmt: skip
    else:
        result = session.call_method("clone", tensor)
    result = as_dtype(session, result, torch_dtype(session, loop_dtype))
    if start is not None:
        result = session.call_function(UFUNCS[ufunc], result, start)
    return _reduced(session, result, out)


def _reduced(session: Session, result: TensorValue, out: Value | None) -> Value:
    if out is None or is_none(session.realize(out)):
        return result_of(session, result)
    target = session.realize(out)
    if isinstance(target, TupleValue) and len(target.items) == 1:
        target = session.realize(target.items[0])
    if type(target) is not ArrayValue:
        raise session.unsupported("numpy", f"out={target.describe()}")
    if tuple(target.tensor(session).fake.shape) != tuple(result.fake.shape):
        raise session.unsupported("numpy", "out= of another shape than the result")
    write_into(session, target, result)
    return target


def _loop_tensor(session: Session, ufunc: Any, operand: Operand, loop_dtype: Any) -> TensorValue:
    if ufunc in (np.logical_and, np.logical_or):
        return tensor_in(session, operand, operand.strong)
    if operand.strong.kind == "c" and ufunc in OF_REAL_NUMBERS:
        raise session.unsupported("numpy", f"numpy.{ufunc.__name__} of {operand.strong}")
    return tensor_in(session, operand, loop_dtype)


def _identity(session: Session, ufunc: Any, dtype: Any) -> TensorValue:
    if ufunc.identity is None:
        message = (
            f"reduction operation '{ufunc.__name__}' does not have an identity, so to use a where "
            "mask one has to specify 'initial'"
        )
        raise refused_by_numpy(session, ValueError(message))
    return tensor_in(session, Operand(np.dtype(dtype), number=ufunc.identity), dtype)


def _initial(session: Session, ufunc: Any, initial: Value | None, dtype: Any) -> TensorValue | None:
    """The `initial` of a reduction in its type; None where it is left out."""
    if initial is None:
        return None
    initial = session.realize(initial)
    if initial.is_constant() and initial.constant() in (None, private.no_value):
        return None
    return tensor_in(session, operand_of(session, initial), dtype)


def _accumulate(
    ufunc_value: UfuncValue,
    session: Session,
    array: Value,
    axis: Value | None = None,
    dtype: Value | None = None,
    out: Value | None = None,
) -> Value:
    ufunc: Any = ufunc_value.object
    if ufunc not in ACCUMULATIONS:
        raise session.unsupported("numpy", f"numpy.{ufunc.__name__}.accumulate")
    refuse_modes(session)
    operand = operand_of(session, array)
    loop_dtype = _reduction_dtype(session, ufunc, operand, dtype_of(session, dtype))
    tensor = _loop_tensor(session, ufunc, operand, loop_dtype)
    if tensor.fake.dim() == 0:
        raise refused_by_numpy(session, TypeError("cannot accumulate on a scalar"))
    (dim,) = axes_of(session, axis, tensor.fake.dim(), 0)
    result = session.call_function(ACCUMULATIONS[ufunc], tensor, ConstantValue(dim))
    return _reduced(session, result, out)  # type: ignore[arg-type]


def _outer(
    ufunc_value: UfuncValue, session: Session, left: Value, right: Value, **kwargs: Value
) -> Value:
    first, second = operand_of(session, left), operand_of(session, right)
    if first.tensor is None:
        return session.call(ufunc_value, [left, right], kwargs)
    key = TupleValue([ConstantValue(...), *[NONE] * second.rank], tuple)
    spread = session.call_function(torch.Tensor.__getitem__, first.tensor, key)
    return session.call(ufunc_value, [ArrayValue(spread), right], kwargs)  # type: ignore[arg-type]


def _at(
    ufunc_value: UfuncValue, session: Session, array: Value, key: Value, other: Value | None = None
) -> Value:
    if ufunc_value.object is not np.add or type(array) is not ArrayValue or other is None:
        raise session.unsupported("numpy", f"numpy.{ufunc_value.object.__name__}.at")
    accumulate(session, array, key, other)
    return NONE
