"""copy.deepcopy of a tensor: a copy of all the memory behind it, of which the copy shows what the
tensor shows. `as_subclass`: another object for the same elements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Parameter

from ingot.capture.guards import Kind
from ingot.capture.meanings import How, means
from ingot.capture.sources import InstanceDictSource
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.containers import DictValue
from ingot.capture.values.identity import IdentityNumber
from ingot.capture.values.tensor import TensorValue, call_by_rule
from ingot.graph.fakes import FakeTensor, data_of, storage_key

if TYPE_CHECKING:
    from ingot.capture.session import Session


class _Copies(dict[tuple[int, int], tuple[Value, TensorValue]]):
    """By memo of copy.deepcopy and storage: the memo, and the copy of the storage."""


@means(torch.Tensor.__deepcopy__, how=How.METHOD)
def _deepcopy(
    session: Session, tensor: TensorValue, args: Arguments, kwargs: Keywords
) -> Value | None:
    """Tensor.__deepcopy__(memo). None for what is more than its elements: a leaf, attributes of its
    own."""
    copy: TensorValue | None = None
    memo = None
    if len(args) == 1 and not kwargs:
        memo = session.realize(args[0])
    if isinstance(memo, DictValue) and memo.source is None and tensor.cls is Parameter:
        return _copy_of_parameter(session, tensor, memo)
    if not isinstance(memo, DictValue) or memo.source is not None or not _is_plain(session, tensor):
        return None
    place = id(memo), storage_key(tensor.fake)
    _, base = session.state(_Copies).get(place, (None, None))
    if base is None:  # copies share memory as the originals do
        base = _call(session, "clone", _whole(session, tensor))
        session.state(_Copies)[place] = memo, base
        copy = base
    if base.fake.dtype != tensor.fake.dtype:
        return None
    if copy is None or _geometry(copy) != _geometry(tensor):
        copy = _call(session, "as_strided", base, *_geometry(tensor))
    memo.set_item(session, IdentityNumber(tensor), copy)
    return copy


def _copy_of_parameter(session: Session, parameter: TensorValue, memo: DictValue) -> Value | None:
    """A parameter that the program makes; None where it has attributes of its own."""
    if not _has_no_attributes(session, parameter):
        return None
    copy = _call(session, "clone", _detached(session, parameter))
    copy.cls = Parameter
    if parameter.fake.requires_grad:
        call_by_rule(session, "requires_grad_", copy, [], {})
    memo.set_item(session, IdentityNumber(parameter), copy)
    return copy


def _detached(session: Session, tensor: TensorValue) -> TensorValue:
    data = session.call_function(data_of, tensor)
    assert isinstance(data, TensorValue)
    return data


def _is_plain(session: Session, tensor: TensorValue) -> bool:
    if tensor.cls is not torch.Tensor or tensor.fake.requires_grad:
        return False
    if not isinstance(tensor.fake, FakeTensor):  # but a transform's wrapper of one
        return False
    meta = _meta(tensor)
    numbers = (*meta.shape, *meta.stride(), meta.storage_offset())
    if torch.SymInt in map(type, numbers) or meta.untyped_storage().nbytes() % meta.itemsize:
        return False
    return _has_no_attributes(session, tensor)


def _has_no_attributes(session: Session, tensor: TensorValue) -> bool:
    """Whether the user has set no attribute of a tensor, which is guarded."""
    if tensor.attributes:
        return False
    if tensor.source is not None:
        own = vars(session.graph.inputs.value_of(tensor))
        if own or session.effects.fields(own) is not None:
            return False
        session.guard(InstanceDictSource(tensor.source), Kind.DICT_KEYS, ())
    return True


def _meta(tensor: TensorValue) -> torch.Tensor:
    assert isinstance(tensor.fake, FakeTensor)
    return tensor.fake.meta


def _geometry(tensor: TensorValue) -> tuple[Any, ...]:
    return tuple(tensor.fake.shape), tensor.fake.stride(), tensor.fake.storage_offset()


def _whole(session: Session, tensor: TensorValue) -> TensorValue:
    """All the memory behind a tensor: the tensor itself, where it shows all of it once."""
    meta = _meta(tensor)
    size = meta.untyped_storage().nbytes() // meta.itemsize
    if meta.numel() == size and torch.empty_like(meta).stride() == meta.stride():
        return tensor
    return _call(session, "as_strided", tensor, (size,), (1,), 0)


def _call(session: Session, name: str, tensor: TensorValue, *args: Any) -> TensorValue:
    result = session.call_method(name, tensor, *map(session.wrap_constant, args))
    assert isinstance(result, TensorValue)
    return result
