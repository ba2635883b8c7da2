"""Python functions, their closures, bound methods, partials, generators."""

from __future__ import annotations

import functools
from types import CellType, CodeType, FunctionType, GeneratorType, MethodType
from typing import TYPE_CHECKING, Any

from ingot.capture.guards import Kind
from ingot.capture.sources import AttrSource, CellSource, ConstSource, FunctionFieldSource, ItemSource, Source
from ingot.capture.values.base import NULL, Arguments, Callee, Keywords, Value
from ingot.capture.values.constant import NONE, ConstantValue

if TYPE_CHECKING:
    from ingot.capture.interpreter import InterpreterFrame
    from ingot.capture.session import Session


class CellValue(Value):
    """A closure cell. One from outside has a source, and `object` is the cell itself."""

    __slots__ = ("content", "object")

    def __init__(self, content: Value = NULL, source: Source | None = None, object: CellType | None = None) -> None:
        super().__init__(source)
        self.content, self.object = content, object

    def python_type(self) -> type:
        return CellType


class FunctionValue(Value):
    """A Python function, which is inlined when called: from outside (`object` is the function), or made during
    capture."""

    __slots__ = ("annotations", "attributes", "cells", "code", "defaults", "keyword_defaults", "namespace", "object")

    def __init__(self, code: CodeType, namespace: dict[str, Any]) -> None:
        super().__init__()
        self.code, self.namespace = code, namespace
        self.cells: tuple[CellValue, ...] = ()
        self.defaults: list[Value] = []
        self.keyword_defaults: dict[str, Value] = {}
        self.annotations: Value = NONE
        self.attributes: dict[str, Value] = {}
        self.object: FunctionType | None = None

    @classmethod
    def outside(cls, session: Session, function: FunctionType, source: Source) -> FunctionValue:
        """A function that existed before the call. Its code is guarded now, defaults and cells when they are used."""
        made = cls(function.__code__, function.__globals__)
        made.object, made.source = function, source
        trusted = session.is_trusted(function.__module__)
        if trusted:  # what it is made of stays as it is; whether it is still this function is another matter
            session.guard(source, Kind.IDENTITY, function)
        else:
            session.guard(FunctionFieldSource(source, "__code__"), Kind.IDENTITY, function.__code__)
            if not isinstance(source, ConstSource):  # a function's globals are fixed, another function's may differ
                session.guard(FunctionFieldSource(source, "__globals__"), Kind.IDENTITY, function.__globals__)

            if function.__defaults__:  # which item is whose default depends on how many there are
                session.guard(FunctionFieldSource(source, "__defaults__"), Kind.LENGTH, len(function.__defaults__))

        def field_item(field: Any, key: Any, value: Any) -> Value:
            return session.wrap(
                value, ConstSource(value) if trusted else ItemSource(FunctionFieldSource(source, field), key)
            )

        made.defaults = [field_item("__defaults__", i, v) for i, v in enumerate(function.__defaults__ or ())]
        made.keyword_defaults = {
            k: field_item("__kwdefaults__", k, v) for k, v in (function.__kwdefaults__ or {}).items()
        }
        made.cells = tuple(
            session.outside_cell(cell, CellSource(source, i, function.__code__.co_freevars[i]))
            for i, cell in enumerate(function.__closure__ or ())
        )
        return made

    def python_type(self) -> type:
        return FunctionType

    def identity(self) -> Any:
        return self if self.object is None else self.object

    def key(self, session: Session) -> Any:
        return session.identity_key(self)

    def describe(self) -> str:
        return f"function {self.code.co_qualname}"

    def get_attribute(self, session: Session, name: str) -> Value:
        if name in self.attributes:
            return self.attributes[name]
        if name in ("__name__", "__qualname__"):
            return ConstantValue(getattr(self.object or self.code, name if self.object else f"co_{name.strip('_')}"))
        if name == "__code__":
            return ConstantValue(self.code)
        if name == "__get__":
            return super().get_attribute(session, name)
        if self.object is not None and name in ("__doc__", "__module__"):
            return ConstantValue(getattr(self.object, name))
        own = None
        if self.object is not None and self.source is not None and not hasattr(FunctionType, name):
            own = session.effects.own(session, self, self.object, name)
        if own is not None:
            return own
        return super().get_attribute(session, name)

    def set_attribute(self, session: Session, name: str, value: Value) -> None:
        if self.object is None:
            self.attributes[name] = value
        elif hasattr(FunctionType, name):
            super().set_attribute(session, name, value)
        else:
            session.effects.set_own(session, self, self.object, name, value)

    def delete_attribute(self, session: Session, name: str) -> None:
        if self.object is None and self.attributes.pop(name, None) is not None:
            return
        if self.object is None or hasattr(FunctionType, name):
            super().delete_attribute(session, name)
        elif session.effects.own(session, self, self.object, name) is None:
            raise session.raised(AttributeError, f"'function' object has no attribute '{name}'")
        else:
            session.effects.set_own(session, self, self.object, name, NULL)

    def method___get__(self, session: Session, instance: Value, owner: Value = NONE) -> Value:
        return BoundMethod(self, instance)

    def callee(self, session: Session, args: Arguments, kwargs: Keywords) -> Callee | None:
        if session.special_function(self.object) is None:
            return self, args, kwargs
        forwarded = session.forwarded(self.object, args, kwargs)
        return None if forwarded is None else forwarded[0].callee(session, *forwarded[1:])

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        special = session.special_function(self.object)
        return special(session, args, kwargs) if special else session.inline(self, args, kwargs)


