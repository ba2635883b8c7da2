"""Calls without end leak nothing, what was compiled goes with its function, and threads do not
disturb each other.

`python -m benchmarks.endurance` makes a million calls of each scenario.
"""

from __future__ import annotations

import gc
import sys
import threading
import types
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from benchmarks import endurance
from ingot.compiler import Compiler

pytestmark = pytest.mark.own_objects


@pytest.mark.parametrize("name", endurance.SCENARIOS)
def test_calls_leave_nothing_behind(name: str) -> None:
    found = endurance.measure(name, 2500)
    if found.leaks:  # the process may have grown for reasons of its own; what leaks does so again
        found = endurance.measure(name, 2500)
    assert not found.leaks, found


@pytest.mark.parametrize("kind", ["object", "reference", "block"])
def test_a_leak_is_noticed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []
    argument = object()
    leak = {"object": lambda: [], "reference": lambda: argument, "block": lambda: bytes(100)}[kind]

    def leaking() -> Any:
        return (lambda: kept.append(leak())), [argument]

    monkeypatch.setitem(endurance.SCENARIOS, "leaking", leaking)
    assert endurance.measure("leaking", 2500).leaks


def test_frames_are_not_left_behind() -> None:
    def frames() -> int:
        return sum(type(one) is types.FrameType for one in gc.get_objects())

    with torch.no_grad():
        for name in ("graph_break", "deep_break", "raised_error", "generator"):
            call, _ = endurance.SCENARIOS[name]()
            call()
            gc.collect()
            before = frames()
            for _ in range(50):
                call()
            assert frames() <= before


class Settings:
    """What a function reads an attribute of."""

    scale = 2.0


def compiled_function() -> tuple[Any, list[weakref.ref[Any]]]:
    weight, marker = torch.randn(4), Settings()

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * weight * marker.scale
        return y + 1 if y.sum() > 0 else y - 1

    compiled = ingot.compile(function)
    return compiled, [weakref.ref(one) for one in (weight, marker, function)]


def compiled_module() -> tuple[Any, list[weakref.ref[Any]]]:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    compiled = ingot.compile(model)
    return compiled, [weakref.ref(one) for one in (model, model[0], model[0].weight)]


@pytest.mark.parametrize("make", [compiled_function, compiled_module])
def test_what_was_compiled_goes_with_its_function(make: Any) -> None:
    with torch.no_grad():
        compiled, alive = make()
        for size in (2, 3):
            compiled(torch.ones(size, 4))
        compiler = Compiler.of(compiled)
        assert compiler is not None
        dispatchers = [
            compiler.dispatcher,
            *(one.dispatcher for one in compiler.continuations.values()),
        ]
        entries = [entry for dispatcher in dispatchers for entry in dispatcher.entries()]
        alive += [
            weakref.ref(entry.target)
            for entry in entries
            if isinstance(entry.target, ingot.native.Program)
        ]
        alive += [weakref.ref(compiler), *map(weakref.ref, dispatchers)]
        assert len(entries) >= 2 and len(alive) > 5
        del compiled, compiler, dispatchers, entries
        gc.collect()
        assert [one() for one in alive] == [None] * len(alive)


def test_an_argument_is_not_kept() -> None:
    compiled = ingot.compile(lambda model, x: model(x) * 2)
    with torch.no_grad():
        alive = []
        for _ in range(3):
            model, x = nn.Linear(4, 4), torch.ones(2, 4)
            for _ in range(3):
                compiled(model, x)
            alive += [weakref.ref(model), weakref.ref(model.weight), weakref.ref(x)]
            del model, x
        gc.collect()
        assert [one() for one in alive] == [None] * len(alive)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("breaks", [False, True])
def test_four_threads_of_a_thousand_shapes_each(dynamic: bool | None, breaks: bool) -> None:
    """Every call has a shape of its own."""

    def function(x: torch.Tensor, k: float) -> Any:
        y = torch.softmax(x * k, -1)
        if breaks and x[0, 0] > 0:
            y = y * 2
        return y.sum(0), x.t() + 1

    compiled = ingot.compile(function, dynamic=dynamic)
    wrong: list[Any] = []

    def work(number: int) -> None:
        try:
            generator = torch.Generator().manual_seed(number)
            with torch.no_grad():
                for i in range(1000):
                    x = torch.randn(2 + i % 50, 2 + number * 20 + i // 50, generator=generator)
                    for ours, eagers in zip(compiled(x, 2.0), function(x, 2.0), strict=True):
                        torch.testing.assert_close(ours, eagers)
        except BaseException as error:
            wrong.append((number, i, error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        with endurance.quiet():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []
