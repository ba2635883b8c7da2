"""The joint graph: what a captured graph computes and, behind it, the gradients of that.

A captured graph goes in, and one ATen graph comes out, recorded in one trace, with the contract of
its slots. Autograd runs above the recorder's dispatch, so each op is differentiated by eager's own
formula, and what that formula runs is recorded like any other op. `partition.py` cuts a joint graph
in two.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from ingot.errors import unsupported
from ingot.graph.ambient import Modes, preserved
from ingot.graph.aten_graph import AtenGraph, OutputSpec, nodes_of
from ingot.graph.aten_tracer import BEHIND, AtenTracer
from ingot.graph.custom import is_reentrant
from ingot.graph.differentiation import want_gradients, without_autocast
from ingot.graph.fake_context import FakeContext
from ingot.graph.fakes import FakeTensor, is_rebased, new_fake
from ingot.graph.geometry import is_dense
from ingot.graph.meta import first_line
from ingot.graph.nodes import ancestors, fake_result, placeholders_of, reached_from
from ingot.graph.output_windows import windows_on
from ingot.graph.passes import run_passes
from ingot.graph.passes.ownership import is_view
from ingot.graph.passes.pipeline import JOINT_PASSES
from ingot.graph.tracing import run_nodes
from ingot.graph.wrappers import is_wrapper_class
from ingot.loops.expr import Symbol
from ingot.loops.side_effects import has_effect
from ingot.loops.training_contract import (
    GradientState,
    InputSlot,
    JointContract,
    Layout,
    OutputGroup,
    OutputSlot,
    OutputWindow,
    TangentSlot,
)
from ingot.sequences import are_present, at, present
from ingot.torch_private import DisableTorchDispatch, engine_run_backward

TANGENT = "tangent_"
"""What the names of tangents begin with, in joint graphs and in backwards."""


@dataclass(frozen=True)
class JointGraph:
    """A joint graph, with the contract of its slots.

    The inputs of `aten` are those of the captured graph, the primals, then the tangents. Its
    outputs are those of the contract (0 for a rebased input, and for a window), then the gradients.
    `names` are those of the nodes that were traced before the gradients: any trace of the same
    captured graph gives a node of that name the same value. `decided` are the sizes that the
    forward finds in the data, in order.
    """

    aten: AtenGraph
    contract: JointContract
    names: frozenset[str]
    decided: tuple[Symbol, ...]

    @property
    def results(self) -> list[OutputSpec]:
        """The outputs in front of the gradients."""
        return self.aten.outputs[: len(self.contract.outputs)]

    @property
    def gradients(self) -> list[OutputSpec]:
        return self.aten.outputs[len(self.contract.outputs) :]

    @property
    def primals(self) -> list[Node]:
        """The placeholders of the captured graph's inputs."""
        return self.aten.inputs[: len(self.contract.inputs)]

    @property
    def tangents(self) -> list[Node]:
        """The placeholders of the tangents."""
        return self.aten.inputs[len(self.contract.inputs) :]


def simplify_joint(aten: AtenGraph) -> None:
    """Runs the passes of joint graphs."""
    run_passes(aten, JOINT_PASSES)


def trace_joint(
    gm: GraphModule,
    fakes: Sequence[Any],
    context: FakeContext,
    simplify: Callable[[AtenGraph], None] = simplify_joint,
) -> JointGraph:
    """The joint graph of `gm`, whose placeholders stand for `fakes` in order, simplified by
    `simplify`.

    Raises Unsupported, with the user's line, for what has side effects that cannot be recorded, or
    depends on data.
    """
    try:
        return _trace(gm, fakes, context, {}, simplify=simplify)
    except _BackwardRaises as error:
        refused = _refused_outputs(gm, fakes, context)
        if not refused:
            raise unsupported("backward-refused", f"the backward raises {error}") from error
    return _trace(gm, fakes, context, refused, simplify=simplify)


def trace_partial(
    joint: JointGraph,
    outputs: Collection[int],
    inputs: Collection[int] | None,
    gm: GraphModule,
    fakes: Sequence[Any],
    context: FakeContext,
) -> JointGraph:
    """A part of the joint graph of `gm`, whose whole one is `joint`.

    It has the tangents of these outputs, and the gradients of these inputs if there are any: to
    autograd the others are not there.
    """
    choice = _Choice(frozenset(outputs), None if inputs is None else frozenset(inputs))
    refused = joint.contract.refused_outputs
    return _trace(gm, fakes, context, refused, choice, joint.decided)


