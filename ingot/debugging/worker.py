"""Candidates run in a process of their own, which may crash or hang.

One child takes script after script, so that torch is imported once. A child that dies or takes too
long is a failure, of kind "crash" or "hang", and another one takes its place.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ingot.debugging.repro import Failure, Repro, failure, load, write
from ingot.errors import ReproError

START = 120.0
"""Seconds that a child may take to import torch."""

LIMIT = 30.0
"""Seconds that a script may take."""


class Worker:
    """Says what is wrong with scripts, by a child. To be used in a `with` statement."""

    def __init__(self, limit: float = LIMIT) -> None:
        self.limit = limit
        self._child: subprocess.Popen[bytes] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="ingot-")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()
        self._folder.cleanup()

    def __call__(self, repro: Repro) -> Failure:
        """What is wrong with a script."""
        return self.of_file(write(Path(self._folder.name) / "candidate.py", repro))

    def of_file(self, path: Path) -> Failure:
        """The same of one that lies there. Raises ReproError for a file that is none."""
        child = self._started()
        assert child.stdin is not None
        try:
            child.stdin.write(f"{path.resolve()}\n".encode())
            child.stdin.flush()
        except BrokenPipeError:
            return self._dead(child)
        line = _line(child, self.limit)
        if line is None:
            self._end()
            return Failure("hang", f"no answer in {self.limit:g} s")
        if not line:
            return self._dead(child)
        answer = json.loads(line)
        if "error" in answer:
            raise ReproError(answer["error"])
        return Failure(answer["kind"], answer["what"])

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            command = [sys.executable, "-m", "ingot.debugging.worker"]
            pipe = subprocess.PIPE
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
            self._child = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment
            )
            if not _line(self._child, START):
                self._end()
                raise ReproError("a child process of Python does not start")
        return self._child

    def _dead(self, child: subprocess.Popen[bytes]) -> Failure:
        """What a child died of."""
        status = child.wait()
        self._child = None
        what = f"exit status {status}"
        if status < 0:
            with contextlib.suppress(ValueError):
                what = signal.Signals(-status).name
        return Failure("crash", what)

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None


def _line(child: subprocess.Popen[bytes], seconds: float) -> bytes | None:
    """The next line of a child's output; empty where it has died, None if the time is over."""
    assert child.stdout is not None
    ready, _, _ = select.select([child.stdout], [], [], seconds)
    if not ready:
        return None
    return child.stdout.readline()


def serve() -> None:
    """The child: reads names of scripts, and answers each with a line of JSON."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what programs print is no answer
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        answer: dict[str, Any]
        try:
            answer = failure(load(line.rstrip("\n")))._asdict()
        except ReproError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve()
