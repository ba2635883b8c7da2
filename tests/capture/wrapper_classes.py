"""Wrapper subclasses as libraries write them: pairs of tensors, scaled tensors, and weights of 8
and 4 bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_map

from ingot.torch_private import DisableTorchFunctionSubclass, aten, disabled_torch_function_impl


class Pair(Tensor):
    """Two tensors that each op is done to."""

    a: Tensor
    b: Tensor

    @staticmethod
    def __new__(cls, a: Tensor, b: Tensor, requires_grad: bool = False) -> Any:
        return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            a.shape,
            strides=a.stride(),
            storage_offset=a.storage_offset(),
            dtype=a.dtype,
            device=a.device,
            requires_grad=requires_grad,
        )

    def __init__(self, a: Tensor, b: Tensor, requires_grad: bool = False) -> None:
        self.a, self.b = a, b

    def __tensor_flatten__(self) -> Any:
        return ["a", "b"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, sizes: Any, strides: Any) -> Any:
        return cls(inner["a"], inner["b"])

    def total(self) -> Tensor:
        return self.a + self.b

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert all(issubclass(t, Pair) for t in types)
        kwargs = kwargs or {}

        def side(name: str) -> Any:
            def of(value: Any) -> Any:
                return getattr(value, name) if isinstance(value, cls) else value

            inner_args, inner_kwargs = tree_map(of, (args, kwargs))
            return func(*inner_args, **inner_kwargs)

        def pair(a: Any, b: Any) -> Any:
            return cls(a, b) if isinstance(a, Tensor) else a

        result = tree_map(pair, side("a"), side("b"))
        return return_and_correct_aliasing(func, args, kwargs, result)


class DirectPair(Pair):
    """One that hears of no functions, only of ops."""

    __torch_function__ = disabled_torch_function_impl


@dataclass(frozen=True)
class Granularity:
    rows: int = 1
    name: str = "per row"


class Int8(Tensor):
    """A weight of 8 bits with a scale for each row, and a linear layer of its own."""

    data8: Tensor
    scale: Tensor
    granularity: Granularity

    @staticmethod
    def __new__(cls, data8: Tensor, scale: Tensor, granularity: Any, dtype: Any) -> Any:
        return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, data8.shape, dtype=dtype, device=data8.device
        )

    def __init__(self, data8: Tensor, scale: Tensor, granularity: Any, dtype: Any) -> None:
        self.data8, self.scale, self.granularity = data8, scale, granularity

    def __tensor_flatten__(self) -> Any:
        return ["data8", "scale"], [self.granularity, self.dtype]

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, sizes: Any, strides: Any) -> Any:
        return cls(inner["data8"], inner["scale"], *context)

    @classmethod
    def of(cls, weight: Tensor, granularity: Granularity = Granularity()) -> Any:
        scale = weight.abs().amax(1, keepdim=True) / 127
        data8 = (weight / scale).round().clamp(-127, 127).to(torch.int8)
        return cls(data8, scale.squeeze(1), granularity, weight.dtype)

    def dequantize(self) -> Tensor:
        return self.data8.to(self.dtype) * self.scale[:, None]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            x, weight, bias = (*args, None)[:3]
            result = F.linear(x, weight.data8.to(x.dtype)) * weight.scale
            return result if bias is None else result + bias
        with DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten.detach.default:
            w = args[0]
            made = cls(w.data8.detach(), w.scale.detach(), w.granularity, w.dtype)
            return return_and_correct_aliasing(func, args, kwargs, made)
        if func is aten.sin.default:
            raise NotImplementedError("sin")
        return func(*tree_map(dequantized, args), **tree_map(dequantized, kwargs))


class DirectInt8(Int8):
    """One that is dequantized by the dispatch of ops."""

    __torch_function__ = disabled_torch_function_impl


class Int4(Tensor):
    """A weight of 4 bits, two in a byte, with a scale and a zero for each group of columns."""

    __torch_function__ = disabled_torch_function_impl
    packed: Tensor
    scale: Tensor
    zero: Tensor
    group: int

    @staticmethod
    def __new__(cls, packed: Tensor, scale: Tensor, zero: Tensor, group: int, shape: Any) -> Any:
        return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, shape, dtype=scale.dtype, device=packed.device
        )

    def __init__(self, packed: Tensor, scale: Tensor, zero: Tensor, group: int, shape: Any) -> None:
        self.packed, self.scale, self.zero, self.group = packed, scale, zero, group

    def __tensor_flatten__(self) -> Any:
        return ["packed", "scale", "zero"], {"group": self.group, "shape": tuple(self.shape)}

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, sizes: Any, strides: Any) -> Any:
        return cls(**inner, **context)

    @classmethod
    def of(cls, weight: Tensor, group: int = 4) -> Any:
        rows, columns = weight.shape
        grouped = weight.reshape(rows, columns // group, group)
        low, high = grouped.amin(-1), grouped.amax(-1)
        scale = (high - low) / 15
        levels = ((grouped - low[..., None]) / scale[..., None]).round().clamp(0, 15)
        q = levels.to(torch.uint8).reshape(rows, columns)
        return cls(q[:, ::2] | (q[:, 1::2] << 4), scale, low, group, (rows, columns))

    def dequantize(self) -> Tensor:
        q = torch.stack([self.packed & 15, self.packed >> 4], -1)
        levels = q.reshape(self.shape[0], -1, self.group).to(self.scale.dtype)
        weight = levels * self.scale[..., None] + self.zero[..., None]
        return weight.reshape(self.shape[0], self.shape[1])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is aten.detach.default:
            w = args[0]
            made = cls(w.packed, w.scale, w.zero, w.group, tuple(w.shape))
            return return_and_correct_aliasing(func, args, kwargs, made)
        return func(*tree_map(dequantized, args), **tree_map(dequantized, kwargs))


def dequantized(value: Any) -> Any:
    return value.dequantize() if isinstance(value, (Int8, Int4)) else value


class Scaled(Tensor):
    """A tensor and a number, which is no tensor."""

    __torch_function__ = disabled_torch_function_impl
    elements: Tensor
    factor: float
    rebinds = False

    @staticmethod
    def __new__(cls, elements: Tensor, factor: float) -> Any:
        return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, elements.shape, dtype=elements.dtype, device=elements.device
        )

    def __init__(self, elements: Tensor, factor: float) -> None:
        self.elements, self.factor = elements, factor

    def __tensor_flatten__(self) -> Any:
        return ["elements"], self.factor

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, sizes: Any, strides: Any) -> Any:
        return cls(inner["elements"], context)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is aten.mul.Tensor:
            return cls(args[0].elements, args[0].factor * args[1])
        if func is aten.mul_.Tensor:
            args[0].elements = args[0].elements * args[1]
            return args[0]

        def plain(value: Any) -> Any:
            return value.elements * value.factor if isinstance(value, cls) else value

        return func(*tree_map(plain, args), **tree_map(plain, kwargs or {}))


class Slotted(Tensor):
    """Its inner tensor and its kind are in `__slots__`."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    __slots__ = ("elements", "kind")

    @staticmethod
    def __new__(cls, elements: Tensor, kind: str) -> Any:
        made: Any = Tensor._make_wrapper_subclass(
            cls, elements.size(), strides=elements.stride(), dtype=elements.dtype
        )
        made.elements, made.kind = elements, kind
        return made

    def __tensor_flatten__(self) -> Any:
        return ["elements"], self.kind

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, context: Any, sizes: Any, strides: Any) -> Any:
        return cls(inner["elements"], context)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


Make = Callable[[], Any]


def plain(*shape: int) -> Tensor:
    return torch.randn(shape or (4, 5))


def pair(cls: Any = Pair, *shape: int) -> Make:
    return lambda: cls(plain(*shape), plain(*shape))


def tracked_pair(cls: Any = Pair) -> Make:
    return lambda: cls(plain(), plain(), requires_grad=True)
