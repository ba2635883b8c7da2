"""Formulas of nodes of autograd's graph that look at sizes: torch's nodes have these as numbers,
and keep tensors that have them, so where they vary the formula is written here, with symbols.
Others are torch's own only if they are known to look at none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ingot.errors import unsupported
from ingot.torch_private import aten

_SAME = (
    "Abs Acos Add Alias Asin Atan Atan2 Baddbmm Bmm Ceil Clamp ClampMax ClampMin Clone "
    "ConstantPadNd "
    "Convolution Cos Cosh Cumsum Div Elu Embedding Erf Erfc Exp Exp2 Expm1 Flip Floor Gelu Glu "
    "Hardsigmoid "
    "Hardswish Hardtanh HuberLoss LeakyRelu Lerp LinalgVectorNorm Log Log10 Log1P Log2 LogSigmoid "
    "LogSoftmax "
    "Logsumexp MaskedFill Maximum Minimum Mish MseLoss Mul NativeBatchNorm NativeLayerNorm Neg "
    "NllLoss Norm "
    "Permute Pow Reciprocal Relu Roll Round Rsqrt Rsub Scatter Sigmoid Sign Silu Sin Sinh "
    "SmoothL1Loss Softmax "
    "Softplus Sqrt Stack Sub T Tan Tanh Threshold ToCopy Transpose Tril Triu Trunc Unbind "
    "Unsqueeze Where"
).split()
LOOK_AT_NO_SIZES = frozenset(
    [f"{name}Backward0" for name in _SAME]
    + [f"{name}Backward1" for name in "Add Clamp Div Lerp Mul Pow Scatter Sub".split()]
)
"""Nodes whose formula is the same operations whatever sizes there are, with the same numbers."""


class Kept(NamedTuple):
    """What a node keeps: numbers that may be symbols by their attribute, all else that is no
    tensor, and tensors; `inputs` are the shapes of what the node's arguments were, None where these
    have no gradient."""

    numbers: Mapping[str, Sequence[Any]]
    node: Any
    tensors: Mapping[str, Any]
    inputs: Sequence[Sequence[Any] | None]

    def sizes(self, name: str = "self") -> Sequence[Any]:
        return self.numbers[f"_saved_{name}_sym_sizes"]

    def number(self, name: str) -> Any:
        (number,) = self.numbers[f"_saved_{name}"]
        return number

    def plain(self, name: str) -> Any:
        return getattr(self.node, f"_saved_{name}")

    def dim(self, rank: int) -> int:
        return _signed(self.plain("dim")) % max(rank, 1)


def _signed(number: int) -> int:
    """torch shows negative integers of some nodes as unsigned ones."""
    return number - (1 << 64) if number >= 1 << 63 else number


Formula = Callable[[Kept, Sequence[Any]], Any]
FORMULAS: dict[str, Formula] = {}


def formula(
    *names: str,
) -> Callable[[Callable[[Kept, Tensor], Any]], Callable[[Kept, Tensor], Any]]:
    """That of nodes with one gradient that comes in, and one or several that they give;
    NotImplemented stands for torch's own."""

    def add(function: Callable[[Kept, Tensor], Any]) -> Callable[[Kept, Tensor], Any]:
        def run(kept: Kept, gradients: Sequence[Any]) -> Any:
            found = function(kept, gradients[0])
            return found if isinstance(found, tuple) or found is NotImplemented else (found,)

        FORMULAS.update(dict.fromkeys(names, run))
        return function

    return add


@formula("SumBackward0")
def _sum(kept: Kept, g: Tensor) -> Tensor:
    return g.expand(kept.sizes())


@formula("SumBackward1")
def _sum_along(kept: Kept, g: Tensor) -> Tensor:
    return _spread(
        kept, g, [_signed(d) % max(len(kept.sizes()), 1) for d in kept.plain("dim") or ()]
    )


def _spread(kept: Kept, g: Tensor, dims: Sequence[int]) -> Tensor:
    """The gradient of a sum along some dimensions, all if there are none."""
    if dims and not kept.plain("keepdim"):
        for d in sorted(dims):
            g = g.unsqueeze(d)
    return g.expand(kept.sizes())


@formula("MeanBackward0")
def _mean(kept: Kept, g: Tensor) -> Tensor:
    return g.expand(kept.sizes()) / kept.number("self_sym_numel")


@formula("MeanBackward1")
def _mean_along(kept: Kept, g: Tensor) -> Tensor:
    sizes = kept.sizes()
    dims = [_signed(d) % max(len(sizes), 1) for d in kept.plain("dim") or ()]
    count = math.prod([sizes[d] for d in dims]) if dims and sizes else kept.number("self_sym_numel")
    return _spread(kept, g, dims) / count


