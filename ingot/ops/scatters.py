"""Writing at places that tensors name: index_put, the scatters, index_add and their kin.

A copy of the tensor is made, and a loop nest over the indices writes into it, one point after the
other. So what is written is computed before, by a nest that knows no such order, unless it is
hardly more than a load.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ingot.graph.checks import number_overflows, source_of_dtype
from ingot.graph.geometry import bad_dims
from ingot.graph.meta.families import like_self, plain_self
from ingot.graph.schemas import indexes
from ingot.loops import ops
from ingot.loops.expr import ONE, ZERO, Expr, known_less_equal, product
from ingot.loops.ir import Fault, Pointwise
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.index_maps import unflattened, with_place
from ingot.loops.lowering.pointwise import pointwise
from ingot.loops.lowering.rules import LibraryCall, NotLowered
from ingot.loops.lowering.values import (
    Index,
    LoopTensor,
    Spec,
    broadcast_index,
    compute_dtype,
    dense_strides,
    loop_symbols,
    loops_over,
    rounded,
)
from ingot.loops.spaces import address_of, contiguous_strides
from ingot.ops.indexing import (
    INDEX_TYPES,
    by_dimension,
    index_refusal,
    of_vectors,
    places_named,
    start_of,
    strict,
)
from ingot.ops.op import op
from ingot.torch_private import aten

apply = ops.apply

Places = Callable[[Index], Index]  # from the index into what is written to where it goes
Values = Callable[[Index], int]


def copied(lw: Lowering, out: Spec, x: LoopTensor, apart: bool = False) -> LoopTensor:
    """A fresh copy of `x`, laid out as `out` is, to `write` to; NotLowered where that is not for
    loops to do. Points that stay `apart` never meet at one element."""
    if not (lw.target.scatters or apart):
        raise NotLowered("a scatter for the library")
    strides = dense_strides(out.sizes, out.strides)
    return lw.realize(LoopTensor(out.sizes, strides, out.dtype, x.load, cost=1, origin=lw.origin))


def write(
    lw: Lowering,
    target: LoopTensor,
    sizes: Sequence[Expr],
    places: Places,
    values: Values,
    mode: str = "store",
) -> None:
    """For each index into `sizes`, combine the value with the element of `target` at its place."""
    if ZERO in sizes:
        return
    index = loops_over(sizes)
    assert target.home is not None
    with ops.recording() as recorder:
        # first: so would be the errors of what makes the values
        value = ops.to(values(index), target.dtype)
        at = places(index)
        body = recorder.body(value)
    address = target.home.address(at)
    name, origin = lw.node_name(), lw.origin
    lw.graph.nodes.append(
        Pointwise(name, origin, loop_symbols(index), body, target.home.buffer, address, mode)
    )


def _written(
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    sizes: Sequence[Expr],
    places: Places,
    values: Values,
    mode: str = "store",
    apart: bool = False,
) -> LoopTensor:
    """A copy of `x` with values written to their places."""
    result = copied(lw, out, x, apart)
    write(lw, result, sizes, places, values, mode)
    return result


def _mode(accumulate: bool) -> str:
    if accumulate:
        return "add"
    return "store"


_OUT_OF_RANGE = Fault(IndexError, "index out of range in self")


def _out_of_bounds(x: LoopTensor, dim: int) -> str:
    return f"index out of bounds for dimension {dim} with size {x.sizes[dim]}"


def _check_indices(*indices: LoopTensor) -> None:
    if any(i.dtype not in INDEX_TYPES for i in indices):
        raise NotLowered("an index that is not an integer")


# -- at several index tensors ----------------------------------------------------------------------


def index_put(
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    indices: Sequence[LoopTensor | None],
    source: LoopTensor,
    accumulate: bool = False,
) -> LoopTensor:
    used = by_dimension(indices)
    if len(used) == 1 and not accumulate and source.dtype is out.dtype:
        ((first, mask),) = used.items()
        if (
            mask.dtype is torch.bool
            and mask.sizes
            and mask.sizes == x.sizes[first : first + len(mask.sizes)]
        ):
            return _put_where(lw, out, x, first, mask, source)
    _check_indices(*used.values())
    if not used or not x.sizes or any(x.sizes[d] is ZERO for d in used):
        raise NotLowered("index_put at no indices, or into nothing")
    shape = _broadcast([v.sizes for v in used.values()])
    start, rank = start_of(used), len(shape)
    rest = []
    for d, size in enumerate(x.sizes):
        if d not in used:
            rest.append(size)
    sizes = (*rest[:start], *shape, *rest[start:])
    _check(
        _broadcasts(source.sizes, sizes) and all(_broadcasts(v.sizes, shape) for v in used.values())
    )
    places = places_named(x, used, start, rank)

    def value(index: Index) -> int:
        return source.load(broadcast_index(index, source.sizes))

    apart = not accumulate and _is_one_place(*used.values())
    if lw.target.scatters or not apart:
        lw.share(source)
    return _written(lw, out, x, sizes, places, value, _mode(accumulate), apart)


def _is_one_place(*indices: LoopTensor) -> bool:
    """Whether indices name one place: what is written there, as a token's keys into a cache, meets
    nowhere."""
    return all(size is ONE for i in indices for size in i.sizes)


def _put_where(
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    first: int,
    mask: LoopTensor,
    source: LoopTensor,
) -> LoopTensor:
    """What is alike for all places of a mask over the dimensions of `x` from `first` on."""
    last = first + len(mask.sizes)
    _check(_broadcasts(source.sizes, (*x.sizes[:first], ONE, *x.sizes[last:])))

    def compute(index: Index) -> int:
        place = (*index[:first], ZERO, *index[last:])
        new = source.load(broadcast_index(place, source.sizes))
        return apply("where", mask.load(index[first:last]), new, x.load(index))

    return lw.computed(out, compute, [x, mask, source], cost=2)


def _check(fits: bool) -> None:
    """Eager refuses what does not fit."""
    if not fits:
        raise NotLowered("sizes that do not fit")


def _broadcasts(sizes: Sequence[Expr], to: Sequence[Expr]) -> bool:
    return len(sizes) <= len(to) and all(
        a is ONE or a is b for a, b in zip(reversed(sizes), reversed(to))
    )


def _broadcast(shapes: Sequence[Sequence[Expr]]) -> tuple[Expr, ...]:
    rank = max(map(len, shapes))
    result = [ONE] * rank
    for shape in shapes:
        for d, size in enumerate(shape, rank - len(shape)):
            if size is not ONE:
                result[d] = size
    return tuple(result)


def put(
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    indices: LoopTensor,
    source: LoopTensor,
    accumulate: bool = False,
) -> LoopTensor:
    if indices.dtype is not torch.int64 or ZERO in x.sizes:
        raise NotLowered("an index that is not an integer, or into nothing")
    _check(product(indices.sizes) is product(source.sizes))
    whole, strides = product(x.sizes), contiguous_strides(x.sizes)
    fault = Fault(
        IndexError, f"out of range: tried to access an index on a tensor of {whole} elements."
    )

    def places(index: Index) -> Index:
        flat = ops.indirect(indices.load(index), whole, fault)
        quotients = [flat // stride for stride in strides]
        return tuple(n % size if d else n for d, (n, size) in enumerate(zip(quotients, x.sizes)))

    def value(index: Index) -> int:
        flat = address_of(index, contiguous_strides(indices.sizes))
        return source.load(unflattened(flat, source.sizes))

    lw.share(source)
    return _written(lw, out, x, indices.sizes, places, value, _mode(accumulate))


# -- along one dimension, at the places that a vector names ----------------------------------------


def _rows(
    lw: Lowering,
    x: LoopTensor,
    dim: int,
    indices: LoopTensor,
    fault: Fault,
    wraps: bool = False,
) -> Places:
    """Where element `index` of a source goes whose slices along `dim` belong at `indices`."""
    _check_indices(indices)
    if len(indices.sizes) != 1 or x.sizes[dim] is ZERO:
        raise NotLowered("rows of nothing")

    def places(index: Index) -> Index:
        position = indices.load((index[dim],))
        find = ops.indirect if wraps else strict
        return with_place(index, dim, find(position, x.sizes[dim], fault))

    return places


def _check_rows(x: LoopTensor, dim: int, indices: LoopTensor, source: LoopTensor) -> None:
    _check(len(indices.sizes) == 1 and source.sizes == with_place(x.sizes, dim, indices.sizes[0]))


@of_vectors
def index_add(
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    dim: int,
    indices: LoopTensor,
    source: LoopTensor,
    *,
    alpha: Any = 1,
) -> LoopTensor:
    dim %= len(x.sizes)
    _check_rows(x, dim, indices, source)
    if isinstance(alpha, Expr) or (out.dtype is torch.bool and alpha != 1):
        raise NotLowered("index_add by a symbolic factor")
    if out.dtype in ops.HALVES and (len(x.sizes) > 1 or alpha != 1):
        raise NotLowered("accumulation in half precision, which eager rounds now and then")
    outermost_or_innermost = len(x.sizes) > 1 and dim in (0, len(x.sizes) - 1)
    scatters = outermost_or_innermost and alpha == 1 and indices.dtype is torch.int64  # in eager
    fault = _OUT_OF_RANGE
    if scatters:
        fault = Fault(RuntimeError, _out_of_bounds(x, dim))
    places = _rows(lw, x, dim, indices, fault)

    def value(index: Index) -> int:
        loaded = source.load(index)
        if alpha == 1:
            return loaded
        return apply("mul", loaded, ops.constant(alpha, ops.dtype_of(loaded)))

    lw.share(source)
    return _written(lw, out, x, source.sizes, places, value, "add")


@of_vectors
def index_copy(
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    dim: int,
    indices: LoopTensor,
    source: LoopTensor,
) -> LoopTensor:
    dim %= len(x.sizes)
    _check_rows(x, dim, indices, source)
    fault = Fault(IndexError, f"index_copy_(): {_out_of_bounds(x, dim)}")
    places = _rows(lw, x, dim, indices, fault)
    apart = _is_one_place(indices)
    if lw.target.scatters or not apart:
        lw.share(source)
    return _written(lw, out, x, source.sizes, places, source.load, apart=apart)


@of_vectors
def index_fill(
    lw: Lowering, out: Spec, x: LoopTensor, dim: int, indices: LoopTensor, number: Any
) -> LoopTensor:
    dim %= len(x.sizes)
    places = _rows(lw, x, dim, indices, Fault(IndexError, _out_of_bounds(x, dim)), wraps=True)
    sizes = with_place(x.sizes, dim, indices.sizes[0])
    return _written(lw, out, x, sizes, places, _number(out.dtype, number))


def _number(dtype: torch.dtype, number: Any) -> Values:
    """A number, or a tensor without dimensions, as it is stored in a tensor of `dtype`."""
    if isinstance(number, Expr):
        return lambda index: ops.index(number, dtype)
    if isinstance(number, LoopTensor):
        return lambda index: rounded(number.load((ZERO,) * len(number.sizes)), dtype)
    return lambda index: rounded(ops.constant(number, compute_dtype(dtype)), dtype)


@of_vectors
def index_reduce(
    lw: Lowering, out: Spec, x: LoopTensor, dim: int, indices: LoopTensor, source: LoopTensor,
    reduce: str, *,
    include_self: bool = True,
) -> LoopTensor:  # fmt: skip
    dim %= len(x.sizes)
    _check_rows(x, dim, indices, source)
    if out.dtype in ops.HALVES:
        raise NotLowered("rounding at every step")
    places = _rows(lw, x, dim, indices, _OUT_OF_RANGE)
    # by index_fill in eager
    filled = _rows(lw, x, dim, indices, Fault(IndexError, _out_of_bounds(x, dim)), wraps=True)
    return _reduced(
        lw, out, x, source.sizes, places, lw.share(source).load, reduce, include_self, filled
    )


# -- along one dimension, at the places that a tensor of the same rank names -----------------------


def _elements(x: LoopTensor, dim: int, indices: LoopTensor) -> Places:
    _check_indices(indices)
    _check(len(indices.sizes) == len(x.sizes) and x.sizes[dim] is not ZERO)
    _check(
        all(
            d == dim or known_less_equal(n, m)
            for d, (n, m) in enumerate(zip(indices.sizes, x.sizes))
        )
    )
    fault = Fault(RuntimeError, _out_of_bounds(x, dim))
    return lambda index: with_place(index, dim, strict(indices.load(index), x.sizes[dim], fault))


def _check_source(indices: LoopTensor, source: LoopTensor) -> None:
    _check(
        len(indices.sizes) == len(source.sizes)
        and all(map(known_less_equal, indices.sizes, source.sizes))
    )


_REDUCTIONS = {"add": "add", "multiply": "mul"}


@of_vectors
def scatter(
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    dim: int,
    indices: LoopTensor,
    source: Any,
    *,
    reduce: str | None = None,
) -> LoopTensor:
    dim %= len(x.sizes)
    places = _elements(x, dim, indices)
    mode = "store"
    if reduce is not None:
        mode = _REDUCTIONS[reduce]
    value = _number(out.dtype, source)
    if isinstance(source, LoopTensor):
        _check_source(indices, source)
        value = lw.share(source).load
    if mode == "store":
        return _written(lw, out, x, indices.sizes, places, value)
    result = _written(lw, _wide(out), x, indices.sizes, places, value, mode)
    return lw.rounded_to(out, result)


def _wide(out: Spec) -> Spec:
    """Scatters accumulate bfloat16 and float16 in float32, and round the sum."""
    return out._replace(dtype=compute_dtype(out.dtype))


@of_vectors
def scatter_add(
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    dim: int,
    indices: LoopTensor,
    source: LoopTensor,
) -> LoopTensor:
    return scatter(lw, out, x, dim, indices, source, reduce="add")


@of_vectors
def scatter_reduce(
    lw: Lowering, out: Spec, x: LoopTensor, dim: int, indices: LoopTensor, source: LoopTensor,
    reduce: str, *,
    include_self: bool = True,
) -> LoopTensor:  # fmt: skip
    dim %= len(x.sizes)
    places = _elements(x, dim, indices)
    _check_source(indices, source)
    return _reduced(lw, out, x, indices.sizes, places, lw.share(source).load, reduce, include_self)


# -- reductions ------------------------------------------------------------------------------------

_MODES = {"sum": "add", "mean": "add", "prod": "mul", "amax": "max", "amin": "min"}


def _reduced(
    lw: Lowering, out: Spec, x: LoopTensor, sizes: Sequence[Expr], places: Places, values: Values,
    reduce: str,
    include_self: bool, filled: Places | None = None,
) -> LoopTensor:  # fmt: skip
    """Elements of `x` combined with the values that come to them; without `include_self`, replaced
    by those, which are `filled` with what changes nothing before."""
    wide = _wide(out)

    def accumulated(start: LoopTensor, neutral: Any, value: Values) -> LoopTensor:
        result = copied(lw, wide, start)
        if not include_self:
            write(lw, result, sizes, filled or places, _number(wide.dtype, neutral))
        write(lw, result, sizes, places, value, _MODES[reduce])
        return lw.rounded_to(out, result)

    result = accumulated(x, _neutral(reduce, wide.dtype), values)
    if reduce != "mean":
        return result
    count = accumulated(_filled(wide, 1), 0, _number(wide.dtype, 1))

    def divided(total: int, n: int) -> int:
        one = ops.constant(1, wide.dtype)
        n = apply("where", apply("lt", n, one), one, n)
        return apply("floordiv" if out.dtype in ops.INTS else "div", total, n)

    return pointwise(lw, out, divided, [result, count], [wide.dtype, wide.dtype])


def _filled(out: Spec, number: Any) -> LoopTensor:
    return LoopTensor(out.sizes, out.strides, out.dtype, _number(out.dtype, number))


def _neutral(reduce: str, dtype: torch.dtype) -> Any:
    if reduce in ("sum", "mean", "prod") or dtype is torch.bool:
        return int(reduce in ("prod", "amin"))
    info: Any = None
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
    if reduce == "amax":
        if info:
            return info.min
        return float("-inf")
    if info:
        return info.max
    return float("inf")


# -- what eager refuses ----------------------------------------------------------------------------


def _long_index(index: Tensor) -> str:
    """What index_fill and index_copy take, other than their kin."""
    if index.dtype is torch.int64:
        return ""
    return "an index that is no int64"


def index_fill_refusal(x: Tensor, dim: int, index: Tensor, value: Any) -> str:
    return bad_dims(x, [dim]) or _long_index(index) or number_overflows(x, value)


def index_copy_refusal(x: Tensor, dim: int, index: Tensor, source: Tensor) -> str:
    return bad_dims(x, [dim]) or _long_index(index) or source_of_dtype("source")(x, source=source)


def scatter_refusal(x: Tensor, **arguments: Any) -> str:
    """Of scatter.src and scatter.value."""
    return source_of_dtype("src")(x, **arguments) or number_overflows(x, arguments.get("value"))


def index_put_refusal(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, **_: Any) -> str:
    return index_refusal(x, indices) or source_of_dtype("values")(x, values=values)


_scatter = partial(op, may_raise=indexes)

OPS = (
    _scatter(
        aten.index_put.default,
        meta=like_self,
        refuses=index_put_refusal,
        takes_no_elements=True,
        lower=index_put,
        library=LibraryCall(in_place=aten.index_put_.default),
    ),
    _scatter(aten._unsafe_index_put.default, meta=like_self, lower=index_put),
    _scatter(aten._index_put_impl.default),
    _scatter(aten.put.default, meta=like_self, lower=put),
    _scatter(
        aten.index_add.default, meta=plain_self, refuses=source_of_dtype("source"), lower=index_add
    ),
    _scatter(
        aten.index_copy.default, meta=plain_self, refuses=index_copy_refusal, lower=index_copy
    ),
    _scatter(
        aten.index_fill.int_Scalar,
        aten.index_fill.int_Tensor,
        meta=like_self,
        refuses=index_fill_refusal,
        lower=index_fill,
    ),
    _scatter(aten.index_reduce.default, meta=plain_self, lower=index_reduce),
    _scatter(
        aten.scatter.src,
        aten.scatter.value,
        aten.scatter.reduce,
        aten.scatter.value_reduce,
        meta=plain_self,
        refuses=scatter_refusal,
        lower=scatter,
    ),
    _scatter(
        aten.scatter_add.default, meta=plain_self, refuses=source_of_dtype("src"), lower=scatter_add
    ),
    _scatter(
        aten.scatter_reduce.two,
        meta=plain_self,
        refuses=source_of_dtype("src"),
        lower=scatter_reduce,
    ),
)
