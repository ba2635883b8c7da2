"""Training on several GPUs, over NCCL: `make test-dist-gpu`. As many ranks as there are GPUs."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

from tests.data_parallel_ranks import WAYS
from tests.ranks import on_ranks
from tests.test_data_parallel import COMPARE, require

GPUS = torch.cuda.device_count()

pytestmark = [
    pytest.mark.skipif(GPUS < 2, reason=f"there are fewer than two GPUs: {GPUS}"),
    pytest.mark.skipif(
        not dist.is_available() or not dist.is_nccl_available(), reason="torch has no NCCL"
    ),
]


@pytest.mark.parametrize("place", ["inside", "around", "blocks"])
def test_data_parallel(place: str) -> None:
    require(on_ranks(GPUS, COMPARE, "; ".join(WAYS), place, backend="nccl"))
