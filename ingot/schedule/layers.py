"""The steps of layers that are like ones which have been scheduled.

Steps for a few layers of a program go in, those for all come out: see `loops/layers.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ingot.loops.ir import Expr, LoopGraph, Origin, View
from ingot.loops.layers import Copied, Line, Repeated
from ingot.schedule.horizontal import accesses
from ingot.schedule.kernel import anonymous
from ingot.schedule.plan import KernelStep, LibraryStep
from ingot.schedule.reuse import renamed_library

Step = KernelStep | LibraryStep


def with_all_layers(steps: list[Step], graph: LoopGraph) -> tuple[list[Step], LoopGraph]:
    """The steps for all layers of a program, and a graph with their buffers, inputs and outputs.
    Raises `NotAlike` where some layers do not tell what all of them do."""
    if graph.layers is None:
        return steps, graph
    kinds = _Kinds()
    line = Line(
        list(map(kinds.number, steps)),
        list(map(_named, steps)),
        [accesses(step)[1] for step in steps],
        graph.inputs,
        list(map(_buffer_of, graph.outputs)),
    )
    repeated, buffers = Repeated(line, graph.layers), _Buffers(graph)
    result = []
    for k, copies in repeated.items():
        names = {name: buffers.name_of(copied) for name, copied in copies.items()}
        result.append(_renamed(steps[k], names.__getitem__))
    outputs = []
    for k, copied in repeated.outputs():
        view = graph.outputs[k]
        if isinstance(view, View) and copied is not None:
            view = replace(view, buffer=buffers.name_of(copied))
        outputs.append(view)
    return result, replace(
        graph,
        inputs=list(map(buffers.name_of, repeated.inputs())),
        outputs=outputs,
        buffers=buffers.all,
        checked=buffers.those_like(graph.checked),
        lends=buffers.those_like(graph.lends),
        addressed=buffers.those_like(graph.addressed),
    )


def _buffer_of(output: View | Expr) -> str | None:
    return output.buffer if isinstance(output, View) else None


class _Buffers:
    """The buffers of a graph, and the copies of them."""

    def __init__(self, graph: LoopGraph) -> None:
        self.all = dict(graph.buffers)
        self._like: dict[str, str] = {}

    def name_of(self, copied: Copied[str]) -> str:
        if not copied.number:
            return copied.name
        name = f"{copied.name}__{copied.number}"
        if name not in self._like:
            self._like[name] = copied.name
            self.all[name] = replace(self.all[copied.name], name=name)
        return name

    def those_like(self, names: set[str]) -> set[str]:
        """Some buffers, and the copies of these."""
        return names | {new for new, like in self._like.items() if like in names}


class _Kinds:
    """Numbers for steps: those of one number do the same, to the buffers that they name."""

    def __init__(self) -> None:
        self._known: dict[Any, list[Any]] = {}

    def number(self, step: Step) -> int:
        if isinstance(step, KernelStep):
            alike: Any = replace(step, kernel=anonymous(step.kernel, True), arguments=())
            group: Any = KernelStep
        else:
            alike = replace(renamed_library(step.node, _nameless), name="", origin=Origin(()))
            group = alike.function
        for number, other in self._known.setdefault(group, []):
            if other == alike:
                return number  # type: ignore[no-any-return]
        number = sum(map(len, self._known.values()))
        self._known[group].append((number, alike))
        return number


def _nameless(name: str) -> str:
    return ""


def _named(step: Step) -> Sequence[str]:
    """The buffers that a step names, in the order in which it does."""
    if isinstance(step, KernelStep):
        return step.arguments
    names: list[str] = []

    def note(name: str) -> str:
        names.append(name)
        return name

    renamed_library(step.node, note)
    return names


def _renamed(step: Step, name_of: Callable[[str], str]) -> Step:
    if isinstance(step, KernelStep):
        return replace(step, arguments=tuple(map(name_of, step.arguments)))
    node = renamed_library(step.node, name_of)
    return LibraryStep(replace(node, name=next(filter(None, node.targets), node.name)))
