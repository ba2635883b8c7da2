"""How the reduction of a product is cut into depths: what one chain of multiply-adds takes at most.

A cut depends on sizes alone, and so does the rounding of the sums. The innermost loops that lie
together in the right operand's memory, the taps, are within one depth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ingot.codegen.llvm import tiles
from ingot.loops.expr import Expr, Symbol, integer
from ingot.loops.ir import Access
from ingot.schedule.kernel import Product

DEPTH = 128  # steps of the reduction that one chain of multiply-adds takes: longer ones round worse
# Bytes of the right operand that a depth packs for a tile, at most, where the left one is copied
# too: a tile's share of both stays in the first-level cache.
PANEL = 24 << 10


class Depths:
    """The loops of a reduction: `outer` ones, the one that is `cut`, and those within a depth.

    A depth has `steps` iterations of the cut loop, which is the `inner` one, or, where that is
    short, the one around it, the `run`: then its points are the taps. `length` are its steps of
    the reduction, up to whole vectors; `whole` says that there is one depth.
    """

    def __init__(self, product: Product, tile: tiles.Tile) -> None:
        self.inner = product.reduced[-1]
        self.taps = _taps(product)
        self.tap_count = math.prod(s.extent.constant or 0 for s in self.taps)
        self.innermost = self.taps[-1] if self.taps else self.inner  # of the right operand
        self.outer = product.reduced[: -1 - len(self.taps)]
        self.run = _run(product, self.outer)
        self.cut, points = self.inner, self.tap_count
        if self.run is not None:
            points = self.inner.extent.constant or 1
            self.outer, self.cut, steps = self.outer[:-1], self.run, DEPTH // points
        elif product.copies:
            steps = _even_steps(self.inner, tile)
        else:
            steps = _steps(self.tap_count, tile.lanes)
        extent = self.cut.extent.constant
        self.whole = not self.outer and extent is not None and extent <= steps
        if self.whole and extent:
            self.steps = extent
        else:
            self.steps = steps
        self.length = -(-self.steps * points // tile.lanes) * tile.lanes
        if self.run is None:
            self.offset_count = self.tap_count
        else:
            self.offset_count = self.steps


def in_order(product: Product) -> tuple[Symbol, ...]:
    """The reduced loops, outermost first, as the multiply-adds run through them."""
    taps = _taps(product)
    *outer, inner = product.reduced
    return (*outer[: len(outer) - len(taps)], inner, *taps)


def coefficient(access: Access, symbol: Symbol) -> Expr:
    """How many elements an access moves with each step of a loop."""
    linear = access.index.linear((symbol,))
    assert linear is not None
    return linear[1].get(symbol, integer(0))


def _taps(product: Product) -> tuple[Symbol, ...]:
    """The reduced loops around the innermost one that lie within it in the right operand's memory.

    Their extents are constant, as those of a convolution's window, which lies within its channels:
    one depth packs them together.
    """
    taps: list[Symbol] = []
    stride = integer(product.panel or 1)
    for symbol in reversed(product.reduced[:-1]):
        if symbol.extent.constant is None or coefficient(product.right, symbol) is not stride:
            break
        taps.insert(0, symbol)
        stride = stride * symbol.extent
    if coefficient(product.right, product.reduced[-1]) is stride:
        return tuple(taps)
    return ()


def _run(product: Product, outer: Sequence[Symbol]) -> Symbol | None:
    """The loop around the innermost one if several of its points are within one depth.

    Each has all steps of a short innermost loop: they are its taps then.
    """
    extent = product.reduced[-1].extent.constant
    without_taps = len(outer) == len(product.reduced) - 1
    if outer and without_taps and extent is not None and 2 * extent <= DEPTH:
        return outer[-1]
    return None


def _steps(taps: int, lanes: int) -> int:
    """Steps of the innermost loop in one depth, whole vectors of them where there are many."""
    steps = max(1, DEPTH // taps)
    if steps < lanes // 2:
        return steps
    return -(-steps // lanes) * lanes


def _even_steps(reduced: Symbol, tile: tiles.Tile) -> int:
    """Steps of the depths where both operands are copied: about as many in each."""
    most = min(DEPTH, PANEL // (tile.width * tile.size) // 32 * 32)
    extent = reduced.extent.constant or most
    steps = -(-extent // -(-extent // most))
    return -(-steps // tiles.UNROLL) * tiles.UNROLL
