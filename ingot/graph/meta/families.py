"""The rules of families of ops, whose results follow from the sizes of their arguments, symbolic
ones included."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ingot.errors import EagerRaises, unsupported
from ingot.graph import geometry
from ingot.graph.meta.basis import fresh, has_symbols, tensors_in
from ingot.graph.meta.trials import dtype_of, dtypes, kinds, probe, tried_out
from ingot.graph.schemas import arguments_of, bind
from ingot.graph.symbolic_views import is_symbolic, view_symbolically
from ingot.torch_private import (
    OpOverload,
    aten,
    conv_determine_backend_memory_format,
    select_conv_backend,
)

_results: dict[Any, tuple[tuple[int, ...], torch.dtype, tuple[int, ...]]] = {}
_MOST_RESULTS = 1 << 14


def pointwise(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The geometry of each call is kept: a program has many that are alike."""
    operands = tensors_in(args)
    if kwargs:
        operands += tensors_in(kwargs)
    if any([is_symbolic(t) for t in operands]):
        return fresh(*_pointwise(op, args, kwargs, operands))
    key = kinds(op, args, kwargs), *[(t.shape, t.stride()) for t in operands]
    found = _results.get(key)
    if found is None:
        if len(_results) >= _MOST_RESULTS:
            _results.clear()
        found = _results[key] = _pointwise(op, args, kwargs, operands)
    return fresh(*found)


def _pointwise(
    op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[Tensor]
) -> Any:
    """Sizes, dtype and strides of the result."""
    first = operands[0]
    shape = (
        tuple(first.shape)
        if len(operands) == 1
        else geometry.broadcast(*[t.shape for t in operands])
    )
    with_number = len(operands) == 1 and len(args) > 1 and arguments_of(op)[1][0] == "other"
    order = operands[::-1] if op in geometry.LAST_FIRST else operands
    return shape, dtype_of(op, args, kwargs), geometry.elementwise(shape, order, with_number)


