"""Exceptions: made during capture, or from before the call (those that a broken instruction raised,
or that are being handled)."""

from __future__ import annotations

import operator
from types import GetSetDescriptorType, MemberDescriptorType, TracebackType
from typing import TYPE_CHECKING, Any

from ingot.capture.bytecode import VERSION
from ingot.capture.effects import Operation
from ingot.capture.sources import AttrSource, Source
from ingot.capture.steps import caller_function, user_function
from ingot.capture.values.base import (
    Arguments,
    NotConstant,
    Value,
    constants,
    is_c_class,
    type_name,
)
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.functions import is_ingots
from ingot.capture.values.objects import ObjectValue, plain_base

if TYPE_CHECKING:
    from ingot.capture.interpreter import InterpreterFrame
    from ingot.capture.session import Session

_BASE_FIELDS = ("args", "__cause__", "__context__", "__suppress_context__")
_LOOKED_UP = (AttributeError, NameError, ImportError)
"""Where the interpreter raises these, it says in attributes what was looked for."""


class TracebackValue(Value):
    """The traceback of an exception: it may be passed along, but nothing in it is known."""

    __slots__ = ("error", "places")

    def __init__(self, error: ExceptionValue) -> None:
        super().__init__()
        self.error, self.places = error, tuple(error.raised_at)

    @property
    def is_present(self) -> bool:
        """Whether the exception still has it: it gets another one where it is raised again."""
        return self.places == tuple(self.error.raised_at)

    def python_type(self) -> type:
        return TracebackType


