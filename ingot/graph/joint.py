"""The joint graph: what a captured graph computes and, behind it, the gradients of that, recorded
in one trace.

Autograd runs above the recorder's dispatch, so each op is differentiated by eager's own formula,
and what that formula runs is recorded like any other op. A joint graph is cut in two by
`partition.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.fx

from ingot.errors import unsupported
from ingot.graph.ambient import Modes, preserved
from ingot.graph.aten_graph import AtenGraph, OutputSpec
from ingot.graph.aten_tracer import BEHIND, AtenTracer
from ingot.graph.custom import is_reentrant
from ingot.graph.differentiation import want_gradients, without_autocast
from ingot.graph.fake_context import FakeContext
from ingot.graph.fakes import FakeTensor, is_rebased
from ingot.graph.geometry import is_dense
from ingot.graph.meta import first_line
from ingot.graph.output_windows import Window, windows_on
from ingot.graph.passes import run_passes
from ingot.graph.passes.ownership import is_view
from ingot.graph.passes.pipeline import JOINT_PASSES
from ingot.graph.tracing import run_nodes
from ingot.loops.expr import Symbol
from ingot.loops.side_effects import has_effect
from ingot.torch_private import DisableTorchDispatch, engine_run_backward


class Group(NamedTuple):
    """Outputs that come of the same primals, and the primals that they do not come of."""

    outputs: frozenset[int]
    beyond: frozenset[int]


@dataclass(frozen=True)
class Joint:
    """A graph whose inputs are those of the captured graph, the primals, and then one tangent for
    each differentiable output, and whose outputs are those of the captured graph, then memory that
    only `windows` show, then the gradients.

    `windows` are the outputs of the captured graph that this one gives as 0, of the `given` that it
    has. `outputs` counts the outputs in front of the gradients; the last ones of these stand for
    the inputs `written` by operations that autograd records, as they are then, and are given as 0.
    `differentiable` holds the positions of those that have a tangent, in order; `wanted` those of
    the primals that have a gradient, in order: a subset of those that require one, as the outputs
    may not depend on all. `spent` are the outputs that have a history which autograd refuses to go
    through, and the error that it raises: a loss, say, of which the program itself has taken the
    gradients. `hidden`: outputs have a history, but no primal has a gradient. `apart` are the
    primals that require a gradient and have none, where nothing is spent. `eager_reads` are the
    primals, `eager_reads_written` the primals as they were written, and `eager_reads_outputs` the
    outputs, that eager's backward reads: it refuses to run when the user has written to one of them
    in between, but not when it was another. `shares` says for each tangent, in bits, which of them
    come by a node of eager's backward that it comes by too, and that keeps tensors: it lets nobody
    pass a second time; `reentrant` whether it comes by a checkpoint that eager's backward
    differentiates by itself, for which it must be after all gradients. `passed` says for each which
    others (bits) come by the output that it is the gradient of. `groups` has all outputs, each
    once, where some come of other primals than others do and it matters that these get no gradient:
    the engine visits all that a node leads to, if only to say that there is none. `names` are those
    of the nodes that were traced before the gradients: a node that has one of them has the value
    that the trace gave it, and any trace of the same graph gives it the same. `decided` are the
    sizes that the forward part finds in the data, in order.
    """

    aten: AtenGraph
    primals: int
    given: int
    outputs: int
    windows: tuple[Window, ...]
    written: tuple[int, ...]
    differentiable: tuple[int, ...]
    wanted: tuple[int, ...]
    spent: dict[int, Exception]
    hidden: bool
    apart: tuple[int, ...]
    eager_reads: frozenset[int]
    eager_reads_written: frozenset[int]
    eager_reads_outputs: frozenset[int]
    shares: tuple[int, ...]
    reentrant: tuple[bool, ...]
    passed: tuple[int, ...]
    groups: tuple[Group, ...]
    names: frozenset[str]
    decided: tuple[Symbol, ...]

    @property
    def views(self) -> tuple[Window, ...]:
        """The windows that are made outside of the graph's node in autograd's graph."""
        return tuple([w for w in self.windows if not w.own_history])

    @property
    def windows_in_node(self) -> tuple[Window, ...]:
        """The windows that are results of that node."""
        return tuple([w for w in self.windows if w.own_history])

    @property
    def results(self) -> list[OutputSpec]:
        """The outputs in front of the gradients."""
        return self.aten.outputs[: self.outputs]

    @property
    def written_outputs(self) -> dict[int, int]:
        """The inputs `written`, and the outputs that stand for them."""
        return {k: self.outputs - len(self.written) + j for j, k in enumerate(self.written)}

    @property
    def gradients(self) -> list[OutputSpec]:
        return self.aten.outputs[self.outputs :]

    @property
    def tangents(self) -> list[torch.fx.Node]:
        """The placeholders of the tangents."""
        return self.aten.inputs[self.primals :]


def trace_joint(gm: torch.fx.GraphModule, fakes: Sequence[Any], context: FakeContext) -> Joint:
    """The joint graph of `gm`, whose placeholders stand for `fakes` in order, simplified.

    Raises Unsupported, with the user's line, for what cannot be told without side effects or
    depends on data.
    """
    try:
        return _trace(gm, fakes, context, {})
    except _BackwardRaises as error:
        spent = _spent(gm, fakes, context)
        if not spent:
            raise unsupported("backward-refused", f"the backward raises {error}") from error
    return _trace(gm, fakes, context, spent)


def trace_part(
    joint: Joint,
    given: Collection[int],
    inputs: Collection[int] | None,
    gm: torch.fx.GraphModule,
    fakes: Sequence[Any],
    context: FakeContext,
) -> Joint:
    """The joint graph of `gm`, whose whole one is `joint`, with no other gradients than come of the
    tangents of the outputs `given`, and those of some `inputs` if these are told: to autograd the
    others are not there."""
    return _trace(gm, fakes, context, joint.spent, given, inputs, joint.decided)


class _BackwardRaises(Exception):
    """Says what autograd raised."""


class _Forward(NamedTuple):
    """The primals, and what they are differentiated by; how many outputs the captured graph has;
    the outputs of the joint graph before the gradients, the last of which are the inputs `written`;
    the windows."""

    primals: list[Any]
    leaves: list[Any]
    given: int
    outputs: list[Any]
    written: tuple[int, ...]
    windows: tuple[Window, ...]


def _forward(gm: torch.fx.GraphModule, fakes: Sequence[Any], recorder: AtenTracer) -> _Forward:
    primals = [recorder.input(f"primal_{k}", fake) for k, fake in enumerate(fakes)]
    leaves = want_gradients(primals, fakes)
    try:
        given = run_nodes(gm, recorder, primals)
    except RuntimeError as error:  # of an operation in place
        raise unsupported(
            "gradients-wanted", f"gradients are wanted: {first_line(error)}", recorder.where
        ) from error
    outputs, windows = windows_on(given, primals, recorder)
    written = tuple(k for k, p in enumerate(primals) if isinstance(p, FakeTensor) and is_rebased(p))
    return _Forward(
        primals, leaves, len(given), [*outputs, *(primals[k] for k in written)], written, windows
    )


_WHATEVER_THE_VALUES = (
    "backward through the graph a second time",
    "modified by an inplace operation",
)
"""In errors that autograd raises for what the program did, as opposed to what a formula found."""


def _spent(
    gm: torch.fx.GraphModule, fakes: Sequence[Any], context: FakeContext
) -> dict[int, Exception]:
    """The outputs whose backward raises an error, and that error; none if one of them depends on
    values."""
    recorder, found = AtenTracer(context), dict[int, Exception]()
    with preserved(), recorder:
        forward = _forward(gm, fakes, recorder)
        leaves = [forward.leaves[k] for k in _wanting(forward.leaves)]
        for k, output in enumerate(forward.outputs):
            if isinstance(output, FakeTensor) and output.requires_grad:
                try:
                    torch.autograd.grad(
                        output, leaves, recorder.input("", _like(output)), True, allow_unused=True
                    )
                except (RuntimeError, NotImplementedError) as error:
                    if not any(text in str(error) for text in _WHATEVER_THE_VALUES):
                        return {}
                    found[k] = type(error)(str(error))
    return found


def _trace(
    gm: torch.fx.GraphModule,
    fakes: Sequence[Any],
    context: FakeContext,
    spent: dict[int, Exception],
    given: Collection[int] | None = None,
    inputs: Collection[int] | None = None,
    again: Sequence[Symbol] = (),
) -> Joint:
    recorder = AtenTracer(context, again)
    with preserved(), recorder:
        primals, leaves, count, outputs, written, windows = _forward(gm, fakes, recorder)
        in_node = [w.output for w in windows if w.own_history]
        recorder.region, decided = BEHIND, tuple(context.shapes.unbacked.made)
        names = frozenset(node.name for node in recorder.graph.nodes)
        tracked = [
            k for k, o in enumerate(outputs) if isinstance(o, FakeTensor) and o.requires_grad
        ]
        differentiable = tuple(
            k for k in tracked if k not in spent and (given is None or k in given)
        )
        heads = [outputs[k] for k in differentiable]
        shares, reentrant, passed = _shares(heads)
        groups = (
            ()
            if spent
            else _groups(differentiable, _primals_behind(heads, leaves), fakes, len(outputs))
        )
        last = next(iter(reversed(recorder.graph.nodes)))
        last_values = {k: recorder.node_of(t) for k, t in recorder.written_inputs()}
        nodes = {
            k: recorder.node_of(recorder.tracked(outputs[k]))
            for k in differentiable
            if k not in in_node
        }
        tangents = [recorder.input(f"tangent_{k}", _like(outputs[k])) for k in differentiable]
        wanting = [k for k in _wanting(leaves) if inputs is None or k in inputs]
        gradients = _gradients(heads, [leaves[k] for k in wanting], tangents)
    wanted = tuple(k for k, g in zip(wanting, gradients) if g is not None)
    placeholders = [n for n in recorder.graph.nodes if n.op == "placeholder"]
    reads = frozenset(
        k for k, node in enumerate(placeholders[: len(primals)]) if _read_after(node, last)
    )
    reads_written = frozenset(k for k, node in last_values.items() if _read_after(node, last))
    reads_outputs = frozenset(k for k, node in nodes.items() if _read_after(node, last))
    for k in (*in_node, *range(len(outputs) - len(written), len(outputs))):
        outputs[k] = 0
    aten = recorder.finish([*outputs, *(g for g in gradients if g is not None)])
    placeholders_first(aten.graph)
    if groups and _acts_for_several(groups, differentiable, aten.inputs[len(primals) :]):
        groups = ()
    run_passes(aten, JOINT_PASSES)
    return Joint(
        aten,
        len(primals),
        count,
        len(outputs),
        windows,
        written,
        differentiable,
        wanted,
        spent,
        hidden=bool(tracked) and not wanted,
        apart=tuple(k for k in wanting if k not in wanted and not spent),
        eager_reads=reads,
        eager_reads_written=reads_written,
        eager_reads_outputs=reads_outputs,
        shares=shares,
        reentrant=reentrant,
        passed=passed,
        groups=groups,
        names=names,
        decided=decided,
    )


def _wanting(leaves: Sequence[Any]) -> list[int]:
    """The positions of the primals that require a gradient."""
    return [
        k
        for k, leaf in enumerate(leaves)
        if isinstance(leaf, FakeTensor) and leaf.requires_grad and leaf.is_leaf
    ]


def _shares(
    heads: Sequence[torch.Tensor],
) -> tuple[tuple[int, ...], tuple[bool, ...], tuple[int, ...]]:
    """`Joint.shares`, `Joint.reentrant` and `Joint.passed`."""
    reached: dict[Any, int] = {}  # by node of autograd's graph
    results: dict[Any, int] = {}  # by node, and by which of its results
    for k, head in enumerate(heads):
        stack = [head.grad_fn]
        while stack:
            node = stack.pop()
            if node is not None and not reached.get(node, 0) & 1 << k:
                reached[node] = reached.get(node, 0) | 1 << k
                stack.extend(following for following, _ in node.next_functions)
                for edge in node.next_functions:
                    results[edge] = results.get(edge, 0) | 1 << k
    found = [0] * len(heads)
    for heads_of_node in {bits for node, bits in reached.items() if _keeps_tensors(node)}:
        for k in range(len(heads)):
            if heads_of_node & 1 << k:
                found[k] |= heads_of_node
    inside = [bits for node, bits in reached.items() if is_reentrant(node)]
    passed = [results.get((head.grad_fn, head.output_nr), 0) for head in heads]
    return (
        tuple(found),
        tuple([any(bits & 1 << k for bits in inside) for k in range(len(heads))]),
        tuple(passed),
    )


def _primals_behind(heads: Sequence[torch.Tensor], leaves: Sequence[Any]) -> list[frozenset[int]]:
    """The primals that each of the heads leads to in autograd's graph."""
    positions = {id(leaf): k for k, leaf in enumerate(leaves)}
    behind = list[frozenset[int]]()
    for head in heads:
        found, reached, stack = set[int](), set[Any](), list[Any]([head.grad_fn])
        while stack:
            node = stack.pop()
            if node is not None and node not in reached:
                reached.add(node)
                stack.extend(following for following, _ in node.next_functions)
                if type(node).__name__ == "AccumulateGrad":
                    found.add(positions.get(id(node.variable), -1))
        behind.append(frozenset(found))
    return behind


