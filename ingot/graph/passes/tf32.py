"""Whether eager's convolution rounds what it multiplies to TF32: its library is asked.

It may where `torch.backends.cudnn.allow_tf32` is set. Whether it does depends on which kernel the
library chooses, by sizes, layouts and versions, and no rule tells. So the convolution is called
once, in eager's layout, with a number that TF32 does not have.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from ingot.graph import geometry
from ingot.graph.nodes import fake_result
from ingot.torch_private import OpOverload, aten, disable_current_modes

BETWEEN = 2.0**-12
"""1 + this lies between two numbers of TF32, whose significands have 11 bits, nearer to 1."""

Layout = tuple[tuple[int, ...], tuple[int, ...]]  # sizes and strides


def rounds_to_tf32(node: Node) -> bool:
    """Whether eager's call of a convolution of float32, or of its gradients, on a GPU rounds so.

    False where sizes are not known, and where it cannot be found out.
    """
    cudnn = torch.backends.cudnn
    if not (cudnn.enabled and cudnn.allow_tf32):
        return False
    if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
        return False  # the answer would be waited for, which ends the recording
    count = 2 if node.target is aten.convolution.default else 3
    operands = [fake_result(operand) for operand in node.args[:count]]  # type: ignore[arg-type]
    sizes = [n for t in operands for n in (*t.shape, *t.stride())]
    settings = [tuple(a) if isinstance(a, (list, tuple)) else a for a in node.args[count:]]
    if count == 2:
        settings[0] = None  # the bias
    if geometry.has_symbols(sizes) or 0 in sizes or any(map(_has_symbols, settings)):
        return False
    layouts = tuple([(tuple(t.shape), t.stride()) for t in operands])
    flags = cudnn.benchmark, cudnn.deterministic
    return _asked(node.target, layouts, tuple(settings), operands[0].device, flags)  # type: ignore[arg-type]


def _has_symbols(setting: Any) -> bool:
    return geometry.has_symbols(setting if isinstance(setting, tuple) else (setting,))


@functools.lru_cache(4096)
def _asked(
    op: OpOverload,
    layouts: Sequence[Layout],
    settings: Sequence[Any],
    device: torch.device,
    flags: tuple[bool, ...],
) -> bool:
    """`flags` are those of the library, which has them from its settings."""

    def call(number: float) -> list[Tensor]:
        operands = []
        for sizes, strides in layouts:
            operands.append(torch.empty_strided(sizes, strides, device=device).fill_(1.0))
        operands[0].fill_(number)
        results = op(*operands, *map(_listed, settings))
        if isinstance(results, Tensor):
            return [results]
        return [result for result in results[:2] if result is not None]  # not that of the bias

    try:
        with disable_current_modes(), torch.no_grad(), torch.autocast("cuda", enabled=False):
            return is_rounded(call)
    except Exception:  # there is no memory, or no device: what is known is that nothing is
        return False


def _listed(setting: Any) -> Any:
    return list(setting) if isinstance(setting, tuple) else setting


def is_rounded(call: Callable[[float], Sequence[Tensor]]) -> bool:
    """Whether `call(x)`, whose results are sums of products of x and 1, takes `1 + BETWEEN` for 1
    in all of them."""
    ones, others = call(1.0), call(1.0 + BETWEEN)
    for one, other in zip(ones, others, strict=True):
        if other.amax().item() / one.amax().item() - 1 > BETWEEN / 2:
            return False
    return True
