"""Sources: interning, names, loading, and their last step."""

from __future__ import annotations

import gc
from collections import OrderedDict, defaultdict
from typing import Any

import pytest
import torch

from ingot.capture.sources import (
    ArgSource,
    AttrSource,
    BuiltinSource,
    CellSource,
    ClassAttrSource,
    ConstSource,
    DictKeysSource,
    FunctionFieldSource,
    GlobalSource,
    InstanceDictSource,
    ItemSource,
    Source,
    TypeSource,
    _interned,
)

SELF = ArgSource(0, "self")


def at(base: Source, table: str, key: str) -> Source:
    return ItemSource(AttrSource(base, table), key)


class Base:
    flag = 1

    def method(self) -> int:
        return self.flag


class Derived(Base):
    flag = 2


def outer(variable: Any) -> Any:
    def inner(a: int = 5, *, b: int = 6) -> Any:
        return variable, a, b

    return inner


NETWORK = torch.nn.ModuleDict({"h": torch.nn.ModuleList([torch.nn.Linear(2, 3)])})
FUNCTION = outer("held")

TABLE: list[tuple[Source, Any, str, Any]] = [
    (SELF, 7, "self", 7),
    (ConstSource(Base), 0, "Base", Base),
    (GlobalSource(globals(), "TABLE"), 0, "TABLE", ...),
    (BuiltinSource("len"), 0, "len", len),
    (AttrSource(SELF, "training"), NETWORK, "self.training", True),
    (at(at(SELF, "_modules", "h"), "_modules", "0"), NETWORK, "self.h[0]", NETWORK["h"][0]),
    (
        at(at(at(SELF, "_modules", "h"), "_modules", "0"), "_parameters", "weight"),
        NETWORK,
        "self.h[0].weight",
        NETWORK["h"][0].weight,
    ),
    (InstanceDictSource(SELF), NETWORK, "self.__dict__", NETWORK.__dict__),
    (ItemSource(SELF, -1), [1, 2], "self[-1]", 2),
    (ItemSource(SELF, "k"), defaultdict(int, k=3), "self['k']", 3),
    (AttrSource(SELF, "__self__", "slot"), [].append, "self.__self__", []),
    (FunctionFieldSource(SELF, "__kwdefaults__"), FUNCTION, "self.__kwdefaults__", {"b": 6}),
    (ItemSource(FunctionFieldSource(SELF, "__defaults__"), 0), FUNCTION, "self.__defaults__[0]", 5),
    (CellSource(SELF, 0, "variable"), FUNCTION, "variable", "held"),
    (CellSource(SELF, 0), FUNCTION, "self.__closure__[0].cell_contents", "held"),
    (TypeSource(SELF), Derived(), "type(self)", Derived),
    (ClassAttrSource(TypeSource(SELF), "flag"), Derived(), "type(self).flag", 2),
    (ClassAttrSource(SELF, "method"), Derived, "self.method", Base.__dict__["method"]),
    (DictKeysSource(SELF), OrderedDict(b=1, a=2), "tuple(self)", ("b", "a")),
]


@pytest.mark.parametrize(
    ("source", "value", "name", "loaded"), TABLE, ids=lambda value: getattr(value, "name", "")
)
def test_name_and_load(source: Source, value: Any, name: str, loaded: Any) -> None:
    assert source.name == name
    found = source.load((value,))
    expected = TABLE if loaded is ... else loaded
    assert found is expected or found == expected
    parent, access, _ = source.step
    assert access
    assert parent is None or isinstance(parent, Source)


@pytest.mark.parametrize(
    ("source", "value"),
    [
        (AttrSource(SELF, "gone"), NETWORK),
        (AttrSource(SELF, "gone"), 3),
        (ItemSource(SELF, 2), [1]),
        (ItemSource(SELF, "k"), defaultdict(int)),
        (ItemSource(SELF, 0), 3),
        (FunctionFieldSource(SELF, "__code__"), len),
        (CellSource(SELF, 0), outer),
        (ClassAttrSource(SELF, "gone"), Derived),
        (ClassAttrSource(SELF, "flag"), Derived()),
        (DictKeysSource(SELF), [1]),
        (GlobalSource(globals(), "no such global"), None),
    ],
)
def test_a_lost_path_raises_what_guards_expect(source: Source, value: Any) -> None:
    with pytest.raises((LookupError, AttributeError, TypeError)):
        source.load((value,))


def test_loading_does_not_create_items() -> None:
    counts: defaultdict[str, int] = defaultdict(int)
    with pytest.raises(KeyError):
        ItemSource(SELF, "k").load((counts,))
    assert not counts


def test_equal_paths_are_one_object() -> None:
    assert AttrSource(SELF, "x") is AttrSource(ArgSource(0, "self"), "x")
    assert AttrSource(SELF, "x") is not AttrSource(SELF, "x", "slot")
    assert ItemSource(SELF, 1) is not ItemSource(SELF, True)
    assert ItemSource(SELF, 0.0) is not ItemSource(SELF, 0)
    one, other = [1], [1]
    assert ConstSource(one) is ConstSource(one)
    assert ConstSource(one) is not ConstSource(other)


def test_sources_are_immutable_and_freed() -> None:
    with pytest.raises(AttributeError):
        SELF.index = 3  # type: ignore[attr-defined, misc]
    gc.collect()
    before = len(_interned)
    made = [AttrSource(SELF, f"attribute{i}") for i in range(100)]
    assert len(_interned) == before + 100
    del made
    gc.collect()
    assert len(_interned) == before
