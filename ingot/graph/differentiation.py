"""Captured graphs that differentiate: those with a call of torch.autograd.grad among their nodes,
and the graph of the gradients of another one."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from ingot.graph.ambient import Modes
from ingot.graph.aten_graph import copied
from ingot.graph.fakes import FakeTensor
from ingot.torch_private import unsafe_set_version_counter


def differentiates(gm: torch.fx.GraphModule) -> bool:
    """Whether autograd has to record while the graph runs, whatever becomes of its outputs."""
    return any(node.target is torch.autograd.grad for node in gm.graph.nodes)


def want_gradients(inputs: Sequence[Any], fakes: Sequence[Any]) -> list[Any]:
    """Lets those of the inputs of a trace require gradients whose tensors did when the program
    began. Returns what stands for each as a leaf: itself, or what is before one that was the result
    of an operation."""
    leaves = list(inputs)
    for k, (own, fake) in enumerate(zip(inputs, fakes)):
        if not isinstance(fake, FakeTensor) or not fake.is_wanted:
            continue
        if fake.origin is None:
            own.requires_grad_()
            continue
        leaves[k] = FakeTensor(own.meta, own.device, requires_grad=True)
        with torch.enable_grad():
            _Begin.apply(own, leaves[k])
        unsafe_set_version_counter((own,), (0,))
        own.origin = own.grad_fn
    return leaves


class _Begin(torch.autograd.Function):
    """The history of an input that is the result of an operation, which may be written where a leaf
    may not."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, leaf: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        ctx.mark_dirty(own)
        return own

    @staticmethod
    def backward(ctx: Any, tangent: torch.Tensor) -> Any:  # type: ignore[override]
        return None, tangent


def new_leaves(fakes: Sequence[Any]) -> list[int]:
    """The positions of the inputs of which the program demands gradients itself."""
    return [
        k
        for k, fake in enumerate(fakes)
        if isinstance(fake, FakeTensor)
        and fake.requires_grad
        and fake.is_leaf
        and not fake.is_wanted
    ]


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """What a view is a view of; the tensor itself if it is none."""
    base = tensor._base
    return tensor if base is None else base


def forget_histories(gm: torch.fx.GraphModule) -> None:
    """Lets go of the histories of the fakes that the graph's nodes stand for, and of the numbers
    they hold."""
    for node in gm.graph.nodes:
        if node.op != "placeholder":
            node.meta["val"] = _without_history(node.meta.get("val"))


def _without_history(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(_without_history(part) for part in value)
    return FakeTensor(value.meta, value.device) if isinstance(value, FakeTensor) else value


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
    heads: Sequence[tuple[str, int]],
    written: Sequence[int],
    wanted: Sequence[int],
    tangents: Sequence[FakeTensor],
) -> torch.fx.GraphModule:
    """The graph of the vector-Jacobian product of `gm`, run under `modes`, which takes the tensors
    that `gm` takes, the tangents and the integers that `gm` takes, and gives the gradients of the
    inputs `wanted`, themselves differentiable. Inputs that `gm` writes are copied before.

    `heads` says for each tangent what it belongs to: ("output", position), the ("memory", position)
    of which that output is a view, or the ("input", position) as it was written.
    """
    graph, copies = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    tensors = [n for n in placeholders if isinstance(n.meta["val"], torch.Tensor)]
    for node in tensors:
        copies[node] = copied(graph, node, copies.__getitem__)
    leaves = [copies[placeholders[k]] for k in wanted]
    count = len(placeholders)  # some may be tangents of a graph of gradients
    given = [
        _placeholder(graph, f"tangent_{count + k}", tangent) for k, tangent in enumerate(tangents)
    ]
    for node in placeholders[len(tensors) :]:
        copies[node] = copied(graph, node, copies.__getitem__)
    _call(graph, SetModes(modes))
    for k in written:
        copies[placeholders[k]] = _call(graph, torch.clone, copies[placeholders[k]])
    inputs = [copies[node] for node in placeholders]
    outputs: Any = graph.graph_copy(gm.graph, copies)
    chosen = [
        inputs[k]
        if kind == "input"
        else _call(graph, memory_of, outputs[k])
        if kind == "memory"
        else outputs[k]
        for kind, k in heads
    ]
    _call(graph, SetModes(without_autocast(modes)))
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
