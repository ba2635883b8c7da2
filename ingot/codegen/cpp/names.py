"""Names of a kernel's variables, and index expressions over them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ingot.codegen.cpp.types import PRODUCT, SUM, Code, atom, binary, call
from ingot.codegen.llvm.memory import fits_short
from ingot.loops.expr import Expr, FloorDiv, Max, Min, Mod, Symbol

KEYWORDS = frozenset(
    "alignas and asm auto bool break case catch char class compl const continue default delete do "
    "double else end begin enum extern false float for friend goto if inline int long mutable "
    "namespace new not operator or private public register return scratch short signed sizes "
    "static struct switch template this throw true try typedef union unsigned using virtual void "
    "while xor buffers ingot std main exp log sin cos tan pow floor ceil trunc abs y0 y1 yn j0 j1 "
    "jn gamma index signal time read write".split()
)
"""What C++, its library or the text around kernels means something by."""


class Names:
    """Makes names, each once."""

    def __init__(self) -> None:
        self.taken = set(KEYWORDS)

    def fresh(self, name: str) -> str:
        """An identifier like `name`: the name itself, or with a number."""
        plain = re.sub(r"\W", "_", name)
        if not re.match(r"[A-Za-z]", plain):
            plain = f"v{plain}"
        result, number = plain, 1
        while result in self.taken:
            result, number = f"{plain}_{number}", number + 1
        self.taken.add(result)
        return result


class Indices:
    """The symbols in scope by their code, and expressions over them, which are 64 bits wide."""

    def __init__(self) -> None:
        self.codes: dict[Any, Code] = {}

    def bind(self, symbol: Symbol, text: str) -> None:
        self.codes[symbol] = atom(text)

    def __call__(self, e: Expr) -> Code:
        """The code of an expression."""
        total: Code | None = None
        for coefficient, atoms in e.terms:
            if total is None:
                total = self._term(coefficient, atoms)
            elif coefficient < 0:
                total = binary("-", total, self._term(-coefficient, atoms))
            else:
                term = self._term(coefficient, atoms)
                total = Code(f"{total.inside(SUM)} + {term.inside(SUM)}", SUM)
        return total or atom("0")

    def _term(self, coefficient: int, atoms: Iterable[Expr]) -> Code:
        factors = list(map(self._atom, atoms))
        if not factors:
            return Code(str(coefficient), SUM if coefficient < 0 else atom("").level)
        if coefficient != 1:
            factors.append(Code(str(coefficient), SUM if coefficient < 0 else atom("").level))
        product = factors[0]
        for factor in factors[1:]:
            product = Code(f"{product.inside(PRODUCT)} * {factor.inside(PRODUCT + 1)}", PRODUCT)
        return product

    def _atom(self, e: Any) -> Code:
        if isinstance(e, Symbol):
            return self.codes[e]
        left, right = self(e.left), self(e.right)
        if isinstance(e, (Max, Min)):
            return call(f"ingot::{'larger' if isinstance(e, Max) else 'smaller'}", left, right)
        if not isinstance(e, (FloorDiv, Mod)):
            return self(e)
        low = e.left.bounds[0]
        if low is None or low < 0:
            function = "floor_divide" if isinstance(e, FloorDiv) else "remainder"
            return call(f"ingot::{function}<int64_t>", left, right)
        operator = "/" if isinstance(e, FloorDiv) else "%"
        if fits_short(e.left) and fits_short(e.right):  # which vectors can
            return call(
                "int64_t", binary(operator, call("uint32_t", left), call("uint32_t", right))
            )
        return binary(operator, left, right)
