"""Many kernels at a time: processes translate them, while this one goes on.

Half of what Triton does for a kernel it does in Python, which runs one thread at a time: 450
kernels of a network's training took 14 s on 16 cores, in 16 threads. And its import takes a second,
which a process that is started early spends beside the steps that come before.
"""

from __future__ import annotations

import atexit
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Generic, TypeVar

from ingot.codegen.triton import translation
from ingot.codegen.triton.translation import Text, Translated, received, send
from ingot.serial import POLL, own_threads, safe_point

VARIABLE = "INGOT_COMPILE_PROCESSES"

MOST = 16
"""Processes at most, as each takes 150 MB."""

FEWEST_CORES, FEWEST_KERNELS = 4, 24
"""With fewer, threads have done it by the time that the processes have started."""

NODES_OF_A_KERNEL = 8
"""Of a captured graph, for each different kernel that it will need: networks have from 4 to 12."""

SOON, LATER = 0, 1
"""Whether somebody will wait for a kernel soon. Those of one kind are translated in their order."""

T = TypeVar("T")


def how_many(kernels: int) -> int:
    """How many processes so many kernels are worth; 0 if none."""
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    named = os.environ.get(VARIABLE, "")
    if named.isdecimal():
        return min(int(named), kernels)
    # what is embedded in a program names that program, which would run once more
    is_python = Path(sys.executable or "").name.startswith("python") and not hasattr(sys, "frozen")
    if not is_python or cores < FEWEST_CORES or kernels < FEWEST_KERNELS:
        return 0
    return min(cores, MOST, kernels)


class Job(Generic[T]):
    """A text for a worker, what is `made` of its translation, and how that is made `here`, in this
    process, where no worker does it."""

    def __init__(self, text: Text, made: Callable[[Translated], T], here: Callable[[], T]) -> None:
        self.text, self.is_begun = text, False
        self._made, self._here = made, here
        self._process, self._ended = os.getpid(), threading.Event()
        self._result: T | None = None

    @property
    def is_done(self) -> bool:
        return self._ended.is_set()

    def end(self, translated: Translated | None) -> None:
        """Takes what a worker made of it, None if nothing."""
        try:
            if translated is not None:
                self._result = self._made(translated)
        except Exception:
            pass  # who asks for the result finds the error by himself
        finally:
            self._ended.set()

    def result(self) -> T:
        """Waits for it. Raises the error if there is one."""
        # a fork has no threads that would end it
        while not self.is_done and self._process == os.getpid():
            safe_point()
            self._ended.wait(POLL)
        if self._result is None:
            self._result = self._here()
            self._ended.set()
        return self._result


class Workers:
    """Processes that translate kernels, for as long as there are jobs, or they are `held`.

    Several threads may use it. Each process has a thread, which gives it one job at a time.
    """

    def __init__(self) -> None:
        self._numbers = count()
        self._children: list[subprocess.Popen[bytes]] = []
        self._parents: list[subprocess.Popen[bytes]] = []  # in a fork
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._queue: queue.PriorityQueue[tuple[int, int, Job[Any] | None]] = queue.PriorityQueue()
        self._holders = 0
        self._open = 0  # jobs that are not done

    @property
    def count(self) -> int:
        """How many processes there are."""
        return len(self._children)

    @contextmanager
    def held(self, processes: int) -> Iterator[None]:
        """Starts so many processes if there are none, and keeps those that there are."""
        with self._lock:
            self._holders += 1
            self._start(processes)
        try:
            yield
        finally:
            with self._lock:
                self._holders = max(0, self._holders - 1)
                self._stop_if_idle()

    def take(self, jobs: Sequence[Job[Any]], processes: int, when: int = SOON) -> bool:
        """Puts the jobs into the queue, for these processes if there are none. False where none can
        be had."""
        with self._lock:
            self._start(processes)
            if not self._children:
                return False
            self._open += len(jobs)
            for job in jobs:
                self._queue.put((when, next(self._numbers), job))
        return True

    def hurry(self, jobs: Sequence[Job[Any]]) -> None:
        """Has these jobs done before those that are for later: somebody waits for them."""
        with self._lock:
            for job in jobs:
                if self._children and not job.is_begun:
                    self._queue.put((SOON, next(self._numbers), job))

    def stop(self) -> None:
        """Ends the processes. Who waits for a job then does it."""
        with self._lock:
            self._stop()

    def renew(self) -> None:
        """Forgets all, in a fork: processes and threads are the parent's."""
        self._parents += self._children
        self._children = []
        self._reset()

    # -- with the lock -----------------------------------------------------------------------------

    def _start(self, processes: int) -> None:
        if self._children:
            return
        for _ in range(processes):
            child = _started()
            if child is None:
                return
            self._children.append(child)
            serve = threading.Thread(
                target=self._serve, args=(child, self._queue), name="ingot", daemon=True
            )
            own_threads.add(serve)
            try:
                serve.start()
            except RuntimeError:  # no new threads at the interpreter's exit
                self._children.remove(child)
                _end(child)
                return

    def _stop_if_idle(self) -> None:
        if not (self._open or self._holders):
            self._stop()

    def _stop(self) -> None:
        children, self._children = self._children, []
        jobs, self._queue = self._queue, queue.PriorityQueue()
        self._open = 0
        for child in children:
            child.kill()
        for child in children:
            _end(child)
        while not jobs.empty():
            *_, job = jobs.get()
            if job is not None and not job.is_begun:
                job.end(None)
        for _ in children:
            jobs.put((LATER, next(self._numbers), None))

    # -- in the thread of a process ----------------------------------------------------------------

    def _serve(self, child: subprocess.Popen[bytes], jobs: queue.PriorityQueue[Any]) -> None:
        answer: list[Translated] | None = []
        while answer is not None:
            *_, job = jobs.get()
            if job is None:
                return
            with self._lock:
                is_mine, job.is_begun = not job.is_begun, True
            if not is_mine:
                continue
            answer = _asked(child, job.text)
            job.end(answer[0] if answer else None)
            with self._lock:
                if jobs is self._queue:  # else they were stopped
                    self._open -= 1
                    if answer is None:
                        self._lose(child)
                    self._stop_if_idle()

    def _lose(self, child: subprocess.Popen[bytes]) -> None:
        """Goes on without a process that is gone."""
        self._children.remove(child)
        _end(child)
        if not self._children:
            self._stop()


WORKERS = Workers()
"""Those of this process."""

atexit.register(WORKERS.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=WORKERS.renew)


def _started() -> subprocess.Popen[bytes] | None:
    command = [sys.executable, "-P", translation.__file__]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
    try:
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nothing, env=environment)
    except Exception:  # no more processes, no memory, or a sandbox that forbids them
        return None


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    for stream in (child.stdin, child.stdout):
        assert stream is not None
        try:
            stream.close()
        except (OSError, ValueError):  # with what it was to be told still unsent, or in use
            pass


def _asked(child: subprocess.Popen[bytes], text: Text) -> list[Translated] | None:
    """What a worker makes of a text, nothing if it fails; None if the worker is gone."""
    assert child.stdin is not None and child.stdout is not None
    try:
        send(child.stdin, list(text))
        message = received(child.stdout)
    except (OSError, ValueError):
        return None
    if message is None:
        return None
    facts, parts = message
    if not facts:
        return []
    (function, shared, hidden), (image, assembly) = facts, parts
    return [Translated(image, assembly.decode(), function, shared, hidden)]
