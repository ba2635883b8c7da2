"""Models in tensor and sequence parallel, trained on two ranks of gloo: one graph, and losses,
gradients and parameters that are eager's. One of them is in tests/capture/test_dtensors.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

from tests.long import long
from tests.ranks import on_ranks

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch has no gloo"
)

PLACE = "tests.tensor_parallel_ranks:find_all"


LARGEST = 1e-5
"""The largest relative difference after three steps in float32."""


def require(facts: dict[str, Any]) -> None:
    """AssertionError where training is not eager's, or breaks a graph."""
    assert not facts.pop("step")
    for name, one in facts.items():
        assert one["loss"] < LARGEST and one["step"] < LARGEST, (name, one)
        assert one["graphs"] == 1 and not one["breaks"], (name, one)


@long
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "adamw of many"])
def test_models(optimizer: str) -> None:
    for rank in on_ranks(2, PLACE, optimizer):
        assert len(rank) == 6
        require(rank)
