"""PYTEST_DONT_REWRITE. Built-in functions and iterators, itertools, operator."""

# ruff: noqa  (the programs are written as users may write them)
from __future__ import annotations

import itertools
import operator

import torch

from tests.capture.language import Table, errors_of

TABLE = Table()
whole, broken = TABLE.whole, TABLE.broken


# -- iterating builtins ----------------------------------------------------------------------------


@whole
def a_list_is_empty_while_it_is_sorted(x, y):
    log, items, failing = [], [3, 1, 2], [5, 4]
    items.sort(key=lambda i: (log.append(list(items)), i)[1])
    outcomes = []
    for key in (lambda i: (failing.append(9), i)[1], lambda i: 1 // 0, lambda i: -i):
        try:
            failing.sort(key=key)
        except (ValueError, ZeroDivisionError) as error:
            outcomes.append(repr(error))
        outcomes.append(list(failing))
    return log, items, outcomes, x + 1


@whole
def zips(x, y):
    return (
        x + 1, list(zip()), list(zip([1, 2])), list(zip("abc", (1, 2), itertools.count())),
        [a * b for a, b in zip(x, y)], dict(zip("ab", (x, y))), list(zip(*[(1, "a"), (2, "b")])),
        list(zip([1], [2], strict=True)),
    )  # fmt: skip


@whole
def zip_strict_errors(x, y):
    return x + 1, errors_of(
        (
            lambda: list(zip([1], [], strict=True)),
            lambda: list(zip([], [1], strict=True)),
            lambda: list(zip([1], [1], [], strict=True)),
            lambda: list(zip([1], [], [1], strict=True)),
            lambda: list(zip([1], 3)),
        )
    )


@whole
def zip_stops_at_the_first_empty_one(x, y):
    a, b = iter([1, 2, 3]), iter([10])
    pairs = list(zip(a, b))
    return x + 1, pairs, next(a), next(b, "none")


@whole
def enumerates(x, y):
    e = enumerate("abc", start=5)
    first = next(e)
    return (
        x + 1,
        first,
        list(e),
        [(i, t.sum()) for i, t in enumerate((x, y), 1)],
        list(enumerate([])),
        type(e),
    )


@whole
def maps_and_filters(x, y):
    m = map(lambda a, b: a + b, [x, y], [1, 2, 3])
    f = filter(None, [0, 1, "", "a", [], [0]])
    g = filter(lambda v: v > 1, (1, 2, 3))
    return (
        next(m),
        list(m),
        list(f),
        list(g),
        list(map(str, range(3))),
        list(map(torch.relu, (x, y))),
        tuple(map(max, [1, 5], [2, 3])),
        type(m),
        type(f),
    )


@whole
def map_is_lazy(x, y):
    log = []
    m = map(log.append, range(5))
    before = list(log)
    next(m), next(m)
    return x + 1, before, log


@whole
def reverses(x, y):
    return (
        x + 1,
        list(reversed([1, 2, 3])),
        list(reversed((x, y))),
        list(reversed("ab")),
        list(reversed(range(4))),
        list(reversed({"a": 1, "b": 2})),
        next(reversed([5, 6])),
        list(reversed({"a": 1}.items())),
    )


@whole
def sorts(x, y):
    data = [("b", 2), ("a", 3), ("b", 1)]
    items = [3, 1, 2]
    items.sort()
    other = [3, 1, 2]
    other.sort(key=lambda v: -v)
    third = ["b", "A", "c"]
    third.sort(key=str.lower, reverse=True)
    return (
        x + 1, sorted(data), sorted(data, key=lambda p: p[0]),
        sorted(data, key=lambda p: p[0], reverse=True), items, other, third, sorted("hello"),
        sorted({"b": 1, "a": 2}), sorted([x.sum(), y.sum()], key=lambda t: t.dim()),
        sorted([2.5, 1, True]), sorted([[2], [1, 5], [1]]), sorted({3, 1}),
        sorted(data, key=operator.itemgetter(1)), sorted([(1, x), (0, y)], key=lambda p: p[0]),
        sorted(range(100), key=lambda v: (v * 37) % 101),
    )  # fmt: skip


@whole
def minima_and_maxima(x, y):
    return (
        x + 1, min(3, 1, 2), max([3, 1, 2]), min("b", "a", key=ord), max([], default=5),
        min((), default=x), max({"a": 2, "b": 1}), max([1, 2], [1, 3]),
        min([("a", 2), ("b", 1)], key=lambda p: p[1]), max(1, 1.0), max(1.0, 1), min(True, 1),
        max(i for i in range(4)),
        errors_of((
            lambda: max([]), lambda: min(()), lambda: max(), lambda: max(1, 2, default=3),
            lambda: min(3), lambda: max(1, "a"),
        )),
    )  # fmt: skip


@whole
def sums(x, y):
    return (
        x + 1,
        sum([1, 2]),
        sum([[1], [2]], []),
        sum((x, y)),
        sum([1.5, 2], start=1),
        sum(i for i in range(4)),
        sum([]),
        sum([True, True]),
        sum([x, 1]),
        sum([0.1] * 10),
        errors_of((lambda: sum(["a"]), lambda: sum(["a"], ""), lambda: sum(3))),
    )


@whole
def anys_and_alls(x, y):
    log = []

    def tell(v):
        log.append(v)
        return v

    return (
        x + 1,
        any(tell(v) for v in (0, 1, 2)),
        all(tell(v) for v in (1, 0, 2)),
        any([]),
        all([]),
        any([0, None]),
        all("ab"),
        log,
    )


@whole
def iters_and_nexts(x, y):
    items = iter([1, 2, 3])
    count = [0]

    def step():
        count[0] += 1
        return count[0]

    return (
        x + 1, next(items), next(items), list(items), next(items, "default"), list(iter(step, 4)),
        iter(items) is items, next(iter("a")), list(iter({"a": 1})), next(iter({1})),
        errors_of((lambda: next(iter([])), lambda: iter(3), lambda: next([]), lambda: iter(3, 4))),
        [type(iter(v)).__name__ for v in (
            [], (), "", b"", {}, set(), range(0), {}.values(), {}.items(), reversed([]),
        )],
    )  # fmt: skip


@whole
def iterators_are_shared(x, y):
    it = iter(range(6))
    pairs = list(zip(it, it))
    letters = iter("abcd")
    a = next(letters)
    for b in letters:
        break
    rest = "".join(letters)
    chunks = list(zip(*[iter([1, 2, 3, 4, 5, 6])] * 3))
    return x + 1, pairs, a, b, rest, chunks, 3 in iter([1, 3, 5])


@whole
def dict_changes_while_iterated(x, y):
    seen = []
    table = {"a": 1, "b": 2}
    try:
        for key in table:
            seen.append(key)
            table[key + "!"] = 1
    except RuntimeError as error:
        seen.append(str(error))
    for key in table:
        table[key] = 0
    members = {1, 2}
    try:
        for m in members:
            members.add(m + 10)
    except RuntimeError as error:
        seen.append(str(error))
    return x + 1, seen, table


@whole
def ranges(x, y):
    r = range(10, 0, -3)
    return (
        x + 1,
        list(r),
        len(r),
        r[1],
        r[-1],
        r[1:],
        4 in r,
        5 in r,
        r.index(7),
        r.count(7),
        r.start,
        r.stop,
        r.step,
        range(3) == range(0, 3, 1),
        hash(range(3)) == hash(range(0, 3)),
        range(0) == range(5, 5),
        bool(range(0)),
        str(r),
        range(2**70)[-1],
        [*range(True)],
        r[::-1],
    )


@whole
def slices_as_values(x, y):
    s = slice(1, 10, 2)
    return (
        x + 1,
        s.indices(5),
        s.start,
        s.stop,
        s.step,
        s == slice(1, 10, 2),
        repr(s),
        slice(3),
        x[s],
        [0, 1, 2, 3][s],
        "abcdef"[s],
        errors_of((lambda: hash(s),)) if False else None,
    )


# -- itertools -------------------------------------------------------------------------------------


@whole
def itertools_infinite(x, y):
    c, r = itertools.count(5, 2), itertools.cycle("ab")
    return (
        x + 1,
        next(c),
        next(c),
        [next(r) for _ in range(5)],
        list(itertools.repeat(x, 2)),
        list(itertools.islice(itertools.count(0.5, 0.5), 3)),
        list(zip(itertools.repeat(1), "ab")),
        list(itertools.islice(itertools.repeat(0), 2)),
    )


@whole
def itertools_terminating(x, y):
    it = itertools
    return (
        x + 1, list(it.accumulate([1, 2, 3])),
        list(it.accumulate([1, 2, 3], operator.mul, initial=10)), list(it.accumulate([x, y])),
        list(it.chain("ab", [1], (x,))), list(it.chain.from_iterable(["ab", "c"])),
        list(it.compress("abcd", [1, 0, 1, 0])), list(it.dropwhile(lambda v: v < 3, [1, 4, 2])),
        list(it.takewhile(lambda v: v < 3, [1, 4, 2])),
        list(it.filterfalse(lambda v: v % 2, range(5))), list(it.filterfalse(None, [0, 1])),
        [(k, list(g)) for k, g in it.groupby("aabca")],
        [(k, list(g)) for k, g in it.groupby([1, 2, 4, 5], key=lambda v: v % 2)],
        list(it.islice("abcdef", 2)), list(it.islice("abcdef", 1, None, 2)),
        list(it.islice("abc", None)), list(it.pairwise("abc")),
        list(it.starmap(pow, [(2, 3), (3, 2)])), list(it.zip_longest("ab", [1], fillvalue="-")),
        list(it.pairwise([1])), list(it.accumulate([])),
    )  # fmt: skip


@whole
def itertools_combinatoric(x, y):
    it = itertools
    return (
        x + 1, list(it.product("ab", [1, 2])), list(it.product([0, 1], repeat=2)),
        list(it.permutations("abc", 2)), list(it.permutations([1, 2])),
        list(it.combinations("abcd", 2)), list(it.combinations_with_replacement("ab", 2)),
        list(it.product()), list(it.combinations("a", 2)), list(it.combinations("abc", 0)),
        [a + b for a, b in it.combinations((x, y, x * 2), 2)], list(it.product(x.unbind(), [1]))[0],
        len(list(it.combinations(range(10), 3))), list(it.permutations("a", 3)),
    )  # fmt: skip


@whole
def itertools_tee(x, y):
    a, b = itertools.tee(i * 2 for i in range(3))
    first = next(a), next(a)
    c, d, e = itertools.tee([1], 3)
    return x + 1, first, list(b), list(a), list(c), list(d), list(itertools.tee([], 0))


@whole
def itertools_groups_are_lazy(x, y):
    groups = itertools.groupby([1, 1, 2, 2, 3])
    k, g = next(groups)
    one = next(g)
    k2, g2 = next(groups)
    return x + 1, k, one, list(g), k2, list(g2), [k for k, _ in groups]


@whole
def itertools_errors(x, y):
    it = itertools
    return x + 1, errors_of(
        (
            lambda: list(it.islice("abc", -1)), lambda: list(it.islice("abc", 0, 2, 0)),
            lambda: it.islice("abc", "a"), lambda: it.chain(3) and next(it.chain(3)),
            lambda: list(it.combinations("abc", -1)), lambda: list(it.permutations("abc", -1)),
            lambda: it.count("a"), lambda: it.repeat(1, "a"), lambda: it.tee(3),
            lambda: it.tee([1], -1),
            lambda: list(it.starmap(pow, [3])), lambda: it.product(3),
        )
    )  # fmt: skip


@whole
def itertools_consume_lazily(x, y):
    source = iter(range(10))
    a = list(itertools.islice(source, 3))
    b = list(itertools.takewhile(lambda v: v < 5, source))
    c = next(source)
    chained = itertools.chain(source, "z")
    d = next(chained)
    return x + 1, a, b, c, d, list(chained)


# -- operator --------------------------------------------------------------------------------------


class Thing:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)

    def scaled(self, k, plus=0):
        return self.value * k + plus


