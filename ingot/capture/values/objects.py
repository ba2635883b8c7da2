"""Classes, instances of user classes, exceptions, super(), Python modules."""

from __future__ import annotations

import operator
from collections.abc import Callable
from types import ClassMethodDescriptorType, FunctionType, GetSetDescriptorType, MemberDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any

from ingot.capture.guards import MISSING, Kind
from ingot.capture.sources import AttrSource, ConstSource, Source, find_in_class
from ingot.capture.values.base import NULL, Arguments, Callee, Keywords, NotConstant, Raised, Value
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.functions import BoundMethod
from ingot.native import Dispatcher

if TYPE_CHECKING:
    from ingot.capture.session import Session

_ARITHMETIC = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()
_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}


def _operator(name: str) -> Any:
    return getattr(operator, name + "_" if name in ("and", "or") else name)


BINARY_METHODS: dict[Any, tuple[str, str]] = {
    **{_operator(name): (f"__{name}__", f"__r{name}__") for name in _ARITHMETIC},
    **{_operator(name): (f"__{name}__", f"__{mirror}__") for name, mirror in _MIRRORED.items()},
}
"""By operator: the left operand's method, and the right operand's."""

UNARY_METHODS = {operator.neg: "__neg__", operator.pos: "__pos__", operator.invert: "__invert__"}
INPLACE_METHODS: dict[Any, tuple[str, Callable[[Any, Any], Any]]] = {
    getattr(operator, f"i{name}"): (f"__i{name}__", _operator(name)) for name in _ARITHMETIC
}
"""By in-place operator: its method, and the operator that stands in for it."""


class IdentityKey:
    """An object that hashes by identity, as a key of a captured dict."""

    __slots__ = ("object", "value")

    def __init__(self, object: Any, value: Value) -> None:
        self.object, self.value = object, value

    def __hash__(self) -> int:
        return object.__hash__(self.object)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and other.object is self.object


