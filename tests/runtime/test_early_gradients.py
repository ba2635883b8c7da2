"""Gradients that leave a compiled backward before its end: hooks behind their accumulation are
called in between, and all else is as it is without."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ingot
from ingot.runtime import early_gradients
from ingot.runtime.early_gradients import ends_of, links_for
from ingot.runtime.training import TrainingProgram
from tests.oracle import Close

WIDTH = 64


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(6):
        layers += [nn.Linear(WIDTH, WIDTH), nn.Tanh()]
    return nn.Sequential(*layers)


def _program(result: torch.Tensor) -> TrainingProgram:
    return result.grad_fn.program  # type: ignore[union-attr, no-any-return]


def _gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters()]  # type: ignore[union-attr]


def _is_eagers(model: nn.Module, x: torch.Tensor) -> None:
    """AssertionError where the gradients of a model are not those of an eager one."""
    eager = _model()
    eager.load_state_dict(model.state_dict())
    eager(x).sum().backward()
    for one, other in zip(_gradients(model), _gradients(eager)):
        assert not Close().difference(one, other)


X = torch.randn(8, WIDTH)


def test_hooks_are_called_between_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, events = _model(), list[str]()
    part = early_gradients.LinkedRun.part

    def watched(run, number):
        gradients = part(run, number)
        events.append("part")
        return gradients

    monkeypatch.setattr(early_gradients.LinkedRun, "part", watched)
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: events.append("hook"))
    compiled = ingot.compile(model)
    for _ in range(2):  # the first call has links as well
        events.clear()
        model.zero_grad()
        compiled(X).sum().backward()
        assert events.count("part") > 4 and events.count("hook") == 12
        first, last = events.index("hook"), len(events) - 1 - events[::-1].index("part")
        assert first < events.index("part", 1) < last
        _is_eagers(model, X)


def test_there_are_none_where_nobody_waits() -> None:
    compiled = ingot.compile(_model())
    for _ in range(3):
        result = compiled(X)
        result.sum().backward()
    program = _program(result)
    assert program.links is None and not program.linked
    names = [type(node).__name__ for node, _ in result.grad_fn.next_functions if node is not None]
    assert set(names) == {"AccumulateGrad"}


def test_they_come_for_hooks_of_later() -> None:
    """Who waits is looked for at the first call, the second, the fourth and so on."""
    model = _model()
    compiled = ingot.compile(model)
    for _ in range(5):
        compiled(X).sum().backward()
    handles = []
    for parameter in model.parameters():
        handles.append(parameter.register_post_accumulate_grad_hook(lambda _: None))
    found = []
    for count in range(20):
        found.append(_program(compiled(X)).links is not None)
        if count == 6:
            for handle in handles:
                handle.remove()
    assert found[:7] == [False, False, True, True, True, True, True] and not found[-1]
    model.zero_grad()
    compiled(X).sum().backward()
    _is_eagers(model, X)


def test_a_parameter_may_be_written_behind_its_gradient() -> None:
    """As an optimizer does whose steps are hooks: what of it is read later was read before."""
    models = _model(), _model()
    for model in models:

        def step(parameter):
            with torch.no_grad():
                parameter.sub_(parameter.grad, alpha=0.1)
            parameter.grad = None

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step)
    compiled = ingot.compile(models[0])
    for _ in range(3):
        compiled(X).square().sum().backward()
        models[1](X).square().sum().backward()
    for one, other in zip(models[0].parameters(), models[1].parameters()):
        assert not Close().difference(one, other)


def test_an_error_of_a_hook_ends_the_backward() -> None:
    model, fails = _model(), [True]

    def hook(_):
        if fails[0]:
            raise KeyError("a hook")

    model[4].weight.register_post_accumulate_grad_hook(hook)
    for layer in (0, 2, 6, 8, 10):
        model[layer].weight.register_post_accumulate_grad_hook(lambda _: None)
    compiled = ingot.compile(model)
    with pytest.raises(KeyError, match="a hook"):
        compiled(X).sum().backward()
    assert model[10].weight.grad is not None and model[0].weight.grad is None
    fails[0] = False
    model.zero_grad()
    compiled(X).sum().backward()
    _is_eagers(model, X)


def test_other_backwards_give_all_at_once() -> None:
    """A graph that is kept, gradients of some inputs, gradients of gradients, and a backward that
    is one graph."""
    model = _model()
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda _: None)
    compiled, x = ingot.compile(model), X.clone().requires_grad_()
    y = compiled(x).sum()
    assert _program(compiled(x)).links is not None
    for _ in range(2):
        model.zero_grad()
        y.backward(retain_graph=True)
        _is_eagers(model, X)
    (expected,) = torch.autograd.grad(_model()(x).sum(), x)
    assert not Close().difference(torch.autograd.grad(y, x, retain_graph=True)[0], expected)
    (slope,) = torch.autograd.grad(y, x, create_graph=True)
    eager = _model()
    (eagers,) = torch.autograd.grad(eager(x).sum(), x, create_graph=True)
    found = torch.autograd.grad(slope.square().sum(), x)[0]
    assert not Close().difference(found, torch.autograd.grad(eagers.square().sum(), x)[0])
    model.zero_grad()
    with ingot.compiled_backward():
        compiled(X).sum().backward()
    _is_eagers(model, X)


def test_a_run_stops_and_goes_on() -> None:
    model = _model()
    model[0].weight.register_post_accumulate_grad_hook(lambda _: None)
    result = ingot.compile(model)(X)
    program = _program(result)
    native = program.compiled_whole().run.__self__
    ends = ends_of(native.description)
    assert 0 < min(ends.outputs) < max(ends.outputs) <= ends.steps
    arguments = [*result.grad_fn.saved_tensors, torch.ones_like(result)]
    whole = native.consume(list(arguments))
    with pytest.raises(TypeError, match="a program of"):
        native.begin([X])
    early = ends.outputs.index(min(ends.outputs))
    run = native.begin(list(arguments))
    (first,) = run.advance(min(ends.outputs), (early,))
    assert not Close().difference(first, whole[early]) and run.next == min(ends.outputs)
    for wrong in (0, ends.steps + 1):
        with pytest.raises(ValueError, match="cannot go on"):
            run.advance(wrong, ())
    rest = tuple([k for k in range(len(whole)) if k != early])
    for k, one in zip(rest, run.advance(ends.steps, rest)):
        assert not Close().difference(one, whole[k])
    with pytest.raises(ValueError, match="cannot go on"):
        run.advance(ends.steps, ())
    with pytest.raises(ValueError, match="no output"):
        native.begin(list(arguments)).advance(ends.steps, (len(whole),))


def test_few_bytes_are_not_worth_links() -> None:
    model = nn.Linear(4, 4)
    model.weight.register_post_accumulate_grad_hook(lambda _: None)
    program = _program(ingot.compile(model)(torch.randn(2, 4)))
    assert program.links is None
    assert links_for(program, [*model.parameters(), torch.randn(2, 4)]) is None
