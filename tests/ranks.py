"""Runs parts of a test on several ranks: `on_ranks(count, "module:function", *arguments)`.
The ranks are forks of one process, which has imported all that they need, and have so many
seconds. With the backend "nccl" each has a GPU."""

from __future__ import annotations

import datetime
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

SECONDS = 600
_BACKEND = "INGOT_TESTS_BACKEND"
_FIRST_USED = ("ingot.pipeline", "ingot.kept.programs", "ingot.codegen.llvm.module")
"""What a first compilation imports: once, and not in each rank."""


def on_ranks(count: int, place: str, *arguments: str, backend: str = "gloo") -> list[Any]:
    """What the function gives on each rank, as JSON; AssertionError with the output where one
    fails."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.ranks", folder, str(count), place, *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        environment[_BACKEND] = backend
        first = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=Path(__file__).parent.parent,
            start_new_session=True,
        )
        try:
            output, _ = first.communicate(timeout=SECONDS)
        finally:
            if first.returncode is None:
                os.killpg(first.pid, signal.SIGKILL)
                first.wait()
        assert not first.returncode, output
        return [json.loads((Path(folder) / f"result_{rank}").read_text()) for rank in range(count)]


def _main() -> None:
    folder, count, place, *arguments = sys.argv[1:]
    torch.set_num_threads(1)
    module, _, name = place.partition(":")
    function = getattr(importlib.import_module(module), name)
    for part in _FIRST_USED:
        importlib.import_module(part)
    processes = []
    for rank in range(int(count)):
        processes.append(os.fork())
        if not processes[-1]:
            _end_with(partial(_run, Path(folder), rank, int(count), partial(function, *arguments)))
    failures = [process for process in processes if os.waitpid(process, 0)[1]]
    sys.exit(bool(failures))


def _end_with(run: Callable[[], None]) -> None:
    """Runs it, and ends this process without what the first one does at its exit."""
    status = 1
    try:
        run()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run(folder: Path, rank: int, count: int, function: Callable[[], Any]) -> None:
    # Makes torch's pool of threads anew, as it is after a fork: threads of autograd's that do so at
    # the same time may find none.
    torch.set_num_threads(1)
    backend = os.environ[_BACKEND]
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=count,
        timeout=datetime.timedelta(seconds=SECONDS // 2),
    )
    (folder / f"result_{rank}").write_text(json.dumps(function()))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    _main()
