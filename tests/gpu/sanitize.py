"""Runs one small program of each kind of kernel (tests/gpu/kinds.py) under NVIDIA's
compute-sanitizer.

    python -m tests.gpu.sanitize [--tools memcheck racecheck] [--jobs 12] [--limit 600] [--only KIND
    ...]
                                 [--logs FOLDER]

Each process runs some of the kinds under one tool, and compares what they give with eager's. The
code is compiled before, without the tool. Each tensor and each temporary has memory of its own, so
that memcheck sees accesses beyond any of them. Exits with 1 where a tool reports something, a
result is wrong, or time runs out.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

import ingot
from ingot.runtime import tuning
from ingot.schedule import memory
from tests.gpu.kinds import KINDS, Kind, draw
from tests.oracle import doubled, tensors_in

TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
PLACES = (
    "/usr/local/cuda*/bin",
    "/usr/local/cuda*/compute-sanitizer",
    "/opt/nvidia/*/*",
    "/opt/nvidia/*",
)
FOUND = 9  # the status of a process where the tool found something
MOST_LINES = 12


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=["memcheck", "racecheck"])
    parser.add_argument("--only", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument(
        "--jobs", type=int, default=min(12, os.cpu_count() or 1), help="processes at a time"
    )
    parser.add_argument("--limit", type=float, default=600, help="seconds for all of it")
    parser.add_argument("--logs", type=Path, help="where the tools' reports are kept")
    parser.add_argument("--plain", action="store_true", help="run the kinds here, without a tool")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    if options.plain:
        return sum(not right(name, options.device) for name in options.only) and 1
    tool = find_tool()
    if tool is None:
        parser.error("there is no compute-sanitizer")
    with tempfile.TemporaryDirectory() as folder:
        os.environ.setdefault("INGOT_CACHE_DIR", folder)
        logs = options.logs or Path(folder)
        logs.mkdir(parents=True, exist_ok=True)
        end = time.monotonic() + options.limit
        return run_all(tool, options.tools, options.only, options.jobs, end, logs, options.device)


def find_tool() -> str | None:
    found = shutil.which("compute-sanitizer")
    for place in PLACES:
        for file in sorted(Path("/").glob(f"{place[1:]}/compute-sanitizer")):
            found = found or (str(file) if file.is_file() and os.access(file, os.X_OK) else None)
    return found


# -- the processes ---------------------------------------------------------------------------------


def run_all(
    tool: str,
    tools: Sequence[str],
    kinds: Sequence[str],
    jobs: int,
    end: float,
    logs: Path,
    device: str,
) -> int:
    """First what is compiled, then each tool over all of the kinds; returns the status."""
    apart = max(1, jobs // len(tools))
    bad = run_beside(
        [(f"plain-{k}", [], kinds[k::jobs]) for k in range(min(jobs, len(kinds)))],
        end,
        logs,
        device,
    )
    print(
        f"without a tool: {len(kinds) - len(bad)} of {len(kinds)} kinds are right", *bad, flush=True
    )
    given = ["--error-exitcode", str(FOUND), "--launch-timeout", "0", "--report-api-errors", "no"]
    runs = []
    for name in tools:
        for k in range(min(apart, len(kinds))):
            log = ["--log-file", str(logs / f"{name}-{k}.log"), "--print-limit", "200"]
            runs.append((f"{name}-{k}", [tool, "--tool", name, *given, *log], kinds[k::apart]))
    worse = run_beside(runs, end, logs, device)
    for name in tools:
        reports = [(logs / f"{name}-{k}.log") for k in range(apart)]
        lines = [
            line
            for r in reports
            if r.exists()
            for line in r.read_text(errors="replace").splitlines()
        ]
        wrong = [text for text in worse if text.startswith(name)]
        print(
            f"{name}: {len(kinds) - len(wrong)} of {len(kinds)} kinds are right and clean",
            *wrong,
            sep="\n  ",
        )
        for text, count in problems(lines).most_common(MOST_LINES):
            print(f"  {count} x {text}")
        print(
            "  " + "; ".join(f"{n} x {text}" for text, n in Counter(summaries(lines)).items()),
            flush=True,
        )
    return int(bool(bad or worse))


def run_beside(
    runs: Sequence[tuple[str, list[str], Sequence[str]]], end: float, logs: Path, device: str
) -> list[str]:
    """Run processes at once; returns a line for each kind that was not seen to be right, by the
    process that had it."""
    environment = {
        **os.environ,
        "PYTORCH_NO_CUDA_MEMORY_CACHING": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    started = []
    for name, prefix, kinds in runs:
        command = [
            *prefix,
            sys.executable,
            "-m",
            "tests.gpu.sanitize",
            "--plain",
            "--device",
            device,
            "--only",
            *kinds,
        ]
        with (logs / f"{name}.out").open("w") as out:
            started.append(
                subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT)
            )
    wrong = []
    for process, (name, _, kinds) in zip(started, runs):
        try:
            status: int | str = process.wait(max(1.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            status = "out of time"
        lines = (logs / f"{name}.out").read_text(errors="replace").splitlines()
        missing = [kind for kind in kinds if f"{kind}: right" not in lines]
        why = {line.split(":")[0]: line for line in lines}
        wrong += [
            f"{name}: {why.get(kind, f'{kind}: no result ({status}) {lines[-1:]}')[:400]}"
            for kind in missing
        ]
        if not missing and status != 0:
            wrong.append(f"{name}: status {status}, of {', '.join(kinds)}")
    return wrong


def problems(lines: Sequence[str]) -> Counter[str]:
    """What a tool reported, and where, without addresses."""
    found: Counter[str] = Counter()
    for line, after in zip(lines, [*lines[1:], ""]):
        text = line.removeprefix("========= ")
        if (
            text != line
            and text[:1].strip()
            and "SUMMARY:" not in text
            and text != "COMPUTE-SANITIZER"
        ):
            found[
                re.sub(
                    r"0x[0-9a-f]+|\+0x\w+",
                    "",
                    f"{text} | {after.removeprefix('=========').strip()}",
                )[:300]
            ] += 1
    return found


def summaries(lines: Sequence[str]) -> list[str]:
    return [line.removeprefix("========= ") for line in lines if "SUMMARY:" in line]


# -- a kind ----------------------------------------------------------------------------------------


def right(name: str, device: str) -> bool:
    """Whether a kind gives what eager gives on the CPU; prints a line that says so."""
    apart = memory._small, tuning.Tuner._times
    memory._small = lambda *given: (set(), set())
    tuning.Tuner._times = first_kernel  # type: ignore[assignment,method-assign]
    try:
        check(KINDS[name](), device)
    except Exception as problem:
        text = " ".join(str(problem).split())
        print(f"{name}: {type(problem).__name__}: {text[:300]}", flush=True)
        traceback.print_exc()
        return False
    finally:
        memory._small, tuning.Tuner._times = apart  # type: ignore[assignment,method-assign]
    print(f"{name}: right", flush=True)
    return True


def first_kernel(
    tuner: tuning.Tuner, site: Any, plans: Any, tilings: Any
) -> tuple[Sequence[float | None], bool]:
    """As if the first kernel that is tried in place of a library's product were the fastest."""
    return [1e6, *(1.0 + k for k in range(len(tilings)))], True


