from __future__ import annotations

import itertools

import pytest

from ingot.loops.expr import integer, loop_symbol, size_symbol
from ingot.schedule.nests import canonical, distribute, divide, fresh_loops, refine, split_prefix

from .programs import Draft


def ints(*values):
    return [integer(v) for v in values]


@pytest.mark.parametrize(
    "first, second, expected",
    [
        ((6, 4), (3, 8), (3, 2, 4)),
        ((6, 4), (24,), (6, 4)),
        ((6, 4), (4, 6), None),
        ((1, 5), (5, 1), (5,)),
        ((), (), ()),
        ((2,), (3,), None),
    ],
)
def test_refine_is_the_coarsest_common_refinement(first, second, expected):
    refined = refine(ints(*first), ints(*second))
    assert (None if refined is None else tuple(e.constant for e in refined)) == expected


def test_refine_with_symbolic_sizes():
    batch = size_symbol("s0", 2)
    assert refine([batch, integer(12)], [batch * 12]) == [batch, integer(12)]
    assert refine([batch * 4, integer(3)], [batch, integer(12)]) == [batch, integer(4), integer(3)]


@pytest.mark.parametrize(
    "extents, numel, expected",
    [
        ((6, 4), 6, ([6], [4])),
        ((24,), 6, ([6], [4])),
        ((2, 12), 6, ([2, 3], [4])),
        ((4, 6), 5, None),
        ((4,), 1, ([], [4])),
    ],
)
def test_split_prefix(extents, numel, expected):
    result = split_prefix(ints(*extents), integer(numel))
    assert (None if result is None else tuple([e.constant for e in part] for part in result)) == (
        None if expected is None else tuple(expected)
    )


def test_divide_is_exact_or_none():
    s = size_symbol("s0", 2)
    assert divide(s * 768, s) == integer(768)
    assert divide(s * 768, integer(768)) == s
    assert divide(integer(10), integer(4)) is None
    assert divide(s, integer(2)) is None


def test_distribute_visits_the_same_points_in_the_same_order():
    coarse = (loop_symbol("a", 6), loop_symbol("b", 4))
    fine = fresh_loops("f", ints(3, 2, 2, 2))
    substitution = {}
    distribute(coarse, fine, substitution)
    walked = [
        tuple(substitution[s].evaluate(dict(zip(fine, point))) for s in coarse)
        for point in itertools.product(*(range(s.extent.constant) for s in fine))
    ]
    assert walked == list(itertools.product(range(6), range(4)))


def test_canonical_merges_contiguous_loops_and_drops_single_iterations():
    d = Draft()
    d.pointwise("y", "sin", d.input("x", 2, 1, 3, 4))
    node = canonical(d.graph.nodes[0])
    assert [s.extent.constant for s in node.loops] == [24]


def test_canonical_keeps_loops_that_a_broadcast_walks_differently():
    d = Draft()
    x, bias = d.input("x", 2, 3, 4), d.input("bias", 1, 1, 4)
    d.pointwise("y", "add", x, bias)
    node = canonical(d.graph.nodes[0])
    assert [s.extent.constant for s in node.loops] == [6, 4]
