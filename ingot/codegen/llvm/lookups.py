"""Values that four bits decide: they are looked up in a vector register.

Weights of four bits become numbers by an offset, a scale and roundings, the same for many of them.
Where nothing else varies along a vector, that is computed for all 16 at once, outside of the
innermost loop if it can be, and one instruction finds the numbers of 16 lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

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
    last of them is what is looked up."""

    bits: int
    decided: tuple[int, ...]


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
            found[k] = Lookup(bits, tuple(decided))
    return found


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
    for k in lookup.decided:
        table[k] = emit(program[k], table, program)
    numbers = table[lookup.decided[-1]]
    index = _place(program[lookup.bits], program, values) or bits
    if index.type == "i64":
        index = e.cast("trunc", index, "i32")
    else:
        index = e.cast("zext", index, "i32")
    function, floats, places = _FIND, f"<{COUNT} x float>", f"<{COUNT} x i32>"
    e.declare(floats, function, f"{floats}, {places}")
    operands = f"{floats} {e.argument(numbers, COUNT)}, {places} {e.argument(index, COUNT)}"
    depth = max(numbers.depth, index.depth)
    return e.place(f"call {floats} @{function}({operands})", "float", COUNT, depth)


_FIND = "llvm.x86.avx512.permvar.sf.512"  # looks at the lower four bits of each place


def _place(
    bits: Instruction, program: Sequence[Instruction], values: Sequence[Value]
) -> Value | None:
    """What has four bits as its lower ones, if they are masked."""
    if bits.op != "bitwise_and":
        return None
    for k, other in (bits.args, bits.args[::-1]):
        if program[k].op == "constant" and program[k].attrs[0] == COUNT - 1:
            return values[other]
    return None
