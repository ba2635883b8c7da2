"""`__torch_function__` of subclasses and modes, asked before torch's functions are captured.

In: a call of a function of torch's. Out: what the classes of its arguments, and the modes that the
program has entered, make of it; they are inlined as other Python. Where nobody has a say, the call
is made of the plain tensors behind the instances.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import FunctionType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any

import torch
from torch import overrides

from ingot.capture.meanings import How, means
from ingot.capture.values.base import (
    Arguments,
    Keywords,
    KnownObject,
    LazyValue,
    Operator,
    UnaryOperator,
    Value,
    in_order,
    is_not_implemented,
    map_values,
)
from ingot.capture.values.constant import NONE, ConstantValue, as_value
from ingot.capture.values.containers import DictValue
from ingot.capture.values.default_devices import default_device
from ingot.capture.values.objects import ObjectValue, bind_member
from ingot.capture.values.operator_methods import BINARY_METHODS, INPLACE_METHODS, UNARY_METHODS
from ingot.capture.values.sequences import ListValue, SequenceValue, SliceValue, TupleValue
from ingot.capture.values.tensor import TensorValue
from ingot.capture.values.tensor_objects import (
    TensorObject,
    is_operand,
    is_subclass_object,
    shown_as,
)
from ingot.capture.values.wrapper_objects import WrapperObject, call_wrapped, is_asked_inside
from ingot.errors import EagerRaises
from ingot.torch_private import (
    DeviceContext,
    DisableTorchFunction,
    DisableTorchFunctionSubclass,
    disabled_torch_function_impl,
    pop_torch_function_stack,
    push_on_torch_function_stack,
)

if TYPE_CHECKING:
    from ingot.capture.session import Session

_NAME = "__torch_function__"
_DEFAULT = vars(torch.Tensor)[_NAME]
_CLASS = operator.attrgetter("cls")
_NOT_IMPLEMENTED = ConstantValue(NotImplemented)

ContentOf = Callable[[Value], Value]
"""Gives the tensor behind an instance of a subclass, and all other values as they are."""

Run = Callable[[ContentOf], Value]
"""Carries out a call of torch's, given what stands for its arguments."""


_NO_OBJECTS = frozenset({TensorValue, ConstantValue})


class Overrides:
    """Who is asked: the modes that the program has entered, the innermost last, and subclasses,
    unless they are off."""

    def __init__(self) -> None:
        self.modes: list[Value] = []
        self.subclasses_off = self.all_off = 0  # how many contexts say so
        self.entered: list[int] = []  # the numbers of the instructions that entered contexts

    @property
    def has_modes(self) -> bool:
        return bool(self.modes) and not self.all_off

    @property
    def asks_subclasses(self) -> bool:
        return not (self.subclasses_off or self.all_off)

    @contextmanager
    def off(self) -> Iterator[None]:
        """Inside, no subclass is asked."""
        self.subclasses_off += 1
        try:
            yield
        finally:
            self.subclasses_off -= 1


def is_overridden(session: Session, values: Iterable[Value]) -> bool:
    """Whether a call of torch's with these arguments is to go through `torch_call`."""
    if session.overrides.modes and session.overrides.has_modes:
        return True
    asks_others = session.overrides.asks_subclasses
    for value in values:
        if type(value) not in _NO_OBJECTS:
            if holds_object(value) or asks_others and _holds_other(value):
                return True
    return False


def _holds_other(value: Value) -> bool:
    """Whether it is, or a list or tuple holds, an instance of another class that is asked.

    A library's dictionary of tensors is one.
    """
    if type(value) is LazyValue:
        cls: Any = type(value.object)
        if cls in (list, tuple):
            return any(map(_asks_for_others, map(type, value.object)))
        return _asks_for_others(cls)
    if isinstance(value, SequenceValue):
        return any(map(_holds_other, value.items))
    return isinstance(value, ObjectValue) and _asks_for_others(value.cls)


def _asks_for_others(cls: Any) -> bool:
    """Whether a class is asked and no tensor's. A mode is asked in another way."""
    if issubclass(cls, (torch.Tensor, type, overrides.TorchFunctionMode)):
        return False
    return hasattr(cls, _NAME)


def holds_object(value: Value) -> bool:
    """Whether it is an instance of a subclass of torch.Tensor, or a list or tuple with one."""
    if type(value) is LazyValue:
        if type(value.object) in (list, tuple):
            return any(map(is_subclass_object, value.object))
        return is_subclass_object(value.object)
    if isinstance(value, SequenceValue):
        return any(map(holds_object, value.items))
    return isinstance(value, TensorObject)


