"""What a number in a tensor selects (`x[t]` of a `t` without dimensions): eager reads the number,
and gives a view. Capture gathers the elements instead, which nobody can tell as long as neither is
written and the result is not given away. Where it is, capture starts over, and the graph is broken
before the selection. `chosen.py` has the tensors that max() and min() choose noted here as well."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import torch

from ingot.capture.meanings import How, means
from ingot.capture.values.base import Arguments, Keywords, Value, positions
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.flex_attention import item_at_tensors
from ingot.capture.values.numbers import NumberValue, call, method
from ingot.capture.values.packed import first_batch_size
from ingot.capture.values.sequences import SliceValue, TupleValue
from ingot.capture.values.tensor import SymIntValue, TensorValue
from ingot.capture.values.tensor_lists import fakes_in
from ingot.errors import Unsupported
from ingot.graph.fakes import storage_key
from ingot.graph.symbols import is_decided_by_data
from ingot.torch_private import is_functorch_wrapped_tensor

if TYPE_CHECKING:
    from ingot.capture.session import Session

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)
_EVERYTHING = SliceValue(NONE, NONE, NONE)


class _Selection(NamedTuple):
    """A copy in place of eager's view or tensor.

    It has the number of the instruction, the storages of the tensor and of the result, and what it
    is in words. With `may_leave` the result may leave the graph if the tensor's memory does not."""

    step: int
    base: int
    result: int
    what: str
    may_leave: bool


class _Index(NamedTuple):
    """What gave a copy: a tensor that was indexed, its key, and the tensors in that with how often
    each had been written."""

    tensor: TensorValue
    key: Value
    versions: tuple[tuple[TensorValue, int], ...]


class _Selections(list[_Selection]):
    """All of a capture. `leaving` has the storages of the graph's results so far, `indices` what
    gave copies, by the ids of their fakes."""

    def __init__(self) -> None:
        super().__init__()
        self.leaving = set[int]()
        self.indices: dict[int, _Index] = {}


def note_copy(
    session: Session, base: TensorValue, result: TensorValue, what: str, may_leave: bool
) -> None:
    """Notes that `result` is a copy of elements of `base`, which eager would share."""
    selections = session.state(_Selections)
    if not selections:
        session.graph.write_checks.append(_refuse_written)
    step, keys = session.step_of_outermost, (storage_key(base.fake), storage_key(result.fake))
    selections.append(_Selection(step, *keys, what, may_leave))


def _refuse_written(session: Session, written: Sequence[Any]) -> None:
    """Breaks the graph before elements were copied whose memory, in eager, is to be written."""
    keys = set(map(storage_key, fakes_in(written)))
    for selection in session.state(_Selections):
        if not keys.isdisjoint((selection.base, selection.result)):
            raise _broken_before(session, selection, "and one of them is written")


def refuse_selected(session: Session, result: TensorValue) -> None:
    """Breaks the graph before elements were copied that are a result of the graph."""
    selections = session.state(_Selections)
    selections.leaving.add(storage_key(result.fake))
    for selection in selections:
        if selection.result not in selections.leaving:
            continue
        if selection.may_leave and not _leaves(session, selection.base):
            continue
        raise _broken_before(session, selection, "which is alive at the end of a graph")


def selected_again(session: Session, value: TensorValue) -> tuple[TensorValue, Value] | None:
    """The tensor from outside and the key that give a copy as eager's view, behind the graph.

    None where it is no such copy, or another view would come of them now."""
    index = session.state(_Selections).indices.get(id(value.fake))
    if index is None or index.tensor.source is None or value.attributes:
        return None
    if value.fake.requires_grad or index.tensor.fake.requires_grad:
        return None  # it would be recorded elsewhere
    for tensor, version in index.versions:
        if tensor.fake._version != version:
            return None
    return index.tensor, index.key


def view_in_place_of(copy: torch.Tensor, tensor: torch.Tensor, key: Any) -> torch.Tensor:
    """The view that eager has, where the graph has given a copy."""
    return tensor[key]


def _leaves(session: Session, storage: int) -> bool:
    """Whether memory is seen outside of the graph: an input's, or a result's."""
    if storage in session.state(_Selections).leaving:
        return True
    for value in session.graph.by_fake.values():
        if value.source is not None and storage_key(value.fake) == storage:
            return True
    return False


def _broken_before(session: Session, selection: _Selection, why: str) -> Unsupported:
    return session.unsupported("number-in-tensor", f"{selection.what}, {why}", step=selection.step)


def _is_number(session: Session, value: Value, like: TensorValue) -> bool:
    if not isinstance(value, TensorValue) or value.fake.dim() or value.fake.dtype not in _INTEGERS:
        return False
    known = (
        session.graph.known.of(value.fake) is not None
        or id(value.fake) in session.graph.known.sizes
    )
    return not known and value.fake.device == like.fake.device


def _plain(session: Session, value: Value) -> Value:
    """A part of an index; a number that was read from a tensor is that tensor."""
    value = session.realize(value)
    if isinstance(value, NumberValue) and value.cls is int:
        return value.tensor
    return session.deep(value)


