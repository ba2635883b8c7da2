"""The tiles of attention on a GPU: how many queries a block has, and how many keys a step."""

from __future__ import annotations

from collections.abc import Mapping

from ingot.loops.ir import Buffer, Contraction
from ingot.schedule.blocks import power_of_two
from ingot.schedule.kernel import Tiling

NARROWEST = 16  # rows, columns and steps of a product of the matrix units, at least
ROWS = 64
STEP = 64
WIDE = 128  # elements of heads whose tiles take more warps


def tiling_of_attention(node: Contraction, buffers: Mapping[str, Buffer]) -> Tiling:
    """The tiling of a contraction with weights. All of a query and of a value is in one block."""
    assert node.weights is not None
    queries = node.rows[0].extent.constant or 2 * ROWS
    width = power_of_two(max(NARROWEST, node.columns[0].extent.constant or 1))
    depths = []
    for p in node.weights.products:
        depths.append(power_of_two(max(NARROWEST, p.depth.extent.constant or 1)))
    rows, step, warps, stages = ROWS, STEP, 4, 3
    if max(width, *depths) < WIDE:
        if node.weights.beside is not None:
            step, stages = 2 * STEP, 2
        elif len(depths) > 1 and node.weights.tiles is not None:
            stages = 2
    elif len(depths) > 1:
        stages = 2
    else:
        rows, warps = 2 * ROWS, 8
    if buffers[node.left.buffer].dtype.itemsize > 2:
        rows, step, warps, stages = ROWS, 32, 4, 2
    return Tiling(min(rows, power_of_two(max(NARROWEST, queries))), width, step, stages, warps)
