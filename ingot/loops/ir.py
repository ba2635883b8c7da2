"""The loop IR: what is computed, element by element, before anything is fused or ordered.

A `LoopGraph` is a list of buffers and a list of nodes in program order. A node is a loop nest whose
body is a small SSA program (`Body`), a contraction of two arrays, or a call to a library. Sizes,
strides and indices are `Expr`s everywhere, also when they are constant. A view is an index map
inside a body, never a node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ingot.loops.expr import ONE, ZERO, Expr, Symbol
from ingot.loops.folds import FOLDS_OF
from ingot.loops.layers import Layers
from ingot.loops.spaces import address_of
from ingot.places import Origin as Origin

if TYPE_CHECKING:
    from ingot.loops.weights import Weights


class Fault(NamedTuple):
    """What a kernel raises, as eager would; where an index was computed to be in range, it is not
    `possible`."""

    error: type[BaseException]
    message: str
    possible: bool = True


@dataclass(frozen=True)
class Buffer:
    """A strided array in one storage of its own; `strides` are in elements, the offset is zero.

    `role` is "input" (belongs to the caller), "constant" (belongs to the graph: a lifted tensor
    literal) or "temporary" (made by a node; it may still be returned, see `LoopGraph.outputs`). In
    a graph of a GPU's, one that is `on_host` lies in the CPU's memory, and is written by nodes that
    run there.
    """

    name: str
    dtype: torch.dtype
    sizes: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    role: str = "temporary"
    device: torch.device = torch.device("cpu")
    on_host: bool = False

    @property
    def is_temporary(self) -> bool:
        return self.role == "temporary"

    @property
    def length(self) -> Expr:
        """Elements from the first to the last, gaps included; 0 when a size is 0."""
        return _length(self.sizes, self.strides)


@lru_cache(1 << 12)  # buffers of one layout are many
def _length(sizes: tuple[Expr, ...], strides: tuple[Expr, ...]) -> Expr:
    if ZERO in sizes:
        return ZERO
    return address_of([size - 1 for size in sizes], strides, ONE)


class Instruction(NamedTuple):
    """One scalar operation of a body. `args` are positions of earlier instructions in the same
    body.

    Beside the rows of the scalar op table (`loops/ops.py`) the vocabulary is:

    ==========  ======================  ============================================================
    op          args                    attrs
    ==========  ======================  ============================================================
    constant    ()                      (Python number,), as `Instruction.constant` makes them
    index       ()                      (Expr,): the value of an index expression; dtype int64
    load        () or (mask,)           (buffer name, Expr offset in elements): with a mask, 0 where
                                        it is false and memory is not touched there
    indirect    (value,) or             (Symbol, Expr extent, Fault): names an integer value so that
                                        index
                (value, mask)           expressions may use it; a value v in [-extent, 0) means v +
                                        extent; outside [-extent, extent) (where the mask holds) the
                                        kernel reports the fault
    scalar      ()                      (name,): a value of the current outer point, made by an
                                        earlier stage of a kernel (a finished reduction, or a
                                        `Stage.scalars` entry); kernels only
    to          (value,)                (): conversion to the instruction's dtype
    ==========  ======================  ============================================================
    """

    op: str
    args: tuple[int, ...]
    dtype: torch.dtype
    attrs: tuple[Any, ...] = ()

    def with_index(self, f: Callable[[Expr], Expr]) -> Instruction:
        """The instruction with `f` applied to its index expression, if it has one."""
        at = _INDEX.get(self.op)
        if at is None:
            return self
        attrs = (*self.attrs[:at], f(self.attrs[at]), *self.attrs[at + 1 :])
        return Instruction(self.op, self.args, self.dtype, attrs)

    @property
    def expression(self) -> Expr | None:
        """The index expression of an instruction, if it has one."""
        at = _INDEX.get(self.op)
        if at is None:
            return None
        expression: Expr = self.attrs[at]
        return expression

    @staticmethod
    def constant(value: bool | int | float, dtype: torch.dtype) -> Instruction:
        """A constant. Two of them are equal where their bits are: -0.0, which equals 0.0 in Python,
        has its text beside it, and NaN, which equals nothing, is one object."""
        if value != value:
            return Instruction("constant", (), dtype, (math.nan,))
        if value == 0 and math.copysign(1, value) < 0:
            return Instruction("constant", (), dtype, (value, "-0.0"))
        return Instruction("constant", (), dtype, (value,))


# where the index expression stands among the attributes of instructions that have one
_INDEX = {"load": 1, "index": 0, "indirect": 1}


class Body(NamedTuple):
    """A straight-line SSA program over loop variables; `results` are positions in
    `instructions`."""

    instructions: tuple[Instruction, ...]
    results: tuple[int, ...]

    @property
    def loads(self) -> list[Instruction]:
        return [i for i in self.instructions if i.op == "load"]

    @property
    def reads(self) -> set[str]:
        """The names of the buffers loaded."""
        return {i.attrs[0] for i in self.loads}

    @property
    def load_places(self) -> list[Expr]:
        """The elements that are loaded, of whatever buffers."""
        return [i.attrs[1] for i in self.loads]

    def places(self, buffer: str) -> list[Expr]:
        """The elements of a buffer that are loaded."""
        results = []
        for i in self.loads:
            if i.attrs[0] == buffer:
                results.append(i.attrs[1])
        return results

    @property
    def lookups(self) -> list[int]:
        """The positions of indirect lookups, each of which may have to report an error."""
        results = []
        for k, i in enumerate(self.instructions):
            if i.op == "indirect":
                results.append(k)
        return results

    def needed(self, roots: Iterable[int]) -> list[int]:
        """The positions of what the values at `roots` are computed from, and `roots`, in order."""
        positions = set(roots)
        for position in range(max(positions, default=-1), -1, -1):
            if position in positions:
                positions.update(self.instructions[position].args)
        return sorted(positions)

    def without_dead(self) -> Body:
        """The body without what its results do not need. Lookups stay, with what they need."""
        needed = self.needed({*self.results, *self.lookups})
        if len(needed) == len(self.instructions):
            return self
        builder = BodyBuilder()
        positions = builder.copy(self, only=needed)
        return builder.body(*map(positions.__getitem__, self.results))

    def rewrite(self, visit: Visit) -> Body:
        """The body in which each value is the one that `visit` gives for its instruction.

        `visit` is called for one instruction after the other, whose arguments are positions in the
        new body. It may append that instruction, others or none to the builder that it is given,
        and returns the position of the value that takes the place of the old one.
        """
        builder = BodyBuilder()
        positions = builder.copy(self, visit)
        return builder.body(*map(positions.__getitem__, self.results))

    def with_indices(self, f: Callable[[Expr], Expr]) -> Body:
        """The body with `f` applied to every index expression."""
        return Body(tuple([i.with_index(f) for i in self.instructions]), self.results)

    def substitute(self, values: Mapping[Symbol, Expr]) -> Body:
        """The body with each symbol of `values` replaced in its index expressions."""
        return self.with_indices(lambda e: e.substitute(values))

    def with_buffers(self, rename: Callable[[str], str]) -> Body:
        """The body which loads from the buffer `rename(name)` in place of `name`."""
        instructions = list(self.instructions)
        for k, i in enumerate(instructions):
            if i.op == "load":
                attrs = rename(i.attrs[0]), *i.attrs[1:]
                instructions[k] = Instruction(i.op, i.args, i.dtype, attrs)
        return Body(tuple(instructions), self.results)


# where the condition stands among the arguments of instructions that may have one
_CONDITION = {"load": 0, "indirect": 1}


class BodyBuilder:
    """A body under construction, to which instructions are appended; equal ones share a position.

    All that takes instructions from one body to another goes through `copy`, which renumbers
    arguments: `Body.rewrite` and `schedule.kernel.Stage.rewrite` are made of it.
    """

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self._positions: dict[Instruction, int] = {}

    def append(self, instruction: Instruction) -> int:
        """The position of an instruction, whose arguments are positions in this body."""
        position = self._positions.get(instruction)
        if position is None:
            position = self._positions[instruction] = len(self.instructions)
            self.instructions.append(instruction)
        return position

    def emit(
        self, op: str, args: tuple[int, ...], dtype: torch.dtype, attrs: tuple[Any, ...] = ()
    ) -> int:
        return self.append(Instruction(op, args, dtype, attrs))

    def constant(self, value: bool | int | float, dtype: torch.dtype) -> int:
        """A constant as it stands: `loops.ops.constant` converts it."""
        return self.append(Instruction.constant(value, dtype))

    def constant_of(self, position: int) -> Any:
        """The Python number if a value is a constant, else None."""
        instruction = self.instructions[position]
        if instruction.op == "constant":
            return instruction.attrs[0]
        return None

    def fold(self, instruction: Instruction) -> int:
        """The position of the value of an instruction, which is appended unless an identity
        (`loops.folds`) says what it is."""
        op, args, dtype, _ = instruction
        rows = FOLDS_OF.get(op)
        if rows is None:
            return self.append(instruction)
        numbers = list(map(self.constant_of, args))
        of_floats = self.instructions[args[-1]].dtype.is_floating_point
        for row in rows:
            if row.holds(args, numbers, of_floats):
                result = row.result
                if isinstance(result, str):
                    return args[row.operands.index(result)]
                return self.constant(result(*numbers) if callable(result) else result, dtype)
        return self.append(instruction)

    def copy(
        self, body: Body, visit: Visit | None = None, only: Sequence[int] | None = None
    ) -> dict[int, int]:
        """Append the instructions of another body, or `only` those at some positions.

        Gives the position here of each value there: the one that `visit` gives (`Body.rewrite`).
        """
        positions: dict[int, int] = {}
        for old in range(len(body.instructions)) if only is None else only:
            i = body.instructions[old]
            if i.args:
                args = tuple(map(positions.__getitem__, i.args))
                i = Instruction(i.op, args, i.dtype, i.attrs)
            if visit is None:
                positions[old] = self.append(i)
            else:
                positions[old] = visit(self, i)
        return positions

    def under(self, condition: int, instruction: Instruction) -> Instruction:
        """A load or a lookup that is done only where `condition` holds as well; another instruction
        as it is."""
        at = _CONDITION.get(instruction.op)
        if at is None:
            return instruction
        if len(instruction.args) > at:
            both = (instruction.args[at], condition)
            condition = self.emit("logical_and", both, torch.bool)
        return instruction._replace(args=(*instruction.args[:at], condition))

    def in_place_of(self, load: Instruction, value: int) -> int:
        """A value that takes the place of a load's: 0 where the load's condition does not hold."""
        if not load.args:
            return value
        zero = self.constant(0, load.dtype)
        return self.emit("where", (load.args[0], value, zero), load.dtype)

    def body(self, *results: int) -> Body:
        return Body(tuple(self.instructions), results)


Visit = Callable[[BodyBuilder, Instruction], int]


@dataclass(frozen=True)
class Node:
    """What all nodes share. `name` is unique in the graph."""

    name: str
    origin: Origin

    def reads(self) -> set[str]:
        """Names of the buffers read."""
        raise NotImplementedError

    def writes(self) -> tuple[str, ...]:
        """Names of the buffers written, wholly or in part."""
        raise NotImplementedError


class LoopNest(Node):
    """What a pointwise node and a reduction share: a body is computed at each point of loops."""

    loops: tuple[Symbol, ...]
    body: Body
    target: str
    index: Expr

    @property
    def accesses(self) -> list[tuple[str, Expr]]:
        """The buffers and elements written and read, that of the target first."""
        return [(self.target, self.index), *[i.attrs for i in self.body.loads]]

    def reads(self) -> set[str]:
        return self.body.reads

    def writes(self) -> tuple[str, ...]:
        return (self.target,)


@dataclass(frozen=True)
class Pointwise(LoopNest):
    """For each point of `loops`, store the body's only result at element `index` of `target`.

    `mode` is "store", or for a scatter that accumulates one of "add", "mul", "max" and "min": the
    element becomes that of itself and the result.
    """

    loops: tuple[Symbol, ...]
    body: Body
    target: str
    index: Expr
    mode: str = "store"

    @property
    def scatters(self) -> bool:
        """Whether several points may meet at one element, in which case their order counts."""
        return self.mode != "store" or self.index.is_indirect


@dataclass(frozen=True)
class Reduction(LoopNest):
    """For each point of `loops`, reduce the body's result over `reduced` and store it at `index` of
    `target`.

    `kind` is one of `REDUCTIONS`; the accumulator has the body result's dtype, the stored value
    `dtype` (equal, but for argmax and argmin: int64 position in the row-major order of `reduced`,
    first one wins, NaN counts as extreme). "max" and "min" return NaN if any element is NaN.
    """

    loops: tuple[Symbol, ...]
    reduced: tuple[Symbol, ...]
    kind: str
    body: Body
    target: str
    index: Expr
    dtype: torch.dtype


@dataclass(frozen=True)
class Scan(Reduction):
    """A reduction that stores each step: what has been reduced up to a place, and with it.

    It does so for each point of `loops` and each place of the one loop of `reduced`, at `index`,
    which has that loop, as `dtype`. `kind` is one of `SCANS`. Of equal extremes the last one
    counts, its position too.
    """


REDUCTIONS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")
SCANS = ("sum", "prod", "max", "min", "argmax", "argmin", "logaddexp")


@dataclass(frozen=True)
class Access:
    """The elements of a buffer that a contraction reads: those at `index`, which is linear in its
    loops."""

    buffer: str
    index: Expr

    def substitute(self, values: Mapping[Symbol, Expr]) -> Access:
        return Access(self.buffer, self.index.substitute(values))


@dataclass(frozen=True)
class Contraction(Node):
    """For each point of `batch`, `rows` and `columns`, sum left * right over `reduced` into
    `target` at `index`.

    `left` depends on batch, rows and reduced, `right` on batch, columns and reduced; there is one
    column loop. The last reduced loop is the one that is cut into blocks, the others run around it:
    a matrix product has one, a convolution one for each axis of the window before that over
    channels. Products and sums are of `dtype`, that of both operands and of the target. Sums are
    taken in blocks, in an order that depends on the sizes alone.

    With `weights`, which take the place of the left operand, there is one row loop and one reduced
    loop, operands may be halves, and a GPU rounds the weights to the dtype of the right one.
    """

    batch: tuple[Symbol, ...]
    rows: tuple[Symbol, ...]
    columns: tuple[Symbol, ...]
    reduced: tuple[Symbol, ...]
    left: Access
    right: Access
    target: str
    index: Expr
    dtype: torch.dtype
    weights: Weights | None = None

    @property
    def loops(self) -> tuple[Symbol, ...]:
        """The loops over the elements written."""
        return self.batch + self.rows + self.columns

    def reads(self) -> set[str]:
        if self.weights is not None:
            return {self.right.buffer} | self.weights.reads
        return {self.left.buffer, self.right.buffer}

    def writes(self) -> tuple[str, ...]:
        if self.weights is not None:
            return (self.target, *self.weights.writes)
        return (self.target,)


@dataclass(frozen=True)
class View:
    """A strided window on a buffer: what a library call is given, and what an output may be.

    `offset` is in elements from the buffer's first element.
    """

    buffer: str
    sizes: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    offset: Expr
    dtype: torch.dtype


@dataclass(frozen=True)
class Library(Node):
    """A call of `function(*args, **kwargs)` at run time, for an op whose library kernel is the
    right answer.

    `args` and `kwargs` may nest lists and tuples and hold `View`s and `Expr`s, which the run time
    turns into tensors and ints. With `out` set, the call writes into the buffers `targets` through
    that keyword (an out= variant); with `out` None it returns fresh tensors (one, or a tuple
    matching `targets`, where None stands for a result nobody uses) which become the buffers.
    `mutates` names the buffers among the arguments that the call writes. `ordered` calls do
    something beside their results, and keep their order; one that `retains` may keep the tensors
    that it is given, and those that it gives; one that `may_raise` is an error for some values of
    its tensors. `binds` are the symbols that the call gives a value: (symbol, position among the
    results, dimension), with dimension -1 the result itself, an int.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    targets: tuple[str | None, ...]
    out: str | None = None
    mutates: tuple[str, ...] = ()
    ordered: bool = False
    retains: bool = False
    may_raise: bool = False
    binds: tuple[tuple[Symbol, int, int], ...] = ()

    def reads(self) -> set[str]:
        return buffers_of(views_in((self.args, self.kwargs)))

    def writes(self) -> tuple[str, ...]:
        return tuple(t for t in self.targets if t is not None) + self.mutates


