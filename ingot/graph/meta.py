"""What each ATen op's result looks like: functions from meta tensors to meta tensors, one per family of ops.

torch's own meta functions written in Python import the machinery of torch.compile when first used, so only the C++ ones
(views, factories) are called. Dtypes are eager's by construction: an op is run once on one-element tensors of the same
dtypes and ranks and the answer is kept. An op of no known family runs once on real tensors of the real sizes
(`_probe`), where these are known numbers.

Sizes may be SymInts in every rule but the probe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils._pytree import tree_map_only

from ingot.errors import EagerRaises, Unsupported
from ingot.graph import geometry
from ingot.graph.schemas import arguments_of, bind, is_pointwise, is_random
from ingot.graph.symbolic_views import is_symbolic, view_symbolically

aten = torch.ops.aten
Rule = Callable[..., Any]
Tensor = torch.Tensor

_COUNTED_FROM_ONE = ("pivots", "LU_pivots")  # arguments that hold LAPACK's row numbers, which it does not check
_PROBE_LIMIT = 1 << 24  # elements that a real run for the sake of its result's geometry may take


def _fresh(sizes: Sequence[Any], dtype: torch.dtype, strides: Sequence[Any] | None = None) -> Tensor:
    if strides is None and any(isinstance(size, torch.SymInt) for size in sizes):
        strides = geometry.contiguous(sizes)
    if strides is None:
        return torch.empty(sizes, dtype=dtype, device="meta")
    return torch.empty_strided(tuple(sizes), tuple(strides), dtype=dtype, device="meta")


def _map(function: Callable[[Tensor], Any], tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return function(tree)
    if isinstance(tree, (list, tuple)):
        return type(tree)(_map(function, item) for item in tree)
    if isinstance(tree, dict):
        return {k: _map(function, v) for k, v in tree.items()}
    return tree


def tensors_in(tree: Any) -> list[Tensor]:
    """The tensors in nested lists, tuples and dicts, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (list, tuple)):
        return []
    return [t for item in tree for t in tensors_in(item)]


def first_line(error: Exception) -> str:
    """The message of an error of torch's without the C++ stack."""
    return str(error).split("\n", 1)[0]


# -- dtypes, from eager itself -----------------------------------------------------------------------------------------

_dtypes: dict[Any, tuple[torch.dtype, ...]] = {}


