"""The backward of an artifact's entry, as a node in autograd's graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ingot.artifacts.signature import evaluated, why_not_plain
from ingot.errors import ArtifactError


class Backward(NamedTuple):
    """The fields of `training.BackwardPart`, with a native program."""

    program: Any
    saved: tuple[int, ...]
    places: tuple[tuple[int, str, int], ...]
    tangents: tuple[Any, ...]
    gradients: tuple[int, ...]
    outputs: int
    untracked: tuple[int, ...]


class Node(torch.autograd.Function):
    """Runs a forward, and its backward once."""

    @staticmethod
    def forward(ctx: Any, program: Any, backward: Backward, *inputs: Any) -> tuple[Any, ...]:
        results = tuple(program(*inputs))
        ctx.backward_part, ctx.count = backward, len(inputs)
        values = (*inputs, *results)
        saved = [values[position] for position in backward.saved]
        ctx.save_for_backward(*saved)
        ctx.layouts = [(t.dtype, tuple(t.shape), t.stride()) for t in saved]
        ctx.sizes = [_read(inputs, results, *place) for place in backward.places]
        outputs = results[: backward.outputs]
        untracked = [outputs[k] for k in backward.untracked if k < len(outputs)]
        ctx.mark_non_differentiable(*filter(torch.is_tensor, untracked))
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        part: Backward = ctx.backward_part
        arguments = list(map(_as_it_was, ctx.saved_tensors, ctx.layouts))
        for output, sizes, strides, dtype in part.tangents:
            layout = dtype, _numbers(sizes, ctx.sizes), _numbers(strides, ctx.sizes)
            arguments.append(_laid_out(gradients[output], layout))
        results = part.program(*arguments, *ctx.sizes)
        found: list[Any] = [None] * ctx.count
        for position, result in zip(part.gradients, results):
            found[position] = result
        return None, None, *found


Layout = tuple[torch.dtype, tuple[int, ...], tuple[int, ...]]
"""A tensor's dtype, sizes and strides."""


def _read(inputs: Sequence[Any], results: Sequence[Any], position: int, kind: str, dim: int) -> int:
    """The number at a place (see `SizePlace` in `loops/training_contract.py`)."""
    value = (results if kind.startswith("result") else inputs)[position]
    if kind.endswith("size"):
        return int(value.shape[dim])
    return int(value.stride(dim) if kind == "stride" else value)


def _numbers(expressions: Sequence[Any], values: Sequence[int]) -> tuple[int, ...]:
    return tuple([evaluated(steps, values) for steps in expressions])


def _laid_out(gradient: Tensor | None, layout: Layout) -> Tensor:
    """A gradient in a layout; zeros where none came in."""
    dtype, sizes, strides = layout
    if gradient is None:
        return torch.empty_strided(sizes, strides, dtype=dtype).zero_()
    if why_not_plain(gradient) is None and gradient.stride() == strides:
        return gradient
    return torch.empty_strided(sizes, strides, dtype=dtype).copy_(gradient)


def _as_it_was(tensor: Tensor, layout: Layout) -> Tensor:
    """A saved tensor, which hooks of the user's may have replaced."""
    dtype, sizes, strides = layout
    if tensor.dtype is not dtype or tuple(tensor.shape) != sizes:
        raise ArtifactError("a hook on saved tensors has replaced one by another dtype or shape")
    return _laid_out(tensor, layout)
