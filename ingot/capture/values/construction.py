"""What calling a class gives: the built-in classes by rule, the others by running `__new__` and
`__init__`."""

from __future__ import annotations

import builtins
import collections
import operator
from collections.abc import Iterator
from types import FunctionType, SimpleNamespace
from typing import TYPE_CHECKING, Any

from torch import nn

from ingot.capture.guards import MISSING
from ingot.capture.meanings import How, meaning_of, meaning_of_construction, means, stated
from ingot.capture.values.base import (
    NULL,
    Arguments,
    Keywords,
    Raised,
    Rule,
    Value,
    find_missing,
    type_name,
)
from ingot.capture.values.builtins import call_as, call_pure, special_first
from ingot.capture.values.classes import ClassValue, SuperValue
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.containers import DictValue
from ingot.capture.values.exceptions import ExceptionValue, fields_of
from ingot.capture.values.functions import CellValue
from ingot.capture.values.mappings import DictObject
from ingot.capture.values.module import ModuleValue
from ingot.capture.values.objects import ObjectValue, StandIn, instance_of, plain_base
from ingot.capture.values.sequences import (
    ListValue,
    RangeValue,
    SliceValue,
    SymbolicRange,
    TupleValue,
    is_named_tuple,
    is_struct_sequence,
)
from ingot.capture.values.sets import SetValue
from ingot.capture.values.subclasses import BuiltinObject, NamespaceObject
from ingot.capture.values.tensor import SymIntValue
from ingot.capture.values.wording import public_name

if TYPE_CHECKING:
    from ingot.capture.session import Session


