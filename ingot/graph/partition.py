"""The cut through a joint graph: what the forward keeps for the backward, and what the backward
computes again.

A value that the backward reads is kept, or it is computed again from values that are. The cut that
keeps the fewest bytes is a minimum cut of a network in which each value of the forward is an edge
of its size; an op that must not run twice (it draws random numbers, or a library computes it)
cannot be on the far side of the cut, and one that is there costs a share of its size: of what takes
about the same memory, what takes less work is chosen.

In a region that the program checkpoints nothing is kept but what is read outside of it, and small
reductions that comparisons depend on, which must be decided alike in both: the backward computes
the region from there, right before it is needed. What it draws there is drawn again.
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx

from ingot.errors import unsupported
from ingot.graph.aten_graph import AtenGraph, OutputSpec, Place, copied
from ingot.graph.aten_tracer import BEHIND
from ingot.graph.geometry import at_hand
from ingot.graph.joint import Joint, reached_from
from ingot.graph.min_cut import INFINITE, Network
from ingot.graph.passes import run_passes
from ingot.graph.passes.cse import call_key, repeats_itself
from ingot.graph.passes.layouts import laid_out
from ingot.graph.passes.ownership import is_view
from ingot.graph.passes.pipeline import TRAINING_PASSES
from ingot.graph.replay import drawn_again
from ingot.graph.schemas import draws
from ingot.graph.symbols import to_expr
from ingot.graph.unit_tangent import compute_ahead, parts_of
from ingot.loops.expr import Symbol
from ingot.loops.side_effects import has_effect
from ingot.torch_private import OpOverload, aten

Node = torch.fx.Node


@dataclass(frozen=True)
class Saved:
    """Where the backward finds a value: `kind` is "input" (of the forward), "output" (of those the
    user is given) or "kept" (a further output of the forward); `position` counts among its kind."""

    kind: str
    position: int


@dataclass(frozen=True)
class Partition:
    """A joint graph in two. The forward takes the primals and returns the user's outputs and then
    what is kept; the backward takes what is `saved`, in order, the `values` of the joint graph,
    then the tangents, then the values of the size symbols, which are read among the primals at the
    places in `symbols`, then those that are `decided` by data, which the forward returns behind
    what is kept, and returns the gradients of `joint.wanted`."""

    joint: Joint
    forward: AtenGraph
    backward: AtenGraph
    saved: tuple[Saved, ...]
    values: tuple[Node, ...]
    symbols: dict[Symbol, Place]
    decided: tuple[Symbol, ...]

    @property
    def draws(self) -> bool:
        """Whether the forward draws random numbers."""
        return any(draws(node.target) for node in self.forward.graph.nodes)


def partition(joint: Joint) -> Partition:
    """Cut a joint graph. See the module's text for the rule."""
    whole = joint.aten
    inputs, results, gradients = whole.inputs, joint.results, joint.gradients
    primals, tangents = inputs[: joint.primals], inputs[joint.primals :]
    mutated = {primals[position] for position, _ in whole.mutations}
    owned = {
        s.node: k
        for k, s in enumerate(results)
        if s.position is None and s.whole and s.node is not None
    }
    places: dict[Node, Saved] = {}
    for k in joint.eager_reads.union(_read_by_checkpoints(primals)):
        if primals[k] not in mutated:
            places[primals[k]] = Saved("input", k)
    for node, k in owned.items():
        if k in joint.eager_reads_outputs and not is_view(node):
            places[node] = Saved("output", k)
    values = dict(whole.mutations)
    for position in joint.eager_reads_written:
        node, output = values[position], joint.written_outputs.get(position)
        same = node.meta["val"].stride() == primals[position].meta["val"].stride()
        if same and not is_view(node):
            places.setdefault(
                node, Saved("input", position) if output is None else Saved("output", output)
            )
    late = _late(whole.graph, tangents)
    copied = {*primals, *owned}.difference(places)
    roots = [s.node for s in gradients if s.node is not None] + _acting(whole.graph, late)
    saved = _cut(whole, roots, late, set(places), copied)
    saved = _ahead(joint, saved, set(places), late)
    gradients, late = joint.gradients, _late(whole.graph, tangents)
    kept: list[Node] = []
    for node in saved:
        if node not in places:
            places[node] = Saved("kept", len(kept))
            kept.append(node)
    symbols = {s: place for s, place in whole.symbols.items() if place[0] < joint.primals}
    bound = [
        to_expr(whole.shapes.wrap(root))
        for root, (node, _) in whole.bindings.items()
        if node not in late
    ]
    decided = tuple(dict.fromkeys(s for s in bound if isinstance(s, Symbol) and s not in symbols))
    forward = _forward(whole, primals, results, kept, decided, late)
    found = tuple(places[node] for node in saved)
    backward = _backward(
        whole, saved, _held(saved, found), tangents, [*symbols, *decided], gradients
    )
    backward.lends = _lends(found)
    if backward.checks:
        raise unsupported(
            "late-error",
            f"{backward.checks[0]} is checked in the backward",
            backward.checks[0].where,
        )
    return Partition(joint, forward, backward, found, tuple(saved), symbols, decided)


