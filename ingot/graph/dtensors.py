"""DTensors: what the graph knows of torch.distributed.tensor beside what it knows of all wrapper
subclasses.

In: a class, a DTensor around fakes, or a real one. torch's own dispatch of DTensors is in C++ and
calls Python for what it has not seen before: how the placements of a result follow from those of
the arguments, and which collectives that takes. It runs for real when a graph is captured or
traced, on local tensors that are fakes, so that a graph has the local ops and the collectives.

torch.distributed.tensor is never imported here: a program that has no DTensors does without.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from ingot.errors import unsupported

_PACKAGE = "torch.distributed.tensor"
_COLLECTIVES = "torch.distributed._functional_collectives"


def is_dtensor_class(cls: Any) -> bool:
    """Whether it is torch's class of distributed tensors itself."""
    return cls.__name__ == "DTensor" and cls.__module__.startswith(_PACKAGE)


def has_dtensor(classes: Iterable[type]) -> bool:
    """Whether torch dispatches an op with arguments of these classes by that of DTensors."""
    return any(map(is_dtensor_class, classes))


def is_awaited_class(cls: type) -> bool:
    """Whether instances stand for the result of a collective that nobody has waited for yet."""
    return cls.__name__ == "AsyncCollectiveTensor" and cls.__module__ == _COLLECTIVES


def arrived(tensor: Tensor) -> Tensor:
    """A local tensor itself, which is waited for if its collective may still run."""
    if is_awaited_class(type(tensor)):
        return tensor.wait()  # type: ignore[attr-defined, no-any-return]
    return tensor


def unawaited(tensor: Tensor) -> Tensor:
    """The same without waiting, for those who look at its geometry alone."""
    if is_awaited_class(type(tensor)):
        return tensor.elem  # type: ignore[attr-defined, no-any-return]
    return tensor


@functools.cache
def is_awaited_later(op: Any) -> bool:
    """Whether an op makes such an instance of the result of a collective. A graph waits there."""
    return op._schema.name == "_c10d_functional::_wrap_tensor_autograd"  # type: ignore[no-any-return]


# -- what torch's dispatch depends on --------------------------------------------------------------

_LOSSES = f"{_PACKAGE}.parallel.loss"


def loss_is_parallel() -> bool:
    """Whether the program is within `loss_parallel`."""
    losses = sys.modules.get(_LOSSES)
    if losses is None:
        return False
    handlers = losses.DTensor._op_dispatcher._custom_op_handlers
    return not losses.customized_loss_ops.keys().isdisjoint(handlers)


def switch_loss_parallel(enabled: bool) -> None:
    """What entering and leaving it does."""
    losses = sys.modules[_LOSSES]
    if enabled:
        losses._enable_custom_loss_ops()
    else:
        losses._disable_custom_loss_ops()


def handlers_of_ops() -> Any:
    """The table of ops that the dispatch of DTensors carries out in other ways."""
    return sys.modules[_PACKAGE].DTensor._op_dispatcher._custom_op_handlers


def settings_of(handlers: Mapping[Any, Any]) -> tuple[bool, ...]:
    """What the dispatch of DTensors depends on beside its arguments.

    It is whether losses are parallel, and whether plain tensors count as replicated. It is asked of
    the table of `handlers_of_ops`, which never goes."""
    implicit = sys.modules[_PACKAGE].DTensor._op_dispatcher._allow_implicit_replication
    return loss_is_parallel(), implicit


def refuse_random(args: Iterable[Any]) -> None:
    """Raises Unsupported where random numbers of DTensors come of a generator whose state torch
    changes for each rank."""
    for arg in args:
        if is_dtensor_class(type(arg)) and arg.device_mesh.device_type != "cpu":
            raise unsupported("tensor-object", "random numbers of a DTensor on a GPU")


# -- gradients -------------------------------------------------------------------------------------


def placements_of_gradient(placements: tuple[Any, ...]) -> tuple[Any, ...]:
    """Those of the gradient that a graph expects of a result with these placements.

    They are what torch's own `to_local` expects: a sum that is pending has the same gradient on
    each rank."""
    replicate = sys.modules[_PACKAGE].Replicate
    results = []
    for placement in placements:
        results.append(replicate() if placement.is_partial() else placement)
    return tuple(results)


def placements_like(placements: tuple[Any, ...], others: tuple[Any, ...]) -> tuple[Any, ...]:
    """Placements of a gradient whose local tensor is as large as that of its tensor.

    The sum of it may be pending, but where one of the two is sharded the other is."""
    results = []
    for placement, other in zip(placements, placements_of_gradient(others)):
        is_sharded = not (placement.is_partial() or placement.is_replicate())
        if is_sharded or not (other.is_partial() or other.is_replicate()):
            placement = other
        results.append(placement)
    return tuple(results)


def redistributed(gradient: Any, mesh: Any, placements: tuple[Any, ...]) -> Any:
    """A gradient with these placements."""
    if gradient.device_mesh is not mesh and gradient.device_mesh != mesh:
        raise unsupported("tensor-subclass", "a gradient is on another mesh than its DTensor")
    if gradient.placements == placements:
        return gradient
    owner = sys.modules[f"{_PACKAGE}._redistribute"]
    spec = gradient._spec
    target = type(spec)(mesh, placements, tensor_meta=spec.tensor_meta)
    local = owner.redistribute_local_tensor(gradient._local_tensor, spec, target)
    return type(gradient)(local, target, requires_grad=False)


# -- what `__tensor_flatten__` says ----------------------------------------------------------------


def distribution_of(layout: Any) -> tuple[Any, tuple[Any, ...]]:
    """The mesh and the placements of a DTensor, by its `Layout`."""
    if layout.others:
        return layout.others[0][1], layout.context[0]
    spec = layout.context[0]  # as it was before the mesh was said by itself
    return spec.mesh, spec.placements


def without_sizes(context: tuple[Any, ...]) -> tuple[Any, ...]:
    """What is said of a DTensor, without its sizes, which may be symbols: `__tensor_unflatten__` is
    given them once more."""
    if not isinstance(context[0], tuple):
        return context
    placements, meta, *more = context
    return placements, meta._replace(shape=(), stride=()), *more


def with_placements(context: tuple[Any, ...], placements: tuple[Any, ...]) -> tuple[Any, ...]:
    """The same for other placements."""
    if isinstance(context[0], tuple):
        _, meta, order, *more = context
        return placements, meta, order, *more
    spec = context[0]
    return type(spec)(spec.mesh, placements, tensor_meta=spec.tensor_meta), *context[1:]


class Distribution:
    """How a DTensor is distributed, in words, for guards.

    An answer is that of the layout for all DTensors with its mesh, placements and order of
    shards."""

    __name__ = "distribution"

    def __init__(self, layout: Any) -> None:
        self.expected = distribution_of(layout)
        self.order = layout.context[2] if layout.others else layout.context[0].shard_order

    def __call__(self, wrapper: Any) -> tuple[str, ...]:
        spec = wrapper._spec
        mesh, placements = self.expected
        words = []
        for placement in spec.placements:
            words.append(repr(placement))
        if spec.mesh is not mesh:
            words.append("on another mesh")
        if spec.placements != placements or spec.shard_order != self.order:
            words.append("in another order")
        return tuple(words)
