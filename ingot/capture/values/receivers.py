"""Who receives what a function prints, warns of and logs: streams, filters and handlers.

That is done after the graph has run, and the receivers' code with it. Code of the program's own may
write to anything that the function reads afterwards, so it breaks the graph. Code of libraries is
expected to write to what its own objects hold, and capture does not read that any more
(`Effects.hand_over`). In: a logger, or the process. Out: guards; nothing is called but to ask for
methods.
"""

from __future__ import annotations

import functools
import logging
import sys
import warnings
from collections.abc import Callable, Iterator
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from ingot.capture.sources import ConstSource, DerivedSource, GlobalSource, ItemSource, Source
from ingot.origins import is_installed, is_trusted

if TYPE_CHECKING:
    from ingot.capture.session import Session

_METHODS = {
    logging.Logger: ("_log", "makeRecord", "findCaller", "filter", "handle", "callHandlers"),
    logging.Handler: ("filter", "handle", "emit", "format", "flush"),
    logging.Formatter: ("format", "formatTime", "formatMessage", "formatException", "formatStack"),
}
"""What a record is given to, by the class that has the methods."""

_WITHOUT_STATE = (type, ModuleType, FunctionType, MethodType, logging.Logger)
"""What holds nothing that a receiver is expected to write to."""

_IMMUTABLE = (str, bytes, int, float, tuple, type(None))


# -- whose code it is ------------------------------------------------------------------------------


def _stranger(function: Any) -> str:
    """What the program's own code among receivers is called; empty for that of libraries."""
    if isinstance(function, MethodType):
        function = function.__func__
    if isinstance(function, FunctionType):
        is_known = is_installed(function.__code__.co_filename)
    elif isinstance(function, type):
        is_known = is_trusted(function.__module__)
    else:
        is_known = not callable(function) or isinstance(function, _WRITTEN_IN_C)
    return "" if is_known else getattr(function, "__qualname__", type(function).__qualname__)


_WRITTEN_IN_C = (BuiltinMethodType, type(str.__init__))


