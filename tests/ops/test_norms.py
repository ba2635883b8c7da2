"""Norms: the signs of zeros are eager's, which adds 0 where there is no bias."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ingot

WIDTH = 8
Norm = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]

NORMS: dict[str, Norm] = {
    "layer_norm": lambda x, w, b: F.layer_norm(x.transpose(1, 2), (WIDTH,), w, b),
    "group_norm": lambda x, w, b: F.group_norm(x, 2, w, b),
    "batch_norm": lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
    "instance_norm": lambda x, w, b: F.instance_norm(x, None, None, w, b),
}
WEIGHTS = (None, torch.full((WIDTH,), 2.0), torch.full((WIDTH,), -2.0))
BIASES = (None, torch.zeros(WIDTH))


@pytest.mark.parametrize("name", NORMS)
def test_zeros_have_the_signs_of_eagers(name: str) -> None:
    """Of equal elements, whose distance from their mean is 0."""
    compiled = ingot.compile(NORMS[name])
    for value, weight, bias in itertools.product((0.0, -0.0), WEIGHTS, BIASES):
        x = torch.full((2, WIDTH, 16), value)
        found, expected = compiled(x, weight, bias), NORMS[name](x, weight, bias)
        assert torch.equal(found, expected)
        assert torch.equal(found.signbit(), expected.signbit()), (value, weight, bias)
