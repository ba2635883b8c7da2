"""Python functions, their closures, bound methods, partials, generators."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable
from types import CellType, CodeType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from ingot.capture.bytecode import VERSION, Program
from ingot.capture.guards import Kind
from ingot.capture.meanings import INLINE, How, Meaning, meaning_of_code, stated
from ingot.capture.sources import (
    CalledSource,
    CellSource,
    ConstSource,
    FunctionFieldSource,
    ItemSource,
    Source,
)
from ingot.capture.values.base import (
    NULL,
    Arguments,
    Callee,
    IteratorValue,
    Keywords,
    OutsideOrMade,
    Raised,
    Value,
    empty_cells,
    find_missing,
)
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.operator_methods import EQUALITIES
from ingot.origins import trusts_function
from ingot.spots import short_name

if TYPE_CHECKING:
    from ingot.capture.interpreter import InterpreterFrame
    from ingot.capture.session import Session


_STATED = frozenset({How.RULE, How.UNREALIZED, How.FORWARD, How.POLYFILL})
"""How Python functions are called that are not inlined."""


class CellValue(OutsideOrMade):
    """A closure cell. One from outside has a source, and `object` is the cell itself."""

    __slots__ = ("content",)

    def __init__(
        self, content: Value = NULL, source: Source | None = None, object: CellType | None = None
    ) -> None:
        super().__init__(source, object)
        self.content = content

    def python_type(self) -> type:
        return CellType

    def get_attribute(self, session: Session, name: str) -> Value:
        if name != "cell_contents":
            return super().get_attribute(session, name)
        if self.content is NULL:
            if self.source is not None and session.effects.fields(self.object) is None:
                raise session.unsupported("unbound-name", "an empty closure cell is read")
            raise session.raised(ValueError, "Cell is empty")
        return session.realize(self.content)

    def set_attribute(self, session: Session, name: str, value: Value) -> None:
        if name != "cell_contents":
            super().set_attribute(session, name, value)
        self.content = value
        if self.source is not None:
            session.effects.set_cell(session, self, value)


class FunctionValue(OutsideOrMade):
    """A Python function, which is inlined when called: from outside (`object` is the function), or
    made during capture."""

    __slots__ = (
        "annotate", "annotations", "attributes", "cells", "code", "defaults", "fields",
        "keyword_defaults", "namespace",
    )  # fmt: skip

    def __init__(self, code: CodeType, namespace: dict[str, Any]) -> None:
        super().__init__()
        self.code, self.namespace = code, namespace
        self.cells: tuple[CellValue, ...] = ()
        self.defaults: list[Value] = []
        self.keyword_defaults: dict[str, Value] = {}
        self.annotations: Value = NONE  # a tuple of names and annotations in turn, or a dict
        self.annotate: Value = NONE  # what makes them when they are asked for (Python 3.14)
        self.attributes: dict[str, Value] = {}  # its `__dict__`
        # what was set of what every function has: `__name__`, `__doc__`, ...
        self.fields: dict[str, Value] = {}

    @classmethod
    def outside(cls, session: Session, function: FunctionType, source: Source) -> FunctionValue:
        """A function that existed before the call. Its code is guarded now, defaults and cells when
        they are used."""
        result = cls(function.__code__, function.__globals__)
        result.object, result.source = function, source
        trusted = trusts_function(function) and not function.__closure__  # a closure is one of many
        # what it is made of stays as it is; whether it is still this function is another matter
        if trusted:
            session.guard(source, Kind.IDENTITY, function)
        else:
            session.guard(FunctionFieldSource(source, "__code__"), Kind.IDENTITY, function.__code__)
            # a function's globals are fixed, another function's may differ
            if not isinstance(source, (CalledSource, ConstSource)):
                session.guard(
                    FunctionFieldSource(source, "__globals__"), Kind.IDENTITY, function.__globals__
                )

            if function.__defaults__:  # which item is whose default depends on how many there are
                session.guard(
                    FunctionFieldSource(source, "__defaults__"),
                    Kind.LENGTH,
                    len(function.__defaults__),
                )

        def field_items(field: Any, items: Any) -> dict[Any, Value]:
            values = {}
            for key, value in items:
                place: Source
                if trusted:
                    place = ConstSource(value)  # asks the value for its class
                else:
                    place = ItemSource(FunctionFieldSource(source, field), key)
                values[key] = session.wrap(value, place)
            return values

        defaults = field_items("__defaults__", enumerate(function.__defaults__ or ()))
        result.defaults = list(defaults.values())
        result.keyword_defaults = field_items(
            "__kwdefaults__", (function.__kwdefaults__ or {}).items()
        )
        names = function.__code__.co_freevars
        result.cells = tuple(
            session.outside_cell(cell, CellSource(source, i, names[i]))
            for i, cell in enumerate(function.__closure__ or ())
        )
        return result

    def python_type(self) -> type:
        return FunctionType

    def key(self, session: Session) -> Any:
        return session.identity_key(self)

    def describe(self) -> str:
        return f"function {short_name(self.code.co_qualname)}"

    @property
    def qualname(self) -> str:
        """What it is called in error messages."""
        if self.object is not None:
            return self.object.__qualname__
        name = self.fields.get("__qualname__")
        if name is None:
            return self.code.co_qualname
        return name.constant()

    def get_attribute(self, session: Session, name: str) -> Value:
        if name in self.fields:
            return session.realize(self.fields[name])
        if name in _FIELDS:
            return session.realize(_FIELDS[name](self, session))
        if name in _NEW_FUNCTION_FIELDS:
            if self.object is None:
                return session.realize(_NEW_FUNCTION_FIELDS[name](self, session))
            return session.realize(self._slot(session, name))
        if _has_field(name):
            return super().get_attribute(session, name)
        if self.object is None:
            own = self.attributes.get(name)
        else:
            own = session.effects.own(session, self, self.object, name)
        if own is None:
            return super().get_attribute(session, name)
        return session.realize(own)

    def annotation_dict(self, session: Session) -> Value:
        """Its `__annotations__`, if it was made during capture."""
        if self.annotations is NONE and self.annotate is not NONE:
            answer = session.call(self.annotate, [ConstantValue(1)], {})  # Format.VALUE
            self.annotations, self.annotate = session.realize(answer), NONE
        elif self.annotations is NONE:
            self.annotations = session.dict_of_values({})
        elif self.annotations.python_type() is tuple:
            flat = session.unpacked(self.annotations)
            names = map(session.known, flat[::2])
            self.annotations = session.dict_of_values(dict(zip(names, flat[1::2])))
        return self.annotations

    def _slot(self, session: Session, name: str) -> Value:
        """A field of a function from outside."""
        assert self.source is not None
        return session.wrap_slot(self.object, self.source, name)

    def set_attribute(self, session: Session, name: str, value: Value) -> None:
        if self.object is not None:
            if _has_field(name):
                super().set_attribute(session, name, value)
            session.effects.set_own(session, self, self.object, name, value)
        elif name in ("__name__", "__qualname__", "__doc__", "__module__"):
            value = session.realize(value)
            if name in ("__name__", "__qualname__") and value.python_type() is not str:
                raise session.raised(TypeError, f"{name} must be set to a string object")
            self.fields[name] = value
        elif name == "__annotations__":
            self.annotations, self.annotate = session.realize(value), NONE
        elif name == "__annotate__":
            self.annotations, self.annotate = NONE, session.realize(value)
        elif name == "__defaults__":
            self.defaults = []
            if session.realize(value).identity() is not None:
                self.defaults = session.unpacked(value)
        elif _has_field(name) and name != "__type_params__":
            raise session.unsupported(
                "attribute", f"attribute {name!r} of {self.describe()} is set"
            )
        elif name == "__type_params__":
            self.fields[name] = value
        else:
            self.attributes[name] = value

    def delete_attribute(self, session: Session, name: str) -> None:
        if self.object is None and self.attributes.pop(name, None) is not None:
            return
        if _has_field(name):
            super().delete_attribute(session, name)
        if self.object is None or session.effects.own(session, self, self.object, name) is None:
            raise session.raised(AttributeError, f"'function' object has no attribute '{name}'")
        session.effects.set_own(session, self, self.object, name, NULL)

    def method___get__(self, session: Session, instance: Value, owner: Value = NONE) -> Value:
        return BoundMethod(self, instance)

    def meaning(self) -> Meaning:
        """What a call of it means."""
        meaning = stated(self.object)
        if meaning is not None and meaning.how in _STATED:
            return meaning
        return meaning_of_code(self.code) or INLINE

    def callee(self, session: Session, args: Arguments, kwargs: Keywords) -> Callee | None:
        meaning = self.meaning()
        if meaning is INLINE:
            return self, args, kwargs
        if meaning.how is not How.FORWARD:
            return None
        target = meaning.rule(session, args, kwargs)
        if target is None:
            return None
        return target[0].callee(session, *target[1:])

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        meaning = self.meaning()
        if meaning is INLINE:
            return session.inline(self, args, kwargs)
        if meaning.how is How.CODE:
            result: Value = meaning.rule(session, self, args, kwargs)
            return result
        return session.call_as(meaning, self.object, args, kwargs)


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
            return session.realize(self.instance)
        if name == "__func__":
            return session.realize(self.function)
        if name == "__class__":
            return super().get_attribute(session, name)
        if name in ("__eq__", "__ne__", "__hash__", "__call__", "__get__", "__repr__"):
            raise session.unsupported("attribute", f"attribute {name!r} of {self.describe()}")
        return session.realize(self.function).get_attribute(session, name)

    def key(self, session: Session) -> Any:
        return session.method_key(self)

    def binary(
        self, session: Session, function: Any, other: Value, reflected: bool
    ) -> Value | None:
        if function not in EQUALITIES:
            return None
        same = isinstance(other, BoundMethod) and session.same(self.instance, other.instance)
        same = same and session.equal(self.function, other.function)  # type: ignore[attr-defined]
        return ConstantValue(same == (function is operator.eq))

    def callee(self, session: Session, args: Arguments, kwargs: Keywords) -> Callee | None:
        return session.realize(self.function).callee(session, [self.instance, *args], kwargs)

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        return session.call(self.function, [self.instance, *args], kwargs)


INHERITED = ConstantValue(object())
"""Stands for the exception that the caller of a generator handles, where the generator has set it
aside."""


def is_ingots(function: FunctionValue) -> bool:
    """Whether it is Ingot's own version of a C function."""
    return bool(function.namespace.get("__name__", "").startswith("ingot.capture."))


