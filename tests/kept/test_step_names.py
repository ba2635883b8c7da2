"""What profilers call the steps of a program that an earlier process kept."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import ingot
from ingot.kept.programs import FOUND
from tests.compiled import compilations
from tests.runtime.test_step_names import Block, names_of


def test_found_programs_have_names(cache: Path) -> None:
    """A program that an earlier process kept says what it said there, and one of the same graph
    for another module is another."""
    x, block = torch.randn(4, 16), Block()

    def compiled_anew(model: nn.Module) -> tuple[list[str], list[str]]:
        """Its names, and what became of its programs."""
        ingot.reset()
        compiled = ingot.compile(model)
        with torch.no_grad():
            compiled(x)
            names = names_of(lambda: compiled(x))
        return names, [compilation.log.kept for compilation in compilations(compiled)]

    inside, kept = compiled_anew(nn.Sequential(block))
    assert kept == [""] and "self[0].inner" in "".join(inside)
    assert compiled_anew(nn.Sequential(block)) == (inside, [FOUND])
    alone, kept = compiled_anew(block)
    assert kept == [""] and "self.inner" in "".join(alone)
