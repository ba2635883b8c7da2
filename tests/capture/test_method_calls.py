"""Methods of the built-in types, operators and functions, called with arguments of every kind,
right and wrong: results, exceptions with their texts, and what becomes of the object are CPython's.

The suite takes a part of the calls; `python -m tests.capture.test_method_calls` all of them.
"""

from __future__ import annotations

import builtins
import collections
import itertools
import math
import operator
import sys
from collections.abc import Iterator

import pytest

from tests.capture import batches

RECEIVERS = {
    "str": "'ab c'",
    "bytes": "b'ab'",
    "list": "[3, 1, 2]",
    "tuple": "(3, 1, 2)",
    "dict": "{'a': 1, 3: 2}",
    "OrderedDict": "OrderedDict([('a', 1), (3, 2)])",
    "defaultdict": "defaultdict(int, {'a': 1, 3: 2})",
    "set": "{1, 2, 3}",
    "frozenset": "frozenset((1, 2, 3))",
    "deque": "deque([3, 1, 2])",
    "int": "5",
    "bool": "True",
    "float": "2.5",
    "complex": "(1 + 2j)",
    "range": "range(3)",
    "slice": "slice(0, 3)",
    "NoneType": "None",
}
ARGUMENTS = [
    "3", "-1", "True", "2.5", "1j", "'a'", "''", "b'a'", "None", "[1, 2]", "(1, 2)", "{'a': 1}",
    "{1, 2}", "frozenset((1, 2))", "deque([1])", "range(2)", "slice(0, 2)", "Thing()", "...",
    "NotImplemented", "int", "len",
    "iter([1, 2])", "[[1, 2], [3, 4]]", "['x', 'y']",
]  # fmt: skip
SECOND = ["0", "1.5", "'b'", "None", "[1]", "Thing()"]
KEYWORDS = {
    "sort": [
        "key=3",
        "key=None",
        "reverse=None",
        "reverse='a'",
        "key=len",
        "other=1",
        "reverse=[]",
    ],
    "split": ["sep=3", "maxsplit='a'", "maxsplit=1", "sep=None", "other=1"],
    "rsplit": ["sep=3", "maxsplit='a'", "maxsplit=1"],
    "splitlines": ["keepends=True", "keepends='a'", "keepends=2.5"],
    "encode": ["encoding='utf8'", "encoding=3", "errors=3", "encoding='nothing'"],
    "update": ["a=1", "b='c'", "self=1"],
    "format": ["a=1", "b=[]"],
    "to_bytes": ["length=2", "byteorder='little'", "signed=True", "length='a'"],
    "expandtabs": ["tabsize=2", "tabsize='a'"],
    "popitem": ["last=True", "last=False"],
    "move_to_end": ["key='a'", "key=5"],
    "get": ["key='a'", "default=3"],
    "pop": ["index=0", "default=3"],
    "append": ["object=3"],
    "index": ["value=3"],
    "extend": ["iterable=[1]"],
    "setdefault": ["key='a'", "key='c', default=3"],
    "conjugate": ["a=1"],
    "as_integer_ratio": ["a=1"],
    "fromkeys": ["iterable=[1]"],
}
FUNCTIONS = (
    "abs all any ascii bin bool bytes callable chr complex dict divmod enumerate filter float "
    "format frozenset getattr "
    "hasattr hash hex int isinstance issubclass iter len list map max min next oct ord pow range "
    "repr reversed round "
    "set slice sorted str sum tuple zip"
).split()
_OPERATORS = "+ - * / // % ** @ & | ^ << >> == != < <= > >= in is".split()
_IN_PLACE = 13  # the first so many of them have an in-place form

_LEFT_OUT = frozenset(
    "__class__ __dir__ __doc__ __sizeof__ __init_subclass__ __subclasshook__ __class_getitem__ "
    "__getstate__ __new__ "
    "__reduce__ __reduce_ex__ __getnewargs__ __getattribute__ __setattr__ __delattr__ __init__ "
    "__module__ "
    "__copy__ __deepcopy__ __getformat__ fromhex".split()
)


class Thing:
    """A plain object."""

    def __repr__(self) -> str:
        return "thing"


NAMESPACE = {
    "Thing": Thing, "deque": collections.deque, "OrderedDict": collections.OrderedDict,
    "math": math,
    "defaultdict": collections.defaultdict, "operator": operator,
}  # fmt: skip


