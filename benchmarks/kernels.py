"""Micro-benchmarks of generated CPU kernels, made by hand from the loop IR: python -m
benchmarks.kernels [NAME...]

Each is run on torch's OpenMP threads and compared with eager: milliseconds (median), relative error
of both against float64, and the time to compile.
"""

from __future__ import annotations

import ctypes
import glob
import os
import statistics
import sys
import time
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from ingot.codegen.llvm.module import CompiledKernels, compile_kernels
from ingot.loops import ops
from ingot.loops.expr import Expr, Symbol, integer, loop_symbol
from ingot.loops.ir import Body, Origin
from ingot.schedule.kernel import Accumulate, Define, Kernel, Parameter, Row, Stage, Store

f32 = torch.float32
NO_ORIGIN = Origin(())


class Case(NamedTuple):
    """A kernel, its tensor arguments (the last one is the output), and eager's version of it over
    the others."""

    kernel: Kernel
    tensors: list[Tensor]
    eager: Callable[..., Tensor]
    extent: int


def body(function: Callable[[], tuple[int, ...] | int]) -> Body:
    """The recorded program of `function`, which returns one value or several."""
    with ops.recording() as recorder:
        results = function()
        return recorder.body(*(results if isinstance(results, tuple) else (results,)))


def stage(
    loops: tuple[Symbol, ...], program: Body, stores: tuple[Store, ...] = (),
    reductions: tuple[Accumulate, ...] = (),
    scalars: tuple[Define, ...] = (),
) -> Stage:  # fmt: skip
    """A stage whose `value` numbers count the results of `program`."""
    renumbered = [
        tuple(item._replace(value=program.results[item.value]) for item in items)
        for items in (stores, reductions, scalars)
    ]
    return Stage(loops, program, *renumbered)


def c(value: float) -> int:
    return ops.constant(value, f32)


def parameters(*names: str) -> tuple[Parameter, ...]:
    """Float parameters; the last one is written."""
    return tuple(Parameter(n, f32, n != names[-1], n == names[-1]) for n in names)


def pointwise(
    name: str, count: int, inputs: str, value: Callable[..., int], eager: Callable[..., Tensor]
) -> Case:
    """A flat pointwise kernel over `inputs` (one letter each)."""
    i = loop_symbol("i", count)
    program = body(lambda: value(*(ops.load(n, i, f32) for n in inputs)))
    only = stage((), program, (Store("out", i, 0),))
    kernel = Kernel(name, NO_ORIGIN, (i,), (only,), parameters(*inputs, "out"), (), 1, i)
    return Case(kernel, [torch.randn(count) for _ in inputs] + [torch.empty(count)], eager, count)


def tanh_gelu_value(x: int) -> int:
    a = ops.apply
    cube = a("mul", a("mul", x, x), x)
    inner = a("mul", c(0.7978845608028654), a("add", x, a("mul", c(0.044715), cube)))
    return a("mul", a("mul", c(0.5), x), a("add", c(1.0), a("tanh", inner)))


def tanh_gelu() -> Case:
    return pointwise(
        "tanh_gelu", 1024 * 3072, "x", tanh_gelu_value, lambda x: F.gelu(x, approximate="tanh")
    )


def activation() -> Case:
    """relu((sin(x) * cos(x) + x) * x), as six ops."""

    def value(x: int) -> int:
        a = ops.apply
        total = a("mul", a("add", a("mul", a("sin", x), a("cos", x)), x), x)
        return a("maximum", total, c(0.0))

    return pointwise(
        "activation",
        4 << 20,
        "x",
        value,
        lambda x: torch.relu((torch.sin(x) * torch.cos(x) + x) * x),
    )


def copy() -> Case:
    return pointwise("copy", 1024 * 3072, "x", lambda x: ops.apply("neg", x), torch.neg)


