"""Items of arrays: reading and writing them, with NumPy's rules for what an index means."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from ingot.capture.meanings import How, means
from ingot.capture.residual import Call
from ingot.capture.results import RECIPES
from ingot.capture.values.array_operands import (
    Operand,
    filled,
    operand_of,
    refused_by_numpy,
    tensor_in,
)
from ingot.capture.values.arrays import ArrayValue, ScalarValue, element_of
from ingot.capture.values.base import Arguments, Keywords, Value, positions
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.numbers import NumberValue
from ingot.capture.values.sequences import ListValue, SliceValue, TupleValue
from ingot.capture.values.tensor import SymIntValue, TensorValue
from ingot.graph.fakes import storage_key

if TYPE_CHECKING:
    from ingot.capture.session import Session

_WHOLE = SliceValue(NONE, NONE, NONE)


class _Index(NamedTuple):
    """An index in torch's terms: a part for each dimension, dimensions of the result that run
    backwards, and what kinds of parts it has."""

    parts: list[Value]
    flipped: tuple[int, ...]
    is_advanced: bool
    is_element: bool  # whether it is of integers alone, one for each dimension
    is_view: bool  # whether NumPy gives a view: it has no arrays


class CopiedView(ArrayValue):
    """A view of an array that torch has no view for. In the graph it is a copy, and neither its
    memory nor that of the array is written. `place` is the index that gives it."""

    __slots__ = ("forwards", "place")

    def __init__(self, tensor: TensorValue, forwards: ArrayValue, place: Value) -> None:
        super().__init__(tensor)
        self.forwards, self.place = forwards, place


class BackwardsArray(CopiedView):
    """One in which dimensions run backwards."""

    __slots__ = ("slices",)

    def __init__(
        self, tensor: TensorValue, forwards: ArrayValue, slices: tuple[slice, ...]
    ) -> None:
        super().__init__(tensor, forwards, ConstantValue(slices))
        self.slices = slices


class _Backwards:
    """The memory that must not be written, as a copy stands for a view of it, and the copies."""

    def __init__(self) -> None:
        self.keys: dict[int, TensorValue] = {}
        self.copies: dict[int, TensorValue] = {}
        self.is_checked = False


def _check_written(session: Session, leaves: list[Any]) -> None:
    keys = session.state(_Backwards).keys
    for leaf in leaves:
        if isinstance(leaf, TensorValue) and storage_key(leaf.fake) in keys:
            raise session.unsupported("numpy", "memory is written that a copied view shows")


def _note_copy(session: Session, view: TensorValue, copy: TensorValue) -> None:
    """From here on, neither a copy nor what it stands for a view of is written."""
    state = session.state(_Backwards)
    if not state.is_checked:
        session.graph.write_checks.append(_check_written)
        state.is_checked = True
    for tensor in (view, copy):
        state.keys[storage_key(tensor.fake)] = tensor
    state.copies[storage_key(copy.fake)] = copy


def _selected(session: Session, array: ArrayValue, key: Value, parts: list[Value]) -> ArrayValue:
    """The part of an array at places that the graph computes."""
    tensor, dim = array.tensor(session), 0
    view = tensor
    for part in parts:
        if _is_rank_0(part):
            place = session.call_method("reshape", part, ConstantValue(1))
            picked = session.call_method("index_select", view, ConstantValue(dim), place)
            view = session.call_method("squeeze", picked, ConstantValue(dim))  # type: ignore[assignment]
        elif isinstance(part, SliceValue) and _is_whole(session, part):
            dim += 1
        else:
            raise session.unsupported("numpy", "an index that the graph computes, beside others")
    _note_copy(session, tensor, view)
    return CopiedView(view, array, key)


def _backwards(session: Session, forwards: ArrayValue, dims: tuple[int, ...]) -> ArrayValue:
    view = forwards.tensor(session)
    copy = session.call_function(torch.flip, view, session.wrap_constant(dims))
    assert isinstance(copy, TensorValue)
    _note_copy(session, view, copy)
    key = []
    for dim in range(view.fake.dim()):
        key.append(slice(None, None, -1 if dim in dims else None))
    return BackwardsArray(copy, forwards, tuple(key))


def permuted(session: Session, array: ArrayValue, dims: Sequence[int]) -> ArrayValue:
    """The view with its dimensions in another order."""
    forwards = array
    if isinstance(array, BackwardsArray):
        forwards = array.forwards
    order = session.wrap_constant(tuple(dims))
    view = ArrayValue(session.call_method("permute", forwards.tensor(session), order))  # type: ignore[arg-type]
    if not isinstance(array, BackwardsArray):
        return view
    flipped = []
    for place, dim in enumerate(dims):
        if array.slices[dim].step is not None:
            flipped.append(place)
    return _backwards(session, view, tuple(flipped))


def _recipe_of_view(results: Any, value: CopiedView) -> Call:
    return Call(operator.getitem, (results.recipe(value.forwards), results.recipe(value.place)))


_plain_recipe = RECIPES[ArrayValue]


def _recipe(results: Any, value: ArrayValue) -> Any:
    session = results.session
    if storage_key(value.tensor(session).fake) in session.state(_Backwards).copies:
        raise session.unsupported("alive-at-break", "a view of a copied view of an array")
    return _plain_recipe(results, value)


RECIPES[ArrayValue] = _recipe
RECIPES[BackwardsArray] = RECIPES[CopiedView] = _recipe_of_view


class ReadOnlyArray(ArrayValue):
    """An array that NumPy lets nobody write."""

    __slots__ = ()

    def set_item(self, session: Session, key: Value, value: Value) -> None:
        raise refused_by_numpy(session, ValueError("assignment destination is read-only"))


def read_only(array: Any) -> Any:
    """The same array, which may not be written any more."""
    array.flags.writeable = False
    return array


def _recipe_of_read_only(results: Any, value: ReadOnlyArray) -> Call:
    return Call(read_only, (_recipe(results, value),))


RECIPES[ReadOnlyArray] = _recipe_of_read_only


# -- indices ---------------------------------------------------------------------------------------


def _part(session: Session, value: Value) -> Value:
    """A part of an index, as a constant, a slice, a symbolic integer or a tensor."""
    value = session.realize(value)
    if isinstance(value, SliceValue):
        bounds = []
        for bound in map(session.realize, value.bounds):
            size = bound
            if isinstance(bound, (ScalarValue, NumberValue)):
                size = bound.as_size(session)  # type: ignore[assignment]
            elif isinstance(bound, ConstantValue) and isinstance(bound.object, np.integer):
                size = ConstantValue(int(bound.object))
            if size is None:
                raise session.unsupported("numpy", f"a slice up to {bound.describe()}")
            bounds.append(size)
        return SliceValue(*bounds)
    if isinstance(value, (ScalarValue, NumberValue)):
        return _computed(session, value)
    if isinstance(value, (ListValue, TupleValue)):
        if not value.items:
            value = session.call_builtin(np.zeros, ConstantValue(0), ConstantValue(np.int64))
        else:
            value = session.call_builtin(np.array, value)
    if isinstance(value, (ArrayValue, TensorValue)):
        return _advanced(session, operand_of(session, value))
    if isinstance(value, SymIntValue):
        return value
    if isinstance(value, ConstantValue):
        if value.object is None or value.object is ...:
            return value
        if isinstance(value.object, (int, np.integer)) and not isinstance(value.object, bool):
            return ConstantValue(int(value.object))
        if isinstance(value.object, (float, complex)):
            message = "only integers, slices and arrays are valid indices"
            raise refused_by_numpy(session, IndexError(message))
    raise session.unsupported("numpy", f"an index that is {value.describe()}")


def _computed(session: Session, value: ScalarValue | NumberValue) -> Value:
    """An integer that the graph computes: a size that varies, or a tensor of rank 0."""
    if isinstance(value, ScalarValue):
        if isinstance(value.held, SymIntValue):
            return value.held
        operand = operand_of(session, value)
    else:
        operand = Operand(np.dtype(value.cls), value.tensor)
    if operand.strong.kind not in "iu":
        raise session.unsupported("numpy", f"an index that is {value.describe()}")
    return tensor_in(session, operand, np.dtype(np.int64))


def _advanced(session: Session, operand: Operand) -> Value:
    if operand.strong.kind not in "iub":
        message = "arrays used as indices must be of integer (or boolean) type"
        raise refused_by_numpy(session, IndexError(message))
    if operand.rank == 0:
        if operand.strong.kind == "b":
            raise session.unsupported("numpy", "an index that is a truth value of rank 0")
        assert operand.tensor is not None
        return _part(session, ScalarValue(operand.tensor))
    if operand.strong.kind == "b":
        return tensor_in(session, operand, operand.strong)
    return tensor_in(session, operand, np.dtype(np.int64))


def _takes(part: Value) -> int:
    """How many dimensions a part of an index is about."""
    if isinstance(part, TensorValue) and part.fake.dtype is torch.bool:
        return part.fake.dim()
    if isinstance(part, ConstantValue) and (part.object is None or part.object is ...):
        return 0
    return 1


def _is_ellipsis(part: Value) -> bool:
    return isinstance(part, ConstantValue) and part.object is ...


def _is_integer(part: Value) -> bool:
    if isinstance(part, SymIntValue) or _is_rank_0(part):
        return True
    return isinstance(part, ConstantValue) and type(part.object) is int


def _is_tensor(part: Value) -> bool:
    return isinstance(part, TensorValue)


def _is_rank_0(part: Value) -> bool:
    return isinstance(part, TensorValue) and part.fake.dim() == 0


def _is_array(part: Value) -> bool:
    return isinstance(part, TensorValue) and part.fake.dim() > 0


def _parts(session: Session, key: Value, rank: int) -> list[Value]:
    """The parts of an index, one or more for each dimension."""
    key = session.realize(key)
    values: list[Value] = [key]
    if isinstance(key, TupleValue):
        values = list(key.items)
    parts = list(map(partial(_part, session), values))
    places = positions(_is_ellipsis, parts)
    lacking = rank - sum(map(_takes, parts))
    if lacking < 0:
        message = f"too many indices for array: array is {rank}-dimensional"
        raise refused_by_numpy(session, IndexError(message))
    if len(places) > 1:
        message = "an index can only have a single ellipsis ('...')"
        raise refused_by_numpy(session, IndexError(message))
    whole: list[Value] = [_WHOLE] * lacking
    if not places:
        return parts + whole
    before, after = parts[: places[0]], parts[places[0] + 1 :]
    if not lacking and any(map(_is_tensor, before)) and any(map(_is_tensor, after)):
        raise session.unsupported("numpy", "an ellipsis that stands for nothing between indices")
    return before + whole + after


def _index(session: Session, array: ArrayValue, key: Value) -> _Index:
    tensor = array.tensor(session)
    rank = tensor.fake.dim()
    parts = _parts(session, key, rank)
    is_advanced = any(map(_is_tensor, parts))
    is_element = len(parts) == rank and all(map(_is_integer, parts))
    if is_element:
        realized = session.realize(key)
        items = realized.items if isinstance(realized, TupleValue) else [realized]
        is_element = not any(map(_is_ellipsis, map(session.realize, items)))
    results: list[Value] = []
    flipped: list[int] = []
    dim = place = 0
    for part in parts:
        taken, is_integer = _takes(part), _is_integer(part)
        if isinstance(part, SliceValue):
            step = session.known(part.bounds[2])
            if step is not None and step < 0:
                part = _forwards(session, part, array.sizes(session)[dim])
                flipped.append(place)
        elif is_advanced and _is_integer(part):
            # beside arrays, integers are arrays as well
            if not isinstance(part, TensorValue):
                part = filled(session, part, torch.int64)
            part = session.call_method("reshape", part, ConstantValue(1))
        results.append(part)
        dim += taken
        place += not is_integer
    if flipped and is_advanced:
        raise session.unsupported("numpy", "arrays and slices that run backwards as indices")
    is_view = not is_element and not any(map(_is_array, parts))
    return _Index(results, tuple(flipped), is_advanced, is_element, is_view)


def _forwards(session: Session, part: SliceValue, size: Value) -> SliceValue:
    """The slice of the same elements in their order, of one that runs backwards."""
    start, stop, step = map(session.known, part.bounds)
    if (start, stop, step) == (None, None, -1):
        return _WHOLE
    length = session.known(size)
    places = range(*slice(start, stop, step).indices(length))
    if not places:
        bounds = (0, 0, None)
    else:
        bounds = (places[-1], places[0] + 1, -step)
    return SliceValue(*map(ConstantValue, bounds))


def _turned(session: Session, array: BackwardsArray, parts: list[Value]) -> Value | None:
    """An index of a view that runs backwards as one of what it is a view of; None for arrays and
    computed numbers."""
    results: list[Value] = []
    dim = 0
    for part in parts:
        if isinstance(part, (TensorValue, SymIntValue)):
            return None
        if _takes(part) and array.slices[dim].step is not None:
            part = _mirrored(session, part, array.sizes(session)[dim])
        dim += _takes(part)
        results.append(part)
    return TupleValue(results, tuple)


def _mirrored(session: Session, part: Value, size: Value) -> Value:
    """A part of an index counted from the other end."""
    if not isinstance(part, SliceValue):
        return ConstantValue(-1 - session.known(part))
    length = session.known(size)
    places = range(length)[::-1][slice(*map(session.known, part.bounds))]
    bounds: tuple[int | None, ...] = (0, 0, None)
    if places:
        bounds = (places.start, places.stop, places.step)
        if places.stop < 0:
            bounds = (places.start, None, places.step)
    return SliceValue(*map(ConstantValue, bounds))


# -- reading and writing ---------------------------------------------------------------------------


@means(np.ndarray.__getitem__, how=How.METHOD)
def get_item(session: Session, array: ArrayValue, args: Arguments, kwargs: Keywords) -> Value:
    (key,) = args
    if isinstance(array, ScalarValue):
        realized = session.realize(key)
        if isinstance(realized, TupleValue) and not realized.items:
            return array
        if not isinstance(realized, ConstantValue) or realized.object not in (None, ...):
            message = "invalid index to scalar variable."
            raise refused_by_numpy(session, IndexError(message))
        array = ArrayValue(session.call_method("clone", array.tensor(session)))  # type: ignore[arg-type]
    if isinstance(array, BackwardsArray):
        parts = _parts(session, key, array.tensor(session).fake.dim())
        turned = _turned(session, array, parts)
        if turned is not None and not all(map(_is_integer, parts)):
            return array.forwards.get_item(session, turned)
    index = _index(session, array, key)
    tensor = array.tensor(session)
    if index.is_view and any(map(_is_tensor, index.parts)):
        return _selected(session, array, key, _parts(session, key, tensor.fake.dim()))
    if index.parts:
        result = session.call_function(operator.getitem, tensor, TupleValue(index.parts, tuple))
    else:
        result = session.call_function(operator.getitem, tensor, ConstantValue(...))
    assert isinstance(result, TensorValue)
    if index.is_element:
        if index.is_advanced:
            result = session.call_method("reshape", result, TupleValue([], tuple))  # type: ignore[assignment]
        return element_of(session, session.call_method("clone", result))  # type: ignore[arg-type]
    if index.flipped and math.prod(result.fake.shape) != 0:
        return _backwards(session, ArrayValue(result), index.flipped)
    return ArrayValue(result)


def _apart(session: Session, tensor: TensorValue, written: TensorValue) -> TensorValue:
    """A tensor to write from: a copy of one that stands for a view, or shares the memory that is
    written."""
    key = storage_key(tensor.fake)
    if key == storage_key(written.fake) or key in session.state(_Backwards).keys:
        return session.call_method("clone", tensor)  # type: ignore[return-value]
    return tensor


@means(np.ndarray.__setitem__, how=How.METHOD)
def set_item(session: Session, array: ArrayValue, args: Arguments, kwargs: Keywords) -> Value:
    key, value = args
    tensor, index = array.tensor(session), _index(session, array, key)
    dtype = array.dtype(session)
    operand = operand_of(session, value)
    if operand.number is not None:
        _refuse_number(session, operand, dtype)
    result = _apart(session, tensor_in(session, operand, dtype), tensor)
    parts: Value = TupleValue(index.parts, tuple)
    if not index.parts:
        parts = ConstantValue(...)
    if index.flipped:
        target = session.call_function(operator.getitem, tensor, parts)
        spread = session.call_method("expand_as", result, target)
        result = session.call_function(torch.flip, spread, session.wrap_constant(index.flipped))  # type: ignore[assignment]
        session.call_method("copy_", target, result)
    else:
        session.call_function(operator.setitem, tensor, parts, result)
    return NONE


def _refuse_number(session: Session, operand: Operand, dtype: Any) -> None:
    """Stops where NumPy refuses to write a number."""
    number = operand.number
    if operand.strong.kind == "c" and dtype.kind != "c":
        message = "float() argument must be a string or a real number, not 'complex'"
        raise refused_by_numpy(session, TypeError(message))
    if operand.strong.kind == "f" and dtype.kind in "iu" and not np.isfinite(number):
        raise refused_by_numpy(session, ValueError("cannot convert float NaN to integer"))


def accumulate(session: Session, array: ArrayValue, key: Value, value: Value) -> None:
    """Adds to elements, to one that is named several times as often."""
    tensor, index = array.tensor(session), _index(session, array, key)
    operand, dtype = operand_of(session, value), array.dtype(session)
    parts = list(index.parts)
    while parts and _is_whole(session, parts[-1]):
        parts.pop()
    fits = operand.number is not None or np.can_cast(operand.strong, dtype, "same_kind")
    if not parts or not fits or not all(map(_is_tensor, parts)):
        raise session.unsupported("numpy", "numpy.add.at in this form")
    result = _apart(session, tensor_in(session, operand, dtype), tensor)
    indices = TupleValue(parts, tuple)
    session.call_method("index_put_", tensor, indices, result, ConstantValue(True))


def _is_whole(session: Session, part: Value) -> bool:
    """Whether it is the slice of all."""
    return isinstance(part, SliceValue) and not any(map(session.known, part.bounds))