def backward_of_part(parts: Partition, joint: Joint) -> AtenGraph | None:
    """The backward of a joint graph that differs from that of `parts` in that fewer tangents come
    in, which takes what the forward of `parts` keeps, and the tangents that do. None where that
    would not suffice."""
    if any(node.target in _UP_TO_FACTORS for node in joint.aten.graph.nodes):
        return None
    roots = joint.aten.shapes.unbacked.roots
    if any(roots[symbol] not in joint.decided for symbol in parts.decided):
        return None
    known = _alike(parts.joint, joint)
    values = [known.get(node, node) for node in parts.values]
    primals, tangents = joint.aten.inputs[: joint.primals], joint.tangents
    needed = _ancestors(
        [s.node for s in joint.gradients if s.node is not None], {*values, *tangents}
    )
    late = _late(joint.aten.graph, tangents)
    needed |= _ancestors(_acting(joint.aten.graph, late), {*values, *tangents})
    if any(
        node in primals or (node not in late and _must_run(node) and not _is_checkpointed(node))
        for node in needed
    ):
        return None
    symbols = [*parts.symbols, *parts.decided]
    made = _backward(
        joint.aten, values, _held(parts.values, parts.saved), tangents, symbols, joint.gradients
    )
    made.lends = _lends(parts.saved)
    return None if made.checks else made


def _alike(joint: Joint, other: Joint) -> dict[Node, Node]:
    """For nodes of a joint graph those of `other`, one of the same captured graph, that have the
    same values: by their names if they were traced before the gradients, else as equal calls."""
    inputs = {
        n.name: n for n in joint.aten.graph.nodes if n.op == "placeholder" or n.name in joint.names
    }
    calls: dict[Any, Node] = {}
    for node in joint.aten.graph.nodes:
        if repeats_itself(node):
            calls.setdefault(call_key(node), node)
    same: dict[Node, Node] = {}
    for node in other.aten.graph.nodes:
        known = (
            inputs.get(node.name) if node.op == "placeholder" or node.name in other.names else None
        )
        if known is None and repeats_itself(node):
            known = calls.get(call_key(node, same))
        if known is not None:
            same[node] = known
    return {known: node for node, known in same.items()}


_UP_TO_FACTORS = {aten.linalg_eig.default, aten._linalg_eigh.default, aten._linalg_svd.default}
"""Ops that give vectors up to factors. Eager's formula for their tangent alone takes for granted
that it does not depend on these factors; as a part of a second derivative it may, and the formula
for all tangents is right then too."""