class _BackwardRaises(Exception):
    """Says what autograd raised."""


class _Choice(NamedTuple):
    """Outputs that have a tangent, and inputs that have a gradient; None for all."""

    outputs: frozenset[int] | None = None
    inputs: frozenset[int] | None = None


_WHOLE = _Choice()


class _Forward(NamedTuple):
    """A forward that was traced.

    `leaves` are what the primals are differentiated by. The captured graph has the first
    `user_outputs` of the outputs; the last ones are the rebased primals.
    """

    primals: list[Any]
    leaves: list[Any]
    user_outputs: int
    outputs: list[Any]
    rebased: tuple[int, ...]
    windows: tuple[OutputWindow, ...]

    @property
    def tracked_outputs(self) -> list[int]:
        """The outputs that have a history."""
        results = []
        for k, fake in _fakes_at(self.outputs):
            if fake.requires_grad:
                results.append(k)
        return results

    @property
    def windows_in_node(self) -> list[OutputWindow]:
        """The windows that are results of the graph's node in autograd's graph."""
        results = []
        for window in self.windows:
            if window.own_history:
                results.append(window)
        return results

    @property
    def outputs_in_node(self) -> set[int]:
        """The outputs that are such windows."""
        return {window.output for window in self.windows_in_node}

    @property
    def returned(self) -> list[Any]:
        """The outputs that the joint graph computes, with 0 in place of the others."""
        returned = list(self.outputs)
        for k in (*self.outputs_in_node, *self.rebased_as.values()):
            returned[k] = 0
        return returned

    @property
    def rebased_as(self) -> dict[int, int]:
        """The rebased primals, and the outputs that stand for them."""
        first = len(self.outputs) - len(self.rebased)
        result = {}
        for k, position in enumerate(self.rebased):
            result[position] = first + k
        return result


def _trace_forward(gm: GraphModule, fakes: Sequence[Any], recorder: AtenTracer) -> _Forward:
    primals = []
    for k, fake in enumerate(fakes):
        primals.append(recorder.input(f"primal_{k}", fake))
    leaves = want_gradients(primals, fakes)
    try:
        results = run_nodes(gm, recorder, primals)
    except RuntimeError as error:  # of an operation in place
        raise unsupported(
            "gradients-wanted", f"gradients are wanted: {first_line(error)}", recorder.where
        ) from error
    outputs, windows = windows_on(results, primals, recorder)
    fake_primals = _fakes_at(primals)
    rebased = tuple([k for k, fake in fake_primals if is_rebased(fake)])
    outputs += at(primals, rebased)
    return _Forward(primals, leaves, len(results), outputs, rebased, windows)


_WHATEVER_THE_VALUES = (
    "backward through the graph a second time",
    "modified by an inplace operation",
    "no autograd formula was registered",  # of a custom op
)
"""In errors that autograd raises for what the program did, as opposed to what a formula found."""


def _refused_outputs(
    gm: GraphModule, fakes: Sequence[Any], context: FakeContext
) -> dict[int, Exception]:
    """The outputs whose backward raises an error, and that error; none if one of them depends on
    values."""
    recorder, refused = AtenTracer(context), dict[int, Exception]()
    with preserved(), recorder:
        forward = _trace_forward(gm, fakes, recorder)
        leaves = at(forward.leaves, _requiring_gradients(forward.leaves))
        for k in forward.tracked_outputs:
            output = forward.outputs[k]
            tangent = recorder.input("", _tangent_of(output))
            try:
                torch.autograd.grad(output, leaves, tangent, True, allow_unused=True)
            except (RuntimeError, NotImplementedError, ValueError) as error:
                if not any(text in str(error) for text in _WHATEVER_THE_VALUES):
                    return {}
                refused[k] = type(error)(str(error))
    return refused


