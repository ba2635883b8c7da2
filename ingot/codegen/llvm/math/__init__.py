"""Vector math: elementary functions as short programs of IEEE operations, inlined.

Each takes and returns values of one float type and any number of lanes. The leading terms of a
polynomial are exact, so that the last rounding dominates. Multiply-add is fused freely here, as no
rounding point of eager's lies inside a function.
"""

from ingot.codegen.llvm.math.arithmetic import (
    absolute,
    copysign,
    in_double,
    polynomial,
    square_root,
)
from ingot.codegen.llvm.math.exponential import exp, exp_of_negative, log, power
from ingot.codegen.llvm.math.table import FLOAT_ONLY, FUNCTIONS

__all__ = [
    "FLOAT_ONLY",
    "FUNCTIONS",
    "absolute",
    "copysign",
    "exp",
    "exp_of_negative",
    "in_double",
    "log",
    "polynomial",
    "power",
    "square_root",
]
