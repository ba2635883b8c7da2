"""How launches of users' Triton kernels reach Triton, with a driver that notes them in the place of
a GPU. Kernels are compiled for one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import ingot
from ingot.codegen.triton.module import available
from tests.codegen.triton.interpreting import INTERPRETED

if not available() or INTERPRETED:
    pytest.skip("Triton is not installed, or interprets", allow_module_level=True)

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

from ingot.graph.kernel_writes import effects_of
from ingot.loops import launches
from tests import user_kernels
from tests.user_kernel_programs import PROGRAMS, TRAINING, draw

KERNELS = {
    "nested": [user_kernels.nested_kernel],
    "matmul": [user_kernels.matmul_kernel],
    "swiglu": [user_kernels.swiglu_kernel, user_kernels.swiglu_backward_kernel],
    "layer_norm": [user_kernels.layer_norm_kernel, user_kernels.layer_norm_backward_kernel],
    "total": [user_kernels.total_kernel.fn.fn],
    "transposed": [user_kernels.transpose_kernel],
}

SCALE: tl.constexpr = tl.constexpr(2)


@triton.jit
def scale_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offsets, mask=offsets < n)
    tl.store(out_ptr + offsets, x * SCALE, mask=offsets < n)


def place_of(argument: Any) -> Any:
    """The address of a tensor, and any other argument."""
    if isinstance(argument, torch.Tensor):
        return argument.data_ptr()
    return argument


class Launched:
    """Triton's launcher of a binary: notes the grid and the arguments."""

    seen: list[tuple[Any, ...]] = []

    def __init__(self, src: Any, metadata: Any) -> None:
        self.metadata = metadata

    def __call__(self, x: int, y: int, z: int, stream: int, function: int, *rest: Any) -> None:
        packed, metadata, enter, leave, *arguments = rest
        enter(metadata)
        leave(metadata)
        places = map(place_of, arguments)
        self.seen.append(((x, y, z), stream, function, *places))


class Driver:
    """A GPU's driver without a GPU."""

    launcher_cls = Launched

    def __init__(self) -> None:
        self.binaries = 0
        self.utils = SimpleNamespace(
            load_binary=self.load, get_device_properties=lambda device: {"max_shared_mem": 1 << 17}
        )

    def load(self, *_: Any) -> tuple[Any, ...]:
        self.binaries += 1
        return 0, self.binaries, 32, 0, 1024

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 7

    def get_benchmarker(self) -> Any:
        return lambda call, quantiles: call() or [1.0, 1.0, 1.0]

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Driver]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    fake = Driver()
    before = driver._active
    driver.set_active(fake)
    Launched.seen = []
    scale_kernel.device_caches.clear()
    yield fake
    scale_kernel.device_caches.clear()
    driver._active = before


def scaled(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    n = out.numel()
    scale_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n, BLOCK=64)
    return out


def runs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is launched by way of Triton's own `run`."""
    noted: list[Any] = []
    run = launches.Launch._run

    def noting(self: Any, operands: Any, grid: Any = None) -> Any:
        noted.append(operands)
        return run(self, operands, grid)

    monkeypatch.setattr(launches.Launch, "_run", noting)
    return noted


