"""Matrix products of a GPU's that may be kernels of ours: with what comes next computed on their
finished tiles, and what comes before on the tiles that are read, where the library's call leaves
that to kernels of their own. Whether they are, and in which form, somebody else decides
(`runtime/tuning.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from ingot.loops.expr import ZERO, Expr, Symbol, loop_symbol
from ingot.loops.ir import (
    Access,
    Body,
    BodyBuilder,
    Buffer,
    Contraction,
    Library,
    LoopGraph,
    Node,
    Pointwise,
    View,
    symbols_in,
)
from ingot.loops.spaces import address_of, points_of
from ingot.loops.target import Target
from ingot.schedule.cost import operations_of
from ingot.schedule.epilogue import Prologues, canonical_contraction, laid_over_contraction
from ingot.schedule.fuse import fuse
from ingot.schedule.groups import Group
from ingot.schedule.kernel import Tiling
from ingot.schedule.nests import walked_as
from ingot.schedule.plan import Plan
from ingot.schedule.split import product_in_parts

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_PRODUCTS = (torch.mm, torch.bmm, torch.addmm)

# What may be computed each time that an operand is read, and how much of it: the simple ops that
# come before products.
_IN_PROLOGUES = frozenset(
    "load constant to add sub mul neg where lt le gt ge maximum minimum".split()
)
MOST_BEFORE = 12  # instructions

# A product of so few blocks leaves multiprocessors idle: its sums may be cut into parts, which are
# added at the end.
PARTS = (2, 4, 8)
FEW_BLOCKS = 128
SQUARE = 64  # rows and columns of such a block
SHORTEST = 128  # steps of a part


@dataclass(frozen=True, eq=False)
class Form:
    """A way to compute a product by kernels: `groups`, of which the first is a contraction that
    needs a tiling, take the place of the program's groups at `positions`. `sizes` are those of the
    contraction's batch, rows, columns and reduction; `buffers` are made in between, `parts` is into
    how many parts the sums are cut, and `work` how many operations are done with each."""

    groups: tuple[Group, ...]
    positions: tuple[int, ...]
    sizes: tuple[int, int, int, int]
    buffers: dict[str, Buffer]
    parts: int = 1
    work: float = 0.0


@dataclass(frozen=True, eq=False)
class Site:
    """A product that the library computes, with the forms that could do so, all of them in place of
    some of the program's groups at `positions`. `given` are the buffers that the program itself is
    given."""

    positions: tuple[int, ...]
    forms: tuple[Form, ...]
    given: frozenset[str]
    sizes: tuple[int, int, int, int]
    dtype: torch.dtype
    where: str

    @property
    def title(self) -> str:
        batch, rows, columns, depth = self.sizes
        shape = f"{f'{batch} x ' if batch > 1 else ''}[{rows}, {depth}] @ [{depth}, {columns}]"
        return f"{shape} of {str(self.dtype).removeprefix('torch.')}"


Choice = tuple[Form, Tiling] | None
"""A form of a site, and how it is computed; None where the library is called."""

Choose = Callable[[Sequence[Site], Callable[[Site, Choice], Plan]], Sequence[Choice]]
"""Given the sites of a program, and what plans one of them alone as it would be chosen: the choice
for each."""


def sites(groups: Sequence[Group], graph: LoopGraph, target: Target) -> list[Site]:
    """The products among groups in execution order that kernels could compute, in order."""
    found: list[Site] = []
    taken: set[int] = set()
    for k in range(len(groups) - 1, -1, -1):
        draft = _contraction_of(groups[k], graph)
        if draft is None:
            continue
        last = _follower(k, groups)
        if last in taken:
            last = None
        before = [p for p in _makers(k, draft.contraction, groups, graph) if p not in taken]
        forms = list(_forms(draft, k, last, before, groups, graph, target))
        if not forms:
            continue
        whole = forms[0]
        positions = tuple(sorted({p for form in forms for p in form.positions}))
        taken.update(positions)
        touched = set().union(*(groups[j].touches for j in positions))
        given = frozenset(name for name in touched if not graph.is_temporary(name))
        dtype = graph.buffers[draft.contraction.left.buffer].dtype
        where = groups[k].members[0].origin.where
        found.append(Site(positions, tuple(forms), given, whole.sizes, dtype, where))
    return found[::-1]


@dataclass(frozen=True)
class _Draft:
    """A library's product as a contraction, `rest` of what the call does (it adds a bias to the
    sums, and rounds them), and the buffer in between, if there is one."""

    contraction: Contraction
    rest: tuple[Pointwise, ...]
    sums: tuple[Buffer, ...]


def _contraction_of(group: Group, graph: LoopGraph) -> _Draft | None:
    node = group.members[0]
    if not isinstance(node, Library) or not _is_plain_product(node):
        return None
    *bias, left, right = node.args
    (target,) = node.targets
    made = graph.buffers[target]  # type: ignore[index]
    sizes = (*made.sizes, left.sizes[-1])
    if any(v.dtype is not made.dtype for v in node.args) or made.dtype not in DTYPES:
        return None
    if any(size.constant is None or size.constant == 0 for size in (*sizes, *made.strides)):
        return None
    *batch, row, column, inner = (
        loop_symbol(name, size) for name, size in zip("bmnk"[-len(sizes) :], sizes)
    )
    at = (*batch, row, column)
    index = address_of(at, made.strides)
    a = Access(left.buffer, address_of((*batch, row, inner), left.strides, left.offset))
    b = Access(right.buffer, address_of((*batch, inner, column), right.strides, right.offset))
    plain = not bias and made.dtype is torch.float32
    sums = made
    if not plain:
        sums = replace(made, name=f"{target}_sums", dtype=torch.float32, role="temporary")
    contraction = Contraction(
        node.name,
        node.origin,
        tuple(batch),
        (row,),
        (column,),
        (inner,),
        a,
        b,
        sums.name,
        index,
        torch.float32,
    )
    contraction = canonical_contraction(contraction)
    if plain:
        return _Draft(contraction, (), ())
    body = _finish(sums, index, bias, made.dtype, at)
    finish = Pointwise(f"{node.name}_finish", node.origin, at, body, made.name, index)
    return _Draft(contraction, (finish,), (sums,))


def _is_plain_product(node: Library) -> bool:
    """Whether a call is a product of views, with or without a bias, written to one buffer."""
    if node.function not in _PRODUCTS or node.kwargs or node.out != "out":
        return False
    if node.targets[0] is None or not all(isinstance(v, View) for v in node.args):
        return False
    return len(node.args) == (3 if node.function is torch.addmm else 2)


def _finish(
    sums: Buffer, index: Expr, bias: Sequence[View], dtype: torch.dtype, at: Sequence[Symbol]
) -> Body:
    """What is done with each sum: a bias is added, and it is rounded."""
    builder = BodyBuilder()
    value = builder.emit("load", (), torch.float32, (sums.name, index))
    for view in bias:
        own = at[len(at) - len(view.sizes) :]
        steps = [
            ZERO if size.constant == 1 else stride for size, stride in zip(view.sizes, view.strides)
        ]
        place = address_of(own, steps, view.offset)
        addend = builder.emit("load", (), view.dtype, (view.buffer, place))
        if view.dtype is not torch.float32:
            addend = builder.emit("to", (addend,), torch.float32)
        value = builder.emit("add", (value, addend), torch.float32)
    if dtype is not torch.float32:
        value = builder.emit("to", (value,), dtype)
    return builder.body(value)


# -- what a product's kernel could take over -------------------------------------------------------


def _follower(k: int, groups: Sequence[Group]) -> int | None:
    """The first group that touches what the group number k writes, if that may wait until then."""
    group = groups[k]
    for j in range(k + 1, len(groups)):
        if groups[j].touches & group.writes:
            if groups[j].on_host or groups[j].overlay is None:
                return None
            return j
        if groups[j].writes & group.reads:
            return None
    return None


def _makers(
    k: int, contraction: Contraction, groups: Sequence[Group], graph: LoopGraph
) -> Iterator[int]:
    """The groups that do nothing but compute operands of the group number k, cheaply, from what is
    no product's."""
    returned = graph.required
    called = {name for g in groups if isinstance(g.members[0], Library) for name in g.writes}
    for j in range(k):
        group = groups[j]
        node = group.members[0]
        if (
            len(group.members) > 1
            or not isinstance(node, Pointwise)
            or node.mode != "store"
            or group.on_host
        ):
            continue
        if (
            node.target not in contraction.reads()
            or node.target in returned
            or group.reads & called
        ):
            continue
        if any(node.target in g.touches for i, g in enumerate(groups) if i not in (j, k)):
            continue
        cheap = {i.op for i in node.body.instructions} <= _IN_PROLOGUES and len(
            node.body.instructions
        ) <= MOST_BEFORE
        if cheap and graph.is_temporary(node.target):
            yield j


