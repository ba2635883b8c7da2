"""Random programs over symbolic sizes, each at several shapes: results, writes and gradients are
eager's, and so is what an entry gives at any further shape that its guards accept.

`python -m tests.test_random_shapes COUNT [FIRST]` runs more of them, and counts what was left to
eager and why.
"""

from __future__ import annotations

import functools
import random
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import ingot
from ingot.compiler import Compiler
from ingot.debugging.rounding import RUNS, Moved
from tests.oracle import ignore_warnings
from tests.random_gradients import Asked
from tests.random_shapes import LATER_SIZES, ShapedProgram, shaped_program
from tests.test_random_programs import Outcome, ValuesDiffer, _alike, compare, compare_tensors

FURTHER = 4  # shapes at which nothing more is compiled


class Trained(Outcome):
    """What a call did, and the gradients that are `asked` for of what it computed: of its results,
    and of the arguments that it wrote."""

    def __init__(
        self,
        function: Any,
        given: tuple[tuple[Any, ...], list[torch.Tensor]],
        asked: Asked,
        call: int,
    ) -> None:
        arguments, leaves = given
        super().__init__(function, arguments)
        self.gradients: list[torch.Tensor | None] = []
        self.refused: Exception | None = None  # what autograd raised
        self.heads = 0
        if self.error is not None:
            return
        written = [t for t, moved in zip(self.inputs, self.versions_moved) if moved]
        # autograd also raises where a view is asked for its history that has none for what was
        # written
        try:
            heads = [
                t
                for t in (*self.leaves, *written)
                if isinstance(t, torch.Tensor) and t.grad_fn is not None
            ]
        except RuntimeError as error:
            self.refused = error
            return
        self.heads = len(heads)
        tangents = [
            laid_out(torch.linspace(-1, 2, h.numel(), dtype=h.dtype).reshape(h.shape), h)
            for h in heads
        ]
        for found in asked.gradients(call, heads, leaves, tangents):
            if isinstance(found, RuntimeError):
                self.refused = found
            else:
                self.gradients += found

    def shares_memory(self) -> bool:
        """Whether results are views of one another or of arguments: their gradients lie as those of
        as_strided do."""
        given, results = (
            [t for t in tensors if isinstance(t, torch.Tensor)]
            for tensors in (self.inputs, self.leaves)
        )
        storages = [t.untyped_storage()._cdata for t in results]
        return len({*storages} - {t.untyped_storage()._cdata for t in given}) < len(storages)


def laid_out(tangent: torch.Tensor, head: torch.Tensor) -> torch.Tensor:
    """As a head is, where that has no gaps: what a compiled backward takes as it is, and eager's
    views hand on."""
    return torch.empty_like(head).copy_(tangent)


def compare_trained(actual: Trained, expected: Trained, moved: list[Trained]) -> None:
    with torch.no_grad():
        compare(actual, expected, moved)
    if expected.error is not None:
        return
    # autograd refuses what was kept and then written; a compiled program keeps others
    if expected.refused is None:
        assert actual.refused is None, f"the backward raises {actual.refused!r}"
        assert len(actual.gradients) == len(expected.gradients)
    assert len(actual.gradients) >= len(expected.gradients), (
        f"the backward raises {actual.refused!r}"
    )
    with torch.no_grad():
        for k, (a, e) in enumerate(zip(actual.gradients, expected.gradients)):
            assert (a is None) == (e is None), f"gradient {k}: {a}, eager {e}"
            if a is not None and e is not None:
                layout = not expected.shares_memory()
                # torch gives cummax of no elements its input as gradient
                e = e if e.numel() else e.detach()
                compare_tensors(a, e, f"gradient {k}", [m.gradients[k] for m in moved], layout)  # type: ignore[misc]


