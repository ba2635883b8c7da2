"""Which keys a query may see, and which queries a key, as far as the indices alone say."""

from __future__ import annotations

import math
import operator
from functools import partial
from itertools import product, starmap
from typing import NamedTuple

from ingot.loops.expr import ONE, Expr, Symbol, integer
from ingot.loops.ir import Body, Instruction

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


def window_of(body: Body, softmax: bool, row: Symbol, step: Symbol) -> Window:
    """The window outside of which a body makes zeros, or -inf for a `softmax`.

    Infinities and NaN that would come of the rest are not looked for: they are of what is masked.
    """
    return _Conditions(body.instructions, row, step).of(body.results[0], softmax)


# of the operands, those of which one that is -inf, or zero, makes the result so
_KEEPS_LOWEST = {"add": (0, 1), "sub": (0,)}
_KEEPS_ZERO = {"mul": (0, 1), "div": (0,), "neg": (0,)}


class _Conditions:
    def __init__(self, body: tuple[Instruction, ...], row: Symbol, step: Symbol) -> None:
        self.body, self.row, self.step = body, row, step

    def of(self, at: int, lowest: bool) -> Window:
        """Where the value number `at` may be other than zero, or than -inf if that is asked."""
        i, window, keeps = self.body[at], ALL, _KEEPS_ZERO
        if i.op == "to" and i.dtype.is_floating_point:
            return self.of(i.args[0], lowest)
        if i.op == "exp" and not lowest:
            return self.of(i.args[0], True)
        if i.op == "where":
            condition, value, other = i.args
            if _is_nothing(self.body[other], lowest):
                return self.where(condition, True).both(self.of(value, lowest))
            if _is_nothing(self.body[value], lowest):
                return self.where(condition, False).both(self.of(other, lowest))
        if lowest:
            keeps = _KEEPS_LOWEST
        for k in keeps.get(i.op, ()):
            window = window.both(self.of(i.args[k], lowest))
        return window

    def where(self, at: int, holds: bool) -> Window:
        """Where a condition holds, or does not."""
        i = self.body[at]
        if i.op == "logical_not":
            return self.where(i.args[0], not holds)
        if i.op in _JOINS:
            first, second = self.where(i.args[0], holds), self.where(i.args[1], holds)
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


def index_of(body: tuple[Instruction, ...], at: int) -> Expr | None:
    """An integer value that follows from indices, as an expression of them."""
    i = body[at]
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
