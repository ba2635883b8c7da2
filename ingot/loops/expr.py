"""The index algebra: sizes, strides, offsets and loop indices as exact integer expressions.

An `Expr` is a polynomial with integer coefficients over atoms, kept canonical and interned, so that
equal expressions are one object and `==` is identity. An atom is a `Symbol`, `FloorDiv`, `Mod`,
`Max` or `Min` and is itself an `Expr`. Division and remainder follow Python's semantics for a
positive divisor.

What makes reshapes disappear is one decomposition (`_split`): to divide `a` by `n`, write

    a = quotient * n + step * inner + rest      with n = step * modulus and 0 <= rest < step

so that `a // n` is `quotient + inner // modulus` and `a % n` is `step * (inner % modulus) + rest`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import Any, ClassVar

from ingot.loops import intervals, polynomials
from ingot.loops.intervals import Bounds
from ingot.loops.polynomials import without
from ingot.loops.proofs import is_in_range, is_nonnegative, is_positive

Monomial = tuple["Expr", ...]  # atoms in canonical order, repeated for powers; () is 1


class Expr:
    """An immutable, interned integer expression. Build with the operators and the functions of this
    module."""

    __slots__ = ("_coefficients", "_bounds", "_symbols", "_text", "_has_mod", "__weakref__")

    _coefficients: dict[Monomial, int]
    _bounds: Bounds | None
    _symbols: frozenset[Symbol] | None
    _text: str | None
    _has_mod: bool

    def _prepare(self, coefficients: dict[Monomial, int]) -> None:
        self._coefficients = coefficients
        self._bounds = self._symbols = self._text = None
        self._has_mod = any(isinstance(atom, Mod) for monomial in coefficients for atom in monomial)

    # -- arithmetic --------------------------------------------------------------------------------

    def __add__(self, other: Expr | int) -> Expr:
        if isinstance(other, int):
            if other == 0:
                return self
            other = integer(other)
        elif not isinstance(other, Expr):
            return NotImplemented
        total = polynomials.add(self._coefficients, other._coefficients)
        return _polynomial(total, self._has_mod or other._has_mod)

    __radd__ = __add__

    def __neg__(self) -> Expr:
        return _polynomial({m: -c for m, c in self._coefficients.items()})

    def __sub__(self, other: Expr | int) -> Expr:
        if self is other:
            return ZERO
        return self + (-other) if isinstance(other, (Expr, int)) else NotImplemented

    def __rsub__(self, other: int) -> Expr:
        return -self + other

    def __mul__(self, other: Expr | int) -> Expr:
        if isinstance(other, int):
            if other == 1:
                return self
            return _polynomial({m: c * other for m, c in self._coefficients.items()})
        if not isinstance(other, Expr):
            return NotImplemented
        if self is ONE:
            return other
        if other is ONE:
            return self
        total = polynomials.multiply(self._coefficients, other._coefficients)
        return _polynomial(total, self._has_mod or other._has_mod)

    __rmul__ = __mul__

    def __floordiv__(self, other: Expr | int) -> Expr:
        return floor_div(self, as_expr(other)) if isinstance(other, (Expr, int)) else NotImplemented

    def __rfloordiv__(self, other: int) -> Expr:
        return floor_div(integer(other), self)

    def __mod__(self, other: Expr | int) -> Expr:
        return mod(self, as_expr(other)) if isinstance(other, (Expr, int)) else NotImplemented

    def __rmod__(self, other: int) -> Expr:
        return mod(integer(other), self)

    # -- questions ---------------------------------------------------------------------------------

    @property
    def constant(self) -> int | None:
        """The value when it does not depend on any symbol, else None."""
        coefficients = self._coefficients
        if not coefficients:
            return 0
        return coefficients.get(()) if len(coefficients) == 1 else None

    @property
    def terms(self) -> tuple[tuple[int, Monomial], ...]:
        """(coefficient, atoms) pairs in a fixed order, the constant term last; atoms repeat for
        powers."""
        return tuple((c, m) for m, c in self._coefficients.items())

    @property
    def symbols(self) -> frozenset[Symbol]:
        """All symbols that occur anywhere in the expression."""
        if self._symbols is None:
            symbols = (atom.symbols for monomial in self._coefficients for atom in monomial)
            self._symbols = frozenset().union(*symbols)
        return self._symbols

    @property
    def bounds(self) -> Bounds:
        """Constant (lower, upper) bounds by interval arithmetic; None where none is known."""
        if self._bounds is None:
            total: Bounds = 0, 0
            for monomial, coefficient in self._coefficients.items():
                factors = [atom.bounds for atom in monomial]
                total = intervals.add(total, intervals.multiply(coefficient, factors))
            self._bounds = total
        return self._bounds

    @property
    def is_indirect(self) -> bool:
        """Whether values that a kernel loads decide it."""
        return any(s.kind == "value" for s in self.symbols)

    @property
    def count(self) -> Expr | None:
        """How many values an atom takes that takes all from 0 on: an index, or a remainder."""
        return None

    def step(self, loop: Symbol) -> Expr | None:
        """How far a step of a loop moves; None unless it is linear in the loop."""
        linear = self.linear((loop,))
        return None if linear is None else linear[1].get(loop, ZERO)

    def slope(self, atom: Expr) -> Expr:
        """What an atom is multiplied by, in terms in which it occurs once."""
        return _polynomial(polynomials.slope(self._coefficients, atom))

    def substitute(self, values: Mapping[Symbol, Expr | int]) -> Expr:
        """The expression with each symbol of `values` replaced, all at once."""
        if self.symbols.isdisjoint(values):
            return self
        total = ZERO
        for monomial, coefficient in self._coefficients.items():
            term = integer(coefficient)
            for atom in monomial:
                term = term * atom.substitute(values)
            total = total + term
        return total

    def evaluate(self, values: Mapping[Symbol, int]) -> int:
        """The integer value, given one for every symbol. Raises KeyError for a symbol that has
        none."""
        return sum(
            c * math.prod(a.evaluate(values) for a in m) for m, c in self._coefficients.items()
        )

    def linear(self, symbols: Iterable[Symbol]) -> tuple[Expr, dict[Symbol, Expr]] | None:
        """Write as `offset + sum(coefficient[s] * s)` over `symbols`, neither depending on them;
        None if impossible.

        Symbols that do not occur are left out of the coefficients.
        """
        own = self.symbols.intersection(symbols)
        if not own:
            return self, {}
        offset: dict[Monomial, int] = {}
        slopes: dict[Symbol, dict[Monomial, int]] = {}
        for monomial, coefficient in self._coefficients.items():
            inside = []
            for atom in monomial:
                if not own.isdisjoint(atom.symbols):
                    inside.append(atom)
            if not inside:
                offset[monomial] = coefficient
            elif len(inside) == 1 and isinstance(inside[0], Symbol):
                slopes.setdefault(inside[0], {})[without(monomial, inside[0])] = coefficient
            else:
                return None
        return _polynomial(offset), {symbol: _polynomial(slope) for symbol, slope in slopes.items()}

    # -- text --------------------------------------------------------------------------------------

    def __str__(self) -> str:
        if self._text is None:
            self._text = self._render()
        return self._text

    __repr__ = __str__

    def _render(self) -> str:
        pieces = []
        for monomial, coefficient in self._coefficients.items():
            factors = []
            for atom in monomial:
                factors.append(_factor_text(atom))
            if monomial and coefficient == 1:
                factors[0] = str(monomial[0])  # it leads: nothing stands before it
            if not factors or abs(coefficient) != 1:
                factors.insert(0, str(abs(coefficient)))
            sign = "-" if coefficient < 0 else "+"
            pieces.append(f" {sign} {'*'.join(factors)}")
        text = "".join(pieces) or " + 0"
        return text[3:] if text.startswith(" + ") else "-" + text[3:]

    def __copy__(self) -> Expr:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Expr:
        return self


class Symbol(Expr):
    """A named unknown: a "size" of the program, a "loop" index or an indirect "value" (both in 0 ..
    extent - 1)."""

    __slots__ = ("name", "kind", "lower", "upper", "_extent", "order")

    name: str
    kind: str
    lower: int
    upper: int | None
    _extent: Expr | None
    order: tuple[str, int]

    @property
    def extent(self) -> Expr:
        """How many values a loop index or an indirect value can take; a size has none."""
        assert self._extent is not None, f"{self.name} is a size"
        return self._extent

    @property
    def count(self) -> Expr | None:
        return self._extent

    def from_lower(self) -> Expr:
        """The lower bound plus a symbol that may be 0."""
        return size_symbol(self.name + "'") + self.lower

    @property
    def symbols(self) -> frozenset[Symbol]:
        return frozenset((self,))

    @property
    def bounds(self) -> Bounds:
        return self.lower, self.upper

    def substitute(self, values: Mapping[Symbol, Expr | int]) -> Expr:
        return as_expr(values[self]) if self in values else self

    def evaluate(self, values: Mapping[Symbol, int]) -> int:
        return values[self]

    def _render(self) -> str:
        return self.name


class _Operation(Expr):
    """An atom over two expressions: what the operation is for numbers, for bounds, and for
    expressions, which it may simplify."""

    __slots__ = ("left", "right", "order")

    left: Expr
    right: Expr
    order: tuple[str, int]

    of_numbers: ClassVar[Callable[[Any, Any], Any]]
    of_bounds: ClassVar[Callable[[Bounds, Bounds], Bounds]]

    @staticmethod
    def of(left: Expr, right: Expr) -> Expr:
        raise NotImplementedError

    @property
    def symbols(self) -> frozenset[Symbol]:
        if self._symbols is None:
            self._symbols = self.left.symbols | self.right.symbols
        return self._symbols

    @property
    def bounds(self) -> Bounds:
        if self._bounds is None:
            self._bounds = type(self).of_bounds(self.left.bounds, self.right.bounds)
        return self._bounds

    def substitute(self, values: Mapping[Symbol, Expr | int]) -> Expr:
        if self.symbols.isdisjoint(values):
            return self
        return self.of(self.left.substitute(values), self.right.substitute(values))

    def evaluate(self, values: Mapping[Symbol, int]) -> int:
        return type(self).of_numbers(self.left.evaluate(values), self.right.evaluate(values))


class FloorDiv(_Operation):
    """`left // right`, right positive."""

    __slots__ = ()
    of_numbers = operator.floordiv
    of_bounds = intervals.floor_divide

    @staticmethod
    def of(left: Expr, right: Expr) -> Expr:
        return floor_div(left, right)

    def _render(self) -> str:
        return f"{_operand_text(self.left)}//{_operand_text(self.right)}"


class Mod(_Operation):
    """`left % right`, right positive; the result is in 0 .. right - 1."""

    __slots__ = ()
    of_numbers = operator.mod
    of_bounds = intervals.remainder

    @property
    def count(self) -> Expr:
        return self.right

    @staticmethod
    def of(left: Expr, right: Expr) -> Expr:
        return mod(left, right)

    def _render(self) -> str:
        return f"{_operand_text(self.left)}%{_operand_text(self.right)}"


def _larger(a: Any, b: Any) -> Any:
    """Of arrays of numbers too."""
    return (a + b + abs(a - b)) // 2


def _smaller(a: Any, b: Any) -> Any:
    return (a + b - abs(a - b)) // 2


class Max(_Operation):
    """The larger of two expressions."""

    __slots__ = ()
    of_numbers = _larger
    of_bounds = intervals.maximum

    @staticmethod
    def of(left: Expr, right: Expr) -> Expr:
        return maximum(left, right)

    def _render(self) -> str:
        return f"max({self.left}, {self.right})"


class Min(_Operation):
    """The smaller of two expressions."""

    __slots__ = ()
    of_numbers = _smaller
    of_bounds = intervals.minimum

    @staticmethod
    def of(left: Expr, right: Expr) -> Expr:
        return minimum(left, right)

    def _render(self) -> str:
        return f"min({self.left}, {self.right})"


# -- making expressions ----------------------------------------------------------------------------

_serial = count()
_polynomials: dict[frozenset[tuple[Monomial, int]], Expr] = {}
_atoms: dict[tuple[Any, ...], Any] = {}
_integers: dict[int, Expr] = {}
_divisions: dict[tuple[Expr, Expr], Expr] = {}
_remainders: dict[tuple[Expr, Expr], Expr] = {}


def integer(value: int) -> Expr:
    """The constant expression `value`."""
    expr = _integers.get(value)
    if expr is None:
        expr = _integers[value] = _polynomial({(): int(value)})
    return expr


def as_expr(value: int | Expr) -> Expr:
    """`value` itself if it is an expression, else the constant."""
    return value if isinstance(value, Expr) else integer(value)


def size_symbol(name: str, lower: int = 0, upper: int | None = None) -> Symbol:
    """A size of the program, between `lower` and `upper` (None: unbounded), both included."""
    return _symbol("size", name, lower, upper, None)


def loop_symbol(name: str, extent: Expr | int) -> Symbol:
    """A loop index that runs over 0 .. extent - 1."""
    return _ranged_symbol("loop", name, as_expr(extent))


def value_symbol(name: str, extent: Expr | int) -> Symbol:
    """An index read from memory, known to lie in 0 .. extent - 1 after wrapping and checking."""
    return _ranged_symbol("value", name, as_expr(extent))


def _ranged_symbol(kind: str, name: str, extent: Expr) -> Symbol:
    most = extent.bounds[1]
    return _symbol(kind, name, 0, None if most is None else max(most - 1, 0), extent)


def _symbol(kind: str, name: str, lower: int, upper: int | None, extent: Expr | None) -> Symbol:
    key = (kind, name, lower, upper, extent)
    symbol = _atoms.get(key)
    if symbol is None:
        symbol = Symbol()
        symbol.kind, symbol.name, symbol.lower, symbol.upper, symbol._extent = key
        _intern_atom(key, symbol, name)
        symbol = _atoms[key]
    return symbol


def _operation(kind: type[_Operation], left: Expr, right: Expr) -> Expr:
    key = (kind, left, right)
    atom = _atoms.get(key)
    if atom is None:
        atom = kind()
        atom.left, atom.right = left, right
        _intern_atom(key, atom, atom._render())
        atom = _atoms[key]
    return atom


def _intern_atom(key: tuple[Any, ...], atom: Any, text: str) -> None:
    """Enter an atom under `key`, unless another thread was faster; an atom is also the polynomial 1
    * atom."""
    atom.order = (text, next(_serial))
    atom._prepare({(atom,): 1})
    atom._has_mod = isinstance(atom, Mod)
    if _atoms.setdefault(key, atom) is atom:
        _polynomials[frozenset((((atom,), 1),))] = atom


def _polynomial(coefficients: dict[Monomial, int], may_recombine: bool = False) -> Expr:
    if 0 in coefficients.values():
        coefficients = {m: c for m, c in coefficients.items() if c}
    key = frozenset(coefficients.items())
    expr = _polynomials.get(key)
    if expr is None:
        if may_recombine and len(coefficients) > 1:
            merged = _recombine(coefficients)
            if merged is not None:
                _polynomials[key] = merged
                return merged
        expr = Expr()
        expr._prepare(dict(sorted(coefficients.items(), key=polynomials.graded_order)))
        expr = _polynomials.setdefault(key, expr)
    return expr


def _recombine(coefficients: dict[Monomial, int]) -> Expr | None:
    """Apply n*(x//n) + x%n == x, and n*(x//n % k) + x%n == x % (n*k), once; None if neither
    fits."""
    for monomial, coefficient in coefficients.items():
        for remainder in monomial:
            if not isinstance(remainder, Mod) or len(remainder.right._coefficients) != 1:
                continue
            x, n = remainder.left, remainder.right
            quotient = floor_div(x, n)
            if not isinstance(quotient, _Operation):
                continue
            factor = _polynomial({without(monomial, remainder): coefficient})
            for other, other_coefficient in coefficients.items():
                for partner in other:
                    wrapped = isinstance(partner, Mod) and partner.left is quotient
                    if partner is not quotient and not wrapped:
                        continue
                    if _polynomial({without(other, partner): other_coefficient}) is not factor * n:
                        continue
                    rest = _polynomial(
                        {m: c for m, c in coefficients.items() if m not in (monomial, other)}
                    )
                    return rest + factor * (mod(x, n * partner.right) if wrapped else x)  # type: ignore[attr-defined]
    return None


_LONGEST_QUOTIENT = 16  # terms, by a divisor of several terms

# -- division --------------------------------------------------------------------------------------


def floor_div(a: Expr, n: Expr) -> Expr:
    """`a // n`, simplified. A constant negative divisor is allowed; a symbolic one must be
    positive."""
    division = _divisions.get((a, n))
    if division is None:
        if n.constant is not None and n.constant <= 0:
            division = (
                integer(a.constant // 0)
                if n is ZERO and a.constant is not None
                else floor_div(-a, -n)
            )
        else:
            quotient, _, inner, modulus, _ = _split(a, n)
            division = quotient + _divide_atom(inner, modulus)
        _divisions[a, n] = division
    return division


def mod(a: Expr, n: Expr) -> Expr:
    """`a % n`, simplified; `n` must be positive."""
    remainder = _remainders.get((a, n))
    if remainder is None:
        if n.constant is not None and n.constant <= 0:
            raise ZeroDivisionError(
                f"{a} % {n}: the divisor of an index expression must be positive"
            )
        _, step, inner, modulus, rest = _split(_unwrap_mods(a, n), n)
        remainder = _remainders[a, n] = step * _remainder_atom(inner, modulus) + rest
    return remainder


def _divide_atom(a: Expr, n: Expr) -> Expr:
    if a is ZERO or n is ONE:
        return a
    shift = a._coefficients.get((), 0)
    atom = a - shift
    if isinstance(atom, FloorDiv):  # (x//k + c) // n == (x + c*k) // (k*n)
        return floor_div(atom.left + atom.right * shift, atom.right * n)
    if isinstance(a, Mod):  # (x % (n*k)) // n == (x // n) % k
        quotient = mod(a.right, n)
        if quotient is ZERO:
            return mod(floor_div(a.left, n), floor_div(a.right, n))
    quotient = _operation(FloorDiv, a, n)
    low, high = quotient.bounds
    return integer(low) if low is not None and low == high else quotient


def _remainder_atom(a: Expr, n: Expr) -> Expr:
    if a is ZERO or n is ONE:
        return ZERO
    return _operation(Mod, a, n)


def _unwrap_mods(a: Expr, n: Expr) -> Expr:
    """Replace c * (x % m) by c * x where n divides c * m: it makes no difference modulo n."""
    if not a._has_mod:
        return a
    for monomial, coefficient in a._coefficients.items():
        for atom in monomial:
            if isinstance(atom, Mod):
                factor = _polynomial({without(monomial, atom): coefficient})
                if _divides(n, factor * atom.right):
                    return _unwrap_mods(a - factor * atom + factor * atom.left, n)
    return a


def _divides(n: Expr, a: Expr) -> bool:
    quotient = _extract(a, n)[0]
    return quotient * n is a


def _split(a: Expr, n: Expr) -> tuple[Expr, Expr, Expr, Expr, Expr]:
    """(quotient, step, inner, modulus, rest) with a = quotient*n + step*inner + rest, n =
    step*modulus, 0 <= rest < step."""
    quotient, a = _extract(a, n)
    if a is ZERO:
        return quotient, n, ZERO, ONE, ZERO
    low, high = a.bounds
    size = n.constant
    if size is not None and low is not None and high is not None and low // size == high // size:
        return quotient + low // size, n, ZERO, ONE, a - low // size * n
    if is_in_range(a, n):
        return quotient, n, ZERO, ONE, a
    for step, modulus in _common_steps(a, n):
        inner, rest = _extract(a, step)
        if is_in_range(rest, step):
            return quotient, step, inner, modulus, rest
    return quotient, ONE, a, n, ZERO


def _extract(a: Expr, n: Expr) -> tuple[Expr, Expr]:
    """(q, r) with a = q*n + r, moving into q every term that `n`'s leading term divides."""
    if n is ONE:
        return a, ZERO
    if len(n._coefficients) > 1:
        return _long_division(a, n)
    ((leading, leading_coefficient),) = n._coefficients.items()
    quotient, rest = polynomials.divide_by_term(a._coefficients, leading, leading_coefficient)
    return (_polynomial(quotient), _polynomial(rest)) if quotient else (ZERO, a)


def _long_division(a: Expr, n: Expr) -> tuple[Expr, Expr]:
    """(q, r) with a = q*n + r, q made of one term after the other. Terms are in graded order, so
    each step leaves smaller ones."""
    leading, leading_coefficient = next(iter(n._coefficients.items()))
    quotient = ZERO
    for _ in range(_LONGEST_QUOTIENT):
        for monomial, coefficient in a._coefficients.items():
            left = polynomials.divide(monomial, leading)
            if left is not None and coefficient % leading_coefficient == 0:
                term = _polynomial({left: coefficient // leading_coefficient})
                quotient, a = quotient + term, a - term * n
                break
        else:
            break
    return quotient, a


def _common_steps(a: Expr, n: Expr) -> Iterator[tuple[Expr, Expr]]:
    """Factorings n = step * modulus where step is shared with some term of `a`, the largest
    first."""
    if len(n._coefficients) != 1:
        return
    ((monomial, coefficient),) = n._coefficients.items()
    for divisor, shared in polynomials.common_divisors(a._coefficients, monomial, coefficient):
        step = _polynomial({shared: divisor})
        left = polynomials.divide(monomial, shared)
        if left is not None and is_positive(step):
            yield step, _polynomial({left: coefficient // divisor})


# -- proofs ----------------------------------------------------------------------------------------


def known_equal(a: Expr | int, b: Expr | int) -> bool:
    """True if provably a == b."""
    return as_expr(a) is as_expr(b)


def known_less_equal(a: Expr | int, b: Expr | int) -> bool:
    """True if provably a <= b for all values that the symbols may take."""
    return is_nonnegative(as_expr(b) - a)


def known_less(a: Expr | int, b: Expr | int) -> bool:
    """True if provably a < b for all values that the symbols may take."""
    return is_nonnegative(as_expr(b) - a - 1)


# -- conveniences ----------------------------------------------------------------------------------


def maximum(a: Expr | int, b: Expr | int) -> Expr:
    """The larger of a and b."""
    return _extreme(Max, as_expr(a), as_expr(b), known_less_equal)


def minimum(a: Expr | int, b: Expr | int) -> Expr:
    """The smaller of a and b."""
    return _extreme(Min, as_expr(a), as_expr(b), lambda x, y: known_less_equal(y, x))


def _extreme(kind: type[_Operation], a: Expr, b: Expr, yields_to: Any) -> Expr:
    if yields_to(a, b):
        return b
    if yields_to(b, a):
        return a
    if str(b) < str(a):
        a, b = b, a
    return _operation(kind, a, b)


def product(factors: Iterable[Expr | int]) -> Expr:
    """The product of `factors`; 1 for none."""
    total = ONE
    for factor in factors:
        total = total * factor
    return total


def _factor_text(atom: Expr) -> str:
    """An atom as a factor of a product: `2*i//3` would read as `(2*i)//3`, so a division gets
    parentheses unless it leads."""
    return f"({atom})" if isinstance(atom, (FloorDiv, Mod)) else str(atom)


def _operand_text(e: Expr) -> str:
    simple = isinstance(e, (Symbol, Max, Min)) or (e.constant is not None and e.constant >= 0)
    return str(e) if simple else f"({e})"


ZERO = integer(0)
ONE = integer(1)
