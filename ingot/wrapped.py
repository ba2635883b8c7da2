"""Tensors that transforms of torch.func have wrapped, and what is to be done apart from these."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


def is_transformed() -> bool:
    """Whether a transform is active in this thread."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def is_wrapped(tensor: Any) -> bool:
    """Whether it is a tensor that a transform of torch.func, or a batch of gradients, has wrapped."""
    functorch = torch._C._functorch
    return isinstance(tensor, Tensor) and (
        functorch.is_legacy_batchedtensor(tensor) or functorch.is_functorch_wrapped_tensor(tensor)
    )


@contextmanager
def untransformed() -> Iterator[None]:
    """Puts such transforms aside."""
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    batched = torch._C._vmapmode_increment_nesting()  # one more than there are
    for _ in range(batched):
        torch._C._vmapmode_decrement_nesting()
    try:
        with temporarily_clear_interpreter_stack():
            yield
    finally:
        for _ in range(batched - 1):
            torch._C._vmapmode_increment_nesting()
