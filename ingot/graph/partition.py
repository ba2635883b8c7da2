"""The cut through a joint graph: what the forward saves for the backward, and what the backward
computes again.

A joint graph goes in; a forward, a backward and their contract come out. A value that the backward
reads is saved, or it is computed again from values that are. The cut that saves the fewest bytes is
a minimum cut of a network in which each value of the forward is an edge of its size. An op that
must not run twice (it draws random numbers, or a library computes it) cannot be on the far side of
the cut. One that is there costs a share of its size: of what takes about the same memory, what
takes less work is chosen.

In a checkpointed region nothing is saved but what is read outside of it, what a policy of the
program's says, and small reductions that comparisons depend on, which must be decided alike in
both. The backward computes the region from
there, right before it is needed, and draws again what it draws there.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch.fx import Graph, Node

from ingot.errors import unsupported
from ingot.graph.aten_graph import AtenGraph, OutputSpec, Place, copied, nodes_of
from ingot.graph.aten_tracer import BEHIND
from ingot.graph.geometry import at_hand
from ingot.graph.joint import JointGraph, backward_effects
from ingot.graph.min_cut import INFINITE, Network
from ingot.graph.nodes import (
    ancestors,
    fake_result,
    inputs_of,
    is_pointwise_call,
    must_run,
    order_of,
    reached_from,
)
from ingot.graph.output_windows import size_places
from ingot.graph.passes import run_passes
from ingot.graph.passes.cse import call_key, repeats_itself
from ingot.graph.passes.layouts import laid_out
from ingot.graph.passes.ownership import is_view
from ingot.graph.passes.pipeline import TRAINING_PASSES
from ingot.graph.replay import drawn_again
from ingot.graph.schemas import Cost, cost_of
from ingot.graph.symbols import to_expr
from ingot.graph.unit_tangent import compute_ahead, linear_values
from ingot.loops.expr import Symbol
from ingot.loops.functional_ops import FunctionalForm
from ingot.loops.side_effects import UNINITIALIZED, has_effect
from ingot.loops.training_contract import SizePlace, Slot, TrainingContract
from ingot.sequences import at
from ingot.torch_private import OpOverload, aten


@dataclass(frozen=True)
class Partition:
    """A joint graph in two.

    - The forward takes the primals.
    - It returns the outputs, then the "kept" values, then the sizes that are `decided` by the data.
    - The backward takes the `values` of the joint graph, which are found in the slots `saved`, then
      the tangents, then the values of the size symbols: of `symbols`, read among the primals at
      these places, and of `decided`.
    - It returns the gradients.
    """

    joint: JointGraph
    forward: AtenGraph
    backward: AtenGraph
    saved: tuple[Slot, ...]
    values: tuple[Node, ...]
    symbols: dict[Symbol, Place]
    decided: tuple[Symbol, ...]

    @property
    def draws(self) -> bool:
        """Whether the forward draws random numbers."""
        return any(self.forward.random_nodes)

    def contract(self) -> TrainingContract:
        """The joint graph's contract, narrowed. Its expressions are in terms of the symbols that
        are free now, so it is to be asked for once the forward is compiled."""
        first = len(self.joint.contract.outputs) + sum(s.role == "kept" for s in self.saved)
        places: dict[Symbol, SizePlace] = dict(self.symbols)
        for k, symbol in enumerate(self.decided):
            places[symbol] = (first + k, "result value", 0)
        windows, window_places = self.joint.contract.windows, dict[Symbol, SizePlace]()
        if windows:
            window_places = size_places(windows, self.symbols, self.joint.results)
        return TrainingContract.narrowed(
            self.joint.contract, self.saved, places, window_places, to_expr
        )


def partition(joint: JointGraph) -> Partition:
    """Cut a joint graph. See the module's text for the rule."""
    whole, primals, tangents = joint.aten, joint.primals, joint.tangents
    owned = _owned_outputs(joint)
    slots = _slots_at_no_cost(joint, owned)
    late = _late(whole.graph, tangents)
    copied = {*primals, *owned}.difference(slots)
    values = _cut(joint, late, set(slots), copied)
    values = _ahead(joint, values, set(slots), late)
    late = _late(whole.graph, tangents)
    kept = [node for node in values if node not in slots]
    for k, node in enumerate(kept):
        slots[node] = Slot("kept", k)
    saved = tuple(at(slots, values))
    symbols: dict[Symbol, Place] = {}
    for symbol, place in whole.symbols.items():
        if place[0] < len(primals):
            symbols[symbol] = place
    decided = _decided_by_forward(whole, late, symbols)
    forward = _forward(joint, kept, decided, late)
    backward = _backward(joint, values, saved, [*symbols, *decided])
    if backward.checks:
        raise unsupported(
            "late-error",
            f"{backward.checks[0]} is checked in the backward",
            backward.checks[0].where,
        )
    return Partition(joint, forward, backward, saved, tuple(values), symbols, decided)


