"""Kernels: what the schedule hands to code generation.

A kernel is a nest of outer loops around a sequence of stages. Each stage adds its own inner loops
(none: it runs once per outer point), evaluates a body, stores values, and accumulates reductions
over its inner loops; a finished reduction is a `scalar` that later stages read. LayerNorm over rows
is one kernel with the row loop outside and stages for the sum, the squared deviations and the
normalized values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import torch

from ingot.loops.depthwise import DepthwiseGradient
from ingot.loops.expr import Expr, Symbol, integer
from ingot.loops.ir import Access, Body, BodyBuilder, Instruction, Origin, Visit
from ingot.loops.spaces import points_of
from ingot.loops.target import Blocking
from ingot.loops.weights import Weights


@dataclass(frozen=True)
class Store:
    """Store the stage body's instruction number `value` at element `index` of a parameter or row.
    The `mode` is one of `loops.ir.Pointwise`, or "total", which adds up what the points of a run
    have (`Kernel.run`)."""

    buffer: str
    index: Expr
    value: int
    mode: str = "store"

    @property
    def scatters(self) -> bool:
        """Whether several points may meet at one element, in which case their order counts."""
        return self.mode not in ("store", "total") or self.index.is_indirect


@dataclass(frozen=True)
class Accumulate:
    """Reduce the stage body's instruction number `value` over the stage's loops into the scalar
    `name` of type `dtype`.

    `kind` is one of `loops.ir.REDUCTIONS`. The result may be read by later stages only.
    """

    kind: str
    value: int
    name: str
    dtype: torch.dtype


@dataclass(frozen=True)
class Define:
    """Name the stage body's instruction number `value` (of a stage without loops) for later stages
    to read as a `scalar`."""

    name: str
    value: int


class Parameter(NamedTuple):
    """A buffer the kernel touches, in argument order. `length` is its number of elements, gaps
    included, where known; only checks of bounds look at it. A GPU's kernel is given the one number
    that is `on_host`, not its address. The parameter at the position that it `lends` to (-1: none)
    may lie in its memory: each element is read before it is overwritten."""

    name: str
    dtype: torch.dtype
    read: bool
    written: bool
    length: Expr | None = None
    on_host: bool = False
    lends: int = -1


def loans(parameters: Sequence[Parameter]) -> list[tuple[int, int]]:
    """The positions of parameters that lend their memory, and to which."""
    results = []
    for k, p in enumerate(parameters):
        if p.lends >= 0:
            results.append((k, p.lends))
    return results


class Row(NamedTuple):
    """Scratch memory of one outer point: `length` elements, private to the thread, dead after the
    outer point.

    When the kernel's vector axis is an outer loop, code generation keeps one row per lane.
    """

    name: str
    dtype: torch.dtype
    length: Expr


User = TypeVar("User", Store, Accumulate, Define)
"""What a stage does with a value of its body."""


@dataclass(frozen=True)
class Stage:
    loops: tuple[Symbol, ...]
    body: Body
    stores: tuple[Store, ...] = ()
    reductions: tuple[Accumulate, ...] = ()
    scalars: tuple[Define, ...] = ()

    @property
    def values(self) -> set[int]:
        """The positions of what is stored, reduced or named."""
        users: tuple[Store | Accumulate | Define, ...]
        users = (*self.stores, *self.reductions, *self.scalars)
        return {user.value for user in users}

    def remap(self, body: Body, positions: Mapping[int, int]) -> Stage:
        """The stage with another body, in which the value number k is number `positions[k]`."""

        def moved(users: Iterable[User]) -> tuple[User, ...]:
            return tuple([replace(user, value=positions[user.value]) for user in users])

        users = moved(self.stores), moved(self.reductions), moved(self.scalars)
        return Stage(self.loops, body, *users)

    def with_buffers(self, rename: Callable[[str], str]) -> Stage:
        """The stage over other buffers: `rename(name)` takes the place of `name`."""
        stores = tuple([replace(s, buffer=rename(s.buffer)) for s in self.stores])
        return replace(self, body=self.body.with_buffers(rename), stores=stores)

    def substitute(self, values: Mapping[Symbol, Expr], loops: Sequence[Symbol]) -> Stage:
        """The stage over other loops: each symbol of `values` is replaced in its indices."""
        stores = tuple([replace(s, index=s.index.substitute(values)) for s in self.stores])
        body = self.body.substitute(values)
        return replace(self, loops=tuple(loops), body=body, stores=stores)

    def rewrite(self, visit: Visit) -> Stage:
        """The stage with its body rewritten, as `loops.ir.Body.rewrite` does it."""
        builder = BodyBuilder()
        positions = builder.copy(self.body, visit)
        return self.remap(builder.body(), positions)

    def without_dead(self) -> Stage:
        """The stage without instructions that nothing uses. Lookups stay, with what they need."""
        needed = self.body.needed(self.values.union(self.body.lookups))
        if len(needed) == len(self.body.instructions):
            return self
        builder = BodyBuilder()
        positions = builder.copy(self.body, only=needed)
        return self.remap(builder.body(), positions)


class Tiling(NamedTuple):
    """How a GPU computes a product: a block of `warps` warps takes `rows` by `columns` of it. It
    takes `depth` steps of the reduction at a time, and reads up to `stages` of these ahead. Blocks
    go down `group` rows of blocks before they go across. `precision` is that of products of
    float32, as Triton names it."""

    rows: int
    columns: int
    depth: int
    stages: int
    warps: int
    group: int = 8
    precision: str = "ieee"

    def __str__(self) -> str:
        if self.precision == "ieee":
            precision = ""
        else:
            precision = f", {self.precision}"
        block = f"{self.rows}x{self.columns}x{self.depth}"
        return f"{block}, {self.stages} stages, {self.warps} warps{precision}"


@dataclass(frozen=True)
class Product:
    """A contraction, as `loops.ir.Contraction` has it but for its target. The kernel's only stage
    loops over `rows` and `columns`, and reads the sum of its point as the scalar `name`.

        A point of the parallel range is a block of `row_block` rows (flattened) by `column_block`
    columns. Where `panel` is not 0, the right operand lies in panels of so many columns, side by
    side for each step of the reduction; the last one is as large as the others. With `copies`, a
    block copies its rows of the left operand, adjacent in memory. On a GPU there is a `tiling`;
    operands may be halves, whose products are summed in float32, which is then `dtype`. There an
    operand may be computed as it is read: `prologues` are the bodies of the left and the right one,
    over the same loops. With `weights` the left operand is the query of attention.
    """

    name: str
    rows: tuple[Symbol, ...]
    columns: tuple[Symbol, ...]
    reduced: tuple[Symbol, ...]
    left: Access
    right: Access
    dtype: torch.dtype
    row_block: int
    column_block: int
    panel: int = 0
    copies: bool = False
    tiling: Tiling | None = None
    prologues: tuple[Body | None, Body | None] = (None, None)
    weights: Weights | None = None

    @property
    def row_blocks(self) -> Expr:
        return ceil_div(points_of(self.rows), self.row_block)

    @property
    def column_blocks(self) -> Expr:
        return ceil_div(self.columns[0].extent, self.column_block)


@dataclass(frozen=True)
class Kernel:
    """`loops` are outer, outermost first; the first `parallel` of them are collapsed into one range
    that threads share.

    `vector` is the loop whose iterations fill the lanes of a vector: an inner loop of the stages
    (each stage names its own last loop; `vector` is then None) or the last outer loop. With a
    single outer loop that is both parallel and vector, a thread's range is counted in its
    iterations.

    `tile` is the last loop before `vector` where some loads are contiguous along it and not along
    `vector`: code generation transposes those in blocks of the two loops. The stages then have no
    loops of their own.

    Of a GPU's kernel with a `run`, a block takes so many neighbouring points one after the other,
    whose sums of columns (stores of mode "total") have one place. The stages that have loops have
    the same ones.

    A GPU's kernel with a `table` runs over up to that many sets of buffers in one launch, and finds
    its points there.

    `blocking` says what a GPU's blocks are chosen by.

    A GPU's kernel with `members` computes each of these kernels in blocks of its own, those of the
    first one first. Its parameters are theirs in turn; it has no stages.

    With a `product`, `loops` are its batch loops, all parallel, and the parallel range has its
    blocks besides. A GPU's kernel that computes a `depthwise` convolution's gradient has the loops
    of its meaning, and is written from the node.
    """

    name: str
    origin: Origin
    loops: tuple[Symbol, ...]
    stages: tuple[Stage, ...]
    parameters: tuple[Parameter, ...]
    rows: tuple[Row, ...] = ()
    parallel: int = 1
    vector: Symbol | None = None
    tile: Symbol | None = None
    product: Product | None = None
    table: int = 0
    run: int = 0
    blocking: Blocking = Blocking()
    depthwise: DepthwiseGradient | None = None
    members: tuple[Kernel, ...] = ()

    def __hash__(self) -> int:
        """That of its fields, which takes long."""
        known = self.__dict__.get("_hash")
        if known is None:
            fields = [getattr(self, name) for name in self.__match_args__]
            known = self.__dict__["_hash"] = hash(tuple(fields))
        return known

    @property
    def loads(self) -> list[Instruction]:
        results = []
        for stage in self.stages:
            for load in stage.body.loads:
                results.append(load)
        return results

    @property
    def stores(self) -> list[Store]:
        results = []
        for stage in self.stages:
            for store in stage.stores:
                results.append(store)
        return results

    def of_members(self) -> Iterator[tuple[Kernel, tuple[Parameter, ...]]]:
        """The members, each with those of the parameters that are its own."""
        begin = 0
        for member in self.members:
            end = begin + len(member.parameters)
            yield member, self.parameters[begin:end]
            begin = end

    @property
    def points(self) -> Expr:
        """The number of points of the parallel range."""
        if self.members:
            return sum([m.points for m in self.members], integer(0))
        shared = points_of(self.loops[: self.parallel])
        if self.product is None:
            return shared
        return shared * self.product.row_blocks * self.product.column_blocks


class Scaling(NamedTuple):
    """A kernel's parameter is multiplied by one number, so that 1 leaves its elements as they are.
    The fields are the positions of the parameters, and where the number lies. In the same memory
    nothing is to be done then."""

    source: int
    factor: int
    offset: Expr
    target: int


def scaling(kernel: Kernel) -> Scaling | None:
    """How a kernel scales what lends its memory; None for others."""
    if len(kernel.stages) != 1 or kernel.table or kernel.product or not loans(kernel.parameters):
        return None
    (stage,) = kernel.stages
    loads = []
    for i in stage.body.loads:
        if not i.args:
            loads.append(i)
    if len(loads) != 2 or len(stage.stores) != 1 or stage.reductions or stage.scalars:
        return None
    (store,) = stage.stores
    positions = {}
    for k, p in enumerate(kernel.parameters):
        positions[p.name] = k
    dtype = kernel.parameters[positions[store.buffer]].dtype
    if dtype not in (torch.float32, torch.float64) or store.mode != "store":
        return None
    target = positions[store.buffer]
    for source, factor in (loads, loads[::-1]):
        buffer, offset = factor.attrs
        candidate = Scaling(positions[source.attrs[0]], positions[buffer], offset, target)
        if _may_scale(kernel, candidate) and source.attrs[1] == store.index:
            if _is_source(stage.body.instructions, store.value, source, factor):
                return candidate
    return None


def _may_scale(kernel: Kernel, scaling: Scaling) -> bool:
    """Whether the parameters are of one type, the source lends its memory to the target, and the
    factor is one number in the device's memory."""
    parameters = kernel.parameters
    source, target = parameters[scaling.source], parameters[scaling.target]
    factor = parameters[scaling.factor]
    if not source.dtype is factor.dtype is target.dtype or factor.on_host:
        return False
    return source.lends == scaling.target and not scaling.offset.symbols


