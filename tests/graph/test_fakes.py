"""Fakes against eager: shapes, strides, dtypes, aliasing and autograd state of op results."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ingot
from ingot.errors import Unsupported
from ingot.graph import FakeContext, FakeTensor, storage_key
from ingot.graph.fakes import look_of
from ingot.graph.meta import trials, untried

torch.manual_seed(0)
INPUTS = {
    "x": torch.rand(4, 6) + 0.5,
    "y": torch.rand(4, 6) + 0.5,
    "row": torch.rand(6),
    "t": torch.rand(6, 4).t(),
    "p": torch.rand(3, 4, 5).permute(2, 0, 1),
    "gap": torch.rand(4, 12)[:, ::2],
    "half": torch.rand(4, 6).bfloat16(),
    "double": torch.rand(4, 6, dtype=torch.float64),
    "zero_dim": torch.tensor(2.0, dtype=torch.float64),
    "i": torch.randint(0, 4, (4, 6)),
    "small": torch.randint(0, 4, (4, 6), dtype=torch.int8),
    "b": torch.rand(4, 6) > 0.5,
    "img": torch.rand(2, 3, 8, 10),
    "last": torch.rand(2, 3, 8, 10).to(memory_format=torch.channels_last),
    "w": torch.rand(6, 3, 3, 3),
    "c": torch.rand(3),
    "q": torch.rand(2, 3, 5, 8),
    "heads": torch.rand(2, 5, 3, 8).transpose(1, 2),
    "m": torch.rand(6, 5),
    "batch": torch.rand(3, 4, 6),
    "batch2": torch.rand(3, 6, 2),
    "table": torch.rand(10, 7),
    "one": torch.rand(1, 6),
    "labels": torch.randint(0, 6, (4,)),
    "cplx": torch.rand(4, 6, dtype=torch.complex64),
}
CALLS = """
x + y|x + row|x + 2|x + 2.5|i + 2|i + 2.5|b + 1|i / 2|i // 2|x - t.t().t()|t + t|x + t|p * 2|gap * 2
gap + x|half + x|half + zero_dim|x + zero_dim|x + double|small + i|x ** 2|x ** 0.5|2 ** x|i ** 2
x % 3|x.fmod(2)|-x|abs(x)|x.exp()|x.log()|x.sqrt()|x.rsqrt()|x.sin()|x.tanh()|x.erf()|i.sin()
x.sigmoid()|half.sigmoid()|x.reciprocal()|x.floor()|x.round()|x.sign()|x.isnan()|x > y|x == 1|i >= 2
b & b|~b|b.logical_not()|x.maximum(y)|x.clamp(0.1, 0.9)|x.clamp(min=0.2)|torch.where(b, x, y)
torch.where(b, x, 0.0)|torch.where(b, 1, 2)|x.masked_fill(b, -1.0)|x.lerp(y, 0.3)
torch.addcmul(x, y, y, value=2)|torch.addcdiv(x, y, y)|cplx.abs()|cplx * 2|x.atan2(y)
x.to(torch.float16)|x.to(torch.int32)|t.to(torch.float64)|x.sum()|x.sum(1)
x.sum((0, 1), keepdim=True)|p.sum(1)|i.sum()|b.sum()|b.sum(1)|half.sum(1)|x.mean(0)|t.mean(1)
x.amax(1)|x.amin()|x.argmax(1)|x.argmax()|x.max()|x.max(1)|x.min(0, keepdim=True)|x.prod(1)|x.any(1)
b.all()|x.var(1)|x.std(0, keepdim=True)|torch.var_mean(x, 1)|x.norm()|x.logsumexp(1)|x.cumsum(1)
x.cumprod(0)|x.sort(1)|x.topk(2)|i.sort(0)|x.median(1)|torch.aminmax(x, dim=1)|x.count_nonzero(1)
x.nansum(1)|x @ m|t.t() @ t|batch @ batch2|batch.bmm(batch2)|x @ row|row @ row|row.dot(row)
torch.addmm(row[:5], x, m)|F.linear(x, m.t(), m[0])|F.linear(batch, m.t())
torch.baddbmm(batch[:, :, :2], batch, batch2)|torch.einsum("bij,bjk->bik", batch, batch2)
torch.outer(row, row)|batch.transpose(0, 1) @ m|F.softmax(x, 1)|F.softmax(t, 0)|F.log_softmax(x, -1)
half.softmax(-1)|x.softmax(-1, dtype=torch.float64)|F.layer_norm(x, (6,))
F.layer_norm(batch, (4, 6))|F.layer_norm(half, (6,))|F.rms_norm(x, (6,), row)
F.group_norm(img, 3, c, c)|F.batch_norm(img, c, c, c, c)|F.batch_norm(last, c, c, c, c)
F.batch_norm(img, None, None, c, c, training=True)|F.instance_norm(img)|F.gelu(x)
F.gelu(x, approximate="tanh")|F.gelu(half)|F.silu(x)|F.relu(x)|F.relu6(x)|F.hardtanh(x)
F.hardswish(x)|F.hardsigmoid(x)|F.elu(x)|F.selu(x)|F.celu(x)|F.leaky_relu(x)|F.prelu(x, row)
F.softplus(x)|F.mish(x)|F.logsigmoid(x)|F.glu(x)|F.threshold(x, 0.5, 0.1)|F.normalize(x)
F.cosine_similarity(x, y)|F.mse_loss(x, y)|F.l1_loss(x, y)|F.cross_entropy(x, labels)
F.nll_loss(x, labels)|F.smooth_l1_loss(x, y)|F.binary_cross_entropy_with_logits(x, y)
F.kl_div(x, y, reduction="sum")|F.conv2d(img, w)|F.conv2d(img, w, torch.ones(6), 2, 1)
F.conv2d(last, w, padding=1)|F.conv2d(img, w[:, :1], groups=3)|F.conv2d(img, w, dilation=2)
F.conv_transpose2d(img, torch.rand(3, 4, 3, 3), stride=2)|F.conv1d(batch, torch.rand(5, 4, 3))
F.conv2d(img[0], w)|F.max_pool2d(img, 2)|F.max_pool2d(last, 3, 2, 1)
F.max_pool2d(img, 3, 2, ceil_mode=True)|F.avg_pool2d(img, 2)|F.avg_pool2d(last, 3, 1, 1)
F.adaptive_avg_pool2d(img, 1)|F.adaptive_avg_pool2d(img, (3, 4))|F.adaptive_max_pool2d(img, 2)
F.max_pool1d(batch, 2)|F.avg_pool1d(batch, 2)|F.interpolate(img, scale_factor=2)
F.interpolate(img, (4, 5), mode="bilinear")|F.pixel_shuffle(torch.rand(1, 4, 2, 2), 2)
F.pad(x, (1, 2))|F.pad(img, (1, 1, 1, 1), mode="reflect")|F.pad(last, (1, 1))|F.unfold(img, 3)
F.scaled_dot_product_attention(q, q, q)
F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
F.scaled_dot_product_attention(q, q, q, attn_mask=q[0, 0, :, :5])|F.embedding(i, table)
F.one_hot(i, 5)|table[i]|table[:, i]|x[0]|x[:, 1:3]|x[..., None]|x[i[0] % 4]|x[None, :, ::2]
table[i, i]|batch[:, i[0] % 4, :2]|x.gather(1, i)|x.index_select(0, i[0])|x.scatter(1, i, y)
x.scatter_add(1, i, y)|x.index_add(0, i[0][:4] * 0, y)|x.index_put((i[0],), row)|x.take(i)
torch.cat([x, y])|torch.cat([x, y], -1)|torch.cat([t, t])|torch.cat([last, last], 1)
torch.cat([half, x])|torch.stack([x, y], 1)|torch.cat([i, x])|x.view(-1)|x.view(2, 2, 6)
t.reshape(-1)|x.t()|p.permute(1, 2, 0)|x.expand(3, 4, 6)|one.expand(4, -1)|x.unsqueeze(1)
one.squeeze(0)|x.split(2)|x.chunk(3, 1)|x.unbind(1)|x.diagonal()|x.as_strided((2, 2), (1, 2), 3)
x.flatten()|x.unfold(1, 2, 2)|x.narrow(0, 1, 2)|x.swapaxes(0, 1)|cplx.real|cplx.imag|x.detach()
torch.view_as_real(cplx)|x.contiguous()|t.contiguous()|t.clone()|gap.clone()|p.clone()|last.clone()
last.contiguous()|img.to(memory_format=torch.channels_last)|x.flip(0)|t.flip(1)|x.roll(1, 0)
x.repeat(2, 3)|x.tile(2)|x.tril()|t.triu()|x.repeat_interleave(2, 0)|x.rot90()
torch.meshgrid(row, row, indexing="ij")|torch.empty_like(t)|torch.zeros_like(x)
torch.full_like(i, 3)|torch.ones_like(x, dtype=torch.int64)|x.new_zeros(2, 3)|x.new_full((2,), 1)
torch.rand_like(t)|torch.zeros(3)|torch.ones(2, 3)|torch.full((2,), 7)|torch.full((2,), 1.5)
torch.arange(5)|torch.arange(0, 1, 0.3)|torch.arange(5.0)|torch.linspace(0, 1, 5)|torch.eye(3)
torch.rand(3)|torch.randn(2, 3)|torch.randint(0, 5, (3,))|torch.empty(2, 3)|torch.randperm(4)
torch.tril_indices(3, 3)|torch.arange(8, 2, -2)|torch.bernoulli(x.clamp(0, 1))
F.dropout(x, 0.5, True)|F.dropout(x, 0.5, False)|torch.bucketize(x, row.sort()[0])
torch.searchsorted(row.sort()[0], x)|torch.isin(i, i)|torch.cdist(x, y)|torch.fft.rfft(x)
torch.linalg.inv(torch.eye(3))|torch.cross(c, c, dim=0)|torch.complex(x, y)|torch.polar(x, y)
torch.broadcast_tensors(x, row)|torch.cumsum(b, 1)|x.square()|torch.rsub(x, 1)|x.nan_to_num()
x.trunc()|x.frac()|torch.logit(x * 0.4)|x.type_as(i)|i.float()|i.bool()
"""
TABLE = [call for line in CALLS.strip().splitlines() for call in line.split("|")]


def tensors(tree: object) -> list[torch.Tensor]:
    return (
        [t for item in tree for t in tensors(item)] if isinstance(tree, (list, tuple)) else [tree]
    )  # type: ignore[list-item]


def describe(t: torch.Tensor) -> tuple:
    return (
        tuple(t.shape),
        t.stride() if t.numel() else None,
        t.dtype,
        t.device,
        t.storage_offset(),
        t.layout,
    )


@pytest.mark.parametrize("call", TABLE)
def test_result_looks_like_eagers(call: str) -> None:
    scope = {"torch": torch, "F": F}
    with torch.no_grad():
        expected = eval(call, {**scope, **INPUTS})
        context = FakeContext()
        fakes = {name: context.fake(t) for name, t in INPUTS.items()}
        with context:
            actual = eval(call, {**scope, **fakes})
    assert len(tensors(actual)) == len(tensors(expected))
    for a, e in zip(tensors(actual), tensors(expected)):
        assert isinstance(a, FakeTensor)
        assert describe(a) == describe(e)


def test_views_share_memory_and_fresh_results_do_not() -> None:
    context = FakeContext()
    x = context.fake(torch.rand(4, 6))
    with context:
        views = [
            x.view(-1),
            x.t(),
            x[1:],
            x[0],
            x.unbind(1)[2],
            x.detach(),
            x.expand(2, 4, 6),
            x.add_(1),
            x.chunk(2)[1],
        ]
        fresh = [x + 1, x.clone(), x.t().reshape(-1), x.to(torch.float64)]
    assert all(storage_key(v) == storage_key(x) for v in views)
    assert len({storage_key(t) for t in [x, *fresh]}) == 5


def test_in_place_and_out_return_the_written_fake() -> None:
    context = FakeContext()
    x, y = context.fake(torch.rand(4)), context.fake(torch.rand(4))
    with context:
        assert x.mul_(2) is x
        assert torch.add(x, y, out=y) is y
        x[1:] = 3
        x.copy_(y)


def test_the_same_tensor_has_one_fake_and_overlapping_ones_share_memory() -> None:
    context = FakeContext()
    x = torch.rand(8)
    assert context.fake(x) is context.fake(x)
    assert storage_key(context.fake(x[1:])) == storage_key(context.fake(x))
    assert storage_key(context.fake(torch.rand(8))) != storage_key(context.fake(x))


def test_requires_grad_follows_autograd() -> None:
    context = FakeContext()
    x, w = context.fake(torch.rand(4)), context.fake(torch.nn.Parameter(torch.rand(4)))
    inner = context.fake(torch.nn.Parameter(torch.rand(4)) * 2)
    with context:
        assert w.requires_grad and w.is_leaf and (x * w).requires_grad and not (x * 2).requires_grad
        assert inner.requires_grad and not inner.is_leaf
        assert not (x * w).detach().requires_grad
        with torch.no_grad():
            assert not (x * w).requires_grad


@pytest.mark.parametrize(
    "call",
    [
        "x[0, 0].item()",
        "bool(x.sum() > 0)",
        "x.nonzero()",
        "x[b]",
        "x.masked_select(b)",
        "x.unique()",
        "x.resize_(2)",
        "x.t_()",
    ],
)
def test_what_depends_on_data_or_changes_geometry_is_unsupported(call: str) -> None:
    context = FakeContext()
    scope = {"x": context.fake(torch.rand(4, 4)), "b": context.fake(torch.rand(4, 4) > 0.5)}
    with context, pytest.raises(Unsupported):
        eval(call, scope)


@pytest.mark.parametrize(
    "call",
    ["x + y", "x @ y", "x.view(7)", "x.add_(z)", "i.add_(x)", "torch.cat([x, y])", "x & x", "x[9]"],
)
def test_what_eager_refuses_is_unsupported(call: str) -> None:
    context = FakeContext()
    scope = {
        "x": context.fake(torch.rand(4, 4)),
        "y": context.fake(torch.rand(3, 3)),
        "z": context.fake(torch.rand(2, 4, 4)),
    }
    scope |= {"i": context.fake(torch.ones(4, 4, dtype=torch.int64)), "torch": torch}
    with context, pytest.raises((Unsupported, IndexError, RuntimeError)):
        eval(call, scope)


@pytest.mark.parametrize(
    "make", [lambda: torch.eye(2).to_sparse(), lambda: torch.rand(2, dtype=torch.complex64).conj()]
)
def test_exotic_tensors_are_unsupported(make) -> None:
    with pytest.raises(Unsupported, match="cannot be traced"):
        FakeContext().fake(make())


def test_what_has_a_rule_is_not_tried_out_where_it_is_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the logits of a large vocabulary, whose loss was left to eager for that."""
    monkeypatch.setattr(trials, "_WORTH_PROBING", 8)
    monkeypatch.setattr(untried, "probe", None)
    layers = (
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 4, 2),
        nn.Flatten(),
        nn.Linear(16, 5),
    )
    network, labels = nn.Sequential(*layers), torch.tensor([0, 4])
    fn = ingot.compile(lambda x: F.cross_entropy(network(x), labels), fullgraph=True)
    x = torch.randn(2, 3, 8, 8)
    gradients = [
        torch.autograd.grad(call(x), list(network.parameters())) for call in (fn, fn.__wrapped__)
    ]
    for ours, eagers in zip(*gradients):
        torch.testing.assert_close(ours, eagers, rtol=1e-4, atol=1e-5)
        assert ours.stride() == eagers.stride()


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "every other column": lambda x: x[:, ::2],
    "expanded": lambda x: x[:1].expand(5, 6),
    "from the second row on": lambda x: x[1:],
    "transposed": lambda x: x.t(),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_fake_with_a_history_looks_like_one_without(name: str) -> None:
    """Results of ops are kept by the looks of their arguments."""
    leaf = torch.rand(4, 6, requires_grad=True)
    with_history = LAYOUTS[name](leaf * 1)
    assert with_history.grad_fn is not None
    context = FakeContext()
    fakes = context.fake(with_history), context.fake(with_history.detach())
    assert look_of(fakes[0]) == look_of(fakes[1])
