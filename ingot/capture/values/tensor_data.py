"""`torch.tensor` and its kin of symbolic numbers, and of tensors of rank 0.

The graph fills each in, so that no entry is compiled for its value."""

from __future__ import annotations

import functools
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import torch

from ingot.capture.meanings import How, means
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.numbers import NumberValue
from ingot.capture.values.sequences import ListValue, TupleValue
from ingot.capture.values.tensor import SymIntValue, TensorValue
from ingot.capture.values.wrapper_objects import construct_wrapper
from ingot.graph.symbols import is_decided_by_data
from ingot.graph.wrappers import is_wrapper_class
from ingot.torch_private import is_functorch_wrapped_tensor

if TYPE_CHECKING:
    from ingot.capture.session import Session

_MOST = 64  # elements: of more, those that vary are compiled for
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_READ = _FLOATS | {torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.bool}


def tensor_of_numbers(session: Session, args: Arguments, kwargs: Keywords) -> Value | None:
    """torch.tensor or torch.as_tensor of a number, or of lists of them, of which some vary, or are
    those of tensors; None for all else."""
    if len(args) == 1 and kwargs.keys() <= {"dtype", "device"}:
        return _tensor_of(session, args[0], kwargs)
    return None


@means(torch.Tensor.new_tensor, how=How.METHOD)
def _new_tensor(
    session: Session, tensor: TensorValue, args: Arguments, kwargs: Keywords
) -> Value | None:
    if len(args) != 1 or kwargs or tensor.fake.device.type != "cpu":
        return None
    return _tensor_of(session, args[0], {"dtype": ConstantValue(tensor.fake.dtype)})


@means(torch.Tensor.new, how=How.METHOD)
def _new(session: Session, tensor: TensorValue, args: Arguments, kwargs: Keywords) -> Value:
    """Tensor.new of sizes: an empty tensor."""
    sizes = list(map(session.realize, args)) or [ConstantValue(0)]
    if len(sizes) == 1 and sizes[0].python_type() is torch.Size:
        sizes = session.unpacked(sizes[0])
    if kwargs or not all(size.python_type() is int for size in sizes):
        raise session.unsupported(
            "argument-kind", f"Tensor.new of {tensor.describe()} is given more than sizes"
        )
    return tensor.call_named(session, "new_empty", [TupleValue(sizes, tuple)], {})


_OF_TYPE: dict[Any, torch.dtype] = {
    torch.FloatTensor: torch.float32, torch.DoubleTensor: torch.float64,
    torch.HalfTensor: torch.float16, torch.BFloat16Tensor: torch.bfloat16,
    torch.ByteTensor: torch.uint8, torch.CharTensor: torch.int8, torch.ShortTensor: torch.int16,
    torch.IntTensor: torch.int32, torch.LongTensor: torch.int64, torch.BoolTensor: torch.bool,
}  # fmt: skip
"""The types that make tensors of one dtype, on the CPU."""


