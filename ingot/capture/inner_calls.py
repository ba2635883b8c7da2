"""Functions of the user's that are called while a broken instruction runs for real: the frame hook hands them over, and
each is captured as a function of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

from ingot.capture.chain import Chain, Continuations, Point
from ingot.capture.marks import disables_callees, why_disabled
from ingot.capture.session import is_trusted
from ingot.capture.steps import is_step
from ingot.native import _native, call_eager, runs_eager

_GENERATORS = 0x2A0  # flags of generators and coroutines, which are captured where they are called, or not at all

_thread = threading.local()
"""`continuations`: who compiles the calls of this thread; None or not there: nobody."""


@contextmanager
def captured_by(continuations: Continuations | None) -> Iterator[None]:
    """Within it, the thread's calls of the user's functions are compiled by `continuations`; None: by nobody."""
    before = getattr(_thread, "continuations", None)
    _thread.continuations = continuations
    try:
        yield
    finally:
        _thread.continuations = before


def run_step(step: Callable[..., Any], operands: tuple[Any, ...], continuations: Continuations) -> Any:
    """What a step gives, the functions that it calls being captured."""
    if not HOOK:
        return step(*operands)
    with captured_by(continuations):
        _native.hook_enter()
        try:
            return step(*operands)
        finally:
            _native.hook_leave()


class _InnerCall:
    """The decision for a code object that calls of it are compiled."""

    def __init__(self, code: CodeType) -> None:
        parameters = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
        self.chain = Chain((Point(code, 0, tuple(range(parameters)), ()),), False, False)

    def __call__(self, function: FunctionType, *parameters: Any) -> Any:
        """What the call gives, or NULL for a frame that is to run as it is."""
        continuations = getattr(_thread, "continuations", None)
        if continuations is None or runs_eager():
            return _native.NULL
        with captured_by(None):  # what is compiled, and the compiler, run as they are; a break inside begins anew
            return continuations(self.chain)(function, *parameters)


class _DisabledCall:
    """The decision for functions that torch.compiler.disable made: they run in eager with all that they call."""

    def __call__(self, function: FunctionType, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return _native.NULL if runs_eager() else call_eager(function, *args, **kwargs)


def _on_frame(function: FunctionType) -> _InnerCall | _DisabledCall | None:
    """Decides for a code object that was not met before."""
    code = function.__code__
    if disables_callees(function):
        return _DisabledCall()
    module = function.__globals__.get("__name__", "")
    if code.co_flags & _GENERATORS or is_step(function) or why_disabled(function):
        return None
    if is_trusted(module) or module.partition(".")[0] == "ingot" or code.co_filename.startswith("<"):
        return None
    return _InnerCall(code)


HOOK = hasattr(_native, "set_frame_handler")
if HOOK:
    _native.set_frame_handler(_on_frame)