class ExceptionValue(ObjectValue):
    """An exception, raised or not. The fields `_BASE_FIELDS` of one from outside are read, and
    guarded, when they are asked for; None stands for one that was not read."""

    __slots__ = (
        "_base_fields",
        "field_args",
        "initialized",
        "raised_at",
        "_session",
        "_traceback",
        "was_raised",
    )

    def __init__(
        self, cls: type, args: Arguments = (), source: Source | None = None, object: Any = None
    ) -> None:
        super().__init__(cls, source, object)
        self.was_raised = source is not None
        self._session: Session | None = None
        self._traceback: TracebackValue | None = None
        # code, line and globals of where it was raised, then of the frames that it came through
        self.raised_at: list[Any] = []
        self._base_fields: dict[str, Any] = {}
        self.field_args = list(args)  # of which the built-in class makes its fields
        self.initialized = source is not None  # whether that has run its `__init__`
        if source is None:
            self._base_fields = {
                "args": list(args),
                "__cause__": NONE,
                "__context__": NONE,
                "__suppress_context__": ConstantValue(False),
            }

    @classmethod
    def outside(cls, session: Session, object_: BaseException, source: Source) -> ExceptionValue:
        """An exception that existed before the call."""
        exception = cls(type(object_), (), source, object_)
        exception._session = session
        return exception

    # -- the fields of BaseException ---------------------------------------------------------------

    @property
    def args(self) -> list[Value]:
        if "args" not in self._base_fields:
            assert self._session is not None
            self._base_fields["args"] = self._session.unpacked(self._load("args"))
        return self._base_fields["args"]

    @property
    def cause(self) -> Value:
        return self._base_field("__cause__")

    def _base_field(self, name: str) -> Value:
        if name == "args":
            assert self.args is not None
            return NONE
        if name not in self._base_fields:
            self._base_fields[name] = self._load(name)
        return self._base_fields[name]

    def _load(self, name: str) -> Value:
        assert self.source is not None and self._session is not None
        value = vars(BaseException)[name].__get__(self.object)
        return self._session.wrap(value, AttrSource(self.source, name, "slot"))

    def take(self, session: Session, args: Arguments) -> None:
        """Does what `__init__` of the built-in class does with the arguments.

        OSError keeps no file names in `args`."""
        self.field_args = list(args)
        has_file = len(args) in (3, 4, 5) and session.realize(args[2]).identity() is not None
        if has_file and issubclass(self.cls, OSError) and self.cls is not BlockingIOError:
            args = args[:2]
        self._base_fields["args"] = list(args)

    def remaining_args(self, session: Session) -> list[Value] | None:
        """The args of one made during capture, where the built-in class would have others."""
        plain = ExceptionValue(self.cls)
        plain.take(session, self.field_args)
        if len(plain.args) == len(self.args) and all(map(operator.is_, plain.args, self.args)):
            return None
        return self.args

    def set_base_field(self, session: Session, name: str, value: Value) -> None:
        """Sets args (to a sequence), the cause, the context, or whether the context is not
        shown."""
        content: Any = value
        if name == "args":
            content = session.unpacked(value)
        self._base_fields[name] = content
        if self.source is not None:
            session.effects.change(session, self, self.object, self)  # type: ignore[arg-type]
        if name == "__cause__":
            self.set_base_field(session, "__suppress_context__", ConstantValue(True))

    def operations(self) -> list[Operation]:
        """What gives an exception from outside the fields of BaseException that were set."""
        operations = []
        for name in _BASE_FIELDS:
            value = self._base_fields.get(name)
            if value is not None and name == "args" and self._session is not None:
                value = self._session.tuple_of_values(value)
            own = AttrSource(self.source, name, "slot")  # type: ignore[arg-type]
            if value is not None and getattr(value, "source", None) is not own:
                operations.append(Operation(vars(BaseException)[name].__set__, (self, value)))
        return operations

    def remaining_base_fields(self) -> dict[str, Value]:
        """The cause, context and flag that an exception made during capture is given last."""
        fields = {}
        for name in ("__cause__", "__context__"):
            value = self._base_fields[name]
            if value is not NONE:
                fields[name] = value
        suppressed = self._base_fields["__suppress_context__"]
        if suppressed.constant() != ("__cause__" in fields):
            fields["__suppress_context__"] = suppressed
        return fields

    def raise_while(
        self, session: Session, handled: Value, frame: InterpreterFrame | None = None
    ) -> None:
        """Takes note that it is raised while another one, or none, is handled: in a `frame`, by
        default the innermost."""
        if frame is None and session.frames:
            frame = session.frames[-1]
        if frame is not None:
            self.come_through(frame)
        self.was_raised = True
        if not isinstance(handled, ExceptionValue) or handled is self:
            return
        exception, visited = handled, set[int]()
        while isinstance(
            context := session.realize(exception._base_field("__context__")), ExceptionValue
        ):
            if context is self:  # no cycle is made
                exception.set_base_field(session, "__context__", NONE)
                break
            if id(context) in visited:  # there is one, which self is not on
                break
            visited.add(id(context))
            exception = context
        self.set_base_field(session, "__context__", handled)

    def come_through(self, frame: InterpreterFrame) -> None:
        """Takes note of a frame that it is raised in, or comes to from one that it calls."""
        if self.source is None and not is_ingots(frame.function):
            place = frame.program.code, frame.line, frame.function.namespace
            self.raised_at.append(place)

    def traceback(self) -> Value:
        """Its `__traceback__`."""
        if self.source is not None:
            assert self._session is not None
            return self._session.realize(self._load("__traceback__"))
        if not self.was_raised:
            return NONE
        if self._traceback is None or not self._traceback.is_present:
            self._traceback = TracebackValue(self)
        return self._traceback

    @property
    def has_place(self) -> bool:
        """Whether it was raised, at a line that is known."""
        return self.was_raised and bool(self.raised_at)

    def raiser(self) -> Any:
        """A function that raises it where the user's code did, in calls like the user's."""
        (code, line, namespace), *callers = self.raised_at
        function = user_function(code, line, "raise error", "error", namespace, {})
        for code, line, namespace in callers:
            function = caller_function(function, code, line, namespace)
        return function

    # -- attributes --------------------------------------------------------------------------------

    def bind(self, session: Session, raw: Any, name: str) -> Value:
        if not isinstance(raw, (GetSetDescriptorType, MemberDescriptorType)) or not is_c_class(
            raw.__objclass__
        ):
            return super().bind(session, raw, name)
        if name == "args":
            return session.tuple_of_values(self.args)
        if name in _BASE_FIELDS:
            return session.realize(self._base_field(name))
        if name == "__traceback__":
            return self.traceback()
        if self.source is not None:
            return session.wrap(
                session.python(raw.__get__, self.object), AttrSource(self.source, name, "slot")
            )
        if name in ("value", "code") and issubclass(self.cls, (StopIteration, SystemExit)):
            if name == "code" and len(self.field_args) > 1:
                return session.tuple_of_values(self.field_args)
            return [*self.field_args, NONE][0]
        if name in self.members:
            return self.members[name]
        if self.was_raised and issubclass(self.cls, _LOOKED_UP):
            raise session.unsupported("attribute", f"attribute {name!r} of {self.describe()}")
        return session.wrap_result(getattr, self._real(session), name)

    def _real(self, session: Session) -> BaseException:
        """An exception of the built-in class beneath, with these arguments and fields."""
        base, args = plain_base(self.cls), session.textual_all(self.args)
        if self.source is None:
            real = session.python(base, *session.textual_all(self.field_args))
        else:
            real = session.python(base.__new__, base)
            for name, raw in fields_of(base):
                value = session.textual(session.realize(self.bind(session, raw, name)))
                if value is not None:
                    setattr(real, name, value)
        real.args = tuple(args)
        return real

    def set_attribute(self, session: Session, name: str, value: Value) -> None:
        raw = session.class_lookup(self.cls, name)
        python = self.overrides(session, "__setattr__")
        c_field = isinstance(raw, (GetSetDescriptorType, MemberDescriptorType)) and is_c_class(
            raw.__objclass__
        )
        if python or not c_field:
            super().set_attribute(session, name, value)
        elif name in _BASE_FIELDS:
            value = session.realize(value)
            _check_base_field(session, name, value)
            self.set_base_field(session, name, value)
        elif (
            name == "__traceback__"
            and (value := session.realize(value)).identity() is None
            and self.source is None
        ):
            self.was_raised, self.raised_at = False, []
        elif name == "__traceback__" and isinstance(value, TracebackValue):
            self.was_raised, self.raised_at = True, list(value.places)
        else:
            raise session.unsupported(
                "attribute", f"attribute {name!r} of {self.describe()} is set"
            )

    def method_with_traceback(self, session: Session, traceback: Value) -> Value:
        self.set_attribute(session, "__traceback__", traceback)
        return self

    def method_add_note(self, session: Session, note: Value) -> Value:
        if not issubclass(note.python_type(), str):
            kind = type_name(note.python_type())
            message = f"note must be a str, not '{kind}'"
            if VERSION >= (3, 14):
                message = f"add_note() argument must be str, not {kind}"
            raise session.raised(TypeError, message)
        notes = self.own_attribute(session, "__notes__")
        if notes is None:
            notes = session.list_of(session.tuple_of_values([]))
            self.put(session, "__notes__", notes)
        session.call(session.realize(notes).get_attribute(session, "append"), [note], {})
        return NONE

    # -- text --------------------------------------------------------------------------------------

    def text(self, session: Session, make: Any) -> str:
        """What str() or repr() of the built-in class gives."""
        if make is repr:
            texts = []
            for arg in self.args:
                texts.append(session.text_of(arg, repr))
            return f"{self.cls.__name__}({', '.join(texts)})"
        if issubclass(self.cls, BaseExceptionGroup):
            count = len(session.unpacked(self.get_attribute(session, "exceptions")))
            message = session.text_of(self.get_attribute(session, "message"), str)
            if count == 1:
                return f"{message} (1 sub-exception)"
            return f"{message} ({count} sub-exceptions)"
        if not self.args and plain_base(self.cls).__str__ is BaseException.__str__:
            return ""
        if len(self.args) == 1 and plain_base(self.cls).__str__ is BaseException.__str__:
            return session.text_of(self.args[0], str)
        return session.python(str, self._real(session))

    def message(self) -> str:
        """The exception as a traceback's last line shows it."""
        try:
            show = repr if issubclass(self.cls, KeyError) else str
            return f"{self.cls.__name__}: {', '.join(map(show, constants(self.args)))}"
        except NotConstant:
            return self.cls.__name__


def fields_of(base: type) -> list[tuple[str, Any]]:
    """What a built-in class of exceptions keeps besides what all have."""
    fields = []
    for owner in base.__mro__[: base.__mro__.index(BaseException)]:
        for name, raw in vars(owner).items():
            is_field = isinstance(raw, (GetSetDescriptorType, MemberDescriptorType))
            if is_field and name not in ("__dict__", "__weakref__", "characters_written"):
                fields.append((name, raw))
    return fields


def _check_base_field(session: Session, name: str, value: Value) -> None:
    """Raises TypeError for what a field of BaseException may not be."""
    cls = value.python_type()
    if name in ("__cause__", "__context__") and not issubclass(cls, (BaseException, type(None))):
        message = f"exception {name.strip('_')} must be None or derive from BaseException"
        raise session.raised(TypeError, message)
    if name == "__suppress_context__" and cls is not bool:
        raise session.raised(TypeError, "attribute value type must be bool")
