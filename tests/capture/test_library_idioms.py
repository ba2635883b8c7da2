"""What model libraries do around tensors: configuration objects with hooks on attributes, results
that are dicts with attributes, flags that are set for the time of a call, signatures that are
looked at."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from dataclasses import dataclass, fields
from typing import Any

import torch

import ingot
from ingot.compiler import Compiler


class Config:
    alias = {"width": "size"}

    def __init__(self, size: float) -> None:
        self.size, self.flag = size, False

    def __getattribute__(self, name: str) -> Any:
        names = super().__getattribute__("__dict__").get("names")
        known = super().__getattribute__("alias") if names is None else names
        return super().__getattribute__(known.get(name, name))

    def __getattr__(self, name: str) -> Any:
        if name == "made_up":
            return 3.0
        raise AttributeError(name)


class Output(OrderedDict):
    def __post_init__(self) -> None:
        for field in fields(self):  # type: ignore[arg-type]
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        super().__setattr__(key, value)

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(key) if isinstance(key, str) else tuple(self.values())[key]


@dataclass
class Pair(Output):
    first: torch.Tensor | None = None
    second: torch.Tensor | None = None


class Registry(dict):
    def get(self, key: str) -> float:  # type: ignore[override]
        return super().get(key.lower()) or 1.0


REGISTRY = Registry(half=0.5)
X = torch.arange(4.0)


def compiled(fn: Any) -> Any:
    return ingot.compile(fn, fullgraph=True)


def compilations(fn: Any) -> int:
    compiler = Compiler.of(fn)
    assert compiler is not None
    return len(compiler.compilations)


def test_getattribute_written_in_python() -> None:
    config = Config(2.0)
    fn = compiled(lambda x: x * config.width + config.made_up + hasattr(config, "absent"))
    assert torch.equal(fn(X), X * 2 + 3)
    config.size = 5.0
    assert torch.equal(fn(X), X * 5 + 3)


def test_dict_with_attributes_is_returned() -> None:
    fn = compiled(lambda x: Pair(first=x + 1))
    made, expected = fn(X), Pair(first=X + 1)
    assert type(made) is Pair and list(made) == list(expected) == ["first"]
    assert made.first is made["first"] is made[0] and made.second is None
    assert torch.equal(made.first, X + 1)
    assert torch.equal(compiled(lambda x: Pair(x, x * 2)[1] + len(Pair(x)))(X), X * 2 + 1)


def test_dict_subclass_from_outside_is_guarded_by_key() -> None:
    fn = compiled(lambda x: x * REGISTRY.get("HALF") + REGISTRY.get("none"))
    assert torch.equal(fn(X), X * 0.5 + 1)
    REGISTRY["unrelated"] = 7.0
    assert torch.equal(fn(X), X * 0.5 + 1)
    assert compilations(fn) == 1
    REGISTRY["half"] = 0.25
    assert torch.equal(fn(X), X * 0.25 + 1)
    REGISTRY["none"] = 4.0
    assert torch.equal(fn(X), X * 0.25 + 4)
    REGISTRY.clear()
    REGISTRY["half"] = 0.5


class Flags:
    def __init__(self) -> None:
        self.on, self.scale = False, 2.0


def test_attribute_set_for_the_time_of_a_call() -> None:
    flags = Flags()

    def inner(x: torch.Tensor, other: Flags) -> torch.Tensor:
        return x * other.scale if other.on else x

    def outer(x: torch.Tensor, other: Flags) -> torch.Tensor:
        before = flags.on
        flags.on = True
        try:
            return inner(x, other)
        finally:
            flags.on = before

    fn = compiled(outer)
    assert torch.equal(fn(X, flags), X * 2) and flags.on is False
    assert torch.equal(fn(X, Flags()), X)  # another object, whose flag was not set
    assert torch.equal(fn(X, flags), X * 2)
    flags.scale = 3.0
    assert torch.equal(fn(X, flags), X * 3)


def test_attribute_that_stays_set() -> None:
    flags = Flags()

    def outer(x: torch.Tensor) -> torch.Tensor:
        flags.scale = 4.0
        return x + 1

    assert torch.equal(compiled(outer)(X), X + 1) and flags.scale == 4.0


def test_signature() -> None:
    def two(a: torch.Tensor, b: int = 1) -> torch.Tensor:
        return a + b

    fn = compiled(
        lambda x: (
            x * len(inspect.signature(two).parameters) + ("b" in inspect.signature(two).parameters)
        )
    )
    assert torch.equal(fn(X), X * 2 + 1)
