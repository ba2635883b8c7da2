"""The interpreter without tensors.

Where torch is not installed (another Python's bytecode is checked there), a stand-in for its names
is enough: nothing here calls torch."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class _Names(types.ModuleType):
    """A module in which every name is a class of its own."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Names(name) if name == "nn" else type(name, (), {})
        setattr(self, name, made)
        return made


def stand_in_for_torch() -> None:
    """Makes ingot.capture's modules importable without torch, past the package's own __init__
    files."""
    if "torch" in sys.modules or importlib.util.find_spec("torch") is not None:
        return
    sys.modules["torch"] = _Names("torch")
    for package in ("ingot", "ingot.capture", "ingot.loops"):
        module = sys.modules[package] = types.ModuleType(package)
        module.__path__ = [str(ROOT / package.replace(".", "/"))]


class NoGuards:
    """Takes facts, and forgets them."""

    def states(self, *fact: Any) -> bool:
        return True

    def add(self, *fact: Any) -> None:
        pass


def interpret(fn: Any, *args: Any) -> Any:
    """What the interpreter makes of `fn(*args)`, for plain arguments and a plain result."""
    stand_in_for_torch()
    import ingot.capture.handlers  # noqa: F401
    from ingot.capture.session import Session

    session = Session(NoGuards())
    result = session.call(session.builtin(fn), [session.wrap_constant(arg) for arg in args], {})
    return session.known(result)
