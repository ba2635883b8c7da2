"""PYTEST_DONT_REWRITE. Dataclasses, named tuples and enums."""

# ruff: noqa  (the programs are written as users may write them)
from __future__ import annotations

import collections
import dataclasses
import enum
import typing

import torch

from tests.capture.language import Table

TABLE = Table()
whole, broken = TABLE.whole, TABLE.broken


# -- dataclasses -----------------------------------------------------------------------------------


@dataclasses.dataclass
class Config:
    size: int
    name: str = "n"
    layers: list = dataclasses.field(default_factory=list)
    hidden: dict = dataclasses.field(default_factory=lambda: {"k": 1}, repr=False, compare=False)
    scale: dataclasses.InitVar[float] = 2.0
    derived: float = dataclasses.field(init=False)
    kind: typing.ClassVar[str] = "config"

    def __post_init__(self, scale):
        self.derived = self.size * scale


@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    a: int
    b: tuple = ()


@dataclasses.dataclass(slots=True, kw_only=True)
class SlotData:
    left: object
    right: object = None


@dataclasses.dataclass(eq=False)
class Nested(Config):
    inner: Frozen = Frozen(1)


@whole
def dataclasses_are_made(x, y):
    c = Config(3, layers=[x])
    d = Config(3, "n", [x])
    n = Nested(2, scale=3.0)
    s = SlotData(left=x)
    return (
        c.derived,
        c.layers[0] + 1,
        c.hidden,
        c.kind,
        c.hidden is d.hidden,
        n.inner.a,
        n.derived,
        s.left,
        s.right,
        c,
        s,
        n,
    )


@whole
def dataclass_methods(x, y):
    c, d = Config(3), Config(3)
    f, g = Frozen(1, (2,)), Frozen(1, (3,))
    return (
        x + 1,
        c == d,
        c != d,
        c == 3,
        repr(c),
        str(f),
        f < g,
        f >= g,
        hash(f) == hash(Frozen(1, (2,))),
        {f: 1}[Frozen(1, (2,))],
        sorted([g, f])[0] is f,
        f,
    )


@whole
def dataclass_functions(x, y):
    c = Config(3, layers=[Frozen(1, (x,))])
    changed = dataclasses.replace(c, size=5, scale=1.0)
    f = dataclasses.replace(Frozen(1), b=(2,))
    names = [field.name for field in dataclasses.fields(c)]
    return (
        changed.derived,
        changed.size,
        f,
        names,
        dataclasses.is_dataclass(c),
        dataclasses.is_dataclass(Config),
        dataclasses.is_dataclass(3),
        dataclasses.fields(Frozen)[0].type,
    )


@whole
def dataclass_as_dict(x, y):
    c = Config(3, layers=[Frozen(1, (2, [3])), {"k": Frozen(4)}])
    return (
        x + 1,
        dataclasses.asdict(c),
        dataclasses.astuple(Frozen(1, (2, 3))),
        dataclasses.asdict(SlotData(left=1)),
    )


@whole
def frozen_dataclass_refuses(x, y):
    f = Frozen(1)
    seen = []
    for act in (
        lambda: setattr(f, "a", 2),
        lambda: delattr(f, "a"),
        lambda: Config(),
        lambda: Config(1, nothing=2),
    ):
        try:
            act()
        except (dataclasses.FrozenInstanceError, TypeError) as error:
            seen.append((type(error), str(error)))
    return x + f.a, seen


@whole
def dataclass_inside(x, y):
    @dataclasses.dataclass
    class Local:
        a: torch.Tensor
        b: int = 2

    return Local(x).a * Local(y).b


@whole
def match_args_of_dataclass(x, y):
    match Frozen(3, (4,)):
        case Frozen(a, (b,)):
            return x * a + b


# -- named tuples and enums ------------------------------------------------------------------------

Pair = collections.namedtuple("Pair", ["a", "b"], defaults=[5])


class Typed3(typing.NamedTuple):
    first: torch.Tensor
    second: int = 2

    def total(self):
        return self.first.sum() + self.second

    @property
    def twice(self):
        return self.second * 2


@whole
def named_tuples(x, y):
    p = Pair(x)
    q = p._replace(b=1)
    a, b = q
    t = Typed3(y, second=4)
    return (
        p,
        q._asdict(),
        a,
        b,
        Pair._fields,
        Pair._make([1, 2]),
        p[0] is x,
        t.total(),
        t.twice,
        t,
        Pair(1, 2) == (1, 2),
        isinstance(p, tuple),
        len(p),
        q + (3,),
        p._field_defaults,
        q[::-1],
        hash(Pair(1, 2)) == hash((1, 2)),
    )