@means(torch.Tensor, how=How.INSTANCE)
def _new_plain(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    if cls is not torch.Tensor:
        if is_wrapper_class(cls):
            return construct_wrapper(session, cls, args, kwargs)
        return _new_of_subclass(session, cls, args, kwargs)
    dtype = session.call_builtin(torch.get_default_dtype)
    return _new_of_type(session, cls, dtype, args, kwargs)


def _new_of_subclass(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    """What torch.Tensor's own constructor gives for a tensor: the same one as `as_subclass`."""
    values = list(map(session.realize, args))
    is_plain = session.class_lookup(cls, "__new__") is torch.Tensor.__new__
    is_plain = is_plain and session.class_lookup(cls, "__init__") is torch.Tensor.__init__
    if kwargs or len(values) != 1 or not isinstance(values[0], TensorValue) or not is_plain:
        raise session.unsupported("construction", f"a {cls.__qualname__} is made")
    return session.call(values[0].get_attribute(session, "as_subclass"), [session.builtin(cls)], {})


def _new_of_type(
    session: Session, cls: Any, dtype: Value, args: Arguments, kwargs: Keywords
) -> Value:
    """A tensor of data in lists, or an empty one of sizes."""
    values = list(map(session.realize, args))
    types = list(map(methodcaller("python_type"), values))
    make: Any = None
    if types in ([list], [tuple]):
        make = torch.tensor
    elif types == [torch.Size] or set(types) <= {int}:
        make = torch.empty
        values = values or [ConstantValue(0)]
    if kwargs or make is None:
        raise session.unsupported("construction", f"a {cls.__name__} is made of no lists or sizes")
    options = {"dtype": dtype, "device": ConstantValue("cpu")}
    return session.call(session.builtin(make), values, options)


def _states_type(cls: Any, dtype: torch.dtype) -> None:
    @means(cls, how=How.UNREALIZED)
    def rule(session: Session, args: Arguments, kwargs: Keywords) -> Value:
        return _new_of_type(session, cls, ConstantValue(dtype), args, kwargs)


for _cls, _dtype in _OF_TYPE.items():
    _states_type(_cls, _dtype)


def _tensor_of(session: Session, data: Value, kwargs: Keywords) -> Value | None:
    leaves: list[Value] = []
    shape = _gather(session, data, leaves)
    if shape is None or all(isinstance(leaf, ConstantValue) for leaf in leaves):
        return None
    dtypes = list(map(_dtype_of, leaves))
    holds_floats = not _FLOATS.isdisjoint(dtypes)
    dtype = session.known(kwargs.get("dtype", NONE))
    if dtype is None:
        dtype = functools.reduce(torch.promote_types, dtypes)
    if dtype not in _FLOATS and (holds_floats or not all(map(partial(_fits, dtype=dtype), leaves))):
        return None
    on = {}
    if "device" in kwargs:
        on = {"device": kwargs["device"]}
    if on and str(session.known(on["device"])) not in ("cpu", "None"):
        return None
    tensors = list(map(partial(_filled, session, dtype=dtype, on=on), leaves))
    if shape:
        stacked = session.call_function(torch.stack, TupleValue(tensors, tuple))
        sizes = map(ConstantValue, shape)
        return session.call_method("reshape", stacked, *sizes)
    if dtype is torch.int64 and isinstance(tensors[0], TensorValue):
        session.graph.known.sizes[id(tensors[0].fake)] = tensors[0].fake, leaves[0]
    return tensors[0]


def _gather(session: Session, data: Value, leaves: list[Value]) -> tuple[int, ...] | None:
    """The shape of nested lists of numbers, which are added to `leaves`; None where it has none."""
    data = session.realize(data)
    if isinstance(data, (ListValue, TupleValue)) and data.python_type() in (list, tuple):
        if not data.items or len(data.items) > _MOST:
            return None
        shapes = set(map(partial(_gather, session, leaves=leaves), data.items))
        inner = shapes.pop()
        if shapes or inner is None or len(leaves) > _MOST:
            return None
        return (len(data.items), *inner)
    is_number = isinstance(data, ConstantValue) and type(data.object) in (int, float, bool)
    if isinstance(data, TensorValue) and not _is_read(data):
        return None
    is_size = isinstance(data, SymIntValue) and not is_decided_by_data(data.fake)
    if (
        not is_number
        and not is_size
        and not isinstance(data, TensorValue)
        and not (isinstance(data, NumberValue) and data.cls in (int, float))
    ):
        return None
    leaves.append(data)
    return ()


def _is_read(tensor: TensorValue) -> bool:
    """Whether torch.tensor takes its number as an element; of one that requires a gradient it warns
    first."""
    fake = tensor.fake
    if tensor.cls is not torch.Tensor or fake.dim() or fake.requires_grad:
        return False
    is_plain = fake.device.type == "cpu" and not is_functorch_wrapped_tensor(fake)
    return is_plain and fake.dtype in _READ


def _dtype_of(number: Value) -> torch.dtype:
    """The type of a tensor of this number alone."""
    if isinstance(number, TensorValue):
        return number.fake.dtype
    if number.python_type() is float:
        return torch.get_default_dtype()
    if number.python_type() is bool:
        return torch.bool
    return torch.int64


def _fits(number: Value, dtype: torch.dtype) -> bool:
    """Whether it is one of a type of integers; for one that varies this becomes a guard. torch
    raises an error else."""
    if dtype is torch.int64 or isinstance(number, TensorValue) and number.fake.dtype is dtype:
        return True
    if isinstance(number, SymIntValue):
        value = number.fake
    else:
        value = getattr(number, "object", None)
    return (
        dtype is torch.int32
        and value is not None
        and bool(-1 << 31 <= value)
        and bool(value < 1 << 31)
    )


def _filled(session: Session, number: Value, dtype: torch.dtype, on: dict[str, Any]) -> Value:
    """A tensor of rank 0 with the number, which torch converts to float64 on its way to any type of
    floats."""
    tensor: Value = NONE
    if isinstance(number, NumberValue):
        tensor = number.tensor
    elif isinstance(number, TensorValue):
        tensor = number
    own = tensor
    if tensor is NONE:
        full_dtype = dtype
        if isinstance(number, SymIntValue):
            full_dtype = torch.int64
        named = {"dtype": ConstantValue(full_dtype), **on}
        tensor = session.call_function(torch.full, TupleValue([], tuple), number, **named)
    steps = (torch.float64, dtype) if dtype in _FLOATS else (dtype,)
    # the number's own tensor is nobody's to write: it may be that of other calls
    for step in steps:
        options: dict[str, Value] = {}
        if tensor is own and step is dtype:
            options["copy"] = ConstantValue(True)
        tensor = session.call_method("to", tensor, ConstantValue(step), **options)
    return tensor
