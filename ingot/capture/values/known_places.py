"""`nonzero` of elements that are known: how many there are is known as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ingot.capture.meanings import How, means
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.outside_branches import elements_from_outside
from ingot.capture.values.tensor import TensorValue
from ingot.graph.known_tensors import MOST

if TYPE_CHECKING:
    from ingot.capture.session import Session


@means(torch.Tensor.nonzero, how=How.METHOD)
def _nonzero(
    session: Session, tensor: TensorValue, args: Arguments, kwargs: Keywords
) -> Value | None:
    as_tuple = session.realize(kwargs.get("as_tuple", ConstantValue(False)))
    if args or kwargs.keys() - {"as_tuple"} or not as_tuple.is_constant():
        return None
    if tensor.fake.device.type != "cpu" or not tensor.fake.dim():
        return None
    elements = elements_from_outside(session, tensor)
    if elements is None:
        return None
    by_dimension = elements.nonzero().t()
    if not 0 < by_dimension.numel() <= MOST:  # of none at all, the strides are others
        return None
    numbers = session.wrap_constant(by_dimension.flatten().tolist())
    places = session.call_function(torch.tensor, numbers, dtype=ConstantValue(torch.int64))
    sizes = map(ConstantValue, by_dimension.shape)
    places = session.call_method("reshape", places, *sizes)
    return session.call_method("unbind" if as_tuple.constant() else "t", places)


@means(torch.nonzero, how=How.OPERATION)
def _nonzero_of(session: Session, args: Arguments, kwargs: Keywords) -> Value | None:
    tensor = session.realize(args[0]) if len(args) == 1 else None
    if not isinstance(tensor, TensorValue):
        return None
    return _nonzero(session, tensor, (), kwargs)
