"""PYTEST_DONT_REWRITE. Built-in types and functions, iterators, itertools, operator, math, text and
numbers."""

# ruff: noqa  (the programs are written as users may write them)
from __future__ import annotations

import cmath
import itertools
import math
import operator
import string
import sys

import torch

from tests.capture.language import Table

TABLE = Table()
whole, broken = TABLE.whole, TABLE.broken


def errors_of(acts, kinds=Exception):
    """What each act gives or raises."""
    found = []
    for act in acts:
        try:
            found.append(act())
        except kinds as error:
            found.append((type(error), str(error)))
    return found


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


# -- numbers ---------------------------------------------------------------------------------------


@whole
def integer_arithmetic(x, y):
    n, m = 17, -5
    return (
        x * n, n // m, n % m, divmod(n, m), n**3, pow(n, -1, 7), pow(3, 5, 7), n << 70,
        (n << 70) >> 69, n & m, n | m, n ^ m, ~n, -m, abs(m), 2**200, 10**20 // 3, int("ff", 16),
        int(3.9), int(-3.9), int("  12 "), int("1_000"), int(True), n.bit_length(), (5).bit_count(),
        n.to_bytes(2, "big"), int.from_bytes(b"\x01\x02", "little"), (3).real, (3).imag,
        (3).numerator, n.conjugate(), (6).as_integer_ratio(), True + True, True & False, True ^ 1,
        -True, ~True, isinstance(True, int), int("-7"), 0x10, 1 if n else 0,
    )  # fmt: skip


@whole
def float_arithmetic(x, y):
    f, g = 7.5, -2.0
    return (
        x * f, f // g, f % g, divmod(f, g), f**g, f**0.5, (-8) ** (1 / 3), round(2.5), round(3.5),
        round(2.675, 2), round(-1234, -2), f.is_integer(), (0.1).as_integer_ratio(), f.hex(),
        float.fromhex("0x1p-2"), float("inf"), float("-inf"), float("nan") != float("nan"), -0.0,
        0.0 == -0.0, 1e400, int(1e20), float("1e-3"), 0.1 + 0.2, 1 / 3, 3.0 == 3,
        hash(3.0) == hash(3), float(True), abs(-1.5), max(0.0, -0.0), 1e16 + 1, 5 // 2.0, 5 % -3,
        -5 % 3, -5 // 3, float("1_0.5"), f.__trunc__(), f.__round__(),
    )  # fmt: skip


@whole
def complex_arithmetic(x, y):
    c = 3 + 4j
    return (
        x + 1,
        c * c,
        abs(c),
        c.real,
        c.imag,
        c.conjugate(),
        complex(1, 2),
        complex("1+2j"),
        c / 2,
        c**2,
        c == 3 + 4j,
        -c,
        1j * 1j,
        bool(0j),
        complex(2),
        cmath.sqrt(-1),
        cmath.phase(1j),
        c - 1,
    )


@whole
def number_comparisons(x, y):
    return (
        x + 1,
        1 == 1.0,
        1 == True,
        2 > 1.5,
        1 < 2**100,
        2**53 == float(2**53),
        1j == 1,
        "a" < "b",
        "a" < "B",
        (1, 2) < (1, 3),
        [1] < [1, 0],
        {1} < {1, 2},
        b"a" < b"b",
        None == 0,
        1 != "1",
        () == [],
        (1,) == (True,),
        float("nan") in [float("nan")],
        min(1, 2) is 1,
    )


