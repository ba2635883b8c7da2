"""The interface: `compile`, `explain`, and what controls them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

import torch

from ingot.backends import find_backend
from ingot.compiler import Compiler
from ingot.explain.report import Report
from ingot.modules import compiled_module
from ingot.options import Options


def compile(  # noqa: A001 - the field's name for it
    fn: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "ingot",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> Any:
    """A callable that does what `fn` does, faster: compiled at its first call, and again when a fact it relied on
    has changed.

    `fn` is a function, a method, any callable object with a Python `__call__`, or a `torch.nn.Module`; without it, a
    decorator is returned. A compiled module is still itself (isinstance, attributes, state_dict, pickle) and shares
    all state with `fn`.

    fullgraph: raise `GraphBreakError` where a call could not be compiled, instead of running it in eager.
    dynamic: True makes tensor sizes symbols from the first call; None and False compile for the sizes seen.
    backend: "ingot", a name from `list_backends()`, or `backend(gm, example_inputs) -> callable`.
    mode: "default", "reduce-overhead", "max-autotune" or "max-autotune-no-cudagraphs".
    disable: return `fn` as it is.

    Raises TypeError or ValueError for an argument that is none of these. Errors of the program itself are raised as
    in eager.
    """
    if not isinstance(disable, bool):
        raise TypeError(f"ingot.compile: disable must be a bool, not {disable!r}")
    chosen = Options.checked(fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options)
    find_backend(chosen.backend)  # an unknown name is an error now, not at the first call
    if fn is None:
        return functools.partial(_compile, options=chosen, disable=disable)
    return _compile(fn, options=chosen, disable=disable)


def _compile(fn: Any, *, options: Options, disable: bool) -> Any:
    if not callable(fn) or isinstance(fn, type):
        raise TypeError(f"ingot.compile: expected a function or a torch.nn.Module, not {fn!r}")
    if isinstance(fn, staticmethod):
        raise TypeError("ingot.compile: compile the function inside: @staticmethod goes above @ingot.compile")
    if disable:
        return fn
    fn = original(fn)
    compiler = Compiler(fn, options)
    return compiled_module(fn, compiler) if isinstance(fn, torch.nn.Module) else compiler.dispatcher


def original(fn: Any) -> Any:
    """What `fn` was compiled from, so that compiling it again is compiling it with other options; else `fn` itself."""
    compiler = Compiler.of(fn)
    if compiler is None:
        return fn
    return MethodType(compiler.dispatcher.fn, fn.__self__) if isinstance(fn, MethodType) else compiler.fn


def explain(fn: Any) -> Callable[..., Report]:
    """`explain(fn)(*args, **kwargs)` compiles `fn` for these arguments, without running it, and returns the `Report` of
    all that has been compiled for it.

    `fn` may be compiled already (its own options and entries are then reported) or not. Raises what `fn` compiled with
    `fullgraph=True` would, and TypeError for arguments that `fn` does not take.
    """
    compiled = fn if Compiler.of(fn) is not None else compile(fn)
    compiler = Compiler.of(compiled)
    assert compiler is not None
    bound = (compiled.__self__,) if isinstance(compiled, MethodType) else ()

    def explained(*args: Any, **kwargs: Any) -> Report:
        compiler.prepare((*bound, *args), kwargs)
        return Report.from_compilations(compiler.compilations)

    return explained


def reset() -> None:
    """Forget everything compiled so far: each compiled callable starts over at its next call."""
    for compiler in list(Compiler.alive):
        compiler.reset()
