"""Functions that torch.compile compiles, in and around functions that Ingot compiles."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import ingot
from ingot.backends import torch_backend
from tests.interruptions import differences, state

PACKAGE = str(Path(ingot.__file__).parent)


@pytest.fixture(autouse=True)
def forgets():
    yield
    torch._dynamo.reset()


def f(x):
    return (x.sin() * 2).sum()


def with_a_break(x):
    y = x.sin()
    torch._dynamo.graph_break()
    return (y.cos() * len(repr(float(y.detach().sum())))).sum()


inner = ingot.compile(lambda x: x.cos())


def torch_compiled(function):
    return torch.compile(function, backend="eager")


def with_backward_inside(x):
    y = x.detach().requires_grad_()
    inner(y).sum().backward()
    return (x * y.grad).sum()


def programs():
    module = torch.nn.Linear(4, 4)
    compiled, compiled_module = torch_compiled(f), torch_compiled(module)
    return {
        "the function": compiled,
        "a module": compiled_module,
        "a call of it": lambda x: compiled(x) + x.sum(),
        "a call of a module": lambda x: compiled_module(x).sin().sum(),
        "a call in a loop": lambda x: sum(compiled(x * i) for i in range(3)),
        "a call in a try": lambda x: caught(compiled, x),
        "a bound method": Holder().call,
        "its function calls Ingot's": torch_compiled(lambda x: inner(x).sum()),
        "made inside": lambda x: torch_compiled(lambda y: inner(y) * 2)(x).sum(),
        "a break in it": torch_compiled(with_a_break),
        "a call of one with a break": lambda x: torch_compiled(with_a_break)(x * 2),
        "a backward of Ingot's in it": torch_compiled(with_backward_inside),
        "gradients": torch.compile(f, backend="aot_eager"),
        "Ingot as its backend": torch.compile(f, backend=torch_backend),
        "an error in it": lambda x: caught(torch_compiled(lambda y: y.reshape(3) + y), x),
    }


class Holder:
    def __init__(self):
        self.compiled = torch_compiled(f)

    def call(self, x):
        return self.compiled(x) * 2


def caught(function, x):
    try:
        return function(x)
    except RuntimeError:
        return x.sum()


@pytest.mark.parametrize("name", list(programs()))
def test_torch_compile_sees_nothing_of_ingots(name):
    """Else it compiles Ingot itself: what that leaves in the thread made every later backward
    fail."""
    import torch._dynamo.eval_frame
    from torch._C._dynamo.eval_frame import get_eval_frame_callback

    seen = set()

    def on_event(frame, event, arg):
        in_ingot = event == "call" and frame.f_code.co_filename.startswith(PACKAGE)
        if in_ingot and get_eval_frame_callback() is not None:
            seen.add(frame.f_code.co_qualname)

    program = programs()[name]
    x, y = (torch.arange(4.0, requires_grad=True) for _ in range(2))
    before = state()
    compiled = ingot.compile(program)
    sys.setprofile(on_event)
    try:
        actual = compiled(x)
        actual.sum().backward()
    finally:
        sys.setprofile(None)
    expected = program(y)
    expected.sum().backward()
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(x.grad, y.grad)
    assert seen == set() and differences(before) == []