def _owned_outputs(joint: JointGraph) -> dict[Node, int]:
    """The values that are an output as they are, in memory that the caller comes to own."""
    owned = {}
    for k, spec in enumerate(joint.results):
        if spec.position is None and spec.whole and spec.node is not None:
            owned[spec.node] = k
    return owned


def _slots_at_no_cost(joint: JointGraph, owned: dict[Node, int]) -> dict[Node, Slot]:
    """The values that the backward may read where they are. Eager's backward reads these inputs and
    outputs too, so it is an error there as well if the user writes them in between."""
    primals, contract, final = joint.primals, joint.contract, dict(joint.aten.mutations)
    slots: dict[Node, Slot] = {}
    for slot in contract.inputs:
        node = primals[slot.position]
        # eager keeps no copy of what it reads when it runs a checkpointed region again
        is_read = slot.eager_reads or any(map(_is_checkpointed, node.users))
        if is_read and not slot.mutated:
            slots[node] = Slot("input", slot.position)
    for node, k in owned.items():
        if contract.outputs[k].eager_reads and not is_view(node):
            slots[node] = Slot("output", k)
    for slot in contract.inputs:
        if not slot.eager_reads_result:
            continue
        node = final[slot.position]
        same_strides = fake_result(node).stride() == fake_result(primals[slot.position]).stride()
        if same_strides and not is_view(node):
            place = Slot("input", slot.position)
            if slot.rebased_as is not None:
                place = Slot("output", slot.rebased_as)
            slots.setdefault(node, place)
    return slots


def _decided_by_forward(
    whole: AtenGraph, late: Container[Node], symbols: Container[Symbol]
) -> tuple[Symbol, ...]:
    """The sizes that the forward finds in the data, in order."""
    decided: dict[Symbol, None] = {}
    for root, (node, _) in whole.bindings.items():
        if node in late:
            continue
        size = to_expr(whole.shapes.wrap(root))
        if isinstance(size, Symbol) and size not in symbols:
            decided[size] = None
    return tuple(decided)


# -- parts of a backward ---------------------------------------------------------------------------


def partial_backward(cut: Partition, joint: JointGraph) -> AtenGraph | None:
    """The backward of a joint graph that differs from that of `cut` in that fewer tangents come in.
    It takes what the forward of `cut` saves, and those tangents. None where that would not
    suffice."""
    graph = joint.aten.graph
    roots = joint.aten.shapes.unbacked.roots
    if not set(joint.decided).issuperset(at(roots, cut.decided)):
        return None
    for node in graph.nodes:
        if node.target in _UP_TO_FACTORS:
            return None
    counterparts = _counterparts(cut.joint, joint)
    values = [counterparts.get(node, node) for node in cut.values]
    primals, tangents = joint.primals, joint.tangents
    late = _late(graph, tangents)
    available = {*values, *tangents}
    needed = ancestors([*nodes_of(joint.gradients), *_acting(graph, late)], available)
    for node in needed:
        runs_once = node not in late and must_run(node) and not _is_checkpointed(node)
        if runs_once or node in primals:
            return None
    backward = _backward(joint, values, cut.saved, [*cut.symbols, *cut.decided])
    if backward.checks:
        return None
    return backward


