"""What a lowered ATen tensor is: a function from index to scalar, which may or may not be in memory
yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import torch

from ingot.loops import ops
from ingot.loops.expr import (
    ONE,
    ZERO,
    Expr,
    Symbol,
    as_expr,
    known_less,
    known_less_equal,
    loop_symbol,
    product,
)
from ingot.loops.ir import Origin, View
from ingot.loops.spaces import contiguous_strides

Index = tuple[Expr, ...]
IndexMap = Callable[[Index], Index]


NOWHERE = Origin(())


class Spec(NamedTuple):
    """What the fake predicts of a tensor: the layout is eager's, `strides` and `offset` in
    elements.

    The device of a spec that lowering makes itself is never looked at.
    """

    sizes: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    dtype: torch.dtype
    device: torch.device = torch.device("cpu")
    offset: Expr = ZERO


def contiguous(sizes: Sequence[Expr], dtype: torch.dtype) -> Spec:
    """The spec of a row-major tensor."""
    return Spec(tuple(sizes), contiguous_strides(sizes), dtype)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which bodies hold values of `dtype`."""
    if dtype in ops.HALVES:
        return torch.float32
    return dtype


def widen(value: int) -> int:
    """A stored value as one to compute with."""
    return ops.to(value, compute_dtype(ops.dtype_of(value)))


def rounded(value: int, dtype: torch.dtype) -> int:
    """`value` as eager would hold it in a tensor of `dtype`, still to be computed with."""
    return widen(ops.to(value, dtype))


def rounded_number(number: bool | int | float, dtype: torch.dtype) -> bool | int | float:
    """A Python number as a tensor of `dtype` would hold it, where that is a half; other types round
    by themselves."""
    if dtype in ops.HALVES:
        return torch.tensor(number, dtype=dtype, device="cpu").item()
    return number


class Home(NamedTuple):
    """A place in memory: a buffer, and the element number of each index in it."""

    buffer: str
    address: Callable[[Index], Expr]


class Margins(NamedTuple):
    """How a padded tensor is made: `inner` with so many elements of `number` before and after each
    dimension."""

    inner: LoopTensor
    before: Sequence[int]
    after: Sequence[int]
    number: float | int | bool


class LoopTensor:
    """A tensor that is computed where it is used, until `home` says where it is in memory.

    `compute` gives the value at an index, in the compute dtype. `cost` counts the scalar ops it
    takes, `heavy` says that one of them is worth more than a trip through cache, `joins` that it
    reads more memory than its result would take. `strides` is the layout that eager gives it.
    `finishes` says that it completes the elements of a contraction, which costs least where they
    are made: where a part of it is needed in memory, all of it is put there. `margins` says of what
    a padded tensor is made.
    """

    def __init__(
        self,
        sizes: Sequence[Expr],
        strides: Sequence[Expr],
        dtype: torch.dtype,
        compute: Callable[[Index], int],
        *,
        cost: int = 0,
        heavy: bool = False,
        joins: bool = False,
        origin: Origin = NOWHERE,
    ) -> None:
        self.sizes = tuple(sizes)
        self.strides = tuple(strides)
        self.dtype = dtype
        self.compute = compute
        self.cost = cost
        self.heavy = heavy
        self.joins = joins
        self.origin = origin
        self.finishes = False
        self.margins: Margins | None = None
        self._home: Home | None = None

    @property
    def home(self) -> Home | None:
        """Where the tensor is in memory, if it is."""
        return self._home

    @property
    def buffer(self) -> str | None:
        """The name of the buffer that the tensor is in, if it is in memory."""
        if self.home is not None:
            return self.home.buffer
        return None

    def load(self, index: Index) -> int:
        """Record the value at `index` (once per body)."""
        recorder = ops.recorder()
        key = (self, index, recorder.mask)
        value = recorder.memo.get(key)
        if value is None:
            value = recorder.memo[key] = self.compute(index)
        return value

    def place(self, buffer: str, strides: Sequence[Expr], offset: Expr = ZERO) -> None:
        """From now on the tensor is in `buffer`, at `offset` and laid out by `strides`."""

        def address(index: Index) -> Expr:
            total = offset
            for i, stride in zip(index, strides):
                total = total + i * stride
            return total

        self._home = Home(buffer, address)
        self.compute = lambda index: widen(ops.load(buffer, address(index), self.dtype))
        self.cost, self.heavy, self.joins, self.origin = 0, False, False, NOWHERE

    def pieces(self, strides: Sequence[Expr]) -> list[tuple[LoopTensor, Expr]]:
        """What to write, and at which offset, to lay the whole tensor out by `strides`."""
        return [(self, ZERO)]

    @property
    def root(self) -> LoopTensor:
        """The value this is a view of; itself if it is none."""
        return self


