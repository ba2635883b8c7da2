"""Attention of whole programs: which of it becomes one kernel, and that results are eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import ingot
from ingot.explain.trial import compare

attention = F.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def r(*sizes, dtype=torch.float32):
    return torch.randn(*sizes, dtype=dtype)


def double(value):
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


@torch.no_grad()
def check(fn, *args, kernels=None, **options):
    """Compiled equals eager; returns the report. `kernels` names the steps of the program."""
    compiled = ingot.compile(fn, fullgraph=True, **options)
    result, expected, exact = compiled(*args), fn(*args), fn(*map(double, args))
    comparison = compare((result, args, {}), (expected, args, {}), exact)
    assert not comparison.problems, comparison
    report = ingot.explain(compiled)(*args)
    if kernels is not None:
        assert [kernel.name for kernel in report.kernels] == kernels
    return report


PLAIN = ((2, 3, 50, 16), (2, 3, 77, 16), (2, 3, 77, 16))


SHARED = ((2, 6, 50, 16), (2, 2, 77, 16), (2, 2, 77, 16))


@pytest.mark.parametrize("sizes", [PLAIN, SHARED, ((1, 4, 64, 80),) * 3], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_the_functional_form_is_one_kernel(sizes, causal):
    shared = sizes[0][1] != sizes[1][1]
    qkv = [r(*size) for size in sizes]
    check(lambda q, k, v: attention(q, k, v, is_causal=causal, enable_gqa=shared), *qkv, kernels=["attention"])


@pytest.mark.parametrize("sizes", [(50, 77), (1, 77), (2, 1, 1, 77), (2, 3, 50, 77)], ids=str)
def test_masks_are_added(sizes):
    qkv = [r(*size) for size in PLAIN]
    check(lambda q, k, v, m: attention(q, k, v, attn_mask=m), *qkv, r(*sizes), kernels=["attention"])


def test_a_mask_that_is_the_same_for_all_keys():
    check(lambda q, k, v, m: attention(q, k, v, attn_mask=m), *(r(*size) for size in PLAIN), r(2, 1, 50, 1))


def test_a_boolean_mask_with_a_row_of_nothing():
    mask = torch.rand(2, 1, 50, 77) > 0.5
    mask[0, 0, 3] = False
    found = check(lambda q, k, v, m: attention(q, k, v, attn_mask=m), *(r(*size) for size in PLAIN), mask)
    assert [k.name for k in found.kernels][-1] == "attention"


@pytest.mark.parametrize("scale", [0.3, -2.0])
def test_scales(scale):
    check(lambda q, k, v: attention(q, k, v, scale=scale), *(r(*size) for size in PLAIN), kernels=["attention"])


def heads_of_one_projection(x):
    q, k, v = (part.view(2, 33, 4, 16).transpose(1, 2) for part in x.split(64, 2))
    return attention(q, k, v).transpose(1, 2).reshape(2, 33, 64)


def test_heads_are_read_and_written_where_they_lie():
    """The views of one projection are no copies, nor is the result's."""
    x = r(2, 33, 192)
    report = check(heads_of_one_projection, x, kernels=["attention"])
    assert report.peak_bytes == 4 * (x.numel() + 2 * 33 * 64)


def test_layers_share_one_body():
    def layers(x):
        for _ in range(5):
            x = x + heads_of_one_projection(torch.cat([x, x, x], 2))
        return x

    report = check(layers, r(2, 33, 64))
    assert sum(kernel.name == "attention" for kernel in report.kernels) == 5


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_left_to_the_library(dtype):
    with torch.no_grad():
        qkv = [r(*size, dtype=dtype) for size in PLAIN]
        compiled = ingot.compile(lambda q, k, v: attention(q, k, v))
        assert torch.equal(compiled(*qkv), attention(*qkv))
        assert [k.kind for k in ingot.explain(compiled)(*qkv).kernels] == ["extern"]


def test_one_query_is_left_to_the_library():
    sizes = ((2, 3, 1, 16), (2, 3, 77, 16), (2, 3, 77, 16))
    check(attention, *(r(*size) for size in sizes), kernels=["_scaled_dot_product_flash_attention_for_cpu"])


def test_sizes_that_are_not_known_are_left_to_the_library():
    report = check(attention, *(r(*size) for size in PLAIN), dynamic=True)
    assert "extern" in [kernel.kind for kernel in report.kernels]


def test_nan_and_infinity_stay_in_their_rows():
    q, k, v = (r(*size) for size in PLAIN)
    q[0, 0, 4], q[0, 1, 7, 3], v[1, 1, 9] = torch.nan, torch.inf, torch.inf
    with torch.no_grad():
        result, expected = ingot.compile(attention)(q, k, v), attention(q, k, v)
    torch.testing.assert_close(result, expected, equal_nan=True)


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_do_not_change_a_bit(threads):
    qkv = [r(1, 4, 300, 32) for _ in range(3)]
    before = torch.get_num_threads()
    with torch.no_grad():
        compiled = ingot.compile(attention)
        expected = compiled(*qkv)
        torch.set_num_threads(threads)
        try:
            assert torch.equal(compiled(*qkv), expected)
        finally:
            torch.set_num_threads(before)
