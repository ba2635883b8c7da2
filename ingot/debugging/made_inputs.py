"""Inputs that are made from facts alone: what a script needs to be complete in itself."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor


def tensor(shape, strides, dtype, seed, device="cpu", requires_grad=False):  # type: ignore[no-untyped-def]
    """Random numbers of these facts. Integers are 0 or 1, which most ops take as indices."""
    random, length = torch.Generator().manual_seed(seed), 0
    if all(shape):
        length = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))
    if dtype.is_complex or dtype.is_floating_point:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        values = torch.randn(length, generator=random, dtype=wide)
    else:
        values = torch.randint(0, 2, (length,), generator=random)
    made = values.to(device, dtype).as_strided(shape, strides)
    return made.requires_grad_(requires_grad)


HELPER = inspect.getsource(tensor).replace("  # type: ignore[no-untyped-def]", "")
"""The text of `tensor`, for scripts."""


class Facts(NamedTuple):
    """What `tensor` makes a tensor from."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    seed: int
    device: str = "cpu"
    requires_grad: bool = False

    @staticmethod
    def of(value: Tensor, seed: int) -> Facts:
        """Those of a real tensor."""
        shape, strides, device = tuple(value.shape), tuple(value.stride()), str(value.device)
        return Facts(shape, strides, value.dtype, seed, device, value.requires_grad)

    def make(self) -> Tensor:
        """The tensor."""
        made: Tensor = tensor(*self)
        return made

    def __str__(self) -> str:
        parts = [self.shape, self.strides, self.dtype, f"seed={self.seed}"]
        if self.device != "cpu":
            parts.append(f"device={self.device!r}")
        if self.requires_grad:
            parts.append("requires_grad=True")
        return f"tensor({', '.join(map(str, parts))})"


def may_be_made(value: Any) -> bool:
    """Whether another tensor of the same facts could stand for a value."""
    return isinstance(value, Tensor) and value.layout is torch.strided and type(value) in _PLAIN


_PLAIN = (Tensor, torch.nn.Parameter)
