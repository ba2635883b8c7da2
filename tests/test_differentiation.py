"""Gradients that are taken inside a compiled function, and gradients of gradients: what eager
gives, in one graph."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ingot
from ingot.compiler import Compiler
from tests.oracle import tensors_in

EAGER: Callable[[Any], Any] = lambda f: f  # noqa: E731


def whole(f: Any) -> Any:
    return ingot.compile(f, fullgraph=True)


def wanted(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def both(
    program: Callable[[Callable[[Any], Any]], Any], wrap: Callable[[Any], Any] = whole
) -> None:
    """Runs a program that wraps a function by what it is given, in eager and compiled, from the
    same seed."""
    found = []
    for wrapper in (EAGER, wrap):
        torch.manual_seed(0)
        found.append(program(wrapper))
    torch.testing.assert_close(found[1], found[0])
    flags = [[t.requires_grad for t in tensors_in(result)] for result in found]
    assert flags[0] == flags[1]


def small_network(outputs: int = 1) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, outputs)).double()


# -- torch.autograd.grad ---------------------------------------------------------------------------


def test_gradients_as_results() -> None:
    def program(wrap: Any) -> Any:
        def function(x: Tensor, w: Tensor) -> Any:
            energy = ((x * w).sin() ** 2).sum()
            forces, unused = torch.autograd.grad(
                energy, [x, w.detach().requires_grad_()], allow_unused=True
            )
            return energy.detach(), -forces, unused

        return wrap(function)(wanted(4), wanted(4))

    both(program)


@pytest.mark.parametrize("leaf", ["an input", "made inside", "an input that becomes one"])
def test_forces_are_trained_on(leaf: str) -> None:
    """Forces are gradients, and what is trained on is them."""

    def program(wrap: Any) -> Any:
        network, x = (
            small_network(),
            torch.randn(5, 3, dtype=torch.float64, requires_grad=leaf == "an input"),
        )

        def function(x: Tensor) -> Any:
            if leaf == "made inside":
                x = (x * 2).detach().requires_grad_()
            elif leaf != "an input":
                x.requires_grad_()
            energy = network(x).sum()
            return energy, -torch.autograd.grad(energy, x, create_graph=True)[0]

        compiled = wrap(function)
        for _ in range(2):
            energy, forces = compiled(x)
            (energy + forces.square().sum()).backward()
        return energy, forces, [p.grad for p in network.parameters()], x.requires_grad, x.grad

    both(program)


def test_what_comes_before_a_tensor_is_a_leaf_has_no_gradient() -> None:
    def program(wrap: Any) -> Any:
        def function(x: Tensor) -> Any:
            before = x * 2
            x.requires_grad_()
            return before, before * x

        x = torch.ones(3)
        before, y = wrap(function)(x)
        y.sum().backward()
        return before, y, x.grad

    both(program)


def test_gradient_penalty() -> None:
    def program(wrap: Any) -> Any:
        network = small_network()

        def function(real: Tensor, made: Tensor) -> Tensor:
            share = torch.rand(5, 1, dtype=torch.float64)
            between = (share * real + (1 - share) * made).requires_grad_(True)
            score = network(between)
            (slope,) = torch.autograd.grad(
                outputs=score,
                inputs=between,
                grad_outputs=torch.ones_like(score),
                create_graph=True,
                retain_graph=True,
                only_inputs=True,
            )
            return ((slope.norm(2, dim=1) - 1) ** 2).mean()

        compiled = wrap(function)
        for _ in range(2):
            penalty = compiled(
                torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
            )
            penalty.backward()
        return penalty, [p.grad for p in network.parameters()]

    both(program)


def test_hessian_vector_product() -> None:
    def program(wrap: Any) -> Any:
        def function(x: Tensor, v: Tensor) -> Any:
            y = (x.sin() ** 2 * x.roll(1)).sum()
            (first,) = torch.autograd.grad(y, x, create_graph=True)
            return torch.autograd.grad(first, x, v)

        return wrap(function)(wanted(4), torch.randn(4, dtype=torch.float64))

    both(program)


def test_an_equation_with_second_derivatives() -> None:
    """Physics-informed: the network's second derivative is in the loss."""

    def program(wrap: Any) -> Any:
        network = nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)).double()

        def loss(x: Tensor) -> Tensor:
            x = x.clone().requires_grad_()
            u = network(x)
            (u_x,) = torch.autograd.grad(u.sum(), x, create_graph=True)
            (u_xx,) = torch.autograd.grad(u_x.sum(), x, create_graph=True)
            return (u_xx + x.sin()).square().mean()

        compiled = wrap(loss)
        for _ in range(2):
            compiled(torch.linspace(0, 1, 7, dtype=torch.float64)[:, None]).backward()
        return [p.grad for p in network.parameters()]

    both(program)


