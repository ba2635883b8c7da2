"""Interrupts compilations, and forks while a thread compiles; what must hold then.

    python -m tests.interruptions --interruptions 1000 --forks 200

A signal comes at a random time (sent by another thread) or at a random event of the interpreter (a
call or a return in the main thread), while a function is compiled and called, for inference or
training. The program must get the KeyboardInterrupt, torch's state must be as before, and the next
compilation must work and be right. A fork's child must call what was compiled before, and compile.
"""

from __future__ import annotations

import argparse
import faulthandler
import functools
import gc
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F

import ingot
from ingot import sharing
from tests.oracle import tensors_in

HUNG = 120  # seconds


# -- programs --------------------------------------------------------------------------------------


def softmax(x, w):
    return torch.softmax((x @ w).sin() * 2 + x, -1).sum(0)


def attention(x, w):
    q = (x @ w).view(4, 2, -1).transpose(0, 1)
    return F.scaled_dot_product_attention(q, q * 0.5, q + 1).mean(0)


def normalized(x, w):
    return F.layer_norm(F.gelu(x) + w, (x.shape[-1],), w[0]) * torch.sigmoid(x)


def broken(x, w):
    y = (x * w).cos()
    torch._C._get_default_device()
    sum_ = float(y.sum().item())
    return y * 2 + sum_ if sum_ > 0 else y - sum_


def looped(x, w):
    parts = []
    for i in range(4):
        x = torch.tanh(x @ w + i)
        parts.append(x.amax(-1))
    return torch.stack(parts).cumsum(0), {"last": x, "count": len(parts)}


def modes(x, w):
    with torch.no_grad():
        y = x.exp()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = x @ w
    return y + z.float(), torch.func.vmap(lambda a: a * 2 + a.sum())(x)


def checkpointed(x, w):
    return torch.utils.checkpoint.checkpoint(
        lambda a: (a @ w).relu().square(), x, use_reentrant=False
    ).sum(-1)


def random_numbers(x, w):
    return F.dropout(x, 0.5).shape[0] + (x * w).abs().sqrt()


PROGRAMS = [softmax, attention, normalized, broken, looped, modes, checkpointed, random_numbers]


def arguments(trains: bool) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(7)
    x, w = torch.randn(8, 8, generator=made), torch.randn(8, 8, generator=made) / 4
    return x.requires_grad_(trains), w.requires_grad_(trains)


def outcome(f: Callable[..., Any], trains: bool) -> list[torch.Tensor]:
    """What it returns, and the gradients of that."""
    inputs = arguments(trains)
    results = tensors_in(f(*inputs))
    wanted = [r for r in results if r.requires_grad]
    if wanted:
        torch.autograd.backward([r.sum() for r in wanted])
    return [*(r.detach() for r in results), *(i.grad for i in inputs if i.grad is not None)]


def expected_of(programs: Iterable[Callable[..., Any]]) -> dict[Any, list[torch.Tensor]]:
    """What eager gives for those that draw no random numbers, for inference and for training."""
    return {
        (p, t): outcome(p, t) for p in programs if p is not random_numbers for t in (False, True)
    }


def fresh(program: Callable[..., Any]) -> Callable[..., Any]:
    """It compiled anew, whatever was compiled of its code."""
    sharing.forget()
    return ingot.compile(program)


# -- what must be as before ------------------------------------------------------------------------


