"""What a program calls for an op."""

from __future__ import annotations

from typing import Any

from ingot.loops.side_effects import communicates
from ingot.native._native import BelowAutograd
from ingot.torch_private import AutoDispatchBelowAutograd


def called_for(function: Any) -> Any:
    """What a program calls for an op, or for another function: no Python of torch's around it.
    Collectives have an autograd in Python, which programs do without."""
    called = getattr(function, "_op", function)
    if called is not function and communicates(function):
        return BelowAutograd(called, AutoDispatchBelowAutograd)
    return called
