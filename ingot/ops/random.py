"""What draws random numbers. A library computes it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ingot.graph import geometry
from ingot.graph.meta.basis import fresh
from ingot.graph.meta.families import factory, formatted_copy, like_self, plain_self
from ingot.graph.schemas import is_mutable
from ingot.ops.op import op
from ingot.sequences import Args, Kwargs
from ingot.torch_private import OpOverload, aten


def dropout(x: Tensor, p: float, train: bool | None) -> Any:
    if train or train is None:
        return NotImplemented
    return x.clone(), torch.ones_like(x, dtype=torch.bool)


def dropout_backward(grad: Tensor, kept: Tensor, scale: float) -> Tensor:
    return grad * kept * scale


def dropout_meta(op: OpOverload, args: Args, kwargs: Kwargs) -> tuple[Tensor, Tensor]:
    t, strides = args[0], geometry.preserved(args[0])
    return fresh(t.shape, t.dtype, strides), fresh(t.shape, torch.bool, strides)


def _functional(packet: Any) -> list[OpOverload]:
    """The overloads that write to no argument; which there are depends on the version of torch."""
    overloads = []
    for name in packet.overloads():
        overloads.append(getattr(packet, name))
    results = []
    for overload in overloads:
        if not is_mutable(overload):
            results.append(overload)
    return results


OPS = (
    op(
        aten.rand.default,
        aten.rand.generator,
        aten.randn.default,
        aten.randn.generator,
        meta=factory,
    ),
    op(
        aten.randint.default,
        aten.randint.generator,
        aten.randint.low,
        aten.randint.low_generator,
        meta=factory,
    ),
    *(
        op(*_functional(packet), meta=formatted_copy)
        for packet in (aten.rand_like, aten.randn_like, aten.randint_like)
    ),
    op(
        aten.uniform.default,
        aten.normal_functional.default,
        aten.exponential.default,
        aten.cauchy.default,
        aten.geometric.default,
        aten.log_normal.default,
        meta=like_self,
    ),
    op(aten.random.default, getattr(aten.random, "from"), aten.random.to, meta=like_self),
    op(aten.bernoulli.default, aten.bernoulli.p, meta=plain_self),
    op(aten.bernoulli.Tensor, meta=like_self),
    op(aten.native_dropout.default, decompose=dropout, meta=dropout_meta),
    op(aten.native_dropout_backward.default, decompose=dropout_backward),
)