@formula(
    "ViewBackward0",
    "UnsafeViewBackward0",
    "ReshapeAliasBackward0",
    "SqueezeBackward0",
    "SqueezeBackward1",
)
def _view(kept: Kept, g: Tensor) -> Tensor:
    return g.reshape(kept.sizes())


@formula("ExpandBackward0")
def _expand(kept: Kept, g: Tensor) -> Tensor:
    return g.sum_to_size(kept.sizes())


@formula("SelectBackward0")
def _select(kept: Kept, g: Tensor) -> Any:
    return aten.select_backward.default(
        g, kept.sizes(), kept.dim(len(kept.sizes())), _signed(kept.plain("index"))
    )


@formula("SliceBackward0")
def _slice(kept: Kept, g: Tensor) -> Any:
    start, end = [
        n if isinstance(n, torch.SymInt) else _signed(n) for n in map(kept.number, ("start", "end"))
    ]
    step = kept.plain("step")
    return aten.slice_backward.default(
        g, kept.sizes(), kept.dim(len(kept.sizes())), start, end, step
    )


@formula("IndexBackward0")
def _index(kept: Kept, g: Tensor) -> Any:
    return g.new_zeros(kept.sizes()).index_put(kept.tensors["indices"], g, accumulate=True)


@formula("IndexSelectBackward0")
def _index_select(kept: Kept, g: Tensor) -> Any:
    return g.new_zeros(kept.sizes()).index_add(
        kept.dim(len(kept.sizes())), kept.tensors["index"], g
    )


@formula("MaxBackward0", "MinBackward0", "TopkBackward0", "SortBackward0", "SortBackward1")
def _chosen(kept: Kept, g: Tensor) -> Any:
    keeps = not hasattr(kept.node, "_saved_keepdim") or kept.plain("keepdim")
    sizes = kept.sizes()
    return aten.value_selecting_reduction_backward(
        g, kept.dim(len(sizes)), kept.tensors["indices"], sizes, keeps
    )


@formula("GatherBackward0")
def _gather(kept: Kept, g: Tensor) -> Any:
    like = kept.tensors["self"]
    return g.new_zeros(like.shape).scatter_add(kept.dim(like.dim()), kept.tensors["index"], g)


@formula("AmaxBackward0", "AminBackward0")
def _extreme_along(kept: Kept, g: Tensor) -> Tensor:
    x = kept.tensors["self"]
    dims = _dims(kept, x)
    result, g = (_with_dims(kept, t, dims) for t in (kept.tensors["result"], g))
    is_it = result == x
    return g / is_it.sum(dims, True) * is_it if dims else g


@formula("MaxBackward1", "MinBackward1")
def _extreme(kept: Kept, g: Tensor) -> Tensor:
    x, result = kept.tensors["self"], kept.tensors["result"]
    is_it = (result == x) | (x.isnan() & result.isnan())
    return g / is_it.sum() * is_it


def _dims(kept: Kept, x: Tensor) -> list[int]:
    """The dimensions of x that were reduced; none given are all."""
    given = kept.plain("dim") if x.dim() else ()
    return sorted([_signed(d) % x.dim() for d in given]) if given else [*range(x.dim())]


def _with_dims(kept: Kept, t: Tensor, dims: Sequence[int]) -> Tensor:
    """With dimensions of size 1 for those that were reduced."""
    for d in () if kept.plain("keepdim") else dims:
        t = t.unsqueeze(d)
    return t


@formula("VarBackward0")
def _var(kept: Kept, g: Tensor) -> Tensor:
    x, correction = kept.tensors["self"], kept.plain("correction")
    dims = _dims(kept, x)
    count = math.prod([x.shape[d] for d in dims])
    away = x - x.mean(dims, True) if dims else x - x
    return (
        _with_dims(kept, g, dims) * away * 2 / (count - (1 if correction is None else correction))
    )


@formula("StdBackward0")
def _std(kept: Kept, g: Tensor) -> Tensor:
    result = kept.tensors["result"]
    return _var(kept, (g / (result * 2)).masked_fill(result == 0, 0))


@formula("RepeatBackward0")
def _repeat(kept: Kept, g: Tensor) -> Tensor:
    """The sum of the pieces."""
    sizes, repeats = kept.sizes(), kept.plain("repeats")
    if 0 in repeats:
        return g.new_zeros(sizes)
    more = len(repeats) - len(sizes)  # dimensions in front
    shape = [*repeats[:more], *(n for pair in zip(repeats[more:], sizes) for n in pair)]
    of_pieces = [*range(more), *range(more, len(shape), 2)]
    return g.reshape(shape).sum(of_pieces) if repeats else g


