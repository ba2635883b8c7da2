"""Instances of a user's subclass of a built-in class other than dict: attributes, and the content
of the built-in."""

from __future__ import annotations

import collections
import operator
from collections import deque
from collections.abc import Iterable, Iterator
from types import MethodDescriptorType, SimpleNamespace, WrapperDescriptorType
from typing import TYPE_CHECKING, Any

from ingot.capture.bytecode import VERSION
from ingot.capture.sources import Source
from ingot.capture.values.base import NativeMethod, Value, find_missing, implemented
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.keys import require_plain_names
from ingot.capture.values.objects import (
    BINARY_METHODS,
    INPLACE_METHODS,
    ContentKey,
    ObjectValue,
    plain_base,
)
from ingot.capture.values.sequences import TupleValue

if TYPE_CHECKING:
    from ingot.capture.session import Session

SEQUENCES = frozenset({list, tuple, str, bytes, deque})
"""They are joined and repeated, but have no addition and multiplication as numbers have."""

OF_SEQUENCES = frozenset({operator.add, operator.mul, operator.iadd, operator.imul})

_IN_PLACE = frozenset(map(operator.itemgetter(0), INPLACE_METHODS.values()))
"""They give the instance itself; other methods of an immutable class give what the instance
holds."""

_OPERATORS = _IN_PLACE.union(*BINARY_METHODS.values())


_FieldOfTuple = type(vars(collections.namedtuple("_Example", "a"))["a"])


class BuiltinObject(ObjectValue):
    """An instance of a subclass of list, tuple, set, str, int and the like. `content` is what the
    built-in class holds, as a value of that class."""

    __slots__ = ("content",)

    def __init__(
        self, cls: type, content: Value, source: Source | None = None, object: Any = None
    ) -> None:
        super().__init__(cls, source, object)
        self.content = content

    def hashes_plainly(self) -> bool:
        """Whether the class compares and hashes as the built-in one does."""
        base = plain_base(self.cls)
        return self.cls.__hash__ is base.__hash__ and self.cls.__eq__ is base.__eq__

    def key(self, session: Session) -> Any:
        if not self.hashes_plainly() or self.cls.__hash__ is None:
            return super().key(session)
        return ContentKey(self, self.content.key(session))

    def argument(self, leaf: Any) -> Any:
        return self.content.argument(leaf)

    def python_object(self, session: Session) -> Any:
        return session.known(self.content)

    def bind(self, session: Session, raw: Any, name: str) -> Value:
        """A method of the built-in class works on the content."""
        if type(raw) is _FieldOfTuple:
            assert isinstance(self.content, TupleValue)
            return self.content.items[raw.__reduce__()[1][0]]
        is_native = isinstance(raw, (MethodDescriptorType, WrapperDescriptorType))
        if name == "__reduce__" and (native := session.native_method(self, raw)) is not None:
            return native
        if (
            not is_native
            or raw.__objclass__ is object
            or not issubclass(plain_base(self.cls), raw.__objclass__)
        ):
            return super().bind(session, raw, name)
        return NativeMethod(self, name, _OnContent(name))

    def text(self, session: Session, make: Any) -> str:
        """What str() or repr() of the built-in class gives."""
        if make is repr and self.overrides(session, "__repr__"):
            return session.text_of(self, repr)
        base: Any = plain_base(self.cls)
        if make is repr and base in (set, frozenset, deque):  # which tell the name of the class
            content = session.textual(self.content)
            asks = base is deque or bool(content) and VERSION < (3, 14)
            if asks and self.overrides(session, "__iter__", "__len__"):
                return self._text_of_elements(session, getattr(content, "maxlen", None))
            most = []
            if base is deque:
                most = [content.maxlen]
            return session.python(
                base.__repr__, type(self.cls.__name__, (base,), {})(content, *most)
            )
        return session.text_of(self.content, make)

    def _text_of_elements(self, session: Session, most: int | None) -> str:
        """The repr() of a set or deque whose class says itself what it holds."""
        elements = session.text_of(session.call_builtin(list, self), repr)
        if plain_base(self.cls) is not deque:
            return f"{self.cls.__name__}({{{elements[1:-1]}}})"
        return f"{self.cls.__name__}({elements}{'' if most is None else f', maxlen={most}'})"

    def binary(
        self, session: Session, function: Any, other: Value, reflected: bool
    ) -> Value | None:
        if function in OF_SEQUENCES and plain_base(self.cls) in SEQUENCES:
            return self._as_sequence(session, function, other, reflected)
        return super().binary(session, function, other, reflected)

    def _as_sequence(
        self, session: Session, function: Any, other: Value, reflected: bool
    ) -> Value | None:
        """Addition and multiplication as numbers know them are there only where the class defines
        them; then the built-in class joins or repeats the content. A list's own `+=` comes before a
        `+` that the class defines."""
        name, plain = INPLACE_METHODS.get(function, ("", function))
        answer = None
        if name and self.overrides(session, name):
            answer = implemented(self.special(session, name, other))
        elif name == "__iadd__" and hasattr(plain_base(self.cls), name):
            self.content.binary(session, function, other, reflected)
            return self
        if answer is None and self.overrides(session, *BINARY_METHODS[plain]):
            answer = implemented(self.special(session, BINARY_METHODS[plain][reflected], other))
        if answer is not None or reflected and plain is operator.add:
            return answer
        content = self.content
        if plain is operator.mul and find_missing(other.python_type(), "__index__"):
            return None
        other = getattr(other, "content", other)
        if plain is operator.add and isinstance(content, ConstantValue):
            if content.python_type() is not other.python_type():
                return None
        result = content.binary(session, function, other, reflected)
        if result is content and name:
            return self
        return result