def layer_norm() -> Case:
    """LayerNorm(GELU(x) + r) over rows of 1024."""
    rows, n = 2048, 1024
    i, j = loop_symbol("i", rows), loop_symbol("j", n)
    a = ops.apply

    def activated() -> int:
        x = ops.load("x", i * n + j, f32)
        gelu = a(
            "mul",
            a("mul", x, c(0.5)),
            a("add", c(1.0), a("erf", a("mul", x, c(0.7071067811865476)))),
        )
        return a("add", gelu, ops.load("r", i * n + j, f32))

    def squared() -> int:
        d = a("sub", ops.load("h", j, f32), scalar("mean"))
        return a("mul", d, d)

    def normalized() -> int:
        d = a("mul", a("sub", ops.load("h", j, f32), scalar("mean")), scalar("scale"))
        return a("add", a("mul", d, ops.load("w", j, f32)), ops.load("b", j, f32))

    def scale() -> int:
        return a("rsqrt", a("add", a("mul", scalar("squares"), c(1 / n)), c(1e-5)))

    stages = (
        stage((j,), body(activated), (Store("h", j, 0),), (Accumulate("sum", 0, "total", f32),)),
        stage((), body(lambda: a("mul", scalar("total"), c(1 / n))), (), (), (Define("mean", 0),)),
        stage((j,), body(squared), (), (Accumulate("sum", 0, "squares", f32),)),
        stage((), body(scale), (), (), (Define("scale", 0),)),
        stage((j,), body(normalized), (Store("out", i * n + j, 0),)),
    )
    kernel = Kernel(
        "layer_norm",
        NO_ORIGIN,
        (i,),
        stages,
        parameters(*"xrwb", "out"),
        (Row("h", f32, integer(n)),),
    )
    tensors = [
        torch.randn(rows, n),
        torch.randn(rows, n),
        torch.randn(n),
        torch.randn(n),
        torch.empty(rows, n),
    ]
    return Case(kernel, tensors, lambda x, r, w, b: F.layer_norm(F.gelu(x) + r, (n,), w, b), rows)


def scalar(name: str) -> int:
    return ops.recorder().emit("scalar", (), f32, (name,))


def masked_softmax() -> Case:
    """softmax(where(m, x, -inf)) over rows of 1024."""
    rows, n = 2048, 1024
    i, j = loop_symbol("i", rows), loop_symbol("j", n)
    a = ops.apply

    def masked() -> int:
        return a(
            "where",
            ops.load("m", i * n + j, torch.bool),
            ops.load("x", i * n + j, f32),
            c(-float("inf")),
        )

    stages = (
        stage((j,), body(masked), (), (Accumulate("max", 0, "top", f32),)),
        stage((j,), body(lambda: a("exp", a("sub", masked(), scalar("top")))), (Store("h", j, 0),),
              (Accumulate("sum", 0, "total", f32),)),
        stage((j,), body(lambda: a("div", ops.load("h", j, f32), scalar("total"))),
            (Store("out", i * n + j, 0),)),
    )  # fmt: skip
    declared = (
        Parameter("x", f32, True, False),
        Parameter("m", torch.bool, True, False),
        Parameter("out", f32, False, True),
    )
    kernel = Kernel(
        "masked_softmax", NO_ORIGIN, (i,), stages, declared, (Row("h", f32, integer(n)),)
    )
    mask = torch.rand(rows, n) > 0.2
    return Case(
        kernel, [torch.randn(rows, n), mask, torch.empty(rows, n)],
        lambda x, m: torch.softmax(x.masked_fill(~m, -float("inf")), -1), rows,
    )  # fmt: skip


def reduction(name: str, rows: int, columns: int, over_rows: bool) -> Case:
    """A sum over one axis of a matrix."""
    i, j = loop_symbol("i", rows), loop_symbol("j", columns)
    load = body(lambda: ops.load("x", i * columns + j, f32))
    kept, reduced = (j, i) if over_rows else (i, j)
    stages = (
        stage((reduced,), load, (), (Accumulate("sum", 0, "total", f32),)),
        stage((), body(lambda: scalar("total")), (Store("out", kept, 0),)),
    )
    kernel = Kernel(
        name, NO_ORIGIN, (kept,), stages, parameters("x", "out"), (), 1, j if over_rows else None
    )
    extent: Expr | None = kept.extent
    assert extent is not None and extent.constant is not None
    tensors = [torch.randn(rows, columns), torch.empty(extent.constant)]
    return Case(kernel, tensors, lambda x: x.sum(0 if over_rows else 1), extent.constant)


CASES: dict[str, Callable[[], Case]] = {
    "copy": copy,
    "tanh_gelu": tanh_gelu,
    "activation": activation,
    "layer_norm": layer_norm,
    "masked_softmax": masked_softmax,
    "row_sum": lambda: reduction("row_sum", 2048, 1024, False),
    "column_sum": lambda: reduction("column_sum", 2048, 1024, True),
    "long_sum": lambda: reduction("long_sum", 4, 1 << 20, False),
}


# -- launching -------------------------------------------------------------------------------------

KERNEL = ctypes.CFUNCTYPE(
    ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64,
    ctypes.c_void_p
)  # fmt: skip


