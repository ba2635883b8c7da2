"""Frames begun in the middle: at every instruction of some programs, with and without an exception;
what they hold."""

from __future__ import annotations

import copy
import dis
import gc
import itertools
import pickle
import sys
import threading
import traceback
import types
import weakref

import pytest

from ingot.native import _native

from .frame_programs import PROGRAMS
from .frames import NULL, line_at, offset_of, outcome, raised_at, resume, slots_of, states
from .leaks import blocks_kept

# On 3.13 the traceback has the line of another instruction, if this one is by itself on its line in
# a `try` block and a single unit long. Of those only bare `raise` and `del` can really raise.
LONE = {"NOP", "RAISE_VARARGS", "DELETE_FAST"}


@pytest.mark.parametrize("fn", PROGRAMS)
def test_goes_on_from_every_instruction(fn):
    log: list = []
    expected = outcome(fn, lambda: fn(log), log)
    found = states(fn)
    assert len(found) > 30
    for state in found:
        assert resume(fn, state) == expected, state


@pytest.mark.parametrize("fn", PROGRAMS)
def test_an_exception_at_every_instruction(fn):
    opnames = {i.offset: i.opname for i in dis.get_instructions(fn)}
    for number, state in enumerate(states(fn)):
        got, expected = resume(fn, state, OSError("here")), raised_at(fn, number, OSError("here"))
        if sys.version_info >= (3, 13) and opnames[state.offset] in LONE:
            got, expected = got._replace(lines=()), expected._replace(lines=())
        assert got == expected, state


def scale(x, /, y=2, *rest, factor, offset=1, **named):
    total = x * factor
    total += y + offset + sum(rest) + sum(named.values())
    return total, locals()


def loop(n):
    total = 0
    for i in range(n):
        total += i
    return total


def counter(start):
    count = start

    def add(n):
        nonlocal count
        count += n
        return count

    return add


class Base:
    def name(self):
        return "base"


class Derived(Base):
    def name(self):
        prefix = "derived of "
        return prefix + super().name()


def fails(x):
    y = x
    raise ValueError(
        y,
    )


def deep(n):
    here = n
    return 0 if here == 0 else 1 + resume_deep(here - 1)


def resume_deep(n):
    return _native.resume(deep, line_at(deep, 2), (n, n), ())


def test_every_kind_of_parameter():
    slots = slots_of(scale, x=1, y=2, rest=(3, 4), factor=5, offset=6, named={"a": 7}, total=50)
    total, names = _native.resume(scale, line_at(scale, 2), slots, ())
    assert total == 50 + 2 + 6 + 7 + 7
    assert names == {
        "x": 1,
        "y": 2,
        "rest": (3, 4),
        "factor": 5,
        "offset": 6,
        "named": {"a": 7},
        "total": total,
    }


def test_the_middle_of_a_loop_with_its_iterator_on_the_stack():
    iterator = iter(range(7, 10))
    assert (
        _native.resume(loop, offset_of(loop, "FOR_ITER"), (10, 100, NULL), (iterator,))
        == 100 + 7 + 8 + 9
    )
    assert next(iterator, None) is None


def test_cells_are_the_ones_given():
    add = counter(10)
    (cell,) = add.__closure__
    assert _native.resume(add, line_at(add, 2), (5, cell), ()) == 15 == cell.cell_contents
    other = types.CellType(100)
    assert _native.resume(add, line_at(add, 2), (5, other), ()) == 105
    assert _native.resume(add, line_at(add, 2), (5, NULL), ()) == 20 == cell.cell_contents
    made = _native.resume(counter, line_at(counter, 8), (3, add, NULL), ())
    assert made is add


def test_super_and_globals():
    derived = Derived()
    name = Derived.name
    slots = slots_of(name, self=derived, prefix="a ", __class__=name.__closure__[0])
    assert _native.resume(name, line_at(name, 2), slots, ()) == "a base"


def test_an_exception_passes_with_its_own_line_and_keeps_what_it_had():
    cause, context = KeyError("cause"), KeyError("context")
    try:
        raise OSError("first") from cause
    except OSError as caught:
        error = caught
    error.__context__ = context
    before = error.__traceback__
    with pytest.raises(OSError) as raised:
        _native.resume(fails, offset_of(fails, "STORE_FAST"), (1, NULL), (1,), error)
    assert raised.value is error and error.__cause__ is cause and error.__context__ is context
    entries = traceback.extract_tb(error.__traceback__)
    assert [entry.name for entry in entries] == [entries[0].name, "fails", entries[0].name]
    assert entries[1].lineno == fails.__code__.co_firstlineno + 1
    last = error.__traceback__
    while last.tb_next is not None:
        last = last.tb_next
    assert last is before


