"""Calls that eager refuses, where sizes are symbols: the error is eager's, and no shape is made up
for them.

`x` is a matrix. What is refused may depend on its rank alone, on its sizes, or on both.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import ingot
from tests.oracle import ignore_warnings

aten = torch.ops.aten

CALLS: dict[str, Callable[[Tensor], Any]] = {
    "expand fewer": lambda x: x.expand(x.shape[0]),
    "expand -1 new": lambda x: x.expand(-1, x.shape[0], x.shape[1]),
    "expand neg": lambda x: x.expand(-2, x.shape[1]),
    "permute few": lambda x: x.permute(0),
    "permute dup": lambda x: x.permute(0, 0),
    "permute many": lambda x: x.permute(0, 1, 2),
    "permute range": lambda x: x.permute(0, 2),
    "permute dup neg": lambda x: x.permute(1, -1),
    "transpose range": lambda x: x.transpose(0, 2),
    "t3": lambda x: x[None].t(),
    "select range": lambda x: x.select(2, 0),
    "select idx": lambda x: x.select(0, x.shape[0]),
    "select idx neg": lambda x: x.select(0, -x.shape[0] - 1),
    "select 0": lambda x: x[:0].select(0, 0),
    "slice step": lambda x: aten.slice(x, 0, 0, 5, 0),
    "slice stepn": lambda x: aten.slice(x, 0, 0, 5, -1),
    "slice dim": lambda x: aten.slice(x, 2, 0, 5, 1),
    "narrow len": lambda x: x.narrow(0, 0, x.shape[0] + 1),
    "narrow neglen": lambda x: x.narrow(0, 0, -1),
    "narrow start": lambda x: x.narrow(0, x.shape[0] + 1, 0),
    "narrow dim": lambda x: x.narrow(3, 0, 1),
    "unsqueeze range": lambda x: x.unsqueeze(3),
    "unsqueeze rangen": lambda x: x.unsqueeze(-4),
    "squeeze range": lambda x: x.squeeze(2),
    "squeeze dup": lambda x: x.squeeze((0, 0)),
    "squeeze dup2": lambda x: x.squeeze((0, -2)),
    "as_strided len": lambda x: x.as_strided((x.shape[0],), (1, 1)),
    "as_strided neg": lambda x: x.as_strided((x.shape[0],), (-1,)),
    "as_strided negsize": lambda x: x.as_strided((-x.shape[0],), (1,)),
    "as_strided beyond": lambda x: x.as_strided((x.shape[0] * 100,), (1,)),
    "as_strided off": lambda x: x.as_strided((1,), (1,), -1),
    "diagonal same": lambda x: x.diagonal(0, 0, 0),
    "diagonal same neg": lambda x: x.diagonal(0, 1, -1),
    "diagonal range": lambda x: x.diagonal(0, 0, 2),
    "diagonal far": lambda x: x.diagonal(1000),
    "unfold big": lambda x: x.unfold(0, x.shape[0] + 1, 1),
    "unfold step": lambda x: x.unfold(0, 1, 0),
    "unfold neg": lambda x: x.unfold(0, -1, 1),
    "unfold dim": lambda x: x.unfold(2, 1, 1),
    "split 0": lambda x: x.split(0),
    "split neg": lambda x: x.split(-1),
    "split dim": lambda x: x.split(1, 2),
    "split sum": lambda x: x.split([1, x.shape[0]]),
    "split negs": lambda x: x.split([-1, x.shape[0] + 1]),
    "chunk 0": lambda x: x.chunk(0),
    "unbind dim": lambda x: x.unbind(2),
    "view bad": lambda x: x.view(x.shape[0], x.shape[1] + 1),
    "view two": lambda x: x.view(-1, -1),
    "view neg": lambda x: x.view(-2, x.shape[0]),
    "view 0": lambda x: x.view(0, -1),
    "view t": lambda x: x.t().view(-1),
    "reshape bad": lambda x: x.reshape(x.shape[0] + 1, -1),
    "flatten dims": lambda x: x.flatten(1, 0),
    "flatten range": lambda x: x.flatten(0, 2),
    "unflatten": lambda x: x.unflatten(1, (2, 4)),
    "unflatten2": lambda x: x.unflatten(0, (2, x.shape[0])),
    "movedim": lambda x: x.movedim((0, 1), (0, 0)),
    "movedim2": lambda x: x.movedim((0,), (0, 1)),
    "swapaxes": lambda x: x.swapaxes(0, 2),
    "swapdims": lambda x: x.swapdims(-3, 0),
    "tensor_split": lambda x: x.tensor_split(0),
    "hsplit": lambda x: x[0].hsplit(0),
    "vsplit": lambda x: x[0].vsplit(1),
    "mT": lambda x: x[0].mT,
    "broadcast_to": lambda x: x.broadcast_to(x.shape[0] + 1, x.shape[1]),
    "expand_as": lambda x: x.expand_as(x[0]),
    "view_as": lambda x: x.view_as(x[1:]),
    "copy_": lambda x: torch.zeros(x.shape[0]).copy_(x[:, :1]),
    "copy_2": lambda x: torch.zeros(x.shape[0] + 1, x.shape[1]).copy_(x),
    "setitem": lambda x: torch.zeros(x.shape[0], 3).__setitem__((slice(None), 0), x[:, :1]),
    "setitem2": lambda x: x.clone().__setitem__(0, x[1:]),
    "setitem3": lambda x: x.clone().__setitem__((slice(None), slice(None), 0), x[1:]),
    "add_": lambda x: x[:1].clone().add_(x),
    "add_2": lambda x: x[0].clone().add_(x),
    "add": lambda x: x + x[1:],
    "where": lambda x: torch.where(x[1:] > 0, x, x),
    "masked_fill_": lambda x: x[0].clone().masked_fill_(x > 0, 1),
    "masked": lambda x: x[x[1:] > 0],
    "index": lambda x: x[torch.arange(x.shape[0] + 1)],
    "gather": lambda x: x.gather(0, torch.zeros(2, x.shape[1] + 1, dtype=torch.long)),
    "gather2": lambda x: x.gather(0, torch.zeros(2, dtype=torch.long)),
    "scatter": lambda x: x.scatter(0, torch.zeros(2, x.shape[1] + 1, dtype=torch.long), x),
    "index_select": lambda x: x.index_select(0, torch.zeros(2, 2, dtype=torch.long)),
    "index_add": lambda x: x.index_add(0, torch.zeros(2, dtype=torch.long), x),
    "index_copy": lambda x: x.index_copy(0, torch.zeros(2, dtype=torch.long), x),
    "index_fill": lambda x: x.index_fill(2, torch.zeros(2, dtype=torch.long), 1),
    "cat": lambda x: torch.cat([x, x[:, 1:]]),
    "cat2": lambda x: torch.cat([x, x[0]]),
    "catdim": lambda x: torch.cat([x, x], 2),
    "stack": lambda x: torch.stack([x, x[1:]]),
    "mm": lambda x: x @ x,
    "mv": lambda x: x @ x[:, 0],
    "bmm": lambda x: torch.bmm(x[None], x[None].expand(2, -1, -1).mT),
    "bmm2": lambda x: torch.bmm(x, x),
    "addmm": lambda x: torch.addmm(x, x, x.mT),
    "linear": lambda x: F.linear(x, x[:, 1:]),
    "linear bias": lambda x: F.linear(x, x, x[0]),
    "outer": lambda x: torch.outer(x, x[0]),
    "dot": lambda x: torch.dot(x[0], x[0, 1:]),
    "sum dim": lambda x: x.sum(2),
    "sum dup": lambda x: x.sum((0, 0)),
    "max dim": lambda x: x.max(2),
    "max empty": lambda x: x[:0].max(0),
    "softmax dim": lambda x: x.softmax(2),
    "cumsum dim": lambda x: x.cumsum(2),
    "sort dim": lambda x: x.sort(2),
    "topk": lambda x: x.topk(x.shape[1] + 1),
    "kthvalue": lambda x: x.kthvalue(x.shape[1] + 1),
    "flip dup": lambda x: x.flip(0, 0),
    "flip range": lambda x: x.flip(2),
    "roll": lambda x: x.roll((1, 2), (0,)),
    "rot90": lambda x: x.rot90(1, (0, 0)),
    "repeat": lambda x: x.repeat(2),
    "repeat neg": lambda x: x.repeat(-1, 1),
    "tile": lambda x: x.tile((-1,)),
    "pad": lambda x: F.pad(x, (1, 1, 1)),
    "pad neg": lambda x: F.pad(x, (-100, 1)),
    "pad reflect": lambda x: F.pad(x[None], (100, 1), mode="reflect"),
    "layer_norm": lambda x: F.layer_norm(x, (x.shape[1] + 1,)),
    "batch_norm": lambda x: F.batch_norm(x, x[0, 1:], x[0, 1:]),
    "embedding": lambda x: F.embedding(x, x),
    "conv1d": lambda x: F.conv1d(x[None], x[:, :, None]),
    "avg_pool": lambda x: F.avg_pool1d(x[None], 100),
    "interp": lambda x: F.interpolate(x[None], size=(2, 2)),
    "nll": lambda x: F.nll_loss(x, torch.zeros(x.shape[0] + 1, dtype=torch.long)),
    "mse": lambda x: F.mse_loss(x, x[1:]),
    "arange": lambda x: torch.arange(x.shape[0], 0),
    "arange0": lambda x: torch.arange(0, x.shape[0], 0),
    "zeros": lambda x: torch.zeros(-x.shape[0]),
    "full": lambda x: x.new_zeros(-x.shape[0]),
    "linspace": lambda x: torch.linspace(0, 1, -x.shape[0]),
    "eye": lambda x: torch.eye(-x.shape[0]),
    "one_hot": lambda x: F.one_hot(torch.zeros(2, dtype=torch.long), -2),
    "tril": lambda x: x[0].tril(),
    "trace": lambda x: torch.trace(x[0]),
    "cross": lambda x: torch.cross(x, x, dim=0),
    "cdist": lambda x: torch.cdist(x, x[:, 1:]),
    "lerp": lambda x: torch.lerp(x, x[1:], 0.5),
    "addcmul": lambda x: torch.addcmul(x, x, x[1:]),
    "dist": lambda x: torch.dist(x, x[1:]),
    "searchsorted": lambda x: torch.searchsorted(x, x[1:]),
    "take_along": lambda x: x.take_along_dim(torch.zeros(2, dtype=torch.long), 0),
    "select_scatter": lambda x: x.select_scatter(x, 0, 0),
    "slice_scatter": lambda x: x.slice_scatter(x, 0, 1),
    "diagonal_scatter": lambda x: x.diagonal_scatter(x[0, 1:]),
    "resize": lambda x: x.clone().resize_(-1, 2),
    "unsafe_split": lambda x: x.unsafe_split(-1),
    "pixel": lambda x: F.pixel_shuffle(x[None], 3),
    "glu": lambda x: F.glu(x[:, 1:]),
    "multinomial": lambda x: torch.multinomial(x.abs(), 100),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "einsum2": lambda x: torch.einsum("ijk->k", x),
    "tensordot": lambda x: torch.tensordot(x, x, 1),
    "baddbmm": lambda x: torch.baddbmm(x[None], x[None], x[None]),
    "kron": lambda x: torch.kron(x, x).view(-1, x.shape[0] + 1),
    "sdpa": lambda x: F.scaled_dot_product_attention(x[None], x[None, :, 1:], x[None]),
    "cov": lambda x: torch.cov(x[None]),
    "histc": lambda x: torch.histc(x, -1),
    "unflatten3": lambda x: x.unflatten(0, (-1, x.shape[0] + 1)),
    "std": lambda x: x.std(3),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=(0, 0)),
    "quantile": lambda x: torch.quantile(x, 1.5),
    "median": lambda x: x.median(2),
    "argmax": lambda x: x.argmax(2),
    "prod": lambda x: x.prod(2),
    "logsumexp": lambda x: x.logsumexp(2),
    "var_mean": lambda x: torch.var_mean(x, 2),
    "normalize": lambda x: F.normalize(x, dim=2),
    "cosine": lambda x: F.cosine_similarity(x, x[1:]),
    "grid": lambda x: F.grid_sample(x[None, None], x[None, None]),
    "group_norm": lambda x: F.group_norm(x, 3),
}


def _outcome(function: Callable[[Tensor], Any], x: Tensor) -> Any:
    try:
        results = function(x)
    except Exception as error:
        return type(error), str(error)
    return [
        getattr(r, "shape", r)
        for r in (results if isinstance(results, (tuple, list)) else [results])
    ]


@pytest.mark.parametrize("name", CALLS)
def test_eagers_error_for_symbolic_sizes(name: str) -> None:
    call = CALLS[name]
    torch.manual_seed(0)
    compiled = ingot.compile(call, dynamic=True)
    with warnings.catch_warnings():
        ignore_warnings()
        for shape in ((4, 7), (6, 8)):
            x = torch.randn(shape)
            assert _outcome(compiled, x) == _outcome(call, x)


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize(
    "name", ["catdim", "stackdim", "softmax dim", "cumsum dim", "sum dim", "sort dim", "flip range"]
)
def test_eagers_error_behind_a_call_of_its_kind(name: str, dynamic: bool) -> None:
    """What was found out about such a call that eager takes does not answer for the dimension."""
    taken: dict[str, Callable[[Tensor], Any]] = {
        "catdim": lambda x: torch.cat([x, x], 1),
        "stackdim": lambda x: torch.stack([x, x], 2),
        "softmax dim": lambda x: x.softmax(1),
        "cumsum dim": lambda x: x.cumsum(1),
        "sum dim": lambda x: x.sum(1),
        "sort dim": lambda x: x.sort(1),
        "flip range": lambda x: x.flip(1),
    }
    call = (lambda x: torch.stack([x, x], 3)) if name == "stackdim" else CALLS[name]
    for function in (taken[name], call):
        compiled = ingot.compile(function, dynamic=dynamic)
        for shape in ((4, 7), (6, 8)):
            x = torch.randn(shape)
            expected, actual = _outcome(function, x), _outcome(compiled, x)
            assert actual == expected
