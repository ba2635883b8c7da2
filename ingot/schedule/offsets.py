"""Where a kernel begins in its buffers: what all of its accesses have added is an offset of the
launch, so that launches over different parts of a buffer (the steps of a recurrence, the pieces of
a concatenation) have one kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ingot.loops.expr import ZERO, Expr, integer, known_less_equal, product
from ingot.loops.ir import Access, Instruction
from ingot.loops.target import Target
from ingot.schedule.kernel import Kernel, Parameter
from ingot.schedule.plan import KernelStep

ALIGNMENT = 16  # bytes


def begun_at_offsets(step: KernelStep, target: Target) -> KernelStep:
    """The same launch, with a kernel whose first accesses are at the beginning of what it is given;
    on a GPU, whose kernels rely on how that is aligned, less than ALIGNMENT bytes from there."""
    kernel = step.kernel
    if not isinstance(kernel, Kernel) or (target.has_registers and kernel.product is not None):
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
    by_name = {p.name: offset for p, offset in zip(kernel.parameters, offsets)}
    return replace(step, kernel=_moved(kernel, by_name), offsets=offsets)


def _aligned(offset: Expr, parameter: Parameter) -> Expr:
    """The last place before an offset that is aligned."""
    unit = max(1, ALIGNMENT // parameter.dtype.itemsize)
    return (
        ZERO
        if offset.constant is None or parameter.on_host
        else integer(offset.constant // unit * unit)
    )


def _accesses(kernel: Kernel) -> Iterator[tuple[str, Expr]]:
    for stage in kernel.stages:
        yield from ((i.attrs[0], i.attrs[1]) for i in stage.body.loads)
        yield from ((store.buffer, store.index) for store in stage.stores)
    if kernel.product is not None:
        yield from ((a.buffer, a.index) for a in (kernel.product.left, kernel.product.right))


def _start(index: Expr) -> Expr:
    """What an index adds at all points, and is never less than; 0 where that is not known."""
    low = index.bounds[0]
    everywhere = [
        (c, atoms)
        for c, atoms in index.terms
        if all(s.kind == "size" for a in atoms for s in a.symbols)
    ]
    start = sum((product(atoms) * c for c, atoms in everywhere), ZERO)
    if start.constant is not None:
        return ZERO if low is None else integer(max(0, min(start.constant, low)))
    return start if known_less_equal(0, start) and known_less_equal(start, index) else ZERO


def _earlier(a: Expr, b: Expr) -> Expr:
    """The smaller of two starts, 0 where it is not known which it is."""
    return a if known_less_equal(a, b) else b if known_less_equal(b, a) else ZERO


def _moved(kernel: Kernel, offsets: dict[str, Expr]) -> Kernel:
    """The kernel with each parameter beginning so many elements later; rows stay."""

    def load(i: Instruction) -> Instruction:
        offset = offsets.get(i.attrs[0], ZERO) if i.op == "load" else ZERO
        return i if offset is ZERO else i._replace(attrs=(i.attrs[0], i.attrs[1] - offset))

    stages = tuple(
        replace(
            stage,
            body=stage.body._replace(
                instructions=tuple([load(i) for i in stage.body.instructions])
            ),
            stores=tuple(
                [replace(s, index=s.index - offsets.get(s.buffer, ZERO)) for s in stage.stores]
            ),
        )
        for stage in kernel.stages
    )
    parameters = tuple(
        [
            p if p.length is None else p._replace(length=p.length - offsets[p.name])
            for p in kernel.parameters
        ]
    )
    product = kernel.product
    if product is not None:
        left, right = (
            Access(a.buffer, a.index - offsets[a.buffer]) for a in (product.left, product.right)
        )
        product = replace(product, left=left, right=right)
    return replace(kernel, stages=stages, parameters=parameters, product=product)
