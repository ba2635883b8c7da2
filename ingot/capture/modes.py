"""The modes that a captured program changes.

In: the program's calls that set a mode, which are made for real during capture. Out: nodes that set
the modes where an operation of the graph depends on them, and what is left of them behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from ingot.graph.ambient import (
    AUTOCAST_DEVICES,
    Autocast,
    Change,
    Modes,
    enter_inference_mode,
    leave_inference_mode,
)
from ingot.torch_private import enter_autocast, exit_autocast, set_grad_enabled


class ModeTracker:
    """The modes of one capture. Capture runs the program's own calls that set a mode, in this
    thread, and puts back what was there when it ends (`ambient.snapshot`)."""

    def __init__(self) -> None:
        self.at_start = self._in_graph = Modes.now()
        self.differs = False  # whether the graph is yet to be given the modes of now
        self._entered: list[fx.Node] = []  # autocast contexts of the graph that are open
        self.depth = 0  # autocast contexts that the program has entered, less those it has left
        self.cleared = False  # whether it emptied autocast's cache of weights
        self.changes = 0  # how often the program has set a mode
        # the number of the instruction that entered inference mode, while inside
        self.entered_at: int | None = None
        self.recorded = torch.is_grad_enabled()  # whether gradients have been recorded at some time

    def changed(self) -> None:
        """Notes that the program has set a mode."""
        self.differs = True
        self.changes += 1
        self.recorded |= torch.is_grad_enabled()

    def enter_inference(self, graph: fx.Graph, where: str, step: int) -> None:
        """Enters inference mode, at once in the graph as well: its way out brings back what was
        there at its way in."""
        self._switch(graph, enter_inference_mode, where)
        self.entered_at = step

    def leave_inference(self, graph: fx.Graph, where: str) -> None:
        """Leaves the inference mode that `enter_inference` entered."""
        self._switch(graph, leave_inference_mode, where)
        self.entered_at = None

    def _switch(self, graph: fx.Graph, function: Callable[[], None], where: str) -> None:
        self.reach(graph, where)
        add_call(graph, function, (), where)
        function()
        self._in_graph = Modes.now()
        self.changes += 1

    def reach(self, graph: fx.Graph, where: str) -> None:
        """Gives the graph the modes of now, before an operation is added to it."""
        if self.differs:
            self.differs = False
            self._bring(graph, Modes.now(), where)

    def close(self, graph: fx.Graph) -> None:
        """Gives the graph back the modes that it began with: what runs it finds no trace of those
        within."""
        self._bring(graph, self.at_start, "")

    def left_behind(self) -> list[Change]:
        """What brings about, after the graph, the modes that hold at this point of the program."""
        changes = self.at_start.changes(Modes.now())
        if self.depth > 0:
            step = torch.autocast_increment_nesting
        else:
            step = torch.autocast_decrement_nesting
        changes += [(step, ())] * abs(self.depth)
        if self.cleared and self.depth <= 0:
            changes.append((torch.clear_autocast_cache, ()))
        return changes

    def _bring(self, graph: fx.Graph, modes: Modes, where: str) -> None:
        before = self._in_graph
        if (before.autocast, before.autocast_cache) != (modes.autocast, modes.autocast_cache):
            while self._entered:
                add_call(graph, exit_autocast, (self._entered.pop(),), where)
            for device, autocast in self._contexts(modes):
                values = (device, autocast.dtype, autocast.enabled, modes.autocast_cache)
                self._entered.append(add_call(graph, enter_autocast, values, where))
        if before.grad != modes.grad:
            add_call(graph, set_grad_enabled, (modes.grad,), where)
        for function, args in before.process.changes(modes.process):
            add_call(graph, function, args, where)
        self._in_graph = modes

    def _contexts(self, modes: Modes) -> list[tuple[str, Autocast]]:
        """The autocast contexts that lead from the modes at the start to these."""
        start = self.at_start
        pairs = list(zip(AUTOCAST_DEVICES, start.autocast, modes.autocast, strict=True))
        contexts = []
        for device, old, new in pairs:
            if old != new:
                contexts.append((device, new))
        if not contexts and start.autocast_cache != modes.autocast_cache:
            contexts = [(AUTOCAST_DEVICES[0], modes.autocast[0])]
        return contexts


def add_call(
    graph: fx.Graph, function: Any, args: tuple[Any, ...], where: str, value: Any = None
) -> fx.Node:
    """A new node that calls a function; `value` is what that gives for fakes."""
    node = graph.call_function(function, args)
    node.meta.update(val=value, where=where)
    return node
