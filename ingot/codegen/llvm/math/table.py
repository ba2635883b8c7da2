"""Which elementary functions there are, by the name of their scalar op."""

from __future__ import annotations

from collections.abc import Callable

from ingot.codegen.llvm.emitter import Value
from ingot.codegen.llvm.math.arithmetic import absolute, in_double, rsqrt, square_root
from ingot.codegen.llvm.math.circular import acos, asin, atan, atan2, cos, sin, tan
from ingot.codegen.llvm.math.error_function import erf, erfc, gelu
from ingot.codegen.llvm.math.exponential import (
    exp,
    exp2,
    expm1,
    log,
    log1p,
    log2,
    log10,
    power,
    sigmoid,
)
from ingot.codegen.llvm.math.hyperbolic import acosh, asinh, atanh, cosh, sinh, tanh

# Functions of a float or a double. Those of the second list compute a float's in double.
FUNCTIONS: dict[str, Callable[..., Value]] = {
    "exp": exp, "expm1": expm1, "sigmoid": sigmoid, "log": log, "log1p": log1p, "sin": sin,
    "cos": cos, "tanh": tanh, "erf": erf, "sqrt": square_root, "rsqrt": rsqrt, "abs": absolute,
    "exp2": exp2, "log2": log2, "atan2": atan2, "atanh": atanh, "pow": power, "tan": tan,
    "asin": asin, "acos": acos, "atan": atan,
}  # fmt: skip
FUNCTIONS |= {f.__name__: in_double(f) for f in (log10, sinh, cosh, asinh, acosh)}
# In double these would need intermediate results in more than double precision.
FLOAT_ONLY: dict[str, Callable[..., Value]] = {"gelu": gelu, "erfc": erfc}
