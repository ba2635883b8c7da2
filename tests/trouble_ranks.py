"""Ranks in trouble: one is late, has other shapes, runs in eager, raises or communicates otherwise.

Each trial has processes of its own, which end as a script's do: see test_lockstep.py.
"""

from __future__ import annotations

import datetime
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

import ingot

SECONDS = 30
"""In which every trial is over."""
TROUBLES = ("late", "shapes", "eager", "raises", "differs")
STEPS = 4


class Trouble(Exception):
    """What a rank raises."""


def step(x: Tensor, w: Tensor) -> Tensor:
    """The mean over all ranks' rows, and something of it."""
    y = (x @ w).tanh().sum(0)
    dist.all_reduce(y)
    return y * 2 + 1


def other_step(x: Tensor, w: Tensor) -> Tensor:
    y = (x @ w).tanh().sum(0)
    dist.broadcast(y, 0)
    return y * 2 + 1


def rows(rank: int, trouble: str, k: int) -> int:
    return 3 + k if trouble == "shapes" and rank == 1 else 4


def run(seed: int, rank: int, count: int, folder: Path) -> None:
    """One rank's part of a trial: rank 1 has the trouble, from a step on that the seed chooses."""
    drawn = random.Random(seed)
    trouble, troubled = TROUBLES[seed % len(TROUBLES)], drawn.randrange(STEPS)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=count,
        timeout=datetime.timedelta(seconds=4 if trouble == "differs" else 20),
    )
    w = torch.linspace(-1, 1, 12).view(4, 3)
    is_troubled = rank == 1
    compiled = step if trouble == "eager" and is_troubled else ingot.compile(step)
    for k in range(STEPS):
        if is_troubled and k == troubled:
            if trouble == "late":
                time.sleep(drawn.uniform(0.2, 2))
            if trouble == "raises":
                raise Trouble(f"no data at step {k}")
            if trouble == "differs":
                compiled = ingot.compile(other_step)
        found = compiled(torch.ones(rows(rank, trouble, k), 4) * (rank + 1), w)
        expected = torch.zeros(3)
        for other in range(count):
            x = torch.ones(rows(other, trouble, k), 4) * (other + 1)
            expected += (x @ w).tanh().sum(0)
        torch.testing.assert_close(found, expected * 2 + 1)
    (folder / f"done_{rank}").touch()


def _in_a_child(run_it: Callable[[], None], output: Path) -> int:
    child = os.fork()
    if child:
        return child
    os.setsid()
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 2)
    status = 1
    try:
        torch.set_num_threads(1)
        run_it()
        status = 0
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    sys.stderr.flush()
    os._exit(status)


def trial(seed: int, count: int) -> dict[str, object]:
    """The trouble, what each rank wrote to stderr, which are done, and the seconds that it took;
    None of those that a rank that hung took."""
    with tempfile.TemporaryDirectory() as name:
        folder, start = Path(name), time.monotonic()
        children = {}
        for rank in range(count):
            begin = partial(run, seed, rank, count, folder)
            children[_in_a_child(begin, folder / f"stderr_{rank}")] = rank
        while children and time.monotonic() - start < SECONDS:
            for child in list(children):
                if os.waitpid(child, os.WNOHANG)[0]:
                    del children[child]
            time.sleep(0.01)
        for child in children:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
        return {
            "trouble": TROUBLES[seed % len(TROUBLES)],
            "hung": sorted(children.values()),
            "errors": [(folder / f"stderr_{rank}").read_text() for rank in range(count)],
            "done": [(folder / f"done_{rank}").exists() for rank in range(count)],
        }


def write_trials(file: str, ranks: str, first: str, trials: str) -> None:
    """Trials into a file, as JSON, from the seed `first` on."""
    found = [trial(seed, int(ranks)) for seed in range(int(first), int(first) + int(trials))]
    Path(file).write_text(json.dumps(found))
