"""Where a kernel begins in its buffers: what all of its accesses have added is an offset of the launch, so that
launches over different parts of a buffer (the steps of a recurrence, the pieces of a concatenation) have one kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ingot.loops.expr import Expr
from ingot.loops.ir import Access, Instruction
from ingot.schedule.kernel import Kernel
from ingot.schedule.plan import KernelStep


def begun_at_offsets(step: KernelStep) -> KernelStep:
    """The same launch, with a kernel whose first accesses are at the beginning of what it is given."""
    kernel = step.kernel
    if not isinstance(kernel, Kernel):
        return step
    first: dict[str, int] = {}
    for name, index in _accesses(kernel):
        start = _start(index)
        first[name] = min(first.get(name, start), start)
    offsets = tuple([first.get(p.name, 0) for p in kernel.parameters])
    if not any(offsets):
        return step
    by_name = {p.name: offset for p, offset in zip(kernel.parameters, offsets)}
    return replace(step, kernel=_moved(kernel, by_name), offsets=offsets)


def _accesses(kernel: Kernel) -> Iterator[tuple[str, Expr]]:
    for stage in kernel.stages:
        yield from ((i.attrs[0], i.attrs[1]) for i in stage.body.loads)
        yield from ((store.buffer, store.index) for store in stage.stores)
    if kernel.product is not None:
        yield from ((a.buffer, a.index) for a in (kernel.product.left, kernel.product.right))


def _start(index: Expr) -> int:
    """A constant that an index adds, and that it is never less than."""
    constant = next((coefficient for coefficient, atoms in index.terms if not atoms), 0)
    if constant <= 0:
        return 0
    low = index.bounds[0]
    return 0 if low is None else max(0, min(constant, low))


def _moved(kernel: Kernel, offsets: dict[str, int]) -> Kernel:
    """The kernel with each parameter beginning so many elements later; rows stay."""

    def load(i: Instruction) -> Instruction:
        offset = offsets.get(i.attrs[0]) if i.op == "load" else 0
        return i._replace(attrs=(i.attrs[0], i.attrs[1] - offset)) if offset else i

    stages = tuple(
        replace(
            stage,
            body=stage.body._replace(instructions=tuple([load(i) for i in stage.body.instructions])),
            stores=tuple([replace(s, index=s.index - offsets.get(s.buffer, 0)) for s in stage.stores]),
        )
        for stage in kernel.stages
    )
    parameters = tuple(
        [p if p.length is None else p._replace(length=p.length - offsets[p.name]) for p in kernel.parameters]
    )
    product = kernel.product
    if product is not None:
        left, right = (Access(a.buffer, a.index - offsets[a.buffer]) for a in (product.left, product.right))
        product = replace(product, left=left, right=right)
    return replace(kernel, stages=stages, parameters=parameters, product=product)
