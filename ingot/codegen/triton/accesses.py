"""Loads and stores of a kernel's buffers: pointers, masks, and what the L2 cache is to keep.

A load gives 0 where a mask or a condition does not hold. Rows of the kernel's own are values in
registers; what a thread has stored it does not load again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from ingot.codegen.triton import ops
from ingot.codegen.triton.block import NO_AXES, BlockWriter, Value, bracketed, joined_axes
from ingot.codegen.triton.conditions import holds_mostly
from ingot.errors import unsupported
from ingot.loops.expr import Expr, Symbol
from ingot.loops.ir import Instruction
from ingot.schedule.blocks import Blocks
from ingot.schedule.kernel import Kernel, Stage, Store

WIDE_BYTES = 16  # that a thread loads at once, at most


class AccessWriter(BlockWriter):
    inner_loops: tuple[Symbol, ...] = ()  # of the present stage

    def __init__(
        self, kernel: Kernel, blocks: Blocks, short: bool, sizes: Sequence[Symbol] = ()
    ) -> None:
        super().__init__(kernel, blocks, short, sizes)
        self.written = {store.buffer for store in kernel.stores}
        self.numbers: dict[str, torch.dtype] = {}
        self.lengths: dict[str, int | None] = {}
        for p in kernel.parameters:
            if p.on_host:
                self.numbers[p.name] = p.dtype
            if p.length is not None:
                self.lengths[p.name] = p.length.constant
        self.rows = {row.name: row for row in kernel.rows}
        self.row_values: dict[str, Value] = {}
        # what was last stored in a buffer, and where
        self.last_stores: dict[str, tuple[Expr, tuple[Symbol, ...], torch.dtype, Value]] = {}
        self.totals: dict[tuple[str, Expr], str] = {}
        self.known: dict[tuple[object, ...], Value] = {}  # what has been computed in this scope
        self.stage_number = 0
        if blocks.persistent:
            self.reads_later = []
        else:
            self.reads_later = _rows_read_again(kernel)

    def pointer(self, buffer: str, index: Value, axes: frozenset[str]) -> str:
        pointer = f"{buffer} + {bracketed(index.text)}"
        if axes != index.axes:
            pointer = f"tl.broadcast_to({pointer}, {self.shape(axes)})"
        return pointer

    def full(self, value: Value) -> Value:
        """A value at each element of the block."""
        if value.axes == frozenset("xr"):
            return value
        return self.fresh(f"tl.broadcast_to({value.text}, {self.shape('xr')})", frozenset("xr"))

    # -- loads -------------------------------------------------------------------------------------

    def load(self, i: Instruction, conditions: list[Value]) -> Value:
        buffer, offset = i.attrs
        if buffer in self.numbers:
            return self.number(buffer, conditions)
        index = self.index(offset)
        axes = index.axes | joined_axes(conditions)
        pointer = self.pointer(buffer, index, axes)
        end = None
        if "r" in axes:
            end = self.end_with_margin(buffer, offset, i.dtype.itemsize)
        mask = self.joined_mask(axes, conditions)
        if end is not None:
            mask = self.joined_mask(axes - {"r"}, [self.before(end), *conditions])
        arguments = with_mask(mask, ", other=0")
        if "r" in axes:
            arguments += self.hint(buffer, False)
        return self.fresh(f"tl.load({pointer}{arguments})", axes)

    def number(self, name: str, conditions: list[Value]) -> Value:
        """A parameter that is a number of the CPU's, in place of an address."""
        if not conditions:
            return Value(name, NO_AXES)
        text = f"tl.where({all_of(conditions)}, {name}, 0).to({ops.TYPES[self.numbers[name]]})"
        return self.fresh(text, joined_axes(conditions))

    def hint(self, buffer: str, stored: bool) -> str:
        """What the L2 cache is to keep: rows that a later stage reads, if not all of them fit."""
        if not self.reads_later:
            return ""
        readers = []
        for k, names in enumerate(self.reads_later):
            if buffer in names:
                readers.append(k)
        if readers and readers[-1] > self.stage_number:
            if stored:
                return ""
            return ', eviction_policy="evict_last"'
        if stored or (readers and readers[0] < self.stage_number):
            return ', eviction_policy="evict_first"'
        return ""

    def may_be_read(self, i: Instruction, stage: Stage) -> bool:
        """Whether a load needs no conditions.

        It needs none where there is memory for all points, and these rule out none or few of them.
        Loads are as wide as they can be then, and those that do not depend on a loop leave it.
        """
        buffer, offset = i.attrs
        length, (low, high) = self.lengths.get(buffer), offset.bounds
        if length is None or low is None or high is None or low < 0 or high >= length:
            return False
        if not offset.symbols.issubset((*self.kernel.loops, *stage.loops)):
            return False
        return all(holds_mostly(stage.body.instructions, k, offset.symbols) for k in i.args)

    def end_with_margin(self, buffer: str, offset: Expr, itemsize: int) -> int | None:
        """Where loads along the axis r may end instead: at a multiple of 16 bytes, to be as wide.

        They may where rows begin at such multiples and have a margin. It is None where nothing is
        gained, or where rows are looked up by what was loaded along the axis, in whose margin there
        may be anything. What is loaded of the margin takes part in nothing: reductions and stores
        have the mask of the axis.
        """
        unit = WIDE_BYTES // itemsize
        if self.masks["r"] is None or len(self.inner_loops) != 1:
            return None
        (loop,), length = self.inner_loops, self.lengths.get(buffer)
        size, row = loop.extent.constant, offset - loop
        if size is None or length is None or size % unit == 0:
            return None
        if loop in row.symbols or "r" in self.index(row).axes:
            return None
        if not _is_multiple(row, unit):
            return None
        end = -(-size // unit) * unit
        highest = row.bounds[1]
        if highest is not None and highest + end <= length:
            return end
        return None

    def before(self, end: int) -> Value:
        """Whether the axis r is before a place."""
        key = ("before", self.inner_axis, end)
        if key not in self.known:
            self.known[key] = self.fresh(f"{self.inner_axis} < {end}", frozenset("r"))
        return self.known[key]

    # -- stores ------------------------------------------------------------------------------------

    def store(self, store: Store, value: Value, axes: frozenset[str], stage: Stage) -> None:
        if store.buffer in self.rows:
            self.row_values[store.buffer] = value
            return
        if store.mode == "total":
            name = self.totals[store.buffer, store.index]
            self.line(f"{name} = {name} + {self.full(value).text}")
            return
        if store.scatters and not self.is_apart(store, stage):
            raise unsupported("no-code", "a scatter has no Triton code", self.kernel.origin.where)
        pointer = self.pointer(store.buffer, self.index(store.index), axes)
        arguments = with_mask(self.joined_mask(axes))
        if stage.loops:
            arguments += self.hint(store.buffer, True)
        self.line(f"tl.store({pointer}, {value.text}{arguments})")
        self.last_stores.pop(store.buffer, None)
        if self.blocks.persistent or not stage.loops:
            dtype = stage.body.instructions[store.value].dtype
            self.last_stores[store.buffer] = store.index, stage.loops, dtype, value

    def is_apart(self, store: Store, stage: Stage) -> bool:
        """Whether no two points of a kernel scatter to one element."""
        is_shared = self.kernel.parallel == len(self.kernel.loops)
        return store.mode == "store" and is_shared and not stage.loops

    def stored(self, i: Instruction, stage: Stage) -> Value | None:
        """The value that a load would read, if this thread has stored it and still holds it."""
        if i.args or i.attrs[0] not in self.last_stores:
            return None
        index, loops, dtype, value = self.last_stores[i.attrs[0]]
        if i.attrs[1] != index or i.dtype is not dtype:
            return None
        of_points = "r" not in value.axes and index.symbols.isdisjoint((*loops, *stage.loops))
        if of_points or stage.loops == loops:
            return value
        return None


def with_mask(mask: str | None, otherwise: str = "") -> str:
    """The arguments of a load or a store that follow the pointer."""
    if mask is None:
        return ""
    return f", mask={mask}{otherwise}"


def _is_multiple(e: Expr, unit: int) -> bool:
    return not any(coefficient % unit for coefficient, _ in e.terms)


def _rows_read_again(kernel: Kernel) -> list[set[str]]:
    """The large buffers that each stage reads along its loops; nothing if no two read the same."""
    large = set()
    for p in kernel.parameters:
        if p.length is not None:
            if (p.length.constant or 0) * p.dtype.itemsize >= kernel.blocking.l2_bytes:
                large.add(p.name)
    reads = []
    for stage in kernel.stages:
        along = set()
        for i in stage.body.loads:
            if reads_along(i.attrs[1], stage.loops):
                along.add(i.attrs[0])
        reads.append(along & large)
    if len(set().union(*reads)) < sum(map(len, reads)):
        return reads
    return []


def all_of(conditions: Iterable[Value]) -> str:
    return " & ".join(condition.text for condition in conditions)


def reads_along(index: Expr, loops: Iterable[Symbol]) -> bool:
    return not index.symbols.isdisjoint(loops)


def elements_at_once(load: Instruction, stage: Stage) -> int:
    """How many neighbours of a row a thread loads at once.

    One where they do not begin at multiples of that.
    """
    unit, row = WIDE_BYTES // load.dtype.itemsize, load.attrs[1] - stage.loops[-1]
    linear = len(stage.loops) == 1 and row.symbols.isdisjoint(stage.loops)
    if linear and _is_multiple(row, unit):
        return unit
    return 1