def like_self(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Fills and writes at indices: a changed copy of the first argument."""
    t = args[0]
    return fresh(t.shape, t.dtype, geometry.preserved(t))


def plain_self(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Scatters and draws: a changed copy of the first argument, contiguous."""
    return fresh(args[0].shape, args[0].dtype)


def masked(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """masked_fill and masked_scatter: the first argument, broadcast with the mask, contiguous."""
    return fresh(geometry.broadcast(args[0].shape, args[1].shape), args[0].dtype)


def roll(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """A clone where there are no elements. Else the parts before and behind a place are joined
    anew, one dimension after the other: in the memory format of both, of which one may be empty."""
    t, bound = args[0], bind(op, args, kwargs)
    if geometry.is_empty(t) and bound["dims"]:
        return fresh(t.shape, t.dtype, geometry.preserved(t))
    joined = bool(bound["dims"]) and geometry.like_channels_last(t)
    for shift, dim in zip(bound["shifts"], bound["dims"]):
        joined = joined and (
            shift % t.shape[dim] != 0 or geometry.like_channels_last(t.narrow(dim, 0, 0))
        )
    return fresh(t.shape, t.dtype, geometry.suggested(t) if joined else None)


def contiguous_exponent(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """A number to the power of a tensor."""
    return fresh(args[1].shape, dtype_of(op, args, kwargs))


def is_scaled_exactly(x: Tensor, exponent: Tensor) -> bool:
    """Whether eager's ldexp rounds once: else it is the product with a power of 2."""
    return _SCALES_EXACTLY and x.is_floating_point() and exponent.dtype in _INTEGERS


_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
_SCALES_EXACTLY = math.isfinite(
    torch.ldexp(torch.zeros(1, device="cpu"), torch.full((1,), 2000, device="cpu")).item()
)
"""Since torch 2.12 or 2.13; 0 times infinity before."""


def power_of_two(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """ldexp: the product with a power of 2, which is contiguous where it is of the default
    dtype."""
    x, exponent = args
    if is_scaled_exactly(x, exponent):
        return pointwise(op, args, kwargs)
    if (
        not (exponent.is_floating_point() or exponent.is_complex())
        or exponent.dtype is torch.get_default_dtype()
    ):
        exponent = fresh(exponent.shape, exponent.dtype)
    return pointwise(op, (x, exponent), kwargs)


def contiguous_self(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    t = args[0]
    return fresh(t.shape, dtype_of(op, args, kwargs))


def angle(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return (contiguous_self if args[0].is_complex() else pointwise)(op, args, kwargs)


def formatted_copy(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """clone, _to_copy and the *like factories: dtype and memory_format keywords over the first
    argument's geometry."""
    t, format_ = args[0], kwargs.get("memory_format")
    dtype = kwargs.get("dtype") or t.dtype
    if format_ in (None, torch.preserve_format):
        return fresh(t.shape, dtype, geometry.preserved(t))
    if format_ is torch.contiguous_format:
        return fresh(t.shape, dtype)
    return fresh(t.shape, dtype, geometry.channels_last(t.shape))


def exact_self(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """`copy`: the first argument's geometry, gaps between the elements included, unless elements
    share memory."""
    t = args[0]
    return fresh(t.shape, t.dtype, geometry.preserved(t) if geometry.is_expanded(t) else t.stride())


def _dims(dim: Any, rank: int) -> set[int]:
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return set(range(rank))
    listed, span = [dim] if isinstance(dim, int) else dim, max(rank, 1)
    dims = {d % span for d in listed if -span <= d < span}
    if len(dims) < len(listed):
        raise EagerRaises(
            f"dimensions {list(listed)} of a tensor of rank {rank}: out of range, or one twice"
        )
    return dims


def reduction(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    bound = bind(op, args, kwargs)
    t = args[0]
    dims, keep = _dims(bound.get("dim"), t.dim()), bound.get("keepdim", False)
    if geometry.is_empty(t) and not (is_symbolic(t) and tried_out(op, args, kwargs) is not None):
        # as above, whether this raises depends on the op, and on no symbol
        return probe(op, args, kwargs)
    sizes = [1 if d in dims else s for d, s in enumerate(t.shape) if keep or d not in dims]
    # one element has no variance
    results = tuple(fresh(sizes, dtype) for dtype in dtypes(op, args, kwargs, 2))
    return results[0] if len(results) == 1 else results


def matmul(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """mm, bmm, mv, dot and their add* forms: the last two matrices decide."""
    left, right = [a for a in args if isinstance(a, Tensor)][-2:]
    if not geometry.expect_same(left.shape[-1], right.shape[max(right.dim() - 2, 0)]):
        raise EagerRaises(
            f"{op}: shapes {tuple(left.shape)} and {tuple(right.shape)} do not multiply"
        )
    sizes = (*left.shape[:-1], *([right.shape[-1]] if right.dim() > 1 else []))
    return fresh(sizes, dtype_of(op, args, kwargs))


def linear(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    x, weight = args[0], args[1]
    return fresh((*x.shape[:-1], weight.shape[0]), x.dtype)


def layer_norm(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    t, normalized = args[0], len(args[1])
    stats = [*t.shape[: t.dim() - normalized], *[1] * normalized]
    small = (t, [1] * normalized, *args[2:])
    first, *rest = dtypes(op, small, kwargs)
    return (fresh(t.shape, first), *(fresh(stats, dtype) for dtype in rest))


def batch_norm(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    t = args[0]
    bound = bind(op, args, kwargs)
    training = bound.get("training", bound.get("train", False))
    first, *rest = dtypes(op, args, kwargs)
    stats = (t.shape[1],) if training else (0,)
    return (fresh(t.shape, first, geometry.suggested(t)), *(fresh(stats, dtype) for dtype in rest))


def group_norm(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    t, groups = args[0], args[6]
    small = (t, args[1], args[2], 1, 1, 1, 1, args[7])
    first, *rest = dtypes(op, small, {})
    stats = (t.shape[0], groups)
    return (fresh(t.shape, first, geometry.suggested(t)), *(fresh(stats, dtype) for dtype in rest))


def convolution(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    x, weight, _, stride, padding, dilation, transposed, output_padding, groups = args
    if geometry.is_empty(x) or geometry.is_empty(weight):
        return probe(op, args, kwargs)
    if x.shape[1] != (weight.shape[0] if transposed else weight.shape[1] * groups):
        raise EagerRaises(
            f"{op}: an input {tuple(x.shape)} does not fit a weight {tuple(weight.shape)}"
        )
    rank = weight.dim() - 2

    def per_dim(values: Sequence[Any]) -> list[Any]:
        return list(values) * rank if len(values) == 1 else list(values)

    spatial = []
    for size, kernel, step, pad, spread, extra in zip(
        x.shape[2:], weight.shape[2:], *map(per_dim, (stride, padding, dilation, output_padding))
    ):
        reach = spread * (kernel - 1)
        if transposed:
            spatial.append((size - 1) * step - 2 * pad + reach + extra + 1)
        else:
            spatial.append((size + 2 * pad - reach - 1) // step + 1)
        if spatial[-1] < 1:
            raise EagerRaises(f"{op}: a kernel larger than the input")
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    sizes = (x.shape[0], channels, *spatial)
    # eager computes a contiguous one as an image of height 1, whose strides may happen to be such
    if rank == 1:
        x = (x if x.is_contiguous() else fresh(x.shape, x.dtype)).unsqueeze(2)
        wide = [
            [1, *stride],
            [0, *padding],
            [1, *dilation],
            transposed,
            [0, *output_padding],
            groups,
        ]
        if _convolved_channels_last(x, weight.unsqueeze(2), wide):
            strides = geometry.channels_last((*sizes[:2], 1, *sizes[2:]))
            return fresh(sizes, x.dtype, (*strides[:2], strides[3]))
        return fresh(sizes, x.dtype)
    last = _convolved_channels_last(
        x, weight, [stride, padding, dilation, transposed, output_padding, groups]
    )
    return fresh(sizes, x.dtype, geometry.channels_last(sizes) if last else None)


def _convolved_channels_last(x: Tensor, weight: Tensor, settings: list[Any]) -> bool:
    """Whether eager's convolution gives its result channels last: where an operand lies so, and the
    kernel that it chooses for these sizes knows of that layout."""
    likely = geometry.like_channels_last(x) or geometry.like_channels_last(weight)
    if not likely or any(
        isinstance(n, torch.SymInt) for t in (x, weight) for n in (*t.shape, *t.stride())
    ):
        return likely
    real = [
        torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cpu") for t in (x, weight)
    ]
    backend = select_conv_backend(*real, None, *settings, None)
    chosen: Any = conv_determine_backend_memory_format  # whose stub knows one argument of its three
    return chosen(*real, backend) in (torch.channels_last, torch.channels_last_3d)


def pool(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Max and average pooling with a window, in any rank."""
    bound = bind(op, args, kwargs)
    x = args[0]
    if geometry.is_empty(x):
        return probe(op, args, kwargs)
    rank = len(bound["kernel_size"])

    def per_dim(values: Sequence[Any]) -> list[Any]:
        return list(values) * rank if len(values) == 1 else list(values)

    kernel = per_dim(bound["kernel_size"])
    step = per_dim(bound["stride"]) if bound["stride"] else kernel
    pad, spread = per_dim(bound["padding"]), per_dim(bound.get("dilation") or [1])
    spatial = []
    for size, k, s, p, d in zip(x.shape[-rank:], kernel, step, pad, spread):
        room = size + 2 * p - d * (k - 1) - 1
        count = -(-room // s) + 1 if bound["ceil_mode"] else room // s + 1
        if bound["ceil_mode"] and (count - 1) * s >= size + p:
            count -= 1  # the last window would start in the padding on the right
        if count < 1:
            raise EagerRaises(f"{op}: a kernel larger than the input")
        spatial.append(count)
    sizes = (*x.shape[: x.dim() - rank], *spatial)
    plain = op is aten.avg_pool3d.default  # whose kernel knows of no other layout
    strides = geometry.contiguous(sizes) if plain else geometry.suggested(x, sizes)
    values = fresh(sizes, x.dtype, strides)
    return (values, fresh(sizes, torch.int64, strides)) if len(op._schema.returns) == 2 else values


def adaptive_max_pool(
    op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    x, target = args[0], args[1]
    sizes = (*x.shape[: x.dim() - len(target)], *target)
    strides = geometry.suggested(x, sizes) if len(target) == 2 else None
    return fresh(sizes, x.dtype, strides), fresh(sizes, torch.int64, strides)


def adaptive_pool(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    x, target = args[0], args[1]
    sizes = (*x.shape[: x.dim() - len(target)], *target)
    if op is aten._adaptive_avg_pool3d.default:
        return fresh(sizes, x.dtype)
    return fresh(sizes, x.dtype, geometry.suggested(x, sizes))


def embedding(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    weight, indices = args[0], args[1]
    return fresh((*indices.shape, *weight.shape[1:]), weight.dtype)


def gather(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return fresh(args[2].shape, args[0].dtype)


def index_select(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    t, dim, index = args
    sizes = list(t.shape)
    if sizes:
        sizes[dim % t.dim()] = index.numel()
    return fresh(sizes, t.dtype)


def index(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Advanced indexing by integer tensors: the indexed dimensions become the indices' broadcast
    shape."""
    t, indices = args[0], list(args[1])
    if any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
        raise unsupported(
            "mask-size", "indexing with a mask: the size of the result depends on the data"
        )
    indices += [None] * (t.dim() - len(indices))
    used = [d for d, i in enumerate(indices) if i is not None]
    shape = geometry.broadcast(*[indices[d].shape for d in used])
    rest = [t.shape[d] for d in range(t.dim()) if d not in used]
    adjacent = used == list(range(used[0], used[-1] + 1))
    before = used[0] if adjacent else 0
    sizes = (*rest[:before], *shape, *rest[before:])
    plain = (not rest or t.is_contiguous()) and all(indices[d].is_contiguous() for d in used)
    return fresh(sizes, t.dtype) if plain else probe(op, args, kwargs)


def _is_legacy_empty(t: Tensor) -> bool:
    """Whether cat takes it whatever the others' rank is: the tensor of one dimension without
    elements."""
    return t.dim() == 1 and isinstance(t.shape[0], int) and t.shape[0] == 0


def cat(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    tensors = [t for t in args[0] if not _is_legacy_empty(t)]
    if not tensors:
        return fresh((0,), dtype_of(op, args, kwargs))
    first = tensors[0]
    ranked = [t.new_empty((0,) * first.dim()) if _is_legacy_empty(t) else t for t in args[0]]
    dtype = dtype_of(op, (ranked, *args[1:]), kwargs)
    dim = bind(op, args, kwargs)["dim"] % first.dim()
    sizes = list(first.shape)
    for t in tensors[1:]:
        pairs = [pair for d, pair in enumerate(zip(t.shape, first.shape)) if d != dim]
        if t.dim() != first.dim() or not all(geometry.expect_same(*pair) for pair in pairs):
            raise EagerRaises("cat of tensors whose sizes differ outside the joined dimension")
        sizes[dim] = sizes[dim] + t.shape[dim]
    last = all(geometry.like_channels_last(t) for t in tensors)
    return fresh(sizes, dtype, geometry.channels_last(sizes) if last else None)


def stack(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    tensors = args[0]
    sizes = list(tensors[0].shape)
    if not all(geometry.expect_same_sizes(t.shape, tensors[0].shape) for t in tensors):
        raise EagerRaises("stack of tensors of different sizes")
    dim = bind(op, args, kwargs)["dim"] % (len(sizes) + 1)
    strides = None
    # a cat along dim, taken apart
    if dim < len(sizes) and all(geometry.like_channels_last(t) for t in tensors):
        joined = geometry.channels_last(
            [s * len(tensors) if d == dim else s for d, s in enumerate(sizes)]
        )
        strides = (*joined[:dim], joined[dim] * sizes[dim], *joined[dim:])
    sizes.insert(dim, len(tensors))
    return fresh(sizes, dtype_of(op, args, kwargs), strides)


def pad(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    t, amounts = args[0], args[1]
    sizes = list(t.shape)
    for i in range(len(amounts) // 2):
        sizes[-1 - i] = sizes[-1 - i] + amounts[2 * i] + amounts[2 * i + 1]
    if not geometry.surely_contiguous(t) and all(n <= 0 for n in amounts):  # a copy of a part
        return fresh(sizes, t.dtype, geometry.preserved(t.as_strided(sizes, t.stride())))
    return fresh(sizes, t.dtype, geometry.suggested(t, sizes))


def repeat(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    t, times = args
    sizes = [1] * (len(times) - t.dim()) + list(t.shape)
    return fresh([s * n for s, n in zip(sizes, times)], t.dtype)


def resample(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """upsample_*: spatial sizes given, or by scale factors."""
    t, bound = args[0], bind(op, args, kwargs)
    if geometry.is_empty(t):
        return probe(op, args, kwargs)
    spatial = bound.get("output_size")
    if spatial is None:
        spatial = [math.floor(s * f) for s, f in zip(t.shape[2:], bound["scale_factors"])]
    sizes = (*t.shape[:2], *spatial)
    return fresh(sizes, t.dtype, geometry.suggested(t, sizes))


def attention_cpu(
    op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    query, value = args[0], args[2]
    batch, heads, length, _ = query.shape
    sizes = (batch, heads, length, value.shape[3])
    strides = (
        geometry.preserved(query)
        if _attention_keeps_layout()
        else geometry.ordered(sizes, (3, 1, 2, 0))
    )
    stats = torch.float64 if query.dtype == torch.float64 else torch.float32
    logsumexp = fresh(
        (batch, heads, length), stats, geometry.ordered((batch, heads, length), (1, 2, 0))
    )
    return fresh(sizes, query.dtype, strides), logsumexp


@cache
def _attention_keeps_layout() -> bool:
    """Whether the fused CPU kernel returns the query's layout or (batch, length, head, width)
    order, which differs between versions."""
    query = torch.zeros(1, 2, 3, 1)
    return aten._scaled_dot_product_flash_attention_for_cpu(query, query, query)[0].is_contiguous()


def arange(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    bound = bind(op, args, kwargs)
    start, end, step = bound.get("start", 0), bound["end"], bound.get("step", 1)
    whole = not any(isinstance(v, (float, torch.SymFloat)) for v in (start, end, step))
    dtype = bound["dtype"] or (torch.int64 if whole else torch.get_default_dtype())
    if dtype is torch.int64 and not whole and _arange_truncates():
        start, end, step, whole = int(start), int(end), int(step), True
        if step == 0:
            raise EagerRaises("arange with a step of 0")
    if whole:
        return fresh((-((start - end) // step),), dtype)
    start, end, step = [float(v) if type(v) is int else v for v in (start, end, step)]
    return fresh((math.ceil((end - start) / step),), dtype)


@cache
def _arange_truncates() -> bool:
    """Whether eager truncates the numbers of an int64 arange before it counts its elements: until
    torch 2.14."""
    return torch.arange(0, 1.5, 1.0, dtype=torch.int64, device="cpu").shape[0] == 1


def factory(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """zeros, full, rand, ...: sizes are the argument named `size`; the dtype is eager's own
    answer."""
    if op._schema.name == "aten::eye":
        return fresh((args[0], args[-1]), kwargs.get("dtype") or torch.get_default_dtype())
    bound = bind(op, args, kwargs)
    name = next(a.name for a in op._schema.arguments if str(a.type) == "List[int]")
    small = tuple([1] if v is bound[name] else v for v in args)
    return fresh(bound[name], dtype_of(op, small, kwargs))


def new_factory(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return fresh(args[1], kwargs.get("dtype") or args[0].dtype)


def empty_strided(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    *source, sizes, strides = args
    dtype = kwargs.get("dtype") or (source[0].dtype if source else torch.get_default_dtype())
    return fresh(sizes, dtype, strides)


def empty(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    format_ = kwargs.get("memory_format")
    last = format_ in (torch.channels_last, torch.channels_last_3d)
    strides = geometry.channels_last(args[0]) if last else None
    return fresh(args[0], kwargs.get("dtype") or torch.get_default_dtype(), strides)


def dropout(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    t, strides = args[0], geometry.preserved(args[0])
    return fresh(t.shape, t.dtype, strides), fresh(t.shape, torch.bool, strides)


def encoder_layer(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return fresh(args[0].shape, args[0].dtype)


def native(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """torch's own C++ meta kernel: for views, which must share the meta tensor's storage."""
    if args and isinstance(args[0], Tensor) and (is_symbolic(args[0]) or has_symbols(args[1:])):
        return view_symbolically(op, args[0], args[1:], kwargs)
    return op(*args, **kwargs)
