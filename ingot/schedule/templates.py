"""Matrix products of a GPU's that may be kernels of ours: with what comes next computed on their finished tiles, where
the library's call leaves that to a kernel of its own. Which it is, somebody else decides (`runtime/tuning.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from ingot.loops.expr import ZERO, Expr, Symbol, loop_symbol, product
from ingot.loops.ir import (
    Access,
    Body,
    Buffer,
    Contraction,
    Instruction,
    Library,
    LoopGraph,
    Node,
    Pointwise,
    View,
    symbols_in,
)
from ingot.schedule.epilogue import canonical_contraction, laid_over_contraction
from ingot.schedule.fuse import Group
from ingot.schedule.kernel import Tiling
from ingot.schedule.plan import Plan

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_PRODUCTS = (torch.mm, torch.bmm, torch.addmm)


@dataclass(frozen=True)
class Site:
    """A product that is the group number `first`, and what is computed of it at once, up to the group `last` (`first`
    again where that is nothing). `members` are the nodes of one kernel that does it all, a contraction and what is laid
    over it; `sums` are the buffers of theirs that nobody else knows, `given` those that the program itself is given."""

    first: int
    last: int
    members: tuple[Node, ...]
    sums: dict[str, Buffer] = field(hash=False)
    given: frozenset[str]
    sizes: tuple[int, int, int, int]  # of the batch, the rows, the columns and the reduction
    dtype: torch.dtype
    where: str

    @property
    def title(self) -> str:
        batch, rows, columns, depth = self.sizes
        shape = f"{f'{batch} x ' if batch > 1 else ''}[{rows}, {depth}] @ [{depth}, {columns}]"
        return f"{shape} of {str(self.dtype).removeprefix('torch.')}"


Choose = Callable[[Sequence[Site], Callable[[Site, Tiling | None], Plan]], Sequence[Tiling | None]]
"""Given the sites of a program, and what plans one of them alone, as it is or with a tiling: the tilings of those that
become kernels, None for the others."""


def sites(groups: Sequence[Group], graph: LoopGraph) -> list[Site]:
    """The products among groups in execution order that one kernel could compute, in order."""
    found: list[Site] = []
    taken: set[int] = set()
    for k in range(len(groups) - 1, -1, -1):
        draft = _contraction_of(groups[k], graph)
        if draft is None:
            continue
        contraction, rest, sums = draft
        members = _with_epilogue([canonical_contraction(contraction)], rest)
        if members is None:
            continue
        last = _follower(k, groups)
        more = None if last is None or last in taken else _with_epilogue(members, groups[last].members)
        if last is None or more is None or not _is_fixed(more, graph):
            last, more = k, members
        if not _is_fixed(more, graph):
            continue
        taken.add(last)
        batch, rows, columns, depth = (product(s.extent for s in loops).constant or 0 for loops in _loops(contraction))
        dtype, where = graph.buffers[contraction.left.buffer].dtype, groups[k].members[0].origin.where
        given = frozenset(n for j in (k, last) for n in groups[j].touches if graph.buffers[n].role != "temporary")
        found.append(Site(k, last, tuple(more), sums, given, (batch, rows, columns, depth), dtype, where))
    return found[::-1]


def _loops(node: Contraction) -> tuple[tuple[Symbol, ...], ...]:
    return node.batch, node.rows, node.columns, node.reduced


def _contraction_of(group: Group, graph: LoopGraph) -> tuple[Contraction, list[Pointwise], dict[str, Buffer]] | None:
    """A library's product as a contraction, and as nodes what else the call does: it adds a bias to the sums, and
    rounds them."""
    node = group.members[0]
    if not isinstance(node, Library) or node.function not in _PRODUCTS or node.kwargs or node.out != "out":
        return None
    *bias, left, right = node.args
    (target,) = node.targets
    if target is None or any(not isinstance(v, View) for v in node.args) or len(bias) != (node.function is torch.addmm):
        return None
    made = graph.buffers[target]
    sizes = (*made.sizes, left.sizes[-1])
    if any(v.dtype is not made.dtype for v in node.args) or made.dtype not in DTYPES:
        return None
    if any(size.constant is None or size.constant == 0 for size in (*sizes, *made.strides)) or made.on_host:
        return None
    *batch, row, column, inner = (loop_symbol(name, size) for name, size in zip("bmnk"[-len(sizes) :], sizes))
    at = (*batch, row, column)
    index = _index(at, made.strides)
    a = Access(left.buffer, _index((*batch, row, inner), left.strides) + left.offset)
    b = Access(right.buffer, _index((*batch, inner, column), right.strides) + right.offset)
    plain = not bias and made.dtype is torch.float32
    sums = made if plain else replace(made, name=f"{target}_sums", dtype=torch.float32, role="temporary")
    contraction = Contraction(
        node.name, node.origin, tuple(batch), (row,), (column,), (inner,), a, b, sums.name, index, torch.float32
    )
    if plain:
        return contraction, [], {}
    body = [Instruction("load", (), torch.float32, (sums.name, index))]
    for view in bias:
        own = at[len(at) - len(view.sizes) :]
        steps = [ZERO if size.constant == 1 else stride for size, stride in zip(view.sizes, view.strides)]
        body.append(Instruction("load", (), view.dtype, (view.buffer, _index(own, steps) + view.offset)))
        if view.dtype is not torch.float32:
            body.append(Instruction("to", (len(body) - 1,), torch.float32))
        body.append(Instruction("add", (0, len(body) - 1), torch.float32))
    if made.dtype is not torch.float32:
        body.append(Instruction("to", (len(body) - 1,), made.dtype))
    finish = Pointwise(f"{node.name}_finish", node.origin, at, Body(tuple(body), (len(body) - 1,)), target, index)
    return contraction, [finish], {sums.name: sums}


def _is_fixed(members: Sequence[Node], graph: LoopGraph) -> bool:
    """Whether no symbol is left in nodes and the layout of what they touch, and all of it is on the device."""
    touched = [graph.buffers[n] for m in members for n in (*m.reads(), *m.writes()) if n in graph.buffers]
    fixed = all(e.constant is not None for b in touched for e in (*b.sizes, *b.strides))
    return fixed and not any(b.on_host for b in touched) and not any(map(symbols_in, members))


def _index(loops: Sequence[Expr], strides: Sequence[Expr]) -> Expr:
    return sum((s * stride for s, stride in zip(loops, strides, strict=True)), ZERO)


def _with_epilogue(members: Sequence[Node], nodes: Sequence[Node]) -> list[Node] | None:
    """The members, which begin with a contraction, and `nodes` laid over it one by one, if that can be."""
    laid: list[Node] | None = list(members)
    for node in nodes:
        laid = laid_over_contraction(node, laid, along=False) if laid is not None else None
    return laid


def _follower(k: int, groups: Sequence[Group]) -> int | None:
    """The first group that touches what the group number k writes, if that may wait until then."""
    group = groups[k]
    for j in range(k + 1, len(groups)):
        if groups[j].touches & group.writes:
            return None if groups[j].on_host or groups[j].overlay is None else j
        if groups[j].writes & group.reads:
            return None
    return None


# -- the groups of a choice --------------------------------------------------------------------------------------------


def _group(site: Site, tiling: Tiling, groups: Sequence[Group]) -> Group:
    """The group of a kernel that computes all of a site."""
    reads = set().union(*(m.reads() for m in site.members))
    writes = {name for m in site.members for name in m.writes()}
    last = groups[site.last]
    return Group(last.id, last.positions, list(site.members), reads, writes, last.before, tiling=tiling)


def with_templates(
    groups: Sequence[Group], graph: LoopGraph, found: Sequence[Site], chosen: Sequence[Tiling | None]
) -> tuple[list[Group], LoopGraph]:
    """The groups and the graph where each site with a tiling is a kernel, at the place of its last group."""
    made: dict[int, Group | None] = {}
    sums: dict[str, Buffer] = {}
    for site, tiling in zip(found, chosen, strict=True):
        if tiling is not None:
            made[site.first] = None
            made[site.last] = _group(site, tiling, groups)
            sums |= site.sums
    if not made:
        return list(groups), graph
    kept = [made.get(k, group) for k, group in enumerate(groups)]
    return [g for g in kept if g is not None], replace(graph, buffers={**graph.buffers, **sums})


def excerpt(
    site: Site, tiling: Tiling | None, groups: Sequence[Group], graph: LoopGraph
) -> tuple[list[Group], LoopGraph]:
    """A site alone, as it is or as a kernel: what is seen from outside is an input of the graph."""
    own = [replace(groups[k]) for k in sorted({site.first, site.last})]
    outside = [g for k, g in enumerate(groups) if k not in (site.first, site.last)]
    seen = {v.buffer for v in graph.outputs if isinstance(v, View)} | graph.checked
    seen = seen.union(*(g.touches for g in outside))
    touched, written = (set().union(*names) for names in ((g.touches for g in own), (g.writes for g in own)))
    given = {n for n in touched if n in seen or n not in written or graph.buffers[n].role != "temporary"}
    inputs = sorted(given)
    buffers = {name: replace(graph.buffers[name], role="input") for name in inputs}
    buffers |= {name: graph.buffers[name] for name in written - given} | site.sums
    made = [_group(site, tiling, groups)] if tiling is not None else own
    return made, LoopGraph(buffers, [m for g in made for m in g.members], inputs)

