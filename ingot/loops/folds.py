"""Identities of scalar ops: from an op and its operands to the value that is known without it.

An identity holds for every value of the type, bit by bit: NaN, infinities, signed zeros and the
ends of the integers' range included.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

Operand = str | bool | int


class Fold(NamedTuple):
    """An op of these operands is `result`.

    A letter stands for any value, the same letter for the same one; a number for that constant, 0
    for 0.0 and never for -0.0; `CONSTANT` for any constant. The result is an operand's letter, a
    truth value, or a function of the constants that gives one.
    """

    op: str
    operands: tuple[Operand, ...]
    result: str | bool | Callable[[Any, Any], bool]
    of_floats: bool = True  # whether it holds for floats too

    def holds(self, args: Sequence[int], numbers: Sequence[Any], of_floats: bool) -> bool:
        """Whether the op's arguments are these operands; `numbers` are the values of those that are
        constants, None for others."""
        if of_floats and not self.of_floats:
            return False
        letters: dict[str, int] = {}
        for operand, arg, number in zip(self.operands, args, numbers):
            if operand == CONSTANT:
                matches = number is not None
            elif isinstance(operand, str):
                matches = letters.setdefault(operand, arg) == arg
            else:
                matches = number == operand and not _is_negative_zero(number)
            if not matches:
                return False
        return True


CONSTANT = "constant"

FOLDS = (
    Fold("mul", ("x", 1), "x"),  # x * 1 = x
    Fold("mul", (1, "x"), "x"),  # 1 * x = x
    Fold("div", ("x", 1), "x"),  # x / 1 = x
    Fold("floordiv", ("x", 1), "x"),  # x // 1 = x
    Fold("add", ("x", 0), "x", of_floats=False),  # x + 0 = x, but -0.0 + 0.0 = 0.0
    Fold("add", (0, "x"), "x", of_floats=False),  # 0 + x = x, but 0.0 + -0.0 = 0.0
    Fold("sub", ("x", 0), "x"),  # x - 0 = x; it is x - -0.0 that makes 0.0 of -0.0
    Fold("minimum", ("x", "x"), "x"),  # min(x, x) = x
    Fold("maximum", ("x", "x"), "x"),  # max(x, x) = x
    Fold("where", (True, "x", "y"), "x"),  # where(True, x, y) = x
    Fold("where", (False, "x", "y"), "y"),  # where(False, x, y) = y
    Fold("where", ("c", "x", "x"), "x"),  # where(c, x, x) = x
    Fold("logical_and", (True, "x"), "x"),  # True & x = x
    Fold("logical_and", ("x", True), "x"),  # x & True = x
    Fold("logical_and", (False, "x"), False),  # False & x = False
    Fold("logical_and", ("x", False), False),  # x & False = False
    Fold("logical_and", ("x", "x"), "x"),  # x & x = x
    Fold("logical_or", (False, "x"), "x"),  # False | x = x
    Fold("logical_or", ("x", False), "x"),  # x | False = x
    Fold("logical_or", (True, "x"), True),  # True | x = True
    Fold("logical_or", ("x", True), True),  # x | True = True
    Fold("logical_or", ("x", "x"), "x"),  # x | x = x
    # comparisons of constants are Python's: a NaN equals nothing, 0.0 equals -0.0
    Fold("eq", (CONSTANT, CONSTANT), operator.eq),
    Fold("ne", (CONSTANT, CONSTANT), operator.ne),
    Fold("lt", (CONSTANT, CONSTANT), operator.lt),
    Fold("le", (CONSTANT, CONSTANT), operator.le),
    Fold("gt", (CONSTANT, CONSTANT), operator.gt),
    Fold("ge", (CONSTANT, CONSTANT), operator.ge),
)

FOLDS_OF: dict[str, list[Fold]] = {}
for _row in FOLDS:
    FOLDS_OF.setdefault(_row.op, []).append(_row)


def _is_negative_zero(number: Any) -> bool:
    return number == 0 and math.copysign(1, number) < 0
