"""What is known of torch's functions by their names."""

from __future__ import annotations

import operator

import pytest
import torch

from ingot.capture.operations import NEVER_RAISE, traits
from ingot.graph.schemas import MAY_RAISE
from ingot.rules import hand_over


@pytest.mark.parametrize("name", sorted(NEVER_RAISE))
def test_no_record_says_that_they_raise(name):
    hand_over()
    raising = {overload.overloadpacket.__name__ for overload in MAY_RAISE}
    assert raising.isdisjoint({name, f"{name}_backward", f"native_{name}", f"_{name}"})
    assert traits(name).never_raises


def test_functions_are_known_by_what_they_are():
    assert traits(torch.add).never_raises and traits(operator.add).never_raises
    assert traits(torch.nn.functional.linear).never_raises
    assert not traits(torch.embedding).never_raises and not traits("gather").never_raises

    def add(a, b):
        return a + b

    assert not traits(add).never_raises
