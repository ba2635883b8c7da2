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
            part = _steps_for(copies[0].keys(), steps, graph)
            for names in copies:
                result += _copied(part, dict(names), buffers)
    return result, replace(graph, buffers=buffers)


def _steps_for(names: Iterable[str], steps: Sequence[Step], graph: LoopGraph) -> list[Step]:
    """The steps that write some buffers, and the temporaries that are read for that."""
    wanted, found = set(names), []
    for step in reversed(steps):
        reads, writes = accesses(step)
        if not wanted.isdisjoint(writes):
            found.append(step)
            wanted.update(name for name in reads if graph.buffers[name].role == "temporary")
    return found[::-1]


def _copied(part: Sequence[Step], names: dict[str, str], buffers: dict[str, Buffer]) -> list[Step]:
    """A part's steps with other inputs and outputs, and temporaries of their own."""

    def put(name: str) -> str:
        if name not in names and buffers[name].role == "temporary":
            names[name] = new = f"{name}_{len(buffers)}"
            buffers[new] = replace(buffers[name], name=new)
        return names.get(name, name)

    return [
        replace(step, arguments=tuple(map(put, step.arguments)))
        if isinstance(step, KernelStep)
        else LibraryStep(
            replace(renamed_library(step.node, put), name=f"{step.node.name}_{len(buffers)}")
        )
        for step in part
    ]
