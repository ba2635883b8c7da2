"""The backward of resampling, averages and padding, lowered: no library is called, and eager
agrees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.loops.test_lowering import assert_lowered, counts, t

aten = torch.ops.aten
SIZE = [2, 3, 9, 12]


def avg_pool(g: Tensor, *how: Any) -> Tensor:
    return aten.avg_pool2d_backward(g, g.new_zeros(SIZE), *how)


GRADIENTS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "nearest": (lambda g: aten.upsample_nearest2d_backward(g, [18, 36], SIZE), (18, 36)),
    "nearest, by a third": (
        lambda g: aten.upsample_nearest2d_backward(g, [12, 16], SIZE, 1.34, 1.34), (12, 16)
    ),
    "nearest, of fewer": (lambda g: aten.upsample_nearest2d_backward(g, [4, 12], SIZE), (4, 12)),
    "nearest-exact": (lambda g: aten._upsample_nearest_exact2d_backward(g, [5, 17], SIZE), (5, 17)),
    "bilinear": (lambda g: aten.upsample_bilinear2d_backward(g, [18, 30], SIZE, False, 2.0, 2.5),
        (18, 30)),
    "bilinear, corners": (lambda g: aten.upsample_bilinear2d_backward(g, [17, 5], SIZE, True),
        (17, 5)),
    "bicubic": (lambda g: aten.upsample_bicubic2d_backward(g, [17, 5], SIZE, False), (17, 5)),
    "linear": (lambda g: aten.upsample_linear1d_backward(g[0], [17], [3, 9, 12], False), (9, 17)),
    "trilinear": (
        lambda g: aten.upsample_trilinear3d_backward(g[None], [3, 18, 12], [1, 2, 3, 9, 12], False),
        (18, 12)
    ),
    "reflect": (lambda g: aten.reflection_pad2d_backward(g, g.new_zeros(SIZE), [2, 3, 1, 0]),
        (10, 17)),
    "replicate": (lambda g: aten.replication_pad2d_backward(g, g.new_zeros(SIZE), [2, 3, 4, 1]),
        (14, 17)),
    "avg_pool": (lambda g: avg_pool(g, [3, 3], [2, 2], [1, 1], False, True, None), (5, 6)),
    "avg_pool of what is there": (
        lambda g: avg_pool(g, [3, 3], [2, 2], [1, 1], False, False, None), (5, 6)
    ),
    "avg_pool beyond the end": (
        lambda g: avg_pool(g, [2, 3], [], [0, 0], True, True, None), (5, 4)
    ),
    "avg_pool by a number": (lambda g: avg_pool(g, [2, 2], [2, 2], [0, 0], False, True, 3), (4, 6)),
    "adaptive, even": (lambda g: aten._adaptive_avg_pool2d_backward(g, g.new_zeros(SIZE)), (3, 4)),
    "adaptive, uneven": (lambda g: aten._adaptive_avg_pool2d_backward(g, g.new_zeros(SIZE)),
        (4, 7)),
    "adaptive, to one": (lambda g: aten._adaptive_avg_pool2d_backward(g, g.new_zeros(SIZE)),
        (1, 1)),
}  # fmt: skip


def gradient(name: str, dtype: torch.dtype) -> Tensor:
    height, width = GRADIENTS[name][1]
    return t(2, 3, height, width).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str, dtype: torch.dtype) -> None:
    given = gradient(name, dtype)
    assert (
        counts(
            assert_lowered(
                GRADIENTS[name][0], given, tolerance=2e-6 if dtype is torch.float32 else 1e-6
            )
        )[2]
        == 0
    )


@pytest.mark.parametrize("name", ["avg_pool", "nearest", "bilinear"])
def test_channels_last(name: str) -> None:
    given = gradient(name, torch.float32).to(memory_format=torch.channels_last)
    assert counts(assert_lowered(GRADIENTS[name][0], given, tolerance=2e-6))[2] == 0


@pytest.mark.parametrize("name", ["avg_pool", "nearest, of fewer", "adaptive, uneven"])
def test_infinities_come_only_to_what_was_read(name: str) -> None:
    assert_lowered(GRADIENTS[name][0], gradient(name, torch.float32).fill_(torch.inf))


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize(
    "backward", [aten.upsample_bilinear2d_backward, aten.upsample_bicubic2d_backward]
)
@pytest.mark.parametrize("size", [(9, 12), (18, 12), (9, 5), (18, 24), (1, 12)])
def test_weights_of_0_make_nan_of_infinities(
    size: tuple[int, int], backward: Callable[..., Tensor], corners: bool
) -> None:
    for place in (0, -1, size[1] // 2):
        given = t(2, 3, *size).double()
        given[:, :, 0, place] = torch.inf
        assert_lowered(lambda g: backward(g, size, SIZE, corners), given, tolerance=2e-6)