class Sum(Typed3):
    def __add__(self, other):
        return Sum(self.first + other.first, self.second + other.second)

    def __getitem__(self, place):
        return "an element" if place == 0 else super().__getitem__(place)

    def __len__(self):
        return 7

    def __bool__(self):
        return False


class Noted(Pair):
    """Its instances have attributes of their own."""


@whole
def named_tuples_with_methods(x, y):
    s = Sum(x) + Sum(y, second=3)
    first, second = s
    return s, s[0], s[1], len(s), not s, first, second, s.total(), s.twice, s._replace(second=1)


@whole
def named_tuples_with_attributes(x, y):
    n = Noted(x, b=y)
    n.more = x + 1
    n.more = y
    n.other = 3
    return n, n.a, n.b, n[0], n.more, hasattr(n, "none"), n._asdict(), n + (1,), type(n)


@whole
def named_tuple_text(x, y):
    return (
        x + 1,
        repr(Pair(1, "b")),
        str(Typed3(1)),
        f"{Pair(1)}",
        Pair.__name__,
        Typed3.__annotations__ is not None,
    )


@whole
def named_tuple_errors(x, y):
    seen = []
    p = Pair(1, 2)
    for act in (
        lambda: Pair(),
        lambda: Pair(1, 2, 3),
        lambda: Pair(c=1),
        lambda: p._replace(c=1),
        lambda: setattr(p, "a", 2),
        lambda: p.c,
    ):
        try:
            act()
        except (TypeError, ValueError, AttributeError) as error:
            seen.append((type(error), str(error)))
    return x + 1, seen


class Color(enum.Enum):
    RED = 1
    GREEN = "green"
    ALSO_RED = 1

    @property
    def loud(self):
        return self.name + "!"

    @classmethod
    def parse(cls, text):
        return cls[text.upper()]

    def mix(self, other):
        return (self.name, other.name)

    def __str__(self):
        return f"color {self.value}"


class Perm(enum.Flag):
    R = 4
    W = 2
    X = 1


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


class Name(str, enum.Enum):
    A = "a"
    B = "b"


class Auto(enum.Enum):
    ONE = enum.auto()
    TWO = enum.auto()


@whole
def enums(x, y):
    return (
        x + 1, Color.RED, Color(1), Color["GREEN"], Color.RED.value, Color.RED.name, Color.RED.loud,
        Color.parse("red"), Color.ALSO_RED is Color.RED, list(Color), len(Color),
        Color.RED in Color, Color.RED.mix(Color.GREEN), str(Color.RED), repr(Color.RED),
        f"{Color.GREEN}", Color.RED == 1, Color.RED != Color.GREEN, {Color.RED: 1}[Color.RED],
        isinstance(Color.RED, Color), type(Color.RED), Color.__members__["RED"],
        [c.name for c in Color], Auto.TWO.value, hash(Color.RED) == hash(Color.RED),
        Color.RED is Color.RED, Color.RED is Color.GREEN,
    )  # fmt: skip


@whole
def flags_and_int_enums(x, y):
    rw = Perm.R | Perm.W
    return (
        x * Level.HIGH, rw, rw.value, Perm.R in rw, Perm.X in rw, ~rw, rw & Perm.W, rw ^ Perm.R,
        bool(rw & Perm.X), Perm(6) is rw, Level.LOW + 1, Level.LOW < Level.HIGH, max(Level),
        Level(5), int(Level.HIGH), [1, 2][Level.LOW], f"{Level.HIGH}", Name.A == "a", Name("b"),
        Name.A.upper(), "x" + Name.B, {"a": 1}[Name.A], Name.A in ("a", "b"), sorted(Level),
    )  # fmt: skip


@whole
def enum_errors(x, y):
    seen = []
    for act in (
        lambda: Color(99),
        lambda: Color["NO"],
        lambda: Color.NO,
        lambda: Color.RED < Color.GREEN,
        lambda: Color.RED.nothing,
    ):
        try:
            act()
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            seen.append((type(error), str(error)))
    return x + 1, seen


test_program = TABLE.test()


def test_coverage():
    captured, total = TABLE.coverage
    assert total - captured <= 1
