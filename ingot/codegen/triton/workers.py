"""Many kernels at a time: each thread has a process translate for it.

Half of what Triton does for a kernel it does in Python, which runs one thread at a time: 450
kernels of a network's training took 14 s on 16 cores, in 16 threads.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from pathlib import Path

from ingot.codegen.triton import translation
from ingot.codegen.triton.translation import Text, Translated, received, send, translate

VARIABLE = "INGOT_COMPILE_PROCESSES"

MOST = 16
"""Processes at most, as each takes 150 MB."""

FEWEST_CORES, FEWEST_KERNELS = 4, 24
"""With fewer, threads have done it by the time that the processes have started."""


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


class Workers:
    """Processes that translate kernels. To be used in a `with` statement, at whose end they are
    ended. Several threads may call it."""

    def __init__(self, count: int) -> None:
        self._idle: queue.SimpleQueue[subprocess.Popen[bytes] | None] = queue.SimpleQueue()
        self._children: list[subprocess.Popen[bytes]] = []
        for _ in range(count):
            self._idle.put(self._started())

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        for child in self._children:
            child.kill()
        for child in self._children:
            child.wait()
            for stream in (child.stdin, child.stdout):
                assert stream is not None
                try:
                    stream.close()
                except OSError:  # with what it was to be told still unsent
                    pass

    def _started(self) -> subprocess.Popen[bytes] | None:
        command = [sys.executable, "-P", translation.__file__]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        try:
            child = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=nothing, env=environment
            )
        except Exception:  # no more processes, no memory, or a sandbox that forbids them
            return None
        self._children.append(child)
        return child

    def __call__(self, text: Text) -> Translated:
        """The image of a kernel. This process translates it where a worker cannot, and raises the
        error if there is one."""
        child = self._idle.get()
        answer = None
        try:
            if child is not None:
                answer = _asked(child, text)
        finally:
            self._idle.put(child if answer is not None else None)
        if not answer:
            return translate(text)
        return answer[0]


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
