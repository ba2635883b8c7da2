"""How far results are from more precise ones, and whether that is as near as eager's are.

A row's reference is eager without autocast for bfloat16 and float16, and eager in float64 for
float32; TF32 is off in both. A compiled result is right if its departure from the reference, over
all tensors together, is at most `FACTOR` times eager's own departure, or within `FLOOR` eps of
float32: the bounds of benchmarks/training.py. One draw of the inputs may miss that by chance, where
a ReLU's input changes its sign in the last bit; then the mean and the median of `DRAWS` draws are
looked at, and one of them has to hold. Besides, no single gradient may be lost (`lost`).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

FACTOR, FLOOR, DRAWS = 1.2, 4, 5
CHUNK = 1 << 24  # elements of a tensor that are compared at a time, to need little memory

Parts = list[tuple[float, float]]
"""Of each tensor the squared distance from the reference, and the reference's squared norm."""


def parts(result: Sequence[Tensor], reference: Sequence[Tensor]) -> Parts:
    """Raises ValueError where numbers or shapes differ."""
    if len(result) != len(reference):
        raise ValueError(f"{len(result)} tensors where {len(reference)} are expected")
    found = []
    for value, expected in zip(result, reference):
        if value.shape != expected.shape:
            raise ValueError(
                f"shape {tuple(value.shape)} where {tuple(expected.shape)} is expected"
            )
        pieces = zip(value.detach().flatten().split(CHUNK), expected.flatten().split(CHUNK))
        sums = torch.zeros(2, dtype=torch.float64, device=value.device)
        for piece, exact in pieces:
            sums += both(piece.double(), exact.double())
        found.append((float(sums[0]), float(sums[1])))
    return found


def both(value: Tensor, exact: Tensor) -> Tensor:
    """The squared distance and the squared norm; NaN and infinities on both sides are equal."""
    same = (value == exact) | (value.isnan() & exact.isnan())
    difference = torch.where(same, 0.0, value - exact)
    return torch.stack((difference.square().sum(), exact.square().nan_to_num(0.0, 0.0, 0.0).sum()))


def departure(found: Parts) -> float:
    """The relative L2 distance over all tensors together; infinite where NaN is on one side."""
    distance = sum(part[0] for part in found)
    norm = sum(part[1] for part in found)
    if distance != distance or (distance and not norm):
        return float("inf")
    return (distance / norm) ** 0.5 if norm else 0.0


def lost(found: Parts, eager: Parts) -> list[int]:
    """Which tensors are more than half off where eager's are four times nearer: gradients that are
    missing or of something else, which are too small to count in the sum."""
    numbers = []
    for number, (mine, theirs) in enumerate(zip(found, eager)):
        norm = mine[1]
        if norm and not mine[0] <= 0.25 * norm and not mine[0] <= 16 * theirs[0]:
            numbers.append(number)
    return numbers


def is_near(mine: Sequence[float], eager: Sequence[float]) -> bool:
    """Whether departures of some draws are as near as eager's: their mean or their median."""
    floor = FLOOR * torch.finfo(torch.float32).eps
    averages: tuple[Callable[[Sequence[float]], Any], ...] = (statistics.fmean, statistics.median)
    for average in averages:
        if average(mine) <= max(FACTOR * average(eager), floor):
            return True
    return False