@dataclass(frozen=True)
class Attention(Node):
    """target = softmax(scale * query @ key.T + mask) @ value, for each batch and head, in float32.

    The views are (batch, head, row, column), with sizes above 0, of which heads and the widths of
    keys and values are constant, and a row lies in consecutive elements. Key and value may have
    fewer heads, each for as many neighbouring ones of the query. The mask is (batch, head, query,
    key), with strides of 0 where it is broadcast, and is added, or, if it `replaces`, stands for
    the score where it is not NaN. With `causal`, query i sees keys up to i. A query that sees no
    key (all its scores are -inf) gives NaN, or zero with `zero_rows`. The `logarithms` of the sums
    of the exponentials of scores, (batch, head, query), are written as well where they are wanted,
    as for a backward; that of a row of zeros is zero.
    """

    query: View
    key: View
    value: View
    mask: View | None
    target: View
    scale: float
    causal: bool = False
    zero_rows: bool = False
    replaces: bool = False
    logarithms: View | None = None

    @property
    def operands(self) -> tuple[View, ...]:
        operands = self.query, self.key, self.value
        if self.mask is None:
            return operands
        return (*operands, self.mask)

    def reads(self) -> set[str]:
        return buffers_of(self.operands)

    def writes(self) -> tuple[str, ...]:
        if self.logarithms is None:
            return (self.target.buffer,)
        return self.target.buffer, self.logarithms.buffer


