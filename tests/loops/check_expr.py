"""Properties of the index algebra on generated cases, against three oracles: Python's own
arithmetic over all or many admitted values (what was built means what was written, bounds hold,
what is claimed to be proven is true), sympy (equal polynomials are one object) and NumPy (chains of
views are index maps).

`python -m tests.loops.check_expr COUNT [FIRST]` runs COUNT cases of each property.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import sympy

from ingot.loops.expr import (
    ONE,
    ZERO,
    Expr,
    Symbol,
    floor_div,
    integer,
    known_equal,
    known_less,
    known_less_equal,
    loop_symbol,
    maximum,
    minimum,
    mod,
    product,
    size_symbol,
    value_symbol,
)
from ingot.loops.lowering.index_maps import reshape_map
from ingot.loops.postfix import expression, postfix
from ingot.loops.spaces import contiguous_strides

Point = dict[Symbol, int]
MOST_POINTS = 24


# -- worlds of symbols -----------------------------------------------------------------------------


@dataclass
class World:
    """Size symbols, and loop and value symbols over constant or symbolic extents."""

    sizes: list[Symbol]
    indices: list[Symbol]

    @property
    def symbols(self) -> list[Symbol]:
        return self.sizes + self.indices

    def points(self, rng: random.Random, most: int = MOST_POINTS) -> list[Point]:
        """Admitted values: the corners of every range, and some from the inside."""
        found = []
        for _ in range(most):
            point: Point = {}
            for s in self.sizes:
                top = s.lower + 7 if s.upper is None else min(s.upper, s.lower + 7)
                point[s] = rng.choice([s.lower, top, rng.randint(s.lower, top)])
            for s in self.indices:
                extent = s.extent.evaluate(point)
                if extent < 1:
                    break
                point[s] = rng.choice([0, extent - 1, rng.randrange(extent)])
            else:
                found.append(point)
        return found


def random_world(rng: random.Random) -> World:
    sizes = [
        size_symbol(f"s{k}", rng.choice([0, 1, 2, 2]), rng.choice([None, None, None, 9]))
        for k in range(2)
    ]
    positive = [s for s in sizes if s.lower > 0]
    indices = []
    for k in range(4):
        extent: Any = rng.choice([1, 2, 3, 4, 6, 8, 12])
        if rng.random() < 0.5 and positive:
            s = rng.choice(positive)
            extent = rng.choice([s, s, s * extent, s + 1, product(positive), s * s])
        make = value_symbol if rng.random() < 0.2 else loop_symbol
        indices.append(make(f"i{k}", extent))
    return World(sizes, indices)


# -- expressions as they were written --------------------------------------------------------------


class Tree(NamedTuple):
    """An expression before any simplification: `op` is "leaf" (a Symbol or an int) or an operation
    on two trees."""

    op: str
    left: Any
    right: Any = None

    def evaluate(self, point: Point) -> int:
        if self.op == "leaf":
            return self.left if isinstance(self.left, int) else point[self.left]
        return _PYTHON[self.op](self.left.evaluate(point), self.right.evaluate(point))

    def build(self) -> Expr:
        if self.op == "leaf":
            return integer(self.left) if isinstance(self.left, int) else self.left
        return _BUILD[self.op](self.left.build(), self.right.build())

    def __str__(self) -> str:
        return str(self.left) if self.op == "leaf" else f"({self.left} {self.op} {self.right})"


_PYTHON: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "max": max,
    "min": min,
}
_BUILD: dict[str, Callable[[Expr, Expr], Expr]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": floor_div,
    "%": mod,
    "max": maximum,
    "min": minimum,
}


def leaf(value: Symbol | int) -> Tree:
    return Tree("leaf", value)


def random_tree(
    rng: random.Random, world: World, depth: int, operations: str = "++-**////%%%<>"
) -> Tree:
    if depth == 0 or rng.random() < 0.12:
        return leaf(rng.randint(-3, 12)) if rng.random() < 0.3 else leaf(rng.choice(world.symbols))
    op = {"/": "//", "<": "min", ">": "max"}.get(c := rng.choice(operations), c)
    left = random_tree(rng, world, depth - 1, operations)
    if op in ("//", "%"):
        return Tree(op, left, divisor(rng, world, op))
    if op == "+" and rng.random() < 0.4:  # what a flattened index looks like
        left = Tree("*", left, divisor(rng, world, "%"))
    return Tree(op, left, random_tree(rng, world, depth - 1, operations))


def divisor(rng: random.Random, world: World, op: str) -> Tree:
    """A positive expression; for `//` now and then a negative number."""
    positive = [s for s in world.sizes if s.lower > 0]
    number = rng.choice([1, 2, 3, 4, 6, 8, 12, 24])
    if op == "//" and rng.random() < 0.05:
        return leaf(-number)
    if not positive or rng.random() < 0.6:
        return leaf(number)
    s = leaf(rng.choice(positive))
    kind = rng.randrange(4)
    if kind == 0:
        return s
    if kind == 1:
        return Tree("*", s, leaf(number))
    return Tree("+", s, leaf(number)) if kind == 2 else Tree("*", s, leaf(rng.choice(positive)))


# -- properties: each takes a seeded generator, and raises AssertionError on a counterexample ------


def simplification(rng: random.Random) -> None:
    """What is built has the value of what was written; so have its text and its postfix steps; its
    bounds hold."""
    world = random_world(rng)
    tree = random_tree(rng, world, rng.randint(1, 4))
    built = tree.build()
    names = [s.name for s in world.symbols]
    printed = eval(f"lambda {', '.join(names)}: {built}")
    steps = postfix(built, {s: k for k, s in enumerate(world.symbols)})
    again = expression(steps, world.symbols)
    low, high = built.bounds
    for point in world.points(rng):
        expected = tree.evaluate(point)
        context = tree, built, point
        assert built.evaluate(point) == again.evaluate(point) == expected, context
        assert printed(*(point[s] for s in world.symbols)) == expected, context
        assert run_postfix(steps, [point[s] for s in world.symbols]) == expected, context
        assert low is None or low <= expected, (context, built.bounds)
        assert high is None or expected <= high, (context, built.bounds)
        assert built.constant is None or built.constant == expected, context


def run_postfix(steps: Sequence[tuple[Any, ...]], table: Sequence[int]) -> int:
    operations = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%"}
    stack: list[int] = []
    for name, *operand in steps:
        if name == "const":
            stack.append(operand[0])
        elif name == "symbol":
            stack.append(table[operand[0]])
        else:
            right = stack.pop()
            stack.append(_PYTHON[operations.get(name, name)](stack.pop(), right))
    (result,) = stack
    return result


def substitution(rng: random.Random) -> None:
    """Replacing symbols by what takes their values, all at once, is evaluating with those
    values."""
    world = random_world(rng)
    tree = random_tree(rng, world, rng.randint(1, 4))
    built = tree.build()
    fresh = World(world.sizes, [])
    replaced: dict[Symbol, Tree] = {}
    for s in world.indices:
        fresh.indices.append(loop_symbol(f"j{len(fresh.indices)}", s.extent))
        own = leaf(fresh.indices[-1])
        flipped = Tree("-", Tree("-", _written(s.extent), leaf(1)), own)
        choices = [own, own, flipped, Tree("%", Tree("+", own, leaf(3)), _written(s.extent))]
        known = s.extent.constant
        if known is not None:
            choices.append(leaf(rng.randrange(known)))
            if known % 2 == 0:
                fresh.indices += [
                    a := loop_symbol(f"a{s.name}", known // 2),
                    b := loop_symbol(f"b{s.name}", 2),
                ]
                choices.append(Tree("+", Tree("*", leaf(a), leaf(2)), leaf(b)))
        if rng.random() < 0.8:
            replaced[s] = rng.choice(choices)
    fresh.indices += [s for s in world.indices if s not in replaced]
    result = built.substitute({s: t.build() for s, t in replaced.items()})
    for point in fresh.points(rng):
        given = point | {s: t.evaluate(point) for s, t in replaced.items()}
        assert result.evaluate(point) == tree.evaluate(given), (
            tree,
            built,
            replaced,
            result,
            point,
        )
    for point in world.points(rng, 3):
        fixed = built.substitute(point)
        assert fixed.constant == tree.evaluate(point), (tree, built, fixed, point)
        some = {s: point[s] for s in world.sizes}
        assert built.substitute(some).evaluate(point) == tree.evaluate(point), (
            tree,
            built,
            some,
            point,
        )


def _written(e: Expr) -> Tree:
    """A polynomial in symbols as a tree."""
    total = leaf(0)
    for coefficient, atoms in e.terms:
        term = leaf(coefficient)
        for atom in atoms:
            assert isinstance(atom, Symbol)
            term = Tree("*", term, leaf(atom))
        total = Tree("+", total, term)
    return total


def linear_forms(rng: random.Random) -> None:
    """`linear` splits exactly, its parts are free of the symbols, and it finds what was written as
    a linear form."""
    world = random_world(rng)
    tree = random_tree(rng, world, rng.randint(1, 3))
    chosen = rng.sample(world.indices, rng.randint(1, 4))
    built = tree.build()
    written = rng.random() < 0.5
    if written:
        sizes = World(world.sizes, [s for s in world.indices if s not in chosen] or world.sizes)
        tree = random_tree(rng, sizes, 2)
        for s in chosen:
            tree = Tree("+", tree, Tree("*", leaf(s), random_tree(rng, World(world.sizes, []), 1)))
        built = tree.build()
    form = built.linear(chosen)
    assert form is not None or not written, (tree, built, chosen)
    if form is None:
        return
    offset, coefficients = form
    for part in (offset, *coefficients.values()):
        assert part.symbols.isdisjoint(chosen), (built, chosen, form)
    for point in world.points(rng):
        total = offset.evaluate(point) + sum(
            c.evaluate(point) * point[s] for s, c in coefficients.items()
        )
        assert total == tree.evaluate(point), (tree, built, form, point)


def proofs(rng: random.Random) -> None:
    """What is claimed to be proven holds at every value tried; what is not known may be either."""
    world = random_world(rng)
    left = random_tree(rng, world, rng.randint(0, 3))
    near = rng.random() < 0.5  # a close relative of the left side, so that much is nearly true
    other = random_tree(rng, world, 1 if near else rng.randint(0, 3))
    right = Tree(rng.choice("+-"), left, other) if near else other
    a, b = left.build(), right.build()
    less_equal, less, equal = known_less_equal(a, b), known_less(a, b), known_equal(a, b)
    assert less_equal or not (less or equal), (a, b)
    assert equal == (a is b)
    if not (less_equal or less or equal):
        return
    for point in world.points(rng, 4 * MOST_POINTS):
        x, y = left.evaluate(point), right.evaluate(point)
        context = str(left), str(right), a, b, point
        assert not less_equal or x <= y, context
        assert not less or x < y, context
        assert not equal or x == y, context


def polynomials(rng: random.Random) -> None:
    """Expressions of +, - and * are equal as polynomials, says sympy, exactly if they are one
    object."""
    world = random_world(rng)
    left = random_tree(rng, world, rng.randint(1, 4), "++-**")
    right = (
        _shuffled(rng, left)
        if rng.random() < 0.6
        else random_tree(rng, world, rng.randint(1, 4), "++-**")
    )
    symbols = {s: sympy.Symbol(s.name, integer=True) for s in world.symbols}
    same = sympy.expand(_to_sympy(left, symbols) - _to_sympy(right, symbols)) == 0
    assert known_equal(left.build(), right.build()) == same, (
        left,
        right,
        left.build(),
        right.build(),
    )


def _shuffled(rng: random.Random, t: Tree) -> Tree:
    """The same polynomial, or nearly, written in another way."""
    if t.op == "leaf":
        return leaf(t.left + 1) if isinstance(t.left, int) and rng.random() < 0.05 else t
    left, right = _shuffled(rng, t.left), _shuffled(rng, t.right)
    if t.op == "*" and right.op in ("+", "-") and rng.random() < 0.7:
        return Tree(right.op, Tree("*", left, right.left), Tree("*", left, right.right))
    if t.op == "-":
        return Tree("+", Tree("*", leaf(-1), right), left)
    if t.op == left.op and rng.random() < 0.5:
        return Tree(t.op, left.left, Tree(t.op, left.right, right))
    return Tree(t.op, right, left) if rng.random() < 0.5 else Tree(t.op, left, right)


def _to_sympy(t: Tree, symbols: dict[Symbol, Any]) -> Any:
    if t.op == "leaf":
        return t.left if isinstance(t.left, int) else symbols[t.left]
    return _PYTHON[t.op](_to_sympy(t.left, symbols), _to_sympy(t.right, symbols))


def delinearization(rng: random.Random) -> None:
    """A flat index taken apart gives its parts back, whether the sizes are numbers or symbols, and
    is in range."""
    sizes: list[Expr] = [
        size_symbol(f"s{k}", 2) if rng.random() < 0.4 else integer(rng.choice([2, 3, 4, 7, 12, 64]))
        for k in range(rng.randint(2, 4))
    ]
    loops = [loop_symbol(f"i{k}", n) for k, n in enumerate(sizes)]
    strides = contiguous_strides(sizes)
    flat = sum((i * s for i, s in zip(loops, strides)), ZERO)
    for k, (i, stride, n) in enumerate(zip(loops, strides, sizes)):
        assert (flat // stride % n if k else flat // stride) is i, (flat, stride, n)
    assert known_less_equal(0, flat) and known_less(flat, product(sizes)), (flat, sizes)
    cut = rng.randint(1, len(sizes) - 1)
    inner = product(sizes[cut:])
    head = sum((i * s for i, s in zip(loops[:cut], contiguous_strides(sizes[:cut]))), ZERO)
    assert flat // inner is head and flat % inner is flat - head * inner, (flat, inner)
    whole = loop_symbol("n", product(sizes))
    parts = [
        whole // stride % n if k else whole // stride
        for k, (stride, n) in enumerate(zip(strides, sizes))
    ]
    assert sum((p * s for p, s in zip(parts, strides)), ZERO) is whole, (parts, strides)


def views(rng: random.Random) -> None:
    """A chain of views as index maps reads the elements that NumPy's views show."""
    shape = tuple(rng.choice([1, 2, 3, 4, 6]) for _ in range(rng.randint(1, 3)))
    array = np.arange(int(np.prod(shape))).reshape(shape)
    maps: list[Callable[[tuple[Expr, ...]], tuple[Expr, ...]]] = []
    text = [str(shape)]
    for _ in range(rng.randint(1, 5)):
        name, array, index_map = _random_view(rng, array)
        if not array.size:
            return
        text.append(name)
        maps.append(index_map)
    index: tuple[Expr, ...] = tuple(
        ZERO if n == 1 else loop_symbol(f"i{k}", n) for k, n in enumerate(array.shape)
    )
    at = index
    for index_map in reversed(maps):
        at = index_map(at)
    address = sum((i * s for i, s in zip(at, contiguous_strides(shape))), ZERO)
    low, high = address.bounds
    for place in itertools.product(*map(range, array.shape)):
        point = {s: k for s, k in zip(index, place) if isinstance(s, Symbol)}
        found = address.evaluate(point)
        assert found == array[place], (text, address, place)
        assert low is not None and low <= found and high is not None and found <= high, (
            text,
            address,
        )


