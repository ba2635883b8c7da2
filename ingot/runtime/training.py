"""A compiled graph that records gradients: two programs, and the autograd node that joins them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointFunction

from ingot.errors import mark_of_hooks
from ingot.native import _native
from ingot.runtime.node_hooks import hooks_if_seen, places_of_hooks
from ingot.runtime.windows import BySizes, Window, WithWindows
from ingot.serial import serial
from ingot.torch_private import (
    CreationMeta,
    DisableTorchDispatch,
    backward_class,
    dispatch_keys,
    efficientzerotensor,
    get_creation_meta,
    get_current_graph_task_id,
    get_current_graph_task_keep_graph,
    is_checkpoint_valid,
    neg_view,
    unsafe_set_version_counter,
    will_engine_execute_node,
)
from ingot.wrapped import is_wrapped, untransformed

_SECOND_TIME = (
    "Trying to backward through the graph a second time (or directly access saved tensors after "
    "they have already been "
    "freed). Specify retain_graph=True if you need to backward through the graph a second time"
)
_ALL = (1 << 64) - 1  # of the inputs, in bits
_MOST_ASKED = 8  # choices of inputs that are remembered
_MODIFIED = (
    "one of the variables needed for gradient computation has been modified by an inplace operation"
)

_all_gradients = is_checkpoint_valid
"""Whether the backward that runs is after the gradients of all leaves."""

_keeps_graph = get_current_graph_task_keep_graph

Backward = Callable[[list[Tensor]], Sequence[Any]]
"""Takes the saved tensors, the tangents and the values of the size symbols out of a list, which it
empties so that each may die with its last use."""


class Demand(NamedTuple):
    """What a backward is for: which of the tangents come in, and, unless it is for all, the inputs
    whose gradients somebody is after."""

    given: tuple[bool, ...]
    inputs: tuple[int, ...] | None = None

    @property
    def is_whole(self) -> bool:
        return all(self.given) and self.inputs is None


@dataclass(frozen=True)
class Tangent:
    """The gradient that comes in for an output, in the layout that the backward expects."""

    output: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def zeros(self) -> Tensor:
        return torch.empty_strided(
            self.sizes, self.strides, dtype=self.dtype, device=self.device
        ).zero_()

    def laid_out(self, given: Tensor) -> Tensor:
        """`given` in that layout."""
        if is_wrapped(given):
            return given
        if given.layout is not torch.strided:
            given = given.to_dense()
        plain = not (given.is_conj() or given.is_neg() or given._is_zerotensor())
        if plain and given.stride() == self.strides:
            return given
        return torch.empty_strided(
            self.sizes, self.strides, dtype=self.dtype, device=self.device
        ).copy_(given)


class WithZeros:
    """Runs a backward that takes all `tangents` where only those `given` come in, with zeros for
    the others, and picks the results at some positions."""

    def __init__(
        self,
        run: Backward,
        tangents: BySizes[Sequence[Tangent]],
        given: Sequence[bool],
        picked: Sequence[int],
    ) -> None:
        self.run, self.tangents, self.given, self.picked = (
            run,
            tangents,
            tuple(given),
            tuple(picked),
        )

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        last = len(arguments) - len(self.tangents.places)
        first = last - sum(self.given)
        tangents, present = self.tangents.at(tuple(arguments[last:])), iter(arguments[first:last])
        arguments[first:last] = [
            next(present) if come else t.zeros() for t, come in zip(tangents, self.given)
        ]
        results = self.run(arguments)
        return [results[k] for k in self.picked]


class ForSizes:
    """Runs that of some backwards which is made for the sizes of a call."""

    def __init__(self, programs: BySizes[Backward]) -> None:
        self.programs = programs

    def __call__(self, arguments: list[Any]) -> Sequence[Any]:
        sizes = arguments[len(arguments) - len(self.programs.places) :]
        return self.programs.at(tuple(sizes))(arguments)


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
    program = _recording(run)
    others = [other for other in map(_recording, alike) if other is not None]
    if program is not None:
        for present in {present for other in others for present in [*other._backward]}:
            if len(present) == len(program.differentiable):
                program._backward[present] = program.compile_backward(present)


def _recording(run: Any) -> TrainingProgram | None:
    while isinstance(run, (WithLeaves, WithWindows)):
        run = run.run
    return run if isinstance(run, TrainingProgram) else None


class Original:
    """The program before it was compiled, which is differentiated again when somebody
    differentiates the gradients.

    `compile_vjp` is told of each tangent whether it requires a gradient, or None where there is
    none, and of the inputs whose gradients are asked for (None: all), and returns what takes the
    inputs, of which the first `tensors` are tensors, with the tangents behind these, and gives the
    gradients with their history, and of which inputs. `written` are the inputs that the program
    writes, of which `unread` hold nothing that a gradient depends on, as running statistics do;
    `draws` says that it draws random numbers, `hooked` that there are hooks which eager calls once
    for the gradients of both orders.
    """

    def __init__(
        self,
        compile_vjp: Callable[
            [tuple[bool | None, ...], tuple[int, ...] | None],
            tuple[Callable[..., Sequence[Any]], Sequence[int]],
        ],
        tensors: int,
        written: Sequence[int],
        unread: Sequence[int],
        draws: bool,
        hooked: bool,
    ) -> None:
        self.compile_vjp, self.tensors = compile_vjp, tensors
        self.written, self.unread = (
            tuple(k for k in written if k not in unread),
            tuple(sorted(unread)),
        )
        self.draws, self.hooked = draws, hooked
        self.changes = bool(self.written) or draws  # what `before` takes
        self._programs: dict[Any, tuple[Callable[..., Sequence[Any]], Sequence[int]]] = {}

    def before(self, inputs: Sequence[Tensor]) -> State:
        """What is needed to run it again, taken before it runs."""
        if not self.changes:
            return UNCHANGED
        kept = {k: inputs[k].clone() for k in self.written} if self.written else {}
        return State(kept, torch.get_rng_state() if self.draws else None)

    def versions(self, inputs: Sequence[Any]) -> list[int | None]:
        """How often each input was written; None for those of inference mode, which do not count
        that, and 0 for those that no gradient depends on."""
        tensors = enumerate(inputs[: self.tensors])
        return [
            0 if k in self.unread else None if t.is_inference() else t._version for k, t in tensors
        ]

    def gradients(
        self,
        inputs: Sequence[Tensor],
        state: State,
        tangents: Sequence[Tensor | None],
        asked: tuple[int, ...] | None,
    ) -> tuple[Sequence[Tensor | None], Sequence[int]]:
        """The gradients of the inputs (as they were) that have one, if they are `asked` for, with
        their history, and which these are."""
        if self.hooked and torch.is_grad_enabled():
            raise RuntimeError(
                "second derivatives are wanted of a compiled function, and a tensor in it has "
                "hooks, or a module has "
                "hooks that see the gradients of its inputs (hint: leave that part to "
                "ingot.disable)"
            )
        kind = tuple(None if t is None else t.requires_grad for t in tangents)
        known = self._programs.get((kind, asked))
        if known is None:
            with untransformed() if any(map(is_wrapped, tangents)) else nullcontext():
                known = self._programs.setdefault((kind, asked), self.compile_vjp(kind, asked))
        run, wanted = known
        given = list(inputs)
        given[self.tensors : self.tensors] = [t for t in tangents if t is not None]
        if state.random is None:
            return run(*given), wanted
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(state.random)
            return run(*given), wanted


class State(NamedTuple):
    """What a call changed, as it was before: inputs by their position, with their history, and the
    state of the random numbers."""

    written: dict[int, Tensor]
    random: Tensor | None


UNCHANGED = State({}, None)


class Call(NamedTuple):
    """What a call began with: the inputs (what was written as it was before), how often each had
    been written when it ended, and what it changed."""

    inputs: tuple[Any, ...]
    versions: list[int | None]
    state: State


class TrainingProgram(_native.Recorder):
    """Runs the forward program on the inputs, and makes the backward program their outputs'
    history. (A call and a backward that are as usual run in C alone, see `native/recorder.c`: what
    is here is for all others.)

    `forward` returns the `outputs`, then what the backward needs besides. Inputs that become
    results of the program, as it writes them, are `written`, with the positions of the outputs, the
    last ones, that stand for them. `saved` says where the backward's first arguments are found:
    ("input" | "output" | "kept", position). `compile_backward` is told which of the `tangents`,
    those of the outputs `differentiable`, come in, when some first do, and what for: what it
    returns takes the saved tensors, then these, then the values of the size symbols, and returns
    the gradients of inputs, and which they are, of those `wanted`. With `repeats` there may be no
    such program, since what is kept does not suffice: then the gradients are computed from the
    inputs. It `acts` if it does something beside giving gradients. `graph_of_backward` gives that
    program as a graph, for sizes if these are told, None where there is none. `original` is what
    second derivatives are taken of. `spent` are outputs that have a history which autograd refuses
    to go through, and its error. `hidden`: outputs have a history, but no input has a gradient.
    `apart` are inputs that may require a gradient and have none: the outputs' history does not lead
    to theirs. Which tangents (as bits) each `shares` a node of eager's backward with that lets
    nobody pass twice, and which come by a `reentrant` checkpoint; by the output of which others are
    `passed`; `kept_for` says which saved tensors some of the tangents need. Each of the `groups` of
    outputs has a node of its own, if there are any, that does not lead to the inputs beyond it.
    `windows` are the outputs that share memory with an input or another output, and have a history
    that is not that of a view of it.
    """

    def __init__(
        self,
        forward: Callable[..., Sequence[Any]],
        compile_backward: Callable[[Demand], tuple[Backward | None, Sequence[int]]],
        graph_of_backward: Callable[[Demand, tuple[int, ...] | None], Any],
        original: Original,
        *,
        repeats: bool,
        acts: bool,
        inputs: int,
        outputs: int,
        written: Mapping[int, int],
        differentiable: Sequence[int],
        tangents: BySizes[Sequence[Tangent]],
        wanted: Sequence[int],
        saved: Sequence[tuple[str, int]],
        shares: Sequence[int],
        reentrant: Sequence[bool],
        passed: Sequence[int],
        groups: Sequence[tuple[frozenset[int], frozenset[int]]],
        kept_for: Callable[[Sequence[int]], frozenset[int]],
        spent: Mapping[int, Exception],
        hidden: bool,
        apart: Sequence[int],
        windows: BySizes[Sequence[Window]] | None,
    ) -> None:
        self.windows = windows
        self.forward, self.compile_backward, self.original = forward, compile_backward, original
        self.graph_of_backward = graph_of_backward
        self.repeats, self.acts = repeats, acts
        self.inputs, self.outputs, self.tangents = inputs, outputs, tangents
        self.written = dict(written)
        self.wanted = tuple(wanted)
        first = {"input": 0, "output": inputs, "kept": inputs + outputs}
        # among the inputs and all results
        self.saved = tuple(first[kind] + position for kind, position in saved)
        self.pick_saved = _picker(self.saved)
        self.shares, self.kept_for = tuple(shares), kept_for
        self.reentrant = tuple(reentrant)
        self.passed = {output: bits for output, bits in zip(differentiable, passed) if bits}
        self.differentiable, self.groups = tuple(differentiable), groups
        tracked = {*differentiable, *spent}
        self.untracked = tuple(k for k in range(outputs) if k not in tracked)
        self.spent, self.apart = spent, frozenset(apart)
        self.leaf = torch.empty(0, requires_grad=True) if hidden else None
        self._backward: dict[Demand, tuple[Backward | None, Sequence[int]]] = {}
        self._asked: list[tuple[int, ...]] = []  # inputs that were asked for, the shortest first
        self._remaining: dict[
            tuple[int, tuple[int, ...], int], tuple[int, frozenset[int] | None]
        ] = {}
        self.describe(
            forward=forward,
            leaf=self.leaf,
            before=original.before if original.changes else None,
            inputs=inputs,
            tensors=original.tensors,
            outputs=outputs,
            saved=self.saved,
            untracked=self.untracked,
            unread=original.unread,
            places=tuple(tangents.places.values()),
            differentiable=self.differentiable,
            spent=tuple(spent),
            wanted=self.wanted,
            usual=_KEEPS_AS_EXPECTED and not (written or apart or windows or groups),
            usual_backward=not any(reentrant) and not groups,
            looks_for_hooks=bool(self.passed),
        )

    def record(self, *inputs: Tensor) -> tuple[Any, ...]:
        """The outputs, which carry their history."""
        for position in self.written:
            _refuse_unwritable(inputs[position])
        state, given = self.original.before(inputs), inputs
        if self.apart:
            given = tuple([t.detach() if k in self.apart else t for k, t in enumerate(inputs)])
        try:
            if self.groups:
                results = self._record_groups(state, given)
            else:
                results = _apply(self, state, self.leaf, *given)
        except Exception as error:
            if not _is_in(_forward, error):  # but behind it, where what is kept is saved
                mark_of_hooks(error)
            raise
        for position, output in self.written.items():
            _rebase(inputs[position], results[output])
        return results[: self.outputs - len(self.written)]

    def _record_groups(self, state: State, given: Sequence[Tensor]) -> tuple[Any, ...]:
        """The same, with a node for each group."""
        siblings, run = Siblings(), functools.cache(functools.partial(_run, self, given))
        outputs = list[Any]([None]) * self.outputs
        for own, beyond in self.groups:
            reached = [t.detach() if k in beyond else t for k, t in enumerate(given)]
            found = _apply(self, state, InGroup(own, siblings, run), *reached)
            for k in own:
                outputs[k] = found[k]
        return tuple(outputs)

    def bits_of(self, outputs: Container[int]) -> int:
        """Which of the tangents are those of these outputs."""
        return sum(1 << k for k, output in enumerate(self.differentiable) if output in outputs)

    def refuse_seen(self, seen: set[int], given: Container[int]) -> None:
        """Raises an error where hooks on an output have `seen` a part of its gradient alone: what
        comes in by way of others that are computed from it is not known there, if there are
        gradients `given` for them."""
        for k in seen.intersection(self.passed):
            if self.passed[k] & self.bits_of(given):
                raise RuntimeError(
                    "a result of a compiled function has a hook on its gradient, or retains it, "
                    "and another result is "
                    "computed from it: the gradients of both are computed at once (hint: compute "
                    "the second outside of "
                    "the compiled function, or call something left to ingot.disable between them)"
                )

    def expected(self, sizes: tuple[int, ...]) -> tuple[tuple[tuple[int, ...], int], ...]:
        """The strides of the gradients that come in, and the dispatch keys that plain ones have."""
        return tuple([(t.strides, _plain_keys(t.device)) for t in self.tangents.at(sizes)])

    def laid_out(self, number: int, sizes: tuple[int, ...], given: Tensor) -> Tensor:
        """A gradient that comes in, as the backward expects it."""
        return self.tangents.at(sizes)[number].laid_out(given)

    def learn(self, tangents: Sequence[Tensor | None], asked: tuple[int, ...] | None) -> None:
        """Has C take backwards where such gradients come in, and are asked for, from now on, if
        nothing else is to be done than to run a program."""
        given = [k for k, output in enumerate(self.differentiable) if tangents[output] is not None]
        present = tuple([k in given for k in range(len(self.differentiable))])
        run, wanted = self._backward.get(Demand(present, asked), (None, ()))
        passed, left = self._remaining.get((0, tuple(given), -1), (0, frozenset([0])))
        if run is not None and not left:
            nothing = None if left is None else [_Left(None, False)] * len(self.saved)
            if asked is not None and (self.acts or len(self.wanted) > 63):
                return
            of = (
                _ALL
                if asked is None
                else sum(1 << k for k, position in enumerate(self.wanted) if position in asked)
            )
            self.add_way(sum(1 << k for k in given), of, run, passed, tuple(wanted), nothing)

    def remaining(
        self, passed: int, tangents: Sequence[Tensor | None], own: int = -1
    ) -> tuple[int, frozenset[int] | None]:
        """Through which outputs (bits) nobody may go back once these tangents have, where those of
        `passed` did before, and which saved tensors a node of its `own` outputs still wants then,
        None where it lets nobody back. Raises autograd's error for one of these."""
        given = tuple(
            [k for k, output in enumerate(self.differentiable) if tangents[output] is not None]
        )
        known = self._remaining.get((passed, given, own))
        if known is None:
            known = self._remaining[passed, given, own] = self._remaining_behind(passed, given, own)
        if (
            True in self.reentrant
            and any(self.reentrant[k] for k in given)
            and not _all_gradients()
        ):
            CheckpointFunction.backward(None)  # type: ignore[arg-type]  # raises its error
        return known

    def _remaining_behind(
        self, passed: int, given: Sequence[int], own: int
    ) -> tuple[int, frozenset[int] | None]:
        if any(passed & 1 << k for k in given):
            raise RuntimeError(_SECOND_TIME)
        for k in given:
            passed |= self.shares[k]
        left = tuple([k for k in range(len(self.shares)) if own & ~passed & 1 << k])
        return passed, self.kept_for(left) if left else None

    def asked_for(self, node: Any) -> tuple[int, ...] | None:
        """The inputs whose gradients the backward that runs is after, and maybe more if it does
        nothing beside giving gradients; None: all."""
        if self.leaf is not None or _all_gradients():
            return None
        following = node.next_functions
        for asked in self._asked:
            if not any(k not in asked and _is_visited(following[k][0]) for k in self.wanted):
                return asked
        asked = tuple([k for k in self.wanted if _is_visited(following[k][0])])
        if not self.acts:  # an answer for a leaf takes some 20 us if it is yes
            self._asked = sorted([asked, *self._asked[: _MOST_ASKED - 1]], key=len)
        return asked

    def backward(
        self,
        saved: list[Any],
        tangents: Sequence[Tensor | None],
        sizes: tuple[int, ...],
        call: Call | None,
        asked: tuple[int, ...] | None,
    ) -> list[Tensor | None]:
        """The gradients of all inputs, or of those `asked` for, None for those that have none.
        Empties `saved`. `call` is there if the program `repeats`."""
        given = self._laid_out(tangents, sizes)
        demand = Demand(tuple([t is not None for t in given]), asked)
        if not self.wanted or not any(demand.given) or asked == ():
            return self._by_input((), ())
        if any(map(is_wrapped, given)):
            return self._by_eager(saved, given, sizes, call, tangents, asked)
        known = self._backward.get(demand)
        if known is None:
            known = self._compile(demand)
        run, wanted = known
        if run is None:
            assert call is not None
            found = self.backward_with_history(call, tangents, sizes, asked)
            return [None if g is None else g.detach() for g in found]
        saved += [t for t in given if t is not None]
        saved += sizes
        return self._by_input(run(saved), wanted)

    @serial
    def _compile(self, demand: Demand) -> tuple[Any, Sequence[int]]:
        """What computes the gradients; by one thread, for others as well."""
        if demand not in self._backward:
            self._backward[demand] = self.compile_backward(demand)
        return self._backward[demand]

    def _by_eager(
        self,
        saved: list[Any],
        given: list[Tensor | None],
        sizes: tuple[int, ...],
        call: Call | None,
        tangents: Sequence[Tensor | None],
        asked: tuple[int, ...] | None,
    ) -> list[Tensor | None]:
        """The same where gradients that come in are wrapped, as a batch of them is."""
        with untransformed():
            graph = self.graph_of_backward(
                Demand(tuple([t is not None for t in given]), asked), sizes
            )
        if graph is None:
            assert call is not None
            found = self.backward_with_history(call, tangents, sizes, asked)
            return [None if g is None else g.detach() for g in found]
        filled = [
            like.zeros() if t is None else t for like, t in zip(self.tangents.at(sizes), given)
        ]
        return self._by_input(graph.by_eager(saved, filled, sizes), graph.wanted)

    def backward_with_history(
        self,
        call: Call,
        tangents: Sequence[Tensor | None],
        sizes: tuple[int, ...],
        asked: tuple[int, ...] | None,
    ) -> list[Tensor | None]:
        """The same, from the inputs, and themselves differentiable."""
        if None in call.versions:
            raise RuntimeError(
                "second derivatives are wanted of a compiled function that was given a tensor of "
                "inference mode, which "
                "may have been written since (hint: clone it outside of inference mode before)"
            )
        if self.original.versions(call.inputs) != call.versions:
            raise RuntimeError(
                "a tensor that a compiled function was given has been modified by an inplace "
                "operation, and its value "
                "before is needed for the gradients (hint: modify it after the backward)"
            )
        given = self._laid_out(tangents, sizes)
        if not self.wanted or all(t is None for t in given) or asked == ():
            return self._by_input((), ())
        return self._by_input(*self.original.gradients(call.inputs, call.state, given, asked))

    def _laid_out(
        self, tangents: Sequence[Tensor | None], sizes: tuple[int, ...]
    ) -> list[Tensor | None]:
        """The tangents that the backward may be given. Raises what eager does for those of outputs
        that are spent."""
        for output, error in self.spent.items():
            if tangents[output] is not None:
                raise type(error)(*error.args)
        expected = self.tangents.at(sizes)
        return [
            None if (tangent := tangents[t.output]) is None else t.laid_out(tangent)
            for t in expected
        ]

    def no_gradients(self) -> list[Tensor | None]:
        """Of the inputs."""
        return self._by_input((), ())

    def _by_input(self, found: Sequence[Any], positions: Sequence[int]) -> list[Tensor | None]:
        gradients: list[Tensor | None] = [None] * self.inputs
        for position, gradient in zip(positions, found):
            gradients[position] = gradient
        return gradients


