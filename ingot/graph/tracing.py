"""Trace: run a captured graph on fakes and write down the ATen ops it amounts to.

What comes out is functionalized: it holds no in-place op and no out=. The call itself has no side
effect.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from types import MappingProxyType
from typing import Any

import torch
import torch.fx
from torch.fx import GraphModule, Node

from ingot.errors import CompilerBug, Unsupported
from ingot.graph.ambient import preserved
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.aten_tracer import EAGER_SAVES, AtenTracer
from ingot.graph.composites import override
from ingot.graph.differentiation import differentiates, want_gradients
from ingot.graph.fake_context import FakeContext
from ingot.graph.passes import run_passes
from ingot.graph.passes.freeze import freeze
from ingot.graph.repeats import Repeats
from ingot.serial import safe_point


def trace(
    gm: GraphModule,
    fakes: Sequence[Any],
    context: FakeContext,
    frozen: Mapping[int, torch.Tensor] = MappingProxyType({}),
    simplify: Callable[[AtenGraph], None] | None = None,
) -> AtenGraph:
    """The functional ATen graph of `gm`, whose placeholders stand for `fakes` in order, after all
    passes, or what `simplify` does instead. Those at the positions in `frozen` always have these
    values.

    Raises Unsupported, with the user's line, for what has no functional form or depends on data.
    """
    tracer = AtenTracer(context)
    differentiable = differentiates(gm)
    grad_mode = nullcontext() if differentiable else torch.no_grad()
    with preserved(), grad_mode, tracer:
        inputs = tracer.inputs(gm.graph.nodes, fakes)
        if differentiable:
            want_gradients(inputs, fakes)
        outputs = run_nodes(gm, tracer, inputs)
    aten_graph = tracer.finish(outputs)
    freeze(aten_graph, frozen)
    (simplify or run_passes)(aten_graph)
    return aten_graph


def run_nodes(gm: GraphModule, tracer: AtenTracer, inputs: Sequence[Any]) -> list[Any]:
    """Run the captured graph node by node on `inputs`, the tracer's own; the flat list of its
    outputs."""
    output = next(iter(reversed(gm.graph.nodes)))
    if output.op != "output":
        raise CompilerBug("trace", "the captured graph has no output")
    values = values_of(gm, tracer, gm.graph.nodes, inputs)
    return list(flat(torch.fx.map_arg(output.args[0], values.__getitem__)))


def values_of(
    gm: GraphModule, tracer: AtenTracer, nodes: Iterable[Any], inputs: Sequence[Any]
) -> dict[Node, Any]:
    """The values of some nodes of the captured graph, run on the tracer's inputs."""
    values: dict[Node, Any] = {}
    remaining = iter(inputs)
    repeats = Repeats(tracer)
    for node in nodes:
        safe_point()
        tracer.where = tracer.context.shapes.where = node.meta.get("where", "")
        tracer.region, tracer.policy = node.meta.get("region"), node.meta.get("policy")
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
        try:
            if node.op == "placeholder":
                values[node] = next(remaining)
            elif node.op == "get_attr":
                values[node] = tracer.literal(operator.attrgetter(node.target)(gm))
            elif node.op == "call_function":
                values[node] = repeats.run(node.target, override(node.target), args, kwargs)
            elif node.op == "call_method":
                method = override(getattr(type(args[0]), node.target))
                values[node] = repeats.run(node.target, method, args, kwargs)
            elif node.op == "call_module":
                values[node] = gm.get_submodule(node.target)(*args, **kwargs)
        except Unsupported as reason:
            reason.why = reason.why.at(tracer.where)
            raise
        if torch.is_grad_enabled():
            tracer.backward_lines.note(values.get(node), tracer.where)
        if EAGER_SAVES in node.meta:
            tracer.note_saved(values[node])
    return values


def flat(tree: Any) -> Iterable[Any]:
    """The leaves of nested lists and tuples."""
    if isinstance(tree, (list, tuple)):
        for item in tree:
            yield from flat(item)
    else:
        yield tree
