"""Attention of whole programs: which of it becomes one kernel, and that results are eager's."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F

import ingot
from tests.graph import tracing
from tests.oracle import AGAINST_FLOAT64, assert_call, assert_results

attention = F.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def r(*sizes, dtype=torch.float32):
    return torch.randn(*sizes, dtype=dtype)


@torch.no_grad()
def assert_attention(fn, *args, kernels=None, **options):
    """Compiled is no less exact than eager; returns the report. `kernels` names the steps of the
    program."""
    compiled = ingot.compile(fn, fullgraph=True, **options)
    assert_call(compiled, fn, *args, numbers=AGAINST_FLOAT64)
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
    assert_attention(
        lambda q, k, v: attention(q, k, v, is_causal=causal, enable_gqa=shared),
        *qkv,
        kernels=["attention"],
    )


@pytest.mark.parametrize("sizes", [(50, 77), (1, 77), (2, 1, 1, 77), (2, 3, 50, 77)], ids=str)
def test_masks_are_added(sizes):
    qkv = [r(*size) for size in PLAIN]
    assert_attention(
        lambda q, k, v, m: attention(q, k, v, attn_mask=m), *qkv, r(*sizes), kernels=["attention"]
    )


def test_a_mask_that_is_the_same_for_all_keys():
    assert_attention(
        lambda q, k, v, m: attention(q, k, v, attn_mask=m),
        *(r(*size) for size in PLAIN),
        r(2, 1, 50, 1),
    )


def test_a_boolean_mask_with_a_row_of_nothing():
    mask = torch.rand(2, 1, 50, 77) > 0.5
    mask[0, 0, 3] = False
    found = assert_attention(
        lambda q, k, v, m: attention(q, k, v, attn_mask=m), *(r(*size) for size in PLAIN), mask
    )
    assert [k.name for k in found.kernels][-1] == "attention"


@pytest.mark.parametrize("scale", [0.3, -2.0])
def test_scales(scale):
    assert_attention(
        lambda q, k, v: attention(q, k, v, scale=scale),
        *(r(*size) for size in PLAIN),
        kernels=["attention"],
    )


def heads_of_one_projection(x):
    q, k, v = (part.view(2, 33, 4, 16).transpose(1, 2) for part in x.split(64, 2))
    return attention(q, k, v).transpose(1, 2).reshape(2, 33, 64)


def test_heads_are_read_and_written_where_they_lie():
    """The views of one projection are no copies, nor is the result's."""
    x = r(2, 33, 192)
    report = assert_attention(heads_of_one_projection, x, kernels=["attention"])
    assert report.peak_bytes == 4 * (x.numel() + 2 * 33 * 64)


# -- written out -----------------------------------------------------------------------------------


def heads(*tensors):
    """(batch, token, head, feature) as (batch, head, token, feature)."""
    return [t.transpose(1, 2) for t in tensors]


def divided(q, k, v):
    q, k, v = heads(q, k, v)
    weights = F.softmax(
        q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), dim=-1, dtype=torch.float32
    )
    return (
        (F.dropout(weights.to(q.dtype), 0.1, training=False) @ v)
        .transpose(1, 2)
        .contiguous()
        .flatten(2)
    )


def with_einsum(q, k, v):
    weights = (torch.einsum("bthd,bshd->bhts", q, k) * 0.25).softmax(-1)
    return torch.einsum("bhts,bshd->bthd", weights, v)


def with_bmm(q, k, v):
    q, k, v = (t.transpose(1, 2).reshape(8, -1, 16) for t in (q, k, v))
    return torch.bmm(F.softmax(torch.bmm(q * 0.25, k.mT), -1), v)


def by_hand(q, k, v):
    q, k, v = heads(q, k, v)
    scores = torch.matmul(q, k.mT)
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    return weights / weights.sum(-1, keepdim=True) @ v


def unscaled(q, k, v):
    q, k, v = heads(q, k, v)
    return (q @ k.mT).softmax(3) @ v


