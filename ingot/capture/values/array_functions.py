"""Functions of the namespaces of NumPy.

Those that are written in Python are inlined, so that their meaning, their errors and the types of
their results are NumPy's own; what they come down to are universal functions, methods of arrays and
the functions written in C that have a rule here. What the rules compute is in
`ingot.graph.arrays.functions`.
"""

from __future__ import annotations

from functools import partial
from operator import attrgetter, methodcaller
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ingot.capture.guards import Kind
from ingot.capture.meanings import How, meaning_of, means, means_pure
from ingot.capture.sources import ConstSource, Source
from ingot.capture.values.array_errors import refuse_modes
from ingot.capture.values.array_operands import (
    Operand,
    asked_numpy,
    dtype_of,
    operand_of,
    operands_of,
    result_dtype,
    tensor_in,
    tensors_in,
)
from ingot.capture.values.array_ufuncs import write_into
from ingot.capture.values.array_whole_calls import whole_call
from ingot.capture.values.arrays import (
    CPU,
    ArrayValue,
    ScalarValue,
    refused_by_numpy,
    result_of,
    torch_dtype,
)
from ingot.capture.values.base import (
    Arguments,
    Keywords,
    NotConstant,
    OptionalRule,
    Value,
    map_values,
)
from ingot.capture.values.builtins import BuiltinValue, call_as
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.functions import FunctionValue
from ingot.capture.values.known_calls import called_for_real, constant_array
from ingot.capture.values.number_reads import tensor_of_number
from ingot.capture.values.sequences import ListValue, TupleValue
from ingot.capture.values.tensor import SymIntValue, TensorValue, is_none
from ingot.capture.values.tensor_data import tensor_of_numbers
from ingot.capture.values.wrap import wraps
from ingot.graph.arrays import functions, private

if TYPE_CHECKING:
    from ingot.capture.session import Session

_WITH_EFFECTS = ("numpy.lib._npyio_impl", "numpy.lib._datasource", "numpy._core.arrayprint")
"""Modules whose functions read and write files and settings."""


class NumpyFunction(BuiltinValue):
    """A function of NumPy's that looks for `__array_function__` of its arguments first."""

    __slots__ = ()

    def describe(self) -> str:
        return f"numpy.{self.object.__name__}()"

    def get_attribute(self, session: Session, name: str) -> Value:
        if name in ("__name__", "__qualname__", "__doc__", "__module__"):
            return session.wrap_constant(getattr(self.object, name))
        raise session.unsupported("attribute", f"attribute {name!r} of {self.describe()}")

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        function = private.implementation_of(self.object)
        if getattr(function, "__module__", "") in _WITH_EFFECTS:
            raise session.unsupported("numpy", f"{self.describe()} is called")
        known = called_for_real(session, self.object, args, kwargs)
        if known is not None:
            return known
        whole = whole_call(session, self.object, args, kwargs)
        if whole is not None:
            return whole
        if isinstance(function, FunctionType):
            return session.call(session.builtin(function), args, kwargs)
        return call_as(session, meaning_of(function), function, args, kwargs)


@wraps(private.dispatcher_type, guards=Kind.IDENTITY)
def _wrap_function(session: Session, object_: Any, source: Source) -> Value:
    return NumpyFunction(object_, source)


def _rule(*names: Any) -> Any:
    """States the rule of functions written in C, whose parameters are NumPy's."""

    def state(rule: Any) -> Any:
        @means(*map(private.implementation_of, names), how=How.UNREALIZED)
        def carry_out(session: Session, args: Arguments, kwargs: Keywords) -> Value:
            values, named = list(map(session.realize, args)), session.realize_all(kwargs)
            try:
                result: Value = rule(session, *values, **named)
            except NotConstant as unknown:
                value = unknown.args[0]
                raise session.unsupported(
                    "numpy", f"{rule.__name__} is given {value.describe()}"
                ) from None
            return result

        return rule

    return state


# -- making arrays ---------------------------------------------------------------------------------


def _array_of(session: Session, value: Value, dtype: Any) -> tuple[Any, bool]:
    """An array of what np.array is given, and whether it is a new one."""
    if isinstance(value, (ListValue, TupleValue)):
        return _of_sequence(session, value, dtype), True
    operand = operand_of(session, value)
    target_dtype = dtype or operand.strong
    if operand.tensor is None or not isinstance(value, (ArrayValue, TensorValue)):
        return ArrayValue(tensor_in(session, operand, target_dtype)), True
    is_number = isinstance(value, ScalarValue)
    if isinstance(value, ArrayValue) and not is_number and target_dtype == operand.dtype:
        return value, False
    is_new = target_dtype != operand.dtype or is_number
    return ArrayValue(tensor_in(session, operand, target_dtype)), is_new


