"""How many floating-point operations a kernel's products take, from the shapes of its nodes.

What is no product is bound by memory on every machine, and counts nothing here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Shape = Sequence[int]


def _product(operand: int) -> Callable[[Shape, Sequence[Shape]], int]:
    """2 m n k: each element of the result is a sum over the last dimension of an operand."""

    def count(result: Shape, inputs: Sequence[Shape]) -> int:
        return 2 * math.prod(result) * inputs[operand][-1]

    return count


def _convolution(result: Shape, inputs: Sequence[Shape]) -> int:
    """Each element of the result is a sum over a filter: (out, in / groups, *window)."""
    return 2 * math.prod(result) * math.prod(inputs[1][1:])


def _attention(result: Shape, inputs: Sequence[Shape]) -> int:
    """Scores, and sums that they weigh: both are products over (queries, keys)."""
    query, key, value = inputs[:3]
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


FLOPS: dict[str, Callable[[Shape, Sequence[Shape]], int]] = {
    "mm": _product(0),
    "bmm": _product(0),
    "addmm": _product(1),
    "baddbmm": _product(1),
    "linear": _product(0),
    "convolution": _convolution,
    "scaled_dot_product_attention": _attention,
    "_scaled_dot_product_flash_attention": _attention,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_efficient_attention": _attention,
}
"""By the name of an ATen op, from the shapes of its result and of its tensors."""


def op_flops(op: str, result: Shape | None, inputs: Sequence[Shape | None]) -> int | None:
    """The operations of one op; 0 of what is no product, None where a shape is not known."""
    count = FLOPS.get(short_op(op))
    if count is None:
        return 0
    shapes = [shape for shape in inputs if shape is not None]
    if result is None or len(shapes) != len(inputs):
        return None
    try:
        return count(result, shapes)
    except (IndexError, ValueError):
        return None


def short_op(op: str) -> str:
    """An op without its namespace and overload."""
    parts = re.split(r"::|\.", op)
    return parts[1] if len(parts) > 1 else op


def program_flops(program: Mapping[str, Any]) -> list[int | None]:
    """The operations of each kernel of a program, as plain data; None where they are not known."""
    nodes = {node["name"]: node for node in program["nodes"]}
    buffers = {buffer["name"]: buffer for buffer in program["buffers"]}
    fused = [kernel for kernel in program["kernels"] if kernel["kind"] == "fused"]
    if fused and not any(kernel["loops"] for kernel in fused):
        nodes = {}  # they are not those that the kernels were made of
    return [_kernel_flops(kernel, nodes, buffers) for kernel in program["kernels"]]


Named = Mapping[str, Mapping[str, Any]]


def _kernel_flops(kernel: Mapping[str, Any], nodes: Named, buffers: Named) -> int | None:
    products = [short_op(op) for op in kernel["ops"] if short_op(op) in FLOPS]
    if not products:
        return 0
    found = [nodes[name] for name in kernel["nodes"] if name in nodes]
    if sorted(node["op"] for node in found) == sorted(kernel["ops"]):
        return _of_nodes(found, nodes)
    if len(products) == 1 and products[0] in ("mm", "addmm", "linear"):
        return _of_buffers(kernel, buffers)
    return None


def _of_nodes(found: Sequence[Mapping[str, Any]], nodes: Named) -> int | None:
    total = 0
    for node in found:
        inputs = [shape_of(nodes[name]) for name in node["inputs"] if name in nodes]
        flops = op_flops(node["op"], shape_of(node), inputs)
        if flops is None:
            return None
        total += flops
    return total


def _of_buffers(kernel: Mapping[str, Any], buffers: Named) -> int | None:
    """Those of one matrix product, by the matrices that are read and what is written."""
    reads = [shape_of(_as_node(buffers[name])) for name in kernel["buffers_read"]]
    for name in kernel["buffers_written"]:
        result = shape_of(_as_node(buffers[name]))
        for matrix in reads:
            if not result or matrix is None or len(matrix) != 2:
                continue
            columns = result[-1]
            for depth, other in (tuple(matrix), tuple(reversed(matrix))):
                rows = [math.prod(result) // columns, depth]
                if other == columns and _has_elements(reads, math.prod(rows)):
                    return 2 * math.prod(result) * depth
    return None


def _has_elements(shapes: Sequence[Shape | None], count: int) -> bool:
    return count in [math.prod(shape) for shape in shapes if shape is not None]


def _as_node(buffer: Mapping[str, Any]) -> dict[str, Any]:
    return {"values": [buffer["value"]]}


def shape_of(node: Mapping[str, Any]) -> list[int] | None:
    """The sizes of a node's first tensor, as "float32[4, 8]" has them; None if one varies."""
    if not node["values"]:
        return None
    sizes = re.findall(r"[^\[\], ]+", node["values"][0].partition("[")[2])
    if not all(size.isdigit() for size in sizes):
        return None
    return list(map(int, sizes))
