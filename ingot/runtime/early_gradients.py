"""Gradients that leave a backward before its end, for those who wait for single ones.

`DistributedDataParallel` communicates a bucket of gradients as soon as it has all of them, by hooks
behind the nodes that accumulate. A backward that is one node of autograd's would give it all at the
end. So where such hooks are, the node of a call leads to others, its *links*: the node runs the
program until the first gradients are there, and gives these; each link lets it go on. The engine
runs what accumulates, and the hooks behind it, between them.

All gradients still are the node's own as well. It gives them itself, and the links nothing, where a
backward is not as usual: with `create_graph=True`, for some inputs alone, or without a program that
stops.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from ingot.native import _native
from ingot.runtime.node_hooks import has_hooks_behind
from ingot.runtime.tangents import Backward, CompiledBackward
from ingot.sequences import at
from ingot.torch_private import DisableTorchDispatch, DisableTorchFunction, backward_class

if TYPE_CHECKING:
    from ingot.runtime.training import TrainingProgram

LEAST_BYTES = 64 << 10
"""Of gradients that somebody waits for: for less, a link costs more than it gains."""

PART_BYTES = 1 << 20
"""Of a part: as many as the first bucket of DistributedDataParallel, or an eighth of all if that is
less."""

_MOST_PARTS = 8  # of few bytes
_KEPT_PLACES = frozenset(("output", "library", "own"))  # of memory that a gradient may keep

_PLAIN = (Tensor, torch.nn.Parameter)

Row = tuple[Any, ...]


class Part(NamedTuple):
    """A part of a run, which ends before a step and then gives some of the program's outputs. They
    are the gradients at these places of its group of inputs."""

    end: int
    outputs: tuple[int, ...]
    places: tuple[int, ...]
    size: int  # of the group


# -- when a gradient is there ----------------------------------------------------------------------


def _buffers_of(item: Row, views: Sequence[Row]) -> Iterator[int]:
    """The buffers that an item of a call shows."""
    kind, content = item
    if kind == "buffer":
        yield content
    elif kind == "view":
        yield views[content][0]
    elif kind in ("list", "tuple"):
        for part in content:
            yield from _buffers_of(part, views)


def _touched(step: Row, views: Sequence[Row]) -> Iterator[int]:
    """The buffers whose memory a step of a description reads or writes."""
    kind, first = step[:2]
    if kind == "allocate":
        yield from step[1:]
    elif kind == "kernel":
        yield from step[2]
    elif kind in ("launch", "launch parts"):
        yield from first
    elif kind == "product":
        for view in step[2]:
            yield views[view][0]
        yield from _touched(step[4], views)
    elif kind == "call":
        for item in step[2]:
            yield from _buffers_of(item, views)
        yield from (k for k in step[4] if k >= 0)
        yield from step[5]


class Ends(NamedTuple):
    """Behind which steps the memory of outputs and inputs is touched no more. An output that has to
    go with the last part has the number of all steps."""

    outputs: tuple[int, ...]
    inputs: Mapping[int, int]
    steps: int


def ends_of(description: Row) -> Ends:
    """The ends of a program's buffers, of its description (see `runtime.description`)."""
    buffers, views, steps, outputs = description[4:8]
    last: dict[int, int] = {}
    for number, step in enumerate(steps):
        for buffer in _touched(step, views):
            last[buffer] = number + 1
    inputs = {}
    for number, (place, _, _, _, position, *_) in enumerate(buffers):
        if place == "input":
            inputs[position] = last.get(number, 0)
    ends = []
    for kind, number in outputs:
        end = len(steps)
        if kind != "int":
            buffer = number if kind == "buffer" else views[number][0]
            if buffers[buffer][0] in _KEPT_PLACES:
                end = last.get(buffer, end)
        ends.append(end)
    return Ends(tuple(ends), inputs, len(steps))


def _program_of(run: Backward | None) -> Any:
    """The native program whose `consume` runs a backward; None for another one."""
    program = getattr(run, "__self__", None)
    if isinstance(program, _native.Program) and run == program.consume:
        return program
    return None


# -- who waits for gradients -----------------------------------------------------------------------