def _of_methods(object_: Any, names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        yield _stranger(getattr(object_, name, None))


def _of_attributes(handler: Any) -> Iterator[str]:
    """Of what a handler gives records to: a queue, a target."""
    for held in vars(handler).values():
        module = sys.modules.get(type(held).__module__)
        file = getattr(module, "__file__", None)
        if file is not None and not is_installed(file):
            yield type(held).__qualname__


def _of_stream(stream: Any) -> Iterator[str]:
    for name in ("write", "flush"):
        method = getattr(stream, name, None)
        if isinstance(method, BuiltinMethodType) and method.__self__ is not stream:
            yield method.__qualname__  # list.append, say
        yield _stranger(method)


def _of_filters(owner: Any) -> Iterator[str]:
    for one in owner.filters:
        yield _stranger(getattr(one, "filter", one))


def _handlers_of(logger: logging.Logger, level: int | None) -> Iterator[logging.Handler]:
    """The handlers that a record of this logger and level reaches; of some level for None."""
    owner: logging.Logger | None = logger
    is_handled = False
    while owner is not None:
        for handler in owner.handlers:
            is_handled = True
            if level is None or level >= handler.level:
                yield from _with_targets(handler)
        owner = owner.parent if owner.propagate else None
    if not is_handled and logging.lastResort is not None:
        yield logging.lastResort


def _with_targets(handler: logging.Handler) -> Iterator[logging.Handler]:
    """A handler, and those that it gives records to."""
    yield handler
    for target in vars(handler).values():
        if isinstance(target, logging.Handler) and target is not handler:
            yield from _with_targets(target)


def _of_logger(logger: logging.Logger, level: int | None) -> Iterator[str]:
    yield _stranger(logging.getLogRecordFactory())
    yield from _of_methods(logger, _METHODS[logging.Logger])
    yield from _of_filters(logger)
    for handler in _handlers_of(logger, level):
        yield from _of_methods(handler, _METHODS[logging.Handler])
        yield from _of_filters(handler)
        yield from _of_attributes(handler)
        yield from _of_methods(handler.formatter, _METHODS[logging.Formatter])
        if (stream := getattr(handler, "stream", None)) is not None:
            yield from _of_stream(stream)


def _of_warnings(module: ModuleType) -> Iterator[str]:
    yield from _of_stream(sys.stderr)
    for name in ("showwarning", "formatwarning", "_showwarnmsg_impl"):
        function = getattr(module, name, None)
        if isinstance(function, BuiltinMethodType) and not _is_list_of(function):
            yield function.__qualname__
        yield _stranger(function)
    if module.showwarning is vars(logging)["_showwarning"]:  # by logging.captureWarnings
        yield from _of_logger(logging.getLogger("py.warnings"), logging.WARNING)


def _first(strangers: Iterator[str]) -> str:
    return next(filter(None, strangers), "")


def stranger_of_stream(stream: Any) -> str:
    """The program's own code that runs for what is printed; empty if there is none."""
    return _first(_of_stream(stream))


def stranger_of_warnings(module: ModuleType) -> str:
    """The same for what is warned of."""
    return _first(_of_warnings(module))


@functools.cache
def stranger_of_records(level: int | None) -> Callable[[logging.Logger], str]:
    """The same for records of a level; of any level for None."""

    def stranger_of_logger(logger: logging.Logger) -> str:
        if level is not None and not logger.isEnabledFor(level):
            return ""
        return _first(_of_logger(logger, level))

    return stranger_of_logger


# -- what libraries' receivers write to ------------------------------------------------------------


def _is_list_of(function: Any) -> bool:
    """Whether it is the list of warnings.catch_warnings(record=True) that takes what is warned
    of."""
    return isinstance(getattr(function, "__self__", None), list) and function.__name__ == "append"


def _reached(value: Any, depth: int) -> Iterator[Any]:
    """What a receiver may write to: it, and what its attributes hold. The elements of a list are
    what was written, and no fixed number."""
    if isinstance(value, _WITHOUT_STATE):
        return
    if not isinstance(value, _IMMUTABLE):
        yield value
    if depth > 0:
        held = value if isinstance(value, tuple) else getattr(value, "__dict__", {}).values()
        for one in list(held):
            yield from _reached(one, depth - 1)


def written_by_warnings(module: ModuleType) -> list[Any]:
    """What shows a warning, where that is a list that takes it."""
    impl: Any = getattr(module, "_showwarnmsg_impl", None)
    if _is_list_of(impl):
        return [impl.__self__]
    if module.showwarning is vars(logging)["_showwarning"]:
        return written_by_handlers(logging.getLogger("py.warnings"))
    return []


def written_by_handlers(logger: logging.Logger) -> list[Any]:
    """The handlers of a logger that keep what they are given, and what they hold."""
    reached: list[Any] = []
    for handler in _handlers_of(logger, None):
        if type(handler).__module__ != "logging":  # those write to streams alone
            reached += _reached(handler, 2)
    return reached


def _is_handed_over(
    session: Session, written: Callable[[Any], list[Any]], owner: Any, source: Source
) -> bool:
    """Takes note that what others can see changes what `written` gives of an object: capture does
    not read it from here on. False where it was read before."""
    session.guard_derived(_counted(written), owner, source)
    for i, object_ in enumerate(written(owner)):
        path = ItemSource(DerivedSource(source, written), i)
        if not session.effects.hand_over(session, object_, path):
            return False
    return True


@functools.cache
def _counted(written: Callable[[Any], list[Any]]) -> Callable[[Any], int]:
    def count(owner: Any) -> int:
        return len(written(owner))

    count.__name__ = f"count of {written.__name__}"
    return count


# -- before something is shown ---------------------------------------------------------------------

_READ = "side effect: what takes it was read before"


def before_print(session: Session, name: str) -> None:
    """States who receives what is printed to `sys.stdout` or `sys.stderr`.

    Raises Unsupported where that is code of the program's own."""
    source = GlobalSource(vars(sys), name)
    stranger = session.guard_derived(stranger_of_stream, getattr(sys, name), source)
    if stranger:
        raise session.unsupported("print", f"side effect: print to {stranger} of the program")


def before_warning(session: Session) -> None:
    """The same of a warning, and of a list that is read."""
    source = ConstSource(warnings)
    stranger = session.guard_derived(stranger_of_warnings, warnings, source)
    if stranger:
        raise session.unsupported("warning", f"side effect: a warning for {stranger}")
    if not _is_handed_over(session, written_by_warnings, warnings, source):
        raise session.unsupported("warning", _READ)


def before_record(
    session: Session, logger: logging.Logger, source: Source, level: int | None
) -> None:
    """The same of a record of a level, or of one that is not known."""
    stranger = session.guard_derived(stranger_of_records(level), logger, source)
    if stranger:
        raise session.unsupported("logging", f"side effect: a log record for {stranger}")
    if not _is_handed_over(session, written_by_handlers, logger, source):
        raise session.unsupported("logging", _READ)