def in_columns(q, k, v):
    """Features that lie apart are refused by the fused kernel: torch itself writes the products
    out."""
    q, k, v = (t.transpose(1, 2).mT.contiguous().mT for t in (q, k, v))
    return attention(q, k, v)


TOKENS = [(2, n, 4, 16) for n in (33, 21, 21)]


@pytest.mark.parametrize("form", [divided, with_einsum, with_bmm, by_hand, unscaled])
def test_written_out_forms_are_one_kernel(form):
    report = assert_attention(form, *(r(*size) for size in TOKENS), kernels=["attention"])
    assert report.arena_bytes == 0  # nothing is copied, neither before nor after


def test_what_torch_writes_out_is_one_kernel():
    report = assert_attention(in_columns, *(r(*size) for size in TOKENS))
    assert [kernel.name for kernel in report.kernels].count("attention") == 1 and not any(
        kernel.kind == "extern" for kernel in report.kernels
    )


@pytest.mark.parametrize("form", [divided, with_einsum, with_bmm, in_columns])
def test_the_graph_runs_op_by_op(form):
    """What stands in the graph means the same to eager."""
    graph = tracing.assert_traced(form, *(r(*size) for size in TOKENS))
    assert len(graph.nodes_of(torch.ops.ingot.attention.default)) == 1


MASKED = {
    "added": (lambda s, m: s + m, torch.float32),
    "added in front": (lambda s, m: m + s, torch.float32),
    "filled": (lambda s, m: s.masked_fill(m, -1e9), torch.bool),
    "filled with infinity": (lambda s, m: s.masked_fill(m, -torch.inf), torch.bool),
    "chosen": (lambda s, m: torch.where(m, s, torch.finfo(s.dtype).min), torch.bool),
    "chosen from a tensor": (lambda s, m: torch.where(m, torch.tensor(-5.0), s), torch.bool),
    "causal": (
        lambda s, m: s.masked_fill(~torch.ones(33, 21, dtype=torch.bool).tril(), -torch.inf),
        None,
    ),
}


def masked(apply, late_scale=1.0):
    def f(q, k, v, m=None):
        q, k, v = heads(q, k, v)
        return (apply(q @ k.mT * 0.25, m) * late_scale).softmax(-1) @ v

    return f


@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("sizes", [(33, 21), (2, 1, 1, 21), (2, 4, 33, 21), (21,)], ids=str)
def test_masks_of_written_out_forms(name, sizes):
    apply, dtype = MASKED[name]
    mask = (
        [] if dtype is None else [r(*sizes) if dtype is torch.float32 else torch.rand(sizes) > 0.5]
    )
    report = assert_attention(masked(apply), *(r(*size) for size in TOKENS), *mask)
    assert report.kernels[-1].name == "attention" and all(k.kind == "fused" for k in report.kernels)


@pytest.mark.parametrize("name", ["filled", "filled with infinity", "chosen"])
def test_rows_that_are_masked_wholly(name):
    """NaN, or the mean of all values, as the number put there makes it."""
    apply, _ = MASKED[name]
    hidden = torch.rand(33, 21) > 0.5
    hidden[4] = True
    mask = ~hidden if name == "chosen" else hidden
    assert_attention(masked(apply), *(r(*size) for size in TOKENS), mask)


def test_a_filled_score_hides_what_was_there():
    """NaN or infinity among scores that are replaced is not seen; where it is added to, it is."""
    q, k, v = (r(*size) for size in TOKENS)
    k[:, 3], k[:, 4] = torch.nan, torch.inf
    hidden = torch.zeros(21, dtype=torch.bool)
    hidden[3:5] = True
    added = torch.where(hidden, -torch.inf, 0.0)
    for name, m in (("filled with infinity", hidden), ("added", added)):
        f = masked(MASKED[name][0])
        with torch.no_grad():
            torch.testing.assert_close(ingot.compile(f)(q, k, v, m), f(q, k, v, m), equal_nan=True)


