"""Products of blocks by `ingot::multiply`, and loops over the rows of a block, as attention has
them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import NamedTuple

from ingot.codegen.cpp.loops import LoopWriter
from ingot.codegen.llvm.target import host
from ingot.loops.expr import Expr, integer

ROWS = 6  # of a tile
IN_A_ROW = 32  # weights that are added one by one: longer sums would round worse
DEPTH = 128  # steps whose products are one chain of multiply-adds
VECTORS = {64: 4, 32: 2, 16: 2}
"""Of a tile's columns, by the bytes of a vector: its sums fill the registers."""

LOCALS = frozenset(
    "starts r_first k_first k_count n_first n_end below weight total n r k c".split()
)
"""The names that this text has for its own variables."""


class Left(NamedTuple):
    """The left operand of products: a pointer, and how far from there lie row `r` and step `k`, as
    texts of these names."""

    pointer: str
    row: str
    step: str


def tile_columns(width: int, size: int) -> int:
    """The columns of a tile of rows of so many elements, each of `size` bytes: of those that divide
    it, the most."""
    lanes = host().vector_bytes // size
    vectors = VECTORS[host().vector_bytes]
    while width % (vectors * lanes):
        vectors -= 1
    return vectors * lanes


class BlockWriter(LoopWriter):
    """`type` is that of all elements in scratch memory, and `size` its bytes."""

    type: str
    size: int
    tile_rows = ROWS

    def padded(self, width: int) -> int:
        """A width filled up to whole vectors."""
        lanes = host().vector_bytes // self.size
        return -(-width // lanes) * lanes

    def array(self, name: str, length: Expr | int) -> None:
        """Scratch memory for so many numbers."""
        self.take_scratch(self.type, name, length * integer(self.size))

    def clear(self, target: str, count: str) -> None:
        self.line(f"std::memset({target}, 0, ({count}) * sizeof({self.type}));")

    def vector(self, name: str, stop: int | str, *body: str) -> None:
        """A vector loop of a variable."""
        self.line("#pragma omp simd")
        with self.count(name, str(stop)):
            self.line(*body)

    def weigh_scores(self, scores: str, width: int, rows: str, base: str) -> None:
        """Make weights of the scores of `count` steps: exponentials of what they are above a row's
        `base`, which is not less. The sums are added to `total`."""
        function = "exp_of_negative" if self.type == "float" else "exp"
        self.functions.add((function, self.type))
        score = f"{scores}[n * {width} + r]"
        with self.count("n_first", "count", step=str(IN_A_ROW)):
            self.line(
                f"const int64_t n_end = ingot::smaller(n_first + {IN_A_ROW}, count);",
                f"{self.type} below[{width}] = {{}};",
            )
            with self.count("n", "n_end", "n_first"):
                self.vector(
                    "r",
                    rows,
                    f"const {self.type} weight = ingot::{function}({score} - {base}[r]);",
                    f"{score} = weight;",
                    "below[r] += weight;",
                )
            self.vector("r", rows, "total[r] += below[r];")

    def products(
        self, left: Left, rows: str, steps: str, right: str, stride: int, target: str,
        place: str = "",
    ) -> None:  # fmt: skip
        """Add to the target the products of `rows` rows of the left operand and the right one's
        columns. The target's rows have `stride` elements, and its last tile may go beyond them. So
        have the right operand's, unless `place` says where the step `k` lies."""
        place = place or f"k * {stride}"
        along, places = self.names.fresh("along"), self.names.fresh("places")
        if steps.isdigit() and int(steps) <= DEPTH:
            self.line(f"int64_t {along}[{steps}], {places}[{steps}];")
            with self.count("k", steps):
                self.line(f"{along}[k] = {left.step};", f"{places}[k] = {place};")
            self.product_tiles(left, rows, (along, places, steps), right, stride, target)
            return
        with self.count("k_first", steps, step=str(DEPTH)):
            self.line(
                f"const int64_t k_count = ingot::smaller({steps} - k_first, {DEPTH});",
                f"int64_t {along}[{DEPTH}], {places}[{DEPTH}];",
            )
            with self.count("n", "k_count"):
                self.line(
                    "const int64_t k = k_first + n;",
                    f"{along}[n] = {left.step};",
                    f"{places}[n] = {place};",
                )
            self.product_tiles(left, rows, (along, places, "k_count"), right, stride, target)

    def product_tiles(
        self, left: Left, rows: str, steps: tuple[str, str, str], right: str, stride: int,
        target: str,
    ) -> None:  # fmt: skip
        """The tiles of such products.

        `steps` are the arrays that say where each step lies in the left and in the right operand,
        and how many there are.
        """
        along, places, count = steps
        columns, height = tile_columns(stride, self.size), self.tile_rows
        across = ""
        with ExitStack() as loops:
            loops.enter_context(self.count("r_first", rows, step=str(height)))
            self.line(f"int64_t starts[{height}];")
            with self.count("n", str(height)):
                self.line(
                    f"const int64_t r = ingot::smaller(r_first + n, {rows} - 1);",
                    f"starts[n] = {left.row};",
                )
            if columns < stride:
                loops.enter_context(self.count("c", str(stride), step=str(columns)))
                across = " + c"
            self.line(
                f"ingot::multiply<{height}, {columns}>({left.pointer}, starts, {along},",
                f"    {right}{across}, {places}, {count},",
                f"    {target} + r_first * {stride}{across}, {stride});",
            )
