"""Shortcuts of guard trees: what did not change is not walked, and whatever changes is noticed."""

from __future__ import annotations

import gc
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from ingot.capture.guard_set import GuardSet
from ingot.capture.guards import Kind
from ingot.capture.sources import (
    ArgSource,
    AttrSource,
    CellSource,
    ClassAttrSource,
    ConstSource,
    FunctionFieldSource,
    GlobalSource,
    InstanceDictSource,
    ItemSource,
    Source,
    TypeSource,
)
from ingot.native import _native
from tests.native.random_graphs import Graph

X, Y = ArgSource(0, "x"), ArgSource(1, "y")
pytestmark = pytest.mark.skipif(
    sys.version_info >= (3, 14), reason="dictionaries have no version tags any more"
)


@pytest.fixture(autouse=True)
def _verified() -> Iterator[None]:
    """Every shortcut is compared with the walk."""
    before = _native._verify_shortcuts(True)
    yield
    _native._verify_shortcuts(before)


WATCHES = [*(["watched"] if _native._forbid_watching(False) else []), "unwatched"]


@pytest.fixture(autouse=True, params=WATCHES)
def _watching(request: pytest.FixtureRequest) -> Iterator[None]:
    """Dicts tell when they change, where Python can do that, or their version tags are compared."""
    _native._forbid_watching(request.param == "unwatched")
    yield
    _native._forbid_watching(False)


@pytest.fixture
def unverified() -> None:
    """What counts walks must not take them itself."""
    _native._verify_shortcuts(False)


class Checked:
    """A guard tree beside its oracle: every call asks both."""

    def __init__(
        self, slots: tuple[Any, ...], *facts: tuple[Source | None, Kind, Any], inputs: Any = ()
    ) -> None:
        self.guards = GuardSet()
        for source, kind, data in facts:
            self.guards.add(source, kind, data)
        for source in inputs:
            self.guards.add_tensor(source, source.load(slots))
        self.tree = _native.GuardTree(self.guards.native_spec(inputs))
        assert self(*slots) and self(*slots)

    def __call__(self, *slots: Any) -> bool:
        holds = self.tree.collect(slots) is not None
        assert holds == (self.guards.check_python(slots) is None), self.guards.describe_difference(
            slots
        )
        return holds

    def walks(self, *slots: Any) -> int:
        """How many walks two more calls take."""
        before = self.tree.walks
        assert self(*slots) and self(*slots)
        return self.tree.walks - before


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Sequential(nn.Linear(3, 2)))


def module_facts(
    source: Source, module: nn.Module
) -> tuple[list[tuple[Source, Kind, Any]], list[Source]]:
    """Facts such as capture states of a module and those in it, and the paths of the parameters."""
    facts: list[tuple[Source, Kind, Any]] = [(source, Kind.TYPE, type(module))]
    facts += [
        (AttrSource(source, name), Kind.DICT_EMPTY, None)
        for name in ("_forward_hooks", "_forward_pre_hooks")
    ]
    facts += [(AttrSource(source, "training"), Kind.EQUALS, module.training)]
    facts += [(InstanceDictSource(source), Kind.ABSENT_KEY, "forward")]
    facts += [(AttrSource(source, "_modules"), Kind.DICT_KEYS, tuple(module._modules))]
    inputs: list[Source] = [
        ItemSource(AttrSource(source, "_parameters"), name) for name in module._parameters
    ]
    for name, child in module._modules.items():
        more = module_facts(ItemSource(AttrSource(source, "_modules"), name), child)  # type: ignore[arg-type]
        facts, inputs = facts + more[0], inputs + more[1]
    return facts, inputs


def checked_module() -> tuple[nn.Module, Checked]:
    module = block()
    facts, inputs = module_facts(X, module)
    return module, Checked((module,), *facts, inputs=inputs)


# -- an unchanged module ---------------------------------------------------------------------------


