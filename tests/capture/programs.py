# ruff: noqa: B009, B010, B023, E501, E721, UP003, UP031, UP032
"""Small programs that capture takes whole, by name: each a function of (3, 4) float tensors x and y."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
import operator
import typing

import torch
import torch.nn.functional as F

PROGRAMS = {}


def program(fn):
    assert fn.__name__ not in PROGRAMS
    PROGRAMS[fn.__name__] = fn
    return fn


SCALE = 2.5
TABLE = {"a": 1.0, "b": [1, 2, 3], "c": {"d": 4}}
CONSTANT_TENSOR = torch.arange(4.0)


class Color(enum.Enum):
    RED = 1
    BLUE = 2

    @property
    def weight(self):
        return self.value * 10


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


Point = collections.namedtuple("Point", ["x", "y"])


class Typed(typing.NamedTuple):
    first: torch.Tensor
    second: int = 3

    def total(self):
        return self.first + self.second


@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    right: float = 2.0
    extra: list = dataclasses.field(default_factory=list)

    def combine(self):
        return self.left * self.right + len(self.extra)


class Base:
    factor = 3.0

    def __init__(self, bias):
        self.bias = bias

    def apply(self, x):
        return x * self.factor + self.bias

    @property
    def double(self):
        return self.bias * 2

    @classmethod
    def make(cls, bias):
        return cls(bias)

    @staticmethod
    def helper(x, n=2):
        return x * n


class Derived(Base):
    factor = 4.0

    def __init__(self, bias, more):
        super().__init__(bias)
        self.more = more

    def apply(self, x):
        return super().apply(x) + self.more

    def __add__(self, other):
        return Derived(self.bias + other, self.more)

    def __radd__(self, other):
        return Derived(self.bias - other, self.more)

    def __call__(self, x):
        return self.apply(x)

    def __len__(self):
        return 3

    def __getitem__(self, i):
        return self.bias * i

    def __iter__(self):
        return iter([1, 2, self.more])

    def __contains__(self, item):
        return item == self.more

    def __eq__(self, other):
        return isinstance(other, Derived) and self.bias == other.bias

    def __hash__(self):
        return 1

    def __getattr__(self, name):
        if name.startswith("made_"):
            return len(name)
        raise AttributeError(name)


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a
        self.b = a + 1


class Counter:
    def __init__(self, stop):
        self.now, self.stop = 0, stop

    def __iter__(self):
        return self

    def __next__(self):
        if self.now >= self.stop:
            raise StopIteration
        self.now += 1
        return self.now


class Manager:
    def __init__(self, log, swallow=False):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, traceback):
        self.log.append("exit" if kind is None else kind.__name__)
        return self.swallow


class Descriptor:
    def __get__(self, instance, owner):
        return instance.base * 2


class Described:
    doubled = Descriptor()

    def __init__(self, base):
        self.base = base


OBJECT = Derived(1.5, 2)
SLOTTED = Slotted(5)
POINT = Point(1, 2.0)


def decorate(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs) + 1

    return wrapper


def scale_by(k):
    def decorator(fn):
        return lambda *args: fn(*args) * k

    return decorator


@decorate
def decorated(x, *, k=2):
    return x * k


@scale_by(3)
def scaled(x):
    return x - 1


@torch.no_grad()
def without_grad(x):
    return x * 2


def keywords(a, b=2, *rest, c, d=4, **others):
    return a * b + sum(rest) + c * d + sum(others.values())


def positional_only(a, b, /, c=1):
    return a + b * c


def numbers(n):
    for i in range(n):
        yield i * 2


def numbers_and_more(n):
    yield 100
    got = yield from numbers(n)
    yield 200 if got is None else got


@contextlib.contextmanager
def scope(log):
    log.append("in")
    yield 5
    log.append("out")


# -- tensors -----------------------------------------------------------------------------------------------------------


@program
def pointwise(x, y):
    return (x.sin() * y.cos() + 1).relu()


@program
def reflected_operators(x, y):
    return 1 - x, 2 / (y + 10), 2 ** (x * 0.1), -x, +y, abs(x), 3 // (y + 10), 7 % (y + 10), ~(x > 0)


@program
def comparisons(x, y):
    return x < y, x <= 1, 0 == x, x != y, 1 > x, x >= y, (x > 0) & (y > 0), (x > 0) | (y > 0), (x > 0) ^ (y > 0)


@program
def in_place(x, y):
    z = x.clone()
    z += y
    z *= 2
    z.add_(1).mul_(3)
    z[0] = 5
    z[:, 1] += 1
    return z


@program
def writes_argument(x, y):
    x.add_(y)
    x[0, 0] = 7
    return x.sum()


@program
def returns_argument(x, y):
    return y, x + 1, y


@program
def in_place_is_self(x, y):
    z = x + 1
    w = z.add_(1)
    return w is z, x is y, x is x, x is not None


@program
def indexing(x, y):
    return x[0], x[:, 1:3], x[..., -1], x[None], x[x.shape[0] - 1, ::2], x[:, [0, 2]], x[1:, None, :2]


@program
def tensor_indexing(x, y):
    i = torch.tensor([0, 2])
    return x[i], x[torch.arange(2), i]


@program
def shape_queries(x, y):
    a, b = x.shape
    assert x.dim() == x.ndim == 2 and x.size(0) == 3 and x.size()[1] == 4 and len(x) == 3
    assert x.dtype == torch.float32 and x.device.type == "cpu" and not x.is_cuda and x.is_contiguous()
    assert x.numel() == 12 and x.stride() == (4, 1) and x.dtype.is_floating_point and x.is_floating_point()
    return x.view(b, a), x.reshape(-1), x.view(*x.shape[:-1], 2, -1), x.new_zeros(x.shape), x.T, x.mT


@program
def size_results(x, y):
    return x.shape, x.size(), x.shape[1:], tuple(x.shape), x.shape.numel(), x.size(-1)


@program
def multiple_results(x, y):
    values, indices = x.max(dim=1)
    top = x.topk(2)
    a, b = x.split(2, dim=1)
    return values, indices, top.values, top.indices, a, b, *x.unbind(0), x.chunk(2, 1)


@program
def struct_result(x, y):
    return x.max(dim=0), torch.sort(y)


@program
def iterates_tensor(x, y):
    total = 0
    for row in x:
        total = total + row
    a, b, c = y
    return total, a + b + c, [r.sum() for r in y], torch.stack([*x])


@program
def factories(x, y):
    return (
        torch.zeros(2, 3), torch.arange(5), torch.full_like(x, 2.0), torch.ones(x.shape[0]), torch.eye(3), torch.linspace(0, 1, 4),
        torch.empty(2, 2).fill_(1), torch.zeros_like(x, dtype=torch.int64), x.new_ones(2),
    )  # fmt: skip


@program
def literals(x, y):
    return torch.tensor(3.0) + x, torch.tensor([1, 2, 3, 4]) * y


@program
def random_numbers(x, y):
    return torch.rand(3) + F.dropout(x, 0.5, training=True)[0, :3], torch.randn_like(x)


@program
def functional(x, y):
    w = torch.ones(5, 4)
    return (
        F.linear(x, w),
        F.softmax(x, dim=-1),
        F.gelu(y),
        F.layer_norm(x, (4,)),
        F.pad(x, (1, 1)),
        F.normalize(x),
        F.one_hot(torch.tensor([0, 2]), 3),
    )


@program
def torch_functions(x, y):
    return (
        torch.cat([x, y], dim=1),
        torch.stack((x, y)),
        torch.einsum("ij,kj->ik", x, y),
        torch.where(x > 0, x, y),
        torch.clamp(x, -1, 1),
    )


@program
def methods_with_keywords(x, y):
    return (
        x.sum(dim=1, keepdim=True),
        x.mean(-1),
        x.to(torch.float64),
        x.to(dtype=torch.int32),
        x.float(),
        x.type_as(y),
        x.masked_fill(x > 0, 0),
    )


@program
def unbound_methods(x, y):
    return torch.Tensor.add(x, y), torch.Tensor.sum(x, dim=0), torch.ops.aten.mul.Tensor(x, y)


@program
def out_argument(x, y):
    z = torch.empty(3, 4)
    torch.add(x, y, out=z)
    return z


@program
def views_share(x, y):
    z = x.clone()
    v = z.view(-1)
    v[0] = 9
    return z, v


@program
def data_attribute(x, y):
    return x.data + 1, x.detach()


@program
def tensor_types(x, y):
    return (
        isinstance(x, torch.Tensor),
        torch.is_tensor(3),
        type(x) is torch.Tensor,
        hasattr(x, "shape"),
        hasattr(x, "nothing"),
        callable(x),
    )


@program
def tensor_getattr(x, y):
    return x.sin(), getattr(x, "nothing", 3), torch.cos(y)


@program
def scalars_to_tensor(x, y):
    return x * 2 + 1.5, x * True, x**2, x * SCALE, x + math.pi, torch.add(x, y, alpha=2)


@program
def global_tensor(x, y):
    return x + CONSTANT_TENSOR


@program
def infinities(x, y):
    return (
        x.masked_fill(x > 0, float("-inf")),
        x.clamp(max=math.inf),
        torch.finfo(x.dtype).max,
        torch.iinfo(torch.int32).min,
    )


# -- control -----------------------------------------------------------------------------------------------------------


@program
def branches(x, y):
    if x.shape[0] > 2 and not x.requires_grad or False:
        z = x
    elif x.dim() == 1:
        z = y
    else:
        z = x + y
    return z + 1 if y is not None else y


@program
def loops(x, y):
    for i in range(3):
        if i == 1:
            continue
        x = x + i
    else:
        x = x * 2
    n = 5
    while n > 0:
        n -= 1
        if n == 2:
            break
        y = y + n
    return x, y, n


@program
def nested_loops(x, y):
    for i in range(2):
        for j in range(i, 3):
            x = x + i * j
    return x


@program
def ternaries_and_chains(x, y):
    a, b, c = 1, 2, 3
    return x if a < b < c else y, a or b, a and b, None or 0 or c, not a, 0 and a


@program
def walrus(x, y):
    if (n := x.shape[0]) > 2:
        x = x + n
    return x, [m := 3, m**2], n


@program
def matches(x, y):
    results = []
    for subject in (1, "two", (1, 2), [1, 2, 3], {"k": 5, "l": 6}, None, Point(3, 4), 2.5):
        match subject:
            case 1:
                results.append("one")
            case str(s):
                results.append(s)
            case Point(x=a, y=b):
                results.append(a * b)
            case (a, b):
                results.append(a + b)
            case [a, *rest]:
                results.append(rest)
            case {"k": k, **others}:
                results.append((k, others))
            case None:
                results.append(None)
            case _:
                results.append("other")
    return x, results


@program
def asserts(x, y):
    assert x.shape == y.shape, f"shapes {x.shape} and {y.shape} differ"
    return x + y


# -- functions ---------------------------------------------------------------------------------------------------------


@program
def calls_with_all_kinds(x, y):
    extra = {"e": 5, "f": 6}
    return keywords(x, 3, 1, 1, c=2, **extra), keywords(x, c=1), keywords(*(x, 2, 3), c=y), positional_only(x, y, c=2)


@program
def closures(x, y):
    k = 3

    def inner(z):
        nonlocal k
        k += 1
        return z * k

    first = inner(x)
    return first, inner(y), k


@program
def late_binding(x, y):
    functions = [lambda z: z * i for i in range(3)]
    bound = [lambda z, i=i: z * i for i in range(3)]
    return [f(x) for f in functions], [f(x) for f in bound]


@program
def recursion(x, y):
    def power(z, n):
        return z if n == 1 else z * power(z, n - 1)

    return power(x, 4)


@program
def decorators(x, y):
    return decorated(x, k=5), scaled(y), without_grad(x)


@program
def partials(x, y):
    f = functools.partial(keywords, x, c=2)
    g = functools.partial(torch.add, y, alpha=3)
    return f(3, d=1), g(x)


@program
def lambdas_and_higher_order(x, y):
    return (
        list(map(lambda a, b: a * b, [x, y], [2, 3])),
        functools.reduce(operator.add, [x, y, 1]),
        list(filter(None, [0, 1, 2])),
    )


@program
def bound_methods(x, y):
    f, g = x.add, [].append
    g(3)
    return f(y), OBJECT.apply(x)


@program
def function_attributes(x, y):
    def inner():
        return 1

    inner.tag = 5
    return inner.tag, inner.__name__, decorated.__name__, x


@program
def star_expressions(x, y):
    first, *middle, last = [1, 2, 3, 4]
    (a, b), c = (x, y), 3
    return [first, *middle, last], {**{"a": 1}, "b": 2}, (*"ab", 1), a + b + c


# -- generators and iterators ------------------------------------------------------------------------------------------


@program
def generators(x, y):
    return (
        [x + i for i in numbers(3)],
        list(numbers_and_more(2)),
        sum(i for i in numbers(4)),
        any(i > 3 for i in numbers(4)),
    )


@program
def generator_by_hand(x, y):
    g = numbers(3)
    first = next(g)
    rest = list(g)
    return first, rest, next(g, "empty"), x


@program
def generator_send(x, y):
    def accumulate():
        total = 0
        while True:
            got = yield total
            total = total + got

    g = accumulate()
    next(g)
    g.send(x)
    return g.send(y)


@program
def iterators(x, y):
    it = iter([1, 2, 3])
    pairs = list(zip([x, y], range(2), "ab"))
    return next(it), list(it), [(i, n) for i, (_, n, _) in enumerate(pairs, 5)], list(reversed([1, 2])), pairs


@program
def zip_strict(x, y):
    try:
        list(zip([1], [1, 2], strict=True))
    except ValueError:
        return x
    return y


@program
def itertools_functions(x, y):
    return (
        list(itertools.chain([1], [2, 3])), list(itertools.product([1, 2], "ab")), list(itertools.islice(range(10), 2, 8, 3)),
        list(itertools.accumulate([1, 2, 3])), list(itertools.repeat(x, 2)), list(itertools.pairwise([1, 2, 3])),
        list(itertools.combinations(range(4), 2)), list(itertools.zip_longest([1, 2], [3])), list(itertools.chain.from_iterable([[1], [2]])),
        list(zip(itertools.count(2), "ab")), list(itertools.takewhile(lambda i: i < 2, range(5))), list(itertools.starmap(pow, [(2, 3)])),
    )  # fmt: skip


@program
def own_iterator(x, y):
    return [x + i for i in Counter(3)], list(Derived(1, 2)), 2 in Derived(1, 2)


@program
def unpack_generator(x, y):
    a, b, c = numbers(3)
    return a, b, c, [*numbers(2)], {*numbers(2)}, max(numbers(4)), sorted(numbers(3), reverse=True)


# -- containers --------------------------------------------------------------------------------------------------------


@program
def comprehensions(x, y):
    n = 2
    return (
        [x * i for i in range(n)],
        {k: v for k, v in zip("ab", (x, y))},
        {i % 2 for i in range(5)},
        [[i * j for j in range(i)] for i in range(3)],
    )


@program
def comprehension_scopes(x, y):
    i = 10
    squares = [i * i for i in range(3) if i]
    lambdas = [(lambda: i + k) for k in range(2)]
    return squares, i, [f() for f in lambdas], [i for row in [[1, 2], [3]] for i in row], x


@program
def lists(x, y):
    items = [1, 2, 3]
    items.append(x)
    items.extend([y, 4])
    items.insert(0, 0)
    last = items.pop()
    del items[1]
    items[0] = 9
    items += [7]
    copied = items.copy()
    items.reverse()
    return (
        items,
        last,
        copied,
        len(items),
        items.index(7),
        [1, 2, 1].count(1),
        items[1:3],
        [0] * 3 + [1],
        [1, 2] == [1, 2],
        [1] < [2],
    )


@program
def list_slices(x, y):
    items = list(range(6))
    items[1:3] = [10, 11, 12]
    items.remove(5)
    items.sort(reverse=True)
    return items, items[::-1], x


@program
def shared_lists(x, y):
    inner = [x]
    outer = [inner, inner]
    inner.append(y)
    return outer, outer[0] is outer[1]


@program
def dicts(x, y):
    d = {"a": x, 1: y}
    d["b"] = 3
    d.update(c=4)
    d.setdefault("d", 5)
    popped = d.pop("b")
    del d[1]
    return (
        d,
        popped,
        d.get("z"),
        d.get("z", 0),
        list(d),
        list(d.items()),
        "a" in d,
        len(d),
        {**d, "e": 1},
        d | {"f": 2},
        list(d.values())[0],
    )


@program
def dict_views(x, y):
    d = {"a": 1, "b": 2}
    e = {}
    for k, v in d.items():
        e[v] = k
    return (
        e,
        sorted(d.keys()),
        sum(d.values()),
        d.keys() & {"a"},
        d == {"a": 1, "b": 2},
        dict(zip("ab", [x, y])),
        dict(a=1),
        dict.fromkeys("ab", 0),
    )


@program
def special_dicts(x, y):
    groups = collections.defaultdict(list)
    groups["a"].append(x)
    groups["a"].append(y)
    ordered = collections.OrderedDict(a=1, b=2)
    ordered.move_to_end("a")
    return groups, ordered


@program
def sets(x, y):
    s = {1, 2}
    s.add(3)
    s.discard(1)
    return (
        s,
        s | {9},
        s & {2},
        s - {2},
        s ^ {2, 5},
        3 in s,
        len(s),
        frozenset([1, 1]),
        s == {2, 3},
        set("aab"),
        s.union([4]),
    )


@program
def tuples(x, y):
    t = (1, x) + (2,)
    return t, t * 2, t[1], t[::2], (1, 2) < (1, 3), (1, 2, 2).count(2), tuple([3]), len(t)


@program
def named_tuples(x, y):
    p = Point(x, y=2)
    t = Typed(y)
    return p, p.x + p.y, p[1], p._replace(y=3), t.total(), t, POINT.x, [*p], p._asdict()


@program
def slices(x, y):
    s = slice(1, 3)
    return x[s], s.start, slice(None, None, 2), [1, 2, 3, 4][s]


@program
def outside_containers(x, y):
    return x * TABLE["a"], [x + i for i in TABLE["b"]], TABLE["c"]["d"], "a" in TABLE, len(TABLE["b"]), TABLE["b"]


@program
def ranges(x, y):
    r = range(2, 10, 3)
    return list(r), len(r), 5 in r, r[1], r, sum(r), x


@program
def sorting(x, y):
    return (
        sorted([3, 1, 2]),
        sorted("hello", key=lambda c: -ord(c)),
        sorted({"b": 1, "a": 2}),
        min(3, 1),
        max([1, 5], key=lambda v: -v),
        min([], default=0),
    )


# -- text --------------------------------------------------------------------------------------------------------------


@program
def formatting(x, y):
    n, f, s = 42, 3.14159, "text"
    return (
        f"{n} {f:.2f} {s!r:>10} {n:05d} {n=}", f"{1} {s}", "%s-%d" % (s, n), f"{x.shape}", f"{[1, s]} {(1,)} {{'k': 1}}",
        f"{f:{n - 35}.{2}f}", str(n) + repr(s), "a" * 3, ",".join(["x", "y"]), ",".join(str(i) for i in range(3)), f"{x.dtype}", f"{None}",
    )  # fmt: skip


@program
def string_methods(x, y):
    s = "Hello World"
    return (
        s.lower(),
        s.split(),
        s.replace("l", "L"),
        s.startswith("He"),
        s[1:3],
        "World" in s,
        len(s),
        s.find("W"),
        s.encode(),
        [c for c in "ab"],
    )


# -- objects -----------------------------------------------------------------------------------------------------------


@program
def outside_object(x, y):
    return (
        OBJECT.apply(x),
        OBJECT.double,
        OBJECT.factor,
        OBJECT.helper(y),
        OBJECT(x),
        len(OBJECT),
        OBJECT[3],
        OBJECT.made_up,
    )


@program
def new_objects(x, y):
    d = Derived(x, 2)
    d.bias = y
    d.fresh = 5
    return (
        d.apply(x),
        d.fresh,
        d.double,
        Base.make(x).apply(y),
        hasattr(d, "none"),
        isinstance(d, Base),
        issubclass(Derived, Base),
    )


@program
def operators_of_objects(x, y):
    d = Derived(x, 2) + y
    e = 3 + Derived(y, 1)
    d += 1
    return d.bias, e.bias, Derived(1, 2) == Derived(1, 3), Derived(1, 2) != Derived(2, 2)


@program
def dataclasses_(x, y):
    p = Pair(x, extra=[1, 2])
    return p.combine(), Pair(y).right, p


@program
def slots(x, y):
    s = Slotted(x)
    return s.b, SLOTTED.a + SLOTTED.b


@program
def enums(x, y):
    color = Color.RED
    return (
        color is Color.RED,
        color == Color.BLUE,
        color.value,
        Color.BLUE.name,
        Color(2).weight,
        Level.HIGH > Level.LOW,
        Level.HIGH + 1,
        color,
        x,
    )


@program
def descriptors(x, y):
    return Described(x).doubled


@program
def types(x, y):
    return (
        int is int,
        type([]) == list,
        isinstance(1, (int, str)),
        isinstance(True, int),
        type(OBJECT).__name__,
        OBJECT.__class__ is Derived,
        isinstance(x, object),
    )


@program
def dynamic_attributes(x, y):
    b = Base(1)
    b.late = x
    return b.late, getattr(b, "no", None), vars(b)["bias"], b.__dict__["bias"]


# -- exceptions and with -----------------------------------------------------------------------------------------------


@program
def exceptions(x, y):
    log = []
    for key in ("a", "b"):
        try:
            value = {"a": 1}[key]
        except KeyError as error:
            log.append(("missing", error.args))
        else:
            log.append(value)
        finally:
            log.append("done")
    return log, x


@program
def exception_kinds(x, y):
    log = []
    for act in (lambda: 1 / 0, lambda: [][1], lambda: int("x"), lambda: None.x, lambda: {}["k"], lambda: Base(1, 2)):
        try:
            act()
        except (ZeroDivisionError, IndexError) as error:
            log.append(type(error).__name__)
        except Exception as error:
            log.append(type(error).__name__)
    return log, x


@program
def raises_and_catches(x, y):
    class_ = ValueError
    try:
        try:
            raise class_("inner")
        except ValueError as error:
            raise RuntimeError("outer") from error
    except RuntimeError as error:
        return str(error), str(error.__cause__), x


@program
def reraises(x, y):
    try:
        try:
            raise KeyError("k")
        except KeyError:
            raise
    except LookupError as error:
        return error.args, x


@program
def finally_returns(x, y):
    log = []

    def run():
        try:
            return 1
        finally:
            log.append("finally")

    return run(), log, x


@program
def managers(x, y):
    log = []
    with Manager(log) as m, Manager(log):
        log.append(m is not None)
    with Manager(log, swallow=True):
        raise ValueError("swallowed")
    with scope(log) as five:
        log.append(five)
    with contextlib.nullcontext(3) as three:
        log.append(three)
    with contextlib.suppress(KeyError):
        {}["x"]
    return log, x


@program
def grad_modes(x, y):
    before = torch.is_grad_enabled()
    with torch.no_grad():
        inside = torch.is_grad_enabled()
        z = x * 2
    with torch.enable_grad():
        again = torch.is_grad_enabled()
    with torch.set_grad_enabled(False):
        off = torch.is_grad_enabled()
    return before, inside, again, off, torch.is_grad_enabled(), z


@program
def return_in_with(x, y):
    with torch.no_grad():
        for i in range(3):
            if i == 1:
                return x + i
    return y


# -- builtins ----------------------------------------------------------------------------------------------------------


@program
def builtins_(x, y):
    return (
        abs(-3), round(2.567, 2), divmod(7, 2), pow(2, 3), int("4"), float("1.5"), bool([]), str(3), chr(65), ord("A"), hex(255),
        all([1, 2]), any([0, 0]), sum([1, 2], 3), min(1, 2), max(1.5, 2), len("abc"), list("ab"), tuple(range(2)), set([1]), int(2.7),
    )  # fmt: skip


@program
def math_functions(x, y):
    return (
        math.sqrt(x.shape[1]),
        math.floor(2.5),
        math.log(2),
        math.ceil(1.2),
        math.prod([1, 2, 3]),
        math.isqrt(10),
        math.gcd(4, 6),
        x * math.exp(0.5),
    )


@program
def operator_functions(x, y):
    return (
        operator.add(x, y),
        operator.mul(2, 3),
        operator.getitem([1, 2], 1),
        operator.neg(x),
        operator.lt(1, 2),
        operator.contains([1], 1),
    )


@program
def sums_of_tensors(x, y):
    return sum([x, y]), max(x.shape), sum(t.sum() for t in (x, y)), math.prod(x.shape)


@program
def integer_arithmetic(x, y):
    n = x.shape[0]
    return n // 2, n % 2, n**2, -n, n << 1, n & 1, n / 2, n | 4, n ^ 1, ~n, n >> 1, x.view(n * 2, -1)


@program
def imports(x, y):
    import math as m
    from math import sqrt

    import torch.nn.functional as functional

    return m.pi, sqrt(4), functional.relu(x)


@program
def is_compiling_aside(x, y):
    return torch.jit.is_scripting(), torch.jit.is_tracing(), typing.cast(int, x), x is y


def failing_assert(x):  # here, because pytest rewrites the asserts of test modules
    assert x.shape[0] == 99, "not 99"
    return x
