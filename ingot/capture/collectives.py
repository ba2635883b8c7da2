"""Collectives of torch.distributed in the graph: Python versions with functional operators, run by
the interpreter in their place.

Each makes the process group do what torch's function has it do, so ranks that run the one and ranks
that run the other communicate. What is gathered into one call (`_coalescing_manager`), sent as
Python objects, or an error is left to eager.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ingot.capture.groups import MODULE, joins_messages, leave, position, reduction_name
from ingot.capture.meanings import How, means
from ingot.capture.works import Pending, plain
from ingot.graph.group_calls import calls
from ingot.torch_private import (
    collectives,
    default_group,
    find,
    process_groups,
    rank_not_in_group,
)

if TYPE_CHECKING:
    from ingot.capture.session import Session
    from ingot.capture.values.base import Value

_replaces = partial(means, how=How.POLYFILL)

_SUM = "the sum, by default"
_WRONG = "with arguments that torch may refuse"


def _is(name: str) -> str:
    return f"{MODULE}.{name}"


# -- what they have in common ----------------------------------------------------------------------


def _group_of(group: Any, *tensors: Any) -> Any:
    """The group of a call, which is the default one if it is None."""
    if process_groups.pg_coalesce_state or rank_not_in_group(group):
        leave("in a batch, or in a group that this rank is not in")
    for tensor in tensors:
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or _is_special(tensor):
            leave("of a tensor that it treats in a way of its own")
    if torch.overrides.has_torch_function(tensors):
        leave("that a mode or a subclass overrides")
    if group is None:
        return default_group()
    return group


def _require_no_gradients(*tensors: Any) -> None:
    """Of some collectives on the CPU torch makes part of autograd's history, or an error."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        leave("of tensors with gradients, by a backend that may make a history of it")


def _is_special(tensor: Any) -> bool:
    """Whether torch's functions treat a tensor in a way of their own, or may refuse it."""
    if tensor.layout != torch.strided or not plain(tensor).is_contiguous():
        return True
    return tensor.dtype.itemsize == 1 and tensor.is_floating_point()


def _name_of(op: Any, *tensors: Any) -> str:
    """The name of a reduction of tensors."""
    if op is _SUM:
        return "sum"
    reduction = reduction_name(op)
    if not reduction or any(tensor.is_complex() for tensor in tensors):
        leave(_WRONG)
    return reduction


def _rank_of(group: Any, rank: Any, group_rank: Any, default: Any = None) -> int:
    """The rank within a group, which a caller names by that or by the rank among all."""
    if rank is None and group_rank is None:
        rank = default
    if (rank is None) is (group_rank is None):
        leave(_WRONG)
    if group_rank is None:
        group_rank = position(group, rank)
    if not 0 <= group_rank < group.size():
        leave(_WRONG)
    return group_rank


def _require_alike(*tensors: Any) -> None:
    """That the elements of several tensors are of one type, and in one order."""
    for tensor in tensors:
        if tensor.dtype != tensors[0].dtype or not tensor.is_contiguous():
            leave(_WRONG)


def _listed(tensors: Any) -> list[Any]:
    """The tensors of a list that is to be one."""
    if type(tensors) is not list or not tensors:
        leave(_WRONG)
    return tensors


def _results(written: Any, begun: Any, async_op: bool) -> Any:
    """What a call gives that writes tensors."""
    work = Pending(written, begun)
    if async_op:
        return work
    work.wait()
    return None


# -- collectives with functional operators of torch's ----------------------------------------------


@_replaces(_is("all_reduce"))
def all_reduce(tensor: Any, op: Any = _SUM, group: Any = None, async_op: bool = False) -> Any:
    group = _group_of(group, tensor)
    begun = collectives.all_reduce(plain(tensor), _name_of(op, tensor), group.group_name)
    return _results([tensor], [begun], async_op)


@_replaces(_is("broadcast"))
def broadcast(
    tensor: Any, src: Any = None, group: Any = None, async_op: bool = False, group_src: Any = None
) -> Any:
    group = _group_of(group, tensor)
    group_src = _rank_of(group, src, group_src)
    begun = collectives.broadcast(plain(tensor), group_src, group.group_name)
    return _results([tensor], [begun], async_op)


def all_gather_into_tensor(
    output_tensor: Any, input_tensor: Any, group: Any = None, async_op: bool = False
) -> Any:
    group = _group_of(group, output_tensor, input_tensor)
    _require_no_gradients(output_tensor, input_tensor)
    ranks = group.size()
    _require_parts(output_tensor, input_tensor, ranks)
    begun = collectives.all_gather_into_tensor(plain(input_tensor), ranks, group.group_name)
    return _results([output_tensor], [begun], async_op)