def _with_epilogue(members: Sequence[Node], nodes: Sequence[Node]) -> list[Node] | None:
    """The members, which begin with a contraction, and `nodes` laid over it one by one, if that can
    be."""
    laid: list[Node] | None = list(members)
    for node in nodes:
        if laid is not None:
            laid = laid_over_contraction(node, laid, along=False)
        else:
            laid = None
    return laid


def _with_prologues(contraction: Contraction, makers: Sequence[Node]) -> Prologues | None:
    """What computes the operands as they are read, if that can be."""
    made: list[Pointwise | None] = []
    by_name = {m.target: m for m in makers if isinstance(m, Pointwise)}
    for access, across in (
        (contraction.left, contraction.rows),
        (contraction.right, contraction.columns),
    ):
        loops = [
            s for s in (*contraction.batch, *across, *contraction.reduced) if s.extent.constant != 1
        ]
        node = by_name.get(access.buffer)
        walked = None
        if node is not None:
            walked = walked_as(node, node.index, access.index, loops)
        if node is not None and walked is None:
            return None
        made.append(walked)
    return made[0], made[1]


# -- forms -----------------------------------------------------------------------------------------


def _form(
    draft: _Draft,
    k: int,
    last: int | None,
    before: Sequence[int],
    groups: Sequence[Group],
    graph: LoopGraph,
    target: Target,
    parts: int = 1,
) -> Form | None:
    """The product that is the group number k with the groups `before` it and the `last` one in its
    kernel; with several `parts`, in two kernels. None where that cannot be."""
    contraction, buffers = draft.contraction, {b.name: b for b in draft.sums}
    following: list[Node] = list(draft.rest)
    if last is not None:
        following += groups[last].members
    rest: list[Group] = []
    members: list[Node] | None
    if parts > 1:
        device = graph.buffers[contraction.left.buffer].device
        contraction, total, between = product_in_parts(contraction, parts, device)
        buffers[between.name] = between
        members = [contraction]
        rest = fuse([total, *following], {**graph.buffers, **buffers}, target=target)
    else:
        members = _with_epilogue([contraction], following)
    if members is None:
        return None
    assert isinstance(members[0], Contraction)
    prologues = _with_prologues(members[0], [groups[j].members[0] for j in before])
    if prologues is None:
        if not before:
            return None
        return _form(draft, k, last, (), groups, graph, target, parts)
    moved = _moved_reads(draft, prologues, contraction)
    reads = moved.union(*(m.reads() for m in members[1:]))
    writes = {name for m in members for name in m.writes()}
    made = Group(k, [k], members, reads, writes, set(), prologues=prologues)
    positions = tuple(sorted({k, *before, k if last is None else last}))
    if _is_overtaken(positions, moved, groups):
        return None
    if not _is_fixed([made, *rest], {**graph.buffers, **buffers}):
        return None
    batch, rows, columns, depth = (points_of(loops).constant or 0 for loops in _loops(contraction))
    work = sum(operations_of(m.body) for m in members[1:] if isinstance(m, Pointwise))
    return Form((made, *rest), positions, (batch, rows, columns, depth), buffers, parts, work)


