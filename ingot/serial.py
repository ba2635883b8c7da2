"""Compilation is serial in a process: it runs torch's own tracing state. The call path takes no
lock.

No handler of a signal runs in the middle of a compilation, which has state at every step that an
exception there would leave behind: locks, modes, half of a module. A compilation is given up at
safe points, and then the handlers run. What is not Python takes long and has no safe points (LLVM,
Triton) runs in threads that are waited for.
"""

from __future__ import annotations

import functools
import importlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, ParamSpec, TypeVar

from ingot.native import _native

P = ParamSpec("P")
T = TypeVar("T")
Item = TypeVar("Item")

safe_point: Callable[[], None] = _native.safe_point
"""Is called where a compilation may be given up. Raises Interrupted where a signal waits to be
handled."""


def serial(function: Callable[P, T]) -> Callable[P, T]:
    """The function, during which no other thread compiles, and no signal is handled but at its
    end. What is given up for a signal's sake is done again where the handler does not raise:
    nothing may be lost by that."""

    @functools.wraps(function)
    def alone(*args: P.args, **kwargs: P.kwargs) -> T:
        return _native.run_whole(function, args, kwargs, True)

    return alone


def whole(function: Callable[P, T]) -> Callable[P, T]:
    """The function, without the handling of signals while it runs. It is short, and calls no code
    of others."""

    @functools.wraps(function)
    def uncut(*args: P.args, **kwargs: P.kwargs) -> T:
        return _native.run_whole(function, args, kwargs, False)

    return uncut


def call_users(function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function of the user's from within a compilation. Signals are handled there as
    usual."""
    safe_point()
    return _native.run_handled(function, args, kwargs)


# -- threads that are waited for -------------------------------------------------------------------

POLL = 0.02
"""Seconds between safe points while others work."""


own_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
"""Those that stay beside a compilation, and run no code of others."""


def runs_alone() -> bool:
    """Whether this thread is the only one, but for those of Ingot's."""
    others = set(threading.enumerate()) - {threading.current_thread(), *own_threads}
    return not others


def in_threads(function: Callable[[Item], T], items: Iterable[Item], most: int) -> list[T]:
    """The function's result for each item, in `most` threads at a time. A signal ends the wait, not
    the threads, which come to an end by themselves; what they do must not matter then."""
    futures: list[Future[T] | Callable[[], T]] = []
    pool = ThreadPoolExecutor(most, "ingot")
    try:
        for item in items:
            work = functools.partial(function, item)
            try:
                futures.append(pool.submit(work))
            except RuntimeError:
                # no new threads at the interpreter's exit, nor beyond the system's limit
                futures.append(work)
        results = []
        for f in futures:
            results.append(_awaited(f) if isinstance(f, Future) else f())
        return results
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _awaited(future: Future[T]) -> T:
    while True:
        safe_point()
        wait([future], POLL)
        if future.done():
            return future.result()


# -- forks -----------------------------------------------------------------------------------------

_WAIT = 10.0  # seconds at most that a fork waits for the imports of another thread

_native_locks: weakref.WeakSet[Any] = weakref.WeakSet()
_forking = threading.RLock()
_thread = threading.local()


def awaited_by_forks(lock: T) -> T:
    """The lock, which a fork takes first: what it guards, in a library, is at rest then."""
    _native_locks.add(lock)
    return lock


def _before_fork() -> None:
    _forking.acquire()
    _await_imports(time.monotonic() + _WAIT)
    locks: list[Any] = []
    while missing := _beside(locks):
        for lock in missing:
            lock.acquire()
            locks.append(lock)
    _thread.locks = locks


def _beside(locks: list[Any]) -> list[Any]:
    """The locks that are awaited, beside these."""
    ids = set(map(id, locks))
    return [lock for lock in _native_locks if id(lock) not in ids]


def _await_imports(end: float) -> None:
    """Wait until a thread that compiles has imported what it is importing: the child would wait
    for it for ever."""
    if _native.compile_lock.acquire(blocking=False):
        return _native.compile_lock.release()
    while _import_elsewhere() and time.monotonic() < end:
        time.sleep(0.001)


def _import_elsewhere() -> bool:
    """Whether another thread is importing a module."""
    locks: dict[str, Callable[[], Any]] = getattr(importlib, "_bootstrap")._module_locks  # noqa: B009
    owners = set()
    for lock in [*locks.values()]:
        owners.add(getattr(lock(), "owner", None))
    return not owners <= {None, threading.get_ident()}


def _after_fork() -> None:
    for lock in _thread.__dict__.pop("locks", ()):
        lock.release()
    _forking.release()


def _after_fork_in_child() -> None:
    _native.renew_after_fork()
    _after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
    )
