"""Kernels that worker processes translate are those that this process would make."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from ingot.codegen.triton import module, translation, workers
from ingot.codegen.triton.kernel import TritonKernel, write_kernel
from ingot.codegen.triton.module import Gpu, available, begin_kernels, compile_kernels
from ingot.codegen.triton.translation import Text, Translated, translate
from ingot.codegen.triton.workers import LATER, SOON, Job, Workers, how_many
from ingot.schedule.plan import KernelStep
from tests.codegen.triton.interpreter import planned

if not available():
    pytest.skip("Triton is not installed", allow_module_level=True)

HOPPER = Gpu("cuda", 90)


def job(asked: Text) -> Job[Translated]:
    return Job(asked, lambda translated: translated, lambda: translate(asked))


@contextmanager
def working(processes: int) -> Iterator[Callable[[Text], Translated]]:
    """What some workers make of a text."""
    workers = Workers()

    def translated(asked: Text) -> Translated:
        wanted = job(asked)
        if not workers.take([wanted], 0):
            wanted.end(None)
        return wanted.result()

    with workers.held(processes):
        yield translated


def steps() -> list[KernelStep]:
    plan = planned(lambda x: (x.exp() / 3).sum(-1).sort()[0] // 7, torch.randn(40, 50))
    return [step for step in plan.steps if isinstance(step, KernelStep)]


def text() -> Text:
    return module._text(written(), HOPPER, ())


def written() -> TritonKernel:
    kernel = write_kernel(steps()[0].kernel)  # type: ignore[arg-type]
    assert isinstance(kernel, TritonKernel)
    return kernel


@pytest.mark.parametrize("target", [("cuda", 90, 32), ("hip", "gfx942", 64)], ids=str)
def test_workers_make_what_this_process_makes(
    target: tuple[str, int | str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(translation, "_files", count())  # as in a worker, which begins with 0
    asked = text()._replace(target=target)
    if target[0] == "hip":
        options = dict(asked.options)
        del options["enable_reflect_ftz"]
        asked = asked._replace(options=options)
    here = translate(asked)
    with working(1) as translated:
        there = translated(asked)
    assert there.image and there == here


def test_a_worker_has_no_torch() -> None:
    """Its import takes longer than a kernel."""
    check = 'import sys\nassert "torch" not in sys.modules\n'
    asked = text()
    asked = asked._replace(source=check + asked.source)
    with pytest.raises(AssertionError):
        translate(asked)  # here it is
    with working(1) as translated:
        assert translated(asked).image


def test_errors_are_those_of_this_process() -> None:
    asked = text()
    asked = asked._replace(source=asked.source.replace("tl.store(", "tl.nothing("))
    with pytest.raises(Exception, match="nothing") as here:
        translate(asked)
    with working(1) as translated:
        with pytest.raises(type(here.value), match="nothing"):
            translated(asked)
        assert translated(text()).image  # it goes on


def test_a_worker_that_dies_is_done_without() -> None:
    workers, asked = Workers(), [job(text()), job(text())]
    with workers.held(1):
        (child,) = workers._children
        child.kill()
        child.wait()
        assert workers.take(asked, 1)
        assert all(wanted.result().image for wanted in asked)
        assert workers.count == 0


def test_no_worker_is_left() -> None:
    workers = Workers()
    with workers.held(2):
        children = list(workers._children)
        assert all(child.poll() is None for child in children)
    assert workers.count == 0
    assert all(child.returncode is not None for child in children)


def test_workers_stay_until_the_last_job_is_done() -> None:
    workers, wanted = Workers(), job(text())
    with workers.held(1):
        (child,) = workers._children
        workers.take([wanted], 1)
        assert workers._children == [child]  # no other one is started
    assert wanted.result().image
    for thread in threading.enumerate():
        if thread.name == "ingot":
            thread.join(10)
    assert workers.count == 0 and child.returncode is not None


def test_who_stops_workers_does_their_jobs() -> None:
    workers, asked = Workers(), [job(text()) for _ in range(3)]
    with workers.held(1):
        workers.take(asked, 1)
        workers.stop()
        assert all(wanted.result().image for wanted in asked)
    assert workers.count == 0


class Fake:
    """A worker that does what it is let do, one job after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns, self.done = threading.Semaphore(0), list[str]()
        child = SimpleNamespace(kill=lambda: None, wait=lambda: None, stdin=open(os.devnull))
        child.stdout = child.stdin
        monkeypatch.setattr(workers, "_started", lambda: child)
        monkeypatch.setattr(workers, "_asked", self.asked)

    def asked(self, child: object, text: Text) -> list[Translated]:
        self.turns.acquire()
        self.done.append(text.name)
        return [Translated(b"", "", text.name, 0, 0)]

    def jobs(self, *names: str) -> list[Job[Translated]]:
        return [job(Text(name, "", {}, {}, [], 16, ("cuda", 90, 32), {})) for name in names]


