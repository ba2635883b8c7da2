"""Writes the functions of `codegen/llvm` as C++: the same program of IEEE operations, so the same
bits.

A `Tracer` takes the place of LLVM's emitter. It is handed to a function of values, notes what that
computes, and prints it as the body of an inline function.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple

from ingot.codegen.cpp.statements import Item, Statements
from ingot.codegen.cpp.types import (
    Code,
    atom,
    binary,
    call,
    choice,
    float_literal,
    integer_literal,
    prefix,
)
from ingot.codegen.llvm.emitter import Operand, Value

TYPES = {
    "i1": "bool", "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t",
    "float": "float", "double": "double",
}  # fmt: skip

Build = Callable[..., Code]


class Node(NamedTuple):
    """An operation: the function that writes it, and its arguments."""

    type: str
    build: Build
    args: tuple[str, ...]


def _infix(operator: str) -> Build:
    return lambda a, b: binary(operator, a, b)


def _unsigned_shift(type: str) -> Build:
    def build(a: Code, b: Code) -> Code:
        return call(type, binary(">>", call(f"u{type}", a), b))

    return build


_BINARY = {
    "fadd": "+", "fsub": "-", "fmul": "*", "fdiv": "/", "add": "+", "sub": "-", "mul": "*",
    "and": "&", "or": "|", "xor": "^", "shl": "<<", "ashr": ">>",
}  # fmt: skip

_ORDERED = {"eq": "==", "gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_OPPOSITE = {"gt": "<=", "ge": "<", "lt": ">=", "le": ">"}


def _compared(predicate: str) -> Build:
    """Of floats: ordered, or true where one is NaN; of integers: signed."""

    def build(a: Code, b: Code) -> Code:
        kind, relation = predicate[:1], predicate[1:]
        if predicate in ("eq", "ne", "une"):
            return binary("==" if predicate == "eq" else "!=", a, b)
        if predicate in ("uno", "ord"):
            operator, join = ("!=", "|") if predicate == "uno" else ("==", "&")
            if a.text == b.text:
                return binary(operator, a, a)
            return binary(join, binary(operator, a, a), binary(operator, b, b))
        if predicate == "one":
            return binary("|", binary("<", a, b), binary(">", a, b))
        if kind == "u":
            return prefix("!", binary(_OPPOSITE[relation], a, b))
        return binary(_ORDERED[relation], a, b)

    return build


_INTRINSICS = {
    "fabs": "std::fabs", "copysign": "std::copysign", "sqrt": "std::sqrt", "fma": "std::fma",
    "trunc": "std::trunc", "floor": "std::floor", "ceil": "std::ceil",
    "roundeven": "std::nearbyint", "smin": "ingot::smaller", "smax": "ingot::larger",
}  # fmt: skip


class Tracer:
    """Answers as `codegen.llvm.emitter.Emitter` does for scalars, and notes C++.

    `rare` is what a function hands to the C library: (condition, function).
    """

    lanes, depth, vector_bytes, rounds_brains, estimates_roots = 1, 0, 0, False, False

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.known: dict[Any, str] = {}
        self.codes: dict[str, Code] = {}
        self.declarations: set[str] = set()
        self.rare: tuple[Value, str] | None = None

    # -- what the functions call -------------------------------------------------------------------

    def argument_named(self, name: str, type: str) -> Value:
        self.codes[name] = atom(name)
        return Value(self, name, type, 1, 0)  # type: ignore[arg-type]

    def constant(self, value: Any, type: str) -> Value:
        if type in ("float", "double"):
            code = float_literal(float(value), type)
        elif type == "i1":
            code = atom("true" if value else "false")
        else:
            bits = int(type[1:])
            number = (int(value) + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)
            code = integer_literal(number, TYPES[type])
        self.codes[code.text] = code
        return Value(self, code.text, type, 1, 0, constant=True)  # type: ignore[arg-type]

    def like(self, value: Value, other: Operand) -> Value:
        if isinstance(other, Value):
            return other
        return self.constant(other, value.type)

    def splat(self, value: Value, lanes: int) -> Value:
        return value

    def argument(self, value: Value, lanes: int) -> str:
        return value.text

    def any_lane(self, condition: Value) -> Value:
        return condition

    def declare(self, result: str, function: str, types: str) -> None:
        """Intrinsics need no declaration."""

    def node(self, key: Any, type: str, build: Build, args: Sequence[Value]) -> Value:
        texts = tuple([a.text for a in args])
        whole = key, texts, type
        name = self.known.get(whole)
        if name is None:
            name = self.known[whole] = f"t{len(self.nodes)}"
            self.nodes[name] = Node(type, build, texts)
        return Value(self, name, type, 1, 0)  # type: ignore[arg-type]

    def instruction(self, opcode: str, args: Sequence[Value], type: str) -> Value:
        if opcode == "fneg":
            return self.node(opcode, type, lambda a: prefix("-", a), args)
        if opcode == "freeze":
            return args[0]
        if opcode == "lshr":
            return self.node(opcode, type, _unsigned_shift(TYPES[args[0].type]), args)
        if " " in opcode:
            return self.node(opcode, type, _compared(opcode.split()[1]), args)
        return self.node(opcode, type, _infix(_BINARY[opcode]), args)

    def binary(self, opcode: str, a: Value, b: Operand) -> Value:
        b = self.like(a, b)
        if (
            opcode == "add"
            and b.constant
            and self.codes[b.text] == self.codes[self.constant(0, b.type).text]
        ):
            return a
        if opcode == "xor" and a.type == "i1" and b.constant:
            return self.node("not", "i1", lambda a: prefix("!", a), [a])
        return self.instruction(opcode, (a, b), a.type)

    def compare(self, predicate: str, a: Value, b: Operand) -> Value:
        opcode = f"fcmp {predicate}"
        if a.type not in ("float", "double"):
            opcode = f"icmp {predicate.removeprefix('s')}"
            if predicate not in ("eq", "ne"):
                opcode = f"icmp {predicate}"
        return self.instruction(opcode, (a, self.like(a, b)), "i1")

    def cast(self, opcode: str, a: Value, type: str) -> Value:
        if a.type == type:
            return a
        function = TYPES[type]
        if opcode == "bitcast":
            function = f"ingot::bits_as<{function}>"
        return self.node(function, type, lambda x: call(function, x), [a])

    def bits(self, a: Value) -> Value:
        return self.cast("bitcast", a, {"float": "i32", "double": "i64"}[a.type])

    def select(self, condition: Value, a: Operand, b: Operand) -> Value:
        model = a if isinstance(a, Value) else b
        assert isinstance(model, Value)
        a, b = self.like(model, a), self.like(model, b)
        return self.node("select", a.type, choice, [condition, a, b])

    def intrinsic(
        self, name: str, args: Sequence[Operand], type: str | None = None, extra: str = ""
    ) -> Value:
        model = next(a for a in args if isinstance(a, Value))
        values = [self.like(model, a) for a in args]
        function = _INTRINSICS[name]
        return self.node(name, model.type, lambda *codes: call(function, *codes), values)

    def fma(self, a: Operand, b: Operand, c: Operand) -> Value:
        return self.intrinsic("fma", (a, b, c))

    def unless_rare(self, rare: Value, usual: Value, slow_call: str) -> Value:
        """Noted beside the result: a loop in which a function may be called is no vector loop."""
        function = "std::fmod"
        huge = re.match(r"call \w+ @huge\.(\w+)\.", slow_call)
        if huge:
            function = f"std::{huge[1]}"
        self.rare = rare, function
        return usual

    # -- text --------------------------------------------------------------------------------------

    def function(self, head: str, result: Value) -> list[str]:
        """An inline function that gives one of the values."""
        reached, todo = set(), [result.text]
        while todo:
            name = todo.pop()
            if name in self.nodes and name not in reached:
                reached.add(name)
                todo += self.nodes[name].args
        items = []
        for name, node in self.nodes.items():
            if name in reached:
                items.append((name, Item(TYPES[node.type], node.build, node.args)))
        numbers = count()
        written = Statements(dict(self.codes), lambda name: f"{name}{next(numbers)}")
        lines = written.write(items, [result.text])
        last = f"return {written.codes[result.text].text};"
        return [f"inline {TYPES[result.type]} {head} {{", *map(indented, [*lines, last]), "}"]


def indented(line: str) -> str:
    return f"  {line}"


def traced(name: str, function: Callable[..., Value], type: str, arity: int, doc: str) -> str:
    """The C++ inline function of a function of values of one type, under a comment."""
    tracer, cpp = Tracer(), TYPES[type]
    names = ("x", "y", "z")[:arity]
    result = function(*[tracer.argument_named(n, type) for n in names])
    parameters = ", ".join([f"{cpp} {n}" for n in names])
    own = name
    if tracer.rare is not None:
        own = f"usual_{name}"
    text = [f"// {line}" for line in doc.splitlines()]
    text += tracer.function(f"{own}({parameters})", result)
    if tracer.rare is not None:
        condition, slow = tracer.rare
        text += tracer.function(f"{name}_is_rare({parameters})", condition)
        rest = _WITH_LIBRARY.replace("NAME", name).replace("SLOW", slow).replace("TYPE", cpp)
        rest = rest.replace("PARAMETERS", parameters).replace(
            "EACH", "xs[k], ys[k]"[: 7 * arity - 2]
        )
        rest = rest.replace("ARRAYS", ", ".join([f"const {cpp} *{n}s" for n in names]))
        text.append(rest.replace("ALL", ", ".join(names)))
    return "\n".join(text)


_WITH_LIBRARY = """\
inline TYPE NAME(PARAMETERS) {
  return NAME_is_rare(ALL) ? SLOW(ALL) : usual_NAME(ALL);
}
// asks the C library where the usual result does not suffice
inline void repair_NAME(ARRAYS, TYPE *results, int64_t count) {
  for (int64_t k = 0; k < count; ++k)
    if (NAME_is_rare(EACH)) results[k] = SLOW(EACH);
}"""
