"""The variables of a reduction: declared before its loops, and read when they have run."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from ingot.codegen.cpp.ops import combined, converted
from ingot.codegen.cpp.types import TYPES, Code, atom, binary, call, literal
from ingot.codegen.llvm.target import host
from ingot.schedule.kernel import Accumulate

CLAUSES = {"sum": "+", "prod": "*", "max": "max", "min": "min"}
OF_BOOLS = {"all": "&", "min": "&", "prod": "&", "any": "|", "max": "|", "sum": "|"}


_AS_NUMBER = {"true": "1", "false": "0"}


def identity(kind: str, dtype: torch.dtype) -> Code:
    """What nothing is reduced to."""
    if kind in ("sum", "prod", "any", "all"):
        return literal(kind in ("prod", "all"), dtype)
    largest = kind in ("max", "argmax", "logaddexp")
    if dtype.is_floating_point:
        return literal(-math.inf if largest else math.inf, dtype)
    if dtype is torch.bool:
        return literal(not largest, dtype)
    info = torch.iinfo(dtype)
    return literal(info.min if largest else info.max, dtype)


class Accumulator:
    """One `Accumulate`, of values of `dtype`.

    A long sum of floats has a `total` in double besides, to which `flush` adds what `part` has
    summed up; of doubles it is compensated. With `lanes`, each is an array over the lanes. A sum
    that is `spread` over vectors is an array as well, and its additions need not wait for another.
    """

    def __init__(
        self,
        spec: Accumulate,
        dtype: torch.dtype,
        wide: bool,
        lanes: int,
        fresh: Callable[[str], str],
        offset: str,
        is_short: bool = False,
    ) -> None:
        self.spec, self.dtype, self.lanes, self.offset = spec, dtype, lanes, offset
        self.spread = 0  # elements over which a sum is spread
        self.type, self.wide, self.error, self.position = TYPES[dtype], wide, "", ""
        finds = spec.kind.startswith("arg")
        self.largest = str(spec.kind in ("max", "argmax")).lower()
        # In vector loops compilers reduce no bools, no floats of which one may be NaN and no pairs.
        # The extreme is that of integers in the same order, which may have their position in them.
        self.by_order = spec.kind in ("max", "min") and dtype.is_floating_point and not lanes
        self.by_rank = finds and dtype is torch.float32 and is_short and not lanes
        name = spec.name
        if dtype is torch.bool and not lanes:
            self.type = "int32_t"
        elif self.by_rank or self.by_order:
            name = f"{spec.name}_order"
            self.type = "int64_t"
            if self.by_order and dtype is torch.float32:
                self.type = "int32_t"
        elif wide:
            name = f"{spec.name}_part"
        self.part = self.total = fresh(name)
        if wide:
            self.total = fresh(f"{spec.name}_total")
            if dtype is torch.float64:
                self.error = fresh(f"{spec.name}_error")
        if finds and not self.by_rank:
            self.position = fresh(f"{spec.name}_at")

    def _declared(self, type: str, name: str, value: str) -> list[str]:
        if not self.lanes:
            return [f"{type} {name} = {_AS_NUMBER.get(value, value)};"]
        if value in ("0", "0.0f", "0.0", "false"):
            return [f"{type} {name}[{self.lanes}] = {{}};"]
        fill = f"for (int64_t l = 0; l < {self.lanes}; ++l) {name}[l] = {value};"
        return [f"{type} {name}[{self.lanes}];", fill]

    def declarations(self) -> list[str]:
        """The lines before all loops."""
        lines = []
        if self.wide:
            lines += self._declared("double", self.total, "0.0")
            if self.error:
                lines += self._declared("double", self.error, "0.0")
        else:
            lines += self._start()
        if self.position:
            lines += self._declared("int64_t", self.position, "INT64_MAX")
        return lines

    def _start(self) -> list[str]:
        if self.spread:
            return [f"{self.type} {self.part}[{self.spread}] = {{}};"]
        start = identity(self.spec.kind, self.dtype)
        if self.by_rank:
            start = atom("INT64_MIN" if self.spec.kind == "argmax" else "INT64_MAX")
        elif self.by_order:
            start = call(f"ingot::order<{self.largest}>", start)
        return self._declared(self.type, self.part, start.text)

    def part_declarations(self) -> list[str]:
        """The lines before each block of a long sum."""
        return self._start() if self.wide else []

    def _element(self, name: str) -> str:
        return f"{name}[{self.offset}]" if self.lanes else name

    def update(self, value: Code, position: Code) -> list[str]:
        """The lines that take in one value."""
        here = self._element(self.part)
        if self.spread:
            here = f"{self.part}[{self.offset}]"
        if self.by_order or self.by_rank:
            new = f"ingot::order<{self.largest}>({value.text})"
            if self.by_rank:
                new = f"ingot::ranked<{self.largest}>({value.text}, {position.text})"
            kind = self.spec.kind.removeprefix("arg")
            return [f"{here} = ingot::{kind}imum({new}, {here});"]
        if not self.position:
            operator = {"sum": "+", "prod": "*"}.get(self.spec.kind)
            if operator and self.dtype is not torch.bool:
                return [f"{here} {operator}= {value.text};"]
            return [f"{here} = {combined(self.spec.kind, self.dtype, atom(here), value).text};"]
        at = self._element(self.position)
        further = f"ingot::is_further<{self.largest}>({here}, {at}, {value.text}, {position.text})"
        return [
            f"if ({further}) {{",
            f"  {here} = {value.text};",
            f"  {at} = {position.text};",
            "}",
        ]

    def _spread_sum(self) -> str:
        lanes = host().vector_bytes // self.dtype.itemsize
        return f"ingot::sum_of<{lanes}>({self.part})"

    def flush(self) -> list[str]:
        """The lines after each block of a long sum."""
        if not self.wide:
            return []
        index = "[l]" if self.lanes else ""
        part, total, error = f"{self.part}{index}", f"{self.total}{index}", f"{self.error}{index}"
        if self.spread:
            part = self._spread_sum()
        line = f"{total} += {part};"
        if self.error:
            line = f"ingot::add_compensated({total}, {error}, {part});"
        if self.lanes:
            return [f"for (int64_t l = 0; l < {self.lanes}; ++l) {line}"]
        return [line]

    def clause(self) -> str:
        """The clause of the pragma of the vector loop; empty where lanes have their own."""
        if self.lanes or self.position or self.spread:
            return ""
        if self.dtype is torch.bool:
            operator = OF_BOOLS[self.spec.kind]
        else:
            operator = CLAUSES[self.spec.kind.removeprefix("arg")]
        return f" reduction({operator} : {self.part})"

    def result(self) -> Code:
        """The reduced value, of the type of the specification."""
        if self.position:
            return converted(atom(self._element(self.position)), torch.int64, self.spec.dtype)
        total, dtype = atom(self._element(self.total)), self.dtype
        if self.by_rank:
            total = call(f"ingot::position_of<{self.largest}>", total)
            return converted(total, torch.int64, self.spec.dtype)
        if self.by_order:
            total = call(f"ingot::in_order<{TYPES[dtype]}>", total)
        if self.wide:
            dtype = torch.float64
        elif self.spread:
            total = atom(self._spread_sum())
        if self.error:
            error = self._element(self.error)
            total = atom(f"({total.text} + ({error} == {error} ? {error} : 0.0))")
        if self.type == "int32_t" and dtype is torch.bool:
            total = binary("!=", total, atom("0"))
        return converted(total, dtype, self.spec.dtype)
