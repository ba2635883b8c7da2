"""Nodes of torch.autograd.Function in a compiled backward: what the user wrote is captured as hooks
are, with a stand-in for the node, which shows what the node does."""

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
Materialized = tuple[tuple[tuple[int, ...], torch.dtype, torch.device] | None, ...]
"""What a node makes of gradients that do not come in: the zeros for each, or None where they stay
None."""


def facts_of(node: Any, edges: Edges) -> tuple[Any, ...]:
    """What tells a node from others at once."""
    code = kind_of(_backward_of(node))
    name, needed = type(node).__name__.removesuffix("Backward"), node.needs_input_grad
    if [True for e in edges if e is not None] != [True for need in needed if need]:
        raise unsupported(
            "backward-function",
            f"the backward of {name}, whose context was told which gradients are needed",
        )
    return name, code, needed


def call_of(node: Any) -> tuple[Any, ...]:
    """The user's function, and what it is given before the gradients."""
    refuse_unpacking(node._raw_saved_tensors)
    context = FunctionCtx()
    needed = node.needs_input_grad
    vars(context).update(vars(node), saved_tensors=node.saved_tensors, needs_input_grad=needed)
    context._input_grad_buffers = (None,) * len(needed)  # type: ignore[attr-defined]  # autograd may always have none
    return _backward_of(node), context


def _backward_of(node: Any) -> Any:
    plain = (
        isinstance(node, BackwardCFunction)
        and getattr(node.apply, "__func__", None) is BackwardCFunction.apply
    )  # type: ignore
    if not plain or getattr(node._forward_cls, "boxed_grads_call", False):
        raise unsupported(
            "backward-function", f"{type(node).__name__}, which runs in a way of its own"
        )
    cls = node._forward_cls
    if (cls.backward is _BASE.backward) == (cls.vjp is _BASE.vjp):
        raise unsupported(
            "backward-function", f"the backward of {cls.__name__}, which has none, or two"
        )
    return cls.backward if cls.vjp is _BASE.vjp else cls.vjp


def refuse_unpacking(kept: Sequence[Any]) -> None:
    """Raises Unsupported for tensors that hooks keep."""
    if any(one is not None and one.unpack_hook is not None for one in kept):
        raise unsupported(
            "backward-function",
            "a tensor that is kept by way of hooks (torch.autograd.graph.saved_tensors_hooks)",
        )


def of_edges(node: Any, edges: Edges, found: Any) -> list[Any]:
    """What the user's function gives, by the edges of the node. Raises Unsupported for what
    autograd refuses."""
    name, needed = type(node).__name__.removesuffix("Backward"), node.needs_input_grad
    gradients = found if isinstance(found, tuple) else (found,)
    if len(gradients) < len(needed) or any(g is not None for g in gradients[len(needed) :]):
        raise unsupported(
            "backward-function", f"{name} gives another number of gradients than it has arguments"
        )
    if not all(g is None or isinstance(g, torch.Tensor) for g in gradients):
        raise unsupported("backward-function", f"{name} gives a gradient that is no tensor")
    if len(edges) < len(needed) and any(
        g is not None for g, need in zip(gradients, needed) if not need
    ):
        raise unsupported("backward-function", f"{name} gives a gradient of what may be no tensor")
    remaining = iter([g for g, need in zip(gradients, needed) if need])
    return [None if edge is None else next(remaining) for edge in edges]


def materialized(node: Any) -> Materialized:
    """What becomes of gradients that do not come in: only the node knows, which is asked."""
    seen: list[Any] = []

    def look(*tangents: Any) -> None:
        seen.extend(tangents)
        raise _Seen

    one = next(
        k
        for k, m in enumerate(node._input_metadata)
        if m.dtype.is_floating_point or m.dtype.is_complex
    )
    like = node._input_metadata[one]
    tangent = torch.zeros(tuple(like.shape), dtype=like.dtype, device=like.device)
    node.apply = look
    try:
        with torch.no_grad():
            engine_run_backward(
                (GradientEdge(node, one),), (tangent,), True, False, (), True, accumulate_grad=True
            )
    except _Seen:
        pass
    finally:
        del node.apply
    return tuple([None if t is None else (tuple(t.shape), t.dtype, t.device) for t in seen])


class _Seen(Exception):
    pass


def silence(node: Any) -> None:
    """Has a node hand on no gradients, until it is told otherwise, without calling the user's
    function."""
    count = len(node.needs_input_grad)
    node.apply = lambda *_: (None,) * count


def unsilence(node: Any) -> None:
    """Ends that."""
    del node.apply
