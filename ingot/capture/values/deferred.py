"""Printing, warnings and logging: done after the graph has run, in their order among all effects,
when what they show is settled while capture runs. What they show of the program is the user's:
lines, functions, stack levels."""

from __future__ import annotations

import _warnings
import builtins
import functools
import logging
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ingot.capture.effects import Operation
from ingot.capture.guards import Kind
from ingot.capture.interpreter import InterpreterFrame
from ingot.capture.meanings import How, means
from ingot.capture.sources import ConstSource, DerivedSource, GlobalSource, Source
from ingot.capture.steps import caller_function, user_function
from ingot.capture.values.base import Arguments, Keywords, LazyValue, NotConstant, Rule, Value
from ingot.capture.values.classes import ClassValue
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.containers import DictValue
from ingot.capture.values.exceptions import ExceptionValue
from ingot.capture.values.functions import is_ingots
from ingot.capture.values.module import ModuleValue
from ingot.capture.values.numbers import NumberValue
from ingot.capture.values.receivers import before_print, before_record, before_warning
from ingot.capture.values.sequences import ListValue, RangeValue, TupleValue
from ingot.capture.values.sets import SetValue
from ingot.capture.values.tensor import SymIntValue, TensorValue
from ingot.capture.values.unread import UnreadNumber

if TYPE_CHECKING:
    from ingot.capture.session import Session

# -- what is shown ---------------------------------------------------------------------------------

_IMMUTABLE = frozenset({str, int, float, bool, complex, bytes, type(None)})


def snapshot(session: Session, value: Value) -> Value | None:
    """A value that looks at the end of the region as this one looks now; None where that is not
    certain."""
    if type(value) is LazyValue and type(value.object) in _IMMUTABLE:
        session.guard(value.source, Kind.TYPE, type(value.object))
        return value
    value = session.realize(value)
    if isinstance(value, (ConstantValue, SymIntValue, RangeValue, ClassValue, UnreadNumber)):
        return value
    if isinstance(value, TensorValue):
        return _snapshot_of_tensor(session, value)
    if isinstance(value, NumberValue) or value.is_late:
        return value
    if isinstance(value, (ListValue, TupleValue)):
        return _snapshot_of_sequence(session, value)
    if isinstance(value, SetValue) and value.cls in (set, frozenset):
        return _snapshot_of_set(session, value)
    if isinstance(value, DictValue) and value.cls is dict:
        return _snapshot_of_dict(session, value)
    return None


def snapshots(session: Session, values: Iterable[Value]) -> list[Value] | None:
    """Several of them; None where that is not certain of one."""
    shots = list(map(functools.partial(snapshot, session), values))
    certain = list(filter(None, shots))
    if len(certain) < len(shots):
        return None
    return certain


def _snapshot_of_set(session: Session, value: SetValue) -> Value | None:
    members = snapshots(session, value.entries.values())
    if members is None:
        return None
    return SetValue(zip(value.entries, members), value.cls)


def _snapshot_of_dict(session: Session, value: DictValue) -> Value | None:
    items = snapshots(session, value.entries.values())
    keys = snapshots(session, map(session.wrap_key, value.entries))
    if items is None or keys is None:
        return None
    return DictValue(zip(value.entries, items), dict)


def _snapshot_of_tensor(session: Session, value: TensorValue) -> Value | None:
    """A copy, as what it holds may be overwritten. What autograd adds to its text is not
    foreseen."""
    if value.cls.__name__ != "Tensor" or value.fake.requires_grad or value.attributes:
        return None
    return session.call_method("clone", value)


def _snapshot_of_sequence(session: Session, value: ListValue | TupleValue) -> Value | None:
    shows_items = (
        value.cls in (list, tuple)
        or value.cls.__name__ == "Size"
        or value.cls.__bases__ == (tuple,)
    )
    if not shows_items:
        return None
    items = snapshots(session, value.items)
    if items is None:
        return None
    if isinstance(value, ListValue):
        return ListValue(items, list)
    return TupleValue(items, value.cls)


def _required_snapshot(session: Session, value: Value, action: str) -> Value:
    shot = snapshot(session, value)
    if shot is None:
        raise session.unsupported(
            "text", f"{action} {session.realize(value).describe()}, whose text is not settled yet"
        )
    return shot


