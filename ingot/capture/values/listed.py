"""`tolist()` of a few integers that an outside tensor holds, or that follow from such.

They are guarded like a Python int among the arguments."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ingot.capture.guards import Kind
from ingot.capture.meanings import How, means
from ingot.capture.sources import Source
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.held_numbers import (
    INTEGERS,
    REFUSALS,
    HeldTensor,
    computation,
    elements,
    facts,
    is_observed,
)
from ingot.capture.values.sequences import TupleValue
from ingot.capture.values.tensor import TensorValue
from ingot.graph.known_tensors import MOST
from ingot.torch_private import is_functorch_wrapped_tensor

if TYPE_CHECKING:
    from ingot.capture.session import Session


@means(torch.Tensor.tolist, how=How.METHOD)
def _tolist(
    session: Session, tensor: TensorValue, args: Arguments, kwargs: Keywords
) -> Value | None:
    """A new list; None where that takes a look at what the graph computes."""
    if (
        args
        or kwargs
        or session.graph.known.of(tensor.fake) is not None
        or not _holds_integers(tensor.fake)
    ):
        return None
    if session.graph.writes or is_functorch_wrapped_tensor(tensor.fake):
        return None
    if tensor.source is None:
        numbers = _computed(session, tensor)
        if numbers is None:
            return None
        return session.wrap_constant(numbers)
    if torch.SymInt in map(type, tensor.fake.shape):
        return None
    items = []
    held = HeldTensor(tensor.source, session.graph.inputs.value_of(tensor))
    for source, number in facts(held):
        items.append(session.wrap(number, source))
    return _nested(session, items, tensor.fake.shape)


def _holds_integers(fake: torch.Tensor) -> bool:
    """Whether a tensor holds a few integers, so far as is known of its size."""
    return fake.dtype in INTEGERS and fake.device.type == "cpu" and _elements(fake) <= MOST


def _elements(fake: torch.Tensor) -> int:
    """The number of elements of a tensor, so far as is known of its size."""
    return math.prod([size for size in fake.shape if isinstance(size, int)])


def _nested(session: Session, items: Sequence[Value], shape: Sequence[int]) -> Value:
    """As `tolist` nests the elements of a tensor of this shape."""
    if not shape:
        return items[0]
    step = math.prod(shape[1:])
    rows = []
    for k in range(shape[0]):
        rows.append(_nested(session, items[k * step : (k + 1) * step], shape[1:]))
    return session.list_of(TupleValue(rows, tuple))


def _computed(session: Session, tensor: TensorValue) -> Any:
    """The list of a tensor that the graph computes of constants and of outside tensors' integers.

    None where these are symbols or it takes more than a few steps. They are guarded."""
    try:
        steps = computation(session, tensor.fx_node, INTEGERS)
        relied: list[tuple[Source, Any]] = []
        for held in steps.held.values():
            relied += facts(held)
        if any(is_observed(session, source) for source, _ in relied):
            return None
        numbers = steps.run()
        elements(numbers)
    except REFUSALS:
        return None
    for source, number in relied:
        session.guard(source, Kind.EQUALS, number)
    return numbers.tolist()