def _groups(
    outputs: Sequence[int], behind: Sequence[frozenset[int]], fakes: Sequence[Any], count: int
) -> tuple[Group, ...]:
    """`Joint.groups` of `count` outputs, of which those with a history come of the primals `behind`
    them."""
    followed = {
        k for k, fake in enumerate(fakes) if isinstance(fake, FakeTensor) and fake.is_followed
    }
    told_apart = frozenset(followed).intersection(itertools.chain(*behind))
    groups: dict[frozenset[int], set[int]] = {}
    for output, primals in zip(outputs, behind):
        groups.setdefault(told_apart - primals, set()).add(output)
    if len(groups) < 2:
        return ()
    next(iter(groups.values())).update(set(range(count)).difference(outputs))
    return tuple([Group(frozenset(members), beyond) for beyond, members in groups.items()])


def _acts_for_several(
    groups: Sequence[Group], outputs: Sequence[int], tangents: Sequence[torch.fx.Node]
) -> bool:
    """Whether the backwards of several groups would each do what eager's does once. `tangents` are
    those of the `outputs`."""
    graph = tangents[0].graph
    acting = {n for n in graph.nodes if n.meta.get("region") == BEHIND and has_effect(n.target)}
    reached = [
        acting & reached_from([t for k, t in zip(outputs, tangents) if k in group.outputs])
        for group in groups
    ]
    return sum(map(len, reached)) != len(acting) or set().union(*reached) != acting


