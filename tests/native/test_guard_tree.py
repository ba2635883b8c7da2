"""The native guard walk agrees with the Python oracle on every kind of fact, leaks nothing, and
collects the inputs."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ingot.capture.guard_set import GuardSet
from ingot.capture.guards import _RULES, Kind
from ingot.capture.sources import ArgSource, AttrSource, ConstSource, ItemSource
from ingot.native import _native
from tests.capture.guard_cases import (
    CASES,
    NAMESPACE,
    STATES,
    Case,
    FunctionMode,
    X,
    module,
    state_around,
)
from tests.capture.guard_relations import RELATIONS


@pytest.fixture(params=[False, True], ids=["fast", "slow"])
def slow_tensor_facts(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Both ways of reading a tensor."""
    _native._force_slow_tensor_facts(request.param)
    yield request.param
    _native._force_slow_tensor_facts(False)


@pytest.fixture(autouse=True)
def _restore_namespace() -> Iterator[None]:
    yield
    NAMESPACE["limit"] = 3


def tree_of(case: Case, slots: tuple[Any, ...]) -> Any:
    guards = GuardSet()
    case.state(guards, slots)
    return _native.GuardTree(guards.native_spec([X]))


def test_this_torch_is_read_natively() -> None:
    assert not _native.tensor_facts_are_slow()
    assert _native.global_state_is_readable()


@pytest.mark.parametrize("case", [*CASES, *RELATIONS], ids=lambda case: case.name)
def test_agrees_with_the_oracle(case: Case, slow_tensor_facts: bool) -> None:
    slots = case.make()
    tree = tree_of(case, slots)
    for _ in range(2):
        collected = tree.collect(slots)
        assert collected is not None and collected[0] is slots[0]
    changed = case.change(slots)
    after = slots if changed is None else changed
    for _ in range(2):
        assert (tree.collect(after) is not None) == case.holds


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_agrees_with_the_oracle_where_no_check_is_native(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (Kind.LENGTH, Kind.DICT_KEYS, Kind.ABSENT_KEY, Kind.DICT_EMPTY, Kind.TRUTH):
        rule = _RULES[kind]._replace(is_native=False)
        monkeypatch.setitem(_RULES, kind, rule)
    test_agrees_with_the_oracle(case, False)


@pytest.mark.parametrize("case", [*CASES, *RELATIONS], ids=lambda case: case.name)
def test_reference_counts_stay(case: Case) -> None:
    slots = case.make()
    tree = tree_of(case, slots)
    changed = case.change(case.make()) or ("no", "no")  # facts that fail, on other objects
    NAMESPACE["limit"] = 3
    tree.collect(slots)
    tree.collect(changed)
    reachable = [
        slots,
        changed,
        *slots,
        *changed,
        *gc.get_referents(tree),
        *gc.get_referents(*slots),
    ]
    before = [sys.getrefcount(o) for o in reachable]
    for _ in range(500):
        tree.collect(slots)
        tree.collect(changed)
    after = [sys.getrefcount(o) for o in reachable]
    # Immortal and widely shared objects move by a few on their own; a leak would show hundreds.
    assert all(abs(a - b) < 100 for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize("enter", [s[1] for s in STATES], ids=[s[0] for s in STATES])
def test_state_around_the_call(enter: Any) -> None:
    guards = GuardSet()
    state_around(guards, ())
    tree = _native.GuardTree(guards.native_spec([]))
    with enter():
        assert tree.collect(()) is None  # before the state was ever seen to hold
    assert tree.collect(()) == ()
    with enter():
        assert tree.collect(()) is None
    assert tree.collect(()) == ()


def test_state_of_another_thread_is_its_own() -> None:
    guards = GuardSet()
    state_around(guards, ())
    tree = _native.GuardTree(guards.native_spec([]))
    found: list[Any] = []

    def look() -> None:
        found.append(tree.collect(()))
        with torch.no_grad():
            found.append(tree.collect(()))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [(), None]
    assert tree.collect(()) == ()


def test_a_function_mode_that_is_the_expected_one() -> None:
    guards = GuardSet()
    with FunctionMode():
        state_around(guards, ())
        tree = _native.GuardTree(guards.native_spec([]))
        assert tree.collect(()) == ()
    with FunctionMode():
        assert tree.collect(()) is None


def test_inputs_come_in_order_and_new_after_a_change() -> None:
    model, x = module(), torch.ones(2)
    table = AttrSource(ItemSource(AttrSource(X, "_modules"), "0"), "_parameters")
    guards = GuardSet()
    sources = [ArgSource(1, "x"), ItemSource(table, "bias"), ItemSource(table, "weight")]
    for source in sources:
        guards.add_tensor(source, source.load((model, x)))
    tree = _native.GuardTree(guards.native_spec(sources))
    inputs = tree.collect((model, x))
    assert all(a is b for a, b in zip(inputs, (x, model[0].bias, model[0].weight), strict=True))
    model[0].weight = torch.nn.Parameter(torch.full((3, 2), 7.0))
    assert tree.collect((model, x))[2] is model[0].weight


def test_user_code_in_keys_and_attributes_is_safe() -> None:
    class Key:
        """Its __eq__ drops what the walk stands on."""

        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            holder.clear()
            return False

    holder: list[Any] = [{Key(): torch.ones(2)}]
    guards = GuardSet()
    guards.add(ItemSource(ItemSource(X, 0), Key()), Kind.IS_NONE, False)
    tree = _native.GuardTree(guards.native_spec([]))
    assert tree.collect((holder,)) is None


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"nodes": [("nowhere", -1, None, [])]},
        {"nodes": [("item", -1, 0, [])]},
        {"nodes": [("item", 0, 0, [])]},
        {"nodes": [("slot", -1, 0, [("no such kind", None)])]},
        {"nodes": [("slot", -1, 0, [("tensor", (1, 2))])]},
        {"nodes": [], "inputs": [0]},
        {"nodes": [("slot", -1, 0, [])], "relations": [("same", (0,))]},
        {"nodes": [("slot", -1, 0, [])], "relations": [("same", (0, 1))]},
        {"nodes": [("slot", -1, 0, [])], "quantities": [(1, "size", 0)]},
        {"nodes": [], "shapes": [((("symbol", 0),), "==", (("const", 1),))]},
        {"nodes": [], "shapes": [((("const", 0),), "=<", (("const", 1),))]},
    ],
)
def test_a_malformed_spec_is_refused(spec: dict[str, Any]) -> None:
    empty = {
        "nodes": [],
        "relations": [],
        "quantities": [],
        "shapes": [],
        "inputs": [],
        "global_state": None,
    }
    with pytest.raises((TypeError, ValueError, IndexError)):
        _native.GuardTree({**empty, **spec} if spec else {})


