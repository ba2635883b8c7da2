"""What happens while programs are compiled: counts, a trace in a file, and loggers.

Captures, compilations, programs that are found, recompilations, breaks and fallbacks go in, as they
happen. Out come `counters()`, lines of JSON in the file that INGOT_TRACE names, and messages of
the loggers `ingot.<stage>`. A call that an entry serves passes nothing of this.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import threading
import time
from collections import Counter
from typing import Any

from ingot.errors import Unsupported

VARIABLE = "INGOT_TRACE"

CAPTURE, COMPILATION, BACKWARD = "capture", "compilation", "backward"
FOUND, RECOMPILATION, BREAK, FALLBACK = "found", "recompilation", "break", "fallback"

_TOTALS = {
    CAPTURE: "captures",
    COMPILATION: "compilations",
    BACKWARD: "backwards",
    FOUND: "found",
    RECOMPILATION: "recompilations",
}
"""What `counters` calls each kind; breaks and fallbacks are counted by their causes."""

_LOGGERS = {
    CAPTURE: "ingot.capture",
    COMPILATION: "ingot.compile",
    BACKWARD: "ingot.compile",
    FOUND: "ingot.cache",
    RECOMPILATION: "ingot.recompile",
    BREAK: "ingot.break",
    FALLBACK: "ingot.fallback",
}

_counts: Counter[str] = Counter()
_causes: dict[str, Counter[str]] = {BREAK: Counter(), FALLBACK: Counter()}
_numbers = itertools.count(1)
_now = threading.local()  # the ids of what goes on in this thread, the innermost last


def counters() -> dict[str, Any]:
    """How often each thing has happened in this process, since it began or since `ingot.reset`.

    "captures", "compilations" (of functions, and of what follows their graph breaks), "backwards",
    "found" (programs that an earlier process kept) and "recompilations" are counts; "breaks" and
    "fallbacks" (decisions to run a call, and those like it, in eager) have a count for each id of a
    reason, a row of docs/limits.md.
    """
    counts: dict[str, Any] = {}
    for kind, name in _TOTALS.items():
        counts[name] = _counts[kind]
    for kind, causes in _causes.items():
        counts[f"{kind}s"] = dict(causes)
    return counts


def reset() -> None:
    """All counts begin anew."""
    _counts.clear()
    for causes in _causes.values():
        causes.clear()


class Span:
    """Something that takes a while: what happens inside, in this thread, belongs to it.

    It counts, and is written, at its end, also where it raises. `facts` may be added to meanwhile.
    """

    def __init__(
        self, kind: str, function: str, where: str, parent: str | None = None, **facts: Any
    ) -> None:
        self.kind, self.function, self.where = kind, function, where
        self.id, self.parent = _new_id(), parent
        self.facts = facts

    def __enter__(self) -> Span:
        self.parent = _innermost() or self.parent
        _stack().append(self.id)
        self.begin, self._start = time.time(), time.perf_counter()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        _stack().remove(self.id)
        if error is not None:
            self.facts.setdefault("error", type(error).__name__)
        self.facts["seconds"] = time.perf_counter() - self._start
        _emit(self.kind, self.begin, self.id, self.parent, self.function, self.where, self.facts)


def note(kind: str, function: str, where: str, parent: str | None = None, **facts: Any) -> None:
    """Something that takes no time; it belongs to what goes on, or to `parent` if nothing does."""
    _emit(kind, time.time(), _new_id(), _innermost() or parent, function, where, facts)


def note_reason(
    kind: str, function: str, where: str, why: Unsupported, parent: str | None = None
) -> None:
    """A break or fallback, for a reason; `where` is taken if the reason has no place."""
    reason = why.why
    facts: dict[str, Any] = {
        "cause": reason.id,
        "wrote": why.wrote,
        "reason": why.reason,
        "hint": why.hint,
    }
    if len(reason.stack) > 1 and _file is not None:
        facts["stack"] = [f"{spot.where} in {spot.function}" for spot in reason.stack]
    note(kind, why.function or function, why.where or where, parent, **facts)


def note_stage(function: str, stage: str, seconds: float) -> None:
    """How long a stage of the compiler took, for the stage's logger."""
    log = logging.getLogger(f"ingot.{stage.replace(' ', '_')}")
    if log.isEnabledFor(logging.DEBUG):
        log.debug("%s: %s took %.1f ms", encodable(function), stage, seconds * 1e3)


def _emit(
    kind: str,
    begin: float,
    id: str,
    parent: str | None,
    function: str,
    where: str,
    facts: dict[str, Any],
) -> None:
    cause = facts.get("cause")
    if cause is not None:
        _causes[kind][cause] += 1
    _counts[kind] += 1
    log = logging.getLogger(_LOGGERS[kind])
    if log.isEnabledFor(logging.DEBUG):
        shown = [f"{name}={value}" for name, value in facts.items() if value not in ("", None)]
        message = f"{kind} of {function} at {where or '?'}: {', '.join(shown)}"
        log.debug("%s", encodable(message))
    if _file is None:
        return
    event = {"event": kind, "time": begin, "id": id, "parent": parent}
    place = {"pid": os.getpid(), "thread": threading.get_native_id()}
    what = {"function": function, "where": where}
    _file.write(json.dumps(event | place | what | facts, default=str) + "\n")


def encodable(text: str) -> str:
    """The text, with escapes for what UTF-8 has no bytes for, as names of files may have it. The
    handlers of loggers write to files and sockets, which refuse it."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _new_id() -> str:
    return f"{os.getpid()}-{next(_numbers)}"


def _stack() -> list[str]:
    if not hasattr(_now, "ids"):
        _now.ids = []
    stack: list[str] = _now.ids
    return stack


def _innermost() -> str | None:
    stack = _stack()
    return stack[-1] if stack else None


# -- the file --------------------------------------------------------------------------------------


class _File:
    """A file that several threads and processes append to.

    A line is one call of `write`, which the system does as a whole at the file's end. A process
    that forks shares it with its children."""

    def __init__(self, path: str) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._number = os.open(path, flags, 0o666)
        self.path = path

    def write(self, line: str) -> None:
        try:
            os.write(self._number, line.encode("utf-8", "backslashreplace"))
        except OSError as problem:
            self.close()
            trace_to(None)
            warn("trace", f"{VARIABLE}: {self.path} cannot be written: {problem.strerror}")

    def close(self) -> None:
        os.close(self._number)


_file: _File | None = None


def trace_to(path: str | os.PathLike[str] | None) -> None:
    """Append events to a file from now on, or to none. Where it cannot be opened there is a
    warning, and no trace."""
    global _file
    _file = None
    if path:
        try:
            _file = _File(os.fspath(path))
        except OSError as problem:
            warn("trace", f"{VARIABLE}: {path} cannot be opened: {problem.strerror}")


# -- warnings --------------------------------------------------------------------------------------


_warned = set[tuple[str, str]]()


def warn(cause: str, message: str, where: str = "") -> None:
    """A warning of the logger `ingot`, once for each cause and place.

    It is none of `warnings`: the program may record those, or have them raised.
    """
    if (cause, where) in _warned:
        return
    _warned.add((cause, where))
    text = f"{where}: {message}" if where else message
    logging.getLogger("ingot").warning("%s", encodable(text))


trace_to(os.environ.get(VARIABLE))
