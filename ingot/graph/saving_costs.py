"""What the cut of a joint graph weighs: the bytes that saving a value takes, and the work of
computing it again.

A node of the forward goes in, and a price in bytes comes out. What must not run twice, or a library
computes, is not computed again unless a budget of memory asks for it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from torch.fx import Graph, Node

from ingot.graph.aten_tracer import AGAIN, BEHIND, ONCE
from ingot.graph.control_ops import cond, scan, while_loop
from ingot.graph.geometry import at_hand
from ingot.graph.min_cut import INFINITE
from ingot.graph.nodes import (
    ancestors,
    fake_result,
    is_pointwise_call,
    must_run,
    reached_from,
    results_of,
)
from ingot.graph.passes.ownership import is_view
from ingot.graph.schemas import Cost, cost_of
from ingot.loops.functional_ops import FunctionalForm
from ingot.loops.side_effects import UNINITIALIZED, has_effect
from ingot.torch_private import OpOverload

STATISTIC = 16  # elements that are reduced to each element of a statistic, at least
_FLOPS_OF_A_BYTE = 16  # that take about as long as moving it
_REDUCTION = getattr(torch.Tag, "reduction", None)


class Costs:
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
        is_less: bool,
    ) -> None:
        self._stored, self._available, self._copied = stored, available, copied
        self._has_checkpoints = any(map(is_checkpointed, graph.nodes))
        self._varying, self._compared = set[Node](), set[Node]()
        if self._has_checkpoints or is_less:
            self._varying = reached_from(filter(_varies, graph.nodes))
            self._compared = ancestors(filter(_compares, candidates))

    def of_saving(self, node: Node) -> int:
        if self._is_rerun(node) or is_view(node) or not _is_tensor(node):
            return INFINITE
        if node in self._available:
            return 1
        size = bytes_of(node) * (8 if node in self._stored else 9) // 8
        if node in self._copied:
            return size * 2
        return size

    def of_recomputing(self, node: Node, price: float | None) -> int:
        if self._is_rerun(node) or node.target in UNINITIALIZED:
            return 0
        if self._has_checkpoints and node.meta.get("region") == BEHIND:
            return 0
        if node.op == "placeholder" or (is_checkpointed(node) and not is_view(node)):
            return INFINITE
        if not _repeats(node):
            if price is None or not may_repeat(node) or self._is_compared_statistic(node):
                return INFINITE
            return int(work_of(node) * price)
        work = _work(node, node in self._stored)
        if price is None or price > 1:
            return work
        return int(work * price)

    def _is_rerun(self, node: Node) -> bool:
        """Whether a value is computed again with its checkpointed region, whatever that costs."""
        if not is_checkpointed(node) or "saved" in node.meta:
            return False
        if node.meta["region"] == AGAIN:
            return True
        if node not in self._varying:
            return True
        return not (_leaves_region(node) or self._is_compared_statistic(node))

    def _is_compared_statistic(self, node: Node) -> bool:
        return node in self._compared and _is_statistic(node)


def _varies(node: Node) -> bool:
    """Whether a value may differ from call to call, whatever it is computed from."""
    return node.op == "placeholder" or has_effect(node.target)


def is_checkpointed(node: Node) -> bool:
    return node.meta.get("region", BEHIND) not in (BEHIND, ONCE)


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
    return _is_floating(node) and bytes_of(node) * STATISTIC <= bytes_of(source)


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


def stored_values(graph: Graph, late: set[Node]) -> set[Node]:
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


def _work(node: Node, stored: bool) -> int:
    """The price of computing a value again, in bytes. One that is `stored` in the forward is in the
    backward too: a chain of such sums, of what halves add to float32, costs more than saving
    them."""
    if is_view(node) or not _is_tensor(node):
        return 0
    if stored:
        return bytes_of(node) * 5 // 8
    is_light = cost_of(node.target) is Cost.LIGHT
    return bytes_of(node) // (256 if is_light else 32)


def may_repeat(node: Node) -> bool:
    """Whether the backward may compute a value again at all. It may not where that would draw
    other random numbers, have an effect a second time, or find a size or an error anew; whether a
    branch or a step does is not asked."""
    if node.target is operator.getitem:
        return True
    if not isinstance(node.target, OpOverload) or node.target in (cond, while_loop, scan):
        return False
    return not must_run(node)


def work_of(node: Node) -> int:
    """About what it takes to compute a value, in bytes that are moved meanwhile."""
    if node.target is operator.getitem or node.target in UNINITIALIZED:
        return 0
    moved = _bytes_of_results(node)
    for argument in node.all_input_nodes:
        moved += _bytes_of_results(argument)
    return moved + _bytes_of_results(node) * _products(node) // _FLOPS_OF_A_BYTE


def _products(node: Node) -> int:
    """How many numbers a contraction adds up to each of its own; 0 for other ops."""
    name = getattr(node.target, "__name__", "")
    is_convolution, is_attention = "convolution" in name, "attention" in name
    if not (is_convolution or is_attention or cost_of(node.target) is Cost.CONTRACTION):
        return 0
    operands = []
    for argument in node.all_input_nodes:
        value = argument.meta.get("val")
        if isinstance(value, Tensor) and value.dim() >= 2:
            operands.append(value)
    if len(operands) < 2:
        return 0
    second = operands[1]
    if is_convolution:
        return _count(second) // max(1, at_hand(second.shape[0]))
    length = at_hand(second.shape[-2])
    if is_attention:
        return 2 * length
    return length


def _bytes_of_results(node: Node) -> int:
    total = 0
    for value in results_of(node.meta.get("val")):
        if isinstance(value, Tensor):
            total += _count(value) * value.itemsize
    return total


def _count(tensor: Tensor) -> int:
    count = 1
    for size in tensor.shape:
        count *= at_hand(size)
    return count


def bytes_of(node: Node) -> int:
    """About the bytes that a value takes; symbols have their hints."""
    value: Tensor = fake_result(node)
    return 1 + _count(value) * value.itemsize
