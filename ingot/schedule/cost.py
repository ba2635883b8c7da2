"""What a kernel costs, roughly: enough to decide how many threads are worth waking."""

from __future__ import annotations

from ingot.loops.expr import Expr, as_expr, integer, maximum
from ingot.loops.ir import Body, Instruction
from ingot.loops.lowering.cost import CORES, FUNCTIONS
from ingot.loops.ops import DIVISION, HALVES, cost
from ingot.loops.spaces import points_of
from ingot.schedule.kernel import Kernel, Product, Stage

# What one core of a present processor takes. Threads are a question where all lies in its caches:
# what comes from memory takes three times as long, and has work for all of them.
NANOSECONDS_PER_OPERATION = 0.3  # of a single element ...
NANOSECONDS_PER_VECTOR_BYTE = 0.0025  # ... and for each byte of one in a vector
NANOSECONDS_PER_BYTE = 0.012
# of a multiplication and addition in a contraction; cores take 0.01 to 0.02 ...
NANOSECONDS_PER_PRODUCT = 0.015
WEIGHT = 32  # products that take as long as a weight of attention
NANOSECONDS_TO_PACK = 0.1  # ... and for each element of its right operand besides


def work_per_point(kernel: Kernel) -> float | Expr:
    """What one point of the collapsed parallel loops takes on one core: nanoseconds, or an
    expression of picoseconds where it depends on sizes."""
    if kernel.product is not None:
        work = _block_work(kernel, kernel.product)
    else:
        stages = []
        for s in kernel.stages:
            stages.append(_stage_work(s, vectorized=bool(s.loops) or kernel.vector is not None))
        work = points_of(kernel.loops[kernel.parallel :]) * sum(stages, integer(0))
    return nanoseconds(work)


def operations_of(body: Body) -> float:
    """How many simple operations a body amounts to."""
    return sum(cost(i.op) for i in body.instructions)


def nanoseconds(picoseconds: Expr) -> float | Expr:
    known = picoseconds.constant
    if known is None:
        return picoseconds
    return known / 1000


def _block_work(kernel: Kernel, product_: Product) -> Expr:
    """Picoseconds of one block, of average size."""
    (stage,) = kernel.stages
    loops = product_.rows, product_.columns, product_.reduced
    rows, columns, depth = map(points_of, loops)
    packs = product_.row_blocks * round(1000 * NANOSECONDS_TO_PACK)
    if product_.weights is not None:
        for p in product_.weights.products:
            columns = columns + p.depth.extent
        columns = columns + WEIGHT
    products = columns * depth * (maximum(rows, 8) * round(1000 * NANOSECONDS_PER_PRODUCT) + packs)
    blocks = maximum(product_.row_blocks * product_.column_blocks, 1)
    return (products + _stage_work(stage, vectorized=True)) // blocks


def _stage_work(stage: Stage, vectorized: bool) -> Expr:
    """Picoseconds of one point of the outer loops."""
    points = as_expr(points_of(stage.loops))
    operations, functions = 2.0 * len(stage.stores) + len(stage.reductions), 0.0
    for i in stage.body.instructions:
        known = _measured(i) if vectorized else 0.0
        functions += known
        if not known:
            operations += cost(i.op)
    moved = sum(i.dtype.itemsize for i in stage.body.loads)
    for store in stage.stores:
        moved += stage.body.instructions[store.value].dtype.itemsize
    per_operation = NANOSECONDS_PER_OPERATION
    if vectorized:
        per_operation = NANOSECONDS_PER_VECTOR_BYTE * _computed_bytes(stage)
    per_point = operations * per_operation + functions
    return points * round(1000 * max(per_point, moved * NANOSECONDS_PER_BYTE))


def _computed_bytes(stage: Stage) -> int:
    """Bytes of an element of the widest type that a stage computes with; halves become floats."""
    widest = 1
    for i in stage.body.instructions:
        if i.dtype in HALVES:
            widest = max(widest, 4)
        elif i.op not in ("index", "indirect"):
            widest = max(widest, i.dtype.itemsize)
    return widest


def _measured(i: Instruction) -> float:
    """Nanoseconds of a function of an element in a vector on one core; 0 where it is not known."""
    times = FUNCTIONS.get((i.op, i.dtype))
    if times is None or cost(i.op) < DIVISION:  # memory took longer than what is simple
        return 0.0
    return CORES * times.ours
