"""Numbers by which a body multiplies its results, and which can be applied elsewhere.

In go the bodies of attention's weights; out come bodies that multiply less often. Their results
are the same but for rounding: zeros and infinities, which a mask puts in place of values, stay.
"""

from __future__ import annotations

import math

import torch

from ingot.loops.ir import Body, BodyBuilder, Instruction

_LOG2_E = math.log2(math.e)
_LEAST, _MOST = 2.0**-12, 2.0**12
"""Between these a factor makes no number overflow that would not come near it anyway."""


def without_factor(body: Body) -> tuple[Body, float]:
    """A body without the positive number that its first result is multiplied by, and the number;
    1 if there is none."""
    builder = BodyBuilder()
    positions = builder.copy(body)
    first, *others = map(positions.__getitem__, body.results)
    taken = _Factors(builder).taken(first)
    if taken is None:
        return body, 1.0
    first, factor = taken
    return builder.body(first, *others).without_dead(), factor


def with_powers_of_two(body: Body) -> Body:
    """A body in which exponentials in float32 are powers of 2.

    Their factor is joined with others that are there. What is subtracted, which may be the same for
    many elements, has it before.
    """
    builder = BodyBuilder()
    factors = _Factors(builder)

    def visit(builder: BodyBuilder, i: Instruction) -> int:
        if i.op != "exp" or i.dtype is not torch.float32:
            return builder.append(i)
        return builder.emit("exp2", (factors.times(i.args[0], _LOG2_E),), i.dtype)

    positions = builder.copy(body, visit)
    return builder.body(*map(positions.__getitem__, body.results)).without_dead()


class _Factors:
    """Takes factors out of the values of a body, and puts one into them; each value once."""

    def __init__(self, builder: BodyBuilder) -> None:
        self.builder = builder
        self.without: dict[int, tuple[int, float] | None] = {}
        self.products: dict[tuple[int, float], int] = {}

    def taken(self, position: int) -> tuple[int, float] | None:
        """A value without its factor, and the factor; None if it has none that could be taken."""
        if position not in self.without:
            self.without[position] = self._taken(position)
        return self.without[position]

    def _taken(self, position: int) -> tuple[int, float] | None:
        builder, i = self.builder, self.builder.instructions[position]
        if i.op == "mul":
            for value, number in (i.args, i.args[::-1]):
                factor = builder.constant_of(number)
                if factor is not None and _LEAST <= factor <= _MOST:
                    return value, float(factor)
        if i.op != "where":
            return None
        condition, *branches = i.args
        factors = set()
        for k, branch in enumerate(branches):
            if not self.has_any(branch):
                taken = self.taken(branch)
                if taken is None:
                    return None
                branches[k] = taken[0]
                factors.add(taken[1])
        if len(factors) != 1:
            return None
        return builder.emit("where", (condition, *branches), i.dtype), factors.pop()

    def times(self, position: int, factor: float) -> int:
        """The product of a value and a number, which goes into numbers that are there."""
        key = position, factor
        if key not in self.products:
            self.products[key] = self._times(position, factor)
        return self.products[key]

    def _times(self, position: int, factor: float) -> int:
        builder, i = self.builder, self.builder.instructions[position]
        if i.dtype is torch.float32:
            if i.op in ("add", "sub"):
                left, right = i.args
                args = self.times(left, factor), self.times(right, factor)
                return builder.emit(i.op, args, i.dtype)
            if i.op == "where":
                condition, *branches = i.args
                for k, branch in enumerate(branches):
                    if not self.has_any(branch):
                        branches[k] = self.times(branch, factor)
                return builder.emit(i.op, (condition, *branches), i.dtype)
            taken = self.taken(position)
            if taken is not None:
                position, factor = taken[0], taken[1] * factor
        return builder.emit("mul", (position, builder.constant(factor, i.dtype)), i.dtype)

    def has_any(self, position: int) -> bool:
        """Whether a value is the same times any positive number."""
        number = self.builder.constant_of(position)
        return number is not None and (number == 0 or math.isinf(number))
