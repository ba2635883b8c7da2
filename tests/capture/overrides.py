"""Subclasses of built-in types that override a method, in operations that may or may not ask for it:
CPython's C code decides which override counts, and where the content is used instead."""

from __future__ import annotations

import collections
import itertools
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tests.capture import batches

LOG: list[str] = []

VALUES: dict[type, tuple[str, str]] = {  # what an instance is made of, and another one
    int: ("3", "1"),
    float: ("2.5", "1.5"),
    str: ("'ab'", "'a'"),
    tuple: ("(1, 2)", "(1,)"),
    list: ("[1, 2]", "[1]"),
    dict: ("{'a': 1, 'b': 2}", "{'a': 1}"),
    set: ("{1, 2}", "{1}"),
    frozenset: ("{1, 2}", "{1}"),
}
RESULTS: dict[str, Callable[[], Any]] = {
    "__len__": lambda: 1,
    "__iter__": lambda: iter(["a", "b", "c"]),
    "__getitem__": lambda: 9,
    "__contains__": lambda: True,
    "__bool__": lambda: False,
    "__eq__": lambda: True,
    "__lt__": lambda: True,
    "__add__": lambda: "added",
    "__radd__": lambda: "added to",
    "__mul__": lambda: "multiplied",
    "__rmul__": lambda: "multiplied by",
    "__or__": lambda: "joined",
    "__index__": lambda: 1,
    "__float__": lambda: 1.25,
    "keys": lambda: ["a"],
    "__setitem__": lambda: None,
    "__missing__": lambda: 61,
}
OPERATIONS = """
len(s) | bool(s) | not s | 1 if s else 2 | list(iter(s)) | [*s] | (*s,) | {*s} | given(*s)
given(**s) | {**s} | dict(s) | list(s) | tuple(s) | set(s) | frozenset(s) | sorted(s) | sum(s)
max(s) | min(s) | any(s) | all(s) | [v for v in reversed(s)] | list(enumerate(s)) | list(zip(s, s))
list(map(str, s)) | [v for v in s] | 1 in s | 'a' in s | s[0] | s['a'] | s[0:1] | s in {p: 1}
s in [p] | p in [s] | [p].index(s) | [s].index(p) | [p].count(s) | [s] == [p] | (p,) == (s,)
[p] < [s] | {'k': s} == {'k': p} | int(s) | float(s) | operator.index(s) | list(range(s))
[1, 2, 3, 4][s] | [1, 2, 3, 4][s:] | round(s) | math.floor(s) | math.ceil(s) | math.trunc(s)
math.sqrt(s) | math.isfinite(s) | math.gcd(s, 6) | math.pow(s, 2) | s == p | p == s | s == o
s != p | s < p | p < s | s < o | s <= p | s > 2 | 2 > s | 1.5 < s | s < 1.5 | s + o | s + p | p + s
s - p | s * 2 | 2 * s | s * 1.5 | 1.5 * s | s + None | operator.or_(s, o) | x * s | s * x | x + s
s < x | x < s | x - s | list(itertools.chain(s, [5])) | isinstance(s, int) | type(s) | callable(s)
-s | abs(s) | operator.truth(s) | next(iter(s)) | {1}.union(s) | {1, 5}.difference(s)
{1, 5}.intersection(s) | {1, 5}.issubset(s) | {1}.issuperset(s) | {5}.isdisjoint(s)
"""
STATEMENTS = [
    "a, b = s\nfound = a, b",
    "a, *b = s\nfound = a, b",
    "found = []\nfor v in s:\n    found.append(v)",
    "found = [1]\nfound += s",
    "found = [1]\nfound.extend(s)",
    "found = [1]\nfound[0:0] = s",
    "found = {}\nfound.update(s)",
    "found = {1}\nfound.update(s)",
    "found = s\nfound += o\nfound = found, found is s",
    "found = s\nfound *= 2\nfound = found, found is s",
    "found = (1,)\nfound += s",
    "s[0] = 5\nfound = s",
    "s['a'] = 5\nfound = s",
    "del s['a']\nfound = s",
    "found = [1, 2, 3, 4]\ndel found[s]",
]


def given(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


def subclass(base: type, name: str) -> type:
    """A subclass of `base` that overrides one method, and tells when it is called."""

    def override(self: Any, *args: Any) -> Any:
        LOG.append(name)
        if name == "__getitem__" and args[0] == 3:
            raise IndexError("the end")
        return RESULTS[name]()

    space: dict[str, Any] = {name: override}
    if name == "__eq__":
        space["__hash__"] = base.__hash__
    return type("Sub", (base,), space)


def pieces() -> Iterator[str]:
    """Operations on an instance `s`, with another one `o`, a plain one `p` and a tensor `x`."""
    for line in OPERATIONS.strip().splitlines():
        yield from (f"found = {text}" for text in line.split(" | "))
    yield from STATEMENTS


def compare(base: type, name: str, outside: bool) -> batches.Tally:
    """All operations on instances of one subclass, made inside the compiled function or outside."""
    space: dict[str, Any] = {
        "LOG": LOG, "Sub": subclass(base, name), "given": given, "torch": torch, "math": math,
        "operator": operator, "itertools": itertools, "collections": collections,
    }  # fmt: skip
    first, second = VALUES[base]
    make = f"(Sub({first}), Sub({second}), {base.__name__}({first}))"
    begin = f"s = o = p = None\ns, o, p = {'made' if outside else make}\nLOG.clear()\n"
    made = (lambda: eval(make, space)) if outside else None
    return batches.run([begin + piece for piece in pieces()], space, ("list(LOG)", "s"), made)


def main() -> None:
    """Prints what differs: there are differences still, which is why this is no test yet."""
    for base, outside in itertools.product(VALUES, (False, True)):
        total = batches.Tally()
        for name in RESULTS:
            total.add(compare(base, name, outside))
        print(base.__name__, "outside" if outside else "inside", total, flush=True)


if __name__ == "__main__":
    main()
