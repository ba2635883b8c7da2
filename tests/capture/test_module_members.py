"""Modules whose members, modes and methods change, and what they are asked for within a forward."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from tests.capture.test_module_calls import Net, Pair, Symmetric, X, whole

pytestmark = pytest.mark.usefixtures("without_gradients")


# -- modes, members, calls -------------------------------------------------------------------------


def test_training_and_evaluation() -> None:
    pair = whole(lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4)))
    pair.change(lambda m: m.eval())
    pair.settles(X)
    pair.change(lambda m: m.train())
    assert pair(X) == 0
    pair.change(lambda m: m[1].eval())
    pair.settles(X)
    pair.change(lambda m: m[1].train())
    assert pair(X) == 0


CHANGES: dict[str, Callable[[Any], Any]] = {
    "parameter replaced": lambda m: setattr(m.first, "weight", nn.Parameter(torch.randn(4, 4))),
    "parameter of another type": lambda m: m.double() and m.float().first.half().float(),
    "parameter removed": lambda m: m.first.register_parameter("bias", None),
    "parameter data": lambda m: setattr(m.first.weight, "data", torch.randn(4, 4)),
    "parameter in place": lambda m: m.first.weight.mul_(3),
    "submodule replaced": lambda m: setattr(m, "first", nn.Linear(4, 4, bias=False)),
    "submodule of another class": lambda m: setattr(m, "first", nn.Identity()),
    "submodule wrapped": lambda m: setattr(m, "first", nn.Sequential(m.first, nn.Tanh())),
    "forward replaced": lambda m: setattr(m.first, "forward", lambda x: x * 7),
    "forward of the root": lambda m: setattr(m, "forward", lambda x: m.first(x) - 1),
    "shared": lambda m: (
        setattr(m, "second", nn.Linear(4, 4)) or setattr(m.second, "weight", m.first.weight)
    ),
    "parametrized": lambda m: parametrize.register_parametrization(m.first, "weight", Symmetric()),
    "weight norm": lambda m: parametrizations.weight_norm(m.first),
    "load": lambda m: m.load_state_dict(
        {k: torch.randn_like(v) for k, v in m.state_dict().items()}
    ),
    "frozen": lambda m: m.requires_grad_(False),
    "apply": lambda m: m.apply(
        lambda part: nn.init.ones_(part.weight) if isinstance(part, nn.Linear) else None
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_change_between_calls(name: str) -> None:
    pair = whole(Net)
    pair.change(CHANGES[name])
    pair.settles(X)


def test_class_method_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = whole(Net)
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: F.linear(x, self.weight) * 2)
    pair.settles(X)
    monkeypatch.undo()
    assert pair(X) == 0


class Containers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.items = nn.ModuleList([nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)])
        self.named = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.ReLU()})
        self.row = nn.Sequential(OrderedDict(one=nn.Linear(4, 4), two=nn.Sigmoid()))
        self.weights = nn.ParameterList(
            [nn.Parameter(torch.full((4,), float(i))) for i in range(3)]
        )
        self.table = nn.ParameterDict(
            {"k": nn.Parameter(torch.ones(4)), "l": nn.Parameter(torch.zeros(4))}
        )

    def forward(self, x: Tensor) -> Any:
        for layer in self.items:
            x = layer(x)
        for layer in self.items[1:]:
            x = layer(x)
        for layer in reversed(self.items):
            x = layer(x)
        for i, layer in enumerate(self.items):
            x = x + i * len(self.items) * (layer is self.items[-1])
        for name, layer in self.named.items():
            x = layer(x) + len(name)
        for name in self.named:
            x = self.named[name](x)
        x = self.named.a(x) if "a" in self.named and "z" not in self.named else x
        x = self.row(x) + self.row.one(x) + self.row[1](x) + self.row[:1](x) + self.row[-1](x)
        for weight in self.weights:
            x = x * weight
        x = x + self.weights[1] + self.weights[-1] + sum(self.weights[:2])
        for key, weight in self.table.items():
            x = x + weight * len(key)
        return (
            x + self.table["k"] + self.table.l,
            list(self.named),
            list(self.table.keys()),
            len(self.weights),
            bool(self.items),
        )


def test_containers() -> None:
    pair = whole(Containers)
    pair.change(lambda m: m.items.append(nn.ReLU()))
    pair.settles(X)
    pair.change(lambda m: m.named.pop("b"))
    pair.settles(X)
    pair.change(lambda m: m.items.__setitem__(0, nn.Tanh()))
    pair.settles(X)
    pair.change(lambda m: m.weights.append(nn.Parameter(torch.ones(4) * 9)))
    pair.settles(X)
    pair.change(lambda m: m.table.update({"long": nn.Parameter(torch.ones(4) * 3)}))
    pair.settles(X)


class Asking(nn.Module):
    """Asks for its own members while it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.register_buffer("scale", torch.full((4,), 2.0))
        self.alias = self.a
        self.nothing = None
        self.register_parameter("absent", None)

    def forward(self, x: Tensor) -> Any:
        names = [name for name, _ in self.named_parameters()]
        total = sum(p.sum() for p in self.parameters())
        count = sum(p.numel() for p in self.parameters() if p.requires_grad)
        kinds = (
            [type(child).__name__ for child in self.children()],
            [n for n, _ in self.named_children()],
        )
        parts = [n for n, _ in self.named_modules()], len(list(self.modules()))
        buffers = [(n, b.sum()) for n, b in self.named_buffers()]
        found = (
            self.get_submodule("b.0").weight.sum()
            + self.get_parameter("a.weight").sum()
            + self.get_buffer("scale").sum()
        )
        asked = (
            hasattr(self, "a"),
            hasattr(self, "nope"),
            self.scale is self._buffers["scale"],
            self.absent,
            self.alias is self.a,
        )
        return (
            x * total,
            names,
            count,
            kinds,
            parts,
            buffers,
            found,
            asked,
            self.training,
            next(self.parameters()).dtype,
        )