@cache
def openmp() -> ctypes.CDLL:
    """The OpenMP runtime that torch has loaded."""
    return ctypes.CDLL(
        glob.glob(os.path.join(os.path.dirname(torch.__file__), "lib", "libgomp*"))[0]
    )


LAUNCHER = """
declare i32 @omp_get_thread_num()

define void @part(ptr %a) {
  %function = load ptr, ptr %a
  %b1 = getelementptr i64, ptr %a, i64 1
  %buffers = load ptr, ptr %b1
  %b2 = getelementptr i64, ptr %a, i64 2
  %extent = load i64, ptr %b2
  %b3 = getelementptr i64, ptr %a, i64 3
  %scratch = load ptr, ptr %b3
  %b4 = getelementptr i64, ptr %a, i64 4
  %each = load i64, ptr %b4
  %b5 = getelementptr i64, ptr %a, i64 5
  %threads = load i64, ptr %b5
  %number = call i32 @omp_get_thread_num()
  %t = sext i32 %number to i64
  %next = add i64 %t, 1
  %m0 = mul i64 %extent, %t
  %begin = sdiv i64 %m0, %threads
  %m1 = mul i64 %extent, %next
  %end = sdiv i64 %m1, %threads
  %o = mul i64 %each, %t
  %mine = getelementptr i8, ptr %scratch, i64 %o
  %s = call i32 %function(ptr %buffers, ptr null, i64 %begin, i64 %end, ptr %mine)
  ret void
}
"""


@cache
def launcher() -> tuple[int, object]:
    """A function for GOMP_parallel that gives each thread its part of a kernel's range."""
    from ingot.codegen.llvm.library import llvm, session

    address = ctypes.cast(openmp().omp_get_thread_num, ctypes.c_void_p).value
    builder = (
        llvm().JITLibraryBuilder().add_ir(LAUNCHER).import_symbol("omp_get_thread_num", address)
    )
    library = builder.export_symbol("part").link(session(), "launcher")
    return library["part"], library


def runner(case: Case, compiled: CompiledKernels) -> Callable[[], None]:
    """Runs the kernel on all of torch's threads."""
    threads = torch.get_num_threads()
    each = compiled.scratch_bytes(case.kernel).evaluate({}) + 64
    scratch = torch.empty(each * threads + 64, dtype=torch.uint8)
    aligned = (scratch.data_ptr() + 63) // 64 * 64
    buffers = (ctypes.c_void_p * len(case.tensors))(*(t.data_ptr() for t in case.tensors))
    each = each // 64 * 64
    arguments = (ctypes.c_int64 * 6)(
        compiled.address(case.kernel),
        ctypes.addressof(buffers),
        case.extent,
        aligned,
        each,
        threads,
    )
    parallel = openmp().GOMP_parallel
    parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    part = launcher()[0]
    held = (scratch, buffers, compiled)

    def run() -> None:
        parallel(part, ctypes.addressof(arguments), threads, 0)
        assert held

    return run


def median_ms(functions: list[Callable[[], object]], rounds: int = 60) -> list[float]:
    """Medians of interleaved calls."""
    times: list[list[float]] = [[] for _ in functions]
    for _ in range(rounds):
        for function, record in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            record.append(time.perf_counter() - start)
    return [statistics.median(t) * 1e3 for t in times] + [min(t) * 1e3 for t in times]


def error(actual: Tensor, exact: Tensor) -> float:
    return ((actual.double() - exact).norm() / exact.norm()).item()


def measure(name: str) -> None:
    torch.manual_seed(0)
    case = CASES[name]()
    start = time.perf_counter()
    compiled = compile_kernels([case.kernel], [])
    seconds = time.perf_counter() - start
    run = runner(case, compiled)
    inputs, output = case.tensors[:-1], case.tensors[-1]
    run()
    exact = case.eager(*(t.double() if t.is_floating_point() else t for t in inputs))
    ours, eagers = error(output, exact), error(case.eager(*inputs), exact)
    eager_ms, kernel_ms, _, least = median_ms([lambda: case.eager(*inputs), run])
    print(
        f"{name:16} eager {eager_ms:7.3f} ms   kernel {kernel_ms:7.3f} ms (least {least:6.3f})   "
        f"{eager_ms / kernel_ms:5.2f}x   "
        f"error {ours:.1e} (eager {eagers:.1e})   compiled in {seconds * 1e3:.0f} ms",
        flush=True,
    )


def main() -> None:
    for name in sys.argv[1:] or CASES:
        measure(name)


if __name__ == "__main__":
    main()
