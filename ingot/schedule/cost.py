"""What a kernel costs, roughly: enough to decide how many threads are worth waking."""

from __future__ import annotations

from ingot.loops.expr import product
from ingot.schedule.fuse import estimate
from ingot.schedule.kernel import Kernel, Product, Stage

LANES = 8.0  # elements per vector operation, averaged over machines and types
NANOSECONDS_PER_OPERATION = 0.3
NANOSECONDS_PER_BYTE = 0.08  # of one core streaming from memory
NANOSECONDS_PER_PRODUCT = 0.01  # of a multiplication and addition in a contraction ...
NANOSECONDS_TO_PACK = 0.1  # ... and for each element of its right operand besides

# Vector operations per scalar op; everything else counts as one.
_WEIGHTS = {
    **dict.fromkeys(("load", "div", "reciprocal", "sqrt", "rsqrt", "floordiv", "remainder", "fmod"), 4.0),
    **dict.fromkeys(("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sigmoid"), 15.0),
    **dict.fromkeys(("tanh", "erf", "erfc", "gelu"), 15.0),
    **dict.fromkeys(
        ("sin", "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "asinh", "acosh", "atanh", "pow"), 30.0
    ),
    **dict.fromkeys(("constant", "scalar", "index"), 0.0),
}


def work_per_point(kernel: Kernel) -> float:
    """Nanoseconds that one point of the collapsed parallel loops takes on one core."""
    if kernel.product is not None:
        return _block_work(kernel, kernel.product)
    rest = kernel.loops[kernel.parallel :]
    repeats = estimate(product(s.extent for s in rest))
    return repeats * sum(_stage_work(s, vectorized=bool(s.loops) or kernel.vector is not None) for s in kernel.stages)


def _block_work(kernel: Kernel, product_: Product) -> float:
    """Nanoseconds of one block, of average size."""
    blocks = estimate(product_.row_blocks * product_.column_blocks)
    (stage,) = kernel.stages
    rows, columns, depth = (
        estimate(product(s.extent for s in loops)) for loops in (product_.rows, product_.columns, product_.reduced)
    )
    packs = estimate(product_.row_blocks) * NANOSECONDS_TO_PACK
    products = columns * depth * (max(rows, 8) * NANOSECONDS_PER_PRODUCT + packs)
    return (products + _stage_work(stage, vectorized=True)) / blocks


def _stage_work(stage: Stage, vectorized: bool) -> float:
    points = estimate(product(s.extent for s in stage.loops))
    operations = (
        sum(_WEIGHTS.get(i.op, 1.0) for i in stage.body.instructions) + 2 * len(stage.stores) + len(stage.reductions)
    )
    moved = sum(i.dtype.itemsize for i in stage.body.loads) + 4 * len(stage.stores)
    per_point = operations * NANOSECONDS_PER_OPERATION / (LANES if vectorized else 1.0)
    return points * max(per_point, moved * NANOSECONDS_PER_BYTE)
