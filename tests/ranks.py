"""Runs parts of a test on several ranks: `on_ranks(count, "module:function", *arguments)`.

Each rank is a process of its own, and has so many seconds. With the backend "nccl" it has a GPU.
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

SECONDS = 600
_BACKEND = "INGOT_TESTS_BACKEND"


def on_ranks(count: int, place: str, *arguments: str, backend: str = "gloo") -> list[Any]:
    """What the function gives on each rank, as JSON; AssertionError with the output where one
    fails."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.ranks", folder, str(count), place, *arguments]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        environment[_BACKEND] = backend
        workers = [
            subprocess.Popen(
                [*command[:4], str(rank), *command[4:]],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment,
                cwd=Path(__file__).parent.parent,
            )
            for rank in range(count)
        ]  # fmt: skip
        try:
            outputs = [worker.communicate(timeout=SECONDS)[0] for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
        assert not any(worker.returncode for worker in workers), "\n\n".join(outputs)
        return [json.loads((Path(folder) / f"result_{rank}").read_text()) for rank in range(count)]


def _main() -> None:
    folder, rank, count, place, *arguments = sys.argv[1:]
    backend = os.environ[_BACKEND]
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(int(rank))
    dist.init_process_group(
        backend,
        init_method=f"file://{folder}/store",
        rank=int(rank),
        world_size=int(count),
        timeout=datetime.timedelta(seconds=SECONDS // 2),
    )
    module, _, name = place.partition(":")
    result = getattr(importlib.import_module(module), name)(*arguments)
    (Path(folder) / f"result_{rank}").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    _main()
