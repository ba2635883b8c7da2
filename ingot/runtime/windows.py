"""The output windows of a program: outputs that share a storage with an input or another output.

The windows of a contract and the other values of a call go in; tensors come out, which are to
autograd what eager's outputs are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ingot.loops.expr import Symbol
from ingot.loops.training_contract import OutputWindow, SizePlace
from ingot.runtime.by_sizes import BySizes
from ingot.torch_private import CreationMeta, set_creation_meta


class Windows(BySizes[Sequence[OutputWindow]]):
    """The windows in numbers, for values of the size symbols, which are read at `places`."""

    def __init__(self, windows: Sequence[OutputWindow], places: Mapping[Symbol, SizePlace]) -> None:
        self.windows = windows
        super().__init__(lambda values: [window.at(values) for window in windows], places)


def tensor_of(window: OutputWindow, inputs: Sequence[Tensor], outputs: Sequence[Any]) -> Tensor:
    """The output, from the inputs and the other outputs of the call."""
    role, position = window.base
    base: Tensor = (inputs if role == "input" else outputs)[position]
    alias = window.alias
    if alias == "same":
        return base
    if alias in ("data", "view of data"):
        base = base.data
    view = _view(window, base)
    if not view._is_view():
        return view
    if alias == "one of several":
        set_creation_meta(view, CreationMeta.MULTI_OUTPUT_NODE)
    if alias in ("data", "detached"):
        return view.detach()
    return view


def _view(window: OutputWindow, base: Tensor) -> Tensor:
    if not window.tracked and base.requires_grad:
        base = base.detach()
    if _is_whole(window, base):
        # and not as_strided, whose gradient is another where elements share memory
        return base.view(window.sizes)
    if base.dtype.is_complex and not window.dtype.is_complex:
        base = torch.view_as_real(base)
    elif window.dtype.is_complex and not base.dtype.is_complex:
        return _complex_view(window, base)
    elif base.dtype != window.dtype:
        base = base.view(window.dtype)
    if 0 in window.sizes:
        return _empty_view(window, base)
    offset = base.storage_offset() + window.offset
    return base.as_strided(window.sizes, window.strides, offset)


def _is_whole(window: OutputWindow, base: Tensor) -> bool:
    """Whether a window shows just what `base` does."""
    same = window.offset == 0 and window.dtype == base.dtype
    return same and base.shape == window.sizes and base.stride() == window.strides


def _complex_view(window: OutputWindow, base: Tensor) -> Tensor:
    """A window of complex numbers on the pairs of real ones that they are."""
    sizes = (*window.sizes, 2)
    strides = (*[2 * stride for stride in window.strides], 1)
    offset = base.storage_offset() + 2 * window.offset
    return torch.view_as_complex(base.as_strided(sizes, strides, offset))


def _empty_view(window: OutputWindow, base: Tensor) -> Tensor:
    """A window of no elements: the gradient of as_strided has none of its own then, a slice's
    has."""
    offset = base.storage_offset() + window.offset
    for dim, (size, stride) in enumerate(zip(base.shape, base.stride())):
        if stride and window.offset % stride == 0 and window.offset // stride <= size:
            view = base.narrow(dim, window.offset // stride, 0).view(window.sizes)
            if view.stride() == window.strides and view.storage_offset() == offset:
                return view
    return base.as_strided(window.sizes, window.strides, offset)


class WithWindows:
    """Runs a program, whose outputs have 0 in the places of the windows, and makes the windows.
    Gives the first `count` outputs."""

    def __init__(self, run: Callable[..., Sequence[Any]], windows: Windows, count: int) -> None:
        self.run, self.windows, self.count = run, windows, count

    def __call__(self, *inputs: Tensor) -> tuple[Any, ...]:
        outputs = list(self.run(*inputs))
        for window in self.windows.at(self.windows.read(inputs, outputs)):
            outputs[window.output] = tensor_of(window, inputs, outputs)
        return tuple(outputs[: self.count])