def compare_or_move(actual: Trained, expected: Trained, again: Callable[[], Trained]) -> None:
    """Compare; where values differ, by as much as rounding may change them, when eager runs
    `again`."""
    try:
        compare_trained(actual, expected, [])
    except ValuesDiffer:
        moved = []
        for seed in range(RUNS):
            with Moved(seed, apart=seed % 2 == 1):
                moved.append(again())
        same = [m for m in moved if m.error is None and m.structure == expected.structure]
        same = [m for m in same if len(m.gradients) >= len(expected.gradients)]
        compare_trained(actual, expected, [m for m in same if _alike(m, expected)])


def internal_errors(compiler: Compiler) -> list[str]:
    """The reasons why programs, also of gradients, were left to eager that should not be."""
    programs = [p for c in compiler.compilations for p in (c, c.backward, *c.partial_backwards)]
    reasons = [p.skipped.reason for p in programs if p and p.skipped]
    return [reason for reason in reasons if reason.startswith("internal error")]


@dataclass
class Checked:
    """What came of a program: its compilations, and of how many further shapes an entry took how
    many."""

    compiler: Compiler
    further: int = 0
    served: int = 0


def check(program: ShapedProgram) -> Checked:
    """Compare calls at each shape, again at each with other numbers, which compiles nothing, and
    then at further shapes, at which nothing is compiled either: an entry whose guards accept them
    gives eager's answer."""
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
    asked = Asked(program.seed, program.count)
    for call, (draw, (sizes, k), stance) in enumerate(draws):
        before = len(compiler.compilations)
        with warnings.catch_warnings():
            ignore_warnings()
            arguments = functools.partial(program.arguments_at, draw, sizes, k, asked.frozen)
            expected = Trained(program.function, arguments(), asked, call)
            given = arguments()
            for argument, dim in program.marks or ():
                ingot.mark_dynamic(given[0][argument], dim)
            with ingot.set_stance("default" if stance == "again" else stance):
                actual = Trained(compiled, given, asked, call)
        new = compiler.compilations[before:]
        try:
            assert not (bugs := internal_errors(compiler)), bugs[0]
            # facts that numbers may decide
            computed = stance == "again" and all(c.is_continuation for c in new)
            assert not new or stance == "default" or computed, (
                f"compiles again: {new[0].recompiled}"
            )
            again = lambda: Trained(program.function, arguments(), asked, call)  # noqa: B023, E731
            compare_or_move(actual, expected, again)
        except AssertionError as error:
            where = (
                f"in call {call} of {sizes}, {k} ({stance}), {asked.passes(call, expected.heads)}"
            )
            raise AssertionError(f"{error}\n{where}\n# {asked}\n{program}") from None
    return checked


@pytest.mark.parametrize("first", range(0, 60, 3))
def test_random_programs_at_several_shapes(first: int) -> None:
    for seed in range(first, first + 5):
        check(shaped_program(seed))


def test_what_is_asked_for_varies() -> None:
    """By seed and call, and is the same for both that are compared."""
    asked = [Asked(seed, 3) for seed in range(60)]
    made = {seed: [a.passes(call, 3) for call in range(4)] for seed, a in enumerate(asked)}
    assert made == {
        seed: [Asked(seed, 3).passes(call, 3) for call in range(4)] for seed in range(60)
    }
    of = {p.heads for calls in made.values() for passes in calls for p in passes}
    assert len(of) == 7 and {len(calls[0]) for calls in made.values()} == {1, 2}
    assert any(calls[0] != calls[1] for calls in made.values()) and any(a.frozen for a in asked)
    assert any(p.leaves != made[k][0][0].leaves for k in made for calls in made[k] for p in calls)


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
            for what in (compilation, compilation.backward, *compilation.partial_backwards):
                if what is not None and what.skipped is not None:
                    reasons[what.skipped.reason.partition("\n")[0][:110]] += 1
            for line in compilation.fixed_sizes:
                reasons[f"fixed: {line[:110]}"] += 1
    print(
        f"{count} programs from {first}, {made} compiled at first, {entries} compilations, failed: "
        f"{failed}"
    )
    for reason, times in reasons.most_common():
        print(f"{times:6}  {reason}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