def _of_sequence(session: Session, value: ListValue | TupleValue, dtype: Any) -> Value:
    try:
        known = session.deep(value).constant()
    except NotConstant:
        known = None
    if known is not None:
        array = constant_array(session, asked_numpy(session, np.array, known, dtype))
        if array is None:
            raise session.unsupported("numpy", "numpy.array of so many elements, or such ones")
        return array
    operands = list(map(partial(_item, session), value.items))
    if not operands:
        raise session.unsupported("numpy", "numpy.array of nothing")
    target_dtype = dtype
    if target_dtype is None:
        for operand in operands:
            strong = operand.strong
            target_dtype = (
                strong if target_dtype is None else np.promote_types(target_dtype, strong)
            )
    tensors = tensors_in(session, operands, target_dtype)
    return ArrayValue(session.call_function(torch.stack, TupleValue(tensors, tuple)))  # type: ignore[arg-type]


def _item(session: Session, item: Value) -> Operand:
    item = session.realize(item)
    if isinstance(item, (ListValue, TupleValue)):
        item = _of_sequence(session, item, None)
    return operand_of(session, item)


def _ordered(session: Session, array: Value, order: Value | None) -> Value:
    """An array in memory as `order` says."""
    name = "K"
    if order is not None:
        name = session.known(order) or "K"
    assert isinstance(array, ArrayValue)
    if name in ("C",):
        return ArrayValue(session.call_method("contiguous", array.tensor(session)))  # type: ignore[arg-type]
    if name == "F":
        tensor = array.tensor(session)
        return ArrayValue(session.call_function(functions.in_columns, tensor))  # type: ignore[arg-type]
    return array


@_rule(np.array)
def _array(
    session: Session,
    object: Value,
    dtype: Value | None = None,
    *,
    copy: Value | None = None,
    order: Value | None = None,
    subok: Value | None = None,
    ndmin: Value | None = None,
    ndmax: Value | None = None,
    like: Value | None = None,
) -> Value:
    array, is_new = _array_of(session, object, dtype_of(session, dtype))
    copies = True
    if copy is not None:
        copies = session.known(copy)
    if copies is False and is_new:
        raise refused_by_numpy(session, ValueError("a copy is needed"))
    if copies and not is_new:
        tensor = array.tensor(session)
        array = ArrayValue(session.call_method("clone", tensor))  # type: ignore[arg-type]
    array = _ordered(session, array, order)
    assert isinstance(array, ArrayValue)
    lacking = 0
    if ndmin is not None:
        lacking = session.known(ndmin) - array.tensor(session).fake.dim()
    if lacking > 0:
        key = TupleValue([*[NONE] * lacking, ConstantValue(...)], tuple)
        return array.get_item(session, key)
    return array


@_rule(np.asarray, np.asanyarray)
def _asarray(
    session: Session,
    a: Value,
    dtype: Value | None = None,
    order: Value | None = None,
    *,
    device: Value | None = None,
    copy: Value | None = None,
    like: Value | None = None,
) -> Value:
    return _array(session, a, dtype, copy=copy or NONE, order=order)


@_rule(np.ascontiguousarray)
def _ascontiguousarray(
    session: Session, a: Value, dtype: Value | None = None, *, like: Value | None = None
) -> Value:
    order, rank_1 = ConstantValue("C"), ConstantValue(1)
    return _array(session, a, dtype, copy=NONE, order=order, ndmin=rank_1)


def _shape(session: Session, shape: Value) -> Value:
    if isinstance(shape, (ListValue, TupleValue)):
        return TupleValue(map(session.realize, shape.items), tuple)
    return TupleValue([shape], tuple)


def _makes(function: Any) -> Any:
    def rule(
        session: Session,
        shape: Value,
        dtype: Value | None = None,
        order: Value | None = None,
        *,
        device: Value | None = None,
        like: Value | None = None,
    ) -> Value:
        target_dtype = torch_dtype(session, dtype_of(session, dtype) or np.dtype(float))
        made = session.call_function(
            function,
            session.deep(_shape(session, shape)),
            dtype=ConstantValue(target_dtype),
            device=CPU,
        )
        return _ordered(session, ArrayValue(made), order)  # type: ignore[arg-type]

    return rule


