"""Wrapper subclasses: tensors without memory of their own whose `__torch_dispatch__` computes with
inner tensors.

In: an instance of a class with `__tensor_flatten__`. Out: its inner tensors, and its `Layout`,
which makes such an instance of such tensors. A captured graph has both as nodes, so that its inputs
and outputs are plain; between them the instances are real ones around fakes, and the trace of a
graph is that of what their dispatch calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ingot.errors import Unsupported, unsupported
from ingot.graph.dispatch_mode import Mode
from ingot.graph.dtensors import (
    arrived,
    distribution_of,
    has_dtensor,
    is_awaited_class,
    is_dtensor_class,
    placements_like,
    placements_of_gradient,
    redistributed,
    refuse_random,
    unawaited,
    with_placements,
    without_sizes,
)
from ingot.graph.fakes import FakeTensor
from ingot.graph.jagged_attention import jagged_attention
from ingot.graph.ragged import note_ragged
from ingot.graph.schemas import draws
from ingot.graph.wrapper_sizes import FLAT, Geometry, geometry_of
from ingot.torch_private import (
    DisableTorchFunctionSubclass,
    JaggedTensor,
    OpOverload,
    aten,
    native_attention,
)


def is_wrapper_class(cls: type) -> bool:
    """Whether instances of a class can be taken apart and made again."""
    return hasattr(cls, "__tensor_flatten__") and hasattr(cls, "__tensor_unflatten__")


@dataclass(frozen=True, eq=False)
class Layout:
    """How an instance is made of its inner tensors: by its class, their `names`, what
    `__tensor_flatten__` says besides, and its geometry. `inner` has the layouts of those that are
    such instances, and `tracked` says which of the plain ones have a part in a gradient. `others`
    are what `__tensor_flatten__` names that is no tensor, as the mesh of a DTensor."""

    cls: Any
    names: tuple[str, ...]
    inner: tuple[Layout | None, ...]
    context: Any
    geometry: Geometry
    tracked: tuple[int, ...]
    others: tuple[tuple[str, Any], ...] = ()
    # of DTensors that were made of real tensors, by the sizes, strides and dtype of these
    specs: dict[Any, Any] = field(default_factory=dict, init=False)

    @staticmethod
    def of(wrapper: Tensor) -> Layout:
        """That of an instance."""
        with DisableTorchFunctionSubclass():
            flattened, context = wrapper.__tensor_flatten__()  # type: ignore[attr-defined]
            names, inner = [], []
            others: list[tuple[str, Any]] = []
            for name in flattened:
                held = unawaited(getattr(wrapper, name))
                if isinstance(held, Tensor):
                    names.append(name)
                    inner.append(Layout.of(held) if is_wrapper_class(type(held)) else None)
                else:
                    others.append((name, held))
            layout = Layout(
                type(wrapper), tuple(names), tuple(inner), context, FLAT, (), tuple(others)
            )
            leaves = layout.leaves(wrapper, unawaited)
            tracked = []
            for k, place in enumerate(layout.places()):
                if _is_differentiable(place, leaves[k]):
                    tracked.append(k)
            geometry = geometry_of(wrapper, leaves)
            if is_dtensor_class(layout.cls):
                layout = replace(layout, context=without_sizes(layout.context))
            return replace(layout, geometry=geometry, tracked=tuple(tracked))

    def places(self) -> list[tuple[Any, str]]:
        """The class and the attribute that each plain tensor belongs to."""
        results: list[tuple[Any, str]] = []
        for name, layout in zip(self.names, self.inner):
            results += [(self.cls, name)] if layout is None else layout.places()
        return results

    def leaves(self, wrapper: Tensor, seen: Callable[[Tensor], Tensor] = arrived) -> list[Tensor]:
        """The plain tensors of an instance of this class, those of inner ones in their place. Those
        of collectives are `seen` once they have arrived, or before."""
        if type(wrapper) is not self.cls:
            other = "plain tensor" if type(wrapper) is FakeTensor else type(wrapper).__name__
            raise _refused(f"a {other} in place of a {self.cls.__name__}")
        results: list[Tensor] = []
        for name, layout in zip(self.names, self.inner):
            tensor = seen(getattr(wrapper, name))
            if layout is None:
                results.append(tensor)
            else:
                results += layout.leaves(tensor, seen)
        return results

    def make(self, leaves: Sequence[Tensor]) -> Tensor:
        """An instance of these tensors, without a history."""
        if self.cls is JaggedTensor:
            for leaf in leaves:
                note_ragged(leaf)
        made = self._made(list(leaves))
        if made.requires_grad:  # the class has it so
            made.requires_grad_(False)
        return made

    def _made(self, leaves: list[Tensor]) -> Tensor:
        """The same of the first of these, which are taken off the list."""
        kind = None
        if is_dtensor_class(self.cls) and type(leaves[0]) is Tensor:
            kind = leaves[0].shape, leaves[0].stride(), leaves[0].dtype
            spec = self.specs.get(kind)
            if spec is not None:  # its `__init__` does nothing, and takes as long as the rest
                return self.cls.__new__(self.cls, leaves.pop(0), spec, requires_grad=False)  # type: ignore[no-any-return]
        sizes, strides = self.geometry.of_leaves(leaves)
        inner: dict[str, Any] = dict(self.others)
        for name, layout in zip(self.names, self.inner):
            inner[name] = leaves.pop(0) if layout is None else layout._made(leaves)
        made = self.cls.__tensor_unflatten__(inner, self.context, sizes, strides)
        if type(made) is not self.cls:
            raise _refused(f"__tensor_unflatten__ of {self.cls.__name__} gives another class")
        if kind is not None:
            self.specs[kind] = made._spec
        return made  # type: ignore[no-any-return]


def _refused(sentence: str) -> Unsupported:
    return unsupported("tensor-subclass", sentence)


def without_wrappers(tree: Any) -> Any:
    """Nested lists and tuples with the plain tensors of instances in place of these."""
    if isinstance(tree, (list, tuple)):
        return tuple(map(without_wrappers, tree))
    if is_wrapper_class(type(tree)):
        if is_awaited_class(type(tree)):
            return unawaited(tree)
        return tuple(Layout.of(tree).leaves(tree, unawaited))
    return tree


# -- nodes of captured graphs ----------------------------------------------------------------------


class GradientLayout:
    """The layout of the gradients of an outside DTensor, which the trace of a backward finds.

    It is that of the DTensor itself but for the placements: the sum of a gradient may be pending.
    Where eager's gradient is sharded otherwise than its tensor, the graph's is sharded as that is:
    autograd takes no gradient of another size for a local tensor."""

    def __init__(self) -> None:
        self.layout: Layout | None = None

    def fitting(self, of: Layout, gradient: Tensor) -> Tensor:
        """A gradient of what has a layout, with the placements of the first one."""
        if self.layout is not None:
            return _as_in(self.layout, gradient)
        mesh, placements = distribution_of(of)
        found = placements_like(gradient.placements, placements)  # type: ignore[attr-defined]
        gradient = redistributed(gradient, mesh, found)
        self.layout = _of_numbers(Layout.of(gradient))
        return gradient


def _of_numbers(layout: Layout) -> Layout:
    """The same layout, without symbols: sizes that do not follow from inner tensors are as now."""
    sizes, strides = layout.geometry
    if strides is not None:
        strides = tuple(map(_number, strides))
    geometry = layout.geometry._replace(sizes=tuple(map(_number, sizes)), strides=strides)
    return replace(layout, geometry=geometry)


def _number(size: Any) -> Any:
    return int(size) if isinstance(size, torch.SymInt) else size


def _as_in(layout: Layout, gradient: Tensor) -> Tensor:
    """A gradient with the placements that a layout has; those of classes but DTensor are as they
    are."""
    if not is_dtensor_class(layout.cls) or not is_dtensor_class(type(gradient)):
        return gradient
    mesh, placements = distribution_of(layout)
    return redistributed(gradient, mesh, placements)  # type: ignore[no-any-return]


class Wrap:
    """The target of nodes that make an instance of its inner tensors. If it `tracks`, the gradients
    of the instance are those of its inner tensors. `gradients` is what the backward of the graph
    learns of them, where the instance is from outside."""

    __module__, __name__ = __name__, "wrap"

    def __init__(
        self, layout: Layout, tracks: bool, gradients: GradientLayout | None = None
    ) -> None:
        self.layout, self.tracks, self.gradients = layout, tracks, gradients

    def __call__(self, *leaves: Tensor) -> Tensor:
        with DisableTorchFunctionSubclass():
            if not self.tracks:
                return self.layout.make(leaves)
            with torch.enable_grad():
                return _Wrap.apply(self, *leaves)  # type: ignore[no-any-return]

    def parts_of_gradient(self, gradient: Tensor) -> tuple[Tensor, ...]:
        """The inner tensors of a gradient of such an instance."""
        if self.gradients is not None:
            gradient = self.gradients.fitting(self.layout, gradient)
        else:
            gradient = _as_in(expected_gradient(self.layout), gradient)
        return TakeApart(self.layout)(gradient)


class Place(NamedTuple):
    """Stands for a tensor in arguments."""

    number: int


class Construct:
    """The target of nodes that call the constructor of a class; all but tensors is known."""

    __module__, __name__ = __name__, "construct"

    def __init__(self, cls: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self.cls, self.args, self.kwargs = cls, args, kwargs

    def __call__(self, *tensors: Tensor) -> Tensor:
        def filled(tree: Any) -> Any:
            if type(tree) is Place:
                return tensors[tree.number]
            if type(tree) in (list, tuple):
                return type(tree)(map(filled, tree))
            return tree

        kwargs = dict(zip(self.kwargs, map(filled, self.kwargs.values())))
        with DisableTorchFunctionSubclass():
            return self.cls(*map(filled, self.args), **kwargs)  # type: ignore[no-any-return]


class OfDTensors(Construct):
    """The target of nodes that call a function about DTensors, whose local tensors have arrived."""

    def __init__(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        super().__init__(function, args, kwargs)
        self.__name__ = function.__name__

    def __call__(self, *tensors: Tensor) -> Tensor:
        for tensor in tensors:
            if is_dtensor_class(type(tensor)):
                tensor._local_tensor = arrived(tensor._local_tensor)  # type: ignore[attr-defined]
        return super().__call__(*tensors)


class TakeApart:
    """The target of nodes that give the inner tensors of an instance. `gradients` is what a graph
    has learnt of the gradients that it gives for them."""

    __module__, __name__ = __name__, "take_apart"

    def __init__(self, layout: Layout, gradients: GradientLayout | None = None) -> None:
        self.layout, self.gradients = layout, gradients

    def __call__(self, wrapper: Tensor) -> tuple[Tensor, ...]:
        with DisableTorchFunctionSubclass():
            leaves = self.layout.leaves(wrapper)
            if not wrapper.requires_grad:
                return tuple(leaves)
            with torch.enable_grad():
                parts: list[Tensor] = [*_TakeApart.apply(self, leaves, wrapper)]
            for k in self.layout.tracked:
                leaves[k] = parts.pop(0)
            return tuple(leaves)

    def layout_of_gradient(self) -> Layout:
        if self.gradients is not None and self.gradients.layout is not None:
            return self.gradients.layout
        return expected_gradient(self.layout)


class _Wrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, wrap: Wrap, *leaves: Tensor) -> Any:  # type: ignore[override]
        ctx.wrap, inner = wrap, list(leaves)
        for k in wrap.layout.tracked:
            inner[k] = leaves[k].detach()
        return wrap.layout.make(inner)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        parts: list[Any] = [*ctx.wrap.parts_of_gradient(gradient)]
        for k in range(len(parts)):
            if k not in ctx.wrap.layout.tracked:
                parts[k] = None
        return None, *parts


class _TakeApart(torch.autograd.Function):
    """Gives the inner tensors that have gradients."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, apart: TakeApart, leaves: Sequence[Tensor], wrapper: Tensor
    ) -> Any:
        ctx.apart, ctx.leaves, parts = apart, list(leaves), []
        for k in apart.layout.tracked:
            parts.append(ctx.leaves[k].detach())
            ctx.leaves[k] = None
        return tuple(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # type: ignore[override]
        tracks = torch.is_grad_enabled() and any(map(_requires_grad, gradients))
        leaves = list(ctx.leaves)
        for k, gradient in zip(ctx.apart.layout.tracked, gradients):
            leaves[k] = gradient
        return None, None, Wrap(ctx.apart.layout_of_gradient(), tracks)(*leaves)


def expected_gradient(layout: Layout) -> Layout:
    """The layout of the gradient that a graph expects of a result."""
    if not is_dtensor_class(layout.cls):
        return layout
    _, placements = distribution_of(layout)
    expected = placements_of_gradient(placements)
    if expected == placements:
        return layout
    return replace(layout, context=with_placements(layout.context, expected))


_TELL_SIZES = frozenset(
    {(JaggedTensor, "_min_seqlen_tensor"), (JaggedTensor, "_max_seqlen_tensor")}
)
"""Inner tensors that have no elements: their size is what they say."""


def _is_differentiable(place: tuple[Any, str], leaf: Tensor) -> bool:
    """Whether an inner tensor has a part in the gradient of an instance."""
    is_number = leaf.dtype.is_floating_point or leaf.dtype.is_complex
    return is_number and place not in _TELL_SIZES


def _requires_grad(tensor: Tensor) -> bool:
    return tensor.requires_grad


@functools.cache
def below(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of torch's as nodes call it with instances: no `__torch_function__` is asked."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with DisableTorchFunctionSubclass():
            return function(*args, **kwargs)

    call.__name__ = function.__name__
    return call


@functools.cache
def with_overrides(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same where `__torch_function__` of the instances is part of the node."""

    chosen = _REPLACED.get(function, function)

    def call(*args: Any, **kwargs: Any) -> Any:
        return chosen(*args, **kwargs)

    call.__name__ = function.__name__
    return call


_REPLACED: dict[Any, Callable[..., Any]] = {native_attention: jagged_attention}
"""Functions of which torch's own version for instances of its classes reads their data."""


_LAZY = frozenset({aten._conj.default, aten._neg_view.default})
"""Ops that leave it to later ones to do what they say."""


# -- their dispatch --------------------------------------------------------------------------------


def wrapper_classes(types: Sequence[type]) -> tuple[type, ...]:
    """The classes of wrappers among those that an op is dispatched by."""
    for cls in types:
        if cls is not FakeTensor:
            return tuple(filter(is_wrapper_class, types))
    return ()


def dispatched(mode: Mode, op: OpOverload, classes: Sequence[type], args: Any, kwargs: Any) -> Any:
    """What an op gives by the dispatch of these classes, whose ops a mode sees. They do not hear of
    fakes, which stand for plain tensors."""
    if op in _LAZY:
        raise _refused(f"{op} of a wrapper, whose dispatch may not see that it is to be done")
    if has_dtensor(classes):
        if draws(op):
            refuse_random(args)
        return mode.by_torch(op, args, kwargs)
    with mode:
        if JaggedTensor in classes:
            for argument in args:
                note_ragged(argument)
        for cls in classes:
            result = cls.__torch_dispatch__(op, classes, args, kwargs)  # type: ignore[attr-defined]
            if result is not NotImplemented:
                return result
    raise _refused(f"{op} is implemented by none of its arguments")
