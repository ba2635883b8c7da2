"""Attention and its gradients as C++, in blocks of the queries of one head.

A block's queries lie side by side for each of their elements, so that the scores of a key are a
tile's row, and softmax goes down the columns. All products are `ingot::multiply`'s, as in
`product.py`; rows that they read as columns are copied side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from ingot.codegen.cpp.function import Function, driver_of, head_of
from ingot.codegen.cpp.names import Indices, Names
from ingot.codegen.cpp.types import TYPES, float_literal
from ingot.codegen.llvm.target import host
from ingot.loops.expr import ZERO, Expr, Symbol
from ingot.schedule.kernel import AttentionBackwardKernel, AttentionKernel, Operand

ROWS = 6  # of a tile
DEPTH = 128  # keys whose products are one chain of multiply-adds
COLUMNS = {64: 64, 32: 32, 16: 16}
"""Bytes of a tile's columns: a vector's, which fits every block of queries."""


def write_attention(
    kernel: AttentionKernel | AttentionBackwardKernel,
    symbols: Sequence[Symbol],
    buffers: Sequence[str] = (),
) -> Function:
    """The C++ function of attention, or of its gradients. Bounds are not checked."""
    if isinstance(kernel, AttentionKernel):
        return _Forward(kernel, symbols, buffers).function()
    return _Backward(kernel, symbols, buffers).function()


LOCALS = frozenset(
    "batches heads queries keys width value_width number blocks point batch head q_first q_end "
    "count packed scores rows sums top total s m weight nothing scale q k d c n r k_first k_count "
    "along places r_first starts queries_packed tangents_packed weights slopes key_rows query_rows "
    "tangent_rows of_queries of_keys of_values logarithm shift".split()
)
"""The names that this text has for its own variables."""


class _Writer:
    """The text around a block: buffers, sizes, scratch memory, and tiles of products."""

    kernel: AttentionKernel | AttentionBackwardKernel

    def __init__(self, symbols: Sequence[Symbol], buffers: Sequence[str]) -> None:
        self.names, self.index = Names(), Indices()
        self.names.taken |= LOCALS
        self.lines: list[str] = []
        self.depth = 1
        self.scratch: Expr = ZERO
        self.functions: set[tuple[str, str]] = set()
        dtype = self.kernel.parameters[0].dtype
        self.type, self.size = TYPES[dtype], dtype.itemsize
        self.columns = COLUMNS[host().vector_bytes] // self.size
        self.pointers: list[str] = []
        for k, symbol in enumerate(symbols):
            name = self.names.fresh(symbol.name)
            self.index.bind(symbol, name)
            self.line(f"const int64_t {name} = sizes[{k}];")
        for k, p in enumerate(self.kernel.parameters):
            name = self.names.fresh(buffers[k] if buffers else p.name)
            type = f"{'' if p.written else 'const '}{self.type} *"
            self.line(f"{type}__restrict {name} = static_cast<{type.strip()}>(buffers[{k}]);")
            self.pointers.append(name)
        self.line("if (begin >= end) return 0;")
        self.block = self.kernel.query_block
        names = ("batches", "heads", "queries", "keys", "width", "value_width")
        for name, size in zip(names, self.kernel.sizes):
            self.line(f"const int64_t {name} = {self.index(size).text};")

    def line(self, *texts: str) -> None:
        for text in texts:
            self.lines.append(text if text.startswith("#") else "  " * self.depth + text)

    @contextmanager
    def loop(self, head: str) -> Iterator[None]:
        self.line(f"for ({head}) {{")
        self.depth += 1
        yield
        self.depth -= 1
        self.line("}")

    def vector(self, *body: str) -> None:
        """A vector loop over the block's queries."""
        self.line("#pragma omp simd")
        with self.loop(f"int64_t q = 0; q < {self.block}; ++q"):
            self.line(*body)

    def padded(self, width: Expr) -> int:
        """A constant width, filled up to whole tiles."""
        assert width.constant is not None
        return -(-width.constant // self.columns) * self.columns

    def array(self, name: str, length: Expr | int) -> None:
        """Scratch memory for so many numbers."""
        place = "scratch"
        if self.scratch is not ZERO:
            place = f"static_cast<char *>(scratch) + {self.index(self.scratch).text}"
        self.line(f"{self.type} *__restrict {name} = ({self.type} *)({place});")
        self.scratch = self.scratch + (length * self.size + 63) // 64 * 64

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

    def element(self, operand: Operand, head: str, *place: str) -> str:
        return f"{self.pointers[operand.parameter]}[{self.place(operand, head, *place)}]"

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
        with self.loop(f"int64_t d = 0; d < {width}; ++d"):
            there = self.element(operand, "head", "q_first + q", "d")
            self.line(
                f"for (int64_t q = 0; q < {self.block}; ++q)",
                f"  {target}[d * {self.block} + q] = q_first + q < q_end ? {there} : 0;",
            )

    def pack_rows(
        self, target: str, operand: Operand, head: str, rows: tuple[str, str], width: Expr
    ) -> None:
        """Copy rows from the first to before the end, filled up with zeros to whole tiles."""
        padded, first = self.padded(width), rows[0]
        with self.loop(f"int64_t k = {first}; k < {rows[1]}; ++k"):
            there = self.element(operand, head, "k", "d")
            self.line(
                f"for (int64_t d = 0; d < {padded}; ++d)",
                f"  {target}[(k - {first}) * {padded} + d] = d < {width} ? {there} : 0;",
            )

    def products(
        self, left: str, row: Callable[[str], str], rows: str, step: str, steps: str,
        right: str, stride: int, target: str,
    ) -> None:  # fmt: skip
        """Add to the target, whose rows are `stride` apart, the products of `rows` rows of the left
        operand and the right one's columns. The row r begins at `row(r)`, the step k at `step`."""
        with self.loop(f"int64_t k_first = 0; k_first < {steps}; k_first += {DEPTH}"):
            self.line(
                f"const int64_t k_count = ingot::smaller({steps} - k_first, {DEPTH});",
                f"int64_t along[{DEPTH}], places[{DEPTH}];",
            )
            with self.loop("int64_t n = 0; n < k_count; ++n"):
                self.line(
                    "const int64_t k = k_first + n;",
                    f"along[n] = {step};",
                    f"places[n] = k * {stride};",
                )
            with self.loop(f"int64_t r_first = 0; r_first < {rows}; r_first += {ROWS}"):
                self.line(f"int64_t starts[{ROWS}];")
                with self.loop(f"int64_t n = 0; n < {ROWS}; ++n"):
                    self.line(
                        f"const int64_t r = ingot::smaller(r_first + n, {rows} - 1);",
                        f"starts[n] = {row('r')};",
                    )
                self.line(
                    f"for (int64_t c = 0; c < {stride}; c += {self.columns})",
                    f"  ingot::multiply<{ROWS}, {self.columns}>(",
                    f"      {left}, starts, along, {right} + c, places, k_count,",
                    f"      {target} + r_first * {stride} + c, {stride});",
                )

    def clear(self, target: str, count: str) -> None:
        self.line(f"std::memset({target}, 0, ({count}) * sizeof({self.type}));")

    def scores(self, name: str, keys: Operand, head: str, width: str, packed: str) -> None:
        """For each key, the products with all queries of the block."""
        self.clear(name, f"(count + {ROWS}) * {self.block}")
        pointer = self.pointers[keys.parameter]
        row = lambda r: self.place(keys, head, r, "0")  # noqa: E731
        step = self.index(keys.strides[3]).inside(9)
        self.products(pointer, row, "count", f"k * {step}", width, packed, self.block, name)

    def masked(self, mask: Operand | None, replaces: bool, causal: bool) -> list[str]:
        """The lines that make a score `s` of the mask's."""
        lines = []
        if mask is not None:
            there = self.element(mask, "head", "ingot::smaller(q_first + q, q_end - 1)", "k")
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

    def __init__(
        self, kernel: AttentionKernel, symbols: Sequence[Symbol], buffers: Sequence[str]
    ) -> None:
        self.kernel = kernel
        super().__init__(symbols, buffers)

    def function(self) -> Function:
        kernel, block = self.kernel, self.block
        batches, heads, _, keys, width, value_width = kernel.sizes
        padded = self.padded(value_width)
        shared = f"head / {(heads.constant or 0) // kernel.key_heads}"
        self.array("packed", width * block)
        self.array("scores", (keys + ROWS) * block)
        self.array("rows", keys * padded)
        self.array("sums", (block + ROWS) * padded)
        blocks = self.index(kernel.blocks).text
        with self.loop("int64_t number = begin; number < end; ++number"):
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
            self.products(
                "scores", lambda r: r, str(block), f"k * {block}", "count", "rows", padded, "sums"
            )
            self.finish(padded)
        return self.function_of(batches * heads * kernel.blocks)

    def softmax(self) -> None:
        """Down the columns of the scores, which become weights."""
        kernel, block, type = self.kernel, self.block, self.type
        scale = float_literal(kernel.scale, type).text
        self.line(
            "// softmax down the columns",
            f"{type} top[{block}];",
            f"double total[{block}] = {{}};",
            f"for (int64_t q = 0; q < {block}; ++q) top[q] = -INFINITY;",
        )
        with self.loop("int64_t k = 0; k < count; ++k"):
            self.vector(
                f"{type} s = scores[k * {block} + q] * {scale};",
                *self.masked(kernel.mask, kernel.replaces, kernel.causal),
                f"scores[k * {block} + q] = s;",
                "top[q] = ingot::maximum(s, top[q]);",
            )
        with self.loop("int64_t k = 0; k < count; ++k"):
            weight = self.exponential(f"scores[k * {block} + q] - top[q]")
            self.vector(
                f"const {type} weight = {weight};",
                f"scores[k * {block} + q] = weight;",
                "total[q] += weight;",
            )

    def finish(self, padded: int) -> None:
        kernel, type = self.kernel, self.type
        with self.loop("int64_t q = 0; q < q_end - q_first; ++q"):
            nothing = "count == 0"
            if kernel.zero_rows:
                nothing += " || top[q] == -INFINITY"
            self.line(
                f"const bool nothing = {nothing};",
                f"const {type} scale = nothing ? 0 : {type}(1.0 / total[q]);",
            )
            target = self.element(kernel.target, "head", "q_first + q", "d")
            with self.loop("int64_t d = 0; d < value_width; ++d"):
                self.line(f"{target} = nothing ? 0 : sums[q * {padded} + d] * scale;")
            if kernel.logarithms is not None:
                there = self.element(kernel.logarithms, "head", "q_first + q")
                self.functions.add(("log", "double"))
                logarithm = f"{type}(ingot::log(total[q]) + top[q])"
                if kernel.zero_rows:
                    logarithm = f"nothing ? 0 : {logarithm}"
                self.line(f"{there} = {logarithm};")


class _Backward(_Writer):
    kernel: AttentionBackwardKernel

    def __init__(
        self, kernel: AttentionBackwardKernel, symbols: Sequence[Symbol], buffers: Sequence[str]
    ) -> None:
        self.kernel = kernel
        super().__init__(symbols, buffers)

    def function(self) -> Function:
        kernel, block = self.kernel, self.block
        batches, heads, _, keys, width, value_width = kernel.sizes
        wide, value_wide = self.padded(width), self.padded(value_width)
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
        with self.loop("int64_t point = begin; point < end; ++point"):
            self.head()
            self.clear("of_keys", f"(keys + {ROWS}) * {wide}")
            self.clear("of_values", f"(keys + {ROWS}) * {value_wide}")
            self.pack_rows("key_rows", kernel.key, "head", ("0", "keys"), width)
            with self.loop(f"int64_t q_first = 0; q_first < queries; q_first += {block}"):
                self.line(f"const int64_t q_end = ingot::smaller(q_first + {block}, queries);")
                self.line(self.count_of_keys())
                self.slopes()
                self.gradients(wide, value_wide)
            self.store("of_keys", kernel.of_key, "keys", "width", wide)
            self.store("of_values", kernel.of_value, "keys", "value_width", value_wide)
        return self.function_of(batches * heads)

    def slopes(self) -> None:
        """The weights of the block's queries, and the slopes of their scores."""
        kernel, block, type = self.kernel, self.block, self.type
        self.pack_queries("queries_packed", kernel.query, "width")
        self.pack_queries("tangents_packed", kernel.tangent, "value_width")
        self.scores("weights", kernel.key, "head", "width", "queries_packed")
        self.scores("slopes", kernel.value, "head", "value_width", "tangents_packed")
        self.line(f"{type} logarithm[{block}] = {{}}, shift[{block}] = {{}};")
        with self.loop("int64_t q = 0; q < q_end - q_first; ++q"):
            tangent = self.element(kernel.tangent, "head", "q_first + q", "d")
            result = self.element(kernel.result, "head", "q_first + q", "d")
            self.line(
                f"logarithm[q] = {self.element(kernel.logarithms, 'head', 'q_first + q')};",
                "for (int64_t d = 0; d < value_width; ++d)",
                f"  shift[q] = std::fma({tangent}, {result}, shift[q]);",
            )
        scale = float_literal(kernel.scale, type).text
        with self.loop("int64_t k = 0; k < count; ++k"):
            self.vector(
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
        kernel, block = self.kernel, self.block
        _, _, _, _, width, value_width = kernel.sizes
        self.clear("of_queries", f"({block} + {ROWS}) * {wide}")
        self.products(
            "slopes",
            lambda r: r,
            str(block),
            f"k * {block}",
            "count",
            "key_rows",
            wide,
            "of_queries",
        )
        target = self.element(kernel.of_query, "head", "q_first + q", "d")
        with self.loop("int64_t q = 0; q < q_end - q_first; ++q"):
            self.line(f"for (int64_t d = 0; d < width; ++d) {target} = of_queries[q * {wide} + d];")
        rows = "q_first", "q_end"
        self.pack_rows("query_rows", kernel.query, "head", rows, width)
        self.pack_rows("tangent_rows", kernel.tangent, "head", rows, value_width)
        count, row = "q_end - q_first", lambda r: f"{r} * {block}"
        self.products("slopes", row, "count", "k", f"({count})", "query_rows", wide, "of_keys")
        self.products(
            "weights", row, "count", "k", f"({count})", "tangent_rows", value_wide, "of_values"
        )

    def store(self, source: str, target: Operand, rows: str, width: str, stride: int) -> None:
        there = self.element(target, "head", "k", "d")
        with self.loop(f"int64_t k = 0; k < {rows}; ++k"):
            self.line(
                f"for (int64_t d = 0; d < {width}; ++d) {there} = {source}[k * {stride} + d];"
            )
