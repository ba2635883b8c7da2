"""What follows from a few numbers that tensors from outside hold.

A number that a few operations compute of such tensors is known as soon as the call begins. So it
may decide what is captured, and a guard computes it again at the next call."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx

from ingot.capture.guards import Quantity
from ingot.capture.sources import DerivedSource, ItemSource, Source
from ingot.graph.fakes import FakeTensor, storage_key
from ingot.graph.known_tensors import COMPUTES, MOST
from ingot.graph.meta import tensors_in
from ingot.graph.repeats import is_torchs

if TYPE_CHECKING:
    from ingot.capture.session import Session

INTEGERS = frozenset({torch.int8, torch.int16, torch.int32, torch.int64})
NUMBERS = INTEGERS | {torch.bool, torch.uint8, torch.float32, torch.float64}
COMPARED = NUMBERS | {torch.float16, torch.bfloat16}
"""What numbers may be computed of on the way to a truth."""
_COMPUTES = COMPUTES | {"repeat_interleave", "pad", "unique_consecutive"}
_EXACT = frozenset(
    """
    tensor as_tensor scalar_tensor zeros ones full eye zeros_like ones_like full_like
    new_tensor new_zeros new_ones new_full clone detach to type_as float double
    neg abs min max amin amax clamp clip minimum maximum sort flip where eq ne lt le gt ge
    triu tril masked_fill _canonical_mask
    view reshape flatten ravel unsqueeze squeeze expand unbind stack cat concat select narrow t
    permute transpose repeat tile split chunk getitem contiguous inv pos
    repeat_interleave pad
    """.split()
)
"""Those that give the same floats on each device: they select, compare and convert."""
_STEPS = 64
"""Operations between what is known and the number that is asked for: the most."""
_ELEMENTS, _CONSTANTS = 1 << 16, 1 << 22
"""The most elements that each of them computes: where a guard computes them again, and where they
are constants. A mask of 2,048 places has as many as that."""

_CPU = torch.device("cpu")


class Unknown(Exception):
    """A number does not follow from what tensors from outside hold."""


REFUSALS = (Unknown, KeyError, RuntimeError, ValueError, TypeError, IndexError)
"""What is raised where a number is not found."""


class HeldTensor(NamedTuple):
    """A tensor from outside that holds the numbers, and where it is found."""

    source: Source
    value: torch.Tensor


class Computation(NamedTuple):
    """The nodes that a value is computed by, itself last, and the tensors that they begin with."""

    nodes: list[fx.Node]
    held: dict[fx.Node, HeldTensor]

    def run(self) -> torch.Tensor:
        """The value in this call."""
        values: dict[fx.Node, Any] = {}
        with torch.no_grad():
            for node in self.nodes:
                if node in self.held:
                    values[node] = self.held[node].value
                else:
                    values[node] = _run(node, values)
        return values[self.nodes[-1]]  # type: ignore[no-any-return]


def elements(tensor: torch.Tensor) -> tuple[int | float, ...]:
    """The elements of a small tensor of numbers on the CPU, in order, bools as ints. Raises
    TypeError for another."""
    if tensor.dtype not in NUMBERS or tensor.device.type != "cpu" or tensor.numel() > MOST:
        raise TypeError("not a few numbers on the CPU")
    if tensor.dtype is torch.bool:
        tensor = tensor.to(torch.uint8)
    return tuple(tensor.detach().flatten().tolist())


def facts(held: HeldTensor) -> Iterator[tuple[Source, int | float]]:
    """The elements of a tensor from outside, each with where it is found."""
    for k, number in enumerate(elements(held.value)):
        yield ItemSource(DerivedSource(held.source, elements), k), number


def is_observed(session: Session, source: Source) -> bool:
    """Whether a number was seen to differ between calls."""
    return source in session.observed or Quantity(source, "value") in session.observed


def computation(session: Session, node: fx.Node, dtypes: frozenset[torch.dtype]) -> Computation:
    """How a value is computed of constants and of outside tensors of these types.

    Raises Unknown where that takes more than a few steps, or depends on anything else."""
    inputs = session.graph.inputs
    session.graph.data_questions += 1
    nodes, held = _needed(node, dtypes), {}
    if is_written(session, nodes):
        raise Unknown
    for node in nodes:
        if node.op == "placeholder":
            if node not in inputs.tensors:
                raise Unknown
            known = inputs.tensors[node]
            if inputs.is_number(known.entry.source):
                raise Unknown
            held[node] = HeldTensor(known.entry.source, known.value)
    if held and not all(_is_for_guards(node.meta["val"]) for node in nodes):
        raise Unknown
    return Computation(nodes, held)


def is_written(session: Session, nodes: list[fx.Node]) -> bool:
    """Whether the graph may have written one of these values, or an input, which another may share
    memory with."""
    graph = session.graph
    if not graph.writes and not graph.context.written and not graph.replaced:
        return False
    if graph.context.written or graph.replaced or torch.is_inference_mode_enabled():
        return True
    written = set[int]()
    for node in graph.graph.nodes:
        value = node.meta.get("val")
        if type(value) is FakeTensor and (value.is_inference() or value._version):
            written.add(storage_key(value))
    for node in (*nodes, *graph.inputs.tensors):
        value = node.meta["val"]
        if type(value) is FakeTensor and storage_key(value) in written:
            return True
    return False


def _needed(node: fx.Node, dtypes: frozenset[torch.dtype]) -> list[fx.Node]:
    """The nodes that a value is computed by, itself last. Raises Unknown where they are many, or
    not all of these types."""
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
        if waiting or not _is_plain(node, dtypes):
            raise Unknown
        nodes[stack.pop()] = None
    return list(nodes)


def _is_plain(node: fx.Node, dtypes: frozenset[torch.dtype]) -> bool:
    """Whether a node is a small tensor from outside, or computes numbers and nothing else."""
    value = node.meta["val"]
    if node.op == "placeholder":
        sizes = value.shape if type(value) is FakeTensor else (None,)
        is_static = all(isinstance(size, int) for size in sizes)
        return is_static and value.device.type == "cpu" and _holds(value, dtypes)
    if node.op not in ("call_function", "call_method") or "out" in node.kwargs:
        return False
    if isinstance(node.target, str):
        name = node.target
    else:
        name = getattr(node.target, "__name__", "")
    if name not in _COMPUTES or not is_torchs(node.target):
        return False
    parts = value if type(value) in (tuple, list) else (value,)
    for part in parts:
        if not _holds(part, dtypes | {torch.bool}):
            return False
        if part.device.type != "cpu" and part.dtype.is_floating_point and name not in _EXACT:
            return False
    return True


def _holds(value: Any, dtypes: frozenset[torch.dtype]) -> bool:
    """Whether a value is a tensor of numbers, and not a large one so far as is known."""
    if type(value) is not FakeTensor or value.dtype not in dtypes or value.device.type == "meta":
        return False
    return _count(value) <= _CONSTANTS


def _is_for_guards(value: Any) -> bool:
    """Whether a guard may compute tensors again."""
    return _count(value) <= _ELEMENTS and all(t.device == _CPU for t in tensors_in(value))


def _count(value: Any) -> int:
    """The elements of tensors, so far as their sizes are known."""
    count = 0
    for tensor in tensors_in(value):
        count += math.prod([size for size in tensor.shape if isinstance(size, int)])
    return count


def _run(node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    """What a node computes, on the CPU."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), values.__getitem__)
    if "device" in kwargs:
        kwargs = kwargs | {"device": _CPU}
    if getattr(node.target, "__name__", node.target) == "to":
        args = tuple(_CPU if isinstance(a, (torch.device, str)) else a for a in args)
    if isinstance(node.target, str):
        return getattr(torch.Tensor, node.target)(*args, **kwargs)
    return node.target(*args, **kwargs)  # type: ignore[operator]
