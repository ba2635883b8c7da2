"""Indexing with tensors, and the functional forms of writing into a part of a tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from ingot.errors import unsupported
from ingot.graph import geometry
from ingot.graph.geometry import bad_dims
from ingot.graph.meta.basis import by_look, fresh
from ingot.graph.meta.families import contiguous_self, exact_self, new_factory
from ingot.graph.meta.trials import probe
from ingot.graph.meta.untried import unless_known
from ingot.graph.schemas import Cost, bind, indexes
from ingot.graph.symbolic_views import is_symbolic, view_symbolically
from ingot.loops import ops
from ingot.loops.expr import ONE, ZERO, Expr, as_expr, maximum, minimum
from ingot.loops.ir import Fault
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.index_maps import compare, slice_start, with_place
from ingot.loops.lowering.rules import NotLowered, Rule
from ingot.loops.lowering.values import (
    Index,
    LoopTensor,
    Spec,
    broadcast_index,
    contiguous,
    numel,
    rounded,
)
from ingot.ops.op import op
from ingot.sequences import Args, Kwargs
from ingot.torch_private import OpOverload, aten

apply = ops.apply

T = TypeVar("T")

_OUT_OF_RANGE = Fault(IndexError, "index out of range in self")
INDEX_TYPES = (torch.int64, torch.int32)
FEW = 8
"""Places are few where there are this many times as many elements."""


def strict(position: int, extent: Expr, fault: Fault) -> Any:
    """`position` as an index that may not be negative."""
    zero = ops.constant(0, torch.int64)
    position = ops.to(position, torch.int64)
    outside = apply("where", apply("lt", position, zero), ops.index(extent), position)
    return ops.indirect(outside, extent, fault)


def of_vectors(rule: Callable[..., LoopTensor]) -> Callable[..., LoopTensor]:
    """A rule in which tensors without dimensions are vectors of one element."""

    def vector(lw: Lowering, value: Any) -> Any:
        if not isinstance(value, LoopTensor) or value.sizes:
            return value
        return lw.mapped(value, contiguous((ONE,), value.dtype), lambda index: ())

    def of_scalars(
        lw: Lowering, out: Spec, x: LoopTensor, *args: Any, **keywords: Any
    ) -> LoopTensor:
        arguments = []
        for value in args:
            arguments.append(vector(lw, value))
        if out.sizes:
            return rule(lw, out, vector(lw, x), *arguments, **keywords)
        result = rule(
            lw, out._replace(sizes=(ONE,), strides=(ONE,)), vector(lw, x), *arguments, **keywords
        )
        return lw.mapped(result, out, lambda index: (ZERO,))

    return of_scalars


def looked_up(
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    positions: Sequence[LoopTensor],
    compute: Callable[[Index], int],
) -> LoopTensor:
    """A lazy value that reads `x` at places that other tensors name. `x` is computed there where
    they are few, else in memory before."""
    if any(p.dtype not in INDEX_TYPES for p in positions):
        raise NotLowered("an index that is not an integer")
    count, elements = numel(out.sizes).constant, numel(x.sizes).constant
    if x.root.cost and (count is None or elements is None or count * FEW > elements):
        lw.realize_root(x)
    return lw.computed(out, compute, [x, *positions], cost=2)


def embedding(
    lw: Lowering, out: Spec, weight: LoopTensor, indices: LoopTensor, *_: object
) -> LoopTensor:
    rank = len(indices.sizes)
    if ZERO in weight.sizes:
        raise NotLowered("a lookup in nothing")

    def compute(index: Index) -> int:
        row = strict(indices.load(index[:rank]), weight.sizes[0], _OUT_OF_RANGE)
        return weight.load((row, index[-1]))

    return looked_up(lw, out, weight, [indices], compute)


@of_vectors
def gather(
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    dim: int,
    indices: LoopTensor,
    *,
    sparse_grad: bool = False,
) -> LoopTensor:
    dim %= len(x.sizes)
    if x.sizes[dim] is ZERO:
        raise NotLowered("gather from nothing")
    fault = Fault(RuntimeError, f"index out of bounds for dimension {dim} with size {x.sizes[dim]}")

    def compute(index: Index) -> int:
        at = strict(indices.load(index), x.sizes[dim], fault)
        return x.load(with_place(index, dim, at))

    return looked_up(lw, out, x, [indices], compute)


@of_vectors
def index_select(
    lw: Lowering, out: Spec, x: LoopTensor, dim: int, indices: LoopTensor
) -> LoopTensor:
    if ZERO in x.sizes:
        raise NotLowered("index_select of nothing")
    dim %= len(x.sizes)
    # eager has a kernel of its own for dimension 1
    fault = _OUT_OF_RANGE
    if dim == 1:
        fault = Fault(RuntimeError, "INDICES element is out of DATA bounds")

    def compute(index: Index) -> int:
        at = strict(indices.load((index[dim],)), x.sizes[dim], fault)
        return x.load(with_place(index, dim, at))

    return looked_up(lw, out, x, [indices], compute)


def index(
    lw: Lowering, out: Spec, x: LoopTensor, indices: Sequence[LoopTensor | None]
) -> LoopTensor:
    """Advanced indexing: the index tensors' broadcast dimensions replace those that are indexed.

    These stand where the first indexed dimension was if the indexed ones are adjacent, else in
    front.
    """
    used = by_dimension(indices)
    rank = max((len(v.sizes) for v in used.values()), default=0)
    places = places_named(x, used, start_of(used), rank)
    return looked_up(lw, out, x, list(used.values()), lambda place: x.load(places(place)))


def by_dimension(indices: Sequence[T | None]) -> dict[int, T]:
    """The index tensors by the dimension that they index."""
    result = {}
    for d, index in enumerate(indices):
        if index is not None:
            result[d] = index
    return result


def start_of(used: Mapping[int, object]) -> int:
    """Where the dimensions of the index tensors stand in the result: in place of the indexed ones
    if these are adjacent, else in front."""
    dims = sorted(used)
    if dims == list(range(dims[0], dims[-1] + 1)):
        return dims[0]
    return 0


def places_named(
    x: LoopTensor, used: Mapping[int, LoopTensor], start: int, rank: int
) -> Callable[[Index], Index]:
    """The map from a place in the result of indexing to the place in `x`.

    `used` are the index tensors by dimension of `x`, whose broadcast `rank` dimensions stand from
    `start` on.
    """
    faults = {  # eager counts the dimensions that are indexed
        d: Fault(IndexError, f"index out of bounds for dimension {k} with size {x.sizes[d]}")
        for k, d in enumerate(sorted(used))
    }

    def places(index: Index) -> Index:
        chosen, others = index[start : start + rank], iter(index[:start] + index[start + rank :])
        at = []
        for d, size in enumerate(x.sizes):
            if d in used:
                position = used[d].load(broadcast_index(chosen, used[d].sizes))
                at.append(ops.indirect(position, size, faults[d]))
            else:
                at.append(next(others))
        return tuple(at)

    return places


# -- writing into a part ---------------------------------------------------------------------------


def overlaid(
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    source: LoopTensor,
    inside: Callable[[Index], int],
    at: Callable[[Index], Index],
) -> LoopTensor:
    """`source[at(index)]` where `inside(index)`, else `x[index]`."""
    lw.share(source)

    def compute(place: Index) -> int:
        condition = inside(place)
        with ops.masked(condition):
            new = rounded(source.load(broadcast_index(at(place), source.sizes)), out.dtype)
        return apply("where", condition, new, x.load(place))

    return lw.computed(out, compute, [x, source], cost=3)


def select_scatter(
    lw: Lowering, out: Spec, x: LoopTensor, source: LoopTensor, dim: int, position: int | Expr
) -> LoopTensor:
    dim %= len(x.sizes)
    index = as_expr(position)
    if (index.constant or 0) < 0:
        index = index + x.sizes[dim]
    return overlaid(
        lw,
        out,
        x,
        source,
        lambda i: compare("eq", i[dim], index),
        lambda i: (*i[:dim], *i[dim + 1 :]),
    )


def slice_scatter(
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    source: LoopTensor,
    dim: int = 0,
    start: int | Expr | None = None,
    end: int | Expr | None = None,
    step: int = 1,
) -> LoopTensor:
    dim %= len(x.sizes)
    first = slice_start(start, x.sizes[dim])
    last = first + source.sizes[dim] * step

    def inside(i: Index) -> int:
        condition = apply("logical_and", compare("ge", i[dim], first), compare("lt", i[dim], last))
        if step != 1:
            condition = apply("logical_and", condition, compare("eq", (i[dim] - first) % step, 0))
        return condition

    return overlaid(
        lw, out, x, source, inside, lambda i: with_place(i, dim, (i[dim] - first) // step)
    )


def _triangle(relation: str) -> Rule:
    """What is on one side of a diagonal: "le" below it, or "ge" above."""

    def rule(lw: Lowering, out: Spec, x: LoopTensor, diagonal: int | Expr = 0) -> LoopTensor:
        rows, columns = x.sizes[-2:]
        within = maximum(minimum(diagonal, columns), -rows)  # those beyond the corners are alike

        def compute(i: Index) -> int:
            value, kept = x.load(i), compare(relation, i[-1], i[-2] + within)
            return apply("where", kept, value, ops.constant(0, ops.dtype_of(value)))

        return lw.computed(out, compute, [x], cost=2)

    return rule


def diagonal_scatter(
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    source: LoopTensor,
    offset: int = 0,
    dim1: int = 0,
    dim2: int = 1,
) -> LoopTensor:
    rank = len(x.sizes)
    dim1, dim2 = dim1 % rank, dim2 % rank
    first = dim1 if offset >= 0 else dim2  # whose coordinate counts along the diagonal

    def inside(i: Index) -> int:
        return compare("eq", i[dim1] + offset, i[dim2])

    def at(i: Index) -> tuple[Expr, ...]:
        return (*(i[k] for k in range(rank) if k not in (dim1, dim2)), i[first])

    return overlaid(lw, out, x, source, inside, at)


# -- as other ops ----------------------------------------------------------------------------------


def embedding_dense_backward(
    grad: Tensor, indices: Tensor, rows: Any, padding: int, by_frequency: bool
) -> Tensor:
    if by_frequency or geometry.is_empty(grad):
        return NotImplemented
    places, values = indices.reshape(-1), grad.reshape(-1, grad.shape[-1])
    if padding >= 0:
        values = torch.where(torch.eq(places, padding).unsqueeze(1), 0, values)
    return torch.index_put(
        grad.new_zeros((rows, grad.shape[-1])), [places], values, accumulate=True
    )


def select_backward(grad: Tensor, sizes: Any, dim: int, index: Any) -> Tensor:
    return torch.select_scatter(grad.new_zeros(sizes), grad, dim, index)


def slice_backward(grad: Tensor, sizes: Any, dim: int, start: Any, end: Any, step: Any) -> Tensor:
    return torch.slice_scatter(grad.new_zeros(sizes), grad, dim, start, end, step)


def diagonal_backward(grad: Tensor, sizes: Any, offset: int, dim1: int, dim2: int) -> Tensor:
    return torch.diagonal_scatter(grad.new_zeros(sizes), grad, offset, dim1, dim2)


def take(x: Tensor, index: Tensor) -> Tensor:
    if index.dtype is not torch.int64 or geometry.is_empty(x):
        return NotImplemented
    return x.reshape(-1)[index]


def isin(
    x: Tensor, members: Tensor, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    """By comparison with each of few, or where few comparisons are made; eager, too, sorts where
    they are many."""
    count, pairs = members.numel(), members.numel() * x.numel()
    if not isinstance(count, int) or (
        count > 32 and not (isinstance(pairs, int) and pairs <= 1 << 15)
    ):
        return NotImplemented
    if count == 0:
        return torch.full(x.shape, invert, dtype=torch.bool, device=x.device)
    is_member = torch.any(x.unsqueeze(-1) == members.reshape(-1), -1)
    if invert:
        return torch.logical_not(is_member)
    return is_member


def isin_number(
    x: Tensor, member: Any, *, assume_unique: bool = False, invert: bool = False
) -> Tensor:
    if invert:
        return torch.ne(x, member)
    return torch.eq(x, member)


# -- what they look like, and what eager refuses ---------------------------------------------------


@by_look
def embedding_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    weight, indices = args[0], args[1]
    return fresh((*indices.shape, *weight.shape[1:]), weight.dtype)


@by_look
def gather_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    return fresh(args[2].shape, args[0].dtype)


@by_look
def index_select_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    t, dim, index_meta = args
    sizes = list(t.shape)
    if sizes:
        sizes[dim % t.dim()] = index_meta.numel()
    return fresh(sizes, t.dtype)


def index_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    """Advanced indexing by integer tensors: the indexed dimensions become the indices' broadcast
    shape."""
    t, indices = args[0], list(args[1])
    if any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
        why = "indexing with a mask: the size of the result depends on the data"
        raise unsupported("mask-size", why)
    indices += [None] * (t.dim() - len(indices))
    used = by_dimension(indices)
    shape = geometry.broadcast(*[index.shape for index in used.values()])
    rest = []
    for d in range(t.dim()):
        if d not in used:
            rest.append(t.shape[d])
    before = start_of(used)
    sizes = (*rest[:before], *shape, *rest[before:])
    plain = (not rest or t.is_contiguous()) and all(
        index.dim() < 2 or index.is_contiguous() for index in used.values()
    )
    if plain:
        return fresh(sizes, t.dtype)
    return probe(op, args, kwargs)


@unless_known
def embedding_backward_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    return fresh((args[2], args[0].shape[-1]), args[0].dtype)


def embedding_bag_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Tensor, ...]:
    """With the bag of each index, how many there are in each bag, and, of the largest, which those
    are."""
    bound = bind(op, args, kwargs)
    weight, indices, offsets = bound["weight"], bound["indices"], bound["offsets"]
    dtype = torch.promote_types(indices.dtype, offsets.dtype)
    bags = offsets.shape[0] - bool(bound["include_last_offset"])
    largest = (bags, weight.shape[1]) if bound["mode"] == 2 else (0,)
    others = []
    for sizes in (indices.shape, offsets.shape, largest):
        others.append(fresh(sizes, dtype))
    return fresh((bags, weight.shape[1]), weight.dtype), *others


def _rank(x: Tensor) -> int:
    return max(x.dim(), 1)


def gather_refusal(x: Tensor, dim: int, index: Tensor, **_: Any) -> str:
    if bad_dims(x, [dim]) or geometry.is_empty(index):
        return bad_dims(x, [dim])
    if _rank(index) != _rank(x):
        return "the index has another rank"
    large = any(i > n for d, (i, n) in enumerate(zip(index.shape, x.shape)) if d != dim % x.dim())
    if large:
        return "the index is larger than the tensor"
    return ""


_INDICES_AND_MASKS = (torch.int64, torch.int32, torch.uint8, torch.bool)


def index_refusal(x: Tensor, indices: Sequence[Tensor | None]) -> str:
    if any(i is not None and i.dtype not in _INDICES_AND_MASKS for i in indices):
        return "an index that is neither an integer (of 32 or 64 bits) nor a mask"
    missing = any(
        i is not None and isinstance(size, int) and size == 0 and not geometry.is_empty(i)
        for i, size in zip(indices, x.shape)
    )
    if missing:
        return "an index into a dimension of size 0"
    return ""


def index_select_refusal(x: Tensor, dim: int, index: Tensor) -> str:
    if index.dim() > 1:
        return "an index that is no vector"
    return bad_dims(x, [dim])


def embedding_refusal(weight: Tensor, **_: Any) -> str:
    if weight.dim() == 2:
        return ""
    return "a weight that is no matrix"


def _scatter_refusal(view: OpOverload) -> Callable[..., str]:
    """A scatter into a view: the source has the view's sizes."""

    def test(x: Tensor, src: Tensor, **where: Any) -> str:
        if x.device.type != "meta":
            return ""
        at = tuple(where.values())
        varies = is_symbolic(x) or geometry.has_symbols(at)
        if varies:
            window = view_symbolically(view, x, at, {})
        else:
            window = view(x, *at)
        if geometry.expect_same_sizes(window.shape, src.shape):
            return ""
        return "a source of other sizes"

    return test


