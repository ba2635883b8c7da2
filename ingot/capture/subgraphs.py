"""Functions that become graphs of their own: the branches and loops that data decide.

In goes a call of a function of the program's, which may run or not, or many times; out comes a
`Subgraph`, the nodes of that call. Whatever else the call would do refuses it: nothing is as it was
before where a function that may not run has been captured.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, fx

from ingot.capture.values.base import LazyValue, Raised, Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.containers import DictValue
from ingot.capture.values.functions import GeneratorValue
from ingot.capture.values.numbers import NumberValue
from ingot.capture.values.relations import RelationValue
from ingot.capture.values.sequences import ListValue, TupleValue
from ingot.capture.values.tensor import SymIntValue, TensorValue
from ingot.errors import EagerRaises
from ingot.graph.ambient import Modes
from ingot.graph.differentiation import gradients_of
from ingot.graph.fakes import FakeTensor, storage_key
from ingot.graph.nodes import fake_result
from ingot.torch_private import (
    grad_increment_nesting,
    peek_interpreter_stack,
)

if TYPE_CHECKING:
    from ingot.capture.session import Session


node_of, fake_of = attrgetter("fx_node"), attrgetter("fake")
_VERSION = attrgetter("_version")


class Subgraph(NamedTuple):
    """What was captured of a call: its nodes, its arguments where they are new ones, and what it
    gives, as a tree of tensors."""

    nodes: list[fx.Node]
    arguments: Sequence[TensorValue]
    result: Value
    tensors: list[TensorValue]

    @property
    def reads(self) -> dict[fx.Node, None]:
        """The nodes before it that it reads, in order."""
        inside = {*self.nodes, *map(node_of, self.arguments)}
        reads: dict[fx.Node, None] = {}
        for node in self.nodes:
            reads.update(dict.fromkeys(node.all_input_nodes))
        reads.update(dict.fromkeys(map(node_of, self.tensors)))
        for node in inside:
            reads.pop(node, None)
        return reads


def subgraph_of(
    session: Session,
    function: Value,
    args: Sequence[Value],
    arguments: Sequence[TensorValue] = (),
) -> Subgraph:
    """The subgraph of a call of `function`, where the `arguments` among `args` stand for others.

    Raises Unsupported for a call that does more than to compute new tensors.
    """
    recorder = session.graph
    recorder.modes.reach(recorder.graph, session.where)
    before, watch = recorder.last, _Watch(session, [function, *args], arguments)
    try:
        result = session.deep(session.call(session.realize(function), list(args), {}))
    except (Raised, EagerRaises) as error:
        raise refused(session, "raises an error") from error
    watch.require_nothing_done()
    nodes, tensors = _nodes(recorder.nodes_since(before)), leaves(session, result)
    subgraph = Subgraph(nodes, arguments, result, tensors)
    _require_new(session, subgraph)
    return subgraph


def _nodes(recorded: Iterable[fx.Node]) -> list[fx.Node]:
    """Those of a subgraph among the nodes that were recorded meanwhile.

    Integers that do not depend on it stay outside: values that know their nodes may be used there.
    """
    nodes: dict[fx.Node, None] = {}
    for node in recorded:
        is_integer = isinstance(node.meta.get("val"), (int, torch.SymInt))
        if node.op != "placeholder" and not (
            is_integer and nodes.keys().isdisjoint(node.all_input_nodes)
        ):
            nodes[node] = None
    return list(nodes)


def refused(session: Session, what: str) -> Exception:
    return session.unsupported("control-flow", f"a branch or a loop of which a function {what}")


def leaves(session: Session, value: Value) -> list[TensorValue]:
    """The tensors of a tree of lists, tuples and dicts. Raises Unsupported for another value."""
    return list(_leaves(session, value))


def _leaves(session: Session, value: Value) -> Iterator[TensorValue]:
    if isinstance(value, TensorValue) and value.cls is Tensor and not value.attributes:
        yield value
    elif isinstance(value, (ListValue, TupleValue)) and value.cls in (list, tuple):
        for item in value.items:
            yield from _leaves(session, item)
    elif isinstance(value, DictValue) and value.cls is dict:
        for item in value.entries.values():
            yield from _leaves(session, item)
    else:
        raise refused(session, f"gives {value.describe()}")


def look_of_tree(value: Value) -> Any:
    """What trees of tensors have in common that are put together in the same way."""
    if isinstance(value, (ListValue, TupleValue)):
        return value.cls, tuple(map(look_of_tree, value.items))
    if isinstance(value, DictValue):
        return tuple(value.entries), tuple(map(look_of_tree, value.entries.values()))
    return None


def with_leaves(value: Value, tensors: Iterable[TensorValue]) -> Value:
    """The same tree with other tensors."""
    remaining = iter(tensors)

    def copied(part: Value) -> Value:
        if isinstance(part, ListValue):
            return ListValue(map(copied, part.items), list)
        if isinstance(part, TupleValue):
            return TupleValue(map(copied, part.items), tuple)
        if isinstance(part, DictValue):
            return DictValue(zip(part.entries, map(copied, part.entries.values())), dict)
        return next(remaining)

    return copied(value)


def _require_new(session: Session, subgraph: Subgraph) -> None:
    """Refuses results that are what was there before, or views of it or of each other."""
    memory = set()
    for node in (*subgraph.reads, *map(node_of, subgraph.arguments)):
        fake = fake_result(node)
        if isinstance(fake, FakeTensor):
            memory.add(storage_key(fake))
        elif not isinstance(fake, (int, torch.SymInt)):
            raise refused(session, "reads what is no tensor")
    for tensor in subgraph.tensors:
        if tensor.fx_node not in subgraph.nodes or storage_key(tensor.fake) in memory:
            raise refused(session, "gives back what was there before")
        memory.add(storage_key(tensor.fake))


def read_by(
    session: Session, decider: fx.Node, subgraphs: Sequence[Subgraph]
) -> tuple[list[fx.Node], list[fx.Node]]:
    """The nodes of tensors and of integers that subgraphs read. Raises Unsupported where there is
    no code for what they do together."""
    tensors: dict[fx.Node, None] = {}
    integers: dict[fx.Node, None] = {}
    devices = set[torch.device]()
    for subgraph in subgraphs:
        for node in subgraph.reads:
            is_tensor = isinstance(fake_result(node), Tensor)
            (tensors if is_tensor else integers)[node] = None
        for node in (*subgraph.nodes, *tensors):
            fake = fake_result(node)
            if isinstance(fake, Tensor):
                devices.add(fake.device)
    if session.graph.autograd:
        _require_torchs(session, subgraphs)
    elif len(devices | {fake_result(decider).device} - {torch.device("cpu")}) > 1:
        raise refused(session, "computes on several devices")
    return list(tensors), list(integers)


_OF_TRANSFORMS = frozenset({gradients_of, grad_increment_nesting, torch.autograd.grad})


def _require_torchs(session: Session, subgraphs: Iterable[Subgraph]) -> None:
    """Refuses what torch's own operators, which other backends are given, do not take."""
    for subgraph in subgraphs:
        for node in subgraph.nodes:
            if node.target in _OF_TRANSFORMS:
                raise refused(session, "differentiates, for a backend of the user's")


