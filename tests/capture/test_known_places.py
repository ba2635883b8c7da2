"""`nonzero` of elements that are known, or that objects hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import ingot
from tests.compiled import compilations
from tests.oracle import assert_same


class Sampler:
    """Finds the place of a step among its steps, as samplers of diffusion models do."""

    def __init__(self) -> None:
        self.steps, self.sigmas = torch.tensor([901.0, 601.0, 601.0, 1.0]), torch.rand(5)

    def place_of(self, step: Tensor) -> Any:
        places = (self.steps == step).nonzero()
        return places[1 if len(places) > 1 else 0].item()

    def sample(self, x: Tensor) -> Tensor:
        for step in self.steps[:3]:
            place = self.place_of(step)
            x = x + (self.sigmas[place + 1] - self.sigmas[place]) * x
        return x


def test_places_among_what_an_object_holds() -> None:
    sampler = Sampler()
    compiled = ingot.compile(sampler.sample, fullgraph=True)
    for n in (3, 5, 7, 9):
        x = torch.randn(n)
        assert_same(compiled(x), sampler.sample(x))
    assert len(compilations(compiled)) == 2


def test_elements_that_are_written_between_calls() -> None:
    sampler = Sampler()
    compiled = ingot.compile(sampler.sample)
    for k in range(6):
        x = torch.randn(3)
        assert_same(compiled(x), sampler.sample(x))
        sampler.steps[k % 4] += 100.0
    sampler.steps = torch.tensor([5.0, 4.0, 3.0])
    assert_same(compiled(x), sampler.sample(x))


HELD = SimpleNamespace(
    some=torch.tensor([[0, 3, 0], [1, 0, 2]]), none=torch.zeros(3), all=torch.ones(2, 2),
    single=torch.tensor([5.0]), many=torch.ones(100),
)  # fmt: skip


@pytest.mark.parametrize("name", vars(HELD))
def test_places_are_eagers(name: str) -> None:
    held = getattr(HELD, name)

    def fn(x: Tensor) -> Any:
        known = torch.tensor([0, 1, 1]).nonzero()
        return (
            x + 1, held.nonzero(), held.nonzero(as_tuple=True), torch.nonzero(held),
            torch.nonzero(held, as_tuple=True), known, len(known),
        )  # fmt: skip

    compiled = ingot.compile(fn)
    for _ in range(2):
        assert_same(compiled(torch.ones(2)), fn(torch.ones(2)))


def test_places_of_what_was_written_in_the_graph() -> None:
    held = torch.tensor([1, 0, 1])

    def fn(x: Tensor) -> Any:
        held[1] += 1
        places = held.nonzero()
        places += 1
        return x[: len(places)], places, held.nonzero()

    compiled = ingot.compile(fn)
    for _ in range(3):
        found = compiled(torch.ones(5))
        held[1] -= 1
        assert_same(found, fn(torch.ones(5)))
        held.copy_(torch.tensor([1, 0, 1]))


def test_places_of_an_argument_stay_a_matter_of_the_data() -> None:
    def fn(x: Tensor, t: Tensor) -> Tensor:
        return x.sum() * t.nonzero().sum()

    x, compiled = torch.arange(3.0), ingot.compile(fn, fullgraph=True)
    for t in (torch.tensor([1, 0, 1]), torch.tensor([1, 1, 1]), torch.tensor([0, 0, 0])):
        assert_same(compiled(x, t), fn(x, t))
    assert len(compilations(compiled)) == 1
