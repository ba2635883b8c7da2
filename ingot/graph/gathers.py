"""Parameters that FSDP has sharded: a graph gathers them of all ranks, and reduces their gradients
to a shard of each.

In: the flat shards of the parameters that FSDP gathers at a time. Out: the whole parameters. What
ranks exchange is what FSDP exchanges, in one collective for all: elements, their order, and the
type they have on the way. The backward may gather again what it reads of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ingot.sequences import present
from ingot.torch_private import collectives


class Piece(NamedTuple):
    """A parameter: the `sizes` of the whole one, the elements of each rank's `shard` with its
    padding, and the type that it is gathered in."""

    sizes: tuple[int, ...]
    shard: int
    dtype: torch.dtype


class Reduction(NamedTuple):
    """How gradients are reduced: in a type (None for their own), by a named op, and what they are
    divided by before and behind it. What comes out has the type `result`.

    `copies` are the process group of ranks that have the same shard, and the op of these."""

    dtype: torch.dtype | None
    op: str
    before: float | None
    behind: float | None
    result: torch.dtype | None
    copies: tuple[str, str] | None


class Gather:
    """The target of nodes that gather parameters: it takes their shards, and gives them whole.

    `ranks` is how many take part, and `groups` are the names of the process groups that gather and
    reduce. `again`: the backward gathers what it reads.
    """

    __module__, __name__ = __name__, "gather"

    def __init__(
        self,
        pieces: Sequence[Piece],
        ranks: int,
        groups: tuple[str, str],
        reduction: Reduction,
        again: bool,
    ) -> None:
        self.pieces, self.ranks, self.groups = tuple(pieces), ranks, groups
        self.reduction, self.again = reduction, again

    def __call__(self, *shards: Tensor) -> tuple[Tensor, ...]:
        if not torch.is_grad_enabled():
            return self.whole(shards)
        return _Gathered.apply(self, *shards)  # type: ignore[no-any-return]

    def whole(self, shards: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The parameters, without a history."""
        flat = []
        for shard, piece in zip(shards, self.pieces):
            flat.append(shard.to(piece.dtype))
        if self.ranks > 1:
            begun = collectives.all_gather_into_tensor(torch.cat(flat), self.ranks, self.groups[0])
            rows = collectives.wait_tensor(begun).view(self.ranks, -1)
            flat = list(rows.split([piece.shard for piece in self.pieces], 1))
        results = []
        for tensor, piece in zip(flat, self.pieces):
            first, *rest = piece.sizes
            results.append(tensor.reshape(-1, *rest)[:first])
        return tuple(results)

    def reduced(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradients of the shards: flat ones, None for parameters that have none."""
        dtype, op, before, behind, result, copies = self.reduction
        flat = torch.cat([self._rows(gradient) for gradient in present(gradients)], 1).flatten()
        if dtype is not None:
            flat = flat.to(dtype)
        if before not in (None, 1):
            flat = flat / before
        if self.ranks > 1:
            begun = collectives.reduce_scatter_tensor(flat, op, self.ranks, self.groups[1])
            flat = collectives.wait_tensor(begun)
        if copies is not None:
            group, op = copies
            flat = collectives.wait_tensor(collectives.all_reduce(flat, op, group))
        if behind not in (None, 1):
            flat = flat / behind
        if result is not None:
            flat = flat.to(result)
        results: list[Tensor | None] = []
        start = 0
        for gradient, piece in zip(gradients, self.pieces):
            results.append(None)
            if gradient is not None:
                results[-1] = flat.narrow(0, start, piece.shard)
                start += piece.shard
        return results

    def _rows(self, gradient: Tensor) -> Tensor:
        """A gradient with a row for each rank: its shard, padded."""
        missing = -gradient.shape[0] % self.ranks
        if missing:
            gradient = torch.constant_pad_nd(gradient, (0, 0) * (gradient.dim() - 1) + (0, missing))
        return gradient.reshape(self.ranks, -1)


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gather: Gather, *shards: Tensor) -> Any:  # type: ignore[override]
        ctx.gather = gather
        ctx.set_materialize_grads(False)
        whole = gather.whole(shards)
        frozen = []
        for shard, parameter in zip(shards, whole):
            if not shard.requires_grad:
                frozen.append(parameter)
        ctx.mark_non_differentiable(*frozen)
        return whole

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:  # type: ignore[override]
        return None, *ctx.gather.reduced(gradients)
