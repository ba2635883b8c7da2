"""Random programs of layers that are alike, or nearly so: `layered_program(seed)`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

WIDTH, ROWS = 8, 4
State = list[Tensor]
Op = Callable[[State, dict[str, Tensor], int], Tensor]

_UNARY = [torch.tanh, torch.sigmoid, torch.sin, torch.relu, F.gelu, F.silu, torch.neg]


def _ops(of: random.Random) -> Op:
    """An operation on the values at hand, those of a layer and those of all."""
    kind, a, b = of.randrange(12), of.randrange(99), of.randrange(99)
    unary, scale = of.choice(_UNARY), of.choice([0.5, 0.9, 1.1])

    def op(state: State, own: dict[str, Tensor], number: int) -> Tensor:
        x, y = state[a % len(state)], state[b % len(state)]
        if kind < 3:
            return unary(x)
        if kind < 5:
            return torch.tanh(x @ own["w"])
        results = {
            5: lambda: x + y,
            6: lambda: x * own["b"],
            7: lambda: F.layer_norm(x, (WIDTH,), own["b"], own["b"]),
            8: lambda: torch.softmax(x, -1) * scale,
            9: lambda: x - x.mean(0, keepdim=True),
            10: lambda: torch.cat([x[:, 3:], y[:, :3]], -1),
            11: lambda: x.view(2, 2, WIDTH).transpose(0, 1).reshape(ROWS, WIDTH) + own["a"],
        }
        return results[kind]()

    return op


def layered_program(seed: int) -> tuple[Callable[..., Any], list[Any]]:
    """A function of (x, layers, shared), and its arguments.

    Most have layers that are alike. In some a layer is another one, reads what is two layers back,
    or counts; some use what layers make, or have, behind them.
    """
    of = random.Random(seed)
    count, states = of.randrange(8, 20), of.choice([1, 1, 1, 2, 3])
    ops = [_ops(of) for _ in range(of.randrange(1, 6))]
    carried = [of.randrange(99) for _ in range(states)]
    behind = [_ops(of) for _ in range(of.randrange(3))]
    odd = of.randrange(count) if of.random() < 0.05 else None
    counts, twice, of_all = (of.random() < chance for chance in (0.05, 0.05, 0.05))
    is_usual = of.random() < 0.6
    kept = of.choice(["none"] * 6 + ["each", "sums", "joined", "third", "last"])
    uses_shared, reads_own, ends_with_own = (of.random() < chance for chance in (0.4, 0.1, 0.5))

    def fn(x: Tensor, layers: list[dict[str, Tensor]], shared: Tensor) -> list[Tensor]:
        states_now = [x, x.cos(), shared + x][:states]
        before, seen = states_now[0], []
        mask = shared.exp()
        for number, own in enumerate(layers):
            values = list(states_now)
            if uses_shared:
                values.append(mask)
            if twice:
                values.append(before)
            before = states_now[0]
            for op in ops:
                values.append(op(values, own, number))
            if is_usual:
                inner = F.layer_norm(values[-1], (WIDTH,), own["b"])
                values.append(values[0] + F.gelu(inner @ own["w"] + own["b"]) @ own["w"].T)
            else:
                values.append(torch.tanh(values[-1] @ own["w"]) + values[0] * 0.5)
            if number == odd:
                values.append(values[-1] * 2)
            if counts:
                values.append(values[-1] * (1 + number / 8))
            states_now = [values[-1], *[values[-1 - k % len(ops)] for k in carried[1:]]]
            seen.append(values[-1])
        values = list(states_now)
        if of_all:
            values.append(sum(own["b"] for own in layers) * x)
        spare = {"w": shared.T @ x, "b": shared[0], "a": shared}
        for op in behind:
            values.append(op(values, layers[0 if ends_with_own else -1] if reads_own else spare, 0))
        results = [values[-1], *states_now]
        if kept == "each":
            results += seen
        if kept == "sums":
            results += [value.sum(0) for value in seen]
        if kept == "joined":
            results.append(torch.stack(seen).mean(0))
        if kept == "third":
            results.append(seen[2] + 1)
        if kept == "last":
            results.append(seen[-1])
        return results

    generator = torch.Generator().manual_seed(seed)

    def made(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator) / 3

    layers = []
    for _ in range(count):
        layers.append({"w": made(WIDTH, WIDTH), "b": made(WIDTH), "a": made(ROWS, WIDTH)})
    return fn, [made(ROWS, WIDTH), layers, made(ROWS, WIDTH)]
