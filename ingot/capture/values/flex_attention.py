"""`flex_attention`: attention whose scores one function of the user's changes, and another masks.

In goes a call; out comes what eager computes, as operations of the graph: both functions are mapped
over all scores at once. A call that eager refuses, or casts under autocast, breaks the graph.
"""

from __future__ import annotations

import inspect
import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ingot.capture.meanings import How, means
from ingot.capture.recorder import fake_of
from ingot.capture.sources import ConstSource
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.constant import NONE
from ingot.capture.values.functions import FunctionValue
from ingot.capture.values.sequences import ListValue, TupleValue
from ingot.capture.values.tensor import TensorValue, is_none
from ingot.graph.aten_tracer import EAGER_SAVES
from ingot.torch_private import aten, safe_softmax

if TYPE_CHECKING:
    from ingot.capture.session import Session


class IndexTensors:
    """Whether tensors of rank 0 are indices, as in functions that are mapped over the scores.

    Elsewhere they are Python numbers, which the map of a function does not have."""

    enabled = False


def _set_index_tensors(enabled: bool) -> None:
    """What capture knows: the body is for frames that go on in eager."""


@means(_set_index_tensors, how=How.UNREALIZED)
def _set(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    session.state(IndexTensors).enabled = session.truth(args[0])
    return NONE


def item_at_tensors(session: Session, tensor: TensorValue, key: Value) -> Value | None:
    """`tensor[key]` where tensors of rank 0 are indices; None where they are not."""
    if not session.state(IndexTensors).enabled:
        return None
    if isinstance(key, TupleValue):
        keys = list(map(session.realize, key.items))
    else:
        keys = [key]
    if not all(isinstance(each, TensorValue) for each in keys):
        return None
    return session.call_function(aten.index.Tensor, tensor, ListValue(keys, list))


# -- what eager computes ---------------------------------------------------------------------------


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: Any = None,
) -> Any:
    """Softmax attention by the formula of torch's documentation (Dong et al., "Flex Attention",
    2024), rounded where eager rounds. The interpreter runs it, so it calls torch alone."""
    batch, heads, _, width = query.shape
    groups = heads // key.shape[1]
    if groups != 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    if key.shape[0] != batch:
        key, value = key.expand(batch, -1, -1, -1), value.expand(batch, -1, -1, -1)
    if scale is None:
        scale = 1.0 / math.sqrt(width)
    wide = torch.float32
    if query.dtype is torch.float64:
        wide = torch.float64
    scores = query.to(wide) @ key.to(wide).transpose(-2, -1) * scale
    indices = list(map(partial(torch.arange, device=query.device), scores.shape))
    _set_index_tensors(True)
    if score_mod is not None:
        mapped = torch.vmap(score_mod, (0, None, None, None, 0))
        mapped = torch.vmap(mapped, (0, None, None, 0, None))
        mapped = torch.vmap(mapped, (0, None, 0, None, None))
        scores = torch.vmap(mapped, (0, 0, None, None, None))(scores, *indices)
    if block_mask is not None:
        mapped = torch.vmap(block_mask.mask_mod, (None, None, None, 0))
        mapped = torch.vmap(mapped, (None, None, 0, None))
        mapped = torch.vmap(mapped, (None, 0, None, None))
        mask = torch.vmap(mapped, (0, None, None, None))(*indices)
        scores = torch.where(mask, scores, -math.inf)
    _set_index_tensors(False)
    result = safe_softmax(scores, -1).to(query.dtype) @ value.to(query.dtype)
    # in memory, the dimensions of the result follow each other as those of the query
    strides = query.stride()
    order = sorted(range(3), key=lambda dim: strides[dim], reverse=True)
    if order != [0, 1, 2]:
        back = sorted(range(3), key=lambda place: order[place])
        result = result.permute(*order, 3).contiguous().permute(*back, 3)
    if return_aux is not None:
        from torch.nn.attention.flex_attention import AuxOutput

        lse = scores.logsumexp(-1) if return_aux.lse else None
        largest = scores.amax(-1) if return_aux.max_scores else None
        return result, AuxOutput(lse=lse, max_scores=largest)
    if return_lse:
        return result, scores.logsumexp(-1)
    return result


_SIGNATURE = inspect.signature(_attention)


# -- the call --------------------------------------------------------------------------------------


@means("torch.nn.attention.flex_attention.flex_attention", how=How.UNREALIZED)
def _flex_attention(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    try:
        arguments = session.realize_all(_SIGNATURE.bind(*args, **kwargs).arguments)
    except TypeError:
        arguments = {}
    if not _takes(session, arguments):
        raise session.unsupported(
            "argument-kind", "flex_attention() is given what is left to eager"
        )
    function: Any = _attention
    inlined = FunctionValue.outside(session, function, ConstSource(function))
    result: Value = session.inline(inlined, (), arguments)
    _note_saved(session, arguments, result)
    return result


def _note_saved(session: Session, arguments: Keywords, result: Value) -> None:
    """Eager's backward reads the arguments and the result, where the formula's has copies."""
    result = session.realize(result)
    if isinstance(result, TupleValue):
        result = result.items[0]
    if not isinstance(result, TensorValue) or not result.fake.requires_grad:
        return
    for value in (result, *map(arguments.__getitem__, ("query", "key", "value"))):
        assert isinstance(value, TensorValue)
        value.fx_node.meta[EAGER_SAVES] = True


def _takes(session: Session, arguments: Keywords) -> bool:
    """Whether eager takes tensors of these sizes, with a mask of their lengths."""
    fakes, kinds = [], set()
    for name in ("query", "key", "value"):
        tensor = arguments.get(name, NONE)
        if not isinstance(tensor, TensorValue) or tensor.fake.dim() != 4:
            return False
        fakes.append(tensor.fake)
        kinds.add((tensor.fake.dtype, tensor.fake.device))
    query, key, value = fakes
    for fake in fakes:  # of heads there is one kernel for each number and width
        int(fake.shape[1]), int(fake.shape[3])
    device = query.device
    if (
        len(kinds) != 1
        or not query.dtype.is_floating_point
        or torch.is_autocast_enabled(device.type)
    ):
        return False
    if key.shape[:3] != value.shape[:3] or query.shape[3] != key.shape[3]:
        return False
    if query.shape[1] != key.shape[1]:
        is_grouped = session.truth(arguments.get("enable_gqa", NONE))
        if not is_grouped or query.shape[1] % key.shape[1] != 0:
            return False
    request = arguments.get("return_aux", NONE)
    if not is_none(request):
        wants_largest = session.truth(request.get_attribute(session, "max_scores"))
        if session.truth(arguments.get("return_lse", NONE)) or wants_largest and not query.is_cuda:
            return False
    mask = arguments.get("block_mask", NONE)
    if is_none(mask):
        return bool(query.shape[0] == key.shape[0])
    lengths = session.deep(mask.get_attribute(session, "seq_lengths")).argument(fake_of)
    is_of_lengths = bool(query.shape[2] == lengths[0]) and bool(key.shape[2] == lengths[1])
    return is_of_lengths and bool(query.shape[0] == key.shape[0] or key.shape[0] == 1)
