"""Seven small functions, which eager PyTorch runs as strings of kernels and Ingot as one (the MLP:
as two matmuls).

Each `make_*` returns `(function, arguments)`, so that `python -m ingot try
examples/functions.py:make_tanh_gelu` works. `FUNCTIONS` is the table that the demonstration and the
benchmarks run, with the sizes they use per device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Made = tuple[Callable[..., Tensor], tuple[Any, ...]]


def complex_activation(x: Tensor) -> Tensor:
    """Six pointwise ops: sin, cos, mul, add, mul, relu."""
    return torch.relu((torch.sin(x) * torch.cos(x) + x) * 0.5)


def tanh_gelu(x: Tensor) -> Tensor:
    """GELU by its tanh formula, written out as models write it (Hendrycks and Gimpel, 2016)."""
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def mlp_dead_matmul(x: Tensor, up: Tensor, down: Tensor, unused: Tensor) -> Tensor:
    """A two-layer MLP with a third matmul whose result nobody reads."""
    hidden = torch.relu(x @ up)
    _ = hidden @ unused
    return hidden @ down


def layer_norm_gelu(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """LayerNorm(GELU(x) + residual) over rows."""
    return F.layer_norm(F.gelu(x) + residual, weight.shape, weight, bias)


def masked_softmax(scores: Tensor, hidden: Tensor) -> Tensor:
    """Softmax over rows, without the elements where `hidden` (bool) is true."""
    return torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1)


def rms_norm_rotary(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RMSNorm over the last dimension, then rotary position embedding; x is (positions, heads,
    width)."""
    normal = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight
    first, second = normal.chunk(2, dim=-1)
    rotated = torch.cat((-second, first), dim=-1)
    return normal * cos + rotated * sin


def eight_elements(x: Tensor, y: Tensor) -> Tensor:
    """Three ops on almost nothing: what is measured is the price of a call."""
    return torch.relu(x * 2.0 + y)


def normal(shape: Sequence[int], device: str, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Standard normal values, the same on every device: drawn on the CPU in float32."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(tuple(shape), generator=generator).to(device, dtype)


def make_complex_activation(
    shape: Sequence[int] = (2048, 2048), device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Made:
    return complex_activation, (normal(shape, device, dtype),)


def make_tanh_gelu(
    shape: Sequence[int] = (1024, 3072), device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Made:
    return tanh_gelu, (normal(shape, device, dtype),)


def make_mlp_dead_matmul(
    shape: Sequence[int] = (128, 512), device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Made:
    """`shape` is (batch, width); the hidden layer is as wide as the input."""
    width = shape[-1]
    weights = (normal((width, width), device, dtype, seed) / width**0.5 for seed in (1, 2, 3))
    return mlp_dead_matmul, (normal(shape, device, dtype), *weights)


def make_layer_norm_gelu(
    shape: Sequence[int] = (2048, 1024), device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Made:
    x, residual = normal(shape, device, dtype), normal(shape, device, dtype, 1)
    weight, bias = normal(shape[-1:], device, dtype, 2), normal(shape[-1:], device, dtype, 3)
    return layer_norm_gelu, (x, residual, weight, bias)


def make_masked_softmax(
    shape: Sequence[int] = (2048, 1024), device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Made:
    """A third of the elements are hidden, never the first of a row: no row is empty."""
    hidden = normal(shape, "cpu", torch.float32, 1) > 0.43
    hidden[..., 0] = False
    return masked_softmax, (normal(shape, device, dtype), hidden.to(device))


def make_rms_norm_rotary(
    shape: Sequence[int] = (512, 8, 64), device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Made:
    positions, _, width = shape
    frequencies = 10000.0 ** (-torch.arange(0, width, 2) / width)
    angles = torch.outer(torch.arange(positions).float(), frequencies).repeat(1, 2)[:, None, :]
    cos, sin = angles.cos().to(device, dtype), angles.sin().to(device, dtype)
    return rms_norm_rotary, (
        normal(shape, device, dtype),
        normal((width,), device, dtype, 1),
        cos,
        sin,
    )


def make_eight_elements(
    shape: Sequence[int] = (8,), device: str = "cpu", dtype: torch.dtype = torch.float32
) -> Made:
    return eight_elements, (normal(shape, device, dtype), normal(shape, device, dtype, 1))


@dataclass(frozen=True)
class Example:
    """One function with its sizes: `cpu` and `cuda` are keyword arguments of `constructor`."""

    title: str
    constructor: Callable[..., Made]
    cpu: dict[str, Any] = field(default_factory=dict)
    cuda: dict[str, Any] = field(default_factory=dict)

    def make(self, device: str = "cpu", **sizes: Any) -> Made:
        """The function and its arguments at the sizes of `device`, each of which `sizes` may
        override."""
        kind = torch.device(device).type
        return self.constructor(
            **{**(self.cuda if kind == "cuda" else self.cpu), **sizes, "device": device}
        )


FUNCTIONS: dict[str, Example] = {
    "complex_activation": Example(
        "complex activation", make_complex_activation, cuda={"shape": (4096, 4096)}
    ),
    "tanh_gelu": Example("tanh-GELU", make_tanh_gelu, cuda={"shape": (16384, 3072)}),
    "mlp_dead_matmul": Example(
        "MLP with a dead matmul",
        make_mlp_dead_matmul,
        cuda={"shape": (512, 2048), "dtype": torch.bfloat16},
    ),
    "layer_norm_gelu": Example(
        "LayerNorm(GELU(x)+r)", make_layer_norm_gelu, cuda={"shape": (16384, 1024)}
    ),
    "masked_softmax": Example("masked softmax", make_masked_softmax, cuda={"shape": (32768, 1024)}),
    "rms_norm_rotary": Example(
        "RMSNorm + rotary", make_rms_norm_rotary, cuda={"shape": (16384, 16, 128)}
    ),
    "eight_elements": Example("8-element function", make_eight_elements),
}
