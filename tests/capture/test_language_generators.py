"""PYTEST_DONT_REWRITE. Generators: lazily run, sent to, thrown into, closed, delegated to."""

# ruff: noqa  (the programs are written as users may write them)
from __future__ import annotations

import inspect

import torch

from tests.capture.language import Table

TABLE = Table()
whole, broken = TABLE.whole, TABLE.broken


# -- generators ------------------------------------------------------------------------------------


def squares(n):
    for i in range(n):
        yield i * i


def echo():
    got = yield "ready"
    while got is not None:
        got = yield got * 2
    return "done"


@whole
def generators_are_lazy(x, y):
    log = []

    def give():
        for i in range(3):
            log.append(f"make {i}")
            yield x * i
        log.append("end")

    log.append("before")
    g = give()
    log.append("made")
    first = next(g)
    for item in g:
        log.append("got")
    return first, item, log


@whole
def generator_protocol(x, y):
    g = echo()
    a, b, c = next(g), g.send(3), g.send(x)
    try:
        g.send(None)
    except StopIteration as stop:
        d = stop.value
    e = next(g, "empty")
    try:
        echo().send(1)
    except TypeError as error:
        f = str(error)
    return a, b, c, d, e, f, iter(g) is g, type(g).__name__


@whole
def generator_throw(x, y):
    log = []

    def work():
        while True:
            try:
                got = yield len(log)
                log.append(got)
            except KeyError as error:
                log.append(error.args)
            finally:
                log.append("finally")

    g = work()
    next(g)
    a = g.send(1)
    b = g.throw(KeyError("k"))
    try:
        g.throw(ValueError("v"))
    except ValueError as error:
        c = error.args
    try:
        next(g)
    except StopIteration:
        d = "finished"
    fresh = work()
    try:
        fresh.throw(IndexError)
    except IndexError as error:
        e = error.args
    return x + 1, a, b, c, d, e, log


@whole
def generator_close(x, y):
    log = []

    def work():
        try:
            yield 1
            yield 2
        except GeneratorExit:
            log.append("exit")
            raise
        finally:
            log.append("finally")

    g = work()
    next(g)
    g.close()
    g.close()
    unstarted = work()
    unstarted.close()

    def stubborn():
        for _ in range(2):
            try:
                yield 1
            except GeneratorExit:
                log.append("stays")

    s = stubborn()
    next(s)
    try:
        s.close()
    except RuntimeError as error:
        log.append(str(error))
    return x + 1, log, next(g, None), next(unstarted, None), list(s)


@whole
def yields_from(x, y):
    def inner():
        got = yield 1
        yield got
        return "result"

    def outer():
        result = yield from inner()
        yield result
        yield from [x, y]
        yield from (i for i in "ab")
        return (yield from ())

    g = outer()
    values = [next(g), g.send("sent"), next(g)]
    return values, list(g)


@whole
def yield_from_passes_throw_on(x, y):
    log = []

    def inner():
        try:
            yield 1
        except KeyError:
            log.append("inner")
            yield 2
        return 3

    def outer():
        got = yield from inner()
        log.append(got)
        try:
            yield from iter([10, 20])
        except ValueError:
            log.append("outer")
            yield 4

    g = outer()
    values = [next(g), g.throw(KeyError()), next(g), g.throw(ValueError)]
    h = outer()
    next(h)
    h.close()
    return x + 1, values, log, list(g), list(h)


@whole
def generator_return_values(x, y):
    def tree(n):
        if n == 0:
            yield x
            return 1
        left = yield from tree(n - 1)
        right = yield from tree(n - 1)
        return left + right

    def collect(g):
        items = []
        result = None
        while True:
            try:
                items.append(next(g))
            except StopIteration as stop:
                return items, stop.value

    items, count = collect(tree(3))
    return sum(items), count