OPS = (
    op(
        aten.embedding.default,
        meta=embedding_meta,
        refuses=embedding_refusal,
        may_raise=indexes,
        takes_no_elements=True,
        lower=embedding,
        reads_part=True,
    ),
    op(
        aten.embedding_dense_backward.default,
        decompose=embedding_dense_backward,
        meta=embedding_backward_meta,
    ),
    op(
        aten._embedding_bag.default,
        aten._embedding_bag_forward_only.default,
        gpu_meta=embedding_bag_meta,
        may_raise=indexes,
    ),
    op(
        aten.gather.default,
        meta=gather_meta,
        refuses=gather_refusal,
        may_raise=indexes,
        takes_no_elements=True,
        cost=Cost.LOOKUP,
        lower=gather,
        reads_part=True,
    ),
    op(
        aten.index_select.default,
        meta=index_select_meta,
        refuses=index_select_refusal,
        may_raise=indexes,
        takes_no_elements=True,
        cost=Cost.LOOKUP,
        lower=index_select,
        reads_part=True,
    ),
    op(
        aten.index.Tensor,
        meta=index_meta,
        refuses=index_refusal,
        may_raise=indexes,
        takes_no_elements=True,
        cost=Cost.LOOKUP,
        lower=index,
        reads_part=True,
    ),
    op(
        aten._unsafe_index.Tensor,
        meta=index_meta,
        may_raise=indexes,
        takes_no_elements=True,
        lower=index,
        reads_part=True,
    ),
    op(aten.take.default, decompose=take, may_raise=indexes),
    op(aten.isin.Tensor_Tensor, decompose=isin),
    op(aten.isin.Tensor_Scalar, decompose=isin_number),
    op(
        aten.select_scatter.default,
        meta=exact_self,
        refuses=_scatter_refusal(aten.select.int),
        cost=Cost.LIGHT,
        lower=select_scatter,
    ),
    op(
        aten.slice_scatter.default,
        meta=exact_self,
        refuses=_scatter_refusal(aten.slice.Tensor),
        cost=Cost.LIGHT,
        lower=slice_scatter,
    ),
    op(
        aten.diagonal_scatter.default,
        meta=exact_self,
        refuses=_scatter_refusal(aten.diagonal.default),
        lower=diagonal_scatter,
    ),
    op(aten.select_backward.default, decompose=select_backward, meta=new_factory),
    op(aten.slice_backward.default, decompose=slice_backward, meta=new_factory),
    op(aten.diagonal_backward.default, decompose=diagonal_backward, meta=new_factory),
    op(aten.tril.default, meta=contiguous_self, lower=_triangle("le")),
    op(aten.triu.default, meta=contiguous_self, lower=_triangle("ge")),
)
