"""Tangents, as a call's backward gets them: their layouts, and the programs that take them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ingot.loops.expr import Symbol
from ingot.loops.training_contract import TrainingContract
from ingot.runtime.by_sizes import BySizes
from ingot.torch_private import (
    DisableTorchDispatch,
    dispatch_keys,
    efficientzerotensor,
    neg_view,
)
from ingot.wrapped import is_wrapped

Backward = Callable[[list[Tensor]], Sequence[Any]]
"""Takes the saved tensors, the tangents and the values of the size symbols out of a list. It
empties the list, so that each may die with its last use."""


class Demand(NamedTuple):
    """What a backward is for: which of the tangents are `present`, and the inputs whose gradients
    are asked for, None for all."""

    present: tuple[bool, ...]
    inputs: tuple[int, ...] | None = None

    @property
    def is_whole(self) -> bool:
        return all(self.present) and self.inputs is None


class CompiledBackward(NamedTuple):
    """A backward's program, and the inputs whose gradients it gives. No program: the gradients are
    to be computed from the inputs."""

    run: Backward | None
    gradient_inputs: Sequence[int]


class BackwardGraph(Protocol):
    """A backward as a graph."""

    @property
    def gradient_inputs(self) -> Sequence[int]: ...

    def by_eager(
        self, saved: list[Any], tangents: Sequence[Any], sizes: Sequence[int]
    ) -> Sequence[Any]:
        """The gradients, by eager's operations."""


@dataclass(frozen=True)
class Tangent:
    """The gradient that comes in for an output, in the layout that the backward expects."""

    output: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def _empty(self) -> Tensor:
        return torch.empty_strided(self.sizes, self.strides, dtype=self.dtype, device=self.device)

    def zeros(self) -> Tensor:
        return self._empty().zero_()

    def in_layout(self, gradient: Tensor) -> Tensor:
        """A gradient in the layout of this tangent."""
        if is_wrapped(gradient):
            return gradient
        if gradient.layout is not torch.strided:
            gradient = gradient.to_dense()
        is_lazy = gradient.is_conj() or gradient.is_neg() or gradient._is_zerotensor()
        if not is_lazy and gradient.stride() == self.strides:
            return gradient
        return self._empty().copy_(gradient)


Tangents = BySizes[Sequence[Tangent]]


def tangents_by_sizes(contract: TrainingContract) -> Tangents:
    """The tangents of a contract, for values of the size symbols."""

    def tangents(values: Mapping[Symbol, int]) -> Sequence[Tangent]:
        return [Tangent(slot.output, *slot.layout.at(values)) for slot in contract.tangents]

    return BySizes(tangents, contract.size_places)


class BackwardPrograms(Protocol):
    """The backwards of one forward, by what they are for.

    Where what the forward saves does not suffice for a part of them, there is no program if it
    `recomputes`. `has_effects` if a backward does something beside giving gradients.
    """

    tangents: Tangents
    recomputes: bool
    has_effects: bool

    def compile(self, demand: Demand) -> CompiledBackward: ...

    def graph(self, demand: Demand, sizes: tuple[int, ...] | None) -> BackwardGraph | None:
        """The same as a graph, for these sizes if there are any."""

    def saved_for(self, tangents: Sequence[int]) -> frozenset[int]:
        """Which of the saved values the backward of these tangents may read."""


class WithZeros:
    """Runs a backward that takes all `tangents` where only some are `present`, with zeros for the
    others, and gives the `picked` ones of its results."""

    def __init__(
        self, run: Backward, tangents: Tangents, present: Sequence[bool], picked: Sequence[int]
    ) -> None:
        self.run, self.tangents = run, tangents
        self.present, self.picked = tuple(present), tuple(picked)

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        last = len(arguments) - len(self.tangents.places)
        first = last - sum(self.present)
        gradients = iter(arguments[first:last])
        filled = []
        for tangent, is_present in zip(self.tangents.at(tuple(arguments[last:])), self.present):
            filled.append(next(gradients) if is_present else tangent.zeros())
        arguments[first:last] = filled
        del gradients, filled  # the backward alone is to hold them
        results = self.run(arguments)
        return [results[k] for k in self.picked]


class ForSizes:
    """Runs that of some backwards which is compiled for the sizes of a call."""

    def __init__(self, programs: BySizes[Backward]) -> None:
        self.programs = programs

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        sizes = arguments[len(arguments) - len(self.programs.places) :]
        return self.programs.at(tuple(sizes))(arguments)


# -- dispatch keys ---------------------------------------------------------------------------------


@functools.cache
def plain_keys(device: torch.device) -> int:
    """The dispatch keys of a plain tensor on a device."""
    with torch.inference_mode(False), DisableTorchDispatch():
        return _keys(torch.empty(0, device=device))


@functools.cache
def lazy_keys() -> int:
    """The dispatch keys of tensors that have other values than their memory: negated, conjugated,
    or zeros."""
    with torch.inference_mode(False), DisableTorchDispatch():
        real, complex_ = torch.empty(1), torch.empty(1, dtype=torch.complex64)
        lazy = (real, neg_view(real)), (complex_, complex_.conj()), (real, efficientzerotensor(1))
        keys = 0
        for plain, tensor in lazy:
            keys |= _keys(tensor) & ~_keys(plain)
        return keys


def _keys(tensor: Tensor) -> int:
    return dispatch_keys(tensor).raw_repr()
