"""Guard shortcuts hold nothing of the user's, and outlive what they were learnt from."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from typing import Any

from ingot.capture.guards import Kind
from ingot.capture.sources import (
    AttrSource,
    GlobalSource,
    ItemSource,
)
from tests.native.leaks import blocks_kept
from tests.native.test_shortcuts import (  # noqa: F401  (of each test)
    Checked,
    X,
    Y,
    _verified,
    _watching,
    block,
    checked_module,
    module_facts,
    pytestmark,
)

# -- life times ------------------------------------------------------------------------------------


def test_nothing_of_the_users_is_held() -> None:
    module, checked = checked_module()
    alive = weakref.ref(module[2][0])
    weight = weakref.ref(module[0].weight)
    del module
    gc.collect()
    assert alive() is None and weight() is None
    other = block()
    assert checked(other) and checked(other)


def test_what_was_learnt_goes_with_the_tree() -> None:
    module = block()
    facts, inputs = module_facts(X, module)

    assert blocks_kept(lambda: Checked((module,), *facts, inputs=inputs), times=100) < 100
    module[0].training = module[2][0].other = False  # nobody is told any more


def test_modules_freed_and_made_at_their_place() -> None:
    _, checked = checked_module()
    for i in range(60):
        module = block()
        if i % 3 == 1:
            module[1].forward = print
        if i % 3 == 2:
            module[2].eval()
        assert checked(module) == (i % 3 == 0)
        assert checked(module) == (i % 3 == 0)
        del module


def test_user_code_in_a_lookup_that_drops_what_the_walk_stands_on() -> None:
    class Key:
        """Equal in hash to the name that is looked up, so that it is asked."""

        def __hash__(self) -> int:
            return hash("value")

        def __eq__(self, other: object) -> bool:
            if armed:
                holder.pop("module", None)
                gc.collect(0)
            return False

    armed: list[bool] = []
    module = block()
    holder: dict[Any, Any] = {Key(): 1, "module": module, "value": 3}
    weight = ItemSource(AttrSource(ItemSource(X, "module"), "_parameters"), "weight")
    holder["module"] = module[0]
    checked = Checked((holder,), (ItemSource(X, "value"), Kind.EQUALS, 3), inputs=[weight])
    del module
    armed.append(True)
    holder["other"] = 1
    checked.tree.collect((holder,))
    assert "module" not in holder
    assert checked.tree.collect((holder,)) is None


def test_user_code_that_drops_what_was_verified_before() -> None:
    class Key:
        def __hash__(self) -> int:
            return hash("value")

        def __eq__(self, other: object) -> bool:
            if armed:
                first.pop("module", None)
                gc.collect(0)
            return False

    armed: list[bool] = []
    first: dict[Any, Any] = {"module": block()}
    second: dict[Any, Any] = {Key(): 1, "value": 3}
    facts, inputs = module_facts(GlobalSource(first, "module"), first["module"])
    checked = Checked((), *facts, (GlobalSource(second, "value"), Kind.EQUALS, 3), inputs=inputs)
    armed.append(True)
    second["other"] = 1  # its facts are looked up again
    collected = checked.tree.collect(())
    assert "module" not in first and collected is None


def test_a_tree_that_is_asked_again_from_inside() -> None:
    class Key:
        def __hash__(self) -> int:
            return hash("value")

        def __eq__(self, other: object) -> bool:
            if len(depth) < 5 and checked is not None:
                depth.append(1)
                module.other = len(depth)
                assert checked.tree.collect((module, table)) is not None
            return False

    depth: list[int] = []
    checked: Checked | None = None
    module = block()
    table: dict[Any, Any] = {Key(): 1, "value": 3}
    facts, inputs = module_facts(X, module)
    checked = Checked(
        (module, table), *facts, (ItemSource(Y, "value"), Kind.EQUALS, 3), inputs=inputs
    )
    depth.clear()
    assert checked(module, table) and depth


def test_threads_that_change_and_ask() -> None:
    """Each has a module of its own, all go through one tree."""
    _, checked = checked_module()
    wrong: list[Any] = []

    def work(number: int) -> None:
        module = block()
        for i in range(300):
            module.other = i
            if i % 7 == number:
                module[1].training = False
            inputs = checked.tree.collect((module,))
            if (inputs is None) != (not module[1].training) or (
                inputs and inputs[0] is not module[0].weight
            ):
                wrong.append((number, i))
            module[1].training = True

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert wrong == []
