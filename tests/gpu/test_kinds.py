"""Each kind of kernel on the device, beside eager on the CPU."""

from __future__ import annotations

import pytest
import torch

import ingot
from tests.gpu.kinds import KINDS
from tests.gpu.sanitize import right


@pytest.mark.parametrize("name", KINDS)
def test_kinds(name: str) -> None:
    assert right(name, "cuda")


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 1, 4, 5), (2, 0, 3, 4)], ids=str)
def test_layout_of_roll(shape: tuple[int, ...]) -> None:
    """In order, whatever comes in."""
    x = torch.randn(shape, device="cuda")
    for t in (x, x.contiguous(memory_format=torch.channels_last), x.mT.contiguous().mT):
        for shifts, dims in [((1,), (1,)), ((3,), (1,)), ((-6, 1), (1, 0)), ((2,), ())]:

            def rolled(
                t: torch.Tensor, shifts: tuple[int, ...] = shifts, dims: tuple[int, ...] = dims
            ) -> torch.Tensor:
                return torch.roll(t, shifts, dims)

            expected, actual = rolled(t), ingot.compile(rolled)(t)
            assert actual.stride() == expected.stride()
            assert torch.equal(actual, expected)
