"""`torch.einsum` of two operands whose sizes are symbols: one product of matrices, as torch has it,
without its questions whether sizes are 1."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ingot.graph import geometry
from ingot.graph.meta import tensors_in
from ingot.graph.symbolic_views import reshaped
from ingot.torch_private import disable_current_modes

_MOST_TRIED = 7  # labels, of which any may have a size of 1


class _Equation(NamedTuple):
    """The labels of the two operands, and those of the result in order."""

    left: str
    right: str
    kept: str

    @property
    def summed(self) -> str:
        """The labels that the product sums over, in torch's order."""
        return "".join(sorted(set(self.left) & set(self.right) - set(self.kept)))


def einsum(*args: Any) -> Tensor:
    equation, tensors = _parsed(args[0]), tensors_in(args)
    sizes = None
    if equation is not None:
        sizes = _sizes(equation, tensors)
    if equation is None or sizes is None:
        return torch.einsum(*args)
    left, right = tensors
    if not equation.summed:
        left = _spread(equation.kept, equation.left, left)
        return left * _spread(equation.kept, equation.right, right)
    if not equation.kept:
        rows = _flat(equation.summed, equation.left, left)
        return torch.matmul(rows, _flat(equation.summed, equation.right, right))
    decisive = _decisive(equation)
    differentiable = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    if differentiable or not all(map(geometry.surely_plain, tensors)):
        if not {*decisive} & {*equation.summed}:
            decisive += equation.summed[0]  # of one product in all, torch multiplies elements
    if any(sizes[label] == 1 for label in decisive):
        return torch.einsum(*args)
    return _product(equation, sizes, left, right)


def _parsed(text: Any) -> _Equation | None:
    """The equation of two operands that each have a label once."""
    if not isinstance(text, str) or "." in text or text.count(",") != 1:
        return None
    operands, arrow, kept = text.replace(" ", "").partition("->")
    left, right = operands.split(",")
    if len(set(left)) != len(left) or len(set(right)) != len(right):
        return None
    if not arrow:
        kept = "".join(sorted(set(left) ^ set(right)))
    return _Equation(left, right, kept)


def _sizes(equation: _Equation, tensors: Sequence[Tensor]) -> dict[str, Any] | None:
    """The size of each label; None where one is broadcast, or eager raises an error."""
    sizes: dict[str, Any] = {}
    left, right = tensors
    labels = equation.left + equation.right
    if left.dim() != len(equation.left) or right.dim() != len(equation.right):
        return None
    if not {*equation.kept} <= {*labels}:
        return None
    for label, size in zip(labels, (*left.shape, *right.shape)):
        other = sizes.setdefault(label, size)
        if geometry.at_hand(other) != geometry.at_hand(size):
            return None
        if not geometry.expect_same(other, size):
            return None
    return sizes


def _without(t: Tensor, labels: str, kept: Sequence[str]) -> tuple[Tensor, str]:
    """The sum over the labels that are not kept, and the others."""
    summed = [d for d, c in enumerate(labels) if c not in kept]
    if not summed:
        return t, labels
    return t.sum(summed), "".join(c for c in labels if c in kept)


def _spread(kept: str, labels: str, t: Tensor) -> Tensor:
    """An operand with the result's labels, of size 1 where it does not have one."""
    t, labels = _without(t, labels, kept)
    t = t.permute([labels.index(c) for c in kept if c in labels])
    for d, c in enumerate(kept):
        if c not in labels:
            t = t.unsqueeze(d)
    return t


def _flat(summed: str, labels: str, t: Tensor) -> Tensor:
    t, labels = _without(t, labels, summed)
    return reshaped(t.permute([labels.index(c) for c in summed]), -1, certain=True)


def _product(equation: _Equation, sizes: dict[str, Any], left: Tensor, right: Tensor) -> Tensor:
    summed = equation.summed
    shared = [c for c in equation.kept if c in equation.left and c in equation.right]
    of_left = [c for c in equation.kept if c not in equation.right]
    of_right = [c for c in equation.kept if c not in equation.left]
    if of_left and of_right and equation.kept.index(of_right[0]) < equation.kept.index(of_left[0]):
        return _product(_Equation(equation.right, equation.left, equation.kept), sizes, right, left)

    def matrices(t: Tensor, labels: str, *groups: Sequence[str]) -> Tensor:
        order = [c for group in groups for c in group]
        t, labels = _without(t, labels, order)
        t = t.permute([labels.index(c) for c in order])
        return reshaped(t, [math.prod(sizes[c] for c in group) for group in groups], certain=True)

    rows = matrices(left, equation.left, shared, of_left, summed)
    result = torch.bmm(rows, matrices(right, equation.right, shared, summed, of_right))
    order = [*shared, *of_left, *of_right]
    return result.view([sizes[c] for c in order]).permute([order.index(c) for c in equation.kept])


@cache
def _decisive(equation: _Equation) -> str:
    """The labels of which a size of 1 may change how the result lies, of which torch's choice of
    the left operand is a part. `_product` is for the others as for any size."""
    labels = "".join(sorted({*equation.left, *equation.right}))
    if len(labels) <= _MOST_TRIED:
        free = labels
    else:
        free = ""
    sizes = {c: n for n, c in enumerate(labels, 2)}

    def order(ones: Sequence[str]) -> list[str]:
        size_of = {**sizes, **dict.fromkeys(ones, 1)}
        left = torch.zeros([size_of[c] for c in equation.left], device="cpu")
        right = torch.zeros([size_of[c] for c in equation.right], device="cpu")
        text = f"{equation.left},{equation.right}->{equation.kept}"
        strides = torch.einsum(text, left, right).stride()
        return sorted(equation.kept, key=lambda c: strides[equation.kept.index(c)])

    def differs(ones: Sequence[str]) -> bool:
        return [c for c in order(ones) if c not in ones] != [c for c in usual if c not in ones]

    different: list[tuple[str, ...]] = []
    with disable_current_modes():
        usual = order("")
        for n in range(1, len(free) + 1):
            different += filter(differs, combinations(free, n))
    while different:
        counts = Counter(c for ones in different for c in ones)
        most = max(free, key=lambda c: counts[c])
        free = free.replace(most, "")
        different = [ones for ones in different if most not in ones]
    return "".join(c for c in labels if c not in free)
