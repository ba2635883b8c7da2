"""torch functions of Python numbers that are not known during capture.

Each becomes an operation that takes a tensor of rank 0 in the number's place, with eager's result.
Operators are in `numbers.py`."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ingot.capture.meanings import How, means
from ingot.capture.values.base import Arguments, Keywords, Operator, OptionalRule, Value, map_values
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.number_reads import read
from ingot.capture.values.numbers import (
    FLOATS,
    NumberValue,
    OutsideNumber,
    call,
    converted,
    fits,
    method,
)
from ingot.capture.values.relations import RELATIONS
from ingot.capture.values.tensor import TensorValue, is_none
from ingot.capture.values.tensor_lists import dtypes_in
from ingot.graph.functional import draws_in_memory_order

if TYPE_CHECKING:
    from ingot.capture.session import Session

_BY_NAME: dict[str, Operator] = {
    "add": operator.add,
    "sub": operator.sub,
    "subtract": operator.sub,
    "mul": operator.mul,
    "multiply": operator.mul,
    "div": operator.truediv,
    "divide": operator.truediv,
    "true_divide": operator.truediv,
    "remainder": operator.mod,
    "fmod": torch.fmod,
    "floor_divide": operator.floordiv,
    "pow": operator.pow,
    **{function.__name__: function for function in RELATIONS},
    **{f"{name}_": getattr(operator, f"i{name}") for name in ("add", "sub", "mul")},
    "div_": operator.itruediv,
}
"""By the name of a torch function or Tensor method of two arguments: the operator that does the
same."""


def with_number(session: Session, name: str, args: Arguments, kwargs: Keywords) -> Value | None:
    """The call of a torch function or Tensor method of a tensor and a number read from one; None if
    it is none."""
    if name.rstrip("_") in _SCALED and (result := _scaled(session, name, args, kwargs)) is not None:
        return result
    if name in _FORMS:
        names, form = _FORMS[name]
        arguments = session.realize_all(dict(zip(names, args)) | kwargs)
        if len(args) > len(names) or not any(map(_is_float, arguments.values())):
            return None
        return form(session, name, arguments)
    if len(args) != 2 or name not in _BY_NAME or kwargs and kwargs.keys() != {"rounding_mode"}:
        return None
    left, right = map(session.realize, args)
    if kwargs:
        return _quotient(session, name, left, right, kwargs)
    if isinstance(left, TensorValue) and isinstance(right, NumberValue):
        return right.with_tensor(session, _BY_NAME[name], left, False)
    if isinstance(left, NumberValue) and isinstance(right, TensorValue):
        return left.with_tensor(session, _BY_NAME[name], right, True)
    return None


def _quotient(
    session: Session, name: str, left: Value, right: Value, kwargs: Keywords
) -> Value | None:
    """A quotient of floats that is rounded to an integer."""
    if not isinstance(left, TensorValue) or not _is_float(right):
        return None
    if left.fake.dtype not in (torch.float32, torch.float64):
        return None
    number = _as(session, right, left.fake.dtype)
    return session.call_method(name, left, number, **kwargs)  # type: ignore[arg-type]


_SCALED: dict[str, tuple[str, tuple[str, ...]]] = {
    "add": ("alpha", ("other",)),
    "sub": ("alpha", ("other",)),
    "addcmul": ("value", ("tensor1", "tensor2")),
    "addcdiv": ("value", ("tensor1", "tensor2")),
    "lerp": ("weight", ("end",)),
}
"""Operations of tensors that take a number besides: the name of the number, and those of the
further tensors."""


def _scaled(session: Session, name: str, args: Arguments, kwargs: Keywords) -> Value | None:
    """One of these, of a number that is not known during capture. None where it is known.

    The operation takes a tensor of rank 0, which in float32 and float64 holds what eager makes of
    the number."""
    form = name.rstrip("_")
    label, operands = _SCALED[form]
    arguments = dict(zip(("self", *operands, label), args)) | kwargs
    number: Value | None = None
    if label in arguments:
        number = session.realize(arguments.pop(label))
    if isinstance(number, TensorValue) and label != "weight":  # of which there are tensors
        number = read(session, number)
    if not isinstance(number, NumberValue):
        return None
    tensors = list(map(session.realize, arguments.values()))
    if label == "alpha" and len(tensors) == 2:
        tensors[1] = _widened(session, *tensors)
    dtypes = dtypes_in(tensors)
    if len(dtypes) != 1 + len(operands) or set(dtypes) not in ({torch.float32}, {torch.float64}):
        raise session.unsupported("argument-kind", f"Tensor.{name} is given {number.describe()}")
    target, first, *rest = tensors
    assert isinstance(target, TensorValue)
    if not fits(session, number, target.fake.dtype):
        return None
    if form == "sub":
        number = number.unary(session, operator.neg)
        assert isinstance(number, NumberValue)
    scale = converted(session, number.tensor, target.fake.dtype)
    if form == "lerp":
        return method(session, name, target, first, scale)
    if label == "alpha":
        return method(session, name.replace(form, "addcmul"), target, first, scale)
    return method(session, name, target, call(session, operator.mul, scale, first), *rest)


def _widened(session: Session, target: Value, other: Value) -> Value:
    """Halves that are added to a wider tensor: in its type, which eager computes in."""
    if isinstance(target, TensorValue) and isinstance(other, TensorValue):
        dtype, addend = target.fake.dtype, other.fake
        if (
            dtype in (torch.float32, torch.float64)
            and addend.dtype in (torch.float16, torch.bfloat16)
            and addend.dim()
        ):
            return converted(session, other, dtype)
    return other


def _is_float(value: Value) -> bool:
    return isinstance(value, NumberValue) and value.cls is float


def _as(session: Session, value: Value, dtype: torch.dtype) -> TensorValue | None:
    """A number as a tensor of rank 0 that holds what eager makes of it. None for other values, and
    where eager refuses the number."""
    if isinstance(value, NumberValue) and value.cls is float:
        if fits(session, value, dtype):
            return converted(session, value.tensor, dtype)
        return None
    if isinstance(value, ConstantValue) and type(value.object) in (int, float, bool):
        named: Keywords = {"dtype": ConstantValue(dtype)}
        tensor = session.call_function(torch.full, session.wrap_constant(()), value, **named)
        if isinstance(tensor, TensorValue):
            return tensor
        return None
    return None


def _floating(value: Value | None) -> TensorValue | None:
    if isinstance(value, TensorValue) and value.fake.dtype in FLOATS:
        return value
    return None


def _bounded(session: Session, name: str, arguments: Keywords) -> Value | None:
    """A tensor held between numbers: the operation that takes tensors."""
    target = _floating(arguments.pop("self", None) or arguments.pop("input", None))
    labels = _FORMS[name][0][1:]
    if target is None or not arguments.keys() <= set(labels):
        return None
    bounds: list[Value] = []
    for bound in (arguments.get("min", NONE), arguments.get("max", NONE)):
        operand = bound if is_none(bound) else _as(session, bound, target.fake.dtype)
        if operand is None:
            return None
        bounds.append(operand)
    if (
        target.fake.requires_grad
        and torch.is_grad_enabled()
        and _GRADIENT_AT_BOUND not in _BOTH_HAVE
    ):
        return _with_gradient_of_numbers(session, target, bounds, name.endswith("_"))
    form = "clamp"
    if name.endswith("_"):
        form = "clamp_"
    return session.call_method(form, target, *bounds)


def _gradient_at_bound(bound: Any) -> float:
    """Eager's gradient of clamp for an element that is equal to the bound, which is 1."""
    with torch.inference_mode(False), torch.enable_grad():
        history: Any = torch.ones((), device="cpu", requires_grad=True).clamp(min=bound).grad_fn
        gradients = history(torch.ones((), device="cpu"))
        return float(gradients if isinstance(gradients, torch.Tensor) else gradients[0])


