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

from ingot.capture.meanings import stated
from ingot.errors import unsupported
from ingot.native import call_eager
from ingot.reasons import HOOKED, SKIP
from ingot.torch_private import TORCH_DISABLED_CODE, substitutes_of_torch

_REASON = "__ingot_disabled__"

DISABLED_BY_TORCH = "_torchdynamo_disable"

_DECORATORS = "torch._dynamo.decorators"
_CONTEXTS = (
    "error_on_graph_break", "ErrorOnGraphBreakDecoratorContextManager",
    "override_cudagraphs", "CudagraphOverrideContextManager",
)  # fmt: skip
"""How functions of that module begin that make a context manager of Python."""

_SETTINGS = "DynamoConfigPatchProxy."
"""How methods of that module begin that change settings of how torch.compile captures."""

_SHARDS = "torch.distributed.fsdp."
"""How the names of modules begin whose functions exchange the parameters of others."""

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
    if shards(function):
        return "library-function", f"{name}() of FSDP, which communicates"
    if breaks_graphs(function):
        return "asked-break", "a graph break is asked for by torch._dynamo.graph_break()"
    if _is_compiled_by_torch(function):
        return "compiled-by-torch", f"{name}() is compiled by torch.compile"
    if _is_about_compilation(function):
        path = f"{function.__globals__['__name__']}.{function.__qualname__}"
        return "compilation-call", f"{path}() is called"
    return None


def shards(function: FunctionType) -> bool:
    """Whether it is a function of FSDP, which swaps parameters and communicates.

    Not so `forward` of its wrapper, which calls what it wraps between two of them."""
    return _is_of_fsdp(function) and function.__code__.co_name != "forward"


def _is_of_fsdp(function: FunctionType) -> bool:
    module: str = function.__globals__.get("__name__", "")
    return module.startswith(_SHARDS)


def is_sharded_class(cls: type) -> bool:
    """Whether hooks of modules of a class, or its own forward, gather and free their parameters: it
    is FSDP's."""
    return any(f"{base.__module__}.".startswith(_SHARDS) for base in cls.__mro__)


def breaks_graphs(function: FunctionType) -> bool:
    """Whether it is `torch._dynamo.graph_break`."""
    return function.__name__ == "graph_break" and function.__module__ == _DECORATORS


def _is_about_compilation(function: FunctionType) -> bool:
    """Whether it is of Ingot's or torch.compile's interface, which acts on the program and not on
    its tensors."""
    module = function.__globals__.get("__name__", "")
    if module in ("torch.compiler", _DECORATORS):
        return not (function.__name__.startswith("is_") or _is_captured(function))
    return function is torch.compile or (
        module.startswith("ingot.") and not module.startswith(("ingot.capture.", "ingot.compiler"))
    )


def _is_captured(function: FunctionType) -> bool:
    """Whether a function of torch.compile's interface is captured all the same.

    Those are methods of a context manager, functions around one of the user's, and those with a
    meaning of their own."""
    is_of_context = function.__qualname__.startswith((*_CONTEXTS, _SETTINGS))
    return is_of_context or is_allowed(function) or stated(function) is not None


def sets_for_torch(function: FunctionType) -> bool:
    """Whether it sets what is of torch.compile's capture alone."""
    is_method = function.__qualname__.startswith(_SETTINGS)
    return is_method and function.__module__ == _DECORATORS


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


def disabled_by_itself(function: FunctionType) -> Any:
    """What `torch.compiler.disable(recursive=False)` was given, of a function that it has made;
    None for others. What it calls may be captured."""
    marks = vars(function)
    if marks.get("_torchdynamo_disable_recursive", True) or not _disabled_by_torch(marks, function):
        return None
    return marks.get("_torchdynamo_orig_callable")


def refuse_disabled(function: FunctionType) -> None:
    """Raises Unsupported for a function that stays in eager."""
    why = why_disabled(function)
    if why is None and _is_of_fsdp(function):
        sentence = "forward() of FSDP's wrapper runs in eager but for what it wraps"
        raise unsupported("module-hook", sentence, action=HOOKED)
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


def behind_region(function: FunctionType) -> FunctionType | None:
    """The function inside of one that `torch.compiler.nested_compile_region` has made."""
    if function.__module__ != "torch._higher_order_ops.invoke_subgraph":
        return None
    inner = vars(function).get("__marked_compile_region_fn__")
    if isinstance(inner, FunctionType):
        return inner
    return None


def substitute_of(function: Any) -> FunctionType | None:
    """What is to be captured in place of a function: see `torch.compiler.substitute_in_graph`."""
    try:
        handler = substitutes_of_torch().get(function)
    except TypeError:  # it has no hash
        return None
    substitute = getattr(handler, "__torch_dynamo_polyfill__", None)
    if isinstance(substitute, FunctionType) and not substitute.__module__.startswith("torch."):
        return substitute
    return None


_allowed: weakref.WeakSet[Any] = weakref.WeakSet()


def allow(function: Any) -> None:
    """Calls of `function` become one node from now on."""
    _allowed.add(function)


def is_allowed(function: Any) -> bool:
    """Whether a call of it is to be one node."""
    if function in _allowed:
        return True
    return _is_known_to_torch("_allowed_callable_ids", function)


def is_traced_through(function: FunctionType) -> bool:
    """Whether it is allowed in the graph, but what it does is part of that: see
    `torch._dynamo.nonstrict_trace`."""
    return _is_known_to_torch("_nonstrict_trace_callable_ids", function)


def _is_known_to_torch(table: str, function: Any) -> bool:
    rules = sys.modules.get("torch._dynamo.trace_rules")
    return rules is not None and id(function) in getattr(rules, table, ())
