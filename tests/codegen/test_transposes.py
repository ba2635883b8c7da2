"""Loads that lie apart along the vector loop: blocks of them are transposed, on every target."""

from __future__ import annotations

import pytest
import torch

from ingot.codegen.llvm.module import compile_kernels
from ingot.codegen.llvm.target import named
from ingot.codegen.llvm.transpose import interleaved
from ingot.loops import ops
from ingot.loops.expr import Expr, as_expr, loop_symbol, size_symbol
from ingot.loops.ir import Origin
from ingot.schedule.kernel import Kernel, Store
from tests.codegen.harness import body, check, parameter, stage

f32 = torch.float32
DTYPES = [
    f32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int8,
    torch.int16,
    torch.int64,
    torch.bool,
]


def transposing(
    rows: int | Expr, columns: int | Expr, dtype: torch.dtype = f32, batch: int = 1
) -> Kernel:
    """out[k, i, j] = x[k, j, i], of sizes (batch, rows, columns), i being the tile loop."""
    rows, columns = as_expr(rows), as_expr(columns)
    k, i, j = loop_symbol("k", batch), loop_symbol("i", rows), loop_symbol("j", columns)
    program = body(lambda: ops.load("x", k * (rows * columns) + j * rows + i, dtype))
    only = stage((), program, (Store("out", k * (rows * columns) + i * columns + j, 0),))
    declared = (parameter("x", dtype), parameter("out", dtype, True))
    return Kernel("k", Origin(()), (k, i, j), (only,), declared, (), 2, j, i)


def data(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(shape) * 50).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "rows, columns", [(64, 64), (6, 4), (5, 130), (130, 5), (67, 97), (24, 40), (90, 33)]
)
def test_transposes_of_every_dtype(rows, columns, dtype):
    x = data((2, columns, rows), dtype)
    check(
        transposing(rows, columns, dtype, 2),
        [x, torch.zeros(2, rows, columns, dtype=dtype)],
        2 * rows,
    )


def test_symbolic_sizes():
    n, m = size_symbol("n", 2), size_symbol("m", 2)
    for rows, columns in ((5, 3), (40, 64), (7, 77), (65, 5)):
        tensors = [torch.randn(columns, rows), torch.zeros(rows, columns)]
        check(transposing(n, m), tensors, rows, {n: rows, m: columns})


def test_sources_of_several_dtypes_beside_plain_ones():
    """Only what is transposed goes through scratch memory; equal loads do once."""
    i, j = loop_symbol("i", 70), loop_symbol("j", 37)

    def value():
        x, y = (
            ops.load("x", j * 70 + i, f32),
            ops.to(ops.load("y", j * 80 + i + 3, torch.int8), f32),
        )
        z = ops.load("z", i * 37 + j, f32)
        return ops.apply("add", ops.apply("mul", x, y), ops.apply("mul", z, x))

    only = stage((), body(value), (Store("out", i * 37 + j, 0),))
    declared = (
        parameter("x"),
        parameter("y", torch.int8),
        parameter("z"),
        parameter("out", written=True),
    )
    kernel = Kernel("k", Origin(()), (i, j), (only,), declared, (), 1, j, i)
    check(
        kernel,
        [torch.randn(37, 70), data((37, 80), torch.int8), torch.randn(70, 37), torch.zeros(70, 37)],
        70,
    )


@pytest.mark.parametrize("name", ["avx2", "avx512", "neon"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_element_is_gathered(name, dtype):
    kernel = transposing(100, 100, dtype)
    compiled = compile_kernels([kernel], [], named(name), load=False)
    text = compiled.ir(kernel)
    assert "@ingot.transpose" in text and "gather" not in text
    assert len(compiled.object_code) > 500


def test_interleaved_is_the_perfect_shuffle_of_each_group():
    assert interleaved(8, 4) == ([0, 8, 1, 9, 4, 12, 5, 13], [2, 10, 3, 11, 6, 14, 7, 15])
