"""One evaluation of a stage's body: its instructions, stores and reductions at the present point.

The loops around it (`kernel.py`) have bound their indices in `memory`; a fault that the code finds
is an entry of `errors`, and leaves the function with that entry's number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from ingot.codegen.llvm.emitter import Emitter, Value
from ingot.codegen.llvm.lookups import COUNT, Lookup, looked_up, lookups
from ingot.codegen.llvm.memory import Memory, fits_short
from ingot.codegen.llvm.reductions import Reduction
from ingot.codegen.llvm.scalar import TABLE, convert
from ingot.codegen.llvm.scans import Running
from ingot.codegen.llvm.streams import product_terms
from ingot.codegen.llvm.target import Target
from ingot.codegen.llvm.types import REPRESENTATIONS
from ingot.errors import unsupported
from ingot.loops.expr import ZERO, Expr, Symbol
from ingot.loops.ir import Fault, Instruction
from ingot.loops.ops import DIVISIONS
from ingot.loops.spaces import points_of
from ingot.schedule.kernel import Stage
from ingot.sequences import at

ZERO_DIVISION = Fault(RuntimeError, "ZeroDivisionError")


class Row(NamedTuple):
    """What differs between outer points that are computed together.

    The indices of the loops, where each buffer and row of scratch memory begins, what the stages
    have reduced, and the state of their scans.
    """

    bound: dict[Symbol, Value]
    bases: dict[str, Value]
    scalars: dict[str, Value]
    running: dict[Instruction, Running]


class BodyEmitter:
    """Emits bodies for `rows`, the outer points that are computed together."""

    stage: Stage
    running: dict[Instruction, Running]

    def __init__(
        self, lanes: int, symbols: Sequence[Symbol], target: Target, check_bounds: bool
    ) -> None:
        self.e = Emitter(
            lanes,
            target.vector_bytes,
            target.rounds_brains,
            estimates_roots=target.estimates_roots,
        )
        self.memory = Memory(self.e, {s: position for position, s in enumerate(symbols)})
        self.errors: list[Fault] = []
        self.scalars: dict[str, Value] = {}
        self.rows = [Row({}, self.memory.base, self.scalars, {})]
        self.present = self.e.constant(lanes, "i64")  # lanes in range
        if check_bounds:
            self.memory.fail_if = self._fail_if

    def _enter(self, row: Row) -> None:
        """Have what follows computed for one of the rows."""
        self.memory.bound.update(row.bound)
        self.memory.base, self.scalars, self.running = row.bases, row.scalars, row.running

    def _bodies(
        self, stage: Stage, reductions: list[list[Reduction]], copy: int, mask: Value | None
    ) -> None:
        """One evaluation of the body for each row, with a list of reductions each."""
        for row, of_row in zip(self.rows, reductions, strict=True):
            self._enter(row)
            self._body(stage, of_row, copy, mask)

    def _body(
        self, stage: Stage, reductions: list[Reduction], copy: int, mask: Value | None
    ) -> None:
        """One evaluation of the body; `mask` says which lanes count in the reductions."""
        body, self.stage = stage.body, stage
        values: list[Value] = []
        self.memory.strided = [i.attrs for i in body.loads if not i.args]
        found = self._lookups(stage, self.memory.vector)
        for position, instruction in enumerate(body.instructions):
            if position in found:
                lookup = found[position]
                values.append(looked_up(lookup, body.instructions, values, self._instruction))
            else:
                values.append(self._instruction(instruction, values, body.instructions))
        stores = []
        for store in stage.stores:
            dtype = body.instructions[store.value].dtype
            value = convert(values[store.value], dtype, self.memory.dtypes[store.buffer])
            stores.append((store.buffer, store.index, value, store.mode))
        self.memory.store_all(stores)
        for reduction in reductions:
            terms = product_terms(body, reduction.spec.value)
            if terms and reduction.spec.kind == "sum":
                factors = [(values[a], values[b]) for a, b in terms]
                reduction.add_products(copy, factors, mask)
                continue
            accumulator: tuple[Value, ...] = (values[reduction.spec.value],)
            if reduction.spec.kind.startswith("arg"):
                accumulator += (self._position(stage),)
            reduction.add(copy, accumulator, mask)
        for define in stage.scalars:
            self.scalars[define.name] = values[define.value]

    def _lookups(self, stage: Stage, vector: Symbol | None) -> dict[int, Lookup]:
        """What of a stage's body is looked up where the iterations of `vector` fill the lanes."""
        e = self.e
        if vector is None or vector not in stage.loops:
            return {}
        if (e.lanes, e.vector_bytes) != (COUNT, 64):
            return {}
        return lookups(stage.body, stage.values, vector)

    def _position(self, stage: Stage) -> Value:
        """The number of the present point in the row-major order of the stage's loops."""
        position: Expr = ZERO
        for level, loop in enumerate(stage.loops):
            position = position + loop * points_of(stage.loops[level + 1 :])
        return self.memory.index(position, self._position_type(stage))

    @staticmethod
    def _position_type(stage: Stage) -> str:
        """The type of the numbers of a stage's points, and of one more that stands for none."""
        if fits_short(points_of(stage.loops)):
            return "i32"
        return "i64"

    # -- instructions ------------------------------------------------------------------------------

    def _instruction(
        self, i: Instruction, values: list[Value], program: Sequence[Instruction]
    ) -> Value:
        args = at(values, i.args)
        if i.op in _STRUCTURAL:
            return getattr(self, _STRUCTURAL[i.op])(i, args, program)
        source = program[i.args[-1]].dtype
        row = TABLE.get(i.op)
        if row is None or source not in row[0] and i.op != "where":
            raise unsupported("no-code", f"no code for {i.op} of {source}")
        if i.op in DIVISIONS and not source.is_floating_point:
            args[1] = self._divisor(args[1])
        return row[1](REPRESENTATIONS[source].kind, *args)

    def _divisor(self, b: Value) -> Value:
        """`b`, or 1 where it is 0, which is reported before."""
        if b.constant and b.text != "0":
            return b
        zero = self.e.compare("eq", b, 0)
        self._fail_if(zero, ZERO_DIVISION, None)
        return self.e.select(zero, 1, b)

    def _fail_if(self, bad: Value, fault: Fault, condition: Value | None) -> None:
        """Leave the function with `fault` if a lane is `bad` that is in range and meets the
        `condition`."""
        e, memory = self.e, self.memory
        if condition is not None:
            bad = bad & condition
        if memory.mask is not None and bad.lanes > 1:
            bad = bad & memory.mask
        test = e.any_lane(bad)
        check = (test.text, fault)
        if any(check in scope.checked for scope in e.scopes):
            return
        if fault not in self.errors:
            self.errors.append(fault)
        depth, fine = memory.sure_depth(test.depth), e.name("fine")
        e.scopes[depth].checked.add(check)
        number = self.errors.index(fault)
        e.line(f"br i1 {test.text}, label %fail{number}, label %{fine}, !prof !0", depth)
        e.line(f"{fine}:", depth)

    def _constant(self, i: Instruction, args: list[Value], program: Sequence[Instruction]) -> Value:
        number, type = i.attrs[0], REPRESENTATIONS[i.dtype].register
        if i.dtype is torch.bfloat16:  # which is computed with as its bits
            number = torch.tensor(number, dtype=i.dtype).view(torch.int16).item()
        return self.e.constant(number, type)

    def _index(self, i: Instruction, args: list[Value], program: Sequence[Instruction]) -> Value:
        return self.memory.index(i.attrs[0])

    def _load(self, i: Instruction, args: list[Value], program: Sequence[Instruction]) -> Value:
        return self.memory.load(i.attrs[0], i.attrs[1], args[0] if args else None)

    def _scalar(self, i: Instruction, args: list[Value], program: Sequence[Instruction]) -> Value:
        return self.scalars[i.attrs[0]]

    def _running(self, i: Instruction, args: list[Value], program: Sequence[Instruction]) -> Value:
        running, source = self.running[i], program[i.args[0]].dtype
        if running.kind.startswith("arg"):
            _, position = running.step((args[0], self._position(self.stage)), False, self.present)
            return self.e.cast("sext", position, "i64")
        in_order = source.is_floating_point and running.kind == "prod"
        return convert(running.step((args[0],), in_order, self.present)[0], source, i.dtype)

    def _convert(self, i: Instruction, args: list[Value], program: Sequence[Instruction]) -> Value:
        return convert(args[0], program[i.args[0]].dtype, i.dtype)

    def _indirect(self, i: Instruction, args: list[Value], program: Sequence[Instruction]) -> Value:
        e = self.e
        symbol, bound, fault = i.attrs
        extent, value = self.memory.index(bound), args[0]
        wrapped = e.select(e.compare("slt", value, 0), value + extent, value)
        outside = e.compare("uge", wrapped, extent)
        self._fail_if(outside, fault, args[1] if len(args) > 1 else None)
        self.memory.bound[symbol] = wrapped
        return wrapped


# The methods that emit the ops outside of the scalar op table.
_STRUCTURAL = {
    "constant": "_constant",
    "index": "_index",
    "load": "_load",
    "scalar": "_scalar",
    "indirect": "_indirect",
    "running": "_running",
    "to": "_convert",
}