@dataclass(frozen=True)
class AttentionBackward(Node):
    """The gradients of an `Attention`'s query, key and value, for that of its result, the
    `tangent`.

    What the views are, `Attention` says; here heads are not shared, `result` and `logarithms` are
    read, a mask is added, and the three gradients are written.
    """

    tangent: View
    query: View
    key: View
    value: View
    mask: View | None
    result: View
    logarithms: View
    of_query: View
    of_key: View
    of_value: View
    scale: float
    causal: bool = False

    @property
    def operands(self) -> tuple[View, ...]:
        """What is read."""
        whole = (self.tangent, self.query, self.key, self.value, self.result, self.logarithms)
        if self.mask is None:
            return whole
        return (*whole, self.mask)

    @property
    def results(self) -> tuple[View, View, View]:
        return (self.of_query, self.of_key, self.of_value)

    def reads(self) -> set[str]:
        return buffers_of(self.operands)

    def writes(self) -> tuple[str, ...]:
        return tuple(v.buffer for v in self.results)


def buffers_of(views: Iterable[View]) -> set[str]:
    return {view.buffer for view in views}


def view_fields(node: Node) -> dict[str, View]:
    """The fields of a node that are views."""
    result = {}
    for name, view in vars(node).items():
        if isinstance(view, View):
            result[name] = view
    return result


