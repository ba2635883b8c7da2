"""Many rows: some processes compile at a time, and one measures while the others are stopped.

A process serves the rows of one model (`worker`). Each of `jobs` threads here feeds one process. A
row passes three points: the memory that it needs has to be free, then it compiles; then it waits
for its turn, in which all other processes are stopped (SIGSTOP), so that neither the card nor the
cores are shared; its line is appended to the file of results. A row that takes longer than `limit`
seconds at one of these points is ended with its process, and the model's next row gets a new one.
No row is begun that is not expected to be done in time, and one that is not done then is left for
the next run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.suites.models import Model, Row

ROOT = Path(__file__).parents[2]
STOPPED = "INGOT_SUITES_STOPPED"
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "INGOT_CACHE_DIR")
SETTLE = 0.15  # seconds in which a card finishes what stopped processes have queued
END = 8.0  # seconds before the end of the time, at which what still runs is ended
MARGIN = 1.3  # of the time that a row is expected to take
TRIES = 3  # of a row for which the card's memory did not suffice
OUT_OF_TIME = "out of time"


@dataclass(frozen=True)
class Settings:
    """`seconds` are those of the whole run, `limit` those of a row
    at one point, `capacity` the bytes of the
    card that rows share. `pause` says whether others are stopped while one is measured."""

    device: str
    results: Path
    jobs: int
    seconds: float
    limit: float
    capacity: int
    code: str
    pause: bool = True


class Memory:
    """The card's memory: rows wait, in the order in which they came, until what they need is
    free."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.held = capacity, 0
        self.waiting: list[object] = []
        self.greedy = 0  # who wait for all of it, or have it
        self.changed = threading.Condition()

    @contextmanager
    def taken(self, need: int) -> Iterator[None]:
        """Of more than there is, all of it."""
        need, me = min(need, self.capacity), object()
        with self.changed:
            self.waiting.append(me)
            self.greedy += need == self.capacity
            self.changed.wait_for(
                lambda: self.waiting[0] is me and self.held + need <= self.capacity
            )
            self.waiting.pop(0)
            self.held += need
            self.changed.notify_all()
        try:
            yield
        finally:
            with self.changed:
                self.held -= need
                self.greedy -= need == self.capacity
                self.changed.notify_all()

    def wait(self) -> None:
        """Until nobody wants all of it, before a row begins."""
        with self.changed:
            self.changed.wait_for(lambda: not self.greedy)


