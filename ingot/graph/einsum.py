"""`torch.einsum` of two operands whose sizes are symbols: one product of matrices, as torch has it,
without its questions whether sizes are 1."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ingot.graph import geometry
from ingot.graph.meta import tensors_in
from ingot.graph.symbolic_views import reshaped
from ingot.sequences import at
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
    for label in decisive:
        if sizes[label] == 1:
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


def _among(labels: str, chosen: Iterable[str]) -> str:
    """The labels that are among the chosen ones, in order."""
    return "".join(filter({*chosen}.__contains__, labels))


def _ordered(t: Tensor, labels: str, order: Sequence[str]) -> Tensor:
    """An operand with its dimensions in the order of their labels; summed over those that are not
    there."""
    summed = []
    for d, label in enumerate(labels):
        if label not in order:
            summed.append(d)
    if summed:
        t = t.sum(summed)
    return t.permute(list(map(_among(labels, order).index, order)))


def _spread(kept: str, labels: str, t: Tensor) -> Tensor:
    """An operand with the result's labels, of size 1 where it does not have one."""
    t = _ordered(t, labels, _among(kept, labels))
    for d, label in enumerate(kept):
        if label not in labels:
            t = t.unsqueeze(d)
    return t


def _flat(summed: str, labels: str, t: Tensor) -> Tensor:
    return reshaped(_ordered(t, labels, summed), -1, certain=True)


def _product(equation: _Equation, sizes: dict[str, Any], left: Tensor, right: Tensor) -> Tensor:
    summed = equation.summed
    kept = equation.kept
    shared = _among(kept, {*equation.left} & {*equation.right})
    of_left = _among(kept, {*kept} - {*equation.right})
    of_right = _among(kept, {*kept} - {*equation.left})
    if of_left and of_right and kept.index(of_right[0]) < kept.index(of_left[0]):
        return _product(_Equation(equation.right, equation.left, kept), sizes, right, left)

    def matrices(t: Tensor, labels: str, *groups: str) -> Tensor:
        t = _ordered(t, labels, "".join(groups))
        return reshaped(t, [math.prod(at(sizes, group)) for group in groups], certain=True)

    rows = matrices(left, equation.left, shared, of_left, summed)
    result = torch.bmm(rows, matrices(right, equation.right, shared, summed, of_right))
    order = shared + of_left + of_right
    return result.view(at(sizes, order)).permute(list(map(order.index, kept)))


@cache
def _decisive(equation: _Equation) -> str:
    """The labels of which a size of 1 may change how the result lies, of which torch's choice of
    the left operand is a part. `_product` is for the others as for any size."""
    labels = "".join(sorted({*equation.left, *equation.right}))
    free = labels
    if len(labels) > _MOST_TRIED:
        free = ""
    sizes = dict(zip(labels, itertools.count(2)))

    def order(ones: Sequence[str]) -> str:
        size_of = {**sizes, **dict.fromkeys(ones, 1)}
        left = torch.zeros(at(size_of, equation.left), device="cpu")
        right = torch.zeros(at(size_of, equation.right), device="cpu")
        text = f"{equation.left},{equation.right}->{equation.kept}"
        strides = torch.einsum(text, left, right).stride()
        return "".join(sorted(equation.kept, key=lambda c: strides[equation.kept.index(c)]))

    def differs(ones: Sequence[str]) -> bool:
        others = {*labels}.difference(ones)
        return _among(order(ones), others) != _among(usual, others)

    different: list[tuple[str, ...]] = []
    with disable_current_modes():
        usual = order("")
        for n in range(1, len(free) + 1):
            different += filter(differs, itertools.combinations(free, n))
    while different:
        counts = Counter(itertools.chain(*different))
        most = max(free, key=counts.__getitem__)
        free = free.replace(most, "")
        different = [ones for ones in different if most not in ones]
    return _among(labels, {*labels} - {*free})
