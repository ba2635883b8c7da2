"""Classes with their metaclasses, super(), and Python modules."""

from __future__ import annotations

import abc
import operator
import sys
import weakref
from types import FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any

import torch

from ingot.capture.guards import MISSING, Kind
from ingot.capture.sources import ConstSource
from ingot.capture.values.base import (
    NULL,
    Arguments,
    Keywords,
    KnownObject,
    Leaf,
    NativeMethod,
    ObjectHolder,
    Operator,
    UnaryOperator,
    Value,
    class_is_type,
    implemented,
    type_name,
)
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.local_members import refuse_local_class
from ingot.capture.values.objects import (
    BINARY_METHODS,
    UNARY_METHODS,
    ObjectValue,
    bind_member,
    is_data_descriptor,
)
from ingot.origins import is_trusted, trusts_function

if TYPE_CHECKING:
    from ingot.capture.session import Session


_TYPES_OF_ELEMENTS: dict[type, torch.dtype] = {
    bool: torch.bool,
    int: torch.int64,
    float: torch.float64,
    complex: torch.complex128,
}
"""What classes of numbers mean as arguments of torch's functions; a graph has no text for them."""


_PLAIN_METACLASSES = (type, abc.ABCMeta)
_PLAIN = frozenset(
    {type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size}
)


def _is_plain(raw: Any) -> bool:
    """Whether what a class has under a name is no descriptor, for certain."""
    return raw is MISSING or type(raw) in _PLAIN


_MOST_VALUES = 4
"""Of a setting; what has had more counts something, and would be compiled for each number."""

_values: weakref.WeakKeyDictionary[type, dict[Any, set[Any]]] = weakref.WeakKeyDictionary()
"""What attributes that functions set were before, by class; then by name and function."""


def _is_setting(session: Session, cls: type, name: str, before: Any) -> bool:
    code = session.frames[0].program.code
    key = name, code.co_filename, code.co_firstlineno
    values = _values.setdefault(cls, {}).setdefault(key, set())
    values.add(before)
    return len(values) <= _MOST_VALUES


def _refuse_written(session: Session, cls: type) -> None:
    """Breaks the graph where it asks which class has an attribute, and one of them was set."""
    if session.effects.has_written_to(cls):
        raise session.unsupported(
            "side-effect", f"side effect: class {cls.__qualname__} is looked at, which was set"
        )


