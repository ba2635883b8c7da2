"""Random programs of custom autograd Functions, whose results share memory with arguments and with
one another, of views, of modules with hooks on their backward, and of ops with effects; eager is
the oracle.

`python -m tests.random_functions COUNT SEED` runs so many programs from that seed on.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import ingot
from tests import effectful_ops
from tests.aliasing_functions import FORMS, Scale, function_of, outside
from tests.oracle import alike, tensors_in
from tests.random_gradients import Asked

_OPERATIONS: dict[str, Callable[[Tensor], Any]] = {
    "sin": lambda t: t.sin(),
    "times": lambda t: t * 1.5,
    "view": lambda t: t.view_as(t),
    "transposed": lambda t: t.mT if t.dim() > 1 else t[...],
    "tail": lambda t: t[1:] if t.dim() else t.view_as(t),
    "flat": lambda t: t.reshape(-1),
    "detached": lambda t: t.detach(),
    "cloned": lambda t: t.clone(),
    "scaled": lambda t: Scale.apply(t),
    "scaled flat": lambda t: Scale.apply(t.reshape(-1)),
    "unbound": lambda t: t.unbind() if t.dim() else t.clone(),
    "written by a Function": lambda t: Written.apply(t * 1),
}

# Ops that write a line to a log; a result may be left unused, or be computed twice.
_EFFECTS: dict[str, Callable[[Tensor], Any]] = {
    "counted": effectful_ops.counted,
    "counted twice": lambda t: (effectful_ops.counted(t), effectful_ops.counted(t)),
    "kept": effectful_ops.kept,
    "defined": effectful_ops.defined,
    "composed": effectful_ops.composed,
    "scaled op": lambda t: effectful_ops.scaled(t, 0.5),
    "pair": effectful_ops.pair,
    "listed": lambda t: effectful_ops.listed([t, t * 2], 2.0),
    "noted": effectful_ops.noted,
    "silent": effectful_ops.silent,
    "counted, unused": lambda t: effectful_ops.counted(t) is None,
}


class Written(torch.autograd.Function):
    """Writes its argument; the gradient is twice the right one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 6


def _doubled(module: nn.Module, of_inputs: Any, of_outputs: Any) -> Any:
    return tuple([g * 2 for g in of_inputs])


def _tripled(module: nn.Module, of_outputs: Any) -> Any:
    return tuple([None if g is None else g * 3 for g in of_outputs])


def _hooked(rng: random.Random) -> nn.Module:
    module = rng.choice([nn.Identity, lambda: nn.Flatten(0), nn.Tanh])()
    if rng.random() < 0.7:
        module.register_full_backward_hook(_doubled)
    if rng.random() < 0.5:
        module.register_full_backward_pre_hook(_tripled)
    return module


_WEIGHTS = {"operation": 4, "function": 5, "module": 1, "effect": 2, "break": 0.5}


class RandomFunctions:
    """The program of a seed, which takes two tensors of 3 x 4."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(f"functions {seed}")
        self.steps: list[tuple[str, Any, int]] = []
        for _ in range(rng.randint(1, 6)):
            kind = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
            make = {
                "operation": self._operation,
                "function": self._function,
                "module": self._module,
                "effect": self._effect,
            }.get(kind)
            name, function = make() if make else ("break", None)
            self.steps.append((name, function, rng.randrange(1 << 16)))
        self.returned = [rng.randrange(1 << 16) for _ in range(rng.randint(1, 4))]

    def _operation(self) -> tuple[str, Any]:
        return self.rng.choice([*_OPERATIONS.items()])

    def _function(self) -> tuple[str, Any]:
        name = self.rng.choice([*FORMS])
        return f"Function: {name}", function_of(FORMS[name])

    def _effect(self) -> tuple[str, Any]:
        return self.rng.choice([*_EFFECTS.items()])

    def _module(self) -> tuple[str, Any]:
        module = _hooked(self.rng)
        return f"module: {type(module).__name__}", module

    def __call__(self, x: Tensor, w: Tensor) -> Any:
        values = [x, w, x * w]
        for name, function, choice in self.steps:
            if function is None:
                outside()
                continue
            of = (
                values
                if not name.startswith("Function")
                else [v for v in values if v.shape == x.shape]
            )
            given = of[choice % len(of)]
            if name.startswith("module") and not given.requires_grad:
                given = w * 2
            values += [t for t in tensors_in(function(given))]
        return [values[-1 - k % (len(values) - 2)] for k in self.returned]

    def __str__(self) -> str:
        return f"{[(name, choice) for name, _, choice in self.steps]} -> {self.returned}"


def outcome(seed: int, wrap: Any) -> list[Any]:
    """Results, what shares memory, and the gradients that are asked for, of three calls."""
    run, asked, found = wrap(RandomFunctions(seed)), Asked(seed, 2), list[Any]()
    for call in range(3):
        torch.manual_seed(seed + call)
        given = [
            torch.randn(3, 4, dtype=torch.float64, requires_grad=k not in asked.frozen)
            for k in range(2)
        ]
        effectful_ops.LOG.clear()
        effectful_ops.KEPT.clear()
        results = list(tensors_in(run(*given)))
        found.append(list(effectful_ops.LOG))
        memory = [t.untyped_storage().data_ptr() for t in (*given, *results)]
        found.append([memory.index(m) for m in memory])
        found.append([t.detach().clone() for t in results])
        found.append(
            [(t.requires_grad, t.is_leaf, t.stride(), t.storage_offset()) for t in results]
        )
        heads = [t for t in dict.fromkeys(results) if t.requires_grad and not t.is_leaf]
        leaves = [t for t in given if t.requires_grad]
        tangents = [torch.randn(h.shape, dtype=h.dtype) for h in heads]
        effectful_ops.LOG.clear()
        found.append(asked.gradients(call, heads, leaves, tangents) if heads else [])
        found.append([name for name, _ in effectful_ops.LOG])
    return found


def problem(seed: int) -> str:
    """What differs from eager; empty if nothing does."""
    try:
        expected = outcome(seed, lambda f: f)
    except Exception as error:
        expected = [error]
    try:
        found = outcome(seed, lambda f: ingot.compile(lambda x, w: f(x, w)))
    except Exception as error:
        found = [error]
    if alike(expected, found):
        return ""
    places = [k for k, (a, b) in enumerate(zip(expected, found)) if not alike(a, b)]
    return (
        f"seed {seed}: {RandomFunctions(seed)} differs at "
        f"{places or repr((expected[-1], found[-1]))[:300]}"
    )


def main() -> None:
    count, first = int(sys.argv[1]), int(sys.argv[2])
    wrong = 0
    for seed in range(first, first + count):
        found = problem(seed)
        wrong += bool(found)
        if found:
            print(found, flush=True)
        ingot.reset()
    print(f"{count} programs from seed {first} on, {wrong} wrong")


if __name__ == "__main__":
    main()
