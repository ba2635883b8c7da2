"""Signals that come, and forks that are made, while something is compiled."""

from __future__ import annotations

import _thread
import asyncio
import gc
import importlib
import os
import signal
import sys
import threading
import time
import weakref
from collections import Counter
from dataclasses import replace

import pytest
import torch

import ingot
from ingot import serial
from ingot.codegen.llvm import module, objects
from ingot.codegen.llvm.library import llvm
from ingot.codegen.llvm.target import host
from ingot.compiler import Compiler
from ingot.native import _native
from tests.interruptions import (
    Interruptions,
    differences,
    forks,
    fresh,
    how_it_ends,
    in_child,
    looped,
    outcome,
    signal_at_event,
    softmax,
    state,
    trains_in_children,
)

pytestmark = pytest.mark.own_objects

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
needs_signals = pytest.mark.skipif(not hasattr(signal, "SIGALRM"), reason="no such signals here")


@pytest.fixture(autouse=True)
def interrupts():
    """Ctrl-C as in a program: tests may have been started with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def handler_of():
    """Sets handlers of signals, for the test."""
    before = {}

    def put(number, handler):
        before.setdefault(number, signal.signal(number, handler))

    yield put
    for number, handler in before.items():
        signal.signal(number, handler)


def is_right(compiled=None, program=softmax, trains=True):
    """Whether a compiled program's results, and gradients where it trains, are eager's."""
    expected, actual = outcome(program, trains), outcome(compiled or fresh(program), trains)
    return all(torch.allclose(a, b, atol=1e-5) for a, b in zip(actual, expected, strict=True))


# -- signals -----------------------------------------------------------------------------------


def test_interruptions_at_random_times():
    runs = Interruptions(1, [softmax, looped])
    for _ in range(12):
        runs.one()
    assert runs.faults == [] and runs.outcomes["interrupted"] > 5


@pytest.mark.parametrize("count", [1, 2, 5, 11, 20, 30])
def test_right_behind_the_acquisition_of_llvmlites_lock(count):
    """Where llvmlite's own lock was lost: every compilation waited for it for ever."""
    left, ffi = [count], llvm().ffi

    def acquired():
        left[0] -= 1
        if left[0] == 0:
            signal.raise_signal(signal.SIGINT)

    callbacks = acquired, lambda: None
    ffi.register_lock_callback(*callbacks)
    try:
        compiled = fresh(softmax)
        with pytest.raises(KeyboardInterrupt):
            outcome(compiled, True)
    finally:
        ffi.unregister_lock_callback(*callbacks)
    free = []
    thread = threading.Thread(target=lambda: free.append(is_right()))
    thread.start()
    thread.join(60)
    assert free == [True] and is_right(compiled)


