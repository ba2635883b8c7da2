"""A kernel's text, line by line, and what a block of threads is in it: axes, masks and indices.

The points of the outer loops are the axis `x`, or `y` and `x` for a tile; inner loops are the axis
`r`. A value knows the axes along which it varies, in which it is broadcast.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ingot.codegen.triton import ops
from ingot.loops.expr import Expr, FloorDiv, Max, Min, Mod, Symbol, integer
from ingot.loops.spaces import points_of
from ingot.schedule.blocks import Blocks
from ingot.schedule.kernel import Kernel

NO_AXES: frozenset[str] = frozenset()


class Value(NamedTuple):
    """A variable, and the axes along which it varies."""

    text: str
    axes: frozenset[str]


def joined_axes(values: Iterable[Value]) -> frozenset[str]:
    return NO_AXES.union(*(value.axes for value in values))


class BlockWriter:
    """Writes lines, and knows the variables of the block: where its points are, which exist."""

    inner_block = inner_axis = ""  # the names of the axis r of the present stage, and of its size
    program = "tl.program_id(0)"  # of the block

    def __init__(
        self, kernel: Kernel, blocks: Blocks, short: bool, sizes: Sequence[Symbol] = ()
    ) -> None:
        self.kernel, self.blocks, self.short = kernel, blocks, short
        self.lines: list[str] = []
        self.indent = 1
        if blocks.tile or blocks.inner:
            self.rank = 2
        else:
            self.rank = 1
        self.sizes = {size: f"size{k}" for k, size in enumerate(sizes)}
        self.symbols: dict[Symbol, Value] = {}
        self.masks: dict[str, str | None] = {}
        self.constants: dict[str, int] = {}
        self.count = 0

    @property
    def grid(self) -> Expr:
        return self.blocks.count(self.kernel)

    @property
    def point_axes(self) -> frozenset[str]:
        return frozenset("xy" if self.blocks.tile else "x")

    def line(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def fresh(self, text: str, axes: frozenset[str]) -> Value:
        value = Value(f"v{self.count}", axes)
        self.count += 1
        self.line(f"{value.text} = {text}")
        return value

    def wide(self, text: str) -> str:
        """A number of a block or a point, in the type of index arithmetic."""
        if self.short:
            return text
        return f"{text}.to(tl.int64)"

    # -- axes --------------------------------------------------------------------------------------

    def outer(self) -> None:
        """The points of this block."""
        if self.kernel.table:
            self.in_table()
            return
        self.constants["XBLOCK"] = self.blocks.points
        block = self.wide(self.program)
        if self.blocks.most:
            shares = self.index(self.blocks.shares(self.kernel)).text
            self.line(f"for share in range({block}, {shares}, tl.num_programs(0)):")
            self.indent += 1
            block = "share"
        if self.blocks.tile:
            self.in_tile(block)
        else:
            self.in_row(block)

    def in_row(self, block: str) -> None:
        """The points of a block without `y`."""
        column = ""
        if self.rank == 2:
            column = "[:, None]"
        fixed = self.loops_of_block()
        if fixed:
            points = points_of(self.kernel.loops[fixed:]).constant or 0
            blocks = points // self.blocks.points
            self.line(f"block = {block} // {blocks}")
            self.split("block", "", self.kernel.loops[:fixed])
            block += f" % {blocks}"
        self.line(f"x = {block} * XBLOCK + tl.arange(0, XBLOCK){column}")
        self.mask("x", self.kernel.points, self.blocks.points)
        self.split("x", "x", self.kernel.loops[fixed:])

    def in_tile(self, block: str) -> None:
        """The points of a block of the last two outer loops."""
        *others, tile, vector = self.kernel.loops
        self.constants["YBLOCK"] = self.blocks.tile
        across = self.blocks_along(vector, self.blocks.points)
        down = self.blocks_along(tile, self.blocks.tile)
        self.line(f"block = {block}")
        self.line(f"x = block % {across} * XBLOCK + tl.arange(0, XBLOCK)[None, :]")
        self.line(f"y = block // {across} % {down} * YBLOCK + tl.arange(0, YBLOCK)[:, None]")
        self.mask("x", vector.extent, self.blocks.points)
        self.mask("y", tile.extent, self.blocks.tile)
        self.symbols[vector] = Value("x", frozenset("x"))
        self.symbols[tile] = Value("y", frozenset("y"))
        if others:
            self.line(f"z = block // ({across} * {down})")
            self.split("z", "", others)

    def blocks_along(self, loop: Symbol, block: int) -> str:
        return bracketed(self.index((loop.extent + (block - 1)) // block).text)

    def loops_of_block(self) -> int:
        """How many of the outer loops, from the outermost one, have one index in a block.

        Blocks fill those within.
        """
        for k in range(len(self.kernel.loops) - 1, 0, -1):
            within = points_of(self.kernel.loops[k:]).constant
            if self.blocks.points == 1 or within is None:
                return 0
            if within % self.blocks.points == 0:
                return k
        return 0

    def in_table(self) -> None:
        """The points of this block, of one of many sets of buffers, and where that is."""
        self.constants |= {"XBLOCK": self.blocks.points, "PARTS": self.kernel.table}
        number = "tl.int64"
        if self.short:
            number = "tl.int32"
        self.line(f"block = {self.program}")
        self.line(
            "part = tl.sum((tl.load(table + tl.arange(0, PARTS)) <= block).to(tl.int32), 0) - 1"
        )
        self.line(f"row = table + PARTS + part * {len(self.kernel.parameters) + 2}")
        self.line(f"x = (block - tl.load(row)).to({number}) * XBLOCK + tl.arange(0, XBLOCK)")
        self.line(f"xmask = x < tl.load(row + 1).to({number})")
        for k, p in enumerate(self.kernel.parameters, 2):
            pointer = f"tl.pointer_type({ops.TYPES[p.dtype]})"
            text = f"tl.load(row + {k}).to({pointer})"
            if p.on_host:  # the row has the number itself
                text = f"tl.load((row + {k}).to({pointer}))"
            self.line(f"{p.name} = {text}")
        self.masks["x"] = "xmask"
        self.split("x", "x", self.kernel.loops)

    def mask(self, axis: str, extent: Expr, block: int, name: str = "") -> None:
        """The mask of an axis; none where blocks fill its extent."""
        name = name or axis
        self.masks[axis] = None
        if extent.constant is None or extent.constant % block:
            self.line(f"{name}mask = {name} < {self.index(extent).text}")
            self.masks[axis] = f"{name}mask"

    def split(self, name: str, axes: str, loops: Sequence[Symbol]) -> None:
        """The indices of loops that one number runs through."""
        inner = integer(1)
        varies = frozenset(axes)
        for k, symbol in enumerate(reversed(loops)):
            text = name
            if inner.constant != 1:
                text += f" // {bracketed(self.index(inner).text)}"
            if k < len(loops) - 1:
                text += f" % {bracketed(self.index(symbol.extent).text)}"
            if text != name:
                variable = f"{name}{len(loops) - 1 - k}"
                self.line(f"{variable} = {text}")
                text = variable
            self.symbols[symbol] = Value(text, varies)
            inner = inner * symbol.extent

    def shape(self, axes: Iterable[str]) -> str:
        if self.rank == 1:
            return "[XBLOCK]"
        order = "xr"
        if self.blocks.tile:
            order = "yx"
        sizes = {"x": "XBLOCK", "y": "YBLOCK", "r": self.inner_block}
        return f"[{', '.join(sizes[axis] if axis in axes else '1' for axis in order)}]"

    def joined_mask(self, axes: Iterable[str], conditions: Sequence[Value] = ()) -> str | None:
        """Where the points of the axes exist and the conditions hold; None: everywhere."""
        masks = [self.masks[axis] for axis in sorted(axes)] + [c.text for c in conditions]
        return " & ".join(filter(None, masks)) or None

    # -- index expressions -------------------------------------------------------------------------

    def index(self, e: Expr) -> Value:
        """The text of an index expression."""
        if e.constant is not None:
            return Value(str(e.constant), NO_AXES)
        terms, axes = [], NO_AXES
        for coefficient, atoms in e.terms:
            values = list(map(self.atom, atoms))
            axes |= joined_axes(values)
            factors = [v.text for v in values]
            if coefficient != 1 or not factors:
                factors.append(str(coefficient))
            terms.append(" * ".join(factors))
        return Value(" + ".join(terms).replace("+ -", "- "), axes)

    def atom(self, atom: Expr) -> Value:
        if isinstance(atom, Symbol):
            if atom in self.symbols:
                return self.symbols[atom]
            return Value(self.sizes.setdefault(atom, f"size{len(self.sizes)}"), NO_AXES)
        assert isinstance(atom, (FloorDiv, Mod, Max, Min))
        left, right = self.index(atom.left), self.index(atom.right)
        low = atom.left.bounds[0]
        if isinstance(atom, Max):
            text = f"tl.maximum({left.text}, {right.text})"
        elif isinstance(atom, Min):
            text = f"tl.minimum({left.text}, {right.text})"
        elif low is None or low < 0:
            function = "floor_remainder"
            if isinstance(atom, FloorDiv):
                function = "floor_divide"
            text = f"helpers.{function}({left.text}, {right.text})"
        else:
            sign = "%"
            if isinstance(atom, FloorDiv):
                sign = "//"
            text = f"({bracketed(left.text)} {sign} {bracketed(right.text)})"
        return Value(text, left.axes | right.axes)


def bracketed(text: str) -> str:
    """A text that may stand beside any operator; an index beside a pointer is summed first."""
    if re.fullmatch(r"\w+", text):
        return text
    return f"({text})"
