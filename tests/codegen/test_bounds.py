"""The mode in which compiled code checks its own accesses: it finds each kind of stray one, and
nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import ingot
from ingot.codegen.llvm.emitter import Value
from ingot.codegen.llvm.memory import Memory
from ingot.codegen.llvm.module import compile_kernels
from ingot.errors import OutOfBounds
from ingot.loops import ops
from ingot.loops.expr import Expr, integer, loop_symbol
from ingot.loops.ir import Access, Origin
from ingot.schedule.contraction import build_contraction
from ingot.schedule.kernel import Accumulate, Kernel, Parameter, Row, Store
from tests.codegen.harness import body, launch, parameter, scalar, stage, with_lengths
from tests.codegen.test_attention import case as attention_case
from tests.codegen.test_attention import masks
from tests.codegen.test_contraction import Case
from tests.codegen.test_transposes import transposing
from tests.long import long

f32, i64 = torch.float32, torch.int64
N = 37


def stray(kernel: Kernel, *tensors: torch.Tensor, extent: int = N) -> bool:
    """Whether the kernel reports an access outside of a buffer."""
    kernel = with_lengths(kernel, tensors)
    compiled = compile_kernels([kernel], [], check_bounds=True)
    status = launch(kernel, tensors, [(0, extent)], compiled=compiled)
    assert status == 0 or compiled.errors(kernel)[status - 1].error is OutOfBounds
    return status != 0


def moving(source: Expr, target: Expr, mode: str = "store") -> Kernel:
    only = stage((), body(lambda: ops.load("x", source, f32)), (Store("out", target, 0, mode),))
    declared = (parameter("x"), Parameter("out", f32, mode == "add", True))
    return Kernel("k", Origin(()), (LOOP,), (only,), declared, (), 1, LOOP)


LOOP = loop_symbol("i", N)
INSIDE = [
    (LOOP, LOOP),
    (N - 1 - LOOP, LOOP),
    (LOOP * 2, LOOP),
    (LOOP, LOOP * 2),
    (integer(0), LOOP),
]
INSIDE += [(LOOP // 2, LOOP), (LOOP % 7, LOOP)]


@pytest.mark.parametrize("source, target", INSIDE, ids=str)
def test_what_stays_inside_is_not_reported(source, target):
    assert not stray(moving(source, target), torch.randn(2 * N - 1), torch.zeros(2 * N - 1))


@pytest.mark.parametrize("mode", ["store", "add"])
@pytest.mark.parametrize("offset", [1, -1, 10**6])
@pytest.mark.parametrize("source, target", INSIDE, ids=str)
def test_each_kind_of_load_and_store_is_checked(source, target, offset, mode):
    x, out = (
        torch.zeros(max(e.evaluate({LOOP: i}) for i in range(N)) + 1) for e in (source, target)
    )
    assert not stray(moving(source, target, mode), x, out)
    assert stray(moving(source + offset, target, mode), x, out)
    assert stray(moving(source, target + offset, mode), x, out)


def test_conditions_and_lanes_out_of_range_do_not_count():
    i = loop_symbol("i", N)

    def value():
        with ops.masked(ops.apply("lt", ops.index(i), ops.constant(20, i64))):
            return ops.load("x", i, f32)

    only = stage((), body(value), (Store("out", i, 0),))
    kernel = Kernel(
        "k", Origin(()), (i,), (only,), (parameter("x"), parameter("out", written=True)), (), 1, i
    )
    assert not stray(kernel, torch.randn(20), torch.zeros(N))
    assert stray(kernel, torch.randn(19), torch.zeros(N))


def test_rows_of_scratch_are_checked():
    i, j = loop_symbol("i", 3), loop_symbol("j", N)

    def kernel(length: int) -> Kernel:
        stages = (
            stage((j,), body(lambda: ops.load("x", i * N + j, f32)), (Store("h", j, 0),)),
            stage((j,), body(lambda: ops.load("h", j, f32)), (Store("out", i * N + j, 0),)),
        )
        declared = (parameter("x"), parameter("out", written=True))
        return Kernel("k", Origin(()), (i,), stages, declared, (Row("h", f32, integer(length)),))

    x = torch.randn(3, N)
    assert not stray(kernel(N), x, torch.zeros(3, N), extent=3)
    assert stray(kernel(N - 1), x, torch.zeros(3, N), extent=3)


def test_reductions_are_checked():
    j = loop_symbol("j", N)
    stages = (
        stage((j,), body(lambda: ops.load("x", j, f32)), (), (Accumulate("sum", 0, "r", f32),)),
        stage((), body(lambda: scalar("r")), (Store("out", integer(0), 0),)),
    )
    kernel = Kernel(
        "k", Origin(()), (), stages, (parameter("x"), parameter("out", written=True)), (), 0
    )
    assert not stray(kernel, torch.randn(N), torch.zeros(1), extent=1)
    assert stray(kernel, torch.randn(N - 1), torch.zeros(1), extent=1)


def test_transposed_blocks_are_checked():
    kernel = transposing(20, 37)
    assert not stray(kernel, torch.randn(740), torch.zeros(740), extent=20)
    assert stray(kernel, torch.randn(739), torch.zeros(740), extent=20)
    assert stray(kernel, torch.randn(740), torch.zeros(739), extent=20)


def test_code_without_the_mode_has_no_checks():
    kernel = with_lengths(moving(LOOP, LOOP), (torch.randn(N), torch.randn(N)))
    compiled = compile_kernels([kernel], [], check_bounds=False)
    assert compiled.errors(kernel) == () and "ptrtoint" not in compiled.ir(kernel)


def test_a_wrong_index_of_a_whole_program_is_raised(monkeypatch):
    """Not swallowed, and not run again in eager."""
    monkeypatch.setenv("INGOT_CHECK_BOUNDS", "1")
    x = torch.randn(6, 50)
    with torch.no_grad():
        assert torch.equal(ingot.compile(lambda x: x[:, 3:] * 2)(x), x[:, 3:] * 2)
        address = Memory.address

        def one_further(memory: Memory, buffer: str, index: Expr) -> tuple[Value, bool]:
            pointer, adjacent = address(memory, buffer, index)
            return memory.emitter.pointer(pointer, "float", 1), adjacent

        monkeypatch.setattr(Memory, "address", one_further)
        with pytest.raises(OutOfBounds, match="outside of its buffer"):
            ingot.compile(lambda x: x.flip(1) * 2)(x)


CONTRACTIONS = [
    ((37, 300, 50), "kn"),
    ((37, 300, 50), "nk"),
    ((5, 20, 70), "kn"),
    ((1, 7, 3), "nk"),
]


@pytest.mark.parametrize("sizes, right", CONTRACTIONS, ids=str)
def test_operands_of_contractions_are_checked(sizes, right):
    m, k, n = sizes
    kernel = Case(sizes, right=right).kernel()
    extent = kernel.points.evaluate({})
    lengths = [m * k, k * n, m * n]
    assert not stray(kernel, *map(torch.zeros, lengths), extent=extent)
    for position in range(3):
        short = [length - (position == other) for other, length in enumerate(lengths)]
        assert stray(kernel, *(torch.zeros(length + 1)[:length] for length in short), extent=extent)


@pytest.mark.parametrize("offset", [-1, 1])
def test_contractions_that_begin_elsewhere(offset):
    case = Case((37, 30, 50))
    for side in ("left", "right"):
        access = getattr(case.node, side)
        moved = Access(access.buffer, access.index + offset)
        kernel, _ = build_contraction([replace(case.node, **{side: moved})], set(), case.buffers)
        whole = [torch.zeros(3000)[500 : 500 + size] for size in (37 * 30, 30 * 50, 37 * 50)]
        assert stray(kernel, *whole, extent=kernel.points.evaluate({}))


@pytest.mark.parametrize("window", [(1, 1), (3, 1), (3, 2)], ids=str)
@pytest.mark.parametrize("freeze", [False, True])
def test_convolutions_stay_inside(window, freeze, monkeypatch):
    monkeypatch.setenv("INGOT_CHECK_BOUNDS", "1")
    model = torch.nn.Sequential(
        *(torch.nn.Conv2d(20, 20, *window, padding=window[0] // 2) for _ in range(3))
    )
    x = torch.randn(2, 20, 15, 17)
    with torch.no_grad():
        found = ingot.compile(model, options={"freeze": freeze})(x)
        torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "causal, mask", [(False, "dense"), (True, "of one row"), (False, "columns of another")]
)
@long
@pytest.mark.parametrize("sizes", [(2, 4, 2, 17, 65, 20, 24), (1, 1, 1, 130, 129, 64, 64)], ids=str)
def test_operands_of_attention_are_checked(sizes, causal, mask):
    batches, heads, _, queries, keys, _, _ = sizes
    step, tensors = attention_case(
        *sizes, mask=masks(batches, heads, queries, keys)[mask], causal=causal
    )
    extent, kernel = step.extent.constant, step.kernel
    compact = [memory_of(t) for t in tensors]
    assert not stray(kernel, *compact, extent=extent)
    operands = (kernel.query, kernel.key, kernel.value, kernel.mask, kernel.target)
    names = ("query", "key", "value", "mask", "target")
    for name, operand in zip(names, operands, strict=True):
        for offset in (-(10**6), 10**6):
            moved = replace(kernel, **{name: operand._replace(offset=operand.offset + offset)})
            assert stray(moved, *compact, extent=extent), name
    for position in (step.arguments.index(name) for name in ("packed", "out")):
        short = [t[: len(t) // 2] if other == position else t for other, t in enumerate(compact)]
        assert stray(kernel, *short, extent=extent)


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """A flat tensor of the memory behind one."""
    return torch.as_strided(
        tensor, (tensor.untyped_storage().nbytes() // tensor.itemsize,), (1,), 0
    ).clone()