class TestFinalizing:
    """What a handler raises in a `__del__` is lost."""

    def test_a_signal_while_code_is_unloaded(self, monkeypatch):
        tracker, calls = llvm().orcjit.ResourceTracker, []
        dispose = tracker._dispose

        def interrupted(self):
            if not calls:
                calls.append("signal")
                signal.raise_signal(signal.SIGINT)
                calls.append("went on")
            dispose(self)

        compiled = fresh(softmax)
        outcome(compiled, False)
        monkeypatch.setattr(tracker, "_dispose", interrupted)
        with pytest.raises(KeyboardInterrupt):
            del compiled
            gc.collect()
            outcome(softmax, False)
        assert calls == ["signal", "went on"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    @pytest.mark.parametrize("compiles", [False, True])
    def test_many_at_once(self, compiles):
        """None is cut off, and the handler's exception is behind them, before anything is
        compiled."""
        calls = []

        class Counted:
            @_native.finalizing
            def __del__(self):
                calls.append(signal.raise_signal(signal.SIGINT))

        made = [Counted() for _ in range(50)]
        with pytest.raises(KeyboardInterrupt):
            made.clear()
            if compiles:
                outcome(fresh(softmax), True)
            raise AssertionError("went on")
        assert len(calls) == 50 and is_right()

    def test_functions_are_profiled(self):
        """A call that is pending all the time would keep a profiled function at its first line."""
        calls = []

        def noted():
            calls.append(len(calls))

        class Counted:
            @_native.finalizing
            def __del__(self):
                if not calls:
                    signal.raise_signal(signal.SIGINT)
                noted()

        made = [Counted() for _ in range(5)]
        sys.setprofile(lambda frame, event, arg: None)
        try:
            with pytest.raises(KeyboardInterrupt):
                made.clear()
                raise AssertionError("went on")
        finally:
            sys.setprofile(None)
        assert calls == [0, 1, 2, 3, 4]

    def test_an_error(self, monkeypatch):
        unraisable = []
        monkeypatch.setattr(sys, "unraisablehook", lambda given: unraisable.append(given.exc_value))

        class Fails:
            @_native.finalizing
            def __del__(self):
                raise KeyError("mine")

        made = Fails()
        with pytest.raises(KeyError, match="mine"):
            made.__del__()
        del made
        gc.collect()
        assert [str(error) for error in unraisable] == ["'mine'"]

    def test_handlers_are_in_place_behind_it(self):
        class Nothing:
            @_native.finalizing
            def __del__(self):
                pass

        for _ in range(100):
            made = Nothing()
            del made
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_another_thread_compiles_next(self):
        """The signals are the main thread's, which goes on waiting here."""
        thread, right = threading.Thread(target=lambda: right.append(is_right())), []

        class Counted:
            @_native.finalizing
            def __del__(self):
                signal.raise_signal(signal.SIGINT)
                thread.start()

        made = Counted()
        with pytest.raises(KeyboardInterrupt):
            del made
            raise AssertionError("went on")
        thread.join(60)
        assert right == [True] and signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_in_another_thread(self):
        calls = []

        class Counted:
            @_native.finalizing
            def __del__(self):
                calls.append(threading.current_thread())

        thread = threading.Thread(target=Counted)
        thread.start()
        thread.join()
        assert calls == [thread]


class TestLibraryLock:
    def test_it_takes_llvmlites_place(self):
        lib = llvm().ffi.lib
        assert type(lib._lock) is _native.LibraryLock
        assert all(function._lock is lib._lock for function in lib._fntab.values())

    def lock(self):
        inner, callbacks = threading.RLock(), []
        return inner, callbacks, _native.LibraryLock(inner, callbacks)

    def is_free(self, inner):
        found = []
        thread = threading.Thread(target=lambda: found.append(inner.acquire(blocking=False)))
        thread.start()
        thread.join()
        return found == [True]

    def test_callbacks(self):
        inner, _, lock = self.lock()
        calls = []
        lock.register(lambda: calls.append("acquired"), lambda: calls.append("released"))
        with lock:
            assert not self.is_free(inner) and calls == ["acquired"]
        assert calls == ["acquired", "released"] and self.is_free(inner)

    def test_a_callback_is_taken_away(self):
        _, callbacks, lock = self.lock()
        pair = (lambda: None, lambda: None)
        lock.register(*pair)
        lock.unregister(*pair)
        assert callbacks == []
        with pytest.raises(ValueError):
            lock.unregister(*pair)

    @pytest.mark.parametrize("which", [0, 1])
    def test_a_callback_raises(self, which):
        inner, _, lock = self.lock()

        def fails():
            raise OSError("callback")

        pair = [lambda: None, lambda: None]
        pair[which] = fails
        lock.register(*pair)
        with pytest.raises(OSError, match="callback"):
            with lock:
                pass
        assert self.is_free(inner)

    def test_an_error_in_the_block(self):
        inner, _, lock = self.lock()
        with pytest.raises(KeyError):
            with lock:
                raise KeyError
        assert self.is_free(inner)

    @needs_signals
    def test_signals_at_random_times(self):
        inner, _, lock = self.lock()
        interrupted = lost = 0
        gc.collect()  # what a handler raises in somebody's `__del__` is lost
        for k in range(200):
            timer = signal.setitimer
            before = signal.signal(signal.SIGALRM, raising(Alarm))
            try:
                timer(signal.ITIMER_REAL, 0.0002 + 0.000003 * k)
                take_for_a_minute(lock)
            except Alarm:
                interrupted += 1
            finally:
                timer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
            if inner._is_owned():
                inner.release()
                lost += 1
        assert interrupted == 200
        # CPython 3.14 runs handlers between `__enter__` and the block: half of them lose an RLock
        assert lost <= (10 if sys.version_info >= (3, 14) else 0)


def take_for_a_minute(lock):
    """Takes a lock again and again. It is a function since no `try` of CPython 3.13 covers the jump
    back of a loop."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for _ in range(100):
            with lock:
                pass
        # CPython 3.11 may forget that a signal waits until it takes its own lock again
        time.sleep(0)


class Alarm(Exception):
    """What a handler of the user's raises."""


def raising(error):
    def handler(number, frame):
        raise error

    return handler


@needs_signals
class TestHandlers:
    NUMBERS = ("SIGINT", "SIGALRM", "SIGTERM", "SIGUSR1", "SIGCHLD")

    @pytest.mark.parametrize("number", NUMBERS)
    @pytest.mark.parametrize(
        "error", [KeyboardInterrupt, TimeoutError, Alarm, SystemExit, ValueError]
    )
    def test_what_a_handler_raises_reaches_the_program(self, number, error, handler_of, caplog):
        """Though it is an Exception, as errors of Ingot's own and of a program are."""
        number, before = getattr(signal, number), state()
        handler_of(number, raising(error("mine")))
        for count in (300, 3000, 9000):
            compiled = fresh(softmax)
            with pytest.raises(error, match="mine") as raised:
                with signal_at_event(count, number):
                    outcome(compiled, True)
            assert type(raised.value) is error and "internal error" not in caplog.text
            assert is_right(compiled)
        before["SIGINT"] = signal.getsignal(signal.SIGINT)
        assert differences(before) == []

    @pytest.mark.parametrize("number", NUMBERS)
    def test_a_handler_that_raises_nothing(self, number, handler_of):
        """It is called once, in the main thread, and the compilation comes to its end."""
        calls, number = [], getattr(signal, number)
        handler_of(number, lambda *given: calls.append((given[0], threading.current_thread())))
        compiled = fresh(softmax)
        with signal_at_event(2000, number):
            assert is_right(compiled)
        assert calls == [(number, threading.main_thread())]
        assert Compiler.of(compiled).compilations[0].log.program is not None

    def test_a_handler_that_is_called_all_the_time(self, handler_of):
        """Compilation comes to its end though it is given up now and then."""
        calls = []
        handler_of(signal.SIGALRM, lambda *given: calls.append(1))
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        try:
            compiled = fresh(looped)
            assert is_right(compiled, looped)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        assert calls and Compiler.of(compiled).compilations[0].log.program is not None

    def test_a_handler_computes_with_tensors(self, handler_of, tmp_path):
        """As one that writes a checkpoint: in no mode of the compilation's."""
        weight, found = torch.arange(4.0), []

        def save(number, frame):
            torch.save({"w": weight * 2}, tmp_path / "saved")
            found.append(
                (type(weight + 1), torch.is_grad_enabled(), gc.isenabled(), differences(before))
            )

        handler_of(signal.SIGTERM, save)
        for count in (500, 2000, 5000):
            before = state()
            with signal_at_event(count, signal.SIGTERM):
                outcome(fresh(softmax), True)
            assert torch.equal(torch.load(tmp_path / "saved")["w"], weight * 2)
        assert found == [(torch.Tensor, True, True, [])] * 3

    def test_a_handler_compiles(self, handler_of):
        found = []
        handler_of(signal.SIGUSR1, lambda *given: found.append(is_right(program=looped)))
        for count in (200, 4000, 9000):
            with signal_at_event(count, signal.SIGUSR1):
                assert is_right()
        assert found == [True] * 3

    def test_several_signals(self, handler_of):
        """Those behind the one whose handler raises are not lost."""
        calls = []
        handler_of(signal.SIGTERM, lambda *given: calls.append("terminated"))

        def both(*given):
            calls.append("both")

        handler_of(signal.SIGUSR1, both)

        def backend(gm, inputs):
            return gm.forward

        original = _native.safe_point
        sent = []

        def sends():
            if not sent:
                sent.append(1)
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
                    signal.raise_signal(number)
            original()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("ingot.capture.interpreter.safe_point", sends)
            with pytest.raises(KeyboardInterrupt):
                ingot.compile(lambda x: x + 1)(torch.ones(2))
        for _ in range(100):
            pass
        assert sorted(calls) == ["both", "terminated"]

    def test_interrupt_main(self):
        """Which no handler of the system's sees."""
        original = _native.safe_point
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "ingot.capture.interpreter.safe_point",
                lambda: (_thread.interrupt_main(), original()),
            )
            with pytest.raises(KeyboardInterrupt):
                ingot.compile(softmax)(torch.ones(2, 2), torch.ones(2, 2))
        assert is_right()

    def test_an_event_loop_hears_of_a_signal_once(self):
        calls = []

        async def body():
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGUSR1, calls.append, 1)
            with signal_at_event(2000, signal.SIGUSR1):
                outcome(fresh(softmax), True)
            await asyncio.sleep(0.05)
            loop.remove_signal_handler(signal.SIGUSR1)

        asyncio.run(body())
        assert calls == [1]

    def test_backends_are_the_users(self, handler_of):
        """A backend finds the program's handlers, may set some, and is interrupted at once."""
        found = []

        def backend(gm, inputs):
            found.append(signal.getsignal(signal.SIGINT))
            handler_of(signal.SIGUSR2, raising(Alarm))
            signal.raise_signal(signal.SIGINT)
            found.append("not interrupted")

        with pytest.raises(KeyboardInterrupt):
            ingot.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
        assert found == [signal.default_int_handler]
        with pytest.raises(Alarm):
            signal.raise_signal(signal.SIGUSR2)

    def test_a_backend_compiles(self):
        def backend(gm, inputs):
            assert is_right()
            signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            ingot.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
        assert is_right()

    def test_what_a_compilation_shows_as_handler_stands_for_the_users(self):
        """Whoever asks for the handler meanwhile, and sets it later on, has the user's."""
        found = []

        @serial.serial
        def work():
            found.append(signal.getsignal(signal.SIGINT))

        work()
        assert found[0] is not signal.default_int_handler
        signal.signal(signal.SIGINT, found[0])
        for _ in range(2):  # outside of compilations, and behind one
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            assert is_right()

    @pytest.mark.parametrize("wait", [lambda: time.sleep(100), lambda: threading.Event().wait(100)])
    def test_what_is_stuck_is_interrupted_in_the_end(self, wait, handler_of):
        """Code of the user's may run anywhere in a compilation, and has no safe points."""
        handler_of(signal.SIGALRM, raising(Alarm))
        stuck = serial.serial(wait)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Alarm):
            stuck()
        assert signal.getsignal(signal.SIGALRM).__name__ == "handler" and is_right()

    def test_a_stuck_loop_is_interrupted_in_the_end(self):
        def spins():
            while True:
                pass

        timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            serial.serial(spins)()
        assert is_right()

    def test_while_another_thread_compiles(self):
        """One that waits for its turn is interrupted at once."""
        began, go_on = threading.Event(), threading.Event()

        @serial.serial
        def long():
            began.set()
            go_on.wait(60)

        thread = threading.Thread(target=long)
        thread.start()
        began.wait(60)
        timer = threading.Timer(0.05, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                is_right()
        finally:
            go_on.set()
            thread.join()
        assert is_right()

    def test_other_threads_have_nothing_to_do_with_signals(self):
        found = []

        @serial.serial
        def work():
            found.append(signal.getsignal(signal.SIGINT))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert found == [signal.default_int_handler]


def test_while_llvm_works(monkeypatch):
    """It is not waited for."""
    made, go_on = objects.optimized, threading.Event()
    monkeypatch.setattr(module, "chosen", lambda: replace(host(), short_text=0))

    def long(text, target, seconds):
        os.kill(os.getpid(), signal.SIGINT)
        go_on.wait(60)
        return made(text, target, seconds)

    monkeypatch.setattr(objects, "optimized", long)
    compiled = fresh(softmax)
    with pytest.raises(KeyboardInterrupt):
        outcome(compiled, False)
    assert not go_on.is_set()
    go_on.set()
    monkeypatch.undo()
    assert is_right(compiled)


def test_weak_references_are_forgotten_in_c():
    """What a signal's handler raises in a callback that is written in Python is lost."""
    table = {"other": None}
    callback = _native.forgetting(table)
    one, another = type("One", (), {})(), type("Another", (), {})()
    table["a"] = weakref.KeyedRef(one, callback, "a")
    replaced = table["b"] = weakref.KeyedRef(another, callback, "b")
    table["b"] = weakref.KeyedRef(one, callback, "b")
    del another
    assert replaced() is None and table.keys() == {"other", "a", "b"}  # "b" is another's by now
    del one
    assert table.keys() == {"other"} and not hasattr(callback, "__code__")


# -- forks -------------------------------------------------------------------------------------


@needs_fork
class TestForks:
    def test_forks_at_random_times(self):
        assert forks(12, seed=1) == Counter(ok=12)

    @pytest.mark.parametrize("where", ["LLVM", "locked LLVM"])
    def test_a_fork_waits_for_llvm(self, where):
        """Whose own locks would stay taken in the child."""
        inside, go_on, forked = threading.Event(), threading.Event(), []
        lock = objects._own_lock if where == "LLVM" else lambda: llvm().ffi.lib._lock
        trains = trains_in_children()

        def holds():
            with lock():
                inside.set()
                go_on.wait(60)
                forked.append("not yet")

        thread = threading.Thread(target=holds)
        thread.start()
        inside.wait(60)
        threading.Timer(0.2, go_on.set).start()
        assert in_child(lambda: is_right(trains=trains)) == "ok" and forked == ["not yet"]
        thread.join()

    def test_a_fork_waits_for_imports(self, tmp_path, monkeypatch):
        (tmp_path / "slow_module_of_a_test.py").write_text("import time; time.sleep(0.5); x = 3")
        monkeypatch.syspath_prepend(tmp_path)
        began = threading.Event()

        @serial.serial
        def work():
            began.set()
            importlib.import_module("slow_module_of_a_test")

        thread = threading.Thread(target=work)
        thread.start()
        began.wait(60)
        time.sleep(0.1)
        try:
            assert in_child(lambda: importlib.import_module("slow_module_of_a_test"), 20) == "ok"
        finally:
            thread.join()
            sys.modules.pop("slow_module_of_a_test", None)

    def test_another_thread_forks_while_the_main_one_compiles(self):
        """The child's main thread is the one that forked: its signals are handled, its garbage is
        collected."""
        found, trains = [], trains_in_children()

        def check():
            assert gc.isenabled() and signal.getsignal(signal.SIGINT) is signal.default_int_handler
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            assert is_right(trains=trains)

        @serial.serial
        def work():
            thread = threading.Thread(target=lambda: found.append(in_child(check)))
            thread.start()
            thread.join()

        work()
        assert found == ["ok"] and is_right()

    def test_a_fork_in_the_midst_of_a_compilation(self):
        """By the thread that compiles: both go on."""
        pids, trains = [], trains_in_children()

        def backend(gm, inputs):
            pids.append(os.fork())
            torch.set_num_threads(1 if pids == [0] else torch.get_num_threads())
            return gm.forward

        compiled = ingot.compile(lambda x: x * 2 + 1, backend=backend)
        status = 1
        try:
            right = torch.equal(compiled(torch.ones(3)), torch.full((3,), 3.0)) and is_right(
                trains=trains
            )
            status = 0 if right else 2
        finally:
            if pids == [0]:
                os._exit(status)
        assert status == 0 and how_it_ends(pids[0]) == "ok"
