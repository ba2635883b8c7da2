"""Models whose layers, or whose sequence, are spread over ranks of gloo, compiled: training is that
of one process, and a stage is one graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

from tests.long import long
from tests.pipeline_ranks import SCHEDULES
from tests.ranks import on_ranks

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch has no gloo"
)

LARGEST = 1e-5
"""The largest relative difference from one process in float32."""

PIPELINES = "tests.pipeline_ranks:compare"


def require_pipelines(ranks: list[dict[str, dict[str, Any]]]) -> None:
    for found in ranks:
        for name, facts in found.items():
            assert facts["eager"] < LARGEST and facts["compiled"] < LARGEST, (name, facts)
            # a first stage takes what has no gradient
            assert facts["graphs"] <= SCHEDULES[name][1] and not facts["breaks"], (name, facts)


def test_stages_of_a_pipeline() -> None:
    require_pipelines(on_ranks(2, PIPELINES, "1F1B"))


@long
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ["GPipe", "1F1B", "interleaved 1F1B", "looped, breadth first"])
def test_schedules(ranks: int, name: str) -> None:
    require_pipelines(on_ranks(ranks, PIPELINES, name))


@long
@pytest.mark.parametrize("ranks", [2, 4])
def test_rings_of_attention(ranks: int) -> None:
    """torch's `context_parallel`: each entry patches attention anew, and the graph stays."""
    for found in on_ranks(ranks, "tests.context_parallel_ranks:compare"):
        for name, facts in found.items():
            assert facts["eager"] < LARGEST and facts["compiled"] < LARGEST, (name, facts)
            assert facts["graphs"] == 1 and not facts["breaks"], (name, facts)
            assert not facts["fallbacks"], (name, facts)
