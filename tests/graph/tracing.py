"""Trace a function and compare the graph, run op by op, with the function itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from ingot.graph import AtenGraph, FakeContext, trace


def traced(fn: Callable[..., Any], *args: torch.Tensor, dynamic: dict[int, set[int]] | None = None) -> AtenGraph:
    """The ATen graph of `fn` on these arguments; `dynamic` maps argument positions to symbolic dimensions."""
    context = FakeContext()
    dims = dynamic or {}
    with context:
        fakes = [context.fake(a, frozenset(dims.get(i, ())), f"arg{i}") for i, a in enumerate(args)]
    return trace(torch.fx.symbolic_trace(fn), fakes, context)


def flat(tree: Any) -> list[Any]:
    return [x for item in tree for x in flat(item)] if isinstance(tree, (list, tuple)) else [tree]


def copies(args: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Copies with the same strides and offsets; arguments that share a storage share it again."""
    storages: dict[int, torch.UntypedStorage] = {}
    result = []
    for a in args:
        storage = storages.setdefault(a.untyped_storage().data_ptr(), a.untyped_storage().clone())
        result.append(torch.empty(0, dtype=a.dtype).set_(storage, a.storage_offset(), a.shape, a.stride()))
    return result


def sharing(tensors: list[torch.Tensor]) -> list[tuple[int, int]]:
    """For each tensor: the first one with the same storage, and the distance of their first elements in bytes."""
    first: dict[int, tuple[int, torch.Tensor]] = {}
    pattern = []
    for i, t in enumerate(tensors):
        j, other = first.setdefault(t.untyped_storage().data_ptr(), (i, t))
        pattern.append((j, t.data_ptr() - other.data_ptr()))
    return pattern


def same(fn: Callable[..., Any], *args: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-5, graph: AtenGraph | None = None) -> AtenGraph:
    """Assert that the traced graph gives eager's values, dtypes, strides, mutations and aliasing."""
    graph = graph or traced(fn, *args)
    eager_args, own_args = copies(args), copies(args)
    with torch.no_grad():
        torch.manual_seed(0)
        expected = flat(fn(*eager_args))
        torch.manual_seed(0)
        actual = flat(graph.function()(*own_args))
    assert len(actual) == len(expected)
    for a, e in zip(actual, expected):
        if isinstance(e, torch.Tensor):
            torch.testing.assert_close(a, e, rtol=rtol, atol=atol, equal_nan=True)
            assert a.stride() == e.stride(), (a.stride(), e.stride())
        else:
            assert a == e
    for a, e in zip(own_args, eager_args):
        torch.testing.assert_close(a, e, rtol=rtol, atol=atol, equal_nan=True)
    tensors = [i for i, e in enumerate(expected) if isinstance(e, torch.Tensor) and e.numel()]
    assert sharing(own_args + [actual[i] for i in tensors]) == sharing(eager_args + [expected[i] for i in tensors])
    return graph