class GeneratorValue(IteratorValue):
    """A generator: a frame of the interpreter that stands still between two elements. `result` is
    what it returned."""

    __slots__ = ("frame", "function", "handled", "result", "running")

    def __init__(self, frame: InterpreterFrame | None) -> None:
        super().__init__()
        self.frame = frame
        self.function = frame.function if frame is not None else None
        self.handled: Value | None = None  # the exception that it handles where it stands
        self.result: Value = NONE
        self.running = False

    def python_type(self) -> type:
        return GeneratorType

    def touch(self, session: Session) -> None:
        """Called before the generator is advanced or closed."""

    @property
    def has_begun(self) -> bool:
        """Whether it ran to a yield already."""
        return (
            self.frame is not None
            and self.frame.program.instructions[self.frame.index - 1].op != "RETURN_GENERATOR"
        )

    @property
    def in_block(self) -> bool:
        """Whether it stands in a try or with block that has something to do when the generator is
        dropped."""
        frame = self.frame
        if frame is None or not self.has_begun:
            return False
        return not _leaves_quietly(frame.program, frame.index - 1, frame.function.namespace)

    # -- running -----------------------------------------------------------------------------------

    def next(self, session: Session) -> Value | None:
        return self.resume(session, NONE)

    def resume(self, session: Session, sent: Value) -> Value | None:
        """Runs on to the next yield; None at the end, with what the generator returned in
        `result`."""
        if self.running:
            raise session.raised(ValueError, "generator already executing")
        if self.frame is None:
            self.result = NONE
            return None
        self.touch(session)
        self.frame.stack.append(sent)
        return self._run(session, None)

    def _run(self, session: Session, raised: Value | None) -> Value | None:
        frame = self.frame
        assert frame is not None
        self.frame, self.running = None, True  # if it raises, it is exhausted
        outside = session.handled, session.inherited
        session.inherited = session.handled
        session.handled = self.handled or session.handled
        try:
            value = frame.run(raised)
            if session.handled is not session.inherited:
                self.handled = session.handled
            else:
                self.handled = None
        except Raised as error:
            if VERSION < (3, 12) and error.is_a(StopIteration):
                raise Raised(session.stopped_inside(error.value)) from None
            raise
        finally:
            self.running = False
            session.handled, session.inherited = outside
        if frame.finished:
            self.result = value
            return None
        self.frame = frame
        session.suspended.append(self)
        return value

    def stopped(self, session: Session) -> Raised:
        """The StopIteration of an exhausted generator, with what it returned."""
        result, self.result = self.result, NONE
        if session.realize(result).identity() is None:
            return session.raised(StopIteration)
        return session.raised(StopIteration, result)

    def throw(self, session: Session, error: Value) -> Value | None:
        """Raises an exception where it stands; what it does then is as for `resume`."""
        if self.running:
            raise session.raised(ValueError, "generator already executing")
        if self.frame is None:
            raise session.raising(error)  # type: ignore[arg-type]
        self.touch(session)
        delegate = self._delegate()
        if delegate is None:
            return self._raise(session, error)
        try:
            outcome = self._thrown_on(session, delegate, error)
        except Raised as raised:
            if not raised.is_a(StopIteration):
                return self._raise(session, raised.value)
            result = raised.value.get_attribute(session, "value")
        else:
            if outcome is None:
                return self._raise(session, error)
            element, result = outcome
            if element is not None:
                return element
        assert self.frame is not None
        self.frame.stack[-1] = result
        self.frame.index = self._send_index()[1]
        return self._run(session, None)

    def _thrown_on(
        self, session: Session, delegate: Value, error: Value
    ) -> tuple[Value | None, Value] | None:
        """Throws an exception into the iterator of a `yield from`: its next element, or None and
        what it returned.

        None alone where it takes no exceptions: this generator is to raise it itself.
        """
        if issubclass(error.python_type(), GeneratorExit):
            self._close(session, delegate)
            return None
        if isinstance(delegate, GeneratorValue):
            return delegate.throw(session, error), delegate.result
        if find_missing(delegate.python_type(), "throw"):
            return None
        return session.call(delegate.get_attribute(session, "throw"), [error], {}), NONE

    def _raise(self, session: Session, error: Value) -> Value | None:
        assert self.frame is not None
        handled = self.handled or session.handled
        error.raise_while(session, handled, self.frame)  # type: ignore[attr-defined]
        if not self.has_begun:
            self.frame = None
            if VERSION < (3, 12) and issubclass(error.python_type(), StopIteration):
                error = session.stopped_inside(error)
            raised = Raised(error)
            raised.is_from_inside = True
            raise raised
        self.frame.stack.append(NONE)  # in the place of what would have been sent
        return self._run(session, error)

    def _send_index(self) -> tuple[int, int]:
        """The index of the SEND of the `yield from` it is suspended in, and that of what follows.

        (-1, -1) where it is suspended in none."""
        assert self.frame is not None
        instructions = self.frame.program.instructions
        for after in instructions[self.frame.index : self.frame.index + 1]:
            if after.op == "JUMP" and instructions[after.arg].op == "SEND":
                return after.arg, instructions[after.arg].arg
        return -1, -1

    def _delegate(self) -> Value | None:
        """The iterator of the `yield from` that the generator is suspended in; None if in none."""
        if not self.has_begun or self._send_index()[0] < 0:
            return None
        assert self.frame is not None
        return self.frame.peek()

    @staticmethod
    def _close(session: Session, iterator: Value) -> None:
        if not find_missing(iterator.python_type(), "close"):
            session.call(iterator.get_attribute(session, "close"), [], {})

    # -- methods -----------------------------------------------------------------------------------

    def get_attribute(self, session: Session, name: str) -> Value:
        function = self.frame.function if self.frame is not None else self.function
        if name in ("__name__", "__qualname__") and function is not None:
            return function.get_attribute(session, name)
        if name == "gi_running":
            return ConstantValue(self.running)
        if name == "gi_code" and function is not None:
            return session.wrap_constant(function.code)
        if name == "gi_frame" and self.frame is None and not self.running:
            return NONE
        if name == "gi_yieldfrom" and not self.running:
            return (self._delegate() if self.frame is not None else None) or NONE
        return super().get_attribute(session, name)

    def method_send(self, session: Session, sent: Value) -> Value:
        if self.frame is not None and not self.has_begun and sent.identity() is not None:
            raise session.raised(TypeError, "can't send non-None value to a just-started generator")
        value = self.resume(session, sent)
        if value is None:
            raise self.stopped(session)
        return value

    def method___next__(self, session: Session) -> Value:
        return self.method_send(session, NONE)

    def method_throw(
        self, session: Session, error: Value, value: Value = NONE, traceback: Value = NONE
    ) -> Value:
        if issubclass(error.python_type(), type):
            if issubclass(value.python_type(), error.constant()):
                error = value
            else:
                if value.identity() is None:
                    args = []
                else:
                    args = [value]
                error = session.realize(session.call(error, args, {}))
        elif value.identity() is not None:
            raise session.raised(TypeError, "instance exception may not have a separate value")
        if not issubclass(error.python_type(), BaseException):
            kind = error.python_type().__name__
            message = (
                f"exceptions must be classes or instances deriving from BaseException, not {kind}"
            )
            raise session.raised(TypeError, message)
        element = self.throw(session, error)
        if element is None:
            raise self.stopped(session)
        return element

    def method_close(self, session: Session) -> Value:
        if self.frame is None or not self.has_begun:
            if self.frame is not None:
                self.touch(session)
            self.frame = None
            return NONE
        try:
            element = self.throw(session, session.raised(GeneratorExit).value)
        except Raised as raised:
            if raised.is_a(GeneratorExit, StopIteration):
                return NONE
            raise
        if element is not None:
            raise session.raised(RuntimeError, "generator ignored GeneratorExit")
        if VERSION >= (3, 13):
            return self.result
        return NONE


