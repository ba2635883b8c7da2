"""What special methods answer: attributes, numbers of other types, what is no answer at all. And
tuples written in C, which have names (sys.version_info), and named tuples with a `__new__` of their
own."""

from __future__ import annotations

import collections
import itertools
import math
import os
import sys
import time
import warnings
from typing import Any, NamedTuple

import pytest
import torch

from tests.capture import batches

ANSWERS = [
    "0", "1", "True", "False", "2.5", "'a'", "None",
    "-1", "[]", "1 << 70", "1j", "b'a'", "()", "iter([1])", "int",
]  # fmt: skip
QUESTIONS = [
    "bool(o)", "not o", "1 if o else 2", "o and 1",
    "o or 1", "any([o])", "list(filter(None, [o]))", "len(o)", "3 in o",
    "[1, 2, 3][o]", "[1, 2, 3][o:]", "(1, 2)[o]", "'abc'[o]",
    "range(o)", "[1] * o", "'a' * o", "hash(o) == hash(o)",
    "{o: 1}.get(o)", "o in {1: 2}", "o == 3", "3 == o",
    "o != 3", "3 in [o]", "[o].index(3)", "[o] == [3]", "list(o)",
    "[*o]", "iter(o)", "reversed(o)", "str(o)",
    "repr(o)", "f'{o}'", "f'{o!r:>9}'", "format(o, 'x')", "'%s' % o",
    "float(o)", "int(o)", "complex(o)", "math.sqrt(o)",
    "math.floor(o)", "math.trunc(o)", "round(o)", "round(2.345, o)",
    "chr(o)", "hex(o)", "o < 3", "3 < o", "sorted([o, o])",
    "max(o, o)", "-o", "abs(o)", "o + 1", "1 + o", "divmod(o, 2)",
    "pow(o, 2)", "o()", "next(o)", "o[0]", "o.missing", "bytes(o)",
]  # fmt: skip
_METHODS = (
    "bool len contains index hash eq ne iter reversed str repr format float int complex floor "
    "trunc "
    "round lt gt neg abs add radd divmod pow call next getitem getattr bytes"
).split()


def _answers(self: Any, *args: Any) -> Any:
    return object.__getattribute__(self, "answer")


def _init(self: Any, answer: Any) -> None:
    self.answer = answer


ANSWERING = {
    name: type(f"Answers_{name}", (), {"__init__": _init, f"__{name}__": _answers})
    for name in _METHODS
}
"""Classes with one special method, which returns an attribute."""


class Pair(collections.namedtuple("Pair", "a b")):
    __slots__ = ()

    def __new__(cls, a: Any) -> Any:
        return super().__new__(cls, a, 2 * a)


class Row(NamedTuple):
    a: int
    b: int = 3


TUPLES: dict[str, Any] = {
    "version": sys.version_info,
    "flags": sys.flags,
    "hashes": sys.hash_info,
    "ints": sys.int_info,
    "stat": os.stat(os.sep),
    "moment": time.gmtime(0),
    "largest": torch.ones(3, 3).max(0),
    "pair": Pair(1),
    "row": Row(1),
}
OF_TUPLES = [
    "t[0]", "t[-1]", "t[99]", "t[:2]",
    "t[:]", "len(t)", "list(t)", "(lambda *a: a)(*t)", "a, *b = t; found = a, b",
    "t", "[t]", "{'k': t}", "isinstance(t, tuple)",
    "type(t)", "t is t", "t.__class__", "t.missing", "bool(t)",
    "t.__class__.__name__", "t.__len__()",
    "str(type(t))", "tuple(reversed(t))", "sum(1 for v in t)",
]  # fmt: skip
OF_NUMBERS = [
    "t >= (3, 9)", "t < (4,)", "(3, 9) <= t", "t == tuple(t)",
    "t != (1,)", "t == t", "t < t", "t <= t", "t + (1,)",
    "(1,) + t", "t * 2", "t.index(t[0])", "t.count(1)",
    "t[0] in t", "{t: 1}", "{t: 1}[t]", "{tuple(t): 1}[t]",
    "hash(t) == hash(tuple(t))", "f'{t}'", "str(t)", "repr(t)",
    "sorted([t, t])", "max(t, t)", "t < [1]", "t + [1]",
    "t > (3, 'a')", "{t}", "t in [t]", "t in {tuple(t)}", "[t].index(tuple(t))",
]  # fmt: skip
MADE = [
    "time.struct_time((1, 2, 3, 4, 5, 6, 7, 8, 9))", "time.struct_time((1, 2))",
    "time.struct_time(3)", "Pair(3)",
    "Pair(3)._replace(a=1)", "Row(1) >= (1, 2)", "Row(1)._asdict()",
    "Row(1)._replace(a=4)", "Row()", "Row(1, 2, 3)",
    "torch.return_types.max((x, x)).values", "Row._make([1, 2])",
    "version.major", "version >= (3,)", "stat.st_mode",
    "version[:2] >= (3, 9)", "stat.st_mtime", "moment.tm_zone",
    "moment.tm_year", "largest.values + 1", "flags.optimize",
    "hashes.width", "torch.finfo(x.dtype).eps", "torch.iinfo(torch.int8).max",
    "sys.float_info.max", "pair.b", "row.b",
    "sys.float_info >= (1.0,)", "sys.version_info >= (3, 9)",
    "sys.version_info[:2]", "sys.implementation.version >= (3,)",
]  # fmt: skip
NAMESPACE = {
    **TUPLES,
    "math": math,
    "time": time,
    "torch": torch,
    "sys": sys,
    "Pair": Pair,
    "Row": Row,
}


@pytest.mark.parametrize(
    "name", ["bool", "len", "contains", "index", "hash", "eq", "float", "int", "str"]
)
def test_answers(name: str) -> None:
    pairs = itertools.islice(itertools.product(ANSWERS, QUESTIONS), 0, None, 11)
    pieces = [f"o = C({answer})\nfound = {question}" for answer, question in pairs]
    with warnings.catch_warnings(action="ignore"):
        tally = batches.run(pieces, {"C": ANSWERING[name], "math": math}, ())
    assert not tally.differences, str(tally)


def test_answers_of_outside_objects() -> None:
    for name in ("bool", "len", "contains", "index", "eq", "float"):
        for answer in ANSWERS[:6]:
            pieces = [f"o = made\nfound = {question}" for question in QUESTIONS[::5]]
            made = eval(answer)
            with warnings.catch_warnings(action="ignore"):
                tally = batches.run(
                    pieces, {"math": math}, (), lambda name=name, made=made: ANSWERING[name](made)
                )
            assert not tally.differences, str(tally)


@pytest.mark.parametrize("name", list(TUPLES))
def test_tuples_with_names(name: str) -> None:
    texts = OF_TUPLES if name == "largest" else [*OF_TUPLES, *OF_NUMBERS]
    begin = f"t = {name}\n"
    pieces = [begin + (text if "found" in text else f"found = {text}") for text in texts]
    tally = batches.run(pieces, NAMESPACE, ())
    assert not tally.differences, str(tally)
    assert len(tally.broken) <= 5, tally.broken


def test_tuples_that_are_made() -> None:
    tally = batches.run([f"found = {text}" for text in MADE], NAMESPACE, ())
    assert not tally.differences, str(tally)
