"""Random programs of custom autograd Functions, whose results share memory with arguments and with one another, of
views, and of modules with hooks on their backward; eager is the oracle.

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
from tests.aliasing_functions import FORMS, Scale, function_of, outside, tensors_in
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
}


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


class RandomFunctions:
    """The program of a seed, which takes two tensors of 3 x 4."""

    def __init__(self, seed: int) -> None:
        rng = self.rng = random.Random(f"functions {seed}")
        self.steps: list[tuple[str, Any, int]] = []
        for _ in range(rng.randint(1, 6)):
            kind = rng.choices(["operation", "function", "module", "break"], [4, 5, 1, 0.5])[0]
            make = {"operation": self._operation, "function": self._function, "module": self._module}.get(kind)
            name, function = make() if make else ("break", None)
            self.steps.append((name, function, rng.randrange(1 << 16)))
        self.returned = [rng.randrange(1 << 16) for _ in range(rng.randint(1, 4))]

    def _operation(self) -> tuple[str, Any]:
        return self.rng.choice([*_OPERATIONS.items()])

    def _function(self) -> tuple[str, Any]:
        name = self.rng.choice([*FORMS])
        return f"Function: {name}", function_of(FORMS[name])

    def _module(self) -> tuple[str, Any]:
        module = _hooked(self.rng)
        return f"module: {type(module).__name__}", module

    def __call__(self, x: Tensor, w: Tensor) -> Any:
        values = [x, w, x * w]
        for name, function, choice in self.steps:
            if function is None:
                outside()
                continue
            of = values if not name.startswith("Function") else [v for v in values if v.shape == x.shape]
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
        given = [torch.randn(3, 4, dtype=torch.float64, requires_grad=k not in asked.frozen) for k in range(2)]
        results = list(tensors_in(run(*given)))
        memory = [t.untyped_storage().data_ptr() for t in (*given, *results)]
        found.append([memory.index(m) for m in memory])
        found.append([t.detach().clone() for t in results])
        found.append([(t.requires_grad, t.is_leaf, t.stride(), t.storage_offset()) for t in results])
        heads = [t for t in dict.fromkeys(results) if t.requires_grad and not t.is_leaf]
        leaves = [t for t in given if t.requires_grad]
        tangents = [torch.randn(h.shape, dtype=h.dtype) for h in heads]
        found.append(asked.gradients(call, heads, leaves, tangents) if heads else [])
    return found


def alike(a: Any, b: Any) -> bool:
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(alike, a, b))
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and torch.allclose(a, b, rtol=1e-10)
    if isinstance(a, Exception) or isinstance(b, Exception):
        return type(a) is type(b)
    return a == b  # type: ignore[no-any-return]


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
    return f"seed {seed}: {RandomFunctions(seed)} differs at {places or repr((expected[-1], found[-1]))[:300]}"


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
