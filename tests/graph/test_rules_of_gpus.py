"""What ops give on a GPU where that is unlike a CPU, without one."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import ingot
from ingot.graph import meta
from ingot.graph.decompositions import DECOMPOSITIONS
from ingot.graph.meta import table, trials
from ingot.graph.passes import layouts
from ingot.graph.passes.pipeline import PASSES
from ingot.loops.ir import Library
from ingot.schedule.plan import KernelStep
from tests.codegen.triton.interpreter import planned, planned_beside

aten = torch.ops.aten
LARGE = 1 << 13  # whose square is more than may be tried out


def on_gpus(op: Any, *args: Any) -> list[tuple[torch.dtype, tuple[int, ...]]]:
    results = meta.rule_for(op, "cuda")(op, args, {})
    return [(t.dtype, tuple(t.shape)) for t in meta.tensors_in(results)]


def empty(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype, device="meta")


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str
)
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


def test_backwards_of_convolutions_are_not_tried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU takes a second for what a GPU does in 0.1 ms."""

    def backward(mask: list[bool], *sizes: tuple[int, ...], last: bool = False) -> Any:
        tensors = []
        for size in sizes:
            t = empty(*size)
            tensors.append(t.to(memory_format=torch.channels_last) if last else t)
        settings = ([8], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)
        return meta.rule_for(op, "cuda")(op, (*tensors, *settings), {})

    op = aten.convolution_backward.default
    small = (2, 8, 5, 6), (2, 4, 5, 6), (8, 4, 3, 3)
    monkeypatch.setattr("ingot.graph.meta.untried.tried_out", None)
    for last in (False, True):
        real = []
        for size in small:
            t = torch.randn(size, dtype=torch.bfloat16)
            real.append(t.to(memory_format=torch.channels_last) if last else t)
        for mask in ([True, True, True], [True, False, False], [False, True, True]):
            right = op(*real, [8], [1, 1], [1, 1], [1, 1], False, [0, 0], 1, mask)
            found = backward(mask, *small, last=last)
            for expected, actual in zip(right, found, strict=True):
                assert (expected is None) == (actual is None)
                if expected is not None:
                    assert actual.shape == expected.shape
                    assert actual.stride() == expected.stride()
    large = (64, 8, 512, 512), (64, 4, 512, 512), (8, 4, 3, 3)
    assert backward([True, True, False], *large)[0].shape == large[1]


def test_backwards_of_group_norms_are_not_tried_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingot.graph.meta.untried.tried_out", None)
    op, x, stats, w = (
        aten.native_group_norm_backward.default, empty(2, 8, LARGE, 3), empty(2, 4), empty(8)
    )  # fmt: skip
    args = x, x, stats, stats, w, 2, 8, 3 * LARGE, 4, [True, False, True]
    images, slope = (torch.bfloat16, (2, 8, LARGE, 3)), (torch.bfloat16, (8,))
    assert on_gpus(op, *args) == [images, slope]


def test_cudnns_samplers_give_contiguous_images() -> None:
    x = empty(2, 5, LARGE, 3, dtype=torch.float16).to(memory_format=torch.channels_last)
    grid, slope = (
        empty(2, 7, 4, 2, dtype=torch.float16).transpose(1, 2),
        empty(2, 5, 4, 7, dtype=torch.float16),
    )
    made = meta.rule_for(aten.cudnn_grid_sampler.default, "cuda")(
        aten.cudnn_grid_sampler.default, (x, grid), {}
    )
    assert (made.shape, made.dtype, made.is_contiguous()) == ((2, 5, 4, 7), torch.float16, True)
    backward = aten.cudnn_grid_sampler_backward.default
    slopes = meta.rule_for(backward, "cuda")(backward, (x, grid, slope), {})
    assert [(t.shape, t.is_contiguous()) for t in slopes] == [(x.shape, True), (grid.shape, True)]


