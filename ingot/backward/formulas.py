"""Formulas of nodes of autograd's graph, for dynamic sizes.

What a node saved and the gradients that come in go in, and its gradients come out. torch's nodes
have sizes as numbers, so a formula that looks at sizes is written here, with symbols. torch's own
formula serves only nodes that are known to look at none.
"""

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


class SavedValues(NamedTuple):
    """What a node saved.

    `numbers`, which may be symbols, and `tensors` are by their attribute; `node` has all else.
    `inputs` are the shapes of what the node's arguments were, None where these have no gradient.
    """

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

    def dims(self) -> list[int]:
        """The dimensions of `self` that are named; none where all are reduced."""
        rank = max(len(self.sizes()), 1)
        return [_signed(d) % rank for d in self.plain("dim") or ()]


def _signed(number: int) -> int:
    """torch shows negative integers of some nodes as unsigned ones."""
    if number >= 1 << 63:
        return number - (1 << 64)
    return number


Formula = Callable[[SavedValues, Sequence[Any]], Any]
FORMULAS: dict[str, Formula] = {}


def formula(
    *names: str,
) -> Callable[[Callable[[SavedValues, Tensor], Any]], Callable[[SavedValues, Tensor], Any]]:
    """Registers the formula of nodes with one gradient that comes in, and one or several that they
    give; NotImplemented stands for torch's own."""

    def add(function: Callable[[SavedValues, Tensor], Any]) -> Callable[[SavedValues, Tensor], Any]:
        def run(saved: SavedValues, gradients: Sequence[Any]) -> Any:
            result = function(saved, gradients[0])
            if isinstance(result, tuple) or result is NotImplemented:
                return result
            return (result,)

        FORMULAS.update(dict.fromkeys(names, run))
        return function

    return add


@formula("SumBackward0")
def _sum(saved: SavedValues, g: Tensor) -> Tensor:
    return g.expand(saved.sizes())


@formula("SumBackward1")
def _sum_along(saved: SavedValues, g: Tensor) -> Tensor:
    return _spread(saved, g, saved.dims())


def _spread(saved: SavedValues, g: Tensor, dims: Sequence[int]) -> Tensor:
    """The gradient of a sum along some dimensions, all if there are none."""
    if dims and not saved.plain("keepdim"):
        for d in sorted(dims):
            g = g.unsqueeze(d)
    return g.expand(saved.sizes())


@formula("MeanBackward0")
def _mean(saved: SavedValues, g: Tensor) -> Tensor:
    return g.expand(saved.sizes()) / saved.number("self_sym_numel")


@formula("MeanBackward1")
def _mean_along(saved: SavedValues, g: Tensor) -> Tensor:
    sizes, dims = saved.sizes(), saved.dims()
    if dims and sizes:
        count = math.prod([sizes[d] for d in dims])
    else:
        count = saved.number("self_sym_numel")
    return _spread(saved, g, dims) / count


@formula(
    "ViewBackward0",
    "UnsafeViewBackward0",
    "ReshapeAliasBackward0",
    "SqueezeBackward0",
    "SqueezeBackward1",
)
def _view(saved: SavedValues, g: Tensor) -> Tensor:
    return g.reshape(saved.sizes())


@formula("ExpandBackward0")
def _expand(saved: SavedValues, g: Tensor) -> Tensor:
    return g.sum_to_size(saved.sizes())


@formula("SelectBackward0")
def _select(saved: SavedValues, g: Tensor) -> Any:
    return aten.select_backward.default(
        g, saved.sizes(), saved.dim(len(saved.sizes())), _signed(saved.plain("index"))
    )


@formula("SliceBackward0")
def _slice(saved: SavedValues, g: Tensor) -> Any:
    sizes = saved.sizes()
    start, end = _position(saved.number("start")), _position(saved.number("end"))
    dim, step = saved.dim(len(sizes)), saved.plain("step")
    return aten.slice_backward.default(g, sizes, dim, start, end, step)


def _position(number: Any) -> Any:
    if isinstance(number, torch.SymInt):
        return number
    return _signed(number)


@formula("IndexBackward0")
def _index(saved: SavedValues, g: Tensor) -> Any:
    return g.new_zeros(saved.sizes()).index_put(saved.tensors["indices"], g, accumulate=True)


