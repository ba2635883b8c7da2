"""Random programs compiled and in eager: the same values, layouts, aliasing, writes, random numbers
and errors.

`python -m tests.test_random_programs COUNT [FIRST]` runs more of them, and counts what was left to
eager and why.
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_flatten

import ingot
from ingot.compiler import Compiler
from ingot.debugging.rounding import RUNS, Moved, within_rounding
from tests import random_programs_indexing  # noqa: F401  (more statements)
from tests.oracle import assert_like, ignore_warnings
from tests.random_programs_writer import RandomProgram, random_program

# Relative to the largest magnitude of a tensor: programs add and subtract what they have rounded,
# in other types too.
TOLERANCE = {torch.float64: 2e-4, torch.float32: 2e-4, torch.float16: 2e-2, torch.bfloat16: 8e-2}


def memory(t: torch.Tensor) -> torch.Tensor:
    """All bytes of a tensor's storage."""
    return torch.empty(0, dtype=torch.uint8).set_(t.untyped_storage())  # type: ignore[call-overload]


def between(tensors: list[torch.Tensor], k: int, before: int) -> torch.Tensor:
    """The bytes of the k-th tensor's storage that none of the tensors shows, as far as it had them
    before the call."""
    storage = tensors[k].untyped_storage()
    shown = torch.zeros(storage.nbytes(), dtype=torch.uint8)
    for t in tensors:
        if t.untyped_storage()._cdata == storage._cdata:
            whole = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[
                t.element_size()
            ]
            shown.view(whole).as_strided(t.shape, t.stride(), t.storage_offset()).fill_(-1)
    return memory(tensors[k])[:before][shown[:before] == 0]


class Outcome:
    """What a call did: its result or error, and what it left behind."""

    def __init__(self, function: Any, arguments: tuple[Any, ...]) -> None:
        tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
        versions = [t._version for t in tensors]
        self.bytes_before = [t.untyped_storage().nbytes() for t in tensors]
        torch.manual_seed(0)
        self.error: Exception | None = None
        self.result: Any = None
        try:
            self.result = function(*arguments)
        except Exception as error:
            self.error = error
        self.random = torch.random.get_rng_state()
        self.inputs = tensors
        self.versions_moved = [t._version > v for t, v in zip(tensors, versions)]
        self.leaves, self.structure = tree_flatten(self.result)

    def sharing(self) -> list[Any]:
        """For each tensor given or returned: the first one that is the same object, the first one
        of the same storage, and how far apart they start, in bytes."""
        objects: dict[int, int] = {}
        memory: dict[int, tuple[int, int]] = {}
        pattern: list[Any] = []
        for k, t in enumerate([*self.inputs, *self.leaves]):
            if not isinstance(t, torch.Tensor):
                continue
            same = objects.setdefault(id(t), k)
            first, start = memory.setdefault(
                t.untyped_storage()._cdata, (k, t.storage_offset() * t.element_size())
            )
            apart = t.storage_offset() * t.element_size() - start if t.numel() else None
            pattern.append((k, same, first if t.numel() else k, apart))
        return pattern


class ValuesDiffer(AssertionError):
    """Apart from the values of a tensor, all agrees so far."""


def compare(actual: Outcome, expected: Outcome, moved: Sequence[Outcome] = ()) -> None:
    """`moved` are runs of eager with operands moved: what they change may differ."""
    assert type(actual.error) is type(expected.error), (
        f"raises {actual.error!r}, eager {expected.error!r}"
    )
    if expected.error is not None:
        return
    assert actual.structure == expected.structure, f"{actual.structure}, eager {expected.structure}"
    assert actual.sharing() == expected.sharing(), (
        f"aliases {actual.sharing()}, eager {expected.sharing()}"
    )
    for k, stepped in enumerate(expected.versions_moved):
        versions = actual.versions_moved[k], stepped
        assert versions[0] == stepped, f"argument {k}: version moved {versions}"
    assert torch.equal(actual.random, expected.random), "the generator was advanced differently"
    for k, (a, e) in enumerate(zip(actual.leaves, expected.leaves)):
        if isinstance(e, torch.Tensor):
            compare_tensors(a, e, f"result {k}", [m.leaves[k] for m in moved])
        else:
            assert type(a) is type(e) and a == e, f"result {k} is {a!r}, eager {e!r}"
    for k, (a, e) in enumerate(zip(actual.inputs, expected.inputs)):
        compare_tensors(a, e, f"argument {k}", [m.inputs[k] for m in moved])
        before = expected.bytes_before[k]
        outside = between(actual.inputs, k, before), between(expected.inputs, k, before)
        assert torch.equal(*outside), f"argument {k}: the memory around it was written"