@whole
def generator_raises(x, y):
    def work():
        yield 1
        raise KeyError("inside")

    def stops():
        yield 1
        raise StopIteration

    seen = []
    try:
        for item in work():
            seen.append(item)
    except KeyError as error:
        seen.append(error.args)
    try:
        for item in stops():
            seen.append(item)
    except RuntimeError as error:
        seen.append((str(error), type(error.__cause__)))
    return x + 1, seen


@whole
def generators_are_passed_around(x, y):
    def take(g, n):
        return [next(g) for _ in range(n)]

    def naturals():
        n = 0
        while True:
            yield n
            n += 1

    def only(predicate, g):
        for item in g:
            if predicate(item):
                yield item

    g = naturals()
    a, b = take(g, 3), take(g, 2)
    odd = only(lambda n: n % 2, g)
    c = take(odd, 3)
    held = {"g": g, "list": [g]}
    d = next(held["list"][0])
    return x * sum(a), a, b, c, d


@whole
def generator_expressions(x, y):
    n = 3
    g = (x * i for i in range(n) if i)
    n = 100
    nested = ((i, j) for i in range(2) for j in range(i + 1))
    return (
        sum(g),
        list(nested),
        any(i > 1 for i in range(5)),
        max(len(w) for w in ("a", "bcd")),
        dict((i, i) for i in "ab"),
    )


@whole
def generator_outer_iterable_is_eager(x, y):
    try:
        g = (i for i in 3)
    except TypeError as error:
        return x + 1, str(error)


@whole
def generator_in_a_class(x, y):
    class_ = Tree
    tree = class_([1, class_([2, x]), 3])
    return list(tree), sum(1 for _ in tree)


class Tree:
    def __init__(self, items):
        self.items = items

    def __iter__(self):
        for item in self.items:
            if isinstance(item, Tree):
                yield from item
            else:
                yield item


@whole
def generator_with_context(x, y):
    log = []

    def work():
        with torch.no_grad():
            try:
                yield x + 1
            finally:
                log.append("cleaned")

    for z in work():
        log.append("body")
    return z, log


@whole
def generator_exceptions_have_context(x, y):
    def work():
        try:
            yield 1
        except KeyError:
            raise ValueError("v")

    g = work()
    next(g)
    try:
        g.throw(KeyError("k"))
    except ValueError as error:
        return x + 1, error.__context__.args


@whole
def generator_keeps_its_own_handled_exception(x, y):
    def work():
        try:
            raise KeyError("inside")
        except KeyError:
            yield 1
            raise

    g = work()
    next(g)
    try:
        raise ValueError("v")
    except ValueError as error:
        outside = error.__context__
        try:
            next(g)
        except KeyError as again:
            return x + 1, outside, again.args


@whole
def generator_attributes(x, y):
    g = squares(3)
    before = g.gi_running, inspect.isgenerator(g), inspect.isgeneratorfunction(squares), g.__name__
    rest = list(g)
    return x + 1, before, rest


@whole
def generators_are_dropped(x, y):
    def plain():
        yield x + 1
        yield x + 2

    def guarded():
        try:
            yield x + 3
        except (IndexError, KeyError):
            yield x + 4

    for a in plain():
        break
    for b in guarded():
        break
    return a, b


@broken("a generator is dropped in a try or with block")
def generator_is_dropped_in_a_bare_except(x, y):
    log = []

    def work():
        try:
            yield x
        except:
            log.append("caught")
            raise

    return next(work()), log


@broken("a generator is dropped in a try or with block")
def generator_is_dropped_in_a_block(x, y):
    log = []

    def work():
        try:
            yield x + 1
            yield x + 2
        finally:
            log.append("closed")

    for z in work():
        break
    log.append("behind")
    return z, log


@broken("a generator is dropped in a try or with block")
def generator_is_dropped_in_a_mode(x, y):
    def work():
        with torch.enable_grad():
            yield x + 1

    g = work()
    z = next(g)
    inside = torch.is_grad_enabled()
    del g
    return z, inside, torch.is_grad_enabled()


test_program = TABLE.test()


def test_coverage():
    captured, total = TABLE.coverage
    assert total - captured <= 3