class ClassValue(KnownObject):
    """A class. Its attributes are guarded one by one as they are looked up."""

    __slots__ = ()
    has_special_methods = True

    def describe(self) -> str:
        return f"class {self.object.__qualname__}"

    def argument(self, leaf: Leaf) -> Any:
        return _TYPES_OF_ELEMENTS.get(self.object, self.object)

    def get_attribute(self, session: Session, name: str) -> Value:
        """type.__getattribute__, and the `__getattr__` of the metaclass."""
        if name == "__class__" and class_is_type(type(self.object)):
            return session.wrap_constant(type(self.object))
        of_meta = _lookup(session, type(self.object), name)
        if is_data_descriptor(of_meta) and hasattr(type(of_meta), "__get__"):
            return self._of_type(session, of_meta, name)
        raw = session.class_lookup(self.object, name)
        if raw is MISSING:
            if of_meta is not MISSING:
                return self._of_type(session, of_meta, name)
            hook = session.class_lookup(type(self.object), "__getattr__")
            if hook is MISSING:
                message = f"type object '{self.object.__name__}' has no attribute '{name}'"
                raise session.raised(AttributeError, message)
            return session.call_member(hook, self, ConstantValue(name))
        return bind_member(session, raw, None, self.object, name)

    def set_attribute(self, session: Session, name: str, value: Value) -> None:
        """Sets what is found as it is, where a constant is: a flag, a setting."""
        value = session.realize(value)
        settable = (
            type(self.object) in _PLAIN_METACLASSES
            and not self.object.__flags__ & (1 << 8)
            and not (name.startswith("__") and name.endswith("__"))
            and not is_trusted(self.object.__module__)
            and _is_plain(before := session.class_lookup(self.object, name))
            and _is_setting(session, self.object, name, before)
        )
        if not settable or type(value) is not ConstantValue or not _is_plain(value.object):
            super().set_attribute(session, name, value)
        refuse_local_class(session, self.object, f"{name!r} to be set")
        session.effects.set_class_attribute(self.object, name, value)  # type: ignore[arg-type]
        session.forget_lookups(name)

    def _of_type(self, session: Session, raw: Any, name: str) -> Value:
        """What an attribute found on the metaclass gives for this class."""
        if name == "__dict__":
            refuse_local_class(session, self.object, "`__dict__`")
            _refuse_written(session, self.object)
            return ClassDict(self.object)
        method = getattr(type(self), f"method_{name}", None)
        if method is not None:
            return NativeMethod(self, name, method)
        if isinstance(raw, (GetSetDescriptorType, MemberDescriptorType)):
            value = session.python(getattr, self.object, name)
            return session.wrap(value, ConstSource(value))
        return bind_member(session, raw, self, type(self.object), name)

    def method_mro(self, session: Session) -> Value:
        return session.list_of(session.wrap_constant(self.object.__mro__))

    # -- operators, by the methods of the metaclass ------------------------------------------------

    def special(self, session: Session, name: str, *args: Value) -> Value | None:
        """Calls a special method that the metaclass defines in Python; None if it has none."""
        raw = session.class_lookup(type(self.object), name)
        if not isinstance(raw, FunctionType) or is_trusted(type(self.object).__module__):
            return None
        return session.call_member(raw, self, *args)

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        if function in BINARY_METHODS:
            answer = self.special(session, BINARY_METHODS[function][reflected], other)
            if answer is not None:
                return implemented(answer)
        if other.is_constant():
            return ConstantValue(self.object).binary(session, function, other, reflected)
        return None

    def unary(self, session: Session, function: UnaryOperator) -> Value:
        answer = self.special(session, UNARY_METHODS[function])
        return answer or session.wrap_result(function, self.object)

    def truth(self, session: Session) -> bool:
        for name in ("__bool__", "__len__"):
            answer = self.special(session, name)
            if answer is not None:
                return session.truth(answer)
        return True

    def get_item(self, session: Session, key: Value) -> Value:
        answer = self.special(session, "__getitem__", key)
        if answer is not None:
            return answer
        raw = session.class_lookup(self.object, "__class_getitem__")
        if isinstance(raw, classmethod) and not trusts_function(raw.__func__):
            return session.call(
                bind_member(session, raw, None, self.object, "__class_getitem__"), [key], {}
            )
        return session.wrap_result(operator.getitem, self.object, session.known(key))

    def iterate(self, session: Session) -> Value:
        iterator = self.special(session, "__iter__")
        if iterator is not None:
            return session.realize(iterator)
        return session.wrap_constant(tuple(session.python(iter, self.object))).iterate(session)

    def length(self, session: Session) -> int:
        answer = self.special(session, "__len__")
        if answer is None:
            return session.python(len, self.object)
        return session.integer(answer)

    def contains(self, session: Session, item: Value) -> bool:
        answer = self.special(session, "__contains__", item)
        if answer is not None:
            return session.truth(answer)
        return session.python(operator.contains, self.object, session.known(item))

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        return session.construct(self.object, args, kwargs)


def _lookup(session: Session, cls: type, name: str) -> Any:
    """What a metaclass has under a name; `type` itself never changes."""
    if cls is type:
        return vars(type).get(name, vars(object).get(name, MISSING))
    return session.class_lookup(cls, name)


class ClassDict(Value):
    """The `__dict__` of a class."""

    __slots__ = ("owner",)

    def __init__(self, owner: type) -> None:
        super().__init__()
        self.owner = owner

    def python_type(self) -> type:
        return type(vars(int))

    def constant(self) -> Any:
        return vars(self.owner)

    def _find(self, session: Session, key: Value) -> Value | None:
        name = session.known(key)
        if type(name) is not str or name not in vars(self.owner):
            if type(name) is str:
                session.class_lookup(self.owner, name)  # it holds as long as this does
            return None
        return session.wrap_class_member(session.class_lookup(self.owner, name))

    def contains(self, session: Session, item: Value) -> bool:
        return self._find(session, item) is not None

    def get_item(self, session: Session, key: Value) -> Value:
        value = self._find(session, key)
        if value is None:
            raise session.raised(KeyError, key)
        return session.realize(value)

    def method_get(self, session: Session, key: Value, default: Value = NONE) -> Value:
        return self._find(session, key) or default


