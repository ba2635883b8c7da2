"""The gradients of convolutions of channels-last images, as contractions.

That of the images is a convolution of the result's gradient with the weight turned round, and where
the window moves by more than one element, one for each residue of the places. That of the weight
sums over pixels, for each element of the window and each channel of the images. Where there are few
pixels, the weight is larger than all that the windows show: it is read or written as it lies then,
and the elements of the windows are the columns of one product.

On a GPU they are library calls, but for the gradients of a depthwise convolution's images and of
its weight, if that is 3x3 or 5x5.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ingot.graph import geometry
from ingot.graph.meta.basis import fresh
from ingot.graph.meta.untried import gradients_of
from ingot.loops import ops
from ingot.loops.depthwise import DepthwiseGradient, parts_of
from ingot.loops.expr import ZERO, Expr, loop_symbol, product
from ingot.loops.ir import Contraction
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.index_maps import load_where, windows_on
from ingot.loops.lowering.pointwise import filled
from ingot.loops.lowering.rules import NotLowered
from ingot.loops.lowering.values import (
    Index,
    LoopTensor,
    Spec,
    channels_last_strides,
    contiguous,
    exprs,
    rounded,
    stored,
)
from ingot.loops.spaces import address_of, contiguous_strides
from ingot.ops.convolution import (
    FEWEST_CHANNELS,
    FEWEST_PIXELS,
    Convolution,
    Window,
    all_channels_last,
    dense,
    in_channels_last,
    is_small_depthwise,
    pixel_loops,
    taps_of_channels,
)
from ingot.ops.op import op
from ingot.ops.products import access, contract, contracts_in_full, transposed
from ingot.ops.reductions import reduce_rounded
from ingot.sequences import Args, Kwargs
from ingot.torch_private import OpOverload, aten

MOST_TAPS_OF_GRADIENTS = 49
"""Elements of the largest window that a GPU's kernel writes out for the gradients of images. On an
H200 and bfloat16 it takes, of cuDNN's time, 0.7 for 3x3, 0.85 for 5x5 and 0.7 for 7x7."""

SUMMED_DOWN = (3, 3), (5, 5)
"""The windows whose weight's gradient a GPU's kernel sums up. Measured on an H200, 64 images, of
cuDNN's time at strides 1 and 2: 1.1 and 0.9 for 3x3, 1.3 and 0.3 for 5x5, 0.85 for those of
efficientnet_b0 together (bfloat16); 1.3 at stride 1 for 3x3, 0.8 and 0.5 for 5x5 (float32). For 7x7
it would be 1.4. cuDNN takes up to a second to make each of its kernels, one after the other, at the
first call; Triton makes them side by side."""


def convolution_backward(
    lw: Lowering,
    outs: Sequence[Spec | None],
    grad: LoopTensor,
    *args: Any,
) -> tuple[LoopTensor | None, ...]:
    """The gradients of the images, of the weight and of the bias that are used; None for others.
    Raises NotLowered before anything is written."""
    x, weight, _, *settings, _ = args
    conv = Convolution(x, weight, None, *settings)
    of_images, of_weight, of_bias = lw.with_users(outs)
    if not lw.target.contracts:
        return _for_gpu(lw, (of_images, of_weight, of_bias), grad, *args)
    constant = all(
        size.constant for sizes in (grad.sizes[1:], x.sizes[1:], weight.sizes) for size in sizes
    )
    plain = all(t.dtype is torch.float32 for t in (grad, x, weight))
    if conv.groups != 1 or not constant or grad.sizes[0] is ZERO or not plain:
        raise NotLowered("a convolution for the library")
    if len(grad.sizes) != 4 or not contracts_in_full() or _pixels(grad) < FEWEST_PIXELS:
        raise NotLowered("a convolution for the library")
    images = (grad, x) if of_images is None else (of_images,)
    if not _lies_channels_last(*images):
        raise NotLowered("images that lie otherwise")
    if of_images is not None and (grad.sizes[1].constant or 0) < FEWEST_CHANNELS:
        raise NotLowered("short sums")
    window = conv.window
    results: list[LoopTensor | None] = [None] * len(outs)
    if of_images is not None:
        if conv.transposed:
            results[0] = dense(lw, of_images, grad, weight, None, window)
        else:
            results[0] = _of_images(lw, of_images, grad, weight, window)
    if of_weight is not None:
        large, small = x, grad
        if conv.transposed:
            large, small = grad, x
        results[1] = _of_weight(lw, of_weight, large, small, window)
    if of_bias is not None:
        lw.realize_root(grad)
        results[2] = lw.reduce(of_bias, "sum", grad, (0, 2, 3), of_bias.dtype, lambda value: value)
    return tuple(results)


def _for_gpu(
    lw: Lowering, outs: Sequence[Spec | None], grad: LoopTensor, *args: Any
) -> tuple[LoopTensor | None, ...]:
    """The gradients of channels-last images: those of a depthwise convolution's images are loops,
    all others the library's. It lays the weight's as the images lie; who reads it puts it in
    order."""
    x, weight, *rest = args
    conv = Convolution(x, weight, None, *rest[1:-1])
    of_images, of_weight, of_bias = outs
    if len(grad.sizes) != 4 or ZERO in (*grad.sizes, *x.sizes, *weight.sizes):
        raise NotLowered("not images")
    if not _lies_channels_last(*((grad, x) if of_images is None else (of_images,))):
        raise NotLowered("images that lie otherwise")
    if of_images is not None and is_small_depthwise(conv, grad, MOST_TAPS_OF_GRADIENTS):
        assert of_weight is of_bias is None  # see `separate_gradients`
        return _of_channels(lw, of_images, grad, weight, conv.window), None, None
    if of_weight is not None and is_summed_down(conv, grad):
        taps, total = _of_taps(lw, of_weight, x, grad, conv.window), None
        if of_bias is not None:
            total = reduce_rounded(lw, of_bias, "sum", grad, (0, 2, 3))
        return None, taps, total
    operands = [all_channels_last(lw, value) for value in (grad, x, weight)]
    specs = [of_images, of_weight, of_bias]
    if of_weight is not None:
        specs[1] = of_weight._replace(strides=channels_last_strides(of_weight.sizes))
    results = lw.call(aten.convolution_backward.default, specs, [*operands, *rest])
    found = results[1]
    if of_weight is not None and found is not None:
        results[1] = lw.computed(of_weight, found.load, [found])
    return tuple(results)


def _of_channels(
    lw: Lowering, out: Spec, grad: LoopTensor, weight: LoopTensor, window: Window
) -> LoopTensor:
    """The gradient of a depthwise convolution's images: at each of their pixels the sum over the
    windows that show it."""
    grad, taps = all_channels_last(lw, grad), taps_of_channels(lw, out, weight)

    def terms(index: Index) -> Iterator[tuple[int, int]]:
        for offset in window.offsets():
            start = []
            for i, pad, tap, dilation in zip(
                index[2:], window.padding, offset, window.dilation, strict=True
            ):
                start.append(i + (pad - tap * dilation))
            places, begins = windows_on(start, window.stride, grad.sizes[2:])
            value = load_where(begins, grad, (*index[:2], *places), torch.float32)
            yield value, ops.to(taps.load((*exprs(offset), index[1])), torch.float32)

    def compute(index: Index) -> int:
        return rounded(ops.weighted_sum(terms(index)), out.dtype)

    return lw.computed(out, compute, [grad], cost=4 * len(window.offsets()), heavy=True)


def is_summed_down(conv: Convolution, grad: LoopTensor) -> bool:
    """Whether a GPU's kernel walks down the images to sum up the gradient of this weight."""
    if conv.transposed or not conv.is_depthwise(grad):
        return False
    if not {grad.dtype, conv.x.dtype} <= {torch.float32, *ops.HALVES}:
        return False
    sizes = (*grad.sizes[1:], *conv.x.sizes[1:])
    window, constant = conv.window, all(size.constant for size in sizes)
    return constant and window.size in SUMMED_DOWN and set(window.dilation) == {1}


