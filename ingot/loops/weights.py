"""An operand of a contraction that is computed as it is summed, and is never in memory: attention's
weights, and the gradients of its scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from ingot.loops.expr import Expr, Symbol
from ingot.loops.ir import Access, Body


@dataclass(frozen=True)
class InnerProduct:
    """For each row and each step of the contraction's sum: left * right, summed over `depth` in
    float32.

    `left` depends on batch, rows and `depth`, `right` on batch, the reduced loop and `depth`.
    """

    name: str
    depth: Symbol
    left: Access
    right: Access

    def substitute(self, values: Mapping[Symbol, Expr], depth: Symbol) -> InnerProduct:
        left, right = self.left.substitute(values), self.right.substitute(values)
        return InnerProduct(self.name, depth, left, right)

    def with_buffers(self, rename: Callable[[str], str]) -> InnerProduct:
        left = replace(self.left, buffer=rename(self.left.buffer))
        return replace(self, left=left, right=replace(self.right, buffer=rename(self.right.buffer)))


TILE = 128  # rows, or steps


class TileList(NamedTuple):
    """The numbers of tiles, one after the other, and how many they are."""

    numbers: Access
    length: Access

    def substitute(self, values: Mapping[Symbol, Expr]) -> TileList:
        return TileList(self.numbers.substitute(values), self.length.substitute(values))

    def with_buffers(self, rename: Callable[[str], str]) -> TileList:
        numbers = replace(self.numbers, buffer=rename(self.numbers.buffer))
        return TileList(numbers, replace(self.length, buffer=rename(self.length.buffer)))


@dataclass(frozen=True)
class Tiles:
    """The tiles of steps that matter to a tile of rows, each of `TILE`.

    The batch's loops, the number `rows` of a tile of rows and the place `entry` lead to a tile's
    number. Conditions of places hold somewhere in a `partial` tile, everywhere in a `whole` one.
    """

    rows: Symbol
    entry: Symbol
    partial: TileList
    whole: TileList

    @property
    def accesses(self) -> list[Access]:
        return [*self.partial, *self.whole]

    def substitute(self, values: Mapping[Symbol, Expr]) -> Tiles:
        partial, whole = self.partial.substitute(values), self.whole.substitute(values)
        return replace(self, partial=partial, whole=whole)

    def with_buffers(self, rename: Callable[[str], str]) -> Tiles:
        partial, whole = self.partial.with_buffers(rename), self.whole.with_buffers(rename)
        return replace(self, partial=partial, whole=whole)


@dataclass(frozen=True)
class Beside:
    """Another sum over the same steps: the body's second result times `right`, into `target`."""

    column: Symbol
    right: Access
    target: Access

    def substitute(self, values: Mapping[Symbol, Expr], column: Symbol) -> Beside:
        values = {**values, self.column: column}
        return Beside(column, self.right.substitute(values), self.target.substitute(values))

    def with_buffers(self, rename: Callable[[str], str]) -> Beside:
        right = replace(self.right, buffer=rename(self.right.buffer))
        return Beside(self.column, right, replace(self.target, buffer=rename(self.target.buffer)))


@dataclass(frozen=True)
class Weights:
    """A contraction's left operand: what `body` makes of `products`, which it reads as scalars of
    their names.

    With `softmax` these are scores, and the operand is their softmax over the reduced loop. A row
    of nothing but -inf gives NaN, or zero with `zero_rows`. The logarithms of the sums of the
    exponentials of scores are written at `logarithms`, if anybody reads them; that of a row of
    nothing is -inf. Without `softmax`, `zero_rows` says that `body` makes zeros of such a row.
    Where there are `tiles`, what is not in their lists makes no difference. Without `softmax` there
    may be a sum `beside`.
    """

    products: tuple[InnerProduct, ...]
    body: Body
    softmax: bool
    zero_rows: bool
    logarithms: Access | None = None
    tiles: Tiles | None = None
    beside: Beside | None = None

    @property
    def accesses(self) -> list[Access]:
        """What is read beside the body's loads."""
        results = []
        for p in self.products:
            results += [p.left, p.right]
        if self.tiles is not None:
            results += self.tiles.accesses
        if self.beside is not None:
            results.append(self.beside.right)
        return results

    @property
    def reads(self) -> set[str]:
        names = self.body.reads
        for access in self.accesses:
            names.add(access.buffer)
        return names

    @property
    def writes(self) -> tuple[str, ...]:
        names = []
        if self.logarithms is not None:
            names.append(self.logarithms.buffer)
        if self.beside is not None:
            names.append(self.beside.target.buffer)
        return tuple(names)

    def substitute(self, values: Mapping[Symbol, Expr], inner: Mapping[Symbol, Symbol]) -> Weights:
        """With other symbols: `inner` are those for depths and for the columns beside."""
        products, logarithms, tiles, beside = [], self.logarithms, self.tiles, self.beside
        for p in self.products:
            products.append(p.substitute(values, inner[p.depth]))
        if logarithms is not None:
            logarithms = logarithms.substitute(values)
        if tiles is not None:
            tiles = tiles.substitute(values)
        if beside is not None:
            beside = beside.substitute(values, inner[beside.column])
        return replace(
            self,
            products=tuple(products),
            body=self.body.substitute(values),
            logarithms=logarithms,
            tiles=tiles,
            beside=beside,
        )

    def with_buffers(self, rename: Callable[[str], str]) -> Weights:
        products, logarithms, tiles, beside = [], self.logarithms, self.tiles, self.beside
        for p in self.products:
            products.append(p.with_buffers(rename))
        if logarithms is not None:
            logarithms = replace(logarithms, buffer=rename(logarithms.buffer))
        if tiles is not None:
            tiles = tiles.with_buffers(rename)
        if beside is not None:
            beside = beside.with_buffers(rename)
        return replace(
            self,
            products=tuple(products),
            body=self.body.with_buffers(rename),
            logarithms=logarithms,
            tiles=tiles,
            beside=beside,
        )
