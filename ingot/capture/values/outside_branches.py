"""A branch on a number that a few operations compute of what tensors from outside hold.

`if self.timesteps[k] > 0` of a tensor that an object keeps: its elements are guarded, as those of
a list would be. Elements of an argument, and those that were seen to differ, are data. There the
truth alone is guarded, which the guard computes anew. Once the truths of several branches were seen
to differ, the next such branch breaks the graph, as one on other data does."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from torch import fx

from ingot.capture.guards import Kind
from ingot.capture.sources import DerivedSource, Source, is_argument
from ingot.capture.values.held_numbers import (
    COMPARED,
    INTEGERS,
    NUMBERS,
    REFUSALS,
    Computation,
    HeldTensor,
    Unknown,
    computation,
    elements,
    facts,
    is_observed,
)
from ingot.graph.known_tensors import MOST

if TYPE_CHECKING:
    from ingot.capture.session import Session
    from ingot.capture.values.tensor import TensorValue

_BOTH_SIDES = 2
"""Branches of one capture that are taken though their truth was seen to differ: the most."""


class _Differing(set[DerivedSource]):
    """The truths that a capture relies on though they were seen to differ."""


def truth_from_outside(session: Session, tensor: TensorValue) -> bool | None:
    """Whether the one element of a tensor is true, guarded; None where other data decide that."""
    try:
        steps = computation(session, tensor.fx_node, COMPARED)
        data = list[fx.Node]()
        relied = list[tuple[Source, int | float]]()
        for node, held in steps.held.items():
            if _is_data(session, held):
                data.append(node)
            else:
                relied += facts(held)
        number = steps.run()
        if len(data) > 1 or number.dtype not in NUMBERS or number.numel() != 1:
            return None
        truth = bool(number)
        if data and not _guard_truth(session, steps, data[0], truth):
            return None
    except REFUSALS:
        return None
    for source, held_number in relied:
        session.guard(source, Kind.EQUALS, held_number)
    return truth


def elements_from_outside(session: Session, tensor: TensorValue) -> torch.Tensor | None:
    """What a tensor holds, which capture knows or which follows from what objects hold, guarded;
    None for other data. Nobody may write it."""
    known = session.graph.known.of(tensor.fake)
    if known is not None:
        return known
    try:
        steps = computation(session, tensor.fx_node, NUMBERS)
        if not steps.held or any(_is_data(session, held) for held in steps.held.values()):
            return None
        numbers = steps.run()
        if numbers.dtype not in NUMBERS or numbers.numel() > MOST:
            return None
        relied = list(chain.from_iterable(map(facts, steps.held.values())))
    except REFUSALS:
        return None
    for source, number in relied:
        session.guard(source, Kind.EQUALS, number)
    return numbers


def _is_data(session: Session, held: HeldTensor) -> bool:
    """Whether the elements of a tensor are expected to differ between calls.

    Raises Unknown for those that are the program's data proper: floats among the arguments, what is
    trained, and what an earlier graph has computed."""
    if held.value.requires_grad:
        raise Unknown
    if session.continues and session.is_given(held.source):
        raise Unknown
    if is_argument(held.source):
        if held.value.dtype not in INTEGERS:
            raise Unknown
        return True
    if held.value.numel() > MOST:
        return True
    return any(is_observed(session, source) for source, _ in facts(held))


def _guard_truth(session: Session, steps: Computation, data: fx.Node, truth: bool) -> bool:
    """Guards the truth of a computed number; False where it was seen to differ, as were others."""
    function = _truth_of(steps, data)
    source = DerivedSource(steps.held[data].source, function)
    if is_observed(session, source):
        differing = session.state(_Differing)
        if source not in differing and len(differing) == _BOTH_SIDES:
            return False
        differing.add(source)
    session.guard(source, Kind.EQUALS, int(truth))
    return True


# -- computed anew ---------------------------------------------------------------------------------


class _Truth:
    """Gives whether the number that is computed of a tensor is true, as 0 or 1."""

    def __init__(self, name: str, compute: Callable[..., torch.Tensor], args: list[Any]) -> None:
        self.__name__ = f"truth_of_{name}"
        place = args.index(None)
        self.compute, self.before, self.after = compute, args[:place], args[place + 1 :]

    def __call__(self, tensor: torch.Tensor) -> int:
        return int(bool(self.compute(None, *self.before, tensor, *self.after)))


_truths: WeakValueDictionary[Any, _Truth] = WeakValueDictionary()
"""By what they compute, so that a later capture of the same branch knows its guard again."""


def _truth_of(steps: Computation, data: fx.Node) -> _Truth:
    """The one function that computes this of the tensor `data` and of the elements of others."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    args: list[Any] = []
    parts: list[Any] = []
    for node, held in steps.held.items():
        copies[node] = graph.placeholder(f"held_{len(args)}")
        if node is data:
            args.append(None)
            parts.append(None)
        else:
            args.append(held.value.clone())
            parts.append((held.value.dtype, held.value.shape, elements(held.value)))
    for node in steps.nodes:
        if node not in copies:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(copies[steps.nodes[-1]])
    code = graph.python_code("self")
    key = code.src, *parts
    truth = _truths.get(key)
    if truth is None:
        namespace = dict(code.globals)
        exec(code.src, namespace)
        truth = _truths[key] = _Truth(steps.nodes[-1].name, namespace["forward"], args)
    return truth
