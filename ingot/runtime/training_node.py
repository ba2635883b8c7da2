"""The autograd node of a program that records gradients: its forward and its backward.

The inputs of a call go in, and outputs come out whose history is the node. The usual calls and
backwards run in C alone (`native/recorder.c`); the functions here are for all others, and do the
same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ingot.native import _native
from ingot.runtime.early_gradients import LinkedCall, Links
from ingot.runtime.higher_order import UNCHANGED, RecordedCall, StateBefore
from ingot.runtime.node_hooks import hooks_if_readable, places_of_hooks
from ingot.runtime.output_views import outputs_of_node
from ingot.torch_private import (
    backward_class,
    get_current_graph_task_id,
    get_current_graph_task_keep_graph,
)

if TYPE_CHECKING:
    from ingot.runtime.training import TrainingProgram

_MODIFIED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation"
)

_keeps_graph = get_current_graph_task_keep_graph


class RemainingTensor:
    """A saved tensor after a backward that did not keep the graph. It `is_needed` for other
    tangents, or is but the place of one that was freed."""

    def __init__(self, tensor: Tensor | None, is_needed: bool) -> None:
        self._tensor = tensor.detach() if is_needed and tensor is not None else None
        if tensor is None:
            self._version = 0
        else:
            self._version = tensor._version

    @property
    def tensor(self) -> Any:
        if self._tensor is not None and self._tensor._version != self._version:
            raise RuntimeError(_MODIFIED)
        return self._tensor


# -- several nodes for a call ----------------------------------------------------------------------


class GroupNode(NamedTuple):
    """Tells the forward of a node that it is for a group of a program's outputs alone. `run` gives
    the results and the outputs of all."""

    outputs: frozenset[int]
    siblings: Siblings
    run: Callable[[], tuple[Sequence[Any], tuple[Any, ...]]]


class Siblings:
    """What the nodes of a call know together, each of which stands for a group of its outputs."""

    def __init__(self) -> None:
        # tangents that cannot come in any more, since an earlier backward
        self.used_tangents = frozenset[int]()
        self._used_now = frozenset[int]()
        self._hooked, self._present = set[int](), set[int]()
        self._task = -1

    def enter(self) -> None:
        """Takes note of the backward that runs: what one of the nodes lets go of, others have had
        in the same one."""
        task = get_current_graph_task_id()
        if task != self._task:
            self._task, self.used_tangents = task, self.used_tangents | self._used_now
            self._hooked, self._present = set(), set()

    def leave(self, used: frozenset[int]) -> None:
        """Takes note of the tangents that cannot come in again."""
        self._used_now |= used

    def together(self, hooked: set[int], present: set[int]) -> tuple[set[int], set[int]]:
        """The outputs whose gradients hooks have seen, and those that have gradients, in this
        backward so far."""
        self._hooked |= hooked
        self._present |= present
        return self._hooked, self._present


# -- the forward -----------------------------------------------------------------------------------


def run_program(
    program: TrainingProgram, inputs: Sequence[Tensor]
) -> tuple[Sequence[Any], tuple[Any, ...]]:
    """The results of a program, and those that become outputs of nodes."""
    results = program.forward(*inputs)
    if program.rebased_inputs:
        results = list(results)
        for position, output in program.rebased_inputs.items():
            results[output] = inputs[position].detach()
    return results, outputs_of_node(inputs, results, program.outputs, program.windows)


def node_forward(
    ctx: Any,
    program: TrainingProgram,
    state: StateBefore,
    leaf: Tensor | GroupNode | Links | None,
    *inputs: Tensor,
) -> tuple[Any, ...]:
    ctx.set_materialize_grads(False)
    ctx.program = program
    if isinstance(leaf, Links):
        ctx.links, inputs = leaf, inputs[:-1]  # without the token
    untracked: Sequence[int] = program.untracked_outputs
    if isinstance(leaf, GroupNode):
        results, outputs = leaf.run()
        outputs = tuple([o if k in leaf.outputs else None for k, o in enumerate(outputs)])
        savable = _without_other_nodes(results, leaf.outputs)
        untracked = [k for k in untracked if k in leaf.outputs]
        ctx.siblings, ctx.own_tangents = leaf.siblings, program.tangents_of(leaf.outputs)
    else:
        results, outputs = run_program(program, inputs)
        savable = [*results]
    ctx.save_for_backward(*program.pick_saved((*inputs, *savable)))
    if state.written:
        # what was written leads back here
        inputs = tuple([state.written.get(k, t) for k, t in enumerate(inputs)])
    ctx.call = RecordedCall(inputs, program.higher_order.versions(inputs), state)
    ctx.sizes = program.tangents.read(inputs, results)
    if untracked:
        without_history = [results[k] for k in untracked]
        ctx.mark_non_differentiable(*[r for r in without_history if isinstance(r, Tensor)])
    return outputs


def _without_other_nodes(results: Sequence[Any], own: frozenset[int]) -> list[Any]:
    """The results, detached where they are outputs of other nodes: such an output would hold its
    node, which may hold an output of this one."""
    savable = []
    for k, result in enumerate(results):
        is_other = isinstance(result, Tensor) and k not in own
        savable.append(result.detach() if is_other else result)
    return savable


# -- the backward ----------------------------------------------------------------------------------


def _backward(ctx: Any, *tangents: Tensor | None) -> Any:
    program: TrainingProgram = ctx.program
    siblings: Siblings | None = ctx.siblings
    if siblings is not None:
        siblings.enter()
    if program.downstream:
        _refuse_partial_hooks(ctx, program, siblings, tangents)
    if ctx.remaining_saved is None:
        saved = list(ctx.saved_tensors)  # raises where they were freed, or were written
    else:
        saved = [remaining.tensor for remaining in ctx.remaining_saved]
    consumed, ctx.consumed_elsewhere = ctx.consumed_elsewhere, None
    no_token = () if ctx.links is None else (None,)
    if torch.is_grad_enabled():
        inputs = program.demanded_inputs(ctx)
        gradients = program.backward_with_history(ctx.call, tangents, ctx.sizes, inputs)
        return None, None, None, *gradients, *no_token
    call, linked = None, None
    if program.recomputes:
        call = ctx.call
    if ctx.links is not None and consumed is None and ctx.call is not None:
        linked = LinkedCall(ctx.links, ctx.call.inputs)
    _free(ctx, program, saved, tangents if consumed is None else consumed)
    if consumed is not None:
        return None, None, None, *program.no_gradients(), *no_token
    inputs = program.demanded_inputs(ctx)
    gradients = program.backward(saved, tangents, ctx.sizes, call, inputs, linked)
    program.learn(tangents, inputs)
    if linked is not None:
        return None, None, None, *gradients, linked.token
    return None, None, None, *gradients, *no_token


def _free(
    ctx: Any, program: TrainingProgram, saved: Sequence[Any], tangents: Sequence[Any]
) -> None:
    """Lets go of what no other tangent needs, unless the backward that runs keeps the graph. Raises
    autograd's error for a tangent that cannot come in again."""
    siblings: Siblings | None = ctx.siblings
    before: frozenset[int] = ctx.used_tangents or frozenset()
    if siblings is not None:
        before |= siblings.used_tangents
    used, needed = program.remaining(before, tangents, ctx.own_tangents)
    if not _keeps_graph():
        if siblings is not None:
            siblings.leave(used)
        ctx.used_tangents = used or None
        ctx.remaining_saved = None
        if needed is None:
            ctx.call = None
        else:
            ctx.remaining_saved = [RemainingTensor(t, k in needed) for k, t in enumerate(saved)]
    ctx.maybe_clear_saved_tensors()


