"""The sweep over single ops: that its cases run, and what one row says."""

from __future__ import annotations

import torch

from benchmarks import sweep


def test_cases_have_names_of_their_own():
    torch.manual_seed(0)
    names = [name for family in sweep.FAMILIES.values() for name, _, _ in family()]
    assert len(names) == len(set(names)) > 700


@torch.no_grad()
def test_a_row():
    x = torch.randn(64)
    row = sweep.measured("neg", torch.neg, (x,), 3)
    assert (
        row.name == "neg" and row.kinds == "fused" and row.ratio[0] <= row.ratio[1] <= row.ratio[2]
    )
    assert sweep.measured("no such op", torch.logical_and, (x, x, x), 3) is None
