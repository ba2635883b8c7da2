"""Training on several ranks, beside eager and torch.compile: `python -m benchmarks.distributed`.

A model of blocks trains under DistributedDataParallel, FSDP2 (each block, or all of it, is a unit;
the blocks are compiled, or the model) and tensor parallel, in eager, torch.compile and Ingot, which
take turns in each rank. The ranks are processes: as many as there are GPUs, with NCCL and bfloat16,
and else `--ranks` of them with gloo and float32. The optimizer runs in eager, or each peer compiles
its step. The figures are the median of a step, the ratio of each peer's time to Ingot's with its
90% interval, the most memory that a step takes beside what is there before it, and the
communication of a step in which nothing is computed, of the trace of some steps in a row.

`--simulate` runs nothing: it prices plans for 8 to 1,024 ranks, as benchmarks/distributed_plan.py
says.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from benchmarks.distributed_plan import Model, Network, prices

PEERS = ("eager", "inductor", "ingot")
RANKS_SIMULATED = (8, 32, 128, 512, 1024)
_COMMUNICATES = ("nccl", "gloo:", "ncclDevKernel")
_COMPUTES = ("ingot::", "aten::")
_TRACED, _TRACED_STEP = 5, "traced step "
_WAITS = re.compile("wait|all_reduce|all_gather|reduce_scatter|broadcast|barrier")
Interval = tuple[float, float]


class Block(nn.Module):
    """A transformer's, with causal attention. It computes the heads that a rank has."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.head = min(64, width // 4)
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.qkv(self.norm(x)).unflatten(-1, (-1, 3, self.head))
        q, k, v = heads.transpose(1, 2).unbind(-2)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Blocks(nn.Module):
    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(width) for _ in range(count)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


# -- the ways --------------------------------------------------------------------------------------

Compiled = Callable[[nn.Module], Any]


def _data_parallel(model: Blocks, compiled_by: Compiled, mesh: Any) -> Any:
    return nn.parallel.DistributedDataParallel(compiled_by(model))


def _sharded_blocks(model: Blocks, compiled_by: Compiled, mesh: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block, mesh=mesh)
        block.forward = compiled_by(block.forward)  # type: ignore[arg-type, method-assign]
    return fully_shard(model, mesh=mesh)


