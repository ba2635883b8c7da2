"""Packed sequences: how many sequences there are is the first of the sizes of their steps.

Where they were packed in the graph, it is known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ingot.capture.meanings import How, means
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.tensor import SymIntValue, TensorValue
from ingot.torch_private import pack_padded_sequence

if TYPE_CHECKING:
    from ingot.capture.session import Session


class _Packed(dict[int, tuple[TensorValue, Value]]):
    """The sizes of the steps of what a capture has packed, by the id of the fake, and how many
    sequences they are."""


@means(pack_padded_sequence, how=How.OPERATION)
def _pack(session: Session, args: Arguments, kwargs: Keywords) -> Value | None:
    values = list(map(session.realize, args))
    if kwargs or len(values) != 3:
        return None
    padded, _, batch_first = values
    if not isinstance(padded, TensorValue) or padded.fake.dim() < 2:
        return None
    if not batch_first.is_constant():
        return None
    packed = session.call_function(pack_padded_sequence, *values)
    _, batch_sizes = session.unpacked(packed)
    if isinstance(batch_sizes, TensorValue):
        (count,) = session.unpacked(padded.shape(session))[not batch_first.constant() :][:1]
        session.state(_Packed)[id(batch_sizes.fake)] = batch_sizes, session.realize(count)
    return packed


def first_batch_size(session: Session, tensor: TensorValue, key: Value) -> Value | None:
    """The first of such sizes, of which the number is known; None of other tensors and keys."""
    known = session.state(_Packed).get(id(tensor.fake))
    if known is None or not isinstance(key, ConstantValue) or type(key.object) is not int:
        return None
    if key.object != 0 or tensor.fake.is_inference() or tensor.fake._version:
        return None
    first = session.call_method("select", tensor, ConstantValue(0), ConstantValue(0))
    assert isinstance(first, TensorValue)
    count = known[1]
    if isinstance(count, SymIntValue):
        session.graph.known.sizes[id(first.fake)] = first.fake, count
    else:
        session.graph.context.known[id(first.fake)] = first.fake, torch.tensor(count.constant())
    return first
