"""What receives what is printed, warned of and logged, and writes to what the function reads."""

from __future__ import annotations

import contextlib
import io
import logging
import logging.handlers
import sys
import unittest
import warnings
from collections import deque
from typing import Any

import pytest
import torch

import ingot

X = torch.arange(3.0)
SEEN: Any = []
COUNTS: dict[str, int] = {}
log = logging.getLogger("tests.receivers")


class State:
    taken = 0


class Stream(io.StringIO):
    def write(self, text: str) -> int:
        take(text)
        return len(text)


class Tee:
    """A stream that is no file."""

    def write(self, text: str) -> None:
        take(text)

    def flush(self) -> None:
        pass


class Handler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        take(record.getMessage())


class Formatter(logging.Formatter):
    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (logging's name)
        take(record.message)
        return super().formatMessage(record)


class Record(logging.LogRecord):
    def getMessage(self) -> str:  # noqa: N802
        take("got")
        return super().getMessage()


def take(text: Any) -> None:
    SEEN.append(str(text))
    COUNTS["all"] = COUNTS.get("all", 0) + 1
    State.taken += 1


def show(message: Any, *rest: Any, **named: Any) -> None:
    take(message)


def format_warning(message: Any, *rest: Any, **named: Any) -> str:
    take(message)
    return ""


def keep(record: Any) -> bool:
    take(record.msg)
    return True


# -- who receives it -------------------------------------------------------------------------------


@contextlib.contextmanager
def handled(handler: logging.Handler, formatter: logging.Formatter | None = None) -> Any:
    handler.setFormatter(formatter)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Any:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def printed_to_a_class() -> Any:
    return replaced(sys, "stdout", Stream())


def printed_to_no_file() -> Any:
    return replaced(sys, "stdout", Tee())


def printed_to_an_instance() -> Any:
    stream = io.TextIOWrapper(io.BytesIO())
    stream.write = take  # type: ignore[method-assign, assignment]
    return replaced(sys, "stdout", stream)


def printed_to_a_list() -> Any:
    stream = io.TextIOWrapper(io.BytesIO())
    stream.write = SEEN.append  # type: ignore[method-assign]
    return replaced(sys, "stdout", stream)


def shown_by_a_function() -> Any:
    return replaced(warnings, "showwarning", show)


def formatted_by_a_function() -> Any:
    return replaced(warnings, "formatwarning", format_warning)


def warned_to_a_stream() -> Any:
    return replaced(sys, "stderr", Stream())


@contextlib.contextmanager
def warned_to_a_list() -> Any:
    global SEEN
    before = SEEN
    with warnings.catch_warnings(record=True) as SEEN:  # type: ignore[assignment]
        warnings.simplefilter("always")
        yield
    SEEN = before


@contextlib.contextmanager
def warned_to_a_logger() -> Any:
    logger, handler = logging.getLogger("py.warnings"), Handler()
    logging.captureWarnings(True)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logging.captureWarnings(False)


def logged_to_a_handler() -> Any:
    return handled(Handler())


def logged_by_a_formatter() -> Any:
    return handled(logging.StreamHandler(io.StringIO()), Formatter())


def logged_to_a_stream() -> Any:
    return handled(logging.StreamHandler(Stream()))


def logged_through_a_buffer() -> Any:
    return handled(logging.handlers.MemoryHandler(1, target=Handler()))


@contextlib.contextmanager
def logged_to_a_buffer() -> Any:
    global SEEN
    before, handler = SEEN, logging.handlers.BufferingHandler(100)
    SEEN = handler.buffer
    with handled(handler):
        yield
    SEEN = before


@contextlib.contextmanager
def logged_to_a_queue() -> Any:
    global SEEN
    before, SEEN = SEEN, deque()

    class Queue:
        put_nowait = SEEN.append

    with handled(logging.handlers.QueueHandler(Queue())):  # type: ignore[arg-type]
        yield
    SEEN = before


@contextlib.contextmanager
def logged_to_a_test() -> Any:
    global SEEN
    before = SEEN
    with unittest.TestCase().assertLogs(log) as caught:
        SEEN = caught.output
        log.info("one is needed")
        yield
    SEEN = before


@contextlib.contextmanager
def logged_through_a_filter() -> Any:
    log.addFilter(keep)
    try:
        yield
    finally:
        log.removeFilter(keep)


@contextlib.contextmanager
def logged_as_a_record_of_its_own() -> Any:
    logging.setLogRecordFactory(Record)
    try:
        with handled(logging.StreamHandler(io.StringIO())):
            yield
    finally:
        logging.setLogRecordFactory(logging.LogRecord)


def prints(text: str) -> None:
    print(text)


def warns(text: str) -> None:
    warnings.warn(text)  # noqa: B028


def logs(text: str) -> None:
    log.warning(text)


RECEIVERS = {
    prints: (printed_to_a_class, printed_to_no_file, printed_to_an_instance, printed_to_a_list),
    warns: (
        shown_by_a_function,
        formatted_by_a_function,
        warned_to_a_stream,
        warned_to_a_list,
        warned_to_a_logger,
    ),
    logs: (
        logged_to_a_handler,
        logged_by_a_formatter,
        logged_to_a_stream,
        logged_through_a_buffer,
        logged_to_a_buffer,
        logged_to_a_queue,
        logged_to_a_test,
        logged_through_a_filter,
        logged_as_a_record_of_its_own,
    ),
}
PAIRS = [(act, receiver) for act, receivers in RECEIVERS.items() for receiver in receivers]


# -- what is read afterwards -----------------------------------------------------------------------


def its_length() -> Any:
    return len(SEEN)


def its_texts() -> Any:
    return [str(getattr(one, "message", one)) for one in SEEN]


def another_list() -> Any:
    return len(COUNTS), COUNTS.get("all")


def a_class() -> Any:
    return State.taken


READS = (its_length, its_texts, another_list, a_class)


@pytest.mark.parametrize("read", READS, ids=lambda read: read.__name__)
@pytest.mark.parametrize(
    "pair",
    PAIRS,
    ids=[receiver.__name__ for receivers in RECEIVERS.values() for receiver in receivers],
)
def test_what_receivers_write_is_read(pair: Any, read: Any) -> None:
    act, receiver = pair

    def fn(x):
        first = read()
        act("one")
        second = read()
        act("two")
        return x + 1, first, second, read()

    def calls(function: Any) -> list[Any]:
        SEEN.clear()
        COUNTS.clear()
        State.taken = 0
        results = []
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            for _ in range(2):
                results.append(function(X)[1:])
            with receiver():
                for _ in range(3):
                    results.append(function(X)[1:])
            results.append(function(X)[1:])
        return results

    assert calls(ingot.compile(fn, backend="eager")) == calls(fn)


@pytest.mark.parametrize("act", RECEIVERS, ids=lambda act: act.__name__)
def test_what_libraries_receive_breaks_nothing(act: Any, caplog: Any, capsys: Any) -> None:
    """Streams of C and handlers of libraries: one graph."""

    def fn(x):
        act("one")
        return x + 1, len(COUNTS)

    compiled = ingot.compile(fn, fullgraph=True, backend="eager")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            assert torch.equal(compiled(X)[0], X + 1)
    shown = capsys.readouterr()
    texts = [*shown.out.split(), *caplog.messages, *map(str, (one.message for one in caught))]
    assert texts == ["one", "one"]


@pytest.mark.parametrize("level", [logging.DEBUG, logging.ERROR])
def test_handlers_that_take_no_record_of_the_level(level: int) -> None:
    def fn(x):
        log.info("not shown")
        return x + 1

    handler = Handler(logging.ERROR)
    compiled = ingot.compile(fn, fullgraph=True, backend="eager")
    before = log.level
    log.setLevel(level)
    try:
        with handled(handler):
            assert torch.equal(compiled(X), X + 1)
    finally:
        log.setLevel(before)


# -- what receivers see ----------------------------------------------------------------------------


class Box:
    def __init__(self) -> None:
        self.step = 0
        self.items: list[str] = []


BOX: list[Box] = []
"""The one that is looked at whenever a record arrives."""

WATCHING = """
class Watching(logging.Handler):
    def __init__(self):
        super().__init__()
        self.seen = []

    def emit(self, record):
        self.seen.append((record.getMessage(), BOX[0].step, list(BOX[0].items)))
"""


def watching(file: str) -> Any:
    """The class of such handlers, from a file: of a library's the graph is not broken."""
    namespace = {"logging": logging, "BOX": BOX, "__name__": "watching"}
    exec(compile(WATCHING, file, "exec"), namespace)
    return namespace["Watching"]


def watched(x, box):
    box.step = 1
    log.info("one %d", box.step)
    box.step = 2
    box.items.append("a")
    log.info("two %s", "x")
    box.items.append("b")
    box.step = 3
    return x


@pytest.mark.parametrize("file", [pytest.__file__, __file__], ids=["library", "program"])
def test_effects_keep_their_order(file: str, caplog: Any) -> None:
    compiled = ingot.compile(watched, fullgraph=file != __file__, backend="eager")
    with caplog.at_level(logging.INFO, logger=log.name):
        seen = []
        for fn in (watched, compiled, compiled):
            box = Box()
            BOX[:] = [box]
            handler = watching(file)()
            log.addHandler(handler)
            fn(X, box)
            log.removeHandler(handler)
            seen.append((handler.seen, box.step, box.items))
    assert seen[0] == seen[1] == seen[2] and len(seen[0][0]) == 2
