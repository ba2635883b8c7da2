"""The programs of the corpus: small ones of each family of ops, and blocks of models.

Each has a function, its arguments and the ways in which it is compiled: "inference", "training"
(with a backward), and "symbolic" (a second call with other sizes). Tensors are of zeros and ones:
only shapes and dtypes matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BOTH = ("inference", "training")
ALL = ("inference", "training", "symbolic")


class Program(NamedTuple):
    """`make(n)` gives the arguments, for a first size of `n`."""

    function: Callable[..., Any]
    make: Callable[[int], Sequence[Any]]
    modes: tuple[str, ...] = ("inference",)


def _of(*shape: int, dtype: torch.dtype = torch.float32) -> Callable[[int], Sequence[Any]]:
    """One tensor; the first size is chosen."""
    return lambda n: (torch.ones(n, *shape[1:], dtype=dtype),)


def _pair(*shape: int) -> Callable[[int], Sequence[Any]]:
    return lambda n: (torch.ones(n, *shape[1:]), torch.ones(n, *shape[1:]))


def _places(count: int, *shape: int) -> Callable[[int], Sequence[Any]]:
    """A tensor, and places in its first dimension."""
    return lambda n: (torch.ones(n, *shape[1:]), torch.zeros(count, dtype=torch.long))


M = _of(48, 96)
IMAGES = _of(2, 8, 14, 14)
HEADS = _of(2, 4, 24, 16)
SEQUENCE = _of(2, 24, 64)

PROGRAMS: dict[str, Program] = {
    # pointwise
    "add_mul": Program(lambda x, y: (x + y) * 2 - x / 3, _pair(48, 96), ALL),
    "broadcast": Program(lambda x: x * x[:1] + x[:, :1], M, BOTH),
    "gelu": Program(lambda x: F.gelu(x), M, BOTH),
    "gelu_tanh": Program(lambda x: F.gelu(x, approximate="tanh"), M, BOTH),
    "silu": Program(lambda x: F.silu(x) * x, M, BOTH),
    "softplus": Program(lambda x: F.softplus(x), M, BOTH),
    "leaky_relu": Program(lambda x: F.leaky_relu(x, 0.1) + F.elu(x), M, BOTH),
    "hard_functions": Program(lambda x: F.hardswish(x) + F.hardsigmoid(x) + F.hardtanh(x), M, BOTH),
    "sigmoid_tanh": Program(lambda x: torch.sigmoid(x) * torch.tanh(x), M, BOTH),
    "exp_log": Program(lambda x: torch.log1p(torch.exp(x)) + torch.expm1(x), M, BOTH),
    "trigonometry": Program(lambda x: torch.sin(x) + torch.cos(x) + torch.atan2(x, x + 1), M, BOTH),
    "erf": Program(lambda x: torch.erf(x) + torch.erfc(x), M),
    "powers": Program(lambda x: x**3 + x**0.5 + torch.rsqrt(x), M, BOTH),
    "clamp_where": Program(lambda x: torch.where(x > 0, x.clamp(-1, 1), -x), M, ALL),
    "comparisons": Program(lambda x: ((x > 0) & (x < 1)) | (x == 2), M),
    "integers": Program(lambda x: (x // 3) % 5 + (x << 1), _of(64, 33, dtype=torch.int64)),
    "float64": Program(
        lambda x: torch.exp(x) / (1 + x * x), _of(48, 96, dtype=torch.float64), BOTH
    ),
    "bfloat16": Program(lambda x: F.gelu(x) + x, _of(48, 96, dtype=torch.bfloat16), BOTH),
    "float16": Program(lambda x: torch.tanh(x) * x, _of(48, 96, dtype=torch.float16)),
    "casts": Program(lambda x: x.to(torch.bfloat16).float() + x.int() + x.double().float(), M),
    "lerp_addcmul": Program(
        lambda x, y: torch.lerp(x, y, 0.3) + torch.addcmul(x, y, y, value=0.1), _pair(48, 96)
    ),
    "transposed": Program(lambda x: x.t() + x.t().exp(), M, BOTH),
    "strided": Program(lambda x: x[::2, 1::3] * 2, M, BOTH),
    # reductions and norms
    "sum_rows": Program(lambda x: x.sum(-1), M, ALL),
    "sum_columns": Program(lambda x: x.sum(0), M, ALL),
    "sum_all": Program(lambda x: x.sum(), M, BOTH),
    "mean_var": Program(lambda x: (x.mean(-1), x.var(-1)), M, BOTH),
    "long_sum": Program(lambda x: x.sum(), _of(48, 1 << 14), BOTH),
    "long_columns": Program(lambda x: x.exp().sum(0), lambda n: (torch.ones(n * 200, 96),), BOTH),
    "wide_softmax": Program(lambda x: F.softmax(x, -1), _of(48, 20000), BOTH),
    "wide_layer_norm": Program(lambda x: F.layer_norm(x, (9000,)), _of(48, 9000), BOTH),
    "max_min": Program(lambda x: (x.amax(-1), x.min(0).values, x.argmax(-1)), M, BOTH),
    "any_all": Program(lambda x: ((x > 0).any(-1), (x > 0).all()), M),
    "norm": Program(lambda x: x / x.norm(dim=-1, keepdim=True), M, BOTH),
    "logsumexp": Program(lambda x: torch.logsumexp(x, -1), M, BOTH),
    "softmax": Program(lambda x: F.softmax(x, -1), M, ALL),
    "softmax_columns": Program(lambda x: F.softmax(x, 0), M, BOTH),
    "log_softmax": Program(lambda x: F.log_softmax(x, -1), M, BOTH),
    "layer_norm": Program(lambda x: F.layer_norm(x, (96,)), M, ALL),
    "layer_norm_affine": Program(lambda x: F.layer_norm(x, (96,), x[0], x[1]), M, BOTH),
    "rms_norm": Program(lambda x: F.rms_norm(x, (96,)), M, BOTH),
    "group_norm": Program(lambda x: F.group_norm(x, 4), IMAGES, BOTH),
    "batch_norm": Program(
        lambda x: (
            F.batch_norm(x, x.new_zeros(8), x.new_ones(8))
            + F.batch_norm(x, None, None, training=True)
        ),
        IMAGES,
        BOTH,
    ),
    "instance_norm": Program(lambda x: F.instance_norm(x), IMAGES, BOTH),
    "normalize": Program(lambda x: F.normalize(x, dim=1), M, BOTH),
    "bfloat16_layer_norm": Program(
        lambda x: F.layer_norm(x, (96,)), _of(48, 96, dtype=torch.bfloat16), BOTH
    ),
    # losses
    "cross_entropy": Program(
        lambda x, i: F.cross_entropy(x, i),
        lambda n: (torch.ones(n, 10), torch.zeros(n).long()),
        ALL,
    ),
    "mse": Program(lambda x, y: F.mse_loss(x, y), _pair(48, 96), BOTH),
    "smooth_l1": Program(lambda x, y: F.smooth_l1_loss(x, y), _pair(48, 96), BOTH),
    "bce_with_logits": Program(
        lambda x, y: F.binary_cross_entropy_with_logits(x, y), _pair(48, 96), BOTH
    ),
    "kl_div": Program(lambda x, y: F.kl_div(x, y, reduction="batchmean"), _pair(48, 96), BOTH),
    # views and copies
    "cat": Program(lambda x, y: torch.cat([x * 2, y], 1), _pair(48, 96), ALL),
    "cat_of_computed": Program(
        lambda x, y: torch.cat([x.exp() * 2 + y.sin(), y.tanh()], 1).relu(), _pair(48, 96), BOTH
    ),
    "cat_of_sums": Program(lambda x, y: torch.cat([x + y, y * 2 - x], 1) * 3, _pair(48, 96), BOTH),
    "stack": Program(lambda x, y: torch.stack([x, y.exp()]), _pair(48, 96), BOTH),
    "split": Program(lambda x: torch.cat([p.sin() for p in x.split(32, 1)], 1), M, BOTH),
    "pad": Program(lambda x: F.pad(x, (1, 2, 3, 0)), M, BOTH),
    "reflection_pad": Program(lambda x: F.pad(x, (1, 1, 2, 2), mode="reflect"), IMAGES, BOTH),
    "roll_flip": Program(lambda x: x.roll(3, 1) + x.flip(0), M, BOTH),
    "permute": Program(lambda x: x.permute(0, 2, 3, 1).contiguous() * 2, IMAGES, BOTH),
    "expand_repeat": Program(
        lambda x: x[:, None].expand(-1, 3, -1) * 2 + x.repeat(1, 1)[:, None], M, BOTH
    ),
    "tril_triu": Program(lambda x: x.tril() + x.triu(1), M, BOTH),
    "diagonal": Program(lambda x: x.diagonal() * 2, M, BOTH),
    "unfold": Program(lambda x: x.unfold(1, 8, 4).sum(-1), M, BOTH),
    "slice_scatter": Program(
        lambda x, y: torch.slice_scatter(x, y[:, :10], 1, 5, 15), _pair(48, 96), BOTH
    ),
    "pixel_shuffle": Program(lambda x: F.pixel_shuffle(x, 2), IMAGES, BOTH),
    # places that tensors name
    "index": Program(lambda x, i: x[i] * 2, _places(20, 48, 96), ALL),
    "index_of_two": Program(lambda x, i: x[i, i + 1], _places(20, 48, 96), BOTH),
    "gather": Program(
        lambda x, i: x.gather(0, i[:, None].expand(-1, 96)), _places(20, 48, 96), BOTH
    ),
    "scatter": Program(
        lambda x, i: x.scatter(0, i[:, None].expand(-1, 96), 1.5), _places(20, 48, 96)
    ),
    "scatter_add": Program(
        lambda x, i: x.scatter_add(0, i[:, None].expand(-1, 96), x[:20]), _places(20, 48, 96), BOTH
    ),
    "index_add": Program(lambda x, i: x.index_add(0, i, x[:20]), _places(20, 48, 96), BOTH),
    "index_put": Program(lambda x, i: x.index_put((i,), x[:20]), _places(20, 48, 96), BOTH),
    "embedding": Program(lambda x, i: F.embedding(i, x).sin(), _places(20, 48, 96), BOTH),
    "take_along_dim": Program(lambda x: x.take_along_dim(x.argsort(-1), -1), M),
    "masked_fill": Program(lambda x: x.masked_fill(x > 0, -1.0), M, BOTH),
    "one_hot": Program(lambda x, i: F.one_hot(i, 48).float() @ x, _places(20, 48, 96)),
    # scans and sorts
    "cumsum": Program(lambda x: x.cumsum(-1), M, ALL),
    "cumsum_columns": Program(lambda x: x.cumsum(0), M, BOTH),
    "cummax": Program(lambda x: x.cummax(-1).values, M),
    "sort": Program(lambda x: x.sort(-1).values * 2, M, BOTH),
    "topk": Program(lambda x: x.topk(4).values + 1, M, BOTH),
    # products
    "matmul": Program(lambda x: x @ x.t(), M, ALL),
    "linear_gelu": Program(lambda x: F.gelu(F.linear(x, x[:32], x[0, :32])), M, ALL),
    "linear_residual": Program(lambda x: x + F.linear(x, x.t() @ x), M, BOTH),
    "large_matmul": Program(
        lambda x, y: F.gelu(x @ y), lambda n: (torch.ones(n * 8, 512), torch.ones(512, 700)), BOTH
    ),
    "few_results": Program(
        lambda x, y: x.t() @ y, lambda n: (torch.ones(n * 200, 4), torch.ones(n * 200, 6)), BOTH
    ),
    "bmm": Program(lambda x: torch.bmm(x, x.transpose(1, 2)), SEQUENCE, BOTH),
    "baddbmm": Program(
        lambda x: torch.baddbmm(x[:, :, :24], x, x.transpose(1, 2), beta=0.5), SEQUENCE, BOTH
    ),
    "einsum": Program(lambda x: torch.einsum("bij,bkj->ik", x, x), SEQUENCE, BOTH),
    "outer": Program(lambda x: torch.outer(x[:, 0], x[0]), M, BOTH),
    "matvec": Program(lambda x: x @ x[0], M, BOTH),
    "float64_matmul": Program(lambda x: x @ x.t(), _of(48, 96, dtype=torch.float64)),
    "bfloat16_linear": Program(
        lambda x: F.relu(F.linear(x, x[:32])), _of(48, 96, dtype=torch.bfloat16), BOTH
    ),
    # images
    "convolution": Program(lambda x: F.relu(F.conv2d(x, _windows(x, 3), padding=1)), IMAGES, BOTH),
    "pointwise_convolution": Program(lambda x: F.conv2d(x, _windows(x, 1)), IMAGES, BOTH),
    "depthwise_convolution": Program(
        lambda x: F.conv2d(x, x[0, :, None, :3, :3], groups=8, padding=1), IMAGES, BOTH
    ),
    "strided_convolution": Program(lambda x: F.conv2d(x, _windows(x, 3), stride=2), IMAGES, BOTH),
    "max_pool": Program(lambda x: F.max_pool2d(x, 2), IMAGES, BOTH),
    "avg_pool": Program(lambda x: F.avg_pool2d(x, 3, 2, 1), IMAGES, BOTH),
    "adaptive_pool": Program(lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1), IMAGES, BOTH),
    "nearest": Program(lambda x: F.interpolate(x, scale_factor=2), IMAGES, BOTH),
    "bilinear": Program(lambda x: F.interpolate(x, size=(20, 20), mode="bilinear"), IMAGES, BOTH),
    "grid_sample": Program(
        lambda x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1), align_corners=False), IMAGES, BOTH
    ),
    # attention
    "attention": Program(lambda x: F.scaled_dot_product_attention(x, x, x), HEADS, ALL),
    "causal_attention": Program(
        lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True), HEADS, BOTH
    ),
    "masked_attention": Program(
        lambda x: F.scaled_dot_product_attention(x, x, x, x[..., :1].expand(-1, -1, -1, 24) > 0),
        HEADS,
        BOTH,
    ),
    "written_attention": Program(
        lambda x: F.softmax(x @ x.transpose(-2, -1) / 4, -1) @ x, HEADS, BOTH
    ),
    # random numbers, mutation
    "dropout": Program(lambda x: F.dropout(x, 0.3), M, BOTH),
    "rand": Program(lambda x: x + torch.rand_like(x), M),
    "mutation": Program(lambda x: x.add_(1).mul_(2), M),
    "slice_mutation": Program(lambda x: _written(x), M),
    "arange": Program(lambda x: x * torch.arange(96), M, ("inference", "symbolic")),
}


def _windows(x: Tensor, size: int) -> Tensor:
    """Weights of 16 channels."""
    return x[:1, :, :size, :size].expand(16, -1, -1, -1)


def _written(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, :10] = 0
    y[1] += x[0]
    return y


# -- blocks of models ------------------------------------------------------------------------------


def _block(x: Tensor, norm: nn.Module, up: nn.Module, down: nn.Module, heads: nn.Module) -> Tensor:
    """What a transformer has between its residual sums, twice."""
    n = norm(x)
    q, k, v = heads(n).unflatten(-1, (3, 4, 16)).permute(2, 0, 3, 1, 4)
    x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    return x + down(F.gelu(up(norm(x))))


def _of_block(n: int) -> Sequence[Any]:
    return (
        torch.ones(n, 24, 64),
        nn.LayerNorm(64),
        nn.Linear(64, 128),
        nn.Linear(128, 64),
        nn.Linear(64, 192),
    )


def _of_mlp(n: int) -> Sequence[Any]:
    return torch.ones(n, 64), nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def _of_images(n: int) -> Sequence[Any]:
    first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    net = nn.Sequential(first, nn.Conv2d(8, 8, 3, 2), nn.Flatten())
    return torch.ones(n, 3, 14, 14), net


def _of_recurrence(n: int) -> Sequence[Any]:
    return torch.ones(n, 5, 16), nn.GRUCell(16, 32)


def _recurrence(x: Tensor, cell: nn.Module) -> Tensor:
    h = x.new_zeros(x.shape[0], 32)
    for k in range(x.shape[1]):
        h = cell(x[:, k], h)
    return h


def _step(weight: Tensor, gradient: Tensor, mean: Tensor, square: Tensor) -> None:
    """One of Adam's."""
    mean.lerp_(gradient, 0.1)
    square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    weight.addcdiv_(mean, square.sqrt().add_(1e-8), value=-0.001)


PROGRAMS |= {
    "transformer_block": Program(_block, _of_block, ALL),
    "mlp": Program(lambda x, net: net(x), _of_mlp, ALL),
    "convolutions": Program(lambda x, net: net(x), _of_images, BOTH),
    "recurrence": Program(_recurrence, _of_recurrence, BOTH),
    "adam": Program(_step, lambda n: tuple(torch.ones(n, 96) for _ in range(4))),
}
