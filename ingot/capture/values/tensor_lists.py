"""The tensors among some values."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ingot.capture.values.base import Value
from ingot.capture.values.tensor import TensorValue


def is_tracked(value: Value) -> bool:
    """Whether it is a tensor that requires a gradient."""
    return isinstance(value, TensorValue) and value.fake.requires_grad


def tensors_in(values: Iterable[Value]) -> list[TensorValue]:
    results = []
    for value in values:
        if isinstance(value, TensorValue):
            results.append(value)
    return results


def fakes_in(values: Iterable[Value]) -> list[torch.Tensor]:
    return [value.fake for value in tensors_in(values)]


def dtypes_in(values: Iterable[Value]) -> list[torch.dtype]:
    return [value.fake.dtype for value in tensors_in(values)]
