"""Wrapper subclasses: taken apart at the edges of the graph, their dispatch traced, and put
together for results. Gradients, parameters, guards and writes are as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ingot
from ingot.compiler import Compiler
from ingot.errors import GraphBreakError
from tests.capture.subclasses import Plain, assert_alike, described
from tests.capture.test_tensor_objects import Log, leaf
from tests.capture.wrapper_classes import (
    DirectInt8,
    DirectPair,
    Granularity,
    Int4,
    Int8,
    Make,
    Pair,
    Scaled,
    Slotted,
    pair,
    plain,
    tracked_pair,
)
from tests.oracle import assert_near


class Linear(nn.Module):
    def __init__(self, weight: Tensor, requires_grad: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=requires_grad)
        self.bias = nn.Parameter(torch.randn(weight.shape[0]))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias).sigmoid()


def weight(cls: Any) -> Make:
    return lambda: cls.of(plain(6, 8))


def in_mode(x: Tensor) -> Any:
    with Log() as log:
        y = F.relu(x * 2)
    return y, log.seen


def written_and_read(x: Any) -> Any:
    x.mul_(2)
    x += 1
    row = x[0]
    row.add_(1)
    return x.a, x.total(), row


def copied(x: Tensor, y: Tensor) -> Tensor:
    x.copy_(y)
    return x + 1


def made_and_written(x: Tensor) -> Tensor:
    y = x * 1
    y.add_(3)
    return y.relu_()


def without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * 2
    return y + x


PROGRAMS: dict[str, tuple[Callable[..., Any], list[Make]]] = {
    "pointwise": (lambda x: x * 2 + 1, [pair()]),
    "itself": (lambda x: x, [pair()]),
    "ops only": (lambda x: (x * 2 + 1, x.relu(), x), [pair(DirectPair)]),
    "attributes": (lambda x: (x.a + 1, x.b, x.total(), x.shape, x.dtype, x.ndim), [pair()]),
    "attributes of a result": (lambda x: ((x * 2).a, (x * 2).total()), [pair()]),
    "types": (
        lambda x: x * (isinstance(x, Pair) + isinstance(x * 1, Pair) + isinstance(x, nn.Parameter)),
        [pair()],
    ),
    "operators": (lambda x: (x @ x.t(), abs(x), 1 - x, 2 / x, -x, x < 0, x[0], len(x)), [pair()]),
    "views": (lambda x: (x.T, x.view(-1), x.unsqueeze(0), x.permute(1, 0)), [pair()]),
    "several results": (lambda x: (x.max(dim=1), x.split(2), torch.cat([x, x])), [pair()]),
    "elements": (lambda x: [row * 2 for row in x], [pair()]),
    "functional": (lambda x: F.softmax(F.layer_norm(F.gelu(x), (5,)), -1), [pair()]),
    "dropout": (lambda x: F.dropout(x, 0.5), [pair()]),
    "another dtype": (lambda x: (x.to(torch.float64), x.float() is x, x.clone()), [pair()]),
    "two of them": (lambda x, y: x * y + x, [pair(), pair()]),
    "a plain tensor": (lambda x, y: (x * y, y * x, torch.mul(y, x), y.add(x)), [pair(), plain]),
    "attention": (
        lambda x: F.scaled_dot_product_attention(x, x, x),
        [pair(Pair, 1, 2, 4, 8)],
    ),
    "one in another": (
        lambda x: (x * 2 + 1, x.a.b, x.a * 3),
        [lambda: Pair(pair()(), pair()())],
    ),
    "one inner tensor twice": (lambda x: x + 1, [lambda: (lambda t: Pair(t, t))(plain())]),
    "made inside": (lambda x, y: (Pair(x, y) * 2, Pair(x, y * 2).total()), [plain, plain]),
    "made of inputs": (lambda x, y: Pair(x, y), [plain, plain]),
    "in a list": (lambda items: items[0] * items[1], [lambda: [pair()(), pair()()]]),
    "in a mode": (in_mode, [pair()]),
    "written and read": (written_and_read, [pair()]),
    "copied": (copied, [pair(), pair()]),
    "made and written": (made_and_written, [pair()]),
    "gradients": (lambda x: (x * x).sin(), [tracked_pair()]),
    "gradients of ops only": (lambda x: (x * x).sin(), [tracked_pair(DirectPair)]),
    "gradients of a sum": (lambda x: (x * x).sum(), [tracked_pair()]),
    "gradients of two": (lambda x, y: F.linear(x, y).relu(), [tracked_pair(), tracked_pair()]),
    "gradients of a result": (lambda x: x.relu(), [lambda: tracked_pair()() * 1]),
    "gradients of one in another": (
        lambda x: (x * x).sin(),
        [lambda: Pair(pair()(), pair()()).detach().requires_grad_()],
    ),
    "no gradients inside": (without_gradients, [tracked_pair()]),
    "detached": (lambda x: x.detach() * 2, [tracked_pair()]),
    "8 bits": (lambda x, w: F.linear(x, w), [lambda: plain(4, 8), weight(Int8)]),
    "8 bits by dispatch": (lambda x, w: F.linear(x, w), [lambda: plain(4, 8), weight(DirectInt8)]),
    "4 bits": (lambda x, w: F.linear(x, w), [lambda: plain(4, 8), weight(Int4)]),
    "members": (
        lambda w: (w.dequantize(), w.granularity.rows, w.granularity.name, w.dtype),
        [weight(Int8)],
    ),
    "quantized inside": (lambda x, w: F.linear(x, Int8.of(w)), [plain, plain]),
    "quantized": (lambda w: (Int8.of(w), DirectInt8.of(w)), [plain]),
    "gradients beside it": (
        lambda x, w: F.linear(x, w).sin(),
        [lambda: plain(4, 8).requires_grad_(), weight(Int4)],
    ),
    "a number": (lambda x: (x * 2, x + 1), [lambda: Scaled(plain(), 2.0)]),
}


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_program(name: str) -> None:
    fn, makes = PROGRAMS[name]
    assert_alike(fn, lambda: tuple(make() for make in makes))


@pytest.mark.parametrize("cls", [Int8, DirectInt8, Int4])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_weights_of_modules(cls: Any, requires_grad: bool) -> None:
    module = Linear(cls.of(plain(6, 8)))
    assert_alike(module, lambda: (plain(2, 4, 8).requires_grad_(requires_grad),))


@pytest.mark.parametrize("cls", [Pair, DirectPair])
def test_training(cls: Any) -> None:
    def losses(compile: Callable[[nn.Module], Any]) -> Any:
        torch.manual_seed(0)
        weight = nn.Parameter(cls(plain(6, 5), plain(6, 5)))
        module = nn.Module()
        module.register_parameter("weight", weight)
        forward = compile(lambda x: F.linear(x, module.weight).relu())
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        results = []
        for _ in range(3):
            loss = forward(cls(plain(), plain())).sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            results.append(loss.detach().a)
        return [*results, weight.detach().a, weight.detach().b]

    expected = losses(lambda fn: fn)
    for a, e in zip(losses(lambda fn: ingot.compile(fn, fullgraph=True)), expected):
        assert_near(a, e)


def test_gradients_of_gradients() -> None:
    def second(fn: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        x = tracked_pair()()
        y = fn(x)
        (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
        return torch.autograd.grad(gradient, x, torch.ones_like(gradient))[0].total()

    assert_near(second(ingot.compile(lambda x: x * x * x)), second(lambda x: x * x * x))


def compilations(compiled: Any) -> int:
    compiler = Compiler.of(compiled)
    assert compiler is not None
    return len(compiler.compilations)


def test_guards_are_of_what_dispatch_reads() -> None:
    def fn(x: Tensor, w: Tensor) -> Tensor:
        return F.linear(x, w)

    compiled, x = ingot.compile(fn, fullgraph=True), plain(4, 8)
    weights = [
        (DirectInt8.of(plain(6, 8)), 1),
        (DirectInt8.of(plain(6, 8), Granularity()), 1),  # another object that is alike
        (DirectInt8.of(plain(6, 8), Granularity(2)), 2),
        (DirectInt8.of(plain(7, 8)), 3),
        (Int4.of(plain(6, 8)), 4),
        (plain(6, 8), 5),
        (DirectInt8.of(plain(6, 8)), 5),
    ]
    for w, count in weights:
        assert_near(compiled(x, w), fn(x, w))
        assert compilations(compiled) == count


def test_a_number_and_an_inner_tensor_change() -> None:
    compiled, x = ingot.compile(lambda x: x + 1, fullgraph=True), Scaled(plain(), 2.0)
    for factor, count in ((2.0, 1), (3.0, 2), (2.0, 2)):
        x.factor = factor
        assert_near(compiled(x), x + 1)
        x.elements = x.elements * 2
        assert_near(compiled(x), x + 1)
        assert compilations(compiled) == count
    x.elements = x.elements.double()  # of another type than the instance says it is
    with pytest.raises(GraphBreakError, match="makes otherwise"):
        compiled(x)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    ("fn", "make"),
    [
        (lambda x: x.view(-1)[1:] * x.size(0), lambda k: Pair(plain(k, 5), plain(k, 5))),
        (lambda x: Pair(x, x + 1) * 2, lambda k: plain(k, 5)),
        (lambda x: Int4.of(x), lambda k: plain(k, 8)),
        (lambda w: F.linear(torch.ones(2, 8), w), lambda k: Int4.of(plain(k, 8))),
        (lambda x: x.view(-1) * x.size(0), lambda k: plain(k, 5).as_subclass(Plain)),
    ],
)
def test_sizes_that_vary(fn: Callable[..., Any], make: Any, dynamic: bool | None) -> None:
    compiled = ingot.compile(fn, fullgraph=True, dynamic=dynamic)
    for k in range(2, 6):
        x = make(k)
        assert str(described(compiled(x))) == str(described(fn(x)))


def test_another_backend_runs_the_graph() -> None:
    graphs: list[Any] = []

    def backend(graph: Any, examples: Any) -> Any:
        assert all(type(t) is Tensor for t in examples)
        graphs.append(graph)
        return graph.forward

    x, w = plain(4, 8), DirectInt8.of(plain(6, 8))
    compiled = ingot.compile(lambda x, w: F.linear(x, w), backend=backend, fullgraph=True)
    assert_near(compiled(x, w), F.linear(x, w))
    y = ingot.compile(lambda x: (x * x).sin(), backend=backend, fullgraph=True)(z := pair()())
    assert str(described(y)[0]) == str(described((z * z).sin())[0])
    assert len(graphs) == 2


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # type: ignore[override]
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient * 3


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.mul_(2) * 3,
        lambda x: Doubled.apply(x),
        lambda x: torch.autograd.grad((x * x).sum(), x)[0],
        lambda x: torch.vmap(lambda t: t * 2)(x),
    ],
)
@pytest.mark.parametrize("make", [tracked_pair(), lambda: leaf(Plain)()])
def test_what_is_done_with_histories_is_as_in_eager(fn: Callable[..., Any], make: Make) -> None:
    def gradients(fn: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        x = make()
        y = x * 1
        for total in (fn(y).sum(), y.sum()):
            if total.requires_grad:
                total.backward(torch.ones_like(total), retain_graph=True)
        return described(x.grad)

    assert str(gradients(ingot.compile(fn))) == str(gradients(fn))


@pytest.mark.parametrize(
    ("reason", "fn", "make"),
    [
        ("sets an attribute", lambda x: x.mul_(2), lambda: Scaled(plain(), 2.0)),
        ("sin raises", lambda w: w.sin(), weight(Int8)),
        ("is set", lambda x: setattr(x, "factor", 3.0), lambda: Scaled(plain(), 2.0)),
        ("backward", lambda x: (x * x).sum().backward(), tracked_pair()),
        ("item", lambda x: x.sum().item(), pair()),
        ("leaves out", lambda x: x + 1, lambda: vars(x := pair()()).update(c=plain()) or x),
        (
            "in place of a DirectInt8",
            lambda w: w.dequantize() + w,
            lambda: weight(DirectInt8)().requires_grad_(),
        ),
    ],
)
def test_what_is_not_understood_breaks(reason: str, fn: Callable[[Any], Any], make: Make) -> None:
    with pytest.raises(GraphBreakError, match=reason):
        ingot.compile(fn, fullgraph=True)(make())


def test_members_of_one_that_is_made_inside() -> None:
    def made(x: Tensor) -> Any:
        y = Slotted(x + 1, "a kind")
        return y, y.kind, y.elements * 2, hasattr(y, "none")

    x = plain()
    found, expected = ingot.compile(made, fullgraph=True)(x), made(x)
    assert type(found[0]) is Slotted and found[0].kind == "a kind"
    assert_near((found[0].elements, *found[1:]), (expected[0].elements, *expected[1:]))


def test_nested_tensors_that_are_strided_break() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])
    with pytest.raises(GraphBreakError, match="it is nested"):
        ingot.compile(lambda x: x * 2, fullgraph=True)(nested)
    result = ingot.compile(lambda x: x * 2)(nested)
    assert torch.equal(result.values(), (nested * 2).values())