def test_several_masks_are_added():
    """A bias for each head and a mask for each batch, as T5 has them; with scores of three
    dimensions, as Bloom's."""

    def t5(q, k, v, bias, mask):
        q, k, v = heads(q, k, v)
        return (q @ k.mT + bias + mask).softmax(-1) @ v

    def bloom(q, k, v, bias, mask):
        q, k, v = (t.transpose(1, 2).reshape(8, -1, 16) for t in (q, k, v))
        scores = bias.baddbmm(q, k.mT, beta=1.0, alpha=0.25).view(2, 4, 33, 21) + mask
        return torch.bmm(scores.softmax(-1).view(8, 33, 21), v)

    mask = torch.where(torch.rand(2, 1, 33, 21) > 0.5, torch.finfo(torch.float32).min, 0.0)
    mask[..., 0] = 0
    tokens = [r(*size) for size in TOKENS]
    for form, bias in ((t5, r(1, 4, 33, 21)), (bloom, r(8, 1, 21))):
        assert assert_attention(form, *tokens, bias, mask).kernels[-1].name == "attention"


def with_baddbmm(q, k, v, m):
    q, k, v = (t.transpose(1, 2).reshape(8, -1, 16) for t in (q, k, v))
    return torch.bmm(torch.baddbmm(m, q, k.mT, beta=1, alpha=0.25).softmax(-1), v)


@pytest.mark.parametrize("sizes", [(8, 33, 21), (1, 33, 21), (8, 1, 21)], ids=str)
def test_baddbmm_adds_a_mask(sizes):
    assert_attention(with_baddbmm, *(r(*size) for size in TOKENS), r(*sizes), kernels=["attention"])


@pytest.mark.parametrize("alpha", [0.0, math.inf])
def test_scores_that_count_for_nothing_or_for_all(alpha):
    def f(q, k, v, m):
        q, k, v = (t.transpose(1, 2).reshape(8, -1, 16) for t in (q, k, v))
        return torch.bmm(torch.baddbmm(m, q, k.mT, beta=1, alpha=alpha).softmax(-1), v)

    q, k, v = (r(*size) for size in TOKENS)
    k[0, 3, 1, 2] = math.nan
    with torch.no_grad():
        expected = f(q, k, v, m := r(8, 33, 21))
        torch.testing.assert_close(ingot.compile(f)(q, k, v, m), expected, equal_nan=True)


def test_repeated_heads_are_shared():
    def f(q, k, v):
        q, k, v = heads(q, k, v)
        k, v = (t[:, :, None].expand(2, 2, 3, 21, 16).reshape(2, 6, 21, 16) for t in (k, v))
        return (q @ k.transpose(2, 3) * 0.25).softmax(-1) @ v

    assert_attention(f, r(2, 33, 6, 16), r(2, 21, 2, 16), r(2, 21, 2, 16), kernels=["attention"])


def hide(scores, v, column):
    return scores.masked_fill(v[0, 0, :, column] > 0, -9.0 + column)


NOT_ATTENTION = {
    "two masks that replace": lambda q, k, v: hide(hide(q @ k.mT, v, 0), v, 1).softmax(-1) @ v,
    "a mask that replaces a sum": lambda q, k, v: (
        hide(q @ k.mT + v[0, 0, :, 0], v, 1).softmax(-1) @ v
    ),
    "a mask added to what was replaced": lambda q, k, v: (
        (hide(q @ k.mT, v, 0) + v[0, 0, :, 0]).softmax(-1) @ v
    ),
    "probabilities are returned": lambda q, k, v: (p := (q @ k.mT).softmax(-1), p @ v),
    "scores are returned": lambda q, k, v: (s := q @ k.mT, s.softmax(-1) @ v),
    "a mask before the scale": lambda q, k, v: (((q @ k.mT) + 1.0) * 0.25).softmax(-1) @ v,
    "a scaled mask": lambda q, k, v: ((q @ k.mT + q.mean(-1, keepdim=True)) * 0.25).softmax(-1) @ v,
    "another dimension": lambda q, k, v: (q @ q.mT).softmax(-2) @ q,
    "something between": lambda q, k, v: (q @ k.mT).tanh().softmax(-1) @ v,
    "weights that change": lambda q, k, v: ((q @ k.mT).softmax(-1) * 2) @ v,
    "weights on the right": lambda q, k, v: v.mT @ (q @ k.mT).softmax(-1).mT,
    "weights turned": lambda q, k, v: (q @ q.mT).softmax(-1).mT @ q,
    "heads taken for rows": lambda q, k, v: (
        (q @ q.mT).softmax(-1).transpose(0, 1).reshape(2, 4, 33, 33) @ q
    ),
    "a softmax over several": lambda q, k, v: (
        (q @ k.mT).flatten(2).softmax(-1).view(2, 4, 33, 21) @ v
    ),
    "another sum": lambda q, k, v: (lambda e: e / e.sum(-2, keepdim=True))(torch.exp(q @ q.mT)) @ q,
    "a random mask": lambda q, k, v: (
        F.dropout((q @ k.mT).softmax(-1), 0.0, training=True) * 1.5 @ v
    ),
    "one query": lambda q, k, v: (q[:, :, :1] @ k.mT).softmax(-1) @ v,
}


