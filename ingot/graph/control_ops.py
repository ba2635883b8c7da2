"""Branches that data decide, and loops, as nodes of a graph.

Capture gives graphs of the same inputs: the branches of a `cond`, the condition and the body of a
`while_loop`, or the body of a `scan`. A node with them is an op, of which the graphs are compiled
by themselves and called by native code. What the op gives is known from the capture.
"""

from __future__ import annotations

import functools
import itertools
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from ingot.graph.ambient import Modes, preserved
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.differentiation import SetModes, gradients_of, leaf_of, without_autocast
from ingot.graph.fake_context import FakeContext
from ingot.graph.fakes import FakeTensor, fakes_in, new_fake, requires_grad
from ingot.graph.geometry import contiguous
from ingot.graph.meta.basis import tensors_in
from ingot.graph.nodes import add_call, fake_result, placeholders_of
from ingot.graph.symbols import to_expr
from ingot.graph.tracing import trace
from ingot.loops.expr import Symbol
from ingot.sequences import are_present, at
from ingot.torch_private import (
    AutoDispatchBelowAutograd,
    DisableTorchDispatch,
    disable_current_modes,
)


class Look(NamedTuple):
    """Sizes, strides, dtype and device of a result."""

    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(fake: Tensor) -> Look:
        return Look(tuple(fake.shape), fake.stride(), fake.dtype, fake.device)

    @property
    def is_differentiable(self) -> bool:
        return self.dtype.is_floating_point or self.dtype.is_complex


class ControlFlow:
    """Captured graphs, and what an op with them gives.

    The graphs take the same tensors, and behind them the same integers. They were captured in some
    `modes`, with the fakes and size symbols of a `context`.
    """

    __module__ = __name__
    __name__: str

    def __init__(
        self,
        graphs: tuple[GraphModule, ...],
        results: Sequence[Look],
        context: FakeContext,
        modes: Modes,
    ) -> None:
        self.graphs, self.results = graphs, tuple(results)
        self.context, self.modes = context, modes
        self.number = _number_of(self)

    def differentiated(
        self,
        graph: Graph,
        module: GraphModule,
        copies: dict[Node, Node],
        by: Sequence[Node],
        tangents: Sequence[Node],
    ) -> list[Node]:
        """Copies one of the graphs, and differentiates its results: gives the gradients.

        `copies` has what stands for each of its placeholders. The gradients are by some of these,
        for tangents of all results that may have one.
        """
        given, leaves = at(copies, by), []
        for node in by:
            copies[node] = _call(graph, leaf_of, copies[node])
            leaves.append(copies[node])
        outputs: Any = graph.graph_copy(module.graph, copies)
        heads = list(itertools.compress(outputs, map(differentiable, self.results)))
        _call(graph, SetModes(without_autocast(self.modes._replace(grad=True))))
        gradients = _call(graph, gradients_of, heads, leaves, list(tangents), given)
        results = []
        for k in range(len(leaves)):
            results.append(_call(graph, operator.getitem, gradients, k))
        return results

    def integers_among(self, sizes: Sequence[Any], tensors: Sequence[Tensor]) -> Sequence[Any]:
        """The integers that the graphs take: programs take size symbols behind them."""
        return sizes[: len(placeholders_of(self.graphs[0].graph)) - len(tensors)]

    @property
    def parameters(self) -> tuple[Any, ...]:
        """What native code is told beside the programs."""
        return ()

    def seen_inside(self, tensors: Sequence[Tensor]) -> list[Any]:
        """What the graphs are given for the op's tensors, which are fakes."""
        return list(tensors)

    def traced(self, tensors: Sequence[Tensor]) -> tuple[list[AtenGraph], list[torch.SymInt]]:
        """Its graphs as ATen graphs for some fakes, and the integers that these take last.

        They are the size symbols that are part of the inputs and results, so that a graph knows
        them all.
        """
        inputs = self.seen_inside(tensors)
        for node in placeholders_of(self.graphs[0].graph)[len(inputs) :]:
            inputs.append(fake_result(node))
        symbols: dict[Symbol, None] = {}
        for thing in (*inputs, *self.results):
            for number in _numbers_of(thing):
                symbols.update(dict.fromkeys(to_expr(number).symbols))
        integers = list(map(self.context.shapes.wrap, symbols))
        graphs = []
        # perhaps in the middle of another trace
        with self.context.shapes.unbacked.inner_trace(), disable_current_modes(), preserved():
            self.modes.set()
            for module in self.graphs:
                module = _with_inputs(module, integers)
                graphs.append(trace(module, [*inputs, *integers], self.context))
        return graphs, integers


