"""Contraction kernels against the NumPy oracle: sizes around those of tiles and depths, every
layout, several targets, and every split of their range."""

from __future__ import annotations

from dataclasses import replace
from itertools import product as product_of
from typing import Any

import pytest
import torch

from ingot.codegen.llvm import objects
from ingot.codegen.llvm.contraction import _ContractionEmitter
from ingot.codegen.llvm.depths import DEPTH, PANEL
from ingot.codegen.llvm.module import compile_kernels
from ingot.codegen.llvm.target import host, named
from ingot.codegen.llvm.tiles import choose_tile
from ingot.loops import ops
from ingot.loops.expr import ZERO, Expr, Symbol, as_expr, loop_symbol, product, size_symbol
from ingot.loops.ir import Access, Buffer, Contraction, Node, Origin, Pointwise
from ingot.loops.spaces import contiguous_strides
from ingot.schedule.contraction import build_contraction, choose_blocks, choose_squares
from ingot.schedule.epilogue import canonical_contraction, laid_over_contraction
from ingot.schedule.kernel import Kernel
from tests.codegen.harness import body, check, launch

f32, f64 = torch.float32, torch.float64
NONE = Origin(())


def matrix(memory: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    return memory[: rows * columns].view(rows, columns)


class Case:
    """A contraction of "a" [batch, m, k] and "b" [batch, k, n] into "c"; dimensions are laid out in
    the given order."""

    def __init__(
        self, sizes: tuple[Any, Any, Any], batch: tuple[int, ...] = (), left: str = "mk",
        right: str = "kn",
        out: str = "mn", dtype: torch.dtype = f32,
    ) -> None:  # fmt: skip
        m, k, n = sizes
        self.loops = {"m": loop_symbol("m", m), "k": loop_symbol("k", k), "n": loop_symbol("n", n)}
        self.batch = tuple(loop_symbol(f"b{d}", size) for d, size in enumerate(batch))
        self.dtype = dtype
        self.buffers: dict[str, Buffer] = {}
        a, b, c = (
            self.access(name, order) for name, order in (("a", left), ("b", right), ("c", out))
        )
        row, inner, column = self.loops.values()
        self.node = canonical_contraction(
            Contraction(
                "c", NONE, self.batch, (row,), (column,), (inner,), a, b, "c", c.index, dtype
            )
        )

    def access(self, name: str, order: str) -> Access:
        """All of a fresh buffer whose dimensions are the batch and those named in `order`,
        outermost first."""
        loops = [*self.batch, *(self.loops[d] for d in order)]
        sizes = tuple(s.extent for s in loops)
        strides = contiguous_strides(sizes)
        self.buffers[name] = Buffer(name, self.dtype, sizes, strides)
        return Access(name, sum((s * stride for s, stride in zip(loops, strides)), ZERO))

    def kernel(self, *more: Node, internal: tuple[str, ...] = ()) -> Kernel:
        kernel, self.names = build_contraction([self.node, *more], set(internal), self.buffers)
        return kernel

    def tensors(self, sizes: dict[Symbol, int] | None = None) -> list[torch.Tensor]:
        """Memory for the kernel's parameters, random, and more behind its end, which must stay as
        it is."""
        drawn = torch.Generator().manual_seed(0)
        counts = (product(self.buffers[name].sizes).evaluate(sizes or {}) for name in self.names)
        return [
            torch.randn(count + 64, dtype=torch.float64, generator=drawn).to(self.dtype)
            for count in counts
        ]

    def check(self, *more: Node, internal: tuple[str, ...] = (), tolerance: float = 2e-5) -> None:
        kernel = self.kernel(*more, internal=internal)
        extent = kernel.points.evaluate({})
        check(kernel, self.tensors(), extent, tolerance=tolerance)


SIZES = [
    (1, 1, 1), (1, 5, 3), (7, 2, 15), (8, 16, 16), (9, 17, 17), (17, 33, 31), (13, 1, 48),
    (8, 127, 49), (5, 128, 64), (16, 129, 47), (25, 3 * DEPTH, 65), (3, 2 * DEPTH + 1, 130),
    (300, 5, 10), (531, 130, 100),
]  # fmt: skip


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("left, right", [("mk", "kn"), ("mk", "nk"), ("km", "kn"), ("km", "nk")])
def test_sizes_and_layouts(sizes, left, right):
    Case(sizes, left=left, right=right).check()


@pytest.mark.parametrize(
    "sizes", [(512, 2, 48), (600, 17, 49), (515, DEPTH + 5, 64), (1027, 2 * DEPTH, 130)], ids=str
)
@pytest.mark.parametrize("right", ["kn", "nk"])
@pytest.mark.parametrize("type, tolerance", [(f32, 2e-5), (f64, 1e-12)])
def test_rows_whose_steps_lie_far_apart_are_copied(sizes, right, type, tolerance):
    case = Case(sizes, left="km", right=right, dtype=type)
    assert case.kernel().product.copies
    case.check(tolerance=tolerance)


@pytest.mark.parametrize("sizes", [(300, 20, 200), (600, DEPTH + 5, 200)], ids=str)
def test_copied_rows_are_kept_for_the_next_columns_of_the_same_rows(sizes):
    case = Case(sizes, (3,), left="km")
    product_ = case.kernel().product
    assert product_.copies and product_.column_blocks.constant > 1
    case.check()


def test_rows_are_copied_where_that_pays():
    copied = {
        (sizes, left): Case(sizes, left=left).kernel().product.copies
        for sizes in ((600, 20, 50), (200, 20, 50), (600, 20, 40)) for left in ("km", "mk")
    }  # fmt: skip
    assert [key for key, copies in copied.items() if copies] == [((600, 20, 50), "km")]


@pytest.mark.parametrize("out", ["mn", "nm"])
@pytest.mark.parametrize("batch", [(1,), (3,), (2, 3)], ids=str)
def test_batches_and_results_laid_out_otherwise(batch, out):
    Case((9, 20, 50), batch, right="nk", out=out).check()


def test_doubles():
    Case((19, DEPTH + 3, 40), right="nk", dtype=f64).check(tolerance=1e-12)


@pytest.mark.parametrize("columns, cleared", [(48, False), (50, True)])
def test_columns_that_are_not_there_are_zero(columns, cleared):
    """What memory happens to hold there could be denormal numbers, with which arithmetic is
    slow."""
    kernel = Case((40, 20, columns), right="nk").kernel()
    text = compile_kernels([kernel], (), named("avx512")).ir(kernel)
    assert ("store <16 x float> zeroinitializer" in text) == cleared


@pytest.mark.parametrize("columns, packed", [(64, False), (63, True), (128, True)])
def test_a_right_operand_that_lies_as_it_would_be_packed_is_read_where_it_lies(columns, packed):
    case = Case((100, DEPTH + 20, columns))
    kernel = case.kernel()
    text = compile_kernels([kernel], (), named("avx512")).ir(kernel)
    assert ("call void @pack_rows" in text) == packed
    case.check()


def test_operands_may_lie_apart_or_be_one():
    case = Case((12, 30, 20))
    row, inner, column = case.loops.values()
    case.buffers["b"] = Buffer("b", f32, (as_expr(30 * 20 * 3),), (as_expr(1),))
    apart = replace(case.node, right=Access("b", inner * 60 + column * 3))
    case.node = apart
    case.check()
    case = Case((20, 30, 20))
    row, inner, column = case.loops.values()
    case.node = replace(case.node, right=Access("a", column * 30 + inner))
    case.check()


def test_a_reduction_over_several_loops():
    """As a convolution has it: rows over two loops, of the reduction the window's before the
    channels'."""
    y, x, n = loop_symbol("y", 5), loop_symbol("x", 6), loop_symbol("n", 33)
    t, k = loop_symbol("t", 3), loop_symbol("k", 20)
    case = Case((1, 1, 1))
    for name, count in (("a", 5 * 8 * 20), ("b", 33 * 60), ("c", 30 * 33)):
        case.buffers[name] = Buffer(name, f32, (as_expr(count),), (as_expr(1),))
    left, right = Access("a", y * 160 + (x + t) * 20 + k), Access("b", n * 60 + k * 3 + t)
    case.node = canonical_contraction(
        Contraction(
            "c", NONE, (), (y, x), (n,), (t, k), left, right, "c", (y * 6 + x) * 33 + n, f32
        )
    )
    assert len(case.node.reduced) == 2 and len(case.node.rows) == 2
    case.check()


def finished(case: Case, name: str, value, *reads: str) -> Pointwise:
    """A pointwise node name = value(c, reads ...) over one flat loop, before it is laid over the
    contraction."""
    whole: Expr = product(case.buffers["c"].sizes)
    i = loop_symbol("i", whole)
    case.buffers[name] = Buffer(
        name, case.dtype, case.buffers["c"].sizes, case.buffers["c"].strides
    )
    program = body(lambda: value(*(ops.load(r, i, case.dtype) for r in ("c", *reads))))
    return Pointwise(name, NONE, (i,), program, name, i)


@pytest.mark.parametrize("sizes", [(17, 40, 50), (8, 200, 16), (30, 257, 100)], ids=str)
@pytest.mark.parametrize("internal", [(), ("c",)])
def test_epilogues(sizes, internal):
    case = Case(sizes, right="nk")
    case.buffers["r"] = case.buffers["c"]
    node = finished(case, "d", lambda c, r: ops.apply("add", ops.apply("tanh", c), r), "r")
    laid = laid_over_contraction(node, [case.node])
    assert laid is not None
    case.check(laid[-1], internal=internal)


def test_lines_that_a_tile_is_finished_in_are_asked_for_as_it_is_multiplied():
    """The result's, those of what is read beside it, and what the next depth packs."""
    case = Case((17, 200, 96), right="nk")
    case.buffers["r"] = case.buffers["c"]
    for nodes, lines in (
        ((), 3),
        ((finished(case, "d", lambda c, r: ops.apply("add", c, r), "r"),), 6),
    ):
        laid = laid_over_contraction(nodes[0], [case.node]) if nodes else [case.node]
        assert laid is not None
        kernel = case.kernel(*laid[1:], internal=("c",) if nodes else ())
        text = compile_kernels([kernel], (), named("avx512")).ir(kernel)
        # and what stands there before
        assert text.count("store ptr ") == lines + DEPTH * 4 // 64 + 1


def test_an_epilogue_over_finer_rows_splits_them():
    case = Case((12, 40, 20), right="nk")
    y, x, n = loop_symbol("y", 3), loop_symbol("x", 4), loop_symbol("c", 20)
    case.buffers["d"] = Buffer("d", f32, (as_expr(3 * 5 * 20),), (as_expr(1),))
    with ops.recording() as recorder:
        program = recorder.body(ops.apply("neg", ops.load("c", (y * 4 + x) * 20 + n, f32)))
    node = Pointwise("d", NONE, (y, x, n), program, "d", (y * 5 + x) * 20 + n)
    laid = laid_over_contraction(node, [case.node])
    assert laid is not None
    case.node = laid[0]
    assert len(case.node.rows) == 2
    case.check(*laid[1:], internal=("c",))


@pytest.mark.parametrize(
    "channels, window", [(5, (3,)), (16, (3, 3)), (40, (3, 3)), (3, (7, 7)), (20, (1, 2))]
)
def test_a_window_within_the_channels_of_the_right_operand(channels, window):
    """As the weight of a convolution has it: all of the window's elements are packed with a few
    channels."""
    rows, columns, taps = 5, 33, len(torch.ones(window).flatten())
    y, n, k = loop_symbol("y", rows), loop_symbol("n", columns), loop_symbol("k", channels)
    around = tuple(loop_symbol(f"t{d}", size) for d, size in enumerate(window))
    case = Case((1, 1, 1))
    place = sum(
        (s * stride for s, stride in zip(around, contiguous_strides([s.extent for s in around]))),
        ZERO,
    )
    apart = sum((s * (17 * channels * (d + 1)) for d, s in enumerate(around)), ZERO)
    for name, count in (
        ("a", 40 * 17 * channels),
        ("b", columns * channels * taps),
        ("c", rows * columns),
    ):
        case.buffers[name] = Buffer(name, f32, (as_expr(count),), (as_expr(1),))
    left, right = (
        Access("a", y * channels + apart + k),
        Access("b", n * (channels * taps) + k * taps + place),
    )
    case.node = canonical_contraction(
        Contraction("c", NONE, (), (y,), (n,), (*around, k), left, right, "c", y * columns + n, f32)
    )
    case.check()


@pytest.mark.parametrize("rows, columns", [(40, 40), (70, 33), (8, 64), (5, 130)])
@pytest.mark.parametrize("height, width", [(3, 5), (7, 56), (50, 20), (4, 64), (2, 65)])
def test_short_sums_around_which_a_loop_runs(rows, columns, height, width):
    """As the gradient of a convolution's weight has it: several lines of pixels are one depth."""
    y, x = loop_symbol("y", height), loop_symbol("x", width)
    m, n = loop_symbol("m", rows), loop_symbol("n", columns)
    case = Case((1, 1, 1))
    for name, count in (
        ("a", height * (width + 2) * rows),
        ("b", height * width * columns),
        ("c", rows * columns),
    ):
        case.buffers[name] = Buffer(name, f32, (as_expr(count),), (as_expr(1),))
    left = Access("a", (y * (width + 2) + x) * rows + m)
    right = Access("b", (y * width + x) * columns + n)
    case.node = canonical_contraction(
        Contraction("c", NONE, (), (m,), (n,), (y, x), left, right, "c", m * columns + n, f32)
    )
    assert len(case.node.reduced) == 2
    case.check()


def test_special_values():
    case = Case((9, 20, 20), right="nk")
    kernel = case.kernel()
    compiled = compile_kernels([kernel], [])
    a, b, c = case.tensors()
    a[3], a[25], b[41] = float("inf"), float("nan"), -float("inf")
    assert launch(kernel, [a, b, c], [(0, kernel.points.evaluate({}))], compiled=compiled) == 0
    expected = matrix(a, 9, 20) @ matrix(b, 20, 20).t()
    assert expected.isnan().any() and expected.isinf().any()
    torch.testing.assert_close(matrix(c, 9, 20), expected, rtol=1e-5, atol=1e-5, equal_nan=True)


def test_sizes_that_are_symbols():
    m, k, n = (size_symbol(name) for name in "mkn")
    case = Case((m, k, n), right="nk")
    kernel = case.kernel()
    compiled = compile_kernels([kernel], [m, k, n])
    small = range(1, 18)
    for sizes in [
        *product_of(small, small, small),
        (5, 300, 17),
        (9, 128, 48),
        (64, 3, 100),
        (270, 20, 200),
    ]:
        values = dict(zip((m, k, n), sizes))
        a, b, c = case.tensors(values)
        assert (
            launch(kernel, [a, b, c], [(0, kernel.points.evaluate(values))], values, compiled) == 0
        )
        expected = (
            matrix(a, sizes[0], sizes[1]).double() @ matrix(b, sizes[2], sizes[1]).double().t()
        )
        assert torch.allclose(
            matrix(c, sizes[0], sizes[2]).double(), expected, rtol=2e-5, atol=2e-5
        ), sizes


def test_copied_rows_of_sizes_that_are_symbols():
    m, k = size_symbol("m"), size_symbol("k")
    case = Case((m, k, 70), left="km")
    kernel = case.kernel()
    assert kernel.product.copies
    compiled = compile_kernels([kernel], [m, k])
    for rows, inner in [
        *product_of(range(1, 18), (1, 2, 30)),
        (270, 20),
        (600, DEPTH + 1),
        (64, 3 * DEPTH),
    ]:
        values = {m: rows, k: inner}
        a, b, c = case.tensors(values)
        assert (
            launch(kernel, [a, b, c], [(0, kernel.points.evaluate(values))], values, compiled) == 0
        )
        expected = matrix(a, inner, rows).double().t() @ matrix(b, inner, 70).double()
        torch.testing.assert_close(matrix(c, rows, 70).double(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["avx2", "avx512", "neon"])
@pytest.mark.parametrize(
    "sizes", [(17, 140, 50), (9, 20, 64), (9, 20, 30), (517, 140, 50)], ids=str
)
@pytest.mark.parametrize("left", ["mk", "km"])
def test_other_targets(name, sizes, left):
    """Compiled for them; run where this machine can."""
    target = named(name)
    case = Case(sizes, left=left, right="nk")
    kernel = case.kernel()
    runs = (
        target.triple.split("-")[0] == host().triple.split("-")[0]
        and target.vector_bytes <= host().vector_bytes
    )
    compiled = compile_kernels([kernel], [], target, load=runs)
    assert compiled.object_code
    if runs:
        a, b, c = case.tensors()
        assert launch(kernel, [a, b, c], [(0, kernel.points.evaluate({}))], compiled=compiled) == 0
        rows = matrix(a, sizes[0], sizes[1]) if left == "mk" else matrix(a, sizes[1], sizes[0]).t()
        expected = rows @ matrix(b, sizes[2], sizes[1]).t()
        torch.testing.assert_close(matrix(c, sizes[0], sizes[2]), expected, rtol=2e-5, atol=2e-5)


def test_kernels_of_one_module_share_their_parts(monkeypatch):
    monkeypatch.setattr(objects, "_processors", lambda: 1)
    first, second = (
        Case((16, 96, 96), right="nk").kernel(),
        Case((16, 192, 480), right="nk").kernel(),
    )
    compiled = compile_kernels([first, second], [], load=False)
    assert compiled.function_count == 2
    assert compiled.assembly().count("multiply_float_8x3x16:") <= 1


@pytest.mark.parametrize("name", ["avx2", "avx512", "neon"])
@pytest.mark.parametrize("columns", [16, 32, 48, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("type", ["float", "double"])
def test_tiles_fit_the_columns_and_the_registers(name, columns, type):
    target = named(name)
    for rows in (0, 1, 49, 64, 196, 264):
        tile = choose_tile(type, columns, target, rows)
        assert columns % tile.width == 0
        registers = 16 if name == "avx2" else 32
        assert tile.rows * tile.vectors + tile.vectors + 1 <= registers


def test_tiles_leave_few_rows_empty():
    target = named("avx512")
    assert [choose_tile("float", 64, target, rows).rows for rows in (264, 197, 49, 16, 5, 1)] == [
        6,
        6,
        5,
        4,
        5,
        4,
    ]


def test_tiles_are_high_where_that_leaves_a_row_or_two_empty():
    """Two of 258 rows are nothing; tiles of four rows read the other operand half as often
    again."""
    target = named("avx512")
    assert (
        choose_tile("float", 64, target, 256).rows
        == choose_tile("float", 64, target, 256, 24).rows
        == 6
    )


def blocks(rows: int, columns: int, reduced: int = 512) -> tuple[int, int]:
    return choose_blocks(
        as_expr(1), as_expr(rows), as_expr(columns), columns * reduced, rows * reduced
    )


def test_blocks_are_tall_where_there_are_many():
    assert blocks(49, 512) == (49, 64) and blocks(1024, 256) == (258, 64)
    assert blocks(512, 1024, 256) == (516, 64) and blocks(512, 256, 256) == (258, 64)
    assert blocks(1 << 16, 32) == (1056, 32) and blocks(1 << 20, 256) == (1056, 64)


def test_blocks_have_about_as_many_tiles_each():
    for rows, tiles in (512, [43, 43]), (1024, [43, 43, 43, 42]), (1500, [63, 63, 63, 61]):
        height, _ = blocks(rows, 256)
        assert [-(-min(height, rows - start) // 6) for start in range(0, rows, height)] == tiles


def test_blocks_are_wide_where_each_reads_much_again():
    assert blocks(128, 768, 768) == (128, 48) and blocks(128, 768, 1 << 16) == (128, 96)


def test_blocks_that_copy_both_operands_are_about_square():
    sizes = (3072, 768), (1024, 256), (512, 48)
    assert [choose_squares(as_expr(1), as_expr(m), as_expr(n)) for m, n in sizes] == [
        (264, 288),
        (216, 128),
        (72, 48),
    ]


def test_blocks_whose_copied_rows_are_kept_are_high_and_narrow():
    sizes = (3072, 768, 128), (1024, 256, 512), (256, 1024, 512), (1024, 256, 4096)
    chosen = [choose_squares(as_expr(1), as_expr(m), as_expr(n), 4 * k) for m, n, k in sizes]
    assert chosen == [(528, 96), (264, 128), (256, 128), (216, 128)]


def test_blocks_whose_copied_rows_are_kept_are_an_even_number_high():
    """Three would have two threads copy the rows of the one in the middle."""
    assert choose_squares(as_expr(1), as_expr(768), as_expr(256), 4 * 512) == (192, 128)


@pytest.mark.parametrize("columns, width, steps", [(256, 64, 68), (96, 48, 100)])
def test_depths_of_copied_operands_are_about_as_long(columns, width, steps):
    """... and what one packs for a tile leaves room in a first-level cache for what it copies."""
    kernel = Case((512, 200, columns), left="km").kernel()
    assert kernel.product is not None and kernel.product.copies
    emitter = _ContractionEmitter(kernel, kernel.product, (), named("avx512"), False)
    assert (emitter.tile.width, emitter.depths.steps) == (width, steps)
    assert steps * width * 4 <= PANEL


def test_a_block_is_halved_where_packing_twice_takes_less_than_reading_what_another_thread_wrote():
    assert (
        blocks(196, 256) == (98, 64)
        and blocks(196, 1024) == (196, 64)
        and blocks(100, 256) == (100, 64)
    )


def test_one_block_of_few_rows_or_of_any_number_is_halved_across():
    assert (
        blocks(100, 64) == (100, 32)
        and blocks(100, 64, 64) == (100, 64)
        and blocks(100, 48) == (100, 48)
    )
    assert choose_blocks(as_expr(1), size_symbol("s0"), as_expr(64), 64 * 512) == (264, 32)
