"""Attention kernels against the oracle, at sizes around the vector width and the block, on this
machine's vectors and on narrower ones."""

from __future__ import annotations

import ctypes
import mmap
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from ingot.codegen.llvm.module import compile_kernels
from ingot.codegen.llvm.target import host, named
from ingot.loops.expr import as_expr, size_symbol
from ingot.loops.ir import Attention, Origin, View
from ingot.schedule.attention import attention_step, query_block
from tests.codegen.harness import check, launch
from tests.long import long

# batches, heads, key heads, queries, keys, width of a key, width of a value
SIZES = [
    (1, 1, 1, 2, 1, 1, 1),
    (2, 3, 3, 5, 7, 4, 4),
    (1, 2, 1, 16, 16, 16, 16),
    (2, 4, 2, 17, 65, 20, 24),
    (1, 2, 2, 65, 64, 33, 16),
    (1, 1, 1, 130, 129, 64, 64),
    (1, 1, 1, 70, 300, 8, 130),
]


def view(buffer, tensor):
    return View(
        buffer, tuple(map(as_expr, tensor.shape)), tuple(map(as_expr, tensor.stride())),
        as_expr(tensor.storage_offset()), tensor.dtype,
    )  # fmt: skip


BATCHES, QUERIES, KEYS = (size_symbol(name, 1) for name in ("batches", "queries", "keys"))


def case(
    batches,
    heads,
    key_heads,
    queries,
    keys,
    width,
    value_width,
    mask=None,
    symbolic=False,
    logarithms=False,
    **options,
):
    """A launch over one buffer (batch, token, feature) that holds queries, keys and values side by
    side, and its tensors."""
    torch.manual_seed(queries * 1000 + keys)
    features = heads * width + key_heads * (width + value_width)
    packed = torch.randn(batches, max(queries, keys), features)
    query, key, value = (
        part.unflatten(2, (h, -1)).transpose(1, 2)
        for part, h in zip(
            packed.split([heads * width, key_heads * width, key_heads * value_width], 2),
            (heads, key_heads, key_heads),
        )
    )
    out = torch.full((batches, queries, heads, value_width), 7.0)
    mask_view = (
        None if mask is None else view("mask", mask[1].expand(batches, heads, queries, keys))
    )
    views = [
        view("packed", query[:, :, :queries]), view("packed", key[:, :, :keys]),
        view("packed", value[:, :, :keys]),
        mask_view, view("out", out.transpose(1, 2)),
    ]  # fmt: skip
    if symbolic:
        q, k, v, m, o = views
        views = [
            of_sizes(q, QUERIES),
            of_sizes(k, KEYS),
            of_sizes(v, KEYS),
            m and of_sizes(m, QUERIES, KEYS),
        ]
        views.append(of_sizes(o, QUERIES))
    sums = torch.full((batches, queries, heads), 7.0)
    wanted = view("sums", sums.transpose(1, 2)) if logarithms else None
    if symbolic and logarithms:
        wanted = replace(wanted, sizes=(BATCHES, wanted.sizes[1], QUERIES))
    step = attention_step(
        Attention("a", Origin(()), *views, width**-0.5, logarithms=wanted, **options)
    )
    tensors = {
        "packed": packed,
        "mask": None if mask is None else mask[0],
        "out": out,
        "sums": sums,
    }
    return step, [tensors[name] for name in step.arguments]


def of_sizes(given, rows, columns=None):
    """The view with symbols for the sizes of its batches and rows, and perhaps its columns."""
    return replace(given, sizes=(BATCHES, given.sizes[1], rows, columns or given.sizes[3]))


def masks(batches, heads, queries, keys):
    """(memory, the mask in it) by name."""
    dense = torch.randn(batches, heads, queries, keys)
    dense[dense > 1] = -torch.inf
    row, wide = dense[:, :, :1].contiguous(), torch.randn(queries, keys + 3)
    return {
        "none": None,
        "dense": (dense, dense),
        "of one row": (row, row),
        "shared": (wide[:, :keys].contiguous(), wide[:, :keys].contiguous()),
        "columns of another": (wide, wide[:, 2:-1]),
    }


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(
    "mask, causal",
    [
        ("none", False),
        ("none", True),
        ("dense", False),
        ("of one row", True),
        ("columns of another", True),
    ],
)
def test_against_the_oracle(sizes, causal, mask):
    batches, heads, _, queries, keys, _, _ = sizes
    step, tensors = case(*sizes, mask=masks(batches, heads, queries, keys)[mask], causal=causal)
    check(step.kernel, tensors, step.extent.constant)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("causal, symbolic", [(False, False), (True, False), (True, True)])
def test_logarithms_of_the_sums(sizes, causal, symbolic):
    batches, _, _, queries, keys, _, _ = sizes
    step, tensors = case(*sizes, symbolic=symbolic, logarithms=True, causal=causal)
    values = {BATCHES: batches, QUERIES: queries, KEYS: keys} if symbolic else {}
    check(step.kernel, tensors, step.extent.evaluate(values), values)


@pytest.mark.parametrize("mask, causal", [("none", True), ("dense", False), ("of one row", False)])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_of_symbolic_sizes(sizes, mask, causal):
    batches, heads, _, queries, keys, _, _ = sizes
    step, tensors = case(
        *sizes, mask=masks(batches, heads, queries, keys)[mask], symbolic=True, causal=causal
    )
    values = {BATCHES: batches, QUERIES: queries, KEYS: keys}
    check(step.kernel, tensors, step.extent.evaluate(values), values)


