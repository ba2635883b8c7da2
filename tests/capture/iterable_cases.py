"""Programs that give an iterable to what takes one: each operation of RECEIVERS and FUNCTIONS x
each kind of ITERABLES.

A program logs what the iterable sees while it is read, and gives the result or the exception,
the receiver afterwards, and what a shared iterator has left.
"""

from __future__ import annotations

import collections
import functools
import heapq
import itertools
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

NAMES: dict[str, Any] = {
    module.__name__: module for module in (collections, functools, heapq, itertools, math, operator)
}

_HEADER = '''
class Iterates:
    """Has its own __iter__."""
    def __init__(self, items, log):
        self.items, self.log = items, log
    def __iter__(self):
        self.log.append("iter")
        return iter(self.items)

class Sized(Iterates):
    def __len__(self):
        self.log.append("len")
        return len(self.items)

class Misleads(Iterates):
    def __len__(self):
        self.log.append("len")
        raise TypeError("no length")
    def __length_hint__(self):
        self.log.append("hint")
        return NotImplemented

class Refuses(Iterates):
    def __len__(self):
        raise ValueError("no length")

class Hints(Iterates):
    def __length_hint__(self):
        self.log.append("hint")
        return 3

class HintsBadly(Iterates):
    def __length_hint__(self):
        return "three"

class HintsBelow(Iterates):
    def __length_hint__(self):
        return -1

class Indexed:
    """Has only __getitem__."""
    def __init__(self, items, log):
        self.items, self.log = items, log
    def __getitem__(self, i):
        self.log.append(i)
        return self.items[i]

class Sequence(Indexed):
    """Has __getitem__ and a length, which may be refused from some question on."""
    refusal, answers = None, 0
    def __len__(self):
        self.log.append("len")
        self.answers -= 1
        if self.refusal and self.answers < 0:
            raise self.refusal("no length")
        return len(self.items)

def refusing(refusal, answers, items, log):
    made = Sequence(items, log)
    made.refusal, made.answers = refusal, answers
    return made

def ended(iterator):
    for _ in iterator:
        pass
    return iterator

def begun(iterator, steps=1):
    for _ in range(steps):
        next(iterator, None)
    return iterator

LOG = []

class Items(list):
    pass

class Row(tuple):
    pass

Named = collections.namedtuple("Named", "a b c d")

class ListSized(list):
    def __len__(self):
        LOG.append("len")
        return list.__len__(self)

class TupleSized(tuple):
    def __len__(self):
        LOG.append("len")
        return tuple.__len__(self)

class StrSized(str):
    def __len__(self):
        LOG.append("len")
        return 1

class DictSized(dict):
    def __len__(self):
        LOG.append("len")
        return dict.__len__(self)

class SetSized(set):
    def __len__(self):
        LOG.append("len")
        return set.__len__(self)

class DequeSized(collections.deque):
    def __len__(self):
        LOG.append("len")
        return collections.deque.__len__(self)

class Walks:
    """An iterator of its own, which may raise and go on."""
    def __init__(self, items, log):
        self.items, self.log, self.i = items, log, 0
    def __iter__(self):
        return self
    def __next__(self):
        self.i += 1
        if self.i == 3:
            raise ZeroDivisionError("third")
        if self.i - 1 >= len(self.items):
            raise StopIteration
        return self.items[self.i - 1]

class Mapping:
    def __init__(self, items, log):
        self.items, self.log = items, log
    def keys(self):
        self.log.append("keys")
        return self.each()
    def each(self):
        for item in self.items:
            self.log.append(("key", item))
            yield item
    def __iter__(self):
        self.log.append("iter")
        return self.each()
    def __getitem__(self, key):
        self.log.append(("get", key))
        if key == self.items[-1]:
            raise KeyError(key)
        return str(key)

class Same:
    """Equal by value, with a log of its comparisons."""
    def __init__(self, n, log):
        self.n, self.log = n, log
    def __eq__(self, other):
        self.log.append(("eq", self.n))
        return self.n == (other.n if isinstance(other, Same) else other)
    def __hash__(self):
        return hash(self.n)
    def __repr__(self):
        return f"Same({self.n})"

def shown(c):
    if isinstance(c, (set, frozenset)):
        return sorted(map(str, c))
    if isinstance(c, dict):
        return [(k, v) for k, v in dict.items(c)]
    if isinstance(c, (list, tuple, collections.deque)):
        return [i for i in c]
    return c

def shown_result(r):
    if isinstance(r, (set, frozenset, dict, list, tuple, collections.deque)):
        return type(r).__name__, shown(r)
    if hasattr(r, "__next__"):
        return "iterator", list(itertools.islice(r, 20))
    return r
'''

