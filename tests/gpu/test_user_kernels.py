"""Users' Triton kernels in compiled programs on the device, beside eager."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ingot
from ingot.codegen.triton.module import available

if not available() or not torch.cuda.is_available():
    pytest.skip("there is no NVIDIA GPU with Triton", allow_module_level=True)

import triton
import triton.language as tl

from ingot.loops import launches
from tests.user_kernel_programs import PROGRAMS, TRAINING, Kernels, add_between, draw, histogram
from tests.user_kernels import add_kernel, leaky_relu, multiply_kernel, scale_in_place_kernel

MODES: list[dict[str, Any]] = [{}, {"dynamic": True}, {"mode": "reduce-overhead"}]


def assert_same(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("options", MODES, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str, options: dict[str, Any]) -> None:
    """The first call has Triton choose a binary, later ones launch it again."""
    program = PROGRAMS[name]
    compiled = ingot.compile(program.fn, fullgraph=True, **options)
    for seed in range(4):
        ours, eagers = draw(program, "cuda", seed), draw(program, "cuda", seed)
        result = compiled(*ours)
        assert_same(result, program.fn(*eagers))
        assert_same(ours, eagers)


@pytest.mark.parametrize("options", MODES, ids=str)
@pytest.mark.parametrize("name", TRAINING)
def test_gradients(name: str, options: dict[str, Any]) -> None:
    program = TRAINING[name]
    compiled = ingot.compile(program.fn, fullgraph=True, **options)
    for seed in range(3):
        ours, eagers = draw(program, "cuda", seed), draw(program, "cuda", seed)
        for fn, tensors in ((compiled, ours), (program.fn, eagers)):
            for t in tensors:
                t.requires_grad_()
            fn(*tensors).cos().sum().backward()
        for ours_, eagers_ in zip(ours, eagers):
            torch.testing.assert_close(ours_.grad, eagers_.grad, rtol=1e-4, atol=1e-4)


CONFIGS = [
    triton.Config({"BLOCK_M": 32, "BLOCK_N": 32, "BLOCK_K": 32}, num_warps=2, num_stages=2),
    triton.Config({"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}, num_warps=4, num_stages=3),
    triton.Config({"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 32}, num_warps=8, num_stages=3),
]


@triton.autotune(configs=CONFIGS, key=["M", "N", "K"])
@triton.jit
def tuned_matmul_kernel(
    a_ptr, b_ptr, c_ptr, M, N, K,
    stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    ks = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rows[:, None] * stride_am + ks[None, :] * stride_ak
    b_ptrs = b_ptr + ks[:, None] * stride_bk + columns[None, :] * stride_bn
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        rest = K - k * BLOCK_K
        a = tl.load(a_ptrs, mask=(rows[:, None] < M) & (ks[None, :] < rest), other=0.0)
        b = tl.load(b_ptrs, mask=(ks[:, None] < rest) & (columns[None, :] < N), other=0.0)
        total += tl.dot(a, b)
        a_ptrs += BLOCK_K * stride_ak
        b_ptrs += BLOCK_K * stride_bk
    c = leaky_relu(total).to(c_ptr.dtype.element_ty)
    c_ptrs = c_ptr + rows[:, None] * stride_cm + columns[None, :] * stride_cn
    tl.store(c_ptrs, c, mask=(rows[:, None] < M) & (columns[None, :] < N))


def tuned_matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a = a * 2
    c = torch.empty((a.shape[0], b.shape[1]), device=a.device, dtype=a.dtype)

    def grid(meta):
        rows = triton.cdiv(a.shape[0], meta["BLOCK_M"])
        return rows, triton.cdiv(b.shape[1], meta["BLOCK_N"])

    tuned_matmul_kernel[grid](
        a, b, c, a.shape[0], b.shape[1], a.shape[1], *a.stride(), *b.stride(), *c.stride()
    )
    return c.sigmoid()


@pytest.mark.parametrize("options", MODES, ids=str)
def test_an_autotuned_product(options: dict[str, Any]) -> None:
    compiled = ingot.compile(tuned_matmul, fullgraph=True, **options)
    for rows in (128, 96, 128, 128):
        a = torch.randn(rows, 200, device="cuda", dtype=torch.float16)
        b = torch.randn(200, 130, device="cuda", dtype=torch.float16)
        for _ in range(2):
            # another configuration may add in another order
            torch.testing.assert_close(compiled(a, b), tuned_matmul(a, b), rtol=1e-2, atol=1e-2)


def test_integer_tensors() -> None:
    index = torch.randint(0, 10, (300,), device="cuda")
    compiled = ingot.compile(histogram, fullgraph=True)
    for _ in range(3):
        assert_same(compiled(index), histogram(index))


def test_numbers_that_vary() -> None:
    def program(x: torch.Tensor, n: int, scale: float, other: torch.Tensor) -> torch.Tensor:
        y = x * 1
        scale_in_place_kernel[(1,)](y, scale, n, BLOCK=32)
        scale_in_place_kernel[(1,)](y, other.item(), n, BLOCK=32)
        return y

    x = torch.randn(32, device="cuda")
    for options in ({}, {"mode": "reduce-overhead"}):
        compiled = ingot.compile(program, fullgraph=True, **options)
        for n, scale in ((5, 0.5), (6, 2.0), (7, -1.0), (16, 3.0), (32, 0.25)):
            other = torch.tensor(scale * 3, device="cuda")
            for _ in range(2):
                assert_same(compiled(x, n, scale, other), program(x, n, scale, other))


def test_a_launch_on_the_device_of_a_tensor() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        blocks = torch.cuda.get_device_properties(x.device).multi_processor_count
        with torch.cuda.device(x.device):
            add_kernel[(blocks,)](x, x, out, x.numel(), BLOCK_SIZE=128)
        with torch.cuda.device_of(x):
            add_kernel[(blocks,)](out, x, out, x.numel(), BLOCK_SIZE=128)
        return out * 2

    compiled = ingot.compile(program, fullgraph=True)
    x = torch.randn(1000, device="cuda")
    for _ in range(3):
        assert_same(compiled(x), program(x))


def test_a_module() -> None:
    module = Kernels().cuda()
    compiled = ingot.compile(module, fullgraph=True)
    x = torch.randn(300, device="cuda")
    for _ in range(3):
        assert_same(compiled(x), module(x))


def test_a_binary_belongs_to_the_alignment() -> None:
    """Kernels that are compiled for aligned pointers fail on others."""
    compiled = ingot.compile(add_between, fullgraph=True, dynamic=True)
    memory = torch.randn(4096, device="cuda")
    for begin, end in ((0, 256), (0, 512), (1, 257), (1, 256), (4, 260), (0, 255), (3, 4)):
        x, y = memory[begin:end], memory[: end - begin].clone()
        for _ in range(2):
            assert_same(compiled(x, y), add_between(x, y))


def test_a_launch_goes_to_the_current_stream() -> None:
    compiled = ingot.compile(add_between, fullgraph=True)
    x = torch.randn(1 << 20, device="cuda")
    expected = add_between(x, x)
    compiled(x, x)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            result = compiled(x, x)
    torch.cuda.current_stream().wait_stream(stream)
    assert_same(result, expected)


def test_a_user_records_a_compiled_launch() -> None:
    compiled = ingot.compile(add_between, fullgraph=True)
    x = torch.randn(1000, device="cuda")
    for _ in range(3):
        compiled(x, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = compiled(x, x)
    x.copy_(torch.randn(1000, device="cuda"))
    graph.replay()
    assert_same(result, add_between(x, x))


def test_ops_made_of_kernels() -> None:
    @torch.library.triton_op("ingot_gpu::product", mutates_args=())
    def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out, n = torch.empty_like(x), x.numel()
        torch.library.wrap_triton(multiply_kernel)[(triton.cdiv(n, 64),)](x, y, out, n, 64)
        return out

    @torch.library.custom_op("ingot_gpu::add_to", mutates_args=("out",))
    def add_to(x: torch.Tensor, out: torch.Tensor) -> None:
        add_kernel[(triton.cdiv(x.numel(), 64),)](x, out, out, x.numel(), BLOCK_SIZE=64)

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = product(x * 2, y)
        add_to(x, z)
        return z.sin()

    compiled = ingot.compile(program, fullgraph=True)
    x, y = torch.randn(2, 300, device="cuda").unbind()
    for _ in range(3):
        assert_same(compiled(x, y), program(x, y))


def test_a_tensor_on_the_cpu_is_eagers_error() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        add_kernel[(1,)](x, y, out, x.numel(), BLOCK_SIZE=64)
        return out

    x = torch.ones(3, device="cuda")
    for fn in (program, ingot.compile(program)):
        with pytest.raises(ValueError, match="cpu tensor"):
            fn(x, torch.ones(3))
        assert_same(fn(x, x), x + x)


def ops_of_both_sides(name: str) -> tuple[Any, Any, Any, Any]:
    """Ops that are given a tensor of the GPU's and one of the CPU's."""

    def scaled(x: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
        assert x.is_cuda and by.is_cpu
        return x * by.sum().item()

    def scale(x: torch.Tensor, by: torch.Tensor) -> None:
        assert x.is_cuda and by.is_cpu
        x.mul_(by.sum().item())

    def note(x: torch.Tensor, by: torch.Tensor) -> None:
        assert x.is_cuda and by.is_cpu
        by.add_(x.sum().cpu())

    def both(x: torch.Tensor, by: torch.Tensor) -> None:
        assert x.is_cuda and by.is_cpu
        x.add_(1)
        by.add_(1)

    scaled = torch.library.custom_op(f"ingot_gpu::{name}_scaled", scaled, mutates_args=())
    scaled.register_fake(lambda x, by: torch.empty_like(x))
    scale = torch.library.custom_op(f"ingot_gpu::{name}_scale", scale, mutates_args=("x",))
    note = torch.library.custom_op(f"ingot_gpu::{name}_note", note, mutates_args=("by",))
    both = torch.library.custom_op(f"ingot_gpu::{name}_both", both, mutates_args=("x", "by"))
    return scaled, scale, note, both


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("kind", ["scaled", "scale", "note", "both", "all"])
def test_ops_of_both_sides(kind: str, shape: tuple[int, ...]) -> None:
    scaled, scale, note, both = ops_of_both_sides(f"{kind}_{'x'.join(map(str, shape))}")

    def program(x: torch.Tensor, by: torch.Tensor) -> Any:
        y = x + 1
        if kind in ("scaled", "all"):
            y = scaled(y * 2, by)
        if kind in ("scale", "all"):
            scale(y, by)
        if kind in ("note", "all"):
            note(y, by)
        if kind in ("both", "all"):
            both(y, by)
        return y.sin(), by.to("cuda") * 2

    compiled, x, by = ingot.compile(program), torch.randn(300, device="cuda"), torch.ones(shape)
    for _ in range(3):
        ours, eagers = by.clone(), by.clone()
        assert_same(compiled(x, ours), program(x, eagers))
        assert_same(ours, eagers)


def microseconds(fn: Callable[[], Any]) -> float:
    """The time in which the host gets done with a call, the least of several."""
    least = float("inf")
    for _ in range(7):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(200):
            fn()
        least = min(least, time.perf_counter() - start)
    return least / 200 * 1e6


def test_a_launch_is_no_slower_than_eagers(capsys: pytest.CaptureFixture[str]) -> None:
    x, y = torch.randn(2, 300, device="cuda").unbind()
    compiled = ingot.compile(add_between, fullgraph=True)
    out = torch.empty_like(x)
    operands = (launches.Operand(1), launches.Operand(2), launches.Operand(0), 300)
    launch = launches.Launch(add_kernel, operands, {"BLOCK_SIZE": 128}, (3,), 3)
    times = {}
    for name, fn in {
        "launch in eager": lambda: add_kernel[(3,)](x, y, out, 300, BLOCK_SIZE=128),
        "launch by Ingot": lambda: launch(out, x, y),
        "program in eager": lambda: add_between(x, y),
        "program by Ingot": lambda: compiled(x, y),
    }.items():
        fn()
        fn()
        times[name] = microseconds(fn)
    with capsys.disabled():
        print()
        for name, time_ in times.items():
            print(f"{name}: {time_:.1f} us")
    assert times["launch by Ingot"] < 1.1 * times["launch in eager"]
    assert times["program by Ingot"] < times["program in eager"]
