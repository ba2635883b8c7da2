"""Padding, rolling, pooling, resampling and searching, lowered: no library is called, and eager
agrees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.loops.test_lowering import assert_lowered, counts, t

IMAGE = t(2, 3, 9, 12)
LAYOUTS = {
    "contiguous": IMAGE,
    "channels last": IMAGE.contiguous(memory_format=torch.channels_last),
}

OF_IMAGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "reflect": lambda x: F.pad(x, (2, 3, 1, 0), "reflect"),
    "replicate": lambda x: F.pad(x, (2, -1, -1, 4), "replicate"),
    "roll last": lambda x: x.roll(5, -1) + x.roll(-2, 1),
    "roll flat": lambda x: x.roll(-31),
    "roll twice": lambda x: x.roll((1, 2), (2, 2)),
    "flip": lambda x: x.flip(-1),
    "rot90": lambda x: torch.rot90(x, 3, (1, 3)),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x.reshape(1, 8, 9, 9), 2),
    "pixel_unshuffle": lambda x: F.pixel_unshuffle(x[:, :, :8], 2),
    "channel_shuffle": lambda x: F.channel_shuffle(x.reshape(2, 6, 6, 9), 3),
    "avg_pool": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "avg_pool of what is there": lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
    "avg_pool beyond the end": lambda x: F.avg_pool2d(x, (2, 3), ceil_mode=True),
    "avg_pool by a number": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    "avg_pool3d": lambda x: F.avg_pool3d(x, 2),
    "adaptive, even": lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
    "adaptive, uneven": lambda x: F.adaptive_avg_pool2d(x, (4, 7)),
    "adaptive, wide": lambda x: F.adaptive_avg_pool2d(x, (1, 1)) + F.adaptive_avg_pool2d(x, (9, 1)),
    "max_pool": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max_pool with positions": lambda x: F.max_pool2d(x.round(), 3, 2, 1, return_indices=True),
    "max_pool with gaps": lambda x: F.max_pool2d(x.round(), 3, 1, 1, 2, return_indices=True),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "nearest, by a third": lambda x: F.interpolate(x, scale_factor=1.34),
    "nearest-exact": lambda x: F.interpolate(x, size=(5, 17), mode="nearest-exact"),
    "bilinear": lambda x: F.interpolate(x, scale_factor=2.5, mode="bilinear"),
    "bilinear, corners": lambda x: F.interpolate(
        x, size=(17, 5), mode="bilinear", align_corners=True
    ),
    "bicubic": lambda x: F.interpolate(x, size=(17, 5), mode="bicubic"),
    "area": lambda x: F.interpolate(x, size=(5, 5), mode="area"),
    "unfold": lambda x: F.unfold(x, 3, 2, 1, 2),
    "fold": lambda x: F.fold(F.unfold(x, 3, padding=1), (9, 12), 3, padding=1),
    "fold side by side": lambda x: F.fold(x.reshape(1, 18, 36), (18, 18), 3, stride=3),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", OF_IMAGES)
def test_of_images(name: str, layout: str) -> None:
    assert counts(assert_lowered(OF_IMAGES[name], LAYOUTS[layout], tolerance=2e-6))[2] == 0


@pytest.mark.parametrize(
    "name", ["avg_pool", "adaptive, uneven", "bilinear", "fold", "max_pool with positions"]
)
def test_half_precision(name: str) -> None:
    assert counts(assert_lowered(OF_IMAGES[name], IMAGE.bfloat16(), tolerance=3e-3))[2] == 0


def test_other_ranks() -> None:
    x = t(2, 3, 4, 5, 6)
    for fn, image in (
        (lambda x: F.interpolate(x, scale_factor=2, mode="trilinear"), x),
        (lambda x: F.interpolate(x, scale_factor=2), x),
        (lambda x: F.pad(x, (1, 1, 2, 0, 0, 1), "reflect"), x),
        (lambda x: F.max_pool3d(x, 2, return_indices=True), x),
        (lambda x: F.interpolate(x, size=13, mode="linear"), x[0, 0]),
        (lambda x: F.interpolate(x / (x > 0), size=(4, 5, 9), mode="trilinear"), x),
        (lambda x: F.interpolate(x / (x > 0), size=6, mode="linear"), x[0, 0]),
        (lambda x: F.avg_pool1d(x, 3, padding=1), x[0, 0]),
    ):
        assert counts(assert_lowered(fn, image, tolerance=2e-6))[2] == 0


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(9, 12), (18, 12), (9, 5), (18, 24), (1, 12)])
def test_weights_of_0_make_nan_of_infinities(
    size: tuple[int, int], mode: str, corners: bool
) -> None:
    for place in [(0, 0), (8, 11), (4, 5)]:
        x = IMAGE.double()
        x[:, :, *place] = torch.inf
        assert_lowered(
            lambda x: F.interpolate(x, size=size, mode=mode, align_corners=corners),
            x,
            tolerance=2e-6,
        )


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("length", [1, 5, 8])
def test_search(length: int, right: bool) -> None:
    row = t(length).round().sort()[0]
    x = torch.cat([t(40).round(), torch.tensor([float("nan"), float("inf"), -float("inf")])])
    assert counts(assert_lowered(lambda x, r: torch.bucketize(x, r, right=right), x, row))[2] == 0
    rows = t(3, length).sort()[0]
    assert (
        counts(assert_lowered(lambda x, r: torch.searchsorted(r, x, right=right), t(3, 7), rows))[2]
        == 0
    )
