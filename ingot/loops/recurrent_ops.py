"""cuDNN's recurrent layers as ops that graphs hold in the place of ATen's: all they give has known
sizes, and gradients are one list. Both take torch's weights where they lie; a layer whose weights
do not lie as cuDNN wants them (in one allocation, see `nn.LSTM.flatten_parameters`) copies them in
each call, as eager does."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ingot.torch_private import aten, get_current_graph_task_keep_graph

_library = torch.library.Library("ingot", "FRAGMENT")
_SETTINGS = "int mode, int hidden, int projected, int layers, bool both, bool train, int reserve"
_library.define(
    f"cudnn_rnn(Tensor input, Tensor[] weights, Tensor hx, Tensor? cx, {_SETTINGS}) -> (Tensor, "
    "Tensor, Tensor, Tensor)"
)
_library.define(
    "cudnn_rnn_backward(Tensor input, Tensor[] weights, Tensor hx, Tensor? cx, Tensor output, "
    "Tensor reserve, "
    f"Tensor? d_output, Tensor? d_hy, Tensor? d_cy, bool of_weights, {_SETTINGS}) -> Tensor[]"
)

_keeps_graph = get_current_graph_task_keep_graph


class Settings(NamedTuple):
    """The settings of a recurrent layer.

    `mode` is as cuDNN counts them; then come the widths of the state and of what it is projected to
    (0: not at all), and so many `layers`, of one direction or both. With `train` so many bytes of
    `reserve` are kept for the backward.
    """

    mode: int
    hidden: int
    projected: int
    layers: int
    both: bool
    train: bool
    reserve: int


def _forward(
    x: Tensor, weights: list[Tensor], hx: Tensor, cx: Tensor | None, *settings: int
) -> tuple[Tensor, ...]:
    to = Settings(*settings)  # type: ignore[arg-type]
    *results, reserve, _ = _run(x, weights, _flat(x, weights, to), hx, cx, to)
    if reserve.numel() < to.reserve:
        reserve = torch.nn.functional.pad(reserve, (0, to.reserve - reserve.numel()))
    return *results, reserve


def _run(
    x: Tensor,
    weights: list[Tensor],
    flat: Tensor | None,
    hx: Tensor,
    cx: Tensor | None,
    to: Settings,
) -> list[Tensor]:
    widths = to.hidden, to.projected, to.layers
    results = aten._cudnn_rnn.default(
        x,
        weights,
        _each(weights, to),
        flat,
        hx,
        cx,
        to.mode,
        *widths,
        False,
        0.0,
        to.train,
        to.both,
        [],
        None,
    )
    return list(results)


def _backward(
    x: Tensor, weights: list[Tensor], hx: Tensor, cx: Tensor | None, output: Tensor,
    reserve: Tensor, d_output: Tensor | None, d_hy: Tensor | None, d_cy: Tensor | None,
    of_weights: bool, *settings: int,
) -> list[Tensor]:  # fmt: skip
    to = Settings(*settings)  # type: ignore[arg-type]
    flat = _flat(x, weights, to)
    if flat is None:
        flat = _laid_out([w.clone() for w in weights], x.shape[2], to)
    if _keeps_graph() or torch.cuda.is_current_stream_capturing():  # it is overwritten
        reserve = reserve.clone()
    mask, widths = [True, True, cx is not None, of_weights], (to.hidden, to.projected, to.layers)
    *states, of_each = aten._cudnn_rnn_backward.default(
        x, weights, _each(weights, to), flat, hx, cx, output, d_output, d_hy, d_cy, to.mode,
        *widths, False, 0.0,
        to.train, to.both, [], None, reserve, mask,
    )  # fmt: skip
    return [*(states if cx is not None else states[:2]), *(of_each if of_weights else ())]


for _name, _function in (("cudnn_rnn", _forward), ("cudnn_rnn_backward", _backward)):
    _library.impl(_name, _function, "CUDA")

cudnn_rnn = torch.ops.ingot.cudnn_rnn.default
cudnn_rnn_backward = torch.ops.ingot.cudnn_rnn_backward.default


def reserve_bytes(
    device: torch.device,
    dtype: torch.dtype,
    sizes: Sequence[int],
    shapes: Sequence[torch.Size],
    to: Settings,
) -> int:
    """How much is kept for the backward of `sizes` (steps, batch, width), which only a call
    tells."""
    return _reserve_bytes(
        device, dtype, tuple(sizes), tuple(shapes), to._replace(train=True, reserve=0)
    )


@functools.cache
def _reserve_bytes(
    device: torch.device,
    dtype: torch.dtype,
    sizes: tuple[int, ...],
    shapes: tuple[torch.Size, ...],
    to: Settings,
) -> int:
    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    rows = to.layers * (1 + to.both), sizes[1]
    weights = [zeros(*shape) for shape in shapes]
    hx, cx = (
        zeros(*rows, to.projected or to.hidden),
        zeros(*rows, to.hidden) if to.mode == 2 else None,
    )
    return _run(zeros(*sizes), weights, _laid_out(weights, sizes[2], to), hx, cx, to)[3].numel()


# -- where the weights lie -------------------------------------------------------------------------


def _each(weights: Sequence[Tensor], to: Settings) -> int:
    """How many weights a layer has in one direction."""
    return len(weights) // (to.layers * (1 + to.both))


def _laid_out(weights: list[Tensor], width: int, to: Settings) -> Tensor:
    """Memory with the weights, as cuDNN wants them, which become windows on it."""
    each, widths = _each(weights, to), (to.hidden, to.projected, to.layers)
    flat: Tensor = aten._cudnn_rnn_flatten_weight.default(
        weights, each, width, to.mode, *widths, False, to.both
    )
    return flat


def _flat(x: Tensor, weights: list[Tensor], to: Settings) -> Tensor | None:
    """The memory of weights that lie as cuDNN wants them; None where they do not."""
    first = weights[0]
    shapes = tuple([w.shape for w in weights])
    places, length = _places(
        first.device, first.dtype, shapes, x.shape[2], to._replace(train=False, reserve=0)
    )
    start = first.data_ptr() - places[0]
    if first.storage_offset() * first.itemsize != places[0] or any(
        not w.is_contiguous() for w in weights
    ):
        return None
    if [
        w.data_ptr() - start for w in weights
    ] != places or first.untyped_storage().nbytes() < length * first.itemsize:
        return None
    return first.as_strided((length,), (1,), 0)


@functools.cache
def _places(
    device: torch.device,
    dtype: torch.dtype,
    shapes: tuple[torch.Size, ...],
    width: int,
    to: Settings,
) -> tuple[list[int], int]:
    """Where each weight begins, in bytes, and how many elements there are in all."""
    weights = []
    for shape in shapes:
        weights.append(torch.empty(shape, dtype=dtype, device=device))
    flat = _laid_out(weights, width, to)
    return [w.data_ptr() - flat.data_ptr() for w in weights], flat.numel()
