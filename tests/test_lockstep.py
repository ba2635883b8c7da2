"""Ranks that issue different collectives, and ranks that only seem to."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # what operators do to fakes

from ingot.lockstep import Call, Record, calls_of
from tests.forks import run_forked
from tests.graph.tracing import traced
from tests.ranks import MODULES, VARIABLES, on_ranks

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch has no gloo"
)


def test_what_belongs_together_is_no_difference() -> None:
    """In one start of two ranks: each pair of programs communicates the same, whatever compiles
    it."""
    for found in on_ranks(2, "tests.lockstep_ranks:run_alike"):
        for name, logged in found.items():
            assert not logged, (name, logged)


def test_an_error_names_the_lines_of_both_ranks() -> None:
    results = on_ranks(2, "tests.lockstep_ranks:run_different")
    for rank, (error, *notes) in enumerate(results):
        text = "\n".join(notes)
        assert error, rank
        assert "issue different collectives as number 1" in text, (rank, error, text)
        assert "all_reduce sum of 4 × float32 at" in text and "broadcast of rank 0" in text
        assert text.count("lockstep_ranks.py:") >= 2


def check_trial(trial: dict[str, Any]) -> None:
    """That nobody hung, what is right went on, and the error of a rank that waited names the other
    rank and its line."""
    assert not trial["hung"], trial
    waiting, troubled, *others = trial["errors"]
    if trial["trouble"] in ("late", "shapes", "eager"):
        assert all(trial["done"]), trial
        return
    assert not any(trial["done"]), trial
    line = r"trouble_ranks\.py:\d+"
    if trial["trouble"] == "raises":
        assert "Trouble: no data at step" in troubled
        expected = rf"rank 1 of group '0' met Trouble: no data at step \d at .*{line}"
    else:
        expected = rf"rank \d (all_reduce sum of 3|broadcast of rank 0) .*{line}, rank \d .*{line}"
        assert re.search(expected, troubled), trial
    for text in (waiting, *others):
        assert re.search(expected, text), trial


def in_trouble(folder: Path, ranks: int, first: int, trials: int) -> list[dict[str, Any]]:
    """What became of trials, each of them over in `trouble_ranks.SECONDS`."""
    file = folder / "trials"
    given = map(str, (file, ranks, first, trials))
    place = "tests.trouble_ranks:write_trials"
    done = run_forked(place, *given, modules=MODULES, seconds=3600, **VARIABLES)
    assert not done.status, done.output
    results: list[dict[str, Any]] = json.loads(file.read_text())
    return results


def test_ranks_in_trouble(tmp_path: Path) -> None:
    """One raises, and one communicates otherwise, in a later step."""
    for trial in in_trouble(tmp_path, 2, 3, 2):
        check_trial(trial)


@pytest.mark.long
@pytest.mark.parametrize(("ranks", "trials"), [(2, 50), (4, 10)])
def test_many_ranks_in_trouble(ranks: int, trials: int, tmp_path: Path) -> None:
    found = in_trouble(tmp_path, ranks, 0, trials)
    assert len(found) == trials
    for trial in found:
        check_trial(trial)


def test_records_are_compared_by_number() -> None:
    def calls(text: str) -> list[Call]:
        return [Call(letter, "", "") for letter in text]

    ours = Record(5, calls("abc"))
    assert ours.difference(Record(5, calls("abcd"))) is None
    assert ours.difference(Record(7, calls("cd"))) is None
    assert ours.difference(Record(4, calls("xab"))) is None
    assert ours.difference(Record(8, calls("zz"))) is None
    assert ours.difference(Record(6, calls("bx"))) == (7, *calls("cx"))
    assert Call("a", "", "").is_same(Call("a", "of 4 bytes", "there"))
    assert not Call("a", "of 8 bytes", "").is_same(Call("a", "of 4 bytes", ""))


def test_what_is_not_numbered_alike_is_not_compared() -> None:
    """Numbers are known up to the first message, or the first call of several tensors."""
    operators = torch.ops._c10d_functional

    def several(x: torch.Tensor) -> torch.Tensor:
        y = operators.wait_tensor(operators.all_reduce(x * 2, "sum", "a"))
        z = operators.all_reduce_coalesced([y], "sum", "a")[0]
        u = operators.broadcast(y, 1, "b")
        return operators.broadcast(u, 0, "a") + z

    by_group = calls_of(traced(several, torch.ones(4)))
    (first,), (other,) = by_group["a"], by_group["b"]
    assert (first.kind, first.amount) == ("all_reduce sum", "of 4 × float32")
    assert (other.kind, other.amount) == ("broadcast of rank 1", "of 16 bytes")
