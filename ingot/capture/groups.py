"""What is known of process groups: their names, sizes and ranks are constants, under guards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ingot.capture.guards import Kind
from ingot.capture.meanings import means
from ingot.capture.values.base import Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.objects import ObjectValue
from ingot.torch_private import ProcessGroup, find

if TYPE_CHECKING:
    from ingot.capture.session import Session

MODULE = "torch.distributed.distributed_c10d"


def _getter(name: str) -> Any:
    """The C function of a method or property of process groups; None without torch.distributed."""
    member = vars(ProcessGroup).get(name)
    return getattr(member, "fget", None) or getattr(member, "__func__", None)


def _asked(session: Session, group: Value) -> Any:
    """The process group that a value stands for, which a guard fixes: its ranks never change."""
    find("torch.distributed._functional_collectives")  # registers what operators do to fakes
    assert isinstance(group, ObjectValue)
    session.guard(group.source, Kind.IDENTITY, group.object)
    return group.object


def _state_fact(name: str) -> None:
    getter = _getter(name)
    if getter is not None:

        @means(getter)
        def rule(session: Session, group: Value) -> Value:
            return session.wrap_constant(getter(_asked(session, group)))


for _name in ("rank", "size", "name", "group_name"):
    _state_fact(_name)


def position(group: Any, rank: int) -> int:
    """The rank within a group of one among all; -1 for one that is not of it."""
    return rank


@means(position)
def _position(session: Session, group: Value, rank: Value) -> Value:
    ranks = find(f"{MODULE}.get_process_group_ranks")(_asked(session, group))
    known = session.python_of(int, [rank], {})
    return ConstantValue(ranks.index(known) if known in ranks else -1)


def reduction_name(op: Any) -> str:
    """What functional operators call a reduction; "" for one that they do not have."""
    return str(op)


@means(reduction_name)
def _reduction_name(session: Session, op: Value) -> Value:
    names = find("torch.distributed._functional_collectives.REDUCE_OP_TO_STR")
    for reduction, name in names.items():
        if reduction is getattr(op, "object", None) and op.source is not None:
            session.guard(op.source, Kind.IDENTITY, reduction)
            return ConstantValue(name)
    return ConstantValue("")


def joins_messages(group: Any, tensor: Any) -> bool:
    """Whether a group joins the messages of a batch, for tensors of a device."""
    return False


@means(joins_messages)
def _joins_messages(session: Session, group: Value, device: Value) -> Value:
    backend = _asked(session, group)._get_backend(session.python_of(lambda d: d, [device], {}))
    return ConstantValue(backend.supports_coalescing)


def leave(why: str) -> None:
    """The call ends the graph."""


@means(leave)
def _leave(session: Session, why: Value) -> Value:
    raise session.unsupported("whole-function", f"a collective {session.python_of(str, [why], {})}")
