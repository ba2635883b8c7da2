"""Hooks on what autograd saves: put up inside of a compiled function, around it, and forbidden."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch.autograd.graph import (
    disable_saved_tensors_hooks,
    save_on_cpu,
    saved_tensors_hooks,
)

import ingot

PACKED: list[torch.Tensor] = []


def pack(tensor):
    PACKED.append(tensor)
    return tensor


def unpack(tensor):
    return tensor


def tensors():
    a, b = torch.linspace(-1, 1, 16).reshape(4, 4), torch.linspace(-2, 1, 16).reshape(4, 4)
    return a.requires_grad_(), b.requires_grad_()


def outcome(fn, around=nullcontext):
    """The result of a call on new tensors, their gradients, and how many tensors went by a hook."""
    PACKED.clear()
    args = tensors()
    with around():
        result = fn(*args)
    packs = len(PACKED)
    result.sum().backward()
    return [result.detach(), *[arg.grad for arg in args]], packs


def assert_like_eager(fn, compiled=None, around=nullcontext):
    expected, _ = outcome(fn, around)
    compiled = compiled or ingot.compile(fn)
    for _ in range(2):
        got, packs = outcome(compiled, around)
        for a, b in zip(got, expected):
            torch.testing.assert_close(a, b)
    return packs


def with_hooks(x, w):
    y = x.exp()
    with saved_tensors_hooks(pack, unpack):
        z = (y @ w).sin()
    return z * y


def on_cpu(x, w):
    y = x.exp()
    with save_on_cpu():
        z = (y @ w).sin()
    return z * y


def in_halves(x, w):
    with saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
        return (x @ w).sin() * x


class Logged(saved_tensors_hooks):
    """Hooks as a library makes them."""

    def __init__(self):
        super().__init__(pack, unpack)


def with_hooks_of_a_library(x, w):
    with Logged():
        return (x @ w).sin() * x


@pytest.mark.parametrize("fn", [with_hooks, on_cpu, in_halves, with_hooks_of_a_library])
def test_hooks_inside_break_the_graph(fn) -> None:
    assert_like_eager(fn)
    report = ingot.explain(fn)(*tensors())
    assert report.graph_count >= 1 and report.breaks
    for found in report.breaks:
        assert found.reason.endswith("() sets hooks on what is saved for the backward")
    with pytest.raises(ingot.GraphBreakError, match="sets hooks on what is saved"):
        ingot.compile(fn, fullgraph=True)(*tensors())


@pytest.mark.parametrize("fn", [with_hooks, with_hooks_of_a_library])
def test_what_is_compiled_between_saves_by_way_of_the_hooks(fn) -> None:
    assert assert_like_eager(fn) > 0


@pytest.mark.parametrize("around", [save_on_cpu, lambda: saved_tensors_hooks(pack, unpack)])
def test_hooks_around_break_nothing(around) -> None:
    def fn(x, w):
        return (x @ w).sin() * x

    compiled = ingot.compile(fn, fullgraph=True)
    packs = assert_like_eager(fn, compiled, around)
    assert (packs > 0) == (around is not save_on_cpu)
    assert ingot.explain(compiled)(*tensors()).graph_count == 1


# -- forbidden -------------------------------------------------------------------------------------


def forbidden_inside(x, w):
    with disable_saved_tensors_hooks("not here"):
        y = (x @ w).sin()
        with disable_saved_tensors_hooks("nor here"):
            y = y.cos()
    return y * x


def message():
    return torch._C._autograd._saved_tensors_hooks_get_disabled_error_message()


def test_what_forbids_hooks_is_in_the_graph() -> None:
    compiled = ingot.compile(forbidden_inside, fullgraph=True)
    assert_like_eager(forbidden_inside, compiled)
    by_torch = torch.compile(forbidden_inside, fullgraph=True, backend="eager")
    assert_like_eager(forbidden_inside, by_torch)
    assert message() is None
    with disable_saved_tensors_hooks("around"):
        assert_like_eager(forbidden_inside, compiled)
        assert message() == "around"


def test_it_holds_at_a_graph_break_and_behind_the_call() -> None:
    seen = []

    @ingot.disable
    def look():
        seen.append(message())

    def broken(x, w):
        with disable_saved_tensors_hooks("not here"):
            y = x @ w
            look()
            y = y.sin()
            look()
        look()
        return y

    def left(x, w):
        torch._C._autograd._saved_tensors_hooks_disable("for good")
        return x @ w

    assert_like_eager(broken)
    assert seen == ["not here", "not here", None] * 3
    try:
        ingot.compile(left, fullgraph=True)(*tensors())
        assert message() == "for good"
    finally:
        torch._C._autograd._saved_tensors_hooks_enable()


def test_an_error_inside_takes_it_back() -> None:
    def failing(x, w):
        with disable_saved_tensors_hooks("not here"):
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        ingot.compile(failing)(*tensors())
    assert message() is None


def test_hooks_that_are_active_are_an_error_as_in_eager() -> None:
    compiled = ingot.compile(forbidden_inside)
    assert_like_eager(forbidden_inside, compiled)
    for fn in (forbidden_inside, compiled, ingot.compile(forbidden_inside)):
        with saved_tensors_hooks(pack, unpack):
            with pytest.raises(RuntimeError, match="not here"):
                fn(*tensors())
            torch._C._autograd._saved_tensors_hooks_enable()
    assert_like_eager(forbidden_inside, compiled)


def test_hooks_where_they_are_forbidden_are_an_error_as_in_eager() -> None:
    def wrong(x, w):
        with disable_saved_tensors_hooks("not here"):
            with saved_tensors_hooks(pack, unpack):
                return x @ w

    for fn in (wrong, ingot.compile(wrong)):
        with pytest.raises(RuntimeError, match="not here"):
            fn(*tensors())
        assert message() is None
