"""The tensors among some values, where gradients are followed: instances of subclasses are
refused."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ingot.capture.values.base import Value
from ingot.capture.values.tensor import TensorValue
from ingot.capture.values.tensor_objects import TensorObject
from ingot.errors import unsupported


def _refuse_object(value: Value) -> None:
    """Raises Unsupported for an instance of a subclass."""
    if isinstance(value, TensorObject):
        raise unsupported("tensor-subclass", f"gradients are followed of {value.describe()}")


def refuse_objects(values: Iterable[Value]) -> None:
    """Raises Unsupported where one is an instance of a subclass."""
    for value in values:
        _refuse_object(value)


def is_tracked(value: Value) -> bool:
    """Whether it is a tensor that requires a gradient."""
    _refuse_object(value)
    return isinstance(value, TensorValue) and value.fake.requires_grad


def tensors_in(values: Iterable[Value]) -> list[TensorValue]:
    results = []
    for value in values:
        _refuse_object(value)
        if isinstance(value, TensorValue):
            results.append(value)
    return results


def fakes_in(values: Iterable[Value]) -> list[torch.Tensor]:
    return [value.fake for value in tensors_in(values)]


def dtypes_in(values: Iterable[Value]) -> list[torch.dtype]:
    return [value.fake.dtype for value in tensors_in(values)]