def test_members_asked_for_within() -> None:
    pair = whole(Asking)
    pair.change(lambda m: m.b.append(nn.Linear(4, 4)))
    pair.settles(X)
    pair.change(lambda m: m.a.weight.requires_grad_(False))
    pair.settles(X)


def test_state_dict_within() -> None:
    class Saving(Net):
        def forward(self, x: Tensor) -> Any:  # type: ignore[override]
            return super().forward(x), {k: v.sum() for k, v in self.state_dict().items()}

    Pair(Saving).settles(X)


class Overriding(nn.Module):
    """`__getattr__`, `__call__`, properties and a submodule as an attribute of a plain object."""

    class Plain:
        def __init__(self) -> None:
            self.module = nn.Linear(4, 4)

    def __init__(self) -> None:
        super().__init__()
        self.base, self.plain = nn.Linear(4, 4), self.Plain()
        self.listed = [nn.Linear(4, 4), (nn.Tanh(), {"x": nn.ReLU()})]

    def __getattr__(self, name: str) -> Any:
        if name == "forty_two":
            return 42
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base"), name)

    @property
    def half(self) -> Tensor:
        return self.base.weight / 2

    def __call__(self, x: Tensor, *args: Any) -> Any:
        return super().__call__(x + 1, *args)

    def forward(self, x: Tensor) -> Any:
        x = self.base(x) @ self.half + self.plain.module(x) + self.forty_two + self.in_features
        return self.listed[1][1]["x"](self.listed[1][0](self.listed[0](x))), hasattr(
            self, "missing"
        )  # type: ignore


def test_overridden_protocols() -> None:
    pair = whole(Overriding)
    pair.change(lambda m: setattr(m.plain, "module", nn.Linear(4, 4, bias=False)))
    pair.settles(X)
    pair.change(lambda m: setattr(m.base, "in_features", 100))
    pair.settles(X)


def test_overridden_call_impl() -> None:
    class Counting(nn.Linear):
        def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
            return super()._call_impl(*args, **kwargs) + 1

    whole(lambda: nn.Sequential(Counting(4, 4), nn.ReLU()))
    whole(lambda: Counting(4, 4))
