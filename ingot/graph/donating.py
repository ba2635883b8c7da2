"""Which of the inputs that a caller gives up a program may take: those whose values nobody needs
when it has run."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ingot.graph.aten_graph import AtenGraph

Note = Callable[[tuple[str, str]], None]


Given = Iterable[tuple[int, str]]
"""The inputs that the caller gives up: the position, and how errors call the argument."""


def donate(aten: AtenGraph, given: Given, note: Note) -> None:
    """Marks inputs of a graph as donated. `note` is told of each why it stays, "" where it does
    not."""
    shown = {spec.position for spec in aten.outputs}
    donated = {}
    for position, what in given:
        why = ""
        if position in aten.mutated:
            why = "the program writes it in place"
        elif position in shown:
            why = "a result shares its memory"
        else:
            donated[position] = what
        note((what, why))
    aten.donated = donated
    aten.lends = aten.lends.union(donated)


def keep_all(aten: AtenGraph, why: str, note: Note) -> None:
    """Takes the marks back."""
    for what in aten.donated.values():
        note((what, why))
    aten.lends = aten.lends.difference(aten.donated)
    aten.donated = {}