def test_a_graph_that_was_used_up() -> None:
    """What is returned of it has a history, which nobody can go through."""

    def program(wrap: Any) -> Any:
        def function(x: Tensor) -> Any:
            y = (x * x).sum()
            torch.autograd.grad(y, x)
            return y, x.sin()

        x = wanted(3)
        y, other = wrap(function)(x)
        other.sum().backward()
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            y.backward()
        return y, x.grad

    both(program)


def test_gradients_within_no_grad() -> None:
    def program(wrap: Any) -> Any:
        @torch.no_grad()
        def function(x: Tensor) -> Any:
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                y = x.exp().sum()
                (gradient,) = torch.autograd.grad(y, x)
            return x.sub(gradient, alpha=0.1)

        return wrap(function)(torch.randn(3))

    both(program)


def test_errors_of_autograd_are_eagers() -> None:
    def unused(x: Tensor, y: Tensor) -> Any:
        return torch.autograd.grad(x.sum(), y)

    def without(x: Tensor, y: Tensor) -> Any:
        return torch.autograd.grad(x.detach().sum(), y)

    def scalar(x: Tensor, y: Tensor) -> Any:
        return torch.autograd.grad(x * y, y)

    for function, text in (
        (unused, "not have been used"),
        (without, "does not require grad"),
        (scalar, "scalar"),
    ):
        for f in (function, ingot.compile(function)):
            with pytest.raises(RuntimeError, match=text):
                f(wanted(3), wanted(3))


def test_gradients_by_way_of_what_was_computed_before() -> None:
    def program(wrap: Any) -> Any:
        x = wanted(4)
        h = x.sin()
        function = wrap(lambda h, x: torch.autograd.grad((h * h * x).sum(), x)[0])
        return function(h, x)

    both(program, ingot.compile)


def test_gradients_of_what_was_computed_before() -> None:
    def program(wrap: Any) -> Any:
        h = wanted(4).sin()
        return wrap(lambda h: torch.autograd.grad((h * h).sum(), h)[0])(h)

    both(program)


def test_a_leaf_that_leaves_the_function() -> None:
    def program(wrap: Any) -> Any:
        def function(x: Tensor) -> Any:
            z = (x * 2).requires_grad_()
            y = (z**3).sum()
            return z, y

        z, y = wrap(function)(torch.ones(3))
        assert z.is_leaf
        y.backward()
        return z, z.grad

    both(program, ingot.compile)


# -- backward() ------------------------------------------------------------------------------------


def test_backward_adds_to_what_is_there() -> None:
    def program(wrap: Any) -> Any:
        network, x = small_network(), torch.randn(4, 3, dtype=torch.float64)

        def step(x: Tensor) -> Tensor:
            loss = network(x).square().mean()
            loss.backward()
            return loss

        compiled = wrap(step)
        losses = [compiled(x) for _ in range(2)]
        held = [p.grad for p in network.parameters()]
        losses.append(compiled(x))
        assert all(p.grad is before for p, before in zip(network.parameters(), held))  # in place
        return losses, held

    both(program)


def test_gradients_lie_as_the_leaves_do() -> None:
    def program(wrap: Any) -> Any:
        leaves = [torch.randn(3, 4).t().requires_grad_(),
            torch.randn(4, 6)[:, ::2].requires_grad_(),
                  torch.randn(1, 3).requires_grad_()]  # fmt: skip

        def function() -> None:
            (leaves[0] * leaves[1] + leaves[2]).sum().backward()

        wrap(function)()
        memory = {leaf.grad.data_ptr() for leaf in leaves}
        assert len(memory) == 3
        return [leaf.grad for leaf in leaves], [leaf.grad.stride() for leaf in leaves]

    both(program)


def test_backward_into_some_leaves() -> None:
    def program(wrap: Any) -> Any:
        x, w = wanted(3), wanted(3)

        def function(x: Tensor, w: Tensor) -> None:
            y = x * w
            y.backward(torch.ones_like(y), inputs=[w], retain_graph=True)
            torch.autograd.backward(
                [y, y.sin()], [torch.full_like(y, 2), torch.ones_like(y)], inputs=w
            )

        wrap(function)(x, w)
        return x.grad, w.grad

    both(program)


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")  # which torch says once
def test_backward_with_a_history() -> None:
    def program(wrap: Any) -> Any:
        x = wanted(3)

        def function(x: Tensor) -> Tensor:
            (x**3).sum().backward(create_graph=True)
            return x.grad * 2

        y = wrap(function)(x)
        return y, torch.autograd.grad(y.sum(), x), x.grad

    both(program, ingot.compile)