@pytest.mark.usefixtures("unverified")
class TestWalks:
    """What is walked, counted."""

    def test_an_unchanged_module_is_not_walked(self) -> None:
        module, checked = checked_module()
        assert checked.walks(module) == 0
        assert checked.tree.shortcuts > 0

    def test_changes_that_matter_to_no_fact_cost_no_walk(self) -> None:
        module, checked = checked_module()
        for i in range(5):
            module.counter = module[2].counter = i
            assert checked.walks(module) == 0
        module[0].weight = nn.Parameter(torch.ones(3, 2))
        assert checked.walks(module) == 0
        assert checked.tree.collect((module,))[0] is module[0].weight

    def test_globals_that_change_at_every_call_cost_no_walk(self) -> None:
        module, namespace = block(), {"model": None, "scale": 2.0}
        namespace["model"] = module
        model = GlobalSource(namespace, "model")
        facts, inputs = module_facts(model, module)
        checked = Checked(
            (), *facts, (GlobalSource(namespace, "scale"), Kind.EQUALS, 2.0), inputs=inputs
        )
        for i in range(10):
            namespace["i"] = i
            assert checked.walks() == 0
        namespace["scale"] = 3.0
        assert not checked()
        namespace["scale"] = 2.0
        assert checked.walks() == 0

    def test_modules_that_keep_what_they_computed_cost_no_walk(self) -> None:
        model = nn.ModuleList(nn.ReLU() for _ in range(30))
        facts, inputs = module_facts(X, model)

        def keep() -> None:
            for layer in model:
                layer.last, layer.pair, layer.count = (
                    torch.ones(2),
                    (torch.ones(3), torch.ones(4)),
                    layer.training + 1,
                )

        for i in range(30):
            layer = ItemSource(AttrSource(X, "_modules"), str(i))
            pair = AttrSource(layer, "pair")
            facts += [(pair, Kind.TYPE, tuple), (pair, Kind.LENGTH, 2)]
            inputs += [AttrSource(layer, "last"), ItemSource(pair, 0), ItemSource(pair, 1)]
        keep()
        checked = Checked((model,), *facts, inputs=inputs)
        for _ in range(10):
            keep()
            assert checked.walks(model) == 0
            assert checked.tree.collect((model,))[-1] is model[29].pair[1]
        model[7].pair = (torch.ones(3), torch.ones(5))
        assert not checked(model)

    def test_a_call_that_fails_by_its_arguments_takes_no_walk(self) -> None:
        guards = GuardSet()
        guards.add_tensor(X, torch.ones(3))
        tree = _native.GuardTree(guards.native_spec([X]))
        assert tree.collect((torch.ones(3),)) is not None
        before = tree.walks
        assert tree.collect((torch.ones(4),)) is None and tree.collect((torch.ones(3),)) is not None
        assert tree.walks == before

    def test_two_modules_that_take_turns(self) -> None:
        """Neither is learnt again and again; each is right."""
        module, checked = checked_module()
        other = block()
        for _ in range(30):
            assert checked.tree.collect((module,))[0] is module[0].weight
            assert checked.tree.collect((other,))[0] is other[0].weight
        before = checked.tree.walks
        checked.tree.collect((module,))
        checked.tree.collect((other,))
        assert checked.tree.walks == before  # as late nodes: their path is read anew

    def test_what_was_learnt_is_learnt_anew_after_a_rare_change(self) -> None:
        module, checked = checked_module()
        for _ in range(8):
            module[2][0] = nn.Linear(3, 2)
            for _ in range(20):
                checked.tree.collect((module,))
            assert checked.walks(module) == 0


def test_a_module_argument_beside_one_that_is_new_each_time() -> None:
    module = block()
    facts, inputs = module_facts(X, module)
    facts.append((AttrSource(Y, "scale"), Kind.EQUALS, 2.0))
    checked = Checked((module, types.SimpleNamespace(scale=2.0)), *facts, inputs=inputs)
    for i in range(20):
        assert checked(module, types.SimpleNamespace(scale=2.0))
        assert not checked(module, types.SimpleNamespace(scale=float(i + 3)))
    module.training = False
    assert not checked(module, types.SimpleNamespace(scale=2.0))


# -- each way to change something ------------------------------------------------------------------


def delete_and_put_back(m: nn.Module) -> None:
    del m[1].__dict__["training"]


CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "attribute": lambda m: setattr(m[0], "training", False),
    "through __dict__": lambda m: m[0].__dict__.update(training=False),
    "deep train": lambda m: m.eval(),
    "hook": lambda m: m[2][0].register_forward_hook(print),
    "hook of the root": lambda m: m.register_forward_pre_hook(print),
    "forward patched": lambda m: setattr(m[1], "forward", print),
    "child removed": lambda m: m.__delitem__(1),
    "child of another type": lambda m: m.__setitem__(1, nn.GELU()),
    "child added": lambda m: m[2].append(nn.ReLU()),
    "class": lambda m: setattr(m[1], "__class__", nn.GELU),
    "class of the root": lambda m: setattr(m, "__class__", nn.ModuleList),
    "dict replaced": lambda m: setattr(m[1], "__dict__", {**m[1].__dict__, "training": False}),
    "dict replaced and changed": lambda m: (
        setattr(m[1], "__dict__", dict(vars(m[1]))),
        m[1].eval(),
    ),
    "dict cleared": lambda m: m[1].__dict__.clear(),
    "table replaced": lambda m: setattr(m[0], "_parameters", {}),
    "table of children replaced": lambda m: setattr(m[2], "_modules", {"1": m[2][0]}),
    "hooks replaced": lambda m: setattr(m[0], "_forward_hooks", OrderedDict({1: print})),
    "attribute deleted": delete_and_put_back,
    "parameter's shape": lambda m: setattr(m[0], "weight", nn.Parameter(torch.ones(4, 2))),
    "parameter's data": lambda m: setattr(m[0].weight, "data", torch.ones(4, 2)),
    "parameter's layout": lambda m: setattr(m[0].weight, "data", torch.ones(2, 3).t()),
    "parameter's dtype": lambda m: m.double(),
    "parameter frozen": lambda m: m[2][0].bias.requires_grad_(False),
    "parameter removed": lambda m: setattr(m[0], "bias", None),
    "parameter no parameter": lambda m: m[0]._parameters.update(bias=torch.ones(3)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_module_is_noticed(name: str) -> None:
    module, checked = checked_module()
    CHANGES[name](module)
    assert not checked(module)
    assert not checked(module)


@pytest.mark.parametrize("times", [0, 1, 100])
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_after_one_that_did_not_matter_is_noticed(name: str, times: int) -> None:
    module, checked = checked_module()
    for i in range(times):
        module.other = module[1].other = i
        assert checked(module)
    module[0] = nn.Linear(2, 3)
    assert checked(module)
    CHANGES[name](module)
    assert not checked(module)


def test_equal_parts_are_accepted() -> None:
    module, checked = checked_module()
    module[0] = nn.Linear(2, 3)
    module[2][0].bias = nn.Parameter(torch.ones(2))
    module[1].__dict__ = dict(module[1].__dict__)
    module[0].weight.data = torch.ones(3, 2)
    module._modules = dict(module._modules)
    gc.collect()
    inputs = checked.tree.collect((module,))
    assert checked(module)
    assert all(a is b for a, b in zip(inputs, module.parameters(), strict=True))


class Box:
    """An object with attributes."""


class Cage(Box):
    """Another class that a Box can be given."""


class Slotted:
    __slots__ = ("value",)


def test_a_class_changed_where_only_the_type_matters() -> None:
    holder = Box()
    holder.inner = Box()
    checked = Checked((holder,), (AttrSource(X, "inner"), Kind.TYPE, Box))
    holder.inner.__class__ = Cage
    assert not checked(holder)
    holder.inner.__class__ = Box
    assert checked(holder)


def test_the_class_of_a_module_object() -> None:
    """Alone among instances of built-in types they can be given another."""
    module = types.ModuleType("somewhere")
    checked = Checked((), (GlobalSource({"module": module}, "module"), Kind.TYPE, types.ModuleType))
    module.__class__ = type("Lazy", (types.ModuleType,), {})
    assert not checked()
    module.__class__ = types.ModuleType
    assert checked()


def test_attributes_set_in_every_way() -> None:
    """Since Python 3.13 an instance shares its values with its dict."""
    box = Box()
    box.a, box.b = 1, 2
    checked = Checked(
        (box,), (AttrSource(X, "a"), Kind.EQUALS, 1), (InstanceDictSource(X), Kind.ABSENT_KEY, "z")
    )

    def specialized(target: Box, value: int) -> None:
        target.a = value

    warm = Box()
    for i in range(1000):  # until the interpreter has specialized the store
        specialized(warm, i)
    ways: list[Callable[[int], Any]] = [
        lambda value: specialized(box, value),
        lambda value: setattr(box, "a", value),
        lambda value: object.__setattr__(box, "a", value),
        lambda value: vars(box).__setitem__("a", value),
        lambda value: vars(box).update(a=value),
        lambda value: box.__dict__.__ior__({"a": value}),
        lambda value: setattr(box, "__dict__", {"a": value, "b": 2}),
    ]
    for way in ways * 3:
        way(5)
        assert not checked(box)
        way(1)
        assert checked(box)
        assert list(vars(box)) == ["a", "b"]
    box.z = 1
    assert not checked(box)
    del box.z
    assert checked(box)
    del box.a
    assert not checked(box)


@pytest.mark.parametrize("kind", [dict, OrderedDict])
def test_dicts_changed_in_every_way(kind: type) -> None:
    table = kind(a=1, b=2)
    namespace = {"table": table}
    source = GlobalSource(namespace, "table")
    checked = Checked(
        (), (source, Kind.DICT_KEYS, ("a", "b")), (ItemSource(source, "a"), Kind.EQUALS, 1)
    )
    ways: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
        (lambda: table.update(a=3), lambda: table.update(a=1)),
        (lambda: table.pop("b"), lambda: table.update(b=2)),
        (lambda: table.popitem(), lambda: table.update(b=2)),
        (lambda: table.clear(), lambda: table.update(a=1, b=2)),
        (lambda: table.setdefault("c", 3), lambda: table.__delitem__("c")),
        (lambda: table.__ior__({"a": 7}), lambda: table.__ior__({"a": 1})),
        (lambda: namespace.update(table={"a": 1}), lambda: namespace.update(table=table)),
        (lambda: namespace.clear(), lambda: namespace.update(table=table)),
    ]
    if kind is OrderedDict:
        ways.append((lambda: table.move_to_end("a"), lambda: table.move_to_end("b")))
    for change, restore in ways * 2:
        change()
        assert not checked()
        restore()
        assert checked()


