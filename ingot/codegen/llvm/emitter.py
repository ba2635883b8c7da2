"""Writes one LLVM function as text.

The function is a nest of scopes, one per open loop. A value knows the depth of the scope it was
computed in and how many lanes it has; an operation is placed in the outermost scope where all its
operands exist, as a scalar while none of them is a vector, and only once: loop-invariant code
motion and common subexpression elimination happen while writing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Union

from ingot.codegen.llvm.types import BITS, FLOATS, SAME_SIZE_INTEGER, mangled, vector_type
from ingot.loops.ir import Fault

Operand = Union["Value", int, float]

# arrays whose addresses LLVM may follow through a loop: it has no registers for more
MOST_FOLLOWED = 8


class Value:
    """An SSA value or a constant: LLVM text, element type, lanes, and the depth of its scope.

    The arithmetic operators emit IEEE operations on floats and wrapping ones on integers; a Python
    number beside a value becomes a constant of its type.
    """

    __slots__ = ("emitter", "text", "type", "lanes", "depth", "constant")

    def __init__(
        self, emitter: Emitter, text: str, type: str, lanes: int, depth: int, constant: bool = False
    ) -> None:
        self.emitter = emitter
        self.text = text
        self.type = type
        self.lanes = lanes
        self.depth = depth
        self.constant = constant

    def __add__(self, other: Operand) -> Value:
        return self.emitter.binary("fadd" if self.type in FLOATS else "add", self, other)

    def __sub__(self, other: Operand) -> Value:
        return self.emitter.binary("fsub" if self.type in FLOATS else "sub", self, other)

    def __mul__(self, other: Operand) -> Value:
        return self.emitter.binary("fmul" if self.type in FLOATS else "mul", self, other)

    def __truediv__(self, other: Operand) -> Value:
        return self.emitter.binary("fdiv", self, other)

    def __radd__(self, other: Operand) -> Value:
        return self.emitter.like(self, other) + self

    def __rsub__(self, other: Operand) -> Value:
        return self.emitter.like(self, other) - self

    def __rmul__(self, other: Operand) -> Value:
        return self.emitter.like(self, other) * self

    def __rtruediv__(self, other: Operand) -> Value:
        return self.emitter.like(self, other) / self

    def __neg__(self) -> Value:
        if self.type in FLOATS:
            return self.emitter.instruction("fneg", (self,), self.type)
        return self.emitter.like(self, 0) - self

    def __and__(self, other: Operand) -> Value:
        return self.emitter.binary("and", self, other)

    def __or__(self, other: Operand) -> Value:
        return self.emitter.binary("or", self, other)

    def __xor__(self, other: Operand) -> Value:
        return self.emitter.binary("xor", self, other)

    def __lshift__(self, other: Operand) -> Value:
        return self.emitter.binary("shl", self, other)

    def __rshift__(self, other: Operand) -> Value:
        """Shift right, filling with zeros."""
        return self.emitter.binary("lshr", self, other)

    def __invert__(self) -> Value:
        return self ^ -1


class Scope:
    """The text of one open loop body, what has been computed and checked in it, and whether it is
    sure to run at least once."""

    __slots__ = ("lines", "known", "checked", "sure")

    def __init__(self, sure: bool) -> None:
        self.lines: list[str] = []
        self.known: dict[str, Value] = {}
        self.checked: set[tuple[str, Fault]] = set()
        self.sure = sure


def float_text(value: float, type: str) -> str:
    """The exact LLVM spelling of `value` rounded to `type`."""
    if type == "half":
        return f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}"
    if type == "float":
        try:
            value = struct.unpack("<f", struct.pack("<f", value))[0]
        except OverflowError:
            if value > 0:
                value = float("inf")
            else:
                value = -float("inf")
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


class Emitter:
    """One function under construction, for vectors of `lanes` elements.

    The machine has registers of `vector_bytes`, and an instruction that rounds floats to bfloat16
    if it `rounds_brains`; square roots are made of estimates if it `estimates_roots`.
    `declarations` collects the intrinsics it calls. In a loop over more than
    `most_followed` arrays LLVM is not told how the index advances: its loop strength reduction
    would look for other ways to count, longer than all else takes.
    """

    def __init__(
        self,
        lanes: int,
        vector_bytes: int,
        rounds_brains: bool = False,
        most_followed: int = MOST_FOLLOWED,
        estimates_roots: bool = False,
    ) -> None:
        self.lanes = lanes
        self.vector_bytes = vector_bytes
        self.rounds_brains = rounds_brains
        self.most_followed = most_followed
        self.estimates_roots = estimates_roots
        self.scopes = [Scope(sure=True)]
        self.entry: list[str] = []
        self.declarations: set[str] = set()
        self._count = 0

    @property
    def has_long_floats(self) -> bool:
        """Whether there are instructions that make doubles of vectors of long integers."""
        return self.vector_bytes == 64

    # -- values ------------------------------------------------------------------------------------

    def name(self, prefix: str = "v") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    @property
    def depth(self) -> int:
        return len(self.scopes) - 1

    def constant(self, value: Any, type: str) -> Value:
        """The constant `value` of element type `type`."""
        if type in FLOATS:
            text = float_text(float(value), type)
        elif type == "i1":
            text = "true" if value else "false"
        else:
            bits = BITS[type]
            text = str((int(value) + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1))
        return Value(self, text, type, 1, 0, constant=True)

    def like(self, value: Value, other: Operand) -> Value:
        """`other` as a value, a number becoming a constant of the type of `value`."""
        if isinstance(other, Value):
            return other
        return self.constant(other, value.type)

    def argument(self, value: Value, lanes: int) -> str:
        """The text of `value` as an operand of `lanes` lanes, in which a scalar is repeated."""
        if value.lanes == lanes:
            return value.text
        if value.constant:
            return f"splat ({value.type} {value.text})"
        vector, mask = vector_type(value.type, lanes), vector_type("i32", lanes)
        text = f"insertelement {vector} poison, {value.type} {value.text}, i64 0"
        first = self.place(text, value.type, lanes, value.depth)
        text = f"shufflevector {vector} {first.text}, {vector} poison, {mask} zeroinitializer"
        return self.place(text, value.type, lanes, value.depth).text

    def splat(self, value: Value, lanes: int) -> Value:
        """`value` with `lanes` lanes."""
        if value.lanes == lanes:
            return value
        return Value(self, self.argument(value, lanes), value.type, lanes, value.depth)

    def iota(self, type: str) -> Value:
        """The lane numbers 0, 1, 2, ..."""
        text = "<" + ", ".join(f"{type} {lane}" for lane in range(self.lanes)) + ">"
        return Value(self, text, type, self.lanes, 0)

    # -- placing text ------------------------------------------------------------------------------

    def place(self, text: str, type: str, lanes: int, depth: int) -> Value:
        """The value of the pure operation `text`, which can be computed from `depth` inwards."""
        for scope in self.scopes[: depth + 1]:
            value = scope.known.get(text)
            if value is not None:
                return value
        scope = self.scopes[depth]
        value = Value(self, "%" + self.name(), type, lanes, depth)
        scope.lines.append(f"{value.text} = {text}")
        scope.known[text] = value
        return value

    def here(self, text: str, type: str, lanes: int) -> Value:
        """The value of an operation that stays where it is written."""
        value = Value(self, "%" + self.name(), type, lanes, self.depth)
        self.line(f"{value.text} = {text}")
        return value

    def line(self, text: str, depth: int | None = None) -> None:
        """A line without a value, at the end of a scope, by default of the innermost one."""
        self.scopes[self.depth if depth is None else depth].lines.append(text)

    # -- operations --------------------------------------------------------------------------------

    def instruction(self, opcode: str, args: Sequence[Value], type: str) -> Value:
        """`opcode` over arguments of one type, giving `type`."""
        lanes = max(a.lanes for a in args)
        operands = ", ".join(self.argument(a, lanes) for a in args)
        depth = max(a.depth for a in args)
        return self.place(
            f"{opcode} {vector_type(args[0].type, lanes)} {operands}", type, lanes, depth
        )

    def binary(self, opcode: str, a: Value, b: Operand) -> Value:
        return self.instruction(opcode, (a, self.like(a, b)), a.type)

    def compare(self, predicate: str, a: Value, b: Operand) -> Value:
        """A comparison, `predicate` as in LLVM: "olt", "slt", ..."""
        opcode = "icmp"
        if a.type in FLOATS:
            opcode = "fcmp"
        return self.instruction(f"{opcode} {predicate}", (a, self.like(a, b)), "i1")

    def cast(self, opcode: str, a: Value, type: str) -> Value:
        """A conversion instruction; `a` itself where the type is already right."""
        if a.type == type:
            return a
        text = f"{opcode} {vector_type(a.type, a.lanes)} {a.text} to {vector_type(type, a.lanes)}"
        return self.place(text, type, a.lanes, a.depth)

    def select(self, condition: Value, a: Operand, b: Operand) -> Value:
        model = b
        if isinstance(a, Value):
            model = a
        assert isinstance(model, Value)
        a, b = self.like(model, a), self.like(model, b)
        lanes = max(condition.lanes, a.lanes, b.lanes)
        type = vector_type(a.type, lanes)
        text = (
            f"select {vector_type('i1', lanes)} {self.argument(condition, lanes)}, "
            f"{type} {self.argument(a, lanes)}, {type} {self.argument(b, lanes)}"
        )
        return self.place(text, a.type, lanes, max(condition.depth, a.depth, b.depth))

    def intrinsic(
        self, name: str, args: Sequence[Operand], type: str | None = None, extra: str = ""
    ) -> Value:
        """A call of the intrinsic `llvm.name`, overloaded on the arguments' common type.

        `extra` ends the argument list.
        """
        model = next(a for a in args if isinstance(a, Value))
        values = [self.like(model, a) for a in args]
        lanes = max(a.lanes for a in values)
        element = vector_type(model.type, lanes)
        function = f"llvm.{name}.{mangled(model.type, lanes)}"
        operands = []
        for a in values:
            operands.append(f"{element} {self.argument(a, lanes)}")
        types = [element] * len(values)
        if extra:
            types.append(extra.split()[0])
            operands.append(extra)
        self.declare(element, function, ", ".join(types))
        text = f"call {element} @{function}({', '.join(operands)})"
        return self.place(text, model.type, lanes, max(a.depth for a in values))

    def declare(self, result: str, function: str, types: str) -> None:
        self.declarations.add(f"declare {result} @{function}({types})")

    def fma(self, a: Operand, b: Operand, c: Operand) -> Value:
        """a * b + c, rounded once."""
        return self.intrinsic("fma", (a, b, c))

    def bits(self, a: Value) -> Value:
        """A float's bits as an integer of its size."""
        return self.cast("bitcast", a, SAME_SIZE_INTEGER[a.type])

    def any_lane(self, condition: Value) -> Value:
        """Whether any lane of an i1 vector is set, as a scalar."""
        if condition.lanes == 1:
            return condition
        type = vector_type("i1", condition.lanes)
        function = f"llvm.vector.reduce.or.v{condition.lanes}i1"
        self.declare("i1", function, type)
        return self.place(f"call i1 @{function}({type} {condition.text})", "i1", 1, condition.depth)

    def reversed_lanes(self, a: Value) -> Value:
        """The lanes in reversed order."""
        if a.lanes == 1:
            return a
        return self.shuffle(a, None, range(a.lanes - 1, -1, -1))

    def shuffle(self, a: Value, b: Value | None, order: Sequence[int | None]) -> Value:
        """The lanes numbered in `order`, those of `b` after those of `a`; None: any value."""
        type = vector_type(a.type, a.lanes)
        lanes = ", ".join("i32 poison" if lane is None else f"i32 {lane}" for lane in order)
        if b is None:
            second, depth = ("poison", 0)
        else:
            second, depth = (b.text, b.depth)
        mask = f"{vector_type('i32', len(order))} <{lanes}>"
        text = f"shufflevector {type} {a.text}, {type} {second}, {mask}"
        return self.place(text, a.type, len(order), max(a.depth, depth))

    def collect(self, vectors: Sequence[Value], places: Sequence[tuple[int, int]]) -> Value:
        """The vector whose lanes are (vector, lane of it), brought together a vector at a time."""
        first, *others = sorted({index for index, _ in places})
        result = vectors[first]
        order: list[int | None] = [lane if index == first else None for index, lane in places]
        if not others:
            return self.shuffle(result, None, order)
        for other in others:
            for k, (index, lane) in enumerate(places):
                if index == other:
                    order[k] = result.lanes + lane
            result = self.shuffle(result, vectors[other], order)
            order = [None if lane is None else k for k, lane in enumerate(order)]
        return result

    def half_vectors(self, a: Value) -> tuple[Value, Value]:
        """The lower and the upper half of the lanes."""
        half = a.lanes // 2
        return self._lanes(a, 0, half), self._lanes(a, half, half)

    def _lanes(self, a: Value, start: int, lanes: int) -> Value:
        """So many lanes of a vector."""
        if lanes > 1:
            return self.shuffle(a, None, range(start, start + lanes))
        text = f"extractelement {vector_type(a.type, a.lanes)} {a.text}, i64 {start}"
        return self.place(text, a.type, 1, a.depth)

    def unless_rare(
        self, rare: Value, usual: Value, slow_call: str, before: Sequence[str] = ()
    ) -> Value:
        """`usual`, or, where any lane of `rare` is set, the result of `slow_call`.

        The latter is the text of a call that is worth a branch, behind the lines `before`.
        """
        condition = self.any_lane(rare)
        depth = max(condition.depth, usual.depth)
        key = f"{usual.text} unless {condition.text}"
        known = self.scopes[depth].known.get(key)
        if known is not None:
            return known
        fast, slow, join = self.name("fast"), self.name("slow"), self.name("join")
        type, slow_name = vector_type(usual.type, usual.lanes), "%" + self.name()
        for text in (
            f"br i1 {condition.text}, label %{slow}, label %{fast}, !prof !0",
            f"{slow}:",
            *before,
            f"{slow_name} = {slow_call}",
            f"br label %{join}",
            f"{fast}:",
            f"br label %{join}",
            f"{join}:",
        ):
            self.line(text, depth)
        text = f"phi {type} [{slow_name}, %{slow}], [{usual.text}, %{fast}]"
        result = self.place(text, usual.type, usual.lanes, depth)
        self.scopes[depth].known[key] = result
        return result

    # -- memory ------------------------------------------------------------------------------------

    def pointer(self, base: Value, type: str, index: Operand) -> Value:
        """The address of element `index` behind `base`; of a vector of indices, of addresses."""
        if not isinstance(index, Value):
            index = self.constant(index, "i64")
        if index.constant and index.text == "0":
            return base
        first, second = vector_type("ptr", base.lanes), vector_type(index.type, index.lanes)
        text = f"getelementptr {type}, {first} {base.text}, {second} {index.text}"
        return self.place(text, "ptr", max(base.lanes, index.lanes), max(base.depth, index.depth))

    def variable(self, type: str, lanes: int) -> Variable:
        """A mutable register."""
        name = "%" + self.name("m")
        self.entry.append(f"{name} = alloca {vector_type(type, lanes)}")
        return Variable(self, name, type, lanes)

    def from_memory(self, number: Value) -> Value:
        """`number`, which a vector is filled with out of memory: that takes no arithmetic unit."""
        known = self.scopes[number.depth].known
        key = f"{number.text} from memory"
        if key not in known:
            slot = self.variable(number.type, 1).name
            self.line(f"store volatile {number.type} {number.text}, ptr {slot}", number.depth)
            text = f"load volatile {number.type}, ptr {slot}"
            known[key] = self.place(text, number.type, 1, number.depth)
        return known[key]

    # -- control -----------------------------------------------------------------------------------

    @contextmanager
    def loop(
        self, start: Value, stop: Value, step: int, sure: bool, once: bool = False
    ) -> Iterator[Value]:
        """A loop of an i64 index from `start` to below `stop`.

        It is `sure` to run, or runs at most `once`, where that is known.
        """
        scope = Scope(sure)
        self.scopes.append(scope)
        number = self.name("")
        if once:
            yield start if sure else Value(self, start.text, "i64", 1, self.depth)
            self.scopes.pop()
            lines = scope.lines
            if not sure:
                lines = [
                    f"%enter{number} = icmp slt i64 {start.text}, {stop.text}",
                    f"br i1 %enter{number}, label %body{number}, label %exit{number}",
                    f"body{number}:",
                    *lines,
                    f"br label %exit{number}",
                    f"exit{number}:",
                ]
            self.scopes[-1].lines += lines
            return
        index = Value(self, f"%i{number}", "i64", 1, self.depth)
        yield index
        self.scopes.pop()
        counter, hidden = index.text, list[str]()
        arrays = set()
        for line in scope.lines:
            if "getelementptr" in line:
                arrays.add(line.split(", ", 2)[1])
        if len(arrays) > self.most_followed:
            self.declare("i64", "llvm.expect.i64", "i64, i64")
            counter = f"%count{number}"
            hidden = [f"{index.text} = call i64 @llvm.expect.i64(i64 {counter}, i64 0)"]
        enter = [f"br label %body{number}"]
        if not sure:
            enter = [
                f"%enter{number} = icmp slt i64 {start.text}, {stop.text}",
                f"br i1 %enter{number}, label %body{number}, label %exit{number}",
            ]
        self.scopes[-1].lines += [
            f"br label %before{number}",
            f"before{number}:",
            *enter,
            f"body{number}:",
            f"{counter} = phi i64 [{start.text}, %before{number}], [%next{number}, %latch{number}]",
            *hidden,
            *scope.lines,
            f"br label %latch{number}",
            f"latch{number}:",
            f"%next{number} = add nsw i64 {counter}, {step}",
            f"%again{number} = icmp slt i64 %next{number}, {stop.text}",
            f"br i1 %again{number}, label %body{number}, label %exit{number}",
            f"exit{number}:",
        ]


class Variable:
    """A register that loops may change; LLVM turns it into phi nodes."""

    def __init__(self, emitter: Emitter, name: str, type: str, lanes: int) -> None:
        self.emitter, self.name, self.type, self.lanes = emitter, name, type, lanes

    def load(self) -> Value:
        return self.emitter.here(
            f"load {vector_type(self.type, self.lanes)}, ptr {self.name}", self.type, self.lanes
        )

    def store(self, value: Value) -> None:
        text = self.emitter.argument(value, self.lanes)
        self.emitter.line(f"store {vector_type(self.type, self.lanes)} {text}, ptr {self.name}")
