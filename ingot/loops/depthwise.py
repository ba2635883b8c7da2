"""The gradient of a depthwise convolution's weight, in parts, for a GPU's kernel that walks down
images. `codegen/triton/depthwise.py` writes it; its meaning is that of a plain reduction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ingot.loops import ops
from ingot.loops.expr import Expr, as_expr, loop_symbol
from ingot.loops.ir import Body, Node, Reduction, View, buffers_of
from ingot.loops.spaces import address_of

TILE = 256  # elements of the results that a block of threads has, columns by channels, and ...
WARPS = 2  # ... its warps, which makes four elements a thread: registers have room for no more
MOST_CHANNELS = 32  # of a tile: two or four whole sectors of memory
PROGRAMS = {9: 2112, 25: 1056}
"""How many blocks of threads sum at a time, at most, by the elements of the largest such window:
what an H200 has room for. Of small windows each has few registers."""
SHORTEST = 14  # rows of a piece of an image: it loads others above and below


class Piece(NamedTuple):
    """A block of the results of a convolution, of one image: so many rows of so many columns."""

    rows: int
    columns: int


def parts_of(sizes: Sequence[Expr], taps: int) -> tuple[Piece, int]:
    """The pieces that results of these sizes are cut into, and the number of parts."""
    images, (channels, rows, columns) = sizes[0].constant, map(_int, sizes[1:])
    side = min(MOST_CHANNELS, 1 << (channels - 1).bit_length())
    programs = next(count for most, count in PROGRAMS.items() if taps <= most)
    programs = max(1, programs // -(-channels // side))
    across = -(-columns * side // TILE)
    if images is None:
        return Piece(rows, TILE // side), programs
    strips = max(1, min(programs // (images * across), rows // SHORTEST))
    height = -(-rows // strips)
    pieces = images * across * -(-rows // height)
    turns = -(-pieces // min(programs, pieces))
    return Piece(height, TILE // side), -(-pieces // turns)


@dataclass(frozen=True)
class DepthwiseGradient(Node):
    """For each part, element of the window and channel, the sum of the `tangent` times what the
    window shows of the `images`, in float32.

    Both views are (image, channel, row, column), channels innermost and without gaps; `target` is
    (part, row and column of the window, channel), contiguous. The window moves by `stride`, and
    begins `padding` before the images, both along rows and along columns. The results are cut into
    pieces, of which number k belongs to the part k modulo the number of parts.
    """

    images: View
    tangent: View
    target: View
    stride: tuple[int, int]
    padding: tuple[int, int]
    piece: Piece

    def reads(self) -> set[str]:
        return buffers_of((self.images, self.tangent))

    def writes(self) -> tuple[str, ...]:
        return (self.target.buffer,)

    @property
    def pieces_of_image(self) -> tuple[int, int]:
        """How many there are, down and across."""
        rows, columns = map(_int, self.tangent.sizes[2:])
        return -(-rows // self.piece.rows), -(-columns // self.piece.columns)

    @property
    def pieces(self) -> Expr:
        """How many there are in all."""
        return self.tangent.sizes[0] * math.prod(self.pieces_of_image)

    def place(self, piece: Expr) -> tuple[Expr, Expr, Expr]:
        """The image of a piece, by its number, and the first of its rows and of its columns."""
        down, across = self.pieces_of_image
        strip = piece // across
        return strip // down, strip % down * self.piece.rows, piece % across * self.piece.columns

    @property
    def sums(self) -> Reduction:
        """The node as a reduction, which is its meaning."""
        parts, height, width, channels = self.target.sizes
        part, channel = loop_symbol("part", parts), loop_symbol("c", channels)
        i, j = loop_symbol("i", height), loop_symbol("j", width)
        turns = (self.pieces + (parts - 1)) // parts
        turn = loop_symbol("turn", turns)
        y, x = loop_symbol("y", self.piece.rows), loop_symbol("x", self.piece.columns)
        piece = turn * parts + part
        image, top, left = self.place(piece)
        at = [image, channel, top + y, left + x]
        under = list(at)
        for d, tap in enumerate((i, j)):
            under[2 + d] = at[2 + d] * self.stride[d] + (tap - self.padding[d])
        with ops.recording() as recorder:
            known = ops.apply("lt", ops.index(piece), ops.index(self.pieces))
            there = _load(self.tangent, at, known)
            body: Body = recorder.body(ops.apply("mul", _load(self.images, under, known), there))
        index = address_of((part, i, j, channel), self.target.strides, self.target.offset)
        loops, reduced = (part, i, j, channel), (turn, y, x)
        return Reduction(
            self.name, self.origin, loops, reduced, "sum", body, self.target.buffer, index,
            torch.float32,
        )  # fmt: skip


def _load(view: View, index: list[Expr], condition: int) -> int:
    """An element in float32, of images that are `condition`ally there; 0 beside the image."""
    for place, size in zip(index[2:], view.sizes[2:]):
        for comparison, bound in (("ge", as_expr(0)), ("lt", size)):
            holds = ops.apply(comparison, ops.index(place), ops.index(bound))
            condition = ops.apply("logical_and", condition, holds)
    offset = address_of(index, view.strides, view.offset)
    with ops.masked(condition):
        return ops.to(ops.load(view.buffer, offset, view.dtype), torch.float32)


def _int(size: Expr) -> int:
    assert size.constant is not None
    return size.constant
