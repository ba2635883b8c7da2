"""A compiled graph that records gradients: two programs, joined by an autograd node.

A forward's program, its contract and the backward programs go in; a callable comes out whose
outputs carry their history. `training_node.py` has the node, `higher_order.py` the gradients'
own gradients, and `output_views.py` what becomes of outputs and of inputs that are written.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Container, Iterable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointFunction

from ingot.errors import mark_of_hooks
from ingot.loops.training_contract import TrainingContract
from ingot.native import _native
from ingot.runtime.early_gradients import LinkedCall, Links, links_for
from ingot.runtime.higher_order import HigherOrderProgram, Inputs, RecordedCall, StateBefore
from ingot.runtime.output_views import rebase, refuse_unwritable
from ingot.runtime.tangents import (
    BackwardPrograms,
    CompiledBackward,
    Demand,
    plain_keys,
)
from ingot.runtime.training_node import (
    GroupNode,
    RemainingTensor,
    Siblings,
    apply_node,
    node_forward,
    run_program,
)
from ingot.runtime.windows import Windows, WithWindows
from ingot.serial import serial
from ingot.torch_private import is_checkpoint_valid, will_engine_execute_node
from ingot.wrapped import is_wrapped, untransformed

_SECOND_TIME = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been "
    "freed). Specify retain_graph=True if you need to backward through the graph a second time"
)
_MOST_INPUT_CHOICES = 8  # that are remembered
_MOST_NATIVE_BITS = 63
_ALL_INPUTS = (1 << 64) - 1  # ALL_ASKED of the native recorder

_is_for_all_leaves = is_checkpoint_valid
"""Whether the backward that runs is after the gradients of all leaves."""


def _native_bits(positions: Iterable[int]) -> int:
    """The native recorder's form of a set of positions: bit k is set for position k."""
    return sum(1 << k for k in positions)


class WithLeaves:
    """Makes leaves of the inputs at some positions, and runs a program on all of them."""

    def __init__(self, run: Callable[..., Sequence[Any]], leaves: Sequence[int]) -> None:
        self.run, self.leaves = run, tuple(leaves)

    def __call__(self, *inputs: Tensor) -> Sequence[Any]:
        for position in self.leaves:
            inputs[position].requires_grad_()
        return self.run(*inputs)


def prepare_backward(run: Any, alike: Sequence[Any]) -> None:
    """Compile the backward programs that `run` will need, where it records gradients: those that
    the programs of other sizes, `alike`, were asked for."""
    program = training_program_of(run)
    if program is None:
        return
    demands = set[Demand]()
    for other in map(training_program_of, alike):
        if other is not None:
            demands.update(other.compiled)
    for demand in demands:
        if len(demand.present) == len(program.contract.tangents):
            program.compiled[demand] = program.backwards.compile(demand)


def training_program_of(run: Any) -> TrainingProgram | None:
    """The program that records gradients in what runs a graph; None where none are."""
    while isinstance(run, (WithLeaves, WithWindows)):
        run = run.run
    if isinstance(run, TrainingProgram):
        return run
    return None


class Remaining(NamedTuple):
    """What is left of a call after a backward. `used_tangents` cannot come in again; the others
    need the saved tensors `needed`, None if there are no others."""

    used_tangents: frozenset[int]
    needed: frozenset[int] | None


