"""Bodies rewritten: `BodyBuilder`, `Body.rewrite` and what is made of them."""

from __future__ import annotations

import math

import torch

from ingot.loops.expr import loop_symbol, value_symbol
from ingot.loops.ir import Body, BodyBuilder, Fault, Instruction

i = loop_symbol("i", 10)
FLOAT = torch.float32


def load(name: str, *condition: int) -> Instruction:
    return Instruction("load", condition, FLOAT, (name, i))


def apply(op: str, *args: int) -> Instruction:
    return Instruction(op, args, FLOAT)


# a and b are loaded, and sin(a) * b + sin(a) is the result
BODY = Body((load("a"), apply("sin", 0), load("b"), apply("mul", 1, 2), apply("add", 3, 1)), (4,))


def test_the_identity() -> None:
    assert BODY.rewrite(BodyBuilder.append) == BODY


def test_instructions_dropped() -> None:
    def without_sin(builder: BodyBuilder, i: Instruction) -> int:
        return i.args[0] if i.op == "sin" else builder.append(i)

    assert BODY.rewrite(without_sin) == Body(
        (load("a"), load("b"), apply("mul", 0, 1), apply("add", 2, 0)), (3,)
    )


def test_one_instruction_becomes_several() -> None:
    def squared(builder: BodyBuilder, i: Instruction) -> int:
        value = builder.append(i)
        return builder.emit("mul", (value, value), FLOAT) if i.op == "sin" else value

    assert BODY.rewrite(squared) == Body(
        (
            load("a"),
            apply("sin", 0),
            apply("mul", 1, 1),
            load("b"),
            apply("mul", 2, 3),
            apply("add", 4, 2),
        ),
        (5,),
    )


def test_the_result_may_become_another_value() -> None:
    def first_addend(builder: BodyBuilder, i: Instruction) -> int:
        return i.args[0] if i.op == "add" else builder.append(i)

    assert BODY.rewrite(first_addend) == BODY._replace(
        instructions=BODY.instructions[:4], results=(3,)
    )


def test_a_body_in_place_of_loads() -> None:
    inner = Body((load("c"), load("a"), apply("sub", 0, 1)), (2,))

    def computed(builder: BodyBuilder, i: Instruction) -> int:
        if i.op == "load" and i.attrs[0] == "b":
            return builder.copy(inner)[inner.results[0]]
        return builder.append(i)

    # the load of a, which both have, is one instruction
    assert BODY.rewrite(computed) == Body(
        (
            load("a"),
            apply("sin", 0),
            load("c"),
            apply("sub", 2, 0),
            apply("mul", 1, 3),
            apply("add", 4, 1),
        ),
        (5,),
    )


def test_several_results_of_which_two_become_one() -> None:
    body = Body((load("a"), load("b"), apply("sin", 0), apply("sin", 1)), (3, 2, 0))
    same = body.with_buffers({"a": "x", "b": "x"}.__getitem__)
    assert same.rewrite(BodyBuilder.append) == Body((load("x"), apply("sin", 0)), (1, 1, 0))


def test_part_of_a_body() -> None:
    builder = BodyBuilder()
    assert BODY.needed([3]) == [0, 1, 2, 3]
    assert builder.copy(BODY, only=BODY.needed([2])) == {2: 0}
    assert builder.body(0) == Body((load("b"),), (0,))
    assert BODY.needed([]) == []


def test_dead_instructions_go_but_lookups_stay() -> None:
    symbol = value_symbol("v", 5)
    lookup = Instruction(
        "indirect", (1,), torch.int64, (symbol, symbol.extent, Fault(IndexError, ""))
    )
    body = Body(
        (load("a"), Instruction("load", (), torch.int64, ("n", i)), lookup, load("b")), (3,)
    )
    assert body.without_dead() == Body(
        (body.instructions[1], lookup._replace(args=(0,)), load("b")), (2,)
    )
    assert BODY.without_dead() is BODY


def test_conditions() -> None:
    builder = BodyBuilder()
    first = builder.constant(True, torch.bool)
    second = builder.constant(False, torch.bool)
    assert builder.under(first, apply("sin", 0)) == apply("sin", 0)
    assert builder.under(first, load("a")) == load("a", first)
    both = builder.under(second, load("a", first))
    assert builder.instructions[both.args[0]] == Instruction(
        "logical_and", (first, second), torch.bool
    )
    value = builder.append(load("a"))
    assert builder.in_place_of(load("b"), value) == value
    chosen = builder.instructions[builder.in_place_of(load("b", first), value)]
    assert chosen.op == "where" and chosen.args[:2] == (first, value)
    assert builder.instructions[chosen.args[2]] == Instruction.constant(0, FLOAT)


def test_constants_are_equal_where_their_bits_are() -> None:
    builder = BodyBuilder()
    assert builder.constant(0.0, FLOAT) == builder.constant(0.0, FLOAT)
    assert builder.constant(-0.0, FLOAT) != builder.constant(0.0, FLOAT)
    assert builder.constant(-0.0, FLOAT) == builder.constant(-0.0, FLOAT)
    assert builder.constant(float("nan"), FLOAT) == builder.constant(-math.nan, FLOAT)
    assert builder.constant(1, torch.int64) != builder.constant(True, torch.bool)
