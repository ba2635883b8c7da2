"""Functions of torch's that ask for plain sizes in C++, as Python: what is called where sizes are
symbols. So are the cells of recurrent layers on a GPU, where torch has them in one piece, which a
graph cannot fuse with its neighbours."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ingot.errors import EagerRaises, unsupported
from ingot.graph import geometry, symbolic_views
from ingot.graph.einsum import einsum
from ingot.graph.few_queries import few_queries
from ingot.graph.matmul import attention_written_out, folds, matmul
from ingot.graph.meta import tensors_in
from ingot.graph.recurrent import MODES, by_cudnn, over_packed, pad_packed
from ingot.torch_private import (
    aten,
    disable_current_modes,
    native_linear,
    native_nn,
    pad_packed_sequence,
)

State = tuple[Tensor, ...]
Cell = Callable[..., State]

_OVERRIDES: dict[Any, Callable[..., Any]] = {}


def override(target: Any) -> Callable[..., Any]:
    """What to call on fakes in the place of `target`."""
    return _OVERRIDES.get(target, target)


def _instead_of(
    function: Any, on_gpu: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers the decorated function for calls with symbolic sizes, and for those `on_gpu`."""

    def register(python: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(python)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            tensors = tensors_in((args, kwargs))
            symbolic = any(isinstance(n, torch.SymInt) for t in tensors for n in t.shape)
            if symbolic or (on_gpu and _in_full_on_gpu(tensors)):
                return python(*args, **kwargs)
            return function(*args, **kwargs)

        _OVERRIDES[function] = wrapper
        return python

    return register


def _in_full_on_gpu(tensors: Sequence[Tensor]) -> bool:
    """Whether there is nothing but float32 and float64 on a GPU. Of halves, torch's cells round the
    result alone."""
    full = all(
        t.device.type == "cuda" and t.dtype in (torch.float32, torch.float64) for t in tensors
    )
    return full and not torch.is_autocast_enabled("cuda")


# -- recurrent layers ------------------------------------------------------------------------------


def _lstm_step(x: Tensor, state: State, weights: Sequence[Tensor | None]) -> State:
    hidden, cell = state
    gates = F.linear(x, *weights[::2]) + F.linear(hidden, *weights[1::2])  # type: ignore[arg-type]
    enter, keep, new, leave = gates.chunk(4, 1)
    cell = keep.sigmoid() * cell + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * cell.tanh(), cell


def _gru_step(x: Tensor, state: State, weights: Sequence[Tensor | None]) -> State:
    (hidden,) = state
    reset, update, new = F.linear(x, *weights[::2]).chunk(3, 1)  # type: ignore[arg-type]
    old_reset, old_update, old = F.linear(hidden, *weights[1::2]).chunk(3, 1)  # type: ignore[arg-type]
    new = (new + old * (reset + old_reset).sigmoid()).tanh()
    return ((hidden - new) * (update + old_update).sigmoid() + new,)


def _plain_step(activation: Callable[[Tensor], Tensor]) -> Cell:
    def step(x: Tensor, state: State, weights: Sequence[Tensor | None]) -> State:
        return (activation(F.linear(x, *weights[::2]) + F.linear(state[0], *weights[1::2])),)  # type: ignore[arg-type]

    return step


_STEPS: dict[str, Cell] = {
    "gru": _gru_step, "rnn_tanh": _plain_step(torch.tanh), "rnn_relu": _plain_step(torch.relu),
}  # fmt: skip


@_instead_of(torch.lstm_cell, on_gpu=True)
def lstm_cell(
    x: Tensor, state: Sequence[Tensor], w_ih: Tensor, w_hh: Tensor, b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
) -> State:  # fmt: skip
    return _lstm_step(x, tuple(state), (w_ih, w_hh, b_ih, b_hh))


def _cell(step: Cell) -> Callable[..., Tensor]:
    def cell(x: Tensor, hidden: Tensor, *weights: Tensor | None) -> Tensor:
        return step(x, (hidden,), weights)[0]

    return cell


_instead_of(torch.gru_cell, on_gpu=True)(_cell(_gru_step))
_instead_of(torch.rnn_tanh_cell)(_cell(_STEPS["rnn_tanh"]))
_instead_of(torch.rnn_relu_cell)(_cell(_STEPS["rnn_relu"]))


def _stepwise(step: Cell) -> Callable[..., tuple[Tensor, State]]:
    """A layer in one direction, step by step: a length that is compiled for."""

    def layer(
        x: Tensor, state: State, weights: Sequence[Tensor | None], reverse: bool
    ) -> tuple[Tensor, State]:
        places = range(int(x.shape[0]))
        outputs: list[Any] = [None] * len(places)
        for k in reversed(places) if reverse else places:
            state = step(x[k], state, weights)
            outputs[k] = state[0]
        return torch.stack(outputs), state

    return layer


def _layers(
    layer: Callable[..., tuple[Tensor, State]], x: Tensor, states: State, params: Sequence[Tensor],
    has_biases: bool, count: int, dropout: float, train: bool, bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """(output, a final state for each of `states`) of several layers, in one direction or both."""
    directions, each = 2 if bidirectional else 1, 4 if has_biases else 2
    if len(params) != count * directions * each:
        raise unsupported(
            "no-symbolic-rule", "a recurrent layer with projections has no rule for symbolic sizes"
        )
    if batch_first:
        x = x.transpose(0, 1)
    finals = []
    for k in range(count):
        outputs = []
        for direction in range(directions):
            place = k * directions + direction
            weights = [*params[place * each : (place + 1) * each], None, None][:4]
            output, final = layer(x, tuple(s[place] for s in states), weights, direction > 0)
            outputs.append(output)
            finals.append(final)
        if bidirectional:
            x = torch.cat(outputs, -1)
        else:
            x = outputs[0]
        if dropout and train and k + 1 < count:
            x = torch.dropout(x, dropout, True)
    if batch_first:
        x = x.transpose(0, 1)
    return x, *(torch.stack(listed) for listed in zip(*finals))


def _recurrent(step: Cell, original: Any) -> Callable[..., Any]:
    def function(x: Tensor, hidden: Any, params: Any, *settings: Any) -> Any:
        if isinstance(params, Tensor):  # packed sequences
            return original(x, hidden, params, *settings)
        return _layers(_stepwise(step), x, (hidden,), params, *settings)

    return function


for _name, _step in _STEPS.items():
    _instead_of(getattr(torch, _name))(_recurrent(_step, getattr(torch, _name)))


@_instead_of(torch.lstm)
def lstm(x: Tensor, states: Any, params: Any, *settings: Any) -> Any:
    if isinstance(states, Tensor):  # packed sequences
        return torch.lstm(x, states, params, *settings)
    if x.dtype is not torch.float32 or x.device.type != "cpu" or not torch.backends.mkldnn.enabled:
        return _layers(_stepwise(_lstm_step), x, tuple(states), params, *settings)
    has_biases, count, _, train, bidirectional, batch_first = settings
    mode = 2  # an LSTM

    def layer(
        x: Tensor, state: State, weights: Sequence[Tensor | None], reverse: bool
    ) -> tuple[Tensor, State]:
        hidden = state[0].shape[1]
        named = [w if w is not None else torch.zeros_like(weights[0]) for w in weights]  # type: ignore[arg-type]
        flags = (has_biases, bidirectional, batch_first, train)
        output, *final, _ = aten.mkldnn_rnn_layer.default(
            x.contiguous(), *named, *state, reverse, [], mode, hidden, count, *flags
        )
        return output, tuple(final)

    return _layers(layer, x, tuple(s.contiguous() for s in states), params, *settings)


for _name in MODES:
    _function = getattr(torch, _name)
    _OVERRIDES[_function] = over_packed(_name, by_cudnn(_name, _OVERRIDES[_function]))


_OVERRIDES[pad_packed_sequence] = pad_packed


# -- views -----------------------------------------------------------------------------------------

_instead_of(Tensor.reshape)(symbolic_views.reshaped)
_instead_of(torch.reshape)(lambda input, shape: symbolic_views.reshaped(input, shape))


# -- products --------------------------------------------------------------------------------------


@_instead_of(F.linear)
def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Rows with gaps between them are one matrix where they can be. torch's own asks whether the
    sizes are 1. Where it has a product for each matrix, gradients are in row-major order; those of
    one matrix lie as it does."""
    plain = input.dim() < 3 or geometry.surely_plain(input)
    if plain or weight.dim() != 2 or (bias is not None and bias.dim() != 1):
        return native_linear(input, weight, bias)
    rows = symbolic_views.reshaped(input, math.prod(input.shape[:-1]), input.shape[-1])
    if input.requires_grad and not geometry.surely_plain(rows) and not folds(input, weight.t()):
        product = matmul(input, weight.t())
        if bias is None:
            return product
        return product + bias
    if bias is None:
        product = rows @ weight.t()
    else:
        product = torch.addmm(bias, rows, weight.t())
    return product.view(*input.shape[:-1], weight.shape[0])


_instead_of(torch.einsum)(einsum)
for _product in (
    torch.matmul,
    torch.linalg.matmul,
    operator.matmul,
    Tensor.matmul,
    Tensor.__matmul__,
):
    _instead_of(_product)(lambda input, other: matmul(input, other))


@cache
def _fuses_without_heads() -> bool:
    """Whether eager's kernel on a CPU takes queries without heads, by one dimension more: since
    torch 2.14."""
    with torch.inference_mode(False), torch.enable_grad(), disable_current_modes():
        query = torch.zeros((1, 1, 1), device="cpu", requires_grad=True)
        history = F.scaled_dot_product_attention(query, query, query).grad_fn
    return history is not None and history.name().startswith("Squeeze")


@_instead_of(F.scaled_dot_product_attention)
def attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """A mask that is one for all of a batch, or for all queries, is one for each: torch asks
    whether there is one."""
    mask = attn_mask
    if (
        query.dim() == key.dim() == value.dim() == 3
        and query.device.type == "cpu"
        and _fuses_without_heads()
    ):
        query, key, value = (t.unsqueeze(0) for t in (query, key, value))
        if mask is not None and mask.dim() == 3:
            mask = mask.unsqueeze(0)
        return attention(query, key, value, mask, dropout_p, is_causal, scale, enable_gqa).squeeze(
            0
        )
    of_known_kind = (
        query.dtype is key.dtype is value.dtype and not query.dim() == key.dim() == value.dim() == 4
    )
    if (
        of_known_kind
        and query.dtype in (torch.float32, torch.float64)
        and min(query.dim(), key.dim(), value.dim()) > 1
        and not (dropout_p or enable_gqa or (is_causal and mask is not None))
        and not torch.is_autocast_enabled(query.device.type)
        and torch.backends.cuda.math_sdp_enabled()
    ):
        return attention_written_out(query, key, value, mask, is_causal, scale)
    if (
        mask is not None
        and mask.dim() == query.dim() == 4
        and mask.dtype is not torch.bool
        and not mask.requires_grad
    ):
        sizes = (query.shape[0], mask.shape[1], query.shape[2], key.shape[2])
        mask = mask.expand(
            [size if geometry.is_one(own) else own for own, size in zip(mask.shape, sizes)]
        )
    return F.scaled_dot_product_attention(
        query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _first_by_few_queries(otherwise: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Attention of a few queries on a GPU as one op, all else as before."""

    @wraps(otherwise)
    def wrapper(*args: Any, **kwargs: Any) -> Tensor:
        result = few_queries(*args, **kwargs)
        if result is None:
            result = otherwise(*args, **kwargs)
        return result

    return wrapper


_OVERRIDES[F.scaled_dot_product_attention] = _first_by_few_queries(
    _OVERRIDES[F.scaled_dot_product_attention]
)


# -- pooling ---------------------------------------------------------------------------------------


def _averaged(original: Any, rank: int) -> Callable[..., Tensor]:
    def function(x: Tensor, output_size: Any) -> Tensor:
        """Of all elements the mean. torch asks whether the images lie channels-last."""
        if isinstance(output_size, (list, tuple)):
            sizes = output_size
        else:
            sizes = [output_size] * rank
        if (
            x.dim() < rank
            or any(not isinstance(n, int) or n != 1 for n in sizes)
            or geometry.like_channels_last(x)
        ):
            return original(x, output_size)  # type: ignore[no-any-return]
        return x.mean(list(range(-rank, 0)), keepdim=True)

    return function


for _rank in (2, 3):
    for _module in (F, native_nn):
        _function = getattr(_module, f"adaptive_avg_pool{_rank}d")
        _instead_of(_function)(_averaged(_function, _rank))


# -- resampling ------------------------------------------------------------------------------------


def _resampled(original: Any, op: Any) -> Callable[..., Tensor]:
    def function(x: Tensor, size: Sequence[Any] | None, *settings: Any) -> Tensor:
        *flags, factors = settings
        if size is None:
            size = []
            for n, factor in zip(x.shape[2:], factors):
                size.append(_scaled(n, factor))
        return op(x, size, *flags, *(factors or [None] * len(size)))

    return function


def _scaled(size: Any, factor: float) -> Any:
    if isinstance(size, torch.SymInt) and float(factor).is_integer():
        return size * int(factor)
    return math.floor(int(size) * factor)


for _name in (
    "nearest1d",
    "nearest2d",
    "nearest3d",
    "linear1d",
    "bilinear2d",
    "bicubic2d",
    "trilinear3d",
):
    _function = getattr(native_nn, f"upsample_{_name}")
    _instead_of(_function)(_resampled(_function, getattr(aten, f"upsample_{_name}").default))


# -- losses ----------------------------------------------------------------------------------------


def _with_lengths_as_tensors(function: Any) -> Callable[..., Tensor]:
    """A CTC loss whose lengths are given as numbers, of which torch makes tensors in C++, with
    memory."""

    @wraps(function)
    def wrapper(log_probs: Tensor, targets: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        def as_tensor(value: Any) -> Any:
            is_known = isinstance(value, (list, tuple)) and log_probs.device.type == "cpu"
            if is_known:
                return torch.tensor(value, dtype=torch.int64)
            return value

        named = {}
        for k, v in kwargs.items():
            named[k] = as_tensor(v) if k.endswith("_lengths") else v
        return function(log_probs, targets, *map(as_tensor, args[:2]), *args[2:], **named)  # type: ignore[no-any-return]

    return wrapper


_OVERRIDES.update({loss: _with_lengths_as_tensors(loss) for loss in (torch.ctc_loss, F.ctc_loss)})


# -- what draws as many numbers as the data say ----------------------------------------------------


def _slopes(x: Tensor, lower: float, upper: float, generator: Any) -> Tensor:
    """The factor of each element: drawn, in order, for those that are not positive."""
    if upper - lower <= 1e-6 or generator is not None:
        raise unsupported("op-form", "rrelu of one slope, or with a generator")
    flat = x.detach().reshape(-1)  # the kernel draws in this order however the elements lie
    return aten.rrelu_with_noise_functional.default(
        flat, torch.empty_like(flat), lower, upper, True
    )[1].view(x.shape)


def _check_slopes(lower: float, upper: float) -> None:
    if not (math.isfinite(lower) and math.isfinite(upper) and lower <= upper):
        raise EagerRaises("rrelu between slopes that are not finite, or not in order")


def _rrelu(
    x: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Tensor:
    _check_slopes(lower, upper)
    if training:
        return x * _slopes(x, lower, upper, generator)
    return F.leaky_relu(x, (lower + upper) / 2)


def _rrelu_(
    x: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    generator: Any = None,
) -> Tensor:
    _check_slopes(lower, upper)
    if training:
        return x.mul_(_slopes(x, lower, upper, generator))
    return F.leaky_relu_(x, (lower + upper) / 2)


def _rrelu_of_module(
    input: Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
) -> Tensor:
    return (_rrelu_ if inplace else _rrelu)(input, lower, upper, training)


_OVERRIDES.update({torch.rrelu: _rrelu, torch.rrelu_: _rrelu_, F.rrelu: _rrelu_of_module})