class SuperValue(Value):
    """super(cls, instance)."""

    __slots__ = ("cls", "instance", "said")

    def __init__(self, cls: type, instance: Value, said: type | None = None) -> None:
        super().__init__()
        self.cls, self.instance = cls, instance
        self.said = said  # the class that `__class__` of the instance gives, where that decides

    def python_type(self) -> type:
        return super

    def start(self) -> tuple[type, bool]:
        """The class whose resolution order is searched, and whether it is the class itself that is
        bound."""
        if isinstance(self.instance, ClassValue) and self.cls in self.instance.object.__mro__:
            return self.instance.object, True
        if self.said is not None:
            return self.said, False
        if isinstance(self.instance, ObjectValue):
            return self.instance.cls, False
        return self.instance.python_type(), False

    def check(self, session: Session) -> None:
        """Raises TypeError where the instance is none of the class."""
        if not isinstance(self.cls, type):
            kind = type(self.cls).__name__
            raise session.raised(TypeError, f"super() argument 1 must be a type, not {kind}")
        if self.cls not in self.start()[0].__mro__:
            raise session.raised(TypeError, self._mismatch())

    def _mismatch(self) -> str:
        if sys.version_info < (3, 13):
            return "super(type, obj): obj must be an instance or subtype of type"
        instance = self.instance
        what = f"instance of {type_name(instance.python_type())}"
        if isinstance(instance, ClassValue):
            what = f"type {instance.object.__name__}"
        wrong = f"obj ({what}) is not an instance or subtype of type ({type_name(self.cls)})."
        return f"super(type, obj): {wrong}"

    def get_attribute(self, session: Session, name: str) -> Value:
        if name == "__class__":
            return session.wrap_constant(super)
        start, of_class = self.start()
        _refuse_written(session, start)
        order = start.__mro__[start.__mro__.index(self.cls) + 1 :]
        for owner in order:
            if name in vars(owner):
                raw = session.class_lookup(owner, name)
                if isinstance(self.instance, ObjectValue) and self.said is None:
                    return self.instance.bind(session, raw, name)
                return bind_member(session, raw, None if of_class else self.instance, start, name)
            session.class_lookup(owner, name)
        if name == "__self__":
            return self.instance
        if name == "__self_class__":
            return session.wrap_constant(start)
        if name == "__thisclass__":
            return session.wrap_constant(self.cls)
        raise session.raised(AttributeError, f"'super' object has no attribute '{name}'")


class ModuleObject(ObjectHolder):
    """A Python module."""

    __slots__ = ()

    def python_type(self) -> type:
        return ModuleType

    def describe(self) -> str:
        return f"module {self.object.__name__}"

    def get_attribute(self, session: Session, name: str) -> Value:
        return session.wrap_global(vars(self.object), name) or self._dynamic(session, name)

    def set_attribute(self, session: Session, name: str, value: Value) -> None:
        if type(self.object) is not ModuleType:  # its class may do more than to store it
            super().set_attribute(session, name, value)
        session.effects.set_name(vars(self.object), name, value)

    def delete_attribute(self, session: Session, name: str) -> None:
        if type(self.object) is not ModuleType:
            super().delete_attribute(session, name)
        self.get_attribute(session, name)
        session.effects.set_name(vars(self.object), name, NULL)

    def _dynamic(self, session: Session, name: str) -> Value:
        """An attribute that the module's `__getattr__` or class makes."""
        if name in vars(self.object):  # it was deleted during capture
            raise session.raised(
                AttributeError, f"module '{self.object.__name__}' has no attribute '{name}'"
            )
        trusted = is_trusted(self.object.__name__)
        try:
            value = session.python(getattr, self.object, name)
        finally:
            stored = name in vars(self.object)  # by a module that imports names when asked
            if not trusted and not stored:
                session.guard(ConstSource(vars(self.object)), Kind.ABSENT_KEY, name)
        if stored:
            return self.get_attribute(session, name)
        if trusted:
            return session.wrap(value, ConstSource(value))
        raise session.unsupported(
            "attribute", f"attribute {name!r} of {self.describe()}, which is computed"
        )