@whole
def math_functions(x, y):
    m = math
    return (
        x * m.pi, m.sqrt(2), m.ceil(1.2), m.floor(-1.2), m.gcd(12, 18), m.lcm(4, 6),
        m.factorial(10), m.comb(5, 2), m.perm(5, 2), m.isqrt(17), m.log(8, 2), m.log2(8),
        m.log10(1000), m.log1p(1), m.exp(1), m.expm1(1e-5), m.pow(2, 3), m.hypot(3, 4),
        m.atan2(1, 2), m.degrees(m.pi), m.radians(180), m.copysign(1, -0.0), m.fabs(-2),
        m.fmod(7, 3), m.modf(2.5), m.frexp(8.0), m.ldexp(0.5, 3), m.isclose(0.1 + 0.2, 0.3),
        m.isnan(m.nan), m.isinf(m.inf), m.isfinite(1), m.prod([1, 2, 3]), m.prod([], start=5),
        m.fsum([0.1] * 10), m.dist((0, 0), (3, 4)), m.trunc(2.7), m.e, m.tau, m.sin(1), m.cos(1),
        m.tan(1), m.sinh(1), m.tanh(1), m.erf(1), m.gamma(5), m.remainder(7, 3),
        m.nextafter(1.0, 2.0), m.ulp(1.0), m.prod([x, 2]), m.cbrt(27), m.exp2(3),
    )  # fmt: skip


@whole
def math_errors(x, y):
    m = math
    return x + 1, errors_of(
        (
            lambda: m.sqrt(-1),
            lambda: m.log(0),
            lambda: m.factorial(-1),
            lambda: m.exp(1000),
            lambda: m.gcd(1.5),
            lambda: m.isqrt(-1),
            lambda: m.sqrt("a"),
            lambda: m.comb(1, -1),
            lambda: m.acos(2),
            lambda: m.nothing,
        )
    )


@whole
def conversions_of_numbers(x, y):
    return (
        x + 1,
        bin(10),
        oct(8),
        hex(255),
        chr(97),
        ord("a"),
        hash("a") == hash("a"),
        repr(1.0),
        str(1e20),
        ascii("é"),
        bool([]),
        bool("0"),
        int("0b11", 0),
        float("  2.5\n"),
        round(5),
        round(1.5),
        abs(-2),
        divmod(7, 3),
        pow(2, 3),
        hash((1, 2)) == hash((1, 2)),
        format(255, "x"),
        format(3.14159, ".2f"),
        id(x) == id(x),
    )


# -- text ------------------------------------------------------------------------------------------


@whole
def f_strings(x, y):
    n, f, s, w = 42, 3.14159, "text", 10
    d = {"k": 1}
    return (
        x + 1, f"{n}", f"{n:5d}|{n:<5}|{n:^5}|{n:05}|{n:+}|{n:,}|{n:x}|{n:#b}|{n:e}",
        f"{f:.2f} {f:10.3f} {f:g} {f:%} {f:.0f} {f!r}", f"{s!r:>10}{s:*^10}{s:.2}",
        f"{n:{w}}|{f:{w}.{2}f}",
        f"{d['k']} {d} {[1, 'a']} {(1,)} {{}} {None} {True} {x.shape} {x.dtype} {x.dim()}",
        f"{n=} {f=:.1f} {s = }", f"{'nested ' + f'{n}'}", f"{n!s:>4}",
        f"{1 + 1}{'a' if n else 'b'}", f"{len(s):>{w}}", f"{2**70}", f"{-0.0}",
    )  # fmt: skip


@whole
def percent_formatting(x, y):
    return (
        x + 1,
        "%d %s %r %5.2f %x %%" % (1, "a", "b", 2.5, 255),
        "%(a)s-%(b)03d" % {"a": 1, "b": 2},
        "%s" % (1,),
        "%s" % [1, 2],
        "%s %s" % (x.shape, {"k": (1,)}),
        "%c%c" % ("a", 98),
        "%-5s|%+d|%e" % ("a", 1, 2.0),
        "%*d" % (5, 1),
        b"%d" % 3,
        errors_of(
            (
                lambda: "%d" % "a",
                lambda: "%s %s" % 1,
                lambda: "%s" % (1, 2),
                lambda: "%(a)s" % {},
                lambda: "%z" % 1,
            )
        ),
    )


