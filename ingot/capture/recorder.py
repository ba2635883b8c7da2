"""The graph of a capture: torch functions and Tensor methods as FX nodes, run on fakes as they are
recorded."""

from __future__ import annotations

import cmath
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import fx

from ingot.capture.answers import is_believable, unbelievable
from ingot.capture.graph_inputs import GraphInput, GraphInputs
from ingot.capture.modes import ModeTracker, add_call
from ingot.capture.node_origins import module_path, origin_of
from ingot.capture.operations import (
    Traits,
    is_computed,
    is_of_tensors,
    is_to_write,
    refused_classes,
    traits,
    versions_of,
)
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.dtensors import wrapper_object
from ingot.capture.values.node_results import result_value
from ingot.capture.values.tensor import SymIntValue, TensorValue
from ingot.capture.values.wrapper_objects import WrapperObject
from ingot.errors import EagerRaises, Unsupported, unsupported
from ingot.graph import python_random
from ingot.graph.ambient import AUTOCAST_DEVICES
from ingot.graph.composites import override
from ingot.graph.fake_context import FakeContext
from ingot.graph.fakes import FakeTensor
from ingot.graph.higher_order import with_higher_order_ops
from ingot.graph.known_tensors import KnownTensors
from ingot.graph.memory_budget import BUDGET
from ingot.graph.meta import tensors_in
from ingot.graph.repeats import Results
from ingot.graph.wrappers import is_wrapper_class, without_wrappers
from ingot.loops.side_effects import communicates
from ingot.places import Place
from ingot.reasons import SKIP
from ingot.sequences import map_leaves
from ingot.torch_private import DisableTorchDispatch, LazyGraphModule

