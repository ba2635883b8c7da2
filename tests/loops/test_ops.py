"""The scalar op table and the recorder of bodies."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ingot.codegen.llvm.scalar import supported_ops
from ingot.loops import ops
from ingot.loops.expr import integer, loop_symbol
from ingot.loops.ir import Fault
from ingot.loops.ops import apply, constant

i = loop_symbol("i", 10)


def test_every_row_works_on_each_of_its_types() -> None:
    names = {getattr(np, str(d).removeprefix("torch."), np.bool_): d for d in ops.ALL}
    for row in ops.OPS.values():
        for numpy_type, dtype in names.items():
            if dtype not in row.types:
                continue
            args = [np.array([1, 2]).astype(numpy_type) for _ in range(row.arity)]
            with np.errstate(all="ignore"):
                result = row.reference(*args)
            assert result.dtype == (np.bool_ if row.result == "bool" else numpy_type), (
                row.name,
                dtype,
            )


def test_the_code_generator_emits_every_row() -> None:
    missing = {row.name: row.types - supported_ops.get(row.name, set()) for row in ops.OPS.values()}
    assert not {name: types for name, types in missing.items() if types}


def test_equal_instructions_are_recorded_once() -> None:
    with ops.recording() as r:
        x = ops.load("b", i, torch.float32)
        y = apply("add", apply("sin", x), apply("sin", ops.load("b", i, torch.float32)))
        body = r.body(y)
    assert [n.op for n in body.instructions] == ["load", "sin", "add"]
    assert body.instructions[2].args == (1, 1)


def test_what_is_not_needed_is_dropped_but_not_an_index_in_use() -> None:
    with ops.recording() as r:
        position = ops.load("ids", i, torch.int64)
        apply("sin", constant(1.0, torch.float32))
        row = ops.indirect(position, 5, Fault(IndexError, "too far"))
        body = r.body(ops.load("table", row * 4, torch.float32))
    assert [n.op for n in body.instructions] == ["load", "indirect", "load"]


def test_halves_that_need_no_rounding_are_not_widened() -> None:
    half = torch.bfloat16
    with ops.recording() as r:
        x = ops.to(ops.load("b", i, half), torch.float32)
        below = apply("lt", x, constant(0.0, torch.float32))
        chosen = apply("where", below, constant(0.5, torch.float32), apply("neg", x))
        body = r.body(
            ops.to(chosen, half),
            ops.to(apply("where", below, constant(0.3, torch.float32), x), half),
        )
    assert [n.op for n in body.instructions if n.dtype is half] == [
        "load",
        "constant",
        "neg",
        "where",
        "to",
    ]


def test_constants_fold() -> None:
    with ops.recording() as r:
        x = ops.load("b", i, torch.float32)
        assert apply("mul", x, constant(1.0, torch.float32)) == x
        assert apply("sub", x, constant(0.0, torch.float32)) == x
        assert apply("add", x, constant(0.0, torch.float32)) != x  # -0.0 + 0.0 is 0.0
        yes = apply("lt", ops.index(integer(1)), ops.index(integer(2)))
        assert r.constant_of(yes) is True
        assert apply("where", yes, x, constant(3.0, torch.float32)) == x
        assert constant(0.0, torch.float32) != constant(-0.0, torch.float32)
        assert r.constant_of(constant(0.1, torch.float32)) == np.float32(0.1)
        assert r.constant_of(constant(300, torch.uint8)) == 44


def test_widening_and_narrowing_again_is_nothing() -> None:
    with ops.recording():
        x = ops.load("b", i, torch.bfloat16)
        wide = ops.to(x, torch.float32)
        assert ops.to(wide, torch.bfloat16) == x
        rounded = ops.to(ops.to(apply("sin", wide), torch.bfloat16), torch.float32)
        assert ops.dtype_of(rounded) is torch.float32 and rounded != apply("sin", wide)


def test_masks_nest() -> None:
    with ops.recording() as r:
        a = apply("lt", ops.index(i), ops.index(integer(5)))
        b = apply("ge", ops.index(i), ops.index(integer(2)))
        with ops.masked(a), ops.masked(b):
            inner = ops.load("b", i, torch.float32)
        outer = ops.load("b", i, torch.float32)
        assert r.instructions[r.instructions[inner].args[0]].op == "logical_and"
        assert r.instructions[outer].args == ()


def test_a_body_needs_a_recorder() -> None:
    with pytest.raises(RuntimeError):
        constant(1, torch.int64)


def test_the_sets_of_ops_follow_from_their_costs() -> None:
    assert {"add", "where", "copysign"} <= ops.CHEAP and {"exp", "pow", "gcd"} <= ops.FUNCTIONS
    assert {"div", "floor", "sqrt"}.isdisjoint(ops.CHEAP | ops.FUNCTIONS)
    assert ops.cost("constant") == 0 and ops.cost("running") == ops.cost("add") == 1
    assert ops.cost("to") < ops.cost("load") < ops.cost("exp") < ops.cost("sin")
