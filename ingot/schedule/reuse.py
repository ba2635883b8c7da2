"""Writing in place: where the last reader of a buffer is the writer of another of the same layout,
they become one buffer.

Done on fused groups, before kernels are built, by renaming: the dead buffer takes the name of the
new one everywhere before. Whether an input is dead once it has been read, only the call tells: what
may then be written over it keeps its name, and is given the input's memory by the run time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, TypeVar

from ingot.loops.depthwise import DepthwiseGradient
from ingot.loops.ir import (
    Attention,
    AttentionBackward,
    Buffer,
    Contraction,
    Library,
    LoopGraph,
    Node,
    Pointwise,
    Reduction,
    Scan,
    View,
    view_fields,
)
from ingot.schedule.build import assign_stages
from ingot.schedule.groups import Group
from ingot.schedule.nests import Compute

ComputeNode = TypeVar("ComputeNode", bound=Compute)


def write_in_place(groups: Sequence[Group], internal: Sequence[set[str]], graph: LoopGraph) -> None:
    """Rename dead temporaries of `groups` (in execution order) to the buffers that may overwrite
    them."""
    touching = _positions([group.touches for group in groups])
    writing = _positions([group.writes for group in groups])
    last_reader = {}
    for name, positions in touching.items():
        last_reader[name] = positions[-1]
    members = chain.from_iterable(group.members for group in groups)
    kept = graph.returned | retained_by(members)
    replaced: dict[str, str] = {}
    for k, group in enumerate(groups):
        if group.overlay is None and not isinstance(group.members[0], Contraction):
            continue
        targets = group.writes - internal[k] - group.reads
        for target in filter(graph.is_temporary, sorted(targets)):
            for dead in sorted(group.reads - group.writes):
                if last_reader[dead] != k or dead in kept or dead in replaced:
                    continue
                if not graph.is_temporary(dead) or not _alike(graph, dead, target):
                    continue
                if _meets(touching[dead], writing[target], k):
                    continue
                if _overwritable(group, dead, target):
                    replaced[dead] = target
                    last_reader[dead] = -1
                    break
    if replaced:
        for group in groups:
            _rename(group, replaced)


def lend_inputs(
    groups: Sequence[Group], internal: Sequence[set[str]], graph: LoopGraph
) -> list[dict[str, str]]:
    """For each group, what it may write over the inputs that the graph lends, by the input: each
    lends once."""
    touching = _positions([group.touches for group in groups])
    lends = graph.lends - graph.returned
    by_group: list[dict[str, str]] = []
    for k, group in enumerate(groups):
        loans: dict[str, str] = {}
        dying = []
        for name in sorted(group.reads & lends):
            if touching[name][-1] == k:
                dying.append(name)
        targets = group.writes - internal[k] - group.reads
        if group.overlay is None:
            targets = set()
        for target in filter(graph.is_temporary, sorted(targets)):
            for dead in dying:
                alike = _alike(graph, dead, target) and touching[target][0] == k
                if dead not in loans and alike and _overwritable(group, dead, target):
                    loans[dead] = target
                    break
        by_group.append(loans)
    return by_group


def retained_by(nodes: Iterable[Node]) -> set[str]:
    """The buffers that a library call may keep for itself: their memory is nobody else's."""
    retained: set[str] = set()
    for node in nodes:
        if isinstance(node, Library) and node.retains:
            retained.update(node.reads(), node.writes())
    return retained


def _positions(sets: Iterable[set[str]]) -> dict[str, list[int]]:
    """By buffer: the positions of the sets that have it, in order."""
    positions: dict[str, list[int]] = defaultdict(list)
    for k, names in enumerate(sets):
        for name in names:
            positions[name].append(k)
    return positions


def _meets(touching: Sequence[int], writing: Sequence[int], here: int) -> bool:
    """Whether another group than `here` writes its part of one buffer while another is in use,
    which those in `touching` touch."""
    last = max((k for k in touching if k != here), default=-1)
    return any(k <= last for k in writing if k != here)


# a graph is of one device, and of the CPU beside it
_LAYOUT = ("dtype", "sizes", "strides", "on_host")


def _alike(graph: LoopGraph, one: str, other: str) -> bool:
    return are_alike(graph.buffers[one], graph.buffers[other])