def _trace(
    gm: GraphModule,
    fakes: Sequence[Any],
    context: FakeContext,
    refused: dict[int, Exception],
    choice: _Choice = _WHOLE,
    again: Sequence[Symbol] = (),
    simplify: Callable[[AtenGraph], None] = simplify_joint,
) -> JointGraph:
    recorder = AtenTracer(context, again)
    with preserved(), recorder:
        forward = _trace_forward(gm, fakes, recorder)
        recorder.region, decided = BEHIND, tuple(context.shapes.unbacked.bound)
        names = frozenset(node.name for node in recorder.graph.nodes)
        differentiable = [k for k in forward.tracked_outputs if k not in refused]
        if choice.outputs is not None:
            differentiable = [k for k in differentiable if k in choice.outputs]
        heads = at(forward.outputs, differentiable)
        paths = _paths_of(heads)
        groups = () if refused else _groups(forward, fakes, differentiable)
        readable = _Readable(recorder, forward, differentiable)
        tangents: list[Any] = []
        for k, head in zip(differentiable, heads):
            tangents.append(recorder.input(f"{TANGENT}{k}", _tangent_of(head)))
        requiring = _requiring_gradients(forward.leaves)
        if choice.inputs is not None:
            requiring = [k for k in requiring if k in choice.inputs]
        written = recorder.input_versions
        gradients = _gradients(heads, at(forward.leaves, requiring), tangents)
        if recorder.input_versions != written:
            raise unsupported(
                "op-writes", "a backward writes an input of the program, or a gradient it is given"
            )
    reads = readable.reads()
    aten = recorder.finish([*forward.returned, *present(gradients)])
    placeholders_first(aten.graph)
    tangent_nodes = aten.inputs[len(forward.primals) :]
    if groups and _acts_for_several(groups, differentiable, tangent_nodes):
        groups = ()
    simplify(aten)
    computed = dict(zip(requiring, are_present(gradients)))
    contract = JointContract(
        inputs=tuple(_input_slots(forward, aten, differentiable, reads, computed, bool(refused))),
        outputs=tuple(_output_slots(forward, differentiable, reads, refused)),
        tangents=tuple(_tangent_slots(differentiable, tangent_nodes, paths)),
        windows=forward.windows,
        groups=groups,
        user_outputs=forward.user_outputs,
    )
    return JointGraph(aten, contract, names, decided)


def _requiring_gradients(leaves: Sequence[Any]) -> list[int]:
    """The positions of the primals that require a gradient."""
    results = []
    for k, leaf in _fakes_at(leaves):
        if leaf.requires_grad and leaf.is_leaf:
            results.append(k)
    return results


def _fakes_at(values: Sequence[Any]) -> Iterator[tuple[int, FakeTensor]]:
    """The fakes among some values, with their positions."""
    for k, value in enumerate(values):
        if isinstance(value, FakeTensor):
            yield k, value


# -- the slots -------------------------------------------------------------------------------------


def _input_slots(
    forward: _Forward,
    aten: AtenGraph,
    differentiable: Sequence[int],
    reads: _EagerReads,
    computed: Mapping[int, bool],
    refused: bool,
) -> Iterator[InputSlot]:
    """The slots of the primals. `computed` tells of those that require a gradient whether they have
    one; where autograd has `refused` an output, nothing is known of those that have none."""
    mutated = aten.mutated
    unread = _unread_inputs(forward, aten, differentiable)
    for k, primal in enumerate(forward.primals):
        gradient: GradientState = "none"
        if computed.get(k):
            gradient = "computed"
        elif k in computed and not refused:
            gradient = "unreached"
        yield InputSlot(
            k,
            is_tensor=isinstance(primal, Tensor),
            gradient=gradient,
            rebased_as=forward.rebased_as.get(k),
            mutated=k in mutated,
            unread=k in unread,
            eager_reads=k in reads.primals,
            eager_reads_result=k in reads.written_primals,
        )


def _output_slots(
    forward: _Forward,
    differentiable: Sequence[int],
    reads: _EagerReads,
    refused: Mapping[int, Exception],
) -> Iterator[OutputSlot]:
    tangents = {output: k for k, output in enumerate(differentiable)}
    for k in range(len(forward.outputs)):
        yield OutputSlot(k, tangents.get(k), refused.get(k), k in reads.outputs)


def _tangent_slots(
    differentiable: Sequence[int], nodes: Sequence[Node], paths: Sequence[_Paths]
) -> Iterator[TangentSlot]:
    for k, (output, node, path) in enumerate(zip(differentiable, nodes, paths)):
        layout = Layout.of(fake_result(node))
        yield TangentSlot(k, output, layout, path.single_use, path.downstream, path.reentrant)