@formula("IndexSelectBackward0")
def _index_select(saved: SavedValues, g: Tensor) -> Any:
    return g.new_zeros(saved.sizes()).index_add(
        saved.dim(len(saved.sizes())), saved.tensors["index"], g
    )


@formula("MaxBackward0", "MinBackward0", "TopkBackward0", "SortBackward0", "SortBackward1")
def _chosen(saved: SavedValues, g: Tensor) -> Any:
    keeps = not hasattr(saved.node, "_saved_keepdim") or saved.plain("keepdim")
    sizes = saved.sizes()
    return aten.value_selecting_reduction_backward(
        g, saved.dim(len(sizes)), saved.tensors["indices"], sizes, keeps
    )


@formula("GatherBackward0")
def _gather(saved: SavedValues, g: Tensor) -> Any:
    like = saved.tensors["self"]
    return g.new_zeros(like.shape).scatter_add(saved.dim(like.dim()), saved.tensors["index"], g)


@formula("AmaxBackward0", "AminBackward0")
def _extreme_along(saved: SavedValues, g: Tensor) -> Tensor:
    x = saved.tensors["self"]
    dims = _dims(saved, x)
    result, g = _with_dims(saved, saved.tensors["result"], dims), _with_dims(saved, g, dims)
    is_it = result == x
    if dims:
        return g / is_it.sum(dims, True) * is_it
    return g


@formula("MaxBackward1", "MinBackward1")
def _extreme(saved: SavedValues, g: Tensor) -> Tensor:
    x, result = saved.tensors["self"], saved.tensors["result"]
    is_it = (result == x) | (x.isnan() & result.isnan())
    return g / is_it.sum() * is_it


def _dims(saved: SavedValues, x: Tensor) -> list[int]:
    """The dimensions of x that were reduced: all, if none are named."""
    named = ()
    if x.dim():
        named = saved.plain("dim")
    if not named:
        return [*range(x.dim())]
    return sorted([_signed(d) % x.dim() for d in named])


def _with_dims(saved: SavedValues, t: Tensor, dims: Sequence[int]) -> Tensor:
    """With dimensions of size 1 for those that were reduced."""
    if saved.plain("keepdim"):
        return t
    for d in dims:
        t = t.unsqueeze(d)
    return t


@formula("VarBackward0")
def _var(saved: SavedValues, g: Tensor) -> Tensor:
    x, correction = saved.tensors["self"], saved.plain("correction")
    dims = _dims(saved, x)
    count = math.prod([x.shape[d] for d in dims])
    if dims:
        deviation = x - x.mean(dims, True)
    else:
        deviation = x - x
    degrees = count - (1 if correction is None else correction)
    return _with_dims(saved, g, dims) * deviation * 2 / degrees


@formula("StdBackward0")
def _std(saved: SavedValues, g: Tensor) -> Tensor:
    result = saved.tensors["result"]
    return _var(saved, (g / (result * 2)).masked_fill(result == 0, 0))


@formula("RepeatBackward0")
def _repeat(saved: SavedValues, g: Tensor) -> Tensor:
    """The sum of the pieces."""
    sizes, repeats = saved.sizes(), saved.plain("repeats")
    if 0 in repeats:
        return g.new_zeros(sizes)
    more = len(repeats) - len(sizes)  # dimensions in front
    shape = [*repeats[:more], *(n for pair in zip(repeats[more:], sizes) for n in pair)]
    of_pieces = [*range(more), *range(more, len(shape), 2)]
    if repeats:
        return g.reshape(shape).sum(of_pieces)
    return g


@formula("UnfoldBackward0")
def _unfold(saved: SavedValues, g: Tensor) -> Any:
    sizes = saved.sizes()
    dim = _signed(saved.plain("dimension")) % max(len(sizes), 1)
    return aten.unfold_backward.default(g, sizes, dim, saved.plain("size"), saved.plain("step"))


@formula("BinaryCrossEntropyWithLogitsBackward0")
def _bce(saved: SavedValues, g: Tensor) -> tuple[Tensor, Tensor | None]:
    names = ("self", "target", "weight", "pos_weight")
    x, target, weight, pos_weight = [saved.tensors[name] for name in names]
    if pos_weight is None:
        of_x = (x.sigmoid() - target) * g
    else:
        ones = pos_weight * target
        of_x = ((ones + 1 - target) * x.sigmoid() - ones) * g
    of_target = None
    if len(saved.inputs) > 1 and saved.inputs[1] is not None:
        log = torch.nn.functional.logsigmoid
        if pos_weight is None:
            of_target = -x * g
        else:
            of_target = (log(-x) - pos_weight * log(x)) * g
    if weight is not None:
        of_x = of_x * weight
        if of_target is None:
            of_target = None
        else:
            of_target = of_target * weight
    count = 1
    if saved.plain("reduction") == 1:
        count = math.prod(x.shape)
    return of_x / count, None if of_target is None else of_target / count


