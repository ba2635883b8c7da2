"""Whether a library rounds what it multiplies is seen in what it returns."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.graph.passes.tf32 import is_rounded


def in_tf32(t: Tensor, nearest: bool) -> Tensor:
    """Ten bits behind the first, as tensor cores read a float32."""
    bits = t.view(torch.int32)
    if nearest:
        bits = bits + 0x1000
    return (bits & ~0x1FFF).view(torch.float32)


SHAPES = [(1, 3, 9, 9, 8, 3), (2, 456, 7, 7, 64, 3), (1, 4096, 2, 2, 8, 1), (40, 2, 60, 60, 1, 1)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("how", ["nearest", "cut off", "not", "of images alone"])
def test_rounding_is_seen(shape: tuple[int, ...], how: str) -> None:
    n, channels, height, width, out, window = shape

    def read(t: Tensor) -> Tensor:
        return t if how in ("not", "of images alone") else in_tf32(t, how == "nearest")

    def call(number: float) -> Sequence[Tensor]:
        x = torch.ones(n, channels, height, width).requires_grad_()
        w = torch.ones(out, channels, window, window).requires_grad_()
        y = F.conv2d(x, w, padding=window // 2)
        grad = read(torch.full_like(y, number))
        of_images, of_weight = torch.autograd.grad(y, (x, w), grad)
        if how == "of images alone":
            of_images = torch.autograd.grad(
                F.conv2d(x, w, padding=window // 2), x, in_tf32(grad, True)
            )[0]
        return of_images, of_weight

    assert is_rounded(call) == (how in ("nearest", "cut off"))