@formula("UnfoldBackward0")
def _unfold(kept: Kept, g: Tensor) -> Any:
    sizes = kept.sizes()
    dim = _signed(kept.plain("dimension")) % max(len(sizes), 1)
    return aten.unfold_backward.default(g, sizes, dim, kept.plain("size"), kept.plain("step"))


@formula("BinaryCrossEntropyWithLogitsBackward0")
def _bce(kept: Kept, g: Tensor) -> tuple[Tensor, Tensor | None]:
    x, target, weight, of_ones = [
        kept.tensors[name] for name in ("self", "target", "weight", "pos_weight")
    ]
    wanted = len(kept.inputs) > 1 and kept.inputs[1] is not None
    if of_ones is None:
        found = [(x.sigmoid() - target) * g, -x * g if wanted else None]
    else:
        ones, log = of_ones * target, torch.nn.functional.logsigmoid
        found = [
            ((ones + 1 - target) * x.sigmoid() - ones) * g,
            (log(-x) - of_ones * log(x)) * g if wanted else None,
        ]
    count = math.prod(x.shape) if kept.plain("reduction") == 1 else 1
    of_x, of_target = [f if f is None or weight is None else f * weight for f in found]
    return of_x / count, None if of_target is None else of_target / count


@formula("DivBackward0", "MulBackward0")
def _by_number(kept: Kept, g: Tensor) -> Any:
    """Of a number of Python's; the other argument's gradient is not asked for."""
    name = type(kept.node).__name__
    by = next(
        (kept.numbers[n][0] for n in ("_saved_other", "_saved_self") if n in kept.numbers), None
    )
    if by is None or (name == "DivBackward0" and "_saved_other" not in kept.numbers):
        return NotImplemented
    return tuple(
        [
            None if sizes is None else g / by if name == "DivBackward0" else g * by
            for sizes in kept.inputs
        ]
    )


@formula("MmBackward0")
def _mm(kept: Kept, g: Tensor) -> Any:
    return _product(kept, g, "self", "mat2", 1)


@formula("AddmmBackward0")
def _addmm(kept: Kept, g: Tensor) -> Any:
    beta = kept.plain("beta")
    return (g if beta == 1 else g * beta, *_product(kept, g, "mat1", "mat2", kept.plain("alpha")))


def _product(kept: Kept, g: Tensor, left: str, right: str, alpha: Any) -> tuple[Any, Any]:
    """The gradients of both operands, where what they need was kept."""
    a, b = kept.tensors[left], kept.tensors[right]
    of_a = None if b is None else g.mm(b.t().conj())
    of_b = None if a is None else a.t().conj().mm(g)
    if alpha == 1:
        return of_a, of_b
    return None if of_a is None else of_a * alpha, None if of_b is None else of_b * alpha


@formula("CatBackward0")
def _cat(kept: Kept, g: Tensor) -> Any:
    dim = kept.dim(g.dim())
    if any(sizes is not None and len(sizes) != g.dim() for sizes in kept.inputs):
        raise unsupported(
            "backward-node", "CatBackward0 of tensors of other dimensions, which have no elements"
        )
    known = [None if sizes is None else sizes[dim] for sizes in kept.inputs]
    if known.count(None) > 1:  # of those whose gradients are not asked for it is not known, either
        raise unsupported(
            "backward-node", "CatBackward0 of several tensors whose gradients are not asked for"
        )
    rest = g.shape[dim] - sum(size for size in known if size is not None)
    begin, found = 0, list[Any]()
    for size in known:
        found.append(None if size is None else g.narrow(dim, begin, size))
        begin = begin + (rest if size is None else size)
    return tuple(found)


def _split(kept: Kept, gradients: Sequence[Any]) -> Any:
    """Of pieces, some of which may have none."""
    sizes = kept.sizes()
    dim, step = kept.dim(len(sizes)), kept.number("split_size")
    return _joined(sizes, dim, [step] * (len(gradients) - 1), gradients)


def _split_in(kept: Kept, gradients: Sequence[Any]) -> Any:
    sizes = kept.sizes()
    return _joined(sizes, kept.dim(len(sizes)), kept.plain("split_sizes")[:-1], gradients)


def _joined(
    sizes: Sequence[Any], dim: int, lengths: Sequence[Any], gradients: Sequence[Any]
) -> tuple[Tensor]:
    given = next(g for g in gradients if g is not None)
    all_lengths = [*lengths, sizes[dim] - sum(lengths)]
    parts = [
        given.new_zeros((*sizes[:dim], length, *sizes[dim + 1 :])) if g is None else g
        for g, length in zip(gradients, all_lengths, strict=True)
    ]
    return (torch.cat(parts, dim),)


FORMULAS.update(SplitBackward0=_split, SplitWithSizesBackward0=_split_in)
