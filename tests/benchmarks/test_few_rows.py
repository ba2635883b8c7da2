"""The benchmark of products of few rows: what it would launch, without a GPU."""

from __future__ import annotations

import pytest
import torch

from ingot.codegen.triton.module import available

if not available():
    pytest.skip("Triton is not installed", allow_module_level=True)

from benchmarks import few_rows
from ingot.schedule.tilings import Chip

CHIP = Chip("H200", 90, 132, 227 << 10, 50 << 20)


@pytest.mark.parametrize("program", few_rows.PROGRAMS)
@pytest.mark.parametrize("rows", [1, 32])
def test_ways(program: str, rows: int) -> None:
    shape = few_rows.Shape(program, rows, 1024, 1024)
    x = torch.zeros(rows, 1024, dtype=torch.bfloat16)
    names = [way.name for way in few_rows.ways(shape, x, CHIP)]
    assert names[0] == "library" and len(set(names)) == len(names) > 5
    if rows == 1:
        assert sum(name.endswith("chosen") for name in names) == 1


def test_an_unknown_shape_is_an_error() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        few_rows.main(["--shapes", "wide"])
