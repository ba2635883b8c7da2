"""Pooling over windows: one dimension after the other, so that a window of 3x3 is read with 3 + 3
loads, not 9."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor

from ingot.errors import EagerRaises
from ingot.graph import geometry
from ingot.graph.decompositions import HALVES
from ingot.graph.meta.basis import fresh
from ingot.graph.meta.trials import probe
from ingot.graph.schemas import bind, indexes
from ingot.loops import ops
from ingot.loops.expr import ONE, ZERO, Expr, as_expr, maximum, minimum
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.index_maps import (
    compare,
    inside,
    load_where,
    reshape_map,
    windows_on,
    with_place,
)
from ingot.loops.lowering.pointwise import simple
from ingot.loops.lowering.rules import NotLowered
from ingot.loops.lowering.values import (
    Index,
    LoopTensor,
    Spec,
    channels_last_strides,
    compute_dtype,
    constants,
    contiguous,
    exprs,
    rounded,
)
from ingot.loops.spaces import address_of, contiguous_strides
from ingot.ops.op import op
from ingot.sequences import Args, Kwargs
from ingot.torch_private import OpOverload, aten

apply = ops.apply

WIDEST_WINDOW = 8
"""Loads of one window along one dimension that are written out."""
MOST_TAPS = 27
"""Loads of a window in all dimensions that are written out."""


Window = tuple[int, int, int, int]
"""Along one dimension: the size, the step from one to the next, the padding and the dilation."""


def _windows(rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any = 1) -> list[Window]:
    """The window of each dimension; one that moves by no given step moves by its size."""

    def per_dimension(values: Any) -> Sequence[int]:
        if not isinstance(values, (list, tuple)):
            return [values] * rank
        if len(values) == 1:
            return values * rank
        return values

    listed = map(per_dimension, (kernel, stride or kernel, padding, dilation))
    return list(zip(*listed, strict=True))


def _require_narrow(windows: Sequence[Window]) -> None:
    if not all(isinstance(n, int) for window in windows for n in window):
        raise NotLowered("a window of symbolic sizes")
    if max(windows)[0] > WIDEST_WINDOW:
        raise NotLowered("a wide window")


def _along(
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    dim: int,
    window: Window,
    combine: str,
    neutral: float,
) -> LoopTensor:
    """Combine windows along one dimension; outside of `x` lies `neutral`."""
    size, stride, padding, dilation = window
    dtype = compute_dtype(out.dtype)

    def element(index: Index, k: int) -> int:
        position = index[dim] * stride + (k * dilation - padding)
        at = with_place(index, dim, position)
        return load_where(inside([position], [x.sizes[dim]]), x, at, dtype, neutral)

    def compute(index: Index) -> int:
        elements = []
        for k in range(size):
            elements.append(element(index, k))
        return rounded(functools.reduce(simple(combine), elements), out.dtype)

    return lw.computed(out, compute, [x], cost=4 * size, heavy=True)


def _max_pool(
    rank: int,
    lw: Lowering,
    outs: Sequence[Spec],
    x: LoopTensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] | int = 0,
    dilation: Sequence[int] | int = 1,
    ceil_mode: bool = False,
) -> tuple[LoopTensor | None, ...]:
    if not outs[0].dtype.is_floating_point:
        raise NotLowered("the largest of integers")
    windows = _windows(rank, kernel, stride, padding, dilation)
    _require_narrow(windows)
    if lw.used[1]:
        return _largest(lw, outs, x, windows)
    return _pooled(lw, outs[0], x, windows, "maximum", float("-inf")), None


def _largest(
    lw: Lowering, outs: Sequence[Spec], x: LoopTensor, windows: Sequence[Window]
) -> tuple[LoopTensor, ...]:
    """The largest elements of windows, and where they are in the flattened last dimensions: the
    first one, or the last NaN."""
    if prod(size for size, *_ in windows) > MOST_TAPS:
        raise NotLowered("positions in a large window")
    lw.realize_root(x)
    rank, dtype = len(windows), compute_dtype(outs[0].dtype)
    extents = x.sizes[-rank:]
    strides = contiguous_strides(extents)

    def flat(place: Sequence[Expr]) -> int:
        return ops.index(address_of(place, strides))

    def search(index: Index) -> tuple[int, int]:
        starts = []
        for i, (_, step, pad, _) in zip(index[-rank:], windows):
            starts.append(i * step - pad)
        first = []
        for start, (*_, dilation) in zip(starts, windows):
            first.append(maximum(start, start % dilation))
        best, where = ops.constant(float("-inf"), dtype), flat(first)
        for offsets in product(
            *(range(0, size * dilation, dilation) for size, _, _, dilation in windows)
        ):
            place = []
            for start, offset in zip(starts, offsets):
                place.append(start + offset)
            counts = inside(place, extents)
            with ops.masked(counts):
                value = ops.to(x.load((*index[:-rank], *place)), dtype)
            better = apply("logical_or", apply("gt", value, best), apply("isnan", value))
            better = apply("logical_and", better, counts)
            best, where = (
                apply("where", better, value, best),
                apply("where", better, flat(place), where),
            )
        return best, where

    values = lw.computed(
        outs[0], lambda index: rounded(search(index)[0], outs[0].dtype), [x], heavy=True
    )
    return values, lw.computed(outs[1], lambda index: search(index)[1], [x], heavy=True)


def _pooled(
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    windows: Sequence[Window],
    combine: str,
    neutral: float,
) -> LoopTensor:
    """Pool the last dimensions, the first of them first: there, neighbours in memory are neighbours
    in a vector."""
    first = len(x.sizes) - len(windows)
    sizes: list[Expr] = list(x.sizes)
    for k, window in enumerate(windows):
        if window == (1, 1, 0, 1):
            continue
        lw.realize_root(x)
        sizes[first + k] = out.sizes[first + k]
        spec = spec_like(sizes, out, out.dtype)
        x = _along(lw, spec, x, first + k, window, combine, neutral)
    return lw.mapped(x, out, lambda index: index)


# -- averages --------------------------------------------------------------------------------------


def _avg_pool(
    rank: int,
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    kernel: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] | int = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor: int | None = None,
) -> LoopTensor:
    windows = _windows(rank, kernel, stride, padding)
    _require_narrow(windows)
    extents = x.sizes[-rank:]

    def counts(index: Index) -> list[Expr]:
        """How many elements each dimension's window counts."""
        lengths = []
        for i, n, (k, step, pad, _) in zip(index[-rank:], extents, windows):
            first = i * step - pad
            last = minimum(first + k, n + pad)
            if not count_include_pad:
                first, last = maximum(first, 0), minimum(last, n)
            lengths.append(last - first)
        return lengths

    total = _pooled(lw, _wide(out), x, windows, "add", 0.0)
    if divisor is not None:
        return _averaged(lw, out, total, lambda index: [as_expr(divisor)])
    return _averaged(lw, out, total, counts)


