"""A kernel over the batches and heads of attention: its points, and the rows of its operands."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ingot.codegen.llvm.emitter import Emitter, Value
from ingot.codegen.llvm.function import Function, function_of
from ingot.codegen.llvm.memory import Memory
from ingot.codegen.llvm.target import Target
from ingot.errors import OutOfBounds
from ingot.loops.expr import Expr, Symbol, as_expr
from ingot.loops.ir import Fault
from ingot.schedule.kernel import Operand, Parameter


class HeadEmitter:
    """A function over the parallel range, of which each point is of one batch and head."""

    def __init__(
        self,
        parameters: Sequence[Parameter],
        symbols: Sequence[Symbol],
        target: Target,
        check_bounds: bool,
    ) -> None:
        self.parameters, self.check_bounds = parameters, check_bounds
        self.faults: list[Fault] = []
        self.lanes = target.vector_bytes // 4
        self.bytes = target.vector_bytes
        # The blocks are made for the registers there are: LLVM may follow all of their addresses.
        self.e = Emitter(self.lanes, target.vector_bytes, most_followed=sys.maxsize)
        self.memory = Memory(self.e, {s: position for position, s in enumerate(symbols)})
        self.vector = f"<{self.lanes} x float>"

    def begin(self) -> None:
        """What is done once for all points."""

    def point(self, point: Value) -> None:
        raise NotImplementedError

    def scratch_bytes(self) -> Expr:
        raise NotImplementedError

    def function(self) -> Function:
        self.begin()
        with self.e.loop(
            self.value("%begin", "i64"), self.value("%end", "i64"), 1, sure=True
        ) as point:
            self.point(point)
        return function_of(self.e, len(self.parameters), self.faults, self.scratch_bytes())

    # -- small things ------------------------------------------------------------------------------

    def value(self, text: str, type: str) -> Value:
        return Value(self.e, text, type, 1, 0)

    def number(self, value: int | Expr) -> Value:
        return self.memory.index(as_expr(value))

    def smaller(self, a: Value, b: Value) -> Value:
        return self.e.intrinsic("smin", (a, b))

    def at(self, operand: Operand, batch: Value, head: Value) -> Value:
        """The address of an operand's array for one batch and head."""
        of_batch, of_head = map(self.number, operand.strides[:2])
        index = batch * of_batch + head * of_head + self.number(operand.offset)
        return self.e.pointer(self.value(f"%p{operand.parameter}", "ptr"), "float", index)

    def load(self, pointer: Value, aligned: bool = False) -> Value:
        alignment = 4
        if aligned:
            alignment = self.bytes
        return self.e.here(
            f"load {self.vector}, ptr {pointer.text}, align {alignment}", "float", self.lanes
        )

    def load_scalar(self, pointer: Value) -> Value:
        return self.e.here(f"load float, ptr {pointer.text}, align 4", "float", 1)

    def store(self, value: Value, pointer: Value, aligned: bool = True) -> None:
        text = self.e.argument(value, self.lanes)
        self.e.line(
            f"store {self.vector} {text}, ptr {pointer.text}, align {self.bytes if aligned else 4}"
        )

    def first_lanes(self, count: int | Value) -> str:
        if isinstance(count, Value):
            return self.e.compare("slt", self.e.iota("i64"), count).text
        lanes = ["i1 true"] * count + ["i1 false"] * (self.lanes - count)
        return f"<{', '.join(lanes)}>"

    def load_first(self, pointer: Value, count: int | Value) -> Value:
        """The first `count` elements, zeros in the other lanes."""
        if not isinstance(count, Value) and count == self.lanes:
            return self.load(pointer)
        name = f"llvm.masked.load.v{self.lanes}f32.p0"
        self.e.declare(self.vector, name, f"ptr, i32, <{self.lanes} x i1>, {self.vector}")
        mask = f"<{self.lanes} x i1> {self.first_lanes(count)}"
        text = f"ptr {pointer.text}, i32 4, {mask}, {self.vector} zeroinitializer"
        return self.e.here(f"call {self.vector} @{name}({text})", "float", self.lanes)

    def store_first(self, value: Value, pointer: Value, count: int) -> None:
        if count == self.lanes:
            return self.store(value, pointer, aligned=False)
        name = f"llvm.masked.store.v{self.lanes}f32.p0"
        self.e.declare("void", name, f"{self.vector}, ptr, i32, <{self.lanes} x i1>")
        mask = f"<{self.lanes} x i1> {self.first_lanes(count)}"
        text = f"{self.vector} {value.text}, ptr {pointer.text}, i32 4, {mask}"
        return self.e.line(f"call void @{name}({text})")

    def check(self, operand: Operand, pointer: Value, count: int | Value = 1) -> Value:
        """`pointer`, from which on `count` elements must be within the operand's buffer.

        That is checked where bounds are.
        """
        length = self.parameters[operand.parameter].length
        if not self.check_bounds or length is None:
            return pointer
        e, buffer = self.e, self.value(f"%p{operand.parameter}", "ptr")
        message = f"a kernel touches memory outside of its buffer {buffer.text[1:]}"
        fault = Fault(OutOfBounds, message)
        if fault not in self.faults:
            self.faults.append(fault)
        offset = e.cast("ptrtoint", pointer, "i64") - e.cast("ptrtoint", buffer, "i64")
        bytes_ = self.number(4 * length)
        first, last = (e.compare("uge", at, bytes_) for at in (offset, offset + 4 * (count - 1)))
        fine, number = e.name("fine"), self.faults.index(fault)
        e.line(f"br i1 {(first | last).text}, label %fail{number}, label %{fine}, !prof !0")
        e.line(f"{fine}:")
        return pointer


def known(size: Expr) -> int:
    assert size.constant is not None
    return size.constant