@whole
def format_method(x, y):
    t = Thing(value=3)
    return (
        x + 1,
        "{} {1}".replace("1", "").format(1, 2),
        "{0}{1}{0}".format("a", "b"),
        "{a[0]} {b.value} {c[k]}".format(a=[1], b=t, c={"k": 2}),
        "{:>5}|{:<5}|{:^5}".format(1, "a", 2.5),
        "{!r} {!s}".format("a", "b"),
        "{:{}}".format("a", 5),
        "{x.shape}".format(x=x),
        "{a}".format_map({"a": 1}),
        "{:,}".format(1234567),
        "{{}}".format(),
        errors_of(
            (
                lambda: "{}".format(),
                lambda: "{a}".format(),
                lambda: "{".format(),
                lambda: "{0} {}".format(1, 2),
                lambda: "{:d}".format("a"),
            )
        ),
    )


@whole
def string_methods(x, y):
    s = "Hello, World"
    return (
        x + len(s), s.lower(), s.upper(), s.title(), s.swapcase(), s.capitalize(), s.split(),
        s.split(","), s.rsplit("o", 1), s.partition(", "), s.rpartition("o"), s.replace("l", "L"),
        s.replace("l", "L", 1), s.find("o"), s.rfind("o"), s.find("z"), s.index("W"), s.count("l"),
        s.startswith("Hell"), s.startswith(("a", "H")), s.endswith("d"), s.strip("Hd"),
        "  a ".strip(), "  a ".lstrip(), "  a ".rstrip(), s.center(20, "*"), s.ljust(15),
        s.rjust(15, "-"), "7".zfill(3), s.isalpha(), "abc".isalnum(), "12".isdigit(), " ".isspace(),
        "A".isupper(), "a".islower(), "a1".isidentifier(), ",".join(["a", "b"]), "-".join("abc"),
        "".join(c for c in "ab"), "a\nb\r\nc".splitlines(), "a\tb".expandtabs(4), s.encode(),
        "é".encode("utf-8"), s[1], s[-3:], s[::-1], s * 2, s + "!", "W" in s, "z" not in s,
        list("ab"), s.removeprefix("Hello"), s.removesuffix("World"), s.casefold(),
        str.maketrans("a", "b"), "abc".translate({97: "z"}),
        "abc".translate(str.maketrans("ab", "xy")), s == "Hello, World", s < "I", max(s),
        sorted("ba"), min("b", "a"), "%s" % s, str.upper("a"), str.join("-", ["a"]),
        [c for c in "añ"], len("añ"), ord("ñ"), "a" "b", s.__len__(), s.__contains__("W"),
        hash(s) == hash("Hello, World"), isinstance(s, str), string.ascii_lowercase[:3],
        "a.b.c".rsplit(".", maxsplit=1), "A".isascii(), "x".isprintable(), "½".isnumeric(),
        "1".isdecimal(), "Ab".istitle(),
    )  # fmt: skip


@whole
def bytes_methods(x, y):
    b = b"hello"
    return (
        x + 1,
        b[0],
        b[1:3],
        b + b"!",
        b * 2,
        b.decode(),
        b.hex(),
        bytes([1, 2]),
        bytes(3),
        bytes("é", "utf-8"),
        b.upper(),
        b.split(b"l"),
        b.find(b"l"),
        104 in b,
        b"he" in b,
        list(b),
        len(b),
        b == b"hello",
        bytes.fromhex("0a0b"),
        b.startswith(b"he"),
        b.replace(b"l", b"L"),
        b"-".join([b"a", b"b"]),
        hash(b) == hash(b"hello"),
        repr(b),
        str(b),
        bool(b""),
        b.isalpha(),
    )


@broken("bytearray")
def bytearrays(x, y):
    b = bytearray(b"abc")
    b[0] = 122
    b.append(33)
    b += b"d"
    return x + 1, bytes(b), len(b), b[1], b.decode(), list(b)


@whole
def reprs(x, y):
    items = [
        1,
        "a",
        None,
        2.5,
        True,
        (1,),
        (),
        {"k": [1]},
        {1},
        frozenset(),
        b"b",
        1j,
        range(3),
        slice(1),
        ...,
        int,
        len,
        {}.keys(),
        x.shape,
        x.dtype,
        torch.device("cpu"),
        set(),
    ]
    return (
        x + 1,
        [repr(i) for i in items],
        str(items),
        repr({"a": items[:3]}),
        str(("a",)),
        f"{items[1:3]!r}",
        repr("a'b"),
        repr('a"b'),
        str(None),
        str(b"x"),
        str(b"abc", "utf-8"),
        str(),
    )


