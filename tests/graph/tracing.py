"""Trace a function and compare the graph, run op by op, with the function itself."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch.overrides import TorchFunctionMode

from ingot.graph import AtenGraph, FakeContext, trace
from tests.oracle import Close, Numbers, assert_call, copies


def traced(
    fn: Callable[..., Any], *args: torch.Tensor, dynamic: dict[int, set[int]] | None = None
) -> AtenGraph:
    """The ATen graph of `fn` on these arguments; `dynamic` maps argument positions to symbolic
    dimensions."""
    context = FakeContext()
    dims = dynamic or {}
    with context:
        fakes = [context.fake(a, frozenset(dims.get(i, ())), f"arg{i}") for i, a in enumerate(args)]
    return trace(graph_of(fn), fakes, context)


def graph_of(fn: Callable[..., Any]) -> torch.fx.GraphModule:
    """What capture would hand over: torch.fx's symbolic trace, with item assignment and factory
    calls in it."""
    tracer = _Tracer()
    with _Factories(tracer):
        graph = tracer.trace(fn)
    return torch.fx.GraphModule(tracer.root, graph)


class _Proxy(torch.fx.Proxy):
    def __setitem__(self, index: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, index, value), {})

    def __iter__(self) -> Any:
        raise TypeError("the number of items is not known")


class _Tracer(torch.fx.Tracer):
    def proxy(self, node: torch.fx.Node) -> torch.fx.Proxy:
        return _Proxy(node, self)


class _Factories(TorchFunctionMode):
    """Puts calls that make tensors from nothing into the graph of `tracer` instead of running
    them."""

    CALLS = (
        torch.zeros,
        torch.ones,
        torch.empty,
        torch.full,
        torch.rand,
        torch.randn,
        torch.arange,
    )

    def __init__(self, tracer: torch.fx.Tracer) -> None:
        self.tracer = tracer

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.CALLS:
            return self.tracer.create_proxy("call_function", func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def check_metadata(graph: AtenGraph, args: list[torch.Tensor]) -> None:
    """Run every node on real tensors: what comes out has the dtype, sizes and strides that the node
    says."""
    values: dict[torch.fx.Node, Any] = {}
    remaining = iter(args)
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            values[node] = next(remaining)
        elif node.op == "get_attr":
            values[node] = graph.constants[node.target]
        elif node.op == "call_function":
            node_args, node_kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
            with torch.no_grad():
                values[node] = node.target(*node_args, **node_kwargs)
            for real, fake in zip(flat(values[node]), flat(node.meta["val"]), strict=True):
                assert (real.dtype, real.shape) == (fake.dtype, fake.shape), node.format_node()
                assert real.stride() == fake.stride() or real.numel() == 0, node.format_node()


def flat(tree: Any) -> list[Any]:
    return [x for item in tree for x in flat(item)] if isinstance(tree, (list, tuple)) else [tree]


NEAR = Close(1e-5, 1e-5)


def assert_traced(
    fn: Callable[..., Any],
    *args: torch.Tensor,
    numbers: Numbers = NEAR,
    graph: AtenGraph | None = None,
) -> AtenGraph:
    """The graph that `fn` is traced to, or this `graph`, does what `fn` does; each of its nodes has
    the dtype, sizes and strides that it says."""
    graph = graph or traced(fn, *args)
    if not graph.shapes.hints:
        check_metadata(graph, copies(args))
    with torch.no_grad():
        assert_call(graph.function(), fn, *args, numbers=numbers, structure=False)
    return graph
