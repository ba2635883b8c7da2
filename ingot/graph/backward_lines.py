"""The user's lines in a backward: each node of autograd's graph stands for an operation of the
forward, whose line it has."""

from __future__ import annotations

from typing import Any

from ingot.graph.meta import tensors_in
from ingot.torch_private import current_autograd_node


class BackwardLines:
    """The lines of autograd's nodes, noted while a forward is traced."""

    def __init__(self) -> None:
        self._lines: dict[Any, str] = {}

    def note(self, values: Any, where: str) -> None:
        """The nodes behind some values that were not there before are of this line."""
        behind = [fake.grad_fn for fake in tensors_in(values)]
        while behind:
            node = behind.pop()
            if node is None or node in self._lines:
                continue
            self._lines[node] = where
            behind += [edge[0] for edge in node.next_functions]

    def now(self) -> str:
        """The line of the node whose backward runs, "" where there is none."""
        if not self._lines:
            return ""
        return self._lines.get(current_autograd_node(), "")
