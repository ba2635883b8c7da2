"""The passes of ATen graphs, in order.

A graph goes in and is changed in place. Each pass keeps the values of outputs and mutations.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from torch.fx import Node

from ingot.graph.aten_graph import AtenGraph
from ingot.graph.passes.activations import join_activations
from ingot.graph.passes.attention import recognize_attention
from ingot.graph.passes.constants import fold_constants
from ingot.graph.passes.cse import share_common_subexpressions
from ingot.graph.passes.dead_code import ask_for_less, remove_dead_code
from ingot.graph.passes.gathers import gather_early, reduce_late
from ingot.graph.passes.layouts import choose_layouts
from ingot.graph.passes.linear import recognize_linear
from ingot.graph.passes.margins import give_margins
from ingot.graph.passes.no_ops import remove_no_ops
from ingot.graph.passes.one_hot import sum_one_hot
from ingot.graph.passes.ownership import own_outputs
from ingot.graph.passes.products import join_products
from ingot.graph.passes.scores import (
    recognize_changed_scores_on_cpu,
    recognize_scores,
    recognize_scores_on_cpu,
)
from ingot.graph.passes.steps import join_steps
from ingot.graph.passes.sums import sum_pieces, write_into_sums
from ingot.graph.passes.verify import verify
from ingot.graph.passes.waits import read_what_was_waited_for, wait_late
from ingot.graph.passes.windows import (
    see_through_joins,
    see_through_splits,
    see_through_writes,
)
from ingot.serial import safe_point

Pass = Callable[[AtenGraph], None]

Passes = tuple[tuple[str, Pass], ...]

# These change no value that is left.
SIMPLIFICATIONS: Passes = (
    ("read what was waited for", read_what_was_waited_for),
    ("see through writes", see_through_writes),
    ("see through splits", see_through_splits),
    ("remove dead code", remove_dead_code),
    ("ask for less", ask_for_less),
    ("remove no-ops", remove_no_ops),
    ("fold constants", fold_constants),
    ("share common subexpressions", share_common_subexpressions),
    ("sum one-hot rows", sum_one_hot),
)
_SCORES_ON_CPU = ("recognize scores on a CPU", recognize_scores_on_cpu)
_SCORES: Passes = (
    ("recognize scores", recognize_scores),
    ("remove what became dead", remove_dead_code),
)
_RECOGNITION: Passes = (
    ("join steps", join_steps),
    ("recognize changed scores on a CPU", recognize_changed_scores_on_cpu),
    ("recognize attention", recognize_attention),
    _SCORES_ON_CPU,
    *_SCORES,
    ("recognize linear layers", recognize_linear),
    ("remove what became dead", remove_dead_code),
)
_ENDING: Passes = (
    ("wait late", wait_late),
    ("gather early", gather_early),
    ("reduce late", reduce_late),
    ("give outputs memory of their own", own_outputs),
    ("verify", verify),
)
_MARGINS: Passes = (("give margins", give_margins), ("remove what became dead", remove_dead_code))
# Of a joint graph. Layouts are chosen for forward and backward together, so that saved tensors have
# the one that suits both.
JOINT_PASSES: Passes = (
    *SIMPLIFICATIONS,
    _SCORES_ON_CPU,
    *_SCORES,
    ("choose layouts", choose_layouts),
    *_MARGINS,
)
PASSES: Passes = (
    *SIMPLIFICATIONS,
    *_MARGINS,
    *_RECOGNITION,
    ("choose layouts", choose_layouts),
    *_ENDING,
)

# Of a forward and a backward that a joint graph was cut into.
TRAINING_PASSES: Passes = (
    *SIMPLIFICATIONS,
    ("join products", join_products),
    ("see through joins", see_through_joins),
    ("add in place", write_into_sums),
    ("sum pieces", sum_pieces),
    *_RECOGNITION,
    *_ENDING,
)

# Of a program that calls a GPU's libraries.
LIBRARY_PASSES: Passes = (("join activations", join_activations),)


def run_passes(graph: AtenGraph, passes: Passes = PASSES) -> None:
    """Run the passes in place; `graph.seconds` keeps what each took, `graph.rewrites` what it
    changed."""
    before = list(graph.graph.nodes)
    for name, step in passes:
        safe_point()
        start = time.perf_counter()
        step(graph)
        graph.seconds[name] = time.perf_counter() - start
        after = list(graph.graph.nodes)
        graph.rewrites += changes(name, before, after)
        before = after


def changes(step: str, before: Sequence[Node], after: Sequence[Node]) -> Iterator[str]:
    """One line for each node that is gone and each that is new, with the user's place."""
    if before == after:
        return
    for sign, nodes, others in (("-", before, set(after)), ("+", after, set(before))):
        for node in nodes:
            if node not in others:
                yield f"{step}: {sign} {node.name} = {node.target}  # {node.meta.get('where', '')}"
