"""The steps of parts of a program that are like a part which has been scheduled: the same on other
buffers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ingot.loops.ir import Buffer, LoopGraph
from ingot.schedule.horizontal import accesses
from ingot.schedule.plan import KernelStep, LibraryStep
from ingot.schedule.reuse import renamed_library

Step = KernelStep | LibraryStep


def with_copies(steps: Sequence[Step], graph: LoopGraph) -> tuple[list[Step], LoopGraph]:
    """The steps with those of the copies that a graph says there are, and the graph with the
    copies' buffers."""
    if not graph.copies:
        return list(steps), graph
    result, buffers = list(steps), dict(graph.buffers)
    for copies in graph.copies:
        if copies:
            component = _steps_for(copies[0].keys(), steps, graph)
            for names in copies:
                result += _copied(component, dict(names), buffers)
    return result, replace(graph, buffers=buffers)


def _steps_for(names: Iterable[str], steps: Sequence[Step], graph: LoopGraph) -> list[Step]:
    """The steps that write some buffers, and the temporaries that are read for that."""
    needed, result = set(names), []
    for step in reversed(steps):
        reads, writes = accesses(step)
        if not needed.isdisjoint(writes):
            result.append(step)
            needed.update(name for name in reads if graph.is_temporary(name))
    return result[::-1]


def _copied(
    component: Sequence[Step], names: dict[str, str], buffers: dict[str, Buffer]
) -> list[Step]:
    """A component's steps with other inputs and outputs, and temporaries of their own."""

    def put(name: str) -> str:
        if name not in names and buffers[name].is_temporary:
            names[name] = new = f"{name}_{len(buffers)}"
            buffers[new] = replace(buffers[name], name=new)
        return names.get(name, name)

    result: list[Step] = []
    for step in component:
        if isinstance(step, KernelStep):
            result.append(replace(step, arguments=tuple(map(put, step.arguments))))
        else:
            node = renamed_library(step.node, put)
            result.append(LibraryStep(replace(node, name=f"{node.name}_{len(buffers)}")))
    return result