def _awaited(inputs: Sequence[Any], positions: Iterable[int]) -> dict[int, int]:
    """The leaves among the inputs with hooks behind their accumulation, and the bytes of each."""
    awaited = {}
    for k in positions:
        leaf = inputs[k]
        if type(leaf) not in _PLAIN or not leaf.is_leaf or not leaf.requires_grad:
            continue
        hooks = leaf._post_accumulate_grad_hooks
        if hooks or has_hooks_behind(get_gradient_edge(leaf).node):
            awaited[k] = leaf.nbytes
    return awaited


def links_for(program: TrainingProgram, inputs: Sequence[Any]) -> Links | None:
    """The links of calls with inputs like these; None where nobody gains by them.

    Compiles the backward, which tells when its gradients are there.
    """
    with DisableTorchFunction(), DisableTorchDispatch():
        awaited = _awaited(inputs, program.gradient_inputs)
    total = sum(awaited.values())
    if total < LEAST_BYTES:
        return None
    compiled = program.compiled_whole()
    native = _program_of(compiled.run)
    if native is None:
        return None
    ends = ends_of(native.description)
    by_input = _ends_by_input(program, compiled, ends, {})
    part_bytes = min(PART_BYTES, total // _MOST_PARTS)
    groups: list[tuple[int, ...]] = []
    group: list[int] = []
    waiting = 0
    for k in sorted(by_input, key=by_input.__getitem__):
        ends_here = groups and by_input[k] == by_input[groups[-1][-1]]
        if ends_here and not group:  # it is there when the part before is
            groups[-1] += (k,)
            continue
        group.append(k)
        waiting += awaited.get(k, 0)
        if waiting >= part_bytes:
            groups.append(tuple(group))
            group, waiting = [], 0
    if group:
        groups.append(tuple(group))
    if len(groups) < 2:
        return None
    return Links(program, tuple(groups), _device_of(inputs, awaited))


def _device_of(inputs: Sequence[Any], awaited: Iterable[int]) -> torch.device:
    device: torch.device = inputs[next(iter(awaited))].device
    return device


def _ends_by_input(
    program: TrainingProgram,
    compiled: CompiledBackward,
    ends: Ends,
    aliases: Mapping[int, Iterable[int]],
) -> dict[int, int]:
    """Behind which step each input has its gradient and may be written.

    A hook may be a step of an optimizer. So what is saved of the input, and its `aliases` among
    what is saved, must be read no more.
    """
    saved_of: dict[int, set[int]] = {}
    for place, position in enumerate(program.contract.native.saved):
        saved_of.setdefault(position, set()).add(place)
    by_input = {}
    for output, k in enumerate(compiled.gradient_inputs):
        places = saved_of.get(k, set()).union(aliases.get(k, ()))
        read = [ends.inputs.get(place, 0) for place in places]
        by_input[k] = max(ends.outputs[output], *read, 0)
    return by_input


# -- the links of a call ---------------------------------------------------------------------------


class Links:
    """The links of a program's calls: which gradients each part gives, those of `groups` of inputs.
    The first part is the node's own."""

    def __init__(
        self, program: TrainingProgram, groups: tuple[tuple[int, ...], ...], device: torch.device
    ) -> None:
        self.program, self.groups, self.device = program, groups, device
        self._parts: dict[Any, tuple[Part, ...] | None] = {}

    def make(self, inputs: Sequence[Any]) -> Tensor:
        """Makes the links of a call, the last one first. Gives the token whose history they are,
        as an argument of the node."""
        token: Tensor | None = None
        with DisableTorchFunction(), DisableTorchDispatch():
            for number in range(len(self.groups) - 1, 0, -1):
                own = [inputs[k] for k in self.groups[number]]
                token = _apply_link(number, self.device, token, *own)
        assert token is not None
        return token

    def parts(
        self, compiled: CompiledBackward, aliases: Sequence[tuple[int, int]]
    ) -> tuple[Part, ...] | None:
        """The parts of a backward, None for one that is whole.

        `aliases` are pairs of an input and the place of what is saved and shares its memory.
        """
        key = compiled.run, tuple(compiled.gradient_inputs), tuple(aliases)
        if key not in self._parts:
            self._parts[key] = self._find_parts(compiled, aliases)
        return self._parts[key]

    def _find_parts(
        self, compiled: CompiledBackward, aliases: Iterable[tuple[int, int]]
    ) -> tuple[Part, ...] | None:
        native = _program_of(compiled.run)
        if native is None:
            return None
        by_alias: dict[int, list[int]] = {}
        for k, place in aliases:
            by_alias.setdefault(k, []).append(place)
        ends = ends_of(native.description)
        by_input = _ends_by_input(self.program, compiled, ends, by_alias)
        outputs = {k: output for output, k in enumerate(compiled.gradient_inputs)}
        parts, end = [], 0
        for group in self.groups:
            places = tuple([place for place, k in enumerate(group) if k in by_input])
            inputs = at(group, places)
            end = max(end, *at(by_input, inputs), 0)
            parts.append(Part(end, tuple(at(outputs, inputs)), places, len(group)))
        parts[-1] = parts[-1]._replace(end=ends.steps)
        if parts[0].end == ends.steps:
            return None
        return tuple(parts)


class LinkedCall:
    """What a backward is told of a call with links. Once it `begin`s, `token` is the gradient that
    has the engine run these."""

    def __init__(self, links: Links, inputs: Sequence[Any]) -> None:
        self.links, self.inputs = links, inputs
        self.token: Tensor | None = None

    def aliases(self, saved: Sequence[Any], positions: Iterable[int]) -> list[tuple[int, int]]:
        """Which of the leaves at these positions share memory with what is saved: pairs of an input
        and a place among what is saved."""
        owners: dict[int, list[int]] = {}
        for k in positions:
            if self.inputs[k].is_leaf:
                owners.setdefault(_storage(self.inputs[k]), []).append(k)
        pairs = []
        for place, tensor in enumerate(saved):
            pairs += [(k, place) for k in owners.get(_storage(tensor), ())]
        return pairs

    def begin(
        self,
        compiled: CompiledBackward,
        arguments: list[Any],
        aliases: Sequence[tuple[int, int]],
    ) -> list[Tensor | None] | None:
        """Runs the first part of a backward, of the arguments of its program; the gradients of the
        first group. None where it does not go in parts."""
        parts = self.links.parts(compiled, aliases)
        if parts is None:
            return None
        run = LinkedRun(_program_of(compiled.run).begin(arguments), parts)
        first = run.part(0)
        self.token = run.token_gradient(self.links.device)
        return first


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


class LinkedRun:
    """A backward between its parts. It travels with the gradient of a token, and is dropped with it
    where the backward that runs ends in an error."""

    def __init__(self, run: Any, parts: Sequence[Part]) -> None:
        self.run, self.parts = run, parts

    def part(self, number: int) -> list[Tensor | None]:
        """The gradients of a part, by the places of its group."""
        part = self.parts[number]
        gradients: list[Tensor | None] = [None] * part.size
        results = self.run.advance(part.end, part.outputs)
        for place, gradient in zip(part.places, results):
            gradients[place] = gradient
        return gradients

    def token_gradient(self, device: torch.device) -> Tensor:
        """What has the engine call the first link."""
        with DisableTorchFunction(), DisableTorchDispatch():
            gradient = _token(device)
        gradient.ingot_run = self  # type: ignore[attr-defined]
        return gradient


def _token(device: torch.device) -> Tensor:
    return torch.empty(0, dtype=torch.float32, device=device)


class _Link(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, number: int, device: torch.device, token: Tensor | None, *own: Tensor
    ) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.number, ctx.count, ctx.is_last = number, len(own), token is None
        return _token(device)

    @staticmethod
    def backward(ctx: Any, token: Any) -> Any:  # type: ignore[override]
        return _link_backward(ctx, token)


def _link_backward(ctx: Any, token: Tensor | None) -> tuple[Any, ...]:
    run: LinkedRun | None = getattr(token, "ingot_run", None)
    if run is None:  # the node has given all gradients
        return (None,) * (3 + ctx.count)
    gradients = run.part(ctx.number)
    return None, None, None if ctx.is_last else token, *gradients


_LinkNode: Any = backward_class(_Link)
# the engine calls it; `BackwardCFunction.apply` would look up the same function
_LinkNode.apply = _link_backward

_apply_link = super(torch.autograd.Function, _Link).apply  # type: ignore[misc]