if TYPE_CHECKING:
    from ingot.capture.session import Session


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
    """Builds the FX graph. `autograd` says that the graph will run on real tensors, where gradients
    are recorded as in eager."""

    def __init__(self, context: FakeContext, dynamic: bool | None, autograd: bool = False) -> None:
        self.context, self.autograd = context, autograd
        self.graph = fx.Graph()
        self.inputs = GraphInputs(self.graph, context, dynamic)
        self._writes = False
        self.writes_noted = 0  # how often `writes` was set
        self.data_questions = 0  # how often it was asked how a value is computed of outside tensors
        self.steps = 0
        self._inside_opaque = False
        self.modes = ModeTracker()
        self.in_one_piece = False  # whether it may not be broken
        self.budgets: list[float] = []  # of memory for what is saved, which the program asks for
        self.by_fake: dict[int, TensorValue] = {}
        # the same of instances of wrapper subclasses, which the values keep alive
        self.objects: dict[int, WrapperObject] = {}
        self._results = Results(context)
        self.known = KnownTensors(context)
        # tensors from outside whose `data` is set behind the graph, and where
        self.replaced: dict[TensorValue, int] = {}
        # called with the tensors that an operation is about to write
        self.write_checks: list[Callable[[Session, list[Any]], None]] = []

    @property
    def writes(self) -> bool:
        """Whether the graph may write what was there before it."""
        return self._writes

    @writes.setter
    def writes(self, value: bool) -> None:
        self._writes = value
        self.writes_noted += 1

    # -- operations --------------------------------------------------------------------------------

    def call(
        self, session: Session, op: str, target: Any, args: Arguments, kwargs: Keywords
    ) -> Value:
        """Runs a torch function (`op` "call_function") or Tensor method ("call_method") on fakes
        and records it as one node. What gives no tensor and no symbolic integer is not recorded:
        the result is known."""
        self.steps += 1
        if self.known.sizes:
            count = _BEFORE_SIZES.get(target, len(args))
            args = (*args[:count], *[_Sized(a, self.known) for a in args[count:]])
        self.context.shapes.where = session.where
        if self.replaced:
            self._refuse_replaced(session, args, kwargs)
        about = traits(target)
        fakes = [_argument(a, fake_of) for a in args]
        named = {}
        for k, v in kwargs.items():
            named[k] = _argument(v, fake_of)
        if about.name == "storage_offset" and fakes and isinstance(fakes[0], FakeTensor):
            self.context.address(fakes[0])
        checks, effects = len(self.context.shapes.unbacked.checks), self.context.effects
        result, has_written = self._run_assuming(session, op, target, fakes, named)
        if self._inside_opaque:
            for cls in refused_classes(result):
                raise session.unsupported(
                    "graph-function-result",
                    f"a function that is allowed in the graph gives a {cls.__name__}",
                )
        writes = has_written or self._inside_opaque or about.writes
        writes = writes or bool(kwargs) and is_to_write(kwargs)
        if self.context.effects > effects:
            if target not in python_random.OPS:
                self._act(session, target, about.name, result)
        elif not writes:
            if not is_believable(about.name, result, lambda: bool(tensors_in((fakes, named)))):
                raise unbelievable(op, about.name, result, session.where)
            if not is_computed(result):
                return self._known_answer(session, result, checks)
        if writes:
            self._note_written(session, args, kwargs)
        if not session.protects and not about.never_raises:
            session.protects = session.handles_errors
        return self._record(session, op, target, about, args, kwargs, result)

    def _run_assuming(
        self, session: Session, op: str, target: Any, fakes: list[Any], named: dict[str, Any]
    ) -> tuple[Any, bool]:
        """What an operation gives for fakes, and whether a Python function or a foreign op has
        written one. What it asks of sizes that the data decide is assumed: it asks again when the
        graph is traced."""
        unbacked = self.context.shapes.unbacked
        self.context.read.clear()
        foreign_writes = len(self.context.written)
        versions = None
        if type(target) is FunctionType:
            versions = versions_of(fakes)
        unbacked.assumes = True
        try:
            result = self._run(session, op, target, fakes, named)
        finally:
            unbacked.assumes = False
        if len(self.context.written) > foreign_writes:
            return result, True
        return result, versions is not None and versions != versions_of(fakes)

    def _refuse_replaced(self, session: Session, args: Arguments, kwargs: Keywords) -> None:
        """Breaks the graph before `data` is set of a tensor that an operation reads afterwards."""
        leaves: list[Any] = []
        for value in (*args, *kwargs.values()):
            value.argument(leaves.append)
        for leaf in leaves:
            if leaf in self.replaced:
                sentence = f"side effect: Tensor.data of {leaf.describe()} is set, which is read"
                raise session.unsupported("tensor-side-effect", sentence, step=self.replaced[leaf])

    def _note_written(self, session: Session, args: Arguments, kwargs: Keywords) -> None:
        """Before an operation is recorded that writes an argument."""
        for check in self.write_checks:
            leaves: list[Any] = []
            for value in (*args, *kwargs.values()):
                value.argument(leaves.append)
            check(session, leaves)
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
        where = Place(self.context.shapes.where, about.name, module_path(session))
        if self.modes.differs:
            self.modes.reach(self.graph, where)
        node_of = self.node_of
        if self.context.read:
            node_of = self._number_or_node
        nodes = tuple([_argument(a, node_of) for a in args])
        named = {k: _argument(v, node_of) for k, v in kwargs.items()}
        node = self.graph.create_node(op, target, name=about.node_name)
        node.args = nodes  # create_node would search them for symbolic sizes, which takes long
        if named:
            node.kwargs = named
        if self.autograd:
            node.meta.update(origin_of(session))
        if type(result) is not FakeTensor:
            node.meta.update(val=without_wrappers(result), where=where)
            return result_value(session, result, node)
        node.meta.update(val=result, where=where)
        value = self.by_fake.get(id(result))
        if value is None:
            value = self.by_fake[id(result)] = TensorValue(result, node)
        return value

    def _known_answer(self, session: Session, result: Any, checks: int) -> Value:
        """The value of what needs no node. `checks` is how many there were before."""
        new_checks = self.context.shapes.unbacked.checks[checks:]
        if new_checks:
            raise session.unsupported(
                "data-decided-size", "a size is asked for, which the data decide"
            )
        return result_value(session, result, None)

    def _act(self, session: Session, target: Any, name: str, result: Any) -> None:
        """Before an operation is recorded that may do something beside its results: it does so
        where the program would have it done. Nobody can tell whether a rank warns first, or
        communicates."""
        if not is_of_tensors(result):
            raise session.unsupported(
                "effectful-op", f"{name} gives what is no tensor, which depends on what it does"
            )
        if session.handles_errors:
            raise session.unsupported(
                "effectful-op",
                f"{name} may have an effect, and raise an error that the function handles",
            )
        if session.effects.are_seen(but_for_warnings=communicates(target)):
            raise session.unsupported(
                "effectful-op",
                f"{name} may have an effect, behind what is printed, warned of or logged",
            )

    def _run(
        self, session: Session, op: str, target: Any, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        try:
            function = override(target if op == "call_function" else getattr(type(args[0]), target))
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
            name = getattr(target, "__name__", target)
            sentence = f"{name} raises {type(error).__name__}: {error}".replace("FakeT", "T")
            is_of_fakes = any(map(str(error).__contains__, _ERRORS_OF_FAKES))
            if is_of_fakes or isinstance(error, NotImplementedError):
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
        numbers = []
        for fake, number in self.context.read:
            if fake is leaf.fake:
                numbers.append(number)
        if numbers:
            return numbers[0]
        return self.node_of(leaf)

    def tensor(self, fake: torch.Tensor, make_node: Callable[[], fx.Node]) -> Value:
        """The value of a result. An operation that gives back its argument gives the same value."""
        if is_wrapper_class(type(fake)):
            return self._object(fake, make_node)
        known = self.by_fake.get(id(fake))
        if known is None:
            known = self.by_fake[id(fake)] = TensorValue(fake, make_node())
        return known

    def _object(self, fake: torch.Tensor, make_node: Callable[[], fx.Node]) -> WrapperObject:
        known = self.objects.get(id(fake))
        if known is None:
            content = TensorValue(fake, make_node())
            known = self.objects[id(fake)] = wrapper_object(type(fake), content)
        return known

    def known_value(self, fake: torch.Tensor) -> Value | None:
        """The value of a fake, or of a wrapper around fakes; None for one that is new."""
        return self.by_fake.get(id(fake)) or self.objects.get(id(fake))

    def item(self, node: fx.Node, index: int, value: Any) -> fx.Node:
        """The node of an element of a result that is a tuple."""
        where = node.meta["where"]
        return add_call(self.graph, operator.getitem, (node, index), where, without_wrappers(value))

    def require(
        self, session: Session, target: Callable[..., Any], *sizes: SymIntValue | int
    ) -> None:
        """Adds a call that has a relation of sizes checked, unless it is known to hold."""
        self.context.shapes.where = session.where
        # Now, since a size that is checked to be some number is that number afterwards.
        nodes = _of_sizes(sizes, self.node_of)
        unbacked = self.context.shapes.unbacked
        unbacked.assumes = True
        try:
            target(*_of_sizes(sizes, fake_of))
        finally:
            unbacked.assumes = False
        add_call(self.graph, target, nodes, session.where)

    def switch(self, session: Session, function: Callable[..., Any], *args: Any) -> fx.Node:
        """Adds a call that changes the state of the thread, whose result is no tensor."""
        return add_call(self.graph, function, args, session.where)

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
            node = add_call(self.graph, _tangent, (), session.where, fake)
            tangents.append(TensorValue(fake, node))
        return Part(before, tangents)

    def end_part(
        self, session: Session, begun: Part, results: Sequence[TensorValue | None]
    ) -> tuple[fx.GraphModule, list[fx.Node]]:
        """Takes the nodes since `begin_part` out of the graph, as a graph of the `results`.

        That takes what it needs of the nodes before, which are given as well, and then the
        tangents."""
        self.modes.reach(self.graph, session.where)
        nodes, tangents = self.nodes_since(begun.before), begun.tangents
        reads = dict[fx.Node, None]()
        for node in nodes:
            reads |= dict.fromkeys(node.all_input_nodes)
        roots = []
        for result in results:
            roots.append(getattr(result, "fx_node", None))
        reads |= dict.fromkeys(filter(None, roots))
        inside = set(nodes)
        outer_nodes = [node for node in reads if node not in inside]
        inputs = outer_nodes + [tangent.fx_node for tangent in tangents]
        graph, copies = fx.Graph(), dict[Any, Any]({None: None})
        for node in inputs:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta.update(val=node.meta["val"], where=session.where)
        for node in nodes[len(tangents) :]:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(tuple(map(copies.__getitem__, roots)))
        self.drop_part(session, begun)
        if not all(isinstance(node.meta["val"], FakeTensor) for node in inputs):
            raise session.unsupported("inner-gradients", "a backward that reads what is no tensor")
        return fx.GraphModule(torch.nn.Module(), graph), outer_nodes

    def drop_part(self, session: Session, begun: Part) -> None:
        """Takes the nodes since `begin_part` out of the graph.

        Integers that do not depend on them stay: values that know their nodes may be used later.
        """
        self.modes.reach(self.graph, session.where)
        dropped: dict[fx.Node, None] = {}
        for node in self.nodes_since(begun.before):
            is_integer = isinstance(node.meta.get("val"), (int, torch.SymInt))
            if not is_integer or not dropped.keys().isdisjoint(node.all_input_nodes):
                dropped[node] = None
        for node in reversed(dropped):
            self.graph.erase_node(node)

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
        outer_nodes: Sequence[fx.Node],
    ) -> None:
        """Adds a node with a backward of its own, which takes the three: from here on the outputs
        are what it gives."""
        self.modes.reach(self.graph, session.where)
        fakes = []
        for values in (inputs, outputs):
            fakes.append([v.fake for v in values])
        fakes.append([node.meta["val"] for node in outer_nodes])
        result = self._run(session, "call_function", target, fakes, {})
        nodes = []
        for values in (inputs, outputs):
            nodes.append([v.fx_node for v in values])
        node = add_call(self.graph, target, (*nodes, list(outer_nodes)), session.where, result)
        for k, output in enumerate(outputs):
            output.fx_node = self.item(node, k, output.fake)

    def add(self, session: Session, target: Callable[..., Any], *nodes: Any) -> list[TensorValue]:
        """Adds a call with some nodes, and lists of them, which gives a tuple of new tensors."""
        self.modes.reach(self.graph, session.where)
        fakes = map_leaves(lambda node: node.meta["val"], list(nodes))
        results = self._run(session, "call_function", target, fakes, {})
        node = add_call(self.graph, target, nodes, session.where, results)
        values = []
        for k, fake in enumerate(results):
            values.append(TensorValue(fake, self.item(node, k, fake)))
            self.by_fake[id(fake)] = values[-1]
        return values

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

    # -- the end -----------------------------------------------------------------------------------

    def finish(
        self, outputs: list[TensorValue | SymIntValue]
    ) -> tuple[fx.GraphModule, list[GraphInput]]:
        """The finished graph, whose output is the tuple of `outputs`, and its inputs."""
        self.modes.close(self.graph)
        self.graph.output(tuple(map(self._output, outputs)))
        inputs = self.inputs.finish()
        if self.autograd:
            _write_out_numbers(self.graph)
            # one that is run has its code at once, as the lazy call would run global hooks
            module = fx.GraphModule(with_higher_order_ops(self.graph), self.graph)
        else:  # Ingot itself reads the graph
            module = LazyGraphModule(torch.nn.Module(), self.graph)
        if self.budgets:
            module.meta[BUDGET] = min(self.budgets)
        return module, inputs

    def _output(self, value: TensorValue | SymIntValue) -> Any:
        if isinstance(value, SymIntValue):
            return value.node(self)
        return self.node_of(value)


