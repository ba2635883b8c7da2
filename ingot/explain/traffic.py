"""How many bytes each step of a plan reads and writes: an upper bound, from the indices alone."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ingot.loops.expr import ZERO, Expr, Symbol, product
from ingot.loops.ir import Buffer, Library, LoopGraph, View, views_in
from ingot.schedule.kernel import AttentionBackwardKernel, AttentionKernel, Kernel, Operand
from ingot.schedule.plan import KernelStep, LibraryStep

Sizes = Mapping[Symbol, int]
Accesses = dict[str, dict[Expr, int]]
"""By buffer: the indices at which it is accessed, and how many values each takes."""


def step_bytes(step: KernelStep | LibraryStep, graph: LoopGraph, sizes: Sizes) -> tuple[int, int]:
    """(bytes read, bytes written); an element that is touched several times counts once where that
    can be seen."""
    if isinstance(step, LibraryStep):
        return library_bytes(step.node, graph, sizes)
    if isinstance(step.kernel, AttentionKernel):
        return attention_bytes(step.kernel, sizes)
    if isinstance(step.kernel, AttentionBackwardKernel):
        return attention_backward_bytes(step.kernel, sizes)
    if step.extents:
        reads = writes = 0
        for kernel_step in step.separate():
            read, written = step_bytes(kernel_step, graph, sizes)
            reads, writes = reads + read, writes + written
        return reads, writes
    parameters = {}
    for parameter, name in zip(step.kernel.parameters, step.arguments, strict=True):
        parameters[parameter.name] = graph.buffers[name]
    return kernel_bytes(step.kernel, parameters, sizes)


def kernel_bytes(kernel: Kernel, parameters: Mapping[str, Buffer], sizes: Sizes) -> tuple[int, int]:
    """(bytes read, bytes written) of a kernel of loops over these buffers."""
    if kernel.members:
        read = written = 0
        for member, own in kernel.of_members():
            buffers = {p.name: parameters[q.name] for p, q in zip(member.parameters, own)}
            more_read, more_written = kernel_bytes(member, buffers, sizes)
            read, written = read + more_read, written + more_written
        return read, written
    loads: Accesses = defaultdict(dict)
    stores: Accesses = defaultdict(dict)
    for stage in kernel.stages:
        loops = (*kernel.loops, *stage.loops)
        for instruction in stage.body.loads:
            name, offset = instruction.attrs
            loads[name][offset] = points(offset, loops, sizes)
        for store in stage.stores:
            stores[store.buffer][store.index] = points(store.index, loops, sizes)
    whole = kernel.product
    if whole is not None:
        loops = (*kernel.loops, *whole.rows, *whole.columns, *whole.reduced)
        accesses = [whole.left, whole.right]
        if whole.weights is not None:
            for p in whole.weights.products:
                loops += (p.depth,)
            accesses += whole.weights.accesses
        for access in accesses:
            loads[access.buffer][access.index] = varying(access.index, loops, sizes)
    return touched(loads, parameters, sizes), touched(stores, parameters, sizes)


def points(index: Expr, loops: Sequence[Symbol], sizes: Sizes) -> int:
    """How many values an index takes at most: the product of the loops it depends on; all of them
    if it is indirect."""
    if any(symbol.kind == "value" for symbol in index.symbols):
        return product(loop.extent for loop in loops).evaluate(sizes)
    return varying(index, loops, sizes)


def varying(index: Expr, loops: Sequence[Symbol], sizes: Sizes) -> int:
    """The product of the loops that an index depends on."""
    return product(loop.extent for loop in loops if loop in index.symbols).evaluate(sizes)


def touched(accesses: Accesses, parameters: Mapping[str, Buffer], sizes: Sizes) -> int:
    """Bytes behind the accesses of a kernel's parameters, at most what a buffer holds. Rows are no
    memory traffic."""
    total = 0
    for name, counts in accesses.items():
        if name in parameters:
            buffer = parameters[name]
            most = elements(buffer.sizes, buffer.strides, sizes)
            total += min(sum(counts.values()), most) * buffer.dtype.itemsize
    return total


def attention_bytes(kernel: AttentionKernel, sizes: Sizes) -> tuple[int, int]:
    """(bytes read, bytes written) of attention: each operand once."""
    batches, heads, queries, keys, width, value_width = evaluated(kernel.sizes, sizes)
    keys_and_values = batches * kernel.key_heads * keys * (width + value_width)
    read = batches * heads * queries * width + keys_and_values
    written = value_width + (kernel.logarithms is not None)
    mask = mask_bytes(kernel.mask, (batches, heads, queries, keys))
    return 4 * read + mask, 4 * batches * heads * queries * written


def attention_backward_bytes(kernel: AttentionBackwardKernel, sizes: Sizes) -> tuple[int, int]:
    """(bytes read, bytes written) of attention's gradients: each operand once."""
    batches, heads, queries, keys, width, value_width = evaluated(kernel.sizes, sizes)
    written = queries * width + keys * (width + value_width)
    read = written + queries * (2 * value_width + 1)
    mask = mask_bytes(kernel.mask, (batches, heads, queries, keys))
    return 4 * batches * heads * read + mask, 4 * batches * heads * written


def evaluated(numbers: Iterable[Expr], sizes: Sizes) -> list[int]:
    return [number.evaluate(sizes) for number in numbers]


def mask_bytes(mask: Operand | None, extents: Sequence[int]) -> int:
    """What is read of attention's mask, where it is broadcast only once."""
    if mask is None:
        return 0
    return 4 * math.prod(n for n, stride in zip(extents, mask.strides) if stride is not ZERO)


def library_bytes(node: Library, graph: LoopGraph, sizes: Sizes) -> tuple[int, int]:
    """(bytes read, bytes written) of a library call: its arguments and its results, each once."""
    arguments = {}
    for v in views_in((node.args, node.kwargs)):
        arguments[v.buffer] = view_bytes(v, sizes)
    written = sum(view_bytes(graph.buffers[name], sizes) for name in node.writes())
    return sum(arguments.values()), written


def view_bytes(view: View | Buffer, sizes: Sizes) -> int:
    return elements(view.sizes, view.strides, sizes) * view.dtype.itemsize


def elements(extents: Iterable[Expr], strides: Iterable[Expr], sizes: Sizes) -> int:
    """Distinct elements of a strided view; a dimension of stride 0 repeats the same ones."""
    dims = zip(extents, strides, strict=True)
    return product(size for size, stride in dims if stride.constant != 0).evaluate(sizes)