def reached_from(nodes: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    """The nodes, and all that is computed from them."""
    found = set[torch.fx.Node]()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found and node.op != "output":
            found.add(node)
            stack.extend(node.users)
    return found


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


def _gradients(heads: list[Any], leaves: list[Any], tangents: list[Any]) -> Sequence[Any]:
    """What autograd makes of it."""
    without_autocast(Modes.now()).set()
    if not heads or not leaves:
        return [None] * len(leaves)
    try:
        return _run_backward(heads, leaves, tangents)
    except (RuntimeError, NotImplementedError) as error:
        raise _BackwardRaises(f"{type(error).__name__}: {first_line(error)}") from error


def _run_backward(heads: list[Any], leaves: list[Any], tangents: list[Any]) -> Sequence[Any]:
    """`torch.autograd.grad`, which imports sympy to compare the sizes of heads and tangents: these
    agree."""
    keep, create, allow_unused = False, False, True
    return engine_run_backward(
        tuple(heads),
        tuple(tangents),
        keep,
        create,
        tuple(leaves),
        allow_unused,
        accumulate_grad=False,
    )


def _like(output: FakeTensor) -> FakeTensor:
    """The tangent of an output, in its layout where that has no gaps."""
    strides = output.stride() if is_dense(output.shape, output.stride()) else None
    with DisableTorchDispatch():
        meta = torch.empty(output.shape, dtype=output.dtype, device="meta")
        if strides is not None:
            meta = torch.empty_strided(output.shape, strides, dtype=output.dtype, device="meta")
    return FakeTensor(meta, output.device)


def _read_after(node: torch.fx.Node, last: torch.fx.Node) -> bool:
    """Whether a value, or a view of it, is read behind the forward's last node."""
    return any(last < user or (is_view(user) and _read_after(user, last)) for user in node.users)


def placeholders_first(graph: torch.fx.Graph) -> None:
    """Puts the placeholders of a graph, in their order, behind the first of them."""
    anchor = None
    for node in list(graph.nodes):
        if node.op == "placeholder":
            if anchor is not None:
                anchor.append(node)
            anchor = node
