"""Base models of `transformers`, made small, compiled: inference and a training step do what they
do in eager.

`python -m tests.transformers_models [--only MODEL ...] [--shard K/N]` prints a row for each of the
package's base models, then how many there are of each outcome, and the reasons of graph breaks with
their counts; it ends with 1 if one of them is wrong. What cannot be built small, or has no inputs
that eager takes (tests/transformers_small.py tries), is counted as such. Each model has a process
of its own. Two calls are compared with eager: dtypes, shapes, strides, NaN, integers; errors
against float64, all tensors together and each by itself more loosely; caches as well. Then a
training step, as tests/zoo_training.py does.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import os
import statistics
import sys
import time
import traceback
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ingot
from ingot.compiler import Compiler
from ingot.explain.measure import error, in_float64
from ingot.explain.report import Report
from tests import transformers_small, zoo_training
from tests.op_outcome import Different, text
from tests.oracle import ignore_warnings
from tests.transformers_small import EagerFails, NotBuilt
from tests.zoo_training import EPS, ERROR_FLOOR, Trial, check_each, problem, redrawn, seed_numpy

OUTCOMES = (
    "right",
    "wrong",
    "crashed",
    "no result in time",
    "eager fails",
    "cannot be built small",
)
# of all results together: against eager's error; draws of inputs that it is averaged over
ERROR_RATIO, DRAWS = 1.5, 5
# from eager, where float64 computes something else: it draws other numbers, or chooses other
# experts
APART = 1e-4
SLOW = 60.0  # seconds of a first call


@dataclass
class Row:
    """What was found of one model."""

    name: str
    outcome: str = "right"
    note: str = ""  # how the model was made, or why it was not
    graphs: int = 0
    first_call: float = 0.0  # seconds
    worst: float = 0.0  # the largest error, as a share of its bound
    trained: str = ""
    seconds: float = 0.0
    reasons: list[str] = field(default_factory=list)  # of graph breaks
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """One line of the table."""
        if self.outcome not in ("right", "wrong"):
            return f"{self.name:<36.36} {self.outcome}: {self.note}"
        breaks = f"{len(self.reasons)} breaks" if self.reasons else ""
        slow = "SLOW " if self.first_call > SLOW else ""
        return (
            f"{self.name:<36.36} {self.outcome} {self.graphs:>3} graphs {breaks} first call {slow}"
            f"{self.first_call:.1f} s error x{self.worst:.2f} {self.trained} ({self.note})"
        )


def results(tree: Any) -> list[torch.Tensor]:
    """The tensors of a model's output, those in caches too, in order."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, (tuple, list)):
        return [t for part in tree for t in results(part)]
    if hasattr(tree, "items"):
        return [t for _, part in tree.items() for t in results(part)]
    if isinstance(layers := getattr(tree, "layers", None), list):
        return [t for layer in layers for t in results(vars(layer))]
    if hasattr(tree, "self_attention_cache"):
        return results([tree.self_attention_cache, tree.cross_attention_cache])
    return []


@dataclass
class Outcome:
    """What a call gave."""

    results: list[torch.Tensor] = field(default_factory=list)
    error: Exception | None = None
    random: Any = None

    @staticmethod
    def of(model: Any, inputs: dict[str, Any]) -> Outcome:
        found = Outcome()
        torch.manual_seed(0)
        seed_numpy(0)
        try:
            with torch.no_grad():
                found.results = results(model(**copy.deepcopy(inputs)))
        except Exception as error:
            found.error = error
        found.random = torch.random.get_rng_state()
        return found


