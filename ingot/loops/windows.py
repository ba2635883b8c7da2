"""Which keys a query may see, and which queries a key, as far as the indices alone say."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from functools import partial
from itertools import product, starmap
from typing import NamedTuple

import torch

from ingot.loops.expr import ONE, Expr, Symbol, integer
from ingot.loops.ir import Body, BodyBuilder, Instruction
from ingot.sequences import at

Bound = tuple[Expr, ...]
"""Of several bounds, the weakest: the least of lower ones, the largest of upper ones."""


class Window(NamedTuple):
    """Steps below any of `lower` or above any of `upper` do not matter to a row.

    What bounds are made of is linear in the row's index.
    """

    lower: tuple[Bound, ...] = ()
    upper: tuple[Bound, ...] = ()

    def both(self, other: Window) -> Window:
        """Where two conditions hold."""
        lower = dict.fromkeys((*self.lower, *other.lower))
        return Window(tuple(lower), tuple(dict.fromkeys((*self.upper, *other.upper))))

    def either(self, other: Window) -> Window:
        """Where one of two conditions holds."""
        lower = starmap(operator.add, product(self.lower, other.lower))
        upper = starmap(operator.add, product(self.upper, other.upper))
        return Window(tuple(lower), tuple(upper))


ALL = Window()
_JOINS = {"logical_and": True, "bitwise_and": True, "logical_or": False, "bitwise_or": False}
"""Whether both of two conditions must hold."""
_GREATER = {"gt": (1, 1), "ge": (1, 0), "lt": (-1, 1), "le": (-1, 0)}
"""Of a comparison of a and b: the sign, and the number, by which sign * (a - b) >= number."""
_ONE_SIDE = (1, 0, 1, 0), (0, 1, 0, 1)
"""Numbers of bounds of two windows, below and above, that are one window where either holds."""


class Condition(NamedTuple):
    """The condition at `position` in a body: whether it `holds`."""

    position: int
    holds: bool


def _needed(body: Body, position: int) -> list[int]:
    """As `Body.needed`, with the lookups whose values are in the indices."""
    roots = {position}
    while True:
        needed = body.needed(roots)
        before, used = len(roots), symbols_of(body, needed)
        for k in body.lookups:
            if body.instructions[k].attrs[0] in used:
                roots.add(k)
        if len(roots) == before:
            return needed


def symbols_of(body: Body, positions: Iterable[int]) -> frozenset[Symbol]:
    """The symbols of the indices of instructions."""
    result = frozenset[Symbol]()
    for k in positions:
        expression = body.instructions[k].expression
        if expression is not None:
            result |= expression.symbols
    return result


# of the operands, those of which one that is -inf, or zero, makes the result so
_KEEPS_LOWEST = {"add": (0, 1), "sub": (0,)}
_KEEPS_ZERO = {"mul": (0, 1), "div": (0,), "neg": (0,)}


class Conditions:
    """The conditions without which a body makes zeros, or -inf for a `softmax`, of all its results.

    Infinities and NaN that would come of the rest are not looked for: they are of what is masked.
    """

    def __init__(self, body: Body, softmax: bool, row: Symbol, step: Symbol) -> None:
        self.whole, self.body, self.row, self.step = body, body.instructions, row, step
        first, *others = map(partial(self.of, lowest=softmax), body.results)
        self.all = list(dict.fromkeys(first))
        for of_result in others:
            self.all = list(filter(of_result.__contains__, self.all))

    @property
    def told(self) -> list[Condition]:
        """Those that hold all over their windows."""
        return list(filter(self.is_told, self.all))

    @property
    def of_places(self) -> list[Condition]:
        """Those that depend on no outer value, such as a product."""
        return list(filter(self.is_of_places, self.all))

    def is_of_places(self, condition: Condition) -> bool:
        needed = at(self.body, _needed(self.whole, condition.position))
        return "scalar" not in map(operator.attrgetter("op"), needed)

    def window(self, conditions: Iterable[Condition]) -> Window:
        """The window of conditions: outside of it, one of them does not hold."""
        window = ALL
        for condition in conditions:
            window = window.both(self.where(condition))
        return window

    def joined(self, conditions: Iterable[Condition]) -> Body:
        """The body of whether conditions hold, of which there is one at least."""
        builder, results = BodyBuilder(), []
        for position, holds in conditions:
            value = builder.copy(self.whole, only=_needed(self.whole, position))[position]
            if not holds:
                value = builder.emit("logical_not", (value,), torch.bool)
            results.append(value)
        result = results[0]
        for value in results[1:]:
            result = builder.emit("logical_and", (result, value), torch.bool)
        return builder.body(result)

    def where_hold(self, conditions: Iterable[Condition]) -> Body:
        """The body where conditions hold."""
        known, builder, positions = dict(conditions), BodyBuilder(), list[int]()
        for k, i in enumerate(self.body):
            i = i._replace(args=tuple(at(positions, i.args)))
            if k in known:
                positions.append(builder.constant(known[k], torch.bool))
            else:
                positions.append(builder.fold(i))
        return builder.body(*at(positions, self.whole.results)).without_dead()

    # -- what they are -----------------------------------------------------------------------------

    def of(self, position: int, lowest: bool) -> list[Condition]:
        """What must hold for the value at `position` to be other than zero, or than -inf if that is
        asked."""
        i, keeps, results = self.body[position], _KEEPS_ZERO, list[Condition]()
        if i.op == "to" and i.dtype.is_floating_point:
            return self.of(i.args[0], lowest)
        if i.op in ("exp", "exp2") and not lowest:
            return self.of(i.args[0], True)
        if i.op == "where":
            condition, value, other = i.args
            if _is_nothing(self.body[other], lowest):
                return [*self.each(condition, True), *self.of(value, lowest)]
            if _is_nothing(self.body[value], lowest):
                return [*self.each(condition, False), *self.of(other, lowest)]
        if lowest:
            keeps = _KEEPS_LOWEST
        for k in keeps.get(i.op, ()):
            results += self.of(i.args[k], lowest)
        return results

    def each(self, position: int, holds: bool) -> list[Condition]:
        """The conditions that must all hold for one to hold, or not to."""
        i = self.body[position]
        if i.op == "logical_not":
            return self.each(i.args[0], not holds)
        if _JOINS.get(i.op) is holds:
            return [*self.each(i.args[0], holds), *self.each(i.args[1], holds)]
        return [Condition(position, holds)]

    def is_told(self, condition: Condition) -> bool:
        """Whether a condition holds all over its window."""
        i, holds = self.body[condition.position], condition.holds
        if i.op == "logical_not":
            return self.is_told(Condition(i.args[0], not holds))
        if i.op not in _JOINS:
            return self.where(condition) != ALL
        a, b = Condition(i.args[0], holds), Condition(i.args[1], holds)
        if not (self.is_told(a) and self.is_told(b)):
            return False
        first, second = self.where(a), self.where(b)
        sides = first.lower, first.upper, second.lower, second.upper
        return _JOINS[i.op] is holds or tuple(map(len, sides)) in _ONE_SIDE

    def where(self, condition: Condition) -> Window:
        """The window of a condition."""
        i, holds = self.body[condition.position], condition.holds
        if i.op == "logical_not":
            return self.where(Condition(i.args[0], not holds))
        if i.op in _JOINS:
            first, second = map(self.where, map(Condition, i.args, (holds, holds)))
            if _JOINS[i.op] is holds:
                return first.both(second)
            return first.either(second)
        if i.op not in _GREATER and not (i.op == "eq" and holds):
            return ALL
        left, right = map(partial(index_of, self.body), i.args)
        if left is None or right is None:
            return ALL
        if i.op == "eq":
            return self.not_negative(left - right).both(self.not_negative(right - left))
        sign, number = _GREATER[i.op]
        excess = (left - right) * sign - number
        if not holds:
            excess = integer(-1) - excess
        return self.not_negative(excess)

    def not_negative(self, excess: Expr) -> Window:
        linear = excess.linear([self.step])
        if linear is None:
            return ALL
        rest, slope = linear[0], linear[1].get(self.step)
        if slope is None or rest.linear([self.row]) is None:
            return ALL
        if slope is ONE:
            return Window(lower=((integer(0) - rest,),))
        if slope.constant == -1:
            return Window(upper=((rest,),))
        return ALL


def _is_nothing(i: Instruction, lowest: bool) -> bool:
    return i.op == "constant" and i.attrs[0] == (-math.inf if lowest else 0)


def index_of(body: tuple[Instruction, ...], position: int) -> Expr | None:
    """An integer value that follows from indices, as an expression of them."""
    i = body[position]
    if i.op == "index":
        expression: Expr = i.attrs[0]
        return expression
    if i.op == "constant" and isinstance(i.attrs[0], int):
        return integer(i.attrs[0])
    if i.op == "to" and not i.dtype.is_floating_point and i.dtype.itemsize == 8:
        return index_of(body, i.args[0])
    if i.op in ("add", "sub") and not i.dtype.is_floating_point:
        left, right = map(partial(index_of, body), i.args)
        if left is None or right is None:
            return None
        return left + right if i.op == "add" else left - right
    return None
