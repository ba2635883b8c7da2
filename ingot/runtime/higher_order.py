"""The higher-order program of a call: the gradients of its inputs with their history.

The inputs of the call and the tangents go in, and the gradients come out. They are computed from
the inputs as they were before the call, never from what the forward saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ingot.loops.training_contract import TrainingContract
from ingot.sequences import present
from ingot.wrapped import is_wrapped, untransformed

Inputs = tuple[int, ...] | None
"""The inputs whose gradients are asked for; None for all."""

Kinds = tuple[bool | None, ...]
"""Of each tangent whether it requires a gradient; None where there is none."""


class StateBefore(NamedTuple):
    """What a call changes, as it was before: inputs by their position, with their history, and the
    state of the random numbers."""

    written: dict[int, Tensor]
    random: Tensor | None


UNCHANGED = StateBefore({}, None)


class RecordedCall(NamedTuple):
    """What a call began with: its inputs, as they were before, and what it changed. `versions` says
    how often each input had been written when it ended."""

    inputs: tuple[Any, ...]
    versions: list[int | None]
    state: StateBefore


class CompiledGradients(NamedTuple):
    """What gives gradients with their history, and the inputs that they are of. `run` takes the
    tensors of the call, the tangents, then the integers of the call."""

    run: Callable[..., Sequence[Any]]
    gradient_inputs: Sequence[int]


class HigherOrderProgram:
    """A program before it was compiled, which is differentiated again when somebody differentiates
    the gradients.

    `compile_vjp` compiles the gradients for a kind of tangents. The program `draws` random numbers,
    or is `hooked`: it has hooks which eager calls once for the gradients of both orders.
    """

    def __init__(
        self,
        compile_vjp: Callable[[Kinds, Inputs], CompiledGradients],
        contract: TrainingContract,
        draws: bool,
        hooked: bool,
    ) -> None:
        self.compile_vjp, self.draws, self.hooked = compile_vjp, draws, hooked
        self._tensors, self._unread = contract.tensors, frozenset(contract.unread_inputs)
        self._written = [k for k in contract.mutated_inputs if k not in self._unread]
        self.changes_state = bool(self._written) or draws
        self._programs: dict[tuple[Kinds, Inputs], CompiledGradients] = {}

    def state_before(self, inputs: Sequence[Tensor]) -> StateBefore:
        """What is needed to run the program again, taken before it runs."""
        if not self.changes_state:
            return UNCHANGED
        written = {}
        if self._written:
            written = {k: inputs[k].clone() for k in self._written}
        return StateBefore(written, torch.get_rng_state() if self.draws else None)

    def versions(self, inputs: Sequence[Any]) -> list[int | None]:
        """How often each input was written. It is None for those of inference mode, which do not
        count that, and 0 for those that no gradient depends on."""
        versions: list[int | None] = []
        for k, tensor in enumerate(inputs[: self._tensors]):
            if k in self._unread:
                versions.append(0)
            else:
                versions.append(None if tensor.is_inference() else tensor._version)
        return versions

    def refuse_written(self, call: RecordedCall) -> None:
        """Raises an error where the inputs may not be what they were."""
        if None in call.versions:
            raise RuntimeError(
                "second derivatives are wanted of a compiled function that was given a tensor of "
                "inference mode, which "
                "may have been written since (hint: clone it outside of inference mode before)"
            )
        if self.versions(call.inputs) != call.versions:
            raise RuntimeError(
                "a tensor that a compiled function was given has been modified by an inplace "
                "operation, and its value "
                "before is needed for the gradients (hint: modify it after the backward)"
            )

    def gradients(
        self, call: RecordedCall, tangents: Sequence[Tensor | None], inputs: Inputs
    ) -> tuple[Sequence[Tensor | None], Sequence[int]]:
        """The gradients of the inputs that have one, if they are asked for, with their history, and
        which inputs these are."""
        if self.hooked and torch.is_grad_enabled():
            raise RuntimeError(
                "second derivatives are wanted of a compiled function, and a tensor in it has "
                "hooks, or a module has "
                "hooks that see the gradients of its inputs (hint: leave that part to "
                "ingot.disable)"
            )
        run, gradient_inputs = self._program(tangents, inputs)
        arguments = list(call.inputs)
        arguments[self._tensors : self._tensors] = present(tangents)
        if call.state.random is None:
            return run(*arguments), gradient_inputs
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(call.state.random)
            return run(*arguments), gradient_inputs

    def _program(self, tangents: Sequence[Tensor | None], inputs: Inputs) -> CompiledGradients:
        kinds = tuple([None if t is None else t.requires_grad for t in tangents])
        program = self._programs.get((kinds, inputs))
        if program is None:
            with untransformed() if any(map(is_wrapped, tangents)) else nullcontext():
                program = self.compile_vjp(kinds, inputs)
            program = self._programs.setdefault((kinds, inputs), program)
        return program