_GRADIENT_AT_BOUND = _gradient_at_bound(1.0)
_BOTH_HAVE = {_GRADIENT_AT_BOUND} & {_gradient_at_bound(torch.ones((), device="cpu"))}
"""Empty where eager treats tensors in another way, as since torch 2.14: they have half of the
gradient each."""


def _with_gradient_of_numbers(
    session: Session, target: TensorValue, bounds: list[Value], in_place: bool
) -> Value:
    """What a tensor is held between, with the gradient that eager has of it where the bounds are
    numbers."""
    comparisons = (operator.gt, operator.lt)
    if _GRADIENT_AT_BOUND:
        comparisons = (operator.ge, operator.le)
    inside: TensorValue | None = None
    for compare, bound in zip(comparisons, bounds):
        if not is_none(bound):
            side = call(session, compare, target, bound)
            if inside is None:
                inside = side
            else:
                inside = call(session, operator.and_, inside, side)
    assert inside is not None
    clamped = method(session, "clamp", method(session, "detach", target), *bounds)
    result = call(session, torch.where, inside, target, clamped)
    if in_place:
        return method(session, "copy_", target, result)
    return result


def _filled(session: Session, name: str, arguments: Keywords) -> Value | None:
    """A new tensor of one number."""
    like = arguments.get("self") or arguments.get("input")
    dtype = session.known(arguments.get("dtype", NONE))
    if dtype is None:
        if isinstance(like, TensorValue):
            dtype = like.fake.dtype
        else:
            dtype = torch.get_default_dtype()
    number = arguments.pop("fill_value", NONE)
    if dtype not in FLOATS or not _is_float(number) or not arguments.keys() <= _OF_FILLED:
        return None
    if not fits(session, number, dtype):
        return None
    args = []
    for key in ("self", "input", "size"):
        if key in arguments:
            args.append(session.deep(arguments.pop(key)))
    args.append(ConstantValue(0.0))
    named = map_values(session.deep, arguments)
    function = getattr(torch, name, None)
    if function is None:
        result = session.call_method(name, *args, **named)
    else:
        result = session.call_function(function, *args, **named)
    return session.call_method("fill_", result, number.tensor)  # type: ignore[attr-defined]


