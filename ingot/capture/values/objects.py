"""Instances of classes written in Python, and what the members of a class give for them."""

from __future__ import annotations

import functools
import operator
import sys
from collections.abc import Callable
from types import (
    ClassMethodDescriptorType,
    FunctionType,
    MemberDescriptorType,
    MethodDescriptorType,
    WrapperDescriptorType,
)
from typing import TYPE_CHECKING, Any

from ingot.capture.guards import MISSING
from ingot.capture.sources import AttrSource, Source, find_in_class
from ingot.capture.values.base import (
    CONTAINER,
    NO_DICT,
    NULL,
    PASSES_ON,
    Arguments,
    Callee,
    Keywords,
    NativeMethod,
    Operator,
    OutsideOrMade,
    Raised,
    UnaryOperator,
    Value,
    class_is_type,
    find_missing,
    full_name,
    implemented,
    is_c_class,
    type_name,
)
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.functions import BoundMethod
from ingot.capture.values.operator_methods import BINARY_METHODS, INPLACE_METHODS, UNARY_METHODS
from ingot.capture.values.wording import article
from ingot.native import Dispatcher
from ingot.torch_private import FunctionBase, FunctionSchema

if TYPE_CHECKING:
    from ingot.capture.session import Session


class IdentityKey:
    """An object that hashes by identity, as a key of a captured dict."""

    __slots__ = ("object", "value")
    is_number = False  # whether it is the id() of the object

    def __init__(self, object: Any, value: Value) -> None:
        self.object, self.value = object, value

    def __hash__(self) -> int:
        return object.__hash__(self.object)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and other.object is self.object

    def outside(self, session: Session) -> Any:
        """What a container that existed before the call holds in its place."""
        return self


class ContentKey(IdentityKey):
    """The key of a captured dict for an instance of a subclass that hashes and compares as the
    built-in class. `content` is the key of what it holds."""

    __slots__ = ("content",)

    def __init__(self, value: Value, content: Any) -> None:
        super().__init__(value.identity(), value)
        self.content = content

    def __hash__(self) -> int:
        return hash(self.content)

    def __eq__(self, other: object) -> bool:
        return self.content == (other.content if isinstance(other, ContentKey) else other)

    def outside(self, session: Session) -> Any:
        return self.content


class HashedKey(IdentityKey):
    """An object whose class says how it hashes and compares, as a key of a captured dict."""

    __slots__ = ("number", "session")
    answers: dict[tuple[int, int], tuple[Any, Any, bool]] | None = None

    def __init__(self, session: Session, value: Value, number: int) -> None:
        super().__init__(value.identity(), value)
        self.session, self.number = session, number

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        if HashedKey.answers is None:
            return self._equals(other)
        pair = id(self), id(other)
        if pair not in HashedKey.answers:
            HashedKey.answers[pair] = self, other, self._equals(other)
        return HashedKey.answers[pair][2]

    def _equals(self, other: object) -> bool:
        if isinstance(other, IdentityKey):
            return other.value is self.value or self.session.equal(self.value, other.value)
        return self.session.equal(self.value, self.session.wrap_key(other))


