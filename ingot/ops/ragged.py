"""Between packed rows of several lengths and a padded tensor: what nested tensors compute with."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ingot.graph.meta.basis import fresh
from ingot.graph.meta.trials import tried_out
from ingot.graph.schemas import bind
from ingot.ops.op import op
from ingot.sequences import Args, Kwargs
from ingot.torch_private import OpOverload, aten


def padded_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    """Packed rows [total, ...] as [rows, longest, ...]."""
    bound = bind(op, args, kwargs)
    values, offsets, lengths = bound["values"], bound["offsets"], bound["max_lengths"]
    if len(offsets) != 1 or len(lengths) != 1 or values.dim() != 2:
        return tried_out(op, args, kwargs)  # type: ignore[no-any-return]
    return fresh((offsets[0].shape[0] - 1, *lengths, *values.shape[1:]), values.dtype)


def packed_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    """Padded rows [rows, longest, ...] as [total, ...]."""
    bound = bind(op, args, kwargs)
    dense, total = bound["dense"], bound["total_L"]
    if len(bound["offsets"]) != 1 or dense.dim() != 3 or total is None:
        return tried_out(op, args, kwargs)  # type: ignore[no-any-return]
    return fresh((total, *dense.shape[2:]), dense.dtype)


def _may_raise(args: Args, result: Any) -> bool:
    """Where the offsets do not fit the other tensor."""
    return True


OPS = (
    op(aten._jagged_to_padded_dense_forward.default, meta=padded_meta, may_raise=_may_raise),
    op(aten._padded_dense_to_jagged_forward.default, meta=packed_meta, may_raise=_may_raise),
)