def compare_tensors(
    a: torch.Tensor, e: torch.Tensor, what: str, moved: list[torch.Tensor], layout: bool = True
) -> None:
    assert_like(a, e, strides="that matter" if layout else "none", path=what)
    tolerance = TOLERANCE.get(e.dtype)
    if tolerance is None:
        close = a == e
    else:
        finite = e[e.isfinite()].double()
        scale = max(1e-3, finite.abs().max().item()) if finite.numel() else 1.0
        close = torch.isclose(
            a.double(), e.double(), rtol=tolerance, atol=tolerance * scale, equal_nan=True
        )
    if moved and not close.all():
        close |= within_rounding(a, e, moved)
    if not close.all():
        raise ValuesDiffer(f"{what}:\n{a}\neager\n{e}")


def compare_or_move(
    actual: Outcome, expected: Outcome, program: RandomProgram, arguments: tuple[int, bool]
) -> bool:
    """Compare; where values differ, by as much as rounding may change them. Whether that was
    needed."""
    try:
        compare(actual, expected)
        return False
    except ValuesDiffer:
        moved = []
        for seed in range(RUNS):
            given = program.arguments(*arguments)
            with Moved(seed, apart=seed % 2 == 1):
                moved.append(Outcome(program.function, given))
        same = [m for m in moved if m.error is None and m.structure == expected.structure]
        compare(actual, expected, [m for m in same if _alike(m, expected)])
        return True


def _alike(a: Outcome, b: Outcome) -> bool:
    """Whether the results are tensors of the same shapes."""
    shapes = [[getattr(leaf, "shape", None) for leaf in (*o.leaves, *o.inputs)] for o in (a, b)]
    return shapes[0] == shapes[1]


def check(program: RandomProgram) -> tuple[Compiler, bool]:
    """Compare four calls: fresh; the same sizes, other numbers; other sizes; the first ones again.
    Calls that met their facts before compile nothing; those of what goes on behind a graph break
    are what the program computed until there, which other numbers may change. Also says whether
    rounding is magnified (see `rounding.py`)."""
    compiled = ingot.compile(program.function)
    compiler = Compiler.of(compiled)
    assert compiler is not None
    magnifies = False
    with torch.no_grad(), warnings.catch_warnings():
        ignore_warnings()
        for call, (draw, other) in enumerate([(1, False), (2, False), (3, True), (1, False)]):
            before = len(compiler.compilations)
            expected = Outcome(program.function, program.arguments(draw, other))
            actual = Outcome(compiled, program.arguments(draw, other))
            new = compiler.compilations[before:]
            try:
                bugs = [
                    c.skipped.reason
                    for c in new
                    if c.skipped and c.skipped.reason.startswith("internal error")
                ]
                assert not bugs, bugs[0]
                magnifies |= compare_or_move(actual, expected, program, (draw, other))
                allowed = call in (0, 2) or call == 1 and all(c.is_continuation for c in new)
                assert not new or allowed, f"call {call} compiles again: {new[0].recompiled}"
            except AssertionError as error:
                raise AssertionError(f"{error}\nin call {call} of\n{program}") from None
    return compiler, magnifies


@pytest.mark.parametrize("first", range(0, 150, 3))
def test_random_programs(first: int) -> None:
    for seed in range(first, first + 10):
        check(random_program(seed))


@pytest.mark.parametrize("first", range(5000, 5040, 10))
def test_random_programs_touch_nothing_outside_of_their_buffers(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGOT_CHECK_BOUNDS", "1")
    for seed in range(first, first + 10):
        check(random_program(seed))


def main(count: int, first: int = 0) -> None:
    compiled, failed, magnifying = 0, [], []
    reasons: Counter[str] = Counter()
    for seed in range(first, first + count):
        program = random_program(seed)
        try:
            compiler, magnifies = check(program)
        except Exception as error:
            failed.append(seed)
            print(f"==== seed {seed}")
            if isinstance(error, AssertionError):
                print(error)
            else:
                traceback.print_exc()
                print(program)
            continue
        magnifying += [seed] * magnifies
        skipped = compiler.compilations[0].skipped
        compiled += skipped is None
        if skipped is not None:
            reasons[skipped.reason.partition("\n")[0][:110]] += 1
    print(
        f"{count} programs, {compiled} compiled, {reasons.total()} left to eager, failed: {failed}"
    )
    print(f"{len(magnifying)} magnify rounding as much in eager: {magnifying}")
    for reason, times in reasons.most_common():
        print(f"{times:6}  {reason}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
