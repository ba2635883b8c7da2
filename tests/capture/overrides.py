"""Subclasses of built-in types that override a method, in operations that may or may not ask for
it: CPython's C code decides which override counts, and where the content is used instead.

`python -m tests.capture.overrides [base ...]` compares all of the table, test_overrides.py a part.
"""

from __future__ import annotations

import collections
import copy
import functools
import itertools
import math
import operator
import sys
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
    "__ne__": lambda: False,
    "__le__": lambda: True,
    "__gt__": lambda: True,
    "__ge__": lambda: False,
    "__hash__": lambda: 7,
    "__sub__": lambda: "taken from",
    "__rsub__": lambda: "taken",
    "__truediv__": lambda: "divided",
    "__rtruediv__": lambda: "divided by",
    "__and__": lambda: "met",
    "__ror__": lambda: "joined to",
    "__iadd__": lambda: "added in place",
    "__imul__": lambda: "multiplied in place",
    "__ior__": lambda: "joined in place",
    "__delitem__": lambda: None,
    "__reversed__": lambda: iter("cba"),
    "__int__": lambda: 4,
    "__neg__": lambda: "negative",
    "__abs__": lambda: "absolute",
    "__round__": lambda: "round",
    "__floor__": lambda: "floor",
    "__trunc__": lambda: "trunc",
    "__length_hint__": lambda: 2,
    "__str__": lambda: "text",
    "__repr__": lambda: "shown",
    "__format__": lambda: "formatted",
    "__call__": lambda: "called",
    "__getattr__": lambda: "found",
    "items": lambda: [("z", 1)],
    "values": lambda: [26],
    "get": lambda: "got",
    "append": lambda: None,
    "extend": lambda: None,
    "update": lambda: None,
    "add": lambda: None,
    "index": lambda: 0,
    "copy": lambda: "copied",
}
OPERATIONS = """
len(s) | bool(s) | not s | 1 if s else 2 | list(iter(s)) | [*s] | (*s,) | {*s} | called(*s)
called(**s) | {**s} | dict(s) | list(s) | tuple(s) | set(s) | frozenset(s) | sorted(s) | sum(s)
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
{1, 5}.intersection(s) | {1, 5}.issubset(s) | {1}.issuperset(s) | {5}.isdisjoint(s) | s >= o | s > p
p >= s | s / 2 | 2 / s | operator.or_(p, s) | s & o | p & s | s ^ o | s - o | o - p | s // 2 | s % 2
s ** 2 | divmod(s, 2) | ~s | +s | complex(s) | str(s) | repr(s) | f'{s}' | f'{s!r:>9}' | '%s' % (s,)
'%d' % s | format(s, '') | hash(s) | {s: 1}[p] | {p: 1}[s] | {s} == {p} | len({s, p}) | s is s
s[-1] | s.copy() | s.__len__() | reversed(s).__class__ | bin(s) | chr(s) | bytes(s)
slice(s).indices(9) | 'abc'[s] | 'abc' * s | (1, 2) * s | ' '.join(s) | 'ab'.startswith(s)
'abab'.count(s) | 'ab'.replace(s, 'z') | ','.join([s]) | s + s | s in s | dict.fromkeys(s)
dict(zip(s, s)) | dict(a=s) | dict(s, c=3) | collections.Counter(s) | collections.deque(s)
collections.OrderedDict(s) | list(filter(None, s)) | max(s, p) | min([s, o]) | sorted([s, o])
sum([s, o]) | sum([[1], s], []) | any([s]) | bool([s]) | x + float(s) | x * len(s)
torch.full((2,), s) | x.new_tensor(s) | torch.tensor(s) | torch.tensor([s, s]) | bytearray(s)
x.view(s) | x[s] | torch.zeros(s) | x.sum(s) | x.expand(3, s) | torch.cat([x, x[s:]])
operator.length_hint(s) | operator.itemgetter(0)(s) | operator.contains(s, 1)
operator.concat(s, p) | s() | s.z | functools.reduce(operator.add, s) | list(itertools.islice(s, 1))
list(itertools.repeat(1, s)) | copy.copy(s) | isinstance(s, (list, dict))
issubclass(type(s), tuple) | getattr(s, 'real', 0) | s.__class__ | vars(s) | dir(s)[:1]
"""
STATEMENTS = [
    "found = s | o",
    "found = s[:], s.__getitem__(slice(None))",
    "found = p | s",
    "found = s | p",
    "found = other = {1, 9}\nfound -= s\nfound = found, found is other",
    "found = other = {'z': 9}\nfound |= s\nfound = found, found is other",
    "found = {s: 1}",
    "found = {p: 1}\nfound[s] = 2",
    "found = {**{s: 1}, p: 2}",
    "found = dict.fromkeys([s, p], 3)",
    "found = {(s, 1): 2}, (p, 1) in {(s, 1): 2}",
    "found = [{s}, {p, s}, {s} | {p}, {p} | {s}, {s} & {p}]",
    "found = list({s: 1}), [*{s}][0] is s",
    "found = '%s %r' % (s, [s])",
    "found = '%.1f %x' % (s, s)",
    "found = 'a' % s",
    "found = '%(a)s' % s",
    "found = list(itertools.islice(itertools.count(s), 2))",
    "found = list(itertools.combinations('abcd', s))",
    "found = list(itertools.product('ab', repeat=s))",
    "found = 'ab'.endswith(s), 'abc'.find(s)",
    "found = list(itertools.islice('abcd', s))",
    "found = list(itertools.permutations('abcd', s))",
    "found = list(enumerate('ab', s))",
    "found = torch.add(x, s)",
    "found = x.clone()\nfound[s] = 2",
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
    "del s[0]\nfound = s",
    "s[0:1] = [7]\nfound = s",
    "found = s\nfound -= o\nfound = found, found is s",
    "found = s\nfound |= o\nfound = found, found is s",
    "found = s\nfound &= o\nfound = found, found is s",
    "found = p\nfound += s\nfound = found, found is p",
    "found = {'c': 1}\nfound |= s",
    "found = {1, 9}\nfound -= s",
    "found = {1, 9}\nfound ^= s",
    "found = {}\nfound[s] = 1\nfound = found, p in found",
    "found = [s, o]\nfound.sort()",
    "found = [p, o]\nfound.remove(s)",
    "match s:\n    case [a, *b]:\n        found = a, b\n    case _:\n        found = None",
    "match s:\n    case {'a': a}:\n        found = a\n    case 3:\n        found = 3\n    case _:\n"
    "        found = 4",
    "found = []\nfor k, v in s.items():\n    found.append((k, v))",
    "s.append(4)\nfound = s",
    "s.extend([4])\nfound = s",
    "s.add(4)\nfound = s",
    "s.update({'q': 4})\nfound = s",
    "found = s.pop(), s",
    "found = s.setdefault('q', 2), s",
    "s.q = 3\nfound = s.q, s.__dict__",
    "found = [1, 2, 3, 4]\ndel found[s]",
]


