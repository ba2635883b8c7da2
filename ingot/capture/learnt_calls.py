"""What is learnt of a module's call, to write down the calls of modules that are like it.

In: a call that was captured and did nothing but compute new tensors. Out: the facts about its
module, its nodes and its result, in terms of any module. Of another one the native walk of these
facts says whether they hold, and what its tensors are. Then it gives the values of that call.

The facts about a module are the guards whose source begins with the module's own. Nodes of another
call share the fakes of what nobody sees from outside of it. Its results are new fakes.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from operator import attrgetter
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx

from ingot.capture.guard_set import GuardSet
from ingot.capture.guards import LOST, Kind
from ingot.capture.operations import traits
from ingot.capture.size_marks import marks_of
from ingot.capture.sources import ArgSource, DerivedSource, FactSource, Source
from ingot.capture.values.base import LazyValue, Value
from ingot.capture.values.constant import LITERALS, NONE, ConstantValue
from ingot.capture.values.module import ModuleValue
from ingot.capture.values.sequences import TupleValue
from ingot.capture.values.tensor import TensorValue
from ingot.graph.ambient import Modes, preserved
from ingot.graph.call_keys import FakeSpec, extend_key
from ingot.graph.composites import override
from ingot.graph.fake_history import dependences, with_history
from ingot.graph.fakes import FakeTensor, storage_key
from ingot.graph.meta import tensors_in
from ingot.native import GuardTree
from ingot.places import Place
from ingot.sequences import at
from ingot.torch_private import (
    DisableTorchDispatch,
    OpOverload,
    len_torch_dispatch_stack,
)

if TYPE_CHECKING:
    from ingot.capture.session import Session
    from ingot.graph.fake_context import FakeContext

_LAYER = ArgSource(0, "<layer>")
"""Stands for the module in what was learnt of a call."""

_META_OF_BACKENDS = ("stack_trace", "nn_module_stack")
_META = frozenset({"val", "where", *_META_OF_BACKENDS})
"""What a node says of itself where nothing is special about it."""
_OF_SOURCES = frozenset({Kind.DISTINCT, Kind.SAME_STORAGE, Kind.TENSOR_DISJOINT})
_FAKE, _NODE = attrgetter("fake"), attrgetter("fx_node")


class Call(NamedTuple):
    """A call that is captured, and what there was before it. The first one of a class has no
    `kind`: of it only the number of instructions is learnt."""

    module: ModuleValue
    counts: tuple[int, ...]
    kind: Any = None
    tensors: Sequence[TensorValue] = ()  # among its arguments
    nodes: Sequence[fx.Node] = ()  # of these
    state: tuple[Any, ...] = ()
    last: fx.Node | None = None
    guards: int = 0
    depth: int = 0  # of its frame


class NotLearnt(Exception):
    """A call did more, or relied on more, than can be said of another one."""


def _is_understood(node: fx.Node) -> bool:
    """Whether nothing but its operands decides what a node does, and it gives tensors."""
    value, target = node.meta["val"], node.target
    fakes = value if isinstance(value, (tuple, list)) else [value]
    if node.op not in ("call_function", "call_method"):
        return False
    if not all(type(fake) is FakeTensor for fake in fakes):
        return False
    if not isinstance(target, (str, OpOverload)):
        owner = getattr(target, "__self__", None)
        is_plain = owner is None or isinstance(owner, (type, ModuleType))
        if not is_plain or _holds_objects(target):
            return False
    return extend_key((*node.args, *node.kwargs.values()), [], [])


def _read(nodes: Iterable[fx.Node]) -> Iterator[fx.Node]:
    """What nodes read of those before them, in order."""
    nodes = dict.fromkeys(nodes)
    for node in nodes:
        for operand in node.all_input_nodes:
            if operand not in nodes:
                yield operand


def _object_at(session: Session, source: Source) -> Any:
    """The outside object on a path that was used."""
    value = session._by_source.get(source)
    if isinstance(value, TensorValue) and value.fx_node in session.graph.inputs.tensors:
        return session.graph.inputs.value_of(value)
    object_ = getattr(value, "object", None)
    if object_ is None:
        raise NotLearnt
    return object_


class _Paths:
    """The sources that begin with a module's, by their places: the module's own is 0."""

    def __init__(self, module: Source) -> None:
        self.module = module
        self._places: dict[Source, int | None] = {module: 0}
        # of each place but the first: the class, the place of the base, and the other fields
        self.plan: list[tuple[type, int, tuple[Any, ...]]] = []

    def place(self, source: Source) -> int | None:
        """The place of a source; None for one that begins elsewhere."""
        if source not in self._places:
            base = getattr(source, "base", None)
            place = None if base is None else self.place(base)
            if place is not None:
                self.plan.append((type(source), place, _other_fields(source)))
                place = len(self.plan)
            self._places[source] = place
        return self._places[source]

    def of(self, module: Source) -> list[Source]:
        """The sources of another module, by their places."""
        sources = [module]
        for cls, base, fields in self.plan:
            sources.append(cls(sources[base], *fields))
        return sources


def _other_fields(source: Any) -> tuple[Any, ...]:
    """The fields of a source but its base."""
    names = source.__match_args__
    fields = tuple([getattr(source, name) for name in names[1:]])
    if names[0] != "base" or any(isinstance(field, Source) for field in fields):
        raise NotLearnt
    if isinstance(source, (DerivedSource, FactSource)) and _holds_objects(fields[0]):
        raise NotLearnt
    return fields


def _holds_objects(function: Any) -> bool:
    """Whether a function may hold something of the one module that it was made for."""
    for cell in getattr(function, "__closure__", None) or ():
        if type(cell.cell_contents) not in LITERALS:
            return True
    return not isinstance(function, (FunctionType, BuiltinFunctionType, MethodDescriptorType))


class _Fact(NamedTuple):
    """A guard of the module: the places of its source and of the one in its data.

    None where that does not begin with the module's."""

    kind: Kind
    place: int
    data: Any
    data_place: int | None
    where: str