def state() -> dict[str, Any]:
    """All of torch's and Python's state that a compilation touches, and may leave changed."""
    functorch, autograd = torch._C._functorch, torch._C._autograd
    return {
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "autocast": [
            (torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")
        ],
        "autocast cache": torch.is_autocast_cache_enabled(),
        "autocast depth": (torch.autocast_increment_nesting(), torch.autocast_decrement_nesting()),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
        "function modes": torch._C._len_torch_function_stack(),
        "torch function": torch._C._is_torch_function_enabled(),
        "functorch levels": functorch.get_dynamic_layer_stack_depth(),
        "functorch": functorch.peek_interpreter_stack() is None,
        "vmap nesting": (
            torch._C._vmapmode_increment_nesting(),
            torch._C._vmapmode_decrement_nesting(),
        ),
        "forward gradients": torch._C._is_fwd_grad_enabled(),
        "multithreading": torch._C._is_multithreading_enabled(),
        "view replay": torch._C._is_view_replay_enabled(),
        "anomalies": torch.is_anomaly_enabled(),
        "saved tensors' hooks": autograd._top_saved_tensors_default_hooks(True) is None,
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "dispatch keys": str(torch._C._dispatch_tls_local_include_set()),
        "dispatch keys left out": str(torch._C._dispatch_tls_local_exclude_set()),
        "engine": torch.autograd._engine_run_backward,
        "collection": gc.isenabled(),
        "recursion limit": sys.getrecursionlimit(),
        "SIGINT": signal.getsignal(signal.SIGINT),
        "hooked frames": ingot.native._native.hook_active(),
        "eager": ingot.native.runs_eager(),
    }


def differences(before: dict[str, Any]) -> list[str]:
    after = state()
    return [
        f"{name}: {before[name]} became {after[name]}"
        for name in before
        if before[name] != after[name]
    ]


# -- interruptions ---------------------------------------------------------------------------------


class Sent:
    """When a signal was sent."""

    at: float | None = None


@contextmanager
def signal_after(seconds: float, number: int = signal.SIGINT) -> Iterator[Sent]:
    """Sends this process a signal so long after the beginning, unless the block has ended by
    then."""
    sent, over = Sent(), threading.Event()
    lock = threading.Lock()

    def send() -> None:
        over.wait(seconds)
        with lock:
            if not over.is_set():
                sent.at = time.perf_counter()
                os.kill(os.getpid(), number)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield sent
        with lock:
            over.set()
    finally:
        over.set()
        thread.join()


@contextmanager
def signal_at_event(count: int, number: int = signal.SIGINT) -> Iterator[Sent]:
    """Raises a signal at the so-manieth call or return of a function in this thread."""
    sent, left = Sent(), [count]

    def on_event(frame: Any, event: str, arg: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            sys.setprofile(None)
            sent.at = time.perf_counter()
            signal.raise_signal(number)

    sys.setprofile(on_event)
    try:
        yield sent
    finally:
        sys.setprofile(None)


def events_of(work: Callable[[], Any]) -> int:
    """How many calls and returns of functions this thread has in a piece of work."""
    count = 0

    def on_event(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += 1

    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


class Interruptions:
    """Interrupts compilations, and counts what came of it."""

    def __init__(self, seed: int, programs: Sequence[Callable[..., Any]] = PROGRAMS) -> None:
        self.random, self.programs = random.Random(seed), programs
        self.expected = expected_of(programs)
        self.sizes: dict[Any, tuple[int, float]] = {}
        self.latencies: list[float] = []
        self.outcomes: Counter[str] = Counter()
        self.faults: list[str] = []

    def size(self, program: Callable[..., Any], trains: bool) -> tuple[int, float]:
        """Events and seconds of a compilation, a call and a backward."""
        if (program, trains) not in self.sizes:
            outcome(fresh(program), trains)  # what is imported and cached once
            start = time.perf_counter()
            outcome(fresh(program), trains)
            seconds = time.perf_counter() - start
            self.sizes[program, trains] = (
                events_of(lambda: outcome(fresh(program), trains)),
                seconds,
            )
        return self.sizes[program, trains]

    def one(self) -> None:
        program, trains = self.random.choice(self.programs), self.random.random() < 0.5
        events, seconds = self.size(program, trains)
        at_event = self.random.random() < 0.6
        context = (
            signal_at_event(self.random.randint(1, events))
            if at_event
            else signal_after(self.random.uniform(0, seconds))
        )
        before, compiled = state(), fresh(program)
        label = (
            f"{program.__name__}, {'training' if trains else 'inference'}, at "
            f"{'event' if at_event else 'time'}"
        )
        sent = Sent()
        try:
            with context as sent:
                outcome(compiled, trains)
        except KeyboardInterrupt:
            self.outcomes["interrupted"] += 1
            if sent.at is not None:
                self.latencies.append(time.perf_counter() - sent.at)
        else:
            self.outcomes["not interrupted" if sent.at is None else "lost"] += 1
            if sent.at is not None:
                self.faults.append(f"{label}: the KeyboardInterrupt is lost")
        self.faults += [f"{label}: {difference}" for difference in differences(before)]
        self.check(compiled, program, trains, label)
        other = self.random.choice(self.programs)
        self.check(fresh(other), other, trains, f"{other.__name__} after {label}")

    def check(
        self, compiled: Callable[..., Any], program: Callable[..., Any], trains: bool, label: str
    ) -> None:
        expected = self.expected.get((program, trains))
        actual = outcome(compiled, trains)
        if expected is not None:
            for ours, eagers in zip(actual, expected, strict=True):
                if not torch.allclose(ours, eagers, rtol=1e-3, atol=1e-3, equal_nan=True):
                    self.faults.append(f"{label}: a wrong result")

    def report(self) -> str:
        late = sorted(self.latencies) or [0.0]
        above = sum(x > 0.5 for x in late)
        return (
            f"{dict(self.outcomes)}; to the KeyboardInterrupt: median "
            f"{late[len(late) // 2] * 1e3:.1f} ms, "
            f"99% {late[int(len(late) * 0.99)] * 1e3:.1f} ms, most {late[-1] * 1e3:.1f} ms, "
            f"{above} above 500 ms; "
            f"{len(self.faults)} faults"
        )


# -- forks -----------------------------------------------------------------------------------------


def in_child(work: Callable[[], Any], seconds: float = HUNG) -> str:
    """How a forked child ends that runs `work`: "ok", or what was wrong."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            # no timer: pytest's would be waited for, which is not in the child
            faulthandler.register(signal.SIGQUIT)
            torch.set_num_threads(1)  # libgomp's threads are not there, and eager waits for them
            work()
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        finally:
            os._exit(status)
    return how_it_ends(pid, seconds)


def how_it_ends(pid: int, seconds: float = HUNG) -> str:
    """A forked child: "ok", or what was wrong."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return "ok" if code == 0 else f"exit code {code}"
        time.sleep(0.005)
    os.kill(pid, signal.SIGQUIT)  # where it hangs
    time.sleep(0.5)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "hung"


@functools.cache
def trains_in_children() -> bool:
    """Whether eager's backward runs in a child of a process that ran one. It refuses where there is
    an accelerator, whose threads are not in the child."""

    def backward() -> None:
        torch.ones(2, requires_grad=True).sum().backward()

    backward()
    return in_child(backward) == "ok"


def forks(count: int, seed: int) -> Counter[str]:
    """How children end that are forked at random times while a thread compiles."""
    chosen, stop = random.Random(seed), threading.Event()
    expected = expected_of(PROGRAMS)
    wanted = [key for key in expected if trains_in_children() or not key[1]]
    ready = {key: fresh(key[0]) for key in wanted[:4]}
    for (_, trains), compiled in ready.items():
        outcome(compiled, trains)

    def compile_on() -> None:
        k = 0
        while not stop.is_set():
            program, trains = wanted[k % len(wanted)]
            outcome(fresh(program), trains)
            k += 1

    def work(key: Any) -> None:
        before = state()
        assert gc.isenabled(), "collection is off"
        assert not isinstance(before["SIGINT"], ingot.native._native.Deferral), before["SIGINT"]
        for known, compiled in [*ready.items(), (key, fresh(key[0]))]:
            for ours, eagers in zip(outcome(compiled, known[1]), expected[known], strict=True):
                torch.testing.assert_close(ours, eagers, rtol=1e-3, atol=1e-3)
        assert differences(before) == []

    found: Counter[str] = Counter()
    thread = threading.Thread(target=compile_on)
    thread.start()
    try:
        for _ in range(count):
            time.sleep(chosen.uniform(0, 0.1))
            key = chosen.choice(wanted)
            found[in_child(lambda key=key: work(key))] += 1
    finally:
        stop.set()
        thread.join()
    return found


# -- from the shell --------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--interruptions", type=int, default=1000)
    parser.add_argument("--forks", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=30, help="at most for each of the two")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    # which a shell's background jobs ignore
    signal.signal(signal.SIGINT, signal.default_int_handler)
    bad = 0
    if asked.interruptions:
        runs, end = Interruptions(asked.seed), time.monotonic() + asked.minutes * 60
        for k in range(asked.interruptions):
            faulthandler.dump_traceback_later(HUNG, exit=True)
            runs.one()
            if time.monotonic() > end:
                print(f"stopped after {k + 1}")
                break
        faulthandler.cancel_dump_traceback_later()
        print(*runs.faults[:50], runs.report(), sep="\n", flush=True)
        bad += len(runs.faults)
    if asked.forks:
        found = forks(asked.forks, asked.seed)
        print(f"forks: {dict(found)}")
        bad += asked.forks - found["ok"]
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
