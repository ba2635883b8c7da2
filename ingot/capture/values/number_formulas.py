"""Functions of torch whose formula has a number in it, given a float from outside that is not a constant: written as
operations of tensors, which take it as an input where it is finite. The arguments are those of the function."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.capture.sources import ConstSource
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.functions import FunctionValue
from ingot.capture.values.numbers import FLOATS, OutsideNumber
from ingot.capture.values.tensor import FUNCTIONS, METHODS, TensorValue

if TYPE_CHECKING:
    from ingot.capture.session import Session

_WIDE = frozenset({torch.float32, torch.float64})


def _leaky_relu(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    return torch.where(input > 0, input, input * negative_slope)


def _elu(input: Tensor, alpha: float = 1.0) -> Tensor:
    # No exponential of what is not taken overflows, so that its gradient is 0.
    return torch.where(input < 0, torch.expm1(input.clamp(max=0)) * alpha, input)


def _softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    scaled = input * beta
    return torch.where(scaled > threshold, input, F.softplus(scaled, 1.0, threshold) / beta)


def _addmm(input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = torch.mm(mat1, mat2) * alpha
    return product + input * beta if beta else product  # without it, no NaN of the input's counts


def _baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = torch.bmm(batch1, batch2) * alpha
    return product + input * beta if beta else product


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, dropout_p: float = 0.0, is_causal: bool = False,
    scale: float = 1.0, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    return F.scaled_dot_product_attention(
        query * scale, key, value, attn_mask, dropout_p, is_causal, scale=1.0, enable_gqa=enable_gqa
    )


_FORMULAS: dict[Any, tuple[Any, tuple[str, ...], frozenset[torch.dtype]]] = {
    F.leaky_relu: (_leaky_relu, ("negative_slope",), FLOATS),
    F.elu: (_elu, ("alpha",), _WIDE),
    F.softplus: (_softplus, ("beta",), _WIDE),
    torch.addmm: (_addmm, ("beta", "alpha"), _WIDE),
    torch.baddbmm: (_baddbmm, ("beta", "alpha"), _WIDE),
    F.scaled_dot_product_attention: (_attention, ("scale",), _WIDE),
    F.normalize: (F.normalize, ("eps",), FLOATS),  # whose code is operations
    F.gumbel_softmax: (F.gumbel_softmax, ("tau",), FLOATS),
}
"""By function: its formula, the arguments that are numbers of it, and the types of tensors for which it rounds as eager
does."""


def _rule(formula: Any, names: tuple[str, ...], dtypes: frozenset[torch.dtype]) -> Callable[..., Value | None]:
    signature = inspect.signature(formula)

    def rule(session: Session, args: Arguments, kwargs: Keywords) -> Value | None:
        try:
            given = signature.bind(*args, **{k: v for k, v in kwargs.items() if not _is_off(session, k, v)}).arguments
        except TypeError:
            return None
        numbers = [session.realize(given[name]) for name in names if name in given]
        outside = [number for number in numbers if isinstance(number, OutsideNumber)]
        if not outside or not all(number.applied(session, math.isfinite).constant() for number in outside):
            return None
        values = [session.realize(value) for name, value in given.items() if name not in names]
        kinds = {value.fake.dtype for value in values if isinstance(value, TensorValue)}
        if not kinds <= dtypes | {torch.bool} or len(kinds - {torch.bool}) != 1:
            return None
        inside = FunctionValue.outside(session, formula, ConstSource(formula))
        by_name = {name: value for name, value in kwargs.items() if not _is_off(session, name, value)}
        return session.inline(inside, args, by_name)

    return rule


def _is_off(session: Session, name: str, value: Value) -> bool:
    """Whether an argument is one that formulas do not have, and says nothing."""
    value = session.realize(value)
    return name in ("inplace", "out") and value.is_constant() and value.constant() in (False, None)


def _method(function: Any) -> Callable[..., Value | None]:
    def rule(session: Session, tensor: TensorValue, args: Arguments, kwargs: Keywords) -> Value | None:
        return FUNCTIONS[function](session, [tensor, *args], kwargs)

    return rule


FUNCTIONS.update({function: _rule(*formula) for function, formula in _FORMULAS.items()})
METHODS.update({function.__name__: _method(function) for function in (torch.addmm, torch.baddbmm)})
