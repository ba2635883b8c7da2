"""Random object graphs, facts about them and changes to them, for the guard tree against its
oracle.

Every change can be undone, so that facts come to hold again. Half of the graphs forget what was
replaced: it is freed before another object is made, often at its very address, and undone with an
equal one.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch

from ingot.capture.guard_set import GuardSet
from ingot.capture.guards import MISSING, Kind
from ingot.capture.sources import (
    ArgSource,
    AttrSource,
    CellSource,
    ConstSource,
    FunctionFieldSource,
    InstanceDictSource,
    ItemSource,
    Source,
    TypeSource,
)

Undo = Callable[[], Any]


class Plain:
    """An object with attributes."""

    kind = "plain"


class Other(Plain):
    """What the class of a Plain can be changed to."""


class Slotted:
    __slots__ = ("a", "b")


def closure(value: Any) -> Any:
    def inner(x: Any = 1, *, y: Any = 2) -> Any:
        return value

    return inner


def another(value: Any) -> Any:
    def outer(x: Any = 1, *, y: Any = 2) -> Any:
        return (value, 0)

    return outer


CONSTANTS = (0, 1, 2, 300, 70000, 2.5, -0.0, 0.0, "a", "b", None, True, False, b"x")
KEYS = ("a", "b", "c", "d", 3)


class Graph:
    """A graph of objects from a seed: `slots` are its roots."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.forgets = seed % 2 == 1
        self.sharing = not self.forgets
        self.made: list[Any] = []  # what may turn up in several places
        self.namespace = {"__name__": "somewhere", "limit": 3}
        self.owner = type("Owner", (Plain,), {"forward": closure(1)})
        self.slots = tuple(self.make(3) for _ in range(3))
        self.namespace["thing"] = self.make(2)
        self.sharing = False  # from here on, an object could come to lie within itself
        self.made.clear()

    # -- making ------------------------------------------------------------------------------------

    def constant(self) -> Any:
        value = self.random.choice(CONSTANTS)
        # a new object each time
        return value + 12345 if type(value) is int and value > 2 else value

    def make(self, depth: int) -> Any:
        choose = self.random.random()
        if depth == 0 or choose < 0.2:
            return self.constant() if choose < 0.15 else torch.zeros(self.random.randint(1, 3))
        if choose > 0.9 and self.made and self.sharing:
            return self.random.choice(self.made)
        makers = (
            self.object,
            self.object,
            self.dict,
            self.list,
            self.tuple,
            self.function,
            self.module,
            self.set,
        )
        made = self.random.choice(makers)(depth - 1)
        if self.sharing:
            self.made.append(made)
        return made

    def object(self, depth: int) -> Any:
        made = self.random.choice((Plain, Plain, Other, Slotted))()
        for name in ("a", "b") if type(made) is Slotted else KEYS[: self.random.randint(0, 4)]:
            setattr(made, name, self.make(depth))
        return made

    def dict(self, depth: int) -> Any:
        kind = self.random.choice((dict, dict, OrderedDict))
        return kind((key, self.make(depth)) for key in KEYS[: self.random.randint(0, 5)])

    def list(self, depth: int) -> Any:
        return [self.make(depth) for _ in range(self.random.randint(0, 3))]

    def tuple(self, depth: int) -> Any:
        make = self.constant if self.random.random() < 0.5 else lambda: self.make(depth)
        return tuple(make() for _ in range(self.random.randint(0, 3)))

    def function(self, depth: int) -> Any:
        return self.random.choice((closure, another))(self.make(depth))

    def module(self, depth: int) -> Any:
        made = torch.nn.Linear(2, 2) if self.random.random() < 0.5 else torch.nn.Identity()
        made.extra = self.make(depth)
        if depth:
            made.child = self.module(depth - 1)
        return made

    def set(self, depth: int) -> Any:
        return {1, 2, "a"}

    # -- what there is -----------------------------------------------------------------------------

    def parts(self) -> list[tuple[Source, Any]]:
        """Every object that can be reached, with its path."""
        roots = [(ArgSource(i, f"s{i}"), value) for i, value in enumerate(self.slots)]
        found: list[tuple[Source, Any]] = []
        pending = [
            *roots,
            (ConstSource(self.namespace), self.namespace),
            (ConstSource(self.owner), self.owner),
        ]
        while pending:
            source, value = pending.pop()
            found.append((source, value))
            pending += below(source, value)
        return found

    def facts(self, inputs: list[Source]) -> GuardSet:
        """A random choice of what holds now; `inputs` receives the paths of tensors."""
        guards = GuardSet()
        for source, value in self.parts():
            if self.random.random() < 0.6:
                for kind, data in facts_about(value):
                    if self.random.random() < 0.7:
                        guards.add(source, kind, data)
            if type(value) in (torch.Tensor, torch.nn.Parameter) and self.random.random() < 0.8:
                guards.add_tensor(source, value)
                inputs.append(source)
        for _ in range(4):
            (one, value), (other, its) = (self.random.choice(self.parts()) for _ in range(2))
            if not isinstance(value, dict) and not isinstance(its, dict):
                guards.add(one, Kind.SAME if value is its else Kind.DISTINCT, other)
        return guards

    # -- changing ----------------------------------------------------------------------------------

    def change(self) -> Undo:
        """Changes something, perhaps into its equal."""
        _, value = self.random.choice(self.parts())
        if isinstance(value, torch.Tensor):
            return self.change_tensor(value)
        if isinstance(value, dict):
            return self.change_dict(value)
        if type(value) is list:
            return self.change_list(value)
        if isinstance(value, type):
            return set_attribute(
                value, self.random.choice(("forward", "extra", "kind")), closure(2)
            )
        if type(value) is type(closure):
            return self.change_function(value)
        if isinstance(value, (Plain, Slotted, torch.nn.Module)):
            return self.change_object(value)
        if type(value) is set:
            value.symmetric_difference_update({99})
            return lambda: value.symmetric_difference_update({99})
        return lambda: None

    def keep(self, value: Any) -> Any:
        """What undoing a change puts back."""
        return equal(value) if self.forgets else value

    def replace(self, get: Callable[[], Any], put: Callable[[Any], Any]) -> None:
        """Puts an equal in the place of a value, or something else."""
        if self.random.random() < 0.6:
            put(equal(get()))
        else:
            if self.forgets:
                put(None)
            put(self.make(1))

    def change_tensor(self, tensor: torch.Tensor) -> Undo:
        old = tensor.data
        tensor.data = torch.zeros(self.random.randint(1, 4))
        return lambda: setattr(tensor, "data", old)

    def change_dict(self, target: dict[Any, Any]) -> Undo:
        before = [(key, self.keep(value)) for key, value in target.items()]

        def undo() -> None:
            target.clear()
            target.update(before)

        key = self.random.choice((*target, "z"))
        ways: list[Callable[[], Any]] = [
            lambda: self.replace(
                lambda: target.get(key), lambda value: target.__setitem__(key, value)
            ),
            lambda: self.replace(
                lambda: target.get(key), lambda value: target.update({key: value})
            ),
            lambda: target.pop(key, None),
            lambda: target.__ior__({"y": 1}),
            lambda: target.setdefault("w", 2),
            lambda: (target.clear(), target.update([(k, equal(v)) for k, v in before])),
            lambda: target and target.popitem(),
            lambda: (
                isinstance(target, OrderedDict)
                and key in target
                and target.move_to_end(key, last=False)
            ),
        ]
        self.random.choice(ways)()
        return undo

    def change_list(self, target: list[Any]) -> Undo:
        before = [self.keep(value) for value in target]

        def undo() -> None:
            target[:] = before

        if target and self.random.random() < 0.7:
            at = self.random.randrange(len(target))
            self.replace(lambda: target[at], lambda value: target.__setitem__(at, value))
        else:
            target.append(1)
        return undo

    def change_function(self, function: Any) -> Undo:
        cell = function.__closure__[0]
        before = (
            function.__code__,
            function.__defaults__,
            function.__kwdefaults__,
            self.keep(cell.cell_contents),
        )

        def undo() -> None:
            (
                function.__code__,
                function.__defaults__,
                function.__kwdefaults__,
                cell.cell_contents,
            ) = before

        way = self.random.randrange(4)
        if way == 0:
            function.__code__ = self.random.choice((closure(0).__code__, another(0).__code__))
        elif way == 1:
            function.__defaults__ = self.random.choice(((1,), (7,), None))
        elif way == 2:
            function.__kwdefaults__ = self.random.choice(({"y": 2}, {"y": 9}, None))
        else:
            self.replace(
                lambda: cell.cell_contents, lambda value: setattr(cell, "cell_contents", value)
            )
        return undo

    def change_object(self, target: Any) -> Undo:
        way = self.random.random()
        names = ("a", "b") if type(target) is Slotted else (*vars(target), "z")
        if way < 0.15 and type(target) in (Plain, Other):
            old = type(target)
            target.__class__ = Other if old is Plain else Plain
            return lambda: setattr(target, "__class__", old)
        if way < 0.35 and type(target) is not Slotted:
            old_dict = target.__dict__
            target.__dict__ = (
                dict(old_dict)
                if way < 0.25
                else {key: equal(value) for key, value in old_dict.items()}
            )
            return lambda: setattr(target, "__dict__", old_dict)
        if way < 0.6 and isinstance(target, torch.nn.Module):
            training = vars(target).get("training", True)
            vars(target)["training"] = self.random.random() < 0.5
            return lambda: vars(target).update(training=training)
        name = self.random.choice([name for name in names if not name.startswith("_")])
        has = hasattr(target, name) if type(target) is Slotted else name in vars(target)
        if way < 0.7 and has:
            return delete_attribute(target, name)
        if not has:
            return set_attribute(target, name, self.make(1))
        old = self.keep(getattr(target, name))
        self.replace(
            lambda: getattr(target, name), lambda value: object.__setattr__(target, name, value)
        )
        return lambda: object.__setattr__(target, name, old)