def test_a_binary_is_launched_as_triton_does(gpu: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = ingot.compile(scaled, fullgraph=True, dynamic=True)
    noted = runs(monkeypatch)
    memory = torch.zeros(4096)
    inputs = [memory[:256], memory[:256], memory[:512], memory[1:258], memory[3:4], memory[:768]]
    for x in inputs:
        scaled(x)
        compiled(x)
        eager, ours = Launched.seen[-2:]
        assert (eager[:4], eager[5:]) == (ours[:4], ours[5:])
    # equal specializations, whose size is 1 apart, are launched without Triton's look-up
    assert len(noted) < len(inputs)
    before = len(noted)
    compiled(memory[:1024])
    assert len(noted) == before and Launched.seen[-1][0] == (16, 1, 1)


ALIKE = """
    add_by_keywords add_heuristic total nested linear_both cast matmul_between read_behind_a_view
    scale_row_of_argument alike_components swiglu layer_norm
""".split()


@pytest.mark.parametrize("name", ALIKE)
def test_programs_launch_what_eager_launches(gpu: Driver, name: str) -> None:
    program = {**PROGRAMS, **TRAINING}[name]

    def launched(fn: Any) -> list[Any]:
        Launched.seen.clear()
        tensors = draw(program)
        for t in tensors:
            t.requires_grad_(name in TRAINING)
        result = fn(*tensors)
        if name in TRAINING:
            result.sum().backward()
        return list(map(without_addresses, Launched.seen))

    launched(program.fn)  # a kernel is tuned
    expected = launched(program.fn)
    for dynamic in (None, True):
        compiled = ingot.compile(program.fn, fullgraph=True, dynamic=dynamic)
        for _ in range(3):
            assert sorted(map(str, launched(compiled))) == sorted(map(str, expected))


def without_addresses(seen: tuple[Any, ...]) -> Any:
    return seen[0], *filter(is_no_address, seen[3:])


def is_no_address(argument: Any) -> bool:
    return not isinstance(argument, int) or argument < 1 << 24


def stored_in(ttir: str) -> set[str]:
    """The parameters that Triton's own IR of a kernel stores to, once calls are inlined."""
    first: dict[str, str] = {}
    pointers = set()
    for line in ttir.splitlines():
        for name, start in re.findall(r"(%\w+) = (%\w+)", line):  # of a loop
            first[name] = start
        if match := re.match(r"\s*(%\w+) = [\w.]+ (%\w+)", line):
            first[match[1]] = match[2]
        if match := re.search(r"tt\.(?:store|atomic_\w+)\b[^%]*(%\w+)", line):
            pointers.add(match[1])
    names = set()
    for pointer in pointers:
        while pointer in first:
            pointer = first[pointer]
        names.add(pointer.removeprefix("%"))
    return names


@pytest.mark.parametrize("name", KERNELS)
def test_what_a_kernel_writes_is_what_its_ir_stores_to(gpu: Driver, name: str) -> None:
    program = {**PROGRAMS, **TRAINING}[name]
    for kernel in KERNELS[name]:
        kernel.device_caches.clear()
    tensors = draw(program)
    for t in tensors:
        t.requires_grad_(name in TRAINING)
    result = program.fn(*tensors)
    if name in TRAINING:
        result.sum().backward()
    for kernel in KERNELS[name]:
        binaries = list(kernel.device_caches[0][0].values())
        assert binaries
        written = filter(is_pointer, effects_of(kernel).written)
        assert stored_in(binaries[0].asm["ttir"]) == set(written)


def is_pointer(name: str) -> bool:
    return name.endswith("_ptr")


def test_hooks_and_changed_globals_are_seen(gpu: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = ingot.compile(scaled, fullgraph=True)
    x, seen = torch.zeros(256), []
    compiled(x)
    compiled(x)
    triton.knobs.runtime.launch_enter_hook.add(seen.append)
    try:
        compiled(x)
    finally:
        triton.knobs.runtime.launch_enter_hook.remove(seen.append)
    assert len(seen) == 1 and seen[0].get()["name"] == "scale_kernel"
    scale_kernel.add_pre_run_hook(lambda *args, **kwargs: seen.append(args))
    try:
        compiled(x)
    finally:
        scale_kernel.pre_run_hooks.clear()
    assert len(seen) == 2
    monkeypatch.setitem(globals(), "SCALE", tl.constexpr(3))
    with pytest.raises(RuntimeError, match="SCALE has changed"):
        compiled(x)


def test_a_kernel_that_was_wrapped_outside(gpu: Driver) -> None:
    wrapper = torch.library.wrap_triton(scale_kernel)

    def program(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        wrapper[(4,)](x, out, x.numel(), 64)
        return out

    compiled = ingot.compile(program, fullgraph=True)
    compiled(torch.zeros(256))
    assert len(Launched.seen) == 1 and Launched.seen[0][0] == (4, 1, 1)


def test_what_a_launch_gives(gpu: Driver) -> None:
    def program(x: torch.Tensor, returns: bool) -> Any:
        binary = scale_kernel[(4,)](x, x, x.numel(), BLOCK=64)
        return binary if returns else x

    x = torch.zeros(256)
    assert ingot.compile(program, fullgraph=True)(x, False) is x
    with pytest.raises(ingot.GraphBreakError):
        ingot.compile(program, fullgraph=True)(x, True)
    Launched.seen.clear()
    assert type(ingot.compile(program)(x, True)).__name__ == "CompiledKernel"
    assert len(Launched.seen) == 1


def test_autotuned_kernels_keep_their_choice(gpu: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = [triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128}, num_warps=2)]
    tuned = triton.autotune(configs=configs, key=["n"])(scale_kernel)

    def program(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        tuned[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
        return out

    compiled = ingot.compile(program, fullgraph=True, dynamic=True)
    noted = runs(monkeypatch)
    memory = torch.zeros(4096)
    for count in (256, 512, 256, 512, 256):
        tuned.best_config = None
        compiled(memory[:count])
        block = tuned.best_config.kwargs["BLOCK"]
        assert Launched.seen[-1][0] == (count // block, 1, 1)
    assert len(noted) == 2
