"""PYTEST_DONT_REWRITE. functools.partial: what can be read of one, set on it and done with it, of
those that the program makes and of those that are given."""

# ruff: noqa  (the programs are written as users may write them)
from __future__ import annotations

import copy
import functools
import inspect
import operator
import pickle
import sys

import pytest
import torch

import ingot
from tests.capture.questions import unlike_eager


def plain(a, b=2, *rest, c=3, **named):
    return a, b, rest, c, named


class Callable:
    def __call__(self, *args, **named):
        return "called", args, named

    def method(self, *args):
        return "method", args

    def __eq__(self, other):
        return isinstance(other, Callable)

    def __hash__(self):
        return 1

    def __repr__(self):
        return "Callable()"


class Sub(functools.partial):
    label = "sub"

    def doubled(self):
        return self.args * 2


class SubCalls(functools.partial):
    def __call__(self, *args):
        return "own", super().__call__(*args)


class SubNew(functools.partial):
    def __new__(cls, function, *args, **named):
        made = super().__new__(cls, function, 0, *args, **named)
        made.made = True
        return made


def with_attributes():
    made = functools.partial(plain, 1)
    made.note = ["n"]
    return made


def nested_with_attributes():
    return functools.partial(with_attributes(), 5)


HELD = [1, 2]
CALLABLE = Callable()
PARTIALS = {
    "of a function": lambda: functools.partial(plain, 1),
    "with keywords": lambda: functools.partial(plain, 1, c=7, d=8),
    "nested": lambda: functools.partial(functools.partial(plain, 1, c=7), 2, c=8, e=9),
    "with attributes": with_attributes,
    "nested with attributes": nested_with_attributes,
    "of a built-in": lambda: functools.partial(max, 3),
    "of an object": lambda: functools.partial(CALLABLE, 1),
    "of a method": lambda: functools.partial(CALLABLE.method, 1),
    "of a built-in method": lambda: functools.partial("a,b".split),
    "of a list": lambda: functools.partial(plain, HELD, c=HELD),
    "of a subclass": lambda: Sub(plain, 1, d=2),
    "partial of a subclass": lambda: functools.partial(Sub(plain, 1), 2),
    "subclass that calls": lambda: SubCalls(plain, 1),
}
if sys.version_info >= (3, 14):
    PARTIALS["placeholder"] = lambda: functools.partial(plain, functools.Placeholder, 2)


def sets_attributes(p):
    p.note, p.other = "n", [1]
    del p.other
    return p.note, vars(p), hasattr(p, "other")


def sets_by_name(p):
    setattr(p, "note", 1)
    p.__dict__["more"] = 2
    return p.more, getattr(p, "note"), sorted(p.__dict__)


def refuses(action):
    def tried(p):
        try:
            action(p)
        except Exception as error:
            return type(error), str(error)
        return "no error", p.func, p.args, p.keywords

    return tried


def _set_func(p):
    p.func = max


def _set_args(p):
    p.args = (1,)


def _set_keywords(p):
    p.keywords = {}


def _delete_func(p):
    del p.func


def _delete_missing(p):
    del p.missing


def changes_keywords(p):
    p.keywords["d"] = 5
    return p(0), p.keywords


def keywords_are_one(p):
    return p.keywords is p.keywords, p.args is p.args, p.func is p.func


def wrapped(p):
    made = functools.update_wrapper(functools.partial(p), plain)
    return made.__name__, made.__wrapped__ is plain, made.__doc__


def in_containers(p):
    table = {p: 1}
    return table[p], p in [p], p in {p}, [p].index(p), p == p, p != p


def reduced(p):
    made = p.__reduce__()
    return made[0], made[1], made[2]


def state(p):
    p.__setstate__((max, (1, 2), {}, {"note": 1}))
    return p(), p.note


def as_method(p):
    class Owner:
        method = p
        static = staticmethod(p)

    return Owner.method is p


QUESTIONS = {
    "func": lambda p: p.func,
    "args": lambda p: p.args,
    "keywords": lambda p: p.keywords,
    "__dict__": lambda p: p.__dict__,
    "vars": lambda p: vars(p),
    "call": lambda p: p(4),
    "call with keywords": lambda p: refuses(lambda p: p(4, c=9))(p),
    "call with star": lambda p: p(*[4, 5]),
    "overrides": lambda p: refuses(lambda p: p(**{"c": 1, "d": 2}))(p),
    "repr": lambda p: repr(p).split(" at 0x")[0],
    "equality": lambda p: (p == p, p != p, p == functools.partial(plain, 1), p == 3),
    "truth": lambda p: (bool(p), not p, callable(p)),
    "type": lambda p: (type(p), type(p).__name__, p.__class__),
    "isinstance": lambda p: (
        isinstance(p, functools.partial),
        isinstance(p, Sub),
        inspect.isfunction(p),
        inspect.ismethod(p),
    ),
    "containers": in_containers,
    "no such attribute": refuses(lambda p: p.missing),
    "hasattr": lambda p: [
        hasattr(p, n)
        for n in (
            "func",
            "args",
            "keywords",
            "__name__",
            "__call__",
            "note",
            "made",
            "label",
            "__wrapped__",
        )
    ],
    "getattr with default": lambda p: (
        getattr(p, "note", 0),
        getattr(p, "__name__", "none"),
        getattr(p, "func", 0),
    ),
    "__name__": refuses(lambda p: p.__name__),
    "__doc__": lambda p: p.__doc__ == functools.partial.__doc__,
    "__call__": lambda p: p.__call__(4),
    "__self__": refuses(lambda p: p.__self__),
    "signature": refuses(lambda p: str(inspect.signature(p))),
    "sets attributes": sets_attributes,
    "sets by name": sets_by_name,
    "sets func": refuses(_set_func),
    "sets keywords": refuses(_set_keywords),
    "deletes what is missing": refuses(_delete_missing),
    "changes keywords": changes_keywords,
    "keywords are one": keywords_are_one,
    "more of it": lambda p: (
        functools.partial(p, 9).args,
        functools.partial(p, z=1).keywords,
        functools.partial(p).func,
    ),
    "more of it is called": lambda p: functools.partial(p, 9)(),
    "nested is flat": lambda p: functools.partial(p, 9).func is p.func,
    "rebuilt": lambda p: functools.partial(p.func, *p.args, **p.keywords)(8),
    "update_wrapper": wrapped,
    "deepcopy": lambda p: (copy.deepcopy(p).args, copy.deepcopy(p)(4)),
    "pickled": lambda p: pickle.loads(pickle.dumps(p))(4),
    "reduced": reduced,
    "state": state,
    "dir": lambda p: [
        n for n in dir(p) if n in ("func", "args", "keywords", "note", "doubled", "__call__")
    ],
    "returned": lambda p: p,
    "doubled": refuses(lambda p: p.doubled()),
    "itemgetter": lambda p: operator.attrgetter("args", "keywords")(p),
}


KINDS = list(PARTIALS)


@pytest.mark.parametrize("kind", KINDS)
def test_partials(kind):
    assert not unlike_eager(QUESTIONS, PARTIALS[kind], KINDS.index(kind))


def test_a_look_at_arguments_makes_no_dict():
    """Calls behind a graph break are looked at for tensors; a partial that has a `__dict__` is not
    flattened."""

    def program(x):
        inner = Sub(plain, 1)
        eval("held(inner)", {"held": held, "inner": inner})
        return x + 1, functools.partial(inner, 2).args

    def held(partial):
        return partial.func

    assert ingot.compile(program, backend="eager")(torch.ones(1))[1] == (1, 2)
