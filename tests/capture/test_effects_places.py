"""Effects on globals, modules and counters, and across graph breaks."""

from __future__ import annotations

import gc
import types
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import ingot
from ingot.compiler import Compiler
from tests.capture.worlds import compilations, same_world

X = torch.arange(6.0).reshape(2, 3)


class Box:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


# -- globals ---------------------------------------------------------------------------------------

GLOBALS = """
count = 0
gone = 1

def helper(x):
    global last
    last = x + count
    return last

def fn(x):
    global count, gone, fresh
    count += 1
    fresh = [x]
    y = helper(x)
    fresh.append(count)
    if count == 2:
        del gone
    return y, fresh

def shadows(x):
    global len
    len = lambda items: 7
    y = x * len([])
    del len
    return y * len([])
"""


@pytest.mark.parametrize("name", ["fn", "shadows"])
def test_globals(name: str) -> None:
    ours, theirs = {"__name__": "ours"}, {"__name__": "theirs"}
    exec(GLOBALS, ours)
    exec(GLOBALS, theirs)
    compiled = ingot.compile(ours[name], fullgraph=True, backend="eager")
    for _ in range(3):
        with torch.no_grad():
            assert str(compiled(X)) == str(theirs[name](X))
        mine, its = (
            {k: v for k, v in n.items() if not callable(v) and k[0] != "_"} for n in (ours, theirs)
        )
        assert str(mine) == str(its)


def test_attributes_of_a_module_object() -> None:
    module = types.ModuleType("settings_for_a_test")
    module.level = 1

    def fn(x):
        module.level += 1
        return x * module.level

    compiled = ingot.compile(fn, fullgraph=True, backend="eager")
    for level in (2, 3, 4):
        assert torch.equal(compiled(X), X * level) and module.level == level


def lazy_module(*, keeps: bool) -> types.ModuleType:
    """One that makes `level` when it is asked for it, and keeps it or not."""
    module = types.ModuleType("made_when_asked")

    def __getattr__(name: str) -> int:
        if name != "level":
            raise AttributeError(name)
        if keeps:
            module.level = 3
        return 3

    module.__getattr__ = __getattr__
    return module


@pytest.mark.parametrize("keeps", [True, False])
def test_a_module_that_makes_names_when_they_are_asked_for(keeps: bool) -> None:
    """What it keeps is an attribute like others; the rest is asked for at each call."""
    module = lazy_module(keeps=keeps)

    def fn(x):
        return x * module.level + hasattr(module, "depth")

    compiled = ingot.compile(fn, backend="eager")
    report = ingot.explain(compiled)(X)
    assert [each.reason for each in report.breaks] == (
        [] if keeps else ["attribute 'level' of module made_when_asked, which is computed"]
    )
    assert torch.equal(compiled(X), X * 3)
    module.depth = 1
    assert torch.equal(compiled(X), X * 3 + 1)
    module.level = 5
    assert torch.equal(compiled(X), X * 5 + 1)


# -- modules ---------------------------------------------------------------------------------------


class Stateful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("running", torch.zeros(3))
        self.register_buffer("unset", None)
        self.calls = 0
        self.cache: dict[str, torch.Tensor] = {}
        self.history: list[torch.Tensor] = []


class Counts(Stateful):
    def forward(self, x):
        self.calls += 1
        self.seen = x.shape[0]
        return self.linear(x) * self.calls


class KeepsTensors(Stateful):
    def forward(self, x):
        self.last = self.linear(x)
        self.running = self.running * 0.5 + self.last.mean(0)
        self.unset = x
        self.cache["last"] = self.last
        self.history.append(self.running)
        return self.last + self.running


class ReplacesParameters(Stateful):
    def forward(self, x):
        y = self.linear(x)
        self.linear.weight, self.linear.bias = self.linear.bias, self.linear.weight
        self.linear.weight, self.linear.bias = self.linear.bias, self.linear.weight
        return y


class DeletesAndAdds(Stateful):
    def forward(self, x):
        if hasattr(self, "running"):
            del self.running
            self.running = x.mean(0)
        if self.linear is not None:
            self.alias = self.linear
        del self.linear
        self.linear = None
        return self.alias(x)