def _of_taps(
    lw: Lowering, out: Spec, x: LoopTensor, grad: LoopTensor, window: Window
) -> LoopTensor:
    """The gradient of a depthwise convolution's weight: parts that are summed down the images, and
    the sum of the parts."""
    images, tangent = lw.view(all_channels_last(lw, x)), lw.view(all_channels_last(lw, grad))
    piece, parts = parts_of(grad.sizes, len(window.offsets()))
    sizes = exprs((parts, *window.size, grad.sizes[1]))
    spec = contiguous(sizes, torch.float32)
    between = stored(lw.new_buffer(spec, spec.strides), spec)
    geometry_ = window.stride, window.padding, piece
    lw.graph.nodes.append(
        DepthwiseGradient(lw.node_name(), lw.origin, images, tangent, lw.view(between), *geometry_)  # type: ignore[arg-type]
    )
    taps = contiguous(sizes[1:], torch.float32)
    summed = lw.reduce(taps, "sum", between, (0,), torch.float32, lambda value: value)
    exact = out._replace(dtype=torch.float32)
    in_order = lw.mapped(summed, exact, lambda index: (index[2], index[3], index[0]))
    return lw.rounded_to(out, in_order)


def _lies_channels_last(*images: LoopTensor | Spec) -> bool:
    """Whether one of the images does; those that lie otherwise are converted."""
    laid = []
    for x in images:
        if x.strides == channels_last_strides(x.sizes):
            laid.append(x)
    return any(x.strides != contiguous_strides(x.sizes) for x in laid)


def _pixels(x: LoopTensor | Spec) -> int:
    """How many there are: at least, where the number of images is a symbol."""
    return math.prod(size.bounds[0] or 0 for size in (x.sizes[0], *x.sizes[2:]))


def _is_large(weight: LoopTensor | Spec, small: LoopTensor) -> bool:
    """Whether a weight is known to be about as large as all windows on the images, whose results
    `small` holds."""
    return small.sizes[0].constant is not None and _pixels(small) <= (weight.sizes[0].constant or 0)


def _row_major(sizes: Sequence[Expr]) -> Spec:
    return contiguous(sizes, torch.float32)


def _reshaped(lw: Lowering, x: LoopTensor, *sizes: Expr) -> LoopTensor:
    return lw.reshaped(x, _row_major(sizes))


def _pixel_rows(lw: Lowering, x: LoopTensor) -> LoopTensor:
    """The channels of each pixel: a matrix."""
    x = in_channels_last(lw, x, (0, 0))
    n, channels, height, width = x.sizes
    rows = lw.mapped(
        x,
        _row_major((n, height, width, channels)),
        lambda index: (index[0], index[3], index[1], index[2]),
    )
    return _reshaped(lw, rows, n * height * width, channels)


# -- of the images ---------------------------------------------------------------------------------


def _of_images(
    lw: Lowering, out: Spec, grad: LoopTensor, weight: LoopTensor, window: Window
) -> LoopTensor:
    if len(window.offsets()) == 1 or _is_large(weight, grad):
        return _added_windows(lw, out, grad, weight, window)
    return _turned_round(lw, out, grad, weight, window)


def _added_windows(
    lw: Lowering, out: Spec, grad: LoopTensor, weight: LoopTensor, window: Window
) -> LoopTensor:
    """The gradients of all windows' elements as one product, and for each element of the images the
    sum of those that lie on it."""
    n, results, height, width = grad.sizes
    channels = weight.sizes[1:]
    columns = _reshaped(lw, weight, results, product(channels))
    products = contract(
        lw, _row_major((n * height * width, product(channels))), _pixel_rows(lw, grad), columns
    )
    windows = _reshaped(lw, products, n, height, width, *channels)
    if window.takes_all:
        return lw.mapped(
            windows, out, lambda index: (index[0], index[2], index[3], index[1], ZERO, ZERO)
        )

    margins = window.padding

    def terms(index: Index) -> Iterator[int]:
        for offset in window.offsets():
            reach = zip(index[2:], offset, margins, window.dilation)
            at = []
            for i, k, before, dilation in reach:
                at.append(i + (before - k * dilation))
            place, begins = windows_on(at, window.stride, (height, width))
            where = (index[0], *place, index[1], *exprs(offset))
            yield load_where(begins, windows, where, torch.float32)

    def compute(index: Index) -> int:
        return ops.total_of(terms(index))

    return lw.computed(out, compute, [windows], cost=8 * len(window.offsets()), heavy=True)


