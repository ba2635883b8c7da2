"""Layers that are alike: what a graph with some of them says of the program that has all."""

from __future__ import annotations

from dataclasses import dataclass

Row = tuple[int, ...]
"""What each layer of a program has in one place: positions among its inputs, or its outputs."""


class NotAlike(Exception):
    """The plan of some layers does not tell that of all."""


@dataclass(frozen=True)
class Layers:
    """A graph that has the first `kept` of a program's `count` layers; what follows the last layer
    follows the last that is kept.

    `inputs` are the positions in the program of the graph's inputs, and `outputs` those of its
    first outputs; it may have more, in an order that is nobody's concern. Once the other layers
    were added to a plan, `spread` says of which of the graph's outputs each of the program's is
    which copy.
    """

    kept: int
    count: int
    inputs: tuple[int, ...]
    input_rows: tuple[Row, ...]
    outputs: tuple[int, ...]
    output_rows: tuple[Row, ...]
    spread: tuple[tuple[int, int], ...] = ()

    @property
    def left_out(self) -> int:
        """How many layers the graph has not."""
        return self.count - self.kept