_rule(np.zeros)(_makes(torch.zeros))
_rule(np.empty)(_makes(torch.empty))


@_rule(np.empty_like)
def _empty_like(
    session: Session,
    prototype: Value,
    dtype: Value | None = None,
    order: Value | None = None,
    subok: Value | None = None,
    shape: Value | None = None,
    *,
    device: Value | None = None,
) -> Value:
    operand = operand_of(session, prototype)
    target_dtype = dtype_of(session, dtype) or operand.strong
    if shape is not None and not is_none(shape):
        return _makes(torch.empty)(session, shape, ConstantValue(target_dtype))  # type: ignore[no-any-return]
    tensor = tensor_in(session, operand, operand.strong)
    made = session.call_function(
        torch.empty_like, tensor, dtype=ConstantValue(torch_dtype(session, target_dtype))
    )
    return _ordered(session, ArrayValue(made), order)  # type: ignore[arg-type]


@_rule(np.arange)
def _arange(
    session: Session,
    start: Value,
    stop: Value | None = None,
    step: Value | None = None,
    dtype: Value | None = None,
    *,
    device: Value | None = None,
    like: Value | None = None,
) -> Value:
    named = {}
    if dtype is not None:
        named["dtype"] = dtype
    bounds = list(filter(None, (start, stop, step)))
    known = called_for_real(session, np.arange, bounds, named)
    if known is not None:
        return known
    target_dtype = dtype_of(session, dtype) or np.dtype(np.int64)
    if not {int, np.int64}.issuperset(map(methodcaller("python_type"), bounds)) or (
        target_dtype.kind != "i"
    ):
        raise session.unsupported("numpy", "numpy.arange of what is no integer")
    values = map(session.deep, bounds)
    made = session.call_function(
        torch.arange, *values, dtype=ConstantValue(torch_dtype(session, target_dtype)), device=CPU
    )
    return ArrayValue(made)  # type: ignore[arg-type]


# -- putting together ------------------------------------------------------------------------------


@_rule(np.concatenate)
def _concatenate(
    session: Session,
    arrays: Value,
    axis: Value | None = None,
    out: Value | None = None,
    *,
    dtype: Value | None = None,
    casting: Value | None = None,
) -> Value:
    if isinstance(arrays, ArrayValue):
        items = session.unpacked(session.iterate(arrays))
    else:
        items = session.unpacked(arrays)
    if out is not None and not is_none(out):
        raise session.unsupported("numpy", "numpy.concatenate(out=...)")
    operands = list(map(partial(_item, session), items))
    if not operands:
        raise refused_by_numpy(session, ValueError("need at least one array to concatenate"))
    target_dtype = dtype_of(session, dtype)
    if target_dtype is None:
        target_dtype = operands[0].strong
        for operand in operands:
            target_dtype = np.promote_types(target_dtype, operand.strong)
    elif casting is None or session.known(casting) == "same_kind":
        for operand in operands:
            if not np.can_cast(operand.strong, target_dtype, "same_kind"):
                raise refused_by_numpy(session, TypeError("cannot cast array data"))
    tensors: list[Value] = list(tensors_in(session, operands, target_dtype))
    dim = 0
    if axis is not None:
        dim = session.known(axis)
    ranks = set(map(attrgetter("rank"), operands))
    if dim is None:
        dim = 0
        for i, tensor in enumerate(tensors):
            tensors[i] = session.call_method("reshape", tensor, ConstantValue(-1))
    elif len(ranks) > 1 or 0 in ranks:
        raise refused_by_numpy(session, ValueError("the arrays are of different ranks"))
    joined = session.call_function(torch.cat, TupleValue(tensors, tuple), ConstantValue(dim))
    return ArrayValue(joined)  # type: ignore[arg-type]


@_rule(np.where)
def _where(
    session: Session, condition: Value, x: Value | None = None, y: Value | None = None
) -> Value:
    if x is None or y is None:
        array = session.call_builtin(np.asarray, condition)
        return session.call(array.get_attribute(session, "nonzero"), [], {})
    mask = tensor_in(session, operand_of(session, condition), np.dtype(bool))
    pair = operand_of(session, x), operand_of(session, y)
    target_dtype = result_dtype(session, pair)
    sides = tensors_in(session, pair, target_dtype)
    return ArrayValue(session.call_function(torch.where, mask, *sides))  # type: ignore[arg-type]


