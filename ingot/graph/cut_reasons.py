"""Why a forward saves each value for its backward, and why the backward computes others again, in
words.

In: a `Partition`, and the graph of a backward. Out: a record of each value, for reports.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor
from torch.fx import Node

from ingot.graph.aten_graph import AtenGraph
from ingot.graph.aten_tracer import AGAIN
from ingot.graph.joint import TANGENT
from ingot.graph.longer import items_of, repeated
from ingot.graph.nodes import fake_result, is_pointwise_call, reached_from
from ingot.graph.partition import Partition
from ingot.graph.passes.ownership import is_view
from ingot.graph.saving_costs import bytes_of, is_checkpointed, may_repeat
from ingot.graph.schemas import Cost, cost_of, draws
from ingot.loops.side_effects import UNINITIALIZED
from ingot.loops.training_contract import Role, Slot
from ingot.places import module_at
from ingot.torch_private import OpOverload


class ValueFact(NamedTuple):
    """A value that crosses from a forward to its backward, or is computed in both.

    `role` is "input", "output" or "kept" of one that is saved, "both" of one that is computed
    again; `position` is its own among those of its role. One that is an `argument` has that one's
    position among the inputs. `alike` values are like it, itself included; `size` is in bytes of
    each, with the sizes of the call; `why` is a clause for people.
    """

    name: str
    op: str
    role: str
    position: int
    argument: int | None
    alike: int
    size: int
    value: Tensor
    where: str
    module: str
    why: str


BOTH: Role = "both"
"""The role of a value that is computed in the forward and in the backward."""

_AT_HAND = {
    "input": "it is an argument, which is there anyway",
    "output": "it is an output, which is there anyway",
    "memory": "it is the memory of an output, which is there anyway",
}

_SAVED: tuple[tuple[Callable[[Node], bool], str], ...] = (
    (lambda node: node.op == "placeholder", "it is an argument, which may be written meanwhile"),
    (lambda node: "saved" in node.meta, "the checkpoint's policy says so"),
    (lambda node: not may_repeat(node), "it must not be computed twice"),
    (lambda node: _is_product(node), "it is a product, which takes long to compute again"),
    (lambda node: not is_pointwise_call(node), "it takes long to compute again"),
)
"""Why a value is kept, the first that holds."""

_SMALLEST = "what it is computed from takes more bytes, or more work"

_COMPUTED: tuple[tuple[Callable[[Node], bool], str], ...] = (
    (lambda node: node.meta.get("region") == AGAIN, "its parameters are gathered again"),
    (lambda node: is_checkpointed(node), "it is inside of a checkpoint"),
    (lambda node: node.target in UNINITIALIZED, "it is memory without a content"),
    (lambda node: not node.all_input_nodes, "it is made of nothing"),
    (lambda node: is_pointwise_call(node), "that costs less than to write and read it"),
    (lambda node: cost_of(node.target) is Cost.LIGHT, "that costs less than to write and read it"),
)
_BY_BUDGET = "the memory budget asks for it"


def saved_values(cut: Partition, copies: Sequence[int] = ()) -> Iterator[ValueFact]:
    """The values that the forward saves, in the order in which the backward takes them. Each stands
    for so many `copies` of itself, if they are given."""
    late, primals = reached_from(cut.joint.tangents), cut.joint.primals
    saved = set(cut.values)
    counts = copies or itertools.repeat(1)
    for node, slot, count in zip(cut.values, cut.saved, counts):
        why = _AT_HAND.get(slot.role)
        if why is None and node in late:
            why = "it is a gradient but for the factor that comes in, computed ahead"
        argument = None
        if node in primals:
            argument = primals.index(node)
        if why is None and _is_drawn(node, saved):
            why = "it is made of random numbers, which are drawn once"
        why = why or _first(_SAVED, node, _SMALLEST)
        yield _fact(node, slot, why)._replace(argument=argument, alike=count)


def recomputed_values(backward: AtenGraph, forward: Container[str]) -> Iterator[ValueFact]:
    """The values that a backward computes though the forward has computed them.

    They depend on no tangent, and have the name of a node of the `forward`."""
    tangents = []
    for node in backward.inputs:
        if node.name.startswith(TANGENT):
            tangents.append(node)
    late = reached_from(tangents)
    counts = _copies(backward)
    for node in backward.graph.nodes:
        if node.op != "call_function" or node in late or node.name not in forward:
            continue
        if is_view(node) or node.target is operator.getitem:
            continue  # which take neither time nor memory
        if isinstance(fake_result(node), Tensor):
            fact = _fact(node, Slot(BOTH, 0), _first(_COMPUTED, node, _BY_BUDGET))
            yield fact._replace(alike=counts.get(node.name, 1))


def _copies(aten: AtenGraph) -> Mapping[str, int]:
    """How often the program has each node of its graph; {} where it has all of them once."""
    if aten.layers is None:
        return {}
    nodes = items_of(aten)
    return Counter(nodes[k].name for k, _ in repeated(aten, aten.layers).items())


def _first(reasons: Sequence[tuple[Callable[[Node], bool], str]], node: Node, other: str) -> str:
    for holds, why in reasons:
        if holds(node):
            return why
    return other


def _is_drawn(node: Node, saved: Container[Node]) -> bool:
    """Whether a value is made of random numbers, by ops that might be run again."""
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if draws(each.target):
            return True
        for argument in each.all_input_nodes:
            if argument not in saved and may_repeat(each):
                waiting.append(argument)
    return False


def _is_product(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and cost_of(node.target) is Cost.CONTRACTION


def _fact(node: Node, slot: Slot, why: str) -> ValueFact:
    value, op = fake_result(node), str(node.target)
    if node.op != "call_function":
        op = ""
    size = bytes_of(node) - 1  # it counts one more
    where = node.meta.get("where", "")
    return ValueFact(node.name, op, *slot, None, 1, size, value, str(where), module_at(where), why)
