"""Foreign ops in a form that graphs can hold: what an op writes is a result, and results are
flat."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ingot.sequences import Args, Kwargs, map_leaves
from ingot.torch_private import OpOverload


@dataclass(frozen=True)
class Window:
    """An argument that lies in memory which the op writes: the number of its place there."""

    number: int


Placed = tuple[int, Sequence[Any], Sequence[Any], Any, torch.dtype]
"""The base that a window lies in, its sizes and strides, where it begins, and its dtype."""


@dataclass(frozen=True)
class FlatCall:
    """A call of an op that gives the results in lists one by one."""

    op: OpOverload

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return tuple(flattened(self.op(*args, **kwargs)))

    def __str__(self) -> str:
        return str(self.op)


class FunctionalForm:
    """A foreign op as a function of `bases`, the tensors whose memory it writes.

    It gives the op's results, those in lists one by one and None for one that is an argument, and
    then the bases as the op leaves them. Arguments in their memory, or in that of tensors which are
    `shown` to it, are `Window`s, each with its place in `windows`.
    """

    def __init__(self, op: OpOverload) -> None:
        self.op = op
        self.__name__ = op.name().replace("::", "_").replace(".", "_")

    @property
    def function(self) -> Any:
        """What is called at run time: its results are in one sequence."""
        if is_nested(self.op):
            return FlatCall(self.op)
        return self.op

    def __call__(
        self,
        bases: Sequence[Tensor],
        shown: Sequence[Tensor],
        windows: Sequence[Placed],
        args: Args,
        kwargs: Kwargs,
    ) -> tuple[Any, ...]:
        written = list(map(_copy, bases))
        memory = [*written, *shown]

        def argument(leaf: Any) -> Any:
            if isinstance(leaf, Window):
                return _shown(memory, *windows[leaf.number])
            return leaf

        args, kwargs = map_leaves(argument, (tuple(args), dict(kwargs)))
        results = []
        for result, is_argument in zip(*self._results(args, kwargs)):
            results.append(None if is_argument else result)
        return (*results, *written)

    def _results(self, args: Args, kwargs: Kwargs) -> tuple[list[Any], list[bool]]:
        """The results, and whether each is an argument."""
        returns = self.op._schema.returns
        result = self.op(*args, **kwargs)
        if len(returns) == 1:
            is_argument = returns[0].alias_info is not None
            flat = list(flattened(result))
            return flat, [is_argument] * len(flat)
        flat, are_arguments = [], []
        for item, about in zip(result or (), returns):
            for tensor in flattened(item):
                flat.append(tensor)
                are_arguments.append(about.alias_info is not None)
        return flat, are_arguments

    def __str__(self) -> str:
        return str(self.op)

    __repr__ = __str__


@cache
def is_nested(op: OpOverload) -> bool:
    """Whether an op has several results of which one is a list."""
    returns = op._schema.returns
    if len(returns) < 2:
        return False
    lists = 0
    for result in returns:
        lists += isinstance(result.type, torch.ListType)
    return lists > 0


@cache
def functional_form_of(op: OpOverload) -> FunctionalForm:
    """The form of an op, the same one at every call."""
    return FunctionalForm(op)


def flattened(results: Any) -> Iterator[Any]:
    """The results of a call, those in lists one by one."""
    if isinstance(results, (list, tuple)):
        for result in results:
            yield from flattened(result)
    else:
        yield results


def _copy(base: Tensor) -> Tensor:
    """A tensor of the same geometry and elements in memory of its own."""
    copy = torch.empty_strided(base.shape, base.stride(), dtype=base.dtype, device=base.device)
    return copy.copy_(base)


def _shown(
    bases: Sequence[Tensor],
    number: int,
    sizes: Sequence[int],
    strides: Sequence[int],
    offset: int,
    dtype: torch.dtype,
) -> Tensor:
    base = bases[number]
    if base.dtype is not dtype:
        base = base.as_strided((0,), (1,), 0).view(dtype)
    return base.as_strided(sizes, strides, offset)