def _counterparts(joint: JointGraph, other: JointGraph) -> dict[Node, Node]:
    """For nodes of a joint graph those of `other`, one of the same captured graph, that have the
    same values. Nodes that were traced before the gradients are known by their names, others as
    equal calls."""
    by_name: dict[str, Node] = {}
    by_call: dict[Any, Node] = {}
    for node in joint.aten.graph.nodes:
        if node.op == "placeholder" or node.name in joint.names:
            by_name[node.name] = node
        if repeats_itself(node):
            by_call.setdefault(call_key(node), node)
    same: dict[Node, Node] = {}
    counterparts: dict[Node, Node] = {}
    for node in other.aten.graph.nodes:
        counterpart = None
        if node.op == "placeholder" or node.name in other.names:
            counterpart = by_name.get(node.name)
        if counterpart is None and repeats_itself(node):
            counterpart = by_call.get(call_key(node, same))
        if counterpart is not None:
            same[node] = counterpart
            counterparts[counterpart] = node
    return counterparts


_UP_TO_FACTORS = {aten.linalg_eig.default, aten._linalg_eigh.default, aten._linalg_svd.default}
"""Ops that give vectors up to factors. Eager's formula for their tangent alone takes for granted
that it does not depend on these factors; as a part of a second derivative it may, and the formula
for all tangents is right then too."""


def saved_for(cut: Partition, tangents: Iterable[int]) -> frozenset[int]:
    """Which of the saved values may be read where only some of the tangents, by their position,
    come in."""
    late = _late(cut.joint.aten.graph, at(cut.joint.tangents, tangents))
    needed = ancestors(chain.from_iterable(node.all_input_nodes for node in late))
    return frozenset(k for k, node in enumerate(cut.values) if node in needed)


def gradient_inputs_of(cut: Partition, tangents: Iterable[int]) -> tuple[int, ...]:
    """The inputs whose gradients depend on some of the tangents, by their position."""
    joint = cut.joint
    late = _late(joint.aten.graph, at(joint.tangents, tangents))
    gradients = zip(joint.contract.gradient_inputs, joint.gradients)
    return tuple([k for k, gradient in gradients if gradient.node in late])


def _late(graph: Graph, tangents: Sequence[Node]) -> set[Node]:
    """The nodes of the backward: those that depend on a tangent, or on an effect that a backward of
    the program's has."""
    return reached_from([*tangents, *backward_effects(graph)])


def _acting(graph: Graph, late: Container[Node]) -> list[Node]:
    """The effectful nodes of the backward."""
    results = []
    for node in graph.nodes:
        if node in late and has_effect(node.target):
            results.append(node)
    return results


# -- the cut ---------------------------------------------------------------------------------------


class _Costs:
    """The capacities of the network: what saving a value costs, and what computing it again
    does.

    `available` values cost nothing, since they are there anyway. Those to be `copied`, which the
    user may write, cost twice. Those that only a kernel has in its registers cost a little more
    than those that are in memory.
    """

    def __init__(
        self,
        graph: Graph,
        candidates: Iterable[Node],
        stored: set[Node],
        available: set[Node],
        copied: set[Node],
    ) -> None:
        self._stored, self._available, self._copied = stored, available, copied
        self._has_checkpoints = any(map(_is_checkpointed, graph.nodes))
        self._varying, self._compared = set[Node](), set[Node]()
        if self._has_checkpoints:
            self._varying = reached_from(filter(_varies, graph.nodes))
            self._compared = ancestors(filter(_compares, candidates))

    def of_saving(self, node: Node) -> int:
        if self._is_rerun(node) or is_view(node) or not _is_tensor(node):
            return INFINITE
        if node in self._available:
            return 1
        size = _bytes(node) * (8 if node in self._stored else 9) // 8
        if node in self._copied:
            return size * 2
        return size

    def of_recomputing(self, node: Node) -> int:
        if self._is_rerun(node) or node.target in UNINITIALIZED:
            return 0
        if self._has_checkpoints and node.meta.get("region") == BEHIND:
            return 0
        if node.op == "placeholder" or not _repeats(node):
            return INFINITE
        if _is_checkpointed(node) and not is_view(node):
            return INFINITE
        return _work(node, node in self._stored)

    def _is_rerun(self, node: Node) -> bool:
        """Whether a value is computed again with its checkpointed region, whatever that costs."""
        if not _is_checkpointed(node) or "saved" in node.meta:
            return False
        if node not in self._varying:
            return True
        is_compared_statistic = node in self._compared and _is_statistic(node)
        return not (_leaves_region(node) or is_compared_statistic)