def kept_for(parts: Partition, tangents: Iterable[int]) -> frozenset[int]:
    """Which of the saved values may be read where only some of the tangents, by their position,
    come in."""
    late = _late(parts.joint.aten.graph, [parts.joint.tangents[k] for k in tangents])
    needed = _ancestors([argument for node in late for argument in node.all_input_nodes], set())
    return frozenset(k for k, node in enumerate(parts.values) if node in needed)


def reached(parts: Partition, tangents: Iterable[int]) -> tuple[int, ...]:
    """Which of the wanted gradients depend on some of the tangents, by their position."""
    late = _late(parts.joint.aten.graph, [parts.joint.tangents[k] for k in tangents])
    return tuple([k for k, g in zip(parts.joint.wanted, parts.joint.gradients) if g.node in late])


def _late(graph: torch.fx.Graph, tangents: Sequence[Node]) -> set[Node]:
    """What the backward computes: what depends on a tangent, or on what a backward of the program's
    does beside."""
    acting = (n for n in graph.nodes if n.meta.get("region") == BEHIND and has_effect(n.target))
    return reached_from([*tangents, *acting])


def _acting(graph: torch.fx.Graph, late: Container[Node]) -> list[Node]:
    """What the backward runs for what it does beside its results."""
    return [node for node in graph.nodes if node in late and has_effect(node.target)]


def _ancestors(nodes: Iterable[Node], given: Container[Node] = ()) -> set[Node]:
    """The nodes, and all that they are made of behind what is `given`."""
    found: set[Node] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node not in found and node not in given:
            found.add(node)
            stack.extend(_read_by(node))
    return found


# -- the cut ---------------------------------------------------------------------------------------


def _cut(
    whole: AtenGraph, gradients: list[Node], late: set[Node], held: set[Node], copied: set[Node]
) -> list[Node]:
    """The values that are kept, in the graph's order. Those that are `held` anyway cost nothing,
    those that must be `copied` cost twice, those that only a kernel has in its registers a little
    more than those that are in memory."""
    wanted, ends = _ancestors(gradients), set(gradients)
    checkpoints = any(map(_is_checkpointed, whole.graph.nodes))
    varying = reached_from(
        [n for n in whole.graph.nodes if n.op == "placeholder" or has_effect(n.target)]
    )
    network = Network()
    source, sink = network.node(), network.node()
    before: dict[Node, int] = {}
    after: dict[Node, int] = {}
    candidates = [
        n for n in whole.graph.nodes if n in wanted and n not in late and n.op != "get_attr"
    ]
    stored = _stored(whole.graph, late)
    compared = _ancestors(n for n in candidates if checkpoints and _compares(n))
    for node in candidates:
        before[node], after[node] = network.node(), network.node()
        inside = _is_checkpointed(node) and not (
            node in varying and (_leaves_region(node) or (node in compared and _is_statistic(node)))
        )
        if inside or is_view(node) or not isinstance(node.meta["val"], torch.Tensor):
            network.edge(before[node], after[node])
        else:
            size = _bytes(node) * (8 if node in stored else 9) // 8
            network.edge(
                before[node], after[node], 1 if node in held else size * (1 + (node in copied))
            )
        if not inside and not (checkpoints and node.meta.get("region") == BEHIND):
            is_kept = (
                node.op == "placeholder"
                or not _repeats(node)
                or (_is_checkpointed(node) and not is_view(node))
            )
            network.edge(source, before[node], INFINITE if is_kept else _work(node, node in stored))
        for argument in _read_by(node):
            if argument in after:
                network.edge(after[argument], before[node])
        if node in ends or any(user in late and user in wanted for user in node.users):
            network.edge(after[node], sink)
    beyond = network.cut(source, sink)
    return [n for n in candidates if beyond[after[n]] and not beyond[before[n]]]


