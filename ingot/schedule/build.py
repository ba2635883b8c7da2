"""Kernels from fused groups: stages, forwarding of values, scratch, canonical names, and the choice
of the vector loop."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence

from ingot.loops.expr import ONE, Expr, Symbol, integer, loop_symbol, maximum, value_symbol
from ingot.loops.ir import (
    Body,
    BodyBuilder,
    Buffer,
    Instruction,
    Origin,
    Pointwise,
    Reduction,
    Scan,
)
from ingot.loops.spaces import extents_of, points_of, row_major
from ingot.loops.target import CPU, Target
from ingot.schedule.dependencies import SAME_POINT, never_meet, pieces, relation
from ingot.schedule.groups import Overlay
from ingot.schedule.kernel import Accumulate, Define, Kernel, Parameter, Row, Stage, Store
from ingot.schedule.nests import (
    Compute,
    fresh_loops,
    is_plain_reduction,
    loop_separates,
    merge_neighbours,
)
from ingot.schedule.tiling import choose_tile_loop, is_divided, is_unrolled, unrolled

ZERO = integer(0)


def build_kernel(
    laid: Overlay,
    internal: set[str],
    buffers: dict[str, Buffer],
    target: Target = CPU,
    with_rows: bool = True,
) -> tuple[Kernel, tuple[str, ...]]:
    """The kernel of a fused group and the buffers its parameters stand for.

    `internal` names the buffers nobody outside of the group needs: they become values, scalars or
    rows, not memory; without rows, those are memory that the kernel alone uses.
    """
    return _Builder(laid, internal, buffers, target, with_rows).build()


# -- stages ----------------------------------------------------------------------------------------


def assign_stages(laid: Overlay) -> list[int]:
    """The stage of each member: the earliest that its conflicts with earlier members allow and that
    has its loops."""
    stage_loops: list[tuple[Symbol, ...]] = []
    result: list[int] = []
    for k, loops in enumerate(laid.inner):
        earliest = 0
        for j, stage in enumerate(result):
            gap = _gap(laid, j, k)
            if gap is not None:
                earliest = max(earliest, stage + gap)
        if loops not in stage_loops[earliest:]:
            stage_loops.append(loops)
        result.append(stage_loops.index(loops, earliest))
    return result


def _gap(laid: Overlay, j: int, k: int) -> int | None:
    """How many stages member k must come after the earlier member j: 0, 1, or None when they do not
    conflict."""
    first, second = laid.members[j], laid.members[k]
    results = second.body.places(first.target)
    pairs = []
    for place in results:
        pairs.append((first.index, place))
    for place in first.body.places(second.target):
        pairs.append((place, second.index))
    if first.target == second.target and not _never_meet(laid, j, k):
        pairs.append((first.index, second.index))
    if not pairs:
        return None
    if isinstance(first, Reduction) and (results or first.target == second.target):
        return 1
    if laid.inner[j] != laid.inner[k]:
        return 1
    return int(any(relation(*pair, laid.outer) != SAME_POINT for pair in pairs))


def _never_meet(laid: Overlay, j: int, k: int) -> bool:
    """Whether two members write no element that the other writes too."""
    first, second = laid.members[j].index, laid.members[k].index
    if never_meet(first, second, laid.outer):
        return True
    return pieces(first, second, laid.loops(j), laid.loops(k))


class StageDraft(BodyBuilder):
    """A stage under construction: its body, the values stored so far, and what uses values."""

    def __init__(self, loops: tuple[Symbol, ...]) -> None:
        super().__init__()
        self.loops = loops
        self.stored: dict[tuple[str, Expr], int] = {}
        self.stores: list[Store] = []
        self.reductions: list[Accumulate] = []
        self.scalars: list[Define] = []

    def stage(self) -> Stage:
        users = tuple(self.stores), tuple(self.reductions), tuple(self.scalars)
        return Stage(self.loops, self.body(), *users).without_dead()


class _Builder:
    def __init__(
        self,
        laid: Overlay,
        internal: set[str],
        buffers: dict[str, Buffer],
        target: Target,
        with_rows: bool,
    ) -> None:
        self.laid = laid
        self.target = target
        self.with_rows = with_rows
        self.internal = internal
        self.buffers = buffers
        self.outer = laid.outer
        self.run = laid.run
        self.stage_of = assign_stages(laid)
        self.writers: dict[str, list[int]] = {}
        for k, m in enumerate(laid.members):
            self.writers.setdefault(m.target, []).append(k)
        self.rows: dict[str, Row] = {}
        self.dense: dict[str, tuple[Expr, Expr] | None] = {}
        self.scalar_names: dict[str, str] = {}
        self.indirect: dict[tuple, Symbol] = {}
        self.loads_of_later_stages = self._buffers_crossing_stages()

    def build(self) -> tuple[Kernel, tuple[str, ...]]:
        drafts = []
        for _ in range(max(self.stage_of) + 1):
            drafts.append(StageDraft(()))
        for k, s in enumerate(self.stage_of):
            drafts[s].loops = self.laid.inner[k]
        for k, member in enumerate(self.laid.members):
            self._add(member, drafts[self.stage_of[k]])
        drafts = self._with_final_stores(drafts)
        stages = list(map(StageDraft.stage, drafts))
        origin = Origin(()).merged(*[m.origin for m in self.laid.members])
        rows = list(self.rows.values())
        return _canonical_kernel(
            origin, self.outer, stages, rows, self.buffers, self.target, self.run
        )

    # -- what becomes of a buffer ------------------------------------------------------------------

    def _buffers_crossing_stages(self) -> set[str]:
        """The buffers that a member reads in a later stage than one that writes them."""
        crossing: set[str] = set()
        for stage, m in zip(self.stage_of, self.laid.members):
            for name in m.reads():
                if any(self.stage_of[w] < stage for w in self.writers.get(name, ())):
                    crossing.add(name)
        return crossing

    def _scalar(self, buffer: str) -> str:
        return self.scalar_names.setdefault(buffer, f"s{len(self.scalar_names)}")

    def _is_scalar(self, buffer: str) -> bool:
        """Whether the buffer holds one value per outer point, made by one member."""
        writers = self.writers.get(buffer, ())
        if len(writers) != 1:
            return False
        member = self.laid.members[writers[0]]
        if isinstance(member, Reduction):
            return is_plain_reduction(member)
        return not self.laid.inner[writers[0]] and buffer in self.internal

    def _row(self, buffer: str) -> Row | None:
        """The scratch row of an internal buffer that crosses stages; None where its inner addresses
        are not known to be bounded."""
        if buffer in self.rows or not self.with_rows:
            return self.rows.get(buffer)
        dense = self._dense(buffer)
        if dense is None:
            length = self._longest_span(buffer)
        else:
            length = dense[1]
        if length is not None:
            name = f"w{len(self.rows)}"
            self.rows[buffer] = Row(name, self.buffers[buffer].dtype, length)
        return self.rows.get(buffer)

    def _longest_span(self, buffer: str) -> Expr | None:
        """The elements that the addresses of one outer point span; None where that is not known."""
        length = ZERO
        for w in self.writers[buffer]:
            rest = _inner_address(self.laid.members[w].index, self.outer)
            span = None
            if rest is not None:
                span = _span(rest, self.laid.inner[w])
            if span is None:
                return None
            length = maximum(length, span)
        return length

    def _dense(self, buffer: str) -> tuple[Expr, Expr] | None:
        """(number, count) of the elements of a row within an outer point, if all members walk
        through it alike. They then lie side by side, however far apart they are in the buffer."""
        if buffer not in self.dense:
            self.dense[buffer] = self._walked_alike(buffer)
        return self.dense[buffer]

    def _walked_alike(self, buffer: str) -> tuple[Expr, Expr] | None:
        loops = set(map(self.laid.inner.__getitem__, self.writers[buffer]))
        inner: set[Expr | None] = set()
        for m in self.laid.members:
            inner.update(_inner_address(e, self.outer) for name, e in m.accesses if name == buffer)
        if len(loops) != 1 or len(inner) != 1:
            return None
        (symbols,), (address,) = loops, inner
        linear = None
        if address is not None:
            linear = address.linear(symbols)
        if linear is None:
            return None
        for s in symbols:
            if (linear[1].get(s, ZERO).constant or 0) <= 0:
                return None
        return row_major(symbols), points_of(symbols)

    def _address(self, buffer: str, index: Expr) -> tuple[str, Expr]:
        """Where an element of a buffer is kept: (memory or row name, index there)."""
        if buffer in self.internal and buffer in self.loads_of_later_stages:
            row, dense = self._row(buffer), self._dense(buffer)
            inner = dense[0] if dense is not None else _inner_address(index, self.outer)
            if row is not None and inner is not None:
                return row.name, inner
        return buffer, index

    # -- adding a member ---------------------------------------------------------------------------

    def _add(self, member: Compute, draft: StageDraft) -> None:
        renamed: dict[Symbol, Expr] = {}

        def visit(_: BodyBuilder, i: Instruction) -> int:
            if renamed:
                i = i.with_index(lambda e: e.substitute(renamed))
            return self._emit(draft, i, renamed)

        numbers = draft.copy(member.body, visit)
        value = numbers[member.body.results[0]]
        index = member.index.substitute(renamed)
        if isinstance(member, Scan):
            value = draft.emit("running", (value,), member.dtype, (member.kind,))
        elif isinstance(member, Reduction):
            draft.reductions.append(
                Accumulate(member.kind, value, self._scalar(member.target), member.dtype)
            )
            return
        draft.stored[member.target, index] = value
        if member.target in self.internal:
            if member.target not in self.loads_of_later_stages:
                return
            if self._is_scalar(member.target):
                draft.scalars.append(Define(self._scalar(member.target), value))
                return
        mode = "store"
        if isinstance(member, Pointwise):
            mode = member.mode
        draft.stores.append(Store(*self._address(member.target, index), value, mode))

    def _emit(self, draft: StageDraft, i: Instruction, renamed: dict[Symbol, Expr]) -> int:
        if i.op == "load":
            return self._load(draft, i)
        if i.op == "indirect":
            symbol, extent, *rest = i.attrs
            key = (id(draft), i.args, extent)
            unique = self.indirect.get(key)
            if unique is None:
                unique = self.indirect[key] = value_symbol(f"t{len(self.indirect)}", extent)
            renamed[symbol] = unique
            i = i._replace(attrs=(unique, extent, *rest))
        return draft.append(i)

    def _load(self, draft: StageDraft, i: Instruction) -> int:
        buffer, index = i.attrs
        value = draft.stored.get((buffer, index))
        if value is None and self._is_scalar(buffer):
            value = draft.emit("scalar", (), i.dtype, (self._scalar(buffer),))
        if value is None:
            return draft.append(i._replace(attrs=self._address(buffer, index)))
        return draft.in_place_of(i, value)

    def _with_final_stores(self, drafts: list[StageDraft]) -> list[StageDraft]:
        """Add the stores of reduction results that are wanted in memory, to the first scalar stage
        after the reduction."""
        for k, member in enumerate(self.laid.members):
            if not is_plain_reduction(member) or member.target in self.internal:
                continue
            after = self.stage_of[k] + 1
            if after == len(drafts) or drafts[after].loops:
                drafts.insert(after, StageDraft(()))
                self.stage_of = [s + (s >= after) for s in self.stage_of]
            draft = drafts[after]
            value = draft.emit("scalar", (), member.dtype, (self._scalar(member.target),))
            draft.stores.append(Store(member.target, member.index, value))
        return drafts


def _inner_address(address: Expr, outer: Sequence[Symbol]) -> Expr | None:
    linear = address.linear(outer)
    if linear is None:
        return None
    return linear[0]


def _span(address: Expr, loops: Sequence[Symbol]) -> Expr | None:
    """One more than the largest value of an address over the loops; None unless linear with
    constant nonnegative strides."""
    linear = address.linear(loops)
    if linear is None:
        return None
    largest, strides = linear
    for s, stride in strides.items():
        if stride.constant is None or stride.constant < 0:
            return None
        largest = largest + stride * (s.extent - 1)
    return largest + 1


# -- canonical form --------------------------------------------------------------------------------


def _canonical_kernel(
    origin: Origin,
    outer: Sequence[Symbol],
    stages: Sequence[Stage],
    rows: list[Row],
    buffers: dict[str, Buffer],
    target: Target,
    run: int = 0,
) -> tuple[Kernel, tuple[str, ...]]:
    """Merge loops, name loops and parameters by position, and choose the vector and parallel
    loops."""
    outer, stages = _merge_loops(outer, stages)
    if not outer:
        outer = [loop_symbol("o0", 1)]
    has_inner = any(s.loops for s in stages)
    if not (target.has_registers or has_inner or any(s.scalars for s in stages)):
        if is_unrolled(outer, stages):
            outer, stages = _merge_loops(outer[:-1], [unrolled(s, outer[-1]) for s in stages])
    row_names = {r.name for r in rows}
    parameters, names = _parameters(stages, row_names, buffers, target)
    stages = tuple([s.with_buffers(lambda name: names.get(name, name)) for s in stages])
    vector = None
    if not run:
        vector = choose_vector_loop(outer, stages, row_names)
    tile = None
    if not has_inner:
        tile = choose_tile_loop(outer, stages)
    if tile is not None:
        outer = [*(s for s in outer[:-1] if s is not tile), tile, outer[-1]]
    parallel = _parallel_loops(outer, stages, target, vector, tile)
    kernel = Kernel(
        kernel_name(origin),
        origin,
        tuple(outer),
        stages,
        parameters,
        tuple(rows),
        parallel,
        vector,
        tile,
        run=run,
        blocking=target.blocking,
    )
    return kernel, tuple(names)


def _parallel_loops(
    outer: Sequence[Symbol],
    stages: Sequence[Stage],
    target: Target,
    vector: Symbol | None,
    tile: Symbol | None,
) -> int:
    """How many of the outer loops threads share. A CPU's vector loop is shared if it is long, and
    no loop is whose points may meet at one element."""
    is_shared = target.has_registers or vector is None or (tile is None and is_divided(outer))
    if is_shared:
        parallel = len(outer)
    else:
        parallel = max(1, len(outer) - 1)
    for stage in stages:
        for store in stage.stores:
            if store.scatters:
                parallel = min(parallel, _independent(outer, store.index))
    return parallel


def _independent(outer: Sequence[Symbol], index: Expr) -> int:
    """How many of the first loops keep their points apart."""
    for count, loop in enumerate(outer):
        if not loop_separates(index, loop):
            return count
        index = index.substitute({loop: ZERO})  # the same for points that meet
    return len(outer)


def _merge_loops(
    outer: Sequence[Symbol], stages: Sequence[Stage]
) -> tuple[list[Symbol], tuple[Stage, ...]]:
    substitution: dict[Symbol, Expr] = {}
    outer = _renumber(
        "o",
        merge_neighbours(outer, [e for s in stages for e in _stage_indices(s)], substitution),
        substitution,
    )
    result = []
    for s in stages:
        own = dict(substitution)
        loops = _renumber("r", merge_neighbours(s.loops, _stage_indices(s), own), own)
        result.append(s.substitute(own, loops))
    return outer, tuple(result)


def _renumber(
    prefix: str, loops: Sequence[Symbol], substitution: dict[Symbol, Expr]
) -> list[Symbol]:
    fresh = fresh_loops(prefix, extents_of(loops))
    names: dict[Symbol, Expr] = dict(zip(loops, fresh))
    for old, new in substitution.items():
        substitution[old] = new.substitute(names)
    for s in loops:
        substitution.setdefault(s, names[s])
    return list(fresh)


def _stage_indices(stage: Stage, but: Container[str] = ()) -> list[Expr]:
    indices = []
    for s in stage.stores:
        if s.buffer not in but:
            indices.append(s.index)
    for i in stage.body.loads:
        if i.attrs[0] not in but:
            indices.append(i.attrs[1])
    for i in stage.body.instructions:
        if i.op == "index":
            indices.append(i.attrs[0])
    return indices


def _parameters(
    stages: Sequence[Stage], rows: set[str], buffers: dict[str, Buffer], target: Target
) -> tuple[tuple[Parameter, ...], dict[str, str]]:
    """Parameters in order of first use, and graph buffer name -> parameter name."""
    read: set[str] = set()
    written: set[str] = set()
    names: dict[str, str] = {}
    for stage in stages:
        loaded, stored = accessed(stage)
        read.update(loaded)
        written.update(stored)
        for name in loaded + stored:
            if name not in rows:
                names.setdefault(name, f"p{len(names)}")
    return parameters_of(names, read, written, buffers, target.has_registers), names


def accessed(stage: Stage) -> tuple[list[str], list[str]]:
    """The buffers that a stage loads from and stores to, once for each time."""
    return loaded_by(stage.body), [store.buffer for store in stage.stores]


def loaded_by(body: Body) -> list[str]:
    return [i.attrs[0] for i in body.loads]


def parameters_of(
    names: Mapping[str, str],
    read: Collection[str],
    written: Collection[str],
    buffers: Mapping[str, Buffer],
    has_host: bool = False,
) -> tuple[Parameter, ...]:
    """Parameters for buffers: `names` from a buffer's name to that of its parameter."""
    parameters = []
    for name, parameter in names.items():
        b = buffers[name]
        on_host = b.on_host and has_host
        parameters.append(
            Parameter(parameter, b.dtype, name in read, name in written, b.length, on_host)
        )
    return tuple(parameters)