# -- who shows it ----------------------------------------------------------------------------------


def user_frames(session: Session) -> list[InterpreterFrame]:
    """The frames that run, innermost first; those of Ingot's own versions of C functions have no
    frame in eager."""
    results = []
    for f in reversed(session.frames):
        if not is_ingots(f.function):
            results.append(f)
    return results


def _calls_are_frames(frames: list[InterpreterFrame]) -> bool:
    """Whether each of these frames was called by the next one directly.

    nn.Module.__call__, which capture leaves out, lies between a module's forward and its
    caller."""
    for frame in frames:
        module = None
        if frame.slots:
            module = frame.slots[0]
        forward = None
        if isinstance(module, ModuleValue):
            forward = getattr(module.cls, "forward", None)
        if forward is not None and getattr(forward, "__code__", None) is frame.program.code:
            return False
    return True


def function_of_frames(
    frames: list[InterpreterFrame], body: str, parameters: list[str], helpers: dict[str, Any]
) -> Callable[..., Any]:
    """A function of one line that seems to stand in the innermost of some frames, which call each
    other."""
    innermost, *callers = frames
    function: Callable[..., Any] = user_function(
        innermost.program.code,
        innermost.line,
        body,
        ", ".join(parameters),
        innermost.function.namespace,
        helpers,
    )
    for frame in callers:
        function = caller_function(
            function, frame.program.code, frame.line, frame.function.namespace
        )
    return function


def logged_call(
    session: Session,
    function: Any,
    args: Arguments,
    kwargs: Keywords,
    frames: Callable[[], list[InterpreterFrame]],
) -> Operation:
    """A call that is made after the graph has run, and seems to come from these frames."""
    values = tuple(map(functools.partial(logged, session), (*args, *kwargs.values())))
    parameters = list(map("a{}".format, range(len(values))))
    texts = parameters[: len(args)]
    texts += map("{}={}".format, kwargs, parameters[len(args) :])
    body = f"call({', '.join(texts)})"
    return Operation(function_of_frames(frames(), body, parameters, {"call": function}), values)


# -- print -----------------------------------------------------------------------------------------


def _print(file: Any, sep: Any, end: Any, flush: Any, *texts: Any) -> None:
    print(*texts, file=file, sep=sep, end=end, flush=flush)


_STREAMS = {
    GlobalSource(vars(sys), "stdout"): "stdout",
    GlobalSource(vars(sys), "stderr"): "stderr",
}


def is_none(session: Session, value: Value) -> bool:
    """Whether it is None, for certain."""
    value = session.realize(value)
    return isinstance(value, ConstantValue) and value.object is None


