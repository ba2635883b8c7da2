"""Calls of torch functions that are alike amount to the same ops: those after the first are written
down, not run."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.fx

from ingot.graph.call_keys import FakeSpec, extend_key
from ingot.graph.fake_context import FakeContext
from ingot.graph.fakes import FakeTensor, look_of, storage_key
from ingot.graph.functional import Storage, Tracked
from ingot.graph.schemas import node_name
from ingot.origins import trusts_function
from ingot.torch_private import DisableTorchDispatch

if TYPE_CHECKING:
    from ingot.graph.aten_tracer import AtenTracer

_ABOUT_LOOKS = frozenset(
    {"is_complex", "is_contiguous", "is_floating_point", "is_same_size", "is_signed"}
)
"""Questions whose answer follows from how tensors lie, and of what type they are."""

_TRUSTED = ("torch._tensor", "torch.functional", "torch.nn.functional")


def is_torchs(target: Any) -> bool:
    """Whether a function is one of torch's or of `operator`, so that nothing but its arguments and
    modes decide what it does. Methods are known by their names."""
    if type(target) is types.FunctionType:
        return target.__module__ in _TRUSTED and trusts_function(target)
    return type(target) in (str, types.BuiltinFunctionType, types.MethodDescriptorType)


class Results:
    """What calls gave in one capture, by what tells them apart: one of their tensors, a new one
    like another, or the answer to a question."""

    def __init__(self, context: FakeContext) -> None:
        self.context = context
        self._known: dict[Any, int | FakeSpec | _Answer] = {}

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
        key: list[Any] = [target, modes, torch.get_default_dtype(), len(args)]
        told = is_torchs(target) and not torch.is_grad_enabled() and extend_key(args, key, fakes)
        told = told and (not kwargs or extend_key(chain(*kwargs.items()), key, fakes))
        if not fakes:
            key.append(torch.get_default_device())
        if not told or not self._are_apart(fakes, key):
            with self.context:
                return function(*args, **kwargs)
        known = self._known.get(signature := tuple(key))
        if isinstance(known, int):
            torch.autograd.graph.increment_version(fakes[known])
            return fakes[known]
        if known is not None:
            return known.result if isinstance(known, _Answer) else known.new()
        before, versions, looks = (
            self._state(),
            [fake._version for fake in fakes],
            [fake.look for fake in fakes],
        )
        with self.context:
            result = function(*args, **kwargs)
        changed = [k for k, fake in enumerate(fakes) if fake._version != versions[k]]
        if self._state() == before and [fake.look for fake in fakes] == looks:
            made = FakeSpec.of(result, fakes)
            if made is not None and not changed:
                self._known[signature] = made
            elif changed and all(fakes[k] is result for k in changed):
                self._known[signature] = changed[0]
            elif (
                not changed
                and type(result) is bool
                and getattr(target, "__name__", target) in _ABOUT_LOOKS
            ):
                self._known[signature] = _Answer(result)
        return result

    def _are_apart(self, fakes: list[FakeTensor], key: list[Any]) -> bool:
        """Whether none is another's view; which of them are one goes with the key."""
        if len(fakes) == 1:
            return not fakes[0].is_inference()
        found: dict[int, int] = {}
        for fake in fakes:
            place = found.setdefault(id(fake), len(found))
            key.append(place)
            if fake.is_inference():
                return False
        return len(found) <= 1 or len({storage_key(fake) for fake in fakes}) == len(found)

    def _state(self) -> tuple[Any, ...]:
        """What a call that need not be made again leaves as it is."""
        context = self.context
        return (
            context.draws,
            context.effects,
            len(context.read),
            len(context.addressed),
            *context.shapes.questions,
        )


class _Answer(NamedTuple):
    """What a call gave that makes no tensor."""

    result: bool


class _Argument(NamedTuple):
    """Stands for the node of a tensor that is given, or of one of the calls before."""

    number: int


class _Call(NamedTuple):
    target: Any
    args: Any
    kwargs: Any
    made: FakeSpec
    may_raise: bool


class _Repeat(NamedTuple):
    """What a call was recorded as. Nodes are counted from the distinct tensors that were given
    on."""

    calls: list[_Call]
    # a tensor that was given, the node of its new value, how often it was written
    written: list[tuple[int, int, int]]
    result: int  # which of the tensors that were given it is, or the node that it is the value of
    version: int  # of a new result


