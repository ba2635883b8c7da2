"""`ingot.compiled_backward` where sizes vary: the second graph is for all of them, or the report
says why not."""

from __future__ import annotations

import contextlib
import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import ingot
from tests.test_compiled_backward import fresh, graphs, pair, reasons, same_gradients

__all__ = ["fresh"]

LABELS = torch.arange(100) % 3


def fixed():
    return [text for c in ingot.compiled_backward.report().compilations for text in c.fixed_sizes]


def over_sizes(make, sizes=(5, 7, 4, 11, 5), inner=(3,)):
    """Gradients of `make` for an argument of each size, and of a weight, are eager's."""
    for n in sizes:
        x = torch.randn(n, *inner, requires_grad=True)
        w = torch.randn(inner[-1], 4, requires_grad=True)
        found = []
        for compiled in (True, False):
            torch.manual_seed(n)
            loss = make(x, w)
            with ingot.compiled_backward() if compiled else contextlib.nullcontext():
                found.append(torch.autograd.grad(loss, (x, w), allow_unused=True))
        for ours, theirs in zip(*found):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                torch.testing.assert_close(ours, theirs)
                assert ours.stride() == theirs.stride()


FORMULAS = {
    "sum": lambda x, w: (x * x).sum(),
    "sum over rows": lambda x, w: (x * x).sum(0).sin().sum(),
    "sum over columns": lambda x, w: (x * x).sum(-1).sin().sum(),
    "sum kept": lambda x, w: (x * (x * x).sum(1, keepdim=True)).sum(),
    "mean": lambda x, w: (x * x).mean(),
    "mean over rows": lambda x, w: (x * x).mean(0).sin().sum(),
    "mean over columns": lambda x, w: (x * x).mean(1, keepdim=True).sin().sum(),
    "mean of both": lambda x, w: (x * x).mean((0, 1)).sin(),
    "view": lambda x, w: (x.view(-1) * 2).sin().sum(),
    "reshape": lambda x, w: x.t().reshape(-1).sin().sum(),
    "expand": lambda x, w: (x[:, None].expand(-1, 2, -1) * torch.ones(2, 3)).sin().sum(),
    "broadcast": lambda x, w: (x * w[:, 0]).sin().sum(),
    "select": lambda x, w: x.sin()[-1].exp().sum(),
    "slice": lambda x, w: x.sin()[1:].exp().sum() + x.cos()[:, :2].sum(),
    "slice to the end but one": lambda x, w: x.sin()[:-1].exp().sum(),
    "index": lambda x, w: x.sin()[torch.tensor([0, 2, 2])].exp().sum(),
    "index_select": lambda x, w: x.sin().index_select(0, torch.tensor([0, 2, 2])).exp().sum(),
    "squeeze": lambda x, w: (
        (x[None].squeeze(0) * 2).sin().sum() + x[None].sin().squeeze().cos().sum()
    ),
    "max": lambda x, w: x.sin().max(0)[0].sum() + x.sin().max(1, keepdim=True)[0].sum(),
    "topk": lambda x, w: x.sin().topk(2, 0)[0].exp().sum(),
    "sort": lambda x, w: (x.sin().sort(0)[0] * torch.arange(x.shape[0])[:, None]).sum(),
    "mm": lambda x, w: (x @ w).sin().sum(),
    "linear": lambda x, w: F.linear(x, w.t(), w[0]).sin().sum(),
    "outer": lambda x, w: (x @ x.t()).sin().sum(),
    "cat": lambda x, w: torch.cat([x.sin(), torch.ones(2, 3), w.t()]).exp().sum(),
    "cat of columns": lambda x, w: torch.cat([x.sin(), x.cos()], 1).exp().sum(),
    "stack": lambda x, w: torch.stack([x.sin(), x.cos()]).exp().sum(),
    "cross entropy": lambda x, w: F.cross_entropy(x @ w, LABELS[: x.shape[0]]),
    "mse": lambda x, w: F.mse_loss(x @ w, torch.ones(x.shape[0], 4)),
    "smooth_l1": lambda x, w: F.smooth_l1_loss(x @ w, torch.ones(x.shape[0], 4)),
    "bce": lambda x, w: F.binary_cross_entropy_with_logits(x @ w, torch.ones(x.shape[0], 4)),
    "softmax": lambda x, w: (x @ w).softmax(0).square().sum(),
    "logsumexp": lambda x, w: (x @ w).logsumexp(0).sum(),
    "norm": lambda x, w: (x @ w).norm() + (x @ w).norm(dim=1).sum(),
    "var": lambda x, w: (x @ w).var(0).sum(),
    "layer_norm": lambda x, w: F.layer_norm(x @ w, (4,)).exp().sum(),
    "where": lambda x, w: torch.where(x > 0, x.sin(), x.cos()).sum(),
    "cumsum": lambda x, w: x.cumsum(0).sin().sum(),
    "gather": lambda x, w: x.sin().gather(1, LABELS[: x.shape[0], None]).exp().sum(),
    "masked_fill": lambda x, w: x.masked_fill(x > 0, 0).sin().sum(),
    "embedding": lambda x, w: (F.embedding(LABELS[: x.shape[0]], w) * x[:, :1]).sum(),
    "halves": lambda x, w: (x.bfloat16() @ w.bfloat16()).float().sum(),
    "bmm": lambda x, w: torch.bmm(x[:, None], w.expand(x.shape[0], 3, 4)).sin().sum(),
    "pad": lambda x, w: F.pad(x.sin(), (1, 1)).exp().sum(),
    "dropped columns": lambda x, w: x.sin().unbind(1)[1].exp().sum(),
    "split": lambda x, w: sum((k * part).exp().sum() for k, part in enumerate(x.sin().split(2, 1))),
    "split, a part of it": lambda x, w: x.sin().split(2, -1)[1].exp().sum(),
    "split in": lambda x, w: (
        x.sin().split([1, 2], 1)[0].exp().sum() + x.cos().split([1, 2], 1)[1].exp().sum()
    ),
    "halves of twice as many": lambda x, w: torch.cat([x, x.sin()]).chunk(2)[1].exp().sum(),
    "repeat": lambda x, w: x.sin().repeat(2, 3).cos().sum() + x.sin().repeat(4, 1, 2).exp().sum(),
    "repeat none": lambda x, w: x.sin().repeat(2, 0).sum() + x.sum(),
    "amax": lambda x, w: (
        x.sin().amax(0).sum() + x.sin().amin((0, 1), keepdim=True).sum() + x.cos().amax().exp()
    ),
    "equal extremes": lambda x, w: (
        x.sign().amax(-1).exp().sum() + x.relu().amin(0).sum() + x.relu().min().exp()
    ),
    "extremes": lambda x, w: x.sin().max().exp() + x.sin().min() * 3,
    "std": lambda x, w: (
        (x @ w).std(0).sum() + (x @ w).std(1, keepdim=True).exp().sum() + (x @ w).std()
    ),
    "unfold": lambda x, w: x.sin().unfold(1, 2, 1).exp().sum(),
    "scatter": lambda x, w: (
        x.sin().scatter(0, torch.zeros(1, 3, dtype=torch.long), 2.0).exp().sum()
    ),
    "pow": lambda x, w: (x.sin() ** 3).sum() / x.shape[0],
    "times a size": lambda x, w: (x.sin() * x.shape[0]).exp().sum() / 3,
    "var of all": lambda x, w: (x @ w).var(unbiased=False) + (x @ w).var(1, keepdim=True).sum(),
    "bce with weights": lambda x, w: F.binary_cross_entropy_with_logits(
        x @ w,
        torch.ones(x.shape[0], 4),
        weight=torch.rand(4),
        pos_weight=torch.rand(4),
        reduction="sum",
    ),
    "bce with targets": lambda x, w: F.binary_cross_entropy_with_logits(
        x, x.sigmoid(), weight=torch.rand(3)
    ),
    "bce with weights and targets": lambda x, w: F.binary_cross_entropy_with_logits(
        x @ w, (x @ w).sigmoid(), pos_weight=torch.rand(4)
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas(name):
    over_sizes(FORMULAS[name])
    assert not fixed(), fixed()
    assert graphs() == 2


@pytest.mark.parametrize("breaks", [1, 3])
def test_compiled_forward(breaks):
    """The second call's forward is another program, with symbols; its backward has them at once."""
    compiled, eager = pair(breaks)
    for n in (5, 7, 4, 11, 3):
        x = torch.randn(n, 6)
        with ingot.compiled_backward():
            compiled(x).square().mean().backward()
        eager(x).square().mean().backward()
        same_gradients(compiled, eager)
        compiled.zero_grad()
        eager.zero_grad()
    assert graphs() == 2 and not fixed()


def test_several_sizes_and_gradients_that_are_added_to():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.out = nn.Embedding(20, 8), nn.Linear(8, 20)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0)

        def forward(self, words):
            hidden = self.layer(self.words(words))
            pause()
            return self.out(hidden)

    @ingot.disable
    def pause():
        pass

    eager = Net()
    compiled = ingot.compile(copy.deepcopy(eager))
    for step, shape in enumerate([(4, 6), (5, 7), (3, 9), (6, 5), (2, 8), (7, 3)]):
        words = torch.randint(20, shape)
        for m in (compiled, eager):
            with ingot.compiled_backward() if m is compiled else contextlib.nullcontext():
                F.cross_entropy(m(words).flatten(0, 1), words.flatten()).backward()
        same_gradients(compiled, eager)
        if step % 2:
            compiled.zero_grad()
            eager.zero_grad()
    assert graphs() == 4 and not fixed()


def test_leaves_whose_sizes_vary():
    """Their gradients are set, and added to."""
    for n in (5, 7, 4, 9):
        found = []
        for compiled in (True, False):
            torch.manual_seed(n)
            x = torch.randn(n, 3, requires_grad=True)
            y = torch.randn(3, n).t().requires_grad_()
            with ingot.compiled_backward() if compiled else contextlib.nullcontext():
                for _ in range(2):
                    (x.sin() * y).sum().backward()
            found.append((x.grad, y.grad))
        torch.testing.assert_close(*found)
        assert [g.stride() for g in found[0]] == [g.stride() for g in found[1]]
    assert graphs() == 4 and not fixed()


def test_sizes_that_are_equal_for_once():
    """What held of the first sizes is asked of the others."""
    w = torch.randn(3, 4, requires_grad=True)
    for n, m in ((3, 3), (5, 5), (7, 4), (4, 7), (3, 4)):
        found = []
        x, y = torch.randn(n, 3), torch.randn(m, 3)
        for compiled in (True, False):
            loss = (x @ w).sin().sum() / n + (y @ w).cos().mean()
            with ingot.compiled_backward() if compiled else contextlib.nullcontext():
                found += torch.autograd.grad(loss, w)
        torch.testing.assert_close(*found)
    assert graphs() == 3 and not fixed()


@pytest.mark.parametrize("sizes", [(5, 1, 7, 1, 4), (1, 5, 7, 4), (5, 0, 7, 4), (0, 3, 0, 5)])
def test_one_and_none(sizes):
    for name in ("mean over rows", "mm", "cat", "broadcast", "sum kept"):
        over_sizes(FORMULAS[name], sizes)


def test_formulas_that_look_at_sizes_are_compiled_for_each():
    over_sizes(lambda x, w: x.prod(0).sum() + x.cumprod(0).sin().sum(), (5, 7, 4))
    assert graphs() == 3 and any("looks at sizes" in text for text in fixed())


def test_joined_tensors_of_which_some_gradients_are_not_asked_for():
    for n in (4, 5, 6, 7):
        found, leaves = [], [torch.randn(n + k, 3, requires_grad=True) for k in range(3)]
        for compiled in (True, False):
            loss = (
                torch.cat([leaf.sin() for leaf in leaves]) * torch.arange(3.0 * n + 3)[:, None]
            ).sum()
            with ingot.compiled_backward() if compiled else contextlib.nullcontext():
                found += torch.autograd.grad(loss, leaves[1])
        torch.testing.assert_close(*found)


def test_results_for_no_more_than_part_of_the_rows():
    """A number in the graph that is no size of a tensor's."""
    for n in (6, 8, 10):
        found = []
        x = torch.randn(n, 3, requires_grad=True)
        for compiled in (True, False):
            with ingot.compiled_backward() if compiled else contextlib.nullcontext():
                found += torch.autograd.grad(x.sin()[n // 3 : n - 1].exp().sum(), x)
        torch.testing.assert_close(*found)
    assert not reasons()