def test_masks_of_attention_keep_the_gaps_between_their_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which eager puts there, as its kernels want."""

    def fn(q: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        bias = torch.nn.functional.pad(torch.where(mask, 0.0, -1e9), (0, 1))[..., :7].expand(
            2, 4, 7, 7
        )
        return aten._scaled_dot_product_efficient_attention(q, q, q, bias, False)[0]

    monkeypatch.setattr(table, "runs_on_cpu", lambda op: False)
    meta.rule_for.cache_clear()
    plan = planned(fn, torch.randn(2, 4, 7, 8), torch.rand(2, 1, 7, 7) > 0.5)
    meta.rule_for.cache_clear()
    (call,) = [node for node in plan.graph.nodes if isinstance(node, Library)]
    assert [stride.constant for stride in call.args[3].strides] == [56, 0, 8, 1]


def images(dtype: torch.dtype, channels: int = 64) -> list[list[bool]]:
    """Of each convolution of a small network on a GPU, whether images, weight and result lie
    channels-last."""

    def fn(
        x: torch.Tensor, first: torch.Tensor, second: torch.Tensor, third: torch.Tensor
    ) -> torch.Tensor:
        x = F.max_pool2d(F.conv2d(x, first, None, 2, 3).relu(), 3, 2, 1)
        return (x + F.conv2d(F.conv2d(x, second, None, 1, 1).relu(), third)).mean((2, 3))

    sizes = ((channels, 3, 7, 7), (channels, channels, 3, 3), (channels, channels, 1, 1))
    args = [torch.empty(size, dtype=dtype) for size in ((1, 3, 64, 64), *sizes)]
    graph = planned_beside(fn, *args, passes=PASSES).graph
    calls = [node for node in graph.nodes if isinstance(node, Library)]
    found = [(*node.args[:2], graph.buffers[node.targets[0]]) for node in calls]
    return [[view.strides[1].constant == 1 for view in views] for views in found]


def test_convolutions_of_tensor_cores_have_one_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images are converted where they come in, and each weight with a window; what is between is
    left alone."""
    assert images(torch.bfloat16) == [[True] * 3] * 3
    asked = []

    def rounds(node: torch.fx.Node) -> bool:
        asked.append(node)
        return node.args[1].meta["val"].shape[1] > 3  # type: ignore[union-attr]

    monkeypatch.setattr(layouts, "rounds_to_tf32", rounds)
    assert images(torch.float32) == [[False] * 3] + [[True] * 3] * 2
    assert asked
    monkeypatch.setattr(layouts, "rounds_to_tf32", lambda node: False)
    assert [lie[::2] for lie in images(torch.float32)] == [[False] * 2] * 3


def test_depthwise_convolutions_lie_as_those_around_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """And are kernels: two are left, with what is pointwise."""
    monkeypatch.setattr(layouts, "rounds_to_tf32", lambda node: True)

    def fn(
        x: torch.Tensor, first: torch.Tensor, second: torch.Tensor, third: torch.Tensor
    ) -> torch.Tensor:
        x = F.pad(F.conv2d(x, first).relu(), (0, 1, 0, 1))
        return (
            F.conv2d(F.conv2d(x, second, None, 2, 0, 1, 192).clamp(0, 6), third).relu().mean((2, 3))
        )

    sizes = ((1, 64, 28, 28), (192, 64, 1, 1), (192, 1, 3, 3), (64, 192, 1, 1))
    plan = planned_beside(fn, *(torch.empty(size) for size in sizes), passes=PASSES)
    calls = [node for node in plan.graph.nodes if isinstance(node, Library)]
    assert len(calls) == 2 and all(
        plan.graph.buffers[node.targets[0]].strides[1].constant == 1 for node in calls
    )
    # the images are converted first
    assert sum(isinstance(step, KernelStep) for step in plan.steps) == 3


def test_without_a_device_to_ask_no_convolution_of_float32_is_laid_otherwise() -> None:
    assert [lie[::2] for lie in images(torch.float32)] == [[False] * 2] * 3


def test_inference_with_running_statistics_has_room_for_those_of_halves_in_float32() -> None:
    op, x, stats = aten.native_batch_norm.default, empty(2, 3, 4, 4), empty(3)
    args = x, None, None, stats, stats, False, 0.1, 1e-5
    made = [(t.dtype, tuple(t.shape)) for t in DECOMPOSITIONS[op](*args)]
    assert made == on_gpus(op, *args) and made[1] == (torch.float32, (0,))