def asks_once(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a captured dict or set that looks a key up more than once. C does so once, and
    `__eq__` is the user's code."""

    @functools.wraps(method)
    def answer(*args: Any) -> Any:
        if HashedKey.answers is not None:
            return method(*args)
        HashedKey.answers = {}
        try:
            return method(*args)
        finally:
            HashedKey.answers = None

    PASSES_ON.add(answer.__code__)  # type: ignore[attr-defined]
    return answer


class ObjectValue(OutsideOrMade):
    """An instance of a class written in Python: from outside (`object`), or made during capture
    (`attributes` are those of its `__dict__`, `members` those of `__slots__`)."""

    __slots__ = ("attributes", "cls", "members")
    is_shared = True
    has_special_methods = True

    def __init__(self, cls: type, source: Source | None = None, object: Any = None) -> None:
        super().__init__(source, object)
        self.cls = cls
        self.attributes: dict[str, Value] = {}
        self.members: dict[str, Value] = {}

    def python_type(self) -> type:
        return self.cls

    def key(self, session: Session) -> Any:
        if find_in_class(self.cls, "__hash__") is object.__hash__:
            return session.identity_key(self)
        number = session.call_builtin(hash, self)
        return HashedKey(session, self, session.known(number))

    # -- attributes --------------------------------------------------------------------------------

    def own_attribute(self, session: Session, name: str) -> Value | None:
        """What the instance `__dict__` holds; None if it has no such name (guarded)."""
        if self.source is None:
            return self.attributes.get(name)
        namespace = instance_dict(self.object)
        if namespace is None:
            return None
        written = session.effects.written(namespace, name)
        if written is not None:
            if written is NULL:
                return None
            return written
        if name in namespace:
            return session.effects.lazy_value(namespace[name], AttrSource(self.source, name))
        session.guard_absent(self.source, name)
        return None

    def get_attribute(self, session: Session, name: str) -> Value:
        try:
            if session.looks_up_plainly(self.cls):
                value = self.plain_attribute(session, name)
            else:
                hook = session.class_lookup(self.cls, "__getattribute__")
                if not isinstance(hook, FunctionType):
                    raise session.unsupported(
                        "attribute", f"{self.describe()} defines __getattribute__"
                    )
                value = session.call_member(hook, self, ConstantValue(name))
        except Raised as raised:
            is_missing = raised.is_a(AttributeError)
            if not is_missing or session.class_lookup(self.cls, "__getattr__") is MISSING:
                raise
            value = None
        return value or self.missing_attribute(session, name)

    def plain_attribute(self, session: Session, name: str) -> Value | None:
        """What object.__getattribute__ finds; None where it finds nothing."""
        if name == "__class__" and class_is_type(self.cls):
            return session.wrap_constant(self.python_type())
        if name == "__dict__" and self.cls.__dictoffset__:
            return self.all_attributes(session)
        raw = session.class_lookup(self.cls, name)
        if is_data_descriptor(raw) and hasattr(type(raw), "__get__"):
            return self.bind(session, raw, name)
        own = self.own_attribute(session, name)
        if own is not None:
            return own
        if raw is MISSING:
            return None
        return self.bind(session, raw, name)

    def all_attributes(self, session: Session) -> Value:
        if self.source is None:
            return session.attributes_of(self)
        return session.instance_dict_of(self)

    def missing_attribute(self, session: Session, name: str) -> Value:
        """What `__getattr__` gives, or AttributeError."""
        hook = session.class_lookup(self.cls, "__getattr__")
        if hook is MISSING:
            raise self.attribute_error(session, name)
        return session.call_member(hook, self, ConstantValue(name))

    def attribute_error(self, session: Session, name: str) -> Raised:
        """The error for an attribute that it does not have."""
        return session.raised(
            AttributeError, f"'{type_name(self.python_type())}' object has no attribute '{name}'"
        )

    def bind(self, session: Session, raw: Any, name: str) -> Value:
        """What an attribute found on the class gives for this instance."""
        if isinstance(raw, MemberDescriptorType):
            return self._member(session, name)
        method = getattr(type(self), f"method_{name}", None)
        if method is not None and isinstance(raw, (MethodDescriptorType, WrapperDescriptorType)):
            return NativeMethod(self, name, method)
        return bind_member(session, raw, self, self.cls, name)

    def _member(self, session: Session, name: str) -> Value:
        """What a member of `__slots__` holds."""
        if self.source is None:
            value = self.members.get(name)
        else:
            written = session.effects.slots(self.object)
            if written is None:
                value = None
            else:
                value = written.written.get(name)
            if value is None:
                if session.guard_derived(has_member(name), self.object, self.source):
                    return session.wrap_slot(self.object, self.source, name)
        if value is None or value is NULL:
            named = type_name
            if sys.version_info >= (3, 13):
                named = full_name
            owner = named(self.cls)
            raise session.raised(AttributeError, f"'{owner}' object has no attribute '{name}'")
        return value

    def set_attribute(self, session: Session, name: str, value: Value) -> None:
        hook = session.class_lookup(self.cls, "__setattr__")
        if isinstance(hook, FunctionType):
            session.call_member(hook, self, ConstantValue(name), value)
        else:
            self.assign(session, name, value)

    def assign(self, session: Session, name: str, value: Value) -> None:
        """object.__setattr__."""
        raw = session.class_lookup(self.cls, name)
        if isinstance(raw, property):
            if raw.fset is None:
                kind = self.cls.__qualname__
                raise session.raised(
                    AttributeError, f"property {name!r} of {kind!r} object has no setter"
                )
            session.call_member(raw.fset, self, value)
        elif is_data_descriptor(raw) and not isinstance(raw, MemberDescriptorType):
            setter = session.class_lookup(type(raw), "__set__")
            if name == "__class__" and self.source is None and raw is vars(object)["__class__"]:
                self._become(session, value)
            elif isinstance(setter, FunctionType):
                session.call_member(setter, session.wrap_class_member(raw), self, value)
            else:
                raise session.unsupported("attribute", f"a descriptor of {self.describe()} is set")
        else:
            self.put(session, name, value)

    def _become(self, session: Session, value: Value) -> None:
        """`self.__class__ = value` of one made during capture."""
        cls = session.known(value)
        alike = isinstance(cls, type) and type(self) is ObjectValue and plain_base(cls) is object
        if not (alike and find_missing(cls, "__slots__") and find_missing(self.cls, "__slots__")):
            raise session.unsupported("attribute", f"the class of {self.describe()} is set")
        self.cls = cls

    def put(self, session: Session, name: str, value: Value) -> None:
        """object.__setattr__ of a name that no descriptor takes, or one of `__slots__`."""
        if self.source is not None:
            session.effects.set_attribute(session, self, name, value)
        elif isinstance(session.class_lookup(self.cls, name), MemberDescriptorType):
            self.members[name] = value
        elif not self.cls.__dictoffset__:
            what = f"object attribute {name!r} is read-only"
            if session.class_lookup(self.cls, name) is MISSING:
                what = f"object has no attribute {name!r}{NO_DICT}"
            raise session.raised(AttributeError, f"{type_name(self.python_type())!r} {what}")
        else:
            self.attributes[name] = value

    def delete_attribute(self, session: Session, name: str) -> None:
        hook = session.class_lookup(self.cls, "__delattr__")
        if isinstance(hook, FunctionType):
            session.call_member(hook, self, ConstantValue(name))
        else:
            self.drop(session, name)

    def drop(self, session: Session, name: str) -> None:
        """object.__delattr__."""
        raw = session.class_lookup(self.cls, name)
        if isinstance(raw, property):
            if raw.fdel is None:
                kind = self.cls.__qualname__
                raise session.raised(
                    AttributeError, f"property {name!r} of {kind!r} object has no deleter"
                )
            session.call_member(raw.fdel, self)
            return
        is_member = isinstance(raw, MemberDescriptorType)
        if is_data_descriptor(raw) and not is_member:
            remover = session.class_lookup(type(raw), "__delete__")
            if not isinstance(remover, FunctionType):
                raise session.unsupported(
                    "attribute", f"a descriptor of {self.describe()} is deleted"
                )
            session.call_member(remover, session.wrap_class_member(raw), self)
            return
        if is_member:
            try:
                self._member(session, name)
            except Raised:
                raise session.raised(AttributeError, name) from None
        elif self.own_attribute(session, name) is None:
            raise self.attribute_error(session, name)
        if self.source is None:
            del (self.members if is_member else self.attributes)[name]
        else:
            session.effects.set_attribute(session, self, name, NULL)

    def overrides(self, session: Session, *names: str) -> bool:
        """Whether the class defines one of these methods in Python."""
        return any(isinstance(session.class_lookup(self.cls, name), FunctionType) for name in names)

    # -- operators by the class's own methods ------------------------------------------------------

    def special(self, session: Session, name: str, *args: Value) -> Value | None:
        """Calls a special method of the class; None if it has none of its own."""
        raw = session.class_lookup(self.cls, name)
        if raw is MISSING or raw is None or getattr(raw, "__objclass__", None) is object:
            return None
        return session.realize(session.call(self.bind(session, raw, name), args, {}))

    def text(self, session: Session, make: Any) -> str | None:
        """What str() or repr() of a built-in base gives; None where there is none."""
        return None

    def truth(self, session: Session) -> bool:
        return session.truth(self.as_bool(session))

    def as_bool(self, session: Session) -> Value:
        """What bool() gives."""
        answer = self.special(session, "__bool__")
        if answer is not None:
            if answer.python_type() is not bool:
                kind = answer.python_type().__name__
                raise session.raised(TypeError, f"__bool__ should return bool, returned {kind}")
            return answer
        length = self._length(session)
        return ConstantValue(length is None or length > 0)

    def length(self, session: Session) -> int:
        answer = self._length(session)
        if answer is None:
            return super().length(session)
        return answer

    def _length(self, session: Session) -> int | None:
        answer = self.special(session, "__len__")
        if answer is None:
            return None
        length = int(session.index_sized(answer, OverflowError))
        if length < 0:
            raise session.raised(ValueError, "__len__() should return >= 0")
        return length

    def get_item(self, session: Session, key: Value) -> Value:
        return self.special(session, "__getitem__", key) or super().get_item(session, key)

    def set_item(self, session: Session, key: Value, value: Value) -> None:
        if self.special(session, "__setitem__", key, value) is None:
            # as for `del`
            if self.overrides(session, "__delitem__"):
                raise session.raised(AttributeError, "__setitem__")
            kind = type_name(self.python_type())
            raise session.raised(TypeError, f"'{kind}' object does not support item assignment")

    def delete_item(self, session: Session, key: Value) -> None:
        if self.special(session, "__delitem__", key) is not None:
            return
        # C has one slot for both
        if self.overrides(session, "__setitem__"):
            raise session.raised(AttributeError, "__delitem__")
        session.python(operator.delitem, session.refused(self), session.refused(key))

    def contains(self, session: Session, item: Value) -> bool:
        raw = session.class_lookup(self.cls, "__contains__")
        if raw is None:
            raise session.raised(
                TypeError, f"'{type_name(self.python_type())}' object is not a container"
            )
        if raw is not MISSING:
            return session.truth(session.call(self.bind(session, raw, "__contains__"), [item], {}))
        if not self._is_iterable(session):
            raise session.raised(
                TypeError,
                f"argument of type '{type_name(self.python_type())}' is not {CONTAINER}",
            )
        return super().contains(session, item)

    def _is_iterable(self, session: Session) -> bool:
        raw = session.class_lookup(self.cls, "__iter__")
        return raw is not None and (
            raw is not MISSING or session.class_lookup(self.cls, "__getitem__") is not MISSING
        )

    def iterate(self, session: Session) -> Value:
        if not self._is_iterable(session):
            return super().iterate(session)
        if session.class_lookup(self.cls, "__iter__") is MISSING:
            return session.iterate_by_index(self)
        iterator = self.special(session, "__iter__")
        cls = type(None) if iterator is None else iterator.python_type()
        if iterator is None or find_missing(cls, "__next__"):
            kind = cls.__name__
            raise session.raised(TypeError, f"iter() returned non-iterator of type '{kind}'")
        return session.realize(iterator)

    def next(self, session: Session) -> Value | None:
        return session.until_stop(lambda: self.step(session))

    def step(self, session: Session) -> Value:
        """What `__next__` gives, StopIteration included."""
        return self.special(session, "__next__") or super().next(session) or NONE

    def callee(self, session: Session, args: Arguments, kwargs: Keywords) -> Callee | None:
        raw = session.class_lookup(self.cls, "__call__")
        if not isinstance(raw, FunctionType):
            return None
        return session.realize(session.wrap_class_member(raw)).callee(
            session, [self, *args], kwargs
        )

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        raw = session.class_lookup(self.cls, "__call__")
        if raw is MISSING or raw is None:
            raise session.raised(
                TypeError, f"'{type_name(self.python_type())}' object is not callable"
            )
        return session.call(bind_member(session, raw, self, self.cls, "__call__"), args, kwargs)

    def unary(self, session: Session, function: UnaryOperator) -> Value:
        answer = self.special(session, UNARY_METHODS[function])
        if answer is None:
            kind = type_name(self.python_type())
            if function is abs:
                raise session.raised(TypeError, f"bad operand type for abs(): '{kind}'")
            symbol = {operator.neg: "-", operator.pos: "+", operator.invert: "~"}[function]
            raise session.raised(TypeError, f"bad operand type for unary {symbol}: '{kind}'")
        return answer

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        if function in INPLACE_METHODS:
            name, plain = INPLACE_METHODS[function]
            if not reflected:
                answer = implemented(self.special(session, name, other))
                if answer is not None:
                    return answer
            return self.binary(session, plain, other, reflected)
        if function is operator.ne and self._inherits_ne(session):
            answer = implemented(self.special(session, "__eq__", other))
            if answer is None:
                return None
            return ConstantValue(not session.truth(answer))
        return implemented(self.special(session, BINARY_METHODS[function][reflected], other))

    def _inherits_ne(self, session: Session) -> bool:
        """Whether `!=` is object's, the opposite of `==`."""
        return session.class_lookup(self.cls, "__ne__") is vars(object)["__ne__"]


class StandIn(ObjectValue):
    """An instance of a class of Ingot's own, written in Python, that passes for one of the C class
    it `replaces`."""

    __slots__ = ()

    def python_type(self) -> type:
        return self.cls.replaces  # type: ignore[attr-defined]

    def describe(self) -> str:
        return f"a {self.python_type().__name__}"

    def own_attribute(self, session: Session, name: str) -> Value | None:
        return self.attributes.get(name)

    def iterate(self, session: Session) -> Value:
        if find_missing(self.cls, "__next__"):
            return super().iterate(session)
        return self


def instance_of(cls: type) -> ObjectValue:
    """A new instance of a class written in Python."""
    if getattr(cls, "replaces", None) is not None:
        return StandIn(cls)
    return ObjectValue(cls)


def plain_base(cls: type) -> type:
    """The first class of the resolution order that is written in C."""
    return next(owner for owner in cls.__mro__ if is_c_class(owner))


def instance_dict(object_: Any) -> dict[str, Any] | None:
    """The `__dict__` of an instance, None if it has none."""
    try:
        return object.__getattribute__(object_, "__dict__")
    except AttributeError:
        return None


def is_data_descriptor(raw: Any) -> bool:
    """Whether it takes what is written, in place of the instance `__dict__`; if it has `__get__`,
    it also gives what is read."""
    cls = type(raw)
    return cls is not FunctionType and (hasattr(cls, "__set__") or hasattr(cls, "__delete__"))


def bind_member(session: Session, raw: Any, instance: Value | None, cls: type, name: str) -> Value:
    """What the raw attribute of a class gives when it is read through an instance, or through the
    class (`instance` None)."""
    if isinstance(raw, (FunctionType, Dispatcher)):
        function = session.wrap_class_member(raw)
        if instance is None:
            return function
        return BoundMethod(function, instance)
    if isinstance(raw, staticmethod):
        return session.wrap_class_member(raw.__func__)
    if isinstance(raw, classmethod):
        return BoundMethod(session.wrap_class_member(raw.__func__), session.wrap_constant(cls))
    if isinstance(raw, ClassMethodDescriptorType):
        method = session.native_slot(raw)
        if method is None:
            return session.builtin(getattr(cls, name))
        return BoundMethod(method, session.wrap_constant(cls))
    if isinstance(raw, property):
        if instance is None:
            return session.wrap_class_member(raw)
        if raw.fget is None:
            raise session.raised(
                AttributeError, f"property {name!r} of {cls.__qualname__!r} object has no getter"
            )
        return session.call_member(raw.fget, instance)
    if not hasattr(type(raw), "__get__"):
        return session.wrap_class_member(raw)
    if isinstance(raw, functools.cached_property) and isinstance(instance, ObjectValue):
        value = session.call_member(raw.func, instance)
        instance.put(session, raw.attrname or name, value)
        return value
    getter = session.class_lookup(type(raw), "__get__")
    if isinstance(getter, FunctionType):
        owner = session.wrap_constant(cls)
        return session.call_member(getter, session.wrap_class_member(raw), instance or NONE, owner)
    if instance is None:
        return session.wrap_class_member(raw)
    if isinstance(raw, functools._lru_cache_wrapper):
        return BoundMethod(session.wrap_class_member(raw), instance)
    if isinstance(raw, _INSTANCE_METHODS):
        raw = raw.__func__
    native = session.native_slot(raw)
    if native is not None:
        return BoundMethod(native, instance)
    return _of_c(session, raw, instance, cls, name)


def _of_c(session: Session, raw: Any, instance: Value | None, cls: type, name: str) -> Value:
    """What a descriptor gives that is written in C."""
    if raw is _NEEDS_INPUT_GRAD and instance is not None and instance.source is not None:
        return session.wrap_slot(instance.identity(), instance.source, name)
    kind = f"{article(cls.__name__)} {cls.__name__}"
    sentence = f"attribute {name!r} of {kind} is written in C"
    raise session.unsupported("attribute", sentence, of=cls)


_INSTANCE_METHODS: Any = tuple(
    filter(lambda cls: cls.__name__ == "instancemethod", map(type, vars(FunctionSchema).values()))
)
"""What makes methods of C functions that have none of their own, as pybind11's."""

_NEEDS_INPUT_GRAD = vars(FunctionBase).get("needs_input_grad", MISSING)
"""Of the context of an autograd.Function: a tuple that stays as it is."""


@functools.cache
def has_member(name: str) -> Callable[[Any], bool]:
    """Tells whether a member of `__slots__` is set."""

    def is_set(instance: Any) -> bool:
        try:
            object.__getattribute__(instance, name)
        except AttributeError:
            return False
        return True

    is_set.__name__ = f"has_{name}"
    return is_set
