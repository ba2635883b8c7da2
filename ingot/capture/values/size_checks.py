"""`torch._check` and its kin: what the program says of sizes that the data decide."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from ingot.capture.meanings import How, means
from ingot.capture.values.base import Arguments, Keywords, Rule, Value
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.numbers import NumberValue
from ingot.capture.values.relations import RELATIONS, RelationValue
from ingot.capture.values.tensor import TensorValue
from ingot.graph.unbacked import require_relation
from ingot.torch_private import (
    check,
    check_index,
    check_is_size,
    check_not_implemented,
    check_tensor_all,
    check_type,
    check_value,
)

if TYPE_CHECKING:
    from ingot.capture.session import Session


def _require(session: Session, condition: RelationValue) -> None:
    if condition.answer is False:
        raise session.unsupported(
            "size-check", f"{condition.describe()}, is checked, and cannot hold"
        )
    session.graph.require(session, require_relation, RELATIONS[condition.function], *condition.pair)


def _checks(check: Callable[..., None]) -> Rule:
    """The rule of a function that raises an error unless its first argument is true."""

    def rule(session: Session, args: Arguments, kwargs: Keywords) -> Value:
        condition = session.realize([*args, kwargs.get("cond", NONE)][0])
        if isinstance(condition, RelationValue):
            _require(session, condition)
        elif isinstance(condition, NumberValue) and condition.require_truth(session, True):
            pass
        elif not isinstance(condition, ConstantValue) or condition.object is not True:
            raise session.unsupported(
                "size-check", f"torch.{check.__name__} of what is not known to be true"
            )
        return NONE

    return rule


@means(check_is_size, how=How.UNREALIZED)
def _check_is_size(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    size = session.realize([*args, kwargs.get("i", NONE)][0])
    most = session.realize(kwargs.get("max", NONE))
    bounds = [session.binary(operator.ge, size, ConstantValue(0))]
    if most is not NONE:
        bounds.append(session.binary(operator.le, size, most))
    for bound in bounds:
        _CHECK(session, [bound], {})
    return NONE


@means(check_tensor_all, how=How.UNREALIZED)
def _check_tensor_all(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    condition = session.realize([*args, kwargs.get("cond", NONE)][0])
    if not isinstance(condition, TensorValue) or condition.fake.dtype is not torch.bool:
        raise session.unsupported(
            "size-check", "torch._check_tensor_all of what is no tensor of truth values"
        )
    every = session.call_method("all", condition)
    if not every.require_truth(session, True):
        raise session.unsupported(
            "size-check", f"torch._check_tensor_all of {condition.describe()}"
        )
    return NONE


_CHECK = _checks(check)
means(check, how=How.UNREALIZED)(_CHECK)
for _function in (check_value, check_index, check_type, check_not_implemented):
    means(_function, how=How.UNREALIZED)(_checks(_function))
