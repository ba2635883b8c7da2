"""Which tilings of a product are tried: numbers that need no GPU."""

from __future__ import annotations

import pytest
import torch

from ingot.schedule.tilings import MOST_TRIED, Chip, after_parts, estimate, tilings

H200 = Chip("H200", 90, 132, 227 << 10, 50 << 20)
SMALL = Chip("small", 86, 40, 99 << 10, 4 << 20)

Sizes = tuple[int, int, int, int]


@pytest.mark.parametrize("chip", [H200, SMALL])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "sizes",
    [(1, 8192, 3072, 768), (1, 197, 768, 3072), (1, 1, 768, 768), (96, 512, 512, 64), (1, 5, 3, 2)],
    ids=str,
)
def test_what_is_tried_fits(sizes: Sizes, dtype: torch.dtype, chip: Chip) -> None:
    found = tilings(sizes, dtype, chip)
    assert (
        1 <= len(found) <= MOST_TRIED
        and sorted(found) == found
        and len({t for _, t in found}) == len(found)
    )
    for nanoseconds, t in found:
        assert nanoseconds == estimate(sizes, dtype, chip, t) > 0
        assert t.stages * (t.rows + t.columns) * t.depth * dtype.itemsize <= chip.shared
        assert t.rows * t.columns <= 32 * t.warps * 128
        for size, block in zip(sizes[1:], (t.rows, t.columns, t.depth)):
            assert block < 2 * max(size, 16) and block & (block - 1) == 0


def best(sizes: Sizes, dtype: torch.dtype = torch.bfloat16) -> tuple[int, int]:
    (_, t), *_ = tilings(sizes, dtype, H200)
    return t.rows, t.columns


def test_large_products_have_large_tiles_and_small_ones_fill_the_device() -> None:
    assert sorted(best((1, 8192, 3072, 768))) == [128, 256]
    rows, columns = best((1, 197, 768, 3072))
    assert rows * columns <= 64 * 64
    assert best((1, 1, 768, 768))[0] == 16


def test_precisions_are_those_that_are_allowed() -> None:
    sizes = 1, 197, 768, 3072
    assert {t.precision for _, t in tilings(sizes, torch.float32, H200)} == {"ieee"}
    assert "tf32" in {t.precision for _, t in tilings(sizes, torch.float32, H200, ("ieee", "tf32"))}
    assert {t.precision for _, t in tilings(sizes, torch.bfloat16, H200, ("ieee", "tf32"))} == {
        "ieee"
    }


def test_parts_cost_a_launch() -> None:
    assert after_parts((1, 197, 768, 768), 1) == 0 < after_parts((4, 197, 768, 768), 4)
    assert after_parts((4, 197, 768, 768), 4) < after_parts((8, 197, 768, 768), 8)
