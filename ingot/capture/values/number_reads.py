"""Functions that read a number from a tensor, or make a tensor of one.

The number is a `NumberValue`: only the running program knows it.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch

from ingot.capture import polyfills
from ingot.capture.meanings import How, means
from ingot.capture.values.base import Arguments, Keywords, OptionalRule, Value
from ingot.capture.values.bounded import bound, can_bound
from ingot.capture.values.chosen import can_choose, choose
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.numbers import (
    FLOATS,
    HELD_AS,
    INTEGER_DTYPES,
    NumberValue,
    OutsideNumber,
    call,
    converted,
    method,
    operand_of_choice,
)
from ingot.capture.values.tensor import SymIntValue, TensorValue
from ingot.capture.values.tensor_lists import tensors_in
from ingot.graph.symbols import is_decided_by_data
from ingot.torch_private import is_functorch_wrapped_tensor

if TYPE_CHECKING:
    from ingot.capture.session import Session


def read(session: Session, tensor: TensorValue, cls: type | None = None) -> Value:
    """The number in a tensor of one element: `t.item()`, or `cls(t)`. It is read now, whatever is
    written later."""
    fake, dtype = tensor.fake, tensor.fake.dtype
    if id(fake) in session.graph.known.sizes and cls in (int, None):
        size: Value = session.graph.known.sizes[id(fake)][1]
        return size
    known = tensor.known_number(session)
    if known is not None:
        if cls is None:
            return session.wrap_constant(known.item())
        return session.wrap_result(cls, known)
    kind: type | None = None
    if dtype in FLOATS:
        kind = float
    elif dtype in INTEGER_DTYPES:
        kind = int
    elif dtype is torch.bool:
        kind = bool
    wrapped = is_functorch_wrapped_tensor(fake)
    sizes = fake.shape
    if kind is None or wrapped or any(isinstance(s, torch.SymInt) or s != 1 for s in sizes):
        raise session.unsupported("number-in-tensor", f"the value of {tensor.describe()} is read")
    if fake.requires_grad:
        tensor = method(session, "detach", tensor)
    if sizes:
        tensor = method(session, "reshape", tensor, ())
    number = NumberValue(kind, converted(session, tensor, HELD_AS[kind], copy=True))
    if cls is None:
        return number
    return number.convert(session, cls)


def choice(session: Session, number: Value, bound: Value, above: Value, below: Value) -> Value:
    """`above if number > bound else below` of a float that is read from a tensor and a constant."""
    number = session.realize(number)
    if not isinstance(number, NumberValue):  # that of a tensor whose elements are known
        if session.truth(session.binary(operator.gt, number, bound)):
            return above
        return below
    condition = call(session, operator.gt, number.tensor, bound)
    sides = session.realize(above), session.realize(below)
    operands = []
    for side in sides:
        operands.append(getattr(side, "tensor", side))
    result = call(session, torch.where, condition, *operands)
    if tensors_in(sides):
        return result
    return NumberValue(float, result)


@means(polyfills.are_in_graph)
def are_in_graph(session: Session, item: Value, best: Value) -> Value:
    pair = session.realize(item), session.realize(best)
    if can_choose(session, *pair) or can_bound(session, *pair) or can_bound(session, *pair[::-1]):
        return ConstantValue(True)
    is_read = any(
        isinstance(value, NumberValue) and not isinstance(value, OutsideNumber) for value in pair
    )
    kind = pair[0].python_type()
    is_read = is_read and kind is pair[1].python_type() and kind in (float, int)
    return ConstantValue(is_read and None not in map(operand_of_choice, pair))


@means(polyfills.better_of)
def better_of(session: Session, better: Value, item: Value, best: Value) -> Value:
    item, best = session.realize(item), session.realize(best)
    if isinstance(item, TensorValue) and isinstance(best, TensorValue):
        return choose(session, session.known(better), item, best)
    if isinstance(item, TensorValue) or isinstance(best, TensorValue):
        return bound(session, session.known(better), item, best)
    operands = list(filter(None, map(operand_of_choice, (item, best))))
    condition = call(session, session.known(better), *operands)
    return NumberValue(item.python_type(), call(session, torch.where, condition, *operands))


def tensor_of_number(session: Session, args: Arguments, kwargs: Keywords) -> Value | None:
    """torch.tensor or torch.as_tensor of a float that is read from a tensor and nothing else; None
    if it is none."""
    if len(args) != 1:
        return None
    number = session.realize(args[0])
    if not kwargs.keys() <= {"device"}:
        return None
    device = session.known(kwargs.get("device", ConstantValue("cpu")))
    if not isinstance(number, NumberValue) or number.cls is not float or str(device) != "cpu":
        return None
    return converted(session, number.tensor, torch.get_default_dtype(), copy=True)


@means(torch.div, how=How.OPERATION)
def _quotient_of_sizes(session: Session, args: Arguments, kwargs: Keywords) -> Value | None:
    """torch.div of a size that varies and a number: the tensor is a size as well where it is used
    as one."""
    if len(args) == 2:
        size, number = map(session.realize, args)
    else:
        size, number = (None, None)
    mode = None
    if list(kwargs) == ["rounding_mode"]:
        mode = session.known(kwargs["rounding_mode"])
    if (
        not isinstance(size, SymIntValue)
        or not isinstance(number, ConstantValue)
        or mode not in ("trunc", "floor")
    ):
        return None
    divisor = number.object
    if type(divisor) is not int or divisor <= 0 or is_decided_by_data(size.fake) or size.fake < 0:
        return None
    quotient, graph = size.binary(session, operator.floordiv, number, False), session.graph
    result = session.call_function(torch.div, size, number, **kwargs)
    if isinstance(quotient, SymIntValue) and isinstance(result, TensorValue):
        graph.known.sizes[id(result.fake)] = result.fake, quotient
    return result


def _reads(cls: type | None) -> OptionalRule:
    def rule(
        session: Session, tensor: TensorValue, args: Arguments, kwargs: Keywords
    ) -> Value | None:
        if args or kwargs:
            return None
        return read(session, tensor, cls)

    return rule


means(torch.Tensor.item, how=How.METHOD)(_reads(None))
means(torch.Tensor.__float__, how=How.METHOD)(_reads(float))
means(torch.Tensor.__int__, how=How.METHOD)(_reads(int))
means(torch.Tensor.__bool__, how=How.METHOD)(_reads(bool))
