"""Calls of torch functions that are alike amount to the same ops: those after the first are written
down, not run.

`Results` has the results of calls during capture, `Repeats` the nodes of calls during a trace. Both
know a call by its key (`call_keys.py`), and repeat it only if it changed nothing but what is noted.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.fx
from torch.fx import Node

from ingot.graph.call_keys import FakeSpec, extend_key
from ingot.graph.fake_context import FakeContext
from ingot.graph.fakes import FakeTensor, look_of, storage_key
from ingot.graph.functional import Storage, Tracked
from ingot.graph.nodes import fake_result
from ingot.graph.schemas import node_name
from ingot.origins import trusts_function
from ingot.sequences import map_leaves
from ingot.torch_private import DisableTorchDispatch

if TYPE_CHECKING:
    from ingot.graph.aten_tracer import AtenTracer

_ABOUT_LOOKS = frozenset(
    {"is_complex", "is_contiguous", "is_floating_point", "is_same_size", "is_signed"}
)
"""Questions whose answer follows from how tensors lie, and of what type they are."""

_LOOK = attrgetter("look")

_TRUSTED = ("torch._tensor", "torch.functional", "torch.nn.functional")


def is_torchs(target: Any) -> bool:
    """Whether a function is one of torch's or of `operator`, so that nothing but its arguments and
    modes decide what it does. Methods are known by their names."""
    if type(target) is types.FunctionType:
        return target.__module__ in _TRUSTED and trusts_function(target)
    return type(target) in (str, types.BuiltinFunctionType, types.MethodDescriptorType)


def _call_key(
    start: list[Any], args: Sequence[Any], kwargs: Mapping[str, Any], fakes: list[FakeTensor]
) -> list[Any] | None:
    """The key of a call of one of torch's functions, that begins with `start`. Its tensors are
    added to `fakes`. None where such calls are not known to be alike."""
    target = start[0]
    if not is_torchs(target) or torch.is_grad_enabled():
        return None
    key = [*start, len(args)]
    if not extend_key(args, key, fakes):
        return None
    if kwargs and not extend_key(chain(*kwargs.items()), key, fakes):
        return None
    return key


class Results:
    """The results of calls in one capture, by call key: one of their tensors, a new one like
    another, or the answer to a question."""

    def __init__(self, context: FakeContext) -> None:
        self.context = context
        self._results: dict[Any, int | FakeSpec | _Answer] = {}

    def run(
        self,
        target: Any,
        modes: Any,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """The result of a call under some modes."""
        fakes: list[FakeTensor] = []
        key = _call_key([target, modes, torch.get_default_dtype()], args, kwargs, fakes)
        if key is not None and not fakes:
            key.append(torch.get_default_device())
        if key is None or not self._are_disjoint(fakes, key):
            with self.context:
                return function(*args, **kwargs)
        known = self._results.get(signature := tuple(key))
        if isinstance(known, int):
            torch.autograd.graph.increment_version(fakes[known])
            return fakes[known]
        if known is not None:
            if isinstance(known, _Answer):
                return known.result
            return known.new()
        before = self._state(), list(map(_LOOK, fakes))
        versions = [fake._version for fake in fakes]
        with self.context:
            result = function(*args, **kwargs)
        if (self._state(), list(map(_LOOK, fakes))) == before:
            written = []
            for k, fake in enumerate(fakes):
                if fake._version != versions[k]:
                    written.append(k)
            answer = _learnt(target, result, fakes, written)
            if answer is not None:
                self._results[signature] = answer
        return result

    def _are_disjoint(self, fakes: list[FakeTensor], key: list[Any]) -> bool:
        """Whether none is another's view; which of them are the same goes with the key."""
        if len(fakes) == 1:
            return not fakes[0].is_inference()
        places: dict[int, int] = {}
        for fake in fakes:
            place = places.setdefault(id(fake), len(places))
            key.append(place)
            if fake.is_inference():
                return False
        return len(places) <= 1 or len(set(map(storage_key, fakes))) == len(places)

    def _state(self) -> tuple[Any, ...]:
        """All that a call leaves unchanged if it need not be made again."""
        context = self.context
        return (
            context.draws,
            context.effects,
            len(context.read),
            len(context.addressed),
            *context.shapes.questions,
        )


