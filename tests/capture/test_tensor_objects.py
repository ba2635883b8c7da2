"""Instances of subclasses of torch.Tensor that leave dispatch alone: their classes, attributes,
gradients, and `__torch_function__` of classes and modes, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import ingot
from ingot.capture.values.tensor_objects import plain_of
from ingot.compiler import Compiler
from ingot.errors import GraphBreakError
from ingot.torch_private import (
    DisableTorchFunction,
    DisableTorchFunctionSubclass,
    disabled_torch_function_impl,
)
from tests.capture.subclasses import Derived, Logged, Plain, assert_alike


class Methods(Tensor):
    scale = 3.0

    def twice(self) -> Tensor:
        return self * 2

    @property
    def rows(self) -> int:
        return self.shape[0]

    def __add__(self, other: Any) -> Tensor:
        return super().__add__(other) * 10

    def __getitem__(self, key: Any) -> Tensor:
        return Tensor.__getitem__(self, key) + 100

    @classmethod
    def of(cls, x: Tensor) -> Tensor:
        return x.as_subclass(cls)


class Disabled(Tensor):
    __torch_function__ = disabled_torch_function_impl


def hundredfold(x: Tensor, y: Any) -> Tensor:
    return x.as_subclass(Tensor) * 100


TABLE: dict[Any, Callable[..., Any]] = {
    torch.add: hundredfold,
    Tensor.add: hundredfold,
    F.relu: lambda x, inplace=False: x.as_subclass(Tensor).clamp(min=-0.5),
}


class ByTable(Tensor):
    """Implements some functions of torch, as libraries do."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in TABLE:
            return TABLE[func](*args, **(kwargs or {}))
        with DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return result.as_subclass(cls) if isinstance(result, Tensor) else result


class Labelled(Tensor):
    """Hands an attribute on, as torch's documentation has it."""

    label: str

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        labels = [a.label for a in args if hasattr(a, "label")]
        plain = [a.as_subclass(Tensor) if isinstance(a, cls) else a for a in args]
        result = func(*plain, **(kwargs or {}))
        if isinstance(result, Tensor):
            result = result.as_subclass(cls)
            result.label = "+".join(labels)
        return result


