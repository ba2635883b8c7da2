"""Whole training steps of the models of benchmarks/model_zoo.py: compiled, they do what they do in
eager.

`python -m tests.zoo_training [MODEL ...]` prints a row for each model, and ends with 1 if one of
them differs. It needs the package `transformers` (benchmarks/models.py says how to install it). A
step is forward, loss, backward and optimizer, in training mode with dropout; batch sizes and
lengths vary from call to call. All gradients together are held against those of float64, with the
bound of docs/limits.md (against eager's where a model cannot be had in float64), and each of them
and each buffer by itself more loosely; the updates against what eager makes of the same gradients.
Random numbers, errors, and which gradients there are must be eager's.

INGOT_CHECK_BOUNDS=1 in the environment has each access checked besides.
"""

from __future__ import annotations

import argparse
import copy
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import ingot
from benchmarks.model_zoo import MODELS, make
from ingot.compiler import Compiler
from ingot.explain.measure import error, in_float64
from ingot.explain.report import Report
from tests.op_outcome import Different, compare_geometry

CALLS = ("first", "twice the batch", "one of the batch", "first", "twice the length", "first")
"""What each of the steps is given; steps of one kind differ in their random numbers."""
ERROR_RATIO, ERROR_FLOOR = 1.2, 4  # of all gradients together: against eager's error, and in eps
# of one tensor: also relative, and in eps of all tensors together
PART_RATIO, PART_FLOOR, PART_SHARE = 10, 1e-4, 16
# of all gradients together: from eager's, where there is nothing else to hold them against
APART = 1e-4
# draws of random numbers that errors are averaged over: more where fewer do not do
SEEDS = (1, 5, 20)
RATE = 1e-3
EPS = torch.finfo(torch.float32).eps
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda parameters: torch.optim.SGD(parameters, lr=RATE, momentum=0.9),
    "AdamW": lambda parameters: torch.optim.AdamW(parameters, lr=RATE),
}
Inputs = dict[str, Any]


@dataclass
class Row:
    """What was found of one model: counts of steps, and the failures as text."""

    name: str
    steps: int = 0
    refused: int = 0  # that raise an error, the same as in eager
    graphs: int = 0
    worst: float = 0.0  # error of all gradients together, as a share of its bound
    # steps whose errors are larger in the mean, and not in the median: a ReLU changed its sign
    chance: int = 0
    without: int = 0  # steps that cannot be had in float64
    seconds: float = 0.0
    reasons: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """One line of the table."""
        return (
            f"{self.name:<18} {self.steps:>2} steps "
            f"{f'{len(self.failures)} WRONG' if self.failures else 'equal':>8} "
            f"{f'{self.refused} raise ' if self.refused else ''}"
            f"{f'{self.chance} by chance ' if self.chance else ''}"
            f"{f'{self.without} without float64 ' if self.without else ''}"
            f"error x{self.worst:.2f} {self.graphs:>3} graphs {self.seconds:>6.1f} s  "
            f"{'; '.join(self.reasons[:2])}"
        )


@dataclass
class Outcome:
    """What one step gave and left behind."""

    loss: float = float("nan")
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    updated: dict[str, torch.Tensor] = field(default_factory=dict)
    error: Exception | None = None
    random: Any = None


class Peer:
    """A copy of a model with an optimizer of its own, and how its step is run."""

    def __init__(self, model: nn.Module, optimizer: str, compile: str = "") -> None:
        self.model = copy.deepcopy(model)
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.forward = ingot.compile(self.model) if compile == "module" else self.model
        self.step = ingot.compile(self.whole) if compile == "step" else self.whole
        self.compiled = self.step if compile == "step" else self.forward

    def whole(self, inputs: Inputs) -> torch.Tensor:
        """The training step."""
        self.optimizer.zero_grad()
        out = self.forward(**inputs)
        loss = sum(t.square().mean() for t in floating(out) if t.requires_grad)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def run(self, inputs: Inputs, state: dict[str, Any], seed: int) -> Outcome:
        """A step from that state of the model."""
        self.model.load_state_dict(state)
        found = Outcome()
        random.seed(seed)
        torch.manual_seed(seed)
        seed_numpy(seed)
        try:
            found.loss = float(self.step(inputs))
        except Exception as problem:
            found.error = problem
            self.optimizer.zero_grad()
        found.random = torch.random.get_rng_state()
        named = list(self.model.named_parameters())
        found.gradients = {name: p.grad.clone() for name, p in named if p.grad is not None}
        found.updated = {name: p.detach().clone() for name, p in named}
        found.buffers = {
            name: b.clone() for name, b in self.model.named_buffers() if b.is_floating_point()
        }
        return found