def below(source: Source, value: Any) -> list[tuple[Source, Any]]:
    if isinstance(value, dict):
        return [
            (ItemSource(source, key), item)
            for key, item in value.items()
            if not str(key).startswith("__")
        ]
    if type(value) in (list, tuple):
        return [(ItemSource(source, at), item) for at, item in enumerate(value)]
    if type(value) is type(closure):
        fields = ("__code__", "__defaults__", "__kwdefaults__")
        found = [(FunctionFieldSource(source, field), getattr(value, field)) for field in fields]  # type: ignore[arg-type]
        return [*found, (CellSource(source, 0, "value"), value.__closure__[0].cell_contents)]
    if type(value) is Slotted:
        names = [name for name in ("a", "b") if hasattr(value, name)]
        return [(AttrSource(source, name, "slot"), getattr(value, name)) for name in names]
    if isinstance(value, (Plain, torch.nn.Module)):
        return [(InstanceDictSource(source), vars(value)), (TypeSource(source), type(value))]
    return []


def facts_about(value: Any) -> list[tuple[Kind, Any]]:
    found: list[tuple[Kind, Any]] = [(Kind.IS_NONE, value is None)]
    if not isinstance(value, type):
        found.append((Kind.TYPE, type(value)))
    if type(value) in (int, float, str, bytes, bool):
        found += [(Kind.EQUALS, value), (Kind.TRUTH, bool(value))]
    if isinstance(value, dict):
        found += [(Kind.DICT_KEYS, tuple(value)), (Kind.ABSENT_KEY, "z"), (Kind.LENGTH, len(value))]
        found += [] if value else [(Kind.DICT_EMPTY, None)]
    if type(value) in (list, tuple, set):
        found += [(Kind.LENGTH, len(value)), (Kind.TRUTH, bool(value))]
    if isinstance(value, (type, type(closure.__code__))):
        found.append((Kind.IDENTITY, value))
    if isinstance(value, type) and issubclass(value, Plain):
        found.append((Kind.CLASS_ATTRIBUTE, ("extra", getattr(value, "extra", MISSING))))
        found.append((Kind.CLASS_ATTRIBUTE, ("kind", value.kind)))
    return found


