"""PYTEST_DONT_REWRITE. Numbers and text: arithmetic, conversions, formats, methods of strings."""

# ruff: noqa  (the programs are written as users may write them)
from __future__ import annotations

import cmath
import math
import string

import torch

from tests.capture.language import Table, errors_of

TABLE = Table()
whole, broken = TABLE.whole, TABLE.broken


class Thing:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


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
        -True, isinstance(True, int), int("-7"), 0x10, 1 if n else 0,
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


test_program = TABLE.test()


def test_coverage():
    captured, total = TABLE.coverage
    assert total - captured <= 1
