"""What `max(t, 0.5)` and `min(t, 0.5)` give, of a tensor of rank 0 and a number.

Eager gives one of the two, and so a tensor or a number. An operator of a tensor of floats with
dimensions of its own has the same result for either. So that stays in the graph, where the value is
a number. All else tells one from the other, and breaks the graph before the choice.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ingot.capture.values.base import Arguments, Keywords, Operator, UnaryOperator, Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.numbers import FLOATS, OF_TENSORS, NumberValue, call, converted
from ingot.capture.values.selected import note_copy
from ingot.capture.values.tensor import TensorValue
from ingot.errors import unsupported
from ingot.torch_private import is_functorch_wrapped_tensor

if TYPE_CHECKING:
    from ingot.capture.session import Session

_LARGEST = 1 << 53  # below it float64 holds each integer


class TensorOrNumber(Value):
    """One of the two. `number` holds it in float64, `step` is the number of the instruction that
    chose, at the user's line `where`."""

    __slots__ = ("number", "step", "where")
    has_two_types = True

    def __init__(self, session: Session, number: NumberValue) -> None:
        super().__init__()
        self.number = number
        self.step, self.where = session.step_of_outermost, session.where

    def _refuse(self) -> NoReturn:
        raise unsupported(
            "number-in-tensor",
            "the data decide whether max() or min() gives a tensor or a number",
            self.where,
            step=self.step,
        )

    def describe(self) -> str:
        return "a tensor or a number"

    def python_type(self) -> type:
        self._refuse()

    def constant(self) -> Any:
        self._refuse()

    def refuse_identity(self, session: Session, other: Value) -> None:
        self._refuse()

    def key(self, session: Session) -> Any:
        self._refuse()

    def truth(self, session: Session) -> bool:
        self._refuse()

    def get_attribute(self, session: Session, name: str) -> Value:
        self._refuse()

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        self._refuse()

    def unary(self, session: Session, function: UnaryOperator) -> Value:
        self._refuse()

    def of_either(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value:
        if not isinstance(other, TensorValue):
            self._refuse()
        fake = other.fake
        is_wide = fake.dtype in (torch.float32, torch.float64) or fake.device.type == "cpu"
        is_plain = other.cls is torch.Tensor and not session.overrides.has_modes
        if not (is_plain and is_wide and fake.dim() and fake.dtype in FLOATS):
            self._refuse()
        # a number is divided by way of a reciprocal, a tensor is not
        is_alike = function in OF_TENSORS and (reflected or function is not operator.truediv)
        if not is_alike or is_functorch_wrapped_tensor(fake):
            self._refuse()
        return self.number.with_tensor(session, function, other, not reflected)


def can_bound(session: Session, tensor: Value, number: Value) -> bool:
    """Whether one of the two may stand for both: a tensor of rank 0, of floats and without a
    gradient, and a number."""
    if not isinstance(tensor, TensorValue) or not isinstance(number, ConstantValue):
        return False
    fake, value = tensor.fake, number.object
    if tensor.cls is not torch.Tensor or fake.dim() or fake.requires_grad:
        return False
    if tensor.known_number(session) is not None:
        return False
    if fake.dtype not in FLOATS or fake.is_neg() or is_functorch_wrapped_tensor(fake):
        return False
    return type(value) is float or (type(value) is int and abs(value) < _LARGEST)


def bound(session: Session, better: Callable[..., Any], item: Value, best: Value) -> TensorOrNumber:
    """`item if better(item, best) else best`."""
    condition = call(session, better, item, best)
    operands = []
    for value in (item, best):
        if isinstance(value, TensorValue):
            value = converted(session, value, torch.float64)
        operands.append(value)
    chosen = call(session, torch.where, condition, *operands)
    for value in (item, best):
        if isinstance(value, TensorValue):
            what = "the data decide whether max() or min() gives it"
            note_copy(session, value, chosen, what, may_leave=True)
    return TensorOrNumber(session, NumberValue(float, chosen))
