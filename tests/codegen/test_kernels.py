"""Kernels of every shape against the NumPy oracle, at sizes around the vector width, and under
every split of their range."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch

from ingot.codegen.llvm.module import compile_kernels
from ingot.codegen.llvm.target import named
from ingot.codegen.llvm.unrolling import choose_unroll
from ingot.loops import ops
from ingot.loops.expr import Symbol, as_expr, integer, loop_symbol, size_symbol
from ingot.loops.ir import Body, Fault, Origin
from ingot.loops.spaces import contiguous_strides
from ingot.schedule.kernel import Accumulate, Define, Kernel, Parameter, Row, Store
from tests.codegen.harness import (
    body,
    check,
    flat,
    launch,
    parameter,
    runnable_targets,
    scalar,
    stage,
)

SIZES = [1, 2, 15, 16, 17, 63, 64, 65, 1000]
NONE = Origin(())
f32, f64, i64 = torch.float32, torch.float64, torch.int64
a = ops.apply


def pointwise(
    loops, index_in, index_out, count_in, count_out, parallel=1, vector=None, value=None, dtype=f32
):
    """Kernel and tensors of out[index_out] = value(x[index_in])."""
    program = body(
        lambda: (value or (lambda x: a("add", x, x)))(ops.load("x", as_expr(index_in), dtype))
    )
    only = stage((), program, (Store("out", as_expr(index_out), 0),))
    kernel = Kernel(
        "k",
        NONE,
        loops,
        (only,),
        (parameter("x", dtype), parameter("out", dtype, True)),
        (),
        parallel,
        vector,
    )
    x = (
        torch.randn(count_in).to(dtype)
        if dtype.is_floating_point
        else torch.randint(0, 100, (count_in,)).to(dtype)
    )
    return kernel, [x, torch.zeros(count_out, dtype=dtype)]


@pytest.mark.parametrize("n", SIZES)
def test_flat(n):
    kernel = flat(n, [f32, f32], f32, lambda x, y: a("mul", a("add", x, y), y))
    check(kernel, [torch.randn(n), torch.randn(n), torch.zeros(n)], n)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, torch.float16, f64, torch.uint8, torch.int32, i64, torch.bool],
    ids=str,
)
def test_flat_in_every_dtype(n, dtype):
    def value(x):
        if dtype is torch.bool:
            return a("logical_not", x)
        wide = ops.to(x, f32) if dtype in ops.HALVES else x
        return ops.to(a("mul", wide, wide), dtype)

    x = torch.randn(n).to(dtype) if dtype.is_floating_point else torch.randint(0, 2, (n,)).to(dtype)
    check(flat(n, [dtype], dtype, value), [x, torch.zeros(n, dtype=dtype)], n)


@pytest.mark.parametrize("n", [1, 17, 64, 100])
def test_inner_vector_loop_with_transposed_input(n):
    i, j = loop_symbol("i", 5), loop_symbol("j", n)
    check(*pointwise((i, j), j * 5 + i, i * n + j, 5 * n, 5 * n, 1, j), 5)


@pytest.mark.parametrize("n", [1, 3, 17, 64, 100])
def test_vector_loop_among_the_collapsed(n):
    i, j = loop_symbol("i", 7), loop_symbol("j", n)
    check(*pointwise((i, j), i * (2 * n) + j * 2, i * n + j, 14 * n, 7 * n, 2, j), 7 * n)


def test_three_loops_two_shared():
    i, j, k = loop_symbol("i", 3), loop_symbol("j", 4), loop_symbol("k", 19)
    check(*pointwise((i, j, k), j * 57 + i * 19 + k, i * 76 + j * 19 + k, 228, 228, 2, k), 12)


def test_reversed_broadcast_and_divided_indices():
    i = loop_symbol("i", 90)
    for index in (89 - i, integer(0), i // 9, i % 7, (i * 5) % 90, (i + 3) // 4):
        check(*pointwise((i,), index, i, 90, 90, 1, i), 90)


def test_symbolic_sizes():
    """One compilation for several sizes, the batch and the row length both symbolic."""
    n, m = size_symbol("n", 2), size_symbol("m", 2)
    for rows, columns in ((2, 3), (4, 64), (3, 77)):
        i, j = loop_symbol("i", n), loop_symbol("j", m)
        kernel, _ = pointwise((i, j), j * n + i, i * m + j, 1, 1, 1, j)
        tensors = [torch.randn(rows * columns), torch.zeros(rows * columns)]
        check(kernel, tensors, rows, {n: rows, m: columns})


# -- reductions ------------------------------------------------------------------------------------


def reduction(kind, rows, columns, over_rows, dtype=f32, result=None, rows_first=True):
    i, j = loop_symbol("i", rows), loop_symbol("j", columns)
    result = result or dtype
    kept, reduced = (j, i) if over_rows else (i, j)
    stages = (
        stage(
            (reduced,),
            body(lambda: ops.load("x", i * columns + j, dtype)),
            (),
            (Accumulate(kind, 0, "r", result),),
        ),
        stage((), body(lambda: scalar("r", result)), (Store("out", kept, 0),)),
    )
    declared = (parameter("x", dtype), parameter("out", result, True))
    extent = columns if over_rows else rows
    kernel = Kernel("k", NONE, (kept,), stages, declared, (), 1, j if over_rows else None)
    return kernel, extent


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "argmax", "argmin", "any", "all"])
@pytest.mark.parametrize("over_rows", [False, True])
@pytest.mark.parametrize("n", SIZES)
def test_reductions(kind, over_rows, n):
    dtype = torch.bool if kind in ("any", "all") else f32
    shape = (n, 7) if over_rows else (7, n)
    x = (
        torch.rand(shape) > (0.1 if kind == "all" else 0.9)
        if dtype is torch.bool
        else torch.randn(shape)
    )
    if kind == "prod":
        x = 1 + x * 0.01
    kernel, extent = reduction(
        kind, *shape, over_rows, dtype, i64 if kind.startswith("arg") else dtype
    )
    check(
        kernel,
        [x, torch.zeros(extent, dtype=i64 if kind.startswith("arg") else dtype)],
        extent,
        tolerance=1e-5,
    )


@pytest.mark.parametrize("kind", ["max", "min", "argmax", "argmin"])
def test_extremes_of_nan_ties_and_infinities(kind):
    x = torch.randint(0, 4, (6, 70)).float()
    x[0, 33] = x[0, 40] = float("nan")
    x[1] = -float("inf")
    x[2] = float("inf")
    x[3, 69] = float("nan")
    result = i64 if kind.startswith("arg") else f32
    for over_rows, data in ((False, x), (True, x.t().contiguous())):
        kernel, extent = reduction(kind, *data.shape, over_rows, f32, result)
        out = torch.zeros(extent, dtype=result)
        assert launch(kernel, [data, out], [(0, extent)]) == 0
        function = getattr(torch, {"max": "amax", "min": "amin"}.get(kind, kind))
        torch.testing.assert_close(out, function(x, 1), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.int32, i64, torch.uint8, f64], ids=str)
@pytest.mark.parametrize("kind", ["sum", "max", "min", "argmax"])
def test_reductions_of_other_dtypes(kind, dtype):
    x = torch.randint(0, 200, (9, 131)).to(dtype)
    result = i64 if kind == "argmax" else dtype
    kernel, extent = reduction(kind, 9, 131, False, dtype, result)
    check(kernel, [x, torch.zeros(9, dtype=result)], extent)


@pytest.mark.parametrize("over_rows", [False, True])
def test_long_sums_are_as_accurate_as_eager(over_rows):
    x = torch.rand(300_007)
    shape = (300_007, 1) if over_rows else (1, 300_007)
    kernel, _ = reduction("sum", *shape, over_rows)
    out = torch.zeros(1)
    assert launch(kernel, [x, out], [(0, 1)]) == 0
    exact = x.double().sum()
    assert (out - exact).abs() <= max((x.sum() - exact).abs(), 4 * torch.finfo(f32).eps * exact)


def test_sum_over_several_loops():
    """Sum over the first and last axis, long enough that partial sums are emptied."""
    i, j, k = loop_symbol("i", 40), loop_symbol("j", 3), loop_symbol("k", 700)
    stages = (
        stage(
            (i, k),
            body(lambda: ops.load("x", i * 2100 + j * 700 + k, f32)),
            (),
            (Accumulate("sum", 0, "r", f32),),
        ),
        stage((), body(lambda: scalar("r")), (Store("out", j, 0),)),
    )
    kernel = Kernel("k", NONE, (j,), stages, (parameter("x"), parameter("out", written=True)))
    check(kernel, [torch.rand(40, 3, 700), torch.zeros(3)], 3)


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "argmin", "logaddexp"])
@pytest.mark.parametrize("extents", [(36, 7), (5, 16), (3, 37), (2, 3, 67)])
def test_scans_over_several_loops(kind, extents):
    """Where a vector is not full, the next one goes on from the last element that counts."""
    row, *loops = (loop_symbol(name, extent) for name, extent in zip("rijk", (3, *extents)))
    count = math.prod(extents)
    index = row * count + sum(
        s * step for s, step in zip(loops, contiguous_strides([s.extent for s in loops]))
    )
    result = i64 if kind.startswith("arg") else f64

    def value():
        return ops.recorder().emit("running", (ops.load("x", index, f64),), result, (kind,))

    only = stage(loops, body(value), (Store("out", index, 0),))
    kernel = Kernel(
        "k", NONE, (row,), (only,), (parameter("x", f64), parameter("out", result, True))
    )
    x = 1 + torch.randn(3, count, dtype=f64) * 0.1
    check(kernel, [x, torch.zeros(3, count, dtype=result)], 3)


def test_whole_reduction_without_outer_loops():
    i = loop_symbol("i", 1234)
    stages = (
        stage(
            (i,),
            body(lambda: ops.load("x", i, f32)),
            (),
            (Accumulate("sum", 0, "r", f32), Accumulate("max", 0, "m", f32)),
        ),
        stage((), body(lambda: a("div", scalar("r"), scalar("m"))), (Store("out", integer(0), 0),)),
    )
    kernel = Kernel("k", NONE, (), stages, (parameter("x"), parameter("out", written=True)), (), 0)
    x, out = torch.rand(1234), torch.zeros(1)
    assert launch(kernel, [x, out], [(0, 1)]) == 0
    torch.testing.assert_close(out, (x.sum() / x.max())[None])


# -- rows ------------------------------------------------------------------------------------------


def softmax(rows: int | Symbol, n: int | Symbol, across_rows: bool) -> Kernel:
    """softmax over the last axis, or with lanes across rows over the first axis of the transposed
    matrix."""
    i, j = loop_symbol("i", rows), loop_symbol("j", n)
    index = j * as_expr(rows) + i if across_rows else i * as_expr(n) + j
    stages = (
        stage((j,), body(lambda: ops.load("x", index, f32)), (),
            (Accumulate("max", 0, "top", f32),)),
        stage((j,), body(lambda: a("exp", a("sub", ops.load("x", index, f32), scalar("top")))),
            (Store("h", j, 0),),
              (Accumulate("sum", 0, "total", f32),)),
        stage((), body(lambda: a("reciprocal", scalar("total"))), (), (), (Define("scale", 0),)),
        stage((j,), body(lambda: a("mul", ops.load("h", j, f32), scalar("scale"))),
            (Store("out", index, 0),)),
    )  # fmt: skip
    declared = (parameter("x"), parameter("out", written=True))
    return Kernel(
        "softmax",
        NONE,
        (i,),
        stages,
        declared,
        (Row("h", f32, as_expr(n)),),
        1,
        i if across_rows else None,
    )


@pytest.mark.parametrize("across_rows", [False, True])
@pytest.mark.parametrize("n", SIZES)
def test_rows(n, across_rows):
    shape = (n, 21) if across_rows else (21, n)
    check(softmax(21, n, across_rows), [torch.randn(shape), torch.zeros(shape)], 21, tolerance=1e-5)


def test_rows_with_symbolic_length():
    n, m = size_symbol("n"), size_symbol("m")
    for rows, columns in ((5, 40), (17, 3), (2, 1000)):
        check(
            softmax(n, m, False),
            [torch.randn(rows, columns), torch.zeros(rows, columns)],
            rows,
            {n: rows, m: columns},
            1e-5,
        )


def test_row_of_bool_and_in_place_update():
    i, j = loop_symbol("i", 4), loop_symbol("j", 37)
    index = i * 37 + j
    stages = (
        stage((j,), body(lambda: a("gt", ops.load("x", index, f32), ops.constant(0.0, f32))),
            (Store("h", j, 0),)),
        stage((j,),
            body(lambda: a("where", ops.load("h", 36 - j, torch.bool), ops.load("x", index, f32),
                                   ops.constant(-1.0, f32))), (Store("x", index, 0),)),
    )  # fmt: skip
    declared = (Parameter("x", f32, True, True),)
    check(
        Kernel("k", NONE, (i,), stages, declared, (Row("h", torch.bool, integer(37)),)),
        [torch.randn(4, 37)],
        4,
    )


# -- masks, indirect indices, scatters -------------------------------------------------------------


@pytest.mark.parametrize("n", [5, 16, 40])
def test_masked_loads_pad(n):
    i, j = loop_symbol("i", 6), loop_symbol("j", n + 3)

    def value():
        inside = a(
            "logical_and",
            a("ge", ops.index(j), ops.constant(2, i64)),
            a("lt", ops.index(j), ops.constant(n + 2, i64)),
        )
        row = a("lt", ops.index(i), ops.constant(4, i64))
        with ops.masked(a("logical_and", inside, row)):
            x = ops.load("x", i * n + j - 2, f32)
        with ops.masked(row):
            y = ops.load("y", i, f32)
        return a("add", x, y)

    only = stage((), body(value), (Store("out", i * (n + 3) + j, 0),))
    declared = (parameter("x"), parameter("y"), parameter("out", written=True))
    kernel = Kernel("k", NONE, (i, j), (only,), declared, (), 1, j)
    check(kernel, [torch.randn(4, n), torch.randn(4), torch.zeros(6, n + 3)], 6)


def embedding(tokens: int, width: int, vocabulary: int) -> Kernel:
    i, j = loop_symbol("i", tokens), loop_symbol("j", width)

    def value():
        token = ops.indirect(
            ops.load("t", i, i64), vocabulary, Fault(IndexError, "index out of range in self")
        )
        return ops.load("w", token * width + j, f32)

    only = stage((), body(value), (Store("out", i * width + j, 0),))
    declared = (parameter("t", i64), parameter("w"), parameter("out", written=True))
    return Kernel("embedding", NONE, (i, j), (only,), declared, (), 1, j)


def test_embedding_wraps_and_checks():
    tokens = torch.tensor([3, -1, 0, -10, 9])
    tensors = [tokens, torch.randn(10, 33), torch.zeros(5, 33)]
    check(embedding(5, 33, 10), tensors, 5)
    for bad in (10, -11, 2**40):
        tokens[2] = bad
        assert launch(embedding(5, 33, 10), tensors, [(0, 5)]) == 1
        assert launch(embedding(5, 33, 10), tensors, [(0, 2), (3, 5)]) == 0


@pytest.mark.parametrize("n", [3, 16, 21])
def test_gather_of_lanes_checks_only_lanes_in_range(n):
    i = loop_symbol("i", n)

    def value():
        return ops.load("w", ops.indirect(ops.load("t", i, i64), 50, Fault(IndexError, "bad")), f32)

    declared = (parameter("t", i64), parameter("w"), parameter("out", written=True))
    kernel = Kernel(
        "k", NONE, (i,), (stage((), body(value), (Store("out", i, 0),)),), declared, (), 1, i
    )
    t = torch.randint(-50, 50, (n,))
    check(kernel, [t, torch.randn(50), torch.zeros(n)], n)
    t[n - 1] = 50
    assert launch(kernel, [t, torch.randn(50), torch.zeros(n)], [(0, n)]) == 1
    assert launch(kernel, [t, torch.randn(50), torch.zeros(n)], [(0, n - 1)]) == 0


@pytest.mark.parametrize("width", [1, 6, 16, 37, 64, 100])
def test_an_index_computed_outside_of_a_loop_is_checked_for_each_part_of_the_loop(width):
    """The loop runs in blocks, vectors and lanes in turn; which of them run is not known."""
    n, m = size_symbol("n"), size_symbol("m")
    i, j = loop_symbol("i", 8), loop_symbol("j", m)

    def value():
        ops.indirect(ops.index(7 - i), n, Fault(IndexError, "bad"))
        return ops.load("x", j, f32)

    only = stage((), body(value), (Store("out", i * m + j, 0),))
    declared = (parameter("x"), parameter("out", written=True))
    kernel = Kernel("rows", NONE, (i, j), (only,), declared, (), 1, j)
    tensors = [torch.randn(width), torch.zeros(8, width)]
    check(kernel, tensors, 8, {n: 8, m: width})
    for target in runnable_targets():
        compiled = compile_kernels([kernel], [n, m], target)
        assert launch(kernel, tensors, [(0, 8)], {n: 7, m: width}, compiled) == 1
        assert launch(kernel, tensors, [(1, 8)], {n: 7, m: width}, compiled) == 0


@pytest.mark.parametrize("dtype", [f32, torch.bfloat16, i64], ids=str)
def test_scatter_add_with_collisions(dtype):
    n = 100
    i = loop_symbol("i", n)
    with ops.recording() as recorder:
        where = ops.indirect(ops.load("t", i, i64), 7, Fault(IndexError, "bad"))
        value = ops.load("x", i, dtype)
        program = Body(tuple(recorder.instructions), (value,))
    only = stage((), program, (Store("out", as_expr(where), 0, "add"),))
    declared = (parameter("t", i64), parameter("x", dtype), Parameter("out", dtype, True, True))
    kernel = Kernel("k", NONE, (i,), (only,), declared, (), 1, i)
    t, x = torch.randint(0, 7, (n,)), torch.randint(0, 3, (n,)).to(dtype)
    out = torch.zeros(7, dtype=dtype)
    assert launch(kernel, [t, x, out], [(0, 40), (40, n)]) == 0
    assert torch.equal(out, torch.zeros(7, dtype=dtype).index_add(0, t, x))


def test_strided_store_is_a_scatter():
    i = loop_symbol("i", 45)
    check(*pointwise((i,), i, i * 3, 45, 135, 1, i), 45)


def test_two_stores_of_one_body():
    i = loop_symbol("i", 70)

    def value():
        x = ops.load("x", i, f32)
        return a("sin", x), a("gt", x, ops.constant(0.0, f32))

    only = stage((), body(value), (Store("y", i, 0), Store("b", i, 1)))
    declared = (parameter("x"), parameter("y", written=True), parameter("b", torch.bool, True))
    kernel = Kernel("k", NONE, (i,), (only,), declared, (), 1, i)
    check(kernel, [torch.randn(70), torch.zeros(70), torch.zeros(70, dtype=torch.bool)], 70)


@pytest.mark.parametrize("extent", [1, 3, 16, 37, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.bool])
def test_descending_loads(dtype: torch.dtype, extent: int) -> None:
    i = loop_symbol("i", extent)
    program = body(lambda: ops.load("a0", extent - 1 - i, dtype))
    declared = (parameter("a0", dtype), parameter("out", dtype, True))
    kernel = Kernel(
        "down", Origin(()), (i,), (stage((), program, [Store("out", i, 0)]),), declared, (), 1, i
    )
    check(
        kernel, [torch.randint(0, 2, (extent,)).to(dtype), torch.zeros(extent, dtype=dtype)], extent
    )


def test_index_vectors_are_as_narrow_as_sizes_allow():
    """Addresses and positions take 32 bits where all of them fit, and 64 where that is not
    known."""
    n = size_symbol("n")
    for size, type in ((1000, "i32"), (n, "i64")):
        i = loop_symbol("i", size)

        def value(i=i, size=size):
            return ops.load(
                "w", ops.indirect(ops.load("t", i, i64), size, Fault(IndexError, "bad")) * 3, f32
            )

        declared = (parameter("t", i64), parameter("w"), parameter("out", written=True))
        gather = Kernel(
            "k", NONE, (i,), (stage((), body(value), (Store("out", i, 0),)),), declared, (), 1, i
        )
        text = compile_kernels([gather], [n]).ir(gather)
        lanes = int(text.split(" x ptr>")[0].rsplit("<", 1)[1])
        assert f"getelementptr float, ptr %p1, <{lanes} x {type}>" in text
        largest, _ = reduction("argmax", 5, size, False, f32, i64)
        source = compile_kernels([largest], [n]).ir(largest)
        assert (" x i32> splat (i32 2147483647)" in source) == (type == "i32")


@pytest.mark.parametrize("columns", [300, 70_000])
def test_positions_of_every_width(columns):
    x = torch.randn(3, columns)
    x[0, columns - 1] = x[1, 0] = 99.0
    kernel, extent = reduction("argmax", 3, columns, False, f32, i64)
    out = torch.zeros(3, dtype=i64)
    assert launch(kernel, [x, out], [(0, extent)]) == 0
    assert torch.equal(out, x.argmax(1))


def test_rows_of_which_nothing_is_reduced_are_computed_one_at_a_time():
    i, j = loop_symbol("i", 8), loop_symbol("j", 128)
    index = i * 128 + j
    stages = (
        stage((j,), body(lambda: a("exp", ops.load("x", index, f32))), (Store("y", index, 0),)),
        stage((j,), body(lambda: a("neg", ops.load("y", index, f32))), (Store("z", index, 0),)),
    )
    declared = (parameter("x"), parameter("y", written=True), parameter("z", written=True))
    kernel = Kernel("rows", NONE, (i,), stages, declared, (), 1, None)
    check(
        kernel, [torch.randn(8, 128), torch.zeros(8, 128), torch.zeros(8, 128)], 8, tolerance=1e-6
    )
    assert compile_kernels([kernel], []).ir(kernel).count("fneg <") == choose_unroll(stages[1:])


@pytest.mark.parametrize(
    ("length", "paired"), [(100, True), (1024, True), (64, False), (1025, False)]
)
def test_short_rows_are_computed_two_at_a_time(length, paired):
    """And give the same bits as one at a time, as a range of one row is."""
    kernel = softmax(5, length, False)
    compiled = compile_kernels([kernel], [])
    assert compiled.scratch_bytes(kernel).constant == -(-4 * length * (1 + paired) // 64) * 64
    x = torch.randn(5, length, generator=torch.Generator().manual_seed(0))
    together, apart = torch.zeros(5, length), torch.zeros(5, length)
    assert launch(kernel, [x, together], [(0, 5)], compiled=compiled) == 0
    assert launch(kernel, [x, apart], [(k, k + 1) for k in range(5)], compiled=compiled) == 0
    assert torch.equal(together, apart)
    torch.testing.assert_close(together, x.softmax(1))


@pytest.mark.parametrize("length", [1, 64, 65, 100, 128, 1023, 1024, 1025, 3000])
def test_rows_of_symbolic_length_give_the_same_bits_two_at_a_time(length):
    rows, columns = size_symbol("rows"), size_symbol("columns")
    kernel = softmax(rows, columns, False)
    compiled = compile_kernels([kernel], [rows, columns])
    sizes = {rows: 5, columns: length}
    assert compiled.scratch_bytes(kernel).evaluate(sizes) == -(-8 * length // 64) * 64
    x = torch.randn(5, length, generator=torch.Generator().manual_seed(0))
    together, apart = torch.zeros(5, length), torch.zeros(5, length)
    assert launch(kernel, [x, together], [(0, 5)], sizes, compiled=compiled) == 0
    assert launch(kernel, [x, apart], [(k, k + 1) for k in range(5)], sizes, compiled=compiled) == 0
    assert torch.equal(together, apart)
    torch.testing.assert_close(together, x.softmax(1))


def test_what_is_left_of_rows_of_symbolic_length_is_no_loop():
    """Of a loop LLVM would follow each address: that takes as long as all the rest."""
    columns = size_symbol("columns")
    kernel = softmax(5, columns, False)
    loops = re.findall(r"latch\d+:", compile_kernels([kernel], [columns]).ir(kernel))
    # of pairs and of a last row: the rows, three stages, and blocks of the sum
    assert len(loops) == 2 * (1 + 3 + 1)


@pytest.mark.parametrize("kind, copies", [("sum", 4), ("prod", 2)])
def test_products_have_few_accumulators(kind, copies):
    """Each of them passes through denormal numbers, with which processors are slow, where all comes
    to nothing."""
    j = loop_symbol("j", 1000)
    reduces = stage((j,), body(lambda: ops.load("x", j, f32)), (), (Accumulate(kind, 0, "r", f32),))
    assert choose_unroll((reduces,)) == copies


def test_what_threads_share_is_whole_vectors():
    """Of a share that is smaller, most lanes of a column's vectors would be masked out."""
    i, j = loop_symbol("i", 256), loop_symbol("j", 256)
    reads = body(lambda: ops.load("x", i + 256 * j, f32))
    reduces = stage((j,), reads, (), (Accumulate("sum", 0, "r", f32),))
    writes = stage((), body(lambda: scalar("r")), (Store("out", i, 0),))
    parameters = (parameter("x"), parameter("out", written=True))
    columns = Kernel("k", NONE, (i,), (reduces, writes), parameters, (), 1, i)
    rows = replace(columns, vector=None)
    alone = flat(4096, [f32], f32, lambda x: a("add", x, x))
    narrow = flat(4096, [torch.int8], torch.int8, lambda x: a("add", x, x))
    kernels = [columns, rows, alone, narrow]
    for target, registers in (("avx512", 16), ("avx2", 8)):
        compiled = compile_kernels(kernels, [], target=named(target), load=False)
        assert list(map(compiled.unit, kernels)) == [4 * registers, 1, 64, 64]