CLASSES: dict[str, Any] = {"__name__": "iterable_cases_program", **NAMES}
exec(_HEADER, CLASSES)

ITEMS = {
    "value": "[3, 1, 4, 1, 5]",
    "text": "['b', 'a', 'c', 'a']",
    "pair": "[('b', 1), ('a', 2), ('c', 3), ('a', 4)]",
    "hashes": "[3, 1, [], 1, 5]",
    "pairs_end": "[('b', 1), ('a', 2), ('c',), ('a', 4)]",
    "pairs_bad": "[['b', 1], 'xy', 7, ('a', 4)]",
    "pairs_hash": "[('b', 1), ([], 2), ('c', 3)]",
    "none": "[]",
}

ITERABLES = {
    "list": "items",
    "tuple": "tuple(items)",
    "generator that looks": "looks()",
    "generator that raises": "raises()",
    "generator that changes": "changes()",
    "iterator": "iter(items)",
    "map": "map(seen, items)",
    "map over shared": "map(seen, (shared := iter(items)))",
    "zip over shared": (
        "map(operator.itemgetter(0), zip((shared := iter(items)), itertools.count()))"
    ),
    "filter over shared": "filter(seen_true, (shared := looks()))",
    "enumerate over shared": "map(operator.itemgetter(1), enumerate((shared := looks())))",
    "islice of shared": "itertools.islice((shared := looks()), 2)",
    "chain over shared": "itertools.chain((shared := looks()), items[:1])",
    "accumulate": "itertools.accumulate((shared := looks()), lambda a, b: b)",
    "takewhile": "itertools.takewhile(lambda i: i != items[2], (shared := looks()))",
    "starmap": "itertools.starmap(lambda i: i, zip((shared := looks())))",
    "receiver": "c",
    "iterator over the receiver": "itertools.islice(iter(c), 9)",
    "map over the receiver": "itertools.islice(map(seen, c), 9)",
    "generator over the receiver": "itertools.islice((i for i in c), 9)",
    "reversed receiver": "itertools.islice(reversed(c), 9)",
    "values view": "dict(enumerate(items)).values()",
    "keys view": "dict.fromkeys(items).keys()",
    "items view": "dict.fromkeys(items).items()",
    "dict": "dict.fromkeys(items)",
    "set": "set(items)",
    "deque": "collections.deque(items)",
    "string": "'ba'",
    "Iterates": "Iterates(items, log)",
    "Sized": "Sized(items, log)",
    "Misleads": "Misleads(items, log)",
    "Refuses": "Refuses(items, log)",
    "Hints": "Hints(items, log)",
    "HintsBadly": "HintsBadly(items, log)",
    "HintsBelow": "HintsBelow(items, log)",
    "Indexed": "Indexed(items, log)",
    "Sequence": "Sequence(items, log)",
    "iterator of Sequence": "iter(Sequence(items, log))",
    "begun iterator of Sequence": "begun(iter(Sequence(items, log)))",
    "ended iterator of Sequence": "ended(iter(Sequence(items, log)))",
    "iterator of Indexed": "iter(Indexed(items, log))",
    "iterator that refuses": "iter(refusing(ValueError, 0, items, log))",
    "iterator without a length": "iter(refusing(TypeError, 0, items, log))",
    "reversed Sequence": "reversed(Sequence(items, log))",
    "begun reversed Sequence": "begun(reversed(Sequence(items, log)))",
    "finished reversed Sequence": "begun(reversed(Sequence(items, log)), len(items))",
    "ended reversed Sequence": "ended(reversed(Sequence(items, log)))",
    "reversed that refuses": "reversed(refusing(ValueError, 1, items, log))",
    "reversed without a length": "reversed(refusing(TypeError, 1, items, log))",
    "map over reversed Sequence": "map(seen, reversed(Sequence(items, log)))",
    "ListSized": "ListSized(items)",
    "iterator of ListSized": "iter(ListSized(items))",
    "reversed ListSized": "reversed(ListSized(items))",
    "TupleSized": "TupleSized(items)",
    "iterator of TupleSized": "iter(TupleSized(items))",
    "reversed TupleSized": "reversed(TupleSized(items))",
    "StrSized": "StrSized('ba')",
    "iterator of StrSized": "iter(StrSized('ba'))",
    "reversed StrSized": "reversed(StrSized('ba'))",
    "DictSized": "DictSized.fromkeys(items)",
    "reversed DictSized": "reversed(DictSized.fromkeys(items))",
    "values of DictSized": "DictSized.fromkeys(items).values()",
    "SetSized": "SetSized(items)",
    "DequeSized": "DequeSized(items)",
    "reversed DequeSized": "reversed(DequeSized(items))",
    "Walks": "Walks(items, log)",
    "zip over Walks": "map(operator.itemgetter(0), zip(Walks(items, log)))",
    "islice over Walks": "itertools.islice(Walks(items, log), 9)",
    "chain over Walks": "itertools.chain(Walks(items, log), items)",
    "chain over what is none": "itertools.chain(items[:2], 7, items)",
    "number": "7",
    "Mapping": "Mapping(items, log)",
}

