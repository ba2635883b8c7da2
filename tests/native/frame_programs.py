"""Programs for the tests of frames. Each takes a list, which it may append to; its whole meaning is
what it returns or raises and what is in that list then. All that a frame of theirs holds can be
copied."""

from __future__ import annotations

from typing import Any

LIMIT = 3


class Manager:
    def __init__(
        self, log: list[Any], name: str, swallows: type[Exception] | tuple[()] = ()
    ) -> None:
        self.log, self.name, self.swallows = log, name, swallows

    def __enter__(self) -> str:
        self.log.append(("enter", self.name))
        return self.name

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        self.log.append(("exit", self.name, repr(error)))
        return isinstance(error, self.swallows)


def join(*parts: Any, sep: str = "-", **named: Any) -> str:
    return sep.join(map(str, parts)) + "".join(f"{k}={v}" for k, v in named.items())


def loops(log):
    total = 0
    for i in range(4):
        for j in [10, 20]:
            if i == 2:
                continue
            total += i * j + (total if total < 5 else 1)
        else:
            log.append(i)
        while total > 100:
            total -= 7
            if total % 5 == 0:
                break
        else:
            log.append("calm")
    return total


def handlers(log):
    for value in (1, 0, "a", None):
        try:
            try:
                log.append(10 // value)
            except ZeroDivisionError as error:
                log.append(repr(error))
                raise KeyError("zero") from error
            else:
                log.append("fine")
            finally:
                log.append("finally")
        except KeyError as error:
            log.append((repr(error), repr(error.__cause__)))
        except TypeError:
            log.append("type")
            if value is None:
                raise
    return "not reached"


def managers(log):
    with Manager(log, "outer", ValueError) as name, Manager(log, "inner"):
        log.append(name)
        for n in (1, 2):
            with Manager(log, "loop", KeyError):
                if n == 2:
                    raise KeyError(n)
                log.append(n)
        raise ValueError(
            join("a", 1, sep="+", end=LIMIT),
        )
    return log[-1]


def early_return(log):
    for i in range(5):
        with Manager(log, "m"):
            try:
                if i == 2:
                    return i, log[0]
            finally:
                log.append(i)
    return None


def cells(log, start=5, *rest, step=2, **named):
    count = start

    def add(n):
        nonlocal count
        count += n
        return count

    log.append(add(step))
    count *= 2
    log.append([add(i) for i in range(3)])
    del rest
    return count, (lambda: start + step)(), named


def expressions(log):
    a, (b, *c) = 1, [2, 3, 4]
    d = {"x": a, **{"y": b}, "z": [*c, a if a > b else b]}
    e = a < b < LIMIT and c[0] is not None or None
    if (n := len(c)) > 1:
        log.append(f"{a!r:>4}{b:{n}}")
    g = [x * y for x in c if x != 3 for y in (1, 2)]
    h = {k: v for k, v in sorted(d.items(), key=lambda pair: pair[0]) if k != "x"}
    match h:
        case {"y": int(first), **others}:
            log.append((first, others))
        case _:
            log.append("other")
    c[0], c[1:] = c[1], (i for i in g)
    log += join(*c, **{"sep": "/"}), d["x"]
    return a, b, c, e, g, h


def unbound(log):
    for name in ("one",):
        if log:
            gone = 1
        log.append(name)
    del name
    try:
        del name  # noqa: F821
    except UnboundLocalError as error:
        log.append(type(error).__name__)
    return gone  # noqa: F821


def far_jumps(log):
    x = 0
    for i in range(3):
        if i == 1:
            x = (
                x + 1 - 2 + 3 - 4 + 5 - 6 + 7 - 8 + 9 - 10 + 11 - 12 + 13 - 14 + 15 - 16 + 17 - 18 +
                19 - 20 + x * i - x
            )  # fmt: skip
            x = (
                x + 1 - 2 + 3 - 4 + 5 - 6 + 7 - 8 + 9 - 10 + 11 - 12 + 13 - 14 + 15 - 16 + 17 - 18 +
                19 - 20 + x * i - x
            )  # fmt: skip
            x = (
                x + 1 - 2 + 3 - 4 + 5 - 6 + 7 - 8 + 9 - 10 + 11 - 12 + 13 - 14 + 15 - 16 + 17 - 18 +
                19 - 20 + x * i - x
            )  # fmt: skip
            x = (
                x + 1 - 2 + 3 - 4 + 5 - 6 + 7 - 8 + 9 - 10 + 11 - 12 + 13 - 14 + 15 - 16 + 17 - 18 +
                19 - 20 + x * i - x
            )  # fmt: skip
        log.append(x)
    return [
        x,
        join(
            x,
            x.bit_length() + 1,
            sep=" ",
        ),
    ]


def reraised(log):
    try:
        try:
            raise ValueError(1)
        except ValueError:
            try:
                raise
            finally:
                log.append("again")
    except ValueError as error:
        caught = error
    return repr(caught), log


PROGRAMS = [
    loops,
    handlers,
    managers,
    early_return,
    cells,
    expressions,
    unbound,
    far_jumps,
    reraised,
]