@pytest.mark.parametrize("name", NOT_ATTENTION)
def test_what_only_resembles_attention(name):
    fn = NOT_ATTENTION[name]
    report = assert_attention(lambda q, k, v: fn(*heads(q, k, v)), *(r(*size) for size in TOKENS))
    assert "attention" not in [kernel.name for kernel in report.kernels]


def test_layers_share_one_body():
    def layers(x):
        for _ in range(5):
            x = x + heads_of_one_projection(torch.cat([x, x, x], 2))
        return x

    report = assert_attention(layers, r(2, 33, 64))
    assert sum(kernel.name == "attention" for kernel in report.kernels) == 5


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_left_to_the_library(dtype):
    with torch.no_grad():
        qkv = [r(*size, dtype=dtype) for size in PLAIN]
        compiled = ingot.compile(lambda q, k, v: attention(q, k, v))
        assert torch.equal(compiled(*qkv), attention(*qkv))
        assert [k.kind for k in ingot.explain(compiled)(*qkv).kernels] == ["extern"]


# (batch, heads, heads of keys, keys, width)
ONE_QUERY = [(1, 12, 12, 1, 64), (2, 4, 4, 7, 16), (1, 8, 2, 300, 24), (2, 4, 2, 2048, 16)]
LAID = {
    "by heads": lambda b, h, n, d: r(b, h, n, d),
    "by tokens": lambda b, h, n, d: r(b, n, h, d).transpose(1, 2),
    "of a cache": lambda b, h, n, d: r(b, h, n + 9, d)[:, :, :n],
}
OVER_KEYS = {
    "no mask": lambda b, h, n: None,
    "for each head": lambda b, h, n: r(b, h, 1, n),
    "for all": lambda b, h, n: r(1, 1, 1, n),
    "boolean": lambda b, h, n: torch.rand(b, 1, 1, n) > 0.4,
    "nothing seen": lambda b, h, n: torch.zeros(b, 1, 1, n, dtype=torch.bool),
}


@pytest.mark.parametrize("masked", OVER_KEYS)
@pytest.mark.parametrize("laid", LAID)
@pytest.mark.parametrize("sizes", ONE_QUERY, ids=str)
def test_one_query(sizes, laid, masked):
    """It reads keys and values where they lie, in whatever order."""
    batch, heads, of_keys, keys, width = sizes
    k, v = (LAID[laid](batch, of_keys, keys, width) for _ in range(2))
    mask = OVER_KEYS[masked](batch, heads, keys)
    report = assert_attention(
        lambda q, k, v, m: attention(q, k, v, m, enable_gqa=heads != of_keys),
        r(batch, heads, 1, width), k, v, mask,
    )  # fmt: skip
    assert "extern" not in [kernel.kind for kernel in report.kernels]
    assert report.arena_bytes < 8 * batch * heads * (width + keys + 64)


