"""torch.func inside compiled functions: grad, vjp, jvp, jacobians, hessian and functional_call are
captured, in one graph."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    stack_module_state,
    vjp,
    vmap,
)

import ingot
from ingot.graph import aten_tracer, tracing
from ingot.torch_private import get_dynamic_layer_stack_depth
from ingot.wrapped import is_wrapped
from tests.test_differentiation import both, wanted, whole


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 4)).double()


def constants(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


def square(x: Tensor) -> Tensor:
    return (x.sin() * x).sum()


CUBE = grad(lambda x: (x**3).sum())


def without_gradients_inside(x: Tensor) -> Tensor:
    with torch.no_grad():
        c = x**2
    return (x - c).sum()


def written_inside(x: Tensor) -> Tensor:
    y = x * 2
    y[0] = 0
    return y.mul_(x).sum()


def trees(x: Tensor, y: Tensor) -> Any:
    found, back = vjp(lambda x, y: {"a": x * y, "b": [x.sin(), y]}, x, y)
    return found, back({"a": y, "b": [x, x.exp()]})


def with_more(x: Tensor, y: Tensor) -> Any:
    found, back, more = vjp(lambda x: (x.sin(), {"more": x * y}), x, has_aux=True)
    gradients, (value, beside) = grad_and_value(lambda x: ((x * y).sum(), x.exp()), has_aux=True)(x)
    return found, back(found), more["more"], gradients, value, beside


def by_the_second_alone(x: Tensor, y: Tensor) -> Any:
    """Only the zero tangent of the first argument is multiplied by the second's value."""
    return jacfwd(lambda a, b: a * b.sum(), argnums=1)(x, y)


FUNCTIONS = [
    lambda x, y: grad(square)(x) * y,
    lambda x, y: grad(lambda y, x: (x * y.exp()).sum(), argnums=(0, 1))(x, y),
    # the inner one is a constant to nobody
    lambda x, y: grad(lambda x: square(x) * grad(square)(x * y).sum())(x),
    lambda x, y: grad(lambda x: x.sum() * grad(lambda y: (x * y * y).sum())(y).sum())(x),
    lambda x, y: grad(grad(grad(lambda t: t**4)))(x.sum()),
    lambda x, y: [grad(square)(t) for t in (x, y, x * y, x)],
    lambda x, y: grad(without_gradients_inside)(x),
    lambda x, y: grad(written_inside)(x),
    lambda x, y: grad(lambda x: y.sum())(x),
    lambda x, y: CUBE(x) + vmap(CUBE)(torch.stack([x, y])),
    trees,
    with_more,
    lambda x, y: jacrev(lambda x: x.sin() * x.sum() * y)(x),
    lambda x, y: jacrev(lambda x, y: (x * y.sum(), [x.sin() * y]), argnums=(0, 1), chunk_size=2)(
        x, y
    ),
    lambda x, y: hessian(lambda x, y: (x * y * x).sum(), argnums=(0, 1))(x, y),
    lambda x, y: vmap(lambda t: hessian(square)(t * y).diagonal().sum())(torch.stack([x, y])),
    lambda x, y: vmap(vmap(grad(torch.sin)))(torch.stack([x, y])),
    lambda x, y: vmap(lambda k: x[k] * y)(torch.tensor([2, 0])),
    lambda x, y: jvp(lambda x: (x.sin() * y, [x.sum()]), (x,), (y,)),
    lambda x, y: jvp(lambda a: jvp(torch.sin, (a,), (y,))[1], (x,), (y,)),
    lambda x, y: jvp(grad(square), (x,), (y,))[1] * grad(lambda t: jvp(square, (t,), (y,))[1])(x),
    lambda x, y: jvp(lambda p: p["a"] * 2, ({"a": x, "b": y},), ({"a": y, "b": x},)),
    lambda x, y: jvp(lambda x: y.sum(), (x,), (y,)),
    lambda x, y: jvp(lambda x: (x.exp(), y + 1), (x,), (y,), has_aux=True),
    lambda x, y: jacfwd(lambda a, b: a * b.sum(), argnums=(0, 1))(x, y),
    by_the_second_alone,
    lambda x, y: vmap(jacfwd(lambda t: t * y * t.sum()))(torch.stack([x, y])),
]


@pytest.mark.parametrize("wants", [False, True])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_values_and_gradients(function, wants, request):
    if function is by_the_second_alone and wants:
        reason = "a gradient is None where eager's is 0, as a zero tangent leads to it"
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))

    def program(wrap: Any) -> Any:
        inputs = wanted(3), wanted(3)
        if not wants:
            inputs = inputs[0].detach(), inputs[1].detach()
        compiled = wrap(function)
        found = compiled(*inputs)
        if wants:
            tensors = [t for t in torch.utils._pytree.tree_leaves(found) if t.requires_grad]
            torch.autograd.backward([t.square().sum() for t in tensors])
        with torch.no_grad():
            return found, compiled(*inputs), [t.grad for t in inputs]

    both(program)


