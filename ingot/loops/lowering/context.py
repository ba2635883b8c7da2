"""The state of one lowering: the graph under construction, and how values get into memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from ingot.errors import CompilerBug, unsupported
from ingot.loops import ops
from ingot.loops.expr import ONE, ZERO, Expr, Symbol
from ingot.loops.ir import (
    Access,
    Body,
    Buffer,
    Contraction,
    Library,
    LoopGraph,
    Origin,
    Pointwise,
    Reduction,
    View,
)
from ingot.loops.lowering.index_maps import reshape_map
from ingot.loops.lowering.values import (
    Index,
    LoopTensor,
    MappedTensor,
    Spec,
    compute_dtype,
    dense_strides,
    loop_symbols,
    loops_over,
    numel,
    rounded,
    same_strides,
    stored,
    view_of,
)
from ingot.loops.side_effects import calls_foreign, has_effect
from ingot.loops.spaces import address_of, contiguous_strides
from ingot.loops.target import CPU, Target
from ingot.loops.weights import Tiles
from ingot.sequences import map_leaves
from ingot.torch_private import OpOverload, aten

# A value is computed again at each use while it costs at most this many cheap ops and joins no
# tensors ...
CHEAP_TO_REPEAT = 4
# ... and is put in memory when its body would grow beyond this.
LARGEST_BODY = 96
# A value is made of many elements, and may be worth another layout than eager's, from so many on.
WINDOW = 4


class Lowering:
    """Builds a `LoopGraph`. `origin` is that of the ATen node being lowered."""

    def __init__(
        self,
        supported: Callable[[str, torch.dtype], bool] = ops.supported,
        fast_libraries: bool = False,
        target: Target = CPU,
    ) -> None:
        self.graph = LoopGraph()
        self.supported = supported
        self.fast_libraries = fast_libraries
        self.target = target
        self.on_host = False  # whether what is lowered runs on the CPU, beside a GPU
        self.origin = Origin(())
        self.used: tuple[bool, ...] = (True,)  # which results of the ATen node have a user
        self.may_raise = False  # whether the ATen node raises errors for what its tensors hold
        self.returned = False  # whether the graph returns the ATen node's result
        self.repeats = False  # whether values are computed anew wherever they are read
        # of input buffers: where they start in their tensor's storage
        self.storage_offsets: dict[str, Expr] = {}
        # images with margins that are in memory, by what they are made of
        self.padded: dict[Any, LoopTensor] = {}
        # of conditions in attention, at how many points of a tile they hold, and lists made of that
        self.tile_counts: dict[Any, LoopTensor] = {}
        self.tiles: dict[Any, Tiles] = {}
        self._count = 0

    # -- buffers -----------------------------------------------------------------------------------

    def new_buffer(self, spec: Spec, strides: Sequence[Expr]) -> str:
        name = f"t{self._count}"
        self._count += 1
        device = torch.device(self.target.device)
        buffer = Buffer(
            name, spec.dtype, spec.sizes, tuple(strides), "temporary", device, self.on_host
        )
        self.graph.buffers[name] = buffer
        return name

    def declared(self, name: str, spec: Spec, role: str, on_host: bool = False) -> LoopTensor:
        """A tensor that is in memory before the program runs."""
        self.graph.buffers[name] = Buffer(
            name, spec.dtype, spec.sizes, spec.strides, role, spec.device, on_host
        )
        return stored(name, spec)

    def another(self, name: str) -> str:
        """A new buffer like one that there is."""
        new = f"t{self._count}"
        self._count += 1
        self.graph.buffers[new] = replace(self.graph.buffers[name], name=new)
        return new

    def node_name(self) -> str:
        return f"n{len(self.graph.nodes)}"

    def realize(self, value: LoopTensor, strides: Sequence[Expr] | None = None) -> LoopTensor:
        """Put `value` in memory unless it is there, laid out by `strides` or as eager would;
        returns it."""
        if value.buffer is None:
            if value.dtype not in ops.STORED:
                raise unsupported(
                    "no-code", f"a {value.dtype} tensor cannot be laid out anew", self.origin.where
                )
            strides = dense_strides(value.sizes, value.strides if strides is None else strides)
            spec = Spec(value.sizes, strides, value.dtype)
            buffer = self.new_buffer(spec, strides)
            for piece, offset in value.pieces(strides):
                self.write(piece, buffer, strides, offset)
            value.place(buffer, strides)
        return value

    def write(self, value: LoopTensor, buffer: str, strides: Sequence[Expr], offset: Expr) -> None:
        """Add the node that writes `value` to a strided window of `buffer`."""
        if value.dtype not in ops.STORED:
            raise unsupported(
                "no-code", f"a {value.dtype} tensor cannot be written by loops", self.origin.where
            )
        index = loops_over(value.sizes)
        target = address_of(index, strides, offset)
        body = self.body_of(value, index)
        if value.root.origin.ops:
            origin = value.root.origin
        else:
            origin = self.origin
        self.graph.nodes.append(
            Pointwise(self.node_name(), origin, loop_symbols(index), body, buffer, target)
        )

    def body_of(self, value: LoopTensor, index: Index) -> Body:
        with ops.recording() as recorder:
            return recorder.body(ops.to(value.load(index), value.dtype))

    # -- making values -----------------------------------------------------------------------------

    def computed(
        self,
        out: Spec,
        compute: Callable[[Index], int],
        args: Sequence[LoopTensor],
        cost: int = 1,
        heavy: bool = False,
    ) -> LoopTensor:
        """A lazy value made from `args`, whose cost adds to its own."""
        origin = self.origin
        roots = list(dict.fromkeys(a.root for a in args))
        whole = numel(out.sizes)
        joins = any(r.joins for r in roots) or sum(numel(r.sizes) is whole for r in roots) > 1
        for arg in roots:
            cost += arg.cost
            heavy = heavy or arg.heavy
            if arg.origin.ops and not arg.finishes:  # the contraction tells of the op
                origin = arg.origin.merged(origin)
        return LoopTensor(
            out.sizes,
            out.strides,
            out.dtype,
            compute,
            cost=cost,
            heavy=heavy,
            joins=joins,
            origin=origin,
        )

    def share(self, value: LoopTensor) -> LoopTensor:
        """`value`, in memory if it is worth more than computing it again at each use."""
        root = value.root
        if self.repeats:
            return value
        if root.buffer is None and (root.heavy or root.joins or root.cost > CHEAP_TO_REPEAT):
            self.realize_root(value)
        return value

    def realize_root(self, value: LoopTensor) -> LoopTensor:
        """Put what `value` is a view of in memory if that is hardly more work, else `value` itself.

        Gives which of the two, whose sizes may be others than those of `value`.
        """
        root = value.root
        if root.finishes or numel(root.sizes) is numel(value.sizes):
            value = root
        return self.realize(value, self.strides_of_loads(value) if value.buffer is None else None)

    def strides_of_loads(self, value: LoopTensor, least: int = WINDOW) -> tuple[Expr, ...] | None:
        """Another layout than eager's for a value that is made of many elements each.

        A convolution's is such a value: what is loaded for neighbours lies side by side along
        another dimension, and apart along the innermost one.
        """
        if value.cost < 2 * least - 1:  # loads, and as many operations but one
            return None
        index = loops_over(value.sizes)
        places = self.body_of(value, index).load_places
        return laid_by_loads(value.sizes, value.strides, index, places, least)

    def steps_of_loads(self, value: LoopTensor, index: Index) -> dict[int, list[int | None]]:
        return _steps_of_loads(index, self.body_of(value, index).load_places)

    def finish(self, value: LoopTensor, users: int) -> LoopTensor:
        """Decide for a node's value whether it stays lazy."""
        if value.root.cost > LARGEST_BODY:
            self.realize_root(value)
        if users > 1:
            return self.share(value)
        return value

    def reduce(
        self,
        out: Spec,
        kind: str,
        value: LoopTensor,
        dims: Sequence[int],
        dtype: torch.dtype,
        element: Callable[[int], int],
        result_dtype: torch.dtype | None = None,
    ) -> LoopTensor:
        """Reduce `element(value)` of `dtype` over `dims`; gives a tensor with `out`'s sizes, with
        or without kept dimensions.

        The result is held in the accumulator's dtype where `out` is a half; rounding is left to the
        reader.
        """
        index = loops_over(value.sizes, "i")
        reduced = tuple(i for k, i in enumerate(index) if k in dims)
        kept = tuple(i for k, i in enumerate(index) if k not in dims)
        with ops.recording() as recorder:
            body = recorder.body(ops.to(element(value.load(index)), dtype))
        stored_dtype = result_dtype or dtype
        strides = laid = dense_strides(out.sizes, out.strides)
        places = [k for k in range(len(index)) if k not in dims]  # of each dimension of `out`
        if len(out.sizes) == len(value.sizes):
            places = list(range(len(index)))
        counted = []
        for k in places:
            counted.append(ZERO if k in dims else index[k])
        if self.target.device == "cuda" and not self.returned:
            by_loads = laid_by_loads(out.sizes, strides, counted, body.load_places, 1)
            if by_loads is None:
                laid = strides
            else:
                laid = dense_strides(out.sizes, by_loads)
        buffer = self.new_buffer(Spec(out.sizes, laid, stored_dtype), laid)
        target = address_of(counted, laid)
        self.graph.nodes.append(
            Reduction(
                self.node_name(),
                value.root.origin.merged(self.origin),
                loop_symbols(kept),
                loop_symbols(reduced),
                kind,
                body,
                buffer,
                target,
                stored_dtype,
            )
        )
        result = stored(buffer, Spec(out.sizes, strides, stored_dtype))
        if laid is not strides:
            result.place(buffer, laid)
        return result

    def rounded_to(self, out: Spec, value: LoopTensor) -> LoopTensor:
        """`value` (of another dtype, same sizes) converted to `out.dtype`."""
        if value.dtype is out.dtype:
            return value
        accumulator = compute_dtype(out.dtype)
        return self.computed(
            out,
            lambda index: rounded(ops.to(value.load(index), accumulator), out.dtype),
            [value],
            cost=1,
        )

    def contraction(
        self,
        out: Spec,
        loops: Sequence[tuple[Symbol, ...]],
        left: Access,
        right: Access,
        place: Sequence[Expr],
    ) -> LoopTensor:
        """A new tensor that holds a sum of products, left * right, at `place`.

        `loops` are those of the batch, of rows, of columns and of the sum.
        """
        batch, rows, columns, reduced = loops
        buffer, at = self.new_buffer(out, out.strides), address_of(place, out.strides)
        name, origin = self.node_name(), self.origin
        self.graph.nodes.append(
            Contraction(
                name, origin, batch, rows, columns, reduced, left, right, buffer, at, out.dtype
            )
        )
        return stored(buffer, out)

    # -- library calls -----------------------------------------------------------------------------

    def view(self, value: LoopTensor) -> View:
        """A strided window of memory that holds `value`, put there if need be."""
        window = view_of(value)
        if window is None and value.buffer is None:
            self.realize_root(value)
            window = view_of(value)
        if window is None:
            window = view_of(self.copied(value))
        if window is None:
            raise CompilerBug(
                "lower", "a realized value is one window", value.buffer or "", self.origin.where
            )
        return window

    def copied(self, value: LoopTensor, strides: Sequence[Expr] | None = None) -> LoopTensor:
        """A fresh copy of `value` in memory of its own, in the order of `strides` if given."""
        copy = LoopTensor(
            value.sizes,
            strides or value.strides,
            value.dtype,
            value.load,
            cost=1,
            origin=self.origin,
        )
        return self.realize(copy)

    def in_memory(self, value: LoopTensor, spec: Spec) -> LoopTensor:
        """`value` in a buffer at the very strides of `spec`: a copy unless it lies so."""
        if value.root is value:
            window = view_of(self.realize(value))
            if (
                window is not None
                and window.offset is ZERO
                and same_strides(value.sizes, window.strides, spec.strides)
            ):
                return value
        return self.duplicate(value, spec)

    def duplicate(self, value: LoopTensor, spec: Spec) -> LoopTensor:
        """A fresh copy of `value` in memory of its own, at the very strides of `spec`."""
        if value.dtype not in ops.STORED:
            return self.result_of(aten.clone.default, spec, [value])
        buffer = self.new_buffer(spec, spec.strides)
        self.write(value, buffer, spec.strides, ZERO)
        return stored(buffer, spec)

    def relaid(self, value: LoopTensor, strides: Sequence[Expr] | None = None) -> LoopTensor:
        """`copied` for what is only read: that of a constant is a constant too."""
        window = view_of(value)
        constant = None
        if window is not None:
            constant = self.graph.constants.get(window.buffer)
        if window is None or constant is None:
            return self.copied(value, strides)
        strides = dense_strides(value.sizes, strides or value.strides)
        numbers = [e.constant for e in (*window.sizes, *window.strides, *strides, window.offset)]
        if None in numbers or constant.dtype is not value.dtype:
            return self.copied(value, strides)
        sizes, steps, laid = (
            tuple(e.constant or 0 for e in dims) for dims in (window.sizes, window.strides, strides)
        )
        source = torch.as_strided(
            constant, sizes, steps, constant.storage_offset() + (window.offset.constant or 0)
        )
        name = f"{window.buffer}_relaid{len(self.graph.constants)}"
        laid_anew = torch.empty_strided(sizes, laid, dtype=value.dtype, device=constant.device)
        self.graph.constants[name] = laid_anew.copy_(source)
        spec = Spec(value.sizes, strides, value.dtype, constant.device)
        return self.declared(name, spec, "constant")

    def call(
        self,
        function: Any,
        outs: Sequence[Spec | None],
        args: Sequence[Any],
        kwargs: dict[str, Any] | None = None,
        out: str | None = None,
        binds: tuple[tuple[Symbol, int, int], ...] = (),
        mutates: tuple[str, ...] = (),
    ) -> list[LoopTensor | None]:
        """Call a library: `args` may hold `LoopTensor`s. One result per entry of `outs` (None:
        unused). Of a view, the result is a copy. It writes the buffers `mutates`."""
        if isinstance(function, OpOverload) and any(
            r.alias_info is not None for r in function._schema.returns
        ):
            outs = [
                o if o is None else o._replace(strides=dense_strides(o.sizes, o.strides))
                for o in outs
            ]
        arguments = self.arguments(tuple(args))
        keywords = self.arguments(kwargs or {})
        targets = tuple(
            None if spec is None else self.new_buffer(spec, spec.strides) for spec in outs
        )
        node = Library(
            self.node_name(), self.origin, function, arguments, keywords, targets, out, mutates
        )
        node = replace(node, may_raise=self.may_raise, binds=binds)
        if out is None:  # else it is the form of an op of torch's that writes where it is told
            node = replace(node, ordered=has_effect(function), retains=calls_foreign(function))
        self.graph.nodes.append(node)
        results = []
        for t, spec in zip(targets, outs):
            results.append(None if t is None or spec is None else stored(t, spec))
        return results

    def result_of(
        self, function: Any, spec: Spec, args: Sequence[Any], out: str | None = None
    ) -> LoopTensor:
        """The only result of a call of a library."""
        (result,) = self.call(function, [spec], args, out=out)
        assert result is not None
        return result

    def call_in_place(
        self, function: Any, start: LoopTensor, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> LoopTensor:
        """Call a library that writes to its first argument, which nobody else has; it then has the
        result."""
        arguments, keywords = self.arguments((start, *args)), self.arguments(kwargs)
        mutates = (self.view(start).buffer,)
        node = Library(
            self.node_name(), self.origin, function, arguments, keywords, (None,), None, mutates
        )
        self.graph.nodes.append(replace(node, may_raise=self.may_raise))
        return start

    def arguments(self, tree: Any) -> Any:
        """`tree` with every `LoopTensor` in it as a `View`."""

        def argument(value: Any) -> Any:
            if isinstance(value, LoopTensor):
                return self.view(value)
            return value

        return map_leaves(argument, tree)

    def mapped(
        self, base: LoopTensor, out: Spec, index_map: Callable[[Index], Index]
    ) -> MappedTensor:
        return MappedTensor(base, out.sizes, out.strides, index_map)

    def reshaped(self, base: LoopTensor, out: Spec) -> MappedTensor:
        """A view of as many elements, in row-major order."""
        return self.mapped(base, out, reshape_map(out.sizes, base.sizes))

    def with_users(self, outs: Sequence[Spec | None]) -> list[Spec | None]:
        """The results of the ATen node that have a user; None for others."""
        results = []
        for out, used in zip(outs, self.used):
            results.append(out if used else None)
        return results


def laid_by_loads(
    sizes: Sequence[Expr],
    strides: Sequence[Expr],
    index: Sequence[Expr],
    loads: Sequence[Expr],
    least: int,
) -> tuple[Expr, ...] | None:
    """Another layout for what is computed at `index`, or None if eager's will do.

    It is for values whose `loads` lie apart for neighbours along the innermost dimension, and, for
    those along another one, at least that many side by side: this one becomes the innermost. The
    dimensions that all of these loads take equal steps along follow, and the others, where
    addresses are data, surround them.
    """
    steps = _steps_of_loads(index, loads)
    inner = []
    for dim, stride in enumerate(strides):
        if stride is ONE and dim in steps:
            inner.append(dim)
    beside = []
    for dim, dim_steps in steps.items():
        if len(dim_steps) >= least and set(dim_steps) == {1}:
            beside.append(dim)
    if not inner or not beside or len(steps[inner[0]]) < min(least, WINDOW) or 1 in steps[inner[0]]:
        return None
    first = beside[0]
    across = []
    for load in loads:
        if index[first] in load.symbols:
            across.append(load)
    even = {}
    for dim in steps:
        even[dim] = _step(index[dim], across)
    if any(sizes[dim].constant is None for dim in steps):
        return tuple(
            ONE if dim == first else stride * sizes[first] for dim, stride in enumerate(strides)
        )
    order = sorted(
        steps,
        key=lambda dim: (even[dim] is not None, -(even[dim] or 0), -(strides[dim].constant or 0)),
    )
    laid = contiguous_strides([sizes[dim] for dim in order])
    return tuple(dict(zip(order, laid)).get(dim, stride) for dim, stride in enumerate(strides))


def _steps_of_loads(index: Sequence[Expr], loads: Sequence[Expr]) -> dict[int, list[int | None]]:
    """The distances of the elements of neighbours, for each dimension that is a loop.

    There is one for each load that depends on the loop; None where it varies.
    """
    steps: dict[int, list[int | None]] = {}
    for dim, symbol in enumerate(index):
        if isinstance(symbol, Symbol):
            steps[dim] = [_distance(load, symbol) for load in loads if symbol in load.symbols]
    return steps


def _distance(load: Expr, symbol: Symbol) -> int | None:
    step = load.step(symbol)
    if step is None:
        return None
    return step.constant


def _step(symbol: Expr, loads: Sequence[Expr]) -> int | None:
    """How far apart the elements of neighbours along a loop lie, if that is one distance above 0
    for all loads."""
    assert isinstance(symbol, Symbol)
    steps = set()
    for load in loads:
        steps.add(_distance(load, symbol))
    step = None
    if len(steps) == 1:
        step = steps.pop()
    if step is not None and step > 0:
        return step
    return None
