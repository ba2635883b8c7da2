"""A program of a public name: a function, and the inputs that its parameters name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Function = Callable[..., Any]
Table = Mapping[str, Mapping[str, Function]]
"""For each name its programs, by what they are a case of. Those whose case begins with "gradient"
are differentiated: their inputs of floats require gradients."""


@dataclass(frozen=True)
class Program:
    """A function to be compiled, and what makes its arguments."""

    table: str
    name: str
    case: str
    function: Function
    inputs: Callable[[], dict[str, Any]]

    @property
    def key(self) -> str:
        return f"{self.table}.{self.name}: {self.case}"

    @property
    def has_gradients(self) -> bool:
        return self.case.startswith("gradient")

    def arguments(self) -> list[Any]:
        """The arguments, made anew: each is the input that its parameter names."""
        found = []
        given = self.inputs()
        for name in inspect.signature(self.function).parameters:
            value = given[name]
            is_leaf = isinstance(value, torch.Tensor) and value.is_floating_point()
            if is_leaf and self.has_gradients:
                value.requires_grad_()
            found.append(value)
        return found


def tensors() -> dict[str, Any]:
    """The arguments by the names of parameters, made anew."""
    generator = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    return {
        "x": normal(3, 4),
        "y": normal(3, 4),
        "v": normal(4),
        "w": normal(4),
        "s": normal(4, 4),
        "b": normal(2, 3, 4),
        "t": normal(),
        "one": normal(1, 4),
        "empty": normal(0, 4),
        "wide": normal(4, 6)[:, ::2].t(),
        "q": normal(1, 2, 16, 8),
        "d": normal(3, 4).double(),
        "i": torch.tensor([2, 0, 1]),
        "n": torch.tensor(3),
        "k": 3,
        "f": 0.5,
    }


def programs(name: str, table: Table) -> Iterator[Program]:
    for public, cases in table.items():
        for case, function in cases.items():
            yield Program(name, public, case, function, tensors)
