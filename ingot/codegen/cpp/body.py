"""The bodies of a kernel's stages as statements, each in the outermost loop where it can stand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ingot.codegen.cpp.function import comment
from ingot.codegen.cpp.names import Indices, Names
from ingot.codegen.cpp.ops import ROWS, combined, converted, elementary
from ingot.codegen.cpp.prelude import RARE
from ingot.codegen.cpp.statements import Item
from ingot.codegen.cpp.types import (
    PREFIX,
    TYPES,
    Code,
    atom,
    binary,
    call,
    choice,
    literal,
    memory_type,
)
from ingot.errors import OutOfBounds, unsupported
from ingot.loops.expr import Expr, Symbol
from ingot.loops.ir import Fault, Instruction
from ingot.loops.ops import DIVISIONS, HALVES
from ingot.loops.spaces import points_of
from ingot.schedule.kernel import Stage, Store

ZERO_DIVISION = Fault(RuntimeError, "ZeroDivisionError")
MODES = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}

Key = Any  # of a value: the position of its instruction, or that and a word for what goes with it


class Scan:
    """The variables of a scan that goes along with a stage's loops."""

    def __init__(self, kind: str, value: str, position: str, offset: str) -> None:
        self.kind, self.value, self.position, self.offset = kind, value, position, offset

    def element(self, name: str) -> str:
        return f"{name}{self.offset}"