def put_at(address: int, value: Any, put: Callable[[Any], Any]) -> bool:
    """Puts an equal of the value in place that lies at the address; False if none does."""
    others = []
    for _ in range(1000):
        made = fresh(value)
        if id(made) == address:
            put(made)
            return True
        others.append(made)
    return False


class Holders:
    """Ways to hold a value that tell nothing of a change by a version."""

    @staticmethod
    def cell() -> tuple[Any, Source, Callable[[Any], None]]:
        def make(value: Any) -> Any:
            return lambda: value

        function = make(None)
        return (
            function,
            CellSource(X, 0, "value"),
            lambda value: setattr(function.__closure__[0], "cell_contents", value),
        )

    @staticmethod
    def list() -> tuple[Any, Source, Callable[[Any], None]]:
        items = [None]
        return items, ItemSource(X, 0), lambda value: items.__setitem__(0, value)

    @staticmethod
    def defaults() -> tuple[Any, Source, Callable[[Any], None]]:
        def function(value: Any = 0) -> None:
            pass

        source = ItemSource(FunctionFieldSource(X, "__defaults__"), 0)
        return function, source, lambda value: setattr(function, "__defaults__", (value,))

    @staticmethod
    def slot() -> tuple[Any, Source, Callable[[Any], None]]:
        owner = Slotted()
        return owner, AttrSource(X, "value", "slot"), lambda value: setattr(owner, "value", value)

    @staticmethod
    def attribute() -> tuple[Any, Source, Callable[[Any], None]]:
        owner = Box()
        return owner, AttrSource(X, "value"), lambda value: setattr(owner, "value", value)


@pytest.mark.parametrize("constant", [True, False], ids=["constant", "argument"])
@pytest.mark.parametrize("how", ["cell", "list", "defaults", "slot", "attribute"])
def test_another_object_at_the_same_address_is_not_taken_for_the_first(
    how: str, constant: bool
) -> None:
    owner, source, put = getattr(Holders, how)()
    root = ConstSource(owner) if constant else X
    source = rooted(source, root)
    for first, second in (
        (70001, 70002),
        (2.5, -2.5),
        ((70001, 1), (70002, 1)),
        ("ab" * 3, "cd" * 3),
    ):
        put(fresh(first))
        checked = Checked((owner,), *constant_facts(source, fresh(first)))
        address = id(source.load((owner,)))
        put(None)
        assert not checked(owner)
        if put_at(address, second, put):
            assert not checked(owner)
        put(None)
        if put_at(address, first, put):
            assert checked(owner)


def rooted(source: Source, root: Source) -> Source:
    """The same path from another root."""
    if isinstance(source, ArgSource):
        return root
    base = rooted(source.base, root)  # type: ignore[attr-defined]
    return type(source)(base, *[getattr(source, name) for name in source.__match_args__[1:]])  # type: ignore[attr-defined]


def fresh(value: Any) -> Any:
    """An equal object that nothing else holds."""
    if type(value) is tuple:
        return tuple([fresh(item) for item in value])
    return "".join(list(value)) if type(value) is str else value + type(value)(1) - type(value)(1)


def constant_facts(source: Source, value: Any) -> list[tuple[Source, Kind, Any]]:
    """As capture states them: of a tuple its type, its length and its items."""
    if type(value) is not tuple:
        return [(source, Kind.EQUALS, value)]
    items = [
        fact for i, item in enumerate(value) for fact in constant_facts(ItemSource(source, i), item)
    ]
    return [(source, Kind.TYPE, tuple), (source, Kind.LENGTH, len(value)), *items]


