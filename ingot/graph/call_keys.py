"""Keys of calls: calls whose keys are equal do the same, to tensors that lie alike.

What goes in is the arguments of a call, what comes out a key without the tensors and nodes
themselves. A key says all that such a call's result depends on, or there is none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Self

import torch
from torch.fx import Node
from torch.fx.immutable_collections import immutable_list

from ingot.graph.fakes import FakeTensor, look_of, storage_key

_PLAIN = frozenset(
    (int, bool, str, type(None), type(...), torch.dtype, torch.layout, torch.memory_format)
)

_SEQUENCES = frozenset((tuple, list, torch.Size, immutable_list))


def extend_key(values: Iterable[Any], key: list[Any], fakes: list[Any]) -> bool:
    """Add what a call with these arguments depends on to `key`, and its tensors (or the nodes that
    stand for them) to `fakes`. False where an argument is of an unknown kind."""
    for value in values:
        kind = type(value)
        if kind is FakeTensor:
            look = value.look
            key.append(look_of(value) if look is None else look)
            fakes.append(value)
            continue
        key.append(kind)
        if kind is Node:
            fakes.append(value)
            continue
        if kind in _PLAIN:
            key.append(value)
        elif kind is float:
            key.append(value.hex())  # in which 0.0 and -0.0 differ
        elif kind in _SEQUENCES:
            key.append(len(value))
            if not extend_key(value, key, fakes):
                return False
        elif kind is slice:
            if not extend_key((value.start, value.stop, value.step), key, fakes):
                return False
        elif kind is torch.device and (value.type == "cpu" or value.index is not None):
            key.append(value)
        else:
            return False
    return True


class FakeSpec(NamedTuple):
    """The geometry, dtype and device of a fake with memory of its own."""

    sizes: tuple[int | torch.SymInt, ...]
    strides: tuple[int | torch.SymInt, ...]
    dtype: torch.dtype
    device: torch.device
    look: int

    @classmethod
    def of(cls, result: Any, arguments: Iterable[FakeTensor]) -> Self | None:
        """That of a call's result. None for what is no fake, requires a gradient, or shares memory
        with an argument."""
        if type(result) is not FakeTensor or result.requires_grad:
            return None
        return cls.lying_as(result, arguments)

    @classmethod
    def lying_as(cls, result: FakeTensor, arguments: Iterable[FakeTensor]) -> Self | None:
        """The same, whether it requires a gradient or not."""
        t = result.meta
        offset = t.storage_offset()
        if not isinstance(offset, int) or offset or t.is_conj() or t.is_neg():
            return None
        if storage_key(result) in map(storage_key, arguments):
            return None
        return cls(tuple(t.shape), t.stride(), t.dtype, result.device, look_of(result))

    def new(self) -> FakeTensor:
        """A new fake that is like it."""
        t = torch.empty_strided(self.sizes, self.strides, dtype=self.dtype, device="meta")
        fake: FakeTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            FakeTensor, self.sizes, self.strides, 0, dtype=self.dtype, device=self.device
        )
        fake.meta, fake.look = t, self.look
        return fake