def _random_view(rng: random.Random, a: np.ndarray) -> tuple[str, np.ndarray, Any]:
    """A view of `a`: its text, the array, and the map from its index to that of `a`."""
    rank, d = a.ndim, rng.randrange(a.ndim)
    n = a.shape[d]

    def on_dim(f: Callable[[Expr], Expr]) -> Any:
        return lambda i: (*i[:d], f(i[d]), *i[d + 1 :])

    kind = rng.choice(
        ["permute", "flip", "slice", "roll", "reshape", "reshape", "reshape", "unfold", "repeat"]
    )
    if kind == "permute":
        order = rng.sample(range(rank), rank)
        return (
            f"permute {order}",
            a.transpose(order),
            lambda i: tuple(i[order.index(k)] for k in range(rank)),
        )
    if kind == "flip":
        return f"flip {d}", np.flip(a, d), on_dim(lambda i: n - 1 - i)
    if kind == "slice":
        start, step = rng.randrange(n), rng.choice([1, 2, 3])
        part = (slice(None),) * d + (slice(start, None, step),)
        return f"slice {d} {start}::{step}", a[part], on_dim(lambda i: i * step + start)
    if kind == "roll":
        shift = rng.randint(-4, 4)
        return f"roll {d} by {shift}", np.roll(a, shift, d), on_dim(lambda i: (i - shift) % n)
    if kind == "unfold" and rank < 4:
        size, step = rng.randint(1, n), rng.choice([1, 2])
        windows = np.lib.stride_tricks.sliding_window_view(a, size, d)
        windows = windows[(slice(None),) * d + (slice(None, None, step),)]
        return (
            f"unfold {d} {size} {step}",
            windows,
            lambda i: (*i[:d], i[d] * step + i[-1], *i[d + 1 : -1]),
        )
    if kind == "repeat" and a.size < 100:
        times = [rng.choice([1, 2]) for _ in range(rank)]
        return (
            f"repeat {times}",
            np.tile(a, times),
            lambda i: tuple(k % size for k, size in zip(i, a.shape)),
        )
    shape = rng.choice(list(_factorizations(a.size, rng.randint(1, 3))))
    old = tuple(map(integer, a.shape))
    return f"reshape {shape}", a.reshape(shape), reshape_map(tuple(map(integer, shape)), old)


