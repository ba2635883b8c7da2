"""The words of reasons: values, operators and functions, as a user knows them.

All sentences about what cannot be captured take their words from here. Names that only Ingot gives,
those of nodes and of operands that wait at a graph break, are not told.
"""

from __future__ import annotations

import operator
import sys
import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any

from ingot.capture.sources import Source

_SIGNS = {
    "add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "matmul": "@", "and_": "&", "or_": "|", "xor": "^", "lshift": "<<", "rshift": ">>",
    "lt": "<", "le": "<=", "eq": "==", "ne": "!=", "gt": ">", "ge": ">=", "neg": "-", "pos": "+",
    "invert": "~",
}  # fmt: skip

_PUBLIC = {
    "_thread": "threading", "posix": "os", "torch._C": "torch",
    "numpy.random.mtrand": "numpy.random", "numpy.random._generator": "numpy.random",
}  # fmt: skip
"""By modules written in C, those by which programs know what is in them."""


def described(kind: str, source: Source | None) -> str:
    """ "tensor x", or "a tensor" where the user has no name for it."""
    if source is not None and source.is_written:
        return f"{kind} {source.name}"
    return f"{article(kind)} {kind}"


def article(noun: str) -> str:
    if noun[:1].lower() in "aeio":
        return "an"
    return "a"


def fact_of(thing: Any, name: str) -> Any:
    """An attribute of a class or function; None where to ask might run code of the program's.

    That do proxies, and objects with `__getattr__`."""
    cls = type(thing)
    for base in cls.__mro__:
        members = vars(base)
        if "__getattr__" in members or isinstance(members.get(name), property):
            return None
        if isinstance(members.get("__getattribute__"), FunctionType):
            return None
    if cls in _PROXIES:
        return None
    return getattr(thing, name, None)


_PROXIES = frozenset((weakref.ProxyType, weakref.CallableProxyType))


def public_name(thing: Any) -> str:
    """What programs call a class or function, with its module unless that is built in."""
    name = fact_of(thing, "__qualname__") or fact_of(thing, "__name__")
    if not isinstance(name, str):
        return "an object that can be called"
    module = fact_of(thing, "__module__")
    owner = fact_of(thing, "__self__") or fact_of(thing, "__objclass__")
    if not isinstance(module, str) and owner is not None:  # a method written in C
        cls = owner if issubclass(type(owner), type) else type(owner)
        module = fact_of(cls, "__module__")
    if not isinstance(module, str) or module in ("builtins", "__main__") or "cython" in module:
        return name
    if thing is open:
        return name
    if module[:1] == "_" and module[1:] in sys.stdlib_module_names:
        module = module[1:]
    module = module.replace("torch._C._", "torch.")
    return f"{_PUBLIC.get(module, module)}.{name}"


def operator_text(function: Callable[..., Any]) -> str:
    """The operator by its sign, or the name of a function."""
    name = getattr(function, "__name__", "an operator")
    if getattr(operator, name, None) is not function:
        return f"{name}()"
    if name[0] == "i" and name[1:] in _SIGNS and name != "invert":
        return f"operator {_SIGNS[name[1:]]}="
    sign = _SIGNS.get(name) or _SIGNS.get(f"{name}_") or name.rstrip("_")
    return f"operator {sign}"