def _varies(node: Node) -> bool:
    """Whether a value may differ from call to call, whatever it is computed from."""
    return node.op == "placeholder" or has_effect(node.target)


def _cut(joint: JointGraph, late: set[Node], available: set[Node], copied: set[Node]) -> list[Node]:
    """The values that are saved, in the graph's order."""
    graph = joint.aten.graph
    ends = {*nodes_of(joint.gradients), *_acting(graph, late)}
    needed = ancestors(ends)
    needed_late = needed & late
    candidates = []
    for n in graph.nodes:
        if n in needed and n not in late and n.op != "get_attr":
            candidates.append(n)
    costs = _Costs(graph, candidates, _stored(graph, late), available, copied)
    network = Network()
    source, sink = network.node(), network.node()
    before: dict[Node, int] = {}
    after: dict[Node, int] = {}
    for node in candidates:
        before[node], after[node] = network.node(), network.node()
        network.edge(before[node], after[node], costs.of_saving(node))
        network.edge(source, before[node], costs.of_recomputing(node))
        for argument in inputs_of(node):
            if argument in after:
                network.edge(after[argument], before[node])
        if node in ends or not needed_late.isdisjoint(node.users):
            network.edge(after[node], sink)
    beyond = network.cut(source, sink)
    return [node for node in candidates if beyond[after[node]] and not beyond[before[node]]]


def _ahead(
    joint: JointGraph, saved: list[Node], available: set[Node], late: set[Node]
) -> list[Node]:
    """The values that are saved if the forward computes what is linear in the only tangent. Changes
    the graph.

    That is done where it takes no more bytes than the values that are saved for this alone, and are
    in memory for no other reason.
    """
    whole = joint.aten
    if len(joint.tangents) != 1:
        return saved
    (tangent,) = joint.tangents
    linear = linear_values(whole, tangent)
    if not linear or any(map(_is_checkpointed, whole.graph.nodes)):
        return saved
    roots = set(nodes_of(joint.gradients))
    rest = ancestors(roots, {*saved, tangent, *linear})
    needed = []
    for node in saved:
        if node in roots or not rest.isdisjoint(node.users):
            needed.append(node)
    in_memory = {*needed, *available, *_stored(whole.graph, late)}
    replaced = []
    for node in saved:
        if node not in in_memory and not is_view(node):
            replaced.append(node)
    if sum(map(_bytes, linear)) > sum(map(_bytes, replaced)):
        return saved
    return [*needed, *compute_ahead(whole, tangent, linear)]


def _is_checkpointed(node: Node) -> bool:
    return node.meta.get("region", BEHIND) != BEHIND


def _leaves_region(node: Node) -> bool:
    """Whether a value of a checkpointed region, or a view of it, is read by another part of the
    forward."""
    region = node.meta["region"]
    for user in node.users:
        if user.op == "output" or user.meta.get("region") not in (region, BEHIND):
            return True
        if is_view(user) and _leaves_region(user):
            return True
    return False


def _compares(node: Node) -> bool:
    """Whether a value is a choice that floats decide: a comparison, a place, a count."""
    return not _is_floating(node) and any(map(_is_floating, node.all_input_nodes))


def _is_statistic(node: Node) -> bool:
    """Whether a value is a small reduction, of many elements to each of its own. Another kernel may
    add them up in another order, and a comparison with it come out otherwise."""
    source = None
    if node.args:
        source = node.args[0]
    if _REDUCTION not in getattr(node.target, "tags", ()) or not isinstance(source, Node):
        return False
    return _is_floating(node) and _bytes(node) * STATISTIC <= _bytes(source)


def _is_tensor(node: Node) -> bool:
    return isinstance(fake_result(node), Tensor)


