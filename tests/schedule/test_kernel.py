"""Stages rewritten: what uses a value follows it to its new position."""

from __future__ import annotations

import torch

from ingot.loops.expr import loop_symbol
from ingot.loops.ir import Body, BodyBuilder, Instruction
from ingot.schedule.kernel import Accumulate, Define, Stage, Store

i = loop_symbol("i", 10)
FLOAT = torch.float32


def load(name: str) -> Instruction:
    return Instruction("load", (), FLOAT, (name, i))


def apply(op: str, *args: int) -> Instruction:
    return Instruction(op, args, FLOAT)


STAGE = Stage(
    (i,),
    Body((load("a"), load("b"), apply("sin", 1), apply("add", 0, 2)), ()),
    (Store("c", i, 3), Store("d", i, 0, "add")),
    (Accumulate("sum", 2, "s0", FLOAT),),
    (Define("s1", 1),),
)


def test_the_identity() -> None:
    assert STAGE.rewrite(BodyBuilder.append) == STAGE
    assert STAGE.without_dead() is STAGE
    assert STAGE.values == {0, 1, 2, 3}


def test_users_follow_values() -> None:
    def negated(builder: BodyBuilder, i: Instruction) -> int:
        value = builder.append(i)
        return builder.emit("neg", (value,), FLOAT) if i.op == "load" else value

    assert STAGE.rewrite(negated) == Stage(
        (i,),
        Body(
            (
                load("a"),
                apply("neg", 0),
                load("b"),
                apply("neg", 2),
                apply("sin", 3),
                apply("add", 1, 4),
            ),
            (),
        ),
        (Store("c", i, 5), Store("d", i, 1, "add")),
        (Accumulate("sum", 4, "s0", FLOAT),),
        (Define("s1", 3),),
    )


def test_remapped_onto_another_body() -> None:
    body = Body((load("x"),), ())
    remapped = STAGE.remap(body, dict.fromkeys(range(4), 0))
    assert remapped.body == body and remapped.loops == STAGE.loops
    assert remapped.values == {0}
    assert [s.mode for s in remapped.stores] == ["store", "add"]


def test_dead_instructions_go() -> None:
    stage = Stage(STAGE.loops, STAGE.body, (Store("c", i, 2),))
    assert stage.without_dead() == Stage(
        STAGE.loops, Body((load("b"), apply("sin", 0)), ()), (Store("c", i, 1),)
    )


def test_buffers_renamed_in_loads_and_stores() -> None:
    renamed = STAGE.with_buffers(str.upper)
    assert [i.attrs[0] for i in renamed.body.loads] == ["A", "B"]
    assert [s.buffer for s in renamed.stores] == ["C", "D"]