def graph_of(
    subgraph: Subgraph, tensors: Sequence[fx.Node], integers: Sequence[fx.Node]
) -> fx.GraphModule:
    """The graph of a subgraph, which takes its arguments, what some nodes compute, and integers."""
    graph, copies = fx.Graph(), dict[Any, Any]()
    for node in (*map(node_of, subgraph.arguments), *tensors, *integers):
        copies[node] = graph.placeholder(node.name)
        copies[node].meta.update(val=node.meta["val"], where=node.meta["where"])
    for node in subgraph.nodes:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(map(copies.__getitem__, map(node_of, subgraph.tensors))))
    return fx.GraphModule(torch.nn.Module(), graph)


def take_out(session: Session, subgraphs: Iterable[Subgraph]) -> None:
    """Takes the nodes of subgraphs out of the graph, in which the later ones stand behind."""
    for subgraph in reversed(list(subgraphs)):
        for node in reversed(subgraph.nodes):
            session.graph.graph.erase_node(node)


# -- nothing else is done --------------------------------------------------------------------------


class _Watch:
    """What a call may not change: what it may not have done can be seen by comparing."""

    def __init__(
        self, session: Session, roots: Sequence[Value], arguments: Sequence[TensorValue]
    ) -> None:
        self.session, self.roots, self.changed = session, roots, list(session.effects.values())
        self.mark, self.modes = session.effects.mark(), Modes.now()
        self.entered_at = session.graph.modes.entered_at
        self.counts = self._counts()
        fakes = list(map(fake_of, arguments))
        for fake in _fakes(session):
            if not fake.is_inference():  # which have no version
                fakes.append(fake)
        self.versions = dict(zip(fakes, map(_VERSION, fakes)))
        self.wrote, session.graph.writes = session.graph.writes, False
        self.contents = _contents(session, self.roots, self.changed)
        if peek_interpreter_stack() is not None:
            raise refused(session, "is called inside of a transform")

    def _counts(self) -> tuple[int, ...]:
        session, context = self.session, self.session.graph.context
        return (
            context.draws,
            context.effects,
            len(context.written),
            len(context.shapes.unbacked.roots),
            sum(map(_stands, session.suspended)),
            len(session.graph.replaced),
            session.graph.modes.depth,
        )

    def require_nothing_done(self) -> None:
        session = self.session
        if session.effects.since(self.mark) != 0 or self._counts() != self.counts:
            raise refused(session, "has effects, or draws random numbers")
        for fake, version in self.versions.items():
            if fake._version != version:
                raise refused(session, "writes what was there before")
        recorder = session.graph
        if recorder.writes and torch.is_inference_mode_enabled():
            raise refused(session, "writes tensors of inference mode")
        recorder.writes |= self.wrote
        for fake in _fakes(session):  # one from outside may have been met inside first
            is_known = fake in self.versions or fake.is_inference()
            if fake.is_outside and not is_known and fake._version:
                raise refused(session, "writes what was there before")
        if Modes.now() != self.modes or session.graph.modes.entered_at != self.entered_at:
            raise refused(session, "sets a mode")
        session.graph.modes.reach(session.graph.graph, session.where)
        if _contents(session, self.roots, self.changed) != self.contents:
            raise refused(session, "changes an object that was there before")


