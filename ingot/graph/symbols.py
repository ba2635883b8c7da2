"""Symbolic sizes: torch.SymInt over Ingot's own index expressions, and the guards that comparisons
of them leave.

torch asks a SymInt's `node` to do its arithmetic. `SizeNode` and `TruthNode` are such nodes over
`Expr`; sympy and torch's own shape environment are not involved. A comparison whose outcome follows
from algebra is free; any other is decided by the sizes at hand (the hints) and kept as a guard, on
which the compiled code depends.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from ingot.errors import Unsupported
from ingot.graph.unbacked import USUAL_SIZE, Check, Unbacked, substituted, usual
from ingot.loops.expr import (
    ONE,
    ZERO,
    Expr,
    Symbol,
    as_expr,
    integer,
    known_equal,
    known_less,
    known_less_equal,
    maximum,
    minimum,
    product,
    size_symbol,
)
from ingot.torch_private import current_autograd_node

Asked = TypeVar("Asked")


class ShapeGuard(NamedTuple):
    """A relation between sizes that held when it was asked for: `relation` is one of ==, !=, <,
    <=."""

    left: Expr
    relation: str
    right: Expr
    where: str

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"

    def holds(self, values: Mapping[Symbol, int]) -> bool:
        """Whether it does for these values of the symbols."""
        return _DECIDE[self.relation](self.left.evaluate(values), self.right.evaluate(values))


class Bounds(NamedTuple):
    """The least and the greatest value of a symbolic size; None: no greatest."""

    lower: int
    upper: int | None = None


ANY_SIZE = Bounds(1)
"""What a symbolic size is: 0 is compiled for. Where it matters whether a size is 1, as in what
broadcasts, that is a question, which leaves a guard; so no proof may take it for more."""

INTEGERS = (-(1 << 62), 1 << 62)
"""What integers that are computed with may be: kernels have 64 bits, and add sizes and indices to
them."""

_ASKS_TWICE = "c10/core/Contiguity.h"
_SUMS_UP = "torch/csrc/autograd/input_metadata.cpp", "ATen/ExpandUtils.h"
"""torch's code that asks with an answer that does in general: see TruthNode._in_general."""

