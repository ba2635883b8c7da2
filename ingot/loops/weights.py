"""An operand of a contraction that is computed as it is summed, and is never in memory: attention's
weights, and the gradients of its scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

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


@dataclass(frozen=True)
class Weights:
    """A contraction's left operand: what `body` makes of `products`, which it reads as scalars of
    their names.

    With `softmax` these are scores, and the operand is their softmax over the reduced loop. A row
    of nothing but -inf gives NaN, or zero with `zero_rows`. The logarithms of the sums of the
    exponentials of scores are written at `logarithms`, if anybody reads them; that of a row of
    zeros is zero. Without `softmax`, `zero_rows` says that `body` makes zeros of such a row.
    """

    products: tuple[InnerProduct, ...]
    body: Body
    softmax: bool
    zero_rows: bool
    logarithms: Access | None = None

    @property
    def accesses(self) -> list[Access]:
        """What is read beside the body's loads."""
        results = []
        for p in self.products:
            results += [p.left, p.right]
        return results

    @property
    def reads(self) -> set[str]:
        names = self.body.reads
        for access in self.accesses:
            names.add(access.buffer)
        return names

    @property
    def writes(self) -> tuple[str, ...]:
        if self.logarithms is None:
            return ()
        return (self.logarithms.buffer,)

    def substitute(self, values: Mapping[Symbol, Expr], depths: Mapping[Symbol, Symbol]) -> Weights:
        products, logarithms = [], self.logarithms
        for p in self.products:
            products.append(p.substitute(values, depths[p.depth]))
        if logarithms is not None:
            logarithms = logarithms.substitute(values)
        return replace(
            self,
            products=tuple(products),
            body=self.body.substitute(values),
            logarithms=logarithms,
        )

    def with_buffers(self, rename: Callable[[str], str]) -> Weights:
        logarithms = self.logarithms
        if logarithms is not None:
            logarithms = replace(logarithms, buffer=rename(logarithms.buffer))
        products = []
        for p in self.products:
            products.append(p.with_buffers(rename))
        body = self.body.with_buffers(rename)
        return replace(self, products=tuple(products), body=body, logarithms=logarithms)
