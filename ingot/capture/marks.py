"""What users have said of a function that capture heeds: that it stays in eager (`disable`), or
goes into the graph as one node (`allow_in_graph`).

In: a function. Out: the answer, or the reason. The marks of torch.compile's equivalents count as
well, and are read without importing it.
"""

from __future__ import annotations

import functools
import inspect
import sys
import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from ingot.errors import unsupported
from ingot.native import call_eager
from ingot.reasons import SKIP
from ingot.torch_private import TORCH_DISABLED_CODE

_REASON = "__ingot_disabled__"

DISABLED_BY_TORCH = "_torchdynamo_disable"

WRAPPERS = "torch._dynamo.eval_frame"
"""The module of the functions that torch.compile puts around others: all have the same code."""


def disabled(fn: Callable[..., Any], reason: str = "") -> FunctionType:
    """A function that does what `fn` does, in eager with all that it calls; `reason` goes into
    reports."""

    @functools.wraps(fn)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        return call_eager(fn, *args, **kwargs)

    setattr(disabled, _REASON, reason)
    assert isinstance(disabled, FunctionType)
    return disabled


DISABLED_CODE = disabled(len).__code__
"""The code of every function that `disabled` makes. Attributes would not tell it: functools.wraps
copies them."""


def why_disabled(function: FunctionType) -> tuple[str, str] | None:
    """The id and the sentence of why a function runs in eager; None for one that may be
    captured."""
    # The frame hook asks this of every function that a broken instruction calls, so nothing but
    # functions of this package is called here: the hook lets them pass.
    marks, name = vars(function), function.__name__
    if function.__code__ is DISABLED_CODE:
        return _disabled(f"{name}() is disabled by ingot.disable", marks.get(_REASON))
    if _disabled_by_torch(marks, function):
        why = marks.get("_torchdynamo_disable_msg")
        return _disabled(f"{name}() is disabled by torch.compiler.disable", why)
    if breaks_graphs(function):
        return "asked-break", "a graph break is asked for by torch._dynamo.graph_break()"
    if _is_compiled_by_torch(function):
        return "compiled-by-torch", f"{name}() is compiled by torch.compile"
    if _is_about_compilation(function):
        path = f"{function.__globals__['__name__']}.{function.__qualname__}"
        return "compilation-call", f"{path}() is called"
    return None


def breaks_graphs(function: FunctionType) -> bool:
    """Whether it is `torch._dynamo.graph_break`."""
    return function.__name__ == "graph_break" and function.__module__ == "torch._dynamo.decorators"


def _is_about_compilation(function: FunctionType) -> bool:
    """Whether it is of Ingot's or torch.compile's interface, which acts on the program and not on
    its tensors."""
    module = function.__globals__.get("__name__", "")
    if module in ("torch.compiler", "torch._dynamo.decorators"):
        return not function.__name__.startswith("is_")
    return function is torch.compile or (
        module.startswith("ingot.") and not module.startswith(("ingot.capture.", "ingot.compiler"))
    )


def _is_compiled_by_torch(function: FunctionType) -> bool:
    """Whether it is what torch.compile returns, which runs with torch's own frame hook in place."""
    if function.__globals__.get("__name__") != WRAPPERS:
        return False
    marks = vars(function)
    return "_torchdynamo_orig_callable" in marks and not marks.get(DISABLED_BY_TORCH)


def _disabled_by_torch(marks: dict[str, Any], function: FunctionType) -> bool:
    """Not so torch's own optimizers, which torch.compile disables for itself when it first runs."""
    # another's, where functools.wraps copied the marks
    owner = marks.get("_torchdynamo_wrapper_id", id(function))
    is_marked = bool(marks.get(DISABLED_BY_TORCH)) and owner == id(function)
    return is_marked and not (function.__module__ or "").startswith("torch.optim.")


def refuse_disabled(function: FunctionType) -> None:
    """Raises Unsupported for a function that stays in eager."""
    why = why_disabled(function)
    if why is not None:
        code = getattr(inspect.unwrap(function), "__code__", function.__code__)
        place = f"{code.co_filename}:{code.co_firstlineno}"
        raise unsupported(*why, place, action=SKIP)


def _disabled(sentence: str, reason: str | None) -> tuple[str, str]:
    return "disabled", f"{sentence}: {reason}" if reason else sentence


def is_constant(function: FunctionType) -> bool:
    """Whether its result is to be taken as a constant: see
    `torch.compiler.assume_constant_result`."""
    return bool(vars(function).get("_dynamo_marked_constant"))


def behind_lazy_disable(function: FunctionType) -> FunctionType | None:
    """The function inside one of torch's own that keeps itself out of torch.compile, which its call
    would import."""
    if function.__code__ is not TORCH_DISABLED_CODE:
        return None
    inner = getattr(function, "__wrapped__", None)
    if isinstance(inner, FunctionType):
        return inner
    return None


def behind_tagging(function: FunctionType) -> FunctionType | None:
    """The function that torch.compile, once it has run, wraps to be told of every new module."""
    if function.__module__ != "torch._dynamo.mutation_guard":
        return None
    for cell in function.__closure__ or ():
        if isinstance(cell.cell_contents, FunctionType):
            return cell.cell_contents
    return None


_allowed: weakref.WeakSet[Any] = weakref.WeakSet()


def allow(function: Any) -> None:
    """Calls of `function` become one node from now on."""
    _allowed.add(function)


def is_allowed(function: Any) -> bool:
    """Whether a call of it is to be one node."""
    if function in _allowed:
        return True
    rules = sys.modules.get("torch._dynamo.trace_rules")
    return rules is not None and id(function) in getattr(rules, "_allowed_callable_ids", ())
