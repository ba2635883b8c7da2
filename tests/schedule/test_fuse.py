"""Fusion decisions on graphs made by hand; kernel counts of real functions are tested in
test_kernel_counts.py."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from ingot.codegen.reference import run_kernel
from ingot.loops.expr import integer, size_symbol
from ingot.loops.ir import View
from ingot.schedule import schedule
from ingot.schedule.groups import ASSUMED_SIZE, estimate
from ingot.schedule.plan import KernelStep

from .programs import Draft


def run(plan, inputs):
    """Execute a plan's kernels with the slow reference; returns the outputs as arrays."""
    graph = plan.graph
    arrays = dict(zip(graph.inputs, (torch.from_numpy(i.ravel()) for i in inputs)))
    for name, b in graph.buffers.items():
        if name not in arrays:
            arrays[name] = torch.full((int(np.prod([s.constant for s in b.sizes])),), float("nan"))
    for step in plan.steps:
        assert isinstance(step, KernelStep)
        named = {p.name: arrays[a] for p, a in zip(step.kernel.parameters, step.arguments)}
        run_kernel(step.kernel, named, {})
    result = []
    for view in graph.outputs:
        assert isinstance(view, View)
        result.append(arrays[view.buffer].reshape([s.constant for s in view.sizes]).numpy())
    return result


def softmax(rows=8, columns=32):
    d = Draft()
    x = d.input("x", rows, columns)
    top = d.reduction("top", "max", x, 1)
    e = d.pointwise("e", "exp", d.pointwise("shifted", "sub", x, top))
    total = d.reduction("total", "sum", e, 1)
    d.pointwise("y", "div", e, total)
    return d.returns("y")


def test_softmax_is_one_kernel_and_right():
    plan = schedule(softmax())
    assert len(plan.steps) == 1
    x = np.random.default_rng(0).standard_normal((8, 32)).astype(np.float32)
    (y,) = run(plan, [x])
    np.testing.assert_allclose(y, torch.softmax(torch.from_numpy(x), -1).numpy(), rtol=1e-6)
    assert plan.arena_bytes.constant == 0


@pytest.mark.parametrize(
    ("shape", "dim"), [((32, 128), 0), ((3, 8, 40), 1), ((4, 6, 5, 7), 0), ((4, 6, 5, 7), 2)]
)
def test_softmax_over_another_dimension_is_one_kernel_with_compact_rows(shape, dim):
    d = Draft()
    x = d.input("x", *shape)
    top = d.reduction("top", "max", x, dim)
    e = d.pointwise("e", "exp", d.pointwise("shifted", "sub", x, top))
    total = d.reduction("total", "sum", e, dim)
    d.pointwise("y", "div", e, total)
    plan = schedule(d.returns("y"))
    (step,) = plan.steps
    assert plan.arena_bytes.constant == 0
    assert [row.length.constant for row in step.kernel.rows] == [shape[dim]]
    assert step.kernel.vector is step.kernel.loops[-1]
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    (y,) = run(plan, [values])
    np.testing.assert_allclose(y, torch.softmax(torch.from_numpy(values), dim).numpy(), rtol=1e-6)


@pytest.mark.parametrize("shape", [(1 << 14, 8), (8, 1 << 14, 64)])
def test_columns_that_are_long_or_few_are_not_kept_for_one_kernel(shape):
    d = Draft()
    x = d.input("x", *shape)
    total = d.reduction("total", "sum", x, len(shape) - 2)
    d.pointwise("y", "div", x, total)
    plan = schedule(d.returns("y"))
    assert len(plan.steps) > 1


def test_siblings_that_read_the_same_data_share_a_kernel():
    d = Draft()
    x = d.input("x", 64, 32)
    d.reduction("a", "sum", x, 1)
    d.reduction("b", "max", x, 1)
    plan = schedule(d.returns("a", "b"))
    assert len(plan.steps) == 1
    x = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    a, b = run(plan, [x])
    np.testing.assert_allclose(a, x.sum(1, keepdims=True), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(b, x.max(1, keepdims=True))


def test_reductions_over_different_axes_do_not_share_a_kernel():
    d = Draft()
    x = d.input("x", 64, 32)
    d.reduction("a", "sum", x, 1)
    d.reduction("b", "sum", x, 0)
    assert len(schedule(d.returns("a", "b")).steps) == 2


def test_a_value_needed_outside_is_stored_and_one_only_used_inside_is_not():
    d = Draft()
    x = d.input("x", 4, 100)
    a = d.pointwise("a", "sin", x)
    b = d.pointwise("b", "exp", a)
    d.pointwise("c", "cos", b)
    (step,) = schedule(d.returns("a", "c")).steps
    assert set(step.arguments) == {"x", "a", "c"}


def test_unused_nodes_are_not_scheduled():
    d = Draft()
    x = d.input("x", 4, 4)
    d.pointwise("dead", "sin", x)
    d.pointwise("y", "cos", x)
    plan = schedule(d.returns("y"))
    assert [s.arguments for s in plan.steps] == [("x", "y")]


def test_column_reduction_vectorizes_along_the_columns():
    d = Draft()
    d.reduction("y", "sum", d.input("x", 256, 64), 0)
    (step,) = schedule(d.returns("y")).steps
    assert step.kernel.vector is step.kernel.loops[-1]
    x = np.random.default_rng(0).standard_normal((256, 64)).astype(np.float32)
    (y,) = run(schedule(d.graph), [x])
    np.testing.assert_allclose(y, x.sum(0, keepdims=True), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [3, 17])
def test_a_chain_reuses_the_arena(length):
    """Alternating row and column reductions cannot fuse; the buffers between them share memory."""
    d = Draft()
    x = d.input("x", 64, 64)
    for k in range(length):
        total = d.reduction(f"t{k}", "sum", x, k % 2)
        x = d.pointwise(f"y{k}", "sub", x, total)
    plan = schedule(d.returns(x))
    assert len(plan.steps) > 2
    assert plan.arena_bytes.constant <= 2 * 64 * 64 * 4 + 2 * 64 * 4
    value = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    (y,) = run(plan, [value])
    for k in range(length):
        value = value - value.sum(k % 2, keepdims=True)
    np.testing.assert_allclose(y, value, rtol=1e-3, atol=1e-3)


def test_the_guess_of_a_size_that_a_difference_of_sizes_divides():
    a, b = size_symbol("a"), size_symbol("b")
    assert estimate(2 * a) == 2 * ASSUMED_SIZE
    assert estimate(a * b // (a - b)) > 0
    assert estimate(a * b // (a - 2 * b + ASSUMED_SIZE)) > 0


@pytest.mark.parametrize("frugal", [False, True])
def test_what_is_needed_late_is_not_computed_early_where_memory_is_scarce(frugal):
    """The first node and a late one read x, and share a kernel but where the larger buffer that the
    late one fills in part would lie around until it is needed."""
    d = Draft()
    x = d.input("x", 256, 64)
    y = d.pointwise("y", "exp", x)
    for k in range(20):
        y = d.pointwise(f"y{k}", "sub", y, d.reduction(f"t{k}", "sum", y, k % 2))
    late = d.pointwise("late", "sin", x)
    d.graph.buffers[late] = replace(d.graph.buffers[late], sizes=(integer(512), integer(64)))
    d.pointwise("z", "mul", y, late)
    plan = schedule(d.returns("y", "z"), frugal=frugal)
    (of_y,) = (s for s in plan.steps if "y" in s.arguments and "x" in s.arguments)
    assert (late in of_y.arguments) is not frugal
