"""An expression as the steps of a stack machine, which the native core evaluates over a table of
integers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ingot.loops.expr import (
    Expr,
    FloorDiv,
    Max,
    Min,
    Mod,
    Symbol,
    as_expr,
    integer,
    maximum,
    minimum,
)

_OPERATIONS = {FloorDiv: "floordiv", Mod: "mod", Max: "max", Min: "min"}

Step = tuple[Any, ...]


def postfix(expr: Expr | int, positions: Mapping[Symbol, int]) -> tuple[Step, ...]:
    """The steps of an expression, in order.

    Each is ("const", value), ("symbol", position in the table), or an operation on the two topmost
    values: ("add",), ("sub",), ("mul",), ("floordiv",), ("mod",), ("max",), ("min",). Raises
    KeyError for a symbol without a position.
    """
    steps: list[Step] = []
    _append(as_expr(expr), positions, steps)
    return tuple(steps)


def _append(expr: Expr, positions: Mapping[Symbol, int], steps: list[Step]) -> None:
    if isinstance(expr, Symbol):
        steps.append(("symbol", positions[expr]))
    elif type(expr) in _OPERATIONS:
        _append(expr.left, positions, steps)  # type: ignore[attr-defined]
        _append(expr.right, positions, steps)  # type: ignore[attr-defined]
        steps.append((_OPERATIONS[type(expr)],))  # type: ignore[index]
    else:
        _append_polynomial(expr, positions, steps)


def _append_polynomial(expr: Expr, positions: Mapping[Symbol, int], steps: list[Step]) -> None:
    """Coefficient times atoms, summed; the empty polynomial is zero."""
    if not expr.terms:
        steps.append(("const", 0))
    for number, (coefficient, atoms) in enumerate(expr.terms):
        for position, atom in enumerate(atoms):
            _append(atom, positions, steps)
            if position:
                steps.append(("mul",))
        if not atoms or coefficient != 1:
            steps.append(("const", coefficient))
            if atoms:
                steps.append(("mul",))
        if number:
            steps.append(("add",))


_COMPUTE: dict[str, Callable[[Expr, Expr], Expr]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul,
    "floordiv": operator.floordiv, "mod": operator.mod, "max": maximum, "min": minimum,
}  # fmt: skip


def expression(steps: Sequence[Step], symbols: Sequence[Symbol]) -> Expr:
    """The expression of such steps, in which a symbol's position is that among `symbols`. Raises
    ValueError, KeyError or IndexError for steps of no expression."""
    stack: list[Expr] = []
    for operation, *operand in steps:
        if operation == "const":
            stack.append(integer(*operand))
        elif operation == "symbol":
            stack.append(symbols[operand[0]])
        else:
            right, left = stack.pop(), stack.pop()
            stack.append(_COMPUTE[operation](left, right))
    (result,) = stack
    return result
