"""Functions in processes that are forked, each of one that has imported what they need: that is
done once for all tests of a worker."""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]


class Done(NamedTuple):
    """How a process has ended: its exit status, and what it wrote to stdout and stderr."""

    status: int
    output: str


def run_forked(
    place: str, *arguments: str, modules: Sequence[str], seconds: float = 600, **variables: str
) -> Done:
    """Calls "module:function" with arguments, in a process of its own session where `modules` and
    the environment's `variables` were there from the start. What the function gives is the exit
    status. After so many seconds the session is killed, which raises TimeoutError."""
    server = _server(tuple(modules), tuple(sorted(variables.items())))
    assert server.stdin is not None and server.stdout is not None
    with tempfile.NamedTemporaryFile("r", errors="replace") as output:
        server.stdin.write(json.dumps([place, arguments, output.name]).encode() + b"\n")
        process = _number(server)
        if not select.select([server.stdout], [], [], seconds)[0]:
            os.killpg(process, signal.SIGKILL)
            _number(server)
            raise TimeoutError(output.read())
        return Done(_number(server), output.read())


def _number(server: subprocess.Popen[bytes]) -> int:
    assert server.stdout is not None
    line = server.stdout.readline()
    if not line:
        _server.cache_clear()
        raise RuntimeError("the process that forks has ended")
    return int(line)


@functools.cache
def _server(
    modules: tuple[str, ...], variables: tuple[tuple[str, str], ...]
) -> subprocess.Popen[bytes]:
    """It ends when its standard input does."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.forks", *modules],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,  # what is read ahead, `select` would not see
        env={**os.environ, **dict(variables)},
        cwd=ROOT,
        start_new_session=True,
    )
    atexit.register(server.communicate)
    return server


def _serve() -> None:
    for module in sys.argv[1:]:
        importlib.import_module(module)
    for line in sys.stdin:
        place, arguments, output = json.loads(line)
        process = os.fork()
        if not process:
            _become(output)
            end_with(functools.partial(_call, place, arguments))
        print(process, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)


def _become(output: str) -> None:
    """Takes a session and standard streams of its own."""
    os.setsid()
    nothing, written = os.open(os.devnull, os.O_RDONLY), os.open(output, os.O_WRONLY | os.O_APPEND)
    for stream, file in enumerate((nothing, written, written)):
        os.dup2(file, stream)
    os.close(nothing)
    os.close(written)


def _call(place: str, arguments: list[str]) -> int:
    module, _, name = place.partition(":")
    status: int = getattr(importlib.import_module(module), name)(*arguments)
    return status


def end_with(run: Any) -> None:
    """Runs it, and ends this process, with what it gives as the exit status, without what the
    first process does at its exit."""
    status = 1
    try:
        status = int(run() or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve()
