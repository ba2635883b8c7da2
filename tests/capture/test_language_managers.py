"""PYTEST_DONT_REWRITE. With blocks: context managers of every kind."""

# ruff: noqa  (the programs are written as users may write them)
from __future__ import annotations

import contextlib

import torch

from tests.capture.language import Table

TABLE = Table()
whole, broken = TABLE.whole, TABLE.broken


class Problem(Exception):
    def __init__(self, code, *details, hint=None):
        super().__init__(code, *details)
        self.code, self.hint = code, hint

    def __str__(self):
        return f"problem {self.code}"


class Plain(ValueError):
    pass


# -- with ------------------------------------------------------------------------------------------


class Recorder:
    def __init__(self, log, name, swallow=()):
        self.log, self.name, self.swallow = log, name, swallow

    def __enter__(self):
        self.log.append(f"enter {self.name}")
        return self

    def __exit__(self, kind, value, traceback):
        self.log.append((self.name, kind, str(value)))
        return kind is not None and issubclass(kind, self.swallow)


@whole
def managers_swallow(x, y):
    log = []
    with Recorder(log, "a", ValueError) as a, Recorder(log, "b", KeyError):
        raise ValueError("v")
    with Recorder(log, "c", (KeyError, IndexError)):
        [][0]
    x = x + 1
    try:
        with Recorder(log, "d", KeyError):
            raise Problem(1)
    except Problem as error:
        log.append(error.code)
    return x, log, a.name


@whole
def managers_with_return_and_break(x, y):
    log = []

    def early():
        with Recorder(log, "r"):
            return x + 1

    for i in range(3):
        with Recorder(log, i):
            if i == 0:
                continue
            break
    with (
        Recorder(log, "p") as p,
        Recorder(log, "q"),
    ):
        z = y + 1
    return early(), z, log, p.swallow


class FailsToEnter:
    def __enter__(self):
        raise KeyError("enter")

    def __exit__(self, *args):
        raise AssertionError


class FailsToExit:
    def __enter__(self):
        return 5

    def __exit__(self, kind, value, traceback):
        raise Plain("exit")


@whole
def managers_that_fail(x, y):
    seen = []
    try:
        with FailsToEnter():
            pass
    except KeyError as error:
        seen.append(error.args)
    try:
        with FailsToExit() as five:
            seen.append(five)
    except Plain as error:
        seen.append(error.__context__)
    try:
        with FailsToExit():
            raise KeyError("body")
    except Plain as error:
        seen.append(error.__context__.args)
    for not_a_manager in (3, object(), None):
        try:
            with not_a_manager:
                pass
        except (TypeError, AttributeError) as error:
            seen.append((type(error), str(error)))
    return x + 1, seen


class Suppressing:
    """Its special methods are looked up on the class, not on the instance."""

    def __init__(self):
        self.__enter__ = None
        self.__exit__ = None

    def __enter__(self):
        return "class"

    def __exit__(self, *args):
        return args[0] is KeyError


@whole
def special_methods_are_the_class_s(x, y):
    with Suppressing() as found:
        raise KeyError
    return x + 1, found


@contextlib.contextmanager
def scope(log, name, swallow=()):
    log.append(f"in {name}")
    try:
        yield name.upper()
    except swallow as error:
        log.append(type(error))
    finally:
        log.append(f"out {name}")


@whole
def generator_managers(x, y):
    log = []
    with scope(log, "a") as a, scope(log, "b") as b:
        x = x + 1
    with scope(log, "c", KeyError):
        raise KeyError("k")
    try:
        with scope(log, "d", KeyError):
            raise Plain("p")
    except Plain as error:
        log.append(error.args)
    return x, log, a, b


@contextlib.contextmanager
def translating():
    try:
        yield
    except KeyError as error:
        raise Plain("translated") from error


@contextlib.contextmanager
def does_not_stop():
    try:
        yield 1
    except KeyError:
        yield 2


@contextlib.contextmanager
def does_not_yield():
    return
    yield


@whole
def generator_managers_misbehave(x, y):
    seen = []
    try:
        with translating():
            raise KeyError("k")
    except Plain as error:
        seen.append((error.args, error.__cause__.args))
    try:
        with does_not_stop():
            raise KeyError("k")
    except RuntimeError as error:
        seen.append(str(error))
    try:
        with does_not_yield():
            pass
    except RuntimeError as error:
        seen.append(str(error))
    try:
        with translating():
            raise StopIteration(3)
    except StopIteration as error:
        seen.append(error.value)
    return x + 1, seen


@whole
def manager_as_decorator(x, y):
    log = []

    @scope(log, "deco")
    def work(z):
        log.append("work")
        return z + 1

    return work(x), work(y), log


@whole
def contextlib_helpers(x, y):
    seen = []

    class_ = type(contextlib.nullcontext())
    with contextlib.suppress(KeyError, IndexError):
        seen.append(1)
        {}["k"]
        seen.append("never")
    with contextlib.suppress(KeyError):
        x = x + 1
    with contextlib.nullcontext(y) as z:
        x = x + z
    with contextlib.nullcontext() as nothing:
        seen.append(nothing)
    try:
        with contextlib.suppress(KeyError):
            raise Plain("through")
    except Plain as error:
        seen.append(error.args)
    return x, seen, class_


class Closeable:
    def __init__(self):
        self.closed = 0

    def close(self):
        self.closed += 1


@whole
def closing(x, y):
    thing = Closeable()
    with contextlib.closing(thing) as same:
        x = x + same.closed
    return x, thing.closed, same is thing


@whole
def exit_stacks(x, y):
    log = []
    with contextlib.ExitStack() as stack:
        a = stack.enter_context(Recorder(log, "a"))
        stack.callback(log.append, "callback")
        stack.enter_context(scope(log, "b"))
        stack.push(lambda kind, value, traceback: log.append(kind))
        x = x + len(a.name)
    with contextlib.ExitStack() as stack:
        stack.enter_context(Recorder(log, "c", KeyError))
        raise KeyError("swallowed")
    return x, log


@whole
def exit_stack_is_moved(x, y):
    log = []
    with contextlib.ExitStack() as stack:
        stack.callback(log.append, 1)
        kept = stack.pop_all()
    log.append("before")
    kept.close()
    return x + 1, log


class Base(contextlib.ContextDecorator):
    entered = 0

    def __enter__(self):
        type(self)
        return self

    def __exit__(self, *args):
        return False


@whole
def context_decorator_class(x, y):
    @Base()
    def work(z):
        return z * 2

    with Base() as base:
        return work(x), isinstance(base, Base)


class Abstract(contextlib.AbstractContextManager):
    def __exit__(self, *args):
        return None


@whole
def abstract_manager(x, y):
    with Abstract() as same:
        x = x + 1
    return x, type(same)


@whole
def redirecting(x, y):
    with contextlib.ExitStack() as outer, contextlib.ExitStack() as inner:
        inner.enter_context(outer)
        x = x + 1
    return x


@whole
def modes_and_exceptions(x, y):
    try:
        with torch.no_grad(), torch.enable_grad():
            raise KeyError
    except KeyError:
        before = torch.is_grad_enabled()
    with torch.no_grad():
        with contextlib.suppress(KeyError):
            with torch.enable_grad():
                raise KeyError
        inside = torch.is_grad_enabled()
    return x + 1, before, inside


test_program = TABLE.test()


def test_coverage():
    captured, total = TABLE.coverage
    assert total - captured <= 0
