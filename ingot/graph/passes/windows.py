"""Windows on values that were written in part: what such a window shows is known without the
whole."""

from __future__ import annotations

from typing import Any

import torch

from ingot.graph import geometry
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.fakes import FakeTensor
from ingot.graph.passes.ownership import is_view
from ingot.torch_private import aten


def see_through_writes(graph: AtenGraph) -> None:
    """A slice of a slice_scatter along the same dimension is a slice of what was there before, or
    of what was written, or just that. In-place ops on parts of a tensor leave chains of them."""
    for node in list(graph.graph.nodes):
        if node.target is not aten.slice.Tensor:
            continue
        source, dim, start, end = _seen(node)
        if source is node.args[0] or not _may_replace(source, node):
            continue
        value: FakeTensor = source.meta["val"]
        if end - start < value.shape[dim]:
            with graph.graph.inserting_before(node):
                part = graph.graph.call_function(aten.slice.Tensor, (source, dim, start, end))
            part.meta.update(
                node.meta, val=FakeTensor(value.meta.narrow(dim, start, end - start), value.device)
            )
            source = part
        node.replace_all_uses_with(source)
        graph.graph.erase_node(node)


def _seen(node: torch.fx.Node) -> tuple[torch.fx.Node, int, int, int]:
    """What has all the elements of a slice, and where: (source, dimension, start, end)."""
    source: Any = node.args[0]
    window = _window(node, 1)
    while window is not None and source.target is aten.slice_scatter.default:
        dim, start, end = window
        written = _window(source, 2)
        if written is None or written[0] != dim:
            break
        _, low, high = written
        if end <= low or high <= start:
            source = source.args[0]
        elif low <= start and end <= high:
            source, window = source.args[1], (dim, start - low, end - low)
        else:
            break
    return source, *(window or (0, 0, 0))


def _window(node: torch.fx.Node, first: int) -> tuple[int, int, int] | None:
    """(dimension, start, end) of a slice whose arguments begin at position `first`; None for one
    with steps, or whose place is not known."""
    value: Any = node.args[0].meta["val"]  # type: ignore[union-attr]
    given: Any = (*node.args[first:], *(0, None, None, 1)[len(node.args) - first :])
    dim, start, end, step = given
    bounds = (
        0 if start is None else start,
        value.shape[dim] if end is None else end,
        value.shape[dim],
    )
    if node.kwargs or step != 1 or not all(type(bound) is int for bound in bounds):
        return None
    low, high, _ = slice(*bounds[:2]).indices(bounds[2])
    return dim % value.dim(), low, max(low, high)


def _may_replace(source: torch.fx.Node, node: torch.fx.Node) -> bool:
    """Whether those who read `node` may read (a part of) `source` instead: its elements have the
    same order in memory, and nobody asks for more than that."""
    strides = [n.meta["val"].stride() for n in (node, source)]
    if strides[0] == strides[1]:
        return True
    order = [sorted(range(len(s)), key=s.__getitem__) for s in strides]
    return order[0] == order[1] and not any(
        user.op == "output" or is_view(user) for user in node.users
    )


def see_through_joins(graph: AtenGraph) -> None:
    """All parts of a tensor along its first dimension, joined again in order, are a view of it."""
    for node in list(graph.graph.nodes):
        whole = _taken_apart(node)
        if whole is not None:
            sizes = list(node.meta["val"].shape)
            with graph.graph.inserting_before(node):
                view = graph.graph.call_function(aten.view.default, (whole, sizes))
            value: FakeTensor = whole.meta["val"]
            view.meta.update(node.meta, val=FakeTensor(value.meta.view(sizes), value.device))
            node.replace_all_uses_with(view)
            graph.graph.erase_node(node)


def _taken_apart(node: torch.fx.Node) -> torch.fx.Node | None:
    """The contiguous tensor whose selections, all and in order, a node joins along their first
    dimension."""
    joins = node.target is aten.cat.default and not node.kwargs and node.args[1:] in ((), (0,))
    parts: Any = node.args[0] if joins else ()
    wholes = {
        part.args[0] for part in parts if part.target is aten.select.int and part.args[1] == 0
    }
    if len(wholes) != 1 or any(user.op == "output" for user in node.users):
        return None
    (whole,) = wholes
    value = whole.meta["val"]
    same = (
        geometry.surely_contiguous(value)
        and geometry.surely_contiguous(node.meta["val"])
        and value.dim() > 1
    )
    places = [
        part.args[2] if part.args[0] is whole and part.target is aten.select.int else None
        for part in parts
    ]
    return (
        whole
        if same and places == list(range(len(parts))) and len(parts) == value.shape[0]
        else None
    )