def asks_python(session: Session, values: Iterable[Value]) -> bool:
    """Whether a call of torch's with these arguments asks a function of the user's."""
    state = session.overrides
    if state.has_modes:
        return True
    if not state.asks_subclasses:
        return False
    for value in _objects_in(session, values):
        if is_asked_inside(value.cls):
            continue
        if session.class_lookup(value.cls, _NAME) not in (_DEFAULT, disabled_torch_function_impl):
            return True
    return False


def _objects_in(session: Session, values: Iterable[Value]) -> Iterator[ObjectValue]:
    for value in values:
        if holds_object(value) or _holds_other(value):
            value = session.realize(value)
            if isinstance(value, ObjectValue):
                yield value
            elif isinstance(value, SequenceValue):
                yield from _objects_in(session, value.items)


def overrides_functions(session: Session, value: ObjectValue) -> bool:
    """Whether the class of an instance is asked for functions of torch's."""
    if not session.overrides.asks_subclasses or is_asked_inside(value.cls):
        return False
    return session.class_lookup(value.cls, _NAME) is not disabled_torch_function_impl


def _asked(session: Session, values: Iterable[Value]) -> list[ObjectValue]:
    """The arguments whose classes are asked, one of each: subclasses before their bases, else in
    their order."""
    asked: list[ObjectValue] = []
    for value in _objects_in(session, values):
        classes = list(map(_CLASS, asked))
        if value.cls in classes or not overrides_functions(session, value):
            continue
        place = len(asked)
        for k, cls in reversed(list(enumerate(classes))):
            if issubclass(value.cls, cls):
                place = k
        asked.insert(place, value)
    return asked


def torch_call(
    session: Session,
    function: Any,
    args: Arguments,
    kwargs: Keywords,
    run: Run | None = None,
    relevant: Iterable[Value] | None = None,
) -> Value:
    """A call of a function of torch's, by modes, by the classes of its `relevant` arguments, or by
    `run`."""
    if run is None:
        run = _Call(session, function, args, kwargs)
    request = _Request(function, args, kwargs, run)
    state = session.overrides
    if relevant is None:
        relevant = (*args, *kwargs.values())
    asked = _asked(session, relevant)
    if not asked and not state.has_modes:
        return _carried_out(session, request)
    request.types = session.wrap_constant(tuple(map(_CLASS, asked)))
    if state.has_modes:
        answer = _ask_mode(session, state, request)
        if not is_not_implemented(answer):
            return answer
    for value in asked:
        answer = _ask(session, value, request)
        if not is_not_implemented(answer):
            return answer
    name = getattr(function, "__name__", function)
    raise EagerRaises(f"{name} is implemented by none of its arguments", session.where)


class _Call:
    """A call of a function itself."""

    def __init__(self, session: Session, function: Any, args: Arguments, kwargs: Keywords) -> None:
        self.session, self.function, self.args, self.kwargs = session, function, args, kwargs

    def __call__(self, content_of: ContentOf) -> Value:
        args, kwargs = list(map(content_of, self.args)), map_values(content_of, self.kwargs)
        return self.session.call(function_value(self.session, self.function), args, kwargs)


class _Request:
    """What `__torch_function__` is called with, and what carries the call out."""

    def __init__(self, function: Any, args: Arguments, kwargs: Keywords, run: Run) -> None:
        self.function, self.args, self.kwargs, self.run = function, args, kwargs, run
        self.types: Value = TupleValue([], tuple)

    def values(self, session: Session) -> list[Value]:
        named: Value = NONE
        if self.kwargs or isinstance(self.function, FunctionType):
            named = session.dict_of_values(self.kwargs)
        function = function_value(session, self.function)
        return [function, self.types, session.tuple_of_values(self.args), named]


def _is_wrapper(value: ObjectValue) -> bool:
    return isinstance(value, WrapperObject)


def _is_getter(function: Any) -> bool:
    return getattr(function, "__name__", "") == "__get__"


def function_value(session: Session, function: Any) -> Value:
    """The value of a function of torch's, as `__torch_function__` is given it."""
    if _is_getter(function):
        return GetterValue(function)
    return session.builtin(function)


def _ask_mode(session: Session, state: Overrides, request: _Request) -> Value:
    """What the innermost mode makes of a call; it is off meanwhile."""
    mode = state.modes.pop()
    try:
        method = session.realize(mode).get_attribute(session, _NAME)
        return session.realize(session.call(method, request.values(session), {}))
    finally:
        state.modes.append(mode)


def _ask(session: Session, value: ObjectValue, request: _Request) -> Value:
    """What the class of an argument makes of a call."""
    raw = session.class_lookup(value.cls, _NAME)
    if raw is not _DEFAULT:
        method = bind_member(session, raw, value, value.cls, _NAME)
        return session.realize(session.call(method, request.values(session), {}))
    if not _are_bases(value.cls, request.types):
        return _NOT_IMPLEMENTED
    with session.overrides.off():
        result = _carried_out(session, request)
    return _wrapped(session, request.function, value.cls, result, request.args)


