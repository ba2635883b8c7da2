"""The user's functions that are called while a broken instruction runs for real.

The frame hook hands them over, and each is captured as a function of its own.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FunctionType
from typing import Any

import torch

from ingot.capture.chain import Chain, Continuations, Point
from ingot.capture.marks import DISABLED_CODE, WRAPPERS, why_disabled
from ingot.capture.steps import is_step
from ingot.capture.values.objects import instance_dict
from ingot.native import _native, call_eager, runs_eager
from ingot.origins import is_trusted

# flags of generators and coroutines, which are captured where they are called, or not at all
_GENERATORS = 0x2A0

_thread = threading.local()
"""`continuations`: who compiles the calls of this thread; None or not there: nobody."""


@contextmanager
def captured_by(continuations: Continuations | None) -> Iterator[None]:
    """Within it, the thread's calls of the user's functions are compiled by `continuations`; None:
    by nobody."""
    before = getattr(_thread, "continuations", None)
    _thread.continuations = continuations
    try:
        yield
    finally:
        _thread.continuations = before


def run_step(
    step: Callable[..., Any], operands: tuple[Any, ...], continuations: Continuations
) -> Any:
    """What a step gives, the functions that it calls being captured."""
    with captured_by(continuations):
        return _native.call_hooked(step, operands)


def _call(function: FunctionType, *parameters: Any) -> Any:
    """What a call of the user's gives, or NULL for a frame that is to run as it is."""
    continuations = getattr(_thread, "continuations", None)
    if continuations is None or runs_eager():
        return _native.NULL
    worthwhile = _may_have_tensors(function, parameters)
    if not worthwhile and not vars(function):  # which has the marks
        return _native.NULL
    # the compiler, and what it made, run as they are; a break in there begins anew
    with captured_by(None):
        # Reading __code__ can call an audit hook, so it has its place here as well.
        if why_disabled(function):
            return _call_disabled(function, *parameters)
        if not worthwhile:
            return _native.NULL
        chain = Chain(
            (Point(function.__code__, 0, tuple(range(len(parameters))), ()),), False, False
        )
        return continuations(chain)(function, *parameters)


_FEW = 16
_TENSORS = (torch.Tensor, torch.nn.Module)


def _may_have_tensors(function: FunctionType, parameters: tuple[Any, ...]) -> bool:
    """Whether tensors or modules are near at hand: to capture what has none, an import for example,
    is a waste."""
    return any(
        # isinstance asks for __class__, which may be code of the user's
        issubclass(type(item), _TENSORS)
        for value in itertools.chain(parameters, _variables(function))
        for item in itertools.chain((value,), itertools.islice(_contents(value), _FEW))
    )


def _variables(function: FunctionType) -> Iterator[Any]:
    """What the closure of a function holds."""
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # empty
            yield cell.cell_contents


def _contents(value: Any) -> Iterable[Any]:
    """What a container or an instance holds, read without code of the user's."""
    kind = type(value)
    if issubclass(kind, list):
        return list.__iter__(value)
    if issubclass(kind, tuple):
        return tuple.__iter__(value)
    # to read its `__dict__` makes one, and one with it is not flattened by another
    if issubclass(kind, partial):
        return (*partial.args.__get__(value), *partial.keywords.__get__(value).values())  # type: ignore[attr-defined]
    if issubclass(kind, dict):
        mapping = value
    else:
        mapping = instance_dict(value)
    return dict.values(mapping) if isinstance(mapping, dict) else ()  # that of a class is no dict


def _call_disabled(function: FunctionType, *parameters: Any) -> Any:
    """What a call of a function that stays in eager gives: what it calls does so, too."""
    if runs_eager():
        return _native.NULL
    code = function.__code__
    split, named = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    kwargs = dict(zip(code.co_varnames[split:named], parameters[split:named]))
    starred = list(parameters[named:])
    args = (*parameters[:split], *(starred.pop(0) if code.co_flags & 4 else ()))
    return call_eager(function, *args, **kwargs, **(starred.pop() if starred else {}))


def _call_if_disabled(function: FunctionType, *parameters: Any) -> Any:
    """What a call of a function of torch's own gives that may stay in eager, or NULL."""
    if why_disabled(function):
        return _call_disabled(function, *parameters)
    return _native.NULL


def _on_frame(function: FunctionType) -> Callable[..., Any] | None:
    """Decides about a code object that was not met before. Marks are of one function, and others
    may share its code: they are looked for at each call."""
    code, module = function.__code__, function.__globals__.get("__name__", "")
    if (
        code.co_flags & _GENERATORS
        or code.co_filename.startswith("<")
        or is_step(code)
        or code is DISABLED_CODE
    ):
        return None
    # tensor work, as in the user's modules
    if module.startswith("torch.nn.modules.") and code.co_name == "forward":
        return _call
    if not is_trusted(module) and module.partition(".")[0] != "ingot":
        return _call
    if module == WRAPPERS or why_disabled(function):
        return _call_if_disabled
    return None


_native.set_frame_handler(_on_frame)
