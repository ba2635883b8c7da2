"""Attention and its gradients as C++, in blocks of the queries of one head.

A block's queries lie side by side for each of their elements, so that the scores of a key are a
tile's row, and softmax goes down the columns. All products are `ingot::multiply`'s, as in
`product.py`; rows that they read as columns are copied side by side.
"""

from __future__ import annotations

from collections.abc import Sequence

from ingot.codegen.cpp.blocks import LOCALS as OF_BLOCKS
from ingot.codegen.cpp.blocks import ROWS, BlockWriter, Left
from ingot.codegen.cpp.function import Function, driver_of, head_of
from ingot.codegen.cpp.types import TYPES, float_literal
from ingot.loops.expr import ZERO, Expr, Symbol
from ingot.schedule.kernel import AttentionBackwardKernel, AttentionKernel, Operand

LOCALS = OF_BLOCKS | set(
    "batches heads queries keys width value_width number blocks point batch head q_first q_end "
    "count packed scores rows sums top total s m weight nothing scale q d queries_packed "
    "tangents_packed weights slopes key_rows query_rows tangent_rows of_queries of_keys of_values "
    "logarithm shift".split()
)
"""The names that this text has for its own variables."""


def write_attention(
    kernel: AttentionKernel | AttentionBackwardKernel,
    symbols: Sequence[Symbol],
    buffers: Sequence[str] = (),
) -> Function:
    """The C++ function of attention, or of its gradients. Bounds are not checked."""
    if isinstance(kernel, AttentionKernel):
        return _Forward(kernel, symbols, buffers).function()
    return _Backward(kernel, symbols, buffers).function()


def known(width: Expr) -> int:
    assert width.constant is not None
    return width.constant


class _Writer(BlockWriter):
    """The text around a block: buffers, sizes, and rows that are copied."""

    kernel: AttentionKernel | AttentionBackwardKernel

    def __init__(
        self,
        kernel: AttentionKernel | AttentionBackwardKernel,
        symbols: Sequence[Symbol],
        buffers: Sequence[str],
    ) -> None:
        super().__init__(check_bounds=False)
        self.kernel = kernel
        self.names.taken |= LOCALS
        dtype = self.kernel.parameters[0].dtype
        self.type, self.size = TYPES[dtype], dtype.itemsize
        self.buffers: list[str] = []
        for k, symbol in enumerate(symbols):
            name = self.names.fresh(symbol.name)
            self.index.bind(symbol, name)
            self.line(f"const int64_t {name} = sizes[{k}];")
        for k, p in enumerate(self.kernel.parameters):
            name = self.names.fresh(buffers[k] if buffers else p.name)
            type = f"{'' if p.written else 'const '}{self.type} *"
            self.line(f"{type}__restrict {name} = static_cast<{type.strip()}>(buffers[{k}]);")
            self.buffers.append(name)
        self.line("if (begin >= end) return 0;")
        self.block_rows = self.kernel.query_block
        names = ("batches", "heads", "queries", "keys", "width", "value_width")
        for name, size in zip(names, self.kernel.sizes):
            self.line(f"const int64_t {name} = {self.index(size).text};")

    def place(self, operand: Operand, head: str, *place: str) -> str:
        """The text of an element's position, in the batch `batch`."""
        terms = []
        if operand.offset is not ZERO:
            terms.append(self.index(operand.offset).text)
        for stride, at in zip(operand.strides, ("batch", head, *place)):
            if stride is not ZERO:
                times = "" if stride.constant == 1 else f" * {self.index(stride).inside(9)}"
                terms.append(f"({at}){times}" if times and not at.isalnum() else f"{at}{times}")
        return " + ".join(terms) or "0"

    def at(self, operand: Operand, head: str, *place: str) -> str:
        return f"{self.buffers[operand.parameter]}[{self.place(operand, head, *place)}]"

    def head(self) -> None:
        self.line("const int64_t batch = point / heads, head = point % heads;")

    def count_of_keys(self) -> str:
        """The line that says how many keys the block's queries may see, in whole tiles of rows.

        What is added up over blocks has no rows beyond.
        """
        if self.kernel.causal:
            tiles = f"(q_end + {ROWS - 1}) / {ROWS} * {ROWS}"
            return f"const int64_t count = ingot::smaller({tiles}, keys);"
        return "const int64_t count = keys;"

    def pack_queries(self, target: str, operand: Operand, width: str) -> None:
        """Copy the block's rows so that those of all queries lie side by side."""
        with self.count("d", width):
            there = self.at(operand, "head", "q_first + q", "d")
            self.line(
                f"for (int64_t q = 0; q < {self.block_rows}; ++q)",
                f"  {target}[d * {self.block_rows} + q] = q_first + q < q_end ? {there} : 0;",
            )

    def pack_rows(
        self, target: str, operand: Operand, head: str, rows: tuple[str, str], width: Expr
    ) -> None:
        """Copy rows from the first to before the end, filled up with zeros to whole tiles."""
        padded, first = self.padded(known(width)), rows[0]
        with self.count("k", rows[1], first):
            there = self.at(operand, head, "k", "d")
            self.line(
                f"for (int64_t d = 0; d < {padded}; ++d)",
                f"  {target}[(k - {first}) * {padded} + d] = d < {width} ? {there} : 0;",
            )

    def scores(self, name: str, keys: Operand, head: str, width: str, packed: str) -> None:
        """For each key, the products with all queries of the block."""
        self.clear(name, f"(count + {ROWS}) * {self.block_rows}")
        step = self.index(keys.strides[3]).inside(9)
        row = self.place(keys, head, "r", "0")
        left = Left(self.buffers[keys.parameter], row, f"k * {step}")
        self.products(left, "count", width, packed, self.block_rows, name)

    def masked(self, mask: Operand | None, replaces: bool, causal: bool) -> list[str]:
        """The lines that make a score `s` of the mask's."""
        lines = []
        if mask is not None:
            there = self.at(mask, "head", "ingot::smaller(q_first + q, q_end - 1)", "k")
            lines.append(f"const {self.type} m = {there};")
            lines.append("s = m != m ? s : m;" if replaces else "s += m;")
        if causal:
            lines.append("if (k > q_first + q) s = -INFINITY;")
        return lines

    def exponential(self, argument: str) -> str:
        self.functions.add(("exp", self.type))
        return f"ingot::exp({argument})"

    def function_of(self, points: Expr) -> Function:
        self.line("return 0;")
        text = "\n".join([head_of(), *self.lines, "}", ""])
        sizes = [line for line in self.lines if line.endswith("];") and "= sizes[" in line]
        driver = driver_of(sizes, self.index(points).text, self.index(self.scratch).text)
        return Function(text, driver, frozenset(self.functions), (), self.scratch)