def _are_bases(cls: type, types: Value) -> bool:
    return all(map(functools.partial(issubclass, cls), types.constant()))


@means(_DEFAULT.__func__)
def _default(
    session: Session,
    cls: Value,
    func: Value,
    types: Value,
    args: Value | None = None,
    kwargs: Value = NONE,
) -> Value:
    """Tensor.__torch_function__."""
    known = session.known(cls)
    if not _are_bases(known, types):
        return _NOT_IMPLEMENTED
    values: list[Value] = []
    if args is not None:
        values = session.unpacked(args)
    named: Keywords = {}
    if kwargs.python_type() is not type(None):
        named = session.entries_of(kwargs)
    with session.overrides.off():
        result = session.realize(session.call(func, values, named))
    return _wrapped(session, getattr(func, "object", None), known, result, values)


def _wrapped(
    session: Session, function: Any, cls: type, result: Value, args: Iterable[Value]
) -> Value:
    """What `Tensor.__torch_function__` makes of a result: instances of the class in place of
    tensors."""
    if cls is torch.Tensor or function in overrides.get_default_nowrap_functions():
        return result
    known: set[TensorValue] = set()
    for value in args:
        value = session.realize(value)
        if isinstance(value, TensorObject):
            value = value.content(session)
        if isinstance(value, TensorValue):
            known.add(value)
    return _converted(session, result, cls, known)


def _converted(session: Session, value: Value, cls: type, known: set[TensorValue]) -> Value:
    if isinstance(value, TensorObject):
        if issubclass(value.cls, cls):
            return value
        return shown_as(session, value.content(session), cls)
    if isinstance(value, TensorValue):
        is_new = value.source is None and value not in known
        return shown_as(session, value, cls, is_new)
    return _rebuilt(value, lambda item: _converted(session, session.realize(item), cls, known))


def _rebuilt(value: Value, convert: Callable[[Value], Value]) -> Value:
    """A list or tuple of what its items are converted to; other values as they are."""
    if isinstance(value, TupleValue):
        return TupleValue(map(convert, value.items), value.cls)
    if isinstance(value, ListValue):
        return ListValue(map(convert, value.items), list)
    return value


def _carried_out(session: Session, request: _Request) -> Value:
    """A call of the tensors behind the instances. It gives an instance where it gives the tensor
    behind it."""
    known: dict[TensorValue, TensorObject] = {}

    def content_of(value: Value) -> Value:
        value = session.realize(value)
        if isinstance(value, TensorObject):
            content = value.content(session)
            known[content] = value
            return content
        if isinstance(value, SliceValue):
            return SliceValue(*map(content_of, value.bounds))
        if isinstance(value, DictValue) and value.source is None:
            return DictValue(map_values(content_of, value.entries).items(), value.cls)
        if isinstance(value, SequenceValue) and holds_object(value):
            return _rebuilt(value, content_of)
        return value

    def again(value: Value) -> Value:
        if isinstance(value, TensorValue):
            return known.get(value, value)
        return _rebuilt(value, again)

    values = (*request.args, *request.kwargs.values())
    if any(map(_is_wrapper, _objects_in(session, values))) and not _is_getter(request.function):
        args = list(map(content_of, request.args))
        named = map_values(content_of, request.kwargs)
        result = call_wrapped(session, request.function, args, named)
    else:
        result = session.realize(request.run(content_of))
    if not known:
        return result
    return again(result)