def _numbers_of(thing: Any) -> tuple[Any, ...]:
    """The integers that say how a tensor lies; an integer itself."""
    if isinstance(thing, Tensor):
        return *thing.shape, *thing.stride()
    if isinstance(thing, Look):
        return *thing.sizes, *thing.strides
    return (thing,)


def _with_inputs(module: GraphModule, integers: Sequence[torch.SymInt]) -> GraphModule:
    """The same graph, with some integers as further inputs."""
    if not integers:
        return module
    graph, copies = Graph(), dict[Node, Node]()
    for node in placeholders_of(module.graph):
        copies[node] = _placeholder(graph, node.name, fake_result(node))
    for number, integer in enumerate(integers):
        _placeholder(graph, f"symbol_{number}", integer)
    graph.output(graph.graph_copy(module.graph, copies))
    return GraphModule(module, graph)


class Cond(ControlFlow):
    """The branches for a predicate that holds, and for one that does not."""

    __name__ = "cond"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._gradients: dict[tuple[int, ...], Cond] = {}

    def __call__(
        self, predicate: Tensor, tensors: Sequence[Tensor], sizes: Sequence[Any]
    ) -> tuple[Tensor, ...]:
        """What the branch gives that a tensor of one bool chooses."""
        if torch.is_grad_enabled() and any(map(requires_grad, tensors)):
            return _Differentiable.apply(self, predicate, sizes, *tensors)  # type: ignore[no-any-return]
        return self.chosen(predicate, tensors, sizes)

    def chosen(
        self, predicate: Tensor, tensors: Sequence[Tensor], sizes: Sequence[Any]
    ) -> tuple[Tensor, ...]:
        return tuple(cond(self.number, predicate, list(tensors), list(sizes)))

    def gradients(self, wanted: tuple[int, ...], inputs: Sequence[Tensor]) -> Cond:
        """The gradients of the tensors at some positions, which chooses as this one does.

        Its `inputs` are the tensors, and behind them the tangents of all results that may have one.
        """
        known = self._gradients.get(wanted)
        if known is None:
            first, second = self.graphs
            graphs = self._vjp(first, wanted), self._vjp(second, wanted)
            looks = []
            for node in at(placeholders_of(first.graph), wanted):
                looks.append(_dense(fake_result(node)))
            known = Cond(graphs, looks, self.context, self.modes._replace(grad=True))
            self._gradients[wanted] = known
            if isinstance(inputs[0], FakeTensor):
                known.traced(inputs)  # what that asks of sizes becomes a guard in time
        return known

    def _vjp(self, module: GraphModule, wanted: Sequence[int]) -> GraphModule:
        """The graph of a branch's vector-Jacobian product: zeros where it has no part in a
        result."""
        graph, copies = Graph(), dict[Node, Node]()
        placeholders = placeholders_of(module.graph)
        count = len(tensors_in(list(map(fake_result, placeholders))))
        for node in placeholders[:count]:
            copies[node] = _placeholder(graph, node.name, fake_result(node))
        tangents: list[Node] = []
        for look in filter(differentiable, self.results):
            like = _Sliced(look.sizes, look.dtype, look.device)
            tangents.append(_fresh(graph, f"tangent_{len(placeholders) + len(tangents)}", like))
        for node in placeholders[count:]:
            copies[node] = _placeholder(graph, node.name, fake_result(node))
        by = at(placeholders, wanted)
        results = self.differentiated(graph, module, copies, by, tangents)
        graph.output(tuple(results))
        return GraphModule(module, graph)


class WhileLoop(ControlFlow):
    """The condition of a loop, and its body, which makes the next state of one.

    Of the tensors the first are the state, as many as there are results.
    """

    __name__ = "while_loop"

    def __call__(self, tensors: Sequence[Tensor], sizes: Sequence[Any]) -> tuple[Tensor, ...]:
        """The state once the condition does not hold any more."""
        return tuple(while_loop(self.number, list(tensors), list(sizes)))


