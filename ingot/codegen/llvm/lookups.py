"""Values that four bits decide: they are looked up in a vector register.

Weights of four bits become numbers by an offset, a scale and roundings, the same for many of them.
Where nothing else varies along a vector, that is computed for all 16 at once, outside of the
innermost loop if it can be, and one instruction finds the numbers of 16 lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ingot.codegen.llvm.brains import fast_roundings, rounded
from ingot.codegen.llvm.emitter import Value
from ingot.loops.expr import Expr, Symbol
from ingot.loops.ir import Body, Instruction
from ingot.loops.ops import DIVISIONS, OPS

COUNT = 16
_UNIFORM, _VARIES = -1, -2

Emit = Callable[[Instruction, list[Value], Sequence[Instruction]], Value]
"""The value of an instruction of a program, for those of the instructions before it."""


class Lookup(NamedTuple):
    """The body's value that has four bits, and those of its values that it decides, in order. The
    last of them is what is looked up; it may be no more than a factor of multiply-adds."""

    bits: int
    decided: tuple[int, ...]
    is_factor: bool


def lookups(body: Body, used: set[int], vector: Symbol) -> dict[int, Lookup]:
    """What is looked up in place of being computed, by its position in the body.

    `used` are the positions of what the stage stores, reduces or names; lanes are the iterations of
    `vector`.
    """
    kinds: list[int] = []
    for position, i in enumerate(body.instructions):
        kinds.append(_kind(position, i, body.instructions, kinds, vector))
    wanted = set(used)
    for k, i in enumerate(body.instructions):
        if kinds[k] == _VARIES:
            wanted.update(i.args)
    found = {}
    for k in wanted:
        bits = kinds[k]
        if bits >= 0 and bits != k and body.instructions[k].dtype is torch.float32:
            decided = [n for n in body.needed([k]) if kinds[n] == bits and n != bits]
            is_factor = k not in used and _is_factor(k, body.instructions)
            found[k] = Lookup(bits, tuple(decided), is_factor)
    return found


def _is_factor(position: int, program: Sequence[Instruction]) -> bool:
    """Whether nothing but multiply-adds takes a value, and these as a factor."""
    for i in program:
        if position in i.args and (i.op != "fma" or i.args[2] == position):
            return False
    return True


def _kind(
    position: int, i: Instruction, program: Sequence[Instruction], kinds: list[int], vector: Symbol
) -> int:
    """Whether a value is the same in all lanes, varies, or varies as four bits do: the position of
    these."""
    of_args = {kinds[k] for k in i.args}
    if i.op in ("constant", "index", "load"):
        place = i.attrs[-1]
        varies = i.args or (isinstance(place, Expr) and vector in place.symbols)
        return _VARIES if varies else _UNIFORM
    if (i.op != "to" and i.op not in OPS) or i.op in DIVISIONS:
        return _VARIES
    if _VARIES in of_args:
        return position if _has_four_bits(i, program) else _VARIES
    bits = of_args - {_UNIFORM}
    if len(bits) > 1:
        return _VARIES
    return bits.pop() if bits else _UNIFORM


def _has_four_bits(i: Instruction, program: Sequence[Instruction]) -> bool:
    """Whether a value is an integer from 0 to 15 because of this instruction."""
    if i.op not in ("bitwise_and", "shift_right"):
        return False
    numbers = []
    for k in i.args:
        if program[k].op == "constant":
            numbers.append(program[k].attrs[0])
    if i.op == "bitwise_and":
        return any(0 <= number < COUNT for number in numbers)
    return (
        i.dtype is torch.uint8
        and program[i.args[1]].op == "constant"
        and numbers[-1] in (4, 5, 6, 7)
    )


def looked_up(
    lookup: Lookup, program: Sequence[Instruction], values: Sequence[Value], emit: Emit
) -> Value:
    """The value that is looked up; `values` are those before it."""
    bits = values[lookup.bits]
    e = bits.emitter
    table = list(values) + [bits] * (len(program) - len(values))
    table[lookup.bits] = e.iota(bits.type)
    for k in _widened(lookup, program):
        table[k] = e.from_memory(table[k])
    roundings = fast_roundings(lookup.decided, program) if lookup.is_factor else {}
    for k in lookup.decided:
        if lookup.bits in program[k].args and _masked(program[k], program) is not None:
            table[k] = table[lookup.bits]
        elif k in roundings:
            table[k] = rounded(roundings[k], program, table, values)
        else:
            table[k] = emit(program[k], table, program)
    numbers = table[lookup.decided[-1]]
    index = _place(lookup.bits, program, values)
    function, floats, places = _FIND, f"<{COUNT} x float>", f"<{COUNT} x i32>"
    e.declare(floats, function, f"{floats}, {places}")
    operands = f"{floats} {e.argument(numbers, COUNT)}, {places} {e.argument(index, COUNT)}"
    depth = max(numbers.depth, index.depth)
    return e.place(f"call {floats} @{function}({operands})", "float", COUNT, depth)


def _widened(lookup: Lookup, program: Sequence[Instruction]) -> set[int]:
    """The brain floats that the table takes, each the same in all lanes. To become floats, they
    pass through a register of integers, from which there is no other fast way into a vector."""
    found = set()
    for k in lookup.decided:
        for arg in program[k].args:
            i = program[arg]
            if i.op == "to" and arg not in lookup.decided:
                if program[i.args[0]].dtype is torch.bfloat16:
                    found.add(arg)
    return found


_FIND = "llvm.x86.avx512.permvar.sf.512"  # looks at the lower four bits of each place


def _place(position: int, program: Sequence[Instruction], values: Sequence[Value]) -> Value:
    """Integers of 32 bits whose lower four are the bits: what is above these is not looked at.

    What the bits are taken from is widened once, and shifted then.
    """
    bits = program[position]
    if bits.op == "shift_right":
        source, count = bits.args
        return _long(values[source]) >> program[count].attrs[0]
    masked = _masked(bits, program)
    return _long(values[position if masked is None else masked])


def _masked(i: Instruction, program: Sequence[Instruction]) -> int | None:
    """The position of the integer whose lower four bits an instruction takes; None of another."""
    if i.op == "bitwise_and":
        for k, other in (i.args, i.args[::-1]):
            if program[k].op == "constant" and program[k].attrs[0] == COUNT - 1:
                return other
    return None


def _long(value: Value) -> Value:
    e = value.emitter
    return e.cast("trunc" if value.type == "i64" else "zext", value, "i32")
