"""A kernel whose product has weights, as C++: attention with scores of the program's own, or a part
of its gradients.

A block's rows lie side by side for each of their features. It takes up to `CHUNK` steps at a time:
their products with all rows, which become weights where they are, and are added up times the right
operand. The softmax is taken online: a row's largest score so far, and the sum of exponentials
below it (Milakov and Gimelshein, 2018). Bounds are not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce

import torch

from ingot.codegen.cpp.blocks import LOCALS as OF_BLOCKS
from ingot.codegen.cpp.blocks import ROWS, BlockWriter, Left
from ingot.codegen.cpp.kernel import KernelWriter, Part
from ingot.codegen.cpp.ops import converted
from ingot.codegen.cpp.types import PRODUCT, SUM, Code, atom
from ingot.loops.expr import ONE, ZERO, Expr, Symbol, loop_symbol
from ingot.loops.ir import Access, Body
from ingot.loops.weights import TILE
from ingot.loops.windows import ALL, Bound, Conditions, Window, symbols_of
from ingot.schedule.kernel import Kernel, Product, Stage, Store

CHUNK = 2 * TILE  # steps whose weights are in scratch at once

LOCALS = OF_BLOCKS | set(
    "point blocks first_row last_row rows row step first_step count part step_begin step_end start "
    "seen_begin seen_end all_begin all_end begins ends entry entries top total decay share sum "
    "base highest".split()
)
"""The names that this text has for its own variables."""

Bounds = tuple[str, str]  # where steps begin and end, as texts


class _Sum:
    """A sum over steps: its column and right operand, and the names of its arrays."""

    def __init__(self, column: Symbol, right: Access, number: int) -> None:
        self.column, self.right = column, right
        end = f"_{number}" if number else ""
        self.weights, self.sums, self.copies = f"weights{end}", f"sums{end}", f"right_rows{end}"
        self.width = 0  # of its rows, filled up to whole vectors


class ScoredWriter(KernelWriter, BlockWriter):
    """A point of the parallel range is a block of rows of one point of the batch."""

    type, size = "float", 4

    def __init__(
        self, kernel: Kernel, product: Product, symbols: Sequence[Symbol], buffers: Sequence[str]
    ) -> None:
        super().__init__(kernel, symbols, False, buffers)
        assert product.weights is not None
        self.names.taken |= LOCALS
        self.product, self.weights, self.height = product, product.weights, product.row_block
        self.block_size = CHUNK if self.height == 1 else self.height
        self.tile_rows = min(ROWS, self.height)
        (self.row,), (self.step,) = product.rows, product.reduced
        self.conditions = Conditions(self.weights.body, self.weights.softmax, self.row, self.step)
        (column,) = product.columns
        self.sums = [_Sum(column, product.right, 0)]
        if self.weights.beside is not None:
            self.sums.append(_Sum(self.weights.beside.column, self.weights.beside.right, 1))
        # the number of a row, and of a step, in what is at hand
        self.r, self.n = loop_symbol("r", self.height), loop_symbol("n", CHUNK)
        self.first_row = loop_symbol("first_row", self.row.extent)
        self.first_step = loop_symbol("first_step", self.step.extent)
        self.weight = self.n * self.height + self.r

    def outer_loops(self) -> None:
        self.arrays()
        blocks = self.index(self.product.row_blocks)
        with self.count("point", "end", "begin"):
            self.line(f"const int64_t blocks = {blocks.text};")
            self.line(f"const int64_t first_row = point % blocks * {self.height};")
            extent = self.index(self.row.extent).text
            self.line(f"const int64_t rows = ingot::smaller({extent} - first_row, {self.height});")
            self.line("const int64_t last_row = first_row + rows - 1;")
            if self.kernel.loops:
                batch = self.names.fresh("batch")
                self.line(f"const int64_t {batch} = point / blocks;")
                self.bind_point(batch, self.kernel.loops)
            self.index.bind(self.first_row, "first_row")
            self.block_of_rows()

    def arrays(self) -> None:
        """Scratch memory."""
        self.turned: list[str] = []
        self.copies: list[str] = []
        for p in self.weights.products:
            depth = known(p.depth)
            self.turned.append(self.fresh_array("turned", depth * self.height))
            copies = ""
            if self.step_of(p.right, p.depth) is None and self.height > 1:
                copies = self.fresh_array("right_rows", CHUNK * depth)
            self.copies.append(copies)
            name = self.fresh_array("products", (CHUNK + ROWS) * self.height)
            place = "n" if self.height == 1 else f"n * {self.height} + r"
            self.scalars[p.name] = (atom(f"{name}[{place}]"), True)
            self.pointers[p.name] = name
        for each in self.sums:
            each.width = self.padded(known(each.column))
            each.weights = self.fresh_array(each.weights, CHUNK * self.height)
            each.sums = self.fresh_array(each.sums, (self.height + ROWS) * each.width)
            if self.lies_in_rows(each) is None:
                each.copies = self.fresh_array(each.copies, CHUNK * each.width)
            self.pointers[each.weights] = each.weights
            self.dtypes[each.weights] = torch.float32

    def fresh_array(self, name: str, length: int) -> str:
        name = self.names.fresh(name)
        self.array(name, length)
        return name

    # -- one block of rows -------------------------------------------------------------------------

    def block_of_rows(self) -> None:
        height = self.height
        for p, turned in zip(self.weights.products, self.turned):
            self.line("// the block's rows, side by side for each of their features")
            with self.count("k", str(known(p.depth))), self.count("r", str(height)):
                self.index.codes[self.row] = Code("first_row + r", SUM)
                there = self.number(p.left, {p.depth: atom("k")})
                self.line(f"{turned}[k * {height} + r] = r < rows ? {there} : 0.0f;")
        for each in self.sums:
            self.clear(each.sums, f"{height + ROWS} * {each.width}")
        if self.weights.softmax:
            self.line(f"float top[{height}], total[{height}] = {{}}, decay[{height}];")
            self.line(f"for (int64_t r = 0; r < {height}; ++r) top[r] = -INFINITY;")
        self.all_steps()
        self.index.bind(self.row, "row")
        if self.weights.softmax:
            self.finish_softmax()
        self.finish_rows(self.sums[0], self.run_epilogue)
        if self.weights.beside is not None:
            self.finish_rows(self.sums[1], self.store_beside)

    def number(self, access: Access, at: dict[Symbol, Code]) -> str:
        """The text of an element as a float, where loops have these values."""
        self.index.codes.update(at)
        element = atom(self.element(access.buffer, access.index))
        return converted(element, self.dtypes[access.buffer], torch.float32).text

    # -- the steps that matter ---------------------------------------------------------------------

    def all_steps(self) -> None:
        """Add all steps that matter to the rows."""
        conditions, window = self.conditions, ALL
        if self.weights.softmax or self.weights.zero_rows:
            window = conditions.window(conditions.all)
        whole = self.weights.body
        if self.weights.tiles is not None:
            self.range_of(window, "first_row", "last_row", "seen_begin", "seen_end")
            with self.listed_tiles():
                self.chunks(conditions.where_hold(conditions.of_places), whole)
            return
        inner = conditions.window(conditions.told)
        if window == ALL or inner == ALL:
            self.range_of(window, "first_row", "last_row", "step_begin", "step_end")
            self.chunks(None, whole)
            return
        self.line("// the steps that some row of the block sees, and of these, those that all see")
        self.range_of(window, "first_row", "last_row", "seen_begin", "seen_end")
        self.range_of(inner, "last_row", "first_row", "all_begin", "all_end")
        self.line(
            "const int64_t start = ingot::smaller(all_begin, ingot::larger(seen_end, seen_begin));",
            "const int64_t stop = ingot::larger(ingot::smaller(all_end, seen_end), start);",
            "const int64_t begins[] = {start, seen_begin, stop};",
            "const int64_t ends[] = {stop, start, seen_end};",
        )
        with self.count("part", "3"):
            self.line("const int64_t step_begin = begins[part], step_end = ends[part];")
            self.chunks(conditions.where_hold(conditions.told), whole)

    @contextmanager
    def listed_tiles(self) -> Iterator[None]:
        """A loop over the tiles that matter: first those in which all conditions of places hold."""
        tiles = self.weights.tiles
        assert tiles is not None
        self.index.codes[tiles.rows] = Code(f"first_row / {TILE}", PRODUCT)
        self.index.bind(tiles.entry, "entry")
        self.line(
            "// the tiles of steps that matter: those that all rows see as a whole come first"
        )
        with self.count("part", "2"):
            lengths = map(self.listed, (tiles.whole.length, tiles.partial.length))
            self.line("const int64_t entries = part == 0 ? {} : {};".format(*lengths))
            with self.count("entry", "entries"):
                numbers = map(self.listed, (tiles.whole.numbers, tiles.partial.numbers))
                number = "part == 0 ? {} : {}".format(*numbers)
                self.line(f"const int64_t start = ({number}) * {TILE};")
                self.line("const int64_t step_begin = ingot::larger(start, seen_begin);")
                self.line(f"const int64_t step_end = ingot::smaller(start + {TILE}, seen_end);")
                yield

    def listed(self, access: Access) -> str:
        return self.element(access.buffer, access.index)

    def range_of(self, window: Window, rising: str, falling: str, begin: str, end: str) -> None:
        """Lines that say where the steps begin and end that are within a window for a row.

        That is any row where bounds that rise with it are taken at the first one, and every row
        where they are taken at the last one.
        """
        first, last = "int64_t(0)", self.index(self.step.extent).text
        for bound in window.lower:
            first = f"ingot::larger({self.at_end(bound, rising, falling, 'smaller')}, {first})"
        for bound in window.upper:
            limit = f"ingot::larger({self.at_end(bound, falling, rising, 'larger')} + 1, 0)"
            last = f"ingot::smaller({limit}, {last})"
        first = first.replace("int64_t(0)", "0")
        self.line(f"const int64_t {begin} = {first};", f"const int64_t {end} = {last};")

    def at_end(self, bound: Bound, rising: str, falling: str, weakest: str) -> str:
        """A bound at one of the block's rows, by whether it rises or falls with the row."""
        texts = []
        for expression in bound:
            linear = expression.linear([self.row])
            assert linear is not None
            slope = linear[1].get(self.row)
            falls = slope is not None and (slope.constant or 0) < 0
            self.index.bind(self.row, falling if falls else rising)
            texts.append(self.index(expression).text)
        return reduce(lambda a, b: f"ingot::{weakest}({a}, {b})", texts)

    # -- some steps --------------------------------------------------------------------------------

    def chunks(self, inner: Body | None, body: Body) -> None:
        """The steps from `step_begin` to before `step_end`. With an `inner` body, that makes the
        weights where `part` is 0."""
        with self.count("first_step", "step_end", "step_begin", str(CHUNK)):
            self.line(f"const int64_t count = ingot::smaller(step_end - first_step, {CHUNK});")
            for k in range(len(self.turned)):
                self.products_with_rows(k)
            if inner is None:
                self.weigh(body)
            else:
                self.line("if (part == 0) {")
                self.depth += 1
                self.weigh(inner)
                self.depth -= 1
                with self.block("} else"):
                    self.weigh(body)
            if self.weights.softmax:
                self.exponentials(self.sums[0].weights)
            for each in self.sums:
                self.add(each)

    def products_with_rows(self, number: int) -> None:
        """The products of all steps with all rows of the block."""
        p, height = self.weights.products[number], self.height
        target, depth = self.pointers[p.name], known(p.depth)
        stride = self.step_of(p.right, p.depth)
        if stride is None:
            copies = self.copies[number]
            self.copy_rows(p.right, p.depth, copies, depth)
            left = Left(copies, f"r * {depth}", "k")
        else:
            self.index.codes[self.step] = Code("first_step + r", SUM)
            row = self.index(p.right.index.substitute({p.depth: ZERO})).text
            left = Left(self.pointers[p.right.buffer], row, self.times("k", stride))
        self.line("// the products of steps and rows")
        self.clear(target, f"(count + {ROWS}) * {height}")
        self.products(left, "count", str(depth), self.turned[number], height, target)

    def weigh(self, body: Body) -> None:
        """What the program makes of the products, for each step and row."""
        body = body.substitute({self.row: self.first_row + self.r})
        self.index.bind(self.step, "step")
        self.index.bind(self.n, "n")
        self.index.bind(self.r, "r")
        with self.count("n", "count"):
            if self.step in symbols_of(body, range(len(body.instructions))):
                self.line("const int64_t step = first_step + n;")
            self.innermost_of(body, self.weight, self.r)

    def innermost_of(self, body: Body, index: Expr, loop: Symbol) -> None:
        """A vector loop that stores what a body gives at an index of the weights."""
        stores = []
        for each, value in zip(self.sums, body.results):
            stores.append(Store(each.weights, index, value))
        stage, prefix = Stage((), body, tuple(stores)), self.next_prefix()
        levels = self.placed(stage, prefix, (loop,))
        self.statements(levels[0], self.later(levels, 0, stage, prefix))
        end = "count"
        if loop is self.r:
            # those behind the last row have no weights that count, and must not be looked for
            end = "rows" if body.loads else str(self.height)
        part = Part(stage, levels[1], [], prefix)
        self.innermost(loop, "0", end, [part], "0" if self.has_rare([stage]) else "")

    def exponentials(self, weights: str) -> None:
        """Turn scores into weights, and say by how much the sums so far decay."""
        height = self.height
        self.functions.add(("exp_of_negative", "float"))
        score = f"{weights}[n * {height} + r]"
        self.line(
            "// softmax: scores become weights, below the largest score so far",
            f"float base[{height}];",
            f"for (int64_t r = 0; r < {height}; ++r) base[r] = top[r];",
        )
        with self.count("n", "count"):
            self.vector("r", height, f"base[r] = ingot::maximum({score}, base[r]);")
        self.vector(
            "r",
            height,
            "const float highest = base[r];",
            "base[r] = highest == -INFINITY ? 0.0f : highest;",
            "decay[r] = ingot::exp_of_negative(top[r] - base[r]);",
            "top[r] = highest;",
            "total[r] *= decay[r];",
        )
        self.weigh_scores(weights, height, str(height), "base")

    def add(self, each: _Sum) -> None:
        """Add the steps to a sum, which decays before."""
        width = each.width
        self.line("// the right operand's rows, by their weights")
        if self.weights.softmax:
            with self.count("r", "rows"):
                self.vector("c", width, f"{each.sums}[r * {width} + c] *= decay[r];")
        right, stride = each.copies, f"k * {width}"
        direct = self.lies_in_rows(each)
        if direct is None:
            self.copy_rows(each.right, each.column, each.copies, width)
        else:
            self.index.codes[self.step] = atom("first_step")
            place = self.index(each.right.index.substitute({each.column: ZERO})).text
            right = f"{self.pointers[each.right.buffer]} + {place}"
            stride = self.times("k", direct)
        left = Left(each.weights, "r", f"k * {self.height}")
        self.products(left, "rows", "count", right, width, each.sums, stride)

    def times(self, name: str, stride: Expr) -> str:
        if stride is ONE:
            return name
        return f"{name} * {self.index(stride).inside(PRODUCT + 1)}"

    # -- operands ----------------------------------------------------------------------------------

    def step_of(self, access: Access, along: Symbol) -> Expr | None:
        """How far apart an operand's elements lie along a loop; None where that is no number, or
        they are no floats."""
        linear = access.index.linear((along,))
        if linear is None or self.dtypes[access.buffer] is not torch.float32:
            return None
        return linear[1].get(along, ZERO)

    def lies_in_rows(self, each: _Sum) -> Expr | None:
        """How far apart the rows of a sum's right operand lie, where these are whole vectors of
        floats; else None."""
        linear = each.right.index.linear((self.step, each.column))
        if linear is None or self.step_of(each.right, each.column) is not ONE:
            return None
        if self.padded(known(each.column)) != known(each.column):
            return None
        return linear[1].get(self.step, ZERO)

    def copy_rows(self, access: Access, along: Symbol, target: str, width: int) -> None:
        """Copy the rows of an operand as floats, filled up with zeros."""
        with self.count("n", "count"), self.count("c", str(width)):
            self.index.codes[self.step] = Code("first_step + n", SUM)
            there = self.number(access, {along: atom("c")})
            if width > known(along):
                there = f"c < {known(along)} ? {there} : 0.0f"
            self.line(f"{target}[n * {width} + c] = {there};")

    # -- the end of a block ------------------------------------------------------------------------

    def finish_softmax(self) -> None:
        """Leave one over the sums of exponentials in `decay`, and store their logarithms."""
        share = "1.0f / total[r]"
        if self.weights.zero_rows:
            share = f"total[r] == 0.0f ? 0.0f : {share}"
        logarithms = self.weights.logarithms
        with self.count("r", "rows"):
            self.line(f"decay[r] = {share};")
            if logarithms is None:
                return
            self.functions.add(("log", "float"))
            self.index.codes[self.row] = Code("first_row + r", SUM)
            there = self.element(logarithms.buffer, logarithms.index)
            self.line(
                "const float sum = top[r] + ingot::log(total[r]);",
                f"{there} = std::fabs(top[r]) == INFINITY ? top[r] : sum;",
            )

    def finish_rows(self, each: _Sum, store: Callable[[_Sum], None]) -> None:
        """What is done with the finished sums of each row."""
        with self.count("r", "rows"):
            self.line("const int64_t row = first_row + r;")
            self.index.bind(self.row, "row")
            self.index.codes.pop(each.column, None)
            store(each)

    def finished(self, each: _Sum) -> Code:
        """A finished sum."""
        text = f"{each.sums}[r * {each.width} + {self.name_of(each.column)}]"
        if self.weights.softmax:
            return Code(f"{text} * decay[r]", PRODUCT)
        return atom(text)

    def run_epilogue(self, each: _Sum) -> None:
        (stage,) = self.kernel.stages
        self.scalars[self.product.name] = (self.finished(each), True)
        prefix = self.next_prefix()
        levels = self.placed(stage, prefix, (each.column,))
        self.statements(levels[0], self.later(levels, 0, stage, prefix))
        self.innermost(
            each.column, "0", str(known(each.column)), [Part(stage, levels[1], [], prefix)], ""
        )

    def store_beside(self, each: _Sum) -> None:
        assert self.weights.beside is not None
        target = self.weights.beside.target
        with self.loop(each.column, "0", str(known(each.column))):
            here = self.element(target.buffer, target.index)
            value = converted(self.finished(each), torch.float32, self.dtypes[target.buffer])
            self.line(f"{here} = {value.text};")


def known(loop: Symbol) -> int:
    assert loop.extent.constant is not None
    return loop.extent.constant
