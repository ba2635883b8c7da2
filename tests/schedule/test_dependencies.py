from __future__ import annotations

import pytest

from ingot.loops.expr import integer, loop_symbol, size_symbol
from ingot.schedule.dependencies import (
    SAME_POINT,
    SAME_ROW,
    direct_dependencies,
    pieces,
    relation,
    used_nodes,
)

from .programs import Draft

ROW, COLUMN = loop_symbol("o0", 16), loop_symbol("r0", 64)
HALF = loop_symbol("r0", 32)
N = size_symbol("s0", 2)
NROW, NCOLUMN = loop_symbol("o0", 16), loop_symbol("r0", N)


@pytest.mark.parametrize(
    "first, second, expected",
    [
        (ROW * 64 + COLUMN, ROW * 64 + COLUMN, SAME_POINT),
        (ROW * 64 + COLUMN, ROW * 64 + (COLUMN + 32) % 64, SAME_ROW),
        (ROW * 64 + HALF, ROW * 64 + HALF + 32, SAME_ROW),
        (ROW * 64 + COLUMN, ROW * 64 + COLUMN + 1, None),  # the last column is the next row's first
        (ROW * 64 + COLUMN, COLUMN * 16 + ROW, None),
        (ROW * 64 + COLUMN, integer(0), None),
        (NROW * N + NCOLUMN, NROW * N + (N - 1 - NCOLUMN), SAME_ROW),
    ],
)
def test_relation(first, second, expected):
    assert relation(first, second, (ROW,)) == expected


def test_pieces_of_a_concatenation_do_not_wait_for_each_other_but_their_reader_does():
    d = Draft()
    x = d.input("x", 4, 8)
    for k, name in enumerate(("left", "right")):
        d.pointwise(name, "sin", x)
        node = d.graph.nodes[-1]
        i, j = node.loops
        d.graph.nodes[-1] = type(node)(
            name, node.origin, node.loops, node.body, "both", i * 16 + j + 8 * k
        )
    d.buffer("both", [4, 16])
    d.pointwise("y", "cos", "both")
    assert direct_dependencies(d.graph.nodes, d.graph.buffers) == [set(), set(), {0, 1}]


def test_writers_that_may_overlap_keep_their_order():
    d = Draft()
    x = d.input("x", 4, 8)
    d.pointwise("a", "sin", x)
    first = d.graph.nodes[-1]
    d.graph.nodes.append(
        type(first)("again", first.origin, first.loops, first.body, "a", first.index)
    )
    assert direct_dependencies(d.graph.nodes, d.graph.buffers) == [set(), {0}]


def test_a_write_to_an_input_waits_for_its_readers_and_is_never_dead():
    d = Draft()
    x = d.input("x", 8)
    d.pointwise("y", "cos", x)
    d.pointwise("scratch", "sin", x)
    last = d.graph.nodes.pop()
    d.graph.nodes.append(type(last)("update", last.origin, last.loops, last.body, "x", last.index))
    graph = d.returns("y")
    assert [n.name for n in used_nodes(graph)] == ["y", "update"]
    assert direct_dependencies(graph.nodes, graph.buffers) == [set(), {0}]


ROWS, LANE = loop_symbol("o0", N), loop_symbol("o1", 64)


@pytest.mark.parametrize(
    "first, second, apart",
    [
        (256 * ROWS + LANE, 256 * ROWS + LANE + 64, True),
        (256 * ROWS + LANE, 256 * ROWS + LANE + 63, False),
        (256 * ROWS + LANE + 192, 256 * ROWS + LANE + 256, False),  # the next row's
        (64 * ROWS + LANE, 64 * ROWS + LANE, False),
        (LANE, LANE + 64, True),
        (2 * LANE, 2 * LANE + 1, True),
        (N * ROWS + LANE, N * ROWS + LANE + 64, False),  # rows may be shorter
    ],
)
def test_pieces_never_meet(first, second, apart):
    assert pieces(first, second, (ROWS, LANE), (ROWS, LANE)) is apart
    if apart:
        points = [{N: 5, ROWS: row, LANE: lane} for row in range(5) for lane in range(64)]
        assert {first.evaluate(p) for p in points}.isdisjoint(second.evaluate(p) for p in points)