# -- containers' own methods -----------------------------------------------------------------------


@whole
def list_methods(x, y):
    a = [3, 1, 2]
    a.append(x)
    a.extend((5, 6))
    a.extend(i for i in "z")
    a.insert(0, "first")
    a.insert(-1, "last")
    a.insert(100, "end")
    popped = a.pop(), a.pop(0), a.pop(-2)
    a.remove(1)
    b = a.copy()
    a.reverse()
    a += [9]
    a *= 2
    c = [0] * 3
    c[:] = "xyz"
    c[len(c) :] = [1]
    d = list(c)
    d.clear()
    return (
        a,
        b,
        c,
        d,
        popped,
        c.index("y"),
        c.count(1),
        [1, 2] + [3],
        2 * [1],
        c == ["x", "y", "z", 1],
        c != c,
        [1] < [2],
        a is b,
        [[]] * 2,
        c.index("z", 1, 3),
        c.__len__(),
        c.__getitem__(0),
        list.append(c, 5),
        [*c, *d],
        list("ab") == ["a", "b"],
    )


@whole
def list_errors(x, y):
    a = [1, 2]
    return x + 1, errors_of(
        (
            lambda: a.remove(9),
            lambda: a.index(9),
            lambda: a.pop(9),
            lambda: [].pop(),
            lambda: a[9],
            lambda: a + (1,),
            lambda: a.extend(3),
            lambda: a.sort(3),
            lambda: a.nothing,
            lambda: a.append(),
            lambda: a.append(1, 2),
            lambda: a.insert("a", 1),
            lambda: a.__setitem__(9, 1),
            lambda: a.sort(key=3),
            lambda: [1, "a"].sort(),
            lambda: list(1),
            lambda: list(1, 2),
            lambda: a.pop("a"),
            lambda: a.index(1, 1),
        )
    )


@whole
def list_repeated_is_shared(x, y):
    rows = [[0]] * 2
    rows[0].append(x)
    a = b = []
    a.append(1)
    c = [a, b]
    c[0].append(2)
    me = [1]
    me.append(me)
    return rows, a, c, me, me[1] is me


@whole
def tuple_methods(x, y):
    t = (1, 2, 1, x)
    return (
        t[:3].count(1),
        t[:3].index(2),
        t + (5,),
        t * 2,
        t[1:],
        len(t),
        1 in t[:2],
        (1, 2) == (1, 2),
        (1,) < (2,),
        tuple("ab"),
        tuple([x]),
        (),
        t[:2] + (3,),
        hash((1, "a")) == hash((1, "a")),
        t.__len__(),
        {(1, 2): "k"}[(1, 2)],
        tuple(t) is t,
        t[:] is t,
    )


@whole
def dict_methods(x, y):
    d = {"a": 1, "b": x}
    d["c"] = 3
    d.update(e=5)
    d.update({"f": 6}, g=7)
    d.update([("h", 8), ["i", 9]])
    got = (
        d.get("a"),
        d.get("z"),
        d.get("z", 0),
        d.pop("c"),
        d.pop("zz", None),
        d.setdefault("new", []),
        d.setdefault("a", 5),
    )
    last = d.popitem()
    copied = d.copy()
    merged = d | {"a": 100}
    copied |= {"m": 1}
    d |= [("pair", 2)]
    made = (
        dict(d, k=1),
        dict([("a", 1)]),
        dict(a=1),
        dict.fromkeys("ab"),
        dict.fromkeys("ab", 0),
        dict(zip("ab", (1, 2))),
        {**d, "z": 1},
    )
    e = dict(d)
    e.clear()
    return (
        d,
        got,
        last,
        merged,
        copied,
        made,
        e,
        list(d),
        "a" in d,
        "zz" in d,
        len(d),
        {"a": 1} == {"a": 1},
        {"a": 1, "b": 2} == {"b": 2, "a": 1},
        list(d.items())[0],
        dict.get(d, "a"),
        d.__contains__("a"),
        d.__getitem__("a"),
        [*d],
        {k: v for k, v in d.items() if k < "c"},
    )


