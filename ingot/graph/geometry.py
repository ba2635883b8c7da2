"""Sizes and strides of fresh results: TensorIterator's and the memory formats' rules, for ints and
SymInts alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ingot.errors import unsupported
from ingot.graph.symbols import to_expr
from ingot.graph.unbacked import expected
from ingot.tables import Table

Size = Any  # int or torch.SymInt


def contiguous(sizes: Sequence[Size]) -> tuple[Size, ...]:
    """Row-major strides, as torch reports them (a dimension of size 0 counts as 1)."""
    strides: list[Size] = []
    step: Size = 1
    for d in reversed(range(len(sizes))):
        strides.append(step)
        if d:
            step = step * _at_least_one(sizes[d])
    return tuple(reversed(strides))


def _at_least_one(size: Size) -> Size:
    return 1 if size == 0 else size


LAST_FIRST: Table[bool] = Table("last_operand_first")
"""Pointwise ops whose kernels ask the last operand first how the output lies."""

# rank -> dimensions from the fastest to the slowest
_CHANNELS_LAST = {4: (1, 3, 2, 0), 5: (1, 4, 3, 2, 0)}


def channels_last(sizes: Sequence[Size]) -> tuple[Size, ...]:
    """Strides of the channels-last format of rank 4 or 5."""
    return ordered(sizes, _CHANNELS_LAST[len(sizes)])


def ordered(sizes: Sequence[Size], fastest_first: Sequence[int]) -> tuple[Size, ...]:
    """Dense strides with the dimensions laid out in the given order."""
    strides: list[Size] = [1] * len(sizes)
    step: Size = 1
    for place, d in enumerate(fastest_first, 1):
        strides[d] = step
        if place < len(sizes):
            step = step * _at_least_one(sizes[d])
    return tuple(strides)


def like_channels_last(t: Tensor) -> bool:
    """What `suggest_memory_format` asks: do the strides read as channels-last (and not also as
    contiguous)?"""
    if t.dim() not in _CHANNELS_LAST:
        return False
    sizes, strides = t.shape, t.stride()
    if surely_plain(t) or strides[1] == 0:  # in order, it reads as contiguous at the latest
        return False
    least: Size = 0
    for d in _CHANNELS_LAST[t.dim()]:
        if sizes[d] == 0 or strides[d] < least or (d == 0 and least == strides[1]):
            return False
        if sizes[d] > 1:
            least = strides[d] * sizes[d]
        else:
            least = strides[d]
    return True


def suggested(t: Tensor, sizes: Sequence[Size] | None = None) -> tuple[Size, ...]:
    """Strides for a result of `sizes` in the memory format that `t` suggests."""
    if sizes is None:
        sizes = t.shape
    if like_channels_last(t) and len(sizes) == t.dim():
        return channels_last(sizes)
    return contiguous(sizes)


def is_in_order(sizes: Sequence[Size], strides: Sequence[Size]) -> bool:
    """Whether the elements are row-major without gaps, whatever the symbols are: nothing is asked
    of them."""
    return _follows(sizes, strides, range(len(sizes) - 1, -1, -1))


def _follows(sizes: Sequence[Size], strides: Sequence[Size], fastest_first: Iterable[int]) -> bool:
    step: Size = 1
    for d in fastest_first:
        if isinstance(sizes[d], int) and sizes[d] == 1:
            continue
        if to_expr(strides[d]) is not to_expr(step):
            return False
        step = step * sizes[d]
    return True


def has_symbols(numbers: Iterable[Any]) -> bool:
    return any(isinstance(number, torch.SymInt) for number in numbers)


def has_zero(sizes: Iterable[Any]) -> bool:
    """Whether a size that is no symbol is 0."""
    return any(isinstance(size, int) and size == 0 for size in sizes)


def surely_contiguous(t: Tensor) -> bool:
    """`is_contiguous` whatever symbols stand for: nothing is asked of them."""
    if is_static(t):
        return t.is_contiguous()
    return is_in_order(t.shape, t.stride())


def _order_at_hand(sizes: Sequence[Size], strides: Sequence[Size]) -> list[int]:
    """The dimensions from the fastest to the slowest in the present call."""
    return sorted(range(len(sizes)), key=lambda d: (at_hand(strides[d]), at_hand(sizes[d])))


def is_dense(sizes: Sequence[Size], strides: Sequence[Size]) -> bool:
    """Whether the elements cover one block of memory exactly once."""
    if has_zero(sizes):
        return True
    if has_symbols(sizes):
        if _follows(sizes, strides, _order_at_hand(sizes, strides)):
            return True
    if _surely_has_gaps(sizes, strides):
        return False
    step: Size = 1
    for d in _fastest_first(sizes, strides):
        if strides[d] != step:
            return False
        step = step * sizes[d]
    return True


def _fastest_first(sizes: Sequence[Size], strides: Sequence[Size]) -> list[int]:
    """The dimensions whose size is not 1, by their strides."""
    dims = []
    for d, size in enumerate(sizes):
        if size != 1:
            dims.append(d)
    return sorted(dims, key=lambda d: strides[d])


def _surely_has_gaps(sizes: Sequence[Size], strides: Sequence[Size]) -> bool:
    """Whether the last element lies beyond as many as there are, whatever symbols stand for."""
    count, last = 1, 1 + sum(stride * (size - 1) for size, stride in zip(sizes, strides))
    for size in sizes:
        count = count * size
    return surely(count < last)


def is_one(size: Size) -> bool:
    """Whether a size is known to be 1."""
    return surely_same(size, 1)


def surely(question: Any) -> bool:
    """Whether the answer is yes whatever symbols stand for: nothing is asked of these."""
    if isinstance(question, bool):
        return question
    return question.node.proved() is True


def surely_same(a: Size, b: Size) -> bool:
    """Whether two sizes are equal whatever symbols stand for: nothing is asked of these."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return a is b or to_expr(a) is to_expr(b)


