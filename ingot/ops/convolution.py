"""Convolutions. Over channels-last images (see `graph.passes.layouts`) they are loops: a depthwise
one reads whole vectors of channels at each element of its window, a dense one is a matrix product
over pixels, a transposed one whose windows lie side by side one for each element of its window. A
depthwise one with a small window over contiguous images is loops as well, since it does so little
arithmetic per element that a library's change of layout costs more. All others are library calls.
So are all on a GPU, but for small depthwise ones over channels-last images, whose kernel computes
what is before and behind them as well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ingot.errors import EagerRaises
from ingot.graph import geometry
from ingot.graph.meta.basis import fresh
from ingot.graph.meta.trials import probe
from ingot.graph.schemas import Cost
from ingot.loops import ops
from ingot.loops.expr import (
    ONE,
    ZERO,
    Expr,
    Symbol,
    known_less,
    known_less_equal,
    loop_symbol,
    maximum,
    minimum,
)
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.index_maps import inside, load_where
from ingot.loops.lowering.pointwise import filled
from ingot.loops.lowering.rules import NotLowered
from ingot.loops.lowering.values import (
    Index,
    LoopTensor,
    Margins,
    Spec,
    channels_last_strides,
    contiguous,
    exprs,
    loops_over,
    numel,
    rounded,
    same_strides,
    stored,
    strides_in_order,
)
from ingot.loops.spaces import contiguous_strides
from ingot.ops.op import op
from ingot.ops.products import access, contracts_in_full
from ingot.sequences import Args, Kwargs
from ingot.torch_private import (
    OpOverload,
    aten,
    conv_determine_backend_memory_format,
    select_conv_backend,
)

apply = ops.apply

MOST_TAPS = 9
"""Elements of a window that a CPU's loops write out over contiguous images: 3x3."""

MOST_TAPS_OF_GPU = 25
"""The same on a GPU, over channels-last images: 5x5. Measured on an H200, 64 images of bfloat16,
parts of cuDNN's time by stride 1 and 2: 1.3 and 0.9 for 5x5, all of efficientnet_b0's together 1.1.
cuDNN makes a kernel for each of them at the first call, of 0.2 seconds, one after the other."""

MOST_TAPS_OF_VECTORS = 64
"""Elements of a window that are written out over channels-last images."""

FEWEST_PIXELS = 8
"""With fewer, packing the weight takes longer than the library takes."""

FEWEST_CHANNELS = 8
"""With fewer, sums over one element of the window at a time are too short."""

OPERATIONS_PER_BYTE = 6
"""What a GPU computes while it moves a byte ..."""

HEAVY = 20
"""... and what a function such as `exp` counts for there."""

MOST_AGAIN = 16
"""Scalar ops of what is computed again at each element of a window: of more its kernel would be
long."""


