"""A fact that was used and changes makes a guard fail; what was only passed along is not
guarded."""

from __future__ import annotations

import types

import pytest
import torch
from torch import nn

from ingot.capture import Request, argument_slots, capture_call
from ingot.options import Options
from tests.oracle import assert_captured, rerun


def fails_after(fn, args, change, new_args=None):
    """Whether the guards of `fn(*args)` fail once `change()` has been done (and hold before)."""
    with torch.no_grad():
        captured = capture_call(fn, args, {}, Request(Options()))
        assert captured.guards.check_python(argument_slots(fn, args, {})) is None
        change()
        return captured.guards.check_python(argument_slots(fn, new_args or args, {})) is not None


X = torch.ones(3, 4)


@pytest.mark.parametrize(
    "other",
    [
        torch.ones(3, 5),
        torch.ones(3, 4, dtype=torch.float64),
        torch.ones(4, 3).T,
        torch.ones(3, 4, requires_grad=True),
        torch.ones(12),
        3,
    ],
    ids=["shape", "dtype", "strides", "requires_grad", "rank", "type"],
)
def test_tensor_facts(other):
    assert fails_after(lambda x: x + 1, (X,), lambda: None, (other,))


@pytest.mark.parametrize(
    "pair",
    [
        (2, 3),
        (2, 2.0),
        (True, 1),
        ("a", "b"),
        (None, 1),
        ((1, 2), (1, 3)),
        ([1], [1, 2]),
        ({"a": 1}, {"b": 1}),
    ],
)
def test_constants_and_containers(pair):
    def fn(x, k):
        if isinstance(k, dict):
            return x, sorted(k.items())
        return x + 1, [k, str(k)]

    first, second = pair
    assert fails_after(fn, (X, first), lambda: None, (X, second))


def test_what_is_passed_along_is_not_guarded():
    def fn(x, anything):
        kept = [anything]
        return x + 1, kept

    captured = assert_captured(fn, X, 3)
    with torch.no_grad():
        assert rerun(captured, fn, X, "other")[1] == ["other"]


def test_unused_tensor_is_no_input():
    captured = assert_captured(lambda x, y: (x + 1, y), X, torch.ones(2))
    assert len(captured.inputs) == 1


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.blocks = nn.ModuleList([nn.Linear(4, 4), nn.ReLU()])
        self.table = nn.ModuleDict({"a": nn.Tanh()})
        self.register_buffer("offset", torch.ones(4))
        self.scale = 2.0
        self.dropout = nn.Dropout(0.5)
        self.maybe = None

    def forward(self, x):
        x = self.linear(x) * self.scale + self.offset
        for block in self.blocks:
            x = block(x)
        for _, layer in self.table.items():
            x = layer(x)
        if self.maybe is not None:
            x = self.maybe(x)
        if hasattr(self, "extra"):
            x = x + self.extra
        return self.helper(self.dropout(x))

    def helper(self, x):
        return x.sum(dim=-1)


def _patch_class(model):
    cls = type(model)
    original = cls.helper
    cls.helper = lambda self, x: x.mean(dim=-1)
    return lambda: setattr(cls, "helper", original)


MODULE_CHANGES = {
    "training flag": lambda m: m.train(),
    "attribute": lambda m: setattr(m, "scale", 3.0),
    "parameter shape": lambda m: setattr(
        m.linear, "weight", nn.Parameter(torch.ones(4, 4, dtype=torch.float64))
    ),
    "parameter data": lambda m: setattr(
        m.linear.weight, "data", torch.ones(4, 4, dtype=torch.float64)
    ),
    "submodule replaced": lambda m: m.blocks.__setitem__(0, nn.Identity()),
    "submodule added": lambda m: m.blocks.append(nn.ReLU()),
    "module dict grown": lambda m: m.table.update({"b": nn.ReLU()}),
    "buffer": lambda m: setattr(m, "offset", torch.ones(1)),
    "hook": lambda m: m.linear.register_forward_hook(lambda *a: None),
    "none becomes module": lambda m: setattr(m, "maybe", nn.ReLU()),
    "absent attribute appears": lambda m: setattr(m, "extra", 1.0),
    "method on the instance": lambda m: setattr(m, "helper", lambda x: x),
    "forward on a submodule": lambda m: setattr(m.linear, "forward", lambda x: x),
    "method's code": lambda m: None,
}


