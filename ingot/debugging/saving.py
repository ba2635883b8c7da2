"""`ingot.save_repro`: a compiled program as a script that runs by itself."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MethodType
from typing import Any

from ingot.capture import Captured
from ingot.compiler import Compiler
from ingot.debugging.naming import NotWritable
from ingot.debugging.repro import Repro, repro_of, write
from ingot.errors import ReproError


def save_repro(
    path: str | os.PathLike[str],
    fn: Any = None,
    *,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Path:
    """Write a compiled program as a Python script that compiles it and compares it with eager.

    Without `fn` it is the program that was compiled last, else the newest of this compiled function
    or module. The script has the captured graph as calls of torch, the options and the modes. It
    makes its inputs from their shapes, strides, dtypes and devices, with random numbers. With the
    `args` and `kwargs` of a call, it has the values of that call's inputs instead, in a file of
    `torch.save` beside it; the call is compiled if it has not been, and not run.

    Returns the path. Raises ReproError where nothing was compiled, or the graph cannot be written
    as text: the message says what of it.
    """
    compiler = _compiler(fn)
    captured, inputs = _captured(compiler), None
    if args is not None or kwargs is not None:
        own = (fn.__self__,) if isinstance(fn, MethodType) else ()
        captured, inputs = _served(compiler, (*own, *(args or ())), dict(kwargs or {}))
    if captured is None:
        raise ReproError(f"ingot.save_repro: nothing has been compiled of {compiler.name} yet")
    return write(path, _repro(compiler, captured, inputs))


def _repro(compiler: Compiler, captured: Captured, inputs: Sequence[Any] | None) -> Repro:
    try:
        return repro_of(captured, compiler.options, compiler.name, inputs)
    except NotWritable as reason:
        raise ReproError(f"ingot.save_repro: the graph has no text: {reason}") from None


def _compiler(fn: Any) -> Compiler:
    if fn is not None:
        compiler = Compiler.of(fn)
        if compiler is None:
            raise ReproError("ingot.save_repro: fn is not what ingot.compile gave")
        return compiler
    newest = Compiler.newest
    compiler = newest() if newest is not None else None
    if compiler is None:
        raise ReproError("ingot.save_repro: nothing has been compiled yet, or it is gone")
    return compiler


def _captured(compiler: Compiler) -> Captured | None:
    """The graph that was captured last."""
    for compilation in reversed(compiler.compilations):
        if compilation.captured is not None:
            captured: Captured = compilation.captured
            return captured
    return None


def _served(
    compiler: Compiler, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Captured | None, Sequence[Any] | None]:
    """The graph that serves a call, and its inputs."""
    found = compiler.find(args, kwargs)
    if found is None:
        compiler.prepare(args, kwargs)
        found = compiler.find(args, kwargs)
    return found or (None, None)