@_rule(np.copyto)
def _copyto(
    session: Session,
    dst: Value,
    src: Value,
    casting: Value | None = None,
    where: Value | None = None,
) -> Value:
    if type(dst) is not ArrayValue:
        raise session.unsupported("numpy", f"numpy.copyto of {dst.describe()}")
    operand, target_dtype = operand_of(session, src), dst.dtype(session)
    rule: Any = "same_kind"
    if casting is not None:
        rule = session.known(casting)
    example = operand.strong
    if operand.is_weak and operand.dtype is int or target_dtype.kind in "fc" and operand.is_weak:
        example = target_dtype
    if not np.can_cast(example, target_dtype, rule):
        message = f"Cannot cast array data from {operand.strong!r} to {target_dtype!r}"
        raise refused_by_numpy(session, TypeError(message))
    result = tensor_in(session, operand, target_dtype)
    if where is not None and not (where.is_constant() and where.constant() is True):
        mask = tensor_in(session, operand_of(session, where), np.dtype(bool))
        chosen = session.call_function(torch.where, mask, result, dst.tensor(session))
        assert isinstance(chosen, TensorValue)
        result = chosen
    write_into(session, dst, result)
    return NONE


# -- products --------------------------------------------------------------------------------------


def _product(function: Any) -> Any:
    def rule(session: Session, a: Value, b: Value, out: Value | None = None) -> Value:
        if out is not None and not is_none(out):
            raise session.unsupported("numpy", f"{function.__name__} is given out=")
        refuse_modes(session)
        pair = operand_of(session, a), operand_of(session, b)
        target_dtype = result_dtype(session, pair)
        result = session.call_function(function, *tensors_in(session, pair, target_dtype))
        return result_of(session, result)  # type: ignore[arg-type]

    return rule


dot_rule = _rule(np.dot)(_product(functions.dot))
_rule(np.inner)(_product(functions.inner))
_rule(np.vdot)(_product(functions.vdot))


_MODES = {"valid": 0, "same": 1, "full": 2}


def _correlation(function: Any) -> Any:
    def rule(session: Session, a: Value, v: Value, mode: Value | None = None) -> Value:
        pair = operand_of(session, a), operand_of(session, v)
        target_dtype = result_dtype(session, pair)
        tensors = tensors_in(session, pair, target_dtype)
        kind: Any = 0
        if mode is not None:
            kind = session.known(mode)
        result = session.call_function(function, *tensors, ConstantValue(_MODES.get(kind, kind)))
        return ArrayValue(result)  # type: ignore[arg-type]

    return rule


_rule(private.correlate)(_correlation(functions.correlate))
_rule(private.correlate_conjugated)(_correlation(functions.correlate_conjugated))


@_rule(private.einsum)
def _einsum(session: Session, subscripts: Value, *arrays: Value, **kwargs: Value) -> Value:
    if kwargs.keys() - {"optimize"}:
        raise session.unsupported("numpy", f"numpy.einsum with {', '.join(kwargs)}")
    refuse_modes(session)
    operands = operands_of(session, arrays)
    target_dtype = result_dtype(session, operands)
    tensors = tensors_in(session, operands, target_dtype)
    result = session.call_function(torch.einsum, subscripts, *tensors)
    return result_of(session, result)  # type: ignore[arg-type]


# -- questions -------------------------------------------------------------------------------------


def _asked(function: Any) -> None:
    """A question about types, to which arrays and numbers come as their types."""

    @_rule(function)
    def rule(session: Session, *args: Value, **kwargs: Value) -> Value:
        examples: list[Any] = []
        for value in args:
            if isinstance(value, ArrayValue) and function is np.min_scalar_type:
                if isinstance(value, ScalarValue):
                    raise session.unsupported("numpy", "the smallest type that holds a number")
                examples.append(np.empty(2, value.dtype(session)))
            elif isinstance(value, ArrayValue):
                examples.append(value.dtype(session))
            elif isinstance(value, SymIntValue):
                examples.append(0)
            else:
                examples.append(session.known(value))
        named = map_values(session.known, kwargs)
        return session.wrap_constant(asked_numpy(session, function, *examples, **named))


for _function in (np.result_type, np.can_cast, np.promote_types, np.min_scalar_type):
    _asked(_function)