@pytest.mark.skipif(sys.platform != "linux", reason="needs mprotect")
@pytest.mark.parametrize("symbolic", [False, pytest.param(True, marks=long)])
@pytest.mark.parametrize("at_end", [True, pytest.param(False, marks=long)])
def test_nothing_outside_of_the_arrays_is_touched(at_end, symbolic):
    """The arrays lie against pages that may not be touched: the process would die. In one of its
    own, for that."""
    call = f"launch_between_guards({at_end}, {symbolic}); print('alive')"
    program = f"from tests.codegen.test_attention import launch_between_guards; {call}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == "alive\n", done.stderr[-2000:]


def launch_between_guards(at_end, symbolic):
    for sizes in SIZES:
        batches, heads, _, queries, keys, _, _ = sizes
        mask = masks(batches, heads, queries, keys)["dense"]
        step, tensors = case(*sizes, mask=mask, causal=True, symbolic=symbolic, logarithms=True)
        guarded = [between_guards(t, at_end) for t in tensors]
        values = {BATCHES: batches, QUERIES: queries, KEYS: keys} if symbolic else {}
        everything = [(0, step.extent.evaluate(values))]
        for memory in (tensors, guarded):
            assert launch(step.kernel, memory, everything, values) == 0
        out = step.arguments.index("out")
        assert torch.equal(tensors[out].view(torch.int32), guarded[out].view(torch.int32))


def between_guards(tensor, at_end):
    """A copy whose last element is the last before a page that may not be touched, or whose first
    is the first after one."""
    page, count = mmap.PAGESIZE, tensor.numel() * 4
    pages = -(-count // page)
    block = mmap.mmap(-1, (pages + 2) * page)
    whole = torch.frombuffer(block, dtype=torch.float32)
    start = (page + (pages * page - count if at_end else 0)) // 4
    inside = whole[start : start + tensor.numel()].view(tensor.shape)
    inside.copy_(tensor)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    for first in (whole.data_ptr(), whole.data_ptr() + (pages + 1) * page):
        assert protect(ctypes.c_void_p(first), ctypes.c_size_t(page), 0) == 0
    return inside


@pytest.mark.parametrize("zero_rows", [False, True])
def test_queries_that_see_nothing(zero_rows):
    mask = torch.zeros(20, 30)
    mask[3] = -torch.inf
    step, tensors = case(
        1, 2, 2, 20, 30, 8, 8, mask=(mask, mask), zero_rows=zero_rows, logarithms=zero_rows
    )
    check(step.kernel, tensors, step.extent.constant)
    assert launch(step.kernel, tensors, [(0, step.extent.constant)]) == 0
    row = tensors[step.arguments.index("out")][0, 3]
    assert torch.equal(row, torch.zeros_like(row)) if zero_rows else row.isnan().all()


@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf, 1e30])
def test_special_values_stay_in_their_rows(special):
    step, tensors = case(1, 1, 1, 20, 30, 8, 8)
    tensors[0][0, 5, 3] = special  # in the sixth query
    check(step.kernel, tensors, step.extent.constant)


def test_scores_far_below_the_largest_weigh_nothing():
    """Exponentials of differences down to the end of the range, subnormal results included."""
    mask = torch.linspace(-120, 0, 64)
    step, tensors = case(1, 1, 1, 2, 64, 4, 4, mask=(mask, mask))
    check(step.kernel, tensors, step.extent.constant)


@pytest.mark.skipif("avx2" not in host().features, reason="this machine cannot run AVX2 code")
@pytest.mark.parametrize("sizes", SIZES[1::2], ids=str)
def test_narrower_vectors_agree(sizes):
    batches, heads, _, queries, keys, _, _ = sizes
    narrow = replace(host(), cpu="haswell", features="", vector_bytes=32)
    step, tensors = case(*sizes, mask=masks(batches, heads, queries, keys)["shared"], causal=True)
    other = [t.clone() for t in tensors]
    everything = [(0, step.extent.constant)]
    assert launch(step.kernel, tensors, everything) == 0
    assert (
        launch(step.kernel, other, everything, compiled=compile_kernels([step.kernel], [], narrow))
        == 0
    )
    for mine, its in zip(tensors, other):
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=2e-6, equal_nan=True)


@pytest.mark.parametrize("name", ["avx2", "avx512", "neon"])
def test_other_targets_compile(name):
    step, _ = case(2, 4, 2, 17, 65, 20, 24, causal=True)
    assert len(compile_kernels([step.kernel], [], named(name), load=False).object_code) > 1000


def test_kernels_equal_but_for_their_buffers_share_one_body():
    first, _ = case(1, 2, 2, 20, 30, 8, 8)
    second, _ = case(1, 2, 2, 20, 30, 8, 8)
    other, _ = case(1, 2, 2, 20, 30, 8, 8, causal=True)
    kernels = [first.kernel, replace(second.kernel, name="other"), other.kernel]
    assert compile_kernels(kernels, []).function_count == 2


@pytest.mark.parametrize(
    "queries, block", [(2, 16), (16, 16), (17, 32), (64, 64), (128, 64), (4096, 64)]
)
def test_blocks_of_queries(queries, block):
    assert query_block(as_expr(queries)) == block