class BoundMethod(Value):
    """A callable with its first argument."""

    __slots__ = ("function", "instance")

    def __init__(self, function: Value, instance: Value, source: Source | None = None) -> None:
        super().__init__(source)
        self.function, self.instance = function, instance

    def python_type(self) -> type:
        return MethodType

    def describe(self) -> str:
        return f"method {self.function.describe()}"

    def get_attribute(self, session: Session, name: str) -> Value:
        if name == "__self__":
            return self.instance
        if name == "__func__":
            return self.function
        return session.realize(self.function).get_attribute(session, name)

    def binary(self, session: Session, function: Any, other: Value, reflected: bool) -> Value | None:
        return None

    def callee(self, session: Session, args: Arguments, kwargs: Keywords) -> Callee | None:
        return session.realize(self.function).callee(session, [self.instance, *args], kwargs)

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        return session.call(self.function, [self.instance, *args], kwargs)


class PartialValue(Value):
    """A functools.partial."""

    __slots__ = ("args", "function", "kwargs")

    def __init__(self, function: Value, args: Arguments, kwargs: Keywords, source: Source | None = None) -> None:
        super().__init__(source)
        self.function, self.args, self.kwargs = function, list(args), dict(kwargs)

    def python_type(self) -> type:
        return functools.partial

    def get_attribute(self, session: Session, name: str) -> Value:
        if name == "func":
            return self.function
        return super().get_attribute(session, name)

    def callee(self, session: Session, args: Arguments, kwargs: Keywords) -> Callee | None:
        return session.realize(self.function).callee(session, [*self.args, *args], {**self.kwargs, **kwargs})

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        return session.call(self.function, [*self.args, *args], {**self.kwargs, **kwargs})


class GeneratorValue(Value):
    """A generator: a frame of the interpreter that stands still between two elements."""

    __slots__ = ("frame", "result")

    def __init__(self, frame: InterpreterFrame) -> None:
        super().__init__()
        self.frame: InterpreterFrame | None = frame
        self.result: Value = NONE

    def python_type(self) -> type:
        return GeneratorType

    def iterate(self, session: Session) -> Value:
        return self

    def next(self, session: Session) -> Value | None:
        return self.resume(session, NONE)

    def resume(self, session: Session, sent: Value) -> Value | None:
        """Runs on to the next yield; None at the end, with what the generator returned in `result`."""
        frame = self.frame
        if frame is None:
            return None
        frame.stack.append(sent)
        self.frame = None  # if it raises, it is exhausted
        value = frame.run()
        if frame.finished:
            self.result = value
            return None
        self.frame = frame
        return value

    def method_send(self, session: Session, sent: Value) -> Value:
        value = self.resume(session, sent)
        if value is None:
            raise session.raised(StopIteration)
        return value

    def method___next__(self, session: Session) -> Value:
        return self.method_send(session, NONE)

    def method_close(self, session: Session) -> Value:
        if self.frame is not None and self.frame.program.handlers:
            raise session.unsupported("a generator with handlers is closed early")
        self.frame = None
        return NONE


def bind(session: Session, function: FunctionValue, args: Arguments, kwargs: Keywords) -> list[Value]:
    """The values of a function's parameters, in the order of `co_varnames`, as CPython binds them."""
    code = function.code
    names = code.co_varnames
    positional, total = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    bound: list[Value] = [NULL] * total
    bound[: min(len(args), positional)] = args[:positional]
    rest: dict[str, Value] = {}
    for name, value in kwargs.items():
        slot = (
            names.index(name, code.co_posonlyargcount, total) if name in names[code.co_posonlyargcount : total] else -1
        )
        if slot < 0:
            rest[name] = value
        elif bound[slot] is not NULL:
            raise session.raised(TypeError, f"{code.co_qualname}() got multiple values for argument '{name}'")
        else:
            bound[slot] = value
    if rest and not code.co_flags & 8:
        raise session.raised(TypeError, f"{code.co_qualname}() got an unexpected keyword argument '{next(iter(rest))}'")
    if len(args) > positional and not code.co_flags & 4:
        raise session.raised(
            TypeError, f"{code.co_qualname}() takes {positional} positional arguments but {len(args)} were given"
        )
    first_default = positional - len(function.defaults)
    for slot, value in enumerate(bound):
        if value is NULL:
            if first_default <= slot < positional:
                bound[slot] = function.defaults[slot - first_default]
            elif slot >= positional and names[slot] in function.keyword_defaults:
                bound[slot] = function.keyword_defaults[names[slot]]
            else:
                raise session.raised(TypeError, f"{code.co_qualname}() missing a required argument: '{names[slot]}'")
    if code.co_flags & 4:
        bound.append(session.tuple_of_values(args[positional:]))
    if code.co_flags & 8:
        bound.append(session.dict_of_values(rest))
    return bound