def surely_plain(t: Tensor) -> bool:
    """Whether a tensor has the strides of a contiguous one whatever symbols stand for, also where
    sizes are 1."""
    step: Size = 1
    for d in reversed(range(t.dim())):
        if not surely_same(t.stride(d), step):
            return False
        size = t.shape[d]
        if d and isinstance(size, torch.SymInt) and not surely(size != 0):
            return False
        step = step * (size or 1 if isinstance(size, int) else size)
    return True


def at_hand(size: Size) -> int:
    """The size, or what a symbol is in the present call."""
    if isinstance(size, torch.SymInt):
        return size.node.hint
    return size


def bad_dims(t: Tensor, dims: Sequence[int]) -> str:
    """Why these cannot be dimensions of a tensor, each once; "" where they can."""
    rank = max(t.dim(), 1)
    if any(not -rank <= d < rank for d in dims):
        return "a dimension out of range"
    if len({d % rank for d in dims}) < len(dims):
        return "a dimension occurs twice"
    return ""


def is_empty(t: Tensor) -> bool:
    """Whether a size is known to be 0."""
    return has_zero(t.shape)


def is_static(t: Tensor) -> bool:
    """Whether neither sizes nor strides are symbols."""
    return not has_symbols((*t.shape, *t.stride()))


def shares_elements(t: Tensor) -> bool:
    """Whether several indices may name one element of memory."""
    reach: Size = 0
    for d in _fastest_first(t.shape, t.stride()):
        if t.stride(d) <= reach:
            return True
        reach = reach + (t.shape[d] - 1) * t.stride(d)
    return False


def is_expanded(t: Tensor) -> bool:
    """Whether elements share memory along a dimension."""
    for size, stride in zip(t.shape, t.stride()):
        if isinstance(stride, int) and stride == 0 and not (isinstance(size, int) and size <= 1):
            return True
    return False


def same_sizes(a: Sequence[Size], b: Sequence[Size]) -> bool:
    """Equal sizes; those of different rank are told apart before symbols are compared, which would
    leave guards."""
    return len(a) == len(b) and all(x is y or x == y for x, y in zip(a, b))


def expect_same(a: Size, b: Size) -> bool:
    """Equal sizes, of which eager expects that they are."""
    return a is b or expected(a == b)


def expect_same_sizes(a: Sequence[Size], b: Sequence[Size]) -> bool:
    """The same for all sizes of two tensors."""
    return len(a) == len(b) and all(map(expect_same, a, b))


def broadcast(*shapes: Sequence[Size]) -> tuple[Size, ...]:
    """The broadcast of the shapes. Raises RuntimeError where they do not agree."""
    rank = max(map(len, shapes), default=0)
    result: list[Size] = [1] * rank
    for shape in shapes:
        for d, size in enumerate(shape, rank - len(shape)):
            if is_one(size) or surely_same(size, result[d]):
                continue
            if is_one(result[d]) or _is_spread(result[d], size):
                result[d] = size
            elif _is_spread(size, result[d]):
                continue
            elif not expect_same(result[d], size):
                raise RuntimeError(f"shapes {[*map(tuple, shapes)]} cannot be broadcast together")
    return tuple(result)


def _is_spread(size: Size, other: Size) -> bool:
    """Whether a size is 1 and the other is not, in the present call: what is compiled relies on the
    first. Raises Unsupported where that does not say what the size's symbols are, as kernels have
    to know where elements repeat."""
    if not (at_hand(size) == 1 != at_hand(other) and size == 1):
        return False
    if not is_one(size):
        raise unsupported("symbolic-size-value", f"a size of {size}, which is 1 here, is broadcast")
    return True


# Strides of a fresh result are asked for as if symbols were above 1: it is dense either way, and
# which way it is found out decides no more than the strides of sizes of 1.