_HARMLESS = frozenset(
    """
    PUSH_EXC_INFO POP_EXCEPT COPY SWAP POP_TOP NOP LOAD_CONST PUSH_NULL PUSH_NULL_BELOW BUILD_TUPLE
    """.split()
)


def _has_field(name: str) -> bool:
    """Whether every function has an attribute of this name outside of its `__dict__`."""
    return name in vars(FunctionType) or hasattr(FunctionType, name)


def _is_for_others(cls: Any) -> bool:
    return isinstance(cls, type) and not issubclass(GeneratorExit, cls)


def _leaves_quietly(program: Program, index: int, namespace: dict[str, Any]) -> bool:
    """Whether GeneratorExit, raised at an instruction, leaves the function without running anything
    of the user's: the handlers on its way are for other exceptions."""
    handler, classes = program.handler_at(index), []
    while handler is not None:
        index = handler.target
        while (op := program.instructions[index].op) not in ("RERAISE", "CLEANUP_THROW"):
            arg = program.instructions[index].arg
            if op == "LOAD_GLOBAL":
                classes.append(namespace.get(arg, getattr(builtins, arg, None)))
            elif op == "LOAD_ATTR" and classes and isinstance(classes[-1], ModuleType):
                classes.append(getattr(classes.pop(), arg, None))
            elif op == "CHECK_EXC_MATCH":
                if not classes or not all(map(_is_for_others, classes)):
                    return False
                classes.clear()
            elif op == "POP_JUMP_IF_FALSE":
                index = arg - 1
            elif op == "STOPITERATION_ERROR":
                return True
            elif op not in _HARMLESS:
                return False
            index += 1
        handler = program.handler_at(index)
    return True


