"""Attributes of classes that a function sets: flags and settings, as libraries have them."""

from __future__ import annotations

import abc
import time
from typing import Any

import pytest
import torch

import ingot
from ingot.compiler import Compiler

X = torch.arange(3.0)


class Setting:
    _default: Any = False
    _state: Any = None
    name = "plain"

    @classmethod
    def on(cls) -> Any:
        return cls._default if cls._state is None else cls._state

    @classmethod
    def set_state(cls, state: Any) -> None:
        cls._state = state

    def __init__(self, state: Any = True) -> None:
        self.before = self.__class__._state
        self.state = state

    def __enter__(self) -> None:
        self.__class__.set_state(self.state)

    def __exit__(self, *_: object) -> None:
        self.__class__.set_state(self.before)


class Inner(Setting):
    pass


class Innermost(Inner):
    _default = 2


class Abstract(abc.ABC):  # noqa: B024
    level = 1


class Meta(type):
    def __setattr__(cls, name: str, value: Any) -> None:
        super().__setattr__(name, ("meta", value))


class Watched(metaclass=Meta):
    level: Any = 1


class Described:
    @property
    def level(self) -> int:
        return 4


CLASSES = (Setting, Inner, Innermost, Abstract, Watched, Described)


@pytest.fixture(autouse=True)
def put_back() -> Any:
    before = [dict(vars(cls)) for cls in CLASSES]
    yield
    restore(before)


def restore(before: list[dict[str, Any]]) -> None:
    for cls, names in zip(CLASSES, before):
        for name in set(vars(cls)) - set(names):
            delattr(cls, name)
        for name, value in names.items():
            if not name.startswith("__") and vars(cls)[name] is not value:
                type.__setattr__(cls, name, value)


def states() -> list[Any]:
    return [
        {k: v for k, v in vars(cls).items() if k in ("_state", "name", "level")} for cls in CLASSES
    ]


# -- what functions do -----------------------------------------------------------------------------


def in_a_context(x):
    with Setting():
        return x * Setting.on(), Setting.on(), Inner.on(), Innermost.on()


def of_a_subclass(x):
    with Inner(5):
        inside = Setting.on(), Inner.on(), Innermost.on(), Innermost()._state
    return x + 1, inside, Inner.on()


def one_in_another(x):
    with Setting(1), Inner(2):
        with Setting(3):
            inside = Setting.on(), Inner.on(), Innermost.on()
        return x + 1, inside, Setting.on(), Inner.on()


def set_for_good(x):
    Setting._state = "kept"
    return x + 1, Inner.on()


def of_an_instance(x):
    instance = Setting()
    instance.name = "own"
    Setting.name = "of the class"
    other = Setting()
    return x + 1, instance.name, other.name, Inner.name, getattr(Inner, "name", None)


def by_setattr(x):
    setattr(Inner, "name", "set")  # noqa: B010
    return x + 1, Inner.name, Setting.name, hasattr(Innermost, "fresh")


def a_new_name(x):
    Setting.fresh = 7  # type: ignore[attr-defined]
    return x + Innermost.fresh, hasattr(Setting, "fresh")  # type: ignore[attr-defined]


def over_a_break(x):
    with Setting(4):
        now = time.time() > 0
        return x * Setting.on(), now


def before_an_error(x):
    Setting._state = 9
    try:
        Setting._state = 10
        raise ValueError(Setting.on())
    except ValueError as error:
        return x + 1, str(error)


def of_an_abstract_class(x):
    Abstract.level = 2
    return x * Abstract.level


def by_a_metaclass(x):
    Watched.level = 2
    return x + 1, Watched.level


def in_place_of_a_property(x):
    Described.level = 5  # type: ignore[method-assign, assignment]
    return x + 1, Described().level


def a_function(x):
    Setting.double = lambda self, y: y * 2  # type: ignore[attr-defined]
    return Setting().double(x)  # type: ignore[attr-defined]


def its_dict(x):
    Setting._state = 6
    return x + 1, vars(Setting)["_state"], "_state" in Inner.__dict__


def by_super(x):
    Setting.name = "super"
    return x + 1, super(Innermost, Innermost()).name  # type: ignore[misc]


def counted(x):
    Abstract.level += 1
    return x * Abstract.level


IN_ONE_GRAPH = (
    in_a_context,
    of_a_subclass,
    one_in_another,
    set_for_good,
    of_an_instance,
    by_setattr,
    a_new_name,
    before_an_error,
    of_an_abstract_class,
)
FUNCTIONS = (
    *IN_ONE_GRAPH,
    over_a_break,
    by_a_metaclass,
    in_place_of_a_property,
    a_function,
    its_dict,
    by_super,
    counted,
)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_settings(fn: Any) -> None:
    """Results, and what classes have after each of nine calls; in between they are put back."""
    before = [dict(vars(cls)) for cls in CLASSES]

    def calls(function: Any) -> list[Any]:
        seen = []
        for i in range(9):
            if i in (3, 6):
                restore(before)
            seen.append((str(function(X)), states()))
        restore(before)
        return seen

    compiled = ingot.compile(fn, fullgraph=fn in IN_ONE_GRAPH, backend="eager")
    assert calls(compiled) == calls(fn)


def test_another_setting_is_compiled_for() -> None:
    compiled = ingot.compile(in_a_context, fullgraph=True, backend="eager")
    for state in (None, 3, None, 3):
        Innermost._state = state
        assert str(compiled(X)) == str(in_a_context(X))
    compiler = Compiler.of(compiled)
    assert compiler is not None and len(compiler.compilations) == 2


def test_what_is_counted_is_not_compiled_for_each_number() -> None:
    compiled = ingot.compile(counted, backend="eager")
    for _ in range(20):
        compiled(X)
    compiler = Compiler.of(compiled)
    assert compiler is not None
    assert len([one for one in compiler.compilations if one.break_ is None]) < 20


def test_a_subclass_that_sets_its_own() -> None:
    """The class that a lookup finds is guarded, not only what it finds."""

    def fn(x):
        Setting._state = True
        return x + 1, Inner.on()

    compiled = ingot.compile(fn, fullgraph=True, backend="eager")
    assert compiled(X)[1] is True
    Setting._state, Inner._state = None, None
    assert compiled(X)[1] is False
