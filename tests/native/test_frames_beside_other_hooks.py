"""Ingot's frame hook with another evaluation function before it, after it, and taken away in either
order."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("llvmlite")

from ingot.native import _native  # noqa: E402

from .other_hook import DEFAULT, OtherHook, current, reset  # noqa: E402


def function(x):
    return x


def replace_function():
    _native.set_code_entry(function.__code__, lambda function, x: ("entry", x))


@pytest.fixture(autouse=True)
def entry():
    reset()  # torch.compile leaves its own one, in a process where a test has called it
    before = _native.set_frame_handler(None)
    replace_function()
    yield
    while _native.hook_active():  # where the test failed
        _native.hook_leave()
    _native.clear_code_entries()
    _native.set_frame_handler(before)
    function(1)  # ours takes itself away when a frame comes to it and no thread is active
    left = current()
    reset()
    assert left == DEFAULT


@functools.cache
def other_hook():
    return OtherHook()


@pytest.fixture
def other():
    return other_hook()


def twice(x):
    return x * 2, function(x)


def sees(other):
    """Does the other one see the frame of a call?"""
    before = other.seen.value
    (lambda: None)()
    return other.seen.value > before


def test_alone():
    _native.hook_enter()
    assert current() != DEFAULT and function(1) == ("entry", 1)
    _native.hook_leave()
    assert current() == DEFAULT and function(1) == 1


def test_within_another(other):
    other.install()
    assert function(1) == 1 and sees(other)
    _native.hook_enter()
    assert current() != other.address
    assert function(1) == ("entry", 1) and sees(other)
    _native.hook_leave()
    assert current() == other.address and function(1) == 1 and sees(other)
    other.remove()


def test_another_within(other):
    _native.hook_enter()
    ours = current()
    other.install()
    assert function(1) == ("entry", 1) and sees(other)
    other.remove()
    assert current() == ours and function(1) == ("entry", 1)
    _native.hook_leave()


def test_another_that_stays_longer(other):
    _native.hook_enter()
    other.install()
    _native.hook_leave()
    assert current() == other.address and function(1) == 1 and sees(other)
    _native.hook_enter()
    assert current() == other.address and function(1) == ("entry", 1) and sees(other)
    _native.hook_leave()
    other.remove()  # puts ours in place, which is not wanted any more


def test_another_that_clobbers_ours(other):
    other.install()
    _native.hook_enter()
    other.remove()
    assert current() == DEFAULT and function(1) == 1
    _native.hook_enter()
    _native.hook_leave()
    _native.hook_leave()
    assert current() == DEFAULT
    _native.hook_enter()
    assert function(1) == ("entry", 1)
    _native.hook_leave()


def test_entering_again_puts_ours_back(other):
    other.install()
    _native.hook_enter()
    for clobbered in (other.remove, other.install):
        clobbered()
        _native.hook_enter()
        assert function(1) == ("entry", 1)
        _native.hook_leave()
        assert function(1) == ("entry", 1)
    _native.hook_leave()
    other.remove()
    function(1)
    other.below.value = DEFAULT
    other.remove()


def test_each_below_the_other(other):
    other.install()
    _native.hook_enter()
    other.install()  # it now believes that ours was there first
    assert function(1) == ("entry", 1) and sees(other)
    assert [function(i) for i in range(3)] == [("entry", i) for i in range(3)]
    other.remove()
    _native.hook_leave()
    other.below.value = DEFAULT
    other.remove()


def test_resuming_takes_no_part(other):
    _native.hook_enter()
    other.install()
    in_place = current()
    assert _native.resume(function, 2, (5,), ()) == 5 and current() == in_place
    other.remove()
    in_place = current()
    assert _native.resume(function, 2, (5,), ()) == 5 and current() == in_place != DEFAULT
    _native.hook_leave()


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
@pytest.mark.parametrize("ours_first", [True, False])
def test_beside_torch_compile(ours_first):
    torch = pytest.importorskip("torch")
    dynamo = pytest.importorskip("torch._dynamo")
    dynamo.reset()
    replace_function()  # the reset is Ingot's too, where it has compiled
    graphs = []

    @dynamo.disable
    # torch.compile puts back what it found when it came: CPython's own, if it came first
    def inner(x):
        _native.hook_enter()
        seen = function("inner"), twice(x)
        _native.hook_leave()
        return seen

    def backend(module, inputs):
        graphs.append(module)
        return module.forward

    @torch.compile(backend=backend)
    def outer(x):
        y = x + 1
        _native.hook_enter()
        seen = inner(y)
        _native.hook_leave()
        return y + 1, seen, function("outer")

    x = torch.ones(3)
    if ours_first:
        _native.hook_enter()
    for _ in range(3):
        y, (replaced, (doubled, again)), last = outer(x)
        assert torch.equal(y, x + 2) and torch.equal(doubled, 2 * (x + 1)) and "outer" in last
        assert (
            replaced == ("entry", "inner") and again[0] == "entry" and torch.equal(again[1], x + 1)
        )
    if ours_first:
        assert function("here") == ("entry", "here")
        _native.hook_leave()
    assert graphs and function("here") == "here"
    dynamo.reset()
