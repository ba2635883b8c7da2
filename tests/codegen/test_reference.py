"""The oracle itself: a plan's kernels, interpreted point by point, give what eager gives."""

from __future__ import annotations

import pytest
import torch

from examples.functions import FUNCTIONS
from ingot.codegen.reference import run_graph, run_plan
from ingot.schedule import schedule
from tests.loops.test_lowering import lowered

SHAPES = {
    "complex_activation": (4, 8),
    "tanh_gelu": (4, 24),
    "mlp_dead_matmul": (4, 8),
    "layer_norm_gelu": (6, 16),
    "masked_softmax": (6, 16),
    "rms_norm_rotary": (5, 2, 8),
    "eight_elements": (8,),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_kernels_of_the_examples(name: str) -> None:
    fn, args = FUNCTIONS[name].make(shape=SHAPES[name])
    graph = lowered(fn, *args)
    (by_nodes,) = run_graph(graph, args)
    (by_kernels,) = run_plan(schedule(graph), args)
    expected = fn(*args)
    torch.testing.assert_close(by_nodes, expected)
    torch.testing.assert_close(by_kernels, expected)