class Log(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


class Multiplies(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return (torch.mul if func is Tensor.add else func)(*args, **(kwargs or {}))


class MakesDoubles(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.zeros, torch.ones):
            kwargs = {**(kwargs or {}), "dtype": torch.float64}
        return func(*args, **(kwargs or {}))


class Weight(nn.Parameter):
    pass


class Layer(nn.Module):
    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight = weight

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight).sigmoid()


def plain() -> Tensor:
    return torch.randn(4, 5)


def made(cls: type[Tensor]) -> Callable[[], Tensor]:
    return lambda: plain().as_subclass(cls)


def leaf(cls: type[Tensor]) -> Callable[[], Tensor]:
    return lambda: plain().as_subclass(cls).requires_grad_()


def labelled(label: str) -> Callable[[], Tensor]:
    def make() -> Tensor:
        result = plain().as_subclass(Labelled)
        result.label = label
        return result

    return make


def in_place(x: Tensor) -> Tensor:
    x.mul_(2)
    x += 1
    return x


def attributes_are_set(x: Any, y: Any) -> Any:
    z = x * 2
    z.label, y.label = 3, [z]
    return z, hasattr(z + 1, "label"), y.label[0].label


def written_by_another_name(x: Tensor) -> Any:
    y = x.as_subclass(Plain)
    y.add_(1)
    return x, y


def without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * 2
    return y + x


def in_mode(x: Tensor) -> Any:
    with Log() as log:
        y = F.relu(torch.add(x, 1) * 2) - torch.ones(4, 5)
        size, row = x.shape, -x[0]
        row[0] = 3 - row[1]
        parts = x.split(2), 2**x, x.sum(dim=0), torch.cat([x, x])
    return y, size, row, parts, log.seen


def in_two_modes(x: Tensor) -> Any:
    with Log() as log, Multiplies():
        y = x + 3
    return y + 3, log.seen


def factories_in_a_mode(x: Tensor) -> Any:
    with MakesDoubles():
        return torch.zeros(5) + torch.ones(5), x + 1


def mode_is_disabled(x: Tensor) -> Any:
    with Log() as log:
        with DisableTorchFunction():
            y = x + 3
        z = x * 2
    return y, z, log.seen


def subclasses_are_disabled(x: Tensor) -> Any:
    with DisableTorchFunctionSubclass():
        y, z = x + 1, x.T
    return y, z, x + 1


def subclass_in_a_mode(x: Tensor) -> Any:
    with Log() as log:
        y = x + 3
    return y, log.seen


def constructed(x: Tensor) -> Any:
    y, z = Plain(x * 2), Plain(x)
    y.add_(1)
    y.note = 3  # type: ignore[attr-defined]
    return y, y * y.note, z, Methods(x) + 1, isinstance(y, Plain)  # type: ignore[attr-defined]


PROGRAMS: dict[str, tuple[Callable[..., Any], list[Callable[[], Any]]]] = {
    "arithmetic": (lambda x: (1 - x) / 2 + 2 / x + x // 2 + x % 2 + x**2 + 2**x, [made(Plain)]),
    "comparisons": (lambda x: (x < 0, 0 < x, x == x, x != 1, -abs(x)), [made(Plain)]),
    "a plain tensor": (
        lambda x, y: (y + x, y @ x.T, x @ y.T, y.add(x), torch.add(y, x), torch.cat([y, x])),
        [made(Plain), plain],
    ),
    "items": (lambda x: (x[0], x[:, 1:2].sum(), [r + 1 for r in x], len(x)), [made(Plain)]),
    "an item is set": (lambda x: x.__setitem__(0, 1.0), [made(Plain)]),
    "as an index": (lambda y, i: y[i.long() % 4], [plain, made(Plain)]),
    "in place": (in_place, [made(Plain)]),
    "in place into a plain one": (lambda x, y: (y.add_(x), y), [made(Plain), plain]),
    "several results": (lambda x: (x.max(dim=1), x.split(2), x.unbind()), [made(Plain)]),
    "functional": (
        lambda x: F.relu(F.layer_norm(F.gelu(x), (5,))) + F.softmax(x, -1),
        [made(Plain)],
    ),
    "inlined": (lambda x: F.interpolate(x[None], scale_factor=2), [made(Plain)]),
    "facts": (
        lambda x: (x.dtype, x.device, x.requires_grad, x.T, x.data, x.is_leaf, x.shape, x.ndim),
        [made(Plain)],
    ),
    "as_subclass": (lambda x: (x.as_subclass(Plain) + 1, x.as_subclass(Plain)), [plain]),
    "as_subclass of an instance": (
        lambda x: (x.as_subclass(Tensor) + 1, x.as_subclass(Derived) + 1, x),
        [made(Plain)],
    ),
    "as_subclass is a view": (written_by_another_name, [plain]),
    "types": (
        lambda x: x * (type(x) is Plain and isinstance(x, Plain) + isinstance(x, nn.Parameter)),
        [made(Plain)],
    ),
    "types that ask for more": (
        lambda x: [isinstance(x, c) for c in (torch.FloatTensor, torch.LongTensor, nn.Buffer)],
        [made(Plain)],
    ),
    "a buffer": (
        lambda x: x * isinstance(x, nn.Buffer),
        [lambda: nn.Buffer(made(Plain)())],
    ),
    "a subclass of a subclass": (lambda x, y: (x + y, y + x), [made(Plain), made(Derived)]),
    "members": (
        lambda x: (x.twice(), x.rows, x.scale, x + 1, x[0], Methods.of(x)),
        [made(Methods)],
    ),
    "attributes": (attributes_are_set, [made(Plain), made(Plain)]),
    "constructed": (constructed, [plain]),
    "constructed of one with gradients": (constructed, [lambda: plain().requires_grad_() * 1]),
    "its own attribute": (lambda x: x + len(x.label), [labelled("of x")]),
    "the default function": (
        lambda x: ((x + 1) * x.shape[0], F.relu(x), 2 - x, x[0].sum(), abs(x)),
        [made(Logged)],
    ),
    "methods that are seen": (
        lambda x: (x.norm(), x.split(2), x.size(0), x.T, x == x, x**2, x.mean(0, keepdim=True)),
        [made(Logged)],
    ),
    "disabled": (lambda x: (x + 1, x.relu(), x.T, x, x.add_(1)), [made(Disabled)]),
    "a table": (
        lambda x: (x + 1, torch.add(x, 1), F.relu(x), x * 2, F.gelu(x)),
        [made(ByTable)],
    ),
    "a table, made inside": (lambda x: x.as_subclass(ByTable) + 1, [plain]),
    "labels": (
        lambda x, y: (torch.mul(x, y).sum(), (x * 2).label),
        [labelled("a"), labelled("b")],
    ),
    "gradients": (lambda x: F.gelu(x) * x, [leaf(Plain)]),
    "gradients that are seen": (lambda x: F.gelu(x) * x, [leaf(Logged)]),
    "gradients without a function": (lambda x: (x * 2).relu(), [leaf(Disabled)]),
    "gradients of a result": (lambda x: (x * 2).relu(), [lambda: leaf(Plain)() * 1]),
    "no gradients inside": (without_gradients, [leaf(Plain)]),
    "a mode": (in_mode, [plain]),
    "two modes": (in_two_modes, [plain]),
    "a mode for factories": (factories_in_a_mode, [plain]),
    "a mode is disabled": (mode_is_disabled, [plain]),
    "a subclass in a mode": (subclass_in_a_mode, [made(Logged)]),
    "subclasses are disabled": (subclasses_are_disabled, [made(Plain)]),
    "views": (lambda x: (x.T, x.view(-1), x[1:]), [made(Plain)]),
    "a list": (lambda items: items[0] + items[1], [lambda: [made(Plain)(), plain()]]),
    "the same object": (lambda x: (x.contiguous() is x, x.to(torch.float64)), [made(Plain)]),
    "numbers": (lambda x: x * x.sum().item(), [made(Plain)]),
    "a number on the left": (
        lambda x, y: y.sum().item() * x - (y.sum().item() < x).float(),
        [made(Logged), plain],
    ),
    "numbers of other types": (
        lambda x: (x * np.float64(2), True + x, x + 2j),
        [made(Plain)],
    ),
    "unbound": (lambda x: Tensor.add(x, 1) + Tensor.mul(x, 2), [made(Plain)]),
    "new ones": (lambda x: (x.new_zeros(3), torch.zeros_like(x)), [made(Plain)]),
}


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_program(name: str) -> None:
    fn, makes = PROGRAMS[name]
    assert_alike(fn, lambda: tuple(make() for make in makes))


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Parameter(made(Plain)()),
        lambda: nn.Parameter(made(Logged)()),
        lambda: Weight(plain()),
    ],
)
def test_parameters(make: Callable[[], nn.Parameter]) -> None:
    torch.manual_seed(0)
    layer = Layer(make())

    def run(x: Tensor) -> Any:
        assert isinstance(layer.weight, nn.Parameter)
        return layer(x)

    assert_alike(run, lambda: (plain(),))
    layer.zero_grad()
    layer(plain()).sum().backward()
    expected = layer.weight.grad
    layer.zero_grad()
    torch.manual_seed(0)
    ingot.compile(layer)(plain()).sum().backward()
    assert type(layer.weight.grad) is type(expected)