class Scan(ControlFlow):
    """The body of a scan over slices of tensors along their first dimension.

    Of the tensors the first `carried` are the state, the next `mapped` are those with the slices.
    The body gives the next state, then what is stacked. All slices are as many as `length` says;
    they are taken from the last one on if the scan is `reversed`.
    """

    __name__ = "scan"

    def __init__(
        self,
        graph: GraphModule,
        results: Sequence[Look],
        context: FakeContext,
        modes: Modes,
        carried: int,
        mapped: int,
        length: Any,
        is_reversed: bool,
    ) -> None:
        super().__init__((graph,), results, context, modes)
        self.carried, self.mapped = carried, mapped
        self.length, self.is_reversed = length, is_reversed
        self._gradients: dict[tuple[int, ...], Scan] = {}

    @property
    def parameters(self) -> tuple[Any, ...]:
        dtypes = tuple(map(operator.attrgetter("dtype"), self.results[self.carried :]))
        return self.carried, self.mapped, self.is_reversed, dtypes

    def seen_inside(self, tensors: Sequence[Tensor]) -> list[Any]:
        state, mapped, others = self.split(tensors)
        slices = []
        with DisableTorchDispatch():
            for fake in mapped:
                slices.append(new_fake(fake.shape[1:], fake, strides=fake.stride()[1:]))
        return [*state, *slices, *others]

    def split(self, items: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        """The state, what the slices are of, and the other operands."""
        behind = self.carried + self.mapped
        return list(items[: self.carried]), list(items[self.carried : behind]), list(items[behind:])

    def __call__(self, tensors: Sequence[Tensor], sizes: Sequence[Any]) -> tuple[Tensor, ...]:
        """The last state, and the stacked results."""
        if torch.is_grad_enabled() and any(map(requires_grad, tensors)):
            results = _DifferentiableScan.apply(self, sizes, *tensors)
            return results[: len(self.results)]  # type: ignore[no-any-return]
        return self.run(tensors, sizes)

    def run(self, tensors: Sequence[Tensor], sizes: Sequence[Any]) -> tuple[Tensor, ...]:
        return tuple(scan(self.number, list(tensors), list(sizes)))

    @functools.cached_property
    def recording(self) -> Scan:
        """The same scan, which stacks the state before each step as well."""
        graph, copies = Graph(), dict[Node, Node]()
        (module,) = self.graphs
        placeholders = placeholders_of(module.graph)
        for node in placeholders:
            copies[node] = _placeholder(graph, node.name, fake_result(node))
        outputs: Any = graph.graph_copy(module.graph, copies)
        state = at(copies, placeholders[: self.carried])
        graph.output((*outputs, *state))
        looks = [*self.results, *map(self.stacked, self.results[: self.carried])]
        return self.like(GraphModule(module, graph), looks, self.carried, self.mapped)

    def like(
        self,
        graph: GraphModule,
        looks: Sequence[Look],
        carried: int,
        mapped: int,
        goes_back: bool = False,
    ) -> Scan:
        """Another scan of as many steps, in the other order if it `goes_back`."""
        is_reversed = self.is_reversed is not goes_back
        modes = self.modes._replace(grad=True)
        return Scan(graph, looks, self.context, modes, carried, mapped, self.length, is_reversed)

    def stacked(self, look: Look) -> Look:
        """The look of tensors of this look, stacked."""
        sizes = (self.length, *look.sizes)
        return Look(sizes, contiguous(sizes), look.dtype, look.device)

    def gradients(self, wanted: tuple[int, ...], inputs: Sequence[Tensor]) -> Scan:
        """The gradients of the tensors at some positions, as a scan in the other order.

        Its state are the tangents of the state, and sums for the wanted ones of the other operands.
        Its slices are of the state before each step, of what this scan goes over, and of the
        tangents of what it stacked. Behind these come the other operands.
        """
        known = self._gradients.get(wanted)
        if known is None:
            known = self._gradients[wanted] = self._backward(wanted)
            if isinstance(inputs[0], FakeTensor):
                known.traced(inputs)  # what that asks of sizes becomes a guard in time
        return known

    def _backward(self, wanted: tuple[int, ...]) -> Scan:
        (module,) = self.graphs
        nodes = placeholders_of(module.graph)
        count = len(tensors_in(list(map(fake_result, nodes))))
        state, slices, others = self.split(nodes[:count])
        places = dict(zip(nodes, itertools.count()))
        sums = list(filter(lambda node: places[node] in wanted, others))
        wanted_slices = list(filter(lambda node: places[node] in wanted, slices))
        followed = list(itertools.compress(state, map(differentiable, self.results)))
        graph, copies = Graph(), dict[Node, Node]()
        tangents = []
        for node in followed:
            tangents.append(_fresh(graph, f"tangent_of_{node.name}", fake_result(node)))
        before = []
        for node in sums:
            before.append(_fresh(graph, f"sum_for_{node.name}", fake_result(node)))
        for node in (*state, *slices):
            copies[node] = _placeholder(graph, node.name, fake_result(node))
        stacked = list(filter(differentiable, self.results[self.carried :]))
        for k, look in enumerate(stacked):
            like = _Sliced(look.sizes[1:], look.dtype, look.device)
            tangents.append(_fresh(graph, f"tangent_{len(nodes) + k}", like))
        for node in (*others, *nodes[count:]):
            copies[node] = _placeholder(graph, node.name, fake_result(node))
        by = [*followed, *wanted_slices, *sums]
        results = self.differentiated(graph, module, copies, by, tangents)
        of_sums = results[len(by) - len(sums) :]
        totals = []
        for total, gradient in zip(before, of_sums):
            totals.append(_call(graph, torch.add, total, gradient))
        of_slices = results[len(followed) : len(by) - len(sums)]
        graph.output((*results[: len(followed)], *totals, *of_slices))
        looks = []
        for node in (*followed, *sums):
            looks.append(_dense(fake_result(node)))
        for node in wanted_slices:
            looks.append(self.stacked(_dense(fake_result(node))))
        mapped = len(state) + len(slices) + len(stacked)
        return self.like(
            GraphModule(module, graph), looks, len(followed) + len(sums), mapped, goes_back=True
        )


class _Sliced(NamedTuple):
    """Stands for a fake of these sizes."""

    shape: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device


class _DifferentiableScan(torch.autograd.Function):
    """A `Scan` whose gradients are another one, in the other order.

    The states before all steps are results too, since second derivatives depend on them.
    """

    @staticmethod
    def forward(ctx: Any, op: Scan, sizes: Any, *tensors: Tensor) -> Any:  # type: ignore[override]
        results = op.recording.run(tensors, sizes)
        ctx.op, ctx.sizes = op, sizes
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*results[len(op.results) :], *tensors)
        return results

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> Any:  # type: ignore[override]
        op, saved = ctx.op, ctx.saved_tensors
        if any(are_present(given[len(op.results) :])):
            op = op.recording
        tangents = []
        for tangent, look in zip(given, op.results):
            if tangent is None:
                tangent = torch.zeros(look.sizes, dtype=look.dtype, device=look.device)
            tangents.append(tangent)
        history, tensors = saved[: op.carried], saved[op.carried :]
        wanted = tuple(itertools.compress(range(len(tensors)), ctx.needs_input_grad[2:]))
        _, mapped, others = op.split(tensors)
        dense = functools.partial(torch.clone, memory_format=torch.contiguous_format)
        incoming = list(map(dense, tangents))
        is_followed = list(map(differentiable, op.results))
        last = list(itertools.compress(incoming[: op.carried], is_followed))
        stacked = list(itertools.compress(incoming[op.carried :], is_followed[op.carried :]))
        first = op.carried + op.mapped
        sums = []
        for k in wanted:
            if k >= first:
                sums.append(dense(torch.zeros_like(tensors[k])))
        inputs = [*last, *sums, *history, *mapped, *stacked, *others]
        found = iter(op.gradients(wanted, inputs)(inputs, ctx.sizes))
        results: list[Tensor | None] = [None] * len(tensors)
        for k in itertools.compress(range(op.carried), is_followed):
            results[k] = next(found)
        # those of operands come before those of slices
        for k in sorted(wanted, key=first.__gt__):
            if k >= op.carried:
                results[k] = next(found)
        return None, None, *results


