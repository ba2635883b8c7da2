"""A kernel whose product has weights, of few rows, as C++: one row at a time, as in decoding.

Loops over steps are vector loops where weights are computed, and loops over features where products
are summed. Operands are read where they lie.
"""

from __future__ import annotations

from ingot.codegen.cpp.scored_attention import ScoredWriter, known
from ingot.codegen.cpp.types import SUM, Code, atom
from ingot.loops.expr import ZERO
from ingot.loops.ir import Body


class RowWriter(ScoredWriter):
    """Of a kernel whose blocks are single rows."""

    def products_with_rows(self, number: int) -> None:
        p = self.weights.products[number]
        self.line("// the products of steps and the row")
        with self.count("n", "count"):
            self.index.codes[self.step] = Code("first_step + n", SUM)
            there = self.number(p.right, {p.depth: atom("k")})
            self.line("float product = 0.0f;", "#pragma omp simd reduction(+ : product)")
            with self.count("k", str(known(p.depth))):
                self.line(f"product += {self.turned[number]}[k] * {there};")
            self.line(f"{self.pointers[p.name]}[n] = product;")

    def weigh(self, body: Body) -> None:
        self.index.bind(self.first_step, "first_step")
        self.index.bind(self.n, "n")
        places = {self.step: self.first_step + self.n, self.row: self.first_row}
        self.innermost_of(body.substitute(places), self.weight.substitute({self.r: ZERO}), self.n)

    def exponentials(self, weights: str) -> None:
        self.functions.add(("exp_of_negative", "float"))
        self.line(
            "// softmax: scores become weights, below the largest score so far",
            "int32_t highest = ingot::order<true>(top[0]);",
            "#pragma omp simd reduction(max : highest)",
        )
        with self.count("n", "count"):
            self.line(f"highest = ingot::maximum(ingot::order<true>({weights}[n]), highest);")
        self.line(
            "const float before = top[0];",
            "top[0] = ingot::in_order<float>(highest);",
            "const float base = top[0] == -INFINITY ? 0.0f : top[0];",
            "float below = 0.0f;",
            "#pragma omp simd reduction(+ : below)",
        )
        with self.count("n", "count"):
            self.line(
                f"const float weight = ingot::exp_of_negative({weights}[n] - base);",
                f"{weights}[n] = weight;",
                "below += weight;",
            )
        self.line(
            "decay[0] = ingot::exp_of_negative(before - base);",
            "total[0] = total[0] * decay[0] + below;",
        )