class _Answer(NamedTuple):
    """The result of a call that makes no tensor."""

    result: bool


def _learnt(
    target: Any, result: Any, fakes: list[FakeTensor], written: list[int]
) -> int | FakeSpec | _Answer | None:
    """What the result of a call, which wrote some of its tensors, says of the next such call."""
    if written:
        for k in written:
            if fakes[k] is not result:
                return None
        return written[0]
    spec = FakeSpec.of(result, fakes)
    if spec is not None:
        return spec
    if type(result) is bool and getattr(target, "__name__", target) in _ABOUT_LOOKS:
        return _Answer(result)
    return None


@dataclass(frozen=True)
class _Argument:
    """Stands for the node of a tensor argument, or of one of the calls before."""

    number: int


class _Call(NamedTuple):
    target: Any
    args: Any
    kwargs: Any
    spec: FakeSpec
    may_raise: bool


class _Write(NamedTuple):
    """A tensor argument, the node of its new value, and how often it was written."""

    argument: int
    node: int
    times: int


class _Repeat(NamedTuple):
    """The nodes that a call was recorded as, which are counted from the tensor arguments on.

    `result` is the number of an argument, or of the node that the result is the value of; `version`
    is that of a new result.
    """

    calls: list[_Call]
    writes: list[_Write]
    result: int
    version: int


