"""Collectives of torch.distributed in the graph: Python versions with torch's functional operators,
run by the interpreter in their place.

Each makes the process group do what torch's function has it do, so ranks that run the one and ranks
that run the other communicate. What is asynchronous, gathered into one call
(`_coalescing_manager`), or an error is left to eager.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ingot.capture.guards import Kind
from ingot.capture.meanings import How, means
from ingot.capture.values.base import Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.objects import ObjectValue
from ingot.torch_private import (
    ProcessGroup,
    collectives,
    default_group,
    find,
    process_groups,
    rank_not_in_group,
)

if TYPE_CHECKING:
    from ingot.capture.session import Session

_MODULE = "torch.distributed.distributed_c10d"
_replaces = partial(means, how=How.POLYFILL)

# -- what is known of a group ----------------------------------------------------------------------


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


def _position(group: Any, rank: int) -> int:
    """The rank within a group of one among all; -1 for one that is not of it."""
    return rank


@means(_position)
def _position_of(session: Session, group: Value, rank: Value) -> Value:
    ranks = find(f"{_MODULE}.get_process_group_ranks")(_asked(session, group))
    known, position = session.python_of(int, [rank], {}), -1
    if known in ranks:
        position = ranks.index(known)
    return ConstantValue(position)


def _reduction(op: Any) -> str:
    """What functional operators call a reduction; "" for one that they do not have."""
    return str(op)


@means(_reduction)
def _reduction_of(session: Session, op: Value) -> Value:
    names = find("torch.distributed._functional_collectives.REDUCE_OP_TO_STR")
    for reduction, name in names.items():
        if reduction is getattr(op, "object", None) and op.source is not None:
            session.guard(op.source, Kind.IDENTITY, reduction)
            return ConstantValue(name)
    return ConstantValue("")


def _leave(why: str) -> None:
    """The call ends the graph."""


@means(_leave)
def _leave_to_eager(session: Session, why: Value) -> Value:
    raise session.unsupported("whole-function", f"a collective {session.python_of(str, [why], {})}")


# -- collectives -----------------------------------------------------------------------------------


def _group_of(group: Any, async_op: bool, *tensors: Any) -> Any:
    """The group of a call, which is the default one if it is None."""
    if async_op:
        _leave("with async_op")
    if process_groups.pg_coalesce_state or rank_not_in_group(group):
        _leave("in a batch, or in a group that this rank is not in")
    for tensor in tensors:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or _is_special(tensor):
            _leave("of a tensor that it treats in a way of its own, or does not differentiate")
    if torch.overrides.has_torch_function(tensors):
        _leave("that a mode or a subclass overrides")
    if group is None:
        return default_group()
    return group


def _is_special(tensor: Any) -> bool:
    """Whether torch's functions treat a tensor in a way of their own; to a gradient they are
    blind."""
    if tensor.layout != torch.strided or tensor.is_complex() or tensor.dtype.itemsize == 1:
        return True
    return tensor.requires_grad and torch.is_grad_enabled()


def _functional(name: str, *args: Any) -> Any:
    return collectives.wait_tensor(getattr(collectives, name)(*args))


def _name_of(op: Any) -> str:
    if op is _SUM:
        return "sum"
    reduction = _reduction(op)
    if not reduction:
        _leave(_WRONG)
    return reduction


_SUM = "the sum, by default"
_WRONG = "with arguments that torch may refuse"


def _equal_splits(tensor: Any, splits: Any, ranks: int) -> Any:
    """How many rows go to, or come from, each rank."""
    if splits:
        return splits
    if tensor.shape[0] % ranks:
        _leave(_WRONG)
    return [tensor.shape[0] // ranks] * ranks


@_replaces(f"{_MODULE}.all_reduce")
def all_reduce(tensor: Any, op: Any = _SUM, group: Any = None, async_op: bool = False) -> None:
    group = _group_of(group, async_op, tensor)
    tensor.copy_(_functional("all_reduce", tensor, _name_of(op), group.group_name))


@_replaces(f"{_MODULE}.broadcast")
def broadcast(
    tensor: Any, src: Any = None, group: Any = None, async_op: bool = False, group_src: Any = None
) -> None:
    group = _group_of(group, async_op, tensor)
    if (src is None) is (group_src is None):
        _leave(_WRONG)
    if group_src is None:
        group_src = _position(group, src)
    if not 0 <= group_src < group.size():
        _leave(_WRONG)
    tensor.copy_(_functional("broadcast", tensor, group_src, group.group_name))


def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False
) -> None:
    group = _group_of(group, async_op, output_tensor, input_tensor)
    ranks = group.size()
    _require_parts(output_tensor, input_tensor, ranks)
    name = group.group_name
    output_tensor.copy_(_functional("all_gather_into_tensor", input_tensor, ranks, name))


def _require_parts(whole: Any, part: Any, ranks: int) -> None:
    """That one tensor is as long as one of another from each rank."""
    if whole.dtype != part.dtype or not part.ndim:
        _leave(_WRONG)
    if whole.shape != (ranks * part.shape[0], *part.shape[1:]):
        _leave(_WRONG)


def reduce_scatter_tensor(
    output: Any, input: Any, op: Any = _SUM, group: Any = None, async_op: bool = False
) -> None:
    group = _group_of(group, async_op, output, input)
    ranks = group.size()
    _require_parts(input, output, ranks)
    name, reduction = group.group_name, _name_of(op)
    output.copy_(_functional("reduce_scatter_tensor", input, reduction, ranks, name))


if hasattr(find(_MODULE, optional=True), "all_gather_single"):
    _NAMES = "all_gather_single", "reduce_scatter_single"  # the old ones warn, and call them
else:
    _NAMES = "all_gather_into_tensor", "reduce_scatter_tensor"
_replaces(f"{_MODULE}.{_NAMES[0]}")(all_gather_into_tensor)
_replaces(f"{_MODULE}.{_NAMES[1]}")(reduce_scatter_tensor)


@_replaces(f"{_MODULE}.all_to_all_single")
def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
    async_op: bool = False,
) -> None:
    group = _group_of(group, async_op, output, input)
    ranks = group.size()
    if output.dtype != input.dtype or output.shape[1:] != input.shape[1:]:
        _leave(_WRONG)
    if not (input.ndim and input.is_contiguous() and output.ndim and output.is_contiguous()):
        _leave(_WRONG)
    taken = _equal_splits(output, output_split_sizes, ranks)
    given = _equal_splits(input, input_split_sizes, ranks)
    if sum(taken) != output.shape[0] or sum(given) != input.shape[0]:
        _leave(_WRONG)
    output.copy_(_functional("all_to_all_single", input, taken, given, group.group_name))