@means(overrides.handle_torch_function, how=How.UNREALIZED)
def _handle_torch_function(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    function, relevant, *others = args
    function = session.realize(function)
    api = getattr(function, "object", None)
    if api is None:
        raise session.unsupported("tensor-subclass", f"a call of {function.describe()}")
    return torch_call(session, api, others, kwargs, None, session.unpacked(relevant))


# -- methods, attributes and operators of tensors --------------------------------------------------


def torch_method(
    session: Session, owner: Value, name: str, args: Arguments, kwargs: Keywords
) -> Value:
    """A call of a method that torch gives a tensor, or an instance of a subclass."""
    method, values = getattr(torch.Tensor, name), (owner, *args)
    if isinstance(method, FunctionType) and asks_python(session, (*values, *kwargs.values())):
        return session.call(session.wrap_class_member(method), values, kwargs)
    if isinstance(method, WrapperDescriptorType):
        method = public_method(name, len(args))

    def run(content_of: ContentOf) -> Value:
        tensor, *others = map(content_of, values)
        if name in _BY_VALUE:
            return as_value(_BY_VALUE[name](tensor, session, *others))
        bound = tensor.get_attribute(session, name)
        return session.call(bound, others, map_values(content_of, kwargs))

    return torch_call(session, method, values, kwargs, run)


_BY_VALUE: dict[str, Callable[..., Any]] = {
    "__getitem__": TensorValue.get_item,
    "__setitem__": TensorValue.set_item,
    "__bool__": TensorValue.as_bool,
    "__len__": TensorValue.length,
}
"""What carries out special methods."""


def torch_attribute(session: Session, owner: Value, name: str) -> Value:
    """An attribute that torch gives a tensor, or an instance of a subclass."""

    def run(_: ContentOf) -> Value:
        if isinstance(owner, TensorObject):
            return owner.content_attribute(session, name)
        return owner.get_attribute(session, name)

    return torch_call(session, getattr(torch.Tensor, name).__get__, (owner,), {}, run)


def torch_unary(session: Session, function: UnaryOperator, owner: Value) -> Value:
    """An operator of a tensor, or of an instance of a subclass."""

    def run(content_of: ContentOf) -> Value:
        return content_of(owner).unary(session, function)

    return torch_call(session, public_method(UNARY_METHODS[function], 0), (owner,), {}, run)


def torch_binary(
    session: Session, function: Operator, owner: Value, other: Value, reflected: bool
) -> Value | None:
    """The same of a binary one; None where a tensor has no say."""
    if not is_operand(other):
        return None
    pair = in_order(owner, other, reflected)
    if function in INPLACE_METHODS and not reflected:
        name = INPLACE_METHODS[function][0]
    else:
        _, plain = INPLACE_METHODS.get(function, ("", function))
        of_left = reflected and isinstance(other, (TensorValue, TensorObject))
        name = BINARY_METHODS[plain][reflected and not of_left]
        if not of_left:
            pair = owner, other

    def run(content_of: ContentOf) -> Value:
        left, right = map(content_of, in_order(owner, other, reflected))
        return session.binary(function, left, right)

    return torch_call(session, public_method(name), pair, {}, run)


class GetterValue(KnownObject):
    """The `__get__` of an attribute that all tensors have."""

    __slots__ = ()

    def get_attribute(self, session: Session, name: str) -> Value:
        if name in ("__name__", "__qualname__", "__self__"):
            return session.wrap_result(getattr, self.object, name)
        return super().get_attribute(session, name)

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        name = self.object.__self__.__name__
        return session.realize(args[0]).get_attribute(session, name)


class _Asked(torch.Tensor):
    """Tells what torch would call `__torch_function__` with."""

    function: Any = None

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore
        _Asked.function = function
        return NotImplemented


@functools.cache
def public_method(name: str, count: int = 1) -> Any:
    """The function that `__torch_function__` hears of when torch calls a special method with so
    many arguments."""
    _Asked.function = getattr(torch.Tensor, name)
    tensor = torch.ones(2, 2, device="cpu")
    with suppress(TypeError):
        getattr(tensor.as_subclass(_Asked), name)(*[tensor] * count)
    return _Asked.function


# -- contexts --------------------------------------------------------------------------------------


class OverridesOff(Value):
    """What `torch._C.DisableTorchFunctionSubclass()` and its kin give."""

    __slots__ = ("cls",)

    def __init__(self, cls: type) -> None:
        super().__init__()
        self.cls = cls

    def python_type(self) -> type:
        return self.cls

    def _count(self, session: Session, change: int) -> None:
        state = session.overrides
        if self.cls is DisableTorchFunction:
            state.all_off += change
        else:
            state.subclasses_off += change

    def method___enter__(self, session: Session) -> Value:
        self._count(session, 1)
        session.overrides.entered.append(session.step_of_outermost)
        return self

    def method___exit__(self, session: Session, *raised: Value) -> Value:
        self._count(session, -1)
        session.overrides.entered.pop()
        return NONE


@means(DisableTorchFunctionSubclass, DisableTorchFunction, how=How.INSTANCE)
def _make_off(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    return OverridesOff(cls)


@means(push_on_torch_function_stack)
def _push_mode(session: Session, mode: Value) -> Value:
    if issubclass(mode.python_type(), DeviceContext) or default_device(session) is not None:
        raise session.unsupported("mode", f"{mode.describe()} is entered")
    state = session.overrides
    state.modes.append(mode)
    state.entered.append(session.step_of_outermost)
    return NONE


@means(pop_torch_function_stack)
def _pop_mode(session: Session) -> Value:
    state = session.overrides
    if not state.modes:
        raise session.unsupported("mode", "a torch function mode of the caller's is left")
    state.entered.pop()
    return state.modes.pop()


def refuse_inside(session: Session) -> None:
    """Breaks the graph before the first context was entered, where it would end inside."""
    for step in session.overrides.entered:
        raise session.unsupported(
            "mode", "a torch function mode, which a graph would end in, is entered", step=step
        )