def called(*args: Any, **kwargs: Any) -> Any:
    return args, kwargs


def subclass(base: type, name: str) -> type:
    """A subclass of `base` that overrides one method, and tells when it is called."""

    def override(self: Any, *args: Any) -> Any:
        LOG.append(name)
        if name == "__getitem__" and args[0] == 3:
            raise IndexError("the end")
        if name == "__getattr__" and args[0][:2] == "__":
            raise AttributeError(args[0])
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


def tally_of(base: type, name: str, outside: bool, first: int = 0, part: int = 1) -> batches.Tally:
    """The operations on instances of one subclass, made inside the compiled function or outside:
    all, or one of `part` from the `first` on."""
    space: dict[str, Any] = {
        "LOG": LOG, "Sub": subclass(base, name), "called": called, "torch": torch, "math": math,
        "operator": operator, "itertools": itertools, "collections": collections,
        "functools": functools, "copy": copy,
    }  # fmt: skip
    value, other = VALUES[base]
    make = f"(Sub({value}), Sub({other}), {base.__name__}({value}))"
    begin = f"s = o = p = None\ns, o, p = {'made' if outside else make}\nLOG.clear()\n"
    made = (lambda: eval(make, space)) if outside else None
    chosen = itertools.islice(pieces(), first, None, part)
    return batches.run([begin + piece for piece in chosen], space, ("list(LOG)", "s"), made)


def main(names: list[str]) -> int:
    """Prints what differs of some of the base classes, or of all."""
    bases = [base for base in VALUES if not names or base.__name__ in names]
    found = 0
    for base, outside in itertools.product(bases, (False, True)):
        total = batches.Tally()
        for name in RESULTS:
            total.add(tally_of(base, name, outside))
        print(base.__name__, "outside" if outside else "inside", total, flush=True)
        found += len(total.differences)
    return found


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(bool(main(sys.argv[1:])))
