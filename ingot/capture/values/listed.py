"""`tolist()` of a few integers that an outside tensor holds, or that follow from such.

They are guarded like a Python int among the arguments."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ingot.capture.guards import Kind, Quantity
from ingot.capture.meanings import How, means
from ingot.capture.sources import DerivedSource, ItemSource, Source
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.sequences import TupleValue
from ingot.capture.values.tensor import TensorValue
from ingot.graph.fakes import FakeTensor
from ingot.graph.known_tensors import COMPUTES, MOST
from ingot.graph.repeats import is_torchs
from ingot.torch_private import is_functorch_wrapped_tensor

if TYPE_CHECKING:
    from ingot.capture.session import Session

_INTEGERS = frozenset({torch.int8, torch.int16, torch.int32, torch.int64})
_EXACT = _INTEGERS | {torch.bool}
_COMPUTES = COMPUTES | {"repeat_interleave", "pad", "unique_consecutive"}
_STEPS, _ELEMENTS = 64, 1 << 16
"""Of operations between what is known and the integers that are asked for, and of what each
computes: the most."""


class _Unknown(Exception):
    """The integers do not follow from what tensors from outside hold."""


def integers(tensor: torch.Tensor) -> tuple[int, ...]:
    """The elements of a small tensor of integers on the CPU, in order. Raises TypeError for
    another."""
    if tensor.dtype not in _INTEGERS or tensor.device.type != "cpu" or tensor.numel() > MOST:
        raise TypeError("not a few integers on the CPU")
    return tuple(tensor.flatten().tolist())


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
    facts = _facts(tensor.source, session.graph.inputs.value_of(tensor))
    items = []
    for source, number in facts:
        items.append(session.wrap(number, source))
    return _nested(session, items, tensor.fake.shape)


def _holds_integers(fake: torch.Tensor) -> bool:
    """Whether a tensor holds a few integers, so far as is known of its size."""
    return fake.dtype in _INTEGERS and fake.device.type == "cpu" and _elements(fake) <= MOST


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


# -- what follows from them ------------------------------------------------------------------------


def _computed(session: Session, tensor: TensorValue) -> Any:
    """The list of a tensor that the graph computes of constants and of outside tensors' integers.

    None where these are symbols or it takes more than a few steps. They are guarded."""
    inputs = session.graph.inputs.tensors
    try:
        nodes = _needed(tensor.fx_node)
        outside = {node: inputs[node] for node in nodes if node.op == "placeholder"}
        facts: list[tuple[Source, Any]] = []
        for known in outside.values():
            facts += _facts(known.entry.source, known.value)
        if any(Quantity(source, "value") in session.observed for source, _ in facts):
            return None
        values: dict[fx.Node, Any] = {}
        with torch.no_grad():
            for node in nodes:
                if node in outside:
                    values[node] = outside[node].value
                else:
                    values[node] = _run(node, values)
        integers(values[tensor.fx_node])
    except (_Unknown, KeyError, RuntimeError, ValueError, TypeError, IndexError):
        return None
    for source, number in facts:
        session.guard(source, Kind.EQUALS, number)
    return values[tensor.fx_node].tolist()


def _facts(source: Source, tensor: torch.Tensor) -> Iterator[tuple[Source, int]]:
    """The integers of a tensor from outside, each with where it is found."""
    for k, number in enumerate(integers(tensor)):
        yield ItemSource(DerivedSource(source, integers), k), number


def _needed(node: fx.Node) -> list[fx.Node]:
    """The nodes that a value is computed by, itself last. Raises _Unknown where that is more than a
    few integers."""
    nodes: dict[fx.Node, None] = {}
    stack = [node]
    while stack:
        node = stack[-1]
        waiting = []
        for before in node.all_input_nodes:
            if before not in nodes:
                waiting.append(before)
        if waiting and len(nodes) + len(stack) <= _STEPS:
            stack.extend(waiting)
            continue
        if waiting or not _is_plain(node):
            raise _Unknown
        nodes[stack.pop()] = None
    return list(nodes)


def _is_plain(node: fx.Node) -> bool:
    """Whether a node is a small tensor of integers from outside, or computes integers and nothing
    else."""
    value = node.meta["val"]
    if node.op == "placeholder":
        sizes = value.shape if type(value) is FakeTensor else (None,)
        return all(isinstance(size, int) for size in sizes) and _holds_integers(value)
    if node.op not in ("call_function", "call_method") or "out" in node.kwargs:
        return False
    if isinstance(node.target, str):
        name = node.target
    else:
        name = getattr(node.target, "__name__", "")
    if name not in _COMPUTES or not is_torchs(node.target) or type(value) is not FakeTensor:
        return False
    return value.dtype in _EXACT and value.device.type == "cpu" and _elements(value) <= _ELEMENTS


def _run(node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
    if isinstance(node.target, str):
        return getattr(torch.Tensor, node.target)(*args, **kwargs)
    return node.target(*args, **kwargs)  # type: ignore[operator]