@whole
def dict_views(x, y):
    d = {"a": 1, "b": 2}
    keys, values, items = d.keys(), d.values(), d.items()
    d["c"] = 3
    return (
        x + len(keys),
        keys,
        list(values),
        list(items),
        "c" in keys,
        3 in values,
        ("a", 1) in items,
        ("a", 2) in items,
        keys & {"a", "z"},
        keys | {"z"},
        keys - {"a"},
        keys == {"a", "b", "c"},
        list(reversed(keys)),
        sorted(values),
        keys ^ {"a"},
        keys.isdisjoint({"q"}),
        {"a"} <= keys,
        items & {("a", 1)},
        sum(values),
        max(keys),
        bool(keys),
        len(items),
        repr(keys),
        type(values),
    )


@whole
def dict_errors(x, y):
    d = {"a": 1}
    return x + 1, errors_of(
        (
            lambda: d["z"],
            lambda: d.pop("z"),
            lambda: {}.popitem(),
            lambda: d[[]],
            lambda: dict([1]),
            lambda: dict([(1, 2, 3)]),
            lambda: d.update(3),
            lambda: d.nothing,
            lambda: {[]: 1},
            lambda: dict(1, 2),
            lambda: d | 3,
            lambda: d.get(),
            lambda: d + d,
            lambda: d < d,
            lambda: d.__delitem__("z"),
            lambda: {**3},
            lambda: d.setdefault([]),
            lambda: d.fromkeys(3),
            lambda: d[x.shape, []],
        )
    )


@whole
def dict_keys_of_all_kinds(x, y):
    d = {
        1: "int",
        2.5: "float",
        "s": "str",
        (1, "t"): "tuple",
        None: "none",
        True: "true",
        b"b": "bytes",
        int: "type",
        frozenset([1]): "frozen",
        torch.float32: "dtype",
        range(2): "range",
        ...: "dots",
        x.shape: "size",
        1j: "complex",
    }
    return (
        x + 1,
        d[1.0],
        d[1],
        d[2.5],
        d[(1, "t")],
        d[None],
        d[int],
        d[frozenset([1])],
        d[torch.float32],
        d[range(2)],
        d[...],
        d[(3, 4)],
        d,
        len(d),
        float("nan") in {float("nan"): 1},
        {x: 1}[x],
        {x: 1, y: 2}[y],
    )


@whole
def set_methods(x, y):
    s = {1, 2, 3}
    s.add(4)
    s.add(1)
    s.discard(9)
    s.remove(2)
    t = {3, 4, 5}
    u = set(s)
    u.update([7], (8,))
    u -= {7}
    u |= {9}
    u &= {8, 9, 1}
    u ^= {1}
    v = s.copy()
    v.difference_update({1})
    w = set("ab")
    w.intersection_update("b")
    z = {1, 2}
    z.symmetric_difference_update({2, 3})
    popped = {5}.pop()
    e = {1}
    e.clear()
    return (
        x + len(s),
        s | t,
        s & t,
        s - t,
        s ^ t,
        s <= t,
        {3} < s,
        s >= {1},
        s > {1},
        s == {1, 3, 4},
        s != t,
        s.union(t, [10]),
        s.intersection(t, [3]),
        s.difference(t),
        s.symmetric_difference(t),
        s.issubset(t),
        s.issuperset({1}),
        s.isdisjoint({9}),
        1 in s,
        9 not in s,
        u,
        v,
        w,
        z,
        popped,
        e,
        frozenset(s),
        frozenset([1]) | {2},
        {1} | frozenset([2]),
        sorted(s),
        {i % 3 for i in range(9)},
        set(),
        bool(set()),
        frozenset([1]) == {1},
        hash(frozenset([1])) == hash(frozenset([1])),
        len({1, 1.0, True}),
        {*s, *t},
        set([x, x]) == {x},
        max(s),
        sum(s),
    )


