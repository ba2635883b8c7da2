"""What is known of an operation of the graph: its name, whether it writes, what it gives.

In goes the target of a call, or its arguments or result on fakes; nothing is recorded here.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ingot.capture.values.base import Value
from ingot.graph.fakes import FakeTensor
from ingot.graph.repeats import is_torchs
from ingot.graph.schemas import node_name

if TYPE_CHECKING:
    from ingot.capture.session import Session


_IN_PLACE_OPERATORS = {
    getattr(operator, n)
    for n in dir(operator)
    if n.startswith("i") and n[1:] in dir(operator) and n != "is_"
}
_IN_PLACE_OPERATORS |= {operator.setitem, operator.iand, operator.ior}
# and not for what they write
_NAMED_AS_KEYWORDS = {operator.and_, operator.or_, operator.not_, operator.is_}


class Traits(NamedTuple):
    """What is known of the target of an operation: its own name, that of its nodes (None: torch.fx
    finds one), and whether it may write its arguments whatever they are."""

    name: str
    node_name: str | None
    writes: bool


def traits(target: Any) -> Traits:
    if is_torchs(target):
        return _traits_of_torchs(target)
    return _traits(target)


def _traits(target: Any, named: bool = False) -> Traits:
    if isinstance(target, str):
        name = target
    else:
        name = getattr(target, "__name__", "")
    writes = (
        name.endswith("_")
        and not name.endswith("__")
        or name in ("batch_norm", "instance_norm", "__setitem__")
    )
    writes = (
        target in _IN_PLACE_OPERATORS
        or writes
        and name != "requires_grad_"
        and target not in _NAMED_AS_KEYWORDS
    )
    return Traits(name, node_name(target) if named else None, writes)


@functools.cache
def _traits_of_torchs(target: Any) -> Traits:
    return _traits(target, named=True)


def versions_of(fakes: Sequence[Any]) -> list[int]:
    """How often each of these was written; an inference tensor does not count that."""
    return [fake._version for fake in fakes if type(fake) is FakeTensor and not fake.is_inference()]


def is_to_write(kwargs: dict[str, Value]) -> bool:
    """Whether an operation is told to write one of its arguments."""
    inplace = kwargs.get("inplace")
    return (
        "out" in kwargs
        or inplace is not None
        and inplace.is_constant()
        and bool(inplace.constant())
    )


def check_result(session: Session, result: Any) -> None:
    """Refuses what a function that is one node may not give."""
    if isinstance(result, (list, tuple)):
        for item in result:
            check_result(session, item)
    elif type(result) not in (FakeTensor, int, float, bool, complex, str, type(None)):
        raise session.unsupported(
            "graph-function-result",
            f"a function that is allowed in the graph gives a {type(result).__name__}",
        )


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
