"""torch functions with a number in their formula, of an outside float that is no constant.

They are written as operations of tensors, which take the float as an input where it is finite.
Arguments are those of the function."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.capture.meanings import How, means
from ingot.capture.sources import ConstSource
from ingot.capture.values.base import Arguments, Keywords, OptionalRule, Value
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.functions import FunctionValue
from ingot.capture.values.numbers import FLOATS, OutsideNumber
from ingot.capture.values.numbers import fits as is_element
from ingot.capture.values.tensor import TensorValue, is_none
from ingot.capture.values.tensor_lists import dtypes_in
from ingot.graph.functional import draws_in_memory_order
from ingot.graph.geometry import same_sizes

if TYPE_CHECKING:
    from ingot.capture.session import Session

_WIDE = frozenset({torch.float32, torch.float64})
_WHOLE = frozenset({torch.bool, torch.int64})  # of masks and classes


def _leaky_relu(input: Tensor, negative_slope: float = 0.01) -> Tensor:
    return torch.where(input > 0, input, input * negative_slope)


def _elu(input: Tensor, alpha: float = 1.0) -> Tensor:
    # No exponential of what is not taken overflows, so that its gradient is 0. That of 0 is alpha.
    negative = input <= 0
    return torch.where(negative, torch.expm1(torch.where(negative, input, 0.0)) * alpha, input)


def _softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    scaled = input * beta
    return torch.where(scaled > threshold, input, F.softplus(scaled, 1.0, threshold) / beta)


def _addmm(
    input: Tensor, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    product = torch.mm(mat1, mat2) * alpha
    if beta:
        return product + input.expand(product.shape) * beta
    return product


def _baddbmm(
    input: Tensor, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    product = torch.bmm(batch1, batch2) * alpha
    if beta:
        return product + input.expand(product.shape) * beta
    return product


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float = 1.0, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    return F.scaled_dot_product_attention(
        query * scale, key, value, attn_mask, dropout_p, is_causal, scale=1.0, enable_gqa=enable_gqa
    )


def _dropout(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    if not training:
        return input
    keep_rate = 1 - p
    return input * torch.empty_like(input).bernoulli_(keep_rate).div_(keep_rate)


def _cross_entropy(
    input: Tensor, target: Tensor, weight: None = None, size_average: None = None,
    ignore_index: int = -100,
    reduce: None = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> Tensor:  # fmt: skip
    classes = 1 if input.dim() > 1 else 0
    logarithms = F.log_softmax(input, classes)
    of_targets = F.nll_loss(logarithms, target, ignore_index=ignore_index, reduction=reduction)
    ignored = target == ignore_index
    smooth = (-logarithms.sum(classes)).masked_fill(ignored, 0.0)
    if reduction == "sum":
        smooth = smooth.sum()
    elif reduction == "mean":
        smooth = smooth.sum() / (~ignored).sum()
    return (1 - label_smoothing) * of_targets + smooth * (label_smoothing / input.shape[classes])


def _huber_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", delta: float = 1.0
) -> Tensor:
    distance = (input - target).abs()
    far = distance > delta
    near = torch.where(far, 0.0, distance)  # the gradient of an infinity's square would be NaN
    loss = torch.where(far, (distance - 0.5 * delta) * delta, 0.5 * near * near)
    return _reduced(loss, reduction)


def _smooth_l1_loss(
    input: Tensor, target: Tensor, size_average: None = None, reduce: None = None,
    reduction: str = "mean",
    beta: float = 1.0,
) -> Tensor:  # fmt: skip
    distance = (input - target).abs()
    far = distance >= beta
    near = torch.where(far, 0.0, distance)  # as above
    loss = torch.where(far, distance - 0.5 * beta, 0.5 * near * near / beta)
    return _reduced(loss, reduction)


def _reduced(loss: Tensor, reduction: str) -> Tensor:
    if reduction == "mean":
        return loss.mean()
    if reduction == "sum":
        return loss.sum()
    return loss


def _is_share(p: float) -> bool:
    return 0 < p < 1


def _is_positive(number: float) -> bool:
    return 0 < number < math.inf


def _draws(arguments: Mapping[str, Value]) -> bool:
    """Whether a tensor of rank 0 in a number's place draws the same numbers, if any are drawn."""
    x, training = arguments["input"], arguments.get("training", ConstantValue(True))
    if (
        not training.is_constant()
        or type(training.constant()) is not bool
        or not isinstance(x, TensorValue)
    ):
        return False
    return not training.constant() or x.fake.device.type == "cpu" and draws_in_memory_order()


def _weighs_alike(arguments: Mapping[str, Value]) -> bool:
    return all(is_none(arguments.get(name, NONE)) for name in ("weight", "size_average", "reduce"))


