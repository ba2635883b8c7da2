"""The 40 microbenchmarks: functions that a fusing compiler makes one kernel of, over what kernels
differ in.

Sizes are those of common models; reductions go from 8 elements to 2^24. Each case makes its
function and arguments anew, always with the same values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.workloads import Made, Workload

f32, f64, bf16, fp16 = torch.float32, torch.float64, torch.bfloat16, torch.float16
MILLION = 1 << 20


def floats(*shape: int, dtype: torch.dtype = f32, seed: int = 0) -> Tensor:
    """Standard normal values."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def integers(high: int, *shape: int, dtype: torch.dtype = torch.int64, seed: int = 0) -> Tensor:
    """Whole numbers from 0 to `high` - 1."""
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def booleans(*shape: int, seed: int = 0) -> Tensor:
    return floats(*shape, seed=seed) > 0


def images(dtype: torch.dtype = f32) -> Tensor:
    """What the early layers of a convolutional network see: 8 x 64 x 56 x 56."""
    return floats(8, 64, 56, 56, dtype=dtype)


Case = tuple[Callable[..., Tensor], Callable[[], tuple[Any, ...]]]


def two(dtype: torch.dtype, count: int = MILLION) -> Callable[[], tuple[Tensor, Tensor]]:
    return lambda: (floats(count, dtype=dtype), floats(count, dtype=dtype, seed=1))


def square(dtype: torch.dtype = f32) -> Callable[[], tuple[Tensor]]:
    return lambda: (floats(1024, 1024, dtype=dtype),)


SETS: dict[str, dict[str, Case]] = {
    "pointwise": {
        "add f32, 64": (torch.add, two(f32, 64)),
        "add f32": (torch.add, two(f32)),
        "gelu f32": (F.gelu, lambda: (floats(MILLION),)),
        "sigmoid(x) * y f64": (lambda x, y: torch.sigmoid(x) * y, two(f64)),
        "silu(x) * y bf16": (lambda x, y: F.silu(x) * y, two(bf16)),
        "x * y + x fp16": (lambda x, y: x * y + x, two(fp16)),
        "relu(x + bias) f32": (
            lambda x, bias: torch.relu(x + bias),
            lambda: (floats(1024, 1024), floats(1024)),
        ),
        "(x + y) >> 2 int32": (
            lambda x, y: (x + y) >> 2,
            lambda: (
                integers(1000, MILLION, dtype=torch.int32),
                integers(1000, MILLION, dtype=torch.int32, seed=1),
            ),
        ),
        "x * y + x int64": (
            lambda x, y: x * y + x,
            lambda: (integers(99, MILLION), integers(99, MILLION, seed=1)),
        ),
        "x & ~y bool": (
            lambda x, y: x & ~y,
            lambda: (booleans(MILLION), booleans(MILLION, seed=1)),
        ),
    },
    "reductions": {
        "sum of 8": (torch.sum, lambda: (floats(8),)),
        "sum of 2^12": (torch.sum, lambda: (floats(1 << 12),)),
        "sum of 2^24": (torch.sum, lambda: (floats(1 << 24),)),
        "sum over rows": (lambda x: x.sum(0), square()),
        "sum over columns": (lambda x: x.sum(1), square()),
        "sum over the middle": (lambda x: x.sum(1), lambda: (floats(32, 128, 256),)),
        "mean by channel": (lambda x: x.mean((0, 2, 3)), lambda: (images(),)),
        "amax bf16": (lambda x: x.amax(-1), square(bf16)),
        "argmax f32": (lambda x: x.argmax(-1), square()),
        "var f32": (lambda x: x.var(-1), square()),
        "any bool": (lambda x: x.any(-1), lambda: (booleans(1024, 1024) & False,)),
    },
    "layouts": {
        "transpose f32": (lambda x: x.t().contiguous(), lambda: (floats(2048, 2048),)),
        "heads f32": (lambda x: x.transpose(1, 2).contiguous(), lambda: (floats(4, 256, 12, 64),)),
        "channels last bf16": (
            lambda x: x.contiguous(memory_format=torch.channels_last),
            lambda: (images(bf16),),
        ),
        "cat of columns": (
            lambda x, y: torch.cat((x, y), 1),
            lambda: (floats(1024, 512), floats(1024, 256, seed=1)),
        ),
        "f32 to bf16": (lambda x: x.to(bf16), lambda: (floats(MILLION),)),
        "int64 to f32": (lambda x: x.to(f32), lambda: (integers(1000, MILLION),)),
    },
    "indexing": {
        "embedding": (F.embedding, lambda: (integers(30522, 8, 128), floats(30522, 768))),
        "gather": (
            lambda x, index: x.gather(1, index),
            lambda: (floats(1024, 1024), integers(1024, 1024, 256)),
        ),
        "x[i, j]": (
            lambda x, i, j: x[i, j],
            lambda: (floats(1024, 1024), integers(1024, 1 << 18), integers(1024, 1 << 18, seed=1)),
        ),
        "index_add": (
            lambda x, index, y: x.index_add(0, index, y),
            lambda: (floats(4096, 256), integers(4096, 2048), floats(2048, 256, seed=1)),
        ),
        "scatter_add": (
            lambda x, index, y: x.scatter_add(1, index, y),
            lambda: (floats(1024, 256), integers(256, 1024, 256), floats(1024, 256, seed=1)),
        ),
    },
    "windows and norms": {
        "max_pool2d 3x3": (lambda x: F.max_pool2d(x, 3, 2, 1), lambda: (images(),)),
        "avg_pool2d 2x2": (lambda x: F.avg_pool2d(x, 2), lambda: (images(),)),
        "layer_norm": (
            lambda x, w, b: F.layer_norm(x, (1024,), w, b),
            lambda: (floats(1024, 1024), floats(1024, seed=1), floats(1024, seed=2)),
        ),
        "group_norm": (
            lambda x, w, b: F.group_norm(x, 32, w, b),
            lambda: (images(), floats(64, seed=1), floats(64, seed=2)),
        ),
        "relu(batch_norm)": (
            lambda x, m, v, w, b: torch.relu(F.batch_norm(x, m, v, w, b)),
            lambda: (
                images(),
                floats(64),
                floats(64, seed=1).square(),
                floats(64, seed=2),
                floats(64, seed=3),
            ),
        ),
        "softmax": (lambda x: torch.softmax(x, -1), square()),
        "softmax over dim 1": (lambda x: torch.softmax(x, 1), lambda: (floats(8, 64, 2048),)),
        "log_softmax bf16": (lambda x: torch.log_softmax(x, -1), square(bf16)),
    },
}


def _workload(name: str, case: Case) -> Workload:
    function, arguments = case

    def make(device: str) -> Made:
        return function, tuple(argument.to(device) for argument in arguments())

    return Workload(name, make)


CASES: dict[str, Workload] = {
    name: _workload(name, case) for cases in SETS.values() for name, case in cases.items()
}