def test_another_class_is_another_entry() -> None:
    compiled = ingot.compile(lambda x: x * 2, fullgraph=True)
    for cls in (Plain, Tensor, Derived, Plain):
        assert type(compiled(made(cls)())) is cls
    compiler = Compiler.of(compiled)
    assert compiler is not None and len(compiler.compilations) == 3


def test_a_method_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, x = ingot.compile(lambda x: x.twice(), fullgraph=True), made(Methods)()
    assert torch.equal(compiled(x), x * 2)
    monkeypatch.setattr(Methods, "twice", lambda self: self * 3)
    assert torch.equal(compiled(x), x * 3)


def test_an_attribute_changes() -> None:
    compiled, x = ingot.compile(lambda x: x * len(x.label), fullgraph=True), labelled("ab")()
    for label in ("ab", "abc", "ab"):
        x.label = label  # type: ignore[attr-defined]
        assert torch.equal(compiled(x).as_subclass(Tensor), (x * len(label)).as_subclass(Tensor))


def test_floats_that_vary() -> None:
    compiled = ingot.compile(lambda x, k: k * x - k / x + k, fullgraph=True)
    for k in (1.5, 2.5, 3.5, 4.5):
        x = made(Plain)()
        assert torch.allclose(plain_of(compiled(x, k)), plain_of(k * x - k / x + k))
    compiler = Compiler.of(compiled)
    assert compiler is not None and len(compiler.compilations) == 1


def test_a_break_in_a_mode_and_behind_it() -> None:
    def breaks(x: Tensor) -> Any:
        with Log() as log:
            y = x + 1
            print(end="", flush=True)
            y = y * 2
        return y, log.seen

    (y, seen), (expected, expected_seen) = ingot.compile(breaks)(x := plain()), breaks(x)
    assert torch.equal(y, expected) and seen == expected_seen


def test_unrelated_classes_are_refused_as_in_eager() -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        ingot.compile(lambda x, y: x + y, fullgraph=True)(made(Plain)(), made(Methods)())


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.requires_grad_(),
        lambda x: x.register_hook(abs),
        lambda x: (x * 2).sum().backward(),
    ],
)
def test_what_is_done_to_the_object_breaks(fn: Callable[[Tensor], Any]) -> None:
    with pytest.raises(GraphBreakError):
        ingot.compile(fn, fullgraph=True)(leaf(Plain)())
    x, y = leaf(Plain)(), leaf(Plain)()
    with torch.no_grad():
        y.copy_(x)
    fn(x), ingot.compile(fn)(y)
    assert (x.grad is None) == (y.grad is None)
    if x.grad is not None and y.grad is not None:
        assert type(x.grad) is type(y.grad) and torch.equal(x.grad, y.grad)