def test_random_numbers():
    def program(wrap: Any) -> Any:
        function = wrap(lambda x: grad(lambda x: (F.dropout(x, 0.5) * torch.rand(8)).sum())(x))
        return function(torch.ones(8)), torch.rand(2)

    both(program)


def test_gradients_of_single_samples():
    def loss(state: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(functional_call(model, state, (x[None],)), y[None])

    def clipped(state: dict[str, Tensor], x: Tensor, y: Tensor) -> Any:
        gradients, losses = vmap(grad_and_value(loss), in_dims=(None, 0, 0))(state, x, y)
        norms = sum(g.flatten(1).square().sum(1) for g in gradients.values()).sqrt()
        return {k: torch.einsum("i,i...->...", 1 / norms, g) for k, g in gradients.items()}, losses

    model = network()
    state = {name: p.detach() for name, p in model.named_parameters()}
    x, y = constants((5, 4), (5, 4))
    torch.testing.assert_close(whole(clipped)(state, x, y), clipped(state, x, y))


def test_a_step_behind_a_step():
    """What MAML does."""

    def program(wrap: Any) -> Any:
        model, (x,) = network(), constants((3, 4))

        def loss(state: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(model, state, (x,)).square().mean()

        def outer(state: dict[str, Tensor], x: Tensor) -> Tensor:
            gradients = grad(loss)(state, x)
            return loss({name: state[name] - 0.1 * gradients[name] for name in state}, x)

        wrap(outer)(dict(model.named_parameters()), x).backward()
        return [p.grad for p in model.parameters()]

    both(program)


def test_an_equation_is_trained():
    """Second derivatives by the place, in a whole step."""

    def program(wrap: Any) -> Any:
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def residual(p: Tensor) -> Tensor:
            field = lambda p: model(p).sum()  # noqa: E731
            return torch.trace(hessian(field)(p)) - grad(field)(p).sum()

        def step(points: Tensor) -> Tensor:
            loss = vmap(residual)(points).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        compiled = wrap(step)
        return [compiled(*constants((3, 4))) for _ in range(3)], list(model.parameters())

    both(program, ingot.compile)


def test_floats_that_vary():
    def program(wrap: Any) -> Any:
        compiled, (x,) = wrap(lambda x, k: grad(lambda x: square(x) * k)(x)), constants((3,))
        return [compiled(x, k) for k in (1.0, 2.0, 3.0, 2.0)]

    both(program)


def test_other_sizes():
    compiled = whole(lambda x: grad(square)(x))
    for size in (2, 3, 1, 5):
        (x,) = constants((size,))
        torch.testing.assert_close(compiled(x), grad(square)(x))


# -- functional_call -------------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return self.norm(self.last(self.first(x))) * scale


def test_functional_call():
    def program(wrap: Any) -> Any:
        model, weight, (x,) = Tied().double(), wanted(4, 4), constants((3, 4))
        buffers = {name: b.clone() for name, b in model.named_buffers()}
        compiled = wrap(
            lambda weight, x: functional_call(
                model, ({"first.weight": weight}, buffers), (x,), {"scale": 2.0}
            )
        )
        found = compiled(weight, x)
        found.square().sum().backward()
        kinds = [type(p) is nn.Parameter for p in model.parameters()]
        assert all(kinds)
        grads = [p.grad for p in model.parameters()]
        return found, weight.grad, grads, list(model.buffers()), list(buffers.values())

    both(program)


def test_ensembles():
    def program(wrap: Any) -> Any:
        state, _ = stack_module_state([network() for _ in range(3)])
        base, (x,) = network().to("meta"), constants((2, 4))
        compiled = wrap(
            lambda state, x: vmap(lambda s, x: functional_call(base, s, (x,)), (0, None))(state, x)
        )
        compiled(state, x).sum().backward()
        return compiled(state, x), [t.grad for t in state.values()]

    both(program)


# -- what is left to eager -------------------------------------------------------------------------


def caught(x: Tensor) -> Any:
    try:
        return grad(lambda x: x * 2)(x)
    except RuntimeError as error:
        return x, str(error)[:30]


KEPT: list[Tensor] = []


def keeps_what_is_inside(x: Tensor) -> Tensor:
    def kept(x: Tensor) -> Tensor:
        KEPT.append(x * 2)
        return square(x)

    return grad(kept)(x)


def branches(x: Tensor) -> Tensor:
    return x.sum() if x.sum() > 0 else x.sum() * 2


@pytest.mark.parametrize(
    "function",
    [
        caught,
        keeps_what_is_inside,
        lambda x: grad(branches)(x),
        lambda x: torch.func.jvp(torch.sin, (x,), (x,), strict=True),
        lambda x: torch.func.linearize(torch.sin, x)[1](x),
        lambda x: vjp(torch.sin, x)[0],
        lambda x: vjp(torch.sin, x)[1](x),
    ],
)
def test_left_to_eager(function):
    x = torch.randn(3)
    compiled = ingot.compile(function)
    for _ in range(2):
        found, expected = compiled(x), function(x)
        assert torch._C._functorch.peek_interpreter_stack() is None
        if function is caught:
            assert found[1] == expected[1]
        torch.testing.assert_close(found[0], expected[0])


def test_inference_mode():
    x = torch.randn(3)
    with torch.inference_mode():
        found, expected = ingot.compile(lambda x: grad(square)(x))(x), grad(square)(x)
    assert found.is_inference() == expected.is_inference()
    torch.testing.assert_close(found, expected)


def test_a_derivative_that_outlives_the_graph():
    x = torch.randn(3)
    found, back = ingot.compile(lambda x: vjp(torch.sin, x))(x)
    torch.testing.assert_close((found, back(x)[0]), (x.sin(), x.cos() * x))


class Holder:
    tensor: Any = None


def _in_a_list(keep: list[Any]) -> Any:
    return keep


def _in_an_attribute(keep: list[Any]) -> Any:
    HOLDER.tensor = keep[0]
    return None


@ingot.disable
def _break() -> None:
    pass


def _across_a_break(keep: list[Any]) -> Any:
    _break()
    return keep[0]


HOLDER = Holder()
TRANSFORMS: dict[str, Any] = {
    "grad": lambda f, x: grad(lambda x: f(x).sum())(x),
    "vjp": lambda f, x: vjp(f, x)[0],
    "jacrev": lambda f, x: jacrev(f)(x),
    "vmap": lambda f, x: vmap(f)(x),
    "grad in vmap": lambda f, x: vmap(grad(lambda x: f(x).sum()))(x),
}


@pytest.mark.parametrize(
    "leave", [lambda keep: keep[0], _in_a_list, _in_an_attribute, _across_a_break]
)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_tensor_that_leaves_its_transform(name: str, leave: Any) -> None:
    """torch lets it go, wrapped as it is. No graph gives one, so eager does."""

    def function(x: Tensor) -> Any:
        keep: list[Tensor] = []

        def inner(x: Tensor) -> Tensor:
            keep.append(x * 2)
            return x.sin()

        return TRANSFORMS[name](inner, x), leave(keep)

    x = torch.randn(3)
    found, expected = ingot.compile(function)(x), function(x)
    torch.testing.assert_close(found[0], expected[0])
    assert type(found[1]) is type(expected[1])
    assert HOLDER.tensor is None or is_wrapped(HOLDER.tensor)
    HOLDER.tensor = None
    (reason,) = ingot.explain(function)(x).breaks
    assert "alive outside of the transform" in reason.reason


# -- levels that are left by an error --------------------------------------------------------------

TRANSFORMED = {
    "grad": lambda x: grad(square)(x),
    "grad of grad": lambda x: grad(lambda y: grad(square)(y).sum())(x),
    "vjp": lambda x: vjp(torch.sin, x)[1](x)[0],
    "vmap": lambda x: vmap(torch.sin)(x),
    "vmap of grad": lambda x: vmap(grad(square))(x),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_a_backends_error_leaves_the_levels(name: str) -> None:
    """An operation inside fails: the call runs in eager, and the next one is at no level either."""

    failures = []

    def backend(gm: torch.fx.GraphModule, inputs: Any) -> Any:
        class Failing(torch.fx.Interpreter):
            def run_node(self, node: torch.fx.Node) -> Any:
                if "sin" in node.name:
                    failures.append(node)
                    raise ValueError("inside")
                return super().run_node(node)

        return Failing(gm).run

    compiled = ingot.compile(TRANSFORMED[name], backend=backend)
    x = torch.randn(3)
    for calls in (1, 2):
        result = compiled(x)
        assert len(failures) == calls
        assert get_dynamic_layer_stack_depth() == 0
        torch.testing.assert_close(result, TRANSFORMED[name](x))


@pytest.mark.parametrize("name", TRANSFORMED)
def test_an_interrupted_trace_leaves_the_levels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each safe point: the interruption itself arrives, not an error about the levels. (A second
    trace passes fewer than the first, as it knows formulas.)"""

    def interrupted(at: int) -> bool:
        passed = 0

        def safe_point() -> None:
            nonlocal passed
            passed += 1
            if passed == at:
                raise KeyboardInterrupt

        for module in (aten_tracer, tracing):
            monkeypatch.setattr(module, "safe_point", safe_point)
        arrived = False
        try:
            ingot.compile(TRANSFORMED[name])(torch.randn(3))
        except KeyboardInterrupt:
            arrived = True
        assert get_dynamic_layer_stack_depth() == 0
        assert arrived is (passed >= at)
        return arrived

    reached = next(at for at in itertools.count(1) if not interrupted(at)) - 1
    assert reached >= 2