class BodyWriter:
    """What bodies need: buffers by name, scalars by their code, names, and faults by number."""

    def __init__(self, check_bounds: bool) -> None:
        self.names, self.index = Names(), Indices()
        self.dtypes: dict[str, torch.dtype] = {}
        self.pointers: dict[str, str] = {}
        self.mutable: set[str] = set()
        self.per_lane: set[str] = set()
        self.lengths: dict[str, Expr] = {}
        self.scalars: dict[str, tuple[Code, bool]] = {}  # and whether each lane has its own
        self.scans: dict[Instruction, Scan] = {}
        self.lookup_keys: dict[Symbol, Key] = {}
        self.errors: list[Fault] = []
        self.functions: set[tuple[str, str]] = set()
        self.check_bounds = check_bounds
        self.lane_offset, self.lane_count = "", 0

    def fail(self, condition: str, fault: Fault) -> str:
        """The line that leaves the function where a condition holds."""
        if fault not in self.errors:
            self.errors.append(fault)
        what = fault.message.splitlines()[0] if fault.message else fault.error.__name__
        line = f"if ({condition}) return {1 + self.errors.index(fault)};"
        if len(what) + len(condition) < 70:
            line += f"  {comment(what)}"
        return line

    # -- memory ------------------------------------------------------------------------------------

    def element(self, buffer: str, index: Expr) -> str:
        """The text of an element of a buffer, as an operand or as what is assigned to."""
        at = self.index(index)
        if buffer in self.per_lane:
            product = binary("*", at, atom(str(self.lane_count)))
            return f"{self.pointers[buffer]}[{product.text} + {self.lane_offset}]"
        return f"{self.pointers[buffer]}[{at.text}]"

    def bounds(self, buffer: str, index: Expr) -> str | None:
        """Where bounds are checked: the condition of an index that is out of them."""
        if not self.check_bounds or buffer not in self.lengths:
            return None
        length = self.index(self.lengths[buffer])
        return f"uint64_t({self.index(index).text}) >= uint64_t({length.text})"

    def out_of_bounds(self, buffer: str) -> Fault:
        return Fault(OutOfBounds, f"a kernel touches memory outside of its buffer {buffer}")

    # -- values ------------------------------------------------------------------------------------

    def items(self, stage: Stage, prefix: Key) -> list[tuple[Key, Item]]:
        """The values of a stage's body, in order. Binds the symbols of its lookups to their
        keys."""
        results: list[tuple[Key, Item]] = []
        program = stage.body.instructions
        for number, i in enumerate(program):
            keys = [(prefix, a) for a in i.args]
            if i.op in DIVISIONS and not i.dtype.is_floating_point:
                checks = self._divisor_check(program, number, keys)
                results += checks
                keys += [key for key, _ in checks]  # no division is ahead of it
            results += self._instruction(stage, program, number, keys, prefix)
        return results

    def _divisor_check(
        self, program: Sequence[Instruction], number: int, keys: list[Key]
    ) -> list[tuple[Key, Item]]:
        divisor = program[program[number].args[1]]
        if divisor.op == "constant" and divisor.attrs[0] != 0:
            return []

        def lines(code: Code, *_: Code) -> tuple[list[str], Code]:
            return [self.fail(binary("==", code, atom("0")).text, ZERO_DIVISION)], code

        item = Item("", lambda b, _: b, (keys[1], keys[1]), named=True, lines=lines)
        return [((*keys[1], "check"), item)]

    def _instruction(
        self,
        stage: Stage,
        program: Sequence[Instruction],
        number: int,
        keys: list[Key],
        prefix: Key,
    ) -> list[tuple[Key, Item]]:
        i = program[number]
        own, type = (prefix, number), TYPES[i.dtype]
        build: Callable[..., Code]
        if i.op == "constant":
            code = literal(i.attrs[0], i.dtype)
            return [(own, Item(type, lambda: code, (), trivial=True))]
        if i.op == "index":
            index = Item(type, lambda *_: self.index(i.attrs[0]), self._lookups(i), "at")
            return [(own, index)]
        if i.op == "scalar":
            name = i.attrs[0]
            trivial = not self.scalars.get(name, (None, False))[1]
            scalar = Item(type, lambda: self.scalars[name][0], (), name, trivial=trivial)
            return [(own, scalar)]
        if i.op == "to":
            source = program[i.args[0]].dtype
            rounded = self._rounded(program, i)
            if rounded is not None:
                build = lambda a: converted(call("ingot::as_half", a), torch.float32, i.dtype)  # noqa: E731
                return [(own, Item(type, build, ((prefix, rounded),), "to"))]
            return [(own, Item(type, lambda a: converted(a, source, i.dtype), tuple(keys), "to"))]
        if i.op == "load":
            effects = len(stage.stores) + len(stage.reductions) + len(stage.scalars)
            return self._load(i, own, keys, effects)
        if i.op == "indirect":
            return [self._lookup(i, own, keys)]
        if i.op == "running":
            return [self._step(stage, i, own, keys, program[i.args[0]].dtype)]
        source, rule = program[i.args[-1]].dtype, ROWS.get(i.op)
        if rule is None:
            raise unsupported("no-code", f"{i.op} of {source} has no C++ code")
        function = elementary(i.op, source)
        if function is not None:
            self.functions.add(function)
        arity = len(i.args)
        build = lambda *args: rule(source, *args[:arity])  # noqa: E731
        if i.op == "isnan":
            keys = keys * 2  # written twice
            build = lambda a, _: rule(source, a)  # noqa: E731
        return [(own, Item(type, build, tuple(keys), i.op))]

    @staticmethod
    def _rounded(program: Sequence[Instruction], i: Instruction) -> int | None:
        """The position of the float that a conversion from halves, by way of these, rounds."""
        half = program[i.args[0]]
        if half.op == "to" and half.dtype is torch.float16 and i.dtype.is_floating_point:
            if program[half.args[0]].dtype is torch.float32 and i.dtype not in HALVES:
                return half.args[0]
        return None

    def _lookups(self, i: Instruction) -> tuple[Key, ...]:
        """The keys of the lookups that an instruction's index depends on."""
        e, keys = i.expression, []
        for s in sorted(e.symbols if e is not None else (), key=lambda s: s.order):
            if s.kind == "value":
                keys.append(self.lookup_keys[s])
        return tuple(keys)

    def _load(
        self, i: Instruction, own: Key, keys: list[Key], effects: int
    ) -> list[tuple[Key, Item]]:
        buffer, offset = i.attrs
        count, results = len(keys), []
        args = (*keys, *self._lookups(i))

        def build(*codes: Code) -> Code:
            value = atom(self.element(buffer, offset))
            if i.dtype is torch.bool:
                value = binary("!=", value, atom("0"))
            if not count:
                return value
            return choice(codes[0], value, _zero(i.dtype))

        if self.check_bounds and buffer in self.lengths:

            def lines(code: Code, *_: Code) -> tuple[list[str], Code]:
                outside = self.bounds(buffer, offset) or ""
                condition = f"{code.text} && {outside}" if count else outside
                return [self.fail(condition, self.out_of_bounds(buffer))], code

            def condition(*codes: Code) -> Code:
                return codes[0] if count else atom("true")

            twice = (*args, *keys)
            results.append(((*own, "check"), Item("", condition, twice, named=True, lines=lines)))
        # what is stored may lie there: the load is ahead of all stores
        ahead = buffer in self.mutable and effects > 1
        results.append((own, Item(TYPES[i.dtype], build, args, self.pointers[buffer], ahead)))
        return results

    def _lookup(self, i: Instruction, own: Key, keys: list[Key]) -> tuple[Key, Item]:
        symbol, extent, fault = i.attrs
        self.lookup_keys[symbol] = own
        masked = len(keys) > 1

        def lines(value: Code, *args: Code) -> tuple[list[str], Code]:
            name, size = self.names.fresh(symbol.name), self.index(extent)
            wrapped = choice(binary("<", value, atom("0")), binary("+", value, size), value)
            outside = f"uint64_t({name}) >= uint64_t({size.text})"
            if masked:
                outside = f"{args[2].inside(PREFIX)} && {outside}"
            self.index.bind(symbol, name)
            return [f"const int64_t {name} = {wrapped.text};", self.fail(outside, fault)], atom(
                name
            )

        args = (keys[0], keys[0], *keys[1:], *self._lookups_of(extent))
        return own, Item("int64_t", lambda value, *_: value, args, symbol.name, True, lines)

    def _lookups_of(self, e: Expr) -> tuple[Key, ...]:
        found = []
        for s in e.symbols:
            if s.kind == "value":
                found.append(self.lookup_keys[s])
        return tuple(found)

    def _step(
        self, stage: Stage, i: Instruction, own: Key, keys: list[Key], source: torch.dtype
    ) -> tuple[Key, Item]:
        """A step of a scan: the value joins those before it."""
        scan, kind = self.scans[i], i.attrs[0]
        here = scan.element(scan.value)

        def lines(code: Code, *_: Code) -> tuple[list[str], Code]:
            if kind == "logaddexp":
                return [f"{here} = ingot::log_add_exp({here}, {code.text});"], self._scanned(
                    i, source
                )
            if kind in ("sum", "prod"):
                new = combined(kind, source, atom(here), code).text
                return [f"{here} = {new};"], self._scanned(i, source)
            relation = ">=" if kind.endswith("max") else "<="
            take = f"{code.text} {relation} {here}"
            if source.is_floating_point:
                take += f" || {code.text} != {code.text}"
            text = [f"if ({take}) {{", f"  {here} = {code.text};"]
            if scan.position:
                text.append(f"  {scan.element(scan.position)} = {self.position(stage).text};")
            return [*text, "}"], self._scanned(i, source)

        if kind == "logaddexp":
            self.functions.add(("log_add_exp", TYPES[source]))
        return own, Item(TYPES[i.dtype], lambda a, _: a, (keys[0], keys[0]), "", True, lines)

    def _scanned(self, i: Instruction, source: torch.dtype) -> Code:
        scan = self.scans[i]
        if scan.position:
            return atom(scan.element(scan.position))
        return converted(atom(scan.element(scan.value)), source, i.dtype)

    def position(self, stage: Stage) -> Code:
        """The number of the present point in the row-major order of a stage's loops."""
        total: Expr | None = None
        for level, loop in enumerate(stage.loops):
            term = loop * points_of(stage.loops[level + 1 :])
            total = term if total is None else total + term
        return self.index(total) if total is not None else atom("0")

    # -- stores ------------------------------------------------------------------------------------

    def store(self, store: Store, value: Code, dtype: torch.dtype) -> list[str]:
        """The lines that store a value of `dtype`."""
        want = self.dtypes[store.buffer]
        value = converted(value, dtype, want)
        here, lines = self.element(store.buffer, store.index), []
        outside = self.bounds(store.buffer, store.index)
        if outside is not None:
            lines.append(self.fail(outside, self.out_of_bounds(store.buffer)))
        if store.mode == "store":
            return [*lines, f"{here} = {value.text};"]
        kind, before = MODES[store.mode], atom(here)
        if want in HALVES:
            wide, more = (
                converted(before, want, torch.float32),
                converted(value, want, torch.float32),
            )
            new = converted(combined(kind, torch.float32, wide, more), torch.float32, want)
        else:
            if want is torch.bool:
                before = binary("!=", before, atom("0"))
            new = combined(kind, want, before, value)
        return [*lines, f"{here} = {new.text};"]


def _zero(dtype: torch.dtype) -> Code:
    return literal(0.0 if dtype.is_floating_point else 0, dtype)


def is_rare(i: Instruction) -> bool:
    """Whether an instruction may have to call the C library."""
    return i.op in RARE and i.dtype.is_floating_point


def memory_pointer(dtype: torch.dtype, is_const: bool) -> str:
    """The type of a pointer to elements."""
    return f"{'const ' if is_const else ''}{memory_type(dtype)} *"
