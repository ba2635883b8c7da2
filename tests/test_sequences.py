"""Small questions about sequences."""

from __future__ import annotations

from ingot.sequences import are_present, at, map_leaves, present


def test_items_that_are_there() -> None:
    assert present([0, None, "", None]) == [0, ""]
    assert are_present([0, None]) == (True, False)


def test_items_by_position_and_key() -> None:
    assert at("abc", (2, 0)) == ["c", "a"]
    assert at({"a": 1, "b": 2}, "ba") == [2, 1]


def test_leaves_of_nested_containers() -> None:
    tree = [1, (2, {"a": [3]}), ()]
    assert map_leaves(lambda leaf: -leaf, tree) == [-1, (-2, {"a": [-3]}), ()]
