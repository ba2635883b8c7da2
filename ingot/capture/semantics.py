"""What Python's operators and protocols mean on values: calls, truth, identity, equality,
iteration, indexing, arithmetic."""

from __future__ import annotations

import copy
import dataclasses
import operator
import reprlib
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from itertools import chain
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from ingot.capture.guards import Kind
from ingot.capture.sources import ConstSource
from ingot.capture.values.base import (
    NULL,
    Arguments,
    Keywords,
    NotConstant,
    Raised,
    Value,
    class_is_type,
    find_missing,
    find_owner,
    map_values,
    type_name,
)
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.containers import DictValue, DictView
from ingot.capture.values.exceptions import ExceptionValue
from ingot.capture.values.functions import FunctionValue
from ingot.capture.values.held import EnumValue
from ingot.capture.values.identity import IdentityNumber, tell_apart
from ingot.capture.values.mappings import DictObject
from ingot.capture.values.objects import (
    BINARY_METHODS,
    INPLACE_METHODS,
    IdentityKey,
    ObjectValue,
    StandIn,
    plain_base,
)
from ingot.capture.values.sequences import (
    ConstantIterator,
    ListValue,
    SequenceValue,
    SliceValue,
    TupleValue,
)
from ingot.capture.values.sets import SetValue
from ingot.capture.values.signatures import EMPTY
from ingot.capture.values.subclasses import OF_SEQUENCES, SEQUENCES, BuiltinObject
from ingot.capture.values.tensor import TensorValue
from ingot.capture.values.tensor_objects import TensorObject
from ingot.capture.values.wording import operator_text
from ingot.errors import Unsupported, without_frames

if TYPE_CHECKING:
    from ingot.capture.session import Session

_PLAIN_OF_INPLACE = {inplace: plain for inplace, (_, plain) in INPLACE_METHODS.items()}
_UNKNOWN = object()
_COMPARISONS = frozenset(
    {operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne}
)
_NOT_BEFORE_TENSORS = frozenset({TensorValue, ConstantValue})
"""Operands whose rule is never asked before that of a tensor on their left."""

_COPIED_ITERATORS = frozenset(
    {type(iter(c)) for c in ("", "\u0100", b"", range(0), range(1 << 64))}
)

_repr_guard: Any = reprlib.recursive_repr()
_RECURSION_GUARDS = frozenset(
    guard(lambda self: "").__code__  # that of dataclasses is their own before Python 3.13
    for guard in (getattr(dataclasses, "_recursive_repr", _repr_guard), _repr_guard)
)
"""What wraps a `__repr__` to notice that an object holds itself; here too deep a nesting is noticed
elsewhere."""