def choose_vector_loop(
    outer: Sequence[Symbol], stages: Sequence[Stage], rows: set[str]
) -> Symbol | None:
    """The last outer loop if memory is contiguous along it, else None, which stands for each
    stage's own last loop. It is the last outer loop as well where steps depend on each other that
    take longer than strided accesses. The memory of `rows` lies as it is wanted either way."""
    if all(not s.loops for s in stages):
        return outer[-1]
    along_inner = along_outer = 0
    for s in stages:
        for i in s.body.instructions:
            if i.op == "running" and i.attrs[0] == "logaddexp":
                return outer[-1]
        if not s.loops:
            continue
        for e in _stage_indices(s, rows):
            linear = e.linear([outer[-1], s.loops[-1]])
            if linear is None or len(linear[1]) < 2:
                continue  # one for each, which lies well either way
            along_inner += linear[1][s.loops[-1]] is ONE
            along_outer += linear[1][outer[-1]] is ONE
    if along_outer > along_inner:
        return outer[-1]
    return None


def kernel_name(origin: Origin) -> str:
    """A name made of the ops, each run of equal ones once: `layer_norm_gelu_add`."""
    short: list[str] = []
    for op in origin.ops:
        name = op
        if "." in op:
            name = op.split(".")[-2]
        if not short or short[-1] != name:
            short.append(name)
    text = "_".join(short)
    if len(text) <= 60:
        return text
    return text[:57] + "etc"
