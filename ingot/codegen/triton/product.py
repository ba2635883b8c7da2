"""Matrix products in Triton: a block of threads sums a tile, and computes its epilogue on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ingot.codegen.triton import ops
from ingot.codegen.triton.accesses import with_mask
from ingot.codegen.triton.block import Value, bracketed
from ingot.codegen.triton.kernel import TritonKernel, Writer
from ingot.errors import CompilerBug
from ingot.loops.expr import ONE, ZERO, Expr, Symbol
from ingot.loops.ir import Access, Body
from ingot.loops.spaces import points_of
from ingot.schedule.blocks import Blocks
from ingot.schedule.kernel import Kernel, Stage


class ProductWriter(Writer):
    """Axes are `y`, the rows, `x`, the columns, and `r`, the steps of the reduction; `d` and `e`
    are those of inner products.

    `order` are the two axes of what is being computed.
    """

    order = ("y", "x")

    def __init__(
        self, kernel: Kernel, blocks: Blocks, short: bool, sizes: Sequence[Symbol] = ()
    ) -> None:
        super().__init__(kernel, blocks, short, sizes)
        assert kernel.product is not None and kernel.product.tiling is not None
        self.product, self.tiling = kernel.product, kernel.product.tiling
        self.depth = points_of(self.product.reduced)

    def write(self) -> TritonKernel:
        return replace(super().write(), stages=self.tiling.stages)

    @property
    def grid(self) -> Expr:
        return self.kernel.points

    def shape(self, axes: frozenset[str]) -> str:  # type: ignore[override]
        sizes = {axis: f"{axis.upper()}BLOCK" for axis in "yxrde"}
        return f"[{', '.join(sizes[axis] if axis in axes else '1' for axis in self.order)}]"

    def outer(self) -> None:
        """The tile of this block, and its sums."""
        self.constants |= {
            "YBLOCK": self.tiling.rows,
            "XBLOCK": self.tiling.columns,
            "RBLOCK": self.tiling.depth,
        }
        down, across = self.product.row_blocks, self.product.column_blocks
        self.line(f"block = {self.wide(self.program)}")
        if self.kernel.loops:
            self.batch(down * across)
            self.split("z", "", self.kernel.loops)
        y, x = self.place(down, across)
        self.first_row = y.removesuffix(" + ") or "0"
        self.line(f"y = {y}{self.wide('tl.arange(0, YBLOCK)')}[:, None]")
        self.line(f"x = {x}{self.wide('tl.arange(0, XBLOCK)')}[None, :]")
        self.extent_mask("y", points_of(self.product.rows), self.tiling.rows)
        self.extent_mask("x", points_of(self.product.columns), self.tiling.columns)
        self.split("y", "y", self.product.rows)
        self.split("x", "x", self.product.columns)
        self.sums()

    def batch(self, blocks: Expr) -> None:
        """The element of the batch that this block is of, and its number among the `blocks`
        there."""
        count = bracketed(self.index(blocks).text)
        self.line(f"z = block // {count}")
        self.line(f"block = block % {count}")

    def extent_mask(self, name: str, extent: Expr, block: int, axis: str = "") -> None:
        self.masks[axis or name] = None
        if extent % block is not ZERO:
            self.line(f"{name}mask = {name} < {self.index(extent).text}")
            self.masks[axis or name] = f"{name}mask"

    def place(self, down: Expr, across: Expr) -> tuple[str, str]:
        """Where the tile of this block begins, down and across.

        Blocks that run at about the same time share what they read.
        """
        if down is ONE:
            return "", "" if across is ONE else "block * XBLOCK + "
        if across is ONE:
            return "block * YBLOCK + ", ""
        return self.in_groups(down.constant or 0, across.constant or 0)

    def in_groups(self, down: int, across: int) -> tuple[str, str]:
        """The same for several tiles down and across, of which there are known numbers."""
        group = min(self.tiling.group, down)
        self.line(
            f"# {group} tiles down, then the next ones across: what they read stays in the L2 cache"
        )
        self.line(f"first = block // {group * across} * {group}")
        height = str(group)
        if down % group:
            height = "height"
            self.line(f"height = tl.minimum({down} - first, {group})")
        self.line(f"block = block % {group * across}")
        return f"(first + block % {height}) * YBLOCK + ", f"block // {height} * XBLOCK + "

    def sums(self) -> None:
        p = self.product
        self.line(f"{p.name} = tl.zeros([YBLOCK, XBLOCK], tl.float32)")
        known, self.known = self.known, dict(self.known)
        self.line(f"for start in range(0, {self.index(self.depth).text}, RBLOCK):")
        self.indent += 1
        steps = self.wide("tl.arange(0, RBLOCK)")
        left = self.operand(p.left, p.prologues[0], "r", f"{steps}[None, :]", ("y", "r"))
        right = self.operand(p.right, p.prologues[1], "s", f"{steps}[:, None]", ("r", "x"))
        arguments = f"{left[0]}, {right[0]}, {p.name}"
        if left[1] is torch.float32:
            arguments += f', input_precision="{self.tiling.precision}"'
        self.line(f"{p.name} = tl.dot({arguments})")
        self.indent -= 1
        self.known, self.order = known, ("y", "x")
        self.scalars[p.name] = Value(p.name, frozenset("yx"))

    def operand(
        self, access: Access, body: Body | None, name: str, steps: str, order: tuple[str, str]
    ) -> tuple[str, torch.dtype]:
        """A tile of an operand, and its type; `name` is the variable of the axis r."""
        self.order, axes = order, frozenset(order)
        self.known = {}
        self.line(f"{name} = start + {steps}")
        self.extent_mask(name, self.depth, self.tiling.depth, "r")
        self.split(name, "r", self.product.reduced)
        if body is not None:
            return self.computed(body, axes)
        pointer = self.pointer(access.buffer, self.index(access.index), axes)
        mask = with_mask(self.joined_mask(order), ", other=0")
        return self.fresh(f"tl.load({pointer}{mask})", axes).text, self.dtype_of(access)

    def dtype_of(self, access: Access) -> torch.dtype:
        """The dtype of what is accessed."""
        for p in self.kernel.parameters:
            if p.name == access.buffer:
                return p.dtype
        raise CompilerBug("codegen", "an operand is no parameter", access.buffer)

    def computed(self, body: Body, axes: frozenset[str]) -> tuple[str, torch.dtype]:
        """A tile of an operand that is computed as it is read, zero behind the reduction's end."""
        stage, values = Stage(self.product.reduced, body), list[Value]()
        for i in body.instructions:
            values.append(self.instruction(i, values, stage))
        value, dtype = values[body.results[0]], body.instructions[body.results[0]].dtype
        if value.axes != axes:
            value = self.fresh(f"tl.broadcast_to({value.text}, {self.shape(axes)})", axes)
        if self.masks["r"] is not None:
            text = self.in_range(value.text, "0.0")
            value = self.fresh(f"{text}.to({ops.TYPES[dtype]})", axes)
        return value.text, dtype

    def stage(self, stage: Stage) -> None:
        self.body(stage, frozenset("yx"))