class MappedTensor(LoopTensor):
    """A view: the elements of `base` at other indices. It is in memory when its base is."""

    def __init__(
        self,
        base: LoopTensor,
        sizes: Sequence[Expr],
        strides: Sequence[Expr],
        index_map: IndexMap,
    ) -> None:
        self.base = base
        self.index_map = index_map
        super().__init__(sizes, strides, base.dtype, lambda index: base.load(index_map(index)))

    @property
    def home(self) -> Home | None:
        """Its own memory if it was placed, else the base's, which may have been placed after the
        view was made."""
        base = self.base.home
        if self._home is not None or base is None:
            return self._home
        return Home(base.buffer, lambda index: base.address(self.index_map(index)))

    @property
    def root(self) -> LoopTensor:
        if self._home is not None:
            return self
        return self.base.root


def stored(buffer: str, spec: Spec, offset: Expr = ZERO) -> LoopTensor:
    """The tensor that is in `buffer` at `offset`, laid out as `spec` says."""
    value = LoopTensor(spec.sizes, spec.strides, spec.dtype, lambda index: 0)
    value.place(buffer, spec.strides, offset)
    return value


def loops_over(sizes: Sequence[Expr], prefix: str = "i") -> Index:
    """A loop symbol per dimension, and 0 for those of size 1."""
    return tuple(
        ZERO if size is ONE else loop_symbol(f"{prefix}{k}", size) for k, size in enumerate(sizes)
    )


def loop_symbols(index: Index) -> tuple[Symbol, ...]:
    return tuple(i for i in index if isinstance(i, Symbol))


def view_of(value: LoopTensor) -> View | None:
    """The strided window of memory that `value` is, or None if it is not in memory or not one
    window."""
    home = value.home
    if home is None:
        return None
    index = loops_over(value.sizes)
    linear = home.address(index).linear(loop_symbols(index))
    if linear is None:
        return None
    offset, coefficients = linear
    strides = tuple(
        coefficients.get(i, ZERO) if isinstance(i, Symbol) else stride
        for i, stride in zip(index, value.strides)
    )
    if any(known_less(stride, 0) for stride in strides):
        return None
    return View(home.buffer, value.sizes, strides, offset, value.dtype)


def dense_strides(sizes: Sequence[Expr], strides: Sequence[Expr]) -> tuple[Expr, ...]:
    """Strides without gaps or overlap that keep the order of dimensions which `strides` has."""
    plain = contiguous_strides(sizes)
    if same_strides(sizes, strides, plain):
        return tuple(strides)
    if _is_packed(sizes, strides):
        return tuple(strides)
    if any(stride is ZERO and size is not ONE for size, stride in zip(sizes, strides)):
        return plain
    # outermost first; insertion keeps the logical order wherever nothing else is known
    order: list[int] = []
    for k, stride in enumerate(strides):
        at = len(order)
        while (
            at
            and known_less_equal(strides[order[at - 1]], stride)
            and strides[order[at - 1]] is not stride
        ):
            at -= 1
        order.insert(at, k)
    dense = strides_in_order(sizes, order)
    return tuple(s if size is ONE else d for size, s, d in zip(sizes, strides, dense))


def same_strides(sizes: Sequence[Expr], a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    """Whether two layouts are one: the stride of a dimension of size 1 does not count."""
    return all(x is y or size is ONE for size, x, y in zip(sizes, a, b))


def _is_packed(sizes: Sequence[Expr], strides: Sequence[Expr]) -> bool:
    """Whether each stride is the product of some other dimensions' sizes, in one order.

    Sizes that are symbols need not be ordered for that.
    """
    left = set()
    for k, size in enumerate(sizes):
        if size is not ONE:
            left.add(k)
    step = ONE
    while left:
        dim = next((k for k in sorted(left, reverse=True) if strides[k] is step), None)
        if dim is None:
            return False
        left.remove(dim)
        step = step * sizes[dim]
    return True


def channels_last_strides(sizes: Sequence[Expr]) -> tuple[Expr, ...]:
    """Dense strides with the second dimension innermost."""
    return strides_in_order(sizes, (0, *range(2, len(sizes)), 1))


def strides_in_order(sizes: Sequence[Expr], order: Sequence[int]) -> tuple[Expr, ...]:
    """Dense strides with the dimensions in an order, the outermost first."""
    strides = dict(zip(order, contiguous_strides([sizes[d] for d in order])))
    return tuple([strides[d] for d in range(len(sizes))])


def numel(sizes: Sequence[Expr]) -> Expr:
    return product(sizes)


def broadcast_index(index: Index, sizes: Sequence[Expr]) -> Index:
    """The index into a tensor of `sizes` that `index` into a tensor it is broadcast to stands
    for."""
    inner = index[len(index) - len(sizes) :]
    return tuple(ZERO if size is ONE else i for i, size in zip(inner, sizes))


def constants(numbers: Iterable[Expr]) -> list[int | None]:
    return [number.constant for number in numbers]


def exprs(values: Sequence[int | Expr]) -> tuple[Expr, ...]:
    return tuple(map(as_expr, values))
