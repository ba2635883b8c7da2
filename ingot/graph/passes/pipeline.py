"""What is done to every traced graph, in order."""

from __future__ import annotations

import time
from collections.abc import Callable

from ingot.graph.aten_graph import AtenGraph
from ingot.graph.passes.constants import fold_constants
from ingot.graph.passes.cse import share_common_subexpressions
from ingot.graph.passes.dead_code import remove_dead_code
from ingot.graph.passes.linear import recognize_linear
from ingot.graph.passes.no_ops import remove_no_ops
from ingot.graph.passes.ownership import own_outputs
from ingot.graph.passes.verify import verify

Pass = Callable[[AtenGraph], None]

PASSES: tuple[tuple[str, Pass], ...] = (
    ("remove dead code", remove_dead_code),
    ("remove no-ops", remove_no_ops),
    ("fold constants", fold_constants),
    ("share common subexpressions", share_common_subexpressions),
    ("recognize linear layers", recognize_linear),
    ("remove what became dead", remove_dead_code),
    ("give outputs memory of their own", own_outputs),
    ("verify", verify),
)


def run_passes(graph: AtenGraph) -> None:
    """Run every pass in place; `graph.seconds` keeps what each took."""
    for name, step in PASSES:
        start = time.perf_counter()
        step(graph)
        graph.seconds[name] = time.perf_counter() - start