def test_what_is_handled():
    def handling():
        try:
            raise KeyError
        except KeyError:
            return sys.exception()

    offset = line_at(handling, 4)
    inner, outer = ValueError("inner"), ValueError("outer")
    try:
        raise outer
    except ValueError:
        assert _native.resume(handling, offset, (), (None,), handled=inner) is inner
        assert sys.exception() is outer
        assert _native.resume(handling, offset, (), (None,)) is outer
        assert _native.resume(handling, offset, (), (None,), handled=None) is None
        assert sys.exception() is outer
    assert sys.exception() is None


def test_frames_within_frames():
    assert resume_deep(50) == 50


def test_the_frame_is_seen_where_it_stands():
    def look(a):
        b = a
        return sys._getframe(), b, dict(sys._getframe().f_locals), sys._getframe().f_lineno

    frame, b, names, line = _native.resume(look, line_at(look, 2), (1, 2), ())
    assert frame.f_code is look.__code__ and (b, names) == (2, {"a": 1, "b": 2})
    assert frame.f_back.f_code is test_the_frame_is_seen_where_it_stands.__code__
    assert line == look.__code__.co_firstlineno + 2


@pytest.mark.parametrize(
    "arguments, error",
    [
        ((loop, 1, (NULL,) * 3, ()), ValueError),
        ((loop, -2, (NULL,) * 3, ()), ValueError),
        ((loop, 10_000, (NULL,) * 3, ()), ValueError),
        ((loop, offset_of(loop, "LOAD_GLOBAL") + 2, (NULL,) * 3, ()), ValueError),
        ((loop, 0, (NULL,) * 2, ()), ValueError),
        ((loop, 0, (NULL,) * 3, (1,) * 50), ValueError),
        ((loop, 0, [NULL] * 3, ()), TypeError),
        ((loop, 0, (NULL,) * 3, (), "error"), TypeError),
        ((loop, 0, (NULL,) * 3, (), None, "handled"), TypeError),
        ((counter, offset_of(counter, "RESUME"), (1, NULL, "no cell"), ()), TypeError),
        ((counter, 0, (1, NULL, NULL), ()), ValueError),
        ((print, 0, (), ()), TypeError),
    ],
)
def test_what_does_not_fit_is_refused(arguments, error):
    with pytest.raises(error):
        _native.resume(*arguments)
    assert loop(3) == 3


def counts(*objects):
    return [sys.getrefcount(one) for one in objects]


def test_no_reference_is_lost_or_kept():
    value, error, cell = object(), ValueError(), types.CellType(object())
    offset, stored = line_at(fails, 2), offset_of(fails, "STORE_FAST")
    add = counter(0)
    start = line_at(add, 2)
    slots, stack = (value, value), (value,)

    def once():
        with pytest.raises(ValueError):
            _native.resume(fails, offset, slots, ())
        with pytest.raises(ValueError):
            _native.resume(fails, stored, slots, stack, error)
        with pytest.raises(TypeError):
            _native.resume(add, start, (value, cell), (), handled=error)
        with pytest.raises(ValueError):
            _native.resume(fails, 10_000, slots, stack)
        error.__traceback__ = error.__context__ = None
        assert (
            _native.resume(loop, offset_of(loop, "FOR_ITER"), (value, 0, value), (iter(()),)) == 0
        )

    watched = (
        value,
        error,
        cell,
        fails,
        fails.__code__,
        add,
        add.__code__,
        loop,
        loop.__code__,
        NULL,
        slots,
        stack,
    )
    once()
    gc.collect()
    before = counts(*watched)
    for _ in range(200):
        once()
    gc.collect()
    assert counts(*watched) == before


def test_nothing_is_kept_over_many_calls():
    offset = offset_of(loop, "RETURN_VALUE")
    numbers = itertools.count()

    def once():
        i = next(numbers)
        assert _native.resume(loop, offset, (i, i, NULL), (i,)) == i

    assert blocks_kept(once, times=50_000) < 100


def test_values_die_with_the_frame():
    class Thing:
        pass

    thing = Thing()
    gone = weakref.ref(thing)
    assert _native.resume(loop, line_at(loop, 4), (thing, 1, thing), ()) == 1
    del thing
    assert gone() is None


