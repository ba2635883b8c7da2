"""Floats that are rounded to bfloat16 and computed with as floats, in two multiplications.

65535 * v, rounded to a float, is 65536 * v less v rounded to a bfloat16: both are multiples of the
last place of 65536 * v. So one multiply-add has the rounded number, ties to even included. That
holds for normal numbers whose multiple does not overflow, and a zero loses its sign.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce
from typing import NamedTuple

import torch

from ingot.codegen.llvm.emitter import Value
from ingot.codegen.llvm.types import vector_type
from ingot.loops.ir import Instruction

# Sizes that an operand which is the same in all lanes has, or it takes the slow way.
LEAST, MOST = 2.0**-30, 2.0**30
SMALLEST, LARGEST = 2.0**-126, 2.0**111  # that are rounded in this way


class Span(NamedTuple):
    """A value is 0, or its size is from `least` to `most`.

    That holds if the size of each of the values at the positions `given` is from `LEAST` to `MOST`.
    """

    least: float
    most: float
    given: frozenset[int]


class Rounding(NamedTuple):
    """The position of a float that is rounded to a bfloat16, and is again a float then.

    `given` are the positions of what must not be too small or too large."""

    value: int
    given: frozenset[int]


def fast_roundings(decided: Collection[int], program: Sequence[Instruction]) -> dict[int, Rounding]:
    """The roundings among the `decided` values, by the position of the float that is again made.

    All other values of the program are the same in all lanes.
    """
    spans: dict[int, Span | None] = {}
    found = {}
    for k in decided:
        spans[k] = _span(k, program, spans)
        source = _rounded(k, program)
        if source is None:
            continue
        span = spans.get(source)
        if span is not None and span.least >= SMALLEST and span.most < LARGEST:
            found[k] = Rounding(source, span.given)
    return found


def _rounded(position: int, program: Sequence[Instruction]) -> int | None:
    """The float that is a bfloat16 on its way to the float at a position."""
    last = program[position]
    if last.op != "to" or last.dtype is not torch.float32:
        return None
    middle = program[last.args[0]]
    if middle.op != "to" or middle.dtype is not torch.bfloat16:
        return None
    source = middle.args[0]
    return source if program[source].dtype is torch.float32 else None


def _span(
    position: int, program: Sequence[Instruction], spans: dict[int, Span | None]
) -> Span | None:
    """The span of a float; None if it is not known."""
    i = program[position]
    of_args = []
    if i.op in ("to", "add", "sub", "mul"):
        for k in i.args:
            if k not in spans:
                spans[k] = _given(k, program)
            of_args.append(spans[k])
    if i.op == "to" and not program[i.args[0]].dtype.is_floating_point:
        return Span(1.0, 2.0**64, frozenset())
    known = [span for span in of_args if span is not None]
    if not known or len(known) < len(of_args):
        return None
    given = reduce(frozenset.union, [span.given for span in known])
    least, most = min(s.least for s in known), max(s.most for s in known)
    if i.op == "mul":
        a, b = known
        return Span(a.least * b.least, a.most * b.most, given)
    if i.op == "to":  # a rounding, which is no larger than this
        return Span(least / 2, most * 2, given)
    return Span(least * 2.0**-24, 2 * most, given)  # multiples of the last place of the smaller one


def _given(position: int, program: Sequence[Instruction]) -> Span | None:
    """The span of what is the same in all lanes."""
    i = program[position]
    if i.dtype not in (torch.float32, torch.bfloat16):
        return None
    if i.op == "constant":
        size = abs(i.attrs[0])
        return Span(size or 1.0, size or 1.0, frozenset())
    if i.op == "to" and not program[i.args[0]].dtype.is_floating_point:
        return Span(1.0, 2.0**64, frozenset())
    if i.dtype is torch.float32:
        return Span(LEAST, MOST, frozenset((position,)))
    return None


def rounded(
    rounding: Rounding, program: Sequence[Instruction], values: Sequence[Value],
    given: Sequence[Value],
) -> Value:  # fmt: skip
    """The rounded number of each lane; `given` has the values that are the same in all of them."""
    value = values[rounding.value]
    e = value.emitter
    instruction = program[rounding.value]
    factors = [values[k] for k in instruction.args]
    if instruction.op == "mul" and all(_is_brain(k, program) for k in instruction.args):
        # their product is exact: what is rounded is a multiple of one of them, times the other
        outer, inner = sorted(factors, key=lambda factor: factor.depth)
    else:
        outer, inner = e.constant(1.0, "float"), value
    usual = e.fma(_times(outer, 65536.0), inner, -(_times(outer, 65535.0) * inner))
    conditions = []
    for k in sorted(rounding.given):
        size = e.bits(given[k]) & 0x7FFFFFFF
        low, high = _bits(LEAST), _bits(MOST)
        conditions.append(e.compare("uge", size - low, high - low))
    if not conditions:
        return usual
    rare = reduce(lambda a, b: a | b, conditions)
    return _unless_rare(rare, usual, value)


def _times(a: Value, number: float) -> Value:
    """A multiple; of 1, the constant."""
    return a.emitter.constant(number, a.type) if a.constant else a * number


def _is_brain(position: int, program: Sequence[Instruction]) -> bool:
    """Whether a float was a bfloat16."""
    i = program[position]
    return i.op == "to" and program[i.args[0]].dtype is torch.bfloat16


def _bits(value: float) -> int:
    return int(torch.tensor(value).view(torch.int32).item())


def _unless_rare(rare: Value, usual: Value, value: Value) -> Value:
    """`usual`, or the rounded bits of `value` where that is `rare`."""
    e, lanes = value.emitter, usual.lanes
    floats, integers = vector_type("float", lanes), vector_type("i32", lanes)
    names = ["%" + e.name() for _ in range(6)]
    bits, above, last, half, more, kept = names
    lines = (
        f"{bits} = bitcast {floats} {e.argument(value, lanes)} to {integers}",
        f"{above} = lshr {integers} {bits}, splat (i32 16)",
        f"{last} = and {integers} {above}, splat (i32 1)",
        f"{half} = add {integers} {bits}, splat (i32 32767)",
        f"{more} = add {integers} {half}, {last}",
        f"{kept} = and {integers} {more}, splat (i32 -65536)",
    )
    return e.unless_rare(rare, usual, f"bitcast {integers} {kept} to {floats}", lines)
