"""Functionalization: in-place ops and views as ops that only make new tensors.

A view op or a write of a trace goes in, and pure ops come out. Every fake of a trace is tracked as
a base, which owns a storage, or as a view of another tracked fake. A write to a view is carried
back to the base by the inverse of each view on the way, which gives the base a new value; the other
views of that storage are computed again from it when they are next read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
import torch.fx
from torch import Tensor

from ingot.errors import unsupported
from ingot.graph import geometry
from ingot.graph.fakes import FakeTensor
from ingot.graph.schemas import bind
from ingot.sequences import Args, Kwargs
from ingot.torch_private import OpOverload, aten, disable_current_modes


@dataclass
class Storage:
    """Memory that some fakes share. `version` counts the writes; `position` is that of the input it
    belongs to, if any."""

    position: int | None = None
    version: int = 0
    overlaps: bool = False  # with another input's memory: a write could not be followed


@dataclass
class View:
    """How a fake is computed from its parent: a view op and its arguments after the tensor; with
    `op` None it is the same tensor."""

    op: OpOverload | None
    args: Args = ()
    kwargs: Kwargs = field(default_factory=dict)


@dataclass
class Tracked:
    """A fake of the trace and the node that holds its value as of `version` of its storage."""

    fake: FakeTensor
    storage: Storage
    node: torch.fx.Node | None
    version: int
    parent: Tracked | None = None
    view: View | None = None

    @property
    def base(self) -> Tracked:
        tracked = self
        while tracked.parent is not None:
            tracked = tracked.parent
        return tracked


# -- recording views -------------------------------------------------------------------------------

_SAME = {aten.alias.default, aten.detach.default, aten.lift_fresh.default, aten.lift.default}


def views_of(
    op: OpOverload, args: Args, kwargs: Kwargs, results: Sequence[FakeTensor]
) -> list[View]:
    """The views that give `results`, in terms of single-result ops: splits are slices, unbind is
    selects."""
    rest = args[1:]
    if op in _SAME:
        return [View(None)]
    if op is aten._unsafe_view.default:
        return [View(aten.view.default, rest)]
    if op is aten._reshape_alias.default:
        return [View(aten.view.default, rest[:1])]
    if op is aten.unbind.int:
        dim = bind(op, args, kwargs)["dim"]
        return [View(aten.select.int, (dim, i)) for i in range(len(results))]
    if op in (aten.split.Tensor, aten.split_with_sizes.default):
        dim = bind(op, args, kwargs)["dim"]
        views, start = [], 0
        for result in results:
            end = start + result.shape[dim]
            views.append(View(aten.slice.Tensor, (dim, start, end)))
            start = end
        return views
    if len(results) != 1:
        raise unsupported("op-writes", f"{op} returns several views and is not understood yet")
    return [View(op, rest, kwargs)]


# -- writing through views -------------------------------------------------------------------------

Inverse = Callable[..., Tensor]
"""Takes the parent, the new value of the view, and the arguments of the view op. Gives the new
value of the parent."""


def _reshaped(parent: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
    if parent.numel() != value.numel():
        raise unsupported("op-writes", "a write to an expanded view, whose elements share memory")
    return value.reshape(parent.shape)


def _permuted_back(parent: Tensor, value: Tensor, dims: list[int]) -> Tensor:
    inverse = sorted(range(len(dims)), key=lambda d: dims[d] % len(dims))
    return value.permute(inverse)


_INVERSES: dict[OpOverload, Inverse] = {
    aten.view.default: _reshaped,
    aten.unsqueeze.default: _reshaped,
    aten.squeeze.default: _reshaped,
    aten.squeeze.dim: _reshaped,
    aten.squeeze.dims: _reshaped,
    aten.expand.default: _reshaped,
    aten.permute.default: _permuted_back,
    aten.t.default: lambda parent, value: value.t(),
    aten.transpose.int: lambda parent, value, a, b: value.transpose(a, b),
    aten.select.int: lambda parent, value, *where: aten.select_scatter(parent, value, *where),
    aten.slice.Tensor: lambda parent, value, *where: aten.slice_scatter(parent, value, *where),
    aten.diagonal.default: lambda parent, value, *where, **kw: aten.diagonal_scatter(
        parent, value, *where, **kw
    ),
    aten.as_strided.default: lambda parent, value, *where: aten.as_strided_scatter(
        parent, value, *where
    ),
    aten.view.dtype: lambda parent, value, dtype: aten.view.dtype(value, parent.dtype),
    aten.view_as_real.default: lambda parent, value: aten.view_as_complex(value),
    aten.view_as_complex.default: lambda parent, value: aten.view_as_real(value),
}


def written_back(view: View, parent: Tensor, value: Tensor) -> Tensor:
    """The parent's value after `value` has been written to this view of it. Runs tensor ops, so
    under the recorder."""
    if view.op is None:
        return value
    inverse = _INVERSES.get(view.op)
    if inverse is None:
        raise unsupported("op-writes", f"a write through a {view.op} view is not understood yet")
    return inverse(parent, value, *view.args, **view.kwargs)


def _filled(target: Tensor, value: Any) -> Tensor:
    return torch.full(target.shape, value, dtype=target.dtype, device=target.device)


def _copied(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    if source.dtype != target.dtype or source.device != target.device:
        source = aten._to_copy(source, dtype=target.dtype, device=target.device)
    if geometry.same_sizes(source.shape, target.shape):
        return source
    return source.expand(target.shape)


def _drawn(target: Tensor, p: float = 0.5, *, generator: Any = None) -> Tensor:
    """bernoulli_ draws for the elements in the order in which they lie in memory, unlike
    bernoulli."""
    order = list(range(target.dim()))
    if draws_in_memory_order():
        order.sort(key=lambda d: target.stride()[d], reverse=True)
    drawn = aten.bernoulli.p(target.permute(order), p, generator=generator)
    return drawn.permute(sorted(order, key=lambda d: order[d]))


@cache
def draws_in_memory_order() -> bool:
    """Whether this machine's kernel does: MKL's, on processors of Intel's, draws in logical
    order."""
    with disable_current_modes():
        transposed = torch.empty(8, 8, device="cpu").t()
        plain = torch.empty(8, 8, device="cpu")
        # a generator of its own: other threads may be drawing from the default one
        for tensor in (transposed, plain):
            tensor.bernoulli_(0.5, generator=torch.Generator("cpu").manual_seed(0))
        return not torch.equal(transposed, plain)


def _drawn_whole(form: OpOverload) -> Callable[..., Tensor]:
    """An op that draws, for elements without gaps between them: eager draws other numbers where
    there are gaps."""

    def draw(target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if not geometry.is_dense(target.shape, target.stride()):
            raise unsupported("op-writes", f"{form} into a tensor with gaps between its elements")
        return form(target, *args, **kwargs)

    return draw


OVERWRITES: dict[OpOverload, Callable[..., Tensor]] = {
    aten.copy_.default: _copied,
    aten.fill_.Tensor: _copied,
    aten.fill_.Scalar: _filled,
    aten.zero_.default: lambda target: _filled(target, 0),
    aten.bernoulli_.float: _drawn,
    aten.normal_.default: _drawn_whole(aten.normal_functional.default),
    aten.exponential_.default: _drawn_whole(aten.exponential.default),
}
"""In-place ops whose new value does not depend on the old one, and what gives the new value."""


def with_geometry_of(base: Tensor, value: Tensor) -> Tensor:
    """`value` in the strides of `base` (gaps between elements included). Runs tensor ops, so under
    the recorder."""
    if same_strides(base, value):
        return value
    if geometry.is_dense(base.shape, base.stride()):
        base = torch.empty_strided(base.shape, base.stride(), dtype=base.dtype, device=base.device)
    return aten.copy(base, value)


def same_strides(a: Tensor, b: Tensor) -> bool:
    """Whether the strides of sizes above 1 are surely the same."""
    for size, stride, other in zip(a.shape, a.stride(), b.stride()):
        is_free = isinstance(size, int) and size <= 1  # any stride gives the same tensor
        if not is_free and not geometry.surely_same(stride, other):
            return False
    return True