def equal(value: Any) -> Any:
    """Another object of the same facts, made after the last reference of a caller to the old one
    may have gone."""
    if type(value) is tuple:
        return tuple([equal(item) for item in value])
    if type(value) is list:
        return [equal(item) for item in value]
    if type(value) in (dict, OrderedDict):
        return type(value)((key, equal(item)) for key, item in value.items())
    if type(value) in (int, float):
        return value + type(value)(1) - type(value)(1) if value else value
    if isinstance(value, torch.Tensor):
        made = torch.zeros(value.shape)
        return torch.nn.Parameter(made) if isinstance(value, torch.nn.Parameter) else made
    if type(value) in (Plain, Other):
        made = type(value)()
        vars(made).update({key: equal(item) for key, item in vars(value).items()})
        return made
    return value


def set_attribute(target: Any, name: str, value: Any) -> Undo:
    """Sets an attribute where attributes are kept, whatever the class makes of it."""
    store, remove = (
        (setattr, delattr) if isinstance(target, type) else (object.__setattr__, object.__delattr__)
    )
    old = (
        vars(target).get(name, MISSING)
        if not isinstance(target, Slotted)
        else getattr(target, name, MISSING)
    )
    store(target, name, value)
    if old is not MISSING:
        return lambda: store(target, name, old)
    return lambda: (
        remove(target, name) if isinstance(target, Slotted) or name in vars(target) else None
    )


def delete_attribute(target: Any, name: str) -> Undo:
    old = getattr(target, name) if isinstance(target, Slotted) else vars(target)[name]
    object.__delattr__(target, name)
    return lambda: object.__setattr__(target, name, old)
