"""Products of few rows by a matrix whose rows are weights: loop nests that read each weight once.

Such products, those of decoding one token, take as long as reading the weights. So these are read
in the dtype that they have in memory, and made numbers of as they are multiplied: halves, or
integers of 8 bits or fewer with scales. Sums are float32's for halves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from ingot.loops import ops
from ingot.loops.expr import ONE, ZERO, Expr, FloorDiv, Mod, integer
from ingot.loops.ir import Body
from ingot.loops.lowering.context import LARGEST_BODY, Lowering
from ingot.loops.lowering.values import Index, LoopTensor, Spec, compute_dtype, loops_over
from ingot.loops.spaces import contiguous_strides

# Up to so many rows, sums along memory that is contiguous are bound by reading it, and are loop
# nests. Measured on an Intel Xeon with AMX, 2 cores, x [m, k] times weight [n, k] transposed, us,
# as a nest and in MKL: float32 2x768x768 159, 237; 3x8192x2048 3030, 3030; 4x2048x32000 13800,
# 21900; brain floats 3x768x768 151, 440; 3x2048x32000 6100, 9200; 4x2048x32000 9400, 8800.
FEW_ROWS = 4
FEW_ROWS_OF_HALVES = 3  # of more rows, the library multiplies tiles
# Of several products at a time, the rows of each are outer points, which read the weights again.
FEW_ROWS_EACH, FEW_ROWS_EACH_OF_HALVES = 2, 1
# Weights that are computed as they are read, once for all of these rows.
FEW_ROWS_OF_COMPUTED = 8
MOST_TOGETHER = 8  # numbers that are packed in one element
FEWEST_STEPS = 8  # of the innermost loop, which fills the lanes of a vector


class Steps(NamedTuple):
    """The loops over the steps of a sum, the outermost first, by their extents. At each of their
    points are so many steps, `together`."""

    extents: tuple[Expr, ...]
    together: int

    def at(self, index: Sequence[Expr], number: int) -> Expr:
        """The step that is the `number`th of those at a point."""
        step: Expr = ZERO
        for extent, i in zip(self.extents, index):
            step = step * extent + i
        return step * self.together + number


Finish = Callable[[Spec, LoopTensor, int | None], LoopTensor]
"""What is made of sums, for what the result looks like: all rows, or the one of a number."""
Join = Callable[[Lowering, Spec, Sequence[LoopTensor], int], LoopTensor]
"""Puts tensors one after the other along a dimension."""


def product(
    lw: Lowering, out: Spec, left: LoopTensor, right: LoopTensor, finish: Finish, join: Join
) -> LoopTensor | None:
    """left [..., m, k] times right [..., k, n] as sums, float32's for halves.

    None where rows are many, or memory is not contiguous along the sum."""
    rows = out.sizes[-2].constant
    if rows is None or rows > _most_rows(out, right):
        return None
    if right.buffer is None and not _may_be_read_as_made(right):
        return None
    steps = _steps(right, left.sizes[-1])
    if steps is None or lw.view(left).strides[-1] is not ONE:
        return None
    if rows == 1 or len(out.sizes) != 2:
        return finish(out, _sums(lw, out, left, right, steps), None)
    spec = out._replace(sizes=(ONE, out.sizes[-1]))
    results = []
    for row in range(rows):
        results.append(finish(spec, _sums(lw, spec, left, right, steps, row), row))
    return lw.realize(join(lw, out, results, 0))


def _most_rows(out: Spec, right: LoopTensor) -> int:
    alone, halves = len(out.sizes) == 2, right.dtype in ops.HALVES
    if right.buffer is None:
        return FEW_ROWS_OF_COMPUTED if alone else 1
    if alone:
        return FEW_ROWS_OF_HALVES if halves else FEW_ROWS
    return FEW_ROWS_EACH_OF_HALVES if halves else FEW_ROWS_EACH


def _sums(
    lw: Lowering, out: Spec, left: LoopTensor, right: LoopTensor, steps: Steps,
    only: int | None = None,
) -> LoopTensor:  # fmt: skip
    """The product, or `only` one row of it: nests of several rows are one kernel, which reads each
    weight once."""
    dtype = compute_dtype(out.dtype)
    sizes = (*out.sizes, *steps.extents)
    count = len(out.sizes)

    def compute(index: Index) -> int:
        *batch, row, column = index[:count]
        if only is not None:
            row = integer(only)
        terms = []
        for number in range(steps.together):
            at = steps.at(index[count:], number)
            x = left.load((*batch, row, at))
            terms.append((x, right.load((*batch, at, column))))
        return ops.weighted_sum(terms, ops.constant(0.0, dtype))

    products = LoopTensor(sizes, contiguous_strides(sizes), dtype, compute)
    products.origin = right.root.origin
    dims = range(count, len(sizes))
    return lw.reduce(out._replace(dtype=dtype), "sum", products, dims, dtype, lambda value: value)


def _may_be_read_as_made(right: LoopTensor) -> bool:
    """Whether weights that are not in memory are computed as they are multiplied."""
    root = right.root
    return not (root.heavy or root.finishes)


def _steps(right: LoopTensor, extent: Expr) -> Steps | None:
    """The steps of a sum along which a matrix [..., k, n] is read in order, if there are any."""
    steps = Steps((extent,), 1)
    (at,) = loops_over(steps.extents, "k")
    body = _body(right, at)
    divisors = sorted(set(_divisors(_places(body), at)))
    if divisors:
        taken_apart = _taken_apart(extent.constant, divisors)
        if taken_apart is None:
            return None
        steps = taken_apart
    loops = loops_over(steps.extents, "k")
    for number in range(steps.together):
        if not _is_read_in_order(_body(right, steps.at(loops, number)), loops[-1]):
            return None
    if right.buffer is None and not (steps.extents[-1].bounds[0] or 0) >= FEWEST_STEPS:
        return None
    return steps


def _taken_apart(extent: int | None, divisors: Sequence[int]) -> Steps | None:
    """The loops over `extent` steps in whose indices nothing is divided by one of the divisors,
    which increase; None if there are none."""
    together, *larger = divisors
    if together > MOST_TOGETHER:
        together, larger = 1, list(divisors)
    extents, inner = [], together
    for size in (*larger, extent):
        if size is None or size % inner:
            return None
        extents.append(integer(size // inner))
        inner = size
    return Steps(tuple(extents[::-1]), together)


def _body(right: LoopTensor, at: Expr) -> Body:
    """What computes an element of the step `at`."""
    *batch, column = loops_over([*right.sizes[:-2], right.sizes[-1]])
    with ops.recording() as recorder:
        return recorder.body(right.load((*batch, at, column)))


def _places(body: Body) -> Iterator[Expr]:
    """The index expressions of a body."""
    yield from body.load_places
    for i in body.instructions:
        if i.op == "index":
            yield i.attrs[0]


def _divisors(places: Iterator[Expr], at: Expr) -> Iterator[int]:
    """The constants by which what depends on `at` is divided."""
    waiting = list(places)
    while waiting:
        for _, atoms in waiting.pop().terms:
            for atom in atoms:
                if isinstance(atom, (FloorDiv, Mod)) and at in atom.left.symbols:
                    waiting.append(atom.left)
                    yield atom.right.constant or 0


def _is_read_in_order(body: Body, at: Expr) -> bool:
    """Whether elements are read one after the other, or again, along the loop `at`."""
    if body.lookups or len(body.instructions) > LARGEST_BODY:
        return False
    steps = set()
    for place in body.load_places:
        if at in place.symbols:
            steps.add(place.step(at))
    return steps == {ONE} or at is ZERO