def symbols_in(tree: Any) -> frozenset[Symbol]:
    """All symbols of the expressions in a node, a view, or nested tuples, lists and dicts; of
    loops, their extents'."""
    if isinstance(tree, Symbol) and tree.kind != "size":
        return tree.extent.symbols
    if isinstance(tree, Expr):
        if all(s.kind == "size" for s in tree.symbols):
            return tree.symbols
        tree = tuple(tree.symbols)
    if isinstance(tree, (Node, View, Access)):
        tree = tuple(vars(tree).values())
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if isinstance(tree, (tuple, list)):
        return frozenset().union(*map(symbols_in, tree))
    return frozenset()


def views_in(tree: Any) -> list[View]:
    """All `View`s in nested tuples, lists and dicts, in order."""
    if isinstance(tree, View):
        return [tree]
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if isinstance(tree, (tuple, list)):
        return [v for item in tree for v in views_in(item)]
    return []


@dataclass
class LoopGraph:
    """A program in loop IR.

    `inputs` names the buffer of each tensor input, in graph order; `integers` counts the int
    inputs, which come after them. `symbols` says where each size symbol is read: (symbol, position
    among the inputs, "size" | "stride", dimension), or (symbol, position, "value", 0) of an int;
    (symbol, -1, "bound", 0) is one that a library call binds. `outputs` are what the program
    returns: a View on a temporary (its storage then belongs to the user), a View on an input (an
    alias: eager's output shares the input's storage), or an Expr (a Python int). Writes to inputs
    are ordinary nodes whose target is an input buffer. `checks` are relations, (left, relation,
    right, place), that must hold once their symbols are bound. `checked` names the buffers that
    must be computed though nobody may read them: doing so may raise an error. `mutated` names the
    inputs that the program writes, those among them that have no elements. `uncounted` names those
    of them of whose writes autograd is not told. `lends` names the inputs whose memory may become
    that of a result once they have been read for the last time, `donated` those among them that the
    caller gives up, with how errors call them. `addressed` names the inputs of
    which elements are counted from where their storage begins, by as_strided: these may lie before
    or behind the input's own. `copies` are parts of the program that are like a part of the graph,
    which alone has nodes: a list for each, of the inputs and outputs that take the place of others.
    With `layers` nodes and inputs are those of some layers of the program, until the others are
    added. `is_backward` says that it computes gradients of another program's results.
    """

    buffers: dict[str, Buffer] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    integers: int = 0
    symbols: list[tuple[Symbol, int, str, int]] = field(default_factory=list)
    outputs: list[View | Expr] = field(default_factory=list)
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    checked: set[str] = field(default_factory=set)
    mutated: set[str] = field(default_factory=set)
    uncounted: set[str] = field(default_factory=set)
    lends: set[str] = field(default_factory=set)
    donated: dict[str, str] = field(default_factory=dict)
    addressed: set[str] = field(default_factory=set)
    checks: list[tuple[Expr, str, Expr, str]] = field(default_factory=list)
    copies: list[list[dict[str, str]]] = field(default_factory=list)
    layers: Layers | None = None
    is_backward: bool = False

    @property
    def returned(self) -> set[str]:
        """The buffers that outputs show."""
        return buffers_of(views_in(self.outputs))

    @property
    def required(self) -> set[str]:
        """The buffers that must be computed though no node reads them."""
        return self.returned | self.checked

    def is_temporary(self, name: str) -> bool:
        return self.buffers[name].is_temporary

    @property
    def bound(self) -> frozenset[Symbol]:
        """The symbols that library calls bind."""
        return frozenset(symbol for symbol, _, kind, _ in self.symbols if kind == "bound")