@formula("DivBackward0", "MulBackward0")
def _by_number(saved: SavedValues, g: Tensor) -> Any:
    """Of a number of Python's; the other argument's gradient is not asked for."""
    divides = type(saved.node).__name__ == "DivBackward0"
    names = ("_saved_other",) if divides else ("_saved_other", "_saved_self")
    name = next((name for name in names if name in saved.numbers), None)
    if name is None:
        return NotImplemented
    (number,) = saved.numbers[name]
    if divides:
        of_argument = g / number
    else:
        of_argument = g * number
    return tuple([None if sizes is None else of_argument for sizes in saved.inputs])


@formula("MmBackward0")
def _mm(saved: SavedValues, g: Tensor) -> Any:
    return _product(saved, g, "self", "mat2", 1)


@formula("AddmmBackward0")
def _addmm(saved: SavedValues, g: Tensor) -> Any:
    beta = saved.plain("beta")
    return (g if beta == 1 else g * beta, *_product(saved, g, "mat1", "mat2", saved.plain("alpha")))


def _product(saved: SavedValues, g: Tensor, left: str, right: str, alpha: Any) -> tuple[Any, Any]:
    """The gradients of both operands, where what they need was saved."""
    a, b = saved.tensors[left], saved.tensors[right]
    of_a = None
    if b is not None:
        of_a = g.mm(b.t().conj())
    of_b = None
    if a is not None:
        of_b = a.t().conj().mm(g)
    if alpha == 1:
        return of_a, of_b
    return None if of_a is None else of_a * alpha, None if of_b is None else of_b * alpha


@formula("CatBackward0")
def _cat(saved: SavedValues, g: Tensor) -> Any:
    dim = saved.dim(g.dim())
    if any(sizes is not None and len(sizes) != g.dim() for sizes in saved.inputs):
        raise unsupported(
            "backward-node", "CatBackward0 of tensors of other dimensions, which have no elements"
        )
    lengths = []
    for sizes in saved.inputs:
        lengths.append(None if sizes is None else sizes[dim])
    if lengths.count(None) > 1:  # of inputs whose gradients are not asked for no size is known
        raise unsupported(
            "backward-node", "CatBackward0 of several tensors whose gradients are not asked for"
        )
    rest = g.shape[dim] - sum(length for length in lengths if length is not None)
    begin, gradients = 0, list[Any]()
    for length in lengths:
        if length is None:
            gradients.append(None)
            begin = begin + rest
        else:
            gradients.append(g.narrow(dim, begin, length))
            begin = begin + length
    return tuple(gradients)


def _split(saved: SavedValues, gradients: Sequence[Any]) -> Any:
    """Of pieces, some of which may have none."""
    sizes = saved.sizes()
    dim, step = saved.dim(len(sizes)), saved.number("split_size")
    return _joined(sizes, dim, [step] * (len(gradients) - 1), gradients)


def _split_in(saved: SavedValues, gradients: Sequence[Any]) -> Any:
    sizes = saved.sizes()
    return _joined(sizes, saved.dim(len(sizes)), saved.plain("split_sizes")[:-1], gradients)


def _joined(
    sizes: Sequence[Any], dim: int, lengths: Sequence[Any], gradients: Sequence[Any]
) -> tuple[Tensor]:
    """The pieces as one gradient, zeros where a piece has none; the last length is the rest."""
    like = next(g for g in gradients if g is not None)
    all_lengths = [*lengths, sizes[dim] - sum(lengths)]
    pieces = []
    for gradient, length in zip(gradients, all_lengths, strict=True):
        if gradient is None:
            gradient = like.new_zeros((*sizes[:dim], length, *sizes[dim + 1 :]))
        pieces.append(gradient)
    return (torch.cat(pieces, dim),)


FORMULAS.update(SplitBackward0=_split, SplitWithSizesBackward0=_split_in)