def ratio_of_errors(mine: Outcome, its: Outcome, exact: Outcome) -> float:
    """The error of all results together as a share of its bound. Raises Different where there is
    another difference."""
    if type(mine.error) is not type(its.error):
        raise Different(f"raises {problem(mine.error)}, eager {problem(its.error)}") from mine.error
    if len(mine.results) != len(its.results):
        raise Different(f"{len(mine.results)} results, in eager {len(its.results)}")
    if not torch.equal(mine.random, its.random):
        raise Different("draws other random numbers")
    floats: list[int] = []
    for k, (a, b) in enumerate(zip(mine.results, its.results)):
        if b.is_floating_point():
            floats.append(k)
        elif not torch.equal(a, b):
            raise Different(f"result {k} is {text(a)}, in eager {text(b)}")
        if (a.dtype, a.shape, a.stride()) != (b.dtype, b.shape, b.stride()):
            raise Different(
                f"result {k} is {text(a)} {a.stride()}, in eager {text(b)} {b.stride()}"
            )
    ours, eagers = ({str(k): side.results[k] for k in floats} for side in (mine, its))
    if same_program(its, exact):
        reference = {str(k): exact.results[k] for k in floats}
        bound = max(ERROR_RATIO * error(eagers, reference), ERROR_FLOOR * EPS)
        check_each(ours, eagers, reference)
    else:
        reference, bound = eagers, APART
    return error(ours, reference) / bound


def same_program(its: Outcome, exact: Outcome) -> bool:
    """Whether float64 computes what eager does: it neither draws other numbers nor chooses other
    experts."""
    if exact.error is not None or not torch.equal(exact.random, its.random):
        return False
    if [t.shape for t in exact.results] != [t.shape for t in its.results]:
        return False
    pairs = [pair for pair in zip(its.results, exact.results) if pair[0].is_floating_point()]
    return error([t for t, _ in pairs], [t for _, t in pairs]) < APART


def infer(row: Row, model: nn.Module, given: dict[str, Any]) -> None:
    """Compare calls without gradients: twice the same, and with other numbers where the error is
    too large."""
    compiled = ingot.compile(model)
    exact = copy.deepcopy(model).double()
    ratios: list[float] = []
    try:
        for draw in range(DRAWS):
            inputs = redrawn(given, draw)
            its, wide = Outcome.of(model, inputs), Outcome.of(exact, in_float64(inputs))
            for _ in range(2 if draw == 0 else 1):
                start = time.perf_counter()
                mine = Outcome.of(compiled, inputs)
                row.first_call = row.first_call or time.perf_counter() - start
                ratios.append(ratio_of_errors(mine, its, wide))
            if statistics.fmean(ratios) <= 1:
                break
        else:
            raise Different(f"the results' error is {statistics.fmean(ratios):.2f} of its bound")
    except Different as difference:
        row.failures.append(f"inference: {difference}")
    row.worst = statistics.fmean(ratios) if ratios else float("nan")
    note(row, compiled)


def train(row: Row, model: nn.Module, given: dict[str, Any]) -> None:
    """Compare a training step."""
    trial, found = Trial(model, given, compile="module"), zoo_training.Row(row.name)
    trial.run(found, ("first",))
    row.failures += [f"training, {failure}" for failure in found.failures]
    row.trained = "cannot be trained" if found.refused else f"gradients x{found.worst:.2f}"
    note(row, trial.compiled.forward)


def note(row: Row, compiled: Any) -> None:
    """What Ingot made of a model."""
    compiler = Compiler.of(compiled)
    if compiler is None or not compiler.compilations:
        row.failures.append("nothing was compiled")
        return
    report = Report.from_compilations(compiler.compilations)
    backward = [c.backward for c in compiler.compilations if c.backward is not None]
    reasons = [f"{b}" for b in report.breaks]
    reasons += [f"backward in eager: {b.skipped}" for b in backward if b.skipped is not None]
    row.graphs += report.graph_count
    row.failures += [reason for reason in reasons if "internal error" in reason]
    row.reasons += [reason for reason in reasons if reason not in row.reasons]


