"""A kernel that contracts: blocks of rows and columns, tiles in them, its stage on each full tile.

A block packs the right operand, `DEPTH` steps of the reduction at a time, so that a row of a tile's
columns lies in adjacent memory (or reads it where it lies like that), and reads the left one where
it is, or copies that as well (`Product.copies`): once for all blocks of the same rows in turn,
where its copies of all depths are small. Sums are kept in the thread's scratch memory between the
depths. Within a depth a sum is one chain of multiply-adds; the chains are added in order. So each
element's rounding depends on the sizes alone, neither on the tile it falls in nor on the number of
threads.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from ingot.codegen.llvm import tiles
from ingot.codegen.llvm.depths import Depths, coefficient
from ingot.codegen.llvm.emitter import Value
from ingot.codegen.llvm.function import Function
from ingot.codegen.llvm.kernel import KernelEmitter
from ingot.codegen.llvm.target import Target
from ingot.codegen.llvm.transpose import PREFETCH, transpose
from ingot.codegen.llvm.types import REPRESENTATIONS
from ingot.codegen.llvm.unrolling import choose_unroll
from ingot.loops.expr import ONE, ZERO, Expr, Symbol, integer
from ingot.loops.ir import Access, Instruction
from ingot.loops.spaces import points_of
from ingot.schedule.contraction import KEPT
from ingot.schedule.kernel import Kernel, Product, Stage

LINE = 64  # bytes of memory that are fetched together

# Up to so many rows, a right operand whose columns are adjacent is read where it lies: packing
# would take longer.
FEW_ROWS = 32


def emit_contraction(
    kernel: Kernel, symbols: Sequence[Symbol], target: Target, check_bounds: bool = False
) -> Function:
    """The LLVM function of a kernel that has a product.

    With `check_bounds`, an access outside of a buffer of known length reports `OutOfBounds`; of a
    tile's rows or a panel, the first and the last element are checked.
    """
    assert kernel.product is not None
    return _ContractionEmitter(kernel, kernel.product, symbols, target, check_bounds).function()


class _Amount(NamedTuple):
    """How much is summed within a depth: steps of the innermost loop, at each of the taps."""

    steps: Value
    taps: Value


class _ContractionEmitter(KernelEmitter):
    # whether the present block has other rows than the one before
    copies_anew: Value | None = None
    # where the sums of one of its rows are, and its first column
    at_tile: tuple[Value, Value] | None = None

    def __init__(
        self,
        kernel: Kernel,
        product: Product,
        symbols: Sequence[Symbol],
        target: Target,
        check_bounds: bool,
    ) -> None:
        type = REPRESENTATIONS[product.dtype].register
        together = 0
        if product.copies:
            together = tiles.TOGETHER
        tile = tiles.choose_tile(type, product.column_block, target, product.row_block, together)
        super().__init__(kernel, symbols, target, check_bounds, tile.lanes)
        self.tile, self.product, self.column = tile, product, product.columns[0]
        self.depths = Depths(product, tile)
        self.row_block = -(-product.row_block // tile.rows) * tile.rows
        self.copies = product.copies
        self._choose_packing()
        self._lay_out_scratch()

    def _choose_packing(self) -> None:
        """Whether the right operand is read as it lies (`in_panels`, `direct`) or packed.

        Then tiles may ask for the memory that the next depth packs (`fetches`).
        """
        self.in_panels, self.direct, self.fetches = True, False, False
        if self.product.panel:
            return
        depths, right = self.depths, self.product.right
        across, along = coefficient(right, self.column), coefficient(right, depths.inner)
        packs_rows = not depths.taps and across is ONE
        lies_as_packed = along is self.column.extent is integer(self.tile.width)
        self.in_panels = packs_rows and lies_as_packed
        rows = math.prod(s.extent.constant or FEW_ROWS + 1 for s in self.product.rows)
        self.direct = rows <= FEW_ROWS and packs_rows and not self.in_panels
        in_one_loop = not (depths.whole or depths.outer or depths.taps or depths.run is not None)
        packs = in_one_loop and not self.in_panels and not self.direct
        self.fetches = packs and ONE in (across, along)

    def _lay_out_scratch(self) -> None:
        """The number of the rows that are kept, then the copies, sums, offsets and addresses."""
        e, tile, depths = self.e, self.tile, self.depths
        rows, columns = self.product.row_block, self.product.column_block
        packed = 0
        if not self.in_panels:
            packed = depths.length * columns * tile.size
        if depths.whole:
            sums = tile.rows * tile.width
        else:
            sums = self.row_block * columns
        sums *= tile.size
        # so that not all tiles are in the same set of a cache
        self.tile_distance = depths.length * tile.rows + 64 // tile.size
        self.copied_bytes = 0
        if self.copies:
            self.copied_bytes = self.row_block // tile.rows * self.tile_distance * tile.size
        extent, copied = depths.cut.extent.constant, self.copied_bytes
        self.keeps = self.copies and extent is not None and rows * extent * tile.size <= KEPT
        if self.keeps:
            copied *= -(-(extent or 0) // depths.steps)
        self.entries = (depths.length // tiles.UNROLL + 1) * tiles.SOON
        addresses = 8 * (depths.offset_count + self.entries)
        self.scratch = integer(LINE + packed + sums + copied + addresses)
        # 1 + the number of the block whose rows are kept
        self.block_copied = Value(e, "%scratch", "ptr", 1, 0)
        scratch = e.pointer(self.block_copied, "i8", LINE)
        self.packed, self.sums = scratch, e.pointer(scratch, "i8", packed)
        self.copied = self.rows_copy = e.pointer(scratch, "i8", packed + sums)
        self.offsets = e.pointer(scratch, "i8", packed + sums + copied)
        self.soon = e.pointer(scratch, "i8", packed + sums + copied + 8 * depths.offset_count)

    # -- blocks ------------------------------------------------------------------------------------

    def _outer_loops(self) -> None:
        e, index, p = self.e, self.memory.index, self.product
        begin, end = Value(e, "%begin", "i64", 1, 0), Value(e, "%end", "i64", 1, 0)
        rows, columns = points_of(p.rows), self.column.extent
        self._store_offsets()
        tiles.clear_entries(e, self.soon, self.entries, self.sums)
        with e.loop(begin, end, 1, sure=True) as point:
            point, across = self._quotient(point, p.column_blocks)
            rows_read = point
            if p.left.index.symbols.isdisjoint(self.kernel.loops):
                # the rows are read once, for the whole batch
                down, point = self._quotient(point, points_of(self.kernel.loops))
                rows_read = down
            else:
                point, down = self._quotient(point, p.row_blocks)
            if self.keeps:
                before = e.here(f"load i64, ptr {self.block_copied.text}, align 8", "i64", 1)
                self.copies_anew = e.compare("ne", rows_read + 1, before)
                e.line(f"store i64 {(rows_read + 1).text}, ptr {self.block_copied.text}, align 8")
            self._bind_point(point, self.kernel.loops)
            first = down * p.row_block, across * p.column_block
            last = (
                e.intrinsic("smin", (first[0] + p.row_block, index(rows))),
                e.intrinsic("smin", (first[1] + p.column_block, index(columns))),
            )
            self._depths(first, last)

    def _quotient(self, number: Value, extent: Expr) -> tuple[Value, Value]:
        """Quotient and remainder."""
        if extent is ONE:
            return number, self.e.constant(0, "i64")
        divisor = self.memory.index(extent)
        return self.e.binary("udiv", number, divisor), self.e.binary("urem", number, divisor)

    def _store_offsets(self) -> None:
        """Store how many bytes each tap's elements of the left operand are from the first tap's."""
        e = self.e
        symbols = self.depths.taps
        extents = []
        for s in symbols:
            extents.append(s.extent.constant or 0)
        if self.depths.run is not None:
            symbols, extents = (self.depths.run,), [self.depths.steps]
        for number, tap in enumerate(itertools.product(*map(range, extents))):
            offset = ZERO
            for symbol, k in zip(symbols, tap):
                offset = offset + coefficient(self.product.left, symbol) * k
            place = e.pointer(self.offsets, "i64", number)
            bytes_ = self.memory.index(offset * self.tile.size)
            e.line(f"store i64 {bytes_.text}, ptr {place.text}, align 8")

    def _depths(self, first: tuple[Value, Value], last: tuple[Value, Value]) -> None:
        """Run over the reduction: its outer loops point by point, the one that is cut depth by
        depth."""
        e, memory = self.e, self.memory
        extent = memory.index(self.depths.cut.extent)
        zero = e.constant(0, "i64")
        with ExitStack() as loops:
            done, left = zero, zero  # 0 at the first and at the last of all depths
            memory.bound |= dict.fromkeys((*self.depths.taps, self.depths.inner), zero)
            for symbol in self.depths.outer:
                bound = memory.index(symbol.extent)
                at = loops.enter_context(e.loop(zero, bound, 1, sure=False))
                memory.bound[symbol] = at
                done, left = done | at, left | (bound - 1 - at)
            if self.depths.whole:
                memory.bound[self.depths.cut] = zero
                self._panels(first, last, self._amount(extent), None, None)
                return
            at = loops.enter_context(e.loop(zero, extent, self.depths.steps, sure=False))
            memory.bound[self.depths.cut] = at
            count = e.intrinsic("smin", (extent - at, self.depths.steps))
            left = left | (extent - at - count)
            ends = e.compare("ne", done | at, 0), e.compare("eq", left, 0)
            self._panels(first, last, self._amount(count), *ends)

    def _amount(self, count: Value) -> _Amount:
        """What is summed within a depth that has `count` iterations of the loop that is cut."""
        if self.depths.run is None:
            return _Amount(count, self.e.constant(self.depths.tap_count, "i64"))
        return _Amount(self.memory.index(self.depths.inner.extent), count)

    # -- panels and tiles --------------------------------------------------------------------------

    def _panels(
        self,
        first: tuple[Value, Value],
        last: tuple[Value, Value],
        amount: _Amount,
        add: Value | None,
        final: Value | None,
    ) -> None:
        """Pack the block's columns, multiply tile by tile, and finish tiles in the last depth."""
        e, tile, start = self.e, self.tile, first[1]
        if self.direct:  # only columns that do not fill a tile are packed
            start = last[1] - e.binary("urem", last[1] - start, tile.width)
        if not self.in_panels:
            with e.loop(start, last[1], tile.width, sure=not self.direct) as column:
                self._pack(column, first[1], last[1], amount)
        if self.copies:
            self._copy_rows(first[0], last[0], amount)
        with e.loop(first[1], last[1], tile.width, sure=True) as column:
            panel = self._panel(column, first[1], last[1], amount)
            stop = e.intrinsic("smin", (column + tile.width, last[1]))
            with e.loop(first[0], last[0], tile.rows, sure=True) as row:
                sums = self.sums
                if not self.depths.whole:
                    place = (column - first[1]) * self.row_block + (row - first[0]) * tile.width
                    sums = e.pointer(self.sums, tile.type, place)
                self._fetch_ahead((row, column), first, last, final)
                self._multiply(row, first[0], last[0], panel, amount, sums, add)
                self._finish(row, last[0], column, stop, sums, final)

    def _pack(self, column: Value, first: Value, last: Value, amount: _Amount) -> None:
        e, tile = self.e, self.tile
        self.memory.bound[self.column] = column
        packed = e.pointer(self.packed, tile.type, (column - first) * self.depths.length)
        there = e.intrinsic("smin", (last - column, tile.width))
        if self.depths.run is None:
            self._pack_rows(packed, there, amount.steps * self.depths.tap_count)
            return
        start = self.memory.bound[self.depths.run]
        with e.loop(e.constant(0, "i64"), amount.taps, 1, sure=True) as number:
            self.memory.bound[self.depths.run] = start + number
            place = e.pointer(packed, tile.type, number * (amount.steps * tile.width))
            self._pack_rows(place, there, amount.steps)
        self.memory.bound[self.depths.run] = start

    def _pack_rows(self, packed: Value, there: Value, count: Value) -> None:
        """`count` rows of the right operand from the present point on, of `there` columns each."""
        e, tile, right = self.e, self.tile, self.product.right
        source = self._element(right)
        along_columns = coefficient(right, self.column)
        inwards = coefficient(right, self.depths.innermost)
        step = self.memory.index(along_columns * tile.size)
        along = self.memory.index(inwards * tile.size)
        self._check(right, source, (there, step), (count, along))
        if (self.column.extent.constant or 1) % tile.width:
            partial, none = e.compare("slt", there, tile.width), e.constant(0, "i64")
            self._clear(packed, e.select(partial, count * tile.width, none))
        if inwards is ONE and along_columns is not ONE:
            ahead = 0
            if not self.depths.whole and not self.fetches:
                ahead = self.depths.steps * self.depths.tap_count
            name, text = transpose(tile.type, tile.width, tile.lanes * tile.size, ahead)
            e.declarations.add(text)
            e.declare("void", PREFETCH, "ptr, i32, i32, i32")
            e.declare("i64", "llvm.smin.i64", "i64, i64")
            stride = self.memory.index(along_columns)
            values = f"i64 {stride.text}, ptr {packed.text}, i64 {there.text}, i64 {count.text}"
            e.line(f"call void {name}(ptr {source.text}, {values})")
            return
        anyhow = self._shared(tiles.pack_any(tile))
        pack = anyhow
        if along_columns is ONE:
            pack = self._shared(tiles.pack_rows(tile))
        values = ", ".join(f"i64 {v.text}" for v in (step, along, count, there))
        e.line(f"call void @{pack}(ptr {source.text}, {values}, ptr {packed.text})")

    def _copy_rows(self, first: Value, last: Value, amount: _Amount) -> None:
        """The block's rows of the left operand: those of a tile side by side, step after step."""
        e, tile, left = self.e, self.tile, self.product.left
        self._bind_point(first, self.product.rows)
        source, along, there = (
            self._element(left),
            self._stride(left, self.depths.inner),
            last - first,
        )
        self._check(left, source, (there, tile.size), (amount.steps, along))
        if self.copies_anew is not None:
            number = e.binary("udiv", self.memory.bound[self.depths.cut], self.depths.steps)
            self.rows_copy = e.pointer(self.copied, "i8", number * self.copied_bytes)
            there = e.select(self.copies_anew, there, e.constant(0, "i64"))
        distance = e.constant(self.tile_distance * tile.size, "i64")
        values = ", ".join(f"i64 {v.text}" for v in (along, amount.steps, there, distance))
        copy = self._shared(tiles.copy_rows(tile))
        e.line(f"call void @{copy}(ptr {source.text}, {values}, ptr {self.rows_copy.text})")

    def _clear(self, start: Value, count: Value) -> None:
        """Zeros, whole vectors of them. No sum that is used depends on columns that are not there,
        but arithmetic with what memory happens to hold may be slow: denormal numbers are."""
        e, tile = self.e, self.tile
        with e.loop(e.constant(0, "i64"), count, tile.lanes, sure=False) as at:
            place = e.pointer(start, tile.type, at)
            vector = f"<{tile.lanes} x {tile.type}>"
            e.line(f"store {vector} zeroinitializer, ptr {place.text}, align {tile.size}")

    def _panel(
        self, column: Value, first: Value, last: Value, amount: _Amount
    ) -> tuple[Value, Value, Value]:
        """Where the columns of a tile begin, and the bytes from one step to the next and from one
        tap to the next."""
        e, tile, right = self.e, self.tile, self.product.right
        row = e.constant(tile.width * tile.size, "i64")
        packed = e.pointer(self.packed, tile.type, (column - first) * self.depths.length)
        if self.depths.run is None:
            steps = (row * self.depths.tap_count, row)
        else:
            steps = (row, amount.steps * row)
        if not self.in_panels and not self.direct:
            return packed, *steps
        self.memory.bound[self.column] = column
        there, along = self._element(right), self._stride(right, self.depths.inner)
        if self.depths.run is None:
            tap_stride = row
        else:
            tap_stride = self._stride(right, self.depths.run)
        if self.in_panels:
            self._check(
                right,
                there,
                (amount.steps, along),
                (amount.taps, tap_stride),
                (tile.width, tile.size),
            )
            return there, along, tap_stride
        whole = e.compare("sle", column + tile.width, last)
        self._check(
            right,
            there,
            (amount.steps, along),
            (amount.taps, tap_stride),
            (tile.width, tile.size),
            condition=whole,
        )
        values = []
        for a, b in zip((there, along, tap_stride), (packed, *steps)):
            values.append(e.select(whole, a, b))
        return values[0], values[1], values[2]

    def _multiply(
        self,
        row: Value,
        start: Value,
        stop: Value,
        panel: tuple[Value, Value, Value],
        amount: _Amount,
        sums: Value,
        add: Value | None,
    ) -> None:
        """Rows that are not there are read as the last one."""
        e = self.e
        left, tile, pointers = self.product.left, self.tile, []
        step, known = self._stride(left, self.depths.inner), None
        taps: list[tuple[Value | int, Value]] = []
        for s in self.depths.taps:
            taps.append((s.extent.constant or 0, self._stride(left, s)))
        if self.depths.run is not None:
            taps = [(amount.taps, self._stride(left, self.depths.run))]
        if self.copies:
            known = tile.rows * tile.size
            step = e.constant(known, "i64")
            number = e.binary("udiv", row - start, tile.rows)
            block = e.pointer(self.rows_copy, tile.type, number * self.tile_distance)
            for r in range(tile.rows):
                pointers.append(f"ptr {e.pointer(block, tile.type, r).text}")
        else:
            if coefficient(left, self.depths.inner) is ONE:
                known = tile.size
            for r in range(tile.rows):
                at = row
                if r:
                    at = e.intrinsic("smin", (row + r, stop - 1))
                self._bind_point(at, self.product.rows)
                pointer = self._element(left)
                self._check(left, pointer, (amount.steps, step), *taps)
                pointers.append(f"ptr {pointer.text}")
        helper = self._shared(tiles.multiply(tile, known))
        place, along, tap_stride = (v.text for v in panel)
        adds = "false"
        if add is not None:
            adds = add.text
        e.line(
            f"call void @{helper}({', '.join(pointers)}, i64 {step.text}, ptr {self.offsets.text}, "
            f"ptr {place}, i64 {along}, i64 {amount.steps.text}, i64 {tap_stride}, "
            f"i64 {amount.taps.text}, ptr {sums.text}, i1 {adds}, ptr {self.soon.text})"
        )

    def _fetch_ahead(
        self,
        at: tuple[Value, Value],
        first: tuple[Value, Value],
        last: tuple[Value, Value],
        final: Value | None,
    ) -> None:
        """Note the memory that a tile asks for as it is multiplied.

        If its sums will be complete, that is the lines that the kernel's stage reads or writes in
        its rows: writing would wait for them otherwise. If not, it is a part of what the next depth
        packs of the right operand.
        """
        e, memory, tile = self.e, self.memory, self.tile
        (stage,) = self.kernel.stages
        accesses = []
        for s in stage.stores:
            accesses.append((s.buffer, s.index))
        for i in stage.body.loads:
            accesses.append(i.attrs[:2])
        lines = []
        for buffer, index in dict.fromkeys(accesses):
            if self._lies_in_rows(index):
                size = memory.dtypes[buffer].itemsize
                for line in range(0, tile.width * size, LINE):
                    lines.append((buffer, index * size, line))
        lines = lines[: self.entries // tile.rows]
        row, column = at
        end = e.intrinsic("smin", (row + tile.rows, last[0]))
        memory.bound[self.column] = column
        if final is not None:
            end = e.select(final, end, row)
        with e.loop(row, end, 1, sure=False) as at_row:
            self._bind_point(at_row, self.product.rows)
            entries = e.pointer(self.soon, "ptr", (at_row - row) * len(lines))
            for number, (buffer, index, line) in enumerate(lines):
                start = e.pointer(memory.base[buffer], "i8", memory.index(index))
                self._note(entries, number, e.pointer(start, "i8", line))
        if final is not None and self.fetches:
            self._fetch_next_depth(at, first, last, final)

    def _fetch_next_depth(
        self,
        at: tuple[Value, Value],
        first: tuple[Value, Value],
        last: tuple[Value, Value],
        final: Value,
    ) -> None:
        """Note a share of what the next depth packs for the tiles of these columns.

        It is some of the steps where columns are adjacent, some of the columns where steps are.
        """
        e, tile, right, column = self.e, self.tile, self.product.right, at[1]
        by_steps = coefficient(right, self.column) is ONE
        extent, length = tile.width, self.depths.length
        if by_steps:
            extent, length = length, extent
        count = length * tile.size // LINE
        down = e.binary("udiv", last[0] - first[0] + tile.rows - 1, tile.rows)
        even_share = e.binary("udiv", down + extent - 1, down)
        share = e.intrinsic("smin", (even_share, self.entries // count))
        begin = e.binary("udiv", at[0] - first[0], tile.rows) * share
        stop = e.intrinsic("smin", (begin + share, extent if by_steps else last[1] - column))
        self.memory.bound[self.column] = column
        start = e.pointer(
            self._element(right), "i8", self._stride(right, self.depths.inner) * self.depths.length
        )
        stride = self._stride(right, self.depths.inner if by_steps else self.column)
        with e.loop(begin, e.select(final, begin, stop), 1, sure=False) as number:
            entries = e.pointer(self.soon, "ptr", (number - begin) * count)
            for line in range(count):
                place = e.pointer(e.pointer(start, "i8", number * stride), "i8", line * LINE)
                self._note(entries, line, place)
        if self.copies:
            self._fetch_next_rows(at, first, last, final, share * count, down)

    def _fetch_next_rows(
        self,
        at: tuple[Value, Value],
        first: tuple[Value, Value],
        last: tuple[Value, Value],
        final: Value,
        offset: Value,
        down: Value,
    ) -> None:
        """Of what the next depth copies of the left operand, this tile, one of `down` in a column,
        notes some steps."""
        e, tile, left = self.e, self.tile, self.product.left
        lines = self.product.row_block * tile.size // LINE + 1
        panels = -(-self.product.column_block // tile.width)
        number = e.binary("udiv", at[1] - first[1], tile.width) * down + e.binary(
            "udiv", at[0] - first[0], tile.rows
        )
        share = e.binary("udiv", self.depths.steps - 1 + down * panels, down * panels)
        share = e.intrinsic("smin", (share, e.binary("udiv", self.entries - offset, lines)))
        begin = number * share
        stop = e.intrinsic("smin", (begin + share, self.depths.steps))
        if self.copies_anew is not None:
            stop = e.select(self.copies_anew, stop, begin)
        self._bind_point(first[0], self.product.rows)
        along = self._stride(left, self.depths.inner)
        start, where = (
            e.pointer(self._element(left), "i8", along * self.depths.steps),
            e.pointer(self.soon, "ptr", offset),
        )
        with e.loop(begin, e.select(final, begin, stop), 1, sure=False) as step:
            entries = e.pointer(where, "ptr", (step - begin) * lines)
            for line in range(lines):
                place = e.pointer(e.pointer(start, "i8", step * along), "i8", line * LINE)
                self._note(entries, line, place)

    def _note(self, entries: Value, number: int, line: Value) -> None:
        self.e.line(
            f"store ptr {line.text}, ptr {self.e.pointer(entries, 'ptr', number).text}, align 8"
        )

    def _lies_in_rows(self, index: Expr) -> bool:
        """Whether each row of a tile has adjacent elements of its own."""
        linear = index.linear((self.column,))
        rows = not index.symbols.isdisjoint(self.product.rows)
        return rows and linear is not None and linear[1].get(self.column) is ONE

    def _finish(
        self, row: Value, last: Value, column: Value, stop: Value, sums: Value, final: Value | None
    ) -> None:
        """The kernel's stage on the tile, if its sums are complete."""
        e = self.e
        (stage,) = self.kernel.stages
        end = e.intrinsic("smin", (row + self.tile.rows, last))
        if final is not None:
            end = e.select(final, end, row)
        with e.loop(row, end, 1, sure=False) as at:
            self._bind_point(at, self.product.rows)
            place = e.pointer(sums, self.tile.type, (at - row) * self.tile.width)
            self.at_tile = place, column
            self._finish_row(column, stop, stage)

    def _finish_row(self, column: Value, stop: Value, stage: Stage) -> None:
        e, memory, tile = self.e, self.memory, self.tile
        unroll = 1
        if choose_unroll((stage,)) >= tile.vectors:
            unroll = tile.vectors
        if (self.column.extent.constant or 1) % tile.width:
            run: Callable[[int], None] = lambda copy: self._body(stage, [], copy, memory.mask)  # noqa: E731
            self._vector_loop(self.column, column, stop, None, unroll, run)
            return
        memory.vector = self.column
        with e.loop(
            column, stop, tile.lanes * unroll, sure=True, once=unroll == tile.vectors
        ) as at:
            memory.bound[self.column] = at
            for copy in range(unroll):
                memory.shift = copy * tile.lanes
                self._body(stage, [], copy, None)
            memory.shift = 0
        memory.vector = None

    def _scalar(self, i: Instruction, args: list[Value], program: Sequence[Instruction]) -> Value:
        """The sums of the present vector of columns."""
        assert self.at_tile is not None
        e, memory = self.e, self.memory
        place, column = self.at_tile
        pointer = e.pointer(
            place, self.tile.type, memory.bound[self.column] + memory.shift - column
        )
        vector = f"<{e.lanes} x {self.tile.type}>"
        return e.here(
            f"load {vector}, ptr {pointer.text}, align {self.tile.size}", self.tile.type, e.lanes
        )

    # -- operands ----------------------------------------------------------------------------------

    def _element(self, access: Access) -> Value:
        """The address of the element at the present values of all loops."""
        return self.e.pointer(
            self.memory.base[access.buffer], self.tile.type, self.memory.index(access.index)
        )

    def _stride(self, access: Access, symbol: Symbol) -> Value:
        """Bytes from one element to the next along a loop."""
        return self.memory.index(coefficient(access, symbol) * self.tile.size)

    def _check(
        self,
        access: Access,
        first: Value,
        *spans: tuple[Value | int, Value | int],
        condition: Value | None = None,
    ) -> None:
        """Where bounds are checked: the elements from `first` on, so many in each direction, so
        many bytes apart."""
        if self.memory.fail_if is None:
            return
        last = first
        for count, stride in spans:
            last = self.e.pointer(last, "i8", (count - 1) * stride)
        for pointer in (first, last):
            self.memory.check(access.buffer, pointer, False, condition)

    def _shared(self, helper: tiles.Helper) -> str:
        """The name of a function that kernels of the module share; it will be in the module."""
        self.e.declarations |= {helper.text, *helper.declarations}
        return helper.name
