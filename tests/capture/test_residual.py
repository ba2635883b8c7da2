"""Residuals: what is rebuilt is equal to the original, of the same types, and shares what the
original shares."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ingot.capture.residual import (
    Call,
    Collection,
    Constant,
    Dict,
    Filled,
    FromSource,
    Output,
    Recipe,
    Residual,
    named_tuple,
)
from ingot.capture.sources import ArgSource, AttrSource

Point = namedtuple("Point", "x y")


@dataclass
class Box:
    a: Any
    b: Any = 2


O0, O1 = Output(0), Output(1)
ARG = FromSource(ArgSource(1, "y"))


def tuple_of(*items: Recipe) -> Recipe:
    return Collection(tuple, items)


def list_of(*items: Recipe) -> Recipe:
    return Collection(list, items)


def instance(cls: Any, attributes: dict[str, Recipe]) -> Filled:
    fields = [(object.__setattr__, (Constant(name), item)) for name, item in attributes.items()]
    return Filled(Call(object.__new__, (Constant(cls),)), fields)


FREE = object()
NUMBER = 2.5

TABLE: list[tuple[Recipe, Any]] = [
    (O1, 11),
    (Constant(None), None),
    (Constant(NUMBER), NUMBER),
    (Constant(FREE), FREE),
    (ARG, "y"),
    (FromSource(AttrSource(ArgSource(0, "x"), "field")), "f"),
    (tuple_of(), ()),
    (tuple_of(O0), (10,)),
    (tuple_of(O1, O0), (11, 10)),
    (list_of(), []),
    (list_of(O0, Constant("it's")), [10, "it's"]),
    (Collection(set, ()), set()),
    (Collection(set, (O0, O1)), {10, 11}),
    (Collection(frozenset, (O0,)), frozenset({10})),
    (Dict(()), {}),
    (Dict(((Constant("k"), O0), (Constant(2), tuple_of(O1)))), {"k": 10, 2: (11,)}),
    (Call(slice, (Constant(1), O0)), slice(1, 10)),
    (Call(torch.Size, (list_of(O0, O1),)), torch.Size((10, 11))),
    (named_tuple(Point, (O0, ARG)), Point(10, "y")),
    (instance(Box, {"a": O0, "b": list_of(O1)}), Box(10, [11])),
]


@pytest.mark.parametrize(("recipe", "expected"), TABLE, ids=lambda value: type(value).__name__)
def test_rebuilds(recipe: Recipe, expected: Any) -> None:
    residual = Residual(recipe, 2)
    assert residual.kind == "general"
    built = residual.build((10, 11), (SimpleNamespace(field="f"), "y"))
    assert built == expected
    assert type(built) is type(expected)


def test_kinds_that_need_no_python() -> None:
    assert Residual(O0, 1).kind == "tensor"
    assert Residual(O0, 2).kind == "general"
    assert Residual(tuple_of(O0, O1), 2).kind == "tuple"
    assert Residual(tuple_of(O0), 2).kind == "general"
    assert Residual(list_of(O0), 1).kind == "general"
    assert Residual(tuple_of(O0, O1), 2).build((10, 11), ()) == (10, 11)


def test_what_is_shared_stays_shared() -> None:
    inner, box = list_of(O0), instance(Box, {"a": O1})
    key = tuple_of(O0, O1)
    built = Residual(tuple_of(inner, list_of(inner), box, Dict(((key, box),)), key), 2).build(
        (10, 11), ()
    )
    assert built[0] is built[1][0]
    assert built[2] is built[3][built[4]]
    assert next(iter(built[3])) is built[4]


def test_every_call_makes_new_objects() -> None:
    residual = Residual(tuple_of(list_of(O0), Dict(())), 1)
    first, second = residual.build((1,), ()), residual.build((1,), ())
    assert first == second
    assert first[0] is not second[0] and first[1] is not second[1]


def test_cycles_close() -> None:
    node = instance(Box, {})
    for name, part in {"a": node, "b": tuple_of(node, O0)}.items():
        node.steps.append((object.__setattr__, (Constant(name), part)))
    built = Residual(node, 1).build((10,), ())
    assert built.a is built and built.b[0] is built and built.b[1] == 10


def test_no_init_or_setattr_of_the_user_runs() -> None:
    class Strict:
        def __init__(self) -> None:
            raise AssertionError("called")

        __setattr__ = __init__  # type: ignore[assignment]

    assert Residual(instance(Strict, {"a": O0}), 1).build((3,), ()).a == 3


def test_the_text_is_the_program() -> None:
    assert str(
        Residual(Dict(((Constant("loss"), O0), (Constant("x"), FromSource(ArgSource(0, "x"))))), 1)
    ) == ("def residual(outputs, slots):\n    return {'loss': outputs[0], 'x': slots[0]}\n")