def examine(name: str) -> Row:
    """The row of a model."""
    row, start = Row(name), time.perf_counter()
    try:
        model, given, row.note = transformers_small.make(name)
        infer(row, model, given)
        train(row, model, given)
    except (NotBuilt, EagerFails) as refusal:
        row.outcome = "eager fails" if isinstance(refusal, EagerFails) else "cannot be built small"
        row.note = " ".join(str(refusal).split())
    except Exception:
        row.outcome, row.note = "crashed", traceback.format_exc()[-1500:]
    if row.failures:
        row.outcome = "wrong"
    row.seconds = time.perf_counter() - start
    return row


def work(answer: Connection, name: str) -> None:
    """What a process does."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        ignore_warnings()
        answer.send(examine(name))


def in_process(name: str, timeout: float) -> Row:
    """The row of a model, examined in a process of its own."""
    mine, its = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=work, args=(its, name), daemon=True
    )
    process.start()
    its.close()
    try:
        if mine.poll(timeout):
            return mine.recv()
        return Row(name, "no result in time", f"after {timeout:.0f} s")
    except EOFError:
        process.join()
        return Row(name, "crashed", f"the process ended with status {process.exitcode}")
    finally:
        process.kill()
        process.join()


def kind_of_reason(reason: str) -> str:
    """A reason without its place."""
    head, _, tail = reason.partition(": ")
    return tail if head.startswith("break at") else f"{head.split(' from ')[0]}: {tail}"


def summary(rows: list[Row]) -> str:
    """How many there are of each outcome, and the reasons of graph breaks by the number of models
    that have them."""
    lines = [f"\n{len(rows)} models"]
    ran = [row for row in rows if row.outcome in ("right", "wrong")]
    for outcome in OUTCOMES:
        of_it = [row.name for row in rows if row.outcome == outcome]
        named = f": {', '.join(of_it)}" if outcome in OUTCOMES[1:4] else ""
        lines.append(f"{len(of_it):>4} {outcome}{named if of_it else ''}")
    lines.append(f"{sum(not row.reasons for row in ran):>4} without a graph break")
    for title, some in (
        ("without a graph", [row for row in ran if not row.graphs]),
        (
            f"slower than {SLOW:.0f} s in the first call",
            [row for row in ran if row.first_call > SLOW],
        ),
    ):
        lines.append(
            f"{len(some):>4} {title}" + (f": {', '.join(row.name for row in some)}" if some else "")
        )
    found: Counter[str] = Counter()
    example: dict[str, str] = {}
    for row in ran:
        for kind, reason in {kind_of_reason(reason): reason for reason in row.reasons}.items():
            found[kind] += 1
            example.setdefault(
                kind, f"{row.name}: {reason.partition(': ')[0].removeprefix('break at ')}"
            )
    lines += [
        f"{count:>6} {kind[:150]}  ({example[kind][:110]})" for kind, count in found.most_common()
    ]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.transformers_models", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--only", nargs="+", metavar="MODEL", help="names of transformers' model types"
    )
    parser.add_argument("--shard", help="k/n: the k-th of n parts of the models, from 1")
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes at a time, of one thread each"
    )
    parser.add_argument(
        "--timeout", type=float, default=400.0, help="seconds for each model (%(default)s)"
    )
    parser.add_argument("--save", type=Path, help="a file to which each row is added")
    parser.add_argument(
        "--sum", nargs="+", type=Path, help="run nothing, but print what such files hold"
    )
    options = parser.parse_args(argv)
    if options.sum:
        saved = [json.loads(line) for file in options.sum for line in file.read_text().splitlines()]
        print(summary(list({row["name"]: Row(**row) for row in saved}.values())))
        return 0
    os.environ["HF_HUB_OFFLINE"] = "1"
    chosen = options.only or transformers_small.names()
    if options.shard:
        part, parts = map(int, options.shard.split("/"))
        chosen = chosen[part - 1 :: parts]
    rows = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(lambda name: in_process(name, options.timeout), chosen):
            rows.append(row)
            print("\n    ".join([str(row), *row.failures]), flush=True)
            if options.save:
                with options.save.open("a") as file:
                    file.write(json.dumps(vars(row)) + "\n")
    print(summary(rows))
    return int(any(row.outcome in OUTCOMES[1:4] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
