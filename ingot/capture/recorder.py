"""The graph of a capture: torch functions and Tensor methods as FX nodes, run on fakes as they are
recorded."""

from __future__ import annotations

import builtins
import cmath
import itertools
import keyword
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx

from ingot.capture.answers import is_believable, unbelievable
from ingot.capture.facts import overlapping
from ingot.capture.guards import Kind, Quantity
from ingot.capture.modes import ModeTracker
from ingot.capture.operations import (
    Traits,
    check_result,
    is_computed,
    is_of_tensors,
    is_to_write,
    traits,
    versions_of,
)
from ingot.capture.size_marks import marks_of
from ingot.capture.sources import Source
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.tensor import SymIntValue, TensorValue, result_value
from ingot.errors import EagerRaises, Unsupported, unsupported
from ingot.graph.ambient import AUTOCAST_DEVICES
from ingot.graph.composites import apart
from ingot.graph.fake_context import FakeContext
from ingot.graph.fakes import FakeTensor, storage_key
from ingot.graph.known_tensors import KnownTensors
from ingot.graph.meta import tensors_in
from ingot.graph.repeats import Results
from ingot.graph.shape_context import Bounds
from ingot.reasons import BREAK, SKIP, STATIC
from ingot.torch_private import DisableTorchDispatch, LazyGraphModule

if TYPE_CHECKING:
    from ingot.capture.session import Session


@dataclass(frozen=True)
class GraphInput:
    """A placeholder of the captured graph: where its tensor or integer is loaded from, and the fake
    tensor or SymInt that stands for it."""

    source: Source
    fake: Any


class _Input(NamedTuple):
    """An input, the tensor of this call, and its placeholder."""

    entry: GraphInput
    value: torch.Tensor
    node: fx.Node


class Part(NamedTuple):
    """A part of the graph that becomes a graph of its own: the node before it, and its
    arguments."""

    before: fx.Node
    tangents: list[TensorValue]


def fake_of(leaf: Any) -> Any:
    """What runs in place of a tensor or symbolic integer."""
    if isinstance(leaf, SymIntValue):
        return leaf.current
    return leaf.fake