class Repeats:
    """The calls of one trace, by what tells them apart. A mode that is set ends what is known."""

    def __init__(self, recorder: AtenTracer) -> None:
        self.recorder = recorder
        self._known: dict[Any, _Repeat | None] = {}

    def run(
        self,
        target: Any,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """The result of a call, which is recorded."""
        fakes: list[FakeTensor] = []
        key: list[Any] = [target, len(args)]
        told = is_torchs(target) and not torch.is_grad_enabled() and self.recorder.region is None
        told = told and extend_key(args, key, fakes)
        told = told and (not kwargs or extend_key(chain(*kwargs.items()), key, fakes))
        given = self._given(fakes, key) if told and fakes else None
        if given is None:
            result = function(*args, **kwargs)
            if type(result) not in (FakeTensor, tuple, list):
                self._known.clear()
            return result
        known = self._known.get(signature := tuple(key))
        if known is not None:
            return self._repeated(known, given)
        before = self._state()
        nodes = [self.recorder.node_of(t) for t in given]
        versions = [t.storage.version for t in given]
        result = function(*args, **kwargs)
        if signature not in self._known:
            self._known[signature] = self._learnt(before, given, nodes, versions, result)
        return result

    def _given(self, fakes: list[FakeTensor], key: list[Any]) -> list[Tracked] | None:
        """The distinct tensors; which of them are one, and which are inputs, goes with the key.
        None where one is a view, or may share memory with another."""
        found: dict[int, int] = {}
        given: list[Tracked] = []
        storages = set[int]()
        for fake in fakes:
            place = found.setdefault(id(fake), len(found))
            if place == len(given):
                tracked = self.recorder.tracked(fake)
                storage = tracked.storage
                if (
                    not _is_whole(tracked)
                    or storage.overlaps
                    or id(storage) in storages
                    or fake.is_inference()
                ):
                    return None
                given.append(tracked)
                storages.add(id(storage))
                key.append(storage.position is None)
            key.append(place)
        return given

    def _state(self) -> tuple[Any, ...]:
        """The last node, and what a call that is to be repeated leaves as it is."""
        recorder = self.recorder
        return (
            recorder.graph._root.prev,
            len(recorder.constants),
            *recorder.context.shapes.questions,
        )

    def _learnt(
        self,
        before: tuple[Any, ...],
        given: list[Tracked],
        nodes: list[torch.fx.Node],
        versions: list[int],
        result: Any,
    ) -> _Repeat | None:
        """What the nodes since `before` say of the next such call; None where they do not say all
        of it."""
        recorder = self.recorder
        if (
            type(result) is not FakeTensor
            or self._state()[1:] != before[1:]
            or len(set(nodes)) < len(nodes)
        ):
            return None
        places = {node: _Argument(k) for k, node in enumerate(nodes)}
        fakes = [t.fake for t in given]
        calls, node = [], before[0].next
        while node is not recorder.graph._root:
            value = node.meta["val"]
            made = FakeSpec.of(value, fakes)
            others = all(n in places for n in node.all_input_nodes)
            if (
                made is None
                or not others
                or node.op != "call_function"
                or not node.meta.keys() <= _SAID
            ):
                return None
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), places.__getitem__)
            calls.append(_Call(node.target, args, kwargs, made, "may_raise" in node.meta))
            places[node] = _Argument(len(places))
            fakes.append(value)
            node = node.next
        written = []
        for k, (tracked, version) in enumerate(zip(given, versions)):
            node = recorder.node_of(tracked)
            if tracked.storage.version != version:
                if node not in places:
                    return None
                written.append((k, places[node].number, tracked.storage.version - version))
            elif node is not nodes[k]:
                return None
        for k, tracked in enumerate(given):
            if tracked.fake is result:
                return _Repeat(calls, written, k, 0)
        tracked = recorder.tracked(result)
        if not _is_whole(tracked) or (place := places.get(recorder.node_of(tracked))) is None:
            return None
        if (
            place.number < len(given)
            or result.requires_grad
            or look_of(fakes[place.number]) != look_of(result)
        ):
            return None
        return _Repeat(calls, written, place.number, tracked.storage.version)

    def _repeated(self, known: _Repeat, given: list[Tracked]) -> FakeTensor:
        recorder = self.recorder
        nodes: list[Any] = [recorder.node_of(tracked) for tracked in given]
        fakes = [tracked.fake for tracked in given]
        with DisableTorchDispatch():
            fakes += [call.made.new() for call in known.calls]
        for fake, (target, args, kwargs, _, may_raise) in zip(fakes[len(given) :], known.calls):
            node = recorder.graph.create_node("call_function", target, name=node_name(target))
            node.args = _filled(args, nodes)
            if kwargs:
                node.kwargs = _filled(kwargs, nodes)
            node.meta.update(val=fake, where=recorder.where)
            if may_raise:
                node.meta["may_raise"] = True
            nodes.append(node)
        for k, index, times in known.written:
            tracked = given[k]
            tracked.storage.version += times
            for alias in (tracked, tracked.base):
                alias.node, alias.version = nodes[index], tracked.storage.version
            torch.autograd.graph.increment_version(tracked.fake)
        result = fakes[known.result]
        if known.result >= len(given):
            recorder.track(
                result,
                Tracked(result, Storage(version=known.version), nodes[known.result], known.version),
            )
        return result


def _is_whole(tracked: Tracked) -> bool:
    """Whether a fake is all of what it is a view of, as it lies there."""
    while tracked.parent is not None:
        if tracked.view is None or tracked.view.op is not None:
            return False
        tracked = tracked.parent
    return True


_SAID = frozenset(("val", "where", "may_raise"))


def _filled(tree: Any, nodes: Sequence[torch.fx.Node]) -> Any:
    if type(tree) is _Argument:
        return nodes[tree.number]
    if isinstance(tree, (list, tuple)):
        return type(tree)([_filled(item, nodes) for item in tree])
    if isinstance(tree, dict):
        return {k: _filled(v, nodes) for k, v in tree.items()}
    return tree