@pytest.mark.parametrize("shared", [True, False])
def test_relations_between_covered_values(shared: bool) -> None:
    model = nn.Linear(2, 2)
    model.a = torch.ones(2)
    model.b = model.a if shared else torch.ones(2)
    one, other = AttrSource(X, "a"), AttrSource(X, "b")
    checked = Checked(
        (model,), (one, Kind.SAME if shared else Kind.DISTINCT, other), inputs=[one, other]
    )
    model.count = 1
    assert checked(model)
    before, model.b = model.b, torch.ones(2) if shared else model.a
    assert not checked(model)
    model.b = before
    assert checked(model)
    model.a = model.b = torch.ones(2)
    assert checked(model) == shared


def test_functions_and_classes() -> None:
    def helper(x: Any, by: Any = 2, *, name: Any = None) -> Any:
        return x * by

    cls = type("Owner", (), {"run": helper, "kind": "a"})
    base = ConstSource(cls)
    run = ClassAttrSource(base, "run")
    checked = Checked(
        (),
        (base, Kind.CLASS_ATTRIBUTE, ("kind", "a")),
        (FunctionFieldSource(run, "__code__"), Kind.IDENTITY, helper.__code__),
        (FunctionFieldSource(run, "__defaults__"), Kind.EQUALS, (2,)),
        (FunctionFieldSource(run, "__kwdefaults__"), Kind.DICT_KEYS, ("name",)),
        (ItemSource(FunctionFieldSource(run, "__kwdefaults__"), "name"), Kind.IS_NONE, True),
        (FunctionFieldSource(run, "__closure__"), Kind.IS_NONE, True),
    )
    code = helper.__code__
    changes: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
        (
            lambda: setattr(helper, "__defaults__", (3,)),
            lambda: setattr(helper, "__defaults__", (2,)),
        ),
        (
            lambda: setattr(helper, "__defaults__", None),
            lambda: setattr(helper, "__defaults__", (2,)),
        ),
        (
            lambda: helper.__kwdefaults__.update(name=1),
            lambda: helper.__kwdefaults__.update(name=None),
        ),
        (
            lambda: setattr(helper, "__kwdefaults__", None),
            lambda: setattr(helper, "__kwdefaults__", {"name": None}),
        ),
        (
            lambda: setattr(helper, "__code__", fresh.__code__),
            lambda: setattr(helper, "__code__", code),
        ),
        (lambda: setattr(cls, "kind", "b"), lambda: setattr(cls, "kind", "a")),
        (lambda: setattr(cls, "run", fresh), lambda: setattr(cls, "run", helper)),
        (lambda: delattr(cls, "run"), lambda: setattr(cls, "run", helper)),
    ]
    for change, restore in changes * 2:
        change()
        assert not checked()
        restore()
        assert checked()
        cls.unrelated = object()
        assert checked()


def test_a_base_class_that_changes() -> None:
    parent = type("Parent", (), {"kind": "a"})
    child = type("Child", (parent,), {})
    instance = child()
    checked = Checked(
        (instance,),
        (X, Kind.TYPE, child),
        (ConstSource(child), Kind.CLASS_ATTRIBUTE, ("kind", "a")),
    )
    parent.kind = "b"
    assert not checked(instance)
    parent.kind = "a"
    assert checked(instance)
    child.__bases__ = (type("Stranger", (), {"kind": "c"}),)
    assert not checked(instance)


def test_the_type_of_something_with_a_fact_about_it() -> None:
    box = Box()
    checked = Checked(
        (box,),
        (TypeSource(X), Kind.IDENTITY, Box),
        (TypeSource(X), Kind.CLASS_ATTRIBUTE, ("__doc__", Box.__doc__)),
    )
    box.__class__ = Cage
    assert not checked(box)
    assert not checked(Cage()) and checked(Box())


# -- at random -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(150))
def test_random_changes_against_the_oracle(seed: int) -> None:
    graph, inputs = Graph(seed), []
    guards = graph.facts(inputs)
    tree = _native.GuardTree(guards.native_spec(inputs))
    assert tree.collect(graph.slots) is not None
    undo: list[Any] = []
    try:
        for step in range(60):
            if undo and graph.random.random() < 0.5:
                undo.pop()()
            elif graph.random.random() < 0.8:
                undo.append(graph.change())
            holds = guards.check_python(graph.slots) is None
            collected = tree.collect(graph.slots)
            assert (collected is not None) == holds, (
                seed,
                step,
                guards.describe_difference(graph.slots),
            )
            if holds:
                assert all(
                    got is source.load(graph.slots)
                    for got, source in zip(collected, inputs, strict=True)
                )
            if graph.random.random() < 0.02:
                gc.collect(0)
    finally:  # classes of torch's are among what is changed
        while undo:
            undo.pop()()