class GraphRecorder:
    """Builds the FX graph. `dynamic` makes the sizes of argument tensors symbolic (None: those that
    are marked or seen to vary; False: none); `autograd` says that the graph will run on real
    tensors, where gradients are recorded as in eager."""

    def __init__(self, context: FakeContext, dynamic: bool | None, autograd: bool = False) -> None:
        self.context, self.dynamic, self.autograd = context, dynamic, autograd
        self.graph = fx.Graph()
        self.inputs: list[_Input] = []
        self.integers: dict[fx.Node, GraphInput] = {}
        self._numbers: set[Source] = set()
        self.writes = False
        self.marked: list[Quantity] = []  # the dimensions that are marked to be symbols
        self.speculative: list[Quantity] = []  # those that are, as they may vary
        self.steps = 0
        self._inside_opaque = False
        self.modes = ModeTracker()
        self.in_one_piece = False  # whether it may not be broken
        # by id of the real tensor, which `inputs` keeps alive
        self._tensors: dict[int, TensorValue] = {}
        self._values: dict[fx.Node, torch.Tensor] = {}  # the real tensors, by placeholder
        self._parameters: set[str] = set()  # the names of placeholders
        self.by_fake: dict[int, TensorValue] = {}
        self._first: fx.Node | None = None
        self._results = Results(context)
        self.known = KnownTensors(context)
        # called with the tensors that an operation is about to write
        self.write_checks: list[Callable[[Session, list[Any]], None]] = []

    # -- inputs ------------------------------------------------------------------------------------

    def input(self, session: Session, tensor: torch.Tensor, source: Source) -> TensorValue:
        """The value of a tensor from outside, guarded; one that is met again on another path is the
        same value."""
        known = self._tensors.get(id(tensor))
        if known is not None:
            assert known.source is not None
            session.guard(source, Kind.SAME, known.source)
            return known
        dims, bounds = self._symbolic_dims(session, tensor, source)
        name, where = source.name, session.where
        try:
            fake = self.context.fake(tensor, dims, name, bounds)
        except Unsupported as reason:
            action = STATIC if dims else BREAK  # no guard tells of symbols yet
            raise session.unsupported(
                reason.why.id, f"{name}: {reason.reason}", action=action
            ) from None
        if dims:
            expr = self.context.shapes.to_expr
            sizes, strides = [expr(s) for s in fake.shape], [expr(s) for s in fake.stride()]
            session.guards.add_tensor(source, tensor, where, sizes, strides)
        else:
            session.guards.add_tensor(source, tensor, where)
        node = self._placeholder(name, fake, where)
        made = self._tensors[id(tensor)] = TensorValue(fake, node, source, type(tensor))
        self.by_fake[id(fake)] = made
        self.inputs.append(_Input(GraphInput(source, fake), tensor, node))
        self._values[node] = tensor
        return made

    def number(self, session: Session, tensor: torch.Tensor, source: Source) -> TensorValue:
        """The value of a tensor that is made of a number from outside, as an input; nobody writes
        it."""
        self._numbers.add(source)
        return self.input(session, tensor, source)

    def _symbolic_dims(
        self, session: Session, tensor: torch.Tensor, source: Source
    ) -> tuple[frozenset[int], dict[int, Bounds]]:
        """The dimensions whose sizes are to be symbols, and the bounds of those that are marked."""
        if self.dynamic is False:
            return frozenset(), {}
        marks = marks_of(tensor)
        if not (marks or self.dynamic or session.symbols or session.speculative is not None):
            return frozenset(), {}
        sizes = [Quantity(source, "size", d) for d in range(tensor.dim())]
        seen = {size.dim for size in sizes if size in session.symbols}
        if session.is_given(source):
            if self.dynamic:
                seen.update(range(tensor.dim()))
            elif session.speculative is not None and not isinstance(tensor, torch.nn.Parameter):
                for size in sizes:
                    is_free = size.dim not in seen and size.dim not in marks
                    if is_free and session.speculative.includes(size):
                        self.speculative.append(size)
                        seen.add(size.dim)
        bounds = {d: mark for d, mark in marks.items() if mark is not None}
        self.marked += [Quantity(source, "size", d) for d in bounds]
        return frozenset(seen - marks.keys() | bounds.keys()), bounds

    def integer(self, session: Session, number: int, source: Source) -> SymIntValue:
        """The value of an int from outside that varies from call to call."""
        symbol, fake = self.context.shapes.integer(number, source.name)
        session.guards.bind(symbol, Quantity(source, "value"), session.where)
        node = self._placeholder(source.name, fake, session.where)
        self.integers[node] = GraphInput(source, fake)
        return SymIntValue.of_node(fake, node)

    def _placeholder(self, name: str, fake: Any, where: str) -> fx.Node:
        """A node for an input, with a name unlike those of the others."""
        name = made = _identifier(name)
        number = itertools.count(1)
        while made in self._parameters:
            made = f"{name}_{next(number)}"
        self._parameters.add(made)
        with self.graph.inserting_before(self._first_operation()):
            node = self.graph.placeholder(made)
        node.meta.update(val=fake, where=where)
        return node

    def _first_operation(self) -> fx.Node:
        """The node before which inputs are declared: the graph's root as long as there is no
        operation."""
        if self._first is None:
            self._first = next((n for n in self.graph.nodes if n.op != "placeholder"), None)
        return self._first or self.graph._root

    # -- operations --------------------------------------------------------------------------------

    def call(
        self, session: Session, op: str, target: Any, args: Arguments, kwargs: Keywords
    ) -> Value:
        """Runs a torch function (`op` "call_function") or Tensor method ("call_method") on fakes
        and records it as one node. What gives no tensor and no symbolic integer is not recorded:
        the result is known."""
        self.steps += 1
        if self.known.sizes and target in _TAKE_SIZES:
            args = (*args[:1], *[_Sized(a, self.known) for a in args[1:]])
        self.context.shapes.where = session.where
        about = traits(target)
        fakes = [a.fake if type(a) is TensorValue else _given(a, fake_of) for a in args]
        named = {k: _given(v, fake_of) for k, v in kwargs.items()}
        if about.name == "storage_offset" and fakes and isinstance(fakes[0], FakeTensor):
            self.context.address(fakes[0])
        checks, effects = len(self.context.shapes.unbacked.checks), self.context.effects
        result, has_written = self._run_assuming(session, op, target, fakes, named)
        if self._inside_opaque:
            check_result(session, result)
        writes = has_written or self._inside_opaque or about.writes
        writes = writes or bool(kwargs) and is_to_write(kwargs)
        if self.context.effects > effects:
            self._act(session, about.name, result)
        elif not writes:
            if not is_believable(about.name, result, lambda: bool(tensors_in((fakes, named)))):
                raise unbelievable(session, op, about.name, result)
            if not is_computed(result):
                return self._known_answer(session, result, checks)
        if writes:
            self._note_written(session, args, kwargs)
        session.protects = session.protects or session.handles_errors
        return self._record(session, op, target, about, args, kwargs, result)

    def _run_assuming(
        self, session: Session, op: str, target: Any, fakes: list[Any], named: dict[str, Any]
    ) -> tuple[Any, bool]:
        """What an operation gives for fakes, and whether a Python function has written one. What it
        asks of sizes that the data decide is assumed: it asks again when the graph is traced."""
        unbacked = self.context.shapes.unbacked
        self.context.read.clear()
        versions = None
        if type(target) is FunctionType:
            versions = versions_of(fakes)
        unbacked.assumes = True
        try:
            result = self._run(session, op, target, fakes, named)
        finally:
            unbacked.assumes = False
        return result, versions is not None and versions != versions_of(fakes)

    def _note_written(self, session: Session, args: Arguments, kwargs: Keywords) -> None:
        """Before an operation is recorded that writes an argument."""
        for check in self.write_checks:
            check(session, [t for a in (*args, *kwargs.values()) for t in _leaves(a)])
        if args and torch.is_autocast_cache_enabled():
            _refuse_cached(session, args[0])
        self.writes = True

    def _record(
        self,
        session: Session,
        op: str,
        target: Any,
        about: Traits,
        args: Arguments,
        kwargs: Keywords,
        result: Any,
    ) -> Value:
        """The value of an operation's result, which becomes a node."""
        where = self.context.shapes.where
        if self.modes.differs:
            self.modes.reach(self.graph, where)
        read = self.context.read
        if read:
            node_of = self._number_or_node
        else:
            node_of = self.node_of
        nodes = tuple(
            [_given(a, node_of) if type(a) is not TensorValue or read else a.fx_node for a in args]
        )
        node = self.graph.create_node(op, target, name=about.node_name)
        node.args = nodes  # not given above, where sizes would be looked for in them, for long
        if kwargs:
            node.kwargs = {k: _given(v, node_of) for k, v in kwargs.items()}
        node.meta.update(val=result, where=where)
        if type(result) is not FakeTensor:
            return result_value(session, result, node)
        made = self.by_fake.get(id(result))
        if made is None:
            made = self.by_fake[id(result)] = TensorValue(result, node)
        return made

    def _known_answer(self, session: Session, result: Any, checks: int) -> Value:
        """The value of what needs no node. `checks` is how many there were before."""
        found = self.context.shapes.unbacked.checks
        if len(found) > checks:
            raise session.unsupported(
                "data-decided-size", f"{found[-1]} is asked, which the data decide"
            )
        return result_value(session, result, None)

    def _act(self, session: Session, name: str, result: Any) -> None:
        """Before an operation is recorded that may do something beside its results: it does so
        where the program would have it done."""
        if not is_of_tensors(result):
            raise session.unsupported(
                "effectful-op", f"{name} gives what is no tensor, which depends on what it does"
            )
        if session.handles_errors:
            raise session.unsupported(
                "effectful-op",
                f"{name} may have an effect, and raise an error that the function handles",
            )
        if session.effects.are_seen:
            raise session.unsupported(
                "effectful-op",
                f"{name} may have an effect, behind what is printed, warned of or logged",
            )

    def _run(
        self, session: Session, op: str, target: Any, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        try:
            function = apart(target if op == "call_function" else getattr(type(args[0]), target))
            if self._inside_opaque:
                with self.context:
                    result = function(*args, **kwargs)
            elif target is torch.tensor and self.autograd:  # which warns where the graph runs
                with warnings.catch_warnings(action="ignore"):
                    result = self._results.run(target, self.modes.changes, function, args, kwargs)
            else:
                result = self._results.run(target, self.modes.changes, function, args, kwargs)
            self.known.note(target, function, args, kwargs, result)
            return result
        except Unsupported as reason:
            reason.why = reason.why.at(session.where)
            raise
        except (
            RuntimeError,
            ValueError,
            TypeError,
            IndexError,
            AssertionError,
            AttributeError,
            OverflowError,
        ) as error:
            if isinstance(target, str):
                name = target
            else:
                name = getattr(target, "__name__", target)
            ours = isinstance(error, NotImplementedError) or any(
                part in str(error) for part in _OURS
            )
            sentence = f"{name} raises {type(error).__name__}: {error}"
            if ours:
                raise unsupported("op-fails", sentence, session.where) from error
            raise EagerRaises(sentence, session.where) from error

    def node_of(self, leaf: Any) -> Any:
        """The node of a tensor or symbolic integer, or the number that guards say the latter is."""
        if not isinstance(leaf, SymIntValue):
            return leaf.fx_node
        if isinstance(leaf.current, int):
            return leaf.current
        return leaf.node(self)

    def _number_or_node(self, leaf: Any) -> Any:
        """The same where an operation has asked for the numbers in some tensors, which it is
        given."""
        numbers = [number for fake, number in self.context.read if fake is leaf.fake]
        if numbers:
            return numbers[0]
        return self.node_of(leaf)

    def tensor(self, fake: torch.Tensor, make_node: Callable[[], fx.Node]) -> TensorValue:
        """The value of a result. An operation that gives back its argument gives the same value."""
        known = self.by_fake.get(id(fake))
        if known is None:
            known = self.by_fake[id(fake)] = TensorValue(fake, make_node())
        return known

    def item(self, node: fx.Node, index: int, value: Any) -> fx.Node:
        """The node of an element of a result that is a tuple."""
        made = self.graph.call_function(operator.getitem, (node, index))
        made.meta.update(val=value, where=node.meta["where"])
        return made

    def require(
        self, session: Session, target: Callable[..., Any], *sizes: SymIntValue | int
    ) -> None:
        """Adds a call that has a relation of sizes checked, unless it is known to hold."""
        self.context.shapes.where = session.where
        # Now, since a size that is checked to be some number is that number afterwards.
        nodes = tuple([self.node_of(s) if isinstance(s, SymIntValue) else s for s in sizes])
        unbacked = self.context.shapes.unbacked
        unbacked.assumes = True
        try:
            target(*[fake_of(s) if isinstance(s, SymIntValue) else s for s in sizes])
        finally:
            unbacked.assumes = False
        node = self.graph.call_function(target, nodes)
        node.meta.update(val=None, where=session.where)

    def switch(self, session: Session, function: Callable[..., Any], *args: Any) -> fx.Node:
        """Adds a call that changes the state of the thread, whose result is no tensor."""
        node = self.graph.call_function(function, args)
        node.meta.update(val=None, where=session.where)
        return node

    # -- the backward of a function that has its own -----------------------------------------------

    @property
    def last(self) -> fx.Node:
        """The last node so far; the graph's root where there is none."""
        return self.graph._root.prev

    def begin_part(self, session: Session, outputs: Sequence[TensorValue]) -> Part:
        """Begins a part of the graph that becomes a graph of its own; its arguments are the
        tangents of some tensors."""
        self.modes.reach(self.graph, session.where)
        before = self.last
        tangents = []
        for output in outputs:
            like = output.fake
            with DisableTorchDispatch():
                fake = FakeTensor(
                    torch.empty(like.shape, dtype=like.dtype, device="meta"), like.device
                )
            node = self.graph.call_function(_tangent)
            node.meta.update(val=fake, where=session.where)
            tangents.append(TensorValue(fake, node))
        return Part(before, tangents)

    def end_part(
        self, session: Session, begun: Part, results: Sequence[TensorValue | None]
    ) -> tuple[fx.GraphModule, list[fx.Node]]:
        """Takes the nodes since `begin_part` out of the graph: that of the `results`, which takes
        what it needs of the nodes before, and then the tangents; and those nodes."""
        self.modes.reach(self.graph, session.where)
        nodes, tangents = self.nodes_since(begun.before), begun.tangents
        inside = set(nodes)
        roots = [result.fx_node for result in results if result is not None]
        needed = [n for node in nodes for n in node.all_input_nodes] + roots
        kept = [n for n in dict.fromkeys(needed) if n not in inside]
        part, copies = fx.Graph(), dict[fx.Node, fx.Node]()
        for node in (*kept, *(t.fx_node for t in tangents)):
            copies[node] = part.placeholder(node.name)
            copies[node].meta.update(val=node.meta["val"], where=session.where)
        for node in nodes[len(tangents) :]:
            copies[node] = part.node_copy(node, lambda n: copies[n])
        part.output(tuple(None if r is None else copies[r.fx_node] for r in results))
        self.drop_part(session, begun)
        tensors = [*(n.meta["val"] for n in kept), *(t.fake for t in tangents)]
        if not all(isinstance(t, FakeTensor) for t in tensors):
            raise session.unsupported("inner-gradients", "a backward that reads what is no tensor")
        return fx.GraphModule(torch.nn.Module(), part), kept

    def drop_part(self, session: Session, begun: Part) -> None:
        """Takes the nodes since `begin_part` out of the graph."""
        self.modes.reach(self.graph, session.where)
        for node in reversed(self.nodes_since(begun.before)):
            self.graph.erase_node(node)
        self._first = None

    def nodes_since(self, before: fx.Node) -> list[fx.Node]:
        """The nodes behind one of them."""
        nodes = [before]
        while nodes[-1].next is not self.graph._root:
            nodes.append(nodes[-1].next)
        return nodes[1:]

    def give_history(
        self,
        session: Session,
        target: Callable[..., Any],
        inputs: Sequence[TensorValue],
        outputs: Sequence[TensorValue],
        kept: Sequence[fx.Node],
    ) -> None:
        """Adds a node with a backward of its own, which takes the three: from here on the outputs
        are what it gives."""
        self.modes.reach(self.graph, session.where)
        fakes = [[v.fake for v in values] for values in (inputs, outputs)]
        fakes.append([node.meta["val"] for node in kept])
        result = self._run(session, "call_function", target, fakes, {})
        nodes = [[v.fx_node for v in values] for values in (inputs, outputs)]
        node = self.graph.call_function(target, (*nodes, list(kept)))
        node.meta.update(val=result, where=session.where)
        for k, output in enumerate(outputs):
            output.fx_node = self.item(node, k, output.fake)

    @contextmanager
    def opaque(self) -> Iterator[None]:
        """Inside, operations belong to a function that is one node. Where the graph is traced, and
        the function with it, tensors that are not its arguments would become constants: they are
        refused."""
        self._inside_opaque, self.context.outside_is_refused = True, not self.autograd
        try:
            yield
        finally:
            self._inside_opaque = self.context.outside_is_refused = False

    def value_of(self, tensor: TensorValue) -> torch.Tensor:
        """The real tensor of this call behind an input."""
        return self._values[tensor.fx_node]

    def guard_memory(self, session: Session) -> None:
        """States how the inputs share memory, when an operation may write one, or its `.grad` is
        set: which are apart, and which lie where in one storage."""
        if not self.writes:
            return
        pairs = overlapping([known.value for known in self.inputs])
        for i, j in pairs:
            (other, its_tensor, _), (entry, tensor, _) = self.inputs[i], self.inputs[j]
            if any(isinstance(s, torch.SymInt) for e in (entry, other) for s in e.fake.shape):
                raise session.unsupported(
                    "symbolic-memory",
                    f"{entry.source.name} and {other.source.name} overlap, are written, and are "
                    "symbolic",
                )
            # by way of an array, say
            if tensor.untyped_storage()._cdata != its_tensor.untyped_storage()._cdata:
                raise session.unsupported(
                    "op-writes",
                    f"{entry.source.name} and {other.source.name} share memory that is written, "
                    "and have two storages",
                )
            distance = tensor.data_ptr() - its_tensor.data_ptr()
            session.guard(other.source, Kind.SAME_STORAGE, (entry.source, distance))
            session.guard(other.source, Kind.DISTINCT, entry.source)
        later = {j for _, j in pairs}
        sources = [known.entry.source for j, known in enumerate(self.inputs) if j not in later]
        apart = [source for source in sources if source not in self._numbers]
        if len(apart) > 1:
            session.guards.add(None, Kind.TENSOR_DISJOINT, (tuple(apart), ()), session.where)

    def guard_places(self, session: Session) -> None:
        """States where inputs lie in their memory, and how much that is, when it was addressed from
        its beginning."""
        for entry, tensor, _ in self.inputs:
            if storage_key(entry.fake) in self.context.addressed:
                session.guard(entry.source, Kind.TENSOR_OFFSET, tensor.storage_offset())
                session.guard(entry.source, Kind.TENSOR_MEMORY, tensor.untyped_storage().nbytes())

    # -- the end -----------------------------------------------------------------------------------

    def finish(
        self, outputs: list[TensorValue | SymIntValue]
    ) -> tuple[fx.GraphModule, list[GraphInput]]:
        """The finished graph, whose output is the tuple of `outputs`, and its inputs; placeholders
        without a use are dropped."""
        self.modes.close(self.graph)
        self.graph.output(
            tuple(v.node(self) if isinstance(v, SymIntValue) else self.node_of(v) for v in outputs)
        )
        entries = {known.node: known.entry for known in self.inputs} | self.integers
        first = self._first_operation()
        for node in entries:
            if not node.users:
                self.graph.erase_node(node)
            elif node in self.integers:  # they come after the tensors
                first.prepend(node)
        used = [entries[node] for node in self.graph.nodes if node.op == "placeholder"]
        if self.autograd:
            _write_out_numbers(self.graph)
        # Ingot itself reads the graph; one that is run has its code at once, as the lazy call would
        # run global hooks.
        make = LazyGraphModule
        if self.autograd:
            make = fx.GraphModule
        return make(torch.nn.Module(), self.graph), used


def _write_out_numbers(graph: fx.Graph) -> None:
    """Complex numbers that are not finite become calls: torch.fx writes them as names, `infj`."""
    for node in list(graph.nodes):

        def written(argument: Any, node: fx.Node = node) -> Any:
            if not isinstance(argument, complex) or cmath.isfinite(argument):
                return argument
            with graph.inserting_before(node):
                made = graph.call_function(complex, (argument.real, argument.imag))
            made.meta.update(val=argument, where=node.meta.get("where", ""))
            return made

        node.args = fx.node.map_aggregate(node.args, written)
        node.kwargs = fx.node.map_aggregate(node.kwargs, written)


class _Sized(Value):
    """An argument in which tensors stand for the sizes that they are known to hold."""

    __slots__ = ("known", "value")

    def __init__(self, value: Value, known: KnownTensors) -> None:
        super().__init__()
        self.value, self.known = value, known

    def argument(self, leaf: Callable[[Value], Any]) -> Any:
        def sized(value: Value) -> Any:
            found = None
            if isinstance(value, TensorValue):
                found = self.known.sizes.get(id(value.fake))
            return leaf(value if found is None else found[1])

        return self.value.argument(sized)


_TAKE_SIZES = frozenset(
    {
        "view",
        "reshape",
        "expand",
        "repeat",
        "new_zeros",
        "new_ones",
        "new_empty",
        "new_full",
        operator.getitem,
    }
)
"""Methods and functions that take sizes behind a tensor."""


def _leaves(value: Value) -> list[Any]:
    """The tensors and symbolic integers in an argument."""
    found: list[Any] = []
    value.argument(found.append)
    return found


def _given(value: Value, leaf: Callable[[Any], Any]) -> Any:
    """The argument of an operation that a value is."""
    if type(value) is ConstantValue:
        return value.object
    return value.argument(leaf)


def _tangent() -> None:
    """Stands for an argument of a part of the graph."""


def _identifier(name: str) -> str:
    made = _NO_LETTER.sub("_", name).strip("_") or "input"
    if made in _RESERVED:
        return f"{made}_"
    if made.isidentifier():
        return made
    return f"input_{made}"


_RESERVED = frozenset({"self", "torch", "device", "inf", "nan", "NoneType", "fx_pytree", "pytree"})
_RESERVED |= {*dir(builtins), *keyword.kwlist}
"""Names that mean something else in the code of a graph."""

_NO_LETTER = re.compile(r"\W")


_OURS = (  # errors of torch's own kernels that are given fakes, or symbols
    "SymIntArrayRef expected to contain only concrete integers",
    "data is not allocated yet",
)


def _refuse_cached(session: Session, written: Value) -> None:
    """Autocast keeps what it has cast of a parameter, whatever is written to it later, until it
    ends."""
    casts = any(map(torch.is_autocast_enabled, AUTOCAST_DEVICES))
    if (
        casts
        and isinstance(written, TensorValue)
        and written.fake.requires_grad
        and written.fake.is_leaf
    ):
        reason = f"{written.describe()} is written under autocast, which may have cast it before"
        raise session.unsupported("mode", reason, action=SKIP)