@means(builtins.print, how=How.UNREALIZED)
def print_(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    file = kwargs.get("file", NONE)
    if file.source not in _STREAMS and not is_none(session, file):
        raise session.unsupported("print", "side effect: print to a file")
    before_print(session, _STREAMS.get(file.source, "stdout"))  # type: ignore[call-overload]
    options = map({**_PRINT_DEFAULTS, **kwargs}.__getitem__, _PRINT_DEFAULTS)
    constants = list(map(ConstantValue, map(session.known, options)))
    if kwargs.keys() - _PRINT_DEFAULTS.keys() - {"file"}:
        raise session.unsupported("print", "side effect: print with other arguments than it knows")
    texts = []
    for arg in args:
        text = snapshot(session, arg)
        if text is None:
            text = _text_now(session, session.realize(arg))
        texts.append(text)
    session.effects.defer(Operation(_print, (file, *constants, *texts)))
    return NONE


_PRINT_DEFAULTS: dict[str, Value] = {
    "sep": ConstantValue(" "), "end": ConstantValue("\n"), "flush": ConstantValue(False)
}  # fmt: skip


def _text_now(session: Session, value: Value) -> Value:
    """The text of an object that may change: made now, by its own `__str__`."""
    if isinstance(value, (TensorValue, ListValue, TupleValue, DictValue, SetValue)):
        raise session.unsupported("print", f"side effect: print of {value.describe()}")
    try:
        return ConstantValue(session.text_of(value, str))
    except NotConstant:
        raise session.unsupported("print", f"side effect: print of {value.describe()}") from None


# -- warnings --------------------------------------------------------------------------------------


@functools.lru_cache
def _raises(category: type) -> Callable[[list[Any]], bool]:
    """A function that tells whether some warning of a category would be raised as an error by such
    filters."""

    def raises(filters: list[Any]) -> bool:
        return any(action == "error" and issubclass(category, of) for action, _, of, *_ in filters)

    raises.__name__ = f"{category.__name__} is raised by"
    return raises


def _warn_as_from(
    message: Any, category: Any, source: Any, filename: str, line: int, namespace: dict[str, Any]
) -> None:
    """What warnings.warn does for a caller at this line, whose globals these are."""
    registry = namespace.setdefault("__warningregistry__", {})
    module = namespace.get("__name__") or "<string>"
    warnings.warn_explicit(message, category, filename, line, module, registry, source=source)


_FILTERS_MUTATED = vars(warnings)["_filters_mutated"]  # from 3.14 on it takes a lock for the next
_UNDER_LOCK = vars(warnings).get("_filters_mutated_lock_held")


@means(*filter(None, (_FILTERS_MUTATED, _UNDER_LOCK)), how=How.UNREALIZED)
def filters_mutated(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    """Part of warnings.catch_warnings: the filters, too, are set after the graph has run."""
    session.effects.defer(Operation(_FILTERS_MUTATED, ()))
    return NONE


def _pass_lock(session: Session) -> Value:
    """The lock that guards the filters is of no use to capture, which changes nothing."""
    return NONE


for _name in ("_acquire_lock", "_release_lock"):
    if hasattr(_warnings, _name):
        means(getattr(_warnings, _name))(_pass_lock)


@means(warnings.warn, how=How.UNREALIZED)
def warn(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    names = ("message", "category", "stacklevel", "source")
    arguments = {**dict(zip(names, args)), **kwargs}
    if len(args) > len(names) or arguments.keys() - set(names) or "message" not in arguments:
        raise session.unsupported(
            "warning", "side effect: warnings.warn with other arguments than it knows"
        )
    if (
        session.effects.is_changed(warnings.filters)
        or session.effects.fields(vars(warnings)) is not None
    ):
        raise session.unsupported(
            "warning", "side effect: warnings.warn, where the filters of warnings were changed"
        )
    before_warning(session)
    level = session.known(arguments.get("stacklevel", ConstantValue(1)))
    frames = user_frames(session)
    if (
        not isinstance(level, int)
        or level > len(frames)
        or not _calls_are_frames(frames[: max(level, 1) - 1])
    ):
        raise session.unsupported(
            "warning", "side effect: warnings.warn for a caller outside the compiled function"
        )
    frame = frames[max(level, 1) - 1]
    message = _message(session, arguments["message"])
    category = session.known(arguments.get("category", NONE))
    source = arguments.get("source", NONE)
    if not is_none(session, source):
        raise session.unsupported("warning", "side effect: warnings.warn with a source")
    category = _category(session, message, category)
    filters = GlobalSource(vars(warnings), "filters")
    if session.guard_derived(_raises(category), warnings.filters, filters):
        raise session.unsupported(
            "warning", "side effect: warnings.warn, where such warnings are raised as errors"
        )
    operation = Operation(
        _warn_as_from,
        (
            message,
            ConstantValue(category),
            NONE,
            ConstantValue(frame.program.code.co_filename),
            ConstantValue(frame.line),
            ConstantValue(frame.function.namespace),
        ),
        is_warning=True,
    )
    session.effects.defer(operation)
    return NONE


def _message(session: Session, value: Value) -> Value:
    """A text, or a warning whose parts are settled."""
    text = functools.partial(_required_snapshot, session, action="side effect: a warning of")
    if type(value) is not LazyValue:
        realized = session.realize(value)
        if isinstance(realized, ExceptionValue) and not realized.attributes:
            return ExceptionValue(realized.cls, list(map(text, realized.args)))
    return text(value)


def _category(session: Session, message: Value, category: Any) -> Any:
    if isinstance(message, ExceptionValue):
        return message.cls
    if category is None:
        return UserWarning
    if not (isinstance(category, type) and issubclass(category, Warning)):
        text = f"category must be a Warning subclass, not '{type(category).__name__}'"
        raise session.raised(TypeError, text)
    return category


# -- logging ---------------------------------------------------------------------------------------


def _logs(function: Any) -> Rule:
    """The rule of a function of the logging module: called from the user's line, where levels,
    filters and handlers decide what becomes of it."""

    def rule(session: Session, args: Arguments, kwargs: Keywords) -> Value:
        if not set(kwargs) <= {"extra", "stacklevel", "msg", "level"}:
            raise session.unsupported("logging", f"side effect: logging with {', '.join(kwargs)}")
        logger, of_logger = _logger_of(session, function, args)
        if logger is not None:
            before_record(session, logger, of_logger, _LEVELS.get(function.__name__))
        frames = functools.partial(_frames_of_record, session, kwargs)
        session.effects.defer(logged_call(session, function, args, kwargs, frames))
        return NONE

    return rule


_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
"""Of records, by the name of the function that makes them."""


def _logger_of(session: Session, function: Any, args: Arguments) -> tuple[Any, Any]:
    """The logger that a function of the logging module is called of, and where it comes from; None
    for what is none."""
    if getattr(logging, function.__name__) is function:
        return logging.root, ConstSource(logging.root)
    value = session.realize(args[0])
    if not _is_logger(value):
        return None, None
    return value.object, value.source  # type: ignore[attr-defined]


def logged(session: Session, value: Value) -> Value:
    """An argument of something that is shown later, as it is now."""
    if _is_logger(value):
        return value
    return _required_snapshot(session, value, "side effect: logging of")


def _is_logger(value: Value) -> bool:
    """Whether a value is a logger from outside, which a record is given to and which nothing is
    read of."""
    return isinstance(getattr(value, "object", None), logging.Logger) and value.source is not None


def _frames_of_record(session: Session, kwargs: Keywords) -> list[InterpreterFrame]:
    """The frames by which a record finds its caller: those inside logging, and `stacklevel`
    more."""
    stacklevel = session.known(kwargs.get("stacklevel", ConstantValue(1)))
    frames = user_frames(session)
    inside = 0
    while inside < len(frames) and frames[inside].program.code.co_filename == _LOGGING_FILE:
        inside += 1
    count = inside + stacklevel
    if count > len(frames) or not _calls_are_frames(frames[inside : count - 1]):
        raise session.unsupported(
            "logging", "side effect: logging for a caller outside the compiled function"
        )
    return frames[:count]


_LOGGING_FILE = logging.Logger.info.__code__.co_filename
_METHODS = ("debug", "info", "warning", "warn", "error", "critical", "log")
for _owner in (logging.Logger, logging):
    for _name in _METHODS:
        _function: Any = getattr(_owner, _name)
        means(_function, how=How.UNREALIZED)(_logs(_function))


@means(logging.getLogger, how=How.UNREALIZED)
def _get_logger(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    name = session.known([*args, *kwargs.values(), NONE][0])
    return session.builtin(session.python(logging.getLogger, name))


def _question(method: Callable[..., Any]) -> Rule:
    """The rule of a method of loggers that asks about levels, which may change at any time."""

    def rule(session: Session, args: Arguments, kwargs: Keywords) -> Value:
        logger = session.realize(args[0])
        known = tuple(map(session.known, [*args[1:], *kwargs.values()]))
        changed = session.effects.has_changed(logging.Logger, logging.Manager)
        if changed or not _is_logger(logger):
            raise session.unsupported("library-function", f"a question to {logger.describe()}")
        ask = _answer_of(method, known)
        answer = session.python(ask, logger.object)  # type: ignore[attr-defined]
        source: Source = DerivedSource(logger.source, ask)  # type: ignore[arg-type]
        session.guard(source, Kind.EQUALS, answer)
        return ConstantValue(answer)

    return rule


@functools.cache
def _answer_of(method: Callable[..., Any], args: tuple[Any, ...]) -> Callable[[Any], Any]:
    """The same function for the same question."""

    def ask(logger: Any) -> Any:
        return method(logger, *args)

    ask.__name__ = method.__name__
    return ask


for _question_method in (
    logging.Logger.isEnabledFor,
    logging.Logger.getEffectiveLevel,
    logging.Logger.hasHandlers,
):
    means(_question_method, how=How.UNREALIZED)(_question(_question_method))
