"""Random Python programs as modules, and a trial of them in eager."""

from __future__ import annotations

import collections
import contextlib
import io
import linecache
import sys
import warnings
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

MOST_LINES_RUN, MOST_ITEMS = 4000, 400


@dataclass
class RandomPython:
    """One program. `load()` gives a module of its own each time."""

    seed: int
    text: str
    error: str = ""

    @property
    def file(self) -> str:
        return f"<random python {self.seed}>"

    def load(self) -> ModuleType:
        linecache.cache[self.file] = (len(self.text), None, self.text.splitlines(True), self.file)
        # where dataclasses look for it
        module = sys.modules["random_python"] = ModuleType("random_python")
        try:
            exec(compile(self.text, self.file, "exec"), vars(module))
        finally:
            del sys.modules["random_python"]
        return module


class TooLong(BaseException):
    """A program runs for too long, or makes something that grows without bounds."""


def trial(program: RandomPython) -> str:
    """Runs a program in eager, both ways, each twice; the error it ends with, if any."""
    lines = 0

    def count(frame: Any, event: str, _: Any) -> Any:
        nonlocal lines
        lines += 1
        if frame.f_code.co_filename != program.file:
            return None
        if lines > MOST_LINES_RUN or is_large(_variables(frame)) or is_large(frame.f_globals):
            raise TooLong
        return count

    unraisable: list[Any] = []
    hook, sys.unraisablehook = sys.unraisablehook, unraisable.append
    try:
        with contextlib.redirect_stdout(io.StringIO()), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = program.load()
            for other in (False, True, False):
                args, kwargs = module.arguments(other)
                before, lines = sys.gettrace(), 0
                sys.settrace(count)
                try:
                    module.program(*args, **kwargs)
                except (Exception, TooLong) as error:
                    return f"{type(error).__name__}: {error}"
                finally:
                    sys.settrace(before)
                if other:
                    module.reset()
            del args, kwargs, module
    finally:
        sys.unraisablehook = hook
    return "ignored GeneratorExit" if unraisable else ""


def _variables(frame: Any) -> dict[str, Any]:
    # 3.13.0 crashes where `f_locals` meets the cell of a comprehension that has not begun.
    return {} if sys.version_info >= (3, 13) and frame.f_code.co_cellvars else frame.f_locals


def is_large(variables: dict[str, Any]) -> bool:
    return any(
        type(v) not in SMALL and _size(v) > MOST_ITEMS for n, v in variables.items() if n[0] != "_"
    )


SMALL = frozenset(
    {torch.Tensor, float, bool, type, ModuleType, type(None), type(is_large), type(len)}
)


def _size(o: Any) -> int:
    if isinstance(o, dict):
        return sum(map(len, map(str, o)))
    if isinstance(o, (str, list, collections.deque)):
        return len(o)
    if isinstance(o, int):
        return o.bit_length()
    attributes = getattr(o, "__dict__", None)
    if isinstance(o, (type, ModuleType)) or attributes is None:
        return 0
    return max(
        [
            len(v)
            for v in attributes.values()
            if isinstance(v, (str, list, dict, collections.deque))
        ],
        default=0,
    )