class _Forward(_Writer):
    kernel: AttentionKernel

    def function(self) -> Function:
        kernel, block = self.kernel, self.block_rows
        batches, heads, _, keys, width, value_width = kernel.sizes
        padded = self.padded(known(value_width))
        shared = f"head / {(heads.constant or 0) // kernel.key_heads}"
        self.array("packed", width * block)
        self.array("scores", (keys + ROWS) * block)
        self.array("rows", keys * padded)
        self.array("sums", (block + ROWS) * padded)
        blocks = self.index(kernel.blocks).text
        with self.count("number", "end", "begin"):
            self.line(
                f"const int64_t blocks = {blocks}, point = number / blocks;",
                f"const int64_t q_first = number % blocks * {block};",
                f"const int64_t q_end = ingot::smaller(q_first + {block}, queries);",
            )
            self.head()
            self.line(self.count_of_keys())
            self.pack_queries("packed", kernel.query, "width")
            self.scores("scores", kernel.key, shared, "width", "packed")
            self.softmax()
            self.line("// the values of the keys, by their weights")
            self.pack_rows("rows", kernel.value, shared, ("0", "count"), value_width)
            self.clear("sums", f"({block} + {ROWS}) * {padded}")
            left = Left("scores", "r", f"k * {block}")
            self.products(left, str(block), "count", "rows", padded, "sums")
            self.finish(padded)
        return self.function_of(batches * heads * kernel.blocks)

    def softmax(self) -> None:
        """Down the columns of the scores, which become weights."""
        kernel, block, type = self.kernel, self.block_rows, self.type
        scale = float_literal(kernel.scale, type).text
        self.line(
            "// softmax down the columns",
            f"{type} top[{block}];",
            f"{type} total[{block}] = {{}};",
            f"for (int64_t q = 0; q < {block}; ++q) top[q] = -INFINITY;",
        )
        with self.count("k", "count"):
            self.vector(
                "q",
                block,
                f"{type} s = scores[k * {block} + q] * {scale};",
                *self.masked(kernel.mask, kernel.replaces, kernel.causal),
                f"scores[k * {block} + q] = s;",
                "top[q] = ingot::maximum(s, top[q]);",
            )
        self.weigh_scores("scores", block, str(block), "top")

    def finish(self, padded: int) -> None:
        kernel, type = self.kernel, self.type
        with self.count("q", "q_end - q_first"):
            nothing = "count == 0"
            if kernel.zero_rows:
                nothing += " || top[q] == -INFINITY"
            self.line(
                f"const bool nothing = {nothing};",
                f"const {type} scale = nothing ? 0 : {type}(1.0 / total[q]);",
            )
            target = self.at(kernel.target, "head", "q_first + q", "d")
            with self.count("d", "value_width"):
                self.line(f"{target} = nothing ? 0 : sums[q * {padded} + d] * scale;")
            if kernel.logarithms is not None:
                there = self.at(kernel.logarithms, "head", "q_first + q")
                self.functions.add(("log", "double"))
                logarithm = f"{type}(ingot::log(double(total[q])) + top[q])"
                if kernel.zero_rows:
                    logarithm = f"nothing ? 0 : {logarithm}"
                self.line(f"{there} = {logarithm};")