def _is_of_classes(arguments: Mapping[str, Value]) -> bool:
    """Whether it is a loss of one class for each, none of which weighs more than others."""
    target = arguments.get("target")
    return (
        _weighs_alike(arguments)
        and isinstance(target, TensorValue)
        and target.fake.dtype is torch.int64
    )


def _is_of_equals(arguments: Mapping[str, Value]) -> bool:
    """Whether it is a loss of tensors of one shape."""
    x, target = arguments.get("input"), arguments.get("target")
    if not isinstance(x, TensorValue) or not isinstance(target, TensorValue):
        return False
    return _weighs_alike(arguments) and same_sizes(x.fake.shape, target.fake.shape)


def _is_factor(number: float) -> bool:
    """Whether it counts: where it is 0, no NaN of what it is multiplied with does."""
    return number != 0 and math.isfinite(number)


def _is_divisor(number: float) -> bool:
    """Whether what is divided by it, or by its square, is finite in float32."""
    return 1e-15 < abs(number) < 1e15


class _Formula(NamedTuple):
    """The formula of a function. `names` are its number arguments; for tensors of `dtypes` it
    rounds as eager does; `holds` tests the numbers."""

    function: Any
    names: tuple[str, ...]
    dtypes: frozenset[torch.dtype]
    holds: Callable[[float], bool] = math.isfinite
    fits: Callable[[Mapping[str, Value]], bool] = lambda arguments: True


_FORMULAS: dict[Any, _Formula] = {
    F.leaky_relu: _Formula(_leaky_relu, ("negative_slope",), FLOATS),
    F.elu: _Formula(_elu, ("alpha",), _WIDE),
    F.softplus: _Formula(_softplus, ("beta",), _WIDE, _is_divisor),
    torch.addmm: _Formula(_addmm, ("beta", "alpha"), _WIDE, _is_factor),
    torch.baddbmm: _Formula(_baddbmm, ("beta", "alpha"), _WIDE, _is_factor),
    F.scaled_dot_product_attention: _Formula(_attention, ("scale",), _WIDE),
    F.normalize: _Formula(F.normalize, ("eps",), FLOATS),  # whose code is operations
    F.gumbel_softmax: _Formula(F.gumbel_softmax, ("tau",), FLOATS),
    F.dropout: _Formula(_dropout, ("p",), FLOATS, _is_share, _draws),
    F.cross_entropy: _Formula(
        _cross_entropy, ("label_smoothing",), _WIDE, _is_share, _is_of_classes
    ),
    F.huber_loss: _Formula(_huber_loss, ("delta",), _WIDE, _is_positive, _is_of_equals),
    F.smooth_l1_loss: _Formula(_smooth_l1_loss, ("beta",), _WIDE, _is_positive, _is_of_equals),
}


def _rule(function: Any, row: _Formula) -> OptionalRule:
    formula, names, dtypes, holds, fits = row
    signature = inspect.signature(function if isinstance(function, FunctionType) else formula)
    known = inspect.signature(formula).parameters.keys()

    def rule(session: Session, args: Arguments, kwargs: Keywords) -> Value | None:
        try:
            bound = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return None
        arguments = {}
        for name, value in bound.items():
            if not _is_off(session, name, value):
                arguments[name] = value
        if not arguments.keys() <= known:
            return None
        numbers = map(session.realize, filter(None, map(arguments.get, names)))
        outside = [number for number in numbers if isinstance(number, OutsideNumber)]
        if not outside:
            return None
        others = session.realize_all({n: arguments[n] for n in arguments if n not in names})
        kinds = set(dtypes_in(others.values()))
        if not kinds <= dtypes | _WHOLE or len(kinds - _WHOLE) != 1 or not fits(others):
            return None
        (dtype,) = kinds - _WHOLE
        for number in outside:
            if not number.applied(session, holds).constant():
                return None
            if not is_element(session, number, dtype):
                return None
        return session.inline(
            FunctionValue.outside(session, formula, ConstSource(formula)), (), arguments
        )

    return rule


def _is_off(session: Session, name: str, value: Any) -> bool:
    """Whether an argument is one that formulas do not have, and says nothing."""
    if name not in ("inplace", "out"):
        return False
    value = session.realize(value)
    return value.is_constant() and value.constant() in (False, None)


def _method(of_function: OptionalRule) -> OptionalRule:
    def rule(
        session: Session, tensor: TensorValue, args: Arguments, kwargs: Keywords
    ) -> Value | None:
        return of_function(session, [tensor, *args], kwargs)

    return rule


for _function, _formula in _FORMULAS.items():
    means(_function, how=How.OPERATION)(_rule(_function, _formula))
for _function in (torch.addmm, torch.baddbmm):
    means(getattr(torch.Tensor, _function.__name__), how=How.METHOD)(
        _method(_rule(_function, _FORMULAS[_function]))
    )