LISTS = {
    "extend": "c.extend(it)",
    "iadd": "c += it",
    "add": "c + it",
    "slice": "c[1:2] = it",
    "slice to the end": "c[len(c):] = it",
    "slice at the front": "c[:0] = it",
    "slice from the end": "c[-1:] = it",
    "slice step": "c[::2] = it",
    "star": "[*c, *it]",
    "list": "list(it)",
    "tuple": "tuple(it)",
    "init": "c.__init__(it)",
    "eq": "c == it",
    "join": "'-'.join(it)",
    "unpack": "a, b, *d = it",
    "unpack exactly": "a, b = it",
    "call": "(lambda *a: a)(*it)",
    "call with more": "(lambda *a: a)(0, *it)",
    "sorted": "sorted(it)",
    "sorted key": "sorted(it, key=seen)",
    "any": "any(i == 4 for i in it)",
    "any of": "any(it)",
    "all of": "all(it)",
    "sum": "sum(it)",
    "min": "min(it)",
    "max key": "max(it, key=seen)",
    "in": "4 in it",
    "in, same": "Same(1, log) in it",
    "not in": "9 not in it",
    "map list": "list(map(seen, it))",
    "zip list": "list(zip(it, c))",
    "zip list, second": "list(zip(c, it))",
    "zip strict": "list(zip(c, it, strict=True))",
    "filter list": "list(filter(seen_true, it))",
    "enumerate list": "list(enumerate(it))",
    "reduce": "functools.reduce(lambda a, b: b, it)",
    "prod": "math.prod(it)",
    "next": "next(iter(it))",
    "countOf": "operator.countOf(it, 1)",
    "indexOf": "operator.indexOf(it, 4)",
    "op contains": "operator.contains(it, 4)",
    "product": "list(itertools.product(it, (1, 2)))",
    "combinations": "list(itertools.combinations(it, 2))",
    "permutations": "list(itertools.permutations(it, 1))",
    "cycle": "list(itertools.islice(itertools.cycle(it), 7))",
    "pairwise": "list(itertools.pairwise(it))",
    "groupby": "[(k, list(g)) for k, g in itertools.groupby(it)]",
    "tee": "[list(t) for t in itertools.tee(it)]",
    "zip_longest": "list(itertools.zip_longest(it, c[:1]))",
    "compress": "list(itertools.compress(it, [1, 0, 1]))",
    "compress by": "list(itertools.compress([1, 0, 1], it))",
    "dropwhile": "list(itertools.dropwhile(seen_true, it))",
    "chain": "list(itertools.chain(c, it))",
    "chain from": "list(itertools.chain.from_iterable(it))",
    "accumulate": "list(itertools.accumulate(it))",
    "islice": "list(itertools.islice(it, 1, 3))",
    "heapify": "heapq.nsmallest(2, it)",
    "merge": "list(heapq.merge(it, c))",
    "bytes": "bytes(it)",
    "bytes join": "b'-'.join(it)",
    "bytearray": "bytearray(it)",
    "bytearray extend": "bytearray(b'a').extend(it)",
    "length_hint": "operator.length_hint(it)",
    "length_hint default": "operator.length_hint(it, 5)",
    "list subclass": "Items(it)",
    "tuple subclass": "Row(it)",
    "named tuple": "Named._make(it)",
    "call twice": "(lambda *a: a)(*it, *it)",
    "star twice": "[*it, *it]",
    "tuple of stars": "(*it, *c)",
    "zip of stars": "list(zip(*it))",
    "for": "[log.append(('for', i)) for i in it]",
    "deque": "collections.deque(it)",
    "deque maxlen": "collections.deque(it, 2)",
    "deque maxlen 0": "collections.deque(it, maxlen=0)",
    "append and extend": "(c.append(0), c.extend(it))",
    "remove all": "[c.remove(i) for i in it if i in c]",
}
DEQUES = {
    "extend": "c.extend(it)",
    "extendleft": "c.extendleft(it)",
    "iadd": "c += it",
    "add": "c + it",
    "init": "c.__init__(it)",
    "eq": "c == it",
}
SETS = {
    "update": "c.update(it)",
    "update two": "c.update(it, [8])",
    "ior": "c |= it",
    "union": "c.union(it)",
    "union of none": "set().union(it, [9])",
    "intersection_update": "c.intersection_update(it)",
    "iand": "c &= it",
    "intersection": "c.intersection(it)",
    "intersection two": "c.intersection([3, 1], it)",
    "difference_update": "c.difference_update(it)",
    "difference_update two": "c.difference_update([3], it)",
    "isub": "c -= it",
    "difference": "c.difference(it)",
    "difference of none": "set().difference(it)",
    "symmetric_difference_update": "c.symmetric_difference_update(it)",
    "ixor": "c ^= it",
    "symmetric_difference": "c.symmetric_difference(it)",
    "isdisjoint": "c.isdisjoint(it)",
    "none isdisjoint": "set().isdisjoint(it)",
    "issuperset": "c.issuperset(it)",
    "none issuperset": "set().issuperset(it)",
    "issubset": "c.issubset(it)",
    "none issubset": "set().issubset(it)",
    "set": "set(it)",
    "frozenset": "frozenset(it)",
    "frozenset union": "frozenset(c).union(it)",
    "init": "c.__init__(it)",
    "star": "{*c, *it}",
    "le": "c <= it",
    "eq": "c == it",
    "fromkeys": "dict.fromkeys(it, 0)",
    "Counter": "dict(collections.Counter(it))",
    "Counter.update": "(k := collections.Counter(c), k.update(it))",
    "Counter.subtract": "(k := collections.Counter(c), k.subtract(it))",
    "keys isdisjoint": "{3: 1, 9: 2}.keys().isdisjoint(it)",
    "keys and": "{3: 1, 9: 2}.keys() & it",
    "keys or": "{3: 1, 9: 2}.keys() | it",
    "keys sub": "{3: 1, 9: 2}.keys() - it",
    "keys xor": "{3: 1, 9: 2}.keys() ^ it",
    "and keys": "it & {3: 1, 9: 2}.keys()",
    "items or": "{3: 1, 9: 2}.items() | it",
    "keys le": "{3: 1, 9: 2}.keys() <= it",
    "set in": "(4 in c, 4 in it)",
}
DICTS = {
    "update": "c.update(it)",
    "update with names": "c.update(it, z=26)",
    "ior": "c |= it",
    "or": "c | it",
    "dict": "dict(it)",
    "dict with names": "dict(it, z=26)",
    "init": "c.__init__(it)",
    "OrderedDict": "collections.OrderedDict(it)",
    "OrderedDict.update": "collections.OrderedDict(c).update(it)",
    "OrderedDict ior": "(o := collections.OrderedDict(c), o.__ior__(it))",
    "defaultdict": "collections.defaultdict(list, it)",
    "defaultdict.update": "collections.defaultdict(list, c).update(it)",
    "star star": "{**c, **it}",
    "call": "(lambda **k: k)(**it)",
    "call with more": "(lambda **k: k)(a=0, **it)",
    "eq": "c == it",
    "ChainMap": "dict(collections.ChainMap({}, dict(it)))",
    "Counter": "dict(collections.Counter(it))",
}
RECEIVERS: dict[str, tuple[str, dict[str, str], tuple[str, ...]]] = {
    "list": ("[2, 7, 1, 8]", LISTS, ("value", "text", "none")),
    "deque": ("collections.deque([2, 7, 1, 8])", DEQUES, ("value", "none")),
    "short deque": ("collections.deque([2, 7], 3)", DEQUES, ("value",)),
    "set": ("{3, 9, 4}", SETS, ("value", "hashes", "none")),
    "dict": (
        "{'a': 0, 'd': 5}",
        DICTS,
        ("pair", "pairs_end", "pairs_bad", "pairs_hash", "text", "none"),
    ),
}

