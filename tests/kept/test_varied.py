"""Sizes that one process saw to vary are symbols of the first program that another compiles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ingot
from ingot.codegen.store import store_in
from ingot.compiler import Compiler
from ingot.kept import varied
from ingot.kept.format import packed
from ingot.kept.names import NotKept
from ingot.kept.programs import FOUND


@pytest.fixture(autouse=True)
def folder(cache: Path) -> Path:
    """The folder of what is remembered, in which there is nothing yet."""
    varied._of_this_process.clear()
    return cache / "varied"


def new_process(function: Any, **options: Any) -> Any:
    """A function, compiled as in a new process."""
    varied._of_this_process.clear()
    ingot.reset()
    return ingot.compile(function, **options)


def kept(function: Any) -> list[str]:
    """What became of each of its compilations."""
    compiler = Compiler.of(function)
    assert compiler is not None
    return [compilation.log.kept for compilation in compiler.compilations]


def symbols(function: Any) -> list[list[str]]:
    """What varies in each of its entries."""
    compiler = Compiler.of(function)
    assert compiler is not None
    return [sorted(quantity.name for quantity in g.symbols.values()) for g in compiler.guards]


def scaled(x: Tensor, n: int = 2) -> Tensor:
    return (x * n).exp()


ROWS = ["x.shape[0]", "x.shape[1]", "x.stride(0)"]
"""What varies where the first size does: the others of a tensor may as well."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).relu()


def rows(function: Any, *sizes: int) -> None:
    for size in sizes:
        x = torch.linspace(-1, 1, 6 * size).view(size, 6)
        torch.testing.assert_close(function(x), Compiler.of(function).fn(x))  # type: ignore[union-attr]


@pytest.mark.parametrize("function", [scaled, Net()], ids=["function", "module"])
@torch.no_grad()
def test_a_new_size_is_served_by_what_is_found(function: Callable[..., Any]) -> None:
    cold = new_process(function)
    rows(cold, 4, 9, 11)
    first, second = symbols(cold)
    assert first == [] and any(name.endswith(".shape[0]") for name in second)
    warm = new_process(function)
    rows(warm, 5, 6, 13)
    assert kept(warm) == [FOUND] and symbols(warm) == [second]
    compiler = Compiler.of(warm)
    assert compiler is not None
    decisions = compiler.compilations[0].log.decisions
    assert any("an earlier process saw it to vary" in line for line in decisions)


def test_a_size_that_is_kept_is_found() -> None:
    rows(new_process(scaled), 4, 9)
    warm = new_process(scaled)
    rows(warm, 4, 9, 10)
    assert kept(warm) == [FOUND, FOUND] and symbols(warm) == [[], ROWS]


def test_integers_are_remembered() -> None:
    function = new_process(scaled)
    x = torch.ones(3)
    for n in (3, 5, 7):
        function(x, n)
    warm = new_process(scaled)
    torch.testing.assert_close(warm(x, 11), scaled(x, 11))
    assert symbols(warm) == [["n"]] and kept(warm) == [FOUND]


def test_sizes_that_are_fixed_stay_so() -> None:
    rows(new_process(scaled), 4, 9)
    warm = new_process(scaled, dynamic=False)
    rows(warm, 5, 6)
    assert symbols(warm) == [[], []]


def test_a_process_does_not_recall_its_own() -> None:
    """A function that is compiled again behaves as it did at first."""
    rows(new_process(scaled), 4, 9)
    ingot.reset()
    again = ingot.compile(scaled)
    rows(again, 5, 7)
    assert symbols(again) == [[], ROWS]


def test_what_does_not_hold_any_more_costs_nothing_but_a_symbol() -> None:
    """Of another function of this name and line, and a file that says nothing."""
    compiler = Compiler.of(new_process(scaled))
    assert compiler is not None
    place = compiler.name, compiler.where
    store = store_in("varied")
    for names, expected in (
        (("y.shape[0]", "x.shape[7]"), []),
        (("x.shape[1]", "n.shape[0]"), ["x.shape[1]", "x.stride(0)"]),
        (("x",), []),
    ):
        programs = store_in("programs")
        programs.remove(programs.listing().entries)
        store.put(varied._key(place), packed((names, ())))
        warm = new_process(scaled)
        rows(warm, 7)
        assert symbols(warm) == [expected]
    store.put(varied._key(place), b"no names")
    rows(new_process(scaled), 8, 9)
    for content in (packed((1, 2)), packed(((1,), ())), packed(("x",)), b""):
        with pytest.raises(NotKept):
            varied.names_in(content)


def test_a_size_that_breaks_the_graph_is_none() -> None:
    """As where this process saw it to vary: then it is compiled for."""

    def counted(x: Tensor) -> Tensor:
        return x * len(str(x.shape[0]))

    cold = new_process(counted)
    rows(cold, 4, 9, 11)
    warm = new_process(counted)
    rows(warm, 5, 12)
    assert all(names in ([], ROWS) for names in symbols(warm))


def test_without_a_folder_nothing_is_remembered(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INGOT_CACHE_DIR", "")
    store_in.cache_clear()
    rows(new_process(scaled), 4, 9)
    warm = new_process(scaled)
    rows(warm, 5, 6)
    assert symbols(warm) == [[], ROWS] and not folder.exists()
