"""`ShapeContext`: the size symbols of one capture, their hints, and the guards that questions about
them left.

A question goes in as a relation of two expressions; an answer comes out. It is free where algebra
proves it. Else the hints decide it, and a guard keeps it; for unbacked symbols, which have no
hints, it is assumed, and a deferred check keeps it.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from ingot.errors import Unsupported, unsupported
from ingot.graph.shape_guards import DECIDE, PROVE, Fact, Relation, ShapeGuard, negated
from ingot.graph.symbols import SizeNode, to_expr
from ingot.graph.unbacked import USUAL_SIZE, Check, Unbacked, substituted, usual
from ingot.loops.expr import ZERO, Expr, Symbol, as_expr, integer, product, size_symbol
from ingot.reasons import LARGE_INTEGER

Answer = TypeVar("Answer")


class Bounds(NamedTuple):
    """The least and the greatest value of a symbolic size; None: no greatest."""

    lower: int
    upper: int | None = None


ANY_SIZE = Bounds(1)
"""The bounds of a symbolic size: 0 is specialized. Where it matters whether a size is 1, as in
broadcasting, that is a question, which leaves a guard; so no proof may take it for more."""

INTEGERS = (-(1 << 62), 1 << 62)
"""The range of symbolic integers: kernels have 64 bits, and add sizes and indices to them."""

_LEAST, _GREATEST = map(integer, INTEGERS)
_TRIED = 16
"""The sizes, from the least on, among which one is looked for that makes an expression exceed 1."""


class ShapeContext:
    """The size symbols of one capture, their hints, and the guards on them.

    `sources` says where each symbol is read: (name of the tensor, dimension). `where` is the user's
    line at work, for the guards. Once it is `closed`, compiled code is in use, which a further
    guard could not stop: what does not follow from the guards is Unsupported. `least` is the least
    size that becomes a symbol.
    """

    def __init__(self, least: int = ANY_SIZE.lower) -> None:
        self.least = least
        self.hints: dict[Symbol, int] = {}
        self._pinned: dict[Symbol, Expr | int] = {}  # the symbols that guards equate with others
        self._constants: dict[Expr, Expr] = {}  # other expressions, each with its number
        # the sizes that guards say are not 1, each with the symbol that proofs use for it
        self._larger: dict[Symbol, Expr | int] = {}
        # the user's line at work when a symbol became a number
        self._fixed_at: dict[Symbol, str] = {}
        self.generation = 0  # how often these have changed
        self._proofs: dict[
            tuple[Expr, Relation, Expr, bool], bool | None
        ] = {}  # of this generation
        self.sources: dict[Symbol, tuple[str, int]] = {}
        # those that were not seen to vary, and may become numbers at no loss
        self.speculative: set[Symbol] = set()
        self.guards: list[ShapeGuard] = []
        self.limited: list[Expr] = []  # the expressions that guards keep within INTEGERS
        self._guarded: set[Fact] = set()  # the relations that guards state
        self.unbacked = Unbacked()
        self.looks: dict[Any, int] = {}  # see `fakes.look_of`
        self.results: dict[Any, Any] = {}  # of ops on fakes of these looks
        # says the line, while the program is captured
        self.at_work: Callable[[], str] | None = None
        self._where = ""
        self.closed = False
        self.supposes = False  # whether answers hold for some sizes only: see `supposing`

    @property
    def where(self) -> str:
        if self.at_work is None:
            return self._where
        return self.at_work()

    @where.setter
    def where(self, line: str) -> None:
        self._where = str(line)  # without what a Place says beside: guards keep it

    # -- symbols -----------------------------------------------------------------------------------

    def size(
        self, hint: int, name: str = "", dim: int = 0, bounds: Bounds | None = None
    ) -> torch.SymInt:
        """A new size symbol that is `hint` in the present call."""
        lower, upper = bounds or ANY_SIZE
        _, size = self._new(hint, name, dim, max(lower, self.least), upper)
        return size

    def integer(self, hint: int, name: str) -> tuple[Symbol, torch.SymInt]:
        """A new symbol for a Python int called `name`, that is `hint` in the present call."""
        return self._new(hint, name, -1, *INTEGERS)

    def _new(
        self, hint: int, name: str, dim: int, lower: int, upper: int | None
    ) -> tuple[Symbol, torch.SymInt]:
        symbol = size_symbol(f"s{len(self.hints)}", lower, upper)
        self.hints[symbol] = hint
        self.sources[symbol] = (name, dim)
        return symbol, torch.SymInt(SizeNode(symbol, self))

    def decided_by_data(self, lower: int = 0, upper: int | None = None) -> torch.SymInt:
        """A new unbacked size or integer."""
        symbol = self.unbacked.new(lower, upper)
        self.hints[symbol] = USUAL_SIZE
        return torch.SymInt(SizeNode(symbol, self))

    def within(self, size: int, bounds: Bounds) -> bool:
        """Whether a size can be a symbol of these bounds."""
        if size < max(bounds.lower, self.least):
            return False
        return bounds.upper is None or size <= bounds.upper

    def symbolic_geometry(
        self, tensor: torch.Tensor, dims: Mapping[int, Bounds | None], name: str
    ) -> tuple[list[Any], list[Any]]:
        """Sizes and strides of `tensor` with symbols for the sizes of `dims`; strides that are
        products of inner sizes stay so."""
        sizes: list[Any] = list(tensor.shape)
        for d, size in enumerate(tensor.shape):
            if d in dims:
                sizes[d] = self.size(size, name, d, dims[d])
        strides: list[Any] = list(tensor.stride())
        inner: list[int] = []
        for d in sorted(range(tensor.dim()), key=lambda d: (tensor.stride(d), -d)):
            for i in reversed(inner):
                varies_or_counts = tensor.shape[i] > 1 or i in dims
                if varies_or_counts and tensor.stride(d) == tensor.stride(i) * tensor.shape[i]:
                    strides[d] = strides[i] * sizes[i]
                    break
            inner.append(d)
        return sizes, strides

    def wrap(self, value: Expr | int) -> Any:
        """An int for a constant expression, else a SymInt."""
        e = as_expr(value)
        if e.constant is not None:
            return e.constant
        return torch.SymInt(SizeNode(e, self))

    @staticmethod
    def to_expr(value: Any) -> Expr:
        """The expression of an int, an Expr or a SymInt, in terms of the symbols that are still
        free."""
        return to_expr(value)

    def simplified(self, e: Expr) -> Expr:
        """The expression in terms of the symbols that are still free. Parts that guards fix become
        numbers: `s // 2` may be 1 where `s` is no one number."""
        if self._pinned:
            e = e.substitute(self._pinned)
        constants = self._constants
        if not constants or e in constants:
            return constants.get(e, e)
        monomials = [monomial for _, monomial in e.terms]
        if constants.keys().isdisjoint(itertools.chain(*monomials)):
            return e
        total = ZERO
        for coefficient, monomial in e.terms:
            total += product(constants.get(atom, atom) for atom in monomial) * coefficient
        return total

    def hint(self, e: Expr) -> int:
        """The value of the expression in the present call."""
        return e.evaluate(self.hints)

    def known_equal(self) -> Iterator[tuple[Expr, Expr]]:
        """What guards equate: symbols and other expressions, each with its value."""
        for symbol, value in self._pinned.items():
            yield symbol, as_expr(value)
        yield from self._constants.items()

    def known_above_one(self) -> tuple[Symbol, ...]:
        """The sizes that guards say are not 1."""
        return tuple(self._larger)

    def constants(self) -> Iterator[tuple[Symbol, int, str]]:
        """The symbols that guards have pinned to a value: each with that, and the user's line that
        needed it."""
        for symbol, pinned in self._pinned.items():
            value = as_expr(pinned).constant
            if value is not None:
                yield symbol, value, self._fixed_at.get(symbol, "")

    # -- proofs ------------------------------------------------------------------------------------

    def proved(
        self, left: Expr, relation: Relation, right: Expr, above_one: bool = False
    ) -> bool | None:
        """Whether a relation holds for all values of the symbols (`above_one`: those above 1), or
        for none; None where it depends on them."""
        question = left, relation, right, above_one
        if question not in self._proofs:
            self._proofs[question] = self._prove(*question)
        answer = self._proofs[question]
        if answer is None and (left, relation, right) in self._guarded:
            return True
        return answer

    def _prove(self, left: Expr, relation: Relation, right: Expr, above_one: bool) -> bool | None:
        left, right = self._in_proofs(left), self._in_proofs(right)
        if above_one:
            larger = _sizes_above_one(left.symbols | right.symbols)
            left, right = left.substitute(larger), right.substitute(larger)
        if PROVE[relation](left, right):
            return True
        if _is_refuted(left, relation, right):
            return False
        return None

    def _in_proofs(self, e: Expr) -> Expr:
        return self.simplified(e).substitute(self._larger)

    def proved_less_above_one(self, left: Expr, right: Expr, sizes: Sequence[Expr]) -> bool:
        """Whether `left < right` for all values of the symbols for which these sizes are above
        1."""
        larger: dict[Symbol, Symbol] = {}
        for size in map(self._in_proofs, sizes):
            if len(size.symbols) == 1:
                (symbol,) = size.symbols
                least = _least_above_one(size, symbol, larger.get(symbol, symbol).lower)
                if least is not None:
                    larger[symbol] = size_symbol(f"{symbol.name}'{least}", least, symbol.upper)
        left, right = self._in_proofs(left), self._in_proofs(right)
        return PROVE["<"](left.substitute(larger), right.substitute(larger))

    @contextlib.contextmanager
    def above_one(self) -> Iterator[None]:
        """Take all sizes to be above 1 in proofs. Whoever relies on these looks at the sizes
        himself."""
        before = self._larger
        self._larger = {**_sizes_above_one(self.hints), **before}
        self._forget_proofs()
        try:
            yield
        finally:
            self._larger = before
            self._forget_proofs()

    # -- questions ---------------------------------------------------------------------------------

    @property
    def questions(self) -> tuple[int, ...]:
        """Changes with each question that the algebra did not answer."""
        return len(self.guards), len(self.unbacked.roots), len(self.unbacked.checks)

    def holds(
        self, left: Expr, relation: Relation, right: Expr, likely: bool | None = None
    ) -> bool:
        """Decide a relation: by algebra, else by the hints, leaving a guard. Of unbacked symbols
        the answer is the `likely` one, or the usual one, leaving a check."""
        answer = self.proved(left, relation, right)
        if answer is not None:
            return answer
        fact = self.simplified(left), relation, self.simplified(right)
        if self.unbacked.concerns(fact[0], fact[2]):
            return self._follows_from_bounds(fact) or self._assume(fact, likely)
        answer = DECIDE[relation](self.hint(fact[0]), self.hint(fact[2]))
        self._guard(fact if answer else negated(*fact))
        return answer

    def _follows_from_bounds(self, fact: Fact) -> bool:
        """Whether a relation holds for all that unbacked symbols may be.

        A guard on the other symbols may have to say so: that `s <= 90` makes `s + u <= 100` hold,
        where `u <= 10`.
        """
        left, relation, right = fact
        unbacked = tuple(filter(self.unbacked.roots.__contains__, left.symbols | right.symbols))
        linear = (left - right).linear(unbacked)
        if relation not in ("<", "<=") or linear is None:
            return False
        extremes: dict[Symbol, Expr | int] = {}
        for symbol, slope in linear[1].items():
            if slope.constant is None:
                return False
            bound = symbol.upper if slope.constant > 0 else symbol.lower
            if bound is None:
                return False
            extremes[symbol] = bound
        left, right = left.substitute(extremes), right.substitute(extremes)
        answer = self.proved(left, relation, right)
        if answer is None and not self.closed and DECIDE[relation](*map(self.hint, (left, right))):
            self._guard((left, relation, right))
            return True
        return answer is True

    def _assume(self, fact: Fact, likely: bool | None) -> bool:
        left, relation, right = fact
        if likely is None:
            answer = usual(left, relation, right)
        else:
            answer = likely
        if answer is None and relation in ("==", "!="):
            if self.unbacked.are_likely_equal(left, right):
                answer = relation == "=="
        if answer is None or not self.unbacked.assumes:
            raise self.unbacked.refuse(self.where)
        self.require(*(fact if answer else negated(*fact)))
        return answer

    def _guard(self, fact: Fact) -> None:
        guard = ShapeGuard(*fact, self.where)
        if fact not in self._guarded:
            if self.closed:
                what = f"compiled code would depend on {guard} as well"
                raise unsupported("late-size-guard", what, self.where)
            self.guards.append(guard)
            self._guarded.add(fact)
        if guard.relation == "==":
            self._pin(guard.left, guard.right)
        else:
            self._keep_from_one(fact)

    def _pin(self, left: Expr, right: Expr) -> None:
        """Use an equality from here on, if it says what a symbol is."""
        symbols = tuple(left.symbols | right.symbols)
        symbol, value = (left, right) if isinstance(left, Symbol) else (right, left)
        if len(symbols) == 1 and (left - right).linear(symbols) is not None:
            symbol = symbols[0]  # the one solution is its hint
            value = integer(self.hints[symbol])
        if isinstance(symbol, Symbol):
            if symbol in value.symbols:
                return
            self._pinned = substituted(self._pinned, {symbol: value})
        elif left.constant is not None:
            self._constants[right] = left
        elif right.constant is not None:
            self._constants[left] = right
        else:
            return
        self._forget_proofs()

    def _keep_from_one(self, fact: Fact) -> None:
        """Use in later proofs that a size is not 1, if a guard says that."""
        left, relation, right = fact
        for symbol in left.symbols | right.symbols:
            if symbol.lower != 1 or symbol in self._larger or symbol in self.unbacked.roots:
                continue
            one = {**self._larger, symbol: 1}
            if _is_refuted(left.substitute(one), relation, right.substitute(one)):
                self._larger[symbol] = _above_one(symbol)
                self._forget_proofs()

    def _forget_proofs(self) -> None:
        for symbol, value in self._pinned.items():
            if symbol not in self._fixed_at and as_expr(value).constant is not None:
                self._fixed_at[symbol] = self.where
        # `s * t != 1` says `s != 1` once `t` is known to be 1
        for left, relation, right in list(self._guarded):
            self._guarded.add((self.simplified(left), relation, self.simplified(right)))
        self.generation += 1
        self._proofs.clear()

    def specialize(self, e: Expr) -> int:
        """The expression as a plain int, on which the compiled code then depends."""
        if self.unbacked.concerns(e):
            raise self.unbacked.refuse(self.where)
        value = self.hint(e)
        self.holds(e, "==", integer(value))
        return value

    def require(self, left: Expr, relation: Relation, right: Expr) -> None:
        """Leave a deferred check of a relation of unbacked symbols, and rely on it."""
        forms = self.unbacked.require(Check(left, relation, right, self.where))
        if not forms:
            return
        self._pinned = substituted(self._pinned, forms)
        self._forget_proofs()
        for value in forms.values():
            for symbol in value.symbols:
                self.hints.setdefault(symbol, USUAL_SIZE)

    def keep_in_bounds(self, e: Expr) -> None:
        """Rely on the expression's value being one of INTEGERS, as that of a symbol always is."""
        if isinstance(e, Symbol):
            return
        guards = len(self.guards)
        for left, right in _limits(e):
            if not self.holds(left, "<=", right, True):
                raise too_large()
        if len(self.guards) > guards:
            self.limited.append(e)

    def conditions(self) -> Iterator[ShapeGuard]:
        """The guards that do not only keep integers within INTEGERS."""
        limits = set(itertools.chain(*map(_limits, self.limited)))
        return (guard for guard in self.guards if (guard.left, guard.right) not in limits)

    # -- questions whose guards are kept elsewhere -------------------------------------------------

    @contextlib.contextmanager
    def asks_nothing(self) -> Iterator[None]:
        """A question that would leave a guard is Unsupported."""
        closed, self.closed = self.closed, True
        try:
            yield
        finally:
            self.closed = closed

    def supposing(
        self, sizes: Mapping[Symbol, int], ask: Callable[[], Answer]
    ) -> tuple[Answer, list[ShapeGuard]]:
        """What `ask` gives where the symbols are these numbers, though compiled code may be in use,
        and the guards that its questions left.

        Only the caller knows of these guards, and has to check them. Raises Unsupported where they
        are about other symbols, or where there are unbacked ones.
        """
        if self.unbacked.roots:
            raise unsupported(
                "data-decided-size", "sizes that the data decide are asked about", self.where
            )
        guards = len(self.guards)
        with self._apart(self.now(), sizes):
            self.supposes = True
            answer = ask()
            further = self.guards[guards:]
        for guard in further:
            if not guard.left.symbols | guard.right.symbols <= sizes.keys():
                raise unsupported(
                    "data-decided-size", "sizes that are not known are asked about", self.where
                )
        return answer, further

    # -- another time ------------------------------------------------------------------------------

    def now(self) -> Moment:
        """What is known now, to be put back for a while by `as_of`."""
        state = vars(self)
        moment = {}
        for name in _STATE:
            moment[name] = copy.copy(state[name])
        return Moment(moment)

    @contextlib.contextmanager
    def as_of(self, moment: Moment, hints: Iterable[int]) -> Iterator[None]:
        """Inside, only that is known which was known at a moment, of a call with these sizes.
        Questions leave guards, of which nothing is known behind it."""
        with self._apart(moment, dict(zip(self.hints, hints))):
            yield

    @contextlib.contextmanager
    def _apart(self, moment: Moment, sizes: Mapping[Symbol, int]) -> Iterator[None]:
        state = vars(self)
        before = {name: state[name] for name in (*_STATE, "closed", "supposes")}
        for name, value in moment.state.items():
            state[name] = copy.copy(value)
        self.hints.update(sizes)
        self.closed = False
        self._forget_proofs()
        try:
            yield
        finally:
            state.update(before)
            self._forget_proofs()

    def adopt(self, guards: Iterable[ShapeGuard], limited: Iterable[Expr]) -> None:
        """Rely on guards that hold in the present call, as if questions had left them. Some keep
        the `limited` expressions within INTEGERS."""
        for guard in guards:
            self.where = guard.where
            self._guard((guard.left, guard.relation, guard.right))
        self.limited += limited