def _ahead(joint: Joint, saved: list[Node], held: set[Node], late: set[Node]) -> list[Node]:
    """What is kept if the forward computes what is linear in the only tangent, where that takes no
    more bytes than what is kept for this alone, and is in memory for no other reason. Changes the
    graph."""
    whole = joint.aten
    parts = parts_of(whole, joint.tangents[0]) if len(joint.tangents) == 1 else []
    if not parts or any(map(_is_checkpointed, whole.graph.nodes)):
        return saved
    roots = {s.node for s in joint.gradients if s.node is not None}
    rest = _ancestors(roots, {*saved, *joint.tangents, *parts})
    needed = {node for node in saved if node in roots or not rest.isdisjoint(node.users)}
    stored = _stored(whole.graph, late)
    replaced = [
        node
        for node in saved
        if not (node in needed or node in held or node in stored or is_view(node))
    ]
    if sum(map(_bytes, parts)) > sum(map(_bytes, replaced)):
        return saved
    return [
        *(node for node in saved if node in needed),
        *compute_ahead(whole, joint.tangents[0], parts),
    ]


def _is_checkpointed(node: Node) -> bool:
    return node.meta.get("region", BEHIND) != BEHIND


def _read_by_checkpoints(primals: Sequence[Node]) -> set[int]:
    """The primals that eager reads when it runs a checkpointed region again: it keeps no copy of
    them."""
    return {k for k, node in enumerate(primals) if any(map(_is_checkpointed, node.users))}


def _leaves_region(node: Node) -> bool:
    """Whether a value of a checkpointed region, or a view of it, is read by another part of the
    forward."""
    region = node.meta["region"]
    return any(
        user.op == "output"
        or user.meta.get("region") not in (region, BEHIND)
        or is_view(user)
        and _leaves_region(user)
        for user in node.users
    )


def _compares(node: Node) -> bool:
    """Whether a value is a choice that floats decide: a comparison, a place, a count."""
    return not _is_floating(node) and any(map(_is_floating, node.all_input_nodes))


def _is_statistic(node: Node) -> bool:
    """Whether a value is a small reduction, with many elements behind each of its own. Another
    kernel may add them up in another order, and a comparison with it come out otherwise."""
    source = node.args[0] if node.args else None
    if _REDUCTION not in getattr(node.target, "tags", ()) or not isinstance(source, Node):
        return False
    return _is_floating(node) and _bytes(node) * STATISTIC <= _bytes(source)