def _is_unbacked(index: Value) -> bool:
    return isinstance(index, SymIntValue) and is_decided_by_data(index.fake)


def _consumed(value: Value) -> int | None:
    """How many dimensions an index takes; None where that is not plain to see."""
    if isinstance(value, SliceValue):
        return 1
    if isinstance(value, TensorValue):
        if value.fake.dtype in (torch.bool, torch.uint8):
            return None
        return 1
    if isinstance(value, ConstantValue) and (value.object is None or type(value.object) is int):
        return int(value.object is not None)
    return None


@means(torch.Tensor.__getitem__, how=How.METHOD)
def _getitem(
    session: Session, tensor: TensorValue, args: Arguments, kwargs: Keywords
) -> Value | None:
    key = session.realize(args[0])
    if (mapped := item_at_tensors(session, tensor, key)) is not None:
        return mapped
    if (first := first_batch_size(session, tensor, key)) is not None:
        return first
    if isinstance(key, TupleValue):
        keys = key.items
    else:
        keys = [key]
    indices = list(map(partial(_plain, session), keys))
    for index in filter(_is_unbacked, indices):
        raise session.unsupported("number-in-tensor", f"the value of {index.describe()}")
    for value in (tensor, *indices):
        if isinstance(value, TensorValue) and is_functorch_wrapped_tensor(value.fake):
            return None
    if (view := _at_integers(session, tensor, indices)) is not None:
        return _rest_of_index(session, view, indices)
    numbers = positions(partial(_is_number, session, like=tensor), indices)
    if not numbers:
        return None
    counts = list(map(_consumed, indices))
    if None in counts or sum(counts) > tensor.fake.dim():  # type: ignore[arg-type]
        return None
    base, result = tensor, tensor
    for k in reversed(numbers):
        dim = sum(counts[:k])  # type: ignore[arg-type]
        result = _select(session, result, dim, indices.pop(k))
    what = "the number in a tensor selects a view of another"
    note_copy(session, base, result, what, may_leave=False)
    whole = _rest_of_index(session, result, indices)
    if isinstance(whole, TensorValue):
        versions = []
        for tensor in filter(_is_tensor, map(partial(_plain, session), keys)):
            versions.append((tensor, tensor.fake._version))
        found = _Index(base, key, tuple(versions))
        session.state(_Selections).indices[id(whole.fake)] = found
    return whole


def _is_tensor(value: Value) -> TypeGuard[TensorValue]:
    return isinstance(value, TensorValue)


def _rest_of_index(session: Session, tensor: TensorValue, indices: list[Value]) -> Value:
    if indices:
        return tensor.get_item(session, TupleValue(indices, tuple))
    return tensor


def _at_integers(session: Session, tensor: TensorValue, indices: list[Value]) -> TensorValue | None:
    """The view that symbolic integers select; they are removed from `indices`. None where there
    are none, or the other indices make more than a view."""
    if SymIntValue not in map(type, indices):
        return None
    wide, counts = list[int](), list[int]()
    for k, index in enumerate(indices):
        count: int | None = 1
        if isinstance(index, ConstantValue) and index.object is Ellipsis:
            wide.append(k)
            count = 0
        elif not isinstance(index, SymIntValue):
            count = _consumed(index)
        if isinstance(index, TensorValue) or count is None:
            return None
        counts.append(count)
    if len(wide) > 1 or sum(counts) > tensor.fake.dim():
        return None
    rank = tensor.fake.dim()
    for k in reversed(range(len(indices))):
        if isinstance(indices[k], SymIntValue):
            behind_all = bool(wide) and wide[0] < k
            if behind_all:
                dim = rank - sum(counts[k:])
            else:
                dim = sum(counts[:k])
            view = session.call_method("select", tensor, ConstantValue(dim), indices.pop(k))
            assert isinstance(view, TensorValue)
            tensor = view
    return tensor


@means(torch.Tensor.__setitem__, how=How.METHOD)
def _setitem(
    session: Session, tensor: TensorValue, args: Arguments, kwargs: Keywords
) -> Value | None:
    key = session.realize(args[0])
    if not isinstance(key, TupleValue) or is_functorch_wrapped_tensor(tensor.fake):
        return None
    indices = list(map(partial(_plain, session), key.items))
    if any(map(_is_unbacked, indices)):
        return None
    view = _at_integers(session, tensor, indices)
    if view is None:
        return None
    view.set_item(
        session, TupleValue(indices, tuple) if indices else ConstantValue(Ellipsis), args[1]
    )
    return NONE


def _select(session: Session, tensor: TensorValue, dim: int, number: Value) -> TensorValue:
    assert isinstance(number, TensorValue)
    if number.fake.dtype is not torch.int64:
        number = method(session, "long", number)
    place = method(session, "reshape", number, 1)
    key = TupleValue([*[_EVERYTHING] * dim, place], tuple)
    return method(session, "squeeze", call(session, operator.getitem, tensor, key), dim)
