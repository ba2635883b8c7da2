"""Runs parts of a test on several ranks: `on_ranks(count, "module:function", *arguments)`.
The ranks are forks of a process that has imported all that they need: see tests/forks.py. With the
backend "nccl" each has a GPU."""

from __future__ import annotations

import datetime
import importlib
import json
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ingot.rules import hand_over
from tests.forks import end_with, run_forked

VARIABLES = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
MODULES = (
    "tests.ranks", "ingot.compiler", "ingot.pipeline", "ingot.backward.engine",
    "ingot.kept.programs", "ingot.codegen.llvm.module",
)  # fmt: skip
"""What ranks and first compilations need: it is imported once for all of them."""

hand_over()  # of what a first call imports, this is most


def on_ranks(count: int, place: str, *arguments: str, backend: str = "gloo") -> list[Any]:
    """What the function gives on each rank, as JSON; AssertionError with the output where one
    fails."""
    with tempfile.TemporaryDirectory() as folder:
        given = folder, str(count), backend, place, *arguments
        done = run_forked("tests.ranks:start", *given, modules=MODULES, **VARIABLES)
        assert not done.status, done.output
        return [json.loads((Path(folder) / f"result_{rank}").read_text()) for rank in range(count)]


def start(folder: str, count: str, backend: str, place: str, *arguments: str) -> int:
    """Forks the ranks, and waits for them; 1 where one fails."""
    torch.set_num_threads(1)
    module, _, name = place.partition(":")
    function = getattr(importlib.import_module(module), name)
    processes = []
    for rank in range(int(count)):
        processes.append(os.fork())
        if not processes[-1]:
            call = partial(function, *arguments)
            end_with(partial(_run, Path(folder), rank, int(count), backend, call))
    failures = [process for process in processes if os.waitpid(process, 0)[1]]
    return int(bool(failures))


def _run(folder: Path, rank: int, count: int, backend: str, function: Callable[[], Any]) -> None:
    # Makes torch's pool of threads anew, as it is after a fork: threads of autograd's that do so at
    # the same time may find none.
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=count,
        timeout=datetime.timedelta(seconds=300),
    )
    (folder / f"result_{rank}").write_text(json.dumps(function()))
    dist.barrier()
    dist.destroy_process_group()
