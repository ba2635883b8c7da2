"""Fusion: which nodes share a kernel. Whether a fusion is legal and whether it is worthwhile are
separate questions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ingot.loops.expr import ONE, Expr, Symbol, integer, product
from ingot.loops.ir import Buffer, Contraction, Node, Pointwise, Reduction
from ingot.loops.spaces import points_of
from ingot.loops.target import CPU, Target
from ingot.schedule.columns import (
    MOST_SUMS,
    adds_up_parts,
    along_rows,
    in_runs,
    is_total,
    length_of_runs,
    summed_rows,
    with_parts,
)
from ingot.schedule.dependencies import direct_dependencies, may_fail, pieces, relation
from ingot.schedule.epilogue import canonical_contraction, laid_over_contraction
from ingot.schedule.groups import Group, Overlay, estimate, overlay
from ingot.schedule.nests import Compute, Shape, canonical, in_columns, laid_over, walked_as
from ingot.schedule.tiling import is_transposed

MAX_MEMBERS = 40  # code of more takes longer to generate than it saves
MAX_INSTRUCTIONS = 1500
SHORTEST_ROW = 16  # inner loops of pointwise nodes shorter than this leave vectors empty ...
VECTOR_ELEMENTS = 1 << 12  # ... which matters from this many elements on
COLUMNS = 16  # points that make a vector where neighbouring ones lie side by side
# of the rows of a point, or of a vector of points, which are read more than once
CACHED_ELEMENTS = 1 << 16
NEGLIGIBLE = 64  # bytes that are not worth a kernel of all that read them: one cache line
SMALLEST_SHARE = 1 / 64  # of the lesser of two groups' traffic, that one kernel has to save ...
FREE_TRAFFIC = 1 << 16  # ... where that is more bytes than this: a launch costs no more than that
FAR = 16  # nodes between two groups: the earlier one would keep what it reads for long


def fuse(
    nodes: Sequence[Node],
    buffers: dict[str, Buffer],
    note: Callable[[str], None] = lambda text: None,
    target: Target = CPU,
    frugal: bool = False,
    merges: bool = True,
) -> list[Group]:
    """Partition `nodes` into groups, returned in an order that respects all dependencies. `note`
    receives each decision. Where `frugal`, nothing that takes memory is computed long before it is
    needed to save a little time. Unless it `merges`, each node is a group."""
    fusion = _Fusion(nodes, buffers, note, target, frugal)
    return fusion.run() if merges else fusion.ordered()


class _Fusion:
    def __init__(
        self,
        nodes: Sequence[Node],
        buffers: dict[str, Buffer],
        note: Callable[[str], None],
        target: Target,
        frugal: bool,
    ) -> None:
        self.buffers = buffers
        self.target = target
        self.frugal = frugal
        self.note = note
        self.groups: dict[int, Group] = {}
        # buffer -> the groups that could be fused over it ...
        self.users: dict[str, set[int]] = defaultdict(set)
        self.writers: dict[str, set[int]] = defaultdict(set)  # ... and those of them that write it
        self._sizes: dict[str, float] = {}
        # a member by its id, and what became of it
        self._laid: dict[tuple[Any, ...], tuple[Compute, Compute]] = {}
        # pairs, with their sizes: no merging of others makes them legal
        self._refused: set[tuple[int, ...]] = set()
        self.nodes: dict[int, int] = {}  # group -> bit set of its nodes
        self.ancestors: dict[int, int] = {}  # group -> bit set of the nodes that run before it
        self.after: dict[int, set[int]] = defaultdict(set)  # group -> those that wait for it
        for k, before in enumerate(direct_dependencies(nodes, buffers)):
            group = self.groups[k] = self._single(k, nodes[k], before)
            if group.fusible:
                for name in group.touches:
                    self.users[name].add(k)
                for name in group.writes:
                    self.writers[name].add(k)
            self.nodes[k], self.ancestors[k] = 1 << k, 0
            for b in before:
                self.ancestors[k] |= self.ancestors[b] | self.nodes[b]
                self.after[b].add(k)
        self.needs = dict(self.ancestors)  # node -> bit set of the nodes that run before it
        self.failing = {k for k, node in enumerate(nodes) if may_fail(node)}
        inputs = {name for name, buffer in buffers.items() if buffer.role == "input"}
        self.writing = {k for k, node in enumerate(nodes) if not inputs.isdisjoint(node.writes())}

    def _single(self, k: int, node: Node, before: set[int]) -> Group:
        group = Group(k, [k], [node], node.reads(), set(node.writes()), before)
        group.traffic = self._traffic(group.touches)
        group.on_host = any(self.buffers[name].on_host for name in node.writes())
        if isinstance(node, Compute):
            node = in_columns(canonical(node))
            group.members, group.points = [node], Shape.of(node).points
            group.overlay = overlay([node], group.points, self._lay)
            group.scatters = getattr(node, "scatters", False)
            group.work = len(node.body.instructions)
        elif isinstance(node, Contraction):
            group.members = [canonical_contraction(node)]
        return group

    def _lay(
        self, member: Compute, outer: tuple[Symbol, ...], inner: tuple[Symbol, ...]
    ) -> Compute:
        """`laid_over`, once for each member: a group's are laid again for each partner that is
        tried."""
        key = id(member), outer, inner
        entry = self._laid.get(key)
        if entry is None:
            entry = self._laid[key] = member, laid_over(member, outer, inner)
        return entry[1]

    def run(self) -> list[Group]:
        # of two that are added, the later one adds: the earlier is done
        for k in sorted(self.groups, reverse=True):
            if k in self.groups and isinstance(self.groups[k].members[0], Contraction):
                self._finish(self.groups[k])
        changed = True
        while changed:
            changed = False
            for k in sorted(self.groups):
                changed |= k in self.groups and self._merge_best(self.groups[k])
        if self.target.has_registers:
            self._sum_in_rows()
        return self.ordered()

    # -- contractions ------------------------------------------------------------------------------

    def _finish(self, group: Group) -> None:
        """Merge a contraction with the pointwise nodes that can be computed on its finished tiles,
        one by one."""
        merged = True
        while merged:
            merged = False
            for k in sorted(self._users_of(group.writes)):
                other = self.groups[k]
                # as what reads a buffer that the group goes on to write
                comes_before = k in group.before
                if len(other.members) > 1 or comes_before or self._path_between(group, other):
                    continue
                contraction = group.members[0]
                assert isinstance(contraction, Contraction)
                # attention's tiles leave registers in any order
                along = contraction.weights is None
                laid = laid_over_contraction(other.members[0], group.members, along)
                if laid is not None:
                    *group.members, other.members[0] = laid
                    self._merge(group, other)
                    merged = True
                    break

    # -- sums of columns ---------------------------------------------------------------------------

    def _sum_in_rows(self) -> None:
        """Merge sums of columns into the kernels that go over the same rows."""
        for k in sorted(self.groups):
            group = self.groups.get(k)
            if group is None or not group.fusible:
                continue
            shape = summed_rows(group.members, self.buffers)
            if shape is None:
                continue
            saved: list[tuple[float, Group]] = []
            for other in self._neighbours(group):
                saved.append((self._traffic(other.touches & group.reads), other))
            for bytes_, other in sorted(saved, key=lambda pair: -pair[0]):
                if self._sum_in(other, group, bytes_, *shape):
                    break

    def _sum_in(self, rows: Group, sums: Group, saved: float, count: Expr, width: Expr) -> bool:
        """Merge sums of columns with a group over the same rows; whether that is legal and
        worthwhile."""
        if rows.overlay is None or not self._may_sum(rows, sums, count):
            return False
        run = rows.overlay.run or length_of_runs(width, count, self.target.blocking.threads)
        if not run or sum(map(is_total, rows.members)) + len(sums.members) > MOST_SUMS:
            return False
        parts = (count // run).constant or 0
        readers = self._readers_of_parts(sums)
        if readers is None or saved < 4 * self._bytes_of_parts(sums, parts):
            return False
        added: list[Node] = [in_runs(m, run) for m in sums.members]  # type: ignore[arg-type]
        members = self._in_order(rows.positions, rows.members, sums.positions, added)
        laid = overlay(members, count, self._lay)  # type: ignore[arg-type]
        if laid is None or not self._no_conflict(laid):
            return False
        if not along_rows(laid.outer, laid.members, laid.inner, width):
            return False
        self._set_parts(sums, readers, parts)
        self._merge(rows, sums, count, replace(laid, run=run), members)
        return True

    def _may_sum(self, rows: Group, sums: Group, count: Expr) -> bool:
        """Whether a kernel reduces `count` rows, and could add up columns meanwhile."""
        if not rows.reduces or rows.points != count or rows.on_host or rows.scatters:
            return False
        return not self._path_between(rows, sums) and not self._writes_before_it_fails(rows, sums)

    def _bytes_of_parts(self, sums: Group, parts: int) -> float:
        """What sums in so many parts take more than in as many as they have."""
        more = 0.0
        for name in sums.writes:
            before = self.buffers[name].sizes[0].constant or 1
            more += self._bytes(name) * (parts / before - 1)
        return more

    def _readers_of_parts(self, sums: Group) -> list[Group] | None:
        """The groups that add up the parts of sums; None where others read them."""
        readers = []
        for k in self._users_of(sums.writes) - {sums.id}:
            readers.append(self.groups[k])
        for reader in readers:
            for m in reader.members:
                if not adds_up_parts(m, sums.writes):
                    return None
        return readers

    def _set_parts(self, sums: Group, readers: Sequence[Group], parts: int) -> None:
        """Give sums another number of parts, which their readers add up."""
        for name in sums.writes:
            buffer = self.buffers[name]
            self.buffers[name] = replace(buffer, sizes=(integer(parts), *buffer.sizes[1:]))
            self._sizes.pop(name, None)
        for reader in readers:
            reader.members = with_parts(reader.members, dict.fromkeys(sums.writes, parts))
            assert reader.points is not None
            reader.overlay = overlay(reader.members, reader.points, self._lay)  # type: ignore[arg-type]
            reader.traffic = self._traffic(reader.touches)

    # -- candidates --------------------------------------------------------------------------------

    def _merge_best(self, group: Group) -> bool:
        """Merge `group` with its best partner, again and again; whether anything was merged."""
        merged = False
        while group.fusible:
            partner = self._best_partner(group)
            if partner is None:
                break
            group = self._merge(*partner)
            merged = True
        return merged

    def _best_partner(self, group: Group) -> tuple[Group, Group, Expr, Overlay, list[Node]] | None:
        scored = []
        for other in self._neighbours(group):
            pair = other.id, len(other.positions), group.id, len(group.positions)
            score = 0 if pair in self._refused else self.score(other, group)
            if score > 0:
                scored.append((score, -abs(other.id - group.id), pair))
        for _, _, pair in sorted(scored, reverse=True):
            other = self.groups[pair[0]]
            fit = self.can_fuse(other, group)
            if fit is not None:
                return other, group, *fit
            self._refused.add(pair)
        return None

    def _neighbours(self, group: Group) -> list[Group]:
        ids: set[int] = set()
        for name in group.touches:
            if name in group.writes or self._bytes(name) > NEGLIGIBLE:
                ids |= self.users[name]
            elif name in self.writers:
                ids |= self.writers[name]
        return [self.groups[k] for k in sorted(ids - {group.id})]

    # -- worthwhile --------------------------------------------------------------------------------

    def score(self, first: Group, second: Group) -> float:
        """Bytes of memory traffic that one kernel saves over two; 0 when fusing is not worthwhile.
        A scatter joins the copy that it writes into and nothing else: what it writes is finished
        when all of it has run. Two groups with much traffic of their own and next to none in common
        stay apart, for what they read had to wait for both; of two that are far apart, the earlier
        one does not wait to save next to nothing. Where memory is scarce, the later one does not
        run early to save less than what it writes takes until then."""
        if first.on_host is not second.on_host:
            return 0
        if first.scatters or second.scatters:
            if not self._is_copied_for(first, second):
                return 0
            return self._bytes(next(iter(first.writes)))
        if len(first.members) + len(second.members) > MAX_MEMBERS:
            return 0
        if first.work + second.work > MAX_INSTRUCTIONS:
            return 0
        written = (first.writes & second.touches) | (second.writes & first.reads)
        saved = self._traffic(written)
        shared = self._traffic((first.reads & second.reads) - written)
        if shared > NEGLIGIBLE:
            saved += shared
        enough = max(saved / SMALLEST_SHARE, FREE_TRAFFIC)
        earlier, later = sorted((first, second), key=lambda g: g.positions[0])
        far = later.positions[0] - earlier.positions[-1] > FAR
        if self.frugal and far and not written and self._traffic(later.writes) > saved:
            return 0
        if not far and self._follows_sums(first, second, written):
            return saved
        if earlier.traffic <= enough or (not far and later.traffic <= enough):
            return saved
        return 0

    def _follows_sums(self, first: Group, second: Group, written: set[str]) -> bool:
        """Whether two groups sum rows on a GPU, and one needs the other's sums at its own rows.

        One kernel saves a launch, as of a gate and of what goes through it.
        """
        if not self.target.has_registers or not (first.reduces and second.reduces):
            return False
        return bool(written) and first.points == second.points

    @staticmethod
    def _is_copied_for(first: Group, second: Group) -> bool:
        """Whether one of two nodes is a scatter, and the other makes what it writes into."""
        if len(first.members) + len(second.members) > 2 or first.writes != second.writes:
            return False
        nodes = first.members[0], second.members[0]
        return sorted(n.scatters for n in nodes if isinstance(n, Pointwise)) == [False, True]

    def _bytes(self, name: str) -> float:
        if name not in self._sizes:
            buffer = self.buffers[name]
            self._sizes[name] = estimate(product(buffer.sizes)) * buffer.dtype.itemsize
        return self._sizes[name]

    def _traffic(self, names: Iterable[str]) -> float:
        return sum(map(self._bytes, names))

    def _users_of(self, names: Iterable[str]) -> set[int]:
        """The groups that could be fused over one of these buffers."""
        return set().union(*map(self.users.__getitem__, names))

    def keeps_parallelism(self, first: Group, second: Group, points: Expr) -> bool:
        """Whether the fused kernel still has work for all cores, or is too small to need them."""
        if estimate(points) >= self.target.splitting.parallel_points:
            return True
        if first.points == second.points == points:
            return True
        most = 0.0
        for m in first.members + second.members:
            if isinstance(m, Compute):
                most = max(most, estimate(Shape.of(m).total))
        # a block of threads for each point
        cores = estimate(points) if self.target.has_registers else 1
        return most <= self.target.splitting.serial_elements * cores

    # -- legal -------------------------------------------------------------------------------------

    def can_fuse(self, first: Group, second: Group) -> tuple[Expr, Overlay, list[Node]] | None:
        """The outer points, the overlay and the members of the fused group when fusing is legal,
        else None."""
        if self._path_between(first, second) or self._writes_before_it_fails(first, second):
            return None
        if self._only_complete(first, second) and (_turns(first) or _turns(second)):
            return None
        for points in self._outer_candidates(first, second):
            if not self.keeps_parallelism(first, second, points):
                continue
            for a, b in self._arrangements(first, second):
                members = self._in_order(first.positions, a, second.positions, b)
                laid = overlay(members, points, self._lay)  # type: ignore[arg-type]
                if laid is None or not self._no_conflict(laid) or self._leaves_vectors_empty(laid):
                    continue
                if self._meet(first, second, laid):
                    return points, laid, members
        return None

    @staticmethod
    def _only_complete(first: Group, second: Group) -> bool:
        """Whether all that two groups have in common is a buffer of which each writes a part."""
        return not (first.reads & second.touches or second.reads & first.touches)

    def _arrangements(self, first: Group, second: Group) -> Iterator[tuple[list[Node], list[Node]]]:
        """The members of both groups as they are, and where one reduces, those of the other with
        the reduced loops innermost. A softmax over a dimension that is not the last needs the
        latter."""
        yield first.members, second.members
        if first.reduces != second.reduces:
            if first.reduces:
                reducing, other = (first, second)
            else:
                reducing, other = (second, first)
            moved = _reordered(reducing, other, self.target)
            if moved is not None:
                yield (first.members, moved) if first.reduces else (moved, second.members)

    def _meet(self, first: Group, second: Group, laid: Overlay) -> bool:
        """Whether two groups share traffic: one reads what the other writes, or the largest that
        both read is read at the same outer points. Loops that go over it in different orders save
        nothing."""
        if first.writes & second.touches or second.writes & first.touches:
            return True
        largest = max(first.reads & second.reads, key=self._bytes)
        loads: tuple[set[Expr], set[Expr]] = set(), set()
        for position, m in zip(sorted([*first.positions, *second.positions]), laid.members):
            loads[position in second.positions].update(m.body.places(largest))
        return any(relation(a, b, laid.outer) is not None for a in loads[0] for b in loads[1])

    @staticmethod
    def _leaves_vectors_empty(laid: Overlay) -> bool:
        """Whether rows of a few elements, written by one pointwise node and read by another, would
        be the vectors."""
        if any(isinstance(m, Reduction) for m in laid.members):
            return False
        rows = []
        for inner in laid.inner:
            rows.append(estimate(points_of(inner)))
        largest = estimate(points_of(laid.outer)) * max(rows)
        return largest > VECTOR_ELEMENTS and any(1 < row < SHORTEST_ROW for row in rows)

    @staticmethod
    def _in_order(
        first: list[int], members: list[Node], second: list[int], others: list[Node]
    ) -> list[Node]:
        """The members of two groups in the order of their positions."""
        pairs = sorted([*zip(first, members), *zip(second, others)], key=lambda pair: pair[0])
        return [member for _, member in pairs]

    def _writes_before_it_fails(self, first: Group, second: Group) -> bool:
        """Whether one kernel of these groups would write an input before an error that could be
        found first. The error may be in it, at a later point, or in what waits for it."""
        positions = [*first.positions, *second.positions]
        writing = self.writing.intersection(positions) if self.failing else ()
        if not writing:
            return False
        nodes = self.nodes[first.id] | self.nodes[second.id]
        for group in self.groups.values():
            if group not in (first, second) and self.ancestors[group.id] & nodes:
                positions += group.positions
        failing = self.failing.intersection(positions)
        return any(f != w and not self.needs[f] >> w & 1 for f in failing for w in writing)

    def _path_between(self, first: Group, second: Group) -> bool:
        """Whether something outside of both must run after one and before the other."""
        for a, b in ((first, second), (second, first)):
            nodes = self.nodes[a.id]
            if any(p != a.id and self.ancestors[p] & nodes for p in b.before):
                return True
        return False

    @staticmethod
    def _outer_candidates(first: Group, second: Group) -> list[Expr]:
        """Numbers of outer points to try, most parallel first."""
        assert first.points is not None and second.points is not None
        if first.reduces and second.reduces:
            if first.points == second.points:
                return [first.points]
            return []
        if first.reduces or second.reduces:
            return [first.points if first.reduces else second.points]
        scatters = first.scatters or second.scatters  # which may have rows of their own
        if first.points == second.points and not scatters:
            return [first.points]
        prefixes: set[Expr] = set()
        for group in (first, second):
            for member in group.members:
                extents = Shape.of(member).loops  # type: ignore[arg-type]
                prefixes.update(product(extents[:k]) for k in range(1, len(extents) + 1))
        return sorted(prefixes, key=estimate, reverse=True)

    @staticmethod
    def _no_conflict(laid: Overlay) -> bool:
        """Whether accesses to one buffer, if one of them writes, meet at the same point or in the
        same row only. Writes to a buffer that is not read may be of pieces that never meet."""
        accesses: dict[str, list[tuple[int, bool, Expr]]] = defaultdict(list)
        for k, m in enumerate(laid.members):
            for i in m.body.loads:
                accesses[i.attrs[0]].append((k, False, i.attrs[1]))
            accesses[m.target].append((k, True, m.index))
        for uses in accesses.values():
            writes = [(k, e) for k, written, e in uses if written]
            is_read = len(writes) < len(uses)
            for w, written_at in writes:
                for k, _, e in uses:
                    if k == w or relation(written_at, e, laid.outer) is not None:
                        continue
                    if is_read or not pieces(written_at, e, laid.loops(w), laid.loops(k)):
                        return False
        return True

    # -- merging -----------------------------------------------------------------------------------

    def _merge(
        self,
        first: Group,
        second: Group,
        points: Expr | None = None,
        laid: Overlay | None = None,
        members: list[Node] | None = None,
    ) -> Group:
        if members is None:
            members = self._in_order(
                first.positions, first.members, second.positions, second.members
            )
        names = [" + ".join(m.name for m in g.members) for g in (first, second)]
        over = ""
        if points is not None:
            over = f" over {points}"
        self.note(f"fuse {names[0]} with {names[1]}{over}")
        new, old = first, second
        new.positions, new.members = sorted([*first.positions, *second.positions]), members
        new.points, new.overlay = points, laid
        new.reads, new.writes = new.reads | old.reads, new.writes | old.writes
        new.scatters, new.work = new.scatters or old.scatters, new.work + old.work
        new.traffic = self._traffic(new.touches)
        del self.groups[old.id]
        joined = set()
        if new.fusible:
            joined = {new.id}
        for name in old.touches:
            self.users[name] = self.users[name] - {old.id} | joined
        for name in old.writes:
            self.writers[name] = self.writers[name] - {old.id} | joined
        new.before = (new.before | old.before) - {new.id, old.id}
        nodes = self.nodes[new.id] = self.nodes[new.id] | self.nodes.pop(old.id)
        self.ancestors[new.id] = (self.ancestors[new.id] | self.ancestors.pop(old.id)) & ~nodes
        for b in old.before - {new.id}:
            self.after[b] = self.after[b] - {old.id} | {new.id}
        for a in self.after[old.id] - {new.id}:
            self.groups[a].before = self.groups[a].before - {old.id} | {new.id}
        self.after[new.id] = (self.after[new.id] | self.after.pop(old.id)) - {new.id, old.id}
        self._tell_followers(new)
        return new

    def _tell_followers(self, group: Group) -> None:
        """What runs after a group runs after what it waits for. What knows has told its own
        followers."""
        known = self.ancestors[group.id] | self.nodes[group.id]
        waiting = [group.id]
        while waiting:
            for k in self.after[waiting.pop()]:
                if known & ~self.ancestors[k]:
                    self.ancestors[k] |= known
                    waiting.append(k)

    def ordered(self) -> list[Group]:
        """The groups in dependency order, keeping program order where there is a choice. What
        writes inputs comes late, and with it what needs that: an error before it leaves them as
        they were."""
        done: set[int] = set()
        result: list[Group] = []

        def visit(group: Group) -> None:
            stack = [group]
            while stack:
                g = stack[-1]
                waiting = []
                for b in sorted(g.before, reverse=True):
                    if b not in done:
                        waiting.append(b)
                if g.id in done:
                    stack.pop()
                elif waiting:
                    stack.extend(self.groups[b] for b in waiting)
                else:
                    done.add(g.id)
                    result.append(g)
                    stack.pop()

        written, failing = 0, set()
        for k, g in self.groups.items():
            if not self.writing.isdisjoint(g.positions):
                written |= self.nodes[k]
            if not self.failing.isdisjoint(g.positions):
                failing.add(k)
        fails_before = {k for k in failing if not (self.ancestors[k] | self.nodes[k]) & written}
        needed = any(ancestors & written for ancestors in self.ancestors.values())

        def late(k: int) -> tuple[bool, bool, int]:
            positions = self.groups[k].positions
            return (
                needed and k not in fails_before,
                not self.writing.isdisjoint(positions),
                positions[-1],
            )

        for k in sorted(self.groups, key=late):
            visit(self.groups[k])
        return result


def _reordered(reducing: Group, other: Group, target: Target) -> list[Node] | None:
    """The pointwise nodes of `other` in the loops of those of `reducing` that touch the same
    elements, so that what is reduced is innermost. None where they are not found, or where it would
    cost parallelism or what is read a second time would have left the cache."""
    laid = reducing.overlay
    assert laid is not None
    places: dict[str, list[tuple[Expr, tuple[Symbol, ...]]]] = defaultdict(list)
    for k, m in enumerate(laid.members):
        if laid.inner[k] and _stays_cached(m, laid.outer, laid.inner[k], target):
            for name, index in m.accesses:
                places[name].append((index, laid.loops(k)))
    members = list(other.members)
    waiting = []
    for k, node in enumerate(members):
        if isinstance(node, Pointwise) and Shape.of(node).points != reducing.points:
            waiting.append(k)
    # pieces of one buffer, that several nodes write
    of_pieces = target.has_registers
    while waiting:
        for k in waiting:
            moved = _walked_as_one_of(members[k], places, of_pieces)
            if moved is not None:
                break
        else:
            return None
        members[k] = moved
        waiting.remove(k)
        for name, index in moved.accesses:
            places[name].append((index, moved.loops))
    return members


def _walked_as_one_of(
    node: Node, places: dict[str, list[tuple[Expr, tuple[Symbol, ...]]]], of_pieces: bool
) -> Pointwise | None:
    """The node in loops in which one of the elements that it touches is touched at a place."""
    assert isinstance(node, Pointwise)
    for name, own in node.accesses:
        for index, loops in places[name]:
            moved = walked_as(node, own, index, loops, of_pieces)
            if moved is not None:
                return moved
    return None


def _stays_cached(
    node: Compute, outer: Sequence[Symbol], inner: Sequence[Symbol], target: Target
) -> bool:
    """Whether elements of one outer point, or of neighbours in memory, are still cached when they
    are read again. Where they are computed in vectors, these must also be enough for all cores."""
    points = estimate(points_of(outer))
    row = estimate(points_of(inner))
    varying = []
    for _, index in node.accesses:
        if index.symbols.intersection(inner):
            varying.append(index)
    if not outer or not any(_lies_along(index, outer[-1]) for index in varying):
        return row <= CACHED_ELEMENTS
    return row * COLUMNS <= CACHED_ELEMENTS and (
        points >= target.splitting.parallel_points * COLUMNS
        or points * row <= target.splitting.serial_elements
    )


def _lies_along(index: Expr, loop: Symbol) -> bool:
    """Whether the steps of a loop are adjacent in memory."""
    return index.step(loop) is ONE


def _turns(group: Group) -> bool:
    """Whether a group's node writes along other dimensions than it reads along. A kernel that does
    nothing else walks in blocks, which saves more than one launch takes."""
    (node, *others) = group.members
    if others or not isinstance(node, Pointwise) or group.traffic <= FREE_TRAFFIC:
        return False
    return any(
        is_transposed(load, loop, node.loops[-1])
        for load in node.body.loads
        for loop in node.loops[:-1]
    )