@pytest.mark.parametrize("cls", [Counts, KeepsTensors, ReplacesParameters, DeletesAndAdds])
def test_modules(cls: type[nn.Module]) -> None:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return cls()

    ours, theirs = make(), make()
    compiled = ingot.compile(ours, fullgraph=True, backend="eager")
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(X), theirs(X))
            assert list(ours.state_dict()) == list(theirs.state_dict())
            for name, tensor in theirs.state_dict().items():
                torch.testing.assert_close(ours.state_dict()[name], tensor)
            for name in ("calls", "seen", "cache", "history"):
                assert str(getattr(ours, name, None)) == str(getattr(theirs, name, None))
            assert [n for n, _ in ours.named_modules()] == [n for n, _ in theirs.named_modules()]


# -- across graph breaks ---------------------------------------------------------------------------


def broken(x):
    """Something that ends a graph."""
    return float(x.sum().item())


def comprehensions_under_construction(x, box):
    rows = [broken(x * i) for i in range(3)]
    table = {i: broken(x * i) for i in range(3)}
    members = {broken(x * i) for i in range(3)}
    gathered = [*rows, *[broken(x)], 1]
    return rows, table, members, gathered, dict(**{"a": broken(x)}, **table_of(x))


def table_of(x):
    return {"b": broken(x)}


def writes_on_both_sides(x, box):
    box.items.append(1)
    box.n += 1
    made = [box.items]
    box.made = made
    value = broken(x)
    made.append(value)
    box.items.append(value)
    box.n += 1
    return box.made is made, made[0] is box.items, box.n, x * value


def closures_on_both_sides(x, box):
    count = 0

    def add(n):
        nonlocal count
        count += n
        box.items.append(count)
        return count

    add(1)
    value = broken(x)
    add(value)
    box.add = add
    return add(2), count


def aliases_on_both_sides(x, box):
    a = {"n": 1}
    b = a
    c = [a, b]
    broken(x)
    a["n"] = x
    b["m"] = 2
    return a, c[0] is c[1], c[1] is a, len(b)


@pytest.mark.parametrize(
    "fn",
    [
        comprehensions_under_construction,
        writes_on_both_sides,
        closures_on_both_sides,
        aliases_on_both_sides,
    ],
    ids=lambda fn: fn.__name__,
)
def test_graph_breaks(fn: Any) -> None:
    compiler = same_world(fn, lambda: (X.clone(), Box(items=[], n=0)), fullgraph=False)
    assert all(c.skipped is None for c in compiler.compilations)


# -- counters --------------------------------------------------------------------------------------

count = 0


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.calls, self.table = 0, {"n": 10}

    def forward(self, x):
        global count
        self.calls += 1
        self.calls += 2
        self.table["n"] -= 1
        count += self.calls
        return self.linear(x)


def test_counters_compile_once() -> None:
    global count
    count = 0
    module = Counting()
    compiled = ingot.compile(module, fullgraph=True)
    with torch.no_grad():
        for call in range(1, 6):
            compiled(X)
            assert (module.calls, module.table) == (3 * call, {"n": 10 - call})
        assert count == sum(3 * call for call in range(1, 6)) and type(module.calls) is int
        assert compilations(Compiler.of(compiled)) == 1
        for before, after in [(True, 4), (1.5, 4.5), (2**70, 2**70 + 3)]:
            module.calls = before  # type: ignore[assignment]
            compiled(X)
            assert module.calls == after and type(module.calls) is type(after)


def counts_and_looks(x, box):
    box.n += 1
    if box.n % 2:
        return x * box.n
    return x.reshape(-1)[: box.n], {box.n: 1}, [0] * box.n, box.n, f"{box.n}", box.n == 2, -box.n


def counts_and_prints(x, box):
    box.n += 1
    print("call", box.n)
    return x


def test_a_count_that_is_looked_at_is_guarded() -> None:
    assert compilations(same_world(counts_and_looks, lambda: (X.clone(), Box(n=0)), calls=4)) == 4


def test_a_count_may_be_printed(capsys: Any) -> None:
    assert compilations(same_world(counts_and_prints, lambda: (X.clone(), Box(n=0)), calls=4)) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"call {i}" for i in range(1, 5) for _ in range(2)
    ]


def test_nothing_of_a_call_is_kept_by_its_compilation() -> None:
    def fn(x, box):
        box.n += 1
        box.items.append(x + 1)
        box.made = [box.items, lambda: box]
        return x + len(box.items)

    compiled, x, box = ingot.compile(fn, backend="eager"), torch.ones(3), Box(n=0, items=[])
    gone = weakref.ref(x), weakref.ref(box)
    gc.collect()
    gc.disable()
    try:
        compiled(x, box)
        del box.made, x, box
        assert [reference() for reference in gone] == [None, None]
    finally:
        gc.enable()
