"""What eager refuses, for ops whose result's geometry the rules in `meta` give without asking.

An op without a row is tried out, or checked by its rule, or by the library that computes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ingot.errors import EagerRaises
from ingot.graph import geometry
from ingot.graph.geometry import bad_dims
from ingot.graph.schemas import bind, name_of
from ingot.graph.symbolic_views import is_symbolic, view_symbolically
from ingot.graph.symbols import is_decided_by_data
from ingot.torch_private import OpOverload, aten

Tensor = torch.Tensor


def check(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise EagerRaises if eager would not take the arguments (tensors with geometry only)."""
    test = REFUSALS.get(op) or _TESTS.get(name_of(op))
    if test is not None:
        problem = test(**{_NAMES.get(k, k): v for k, v in bind(op, args, kwargs).items()})
        if problem:
            raise EagerRaises(f"{op} does not take these arguments in eager: {problem}")


REFUSALS: dict[OpOverload, Callable[..., str]] = {}
"""Why eager refuses the arguments of an op, as `rules.py` hands it over."""

_NAMES = {"self": "x", "input": "x"}


def _rank(x: Tensor) -> int:
    return max(x.dim(), 1)


def _gather(x: Tensor, dim: int, index: Tensor, **_: Any) -> str:
    if bad_dims(x, [dim]) or geometry.is_empty(index):
        return bad_dims(x, [dim])
    if _rank(index) != _rank(x):
        return "the index has another rank"
    large = any(i > n for d, (i, n) in enumerate(zip(index.shape, x.shape)) if d != dim % x.dim())
    return "the index is larger than the tensor" if large else ""


_INDEX_TYPES = (torch.int64, torch.int32, torch.uint8, torch.bool)


def _index(x: Tensor, indices: Sequence[Tensor | None]) -> str:
    if any(i is not None and i.dtype not in _INDEX_TYPES for i in indices):
        return "an index that is neither an integer (of 32 or 64 bits) nor a mask"
    missing = any(
        i is not None and isinstance(size, int) and size == 0 and not geometry.is_empty(i)
        for i, size in zip(indices, x.shape)
    )
    return "an index into a dimension of size 0" if missing else ""


def along(x: Tensor, dim: int, **_: Any) -> str:
    return bad_dims(x, [dim])


def _index_select(x: Tensor, dim: int, index: Tensor) -> str:
    return "an index that is no vector" if index.dim() > 1 else bad_dims(x, [dim])


def _embedding(weight: Tensor, **_: Any) -> str:
    return "" if weight.dim() == 2 else "a weight that is no matrix"


def _norm(
    x: Tensor,
    normalized_shape: Sequence[Any],
    weight: Tensor | None,
    bias: Tensor | None = None,
    **_: Any,
) -> str:
    shapes = [
        x.shape[x.dim() - len(normalized_shape) :],
        *(t.shape for t in (weight, bias) if t is not None),
    ]
    fits = len(normalized_shape) > 0 and all(
        geometry.expect_same_sizes(s, normalized_shape) for s in shapes
    )
    return "" if fits else "sizes other than normalized_shape"


def _group_norm(x: Tensor, **_: Any) -> str:
    plain = not any(isinstance(s, torch.SymInt) for s in (*x.shape, *x.stride()))
    dense = not plain or geometry.same_sizes(x.stride(), geometry.suggested(x)) or x.is_contiguous()
    return "" if dense else "a tensor with gaps, or laid out in an order of its own"


def _of_a_part(view: OpOverload) -> Callable[..., str]:
    """A scatter into a view: the source has the view's sizes."""

    def test(x: Tensor, src: Tensor, **where: Any) -> str:
        if x.device.type != "meta":
            return ""
        at = tuple(where.values())
        varies = is_symbolic(x) or any(isinstance(number, torch.SymInt) for number in at)
        part = view_symbolically(view, x, at, {}) if varies else view(x, *at)
        return (
            "" if geometry.expect_same_sizes(part.shape, src.shape) else "a source of other sizes"
        )

    return test


def _cat(tensors: Sequence[Tensor], dim: int) -> str:
    """One dimension without elements is as good as any."""
    ranked = [t for t in tensors if t.dim() != 1 or not geometry.is_empty(t)]
    return bad_dims(ranked[0], [dim]) if ranked else ""


def _as_strided(x: Tensor, size: Any, stride: Any, storage_offset: Any) -> str:
    offset = x.storage_offset() if storage_offset is None else storage_offset
    if any(isinstance(s, int) and s < 0 for s in stride):
        return "a negative stride"  # which torch 2.11's own meta function takes
    if any(n == 0 for n in size):
        return ""
    last = offset + sum((n - 1) * s for n, s in zip(size, stride))
    fits = (last + 1) * x.element_size() <= x.untyped_storage().nbytes()
    return "" if fits else "a window beyond the storage"


def _roll(x: Tensor, shifts: Sequence[int], dims: Sequence[int]) -> str:
    aligned = len(shifts) == len(dims) if dims else len(shifts) == 1
    return (
        ""
        if aligned and not any(bad_dims(x, [d]) for d in dims)
        else "shifts and dimensions that do not align"
    )


def _flip(x: Tensor, dims: Sequence[int]) -> str:
    return bad_dims(x, dims)


def _pad(x: Tensor, pad: Sequence[Any], value: Any = 0, **_: Any) -> str:
    """Negative padding takes elements away at both ends before others are added."""
    if overflows(x.dtype, value):
        return "a number that the tensor's type cannot hold"
    for size, before, after in zip(reversed(x.shape), pad[::2], pad[1::2]):
        if any(map(is_decided_by_data, (size, before, after))):
            continue
        if size + torch.sym_min(before, 0) + torch.sym_min(after, 0) < 0:
            return "padding that takes away more elements than there are"
    return ""


