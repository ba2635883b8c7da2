"""How far results are from float64, as docs/limits.md promises it: the mean of five draws of the
arguments."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Container, Mapping
from typing import Any

import torch

from ingot.explain import measure

DRAWS = 5
FACTOR = 1.1
FLOOR = 4
"""Errors up to 1.1 times eager's are as good as eager's, and so is what lies within 4 eps."""


def errors(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    calls: Mapping[str, Callable[[], Any]],
    copied: Container[str] = (),
) -> dict[str, float | None]:
    """Each peer's mean relative distance from float64 (`measure.error`), None where float64 cannot
    be had.

    A draw permutes the values of every tensor in `args`, in place, so that a call sees it whatever
    it holds them by. The calls in `copied` have copied them: one draw is all there is of theirs. In
    the end all is as it was.
    """
    found: dict[str, list[float]] = {name: [] for name in calls}
    tensors = measure.tensors(args)
    before = [tensor.clone() for tensor in tensors]
    for draw in range(DRAWS):
        generator = torch.Generator().manual_seed(draw)
        if draw:
            for tensor, values in zip(tensors, before, strict=True):
                order = torch.randperm(values.numel(), generator=generator).to(values.device)
                tensor.copy_(values.flatten()[order].view(values.shape))
        exact = measure.reference64(function, args, {})
        if exact is None:
            break
        for name, call in calls.items():
            if draw and name in copied:
                continue
            found[name].append(measure.error(call(), exact))
    for tensor, values in zip(tensors, before, strict=True):
        tensor.copy_(values)
    return {name: statistics.fmean(each) if each else None for name, each in found.items()}


def epsilon(result: Any) -> float:
    """The machine epsilon of the coarsest floating type among the result's tensors; 0 where there
    is none."""
    return max(
        (torch.finfo(t.dtype).eps for t in measure.tensors(result) if t.is_floating_point()),
        default=0.0,
    )


def as_good(error: float | None, eager: float | None, eps: float) -> bool:
    """Whether an error is within the bounds that eager's sets; what could not be measured is not
    held against it."""
    return error is None or eager is None or error <= max(FACTOR * eager, FLOOR * eps)