class MethodKey(IdentityKey):
    """A bound method as a key: function and instance."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(self.object)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MethodKey) and other.object == self.object


_SHOWN_DICTS = frozenset({dict, OrderedDict, defaultdict})
_SHOWN_BASES = frozenset({int, float, complex, str, bytes, tuple, list, dict, set, frozenset})
_ASKED_FOR_TEXT = ("__int__", "__index__", "__float__", "__getitem__", "__trunc__", "__bytes__")
"""Methods that the % of a text may ask."""


class _Shown:
    """Prints as a value does."""

    _session: Session
    _value: Value

    def __str__(self) -> str:
        return self._session.text_of(self._value, str)

    def __repr__(self) -> str:
        return self._session.text_of(self._value, repr)

    def __format__(self, spec: str) -> str:
        return self._session.format_of(self._value, spec)


def _stand_in_for(function: Value) -> Callable[..., Any]:
    """A function in place of one that only capture can call."""

    def call(*args: Any, **kwargs: Any) -> Any:
        raise NotConstant(function)

    return call


_ALLOWED = frozenset(
    """
    __init__ __new__ __init_subclass__ __class_getitem__ __module__ __dict__ __weakref__ __slots__
    __doc__ __annotations__ __qualname__ __orig_bases__ __hash__
    """.split()
)


def _named_as(cls: type, bases: tuple[type, ...], space: dict[str, Any]) -> type:
    """A class that errors call as they call `cls`."""
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return type(cls.__name__, bases, {**names, **space})


def _special(names: Iterable[str]) -> set[str]:
    """Those that name special methods whose call needs the value."""
    return {name for name in names if name.startswith("__") and name.endswith("__")} - _ALLOWED


def _refusing(value: ObjectValue) -> dict[str, Any]:
    """The special methods of a class for a stand-in of its instances: whoever calls one of them
    needs the value."""
    owners = value.cls.__mro__[: value.cls.__mro__.index(plain_base(value.cls))]
    methods = {}
    for name in _special(chain.from_iterable(map(vars, owners))):
        if callable(getattr(value.cls, name, None)):
            methods[name] = _stand_in_for(value)
    return methods


def _unknown_instance(value: Value) -> Any:
    """An object in place of an instance of a C class of which nothing is known: whoever asks it
    anything needs it."""
    cls = value.python_type()
    names = _special(dir(cls)) - set(dir(object))
    return _named_as(cls, (), dict.fromkeys(names, _stand_in_for(value)))()


_SCALARS = frozenset({int, float, complex, str, bytes})


class Semantics:
    """Mixed into Session."""

    # -- conversions -------------------------------------------------------------------------------

    def realize_all(self: Session, values: Keywords) -> Keywords:  # type: ignore[misc]
        return map_values(self.realize, values)

    def tuple_of_values(self, values: Arguments) -> Value:
        return TupleValue(values, tuple)

    def dict_of_values(self, values: Keywords) -> Value:
        return DictValue(values.items(), dict)

    def method_key(self, method: Any) -> IdentityKey:
        """The key of a dict for a bound method: equal where function and instance are the same."""
        function, instance = self.realize(method.function), self.realize(method.instance)  # type: ignore[attr-defined]
        return MethodKey((self.identity_key(function), self.identity_key(instance)), method)

    def identity_key(self, value: Value) -> IdentityKey:
        """The key of a dict for a value that hashes by identity."""
        session: Any = self
        tell_apart(session, value)
        return IdentityKey(value.identity(), value)

    def known(self: Session, value: Value) -> Any:  # type: ignore[misc]
        """The Python object of a value that must be known now; symbolic integers are
        specialized."""
        value = self.realize(value)
        try:
            return value.python_object(self)
        except NotConstant as unknown:
            raise self._not_known(unknown.args[0]) from None

    def _not_known(self: Session, value: Value) -> Unsupported:  # type: ignore[misc]
        if value.python_type() in (FunctionType, MethodType):
            reason = f"a function written in C may call {value.describe()}"
            return self.unsupported("c-function", reason)
        reason = f"the value of {value.describe()} is needed, which only a call knows"
        return self.unsupported("unknown-value", reason)

    def deep(self: Session, value: Value) -> Value:  # type: ignore[misc]
        """The value with all that it holds realized, to be given to an operation of the graph."""
        if type(value) is TensorValue or type(value) is ConstantValue:
            return value
        value = self.realize(value)
        size = value.as_size(self)
        if size is not None:
            return size
        if isinstance(value, SequenceValue):
            value.items[:] = map(self.deep, value.items)
        elif isinstance(value, SliceValue):
            value = SliceValue(*map(self.deep, value.bounds))
        elif isinstance(value, DictValue):
            value.entries.update({key: self.deep(item) for key, item in value.entries.items()})
        return value

    def integer(self: Session, value: Value) -> int:  # type: ignore[misc]
        """operator.index(), which asks nothing of what is an int."""
        value = self.realize(value)
        if isinstance(value, BuiltinObject) and issubclass(value.cls, int):
            return self.known(value.content)
        if isinstance(value, ObjectValue):
            answer = value.special(self, "__index__")
            if answer is not None and not issubclass(answer.python_type(), int):
                kind = type_name(answer.python_type())
                raise self.raised(TypeError, f"__index__ returned non-int (type {kind})")
            if answer is not None:
                return self.integer(answer)
        elif issubclass(value.python_type(), int) or value.is_symbolic:
            return self.known(value)
        if find_missing(value.python_type(), "__index__"):
            kind = type_name(value.python_type())
            raise self.raised(TypeError, f"'{kind}' object cannot be interpreted as an integer")
        return self.known(value)

    def index_sized(self: Session, value: Value, error: type) -> int:  # type: ignore[misc]
        """The number of an instance as a length or position, or an error where it is too large."""
        number = self.integer(value)
        if not -sys.maxsize - 1 <= number <= sys.maxsize:
            kind = type_name(self.realize(value).python_type())
            raise self.raised(error, f"cannot fit '{kind}' into an index-sized integer")
        return number

    def position(self: Session, value: Value) -> int:  # type: ignore[misc]
        """Where a method is to begin or end its search."""
        if find_missing(self.realize(value).python_type(), "__index__"):
            message = "slice indices must be integers or have an __index__ method"
            raise self.raised(TypeError, message)
        return self.integer(value)

    def index(self: Session, key: Value) -> Any:  # type: ignore[misc]
        """A position in a list or tuple."""
        if isinstance(key, ObjectValue) and not find_missing(key.cls, "__index__"):
            return self.index_sized(key, IndexError)
        if isinstance(key, (ConstantValue, SliceValue)):
            return self.known(key)
        if isinstance(key, BuiltinObject) or find_missing(key.python_type(), "__index__"):
            return self.stand_in(key)
        return self.known(key)

    def function_text(self: Session, function: Value) -> str:  # type: ignore[misc]
        """What an error of a call calls the function."""
        try:
            function = self.realize(function)
            module = self.known(function.get_attribute(self, "__module__"))
            name = self.known(function.get_attribute(self, "__qualname__"))
        except Raised:
            return self.text_of(function, str)
        if module in (None, "builtins"):
            return f"{name}()"
        return f"{module}.{name}()"

    # -- text --------------------------------------------------------------------------------------

    def text_of(self: Session, value: Value, make: Callable[[Any], str]) -> str:  # type: ignore[misc]
        """str(), repr(), ascii() or format() of a value."""
        value = self.realize(value)
        if make is format:
            return self.format_of(value, "")
        if make is ascii:
            return ascii(self.shown(value))
        if isinstance(value, ObjectValue):
            return self._text_of_object(value, make)
        if isinstance(value, EnumValue):
            own = value.special(self, f"__{make.__name__}__")
            if own is not None:
                return self.known(own)
        return self.python(make, self.textual(value))

    def _text_of_object(self: Session, value: ObjectValue, make: Callable[[Any], str]) -> str:  # type: ignore[misc]
        name = "__repr__" if make is repr else "__str__"
        raw = self.class_lookup(value.cls, name)
        if raw is vars(object)["__str__"]:
            return self._text_of_object(value, repr)
        if not isinstance(raw, FunctionType):
            text = value.text(self, make)
            if text is not None:
                return text
        if raw is vars(object)["__repr__"]:
            raise self.unsupported("text", f"the text of {value.describe()} has its address")
        inner = getattr(raw, "__wrapped__", None)
        if inner is not None and getattr(raw, "__code__", None) in _RECURSION_GUARDS:
            raw = inner
        answer = self.realize(self.call(value.bind(self, raw, name), [], {}))
        cls = answer.python_type()
        if cls is str:
            return self.known(answer)
        if issubclass(cls, str):
            raise self.unsupported(
                "text", f"{name} of {value.describe()} gives an instance of a subclass of str"
            )
        raise self.raised(TypeError, f"{name} returned non-string (type {type_name(cls)})")

    def format_of(self: Session, value: Value, spec: str) -> str:  # type: ignore[misc]
        """format() of a value."""
        value = self.realize(value)
        if isinstance(value, BuiltinObject):
            if not isinstance(self.class_lookup(value.cls, "__format__"), FunctionType):
                return self.format_of(value.content, spec) if spec else self.text_of(value, str)
        if isinstance(value, EnumValue):
            own = value.special(self, "__format__", ConstantValue(spec))
            own = own or value.special(self, "__str__")
            if own is not None:
                return self.python(format, self.known(own), "" if value.has_format() else spec)
        if not isinstance(value, ObjectValue):
            return self.python(format, self.textual(value), spec)
        raw = self.class_lookup(value.cls, "__format__")
        if raw is vars(object)["__format__"]:
            if spec:
                name = type_name(value.python_type())
                message = f"unsupported format string passed to {name}.__format__"
                raise self.raised(TypeError, message)
            return self.text_of(value, str)
        method = value.bind(self, raw, "__format__")
        text = self.realize(self.call(method, [ConstantValue(spec)], {}))
        if not issubclass(text.python_type(), str):
            kind = type_name(text.python_type())
            raise self.raised(TypeError, f"__format__ must return a str, not {kind}")
        return self.known(text)

    def shown(self: Session, value: Value) -> Any:  # type: ignore[misc]
        """An object that prints as the value would, and gives the number that the value gives."""
        return self._shown_object(value) if isinstance(value, ObjectValue) else self.textual(value)

    def _shown_object(self: Session, value: ObjectValue) -> Any:  # type: ignore[misc]
        """An instance of a class of the same name and the same built-in base."""
        base, content = plain_base(value.cls), getattr(value, "content", None)
        if isinstance(value, DictObject):
            content = value.item_dict
        space: dict[str, Any] = {"_session": self, "_value": value}
        if content is None or base not in _SHOWN_BASES:
            return type(value.cls.__name__, (_Shown,), space)()
        for name in _ASKED_FOR_TEXT:
            if value.overrides(self, name):
                space[name] = self._shown_answer(value, name)
        return type(value.cls.__name__, (_Shown, base), space)(self.textual(content))

    def _shown_answer(self: Session, value: ObjectValue, name: str) -> Callable[..., Any]:  # type: ignore[misc]
        """A method of an instance as a plain function."""

        def answer(_: Any, *args: Any) -> Any:
            return self.shown(value.special(self, name, *map(self.wrap_constant, args)) or NONE)

        return answer

    def textual(self: Session, value: Value) -> Any:  # type: ignore[misc]
        """A Python object of the value's own type, where it is a built-in one, that prints as the
        value would."""
        value = self.realize(value)
        if isinstance(value, (ListValue, TupleValue)):
            return value._build([self.shown(self.realize(item)) for item in value.items])
        if isinstance(value, DictValue) and value.cls in _SHOWN_DICTS:
            entries = {}
            for key, item in value.entries.items():
                shown_key = self.shown(self.realize(self.wrap_key(key)))
                entries[shown_key] = self.shown(self.realize(item))
            if value.cls is defaultdict:
                return defaultdict(self.known(value.factory), entries)
            return entries if value.cls is dict else value.cls(entries)  # type: ignore[call-overload]
        if isinstance(value, SetValue):
            return value.cls(map(self.shown, value.entries.values()))
        if isinstance(value, DictView):
            return getattr(self.textual(value.owner), value.kind)()
        return self.shown(value) if isinstance(value, ObjectValue) else self.known(value)

    def text_operand(self: Session, value: Value) -> Any:  # type: ignore[misc]
        """What stands right of the % of a text: of a tuple, the items are shown."""
        value = self.realize(value)
        if isinstance(value, BuiltinObject) and isinstance(value.content, TupleValue):
            value = value.content
        return self.textual(value)

    def constant_iterator(self: Session, iterator: Any) -> Value:  # type: ignore[misc]
        """The value of an iterator over a constant, which nobody else has."""
        start = copy.copy(iterator) if type(iterator) in _COPIED_ITERATORS else None
        elements = TupleValue(map(self.wrap_constant, iterator), tuple)
        return ConstantIterator(elements, type(iterator), start)

    # -- protocols ---------------------------------------------------------------------------------

    def call(self: Session, callable_: Value, args: Arguments, kwargs: Keywords) -> Value:  # type: ignore[misc]
        return self.realize(callable_).call(self, args, kwargs)

    def truth(self: Session, value: Value) -> bool:  # type: ignore[misc]
        return self.realize(value).truth(self)

    def as_bool(self: Session, value: Value) -> Value:  # type: ignore[misc]
        """bool() of a value: that of a tensor is a number that the running program knows."""
        return self.realize(value).as_bool(self)

    def negation(self: Session, value: Value) -> Value:  # type: ignore[misc]
        """`not value`."""
        return self.as_bool(value).negation(self)

    def iterate(self: Session, value: Value) -> Value:  # type: ignore[misc]
        return self.realize(value).iterate(self)

    def is_iterable(self: Session, value: Value) -> bool:  # type: ignore[misc]
        """Whether iter() takes it."""
        cls = self.realize(value).python_type()
        if hasattr(cls, "__iter__"):
            return cls.__iter__ is not None
        return hasattr(cls, "__getitem__")

    def get_item(self: Session, owner: Value, key: Value) -> Value:  # type: ignore[misc]
        return self.realize(owner).get_item(self, self.realize(key))

    def contains(self: Session, container: Value, item: Value) -> bool:  # type: ignore[misc]
        container, item = self.realize(container), self.realize(item)
        try:
            return container.contains(self, item)
        except NotConstant:
            return Value.contains(container, self, item)

    def says_its_class(self: Session, value: Value) -> bool:  # type: ignore[misc]
        """Whether `__class__` of a value is not simply type() of it: its class has a rule of its
        own for it."""
        if not class_is_type(value.python_type()):
            return True
        return isinstance(value, ObjectValue) and not self.looks_up_plainly(value.cls)

    def said_class(self: Session, value: Value) -> Any:  # type: ignore[misc]
        """The class that `__class__` of a value gives, where that is another than type() of it.
        None where it is no class, or where there is no such attribute."""
        if not self.says_its_class(value):
            return None
        answer = self.optional_attribute(value, "__class__")
        if answer is None or not issubclass(self.realize(answer).python_type(), type):
            return None
        cls = self.realize(answer).constant()
        return None if cls is value.python_type() else cls

    def same(self: Session, a: Value, b: Value) -> bool:  # type: ignore[misc]
        """`a is b`. Between two outside objects the answer is guarded; the nature of either is
        guarded already."""
        a, b = self.realize(a), self.realize(b)
        # of which there are two, whoever made them
        if a is not b and bool is a.python_type() is b.python_type():
            return self.truth(a) is self.truth(b)
        # small integers are one object each
        if a is not b and int is a.python_type() is b.python_type():
            a, b = self._specialized(a), self._specialized(b)
        a.refuse_identity(self, b)
        b.refuse_identity(self, a)
        answer = a.identity() is b.identity()
        classes = (ConstantValue, type(NULL))
        if a.source is None or b.source is None or isinstance(a, classes) or isinstance(b, classes):
            return answer
        if a.source is not b.source and a.python_type() is b.python_type():
            if not (isinstance(a.source, ConstSource) and isinstance(b.source, ConstSource)):
                self.guard(a.source, Kind.SAME if answer else Kind.DISTINCT, b.source)
        return answer

    def _specialized(self: Session, value: Value) -> Value:  # type: ignore[misc]
        if value.is_symbolic:
            return ConstantValue(self.known(value))
        return value

    def equal(self: Session, a: Value, b: Value) -> bool:  # type: ignore[misc]
        """`a is b or a == b`, as containers compare their elements."""
        if a is b:
            return True
        return self.truth(self.binary(operator.eq, a, b))

    def binary(  # type: ignore[misc]
        self: Session, function: Callable[[Any, Any], Any], left: Value, right: Value
    ) -> Value:
        """The result of a binary operator or comparison, by the left operand's rule, then by the
        right one's."""
        left, right = self.realize(left), self.realize(right)
        if type(left) is TensorValue and type(right) in _NOT_BEFORE_TENSORS:
            of_tensor = left.binary(self, function, right, False)
            if of_tensor is not None:
                return of_tensor
        for value, other in ((left, right), (right, left)):
            if value.has_two_types:
                return value.of_either(self, function, other, value is right)
        plain = _PLAIN_OF_INPLACE.get(function, function)
        is_first = right.python_type() is not left.python_type()
        is_first = is_first and self.comes_first(function, right, left)
        answer = None
        if is_first and self._has_in_place(function, left):
            answer = left.binary(self, function, right, False)
        if is_first and answer is None:
            answer = right.binary(self, plain, left, True)
        if answer is None:
            answer = left.binary(self, function, right, False)
        if answer is None and plain is not function:
            answer = left.binary(self, plain, right, False)
        if answer is None and not is_first and self._is_reflected(plain, left, right):
            answer = right.binary(self, plain, left, True)
        if answer is not None:
            return answer
        if plain in (operator.eq, operator.ne):
            return ConstantValue(self.same(left, right) == (plain is operator.eq))
        return self._no_operator(function, left, right)

    @staticmethod
    def _has_in_place(function: Callable[[Any, Any], Any], left: Value) -> bool:
        """Whether an in-place operator has a method that is asked before the right operand.

        `+=` and `*=` of a list are asked after it."""
        if function not in INPLACE_METHODS:
            return False
        name, plain = INPLACE_METHODS[function]
        owner = find_owner(left.python_type(), name)
        return owner is not None and not (plain in OF_SEQUENCES and owner in SEQUENCES)

    def comes_first(self: Session, function: Any, right: Value, left: Value) -> bool:  # type: ignore[misc]
        """Whether the right operand's rule is asked first.

        That is a tensor or number of the graph beside a Python object, or an instance of a subclass
        that has the method anew."""
        if right.decides_operators:
            return not left.decides_operators and not left.has_special_methods
        if left.decides_operators and isinstance(right, TensorObject):
            return not isinstance(left, TensorValue)
        if isinstance(right, DictValue) and function is operator.or_:
            return issubclass(right.cls, left.python_type())
        if not right.has_special_methods:
            return False
        plain = _PLAIN_OF_INPLACE.get(function, function)
        if not self._adds_as_numbers(plain, left) and self._adds_as_numbers(plain, right):
            return True
        if not issubclass(right.python_type(), left.python_type()):
            return False
        if plain is operator.mod and isinstance(right, BuiltinObject):
            return right.overrides(self, *BINARY_METHODS[plain])
        if plain in _COMPARISONS or not left.has_special_methods:
            return True
        name = BINARY_METHODS[plain][1]
        lookup = self.class_lookup
        return lookup(left.python_type(), name) is not lookup(right.python_type(), name)

    def _adds_as_numbers(self: Session, function: Any, value: Value) -> bool:  # type: ignore[misc]
        """Whether an operator is one of numbers to a value.

        A list and its kin are only joined and repeated, after the other operand was asked."""
        if function not in OF_SEQUENCES or plain_base(value.python_type()) not in SEQUENCES:
            return True
        return isinstance(value, BuiltinObject) and value.overrides(self, *BINARY_METHODS[function])

    def _is_reflected(self, function: Any, left: Value, right: Value) -> bool:
        """Whether the right operand is asked at all: that of the same class is asked to compare, no
        more."""
        if not left.has_special_methods or left.python_type() is not right.python_type():
            return True
        return function in _COMPARISONS

    def _no_operator(  # type: ignore[misc]
        self: Session, function: Callable[[Any, Any], Any], left: Value, right: Value
    ) -> Value:
        """Raises what Python raises where neither operand knows the operator."""
        stand_ins, name = [self._stand_in(v, False) for v in (left, right)], function.__name__
        if _UNKNOWN in stand_ins:
            name = name.rstrip("_")
        else:
            self.python(function, *stand_ins)
        raise self.unsupported(
            "operator", f"{operator_text(function)} of {left.describe()} and {right.describe()}"
        )

    def _stand_in(self: Session, value: Value, refusing: bool) -> Any:  # type: ignore[misc]
        """An object that a C function refuses as it does the value's. `refusing`: what has special
        methods of its own raises NotConstant in them, as what they do isn't known; else it has
        none, as the operators that fail."""
        cls = value.python_type()
        if isinstance(value, ConstantValue):
            return value.object
        if cls in EMPTY:
            return EMPTY[cls]()
        if isinstance(value, BuiltinObject):
            base = plain_base(cls)
            content = self._content_of(value)
            if refusing and not isinstance(value.content, ConstantValue) and base in _SCALARS:
                if not value.content.is_symbolic:
                    return _UNKNOWN
                content = value.content.specialize(self)  # C code reads the number itself
            space = _refusing(value) if refusing else {}
            return _named_as(cls, (base,), space)(content)
        if isinstance(value, ObjectValue) and not isinstance(value, StandIn):
            if plain_base(cls) is object:
                return _named_as(cls, (), _refusing(value) if refusing else {})()
        return _stand_in_for(value) if isinstance(value, FunctionValue) else _UNKNOWN

    def _content_of(self: Session, value: BuiltinObject) -> Any:  # type: ignore[misc]
        """What an instance holds, nothing, or zero, where that is not known."""
        try:
            return self.known(value.content)
        except Unsupported:
            return plain_base(value.python_type())()

    def really(  # type: ignore[misc]
        self: Session, function: Callable[..., Any], args: Arguments, kwargs: Keywords
    ) -> Any:
        """What a pure function gives for real. Where an argument is not known, it is only called to
        see whether it refuses what is like it."""
        values, unknown = [*args, *kwargs.values()], None
        known: list[Any] = []
        for value in values:
            value = self.realize(value)
            try:
                known.append(self._known_argument(value))
            except Unsupported as reason:
                known.append(self.stand_in(value))
                unknown = without_frames(reason)
        try:
            named = dict(zip(kwargs, known[len(args) :]))
            result = self.python(function, *known[: len(args)], **named)
        except NotConstant as asked:
            raise unknown or self._not_known(asked.args[0]) from None
        if unknown is not None:
            raise unknown
        return result

    def _known_argument(self: Session, value: Value) -> Any:  # type: ignore[misc]
        if not isinstance(value, BuiltinObject):
            return self.known(value)
        self.known(value.content)
        return self.stand_in(value)

    def refused(self: Session, value: Value) -> Any:  # type: ignore[misc]
        """An object that a C function refuses as it does the value's, for one that it does refuse.

        What an instance of a C class holds does not matter then, nor what else it can do."""
        stand_in = self._stand_in(value, False)
        return _named_as(value.python_type(), (), {})() if stand_in is _UNKNOWN else stand_in

    def stand_in(self: Session, value: Value) -> Any:  # type: ignore[misc]
        """The Python object of a value, or one that a C function refuses as it does the value's."""
        value = self.realize(value)
        try:
            return value.specialize(self)
        except NotConstant:
            stand_in = self._stand_in(value, True)
        return _unknown_instance(value) if stand_in is _UNKNOWN else stand_in

    def identity_number(self, value: Value) -> Value:
        """id()."""
        return IdentityNumber(value)

    def stopped_inside(self, stop: Value) -> ExceptionValue:
        """The error in place of a StopIteration that a generator raises."""
        session: Any = self
        error = ExceptionValue(RuntimeError, [ConstantValue("generator raised StopIteration")])
        error.set_base_field(session, "__cause__", stop)
        error.set_base_field(session, "__context__", stop)
        error.was_raised = True
        return error

    def until_stop(self, step: Callable[[], Value | None]) -> Value | None:
        """What a `__next__` gives; None where it raises StopIteration."""
        try:
            return step()
        except Raised as raised:
            if raised.is_a(StopIteration):
                return None
            raise