def _factorizations(n: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (n,)
        return
    for first in range(1, n + 1):
        if n % first == 0:
            yield from ((first, *rest) for rest in _factorizations(n // first, parts - 1))


def interning(rng: random.Random) -> None:
    """Equal ways of writing a sum or product of anything are one object, and identities hold as
    identity."""
    world = random_world(rng)
    a, b, c = (random_tree(rng, world, 2).build() for _ in range(3))
    n = divisor(rng, world, "%").build()
    assert a * (b + c) is a * b + a * c, (a, b, c)
    assert (a * b) * c is a * (b * c) and a * b is b * a, (a, b, c)
    assert a - a is ZERO and a * 0 is ZERO and a * ONE is a, a
    assert a - b is -(b - a), (a, b)
    assert (a * n) // n is a and (a * n) % n is ZERO, (a, n)
    assert maximum(a, a) is a is minimum(a, a), a
    if not (known_less_equal(a, b) and known_less_equal(b, a)):
        assert maximum(a, b) is maximum(b, a) and minimum(a, b) is minimum(b, a), (a, b)


PROPERTIES = [
    simplification, substitution, linear_forms, proofs, polynomials, delinearization, views,
    interning,
]  # fmt: skip


def check(property_: Callable[[random.Random], None], seed: int) -> None:
    """One case. Raises AssertionError, naming the seed."""
    try:
        property_(random.Random(f"{property_.__name__} {seed}"))
    except AssertionError as error:
        raise AssertionError(f"{property_.__name__}, seed {seed}: {error}") from None


def main(count: int, first: int = 0) -> None:
    failed = 0
    for property_ in PROPERTIES:
        wrong = []
        for seed in range(first, first + count):
            try:
                check(property_, seed)
            except Exception as error:
                wrong.append(seed)
                if len(wrong) <= 3:
                    print(f"{type(error).__name__}: {error}")
        failed += len(wrong)
        print(
            f"{property_.__name__:16} {count} cases, {len(wrong)} failed {wrong[:10] or ''}",
            flush=True,
        )
    print(f"{count * len(PROPERTIES)} cases, {failed} failed")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
