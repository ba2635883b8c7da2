"""A captured graph that records gradients.

What capture gave goes in; a `CapturedGraph` is all that its forward, its backwards and its
higher-order program are traced from.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch

from ingot.capture import Captured
from ingot.collection import paused_collection
from ingot.errors import EagerRaises, unsupported
from ingot.graph.ambient import Modes, preserved, undisturbed
from ingot.graph.fake_context import FakeContext
from ingot.graph.fakes import FakeTensor, has_history, is_rebased, requires_grad
from ingot.graph.joint import JointGraph, trace_partial
from ingot.runtime.tangents import Demand


class CapturedGraph(NamedTuple):
    """A captured graph, the fake tensors of its inputs, and the modes that it was called in."""

    module: torch.fx.GraphModule
    fakes: Sequence[FakeTensor]
    context: FakeContext
    modes: Modes

    def trace_partial(self, joint: JointGraph, demand: Demand) -> JointGraph:
        """The joint graph of a partial backward."""
        present = itertools.compress(joint.contract.differentiable_outputs, demand.present)
        outputs = frozenset(present)
        with undisturbed(), paused_collection(), preserved():
            self.modes.set()
            try:
                return trace_partial(
                    joint, outputs, demand.inputs, self.module, self.fakes, self.context
                )
            except EagerRaises as error:  # the backward of a function that has its own
                raise error.__cause__ or error from None


def wants_gradients(captured: Captured) -> bool:
    """Whether eager would give one of the outputs a history. Raises Unsupported where that is not
    understood."""
    tracked = _tracked_outputs(captured.graph_module.graph)
    fakes = [i.fake for i in captured.inputs]
    written = any(isinstance(fake, FakeTensor) and is_rebased(fake) for fake in fakes)
    if torch.is_grad_enabled():
        return written or bool(tracked)
    # windows on inputs have a history even then
    if not written and not any(has_history(node.meta["val"]) for node in tracked):
        return False
    where = ""
    if tracked:
        where = tracked[0].meta.get("where", "")
    raise unsupported(
        "gradients-wanted",
        "gradients are wanted by a part of a function that is called without",
        where,
    )


def _tracked_outputs(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    """The outputs that require a gradient."""
    output = next(node for node in graph.nodes if node.op == "output")
    tracked = []
    for node in output.all_input_nodes:
        value = node.meta["val"]
        if isinstance(value, torch.Tensor) and requires_grad(value):
            tracked.append(node)
    return tracked
