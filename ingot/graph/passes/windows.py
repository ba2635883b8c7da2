"""Slices of values that were written in part, which can be read without the whole; and pieces that
are joined to the whole again."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from ingot.graph import geometry
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.fakes import FakeTensor
from ingot.graph.functional import same_strides
from ingot.graph.nodes import add_call, fake_result, is_returned
from ingot.graph.passes.ownership import is_view
from ingot.torch_private import ADDRESSING, aten


def see_through_writes(graph: AtenGraph) -> None:
    """A slice of a slice_scatter along the same dimension is a slice of what was there before, or
    of what was written, or just that. In-place ops on parts of a tensor leave chains of them."""
    for node in list(graph.graph.nodes):
        if node.target is not aten.slice.Tensor:
            continue
        source, dim, start, end = _source_of(node)
        if source is node.args[0] or not _may_replace(source, node):
            continue
        value: FakeTensor = fake_result(source)
        if end - start < value.shape[dim]:
            fake = FakeTensor(value.meta.narrow(dim, start, end - start), value.device)
            args = (source, dim, start, end)
            with graph.graph.inserting_before(node):
                source = add_call(graph.graph, aten.slice.Tensor, args, node.meta, val=fake)
        graph.replace(node, source)


def _source_of(node: Node) -> tuple[Node, int, int, int]:
    """The earliest value with all elements of a slice, and where: (source, dimension, start,
    end)."""
    source: Any = node.args[0]
    place = _place(node, 1)
    while place is not None and source.target is aten.slice_scatter.default:
        dim, start, end = place
        written = _place(source, 2)
        if written is None or written[0] != dim:
            break
        _, low, high = written
        if end <= low or high <= start:
            source = source.args[0]
        elif low <= start and end <= high:
            source, place = source.args[1], (dim, start - low, end - low)
        else:
            break
    return source, *(place or (0, 0, 0))


def _place(node: Node, first: int) -> tuple[int, int, int] | None:
    """(dimension, start, end) of a slice whose arguments begin at position `first`; None for one
    with steps, or whose place is not known."""
    value: Any = fake_result(node.args[0])  # type: ignore[union-attr]
    args: Any = (*node.args[first:], *(0, None, None, 1)[len(node.args) - first :])
    dim, start, end, step = args
    size = value.shape[dim]
    for bound in (start, end, size):
        if bound is not None and type(bound) is not int:
            return None
    if node.kwargs or step != 1:
        return None
    low, high, _ = slice(start, end).indices(size)
    return dim % value.dim(), low, max(low, high)


def _may_replace(source: Node, node: Node) -> bool:
    """Whether the readers of `node` may read (a slice of) `source` instead. They may if its strides
    are the same, or in the same order where no reader depends on more."""
    strides, others = fake_result(node).stride(), fake_result(source).stride()
    if strides == others:
        return True
    dims = range(len(strides))
    if sorted(dims, key=strides.__getitem__) != sorted(range(len(others)), key=others.__getitem__):
        return False
    return not any(user.op == "output" or is_view(user) for user in node.users)


def see_through_splits(graph: AtenGraph) -> None:
    """All slices of a tensor along one dimension, joined again in order, are that tensor."""
    nodes = list(graph.graph.nodes)
    # as_strided and its kin count from the beginning of a memory, and a joined copy has its own
    if any(node.target in ADDRESSING for node in nodes):
        return
    for node in nodes:
        whole = _split_of(node)
        if whole is not None:
            graph.replace(node, whole)


def _split_of(node: Node) -> Node | None:
    """The tensor of whose slices, all and in order, a node is made, if it has the same strides."""
    pieces: Any = node.args[0] if node.target is aten.cat.default and not node.kwargs else ()
    if not pieces or any(piece.target is not aten.slice.Tensor for piece in pieces):
        return None
    whole = pieces[0].args[0]
    value: FakeTensor = fake_result(whole)
    along: Any = node.args[1] if len(node.args) > 1 else 0
    dim, end = along % value.dim(), 0
    for piece in pieces:
        place = _place(piece, 1)
        if piece.args[0] is not whole or place is None or place[:2] != (dim, end):
            return None
        end = place[2]
    is_whole = end == value.shape[dim] and same_strides(value, fake_result(node))
    return whole if is_whole else None


def see_through_joins(graph: AtenGraph) -> None:
    """All pieces of a tensor along its first dimension, joined again in order, are a view of it."""
    for node in list(graph.graph.nodes):
        whole = _whole_of(node)
        if whole is not None:
            sizes = list(fake_result(node).shape)
            value: FakeTensor = fake_result(whole)
            fake = FakeTensor(value.meta.view(sizes), value.device)
            with graph.graph.inserting_before(node):
                view = add_call(graph.graph, aten.view.default, (whole, sizes), node.meta, val=fake)
            graph.replace(node, view)


def _whole_of(node: Node) -> Node | None:
    """The contiguous tensor whose selections, all and in order, a node joins along their first
    dimension."""
    if node.target is not aten.cat.default or node.kwargs or node.args[1:] not in ((), (0,)):
        return None
    if is_returned(node):
        return None
    pieces: Any = node.args[0]
    for place, piece in enumerate(pieces):
        if piece.target is not aten.select.int or piece.args[0] is not pieces[0].args[0]:
            return None
        if piece.args[1] != 0 or piece.args[2] != place:
            return None
    whole = pieces[0].args[0]
    value = fake_result(whole)
    if value.dim() <= 1 or len(pieces) != value.shape[0]:
        return None
    if not geometry.surely_contiguous(value):
        return None
    if geometry.surely_contiguous(fake_result(node)):
        return whole
    return None
