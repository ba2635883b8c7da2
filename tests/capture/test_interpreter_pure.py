# ruff: noqa: B023, F821, UP008
"""Programs without tensors, by the interpreter and by Python. Runs in every version, with torch or
without."""

from __future__ import annotations

import pytest

from tests.capture.pure import interpret

PROGRAMS = []


def program(*args):
    def register(fn):
        PROGRAMS.append(pytest.param(fn, args, id=fn.__name__))
        return fn

    return register


@program(7)
def everything_at_once(n):
    a = [i * i for i in range(n) if i % 2]
    b = {k: v for k, v in zip("abc", a)}
    last = None

    def g(x, *r, k=3, **kw):
        nonlocal last
        last = x
        return x + k + sum(r) + sum(kw.values())

    try:
        b["zz"]
    except KeyError:
        a.append(g(1, 2, 3, k=4, z=5))
    finally:
        a.append(last)
    s = f"{n:>4}|{a!r}|{b}|{n=}"
    for i, (x, y) in enumerate(sorted(b.items(), key=lambda t: -t[1])):
        a.append(i + y)
        s += x
    while True:
        n -= 1
        if n < 3:
            break
    match n:
        case 2:
            s += "two"
        case _:
            s += "other"
    return a, s, any(x > 5 for x in a), (q := max(a)), q, [*map(lambda z: z + 1, a)]


@program(5)
def comprehension_shadows_parameter(x):
    squares = [x * x for x in range(3)]
    return x, squares, [[x + y for y in range(2)] for x in range(2)]


@program()
def comprehension_of_lambdas():
    return [f() for f in [lambda: i for i in range(3)]], [
        f() for f in [lambda i=i: i for i in range(3)]
    ]


@program()
def comprehension_variable_is_a_cell():
    x = 10

    def outer():
        made = [(lambda: x)() for x in range(2)]
        return x, made

    return outer(), [x for y in (1, 2) if (x := y)], x


@program()
def comprehension_in_arguments():
    def take(*args, **kwargs):
        return args, kwargs

    try:
        return take([i for i in range(2)], k={i: i for i in range(2)}), take(
            1, [1 // i for i in (1, 0)]
        )
    except ZeroDivisionError as error:
        return str(error)


@program(3)
def loops(n):
    found = []
    for i in range(n):
        for j in range(n):
            if j == 2:
                continue
            if i == 2:
                break
            found.append((i, j))
        else:
            found.append("else")
    while n:
        n -= 1
    else:
        found.append("done")
    return found


@program()
def generators():
    def inner(n):
        for i in range(n):
            got = yield i
            if got:
                yield got
        return "end"

    def outer():
        result = yield from inner(2)
        yield result
        yield from [1, 2]

    g = inner(2)
    first = next(g)
    return (
        first,
        g.send("sent"),
        list(g),
        list(outer()),
        sum(i for i in inner(4)),
        tuple(x for x in outer()),
    )


@program()
def generator_with_finally():
    log = []

    def gen():
        try:
            yield 1
            yield 2
        finally:
            log.append("closed")

    return list(gen()), log


@program()
def exceptions():
    log = []

    def raises(kind):
        try:
            raise kind("message")
        except ValueError as error:
            log.append(f"value {error}")
            raise RuntimeError("chained") from error
        except (TypeError, KeyError):
            log.append("type or key")
        else:
            log.append("never")
        finally:
            log.append("finally")

    for kind in (ValueError, TypeError, KeyError, OSError):
        try:
            raises(kind)
        except RuntimeError as error:
            log.append((str(error), type(error.__cause__).__name__))
        except Exception as error:
            log.append(error.args)
    return log


@program()
def returns_through_finally():
    log = []

    def run(n):
        for i in range(n):
            try:
                if i == 1:
                    return i
                continue
            finally:
                log.append(i)

    return run(3), log


class Manager:
    def __init__(self, log, swallow):
        self.log, self.swallow = log, swallow

    def __enter__(self):
        self.log.append("enter")
        return self

    def __exit__(self, kind, value, traceback):
        self.log.append(kind.__name__ if kind else "exit")
        return self.swallow


@program()
def managers():
    log = []

    def run(swallow):
        for i in range(2):
            with Manager(log, swallow) as outer, Manager(log, False):
                if i:
                    raise ValueError("x")
                log.append(outer.swallow)
        return "end"

    try:
        log.append(run(True))
        run(False)
    except ValueError:
        log.append("caught")
    return log


class Base:
    def __init__(self, a):
        self.a = a

    def name(self):
        return f"base {self.a}"


class Child(Base):
    def __init__(self, a, b):
        super().__init__(a)
        self.b = b

    def name(self):
        return super().name() + f" child {self.b} " + super(Child, self).name()

    def closure(self):
        return [(lambda: self.b)() for _ in range(2)]


@program(1, 2)
def classes(a, b):
    child = Child(a, b)
    child.b += 1
    return child.name(), child.closure(), isinstance(child, Base)


@program(range(4))
def unpacking(r):
    a, *b, c = r
    (d, e), f = (a, c), b
    return [*b, *f], {**{"x": d}, "y": e}, (lambda *p, **k: (p, k))(*b, **{"z": 1}), {*b}


@program()
def slices_and_text():
    items = list(range(6))
    items[1:3] = ["a"]
    del items[-1]
    items[0] += 5
    word = "python"
    return (
        items[1:],
        items[::-2],
        word[1:3],
        f"{word!r:>10}{3.14159:.{2}f}{word:^10}",
        "%s %d" % ("a", 3),  # noqa: UP031
        f"{items}",
    )


@program()
def unbound_variables():
    log = []

    def local():
        if log is None:
            x = 1
        return x

    def deleted():
        y = 1
        del y
        return y

    for fn in (local, deleted):
        try:
            fn()
        except UnboundLocalError:
            log.append("unbound")
    return log


@program(3, 4)
def defaults_and_annotations(a, b):
    def fn(x: int, y: int = a, /, *, z=b, w: str = "w") -> tuple:
        return x, y, z, w

    return fn(1), fn(1, 2, z=5), fn.__name__


@program()
def matches():
    def kind(subject):
        match subject:
            case 0 | 1:
                return "small"
            case int(n) if n > 10:
                return f"big {n}"
            case [first, *rest]:
                return first, rest
            case {"key": value, **others}:
                return value, others
            case str():
                return "text"
        return None

    return [kind(s) for s in (1, 20, 5, [1, 2, 3], {"key": 1, "other": 2}, "s")]


@pytest.mark.parametrize(("fn", "args"), PROGRAMS)
def test_program(fn, args):
    assert interpret(fn, *args) == fn(*args)