_DECIDE: dict[str, Callable[[int, int], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
}
# the sizes, from the least on, that are tried to find one for which an expression is above 1
_FEW = 16
_MOST = (1 << 63) - 1  # torch's integers are no larger: it writes "to the end" so
_PROVE: dict[str, Callable[[Expr, Expr], bool]] = {
    "==": known_equal,
    "!=": lambda a, b: known_less(a, b) or known_less(b, a),
    "<": known_less,
    "<=": lambda a, b: known_less_equal(a, b) or (b.constant or 0) >= _MOST,
}
_NOT: dict[str, tuple[str, bool]] = {  # relation -> (its negation, whether the sides change places)
    "==": ("!=", False),
    "!=": ("==", False),
    "<": ("<=", True),
    "<=": ("<", True),
}


class ShapeContext:
    """The size symbols of one capture, their hints, and the guards on them.

    `sources` says where each symbol is read: (name of the tensor, dimension). `where` is the user's
    line at work, for the guards. Once it is `closed`, as compiled code is in use that a further
    guard could not stop, what does not follow from those that there are is Unsupported. `least` is
    the least size that becomes a symbol.
    """

    def __init__(self, least: int = ANY_SIZE.lower) -> None:
        self.least = least
        self.hints: dict[Symbol, int] = {}
        self._pinned: dict[Symbol, Expr | int] = {}  # what guarded equalities say that a symbol is
        self._settled: dict[Expr, Expr] = {}  # and that other expressions are, a number each
        # by those that guards say are not 1: what is so in proofs
        self._several: dict[Symbol, Expr | int] = {}
        # the user's line at work when a symbol became a number
        self._fixed_at: dict[Symbol, str] = {}
        self.learnt = 0  # how often either of these has changed
        # what `proved` has said since
        self._proofs: dict[tuple[Expr, str, Expr, bool], bool | None] = {}
        self.sources: dict[Symbol, tuple[str, int]] = {}
        self.guards: list[ShapeGuard] = []
        self.limited: list[Expr] = []  # what they keep within INTEGERS
        self._stated: set[tuple[Expr, str, Expr]] = set()  # what these say
        self.unbacked = Unbacked()
        self.looks: dict[Any, int] = {}  # see `fakes.look_of`
        self.results: dict[Any, Any] = {}  # and what ops gave on fakes of these looks
        # says the line, while the program is captured
        self.at_work: Callable[[], str] | None = None
        self._where = ""
        self.closed = False
        self.supposes = False  # what is found out now is so for some sizes only

    @property
    def where(self) -> str:
        return self._where if self.at_work is None else self.at_work()

    @where.setter
    def where(self, line: str) -> None:
        self._where = line

    def size(
        self, hint: int, name: str = "", dim: int = 0, bounds: Bounds | None = None
    ) -> torch.SymInt:
        """A new size symbol that is `hint` in the present call."""
        lower, upper = bounds or ANY_SIZE
        symbol = size_symbol(f"s{len(self.hints)}", max(lower, self.least), upper)
        self.hints[symbol] = hint
        self.sources[symbol] = (name, dim)
        return torch.SymInt(SizeNode(symbol, self))

    @property
    def asked(self) -> tuple[int, ...]:
        """What is as it was if nothing has been asked since that the sizes do not decide by
        themselves."""
        return len(self.guards), len(self.unbacked.roots), len(self.unbacked.checks)

    def within(self, size: int, bounds: Bounds) -> bool:
        """Whether a size can be a symbol of these bounds."""
        return max(bounds.lower, self.least) <= size and (
            bounds.upper is None or size <= bounds.upper
        )

    def integer(self, hint: int, name: str) -> tuple[Symbol, torch.SymInt]:
        """A new symbol for a Python int called `name`, that is `hint` in the present call."""
        symbol = size_symbol(f"s{len(self.hints)}", *INTEGERS)
        self.hints[symbol] = hint
        self.sources[symbol] = (name, -1)
        return symbol, torch.SymInt(SizeNode(symbol, self))

    def decided_by_data(self, lower: int = 0, upper: int | None = None) -> torch.SymInt:
        """A new size, or an integer, that is known when the program runs."""
        symbol = self.unbacked.new(lower, upper)
        self.hints[symbol] = USUAL_SIZE
        return torch.SymInt(SizeNode(symbol, self))

    def keep_in_bounds(self, e: Expr) -> None:
        """Rely on the expression's value being one of INTEGERS, as that of a symbol always is."""
        if isinstance(e, Symbol):
            return
        asked = len(self.guards)
        for left, right in ((integer(INTEGERS[0]), e), (e, integer(INTEGERS[1]))):
            if not self.holds(left, "<=", right, True):
                raise too_large()
        if len(self.guards) > asked:
            self.limited.append(e)

    def conditions(self) -> Iterator[ShapeGuard]:
        """The guards that do not only keep integers within INTEGERS."""
        limits = {(integer(INTEGERS[0]), e) for e in self.limited} | {
            (e, integer(INTEGERS[1])) for e in self.limited
        }
        return (guard for guard in self.guards if (guard.left, guard.right) not in limits)

    def wrap(self, value: Expr | int) -> Any:
        """An int for a constant expression, else a SymInt."""
        e = as_expr(value)
        return e.constant if e.constant is not None else torch.SymInt(SizeNode(e, self))

    def symbolic_geometry(
        self, tensor: torch.Tensor, dims: Mapping[int, Bounds | None], name: str
    ) -> tuple[list[Any], list[Any]]:
        """Sizes and strides of `tensor` with symbols for the sizes of `dims`; strides that are
        products of inner sizes stay so."""
        sizes: list[Any] = [
            self.size(s, name, d, dims[d]) if d in dims else s for d, s in enumerate(tensor.shape)
        ]
        strides: list[Any] = list(tensor.stride())
        inner: list[int] = []
        for d in sorted(range(tensor.dim()), key=lambda d: (tensor.stride(d), -d)):
            for i in reversed(inner):
                if tensor.stride(d) == tensor.stride(i) * tensor.shape[i] and (
                    tensor.shape[i] > 1 or i in dims
                ):
                    strides[d] = strides[i] * sizes[i]
                    break
            inner.append(d)
        return sizes, strides

    @staticmethod
    def to_expr(value: Any) -> Expr:
        """The expression of an int, an Expr or a SymInt, in terms of the symbols that are still
        free."""
        return to_expr(value)

    def simplified(self, e: Expr) -> Expr:
        """The expression with symbols that guards have pinned replaced by what they are, and other
        parts that are one number by that: `s // 2` may be 1 where `s` is no one number."""
        e = e.substitute(self._pinned) if self._pinned else e
        if not self._settled or e in self._settled:
            return self._settled.get(e, e)
        if not any(atom in self._settled for _, monomial in e.terms for atom in monomial):
            return e
        terms = (
            product(self._settled.get(a, a) for a in atoms) * coefficient
            for coefficient, atoms in e.terms
        )
        return sum(terms, ZERO)

    def hint(self, e: Expr) -> int:
        """The value of the expression in the present call."""
        return e.evaluate(self.hints)

    def proved(
        self, left: Expr, relation: str, right: Expr, above_one: bool = False
    ) -> bool | None:
        """Whether a relation holds for all values of the symbols (`above_one`: those above 1), or
        for none; None where it depends on them."""
        question = left, relation, right, above_one
        if question not in self._proofs:
            self._proofs[question] = self._prove(*question)
        answer = self._proofs[question]
        return True if answer is None and (left, relation, right) in self._stated else answer

    def _prove(self, left: Expr, relation: str, right: Expr, above_one: bool) -> bool | None:
        left, right = (self.simplified(e).substitute(self._several) for e in (left, right))
        if above_one:
            several = {
                symbol: _above_one(symbol)
                for symbol in left.symbols | right.symbols
                if symbol.lower == 1
            }
            left, right = left.substitute(several), right.substitute(several)
        if _PROVE[relation](left, right):
            return True
        negated, swapped = _NOT[relation]
        return False if _PROVE[negated](*((right, left) if swapped else (left, right))) else None

    def proved_above_one(
        self, left: Expr, relation: str, right: Expr, sizes: Sequence[Expr]
    ) -> bool:
        """Whether a relation holds for all values of the symbols for which the given sizes are
        above 1."""
        larger: dict[Symbol, Expr] = {}
        for size in (self.simplified(e).substitute(self._several) for e in sizes):
            for symbol in size.symbols if len(size.symbols) == 1 else ():
                least = (
                    max(symbol.lower, larger[symbol].bounds[0] or 0)
                    if symbol in larger
                    else symbol.lower
                )
                # an integer of either sign, of which all values below may be refused at once
                if least < -_FEW:
                    if size != to_expr(symbol):
                        continue
                    least = 2
                while least <= _FEW and size.evaluate({symbol: least}) <= 1:
                    least += 1
                larger[symbol] = size_symbol(f"{symbol.name}'{least}", least, symbol.upper)
        left, right = (
            self.simplified(e).substitute(self._several).substitute(larger) for e in (left, right)
        )
        return _PROVE[relation](left, right)

    def holds(self, left: Expr, relation: str, right: Expr, likely: bool | None = None) -> bool:
        """Decide a relation: by algebra, else by the hints, leaving a guard. Of sizes that the data
        decide the answer is the `likely` one, or the usual one, leaving a check."""
        answer = self.proved(left, relation, right)
        if answer is not None:
            return answer
        left, right = self.simplified(left), self.simplified(right)
        negated, swapped = _NOT[relation]
        sides = (right, left) if swapped else (left, right)
        if self.unbacked.concerns(left, right):
            answer = usual(left, relation, right) if likely is None else likely
            if (
                answer is None
                and relation in ("==", "!=")
                and self.unbacked.are_likely_equal(left, right)
            ):
                answer = relation == "=="
            if answer is None or not self.unbacked.assumes:
                raise self.unbacked.refuse(f"{left} {relation} {right}", self.where)
            self.require(left, relation, right) if answer else self.require(
                sides[0], negated, sides[1]
            )
            return answer
        answer = _DECIDE[relation](self.hint(left), self.hint(right))
        known = (
            ShapeGuard(left, relation, right, self.where)
            if answer
            else ShapeGuard(sides[0], negated, sides[1], self.where)
        )
        if known[:3] not in self._stated:
            if self.closed:
                raise Unsupported(f"compiled code would depend on {known} as well", self.where)
            self.guards.append(known)
            self._stated.add(known[:3])
        if known.relation == "==":
            self._pin(left, right)
        else:
            self._keep_from_one(known)
        return answer

    def _keep_from_one(self, known: ShapeGuard) -> None:
        """Use in later proofs that a size is not 1, if a guard says that."""
        negated, swapped = _NOT[known.relation]
        for symbol in known.left.symbols | known.right.symbols:
            if (
                symbol.lower == 1
                and symbol not in self._several
                and symbol not in self.unbacked.roots
            ):
                one = {**self._several, symbol: 1}
                left, right = known.left.substitute(one), known.right.substitute(one)
                if _PROVE[negated](*((right, left) if swapped else (left, right))):
                    self._several[symbol] = _above_one(symbol)
                    self._learn()

    @contextlib.contextmanager
    def above_one(self) -> Iterator[None]:
        """Take all sizes to be above 1 in proofs: whoever relies on these looks at the sizes
        himself."""
        several = self._several
        self._several = {**{s: _above_one(s) for s in self.hints if s.lower == 1}, **several}
        self._learn()
        try:
            yield
        finally:
            self._several = several
            self._learn()

    @contextlib.contextmanager
    def asks_nothing(self) -> Iterator[None]:
        """A question that would leave a guard is Unsupported."""
        closed, self.closed = self.closed, True
        try:
            yield
        finally:
            self.closed = closed

    def supposing(
        self, sizes: Mapping[Symbol, int], ask: Callable[[], Asked]
    ) -> tuple[Asked, list[ShapeGuard]]:
        """What `ask` gives where the symbols are these numbers, though compiled code may be in use,
        and the guards that its questions left. They are known to nothing but it: whoever uses what
        it gives sees to it that they hold. Raises Unsupported where they are about other symbols,
        or data decide sizes."""
        if self.unbacked.roots:
            raise Unsupported("sizes that the data decide are asked about", self.where)
        known = "_pinned", "_settled", "_several", "_fixed_at", "_stated"
        changed = *known, "hints", "guards", "limited", "looks", "results"
        before = {name: vars(self)[name] for name in (*changed, "closed", "supposes")}
        vars(self).update({name: copy.copy(before[name]) for name in changed})
        self.hints.update(sizes)
        self.closed, self.supposes = False, True
        try:
            made, left = ask(), self.guards[len(before["guards"]) :]
        finally:
            vars(self).update(before)
            self._learn()
        if not all(guard.left.symbols | guard.right.symbols <= sizes.keys() for guard in left):
            raise Unsupported("sizes that are not known are asked about", self.where)
        return made, left

    def require(self, left: Expr, relation: str, right: Expr) -> None:
        """Have a relation between sizes that the data decide checked at run time, and rely on
        it."""
        found = self.unbacked.require(Check(left, relation, right, self.where))
        if found:
            self._pinned = substituted(self._pinned, found)
            self._learn()
            self.hints.update(
                (s, USUAL_SIZE) for e in found.values() for s in e.symbols if s not in self.hints
            )

    def _pin(self, left: Expr, right: Expr) -> None:
        """Use an equality from here on, if it says what a symbol is."""
        symbol, value = (left, right) if isinstance(left, Symbol) else (right, left)
        if (
            len(both := left.symbols | right.symbols) == 1
            and (left - right).linear(tuple(both)) is not None
        ):
            (symbol,) = both  # the one solution is what it is now
            value = integer(self.hints[symbol])
        if not isinstance(symbol, Symbol):
            if left.constant is not None or right.constant is not None:
                e, number = (right, left) if left.constant is not None else (left, right)
                self._settled[e] = number
                self._learn()
        elif symbol not in value.symbols:
            self._pinned = {
                s: as_expr(e).substitute({symbol: value}) for s, e in self._pinned.items()
            }
            self._pinned[symbol] = value
            self._learn()

    def _learn(self) -> None:
        for symbol, value in self._pinned.items():
            if symbol not in self._fixed_at and as_expr(value).constant is not None:
                self._fixed_at[symbol] = self.where
        stated = {
            (self.simplified(left), relation, self.simplified(right))
            for left, relation, right in self._stated
        }
        self._stated |= stated  # `s * t != 1` says `s != 1` once `t` is known to be 1
        self.learnt += 1
        self._proofs.clear()

    def constants(self) -> Iterator[tuple[Symbol, int, str]]:
        """The symbols that guards have pinned to a value: each with that, and the user's line that
        needed it."""
        for symbol, pinned in self._pinned.items():
            value = as_expr(pinned).constant
            if value is not None:
                yield symbol, value, self._fixed_at.get(symbol, "")

    def specialize(self, e: Expr) -> int:
        """The expression as a plain int, on which the compiled code then depends."""
        if self.unbacked.concerns(e):
            raise self.unbacked.refuse(f"the value of {e}", self.where)
        value = self.hint(e)
        self.holds(e, "==", integer(value))
        return value


def too_large() -> Unsupported:
    """Why a call with an integer that does not fit is not compiled with a symbol for it."""
    error = Unsupported("an integer of more than 63 bits", skip=True)
    error.of_values = error.symbolic = True
    return error


def _decides_no_order(step: Expr) -> bool:
    """Whether autograd asks if the step between the rows of a matrix is 1, to have the gradient of
    a product lie as the matrix does, and it does not matter: where the step within a row is 1, only
    a matrix of one row lies in columns."""
    node = current_autograd_node()
    names = _PRODUCTS.get(node.name()) if node is not None else None
    if names is None:
        return False
    # none of what wants no gradient
    steps = [getattr(node, f"_saved_{name}_sym_strides") for name in names]
    within = [to_expr(both[1]) for both in steps if both and to_expr(both[0]) is step]
    return bool(within) and all(e is ONE for e in within)


_PRODUCTS = {"MmBackward0": ("self", "mat2"), "AddmmBackward0": ("mat1", "mat2")}
"""By the name of autograd's node: what it calls the matrices."""


def _above_one(symbol: Symbol) -> Symbol:
    """The symbol of a size that is not 0 or 1."""
    return size_symbol(f"{symbol.name}''", 2, symbol.upper)


def to_expr(value: Any) -> Expr:
    """The expression of an int, an Expr or a SymInt of this module."""
    if isinstance(value, torch.SymInt):
        node = value.node
        if not isinstance(node, SizeNode):
            raise Unsupported("a symbolic size that is not Ingot's")
        return node.expr
    return as_expr(value)


def is_decided_by_data(value: Any) -> bool:
    """Whether a size or integer depends on data."""
    return isinstance(value, torch.SymInt) and value.node.context.unbacked.concerns(to_expr(value))


class _Node:
    """What torch asks of every symbolic node, answered for a plain size or truth value."""

    context: ShapeContext

    def wrap_int(self, value: int) -> SizeNode:
        return SizeNode(integer(value), self.context)

    def wrap_bool(self, value: bool) -> TruthNode:
        return TruthNode(self.context, lambda: value, str(value), known=lambda: value)

    def is_int(self) -> bool:
        return False

    def is_bool(self) -> bool:
        return False

    def is_float(self) -> bool:
        return False

    def is_nested_int(self) -> bool:
        return False

    def is_symbolic(self) -> bool:
        return True

    def is_constant(self) -> bool:
        return False

    def has_hint(self) -> bool:
        return True

    def constant_int(self) -> int | None:
        return None

    def constant_bool(self) -> bool | None:
        return None

    def nested_int(self) -> None:
        return None

    def maybe_as_int(self) -> int | None:
        return None

    def maybe_as_bool(self) -> bool | None:
        return None

    def clone(self) -> _Node:
        return self


class SizeNode(_Node):
    """The node of a SymInt."""

    def __init__(self, expr: Expr, context: ShapeContext) -> None:
        self._expr = self._simple = expr
        self.context = context
        self._learnt = 0  # when `_simple` was simplified

    @property
    def expr(self) -> Expr:
        if self._learnt != self.context.learnt:
            self._simple, self._learnt = self.context.simplified(self._expr), self.context.learnt
        return self._simple

    @property
    def first(self) -> Expr:
        """What it was when it was made, whatever has become known since."""
        return self._expr

    def is_int(self) -> bool:
        return True

    @property
    def hint(self) -> int:
        return self.context.hint(self.expr)

    def str(self) -> str:
        return str(self.expr)

    __repr__ = __str__ = _graph_repr = str

    def maybe_as_int(self) -> int | None:
        return self.expr.constant

    def constant_int(self) -> int | None:
        return self.expr.constant

    def wrap_float(self, value: float) -> Any:
        raise Unsupported("arithmetic between a symbolic size and a float")

    def int_(self) -> int:
        return self.context.specialize(self.expr)

    def guard_int(self, file: Any, line: Any) -> int:
        return self.int_()

    def bool_(self) -> bool:
        return self.context.holds(self.expr, "!=", integer(0))

    def sym_float(self) -> FractionNode:
        return FractionNode(self.expr, ONE, self.context)

    def _as_float(self, *_: Any) -> Any:
        raise Unsupported("a symbolic size is used as a float")

    truediv = float_truediv = int_truediv = pow = float_pow = sym_sqrt = _as_float

    # -- arithmetic --------------------------------------------------------------------------------

    def _made(self, e: Expr) -> SizeNode:
        return SizeNode(e, self.context)

    def add(self, other: SizeNode) -> SizeNode:
        return self._made(self.expr + other.expr)

    def sub(self, other: SizeNode) -> SizeNode:
        return self._made(self.expr - other.expr)

    def mul(self, other: SizeNode) -> SizeNode:
        return self._made(self.expr * other.expr)

    def floordiv(self, other: SizeNode) -> SizeNode:
        return self._made(self.expr // other._divisor())

    int_floordiv = floordiv

    def mod(self, other: SizeNode) -> SizeNode:
        return self._made(self.expr % other._divisor())

    def _divisor(self) -> Expr:
        """Expr divides by positive expressions only."""
        if not self.context.holds(integer(0), "<", self.expr):
            raise Unsupported("a size is divided by one that is not positive")
        return self.expr

    def neg(self) -> SizeNode:
        return self._made(-self.expr)

    def pos(self) -> SizeNode:
        return self

    floor = ceil = trunc = round = sym_int = pos

    def sym_max(self, other: SizeNode) -> SizeNode:
        return self._made(maximum(self.expr, other.expr))

    def sym_min(self, other: SizeNode) -> SizeNode:
        return self._made(minimum(self.expr, other.expr))

    def sym_sum(self, terms: Sequence[SizeNode]) -> SizeNode:
        return self._made(sum((t.expr for t in terms), integer(0)))

    def pow_by_natural(self, other: SizeNode) -> SizeNode:
        result = integer(1)
        for _ in range(other.int_()):
            result = result * self.expr
        return self._made(result)

    # -- questions ---------------------------------------------------------------------------------

    def _relation(self, left: Expr, relation: Any, right: Expr) -> TruthNode:
        def decide(likely: bool | None = None) -> bool:
            if (
                relation == "=="
                and right is ONE
                and left.constant is None
                and _decides_no_order(left)
            ):
                return False
            return self.context.holds(left, relation, right, likely)

        def decide_unless(default: bool) -> bool:
            if not self.context.unbacked.concerns(left, right):
                return decide()
            answer = self.context.proved(left, relation, right)
            return default if answer is None else answer

        def at_hand() -> bool:
            return _DECIDE[relation](self.context.hint(left), self.context.hint(right))

        known = functools.partial(self.context.proved, left, relation, right)
        text = f"{left} {relation} {right}"
        return TruthNode(
            self.context, decide, text, lambda: decide(True), decide_unless, known, at_hand
        )

    def eq(self, other: SizeNode) -> TruthNode:
        return self._relation(self.expr, "==", other.expr)

    def ne(self, other: SizeNode) -> TruthNode:
        return self._relation(self.expr, "!=", other.expr)

    def lt(self, other: SizeNode) -> TruthNode:
        return self._relation(self.expr, "<", other.expr)

    def le(self, other: SizeNode) -> TruthNode:
        return self._relation(self.expr, "<=", other.expr)

    def gt(self, other: SizeNode) -> TruthNode:
        return self._relation(other.expr, "<", self.expr)

    def ge(self, other: SizeNode) -> TruthNode:
        return self._relation(other.expr, "<=", self.expr)

    # -- memory layout: torch asks the first symbolic size of a tensor about the whole tensor ------

    def _dense_in_order(
        self, sizes: list[SizeNode], strides: list[SizeNode], fastest_first: Sequence[int]
    ) -> TruthNode:
        def is_plain() -> bool:
            """Whether it is for all values of the symbols, 0 and 1 included."""
            step = integer(1)
            for d in fastest_first:
                size = sizes[d].expr
                if size.constant != 1:
                    if strides[d].expr is not step:
                        return False
                    step = step * size
            return True

        def answer() -> bool:
            if is_plain():
                return True
            step = integer(1)
            for d in fastest_first:
                size, stride = sizes[d].expr, strides[d].expr
                if not self.context.proved(stride, "==", step):  # else its size does not matter
                    if self.context.holds(size, "==", integer(1)):
                        continue
                    if not self.context.holds(stride, "==", step, False):
                        return False
                step = step * size
            return True

        return TruthNode(self.context, answer, "is laid out in order")

    def is_contiguous(self, sizes: list[SizeNode], strides: list[SizeNode]) -> TruthNode:
        return self._dense_in_order(sizes, strides, range(len(sizes) - 1, -1, -1))

    def is_channels_last_contiguous_2d(
        self, sizes: list[SizeNode], strides: list[SizeNode]
    ) -> TruthNode:
        return (
            self._dense_in_order(sizes, strides, (1, 3, 2, 0))
            if len(sizes) == 4
            else self.wrap_bool(False)
        )

    def is_channels_last_contiguous_3d(
        self, sizes: list[SizeNode], strides: list[SizeNode]
    ) -> TruthNode:
        return (
            self._dense_in_order(sizes, strides, (1, 4, 3, 2, 0))
            if len(sizes) == 5
            else self.wrap_bool(False)
        )

    def is_channels_last_strides_2d(
        self, sizes: list[SizeNode], strides: list[SizeNode]
    ) -> TruthNode:
        return self._unless_plain(self.is_channels_last_contiguous_2d, sizes, strides)

    def is_channels_last_strides_3d(
        self, sizes: list[SizeNode], strides: list[SizeNode]
    ) -> TruthNode:
        return self._unless_plain(self.is_channels_last_contiguous_3d, sizes, strides)

    def _unless_plain(
        self, question: Callable[..., TruthNode], sizes: list[SizeNode], strides: list[SizeNode]
    ) -> TruthNode:
        """What lies in order suggests no other format, also where it could be read so as sizes are
        1."""
        step = integer(1)
        for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
            if stride.expr is not step:
                return question(sizes, strides)
            step = step * size.expr
        return self.wrap_bool(False)

    def is_non_overlapping_and_dense(
        self, sizes: list[SizeNode], strides: list[SizeNode]
    ) -> TruthNode:
        order = sorted(range(len(sizes)), key=lambda d: strides[d].hint)
        return self._dense_in_order(sizes, strides, order)

    is_non_overlapping_and_dense_indicator = is_non_overlapping_and_dense


class FractionNode(_Node):
    """The node of a SymFloat: one of the factors of torch's formulas, such as 2 / (n - 1), as a
    quotient of a number or an expression by an expression."""

    def __init__(self, numerator: Expr | float, denominator: Expr, context: ShapeContext) -> None:
        self.numerator, self.denominator, self.context = numerator, denominator, context

    def is_float(self) -> bool:
        return True

    def str(self) -> str:
        return f"({self.numerator}) / ({self.denominator})"

    __repr__ = __str__ = _graph_repr = str

    def maybe_as_float(self) -> float | None:
        return (
            self.numerator
            if isinstance(self.numerator, float) and self.denominator is ONE
            else None
        )

    def _number(self) -> float:
        """The value in this call, on which the compiled code then depends."""
        above = (
            self.numerator
            if isinstance(self.numerator, float)
            else self.context.specialize(self.numerator)
        )
        return above / self.context.specialize(self.denominator)

    def parts(self) -> tuple[Any, Any]:
        """What is divided by what: numbers or symbolic integers."""
        above = (
            self.numerator
            if isinstance(self.numerator, float)
            else self.context.wrap(self.numerator)
        )
        return above, self.context.wrap(self.denominator)

    def wrap_float(self, value: float) -> FractionNode:
        return FractionNode(integer(int(value)) if value.is_integer() else value, ONE, self.context)

    def _whole(self) -> Expr:
        """The value, where it is an expression."""
        if self.denominator is not ONE or not isinstance(self.numerator, Expr):
            raise Unsupported("a symbolic size is used as a float")
        return self.numerator

    def guard_float(self, file: Any, line: Any) -> float:
        return (
            float(self.context.specialize(self._whole()))
            if (known := self.maybe_as_float()) is None
            else known
        )

    def float_pow(self, other: FractionNode) -> FractionNode:
        return FractionNode(self._number() ** other._number(), ONE, self.context)

    pow = float_pow

    def sym_sqrt(self) -> FractionNode:
        return FractionNode(math.sqrt(self._number()), ONE, self.context)

    def add(self, other: FractionNode) -> FractionNode:
        return FractionNode(self._whole() + other._whole(), ONE, self.context)

    def sub(self, other: FractionNode) -> FractionNode:
        return FractionNode(self._whole() - other._whole(), ONE, self.context)

    def mul(self, other: FractionNode) -> FractionNode:
        return FractionNode(self._number() * other._number(), ONE, self.context)

    def float_truediv(self, other: FractionNode) -> FractionNode:
        if other.maybe_as_float() is not None:
            return FractionNode(self._number() / other._number(), ONE, self.context)
        if self.denominator is not ONE:
            raise Unsupported("a symbolic size is used as a float")
        return FractionNode(self.numerator, other._whole(), self.context)

    truediv = float_truediv

    def _relation(self, left: FractionNode, relation: Any, right: FractionNode) -> TruthNode:
        sides = left._whole(), right._whole()
        text = f"{left} {relation} {right}"
        return TruthNode(
            self.context, lambda: self.context.holds(sides[0], relation, sides[1]), text
        )

    def eq(self, other: FractionNode) -> TruthNode:
        return self._relation(self, "==", other)

    def ne(self, other: FractionNode) -> TruthNode:
        return self._relation(self, "!=", other)

    def lt(self, other: FractionNode) -> TruthNode:
        return self._relation(self, "<", other)

    def le(self, other: FractionNode) -> TruthNode:
        return self._relation(self, "<=", other)

    def gt(self, other: FractionNode) -> TruthNode:
        return self._relation(other, "<", self)

    def ge(self, other: FractionNode) -> TruthNode:
        return self._relation(other, "<=", self)


class TruthNode(_Node):
    """The node of a SymBool: a question that is decided when a bool is asked for. `expect` decides
    one where eager raises an error unless the answer is yes, `unless(default)` one where either
    answer is right, and the default does for sizes that the data decide. `known` is the answer
    where it follows from algebra, and None elsewhere, `at_hand` that of the present call where it
    is one relation."""

    def __init__(
        self,
        context: ShapeContext,
        decide: Callable[[], bool],
        text: str,
        expect: Callable[[], bool] | None = None,
        unless: Callable[[bool], bool] | None = None,
        known: Callable[[], bool | None] = lambda: None,
        at_hand: Callable[[], bool | None] = lambda: None,
    ) -> None:
        self.context = context
        self._decide = decide
        self._text = text
        self.known = known
        self._at_hand = at_hand
        self._expect = expect or decide
        self._unless = unless or (lambda default: decide())

    def is_bool(self) -> bool:
        return True

    def str(self) -> str:
        return self._text

    __repr__ = __str__ = _graph_repr = str

    def bool_(self) -> bool:
        return self._decide()

    def guard_bool(self, file: Any = "", line: int = 0) -> bool:
        return self._decide()

    guard_size_oblivious = guard_bool

    def guard_or_false(self, file: Any = "", line: int = 0) -> bool:
        return self._in_general(False, file)

    statically_known_true = guard_or_false

    def guard_or_true(self, file: Any = "", line: int = 0) -> bool:
        return self._in_general(True, file)

    def _in_general(self, default: bool, file: Any) -> bool:
        """torch asks whether a tensor is contiguous twice: for what is certain, and if that is not
        enough, all of it as one question. The first asks of each size whether it is 1, which does
        not matter where strides are as they should be. Of a gradient's size it asks whether it is 1
        before it compares it with its input's: one that is the input's is not summed up, and one of
        an input of size 1 is, whether it is 1 or not."""
        if not str(file).endswith((_ASKS_TWICE, *_SUMS_UP)):
            return self._unless(default)
        answer = self.known()
        if answer is None and str(file).endswith(_SUMS_UP) and self._at_hand() is not default:
            return self._unless(default)
        return default if answer is None else answer

    def expect_true(self, file: Any = "", line: int = 0) -> bool:
        return self._expect()

    expect_size = expect_true

    def sym_not(self) -> TruthNode:
        def known() -> bool | None:
            answer = self.known()
            return None if answer is None else not answer

        return TruthNode(
            self.context,
            lambda: not self._decide(),
            f"not ({self._text})",
            None,
            lambda default: not self._unless(not default),
            known,
        )

    def sym_and(self, other: TruthNode) -> TruthNode:
        def known() -> bool | None:
            answers = self.known(), other.known()
            return False if False in answers else None if None in answers else True

        return TruthNode(
            self.context,
            lambda: known() is not False and self._decide() and other._decide(),
            f"({self._text}) and ({other._text})",
            lambda: self._expect() and other._expect(),
            lambda default: self._unless(default) and other._unless(default),
            known,
        )

    def sym_or(self, other: TruthNode) -> TruthNode:
        def known() -> bool | None:
            answers = self.known(), other.known()
            return True if True in answers else None if None in answers else False

        return TruthNode(
            self.context,
            lambda: known() is True or self._decide() or other._decide(),
            f"({self._text}) or ({other._text})",
            None,
            lambda default: self._unless(default) or other._unless(default),
            known,
        )

    and_ = sym_and
    or_ = sym_or

    def sym_ite(self, yes: Any, no: Any) -> Any:
        return yes if self._decide() else no