def _is_floating(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.dtype.is_floating_point


def _repeats(node: Node) -> bool:
    """Whether the backward may compute a value again: that costs about as much as reading it."""
    if has_effect(node.target):
        return False
    if node.target is operator.getitem or is_view(node):
        return True
    if not isinstance(node.target, OpOverload) or node.meta.get("may_raise"):
        return False
    return is_pointwise_call(node) or cost_of(node.target) is Cost.LIGHT


def _stored(graph: Graph, late: set[Node]) -> set[Node]:
    """The values that the forward has in memory in any case. A contraction or a library call reads
    them, makes them for several readers, or stands between them and a reader."""
    calls: dict[Node, int] = {}  # contractions and library calls on the longest way to a node
    for node in graph.nodes:
        if node not in late and node.op != "output":
            before = max([calls.get(argument, 0) for argument in node.all_input_nodes], default=0)
            calls[node] = before + _reads_memory(node)
    stored = set()
    for node in calls:
        readers = list(_readers(node, late))
        several = not _repeats(node) and (len(readers) > 1 or _is_of_library(node))
        if several or any(calls.get(reader, 0) > calls[node] for reader in readers):
            stored.add(node)
    return stored


def _is_of_library(node: Node) -> bool:
    """Whether a value is a contraction of a library's, which computes nothing that follows: on a
    GPU, or of halves."""
    if cost_of(node.target) is not Cost.CONTRACTION:
        return False
    value: Tensor = fake_result(node)
    return value.device.type != "cpu" or value.dtype not in (torch.float32, torch.float64)


def _readers(node: Node, late: set[Node]) -> Iterator[Node]:
    """The nodes of the forward that read a value or a view of it."""
    for user in node.users:
        if user in late:
            continue
        if is_view(user):
            yield from _readers(user, late)
        else:
            yield user


def _reads_memory(node: Node) -> bool:
    if isinstance(node.target, FunctionalForm):
        return True
    if not isinstance(node.target, OpOverload) or _repeats(node):
        return False
    if cost_of(node.target) is Cost.LOOKUP:
        return False
    return _REDUCTION not in node.target.tags


STATISTIC = 16  # elements that are reduced to each element of a statistic, at least
_REDUCTION = getattr(torch.Tag, "reduction", None)


def _work(node: Node, stored: bool) -> int:
    """The price of computing a value again, in bytes. One that is `stored` in the forward is in the
    backward too: a chain of such sums, of what halves add to float32, costs more than saving
    them."""
    if is_view(node) or not _is_tensor(node):
        return 0
    if stored:
        return _bytes(node) * 5 // 8
    is_light = cost_of(node.target) is Cost.LIGHT
    return _bytes(node) // (256 if is_light else 32)


def _bytes(node: Node) -> int:
    """About the bytes that a value takes; symbols have their hints."""
    value: Tensor = fake_result(node)
    count = value.itemsize
    for size in value.shape:
        count *= at_hand(size)
    return 1 + count


# -- the two graphs --------------------------------------------------------------------------------


def _copied(
    whole: AtenGraph, inputs: dict[Node, Node], graph: Graph, roots: Iterable[Node]
) -> dict[Node, Node]:
    """Copies into `graph` what the roots depend on, up to the nodes that its `inputs` stand for."""
    needed = ancestors(roots, inputs)
    copies = dict(inputs)
    for node in whole.graph.nodes:
        if node in needed:
            copies[node] = copied(graph, node, copies.__getitem__)
    return copies


def _copied_with_regions(
    whole: AtenGraph,
    inputs: dict[Node, Node],
    graph: Graph,
    roots: Sequence[Node],
    late: set[Node],
) -> dict[Node, Node]:
    """The same for a backward that computes checkpointed regions again: each value right before it
    is needed."""
    needed = ancestors(roots, inputs)
    order = order_of(whole.graph)
    copies = dict(inputs)
    for last in whole.graph.nodes:
        if last not in needed or not (last in late or last in roots):
            continue
        for node in sorted(ancestors([last], copies), key=order.__getitem__):
            if "state" in node.meta:
                copies[node] = _drawn_again(graph, node, copies)
            else:
                copies[node] = copied(graph, node, copies.__getitem__)
    return copies


def _drawn_again(graph: Graph, node: Node, copies: dict[Node, Node]) -> Node:
    """A copy of a node that draws, from the state that the generator had in the forward."""
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), copies.__getitem__)
    state = copies[node.meta["state"]]
    again = graph.call_function(drawn_again(node.target), (state, *args), kwargs)
    again.meta.update(node.meta)
    return again


