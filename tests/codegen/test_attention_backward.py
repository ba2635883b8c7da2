"""Kernels of attention's gradients against the oracle, at sizes around the block, the chunk of keys
and the tiles."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from ingot.codegen.llvm.attention_backward import CHUNK
from ingot.codegen.llvm.module import compile_kernels
from ingot.codegen.llvm.target import named
from ingot.loops.expr import as_expr
from ingot.loops.ir import AttentionBackward, Origin
from ingot.schedule.attention import attention_step
from tests.codegen.harness import check, launch
from tests.codegen.test_attention import (
    BATCHES,
    KEYS,
    QUERIES,
    between_guards,
    masks,
    of_sizes,
    view,
)
from tests.codegen.test_bounds import memory_of, stray
from tests.long import long

# batches, heads, queries, keys, width of a key, width of a value
SIZES = [
    (1, 1, 2, 1, 1, 1),
    (2, 3, 5, 7, 4, 4),
    (1, 2, 16, 16, 16, 16),
    (2, 2, 17, 65, 20, 24),
    (1, 2, 65, 64, 33, 16),
    (1, 1, 130, CHUNK + 1, 64, 64),
    (1, 1, 70, 300, 8, 130),
    (1, 2, 200, 70, 32, 80),
]
TOLERANCE = 1e-5


def case(
    batches, heads, queries, keys, width, value_width, mask=None, symbolic=False, causal=False
):
    """A launch whose queries, keys and values lie side by side in (batch, token, feature), and its
    tensors. Gradients lie in tensors of their own, and hold something before."""
    torch.manual_seed(queries * 1000 + keys)
    widths = [heads * width, heads * width, heads * value_width]
    packed = torch.randn(batches, max(queries, keys), sum(widths))
    query, key, value = (
        part.unflatten(2, (heads, -1)).transpose(1, 2)[:, :, :rows]
        for part, rows in zip(packed.split(widths, 2), (queries, keys, keys))
    )
    tangent = torch.randn(batches, heads, queries, value_width)
    scores = query.double() @ key.double().mT * width**-0.5 + (0 if mask is None else mask[1])
    if causal:
        scores = scores.masked_fill(~torch.ones(queries, keys, dtype=torch.bool).tril(), -torch.inf)
    sums = copied(scores.logsumexp(-1).transpose(1, 2))
    result = copied((scores.softmax(-1) @ value.double()).transpose(1, 2))
    gradients = [
        torch.full((batches, rows, heads, columns), 7.0)
        for rows, columns in ((queries, width), (keys, width), (keys, value_width))
    ]
    views = {
        "tangent": view("tangent", tangent),
        "query": view("packed", query),
        "key": view("packed", key),
        "value": view("packed", value),
        "mask": None
        if mask is None
        else view("mask", mask[1].expand(batches, heads, queries, keys)),
        "result": view("result", result.transpose(1, 2)),
        "logarithms": view("sums", sums.transpose(1, 2)),
        "of_query": view("of_query", gradients[0].transpose(1, 2)),
        "of_key": view("of_key", gradients[1].transpose(1, 2)),
        "of_value": view("of_value", gradients[2].transpose(1, 2)),
    }
    if symbolic:
        rows = {"key": KEYS, "value": KEYS, "of_key": KEYS, "of_value": KEYS}
        for name, given in views.items():
            if name == "logarithms":
                views[name] = replace(given, sizes=(BATCHES, as_expr(heads), QUERIES))
            elif given is not None:
                views[name] = of_sizes(
                    given, rows.get(name, QUERIES), KEYS if name == "mask" else None
                )
    step = attention_step(
        AttentionBackward("a", Origin(()), **views, scale=width**-0.5, causal=causal)
    )
    tensors = {
        "tangent": tangent,
        "packed": packed,
        "mask": None if mask is None else mask[0],
        "result": result,
    }
    tensors |= {"sums": sums} | dict(zip(("of_query", "of_key", "of_value"), gradients))
    return step, [tensors[name] for name in step.arguments]


def copied(tensor):
    """In float32, and as if it had been made in that layout."""
    return torch.empty(tensor.shape).copy_(tensor)


def finite(mask, sizes):
    """A mask that hides nothing wholly: what sees nothing has no gradient."""
    batches, heads, queries, keys, _, _ = sizes
    found = masks(batches, heads, queries, keys)[mask]
    return found and tuple(tensor.clamp_(min=-9) for tensor in found)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("mask, causal", [("none", True), ("columns of another", False)])
def test_against_the_oracle(sizes, mask, causal):
    step, tensors = case(*sizes, mask=finite(mask, sizes), causal=causal)
    check(step.kernel, tensors, step.extent.constant, tolerance=TOLERANCE)


@pytest.mark.parametrize("sizes", SIZES[::2], ids=str)
@pytest.mark.parametrize("mask, causal", [("none", False), ("of one row", True)])
def test_of_symbolic_sizes(sizes, mask, causal):
    step, tensors = case(*sizes, mask=finite(mask, sizes), causal=causal, symbolic=True)
    batches, _, queries, keys, _, _ = sizes
    values = {BATCHES: batches, QUERIES: queries, KEYS: keys}
    check(step.kernel, tensors, step.extent.evaluate(values), values, TOLERANCE)


def test_a_mask_hides_keys():
    hidden = torch.rand(70, 120) > 0.7
    hidden[:, 0] = False
    mask = torch.where(hidden, -torch.inf, 0.0)
    step, tensors = case(1, 2, 70, 120, 16, 16, mask=(mask, mask))
    check(step.kernel, tensors, step.extent.constant, tolerance=TOLERANCE)


@pytest.mark.skipif(sys.platform != "linux", reason="needs mprotect")
@long
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("at_end", [True, False])
def test_nothing_outside_of_the_arrays_is_touched(at_end, symbolic):
    """The arrays lie against pages that may not be touched: the process would die. In one of its
    own, for that."""
    call = f"launch_between_guards({at_end}, {symbolic}); print('alive')"
    program = f"from tests.codegen.test_attention_backward import launch_between_guards; {call}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == "alive\n", done.stderr[-2000:]


def launch_between_guards(at_end, symbolic):
    for sizes in SIZES:
        batches, _, queries, keys, _, _ = sizes
        step, tensors = case(*sizes, mask=finite("dense", sizes), symbolic=symbolic)
        guarded = [between_guards(t, at_end) for t in tensors]
        values = {BATCHES: batches, QUERIES: queries, KEYS: keys} if symbolic else {}
        for memory in (tensors, guarded):
            assert launch(step.kernel, memory, [(0, step.extent.evaluate(values))], values) == 0
        for mine, its in zip(tensors, guarded):
            assert torch.equal(mine.view(torch.int32), its.view(torch.int32))


@pytest.mark.parametrize("mask", ["dense", "of one row"])
def test_operands_are_checked(mask):
    sizes = (2, 2, 17, 65, 20, 24)
    step, tensors = case(*sizes, mask=finite(mask, sizes))
    extent, kernel = step.extent.constant, step.kernel
    compact = [memory_of(t) for t in tensors]
    assert not stray(kernel, *compact, extent=extent)
    names = (
        "tangent",
        "query",
        "key",
        "value",
        "mask",
        "result",
        "logarithms",
        "of_query",
        "of_key",
        "of_value",
    )
    for k, name in enumerate(names):
        operand = getattr(kernel, name)
        moved = replace(
            kernel, **{name: operand._replace(offset=operand.offset + (-1) ** k * 10**6)}
        )
        assert stray(moved, *compact, extent=extent), name
    for position in range(len(compact)):
        short = [
            t[: t.numel() * 2 // 3] if other == position else t for other, t in enumerate(compact)
        ]
        assert stray(kernel, *short, extent=extent), step.arguments[position]


@pytest.mark.parametrize("special", [torch.nan, torch.inf, 1e30])
def test_special_values_are_the_oracles(special):
    step, tensors = case(1, 1, 20, 30, 8, 8)
    tensors[step.arguments.index("tangent")][0, 0, 5, 3] = special  # of the sixth query
    check(step.kernel, tensors, step.extent.constant, tolerance=TOLERANCE)


@pytest.mark.parametrize("name", ["avx2", "avx512", "neon"])
def test_other_targets_compile(name):
    step, _ = case(2, 2, 17, 65, 20, 24, causal=True)
    assert len(compile_kernels([step.kernel], [], named(name), load=False).object_code) > 1000


def test_kernels_equal_but_for_their_buffers_share_one_body():
    (first, _), (second, _), (other, _) = (
        case(1, 2, 20, 30, 8, 8, causal=causal) for causal in (False, False, True)
    )
    kernels = [first.kernel, replace(second.kernel, name="other"), other.kernel]
    assert compile_kernels(kernels, []).function_count == 2
