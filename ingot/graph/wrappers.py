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
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ingot.errors import Unsupported, unsupported
from ingot.graph.fakes import FakeTensor
from ingot.graph.jagged_attention import jagged_attention
from ingot.graph.ragged import note_ragged
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
    such instances, and `tracked` says which of the plain ones have a part in a gradient."""

    cls: Any
    names: tuple[str, ...]
    inner: tuple[Layout | None, ...]
    context: Any
    geometry: Geometry
    tracked: tuple[int, ...]

    @staticmethod
    def of(wrapper: Tensor) -> Layout:
        """That of an instance."""
        with DisableTorchFunctionSubclass():
            names, context = wrapper.__tensor_flatten__()  # type: ignore[attr-defined]
            inner = []
            for name in names:
                tensor = getattr(wrapper, name)
                inner.append(Layout.of(tensor) if is_wrapper_class(type(tensor)) else None)
            layout = Layout(type(wrapper), tuple(names), tuple(inner), context, FLAT, ())
            leaves = layout.leaves(wrapper)
            tracked = []
            for k, place in enumerate(layout.places()):
                if _is_differentiable(place, leaves[k]):
                    tracked.append(k)
            geometry = geometry_of(wrapper, leaves)
            return replace(layout, geometry=geometry, tracked=tuple(tracked))

    def places(self) -> list[tuple[Any, str]]:
        """The class and the attribute that each plain tensor belongs to."""
        results: list[tuple[Any, str]] = []
        for name, layout in zip(self.names, self.inner):
            results += [(self.cls, name)] if layout is None else layout.places()
        return results

    def leaves(self, wrapper: Tensor) -> list[Tensor]:
        """The plain tensors of an instance of this class, those of inner ones in their place."""
        if type(wrapper) is not self.cls:
            other = "plain tensor" if type(wrapper) is FakeTensor else type(wrapper).__name__
            raise _refused(f"a {other} in place of a {self.cls.__name__}")
        results: list[Tensor] = []
        for name, layout in zip(self.names, self.inner):
            tensor = getattr(wrapper, name)
            if layout is None:
                results.append(tensor)
            else:
                results += layout.leaves(tensor)
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
        sizes, strides = self.geometry.of_leaves(leaves)
        inner = {}
        for name, layout in zip(self.names, self.inner):
            inner[name] = leaves.pop(0) if layout is None else layout._made(leaves)
        made = self.cls.__tensor_unflatten__(inner, self.context, sizes, strides)
        if type(made) is not self.cls:
            raise _refused(f"__tensor_unflatten__ of {self.cls.__name__} gives another class")
        return made  # type: ignore[no-any-return]


def _refused(sentence: str) -> Unsupported:
    return unsupported("tensor-subclass", sentence)


def without_wrappers(tree: Any) -> Any:
    """Nested lists and tuples with the plain tensors of instances in place of these."""
    if isinstance(tree, (list, tuple)):
        return tuple(map(without_wrappers, tree))
    if is_wrapper_class(type(tree)):
        return tuple(Layout.of(tree).leaves(tree))
    return tree


# -- nodes of captured graphs ----------------------------------------------------------------------


class Wrap:
    """The target of nodes that make an instance of its inner tensors. If it `tracks`, the gradients
    of the instance are those of its inner tensors."""

    __module__, __name__ = __name__, "wrap"

    def __init__(self, layout: Layout, tracks: bool) -> None:
        self.layout, self.tracks = layout, tracks

    def __call__(self, *leaves: Tensor) -> Tensor:
        with DisableTorchFunctionSubclass():
            if not self.tracks:
                return self.layout.make(leaves)
            with torch.enable_grad():
                return _Wrap.apply(self.layout, *leaves)  # type: ignore[no-any-return]


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


class TakeApart:
    """The target of nodes that give the inner tensors of an instance."""

    __module__, __name__ = __name__, "take_apart"

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def __call__(self, wrapper: Tensor) -> tuple[Tensor, ...]:
        with DisableTorchFunctionSubclass():
            leaves = self.layout.leaves(wrapper)
            if not wrapper.requires_grad:
                return tuple(leaves)
            with torch.enable_grad():
                parts: list[Tensor] = [*_TakeApart.apply(self.layout, wrapper)]
            for k in self.layout.tracked:
                leaves[k] = parts.pop(0)
            return tuple(leaves)


class _Wrap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layout: Layout, *leaves: Tensor) -> Any:  # type: ignore[override]
        ctx.layout, inner = layout, list(leaves)
        for k in layout.tracked:
            inner[k] = leaves[k].detach()
        return layout.make(inner)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        parts: list[Any] = [*TakeApart(ctx.layout)(gradient)]
        for k in range(len(parts)):
            if k not in ctx.layout.tracked:
                parts[k] = None
        return None, *parts


class _TakeApart(torch.autograd.Function):
    """Gives the inner tensors that have gradients."""

    @staticmethod
    def forward(ctx: Any, layout: Layout, wrapper: Tensor) -> Any:  # type: ignore[override]
        ctx.layout, ctx.leaves, parts = layout, layout.leaves(wrapper), []
        for k in layout.tracked:
            parts.append(ctx.leaves[k].detach())
            ctx.leaves[k] = None
        return tuple(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # type: ignore[override]
        tracks = torch.is_grad_enabled() and any(map(_requires_grad, gradients))
        leaves = list(ctx.leaves)
        for k, gradient in zip(ctx.layout.tracked, gradients):
            leaves[k] = gradient
        return None, Wrap(ctx.layout, tracks)(*leaves)


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


def dispatched(op: OpOverload, classes: Sequence[type], args: Any, kwargs: Any) -> Any:
    """What an op gives by the dispatch of these classes. They do not hear of fakes, which stand for
    plain tensors."""
    if op in _LAZY:
        raise _refused(f"{op} of a wrapper, whose dispatch may not see that it is to be done")
    if JaggedTensor in classes:
        for argument in args:
            note_ragged(argument)
    for cls in classes:
        result = cls.__torch_dispatch__(op, classes, args, kwargs)  # type: ignore[attr-defined]
        if result is not NotImplemented:
            return result
    raise _refused(f"{op} is implemented by none of its arguments")