@_rule(private.normalize_axis_index)
def _normalize_axis_index(
    session: Session, axis: Value, ndim: Value, msg_prefix: Value | None = None
) -> Value:
    args = session.integer(axis), session.known(ndim)
    return session.wrap_constant(asked_numpy(session, private.normalize_axis_index, *args))


@_rule(private.count_nonzero)
def _count_nonzero(session: Session, a: Value) -> Value:
    tensor = tensor_in(session, operand_of(session, a), np.dtype(bool))
    count = session.call_method("sum", tensor)
    return ScalarValue(count)  # type: ignore[arg-type]


@_rule(np.bincount)
def _bincount(
    session: Session, x: Value, weights: Value | None = None, minlength: Value | None = None
) -> Value:
    least, operands = 0, [operand_of(session, x)]
    if minlength is not None:
        least = session.known(minlength)
    if weights is not None and not is_none(weights):
        operands.append(operand_of(session, weights))
    examples, sizes = [], []
    for operand in operands:
        sizes.append(tensor_in(session, operand, operand.strong).fake.shape)
        length = 1 + (sizes[-1][:1] != sizes[0][:1])
        examples.append(np.ones([length] * operand.rank, operand.strong))
    asked_numpy(session, np.bincount, *examples, minlength=least)
    numbers, *weighted = operands
    tensors = [tensor_in(session, numbers, np.dtype(np.intp))]
    negative = session.call_method("any", session.call_method("lt", *tensors, ConstantValue(0)))
    if not negative.require_truth(session, False):
        raise session.unsupported("data-branch", "numpy.bincount of what may be negative")
    if sizes[0][0] != 0:  # of nothing, NumPy forgets the weights
        for weight in weighted:
            tensors.append(tensor_in(session, weight, np.dtype(float)))
    counts = session.call_method("bincount", *tensors, minlength=ConstantValue(least))
    return result_of(session, counts)  # type: ignore[arg-type]


@means(private.unique_hash, how=How.UNREALIZED)
def _unique_hash(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    """What NumPy cannot hash it sorts, with the same values in the end."""
    return ConstantValue(NotImplemented)


@_rule(np.unique)
def _unique(session: Session, *args: Value, **kwargs: Value) -> Value:
    if "sorted" in kwargs and not session.known(kwargs["sorted"]):
        raise session.unsupported("numpy", "numpy.unique in an order that hashes decide")
    function = private.implementation_of(np.unique)
    outside = FunctionValue.outside(session, function, ConstSource(function))
    return session.inline(outside, args, kwargs)


means_pure(np.iinfo, np.finfo)

# -- tensors of arrays -----------------------------------------------------------------------------


def _tensor_of_array(copies: bool) -> OptionalRule:
    """torch.from_numpy, torch.as_tensor or torch.tensor of an array."""

    def rule(session: Session, args: Arguments, kwargs: Keywords) -> Value | None:
        array = session.realize(args[0]) if args else None
        if isinstance(array, ArrayValue) and len(args) == 1:
            return _over(session, array, copies, session.realize_all(kwargs))
        return (
            tensor_of_number(session, args, kwargs)
            or tensor_of_numbers(session, args, kwargs)
            or _of_known_integers(session, args, kwargs)
        )

    return rule


def _over(session: Session, array: ArrayValue, copies: bool, kwargs: Keywords) -> Value | None:
    if kwargs.keys() - {"dtype", "device"}:
        raise session.unsupported("numpy", "a tensor of an array is made with such options")
    name = "clone" if copies or isinstance(array, ScalarValue) else "detach"  # a tensor of its own
    tensor = session.call_method(name, array.tensor(session))
    options = {}
    for option, value in kwargs.items():
        if not is_none(value):
            options[option] = value
    if not options:
        return tensor
    return session.call_method("to", tensor, **options)


def _of_known_integers(session: Session, args: Arguments, kwargs: Keywords) -> Value | None:
    """torch.tensor and the like of data with symbolic integers in it, of which torch would take 32
    bits."""
    symbolic: list[SymIntValue] = []

    def leaf(value: Any) -> Any:
        if isinstance(value, SymIntValue):
            symbolic.append(value)
        return None

    try:
        for value in (*args, *kwargs.values()):
            session.deep(value).argument(leaf)
    except NotConstant:
        pass
    for value in symbolic:
        value.specialize(session)
    return None


means(torch.from_numpy, torch.as_tensor, how=How.OPERATION)(_tensor_of_array(copies=False))
means(torch.tensor, how=How.OPERATION)(_tensor_of_array(copies=True))
