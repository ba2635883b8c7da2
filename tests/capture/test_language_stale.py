"""PYTEST_DONT_REWRITE. Objects that existed before the call and changed since: the answer is the new one."""

# ruff: noqa  (the programs are written as users may write them)
from __future__ import annotations

import collections
import contextvars
import functools
import time
import types
import weakref

import pytest
import torch

import ingot
from ingot.compiler import Compiler
from tests.capture.test_language_outside import Count, Ratio, Slots, Stack, Tags, Thing
from tests.oracle import assert_same, outcome

# -- stale guards ----------------------------------------------------------------------------------


def members(x, slots):
    return x + 1 if hasattr(slots, "a") else x - 1


def set_member(slots):
    slots.a = 1


def plain_value(x, number):
    return x * number


VARIABLE = contextvars.ContextVar("VARIABLE", default=2)


def context_variable(x, variable):
    return x * variable.get()


def unset_variable(x, variable):
    return x * variable.get(7)


def named(x, function):
    return x * len(function.__name__)


def rename(function):
    function.__name__ = "much_longer_name"


def defaults(x, function):
    return x * function.__defaults__[0]


def new_defaults(function):
    function.__defaults__ = (7,)


def has_default(a=2):
    return a


def scaled_by_view(x, held):
    view, _ = held
    return x * view["k"] + len(view)


def make_view():
    table = {"k": 2}
    return types.MappingProxyType(table), table


def make_function():
    return types.FunctionType(has_default.__code__, {}, "name", (2,))


def signature_of(x, function):
    import inspect

    return x * inspect.signature(function).parameters["a"].default


@functools.singledispatch
def dispatched(value):
    return 1


def dispatches(x, value):
    return x * dispatched(value)


class Registered:
    pass


def register(value):
    dispatched.register(Registered, lambda value: 5)


def length_of(x, items):
    return x * len(items)


def first_of(x, items):
    return x * items[0]


def label_of(x, thing):
    return x * len(thing.label)


def relabel(thing):
    thing.label = "longer"


def exception_args(x, error):
    return x * len(error.args)


def new_args(error):
    error.args = (1, 2, 3)


def class_flag(x, thing):
    return x * thing.factor


class Flagged:
    factor = 2


def new_flag(thing):
    Flagged.factor = 5


@pytest.mark.parametrize(
    "fn, make, change",
    [
        (members, Slots, set_member),
        (plain_value, lambda: [Count(3)], lambda held: held.__setitem__(0, Count(4))),
        (plain_value, lambda: [Ratio(0.0)], lambda held: held.__setitem__(0, Ratio(-0.0))),
        (context_variable, lambda: VARIABLE, lambda variable: variable.set(6)),
        (unset_variable, lambda: contextvars.ContextVar("new"), lambda variable: variable.set(6)),
        (named, make_function, rename),
        (defaults, make_function, new_defaults),
        (signature_of, make_function, new_defaults),
        (scaled_by_view, make_view, lambda held: held[1].update(k=3)),
        (scaled_by_view, make_view, lambda held: held[1].update(new=3)),
        (dispatches, Registered, register),
        (length_of, lambda: Stack(1, 2), lambda stack: stack.append(3)),
        (length_of, lambda: Tags("a"), lambda tags: tags.add("b")),
        (first_of, lambda: Stack(1, 2), lambda stack: stack.__setitem__(0, 9)),
        (label_of, lambda: Stack(1), relabel),
        (exception_args, lambda: ValueError("v"), new_args),
        (class_flag, Flagged, new_flag),
    ],
    ids=lambda value: getattr(value, "__name__", "") if callable(value) else "",
)
def test_changed_facts_give_the_new_answer(fn, make, change):
    thing, x = make(), torch.arange(1.0, 5.0)

    def run(x, thing):
        return fn(x, thing[0] if fn is plain_value else thing)

    compiled = ingot.compile(run, backend="eager")
    context = contextvars.copy_context()

    @torch.no_grad()
    def check():
        for _ in range(2):
            assert_same(outcome(compiled, x, thing), outcome(run, x, thing))

    context.run(check)
    before = len(Compiler.of(compiled).compilations)
    context.run(change, thing)
    context.run(check)
    assert before == 1 and len(Compiler.of(compiled).compilations) == 2


