from __future__ import annotations

import pytest

from ingot.loops.expr import size_symbol
from ingot.schedule import schedule

from .programs import Draft


def separated(draft, x, times):
    """A chain that cannot fuse: sums along alternating axes, each followed by something that needs
    its result whole."""
    for k in range(times):
        total = draft.reduction(f"t{k}", "sum", x, k % 2)
        x = draft.pointwise(f"y{k}", "sub", x, total)
    return x


def test_a_single_kernel_needs_exactly_inputs_and_outputs():
    d = Draft()
    d.pointwise("y", "exp", d.pointwise("a", "sin", d.input("x", 1000)))
    plan = schedule(d.returns("y"))
    assert plan.peak_bytes.constant == 2 * 1000 * 4
    assert plan.arena_bytes.constant == 0


def test_the_last_reader_writes_in_place():
    d = Draft()
    plan = schedule(d.returns(separated(d, d.input("x", 64, 64), 6)))
    whole = [
        name
        for name, place in plan.places.items()
        if plan.graph.buffers[name].sizes[0].constant == 64 and place.kind == "arena"
    ]
    assert not [name for name in whole if plan.graph.buffers[name].sizes[1].constant == 64]
    assert plan.peak_bytes.constant <= 2 * 64 * 64 * 4 + 1024


def test_an_input_is_never_overwritten():
    d = Draft()
    plan = schedule(d.returns(separated(d, d.input("x", 64, 64), 6)))
    for step in plan.steps:
        written = [a for p, a in zip(step.kernel.parameters, step.arguments) if p.written]
        assert "x" not in written


def test_buffers_alive_together_do_not_share_bytes():
    d = Draft()
    x = d.input("x", 32, 48)
    rows, columns = d.reduction("rows", "sum", x, 1), d.reduction("columns", "sum", x, 0)
    y = d.pointwise("y", "sub", x, rows)
    plan = schedule(d.returns(d.pointwise("z", "add", y, columns)))
    arena = [(n, p.offset.constant) for n, p in plan.places.items() if p.kind == "arena"]
    assert len({offset for _, offset in arena}) == len(arena)


def test_symbolic_sizes_give_symbolic_bytes():
    n = size_symbol("s0", 2)
    d = Draft()
    plan = schedule(d.returns(d.pointwise("y", "sin", d.input("x", n, 8))))
    assert plan.peak_bytes == n * 64


def test_symbolic_buffers_of_one_size_share_a_slot():
    n = size_symbol("s0", 2)
    d = Draft()
    plan = schedule(d.returns(separated(d, d.input("x", n, 64), 8)))
    assert plan.arena_bytes.evaluate({n: 100}) <= 2 * (100 * 4 + 64 * 4 + 128)


def test_a_buffer_read_after_the_overwriting_member_is_kept():
    """`late` is the last reader of `kept` but runs after `fresh` is written in the same kernel."""
    d = Draft()
    x = d.input("x", 8, 8)
    kept = d.pointwise("kept", "sin", x)
    d.reduction("split", "sum", kept, 0)
    fresh = d.pointwise("fresh", "exp", x)
    late = d.pointwise("late", "cos", kept)
    d.reduction("again", "sum", fresh, 0)
    plan = schedule(d.returns("split", late, "again"))
    for step in plan.steps:
        written = [p.name for p in step.kernel.parameters if p.written and p.read]
        for stage in step.kernel.stages:
            loads = [i.attrs for i in stage.body.loads]
            assert not [
                s for s in stage.stores if s.buffer in written and (s.buffer, s.index) not in loads
            ]


@pytest.mark.parametrize("size", [4, 64])
def test_a_frugal_plan_lets_inputs_and_temporaries_die(size: int):
    d = Draft()
    x = d.input("x", size, size)
    plan = schedule(d.returns(d.reduction("total", "sum", separated(d, x, 5), 0)), frugal=True)
    assert {place.kind for place in plan.places.values()} == {"input", "own", "output"}
    dead_after = {name: k for k, names in plan.last_use.items() for name in names}
    assert dead_after["x"] < len(plan.steps) - 1 and plan.arena_bytes.constant == 0
    held, most = {"x"}, 0
    for k, step in enumerate(plan.steps):
        held |= set(step.arguments)
        most = max(most, sum(plan.graph.buffers[name].length.constant * 4 for name in held))
        held -= set(plan.last_use.get(k, ()))
    assert plan.peak_bytes.constant == most


def test_an_input_that_is_returned_stays_where_it_is():
    d = Draft()
    d.pointwise("y", "exp", d.input("x", 64))
    plan = schedule(d.returns("y", "x"), frugal=True)
    assert plan.places["x"].kind == "input"
    assert "x" not in [name for names in plan.last_use.values() for name in names]
