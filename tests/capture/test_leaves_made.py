"""Tensors that a function makes leaves of, while no gradients are recorded."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

import ingot

X = torch.arange(3.0)
WEIGHT = torch.nn.Parameter(torch.ones(3))


def computed(x):
    return (x * 2).requires_grad_(), x + 1


def a_view_of_a_parameter(x):
    y = WEIGHT.expand(2, 3).requires_grad_(WEIGHT.requires_grad)
    return y, y + x


def behind_a_break(x):
    y = (x * 2).requires_grad_()
    now = time.time() > 0
    return y * 3, y, now


def with_attributes(x):
    y = (x * 2).requires_grad_()
    y.label, y.grad = "leaf", x + 1
    return y, y.label, y.grad


def in_a_list(x):
    leaves = [x.clone().requires_grad_()]
    now = time.time() > 0
    return leaves, leaves[0].requires_grad, now


def facts(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.tolist(), value.requires_grad, value.is_leaf, value._base is None
    if isinstance(value, (list, tuple)):
        return list(map(facts, value))
    return value


@pytest.mark.parametrize("backend", ["ingot", "eager"])
@pytest.mark.parametrize(
    "fn", [computed, a_view_of_a_parameter, behind_a_break, with_attributes, in_a_list]
)
def test_leaves(fn: Any, backend: str) -> None:
    compiled = ingot.compile(fn, backend=backend)
    with torch.no_grad():
        for _ in range(3):
            assert facts(compiled(X)) == facts(fn(X))


@pytest.mark.parametrize("backend", ["ingot", "eager"])
def test_a_leaf_takes_gradients_afterwards(backend: str) -> None:
    with torch.no_grad():
        leaf, _ = ingot.compile(computed, backend=backend)(X)
    (leaf * 3).sum().backward()
    assert leaf.grad is not None and leaf.grad.tolist() == [3.0] * 3
