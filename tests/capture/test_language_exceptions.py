"""PYTEST_DONT_REWRITE. Exceptions raised, caught, re-raised and chained, finally, and context
managers."""

# ruff: noqa  (the programs are written as users may write them)
from __future__ import annotations

import contextlib
import sys

import pytest
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


class Worse(Problem):
    level = 2


class Plain(ValueError):
    pass


class Keyed(KeyError):
    def __init__(self, name):
        self.name = name


# -- catching --------------------------------------------------------------------------------------


@whole
def catches_own_classes(x, y):
    seen = []
    for make in (
        lambda: Problem(1),
        lambda: Worse(2, "a", hint="h"),
        lambda: Plain("p", 3),
        lambda: Keyed("n"),
    ):
        try:
            raise make()
        except Worse as error:
            seen.append(("worse", error.code, error.hint, error.args, error.level, str(error)))
        except Problem as error:
            seen.append(("problem", error.code, error.args, str(error), isinstance(error, Problem)))
        except (ValueError, KeyError) as error:
            seen.append((type(error).__name__, error.args, str(error), repr(error)))
    return x + 1, seen


@whole
def raises_a_class(x, y):
    try:
        raise Plain
    except ValueError as error:
        return x + 1, error.args, str(error), type(error)


@whole
def catches_by_computed_classes(x, y):
    kinds = {"a": KeyError, "b": (IndexError, ZeroDivisionError)}
    seen = []
    for fail, kind in ((lambda: {}[1], "a"), (lambda: [][0], "b"), (lambda: 1 // 0, "b")):
        try:
            fail()
        except kinds[kind] as error:
            seen.append((type(error), error.args))
    return x, seen


@whole
def catches_what_is_not_an_exception(x, y):
    try:
        try:
            raise ValueError("v")
        except "nonsense":
            pass
    except TypeError as error:
        return x + 1, str(error)


@whole
def raises_what_is_not_an_exception(x, y):
    seen = []
    for value in (3, int, None, "text", x):
        try:
            raise value
        except TypeError as error:
            seen.append(str(error))
    try:
        raise ValueError("v") from 3
    except TypeError as error:
        seen.append(str(error))
    return x + 1, seen


@whole
def bare_except(x, y):
    try:
        raise BaseException("base")
    except:
        x = x + 1
    try:
        raise KeyboardInterrupt
    except Exception:
        x = x * 0
    except BaseException as error:
        return x, type(error)


@whole
def builtin_errors(x, y):
    acts = (
        lambda: 1 / 0, lambda: 1 % 0, lambda: 1.0 // 0, lambda: 2.0 ** 10000, lambda: 0.0 ** -1,
        lambda: [][0], lambda: {}["k"], lambda: int("z"), lambda: float("q"), lambda: "a" + 1,
        lambda: 1 + "a", lambda: [] + (), lambda: None + 1, lambda: -"a", lambda: ~1.5,
        lambda: 1 < "a", lambda: None < None, lambda: [1] < ["a"], lambda: len(3), lambda: iter(3),
        lambda: next(3), lambda: (1).nothing, lambda: "".nothing, lambda: [].nothing,
        lambda: None(), lambda: 3(), lambda: "a"(), lambda: abs("a"), lambda: sum(["a"]),
        lambda: max([]), lambda: chr(-1), lambda: ord("ab"), lambda: "%d" % "a",
        lambda: "{}".format(), lambda: "{a}".format(b=1), lambda: hash([]), lambda: {[]: 1},
        lambda: {()}.pop().x, lambda: set([[]]), lambda: (1, 2).index(3), lambda: [1].index(3),
        lambda: [1].remove(2), lambda: [].pop(), lambda: {}.pop("a"), lambda: {}.popitem(),
        lambda: set().pop(), lambda: {1}.remove(2), lambda: "abc".index("z"),
        lambda: range(3).index(7), lambda: 3 in 3, lambda: 3["a"], lambda: "abc"["a"],
        lambda: b"a" + "a", lambda: "a".join([1]), lambda: int([]), lambda: float(None),
        lambda: complex("a"), lambda: bytes(-1), lambda: round("a"), lambda: divmod(1, 0),
        lambda: pow(2, -1, 4), lambda: range(1, 2, 0), lambda: range(1.5), lambda: slice(),
        lambda: zip(3), lambda: sorted([1, "a"]), lambda: min(1), lambda: dict([1]),
        lambda: dict([(1, 2, 3)]), lambda: isinstance(1, 2), lambda: issubclass(1, int),
        lambda: getattr(1, "x"), lambda: getattr(1, 2), lambda: 1 << -1, lambda: 1.5 << 1,
        lambda: 1 @ 2, lambda: "a" * "b", lambda: [1] * 1.5, lambda: (1,) + [1],
        lambda: object() < object(), lambda: print.nothing, lambda: int.nothing,
        lambda: str(1, 2, 3, 4),
    )  # fmt: skip
    seen = []
    for act in acts:
        try:
            seen.append(act())
        except Exception as error:
            seen.append((type(error), error.args))
    return x + 1, seen


@whole
def call_errors(x, y):
    def f(a, b=1, /, c=2, *, d, e=3):
        return a

    def g(*args, **kwargs):
        return args

    def h():
        return 1

    def two(a, b):
        return a

    acts = (
        lambda: f(), lambda: f(1), lambda: f(1, d=1, z=2), lambda: f(1, 2, 3, 4, d=5),
        lambda: f(1, a=2, d=1), lambda: f(1, c=1, **{"c": 2}), lambda: h(1), lambda: h(1, 2),
        lambda: h(a=1), lambda: two(), lambda: two(1), lambda: two(1, 2, 3), lambda: two(1, a=1),
        lambda: two(b=1), lambda: g(**{1: 2}), lambda: g(*3), lambda: g(**3), lambda: f(1, 2, 3, 4),
        lambda: f(1, 2, b=3, d=1), lambda: (lambda a, *, k: a)(1),
        lambda: (lambda a, *, k, l: a)(1), lambda: (lambda a, b, c, d: a)(1), lambda: Problem(),
        lambda: Plain(a=1),
    )  # fmt: skip
    seen = []
    for act in acts:
        try:
            seen.append(act())
        except TypeError as error:
            seen.append(str(error))
    return x + 1, seen


@whole
def exception_attributes(x, y):
    error = Problem(3, "d", hint="h")
    error.extra = x
    try:
        raise error
    except Problem as caught:
        same = caught is error
        caught.args = (9, 8)
        caught.code += 1
        return (
            caught.extra + 1,
            same,
            caught.args,
            vars(caught).keys() >= {"code"},
            str(caught),
            repr(caught),
        )


@whole
def exception_notes(x, y):
    try:
        raise ValueError("v")
    except ValueError as error:
        error.add_note("first")
        error.add_note("second")
        return x + 1, error.__notes__


@whole
def exception_is_returned(x, y):
    try:
        raise Problem(1, hint=x)
    except Problem as error:
        return error, x + 1


@whole
def exceptions_are_values(x, y):
    errors = [
        ValueError("a"),
        KeyError("b", 2),
        Plain(),
        StopIteration(5),
        OSError(2, "no"),
        SystemExit(3),
    ]
    equal = errors[0] == ValueError("a"), errors[0] == errors[0]
    return (
        x + 1,
        errors,
        equal,
        [str(e) for e in errors],
        [repr(e) for e in errors],
        errors[3].value,
    )


@whole
def key_errors_quote(x, y):
    try:
        {"a": 1}["missing"]
    except KeyError as error:
        return x + 1, str(error), error.args, f"{error}", f"{error!r}", "%s" % error


# -- raising again, chains -------------------------------------------------------------------------


@whole
def reraises(x, y):
    seen = []

    def inner():
        try:
            raise Plain("p")
        except Plain:
            seen.append("inner")
            raise

    try:
        inner()
    except ValueError as error:
        seen.append(error.args)
    try:
        try:
            {}["k"]
        except KeyError as error:
            raise error
    except KeyError as again:
        seen.append(again.args)
    return x + 1, seen


@whole
def raises_from(x, y):
    try:
        try:
            raise KeyError("k")
        except KeyError as error:
            raise Plain("p") from error
    except Plain as chained:
        cause = chained.__cause__
        return x + 1, cause.args, cause is chained.__context__, chained.__suppress_context__


@whole
def raises_from_none(x, y):
    try:
        try:
            raise KeyError("k")
        except KeyError:
            raise Plain("p") from None
    except Plain as error:
        return x + 1, error.__cause__, error.__context__.args, error.__suppress_context__


@whole
def raises_from_class(x, y):
    try:
        raise Plain("p") from KeyError
    except Plain as error:
        return x + 1, type(error.__cause__), error.__cause__.args


@whole
def context_is_kept(x, y):
    try:
        try:
            try:
                1 / 0
            except ZeroDivisionError:
                [][1]
        except IndexError:
            raise Problem(5)
    except Problem as error:
        first = error.__context__
        return (
            x + 1,
            type(first),
            type(first.__context__),
            first.__context__.__context__,
            error.__cause__,
        )


@whole
def context_from_finally(x, y):
    try:
        try:
            raise ValueError("first")
        finally:
            raise KeyError("second")
    except KeyError as error:
        return x + 1, error.__context__, error


@whole
def context_across_calls(x, y):
    def handle():
        raise Plain("while handling")

    try:
        try:
            raise KeyError("k")
        except KeyError:
            handle()
    except Plain as error:
        found = error.__context__.args
    try:
        handle()
    except Plain as error:
        return x + 1, found, error.__context__


@whole
def context_of_the_same(x, y):
    error = Plain("one")
    try:
        try:
            raise error
        except Plain:
            raise error
    except Plain as caught:
        return x + 1, caught.__context__, caught is error


@whole
def handled_exception_ends_with_its_handler(x, y):
    try:
        raise Plain("one")
    except Plain:
        pass
    try:
        raise
    except RuntimeError as error:
        message = str(error), error.__context__
    try:
        raise KeyError
    except KeyError as error:
        return x + 1, message, error.__context__


@whole
def bare_raise_in_callee(x, y):
    def again():
        raise

    try:
        try:
            raise Plain("p")
        except Plain:
            again()
    except Plain as error:
        return x + 1, error.args


@whole
def nested_handlers_restore(x, y):
    order = []
    try:
        raise KeyError("outer")
    except KeyError:
        try:
            raise ValueError("inner")
        except ValueError as error:
            order.append(error.__context__.args)
        try:
            raise
        except KeyError as error:
            order.append(error.args)
    return x + 1, order


@whole
def sets_cause_by_hand(x, y):
    error = Plain("p")
    error.__cause__ = KeyError("c")
    try:
        raise error
    except Plain as caught:
        return (
            x + 1,
            caught.__cause__.args,
            caught.__suppress_context__,
            error.with_traceback(None) is error,
        )


@whole
def raised_and_lost(x, y):
    def work(fail):
        try:
            if fail:
                raise ValueError("lost")
            return x + 1
        except ValueError as error:
            return y + len(error.args[0])

    return work(False), work(True)


@whole
def escapes(x, y):
    try:
        raise KeyError("k")
    except KeyError as error:
        raise Problem(x.dim(), "details") from error


@whole
def escapes_from_nested_calls(x, y):
    def deeper(n):
        if n == 0:
            raise Plain("bottom", n)
        try:
            return deeper(n - 1)
        finally:
            x.sin()

    return deeper(3)


# -- finally ---------------------------------------------------------------------------------------


@whole
def finally_and_return(x, y):
    order = []

    def one():
        try:
            order.append("try")
            return x + 1
        finally:
            order.append("finally")

    def two():
        try:
            return 1
        finally:
            return 2

    def three():
        for i in range(3):
            try:
                continue
            finally:
                order.append(i)
        for i in range(3):
            try:
                break
            finally:
                order.append(-i)
        while True:
            try:
                raise ValueError
            finally:
                break
        return "done"

    def four():
        try:
            raise ValueError("gone")
        except KeyError:
            return "no"
        else:
            return "else"
        finally:
            order.append(sys.exc_info()[0] is None)
            return "swallowed"

    def five():
        value = 1
        try:
            return value
        finally:
            value = 2

    return one(), two(), three(), five(), order


@whole
def try_else(x, y):
    order = []
    for fail in (False, True):
        try:
            order.append("try")
            if fail:
                raise KeyError
        except KeyError:
            order.append("except")
        else:
            order.append("else")
            x = x + 1
        finally:
            order.append("finally")
    try:
        try:
            pass
        except ValueError:
            order.append("never")
        else:
            raise ValueError("from else")
    except ValueError as error:
        order.append(str(error))
    return x, order


@whole
def nested_finally(x, y):
    order = []
    try:
        try:
            try:
                raise KeyError("k")
            finally:
                order.append(1)
        finally:
            order.append(2)
            try:
                raise ValueError("inner")
            except ValueError:
                order.append(3)
    except KeyError as error:
        order.append(error.__context__)
    return x + 1, order


@broken("refuses these arguments")
def tensor_errors_are_caught(x, y):
    seen = []
    for act in (
        lambda: x.view(5, 5),
        lambda: x @ y,
        lambda: x + torch.ones(7),
        lambda: x.nothing,
        lambda: x[9],
    ):
        try:
            act()
        except (RuntimeError, AttributeError, IndexError) as error:
            seen.append(type(error))
    return x + 1, seen


# -- groups and tracebacks: not captured -----------------------------------------------------------


@broken("")
def exception_groups(x, y):
    seen = []
    try:
        raise ExceptionGroup(
            "group", [ValueError("a"), KeyError("b"), ExceptionGroup("sub", [Plain("c")])]
        )
    except* ValueError as group:
        seen.append([type(e) for e in group.exceptions])
    except* KeyError as group:
        seen.append(group.message)
    return x + 1, seen


@broken("")
def traceback_of_an_exception(x, y):
    try:
        raise Plain("p")
    except Plain as error:
        return x + 1, error.__traceback__ is not None, error.__traceback__.tb_frame.f_code.co_name


@whole
def exc_info(x, y):
    before = sys.exc_info()
    try:
        raise Plain("p")
    except Plain as error:
        kind, value = sys.exc_info()[:2]
        return x + 1, before, kind, value is error


@whole
def stop_iteration_is_an_exception(x, y):
    def give():
        raise StopIteration(7)

    try:
        give()
    except StopIteration as stop:
        found = stop.value
    try:
        next(iter([]))
    except StopIteration as stop:
        return x + 1, found, stop.value, stop.args


test_program = TABLE.test()


def test_coverage():
    captured, total = TABLE.coverage
    assert total - captured <= 3


@pytest.mark.parametrize("value, kind", [(0, ZeroDivisionError), ("a", TypeError), (2, None)])
def test_exception_depends_on_an_argument(value, kind):
    import ingot
    from ingot.compiler import Compiler

    def divide(x, by):
        try:
            return x * (6 // by)
        except TypeError as error:
            raise TypeError(f"no division: {error}") from error

    compiled = ingot.compile(divide, backend="eager")
    x = torch.ones(2)
    for _ in range(2):
        if kind is None:
            assert torch.equal(compiled(x, value), x * 3)
        else:
            with pytest.raises(kind) as found:
                compiled(x, value)
            with pytest.raises(kind) as expected:
                divide(x, value)
            assert str(found.value) == str(expected.value)
    assert len(Compiler.of(compiled).compilations) == 1
