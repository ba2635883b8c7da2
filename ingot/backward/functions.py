"""Nodes of torch.autograd.Function in a compiled backward.

What the user wrote is captured as hooks are, with a stand-in for the node's context. A node is read
here and never run, but to see what it makes of gradients that do not come in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction, FunctionCtx
from torch.autograd.graph import GradientEdge

from ingot.backward.hooks import kind_of
from ingot.errors import unsupported
from ingot.torch_private import engine_run_backward

_BASE = torch.autograd.Function

Edges = tuple[tuple[int, int] | None, ...]
"""Where the gradients of a node go, see `structure.Edge`."""

Materialized = tuple[tuple[tuple[int, ...], torch.dtype, torch.device] | None, ...]
"""What a node makes of gradients that do not come in: the zeros for each, or None where they stay
None."""


def facts_of(node: Any, edges: Edges) -> tuple[Any, ...]:
    """What tells a node from others at once."""
    code = kind_of(_backward_of(node))
    name, needed = _name(node), node.needs_input_grad
    if sum(edge is not None for edge in edges) != sum(map(bool, needed)):
        raise unsupported(
            "backward-function",
            f"the backward of {name}, whose context was told which gradients are needed",
        )
    return name, code, needed


def _name(node: Any) -> str:
    return type(node).__name__.removesuffix("Backward")


def call_of(node: Any) -> tuple[Any, ...]:
    """The user's function, and what it is given before the gradients."""
    refuse_unpacking(node._raw_saved_tensors)
    context: Any = FunctionCtx()
    needed = node.needs_input_grad
    vars(context).update(vars(node), saved_tensors=node.saved_tensors, needs_input_grad=needed)
    context._input_grad_buffers = (None,) * len(needed)  # autograd may always have none
    return _backward_of(node), context


def _backward_of(node: Any) -> Any:
    applied: Any = getattr(getattr(node, "apply", None), "__func__", None)
    is_plain = isinstance(node, BackwardCFunction) and applied is BackwardCFunction.apply
    if not is_plain or getattr(node._forward_cls, "boxed_grads_call", False):
        raise unsupported(
            "backward-function", f"{type(node).__name__}, which runs in a way of its own"
        )
    cls = node._forward_cls
    if (cls.backward is _BASE.backward) == (cls.vjp is _BASE.vjp):
        raise unsupported(
            "backward-function", f"the backward of {cls.__name__}, which has none, or two"
        )
    if cls.vjp is _BASE.vjp:
        return cls.backward
    return cls.vjp


def refuse_unpacking(saved: Sequence[Any]) -> None:
    """Raises Unsupported for saved tensors that hooks pack and unpack."""
    if any(one is not None and one.unpack_hook is not None for one in saved):
        raise unsupported(
            "backward-function",
            "a tensor that is kept by way of hooks (torch.autograd.graph.saved_tensors_hooks)",
        )


def by_edge(node: Any, edges: Edges, result: Any) -> list[Any]:
    """What the user's function gives, by the edges of the node. Raises Unsupported for what
    autograd refuses."""
    name, needed = _name(node), node.needs_input_grad
    if isinstance(result, tuple):
        gradients = result
    else:
        gradients = (result,)
    surplus = gradients[len(needed) :]
    if len(gradients) < len(needed) or any(g is not None for g in surplus):
        raise unsupported(
            "backward-function", f"{name} gives another number of gradients than it has arguments"
        )
    if not all(g is None or isinstance(g, torch.Tensor) for g in gradients):
        raise unsupported("backward-function", f"{name} gives a gradient that is no tensor")
    of_needed = []
    for g, is_needed in zip(gradients, needed):
        if is_needed:
            of_needed.append(g)
    others = []
    for g, is_needed in zip(gradients, needed):
        if not is_needed:
            others.append(g)
    if len(edges) < len(needed) and any(g is not None for g in others):
        raise unsupported("backward-function", f"{name} gives a gradient of what may be no tensor")
    remaining = iter(of_needed)
    results = []
    for edge in edges:
        results.append(None if edge is None else next(remaining))
    return results


def materialized(node: Any) -> Materialized:
    """What becomes of gradients that do not come in: only the node knows, which is asked."""
    arguments: list[Any] = []

    def look(*tangents: Any) -> None:
        arguments.extend(tangents)
        raise _Stop

    number, like = next(
        (k, metadata)
        for k, metadata in enumerate(node._input_metadata)
        if metadata.dtype.is_floating_point or metadata.dtype.is_complex
    )
    edge = (GradientEdge(node, number),)
    tangent = torch.zeros(tuple(like.shape), dtype=like.dtype, device=like.device)
    node.apply = look
    try:
        with torch.no_grad():
            engine_run_backward(edge, (tangent,), True, False, (), True, accumulate_grad=True)
    except _Stop:
        pass
    finally:
        del node.apply
    return tuple([None if t is None else (tuple(t.shape), t.dtype, t.device) for t in arguments])


class _Stop(Exception):
    pass


def silence(node: Any) -> None:
    """Has a node hand on no gradients, until it is told otherwise, without calling the user's
    function."""
    count = len(node.needs_input_grad)
    node.apply = lambda *_: (None,) * count


def unsilence(node: Any) -> None:
    """Ends that."""
    del node.apply
