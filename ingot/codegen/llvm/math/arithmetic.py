"""What the elementary functions are made of: float formats, polynomials, sums of two floats.

Each function here takes and returns values of one float type and any number of lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ingot.codegen.llvm.emitter import Operand, Value
from ingot.codegen.llvm.types import vector_type


class Format(NamedTuple):
    """A float type. Adding its `shifter`, 1.5 * 2**mantissa, rounds to an integer, in the low bits.

    `ln2` is a sum of two numbers, `exp_range` where exp is neither 0 nor infinite, `packed` the
    type in the names of AVX instructions.
    """

    integer: str
    mantissa: int
    bias: int
    shifter: float
    ln2: tuple[float, float]
    exp_range: tuple[float, float]
    smallest: float
    sqrt_half_bits: int
    packed: str


FORMATS = {
    "float": Format(
        "i32", 23, 127, 1.5 * 2.0**23,
        (float.fromhex("0x1.62e43p-1"), float.fromhex("-0x1.05c61p-29")),
        (-104.0, 89.0), 2.0**-126, 0x3F3504F3, "ps",
    ),
    "double": Format(
        "i64", 52, 1023, 1.5 * 2.0**52,
        (float.fromhex("0x1.62e42fefa39efp-1"), float.fromhex("0x1.abc9e3b39803fp-56")),
        (-746.0, 710.0), 2.0**-1022, 0x3FE6A09E667F3BCD, "pd",
    ),
}  # fmt: skip


def polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """Horner's scheme, the highest coefficient first."""
    e = x.emitter
    total: Operand = coefficients[0]
    for c in coefficients[1:]:
        total = e.fma(total, x, c)
    assert isinstance(total, Value)
    return total


def at_most(x: Value, bound: float) -> Value:
    """min(x, bound), NaN kept."""
    return x.emitter.select(x.emitter.compare("ogt", x, bound), bound, x)


def at_least(x: Value, bound: float) -> Value:
    """max(x, bound), NaN kept."""
    return x.emitter.select(x.emitter.compare("olt", x, bound), bound, x)


def absolute(x: Value) -> Value:
    return x.emitter.intrinsic("fabs", (x,))


def copysign(magnitude: Value, sign: Value) -> Value:
    return sign.emitter.intrinsic("copysign", (magnitude, sign))


def square_root(x: Value) -> Value:
    """Rounded to nearest, as the instruction gives it."""
    e = x.emitter
    if e.estimates_roots and x.type == "float" and x.lanes == 16:
        return _estimated_root(x)
    return e.intrinsic("sqrt", (x,))


# the bits of floats: 2**-76, below which remainders of roots are denormal, and infinity
LEAST_ESTIMATED, INFINITE = 0x19800000, 0x7F800000


def _estimated_root(x: Value) -> Value:
    """The root of 16 floats, made of an estimate of its reciprocal by Newton's method.

    With whatever estimate, within 2**-14, the result is that of the instruction for each float from
    1 to 4 (all pairs were tried), and so for others of which nothing becomes denormal.
    """
    e, vector = x.emitter, vector_type("float", 16)
    function, masks = "llvm.x86.avx512.rsqrt14.ps.512", f"{vector}, {vector}, i16"
    e.declare(vector, function, masks)
    text = f"call {vector} @{function}({vector} {x.text}, {vector} zeroinitializer, i16 -1)"
    estimate = e.place(text, "float", 16, x.depth)
    root, half = x * estimate, estimate * 0.5
    error = e.fma(-root, half, 0.5)
    root, half = e.fma(root, error, root), e.fma(half, error, half)
    root = e.fma(e.fma(-root, root, x), half, root)
    zero = e.compare("oeq", x, 0.0)
    usual = e.compare("ult", e.bits(x) - LEAST_ESTIMATED, INFINITE - LEAST_ESTIMATED)
    e.declare(vector, "llvm.sqrt.v16f32", vector)
    slow = f"call {vector} @llvm.sqrt.v16f32({vector} {x.text})"
    return e.unless_rare(~(usual | zero), e.select(zero, x, root), slow)


def rsqrt(x: Value) -> Value:
    return 1.0 / square_root(x)


def two_product(a: Value, b: Value) -> tuple[Value, Value]:
    """a * b as a sum: the rounded product and its rounding error."""
    product = a * b
    return product, a.emitter.fma(a, b, -product)


def fast_two_sum(a: Value, b: Value) -> tuple[Value, Value]:
    """a + b as a sum, rounded and rounding error, where a is zero or the larger one (Dekker)."""
    total = a + b
    return total, b - (total - a)


def power_of_two(n: Value, type: str) -> Value:
    """2**n for an integer n in the exponent's range."""
    form = FORMATS[type]
    return n.emitter.cast("bitcast", (n + form.bias) << form.mantissa, type)


def nearest(x: Value, scale: float) -> tuple[Value, Value]:
    """The integer nearest to x * scale for moderate x, as a float (+0 for zero) and an integer."""
    e, form = x.emitter, FORMATS[x.type]
    shifted = e.fma(x, scale, form.shifter)
    shifter = e.bits(e.constant(form.shifter, x.type))
    return shifted - form.shifter, e.bits(shifted) - shifter


def scale_by_power(y: Value, k: Value, n: Value) -> Value:
    """y * 2**k, where n is k as an integer; the result may be infinite or subnormal."""
    e = y.emitter
    if e.vector_bytes == 64 and y.lanes * FORMATS[y.type].mantissa in (16 * 23, 8 * 52):
        return _scale_instruction(y, k)
    half = e.binary("ashr", n, 1)
    return y * power_of_two(half, y.type) * power_of_two(n - half, y.type)


def _scale_instruction(y: Value, k: Value) -> Value:
    """AVX-512 has an instruction for it, on full vectors."""
    e = y.emitter
    type, mask = vector_type(y.type, y.lanes), f"i{y.lanes}"
    function = f"llvm.x86.avx512.mask.scalef.{FORMATS[y.type].packed}.512"
    e.declare(type, function, f"{type}, {type}, {type}, {mask}, i32")
    text = (
        f"call {type} @{function}({type} {y.text}, {type} {k.text}, {type} zeroinitializer, "
        f"{mask} -1, i32 4)"
    )
    return e.place(text, y.type, y.lanes, max(y.depth, k.depth))


def in_double(function: Callable[..., Value]) -> Callable[..., Value]:
    """`function` with float arguments computed in double: one rounding, at the end."""

    def wrapped(*args: Value) -> Value:
        e, type = args[0].emitter, args[0].type
        return e.cast("fptrunc", function(*(e.cast("fpext", a, "double") for a in args)), type)

    return wrapped