# -- numbers of objects ----------------------------------------------------------------------------


class Numbered:
    """Things that were noted by their id()."""

    def __init__(self):
        self.things = [Thing(value=1.0), Thing(value=2.0), Thing(value=3.0)]
        self.states = collections.defaultdict(dict, {id(self.things[0]): {"stage": 7}})
        self.known = {
            id(self.things[0]): "first",
            (id(self.things[0]), id(self.things[1])): "both",
            5: "five",
        }
        self.seen = {id(self.things[0])}


def look_up(x, numbered, k):
    thing, first = numbered.things[k], numbered.things[0]
    pair = numbered.known.get((id(first), id(thing)))
    copied = {**numbered.known}
    new = Thing()
    return (
        x + 1, numbered.known.get(id(thing)), id(thing) in numbered.known,
        id(thing) in numbered.seen, pair, copied.get(id(thing)), id(thing) in set(numbered.seen),
        id(new) in numbered.known, len(numbered.known),
    )  # fmt: skip


def note(x, numbered, k):
    thing = numbered.things[k]
    state = numbered.states[id(thing)]
    numbered.seen.add(id(thing))
    numbered.known[id(thing)] = "noted"
    copied = dict(numbered.known)
    copied[id(thing)] = "copied"
    return (
        x + 1,
        state,
        state.setdefault("stage", 0),
        len(numbered.seen),
        len(copied),
        numbered.known.pop(id(thing)),
    )


def note_before_a_break(x, numbered, k):
    state = numbered.states[id(numbered.things[k])]
    numbered.seen.discard(id(numbered.things[0]))
    time.sleep(0)
    state["stage"] = k
    numbered.seen.add(id(numbered.things[k]))
    return (
        x + 1,
        numbered.states[id(numbered.things[k])]["stage"],
        len(numbered.states),
        len(numbered.seen),
    )


@pytest.mark.parametrize("fn", [look_up, note, note_before_a_break])
def test_numbers_of_objects_in_what_existed_before(fn):
    compiled, ours, eagers = ingot.compile(fn, backend="eager"), Numbered(), Numbered()
    x = torch.ones(2)
    for k in (0, 1, 0, 2, 1, 1):
        found, expected = compiled(x, ours, k), fn(x, eagers, k)
        assert found[1:] == expected[1:]
        for numbered in (ours, eagers):
            numbers = {id(thing) for thing in numbered.things}
            assert numbered.seen <= numbers and numbered.states.keys() <= numbers
        assert [[id(thing) in n.seen for thing in n.things] for n in (ours, eagers)][0] == [
            id(thing) in eagers.seen for thing in eagers.things
        ]
    if fn is look_up:
        ours.things.reverse()
        eagers.things.reverse()
        assert compiled(x, ours, 0)[1:] == fn(x, eagers, 0)[1:]


def test_weak_references():
    """One to what the program has in its hands anyway is called; another breaks the graph, as what
    is behind it may die."""

    class Thing:
        def __init__(self, k):
            self.k = k

    a, b = Thing(2), Thing(3)
    box = types.SimpleNamespace(thing=a, reference=weakref.ref(a))

    def held(x):
        box.thing.k += 1
        return x * box.reference().k, box.reference() is box.thing

    def alone(x):
        return x * box.reference().k

    x = torch.ones(2)
    compiled, other = ingot.compile(held), ingot.compile(alone)
    assert compiled(x)[0][0] == 3 and compiled(x)[1] and compiled(x)[0][0] == 5
    assert ingot.explain(compiled)(x).break_count == 0
    box.reference = weakref.ref(b)
    found, same = compiled(x)
    assert found[0] == 3 and not same
    assert other(x)[0] == 3 and ingot.explain(other)(x).break_count == 1
    box.reference = weakref.ref(Thing(1))
    with pytest.raises(AttributeError, match="NoneType"):
        compiled(x)
