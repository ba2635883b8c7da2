"""Recurrent layers that cuDNN computes. torch's own functions look at the weights' memory, and
fakes have none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ingot.errors import EagerRaises, unsupported
from ingot.graph import geometry
from ingot.graph.fakes import requires_grad
from ingot.graph.nodes import results_of
from ingot.loops import packed_ops
from ingot.loops.recurrent_ops import Settings, cudnn_rnn, cudnn_rnn_backward, reserve_bytes
from ingot.reasons import PROGRAM_RAISES
from ingot.torch_private import DisableTorchDispatch

MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}  # as cuDNN counts them


def by_cudnn(name: str, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """torch's function `name` where cuDNN would compute it, else `otherwise`."""

    def function(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        is_packed = isinstance(args[1], Tensor) or (name == "lstm" and isinstance(args[0], Tensor))
        if kwargs or is_packed or not serves(x):
            return otherwise(x, *args, **kwargs)
        states, weights, *settings = args
        states = list(results_of(states))
        differentiable = torch.is_grad_enabled() and any(map(requires_grad, (x, *states, *weights)))
        sizes = [s.shape[-1] for s in states]
        for weight in weights:
            sizes += weight.shape
        if differentiable:  # how much is saved, these decide
            sizes += *x.shape, *states[0].shape
        if geometry.has_symbols(sizes):
            return otherwise(x, *args)
        return _layers(MODES[name], x, states, list(weights), differentiable, *settings)

    return function


def over_packed(name: str, otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """torch's function `name`: of packed sequences one op, which has no gradients; else
    `otherwise`."""

    def function(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        is_packed = len(args) == 8 and isinstance(args[0], Tensor)
        is_packed = is_packed and not isinstance(args[2], Tensor)
        if kwargs or not is_packed or args[0].dtype is not torch.int64:
            return otherwise(x, *args, **kwargs)
        batch_sizes, states, weights, *settings = args
        states, weights = list(results_of(states)), list(weights)
        _, layers, dropout, train, _ = settings
        tensors = (x, *states, *weights)
        for t in tensors:
            if t.device.type != "cpu" or t.dtype is not x.dtype:
                raise unsupported("op-form", "packed sequences that are not on a CPU")
        if torch.is_grad_enabled() and any(map(requires_grad, tensors)):
            raise unsupported("op-form", "gradients of a recurrent layer over packed sequences")
        if torch.is_autocast_enabled("cpu") or dropout and train and layers > 1:
            raise unsupported("op-form", "packed sequences under autocast, or with dropout")
        results = packed_ops.packed_rnn(name, x, batch_sizes, states, weights, *settings)
        return results[: 1 + len(states)]

    return function


def pad_packed(
    data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float, total_length: Any
) -> tuple[Tensor, Tensor]:
    """torch's function of this name as one op, which has no gradients."""
    if torch.is_grad_enabled() and requires_grad(data):
        raise unsupported("op-form", "gradients of packed sequences that are padded")
    results: tuple[Tensor, Tensor] = packed_ops.pad_packed(
        data, batch_sizes, batch_first, float(padding_value), total_length
    )
    return results


def serves(x: Tensor) -> bool:
    """Whether cuDNN computes a layer over `x`."""
    return x.device.type == "cuda" and torch.backends.cudnn.is_acceptable(x)


def _is_contiguous(t: Tensor) -> bool:
    if not geometry.has_symbols(t.shape):
        return t.is_contiguous()
    return geometry.surely_plain(t)


def _layers(
    mode: int, x: Tensor, states: list[Tensor], weights: list[Tensor], recorded: bool,
    has_biases: bool, layers: int,
    dropout: float, train: bool, both: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    if torch.is_autocast_enabled(x.device.type):
        raise unsupported("op-form", "a recurrent layer under autocast on a GPU")
    if dropout and train and layers > 1:
        raise unsupported(
            "op-form",
            "dropout between the layers of a recurrent network on a GPU, which cuDNN draws",
        )
    if recorded and not train:
        raise unsupported(
            "op-form", "gradients of a recurrent layer in evaluation mode, which cuDNN has none of"
        )
    kinds = set()
    for t in (x, *states, *weights):
        kinds.add((t.dtype, t.device))
    if len(kinds) > 1 or not all(map(_is_contiguous, states)):
        raise unsupported("op-form", "tensors that cuDNN refuses")
    hx, *cells = states
    cx = cells[0] if mode == MODES["lstm"] else None
    hidden, projected = states[-1].shape[2], hx.shape[2]
    if hidden == projected:
        projected = 0
    settings = Settings(mode, hidden, projected, layers, both, recorded, 0)
    if batch_first:
        x = x.transpose(0, 1)
    if recorded:
        shapes = [w.shape for w in weights]
        with DisableTorchDispatch():  # cuDNN itself is asked, beneath the modes of fakes
            reserve = reserve_bytes(x.device, x.dtype, [*x.shape], shapes, settings)
        output, *final = Recurrent.apply(settings._replace(reserve=reserve), x, hx, cx, *weights)
    else:
        output, *final = cudnn_rnn(x, weights, hx, cx, *settings)
    if batch_first:
        output = output.transpose(0, 1)
    return output, *final[: len(states)]


class Recurrent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, settings: Any, x: Any, hx: Any, cx: Any, *weights: Any) -> Any:  # type: ignore[override]
        output, hy, cy, reserve = cudnn_rnn(x, list(weights), hx, cx, *settings)
        ctx.settings = settings
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, hx, cx, output, reserve, *weights)
        if cx is None:
            ctx.mark_non_differentiable(cy)
        return output, hy, cy

    @staticmethod
    def backward(ctx: Any, d_output: Any, d_hy: Any, d_cy: Any) -> Any:  # type: ignore[override]
        if torch.is_grad_enabled():
            raise EagerRaises(
                "second derivatives of a recurrent layer, which cuDNN has none of",
                id=PROGRAM_RAISES,
            )
        x, hx, cx, output, reserve, *weights = ctx.saved_tensors
        of_weights = any(ctx.needs_input_grad[4:])
        tangents = d_output, d_hy, None if cx is None else d_cy
        gradients: Sequence[Any] = cudnn_rnn_backward(
            x, weights, hx, cx, output, reserve, *tangents, of_weights, *ctx.settings
        )
        d_x, d_hx, *others = gradients
        d_cx = None
        if cx is not None:
            d_cx = others.pop(0)
        if not of_weights:
            others = [None] * len(weights)
        return None, d_x, d_hx, d_cx, *others
