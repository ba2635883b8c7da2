"""Kernels that worker processes translate are those that this process would make."""

from __future__ import annotations

import os
import sys
from itertools import count
from types import SimpleNamespace

import pytest
import torch

from ingot.codegen.triton import module, translation, workers
from ingot.codegen.triton.kernel import TritonKernel, write_kernel
from ingot.codegen.triton.module import Gpu, available, compile_kernels
from ingot.codegen.triton.translation import Text, translate
from ingot.codegen.triton.workers import Workers, how_many
from ingot.schedule.plan import KernelStep
from tests.codegen.triton.interpreter import planned

if not available():
    pytest.skip("Triton is not installed", allow_module_level=True)

HOPPER = Gpu("cuda", 90)


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
    with Workers(1) as translated:
        there = translated(asked)
    assert there.image and there == here


def test_a_worker_has_no_torch() -> None:
    """Its import takes longer than a kernel."""
    check = 'import sys\nassert "torch" not in sys.modules\n'
    asked = text()
    asked = asked._replace(source=check + asked.source)
    with pytest.raises(AssertionError):
        translate(asked)  # here it is
    with Workers(1) as translated:
        assert translated(asked).image


def test_errors_are_those_of_this_process() -> None:
    asked = text()
    asked = asked._replace(source=asked.source.replace("tl.store(", "tl.nothing("))
    with pytest.raises(Exception, match="nothing") as here:
        translate(asked)
    with Workers(1) as translated:
        with pytest.raises(type(here.value), match="nothing"):
            translated(asked)
        assert translated(text()).image  # it goes on


def test_a_worker_that_dies_is_done_without() -> None:
    with Workers(1) as translated:
        (child,) = translated._children
        child.kill()
        child.wait()
        assert translated(text()).image
        assert translated(text()).image


def test_no_worker_is_left() -> None:
    with Workers(2) as translated:
        children = list(translated._children)
        assert all(child.poll() is None for child in children)
    assert all(child.returncode is not None for child in children)


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
    with Workers(2) as translated:
        assert translated(text()).image