class Worker:
    """A process that serves the rows of one model."""

    def __init__(self, model: Model, settings: Settings, folder: Path) -> None:
        self.errors = folder / "errors.txt"
        caches = {}
        for variable in CACHES:
            caches[variable] = str(folder / variable)
        self.stopped, self.told = 0.0, folder / "stopped"
        self.told.write_text("0")
        environment = os.environ | caches | {"HF_HUB_OFFLINE": "1", STOPPED: str(self.told)}
        # a core for each row: a pool of compiling processes for each would have a hundred
        environment["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
        if settings.device != "cpu":
            environment["OMP_NUM_THREADS"] = "1"
        command = [sys.executable, "-m", "benchmarks.suites.worker"]
        with self.errors.open("w") as sink:
            self.process = subprocess.Popen(
                [*command, f"{model.suite}/{model.name}", settings.device],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=sink, env=environment,
                cwd=ROOT, text=True, start_new_session=True,
            )  # fmt: skip

    def ask(self, line: str, until: float) -> dict[str, Any]:
        """The answer to a line; a problem where the process has died, or has none until then."""
        late = threading.Timer(max(0.0, until - time.monotonic()), self.end)
        late.start()
        try:
            assert self.process.stdin is not None and self.process.stdout is not None
            with suppress(BrokenPipeError):
                self.process.stdin.write(line + "\n")
                self.process.stdin.flush()
            answer = self.process.stdout.readline()
        finally:
            late.cancel()
        if answer:
            return json.loads(answer)
        if time.monotonic() >= until:
            return {"problem": OUT_OF_TIME}
        return {"problem": self.death()}

    def death(self) -> str:
        """Of what the process died, with the last line that it has written."""
        status = self.process.wait()
        lines = self.errors.read_text(errors="replace").strip().splitlines()
        cause = signal.Signals(-status).name if status < 0 else f"status {status}"
        return f"process ended with {cause}: {lines[-1][:160] if lines else 'no output'}"

    def signal(self, number: int) -> None:
        """To the process and all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def go_on(self, seconds: float) -> None:
        """After a stop of so many seconds, of which the process is told."""
        self.stopped += seconds
        with suppress(FileNotFoundError):
            self.told.write_text(str(self.stopped))
        self.signal(signal.SIGCONT)

    def end(self) -> None:
        self.signal(signal.SIGKILL)

    @property
    def alive(self) -> bool:
        return self.process.poll() is None


@dataclass
class Run:
    """What the threads of a run share."""

    settings: Settings
    say: Callable[[str], None]
    begin: float = field(default_factory=time.monotonic)
    workers: list[Worker] = field(default_factory=list)
    turn: threading.Lock = field(default_factory=threading.Lock)
    """Held by who measures, and for the moment in which a process is started."""
    writing: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.memory = Memory(self.settings.capacity)

    @property
    def last(self) -> float:
        """When all is to have ended."""
        return self.begin + self.settings.seconds - END

    def until(self) -> float:
        """When an answer that is asked for now has to be there."""
        return min(time.monotonic() + self.settings.limit, self.last)

    def start(self, model: Model, folder: Path) -> Worker:
        with self.turn:
            worker = Worker(model, self.settings, folder)
            self.workers.append(worker)
            return worker

    @contextmanager
    def alone(self, worker: Worker) -> Iterator[None]:
        """A worker's turn to measure."""
        with self.turn:
            others = []
            if self.settings.pause:
                others = [other for other in self.workers if other is not worker and other.alive]
            begin = time.monotonic()
            for other in others:
                other.signal(signal.SIGSTOP)
            if others:
                time.sleep(SETTLE)
            try:
                yield
            finally:
                for other in others:
                    other.go_on(time.monotonic() - begin)

    def write(self, row: Row, found: dict[str, Any], seconds: float) -> None:
        """A row's line, at once."""
        line = {"row": row.name, **asdict(row), "code": self.settings.code, "wall": seconds}
        with self.writing, self.settings.results.open("a") as file:
            file.write(json.dumps(line | found) + "\n")
        self.say(f"{time.monotonic() - self.begin:5.0f} s  {row.name}  {found.get('problem', '')}")


Queue = list[tuple[Model, list[Row]]]


def run(queue: Queue, settings: Settings, say: Callable[[str], None]) -> None:
    """Measure what there is time for, the queue's models in order."""
    shared = Run(settings, say)
    settings.results.parent.mkdir(parents=True, exist_ok=True)
    taking = threading.Lock()

    def work() -> None:
        while True:
            with taking:
                number = next_model(queue, shared.last - time.monotonic())
                if number is None:
                    return
                model, rows = queue.pop(number)
            serve(model, rows, shared)

    threads = []
    for _ in range(settings.jobs):
        threads.append(threading.Thread(target=work, daemon=True))
        threads[-1].start()
    try:
        for thread in threads:
            thread.join()
    finally:  # an interrupt too
        for worker in shared.workers:
            worker.end()


def next_model(queue: Queue, left: float) -> int | None:
    """The first model of which a row fits into the time that is left."""
    for number, (model, _) in enumerate(queue):
        if MARGIN * model.seconds <= left:
            return number
    return None


def serve(model: Model, rows: list[Row], shared: Run) -> None:
    """One model's rows, as long as there is time."""
    if model.missing:
        for row in rows:
            shared.write(row, {"problem": model.missing, "skipped": True}, 0.0)
        return
    worker: Worker | None = None
    with tempfile.TemporaryDirectory(prefix="ingot-suites-", ignore_cleanup_errors=True) as folder:
        for row in rows:
            begin = time.monotonic()
            # later rows find kernels of the first one
            if begin + MARGIN * model.seconds > shared.last:
                break
            for attempt in range(TRIES):
                if worker is None or not worker.alive:
                    worker = shared.start(model, Path(folder))
                found = one(row, worker, shared, alone=attempt > 0)
                if not found.pop("memory", False):
                    break
            if time.monotonic() >= shared.last:
                break  # ended by the clock: left for the next run
            seconds = time.monotonic() - begin
            if found.get("problem") == OUT_OF_TIME:
                found["problem"] = f"no result after {seconds:.0f} s"
            shared.write(row, found, seconds)
        if worker is not None:
            worker.end()
            worker.process.wait()
            with shared.turn:
                shared.workers.remove(worker)


def one(row: Row, worker: Worker, shared: Run, alone: bool) -> dict[str, Any]:
    """One row's figures or its problem. `alone` with all of the memory, since it did not suffice
    before."""
    memory = shared.memory
    if alone:
        with memory.taken(memory.capacity):
            found = worker.ask(json.dumps(asdict(row)), shared.until())
            return found if "problem" in found else compiled(worker, shared)
    memory.wait()
    found = worker.ask(json.dumps(asdict(row)), shared.until())
    if "problem" in found:
        return found
    with memory.taken(found["need"]):
        return compiled(worker, shared)


def compiled(worker: Worker, shared: Run) -> dict[str, Any]:
    """A row that has its memory: it compiles, and measures when its turn comes."""
    found = worker.ask("compile", shared.until())
    if "problem" in found:
        return found
    with shared.alone(worker):
        return worker.ask("measure", shared.until())
