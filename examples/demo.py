"""The main job: `python -m examples.demo`.

GPT-2 124M (random weights) is compiled, measured, and writes from real text, token for token what
eager writes; the small functions of `examples/functions.py` are compiled and measured; then come
the report of one of them, and the kernel of another as C++.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import torch
from rich.progress import Progress
from rich.table import Table
from torch import Tensor

import ingot
from examples import gpt2
from examples.functions import FUNCTIONS
from ingot.explain.cli import console, milliseconds, progress
from ingot.explain.loading import Target
from ingot.explain.trial import STEPS, Trial, try_target

TOKENS = 20
REPORTED, IN_CPP = "layer_norm_gelu", "tanh_gelu"
ROUNDS, MODEL_ROUNDS = 30, 5


def main() -> int:
    """Run everything and print it; returns 0 if every result is eager's."""
    output = console()
    model, args = gpt2.make()
    targets = [Target("GPT-2 124M, 1x128", model, args)]
    targets += [Target(example.title, *example.make()) for example in FUNCTIONS.values()]
    with progress(output) as bar:
        trials = [run(target, bar) for target in targets]
        written, expected = write(ingot.compile(model), "Ingot", bar), write(model, "eager", bar)
    output.print(table(trials))
    output.print(f"GPT-2 reads {gpt2.TEXT[:72]!r}...", markup=False)
    same = "as eager does" if written == expected else f"but eager writes {expected}"
    output.print(f"and writes {written}, {same}.\n", markup=False)
    print(next(trial.report for trial in trials if trial.target.spec == FUNCTIONS[REPORTED].title))
    print(kernel_in_cpp(IN_CPP))
    problems = [
        f"{trial.target.spec}: {problem}"
        for trial in trials
        for problem in trial.comparison.problems
    ]
    for problem in problems:
        output.print(problem, markup=False, style="bold red")
    return 1 if problems or written != expected else 0


@torch.no_grad()
def kernel_in_cpp(name: str) -> str:
    """The kernel of a small function as C++, without the functions that it calls; why there is
    none where there is no C++ compiler."""
    function, args = FUNCTIONS[name].make()
    compiled = ingot.compile(function, options={"emit": "cpp"})
    heading, _, text = ingot.explain(compiled)(*args).stage("cpp").partition("\n")
    kernel = text.partition("// aten.")
    if not kernel[1]:
        return text
    return f"{heading}\n{kernel[1]}{kernel[2].partition('#ifdef')[0]}"


def run(target: Target, bar: Progress) -> Trial:
    """Measure one target, showing how far it is."""
    rounds = MODEL_ROUNDS if isinstance(target.function, gpt2.Gpt) else ROUNDS
    task = bar.add_task(target.spec, total=rounds + STEPS)

    def step(what: str) -> None:
        bar.update(task, description=f"{target.spec}: {what}", advance=1)

    trial = try_target(target, ingot.compile, ingot.explain, rounds, step)
    bar.remove_task(task)
    return trial


def write(model: Callable[[Tensor], Tensor], name: str, bar: Progress) -> list[int]:
    """The tokens that the model appends to the text."""
    task = bar.add_task(f"GPT-2 writes with {name}", total=TOKENS)
    tokens = gpt2.generate(model, gpt2.encode(gpt2.TEXT), TOKENS, step=lambda: bar.advance(task))
    bar.remove_task(task)
    return tokens.flatten().tolist()


def table(trials: list[Trial]) -> Table:
    """One row per target; times are medians."""
    result = Table(
        title="Ingot and eager PyTorch, taking turns in this process, on the CPU",
        title_justify="left",
    )
    result.add_column("", no_wrap=True)
    for heading in (
        "eager ms",
        "Ingot ms",
        "speed-up",
        "first call",
        "kernels",
        "relative error",
        "largest",
    ):
        result.add_column(heading, justify="right")
    for trial in trials:
        medians = (
            milliseconds(float(np.median(seconds)))
            for seconds in (trial.eager_seconds, trial.ingot_seconds)
        )
        comparison, report = trial.comparison, trial.report
        result.add_row(
            trial.target.spec,
            *medians,
            f"{trial.speedup[1]:.2f}x",
            f"{trial.first_call:.2f} s",
            f"{len(report.kernels)} ({report.fused_count} fused)",
            f"{comparison.error:.1e}",
            f"{comparison.largest_difference:.1e}",
        )
    return result


if __name__ == "__main__":
    sys.exit(main())
