"""How far rounding carries in a program: eager again, with the operands of every op that rounds
moved by an ulp.

Results of two right implementations differ by rounding, and a program may magnify that without
bound: by subtracting what is almost equal, by comparing it, by taking the largest of it. A
difference between a compiled program and eager is one of rounding where eager differs from itself
as much when each operand of an op that rounds is moved by up to one unit in its last place, which
is what such an op may do to its result anyway.

Nor does eager agree with itself at NaN: of a tensor that lies densely, whole vectors go through
other code than what is left behind them, and than all elements of one that does not, and some ops
have another gradient there (hardtanh, softshrink). So operands that hold any are also moved apart,
where each element is computed for itself; what that changes is open. Others stay dense: some
kernels take that for granted, as `native_layer_norm_backward` does, and give something else.

`InFloat64` is the other side of it: the result without rounding, about.
"""

from __future__ import annotations

from typing import Any

import torch

from ingot.graph.dispatch_mode import Mode
from ingot.sequences import map_leaves
from ingot.torch_private import tree_map_only

RUNS = 12
MARGIN = 8.0

# Ops whose results are exact, given their operands: they move, compare or choose.
EXACT = frozenset(
    """copy copy_ clone _to_copy cat stack index index_put index_put_ _index_put_impl_ gather
    scatter scatter_ where masked_fill masked_fill_ masked_scatter masked_scatter_ masked_select
    fill fill_ zero_ index_select index_copy index_copy_ index_fill index_fill_ take put put_ flip
    roll repeat constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d
    replication_pad2d replication_pad3d tril triu tril_ triu_ select_scatter slice_scatter
    diagonal_scatter as_strided_scatter embedding repeat_interleave diag_embed eq ne lt le gt ge
    isnan isinf isfinite signbit logical_not logical_and logical_or logical_xor any all abs neg sign
    relu relu_ clamp clamp_ clamp_min clamp_max maximum minimum max min amax amin aminmax argmax
    argmin floor ceil round trunc floor_ nan_to_num threshold hardtanh hardshrink copysign nonzero
    equal _local_scalar_dense sort argsort topk median kthvalue mode cummax cummin _cummax_helper
    _cummin_helper searchsorted bucketize isin max_pool2d_with_indices max_pool3d_with_indices
    adaptive_max_pool2d adaptive_max_pool3d max_unpool2d upsample_nearest1d upsample_nearest2d
    upsample_nearest3d _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
    pixel_shuffle pixel_unshuffle im2col unfold channel_shuffle native_channel_shuffle empty
    empty_like zeros zeros_like ones ones_like full full_like new_zeros new_empty""".split()
)


class Moved(Mode):
    """Within, floating-point operands of ops that round are moved by up to one ulp, at random. If
    `apart`, those with NaN or infinities are moved to where elements do not lie side by side."""

    def __init__(self, seed: int, apart: bool = False) -> None:
        super().__init__()
        self.apart = apart
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = op._schema.name.partition("::")[2]
        if op.is_view or name in EXACT or op._schema.is_mutable and name.rstrip("_") in EXACT:
            return op(*args, **kwargs)
        written = {id(t) for t in (*args[:1], *kwargs.values())} if op._schema.is_mutable else set()
        args = tree_map_only(torch.Tensor, lambda t: t if id(t) in written else self.moved(t), args)
        try:
            result = op(*args, **kwargs)
        except RuntimeError:  # some kernels want elements side by side
            if not self.apart or op._schema.is_mutable:
                raise
            result = op(*tree_map_only(torch.Tensor, torch.Tensor.contiguous, args), **kwargs)
        if op._schema.is_mutable and _is_rounded(args[0]) and not _overlaps_itself(args[0]):
            args[0].copy_(self.moved(args[0]))
        return result

    def moved(self, t: torch.Tensor) -> torch.Tensor:
        """A copy of `t`, each element its own or a neighbour."""
        if not _is_rounded(t):
            return t
        noise = (
            torch.rand(t.shape, generator=self.generator, dtype=torch.float64).to(t.device) * 2 - 1
        )
        made = t.clone()
        if self.apart and not bool(t.isfinite().all()):
            made = made.new_empty_strided(t.shape, [2 * stride for stride in made.stride()])
        return made.copy_(t.double() * (1 + noise * torch.finfo(t.dtype).eps))


def _is_rounded(t: Any) -> bool:
    return isinstance(t, torch.Tensor) and t.is_floating_point()


def _overlaps_itself(t: torch.Tensor) -> bool:
    """Whether elements share memory, as those of an expanded tensor do."""
    return any(stride == 0 and size > 1 for size, stride in zip(t.shape, t.stride()))


def within_rounding(
    actual: torch.Tensor, expected: torch.Tensor, runs: list[torch.Tensor]
) -> torch.Tensor:
    """Where `actual` is no further from `expected`, eager's, than some of eager's `runs` with moved
    operands."""
    if not expected.is_floating_point():
        return torch.stack([run != expected for run in runs]).any(0)
    finite = expected.isfinite() & actual.isfinite()
    spread = (
        torch.stack([(run.double() - expected.double()).abs() for run in runs])
        .nan_to_num(torch.inf)
        .amax(0)
    )
    return torch.where(
        finite, (actual.double() - expected.double()).abs() <= MARGIN * spread, spread == torch.inf
    )


class InFloat64(Mode):
    """Within, what ops are asked to make of narrower floating dtypes is made of float64."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return op(*map_leaves(_wide, args), **map_leaves(_wide, kwargs or {}))


_WIDE: dict[Any, Any] = {
    **dict.fromkeys((torch.float16, torch.bfloat16, torch.float32), torch.float64),
    **dict.fromkeys((torch.complex32, torch.complex64), torch.complex128),
}


def _wide(leaf: Any) -> Any:
    if isinstance(leaf, torch.dtype):
        return _WIDE.get(leaf, leaf)
    return leaf
