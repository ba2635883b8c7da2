"""A Llama-like block whose weights are tensor subclasses of 8 and of 4 bits.

    python -m benchmarks.quantized [--device cpu] [--rounds 15] [--width 1024] [--only NAME ...]

Eager, torch.compile and Ingot take turns. The figures are the seconds of the first call, the median
of a call's milliseconds, and the relative distance of the result to that of a block whose weights
are unpacked beforehand, computed in float64. The exit status is 1 where Ingot makes more than one
graph or is slower than torch.compile.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from rich.table import Table
from torch import Tensor, nn
from torch.utils._python_dispatch import return_and_correct_aliasing

import ingot
from ingot.explain.cli import console, positive
from ingot.explain.measure import batch_seconds, error, repetitions, synchronize

GROUP = 32  # columns that share a scale of a weight of 4 bits
HEAD = 64
TOKENS = (1, 32)
detach = torch.ops.aten.detach.default


class Packed(Tensor):
    """A weight that is kept in fewer bits, with scales; a linear layer unpacks it."""

    packed: Tensor
    scale: Tensor

    @staticmethod
    def __new__(cls, packed: Tensor, scale: Tensor, shape: Any) -> Any:
        return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, shape, dtype=scale.dtype, device=packed.device
        )

    def __init__(self, packed: Tensor, scale: Tensor, shape: Any) -> None:
        self.packed, self.scale = packed, scale

    def __repr__(self, **options: Any) -> str:
        return f"{type(self).__name__}({tuple(self.shape)})"

    def __tensor_flatten__(self) -> Any:
        return ["packed", "scale"], tuple(self.shape)

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, shape: Any, sizes: Any, strides: Any) -> Any:
        return cls(inner["packed"], inner["scale"], shape)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            x, weight = args[:2]
            return weight.linear(x)
        return super().__torch_function__(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not detach:
            raise NotImplementedError(f"{func} of a packed weight")
        (weight,) = args
        made = cls(weight.packed.detach(), weight.scale.detach(), tuple(weight.shape))
        return return_and_correct_aliasing(func, args, kwargs or {}, made)

    def linear(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def unpacked(self) -> Tensor:
        raise NotImplementedError


class Int8(Packed):
    """A scale for each row."""

    @classmethod
    def of(cls, weight: Tensor) -> Int8:
        scale = weight.abs().amax(1) / 127
        packed = (weight / scale[:, None]).round().to(torch.int8)
        return cls(packed, scale, tuple(weight.shape))

    def linear(self, x: Tensor) -> Tensor:
        return F.linear(x, self.packed.to(x.dtype)) * self.scale

    def unpacked(self) -> Tensor:
        return self.packed * self.scale[:, None]


class Int4(Packed):
    """A scale for each group of a row; two numbers in a byte."""

    @classmethod
    def of(cls, weight: Tensor) -> Int4:
        rows, columns = weight.shape
        grouped = weight.reshape(rows, columns // GROUP, GROUP)
        scale = grouped.abs().amax(-1) / 7
        levels = (grouped / scale[..., None]).round().to(torch.int8).reshape(rows, columns) + 8
        levels = levels.to(torch.uint8)
        return cls(levels[:, ::2] | (levels[:, 1::2] << 4), scale, (rows, columns))

    def linear(self, x: Tensor) -> Tensor:
        return F.linear(x, self.unpacked())

    def unpacked(self) -> Tensor:
        levels = torch.stack([self.packed & 15, self.packed >> 4], -1)
        rows, columns = self.shape
        grouped = levels.reshape(rows, columns // GROUP, GROUP).to(self.scale.dtype) - 8
        return (grouped * self.scale[..., None]).reshape(rows, columns)


class Block(nn.Module):
    """Attention with rotated queries and keys, and a gated layer, each behind a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query, self.out = nn.Linear(width, width, False), nn.Linear(width, width, False)
        self.key, self.value = (nn.Linear(width, width // 4, False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, 4 * width, False) for _ in range(2))
        self.down = nn.Linear(4 * width, width, False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        normal = self.before(x)
        query, key, value = (
            layer(normal).unflatten(-1, (-1, HEAD)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        query, key = rotated(query, cos, sin), rotated(key, cos, sin)
        heads = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        normal = self.between(x)
        return x + self.down(F.silu(self.gate(normal)) * self.up(normal))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def with_weights(block: nn.Module, change: Callable[[Tensor], Tensor]) -> nn.Module:
    for layer in block.modules():
        if isinstance(layer, nn.Linear):
            layer.weight = nn.Parameter(change(layer.weight.detach()), requires_grad=False)
    return block


def inputs(tokens: int, width: int, **kind: Any) -> list[Tensor]:
    """(1, tokens, width), and the cosines and sines of (tokens, HEAD)."""
    places = torch.arange(tokens, device=kind["device"])[:, None]
    angles = places * 1e4 ** -torch.linspace(0, 1, HEAD // 2, device=kind["device"]).repeat(2)
    return [torch.randn(1, tokens, width, **kind), angles.cos().to(kind["dtype"]),
            angles.sin().to(kind["dtype"])]  # fmt: skip


def measure(name: str, tokens: int, arguments: argparse.Namespace, table: Table) -> bool:
    """Adds the rows of a kind of weight; whether Ingot is one graph and the fastest."""
    device = torch.device(arguments.device)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    torch.manual_seed(0)
    pack = {"int8": Int8.of, "int4": Int4.of}[name]
    block = with_weights(Block(arguments.width).to(device, dtype), pack)
    args = inputs(tokens, arguments.width, device=device, dtype=dtype)
    reference = with_weights(Block(arguments.width).to(device, torch.float64), Tensor.clone)
    state = {}
    for key, value in block.state_dict().items():
        state[key] = value.unpacked() if isinstance(value, Packed) else value
    reference.load_state_dict(state)
    peers = {"eager": block, "torch.compile": torch.compile(block), "Ingot": ingot.compile(block)}
    calls: dict[str, Callable[[], Tensor]] = {}
    firsts, errors, times = {}, {}, {}
    torch._dynamo.reset()
    with torch.no_grad():
        exact = reference(*(t.double() for t in args))
        for peer, function in peers.items():

            def call(function: nn.Module = function) -> Tensor:
                with torch.no_grad():
                    result: Tensor = function(*args)
                return result

            start = time.perf_counter()
            result = call()
            synchronize(device)
            firsts[peer] = time.perf_counter() - start
            errors[peer] = error(result, exact)
            calls[peer], times[peer] = call, list[float]()
        count = repetitions(calls["Ingot"], device)
        for _ in range(arguments.rounds):
            for peer in peers:
                times[peer].append(batch_seconds(calls[peer], count, device))
    report = ingot.explain(block)(*args)
    for peer in peers:
        ratios = [a / b for a, b in zip(times[peer], times["Ingot"])]
        row = [name, str(tokens), peer, f"{firsts[peer]:.1f}"]
        row += [f"{statistics.median(times[peer]) * 1e3:.3f}", f"{statistics.median(ratios):.2f}"]
        table.add_row(*row, f"{errors[peer]:.1e}")
    ahead = statistics.median(times["Ingot"]) <= statistics.median(times["torch.compile"])
    return ahead and len(report.graphs) == 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quantized")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=positive, default=15)
    parser.add_argument("--width", type=positive, default=1024)
    parser.add_argument("--only", nargs="*", choices=["int8", "int4"], default=["int8", "int4"])
    arguments = parser.parse_args()
    table = Table("weights", "tokens", "compiler", "first call, s", "ms", "x Ingot", "error")
    ahead = True
    for name in arguments.only:
        for tokens in TOKENS:
            ahead &= measure(name, tokens, arguments, table)
    console().print(table)
    return 0 if ahead else 1


if __name__ == "__main__":
    sys.exit(main())