_OF_FILLED = frozenset({"self", "input", "size", "dtype", "device"})


def _fill(session: Session, name: str, arguments: Keywords) -> Value | None:
    target = _floating(arguments.get("self", arguments.get("input")))
    number = arguments.get("value", NONE)
    if (
        target is None
        or not _is_float(number)
        or len(arguments) != 2
        or not fits(session, number, target.fake.dtype)
    ):
        return None
    return session.call_method(name, target, number.tensor)  # type: ignore[attr-defined]


def _masked_fill(session: Session, name: str, arguments: Keywords) -> Value | None:
    target = _floating(arguments.get("self", arguments.get("input")))
    mask, number = arguments.get("mask"), arguments.get("value", NONE)
    if (
        target is None
        or not isinstance(mask, TensorValue)
        or not _is_float(number)
        or len(arguments) != 3
    ):
        return None
    operand = _as(session, number, target.fake.dtype)
    if operand is None:
        return None
    return method(session, name, target, mask, operand)


def _scalar_tensor(session: Session, name: str, arguments: Keywords) -> Value | None:
    dtype = session.known(arguments.get("dtype", NONE)) or torch.get_default_dtype()
    on = str(session.known(arguments.get("device", ConstantValue("cpu"))))
    if dtype not in FLOATS or on != "cpu" or not arguments.keys() <= {"s", "dtype", "device"}:
        return None
    if not fits(session, arguments["s"], dtype):
        return None
    return converted(session, arguments["s"].tensor, dtype, copy=True)  # type: ignore[attr-defined]


def _drawn(session: Session, name: str, arguments: Keywords) -> Value | None:
    """Of a probability, where eager draws the same numbers for a tensor that holds it."""
    target, number = _floating(arguments.get("self")), arguments.get("p")
    if target is None or not isinstance(number, OutsideNumber) or len(arguments) != 2:
        return None
    same = target.fake.device.type == "cpu" and draws_in_memory_order()
    if not same or not number.applied(session, _is_probability).constant():
        return None
    return session.call_method(name, target, number.tensor)


