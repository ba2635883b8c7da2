"""Callables in place of frames: results, exceptions, references; threads, forks, tracing."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import threading
import traceback
import types
import weakref

import pytest

from ingot.native import _native

from .frames import line_at
from .leaks import blocks_kept

NULL = _native.NULL


@contextlib.contextmanager
def active(handler=None):
    """This thread is active; the handler, if any, is asked about functions of this file."""
    here = __file__
    asked = handler and (
        lambda function: handler(function) if function.__code__.co_filename == here else None
    )
    before = _native.set_frame_handler(asked)
    _native.hook_enter()
    try:
        yield
    finally:
        _native.hook_leave()
        assert _native.set_frame_handler(before) is asked


@pytest.fixture(autouse=True)
def no_decisions():
    yield
    assert not _native.hook_active()
    _native.clear_code_entries()


@contextlib.contextmanager
def replaced(function, entry):
    _native.set_code_entry(function.__code__, entry)
    with active():
        yield


def add(a, b=1):
    return a + b


def every_kind(a, /, b, c=3, *rest, d, e=5, **named):
    return None


def no_parameters():
    return "original"


def returns_a_constant(x):
    x.append(1)


def never_returns(x):
    while True:
        x += 1


def only_raises(x):
    raise ValueError(x)


def cell_arguments(a, *, b):
    def inner():
        return a, b

    return inner


def recursive(n):
    return 0 if n == 0 else recursive(n - 1) + 1


def many(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t):  # noqa: E741
    return a


def seen_by(function, *args, **kwargs):
    """What an entry is called with."""
    seen = []
    with replaced(function, lambda *parameters: seen.append(parameters)):
        assert function(*args, **kwargs) is None
    (parameters,) = seen
    assert parameters[0] is function
    return parameters[1:]


def test_parameters_are_as_the_frame_has_them():
    assert seen_by(add, 1) == (1, 1) and seen_by(add, b=2, a=1) == (1, 2)
    assert seen_by(every_kind, 1, 2, d=4) == (1, 2, 3, 4, 5, (), {})
    assert seen_by(every_kind, 1, 2, 3, 4, 5, d=6, e=7, f=8) == (1, 2, 3, 6, 7, (4, 5), {"f": 8})
    assert seen_by(cell_arguments, 1, b=2) == (1, 2)
    assert seen_by(no_parameters) == () and seen_by(many, *range(20)) == tuple(range(20))
    assert seen_by(returns_a_constant, 7) == (7,) and seen_by(never_returns, 8) == (8,)


def test_results_and_exceptions_reach_the_caller():
    result = object()
    for function in (add, returns_a_constant, never_returns, only_raises):
        with replaced(function, lambda function, *args: result):
            assert function(1) is result and [function(2) for _ in range(3)] == [result] * 3
    error = KeyError("from the entry")

    def fails(function, *args):
        raise error

    with replaced(add, fails):
        try:
            add(1)
        except KeyError as caught:
            assert caught is error
    names = [entry.name for entry in traceback.extract_tb(error.__traceback__)]
    assert names == ["test_results_and_exceptions_reach_the_caller", "fails"]
    with replaced(add, fails), pytest.raises(KeyError):
        with contextlib.suppress(ValueError):
            add(1)


def test_entries_in_c():
    with replaced(add, max):  # which cannot compare a function with numbers
        with pytest.raises(TypeError):
            add(1, 2)
    with replaced(no_parameters, id):
        assert no_parameters() == id(no_parameters)


def test_the_frame_can_run_as_it_is():
    with replaced(add, lambda *_: NULL):
        assert add(1, 2) == 3
    _native.set_code_entry(add.__code__, None)
    with active(lambda function: pytest.fail("asked again")):
        assert add(1, 2) == 3


def test_only_while_active():
    _native.set_code_entry(add.__code__, lambda *_: "replaced")
    assert add(1) == 2
    with active():
        assert add(1) == "replaced"
        with active():
            assert add(1) == "replaced"
        assert add(1) == "replaced"
        _native.hook_pause()
        assert add(1) == 2 and not _native.hook_active()
        _native.hook_unpause()
        assert add(1) == "replaced" and _native.hook_active()
    assert add(1) == 2
    with pytest.raises(RuntimeError):
        _native.hook_leave()
    with pytest.raises(RuntimeError):
        _native.hook_unpause()


def test_the_handler_is_asked_once_for_each_code():
    asked = []

    def handler(function):
        asked.append(function)
        return {"add": lambda *_: "entry", "only_raises": None}.get(function.__name__, NULL)

    with active(handler):
        for _ in range(2):
            assert add(1) == "entry" and no_parameters() == "original"
            with pytest.raises(ValueError):
                only_raises(1)
    own = [function for function in asked if function in (add, only_raises, no_parameters)]
    assert own == [add, no_parameters, only_raises, no_parameters]
    assert (
        _native.code_entry(only_raises.__code__) is None
        and _native.code_entry(no_parameters.__code__) is NULL
    )
    _native.clear_code_entries()
    assert _native.code_entry(add.__code__) is NULL


def test_the_hook_is_off_in_the_handler_and_on_in_an_entry():
    active_then: list = []

    def handler(function):
        if function is recursive:
            active_then.append((_native.hook_active(), add(1)))

    def entry(function):
        active_then.append((_native.hook_active(), add(1)))
        return add(1)

    _native.set_code_entry(add.__code__, lambda *_: "replaced")
    _native.set_code_entry(no_parameters.__code__, entry)
    with active(handler):
        recursive(0)
        assert no_parameters() == "replaced"
    assert active_then == [(False, 2), (True, "replaced")]


def test_an_exception_in_the_handler():
    def handler(function):
        if function is add:
            raise KeyboardInterrupt
        return None

    with active(handler):
        with pytest.raises(KeyboardInterrupt):
            add(1)
        assert _native.hook_active()
    assert _native.code_entry(add.__code__) is NULL and add(1) == 2
    with (
        active(lambda function: 5 if function is add else None),
        pytest.raises(TypeError, match="not 5"),
    ):
        add(1)


def test_calls_of_every_sort():
    class Thing:
        def __init__(self, x):
            self.x = x

        def __getitem__(self, key):
            return key

        @property
        def twice(self):
            return 2 * self.x

        def method(self, y, *, z=1):
            return y

    replacements = {
        "__init__": lambda function, self, x: setattr(self, "x", x + 100),
        "__getitem__": lambda function, self, key: ("item", key),
        "twice": lambda function, self: ("twice", self.x),
        "method": lambda function, self, y, z: ("method", y, z),
        "<lambda>": lambda function, *args: ("lambda", *args),
    }

    def use(function):
        thing = Thing(1)
        return (
            thing.x,
            thing[2],
            thing.twice,
            thing.method(3),
            Thing.method(thing, 4, z=5),
            thing.method(*[6], **{"z": 7}),
            list(map(function, [8])),
            sorted([2, 1], key=function),
            function(9),
        )

    function = lambda x: x  # noqa: E731
    for name, entry in replacements.items():
        found = vars(Thing)[name] if name in vars(Thing) else function
        found = found.fget if isinstance(found, property) else found
        _native.set_code_entry(found.__code__, entry)
    with active():
        assert use(function) == (
            101,
            ("item", 2),
            ("twice", 101),
            ("method", 3, 1),
            ("method", 4, 5),
            ("method", 6, 7),
            [("lambda", 8)],
            [1, 2],
            ("lambda", 9),
        )


def test_generators_and_class_bodies_are_left_alone():
    def numbers(n):
        yield from range(n)

    async def answer():
        return 42

    asked = []
    with active(lambda function: asked.append(function.__name__)):
        assert list(numbers(3)) == [0, 1, 2]
        with pytest.raises(StopIteration, match="42"):
            answer().send(None)

        class Body:
            value = add(1)

        assert Body.value == 2 and eval("add(2)") == 3
    assert "add" in asked and not {"numbers", "answer", "Body", "<module>"} & set(asked)
    for function in (numbers, answer):
        with pytest.raises(ValueError):
            _native.set_code_entry(function.__code__, print)
    with pytest.raises(TypeError):
        _native.set_code_entry(add.__code__, "entry")
    with pytest.raises(TypeError):
        _native.set_code_entry(add, print)
    with pytest.raises(TypeError):
        _native.set_frame_handler(5)


def test_a_generator_that_is_active_in_the_middle():
    def numbers(n):
        for i in range(n):
            yield add(i)

    _native.set_code_entry(add.__code__, lambda function, a, b: -a)
    generator = numbers(4)
    assert next(generator) == 1
    with active():
        assert [next(generator), next(generator)] == [-1, -2]
        with pytest.raises(OSError):
            generator.throw(OSError)
    assert list(numbers(2)) == [1, 2]


def test_recursion():
    _native.set_code_entry(recursive.__code__, lambda function, n: n if n < 3 else NULL)
    with active():
        assert recursive(50) == 50
        with pytest.raises(RecursionError):
            recursive(100_000)
        assert recursive(50) == 50
    _native.set_code_entry(
        recursive.__code__, lambda function, n: 0 if n == 0 else recursive(n - 1) + 1
    )
    with active():
        assert recursive(50) == 50
        with pytest.raises(RecursionError):
            recursive(100_000)
        assert recursive(50) == 50
    with replaced(no_parameters, lambda function: function()):
        assert no_parameters() == "original"  # the innermost, which is nested too deeply


def test_very_deep_frames_are_not_looked_at():
    seen = []
    _native.set_code_entry(recursive.__code__, lambda function, n: seen.append(n) or NULL)
    with active():
        assert recursive(900) == 900 and 100 < len(seen) < 300
        assert seen == list(range(900, 900 - len(seen), -1))
        assert recursive(3) == 3 and seen[-4:] == [3, 2, 1, 0]


def test_calling_the_frame_from_its_entry():
    def entry(function, a, b):
        return "entry", _native.call_plain(function, a, b), other(a)

    def other(a):
        return "other"

    with replaced(add, entry):
        _native.set_code_entry(other.__code__, lambda function, a: "other's entry")
        assert add(1, 2) == ("entry", 3, "other's entry")
    with replaced(recursive, lambda function, n: _native.call_plain(function, n=n) + 1):
        assert recursive(5) == 5 + 6  # every level goes through the entry
    with pytest.raises(TypeError):
        _native.call_plain(recursive)
    with pytest.raises(TypeError):
        _native.call_plain(print)
    with replaced(recursive, lambda function, n: "entry"):
        assert recursive(1) == "entry"


def test_resumed_frames_are_left_alone_and_what_they_call_is_not():
    def outer(a):
        b = a
        return b, add(b)

    _native.set_code_entry(add.__code__, lambda function, a, b: "replaced")
    _native.set_code_entry(outer.__code__, lambda function, a: "outer replaced")
    with active():
        assert _native.resume(outer, line_at(outer, 2), (1, 2), ()) == (2, "replaced")
        assert outer(1) == "outer replaced"
        with pytest.raises(OSError):
            _native.resume(outer, line_at(outer, 2), (1, 2), (), OSError())


def counts(*objects):
    return [sys.getrefcount(one) for one in objects]


def test_no_reference_is_lost_or_kept():
    value, result, error = object(), object(), KeyError()

    def returns(function, *args):
        return result

    def fails(function, *args):
        raise error

    def handler(function):
        return None if function is only_raises else NULL

    functions = (add, every_kind, returns_a_constant, only_raises, cell_arguments)
    codes = tuple(function.__code__ for function in functions)

    def once():
        for entry in (returns, fails, lambda *_: NULL):
            for code in codes:
                _native.set_code_entry(code, entry)
            with active(handler):
                with contextlib.suppress(KeyError, TypeError):
                    add(value, value)
                with contextlib.suppress(KeyError):
                    every_kind(value, value, value, value, d=value, f=value)
                with contextlib.suppress(KeyError, AttributeError):
                    returns_a_constant(value)
                with contextlib.suppress(KeyError, ValueError):
                    only_raises(value)
                with contextlib.suppress(KeyError):
                    cell_arguments(value, b=value)
            _native.clear_code_entries()
            error.__traceback__ = error.__context__ = None

    watched = (value, result, error, returns, fails, handler, NULL, *functions, *codes)
    once()
    gc.collect()
    before = counts(*watched)
    for _ in range(300):
        once()
    gc.collect()
    assert counts(*watched) == before


@pytest.mark.parametrize(
    "entry", [lambda function, a, b: a, lambda function, a, b: NULL, lambda function, a, b: 1 / a]
)
def test_nothing_is_kept_over_many_calls(entry):
    def once():
        with contextlib.suppress(ZeroDivisionError):
            add(0, 0)

    with replaced(add, entry):
        assert blocks_kept(once, times=50_000) < 100


def test_entries_are_freed_with_their_code():
    class Entry:
        def __call__(self, function, *args):
            return "entry"

    names: dict = {}
    exec("def f(x): return x", names)
    function, entry = names.pop("f"), Entry()
    gone = weakref.ref(entry)
    with replaced(function, entry):
        assert function(1) == "entry"
    del entry
    assert gone() is not None
    del function
    assert gone() is None


def test_code_and_entries_that_die_while_they_run():
    names: dict = {}
    exec("def f(x): return x", names)
    function = names.pop("f")
    code = weakref.ref(function.__code__)

    def entry(function, x):
        nonlocal dropped
        dropped = None
        _native.clear_code_entries()
        return x + 1

    dropped = function
    _native.set_code_entry(function.__code__, entry)
    with active():
        call = [function]
        del function
        assert call.pop()(1) == 2
    gc.collect()
    assert code() is None and dropped is None


def test_arguments_die_when_the_frame_would_let_them_go():
    class Thing:
        def __del__(self):
            events.append(add(10))

    events: list = []
    with replaced(only_raises, lambda function, x: events.append("entry")):
        only_raises(Thing())
        events.append("after")
    assert events == ["entry", 11, "after"]


def test_threads():
    _native.set_code_entry(add.__code__, lambda function, a, b: a * 1000)
    wrong: list = []
    barrier = threading.Barrier(4)

    def work(seed):
        barrier.wait()
        for i in range(500):
            if i % 3 == seed % 3:
                with active_here():
                    if add(i) != i * 1000:
                        wrong.append(("replaced", i))
            elif add(i) != i + 1:
                wrong.append(("original", i))

    @contextlib.contextmanager
    def active_here():
        _native.hook_enter()
        try:
            yield
        finally:
            _native.hook_leave()

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
    assert not wrong and add(1) == 2


def test_other_threads_are_not_active():
    seen: list = []
    with replaced(add, lambda *_: "replaced"):
        thread = threading.Thread(target=lambda: seen.append(add(1)))
        thread.start()
        thread.join()
        assert add(1) == "replaced"
    assert seen == [2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
@pytest.mark.parametrize("parent_is_active", [True, False])
def test_fork(parent_is_active):
    _native.set_code_entry(add.__code__, lambda *_: "replaced")
    ready, done = threading.Event(), threading.Event()

    def another():
        with active():
            ready.set()
            done.wait()

    thread = threading.Thread(target=another)
    thread.start()
    ready.wait()
    with active() if parent_is_active else contextlib.nullcontext():
        child = os.fork()
        if child == 0:
            right = add(1) == ("replaced" if parent_is_active else 2)
            if parent_is_active:
                _native.hook_leave()
            right = right and add(1) == 2
            _native.hook_enter()
            right = right and add(1) == "replaced"
            _native.hook_leave()
            os._exit(0 if right and add(1) == 2 else 1)
    _, status = os.waitpid(child, 0)
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0


def test_tracing_and_profiling():
    events: list = []

    def trace(frame, event, arg):
        if frame.f_code in (add.__code__, no_parameters.__code__, caller.__code__):
            events.append((frame.f_code.co_name, event))
        return trace

    def caller():
        try:
            return add(1), no_parameters()
        except KeyError:
            return "error"

    def fails(*_):
        raise KeyError

    expected = [
        ("caller", "call"),
        ("no_parameters", "call"),
        ("no_parameters", "return"),
        ("caller", "return"),
    ]
    for start in (sys.settrace, sys.setprofile):
        for _ in range(2):
            for entry in (lambda *_: "replaced", fails):
                with replaced(add, entry):
                    events.clear()
                    start(trace)
                    try:
                        result = caller()
                    finally:
                        start(None)
                wanted = expected if result != "error" else [expected[0], expected[-1]]
                assert [pair for pair in events if pair[1] in ("call", "return")] == wanted
        assert caller() == (2, "original")


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in 3.12")
def test_monitoring():
    monitoring, events = sys.monitoring, sys.monitoring.events
    seen: list = []
    kinds = [
        events.PY_START,
        events.LINE,
        events.PY_RETURN,
        events.PY_UNWIND,
        events.INSTRUCTION,
        events.RAISE,
    ]
    monitoring.use_tool_id(4, "test")

    def fails(*_):
        raise KeyError

    try:
        for kind in kinds:
            monitoring.register_callback(
                4, kind, lambda code, *rest, kind=kind: seen.append((code, kind))
            )
        monitoring.set_events(4, sum(kinds))
        add(1)
        monitoring.set_events(4, 0)
        assert (add.__code__, events.PY_RETURN) in seen
        for entry in (lambda *_: "replaced", fails, lambda *_: "replaced"):
            seen.clear()
            monitoring.set_events(4, sum(kinds))
            with replaced(add, entry), contextlib.suppress(KeyError):
                assert add(1) == "replaced"
            monitoring.set_events(4, 0)  # or what follows would be seen as well
            assert seen and not [
                pair
                for pair in seen
                if pair[0] is add.__code__ or pair[0].co_filename == "<way out>"
            ]
    finally:
        monitoring.set_events(4, 0)
        monitoring.free_tool_id(4)
    assert add(1) == 2


def test_exit_while_active():
    program = """
import threading, sys
from ingot.native import _native
def f(x): return x
class Late:
    def __del__(self):
        f(1)
_native.set_frame_handler(lambda function: print if function is f else None)
_native.hook_enter()
late = Late()
late.itself = late
sys.modules["late"] = late
def wait():
    _native.hook_enter()
    f(1)
    ready.set()
    forever.wait()

thread = threading.Thread(target=wait, daemon=True)
ready, forever = threading.Event(), threading.Event()
_native.hook_pause()
thread.start()
ready.wait()
"""
    subprocess.run([sys.executable, "-X", "faulthandler", "-c", program], check=True, timeout=120)


def test_frames_are_what_they_were():
    """A frame that is replaced is not seen; those around it are."""

    def look(function, *args):
        frame = sys._getframe()
        return [frame.f_code.co_name, frame.f_back.f_code.co_name, frame.f_back.f_lineno]

    with replaced(add, look):
        found = add(1)
        line = sys._getframe().f_lineno - 1
    assert found == ["look", "test_frames_are_what_they_were", line]
    assert isinstance(sys._getframe(), types.FrameType)
