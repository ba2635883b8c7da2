"""Where a kernel begins in its buffers: what all of its accesses have added is an offset of the
launch. Launches over different parts of a buffer (the steps of a recurrence, the pieces of a
concatenation) then have one kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from ingot.loops.expr import ZERO, Expr, integer, known_less_equal, product
from ingot.loops.ir import Body, Instruction
from ingot.loops.target import Target
from ingot.schedule.kernel import Kernel, Parameter
from ingot.schedule.plan import KernelStep

ALIGNMENT = 16  # bytes


def begun_at_offsets(step: KernelStep, target: Target) -> KernelStep:
    """The same launch, with a kernel whose first accesses are at the beginning of its arguments. A
    GPU's kernels rely on their alignment, and begin less than ALIGNMENT bytes from there."""
    kernel = step.kernel
    if not isinstance(kernel, Kernel):
        return step
    product = kernel.product
    if kernel.depthwise is not None:
        return step
    if product is not None and (target.has_registers or product.weights is not None):
        return step
    first: dict[str, Expr] = {}
    for name, index in _accesses(kernel):
        start = _start(index)
        first[name] = _earlier(first.get(name, start), start)
    offsets = tuple([first.get(p.name, ZERO) for p in kernel.parameters])
    if target.has_registers:
        offsets = tuple([_aligned(offset, p) for p, offset in zip(kernel.parameters, offsets)])
    if all(offset is ZERO for offset in offsets):
        return step
    by_name = {}
    for p, offset in zip(kernel.parameters, offsets):
        by_name[p.name] = offset
    return replace(step, kernel=_moved(kernel, by_name), offsets=offsets)


def _aligned(offset: Expr, parameter: Parameter) -> Expr:
    """The last place before an offset that is aligned."""
    if offset.constant is None or parameter.on_host:
        return ZERO
    unit = max(1, ALIGNMENT // parameter.dtype.itemsize)
    return integer(offset.constant // unit * unit)


def _accesses(kernel: Kernel) -> Iterator[tuple[str, Expr]]:
    for stage in kernel.stages:
        for load in stage.body.loads:
            yield load.attrs
        for store in stage.stores:
            yield store.buffer, store.index
    if kernel.product is not None:
        for access in (kernel.product.left, kernel.product.right):
            yield access.buffer, access.index


def _start(index: Expr) -> Expr:
    """What an index adds at all points, and is never less than; 0 where that is not known."""
    low = index.bounds[0]
    start = ZERO
    for c, atoms in index.terms:
        term = product(atoms) * c
        if all(s.kind == "size" for s in term.symbols):
            start = start + term
    if start.constant is not None:
        if low is None:
            return ZERO
        return integer(max(0, min(start.constant, low)))
    if known_less_equal(0, start) and known_less_equal(start, index):
        return start
    return ZERO


def _earlier(a: Expr, b: Expr) -> Expr:
    """The smaller of two starts, 0 where it is not known which it is."""
    if known_less_equal(a, b):
        return a
    if known_less_equal(b, a):
        return b
    return ZERO


def _moved(kernel: Kernel, offsets: dict[str, Expr]) -> Kernel:
    """The kernel with each parameter beginning so many elements later; rows stay."""

    def moved(access: Any) -> Any:
        return replace(access, index=access.index - offsets.get(access.buffer, ZERO))

    def load(i: Instruction) -> Instruction:
        if i.op != "load":
            return i
        return i.with_index(lambda index: index - offsets.get(i.attrs[0], ZERO))

    stages = []
    for stage in kernel.stages:
        body = Body(tuple(map(load, stage.body.instructions)), stage.body.results)
        stages.append(replace(stage, body=body, stores=tuple(map(moved, stage.stores))))
    parameters = list(kernel.parameters)
    for k, p in enumerate(parameters):
        if p.length is not None:
            parameters[k] = p._replace(length=p.length - offsets[p.name])
    product = kernel.product
    if product is not None:
        product = replace(product, left=moved(product.left), right=moved(product.right))
    return replace(kernel, stages=tuple(stages), parameters=tuple(parameters), product=product)