class TrainingProgram(_native.Recorder):
    """Runs the forward program on the inputs, and makes the backward program their outputs'
    history.

    A call and a backward that are as usual run in C alone, see `native/recorder.c`: the methods
    here are for all others. `forward` returns the outputs of the contract, then the kept values.
    Attributes repeat what the contract says where a call or a backward reads it.
    """

    def __init__(
        self,
        forward: Callable[..., Sequence[Any]],
        contract: TrainingContract,
        backwards: BackwardPrograms,
        higher_order: HigherOrderProgram,
    ) -> None:
        self.forward, self.contract = forward, contract
        self.backwards, self.higher_order = backwards, higher_order
        self.tangents, self.recomputes = backwards.tangents, backwards.recomputes
        native = contract.native
        self.outputs, self.gradient_inputs = native.outputs, native.gradient_inputs
        self.untracked_outputs = native.untracked_outputs
        self.rebased_inputs = contract.rebased_inputs
        self.refused_outputs = contract.refused_outputs
        self.windows = None
        if contract.windows_in_node:
            self.windows = Windows(contract.windows_in_node, contract.window_places)
        self.downstream = {t.output: t.downstream for t in contract.tangents if t.downstream}
        self.pick_saved = _picker(native.saved)
        self.leaf = None
        if not self.gradient_inputs:  # what gives the outputs a history then
            self.leaf = torch.empty(0, requires_grad=True)
        self._differentiable = native.differentiable_outputs
        self._unreached = frozenset(contract.unreached_inputs)
        self.reentrant_tangents = frozenset(t.position for t in contract.tangents if t.reentrant)
        self.links: Links | None = None  # of calls whose gradients leave their backward early
        self.compiled: dict[Demand, CompiledBackward] = {}
        self._input_choices: list[tuple[int, ...]] = []  # the shortest first
        self._remaining: dict[Any, Remaining] = {}
        special = self.rebased_inputs or self._unreached or self.windows or contract.groups
        self.describe(
            forward=forward,
            leaf=self.leaf,
            state_before=higher_order.state_before if higher_order.changes_state else None,
            slots=native,
            usual=_CONTEXT_IS_AS_EXPECTED and not special,
            usual_backward=not self.reentrant_tangents and not contract.groups,
            looks_for_hooks=bool(self.downstream),
        )

    # -- the call ----------------------------------------------------------------------------------

    def look(self, *inputs: Tensor) -> None:
        """Whether somebody waits for single gradients. C asks for it before the first call, the
        second, the fourth and so on: by then that may be so, or be so no longer."""
        if self.gradient_inputs and _CONTEXT_IS_AS_EXPECTED:
            self.links = links_for(self, inputs)
            self.linked = self.linked or self.links is not None

    def record(self, *inputs: Tensor) -> tuple[Any, ...]:
        """The outputs, which carry their history."""
        for position in self.rebased_inputs:
            refuse_unwritable(inputs[position])
        state, reached = self.higher_order.state_before(inputs), inputs
        if self._unreached:
            reached = _detached(inputs, self._unreached)
        try:
            if self.contract.groups:
                results = self._record_groups(state, reached)
            elif self.links is not None:
                token = self.links.make(reached)
                results = apply_node(self, state, self.links, *reached, token)
            else:
                results = apply_node(self, state, self.leaf, *reached)
        except Exception as error:
            if not _is_in(node_forward, error):  # but behind it, where tensors are saved
                mark_of_hooks(error)
            raise
        for position, output in self.rebased_inputs.items():
            rebase(inputs[position], results[output])
        return results[: self.outputs - len(self.rebased_inputs)]

    def _record_groups(self, state: StateBefore, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The same, with a node for each group."""
        siblings, run = Siblings(), functools.cache(functools.partial(run_program, self, inputs))
        outputs = list[Any]([None]) * self.outputs
        for group in self.contract.groups:
            reached = _detached(inputs, group.unreached_inputs)
            results = apply_node(self, state, GroupNode(group.outputs, siblings, run), *reached)
            for k in group.outputs:
                outputs[k] = results[k]
        return tuple(outputs)

    # -- what C asks -------------------------------------------------------------------------------

    def expected_tangents(self, sizes: tuple[int, ...]) -> tuple[tuple[tuple[int, ...], int], ...]:
        """The strides of the tangents, and the dispatch keys that plain ones have."""
        return tuple([(t.strides, plain_keys(t.device)) for t in self.tangents.at(sizes)])

    def tangent_in_layout(self, position: int, sizes: tuple[int, ...], gradient: Tensor) -> Tensor:
        """A gradient that comes in, in the layout of a tangent."""
        return self.tangents.at(sizes)[position].in_layout(gradient)

    def learn(self, tangents: Sequence[Tensor | None], inputs: Inputs) -> None:
        """Has C take backwards of these tangents, for these inputs, from now on, if nothing else is
        to be done than to run a program."""
        present = self._present(tangents)
        flags = tuple([k in present for k in range(len(self._differentiable))])
        compiled = self.compiled.get(Demand(flags, inputs))
        remaining = self._remaining.get((frozenset(), present, None))
        if compiled is None or compiled.run is None or remaining is None or remaining.needed:
            return
        inputs_mask = _ALL_INPUTS
        if inputs is not None:
            if self.backwards.has_effects or len(self.gradient_inputs) > _MOST_NATIVE_BITS:
                return
            inputs_mask = _native_bits(k for k, i in enumerate(self.gradient_inputs) if i in inputs)
        freed = None
        if remaining.needed is not None:
            freed = [RemainingTensor(None, False)] * len(self.contract.saved)
        self.add_way(
            _native_bits(present),
            inputs_mask,
            compiled.run,
            remaining.used_tangents or None,
            tuple(compiled.gradient_inputs),
            freed,
        )

    # -- what a backward may do --------------------------------------------------------------------

    def _present(self, tangents: Sequence[Any]) -> tuple[int, ...]:
        """The positions of the tangents that come in, of gradients by output."""
        outputs = enumerate(self._differentiable)
        return tuple([k for k, output in outputs if tangents[output] is not None])

    def tangents_of(self, outputs: Container[int]) -> frozenset[int]:
        """The tangents of these outputs."""
        return frozenset(k for k, output in enumerate(self._differentiable) if output in outputs)

    def refuse_partial_hooks(self, hooked: set[int], present: Container[int]) -> None:
        """Raises an error where hooks on an output have seen a part of its gradient alone.

        The part by way of outputs that are computed from it is not known there: it is there if
        these outputs have gradients, which are `present`.
        """
        tangents = self.tangents_of(present)
        for output in hooked.intersection(self.downstream):
            if self.downstream[output] & tangents:
                raise RuntimeError(
                    "a result of a compiled function has a hook on its gradient, or retains it, "
                    "and another result is "
                    "computed from it: the gradients of both are computed at once (hint: compute "
                    "the second outside of "
                    "the compiled function, or call something left to ingot.disable between them)"
                )

    def remaining(
        self, used: frozenset[int], tangents: Sequence[Any], own: frozenset[int] | None = None
    ) -> Remaining:
        """What is left for a node of its `own` tangents (None: of all) once these have come in,
        where others were `used` before. Raises autograd's error for one of those."""
        present = self._present(tangents)
        key = used, present, own
        remaining = self._remaining.get(key)
        if remaining is None:
            remaining = self._remaining[key] = self._remaining_after(used, present, own)
        if not self.reentrant_tangents.isdisjoint(present) and not _is_for_all_leaves():
            CheckpointFunction.backward(None)  # type: ignore[arg-type]  # raises its error
        return remaining

    def _remaining_after(
        self, used: frozenset[int], present: tuple[int, ...], own: frozenset[int] | None
    ) -> Remaining:
        if not used.isdisjoint(present):
            raise RuntimeError(_SECOND_TIME)
        slots = self.contract.tangents
        used = used.union(*[slots[k].single_use for k in present])
        unused = [k for k in range(len(slots)) if k not in used and (own is None or k in own)]
        return Remaining(used, self.backwards.saved_for(unused) if unused else None)

    def demanded_inputs(self, node: Any) -> Inputs:
        """The inputs whose gradients the backward that runs is after, and maybe more if it has no
        effects; None for all."""
        if self.leaf is not None or _is_for_all_leaves():
            return None
        edges = node.next_functions
        for inputs in self._input_choices:
            others = (k for k in self.gradient_inputs if k not in inputs)
            if not any(_is_visited(edges[k][0]) for k in others):
                return inputs
        demanded = tuple([k for k in self.gradient_inputs if _is_visited(edges[k][0])])
        if not self.backwards.has_effects:  # an answer for a leaf takes some 20 us if it is yes
            choices = [demanded, *self._input_choices[: _MOST_INPUT_CHOICES - 1]]
            self._input_choices = sorted(choices, key=len)
        return demanded

    # -- the backward ------------------------------------------------------------------------------

    def backward(
        self,
        saved: list[Any],
        tangents: Sequence[Tensor | None],
        sizes: tuple[int, ...],
        call: RecordedCall | None,
        inputs: Inputs,
        linked: LinkedCall | None = None,
    ) -> list[Tensor | None]:
        """The gradients of all inputs, or of those that are asked for, None for those that have
        none. Empties `saved`. There is a `call` if the program `recomputes`. Of a call that is
        `linked` the gradients may come by way of its links."""
        laid_out = self._in_layout(tangents, sizes)
        demand = Demand(tuple([t is not None for t in laid_out]), inputs)
        if not self.gradient_inputs or not any(demand.present) or inputs == ():
            return self.no_gradients()
        if any(map(is_wrapped, laid_out)):
            return self._by_eager(saved, laid_out, sizes, call, tangents, demand)
        compiled = self.compiled.get(demand)
        if compiled is None:
            compiled = self._compile(demand)
        if compiled.run is None:
            return self._recomputed(call, tangents, sizes, inputs)
        aliases: Sequence[tuple[int, int]] = ()
        if linked is not None:
            aliases = linked.aliases(saved, compiled.gradient_inputs)
        saved += [t for t in laid_out if t is not None]
        saved += sizes
        if linked is not None and inputs is None:
            first = linked.begin(compiled, saved, aliases)
            if first is not None:
                return self._by_input(first, linked.links.groups[0])
        return self._by_input(compiled.run(saved), compiled.gradient_inputs)

    def compiled_whole(self) -> CompiledBackward:
        """The program of the backward that all tangents come into."""
        return self._compile(Demand((True,) * len(self.contract.tangents)))

    @serial
    def _compile(self, demand: Demand) -> CompiledBackward:
        """The program of a backward; by one thread, for others as well."""
        if demand not in self.compiled:
            self.compiled[demand] = self.backwards.compile(demand)
        return self.compiled[demand]

    def _by_eager(
        self,
        saved: list[Any],
        laid_out: list[Tensor | None],
        sizes: tuple[int, ...],
        call: RecordedCall | None,
        tangents: Sequence[Tensor | None],
        demand: Demand,
    ) -> list[Tensor | None]:
        """The same where gradients that come in are wrapped, as a batch of them is."""
        with untransformed():
            graph = self.backwards.graph(demand, sizes)
        if graph is None:
            return self._recomputed(call, tangents, sizes, demand.inputs)
        filled = []
        for expected, tangent in zip(self.tangents.at(sizes), laid_out):
            filled.append(expected.zeros() if tangent is None else tangent)
        return self._by_input(graph.by_eager(saved, filled, sizes), graph.gradient_inputs)

    def _recomputed(
        self,
        call: RecordedCall | None,
        tangents: Sequence[Tensor | None],
        sizes: tuple[int, ...],
        inputs: Inputs,
    ) -> list[Tensor | None]:
        """The same, from the inputs."""
        assert call is not None
        gradients = self.backward_with_history(call, tangents, sizes, inputs)
        return [None if g is None else g.detach() for g in gradients]

    def backward_with_history(
        self,
        call: RecordedCall,
        tangents: Sequence[Tensor | None],
        sizes: tuple[int, ...],
        inputs: Inputs,
    ) -> list[Tensor | None]:
        """The same, from the inputs, and themselves differentiable."""
        self.higher_order.refuse_written(call)
        laid_out = self._in_layout(tangents, sizes)
        if not self.gradient_inputs or all(t is None for t in laid_out) or inputs == ():
            return self.no_gradients()
        return self._by_input(*self.higher_order.gradients(call, laid_out, inputs))

    def _in_layout(
        self, tangents: Sequence[Tensor | None], sizes: tuple[int, ...]
    ) -> list[Tensor | None]:
        """The tangents that the backward takes, of gradients by output. Raises what eager does for
        those of outputs that autograd refuses to go back through."""
        for output, error in self.refused_outputs.items():
            if tangents[output] is not None:
                raise type(error)(*error.args)
        laid_out: list[Tensor | None] = []
        for expected in self.tangents.at(sizes):
            gradient = tangents[expected.output]
            laid_out.append(None if gradient is None else expected.in_layout(gradient))
        return laid_out

    def no_gradients(self) -> list[Tensor | None]:
        """Of the inputs."""
        return [None] * len(self.contract.inputs)

    def _by_input(self, gradients: Sequence[Any], inputs: Sequence[int]) -> list[Tensor | None]:
        by_input = self.no_gradients()
        for position, gradient in zip(inputs, gradients):
            by_input[position] = gradient
        return by_input


def _context_is_as_expected() -> bool:
    """Whether a Function's context keeps what it is told in the attributes that C sets."""
    stand_in, context = SimpleNamespace(), torch.autograd.function.FunctionCtx
    context.save_for_backward(stand_in, 1, 2)  # type: ignore[arg-type]
    context.mark_non_differentiable(stand_in, 3)  # type: ignore[arg-type]
    context.set_materialize_grads(stand_in, False)  # type: ignore[arg-type]
    expected = {"to_save": (1, 2), "non_differentiable": (3,), "materialize_grads": False}
    return vars(stand_in) == expected


_CONTEXT_IS_AS_EXPECTED = _context_is_as_expected()


def _detached(inputs: Sequence[Any], positions: Container[int]) -> tuple[Any, ...]:
    """The inputs, without a history at these positions."""
    return tuple([t.detach() if k in positions else t for k, t in enumerate(inputs)])


def _is_visited(node: Any) -> bool:
    """Whether the backward that runs visits a node, or is after the gradient that would come in
    there."""
    try:
        return node is not None and will_engine_execute_node(node)
    except RuntimeError:  # it is a leaf, and the gradient is asked for
        return True


def _picker(positions: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """What takes the items at these positions."""
    if len(positions) > 1:
        return operator.itemgetter(*positions)
    return lambda items: [items[k] for k in positions]


def _is_in(function: Any, error: Exception) -> bool:
    """Whether an error was raised in a function."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code is not function.__code__:
        traceback = traceback.tb_next
    return traceback is not None