class _Step(NamedTuple):
    """A node, with a `_Place` for each node that it reads.

    `module` is what comes behind the module's name in the path of the one whose forward runs, None
    where that begins elsewhere."""

    op: str
    target: Any
    name: str | None
    args: Any
    kwargs: Any
    value: Any
    where: Place
    module: str | None
    meta: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Place:
    """Stands for a node.

    Their numbers count the module's tensors, those among the arguments, others that were there
    before, and the steps."""

    number: int


class _New(NamedTuple):
    """How a result lies that has memory of its own.

    `dependences` are the numbers of the nodes that its history leads to, None where it has none."""

    spec: FakeSpec
    dependences: list[int] | None


class LearntCall:
    """What was learnt of a call: its nodes and its result, and then the facts that it relied on.

    Raises NotLearnt where that is not all."""

    has_facts = False

    def __init__(
        self, session: Session, call: Call, result: Value, counts: tuple[int, ...]
    ) -> None:
        self.call, self.state, self.modes = call, call.state, Modes.now()
        self.counts = tuple(map(operator.sub, counts, call.counts))
        self.paths = _Paths(call.module.source)  # type: ignore[arg-type]
        self.unused: list[int] = []  # paths that are there, and lead to what was not used
        for source in session.effects.paths:
            if not session.is_realized(source):
                place = self.paths.place(source)
                if place is not None:
                    self.unused.append(place)
        # how many facts, and known objects, there were when it ended
        self._guards, self._known = len(session.guards), session.effects.known_count
        self._take_nodes(session, result)
        self.may_raise = not all(traits(step.target).never_raises for step in self.steps)

    def find_facts(self, session: Session) -> None:
        """Finds the facts; to be called before `repeated`, when there is another call."""
        self.facts = list(self._facts(session))
        self.shared = list(self._shared(session))
        self.own = self.paths.of(_LAYER)
        self.tree = self._tree(session)
        self.has_facts = True

    # -- facts -------------------------------------------------------------------------------------

    def _facts(self, session: Session) -> Iterator[_Fact]:
        for number, guard in enumerate(itertools.islice(session.guards, self._guards)):
            place = data_place = None
            if guard.source is not None:
                place = self.paths.place(guard.source)
            elif number >= self.call.guards:
                raise NotLearnt
            if isinstance(guard.data, Source):
                data_place = self.paths.place(guard.data)
            if place is not None:
                yield _Fact(guard.kind, place, guard.data, data_place, guard.where)
            elif data_place is not None:
                raise NotLearnt

    def _shared(self, session: Session) -> Iterator[int]:
        """The places of outside objects that can be changed."""
        for source in session.effects.known_sources(self._known):
            place = self.paths.place(source)
            if place is not None:
                yield place

    def _tree(self, session: Session) -> GuardTree:
        """Says of another module whether the facts hold, and what its tensors are."""
        guards, sources = GuardSet(), self.own
        for fact in self.facts:
            kind, data = fact.kind, fact.data
            if fact.data_place is not None:
                data = sources[fact.data_place]
            elif kind is Kind.SAME:
                kind, data = Kind.IDENTITY, _object_at(session, data)
            elif kind in _OF_SOURCES:
                raise NotLearnt
            guards.add(sources[fact.place], kind, data)
        return GuardTree(guards.native_spec(at(sources, self.inputs)))

    # -- nodes -------------------------------------------------------------------------------------

    def _take_nodes(self, session: Session, result: Value) -> None:
        inputs, call, nodes = session.graph.inputs, self.call, []
        for node in session.graph.nodes_since(call.last):
            if node.op != "placeholder":
                nodes.append(node)
        if not nodes or call.nodes != list(map(_NODE, call.tensors)):
            raise NotLearnt
        arguments, outer = dict.fromkeys(call.nodes), dict.fromkeys(_read(nodes))
        self.inputs: list[int] = []  # the places of the module's tensors
        own: list[fx.Node] = []
        for node, (entry, _) in inputs.tensors.items():
            place = self.paths.place(entry.source) if node in outer else None
            if place is not None:
                self.inputs.append(place)
                own.append(node)
        if not arguments.keys().isdisjoint(own):
            raise NotLearnt
        self.arguments = [call.nodes.index(node) for node in arguments]
        self.outer = [node for node in outer if node not in arguments and node not in own]
        if not all(node in inputs.tensors for node in self.outer):
            raise NotLearnt  # what was computed elsewhere
        before = [*own, *arguments, *self.outer]
        fakes = [node.meta["val"] for node in before]
        self.lines = [node.meta["where"] for node in own]
        self.offsets = [fake.storage_offset() for fake in fakes[: len(own)]]
        numbers = {node: k for k, node in enumerate((*before, *nodes))}
        self.steps = [self._step(node, numbers) for node in nodes]
        self.results: dict[int, _New | None] = {}  # by the number of a step
        self.result = self._template(result, numbers, len(own), len(before))
        self._find_new(fakes)
        keys = list(map(storage_key, fakes[: len(own)]))
        if len(set(keys)) < len(keys) or not set(keys).isdisjoint(
            map(storage_key, fakes[len(own) :])
        ):
            raise NotLearnt

    def _step(self, node: fx.Node, numbers: dict[fx.Node, int]) -> _Step:
        if not node.meta.keys() <= _META or not _is_understood(node):
            raise NotLearnt
        where = node.meta["where"]
        if type(where) is not Place:
            where = Place(where)

        def place_of(node: fx.Node) -> Any:
            return _Place(numbers[node])

        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), place_of)  # type: ignore[misc]
        name, module = self.paths.module.name, None
        if where.module.startswith(name) and where.module[len(name) :][:1] in ("", ".", "["):
            module = where.module[len(name) :]
        meta = {key: node.meta[key] for key in _META_OF_BACKENDS if key in node.meta}
        node_name, value = traits(node.target).node_name, node.meta["val"]
        return _Step(node.op, node.target, node_name, args, kwargs, value, where, module, meta)

    def _template(self, result: Value, numbers: dict[fx.Node, int], own: int, before: int) -> Any:
        """What makes the result: a value, a _Place, or a list of these for a tuple."""
        if type(result) is ConstantValue and type(result.object) in LITERALS:
            return result
        if type(result) is TupleValue and result.source is None and result.cls is tuple:
            return [self._template(item, numbers, own, before) for item in result.items]
        if type(result) is TensorValue and not result.attributes and result.gradient is NONE:
            number = numbers.get(result.fx_node, -1)
            if own <= number < own + len(self.arguments):
                return _Place(number)
            if number >= before and result.source is None and result.cls is torch.Tensor:
                self.results[number - before] = None
                return _Place(number)
        raise NotLearnt

    def _find_new(self, before: list[FakeTensor]) -> None:
        """Finds out which results have memory of their own, how they lie there, and what they
        depend on."""
        sharers = Counter[int]()
        for step in self.steps:
            sharers.update(map(storage_key, tensors_in(step.value)))
        for number in self.results:
            fake = self.steps[number].value
            if type(fake) is not FakeTensor:
                raise NotLearnt
            spec = None
            if sharers[storage_key(fake)] == 1 and not fake.is_inference():
                spec = FakeSpec.lying_as(fake, before)
            dependences_ = None
            if spec is not None and fake.requires_grad:
                dependences_ = dependences(fake, before)
                if not dependences_:
                    spec = None
            if spec is not None:
                self.results[number] = _New(spec, dependences_)

    # -- another call ------------------------------------------------------------------------------

    def repeated(
        self, session: Session, module: ModuleValue, tensors: list[TensorValue], state: Any
    ) -> Value | None:
        """The result of a call of another module, whose nodes are added; None where it may do
        something else."""
        if state != self.state or session.steps + self.counts[0] >= session.stop_at:
            return None
        own = self.tree.collect((module.object,))
        if own is None or not self._lie_alike(session, own, at(tensors, self.arguments)):
            return None
        sources = self.paths.of(module.source)  # type: ignore[arg-type]
        if not self._are_there(session, module, sources):
            return None
        inputs, met_before = session.graph.inputs, set()
        for place, tensor in zip(self.inputs, own):
            if inputs.is_known(tensor, sources[place]):
                met_before.add(place)  # which is guarded to be that one, and nothing else of it
        for fact in self.facts:
            if fact.kind is Kind.TENSOR and fact.place in met_before:
                continue
            data = fact.data if fact.data_place is None else sources[fact.data_place]
            session.guards.add(sources[fact.place], fact.kind, data, fact.where)
        session.effects.use(lambda: self._realize(session, module, sources))
        values = []
        for place, tensor, where in zip(self.inputs, own, self.lines):
            values.append(inputs.guarded(session, tensor, sources[place], where))
        values += at(tensors, self.arguments)
        draws = session.graph.context.draws
        made = self._add_nodes(session, module, values)
        session.steps += self.counts[0]
        session.graph.steps += self.counts[1]
        session.graph.context.draws = draws + self.counts[2]
        if self.may_raise and not session.protects:
            session.protects = session.handles_errors
        return self._value(self.result, values, made)

    def _lie_alike(
        self, session: Session, own: Sequence[torch.Tensor], arguments: list[TensorValue]
    ) -> bool:
        """Whether the module's tensors are inputs as others, that share no memory with what else
        the call reads."""
        context = session.graph.context
        storages, others = set(), set(map(storage_key, map(_FAKE, arguments)))
        others.update(storage_key(node.meta["val"]) for node in self.outer)
        for tensor, offset in zip(own, self.offsets):
            if tensor.storage_offset() != offset or marks_of(tensor):
                return False
            storage = tensor.untyped_storage()._cdata
            storages.add(storage)
            if context.storage_of(storage) in others:
                return False
        return len(storages) == len(own)

    def _are_there(self, session: Session, module: ModuleValue, sources: list[Source]) -> bool:
        """Whether the module has what the other one had, and did not use."""
        for place in self.unused:
            try:
                session.effects.lazy_value(self.own[place].load((module.object,)), sources[place])
            except LOST:
                return False
        return True

    def _realize(self, session: Session, module: ModuleValue, sources: list[Source]) -> None:
        """Has outside objects known that were used, before others are changed."""
        for place in self.shared:
            object_ = self.own[place].load((module.object,))
            session.realize(LazyValue(object_, sources[place]))

    def _add_nodes(
        self, session: Session, module: ModuleValue, values: list[TensorValue]
    ) -> dict[int, TensorValue]:
        """Adds the nodes, and gives the values of those that are results, by their numbers."""
        recorder = session.graph
        nodes = [value.fx_node for value in values] + self.outer
        runs = None in self.results.values()
        fakes = [node.meta["val"] for node in nodes]
        name, made, before = module.source.name, {}, len(nodes)  # type: ignore[union-attr]
        create, map_aggregate = recorder.graph.create_node, fx.node.map_aggregate

        def node_of(leaf: Any) -> Any:
            return nodes[leaf.number] if type(leaf) is _Place else leaf

        def fake_of(leaf: Any) -> Any:
            return fakes[leaf.number] if type(leaf) is _Place else leaf

        recorder.context.shapes.where = session.where
        for number, step in enumerate(self.steps):
            if runs:
                fake = self._run(session, step, fake_of)
            else:
                fake = step.value
                if number in self.results:
                    fake = self._new(session, number, fakes[:before])
            node = create(step.op, step.target, name=step.name)
            node.args = map_aggregate(step.args, node_of)
            if step.kwargs:
                node.kwargs = map_aggregate(step.kwargs, node_of)
            where = step.where
            if step.module:
                where = Place(where, where.call, name + step.module)
            elif step.module is not None:
                where = Place(where, where.call, name)
            node.meta.update(val=fake, where=where)
            if step.meta:
                node.meta.update(self._meta(step, name))
            nodes.append(node)
            fakes.append(fake)
            if number in self.results:
                value = recorder.by_fake[id(fake)] = TensorValue(fake, node)
                made[before + number] = value
        return made

    def _run(self, session: Session, step: _Step, fake_of: Callable[[Any], Any]) -> Any:
        """What a step gives for fakes."""
        args: Any = fx.node.map_aggregate(step.args, fake_of)
        kwargs: Any = fx.node.map_aggregate(step.kwargs, fake_of)
        if step.target is operator.getitem and isinstance(args[0], (tuple, list)):
            return args[0][args[1]]
        result, _ = session.graph._run_assuming(session, step.op, step.target, [*args], kwargs)
        return result

    def _new(self, session: Session, number: int, before: list[FakeTensor]) -> FakeTensor:
        """A result like that of a step, with the history that it would have."""
        spec, needed = self.results[number]  # type: ignore[misc]
        if needed is None:
            with DisableTorchDispatch():
                return spec.new()
        inputs, context = at(before, needed), session.graph.context
        others = [None if k in needed else fake for k, fake in enumerate(before)]

        def compute(given: Sequence[FakeTensor]) -> FakeTensor:
            fakes: list[Any] = list(others)
            for k, fake in zip(needed, given):
                fakes[k] = fake
            return self._computed(context, number, fakes)

        with DisableTorchDispatch():
            return with_history(spec, compute, inputs)

    def _computed(self, context: FakeContext, number: int, fakes: list[Any]) -> FakeTensor:
        """What a step gives in the end, by all that come before it."""

        def fake_of(leaf: Any) -> Any:
            return fakes[leaf.number] if type(leaf) is _Place else leaf

        draws, active = context.draws, nullcontext() if len_torch_dispatch_stack() else context
        with active, preserved():
            self.modes.set()
            for step in self.steps[: number + 1]:
                args: Any = fx.node.map_aggregate(step.args, fake_of)
                kwargs: Any = fx.node.map_aggregate(step.kwargs, fake_of)
                target = step.target
                if step.op == "call_method":
                    target = getattr(type(args[0]), target)
                fakes.append(override(target)(*args, **kwargs))
        context.draws = draws
        return fakes[-1]  # type: ignore[no-any-return]

    def _meta(self, step: _Step, name: str) -> dict[str, Any]:
        """The meta that other backends are given, which names modules."""
        known, modules = self.paths.module.name, {}
        for path, cls in step.meta.get("nn_module_stack", {}).values():
            if path.startswith(known) and path[len(known) :][:1] in ("", ".", "["):
                path = name + path[len(known) :]
            modules[path] = path, cls
        return {**step.meta, "nn_module_stack": modules}

    def _value(
        self, template: Any, values: list[TensorValue], made: dict[int, TensorValue]
    ) -> Value:
        if type(template) is list:
            return TupleValue([self._value(item, values, made) for item in template], tuple)
        if type(template) is not _Place:
            return template
        if template.number < len(values):
            return values[template.number]
        return made[template.number]
