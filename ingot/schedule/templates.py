"""Matrix products of a GPU's that may be kernels of ours, where the library's call leaves what is
around them to other kernels. What comes next is computed on their finished tiles, and what comes
before on the tiles that are read. Whether they are, and in which form, somebody else decides
(`runtime/tuning.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

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
from ingot.schedule.groups import Group, touched_by
from ingot.schedule.kernel import Tiling
from ingot.schedule.nests import iterated, walked_as
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
    """A way to compute a product by kernels: `groups` take the place of the program's groups at
    `positions`. The first is a contraction, which needs a tiling. `sizes` are those of the
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
    """A product that the library computes, with the forms that could do so. Each form takes the
    place of some of the program's groups at `positions`. `outside` are the buffers that are no
    temporaries of the program."""

    positions: tuple[int, ...]
    forms: tuple[Form, ...]
    outside: frozenset[str]
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
    result: list[Site] = []
    in_sites: set[int] = set()
    for k in range(len(groups) - 1, -1, -1):
        draft = _contraction_of(groups[k], graph)
        if draft is None:
            continue
        last = _follower(k, groups)
        if last in in_sites:
            last = None
        before = []
        for p in _makers(k, draft.contraction, groups, graph):
            if p not in in_sites:
                before.append(p)
        forms = _Call(draft, k, groups, graph, target).forms(last, before)
        if not forms:
            continue
        positions = tuple(sorted({p for form in forms for p in form.positions}))
        in_sites.update(positions)
        touched = touched_by(groups[j] for j in positions)
        outside = frozenset(n for n in touched if not graph.is_temporary(n))
        dtype = graph.buffers[draft.contraction.left.buffer].dtype
        where = groups[k].members[0].origin.where
        result.append(Site(positions, forms, outside, forms[0].sizes, dtype, where))
    return result[::-1]


@dataclass(frozen=True)
class _Draft:
    """A library's product as a contraction, the `rest` of what the call does, and the buffer in
    between, if there is one. The rest adds a bias to the sums, and rounds them."""

    contraction: Contraction
    rest: tuple[Pointwise, ...]
    sums: tuple[Buffer, ...]


def _contraction_of(group: Group, graph: LoopGraph) -> _Draft | None:
    node = group.members[0]
    if not isinstance(node, Library) or not _is_plain_product(node):
        return None
    *bias, left, right = node.args
    (target,) = node.targets
    output = graph.buffers[target]  # type: ignore[index]
    sizes = (*output.sizes, left.sizes[-1])
    if any(v.dtype is not output.dtype for v in node.args) or output.dtype not in DTYPES:
        return None
    if any(size.constant is None or size.constant == 0 for size in (*sizes, *output.strides)):
        return None
    *batch, row, column, inner = map(loop_symbol, "bmnk"[-len(sizes) :], sizes)
    at = (*batch, row, column)
    index = address_of(at, output.strides)
    a = Access(left.buffer, address_of((*batch, row, inner), left.strides, left.offset))
    b = Access(right.buffer, address_of((*batch, inner, column), right.strides, right.offset))
    plain = not bias and output.dtype is torch.float32
    sums = output
    if not plain:
        sums = replace(output, name=f"{target}_sums", dtype=torch.float32, role="temporary")
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
    body = _finish(sums, index, bias, output.dtype, at)
    finish = Pointwise(f"{node.name}_finish", node.origin, at, body, output.name, index)
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
        steps = list(view.strides)
        for dim, size in enumerate(view.sizes):
            if size.constant == 1:
                steps[dim] = ZERO
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
        if len(group.members) > 1 or not isinstance(node, Pointwise) or node.mode != "store":
            continue
        if group.on_host or group.reads & called:
            continue
        name, instructions = node.target, node.body.instructions
        if name not in contraction.reads() or name in returned or not graph.is_temporary(name):
            continue
        if any(name in g.touches for i, g in enumerate(groups) if i not in (j, k)):
            continue
        if len(instructions) <= MOST_BEFORE and _IN_PROLOGUES.issuperset(
            i.op for i in instructions
        ):
            yield j


def _with_epilogue(members: Sequence[Node], nodes: Sequence[Node]) -> list[Node] | None:
    """The members, which begin with a contraction, and `nodes` laid over it one by one, if that can
    be."""
    laid = list(members)
    for node in nodes:
        with_node = laid_over_contraction(node, laid, along=False)
        if with_node is None:
            return None
        laid = with_node
    return laid


def _with_prologues(contraction: Contraction, makers: Sequence[Node]) -> Prologues | None:
    """What computes the operands as they are read, if that can be."""
    bodies: list[Pointwise | None] = []
    by_name = {}
    for m in makers:
        if isinstance(m, Pointwise):
            by_name[m.target] = m
    for access, across in (
        (contraction.left, contraction.rows),
        (contraction.right, contraction.columns),
    ):
        loops = iterated((*contraction.batch, *across, *contraction.reduced))
        node = by_name.get(access.buffer)
        if node is not None:
            node = walked_as(node, node.index, access.index, loops)
            if node is None:
                return None
        bodies.append(node)
    return bodies[0], bodies[1]