def _wide(out: Spec) -> Spec:
    if not out.dtype.is_floating_point:
        raise NotLowered("an average of integers")
    return out._replace(dtype=compute_dtype(out.dtype))


def _averaged(
    lw: Lowering, out: Spec, total: LoopTensor, counts: Callable[[Index], Sequence[Expr]]
) -> LoopTensor:
    """`total` by the product of the counts, which are small and so exact in any float type."""
    dtype = compute_dtype(out.dtype)

    def compute(index: Index) -> int:
        lengths = counts(index)
        count = ops.constant(prod(c for c in constants(lengths) if c is not None), dtype)
        for c in lengths:
            if c.constant is None:
                count = apply("mul", count, ops.index(c, dtype))
        return rounded(apply("div", total.load(index), count), out.dtype)

    return lw.computed(out, compute, [total], cost=2)


def adaptive_avg_pool(lw: Lowering, out: Spec, x: LoopTensor, target: Sequence[Any]) -> LoopTensor:
    """Window i of n elements in m reaches from i*n // m to the ceiling of (i+1)*n / m."""
    rank = len(target)
    known = constant_lengths(x, out, rank)
    if not all(m for _, m in known):
        raise NotLowered("adaptive pooling to nothing")
    wide, first = _wide(out), len(x.sizes) - rank
    if all(n % m == 0 for n, m in known) and max(n // m for n, m in known) > WIDEST_WINDOW:
        total = _summed_blocks(lw, wide, x, first, known)
        return _averaged(lw, out, total, lambda index: [as_expr(n // m) for n, m in known])
    if any(_longest(n, m) > WIDEST_WINDOW for n, m in known):
        raise NotLowered("a wide window")
    sizes = list(x.sizes)
    for k, (n, m) in enumerate(known):
        if n == m:
            continue
        lw.realize_root(x)
        sizes[first + k] = out.sizes[first + k]
        spec = spec_like(sizes, out, wide.dtype)
        if n % m == 0:
            x = _along(lw, spec, x, first + k, (n // m, n // m, 0, 1), "add", 0.0)
        else:
            x = _uneven(lw, spec, x, first + k, n, m)

    def counts(index: Index) -> list[Expr]:
        results = []
        for i, (n, m) in zip(index[-rank:], known):
            results.append(_end(i, n, m) - i * n // m)
        return results

    return _averaged(lw, out, lw.mapped(x, wide, lambda index: index), counts)


def _end(i: Expr, n: int, m: int) -> Expr:
    return (i * n + (n + m - 1)) // m


def _longest(n: int, m: int) -> int:
    if n % m == 0:
        return n // m
    return max((-(-(i + 1) * n // m)) - i * n // m for i in range(m))


def _uneven(lw: Lowering, out: Spec, x: LoopTensor, dim: int, n: int, m: int) -> LoopTensor:
    """The sums of n elements in m windows of unequal lengths."""
    dtype = out.dtype

    def terms(index: Index) -> Iterator[int]:
        start, end = index[dim] * n // m, _end(index[dim], n, m)
        for k in range(_longest(n, m)):
            at = with_place(index, dim, start + k)
            with ops.masked(compare("lt", start + k, end)):
                value = ops.to(x.load(at), dtype)
            yield value

    def compute(index: Index) -> int:
        return ops.total_of(terms(index))

    return lw.computed(out, compute, [x], cost=4 * _longest(n, m), heavy=True)


def _summed_blocks(
    lw: Lowering, wide: Spec, x: LoopTensor, first: int, known: Sequence[tuple[int, int]]
) -> LoopTensor:
    """The sums of equal blocks, as a reduction over a dimension for each of them."""
    lw.realize_root(x)
    sizes: list[Expr] = list(x.sizes[:first])
    for n, m in known:
        sizes += [as_expr(m), as_expr(n // m)]
    inner = tuple(first + 2 * k + 1 for k in range(len(known)))

    def index_map(index: Index) -> Index:
        spatial = (
            index[first + 2 * k] * (n // m) + index[first + 2 * k + 1]
            for k, (n, m) in enumerate(known)
        )
        return (*index[:first], *spatial)

    blocks = lw.mapped(x, contiguous(sizes, x.dtype), index_map)
    return lw.reduce(wide, "sum", blocks, inner, wide.dtype, lambda v: v)


def constant_lengths(x: LoopTensor, out: Spec, rank: int) -> list[tuple[int, int]]:
    """The last sizes of a tensor, each with that of the result; NotLowered where one is a
    symbol."""
    pairs = []
    for pair in zip(x.sizes[-rank:], out.sizes[-rank:]):
        n, m = constants(pair)
        if n is None or m is None:
            raise NotLowered("windows over symbolic sizes")
        pairs.append((n, m))
    return pairs


def spec_like(sizes: Sequence[Expr], out: Spec, dtype: torch.dtype) -> Spec:
    """A dense spec in the order of `out`'s strides: channels last or contiguous."""
    if len(sizes) < 4 or out.strides[1] is not ONE or out.sizes[1] is ONE:
        return contiguous(sizes, dtype)
    return Spec(tuple(sizes), channels_last_strides(sizes), dtype)


def _count(size: int, window: Window) -> int:
    """How many windows there are along a dimension."""
    length, step, padding, dilation = window
    return (size + 2 * padding - dilation * (length - 1) - 1) // step + 1


# -- windows taken out -----------------------------------------------------------------------------


def im2col(
    lw: Lowering, out: Spec, x: LoopTensor, kernel: Any, dilation: Any, padding: Any, stride: Any
) -> LoopTensor:
    """(batch, channels * windows' elements, windows), first with a dimension for each of these."""
    windows = _windows(2, kernel, stride, padding, dilation)
    (kh, sh, ph, dh), (kw, sw, pw, dw) = windows
    height, width = constants(x.sizes[-2:])
    if height is None or width is None:
        raise NotLowered("windows of symbolic sizes")
    rows, columns = map(_count, (height, width), windows)
    spec = contiguous((*x.sizes[:-2], *exprs((kh, kw, rows, columns))), out.dtype)
    lw.realize_root(x)

    def compute(index: Index) -> int:
        *outer, i, j, row, column = index
        place = (row * sh + i * dh - ph, column * sw + j * dw - pw)
        counts = ops.constant(True, torch.bool)
        if ph or pw:
            for p, n in zip(place, (height, width)):
                within = apply("logical_and", compare("ge", p, 0), compare("lt", p, n))
                counts = apply("logical_and", counts, within)
        with ops.masked(counts):
            return x.load((*outer, *place))

    elements = lw.computed(spec, compute, [x], cost=4)
    return lw.reshaped(elements, out)


def col2im(
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    size: Any,
    kernel: Any,
    dilation: Any,
    padding: Any,
    stride: Any,
) -> LoopTensor:
    """Each element is the sum of the windows' elements that lie on it, taken in the order of the
    window."""
    windows = _windows(2, kernel, stride, padding, dilation)
    (kh, sh, ph, dh), (kw, sw, pw, dw) = windows
    height, width = constants(out.sizes[-2:])
    if height is None or width is None or kh * kw > MOST_TAPS or ZERO in x.sizes:
        raise NotLowered("windows of symbolic sizes, or of very many elements")
    rows, columns = map(_count, (height, width), windows)
    index_map = reshape_map((*out.sizes[:-2], *exprs((kh, kw, rows, columns))), x.sizes)
    lw.realize_root(x)
    dtype = compute_dtype(out.dtype)
    side_by_side = (kh, kw, 1, 1, 0, 0) == (sh, sw, dh, dw, ph, pw)
    if side_by_side and (rows * kh, columns * kw) == (height, width):
        spec = contiguous((*out.sizes[:-2], *exprs((rows, kh, columns, kw))), out.dtype)
        moved = lw.mapped(x, spec, lambda i: index_map((*i[:-4], i[-3], i[-1], i[-4], i[-2])))
        images = lw.realize(lw.computed(spec, moved.load, [x]))
        return lw.reshaped(images, out)

    def compute(index: Index) -> int:
        *outer, h, w = index
        total = ops.constant(0, dtype)
        for i, j in product(range(kh), range(kw)):
            at = (h + ph - i * dh, w + pw - j * dw)
            place, begins = windows_on(at, (sh, sw), (rows, columns))
            with ops.masked(begins):
                value = ops.to(x.load(index_map((*outer, *exprs((i, j)), *place))), dtype)
            total = apply("where", begins, rounded(apply("add", total, value), out.dtype), total)
        return total

    return lw.computed(out, compute, [x], cost=8 * kh * kw, heavy=True)


# -- gradients of the largest ----------------------------------------------------------------------


def _max_pool_backward(rank: int) -> Callable[..., Any]:
    def rule_(grad: Tensor, x: Tensor, *arguments: Any) -> Tensor:
        """Windows may share their largest element, whose gradients are added in the windows'
        order."""
        if geometry.is_empty(grad) or geometry.is_empty(x) or x.dtype in HALVES:
            return NotImplemented
        if x.device.type != "cpu" and len(arguments) > 1:
            return NotImplemented  # it has windows: see `_largest_of_windows`
        places = arguments[-1].flatten(-rank)
        flat = grad.new_zeros((*places.shape[:-1], math.prod(x.shape[-rank:])))
        return flat.scatter_add(-1, places, grad.flatten(-rank)).view(x.shape)

    return rule_


def _largest_of_windows(
    rank: int, lw: Lowering, out: Spec, grad: LoopTensor, x: LoopTensor, kernel: Any, stride: Any,
    padding: Any, dilation: Any, ceil_mode: bool, indices: LoopTensor,
) -> LoopTensor:  # fmt: skip
    """On a GPU each element looks which of the windows that may show it have it as their largest.
    No two threads add to one place, as they do where gradients are scattered."""
    if lw.target.contracts or ZERO in (*out.sizes, *grad.sizes):
        raise NotLowered("gradients for the library")
    windows = _windows(rank, kernel, stride, padding, dilation)
    backs = []
    for size, step, _, spread in windows:
        backs.append(reversed(range(-(-((size - 1) * spread + 1) // step))))
    around = list(product(*backs))  # the windows before the last one that may show an element
    if len(around) > MOST_TAPS:
        raise NotLowered("many windows over each element")
    for value in (grad, indices):
        lw.realize_root(value)
    dtype = compute_dtype(out.dtype)

    def terms(index: Index) -> Iterator[int]:
        outer, place = index[:-rank], index[-rank:]
        here = ops.index(address_of(place, contiguous_strides(out.sizes[-rank:])))
        for back in around:
            at = []
            for i, (_, step, pad, _), steps in zip(place, windows, back):
                at.append((i + pad) // step - steps)
            exists = inside(at, grad.sizes[-rank:])
            is_largest = apply(
                "eq", load_where(exists, indices, (*outer, *at), torch.int64, -1), here
            )
            yield load_where(is_largest, grad, (*outer, *at), dtype)

    def compute(index: Index) -> int:
        return rounded(functools.reduce(functools.partial(apply, "add"), terms(index)), out.dtype)

    return lw.computed(out, compute, [grad, indices], cost=8 * len(around), heavy=True)


# -- what they look like, and what eager refuses ---------------------------------------------------


def pool_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """Max and average pooling with a window, in any rank."""
    bound = bind(op, args, kwargs)
    x = args[0]
    if geometry.is_empty(x):
        return probe(op, args, kwargs)
    rank = len(bound["kernel_size"])

    def per_dim(values: Sequence[Any]) -> list[Any]:
        if len(values) == 1:
            return list(values) * rank
        return list(values)

    kernel = per_dim(bound["kernel_size"])
    step = kernel
    if bound["stride"]:
        step = per_dim(bound["stride"])
    pad, spread = per_dim(bound["padding"]), per_dim(bound.get("dilation") or [1])
    spatial = []
    for size, k, s, p, d in zip(x.shape[-rank:], kernel, step, pad, spread):
        room = size + 2 * p - d * (k - 1) - 1
        if bound["ceil_mode"]:
            count = -(-room // s) + 1
        else:
            count = room // s + 1
        if bound["ceil_mode"] and (count - 1) * s >= size + p:
            count -= 1  # the last window would start in the padding on the right
        if count < 1:
            raise EagerRaises(f"{op}: a kernel larger than the input")
        spatial.append(count)
    sizes = (*x.shape[: x.dim() - rank], *spatial)
    plain = op is aten.avg_pool3d.default  # whose kernel knows of no other layout
    if plain:
        strides = geometry.contiguous(sizes)
    else:
        strides = geometry.suggested(x, sizes)
    values = fresh(sizes, x.dtype, strides)
    if len(op._schema.returns) == 2:
        return (values, fresh(sizes, torch.int64, strides))
    return values


def adaptive_max_pool_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Tensor, Tensor]:
    x, target = args[0], args[1]
    sizes = (*x.shape[: x.dim() - len(target)], *target)
    strides = None
    if len(target) == 2:
        strides = geometry.suggested(x, sizes)
    return fresh(sizes, x.dtype, strides), fresh(sizes, torch.int64, strides)


def adaptive_avg_pool_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    x, target = args[0], args[1]
    sizes = (*x.shape[: x.dim() - len(target)], *target)
    if op is aten._adaptive_avg_pool3d.default:
        return fresh(sizes, x.dtype)
    return fresh(sizes, x.dtype, geometry.suggested(x, sizes))


def pool_refusal(
    x: Tensor, kernel_size: Any, stride: Any, padding: Any, dilation: Any = (1,), **_: Any
) -> str:
    if min(*kernel_size, *(stride or kernel_size), *dilation) < 1 or min(padding) < 0:
        return "a kernel, stride or dilation below 1, or negative padding"
    wide = any(2 * p > k for k, p in zip(kernel_size, padding))
    if wide or x.dim() not in (len(kernel_size) + 1, len(kernel_size) + 2):
        return "an input of another rank, or padding of more than half a kernel"
    return ""


def _unbatched_channels_last(x: Tensor) -> str:
    odd = x.dim() == 4 and geometry.like_channels_last(x)
    if odd:
        return "a layout that is neither contiguous nor channels last of rank 5"
    return ""


def max_pool3d_refusal(x: Tensor, **rest: Any) -> str:
    return pool_refusal(x, **rest) or _unbatched_channels_last(x)


OPS = (
    op(
        aten.max_pool2d_with_indices.default,
        meta=pool_meta,
        refuses=pool_refusal,
        lower=functools.partial(_max_pool, 2),
    ),
    op(
        aten.max_pool3d_with_indices.default,
        meta=pool_meta,
        refuses=max_pool3d_refusal,
        lower=functools.partial(_max_pool, 3),
    ),
    op(
        aten.max_pool2d_with_indices_backward.default,
        decompose=_max_pool_backward(2),
        lower=functools.partial(_largest_of_windows, 2),
    ),
    op(
        aten.max_pool3d_with_indices_backward.default,
        decompose=_max_pool_backward(3),
        lower=functools.partial(_largest_of_windows, 3),
    ),
    op(aten.adaptive_max_pool2d_backward.default, decompose=_max_pool_backward(2)),
    op(aten.adaptive_max_pool3d_backward.default, decompose=_max_pool_backward(3)),
    op(
        aten.adaptive_max_pool2d.default,
        aten.adaptive_max_pool3d.default,
        meta=adaptive_max_pool_meta,
    ),
    op(
        aten.avg_pool2d.default,
        meta=pool_meta,
        refuses=pool_refusal,
        lower=functools.partial(_avg_pool, 2),
    ),
    op(
        aten.avg_pool3d.default,
        meta=pool_meta,
        refuses=pool_refusal,
        lower=functools.partial(_avg_pool, 3),
    ),
    op(
        aten._adaptive_avg_pool2d.default,
        aten._adaptive_avg_pool3d.default,
        meta=adaptive_avg_pool_meta,
        lower=adaptive_avg_pool,
    ),
    op(aten.max_unpool2d.default, aten.max_unpool3d.default, may_raise=indexes),
    op(aten.im2col.default, lower=im2col),
    op(aten.col2im.default, lower=col2im),
)