def _is_floating(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


def _read_by(node: Node) -> list[Node]:
    """What the backward has to know to compute a value again."""
    state = node.meta.get("state")
    return node.all_input_nodes if state is None else [*node.all_input_nodes, state]


def _repeats(node: Node) -> bool:
    """Whether the backward may compute a value again: it costs about as much as reading it
    would."""
    if has_effect(node.target):
        return False
    if node.target is operator.getitem or is_view(node):
        return True
    if not isinstance(node.target, OpOverload) or node.meta.get("may_raise"):
        return False
    return torch.Tag.pointwise in node.target.tags or node.target in _CHEAP


def _stored(graph: torch.fx.Graph, late: set[Node]) -> set[Node]:
    """The values that the forward has in memory in any case: a product or a library reads them, or
    makes them for several readers, or stands between them and a reader, or a library makes them."""
    # how many products and library calls are one behind the other up to a node
    calls: dict[Node, int] = {}
    for node in graph.nodes:
        if node not in late and node.op != "output":
            calls[node] = max(
                (calls[a] for a in node.all_input_nodes if a in calls), default=0
            ) + _reads_memory(node)
    found = set()
    for node in calls:
        readers = list(_readers(node, late))
        several = not _repeats(node) and (len(readers) > 1 or _is_of_library(node))
        if several or any(calls.get(reader, 0) > calls[node] for reader in readers):
            found.add(node)
    return found


def _is_of_library(node: Node) -> bool:
    """Whether a value is a product that is no code of ours, with what comes next: on a GPU, or of
    halves."""
    if node.target not in _PRODUCTS:
        return False
    value: torch.Tensor = node.meta["val"]
    return value.device.type != "cpu" or value.dtype not in (torch.float32, torch.float64)


def _readers(node: Node, late: set[Node]) -> Iterator[Node]:
    """What reads a value or a view of it in the forward."""
    for user in node.users:
        if user not in late:
            yield from _readers(user, late) if is_view(user) else (user,)


def _reads_memory(node: Node) -> bool:
    if not isinstance(node.target, OpOverload) or _repeats(node) or node.target in _LOOKUPS:
        return False
    return _REDUCTION not in node.target.tags


STATISTIC = 16  # elements that each element of a small reduction is made of, at least
_REDUCTION = getattr(torch.Tag, "reduction", None)
_PRODUCTS = {
    aten.mm.default,
    aten.addmm.default,
    aten.bmm.default,
    aten.baddbmm.default,
    aten.convolution.default,
}
_LOOKUPS = {aten.index.Tensor, aten.gather.default, aten.index_select.default}

_CHEAP = {
    aten.full.default,
    aten.arange.default,
    aten.arange.start,
    aten.arange.start_step,
    aten.clone.default,
    aten._to_copy.default,
    aten.cat.default,
    aten.constant_pad_nd.default,
    aten.slice_scatter.default,
    aten.select_scatter.default,
}


_LIGHT = {
    *_CHEAP,
    *(
        getattr(aten, name).Tensor
        for name in ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge")
    ),
    *(getattr(aten, name).Scalar for name in ("eq", "ne", "lt", "le", "gt", "ge")),
    *(
        getattr(aten, name).default
        for name in ("neg", "abs", "relu", "maximum", "minimum", "clamp")
    ),
    *(getattr(aten, name).default for name in ("logical_not", "logical_and", "logical_or")),
    aten.where.self,
}
"""Ops that take no longer than reading what they give."""


def _work(node: Node, stored: bool) -> int:
    """What computing a value again costs, beside the bytes of what is kept. One that was in memory
    in the forward will be in the backward: a chain of such sums, of what halves add to float32,
    costs more than to keep them."""
    if is_view(node) or not isinstance(node.meta["val"], torch.Tensor):
        return 0
    if stored:
        return _bytes(node) * 5 // 8
    return _bytes(node) // (256 if node.target in _LIGHT else 32)


def _bytes(node: Node) -> int:
    """What a value takes, about; in the call that is compiled for where sizes are symbols."""
    value: torch.Tensor = node.meta["val"]
    count = value.itemsize
    for size in value.shape:
        count *= at_hand(size)
    return 1 + count


# -- the two graphs --------------------------------------------------------------------------------


def _copied(
    whole: AtenGraph, given: dict[Node, Node], graph: torch.fx.Graph, roots: Iterable[Node]
) -> dict[Node, Node]:
    """Copy what the roots depend on into `graph`, behind the nodes that are `given`."""
    needed = _ancestors(roots, given)
    copies = dict(given)
    for node in whole.graph.nodes:
        if node in needed:
            copies[node] = copied(graph, node, copies.__getitem__)
    return copies


def _computed_again(
    whole: AtenGraph,
    given: dict[Node, Node],
    graph: torch.fx.Graph,
    roots: Sequence[Node],
    late: set[Node],
) -> dict[Node, Node]:
    """The same for a backward that computes checkpointed regions again: each value right before it
    is needed."""
    needed = _ancestors(roots, given)
    place = {node: k for k, node in enumerate(whole.graph.nodes)}
    copies = dict(given)
    for last in whole.graph.nodes:
        if last not in needed or not (last in late or last in roots):
            continue
        for node in sorted(_ancestors([last], copies), key=place.__getitem__):
            arguments = torch.fx.node.map_arg((node.args, node.kwargs), copies.__getitem__)
            if "state" in node.meta:
                args = (copies[node.meta["state"]], *arguments[0])
                copies[node] = graph.call_function(drawn_again(node.target), args, arguments[1])
                copies[node].meta.update(node.meta)
            else:
                copies[node] = copied(graph, node, copies.__getitem__)
    return copies


def _must_run(node: Node) -> bool:
    """Whether an op is run for what it does: it has an effect, finds a size, or may be an error."""
    return node.meta.get("may_raise", False) or "binds" in node.meta or has_effect(node.target)


def _forward(
    whole: AtenGraph,
    primals: list[Node],
    results: list[OutputSpec],
    kept: list[Node],
    decided: Iterable[Symbol],
    late: set[Node],
) -> AtenGraph:
    graph = torch.fx.Graph()
    given = {node: graph.node_copy(node) for node in primals}
    roots = [s.node for s in results if s.node is not None] + [n for _, n in whole.mutations] + kept
    roots += [n for n in whole.graph.nodes if n not in late and _must_run(n)]
    copies = _copied(whole, given, graph, roots)
    specs = [_moved(spec, copies) for spec in results] + [_whole(copies[node]) for node in kept]
    specs += [OutputSpec(value=whole.shapes.wrap(symbol)) for symbol in decided]
    mutations = [(position, copies[node]) for position, node in whole.mutations]
    made = _finished(whole, graph, specs, mutations)
    made.uncounted = whole.uncounted
    return made


def _held(values: Sequence[Node], saved: Sequence[Saved]) -> list[torch.Tensor]:
    """Saved values as they lie: what the user is given as in eager, what is kept as was chosen for
    it."""
    return [
        laid_out(node) if s.kind == "kept" else node.meta["val"] for node, s in zip(values, saved)
    ]


def _lends(saved: Iterable[Saved]) -> frozenset[int]:
    """The inputs of a backward that nobody else needs, where the graph is not kept."""
    return frozenset(k for k, s in enumerate(saved) if s.kind == "kept")


def _backward(
    whole: AtenGraph,
    saved: list[Node],
    held: list[torch.Tensor],
    tangents: list[Node],
    symbols: Iterable[Symbol],
    gradients: list[OutputSpec],
) -> AtenGraph:
    graph = torch.fx.Graph()
    given = {}
    for node, value in zip((*saved, *tangents), (*held, *(node.meta["val"] for node in tangents))):
        given[node] = graph.placeholder(node.name)
        given[node].meta.update(
            val=value, in_eager=node.meta["val"], where=node.meta.get("where", "")
        )
    for symbol in symbols:
        graph.placeholder(f"size_{symbol}").meta.update(val=whole.shapes.wrap(symbol), where="")
    late = _late(whole.graph, tangents)
    roots = [s.node for s in gradients if s.node is not None] + _acting(whole.graph, late)
    if any(map(_is_checkpointed, whole.graph.nodes)):
        copies = _computed_again(whole, given, graph, roots, late)
    else:
        copies = _copied(whole, given, graph, roots)
    return _finished(whole, graph, [_owned(_moved(s, copies)) for s in gradients], [])


def _finished(
    whole: AtenGraph, graph: torch.fx.Graph, specs: list[OutputSpec], mutations: Any
) -> AtenGraph:
    names = {n.target for n in graph.nodes if n.op == "get_attr"}
    constants = {name: value for name, value in whole.constants.items() if name in names}
    made = AtenGraph(graph, specs, mutations, constants, whole.shapes)
    run_passes(made, TRAINING_PASSES)
    return made


def _moved(spec: OutputSpec, copies: dict[Node, Node]) -> OutputSpec:
    if spec.node is None:
        return spec
    return replace(spec, node=copies[spec.node])


def _owned(spec: OutputSpec) -> OutputSpec:
    """A gradient is never an alias, not even of a tangent."""
    return replace(spec, position=None)


def _whole(node: Node) -> OutputSpec:
    value = laid_out(node)
    return OutputSpec(
        node, tuple(value.shape), value.stride(), 0, value.dtype, None, None, id(node)
    )