def _repeat(x: Tensor, repeats: Sequence[Any]) -> str:
    return "" if len(repeats) >= x.dim() else "fewer repeats than dimensions"


def overflows(dtype: torch.dtype, value: Any) -> bool:
    """Whether eager refuses a Python number for a tensor of a narrower type."""
    if not isinstance(value, (int, float)) or dtype.is_complex or dtype is torch.bool:
        return False
    if dtype.is_floating_point:
        return math.isfinite(value) and abs(value) > torch.finfo(dtype).max
    info = torch.iinfo(dtype)
    # as negative integers wrap around
    least = info.min if info.min or isinstance(value, float) else -info.max
    return not least <= value <= info.max


def _pow(exponent: Any, x: Any = None, **_: Any) -> str:
    """Of halves eager takes powers as of elements."""
    halves = isinstance(x, Tensor) and x.dtype in (torch.float16, torch.bfloat16)
    return (
        "an exponent that the tensor's type cannot hold"
        if halves and overflows(x.dtype, exponent)
        else ""
    )


def number_overflows(x: Tensor, value: Any, **_: Any) -> str:
    return "a number that the tensor's type cannot hold" if overflows(x.dtype, value) else ""


def _long_index(index: Tensor) -> str:
    """What index_fill and index_copy take, other than their kin."""
    return "" if index.dtype is torch.int64 else "an index that is no int64"


def _masked_fill(x: Tensor, mask: Tensor, value: Any) -> str:
    if mask.dtype is not torch.bool:
        return "a mask that is not boolean"
    if overflows(x.dtype, value):
        return "a number that the tensor's type cannot hold"
    return "a value with dimensions" if isinstance(value, Tensor) and value.dim() else ""


def _full(
    fill_value: Any, x: Tensor | None = None, dtype: torch.dtype | None = None, **_: Any
) -> str:
    if dtype is None and x is None:
        dtype = torch.get_default_dtype() if isinstance(fill_value, float) else torch.int64
    kept = dtype or x.dtype  # type: ignore[union-attr]
    return "a number that the tensor's type cannot hold" if overflows(kept, fill_value) else ""


def _scalar_tensor(s: Any, dtype: torch.dtype | None = None, **_: Any) -> str:
    return _full(s, dtype=dtype or torch.get_default_dtype())


def _arange(end: Any, start: Any = 0, step: Any = 1, **_: Any) -> str:
    if any(isinstance(number, (torch.SymInt, torch.SymFloat)) for number in (start, end, step)):
        return "a step of 0" if step == 0 else ""
    away = start < end if step < 0 else start > end
    return "a step of 0" if step == 0 else "a step that leads away from the end" if away else ""


def _softshrink(x: Tensor, lambd: float = 0.5) -> str:
    most = torch.finfo(x.dtype).max if x.is_floating_point() else math.inf
    return (
        ""
        if 0 <= lambd <= most
        else "a limit that is negative, or that the tensor's type cannot hold"
    )


def source_of_dtype(name: str) -> Callable[..., str]:
    """What is put into a tensor has its dtype."""

    def test(x: Tensor, **given: Any) -> str:
        source = given.get(name)
        return (
            "a source of another dtype"
            if isinstance(source, Tensor) and source.dtype is not x.dtype
            else ""
        )

    return test


_TESTS: dict[str, Callable[..., str]] = {
    "aten::gather": _gather,
    "aten::index": _index,
    "aten::index_select": _index_select,
    "aten::cat": _cat,
    "aten::stack": lambda tensors, dim: (
        "" if -tensors[0].dim() - 1 <= dim <= tensors[0].dim() else "a dimension out of range"
    ),
    "aten::_softmax": along,
    "aten::_log_softmax": along,
    "aten::embedding": _embedding,
    "aten::native_layer_norm": _norm,
    "aten::_fused_rms_norm": _norm,
    "aten::native_group_norm": _group_norm,
    "aten::select_scatter": _of_a_part(aten.select.int),
    "aten::slice_scatter": _of_a_part(aten.slice.Tensor),
    "aten::diagonal_scatter": _of_a_part(aten.diagonal.default),
    "aten::as_strided": _as_strided,
    "aten::roll": _roll,
    "aten::flip": _flip,
    "aten::repeat": _repeat,
    "aten::constant_pad_nd": _pad,
    "aten::pow": _pow,
    "aten::masked_fill": _masked_fill,
    "aten::index_fill": lambda x, dim, index, value: (
        bad_dims(x, [dim]) or _long_index(index) or number_overflows(x, value)
    ),
    "aten::fill": number_overflows,
    "aten::fill_": number_overflows,
    "aten::full": _full,
    "aten::full_like": _full,
    "aten::new_full": _full,
    "aten::scalar_tensor": _scalar_tensor,
    "aten::threshold": lambda x, threshold, value: (
        number_overflows(x, threshold) or number_overflows(x, value)
    ),
    "aten::arange": _arange,
    "aten::softshrink": _softshrink,
    **{f"aten::{name}": source_of_dtype("source") for name in ("index_add",)},
    "aten::index_copy": lambda x, dim, index, source: (
        bad_dims(x, [dim]) or _long_index(index) or source_of_dtype("source")(x, source=source)
    ),
    **{f"aten::{name}": source_of_dtype("src") for name in ("scatter_add", "scatter_reduce")},
    "aten::scatter": lambda x, **given: (
        # scatter.src and scatter.value
        source_of_dtype("src")(x, **given) or number_overflows(x, given.get("value"))
    ),
    "aten::index_put": lambda x, indices, values, **_: (
        _index(x, indices) or source_of_dtype("values")(x, values=values)
    ),
}