class _Differentiable(torch.autograd.Function):
    """A `Cond` whose gradients are another one, of the same predicate."""

    @staticmethod
    def forward(ctx: Any, op: Cond, predicate: Tensor, sizes: Any, *tensors: Tensor) -> Any:  # type: ignore[override]
        ctx.op, ctx.sizes = op, sizes
        ctx.save_for_backward(predicate, *tensors)
        return op.chosen(predicate, tensors, sizes)

    @staticmethod
    def backward(ctx: Any, *tangents: Tensor) -> Any:  # type: ignore[override]
        op, (predicate, *tensors) = ctx.op, ctx.saved_tensors
        incoming = list(itertools.compress(tangents, map(differentiable, op.results)))
        wanted = tuple(itertools.compress(range(len(tensors)), ctx.needs_input_grad[3:]))
        inputs = [*tensors, *incoming]
        gradients = op.gradients(wanted, inputs)(predicate, inputs, ctx.sizes)
        results: list[Tensor | None] = [None] * len(tensors)
        for k, gradient in zip(wanted, gradients):
            results[k] = gradient
        return None, None, None, *results


def differentiable(look: Look) -> bool:
    return look.is_differentiable


def _dense(fake: Any) -> Look:
    """The look of what is like a fake, without gaps."""
    sizes = tuple(fake.shape)
    return Look(sizes, contiguous(sizes), fake.dtype, fake.device)


