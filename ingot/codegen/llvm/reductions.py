"""The accumulators of a reduction: filled by copies of a body, merged at the end of its loops."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ingot.codegen.llvm.emitter import Emitter, Value, Variable
from ingot.codegen.llvm.scalar import Accumulator, combine, convert, identity
from ingot.schedule.kernel import Accumulate

BLOCK = 32  # additions in a row to one accumulator of a sum: longer chains have larger errors


class Reduction:
    """The accumulators of one `Accumulate`: one per unrolled copy, and a wider one for long sums.

    The copies are emptied into the wider one, of the LLVM type `wide`. No type is wider than a
    double, so a sum of doubles is compensated: `error` is the sum of its rounding errors.
    """

    def __init__(
        self,
        emitter: Emitter,
        spec: Accumulate,
        dtype: torch.dtype,
        copies: int,
        wide: str | None,
        position: str,
    ) -> None:
        self.emitter, self.spec, self.dtype = emitter, spec, dtype
        lanes = emitter.lanes
        self.start = identity(spec.kind, dtype, emitter.constant, position)
        self.copies = [[emitter.variable(v.type, lanes) for v in self.start] for _ in range(copies)]
        self.wide = emitter.variable(wide, lanes) if wide else None
        self.error = emitter.variable("double", lanes) if wide and dtype is torch.float64 else None
        self._reset()
        for variable in (self.wide, self.error):
            if variable is not None:
                variable.store(emitter.constant(0.0, variable.type))

    def _reset(self) -> None:
        for copy in self.copies:
            for variable, value in zip(copy, self.start, strict=True):
                variable.store(value)

    def add(self, copy: int, value: Accumulator, mask: Value | None) -> None:
        """Combine `value` with a copy's accumulator, in the lanes of the mask."""
        e = self.emitter
        old = tuple(map(Variable.load, self.copies[copy]))
        new = combine(self.spec.kind, self.dtype, old, value)
        for variable, before, after in zip(self.copies[copy], old, new, strict=True):
            variable.store(after if mask is None else e.select(mask, after, before))

    def add_products(
        self, copy: int, factors: Sequence[tuple[Value, Value]], mask: Value | None
    ) -> None:
        """Add products to a copy's sum, each in one rounding, in the lanes of the mask."""
        (variable,), e = self.copies[copy], self.emitter
        before = after = variable.load()
        for a, b in factors:
            after = e.fma(a, b, after)
        variable.store(after if mask is None else e.select(mask, after, before))

    def _merged(self) -> Accumulator:
        values = []
        for copy in self.copies:
            values.append(tuple(map(Variable.load, copy)))
        while len(values) > 1:
            values = [
                combine(self.spec.kind, self.dtype, a, b)
                for a, b in zip(values[::2], values[1::2], strict=True)
            ]
        return values[0]

    def flush(self) -> None:
        """Empty the accumulators into the wider one."""
        if self.wide is None:
            return
        before, more = self.wide.load(), self._merged()[0]
        more = self.emitter.cast("fpext", more, self.wide.type)
        after = before + more
        self.wide.store(after)
        if self.error is not None:
            added = after - before
            rounding_error = (before - (after - added)) + (more - added)
            self.error.store(self.error.load() + rounding_error)
        self._reset()

    def _total(self) -> Value:
        """The sum in the wider accumulator."""
        assert self.wide is not None
        total = self.wide.load()
        if self.error is None:
            return total
        error = self.error.load()
        finite = self.emitter.compare("ord", error, error)
        return total + self.emitter.select(finite, error, 0.0)

    def result(self, across_lanes: bool) -> Value:
        """The reduced value, of the type of `spec.dtype`."""
        dtype = self.dtype
        values = self._merged()
        if self.wide is not None:
            self.flush()
            values = (self._total(),)
            if self.wide.type == "double":
                dtype = torch.float64
        while across_lanes and values[0].lanes > 1:
            low, high = zip(*map(self.emitter.half_vectors, values), strict=True)
            values = combine(self.spec.kind, dtype, low, high)
        if self.spec.kind.startswith("arg"):
            return self.emitter.cast("sext", values[1], "i64")
        return convert(values[0], dtype, self.spec.dtype)