def _is_source(
    body: Sequence[Instruction], position: int, source: Instruction, factor: Instruction
) -> bool:
    """Whether a value is what `source` loads where `factor` loads 1."""
    value = body[position]
    if value.op == "mul":
        a, b = value.args
        return any(
            body[y] == factor and _is_source(body, x, source, factor) for x, y in ((a, b), (b, a))
        )
    if value.op == "where":
        return all(_is_source(body, k, source, factor) for k in value.args[1:])
    return value == source


def ceil_div(a: Expr, b: int) -> Expr:
    return (a + (b - 1)) // b


class Operand(NamedTuple):
    """A four-dimensional array (batch, head, row, column): the parameter it lies in, and its
    strides and where it begins, in elements. Without columns there is no stride of theirs."""

    parameter: int
    strides: tuple[Expr, ...]
    offset: Expr


@dataclass(frozen=True)
class AttentionKernel:
    """A `loops.ir.Attention` node as a kernel of its own kind.

    `sizes` are (batches, heads, queries, keys, width of a key, width of a value), of which heads
    and widths are constant; a key's head serves heads // key_heads neighbouring ones. A point of
    the parallel range is a block of `query_block` queries of one head.
    """

    name: str
    origin: Origin
    parameters: tuple[Parameter, ...]
    sizes: tuple[Expr, ...]
    key_heads: int
    query: Operand
    key: Operand
    value: Operand
    target: Operand
    mask: Operand | None
    scale: float
    causal: bool
    zero_rows: bool
    replaces: bool
    query_block: int
    logarithms: Operand | None = None

    @property
    def blocks(self) -> Expr:
        """Blocks of queries in a head."""
        return ceil_div(self.sizes[2], self.query_block)


