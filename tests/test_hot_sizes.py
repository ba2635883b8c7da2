"""`options={"specialize": True}`: sizes that keep coming get an entry of their own, compiled in the
background."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from ingot.compiler import Compiler
from ingot.hot_sizes import HOT, HOT_THREAD, MAX_HOT


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x * 2, -1) + x.shape[0]


def specialized(fn: Callable[..., Any], **settings: Any) -> tuple[Any, Compiler]:
    compiled = ingot.compile(fn, options={"specialize": True}, **settings)
    compiler = Compiler.of(compiled)
    assert compiler is not None
    return compiled, compiler


def wait() -> None:
    """Until nothing is compiled in the background."""
    for thread in threading.enumerate():
        if thread.name == HOT_THREAD:
            thread.join()


def hits(compiler: Compiler) -> list[int]:
    return [entry.hits for entry in compiler.dispatcher.entries()]


def test_sizes_that_keep_coming_get_an_entry() -> None:
    compiled, compiler = specialized(softmax, dynamic=True)
    x = torch.randn(6, 9)
    for _ in range(HOT + 1):
        torch.testing.assert_close(compiled(x), softmax(x))
    wait()
    assert len(compiler.compilations) == 2 and hits(compiler) == [0, HOT]
    for k in range(2, 5):
        torch.testing.assert_close(compiled(x), softmax(x))
        torch.testing.assert_close(compiled(x[:k]), softmax(x[:k]))
    special, general = compiler.dispatcher.entries()
    assert special.hits == 3 and general.hits == HOT + 3
    made = compiler.compilations[1]
    assert not made.captured.guards.symbols and compiler.compilations[0].captured.guards.symbols
    assert "in the background" in made.recompiled


def test_not_unless_it_is_asked_for() -> None:
    compiled = ingot.compile(softmax, dynamic=True)
    x = torch.randn(6, 9)
    for _ in range(2 * HOT):
        compiled(x)
    wait()
    assert len(Compiler.of(compiled).compilations) == 1  # type: ignore[union-attr]


def test_the_report_says_so() -> None:
    compiled, _ = specialized(softmax, dynamic=True)
    x = torch.randn(6, 9)
    for _ in range(HOT + 1):
        compiled(x)
    wait()
    assert f"sizes that came {HOT} times in a row" in str(ingot.explain(compiled)(x))


def test_sizes_that_change_in_between_are_not_compiled_for() -> None:
    compiled, compiler = specialized(softmax, dynamic=True)
    for k in range(4 * HOT):
        compiled(torch.randn(2 + k // (HOT - 1) % 2, 5))
    wait()
    assert len(compiler.compilations) == 1


def test_the_budget() -> None:
    compiled, compiler = specialized(softmax, dynamic=True)
    for rows in range(2, 2 + MAX_HOT + 3):
        x = torch.randn(rows, 3)
        for _ in range(HOT + 1):
            torch.testing.assert_close(compiled(x), softmax(x))
        wait()
    assert len(compiler.compilations) == 1 + MAX_HOT == len(compiler.dispatcher.entries())


@pytest.mark.usefixtures("nothing_is_kept")
def test_gradients_and_their_program() -> None:
    """The backward's program is there when the entry is."""
    weight = torch.randn(5, 4, requires_grad=True)

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(x @ weight), x.sum() * weight

    compiled, compiler = specialized(f, dynamic=True)
    x = torch.randn(7, 5)
    for _ in range(HOT + 1):
        (found,) = torch.autograd.grad(compiled(x)[0].sum(), weight)
    wait()
    _, special = compiler.compilations
    (made,) = special.partial_backwards
    assert made.log.program is not None
    (found,), (expected,) = (torch.autograd.grad(g(x)[0].sum(), weight) for g in (compiled, f))
    torch.testing.assert_close(found, expected)
    assert hits(compiler) == [1, HOT] and len(special.partial_backwards) == 1


def test_errors_reach_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, compiler = specialized(softmax, dynamic=True)
    x = torch.randn(6, 9)
    compiled(x)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("no such luck")

    monkeypatch.setattr(compiler, "add_entry", fail)
    for _ in range(3 * HOT):
        torch.testing.assert_close(compiled(x), softmax(x))
    wait()
    (general,) = compiler.compilations
    assert "not compiled for: no such luck" in general.log.decisions[-1]


def test_sizes_that_are_marked_as_dynamic() -> None:
    compiled, compiler = specialized(softmax)
    x = torch.randn(6, 9)
    ingot.mark_dynamic(x, 0)
    for _ in range(HOT):
        torch.testing.assert_close(compiled(x), softmax(x))
        wait()
    torch.testing.assert_close(compiled(x), softmax(x))
    torch.testing.assert_close(compiled(x[:3]), softmax(x[:3]))
    assert sum(hits(compiler)) == HOT + 1 and len(compiler.compilations) <= 2


def test_behind_a_graph_break() -> None:
    @ingot.disable
    def watch(x: Tensor) -> None:
        pass

    def f(x: Tensor) -> Tensor:
        y = x.sin()
        watch(y)
        return y.cos() * x.shape[0]

    compiled, compiler = specialized(f, dynamic=True)
    x = torch.randn(3, 2)
    for _ in range(2 * HOT):
        torch.testing.assert_close(compiled(x), f(x))
    wait()
    made = [c for c in compiler.compilations if c.recompiled]
    assert [c.is_continuation for c in made].count(True) == 1 and len(made) == 2


def test_many_threads_and_a_reset() -> None:
    compiled, compiler = specialized(softmax, dynamic=True)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for k in range(3 * HOT):
                x = torch.randn(2 + number % 2, 5)
                torch.testing.assert_close(compiled(x), softmax(x))
                if number == 3 and k == HOT:
                    compiler.reset()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wait()
    assert not errors


def test_modes_are_the_callers() -> None:
    compiled, compiler = specialized(lambda x, y: x @ y, dynamic=True)
    x, y = torch.randn(6, 5), torch.randn(5, 7)
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(HOT + 1):
            compiled(x, y)
        wait()
        assert compiled(x, y).dtype == torch.bfloat16
    assert hits(compiler) == [1, HOT] and compiled(x, y).dtype == torch.float32
