"""Matrix products in Triton: a block of threads sums a tile of rows by columns, and computes what
comes next on it."""

from __future__ import annotations

from dataclasses import replace

import torch

from ingot.codegen.triton import ops
from ingot.codegen.triton.kernel import TritonKernel, Value, Writer, fits_short, summand
from ingot.errors import CompilerBug
from ingot.loops.expr import Expr, product
from ingot.loops.ir import Access, Body
from ingot.schedule.blocks import Blocks
from ingot.schedule.kernel import Kernel, Stage


def write_product(kernel: Kernel) -> TritonKernel:
    """The Triton code of a kernel with a product, whose sizes are known."""
    assert kernel.product is not None
    tiling = kernel.product.tiling
    if tiling is None:
        raise CompilerBug("codegen", "a product without a tiling", kernel.name, kernel.origin.where)
    blocks = Blocks(tiling.columns, tiling.depth, tiling.rows, warps=tiling.warps)
    return _ProductWriter(kernel, blocks, fits_short(kernel, blocks.slack)).write()


class _ProductWriter(Writer):
    """Axes are `y`, the rows, `x`, the columns, and `r`, the steps of the reduction; `order` are
    the two of what is being computed."""

    order = ("y", "x")

    def __init__(self, kernel: Kernel, blocks: Blocks, short: bool) -> None:
        super().__init__(kernel, blocks, short)
        assert kernel.product is not None and kernel.product.tiling is not None
        self.product, self.tiling = kernel.product, kernel.product.tiling
        self.rows_count, self.columns_count, self.depth = (
            product(s.extent for s in loops).constant or 0
            for loops in (self.product.rows, self.product.columns, self.product.reduced)
        )

    def write(self) -> TritonKernel:
        return replace(super().write(), stages=self.tiling.stages)

    @property
    def grid(self) -> Expr:
        return self.kernel.points

    def shape(self, axes: frozenset[str]) -> str:  # type: ignore[override]
        sizes = {"y": "YBLOCK", "x": "XBLOCK", "r": "RBLOCK"}
        return "[" + ", ".join(sizes[axis] if axis in axes else "1" for axis in self.order) + "]"

    def outer(self) -> None:
        """The tile of this block, and its sums."""
        self.constants |= {
            "YBLOCK": self.tiling.rows,
            "XBLOCK": self.tiling.columns,
            "RBLOCK": self.tiling.depth,
        }
        down, across = (
            e.constant or 0 for e in (self.product.row_blocks, self.product.column_blocks)
        )
        self.line(
            f"block = {'tl.program_id(0)' if self.short else 'tl.program_id(0).to(tl.int64)'}"
        )
        if self.kernel.loops:
            self.line(f"z = block // {down * across}")
            self.line(f"block = block % {down * across}")
            self.split("z", "", self.kernel.loops)
        y, x = self.place(down, across)
        self.line(f"y = {y}{self.wide('tl.arange(0, YBLOCK)')}[:, None]")
        self.line(f"x = {x}{self.wide('tl.arange(0, XBLOCK)')}[None, :]")
        for axis, extent, block in (
            ("y", self.rows_count, "rows"),
            ("x", self.columns_count, "columns"),
        ):
            self.extent_mask(axis, extent, getattr(self.tiling, block))
        self.split("y", "y", self.product.rows)
        self.split("x", "x", self.product.columns)
        self.sums()

    def extent_mask(self, name: str, extent: int, block: int, axis: str = "") -> None:
        self.masks[axis or name] = None
        if extent % block:
            self.line(f"{name}mask = {name} < {extent}")
            self.masks[axis or name] = f"{name}mask"

    def place(self, down: int, across: int) -> tuple[str, str]:
        """Where the tile of this block begins, down and across: neighbours in time share what they
        read."""
        if down == 1 or across == 1:
            return ("" if down == 1 else "block * YBLOCK + "), (
                "" if across == 1 else "block * XBLOCK + "
            )
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
        self.line(f"for start in range(0, {self.depth}, RBLOCK):")
        self.indent += 1
        steps = self.wide("tl.arange(0, RBLOCK)")
        left = self.operand(p.left, p.prologues[0], "r", f"{steps}[None, :]", ("y", "r"))
        right = self.operand(p.right, p.prologues[1], "s", f"{steps}[:, None]", ("r", "x"))
        precision = (
            f', input_precision="{self.tiling.precision}"' if left[1] is torch.float32 else ""
        )
        self.line(f"{p.name} = tl.dot({left[0]}, {right[0]}, {p.name}{precision})")
        self.indent -= 1
        self.known, self.order = known, ("y", "x")
        self.scalars[p.name] = Value(p.name, frozenset("yx"))

    def operand(
        self, access: Access, body: Body | None, name: str, steps: str, order: tuple[str, str]
    ) -> tuple[str, torch.dtype]:
        """A tile of an operand, and its type; `name` are the places along the reduction, along the
        axis r."""
        self.order, axes = order, frozenset(order)
        self.known = {}
        self.line(f"{name} = start + {steps}")
        self.extent_mask(name, self.depth, self.tiling.depth, "r")
        self.split(name, "r", self.product.reduced)
        if body is not None:
            return self.computed(body, axes)
        index = self.index(access.index)
        pointer = f"{access.buffer} + {summand(index.text)}"
        if index.axes != axes:
            pointer = f"tl.broadcast_to({pointer}, {self.shape(axes)})"
        mask = self.joined_mask(order, ())
        (dtype,) = (p.dtype for p in self.kernel.parameters if p.name == access.buffer)
        return self.fresh(
            f"tl.load({pointer}{'' if mask is None else f', mask={mask}, other=0'})", axes
        ).text, dtype

    def computed(self, body: Body, axes: frozenset[str]) -> tuple[str, torch.dtype]:
        """A tile of an operand that is computed as it is read: zero behind the end of the
        reduction."""
        stage, values = Stage(self.product.reduced, body), list[Value]()
        for i in body.instructions:
            values.append(self.instruction(i, values, stage))
        value, dtype = values[body.results[0]], body.instructions[body.results[0]].dtype
        if value.axes != axes:
            value = self.fresh(f"tl.broadcast_to({value.text}, {self.shape(axes)})", axes)
        if self.masks["r"] is not None:
            value = self.fresh(
                f"tl.where({self.masks['r']}, {value.text}, 0.0).to({ops.TYPES[dtype]})", axes
            )
        return value.text, dtype

    def stage(self, stage: Stage) -> None:
        self.body(stage, frozenset("yx"))
