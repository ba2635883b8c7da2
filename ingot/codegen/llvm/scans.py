"""Scans: the accumulator is carried from one step of a stage's loop to the next."""

from __future__ import annotations

import torch

from ingot.codegen.llvm.emitter import Emitter, Value, Variable
from ingot.codegen.llvm.scalar import TABLE, Accumulator, combine, identity, order_of
from ingot.codegen.llvm.types import FLOATS, REPRESENTATIONS, vector_type


class Running:
    """The accumulator of one scan.

    Where the lanes are steps of the loop (`across`), it is that of the last one, and a vector's
    values are combined with those before them by shifting the lanes; where they are points of an
    outer loop, each has its own.
    """

    def __init__(
        self, emitter: Emitter, kind: str, dtype: torch.dtype, across: bool, position: str
    ) -> None:
        self.emitter, self.kind, self.dtype, self.across = emitter, kind, dtype, across
        like = kind
        if kind == "logaddexp":
            like = "max"
        self.start = identity(like, dtype, emitter.constant, position)
        lanes = 1 if across else emitter.lanes
        self.variables = [emitter.variable(v.type, lanes) for v in self.start]
        for variable, value in zip(self.variables, self.start, strict=True):
            variable.store(value)

    def step(self, value: Accumulator, in_order: bool, present: Value) -> Accumulator:
        """`value`, of which the first lanes are `present`, combined with all before it.

        Floats whose partial results may overflow are combined `in_order`.
        """
        e, carried = self.emitter, tuple(map(Variable.load, self.variables))
        if not self.across:
            result = last = self._combined(carried, value)
        else:
            value = tuple(e.splat(v, e.lanes) for v in value)
            if in_order:
                result = self._one_by_one(carried, value)
            else:
                result = self._combined(carried, self._within(value))
            last = tuple(self._lane(v, present - 1) for v in result)
        for variable, new in zip(self.variables, last, strict=True):
            variable.store(new)
        return result

    def _within(self, value: Accumulator) -> Accumulator:
        """Each lane combined with those before it, in log2(lanes) steps."""
        e, lanes = self.emitter, self.emitter.lanes
        start = [e.splat(v, lanes) for v in self.start]
        distance = 1
        while distance < lanes:
            order = [lanes] * distance + list(range(lanes - distance))
            before = tuple(e.shuffle(v, s, order) for v, s in zip(value, start))
            value = self._combined(before, value)
            distance *= 2
        return value

    def _one_by_one(self, carried: Accumulator, value: Accumulator) -> Accumulator:
        e, (vector,) = self.emitter, value
        type, text, depth = vector_type(vector.type, e.lanes), "poison", vector.depth
        for lane in range(e.lanes):
            carried = self._combined(carried, (self._lane(vector, e.constant(lane, "i64")),))
            inserted = f"{vector.type} {carried[0].text}, i64 {lane}"
            text = e.here(f"insertelement {type} {text}, {inserted}", "", e.lanes).text
        return (Value(e, text, vector.type, e.lanes, max(depth, e.depth)),)

    def _lane(self, vector: Value, lane: Value) -> Value:
        type = vector_type(vector.type, vector.lanes)
        text = f"extractelement {type} {vector.text}, i64 {lane.text}"
        return self.emitter.place(text, vector.type, 1, max(vector.depth, lane.depth))

    def _combined(self, earlier: Accumulator, later: Accumulator) -> Accumulator:
        """Of equal extremes the later one counts, and NaN is the most extreme."""
        x, y = earlier[0], later[0]
        if self.kind == "logaddexp":
            return (_log_add_exp(REPRESENTATIONS[self.dtype].kind, x, y),)
        if self.kind in ("sum", "prod"):
            return combine(self.kind, self.dtype, earlier, later)
        e, relation = self.emitter, "ge" if self.kind.endswith("max") else "le"
        if x.type in FLOATS:
            take = e.compare("o" + relation, y, x) | e.compare("uno", y, y)
        else:
            take = e.compare(order_of(REPRESENTATIONS[self.dtype].kind) + relation, y, x)
        return tuple(e.select(take, b, a) for a, b in zip(earlier, later, strict=True))


def _log_add_exp(kind: str, x: Value, y: Value) -> Value:
    """log(e^x + e^y)."""
    e = x.emitter
    most, least = TABLE["maximum"][1](kind, x, y), TABLE["minimum"][1](kind, x, y)
    total = TABLE["log1p"][1](kind, TABLE["exp"][1](kind, least - most)) + most
    alike = e.compare("oeq", x, y) & e.compare("oeq", e.intrinsic("fabs", (x,)), float("inf"))
    return e.select(alike, x, total)