class ObjectValue(Value):
    """An instance of a class written in Python: from outside (`object`), or made during capture (`attributes`)."""

    __slots__ = ("attributes", "cls", "object")
    is_shared = True

    def __init__(self, cls: type, source: Source | None = None, object: Any = None) -> None:
        super().__init__(source)
        self.cls, self.object = cls, object
        self.attributes: dict[str, Value] = {}

    def python_type(self) -> type:
        return self.cls

    def identity(self) -> Any:
        return self if self.source is None else self.object

    def key(self, session: Session) -> Any:
        if find_in_class(self.cls, "__hash__") is not object.__hash__:
            raise session.unsupported(f"{self.describe()}, which defines __hash__, as a key of a dict or set")
        return session.identity_key(self)

    # -- attributes ----------------------------------------------------------------------------------------------------

    def own_attribute(self, session: Session, name: str) -> Value | None:
        """What the instance `__dict__` holds; None if it has no such name (guarded)."""
        if self.source is None:
            return self.attributes.get(name)
        namespace = instance_dict(self.object)
        if namespace is None:
            return None
        fields = session.effects.fields(namespace)
        written = None if fields is None else fields.read(name)
        if written is not None:
            return None if written is NULL else written
        if name in namespace:
            return session.effects.found(namespace[name], AttrSource(self.source, name))
        session.guard_absent(self.source, name)
        return None

    def get_attribute(self, session: Session, name: str) -> Value:
        hook = find_in_class(self.cls, "__getattribute__")
        if hook is find_in_class(_plain_base(self.cls), "__getattribute__"):
            return self.plain_attribute(session, name) or self.missing_attribute(session, name)
        hook = session.class_lookup(self.cls, "__getattribute__")
        if not isinstance(hook, FunctionType):
            raise session.unsupported(f"{self.describe()} defines __getattribute__")
        try:
            return session.call(session.wrap_class_member(hook), [self, ConstantValue(name)], {})
        except Raised as raised:
            lost = issubclass(raised.value.python_type(), AttributeError)
            if not lost or session.class_lookup(self.cls, "__getattr__") is MISSING:
                raise
            return self.missing_attribute(session, name)

    def plain_attribute(self, session: Session, name: str) -> Value | None:
        """What object.__getattribute__ finds; None where it finds nothing."""
        if name == "__class__":
            return session.wrap_constant(self.cls)
        if name == "__dict__":
            return self.all_attributes(session)
        raw = session.class_lookup(self.cls, name)
        if is_data_descriptor(raw):
            return self.bind(session, raw, name)
        own = self.own_attribute(session, name)
        if own is not None:
            return own
        return None if raw is MISSING else self.bind(session, raw, name)

    def all_attributes(self, session: Session) -> Value:
        if self.source is None:
            return session.attributes_of(self)
        return session.instance_dict_of(self)

    def missing_attribute(self, session: Session, name: str) -> Value:
        """What `__getattr__` gives, or AttributeError."""
        hook = session.class_lookup(self.cls, "__getattr__")
        if hook is MISSING:
            raise session.raised(AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'")
        return session.call(session.wrap_class_member(hook), [self, ConstantValue(name)], {})

    def bind(self, session: Session, raw: Any, name: str) -> Value:
        """What an attribute found on the class gives for this instance."""
        if isinstance(raw, MemberDescriptorType):
            if self.source is None:
                found = self.attributes.get(name)
                if found is None:
                    raise session.raised(AttributeError, name)
                return found
            written = session.effects.fields(self.object)
            if written is not None and name in written.written:
                if written.written[name] is NULL:
                    raise session.raised(AttributeError, name)
                return written.written[name]
            return session.wrap(session.python(getattr, self.object, name), AttrSource(self.source, name, "slot"))
        return bind_member(session, raw, self, self.cls, name)

    def set_attribute(self, session: Session, name: str, value: Value) -> None:
        setter = session.class_lookup(self.cls, "__setattr__")
        raw = session.class_lookup(self.cls, name)
        if setter is not object.__setattr__ and isinstance(setter, FunctionType):
            session.call(session.wrap_class_member(setter), [self, ConstantValue(name), value], {})
        elif isinstance(raw, property):
            if raw.fset is None:
                raise session.raised(AttributeError, f"property '{name}' of '{self.cls.__name__}' object has no setter")
            session.call(session.wrap_class_member(raw.fset), [self, value], {})
        elif is_data_descriptor(raw) and not isinstance(raw, MemberDescriptorType):
            raise session.unsupported(f"a descriptor of {self.describe()} is set")
        else:
            self.put(session, name, value)

    def put(self, session: Session, name: str, value: Value) -> None:
        """object.__setattr__ of a name that no descriptor takes."""
        if self.source is None:
            self.attributes[name] = value
        else:
            session.effects.set_attribute(session, self, name, value)

    def delete_attribute(self, session: Session, name: str) -> None:
        hook = session.class_lookup(self.cls, "__delattr__")
        if isinstance(hook, FunctionType):
            session.call(session.wrap_class_member(hook), [self, ConstantValue(name)], {})
        else:
            self.drop(session, name)

    def drop(self, session: Session, name: str) -> None:
        """object.__delattr__."""
        raw = session.class_lookup(self.cls, name)
        if isinstance(raw, property) and raw.fdel is not None:
            session.call(session.wrap_class_member(raw.fdel), [self], {})
            return
        if is_data_descriptor(raw):
            if not isinstance(raw, MemberDescriptorType):
                raise session.unsupported(f"a descriptor of {self.describe()} is deleted")
            self.bind(session, raw, name)  # raises AttributeError where it is not set
        elif self.own_attribute(session, name) is None:
            raise session.raised(AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'")
        if self.source is None:
            del self.attributes[name]
        else:
            session.effects.set_attribute(session, self, name, NULL)

    # -- operators by the class's own methods --------------------------------------------------------------------------

    def special(self, session: Session, name: str, *args: Value) -> Value | None:
        """Calls a special method of the class; None if it has none."""
        raw = session.class_lookup(self.cls, name)
        if raw is MISSING or raw is None:
            return None
        if (
            not isinstance(raw, (FunctionType, staticmethod, classmethod))
            and getattr(raw, "__objclass__", None) is object
        ):
            return None
        return session.call(self.bind(session, raw, name), args, {})

    def truth(self, session: Session) -> bool:
        for name in ("__bool__", "__len__"):
            answer = self.special(session, name)
            if answer is not None:
                return session.truth(answer)
        return True

    def length(self, session: Session) -> int:
        answer = self.special(session, "__len__")
        return super().length(session) if answer is None else session.known(answer)

    def get_item(self, session: Session, key: Value) -> Value:
        return self.special(session, "__getitem__", key) or super().get_item(session, key)

    def set_item(self, session: Session, key: Value, value: Value) -> None:
        if self.special(session, "__setitem__", key, value) is None:
            super().set_item(session, key, value)

    def delete_item(self, session: Session, key: Value) -> None:
        if self.special(session, "__delitem__", key) is None:
            super().delete_item(session, key)

    def contains(self, session: Session, item: Value) -> bool:
        answer = self.special(session, "__contains__", item)
        return super().contains(session, item) if answer is None else session.truth(answer)

    def iterate(self, session: Session) -> Value:
        return self.special(session, "__iter__") or super().iterate(session)

    def next(self, session: Session) -> Value | None:
        def step() -> Value | None:
            return self.special(session, "__next__") or super(ObjectValue, self).next(session)

        return session.until_stop(step)

    def callee(self, session: Session, args: Arguments, kwargs: Keywords) -> Callee | None:
        raw = session.class_lookup(self.cls, "__call__")
        if not isinstance(raw, FunctionType):
            return None
        return session.realize(session.wrap_class_member(raw)).callee(session, [self, *args], kwargs)

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        raw = session.class_lookup(self.cls, "__call__")
        if raw is MISSING:
            raise session.raised(TypeError, f"'{self.cls.__name__}' object is not callable")
        return session.call(bind_member(session, raw, self, self.cls, "__call__"), args, kwargs)

    def unary(self, session: Session, function: Callable[[Any], Any]) -> Value:
        answer = self.special(session, UNARY_METHODS[function]) if function in UNARY_METHODS else None
        return answer or super().unary(session, function)

    def binary(
        self, session: Session, function: Callable[[Any, Any], Any], other: Value, reflected: bool
    ) -> Value | None:
        if function in INPLACE_METHODS:
            name, plain = INPLACE_METHODS[function]
            answer = None if reflected else self.special(session, name, other)
            return answer or self.binary(session, plain, other, reflected)
        answer = self.special(session, BINARY_METHODS[function][reflected], other)
        if answer is None or (answer.is_constant() and answer.constant() is NotImplemented):
            return None
        return answer


class ExceptionValue(ObjectValue):
    """An exception, raised or not."""

    __slots__ = ("args", "cause")

    def __init__(self, cls: type, args: Arguments = ()) -> None:
        super().__init__(cls)
        self.args = list(args)
        self.cause: Value = NONE

    def own_attribute(self, session: Session, name: str) -> Value | None:
        if name == "args":
            return session.tuple_of_values(self.args)
        if name == "value" and issubclass(self.cls, StopIteration):
            return self.args[0] if self.args else NONE
        return {"__cause__": self.cause, "__context__": NONE, "__traceback__": NONE}.get(name) or super().own_attribute(
            session, name
        )

    def get_attribute(self, session: Session, name: str) -> Value:
        if name in ("args", "value", "__cause__", "__context__", "__traceback__"):
            return self.own_attribute(session, name) or super().get_attribute(session, name)
        if name == "with_traceback":
            return session.builtin(lambda _: None)
        return super().get_attribute(session, name)

    def message(self) -> str:
        """The exception as a traceback's last line shows it."""
        try:
            return f"{self.cls.__name__}: {', '.join(str(a.constant()) for a in self.args)}"
        except NotConstant:
            return self.cls.__name__


class ClassValue(Value):
    """A class. Its attributes are guarded one by one as they are looked up."""

    __slots__ = ("object",)

    def __init__(self, cls: type, source: Source | None = None) -> None:
        super().__init__(source)
        self.object = cls

    def python_type(self) -> type:
        return type(self.object)

    def describe(self) -> str:
        return f"class {self.object.__qualname__}"

    def constant(self) -> Any:
        return self.object

    def identity(self) -> Any:
        return self.object

    def get_attribute(self, session: Session, name: str) -> Value:
        if name in ("__name__", "__qualname__", "__module__", "__doc__"):
            return ConstantValue(getattr(self.object, name))
        if name in ("__mro__", "__bases__"):
            return session.wrap_constant(getattr(self.object, name))
        if name == "__class__":
            return session.wrap_constant(type(self.object))
        raw = session.class_lookup(self.object, name)
        if raw is MISSING:
            if find_missing(type(self.object), name):
                raise session.raised(AttributeError, f"type object '{self.object.__name__}' has no attribute '{name}'")
            raise session.unsupported(f"attribute {name!r} of the metaclass of {self.describe()}")
        return bind_member(session, raw, None, self.object, name)

    def binary(
        self, session: Session, function: Callable[[Any, Any], Any], other: Value, reflected: bool
    ) -> Value | None:
        return ConstantValue(self.object).binary(session, function, other, reflected) if other.is_constant() else None

    def get_item(self, session: Session, key: Value) -> Value:
        return session.wrap_constant(session.python(operator.getitem, self.object, key.constant()))

    def iterate(self, session: Session) -> Value:
        return session.wrap_constant(tuple(session.python(iter, self.object))).iterate(session)

    def length(self, session: Session) -> int:
        return session.python(len, self.object)

    def contains(self, session: Session, item: Value) -> bool:
        return session.python(operator.contains, self.object, item.constant())

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        return session.construct(self.object, args, kwargs)


class SuperValue(Value):
    """super(cls, instance)."""

    __slots__ = ("cls", "instance")

    def __init__(self, cls: type, instance: Value) -> None:
        super().__init__()
        self.cls, self.instance = cls, instance

    def python_type(self) -> type:
        return super

    def get_attribute(self, session: Session, name: str) -> Value:
        of_class = isinstance(self.instance, ClassValue)
        start = self.instance.constant() if of_class else self.instance.python_type()
        order = start.__mro__[start.__mro__.index(self.cls) + 1 :]
        for owner in order:
            if name in vars(owner):
                raw = session.class_lookup(owner, name)
                if isinstance(self.instance, ObjectValue):
                    return self.instance.bind(session, raw, name)
                return bind_member(session, raw, None if of_class else self.instance, start, name)
        raise session.raised(AttributeError, f"'super' object has no attribute '{name}'")


class ModuleObject(Value):
    """A Python module."""

    __slots__ = ("object",)

    def __init__(self, module: ModuleType, source: Source | None = None) -> None:
        super().__init__(source)
        self.object = module

    def python_type(self) -> type:
        return ModuleType

    def describe(self) -> str:
        return f"module {self.object.__name__}"

    def identity(self) -> Any:
        return self.object

    def get_attribute(self, session: Session, name: str) -> Value:
        return session.wrap_global(vars(self.object), name, self.object.__name__) or self._dynamic(session, name)

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
            raise session.raised(AttributeError, f"module '{self.object.__name__}' has no attribute '{name}'")
        if not session.is_trusted(self.object.__name__):
            session.guard(ConstSource(vars(self.object)), Kind.ABSENT_KEY, name)
        found = session.python(getattr, self.object, name)
        if session.is_trusted(self.object.__name__):
            return session.wrap(found, ConstSource(found))
        raise session.unsupported(f"attribute {name!r} of {self.describe()}, which is computed")


def _plain_base(cls: type) -> type:
    """The first class of the resolution order that is written in C."""
    return next(owner for owner in cls.__mro__ if not owner.__flags__ & HEAP_TYPE)


HEAP_TYPE = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: the class was made at run time."""


def instance_dict(object_: Any) -> dict[str, Any] | None:
    """The `__dict__` of an instance, None if it has none."""
    try:
        return object.__getattribute__(object_, "__dict__")
    except AttributeError:
        return None


def is_data_descriptor(raw: Any) -> bool:
    """Whether it comes before the instance `__dict__`."""
    return hasattr(type(raw), "__set__") or hasattr(type(raw), "__delete__")


def find_missing(cls: type, name: str) -> bool:
    """Whether no class along the resolution order has the name."""
    return all(name not in vars(owner) for owner in cls.__mro__)


def bind_member(session: Session, raw: Any, instance: Value | None, cls: type, name: str) -> Value:
    """What the raw attribute of a class gives when it is read through an instance, or through the class (`instance`
    None)."""
    if isinstance(raw, (FunctionType, Dispatcher)):
        function = session.wrap_class_member(raw)
        return function if instance is None else BoundMethod(function, instance)
    if isinstance(raw, staticmethod):
        return session.wrap_class_member(raw.__func__)
    if isinstance(raw, classmethod):
        return BoundMethod(session.wrap_class_member(raw.__func__), session.wrap_constant(cls))
    if isinstance(raw, ClassMethodDescriptorType):
        return session.builtin(getattr(cls, name))
    if isinstance(raw, property):
        if instance is None:
            return session.wrap_class_member(raw)
        if raw.fget is None:
            raise session.raised(AttributeError, f"property '{name}' has no getter")
        return session.call(session.wrap_class_member(raw.fget), [instance], {})
    if isinstance(raw, GetSetDescriptorType) or not hasattr(type(raw), "__get__"):
        if not hasattr(type(raw), "__get__"):
            return session.wrap_class_member(raw)
        raise session.unsupported(f"attribute {name!r} of a {cls.__name__}, a C descriptor")
    getter = session.class_lookup(type(raw), "__get__")
    if isinstance(getter, FunctionType):
        owner = session.wrap_constant(cls)
        return session.call(
            session.wrap_class_member(getter), [session.wrap_class_member(raw), instance or NONE, owner], {}
        )
    if instance is None:
        return session.wrap_class_member(raw)
    native = session.native_slot(raw)
    if native is not None:
        return BoundMethod(native, instance)
    raise session.unsupported(f"attribute {name!r} of a {cls.__name__}, a {type(raw).__name__}")
