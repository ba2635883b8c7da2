"""Branches and loops in graphs for other backends: torch's higher-order operators.

In: a captured graph, in which they are ops of `control_ops`. Out: the same graph with calls of
`torch.ops.higher_order`, whose functions are submodules, as in torch.compile's graphs.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from ingot.graph.control_ops import Cond, ControlFlow, Scan, WhileLoop


def with_higher_order_ops(graph: Graph) -> torch.nn.Module:
    """Rewrites the branches and loops of a graph; gives the module with their functions."""
    root = torch.nn.Module()
    for node in list(graph.nodes):
        if isinstance(node.target, ControlFlow):
            _Writer(root, graph, node).write()
    return root


class _Writer:
    """Puts a higher-order operator in the place of a node."""

    def __init__(self, root: torch.nn.Module, graph: Graph, node: Node) -> None:
        self.root, self.graph, self.node = root, graph, node

    def write(self) -> None:
        op, args = self.node.target, self.node.args
        with self.graph.inserting_before(self.node):
            if isinstance(op, Cond):
                call = self._cond(op, *args)
            elif isinstance(op, WhileLoop):
                call = self._while_loop(op, *args)
            else:
                assert isinstance(op, Scan)
                call = self._scan(op, *args)
        call.meta.update(self.node.meta)
        self.node.replace_all_uses_with(call)
        self.graph.erase_node(self.node)

    def _cond(self, op: Cond, predicate: Any, tensors: Any, sizes: Any) -> Node:
        names = ("true_graph", "false_graph")
        branches = map(self._function, names, map(_rewritten, op.graphs))
        return self._call("cond", predicate, *branches, (*tensors, *sizes))

    def _while_loop(self, op: WhileLoop, tensors: Any, sizes: Any) -> Node:
        condition, body = map(_rewritten, op.graphs)
        _give_one(condition)
        count = len(op.results)
        functions = map(self._function, ("cond_graph", "body_graph"), (condition, body))
        return self._call(
            "while_loop", *functions, tuple(tensors[:count]), (*tensors[count:], *sizes)
        )

    def _scan(self, op: Scan, tensors: Any, sizes: Any) -> Node:
        state, mapped, others = op.split(tensors)
        if op.is_reversed:
            mapped = list(map(self._flipped, mapped))
            for use in list(self.node.users):
                self._flip_rows(op, use)
        (module,) = map(_rewritten, op.graphs)
        others.extend(sizes)
        if state:
            body = self._function("scan_combine_graph", module)
            return self._call("scan", body, state, mapped, tuple(others))
        body = self._function("map_body_graph", module)
        return self._call("map_impl", body, tuple(mapped), tuple(others))

    def _flip_rows(self, op: Scan, use: Node) -> None:
        """Puts what was stacked in the order of the slices, where a node takes it."""
        assert use.target is operator.getitem
        if use.args[1] >= op.carried:  # type: ignore[operator]
            with self.graph.inserting_after(use):
                flipped = self._flipped(use)
            use.replace_all_uses_with(flipped, delete_user_cb=lambda user: user is not flipped)

    def _flipped(self, node: Node) -> Node:
        flipped = self.graph.call_function(torch.flip, (node, (0,)))
        flipped.meta.update(node.meta)  # both are dense
        return flipped

    def _function(self, name: str, module: GraphModule) -> Node:
        """The node of a function, which is a submodule of a free name."""
        number = 0
        while hasattr(self.root, f"{name}_{number}"):
            number += 1
        path = f"{name}_{number}"
        self.root.add_module(path, module)
        node = self.graph.get_attr(path)
        node.meta["val"] = None
        return node

    def _call(self, name: str, *args: Any) -> Node:
        return self.graph.call_function(getattr(torch.ops.higher_order, name), args)


def _rewritten(module: GraphModule) -> GraphModule:
    """A copy of a function's graph without ops of Ingot's own."""
    graph, copies = Graph(), dict[Node, Node]()
    graph.output(graph.graph_copy(module.graph, copies))
    root = with_higher_order_ops(graph)
    return GraphModule(root, graph)


def _give_one(condition: GraphModule) -> None:
    """Has a graph give its only result, where it gives a tuple of it."""
    (output,) = condition.graph.find_nodes(op="output")
    output.args = tuple(output.args[0])
    condition.recompile()
