"""Products in parts whose rows are aligned."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from ingot.loops.aligned_products import mm_in_parts, parts, suits
from ingot.loops.ir import Library
from ingot.loops.target import GPU
from ingot.runtime.gpu_description import GpuDescription
from ingot.schedule import schedule
from tests.graph.test_margins import lowered

SIZES = [(17, 113, 5), (64, 109, 8), (40, 150, 3), (33, 130, 4), (48, 68, 3), (16, 70, 2)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize(("rows", "columns", "depth"), SIZES)
def test_the_parts_are_the_product(rows: int, columns: int, depth: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x, weight = (
        torch.randint(-3, 4, (n, depth), generator=generator).to(dtype) for n in (rows, columns)
    )
    around = torch.full((rows * columns + 2,), torch.nan, dtype=dtype)
    found = mm_in_parts(x, weight.t(), out=around[1:-1].view(rows, columns))
    assert torch.equal(found, x @ weight.t())
    assert around[0].isnan() and around[-1].isnan()


@pytest.mark.parametrize("itemsize", [2, 4])
@pytest.mark.parametrize(("rows", "columns", "depth"), SIZES)
def test_the_batch_is_aligned(rows: int, columns: int, depth: int, itemsize: int) -> None:
    *_, batch = parts(rows, columns, itemsize)
    begins = [
        itemsize * ((batch.first + k) * columns + batch.begin + k * batch.shift)
        for k in range(batch.batch)
    ]
    assert not any(begin % 16 for begin in begins)
    assert itemsize * batch.step * columns % 16 == itemsize * batch.columns % 16 == 0
    assert (batch.batch - 1) * batch.shift + batch.columns <= columns


@pytest.mark.parametrize(
    ("rows", "columns", "left", "right", "dtype", "found"),  # of 768 elements in depth
    [
        (8192, 50257, (768, 1), (1, 768), torch.bfloat16, True),
        (8192, 50257, (768, 1), (1, 768), torch.float16, True),
        (8192, 50257, (768, 1), (1, 768), torch.float32, False),
        (8192, 50264, (768, 1), (1, 768), torch.bfloat16, False),  # aligned as it is
        # no part of the right operand would be
        (8192, 50257, (768, 1), (50257, 1), torch.bfloat16, False),
        (8192, 50257, (1, 8192), (1, 768), torch.bfloat16, False),
        (8192, 50257, (765, 1), (1, 765), torch.bfloat16, False),
        (1024, 50257, (768, 1), (1, 768), torch.bfloat16, False),
        (2048, 50257, (768, 1), (1, 768), torch.bfloat16, True),
        (2049, 50257, (768, 1), (1, 768), torch.bfloat16, False),  # the last row takes too long
        (8191, 50257, (768, 1), (1, 768), torch.bfloat16, True),
        (8192, 1001, (768, 1), (1, 768), torch.bfloat16, False),
        (None, 50257, (768, 1), (1, 768), torch.bfloat16, False),
    ],
)
def test_which_products_come_in_parts(
    rows: int | None,
    columns: int,
    left: tuple[int, int],
    right: tuple[int, int],
    dtype: torch.dtype,
    found: bool,
) -> None:
    assert suits(rows, 768, columns, left, right, dtype) == found


def test_rows_too_short_for_parts() -> None:
    for columns in range(1, 80):
        if suits(1 << 26, 16, columns, (16, 1), (1, 16), torch.bfloat16):
            assert all(
                part.begin >= 0 and 0 < part.columns <= columns
                for part in parts(1 << 26, columns, 2)
            )


def test_what_is_returned_is_written_where_it_stays() -> None:
    """No margins, no copies: one call, which is some of cuBLAS's."""
    x, weight = (
        torch.empty(8, 1024, 768, dtype=torch.bfloat16),
        torch.empty(50257, 768, dtype=torch.bfloat16),
    )
    graph = lowered(F.linear, x, weight)
    (node,) = graph.nodes
    assert isinstance(node, Library) and node.function is mm_in_parts
    plan = schedule(graph, target=GPU, frugal=True)
    described = GpuDescription(plan, None, torch.device("cpu"), False)
    steps = [step for step in described.build()[6] if step[0] == "product"]
    assert [call[1] for *_, call in steps] == [torch.mm, torch.mm, torch.bmm]
    sizes = {v: k for k, v in described.views.items()}
    values = {position: e.constant for e, position in described.expressions.items()}
    batch = [[values[n] for n in sizes[view][2]] for view in steps[-1][2]]
    assert batch == [[8, 1024, 768], [8, 768, 50208], [8, 1024, 50208]]
    assert plan.peak_bytes.constant == 2 * (8192 * 50257 + 768 * (8192 + 50257))


def test_what_is_read_on_has_margins() -> None:
    x, weight = (
        torch.empty(8192, 768, dtype=torch.bfloat16),
        torch.empty(50257, 768, dtype=torch.bfloat16),
    )
    graph = lowered(lambda x, weight: F.linear(x, weight).float().logsumexp(1), x, weight)
    assert [node.function for node in graph.nodes if isinstance(node, Library)] == [torch.mm]
