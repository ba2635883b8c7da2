"""Captured graphs that differentiate: those with a call of torch.autograd.grad among their nodes, and the graph of the
gradients of another one."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from ingot.graph.ambient import Modes
from ingot.graph.fakes import FakeTensor


def differentiates(gm: torch.fx.GraphModule) -> bool:
    """Whether autograd has to record while the graph runs, whatever becomes of its outputs."""
    return any(node.target is torch.autograd.grad for node in gm.graph.nodes)


def want_gradients(inputs: Sequence[Any], fakes: Sequence[Any]) -> None:
    """Makes those of the inputs of a trace leaves whose tensors required a gradient when the program began."""
    for own, fake in zip(inputs, fakes):
        if isinstance(fake, FakeTensor) and fake.is_wanted:
            own.requires_grad_()


def new_leaves(fakes: Sequence[Any]) -> list[int]:
    """The positions of the inputs of which the program demands gradients itself."""
    return [
        k
        for k, fake in enumerate(fakes)
        if isinstance(fake, FakeTensor) and fake.requires_grad and fake.is_leaf and not fake.is_wanted
    ]


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """What a view is a view of; the tensor itself if it is none."""
    base = tensor._base
    return tensor if base is None else base


class SetModes:
    """Sets the modes of the thread, as a node of a graph."""

    __name__ = "set_modes"
    __module__ = __name__

    def __init__(self, modes: Modes) -> None:
        self.modes = modes

    def __call__(self) -> None:
        self.modes.set()


def vjp(
    gm: torch.fx.GraphModule,
    modes: Modes,
    heads: Sequence[tuple[int, bool]],
    wanted: Sequence[int],
    tangents: Sequence[FakeTensor],
) -> torch.fx.GraphModule:
    """The graph of the vector-Jacobian product of `gm`, run under `modes`, which takes the inputs of `gm` and the
    tangents and gives the gradients of the inputs `wanted`, themselves differentiable.

    `heads` says for each tangent which output it belongs to, and whether to the memory of which that output is a view.
    """
    graph, copies = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    for node in placeholders:
        copies[node] = graph.node_copy(node, lambda n: copies[n])
    count = len(placeholders)  # some may be tangents of a graph of gradients
    given = [_placeholder(graph, f"tangent_{count + k}", tangent) for k, tangent in enumerate(tangents)]
    _call(graph, SetModes(modes))
    outputs: Any = graph.graph_copy(gm.graph, copies)
    chosen = [_call(graph, memory_of, outputs[k]) if is_view else outputs[k] for k, is_view in heads]
    _call(graph, SetModes(without_autocast(modes)))
    leaves = [copies[placeholders[k]] for k in wanted]
    found = _call(graph, torch.autograd.grad, chosen, leaves, given, None, True, True, True)
    graph.output(tuple(_call(graph, operator.getitem, found, k) for k in range(len(leaves))))
    return torch.fx.GraphModule(gm, graph)


def without_autocast(modes: Modes) -> Modes:
    """Those of a backward pass: like most programs, it runs outside of autocast."""
    return modes._replace(autocast=tuple(a._replace(enabled=False) for a in modes.autocast))


def _placeholder(graph: torch.fx.Graph, name: str, value: Any) -> torch.fx.Node:
    node = graph.placeholder(name)
    node.meta.update(val=value, where="")
    return node


def _call(graph: torch.fx.Graph, function: Callable[..., Any], *args: Any) -> torch.fx.Node:
    node = graph.call_function(function, args)
    node.meta.update(val=None, where="")
    return node
