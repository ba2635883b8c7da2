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
from ingot.codegen.triton.product import ProductWriter
from ingot.loops.expr import Expr, Symbol, as_expr, loop_symbol
from ingot.loops.factors import with_powers_of_two, without_factor
from ingot.loops.ir import Access, Body, Instruction
from ingot.loops.spaces import points_of
from ingot.loops.weights import TILE, Beside, Tiles
from ingot.loops.windows import ALL, Bound, Conditions, Window, index_of
from ingot.schedule.attention_tiles import NARROWEST
from ingot.schedule.blocks import Blocks, power_of_two
from ingot.schedule.kernel import Kernel, Stage

_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
CACHED = 1 << 24  # bytes of the L2 cache that are read again and again
USUAL = 4096  # what a number of steps is taken for that is a symbol
_LOG2_E = math.log2(math.e)
_OF_STEPS = Value("", NO_AXES)  # stands for what is computed at each step


class AttentionWriter(ProductWriter):
    """Axes are those of a product; `d` and `e` are the depths of inner products."""

    def __init__(
        self, kernel: Kernel, blocks: Blocks, short: bool, sizes: Sequence[Symbol] = ()
    ) -> None:
        super().__init__(kernel, blocks, short, sizes)
        assert self.product.weights is not None
        self.weights = self.product.weights
        (self.row,), (self.step,) = self.product.rows, self.product.reduced
        (self.column,) = self.product.columns
        self.result = self.product.name
        self.lefts: list[tuple[str, torch.dtype]] = []
        self.tiles: dict[tuple[str, Expr], str] = {}  # of this step, by what is in them
        self.whole = False  # whether all steps of a loop are there
        self.factor, self.scores = self.applied_later()
        self.conditions = Conditions(self.scores, self.weights.softmax, self.row, self.step)

    def applied_later(self) -> tuple[float, Body]:
        """A number by which scores are multiplied as they are compared, and sums at their end, and
        the body that leaves it out."""
        body = with_powers_of_two(self.weights.body)
        without, factor = without_factor(body)
        if self.weights.softmax or self.dtype_of(self.product.right) is not torch.float16:
            return factor, without
        return 1.0, body  # a gradient may be too large for float16 before it is multiplied

    def slope(self, bound: Expr) -> int:
        """How much a bound rises from a row to the next one, if that is known; else 0."""
        linear = bound.linear([self.row])
        assert linear is not None
        slope = linear[1].get(self.row)
        if slope is None:
            return 0
        return slope.constant or 0

    def window(self) -> Window:
        """The steps outside of which weights are nothing."""
        if self.weights.softmax or self.weights.zero_rows:
            return self.conditions.window(self.conditions.all)
        return ALL

    def sums(self) -> None:
        known, self.lefts = dict(self.known), []
        for axis, p in zip("de", self.weights.products):
            depth = p.depth.extent.constant or 0
            self.constants[f"{axis.upper()}BLOCK"] = power_of_two(max(NARROWEST, depth))
            self.lefts.append(self.tile(p.left, {"y": self.row, axis: p.depth}))
        if self.weights.softmax:
            self.line('top = tl.full([YBLOCK, 1], float("-inf"), tl.float32)')
            self.line("total = tl.zeros([YBLOCK, 1], tl.float32)")
        self.line(f"{self.result} = tl.zeros([YBLOCK, XBLOCK], tl.float32)")
        beside = self.weights.beside
        if beside is not None:
            width = beside.column.extent.constant or 0
            self.constants["WBLOCK"] = power_of_two(max(NARROWEST, width))
            self.line("beside = tl.zeros([YBLOCK, WBLOCK], tl.float32)")
        if self.weights.tiles is None:
            self.steps_of_window()
        else:
            self.steps_of_lists(self.weights.tiles)
        if self.weights.softmax:
            self.finish()
        elif self.factor != 1:
            self.line(f"{self.result} = {self.result} * {self.factor!r}")
        if beside is not None:
            self.store_beside(beside)
        self.known, self.order = known, ("y", "x")
        self.scalars[self.result] = Value(self.result, frozenset("yx"))

    def steps_of(
        self, body: Body, loop: str, head: Sequence[str] = (), whole: bool = False
    ) -> None:
        """A loop over steps, of which each is `whole` or may reach beyond the last key."""
        outside = self.values_of_rows(body)
        self.line(f"for {loop}:")
        self.indent += 1
        for line in head:
            self.line(line)
        self.whole, self.tiles = whole, {}
        for axis, p, (left, dtype) in zip("de", self.weights.products, self.lefts):
            right, _ = self.tile(p.right, {axis: p.depth, "r": self.step})
            self.line(f"{p.name} = tl.dot({left}, {right}{self.precision(dtype)})")
            self.scalars[p.name] = Value(p.name, frozenset("yr"))
        (weight, *others), decay = self.weights_of(body, outside), ""
        if self.weights.softmax:
            weight, decay = (self.online(*weight), torch.float32), " * less"
        self.add(self.result, decay, weight, self.product.right, {"r": self.step, "x": self.column})
        if self.weights.softmax:
            self.line("top = higher")
        beside = self.weights.beside
        if beside is not None:
            loops = {"r": self.step, "w": beside.column}
            self.add("beside", "", others[0], beside.right, loops)
        self.indent -= 1

    def add(
        self,
        total: str,
        decay: str,
        weight: tuple[str, torch.dtype],
        right: Access,
        loops: Mapping[str, Symbol],
    ) -> None:
        """Add a product of weights to a sum, which decays before."""
        operand, dtype = self.tile(right, loops)
        text, precision = ops.convert(*weight, dtype), self.precision(dtype)
        self.line(f"{total} = tl.dot({text}, {operand}, {total}{decay}{precision})")

    def store_beside(self, beside: Beside) -> None:
        self.order, self.known = ("y", "w"), {}
        self.axis("w", beside.column, 1)
        axes = frozenset("yw")
        pointer = self.pointer(beside.target.buffer, self.index(beside.target.index), axes)
        value = ops.convert("beside", torch.float32, self.dtype_of(beside.target))
        self.line(f"tl.store({pointer}, {value}{with_mask(self.joined_mask(axes))})")

    def precision(self, dtype: torch.dtype) -> str:
        if dtype is not torch.float32:
            return ""
        return f', input_precision="{self.tiling.precision}"'

    # -- the order of blocks -----------------------------------------------------------------------

    def batch(self, blocks: Expr) -> None:
        """As for a product; blocks with many steps come before those with few.

        They do so all over some elements of the batch: the last ones to begin are short.
        """
        trend = self.trend()
        if trend:
            together = self.together()
            count = bracketed(self.index(blocks * together).text)
            self.line(f"z = block // {count} * {together} + block % {together}")
            self.line(f"block = block % {count} // {together}")
        else:
            super().batch(blocks)
        if trend > 0:
            self.line(f"block = {self.index(blocks - 1).text} - block")

    def trend(self) -> int:
        """Whether later rows have more steps, 1, or fewer, -1, as far as indices say; else 0."""
        if self.weights.tiles is not None:
            return 0
        window = self.window()
        return any(map(self.rises, window.upper)) - any(map(self.rises, window.lower))

    def rises(self, bound: Bound) -> bool:
        """Whether a bound is higher for later rows."""
        return any(self.slope(e) > 0 for e in bound)

    def together(self) -> int:
        """Of how many elements of the batch all that blocks read for their steps is in the L2 cache
        at once."""
        width = self.column.extent
        for p in self.weights.products:
            width += p.depth.extent
        size = ((self.step.extent.constant or USUAL) * width).constant or 0
        size *= self.dtype_of(self.product.right).itemsize
        count = points_of(self.kernel.loops).constant
        if count is None:
            count = self.kernel.loops[-1].extent.constant or 1
        number = max(1, min(count, CACHED // max(size, 1)))
        while count % number:
            number -= 1
        return number

    # -- the steps that matter ---------------------------------------------------------------------

    def steps_of_lists(self, tiles: Tiles) -> None:
        parts = TILE // self.tiling.depth
        self.line(f"rows = {self.first_row} // {TILE}")
        self.symbols[tiles.rows] = Value("rows", NO_AXES)
        self.symbols[tiles.entry] = Value(f"(part // {parts})", NO_AXES)
        inner = self.conditions.where_hold(self.conditions.of_places)
        for listed, body in ((tiles.whole, inner), (tiles.partial, self.scores)):
            loop = f"part in range(0, {self.loaded(listed.length)} * {parts})"
            start = f"start = {self.loaded(listed.numbers)} * {TILE} + part % {parts} * RBLOCK"
            self.steps_of(body, loop, [start], whole=body is inner)

    def loaded(self, access: Access) -> str:
        """A number for the block, in 32 bits where these are enough."""
        number = f"tl.load({access.buffer} + {bracketed(self.index(access.index).text)})"
        if self.short:
            return f"{number}.to(tl.int32)"
        return number

    def steps_of_window(self) -> None:
        """First those between which and the rows of the block all is seen, then the others."""
        conditions, window, rows = self.conditions, self.window(), self.row.extent
        if window == ALL:
            end = self.index(self.step.extent).text
            self.steps_of(self.scores, f"start in range(0, {end}, RBLOCK)")
            return
        first, last = loop_symbol("first", rows), loop_symbol("last", rows)
        self.line(f"first = {self.first_row}")
        self.line(f"last = tl.minimum(first + YBLOCK, {self.index(rows).text}) - 1")
        self.symbols[first], self.symbols[last] = Value("first", NO_AXES), Value("last", NO_AXES)
        begin, end = self.range(window, first, last)
        self.line(f"begin = {begin} // RBLOCK * RBLOCK")
        self.line(f"end = {end}")
        told = conditions.told
        inner = conditions.window(told)
        if inner == ALL:
            self.steps_of(self.scores, "start in range(begin, end, RBLOCK)")
            return
        begin, end = self.range(inner, last, first)
        self.line(f"inner = tl.minimum({begin}, tl.maximum(end, begin))")
        self.line("inner = (inner + RBLOCK - 1) // RBLOCK * RBLOCK")
        self.line(f"outer = tl.maximum({end} // RBLOCK * RBLOCK, inner)")
        self.steps_of(
            conditions.where_hold(told), "start in range(inner, outer, RBLOCK)", whole=True
        )
        self.line("before = (inner - begin) // RBLOCK")
        self.line("behind = (tl.maximum(end - outer, 0) + RBLOCK - 1) // RBLOCK")
        start = "start = begin + part * RBLOCK + tl.where(part < before, 0, outer - inner)"
        self.steps_of(self.scores, "part in range(0, before + behind)", [start])

    def range(self, window: Window, rising: Symbol, falling: Symbol) -> tuple[str, str]:
        """Where the steps begin and end that are within a window for a row of the block.

        That is any row where bounds that rise with it are taken at the first one, and every row
        where they are taken at the last one.
        """
        begin, end = "0", self.index(self.step.extent).text
        for bound in window.lower:
            begin = f"tl.maximum({begin}, {self.at_end(bound, rising, falling, 'tl.minimum')})"
        for bound in window.upper:
            limit = self.at_end(bound, falling, rising, "tl.maximum")
            end = f"tl.minimum({end}, tl.maximum({limit} + 1, 0))"
        return begin, end

    def at_end(self, bound: Bound, rising: Symbol, falling: Symbol, weakest: str) -> str:
        """A bound at one of the block's rows, by whether it rises or falls with the row."""
        texts = []
        for e in bound:
            end = rising
            if self.slope(e) < 0:
                end = falling
            texts.append(self.index(e.substitute({self.row: end})).text)
        return reduce(lambda a, b: f"{weakest}({a}, {b})", texts)

    # -- the softmax -------------------------------------------------------------------------------

    def online(self, score: str, dtype: torch.dtype) -> str:
        """Take the scores of a step in; gives their exponentials.

        They are powers of 2, as what is subtracted from scores and the factor are one operation.
        """
        score, factor = ops.convert(score, dtype, torch.float32), self.factor * _LOG2_E
        self.line(f"higher = tl.maximum(top, tl.max({score}, 1)[:, None])")
        self.line(f'base = tl.where(higher == float("-inf"), 0.0, higher * {factor!r})')
        self.line(f"weight = tl.exp2({score} * {factor!r} - base)")
        self.line(f"less = tl.exp2(top * {factor!r} - base)")
        self.line("total = total * less + tl.sum(weight, 1)[:, None]")
        return "weight"

    def finish(self) -> None:
        logarithms = self.weights.logarithms
        self.line(f"{self.result} = {self.result} / total")
        if self.weights.zero_rows:
            self.line(f"{self.result} = tl.where(total == 0, 0.0, {self.result})")
        if logarithms is None:
            return
        self.line(f"top = top * {self.factor!r}")
        self.line('total = tl.where(tl.abs(top) == float("inf"), top, top + tl.log(total))')
        pointer = f"{logarithms.buffer} + {bracketed(self.index(logarithms.index).text)}"
        self.line(f"tl.store({pointer}, total{with_mask(self.masks['y'])})")

    # -- tiles -------------------------------------------------------------------------------------

    def tile(self, access: Access, loops: Mapping[str, Symbol]) -> tuple[str, torch.dtype]:
        """A tile of an operand over two axes, and its dtype. One that is there is turned."""
        first, second = loops
        inner = loops[second if first == "r" else first]
        index = access.index.substitute({inner: loop_symbol("inner", inner.extent)})
        key, dtype = (access.buffer, index), self.dtype_of(access)
        if key in self.tiles:
            return f"tl.trans({self.tiles[key]})", dtype
        self.order, self.known = (first, second), {}
        for position, (axis, loop) in enumerate(loops.items()):
            if axis in "rdew":
                self.axis(axis, loop, position)
        axes = frozenset(loops)
        pointer = self.pointer(access.buffer, self.index(access.index), axes)
        mask = with_mask(self.joined_mask(axes), ", other=0")
        text = self.fresh(f"tl.load({pointer}{mask})", axes).text
        if "r" in loops:
            self.tiles[key] = text
        return text, dtype

    def axis(self, axis: str, loop: Symbol, position: int) -> None:
        """The indices of an axis, as the first or the second one of a tile."""
        name, block = f"{axis}{position}", f"{axis.upper()}BLOCK"
        place = ("[:, None]", "[None, :]")[position]
        start = ""
        if axis == "r":
            start = "start + "
        self.line(f"{name} = {start}{self.wide(f'tl.arange(0, {block})')}{place}")
        extent, length = loop.extent, self.constants[block]
        if axis == "r" and self.whole:
            extent = as_expr(length)
        elif axis == "r" and self.weights.tiles is not None:
            length = TILE
        self.extent_mask(name, extent, length, axis)
        self.split(name, axis, (loop,))

    def values_of_rows(self, body: Body) -> dict[int, Value]:
        """What is the same at all steps, by its position in the body."""
        self.order, self.known, self.inner_loops = ("y", "r"), {}, ()
        of_steps, stage = {self.step}, Stage((self.step,), body)
        results: dict[int, Value] = {}
        values: list[Value] = []
        for k, i in enumerate(body.instructions):
            symbols = frozenset[Symbol]()
            if i.expression is not None:
                symbols = i.expression.symbols
            if i.op != "scalar" and results.keys() >= {*i.args} and not symbols & of_steps:
                results[k] = self.cheaper(body, i, values) or self.instruction(i, values, stage)
            elif i.op == "indirect":
                of_steps.add(i.attrs[0])
            values.append(results.get(k, _OF_STEPS))
        return results

    def weights_of(self, body: Body, outside: Mapping[int, Value]) -> list[tuple[str, torch.dtype]]:
        """The weights of a tile, or the scores, as the body's results; those behind the last step
        are zero, or -inf."""
        self.order, self.known = ("y", "r"), {}
        self.axis("r", self.step, 1)
        stage, values = Stage((self.step,), body), list[Value]()
        self.inner_loops = ()
        for k, i in enumerate(body.instructions):
            value = outside.get(k) or self.cheaper(body, i, values)
            values.append(value or self.instruction(i, values, stage))
        results, nothing = [], "0.0"
        if self.weights.softmax:
            nothing = 'float("-inf")'
        for k in body.results:
            text = values[k].text
            if self.masks["r"] is not None:
                text = self.fresh(f"tl.where({self.masks['r']}, {text}, {nothing})", NO_AXES).text
            results.append((text, body.instructions[k].dtype))
        return results

    def cheaper(self, whole: Body, i: Instruction, values: Sequence[Value]) -> Value | None:
        """A cheaper form of an instruction, if it has one.

        Indices are compared and converted in 32 bits where these are enough. A division by a number
        is a product with its inverse, an exponential a power of 2: these are rounded twice, as the
        sums around them are many times.
        """
        body = whole.instructions
        if i.op in _COMPARISONS and self.short:
            left, right = map(partial(index_of, body), i.args)
            if left is not None and right is not None:
                a, b = self.index(left), self.index(right)
                text = f"{bracketed(a.text)} {_COMPARISONS[i.op]} {bracketed(b.text)}"
                return self.fresh(text, a.axes | b.axes)
        if i.op == "to" and i.dtype is torch.float32 and self.short:
            place = index_of(body, i.args[0])
            if place is not None:
                number = self.index(place)
                return self.fresh(f"{bracketed(number.text)}.to(tl.float32)", number.axes)
        if i.op == "exp2" and i.dtype is torch.float32:
            value = values[i.args[0]]
            return self.fresh(f"tl.exp2({value.text})", value.axes)
        if i.op == "div" and i.dtype is torch.float32 and body[i.args[1]].op == "constant":
            number, value = body[i.args[1]].attrs[0], values[i.args[0]]
            if number and math.isfinite(1 / number):
                return self.fresh(f"{value.text} * {1 / number!r}", value.axes)
        return None
