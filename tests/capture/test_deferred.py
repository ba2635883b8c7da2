"""Printing, warnings and logging in captured code: the same lines, records and places as in eager,
without a break."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import sys
import time
import warnings
from typing import Any

import pytest
import torch

import ingot
from ingot.compiler import Compiler
from tests.oracle import assert_same, outcome

X = torch.arange(6.0).reshape(2, 3)
log = logging.getLogger("tests.deferred")


class Named:
    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f"<{self.name}>"


class Box:
    def __init__(self) -> None:
        self.step = 0
        self.items: list = []


# -- print -----------------------------------------------------------------------------------------


def prints_texts(x, box):
    print("start", 1, 2.5, None, True, [1, "a"], (2,), {"k": {1}}, x.shape, x.dtype)
    print("a", "b", sep="-", end="!\n")
    print()
    print("to stderr", file=sys.stderr, flush=True)
    return x + 1


def prints_what_it_reads(x, box):
    print("step", box.step, f"{box.step:03d}", "%d" % box.step)  # noqa: UP031
    box.step += 1
    print(Named(f"step {box.step}"))
    return x * box.step


def prints_tensors(x, box):
    y = x + 1
    print(y, [x, y.sum()], {"mean": y.mean()})
    return y


def prints_tensors_that_are_written_later(x, box):
    y = x + 1
    print("before", y, x)
    y.add_(1)
    x.mul_(2)
    print("after", y, x)
    return y


def prints_lists_that_grow(x, box):
    made = [1]
    print(made, box.items)
    made.append(2)
    box.items.append(len(made))
    print(made, box.items)
    return x, made


def prints_in_helpers(x, box):
    def helper(n):
        print("helper", n)
        return x * n

    return sum([helper(n) for n in sorted([3, 1, 2], key=lambda n: print("key", n) or -n)])


def prints_to_a_redirected_stream(x, box):
    buffer = box.buffer
    with contextlib.redirect_stdout(buffer):
        print("hidden")
    print("shown")
    return x


def prints_formatted_tensors(x, box):
    y = x + 1
    print(f"mean {y.mean()} and {y.mean():.3f} of {y!s}{y.sum()!r:>20} {box.step}")
    y.add_(1)
    print(f"{y}", "%s %.2f" % (y, y.mean()), "{} {:.1f} {}".format(y, y.sum(), 1))  # noqa: UP030, UP031, UP032
    box.text = f"kept {y.mean():.2f}" + "!"
    return box.text, x


def prints_numbers(x, box):
    value = x.sum().item()
    print("value", value, f"{value:.3f}", "%5.1f" % value, (x > 1).sum().item())  # noqa: UP031
    return x + 1


PRINTS = [fn for name, fn in globals().items() if name.startswith("prints_")]


@pytest.mark.parametrize("fn", PRINTS, ids=lambda fn: fn.__name__)
def test_print(fn: Any, capsys: Any) -> None:
    compiled = ingot.compile(fn, fullgraph=True, backend="eager")
    ours, theirs = Box(), Box()
    ours.buffer, theirs.buffer = io.StringIO(), io.StringIO()  # type: ignore[attr-defined]
    for _ in range(3):
        with torch.no_grad():
            expected, wanted = outcome(fn, X.clone(), theirs), capsys.readouterr()
            actual, given = outcome(compiled, X.clone(), ours), capsys.readouterr()
        assert str(actual.result) == str(expected.result)
        assert_same(actual._replace(result=None), expected._replace(result=None))
        assert (given.out, given.err) == (wanted.out, wanted.err)
        assert ours.buffer.getvalue() == theirs.buffer.getvalue()  # type: ignore[attr-defined]
    assert fn is prints_to_a_redirected_stream or expected.output


def test_what_is_only_printed_is_not_guarded(capsys: Any) -> None:
    compiled = ingot.compile(
        lambda x, name, step: print(name, step) or x + 1, fullgraph=True, backend="eager"
    )
    for step in range(4):
        compiled(X, f"name {step}", step)
    assert capsys.readouterr().out == "".join(f"name {i} {i}\n" for i in range(4))
    assert len(Compiler.of(compiled).compilations) == 1


def test_the_stream_is_the_one_of_the_call(capsys: Any) -> None:
    compiled = ingot.compile(
        lambda x: print("line", file=sys.stderr) or x + 1, fullgraph=True, backend="eager"
    )
    for _ in range(2):
        buffer = io.StringIO()
        with contextlib.redirect_stderr(buffer):
            compiled(X)
        assert buffer.getvalue() == "line\n"
    assert len(Compiler.of(compiled).compilations) == 1


def test_an_exception_later_on_comes_after_what_was_printed(capsys: Any) -> None:
    def fn(x, box):
        print("before")
        box.step += 1
        if box.step:
            raise ValueError("late")
        return x

    compiled, box = ingot.compile(fn, backend="eager"), Box()
    for step in (1, 2):
        with pytest.raises(ValueError, match="late"):
            compiled(X, box)
        assert capsys.readouterr().out == "before\n" and box.step == step


# -- logging ---------------------------------------------------------------------------------------

adapter = logging.LoggerAdapter(log, {"who": "adapter"})


class Quiet(logging.Logger):
    def info(self, msg, *args, **kwargs):
        self.debug("quietly: " + msg, *args, **kwargs)


quiet = Quiet("tests.deferred.quiet", logging.DEBUG)
quiet.parent = log


def logs(x):
    log.info("info %s %d", "text", 3)
    log.warning("warning")
    log.debug("debug %s", x.shape)
    log.error("error", extra={"more": 1})
    log.log(logging.INFO, "by level")
    log.info({"a": 1})
    return x + 1


def logs_by_name(x):
    logging.getLogger("tests.deferred").info("found")
    logging.getLogger(__name__).info("%s", __name__)
    return x + 1


def logs_by_adapter(x):
    adapter.info("adapted %s", 1)
    return x + 1


def logs_by_a_subclass(x):
    quiet.info("overridden %d", 5)
    return x + 1


def logs_for_its_caller(x):
    def helper(n):
        log.info("helper %d", n, stacklevel=2)

    helper(1)
    helper(2)
    return x


def logs_if_enabled(x):
    if log.isEnabledFor(logging.DEBUG):
        log.debug("values %s", x.sum())
    return x * log.getEffectiveLevel()


def logs_tensors(x):
    log.info("sum %s and %s", x.sum(), [x.mean()])
    log.info(f"sum {x.sum():.2f}")
    log.info("item %.3f", x.sum().item())
    return x


LOGS = [fn for name, fn in globals().items() if name.startswith("logs")]


def record_of(record: logging.LogRecord) -> tuple[Any, ...]:
    shown = (
        record.name,
        record.levelno,
        record.getMessage(),
        record.pathname,
        record.lineno,
        record.funcName,
    )
    return (*shown, getattr(record, "more", None), getattr(record, "who", None))


@pytest.mark.parametrize("fn", LOGS, ids=lambda fn: fn.__name__)
def test_logging(fn: Any, caplog: Any) -> None:
    compiled = ingot.compile(fn, fullgraph=True, backend="eager")
    for level in (logging.DEBUG, logging.INFO, logging.ERROR, logging.DEBUG):
        with caplog.at_level(level, logger=log.name), torch.no_grad():
            caplog.clear()
            expected, wanted = fn(X), [record_of(record) for record in caplog.records]
            caplog.clear()
            actual, given = compiled(X), [record_of(record) for record in caplog.records]
            assert given == wanted and torch.equal(actual, expected)
            count = len(Compiler.of(compiled).compilations)
            compiled(X)
            assert len(Compiler.of(compiled).compilations) == count
    # which ask for the level themselves
    assert count == 1 or fn in (logs_if_enabled, logs_by_adapter)
    assert wanted


@functools.lru_cache(None)
def log_once(logger, *args):
    logger.warning(*args)


logging.Logger.tests_once = log_once  # type: ignore[attr-defined]


def shows_once(x):
    log.tests_once("once %d", 1)
    log_once(log, "twice")
    return x + 1


def test_what_is_cached_is_logged_once(caplog: Any) -> None:
    records = []
    for fn in (shows_once, ingot.compile(shows_once, fullgraph=True, backend="eager")):
        log_once.cache_clear()
        caplog.clear()
        for _ in range(3):
            fn(X)
        records.append([record_of(record) for record in caplog.records])
    assert records[0] == records[1] and len(records[0]) == 2


@pytest.mark.parametrize("size", [None, 2, 0])
def test_a_cached_function_runs_as_often_as_in_eager(size: int | None) -> None:
    scale, calls = [2], []

    @functools.lru_cache(size)
    def scaled(n):
        return n * scale[0]

    @functools.lru_cache(size)
    def noted(n):
        calls.append(n)
        return [n]

    def program(x, n):
        return x * scaled(n), scaled(n), noted(n), noted(n + 1)

    outcomes = []
    for fn in (program, ingot.compile(program, backend="eager")):
        results = []
        for step in (1, 1, 5, 1, 2, 1, 2):
            scale[0] += 1
            results.append(fn(X, step)[1:])
            if step == 5:
                scaled.cache_clear()
        outcomes.append((results, calls.copy(), scaled.cache_info().currsize))
        scaled.cache_clear()
        noted.cache_clear()
        calls.clear()
        scale[0] = 2
    assert outcomes[0] == outcomes[1]


@functools.lru_cache
def made(*key, **more):
    return {"key": key}


@functools.lru_cache(maxsize=None, typed=True)
def made_of_tensors(n):
    return torch.full((3,), float(n))


class Keeper(torch.nn.Module):
    @functools.lru_cache(4)  # noqa: B019
    def kept(self, n):
        return [n]

    def forward(self, x):
        return x + 1, self.kept(1), self.kept(n=1)


def test_filters_of_warnings_are_set_for_a_block() -> None:
    def quiet(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = x.sin()
        with warnings.catch_warnings(record=True) as caught:
            y = y + 1
        return y, caught

    compiled = ingot.compile(quiet, fullgraph=True)
    torch.testing.assert_close(compiled(X), quiet(X))
    before, show = list(warnings.filters), warnings.showwarning
    compiled(X)
    assert list(warnings.filters) == before and warnings.showwarning is show


@functools.lru_cache
def scaled(x, by=2):
    return x.sin() * by


class Scales:
    @functools.cache  # noqa: B019
    def of(self, x):
        return x * 3


def cached_tensors(x):
    y = x + 1
    first = scaled(y)
    y.add_(1)  # which the cache does not see
    same = scaled(y) is first
    scales = Scales()
    return first, same, scaled(y, by=3), scaled(scaled(y)), scales.of(y) is scales.of(y)


def test_a_cached_function_of_tensors_is_captured() -> None:
    compiled = ingot.compile(cached_tensors, fullgraph=True)
    for _ in range(2):
        found, expected = compiled(X), cached_tensors(X)
        assert found[1] and expected[1] and found[4] and expected[4]
        torch.testing.assert_close(found, expected)


def test_a_cached_object_is_the_same_one() -> None:
    def program(x):
        return x + 1, made(1, "a"), made(1, b=2), made(1, b=3), made(X.dtype)

    compiled = ingot.compile(program, fullgraph=True, backend="eager")
    for _ in range(3):
        assert all(a is b for a, b in zip(compiled(X)[1:], program(X)[1:], strict=True))
    keeper = Keeper()
    compiled = ingot.compile(keeper, fullgraph=True, backend="eager")
    for _ in range(3):
        assert all(a is b for a, b in zip(compiled(X)[1:], keeper(X)[1:], strict=True))
    compiled = ingot.compile(
        lambda x: (x + made_of_tensors(2), made_of_tensors(2), made_of_tensors(2.0))
    )
    for _ in range(3):
        found, whole, real = compiled(X[0, :3])
        assert (
            whole is made_of_tensors(2)
            and real is made_of_tensors(2.0)
            and torch.equal(found, X[0, :3] + 2)
        )
    count = len(Compiler.of(compiled).compilations)
    compiled(X[0, :3])
    assert len(Compiler.of(compiled).compilations) == count


def test_a_cached_function_that_changes_something_is_called() -> None:
    calls: list[int] = []

    @functools.cache
    def note(n):
        calls.append(n)
        return n * 2

    compiled = ingot.compile(lambda x: x * note(3), backend="eager")
    for _ in range(3):
        assert torch.equal(compiled(X), X * 6)
    assert calls == [3]


def test_a_cached_function_is_called_behind_writes_that_it_does_not_read() -> None:
    world = {"calls": 0, "scale": 3}

    def doubled(n):
        return n * 2

    def scaled(n):
        return n * world["scale"]

    for function, breaks in ((doubled, 0), (scaled, 1)):
        cached = functools.cache(function)

        def program(x, cached=cached):
            world["calls"] += 1
            world["scale"] = 5
            return x * cached(7)

        world["scale"] = 3
        compiled = ingot.compile(program, backend="eager")
        expected = X * (14 if breaks == 0 else 35)
        assert torch.equal(compiled(X), expected) and torch.equal(compiled(X), expected)
        assert cached.cache_info().currsize == 1
        report = Compiler.of(compiled).compilations
        assert sum(c.break_ is not None for c in report) == breaks
    assert world["calls"] == 4


@pytest.mark.parametrize("length", range(4))
def test_a_break_behind_a_cached_function_is_where_it_was_found(length: int) -> None:
    """The result is held when the capture starts over, which counts as many instructions all the
    same."""

    @functools.cache
    def cached(n):
        for i in range(length):
            n += i
        return n

    def numbers(x):
        yield x
        time.time()
        yield x + 1

    def program(x):
        number = cached(3)
        first, *others = numbers(x)
        return first * number, others, time.time() > 0, x + (number - 1)

    compiled = ingot.compile(program, backend="eager")
    assert str(compiled(X)) == str(program(X))
    compiler = Compiler.of(compiled)
    assert compiler is not None
    assert all(c.skipped is None for c in compiler.compilations)


# -- warnings --------------------------------------------------------------------------------------


def warns(x):
    warnings.warn("plain")  # noqa: B028
    warnings.warn("deprecated", DeprecationWarning)  # noqa: B028
    warnings.warn(UserWarning("made", 3))  # noqa: B028
    warnings.warn(f"shape {tuple(x.shape)}", category=FutureWarning, stacklevel=1)
    return x + 1


def warns_in_a_loop(x):
    for i in range(3):
        warnings.warn("the same")  # noqa: B028
        warnings.warn(f"another {i}")  # noqa: B028
    return x + 1


def warns_for_its_caller(x):
    def helper():
        warnings.warn("from the helper", stacklevel=2)

    helper()
    helper()
    return x


WARNS = [fn for name, fn in globals().items() if name.startswith("warns")]


def shown(caught: list[Any]) -> list[tuple[Any, ...]]:
    return [
        (w.category, str(w.message), getattr(w.message, "args", None), w.filename, w.lineno)
        for w in caught
    ]


@pytest.mark.parametrize("action", ["always", "default", "once", "ignore"])
@pytest.mark.parametrize("fn", WARNS, ids=lambda fn: fn.__name__)
def test_warnings(fn: Any, action: str) -> None:
    compiled = ingot.compile(fn, fullgraph=True, backend="eager")
    seen = []
    for run in (fn, compiled):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter(action)  # type: ignore[arg-type]
            globals().pop("__warningregistry__", None)
            for _ in range(3):
                run(X)
        seen.append(shown(caught))
    assert seen[0] == seen[1]
    assert bool(seen[0]) == (action != "ignore")


def test_warnings_that_are_errors() -> None:
    def fn(x):
        try:
            warnings.warn("raised")  # noqa: B028
        except UserWarning as error:
            return x * 2, str(error)
        return x, None

    compiled = ingot.compile(fn, backend="eager")
    for action in ("always", "error", "always", "error"):
        with warnings.catch_warnings(record=True):
            warnings.simplefilter(action)  # type: ignore[arg-type]
            assert str(compiled(X)) == str(fn(X))


@pytest.mark.parametrize("category", [UserWarning, DeprecationWarning, FutureWarning, Warning])
def test_warnings_of_which_some_are_errors(category: Any) -> None:
    """The graph is broken for those that are raised, and for no other."""

    def fn(x):
        try:
            warnings.warn("given", category)  # noqa: B028
        except Warning as error:
            return x * 2, type(error)
        return x, None

    compiled = ingot.compile(fn, backend="eager")
    for raised in (DeprecationWarning, RuntimeWarning, Warning):
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            warnings.filterwarnings("error", category=raised)
            assert str(compiled(X)) == str(fn(X))
    compiler = Compiler.of(compiled)
    assert compiler is not None
    breaks = [str(c.break_) for c in compiler.compilations if "raised as errors" in str(c.break_)]
    # that `Warning` is raised; a subclass that is raised as well has the same guards
    assert len(breaks) == 1


# -- texts that show tensors -----------------------------------------------------------------------


def text_is_kept_over_a_break(x):
    text = f"{x.mean():.2f}"
    x.add_(1)
    now = time.time() > 0
    return text, now, text + "!", len(text)


def text_is_looked_at(x):
    text = f"{x.sum():.1f}"
    return (
        text.startswith("1"),
        text == "15.0",
        text in ("15.0",),
        [*text],
        {text: x},
        int(float(text)),
    )


def text_of_a_wrong_format(x):
    try:
        return f"{x:.2f}"
    except TypeError as error:
        return str(error)


@pytest.mark.parametrize(
    "fn",
    [text_is_kept_over_a_break, text_is_looked_at, text_of_a_wrong_format],
    ids=lambda fn: fn.__name__,
)
def test_text(fn: Any) -> None:
    compiled = ingot.compile(fn, backend="eager")
    for _ in range(2):
        assert str(compiled(X.clone())) == str(fn(X.clone()))


def test_text_is_no_break() -> None:
    compiled = ingot.compile(lambda x: (f"{x.mean():.2f}", x + 1), fullgraph=True, backend="eager")
    assert compiled(X)[0] == "2.50"
    assert compiled(X * 2)[0] == "5.00"
    assert len(Compiler.of(compiled).compilations) == 1


# -- programs that change who sees what ------------------------------------------------------------


def quietens_warnings(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.warn("hidden", stacklevel=1)
    warnings.warn("shown", stacklevel=1)
    return x


def test_filters_that_are_changed() -> None:
    compiled = ingot.compile(quietens_warnings, backend="eager")
    for _ in range(3):
        seen = []
        for run in (quietens_warnings, compiled):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                run(X)
            seen.append(shown(caught))
        assert seen[0] == seen[1] and [text for _, text, *_ in seen[0]] == ["shown"]


def test_levels_that_are_changed(caplog: Any) -> None:
    def fn(x, level):
        before = log.level
        log.setLevel(level)
        log.info("at %d", level)
        enabled = log.isEnabledFor(logging.INFO)
        log.setLevel(before)
        return enabled, x

    compiled = ingot.compile(fn, backend="eager")
    for level in (logging.INFO, logging.ERROR, logging.INFO, logging.DEBUG):
        caplog.clear()
        expected, wanted = fn(X, level)[0], [record_of(record) for record in caplog.records]
        caplog.clear()
        assert compiled(X, level)[0] is expected
        assert [record_of(record) for record in caplog.records] == wanted
