"""Loads with a condition, outside of which they give 0, and when they may be made everywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ingot.loops.expr import Symbol
from ingot.loops.ir import Instruction
from ingot.schedule.kernel import Stage

FEW = 16  # one in so many elements may be loaded for nothing


def is_left_out(stage: Stage, at: int) -> bool:
    """Whether each reader of a load chooses another value where the load's condition fails."""
    instructions = stage.body.instructions
    if at in stage.values:
        return False
    for i in instructions:
        if at in i.args:
            chooses = i.op == "where" and i.args[0] in instructions[at].args
            if not chooses or at == i.args[2]:
                return False
    return True


def holds_mostly(instructions: Sequence[Instruction], at: int, symbols: frozenset[Symbol]) -> bool:
    """Whether a condition is known to hold for most values of an index.

    One of an index without the `symbols` does: it holds for all of their values or none.
    """
    i = instructions[at]
    if i.op == "logical_and":
        return all(holds_mostly(instructions, k, symbols) for k in i.args)
    if i.op == "constant":
        return True
    arguments = [instructions[k] for k in i.args]
    if len(arguments) < 2 or arguments[0].op != "index" or not is_number(arguments[1]):
        return False
    index, limit = arguments[0].attrs[0], number_of(arguments[1])
    if index.symbols.isdisjoint(symbols):
        return True
    low, high = index.bounds
    if limit is None or low is None or high is None:
        return False
    left_out = {"ge": limit - low, "lt": high + 1 - limit}.get(i.op)
    return left_out is not None and left_out * FEW <= high + 1 - low


def is_number(i: Instruction) -> bool:
    return i.op in ("constant", "index")


def number_of(i: Instruction) -> Any:
    """The number that a constant, or an index that is one, has; None if it is not known."""
    if i.op == "constant":
        return i.attrs[0]
    return i.attrs[0].constant
