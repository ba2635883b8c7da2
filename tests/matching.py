"""Whether two runs of a program left the same behind: equal values of equal types, and the same
objects in the same places."""

from __future__ import annotations

import collections
import contextvars
import functools
import io
import itertools
import math
import operator
import re
import types
from typing import Any

import numpy as np
import torch

NUMBER = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?")
ATOMIC = (
    int,
    float,
    complex,
    str,
    bytes,
    bool,
    type(None),
    type(...),
    range,
    torch.dtype,
    torch.device,
    torch.Size,
)
BY_NAME = (
    type,
    types.ModuleType,
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    types.CodeType,
)
DESCRIPTORS = (
    property,
    staticmethod,
    classmethod,
    types.MemberDescriptorType,
    types.GetSetDescriptorType,
)
DESCRIPTORS += (
    operator.methodcaller,
    type(collections.namedtuple("Pair", "a").a),
    contextvars.ContextVar,
)
DESCRIPTORS += (functools.cached_property,)


class Mismatch(AssertionError):
    pass


class Matcher:
    """Compares object graphs side by side, remembering which object answers to which. `tolerance` 0
    asks for equal bits."""

    def __init__(self, tolerance: float = 0.0) -> None:
        self.tolerance = tolerance
        self.pairs: dict[int, Any] = {}
        self.answers: dict[int, Any] = {}
        self.storages: dict[tuple[int, int], tuple[str, torch.Tensor, torch.Tensor]] = {}
        self.kept: list[Any] = []
        self.iterators: list[tuple[Any, Any, str]] = []

    def match(self, a: Any, e: Any, path: str) -> None:
        """Raises Mismatch where `a` (of the compiled run) is not what `e` (of eager) is."""
        self._match(a, e, path)
        while self.iterators:  # consumed last, as that changes them
            a, e, path = self.iterators.pop()
            self._match(taken(a), taken(e), f"list({path})")

    def _fail(self, path: str, a: Any, e: Any) -> None:
        raise Mismatch(f"{path} is {shown(a)}, in eager {shown(e)}")

    def _match(self, a: Any, e: Any, path: str) -> None:
        if type(a).__qualname__ != type(e).__qualname__ or type(a).__module__ != type(e).__module__:
            raise Mismatch(
                f"{path} is a {type(a).__qualname__} {shown(a)}, in eager a {type(e).__qualname__} "
                f"{shown(e)}"
            )
        content = (
            CONTENT.get(type(e).__bases__[0]) if type(e).__module__ == "random_python" else None
        )
        if content is not None:
            if self._met(a, e, path):
                return None
            self._match(content(a), content(e), f"content({path})")
            return self._match_fields_of_dict(a, e, path)
        if isinstance(e, ATOMIC):
            return self._match_atom(a, e, path)
        if isinstance(e, types.MethodType):
            self._match(a.__self__, e.__self__, f"{path}.__self__")
            return self._match(a.__func__, e.__func__, f"{path}.__func__")
        if self._met(a, e, path):
            return None
        for cls in type(e).__mro__:
            if cls in MATCHES:
                return MATCHES[cls](self, a, e, path)
        if hasattr(type(e), "__next__") and type(e).__module__ in ("builtins", "itertools"):
            self.iterators.append((a, e, path))
            return None
        return self._match_fields(a, e, path)

    def _met(self, a: Any, e: Any, path: str) -> bool:
        """Whether this pair was compared before; that either of them met another object is a
        mismatch. Tuples may be copies of each other."""
        if isinstance(e, (tuple, frozenset, *BY_NAME)):
            return False
        known, answer = self.pairs.get(id(e)), self.answers.get(id(a))
        if known is None and answer is None:
            self.kept += [a, e]
            self.pairs[id(e)], self.answers[id(a)] = a, e
            return False
        if known is not a or answer is not e:
            raise Mismatch(
                f"{path} is {'another' if known is not None else 'the same'} object, unlike eager: "
                f"{shown(e)}"
            )
        return True

    def _match_atom(self, a: Any, e: Any, path: str) -> None:
        if isinstance(e, float):
            close = math.isclose(a, e, rel_tol=self.tolerance, abs_tol=self.tolerance)
            if not (close or a != a and e != e) or (
                not self.tolerance and math.copysign(1, a) != math.copysign(1, e)
            ):
                self._fail(path, a, e)
        elif isinstance(e, str):
            if not self.same_text(a, e):
                self._fail(path, a, e)
        elif a != e:
            self._fail(path, a, e)

    def same_text(self, a: str, e: str) -> bool:
        """Equal, or equal but for decimal numbers within the tolerance."""
        if a == e or not self.tolerance or NUMBER.sub("#", a) != NUMBER.sub("#", e):
            return a == e
        pairs = zip(NUMBER.findall(a), NUMBER.findall(e))
        return all(
            abs(float(x) - float(y)) <= 0.011 + self.tolerance * abs(float(y)) for x, y in pairs
        )

    def _match_items(self, a: Any, e: Any, path: str) -> None:
        if len(a) != len(e):
            raise Mismatch(
                f"{path} has {len(a)} items, in eager {len(e)}: {shown(a)}, in eager {shown(e)}"
            )
        for i, (x, y) in enumerate(zip(a, e)):
            self._match(x, y, f"{path}[{i}]")

    def _match_dict(self, a: Any, e: Any, path: str) -> None:
        if path.endswith("_hooks']"):  # of a module, by numbers that count all hooks there are
            return self._match(list(a.values()), list(e.values()), path)
        self._match(list(a), list(e), f"list({path})")
        for x, y in zip(a, e):
            self._match(a[x], e[y], f"{path}[{y!r}]")
        if isinstance(e, collections.defaultdict):
            self._match(a.default_factory, e.default_factory, f"{path}.default_factory")
        if hasattr(e, "__dict__"):
            self._match_fields(a, e, path)

    def _match_set(self, a: Any, e: Any, path: str) -> None:
        self._match(sorted(a, key=str), sorted(e, key=str), f"sorted({path})")

    def _match_deque(self, a: Any, e: Any, path: str) -> None:
        self._match(a.maxlen, e.maxlen, f"{path}.maxlen")
        self._match_items(a, e, path)

    def _match_function(self, a: Any, e: Any, path: str) -> None:
        self._match(a.__qualname__, e.__qualname__, f"{path}.__qualname__")
        self._match(a.__code__.co_code, e.__code__.co_code, f"{path}.__code__.co_code")
        for field in ("__defaults__", "__kwdefaults__", "__dict__"):
            self._match(getattr(a, field), getattr(e, field), f"{path}.{field}")
        for name, x, y in zip(e.__code__.co_freevars, a.__closure__ or (), e.__closure__ or ()):
            self._match(x, y, f"{path}.{name}")

    def _match_cell(self, a: Any, e: Any, path: str) -> None:
        contents = []
        for cell in (a, e):
            try:
                contents.append(cell.cell_contents)
            except ValueError:
                contents.append("empty")
        self._match(*contents, path)

    def _match_partial(self, a: Any, e: Any, path: str) -> None:
        self._match((a.func, a.args, a.keywords), (e.func, e.args, e.keywords), path)

    def _match_name(self, a: Any, e: Any, path: str) -> None:
        if getattr(a, "__qualname__", a) != getattr(e, "__qualname__", e):
            self._fail(path, a, e)

    def _match_exception(self, a: Any, e: Any, path: str) -> None:
        if not self.same_text(str(a), str(e)):
            raise Mismatch(f"{path} says {str(a)!r}, in eager {str(e)!r}")
        self._match(a.args, e.args, f"{path}.args")
        self._match(a.__cause__, e.__cause__, f"{path}.__cause__")
        self._match(a.__context__, e.__context__, f"{path}.__context__")
        self._match(a.__suppress_context__, e.__suppress_context__, f"{path}.__suppress_context__")

    def _match_array(self, a: Any, e: Any, path: str) -> None:
        same = a.dtype == e.dtype and a.shape == e.shape
        if not same or not np.allclose(a, e, self.tolerance, self.tolerance, equal_nan=True):
            self._fail(path, a, e)

    def _match_fields(self, a: Any, e: Any, path: str) -> None:
        """The attributes of an object, in `__dict__` and in slots."""
        if not hasattr(e, "__dict__") and not hasattr(type(e), "__slots__"):
            if type(e) is not object and a != e:
                self._fail(path, a, e)
            return
        for name in [
            n for cls in type(e).__mro__ for n in vars(cls).get("__slots__", ()) if n != "__dict__"
        ]:
            missing = (object.__getattribute__, a, name), (object.__getattribute__, e, name)
            x, y = (attempt(*call) for call in missing)
            self._match(x, y, f"{path}.{name}")
        self._match_fields_of_dict(a, e, path)

    def _match_fields_of_dict(self, a: Any, e: Any, path: str) -> None:
        # vars() of the class: not what a __getattr__ makes up
        x, y = (getattr(o, "__dict__", None) for o in (a, e))
        if y is not None:
            self._match_dict(x, y, path)

    def _match_tensor(self, a: torch.Tensor, e: torch.Tensor, path: str) -> None:
        for name in ("dtype", "shape", "requires_grad"):
            if getattr(a, name) != getattr(e, name):
                raise Mismatch(f"{path}.{name} is {getattr(a, name)}, in eager {getattr(e, name)}")
        strides = [(x, y) for size, x, y in zip(e.shape, a.stride(), e.stride()) if size > 1]
        if e.numel() and any(x != y for x, y in strides):
            raise Mismatch(f"{path}.stride() is {a.stride()}, in eager {e.stride()}")
        self._match_storage(a, e, path)
        if not self._same_numbers(a, e):
            raise Mismatch(f"{path} is {a}, in eager {e}")
        self._match(dict(vars(a)), dict(vars(e)), f"vars({path})")

    def _same_numbers(self, a: torch.Tensor, e: torch.Tensor) -> bool:
        a, e = a.detach(), e.detach()
        if not e.is_floating_point() or not self.tolerance:
            return bool(((a == e) | ((a != a) & (e != e))).all())
        finite = e[e.isfinite()].double().abs()
        scale = max(1e-2, finite.max().item()) if finite.numel() else 1.0
        atol = self.tolerance * scale
        return torch.allclose(
            a.double(), e.double(), rtol=self.tolerance, atol=atol, equal_nan=True
        )

    def _match_storage(self, a: torch.Tensor, e: torch.Tensor, path: str) -> None:
        """Tensors that share memory do so at the same distance."""
        if not e.numel():
            return
        firsts = []
        for side, t in ((0, a), (1, e)):
            storage = t.untyped_storage()
            self.kept.append(storage)
            firsts.append(self.storages.setdefault((side, storage.data_ptr()), (path, a, e)))
        for first, first_a, first_e in firsts:
            distances = a.data_ptr() - first_a.data_ptr(), e.data_ptr() - first_e.data_ptr()
            if distances[0] != distances[1]:
                raise Mismatch(
                    f"{path} lies {distances[0]} bytes behind {first}, in eager {distances[1]}"
                )