def test_a_collection_while_resuming_runs_no_finalizer_in_the_frame():
    class Finalized:
        def __init__(self):
            self.itself = self

        def __del__(self):
            seen.append(scale(1, factor=1)[0])

    seen: list = []
    slots = slots_of(scale, x=1, y=2, rest=(), factor=5, offset=6, named={}, total=50)
    offset = line_at(scale, 2)
    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(200):
            Finalized()
            assert _native.resume(scale, offset, slots, ())[0] == 58
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    assert seen == [4] * 200 and gc.isenabled()


def events_of(run):
    seen = []

    def trace(frame, event, arg):
        if frame.f_code in (loop.__code__, fails.__code__, counter.__code__):
            seen.append((event, frame.f_lineno - frame.f_code.co_firstlineno))
        return trace

    sys.settrace(trace)
    try:
        run()
    except ValueError:
        pass
    finally:
        sys.settrace(None)
    return seen


def test_tracing_sees_the_rest():
    loop(1)
    events_of(lambda: loop(1))
    offset = offset_of(loop, "FOR_ITER")
    seen = events_of(lambda: _native.resume(loop, offset, (2, 0, NULL), (iter([1]),)))
    assert (
        [event for event, _ in seen].count("call")
        == [event for event, _ in seen].count("return")
        <= 1
    )
    if sys.version_info < (3, 12):
        assert ("line", 3) in seen and ("return", 4) in seen
    seen = events_of(
        lambda: _native.resume(fails, offset_of(fails, "STORE_FAST"), (1, 1), (1,), ValueError())
    )
    assert (
        [event for event, _ in seen].count("call")
        == [event for event, _ in seen].count("return")
        <= 1
    )


def test_a_trace_function_that_raises():
    def trace(frame, event, arg):
        if frame.f_code is loop.__code__:
            raise KeyError(event)
        return trace

    offset = offset_of(loop, "FOR_ITER")
    sys.settrace(lambda *_: None)
    loop(1)  # instruments the code, where that is how it is done
    sys.settrace(trace)
    try:
        with pytest.raises(KeyError, match="call"):
            _native.resume(loop, offset, (2, 0, NULL), (iter([1]),))
    finally:
        sys.settrace(None)
    assert _native.resume(loop, offset, (2, 0, NULL), (iter([1]),)) == 1


def test_profiling():
    seen = []
    offset = offset_of(loop, "FOR_ITER")
    sys.setprofile(
        lambda frame, event, arg: seen.append(event) if frame.f_code is loop.__code__ else None
    )
    try:
        loop(1)
        _native.resume(loop, offset, (2, 0, NULL), (iter([1]),))
    finally:
        sys.setprofile(None)
    assert seen == ["call", "return"] * 2


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in 3.12")
def test_monitoring():
    monitoring = sys.monitoring
    seen = []
    events = monitoring.events
    monitoring.use_tool_id(4, "test")
    try:
        kinds = [
            events.PY_START,
            events.LINE,
            events.PY_RETURN,
            events.RAISE,
            events.PY_UNWIND,
            events.INSTRUCTION,
        ]
        for event in kinds:
            monitoring.register_callback(
                4, event, lambda *args, event=event: seen.append((event, args[0]))
            )
        monitoring.set_events(4, sum(kinds[:-1]))
        loop(1)
        before = seen.count((events.PY_RETURN, loop.__code__))
        assert _native.resume(loop, offset_of(loop, "FOR_ITER"), (2, 0, NULL), (iter([1]),)) == 1
        assert seen.count((events.PY_RETURN, loop.__code__)) == before + 1
        with pytest.raises(ValueError):
            _native.resume(fails, offset_of(fails, "STORE_FAST"), (1, 1), (1,), ValueError())
        assert (events.PY_UNWIND, fails.__code__) in seen
        monitoring.set_events(4, events.INSTRUCTION)
        assert _native.resume(loop, offset_of(loop, "FOR_ITER"), (2, 0, NULL), (iter([1]),)) == 1
    finally:
        monitoring.set_events(4, 0)
        monitoring.free_tool_id(4)
    assert _native.resume(loop, offset_of(loop, "FOR_ITER"), (2, 0, NULL), (iter([1]),)) == 1


def test_threads():
    offset = offset_of(loop, "FOR_ITER")
    wrong = []

    def work(seed):
        for i in range(2000):
            if _native.resume(loop, offset, (0, seed, NULL), (iter(range(i % 7)),)) != seed + sum(
                range(i % 7)
            ):
                wrong.append(i)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong


def test_null_is_one_object():
    assert (
        repr(NULL) == "NULL"
        and copy.deepcopy(NULL) is NULL
        and pickle.loads(pickle.dumps(NULL)) is NULL
    )
    with pytest.raises(TypeError):
        type(NULL)()