def test_one_query_over_more_and_more_keys():
    """Of the first number of keys, and of all others."""

    def last(q, keys_and_values):
        return attention(q, *keys_and_values.chunk(2, -1))

    compiled = ingot.compile(last, fullgraph=True)
    with torch.no_grad():
        for keys in (5, 9, 300, 1025, 2, 2048):
            args = r(2, 4, 1, 16), r(2, 4, keys, 32)
            assert_call(compiled, last, *args, numbers=AGAINST_FLOAT64)
        report = ingot.explain(compiled)(*args)
    assert len(report.graphs) == 2
    assert "extern" not in [kernel.kind for kernel in report.kernels]


def test_repeated_keys_are_read_once_per_head():
    """As models write it that know no `enable_gqa`."""

    def repeated(q, k, v):
        k, v = (t[:, :, None].expand(-1, -1, 4, -1, -1).reshape(2, 8, 300, 16) for t in (k, v))
        return attention(q, k, v)

    report = assert_attention(repeated, r(2, 8, 1, 16), r(2, 2, 300, 16), r(2, 2, 300, 16))
    assert "extern" not in [kernel.kind for kernel in report.kernels]
    assert report.arena_bytes < 4 * 2 * 8 * 300 * 16


def test_sizes_that_are_not_known_are_left_to_the_library():
    report = assert_attention(attention, *(r(*size) for size in PLAIN), dynamic=True)
    assert "extern" in [kernel.kind for kernel in report.kernels]


@pytest.mark.parametrize("mask", ["none", "causal", "dense", "of a row"])
def test_batches_and_lengths_may_be_symbols(mask):
    def mixed(x, context):
        batch, queries, features = x.shape
        q = x.view(batch, queries, 2, features // 2).transpose(1, 2)
        k, v = (c.unflatten(-1, (2, 16)).transpose(1, 2) for c in context.split(32, -1))
        keys = torch.arange(k.shape[2])
        added = {"dense": torch.outer(x[0, :, 0], keys), "of a row": keys[None] * 0.1}.get(mask)
        return attention(q, k, v, added, is_causal=mask == "causal").transpose(1, 2).flatten(2)

    compiled = ingot.compile(mixed, fullgraph=True)
    for batch, queries, keys in [
        (2, 9, 7),
        (3, 20, 30),
        (2, 2, 2),
        (5, 130, 3),
        (2, 33, 129),
        (2, 3, 300),
    ]:
        x, context = r(batch, queries, 32), r(batch, keys, 64)
        for dim in (0, 1):
            ingot.mark_dynamic(x, dim)
            ingot.mark_dynamic(context, dim)
        with torch.no_grad():
            torch.testing.assert_close(
                compiled(x, context), mixed(x, context), rtol=1e-5, atol=2e-6
            )
    with torch.no_grad():
        report = ingot.explain(compiled)(x, context)
    assert len(report.compilations) == 1
    assert "attention" in [kernel.name for kernel in report.kernels]


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


# -- torch's own layers ----------------------------------------------------------------------------


def encoder(**options):
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, **options)
    return torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()


LAYERS = ({}, {"norm_first": True}, {"activation": "gelu"}, {"layer_norm_eps": 0.1})


@pytest.mark.parametrize("options", LAYERS, ids=str)
@pytest.mark.parametrize("turned", [False, True])
def test_an_encoder_is_taken_apart(options, turned):
    """In inference torch calls one op for a layer, which computes attention its own way."""
    model, x = encoder(**options), r(17, 3, 32).transpose(0, 1) if turned else r(3, 17, 32)
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        compiled = ingot.compile(model, fullgraph=True)
        assert_results(compiled(x), model(x), AGAINST_FLOAT64, exact=lambda: exact(x.double()))
        names = [kernel.name for kernel in ingot.explain(compiled)(x).kernels]
    assert sum(name.startswith("attention") for name in names) == 2


