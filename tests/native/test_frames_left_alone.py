"""Code whose frames run as they are, with all that they call."""

from __future__ import annotations

import contextlib

import pytest

from ingot.native import _native

NULL = _native.NULL


def add(a, b=1):
    return a + b


def raise_error():
    raise ValueError(add(1))


@contextlib.contextmanager
def active(handler):
    """This thread is active, and the handler is asked."""
    before = _native.set_frame_handler(handler)
    _native.hook_enter()
    try:
        yield
    finally:
        _native.hook_leave()
        _native.set_frame_handler(before)
        _native.clear_code_entries()


def test_callees_can_run_as_they_are_too():
    def outer(fails=False):
        found = add(1), _native.hook_active()
        return raise_error() if fails else found

    _native.set_code_entry(add.__code__, lambda *_: "replaced")
    with active(lambda function: ... if function is outer else NULL):
        for _ in range(2):  # when it is decided, and when that is known
            assert outer() == (2, True)
            assert add(1) == "replaced"
            with pytest.raises(ValueError, match="2"):
                outer(fails=True)
            assert add(1) == "replaced"
        assert _native.code_entry(outer.__code__) is ...
        assert _native.call_plain(outer) == ("replaced", True)  # its own frame alone
    assert add(1) == 2
