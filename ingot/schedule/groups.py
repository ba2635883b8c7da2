"""What fusion works on: groups of nodes that share a kernel, and nodes laid over common loops.

An `Overlay` is the nodes of a group over the loops of its kernel; `overlay` makes it, or says that
there are no such loops.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from ingot.loops.expr import Expr, Symbol, product
from ingot.loops.ir import Node, Reduction
from ingot.schedule.epilogue import Prologues
from ingot.schedule.kernel import Tiling
from ingot.schedule.nests import ALIKE, Compute, Shape, fresh_loops, inner_loops, laid_over, refine

ASSUMED_SIZE = 256  # what a size symbol counts for where a number is needed


@dataclass(frozen=True)
class Overlay:
    """Nodes laid over common outer loops; `inner[k]` are the further loops of member k. `run` is
    how many neighbouring outer points add up their sums of columns (`columns`), where members are
    such sums."""

    outer: tuple[Symbol, ...]
    members: tuple[Compute, ...]
    inner: tuple[tuple[Symbol, ...], ...]
    run: int = 0

    def loops(self, k: int) -> tuple[Symbol, ...]:
        """All loops of member k."""
        return self.outer + self.inner[k]


@dataclass(eq=False)
class Group:
    """Nodes that share a kernel (or one library call), and the buffers they touch. `points` is the
    number of outer points, `before` holds the groups that must run first. `scatters` says whether
    one of the nodes does, `work` counts their instructions, `traffic` the bytes of the buffers. On
    a GPU some are `on_host`, the CPU, and a contraction has a `tiling`, and may have `prologues`:
    what computes its left and its right operand, over its loops."""

    id: int
    positions: list[int]
    members: list[Node]
    reads: set[str]
    writes: set[str]
    before: set[int]
    points: Expr | None = None
    overlay: Overlay | None = None
    scatters: bool = False
    on_host: bool = False
    work: int = 0
    traffic: float = 0.0
    tiling: Tiling | None = None
    prologues: Prologues = (None, None)

    @property
    def fusible(self) -> bool:
        return self.points is not None

    @property
    def reduces(self) -> bool:
        return any(isinstance(m, Reduction) for m in self.members)

    @property
    def touches(self) -> set[str]:
        return self.reads | self.writes


def touched_by(groups: Iterable[Group]) -> set[str]:
    """The buffers that groups read or write."""
    return set().union(*(group.touches for group in groups))


Lay = Callable[[Compute, tuple[Symbol, ...], tuple[Symbol, ...]], Compute]


def overlay(members: Sequence[Compute], points: Expr, lay: Lay = laid_over) -> Overlay | None:
    """Lay the members over outer loops of `points` points, each by `lay`, or None if one of them
    cannot be.

    Members whose inner parts have equally many elements get the same inner loops, so that their
    indices can be compared.
    """
    common = _common_loops(tuple([(m.loops, inner_loops(m)) for m in members]), points)
    if common is None:
        return None
    outer, inner = common
    return Overlay(outer, tuple([lay(m, outer, loops) for m, loops in zip(members, inner)]), inner)


@lru_cache(ALIKE)
def _common_loops(
    nests: tuple[tuple[tuple[Symbol, ...], tuple[Symbol, ...]], ...], points: Expr
) -> tuple[tuple[Symbol, ...], tuple[tuple[Symbol, ...], ...]] | None:
    """Outer loops of `points` points for nests of these loops and reduced loops, and the inner
    loops of each."""
    fits = []
    for loops, reduced in nests:
        fit = Shape.of_loops(loops, reduced).over(points)
        if fit is None:
            return None
        fits.append(fit)
    if points.constant != 1:
        outer: list[Expr] | None = [points]
    else:
        outer = []
    inner: dict[Expr, list[Expr]] = {}
    for outer_extents, inner_extents in fits:
        if outer is not None:
            outer = refine(outer, outer_extents)
        else:
            outer = None
        numel = product(inner_extents)
        refined = refine(inner.get(numel, [numel]), inner_extents)
        if outer is None or refined is None:
            return None
        inner[numel] = refined
    assert outer is not None
    return fresh_loops("o", outer), tuple(
        [fresh_loops("r", inner[product(extents)]) for _, extents in fits]
    )


def estimate(e: Expr) -> float:
    """The value of a size expression, with ASSUMED_SIZE for every symbol, or near it where a
    difference divides."""
    if e.constant is not None:
        return e.constant
    symbols = sorted(e.symbols, key=str)
    for step in (0, 1, -1):
        with contextlib.suppress(ZeroDivisionError):
            value = e.evaluate({s: ASSUMED_SIZE + step * k for k, s in enumerate(symbols)})
            if value >= 0:
                return value
    return ASSUMED_SIZE
