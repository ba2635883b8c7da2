"""What the steps of a plan write, and what of it is seen from outside of the program."""

from __future__ import annotations

from collections.abc import Iterable

from ingot.loops.expr import ONE, Expr
from ingot.loops.ir import Buffer, View
from ingot.loops.side_effects import acts
from ingot.schedule.plan import KernelStep, LibraryStep, Plan

Step = KernelStep | LibraryStep


def _written(step: Step) -> Iterable[str]:
    """The buffers that a step writes."""
    if isinstance(step, LibraryStep):
        return step.node.writes()
    return [name for name, parameter in zip(step.arguments, step.parameters) if parameter.written]


def written_inputs(step: Step, plan: Plan) -> set[str]:
    places = plan.places
    return {name for name in _written(step) if name in places and places[name].kind == "input"}


def mutated_inputs(plan: Plan) -> set[str]:
    """The inputs that are written, those without elements too."""
    return plan.graph.mutated.union(*[written_inputs(step, plan) for step in plan.steps])


def first_write(plan: Plan) -> int | None:
    """The position of the first step that writes an input; None if none does."""
    for position, step in enumerate(plan.steps):
        if written_inputs(step, plan):
            return position
    return None


def returned_buffers(plan: Plan) -> list[str]:
    """The buffers that outputs show, once for each output."""
    return [output.buffer for output in plan.graph.outputs if isinstance(output, View)]


def kernel_steps(plan: Plan) -> list[KernelStep]:
    """The launches, in run order."""
    return [step for step in plan.steps if isinstance(step, KernelStep)]


def is_effectful(step: Step) -> bool:
    return isinstance(step, LibraryStep) and step.node.ordered and acts(step.node.function)


def first_trace(plan: Plan, donations: bool = True) -> int:
    """The position of the first step that writes an input or has an effect.

    With `donations` also of one behind which a donated input is not there any more. The number of
    steps if none does.
    """
    for position, step in enumerate(plan.steps):
        if written_inputs(step, plan) or is_effectful(step):
            return position
        if donations and not plan.graph.donated.keys().isdisjoint(plan.last_use.get(position, ())):
            return position
    return len(plan.steps)


def unaligned_inputs(plan: Plan) -> set[str]:
    """The inputs that may lie anywhere when a kernel gets them.

    Others are copied to aligned memory where they are not. For these a copy could not stand: they
    are written, or their elements may share memory.
    """
    written = {name for step in plan.steps for name in written_inputs(step, plan)}
    buffers = plan.graph.buffers
    return {name for name in plan.graph.inputs if name in written or not _is_dense(buffers[name])}


def _is_dense(buffer: Buffer) -> bool:
    """Whether the elements of a buffer are known to lie side by side, each for itself."""
    count, left = ONE, list[tuple[Expr, Expr]]()
    for stride, size in zip(buffer.strides, buffer.sizes):
        if size is not ONE:
            left.append((stride, size))
    while left:
        beside = [size for stride, size in left if stride is count]
        if not beside:
            return False
        left.remove((count, beside[0]))
        count = count * beside[0]
    return True


def constants_of(numbers: Iterable[Expr]) -> list[int]:
    """The numbers, with 0 for those that are not known."""
    return [number.constant or 0 for number in numbers]
