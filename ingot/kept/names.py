"""Functions and classes by name, so that another process finds the same ones."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from ingot.torch_private import OpOverload, OpOverloadPacket

OF_TORCH = frozenset({"aten"})
"""Namespaces of operators whose meaning the version of torch decides."""


class NotKept(Exception):
    """Something cannot be kept for another process; the text says what."""


def name_of(thing: Any) -> str:
    """The name of an operator of torch's, or of a function or class of torch, of Ingot or of
    Python's library. Raises NotKept for another one, and for one that is not found by its name."""
    if isinstance(thing, (OpOverload, OpOverloadPacket)):
        return _operator_name(thing)
    name = getattr(thing, "__qualname__", None) or getattr(thing, "__name__", "")
    for module in (getattr(thing, "__module__", None), *_BUILTIN):
        if isinstance(module, str) and module.partition(".")[0] in _TRUSTED:
            full = f"{module}:{name}"
            if _found(full) is thing:
                return full
    raise NotKept(f"{name or type(thing).__name__} cannot be found again by its name")


_TRUSTED = frozenset({"torch", "ingot", "builtins", "operator", "_operator", "math"})
_BUILTIN = tuple(map("torch{}".format, ("", "._C", "._C._nn", "._C._special", "._C._linalg")))
"""Where built-in functions lie that do not say so."""


def _operator_name(op: OpOverload | OpOverloadPacket) -> str:
    name = str(op)
    if name.partition(".")[0] not in OF_TORCH:
        raise NotKept(f"{name} is an operator of the program's")
    full = f"op:{name}"
    if _found(full) is not op:
        raise NotKept(f"{name} is another operator than the one of this name")
    return full


def named(full: str) -> Any:
    """What `name_of` gave this name. Raises NotKept where there is no such thing."""
    thing = _found(full)
    if thing is None:
        raise NotKept(f"there is no {full}")
    return thing


def _found(full: str) -> Any:
    module, _, path = full.partition(":")
    thing: Any = torch.ops
    if module != "op":
        if module.partition(".")[0] not in _TRUSTED:
            return None
        thing = _module(module)
    for part in path.split("."):
        thing = getattr(thing, part, None)
    return thing


def _module(name: str) -> Any:
    """A module, also one that is only an attribute of another."""
    try:
        return importlib.import_module(name)
    except ImportError:
        package, _, last = name.rpartition(".")
        return getattr(_module(package), last, None) if package else None
