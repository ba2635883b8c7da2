"""What capture leaves to eager: the reason, the user's line, and the guards that led there."""

from __future__ import annotations

import io
import warnings

import pytest
import torch

from ingot.capture import Request, argument_slots, capture_call
from ingot.errors import Unsupported
from ingot.options import Options
from tests.capture.program_parts import failing_assert

BUFFER = io.StringIO()
OUTSIDE: list = []
STATE = {"calls": 0}


class Holder:
    value = 1


HOLDER = Holder()
counter = 0


def data_branch(x):
    return x if x.sum() > 0 else -x


def item(x):
    return x if x.sum().item() > 0 else -x


def int_of_tensor(x):
    return int(x[0])


def prints(x):
    print("hello", file=BUFFER)
    return x


def warns(x):
    warnings.warn("careful", stacklevel=2)
    return x


def endless(x):
    while True:
        pass


def wrong_shapes(x):
    return x.view(2, 2)


def raises(x):
    raise ValueError("bad")


def defines_class(x):
    class Local:
        pass

    return x, Local


def makes_module(x):
    return torch.nn.Linear(3, 4)(x)


def identity_number(x):
    return id(x) % 7


def deep(x):
    def again(n):
        return again(n + 1)

    return again(0)


def wants_gradient(x):
    return x.relu() * WEIGHT


def uses_randomness_seed(x):
    torch.manual_seed(3)
    return x


WEIGHT = torch.nn.Parameter(torch.ones(3))

CASES = {
    data_branch: "a branch on the values of a tensor",
    item: "a branch on the number in a tensor",
    int_of_tensor: "int() of the number in a tensor",
    prints: "side effect: print to a file",
    warns: "side effect: warnings.warn",
    endless: "more than 2,000,000 instructions",
    wrong_shapes: "is invalid for input of size 3",
    failing_assert: "the program raises AssertionError: not 99",
    raises: "the program raises ValueError: bad",
    defines_class: "a class is defined",
    makes_module: "is made",
    identity_number: "arithmetic on the id() of tensor x",
    deep: "nested too deeply",
    uses_randomness_seed: "random state",
}


@pytest.mark.parametrize("fn", CASES, ids=lambda fn: fn.__name__)
def test_reason_and_place(fn):
    x = torch.randn(3)
    with pytest.raises(Unsupported, match=r"(?s).*") as caught:
        capture_call(fn, (x,), {}, Request(Options()))
    reason = caught.value
    assert CASES[fn] in reason.reason
    first = fn.__code__.co_firstlineno
    file, _, line = reason.where.rpartition(":")
    assert file == fn.__code__.co_filename and first <= int(line) <= first + 8
    assert reason.evidence.guards.check_python(argument_slots(fn, (x,), {})) is None
    assert not OUTSIDE and STATE == {"calls": 0} and HOLDER.value == 1
    assert torch.is_grad_enabled()


def test_guards_of_a_refusal_tell_calls_apart():
    def fn(x, verbose):
        if verbose:
            print("on", file=BUFFER)
        return x + 1

    with pytest.raises(Unsupported) as caught:
        capture_call(fn, (torch.ones(2), True), {}, Request(Options()))
    guards = caught.value.evidence.guards
    assert guards.check_python((torch.ones(2), True)) is None
    assert guards.check_python((torch.ones(2), False)) is not None
    assert guards.check_python((torch.ones(5), True)) is None  # x was never used


def test_gradient_mode_is_restored_after_a_refusal():
    def fn(x):
        with torch.no_grad():
            print(x, file=BUFFER)

    with pytest.raises(Unsupported):
        capture_call(fn, (torch.ones(2),), {}, Request(Options()))
    assert torch.is_grad_enabled()