_PROGRAM = """
def program(c, items, log):
    {made}
    shared = None
    LOG.clear()
    def looks():
        for i in items:
            log.append(("sees", shown(c)))
            yield i
    def raises():
        for n, i in enumerate(items):
            if n == 2:
                raise ZeroDivisionError("midway")
            log.append(("sees", shown(c)))
            yield i
    def changes():
        for n, i in enumerate(items):
            if n == 1:
                {change}
            yield i
    def seen(i):
        log.append(("seen", i, shown(c)))
        return i
    def seen_true(i):
        return seen(i) is not None
    r = None
    it = {iterable}
    try:
        {statement}
        r = shown_result(r)
    except Exception as error:
        r = type(error).__name__, str(error)
    left = [shared if s is None else list(itertools.islice(s, 20)) for s in (shared,)]
    if hasattr(it, "__next__"):
        try:
            left.append(list(itertools.islice(it, 20)))
        except Exception as error:
            left.append((type(error).__name__, str(error)))
    return r, shown(c), log, left, [*LOG]
"""

_CHANGES = {
    "list": "c.append(0)", "deque": "c.append(0)", "short deque": "c.append(0)", "set": "c.add(6)",
    "dict": "c.__setitem__('e', 6)",
}  # fmt: skip


def program_of(receiver: str, operation: str, iterable: str, made: bool) -> Callable[..., Any]:
    """The program of a cell of the table: a function of the receiver, the items and a log. `made`:
    it makes the receiver, the items and the log itself."""
    start, operations, _ = RECEIVERS[receiver]
    text = operations[operation]
    assigns = " = it" in text or text[1:4].strip() in ("+=", "|=", "&=", "-=", "^=")
    lines = _PROGRAM.format(
        made=f"c, items, log = {start}, [*items], []" if made else "",
        iterable=ITERABLES[iterable],
        statement=text if assigns else f"r = {text}",
        change=_CHANGES[receiver],
    )
    namespace = dict(CLASSES)
    exec(compile(lines, f"<{receiver}, {operation}, {iterable}>", "exec"), namespace)
    return namespace["program"]  # type: ignore[no-any-return]


def cells() -> Iterator[tuple[str, str, str]]:
    """All of the table: receiver, operation, kind of iterable."""
    for receiver, (_, operations, _) in RECEIVERS.items():
        yield from (
            (receiver, operation, iterable) for operation in operations for iterable in ITERABLES
        )


def cases() -> Iterator[tuple[str, str, str, str]]:
    """All cells with each kind of items: receiver, operation, kind of iterable, kind of items."""
    for cell in cells():
        yield from ((*cell, kind) for kind in RECEIVERS[cell[0]][2])


def arguments_of(receiver: str, kind: str) -> list[Any]:
    """Fresh arguments of a program: the receiver, the items, the log."""
    return [eval(RECEIVERS[receiver][0], dict(NAMES)), eval(ITEMS[kind]), []]