def test_grad_is_read_and_set() -> None:
    def program(wrap: Any) -> Any:
        x, w = wanted(3), wanted(3)
        w.grad = torch.ones_like(w)

        def function(x: Tensor, w: Tensor) -> Any:
            before = w.grad
            w.grad = None
            (x.sin() * w).sum().backward()
            first = x.grad.clone()
            x.grad = first * 2
            return before, first, w.grad is None

        compiled = wrap(function)
        return [(compiled(x, w), x.grad, w.grad) for _ in range(2)]

    both(program)


def test_a_leaf_made_inside() -> None:
    def program(wrap: Any) -> Any:
        def function(x: Tensor) -> Any:
            z = x.clone().requires_grad_()
            none = z.grad is None
            (z**3).sum().backward()
            (z**2).sum().backward()
            return none, z.grad

        return wrap(function)(torch.randn(3))

    both(program)


def test_hooks_see_gradients() -> None:
    def program(wrap: Any) -> Any:
        network, seen = small_network(), []
        network[0].weight.register_hook(lambda g: g * 2)
        network[2].bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.clone()))

        def step(x: Tensor) -> Any:
            loss = network(x).sum()
            loss.backward()
            return loss.detach(), torch.autograd.grad(network(x).sum(), network[0].weight)

        return (
            wrap(step)(torch.ones(2, 3, dtype=torch.float64)),
            [p.grad for p in network.parameters()],
            seen,
        )

    both(program, ingot.compile)


def test_a_hook_that_comes_later() -> None:
    x = wanted(3)
    step = whole(lambda x: x.sin().sum().backward())
    step(x)
    first, seen = x.grad.clone(), []
    handle = x.register_hook(seen.append)
    again = ingot.compile(lambda x: x.sin().sum().backward())
    for f in (again, again):
        f(x)
    assert len(seen) == 2
    handle.remove()
    again(x)
    assert len(seen) == 2
    torch.testing.assert_close(x.grad, 4 * first)


def test_the_same_tensor_twice() -> None:
    """What held for two tensors does not hold for one that is given twice."""
    step = whole(lambda x, w: (x * w).sum().backward())
    step(wanted(3), wanted(3))
    x = wanted(3)
    step(x, x)
    torch.testing.assert_close(x.grad, 2 * x.detach())


def test_a_training_step() -> None:
    def program(wrap: Any) -> Any:
        network, x = small_network(), torch.randn(4, 3, dtype=torch.float64)
        parameters = list(network.parameters())

        def step(x: Tensor) -> Tensor:
            loss = network(x).square().mean()
            loss.backward()
            with torch.no_grad():
                for p in parameters:
                    p.sub_(p.grad, alpha=0.1)
                    p.grad = None
            return loss

        compiled = wrap(step)
        return [compiled(x) for _ in range(4)], parameters, [p.grad for p in parameters]

    both(program)


# -- gradients of gradients ------------------------------------------------------------------------


def second_program(compiled: Any) -> Any:
    """What compiles the gradients of a compiled function when these are differentiated."""
    compiler = Compiler.of(compiled)
    assert compiler is not None
    (first,) = [c.backward for c in compiler.compilations if c.backward is not None]
    return first.backward


CASES: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "pointwise": (lambda x: (x.sin() ** 2).sum(), ((5,),)),
    "matmul": (lambda x, w: torch.tanh(x @ w), ((2, 3), (3, 2))),
    "linear": (lambda x: x * 2, ((3,),)),
    "softmax": (lambda x: F.softmax(x, -1)[:, 1:] * x[:, :2], ((4, 3),)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b).exp(), ((3, 4), (4,), (4,))),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1).tanh(), ((1, 2, 4, 4), (3, 2, 3, 3))),
    # no fused kernel
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), ((1, 1, 1, 3, 4),) * 3),
    "abs": (lambda x, w: x.abs() * w, ((3,), (3,))),
    "binary cross entropy": (
        lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()),
        ((3, 4), (3, 4)),
    ),
    "cross entropy": (lambda x: F.cross_entropy(x, torch.tensor([1, 0, 2])), ((3, 4),)),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_gradients(name: str) -> None:
    function, shapes = CASES[name]

    def program(wrap: Any) -> Any:
        inputs = [wanted(*shape) for shape in shapes]
        compiled = wrap(function)
        y = compiled(*inputs)
        tangent = torch.randn_like(y).requires_grad_()
        first = torch.autograd.grad(y, inputs, tangent, create_graph=True)
        heads = [g for g in first if g.requires_grad]
        third = torch.autograd.grad(
            [h.square().sum() for h in heads], [*inputs, tangent], allow_unused=True
        )
        if wrap is not EAGER:
            made = second_program(compiled)
            assert made.skipped is None
            assert made.backward.skipped is None
        return first, [torch.zeros(()) if g is None or not g.any() else g for g in third]

    both(program)


