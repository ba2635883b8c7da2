"""torch's optimizers whose own code cannot be captured.

RAdam and ASGD branch on the count of steps, which the graph reads from a tensor: both sides are
computed and one is chosen. The fused updates are kernels of eager's, and are written as operations.

Where the parameters are halves a fused kernel computes in float32 and rounds once, at the end.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch

from ingot.capture.meanings import How, means
from ingot.capture.sources import ConstSource
from ingot.capture.values.base import Arguments, Keywords, Rule, Value
from ingot.capture.values.constant import NONE
from ingot.capture.values.functions import FunctionValue
from ingot.capture.values.number_reads import choice
from ingot.torch_private import (
    fused_adagrad_,
    fused_adam_,
    fused_adamw_,
    fused_sgd_,
    multi_tensor_asgd,
    multi_tensor_radam,
    single_tensor_asgd,
    single_tensor_radam,
)

if TYPE_CHECKING:
    from ingot.capture.session import Session

# -- inlined ---------------------------------------------------------------------------------------


def chosen(number: Any, bound: float, above: Any, below: Any) -> Any:
    """One of two tensors or floats, by whether a float that is read from a tensor lies above a
    bound."""
    if number > bound:
        return above
    return below


means(chosen)(choice)


def _scalar(number: Any) -> Any:
    """A setting that may be a tensor of one element, without its dimensions."""
    if isinstance(number, torch.Tensor) and number.dim():
        return number.squeeze()
    return number


def _moments(
    param: Any,
    grad: Any,
    mean: Any,
    square: Any,
    lr: Any,
    beta1: Any,
    beta2: Any,
    decay: Any,
    decoupled: Any,
) -> None:
    """Decays the weights, and updates the running means of the gradient and of its square."""
    if decay != 0 and decoupled:
        param.mul_(1 - lr * decay)
    elif decay != 0:
        grad = grad.add(param, alpha=decay)
    mean.lerp_(grad, 1 - beta1)
    square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)


def _rectification(step: Any, beta2: Any) -> Any:
    """The approximated length of the average of the squares, and what makes up for its variance."""
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * step * (beta2**step) / (1 - beta2**step)
    ratio = (length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length)
    return length, ratio**0.5


_LONG_ENOUGH = 5.0


def _radam(
    params: Any, grads: Any, means: Any, squares: Any, steps: Any, *, beta1: Any, beta2: Any,
    lr: Any, weight_decay: Any, eps: Any, decoupled_weight_decay: Any, maximize: Any,
    of_many: Any = False, **_: Any,
) -> None:  # fmt: skip
    """RAdam's update. `of_many`: as eager rounds it where it takes many parameters at once."""
    lr = _scalar(lr)
    for param, grad, mean, square, count in zip(params, grads, means, squares, steps):
        grad = -grad if maximize else grad
        count += 1
        step = count.item()
        _moments(param, grad, mean, square, lr, beta1, beta2, weight_decay, decoupled_weight_decay)
        if of_many:
            length, factor = _rectification(step, beta2)
            correction = 1 - beta1**step
            of_adapted = (
                (1 - beta2**step) ** 0.5
                * (lr * chosen(length, _LONG_ENOUGH, factor, 0.0) / correction)
                * -1
            )
            of_plain = chosen(length, _LONG_ENOUGH, 0.0, lr / correction) * -1
            scale = square.sqrt().add_(eps).div_(of_adapted).reciprocal_().add_(of_plain)
            param.addcmul_(mean, scale)
        else:
            plain = mean / (1 - beta1**step) * lr
            length, factor = _rectification(step, beta2)
            adapted = plain * ((1 - beta2**step) ** 0.5 / square.sqrt().add_(eps)) * factor
            param.add_(chosen(length, _LONG_ENOUGH, adapted, plain), alpha=-1)


def _radam_of_many(*args: Any, **kwargs: Any) -> None:
    _radam(*args, **kwargs, of_many=True)


def _asgd(
    params: Any, grads: Any, averages: Any, mus: Any, etas: Any, steps: Any, *, lambd: Any, lr: Any,
    t0: Any, alpha: Any, weight_decay: Any, maximize: Any, of_many: Any = False, **_: Any,
) -> None:  # fmt: skip
    """ASGD's update. `of_many`: as eager rounds it where it takes many parameters at once."""
    lr = _scalar(lr)
    for param, grad, average, mu, eta, count in zip(params, grads, averages, mus, etas, steps):
        grad = -grad if maximize else grad
        count += 1
        if not of_many:
            step, rate = count.item(), eta.item()
        if weight_decay != 0:
            grad = grad.add(param, alpha=weight_decay)
        if of_many:
            param.addcmul_(grad.add(param, alpha=lambd), eta, value=-1)
            average.addcmul_(param.sub(average), mu)
            eta.copy_(torch.as_tensor(lr / ((1 + lambd * lr * count) ** alpha)))
            step = count.item()
        else:
            param.mul_(1 - lambd * rate)
            param.add_(grad, alpha=-rate)
            average.copy_(torch.where(mu != 1, average.add(param.sub(average).mul_(mu)), param))
            eta.copy_(torch.as_tensor(lr / ((1 + lambd * lr * step) ** alpha)))
        mu.copy_(torch.as_tensor(1 / chosen(step - t0, 1.0, step - t0, 1.0)))


def _asgd_of_many(*args: Any, **kwargs: Any) -> None:
    _asgd(*args, **kwargs, of_many=True)


def _wide(tensor: Any) -> Any:
    """A tensor in what a fused kernel computes in."""
    if tensor.dtype in (torch.float16, torch.bfloat16):
        return tensor.to(torch.float32)
    return tensor


