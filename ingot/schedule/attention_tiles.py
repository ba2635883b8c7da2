"""The tiles of attention on a GPU: how many queries a block has, and how many keys a step."""

from __future__ import annotations

from collections.abc import Mapping

from ingot.loops.ir import Buffer, Contraction
from ingot.schedule.blocks import power_of_two
from ingot.schedule.kernel import Tiling

NARROWEST = 16  # rows, columns and steps of a product of the matrix units, at least
ROWS = 128
STEP = 64
WIDE = 128  # elements of heads whose tiles take more warps


def tiling_of_attention(node: Contraction, buffers: Mapping[str, Buffer]) -> Tiling:
    """The tiling of a contraction with weights. All of a query and of a value is in one block."""
    assert node.weights is not None
    queries = node.rows[0].extent.constant or 1
    width = power_of_two(max(NARROWEST, node.columns[0].extent.constant or 1))
    depths = []
    for p in node.weights.products:
        depths.append(power_of_two(max(NARROWEST, p.depth.extent.constant or 1)))
    depth = max(depths)
    rows = min(ROWS, power_of_two(max(NARROWEST, queries)))
    step, warps, stages = STEP, 4, 3
    if len(depths) > 1:
        rows, stages = min(rows, 64), 2
    if buffers[node.left.buffer].dtype.itemsize > 2:
        rows, step, stages = min(rows, 64), 32, 2
    if max(width, depth) >= WIDE and rows == ROWS:
        warps = 8
    return Tiling(rows, width, step, stages, warps)
