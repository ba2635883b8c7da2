"""DTensors in the graph, with two ranks of gloo, which are started once; eager is the oracle."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

from tests.long import long
from tests.ranks import on_ranks
from tests.test_tensor_parallel import require as require_eagers

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="torch has no gloo"
)

PLACE = "tests.capture.dtensor_ranks"
QUICK = ("contracted", "in_place", "questions", "from_partial", "checked")


def require(facts: dict[str, Any], broken: set[str]) -> None:
    for name, one in facts.items():
        for gradients in (False, True):
            assert not one[f"differs {gradients}"], (name, gradients, one)
            assert bool(one[f"breaks {gradients}"]) is (name in broken), (name, gradients, one)
            if name not in broken:
                assert one[f"graphs {gradients}"] == 1, (name, gradients)


def test_some_programs() -> None:
    for rank in on_ranks(2, "tests.tensor_parallel_ranks:find_some", *QUICK):
        require_eagers(rank.pop("models"))
        assert rank["compilations"] == [1, 1, 2, 3]
        assert not any(rank["gradients inside"]) and not rank["counted step"]
        require({name: rank[name] for name in QUICK}, {"checked"})


@long
def test_all_programs() -> None:
    for rank in on_ranks(2, f"{PLACE}:find_all"):
        broken = set(rank.pop("broken"))
        del rank["compilations"], rank["gradients inside"]
        require(rank, broken)
