"""Tensors that transforms of torch.func have wrapped, and what is to be done apart from these."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from ingot.torch_private import (
    is_functorch_wrapped_tensor,
    is_legacy_batchedtensor,
    peek_interpreter_stack,
    temporarily_clear_interpreter_stack,
    vmapmode_decrement_nesting,
    vmapmode_increment_nesting,
)


def is_transformed() -> bool:
    """Whether a transform is active in this thread."""
    return peek_interpreter_stack() is not None


def is_wrapped(tensor: Any) -> bool:
    """Whether it is a tensor that a transform of torch.func, or a batch of gradients, has
    wrapped."""
    return isinstance(tensor, Tensor) and (
        is_legacy_batchedtensor(tensor) or is_functorch_wrapped_tensor(tensor)
    )


@contextmanager
def untransformed() -> Iterator[None]:
    """Puts such transforms aside."""
    batched = vmapmode_increment_nesting()  # one more than there are
    for _ in range(batched):
        vmapmode_decrement_nesting()
    try:
        with temporarily_clear_interpreter_stack():
            yield
    finally:
        for _ in range(batched - 1):
            vmapmode_increment_nesting()
