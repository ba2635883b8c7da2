"""What was compiled for a function, and where its graphs broke."""

from __future__ import annotations

from typing import Any

from ingot.compiler import Compiler


def compilations(compiled: Any) -> list[Any]:
    compiler = Compiler.of(compiled)
    assert compiler is not None
    return compiler.compilations


def breaks(compiled: Any) -> int:
    return sum(c.break_ is not None for c in compilations(compiled))
