"""What is known of an operation of the graph: its name, whether it writes, what it gives.

In goes the target of a call, or its arguments or result on fakes; nothing is recorded here.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ingot.capture.values.base import Value
from ingot.capture.values.operator_methods import INPLACE_METHODS
from ingot.graph.fakes import FakeTensor
from ingot.graph.repeats import is_torchs
from ingot.graph.schemas import node_name

_IN_PLACE_OPERATORS = frozenset({*INPLACE_METHODS, operator.iconcat, operator.setitem})
# and not for what they write
_NAMED_AS_KEYWORDS = {operator.and_, operator.or_, operator.not_, operator.is_}


_WRITERS = frozenset({"batch_norm", "instance_norm", "__setitem__"})


class Traits(NamedTuple):
    """What is known of the target of an operation."""

    name: str
    node_name: str | None  # of its nodes; None: torch.fx finds one
    writes: bool  # whether it may write its arguments whatever they are
    never_raises: bool = False  # whatever its tensors hold


NEVER_RAISE = frozenset(
    """
    add sub mul neg matmul bmm addmm baddbmm linear layer_norm scaled_dot_product_attention
    relu gelu silu tanh sigmoid softmax
    view reshape flatten transpose permute unsqueeze squeeze expand contiguous split chunk
    """.split()
)
"""Torch's functions that raise no error for what their tensors hold. Of frequent ones, which are
told to save time: nothing need be known of who handles their errors."""


def traits(target: Any) -> Traits:
    if is_torchs(target):
        return _traits_of_torchs(target)
    return _traits(target)


def _traits(target: Any, named: bool = False) -> Traits:
    if isinstance(target, str):
        name = target
    else:
        name = getattr(target, "__name__", "")
    if name.endswith("_") and not name.endswith("__"):
        writes = name != "requires_grad_" and target not in _NAMED_AS_KEYWORDS
    else:
        writes = name in _WRITERS or target in _IN_PLACE_OPERATORS
    if not named:
        return Traits(name, None, writes)
    never_raises = name in NEVER_RAISE and _is_found_under(name, target)
    return Traits(name, node_name(target), writes, never_raises)


def _is_found_under(name: str, target: Any) -> bool:
    """Whether it is the tensor method, torch's function or Python's operator of this name."""
    for owner in (torch, torch.nn.functional, operator):
        if target is getattr(owner, name, None):
            return True
    return target == name


@functools.cache
def _traits_of_torchs(target: Any) -> Traits:
    return _traits(target, named=True)


def versions_of(fakes: Sequence[Any]) -> list[int]:
    """How often each of these was written; an inference tensor does not count that."""
    results = []
    for fake in fakes:
        if type(fake) is FakeTensor and not fake.is_inference():
            results.append(fake._version)
    return results


def is_to_write(kwargs: dict[str, Value]) -> bool:
    """Whether an operation is told to write one of its arguments."""
    inplace = kwargs.get("inplace")
    return (
        "out" in kwargs
        or inplace is not None
        and inplace.is_constant()
        and bool(inplace.constant())
    )


def refused_classes(result: Any) -> Iterator[type]:
    """The classes of what a function that is one node gives and may not give."""
    if isinstance(result, (list, tuple)):
        for item in result:
            yield from refused_classes(item)
    elif type(result) not in (FakeTensor, int, float, bool, complex, str, type(None)):
        yield type(result)


def is_of_tensors(result: Any) -> bool:
    """Whether it is nothing but tensors, or nothing."""
    if isinstance(result, (list, tuple)):
        return all(map(is_of_tensors, result))
    return result is None or isinstance(result, torch.Tensor)


def is_computed(result: Any) -> bool:
    """Whether there is a tensor or a symbolic integer in it."""
    if isinstance(result, (list, tuple)):
        return any(map(is_computed, result))
    return isinstance(result, (torch.Tensor, torch.SymInt))