def _is_probability(number: float) -> bool:
    return 0 <= number <= 1


def _linspace(session: Session, name: str, arguments: Keywords) -> Value | None:
    """Between numbers in tensors."""
    dtype = session.known(arguments.get("dtype", NONE)) or torch.get_default_dtype()
    on = str(session.known(arguments.get("device", ConstantValue("cpu"))))
    if (
        dtype not in (torch.float32, torch.float64)
        or on != "cpu"
        or not arguments.keys() <= _OF_LINSPACE
    ):
        return None
    ends = arguments.pop("start", NONE), arguments.pop("end", NONE)
    operands = []
    for end in ends:
        operands.append(
            end.tensor if isinstance(end, NumberValue) else _as(session, end, torch.float64)
        )
    if None in operands or not all(map(partial(fits, session, dtype=dtype), ends)):
        return None
    args = [*operands, session.deep(arguments.pop("steps", NONE))]
    named = map_values(session.deep, arguments)
    return session.call_function(torch.linspace, *args, **named)  # type: ignore[arg-type]


_OF_LINSPACE = frozenset({"start", "end", "steps", "dtype", "device"})


_FORMS: dict[str, tuple[tuple[str, ...], Callable[[Session, str, Keywords], Value | None]]] = {
    **{
        f"{name}{end}": (("self", "min", "max"), _bounded)
        for name in ("clamp", "clip")
        for end in ("", "_")
    },
    **{
        f"clamp_{side}{end}": (("self", side), _bounded)
        for side in ("min", "max")
        for end in ("", "_")
    },
    "full": (("size", "fill_value"), _filled),
    "full_like": (("self", "fill_value"), _filled),
    "new_full": (("self", "size", "fill_value"), _filled),
    "fill": (("self", "value"), _fill),
    "fill_": (("self", "value"), _fill),
    "masked_fill": (("self", "mask", "value"), _masked_fill),
    "masked_fill_": (("self", "mask", "value"), _masked_fill),
    "scalar_tensor": (("s",), _scalar_tensor),
    "bernoulli_": (("self", "p"), _drawn),
    "linspace": (("start", "end", "steps"), _linspace),
}
"""By the name of a torch function or Tensor method: the names of its arguments, and the rule for
unknown numbers."""


@means(torch.where, how=How.OPERATION)
def _where(session: Session, args: Arguments, kwargs: Keywords) -> Value | None:
    """torch.where of a number that is not known."""
    arguments = dict(zip(("condition", "input", "other"), args)) | kwargs
    if len(args) > 3 or arguments.keys() != {"condition", "input", "other"}:
        return None
    condition = session.realize(arguments["condition"])
    sides = session.realize(arguments["input"]), session.realize(arguments["other"])
    if not any(map(_is_float, sides)) or not isinstance(condition, TensorValue):
        return None
    dtype = [*dtypes_in(sides), torch.int64][0]
    if dtype.is_complex:
        return None
    if dtype not in FLOATS:
        dtype = torch.get_default_dtype()
    operands = []
    for side in sides:
        operands.append(side if isinstance(side, TensorValue) else _as(session, side, dtype))
    known = list(filter(None, operands))
    if len(known) < len(operands):
        return None
    return call(session, torch.where, condition, *known)


def _computes(name: str) -> OptionalRule:
    def rule(
        session: Session, tensor: TensorValue, args: Arguments, kwargs: Keywords
    ) -> Value | None:
        return with_number(session, name, [tensor, *args], kwargs)

    return rule


for _name in {*_BY_NAME, *_FORMS, *_SCALED, *(f"{form}_" for form in _SCALED)}:
    if hasattr(torch.Tensor, _name):
        means(getattr(torch.Tensor, _name), how=How.METHOD)(_computes(_name))
