"""Sums of powers in the pass over a row that finds its largest element, where rows are taken in
steps. Softmax, its logarithm, logsumexp and cross-entropy read a row once before they know what to
divide by (Milakov and Gimelshein, 2018).

A thread keeps the largest element that it has met and the sum of exp(v - largest); where a larger
one comes, the sum is scaled. The sums of the threads are joined by their largest elements, and what
the program subtracts in place of the largest element, as logsumexp does where that is infinite, is
made good by one factor a row. Of other numbers, as the mean, that may be -inf where the largest
element is not, no factor tells whether elements are -inf as well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from ingot.loops.ir import Body, BodyBuilder, Instruction
from ingot.schedule.kernel import Accumulate, Define, Kernel, Stage, loans

# a reduction: the sum of exp(v - top), where top is the largest v, or 0 where that is infinite
POWERS = "powers"
Defined = dict[str, tuple[Body, int]]  # scalars, and what they are


def in_one_pass(kernel: Kernel) -> Kernel:
    """The kernel without passes over rows that only sum powers of what an earlier one finds the
    largest of."""
    stages = list(kernel.stages)
    defined: Defined = {}
    for stage in stages:
        for d in stage.scalars:
            defined[d.name] = (stage.body, d.value)
    for later, second in enumerate(stages):
        for earlier in range(later):
            if _meets_what_was_stored(kernel, stages[earlier:later], second):
                continue
            pair = _joined(stages[earlier], second, defined)
            if pair is not None:
                stages[earlier], stages[later] = pair
                break
    if stages != list(kernel.stages):
        return replace(kernel, stages=tuple(stages))
    return kernel


def _meets_what_was_stored(kernel: Kernel, before: Sequence[Stage], stage: Stage) -> bool:
    """Whether a stage may read what those before it have written."""
    stored = set()
    for s in before:
        for store in s.stores:
            stored.add(store.buffer)
    for k, to in loans(kernel.parameters):
        if kernel.parameters[to].name in stored:
            stored.add(kernel.parameters[k].name)
    return not stored.isdisjoint(stage.body.reads)


def _joined(first: Stage, second: Stage, defined: Defined) -> tuple[Stage, Stage] | None:
    """The stages that the two become, of which the second has no loops: None where it does more
    than sum powers."""
    if not second.loops or first.loops != second.loops or second.stores or not second.reductions:
        return None
    numbers: dict[object, int] = {}
    values, others = _numbered(first.body, numbers), _numbered(second.body, numbers)
    largest: dict[int, Accumulate] = {}
    for a in first.reductions:
        if a.kind == "max" and a.dtype is first.body.instructions[a.value].dtype:
            largest[values[a.value]] = a
    sums: list[Accumulate] = []
    after = _After(second.body)
    for a in second.reductions:
        power = _power(second.body.instructions, a)
        if power is None:
            return None
        value, shift = power
        top = largest.get(others[value])
        if top is None or not _is_top(second.body, shift, _Top.of(first.body, top), defined):
            return None
        sums.append(Accumulate(POWERS, top.value, f"{a.name}_powers", top.dtype))
        after.sum_of_powers(a, shift, top.name, sums[-1])
    return replace(first, reductions=(*first.reductions, *sums)), after.stage()


def _power(body: Sequence[Instruction], a: Accumulate) -> tuple[int, int] | None:
    """The instructions v and t where exp(v - t) is summed."""
    power = body[a.value]
    if a.kind != "sum" or power.op != "exp" or power.dtype not in (torch.float32, torch.float64):
        return None
    difference = body[power.args[0]]
    if difference.op == "sub":
        return (difference.args[0], difference.args[1])
    return None


class _Top(NamedTuple):
    """A row's largest element: the scalar, and the types that it can have without being rounded."""

    name: str
    exact: set[torch.dtype]

    @staticmethod
    def of(body: Body, a: Accumulate) -> _Top:
        value = body.instructions[a.value]
        exact = {value.dtype}
        if value.op == "to":
            exact.add(body.instructions[value.args[0]].dtype)
        return _Top(a.name, exact)


def _is_top(body: Body, at: int, top: _Top, defined: Defined) -> bool:
    """Whether a value is a row's largest element, or, for some, finite constants."""
    i = body.instructions[at]
    if i.op == "scalar":
        return i.attrs[0] == top.name or (
            i.attrs[0] in defined and _is_top(*defined[i.attrs[0]], top, defined)
        )
    if i.op == "constant":
        return math.isfinite(i.attrs[0])
    if i.op not in ("where", "to") or i.dtype not in top.exact:
        return False
    if i.op == "where" and not _is_of_row(body, i.args[0]):
        return False
    return all(_is_top(body, k, top, defined) for k in i.args[i.op == "where" :])


def _is_of_row(body: Body, at: int) -> bool:
    i = body.instructions[at]
    return i.op in ("scalar", "constant") or (
        bool(i.args) and all(_is_of_row(body, k) for k in i.args)
    )


def _numbered(body: Body, numbers: dict[object, int]) -> list[int]:
    """A number for each instruction, the same for those that compute the same."""
    values: list[int] = []
    for i in body.instructions:
        attrs: object = i.attrs
        if i.op == "constant":
            attrs = repr(i.attrs)
        key = i.op, i.dtype, attrs, tuple(map(values.__getitem__, i.args))
        values.append(numbers.setdefault(key, len(numbers)))
    return values


class _After:
    """The stage that makes the sums of exp(v - t) of those of powers."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self.builder = BodyBuilder()
        self.defined: list[Define] = []

    def stage(self) -> Stage:
        return Stage((), self.builder.body(), (), (), tuple(self.defined))

    def sum_of_powers(self, a: Accumulate, shift: int, top: str, powers: Accumulate) -> None:
        emit, dtype = self.builder.emit, powers.dtype
        largest = emit("scalar", (), dtype, (top,))
        infinity = self.builder.constant(math.inf, dtype)
        zero = self.builder.constant(0.0, dtype)
        infinite = emit("eq", (emit("abs", (largest,), dtype), infinity), torch.bool)
        subtracted = emit("where", (infinite, zero, largest), dtype)
        shifts = self.builder.copy(self.body, only=self.body.needed([shift]))
        factor = emit("exp", (emit("sub", (subtracted, shifts[shift]), dtype),), dtype)
        total = emit("scalar", (), dtype, (powers.name,))
        total = emit("mul", (total, factor), dtype)
        if a.dtype is not dtype:
            total = emit("to", (total,), a.dtype)
        self.defined.append(Define(a.name, total))
