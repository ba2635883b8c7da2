"""Ops that a library computes: every op or form of an op that has no rule."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

from ingot.errors import unsupported
from ingot.loops.expr import ONE, ZERO, Symbol, as_expr
from ingot.loops.functional_ops import FunctionalForm, Window
from ingot.loops.ir import View
from ingot.loops.lowering.context import Lowering
from ingot.loops.lowering.rules import LIBRARY_CALLS, LibraryCall
from ingot.loops.lowering.values import (
    LoopTensor,
    Spec,
    dense_strides,
    exprs,
    numel,
    same_strides,
    stored,
    view_of,
)
from ingot.loops.side_effects import has_effect
from ingot.loops.spaces import contiguous_strides
from ingot.sequences import map_leaves
from ingot.torch_private import dispatch_has_kernel_for_dispatch_key

_PLAIN = LibraryCall()
WARM_BYTES = 16 << 20
"""Up to here the C library's allocator gives back memory that it has, rather than ask for fresh
pages."""


def call_aten(
    lw: Lowering,
    func: Any,
    outs: Sequence[Spec | None],
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> list[Any]:
    """Call `func` as it is, through an out= variant where a real one exists."""
    if func._schema.is_mutable:
        raise unsupported("no-code", f"{func} writes to its arguments", lw.origin.where)
    args, kwargs = laid_out(lw, tuple(args)), laid_out(lw, kwargs)
    how = LIBRARY_CALLS.get(func, _PLAIN)
    if how.direct is not None:
        function, args = how.direct(tuple(args))
        lw.origin = lw.origin._replace(ops=(str(function),))
        return lw.call(function, outs, args, kwargs)
    if how.bias_rows:
        names = [a.name for a in func._schema.arguments]
        place = names.index("attn_bias")
        args = (*args[:place], _in_rows(lw, args[place], how.bias_rows), *args[place + 1 :])
    spec = None
    if len(outs) == 1:
        spec = outs[0]
    if how.in_place and spec is not None and not lw.target.scatters:
        start = lw.copied(args[0], spec.strides)
        return [lw.call_in_place(how.in_place, start, args[1:], kwargs)]
    writable = spec is not None and not has_effect(func) and not how.resizes_out and _is_dense(spec)
    if spec is not None and writable and not _allocates_well(lw, spec):
        function = how.binding or out_variant(func, lw.target.device.upper())
        if function is not None:
            return lw.call(function, outs, args, kwargs, out="out")
    return lw.call(func, outs, args, kwargs)


def call_functional(
    lw: Lowering,
    form: FunctionalForm,
    outs: Sequence[Spec | None],
    memory: Sequence[LoopTensor],
    shown: Sequence[LoopTensor],
    arguments: Sequence[Any],
    binds: tuple[tuple[Symbol, int, int], ...],
) -> tuple[LoopTensor | None, ...]:
    """Call a foreign op with copies of the bases, `memory`, which it writes, and with `shown` ones.

    Gives its results and the copies."""
    windows, args, kwargs = arguments

    def argument(leaf: Any) -> Any:
        if isinstance(leaf, Window):
            number, sizes, strides, offset, dtype = windows[leaf.number]
            buffer = (*memory, *shown)[number].buffer or ""
            return View(buffer, exprs(sizes), exprs(strides), as_expr(offset), dtype)
        return leaf

    args, kwargs = laid_out(lw, tuple(args)), laid_out(lw, kwargs)
    args, kwargs = map_leaves(argument, (args, kwargs))
    function, how = form.function, LIBRARY_CALLS.get(form.op, _PLAIN)
    if how.direct is not None:
        function, args = how.direct(tuple(args))
        lw.origin = lw.origin._replace(ops=(str(function),))
    written = tuple(map(attrgetter("buffer"), memory))
    specs = lw.with_users(outs)[: len(outs) - len(memory)]
    results = lw.call(function, specs, args, kwargs, binds=binds, mutates=written)
    return (*results, *memory)


def _allocates_well(lw: Lowering, spec: Spec) -> bool:
    """Whether the op may as well allocate its result: one that is returned and for which torch has
    warm memory."""
    count = numel(spec.sizes).constant
    return lw.returned and count is not None and count * spec.dtype.itemsize <= WARM_BYTES


def laid_out(lw: Lowering, tree: Any) -> Any:
    """`tree` with every tensor in it in the layout that was recorded.

    A kernel may rely on a copy before it that made its input contiguous, where a view of the
    original is all that the values need.
    """

    def relaid(value: Any) -> Any:
        if not isinstance(value, LoopTensor) or not _is_dense(value):
            return value
        if same_strides(value.sizes, value.strides, lw.view(value).strides):
            return value
        return lw.copied(value)

    return map_leaves(relaid, tree)


def _in_rows(lw: Lowering, value: LoopTensor | None, unit: int) -> LoopTensor | None:
    """`value` in memory where neighbours of a row lie side by side, and all else at multiples of
    `unit` elements."""
    if value is None:
        return None
    window = view_of(value)
    strides = []
    if window:
        strides = [stride for size, stride in zip(value.sizes, window.strides) if size is not ONE]
    if (
        strides
        and strides[-1] is ONE
        and all(s.constant is not None and s.constant % unit == 0 for s in strides[:-1])
    ):
        return value
    repeated = [stride is ZERO for stride in value.strides[:-1]] + [False]
    sizes = tuple(ONE if again else size for again, size in zip(repeated, value.sizes))
    wide = (*sizes[:-1], (sizes[-1] + (unit - 1)) // unit * unit)
    laid = tuple(
        ZERO if again else stride for again, stride in zip(repeated, contiguous_strides(wide))
    )
    buffer = lw.new_buffer(Spec(sizes, laid, value.dtype), laid)
    lw.write(LoopTensor(sizes, laid, value.dtype, value.load, origin=lw.origin), buffer, laid, ZERO)
    if value.root is value and value.buffer is not None:
        return stored(buffer, Spec(value.sizes, laid, value.dtype))
    value.place(buffer, laid)  # for other calls as well
    return value


def _is_dense(spec: Spec | LoopTensor) -> bool:
    return same_strides(spec.sizes, spec.strides, dense_strides(spec.sizes, spec.strides))


@functools.cache
def out_variant(func: Any, backend: str = "CPU") -> Any:
    """The overload of the same op that writes to `out`, if it has a kernel of its own for the
    backend; else None."""
    returns = func._schema.returns
    if len(returns) != 1 or str(returns[0].type) != "Tensor":
        return None
    arguments = []
    for a in func._schema.arguments:
        arguments.append((a.name, str(a.type)))
    packet = func.overloadpacket
    for name in packet.overloads():
        candidate = getattr(packet, name)
        outputs = []
        for a in candidate._schema.arguments:
            if a.is_out:
                outputs.append(a.name)
        others = []
        for a in candidate._schema.arguments:
            if not a.is_out:
                others.append((a.name, str(a.type)))
        if outputs == ["out"] and others == arguments:
            has_kernel = dispatch_has_kernel_for_dispatch_key(candidate.name(), backend)
            if has_kernel:
                return candidate
            return None
    return None
