# ruff: noqa: B009, B010, B023, E501, E721, F403, F405, UP003, UP031, UP032
"""Small programs about containers, text, objects, exceptions and builtins, of (3, 4) float tensors
x and y."""

from __future__ import annotations

from tests.capture.program_parts import *

# -- containers ------------------------------------------------------------------------------------


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
    return (
        x * TABLE["a"],
        [x + i for i in TABLE["b"]],
        TABLE["c"]["d"],
        "a" in TABLE,
        len(TABLE["b"]),
        TABLE["b"],
    )


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


# -- text ------------------------------------------------------------------------------------------


@program
def formatting(x, y):
    n, f, s = 42, 3.14159, "text"
    return (
        f"{n} {f:.2f} {s!r:>10} {n:05d} {n=}", f"{1} {s}", "%s-%d" % (s, n), f"{x.shape}",
        f"{[1, s]} {(1,)} {{'k': 1}}", f"{f:{n - 35}.{2}f}", str(n) + repr(s), "a" * 3,
        ",".join(["x", "y"]), ",".join(str(i) for i in range(3)), f"{x.dtype}", f"{None}",
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


# -- objects ---------------------------------------------------------------------------------------


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


# -- exceptions and with ---------------------------------------------------------------------------


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
    for act in (
        lambda: 1 / 0,
        lambda: [][1],
        lambda: int("x"),
        lambda: None.x,
        lambda: {}["k"],
        lambda: Base(1, 2),
    ):
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


# -- builtins --------------------------------------------------------------------------------------


@program
def builtins_(x, y):
    return (
        abs(-3), round(2.567, 2), divmod(7, 2), pow(2, 3), int("4"), float("1.5"), bool([]), str(3),
        chr(65), ord("A"), hex(255), all([1, 2]), any([0, 0]), sum([1, 2], 3), min(1, 2),
        max(1.5, 2), len("abc"), list("ab"), tuple(range(2)), set([1]), int(2.7),
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
    return (
        n // 2,
        n % 2,
        n**2,
        -n,
        n << 1,
        n & 1,
        n / 2,
        n | 4,
        n ^ 1,
        ~n,
        n >> 1,
        x.view(n * 2, -1),
    )


@program
def imports(x, y):
    import math as m
    from math import sqrt

    import torch.nn.functional as functional

    return m.pi, sqrt(4), functional.relu(x)


@program
def is_compiling_aside(x, y):
    return torch.jit.is_scripting(), torch.jit.is_tracing(), typing.cast(int, x), x is y
