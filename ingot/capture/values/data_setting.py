"""`tensor.data = other`: the tensor shows other memory from here on, and all else of it stays.

In: a tensor and what its `data` is set to. Out: for a tensor made inside, another node that it
stands for; for one from outside a side effect, if the graph has no more use for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ingot.capture.effects import Operation
from ingot.capture.meanings import How, means
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.tensor import TensorValue
from ingot.graph.fakes import data_of, look_of, shows_the_same
from ingot.wrapped import is_transformed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ingot.capture.session import Session


@means(torch.Tensor.data, how=How.METHOD)
def set_data(session: Session, tensor: TensorValue, args: Arguments, kwargs: Keywords) -> Value:
    """Sets `data`."""
    value = session.realize(args[0])
    if isinstance(value, TensorValue):
        if shows_the_same(tensor.fake, value.fake):
            return NONE  # as `module.to(...)` may do
        if _may_be_saved(session):
            sentence = "side effect: Tensor.data is set, which a backward may read"
            raise session.unsupported("tensor-side-effect", sentence)
        if tensor.source is not None and _may_be_replaced(session, tensor, value):
            _replace(session, tensor, value)
            return NONE
        if tensor.source is None and _is_plain(tensor, value):
            _show(session, tensor, value)
            return NONE
    raise session.unsupported("tensor-side-effect", "side effect: Tensor.data is set")


def _may_be_saved(session: Session) -> bool:
    """Whether a backward may read the tensor, which in eager finds its new data: some result has a
    history."""
    for known in session.graph.by_fake.values():
        if known.fake.requires_grad and not known.fake.is_leaf:
            return True
    return False


def _is_plain(tensor: TensorValue, value: TensorValue) -> bool:
    """Whether there is nothing to a tensor made inside but its elements."""
    fake = tensor.fake
    return (
        not fake.requires_grad
        and fake._base is None
        and tensor.cls is torch.Tensor
        and tensor.gradient is NONE
        and not (fake.is_inference() or value.fake.is_inference() or is_transformed())
        and fake.device == value.fake.device
    )


def _show(session: Session, tensor: TensorValue, value: TensorValue) -> None:
    """Has a tensor made inside stand for the data of another."""
    data = session.call_function(data_of, value)
    assert isinstance(data, TensorValue)
    by_fake = session.graph.by_fake
    by_fake.pop(id(tensor.fake), None)
    tensor.fake, tensor.fx_node = data.fake, data.fx_node
    by_fake[id(data.fake)] = tensor


class _Replacement:
    """The data that a tensor from outside gets once the graph has run."""

    def __init__(self, tensor: TensorValue, value: TensorValue) -> None:
        self.tensor, self.value = tensor, value

    def operations(self) -> Iterable[Operation]:
        """Sets `data`."""
        yield Operation(setattr, (self.tensor, ConstantValue("data"), self.value))


def _may_be_replaced(session: Session, tensor: TensorValue, value: TensorValue) -> bool:
    """Whether the data of a tensor from outside may be set behind the graph."""
    fake, other = tensor.fake, value.fake
    if fake.is_inference() or other.is_inference() or is_transformed() or tensor is value:
        return False
    real = session.graph.inputs.value_of(tensor)
    return value.source is None and real.is_leaf and look_of(fake) == look_of(other)  # type: ignore[arg-type]


def _replace(session: Session, tensor: TensorValue, value: TensorValue) -> None:
    session.graph.writes = True  # which tensors are the same is guarded by the memory they have
    session.effects.note(_Replacement(tensor, value))
    session.graph.replaced[tensor] = session.step_of_outermost