# -- forms -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Call:
    """A library's product, which is the group number `k` of a program's."""

    draft: _Draft
    k: int
    groups: Sequence[Group]
    graph: LoopGraph
    target: Target

    def forms(self, last: int | None, before: Sequence[int]) -> tuple[Form, ...]:
        """All forms: first the one that does most at once; with operands that are computed before;
        with sums in parts."""
        whole = self.form(last, before) or self.form(None, before)
        if whole is None:
            return ()
        forms: list[Form | None] = [whole]
        if before:
            forms.append(self.form(None if max(whole.positions) == self.k else last, ()))
        batch, rows, columns, depth = whole.sizes
        blocks = batch * -(-rows // SQUARE) * -(-columns // SQUARE)
        for parts in PARTS:
            is_even = depth % parts == 0 and depth // parts >= SHORTEST
            if is_even and blocks * parts <= 2 * FEW_BLOCKS:
                forms.append(self.form(last, before, parts))
        return tuple(filter(None, forms))

    def form(self, last: int | None, before: Sequence[int], parts: int = 1) -> Form | None:
        """The product with the groups `before` it and the `last` one in its kernel; with several
        `parts`, in two kernels. None where that cannot be."""
        contraction = self.draft.contraction
        buffers = {b.name: b for b in self.draft.sums}
        following: list[Node] = list(self.draft.rest)
        positions = {self.k, *before}
        if last is not None:
            following += self.groups[last].members
            positions.add(last)
        rest: list[Group] = []
        members: list[Node] | None
        if parts > 1:
            device = self.graph.buffers[contraction.left.buffer].device
            contraction, total, between = product_in_parts(contraction, parts, device)
            buffers[between.name] = between
            members = [contraction]
            all_buffers = {**self.graph.buffers, **buffers}
            rest = fuse([total, *following], all_buffers, target=self.target)
        else:
            members = _with_epilogue([contraction], following)
        if members is None:
            return None
        assert isinstance(members[0], Contraction)
        prologues = _with_prologues(members[0], [self.groups[j].members[0] for j in before])
        if prologues is None:
            if not before:
                return None
            return self.form(last, (), parts)
        moved = _moved_reads(self.draft, prologues, contraction)
        reads, writes = set(moved), set(contraction.writes())
        work = 0.0
        for member in members[1:]:
            assert isinstance(member, Pointwise)
            reads |= member.reads()
            writes.update(member.writes())
            work += operations_of(member.body)
        group = Group(self.k, [self.k], members, reads, writes, set(), prologues=prologues)
        in_order = tuple(sorted(positions))
        if _is_overtaken(in_order, moved, self.groups):
            return None
        if not _is_fixed([group, *rest], {**self.graph.buffers, **buffers}):
            return None
        return Form((group, *rest), in_order, _sizes(contraction), buffers, parts, work)


def _moved_reads(draft: _Draft, prologues: Prologues, contraction: Contraction) -> set[str]:
    """What a form reads later than the product's call does."""
    reads = set().union(*map(Pointwise.reads, draft.rest))
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


def _sizes(node: Contraction) -> tuple[int, int, int, int]:
    """The elements of its batch, rows, columns and reduction."""
    batch, rows, columns, depth = map(
        points_of, (node.batch, node.rows, node.columns, node.reduced)
    )
    return batch.constant or 0, rows.constant or 0, columns.constant or 0, depth.constant or 0


def _is_fixed(groups: Sequence[Group], buffers: dict[str, Buffer]) -> bool:
    """Whether no symbol is left in groups and the layout of what they touch, and all of it is on
    the device."""
    for name in touched_by(groups):
        buffer = buffers[name]
        if buffer.on_host:
            return False
        if any(e.constant is None for e in (*buffer.sizes, *buffer.strides)):
            return False
    for group in groups:
        if any(map(symbols_in, (*group.members, *group.prologues))):
            return False
    return True


# -- the groups of a choice ------------------------------------------------------------------------


def _in_place(form: Form, tiling: Tiling) -> dict[int, list[Group]]:
    """The groups of a form by position: all at its last one. They are changed later on."""
    first, *rest = form.groups
    groups = [replace(first, tiling=tiling), *map(replace, rest)]
    return dict.fromkeys(form.positions, []) | {form.positions[-1]: groups}


def with_templates(
    groups: Sequence[Group], graph: LoopGraph, chosen: Sequence[Choice]
) -> tuple[list[Group], LoopGraph]:
    """The groups and the graph where each site has the form that was chosen, at the place of its
    last group."""
    by_position = {}
    for k, group in enumerate(groups):
        by_position[k] = [group]
    buffers = dict(graph.buffers)
    for form, tiling in filter(None, chosen):
        by_position |= _in_place(form, tiling)
        buffers |= form.buffers
    return list(chain.from_iterable(by_position.values())), replace(graph, buffers=buffers)


def excerpt(
    site: Site, choice: Choice, groups: Sequence[Group], graph: LoopGraph
) -> tuple[list[Group], LoopGraph]:
    """A site alone, with one choice: what is seen from outside is an input of the graph."""
    own = [groups[k] for k in site.positions]
    others = []
    for k, g in enumerate(groups):
        if k not in site.positions:
            others.append(g)
    visible = graph.required | touched_by(others)
    written = set[str]().union(*[group.writes for group in own])
    buffers: dict[str, Buffer] = {}
    inputs: list[str] = []
    for name in sorted(touched_by(own)):
        role = "temporary"
        if name in visible or name not in written or not graph.is_temporary(name):
            role = "input"
            inputs.append(name)
        buffers[name] = replace(graph.buffers[name], role=role)
    by_position = {}
    for k in site.positions:
        by_position[k] = [replace(groups[k])]
    if choice is not None:
        form, tiling = choice
        by_position |= _in_place(form, tiling)
        buffers |= form.buffers
    alone = list(chain.from_iterable(by_position.values()))
    return alone, LoopGraph(buffers, [m for g in alone for m in g.members], inputs)
