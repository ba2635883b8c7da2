"""Code of the user's that is named as Python's or torch's own is the user's: what it does may
change between calls."""

from __future__ import annotations

import collections
import dataclasses
import functools
import importlib
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ingot
from ingot.origins import is_trusted, trusts_function

MODULE = """
class Config:
    size = 3

    def scaled(self, x):
        return x * self.size

config = Config()

def helper(x, by=1):
    return x + by

def forward(x):
    return config.scaled(helper(x)) * Config.size
"""


def unlike(x: Tensor, by: int = 1) -> Tensor:
    return x * 100


CHANGES: dict[str, Callable[[Any], None]] = {
    "a function": lambda m: setattr(m, "helper", unlike),
    "a function's code": lambda m: setattr(m.helper, "__code__", unlike.__code__),
    "a default": lambda m: setattr(m.helper, "__defaults__", (7,)),
    "a class": lambda m: setattr(m, "Config", type("Config", (), {"size": 9})),
    "an attribute of a class": lambda m: setattr(m.Config, "size", 5),
    "a method": lambda m: setattr(m.Config, "scaled", lambda self, x: x - 3),
    "an object": lambda m: setattr(m, "config", types.SimpleNamespace(scaled=lambda x: x - 3)),
}


@pytest.fixture(params=["profile", "code", "antigravity", "sched", "__phello__"])
def module(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A file of the user's that is called as one of the standard library, and found before it."""
    (tmp_path / f"{request.param}.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.delitem(sys.modules, request.param, raising=False)
    spec = importlib.util.spec_from_file_location(request.param, tmp_path / f"{request.param}.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, request.param, made)
    spec.loader.exec_module(made)
    yield made


def follows(function: Callable[..., Any], change: Callable[[], None]) -> None:
    compiled, x = ingot.compile(function), torch.arange(3.0)
    torch.testing.assert_close(compiled(x), function(x))
    before = function(x)
    change()
    torch.testing.assert_close(compiled(x), function(x))
    assert not torch.equal(before, function(x))


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_called_as_one_of_the_standard_library(module: Any, change: str) -> None:
    assert not is_trusted(module.__name__)
    follows(module.forward, lambda: CHANGES[change](module))


SCALE = 2.0


def shift(x: Tensor) -> Tensor:
    return x + 1


WRAPPED = [
    F.relu,
    F.max_pool2d,
    torch.functional.norm,
    functools.reduce,
    nn.Module.__call__,
    numpy.sum,
    torch.no_grad,
]
OF_A_FUNCTION: dict[str, Callable[[Any, pytest.MonkeyPatch], None]] = {
    "a global": lambda f, patch: patch.setitem(globals(), "SCALE", 5.0),
    "a helper": lambda f, patch: patch.setitem(globals(), "shift", unlike),
    "its code": lambda f, patch: setattr(f, "__code__", unlike.__code__),
    "its default": lambda f, patch: setattr(f, "__defaults__", (7,)),
}


@pytest.mark.parametrize("change", OF_A_FUNCTION)
@pytest.mark.parametrize("wrapped", WRAPPED, ids=lambda f: f.__qualname__)
def test_a_function_that_wraps_one_of_torchs(
    wrapped: Any, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @functools.wraps(wrapped)
    def replacement(x: Tensor, by: int = 1) -> Tensor:
        return shift(x) * SCALE + by

    def call(x: Tensor) -> Tensor:
        return replacement(x)

    follows(call, lambda: OF_A_FUNCTION[change](replacement, monkeypatch))


def forged(name: str) -> type:
    return type("Forged", (), {"__module__": name})


CLASSES: dict[str, Callable[[], type]] = {
    "make_dataclass": lambda: dataclasses.make_dataclass("Record", []),
    "new_class": lambda: types.new_class("Record"),
    "namedtuple": lambda: collections.namedtuple("Record", ""),
    "types": lambda: forged("types"),
    "torch": lambda: forged("torch"),
    "torch.nn": lambda: forged("torch.nn"),
    "enum": lambda: forged("enum"),
}


@pytest.mark.parametrize("kind", CLASSES)
def test_classes_that_are_made_for_the_user(kind: str) -> None:
    cls: Any = CLASSES[kind]()
    cls.size, record = 3.0, cls()
    follows(lambda x: x * record.size, lambda: setattr(cls, "size", 5.0))


@pytest.mark.parametrize(
    "name",
    ["os", "os.path", "sys", "math", "collections.abc", "importlib._bootstrap", "functools"]
    + ["json.decoder", "_struct", "torch", "torch.nn.functional", "torch._C._nn", "torch.ops"]
    + ["numpy", "numpy.linalg", "ingot.capture.polyfills"],
)
def test_what_is_trusted(name: str) -> None:
    importlib.import_module("_struct")
    assert is_trusted(name)


USERS = None, "", "__main__", "tests", "ingot.api", "torchvision", "numpyro", "ingot_x", "oss"


@pytest.mark.parametrize("name", USERS)
def test_what_is_not(name: str | None) -> None:
    assert not is_trusted(name)


def test_functions_that_are_trusted() -> None:
    assert all(
        map(trusts_function, (F.relu, F.max_pool2d, functools.reduce, os.path.join, numpy.sum, len))
    )
    assert not trusts_function(shift) and not trusts_function(functools.wraps(F.relu)(lambda x: x))