def check(kind: Kind, device: str) -> None:
    compiled = ingot.compile(kind.fn, fullgraph=True, **kind.how)
    oracle = device if kind.beside else "cpu"
    for args in kind.calls:
        expected, found = results(kind.fn, args, oracle), results(compiled, args, device)
        truth = results(kind.fn, doubled(args), oracle)
        for a, b, exact in zip(found, expected, truth, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            if not b.is_floating_point():
                assert torch.equal(a, b)
                continue
            assert torch.equal(a.isnan(), b.isnan())
            wrong, eagers = ((t.double() - exact).nan_to_num(0, 0, 0).norm().item() for t in (a, b))
            share = 16 * torch.finfo(b.dtype).eps * exact.nan_to_num(0, 0, 0).norm().item()
            assert wrong <= max(3 * eagers, share, 1e-4), (
                f"an error of {wrong}, eager's is {eagers}"
            )


def results(fn: Any, args: Sequence[Any], device: str) -> list[torch.Tensor]:
    """What a call gives, what it writes, and the gradients, on the CPU."""

    def given(t: Any) -> Any:
        if not isinstance(t, torch.Tensor) or not t.dim():
            return t
        moved = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device).copy_(
            t.detach()
        )
        if t.storage_offset():  # as little aligned as it is
            padded = torch.cat([moved.new_zeros(t.storage_offset()), moved.flatten()])
            moved = padded[t.storage_offset() :].view(t.shape)
        return moved.requires_grad_(t.requires_grad)

    here = pytree.tree_map(given, list(args))
    out = tensors_in([fn(*here)])
    wanted = [t for t in tensors_in(here) if t.requires_grad]
    with_history = [t for t in out if t.requires_grad]
    grads: Sequence[torch.Tensor] = []
    if wanted:
        tangents = [draw(*t.shape, dtype=t.dtype).to(device) for t in with_history]
        grads = torch.autograd.grad(with_history, wanted, tangents)
    return [t.detach().cpu() for t in (*out, *grads, *tensors_in(here))]


if __name__ == "__main__":
    sys.exit(main())
