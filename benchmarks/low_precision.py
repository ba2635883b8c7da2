"""Inference on a CPU in fewer bits than float32's, beside eager.

    python -m benchmarks.low_precision [MODEL ...] [--kinds KIND ...] [--rounds 9] [--layers 2]

The models are `decode`, a token of a Llama-like model of 1B parameters' widths with a static cache,
`gpt2` and `resnet50`. Each row has the median of a call's milliseconds, and how many times as fast
that is as eager in the same kind, and as Ingot in the first kind. For decoding it also has the time
over that which the weights' bytes take at the speed of the fastest reading in the same run.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from rich.table import Table
from torch import Tensor, nn

import ingot
from benchmarks import workloads
from benchmarks.quantized import HEAD, Block, Int4, Int8, Packed, rotated, with_weights
from ingot.explain.cli import console, positive
from ingot.explain.measure import interleave

POSITIONS, WIDTH, VOCABULARY = 1024, 2048, 32000
CPU = torch.device("cpu")


class Layer(Block):
    """A `Block` with a static cache, in which the rows of other tokens lie."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        cache = torch.zeros(1, width // 4 // HEAD, POSITIONS, HEAD)
        self.register_buffer("keys", cache)
        self.register_buffer("values", cache.clone())

    def forward(self, x: Tensor, at: Tensor, cos: Tensor, sin: Tensor, seen: Tensor) -> Tensor:
        normal = self.before(x)
        query, key, value = (
            layer(normal).unflatten(-1, (-1, HEAD)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        self.keys.index_copy_(2, at, rotated(key, cos, sin).to(self.keys.dtype))
        self.values.index_copy_(2, at, value.to(self.values.dtype))
        query = rotated(query, cos, sin).to(self.keys.dtype)
        heads = F.scaled_dot_product_attention(
            query, self.keys, self.values, attn_mask=seen, enable_gqa=True
        )
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        normal = self.between(x)
        return x + self.down(F.silu(self.gate(normal)) * self.up(normal))


class Decoder(nn.Module):
    """The logits of the token behind a given one, which is number `at`."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Layer(WIDTH) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, False)
        steps = torch.arange(POSITIONS)[:, None]
        angles = steps * 1e4 ** -torch.linspace(0, 1, HEAD // 2).repeat(2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, token: Tensor, at: Tensor) -> Tensor:
        seen = torch.arange(POSITIONS) <= at[:, None]
        x = self.tokens(token)
        for layer in self.layers:
            x = layer(x, at, self.cos[at], self.sin[at], seen)
        return self.head(self.norm(x))


def decode(layers: int) -> workloads.Made:
    return Decoder(layers), (torch.tensor([[7]]), torch.tensor([POSITIONS // 2]))


MODELS: dict[str, Callable[[int], workloads.Made]] = {
    "decode": decode,
    "gpt2": lambda layers: workloads.make_gpt2("cpu"),
    "resnet50": lambda layers: workloads.make_resnet50("cpu"),
}
PACKS = {"int8": Int8.of, "int4": Int4.of}
KINDS = {
    "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16,
    "autocast": torch.float32, "int8 float32": torch.float32, "int8 bfloat16": torch.bfloat16,
    "int4 float32": torch.float32, "int4 bfloat16": torch.bfloat16,
}  # fmt: skip
"""What the weights are, and the dtype of all else."""


def weight_bytes(model: nn.Module) -> int:
    """The bytes of the linear layers' weights."""
    total = 0
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            weight = layer.weight
            parts = (weight.packed, weight.scale) if isinstance(weight, Packed) else (weight,)
            total += sum(part.nbytes for part in parts)
    return total


def in_kind(
    model: nn.Module, args: tuple[Any, ...], kind: str
) -> tuple[nn.Module, tuple[Any, ...]]:
    """The model and its arguments in one of `KINDS`."""
    dtype, pack = KINDS[kind], PACKS.get(kind.partition(" ")[0])
    model = copy.deepcopy(model).to(dtype)
    if pack is not None:
        model = with_weights(model, pack)
    own = []
    for t in args:
        own.append(t.to(dtype) if t.is_floating_point() else t)
    return model, tuple(own)


def call_of(function: Callable[..., Any], args: tuple[Any, ...], kind: str) -> Callable[[], Any]:
    def call() -> Any:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
            return function(*args)

    return call


def measure(name: str, kinds: list[str], rounds: int, layers: int, table: Table) -> None:
    """Adds the rows of a model."""
    torch.manual_seed(0)
    model, args = MODELS[name](layers)
    model = model.eval().requires_grad_(False)
    block = torch.ones(1 << 27)
    calls: dict[str, Callable[[], Any]] = {"read": block.sum}
    sizes = {"read": block.nbytes}
    for kind in kinds:
        own, inputs = in_kind(model, args, kind)
        sizes[kind] = weight_bytes(own)
        calls[f"{kind} eager"] = call_of(own, inputs, kind)
        calls[kind] = call_of(ingot.compile(own), inputs, kind)
    times = {}
    for peer, seconds in interleave(calls, rounds, CPU).items():
        times[peer] = statistics.median(seconds)
    fastest = sizes["read"] / times["read"]
    if name == "decode":
        fastest = max(sizes[kind] / times[kind] for kind in sizes)
    for kind in kinds:
        row = [name, kind, f"{times[kind] * 1e3:.2f}"]
        row.append(f"{times[f'{kind} eager'] / times[kind]:.2f}")
        row.append(f"{times[kinds[0]] / times[kind]:.2f}")
        row.append(f"{times[kind] * fastest / sizes[kind]:.2f}" if name == "decode" else "")
        table.add_row(*row)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.low_precision")
    parser.add_argument("models", nargs="*", choices=[[], *MODELS])
    parser.add_argument("--kinds", nargs="*", choices=[*KINDS], default=["float32", "bfloat16"])
    parser.add_argument("--rounds", type=positive, default=9)
    parser.add_argument("--layers", type=positive, default=2)
    given = parser.parse_args()
    table = Table("model", "weights", "ms", "x eager", f"x {given.kinds[0]}", "over reading")
    for name in given.models or MODELS:
        measure(name, given.kinds, given.rounds, given.layers, table)
    console().print(table)


if __name__ == "__main__":
    main()
