"""A kernel that contracts: blocks of rows and columns, tiles within them, and the kernel's stage on
each finished tile.

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
from ingot.codegen.llvm.emitter import Value
from ingot.codegen.llvm.kernel import Function, KernelEmitter
from ingot.codegen.llvm.target import Target
from ingot.codegen.llvm.transpose import PREFETCH, transpose
from ingot.codegen.llvm.types import REPRESENTATIONS
from ingot.codegen.llvm.unrolling import choose_unroll
from ingot.loops.expr import ONE, ZERO, Expr, Symbol, integer, product
from ingot.loops.ir import Access, Instruction
from ingot.schedule.contraction import KEPT
from ingot.schedule.kernel import Kernel, Product, Stage

DEPTH = 128  # steps of the reduction that one chain of multiply-adds takes: longer ones round worse
# bytes of the right operand that a depth packs for a tile, at most, where the left one is copied
# too:
PANEL = 24 << 10
# a tile's share of both stays in the first-level cache

LINE = 64  # bytes of memory that are fetched together

# up to so many, a right operand whose columns are adjacent is read where it lies: packing takes
# longer
FEW_ROWS = 32


def emit_contraction(
    kernel: Kernel, symbols: Sequence[Symbol], target: Target, check_bounds: bool = False
) -> Function:
    """The LLVM function of a kernel that has a product. With `check_bounds`, an access outside of a
    buffer of known length reports `OutOfBounds`; of what a tile or a panel is made of, the first
    and the last element are checked."""
    assert kernel.product is not None
    return _ContractionEmitter(kernel, kernel.product, symbols, target, check_bounds).function()


class _Amount(NamedTuple):
    """What is summed within a depth: so many steps of the innermost loop, at so many taps."""

    steps: Value
    taps: Value


class _ContractionEmitter(KernelEmitter):
    def __init__(
        self,
        kernel: Kernel,
        product: Product,
        symbols: Sequence[Symbol],
        target: Target,
        check_bounds: bool,
    ) -> None:
        form = REPRESENTATIONS[product.dtype]
        together = tiles.TOGETHER if product.copies else 0
        self.tile = tiles.choose_tile(
            form.register, product.column_block, target, product.row_block, together
        )
        super().__init__(kernel, symbols, target, check_bounds, self.tile.lanes)
        self.product = product
        self.column, self.inner = product.columns[0], product.reduced[-1]
        tile = self.tile
        self.taps = _taps(product)
        self.tap_count = math.prod(s.extent.constant or 0 for s in self.taps)
        self.innermost = self.taps[-1] if self.taps else self.inner  # of the right operand
        self.outer = product.reduced[: -1 - len(self.taps)]
        self.cut = self.inner
        steps = (
            _even_steps(self.inner, tile) if product.copies else _steps(self.tap_count, tile.lanes)
        )
        self.run = _run(product, self.outer)
        if self.run is not None:
            self.outer, self.cut, steps = (
                self.outer[:-1],
                self.run,
                DEPTH // (self.inner.extent.constant or 1),
            )
        extent = self.cut.extent.constant
        self.whole = not self.outer and extent is not None and extent <= steps
        # of the loop that is cut, within one depth
        self.steps = extent if self.whole and extent else steps
        of_step = self.tap_count if self.run is None else self.inner.extent.constant or 1
        self.depth = -(-self.steps * of_step // tile.lanes) * tile.lanes
        self.offset_count = self.tap_count if self.run is None else self.steps
        self.row_block = -(-product.row_block // tile.rows) * tile.rows
        packs_rows = (
            not product.panel and not self.taps and _coefficient(product.right, self.column) is ONE
        )
        as_packed = (
            _coefficient(product.right, self.inner) is self.column.extent is integer(tile.width)
        )
        # the right operand already lies like that
        self.in_panels = bool(product.panel) or (packs_rows and as_packed)
        packed = 0 if self.in_panels else self.depth * product.column_block * tile.size
        sums = (
            tile.rows * tile.width if self.whole else self.row_block * product.column_block
        ) * tile.size
        self.copies = product.copies
        # from tile to tile: not all in the same set of a cache
        self.apart = self.depth * tile.rows + 64 // tile.size
        self.copied_bytes = (
            self.row_block // tile.rows * self.apart * tile.size if self.copies else 0
        )
        self.keeps = (
            self.copies and extent is not None and product.row_block * extent * tile.size <= KEPT
        )
        copied = self.copied_bytes * (-(-(extent or 0) // self.steps) if self.keeps else 1)
        self.entries = (self.depth // tiles.UNROLL + 1) * tiles.SOON
        self.scratch = integer(
            LINE + packed + sums + copied + 8 * (self.offset_count + self.entries)
        )
        # 1 + the number of the block whose rows are kept
        self.block_copied = Value(self.e, "%scratch", "ptr", 1, 0)
        scratch = self.e.pointer(self.block_copied, "i8", LINE)
        self.packed, self.sums = scratch, self.e.pointer(scratch, "i8", packed)
        self.copied = self.e.pointer(scratch, "i8", packed + sums)
        self.rows_copy = self.copied
        self.offsets = self.e.pointer(scratch, "i8", packed + sums + copied)
        self.soon = self.e.pointer(scratch, "i8", packed + sums + copied + 8 * self.offset_count)
        rows = math.prod(s.extent.constant or FEW_ROWS + 1 for s in product.rows)
        self.direct = rows <= FEW_ROWS and packs_rows and not self.in_panels
        in_one_loop = not (self.whole or self.outer or self.taps or self.run is not None)
        packs = in_one_loop and not self.in_panels and not self.direct
        self.fetches = packs and ONE in (
            _coefficient(product.right, symbol) for symbol in (self.column, self.inner)
        )
        # whether the present block has other rows than the one before
        self.copies_anew: Value | None = None
        # where the sums of one of its rows are, and its first column
        self.at_tile: tuple[Value, Value] | None = None

    # -- blocks ------------------------------------------------------------------------------------

    def _outer_loops(self) -> None:
        e, index, p = self.e, self.memory.index, self.product
        begin, end = Value(e, "%begin", "i64", 1, 0), Value(e, "%end", "i64", 1, 0)
        rows, columns = product(s.extent for s in p.rows), self.column.extent
        self._store_offsets()
        self._clear_entries()
        with e.loop(begin, end, 1, sure=True) as point:
            point, across = self._quotient(point, p.column_blocks)
            # read the rows once, for the whole batch
            if p.left.index.symbols.isdisjoint(self.kernel.loops):
                down, point = self._quotient(point, product(s.extent for s in self.kernel.loops))
                rows_read = down
            else:
                rows_read = point
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
        """Keep where, in bytes, each tap's elements of the left operand are from those of the
        first."""
        e = self.e
        symbols = self.taps if self.run is None else (self.run,)
        extents = [s.extent.constant or 0 for s in self.taps] if self.run is None else [self.steps]
        for number, tap in enumerate(itertools.product(*map(range, extents))):
            offset = sum(
                (_coefficient(self.product.left, s) * k for s, k in zip(symbols, tap)), ZERO
            )
            place = e.pointer(self.offsets, "i64", number)
            e.line(
                f"store i64 {self.memory.index(offset * self.tile.size).text}, ptr {place.text}, "
                "align 8"
            )

    def _clear_entries(self) -> None:
        """Let what is asked for ahead be something that is there anyway, as long as nothing else is
        known."""
        e = self.e
        with e.loop(e.constant(0, "i64"), e.constant(self.entries, "i64"), 1, sure=True) as at:
            e.line(
                f"store ptr {self.sums.text}, ptr {e.pointer(self.soon, 'ptr', at).text}, align 8"
            )

    def _depths(self, first: tuple[Value, Value], last: tuple[Value, Value]) -> None:
        """Run over the reduction: its outer loops point by point, the one that is cut depth by
        depth."""
        e, memory = self.e, self.memory
        extent = memory.index(self.cut.extent)
        zero = e.constant(0, "i64")
        with ExitStack() as loops:
            done, left = zero, zero  # 0 at the first and at the last of all depths
            memory.bound.update((s, zero) for s in (*self.taps, self.inner))
            for symbol in self.outer:
                bound = memory.index(symbol.extent)
                at = loops.enter_context(e.loop(zero, bound, 1, sure=False))
                memory.bound[symbol] = at
                done, left = done | at, left | (bound - 1 - at)
            if self.whole:
                memory.bound[self.cut] = zero
                self._panels(first, last, self._amount(extent), None, None)
                return
            at = loops.enter_context(e.loop(zero, extent, self.steps, sure=False))
            memory.bound[self.cut] = at
            count = e.intrinsic("smin", (extent - at, self.steps))
            left = left | (extent - at - count)
            ends = e.compare("ne", done | at, 0), e.compare("eq", left, 0)
            self._panels(first, last, self._amount(count), *ends)

    def _amount(self, count: Value) -> _Amount:
        """What is summed within a depth that has `count` iterations of the loop that is cut."""
        if self.run is None:
            return _Amount(count, self.e.constant(self.tap_count, "i64"))
        return _Amount(self.memory.index(self.inner.extent), count)

    # -- panels and tiles --------------------------------------------------------------------------

    def _panels(
        self,
        first: tuple[Value, Value],
        last: tuple[Value, Value],
        amount: _Amount,
        add: Value | None,
        final: Value | None,
    ) -> None:
        """Pack the block's columns, tile width by tile width, then multiply and, after the last
        depth, finish tiles."""
        e, tile = self.e, self.tile
        start = (
            last[1] - e.binary("urem", last[1] - first[1], tile.width) if self.direct else first[1]
        )
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
                if not self.whole:
                    place = (column - first[1]) * self.row_block + (row - first[0]) * tile.width
                    sums = e.pointer(self.sums, tile.type, place)
                self._fetch_ahead((row, column), first, last, final)
                self._multiply(row, first[0], last[0], panel, amount, sums, add)
                self._finish(row, last[0], column, stop, sums, final)

    def _pack(self, column: Value, first: Value, last: Value, amount: _Amount) -> None:
        e, tile = self.e, self.tile
        self.memory.bound[self.column] = column
        packed = e.pointer(self.packed, tile.type, (column - first) * self.depth)
        there = e.intrinsic("smin", (last - column, tile.width))
        if self.run is None:
            self._pack_rows(packed, there, amount.steps * self.tap_count)
            return
        start = self.memory.bound[self.run]
        with e.loop(e.constant(0, "i64"), amount.taps, 1, sure=True) as number:
            self.memory.bound[self.run] = start + number
            place = e.pointer(packed, tile.type, number * (amount.steps * tile.width))
            self._pack_rows(place, there, amount.steps)
        self.memory.bound[self.run] = start

    def _pack_rows(self, packed: Value, there: Value, count: Value) -> None:
        """`count` rows of the right operand, from the present values of all loops on, of `there`
        columns each."""
        e, tile, right = self.e, self.tile, self.product.right
        source = self._element(right)
        along_columns, inwards = (_coefficient(right, s) for s in (self.column, self.innermost))
        step, along = (self.memory.index(stride * tile.size) for stride in (along_columns, inwards))
        self._check(right, source, (there, step), (count, along))
        if (self.column.extent.constant or 1) % tile.width:
            self._clear(
                packed,
                e.select(
                    e.compare("slt", there, tile.width), count * tile.width, e.constant(0, "i64")
                ),
            )
        if inwards is ONE and along_columns is not ONE:
            ahead = 0 if self.whole or self.fetches else self.steps * self.tap_count
            name, text = transpose(tile.type, tile.width, tile.lanes * tile.size, ahead)
            e.declarations.add(text)
            e.declare("void", PREFETCH, "ptr, i32, i32, i32")
            e.declare("i64", "llvm.smin.i64", "i64, i64")
            stride = self.memory.index(along_columns)
            values = f"i64 {stride.text}, ptr {packed.text}, i64 {there.text}, i64 {count.text}"
            e.line(f"call void {name}(ptr {source.text}, {values})")
            return
        anyhow = self._shared(tiles.pack_any(tile))
        pack = self._shared(tiles.pack_rows(tile)) if along_columns is ONE else anyhow
        values = ", ".join(f"i64 {v.text}" for v in (step, along, count, there))
        e.line(f"call void @{pack}(ptr {source.text}, {values}, ptr {packed.text})")

    def _copy_rows(self, first: Value, last: Value, amount: _Amount) -> None:
        """The block's rows of the left operand: those of a tile side by side, step after step."""
        e, tile, left = self.e, self.tile, self.product.left
        self._bind_point(first, self.product.rows)
        source, along, there = self._element(left), self._stride(left, self.inner), last - first
        self._check(left, source, (there, tile.size), (amount.steps, along))
        if self.copies_anew is not None:
            number = e.binary("udiv", self.memory.bound[self.cut], self.steps)
            self.rows_copy = e.pointer(self.copied, "i8", number * self.copied_bytes)
            there = e.select(self.copies_anew, there, e.constant(0, "i64"))
        apart = e.constant(self.apart * tile.size, "i64")
        values = ", ".join(f"i64 {v.text}" for v in (along, amount.steps, there, apart))
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
        packed = e.pointer(self.packed, tile.type, (column - first) * self.depth)
        steps = (row * self.tap_count, row) if self.run is None else (row, amount.steps * row)
        if not self.in_panels and not self.direct:
            return packed, *steps
        self.memory.bound[self.column] = column
        there, along = self._element(right), self._stride(right, self.inner)
        apart = row if self.run is None else self._stride(right, self.run)
        if self.in_panels:
            self._check(
                right, there, (amount.steps, along), (amount.taps, apart), (tile.width, tile.size)
            )
            return there, along, apart
        whole = e.compare("sle", column + tile.width, last)
        self._check(
            right,
            there,
            (amount.steps, along),
            (amount.taps, apart),
            (tile.width, tile.size),
            condition=whole,
        )
        chosen = [e.select(whole, a, b) for a, b in zip((there, along, apart), (packed, *steps))]
        return chosen[0], chosen[1], chosen[2]

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
        left, pointers = self.product.left, []
        step = self._stride(left, self.inner)
        taps: list[tuple[Value | int, Value]] = [
            (s.extent.constant or 0, self._stride(left, s)) for s in self.taps
        ]
        if self.run is not None:
            taps = [(amount.taps, self._stride(left, self.run))]
        if self.copies:
            step = e.constant(self.tile.rows * self.tile.size, "i64")
            number = e.binary("udiv", row - start, self.tile.rows)
            block = e.pointer(self.rows_copy, self.tile.type, number * self.apart)
            pointers = [
                f"ptr {e.pointer(block, self.tile.type, r).text}" for r in range(self.tile.rows)
            ]
        for r in range(0 if self.copies else self.tile.rows):
            at = row if r == 0 else e.intrinsic("smin", (row + r, stop - 1))
            self._bind_point(at, self.product.rows)
            pointer = self._element(left)
            self._check(left, pointer, (amount.steps, step), *taps)
            pointers.append(f"ptr {pointer.text}")
        adjacent = _coefficient(left, self.inner) is ONE
        known = (
            self.tile.size * (self.tile.rows if self.copies else 1)
            if self.copies or adjacent
            else None
        )
        helper = self._shared(tiles.multiply(self.tile, known))
        along, apart = (v.text for v in panel[1:])
        e.line(
            f"call void @{helper}({', '.join(pointers)}, i64 {step.text}, ptr {self.offsets.text}, "
            f"ptr {panel[0].text}, i64 {along}, i64 {amount.steps.text}, i64 {apart}, i64 "
            f"{amount.taps.text}, "
            f"ptr {sums.text}, i1 {'false' if add is None else add.text}, ptr {self.soon.text})"
        )

    def _fetch_ahead(
        self,
        at: tuple[Value, Value],
        first: tuple[Value, Value],
        last: tuple[Value, Value],
        final: Value | None,
    ) -> None:
        """Note what a tile asks for as it is multiplied. If its sums will be complete, that is the
        lines of memory that the kernel's stage reads or writes in its rows: writing would wait for
        them otherwise. If not, it is a part of what the next depth packs of the right operand."""
        e, memory, tile = self.e, self.memory, self.tile
        (stage,) = self.kernel.stages
        accesses = [(s.buffer, s.index) for s in stage.stores] + [
            i.attrs[:2] for i in stage.body.loads
        ]
        lines = [
            (buffer, index * memory.dtypes[buffer].itemsize, line)
            for buffer, index in dict.fromkeys(accesses)
            if self._lies_in_rows(index)
            for line in range(0, tile.width * memory.dtypes[buffer].itemsize, LINE)
        ][: self.entries // tile.rows]
        row, column = at
        end = e.intrinsic("smin", (row + tile.rows, last[0]))
        memory.bound[self.column] = column
        with e.loop(
            row, end if final is None else e.select(final, end, row), 1, sure=False
        ) as at_row:
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
        """Of what the next depth packs for the tiles of these columns, this one notes a share: some
        of the steps where columns are adjacent, some of the columns where steps are."""
        e, tile, right, column = self.e, self.tile, self.product.right, at[1]
        by_steps = _coefficient(right, self.column) is ONE
        extent, length = (self.depth, tile.width) if by_steps else (tile.width, self.depth)
        count = length * tile.size // LINE
        down = e.binary("udiv", last[0] - first[0] + tile.rows - 1, tile.rows)
        share = e.intrinsic(
            "smin", (e.binary("udiv", down + extent - 1, down), self.entries // count)
        )
        begin = e.binary("udiv", at[0] - first[0], tile.rows) * share
        stop = e.intrinsic("smin", (begin + share, extent if by_steps else last[1] - column))
        self.memory.bound[self.column] = column
        start = e.pointer(self._element(right), "i8", self._stride(right, self.inner) * self.depth)
        apart = self._stride(right, self.inner if by_steps else self.column)
        with e.loop(begin, e.select(final, begin, stop), 1, sure=False) as number:
            entries = e.pointer(self.soon, "ptr", (number - begin) * count)
            for line in range(count):
                place = e.pointer(e.pointer(start, "i8", number * apart), "i8", line * LINE)
                self._note(entries, line, place)
        if self.copies:
            self._fetch_next_rows(at, first, last, final, share * count, down)

    def _fetch_next_rows(
        self,
        at: tuple[Value, Value],
        first: tuple[Value, Value],
        last: tuple[Value, Value],
        final: Value,
        noted: Value,
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
        share = e.binary("udiv", self.steps - 1 + down * panels, down * panels)
        share = e.intrinsic("smin", (share, e.binary("udiv", self.entries - noted, lines)))
        begin = number * share
        stop = e.intrinsic("smin", (begin + share, self.steps))
        if self.copies_anew is not None:
            stop = e.select(self.copies_anew, stop, begin)
        self._bind_point(first[0], self.product.rows)
        along = self._stride(left, self.inner)
        start, where = (
            e.pointer(self._element(left), "i8", along * self.steps),
            e.pointer(self.soon, "ptr", noted),
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
        unroll = tile.vectors if choose_unroll((stage,)) >= tile.vectors else 1
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
        return self.memory.index(_coefficient(access, symbol) * self.tile.size)

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
        for count, apart in spans:
            last = self.e.pointer(last, "i8", (count - 1) * apart)
        for pointer in (first, last):
            self.memory.check(access.buffer, pointer, False, condition)

    def _shared(self, helper: tiles.Helper) -> str:
        """The name of a function that kernels of the module share; it will be in the module."""
        self.e.declarations |= {helper.text, *helper.declarations}
        return helper.name


def _coefficient(access: Access, symbol: Symbol) -> Expr:
    linear = access.index.linear((symbol,))
    assert linear is not None
    return linear[1].get(symbol, integer(0))


def _taps(product: Product) -> tuple[Symbol, ...]:
    """The reduced loops of constant extent around the innermost one that lie within it in the right
    operand's memory, as the window of a convolution does within its channels: one depth packs them
    together."""
    taps: list[Symbol] = []
    stride = integer(product.panel or 1)
    for symbol in reversed(product.reduced[:-1]):
        if symbol.extent.constant is None or _coefficient(product.right, symbol) is not stride:
            break
        taps.insert(0, symbol)
        stride = stride * symbol.extent
    return tuple(taps) if _coefficient(product.right, product.reduced[-1]) is stride else ()


def _run(product: Product, outer: Sequence[Symbol]) -> Symbol | None:
    """The loop around the innermost one if several of its points, each with all steps of a short
    innermost loop, are within one depth: they are its taps then."""
    extent = product.reduced[-1].extent.constant
    without_taps = len(outer) == len(product.reduced) - 1
    return (
        outer[-1] if outer and without_taps and extent is not None and 2 * extent <= DEPTH else None
    )


def in_order(product: Product) -> tuple[Symbol, ...]:
    """The reduced loops, outermost first, as the multiply-adds run through them."""
    taps = _taps(product)
    *outer, inner = product.reduced
    return (*outer[: len(outer) - len(taps)], inner, *taps)


def _steps(taps: int, lanes: int) -> int:
    """Steps of the innermost loop in one depth, whole vectors of them where there are many."""
    steps = max(1, DEPTH // taps)
    return steps if steps < lanes // 2 else -(-steps // lanes) * lanes


def _even_steps(reduced: Symbol, tile: tiles.Tile) -> int:
    """Steps of the depths where both operands are copied: about as many in each."""
    most = min(DEPTH, PANEL // (tile.width * tile.size) // 32 * 32)
    extent = reduced.extent.constant or most
    steps = -(-extent // -(-extent // most))
    return -(-steps // tiles.UNROLL) * tiles.UNROLL
