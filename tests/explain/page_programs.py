"""Programs whose pages are tested, as FILE.py:make: one has five breaks, one is compiled seven
times."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

import ingot
from ingot.explain.report import Report


def broken(x: Tensor, w: Tensor) -> Tensor:
    y = torch.relu(x @ w)
    if y.sum() > 0:
        y = y * 2
    y = torch.tanh(y + 1)
    if y.mean() > 0:
        y = y @ w
    y = y - 0.5
    if y.max() > 0:
        y = y.softmax(-1)
    y = y * 3
    if y.min() > -1:
        y = y.cumsum(0)
    y = y + x
    if y.std() >= 0:
        y = y.sin() @ w
    return y.cos()


def make_broken() -> tuple[Callable[..., Tensor], tuple[Tensor, ...]]:
    generator = torch.Generator().manual_seed(0)
    return broken, tuple(torch.rand(128, 128, generator=generator) for _ in range(2))


def scaled(x: Tensor, factor: object) -> Tensor:
    return (x * factor).relu() if isinstance(factor, (int, float)) else x.cos()


def recompiled() -> Report:
    """The report of `scaled`, which is compiled again six times."""
    function = ingot.compile(scaled, dynamic=False)
    calls: list[tuple[Tensor, object]] = [
        (torch.rand(4), 2),
        (torch.rand(5), 2),
        (torch.rand(5, 3), 2),
        (torch.rand(5, 3, dtype=torch.float64), 2),
        (torch.rand(5, 3), "twice"),
        (torch.rand(5, 3)[:, ::2], 2),
    ]
    for arguments in calls:
        function(*arguments)
    return ingot.explain(function)(torch.rand(7), 3.5)