class Moment(NamedTuple):
    """What a ShapeContext knew at a time."""

    state: Mapping[str, Any]


_STATE = (
    "_pinned", "_constants", "_larger", "_fixed_at", "_guarded",
    "hints", "guards", "limited", "looks", "results",
)  # fmt: skip
"""The attributes of a ShapeContext that questions change."""


def too_large() -> Unsupported:
    """Why a call with an integer that does not fit is not compiled with a symbol for it."""
    return unsupported(LARGE_INTEGER, "an integer of more than 63 bits")


def _limits(e: Expr) -> tuple[tuple[Expr, Expr], tuple[Expr, Expr]]:
    """What `left <= right` says that an expression is one of INTEGERS."""
    return (_LEAST, e), (e, _GREATEST)


def _is_refuted(left: Expr, relation: Relation, right: Expr) -> bool:
    """Whether a relation holds for no values of the symbols."""
    left, relation, right = negated(left, relation, right)
    return PROVE[relation](left, right)


def _above_one(symbol: Symbol) -> Symbol:
    """The symbol of a size that is not 0 or 1."""
    return size_symbol(f"{symbol.name}''", 2, symbol.upper)


def _sizes_above_one(symbols: Iterable[Symbol]) -> dict[Symbol, Symbol]:
    """Those of some symbols that may be 1, each with one that may not."""
    result = {}
    for symbol in symbols:
        if symbol.lower == 1:
            result[symbol] = _above_one(symbol)
    return result


def _least_above_one(size: Expr, symbol: Symbol, least: int) -> int | None:
    """The first value of a symbol, from `least` on, for which a size is above 1, if it is among
    those that are tried. None for one without a least value, which may be an integer of either
    sign."""
    if least < -_TRIED:
        if size is not symbol:
            return None
        least = 2
    while least <= _TRIED and size.evaluate({symbol: least}) <= 1:
        least += 1
    return least
