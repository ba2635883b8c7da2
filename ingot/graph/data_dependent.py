"""Ops whose result has a size, or is an integer, that the data decide. Out comes what the result
looks like, with an unbacked symbol for it (see `unbacked.py`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ingot.errors import CompilerBug, EagerRaises, unsupported
from ingot.graph import geometry, meta
from ingot.graph.nodes import results_of
from ingot.graph.schemas import is_pointwise
from ingot.graph.shape_context import INTEGERS, ShapeContext
from ingot.graph.symbols import is_decided_by_data
from ingot.graph.unbacked import Unbacked
from ingot.loops.expr import Symbol
from ingot.loops.packed_ops import pad_packed
from ingot.sequences import present
from ingot.tables import Table
from ingot.torch_private import OpOverload, aten


class Binding(NamedTuple):
    """What an unbacked symbol is: the size of a dimension of a result, or, with dimension -1, the
    result itself."""

    symbol: Symbol
    result: int
    dim: int


LARGEST = 1 << 48
"""Elements of a tensor, more than there is memory for."""


def rule_for(op: OpOverload, args: Sequence[Any]) -> Callable[..., Any] | None:
    """The rule of an op that makes a symbol of these arguments: rule(shapes, *args, **kwargs); None
    of any other."""
    if op is aten._local_scalar_dense.default and args[0].dtype not in _INTEGERS:
        return None
    if op is aten.index.Tensor:
        if has_masks(args):
            return _masked
        return None
    return _RULES.get(op)


def note_counts(
    unbacked: Unbacked, op: OpOverload, tensors: Sequence[Tensor], symbols: Sequence[Symbol]
) -> None:
    """Note of which masks among an op's arguments the new symbols are counts."""
    masks = []
    for t in tensors:
        if t.dtype is torch.bool:
            masks.append(t)
    if op is aten.nonzero.default:
        masks = list(tensors)
    elif op is aten.masked_select.default:
        if tensors[0].shape == tensors[1].shape:
            masks = masks[-1:]
        else:
            masks = []
    elif op is not aten.index.Tensor:
        return
    elif tensors[0].dtype is torch.bool:
        masks = masks[1:]
    if len(masks) == len(symbols):
        for mask, symbol in zip(masks, symbols):
            unbacked.count(mask, symbol)


def expect_elements(op: OpOverload, tensors: Sequence[Tensor]) -> None:
    """Have it checked that no size is 0 for an op that may mean something else, or raise an error,
    for no elements."""
    if is_pointwise(op) or op.is_view or op in TAKES_NO_ELEMENTS:
        return
    for size in decided_sizes(tensors):
        if size == 0:
            raise CompilerBug("trace", "a size that the data decide is taken to be 0")


def decided_sizes(tensors: Sequence[Tensor]) -> Iterator[torch.SymInt]:
    """The sizes of some tensors that the data decide."""
    for t in tensors:
        yield from filter(is_decided_by_data, t.shape)


TAKES_NO_ELEMENTS: Table[bool] = Table("takes_no_elements")
"""Ops to which a size of 0 means nothing else, beside pointwise ones and views."""


def selects(op: OpOverload, args: Sequence[Any]) -> bool:
    """Whether an `aten.index` or `aten.masked_select` is one by a mask."""
    if op is aten.masked_select.default:
        return args[1].dtype is torch.bool
    return has_masks(args)


def bound_by(result: Any, symbols: Sequence[Symbol]) -> tuple[Binding, ...]:
    """Where a result shows the values of symbols."""
    bindings: dict[Symbol, Binding] = {}
    for k, item in enumerate(results_of(result)):
        if item is None:
            continue
        places = [(-1, item)] if isinstance(item, torch.SymInt) else enumerate(item.shape)
        for dim, size in places:
            if isinstance(size, torch.SymInt):
                e = size.node.first
                if isinstance(e, Symbol) and e in symbols:
                    bindings.setdefault(e, Binding(e, k, dim))
    if len(bindings) < len(symbols):
        raise CompilerBug("trace", f"{symbols} are sizes of no result")
    return tuple(bindings.values())


def has_masks(args: Sequence[Any]) -> bool:
    """Whether some index of `aten.index` is a mask."""
    return any(i.dtype is torch.bool for i in present(args[1]))


def in_places(args: Sequence[Any], places: Callable[[Tensor], Sequence[Tensor]]) -> tuple[Any, ...]:
    """The arguments of an `aten.index` with each mask replaced by the tensors that name its places,
    one for each of its dimensions. Raises EagerRaises for a mask of other sizes than what it is
    laid over."""
    x, indices = args
    by_place: list[Tensor | None] = []
    for index in indices:
        if index is None or index.dtype is not torch.bool:
            by_place.append(index)
            continue
        over = x.shape[len(by_place) : len(by_place) + index.dim()]
        if not index.dim():
            raise unsupported("op-form", "indexing with a mask without dimensions")
        if not geometry.expect_same_sizes(over, index.shape):
            raise EagerRaises("a mask of other sizes than the tensor that it indexes")
        by_place += places(index)
    if len(by_place) > x.dim():
        raise EagerRaises("more indices than dimensions")
    return x, by_place


def columns(places: Tensor) -> list[Tensor]:
    """The places of what is not zero by dimension, from `aten.nonzero`."""
    return [places.select(1, d) for d in range(places.shape[1])]


def _size(shapes: ShapeContext, most: Any, least: int = 0) -> torch.SymInt:
    """A new size; `most` is known or symbolic."""
    return shapes.decided_by_data(least, most if isinstance(most, int) else LARGEST)


def _empty(x: Tensor, sizes: Sequence[Any], dtype: torch.dtype = torch.int64) -> Tensor:
    return x.new_empty(sizes, dtype=dtype)