def _refuse_partial_hooks(
    ctx: Any, program: TrainingProgram, siblings: Siblings | None, tangents: Sequence[Tensor | None]
) -> None:
    """Raises an error where hooks on an output have seen a part of its gradient alone."""
    hooks = hooks_if_readable(ctx)
    hooked = {*hooks.retained, *(position for table, position in hooks.tensor if table)}
    present = {k for k, tangent in enumerate(tangents) if tangent is not None}
    if siblings is not None:
        hooked, present = siblings.together(hooked, present)
    if hooked:
        program.refuse_partial_hooks(hooked, present)


# -- the node --------------------------------------------------------------------------------------


class _Graph(torch.autograd.Function):
    forward = staticmethod(_native.node_forward)
    backward = staticmethod(_backward)


def is_of_program(node: Any) -> bool:
    """Whether a node of autograd's graph is the history of a TrainingProgram's outputs.

    It has the `program`, `sizes` and `saved_tensors`, and `remaining_saved`, None unless some of
    these were freed. Where another program has consumed its gradients, `consumed_elsewhere` is set
    before the engine passes it with none: to something else than None for each output that had a
    gradient.
    """
    return isinstance(node, _Node)


_Node: Any = backward_class(_Graph)
# until a backward, or somebody who looks on, says otherwise
_Node.used_tangents, _Node.remaining_saved, _Node.consumed_elsewhere = None, None, None
_Node.siblings, _Node.own_tangents, _Node.links = None, None, None
# the engine calls it; `BackwardCFunction.apply` would look up the same function
_Node.apply = _native.node_backward

apply_node = super(torch.autograd.Function, _Graph).apply  # type: ignore[misc]
"""What `_Graph.apply` comes to where no transform of torch.func is active, which guards see to."""

_native.join_autograd(apply_node, node_forward, _backward, RecordedCall, UNCHANGED, places_of_hooks)