def _unread_inputs(
    forward: _Forward, aten: AtenGraph, differentiable: Sequence[int]
) -> frozenset[int]:
    """The inputs that are written, and that neither an output with a gradient nor a gradient
    depends on."""
    mutated, outputs = aten.mutated, aten.outputs
    read = at(outputs, differentiable) + outputs[len(forward.outputs) :]
    positions: set[int | None] = set()
    for spec in read:
        positions.add(spec.position)
    positions.update(w.base.position for w in forward.windows_in_node if w.base.role == "input")
    # what an input that is shown holds at the end is a part of it
    if not mutated or forward.rebased or not positions.isdisjoint(mutated):
        return frozenset()
    needed = ancestors(nodes_of(read))
    inputs = aten.inputs
    return frozenset(k for k in mutated if inputs[k] not in needed)


class _EagerReads(NamedTuple):
    """What eager's backward reads: primals as they came in and as they were written, and
    outputs."""

    primals: frozenset[int]
    written_primals: frozenset[int]
    outputs: frozenset[int]


class _Readable:
    """What eager's backward may read, looked up before the gradients are traced: the nodes of views
    are made at that."""

    def __init__(
        self, recorder: AtenTracer, forward: _Forward, differentiable: Sequence[int]
    ) -> None:
        self._graph, self._count = recorder.graph, len(forward.primals)
        self._saved = frozenset(recorder.eager_saves)
        self._last = next(iter(reversed(recorder.graph.nodes)))
        self._written = {k: recorder.node_of(t) for k, t in recorder.written_inputs()}
        self._outputs: dict[int, Node] = {}
        in_node = forward.outputs_in_node
        for k in differentiable:
            if k not in in_node:
                self._outputs[k] = recorder.node_of(recorder.tracked(forward.outputs[k]))

    def reads(self) -> _EagerReads:
        """What is read, once the gradients are traced."""
        placeholders = placeholders_of(self._graph)
        primals = dict(enumerate(placeholders[: self._count]))
        return _EagerReads(*map(self._read, (primals, self._written, self._outputs)))

    def _read(self, nodes: Mapping[int, Node]) -> frozenset[int]:
        return frozenset(k for k, node in nodes.items() if self._is_read(node))

    def _is_read(self, node: Node) -> bool:
        """Whether eager keeps a value or a view of it, or reads one behind the forward's last
        node."""
        if node in self._saved:
            return True
        return any(
            self._last < user or (is_view(user) and self._is_read(user)) for user in node.users
        )


# -- paths through autograd's graph ----------------------------------------------------------------


class _Paths(NamedTuple):
    """Where a tangent goes in eager's backward; see `TangentSlot`."""

    single_use: frozenset[int]
    downstream: frozenset[int]
    reentrant: bool


def _paths_of(heads: Sequence[Tensor]) -> list[_Paths]:
    """The paths of the tangents of these outputs."""
    tangents_at: dict[Any, set[int]] = {}  # by node of autograd's graph
    tangents_on: dict[Any, set[int]] = {}  # by node, and which of its results
    for k, head in enumerate(heads):
        stack = [head.grad_fn]
        while stack:
            node = stack.pop()
            if node is None or k in tangents_at.setdefault(node, set()):
                continue
            tangents_at[node].add(k)
            for edge in node.next_functions:
                tangents_on.setdefault(edge, set()).add(k)
                stack.append(edge[0])
    single_use: list[frozenset[int]] = [frozenset()] * len(heads)
    meetings, reentrant = set[frozenset[int]](), set[int]()
    for node, tangents_here in tangents_at.items():
        if _keeps_tensors(node):
            meetings.add(frozenset(tangents_here))
        if is_reentrant(node):
            reentrant |= tangents_here
    for meeting in meetings:
        for k in meeting:
            single_use[k] |= meeting
    paths = []
    for k, head in enumerate(heads):
        downstream = frozenset(tangents_on.get((head.grad_fn, head.output_nr), ()))
        paths.append(_Paths(single_use[k], downstream, k in reentrant))
    return paths


def _keeps_tensors(node: Any) -> bool:
    """Whether a node of autograd's graph saved tensors for its backward, which may have freed
    them."""
    try:
        of_function = getattr(node, "_raw_saved_tensors", None)
    except RuntimeError:  # those of an autograd.Function, freed
        return True
    if of_function is not None:
        return bool(of_function)
    return any(name.startswith("_raw_saved_") for name in dir(type(node)))