def _differ(a: Size, b: Size) -> bool:
    """Whether two strides differ for all sizes above 1."""
    if isinstance(a, int) and isinstance(b, int):
        return a != b
    return _context_of(a, b).proved(to_expr(a), "!=", to_expr(b), above_one=True) is True


def _context_of(a: Size, b: Size) -> Any:
    """The `ShapeContext` of two numbers, one of which is a symbol."""
    return (a if isinstance(a, torch.SymInt) else b).node.context


def _same_strides(a: Sequence[Size], b: Sequence[Size]) -> bool:
    return not any(map(_differ, a, b)) and same_sizes(a, b)


def _is_less(a: Size, b: Size, sizes: Sequence[Size]) -> bool:
    """Whether a stride is less than another, of dimensions of these sizes: where one is 1 it does
    not matter."""
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    context, x, y = _context_of(a, b), to_expr(a), to_expr(b)
    for less, more, answer in ((x, y, True), (y, x, False)):
        if context.proved(less, "<", more, above_one=True) and context.proved(less, "<=", more):
            return answer
        if context.proved_less_above_one(less, more, list(map(to_expr, sizes))):
            return answer
    return bool(a < b)


def _lies_in_order(
    sizes: Sequence[Size], strides: Sequence[Size], fastest_first: Iterable[int]
) -> bool:
    step: Size = 1
    for d in fastest_first:
        size, stride = sizes[d], strides[d]
        if is_one(size):
            continue
        if not surely_same(stride, step):
            if _differ(stride, step):
                return False
            if size == 1:
                continue
            if stride != step:
                return False
        step = step * size
    return True


def _is_plain(t: Tensor) -> bool:
    if not has_symbols(t.shape):
        return t.is_contiguous()
    return is_empty(t) or _lies_in_order(t.shape, t.stride(), range(t.dim() - 1, -1, -1))


def _has_no_gaps(sizes: Sequence[Size], strides: Sequence[Size]) -> bool:
    if not has_symbols(sizes):
        return is_dense(sizes, strides)
    return has_zero(sizes) or _lies_in_order(sizes, strides, _order_at_hand(sizes, strides))


def _is_channels_last(t: Tensor) -> bool:
    return t.is_contiguous(memory_format=torch.channels_last)


def preserved(t: Tensor) -> tuple[Size, ...]:
    """Strides of `empty_like(t)`: the same if dense, else dense in the order of t's strides."""
    if _is_plain(t) or _has_no_gaps(t.shape, t.stride()):
        return t.stride()
    return elementwise(t.shape, [t])


def elementwise(
    shape: Sequence[Size], operands: Sequence[Tensor], with_number: bool = False
) -> tuple[Size, ...]:
    """Strides that TensorIterator gives a fresh output: dense, dimensions in the order of the
    operands' strides.

    `with_number`: a Python number is an operand too, so that they are not all of one shape.
    """
    if all(map(surely_plain, operands)):
        return contiguous(shape)
    if not with_number and all(same_sizes(t.shape, shape) for t in operands):
        if all(map(_is_plain, operands)):
            return contiguous(shape)
        if len(shape) == 4 and all(map(_is_channels_last, operands)):
            return channels_last(shape)
        first = operands[0].stride()
        if all(_same_strides(t.stride(), first) for t in operands) and _has_no_gaps(shape, first):
            return tuple(first)
    return ordered(shape, _dimension_order(shape, [_spread(shape, t) for t in operands]))


def _spread(shape: Sequence[Size], t: Tensor) -> list[Size]:
    """The operand's strides over the broadcast shape: 0 where it is broadcast."""
    missing = len(shape) - t.dim()
    strides = [0] * missing
    for size, stride, full in zip(t.shape, t.stride(), shape[missing:]):
        is_spread = is_one(size) and not is_one(full)
        strides.append(0 if is_spread else stride)
    return strides


def _dimension_order(shape: Sequence[Size], strides: list[list[Size]]) -> list[int]:
    """TensorIterator's insertion sort of the dimensions, fastest first; ambiguous pairs keep
    row-major order."""

    def compare(a: int, b: int) -> int:
        for s in strides:
            if (isinstance(s[a], int) and s[a] == 0) or (isinstance(s[b], int) and s[b] == 0):
                continue
            sizes = shape[a], shape[b]
            if _is_less(s[a], s[b], sizes):
                return -1
            if _is_less(s[b], s[a], sizes) or shape[a] > shape[b]:
                return 1
        return 0

    order = list(range(len(shape) - 1, -1, -1))
    for i in range(1, len(order)):
        moving = i
        for other in range(i - 1, -1, -1):
            verdict = compare(order[other], order[moving])
            if verdict > 0:
                order[other], order[moving] = order[moving], order[other]
                moving = other
            elif verdict < 0:
                break
    return order