@whole
def operator_getters(x, y):
    t = Thing(value=x, inner=Thing(value=2))
    first, two = operator.itemgetter(0), operator.itemgetter(1, -1)
    return (
        first([5, 6]), two("abc"), operator.itemgetter("k")({"k": x}),
        operator.attrgetter("value")(t) is x, operator.attrgetter("inner.value", "value")(t)[0],
        operator.methodcaller("scaled", 3, plus=1)(t), operator.methodcaller("upper")("a"),
        operator.itemgetter(slice(1, 3))("abcd"),
        sorted([(1, "b"), (2, "a")], key=operator.itemgetter(1)),
        list(map(operator.attrgetter("shape"), [x])), type(first).__name__, callable(two),
    )  # fmt: skip


@whole
def operator_functions(x, y):
    o = operator
    items = [1, 2]
    o.setitem(items, 0, 5)
    o.iadd(items, [3])
    o.delitem(items, 1)
    return (
        o.add(x, 1), o.mul(2, 3), o.truediv(1, 2), o.floordiv(7, 2), o.mod(7, 4), o.neg(x),
        o.not_([]), o.truth([1]), o.is_(x, x), o.is_not(x, y), o.contains([1], 1),
        o.getitem({"a": 1}, "a"), items, o.concat([1], [2]), o.countOf([1, 1], 1),
        o.indexOf("abc", "c"), o.index(3), o.inv(5), o.invert(5), o.lshift(1, 3), o.pow(2, 5),
        o.matmul(x, y.t()), o.xor(5, 3), o.and_(6, 3), o.or_(6, 3), o.eq(1, 1.0), o.ne(1, 2),
        o.lt(1, 2), o.ge(2, 2), o.pos(-1), o.abs(-3), o.length_hint([1, 2]), o.call(len, "ab"),
        o.__add__(1, 2), o.itruediv(3, 2), o.sub(5, 3),
    )  # fmt: skip


test_program = TABLE.test()


def test_coverage():
    captured, total = TABLE.coverage
    assert total - captured <= 0
