"""Elements a few places apart: whole vectors are moved and shuffled, and nothing outside of the
buffer is touched."""

from __future__ import annotations

import pytest
import torch

from ingot.codegen.llvm.emitter import Emitter
from ingot.codegen.llvm.memory import split_constant
from ingot.codegen.llvm.module import compile_kernels
from ingot.codegen.llvm.target import named
from ingot.loops import ops
from ingot.loops.expr import integer, loop_symbol
from ingot.loops.ir import Origin
from ingot.schedule.kernel import Kernel, Store
from tests.codegen.harness import body, check, parameter, stage

f32 = torch.float32
DTYPES = [f32, torch.float64, torch.bfloat16, torch.int8, torch.bool]
SIZES = [1, 16, 37]


def data(count: int, dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(count) * 50).to(dtype)


def picking(n: int, stride: int, dtype: torch.dtype = f32) -> Kernel:
    """out[i] = x[i * stride], from the other end where the stride is negative."""
    i = loop_symbol("i", n)
    first = integer(0) if stride > 0 else integer(-stride * (n - 1))
    only = stage((), body(lambda: ops.load("x", first + i * stride, dtype)), (Store("out", i, 0),))
    declared = (parameter("x", dtype), parameter("out", dtype, True))
    return Kernel("k", Origin(()), (i,), (only,), declared, (), 1, i)


def scattering(n: int, stride: int, phases: list[int], dtype: torch.dtype = f32) -> Kernel:
    """out[i * stride + p] = x[p * n + i] for each p of `phases`."""
    i = loop_symbol("i", n)
    program = body(lambda: tuple(ops.load("x", i + p * n, dtype) for p in phases))
    stores = tuple(Store("out", i * stride + p, k) for k, p in enumerate(phases))
    declared = (parameter("x", dtype), parameter("out", dtype, True))
    return Kernel("k", Origin(()), (i,), (stage((), program, stores),), declared, (), 1, i)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("stride", [2, 3, 4, 5, -1, -2, -3, -4])
@pytest.mark.parametrize("n", SIZES)
def test_loads(n, stride, dtype):
    """The buffer ends with the last element: whole vectors must not reach further."""
    check(
        picking(n, stride, dtype),
        [data((n - 1) * abs(stride) + 1, dtype), torch.zeros(n, dtype=dtype)],
        n,
    )


@pytest.mark.parametrize(
    "phases", [[0, 1], [1, 2], [0, 1, 2], [2, 1, 0], [0, 1, 2, 3, 4], [0, 3], [1]], ids=str
)
@pytest.mark.parametrize("stride", [2, 3, 4])
@pytest.mark.parametrize("n", [1, 16, 37])
def test_loads_side_by_side(n, stride, phases):
    i = loop_symbol("i", n)

    def value():
        total = ops.constant(0.0, f32)
        for k, phase in enumerate(phases):
            part = ops.apply(
                "mul", ops.load("x", i * stride + phase, f32), ops.constant(k + 1.0, f32)
            )
            total = ops.apply("add", total, part)
        return total

    declared = (parameter("x"), parameter("out", written=True))
    kernel = Kernel(
        "k", Origin(()), (i,), (stage((), body(value), (Store("out", i, 0),)),), declared, (), 1, i
    )
    check(kernel, [torch.randn((n - 1) * stride + max(phases) + 1), torch.zeros(n)], n)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("phases", [[0], [1], [0, 1], [1, 0, 2], [3, 2, 1, 0]], ids=str)
@pytest.mark.parametrize("n", [1, 16, 70])
def test_stores(n, phases, dtype):
    """What lies between keeps its value."""
    for stride in range(max(2, max(phases) + 1), 5):
        tensors = [data(n * 4, dtype), data((n - 1) * stride + max(phases) + 1, dtype)]
        check(scattering(n, stride, phases, dtype), tensors, n)


@pytest.mark.parametrize("name", ["avx2", "avx512", "neon"])
def test_nothing_is_gathered_or_scattered(name):
    kernels = [picking(1000, 2), picking(1000, -3, torch.float64), scattering(1000, 3, [0, 1, 2])]
    compiled = compile_kernels(kernels, [], named(name), load=False)
    for kernel in kernels:
        # the range of a thread may end anywhere: its last vector is moved lane by lane
        text = compiled.ir(kernel)
        assert text.count("@llvm.masked.gather") <= 1 and text.count("@llvm.masked.scatter") <= 3
        assert "shufflevector" in text


def test_collect_brings_lanes_together():
    e = Emitter(4, 16)
    parts = [e.here(f"part {k}", "float", 4) for k in range(3)]
    result = e.collect(parts, [(0, 3), (2, 0), (1, 1), (0, 2)])
    first, second = e.scopes[0].lines[-2:]
    assert "<i32 3, i32 poison, i32 5, i32 2>" in first and "<i32 0, i32 4, i32 2, i32 3>" in second
    assert result.lanes == 4
    assert e.collect(parts, [(1, 1), (1, 0), (1, 3), (1, 2)]).text != parts[1].text


def test_split_constant():
    i = loop_symbol("i", 9)
    assert split_constant(i * 3 - 7) == (i * 3, -7)
    assert split_constant(integer(5)) == (integer(0), 5)
    assert split_constant(i) == (i, 0)
