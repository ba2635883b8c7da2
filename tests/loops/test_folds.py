"""Each identity of the scalar ops, bit by bit, against their NumPy reference."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from ingot.loops import ops
from ingot.loops.expr import loop_symbol
from ingot.loops.folds import CONSTANT, FOLDS, Fold
from ingot.loops.ir import BodyBuilder, Instruction
from tests.loops.test_lowering import lowered

FLOATS = (0.0, -0.0, 1.0, -1.0, 0.3, -2.5, 5e-324, 1e-45, 3e38, np.inf, -np.inf, np.nan)
INTS = (0, 1, -1, 2, 7, -128)
i = loop_symbol("i", 10)


def values_of(dtype: torch.dtype) -> np.ndarray:
    """Awkward values of a dtype."""
    kind = np.dtype(str(dtype).removeprefix("torch."))
    if dtype is torch.bool:
        return np.array([False, True])
    with np.errstate(over="ignore", under="ignore"):
        if dtype.is_floating_point:
            return np.array(FLOATS).astype(kind)
        ends = np.iinfo(kind)
        return np.array([*np.array(INTS).astype(kind), ends.min, ends.max], kind)


def types_of(fold: Fold) -> list[torch.dtype]:
    types = ops.OPS[fold.op].types - ops.HALVES
    return sorted((t for t in types if fold.of_floats or not t.is_floating_point), key=str)


def arguments(fold: Fold, dtype: torch.dtype) -> Iterator[list[Any]]:
    """The values of an op's arguments, of which each letter takes all that are awkward."""
    types = [torch.bool if k == "c" or isinstance(k, bool) else dtype for k in fold.operands]
    names = [f"{k}{n}" if k == CONSTANT else k for n, k in enumerate(fold.operands)]
    free = {k: values_of(t) for k, t in zip(names, types) if isinstance(k, str)}
    for chosen in itertools.product(*free.values()):
        known = dict(zip(free, chosen))
        yield [
            known[k] if isinstance(k, str) else values_of(t).dtype.type(k)
            for k, t in zip(names, types)
        ]


def expected(fold: Fold, args: list[Any]) -> Any:
    if isinstance(fold.result, str):
        return args[fold.operands.index(fold.result)]
    if isinstance(fold.result, bool):
        return np.bool_(fold.result)
    return np.bool_(fold.result(*[a.item() for a in args]))


def is_same(a: Any, b: Any) -> bool:
    """Whether two numbers have the same bits; a NaN is any other."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.dtype == b.dtype
    return a.tobytes() == b.tobytes() or bool(a != a and b != b)


def holds(fold: Fold, dtype: torch.dtype) -> bool:
    reference = ops.OPS[fold.op].reference
    with np.errstate(all="ignore"):
        return all(
            is_same(reference(*args), expected(fold, args)) for args in arguments(fold, dtype)
        )


@pytest.mark.parametrize("fold", FOLDS, ids=lambda fold: f"{fold.op}{fold.operands}")
def test_it_holds_for_all_values(fold: Fold) -> None:
    assert types_of(fold)
    for dtype in types_of(fold):
        assert holds(fold, dtype), dtype


def test_floats_are_left_out_where_it_does_not_hold_for_them() -> None:
    left_out = [fold for fold in FOLDS if not fold.of_floats]
    assert {fold.op for fold in left_out} == {"add"}
    assert not any(holds(fold, torch.float32) for fold in left_out)


@pytest.mark.parametrize("fold", FOLDS, ids=lambda fold: f"{fold.op}{fold.operands}")
def test_a_builder_applies_it(fold: Fold) -> None:
    dtype = types_of(fold)[0]
    builder = BodyBuilder()
    letters: dict[str, int] = {}
    args = []
    for k in fold.operands:
        kind = torch.bool if k == "c" or isinstance(k, bool) else dtype
        if k == CONSTANT or not isinstance(k, str):
            args.append(builder.constant(1 if isinstance(k, str) else k, kind))
            continue
        letters.setdefault(k, builder.emit("load", (), kind, (k, i)))
        args.append(letters[k])
    result = torch.bool if ops.OPS[fold.op].result == "bool" else dtype
    value = builder.fold(Instruction(fold.op, tuple(args), result))
    if isinstance(fold.result, str):
        assert value == letters[fold.result]
    elif isinstance(fold.result, bool):
        assert builder.constant_of(value) is fold.result
    else:
        assert builder.constant_of(value) == fold.result(1, 1)


def test_clamping_a_value_to_itself_costs_nothing() -> None:
    loops = lowered(lambda x: x.clamp(x, x) + 1, torch.randn(4))
    assert not {"minimum", "maximum"} & {
        i.op for node in loops.nodes for i in node.body.instructions
    }


def test_what_looks_like_an_identity() -> None:
    builder = BodyBuilder()
    x = builder.emit("load", (), torch.float32, ("x", i))
    for op, number in (("sub", -0.0), ("add", 0.0), ("mul", 0.0), ("div", -1.0)):
        constant = builder.constant(number, torch.float32)
        value = builder.fold(Instruction(op, (x, constant), torch.float32))
        assert builder.instructions[value] == Instruction(op, (x, constant), torch.float32)
