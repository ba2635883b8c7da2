"""What methods of NumPy's arrays compute, in torch."""

from __future__ import annotations

import torch
from torch import Tensor


def _reversed(x: Tensor) -> Tensor:
    return x.permute(tuple(reversed(range(x.dim()))))


def reshape_in_columns(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """A shape in Fortran's order: the first dimension runs fastest."""
    return _reversed(_reversed(x).reshape(tuple(reversed(sizes))))


def round_to(x: Tensor, decimals: int) -> Tensor:
    if x.is_complex():
        return torch.complex(round_to(x.real, decimals), round_to(x.imag, decimals))
    if not x.is_floating_point():
        return x.clone()
    return torch.round(x, decimals=decimals)


def sort(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    values, places = torch.sort(x, dim=dim, stable=True)
    return values, places
