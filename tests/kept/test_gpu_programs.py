"""Programs of GPUs are kept: what another process is given is what they launched here."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from ingot.codegen import loaded_kernels
from ingot.codegen.installed_triton import available
from ingot.codegen.loaded_kernels import Image, load_kernel
from ingot.kept.contents import count_of
from ingot.kept.description import packable
from ingot.kept.format import packed, unpacked
from ingot.kept.steps import CONSTANTS, OWNER, STEPS, Code, with_addresses
from ingot.runtime import gpu_description
from ingot.runtime.gpu_description import GpuDescription, load_form
from ingot.schedule.plan import KernelStep
from tests.kept.test_kinds import OF_A_GPU

if not available():
    pytest.skip("Triton is not installed", allow_module_level=True)

from ingot.codegen.triton import Gpu, compile_kernels
from tests.codegen.triton.interpreter import planned

HOPPER, DEVICE = Gpu("cuda", 90), torch.device("cuda", 0)


def several(x: Tensor, w: Tensor, *short: Tensor) -> Any:
    for tensor, step in zip(short[::2], short[1::2]):
        tensor.sub_(step * 0.1)
    return torch.softmax((x @ w).relu(), 1)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions that were loaded into a GPU, for which there are stand-ins."""
    functions: list[str] = []

    def load(image: bytes, function: str, shared: int, device: int) -> Any:
        assert function.encode() in image and device == 0
        functions.append(function)
        return function, hash(image), shared

    monkeypatch.setattr(loaded_kernels._native, "load_cuda", load)
    monkeypatch.setattr(gpu_description, "LASTING", {})
    return functions


@pytest.mark.parametrize("dynamic", [False, True])
def test_launches_are_those_of_the_process_that_kept_them(dynamic: bool, loaded: list[str]) -> None:
    """Of each kind of step; what no size at hand asked for is compiled when it is launched."""
    short = [torch.randn(n) for n in (3, 40, 500, 9, 77, 1000) for _ in range(2)]
    x, w = torch.randn(64, 32).bfloat16(), torch.randn(32, 48).bfloat16()
    plan = planned(several, x, w, *short, dynamic=dynamic)
    launches = [step for step in plan.steps if isinstance(step, KernelStep)]
    compiled = compile_kernels(launches, HOPPER)
    own = GpuDescription(plan, compiled, DEVICE, lasting=False).build()
    here = set(loaded)
    loaded.clear()

    row, code = unpacked(packed(packable(plan, compiled, DEVICE)))
    assert not loaded and count_of(code) == len(here)
    assert {kind for kind, *_ in row[STEPS]} >= OF_A_GPU
    launched = [load_kernel(Image(*image), 0, {}) for image in code[2]]
    assert set(loaded) == here

    def form(step: int, number: int) -> tuple[Any, ...]:
        kernel: Any = plan.steps[step].kernel
        return load_form(compiled.forms(kernel)[number], 0, {})

    meant = Code({}, launched, form)
    steps = [with_addresses(step, meant) for step in row[STEPS]]
    for mine, its in zip(steps, own[STEPS], strict=True):
        assert resolved(mine) == resolved(its)
    rest = set(range(len(own))) - {OWNER, STEPS, CONSTANTS}
    assert [row[k] for k in rest] == [own[k] for k in rest]


def resolved(value: Any) -> Any:
    """A part of a description, with kernels that are loaded later loaded now."""
    if isinstance(value, tuple):
        if value and isinstance(value[-1], functools.partial):
            value = (*value[:-1], *value[-1]())
        return tuple(map(resolved, value))
    return value
