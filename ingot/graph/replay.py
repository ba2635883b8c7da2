"""Drawing random numbers a second time: the forward of a checkpointed region saves the generator's
state before each draw, and the backward draws from it."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from ingot.torch_private import OpOverload

_library = torch.library.Library("ingot", "FRAGMENT")
# keeps its place among draws
_library.define("random_state() -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
_library.impl("random_state", torch.get_rng_state, "CompositeExplicitAutograd")

random_state: OpOverload = torch.ops.ingot.random_state.default

STATE_BYTES = torch.get_rng_state().numel()


@cache
def drawn_again(op: OpOverload) -> OpOverload:
    """The op that takes a state of the generator and the arguments of `op`, and draws from there.
    The generator is left as it was."""
    name, _, rest = str(op._schema).partition("(")
    own_name = "again_" + name.partition("::")[2].replace(".", "_")
    _library.define(f"{own_name}(Tensor state, {rest}")

    def draw(state: Tensor, *args: Any, **kwargs: Any) -> Any:
        present = torch.get_rng_state()
        torch.set_rng_state(state)
        try:
            return op(*args, **kwargs)
        finally:
            torch.set_rng_state(present)

    _library.impl(own_name, draw, "CompositeExplicitAutograd")
    overload: OpOverload = getattr(torch.ops.ingot, own_name).default
    return overload