def _sharded_whole(model: Blocks, compiled_by: Compiled, mesh: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    return compiled_by(fully_shard(model, mesh=mesh))


def _sharded_model(model: Blocks, compiled_by: Compiled, mesh: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return compiled_by(fully_shard(model, mesh=mesh))


def _tensor_parallel(model: Blocks, compiled_by: Compiled, mesh: Any) -> Any:
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    plan = {"qkv": ColwiseParallel(), "out": RowwiseParallel()}
    plan |= {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)  # type: ignore[arg-type]
    return compiled_by(model)


WAYS: dict[str, Callable[[Blocks, Compiled, Any], Any]] = {
    "ddp": _data_parallel,
    "fsdp": _sharded_blocks,
    "fsdp-whole": _sharded_whole,
    "fsdp-model": _sharded_model,
    "tensor": _tensor_parallel,
}


def _compiler(peer: str) -> Compiled:
    if peer == "ingot":
        import ingot

        return ingot.compile
    if peer == "inductor":
        return torch.compile
    return lambda module: module


# -- traces ----------------------------------------------------------------------------------------


def joined(intervals: Iterable[Interval]) -> list[Interval]:
    """Intervals that do not overlap, of the same times, in order."""
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


def uncovered(intervals: Iterable[Interval], others: Iterable[Interval]) -> float:
    """How long some of the intervals run and none of the others does."""
    left = 0.0
    hiding = joined(others)
    for begin, end in joined(intervals):
        left += end - begin
        for other_begin, other_end in hiding:
            left -= max(0.0, min(end, other_end) - max(begin, other_begin))
    return left


def exposed_communication(events: Iterable[Any]) -> tuple[float, float]:
    """Microseconds of communication in a profiler's events, and of those in which nothing is
    computed."""
    communication, computation = [], []
    events = list(events)
    on_host = {e.name for e in events if "CUDA" not in str(e.device_type)}
    # a range of the host's that is marked on the device as well, as FSDP's hooks are, is no kernel
    on_device = [e for e in events if "CUDA" in str(e.device_type) and e.name not in on_host]
    for event in on_device or events:
        interval = event.time_range.start, event.time_range.end
        if event.name.startswith(_COMMUNICATES):
            communication.append(interval)
        elif on_device or _computes(event.name):
            computation.append(interval)
    total = sum(end - begin for begin, end in joined(communication))
    return total, uncovered(communication, computation)


def _computes(name: str) -> bool:
    """Whether an event on a CPU is one of computation: what waits for others is none."""
    return name.startswith(_COMPUTES) and not _WAITS.search(name)


# -- on a rank -------------------------------------------------------------------------------------


class _Peak:
    """Most bytes that a step takes: of the GPU's memory, or of the process's."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def begin(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # the peak is that of now
            self.before = _resident("VmRSS")

    def end(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated() - self.before
        return _resident("VmHWM") - self.before


def _resident(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return 1024 * int(line.split()[1])
    return 0


def _stepping(way: str, peer: str, given: argparse.Namespace, mesh: Any) -> Callable[[], None]:
    """A step of training, as a peer runs it."""
    device = torch.device(mesh.device_type)
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    model = Blocks(given.blocks, given.width).to(device, dtype)
    module = WAYS[way](model, _compiler(peer), mesh)
    # torch has no fast form of its step for plain parameters and DTensors together
    foreach = False if way == "tensor" else None
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, foreach=foreach)
    update = optimizer.step
    if given.optimizer == "compiled":
        update = _compiler(peer)(optimizer.step)  # type: ignore[arg-type]
    x = torch.randn(given.batch, given.length, given.width, device=device, dtype=dtype)

    def step() -> None:
        module(x).square().mean().backward()
        update()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return step


def _measured(way: str, given: argparse.Namespace, mesh: Any) -> dict[str, Any]:
    """By peer: seconds of each round, bytes, microseconds of communication, of what is exposed."""
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile, record_function

    steps, found = {}, {}
    for peer in given.peers:
        steps[peer] = _stepping(way, peer, given, mesh)
        for _ in range(3):
            steps[peer]()
        found[peer] = {"seconds": []}
    order = random.Random(0)
    for _ in range(given.rounds):
        for peer in order.sample(given.peers, len(given.peers)):
            dist.barrier()
            start = time.perf_counter()
            steps[peer]()
            found[peer]["seconds"].append(time.perf_counter() - start)
    peak = _Peak(torch.device(mesh.device_type))
    activities = [ProfilerActivity.CPU]
    if mesh.device_type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    for peer, step in steps.items():
        dist.barrier()
        peak.begin()
        step()
        found[peer]["peak"] = peak.end()
        with profile(activities=activities) as profiled:
            dist.barrier()  # no rank waits for the profiler of another
            for number in range(_TRACED):
                with record_function(f"{_TRACED_STEP}{number}"):
                    step()
        found[peer]["trace"] = _of_middle_steps(list(profiled.events()))
    return found


def _of_middle_steps(events: list[Any]) -> tuple[float, float]:
    """`exposed_communication` of a step, on average over all but the first and the last."""
    spans = []
    for number in range(1, _TRACED - 1):
        name = f"{_TRACED_STEP}{number}"
        for event in events:
            if event.name == name and "CUDA" not in str(event.device_type):
                spans.append((event.time_range.start, event.time_range.end))
    totals = [0.0, 0.0]
    for begin, end in spans:
        inside = []
        for event in events:
            is_step = event.name.startswith(_TRACED_STEP)
            if begin <= event.time_range.start < end and not is_step:
                inside.append(event)
        for k, microseconds in enumerate(exposed_communication(inside)):
            totals[k] += microseconds / len(spans)
    return totals[0], totals[1]


def _run_rank(given: argparse.Namespace) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    folder, rank, ranks = given.rank[0], int(given.rank[1]), int(given.rank[2])
    device = "cuda" if given.backend == "nccl" else "cpu"
    if device == "cuda":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // ranks))
    store = f"file://{folder}/store"
    dist.init_process_group(given.backend, init_method=store, rank=rank, world_size=ranks)
    mesh = init_device_mesh(device, (ranks,))
    found = {}
    for way in given.ways:
        found[way] = _measured(way, given, mesh)
        if rank == 0:
            _print_soon(way, found[way])
    Path(folder, f"result_{rank}").write_text(json.dumps(found))
    dist.destroy_process_group()


def _print_soon(way: str, peers: dict[str, Any]) -> None:
    """Prints the medians of a way, while others are yet to be measured."""
    medians = []
    for peer, facts in peers.items():
        medians.append(f"{peer} {1e3 * statistics.median(facts['seconds']):.2f} ms")
    print(f"{way}: {', '.join(medians)}", file=sys.stderr, flush=True)


# -- tables ----------------------------------------------------------------------------------------


def measure(given: argparse.Namespace, arguments: Sequence[str]) -> dict[str, Any]:
    """What the first rank finds."""
    with tempfile.TemporaryDirectory(prefix="ingot-benchmark-") as folder:
        workers = []
        for rank in range(given.ranks):
            place = ["--rank", folder, str(rank), str(given.ranks), "--backend", given.backend]
            command = [sys.executable, "-m", "benchmarks.distributed", *arguments, *place]
            workers.append(subprocess.Popen(command))
        try:
            failed = any([worker.wait() for worker in workers])
        finally:
            for worker in workers:
                worker.kill()
        if failed:
            sys.exit("a rank failed: see above")
        found: dict[str, Any] = json.loads(Path(folder, "result_0").read_text())
        return found


def _print_measured(found: dict[str, Any], title: str) -> None:
    from ingot.explain.measure import ratio_interval

    table = Table(title=title)
    for name in ("way", "peer", "ms", "over ingot", "MiB", "communication ms", "exposed ms"):
        table.add_column(name, justify="left" if name in ("way", "peer") else "right")
    for way, peers in found.items():
        for peer, facts in peers.items():
            ratio = ""
            if peer != "ingot" and "ingot" in peers:
                times = np.array(facts["seconds"]), np.array(peers["ingot"]["seconds"])
                low, middle, high = ratio_interval(*times)
                ratio = f"{middle:.2f} ({low:.2f} to {high:.2f})"
            communication, exposed = facts["trace"]
            table.add_row(
                way,
                peer,
                f"{1e3 * statistics.median(facts['seconds']):.2f}",
                ratio,
                f"{facts['peak'] / 2**20:.0f}",
                f"{communication / 1e3:.2f}",
                f"{exposed / 1e3:.2f}",
            )
    Console().print(table)


def _print_simulated(given: argparse.Namespace) -> None:
    model = Model(given.blocks, given.width, given.batch * given.length)
    table = Table(title=f"simulated, in ms: {model.blocks} blocks of {model.width}")
    for name in ("ranks", "plan", "step", "computes", "communicates", "exposed", "MiB"):
        table.add_column(name, justify="left" if name == "plan" else "right", no_wrap=True)
    for price in prices(model, RANKS_SIMULATED, Network()):
        times = (price.step, price.computed, price.communicated, price.exposed)
        figures = [f"{1e3 * seconds:.2f}" for seconds in times]
        table.add_row(str(price.ranks), price.plan, *figures, f"{price.held / 2**20:.0f}")
    Console().print(table)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.distributed", description=__doc__)
    parser.add_argument("--simulate", action="store_true", help="price plans, and run nothing")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=0, help="sequences of a rank's batch")
    parser.add_argument("--length", type=int, default=0, help="tokens of a sequence")
    parser.add_argument("--optimizer", choices=("eager", "compiled"), default="eager")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=0, help="0: as many as GPUs, or 2")
    parser.add_argument("--backend", choices=("gloo", "nccl"))
    parser.add_argument("--rank", nargs=3, help=argparse.SUPPRESS)
    return parser


def main(arguments: Sequence[str] = sys.argv[1:]) -> None:
    given = _parser().parse_args(arguments)
    gpus = torch.cuda.device_count()
    given.backend = given.backend or ("nccl" if gpus > 1 else "gloo")
    is_large = given.simulate or given.backend == "nccl"
    given.batch = given.batch or (8 if is_large else 4)
    given.length = given.length or (1024 if is_large else 64)
    given.ranks = given.ranks or (gpus if given.backend == "nccl" else 2)
    if given.rank:
        _run_rank(given)
    elif given.simulate:
        _print_simulated(given)
    else:
        title = f"{given.blocks} blocks of {given.width}, {given.ranks} ranks of {given.backend}"
        _print_measured(measure(given, arguments), title)


if __name__ == "__main__":
    main()