LENGTHS = (17, 5, 0)
AT_THE_END = torch.arange(17) >= torch.tensor(LENGTHS)[:, None]
PADDINGS = {
    "none": (None, 1),
    "end": (AT_THE_END, 3),
    "numbers": (torch.where(AT_THE_END, -0.5, 0.0), 3),
    "between": (torch.arange(17) % 5 == torch.tensor([[1], [2], [3]]), 4),
}
"""By name: a padding mask, and how many graphs there are where there is work before and after the
encoder."""


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", PADDINGS)
def test_padding_is_what_it_is_in_eager(kind):
    """Where padding lies at the end, eager makes nested tensors, and zeros of what is padded."""
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, norm=torch.nn.LayerNorm(32)).eval()
    mask, graphs = PADDINGS[kind]
    x = r(3, 17, 32)
    x[1:, 12] = torch.nan if kind in ("end", "numbers") else 0.0

    def f(x, mask):
        return model(x.sin() * 2, src_key_padding_mask=mask).exp() + x.nan_to_num()

    compiled = ingot.compile(f)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x, mask), f(x, mask))
        assert ingot.explain(compiled)(x, mask).graph_count == graphs
    # gradients
    torch.testing.assert_close(
        compiled(x.nan_to_num(), mask), f(x.nan_to_num(), mask), equal_nan=True
    )


@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_masks_of_encoders(kind, dtype):
    """A token does not see what the mask is not zero for, whatever the number; one that sees
    nothing is NaN."""
    layer, x = encoder().layers[0], r(3, 17, 32)
    mask = torch.rand([(17, 17), (3, 17), (3, 4, 17, 17)][kind]) > 0.5
    mask[1] = True
    parts = [layer.norm1.weight, layer.norm1.bias, layer.norm2.weight, layer.norm2.bias]
    parts += [layer.linear1.weight, layer.linear1.bias, layer.linear2.weight, layer.linear2.bias]
    own = layer.self_attn

    def f(x, mask):
        projections = own.in_proj_weight, own.in_proj_bias, own.out_proj.weight, own.out_proj.bias
        return torch._transformer_encoder_layer_fwd(
            x, 32, 4, *projections, False, False, 1e-5, *parts, mask, kind
        )

    compiled = ingot.compile(f, fullgraph=True)
    with torch.no_grad():
        mask = mask if dtype is torch.bool else torch.where(mask, -0.5, 0.0)
        torch.testing.assert_close(
            compiled(x, mask), f(x, mask), equal_nan=True, rtol=1e-5, atol=1e-5
        )
        assert "attention" in [kernel.name for kernel in ingot.explain(compiled)(x, mask).kernels]


@pytest.mark.parametrize("need_weights", [False, True])
def test_multi_head_attention(need_weights):
    layer, x = torch.nn.MultiheadAttention(32, 4, batch_first=True).eval(), r(3, 17, 32)
    compiled = ingot.compile(lambda x: layer(x, x, x, need_weights=need_weights), fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layer(x, x, x, need_weights=need_weights))
        names = [kernel.name for kernel in ingot.explain(compiled)(x).kernels]
    assert ("attention" in names) == (not need_weights)


@pytest.mark.parametrize("padding", [None, torch.bool, torch.float32], ids=str)
@pytest.mark.parametrize("masked", [None, torch.bool, torch.float32], ids=str)
def test_masks_of_a_layer_are_no_break(masked, padding):
    """What torch asks about the types of masks is answered, whether there is one or none."""
    layer, x = torch.nn.MultiheadAttention(8, 2).eval(), r(5, 3, 8)
    if masked is not None:
        masked = torch.ones(5, 5).triu(1).bool() if masked is torch.bool else r(5, 5)
    if padding is not None:
        padding = torch.zeros(3, 5).bool() if padding is torch.bool else r(3, 5)

    def program(x):
        return layer(x, x, x, attn_mask=masked, key_padding_mask=padding)

    with torch.no_grad():
        torch.testing.assert_close(
            ingot.compile(program, fullgraph=True)(x), program(x), rtol=1e-5, atol=1e-5
        )


def _asks_of_types(x):
    return [getattr(torch.nn.functional, name)(x) for name in ("_none_or_dtype", "_is_integer")]


def test_what_torchs_functions_tell_of_tensors():
    """They are captured line by line where they give no tensor."""
    assert ingot.compile(_asks_of_types, fullgraph=True)(r(2)) == _asks_of_types(r(2))