class _Backward(_Writer):
    kernel: AttentionBackwardKernel

    def function(self) -> Function:
        kernel, block = self.kernel, self.block_rows
        batches, heads, _, keys, width, value_width = kernel.sizes
        wide, value_wide = self.padded(known(width)), self.padded(known(value_width))
        for name, length in (
            ("queries_packed", width * block),
            ("tangents_packed", value_width * block),
            ("weights", (keys + ROWS) * block),
            ("slopes", (keys + ROWS) * block),
            ("key_rows", keys * wide),
            ("query_rows", block * wide),
            ("tangent_rows", block * value_wide),
            ("of_queries", (block + ROWS) * wide),
            ("of_keys", (keys + ROWS) * wide),
            ("of_values", (keys + ROWS) * value_wide),
        ):
            self.array(name, length)
        with self.count("point", "end", "begin"):
            self.head()
            self.clear("of_keys", f"(keys + {ROWS}) * {wide}")
            self.clear("of_values", f"(keys + {ROWS}) * {value_wide}")
            self.pack_rows("key_rows", kernel.key, "head", ("0", "keys"), width)
            with self.count("q_first", "queries", step=str(block)):
                self.line(f"const int64_t q_end = ingot::smaller(q_first + {block}, queries);")
                self.line(self.count_of_keys())
                self.slopes()
                self.gradients(wide, value_wide)
            self.write_rows("of_keys", kernel.of_key, "keys", "width", wide)
            self.write_rows("of_values", kernel.of_value, "keys", "value_width", value_wide)
        return self.function_of(batches * heads)

    def slopes(self) -> None:
        """The weights of the block's queries, and the slopes of their scores."""
        kernel, block, type = self.kernel, self.block_rows, self.type
        self.pack_queries("queries_packed", kernel.query, "width")
        self.pack_queries("tangents_packed", kernel.tangent, "value_width")
        self.scores("weights", kernel.key, "head", "width", "queries_packed")
        self.scores("slopes", kernel.value, "head", "value_width", "tangents_packed")
        self.line(f"{type} logarithm[{block}] = {{}}, shift[{block}] = {{}};")
        with self.count("q", "q_end - q_first"):
            tangent = self.at(kernel.tangent, "head", "q_first + q", "d")
            result = self.at(kernel.result, "head", "q_first + q", "d")
            self.line(
                f"logarithm[q] = {self.at(kernel.logarithms, 'head', 'q_first + q')};",
                "for (int64_t d = 0; d < value_width; ++d)",
                f"  shift[q] = std::fma({tangent}, {result}, shift[q]);",
            )
        scale = float_literal(kernel.scale, type).text
        with self.count("k", "count"):
            self.vector(
                "q",
                block,
                f"{type} s = weights[k * {block} + q] * {scale};",
                *self.masked(kernel.mask, False, kernel.causal),
                f"const {type} there = {self.exponential('s - logarithm[q]')};",
                f"const {type} weight = q_first + q < q_end ? there : 0;",
                f"const {type} slope = slopes[k * {block} + q] - shift[q];",
                f"weights[k * {block} + q] = weight;",
                f"slopes[k * {block} + q] = weight * slope * {scale};",
            )

    def gradients(self, wide: int, value_wide: int) -> None:
        """Add up what the block's queries give to the three gradients."""
        kernel, block = self.kernel, self.block_rows
        _, _, _, _, width, value_width = kernel.sizes
        self.clear("of_queries", f"({block} + {ROWS}) * {wide}")
        left = Left("slopes", "r", f"k * {block}")
        self.products(left, str(block), "count", "key_rows", wide, "of_queries")
        target = self.at(kernel.of_query, "head", "q_first + q", "d")
        with self.count("q", "q_end - q_first"):
            self.line(f"for (int64_t d = 0; d < width; ++d) {target} = of_queries[q * {wide} + d];")
        rows = "q_first", "q_end"
        self.pack_rows("query_rows", kernel.query, "head", rows, width)
        self.pack_rows("tangent_rows", kernel.tangent, "head", rows, value_width)
        count, row = "(q_end - q_first)", f"r * {block}"
        keys = Left("slopes", row, "k")
        self.products(keys, "count", count, "query_rows", wide, "of_keys")
        values = Left("weights", row, "k")
        self.products(values, "count", count, "tangent_rows", value_wide, "of_values")

    def write_rows(self, source: str, target: Operand, rows: str, width: str, stride: int) -> None:
        there = self.at(target, "head", "k", "d")
        with self.count("k", rows):
            self.line(
                f"for (int64_t d = 0; d < {width}; ++d) {there} = {source}[k * {stride} + d];"
            )