def are_alike(a: Buffer, b: Buffer) -> bool:
    """Whether two buffers lie alike in memory."""
    return all(getattr(a, name) == getattr(b, name) for name in _LAYOUT)


def _overwritable(group: Group, dead: str, target: str) -> bool:
    """Whether each element of `dead` is read only at the point that overwrites it, and by members
    up to the writer."""
    if group.overlay is None:
        before = any(dead in node.reads() for node in group.prologues if node)
        return not before and _overwritable_by_epilogue(group.members, dead, target)
    laid = group.overlay
    targets = [m.target for m in laid.members]
    if targets.count(target) != 1:
        return False
    at = targets.index(target)
    writer = laid.members[at]
    if not isinstance(writer, Pointwise) or writer.scatters:
        return False
    readers = []
    for k, m in enumerate(laid.members):
        places = m.body.places(dead)
        if places:
            if k > at or laid.inner[k] != laid.inner[at] or {*places} != {writer.index}:
                return False
            readers.append(k)
    stages = []
    if readers:
        stages = assign_stages(laid)
    return all(stages[k] <= stages[at] for k in readers)


def _overwritable_by_epilogue(members: Sequence[Node], dead: str, target: str) -> bool:
    """The same for a contraction and what is computed on its tiles. Its operands are read
    elsewhere."""
    writer = next(k for k, m in enumerate(members) if target in m.writes())
    index = members[writer].index  # type: ignore[attr-defined]
    for k, m in enumerate(members):
        if isinstance(m, Contraction):
            if dead in m.reads():
                return False
            continue
        assert isinstance(m, Pointwise)
        places = m.body.places(dead)
        if places and (k > writer or {*places} != {index}):
            return False
    return True


def _rename(group: Group, replaced: dict[str, str]) -> None:
    def final(name: str) -> str:
        while name in replaced:
            name = replaced[name]
        return name

    def put(node: Any) -> Any:
        return node and renamed(node, final)

    if not group.touches & replaced.keys():
        return
    group.members = list(map(put, group.members))
    left, right = map(put, group.prologues)
    group.prologues = left, right
    group.reads, group.writes = set(map(final, group.reads)), set(map(final, group.writes))
    if group.overlay is not None:
        members = tuple(map(put, group.overlay.members))
        group.overlay = replace(group.overlay, members=members)


def renamed(node: Any, final: Callable[[str], str]) -> Any:
    """A node that touches the buffer `final(name)` in place of `name`."""
    return _RENAMED[type(node)](node, final)


def _renamed_views(node: Any, final: Any) -> Any:
    views: dict[str, Any] = view_fields(node)
    for name, view in views.items():
        views[name] = replace(view, buffer=final(view.buffer))
    return replace(node, **views)


def _renamed_compute(node: ComputeNode, final: Any) -> ComputeNode:
    return replace(node, target=final(node.target), body=node.body.with_buffers(final))


def _renamed_contraction(node: Contraction, final: Any) -> Contraction:
    left = replace(node.left, buffer=final(node.left.buffer))
    right = replace(node.right, buffer=final(node.right.buffer))
    weights = node.weights and node.weights.with_buffers(final)
    return replace(node, left=left, right=right, target=final(node.target), weights=weights)


def renamed_library(node: Library, final: Any) -> Library:
    def put(tree: Any) -> Any:
        if isinstance(tree, View):
            return replace(tree, buffer=final(tree.buffer))
        if isinstance(tree, dict):
            return dict(zip(tree, map(put, tree.values())))
        if isinstance(tree, (tuple, list)):
            return type(tree)(map(put, tree))
        return tree

    return replace(
        node,
        args=put(node.args),
        kwargs=put(node.kwargs),
        targets=tuple([name and final(name) for name in node.targets]),
        mutates=tuple(map(final, node.mutates)),
    )


_RENAMED: dict[type, Any] = {
    Pointwise: _renamed_compute,
    Reduction: _renamed_compute,
    Scan: _renamed_compute,
    Contraction: _renamed_contraction,
    Attention: _renamed_views,
    AttentionBackward: _renamed_views,
    DepthwiseGradient: _renamed_views,
    Library: renamed_library,
}
