"""Traced programs against eager: values, strides, mutations and aliasing, over a corpus of small
functions."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

from ingot.errors import Unsupported
from ingot.graph import FakeContext, trace
from tests.graph.tracing import assert_traced, graph_of, traced
from tests.oracle import Close

aten = torch.ops.aten


def inputs() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "a": torch.randn(4, 6),
        "b": torch.randn(4, 6),
        "v": torch.randn(6),
        "t": torch.randn(6, 4).t(),
        "gap": torch.randn(4, 12)[:, ::2],
        "off": torch.randn(10)[3:],
        "i": torch.randint(0, 4, (4, 6)),
        "h": torch.randn(4, 6).bfloat16(),
        "img": torch.randn(2, 4, 6, 5),
        "c": torch.rand(4) + 0.1,
        "c2": torch.rand(4) + 0.1,
        "m": torch.randn(6, 3),
    }


def program(text: str):
    """The function of a corpus entry: statements over the inputs it names, then `-> outputs`."""
    body, _, result = text.partition("->")
    names = [n for n in inputs() if n in _words(text)]
    lines = [
        f"def program({', '.join(names)}):",
        *(f"    {s.strip()}" for s in body.split(";") if s.strip()),
        f"    return {result}",
    ]
    scope = {"torch": torch, "F": F, "aten": aten}
    exec("\n".join(lines), scope)
    return scope["program"], [inputs()[n] for n in names]


def _words(text: str) -> set[str]:
    return set(re.findall(r"[A-Za-z_][A-Za-z_0-9]*", text))


CORPUS = """
-> a + b
-> a, a
-> a + 1, (a + 1).t()
-> a.view(-1)
-> a.t()[1:], a[0]
-> off[1:], off
-> a.detach()
-> a.view(2, 12).t()[3:5]
-> (a + 1)[:, 0], (a + 1).clone()
y = a + 1 -> y, y[0], y.view(-1), y.clone()
a.add_(1) -> a
a.add_(1); b.mul_(a) -> a + b
a.add_(1); y = a * 2; a.mul_(3) -> y, a
a[0] = 0 -> a + 1
a[:, 1:3] = b[:, 2:4] -> a
a[1].add_(b[2]) -> a.sum()
y = a.clone(); y[0] = 1; y[:, 2] = v[:4] -> y
y = a.clone(); z = y.view(-1); z[3:9].mul_(2); y.add_(1) -> y, z
y = a.clone(); z = y.t(); z[2] = c -> y, z[0]
y = torch.zeros(3, 4); y[1] = c; y[:, 0].add_(1) -> y
y = torch.empty(4, 6); y.copy_(a) -> y
y = torch.empty(6, 4).t(); y.copy_(a) -> y
y = torch.empty(4, 6); y.copy_(v) -> y
y = torch.empty(4, 6); y.fill_(2.5) -> y
y = torch.empty(4, 6); y.zero_() -> y, y + a
y = a.clone(); y.diagonal().fill_(0) -> y
y = a.clone(); y.unsqueeze(1).squeeze(1).add_(1) -> y
y = a.clone(); y.permute(1, 0).mul_(2) -> y
y = a.clone(); r = y.chunk(2, 1); p = r[0]; q = r[1]; p.add_(q) -> y, p
y = a.clone(); r = y.unbind(0); r[1].add_(r[0]) -> y, r[2]
y = a.clone(); y.as_strided((3,), (7,), 1).add_(5) -> y
off.as_strided((2, 2), (2, 1), 4).mul_(10) -> off
gap.add_(1) -> gap * 2
gap[1] = 7 -> gap
t.mul_(2) -> t, t.t()
y = a.expand(2, 4, 6) -> y + 1
y = a.clone().expand(1, 4, 6); y.add_(1) -> y
out = torch.empty(4, 6); torch.add(a, b, out=out) -> out
out = torch.empty(4, 6); torch.sin(a, out=out); out.add_(1) -> out
torch.mul(a, b, out=a) -> a
torch.max(a, 1, out=(c, i[0][:4])) -> c
a.copy_(b) -> a, b
x = a.clone(); a.copy_(b); b.copy_(x) -> x
a.copy_(a.flip(0)) ->
a[:4, :4].copy_(b[:4, :4].t()) -> a
a.relu_() -> a
a.clamp_(0, 1).sqrt_() -> a
a.addcmul_(b, b, value=0.5) -> a
a.lerp_(b, 0.3) -> a
a.masked_fill_(b > 0, 0.0) -> a
a.index_put_((i[0] % 4,), v) -> a
a[i[0] % 4] = v -> a
a.scatter_(1, i, b) -> a
a.index_add_(0, i[0][:4], b) -> a
h.add_(1.5); h.mul_(a) -> h
h.copy_(a) -> h
i.add_(1); i.mul_(2) -> i
i.copy_(a * 10) -> i
a.uniform_() -> a
-> torch.rand(3), torch.rand(3)
y = torch.bernoulli(torch.full((5,), 0.5)); torch.rand(3) -> y, torch.randn(2)
-> F.dropout(a, 0.5, True)
-> F.dropout(a, 0.5, False)
-> torch.arange(6) + a, torch.ones(2)
-> a * torch.tensor(3.0), torch.tensor([1.0, 2.0])
y = torch.tensor([1.0, 2.0]); y.add_(1) -> y
-> a[None, :, ::2], a[..., 1:], a[-1]
-> a[i[0] % 4], a[:, i[0] % 4]
-> torch.cat([a, b], 1), torch.stack([a, b])
-> a.split([1, 3]), b.unbind(1)
-> a.reshape(2, 12), t.reshape(-1)
-> a.contiguous(), t.contiguous()
-> a.to(torch.float32), a.to(torch.float64)
-> a * 1, a + 0, a - 0.0, a / 1, a.t().t(), i + 0, a ** 1
-> a.clone(), a.clone()
-> a.sum(), a.mean(1), a.amax(0), a.argmax(1), a.prod(1), (a > 0).any(1)
-> torch.where(a > 0, a, b), a.masked_fill(b > 0, 2)
-> a.tril(), a.triu(1), a.flip(0), a.roll(1, 0), a.repeat(2, 1)
-> F.linear(a, m.t()), a @ m, F.linear(a[None], m.t(), m[0])
-> torch.einsum("ij,jk->ki", a, m), (a[None] @ m).squeeze(0)
-> a.sort(1), a.topk(2), a.cumsum(0)
-> F.embedding(i, m)
-> F.pad(a, (1, 2)), F.one_hot(i, 5)
-> a.unfold(1, 2, 2), a.diagonal()
-> a.view(torch.int32)
-> F.cross_entropy(a, i[:, 0]), F.mse_loss(a, b), F.nll_loss(a, i[:, 0] % 3, ignore_index=1)
"""
CASES = CORPUS.strip().splitlines()


@pytest.mark.parametrize("text", CASES)
def test_program_is_eagers(text: str) -> None:
    fn, args = program(text.replace("->", "-> " if not text.endswith("->") else "-> ()"))
    assert_traced(fn, *args)


ACTIVATIONS = """
gelu(x) gelu(x,approximate="tanh") silu(x) mish(x) softplus(x) softplus(x,2,1) logsigmoid(x)
hardtanh(x) relu6(x) hardswish(x) hardsigmoid(x) leaky_relu(x,0.2) elu(x,0.7) celu(x,0.7) selu(x)
threshold(x,0.1,5) glu(x) softmax(x,0) softmax(x,-1) log_softmax(x,1) softmin(x,1)
layer_norm(x,(6,)) layer_norm(x,(4,6)) rms_norm(x,(6,)) normalize(x) prelu(x,x[0]) tanhshrink(x)
softsign(x) relu(x)
""".split()


@pytest.mark.parametrize("call", ACTIVATIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decomposed_op_rounds_like_eager(call: str, dtype: torch.dtype) -> None:
    x = (torch.linspace(-6, 6, 24).view(4, 6) + 0.01).to(dtype)
    special = torch.tensor([[float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 88.0]] * 4).to(
        dtype
    )
    fn = eval(f"lambda x: F.{call}", {"F": F})
    tolerance = 2e-6 if dtype == torch.float32 else 0.008  # one unit in the last place of bfloat16
    assert_traced(fn, x, numbers=Close(tolerance, tolerance))
    if (
        "norm" not in call and call != "gelu(x)"
    ):  # eager's vectorized erf makes NaN of infinity, its scalar one does not
        assert_traced(fn, special, numbers=Close(tolerance, tolerance))


STATISTICS = """
x.var(1) x.var(unbiased=False) x.std(0,keepdim=True) torch.var_mean(x,1) torch.std_mean(x,(0,1))
x.logsumexp(1) x.norm() x.norm(dim=1) x.var(1,correction=0) x**2 x**3 x**0.5 x**-1 x**-2 x**-0.5
x.square() torch.rsub(x,2) torch.addcdiv(x,x,x+9,value=2) torch.lerp(x,x+1,0.7)
""".split()


@pytest.mark.parametrize("call", STATISTICS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_statistics_round_like_eager(call: str, dtype: torch.dtype) -> None:
    x = torch.linspace(0.5, 3, 24).view(4, 6).to(dtype)
    tolerance = 2e-6 if dtype == torch.float32 else 0.008
    assert_traced(
        eval(f"lambda x: {call}", {"torch": torch}), x, numbers=Close(tolerance, tolerance)
    )


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_batch_norm_and_its_running_statistics(training: bool, layout: torch.memory_format) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 6, 5).to(memory_format=layout)
    c = [torch.rand(4) + 0.1 for _ in range(4)]
    graph = assert_traced(lambda x, m, v, w, b: F.batch_norm(x, m, v, w, b, training), x, *c)
    assert len(graph.mutations) == (2 if training else 0)


def test_group_norm() -> None:
    torch.manual_seed(0)
    x, c = torch.randn(2, 4, 6, 5), torch.rand(4)
    assert_traced(lambda x, c: F.group_norm(x, 2, c, c), x, c)
    assert_traced(lambda x, c: F.group_norm(x, 2, c, c), x.to(memory_format=torch.channels_last), c)


def test_resnet_block() -> None:
    torch.manual_seed(0)

    def block(x, w1, w2, mean, var, scale, shift):
        y = F.relu(F.batch_norm(F.conv2d(x, w1, padding=1), mean, var, scale, shift))
        y = F.batch_norm(F.conv2d(y, w2, padding=1), mean, var, scale, shift)
        return F.adaptive_avg_pool2d(F.max_pool2d(F.relu(y + x), 2), 1).flatten(1)

    graph = assert_traced(
        block,
        torch.randn(2, 4, 8, 8),
        *(torch.randn(4, 4, 3, 3) for _ in range(2)),
        *(torch.rand(4) + 0.5 for _ in range(4)),
    )
    assert len(graph.nodes_of(aten.convolution.default)) == 2


def gpt_inputs() -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = [(2, 5, 16), (16,), (48, 16), (48,), (16, 16), (16,), (64, 16), (64,), (16, 64), (16,)]
    return [torch.randn(s) for s in shapes]


def gpt_block(x, ln, qkv, qkv_b, proj, proj_b, fc, fc_b, out, out_b):
    h = F.linear(F.layer_norm(x, (16,), ln, ln), qkv, qkv_b)
    q, k, v = (
        h[..., :16].view(2, 5, 4, 4),
        h[..., 16:32].view(2, 5, 4, 4),
        h[..., 32:].view(2, 5, 4, 4),
    )
    y = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
    )
    x = x + F.linear(y.transpose(1, 2).contiguous().view(2, 5, 16), proj, proj_b)
    return x + F.linear(
        F.gelu(F.linear(F.layer_norm(x, (16,), ln, ln), fc, fc_b), approximate="tanh"), out, out_b
    )


def test_gpt_block_keeps_its_matmuls_and_attention_whole() -> None:
    graph = assert_traced(gpt_block, *gpt_inputs())
    assert len(graph.nodes_of(aten.linear.default)) == 4
    assert len(graph.nodes_of(aten._scaled_dot_product_flash_attention_for_cpu.default)) == 1
    assert not graph.nodes_of(aten.t.default) and not graph.nodes_of(aten.clone.default)


def test_overlapping_inputs_may_be_read_but_not_written() -> None:
    x = torch.randn(8)
    assert_traced(lambda x, y: x[:7] + y, x, x[1:])
    assert_traced(lambda x, y: (x.add_(1), y), x[:4], x[4:])
    with pytest.raises(Unsupported, match="overlaps"):
        traced(lambda x, y: x.add_(1) + y.sum(), x, x[1:])


def test_reasons_name_the_users_line() -> None:
    def f(x):
        return x.nonzero()

    gm = graph_of(f)
    for node in gm.graph.nodes:
        node.meta["where"] = "user.py:7"
    context = FakeContext()
    with pytest.raises(Unsupported) as caught:
        trace(gm, [context.fake(torch.rand(3))], context)
    assert caught.value.where == "user.py:7"


def test_every_node_carries_the_users_line() -> None:
    gm = graph_of(lambda x: F.gelu(x).view(-1) + 1)
    for line, node in enumerate(gm.graph.nodes):
        node.meta["where"] = f"user.py:{line}"
    context = FakeContext()
    graph = trace(gm, [context.fake(torch.rand(3))], context)
    assert all(
        n.meta["where"].startswith("user.py:") for n in graph.graph.nodes if n.op == "call_function"
    )
    assert "user.py:1" in graph.code()