MATCHES: dict[type, Any] = {
    torch.Tensor: Matcher._match_tensor,
    list: Matcher._match_items,
    tuple: Matcher._match_items,
    collections.deque: Matcher._match_deque,
    dict: Matcher._match_dict,
    set: Matcher._match_set,
    frozenset: Matcher._match_set,
    types.FunctionType: Matcher._match_function,
    types.CellType: Matcher._match_cell,
    functools.partial: Matcher._match_partial,
    BaseException: Matcher._match_exception,
    np.ndarray: Matcher._match_array,
    np.generic: Matcher._match_array,
    **dict.fromkeys(BY_NAME, Matcher._match_name),
    **dict.fromkeys((*DESCRIPTORS, io.StringIO), lambda matcher, a, e, path: None),
}


# Base -> the content of an instance of a subclass, read past every override.
CONTENT: dict[type, Any] = {
    list: lambda o: list.__getitem__(o, slice(None)),
    tuple: lambda o: tuple.__getitem__(o, slice(None)),
    dict: lambda o: dict(dict.items(o)),
    set: lambda o: {*set.__iter__(o)},
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
}


def attempt(function: Any, *args: Any) -> Any:
    try:
        return function(*args)
    except AttributeError:
        return "unset"


def taken(iterator: Any) -> list[Any]:
    """What an iterator has still to give, and how it fails."""
    found = []
    try:
        for element in itertools.islice(iterator, 20):
            found.append(element)
    except Exception as error:
        found.append(error)
    return found


def shown(o: Any) -> str:
    text = repr(o)
    return text if len(text) < 300 else text[:300] + "..."
