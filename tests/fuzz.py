"""Random programs by the thousand, on all cores: `python -m tests.fuzz KIND COUNT [FIRST] [--jobs
N]`.

Kinds: python, programs, shapes and control; `KINDS` has their modules. A piece of the seeds is a
process of its own, so a crash or a hang is a failure of that piece alone. Prints each failure as it
comes and the figures at the end; exits with 1 if there is any.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

KINDS = {
    "python": ("tests.test_random_python", "--backend", "ingot"),
    "programs": ("tests.random_programs_mixed",),
    "shapes": ("tests.test_random_shapes",),
    "control": ("tests.random_control",),
}
PIECE = 50  # seeds in a process
PATIENCE = 900.0  # seconds that a piece may take before it is said to hang
FAILED = re.compile(r"failed: \[(.*)\]")


@dataclass(frozen=True)
class Piece:
    """What came of the seeds from `first` on: those that failed, and what the process printed."""

    first: int
    count: int
    failed: tuple[str, ...]
    ended: str  # why the process has no figures; empty if it has
    text: str


def run_piece(kind: str, first: int, count: int, patience: float) -> Piece:
    module, *options = KINDS[kind]
    command = [sys.executable, "-m", module, str(count), str(first), *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=patience, env=environment
        )
    except subprocess.TimeoutExpired as late:
        return Piece(first, count, (), f"still running after {patience:.0f} s", _text(late.stdout))
    found = FAILED.search(done.stdout)
    if found is None:
        return Piece(first, count, (), f"exit status {done.returncode}", done.stdout + done.stderr)
    failed = tuple(seed.strip() for seed in found[1].split(",") if seed.strip())
    return Piece(first, count, failed, "", done.stdout)


def _text(output: bytes | str | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def run(kind: str, count: int, first: int, jobs: int, patience: float = PATIENCE) -> list[Piece]:
    pieces = []
    with ThreadPoolExecutor(jobs) as pool:
        starts = range(first, first + count, PIECE)
        waiting = [
            pool.submit(run_piece, kind, s, min(PIECE, first + count - s), patience) for s in starts
        ]
        for future in as_completed(waiting):
            piece = future.result()
            pieces.append(piece)
            if piece.failed or piece.ended:
                what = piece.ended or f"failed: {', '.join(piece.failed)}"
                print(f"---- seeds {piece.first} to {piece.first + piece.count - 1}: {what}")
                print(piece.text[-20_000:], flush=True)
    return pieces


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__.split("\n")[0]
    )
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("count", type=int)
    parser.add_argument(
        "first", type=int, nargs="?", default=int(time.time()) * 1000, help="default: fresh seeds"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    start = time.perf_counter()
    pieces = run(options.kind, options.count, options.first, options.jobs)
    failed = [seed for piece in pieces for seed in piece.failed]
    ended = [piece.first for piece in pieces if piece.ended]
    print(
        f"{options.kind}: {options.count} programs from seed {options.first}, {len(failed)} failed "
        f"{failed}, "
        f"{len(ended)} pieces without an end {ended}, {time.perf_counter() - start:.0f} s"
    )
    sys.exit(bool(failed or ended))


if __name__ == "__main__":
    main()