def _stands(generator: GeneratorValue) -> bool:
    """Whether a generator waits to go on."""
    return generator.frame is not None


def _fakes(session: Session) -> list[FakeTensor]:
    """The tensors of the graph so far; those of transforms wrap others."""
    fakes = []
    for value in session.graph.by_fake.values():
        if isinstance(value.fake, FakeTensor):
            fakes.append(value.fake)
    return fakes


_IMMUTABLE = (SymIntValue, LazyValue, ConstantValue, NumberValue, RelationValue)
_OF_OUTSIDE = frozenset({"code", "namespace", "object", "source"})
"""Fields that hold what the call does not change, or only by way of effects."""


def _contents(session: Session, roots: Sequence[Value], changed: Sequence[Value]) -> dict[int, Any]:
    """What the objects hold that were made during the call and that some values lead to.

    `changed` are outside objects that may hold some. What stands for one object has one key.
    """
    contents: dict[int, Any] = {}
    stack = [*roots, *changed]
    while stack:
        value = stack.pop()
        if id(value) in contents or isinstance(value, _IMMUTABLE):
            continue
        if value.source is not None and value not in changed:
            continue
        if isinstance(value, GeneratorValue):
            raise refused(session, "reaches a generator")
        held = []
        for name, content in _fields(value):
            if isinstance(value, TensorValue) and name != "attributes":
                continue
            held.append(_flat(content, stack))
        contents[id(value)] = held
    return contents


def _fields(value: Value) -> Iterator[tuple[str, Any]]:
    """The fields of a value, and what they hold."""
    for cls in type(value).__mro__:
        names = vars(cls).get("__slots__", ())
        for name in (names,) if isinstance(names, str) else names:
            if name not in _OF_OUTSIDE:
                yield name, getattr(value, name, None)
    yield from getattr(value, "__dict__", {}).items()


def _flat(content: Any, stack: list[Value]) -> Any:
    """What a field holds, to be compared; values in it go on the stack."""
    if isinstance(content, Value):
        stack.append(content)
        return id(content.source or content)
    if isinstance(content, dict):
        content = (*map(id, content), *content.values())
    if isinstance(content, (list, tuple, set, frozenset)):
        return list(map(_flat, content, repeat(stack)))
    if isinstance(content, (int, str)):
        return content
    return id(content)