def test_too_few_slots_are_refused() -> None:
    guards = GuardSet()
    guards.add(ArgSource(3, "z"), Kind.IS_NONE, True)
    with pytest.raises(TypeError, match="at least 4 slots"):
        _native.GuardTree(guards.native_spec([])).collect((1,))


def test_a_tree_in_a_cycle_is_collected() -> None:
    class Marker:
        pass

    import weakref

    marker, namespace = Marker(), {}
    guards = GuardSet()
    guards.add(ConstSource(namespace), Kind.LENGTH, 2)
    guards.add(ConstSource(marker), Kind.IS_NONE, False)
    namespace["tree"] = _native.GuardTree(guards.native_spec([]))
    alive = weakref.ref(marker)
    del guards, namespace, marker
    gc.collect()
    assert alive() is None


def test_a_walk_over_a_large_model() -> None:
    """150 modules, 148 parameters."""
    model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(2, 2)) for _ in range(74)])
    guards, sources = GuardSet(), []
    guards.add_global_state()
    for i in range(74):
        block = ItemSource(AttrSource(X, "_modules"), str(i))
        layer = ItemSource(AttrSource(block, "_modules"), "0")
        for source, value in ((block, model[i]), (layer, model[i][0])):
            guards.add(source, Kind.TYPE, type(value))
            guards.add(AttrSource(source, "_forward_hooks"), Kind.DICT_EMPTY)
            guards.add(AttrSource(source, "training"), Kind.EQUALS, True)
        for name in ("weight", "bias"):
            sources.append(ItemSource(AttrSource(layer, "_parameters"), name))
            guards.add_tensor(sources[-1], getattr(model[i][0], name))
    tree = _native.GuardTree(guards.native_spec(sources))
    assert len(tree.collect((model,))) == 148
