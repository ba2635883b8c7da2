"""Copies of a graph's inputs, and the random numbers that two runs begin with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor


def copies(values: Sequence[Any], requires_grad: bool = True) -> list[Any]:
    """The values with tensors in memory of their own, at the same strides and offsets.

    Tensors that share a storage share it again. Each that requires a gradient is a leaf, or if the
    original is none, derived from a new one: it may be written. Without `requires_grad` none does.
    """
    storages: dict[int, torch.UntypedStorage] = {}
    return [_copy(value, storages, requires_grad) for value in values]


def _copy(value: Any, storages: dict[int, torch.UntypedStorage], requires_grad: bool) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.layout is not torch.strided or value.is_conj() or value.is_neg():
        alike = value.detach().clone()
    else:
        own = value.untyped_storage()
        storage = storages.get(own.data_ptr())
        if storage is None:
            storage = storages[own.data_ptr()] = own.clone()
        alike = torch.empty(0, dtype=value.dtype, device=value.device)
        alike.set_(storage, value.storage_offset(), value.shape, value.stride())  # type: ignore[call-overload]
    if not (requires_grad and value.requires_grad):
        return alike
    alike.requires_grad_()
    if value.is_leaf:
        return alike
    with torch.enable_grad():
        return alike.clone()


def doubled(values: Sequence[Any]) -> list[Any]:
    """Copies in float64, or complex128, of what is floating or complex."""
    results = []
    for value in copies(values, requires_grad=False):
        wide = value
        if isinstance(value, Tensor) and value.is_floating_point():
            wide = value.double()
        elif isinstance(value, Tensor) and value.is_complex():
            wide = value.to(torch.complex128)
        results.append(wide)
    for value, wide in zip(values, results):
        if isinstance(wide, Tensor) and value.requires_grad:
            wide.requires_grad_()
    return results


class RandomState(NamedTuple):
    """Where torch's generators stand, those of GPUs that are in use too."""

    cpu: Tensor
    cuda: tuple[Tensor, ...]

    @staticmethod
    def now() -> RandomState:
        """The state of this moment."""
        cuda: list[Tensor] = []
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            cuda = torch.cuda.get_rng_state_all()
        return RandomState(torch.get_rng_state(), tuple(cuda))

    def restore(self) -> None:
        """Has the generators go on from here again."""
        torch.set_rng_state(self.cpu)
        if self.cuda:
            torch.cuda.set_rng_state_all(self.cuda)

    def is_now(self) -> bool:
        """Whether nothing was drawn since."""
        now = RandomState.now()
        alike = len(now.cuda) == len(self.cuda) and torch.equal(now.cpu, self.cpu)
        return alike and all(map(torch.equal, now.cuda, self.cuda))