def _primals_behind(head: Tensor, positions: Mapping[int, int]) -> frozenset[int]:
    """The primals that an output leads to in autograd's graph; `positions` are those of the leaves,
    by their ids."""
    primals, reached, stack = set[int](), set[Any](), list[Any]([head.grad_fn])
    while stack:
        node = stack.pop()
        if node is None or node in reached:
            continue
        reached.add(node)
        stack.extend(following for following, _ in node.next_functions)
        if type(node).__name__ == "AccumulateGrad":
            primals.add(positions.get(id(node.variable), -1))
    return frozenset(primals)


def _groups(
    forward: _Forward, fakes: Sequence[Any], differentiable: Sequence[int]
) -> tuple[OutputGroup, ...]:
    """The output groups; none where all outputs come of the same followed primals.

    A primal is followed where the engine would find hooks or other nodes behind it. Outputs without
    a history belong to the first group.
    """
    positions = {}
    for k, leaf in enumerate(forward.leaves):
        positions[id(leaf)] = k
    behind = {}
    for k in differentiable:
        behind[k] = _primals_behind(forward.outputs[k], positions)
    followed = frozenset(k for k, fake in _fakes_at(fakes) if fake.is_followed)
    reached = followed.intersection(itertools.chain(*behind.values()))
    groups: dict[frozenset[int], set[int]] = {}
    for output, primals in behind.items():
        groups.setdefault(reached - primals, set()).add(output)
    if len(groups) < 2:
        return ()
    rest = set(range(len(forward.outputs))).difference(differentiable)
    next(iter(groups.values())).update(rest)
    return tuple([OutputGroup(frozenset(members), reached) for reached, members in groups.items()])


def backward_effects(graph: Graph) -> Iterator[Node]:
    """The effectful nodes that a backward of the program's gave."""
    for node in graph.nodes:
        if node.meta.get("region") == BEHIND and has_effect(node.target):
            yield node


def _acts_for_several(
    groups: Sequence[OutputGroup], outputs: Sequence[int], tangents: Sequence[Node]
) -> bool:
    """Whether the backwards of several groups would each do what eager's does once. `tangents` are
    those of the `outputs`."""
    graph = tangents[0].graph
    effects = set(backward_effects(graph))
    node_of = dict(zip(outputs, tangents))
    reached = []
    for group in groups:
        own = at(node_of, node_of.keys() & group.outputs)
        reached.append(effects & reached_from(own))
    return sum(map(len, reached)) != len(effects) or set().union(*reached) != effects


def placeholders_first(graph: Graph) -> None:
    """Puts the placeholders of a graph, in their order, behind the first of them."""
    anchor = None
    for node in list(graph.nodes):
        if node.op == "placeholder":
            if anchor is not None:
                anchor.append(node)
            anchor = node


# -- the gradients ---------------------------------------------------------------------------------


def _gradients(heads: list[Any], leaves: list[Any], tangents: list[Any]) -> Sequence[Any]:
    """The gradients of the leaves, None for those that the heads do not depend on."""
    without_autocast(Modes.now()).set()
    if not heads or not leaves:
        return [None] * len(leaves)
    try:
        gradients = _run_backward(heads, leaves, tangents)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        raise _BackwardRaises(f"{type(error).__name__}: {first_line(error)}") from error
    for gradient in gradients:
        if is_wrapper_class(type(gradient)):
            name = type(gradient).__name__
            raise unsupported("tensor-subclass", f"the gradient of a plain tensor is a {name}")
    return gradients


def _run_backward(heads: list[Any], leaves: list[Any], tangents: list[Any]) -> Sequence[Any]:
    """The same as `torch.autograd.grad`, which imports sympy to compare the sizes of heads and
    tangents: these agree."""
    keep, create, allow_unused = False, False, True
    args = tuple(heads), tuple(tangents), keep, create, tuple(leaves), allow_unused
    return engine_run_backward(*args, accumulate_grad=False)


def _tangent_of(output: FakeTensor) -> FakeTensor:
    """The tangent of an output, in its layout where that has no gaps."""
    strides = None
    if is_dense(output.shape, output.stride()):
        strides = output.stride()
    with DisableTorchDispatch():
        return new_fake(output.shape, output, strides=strides)