def _code(f: FunctionValue, session: Session) -> Value:
    if f.object is None:
        return ConstantValue(f.code)
    return session.wrap_constant(f.code)


def _attributes(f: FunctionValue, session: Session) -> Value:
    if f.object is None:
        return session.attributes_of(f)  # type: ignore[arg-type]
    return session.instance_dict_of(f)  # type: ignore[arg-type]


_FIELDS: dict[str, Callable[[FunctionValue, Session], Value]] = {
    "__code__": _code,
    "__globals__": lambda f, session: session.wrap(f.namespace, ConstSource(f.namespace)),
    "__closure__": lambda f, session: session.tuple_of_values(f.cells) if f.cells else NONE,
    "__dict__": _attributes,
}
_NEW_FUNCTION_FIELDS: dict[str, Callable[[FunctionValue, Session], Value]] = {
    "__defaults__": lambda f, session: session.tuple_of_values(f.defaults) if f.defaults else NONE,
    "__kwdefaults__": lambda f, session: (
        session.dict_of_values(f.keyword_defaults) if f.keyword_defaults else NONE
    ),
    "__annotations__": lambda f, session: f.annotation_dict(session),
    "__name__": lambda f, session: ConstantValue(f.code.co_name),
    "__qualname__": lambda f, session: ConstantValue(f.code.co_qualname),
    "__doc__": lambda f, session: ConstantValue(
        FunctionType(f.code, {}, closure=empty_cells(f.code)).__doc__
    ),
    "__module__": lambda f, session: session.wrap_global(f.namespace, "__name__") or NONE,
}
if "__annotate__" in vars(FunctionType):
    _NEW_FUNCTION_FIELDS["__annotate__"] = lambda f, session: f.annotate
if hasattr(FunctionType, "__type_params__"):
    _NEW_FUNCTION_FIELDS["__type_params__"] = lambda f, session: session.tuple_of_values([])
"""By name: the attributes that every function made during capture has, besides its `__dict__`.

Those of an outside function are read from it."""