@pytest.mark.parametrize("change", MODULE_CHANGES)
def test_module_facts(change):
    model = Model().eval()
    model.blocks[0].eval()
    assert_captured(model, torch.randn(2, 4))
    if change == "method's code":
        original = Model.helper.__code__
        try:
            assert fails_after(
                model,
                (torch.randn(2, 4),),
                lambda: setattr(Model.helper, "__code__", (lambda self, x: x).__code__),
            )
        finally:
            Model.helper.__code__ = original
    else:
        assert fails_after(model, (torch.randn(2, 4),), lambda: MODULE_CHANGES[change](model))


def test_class_patched():
    model = Model().eval()
    undo = []
    try:
        assert fails_after(model, (torch.randn(2, 4),), lambda: undo.append(_patch_class(model)))
    finally:
        undo[0]()


def test_parameter_values_are_not_guarded():
    model = Model().eval()
    x = torch.randn(2, 4)
    captured = assert_captured(model, x)
    with torch.no_grad():
        model.linear.weight.mul_(3)
        assert torch.equal(rerun(captured, model, x), model(x))
        model.linear.weight.data = torch.randn(4, 4)
        assert torch.equal(rerun(captured, model, x), model(x))


LEVEL = 3


def uses_global(x):
    return x * LEVEL


def helper(x):
    return x + 1


def uses_helper(x):
    return helper(x) * len([1])


def test_globals(monkeypatch):
    module = globals()
    assert fails_after(uses_global, (X,), lambda: monkeypatch.setitem(module, "LEVEL", 4))
    assert fails_after(
        uses_helper, (X,), lambda: monkeypatch.setitem(module, "helper", lambda x: x)
    )
    assert fails_after(uses_helper, (X,), lambda: monkeypatch.setitem(module, "len", lambda x: 7))


def test_closure_cell_and_defaults():
    k = 2

    def fn(x, y=3):
        return x * k + inner(x)

    def inner(x, n=5):
        return x + n

    def set_k():
        nonlocal k
        k = 4

    assert fails_after(fn, (X,), set_k)
    assert fails_after(fn, (X,), lambda: setattr(inner, "__defaults__", (6,)))
    assert fails_after(
        fn, (X,), lambda: setattr(fn, "__code__", (lambda x, y=3: (k, inner)).__code__)
    )


def test_function_argument():
    def fn(x, f):
        return f(x)

    def make(k):
        return lambda x: x * k

    assert fails_after(fn, (X, make(2)), lambda: None, (X, make(3)))
    # equal closures share an entry
    assert not fails_after(fn, (X, make(2)), lambda: None, (X, make(2)))
    assert fails_after(fn, (X, torch.sin), lambda: None, (X, torch.cos))


def test_object_argument():
    def fn(x, o):
        return x * o.k

    assert fails_after(
        fn, (X, types.SimpleNamespace(k=2)), lambda: None, (X, types.SimpleNamespace(k=3))
    )


def test_identity_of_arguments():
    def fn(x, y):
        return x is y

    assert fails_after(fn, (X, X), lambda: None, (X, torch.ones(3, 4)))
    assert fails_after(fn, (X, torch.ones(3, 4)), lambda: None, (X, X))


def test_overlap_when_written():
    def fn(x, y):
        x.add_(1)
        return x + y

    assert fails_after(fn, (torch.ones(3), torch.ones(3)), lambda: None, (X[0, :3], X[0, 1:]))
    base = torch.arange(4.0)
    assert_captured(lambda b: fn(b[:3], b[1:]), base)
    views = (base[:3], base[1:])
    assert fails_after(fn, views, lambda: None, (base[:3], torch.ones(3)))
    for pure in (lambda x, y: x + y, lambda x, y: (x > 1) & (y > 1) | (x < 0)):
        assert not fails_after(pure, (torch.ones(3), torch.ones(3)), lambda: None, views)


def test_modes():
    def fn(x):
        return x + 1

    captured = capture_call(fn, (X,), {}, Request(Options()))
    with torch.no_grad():
        assert captured.guards.check_python((X,)) is not None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert captured.guards.check_python((X,)) is not None
    assert captured.guards.check_python((X,)) is None