class Window(NamedTuple):
    """How a window moves over images: one number for each of its dimensions. `padding` is the same
    on both sides."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]

    @staticmethod
    def of(weight: LoopTensor, *geometry: Sequence[Any]) -> Window:
        """The window of a weight of constant size; NotLowered for another."""
        size = tuple(s.constant for s in weight.sizes[2:])
        listed = []
        for values in geometry:
            listed.append(tuple(values) * len(size) if len(values) == 1 else tuple(values))
        if not all(isinstance(n, int) for values in (size, *listed) for n in values):
            raise NotLowered("a window of unknown geometry")
        return Window(size, *listed)  # type: ignore[arg-type]

    @property
    def cuts_patches(self) -> bool:
        """Whether it covers each element at most once, side by side."""
        return self.stride == self.size and not any(self.padding) and set(self.dilation) == {1}

    @property
    def takes_all(self) -> bool:
        """Whether it shows each element once, by itself."""
        return {*self.size, *self.stride} == {1} and not any(self.padding)

    def offsets(self) -> list[tuple[int, ...]]:
        """The elements of the window, in row-major order."""
        return list(product(*map(range, self.size)))

    def place(
        self, index: Sequence[Expr], taps: Sequence[Expr | int], margin: Sequence[int] | None = None
    ) -> list[Expr]:
        """The place of the window's element `taps` for the result at `index`: in padded images, or
        in images that have a margin."""
        before = margin or [0] * len(self.size)
        moves = zip(index, self.stride, taps, self.dilation, before)
        results = []
        for i, step, tap, dilation, pad in moves:
            results.append(i * step + tap * dilation - pad)
        return results


@dataclass(frozen=True)
class Convolution:
    """The arguments of aten.convolution."""

    x: LoopTensor
    weight: LoopTensor
    bias: LoopTensor | None
    stride: Sequence[Any]
    padding: Sequence[Any]
    dilation: Sequence[Any]
    transposed: bool
    output_padding: Sequence[Any]
    groups: int

    @property
    def window(self) -> Window:
        return Window.of(self.weight, self.stride, self.padding, self.dilation)

    def is_depthwise(self, out: Spec | LoopTensor) -> bool:
        """Whether each channel of the images makes one of the result."""
        return self.groups == out.sizes[1].constant == self.x.sizes[1].constant

    def start(self, index: Index) -> int | None:
        """What a sum at an index of the result begins with, if anything: the bias."""
        if self.bias is None:
            return None
        return self.bias.load((index[1],))


def convolution(lw: Lowering, out: Spec, *args: Any) -> LoopTensor:
    for form in (channels_last, depthwise) if lw.target.contracts else (of_channels,):
        try:
            return form(lw, out, Convolution(*args))
        except NotLowered:
            pass
    last = channels_last_strides(out.sizes)
    converts = not lw.target.contracts or out.dtype in ops.HALVES
    is_last = out.strides == last != contiguous_strides(out.sizes)
    x, weight, bias, *rest = args
    if converts and is_last:  # else the library converts, and back
        x, weight = all_channels_last(lw, x), all_channels_last(lw, weight)
    elif not lw.fast_libraries:
        # The library's method, and with it the error, depends on the layout: oneDNN's for
        # channels-last images has up to twice the error of that for contiguous ones. So it is given
        # the layout of eager.
        raise NotLowered("a convolution for the library")
    elif not lw.target.contracts:  # whose kernels, and rounding, are those for channels-last images
        x = _none_channels_last(lw, x)
    if lw.target.contracts or not (is_last or rest[-1] == 1):
        # with a kernel that adds the bias: each of a CPU's, and a GPU's for groups
        return lw.result_of(aten.convolution.default, out, [x, weight, bias, *rest])
    result = lw.result_of(aten.convolution.default, out, [x, weight, None, *rest])
    return _added(lw, out, result, bias)


# -- channels last ---------------------------------------------------------------------------------


def channels_last(lw: Lowering, out: Spec, conv: Convolution) -> LoopTensor:
    """A convolution of channels-last images in one group, or in one for each channel. Raises
    NotLowered for others."""
    if out.dtype is not torch.float32 or out.strides != channels_last_strides(out.sizes):
        raise NotLowered("a convolution for the library")
    if (
        len(out.sizes) != 4
        or out.strides == contiguous_strides(out.sizes)
        or ZERO in (*conv.x.sizes, *conv.weight.sizes)
    ):
        raise NotLowered("not images")
    window = conv.window
    if conv.transposed:
        if conv.groups > 1 or any(conv.output_padding) or not window.cuts_patches:
            raise NotLowered("a transposed convolution whose windows overlap, or leave gaps")
        return _side_by_side(lw, out, conv)
    if conv.groups > 1:
        if not conv.is_depthwise(out) or len(window.offsets()) > MOST_TAPS_OF_VECTORS:
            raise NotLowered("groups of several channels, or a large window")
        return _depthwise_of_vectors(lw, out, conv)
    return dense(lw, out, conv.x, conv.weight, conv.bias, window)


def all_channels_last(lw: Lowering, value: LoopTensor) -> LoopTensor:
    """Images or a weight in memory, channels innermost."""
    strides = channels_last_strides(value.sizes)
    if same_strides(value.sizes, lw.view(value).strides, strides):
        return value
    return lw.relaid(value, strides)


def _none_channels_last(lw: Lowering, value: LoopTensor) -> LoopTensor:
    """Images in memory, contiguous if they lay channels-last."""
    contiguous_ones = contiguous_strides(value.sizes)
    strides = lw.view(value).strides
    if same_strides(value.sizes, strides, contiguous_ones):
        return value
    if not same_strides(value.sizes, strides, channels_last_strides(value.sizes)):
        return value
    return lw.relaid(value, contiguous_ones)


def in_channels_last(lw: Lowering, x: LoopTensor, padding: Sequence[int]) -> LoopTensor:
    """`x` in memory, channels innermost, with as many zeros before and after its last dimensions as
    `padding` says."""
    around = [0] * (len(x.sizes) - len(padding)) + list(padding)
    if x.margins is not None and x.buffer is None and (x.margins.number == 0 or not any(padding)):
        inner, before, after, number = x.margins
        before, after = ([a + b for a, b in zip(side, around)] for side in (before, after))
        return _padded(lw, Margins(inner, before, after, number))
    if any(padding):
        return _padded(lw, Margins(x, around, around, 0))
    strides = channels_last_strides(x.sizes)
    if x.buffer is None and x.root is x and x.strides == strides:
        return lw.realize(x)
    window = lw.view(x)
    return x if window.strides[1] is ONE else lw.copied(x, strides)


def _padded(lw: Lowering, margins: Margins) -> LoopTensor:
    """The padded images in memory, channels innermost; once for all convolutions. The margins are
    written apart, so that what they surround is computed straight into its place."""
    x, before, after, number = margins
    key = x, tuple(before), tuple(after), number
    if key in lw.padded:
        return lw.padded[key]
    sizes = tuple(size + b + a for size, b, a in zip(x.sizes, before, after))
    strides = channels_last_strides(sizes)
    spec = Spec(sizes, strides, x.dtype)
    buffer = lw.new_buffer(spec, strides)
    corner = []
    for stride, b in zip(strides, before):
        corner.append(stride * b)
    lazy = x.buffer is None
    for piece, offset in x.pieces(strides) if lazy else [(x, ZERO)]:
        lw.write(piece, buffer, strides, sum(corner, offset))
    if lazy and x.root is x:
        x.place(buffer, strides, sum(corner, ZERO))
    for d, (first, last) in enumerate(zip(before, after)):
        # the later dimensions whole, the earlier ones without their margins
        beyond = strides[d] * (x.sizes[d] + first)
        if first == last:
            sides = [(2, first, ZERO, beyond)]
        else:
            sides = [(1, first, ZERO, ZERO), (1, last, beyond, ZERO)]
        for count, width, start, stride in sides:
            if width:
                shape = exprs((count, *x.sizes[:d], width, *sizes[d + 1 :]))
                margin = contiguous(shape, x.dtype)
                lw.write(
                    filled(lw, margin, number), buffer, (stride, *strides), sum(corner[:d], start)
                )
    lw.padded[key] = stored(buffer, spec)
    return lw.padded[key]


def _depthwise_of_vectors(lw: Lowering, out: Spec, conv: Convolution) -> LoopTensor:
    """The window written out, over padded images; the weight is relaid so that a vector of channels
    is one load."""
    window = conv.window
    x = in_channels_last(lw, conv.x, window.padding)
    weight = lw.relaid(_taps(lw, conv.weight))

    def terms(index: Index) -> Iterator[tuple[int, int]]:
        for offset in window.offsets():
            value = x.load((*index[:2], *window.place(index[2:], offset)))
            yield value, weight.load((*exprs(offset), index[1]))

    def compute(index: Index) -> int:
        return ops.weighted_sum(terms(index), conv.start(index))

    return lw.computed(out, compute, [x], cost=4 * len(window.offsets()), heavy=True)


def _taps(lw: Lowering, weight: LoopTensor) -> LoopTensor:
    """The weight of a depthwise convolution with the channels innermost."""
    spec = contiguous((*weight.sizes[2:], weight.sizes[0]), weight.dtype)
    return lw.mapped(weight, spec, lambda index: (index[2], ZERO, index[0], index[1]))


def dense(
    lw: Lowering,
    out: Spec,
    x: LoopTensor,
    weight: LoopTensor,
    bias: LoopTensor | None,
    window: Window,
) -> LoopTensor:
    """A contraction: rows are the result's pixels, columns its channels, and what is summed over
    are the window and the channels of `x`."""
    _require_pixels(out)
    pixels = pixel_loops(out.sizes)
    channel, inner = loop_symbol("c", out.sizes[1]), loop_symbol("k", weight.sizes[1])
    taps = tuple(map(loop_symbol, "ij", weight.sizes[2:]))
    reduced = (*taps, inner)
    few = (weight.sizes[1].constant or 0) < FEWEST_CHANNELS
    if few and window.cuts_patches:
        reduced = (inner, *taps)  # as in the weight
        left = access(lw.view(_patches(lw, out, x, weight)), (*pixels, *reduced))
    else:
        # a row of the window is one loop, as in the images; its rows lie side by side, to be packed
        # together
        if few:
            weight = lw.relaid(weight, _columns_last_strides(weight.sizes))
        images = lw.view(in_channels_last(lw, x, window.padding))
        left = access(images, (pixels[0], inner, *window.place(pixels[1:], taps)))
    right = access(lw.view(weight), (channel, inner, *taps))
    loops = (), pixels, (channel,), reduced
    place = (pixels[0], channel, *pixels[1:])
    result = lw.contraction(out, loops, left, right, place)
    return _with_bias(lw, out, result, bias)


def pixel_loops(sizes: Sequence[Expr]) -> tuple[Symbol, ...]:
    """Loops over images and their rows and columns."""
    return tuple(map(loop_symbol, "nhw", (sizes[0], *sizes[2:])))


def _require_pixels(images: Spec | LoopTensor) -> None:
    """Raises NotLowered where a contraction over pixels is slower than the library, or rounds
    less."""
    pixels = (images.sizes[0] * images.sizes[2] * images.sizes[3]).constant
    if not contracts_in_full() or (pixels is not None and pixels < FEWEST_PIXELS):
        raise NotLowered("a convolution for the library")


def _columns_last_strides(sizes: Sequence[Expr]) -> tuple[Expr, ...]:
    """Dense strides of images with a column's elements side by side, then the channels, then the
    columns."""
    outputs, channels, height, width = range(4)
    return strides_in_order(sizes, (outputs, width, channels, height))


def _side_by_side(lw: Lowering, out: Spec, conv: Convolution) -> LoopTensor:
    """A transposed convolution whose windows lie side by side in the result: for each element of
    the window, one contraction over the channels of `x`. The weight is relaid so that the result's
    channels are adjacent."""
    x, weight, window = conv.x, conv.weight, conv.window
    _require_pixels(x)
    n, row, column = pixels = pixel_loops(x.sizes)
    channel, inner = loop_symbol("c", out.sizes[1]), loop_symbol("k", x.sizes[1])
    taps = tuple(map(loop_symbol, "ij", weight.sizes[2:]))
    spec = contiguous((*weight.sizes[2:], *weight.sizes[:2]), weight.dtype)
    relaid = lw.relaid(lw.mapped(weight, spec, lambda index: (*index[2:], *index[:2])))
    left = access(lw.view(in_channels_last(lw, x, window.padding)), (n, inner, row, column))
    right = access(lw.view(relaid), (*taps, inner, channel))
    at = []
    for i, size, tap in zip((row, column), window.size, taps):
        at.append(i * size + tap)
    loops = taps, pixels, (channel,), (inner,)
    result = lw.contraction(out, loops, left, right, (n, channel, *at))
    return _with_bias(lw, out, result, conv.bias)


def _with_bias(lw: Lowering, out: Spec, result: LoopTensor, bias: LoopTensor | None) -> LoopTensor:
    """A contraction's result with the bias of each channel added, lazily: it becomes part of the
    epilogue."""
    if bias is None:
        return result
    value = lw.computed(
        out, lambda index: apply("add", result.load(index), bias.load((index[1],))), [result, bias]
    )
    value.finishes = True
    return value


def _added(lw: Lowering, out: Spec, result: LoopTensor, bias: LoopTensor | None) -> LoopTensor:
    """A library's result with the bias of each channel added, by whoever reads it. A GPU's library
    adds it by a kernel of its own."""
    if bias is None:
        return result

    def compute(index: Index) -> int:
        return rounded(apply("add", result.load(index), bias.load((index[1],))), out.dtype)

    return lw.computed(out, compute, [result, bias], cost=1)


def _patches(lw: Lowering, out: Spec, x: LoopTensor, weight: LoopTensor) -> LoopTensor:
    """The patches of images that windows cut without overlap, each in the order of the weight."""
    height, width = weight.sizes[2:]
    spec = contiguous((out.sizes[0], *out.sizes[2:], *weight.sizes[1:]), x.dtype)

    def under(index: Index) -> Index:
        return index[0], index[3], index[1] * height + index[4], index[2] * width + index[5]

    return lw.copied(lw.mapped(x, spec, under))


# -- on a GPU --------------------------------------------------------------------------------------


def of_channels(lw: Lowering, out: Spec, conv: Convolution) -> LoopTensor:
    """A small window over each channel by itself, channels innermost. What the images are made of
    is computed at each element of the window where that takes less than to write and read them.
    Raises NotLowered for all others."""
    x, weight = conv.x, conv.weight
    if (
        conv.transposed
        or len(out.sizes) != 4
        or out.dtype not in (torch.float32, *ops.HALVES)
        or conv.groups == 1
    ):
        raise NotLowered("a convolution for the library")
    if not out.strides == channels_last_strides(out.sizes) != contiguous_strides(out.sizes):
        raise NotLowered("not images whose channels lie side by side")
    if not is_small_depthwise(conv, out) or ZERO in (*x.sizes, *out.sizes):
        raise NotLowered("groups of several channels, or a large window")
    window = conv.window
    margins, number, before = x.margins, 0.0, [0, 0]
    if (
        margins is not None
        and x.buffer is None
        and not any((*margins.before[:2], *margins.after[:2]))
        and (margins.number == 0 or not any(window.padding))
    ):
        x, number, before = margins.inner, float(margins.number), list(margins.before[2:])
    if not _is_less_than_memory(lw, out, x, len(window.offsets())):
        strides = channels_last_strides(x.sizes)
        if x.buffer is None and x.root is x:
            lw.realize(x, strides)
        elif lw.view(x).strides[1] is not ONE:
            x = lw.copied(x, strides)
    taps = taps_of_channels(lw, out, weight)
    margin = [pad + first for pad, first in zip(window.padding, before)]

    def tap(index: Index, offset: tuple[int, ...]) -> int:
        """The input under one element of the window. What is read outside of it, at its border, is
        not used."""
        at = window.place(index[2:], offset, margin)
        condition = inside(at, x.sizes[2:])
        for d, size in enumerate(x.sizes[2:]):
            first, last = known_less_equal(0, at[d]), known_less(at[d], size)
            if not first:
                at[d] = maximum(at[d], 0)
            if not last:
                at[d] = minimum(at[d], size - 1)
        value = x.load((*index[:2], *at))
        return apply("where", condition, value, ops.constant(number, ops.dtype_of(value)))

    def terms(index: Index) -> Iterator[tuple[int, int]]:
        for offset in window.offsets():
            yield tap(index, offset), taps.load((*exprs(offset), index[1]))

    def compute(index: Index) -> int:
        return rounded(ops.weighted_sum(terms(index), conv.start(index)), out.dtype)

    return lw.computed(out, compute, [x], cost=4 * len(window.offsets()), heavy=True)


def is_small_depthwise(
    conv: Convolution, out: Spec | LoopTensor, most: int = MOST_TAPS_OF_GPU
) -> bool:
    """Whether a GPU's kernel writes out the window of a convolution with this result: one of at
    most so many elements."""
    if (
        conv.transposed
        or not conv.is_depthwise(out)
        or out.dtype not in (torch.float32, *ops.HALVES)
    ):
        return False
    return 1 < len(conv.window.offsets()) <= most


def taps_of_channels(lw: Lowering, out: Spec, weight: LoopTensor) -> LoopTensor:
    """The weight of a depthwise convolution with the channels innermost: in memory, if enough is
    computed with it."""
    if weight.buffer is None:
        lw.realize_root(weight)
    taps, many, window = _taps(lw, weight), lw.target.many_taps, numel(weight.sizes[2:]).constant
    if (numel(out.sizes).constant or many) * (window or 1) >= many:
        return lw.relaid(taps)
    return taps


def _is_less_than_memory(lw: Lowering, out: Spec, x: LoopTensor, taps: int) -> bool:
    """Whether images are better computed at each element of a window than written and read.

    They are if they are few, or made of little, of one other tensor whose neighbouring channels lie
    side by side.
    """
    if x.buffer is not None:
        return lw.view(x).strides[1] is ONE
    steps = lw.steps_of_loads(x, loops_over(x.sizes))
    images = max((len(dim_steps) for dim, dim_steps in steps.items() if dim > 1), default=0)
    if x.root.cost > MOST_AGAIN or images > 1 or set(steps.get(1, ())) - {1}:
        return False
    there, points = numel(x.sizes).constant, numel(out.sizes).constant
    if there is None or points is None:
        return False
    operations = (points * taps - there) * (x.root.cost + (HEAVY if x.root.heavy else 0))
    return operations <= lw.target.launch + there * 2 * x.dtype.itemsize * OPERATIONS_PER_BYTE


# -- contiguous ------------------------------------------------------------------------------------


def depthwise(lw: Lowering, out: Spec, conv: Convolution) -> LoopTensor:
    """A small window over each channel by itself. Raises NotLowered for all others."""
    x, weight = conv.x, conv.weight
    rank = len(out.sizes) - 2
    if (
        conv.transposed
        or out.dtype is not torch.float32
        or rank not in (1, 2)
        or len(x.sizes) != rank + 2
    ):
        raise NotLowered("a convolution for the library")
    window = conv.window
    one_to_one = conv.groups > 1 and conv.is_depthwise(out)
    rows = window.stride[-1] == 1 and x.strides[-1] is ONE  # neighbours in a row fill a vector
    if not one_to_one or not 1 <= len(window.offsets()) <= MOST_TAPS or not rows:
        raise NotLowered("a convolution for the library")
    lw.realize(x)

    def terms(index: Index) -> Iterator[tuple[int, int]]:
        """The input under each element of the window, 0 outside, and its weight."""
        for offset in window.offsets():
            at = window.place(index[2:], offset, window.padding)
            condition = inside(at, x.sizes[2:])
            factor = weight.load((index[1], ZERO, *exprs(offset)))
            value = load_where(condition, x, (*index[:2], *at), torch.float32)
            yield value, factor

    def compute(index: Index) -> int:
        return ops.weighted_sum(terms(index), conv.start(index))

    return lw.computed(out, compute, [x], cost=4 * len(window.offsets()), heavy=True)


# -- what they look like, and what eager refuses ---------------------------------------------------


def convolution_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> Tensor:
    x, weight, _, stride, padding, dilation, transposed, output_padding, groups = args
    if geometry.is_empty(x) or geometry.is_empty(weight):
        return probe(op, args, kwargs)
    if x.shape[1] != (weight.shape[0] if transposed else weight.shape[1] * groups):
        raise EagerRaises(
            f"{op}: an input {tuple(x.shape)} does not fit a weight {tuple(weight.shape)}"
        )
    rank = weight.dim() - 2

    def per_dim(values: Sequence[Any]) -> list[Any]:
        return list(values) * rank if len(values) == 1 else list(values)

    spatial = []
    for size, kernel, step, pad, spread, extra in zip(
        x.shape[2:], weight.shape[2:], *map(per_dim, (stride, padding, dilation, output_padding))
    ):
        reach = spread * (kernel - 1)
        if transposed:
            spatial.append((size - 1) * step - 2 * pad + reach + extra + 1)
        else:
            spatial.append((size + 2 * pad - reach - 1) // step + 1)
        if spatial[-1] < 1:
            raise EagerRaises(f"{op}: a kernel larger than the input")
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    sizes = (x.shape[0], channels, *spatial)
    # eager computes a contiguous one as an image of height 1, whose strides may happen to be such
    if rank == 1:
        x = (x if x.is_contiguous() else fresh(x.shape, x.dtype)).unsqueeze(2)
        wide = [
            [1, *stride],
            [0, *padding],
            [1, *dilation],
            transposed,
            [0, *output_padding],
            groups,
        ]
        if _convolved_channels_last(x, weight.unsqueeze(2), wide):
            strides = geometry.channels_last((*sizes[:2], 1, *sizes[2:]))
            return fresh(sizes, x.dtype, (*strides[:2], strides[3]))
        return fresh(sizes, x.dtype)
    last = _convolved_channels_last(
        x, weight, [stride, padding, dilation, transposed, output_padding, groups]
    )
    return fresh(sizes, x.dtype, geometry.channels_last(sizes) if last else None)


def _convolved_channels_last(x: Tensor, weight: Tensor, settings: list[Any]) -> bool:
    """Whether eager's convolution gives its result channels last.

    It does if an operand lies so, and the kernel that it chooses for these sizes knows of that
    layout.
    """
    likely = geometry.like_channels_last(x) or geometry.like_channels_last(weight)
    if not likely or any(
        isinstance(n, torch.SymInt) for t in (x, weight) for n in (*t.shape, *t.stride())
    ):
        return likely
    real = []
    for t in (x, weight):
        real.append(torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cpu"))
    backend = select_conv_backend(*real, None, *settings, None)
    chosen: Any = conv_determine_backend_memory_format  # whose stub knows one argument of its three
    return chosen(*real, backend) in (torch.channels_last, torch.channels_last_3d)


def convolution_refusal(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any,
    transposed: bool,
    groups: int, **_: Any,
) -> str:  # fmt: skip
    if min(*stride, *dilation, groups) < 1 or min(padding) < 0:
        return "a stride, dilation or number of groups below 1, or negative padding"
    if x.dim() != weight.dim() or x.dtype is not weight.dtype or weight.shape[0] % groups:
        return "an input and a weight of different ranks or types, or groups that do not divide"
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    if bias is not None and not geometry.expect_same_sizes(bias.shape, (channels,)):
        return "a bias of another size"
    return ""


OPS = (
    op(
        aten.convolution.default,
        meta=convolution_meta,
        refuses=convolution_refusal,
        cost=Cost.CONTRACTION,
        lower=convolution,
    ),
)
