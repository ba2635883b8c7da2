"""Inputs that a compiled function writes where gradients are recorded: they become its results, as
in eager."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ingot
from tests.test_differentiation import both
from tests.test_training import is_compiled, wanted


def scaled(x: Tensor, w: Tensor) -> None:
    x.mul_(w)


def in_part(x: Tensor, w: Tensor) -> Tensor:
    x.add_(w)
    x[1:].mul_(w[1:])
    return x[2:]


def replaced(x: Tensor, w: Tensor) -> Tensor:
    x.copy_(w * 3)
    return x.exp()


def unseen(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        x.mul_(2)
    return x * w


def its_result_is_kept(x: Tensor, w: Tensor) -> Tensor:
    return x.exp_() * x * w


def read_before(x: Tensor, w: Tensor) -> Tensor:
    y = x * 3
    x.mul_(w)
    return y


def read_before_and_kept(x: Tensor, w: Tensor) -> Tensor:
    y = x.sin()
    x.mul_(w)
    return y


WRITERS = [scaled, in_part, replaced, unseen, its_result_is_kept, read_before, read_before_and_kept]

INPUTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a buffer": lambda a, b: torch.ones(4),
    "a result": lambda a, b: a * 2,
    "a view": lambda a, b: b[0],
    "a view of a result": lambda a, b: (b * a)[1],
    "a leaf": lambda a, b: a,
    "a view of a leaf": lambda a, b: a[:],
    "one of several views": lambda a, b: (b * a).unbind(0)[0],
}


def outcome(
    function: Callable[..., Any], make: Callable[[Tensor, Tensor], Tensor], later: bool
) -> Any:
    """What becomes of the input and of all that leads to it, up to second derivatives; or the
    error."""
    torch.manual_seed(0)
    w, a, b = wanted(4), wanted(4), torch.randn(2, 4)
    x = make(a, b)
    try:
        result = function(x, w)
        if later:
            x.mul_(2)
        loss = (x * w).sum() + (0 if result is None else result.sum())
        if x._base is not None:
            loss = loss + x._base.square().sum()
        first = torch.autograd.grad(loss, (w, a), allow_unused=True, create_graph=True)
        slope = torch.stack([g.square().sum() for g in first if g is not None]).sum()
        return [
            x,
            x.requires_grad,
            x.is_leaf,
            result,
            first,
            torch.autograd.grad(slope, (w, a), allow_unused=True),
        ]
    except RuntimeError as error:
        return str(error)[:60]


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("kind", INPUTS)
@pytest.mark.parametrize("function", WRITERS)
def test_an_input_becomes_a_result(function, kind, later):
    compiled = ingot.compile(function)
    found, expected = [outcome(f, INPUTS[kind], later) for f in (compiled, function)]
    if isinstance(expected, str):
        assert found[:32] == expected[:32]  # of a view: that it is written, or was
    else:
        torch.testing.assert_close(found, expected)
    if kind != "a leaf":  # whose error is eager's own
        assert is_compiled(compiled)


def test_neighbours_in_one_memory():
    """A view that is read beside one that is written: both count the writes to what they are views
    of."""

    def program(wrap: Any) -> Any:
        def function(x: Tensor, y: Tensor, z: Tensor, w: Tensor) -> Tensor:
            x.mul_(w)
            z.add_(x)
            return y.sin() * w

        w, a = (
            wanted(4).double().detach().requires_grad_(),
            torch.ones(3, 4, dtype=torch.float64, requires_grad=True),
        )
        base = a * 3
        result = wrap(function)(base[0], base[1], base[2], w)
        (base.square().sum() + result.sum()).backward()
        return base, result, w.grad, a.grad

    both(program)


def test_steps_of_a_state():
    """A buffer that each call writes carries the history of all calls."""

    def program(wrap: Any) -> Any:
        step = wrap(lambda state, x, w: state.mul_(0.5).add_((x @ w).tanh()))
        w, state = (
            torch.randn(3, 3, dtype=torch.float64, requires_grad=True),
            torch.zeros(2, 3, dtype=torch.float64),
        )
        for _ in range(4):
            step(state, torch.randn(2, 3, dtype=torch.float64), w)
        state.sum().backward()
        return state, w.grad

    both(program)


@ingot.disable
def in_between() -> None:
    """Breaks the graph."""


def test_activations_in_place_behind_a_graph_break():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(4, 8).double(), nn.Linear(8, 2).double()

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            in_between()
            return self.last(nn.functional.relu(h, inplace=True))

    def program(wrap: Any) -> Any:
        model = Net()
        compiled = wrap(model)
        x = torch.randn(3, 4, dtype=torch.float64)
        compiled(x).sum().backward()
        return [p.grad for p in model.parameters()]

    both(program, ingot.compile)


def test_hooks_and_retained_gradients_stay_where_they_were():
    def program(wrap: Any) -> Any:
        seen: list[Tensor] = []
        a, w = (
            torch.ones(3, dtype=torch.float64, requires_grad=True),
            torch.full((3,), 2.0).double().requires_grad_(),
        )
        x = a * 3
        x.register_hook(lambda g: seen.append(g.clone()))
        x.retain_grad()
        wrap(scaled)(x, w)
        (x * 5).sum().backward()
        return seen, x.grad, a.grad, w.grad

    both(program)


def test_a_parameter_written_without_gradients_is_still_a_leaf():
    def program(wrap: Any) -> Any:
        def function(x: Tensor, p: nn.Parameter) -> Tensor:
            y = (x * 2 + p).sum()
            with torch.no_grad():
                p.mul_(0.5)
            return y

        p, x = nn.Parameter(torch.ones(3)), torch.ones(3)
        wrap(function)(x, p).backward()
        return p, p.grad, p.is_leaf

    both(program)


def test_the_history_of_a_written_input_dies_with_it():
    x, w = wanted(4) * 1, wanted(4)
    alive = weakref.ref(x)
    compiled = ingot.compile(its_result_is_kept, fullgraph=True)
    result = compiled(x, w)
    del x, result
    gc.collect()
    assert alive() is None


def _fill_itself(x):
    x[:] = x
    return x * 1.5


def _copy_itself(x):
    y = x.copy_(x)
    return x, y.flatten() + 1


def _by_a_view(x):
    view = x.movedim(0, -1)
    view[:] = view
    return view.sin(), x


def _of_no_elements(x):
    x[:0] = 7
    return x[:0].sum() + x.cos()


def _of_a_part(x):
    x[1:] = x[1:]
    return x.exp()


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize(
    "program", [_fill_itself, _copy_itself, _by_a_view, _of_no_elements, _of_a_part]
)
@pytest.mark.filterwarnings("error")
def test_written_with_its_own_value(program, gradients):
    """Nothing is stored, and the version counts."""
    found = []
    for function in (program, ingot.compile(program, fullgraph=True)):
        leaf = torch.arange(6.0).view(2, 3).requires_grad_(gradients)
        x = leaf * 1
        results = function(x)
        results = results if isinstance(results, tuple) else (results,)
        seen = [*results, x]
        if gradients:
            seen += torch.autograd.grad([r.sum() for r in results], leaf)
        found.append((seen, x._version, [r.requires_grad for r in results]))
    (expected, *of_eager), (actual, *ours) = found
    assert ours == of_eager
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b)


def _a_copy_of_itself(x, other):
    other.mul_(2)
    x.copy_(x)
    return torch.exp(x)


def _itself_before(x, other):
    x[:] = x
    y = x.sin()
    other.add_(y.sum())
    return y * other.sum()


def _a_part_of_itself(x, other):
    y = x.exp()
    x[1:] = x[1:]
    other.copy_(other)
    return y.relu().sum() + other.mul_(3)


@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("program", [_a_copy_of_itself, _itself_before, _a_part_of_itself])
@pytest.mark.filterwarnings("error")
def test_written_with_its_own_value_beside_another(program, dtype, gradients):
    """Autograd is told of both writes at the first of them: until then, neither is let go."""
    found = []
    for function in (program, ingot.compile(program, fullgraph=True)):
        leaves = [torch.arange(1.0, n + 1).to(dtype).requires_grad_(gradients) for n in (4, 3)]
        x, other = (leaf * 0.25 for leaf in leaves)
        result = function(x, other)
        seen = [result, x, other]
        if gradients:
            seen += torch.autograd.grad([r.sum() for r in seen], leaves)
        found.append((seen, x._version > 0, other._version > 0))
    (expected, *of_eager), (actual, *ours) = found
    assert ours == of_eager
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b)


SEVERAL: dict[str, Callable[[Tensor], Any]] = {
    "chunk": lambda x: x.chunk(2)[0],
    "unbind": lambda x: x.unbind(0)[1],
    "split": lambda x: x.split([1, 1])[1],
    "iteration": lambda x: list(x)[0],
    "a view of one": lambda x: x.chunk(2)[0].permute(1, 0)[1:],
    "of a result": lambda x: (x * 2).chunk(2),
    "a part alone": lambda x: (x.t()[0], x.chunk(2)[1])[1],
}


def _later(what: str, x: Tensor, view: Tensor) -> Tensor:
    if what == "the view":
        view.neg_()
    elif what == "its memory":
        with torch.no_grad():
            view.mul_(2)
    elif what == "a detached view":
        view.detach().mul_(2)
    elif what == "the base":
        x.mul_(2)
    return view.sum() + x.sum()


@pytest.mark.parametrize(
    "what", ["nothing", "the view", "its memory", "a detached view", "the base"]
)
@pytest.mark.parametrize("name", SEVERAL)
def test_one_of_several_views_is_written_behind_the_graph(name, what):
    """What eager refuses of a view that an op gives with others, is refused; all else is as in
    eager."""
    found = []
    for function in (SEVERAL[name], ingot.compile(SEVERAL[name])):
        leaf = torch.arange(8.0).view(2, 4).requires_grad_()
        x = leaf * 1
        view = function(x)
        view = view[0] if isinstance(view, tuple) else view
        try:
            found.append(torch.autograd.grad(_later(what, x, view), leaf)[0].tolist())
        except RuntimeError as error:
            found.append(re.sub(r"Output \d of \w+ is", "It is", str(error)))
    assert found[0] == found[1]
