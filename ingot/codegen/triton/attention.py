"""Attention and its gradients in Triton.

A block of threads has some rows, and takes what they are computed with in steps. The softmax is
taken online: the largest score so far, and the sums of the exponentials of what scores are below
it, are kept for each query (Milakov and Gimelshein, 2018).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial, reduce

import torch

from ingot.codegen.triton import ops
from ingot.codegen.triton.accesses import with_mask
from ingot.codegen.triton.block import NO_AXES, Value, bracketed
from ingot.codegen.triton.forms import fits_short
from ingot.codegen.triton.kernel import TritonKernel
from ingot.codegen.triton.product import ProductWriter
from ingot.errors import CompilerBug
from ingot.loops.expr import Symbol, loop_symbol
from ingot.loops.ir import Access, Instruction
from ingot.schedule.attention_tiles import NARROWEST
from ingot.schedule.blocks import Blocks, power_of_two
from ingot.schedule.kernel import Kernel, Stage
from ingot.schedule.windows import Bound, Window, index_of, window_of

_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def write_attention(kernel: Kernel) -> TritonKernel:
    """The Triton code of a kernel with weights, whose sizes are known."""
    assert kernel.product is not None
    tiling = kernel.product.tiling
    if tiling is None:
        raise CompilerBug("codegen", "no tiling of attention", kernel.name, kernel.origin.where)
    blocks = Blocks(tiling.columns, tiling.depth, tiling.rows, warps=tiling.warps)
    return _AttentionWriter(kernel, blocks, fits_short(kernel, blocks.slack)).write()


class _AttentionWriter(ProductWriter):
    """Axes are those of a product; `d` and `e` are the depths of inner products."""

    def __init__(self, kernel: Kernel, blocks: Blocks, short: bool) -> None:
        super().__init__(kernel, blocks, short)
        assert self.product.weights is not None
        self.weights = self.product.weights
        (self.row,), (self.step,) = self.product.rows, self.product.reduced
        self.result = self.product.name

    def sums(self) -> None:
        known, lefts = dict(self.known), []
        for axis, p in zip("de", self.weights.products):
            depth = p.depth.extent.constant or 0
            self.constants[f"{axis.upper()}BLOCK"] = power_of_two(max(NARROWEST, depth))
            lefts.append(self.tile(p.left, {"y": self.row, axis: p.depth}))
        if self.weights.softmax:
            self.line('top = tl.full([YBLOCK, 1], float("-inf"), tl.float32)')
            self.line("total = tl.zeros([YBLOCK, 1], tl.float32)")
        self.line(f"{self.result} = tl.zeros([YBLOCK, XBLOCK], tl.float32)")
        begin, end = self.range_of_steps()
        self.line(f"for start in range({begin}, {end}, RBLOCK):")
        self.indent += 1
        for axis, p, (left, dtype) in zip("de", self.weights.products, lefts):
            right, _ = self.tile(p.right, {axis: p.depth, "r": self.step})
            self.line(f"{p.name} = tl.dot({left}, {right}{self.precision(dtype)})")
            self.scalars[p.name] = Value(p.name, frozenset("yr"))
        weight, decay = self.weight(), ""
        if self.weights.softmax:
            weight, decay = self.online(weight), " * less"
        right, dtype = self.tile(self.product.right, {"r": self.step, "x": None})
        weight = ops.convert(weight, torch.float32, dtype)
        self.line(
            f"{self.result} = tl.dot({weight}, {right}, {self.result}{decay}"
            f"{self.precision(dtype)})"
        )
        if self.weights.softmax:
            self.line("top = higher")
        self.indent -= 1
        if self.weights.softmax:
            self.finish()
        self.known, self.order = known, ("y", "x")
        self.scalars[self.result] = Value(self.result, frozenset("yx"))

    def precision(self, dtype: torch.dtype) -> str:
        if dtype is not torch.float32:
            return ""
        return f', input_precision="{self.tiling.precision}"'

    # -- the softmax -------------------------------------------------------------------------------

    def online(self, score: str) -> str:
        """Take the scores of a step in; gives their exponentials."""
        self.line(f"higher = tl.maximum(top, tl.max({score}, 1)[:, None])")
        self.line('base = tl.where(higher == float("-inf"), 0.0, higher)')
        self.line(f"weight = tl.exp({score} - base)")
        self.line("less = tl.exp(top - base)")
        self.line("total = total * less + tl.sum(weight, 1)[:, None]")
        return "weight"

    def finish(self) -> None:
        logarithms, zero_rows = self.weights.logarithms, self.weights.zero_rows
        self.line(f"{self.result} = {self.result} / total")
        if zero_rows:
            self.line(f"{self.result} = tl.where(total == 0, 0.0, {self.result})")
        if logarithms is None:
            return
        self.line("total = top + tl.log(total)")
        if zero_rows:
            self.line('total = tl.where(top == float("-inf"), 0.0, total)')
        pointer = f"{logarithms.buffer} + {bracketed(self.index(logarithms.index).text)}"
        self.line(f"tl.store({pointer}, total{with_mask(self.masks['y'])})")

    # -- tiles -------------------------------------------------------------------------------------

    def tile(self, access: Access, loops: Mapping[str, Symbol | None]) -> tuple[str, torch.dtype]:
        """A tile of an operand over two axes, and its dtype."""
        first, second = loops
        self.order, self.known = (first, second), {}
        for position, (axis, loop) in enumerate(loops.items()):
            if axis in "rde":
                assert loop is not None
                self.axis(axis, loop, position)
        axes = frozenset(loops)
        pointer = self.pointer(access.buffer, self.index(access.index), axes)
        mask = with_mask(self.joined_mask(axes), ", other=0")
        return self.fresh(f"tl.load({pointer}{mask})", axes).text, self.dtype_of(access)

    def axis(self, axis: str, loop: Symbol, position: int) -> None:
        """The indices of an axis, as the first or the second one of a tile."""
        name, block = f"{axis}{position}", f"{axis.upper()}BLOCK"
        place = ("[:, None]", "[None, :]")[position]
        start = ""
        if axis == "r":
            start = "start + "
        self.line(f"{name} = {start}{self.wide(f'tl.arange(0, {block})')}{place}")
        self.extent_mask(name, loop.extent.constant or 0, self.constants[block], axis)
        self.split(name, axis, (loop,))

    def weight(self) -> str:
        """The weights of a tile, or the scores; those behind the last step are zero, or -inf."""
        self.order, self.known = ("y", "r"), {}
        self.axis("r", self.step, 1)
        body = self.weights.body
        stage, values = Stage((self.step,), body), list[Value]()
        self.inner_loops = ()
        for i in body.instructions:
            values.append(self.cheaper(i, values) or self.instruction(i, values, stage))
        text, nothing = values[body.results[0]].text, "0.0"
        if self.weights.softmax:
            nothing = 'float("-inf")'
        if self.masks["r"] is not None:
            text = self.fresh(f"tl.where({self.masks['r']}, {text}, {nothing})", NO_AXES).text
        if body.instructions[body.results[0]].dtype is not torch.float32:
            text = f"{text}.to(tl.float32)"
        return text

    def cheaper(self, i: Instruction, values: Sequence[Value]) -> Value | None:
        """A cheaper form of an instruction, if it has one.

        Indices are compared in 32 bits where these are enough. A division by a number is a product
        with its inverse: that is rounded twice, as the sums around it are many times.
        """
        body = self.weights.body.instructions
        if i.op in _COMPARISONS and self.short:
            left, right = map(partial(index_of, body), i.args)
            if left is not None and right is not None:
                a, b = self.index(left), self.index(right)
                text = f"{bracketed(a.text)} {_COMPARISONS[i.op]} {bracketed(b.text)}"
                return self.fresh(text, a.axes | b.axes)
        if i.op == "div" and i.dtype is torch.float32 and body[i.args[1]].op == "constant":
            number, value = body[i.args[1]].attrs[0], values[i.args[0]]
            if number and math.isfinite(1 / number):
                return self.fresh(f"{value.text} * {1 / number!r}", value.axes)
        return None

    def range_of_steps(self) -> tuple[str, str]:
        """Where the steps that matter to the rows of this block begin and end."""
        weights, extents = self.weights, (self.row.extent.constant, self.step.extent.constant)
        window = Window()
        if weights.softmax or weights.zero_rows:
            window = window_of(weights.body, weights.softmax, self.row, self.step)
        if not (window.lower or window.upper):
            return "0", str(extents[1])
        first, last = loop_symbol("first", extents[0] or 0), loop_symbol("last", extents[0] or 0)
        self.line(f"first = {self.first_row}")
        self.line(f"last = tl.minimum(first + YBLOCK, {extents[0]}) - 1")
        self.symbols[first], self.symbols[last] = Value("first", NO_AXES), Value("last", NO_AXES)

        def at_end(bound: Bound, rising: Symbol, falling: Symbol, weakest: str) -> str:
            """A bound at the row of the block where it is the weakest."""
            texts = []
            for e in bound:
                linear = e.linear([self.row])
                assert linear is not None
                slope, end = linear[1].get(self.row), rising
                if slope is not None and (slope.constant or 0) < 0:
                    end = falling
                texts.append(self.index(e.substitute({self.row: end})).text)
            return reduce(lambda a, b: f"{weakest}({a}, {b})", texts)

        begin, end = "0", str(extents[1])
        for bound in window.lower:
            begin = f"tl.maximum({begin}, {at_end(bound, first, last, 'tl.minimum')})"
        for bound in window.upper:
            end = f"tl.minimum({end}, {at_end(bound, last, first, 'tl.maximum')} + 1)"
        return f"{begin} // RBLOCK * RBLOCK", end