@dataclass(frozen=True)
class AttentionBackwardKernel:
    """A `loops.ir.AttentionBackward` node as a kernel of its own kind.

    `sizes` are those of an `AttentionKernel`. A point of the parallel range is a head of a batch,
    whose queries are taken in blocks of `query_block`.
    """

    name: str
    origin: Origin
    parameters: tuple[Parameter, ...]
    sizes: tuple[Expr, ...]
    tangent: Operand
    query: Operand
    key: Operand
    value: Operand
    mask: Operand | None
    result: Operand
    logarithms: Operand
    of_query: Operand
    of_key: Operand
    of_value: Operand
    scale: float
    causal: bool
    query_block: int


AnyKernel = Kernel | AttentionKernel | AttentionBackwardKernel

AnyOf = TypeVar("AnyOf", bound=AnyKernel)


def anonymous(kernel: AnyOf, keep_lengths: bool = False) -> AnyOf:
    """The kernel without name, origin and, unless these are kept, the lengths of its buffers, which
    only checks of bounds look at."""
    parameters = kernel.parameters
    if not keep_lengths:
        parameters = tuple([p._replace(length=None) for p in parameters])
    nameless = replace(kernel, name="", origin=Origin(()), parameters=parameters)
    if isinstance(nameless, Kernel) and nameless.members:
        members = tuple([anonymous(m, keep_lengths) for m in nameless.members])
        return replace(nameless, members=members)
    return nameless
