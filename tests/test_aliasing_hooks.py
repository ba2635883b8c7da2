"""Hooks on the backward of modules whose results share memory with their arguments: gradients are
those of eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ingot
from tests.oracle import tensors_in
from tests.test_differentiation import both, wanted


class Rows(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:2]


class WithView(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x * 3, x.view(-1)


class Twice(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x, x.t()


MODULES: dict[str, Callable[[], nn.Module]] = {
    "identity": nn.Identity,
    "flatten": lambda: nn.Flatten(0),
    "unflatten": lambda: nn.Unflatten(0, (3, 1)),
    "dropout": lambda: nn.Dropout(0.5).eval(),
    "rows": Rows,
    "two results": Twice,
    "product and view": WithView,
    "sequence": lambda: nn.Sequential(nn.Identity(), nn.Flatten(0)),
}


def doubled(module: nn.Module, of_inputs: Any, of_outputs: Any) -> Any:
    return tuple([g * 2 for g in of_inputs if g is not None])


def doubled_before(module: nn.Module, of_outputs: Any) -> Any:
    return tuple([None if g is None else g * 3 for g in of_outputs])


HOOKS: dict[str, Callable[[nn.Module], Any]] = {
    "behind": lambda module: module.register_full_backward_hook(doubled),
    "before": lambda module: module.register_full_backward_pre_hook(doubled_before),
    "both": lambda module: [
        module.register_full_backward_hook(doubled),
        module.register_full_backward_pre_hook(doubled_before),
    ],
}

PLACES: dict[str, Callable[[nn.Module, Tensor], Any]] = {
    "the whole program": lambda m, x: m(x),
    "of a computed tensor": lambda m, x: m(x.sin()),
    "argument and result": lambda m, x: (lambda h: (h, m(h)))(x * 3),
    "result and a view": lambda m, x: (lambda r: (r, _first(r).view_as(_first(r))))(m(x)),
    "between": lambda m, x: _first(m(x.sin())).cos(),
    "alive at a break": lambda m, x: (lambda r: (outside(), r))(m(x)),
}


def _first(results: Any) -> Tensor:
    return results[0] if isinstance(results, tuple) else results


@ingot.disable
def outside() -> None:
    """Breaks the graph."""


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("hooks", HOOKS)
@pytest.mark.parametrize("module", MODULES)
def test_eager_is_the_oracle(module: str, hooks: str, place: str) -> None:
    def program(wrap: Any) -> Any:
        made, found = MODULES[module](), list[Any]()
        HOOKS[hooks](made)
        run = wrap(lambda x: PLACES[place](made, x))
        for chosen in (slice(None), slice(None), slice(0, 1), slice(1, None)):
            x = wanted(3, 4)
            results = tensors_in(run(x))
            heads = [r for r in results[chosen] if r.requires_grad]
            memory = [r.untyped_storage().data_ptr() for r in (x, *results)]
            found.append(([memory.index(m) for m in memory], results))
            if heads:
                torch.autograd.backward(heads, [torch.ones_like(h) for h in heads])
                found.append(x.grad)
        return found

    both(program, ingot.compile)