def methods_of(kind: str) -> list[str]:
    """The names of all methods of a type."""
    cls = type(eval(RECEIVERS[kind], dict(NAMESPACE)))
    return [name for name in dir(cls) if name not in _LEFT_OUT and callable(getattr(cls, name))]


def method_calls(kind: str) -> Iterator[str]:
    """Pieces: a call of a method each."""
    two = [f"{a}, {b}" for a in ARGUMENTS[::3] for b in SECOND]
    for name in methods_of(kind):
        more = ["3, 'a'", "1, 2, 3, 4"] if name.startswith("__") else two
        for text in ["", *ARGUMENTS, *more, *KEYWORDS.get(name, []), "1, 2, 3"]:
            yield f"owner = None\nowner = {RECEIVERS[kind]}\nfound = owner.{name}({text})"


def operations(kind: str) -> Iterator[str]:
    """Pieces: an operator each, with the object on its left or right, or as what is changed."""
    begin = f"owner = None\nowner = {RECEIVERS[kind]}\n"
    for i, sign in enumerate(_OPERATORS):
        for text in ARGUMENTS:
            yield f"{begin}found = owner {sign} {text}"
            yield f"{begin}found = {text} {sign} owner"
            if i < _IN_PLACE:
                yield f"{begin}found = owner\nfound {sign}= {text}"
    for text in ARGUMENTS:
        yield f"{begin}found = owner[{text}]"
        yield f"{begin}owner[{text}] = 7\nfound = owner"
        yield f"{begin}del owner[{text}]\nfound = owner"
        yield f"{begin}a, b, c = {text}\nfound = a, b, c"
        yield f"{begin}a, *b = {text}\nfound = a, b"
        yield f"{begin}found = (lambda *a, **k: (a, k))(*{text})"
        yield f"{begin}found = (lambda *a, **k: (a, k))(**{text})"
        yield f"{begin}found = '%s, %d' % ({text}, 1), format(owner, {text})"


def function_calls() -> Iterator[str]:
    """Pieces: a call of a built-in function each."""
    lists = [
        "",
        *ARGUMENTS,
        *[f"{a}, {b}" for a in ARGUMENTS for b in SECOND],
        "1, 2, 3",
        "1, 2, 3, 4",
        "other=1",
    ]
    for name, text in itertools.product(FUNCTIONS, lists):
        if name == "hash" and text in ("Thing()", "iter([1, 2])"):  # which is their address
            continue
        yield f"owner = None\nfound = {name}({text})"
        if hasattr(getattr(builtins, name), "__next__"):
            yield f"owner = None\nfound = list({name}({text}))"


def tally_of(pieces: Iterator[str], share: int) -> batches.Tally:
    """Compares every `share`-th piece."""
    return batches.run(itertools.islice(pieces, 0, None, share), NAMESPACE, ("owner",))


@pytest.mark.parametrize("kind", list(RECEIVERS))
def test_methods(kind: str) -> None:
    tally = tally_of(method_calls(kind), 4)
    assert tally.count >= 60 and not tally.differences, str(tally)
    assert len(tally.broken) <= tally.count // 10, tally.broken


@pytest.mark.parametrize("kind", list(RECEIVERS))
def test_operators(kind: str) -> None:
    tally = tally_of(operations(kind), 7)
    assert tally.count >= 100 and not tally.differences, str(tally)


def test_functions() -> None:
    tally = tally_of(function_calls(), 7)
    assert tally.count >= 100 and not tally.differences, str(tally)


def main(wanted: list[str]) -> None:
    """Compares all calls, or those of some types."""
    total = batches.Tally()
    for kind in wanted or [*RECEIVERS, "functions"]:
        groups = (
            [function_calls()] if kind == "functions" else [method_calls(kind), operations(kind)]
        )
        for pieces in groups:
            tally = tally_of(pieces, 1)
            print(kind, tally, flush=True)
            total.add(tally)
    for piece, reason in total.broken.items():
        print("breaks:", piece.splitlines()[-1], "--", reason)
    print(f"{len(total.differences)} of {total.count} differ, {len(total.broken)} break the graph")


if __name__ == "__main__":
    main(sys.argv[1:])