def construct(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    """What calling a class gives."""
    meaning = meaning_of(cls)
    if meaning.how not in (How.CLASS, How.INSTANCE):
        return call_as(session, meaning, cls, args, kwargs)
    if type(cls) is not type:
        meta = session.class_lookup(type(cls), "__call__")
        if isinstance(meta, FunctionType):
            return session.call(session.wrap_class_member(meta), [ClassValue(cls), *args], kwargs)
        if isinstance(meta, type):  # a TypedDict is called as dict
            return construct(session, meta, args, kwargs)
    return construct_plainly(session, cls, args, kwargs)


@means(type.__call__)
def call_class(session: Session, cls: Value, *args: Value, **kwargs: Value) -> Value:
    return construct_plainly(session, cls.constant(), args, kwargs)


def construct_plainly(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    """type.__call__: `__new__`, and `__init__` if that gave an instance of the class."""
    if session.class_lookup(cls, "__del__") is not MISSING:
        what = f"an instance of {public_name(cls)} is made, which has a __del__"
        raise session.unsupported("finalizer", what, of=cls)
    meaning = meaning_of_construction(cls)
    if meaning is not None:
        instance: Value = meaning.rule(session, cls, args, kwargs)
        return instance
    raw = session.class_lookup(cls, "__new__")
    maker = raw
    if isinstance(raw, staticmethod):
        maker = raw.__func__
    if isinstance(maker, FunctionType):
        instance = session.realize(
            session.call(session.wrap_class_member(maker), [ClassValue(cls), *args], kwargs)
        )
    else:
        instance = session.new(getattr(maker, "__self__", object), [ClassValue(cls), *args], kwargs)
    if isinstance(instance, StandIn):
        kind = instance.cls
    else:
        kind = instance.python_type()
    if cls in kind.__mro__:
        _initialize(session, kind, instance, args, kwargs)
    return instance


def _initialize(
    session: Session, cls: type, instance: Value, args: Arguments, kwargs: Keywords
) -> None:
    init = session.class_lookup(cls, "__init__")
    if init is vars(object)["__init__"]:
        if (args or kwargs) and session.class_lookup(cls, "__new__") is vars(object)["__new__"]:
            raise session.raised(TypeError, f"{cls.__name__}() takes no arguments")
        return
    if not isinstance(instance, ObjectValue):
        raise session.unsupported(
            "construction", f"an instance of {cls.__qualname__} is made, which has an __init__"
        )
    result = session.realize(session.call(instance.bind(session, init, "__init__"), args, kwargs))
    if result.identity() is not None:
        kind = type_name(result.python_type())
        raise session.raised(TypeError, f"__init__() should return None, not '{kind}'")


def new(session: Session, base: type, args: Arguments, kwargs: Keywords) -> Value:
    """What `base.__new__(cls, *args)` gives, for a class written in C."""
    if not args:
        raise session.raised(TypeError, f"{base.__name__}.__new__(): not enough arguments")
    cls, args = session.realize(args[0]).constant(), args[1:]
    native = plain_base(cls)
    if native is object and base is object:
        return _new_object(session, cls, args, kwargs)
    if base is object or not issubclass(cls, base):
        session.python(base.__new__, cls)
        raise session.unsupported(
            "construction-rule", f"{base.__name__}.__new__({cls.__qualname__})"
        )
    if issubclass(native, BaseException):
        if kwargs and not isinstance(session.class_lookup(cls, "__init__"), FunctionType):
            return _exception_with_keywords(session, cls, native, args, kwargs)
        return _new_exception(session, cls, native, args)
    for owner in native.__mro__:
        meaning = stated(owner.__new__)
        if meaning is not None:
            instance: Value = meaning.rule(session, cls, args, kwargs)
            return instance
    raise session.unsupported(
        "construction",
        f"an instance of {public_name(cls)} is made, a class written in C",
        of=cls,
    )


def _new_object(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    if args or kwargs:
        if session.class_lookup(cls, "__new__") is not vars(object)["__new__"]:
            message = "object.__new__() takes exactly one argument (the type to instantiate)"
            raise session.raised(TypeError, message)
        if session.class_lookup(cls, "__init__") is vars(object)["__init__"]:
            raise session.raised(TypeError, f"{cls.__name__}() takes no arguments")
    if getattr(cls, "__abstractmethods__", None):
        session.python(object.__new__, cls)  # TypeError
    if issubclass(cls, nn.Module):
        return ModuleValue(cls)
    return instance_of(cls)


def _exception_with_keywords(
    session: Session, cls: type, native: Any, args: Arguments, kwargs: Keywords
) -> Value:
    """ImportError and its kin keep what they are given by name as attributes; the others refuse
    it."""
    try:
        native(**dict.fromkeys(kwargs))
    except TypeError as error:
        text = str(error).replace(native.__name__, cls.__name__, 1)
        raise session.raised(TypeError, text) from None
    return ExceptionValue(cls, args)


def _new_exception(session: Session, cls: type, native: type, args: Arguments) -> Value:
    if native is OSError and len(args) > 1:
        known = session.realize(args[0])
        if cls is OSError and known.is_constant():
            cls = type(OSError(known.constant(), ""))
    elif issubclass(native, BaseExceptionGroup):
        raise session.unsupported("construction", "an exception group is made")
    exception = ExceptionValue(cls, args)
    if issubclass(cls, OSError):
        exception.take(session, [] if _is_made_by_init(session, cls) else args)
    return exception


def _exception_init(init: Any) -> Rule:
    has_fields = bool(fields_of(init.__objclass__))

    def rule(session: Session, exception: Value, *args: Value, **kwargs: Value) -> Value:
        assert isinstance(exception, ExceptionValue)
        cls = exception.cls
        if not has_fields:
            exception.set_base_field(session, "args", session.tuple_of_values(args))
            if not (exception.initialized and fields_of(plain_base(cls))):
                exception.field_args = list(args)
        elif not issubclass(cls, OSError) or _is_made_by_init(session, cls):
            if exception.initialized:
                raise session.unsupported(
                    "construction-rule",
                    f"{init.__objclass__.__name__}.__init__() of {exception.describe()}, again",
                )
            exception.members.update(kwargs)  # ImportError(name=...) and its kin
            exception.take(session, args)
        exception.initialized = exception.initialized or has_fields
        return NONE

    return rule


def _is_made_by_init(session: Session, cls: type) -> bool:
    """Whether it is the `__init__` of OSError, and not its `__new__`, that reads the arguments."""
    init, new = vars(OSError)["__init__"], vars(OSError)["__new__"]
    return (
        session.class_lookup(cls, "__init__") is not init
        and session.class_lookup(cls, "__new__") is new
    )


# a set, since OSError has several names
_CLASSES = {cls for cls in vars(builtins).values() if isinstance(cls, type)}
for _cls in _CLASSES:
    if issubclass(_cls, BaseException) and "__init__" in vars(_cls):
        means(vars(_cls)["__init__"])(_exception_init(vars(_cls)["__init__"]))


# -- instances of subclasses of built-in classes ---------------------------------------------------


def _plain_content(base: type) -> Any:
    """The content of an immutable one: what the base itself gives for the arguments."""

    def make(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
        return BuiltinObject(cls, session.realize(construct(session, base, args, kwargs)))

    return make


@means(tuple.__new__, how=How.NEW)
def _new_tuple(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    is_struct = is_struct_sequence(cls)
    if args and is_struct:
        items = session.items_of(args[0], "constructor requires a sequence")
    elif args:
        items = session.unpacked(args[0])
    else:
        items = []
    if is_named_tuple(cls) or cls.__name__ == "Size":
        return TupleValue(items, cls)
    if is_struct:
        session.python(cls, [None] * len(items))  # TypeError for too few or too many
        if len(items) != cls.n_sequence_fields or len(args) > 1:  # type: ignore[attr-defined]
            raise session.unsupported("construction", f"an instance of {cls.__qualname__} is made")
        return TupleValue(items, cls)
    return BuiltinObject(cls, TupleValue(items, tuple))


@means(list.__new__, how=How.NEW)
def _new_list(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    return BuiltinObject(cls, ListValue([], list))


@means(set.__new__, how=How.NEW)
def _new_set(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    return BuiltinObject(cls, SetValue([], set))


@means(dict.__new__, how=How.NEW)
def _new_dict(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    return DictObject(cls)


@means(SimpleNamespace.__new__, how=How.NEW)
def _new_namespace(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    return NamespaceObject(cls)


for _base in (int, float, str, bytes, complex, frozenset):
    means(_base.__new__, how=How.NEW)(_plain_content(_base))


# -- the built-in classes --------------------------------------------------------------------------


def class_is_made(session: Session) -> Exception:
    """What a call makes anew each time cannot be relied on: what follows would be compiled again at
    each call."""
    return session.unsupported("class-definition", "a class is defined")


@means(bool)
def bool_(session: Session, value: Value = NONE, /) -> Value:
    return session.as_bool(value)


@means(operator.truth)
def truth(session: Session, value: Value) -> Value:
    return session.as_bool(value)


def _number(cls: type, *methods: str) -> Rule:
    def convert(session: Session, *args: Value, **kwargs: Value) -> Value:
        if len(args) == 1 and not kwargs:
            (value,) = args
            number = value.convert(session, cls)
            if number is not None:
                return number
            is_text = cls is complex and issubclass(value.python_type(), str)
            if isinstance(value, ObjectValue) and not is_text:
                for name in methods:
                    answer = value.special(session, name)
                    if answer is not None:
                        return _as_number(session, cls, value, name, answer)
        return session.wrap_constant(session.really(cls, args, kwargs))

    return convert


def _as_number(session: Session, cls: type, owner: Value, method: str, answer: Value) -> Value:
    """The answer of `__int__` or a kin of it as a plain number; raises TypeError if it is none."""
    number = session.known(answer)
    if type(number) is cls and method == f"__{cls.__name__}__":
        return ConstantValue(number)
    if isinstance(number, (int, float, complex)) and type(number) not in (int, float, complex):
        raise session.unsupported(
            "construction-rule", f"{method} gives a {type(number).__name__}, no {cls.__name__}"
        )
    model = type(owner.python_type().__name__, (), {method: lambda self: number})
    return session.wrap_result(cls, model())


means(int)(_number(int, "__int__", "__index__", "__trunc__"))
means(float)(_number(float, "__float__", "__index__"))
means(complex)(_number(complex, "__complex__", "__float__", "__index__"))


@means(str)
def str_(session: Session, object: Value | None = None, *rest: Value, **named: Value) -> Value:
    if rest or named:  # bytes as text
        if object is None:
            args = rest
        else:
            args = (object, *rest)
        return session.wrap_constant(session.really(str, args, named))
    if object is None:
        return ConstantValue("")
    return ConstantValue(session.text_of(object, str))


@means(bytes)
def bytes_(session: Session, *args: Value, **kwargs: Value) -> Value:
    answer = None
    if args:
        answer = special_first(session, args[0], "__bytes__")
    if answer is not None:
        return answer
    if len(args) == 1 and not kwargs and isinstance(args[0], ObjectValue):
        content = _bytes_of_object(session, args[0])
        if content is not None:
            return ConstantValue(content)
    if len(args) == 1 and not args[0].is_constant():
        if not isinstance(args[0], ObjectValue) and hasattr(args[0].python_type(), "__index__"):
            return call_pure(session, bytes, (ConstantValue(session.integer(args[0])),), kwargs)
        if not session.is_iterable(args[0]):
            kind = type_name(args[0].python_type())
            raise session.raised(TypeError, f"cannot convert '{kind}' object to bytes")
        if len(args) == 1 and not kwargs and not issubclass(args[0].python_type(), str):
            return ConstantValue(bytes(_bytes_read(session, args[0])))
        args = (session.list_of(args[0]), *args[1:])
    return call_pure(session, bytes, args, kwargs)


def _bytes_of_object(session: Session, value: ObjectValue) -> bytes | None:
    """bytes() of a number, text or bytes; None for what is read as an iterable."""
    if issubclass(value.cls, str):
        raise session.raised(TypeError, "string argument without an encoding")
    if not find_missing(value.cls, "__index__"):
        try:
            return session.python(bytes, session.index_sized(value, OverflowError))
        except Raised as raised:
            if not raised.is_a(TypeError):
                raise
    if issubclass(value.cls, bytes):
        return bytes(session.known(value))
    return None


def _bytes_read(session: Session, value: Value) -> Iterator[int]:
    for element in session.elements(value, sized=True):
        number = session.integer(element)
        if not 0 <= number < 256:
            raise session.raised(ValueError, "bytes must be in range(0, 256)")
        yield number


def _singleton(value: Any) -> Rule:
    return lambda session: ConstantValue(value)


for _value in (None, ..., NotImplemented):
    means(type(_value))(_singleton(_value))


@means(range)
def range_(session: Session, *bounds: Value) -> Value:
    bounds = tuple(map(session.realize, bounds))
    if len(bounds) == 3 and _is_one(bounds[2]):
        bounds = bounds[:2]
    if len(bounds) in (1, 2) and SymIntValue in map(type, bounds):
        start, stop = (ConstantValue(0), *bounds)[-2:]
        if _is_known_before(start) and _is_known_before(stop):
            return SymbolicRange(session, start, stop)
    return RangeValue(session.python(range, *map(session.integer, bounds)))


def _is_one(step: Value) -> bool:
    return step.is_constant() and type(step.constant()) is int and step.constant() == 1


def _is_known_before(bound: Value) -> bool:
    """Whether it is an int that the data do not decide."""
    if isinstance(bound, SymIntValue):
        return bound.in_graph
    return bound.is_constant() and type(bound.constant()) is int


@means(slice)
def slice_(session: Session, *bounds: Value) -> Value:
    if not 1 <= len(bounds) <= 3:
        session.python(slice, *[None] * len(bounds))
    if len(bounds) == 1:
        bounds = (NONE, *bounds)
    start, stop, step = (*bounds, NONE)[:3]
    return SliceValue(start, stop, step)


NOTHING = TupleValue([], tuple)


@means(list)
def list_(session: Session, iterable: Value | None = None, /) -> Value:
    return session.list_of(iterable or NOTHING)


@means(tuple)
def tuple_(session: Session, iterable: Value | None = None, /) -> Value:
    if isinstance(iterable, TupleValue) and iterable.cls is tuple:
        return iterable
    return session.tuple_of(iterable or NOTHING)


@means(set)
def set_(session: Session, iterable: Value | None = None, /) -> Value:
    return session.set_of(iterable or NOTHING)


@means(frozenset)
def frozenset_(session: Session, iterable: Value | None = None, /) -> Value:
    if isinstance(iterable, SetValue) and iterable.cls is frozenset:
        return iterable
    return session.set_of(iterable or NOTHING, frozenset)


def _dict_class(cls: type) -> Rule:
    def make(session: Session, items: Value | None = None, /, **named: Value) -> Value:
        result = DictValue((), cls)
        result.method_update(session, items, **named)
        return result

    return make


means(dict)(_dict_class(dict))
means(collections.OrderedDict)(_dict_class(collections.OrderedDict))


@means(collections.defaultdict)
def defaultdict_(
    session: Session, factory: Value = NONE, items: Value | None = None, /, **named: Value
) -> Value:
    if factory.python_type() is not type(None) and find_missing(factory.python_type(), "__call__"):
        raise session.raised(TypeError, "first argument must be callable or None")
    result = _dict_class(collections.defaultdict)(session, items, **named)
    assert isinstance(result, DictValue)
    result.factory = factory
    return result


@means(super)
def super_(session: Session, cls: Value = NULL, instance: Value = NULL) -> Value:
    if cls is NULL:
        cls, instance = _surrounding(session)
    if instance is NULL:
        raise session.unsupported("construction-rule", "super() of a class alone")
    proxy = SuperValue(cls.constant(), session.realize(instance))
    if isinstance(proxy.cls, type) and proxy.cls not in proxy.start()[0].__mro__:
        said = session.said_class(proxy.instance)
        if said is not None and proxy.cls in said.__mro__:
            proxy.said = said
        else:
            proxy.said = None
    proxy.check(session)
    return proxy


def _surrounding(session: Session) -> tuple[Value, Value]:
    """The class whose body the running function is in, and its first argument."""
    frame = session.frames[-1]
    if "__class__" not in frame.program.names:
        raise session.raised(RuntimeError, "super(): __class__ cell not found")
    cell = frame.slots[frame.program.names.index("__class__")]
    if not frame.program.parameters:
        raise session.raised(RuntimeError, "super(): no arguments")
    first = frame.slots[0]
    assert isinstance(cell, CellValue)
    if isinstance(first, CellValue):
        first = first.content
    if first is NULL:
        raise session.raised(RuntimeError, "super(): arg[0] deleted")
    return session.realize(cell.content), first