def test_bags_of_embeddings_tell_where_each_index_went() -> None:
    """Of the largest, which these are; a CPU tells less, and other things."""
    weight, long, whole = empty(LARGE, 8), torch.int64, (torch.bfloat16, (3, 8))
    indices, offsets = empty(LARGE, dtype=torch.int32), empty(3, dtype=long)
    for op in (aten._embedding_bag.default, aten._embedding_bag_forward_only.default):
        for mode, largest in ((0, (0,)), (1, (0,)), (2, (3, 8))):
            found = on_gpus(op, weight, indices, offsets, False, mode)
            assert found == [whole, (long, (LARGE,)), (long, (3,)), (long, largest)]
    found = on_gpus(
        aten._embedding_bag.default, weight, indices, offsets, False, 2, False, None, True
    )
    assert found == [(torch.bfloat16, (2, 8)), (long, (LARGE,)), (long, (3,)), (long, (2, 8))]


def squares(
    op: Any, *rest: Any, count: int = 2, dtype: torch.dtype = torch.float32, **kwargs: Any
) -> Any:
    """A call of an op with `count` large square matrices."""
    return partial(op, *[empty(LARGE, LARGE, dtype=dtype) for _ in range(count)], *rest, **kwargs)


def volumes() -> Any:
    x, grid = empty(4, 64, 16, 16, 16), empty(4, 64, 64, 64, 3)
    return partial(aten.grid_sampler_3d.default, x, grid, 0, 0, False)


SCALES = (empty(dtype=torch.float32), empty(dtype=torch.float32), None, None, torch.bfloat16)
COSTLY: dict[str, Any] = {  # ops without a rule of their own, which a CPU may take very long for
    "float8 product": squares(aten._scaled_mm.default, *SCALES, dtype=torch.float8_e4m3fn),
    "int8 product": squares(aten._int_mm.default, dtype=torch.int8),
    "distances": squares(aten._cdist_forward.default, 1.0, None),
    "QR": squares(aten.linalg_qr.default, count=1),
    "inverse": squares(aten.linalg_inv_ex.default, count=1),
    "LU": squares(aten.linalg_lu_factor_ex.default, count=1),
    "triangular": squares(aten.linalg_solve_triangular.default, upper=True),
    "volumes": volumes(),
}


@pytest.mark.parametrize("name", COSTLY)
def test_a_cpu_runs_nothing_large_in_place_of_a_gpu(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is not bounded by a GPU's: compiling a product of float8 matrices took minutes."""
    op, args, kwargs = COSTLY[name].func, COSTLY[name].args, COSTLY[name].keywords
    if op is aten._scaled_mm.default:  # takes columns
        args = (args[0], args[1].t(), *args[2:])
    monkeypatch.setattr(trials, "tried_out", lambda *_: pytest.fail("is run on a CPU"))
    found = meta.tensors_in(meta.rule_for(op, "cuda")(op, args, kwargs))
    predicted = meta.tensors_in(op(*args, **kwargs))
    assert [(t.dtype, t.shape) for t in found] == [(t.dtype, t.shape) for t in predicted]


def test_what_a_cpu_does_not_take_is_torchs_prediction() -> None:
    """Scales of rows: a CPU multiplies float8 matrices by one scale each."""
    a, w = [empty(64, 64, dtype=torch.float8_e4m3fn) for _ in range(2)]
    scales = empty(64, 1, dtype=torch.float32), empty(1, 64, dtype=torch.float32)
    found = on_gpus(aten._scaled_mm.default, a, w.t(), *scales, None, None, torch.bfloat16)
    assert found == [(torch.bfloat16, (64, 64))]


def test_an_op_that_knows_a_dtype_but_for_single_elements() -> None:
    """Eager multiplies float8 numbers, but no single one."""
    x = torch.ones(5).to(torch.float8_e5m2)
    found = ingot.compile(lambda x: x * x, fullgraph=True)(x)
    assert found.dtype == x.dtype and torch.equal(found.float(), (x * x).float())
