"""copy.deepcopy of a tensor: a copy of all its memory, which is a `clone` where the tensor is all that lies there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ingot.capture.guards import Kind
from ingot.capture.sources import InstanceDictSource
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.containers import DictValue
from ingot.capture.values.identity import IdentityNumber
from ingot.capture.values.tensor import METHODS, TensorValue
from ingot.graph.fakes import storage_key

if TYPE_CHECKING:
    from ingot.capture.session import Session


def _deepcopy(session: Session, tensor: TensorValue, args: Arguments, kwargs: Keywords) -> Value | None:
    """Tensor.__deepcopy__(memo). None for what is more than its elements: a view, a leaf, attributes of its own."""
    memo = session.realize(args[0]) if len(args) == 1 and not kwargs else None
    if not isinstance(memo, DictValue) or memo.source is not None or not _is_plain(session, tensor):
        return None
    place = id(memo), storage_key(tensor.fake)
    if place in session.graph.copied:  # copies share memory as the originals do
        return None
    session.graph.copied[place] = memo
    made = session.graph.call(session, "call_method", "clone", (tensor,), {})
    memo.set_item(session, IdentityNumber(tensor), made)
    return made


def _is_plain(session: Session, tensor: TensorValue) -> bool:
    meta = tensor.fake.meta
    if tensor.cls is not torch.Tensor or tensor.attributes or tensor.fake.requires_grad:
        return False
    if any(isinstance(n, torch.SymInt) for n in (*meta.shape, *meta.stride())):
        return False
    if meta.untyped_storage().nbytes() != meta.numel() * meta.element_size():
        return False
    if torch.empty_like(meta).stride() != meta.stride():
        return False
    if tensor.source is not None:
        own = vars(session.graph.value_of(tensor))
        if own or session.effects.fields(own) is not None:
            return False
        session.guard(InstanceDictSource(tensor.source), Kind.DICT_KEYS, ())
    return True


METHODS["__deepcopy__"] = _deepcopy
