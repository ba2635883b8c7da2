"""Outputs of a program that share the memory of an input or of another output, and what follows
from the values of the size symbols."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ingot.loops.expr import Symbol
from ingot.torch_private import CreationMeta, set_creation_meta

Made = TypeVar("Made")


class BySizes(Generic[Made]):
    """What `make` makes of the values of the size symbols, which are read among the inputs of a
    call at `places`: (position, "size" | "stride" | "value", dimension), or among its results:
    "result size", "result value"."""

    most = 256  # sets of values that are remembered

    def __init__(
        self,
        make: Callable[[Mapping[Symbol, int]], Made],
        places: Mapping[Symbol, tuple[int, str, int]],
    ) -> None:
        self.make, self.places = make, dict(places)
        self._made: dict[tuple[int, ...], Made] = {}

    def read(self, inputs: Sequence[Any], results: Sequence[Any] = ()) -> tuple[int, ...]:
        """The values of the symbols in a call."""
        return tuple([_read(inputs, results, *place) for place in self.places.values()])

    def at(self, values: tuple[int, ...]) -> Made:
        """What is made of these values."""
        made = self._made.get(values)
        if made is None:
            if len(self._made) >= self.most:
                self._made.clear()
            made = self._made[values] = self.make(dict(zip(self.places, values)))
        return made


def _read(inputs: Sequence[Any], results: Sequence[Any], position: int, kind: str, dim: int) -> int:
    value = (results if kind.startswith("result") else inputs)[position]
    if kind.endswith("size"):
        return value.shape[dim]
    return value.stride(dim) if kind == "stride" else value


@dataclass(frozen=True)
class Window:
    """An output that shares the memory of an input or of another output, `base` ("input" |
    "output", position): a window on it, `offset` elements from its first, with a history if
    `tracked`. To autograd it is a "view" of it, "one of several" that an op gives at once, which
    must not be written, "detached", its "data", a "view of data", or the "same" tensor: `alias`."""

    output: int
    base: tuple[str, int]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    tracked: bool
    alias: str

    def is_whole(self, base: Tensor) -> bool:
        """Whether it shows just what `base` does."""
        same = self.offset == 0 and self.dtype == base.dtype
        return same and base.shape == self.sizes and base.stride() == self.strides

    def on(self, inputs: Sequence[Tensor], outputs: Sequence[Any]) -> Tensor:
        """The output, from the inputs and the other outputs of the call."""
        kind, position = self.base
        base = (inputs if kind == "input" else outputs)[position]
        if self.alias == "same":
            return base
        shown = self._shown(base.data if self.alias in ("data", "view of data") else base)
        if self.alias == "one of several" and shown._is_view():
            set_creation_meta(shown, CreationMeta.MULTI_OUTPUT_NODE)
        return shown.detach() if self.alias in ("data", "detached") and shown._is_view() else shown

    def _shown(self, base: Tensor) -> Tensor:
        if not self.tracked and base.requires_grad:
            base = base.detach()
        if self.is_whole(base):
            # and not as_strided, whose gradient is another where elements share memory
            return base.view(self.sizes)
        if base.dtype.is_complex and not self.dtype.is_complex:
            base = torch.view_as_real(base)
        elif self.dtype.is_complex and not base.dtype.is_complex:
            pairs, steps = (*self.sizes, 2), (*(2 * stride for stride in self.strides), 1)
            return torch.view_as_complex(
                base.as_strided(pairs, steps, base.storage_offset() + 2 * self.offset)
            )
        elif base.dtype != self.dtype:
            base = base.view(self.dtype)
        if 0 in self.sizes:
            return self._empty(base)
        return base.as_strided(self.sizes, self.strides, base.storage_offset() + self.offset)

    def _empty(self, base: Tensor) -> Tensor:
        """A window of no elements. The gradient of as_strided has none of its own then, a slice's
        has."""
        offset = base.storage_offset() + self.offset
        for dim, (size, stride) in enumerate(zip(base.shape, base.stride())):
            if stride and self.offset % stride == 0 and self.offset // stride <= size:
                shown = base.narrow(dim, self.offset // stride, 0).view(self.sizes)
                if (shown.stride(), shown.storage_offset()) == (self.strides, offset):
                    return shown
        return base.as_strided(self.sizes, self.strides, offset)


class WithWindows:
    """Runs a program and makes the outputs that are windows, whose place it leaves empty; `count`
    outputs in all."""

    def __init__(
        self, run: Callable[..., Sequence[Any]], windows: BySizes[Sequence[Window]], count: int
    ) -> None:
        self.run, self.windows, self.count = run, windows, count

    def __call__(self, *inputs: Tensor) -> tuple[Any, ...]:
        outputs = list(self.run(*inputs))
        for window in self.windows.at(self.windows.read(inputs, outputs)):
            outputs[window.output] = window.on(inputs, outputs)
        return tuple(outputs[: self.count])
