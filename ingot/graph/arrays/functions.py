"""What functions of NumPy's that are written in C compute, in torch.

In: tensors that have the type of the result. Out: new tensors, or views where NumPy has views.
"""

from __future__ import annotations

import torch
from torch import Tensor


def in_columns(x: Tensor) -> Tensor:
    """An array in Fortran's order."""
    dims = tuple(reversed(range(x.dim())))
    return x.permute(dims).contiguous().permute(dims)


def order_in_memory(x: Tensor) -> tuple[int, ...]:
    """The dimensions by their strides, the widest first."""

    def width(dim: int) -> int:
        return -x.stride(dim)

    return tuple(sorted(range(x.dim()), key=width))


def ravel_in_memory(x: Tensor) -> Tensor:
    """The elements as they lie in memory."""
    return x.permute(order_in_memory(x)).reshape(-1)


def _matmul(x: Tensor, y: Tensor) -> Tensor:
    if x.dtype is torch.bool:
        return torch.matmul(x.to(torch.int32), y.to(torch.int32)) != 0
    return torch.matmul(x, y)


def dot(a: Tensor, b: Tensor) -> Tensor:
    if a.dim() == 0 or b.dim() == 0:
        return a * b
    if b.dim() <= 2:
        return _matmul(a, b)
    return _contracted(a, b, b.dim() - 2)


def inner(a: Tensor, b: Tensor) -> Tensor:
    if a.dim() == 0 or b.dim() == 0:
        return a * b
    return _contracted(a, b, b.dim() - 1)


def _contracted(a: Tensor, b: Tensor, dim: int) -> Tensor:
    """A sum over the last dimension of one and this one of the other."""
    if a.shape[-1] != b.shape[dim]:
        raise ValueError("shapes are not aligned")
    if a.dtype is torch.bool:
        return torch.tensordot(a.to(torch.int32), b.to(torch.int32), ([a.dim() - 1], [dim])) != 0
    return torch.tensordot(a, b, ([a.dim() - 1], [dim]))


def vdot(a: Tensor, b: Tensor) -> Tensor:
    a, b = a.reshape(-1), b.reshape(-1)
    if a.dtype is torch.bool:
        return (a & b).any()
    if a.is_complex():
        a = torch.conj_physical(a)
    return _matmul(a, b)


def correlate(a: Tensor, v: Tensor, mode: int) -> Tensor:
    """Sums of products of one sequence and the other, which is moved along it."""
    if a.dim() != 1 or v.dim() != 1:
        raise ValueError("object too deep for desired array")
    if a.shape[0] == 0 or v.shape[0] == 0:
        raise ValueError("an array cannot be empty")
    is_swapped = v.shape[0] > a.shape[0]
    if is_swapped:
        a, v = v, a
    n = v.shape[0]
    left = (0, n // 2, n - 1)[mode]
    right = (0, n - 1 - n // 2, n - 1)[mode]
    windows = torch.nn.functional.pad(a, (left, right)).unfold(0, n, 1)
    return (windows * v).sum(-1, dtype=a.dtype)


def correlate_conjugated(a: Tensor, v: Tensor, mode: int) -> Tensor:
    """The same with the conjugate of the other, which is not moved by itself."""
    if v.is_complex():
        v = torch.conj_physical(v)
    result = correlate(a, v, mode)
    if v.shape[0] > a.shape[0]:
        return result.flip(0)
    return result