@whole
def set_errors(x, y):
    s = {1}
    return x + 1, errors_of(
        (
            lambda: s.remove(9),
            lambda: set().pop(),
            lambda: s.add([]),
            lambda: {[]},
            lambda: s | [1],
            lambda: s.union(3),
            lambda: s + s,
            lambda: s[0],
            lambda: set(3),
            lambda: frozenset([1]).add(2),
            lambda: s < 3,
            lambda: hash(s),
            lambda: {{1}},
            lambda: set(1, 2),
        )
    )


@whole
def methods_from_types(x, y):
    return (
        x + 1,
        list(map(str.upper, "ab")),
        list(map(len, ["a", "bc"])),
        [*map(int, "123")],
        list(filter(str.isdigit, "a1b2")),
        sorted("bA", key=str.lower),
        dict.keys({"a": 1}) == {"a"},
        int.__add__(1, 2),
        (1).__add__(2),
        "a".__add__("b"),
        [1].__contains__(1),
        {"a": 1}.__len__(),
        list.__len__([1]),
        (5).__lt__(6),
        (1).__add__("a"),
        float.__mul__(2.0, 3),
        int.__mul__(2, 3),
        (2).__pow__(3),
        "a".__mul__(3),
        [].__eq__([]),
        (1).__eq__(1.0),
        str.__len__("ab"),
        object.__repr__ is not None,
        (3).__bool__(),
        (7).__floordiv__(2),
        tuple.__add__((1,), (2,)),
        set.union({1}, {2}),
        dict.get({"a": 1}, "a"),
        (True).__and__(False),
        [3, 1].__getitem__(1),
        "abc".__getitem__(1),
    )


@whole
def bound_builtin_methods(x, y):
    items, table, members = [], {}, set()
    add, put, get, include = items.append, table.__setitem__, table.get, members.add
    for i in range(3):
        add(x * i)
        put(i, i * i)
        include(i % 2)
    join = ",".join
    has = "abc".__contains__
    return (
        items,
        table,
        get(2),
        get(9, "none"),
        members,
        join("ab"),
        has("b"),
        list(map(table.get, [0, 9])),
        items.append == add,
        add.__self__ is items,
        add.__name__,
    )


@whole
def type_questions(x, y):
    values = [
        1,
        "a",
        1.5,
        None,
        True,
        [],
        (),
        {},
        set(),
        b"",
        1j,
        range(1),
        len,
        int,
        type,
        x,
        x.shape,
        ...,
        slice(1),
        lambda: 0,
        zip(),
        iter([]),
        object,
        print,
    ]
    return (
        x + 1,
        [type(v) for v in values],
        [isinstance(v, (int, str)) for v in values],
        type(1)(2.7),
        type([])("ab"),
        type({})(a=1),
        type(()) is tuple,
        type(x) is torch.Tensor,
        isinstance(x, torch.nn.Parameter),
        issubclass(bool, int),
        type(None)(),
        (1).__class__,
        x.__class__,
        type(type(1)),
        int is type(3),
        [].__class__.__name__,
        [t.__name__ for t in (int, str)],
        type(x).__name__,
        int.__name__,
        type(1) == int,
        type(1) in (int, float),
    )


@whole
def id_and_hash(x, y):
    a, b = [], []
    return (
        x + 1,
        id(a) == id(a),
        id(a) == id(b),
        id(x) == id(x),
        id(x) == id(y),
        hash(5),
        hash("a") == hash("a"),
        a is not b,
        hash(None) == hash(None),
    )


@(whole if sys.version_info >= (3, 13) else broken("called with wrong arguments"))
def misuse_of_zip(x, y):
    """Whose signature Python tells from 3.13 on."""
    return x + 1, errors_of((lambda: zip([1], nothing=True),))


@whole
def misuse_of_polyfills(x, y):
    return x + 1, errors_of(
        (lambda: sum(), lambda: sorted(), lambda: max(key=3), lambda: enumerate())
    )


test_program = TABLE.test()


def test_coverage():
    captured, total = TABLE.coverage
    assert total - captured <= 2
