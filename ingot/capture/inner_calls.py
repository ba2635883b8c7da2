"""The user's functions that are called while a broken instruction runs for real.

The frame hook hands them over, and each is captured as a function of its own. It is asked natively
whether tensors are near at hand: to capture what has none, an import for example, is a waste.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

import torch

from ingot.capture.chain import Chain, Continuations, Point
from ingot.capture.marks import (
    DISABLED_BY_TORCH,
    DISABLED_CODE,
    WRAPPERS,
    disabled_by_itself,
    shards,
    why_disabled,
)
from ingot.capture.steps import is_step
from ingot.native import _native, call_eager, runs_eager
from ingot.origins import is_trusted

# flags of generators and coroutines, which are captured where they are called, or not at all
_GENERATORS = 0x2A0


@contextmanager
def unwatched() -> Iterator[None]:
    """Within it, the frame hook looks at no frame of this thread."""
    _native.hook_pause()
    try:
        yield
    finally:
        _native.hook_unpause()


_MODULES = "torch.nn.modules.", "torch.distributed.algorithms._checkpoint."
"""How names of torch's modules begin that have classes of nn.Modules, which call tensor work of the
user's."""


class InnerCalls(dict[int, Any]):
    """What captures the functions that one broken instruction calls, by the identity of their
    code, which it keeps alive."""

    def __init__(self, continuations: Continuations) -> None:
        super().__init__()
        self.continuations = continuations

    def run(self, step: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
        """What the instruction gives, as carried out by its step."""
        return _native.call_hooked(step, operands, self)

    def compiled(self, code: CodeType, parameters: int) -> Any:
        """A compiled callable of a function of this code and its parameters."""
        point = Point(code, 0, tuple(range(parameters)), ())
        self[id(code)] = compiled = self.continuations(Chain((point,), False, False))
        return compiled


def _call(calls: InnerCalls | None, function: FunctionType, *parameters: Any) -> Any:
    """What a call of the user's gives, or NULL for a frame that is to run as it is. Without
    `calls`, which capture it, only its marks count."""
    # Reading __code__ can call an audit hook, which is not captured either.
    if why_disabled(function):
        return _call_disabled(function, *parameters)
    if calls is None:
        return _native.NULL
    return calls.compiled(function.__code__, len(parameters))(function, *parameters)


def _call_disabled(function: FunctionType, *parameters: Any) -> Any:
    """What a call of a function that stays in eager gives: what it calls does so, too, unless it
    is disabled by itself."""
    if runs_eager():
        return _native.NULL
    inside = disabled_by_itself(function)
    if inside is not None:
        _leave_frames(inside)
        return _native.NULL
    code = function.__code__
    split, named = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    kwargs = dict(zip(code.co_varnames[split:named], parameters[split:named]))
    starred = list(parameters[named:])
    args = (*parameters[:split], *(starred.pop(0) if code.co_flags & 4 else ()))
    return call_eager(function, *args, **kwargs, **(starred.pop() if starred else {}))


def _leave_frames(function: Any) -> None:
    """Has the frames of a function run as they are from now on, and not those of what it calls."""
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if isinstance(code, CodeType):
        _native.set_code_entry(code, None)


def _call_if_disabled(function: FunctionType, *parameters: Any) -> Any:
    """What a call of a function of torch's own gives that may stay in eager, or NULL."""
    if why_disabled(function):
        return _call_disabled(function, *parameters)
    return _native.NULL


_MOVES = """
    BUILD_LIST BUILD_TUPLE CACHE COPY COPY_FREE_VARS EXTENDED_ARG IS_OP JUMP_FORWARD LOAD_ATTR
    LOAD_CLOSURE LOAD_COMMON_CONSTANT LOAD_CONST LOAD_DEREF LOAD_FAST LOAD_FAST_BORROW
    LOAD_FAST_BORROW_LOAD_FAST_BORROW LOAD_FAST_CHECK LOAD_FAST_LOAD_FAST LOAD_GLOBAL LOAD_SMALL_INT
    MAKE_CELL NOP NOT_TAKEN POP_JUMP_FORWARD_IF_NONE POP_JUMP_FORWARD_IF_NOT_NONE POP_JUMP_IF_NONE
    POP_JUMP_IF_NOT_NONE POP_TOP RESUME RETURN_CONST RETURN_VALUE STORE_ATTR STORE_DEREF STORE_FAST
    STORE_FAST_LOAD_FAST STORE_FAST_STORE_FAST SWAP
"""
"""Instructions that only put objects elsewhere; those of all versions of Python."""

_MOVE_CODES = set(map(dis.opmap.get, _MOVES.split()))
_FACTS = {"device", "dtype", "is_leaf", "layout", "ndim", "requires_grad", "shape"}


def _only_moves(code: CodeType) -> bool:
    """Whether a function has nothing for a graph, whatever its arguments are.

    It calls nothing and reads one attribute at most: a property is a frame of its own, but two of
    them might be one graph. Some attributes of tensors are computed."""
    codes = code.co_code[::2]
    if codes.count(dis.opmap["LOAD_ATTR"]) > 1 or not _MOVE_CODES.issuperset(codes):
        return False
    for name in code.co_names:
        if name not in _FACTS and hasattr(torch.Tensor, name):
            return False
    return True


def _on_frame(function: FunctionType) -> Any:
    """Decides about a code object that was not met before. Marks are of one function, and others
    may share its code: they are looked for at each call."""
    code, module = function.__code__, function.__globals__.get("__name__", "")
    if (
        code.co_flags & _GENERATORS
        or code.co_filename.startswith("<")
        or is_step(code)
        or code is DISABLED_CODE
        or module.partition(".")[0] in ("ingot", "triton")
    ):
        return None
    if shards(function):
        return ...  # it calls nothing that is to be captured
    # tensor work, as in the user's modules
    if module.startswith(_MODULES) and code.co_name == "forward":
        return _call
    if not is_trusted(module):
        if _only_moves(code):
            _native.set_code_entry(code, _call, True)
            return _native.NULL  # which leaves that as it is
        return _call
    if module == WRAPPERS or why_disabled(function):
        return _call_if_disabled
    return None


def set_entry() -> None:
    """Has `_call` decide where tensors or modules are near at hand."""
    _native.set_tensor_entry(_call, (torch.Tensor, torch.nn.Module), DISABLED_BY_TORCH)


set_entry()
_native.set_frame_handler(_on_frame)
