"""The gradient of a depthwise convolution's weight in Triton.

A block of threads has a tile of a row of results, some columns by some channels, and walks down an
image with it. It holds the last rows of the tangent, and one sum for each element of the window:
each row of the images is loaded once for each column of the window, and multiplied by all rows of
the tangent that meet it. Step t brings the row t of the tangent and the `stride` rows of the images
from t * stride - padding on; of these row q meets the row t - m of the tangent at the window's row
q + stride * m.

Rows beside a piece count as zeros: where the images or the tangent are infinite, so may be NaN what
meets these at a border, as in a sum over padded images.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot.codegen.triton.block import NO_AXES, Value, bracketed
from ingot.codegen.triton.kernel import Writer
from ingot.loops.expr import Symbol, loop_symbol, maximum, minimum
from ingot.loops.ir import View
from ingot.schedule.blocks import Blocks
from ingot.schedule.kernel import Kernel

ADDS = {3: "add_three", 5: "add_five"}
"""What adds up the sums of a window's row, of so many columns, over a tile at once."""


class DepthwiseWriter(Writer):
    def __init__(
        self, kernel: Kernel, blocks: Blocks, short: bool, sizes: Sequence[Symbol] = ()
    ) -> None:
        super().__init__(kernel, blocks, short, sizes)
        assert kernel.depthwise is not None
        node = self.node = kernel.depthwise
        parts, *window, channels = [self.known_size(size) for size in node.target.sizes]
        self.parts, (self.height, self.width), self.channels = parts, window, channels
        self.step, self.padding = node.stride[0], node.padding[0]
        self.held = -(-self.height // self.step)
        """How many rows of the tangent are held."""
        self.image_rows, self.image_columns = map(self.known_size, node.images.sizes[2:])
        self.tangent_rows, self.tangent_columns = map(self.known_size, node.tangent.sizes[2:])
        self.constants |= {"COLUMNS": blocks.inner, "CHANNELS": blocks.points}

    @staticmethod
    def known_size(size: object) -> int:
        known: int | None = getattr(size, "constant", None)
        assert known is not None
        return known

    def stages(self) -> None:
        for i in range(self.height):
            for j in range(self.width):
                self.line(f"sum{i}_{j} = tl.zeros([COLUMNS, CHANNELS], tl.float32)")
        pieces = self.index(self.node.pieces).text
        self.line(f"for piece in range(part, {pieces}, {self.parts}):")
        self.indent += 1
        self.piece()
        self.walk()
        self.indent -= 1
        self.end()

    def outer(self) -> None:
        """The channels and the part of this block."""
        blocks = -(-self.channels // self.blocks.points)
        self.line(f"channel = {self.program} % {blocks} * CHANNELS + tl.arange(0, CHANNELS)")
        self.line(f"is_channel = (channel < {self.channels})[None, :]")
        self.line(f"part = {self.wide(self.program)} // {blocks}")

    def piece(self) -> None:
        """Where a piece is, and where the window's columns are in the images."""
        piece = loop_symbol("piece", self.node.pieces)
        self.symbols[piece] = Value("piece", NO_AXES)
        image, self.top, left = self.node.place(piece)
        self.bottom = minimum(self.top + self.node.piece.rows, self.tangent_rows)
        self.line(f"image = {self.index(image).text}")
        self.line(f"column = {self.index(left).text} + tl.arange(0, COLUMNS)")
        self.line(f"is_there = (column < {self.tangent_columns})[:, None] & is_channel")
        self.line(f"place = column[:, None] * {self.channels} + channel[None, :]")
        stride, padding = self.node.stride[1], self.node.padding[1]
        for j in range(self.width):
            self.line(f"under = column * {stride} + {j - padding}")
            inside = f"((under >= 0) & (under < {self.image_columns}))[:, None]"
            self.line(f"is_there{j} = is_there & {inside}")
            self.line(f"place{j} = under[:, None] * {self.channels} + channel[None, :]")

    def walk(self) -> None:
        """Down the piece, over the rows of the images that it shows, and no others."""
        first = maximum(self.top, self.padding // self.step)
        last = (self.image_rows - 1 + self.padding) // self.step
        end = minimum(self.bottom + (self.held - 1), last + 1)
        for name, e in (("top", self.top), ("bottom", self.bottom), ("first", first), ("end", end)):
            self.line(f"{name} = {self.index(e).text}")
        for m in range(1, self.held):
            self.row_of_tangent(f"tangent{m}", f"first - {m}")
        self.line("for t in range(first, end):")
        self.indent += 1
        self.row_of_tangent("tangent0", "t")
        for q in range(min(self.step, self.height)):
            self.line(f"row = t * {self.step} + {q - self.padding}")
            self.line(f"is_row = (row >= 0) & (row < {self.image_rows})")
            self.line(f"begin = {self.row(self.node.images, self.image_rows, self.image_columns)}")
            for j in range(self.width):
                mask = f"is_there{j} & is_row"
                self.line(f"x{q}_{j} = tl.load(begin + place{j}, mask={mask}, other=0)")
        for q in range(min(self.step, self.height)):
            for j in range(self.width):
                self.line(f"x = x{q}_{j}.to(tl.float32)")
                for i in range(q, self.height, self.step):
                    m, total = i // self.step, f"sum{i}_{j}"
                    self.line(f"{total} = tl.fma(x, tangent{m}, {total})")
        for m in reversed(range(1, self.held)):
            self.line(f"tangent{m} = tangent{m - 1}")
        self.indent -= 1

    def row_of_tangent(self, name: str, row: str) -> None:
        """A row of the tangent, which is 0 outside of the piece."""
        self.line(f"row = {row}")
        begin = self.row(self.node.tangent, self.tangent_rows, self.tangent_columns)
        mask = "is_there & (row >= top) & (row < bottom)"
        self.line(f"{name} = tl.load({begin} + place, mask={mask}, other=0).to(tl.float32)")

    def row(self, view: View, rows: int, columns: int) -> str:
        """Where the row `row` of this image begins."""
        start = ""
        if view.offset.constant != 0:
            start = f"{bracketed(self.index(view.offset).text)} + "
        return f"{view.buffer} + {start}(image * {rows} + row) * {columns * self.channels}"

    def end(self) -> None:
        """Add up the sums of the tile's columns. All columns have them then, and the first one
        stores them: nothing changes its layout."""
        self.line("is_first = (tl.arange(0, COLUMNS) == 0)[:, None] & is_channel")
        self.line("zeros = tl.zeros([COLUMNS, CHANNELS], tl.int32)")
        target = self.node.target
        for i in range(self.height):
            names = ", ".join(f"sum{i}_{j}" for j in range(self.width))
            self.line(f"{names} = tl.reduce(({names}), 0, helpers.{ADDS[self.width]}, True)")
            for j in range(self.width):
                number = f"(part * {self.height * self.width} + {i * self.width + j})"
                pointer = f"{target.buffer} + {number} * {self.channels} + channel[None, :] + zeros"
                total = f"tl.broadcast_to(sum{i}_{j}, [COLUMNS, CHANNELS])"
                self.line(f"tl.store({pointer}, {total}, mask=is_first)")
