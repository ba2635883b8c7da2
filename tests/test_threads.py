"""Compiled functions in several threads and processes."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time

import pytest
import torch

import ingot
from ingot.compiler import Compiler
from ingot.graph.meta import trials

THREADS = 8


def in_threads(work):
    """Runs `work(number)` in threads at once, without gradients; raises what any of them raised."""
    errors = []
    together = threading.Barrier(THREADS)

    def body(number):
        try:
            together.wait()
            with torch.no_grad():
                work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=body, args=(n,)) for n in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def chain(x, k):
    return torch.softmax(x.sin() * k + x, -1).sum(0), x * 2


def test_calling_and_compiling_at_once():
    compiled = ingot.compile(chain, dynamic=False)

    def work(number):
        for i in range(200):
            x = torch.randn(3 + (number + i) % 4, 4 + number)
            for ours, eagers in zip(compiled(x, 2.0), chain(x, 2.0), strict=True):
                torch.testing.assert_close(ours, eagers)

    in_threads(work)
    assert len(Compiler.of(compiled).compilations) == 4 * THREADS


def test_the_same_facts_are_compiled_once():
    compiled, x = ingot.compile(lambda x: x.exp() + x), torch.randn(13)
    in_threads(lambda number: compiled(x))
    assert len(Compiler.of(compiled).compilations) == 1


def test_modes_are_each_threads_own():
    weight = torch.randn(4, requires_grad=True)
    compiled = ingot.compile(lambda x: x * weight)

    def work(number):
        for _ in range(50):
            with torch.set_grad_enabled(number % 2 == 0):
                assert compiled(torch.ones(4)).requires_grad == (number % 2 == 0)

    in_threads(work)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
class TestFork:
    """A forked child runs what was compiled, and compiles, whatever the parent's threads were
    doing."""

    def child(self, work):
        """The exit status of a forked child that runs `work`; it may take 30 s."""
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                with torch.no_grad():
                    status = 0 if work() else 2
            finally:
                os._exit(status)
        for _ in range(300):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.1)
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        return "hung"

    @torch.no_grad()
    def test_compiled_before_and_after(self):
        compiled, x = ingot.compile(lambda x: torch.softmax(x.exp(), -1) + 1), torch.rand(500, 1000)
        expected = compiled(x)[0].clone()

        def work():
            fresh = ingot.compile(lambda x: x[:2].cos() * 2)
            return torch.equal(compiled(x)[0], expected) and fresh(x).shape == (2, 1000)

        assert self.child(work) == 0

    def test_while_another_thread_compiles(self):
        began, go_on = threading.Event(), threading.Event()

        def slow(gm, example_inputs):
            began.set()
            go_on.wait(60)
            return gm.forward

        compiled = ingot.compile(lambda x: x + 1, backend=slow)
        thread = threading.Thread(target=lambda: compiled(torch.ones(3)))
        thread.start()
        began.wait(60)
        try:
            assert self.child(lambda: ingot.compile(lambda x: x * 2)(torch.ones(3)).sum() == 6) == 0
        finally:
            go_on.set()
            thread.join()

    @torch.no_grad()
    def test_multiprocessing(self):
        compiled = ingot.compile(lambda x: x * 2 + 1)
        compiled(torch.ones(4))
        context = multiprocessing.get_context("fork")
        queue = context.Queue()

        def work():
            with torch.no_grad():
                queue.put(compiled(torch.ones(4)).tolist())

        process = context.Process(target=work)
        process.start()
        assert queue.get(timeout=30) == [3.0] * 4
        process.join(30)
        assert process.exitcode == 0


def test_compiling_leaves_another_threads_random_numbers_alone():
    torch.manual_seed(3)
    expected = [torch.rand(2) for _ in range(3000)]
    torch.manual_seed(3)
    drawn, together = [], threading.Barrier(2)

    def draw():
        together.wait()
        drawn.extend(torch.rand(2) for _ in range(3000))

    thread = threading.Thread(target=draw)
    thread.start()
    together.wait()
    with torch.no_grad():
        for n in range(3, 15):
            ingot.compile(lambda x: torch.softmax(x.sin() + torch.dropout(x, 0.5, False), -1))(
                torch.ones(n, n)
            )
    thread.join()
    assert all(map(torch.equal, drawn, expected))


def test_random_numbers_are_eagers_beside_another_thread(monkeypatch):
    """Where there are other threads, a compilation may not rewind the generator: trying out an op
    must draw nothing."""
    monkeypatch.setattr(trials, "_dtypes", {})

    def function(x):
        return (
            torch.rand(3),
            torch.randint(9, (3,)),
            torch.randperm(5),
            torch.rand_like(x),
            torch.dropout(x, 0.5, True),
        )

    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        torch.manual_seed(3)
        expected = function(torch.ones(7))
        torch.manual_seed(3)
        with torch.no_grad():
            actual = ingot.compile(function)(torch.ones(7))
    finally:
        done.set()
        thread.join()
    assert all(map(torch.equal, actual, expected))


def test_compiling_leaves_another_threads_modes_alone():
    """While some threads compile functions that switch modes, others see theirs unchanged."""
    stop, wrong = threading.Event(), []

    def watch():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            while not stop.is_set():
                modes = (
                    torch.is_grad_enabled(),
                    torch.is_autocast_enabled("cpu"),
                    torch.is_inference_mode_enabled(),
                )
                if modes != (True, True, False) or torch._C._len_torch_dispatch_stack():
                    wrong.append(modes)
                time.sleep(0.0002)

    def work(number):
        def switches(x):
            with torch.no_grad():
                y = x + number
            with torch.enable_grad():
                return y * 2

        for n in range(3):
            assert ingot.compile(switches)(torch.ones(n + 2)).sum() == (1 + number) * 2 * (n + 2)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        in_threads(work)
    finally:
        stop.set()
        watcher.join()
    assert wrong == []


def test_functions_with_graph_breaks():
    """Regions are compiled and run by all threads at once, and each goes on with its own state."""

    @ingot.disable
    def kept(x):
        return x.sum().item()

    def f(x, parts):
        y = x.sin() + len(parts)
        parts.append(kept(y))
        if y.sum() > 0:
            return y * parts[-1]
        return y - parts[-1]

    compiled = ingot.compile(f)

    def work(number):
        for i in range(40):
            x = torch.randn(3 + (number + i) % 3, 4)
            mine, theirs = [number], [number]
            torch.testing.assert_close(compiled(x, mine), f(x, theirs))
            assert len(mine) == len(theirs) == 2 and abs(mine[1] - theirs[1]) < 1e-5

    in_threads(work)


def test_custom_backends_and_gradients():
    weight = torch.randn(4, requires_grad=True)
    compiled = ingot.compile(lambda x: (x * weight).sin().sum(), backend="eager")

    def work(number):
        with torch.enable_grad():
            for i in range(50):
                x = torch.randn(2 + (number + i) % 5, 4)
                [grad] = torch.autograd.grad(compiled(x), weight)
                torch.testing.assert_close(grad, ((x * weight).cos() * x).sum(0))

    in_threads(work)


def test_forgetting_while_others_call():
    compiled = ingot.compile(chain)

    def work(number):
        for i in range(30):
            if number == 0 and i % 5 == 0:
                ingot.reset()
            x = torch.randn(3, 4 + i % 2)
            torch.testing.assert_close(compiled(x, 2.0), chain(x, 2.0))

    in_threads(work)


def many_kernels(x, image, i):
    """Kernels with scratch memory of each thread's own: transposed blocks, rows, parts of
    reductions, gathers."""
    turned = x.t().contiguous()
    rows = torch.nn.functional.layer_norm(turned * 2, (x.shape[0],)).softmax(-1)
    columns = (x * 3).softmax(0)
    places = image.permute(0, 2, 3, 1) + image.mean((2, 3))[:, None, None]
    parts = torch.stack((x.sum(), x.amax(), (x * x).mean(), image.std()))
    return (
        rows,
        columns,
        places.contiguous(),
        parts,
        x[i, 1:].argmax(1),
        torch.stack((x, x + 1), -1),
    )


def inputs_of_many_kernels(seed):
    made = torch.Generator().manual_seed(seed)
    x, image = torch.randn(517, 389, generator=made), torch.randn(3, 7, 65, 33, generator=made)
    return x, image, torch.randint(0, 517, (64,), generator=made)


def test_results_do_not_depend_on_the_number_of_threads():
    compiled, arguments, before = (
        ingot.compile(many_kernels),
        inputs_of_many_kernels(0),
        torch.get_num_threads(),
    )
    results = []
    try:
        for count in (1, 2, 3, 2):
            torch.set_num_threads(count)
            with torch.no_grad():
                results.append(compiled(*arguments))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(map(torch.equal, results[0], other))
    for ours, eagers in zip(results[0], many_kernels(*arguments), strict=True):
        torch.testing.assert_close(ours, eagers, rtol=1e-5, atol=1e-5)


def test_concurrent_calls_share_no_scratch_memory():
    compiled = ingot.compile(many_kernels)
    arguments = [inputs_of_many_kernels(seed) for seed in range(THREADS)]
    with torch.no_grad():
        expected = [compiled(*a) for a in arguments]

    def work(number):
        for _ in range(20):
            assert all(map(torch.equal, compiled(*arguments[number]), expected[number]))

    in_threads(work)