def _nonzero(shapes: ShapeContext, x: Tensor) -> Tensor:
    count = _size(shapes, x.numel())
    return torch.empty_strided((count, x.dim()), (1, count), dtype=torch.int64, device="meta")


def _masked(shapes: ShapeContext, *args: Any) -> Tensor:
    args = in_places(args, lambda mask: columns(_nonzero(shapes, mask)))
    return meta.rule_for(aten.index.Tensor)(aten.index.Tensor, args, {})


def _masked_select(shapes: ShapeContext, x: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype is not torch.bool:
        raise EagerRaises("masked_select by what is no mask")
    return _empty(x, (_size(shapes, math.prod(geometry.broadcast(x.shape, mask.shape))),), x.dtype)


def _repeated(shapes: ShapeContext, repeats: Tensor, output_size: Any = None) -> Tensor:
    if repeats.dim() != 1 or repeats.dtype not in (torch.int64, torch.int32):
        raise EagerRaises("repeats that are no vector of integers")
    if output_size is None:
        output_size = _size(shapes, None)
    return _empty(repeats, (output_size,), repeats.dtype)


def _unique(
    shapes: ShapeContext, x: Tensor, inverse: bool, counts: bool, dim: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """What is unique, of all elements or along a dimension; the place of each there, and how often
    it is there."""
    if dim is None:
        extent = x.numel()
    else:
        extent = x.shape[dim]
    count = _size(shapes, extent, least=int(isinstance(extent, int) and extent > 0))
    values = _empty(x, (count,), x.dtype)
    if dim is not None:
        others = list(x.shape)
        others.pop(dim)
        values = _empty(x, (count, *others), x.dtype).movedim(0, dim)
    places: Sequence[Any] = (0,)
    if inverse:
        places = x.shape if dim is None else (extent,)
    return values, _empty(x, places), _empty(x, (count,) if counts else (0,))


def _consecutive(
    shapes: ShapeContext,
    x: Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    along = dim is not None  # the kernel for a dimension gives all of them
    return _unique(shapes, x, along or return_inverse, along or return_counts, dim)


def _along(
    shapes: ShapeContext, x: Tensor, dim: int, *_: bool, **__: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return _unique(shapes, x, True, True, dim)


def _whole(
    shapes: ShapeContext,
    x: Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    return _unique(shapes, x, return_inverse, return_counts)


def _counted(
    shapes: ShapeContext, x: Tensor, weights: Tensor | None = None, minlength: Any = 0
) -> Tensor:
    least = 0
    if isinstance(minlength, int):
        least = minlength
    if weights is None:
        dtype = torch.int64
    elif weights.dtype is torch.float32:
        dtype = torch.float32
    else:
        dtype = torch.float64
    return _empty(x, (_size(shapes, None, least),), dtype)


def _ctc(
    shapes: ShapeContext, log_probs: Tensor, targets: Tensor, input_lengths: Any,
    target_lengths: Any, *_: Any,
    **__: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The losses, and what the backward reads, which has two columns for each place of the longest
    target, and one."""
    if log_probs.dim() != 3:
        raise EagerRaises("_ctc_loss of what has not three dimensions")
    length, batch = log_probs.shape[:2]
    known = not isinstance(target_lengths, Tensor)
    columns = 2 * max(target_lengths, default=0) + 1 if known else _size(shapes, None, least=1)
    dtype = log_probs.dtype
    return _empty(log_probs, (batch,), dtype), _empty(log_probs, (batch, length, columns), dtype)


def _packed(
    shapes: ShapeContext, x: Tensor, lengths: Tensor, batch_first: bool
) -> tuple[Tensor, Tensor]:
    """The rows of padded sequences without the padding, step by step, and how many there are of
    each step."""
    batch, steps = x.shape[:2] if batch_first else (x.shape[1], x.shape[0])
    if lengths.dim() != 1 or lengths.dtype is not torch.int64:
        raise EagerRaises("lengths of sequences that are no vector of integers")
    if not geometry.expect_same_sizes(lengths.shape, (batch,)):
        raise EagerRaises("another number of lengths than of sequences")
    rows = _size(shapes, None, least=1)
    return _empty(x, (rows, *x.shape[2:]), x.dtype), _empty(lengths, (_size(shapes, steps, 1),))


def _padded(
    shapes: ShapeContext, data: Tensor, batch_sizes: Tensor, batch_first: bool, _: Any, total: Any
) -> tuple[Tensor, Tensor]:
    """The sequences of such rows, padded, and their lengths."""
    steps = batch_sizes.shape[0] if isinstance(total, int) and total <= 0 else total
    batch = _size(shapes, None, least=1)
    padded = _empty(data, (steps, batch, *data.shape[1:]), data.dtype)
    return padded.transpose(0, 1) if batch_first else padded, _empty(batch_sizes, (batch,))


def _item(shapes: ShapeContext, x: Tensor) -> torch.SymInt:
    info = torch.iinfo(x.dtype)
    return shapes.decided_by_data(max(info.min, INTEGERS[0]), min(info.max, INTEGERS[1]))


_INTEGERS = frozenset({torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8})
_RULES: dict[OpOverload, Callable[..., Any]] = {
    aten.nonzero.default: _nonzero,
    aten.masked_select.default: _masked_select,
    aten.repeat_interleave.Tensor: _repeated,
    aten._unique2.default: _whole,
    aten.unique_consecutive.default: _consecutive,
    aten.unique_dim.default: _along,
    aten.bincount.default: _counted,
    aten._ctc_loss.default: _ctc,
    aten._ctc_loss.Tensor: _ctc,
    aten._pack_padded_sequence.default: _packed,
    pad_packed: _padded,
    aten._local_scalar_dense.default: _item,
}
