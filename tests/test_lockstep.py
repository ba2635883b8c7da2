"""Ranks that issue different collectives, and ranks that only seem to."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # what operators do to fakes

from ingot.lockstep import Call, Record, calls_of
from tests.graph.tracing import traced
from tests.ranks import on_ranks

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
