"""Programs whose outputs are large, and programs in several threads and processes."""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import pytest
import torch

from ingot.native import _native
from tests.native.test_program import const, launch, program, vector

LARGE = 3 << 20  # elements: 12 MB


class TestLargeOutputs:
    """Their memory is used again, but only when nobody can see it any more."""

    def run(self) -> Any:
        return program(
            [vector("input"), vector("output")],
            [("allocate", 1), launch("add_one", 0, 1)],
            [("buffer", 1)],
            expressions=(const(LARGE), const(1), const(0)),
        )

    def test_memory_is_used_again(self, allocation):
        run, x = self.run(), torch.zeros(LARGE)
        first = run(x)[0].data_ptr()
        assert allocation == "python" or sys.platform != "linux" or run(x)[0].data_ptr() == first
        y = run(x)[0]
        assert (
            y._base is None
            and y.is_leaf
            and y.untyped_storage().resizable()
            and y.resize_(LARGE + 1).shape == (LARGE + 1,)
        )

    @pytest.mark.parametrize(
        "keep",
        [
            lambda y: y,
            lambda y: y[5:7],
            lambda y: y.numpy(),
            lambda y: y.untyped_storage(),
            lambda y: y.detach(),
            lambda y: torch.utils.dlpack.to_dlpack(y),
            lambda y: memoryview(y.numpy()),
            lambda y: torch._lazy_clone(y),
        ],
        ids=["tensor", "view", "numpy", "storage", "detach", "dlpack", "memoryview", "lazy clone"],
    )
    def test_what_somebody_holds_is_never_overwritten(self, keep):
        run, x = self.run(), torch.zeros(LARGE)
        for _ in range(2):
            run(x)
        output = run(x)[0]
        pointer, kept = output.data_ptr(), keep(output)
        del output
        others = [run(x)[0] for _ in range(4)]
        lazily = isinstance(kept, torch.Tensor) and torch._C._is_cow_tensor(kept)
        assert lazily or all(y.data_ptr() != pointer for y in others)
        for y in others:
            y.fill_(7)
        if isinstance(kept, torch.Tensor):
            assert kept.max() == 1

    def test_memory_that_was_moved_is_not_used(self):
        run, x = self.run(), torch.zeros(LARGE)
        y = run(x)[0]
        y.untyped_storage().resize_(0)
        del y
        assert torch.equal(run(x)[0], x + 1)
        y = run(x)[0]
        shared = y.share_memory_().data_ptr()
        del y
        assert all(run(x)[0].data_ptr() != shared for _ in range(3))


class TestThreads:
    @pytest.fixture(autouse=True)
    def alone(self):
        """As many threads as there are, whatever else the machine does."""
        _native._watch_company(False)
        yield
        _native._watch_company(True)

    def test_threads_never_share_a_large_output(self):
        elements, wrong = 1 << 20, []
        run = program(
            [vector("input"), vector("output")],
            [("allocate", 1), launch("add_one", 0, 1)],
            [("buffer", 1)],
            expressions=(const(elements), const(1), const(0)),
        )

        def work(value: int) -> None:
            x = torch.full((elements,), float(value))
            for _ in range(30):
                y = run(x)[0]
                if not bool((y == value + 1).all()):
                    wrong.append(value)

        threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not wrong

    def test_two_threads_have_arenas_of_their_own(self):
        elements = 200_000
        run = program(
            [vector("input"), vector("arena", 2), vector("output")],
            [
                launch("add_one", 0, 1, work=100.0),
                ("allocate", 2),
                launch("double", 1, 2, work=100.0),
            ],
            [("buffer", 2)],
            expressions=(const(elements), const(1), const(0), const(4 * elements)),
            arena=3,
        )
        wrong: list[int] = []

        def work(value: int) -> None:
            x = torch.full((elements,), float(value))
            for _ in range(40):
                if not torch.equal(run(x)[0], (x + 1) * 2):
                    wrong.append(value)

        threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not wrong and not any(thread.is_alive() for thread in threads)

    def test_a_long_kernel_lets_other_threads_run(self):
        run = program(
            [vector("input")],
            [launch("wait", 0, work=1e6, errors=((IndexError, "nobody came"),), unit=8)],
            [],
        )
        x = torch.zeros(8)
        other = threading.Timer(0.05, x.fill_, (1,))
        other.start()
        assert run(x) == ()
        other.join()

    def shares(self, elements: int, unit: int, work: float) -> list[int]:
        run = program(
            [vector("input"), vector("output")],
            [("allocate", 1), launch("where_begun", 0, 1, unit=unit, work=work)],
            [("buffer", 1)],
            expressions=(const(elements), const(1), const(0)),
        )
        return run(torch.zeros(elements))[0].int().unique().tolist()

    def test_shares_are_whole_units(self):
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(3)
            assert self.shares(1000, 1, 22.0) == [0, 333, 666]  # whole: the work is short
            assert self.shares(1000, 1, 160.0) == [0, 167, 333, 500, 666, 833]
            begins = self.shares(1000, 16, 1e6)
            assert begins == [
                16 * unit for share in (0, 21, 42) for unit in range(share, share + 21, 2)
            ]
            assert self.shares(20, 16, 1e6) == [0, 16]
            assert self.shares(16, 16, 1e6) == [0]
            torch.set_num_threads(1)
            assert self.shares(1000, 1, 1e6) == [0]
        finally:
            torch.set_num_threads(before)

    def test_a_thread_that_is_done_takes_what_another_has_not_begun(self):
        """One waits in its first piece until the last piece of its share is done."""
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(2)
            run = program(
                [vector("input")],
                [launch("wait_for_others", 0, work=1e6, errors=((IndexError, "nobody came"),))],
                [],
                expressions=(const(64), const(1), const(0)),
            )
            x = torch.zeros(64)
            assert run(x) == () and x.tolist() == [1.0] * 64
        finally:
            torch.set_num_threads(before)

    def test_small_work_stays_on_the_calling_thread(self):
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(4)
            assert _native.threads_wanted(1000, 1, 2.9e3) == 1
            assert _native.threads_wanted(1000, 1, 4.6e3) == 3
            assert _native.threads_wanted(1000, 1, 1e9) == 4
        finally:
            torch.set_num_threads(before)

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
    @pytest.mark.filterwarnings("ignore::DeprecationWarning")
    def test_a_forked_child_computes(self):
        elements = 200_000
        run = program(
            [vector("input"), vector("output")],
            [("allocate", 1), launch("add_one", 0, 1, work=100.0)],
            [("buffer", 1)],
            expressions=(const(elements), const(1), const(0)),
        )
        x = torch.zeros(elements)
        run(x)
        child = os.fork()
        if child == 0:
            y = run(x)[0]
            os._exit(
                0
                if float(y.numpy().min()) == 1.0 and _native.threads_wanted(10**6, 1, 1e9) == 1
                else 1
            )
        assert os.waitpid(child, 0)[1] == 0
