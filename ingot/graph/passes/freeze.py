"""Frozen inputs: parameters that the user promises not to change are constants of the graph."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ingot.graph.aten_graph import AtenGraph


def freeze(graph: AtenGraph, values: Mapping[int, torch.Tensor]) -> None:
    """Read the inputs at these positions from `values` instead, save those that the program writes
    or returns."""
    inputs, written = graph.inputs, graph.mutated
    for position, value in values.items():
        node = inputs[position]
        if position in written:
            continue
        name = f"frozen_{node.name}"
        with graph.graph.inserting_after(inputs[-1]):
            constant = graph.graph.create_node("get_attr", name, name=name)
        constant.meta.update(node.meta)
        graph.constants[name] = value.detach()
        node.replace_all_uses_with(constant, delete_user_cb=lambda user: user.op != "output")