def seed_numpy(seed: int) -> None:
    """Models draw masks with it."""
    import numpy

    numpy.random.seed(seed)


def floating(tree: Any) -> Iterator[torch.Tensor]:
    """The floating tensors of a model's output."""
    if isinstance(tree, torch.Tensor):
        if tree.is_floating_point():
            yield tree
    elif isinstance(tree, (tuple, list)):
        for part in tree:
            yield from floating(part)
    elif hasattr(tree, "items"):
        for _, part in tree.items():
            yield from floating(part)


def varied(inputs: Inputs, kind: str) -> Inputs:
    """The inputs with other sizes."""

    def one(t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return t
        if kind == "twice the batch":
            return torch.cat((t, t))
        if kind == "one of the batch":
            return t[:1]
        if kind == "twice the length" and t.dim() >= 2 and not t.is_floating_point():
            return torch.cat((t, t), 1)
        return t

    return {name: one(t) for name, t in inputs.items()}


class Trial:
    """The steps of one model, in eager, in float64 and compiled."""

    def __init__(
        self, model: nn.Module, inputs: Inputs, optimizer: str = "SGD", compile: str = "step"
    ) -> None:
        model = model.train()
        self.inputs, self.state = inputs, copy.deepcopy(model.state_dict())
        self.eager, self.compiled = Peer(model, optimizer), Peer(model, optimizer, compile)
        self.exact = Peer(model.double(), optimizer)
        self.twin = {name: p.detach().clone() for name, p in self.compiled.model.named_parameters()}
        self.follows = OPTIMIZERS[optimizer](list(self.twin.values()))

    def run(self, row: Row, calls: Sequence[str] = CALLS) -> None:
        """All steps."""
        for number, kind in enumerate(calls):
            row.steps += 1
            try:
                self._compare(row, varied(self.inputs, kind), number)
            except Different as difference:
                row.failures.append(f"step {number} ({kind}): {difference}")

    def _compare(self, row: Row, inputs: Inputs, number: int) -> None:
        pairs = [self._errors(row, inputs, number, check_parts=True)]
        for seeds in SEEDS:
            others = range(len(pairs), seeds)
            pairs += [self._errors(row, redrawn(inputs, k), number + 100 * k) for k in others]
            ratio = statistics.fmean(mine for mine, _ in pairs) / statistics.fmean(
                bound for _, bound in pairs
            )
            if ratio <= 1:
                break
        row.worst = max(row.worst, ratio)
        if ratio > 1 and statistics.median(mine / bound for mine, bound in pairs) <= 1:
            row.chance += 1
        elif ratio > 1:
            raise Different(
                f"the gradients' error is {ratio:.2f} of its bound, on average over {len(pairs)} "
                "draws"
            )

    def _errors(
        self, row: Row, inputs: Inputs, seed: int, check_parts: bool = False
    ) -> tuple[float, float]:
        """The error of a step's gradients, and what it may be at most."""
        mine = self.compiled.run(inputs, self.state, seed)
        its = self.eager.run(inputs, self.state, seed)
        if type(mine.error) is not type(its.error):
            raise Different(
                f"raises {problem(mine.error)}, eager {problem(its.error)}"
            ) from mine.error
        if not torch.equal(mine.random, its.random):
            raise Different("draws other random numbers")
        if its.error is not None:
            row.refused += 1
            return 0.0, 1.0
        if mine.gradients.keys() != its.gradients.keys():
            raise Different(
                f"gradients of some of {sorted(mine.gradients.keys() ^ its.gradients.keys())[:4]} "
                "only"
            )
        self._check_update(mine)
        exact = self.exact.run(in_float64(inputs), in_float64(self.state), seed)
        found = exact.error is None and exact.gradients.keys() == its.gradients.keys()
        if not found or not torch.equal(exact.random, its.random):
            row.without += check_parts
            exact = its
        if check_parts:
            check_each(mine.gradients, its.gradients, exact.gradients)
            check_each(mine.buffers, its.buffers, exact.buffers)
        if exact is its:
            return error(mine.gradients, its.gradients), APART
        ours, eagers = (error(side.gradients, exact.gradients) for side in (mine, its))
        return ours, max(ERROR_RATIO * eagers, ERROR_FLOOR * EPS)

    def _check_update(self, found: Outcome) -> None:
        """That the optimizer made of these gradients what it makes of them in eager."""
        for name, p in self.twin.items():
            p.copy_(self.state[name])
            p.grad = found.gradients.get(name)
        self.follows.step()
        for name, p in self.twin.items():
            if not torch.allclose(
                found.updated[name], p, rtol=4 * EPS, atol=4 * EPS * RATE, equal_nan=True
            ):
                far = (found.updated[name] - p).abs().max()
                raise Different(
                    f"{name} is updated to something else than in eager, {far:.1e} away"
                )


Tensors = dict[str, torch.Tensor]


def check_each(ours: Tensors, eagers: Tensors, exact: Tensors) -> None:
    """Raises Different where a single tensor is far from float64's, though all of them together may
    not be."""
    size = sum(float(t.nan_to_num().square().sum()) for t in exact.values()) ** 0.5
    for name, e in exact.items():
        mine, its = ours[name], eagers[name]
        try:
            compare_geometry(mine, its)
        except Different as problem:
            raise Different(f"{name} differs: {problem}") from None
        if not torch.equal(mine.isnan(), its.isnan()):
            raise Different(f"{name} has NaN elsewhere than in eager")
        my_error, its_error = ((side - e).nan_to_num().norm() for side in (mine, its))
        most = max(
            PART_RATIO * its_error, PART_FLOOR * e.nan_to_num().norm(), PART_SHARE * EPS * size
        )
        if my_error > most:
            raise Different(
                f"{name} is {my_error:.1e} from float64's, eager's {its_error:.1e}, of "
                f"{e.norm():.1e}"
            )


def redrawn(inputs: Inputs, k: int) -> Inputs:
    """The inputs with other numbers, that round otherwise: floating ones scaled, words in another
    order."""

    def one(name: str, t: Any) -> Any:
        if not isinstance(t, torch.Tensor) or not k:
            return t
        return (
            t * (1 - k / 64)
            if t.is_floating_point()
            else t.roll(k, -1)
            if name == "input_ids"
            else t
        )

    return {name: one(name, t) for name, t in inputs.items()}


def problem(error: Exception | None) -> str:
    return "nothing" if error is None else f"{type(error).__name__}: {str(error).strip()[:200]}"


def examine(name: str, optimizer: str = "SGD", compile: str = "step") -> Row:
    """The row of a model of the zoo."""
    row, start = Row(name), time.perf_counter()
    trial = Trial(*make(name), optimizer, compile)
    trial.run(row)
    compiler = Compiler.of(trial.compiled.compiled)
    assert compiler is not None
    report = Report.from_compilations(compiler.compilations)
    backward = [c.backward for c in compiler.compilations if c.backward is not None]
    row.graphs = report.graph_count
    row.reasons = [f"{b.reason} ({b.file.rpartition('/')[2]}:{b.line})" for b in report.breaks]
    row.reasons += [str(b.skipped) for b in backward if b.skipped is not None]
    row.failures += [reason for reason in row.reasons if "internal error" in reason]
    row.seconds = time.perf_counter() - start
    return row


def in_process(name: str, options: argparse.Namespace) -> tuple[str, bool]:
    """What a process of its own prints about a model, and whether all was equal."""
    command = [
        sys.executable,
        "-m",
        "tests.zoo_training",
        name,
        "--worker",
        "--optimizer",
        options.optimizer,
    ]
    command += ["--compile", options.compile]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=options.timeout, env=environment
        )
    except subprocess.TimeoutExpired:
        return f"{name:<18} no result after {options.timeout:.0f} s\n", False
    if not done.stdout:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return f"{name:<18} FAILED with status {done.returncode}: {last}\n", False
    return done.stdout, done.returncode == 0


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.zoo_training", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "names", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}; all if none is named"
    )
    parser.add_argument("--optimizer", choices=OPTIMIZERS, default="SGD")
    parser.add_argument(
        "--compile",
        choices=("step", "module"),
        default="step",
        help="what is compiled: %(default)s",
    )
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes at a time, of one thread each"
    )
    parser.add_argument(
        "--timeout", type=float, default=900.0, help="seconds for each model (%(default)s)"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if unknown := [name for name in options.names if name not in MODELS]:
        parser.error(f"unknown: {', '.join(unknown)}")
    if options.worker:
        torch.set_num_threads(1)
        row = examine(options.names[0], options.optimizer, options.compile)
        print("\n    ".join([str(row), *row.failures]))
        return int(bool(row.failures))
    wrong = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        for text, equal in pool.map(
            lambda name: in_process(name, options), options.names or MODELS
        ):
            print(text, end="", flush=True)
            wrong += not equal
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