def test_zeros_without_memory() -> None:
    """Autograd makes such tensors, as a gradient that is zero everywhere."""

    def program(wrap: Any) -> Any:
        zeros = torch._efficientzerotensor(3, dtype=torch.float64)
        x = wanted(3)
        y = wrap(lambda x: x.sin())(x)
        return torch.autograd.grad(y, x, zeros), wrap(lambda z: z + 1)(zeros)

    both(program, ingot.compile)


def test_gradients_as_complex_numbers_see_them() -> None:
    """Gradients that share memory, one as pairs of floats and one as complex numbers."""

    def program(wrap: Any) -> Any:
        x, y = wanted(), wanted()
        tangent = torch.randn((), dtype=torch.complex128, requires_grad=True)
        first = torch.autograd.grad(wrap(torch.complex)(x, y), [x, y], tangent, create_graph=True)
        return first, torch.autograd.grad(first, tangent, [torch.ones_like(g) for g in first])

    both(program, ingot.compile)


def test_third_derivatives() -> None:
    x = torch.linspace(0.1, 1, 5, dtype=torch.float64, requires_grad=True)
    found = [whole(lambda x: (x.sin() ** 2).sum())(x)]
    for _ in range(3):
        found.append(torch.autograd.grad(found[-1].sum(), x, create_graph=True)[0])
    expected = [2 * torch.cos(2 * x), -4 * torch.sin(2 * x)]
    torch.testing.assert_close(found[2:], expected)


def test_gradients_of_gradients_under_autocast() -> None:
    """The forward is run again as it was, and the backward outside of autocast."""

    def program(wrap: Any) -> Any:
        layer, x = nn.Linear(4, 4), torch.randn(3, 4, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            y = wrap(layer)(x).float().sin()
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return first.dtype, torch.autograd.grad(first.square().sum(), [x, layer.weight])

    found = []
    for wrapper in (EAGER, whole):
        torch.manual_seed(0)
        found.append(program(wrapper))
    assert found[0][0] == found[1][0]
    torch.testing.assert_close(found[0][1], found[1][1], rtol=2e-2, atol=2e-2)


def test_gradients_of_gradients_with_anomaly_detection() -> None:
    def program(wrap: Any) -> Any:
        x = wanted(3)
        y = wrap(lambda x: x.sin().sum())(x)
        with torch.autograd.set_detect_anomaly(True):
            (first,) = torch.autograd.grad(y, x, create_graph=True)
        return torch.autograd.grad(first.sum(), x)

    both(program)


def test_anomalies_are_detected() -> None:
    def function(x: Tensor) -> Tensor:
        return (x * 0).sqrt().sum()

    compiled = whole(function)
    compiled(wanted(3))
    for f in (function, compiled, ingot.compile(function)):
        with (
            torch.autograd.set_detect_anomaly(True),
            pytest.warns(UserWarning, match="Error detected"),
        ):
            with pytest.raises(RuntimeError, match="returned nan values"):
                (f(wanted(3)) * torch.tensor(float("nan"))).backward()


def test_a_copy_is_trained_alike() -> None:
    """Compiled functions that take gradients leave nothing on what they were given."""
    network = small_network()
    before = copy.deepcopy(network.state_dict())
    whole(lambda x: torch.autograd.grad(network(x).sum(), list(network.parameters())))(
        torch.ones(2, 3, dtype=torch.float64)
    )
    torch.testing.assert_close(network.state_dict(), before)
    assert all(p.grad is None and p.grad_fn is None for p in network.parameters())


def test_symbolic_sizes() -> None:
    def program(wrap: Any) -> Any:
        def function(x: Tensor) -> Any:
            return torch.autograd.grad((x**3).sum(), x)[0]

        compiled = wrap(function)
        return [compiled(wanted(n)) for n in (3, 5, 4)]

    both(program, lambda f: ingot.compile(f, dynamic=True))