def test_the_order_of_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody waits for comes behind all else, until somebody does."""
    fake, pool = Fake(monkeypatch), Workers()
    first, later, soon = fake.jobs("first"), fake.jobs("a", "b", "c"), fake.jobs("d", "e")
    with pool.held(1):
        pool.take(first, 1, SOON)
        while not first[0].is_begun:
            pass
        pool.take(later, 1, LATER)
        pool.take(soon, 1, SOON)
        pool.hurry(later[2:])
        for _ in range(6):
            fake.turns.release()
        for wanted in later:
            wanted.result()
    assert fake.done == ["first", "d", "e", "c", "a", "b"]


def test_a_fork_does_what_its_parents_workers_had_to() -> None:
    """It has neither their threads nor what these may have locked."""
    pool, asked = Workers(), [job(text()), job(text())]
    with pool.held(1):
        pool.take(asked, 1)
        pid = os.fork()
        if not pid:
            pool.renew()
            done = pool.count == 0 and all(wanted.result().image for wanted in asked)
            os._exit(not done)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert all(wanted.result().image for wanted in asked)


def test_kernels_that_are_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is made once, for whoever asks."""
    monkeypatch.setenv("INGOT_COMPILE_PROCESSES", "1")
    monkeypatch.setenv("INGOT_CACHE_DIR", "")
    monkeypatch.setattr(module, "_binaries", {})
    fake, pool = Fake(monkeypatch), Workers()
    monkeypatch.setattr(module, "WORKERS", pool)
    begun = begin_kernels(steps(), HOPPER, when=LATER)
    again = begin_kernels(steps(), HOPPER)
    assert not begun.is_done and not again.is_done
    for _ in range(2 * len(steps())):
        fake.turns.release()
    again.wait()
    begun.wait()
    assert begun.is_done and again.is_done and len(fake.done) == len(set(fake.done))
    for step in steps():
        assert begun.binary(step.kernel) is again.binary(step.kernel)  # type: ignore[arg-type]
    assert module._jobs == {}


def test_programs_are_translated_by_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    here = compile_kernels(steps(), HOPPER)
    monkeypatch.setenv("INGOT_COMPILE_PROCESSES", "2")
    monkeypatch.setenv("INGOT_CACHE_DIR", "")
    monkeypatch.setattr(module, "_binaries", {})
    monkeypatch.setattr(translation, "_run_stages", None)  # this process cannot
    there = compile_kernels(steps(), HOPPER)
    assert there.function_count == here.function_count > 0
    for step in steps():
        assert there.binary(step.kernel).function == here.binary(step.kernel).function  # type: ignore[arg-type]


def test_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(workers.VARIABLE, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    assert how_many(500) == workers.MOST and how_many(30) == workers.MOST
    assert how_many(workers.FEWEST_KERNELS - 1) == 0
    monkeypatch.setattr(sys, "executable", "/opt/editor/editor")
    assert how_many(500) == 0
    monkeypatch.setattr(sys, "executable", "/usr/bin/python3.13")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(2))
    assert how_many(500) == 0
    monkeypatch.setenv(workers.VARIABLE, "3")
    assert how_many(500) == 3 and how_many(2) == 2
    monkeypatch.setenv(workers.VARIABLE, "0")
    assert how_many(500) == 0


@pytest.mark.parametrize("error", [OSError("none left"), RuntimeError("not allowed")], ids=str)
def test_no_more_processes(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refused(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(workers, "subprocess", SimpleNamespace(Popen=refused, PIPE=0, DEVNULL=0))
    with working(2) as translated:
        assert translated(text()).image