@functools.cache
def _plain_keys(device: torch.device) -> int:
    """The dispatch keys of a plain tensor on a device."""
    with torch.inference_mode(False), DisableTorchDispatch():
        return _keys(torch.empty(0, device=device))


@functools.cache
def lazy_keys() -> int:
    """The dispatch keys of tensors that have other values than their memory: negated, conjugated,
    or zeros."""
    with torch.inference_mode(False), DisableTorchDispatch():
        real, complex_ = torch.empty(1), torch.empty(1, dtype=torch.complex64)
        lazy = (real, neg_view(real)), (complex_, complex_.conj()), (real, efficientzerotensor(1))
        return functools.reduce(operator.or_, [_keys(made) & ~_keys(plain) for plain, made in lazy])


def _keys(tensor: Tensor) -> int:
    return dispatch_keys(tensor).raw_repr()


def _keeps_as_expected() -> bool:
    """Whether what is told a Function's context is in the attributes that C sets."""
    told, context = SimpleNamespace(), torch.autograd.function.FunctionCtx
    context.save_for_backward(told, 1, 2)  # type: ignore[arg-type]
    context.mark_non_differentiable(told, 3)  # type: ignore[arg-type]
    context.set_materialize_grads(told, False)  # type: ignore[arg-type]
    return vars(told) == {"to_save": (1, 2), "non_differentiable": (3,), "materialize_grads": False}


