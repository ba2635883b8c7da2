"""Constant right operands of contractions, weights mostly, in the order in which tiles read them.

A panel holds the columns of one tile: for each step of the reduction, in the order in which it
runs, the elements of all columns side by side; columns that are not there are zero. A kernel that
reads panels packs nothing, and its reads go straight through memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch

from ingot.codegen.llvm.depths import in_order
from ingot.codegen.llvm.target import Target, chosen
from ingot.codegen.llvm.tiles import choose_tile
from ingot.codegen.llvm.types import REPRESENTATIONS
from ingot.loops.expr import ZERO, integer
from ingot.loops.expr import product as product_of
from ingot.loops.ir import Access, Buffer, View
from ingot.loops.spaces import contiguous_strides, extents_of
from ingot.schedule.kernel import Kernel, Parameter, Product
from ingot.schedule.plan import KernelStep, LibraryStep, Place, Plan


def prepack(plan: Plan, target: Target | None = None) -> None:
    """Copy the constant right operands of a plan's contractions in panels.

    Constants that nothing reads any more are dropped.
    """
    target = target or chosen()
    packed: Packed = {}
    for position, step in enumerate(plan.steps):
        kernel = None
        if isinstance(step, KernelStep):
            kernel = step.kernel
        if isinstance(kernel, Kernel) and kernel.product and not kernel.product.weights:
            assert isinstance(step, KernelStep)
            plan.steps[position] = _with_panels(step, kernel, kernel.product, plan, target, packed)
    used = _used(plan)
    for name in dict.fromkeys(key[0] for key in packed):
        if not used[name]:
            del plan.graph.constants[name], plan.graph.buffers[name], plan.places[name]


Packed = dict[tuple[str, Access, int], str]
"""By the name of a constant, what is read of it and the width of a panel: the name of the copy."""


def _with_panels(
    step: KernelStep, kernel: Kernel, product: Product, plan: Plan, target: Target, packed: Packed
) -> KernelStep:
    arguments = dict(zip((p.name for p in kernel.parameters), step.arguments))
    begins = dict(zip(arguments, step.offsets))
    right, (column,) = product.right, product.columns
    right = replace(right, index=right.index + begins.get(right.buffer, ZERO))
    order = in_order(product)
    linear = right.index.linear((column, *order))
    if arguments[right.buffer] not in plan.graph.constants or linear is None:
        return step
    offset, coefficients = linear
    sizes = []
    for s in (column, *order):
        sizes.append(s.extent.constant)
    strides = []
    for s in (column, *order):
        strides.append(coefficients.get(s, ZERO).constant)
    if offset.constant is None or None in sizes or None in strides:
        return step
    width = choose_tile(REPRESENTATIONS[product.dtype].register, product.column_block, target).width
    key = arguments[right.buffer], replace(right, buffer=""), width
    if key not in packed:
        weight = plan.graph.constants[key[0]]
        start = weight.storage_offset() + offset.constant
        columns = torch.as_strided(weight, sizes, strides, start)  # type: ignore[arg-type]
        panels = _panels(columns.flatten(1), width)
        packed[key] = _add_constant(plan, f"{key[0]}_panels{len(packed)}", panels)
    extents = extents_of(order)
    index = column // width * (width * product_of(extents)) + column % width
    for symbol, stride in zip(order, contiguous_strides(extents)):
        index = index + symbol * stride * width
    name, size = f"p{len(arguments)}", plan.graph.buffers[packed[key]].length
    arguments[name] = packed[key]
    parameters = [*kernel.parameters, Parameter(name, product.dtype, True, False, size)]
    product = replace(product, right=Access(name, index), panel=width)
    loaded = set()
    for load in kernel.loads:
        loaded.add(load.attrs[0])
    if right.buffer not in loaded and right.buffer != product.left.buffer:
        parameters = [p for p in parameters if p.name != right.buffer]
    return KernelStep(
        replace(kernel, product=product, parameters=tuple(parameters)),
        tuple(arguments[p.name] for p in parameters),
        step.extent,
        step.work,
        offsets=tuple(begins.get(p.name, ZERO) for p in parameters),
    )


def _panels(columns: torch.Tensor, width: int) -> torch.Tensor:
    """(panels, steps, width) of a matrix (columns, steps)."""
    count = -(-columns.shape[0] // width)
    whole = columns.new_zeros(count * width, columns.shape[1])
    whole[: columns.shape[0]] = columns
    return whole.view(count, width, -1).transpose(1, 2).contiguous()


def _add_constant(plan: Plan, name: str, value: torch.Tensor) -> str:
    graph = plan.graph
    graph.constants[name] = value
    sizes, strides = tuple(map(integer, value.shape)), tuple(map(integer, value.stride()))
    graph.buffers[name] = Buffer(name, value.dtype, sizes, strides, "constant")
    plan.places[name] = Place("constant")
    return name


def _used(plan: Plan) -> Counter[str]:
    """How often each buffer is an argument of a step or returned."""
    used = Counter(output.buffer for output in plan.graph.outputs if isinstance(output, View))
    for step in plan.steps:
        used.update(step.node.reads() if isinstance(step, LibraryStep) else step.arguments)
    return used