def _moved_reads(draft: _Draft, prologues: Prologues, contraction: Contraction) -> set[str]:
    """What a form reads later than the product's call does."""
    reads = set().union(*(m.reads() for m in draft.rest))
    for node, access in zip(prologues, (contraction.left, contraction.right)):
        if node is None:
            reads |= {access.buffer}
        else:
            reads |= node.reads()
    return reads


def _is_overtaken(positions: Sequence[int], reads: set[str], groups: Sequence[Group]) -> bool:
    """Whether a group between the first and the last of the positions writes what is read at the
    last."""
    for j in range(positions[0] + 1, positions[-1]):
        if j not in positions and groups[j].writes & reads:
            return True
    return False


def _forms(
    draft: _Draft,
    k: int,
    last: int | None,
    before: Sequence[int],
    groups: Sequence[Group],
    graph: LoopGraph,
    target: Target,
) -> Iterator[Form]:
    """All forms: first the one that does most at once; with operands that are computed before; with
    sums in parts."""
    whole = _form(draft, k, last, before, groups, graph, target)
    if whole is None:
        whole = _form(draft, k, None, before, groups, graph, target)
    if whole is None:
        return
    yield whole
    found = []
    if before:
        found.append(
            _form(draft, k, None if max(whole.positions) == k else last, (), groups, graph, target)
        )
    batch, rows, columns, depth = whole.sizes
    blocks = batch * -(-rows // SQUARE) * -(-columns // SQUARE)
    for parts in PARTS:
        if blocks * parts <= 2 * FEW_BLOCKS and depth % parts == 0 and depth // parts >= SHORTEST:
            found.append(_form(draft, k, last, before, groups, graph, target, parts))
    yield from (form for form in found if form is not None)


def _loops(node: Contraction) -> tuple[tuple[Symbol, ...], ...]:
    return node.batch, node.rows, node.columns, node.reduced


def _is_fixed(groups: Sequence[Group], buffers: dict[str, Buffer]) -> bool:
    """Whether no symbol is left in groups and the layout of what they touch, and all of it is on
    the device."""
    touched = [buffers[name] for g in groups for name in g.touches]
    fixed = all(e.constant is not None for b in touched for e in (*b.sizes, *b.strides))
    nodes = [m for g in groups for m in (*g.members, *g.prologues) if m is not None]
    return fixed and not any(b.on_host for b in touched) and not any(map(symbols_in, nodes))


# -- the groups of a choice ------------------------------------------------------------------------


def _tiled(form: Form, tiling: Tiling) -> list[Group]:
    """The groups of a form, which are changed later on."""
    first, *rest = form.groups
    return [replace(first, tiling=tiling), *map(replace, rest)]


def with_templates(
    groups: Sequence[Group], graph: LoopGraph, found: Sequence[Site], chosen: Sequence[Choice]
) -> tuple[list[Group], LoopGraph]:
    """The groups and the graph where each site has the form that was chosen, at the place of its
    last group."""
    made: dict[int, list[Group]] = {}
    buffers = dict(graph.buffers)
    for choice in (c for c in chosen if c is not None):
        form, tiling = choice
        made |= dict.fromkeys(form.positions, [])
        made[form.positions[-1]] = _tiled(form, tiling)
        buffers |= form.buffers
    kept = [made.get(k, [group]) for k, group in enumerate(groups)]
    return [group for of_place in kept for group in of_place], replace(graph, buffers=buffers)


def excerpt(
    site: Site, choice: Choice, groups: Sequence[Group], graph: LoopGraph
) -> tuple[list[Group], LoopGraph]:
    """A site alone, with one choice: what is seen from outside is an input of the graph."""
    own = [groups[k] for k in site.positions]
    seen = graph.required
    seen = seen.union(*(g.touches for k, g in enumerate(groups) if k not in site.positions))
    touched = set[str]().union(*[group.touches for group in own])
    written = set[str]().union(*[group.writes for group in own])
    given = {n for n in touched if n in seen or n not in written or not graph.is_temporary(n)}
    buffers = {
        n: replace(graph.buffers[n], role="input" if n in given else "temporary")
        for n in sorted(touched)
    }
    made = {k: [replace(groups[k])] for k in site.positions}
    if choice is not None:
        form, tiling = choice
        made |= dict.fromkeys(form.positions, [])
        made[form.positions[-1]] = _tiled(form, tiling)
        buffers |= form.buffers
    alone = [group for k in site.positions for group in made[k]]
    return alone, LoopGraph(buffers, [m for g in alone for m in g.members], sorted(given))
