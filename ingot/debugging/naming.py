"""How the nodes of a captured graph are written as Python: the names of functions, and constants.

A dotted name is only given where it leads to the very object. What has no text is `NotWritable`.
"""

from __future__ import annotations

import builtins
import enum
import importlib
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Node

from ingot.torch_private import OpOverload

_MODULES = ("torch", "torch.nn.functional", "torch.special", "torch.linalg", "torch.fft", "math")
"""Where else a function may be found than where it says that it is."""


class NotWritable(Exception):
    """Something in a graph has no text that makes it again; the message says what."""


def dotted_name(target: Any) -> tuple[str, str]:
    """(the module to import, the dotted name) of a function, class or constant of a module."""
    if isinstance(target, OpOverload):
        namespace, _, name = target.name().partition("::")
        packet, _, overload = name.partition(".")
        return "torch", f"torch.ops.{namespace}.{packet}.{overload or 'default'}"
    name = str(getattr(target, "__qualname__", None) or getattr(target, "__name__", ""))
    own = getattr(target, "__module__", None) or ""
    if own in ("_operator", "builtins", ""):
        own = "operator"
    if name.startswith("_") or "._" in own:
        public = _public(target)
        if public:
            return public
    for module in (own, *_MODULES):
        if name and _found(module, name) is target:
            return module, f"{module}.{name}"
    last = getattr(target, "__name__", "")
    if last and getattr(builtins, last, None) is target:
        return "builtins", last
    for module in (own, *_MODULES):
        if last and _found(module, last) is target:
            return module, f"{module}.{last}"
    if last and getattr(torch.Tensor, last, None) == target:
        return "torch", f"torch.Tensor.{last}"
    raise NotWritable(f"{target!r} has no name to import it by")


def _public(target: Any) -> tuple[str, str] | None:
    """The name by which users call what torch itself has under a private one, as in
    `torch.nn.functional.logsigmoid`, which is `torch._C._nn.log_sigmoid`."""
    for module in _MODULES:
        for name, value in vars(importlib.import_module(module)).items():
            if value is target and not name.startswith("_"):
                return module, f"{module}.{name}"
    return None


def _found(module: str, name: str) -> Any:
    """What a module has of a dotted name; None if nothing."""
    try:
        return operator.attrgetter(name)(importlib.import_module(module))
    except (ImportError, AttributeError, ValueError):
        return None


class Writer:
    """Writes arguments, and notes the modules that their text needs."""

    def __init__(self, names: Mapping[Node, str]) -> None:
        self.names = names
        self.modules: set[str] = {"torch"}

    def target(self, target: Any) -> str:
        """The text of a function or class."""
        module, name = dotted_name(target)
        if module != "builtins":
            self.modules.add(module)
        return name

    def argument(self, value: Any) -> str:
        """The text of an argument; raises NotWritable."""
        writer = _WRITERS.get(type(value))
        if writer is not None:
            return writer(self, value)
        for cls, writer in _BASES:
            if isinstance(value, cls):
                return writer(self, value)
        if callable(value):
            return self.target(value)
        raise NotWritable(f"a {type(value).__name__} among the arguments has no text")

    def number(self, value: float) -> str:
        if math.isfinite(value):
            return repr(value)
        return f"float('{value}')"

    def complex_number(self, value: complex) -> str:
        return f"complex({self.number(value.real)}, {self.number(value.imag)})"

    def items(self, values: Any) -> str:
        return ", ".join(map(self.argument, values))

    def tuple(self, value: Any) -> str:
        comma = "," if len(value) == 1 else ""
        return f"({self.items(value)}{comma})"

    def slice(self, value: Any) -> str:
        return f"slice({self.items((value.start, value.stop, value.step))})"

    def dict(self, value: Any) -> str:
        pairs = []
        for key, item in value.items():
            pairs.append(f"{self.argument(key)}: {self.argument(item)}")
        return f"{{{', '.join(pairs)}}}"

    def member(self, value: Any) -> str:
        """A member of an enumeration."""
        return f"{self.target(type(value))}.{value.name}"


def _repr(writer: Writer, value: Any) -> str:
    return repr(value)


_Write = Callable[[Writer, Any], str]

_WRITERS: dict[type, _Write] = {
    **dict.fromkeys((int, bool, str, bytes, type(None)), _repr),
    type(...): lambda writer, value: "...",
    float: Writer.number,
    complex: Writer.complex_number,
    slice: Writer.slice,
    list: lambda writer, value: f"[{writer.items(value)}]",
    tuple: Writer.tuple,
    dict: Writer.dict,
    torch.Size: lambda writer, value: f"torch.Size([{writer.items(value)}])",
    torch.device: lambda writer, value: f"torch.device({str(value)!r})",
}
_BASES: tuple[tuple[Any, _Write], ...] = (
    (Node, lambda writer, value: writer.names[value]),
    ((torch.dtype, torch.layout, torch.memory_format), _repr),
    (enum.Enum, Writer.member),
    (list, lambda writer, value: f"[{writer.items(value)}]"),
    (tuple, Writer.tuple),
    (dict, Writer.dict),
)
"""For immutable lists and dicts of torch.fx, and other subclasses."""