def _key(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.dtype, value.dim()
    if isinstance(value, (list, tuple)):
        return tuple(_key(v) for v in value)
    if isinstance(value, (bool, str, torch.dtype)) or value is None:
        return value
    return type(value)


def _kinds(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the dtypes of the results depend on."""
    return op, _key(args), tuple([(k, _key(v)) for k, v in kwargs.items()]), torch.get_default_dtype()


def dtypes(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], extent: int = 1) -> tuple[torch.dtype, ...]:
    """The dtypes of the op's results for arguments of these dtypes and ranks, run on tensors of size `extent`."""
    key = _kinds(op, args, kwargs)
    found = _dtypes.get(key)
    if found is None:
        result = _run_small(op, args, kwargs, extent)
        found = tuple(t.dtype for t in tensors_in(result))
        _dtypes[key] = found
    return found


def _run_small(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], extent: int) -> Any:
    def small(t: Tensor) -> Tensor:
        return torch.ones((extent,) * t.dim(), dtype=t.dtype, device="cpu")

    def concrete(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(concrete(v) for v in value)
        return 1 if isinstance(value, (torch.SymInt, torch.SymFloat)) else value

    kwargs = {k: (torch.device("cpu") if isinstance(v, torch.device) else v) for k, v in kwargs.items()}
    try:
        with _undrawn(op):
            return op(*concrete(_map(small, args)), **_map(small, kwargs))
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
        raise EagerRaises(f"{op} does not take these arguments in eager: {first_line(error)}") from error


@contextmanager
def _undrawn(op: OpOverload) -> Iterator[None]:
    """Puts back what a trial of the op takes from torch's generator."""
    if not is_random(op):
        yield
        return
    state = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(state)


def _dtype(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype:
    return dtypes(op, args, kwargs)[0]


# -- families ----------------------------------------------------------------------------------------------------------


_results: dict[Any, tuple[tuple[int, ...], torch.dtype, tuple[int, ...]]] = {}
_MOST_RESULTS = 1 << 14


def pointwise(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """The geometry of each call is kept: a program has many that are alike."""
    operands = tensors_in(args)
    if kwargs:
        operands += tensors_in(kwargs)
    if any([is_symbolic(t) for t in operands]):
        return _fresh(*_pointwise(op, args, kwargs, operands))
    key = _kinds(op, args, kwargs), *[(t.shape, t.stride()) for t in operands]
    found = _results.get(key)
    if found is None:
        if len(_results) >= _MOST_RESULTS:
            _results.clear()
        found = _results[key] = _pointwise(op, args, kwargs, operands)
    return _fresh(*found)


def _pointwise(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], operands: list[Tensor]) -> Any:
    """Sizes, dtype and strides of the result."""
    first = operands[0]
    shape = tuple(first.shape) if len(operands) == 1 else geometry.broadcast(*[t.shape for t in operands])
    with_number = len(operands) == 1 and len(args) > 1 and arguments_of(op)[1][0] == "other"
    order = operands[::-1] if op in geometry.LAST_FIRST else operands
    return shape, _dtype(op, args, kwargs), geometry.elementwise(shape, order, with_number)


def like_self(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Fills and writes at indices: a changed copy of the first argument."""
    t = args[0]
    return _fresh(t.shape, t.dtype, geometry.preserved(t))


def plain_self(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Scatters and draws: a changed copy of the first argument, contiguous."""
    return _fresh(args[0].shape, args[0].dtype)


def masked(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """masked_fill and masked_scatter: the first argument, broadcast with the mask, contiguous."""
    t, mask = args[0], args[1]
    same = geometry.same_sizes(t.shape, mask.shape)
    return _fresh(t.shape if same else geometry.broadcast(t.shape, mask.shape), t.dtype)


def roll(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    t, dims = args[0], bind(op, args, kwargs)["dims"]
    return _fresh(t.shape, t.dtype, geometry.suggested(t) if dims else None)


def contiguous_exponent(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """A number to the power of a tensor."""
    return _fresh(args[1].shape, _dtype(op, args, kwargs))


def power_of_two(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """ldexp: the product with a power of 2, which is contiguous where it is of the default dtype."""
    x, exponent = args
    if not (exponent.is_floating_point() or exponent.is_complex()) or exponent.dtype is torch.get_default_dtype():
        exponent = _fresh(exponent.shape, exponent.dtype)
    return pointwise(op, (x, exponent), kwargs)


def contiguous_self(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    t = args[0]
    return _fresh(t.shape, _dtype(op, args, kwargs))


def angle(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return (contiguous_self if args[0].is_complex() else pointwise)(op, args, kwargs)


def formatted_copy(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """clone, _to_copy and the *_like factories: dtype and memory_format keywords over the first argument's geometry."""
    t, format_ = args[0], kwargs.get("memory_format")
    dtype = kwargs.get("dtype") or t.dtype
    if format_ in (None, torch.preserve_format):
        return _fresh(t.shape, dtype, geometry.preserved(t))
    if format_ is torch.contiguous_format:
        return _fresh(t.shape, dtype)
    return _fresh(t.shape, dtype, geometry.channels_last(t.shape))


def exact_self(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """`copy`: the first argument's geometry, gaps between the elements included, unless elements share memory."""
    t = args[0]
    return _fresh(t.shape, t.dtype, geometry.preserved(t) if geometry.is_expanded(t) else t.stride())


def _dims(dim: Any, rank: int) -> set[int]:
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return set(range(rank))
    listed, span = [dim] if isinstance(dim, int) else dim, max(rank, 1)
    dims = {d % span for d in listed if -span <= d < span}
    if len(dims) < len(listed):
        raise EagerRaises(f"dimensions {list(listed)} of a tensor of rank {rank}: out of range, or one twice")
    return dims


def reduction(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    bound = bind(op, args, kwargs)
    t = args[0]
    dims, keep = _dims(bound.get("dim"), t.dim()), bound.get("keepdim", False)
    if geometry.is_empty(t) and not (is_symbolic(t) and _tried_out(op, args, kwargs) is not None):
        return _probe(op, args, kwargs)  # as above, whether this raises depends on the op, and on no symbol
    sizes = [1 if d in dims else s for d, s in enumerate(t.shape) if keep or d not in dims]
    results = tuple(_fresh(sizes, dtype) for dtype in dtypes(op, args, kwargs, 2))  # one element has no variance
    return results[0] if len(results) == 1 else results


def matmul(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """mm, bmm, mv, dot and their add* forms: the last two matrices decide."""
    left, right = [a for a in args if isinstance(a, Tensor)][-2:]
    if not geometry.expect_same(left.shape[-1], right.shape[max(right.dim() - 2, 0)]):
        raise EagerRaises(f"{op}: shapes {tuple(left.shape)} and {tuple(right.shape)} do not multiply")
    sizes = (*left.shape[:-1], *([right.shape[-1]] if right.dim() > 1 else []))
    return _fresh(sizes, _dtype(op, args, kwargs))


def linear(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    x, weight = args[0], args[1]
    return _fresh((*x.shape[:-1], weight.shape[0]), x.dtype)


def layer_norm(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    t, normalized = args[0], len(args[1])
    stats = [*t.shape[: t.dim() - normalized], *[1] * normalized]
    small = (t, [1] * normalized, *args[2:])
    first, *rest = dtypes(op, small, kwargs)
    return (_fresh(t.shape, first), *(_fresh(stats, dtype) for dtype in rest))


def batch_norm(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    t = args[0]
    bound = bind(op, args, kwargs)
    training = bound.get("training", bound.get("train", False))
    first, *rest = dtypes(op, args, kwargs)
    stats = (t.shape[1],) if training else (0,)
    return (_fresh(t.shape, first, geometry.suggested(t)), *(_fresh(stats, dtype) for dtype in rest))


def group_norm(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    t, groups = args[0], args[6]
    small = (t, args[1], args[2], 1, 1, 1, 1, args[7])
    first, *rest = dtypes(op, small, {})
    stats = (t.shape[0], groups)
    return (_fresh(t.shape, first, geometry.suggested(t)), *(_fresh(stats, dtype) for dtype in rest))


def convolution(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    x, weight, _, stride, padding, dilation, transposed, output_padding, groups = args
    if geometry.is_empty(x) or geometry.is_empty(weight):
        return _probe(op, args, kwargs)
    if x.shape[1] != (weight.shape[0] if transposed else weight.shape[1] * groups):
        raise EagerRaises(f"{op}: an input {tuple(x.shape)} does not fit a weight {tuple(weight.shape)}")
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
    if rank == 1:  # eager computes a contiguous one as an image of height 1, whose strides may happen to be such
        x = (x if x.is_contiguous() else _fresh(x.shape, x.dtype)).unsqueeze(2)
        wide = [[1, *stride], [0, *padding], [1, *dilation], transposed, [0, *output_padding], groups]
        if _convolved_channels_last(x, weight.unsqueeze(2), wide):
            strides = geometry.channels_last((*sizes[:2], 1, *sizes[2:]))
            return _fresh(sizes, x.dtype, (*strides[:2], strides[3]))
        return _fresh(sizes, x.dtype)
    last = _convolved_channels_last(x, weight, [stride, padding, dilation, transposed, output_padding, groups])
    return _fresh(sizes, x.dtype, geometry.channels_last(sizes) if last else None)


def _convolved_channels_last(x: Tensor, weight: Tensor, settings: list[Any]) -> bool:
    """Whether eager's convolution gives its result channels last: where an operand lies so, and the kernel that it
    chooses for these sizes knows of that layout."""
    likely = geometry.like_channels_last(x) or geometry.like_channels_last(weight)
    if not likely or any(isinstance(n, torch.SymInt) for t in (x, weight) for n in (*t.shape, *t.stride())):
        return likely
    real = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cpu") for t in (x, weight)]
    backend = torch._C._select_conv_backend(*real, None, *settings, None)
    chosen: Any = torch._C._conv_determine_backend_memory_format  # whose stub knows one argument of its three
    return chosen(*real, backend) in (torch.channels_last, torch.channels_last_3d)


def pool(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Max and average pooling with a window, in any rank."""
    bound = bind(op, args, kwargs)
    x = args[0]
    if geometry.is_empty(x):
        return _probe(op, args, kwargs)
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
    values = _fresh(sizes, x.dtype, strides)
    return (values, _fresh(sizes, torch.int64, strides)) if len(op._schema.returns) == 2 else values


def adaptive_max_pool(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    x, target = args[0], args[1]
    sizes = (*x.shape[: x.dim() - len(target)], *target)
    strides = geometry.suggested(x, sizes) if len(target) == 2 else None
    return _fresh(sizes, x.dtype, strides), _fresh(sizes, torch.int64, strides)


def adaptive_pool(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    x, target = args[0], args[1]
    sizes = (*x.shape[: x.dim() - len(target)], *target)
    if op is aten._adaptive_avg_pool3d.default:
        return _fresh(sizes, x.dtype)
    return _fresh(sizes, x.dtype, geometry.suggested(x, sizes))


def embedding(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    weight, indices = args[0], args[1]
    return _fresh((*indices.shape, *weight.shape[1:]), weight.dtype)


def gather(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return _fresh(args[2].shape, args[0].dtype)


def index_select(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    t, dim, index = args
    sizes = list(t.shape)
    if sizes:
        sizes[dim % t.dim()] = index.numel()
    return _fresh(sizes, t.dtype)


def index(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Advanced indexing by integer tensors: the indexed dimensions become the indices' broadcast shape."""
    t, indices = args[0], list(args[1])
    if any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
        raise Unsupported("indexing with a mask: the size of the result depends on the data")
    indices += [None] * (t.dim() - len(indices))
    used = [d for d, i in enumerate(indices) if i is not None]
    shape = geometry.broadcast(*[indices[d].shape for d in used])
    rest = [t.shape[d] for d in range(t.dim()) if d not in used]
    adjacent = used == list(range(used[0], used[-1] + 1))
    before = used[0] if adjacent else 0
    sizes = (*rest[:before], *shape, *rest[before:])
    plain = (not rest or t.is_contiguous()) and all(indices[d].is_contiguous() for d in used)
    return _fresh(sizes, t.dtype) if plain else _probe(op, args, kwargs)


def _is_legacy_empty(t: Tensor) -> bool:
    """Whether cat takes it whatever the others' rank is: the tensor of one dimension without elements."""
    return t.dim() == 1 and isinstance(t.shape[0], int) and t.shape[0] == 0


def cat(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    tensors = [t for t in args[0] if not _is_legacy_empty(t)]
    if not tensors:
        return _fresh((0,), _dtype(op, args, kwargs))
    first = tensors[0]
    ranked = [t.new_empty((0,) * first.dim()) if _is_legacy_empty(t) else t for t in args[0]]
    dtype = _dtype(op, (ranked, *args[1:]), kwargs)
    dim = bind(op, args, kwargs)["dim"] % first.dim()
    sizes = list(first.shape)
    for t in tensors[1:]:
        pairs = [pair for d, pair in enumerate(zip(t.shape, first.shape)) if d != dim]
        if t.dim() != first.dim() or not all(geometry.expect_same(*pair) for pair in pairs):
            raise EagerRaises("cat of tensors whose sizes differ outside the joined dimension")
        sizes[dim] = sizes[dim] + t.shape[dim]
    last = all(geometry.like_channels_last(t) for t in tensors)
    return _fresh(sizes, dtype, geometry.channels_last(sizes) if last else None)


def stack(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    tensors = args[0]
    sizes = list(tensors[0].shape)
    if not all(geometry.expect_same_sizes(t.shape, tensors[0].shape) for t in tensors):
        raise EagerRaises("stack of tensors of different sizes")
    dim = bind(op, args, kwargs)["dim"] % (len(sizes) + 1)
    strides = None
    if dim < len(sizes) and all(geometry.like_channels_last(t) for t in tensors):  # a cat along dim, taken apart
        joined = geometry.channels_last([s * len(tensors) if d == dim else s for d, s in enumerate(sizes)])
        strides = (*joined[:dim], joined[dim] * sizes[dim], *joined[dim:])
    sizes.insert(dim, len(tensors))
    return _fresh(sizes, _dtype(op, args, kwargs), strides)


def pad(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    t, amounts = args[0], args[1]
    sizes = list(t.shape)
    for i in range(len(amounts) // 2):
        sizes[-1 - i] = sizes[-1 - i] + amounts[2 * i] + amounts[2 * i + 1]
    if not geometry.surely_contiguous(t) and all(n <= 0 for n in amounts):  # a copy of a part
        return _fresh(sizes, t.dtype, geometry.preserved(t.as_strided(sizes, t.stride())))
    return _fresh(sizes, t.dtype, geometry.suggested(t, sizes))


def repeat(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    t, times = args
    sizes = [1] * (len(times) - t.dim()) + list(t.shape)
    return _fresh([s * n for s, n in zip(sizes, times)], t.dtype)


def resample(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """upsample_*: spatial sizes given, or by scale factors."""
    t, bound = args[0], bind(op, args, kwargs)
    if geometry.is_empty(t):
        return _probe(op, args, kwargs)
    spatial = bound.get("output_size")
    if spatial is None:
        spatial = [math.floor(s * f) for s, f in zip(t.shape[2:], bound["scale_factors"])]
    sizes = (*t.shape[:2], *spatial)
    return _fresh(sizes, t.dtype, geometry.suggested(t, sizes))


def attention_cpu(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    query, value = args[0], args[2]
    batch, heads, length, _ = query.shape
    sizes = (batch, heads, length, value.shape[3])
    strides = geometry.preserved(query) if _attention_keeps_layout() else geometry.ordered(sizes, (3, 1, 2, 0))
    stats = torch.float64 if query.dtype == torch.float64 else torch.float32
    logsumexp = _fresh((batch, heads, length), stats, geometry.ordered((batch, heads, length), (1, 2, 0)))
    return _fresh(sizes, query.dtype, strides), logsumexp


@cache
def _attention_keeps_layout() -> bool:
    """Whether the fused CPU kernel returns the query's layout or (batch, length, head, width) order, which differs
    between versions."""
    query = torch.zeros(1, 2, 3, 1)
    return aten._scaled_dot_product_flash_attention_for_cpu(query, query, query)[0].is_contiguous()


def arange(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    bound = bind(op, args, kwargs)
    start, end, step = bound.get("start", 0), bound["end"], bound.get("step", 1)
    whole = not any(isinstance(v, (float, torch.SymFloat)) for v in (start, end, step))
    dtype = bound["dtype"] or (torch.int64 if whole else torch.get_default_dtype())
    if dtype is torch.int64 and not whole:  # eager truncates the numbers before it counts
        start, end, step, whole = int(start), int(end), int(step), True
        if step == 0:
            raise EagerRaises("arange with a step of 0")
    count = -((start - end) // step) if whole else math.ceil((end - start) / step)
    return _fresh((count,), dtype)


def factory(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """zeros, full, rand, ...: sizes are the argument named `size`; the dtype is eager's own answer."""
    if op._schema.name == "aten::eye":
        return _fresh((args[0], args[-1]), kwargs.get("dtype") or torch.get_default_dtype())
    bound = bind(op, args, kwargs)
    name = next(a.name for a in op._schema.arguments if str(a.type) == "List[int]")
    small = tuple([1] if v is bound[name] else v for v in args)
    return _fresh(bound[name], _dtype(op, small, kwargs))


def new_factory(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return _fresh(args[1], kwargs.get("dtype") or args[0].dtype)


def empty_strided(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    *source, sizes, strides = args
    dtype = kwargs.get("dtype") or (source[0].dtype if source else torch.get_default_dtype())
    return _fresh(sizes, dtype, strides)


def empty(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    format_ = kwargs.get("memory_format")
    last = format_ in (torch.channels_last, torch.channels_last_3d)
    strides = geometry.channels_last(args[0]) if last else None
    return _fresh(args[0], kwargs.get("dtype") or torch.get_default_dtype(), strides)


def dropout(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    t, strides = args[0], geometry.preserved(args[0])
    return _fresh(t.shape, t.dtype, strides), _fresh(t.shape, torch.bool, strides)


def encoder_layer(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return _fresh(args[0].shape, args[0].dtype)


def _probe(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The geometry of what the op gives when it is run for real, on made-up values."""
    if any(isinstance(s, torch.SymInt) for t in tensors_in((args, kwargs)) for s in (*t.shape, *t.stride())):
        raise Unsupported(f"{op} has no rule for symbolic sizes")
    args, kwargs = tree_map_only(torch.SymInt, int, (args, kwargs))  # which the geometry may depend on: guarded
    return _map(lambda t: _fresh(t.shape, t.dtype, t.stride()), _tried_out(op, args, kwargs))


def _tried_out(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What the op gives for made-up values; symbolic sizes are what they are in the present call."""
    tensors, returns = tensors_in((args, kwargs)), [str(result.type) for result in op._schema.returns]
    if tensors and returns and not any("Tensor" in result for result in returns):
        _data_dependent(op, args, kwargs)
    if op._schema.name.startswith("aten::_nested_"):
        raise Unsupported(f"{op} has to do with nested tensors", skip=True)
    if sum(math.prod(_at_hand(t.shape)) for t in tensors) > _PROBE_LIMIT:
        raise Unsupported(f"{op} has no shape rule and is too large to be tried out")

    bound = bind(op, args, kwargs)
    ones = [t for name, t in bound.items() if name in _COUNTED_FROM_ONE]

    def filled(t: Tensor) -> Tensor:
        real = torch.empty_strided(_at_hand(t.shape), _at_hand(t.stride()), dtype=t.dtype, device="cpu")
        return real.fill_(1 if t.is_floating_point() or t.is_complex() or any(t is one for one in ones) else 0)

    on_cpu = {k: (torch.device("cpu") if isinstance(v, torch.device) else v) for k, v in kwargs.items()}
    try:
        with _undrawn(op):
            return op(*_at_hand(_map(filled, args)), **_map(filled, on_cpu))
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
        raise Unsupported(f"{op} cannot be tried out on made-up values: {first_line(error)}") from error


def _at_hand(tree: Any) -> Any:
    """Nested lists and tuples with symbolic ints as what they are in the present call."""
    if isinstance(tree, (list, tuple)):
        return [_at_hand(item) for item in tree]
    return geometry.at_hand(tree)


_KNOWN_TO_CPUS: dict[Rule, Rule] = {}  # what a CPU may try out: the rule that does without


def _unless_known(rule: Rule) -> Rule:
    """A rule for symbolic sizes, and for GPUs: on a CPU, where all are known, a real run tells more of the layout."""

    @wraps(rule)
    def chosen(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        symbolic = _has_symbols(args) or any(map(is_symbolic, tensors_in((args, kwargs))))
        return (rule if symbolic else _probe)(op, args, kwargs)

    _KNOWN_TO_CPUS[chosen] = rule
    return chosen


# What the results of a backward op are gradients of: tensors, or sizes, by the names of the arguments.
_DIFFERENTIATED = {
    "convolution_backward": ("input", "weight", "bias_sizes"),
    "native_group_norm_backward": ("input", "C", "C"),
    "_scaled_dot_product_flash_attention_for_cpu_backward": ("query", "key", "value"),
}
_DIFFERENTIATED_ALONE = ("self", "input", "self_or_result", "input_size", "input_sizes")


@_unless_known
def gradients(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Backward ops: each result has the sizes of what it is the gradient of, and lies as a real run says."""
    bound, name = bind(op, args, kwargs), op._schema.name.partition("::")[2]
    of = _DIFFERENTIATED.get(name) or [a for a in _DIFFERENTIATED_ALONE if a in bound][:1]
    results = _tried_out(op, args, kwargs)
    listed = [results] if isinstance(results, Tensor) else results
    if len(of) != len(listed):
        raise Unsupported(f"{op} has no rule for symbolic sizes")
    made = [None if t is None else _sized_as(op, bound[a], t) for a, t in zip(of, listed)]
    return made[0] if isinstance(results, Tensor) else tuple(made)


def _sized_as(op: OpOverload, like: Any, tried: Tensor) -> Tensor:
    """A tensor of the sizes of `like`, laid out as `tried` is, which it is in the present call."""
    sizes = like.shape if isinstance(like, Tensor) else [like] if isinstance(like, (int, torch.SymInt)) else like
    if _at_hand(sizes) != list(tried.shape) or not geometry.is_dense(tried.shape, tried.stride()):
        raise Unsupported(f"{op} has no rule for symbolic sizes")
    fastest_first = sorted(reversed(range(tried.dim())), key=tried.stride)
    return _fresh(sizes, tried.dtype, geometry.ordered(sizes, fastest_first))


def _like(t: Tensor, wanted: Any = True) -> Tensor | None:
    return _fresh(t.shape, t.dtype) if wanted else None


@_unless_known
def softmax_backward(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return _fresh(args[0].shape, args[3])


def layer_norm_backward(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor | None, ...]:
    return tuple([_like(t, t is not None and wanted) for t, wanted in zip((args[1], *args[5:7]), args[7])])


@_unless_known
def batch_norm_backward(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor | None, ...]:
    x, weight, mask = args[1], args[2], args[9]
    slopes = _fresh((x.shape[1],), x.dtype if weight is None else weight.dtype)
    first = _fresh(x.shape, x.dtype, geometry.suggested(x))
    return tuple([t if wanted else None for t, wanted in zip((first, slopes, slopes.clone()), mask)])


@_unless_known
def sorted_(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What is in other places along a dimension, and where it was; of topk, so many elements of it."""
    bound = bind(op, args, kwargs)
    sizes = list(args[0].shape)
    if "k" in bound and sizes:
        if bound["k"] > sizes[bound["dim"] % len(sizes)]:
            raise EagerRaises("topk of fewer elements")
        sizes[bound["dim"] % len(sizes)] = bound["k"]
    return tuple([_sized_as(op, sizes, t) for t in _tried_out(op, args, kwargs)])


@_unless_known
def folded_pad(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Padding with what is there."""
    x, sizes, amounts = args[0], list(args[0].shape), args[1]
    for d, (before, after) in enumerate(zip(amounts[::2], amounts[1::2])):
        if "reflection" in op._schema.name and (before >= sizes[-1 - d] or after >= sizes[-1 - d]):
            raise EagerRaises("a reflection of more than there is")
        sizes[-1 - d] = x.shape[-1 - d] + before + after
        if sizes[-1 - d] < 1:
            raise EagerRaises("padding to less than nothing")
    return _sized_as(op, sizes, _tried_out(op, args, kwargs))


@_unless_known
def glu(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    x, sizes = args[0], list(args[0].shape)
    dim = bind(op, args, kwargs)["dim"] % x.dim()
    if sizes[dim] % 2 != 0:
        raise EagerRaises("halves of an odd size")
    sizes[dim] = sizes[dim] // 2
    return _sized_as(op, sizes, _tried_out(op, args, kwargs))


@_unless_known
def rnn_layer(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    """oneDNN does not say how large its workspace is: a window of one byte of it stands for it."""
    x, hidden, cell = args[0], args[5], args[6]
    sizes = [(*x.shape[:2], args[10]), hidden.shape, cell.shape]
    *results, workspace = _tried_out(op, args, kwargs)
    return *[_sized_as(op, s, t) for s, t in zip(sizes, results)], _fresh((1,), workspace.dtype)


@_unless_known
def rnn_layer_backward(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    return tuple([_fresh(t.shape, t.dtype) for t in args[:7]])


@_unless_known
def embedding_backward(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return _fresh((args[2], args[0].shape[-1]), args[0].dtype)


@_unless_known
def loss(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Of an input and a target of its shape."""
    sizes = geometry.broadcast(args[0].shape, args[1].shape) if bind(op, args, kwargs)["reduction"] == 0 else ()
    return _fresh(sizes, args[0].dtype)


@_unless_known
def loss_backward(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return _fresh(args[1].shape, args[1].dtype)


@_unless_known
def nll_loss(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    x, target, reduction = args[0], args[1], args[3]
    return _fresh(target.shape if reduction == 0 and x.dim() > 1 else (), x.dtype), _fresh((), x.dtype)


def _has_symbols(args: Any) -> bool:
    if isinstance(args, (list, tuple)):
        return any(map(_has_symbols, args))
    return isinstance(args, torch.SymInt)


def rms_norm(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor]:
    t, normalized = args[0], len(args[1])
    stats = [*t.shape[: t.dim() - normalized], *[1] * normalized]
    return _fresh(t.shape, t.dtype), _fresh(stats, _accumulated(t.dtype))


def rms_norm_backward(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor | None, ...]:
    return tuple([_like(t, t is not None and wanted) for t, wanted in zip((args[1], args[4]), args[5])])


def cudnn_batch_norm(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    x, training = args[0], args[5]
    stats = [_fresh((x.shape[1],) if training else (0,), _accumulated(x.dtype)) for _ in range(2)]
    return _fresh(x.shape, x.dtype, geometry.suggested(x)), *stats, _fresh((0,), torch.uint8)


def cudnn_batch_norm_backward(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    x, weight = args[0], args[2]
    slopes = [_fresh((x.shape[1],), weight.dtype) for _ in range(2)]
    return _fresh(x.shape, x.dtype, geometry.suggested(x)), *slopes


def _with_wide_statistics(rule: Rule) -> Rule:
    """The rule of a norm whose mean and deviation are kept as they were accumulated."""

    @wraps(rule)
    def widened(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
        first, *stats = rule(op, args, kwargs)
        return first, *(_fresh(t.shape, _accumulated(args[0].dtype)) for t in stats)

    return widened


def _accumulated(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def native(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """torch's own C++ meta kernel: for views, which must share the meta tensor's storage."""
    if args and isinstance(args[0], Tensor) and (is_symbolic(args[0]) or _has_symbols(args[1:])):
        return view_symbolically(op, args[0], args[1:], kwargs)
    return op(*args, **kwargs)


def _torchs_own(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What torch predicts of an op that cannot be tried out here."""
    try:
        return op(*args, **kwargs)
    except NotImplementedError as error:
        raise Unsupported(f"{op} has no shape rule") from error


_FAMILIES: dict[Rule, str] = {
    like_self: """fill zero hardtanh index_put _unsafe_index_put index_fill put flip uniform normal_functional random
        exponential cauchy geometric log_normal""",
    plain_self: "scatter scatter_add scatter_reduce index_add index_copy index_reduce bernoulli",
    masked: "masked_fill masked_scatter",
    roll: "roll",
    exact_self: "copy as_strided_scatter select_scatter slice_scatter diagonal_scatter",
    contiguous_self: "mvlgamma _softmax _log_softmax cumsum cumprod logcumsumexp tril triu _safe_softmax",
    formatted_copy: "clone _to_copy empty_like zeros_like ones_like full_like rand_like randn_like randint_like",
    reduction: """sum mean prod amax amin any all argmax argmin var std var_mean std_mean logsumexp max min nansum
        linalg_vector_norm norm aminmax count_nonzero""",
    matmul: "mm addmm bmm baddbmm mv addmv dot",
    linear: "linear",
    layer_norm: "native_layer_norm",
    batch_norm: "native_batch_norm _native_batch_norm_legit_no_training",
    group_norm: "native_group_norm",
    convolution: "convolution",
    pool: """max_pool2d_with_indices max_pool3d_with_indices avg_pool2d avg_pool3d""",
    adaptive_max_pool: "adaptive_max_pool2d adaptive_max_pool3d",
    adaptive_pool: "_adaptive_avg_pool2d _adaptive_avg_pool3d",
    embedding: "embedding",
    gather: "gather",
    index_select: "index_select",
    index: "index _unsafe_index",
    cat: "cat",
    stack: "stack",
    pad: "constant_pad_nd",
    repeat: "repeat",
    resample: "upsample_nearest2d upsample_bilinear2d upsample_nearest1d upsample_bicubic2d _upsample_nearest_exact2d",
    attention_cpu: "_scaled_dot_product_flash_attention_for_cpu",
    arange: "arange",
    factory: "eye zeros ones full rand randn randint",
    new_factory: "new_empty new_zeros new_ones new_full select_backward slice_backward diagonal_backward",
    gradients: " ".join(_DIFFERENTIATED),
    softmax_backward: "_softmax_backward_data _log_softmax_backward_data",
    layer_norm_backward: "native_layer_norm_backward",
    batch_norm_backward: "native_batch_norm_backward",
    embedding_backward: "embedding_dense_backward",
    rnn_layer: "mkldnn_rnn_layer",
    rnn_layer_backward: "mkldnn_rnn_layer_backward",
    sorted_: "sort topk",
    folded_pad: """reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
        replication_pad3d""",
    glu: "glu",
    loss: "mse_loss smooth_l1_loss huber_loss binary_cross_entropy_with_logits",
    loss_backward: """mse_loss_backward smooth_l1_loss_backward huber_loss_backward nll_loss_backward
        nll_loss2d_backward _ctc_loss_backward""",
    nll_loss: "nll_loss_forward nll_loss2d_forward",
    empty_strided: "empty_strided new_empty_strided",
    empty: "empty",
    dropout: "native_dropout",
    encoder_layer: "_transformer_encoder_layer_fwd",
    pointwise: "floor_divide hardswish hardsigmoid complex polar _conj_physical",
    native: "_unsafe_view _reshape_alias lift_fresh view_as_real view_as_complex scalar_tensor is_same_size",
}
_RULES: dict[str, Rule] = {name: rule for rule, names in _FAMILIES.items() for name in names.split()}
_ON_GPUS: dict[str, Rule] = {  # where these are unlike a CPU's
    "native_layer_norm": _with_wide_statistics(layer_norm),
    "native_batch_norm": _with_wide_statistics(batch_norm),
    "cudnn_batch_norm": cudnn_batch_norm,
    "cudnn_batch_norm_backward": cudnn_batch_norm_backward,
    "_fused_rms_norm": rms_norm,
    "_fused_rms_norm_backward": rms_norm_backward,
    **{name: _KNOWN_TO_CPUS[rule] for name, rule in _RULES.items() if rule in _KNOWN_TO_CPUS},
}
_OF_OVERLOADS: dict[OpOverload, Rule] = {  # that are unlike the others of their name
    aten.unsafe_split.Tensor: lambda op, args, kwargs: native(aten.split.Tensor, args, kwargs),
    aten.unsafe_split_with_sizes.default: lambda op, args, kwargs: native(aten.split_with_sizes.default, args, kwargs),
    aten.angle.default: angle,
    **dict.fromkeys((aten.max.other, aten.min.other), pointwise),
    aten.pow.Scalar: contiguous_exponent,
    aten.ldexp.Tensor: power_of_two,
    aten.bernoulli.Tensor: like_self,
}

BY_LOOK = frozenset(
    (pointwise, contiguous_exponent, like_self, plain_self, masked, exact_self, contiguous_self, formatted_copy,
     reduction, matmul, linear, cat, stack, embedding, index_select, gather, repeat, softmax_backward)
)  # fmt: skip
"""The rules to which only the geometry of tensors and the other arguments matter."""


@cache
def rule_for(op: OpOverload, device: str = "cpu") -> Rule:
    """The rule for a functional op or a view, on a device of this type: by family, else the pointwise tag, else a real
    run."""
    namespace, name = op._schema.name.split("::")
    if op.is_view:
        return native
    if torch.Tag.data_dependent_output in op.tags:
        return _data_dependent
    known = _OF_OVERLOADS.get(op)
    if known is not None:
        return known
    if namespace == "aten" and device != "cpu" and name in _ON_GPUS:
        return _ON_GPUS[name]
    if namespace == "aten" and name in _RULES:
        return _RULES[name]
    if torch.Tag.dynamic_output_shape in op.tags:
        return _data_dependent
    if is_pointwise(op):
        return pointwise
    if not _runs_on_cpu(op):
        return _torchs_own
    return gradients if name.endswith("_backward") else _probe


def _runs_on_cpu(op: OpOverload) -> bool:
    """Whether the op can be tried out. What only GPUs have, such as their attention, has a shape rule of torch's."""
    keys = ("CPU", "CompositeImplicitAutograd", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return any(has_kernel(op.name(), key) for key in keys) or not has_kernel(op.name(), "CUDA")


def _data_dependent(op: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    what = "a Python value of" if op is aten._local_scalar_dense.default else f"the result of {op}, which depends on"
    raise Unsupported(f"{what} a tensor's data is asked for")