def _write_out_numbers(graph: fx.Graph) -> None:
    """Complex numbers that are not finite become calls: torch.fx writes them as names, `infj`."""
    for node in list(graph.nodes):

        def written(argument: Any, node: fx.Node = node) -> Any:
            if not isinstance(argument, complex) or cmath.isfinite(argument):
                return argument
            numbers, where = (argument.real, argument.imag), node.meta.get("where", "")
            with graph.inserting_before(node):
                return add_call(graph, complex, numbers, where, argument)

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
            if isinstance(value, TensorValue):
                _, value = self.known.sizes.get(id(value.fake), (None, value))
            return leaf(value)

        return self.value.argument(sized)


_BEFORE_SIZES: dict[Any, int] = {
    **dict.fromkeys("view reshape expand repeat new_zeros new_ones new_empty new_full".split(), 1),
    **dict.fromkeys((torch.zeros, torch.ones, torch.empty, torch.rand, torch.randn), 0),
    operator.getitem: 1,
}
"""Of methods and functions that take sizes: how many arguments stand before these."""


def _of_sizes(sizes: Sequence[SymIntValue | int], leaf: Callable[[Any], Any]) -> tuple[Any, ...]:
    """The arguments of a call that relates sizes."""
    return tuple([leaf(size) if isinstance(size, SymIntValue) else size for size in sizes])


def _argument(value: Value, leaf: Callable[[Any], Any]) -> Any:
    """The argument of an operation that a value is."""
    if type(value) is ConstantValue:
        return value.object
    return value.argument(leaf)


def _tangent() -> None:
    """Stands for an argument of a part of the graph."""


_ERRORS_OF_FAKES = (
    "SymIntArrayRef expected to contain only concrete integers",
    "data is not allocated yet",
)
"""What torch's own kernels say of fake tensors and symbols."""


def _refuse_cached(session: Session, written: Value) -> None:
    """Autocast keeps what it has cast of a parameter, whatever is written to it later, until it
    ends."""
    if not any(map(torch.is_autocast_enabled, AUTOCAST_DEVICES)):
        return
    if isinstance(written, TensorValue) and written.fake.requires_grad and written.fake.is_leaf:
        reason = f"{written.describe()} is written under autocast, which may have cast it before"
        raise session.unsupported("mode", reason, action=SKIP)
