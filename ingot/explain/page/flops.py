"""How many floating-point operations a kernel's products take, from the shapes of its nodes.

What is no product is bound by memory on every machine, and counts nothing here.
"""

from __future__ import annotations

import itertools
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
    """The operations of each kernel of a program, as plain data; None where they are not known.

    A product that several kernels are for, as those that copy its operands, is the last one's.
    """
    kernels = program["kernels"]
    nodes = {node["name"]: node for node in program["nodes"]}
    buffers = {buffer["name"]: buffer for buffer in program["buffers"]}
    fused = [kernel for kernel in kernels if kernel["kind"] == "fused"]
    if fused and not any(kernel["loops"] for kernel in fused):  # they were made of other nodes
        return [_of_buffers(kernel, buffers) for kernel in kernels]
    owners = {}
    for kind in ("fused", "extern"):
        for number, kernel in enumerate(kernels):
            if kernel["kind"] == kind:
                owners.update(dict.fromkeys(kernel["nodes"], number))
    counts: list[int | None] = [0] * len(kernels)
    for name, number in owners.items():
        count, before = _of_node(nodes.get(name), nodes), counts[number]
        counts[number] = None if count is None or before is None else before + count
    return counts


Named = Mapping[str, Mapping[str, Any]]


def _of_node(node: Mapping[str, Any] | None, nodes: Named) -> int | None:
    if node is None:
        return None
    inputs = [shape_of(nodes[name]) for name in node["inputs"] if name in nodes]
    return op_flops(node["op"], shape_of(node), inputs)


def _of_buffers(kernel: Mapping[str, Any], buffers: Named) -> int | None:
    """Those of one matrix product, by the matrices that are read and what is written."""
    products = [short_op(op) for op in kernel["ops"] if short_op(op) in FLOPS]
    if not products:
        return 0
    if products not in (["mm"], ["addmm"], ["linear"]):
        return None
    reads = [_matrix(buffers[name]) for name in kernel["buffers_read"]]
    for name in kernel["buffers_written"]:
        result = _matrix(buffers[name])
        for left, right in itertools.permutations(filter(None, reads), 2):
            depth = _shared(left, right, result)
            if result is not None and depth is not None:
                return 2 * math.prod(result) * depth
    return None


def _matrix(buffer: Mapping[str, Any]) -> tuple[int, int] | None:
    """The rows and columns of a buffer, of whose dimensions all but the last are rows."""
    shape = shape_of({"values": [buffer["value"]]})
    if not shape or not math.prod(shape):
        return None
    return math.prod(shape[:-1]), shape[-1]


def _shared(left: Shape, right: Shape, result: Shape | None) -> int | None:
    """The dimension that is summed over, where a product of two matrices, transposed or not, has
    this result."""
    for rows, depth in (left, left[::-1]):
        for height, columns in (right, right[::-1]):
            if result == (rows, columns) and depth == height:
                return depth
    return None


def shape_of(node: Mapping[str, Any]) -> list[int] | None:
    """The sizes of a node's first tensor, as "float32[4, 8]" has them; None if one varies."""
    if not node["values"]:
        return None
    sizes = re.findall(r"[^\[\], ]+", node["values"][0].partition("[")[2])
    if not all(size.isdigit() for size in sizes):
        return None
    return list(map(int, sizes))