def _require_parts(whole: Any, part: Any, ranks: int) -> None:
    """That one tensor is as long as one of another from each rank."""
    _require_alike(whole, part)
    if not part.ndim or whole.shape != (ranks * part.shape[0], *part.shape[1:]):
        leave(_WRONG)


def reduce_scatter_tensor(
    output: Any, input: Any, op: Any = _SUM, group: Any = None, async_op: bool = False
) -> Any:
    group = _group_of(group, output, input)
    _require_no_gradients(output, input)
    ranks = group.size()
    _require_parts(input, output, ranks)
    name, reduction = group.group_name, _name_of(op, input)
    begun = collectives.reduce_scatter_tensor(plain(input), reduction, ranks, name)
    return _results([output], [begun], async_op)


if hasattr(find(MODULE, optional=True), "all_gather_single"):
    _NAMES = "all_gather_single", "reduce_scatter_single"  # the old ones warn, and call them
else:
    _NAMES = "all_gather_into_tensor", "reduce_scatter_tensor"
_replaces(_is(_NAMES[0]))(all_gather_into_tensor)
_replaces(_is(_NAMES[1]))(reduce_scatter_tensor)


@_replaces(_is("all_to_all_single"))
def all_to_all_single(
    output: Any,
    input: Any,
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    group = _group_of(group, output, input)
    ranks = group.size()
    _require_alike(output, input)
    if output.shape[1:] != input.shape[1:] or not (input.ndim and output.ndim):
        leave(_WRONG)
    taken = _splits(output, output_split_sizes, ranks)
    given = _splits(input, input_split_sizes, ranks)
    begun = collectives.all_to_all_single(plain(input), taken, given, group.group_name)
    return _results([output], [begun], async_op)


def _splits(tensor: Any, splits: Any, ranks: int) -> Any:
    """How many rows go to, or come from, each rank."""
    rows = tensor.shape[0]
    if not splits:
        if rows % ranks:
            leave(_WRONG)
        return [rows // ranks] * ranks
    if sum(splits) != rows or len(splits) != ranks:
        leave(_WRONG)
    return splits


@_replaces(_is("all_gather"))
def all_gather(tensor_list: Any, tensor: Any, group: Any = None, async_op: bool = False) -> Any:
    written = _listed(tensor_list)
    group = _group_of(group, tensor, *written)
    _require_no_gradients(tensor, *written)
    _require_alike(tensor, *written)
    if len(written) != group.size():
        leave(_WRONG)
    sizes = map(torch.Tensor.size, written)
    if all(size == tensor.shape for size in sizes):
        flat = plain(tensor).flatten()
        begun = collectives.all_gather_into_tensor(flat, len(written), group.group_name)
        return _results(written, [begun], async_op)
    return _call("all_gather", [tensor], written, group, async_op)


# -- collectives that torch has no functional operators for ----------------------------------------


def _call(
    kind: str, given: Any, written: Any, group: Any, async_op: bool, peer: int = -1,
    reduction: str = "", tag: int = 0,
) -> Any:  # fmt: skip
    """Calls the operator of a kind of collective."""
    operator = getattr(calls, kind)
    given, received = list(map(plain, given)), list(map(plain, written))
    begun = operator(given, received, peer, reduction, tag, group.group_name)
    return _results(written, begun, async_op)


@_replaces(_is("reduce"))
def reduce(
    tensor: Any,
    dst: Any = None,
    op: Any = _SUM,
    group: Any = None,
    async_op: bool = False,
    group_dst: Any = None,
) -> Any:
    group = _group_of(group, tensor)
    peer, reduction = _rank_of(group, dst, group_dst), _name_of(op, tensor)
    return _call("reduce", [], [tensor], group, async_op, peer, reduction)


@_replaces(_is("gather"))
def gather(
    tensor: Any,
    gather_list: Any = None,
    dst: Any = None,
    group: Any = None,
    async_op: bool = False,
    group_dst: Any = None,
) -> Any:
    written = _listed(gather_list) if gather_list else []
    group = _group_of(group, tensor, *written)
    _require_no_gradients(tensor, *written)
    _require_alike(tensor, *written)
    peer = _rank_of(group, dst, group_dst, 0)
    if len(written) != (group.size() if group.rank() == peer else 0):
        leave(_WRONG)
    return _call("gather", [tensor], written, group, async_op, peer)


@_replaces(_is("scatter"))
def scatter(
    tensor: Any,
    scatter_list: Any = None,
    src: Any = None,
    group: Any = None,
    async_op: bool = False,
    group_src: Any = None,
) -> Any:
    given = _listed(scatter_list) if scatter_list else []
    group = _group_of(group, tensor, *given)
    _require_alike(tensor, *given)
    peer = _rank_of(group, src, group_src, 0)
    if len(given) != (group.size() if group.rank() == peer else 0):
        leave(_WRONG)
    return _call("scatter", given, [tensor], group, async_op, peer)


@_replaces(_is("reduce_scatter"))
def reduce_scatter(
    output: Any, input_list: Any, op: Any = _SUM, group: Any = None, async_op: bool = False
) -> Any:
    given = _listed(input_list)
    group = _group_of(group, output, *given)
    _require_no_gradients(output, *given)
    _require_alike(output, *given)
    reduction = _name_of(op, output)
    return _call("reduce_scatter", given, [output], group, async_op, -1, reduction)


@_replaces(_is("all_to_all"))
def all_to_all(
    output_tensor_list: Any, input_tensor_list: Any, group: Any = None, async_op: bool = False
) -> Any:
    written, given = _listed(output_tensor_list), _listed(input_tensor_list)
    group = _group_of(group, *written, *given)
    _require_alike(*written, *given)
    return _call("all_to_all", given, written, group, async_op)


@_replaces(_is("barrier"))
def barrier(
    group: Any = None, async_op: bool = False, device_ids: Any = None, timeout: Any = None
) -> None:
    if async_op or device_ids is not None or timeout is not None:
        leave("that is a barrier with options")
    calls.barrier(_group_of(group).group_name)


# -- messages --------------------------------------------------------------------------------------


@_replaces(_is("isend"))
def isend(
    tensor: Any, dst: Any = None, group: Any = None, tag: int = 0, group_dst: Any = None
) -> Any:
    group = _group_of(group, tensor)
    return _call("send", [tensor], [], group, True, _rank_of(group, dst, group_dst), "", tag)


@_replaces(_is("irecv"))
def irecv(
    tensor: Any, src: Any = None, group: Any = None, tag: int = 0, group_src: Any = None
) -> Any:
    if src is None and group_src is None:
        leave("that receives from any rank")
    group = _group_of(group, tensor)
    return _call("receive", [], [tensor], group, True, _rank_of(group, src, group_src), "", tag)


@_replaces(_is("send"))
def send(
    tensor: Any, dst: Any = None, group: Any = None, tag: int = 0, group_dst: Any = None
) -> None:
    group = _group_of(group, tensor)
    peer = _rank_of(group, dst, group_dst)
    if peer == group.rank():
        leave(_WRONG)
    _call("send", [tensor], [], group, False, peer, "", tag)


@_replaces(_is("recv"))
def recv(
    tensor: Any, src: Any = None, group: Any = None, tag: int = 0, group_src: Any = None
) -> Any:
    irecv(tensor, src, group, tag, group_src).wait()
    if src is None:
        leave("that tells which rank it has received from")
    return src


@_replaces(_is("batch_isend_irecv"))
def batch_isend_irecv(p2p_op_list: Any) -> Any:
    works = []
    for one in _listed(p2p_op_list):
        if joins_messages(one.group, one.tensor.device):
            leave("in a batch of messages that the backend joins")
        if one.op is torch.distributed.isend:
            works.append(isend(one.tensor, None, one.group, one.tag, one.group_peer))
        else:
            works.append(irecv(one.tensor, None, one.group, one.tag, one.group_peer))
    return works


# -- what is left to eager -------------------------------------------------------------------------


def _leaves(name: str, why: str) -> None:
    @_replaces(_is(name))
    def function(*args: Any, **kwargs: Any) -> None:
        leave(why)


for _name, _why in {
    "all_gather_object": "of Python objects, which are pickled",
    "broadcast_object_list": "of Python objects, which are pickled",
    "gather_object": "of Python objects, which are pickled",
    "recv_object_list": "of Python objects, which are pickled",
    "scatter_object_list": "of Python objects, which are pickled",
    "send_object_list": "of Python objects, which are pickled",
    "monitored_barrier": "that is a barrier with options",
    "all_gather_coalesced": "of lists of tensors, which is deprecated",
    "all_reduce_coalesced": "of lists of tensors, which is deprecated",
}.items():
    _leaves(_name, _why)


@means("torch.nn.parallel.distributed.DistributedDataParallel.forward")
def _data_parallel(session: Session, *args: Value, **kwargs: Value) -> Value:
    """It runs in eager, and what it calls inside is compiled by itself."""
    why = "DistributedDataParallel, which communicates around its module"
    raise session.unsupported("whole-function", why)