_HOOKS = ("__getattr__", "__getattribute__")
_WITHOUT_HOOKS = frozenset("full view sum expand".split())
"""Functions of torch that look up no attribute of a number."""

_READS_DATA = frozenset("tensor new_tensor as_tensor asarray".split())
_READ_AS_SEQUENCE = ("__len__", "__iter__", "__getitem__")

_COMPARED = ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__", "__bool__", "__hash__")

_OF_NUMBERS = frozenset(
    {"getitem", "setitem", *(f.__name__ for f in (*BINARY_METHODS, *INPLACE_METHODS))}
)
"""Functions of torch that read an int as an int."""


def _takes_floats(name: str) -> bool:
    """Whether a function of torch may read an int as a float."""
    return name == "new_tensor" or name not in _OF_NUMBERS | _READS_DATA


def refuse_overrides(
    session: Session,
    name: str,
    args: Iterable[Value],
    kwargs: dict[str, Value],
    in_python: bool = False,
) -> None:
    """Breaks the graph before a torch function that would call a method which an argument's class
    overrides: only torch knows which, and how often.

    `in_python`: the function is written in Python, where numbers are compared before use."""
    for arg in (*args, *kwargs.values()):
        items = getattr(arg, "items", None)
        if isinstance(items, list):
            refuse_overrides(session, name, items, {}, in_python)
        if isinstance(arg, BuiltinObject):
            for method in _asked_by_torch(arg, name, kwargs, in_python):
                if arg.overrides(session, method):
                    raise session.unsupported(
                        "foreign-object", f"{name} may ask {method} of {arg.describe()}"
                    )


def _asked_by_torch(
    value: BuiltinObject, name: str, kwargs: dict[str, Value], in_python: bool
) -> Iterator[str]:
    base = plain_base(value.cls)
    is_list = base in (list, tuple)
    is_index = name in ("__getitem__", "getitem", "__setitem__", "setitem")
    if not (name in _WITHOUT_HOOKS or is_index and base is not list):
        yield from _HOOKS
    if name in _READS_DATA or is_list and is_index:
        yield from _READ_AS_SEQUENCE if is_list else ("__getitem__",)
    if base is int and (_takes_floats(name) or name in _READS_DATA and kwargs):
        yield "__float__"
    if is_list:
        yield "__index__"
    if in_python:
        yield from _COMPARED


class NamespaceObject(ObjectValue):
    """A types.SimpleNamespace."""

    __slots__ = ()

    def method___init__(self, session: Session, **attributes: Value) -> Value:
        require_plain_names(session, attributes)
        for name, value in attributes.items():
            self.put(session, name, value)
        return NONE

    def _entries(self, session: Session) -> dict[str, Value]:
        return session.entries_of(self.all_attributes(session))

    def text(self, session: Session, make: Any) -> str:
        """What repr() gives."""
        entries = self._entries(session).items()
        texts = []
        for k, v in entries:
            texts.append(f"{session.known(session.wrap_key(k))}={session.text_of(v, repr)}")
        name = "namespace"
        if self.cls is not SimpleNamespace:
            name = self.cls.__name__
        return f"{name}({', '.join(texts)})"

    def method___repr__(self, session: Session) -> Value:
        return ConstantValue(self.text(session, repr))

    def method___eq__(self, session: Session, other: Value) -> Value:
        if not isinstance(other, NamespaceObject):
            return ConstantValue(NotImplemented)
        left = session.dict_of_values(self._entries(session))
        return session.binary(operator.eq, left, session.dict_of_values(other._entries(session)))


class _Text(str):
    """The content of an instance of a subclass of str, whose iterator is of another type than that
    of plain text."""

    __slots__ = ()


class _OnContent:
    """A method of the built-in class, applied to the content."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(
        self, owner: BuiltinObject, session: Session, *args: Value, **kwargs: Value
    ) -> Value:
        if self.name == "__init__" and owner.source is None:
            owner.content = session.realize(session.construct(plain_base(owner.cls), args, kwargs))
            return NONE
        # not as quick as that of plain text
        if self.name == "__iter__" and owner.content.python_type() is str:
            return session.constant_iterator(iter(_Text(owner.content.constant())))
        method = owner.content.get_attribute(session, self.name)
        if self.name in _OPERATORS - {"__iadd__"}:
            args = tuple([a.content if isinstance(a, BuiltinObject) else a for a in args])
        result = session.call(method, args, kwargs)
        if result is not owner.content:
            return result
        if self.name in _IN_PLACE:
            return owner
        return _without_class(session, result)


def _without_class(session: Session, content: Value) -> Value:
    """What an instance holds, as an object of its own."""
    if isinstance(content, TupleValue):
        return TupleValue(content.items, tuple)
    if content.python_type() is frozenset:
        return session.set_of(content, frozenset)
    return content