def test_long_integers_are_divided_as_floats():
    """Where all dividends of a vector have up to 53 bits; the others have an instruction that takes
    a lane at a time."""
    dividends = [7, -7, 2**53 - 1, 1 - 2**53, 2**53, -(2**53), 2**62 + 1, -(2**63), 0, 9, 10, 11]
    divisors = [1, -1, 2, 3, -3, 5, 2**31 - 1, 2**53 - 1, 2**53 + 1, 2**63 - 1, -(2**63)]
    pairs = torch.cartesian_prod(torch.tensor(dividends), torch.tensor(divisors))
    pairs = torch.cat([pairs, pairs.repeat_interleave(8, 0)])  # beside others, and alone
    x, y = pairs.unbind(1)
    x, y = x.contiguous(), y.contiguous()
    wraps = (x == -(2**63)) & (y == -1)  # where eager divides, the processor has a fault
    for name, mode in (("truncdiv", "trunc"), ("floordiv", "floor")):
        kernel = flat(len(x), [i64, i64], i64, lambda x, y, name=name: a(name, x, y))
        text = compile_kernels([kernel], [], target=named("avx512"), load=False).ir(kernel)
        assert text.count("fdiv <8 x double>") == text.count("sdiv <8 x i64>") > 0
        out = torch.empty_like(x)
        assert launch(kernel, [x, y, out], [(0, len(x))]) == 0
        expected = torch.div(x, y.where(~wraps, 1), rounding_mode=mode)
        assert torch.equal(out, expected)
    constant = flat(64, [i64], i64, lambda x: a("truncdiv", x, ops.constant(7, i64)))
    text = compile_kernels([constant], [], target=named("avx512"), load=False).ir(constant)
    assert "fdiv" not in text  # LLVM multiplies by its reciprocal
