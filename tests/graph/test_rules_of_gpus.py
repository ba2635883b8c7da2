"""What ops give on a GPU where that is unlike a CPU, without one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ingot.graph import meta
from ingot.loops.ir import Library
from tests.codegen.triton.interpreter import planned

aten = torch.ops.aten
LARGE = 1 << 13  # whose square is more than may be tried out


def on_gpus(op: Any, *args: Any) -> list[tuple[torch.dtype, tuple[int, ...]]]:
    results = meta.rule_for(op, "cuda")(op, args, {})
    return [(t.dtype, tuple(t.shape)) for t in meta.tensors_in(results)]


def empty(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype, device="meta")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
def test_statistics_of_norms_are_as_they_were_accumulated(dtype: torch.dtype) -> None:
    wide = torch.float32 if dtype.itemsize == 2 else dtype
    x, w = empty(LARGE, LARGE, dtype=dtype), empty(LARGE, dtype=dtype)
    whole, kept = (dtype, (LARGE, LARGE)), (wide, (LARGE, 1))
    assert on_gpus(aten.native_layer_norm.default, x, [LARGE], w, w, 1e-5) == [whole, kept, kept]
    assert on_gpus(aten._fused_rms_norm.default, x, [LARGE], w, 1e-5) == [whole, kept]
    stats = (wide, (LARGE,))
    images = empty(2, LARGE, 3, 3, dtype=dtype)
    found = on_gpus(aten.native_batch_norm.default, images, w, w, None, None, True, 0.1, 1e-5)
    assert found == [(dtype, (2, LARGE, 3, 3)), stats, stats]


def test_backwards_of_norms_of_any_size() -> None:
    x, w, stats = empty(LARGE, LARGE), empty(LARGE), empty(LARGE, 1, dtype=torch.float32)
    whole, slope = (torch.bfloat16, (LARGE, LARGE)), (torch.bfloat16, (LARGE,))
    layer, rms = aten.native_layer_norm_backward.default, aten._fused_rms_norm_backward.default
    assert on_gpus(layer, x, x, [LARGE], stats, stats, w, w, [True] * 3) == [whole, slope, slope]
    assert on_gpus(layer, x, x, [LARGE], stats, stats, w, None, [False, True, True]) == [slope]
    assert on_gpus(rms, x, x, [LARGE], stats, w, [True, True]) == [whole, slope]
    assert on_gpus(rms, x, x, [LARGE], stats, None, [True, True]) == [whole]


def test_masks_of_attention_keep_the_gaps_between_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which eager puts there, as its kernels want."""

    def fn(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        bias = torch.nn.functional.pad(torch.where(mask, 0.0, -1e9), (0, 1))[..., :7].expand(2, 4, 7, 7)
        return aten._scaled_dot_product_efficient_attention(q, q, q, bias, False)[0]

    monkeypatch.setattr(meta, "_runs_on_cpu", lambda op: False)
    meta.rule_for.cache_clear()
    plan = planned(fn, torch.randn(2, 4, 7, 8), torch.rand(2, 1, 7, 7) > 0.5)
    meta.rule_for.cache_clear()
    (call,) = [node for node in plan.graph.nodes if isinstance(node, Library)]
    assert [stride.constant for stride in call.args[3].strides] == [56, 0, 8, 1]
