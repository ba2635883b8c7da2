"""Loads that have a condition, outside of which they give 0, and when they may be made
everywhere."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.loops.expr import Symbol
from ingot.loops.ir import Instruction
from ingot.schedule.kernel import Stage

FEW = 16  # one in so many elements may be loaded for nothing


def is_left_out(stage: Stage, at: int) -> bool:
    """Whether all that reads a load chooses something else where the load's condition does not
    hold."""
    instructions = stage.body.instructions
    kept = (
        {s.value for s in stage.stores}
        | {a.value for a in stage.reductions}
        | {d.value for d in stage.scalars}
    )
    readers = [i for i in instructions if at in i.args]
    chosen = all(
        i.op == "where" and i.args[0] in instructions[at].args and at != i.args[2] for i in readers
    )
    return chosen and at not in kept


def holds_mostly(instructions: Sequence[Instruction], at: int, symbols: frozenset[Symbol]) -> bool:
    """Whether a condition is known to be about an index alone, and to hold for most of its values,
    or not to be about any of the symbols."""
    i = instructions[at]
    if i.op == "logical_and":
        return all(holds_mostly(instructions, k, symbols) for k in i.args)
    if i.op == "constant":
        return True
    left, right = ([instructions[k] for k in i.args] + [None, None])[:2]
    if left is None or right is None or left.op != "index" or right.op not in ("constant", "index"):
        return False
    index, limit = left.attrs[0], right.attrs[0]
    limit = limit if right.op == "constant" else limit.constant
    if index.symbols.isdisjoint(symbols):
        return True
    low, high = index.bounds
    if limit is None or low is None or high is None:
        return False
    left_out = {"ge": limit - low, "lt": high + 1 - limit}.get(i.op)
    return left_out is not None and left_out * FEW <= high + 1 - low
