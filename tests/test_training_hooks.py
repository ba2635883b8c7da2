"""Hooks that see gradients around and inside compiled functions: eager's order, values and
replacements."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import ingot
from tests.oracle import tensors_in
from tests.test_differentiation import both

MODULE_HOOKS: dict[str, Callable[[nn.Module, list[Any]], Any]] = {
    "full": lambda m, log: m[1].register_full_backward_hook(  # type: ignore[index]
        lambda mod, inputs, outputs: (log.append(inputs[0].sum()), (inputs[0] * 2,))[1]
    ),
    "pre": lambda m, log: m[1].register_full_backward_pre_hook(  # type: ignore[index]
        lambda mod, outputs: (log.append(outputs[0].sum()), (outputs[0] * 3,))[1]
    ),
    "of the whole": lambda m, log: m.register_full_backward_hook(
        lambda mod, inputs, outputs: log.append(outputs[0].sum())
    ),
}


@pytest.mark.parametrize("kind", MODULE_HOOKS)
def test_backward_hooks_of_modules(kind):
    def program(wrap: Any) -> Any:
        model, log = (
            nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double(),
            list[Any](),
        )
        MODULE_HOOKS[kind](model, log)
        compiled, x = wrap(model), torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
        for _ in range(2):
            compiled(x).sum().backward()
        assert len(log) == 2
        return log, x.grad, [p.grad for p in model.parameters()]

    both(program, ingot.compile)


def doubled(module: Any, of_inputs: Any, of_outputs: Any) -> Any:
    return (of_inputs[0] * 2,)


def clipped(module: Any, of_inputs: Any, of_outputs: Any) -> Any:
    return tuple(None if g is None else torch.clamp(g, -0.1, 0.1) for g in of_inputs)


def mixed(module: Any, of_inputs: Any, of_outputs: Any) -> Any:
    return tuple(
        g if g is None else g + sum(h.sum() for h in of_outputs if h is not None) for g in of_inputs
    )


def tripled(module: Any, of_outputs: Any) -> Any:
    return tuple(g if g is None else g * 3 for g in of_outputs)


def unseen(module: Any, of_inputs: Any, of_outputs: Any) -> None:
    of_inputs[0].sum()


def asks_for_the_first(module: Any, of_outputs: Any) -> Any:
    return (of_outputs[0] * 2, *of_outputs[1:])


HOOKS: list[list[Callable[..., Any]]] = [
    [doubled], [clipped], [mixed], [tripled], [tripled, mixed],
    [tripled, doubled, tripled, clipped], [unseen]
]  # fmt: skip


def register(module: nn.Module, hooks: list[Callable[..., Any]]) -> None:
    for hook in hooks:
        if hook.__code__.co_argcount == 2:
            module.register_full_backward_pre_hook(hook)
        else:
            module.register_full_backward_hook(hook)


class TestCaptured:
    @pytest.mark.parametrize(
        "hooks", HOOKS, ids=lambda hooks: "-".join(hook.__name__ for hook in hooks)
    )
    def test_hooks_that_see_gradients_alone(self, hooks):
        def program(wrap: Any) -> Any:
            model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
            for module in (model, model[0], model[1]):
                register(module, hooks)
            compiled, x = wrap(model), torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
            for _ in range(2):
                loss = compiled(x).square().sum()
                loss.backward()
            return loss, x.grad, [p.grad for p in model.parameters()]

        both(program)

    @pytest.mark.parametrize(
        "hooks", HOOKS, ids=lambda hooks: "-".join(hook.__name__ for hook in hooks)
    )
    @pytest.mark.parametrize("inside", [False, True])
    def test_second_derivatives(self, hooks, inside):
        """Those of a gradient that is taken inside the compiled function are captured as well."""

        def program(wrap: Any) -> Any:
            model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
            for module in (model[0], model[1]):
                register(module, hooks)

            def function(x: Tensor) -> Tensor:
                loss = model(x.sin()).square().sum()
                return torch.autograd.grad(loss, x, create_graph=True)[0] if inside else loss

            x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
            found = wrap(function)(x)
            if not inside:
                (found,) = torch.autograd.grad(found, x, create_graph=True)
            return found, torch.autograd.grad(found.square().sum(), x)

        if inside or hooks == [tripled]:
            both(program)
        else:
            with pytest.raises(RuntimeError, match="hooks that see the gradients of its inputs"):
                program(ingot.compile)

    @pytest.mark.parametrize(
        "hooks", [[mixed], [tripled], [tripled, mixed], [clipped]], ids=lambda h: h[0].__name__
    )
    @pytest.mark.parametrize("chosen", [[0], [1], [0, 1], [2]])
    def test_several_arguments_and_results(self, hooks, chosen):
        class Several(nn.Module):
            def forward(self, x: Tensor, factor: float, y: Tensor, z: Tensor) -> Any:
                return x * y * factor, y.sin(), z * z, 7

        def program(wrap: Any) -> Any:
            module = Several()
            register(module, hooks)

            def function(x: Tensor, y: Tensor, z: Tensor) -> Any:
                return module(x * 1, 2.0, y * 1, z)

            inputs = [torch.randn(3, dtype=torch.float64, requires_grad=k < 2) for k in range(3)]
            outputs = wrap(function)(*inputs)
            if chosen != [2]:
                sum(outputs[k].sum() for k in chosen).backward()
            return outputs, [t.grad for t in inputs]

        both(program)

    def test_gradients_that_do_not_pass_the_outputs(self):
        class Aside(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                self.aside = x.sin()
                return x * 2

        def program(wrap: Any) -> Any:
            module, x = Aside(), torch.ones(3, dtype=torch.float64, requires_grad=True)
            register(module, [doubled])

            def function(x: Tensor) -> Tensor:
                y = module(x * 1)
                return torch.stack([y.sum(), module.aside.sum()])

            compiled = wrap(function)
            for k in (0, 1):
                compiled(x)[k].backward()
            return x.grad

        both(program)

    def test_no_gradients_are_wanted(self):
        def program(wrap: Any) -> Any:
            module = nn.Linear(3, 2).double()
            register(module, [doubled, tripled])
            with torch.no_grad():
                return wrap(module)(torch.ones(1, 3, dtype=torch.float64))

        both(program)

    def test_a_gradient_that_is_not_there(self):
        class Two(nn.Module):
            def forward(self, x: Tensor) -> Any:
                return x * 2, x * 3

        module = Two()
        register(module, [asks_for_the_first])
        for wrap in (lambda f: f, ingot.compile):
            x = torch.ones(3, requires_grad=True)
            with pytest.raises(TypeError):
                wrap(module)(x)[1].sum().backward()


class TestLeftToEager:
    def test_a_hook_that_reads_what_changes_before_the_backward(self):
        def program(wrap: Any) -> Any:
            module, scale = nn.Linear(3, 2).double(), [1.0]
            module.register_full_backward_hook(lambda mod, of_inputs, _: (of_inputs[0] * scale[0],))
            compiled, x = wrap(module), torch.ones(1, 3, dtype=torch.float64, requires_grad=True)
            for k in range(3):
                loss = compiled(x).sum()
                scale[0] = float(k)
                loss.backward()
            return x.grad

        both(program, ingot.compile)

    def test_a_hook_that_reads_the_module(self):
        def program(wrap: Any) -> Any:
            module = nn.Linear(3, 2).double()
            module.scale = 1.0  # type: ignore[assignment]
            module.register_full_backward_hook(
                lambda mod, of_inputs, _: (of_inputs[0] * mod.scale,)
            )
            compiled, x = wrap(module), torch.ones(1, 3, dtype=torch.float64, requires_grad=True)
            loss = compiled(x).sum()
            module.scale = 5.0  # type: ignore[assignment]
            loss.backward()
            return x.grad

        both(program, ingot.compile)

    def test_a_forward_that_breaks(self):
        class Breaks(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                y = x.sin()
                if y.sum() > 0:
                    y = y * 2
                return y.exp()

        def program(wrap: Any) -> Any:
            module, x = Breaks(), torch.ones(3, dtype=torch.float64, requires_grad=True)
            register(module, [doubled])
            wrap(lambda x: module(x * 1) + 1)(x).sum().backward()
            return x.grad

        both(program, ingot.compile)

    def test_a_result_that_is_written(self):
        for wrap in (lambda f: f, ingot.compile):
            module = nn.Linear(3, 3)
            register(module, [doubled])
            with pytest.raises(RuntimeError, match="modified inplace"):
                wrap(lambda x, module=module: module(x * 1).relu_())(
                    torch.ones(1, 3, requires_grad=True)
                )


def test_hooks_of_intermediates():
    def program(wrap: Any) -> Any:
        log: list[Tensor] = []

        def function(x: Tensor) -> Tensor:
            y = x.sin()
            y.register_hook(lambda g: (log.append(g.sum()), g * 2)[1])
            return (y * y).sum()

        compiled, x = wrap(function), torch.ones(3, dtype=torch.float64, requires_grad=True)
        for _ in range(2):
            compiled(x).backward()
        assert len(log) == 2
        return log, x.grad

    both(program, ingot.compile)


def clamped(g: Tensor) -> Tensor:
    return torch.clamp(g, -0.1, 0.1)


def looks(g: Tensor) -> None:
    g.norm()


def several_hooks(x: Tensor, mask: Tensor) -> Tensor:
    h = x.sin()
    early = h.exp()
    for hook in (clamped, torch.neg, looks, functools.partial(torch.mul, other=3)):
        h.register_hook(hook)
    return (h * h).sum() + early.sum()


def variables_around(x: Tensor, mask: Tensor) -> Tensor:
    h, bound = x.sin(), 0.25
    scale = mask * 2
    h.register_hook(lambda g: torch.clamp(g, -bound, bound))
    h.register_hook(lambda g: g * mask + scale)
    scale.add_(1)
    return h.square().sum()


def defaults(x: Tensor, mask: Tensor) -> Tensor:
    h = x.sin()
    for factor in (2.0, 3.0):
        h.register_hook(lambda g, factor=factor: g * factor + 1)
    return h.square().sum()


def taken_off(x: Tensor, mask: Tensor) -> Tensor:
    h = x.sin()
    handle = h.register_hook(lambda g: g * 7)
    h.register_hook(lambda g: g + 1)
    handle.remove()
    return h.square().sum()


def views_and_writes(x: Tensor, mask: Tensor) -> Tensor:
    h = x.sin()
    h.register_hook(clamped)
    h.mul_(2)
    h.register_hook(lambda g: g / 3)
    row, rest = h.unbind()
    row.register_hook(lambda g: g * 5)
    flat = h.view(-1)
    flat.register_hook(torch.sign)
    return (row * rest).sum() + flat.exp().sum()


def differentiated_inside(x: Tensor, mask: Tensor) -> Tensor:
    h = x.sin()
    h.register_hook(lambda g: g / g.norm())
    (slope,) = torch.autograd.grad(h.square().sum(), x, create_graph=True)
    return slope.square().sum()


def backward_inside(x: Tensor, mask: Tensor) -> Tensor:
    h = x.sin()
    h.register_hook(lambda g: g * mask)
    loss = h.square().sum()
    loss.backward()
    return loss.detach()


def checkpointed(x: Tensor, mask: Tensor) -> Tensor:
    def part(y: Tensor) -> Tensor:
        h = y.sin()
        h.register_hook(clamped)
        return h.exp()

    return checkpoint(part, x * 2, use_reentrant=False).sum()


def refused_by_torch(x: Tensor, mask: Tensor) -> Any:
    with torch.no_grad():
        h = x.sin()
    try:
        h.register_hook(clamped)
    except RuntimeError as error:
        return x.sum(), len(str(error))


TENSOR_HOOKS = (
    several_hooks, variables_around, defaults, taken_off, views_and_writes, differentiated_inside,
    backward_inside,
    checkpointed, refused_by_torch,
)  # fmt: skip


def set_behind(x: Tensor, mask: Tensor) -> Tensor:
    h = x.sin()
    for factor in (2.0, 3.0):
        h.register_hook(lambda g: g * factor)  # noqa: B023
    return h.square().sum()


def set_by_another(x: Tensor, mask: Tensor) -> Any:
    h, factor = x.sin(), 2.0

    def set_factor(value: float) -> None:
        nonlocal factor
        factor = value

    h.register_hook(lambda g: g * factor)
    return h.square().sum(), set_factor


def set_behind_a_break(x: Tensor, mask: Tensor) -> Tensor:
    h, factor = x.sin(), 2.0
    h.register_hook(lambda g: g * factor)
    time.sleep(0)
    factor = 3.0
    return h.square().sum()


def handle_is_returned(x: Tensor, mask: Tensor) -> Any:
    h = x.sin()
    return h.square().sum(), h.register_hook(clamped)


class Scale:
    factor = 2.0


def object_around(x: Tensor, mask: Tensor) -> Tensor:
    h = x.sin()
    h.register_hook(lambda g: g * Scale.factor)
    return h.square().sum()


def random_hook(x: Tensor, mask: Tensor) -> Tensor:
    h = x.sin()
    h.register_hook(lambda g: g * torch.rand_like(g))
    return h.square().sum()


def asking(x: Tensor, mask: Tensor) -> Tensor:
    h = x.sin()
    h.register_hook(lambda g: g if torch.is_grad_enabled() else g * 2)
    return h.square().sum()


def of_results(x: Tensor, mask: Tensor) -> Any:
    h = x.sin()
    h.register_hook(clamped)
    return h.square().sum(), h


def of_windows(x: Tensor, mask: Tensor) -> Any:
    h = x.sin()
    h.register_hook(lambda g: g + 1)
    row, rest = h.unbind()
    row.register_hook(lambda g: g * 5)
    return row, rest.sum(), h.detach()


def writes_the_gradient(x: Tensor, mask: Tensor) -> Tensor:
    h = x.sin()
    h.register_hook(lambda g: g.mul_(3))
    return (h + 1).square().sum() + (h + mask).sum()


LEFT_TO_EAGER = (
    set_behind, set_by_another, set_behind_a_break, handle_is_returned, object_around, random_hook,
    asking, of_results,
    of_windows, writes_the_gradient,
)  # fmt: skip


class TestOfTensors:
    """Hooks that the compiled function puts on what it computes."""

    @staticmethod
    def gradients(function: Any, between: Callable[[Any], Any] = lambda results: None) -> Any:
        x = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
        results = function(x, torch.rand(2, 3, dtype=torch.float64))
        between(results)
        parts = [
            t
            for t in tensors_in(list(results) if isinstance(results, tuple) else results)
            if t.requires_grad
        ]
        if parts:
            sum((k + 1) * t.sum() for k, t in enumerate(parts)).backward()  # type: ignore[union-attr]
        return parts, x.grad, torch.rand(1)

    @pytest.mark.parametrize("function", TENSOR_HOOKS, ids=lambda f: f.__name__)
    def test_captured(self, function):
        def program(wrap: Any) -> Any:
            wrapped = wrap(function)
            return [self.gradients(wrapped) for _ in range(2)]

        both(program)

    @pytest.mark.parametrize("function", LEFT_TO_EAGER, ids=lambda f: f.__name__)
    def test_what_may_change_before_the_backward(self, function):
        def change(results: Any) -> None:
            Scale.factor *= 2
            if function is set_by_another:
                results[1](5.0)
            if function is handle_is_returned:
                results[1].remove()

        def program(wrap: Any) -> Any:
            Scale.factor = 2.0
            wrapped = wrap(function)
            return [self.gradients(wrapped, change) for _ in range(2)]

        both(program, ingot.compile)
        with pytest.raises(ingot.GraphBreakError, match="hook"):
            self.gradients(ingot.compile(function, fullgraph=True))

    def test_hooks_from_outside_come_behind(self):
        def function(x: Tensor) -> Tensor:
            h = x * 2
            h.register_hook(lambda g: g + 1)
            return h

        def program(wrap: Any) -> Any:
            x = torch.ones(3, dtype=torch.float64, requires_grad=True)
            h = wrap(function)(x)
            h.register_hook(lambda g: g * 10)
            h.retain_grad()
            h.sum().backward()
            return x.grad, h.grad

        both(program, ingot.compile)

    def test_a_number_that_varies(self):
        def function(x: Tensor, factor: float) -> Tensor:
            h = x.sin()
            h.register_hook(lambda g: g * factor)
            return h.square().sum()

        def program(wrap: Any) -> Any:
            wrapped, x = wrap(function), torch.randn(3, dtype=torch.float64, requires_grad=True)
            return [torch.autograd.grad(wrapped(x, factor), x) for factor in (2.0, 3.0, 4.0, 5.0)]

        both(program)
        compiled = ingot.compile(function)
        program(lambda _: compiled)
        assert (
            len(ingot.explain(compiled)(torch.ones(3, requires_grad=True), 6.0).compilations) == 2
        )

    def test_a_hook_that_changes_the_size(self):
        def function(x: Tensor) -> Tensor:
            h = x.sin()
            h.register_hook(lambda g: g[:1])
            return h.sum()

        for wrapped in (function, ingot.compile(function)):
            with pytest.raises(RuntimeError, match="has changed the size of value"):
                wrapped(torch.ones(3, requires_grad=True)).backward()

    def test_a_tensor_that_is_read_and_written_before_the_backward(self):
        x, mask = torch.ones(2, 3, requires_grad=True), torch.ones(2, 3)
        loss = ingot.compile(variables_around)(x, mask)
        mask.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    def test_second_derivatives_from_outside(self):
        x = torch.ones(3, requires_grad=True)
        with pytest.raises(RuntimeError, match="a tensor in it has hooks"):
            torch.autograd.grad(ingot.compile(defaults)(x, x), x, create_graph=True)


@pytest.mark.parametrize("inside", [False, True])
def test_hooks_behind_accumulation(inside):
    """Each parameter is updated as soon as it has its gradient."""

    def program(wrap: Any) -> Any:
        layer, log = nn.Linear(3, 2).double(), list[int]()
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in layer.parameters()}

        def update(p: Tensor) -> None:
            optimizers[p].step()
            optimizers[p].zero_grad()
            log.append(p.numel())

        for p in layer.parameters():
            p.register_post_accumulate_grad_hook(update)

        def function(x: Tensor) -> Tensor:
            loss = layer(x).square().sum()
            if inside:
                loss.backward()
            return loss

        compiled = wrap(function)
        for _ in range(3):
            loss = compiled(torch.ones(1, 3, dtype=torch.float64))
            if not inside:
                loss.backward()
        return (
            torch.tensor(sorted(log)),
            list(layer.parameters()),
            [p.grad for p in layer.parameters()],
        )

    both(program, ingot.compile)


# -- results that other results are computed from --------------------------------------------------


def hidden_and_last(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    hidden = x.sin()
    return hidden, hidden.exp(), x.cos()


@pytest.mark.parametrize(
    "watch", [lambda t: t.retain_grad(), lambda t: t.register_hook(lambda g: None)]
)
def test_a_part_of_a_gradient_is_not_shown_as_the_whole(watch):
    x = torch.randn(3, requires_grad=True)
    compiled = ingot.compile(hidden_and_last, fullgraph=True)
    for create_graph in (False, True):
        hidden, last, _ = compiled(x)
        watch(hidden)
        with pytest.raises(RuntimeError, match="another result is computed from it"):
            last.sum().backward(create_graph=create_graph)


@pytest.mark.parametrize(
    "backward",
    [
        lambda hidden, last, other: hidden.sum() + other.sum(),
        lambda hidden, last, other: hidden.detach().sum() + hidden.square().sum(),
    ],
)
def test_whole_gradients_are_shown(backward):
    def program(wrap: Any) -> Any:
        x, seen = torch.arange(3.0, requires_grad=True), list[Tensor]()
        results = wrap(hidden_and_last)(x)
        for result in results:
            result.retain_grad()
            result.register_hook(seen.append)
        backward(*results).backward()
        return x.grad, [r.grad for r in results], [s for s in seen if s is not None]

    both(program)
