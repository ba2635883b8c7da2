"""Random programs over symbolic sizes, each at several shapes: results, writes and gradients are eager's, and so is
what an entry gives at any further shape that its guards accept.

`python -m tests.test_random_shapes COUNT [FIRST]` runs more of them, and counts what was left to eager and why.
"""

from __future__ import annotations

import random
import sys
import traceback
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import ingot
from ingot.compiler import Compiler
from tests.random_shapes import LATER_SIZES, ShapedProgram, shaped_program
from tests.rounding import RUNS, Moved
from tests.test_random_programs import Outcome, ValuesDiffer, _alike, compare, compare_tensors

FURTHER = 4  # shapes at which nothing more is compiled


class Trained(Outcome):
    """What a call did, and the gradients of what it computed: of its results, and of the arguments that it wrote."""

    def __init__(self, function: Any, given: tuple[tuple[Any, ...], list[torch.Tensor]]) -> None:
        arguments, leaves = given
        super().__init__(function, arguments)
        self.gradients: list[torch.Tensor | None] = []
        self.refused: Exception | None = None  # what autograd raised
        if self.error is not None:
            return
        written = [t for t, moved in zip(self.inputs, self.versions_moved) if moved]
        try:  # autograd also raises where a view is asked for its history that has none for what was written
            heads = [t for t in (*self.leaves, *written) if isinstance(t, torch.Tensor) and t.grad_fn is not None]
            self.heads = len(heads)
            if not heads:
                return
            tangents = [laid_out(torch.linspace(-1, 2, h.numel(), dtype=h.dtype).reshape(h.shape), h) for h in heads]
            self.gradients = list(torch.autograd.grad(heads, leaves, tangents, allow_unused=True))
        except RuntimeError as error:
            self.refused = error

    def shares_memory(self) -> bool:
        """Whether results are views of one another or of arguments: their gradients lie as those of as_strided do."""
        places = [first for k, _, first, _ in self.sharing() if k >= len(self.inputs)]
        return len({*places} - {*range(len(self.inputs))}) < len(places)


def laid_out(tangent: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """As a head is, where that has no gaps: what a compiled backward takes as it is, and eager's views hand on."""
    return torch.empty_like(head).copy_(tangent)


def compare_trained(actual: Trained, expected: Trained, moved: list[Trained]) -> None:
    with torch.no_grad():
        compare(actual, expected, moved)
    if expected.error is not None or expected.refused is not None:
        return  # autograd refuses what was kept and then written; a compiled program keeps other tensors
    assert actual.refused is None, f"the backward raises {actual.refused!r}"
    assert len(actual.gradients) == len(expected.gradients)
    with torch.no_grad():
        for k, (a, e) in enumerate(zip(actual.gradients, expected.gradients)):
            assert (a is None) == (e is None), f"gradient {k}: {a}, eager {e}"
            if a is not None and e is not None:
                layout = not expected.shares_memory()
                e = e if e.numel() else e.detach()  # torch gives cummax of no elements its input as gradient
                compare_tensors(a, e, f"gradient {k}", [m.gradients[k] for m in moved], layout)  # type: ignore[misc]


def compare_or_move(actual: Trained, expected: Trained, program: ShapedProgram, call: tuple[Any, ...]) -> None:
    """Compare; where values differ, by as much as rounding may change them."""
    try:
        compare_trained(actual, expected, [])
    except ValuesDiffer:
        moved = []
        for seed in range(RUNS):
            given = program.arguments_at(*call)
            with Moved(seed, apart=seed % 2 == 1):
                moved.append(Trained(program.function, given))
        same = [m for m in moved if m.error is None and m.refused is None and m.structure == expected.structure]
        compare_trained(actual, expected, [m for m in same if _alike(m, expected)])


@dataclass
class Checked:
    """What came of a program: its compilations, and of how many further shapes an entry took how many."""

    compiler: Compiler
    further: int = 0
    served: int = 0


def check(program: ShapedProgram) -> Checked:
    """Compare calls at each shape, again at each with other numbers, which compiles nothing, and then at further
    shapes, at which nothing is compiled either: an entry whose guards accept them gives eager's answer."""
    compiled = ingot.compile(program.function, dynamic=True if program.marks is None else None)
    compiler = Compiler.of(compiled)
    assert compiler is not None
    checked = Checked(compiler)
    rng = random.Random(program.seed)
    varying = [n for n in "ABC" if len({sizes[n] for sizes, _ in program.shapes}) > 1]
    further = []
    for _ in range(FURTHER):
        sizes = dict(rng.choice(program.shapes)[0])
        sizes |= {n: rng.choice(LATER_SIZES) for n in varying if rng.random() < 0.8}
        further.append((sizes, rng.randint(-3, 9)))
    draws = [(1, s, "default") for s in program.shapes] + [(2, s, "again") for s in program.shapes]
    draws += [(3, s, "eager_on_recompile") for s in further]
    for draw, (sizes, k), stance in draws:
        before = len(compiler.compilations)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected = Trained(program.function, program.arguments_at(draw, sizes, k))
            given = program.arguments_at(draw, sizes, k)
            for argument, dim in program.marks or ():
                ingot.mark_dynamic(given[0][argument], dim)
            with ingot.set_stance("default" if stance == "again" else stance):
                actual = Trained(compiled, given)
        new = compiler.compilations[before:]
        try:
            bugs = [c.skipped.reason for c in new if c.skipped and c.skipped.reason.startswith("internal error")]
            bugs += [
                str(b.skipped.reason)
                for c in compiler.compilations
                for b in [c.backward]
                if b and b.skipped and b.skipped.reason.startswith("internal error")
            ]
            assert not bugs, bugs[0]
            computed = stance == "again" and all(c.is_continuation for c in new)  # facts that numbers may decide
            assert not new or stance == "default" or computed, f"compiles again: {new[0].recompiled}"
            compare_or_move(actual, expected, program, (draw, sizes, k))
        except AssertionError as error:
            raise AssertionError(f"{error}\nin call {draw} of {sizes}, {k} ({stance})\n{program}") from None
    return checked


@pytest.mark.parametrize("first", range(0, 60, 5))
def test_random_programs_at_several_shapes(first: int) -> None:
    for seed in range(first, first + 5):
        check(shaped_program(seed))


def main(count: int, first: int = 0) -> None:
    made, failed, entries = 0, [], 0
    reasons: Counter[str] = Counter()
    for seed in range(first, first + count):
        program = shaped_program(seed)
        try:
            checked = check(program)
        except Exception as error:
            failed.append(seed)
            print(f"==== seed {seed}")
            if isinstance(error, AssertionError):
                print(error, flush=True)
            else:
                traceback.print_exc(file=sys.stdout)
                print(program, flush=True)
            continue
        compilations = checked.compiler.compilations
        entries += len(compilations)
        made += compilations[0].skipped is None
        for compilation in compilations:
            for what in (compilation, compilation.backward):
                if what is not None and what.skipped is not None:
                    reasons[what.skipped.reason.partition("\n")[0][:110]] += 1
            for line in compilation.fixed_sizes:
                reasons[f"fixed: {line[:110]}"] += 1
    print(f"{count} programs from {first}, {made} compiled at first, {entries} compilations, failed: {failed}")
    for reason, times in reasons.most_common():
        print(f"{times:6}  {reason}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
