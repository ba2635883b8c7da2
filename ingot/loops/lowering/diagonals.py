"""Writing into diagonals."""

from __future__ import annotations

from ingot.loops.expr import Expr
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.index_maps import compare
from ingot.loops.lowering.indexing import overlaid
from ingot.loops.lowering.rules import lowers
from ingot.loops.lowering.values import Index, Spec, TensorValue
from ingot.torch_private import aten


@lowers(aten.diagonal_scatter.default)
def diagonal_scatter(
    lw: Lowering,
    out: Spec,
    x: TensorValue,
    source: TensorValue,
    offset: int = 0,
    dim1: int = 0,
    dim2: int = 1,
) -> TensorValue:
    rank = len(x.sizes)
    dim1, dim2 = dim1 % rank, dim2 % rank
    first = dim1 if offset >= 0 else dim2  # whose coordinate counts along the diagonal

    def inside(i: Index) -> int:
        return compare("eq", i[dim1] + offset, i[dim2])

    def at(i: Index) -> tuple[Expr, ...]:
        return (*(i[k] for k in range(rank) if k not in (dim1, dim2)), i[first])

    return overlaid(lw, out, x, source, inside, at)
