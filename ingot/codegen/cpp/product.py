"""A kernel that contracts, as C++: blocks of rows and columns, and its stage on finished sums.

A block goes through its columns `WIDTHS` at a time, and copies those of the right operand so that
they lie side by side for each step of the reduction, at most `DEPTH` steps at a time. Few rows read
them where they lie. Within a depth a sum is one chain of multiply-adds; the chains are added in
order, so that each element's rounding depends on the sizes alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot.codegen.cpp.function import Function
from ingot.codegen.cpp.kernel import KernelWriter, Part
from ingot.codegen.cpp.types import PRODUCT, TYPES, atom, binary
from ingot.codegen.llvm.contraction import FEW_ROWS
from ingot.codegen.llvm.target import host
from ingot.loops.expr import ONE, ZERO, Expr, Symbol, integer
from ingot.loops.ir import Access
from ingot.loops.spaces import points_of
from ingot.schedule.kernel import Kernel, Product

DEPTH = 64  # steps
TILES = {64: (6, 256), 32: (4, 64), 16: (4, 32)}
"""By the bytes of a vector: rows of a tile, and bytes of its columns, whose sums fill registers."""


def has_code(product: Product) -> bool:
    """Whether there is C++ for a product: its left operand lies linearly."""
    return product.left.index.linear((*product.rows, *product.reduced)) is not None


def write_product(
    kernel: Kernel,
    symbols: Sequence[Symbol],
    check_bounds: bool = False,
    buffers: Sequence[str] = (),
) -> Function:
    """The C++ function of a kernel that has a product, as `write_kernel` has it."""
    assert kernel.product is not None
    return _ProductWriter(kernel, kernel.product, symbols, check_bounds, buffers).function()


class _ProductWriter(KernelWriter):
    def __init__(
        self,
        kernel: Kernel,
        product: Product,
        symbols: Sequence[Symbol],
        check_bounds: bool,
        buffers: Sequence[str],
    ) -> None:
        super().__init__(kernel, symbols, check_bounds, buffers)
        self.product, self.type = product, TYPES[product.dtype]
        rows, width = TILES[host().vector_bytes]
        self.height = min(rows, points_of(product.rows).constant or rows)
        self.width = width // product.dtype.itemsize
        (self.column,) = product.columns
        few = (points_of(product.rows).constant or FEW_ROWS + 1) <= FEW_ROWS
        is_row = product.right.index.step(self.column) is ONE
        self.direct = few and is_row and not check_bounds
        self.block_size = self.width

    def outer_loops(self) -> None:
        p, names = self.product, self.names
        kept = -(-p.row_block // self.height) * self.height * self.width
        self.packed = self.scratch_array("packed", DEPTH * self.width)
        self.sums = self.scratch_array("sums", kept)
        point = names.fresh("point")
        with self.block(f"for (int64_t {point} = begin; {point} < end; ++{point})"):
            across, down = names.fresh("across"), names.fresh("down")
            columns, rows = self.index(p.column_blocks), self.index(p.row_blocks)
            left = binary("/", atom(point), columns)
            self.line(f"const int64_t {across} = {binary('%', atom(point), columns).text};")
            if self.kernel.loops:
                self.line(f"const int64_t {down} = {binary('%', left, rows).text};")
                batch = names.fresh("batch")
                self.line(f"const int64_t {batch} = {binary('/', left, rows).text};")
                self.bind_point(batch, self.kernel.loops)
            else:
                self.line(f"const int64_t {down} = {left.text};")
            first, end = self.range_of("m", down, p.row_block, points_of(p.rows))
            left_column, right_column = self.range_of(
                "n", across, p.column_block, p.columns[0].extent
            )
            with self.blocks(self.column, left_column, right_column, self.width) as columns_:
                self.columns((first, end), columns_)

    def scratch_array(self, name: str, count: int) -> str:
        """Scratch memory for so many numbers."""
        name = self.names.fresh(name)
        self.take_scratch(self.type, name, integer(count * self.product.dtype.itemsize))
        return name

    def range_of(self, name: str, number: str, size: int, extent: Expr) -> tuple[str, str]:
        """The first and the end of a block, by its number."""
        first, end = self.names.fresh(f"{name}_block"), self.names.fresh(f"{name}_block_end")
        self.line(f"const int64_t {first} = {number} * {size};")
        last = self.index(extent).text
        self.line(f"const int64_t {end} = ingot::smaller({first} + {size}, {last});")
        return first, end

    def columns(self, rows: tuple[str, str], columns: tuple[str, str]) -> None:
        """All of the block's rows of a few columns."""
        count = f"({rows[1]} - {rows[0]})"
        if self.height > 1:
            count = f"(({rows[1]} - {rows[0]} + {self.height - 1}) / {self.height} * {self.height})"
        self.line(f"std::memset({self.sums}, 0, {count} * {self.width} * sizeof({self.type}));")
        first, end = self.names.fresh("k_first"), self.names.fresh("k_end")
        extent = self.index(points_of(self.product.reduced)).text
        with self.block(f"for (int64_t {first} = 0; {first} < {extent}; {first} += {DEPTH})"):
            self.line(f"const int64_t {end} = ingot::smaller({first} + {DEPTH}, {extent});")
            self.depth_of(rows, columns, (first, end))
        self.finish_rows(rows, columns)

    def depth_of(
        self, rows: tuple[str, str], columns: tuple[str, str], steps: tuple[str, str]
    ) -> None:
        """Some steps of the reduction."""
        p, names = self.product, self.names
        along, places = names.fresh("along_left"), names.fresh("along_right")
        self.line(
            "// where each step's elements lie"
            + ("" if self.direct else "; the right ones are copied side by side"),
            f"int64_t {along}[{DEPTH}], {places}[{DEPTH}];",
        )
        linear = p.left.index.linear((*p.rows, *p.reduced))
        assert linear is not None
        origin, slopes = linear
        step = ZERO
        for s in p.reduced:
            step = step + s * slopes.get(s, ZERO)
        row = ZERO
        for s in p.rows:
            row = row + s * slopes.get(s, ZERO)
        k = names.fresh("k")
        source = self.pointers[p.right.buffer]
        if self.direct:
            whole = f"{columns[1]} - {columns[0]} == {self.width}"
            source = names.fresh("right")
            self.line(f"const bool is_whole = {whole};")
            pointer = f"is_whole ? {self.pointers[p.right.buffer]} : {self.packed}"
            self.line(f"const {self.type} *{source} = {pointer};")
        with self.block(f"for (int64_t {k} = {steps[0]}; {k} < {steps[1]}; ++{k})"):
            self.bind_reduced(k)
            self.line(f"{along}[{k} - {steps[0]}] = {self.index(step).text};")
            if self.direct:
                self.index.bind(self.column, columns[0])
                start = self.index(p.right.index).text
                packed = f"({k} - {steps[0]}) * {self.width}"
                self.line(f"{places}[{k} - {steps[0]}] = is_whole ? {start} : {packed};")
                self.line("if (is_whole) continue;")
            else:
                self.line(f"{places}[{k} - {steps[0]}] = ({k} - {steps[0]}) * {self.width};")
            self.unbind(self.column)
            self.pack(columns, f"{k} - {steps[0]}")
        if not self.direct:
            source = self.packed
        self.check_left(rows, steps)
        m = names.fresh("m")
        with self.block(f"for (int64_t {m} = {rows[0]}; {m} < {rows[1]}; {m} += {self.height})"):
            offsets, r, number = names.fresh("rows"), names.fresh("r"), names.fresh("row")
            self.line(f"int64_t {offsets}[{self.height}];")
            with self.block(f"for (int64_t {r} = 0; {r} < {self.height}; ++{r})"):
                self.line(f"const int64_t {number} = ingot::smaller({m} + {r}, {rows[1]} - 1);")
                self.bind_rows(number)
                self.line(f"{offsets}[{r}] = {self.index(origin + row).text};")
            target = f"{self.sums} + ({m} - {rows[0]}) * {self.width}"
            left = self.pointers[p.left.buffer]
            self.line(
                f"ingot::multiply<{self.height}, {self.width}>({left}, {offsets}, {along},",
                f"    {source}, {places}, {steps[1]} - {steps[0]}, {target}, {self.width});",
            )

    def pack(self, columns: tuple[str, str], step: str) -> None:
        """Copy a step's columns of the right operand."""
        right, width = self.product.right, self.width
        n = self.name_of(self.column)
        place = f"{self.packed}[({step}) * {width} + {n} - {columns[0]}]"
        check = self.bounds(right.buffer, right.index)
        if check is None:
            self.line("#pragma omp simd")
        with self.loop(self.column, *columns):
            if check is not None:
                self.line(self.fail(check, self.out_of_bounds(right.buffer)))
            self.line(f"{place} = {self.element(right.buffer, right.index)};")
        end = f"{columns[0]} + {width}"
        self.line(f"for (int64_t {n} = {columns[1]}; {n} < {end}; ++{n})", f"  {place} = 0;")

    def check_left(self, rows: tuple[str, str], steps: tuple[str, str]) -> None:
        """Where bounds are checked: each element of the left operand."""
        left: Access = self.product.left
        if not self.check_bounds or left.buffer not in self.lengths:
            return
        m, k = self.names.fresh("m"), self.names.fresh("k")
        with self.block(f"for (int64_t {m} = {rows[0]}; {m} < {rows[1]}; ++{m})"):
            self.bind_rows(m)
            with self.block(f"for (int64_t {k} = {steps[0]}; {k} < {steps[1]}; ++{k})"):
                self.bind_reduced(k)
                check = self.bounds(left.buffer, left.index) or ""
                self.line(self.fail(check, self.out_of_bounds(left.buffer)))

    def bind_reduced(self, number: str) -> None:
        self.bind_numbers(number, self.product.reduced)

    def bind_rows(self, number: str) -> None:
        self.bind_numbers(number, self.product.rows)

    def bind_numbers(self, number: str, loops: Sequence[Symbol]) -> None:
        """Bind loops by the number of their point."""
        if len(loops) == 1:
            self.index.bind(loops[0], number)
            return
        for loop in loops:
            self.unbind(loop)
        self.bind_point(number, loops)

    def unbind(self, symbol: Symbol) -> None:
        """The next loop of a symbol has a name of its own."""
        self.index.codes.pop(symbol, None)

    def finish_rows(self, rows: tuple[str, str], columns: tuple[str, str]) -> None:
        """The kernel's stage on finished sums."""
        (stage,) = self.kernel.stages
        m = self.names.fresh("m")
        with self.block(f"for (int64_t {m} = {rows[0]}; {m} < {rows[1]}; ++{m})"):
            self.bind_rows(m)
            self.unbind(self.column)
            n = self.name_of(self.column)
            row = binary("*", binary("-", atom(m), atom(rows[0])), atom(str(self.width)))
            place = f"{self.sums}[{row.inside(PRODUCT)} + {n} - {columns[0]}]"
            self.scalars[self.product.name] = (atom(place), True)
            prefix = self.next_prefix()
            levels = self.placed(stage, prefix, (self.column,))
            self.statements(levels[0], self.later(levels, 0, stage, prefix))
            base = columns[0] if self.has_rare([stage]) else ""
            self.innermost(self.column, *columns, [Part(stage, levels[1], [], prefix)], base)
