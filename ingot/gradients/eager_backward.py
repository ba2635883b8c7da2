"""A backward that is not compiled: its graph runs in eager, op by op.

The ATen graph of a backward goes in, and a callable that takes what the compiled program would take
comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ingot.errors import Unsupported
from ingot.failures import ATTEMPTS, PASSING, Failure, explained
from ingot.graph.aten_graph import AtenGraph
from ingot.graph.symbols import to_expr
from ingot.loops.expr import Symbol
from ingot.loops.training_contract import KnownLayout, Layout
from ingot.runtime.by_sizes import BySizes
from ingot.runtime.tangents import Backward
from ingot.wrapped import is_wrapped


class TriedAgain:
    """A backward whose compilation failed for no reason that lies in it: it runs in eager, and is
    compiled again, at intervals that grow."""

    def __init__(self, compile_again: Callable[[], Backward], by_eager: Backward) -> None:
        self._compile, self._run = compile_again, by_eager
        self._failure: Failure | None = Failure(lambda slots: True)
        self._failure.note()

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        failure = self._failure
        if failure is not None and failure.left:
            failure.left -= 1
        elif failure is not None:
            self._try_again(failure)
        return self._run(inputs)

    def _try_again(self, failure: Failure) -> None:
        try:
            self._run = self._compile()
            self._failure = None
        except Exception as problem:
            failure.note()
            if failure.count >= ATTEMPTS and not isinstance(problem, PASSING):
                self._failure = None


def run_in_eager(aten: AtenGraph) -> Backward:
    """Runs the graph's operations in eager, each given its inputs in the layouts that it has there:
    its results may depend on them."""
    function = aten.function()
    layouts: list[Layout | None] = []
    for node in aten.inputs:
        value = node.meta.get("in_eager", node.meta["val"])
        is_tensor = isinstance(value, torch.Tensor)
        layouts.append(Layout.of(value).converted(to_expr) if is_tensor else None)

    def layouts_at(sizes: Mapping[Symbol, int]) -> Sequence[KnownLayout | None]:
        results = []
        for layout in layouts:
            results.append(None if layout is None else layout.at(sizes))
        return results

    by_sizes = BySizes(layouts_at, aten.symbols)
    return lambda inputs: function(*map(_in_layout, inputs, by_sizes.at(by_sizes.read(inputs))))


def _in_layout(value: Any, layout: KnownLayout | None) -> Any:
    """A tensor in a layout, with its dtype; what is no tensor as it is."""
    if layout is None or is_wrapped(value):
        return value
    if value.shape != layout.sizes:
        raise RuntimeError(
            "a hook on saved tensors gave back a tensor of other sizes than it was given"
        )
    if value.stride() == layout.strides and value.dtype is layout.dtype:
        return value
    empty = torch.empty_strided(
        layout.sizes, layout.strides, dtype=layout.dtype, device=value.device
    )
    return empty.copy_(value)


def unsupported_by(problem: Exception) -> Unsupported:
    if isinstance(problem, Unsupported):
        return problem
    return explained(problem)
