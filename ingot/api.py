"""The interface: `compile`, `explain`, and what controls them."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ingot.compiler import Compiler
from ingot.explain.report import Report
from ingot.modules import compiled_module
from ingot.options import Options

_compilers: weakref.WeakSet[Compiler] = weakref.WeakSet()


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
    chosen = Options.checked(fullgraph=fullgraph, dynamic=dynamic, backend=backend, mode=mode, options=options)
    if fn is None:
        return functools.partial(_compile, options=chosen, disable=disable)
    return _compile(fn, options=chosen, disable=disable)


def _compile(fn: Any, *, options: Options, disable: bool) -> Any:
    if not callable(fn) or isinstance(fn, type):
        raise TypeError(f"ingot.compile: expected a function or a torch.nn.Module, not {fn!r}")
    if disable:
        return fn
    compiler = Compiler(fn, options)
    _compilers.add(compiler)
    return compiled_module(fn, compiler) if isinstance(fn, torch.nn.Module) else compiler.dispatcher


def explain(fn: Any) -> Callable[..., Report]:
    """`explain(fn)(*args, **kwargs)` runs `fn` once, compiled, and returns the `Report` of all that has been
    compiled for it.

    `fn` may be compiled already (its own options and entries are then reported) or not.
    """
    compiler = Compiler.of(fn)
    if compiler is None:
        compiler = Compiler.of(compile(fn))
        assert compiler is not None

    def explained(*args: Any, **kwargs: Any) -> Report:
        compiler.dispatcher(*args, **kwargs)
        return Report.from_compilations(compiler.compilations)

    return explained


def reset() -> None:
    """Forget everything compiled so far: each compiled callable starts over at its next call."""
    for compiler in list(_compilers):
        compiler.reset()
