"""Guards in Python: what each states, when it fails, and what the report says."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from ingot.capture.guard_set import GuardSet, closest
from ingot.capture.guards import Kind
from ingot.capture.sources import ArgSource, AttrSource, ItemSource
from ingot.loops.expr import as_expr, size_symbol
from tests.capture.guard_cases import (
    CASES,
    STATES,
    Case,
    FunctionMode,
    X,
    module,
    state_around,
    state_symbolic,
)
from tests.capture.guard_relations import RELATIONS


@pytest.fixture(autouse=True)
def _restore_namespace() -> Any:
    from tests.capture.guard_cases import NAMESPACE

    yield
    NAMESPACE["limit"] = 3


@pytest.mark.parametrize("case", [*CASES, *RELATIONS], ids=lambda case: case.name)
def test_a_change_is_noticed(case: Case) -> None:
    guards, slots = GuardSet(), case.make()
    case.state(guards, slots)
    assert guards.check_python(slots) is None
    changed = case.change(slots)
    after = slots if changed is None else changed
    assert (guards.check_python(after) is None) == case.holds
    assert case.text in (guards.describe_difference(after) or "")
    assert all(guards.texts())


@pytest.mark.parametrize(("enter", "text"), [s[1:] for s in STATES], ids=[s[0] for s in STATES])
def test_state_around_the_call(enter: Any, text: str) -> None:
    guards = GuardSet()
    state_around(guards, ())
    assert guards.check_python(()) is None
    with enter():
        assert guards.check_python(()) is not None
        assert text in (guards.describe_difference(()) or "")
    assert guards.check_python(()) is None


def test_state_with_a_function_mode_is_that_mode() -> None:
    guards, mode = GuardSet(), FunctionMode()
    with mode:
        state_around(guards, ())
        assert guards.check_python(()) is None
    with FunctionMode():
        assert guards.check_python(()) is not None


def test_duplicates_fold() -> None:
    guards = GuardSet()
    for _ in range(2):
        guards.add(X, Kind.EQUALS, 1, "a.py:1")
        guards.add_global_state()
        state_symbolic(guards, (torch.zeros(4, 8, 3),))
    alone = GuardSet()
    alone.add(X, Kind.EQUALS, 1)
    alone.add_global_state()
    state_symbolic(alone, (torch.zeros(4, 8, 3),))
    assert len(guards) == len(alone)
    guards.add(X, Kind.EQUALS, True)  # equal, yet another fact
    assert len(guards) == len(alone) + 1


def test_texts_read_like_the_users_code() -> None:
    guards = GuardSet()
    guards.add(ItemSource(AttrSource(X, "layers"), 0), Kind.TYPE, torch.nn.Linear, "model.py:3")
    guards.add_tensor(ArgSource(1, "y"), torch.zeros(2, 3))
    guards.add_shape(size_symbol("s0"), "<", 2 * size_symbol("s1"))
    assert guards.texts() == [
        "type(x.layers[0]) is Linear  (model.py:3)",
        "y: float32[2, 3] strides (3, 1) on cpu",
        "s0 < 2*s1",
    ]


def test_a_fact_that_cannot_be_guarded_by_value_is_refused() -> None:
    with pytest.raises(TypeError, match="EQUALS cannot guard list"):
        GuardSet().add(X, Kind.EQUALS, [1])


def test_a_tensor_subclass_is_refused() -> None:
    class Mine(torch.Tensor):
        pass

    with pytest.raises(TypeError, match="Mine is not a plain tensor"):
        GuardSet().add_tensor(X, torch.zeros(2).as_subclass(Mine))


def test_no_code_of_the_user_runs() -> None:
    class Trap:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("called")

        __hash__ = None  # type: ignore[assignment]
        __len__ = __bool__ = __eq__  # type: ignore[assignment]

    for kind, data in (
        (Kind.EQUALS, 3),
        (Kind.LENGTH, 3),
        (Kind.TRUTH, True),
        (Kind.DICT_EMPTY, None),
    ):
        guards = GuardSet()
        guards.add(X, kind, data)
        assert guards.check_python((Trap(),)) is not None


def entry(*shape: int, scale: int = 1) -> GuardSet:
    guards = GuardSet()
    guards.add(ArgSource(1, "scale"), Kind.EQUALS, scale, "model.py:2")
    guards.add_tensor(X, torch.zeros(shape), "model.py:3")
    return guards


def test_the_closest_entry_is_named_with_the_fact_that_differs() -> None:
    entries = [entry(4, 8), entry(4, 8, scale=2), entry(5, 9, scale=2), entry(3)]
    assert (
        closest(entries, (torch.zeros(4, 8), 7))
        == "scale was 2, is 7 (model.py:2), since variant 2 of 4"
    )
    assert (
        closest(entries, (torch.zeros(5, 9), 3))
        == "scale was 2, is 3 (model.py:2), since variant 3 of 4"
    )
    assert (
        closest(entries, (torch.zeros(2), 1))
        == "x.shape[0] was 3, is 2 (model.py:3), since variant 4 of 4"
    )
    text = closest(entries, (torch.zeros(6), 5))  # equally far from all: the newest
    assert text == "scale was 1, is 5 (model.py:2), and 1 more, since variant 4 of 4"


def test_closest_with_few_entries() -> None:
    assert closest([], (1, 2)) == ""
    assert closest([entry(4)], (torch.zeros(4), 1)) == ""
    assert closest([entry(4)], (torch.zeros(5), 1)) == "x.shape[0] was 4, is 5 (model.py:3)"


def test_relations_of_sizes_are_each_entrys_own() -> None:
    """The same symbol may stand for another size in another entry."""
    entries = []
    for source in (X, ArgSource(1, "y")):
        guards = GuardSet()
        guards.add_tensor(source, torch.zeros(4), sizes=(size_symbol("s0", 2),))
        guards.add_shape(size_symbol("s0", 2), "<", as_expr(10), "model.py:9")
        entries.append(guards)
    assert closest(entries, (torch.zeros(5), torch.zeros(20))) == ""
    assert (
        closest(entries[1:], (torch.zeros(5), torch.zeros(20)))
        == "s0 < 10 no longer holds: y.shape[0] is 20 (model.py:9)"
    )


def test_native_spec_visits_an_object_once() -> None:
    guards, model = GuardSet(), module()
    first = ItemSource(AttrSource(X, "_modules"), "0")
    table = AttrSource(first, "_parameters")
    for name in ("weight", "bias"):
        guards.add_tensor(ItemSource(table, name), getattr(model[0], name))
    nodes = guards.native_spec([ItemSource(table, "bias")])["nodes"]
    # x, its dict and _modules, [0], its dict and _parameters, weight and bias
    assert len(nodes) == 1 + 2 + 1 + 2 + 2
    assert all(node[1] < position for position, node in enumerate(nodes))


def test_partial_and_method_sources_load() -> None:
    method = AttrSource(ArgSource(0, "m"), "__self__", "slot")
    assert method.load(("abc".upper,)) == "abc"
    partial = AttrSource(ArgSource(0, "p"), "args", "slot")
    assert partial.load((functools.partial(max, 1, 2),)) == (1, 2)