class Repeats:
    """The calls of one trace, by call key. Once a mode is set, none is known."""

    def __init__(self, tracer: AtenTracer) -> None:
        self.tracer = tracer
        self._repeats: dict[Any, _Repeat | None] = {}

    def run(
        self,
        target: Any,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """The result of a call, which is recorded."""
        fakes: list[FakeTensor] = []
        key = arguments = None
        if self.tracer.region is None:
            key = _call_key([target], args, kwargs, fakes)
        if key is not None and fakes:
            arguments = self._arguments(fakes, key)
        if key is None or arguments is None:
            result = function(*args, **kwargs)
            if type(result) not in (FakeTensor, tuple, list):
                self._repeats.clear()
            return result
        repeat = self._repeats.get(signature := tuple(key))
        if repeat is not None:
            return self._repeated(repeat, arguments)
        before = self._state()
        nodes = list(map(self.tracer.node_of, arguments))
        versions = []
        for t in arguments:
            versions.append(t.storage.version)
        result = function(*args, **kwargs)
        if signature not in self._repeats:
            self._repeats[signature] = self._learnt(before, arguments, nodes, versions, result)
        return result

    def _arguments(self, fakes: list[FakeTensor], key: list[Any]) -> list[Tracked] | None:
        """The distinct tensors; which of them are the same, and which are inputs, goes with the
        key. None where one is a view, or may share memory with another."""
        places: dict[int, int] = {}
        arguments: list[Tracked] = []
        storages = set[int]()
        for fake in fakes:
            place = places.setdefault(id(fake), len(places))
            if place == len(arguments):
                tracked = self.tracer.tracked(fake)
                storage = tracked.storage
                if not _is_whole(tracked) or storage.overlaps or fake.is_inference():
                    return None
                if id(storage) in storages:
                    return None
                arguments.append(tracked)
                storages.add(id(storage))
                key.append(storage.position is None)
            key.append(place)
        return arguments

    def _state(self) -> tuple[Any, ...]:
        """The last node, and all that a call leaves unchanged if it can be repeated."""
        tracer = self.tracer
        return tracer.graph._root.prev, len(tracer.constants), *tracer.context.shapes.questions

    def _learnt(
        self,
        before: tuple[Any, ...],
        arguments: list[Tracked],
        nodes: list[Node],
        versions: list[int],
        result: Any,
    ) -> _Repeat | None:
        """What the nodes since `before` say of the next such call; None where they do not say all
        of it."""
        if type(result) is not FakeTensor or self._state()[1:] != before[1:]:
            return None
        if len(set(nodes)) < len(nodes):
            return None
        places = {node: _Argument(k) for k, node in enumerate(nodes)}
        fakes = [t.fake for t in arguments]
        calls = self._calls(before[0].next, places, fakes)
        if calls is None:
            return None
        writes = self._writes(arguments, nodes, versions, places)
        if writes is None:
            return None
        for k, argument in enumerate(arguments):
            if argument.fake is result:
                return _Repeat(calls, writes, k, 0)
        tracked = self.tracer.tracked(result)
        place = None
        if _is_whole(tracked):
            place = places.get(self.tracer.node_of(tracked))
        if place is None or place.number < len(arguments) or result.requires_grad:
            return None
        if look_of(fakes[place.number]) != look_of(result):
            return None
        return _Repeat(calls, writes, place.number, tracked.storage.version)

    def _calls(
        self, node: Node, places: dict[Node, _Argument], fakes: list[FakeTensor]
    ) -> list[_Call] | None:
        """The nodes from one on, as calls. They are added to `places`, their values to `fakes`."""
        calls = []
        while node is not self.tracer.graph._root:
            value = fake_result(node)
            spec = FakeSpec.of(value, fakes)
            if spec is None or node.op != "call_function":
                return None
            if not node.meta.keys() <= _UNDERSTOOD_META:
                return None
            if not places.keys() >= set(node.all_input_nodes):
                return None
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), places.__getitem__)  # type: ignore[arg-type]
            calls.append(_Call(node.target, args, kwargs, spec, "may_raise" in node.meta))
            places[node] = _Argument(len(places))
            fakes.append(value)
            node = node.next
        return calls

    def _writes(
        self,
        arguments: list[Tracked],
        nodes: list[Node],
        versions: list[int],
        places: dict[Node, _Argument],
    ) -> list[_Write] | None:
        writes = []
        for k, (tracked, version) in enumerate(zip(arguments, versions)):
            node = self.tracer.node_of(tracked)
            if tracked.storage.version != version:
                if node not in places:
                    return None
                times = tracked.storage.version - version
                writes.append(_Write(k, places[node].number, times))
            elif node is not nodes[k]:
                return None
        return writes

    def _repeated(self, repeat: _Repeat, arguments: list[Tracked]) -> FakeTensor:
        tracer = self.tracer
        nodes: list[Any] = list(map(tracer.node_of, arguments))
        fakes = [tracked.fake for tracked in arguments]

        def node_of(leaf: Any) -> Any:
            if type(leaf) is _Argument:
                return nodes[leaf.number]
            return leaf

        with DisableTorchDispatch():
            fakes += [call.spec.new() for call in repeat.calls]
        for fake, call in zip(fakes[len(arguments) :], repeat.calls):
            target = call.target
            node = tracer.graph.create_node("call_function", target, name=node_name(target))
            node.args = map_leaves(node_of, call.args)
            if call.kwargs:
                node.kwargs = map_leaves(node_of, call.kwargs)
            node.meta.update(val=fake, where=tracer.where)
            if tracer.module:
                node.meta["module"] = tracer.module
            if call.may_raise:
                node.meta["may_raise"] = True
            nodes.append(node)
        for k, index, times in repeat.writes:
            tracked = arguments[k]
            tracked.storage.version += times
            for alias in (tracked, tracked.base):
                alias.node, alias.version = nodes[index], tracked.storage.version
            torch.autograd.graph.increment_version(tracked.fake)
        result, node = fakes[repeat.result], nodes[repeat.result]
        if repeat.result >= len(arguments):
            storage = Storage(version=repeat.version)
            tracer.track(result, Tracked(result, storage, node, repeat.version))
        return result


def _is_whole(tracked: Tracked) -> bool:
    """Whether a fake is its base, in its base's geometry."""
    while tracked.parent is not None:
        if tracked.view is None or tracked.view.op is not None:
            return False
        tracked = tracked.parent
    return True


_UNDERSTOOD_META = frozenset(("val", "where", "module", "may_raise"))
