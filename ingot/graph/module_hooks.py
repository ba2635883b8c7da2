"""Hooks on the backward of a module in a captured graph.

A node lies before the module's forward and one behind it, as in eager. Where gradients pass the one
behind, hooks see those of the outputs; where they pass the one before, others see those of the
inputs as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.fx import GraphModule

from ingot.graph.custom import Custom, CustomGradient, raise_in_backward
from ingot.graph.tensor_hooks import TensorHook
from ingot.sequences import are_present, present

Present = tuple[bool, ...]
"""Which of several gradients are there."""


class Link:
    """Hands the gradients of the outputs of one call, as hooks left them, to the inputs: and which
    of them came in."""

    def __init__(self) -> None:
        self.passed: tuple[Present, list[Tensor | None]] | None = None


class ModuleHooks:
    """The hooks of one call, as two graphs for each choice of outputs that get a gradient.

    The first maps gradients of the outputs to what the hooks on these make of them. The second is
    of the hooks that see gradients of the inputs as well: it takes these, and then those of the
    outputs that are there. In place of both there may be the error that a hook raises.
    `see_inputs`: there are hooks of the second kind.
    """

    def __init__(self, name: str, see_inputs: bool) -> None:
        self.name, self.see_inputs = name, see_inputs
        self.graphs: dict[Present, tuple[GraphModule, GraphModule] | Exception] = {}


class HookedInputs:
    """The node before the forward: gives its arguments, the inputs, a history that calls the hooks.
    Gradients that have passed the outputs are what the hooks make of them. `constant` are the
    positions of those that have none."""

    __module__, __name__ = __name__, "hooked_inputs"

    def __init__(self, hooks: ModuleHooks, constant: frozenset[int]) -> None:
        self.hooks, self.constant = hooks, constant

    def __call__(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], link: Sequence[Link]
    ) -> tuple[Tensor, ...]:
        return Custom.apply(_Inputs(self.hooks, link[0], self.constant), outputs, (), *inputs)


class HookedOutputs(HookedInputs):
    """The node behind the forward: the same for its outputs, whose gradients it hands to the node
    before."""

    __name__ = "hooked_outputs"

    def __call__(
        self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], link: Sequence[Link]
    ) -> tuple[Tensor, ...]:
        return Custom.apply(_Outputs(self.hooks, link[0], self.constant), outputs, (), *inputs)


def tells_none(target: Any) -> bool:
    """Whether a node of a captured graph gives a history in which gradients that are not there
    differ from zeros."""
    if isinstance(target, (HookedOutputs, TensorHook)):
        return True
    return isinstance(target, CustomGradient) and not target.zeros


def sees_inputs(target: Any) -> bool:
    """Whether a node of a captured graph has hooks that see the gradient of a tensor, or of a
    module's inputs. Eager adds up what comes of a gradient and of its own gradient before it calls
    them, so these cannot be taken apart."""
    if isinstance(target, TensorHook):
        return True
    return type(target) is HookedInputs and target.hooks.see_inputs


class _Inputs(NamedTuple):
    hooks: ModuleHooks
    link: Link
    constant: frozenset[int]
    zeros: bool = True  # in place of gradients that are not there

    def gradients(self, kept: Any, tangents: Sequence[Tensor]) -> list[Tensor | None]:
        """What hooks make of the gradients of the inputs, if the backward has come by the
        outputs."""
        passed, self.link.passed = self.link.passed, None
        if passed is None:
            return list(tangents)
        choice, of_outputs = passed
        graphs = self.hooks.graphs[choice]
        assert isinstance(graphs, tuple)
        return list(graphs[1](*tangents, *present(of_outputs)))


class _Outputs(NamedTuple):
    hooks: ModuleHooks
    link: Link
    constant: frozenset[int]
    zeros: bool = False

    def gradients(self, kept: Any, tangents: Sequence[Tensor | None]) -> list[Tensor | None]:
        """What hooks make of the gradients of the outputs."""
        choice, incoming = are_present(tangents), present(tangents)
        graphs = self.hooks.graphs[choice]
        if isinstance(graphs, Exception):
            raise_in_backward(f"a hook on the backward of {self.hooks.name}", graphs, incoming)
        gradients = list(graphs[0](*incoming))
        self.link.passed = choice, gradients
        return gradients