def _fresh(graph: Graph, name: str, like: Any) -> Node:
    """A placeholder of a tensor like a fake, without gaps."""
    with DisableTorchDispatch():
        meta = torch.empty(tuple(like.shape), dtype=like.dtype, device="meta")
    return _placeholder(graph, name, FakeTensor(meta, like.device))


def _placeholder(graph: Graph, name: str, value: Any) -> Node:
    node = graph.placeholder(name)
    node.meta.update(val=value, where="")
    return node


def _call(graph: Graph, function: Callable[..., Any], *args: Any) -> Node:
    return add_call(graph, function, args, {"val": None, "where": ""})


# -- the ops ---------------------------------------------------------------------------------------

_known: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def _number_of(owner: Any) -> int:
    number = next(_numbers)
    _known[number] = owner
    return number


class Compiled:
    """What native code calls in the place of an op, once its graphs are programs."""

    def __init__(self, op: ControlFlow, call: Callable[..., Any]) -> None:
        self.op, self.call = op, call
        self.number = _number_of(self)


def control_flow(number: int) -> ControlFlow:
    """The graphs that an op knows by a number, be they compiled or not."""
    known = _known[number]
    if isinstance(known, Compiled):
        return known.op
    return known  # type: ignore[no-any-return]


def call_of(number: int) -> Callable[..., Any]:
    """What native code calls for the number of a `Compiled`."""
    return _known[number].call  # type: ignore[no-any-return]


_library = torch.library.Library("ingot", "FRAGMENT")
_library.define("cond(int number, Tensor predicate, Tensor[] tensors, SymInt[] sizes) -> Tensor[]")
_library.define("while_loop(int number, Tensor[] tensors, SymInt[] sizes) -> Tensor[]")
_library.define("scan(int number, Tensor[] tensors, SymInt[] sizes) -> Tensor[]")


def _cond(number: int, predicate: Tensor, tensors: list[Tensor], sizes: list[int]) -> list[Tensor]:
    """The op in eager."""
    op = control_flow(number)
    first, second = op.graphs
    inputs = *tensors, *op.integers_among(sizes, tensors)
    if predicate:
        return list(first(*inputs))
    return list(second(*inputs))


def _while_loop(number: int, tensors: list[Tensor], sizes: list[int]) -> list[Tensor]:
    """The op in eager."""
    op = control_flow(number)
    count = len(op.results)
    state = list(map(torch.clone, tensors[:count]))
    others = *tensors[count:], *op.integers_among(sizes, tensors)
    condition, body = op.graphs
    while condition(*state, *others)[0]:
        state = list(body(*state, *others))
    return state


def _scan(number: int, tensors: list[Tensor], sizes: list[int]) -> list[Tensor]:
    """The op in eager."""
    op: Any = control_flow(number)
    state, mapped, others = op.split(tensors)
    others += op.integers_among(sizes, tensors)
    steps = range(mapped[0].shape[0])
    results = []
    for k in reversed(steps) if op.is_reversed else steps:
        state, row = _step(op, [*state, *map(operator.itemgetter(k), mapped), *others])
        results.append(row)
    if op.is_reversed:
        results.reverse()
    return [*state, *map(torch.stack, zip(*results))]


def _step(op: Scan, inputs: list[Any]) -> tuple[list[Tensor], list[Tensor]]:
    """The next state, and what is stacked."""
    outputs = list(op.graphs[0](*inputs))
    return outputs[: op.carried], outputs[op.carried :]


cond = torch.ops.ingot.cond.default
while_loop = torch.ops.ingot.while_loop.default
scan = torch.ops.ingot.scan.default


def _above_autograd(op: Any, run: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    """The kernel of an op whose graphs may differentiate: below autograd they could not."""

    def kernel(number: int, *args: Any) -> list[Tensor]:
        if fakes_in(tensors_in(args)):
            with AutoDispatchBelowAutograd():
                return op(number, *args)  # type: ignore[no-any-return]
        return run(number, *args)

    return kernel


for _op, _run in ((cond, _cond), (while_loop, _while_loop), (scan, _scan)):
    _name = _op.name().partition("::")[2]
    _library.impl(_name, _run, "CPU")
    _library.impl(_name, _above_autograd(_op, _run), "Autograd")


def control_nodes(graph: Graph) -> Iterator[Node]:
    """The nodes of an ATen graph that are such ops; their last arguments are tensors and sizes."""
    for node in graph.nodes:
        if node.target in (cond, while_loop, scan):
            yield node
