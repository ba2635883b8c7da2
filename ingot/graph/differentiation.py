"""Captured graphs that differentiate: those with a call of torch.autograd.grad among their nodes,
and the graph of the gradients of another one.

Fakes go in as a program's inputs, and the leaves come out that autograd differentiates by. A graph
of gradients is a captured graph like any other.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from ingot.graph.ambient import Modes
from ingot.graph.aten_graph import copied
from ingot.graph.fakes import FakeTensor
from ingot.graph.nodes import add_call, fake_result, placeholders_of
from ingot.loops.training_contract import Slot
from ingot.sequences import at
from ingot.torch_private import unsafe_set_version_counter


def differentiates(gm: GraphModule) -> bool:
    """Whether autograd has to record while the graph runs, whatever becomes of its outputs."""
    return any(node.target in _DIFFERENTIATE for node in gm.graph.nodes)


def want_gradients(inputs: Sequence[Any], fakes: Sequence[Any]) -> list[Any]:
    """Makes the inputs of a trace require gradients whose tensors did when the program began.


    Returns what stands for each as a leaf: itself, or what is before one that was the result of an
    operation."""
    leaves = list(inputs)
    for k, (primal, fake) in enumerate(zip(inputs, fakes)):
        if not isinstance(fake, FakeTensor) or not fake.required_grad:
            continue
        if fake.origin is None:
            primal.requires_grad_()
            continue
        leaves[k] = FakeTensor(primal.meta, primal.device, requires_grad=True)
        with torch.enable_grad():
            _Begin.apply(primal, leaves[k])
        unsafe_set_version_counter((primal,), (0,))
        primal.origin = primal.grad_fn
    return leaves


class _Begin(torch.autograd.Function):
    """The history of an input that is the result of an operation, which may be written where a leaf
    may not."""

    @staticmethod
    def forward(ctx: Any, primal: Any, leaf: Any) -> Any:  # type: ignore[override]
        ctx.mark_dirty(primal)
        ctx.set_materialize_grads(False)  # what nothing depends on has no gradient
        return primal

    @staticmethod
    def backward(ctx: Any, tangent: Tensor | None) -> Any:  # type: ignore[override]
        return None, tangent


def new_leaves(fakes: Sequence[Any]) -> list[int]:
    """The positions of the inputs of which the program demands gradients itself."""
    leaves = []
    for k, fake in enumerate(fakes):
        is_leaf = isinstance(fake, FakeTensor) and fake.requires_grad and fake.is_leaf
        if is_leaf and not fake.required_grad:
            leaves.append(k)
    return leaves


def memory_of(tensor: Tensor) -> Tensor:
    """What a view is a view of; the tensor itself if it is none."""
    base = tensor._base
    if base is None:
        return tensor
    return base


def forget_histories(gm: GraphModule) -> None:
    """Drops the histories of the fakes that the graph's nodes stand for, and the numbers in
    them."""
    for node in gm.graph.nodes:
        if node.op != "placeholder":
            node.meta["val"] = _without_history(node.meta.get("val"))


def _without_history(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(map(_without_history, value))
    if isinstance(value, FakeTensor):
        return FakeTensor(value.meta, value.device)
    return value


class SetModes:
    """Sets the modes of the thread, as a node of a graph."""

    __name__ = "set_modes"
    __module__ = __name__

    def __init__(self, modes: Modes) -> None:
        self.modes = modes

    def __call__(self) -> None:
        self.modes.set()


def vjp(
    gm: GraphModule,
    modes: Modes,
    heads: Sequence[Slot],
    mutated: Sequence[int],
    gradient_inputs: Sequence[int],
    tangents: Sequence[FakeTensor],
) -> GraphModule:
    """The graph of the vector-Jacobian product of `gm`, run under `modes`.

    It takes the tensors that `gm` takes, the tangents, then the integers that `gm` takes, and gives
    the gradients of `gradient_inputs`, themselves differentiable. Inputs that `gm` mutates are
    copied before. `heads` says for each tangent what it belongs to: an output, the memory of which
    an output is a view, or an input as it was written.
    """
    graph, copies = Graph(), dict[Node, Node]()
    placeholders = placeholders_of(gm.graph)
    count = sum(isinstance(fake_result(node), Tensor) for node in placeholders)
    for node in placeholders[:count]:
        copies[node] = copied(graph, node, copies.__getitem__)
    leaves = at(copies, at(placeholders, gradient_inputs))
    tangent_nodes = []
    # some placeholders may be tangents of a graph of gradients
    for k, tangent in enumerate(tangents, len(placeholders)):
        node = graph.placeholder(f"tangent_{k}")
        node.meta.update(val=tangent, where="")
        tangent_nodes.append(node)
    for node in placeholders[count:]:
        copies[node] = copied(graph, node, copies.__getitem__)
    _call(graph, SetModes(modes))
    for k in mutated:
        copies[placeholders[k]] = _call(graph, torch.clone, copies[placeholders[k]])
    inputs = at(copies, placeholders)
    outputs: Any = graph.graph_copy(gm.graph, copies)
    head_nodes = []
    for slot in heads:
        head_nodes.append(_head(graph, slot, inputs, outputs))
    _call(graph, SetModes(without_autocast(modes)))
    gradients = _call(
        graph, torch.autograd.grad, head_nodes, leaves, tangent_nodes, None, True, True, True
    )
    results = [_call(graph, operator.getitem, gradients, k) for k in range(len(leaves))]
    graph.output(tuple(results))
    return GraphModule(gm, graph)


def _head(graph: Graph, slot: Slot, inputs: Sequence[Node], outputs: Any) -> Node:
    """What is differentiated for a tangent."""
    if slot.role == "input":
        return inputs[slot.position]
    if slot.role == "memory":
        return _call(graph, memory_of, outputs[slot.position])
    return outputs[slot.position]


def leaf_of(tensor: Tensor) -> Tensor:
    """A tensor with the values and the history of another, that gradients are taken by."""
    if tensor.requires_grad:
        return tensor.view_as(tensor)
    return tensor.detach().requires_grad_()


def gradients_of(
    heads: Sequence[Tensor],
    leaves: Sequence[Tensor],
    tangents: Sequence[Tensor],
    given: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """The gradients of `leaves`, contiguous: zeros where no head depends on one.

    They have a history where a tangent has one, or what a leaf was made of, `given`.
    """
    reached = list(map(_REQUIRES_GRAD, heads))
    gradients = tuple(map(torch.zeros_like, leaves))
    if any(reached):
        gradients = torch.autograd.grad(
            list(itertools.compress(heads, reached)),
            list(leaves),
            list(itertools.compress(tangents, reached)),
            create_graph=any(map(_REQUIRES_GRAD, (*tangents, *given))),
            allow_unused=True,
            materialize_grads=True,
        )
    # contiguous() would ask how they lie, of sizes that vary
    contiguous = partial(torch.clone, memory_format=torch.contiguous_format)
    return tuple(map(contiguous, gradients))


_REQUIRES_GRAD = operator.attrgetter("requires_grad")
_DIFFERENTIATE = frozenset({torch.autograd.grad, gradients_of})


def without_autocast(modes: Modes) -> Modes:
    """Those of a backward pass: like most programs, it runs outside of autocast."""
    return modes._replace(autocast=tuple(a._replace(enabled=False) for a in modes.autocast))


def _call(graph: Graph, function: Callable[..., Any], *args: Any) -> Node:
    return add_call(graph, function, args, {"val": None, "where": ""})
