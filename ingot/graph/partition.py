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

Under a budget (`memory_budget.py`) an op that takes long may be on the far side of the cut as well.
"""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch
import torch.fx
from torch.fx import Graph, Node

from ingot.errors import unsupported
from ingot.graph.aten_graph import AtenGraph, OutputSpec, Place, copied, nodes_of
from ingot.graph.joint import JointGraph, backward_effects
from ingot.graph.memory_budget import WHOLE, Price, usual_price, within
from ingot.graph.min_cut import Network
from ingot.graph.nodes import (
    ancestors,
    fake_result,
    inputs_of,
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
from ingot.graph.saving_costs import Costs, bytes_of, is_checkpointed, stored_values
from ingot.graph.symbols import to_expr
from ingot.graph.unit_tangent import compute_ahead, linear_values
from ingot.loops.expr import Symbol
from ingot.loops.side_effects import has_effect
from ingot.loops.training_contract import SizePlace, Slot, TrainingContract
from ingot.sequences import at
from ingot.torch_private import aten


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


def partition(joint: JointGraph, budget: float | None = None) -> Partition:
    """Cut a joint graph. See the module's text for the rule; `budget` is the share of the bytes
    that it may save, None for all."""
    whole, primals, tangents = joint.aten, joint.primals, joint.tangents
    owned, is_less = _owned_outputs(joint), budget is not None and budget < WHOLE
    slots = _slots_at_no_cost(joint, owned, is_less)
    late = _late(whole.graph, tangents)
    copied = {*primals, *owned}.difference(slots)
    cuts = _Cuts(joint, late, set(slots), copied, is_less)
    if budget is not None and is_less:
        values = within(
            budget, cuts.at, functools.partial(_kept_bytes, slots), order_of(whole.graph)
        )
    else:
        values = cuts.at(usual_price)
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


def _kept_bytes(slots: Container[Node], values: Sequence[Node]) -> int:
    """The bytes of the values that are saved, but for those that are there anyway."""
    total = 0
    for node in values:
        if node not in slots:
            total += bytes_of(node)
    return total


def _owned_outputs(joint: JointGraph) -> dict[Node, int]:
    """The values that are an output as they are, in memory that the caller comes to own."""
    owned = {}
    for k, spec in enumerate(joint.results):
        if spec.position is None and spec.whole and spec.node is not None:
            owned[spec.node] = k
    return owned


def _slots_at_no_cost(
    joint: JointGraph, owned: dict[Node, int], any_input: bool
) -> dict[Node, Slot]:
    """The values that the backward may read where they are. Eager's backward reads these inputs and
    outputs too, so it is an error there as well if the user writes them in between. It may read
    `any_input` where most is computed again."""
    primals, contract, final = joint.primals, joint.contract, dict(joint.aten.mutations)
    slots: dict[Node, Slot] = {}
    for slot in contract.inputs:
        node = primals[slot.position]
        # eager keeps no copy of what it reads when it runs a checkpointed region again
        is_read = any_input or slot.eager_reads or any(map(is_checkpointed, node.users))
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
        runs_once = node not in late and must_run(node) and not is_checkpointed(node)
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


class _Cuts:
    """The minimum cuts of a joint graph. Under a budget it `is_less` that is saved."""

    def __init__(
        self,
        joint: JointGraph,
        late: set[Node],
        available: set[Node],
        copied: set[Node],
        is_less: bool,
    ) -> None:
        graph = joint.aten.graph
        ends = {*nodes_of(joint.gradients), *_acting(graph, late)}
        needed = ancestors(ends)
        needed_late = needed & late
        self._candidates, self._last = list[Node](), set[Node]()
        for node in graph.nodes:
            if node not in needed or node in late or node.op == "get_attr":
                continue
            self._candidates.append(node)
            if node in ends or not needed_late.isdisjoint(node.users):
                self._last.add(node)
        stored = stored_values(graph, late)
        self._costs = Costs(graph, self._candidates, stored, available, copied, is_less)

    def at(self, price: Price) -> list[Node]:
        """The values that are saved at a price of computing others again, in the graph's order."""
        costs, network = self._costs, Network()
        source, sink = network.node(), network.node()
        before: dict[Node, int] = {}
        after: dict[Node, int] = {}
        for node in self._candidates:
            before[node], after[node] = network.node(), network.node()
            network.edge(before[node], after[node], costs.of_saving(node))
            network.edge(source, before[node], costs.of_recomputing(node, price(node)))
            for argument in inputs_of(node):
                if argument in after:
                    network.edge(after[argument], before[node])
            if node in self._last:
                network.edge(after[node], sink)
        beyond = network.cut(source, sink)
        saved = []
        for node in self._candidates:
            if beyond[after[node]] and not beyond[before[node]]:
                saved.append(node)
        return saved


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
    if not linear or any(map(is_checkpointed, whole.graph.nodes)):
        return saved
    roots = set(nodes_of(joint.gradients))
    rest = ancestors(roots, {*saved, tangent, *linear})
    needed = []
    for node in saved:
        if node in roots or not rest.isdisjoint(node.users):
            needed.append(node)
    in_memory = {*needed, *available, *stored_values(whole.graph, late)}
    replaced = []
    for node in saved:
        if node not in in_memory and not is_view(node):
            replaced.append(node)
    if sum(map(bytes_of, linear)) > sum(map(bytes_of, replaced)):
        return saved
    return [*needed, *compute_ahead(whole, tangent, linear)]


# -- the two graphs --------------------------------------------------------------------------------


def _copied_when_known(
    joint: JointGraph, inputs: dict[Node, Node], graph: Graph, roots: Iterable[Node]
) -> dict[Node, Node]:
    """Copies into `graph` what the roots depend on, up to the nodes that its `inputs` stand for.

    What was traced for the gradients comes right behind what it is computed from.
    """
    needed = ancestors(roots, inputs)
    order = order_of(joint.aten.graph)
    place: dict[Node, int] = {}
    for node in joint.aten.graph.nodes:
        place[node] = order[node]
        if node in needed and node.name not in joint.names and not must_run(node):
            place[node] = max(map(place.__getitem__, node.all_input_nodes), default=order[node])
    copies = dict(inputs)
    for node in sorted(needed, key=lambda node: (place[node], order[node])):
        copies[node] = copied(graph, node, copies.__getitem__)
    return copies


def _copied_when_needed(
    whole: AtenGraph,
    inputs: dict[Node, Node],
    graph: Graph,
    roots: Sequence[Node],
    late: set[Node],
) -> dict[Node, Node]:
    """The same for a backward: what it computes again, it does right before it is needed."""
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
    roots = [*nodes_of(joint.results), *final.values(), *kept, *runs]
    copies = _copied_when_known(joint, inputs, graph, roots)
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
    joint: JointGraph,
    values: list[Node],
    saved: Sequence[Slot],
    symbols: Iterable[Symbol],
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
    copies = _copied_when_needed(whole, inputs, graph, roots, late)
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
    if "module" in node.meta:
        placeholder.meta["module"] = node.meta["module"]
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