def _forward(
    joint: JointGraph, kept: list[Node], decided: Iterable[Symbol], late: set[Node]
) -> AtenGraph:
    whole, graph = joint.aten, Graph()
    inputs = {}
    for node in joint.primals:
        inputs[node] = graph.node_copy(node)
    final = dict(whole.mutations)
    runs = []
    for node in whole.graph.nodes:
        if node not in late and must_run(node):
            runs.append(node)
    copies = _copied(
        whole, inputs, graph, [*nodes_of(joint.results), *final.values(), *kept, *runs]
    )
    specs = []
    for spec in joint.results:
        specs.append(_on_copy(spec, copies))
    specs += map(_whole, at(copies, kept))
    for symbol in decided:
        specs.append(OutputSpec(value=whole.shapes.wrap(symbol)))
    mutations = zip(final, at(copies, final.values()))
    forward = _finished(whole, graph, specs, mutations)
    forward.uncounted = whole.uncounted
    return forward


def _backward(
    joint: JointGraph, values: list[Node], saved: Sequence[Slot], symbols: Iterable[Symbol]
) -> AtenGraph:
    """The backward that takes these values of the joint graph from the slots `saved`."""
    whole, tangents, graph = joint.aten, joint.tangents, Graph()
    inputs = {}
    for node, slot in zip(values, saved):
        # a kept value has the layout that was chosen for it, others have eager's
        if slot.role == "kept":
            value = laid_out(node)
        else:
            value = fake_result(node)
        inputs[node] = _placeholder(graph, node, value)
    for node in tangents:
        inputs[node] = _placeholder(graph, node, fake_result(node))
    for symbol in symbols:
        graph.placeholder(f"size_{symbol}").meta.update(val=whole.shapes.wrap(symbol), where="")
    late, gradients = _late(whole.graph, tangents), joint.gradients
    roots = [*nodes_of(gradients), *_acting(whole.graph, late)]
    if any(map(_is_checkpointed, whole.graph.nodes)):
        copies = _copied_with_regions(whole, inputs, graph, roots, late)
    else:
        copies = _copied(whole, inputs, graph, roots)
    # a gradient is never an alias, not even of a tangent
    specs = []
    for spec in gradients:
        specs.append(replace(_on_copy(spec, copies), position=None))
    backward = _finished(whole, graph, specs, [])
    backward.lends = frozenset(k for k, slot in enumerate(saved) if slot.role == "kept")
    return backward


def _placeholder(graph: Graph, node: Node, value: Any) -> Node:
    """An input for a node of the joint graph."""
    placeholder = graph.placeholder(node.name)
    placeholder.meta.update(val=value, in_eager=fake_result(node), where=node.meta.get("where", ""))
    return placeholder


def _finished(whole: AtenGraph, graph: Graph, specs: list[OutputSpec], mutations: Any) -> AtenGraph:
    names = set()
    for node in graph.find_nodes(op="get_attr"):
        names.add(node.target)
    constants = {}
    for name, value in whole.constants.items():
        if name in names:
            constants[name] = value
    finished = AtenGraph(graph, specs, mutations, constants, whole.shapes)
    run_passes(finished, TRAINING_PASSES)
    return finished


def _on_copy(spec: OutputSpec, copies: dict[Node, Node]) -> OutputSpec:
    """The spec of an output, on the copy of its node."""
    if spec.node is None:
        return spec
    return replace(spec, node=copies[spec.node])


def _whole(node: Node) -> OutputSpec:
    """The spec of a kept value."""
    value = laid_out(node)
    return OutputSpec(
        node, tuple(value.shape), value.stride(), 0, value.dtype, None, None, id(node)
    )