def _number(setting: Any) -> Any:
    if isinstance(setting, torch.Tensor):
        return setting.item()
    return setting


class _Scaled:
    """A fused update of gradients that are multiplied by a scale (None: they are not), by which it
    divides them, where they lie. `found_inf` (None: there is none) is 1 where one is not finite:
    then nothing is written."""

    def __init__(self, grad_scale: Any, found_inf: Any) -> None:
        if grad_scale is None:
            self.scale = None
        else:
            self.scale = grad_scale.reshape(())
        if found_inf is None:
            self.fails = None
        else:
            self.fails = found_inf.reshape(()) == 1

    def gradient(self, grad: Any, maximize: Any) -> Any:
        value = _wide(grad)
        if self.scale is not None:
            value = value / self.scale
            self.write(grad, value)
        return -value if maximize else value

    def write(self, target: Any, value: Any) -> None:
        if self.fails is not None:
            value = torch.where(self.fails, target, value.to(target.dtype))
        target.copy_(value)


def _fused_adam(
    params: Any, grads: Any, means: Any, squares: Any, largest: Any, steps: Any, *, lr: Any,
    beta1: Any, beta2: Any, weight_decay: Any, eps: Any, amsgrad: Any, maximize: Any,
    grad_scale: Any = None, found_inf: Any = None,
    decoupled: Any = False,
) -> None:  # fmt: skip
    lr, scaled = _number(lr), _Scaled(grad_scale, found_inf)
    for k, param in enumerate(params):
        value, mean, square = _wide(param), _wide(means[k]), _wide(squares[k])
        step, grad = steps[k].item(), scaled.gradient(grads[k], maximize)
        if weight_decay != 0 and decoupled:
            value = value - lr * weight_decay * value
        elif weight_decay != 0:
            grad = grad + value * weight_decay
        mean = torch.lerp(mean, grad, 1 - beta1)
        square = square * beta2 + (1 - beta2) * grad * grad
        scaled.write(means[k], mean)
        scaled.write(squares[k], square)
        if amsgrad:
            square = torch.maximum(_wide(largest[k]), square)
            scaled.write(largest[k], square)
        scale = square.sqrt() / (1 - beta2**step) ** 0.5 + eps
        scaled.write(param, value - lr / (1 - beta1**step) * mean / scale)


def _fused_adamw(*args: Any, **kwargs: Any) -> None:
    _fused_adam(*args, **kwargs, decoupled=True)


def _fused_sgd(
    params: Any, grads: Any, buffers: Any, *, weight_decay: Any, momentum: Any, lr: Any,
    dampening: Any, nesterov: Any, maximize: Any, is_first_step: Any, grad_scale: Any = None,
    found_inf: Any = None,
) -> None:  # fmt: skip
    lr, scaled = _number(lr), _Scaled(grad_scale, found_inf)
    for k, param in enumerate(params):
        value, grad = _wide(param), scaled.gradient(grads[k], maximize)
        if weight_decay != 0:
            grad = grad + value * weight_decay
        if momentum != 0:
            if is_first_step:
                buffer = grad
            else:
                buffer = _wide(buffers[k]) * momentum + grad * (1 - dampening)
            scaled.write(buffers[k], buffer)
            if nesterov:
                grad = grad + buffer * momentum
            else:
                grad = buffer
        scaled.write(param, value - lr * grad)


def _fused_adagrad(
    params: Any, grads: Any, sums: Any, steps: Any, *, lr: Any, lr_decay: Any, weight_decay: Any,
    eps: Any,
    maximize: Any, grad_scale: Any = None, found_inf: Any = None,
) -> None:  # fmt: skip
    lr, scaled = _number(lr), _Scaled(grad_scale, found_inf)
    for k, param in enumerate(params):
        value, grad = _wide(param), scaled.gradient(grads[k], maximize)
        if weight_decay != 0:
            grad = grad + value * weight_decay
        total = _wide(sums[k]) + grad * grad
        scaled.write(sums[k], total)
        rate = lr / (1 + (steps[k].item() - 1) * lr_decay)
        scaled.write(param, value - rate * grad / (total.sqrt() + eps))


# -- calls -----------------------------------------------------------------------------------------

_ON_TENSORS = ("capturable", "differentiable", "has_complex")
"""Options with which torch's own code computes with tensors alone, or with others than these
here."""


def _in_place_of(function: FunctionType, own: FunctionType) -> Rule:
    def call(session: Session, args: Arguments, kwargs: Keywords) -> Value:
        if any(session.truth(kwargs.get(name, NONE)) for name in _ON_TENSORS):
            return session.inline(
                FunctionValue.outside(session, function, ConstSource(function)), args, kwargs
            )
        return session.call(session.builtin(own), args, kwargs)

    return call


def _fused(own: FunctionType) -> Rule:
    return lambda session, args, kwargs: session.call(session.builtin(own), args, kwargs)


_IN_PLACE_OF: dict[Any, Any] = {
    single_tensor_radam: _radam,
    multi_tensor_radam: _radam_of_many,
    single_tensor_asgd: _asgd,
    multi_tensor_asgd: _asgd_of_many,
}
for _function, _own in _IN_PLACE_OF.items():
    means(_function, how=How.UNREALIZED)(_in_place_of(_function, _own))
means(fused_adam_, how=How.OPERATION)(_fused(_fused_adam))  # type: ignore[arg-type]
means(fused_adamw_, how=How.OPERATION)(_fused(_fused_adamw))  # type: ignore[arg-type]
means(fused_sgd_, how=How.OPERATION)(_fused(_fused_sgd))  # type: ignore[arg-type]
means(fused_adagrad_, how=How.OPERATION)(_fused(_fused_adagrad))  # type: ignore[arg-type]
