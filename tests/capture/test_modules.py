"""Module trees: one graph, its inputs by path, its nodes on the user's lines."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ingot
from ingot.capture import Request, capture_call
from ingot.compiler import Compiler
from ingot.options import Options
from tests.oracle import assert_captured, assert_near, assert_same, rerun, run_captured
from tests.tracked import Tracked


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.project = nn.Linear(width, 3 * width)
        self.heads = heads
        self.register_buffer("mask", torch.tril(torch.ones(16, 16)).bool())
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        batch, length, width = x.size()
        q, k, v = [
            t.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for t in self.project(x).split(width, dim=2)
        ]
        scores = (q @ k.transpose(-2, -1)) * q.size(-1) ** -0.5
        scores = scores.masked_fill(~self.mask[:length, :length], float("-inf"))
        y = self.dropout(F.softmax(scores, dim=-1)) @ v
        return y.transpose(1, 2).contiguous().view(batch, length, width)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width, 2)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(approximate="tanh"), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.mlp(self.norm(x))


class Transformer(nn.Module):
    def __init__(self, width=8, blocks=2):
        super().__init__()
        self.parts = nn.ModuleDict(
            {"tokens": nn.Embedding(20, width), "places": nn.Embedding(16, width)}
        )
        self.blocks = nn.ModuleList([Block(width) for _ in range(blocks)])
        self.head = nn.Linear(width, 20, bias=False)
        self.head.weight = self.parts.tokens.weight

    def forward(self, tokens, targets=None):
        places = torch.arange(tokens.size(1), device=tokens.device)
        x = self.parts.tokens(tokens) + self.parts["places"](places)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        loss = None if targets is None else F.cross_entropy(logits.view(-1, 20), targets.view(-1))
        return {"logits": logits, "loss": loss}


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        )
        self.shortcut = None if width == 3 else nn.Conv2d(3, width, 1)
        self.pool = nn.MaxPool2d(2)
        self.last = nn.AdaptiveAvgPool2d((1, 1))

    def forward(self, x):
        out = self.body(x)
        out += x if self.shortcut is None else self.shortcut(x)
        return torch.flatten(self.last(self.pool(out)), 1)


TOKENS = torch.randint(0, 20, (2, 10))


def test_transformer():
    model = Transformer().eval()
    captured = assert_captured(model, TOKENS)
    assert_captured(model, TOKENS, targets=TOKENS)
    paths = {entry.source.name for entry in captured.inputs}
    assert {
        "self.parts.tokens.weight",
        "self.blocks[1].attention.project.bias",
        "self.blocks[0].attention.mask",
    } <= paths
    assert "self.head.weight" not in paths  # shared, and an input once
    nodes = [n for n in captured.graph_module.graph.nodes if n.op != "output"]
    assert all(
        n.meta["where"].rpartition(":")[0] == __file__ for n in nodes if n.op != "placeholder"
    )


def test_transformer_in_training_mode_draws_the_same_random_numbers():
    assert_captured(Transformer().train(), TOKENS)


@pytest.mark.parametrize("width", [3, 5])
@pytest.mark.parametrize("training", [False, True])
def test_convolutions(width, training):
    model = Residual(width).train(training)
    eager = copy.deepcopy(model)
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(2, 3, 8, 8)
            assert_same(run_captured(model, x)[0], eager(x))
    assert_same(dict(model.named_buffers()), dict(eager.named_buffers()))


def test_function_that_closes_over_a_module():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    captured = assert_captured(lambda x: model(x) + model[0].bias, torch.randn(2, 4))
    assert len(captured.inputs) == 3


def test_bound_method_and_callable_object():
    model = Transformer().eval()

    class Wrapper:
        def __init__(self, model):
            self.model = model

        def __call__(self, tokens):
            return self.model(tokens)["logits"]

    assert_captured(model.forward, TOKENS)
    assert_captured(Wrapper(model), TOKENS)


def test_compiling_is_known_during_capture():
    def fn(x):
        return x + 1 if torch.compiler.is_compiling() else x

    with torch.no_grad():
        assert torch.equal(run_captured(fn, torch.zeros(1))[0], torch.ones(1))
    assert not torch.compiler.is_compiling()


def test_what_depends_on_data_is_no_fact_of_capture():
    """Operations that give a number tell it of real data only, also those that torch does not mark
    as such."""
    fns = [
        lambda x: x + torch.equal(x, x.abs()),
        lambda x: x * torch._choose_qparams_per_tensor(x)[0],
    ]
    for fn in fns:
        compiled = ingot.compile(fn)
        for x in (torch.ones(3), torch.arange(-3.0, 4.0)):
            assert torch.equal(compiled(x), fn(x))
    compiled = ingot.compile(lambda x: x + torch.is_same_size(x, x[0]), fullgraph=True)
    assert torch.equal(compiled(torch.ones(2, 2)), torch.ones(2, 2))


def test_symbolic_batch():
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2))

    def fn(x):
        batch, width = x.shape
        return (
            model(x).view(batch, -1).softmax(-1),
            x.reshape(batch * 2, -1).sum(),
            batch,
            width // 2,
        )

    with torch.no_grad():
        captured = assert_captured(fn, torch.randn(5, 4), dynamic=True)
        for batch in (2, 7, 33):
            x = torch.randn(batch, 4)
            assert_same(rerun(captured, fn, x), fn(x))


def test_branch_on_a_symbolic_size_is_guarded():
    def fn(x):
        return x + 1 if x.shape[0] > 4 else x - 1

    with torch.no_grad():
        captured = capture_call(fn, (torch.ones(6),), {}, Request(Options(dynamic=True)))
        assert_same(rerun(captured, fn, torch.ones(9)), torch.ones(9) + 1)
        assert captured.guards.check_python((torch.ones(3),)) is not None


def test_loop_over_a_symbolic_size_specializes():
    def fn(x):
        return sum([x[i] for i in range(x.shape[0])])

    with torch.no_grad():
        captured = assert_captured(fn, torch.randn(3, 4), dynamic=True)
        assert captured.guards.check_python((torch.ones(4, 4),)) is not None


IMAGE, SEQUENCE = torch.randn(1, 4, 8, 8), torch.randn(2, 5, 8)
TORCH_MODULES = [
    (nn.MultiheadAttention(8, 2, batch_first=True), (SEQUENCE, SEQUENCE, SEQUENCE)),
    (nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2), (SEQUENCE,)),
    (nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), (SEQUENCE, SEQUENCE)),
    (nn.LSTM(8, 4, batch_first=True), (SEQUENCE,)),
    (nn.GRU(8, 4), (SEQUENCE,)),
    (nn.LSTMCell(8, 4), (SEQUENCE[0],)),
    (nn.ConvTranspose2d(4, 3, 3), (IMAGE,)),
    (nn.GroupNorm(2, 4), (IMAGE,)),
    (nn.InstanceNorm2d(4), (IMAGE,)),
    (nn.Upsample(scale_factor=2, mode="bilinear"), (IMAGE,)),
    (nn.PixelShuffle(2), (IMAGE,)),
    (nn.AvgPool2d(2), (IMAGE,)),
    (nn.EmbeddingBag(10, 4), (torch.randint(0, 10, (3, 4)),)),
    (nn.Bilinear(8, 8, 3), (SEQUENCE, SEQUENCE)),
    (nn.CrossEntropyLoss(), (torch.randn(4, 5), torch.randint(0, 5, (4,)))),
    (nn.RMSNorm(8), (SEQUENCE,)),
    (nn.PReLU(), (SEQUENCE,)),
    (nn.utils.parametrizations.weight_norm(nn.Linear(8, 3)), (SEQUENCE,)),
]


@pytest.mark.parametrize(("module", "args"), TORCH_MODULES, ids=lambda value: type(value).__name__)
def test_modules_of_torch(module, args):
    assert assert_captured(module.eval(), *args).ops > 0


def test_replaced_weight_of_an_lstm_is_seen():
    module = nn.LSTM(8, 4)
    captured = assert_captured(module, SEQUENCE)
    module.weight_ih_l0 = nn.Parameter(torch.randn(16, 8))
    with torch.no_grad():
        assert_same(rerun(captured, module, SEQUENCE), module(SEQUENCE))


def test_a_program_that_fails_for_being_compiled_hears_that_it_is_not():
    def fn(x, scale=None):
        if not torch.compiler.is_compiling():
            scale = x.abs().amax()
        return x * scale[None]

    tracked = Tracked(fn, fullgraph=True)
    with torch.no_grad():
        tracked(torch.randn(5))
    with pytest.raises(TypeError):
        ingot.compile(lambda x: (torch.compiler.is_compiling(), x + None))(torch.ones(2))


def test_a_module_moved_to_where_it_is():
    def fn(x):
        return layer.to(torch.float32).to(x.device)(x)

    layer = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2).eval())
    tracked = Tracked(fn, fullgraph=True)
    with torch.no_grad():
        assert tracked(torch.ones(2, 3)) == 1
    assert tracked(torch.ones(2, 3)) == 1
    assert layer[0].weight.dtype is torch.float32


def test_a_module_moved_to_another_dtype():
    def fn(x):
        layer.to(torch.float64)
        return layer(x)

    layer, x = nn.Linear(3, 2), torch.ones(2, 3, dtype=torch.float64)
    with torch.no_grad():
        result = ingot.compile(fn)(x)
        assert layer.weight.dtype is torch.float64
        torch.testing.assert_close(result, layer(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_batch_norm_of_a_cumulative_average(dtype: torch.dtype) -> None:
    """Its momentum is a number that is read from the count of batches: one program for all of
    them."""
    eager = nn.BatchNorm2d(3, momentum=None, dtype=dtype)
    module = copy.deepcopy(eager)
    compiled = ingot.compile(module, fullgraph=True)
    for _ in range(3):
        x = torch.randn(4, 3, 5, 5, dtype=dtype)
        results = []
        for norm in (compiled, eager):
            own = x.clone().requires_grad_()
            y = norm(own)
            y.square().sum().backward()
            results.append((y.detach(), own.grad))
        assert_near(*results, rtol=1e-4, atol=1e-4)
    assert_near(list(module.state_dict().values()), list(eager.state_dict().values()))
    compiler = Compiler.of(compiled)
    assert compiler is not None
    assert len(compiler.compilations) == 1
    compiled.eval()
    assert_near(compiled(x), eager.eval()(x))


def test_batch_norm_with_arguments_by_name() -> None:
    """In another order than that of its parameters, with a momentum that is read from a tensor."""

    def fn(
        x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, momentum: torch.Tensor
    ) -> Any:
        mean, var = torch.zeros(4), torch.ones(4)
        y = torch.batch_norm(
            x, bias=bias, weight=weight, momentum=momentum.item(), eps=1e-5, running_mean=mean,
            training=True,
            running_var=var, cudnn_enabled=False,
        )  # fmt: skip
        return y, mean, var

    args = torch.randn(6, 4), torch.full((4,), 2.0), torch.full((4,), 5.0), torch.tensor(0.25)
    assert_near(ingot.compile(fn, fullgraph=True)(*args), fn(*args))