_KEEPS_AS_EXPECTED = _keeps_as_expected()


class _Left:
    """A saved tensor that is `wanted` after a backward that did not keep the graph, or the place of
    another."""

    def __init__(self, tensor: Tensor | None, wanted: bool) -> None:
        self._tensor = tensor.detach() if wanted and tensor is not None else None
        self._version = 0 if tensor is None else tensor._version

    @property
    def tensor(self) -> Any:
        if self._tensor is not None and self._tensor._version != self._version:
            raise RuntimeError(_MODIFIED)
        return self._tensor


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
    return lambda found: [found[k] for k in positions]


def _no_view(result: Any) -> Any:
    """A result that autograd lets be written: it refuses views that a Function makes. (Those that
    share memory with others are made outside of it.) The versions of what is kept are counted
    together with its own."""
    return result.detach() if isinstance(result, Tensor) and result._is_view() else result


def _is_in(function: Any, error: Exception) -> bool:
    """Whether an error was raised in a function."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code is not function.__code__:
        traceback = traceback.tb_next
    return traceback is not None


class InGroup(NamedTuple):
    """That a node is made for a group of a program's outputs alone. `run` gives the results and the
    outputs of all."""

    outputs: frozenset[int]
    siblings: Siblings
    run: Callable[[], tuple[Sequence[Any], tuple[Any, ...]]]


class Siblings:
    """What the nodes of a call know together, each of which stands for a group of its outputs."""

    def __init__(self) -> None:
        # through which outputs (bits) nobody may go back, since an earlier backward
        self.passed = self._passed_now = 0
        self._seen, self._given = set[int](), set[int]()
        self._task = -1

    def enter(self) -> None:
        """Takes note of the backward that runs: what one of the nodes lets go of, others have had
        in the same one."""
        task = get_current_graph_task_id()
        if task != self._task:
            self._task, self.passed = task, self.passed | self._passed_now
            self._seen, self._given = set(), set()

    def leave(self, passed: int) -> None:
        """Takes note of what a node lets nobody go back through again."""
        self._passed_now |= passed

    def together(self, seen: set[int], given: set[int]) -> tuple[set[int], set[int]]:
        """The outputs whose gradients hooks have seen, and those that have gradients, in this
        backward so far."""
        self._seen |= seen
        self._given |= given
        return self._seen, self._given


def _run(
    program: TrainingProgram, inputs: Sequence[Tensor]
) -> tuple[Sequence[Any], tuple[Any, ...]]:
    """The results of the program, and those that become outputs of nodes."""
    results = program.forward(*inputs)
    if program.written:
        results = list(results)
        for position, output in program.written.items():
            results[output] = inputs[position].detach()
    return results, _outputs(program, inputs, results)


def _forward(
    ctx: Any, program: TrainingProgram, state: State, leaf: Tensor | InGroup | None, *inputs: Tensor
) -> tuple[Any, ...]:
    ctx.set_materialize_grads(False)
    ctx.program = program
    untracked: Sequence[int] = program.untracked
    if isinstance(leaf, InGroup):
        own, (results, outputs) = leaf.outputs, leaf.run()
        outputs = tuple([output if k in own else None for k, output in enumerate(outputs)])
        # An output of another node would hold that, which may hold an output of this one.
        shown = [
            r.detach() if isinstance(r, Tensor) and k not in own else r
            for k, r in enumerate(results)
        ]
        ctx.siblings, ctx.own = leaf.siblings, program.bits_of(own)
        untracked = [k for k in untracked if k in own]
    else:
        results, outputs = _run(program, inputs)
        shown = [*results]
    ctx.save_for_backward(*program.pick_saved((*inputs, *shown)))
    if state.written:
        # what was written leads back here
        inputs = tuple([state.written.get(k, t) for k, t in enumerate(inputs)])
    ctx.call = Call(inputs, program.original.versions(inputs), state)
    ctx.sizes = program.tangents.read(inputs, results)
    if untracked:
        ctx.mark_non_differentiable(
            *[results[k] for k in untracked if isinstance(results[k], Tensor)]
        )
    return outputs


def _outputs(
    program: TrainingProgram, inputs: Sequence[Tensor], results: Sequence[Any]
) -> tuple[Any, ...]:
    """The results that become the node's. Those that share memory and have a history of their own
    are views, which autograd does not let be written, as it is with those that a Function returns
    in eager."""
    outputs = [_no_view(result) for result in results[: program.outputs]]
    if program.windows is not None:
        for window in program.windows.at(program.windows.read(inputs, results)):
            outputs[window.output] = window.on(inputs, outputs)
    return tuple(outputs)


def _backward(ctx: Any, *tangents: Tensor | None) -> Any:
    program: TrainingProgram = ctx.program
    siblings: Siblings | None = ctx.siblings
    if siblings is not None:
        siblings.enter()
    if program.passed:
        _refuse_seen(ctx, program, siblings, tangents)
    # Raises where they were let go, or were written.
    saved = list(ctx.saved_tensors) if ctx.left is None else [k.tensor for k in ctx.left]
    done, ctx.done = ctx.done, None
    if not torch.is_grad_enabled():
        before = ctx.passed if siblings is None else ctx.passed | siblings.passed
        passed, wanted = program.remaining(before, tangents if done is None else done, ctx.own)
        call = ctx.call if program.repeats else None
        if not _keeps_graph():
            if siblings is not None:
                siblings.leave(passed)
            ctx.passed = passed
            ctx.left = (
                None if wanted is None else [_Left(t, k in wanted) for k, t in enumerate(saved)]
            )
            ctx.call = None if wanted is None else ctx.call
        ctx.maybe_clear_saved_tensors()
        if done is not None:
            return None, None, None, *program.no_gradients()
        asked = program.asked_for(ctx)
        gradients = program.backward(saved, tangents, ctx.sizes, call, asked)
        program.learn(tangents, asked)
        return None, None, None, *gradients
    return (
        None,
        None,
        None,
        *program.backward_with_history(ctx.call, tangents, ctx.sizes, program.asked_for(ctx)),
    )


def _refuse_seen(
    ctx: Any, program: TrainingProgram, siblings: Siblings | None, tangents: Sequence[Tensor | None]
) -> None:
    hooks = hooks_if_seen(ctx)
    seen = {*hooks.retained, *(position for table, position in hooks.tensor if table)}
    given = {k for k, tangent in enumerate(tangents) if tangent is not None}
    if siblings is not None:
        seen, given = siblings.together(seen, given)
    if seen:
        program.refuse_seen(seen, given)


class _Graph(torch.autograd.Function):
    forward = staticmethod(_native.node_forward)
    backward = staticmethod(_backward)


def is_of_program(node: Any) -> bool:
    """Whether a node of autograd's graph is the history of a TrainingProgram's outputs. It has the
    `program`, `sizes`, `saved_tensors`, `left` (None unless some of these have been let go), and
    `done`, to be set before it is passed with no gradients to tell that another program has taken
    those of the outputs for which there is something else than None."""
    return isinstance(node, _Node)


class _Rebased(torch.autograd.Function):
    """Makes a tensor that was written the result of what wrote it, of which `value` is the result
    in autograd's eyes. A view hands on what it knows to what it is a view of."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, value: Tensor) -> Tensor:  # type: ignore[override]
        ctx.mark_dirty(tensor)
        ctx.set_materialize_grads(False)
        ctx.is_view = tensor._is_view()
        return tensor

    @staticmethod
    def backward(ctx: Any, tangent: Tensor | None) -> Any:  # type: ignore[override]
        if tangent is None or not (ctx.is_view and ctx.needs_input_grad[0]):
            return None, tangent
        # of None, autograd would make None for the rest of the base as well
        return torch.zeros_like(tangent), tangent


def _rebase(tensor: Tensor, value: Tensor) -> None:
    version = tensor._version  # which counts the program's write already
    _Rebased.apply(tensor, value)
    unsafe_set_version_counter((tensor,), (version,))


def _refuse_unwritable(tensor: Tensor) -> None:
    """Raises autograd's error for a view that must not be written where gradients are recorded."""
    if not tensor._is_view():
        return
    made = get_creation_meta(tensor)
    leaf = tensor.requires_grad and tensor._base is not None and tensor._base.is_leaf
    if leaf or made != CreationMeta.DEFAULT:
        tensor.as_strided((0,), (1,)).zero_()


_Node: Any = backward_class(_Graph)
# until a backward, or somebody who looks on, says otherwise
_Node.passed, _Node.left, _Node.done = 0, None, None
_Node.siblings, _Node.own = None, -1
# the engine calls it, and would be told by `BackwardCFunction.apply` which it is
_Node.apply = _native.node_backward

_apply = super(torch.autograd.Function, _Graph).apply  # type: ignore[misc]
"""What `_Graph.apply` comes to where no transform of torch.func is active, which guards see to."""

_native.join_autograd(_apply, _forward, _backward, Call, UNCHANGED, places_of_hooks)