class _Residue(NamedTuple):
    """Places along one dimension that are equal modulo the window's step: `places` of them from
    `first` on. They are met by the elements `taps` of the window, the last one first. For the first
    place and the first tap, the gradient is at `source`; for neighbouring places at neighbours, for
    neighbouring taps `stride` on."""

    first: int
    places: int
    taps: tuple[int, ...]
    source: int
    stride: int

    def margin(self, gradients: int) -> int:
        """How far places reach beyond that many gradients, on either side."""
        last = self.source + self.places - 1 + (len(self.taps) - 1) * self.stride
        return max(0, -self.source, last - (gradients - 1))


def _residues(places: int, size: int, step: int, padding: int, dilation: int) -> list[_Residue]:
    residues = []
    for first in range(min(step, places)):
        taps = []
        for k in reversed(range(size)):
            if (first + padding - k * dilation) % step == 0:
                taps.append(k)
        if taps:
            source, stride = ((first + padding - taps[0] * dilation) // step, 1)
        else:
            source, stride = (0, 1)
        if len(taps) > 1:
            stride = (taps[0] - taps[1]) * dilation // step
        residues.append(_Residue(first, -(-(places - first) // step), tuple(taps), source, stride))
    return residues


def _turned_round(
    lw: Lowering, out: Spec, grad: LoopTensor, weight: LoopTensor, window: Window
) -> LoopTensor:
    """A convolution of the gradient for each residue of the places, as they meet other elements of
    the window."""
    axes = []
    for size, *each in zip(out.sizes[2:], *window):
        axes.append(_residues(size.constant or 0, *each))
    margins = []
    for axis, size in zip(axes, grad.sizes[2:]):
        margins.append(max(r.margin(size.constant or 0) for r in axis))
    padded = lw.view(in_channels_last(lw, grad, margins))
    strides = channels_last_strides(out.sizes)
    buffer = lw.new_buffer(out, strides)
    for residues in itertools.product(*axes):
        n, channel = loop_symbol("n", out.sizes[0]), loop_symbol("c", out.sizes[1])
        row, column = map(loop_symbol, "hw", [r.places for r in residues])
        at = [i * step + r.first for i, step, r in zip((row, column), window.stride, residues)]
        target = address_of((n, channel, *at), strides)
        if not all(r.taps for r in residues):
            nothing = _row_major(exprs([*out.sizes[:2], *(r.places for r in residues)]))
            steps = []
            for stride, step in zip(strides, (1, 1, *window.stride)):
                steps.append(stride * step)
            first = sum((stride * r.first for stride, r in zip(strides[2:], residues)), ZERO)
            lw.write(filled(lw, nothing, 0.0), buffer, steps, first)
            continue
        taps = tuple(map(loop_symbol, "ij", [len(r.taps) for r in residues]))
        inner = loop_symbol("k", grad.sizes[1])
        under = [
            i + tap * r.stride + (r.source + margin)
            for i, tap, r, margin in zip((row, column), taps, residues, margins)
        ]
        left = access(padded, (n, inner, *under))
        right = access(lw.view(_turned(lw, weight, residues)), (channel, inner, *taps))
        lw.graph.nodes.append(
            Contraction(
                lw.node_name(), lw.origin, (), (n, row, column), (channel,), (*taps, inner),
                left, right, buffer, target, out.dtype,
            )
        )  # fmt: skip
    return stored(buffer, out)


def _turned(lw: Lowering, weight: LoopTensor, residues: Sequence[_Residue]) -> LoopTensor:
    """The elements of the weight that meet these places, the result's channels for each of the
    images'."""
    steps = []
    for r in residues:
        steps.append(r.taps[0] - r.taps[1] if len(r.taps) > 1 else 1)

    def under(index: Index) -> Index:
        at = []
        for d, (step, r) in enumerate(zip(steps, residues)):
            at.append((index[2 + d] * -step) + r.taps[0])
        return index[1], index[0], *at

    sizes = (weight.sizes[1], weight.sizes[0], *exprs([len(r.taps) for r in residues]))
    return lw.relaid(lw.mapped(weight, _row_major(sizes), under))


# -- of the weight ---------------------------------------------------------------------------------


def _of_weight(
    lw: Lowering, out: Spec, large: LoopTensor, small: LoopTensor, window: Window
) -> LoopTensor:
    """The window moves over the images `large`; for each place, `small` has the result or its
    gradient."""
    if len(window.offsets()) == 1 or _is_large(out, small):
        return _of_large_weight(lw, out, large, small, window)
    n, row, column = pixels = pixel_loops(small.sizes)
    result, channel = loop_symbol("o", out.sizes[0]), loop_symbol("c", out.sizes[1])
    taps = tuple(map(loop_symbol, "ij", out.sizes[2:]))
    at = window.place((row, column), taps)
    left = access(lw.view(in_channels_last(lw, large, window.padding)), (n, channel, *at))
    right = access(lw.view(in_channels_last(lw, small, (0, 0))), (n, result, row, column))
    spec = _row_major((*out.sizes[2:], out.sizes[1], out.sizes[0]))
    loops = (), (*taps, channel), (result,), pixels
    summed = lw.contraction(spec, loops, left, right, (*taps, channel, result))
    return lw.mapped(summed, out, lambda index: (*index[2:], index[1], index[0]))


def _of_large_weight(
    lw: Lowering, out: Spec, large: LoopTensor, small: LoopTensor, window: Window
) -> LoopTensor:
    """One product whose columns are the elements of the windows, taken out of the images."""
    padded = in_channels_last(lw, large, window.padding)
    sizes = (small.sizes[0], *small.sizes[2:], *out.sizes[1:])

    def under(index: Index) -> Index:
        return index[0], index[3], *window.place(index[1:3], index[4:])

    windows: LoopTensor = lw.mapped(padded, _row_major(sizes), under)
    if not window.takes_all:
        windows = lw.copied(windows)
    rows = transposed(lw, _pixel_rows(lw, small))
    columns = _reshaped(lw, windows, rows.sizes[1], product(out.sizes[1:]))
    products = contract(lw, _row_major((out.sizes[0], product(out.sizes[1:]))), rows, columns)
    return lw.reshaped(products, out)


def separate_gradients(grad: Tensor, x: Tensor, weight: Tensor, *settings: Any) -> Any:
    """The gradient of the images apart from those of the parameters, which may be wanted at other
    times."""
    *geometry_, (of_images, *of_parameters) = settings
    if not (of_images and any(of_parameters)):
        return NotImplemented
    call: Any = aten.convolution_backward.default
    images, _, _ = call(grad, x, weight, *geometry_, [True, False, False])
    return images, *call(grad, x, weight, *geometry_, [False, *of_parameters])[1:]


_tried_out = gradients_of("input", "weight", "bias_sizes")


def gradients_on_gpus(op: OpOverload, args: Args, kwargs: Kwargs) -> Any:
    """The rule of GPUs, which runs no convolution on the CPU: gradients of images and of their
    weight lie channels-last if one of these does."""
    grad, x, weight, *_, (of_images, of_weight, of_bias) = args
    if x.dim() != 4 or any(map(geometry.is_empty, (grad, x, weight))):
        return _tried_out(op, args, kwargs)
    last = x.dtype is not torch.float64
    last &= geometry.like_channels_last(x) or geometry.like_channels_last(weight)
    strides_of = geometry.channels_last if last else geometry.contiguous
    results: list[Tensor | None] = []
    for of, wanted in ((x, of_images), (weight, of_weight)):
        results.append(fresh(of.shape, x.dtype, strides_of(of.shape)) if wanted else None)
    results.append(fresh(grad.shape[1:2], x.dtype) if of_bias else None)
    return tuple(results)


OPS = (
    op(
        aten.convolution_backward.default,
        decompose=separate_gradients,
        meta=_tried_out,
        gpu_meta=gradients_on_gpus,
        lower=convolution_backward,
    ),
)
