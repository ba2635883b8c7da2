"""An `AttentionBackwardKernel` as one LLVM function.

For each head, blocks of queries meet chunks of the keys that they see. The weights are computed
again from the logarithms that the forward kept, and with them the gradient of the scores; both are
blocks of scratch that stay in the cache, laid out as (keys, queries). All five products are made of
the tiles that matrix products have: two of a block of queries (and of its tangents) that is
transposed once, three of rows that are copied side by side. Gradients are added up where they are
written, a block at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ingot.codegen.llvm import tiles
from ingot.codegen.llvm.emitter import Value
from ingot.codegen.llvm.function import Function
from ingot.codegen.llvm.heads import HeadEmitter, known
from ingot.codegen.llvm.math import exp
from ingot.codegen.llvm.target import Target
from ingot.codegen.llvm.transpose import PREFETCH, transpose
from ingot.loops.expr import ZERO, Expr, Symbol, integer
from ingot.schedule.kernel import AttentionBackwardKernel, Operand

CHUNK = 192  # keys, a multiple of the rows of usual tiles
SIZE = 4  # bytes of an element
LINE = 64
Finish = Callable[[Value, Value, Value], Value]


def emit_attention_backward(
    kernel: AttentionBackwardKernel,
    symbols: Sequence[Symbol],
    target: Target,
    check_bounds: bool = False,
) -> Function:
    """The LLVM function of attention's gradients; size symbols and checks are as in
    `emit_attention`."""
    return _BackwardEmitter(kernel, symbols, target, check_bounds).function()


class _BackwardEmitter(HeadEmitter):
    def __init__(
        self,
        kernel: AttentionBackwardKernel,
        symbols: Sequence[Symbol],
        target: Target,
        check_bounds: bool,
    ) -> None:
        super().__init__(kernel.parameters, symbols, target, check_bounds)
        self.kernel, self.block = kernel, kernel.query_block
        _, heads, self.queries, self.keys, width, value_width = kernel.sizes
        self.heads, self.width, self.value_width = known(heads), known(width), known(value_width)
        most_keys = self.keys.constant
        if most_keys is None:
            self.chunk = CHUNK
        else:
            self.chunk = min(CHUNK, most_keys)
        # tiles whose columns are queries, features of queries and keys, and features of values and
        # tangents
        self.of_block = tiles.choose_tile("float", self.block, target)
        self.of_width = tiles.choose_tile("float", -(-self.width // 16) * 16, target)
        self.of_value_width = tiles.choose_tile("float", -(-self.value_width // 16) * 16, target)
        all_tiles = (self.of_block, self.of_width, self.of_value_width)
        # of weights: a last tile may go beyond
        self.rows = self.chunk + max(tile.rows for tile in all_tiles)
        self.scratch_end = 0
        self.offsets = self._reserve(LINE // SIZE)
        most_steps = max(self.width, self.value_width, self.block, self.chunk)
        self.entries = (most_steps // tiles.UNROLL + 1) * tiles.SOON
        self.soon = self._reserve(self.entries * 8 // SIZE)
        self.sums = self._reserve(max(tile.rows * tile.width for tile in all_tiles))
        self.logarithms, self.means = self._reserve(self.block), self._reserve(self.block)
        self.turned_queries = self._reserve(self.width * self.block)
        self.turned_tangents = self._reserve(self.value_width * self.block)
        self.turns_mask = kernel.mask is not None and kernel.mask.strides[2] is not ZERO
        self.turned_mask = self._reserve(self.chunk * self.block if self.turns_mask else 0)
        padded = self._padded(self.width, self.of_width)
        self.packed_queries = self._reserve(self.block * padded)
        self.packed_keys = self._reserve(self.chunk * padded)
        padded = self._padded(self.value_width, self.of_value_width)
        self.packed_tangents = self._reserve(self.block * padded)
        self.weights = self._reserve(self.rows * self.block + self.block)
        self.of_scores = self._reserve(self.rows * self.block + self.block)

    def _reserve(self, count: int) -> Value:
        """The address of `count` floats of scratch, which begin on a line."""
        start = self.scratch_end
        self.scratch_end = start + -(-count * SIZE // LINE) * LINE // SIZE
        return self.e.pointer(self.value("%scratch", "ptr"), "float", start)

    @staticmethod
    def _padded(width: int, tile: tiles.Tile) -> int:
        return -(-width // tile.width) * tile.width

    def scratch_bytes(self) -> Expr:
        return integer(SIZE * self.scratch_end)

    def begin(self) -> None:
        """Rows are read from their beginning; tiles ask ahead for something that is there, until
        more is known."""
        self.e.line(f"store i64 0, ptr {self.offsets.text}, align 8")
        tiles.clear_entries(self.e, self.soon, self.entries, self.sums)

    # -- blocks ------------------------------------------------------------------------------------

    def point(self, point: Value) -> None:
        """All gradients of one head."""
        e, kernel = self.e, self.kernel
        head, batch = e.binary("urem", point, self.heads), e.binary("udiv", point, self.heads)
        whole = self.number(self.queries)
        if kernel.causal:  # nobody sees the keys behind the queries
            for target, width in ((kernel.of_key, self.width), (kernel.of_value, self.value_width)):
                self.clear(
                    target, self.at(target, batch, head), whole, self.number(self.keys), width
                )
        with e.loop(self.number(0), whole, self.block, sure=True) as first:
            self.query_block(
                batch, head, first, self.smaller(whole - first, self.number(self.block))
            )

    def clear(self, target: Operand, start: Value, begin: Value, end: Value, width: int) -> None:
        e = self.e
        with e.loop(begin, end, 1, sure=False) as row:
            line = e.pointer(start, "float", row * self.number(target.strides[2]))
            for at, count in self.pieces(width):
                pointer = self.check(target, e.pointer(line, "float", at), count)
                self.store_first(e.splat(e.constant(0.0, "float"), self.lanes), pointer, count)

    def pieces(self, width: int) -> list[tuple[int, int]]:
        """Where the vectors of a row begin, and how many elements each has."""
        results = []
        for at in range(0, width, self.lanes):
            results.append((at, min(self.lanes, width - at)))
        return results

    def query_block(self, batch: Value, head: Value, first: Value, queries: Value) -> None:
        """What the `queries` from `first` on add to the gradients."""
        e, kernel = self.e, self.kernel
        query, tangent = (
            self.rows_at(operand, batch, head, first) for operand in (kernel.query, kernel.tangent)
        )
        self.turn(
            kernel.query, query, queries, self.number(self.width), self.turned_queries, self.width
        )
        self.turn(
            kernel.tangent,
            tangent,
            queries,
            self.number(self.value_width),
            self.turned_tangents,
            self.value_width,
        )
        self.pack(
            kernel.query, query, queries, self.width, self.of_width, self.packed_queries, self.block
        )
        self.pack(
            kernel.tangent,
            tangent,
            queries,
            self.value_width,
            self.of_value_width,
            self.packed_tangents,
            self.block,
        )
        self.numbers_of_queries(batch, head, first, queries, tangent)
        stop = self.number(self.keys)
        if kernel.causal:
            stop = self.smaller(stop, first + queries)
        with e.loop(self.number(0), stop, self.chunk, sure=True) as start:
            self.chunk_of_keys(
                batch,
                head,
                first,
                queries,
                start,
                self.smaller(stop - start, self.number(self.chunk)),
            )

    def chunk_of_keys(
        self, batch: Value, head: Value, first: Value, queries: Value, start: Value, keys: Value
    ) -> None:
        kernel = self.kernel
        key, value = (
            self.rows_at(operand, batch, head, start) for operand in (kernel.key, kernel.value)
        )
        if kernel.mask is not None and self.turns_mask:
            mask = self.e.pointer(
                self.rows_at(kernel.mask, batch, head, first),
                "float",
                start * self.number(kernel.mask.strides[3]),
            )
            self.turn(kernel.mask, mask, queries, keys, self.turned_mask, self.chunk)
        self.weigh(batch, head, first, queries, start, keys, key)
        self.differentiate_scores(first, queries, start, keys, value)
        self.pack(kernel.key, key, keys, self.width, self.of_width, self.packed_keys, self.chunk)
        of_value, of_key = (
            self.rows_at(operand, batch, head, start)
            for operand in (kernel.of_value, kernel.of_key)
        )
        self.add_to_keys(
            first, queries, start, keys, self.weights, self.packed_tangents, self.of_value_width,
            self.value_width,
            kernel.of_value, of_value,
        )  # fmt: skip
        self.add_to_keys(
            first, queries, start, keys, self.of_scores, self.packed_queries, self.of_width,
            self.width,
            kernel.of_key, of_key,
        )  # fmt: skip
        self.add_to_queries(
            first, queries, start, keys, self.rows_at(kernel.of_query, batch, head, first)
        )

    def rows_at(self, operand: Operand, batch: Value, head: Value, row: Value) -> Value:
        """The address of an operand's row."""
        return self.e.pointer(
            self.at(operand, batch, head), "float", row * self.number(operand.strides[2])
        )

    # -- operands as tiles read them ---------------------------------------------------------------

    def turn(
        self,
        operand: Operand,
        source: Value,
        rows: Value,
        columns: Value,
        target: Value,
        most_columns: int,
    ) -> None:
        """Transpose rows into panels as wide as a tile of queries: its columns one after the other
        in each."""
        e, tile, stride = self.e, self.of_block, self.number(operand.strides[2])
        name, text = transpose("float", tile.width, self.bytes)
        e.declarations.add(text)
        e.declare("void", PREFETCH, "ptr, i32, i32, i32")
        e.declare("i64", "llvm.smin.i64", "i64, i64")
        with e.loop(
            self.number(0), rows, tile.width, sure=True, once=tile.width == self.block
        ) as row:
            there = self.smaller(rows - row, self.number(tile.width))
            start = e.pointer(source, "float", row * stride)
            self.check(operand, start, columns)
            self.check(operand, e.pointer(start, "float", (there - 1) * stride), columns)
            panel = e.pointer(target, "float", row * most_columns)
            self.clear_partial(panel, there, tile.width, columns)
            values = f"i64 {stride.text}, ptr {panel.text}, i64 {there.text}, i64 {columns.text}"
            e.line(f"call void {name}(ptr {start.text}, {values})")

    def pack(
        self,
        operand: Operand,
        source: Value,
        rows: Value,
        width: int,
        tile: tiles.Tile,
        target: Value,
        most_rows: int,
    ) -> None:
        """Copy rows into panels as wide as the tile."""
        e, along = self.e, self.number(operand.strides[2])
        for at in range(0, width, tile.width):
            there = min(tile.width, width - at)
            start, panel = (
                e.pointer(source, "float", at),
                e.pointer(target, "float", at * most_rows),
            )
            self.check(operand, start, there)
            self.check(operand, e.pointer(start, "float", (rows - 1) * along), there)
            if there < tile.width:
                self.clear_partial(panel, self.number(there), tile.width, rows)
            self.shared(tiles.pack_any(tile))
            copy = self.shared(tiles.pack_rows(tile))
            values = f"i64 {SIZE}, i64 {(along * SIZE).text}, i64 {rows.text}, i64 {there}"
            e.line(f"call void @{copy}(ptr {start.text}, {values}, ptr {panel.text})")

    def clear_partial(self, panel: Value, there: Value, width: int, rows: Value) -> None:
        """Zeros where a panel is not full. What comes of these is not used, but numbers that happen
        to be denormal would make it slow."""
        e = self.e
        end = e.select(e.compare("slt", there, width), rows * width, e.constant(0, "i64"))
        with e.loop(self.number(0), end, self.lanes, sure=False) as at:
            self.store(e.constant(0.0, "float"), e.pointer(panel, "float", at))

    def numbers_of_queries(
        self, batch: Value, head: Value, first: Value, queries: Value, tangent: Value
    ) -> None:
        """Keep the logarithms of the sums, and the means of the weights' gradients: those of the
        result tell them."""
        e, kernel = self.e, self.kernel
        logarithms = self.at(kernel.logarithms, batch, head)
        result = self.rows_at(kernel.result, batch, head, first)
        for vector in range(0, self.block, self.lanes):
            for place in (self.logarithms, self.means):
                self.store(e.constant(0.0, "float"), e.pointer(place, "float", vector))
        with e.loop(self.number(0), queries, 1, sure=True) as row:
            pointer = e.pointer(
                logarithms, "float", (first + row) * self.number(kernel.logarithms.strides[2])
            )
            value = self.load_scalar(self.check(kernel.logarithms, pointer))
            e.line(
                f"store float {value.text}, ptr {e.pointer(self.logarithms, 'float', row).text}, "
                f"align {SIZE}"
            )
            lines = []
            for operand, start in ((kernel.tangent, tangent), (kernel.result, result)):
                lines.append(
                    (operand, e.pointer(start, "float", row * self.number(operand.strides[2])))
                )
            total = e.splat(e.constant(0.0, "float"), self.lanes)
            for at, count in self.pieces(self.value_width):
                a, b = (
                    self.load_first(self.check(operand, e.pointer(line, "float", at), count), count)
                    for operand, line in lines
                )
                total = e.fma(a, b, total)
            while total.lanes > 1:
                low, high = e.half_vectors(total)
                total = low + high
            e.line(
                f"store float {total.text}, ptr {e.pointer(self.means, 'float', row).text}, align "
                f"{SIZE}"
            )

    # -- weights and the gradients of scores -------------------------------------------------------

    def weigh(
        self,
        batch: Value,
        head: Value,
        first: Value,
        queries: Value,
        start: Value,
        keys: Value,
        source: Value,
    ) -> None:
        """The weights of a chunk of keys, which begin at `source`, for the block's queries."""
        e, kernel = self.e, self.kernel
        mask = None
        if kernel.mask is not None and not self.turns_mask:
            mask = self.at(kernel.mask, batch, head)

        def weight(key: Value, query: Value, sums: Value) -> Value:
            score = self.load(sums, aligned=True) * kernel.scale
            if kernel.mask is not None and self.turns_mask:
                width = self.of_block.width
                panel = e.binary("udiv", query, width) * (width * self.chunk) + e.binary(
                    "urem", query, width
                )
                score = score + self.load(e.pointer(self.turned_mask, "float", panel + key * width))
            elif kernel.mask is not None and mask is not None:
                at = self.smaller(start + key, self.number(self.keys - 1)) * self.number(
                    kernel.mask.strides[3]
                )
                score = score + self.load_scalar(
                    self.check(kernel.mask, e.pointer(mask, "float", at))
                )
            power = exp(score - self.load(e.pointer(self.logarithms, "float", query), aligned=True))
            if kernel.causal:
                distance = e.cast("trunc", start + key - first - query, "i32")
                sees = e.compare("sge", e.iota("i32"), distance)
                power = e.select(sees, power, e.constant(0.0, "float"))
            return power

        self.tiles_of_scores(
            kernel.key,
            source,
            self.width,
            self.turned_queries,
            first,
            queries,
            start,
            keys,
            weight,
            self.weights,
        )

    def differentiate_scores(
        self, first: Value, queries: Value, start: Value, keys: Value, source: Value
    ) -> None:
        """The gradients of the scores, of values that begin at `source`."""
        e, kernel = self.e, self.kernel

        def gradient(key: Value, query: Value, sums: Value) -> Value:
            above = self.load(sums, aligned=True) - self.load(
                e.pointer(self.means, "float", query), aligned=True
            )
            weight = self.load(
                e.pointer(self.weights, "float", key * self.block + query), aligned=True
            )
            return weight * above * kernel.scale

        self.tiles_of_scores(
            kernel.value, source, self.value_width, self.turned_tangents, first, queries, start,
            keys, gradient,
            self.of_scores,
        )  # fmt: skip

    def tiles_of_scores(
        self, operand: Operand, source: Value, steps: int, turned: Value, first: Value,
        queries: Value, start: Value,
        keys: Value, finish: Finish, target: Value,
    ) -> None:  # fmt: skip
        """Multiply rows of keys or values with the block's queries or tangents.

        The results of `finish(key, query, address of sums)` for each vector of a tile are stored.
        """
        e, tile, stride = self.e, self.of_block, self.number(operand.strides[2])
        with e.loop(self.number(0), keys, tile.rows, sure=True) as key:
            rows = []
            for r in range(tile.rows):
                at = self.smaller(key + r, keys - 1)
                rows.append(self.check(operand, e.pointer(source, "float", at * stride), steps))
            begin = self.number(0)
            # queries far before these keys do not see them
            if self.kernel.causal and tile.width < self.block:
                begin = e.intrinsic("smax", (start + key - first - tile.rows, begin))
                begin = begin - e.binary("urem", begin, tile.width)
            with e.loop(
                begin, queries, tile.width, sure=True, once=tile.width == self.block
            ) as query:
                panel = e.pointer(turned, "float", query * steps)
                self.multiply(tile, rows, SIZE, panel, self.number(steps))
                with e.loop(self.number(0), self.number(tile.rows), 1, sure=True) as row:
                    for v in range(tile.vectors):
                        sums = e.pointer(self.sums, "float", row * tile.width + v * self.lanes)
                        at = e.pointer(
                            target, "float", (key + row) * self.block + query + v * self.lanes
                        )
                        self.store(finish(key + row, query + v * self.lanes, sums), at)

    def multiply(
        self, tile: tiles.Tile, rows: Sequence[Value], step: int, panel: Value, count: Value
    ) -> None:
        """The sums of a tile: of elements of the rows, `step` bytes apart, times the rows of a
        panel."""
        e = self.e
        helper = self.shared(tiles.multiply(tile, step))
        pointers = "".join(map("ptr {0.text}, ".format, rows))
        e.line(
            f"call void @{helper}({pointers}i64 {step}, ptr {self.offsets.text}, ptr {panel.text}, "
            f"i64 {tile.width * SIZE}, i64 {count.text}, i64 0, i64 1, ptr {self.sums.text}, i1 "
            "false, "
            f"ptr {self.soon.text})"
        )

    def shared(self, helper: tiles.Helper) -> str:
        """The name of a function that kernels of the module share; it will be in the module."""
        self.e.declarations |= {helper.text, *helper.declarations}
        return helper.name

    # -- gradients ---------------------------------------------------------------------------------

    def add_to_keys(
        self, first: Value, queries: Value, start: Value, keys: Value, factors: Value,
        packed: Value,
        tile: tiles.Tile, width: int, operand: Operand, target: Value,
    ) -> None:  # fmt: skip
        """Add the products of factors (key, query) with packed rows of queries to rows of a
        gradient."""
        e = self.e
        with e.loop(self.number(0), keys, tile.rows, sure=True) as key:
            begin = self.number(0)
            if self.kernel.causal:  # the first query that sees the first of these keys
                begin = e.intrinsic("smax", (start + key - first, begin))
            place = e.pointer(factors, "float", key * self.block + begin)
            rows = []
            for r in range(tile.rows):
                rows.append(e.pointer(place, "float", r * self.block))
            there = self.smaller(keys - key, self.number(tile.rows))
            fresh = first
            if self.kernel.causal:  # the blocks before see the keys before this one
                fresh = first - start - key
            for at in range(0, width, tile.width):
                panel = e.pointer(packed, "float", begin * tile.width + at * self.block)
                self.fetch(tile, operand, target, key, at)
                self.multiply(tile, rows, SIZE, panel, queries - begin)
                self.add(tile, operand, target, key, there, at, width, fresh)

    def add_to_queries(
        self, first: Value, queries: Value, start: Value, keys: Value, target: Value
    ) -> None:
        """Add the products of the scores' gradients with the chunk's keys to the queries'
        gradient."""
        e, tile = self.e, self.of_width
        begin = self.number(0)
        if self.kernel.causal:  # the first query that sees a key of the chunk
            begin = e.intrinsic("smax", (start - first, begin))
        with e.loop(begin, queries, tile.rows, sure=True) as query:
            count = keys
            if self.kernel.causal:
                count = self.smaller(keys, first + query + tile.rows - start)
            place = e.pointer(self.of_scores, "float", query)
            rows = []
            for r in range(tile.rows):
                rows.append(e.pointer(place, "float", r))
            there = self.smaller(queries - query, self.number(tile.rows))
            for at in range(0, self.width, tile.width):
                panel = e.pointer(self.packed_keys, "float", at * self.chunk)
                self.fetch(tile, self.kernel.of_query, target, query, at)
                self.multiply(tile, rows, self.block * SIZE, panel, count)
                self.add(tile, self.kernel.of_query, target, query, there, at, self.width, start)

    def fetch(
        self, tile: tiles.Tile, operand: Operand, target: Value, row: Value, column: int
    ) -> None:
        """Note the lines that the sums of a tile will be added to, to be asked for while it is
        multiplied."""
        e, lines = self.e, range(0, tile.width * SIZE, LINE)
        places = [(r, line) for r in range(tile.rows) for line in lines]
        for number, (r, line) in enumerate(places[: self.entries]):
            start = e.pointer(target, "float", (row + r) * self.number(operand.strides[2]))
            place = e.pointer(e.pointer(start, "float", column), "i8", line)
            e.line(
                f"store ptr {place.text}, ptr {e.pointer(self.soon, 'ptr', number).text}, align 8"
            )

    def add(
        self, tile: tiles.Tile, operand: Operand, target: Value, row: Value, there: Value,
        column: int, width: int,
        fresh: Value,
    ) -> None:  # fmt: skip
        """Add the sums of a tile to so many rows of a gradient, of which those from number `fresh`
        on hold nothing."""
        e = self.e
        with e.loop(self.number(0), there, 1, sure=True) as number:
            empty = e.compare("sge", number, fresh)
            line = e.pointer(target, "float", (row + number) * self.number(operand.strides[2]))
            for at, count in self.pieces(min(tile.width, width - column)):
                sums = self.load(
                    e.pointer(self.sums, "float", number * tile.width + at), aligned=True
                )
                pointer = self.check(operand, e.pointer(line, "float", column + at), count)
                before = e.select(empty, e.constant(0.0, "float"), self.load_first(pointer, count))
                self.store_first(before + sums, pointer, count)
