"""Runs kernels in this process, on tensors, without the run time."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ingot.codegen.llvm.module import CompiledKernels, compile_kernels
from ingot.codegen.llvm.target import Target, host, named
from ingot.codegen.reference import run_kernel
from ingot.loops import ops
from ingot.loops.expr import Symbol, integer, loop_symbol
from ingot.loops.ir import Body, Origin
from ingot.schedule.kernel import Accumulate, Define, Kernel, Parameter, Stage, Store

SIGNATURE = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
    ctypes.c_void_p
)  # fmt: skip


def body(function: Callable[[], Any]) -> Body:
    with ops.recording() as recorder:
        results = function()
        return recorder.body(*(results if isinstance(results, tuple) else (results,)))


def scalar(name: str, dtype: torch.dtype = torch.float32) -> int:
    return ops.recorder().emit("scalar", (), dtype, (name,))


def parameter(name: str, dtype: torch.dtype = torch.float32, written: bool = False) -> Parameter:
    return Parameter(name, dtype, not written, written)


def stage(
    loops: Sequence[Symbol], program: Body, stores: Sequence[Store] = (),
    reductions: Sequence[Accumulate] = (),
    scalars: Sequence[Define] = (),
) -> Stage:  # fmt: skip
    """A stage whose `value` numbers count the results of `program`."""

    def named(items: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(replace(item, value=program.results[item.value]) for item in items)

    return Stage(tuple(loops), program, named(stores), named(reductions), named(scalars))


def flat(
    count: int | Symbol,
    inputs: Sequence[torch.dtype],
    result: torch.dtype,
    value: Callable[..., int],
) -> Kernel:
    """A pointwise kernel over contiguous inputs a0, a1, ... into "out"."""
    i = loop_symbol("i", count)
    program = body(lambda: value(*(ops.load(f"a{k}", i, d) for k, d in enumerate(inputs))))
    declared = [parameter(f"a{k}", d) for k, d in enumerate(inputs)] + [
        parameter("out", result, True)
    ]
    return Kernel(
        "flat",
        Origin(()),
        (i,),
        (stage((), program, (Store("out", i, 0),)),),
        tuple(declared),
        (),
        1,
        i,
    )


def launch(
    kernel: Kernel, tensors: Sequence[Tensor], ranges: Sequence[tuple[int, int]],
    sizes: dict[Symbol, int] | None = None, compiled: CompiledKernels | None = None,
) -> int:  # fmt: skip
    """Run the kernel over each range; the status of the last run, or the first that is not 0."""
    sizes = sizes or {}
    compiled = compiled or compile_kernels([kernel], list(sizes))
    function = SIGNATURE(compiled.address(kernel))
    scratch = _scratch(compiled.scratch_bytes(kernel).evaluate(sizes) + 64)
    aligned = (scratch.data_ptr() + 63) // 64 * 64
    buffers = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
    values = (ctypes.c_int64 * (len(sizes) + 1))(*sizes.values())
    for begin, end in ranges:
        status = function(buffers, values, begin, end, aligned)
        if status:
            return status
    return 0


def _scratch(size: int) -> Tensor:
    """Memory that holds no zeros; the last one's, where that suffices."""
    global _last_scratch
    if _last_scratch.numel() < size:
        _last_scratch = torch.empty(size, dtype=torch.uint8)
    return _last_scratch[:size].fill_(0x7F)


_last_scratch = torch.empty(0, dtype=torch.uint8)


def check(
    kernel: Kernel,
    tensors: Sequence[Tensor],
    extent: int,
    sizes: dict[Symbol, int] | None = None,
    tolerance: float = 2e-6,
) -> None:
    """The kernel compiled for each of `runnable_targets` agrees with the NumPy oracle, and any
    split of its range gives the same bits."""
    sizes = sizes or {}
    expected = {
        p.name: t.clone().flatten() for p, t in zip(kernel.parameters, tensors, strict=True)
    }
    run_kernel(kernel, expected, sizes)
    for target in runnable_targets():
        _check_on(
            compile_kernels([kernel], list(sizes), target),
            kernel,
            tensors,
            extent,
            sizes,
            tolerance,
            expected,
        )
    bounded = with_lengths(kernel, tensors)
    compiled = compile_kernels([bounded], list(sizes), check_bounds=True)
    _check_on(compiled, bounded, tensors, extent, sizes, tolerance, expected)


def with_lengths(kernel: Kernel, tensors: Sequence[Tensor]) -> Kernel:
    """The kernel for buffers of the lengths of `tensors`."""
    pairs = zip(kernel.parameters, tensors, strict=True)
    return replace(
        kernel, parameters=tuple(p._replace(length=integer(t.numel())) for p, t in pairs)
    )


def runnable_targets() -> list[Target]:
    """The targets whose code runs on this machine: its own, and AVX2 where that is another."""
    own = host()
    return [own, named("avx2")] if "+avx2" in own.features and own.vector_bytes > 32 else [own]


def _check_on(
    compiled: CompiledKernels, kernel: Kernel, tensors: Sequence[Tensor], extent: int,
    sizes: dict[Symbol, int],
    tolerance: float, expected: dict[str, Tensor],
) -> None:  # fmt: skip
    middle = extent // 3
    results = []
    for ranges in (
        [(0, extent)],
        [(0, middle), (middle, middle), (middle, extent)],
        [(0, 1), (1, extent)] if extent else [],
    ):
        copies = [t.clone() for t in tensors]
        assert launch(kernel, copies, ranges, sizes, compiled) == 0
        results.append(copies)
    for parameter_, first, *others in zip(kernel.parameters, *results, strict=True):
        for other in others:
            assert torch.equal(first.view(torch.uint8), other.view(torch.uint8)), (
                "a split range gave other bits"
            )
        reference = expected[parameter_.name].reshape(first.shape)
        torch.testing.assert_close(first, reference, rtol=tolerance, atol=tolerance, equal_nan=True)
