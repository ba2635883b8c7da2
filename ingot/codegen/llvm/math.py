"""Vector math: elementary functions as short programs of IEEE operations, inlined wherever they are
used.

Each takes and returns values of one float type and any number of lanes. Polynomials and rational
functions are minimax fits of the function named beside them (relative error below 2**-26 for float,
2**-55 for double); the leading terms are kept exact so that the last rounding dominates. Float
functions with no table of their own are computed in double. Multiply-add is fused freely here, as
no rounding point of eager's lies inside a function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, nan
from typing import NamedTuple

from ingot.codegen.llvm.emitter import Operand, Value
from ingot.codegen.llvm.types import mangled, vector_type


class Format(NamedTuple):
    """A float type: `shifter` is 1.5 * 2**mantissa (adding it rounds to an integer, kept in the low
    bits)."""

    integer: str
    mantissa: int
    bias: int
    shifter: float
    ln2: tuple[float, float]
    exp_range: tuple[float, float]
    smallest: float
    sqrt_half_bits: int


FORMATS = {
    "float": Format(
        "i32", 23, 127, 1.5 * 2.0**23,
        (float.fromhex("0x1.62e43p-1"), float.fromhex("-0x1.05c61p-29")),
        (-104.0, 89.0), 2.0**-126, 0x3F3504F3,
    ),
    "double": Format(
        "i64", 52, 1023, 1.5 * 2.0**52,
        (float.fromhex("0x1.62e42fefa39efp-1"), float.fromhex("0x1.abc9e3b39803fp-56")),
        (-746.0, 710.0), 2.0**-1022, 0x3FE6A09E667F3BCD,
    ),
}  # fmt: skip

LOG2_E = 1.4426950408889634
# as a float, and what that lacks
LOG2_E_FLOAT = (float.fromhex("0x1.7154760000000p+0"), 1.9259629911266175e-08)
LN2 = 0.6931471805599453
LOG10_E = 0.4342944819032518
LOG10_2 = 0.3010299956639812
PI_2 = float.fromhex("0x1.921fb54442d18p+0")
PI_2_LOW = float.fromhex("0x1.1a62633145c07p-54")
# pi/2 as a sum of three floats
PI_2_PARTS = (
    float.fromhex("0x1.921fb6p+0"),
    float.fromhex("-0x1.777a5cp-25"),
    float.fromhex("-0x1.ee59dap-50"),
)
TWO_OVER_PI = 0.6366197723675814
PI_4_FLOAT = float.fromhex("0x1.921fb6p-1"), float.fromhex("-0x1.777a5cp-26")

# (e^r - 1 - r) / r^2 on |r| <= ln2 / 2
EXP = {
    "float": (
        1.98578054551035e-4, 1.3933642767369747e-3, 8.333360776305199e-3, 4.166646674275398e-2,
        0.1666666716337204,
        0.5,
    ),
    "double": (
        2.0914686968086876e-09, 2.5105217004720745e-08, 2.75572736431103e-07,
        2.7557255400206422e-06, 2.4801587325547743e-05, 0.00019841269874820627,
        0.0013888888888883748, 0.008333333333326136,
        0.04166666666666667, 0.1666666666666667, 0.5,
    ),
}  # fmt: skip
# float: (log(1+f) - f + f^2/2) / f^3 on [sqrt(1/2), sqrt(2)] - 1; double: 2 (atanh(s)/s - 1) / s^2
# in s^2
LOG = {
    "float": (
        7.037585973739624e-2, -0.11514559388160706, 0.11677011847496033, -0.12420149147510529,
        0.14249321818351746, -0.16668057441711426, 0.2000071406364441, -0.24999994039535522,
        0.3333333134651184,
    ),
    "double": (
        0.13088034850927555, 0.13268638369266825, 0.15386244737621665, 0.18181795547521137,
        0.22222222392581045,
        0.28571428570799784, 0.40000000000000885, 0.6666666666666666,
    ),
}  # fmt: skip
# log2(1+f)/s in s^2 for s = f / (2+f), and 2^r on |r| <= 1/2
LOG2_QUICK = (
    0.3407120415619086, 0.41167376623771057, 0.5770835660048659, 0.9617966734515485,
    2.885390081789987,
)  # fmt: skip
EXP2_QUICK = (
    0.0001546144469856913, 0.0013400428177615838, 0.009618056678524637, 0.05550327226670302,
    0.24022650922288757,
    0.6931472067028326, 1.0,
)  # fmt: skip
# (2 (atanh(s)/s - 1) / s^2 - 2/3) / s^2 in s^2, and what the double nearest to 2/3 lacks
LOG_TAIL = (
    0.11723178623876518, 0.11706236339491206, 0.1333480469384731, 0.1538459496251843,
    0.18181818335392802,
    0.22222222221655885, 0.28571428571429364, 0.4,
)  # fmt: skip
TWO_THIRDS_LOW = 3.700743415417188e-17
# (sin(x)/x - 1) / x^2 and (cos(x) - 1 + x^2/2) / x^4 in x^2 on |x| <= pi/4
SIN = {
    "float": (2.7249104732618434e-6, -1.9840079767163843e-4, 8.333331905305386e-3, -0.1666666716337204),
    "double": (
        -7.586636882825159e-13, 1.6058530596645953e-10, -2.50521062259944e-08,
        2.755731921932058e-06,
        -0.0001984126984126504, 0.008333333333333331, -0.16666666666666666,
    ),
}  # fmt: skip
COS = {
    "float": (2.4546945496695116e-5, -1.388829667121172e-3, 4.16666641831398e-2),
    "double": (
        4.745838412531023e-14, -1.1470460319209511e-11, 2.0876755787492604e-09,
        -2.755731922139249e-07,
        2.4801587301584632e-05, -0.0013888888888888887, 0.041666666666666664,
    ),
}  # fmt: skip
# (tan(x)/x - 1) / x^2 in x^2 on |x| <= pi/4
TAN_FLOAT = (
    0.004376836198359283, 8.842358015628256e-05, 0.010836669240841899, 0.021281865941716896,
    0.05405997690237099,
    0.13332662821152524, 0.33333349769488396,
)  # fmt: skip
# (tanh(x)/x - 1) / x^2 in x^2 on |x| <= 5/8, and (sinh(x)/x - 1) / x^2 on |x| <= 1
TANH = {
    "float": (
        -0.00608980268565943, 0.020992421926663545, -0.05384990546480388, 0.13332763123791969,
        -0.33333328878455243,
    ),
    "double": (
        -2.4316497630014687e-06, 1.2193738987130529e-05, -3.706514378846229e-05,
        9.603210574278365e-05, -0.00023888623778637894, 0.000589981060857246, -0.001455828281626584,
        0.0035921274954513784, -0.008863235499013071, 0.0218694885351031, -0.05396825396823531,
        0.1333333333333332, -0.3333333333333333,
    ),
}  # fmt: skip
SINH = (
    7.746278224810715e-13, 1.6057676882739475e-10, 2.50521177239532e-08, 2.7557319191250885e-06,
    0.00019841269841324471, 0.008333333333333299, 0.16666666666666666,
)  # fmt: skip
# e^(2r) on |r| <= ln2 / 4, erf(x)/x - 1 in x^2 on |x| <= 0.85, log(erfc(x)) on [0.84, 3.95]: for
# float, good to 1e-8
EXP_TWICE = (
    0.08931960165500641,
    0.2680068016052246,
    0.6666573286056519,
    1.3333131074905396,
    2.0,
    2.0,
    1.0,
)
ERF_FLOAT = (
    -0.0006332610500976443, 0.0050542703829705715, -0.026804570108652115, 0.11282770335674286,
    -0.3761257529258728,
    0.12837914,
)  # fmt: skip
LOG_ERFC = (
    0.00020354973094072193, -0.0031169026624411345, 0.02251645363867283, -0.10452299565076828,
    -0.6365195512771606,
    -1.128062129020691, -0.00010389461385784671,
)  # fmt: skip
# log2(erfc(x / sqrt(2)) / 2) on [0, 5.5] and 2^r on |r| <= 1/2: for float, good to 1e-7 in x erfc(x
# / sqrt(2)) / 2
LOG2_TAIL = (
    1.6066375299044528e-07, -3.895539852190722e-06, 3.75423116220255e-05, -0.0001531685320326073,
    -0.000247547361692985, 0.007232064350280366, -0.052622508928227216, -0.4591650507075917,
    -1.1511104826190712,
    -1.0,
)  # fmt: skip
EXP2_SHORT = (
    0.0013276472454890609,
    0.009675541892647743,
    0.05550713092088699,
    0.24022120237350464,
    0.6931469440460205,
    1.0,
)
# erf(x)/x - 1 in x^2 on |x| <= 1, and (1 + 2x) e^(x^2) erfc(x) in (x-4)/(x+4) on [0.47, 28]
ERF_SMALL = (
    5.954471583153482e-11, -1.1371291831047954e-09, 1.4659383821340068e-08, -1.6350256278696497e-07,
    1.6460995338195411e-06, -1.4925594957596026e-05, 0.00012055331099279798, -0.0008548326980509413,
    0.005223977624812638, -0.02686617064507627, 0.11283791670954876, -0.3761263890318375,
    0.1283791670955126,
)  # fmt: skip
ERFC_SCALED = (
    -8.073407353785177e-09, 7.38104690728236e-08, 5.5453841721676743e-08, -7.809052066242849e-07,
    3.1323699821528193e-07, 5.678091182452181e-06, -1.1233662974433672e-05, -2.4385206730248593e-05,
    0.0001506260082110279, -0.00019926064777598215, -0.0007577743010075491, 0.0050319706819574326,
    -0.016197733912895102, 0.037167515461719876, -0.06633036582414714, 0.09373283500285297,
    -0.10103906603580642, 0.06809705425456938, 0.015379652102611715, -0.13962111684056153,
    1.2329951186255526,
)  # fmt: skip
# e^(x^2) erfc(x) / u in u = 1 / (1 + 0.4 x) on [0, 10.2]: for float, good to 2e-9
ERFC_QUICK = (
    -0.01873933977676931, 0.07965636617844056, -0.08120939944634026, -0.08758492203657499,
    0.1616711496477712, -0.0439556508036031, 0.17143579441184245, 0.1575730906096598,
    0.210024757524485, 0.22544256417940484,
    0.2256855876370929,
)  # fmt: skip
# (atanh(x)/x - 1) / x^2 in x^2 on |x| <= 1/2
ATANH_FLOAT = (
    0.15751780259152603, 0.06493489567669346, 0.11469875161618762, 0.1426397985264627,
    0.2000047330953935,
    0.3333333168479454,
)  # fmt: skip
# (atan(x)/x - 1) / x^2 in x^2 on |x| <= 1/2 for float, tan(pi/8) for double, and (asin(x)/x - 1) /
# x^2 on |x| <= 1/2
ATAN_FLOAT = (
    0.04225685963021552, -0.08235505763636282, 0.11006880681346318, -0.14279801095810957,
    0.1999987524978264,
    -0.33333332901484686,
)  # fmt: skip
ATAN = (
    0.01627194475162406, -0.034558092551413795, 0.04551108126325172, -0.052303478730160745,
    0.058789145444006215, -0.06666423628069258, 0.0769229630497447, -0.09090908751076636,
    0.11111111105106705, -0.14285714285659326,
    0.199999999999998, -0.3333333333333333,
)  # fmt: skip
ASIN_FLOAT = (
    0.03751562068049719, 0.014439210333354886, 0.03180755439721629, 0.04451697553541631,
    0.07500504069139165,
    0.1666665999374755,
)  # fmt: skip
ASIN = (
    0.029727286869498975, -0.01942149876336336, 0.019678367430162, 0.002995311657156326,
    0.009332327156165665, 0.009619629203687472, 0.01156672237119713, 0.013963758735074137,
    0.01735281769074104, 0.02237215740373685, 0.030381944476347046, 0.04464285714254326,
    0.07500000000000122, 0.16666666666666666,
)  # fmt: skip


# -- pieces
# --------------------------------------------------------------------------------------------------------------


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
    return x.emitter.intrinsic("sqrt", (x,))


def _power_of_two(n: Value, type: str) -> Value:
    """2**n for an integer n in the exponent's range."""
    form = FORMATS[type]
    return n.emitter.cast("bitcast", (n + form.bias) << form.mantissa, type)


def _nearest(x: Value, scale: float) -> tuple[Value, Value]:
    """The integer nearest to x * scale, as a float (+0 for zero) and as an integer. For moderate
    x."""
    e, form = x.emitter, FORMATS[x.type]
    shifted = e.fma(x, scale, form.shifter)
    shifter = e.bits(e.constant(form.shifter, x.type))
    return shifted - form.shifter, e.bits(shifted) - shifter


def _reduce_exp(x: Value) -> tuple[Value, Value, Value]:
    """r and the integer k, as a float and as an integer, with x = k ln2 + r, |r| <= ln2 / 2."""
    e, (high, low) = x.emitter, FORMATS[x.type].ln2
    k, n = _nearest(x, LOG2_E)
    return e.fma(k, -low, e.fma(k, -high, x)), k, n


def _expm1_small(r: Value) -> Value:
    return r.emitter.fma(r * r, polynomial(r, EXP[r.type]), r)


def _scale(y: Value, k: Value, n: Value) -> Value:
    """y * 2**k, where n is k as an integer; the result may be infinite or subnormal."""
    e = y.emitter
    if e.vector_bytes == 64 and y.lanes * FORMATS[y.type].mantissa in (16 * 23, 8 * 52):
        return _scale_instruction(y, k)
    half = e.binary("ashr", n, 1)
    return y * _power_of_two(half, y.type) * _power_of_two(n - half, y.type)


def _scale_instruction(y: Value, k: Value) -> Value:
    """AVX-512 has an instruction for it, on full vectors."""
    e = y.emitter
    type, mask, suffix = (
        vector_type(y.type, y.lanes),
        f"i{y.lanes}",
        "ps" if y.type == "float" else "pd",
    )
    function = f"llvm.x86.avx512.mask.scalef.{suffix}.512"
    e.declare(type, function, f"{type}, {type}, {type}, {mask}, i32")
    text = f"call {type} @{function}({type} {y.text}, {type} {k.text}, {type} zeroinitializer, {mask} -1, i32 4)"
    return e.place(text, y.type, y.lanes, max(y.depth, k.depth))


# -- exponentials and logarithms
# -----------------------------------------------------------------------------------------


def _or_zero(vanishes: Value, argument: Value, function: Callable[[Value], Value]) -> Value:
    """`function` of `argument`, or 0 where it `vanishes`: what underflows by itself takes some
    processors a hundred times as long, and what is masked by minus infinity does so everywhere."""
    e = argument.emitter
    return e.select(vanishes, 0.0, function(e.select(vanishes, 0.0, argument)))


def exp(x: Value) -> Value:
    low, high = FORMATS[x.type].exp_range
    return _or_zero(x.emitter.compare("olt", x, low), at_most(x, high), _moderate_exp)


def _moderate_exp(x: Value) -> Value:
    """exp of what is in the type's `exp_range`."""
    r, k, n = _reduce_exp(x)
    return _scale(_expm1_small(r) + 1.0, k, n)


def _quick_exp(x: Value, scale: float) -> Value:
    """exp(scale * x) for floats with a result between 2**-60 and 2**60 that is needed to an
    absolute 1e-8 beside 1."""
    e, form = x.emitter, FORMATS["float"]
    shifted = e.fma(x, scale * LOG2_E, form.shifter)
    r = e.fma(shifted - form.shifter, -LN2 / scale, x)
    coefficients = [c * (scale / 2.0) ** (len(EXP_TWICE) - 1 - k) for k, c in enumerate(EXP_TWICE)]
    # The shifter's own bits leave the word, and those of the integer reach the exponent.
    return e.cast(
        "bitcast", e.bits(polynomial(r, coefficients)) + (e.bits(shifted) << form.mantissa), "float"
    )


def exp2(x: Value) -> Value:
    low, high = FORMATS[x.type].exp_range

    def moderate(x: Value) -> Value:
        k, n = _nearest(x, 1.0)
        return _scale(_expm1_small((x - k) * LN2) + 1.0, k, n)

    return _or_zero(x.emitter.compare("olt", x, low * LOG2_E), at_most(x, high * LOG2_E), moderate)


def expm1(x: Value) -> Value:
    e = x.emitter
    high = FORMATS[x.type].exp_range[1]
    r, _, n = _reduce_exp(at_least(at_most(x, high), -40.0))
    half = _power_of_two(n - 1, x.type)  # half of 2**n, which may itself overflow
    y = e.fma(half, _expm1_small(r), half - 0.5) * 2.0
    return e.select(e.compare("oeq", x, 0.0), x, y)


def sigmoid(x: Value) -> Value:
    """1 / (1 + exp(-x)), in which no more than e^-40 is added: what is less would not be seen."""
    high = FORMATS[x.type].exp_range[1]
    return 1.0 / (_moderate_exp(at_least(at_most(-x, high), -40.0)) + 1.0)


def _split_log(x: Value) -> tuple[Value, Value, Value]:
    """k, f and the correction c with log(x) = k ln2 + f + c and 1 + f = x / 2**k in [sqrt(1/2),
    sqrt(2)), for finite x > 0."""
    e, form = x.emitter, FORMATS[x.type]
    tiny = e.compare("olt", x, form.smallest)
    lift = form.mantissa + 2
    bits = e.bits(e.select(tiny, x * 2.0**lift, x))
    exponent = e.binary("ashr", bits - form.sqrt_half_bits, form.mantissa)
    f = e.cast("bitcast", bits - (exponent << form.mantissa), x.type) - 1.0
    k = e.cast("sitofp", exponent - e.select(tiny, e.constant(lift, form.integer), 0), x.type)
    square = f * f
    if x.type == "float":
        return k, f, e.fma(square * f, polynomial(f, LOG["float"]), square * -0.5)
    s = f / (f + 2.0)
    half_square = square * 0.5
    z = s * s
    return k, f, e.fma(s, e.fma(z, polynomial(z, LOG["double"]), half_square), -half_square)


def _finish_log(x: Value, y: Value) -> Value:
    """log's value `y` with the results for zero, negative, infinite and NaN arguments put in."""
    e = x.emitter
    at_edge = e.select(e.compare("oeq", x, 0.0), e.constant(-inf, x.type), nan)
    return e.select(e.compare("ogt", x, 0.0), e.select(e.compare("olt", x, inf), y, x), at_edge)


def _join_log(k: Value, f: Value, correction: Value) -> Value:
    """k ln2 + f + correction."""
    e, (high, low) = k.emitter, FORMATS[k.type].ln2
    return e.fma(k, high, f + e.fma(k, low, correction))


def log(x: Value) -> Value:
    return _finish_log(x, _join_log(*_split_log(x)))


def log2(x: Value) -> Value:
    e = x.emitter
    k, f, correction = _split_log(x)
    if x.type == "float":  # f times log2(e) in two pieces, the rest being small
        return _finish_log(
            x, e.fma(f, LOG2_E_FLOAT[0], e.fma(correction, LOG2_E, f * LOG2_E_FLOAT[1])) + k
        )
    return _finish_log(x, e.fma(f + correction, LOG2_E, k))


def log10(x: Value) -> Value:
    e = x.emitter
    k, f, correction = _split_log(x)
    return _finish_log(x, e.fma(k, LOG10_2, (f + correction) * LOG10_E))


def log1p(x: Value) -> Value:
    """log(u) + c / u, where u is 1 + x rounded and c the rounding error."""
    e = x.emitter
    u = x + 1.0
    error = e.select(e.compare("ogt", x, 1.0), 1.0 - (u - x), x - (u - 1.0))
    k, f, correction = _split_log(u)
    y = _finish_log(u, _join_log(k, f, correction + error / u))
    return e.select(e.compare("oeq", u, 1.0), x, y)


def _quick_log2(x: Value) -> Value:
    """log2 of a float >= 0, in double, to 5e-12 of itself. No float is subnormal as a double."""
    e, form = x.emitter, FORMATS["double"]
    wide = e.cast("fpext", x, "double")
    bits = e.bits(wide)
    exponent = e.binary("ashr", bits - form.sqrt_half_bits, form.mantissa)
    f = e.cast("bitcast", bits - (exponent << form.mantissa), "double") - 1.0
    s = f / (f + 2.0)
    y = e.fma(s, polynomial(s * s, LOG2_QUICK), e.cast("sitofp", exponent, "double"))
    y = e.select(e.compare("oeq", wide, 0.0), -inf, y)
    return e.select(e.compare("olt", wide, inf), y, wide)


def _quick_exp2(x: Value) -> Value:
    """2**x of a double between -160 and 160 (or NaN), to 3e-9 of itself."""
    k, n = _nearest(x, 1.0)
    return polynomial(x - k, EXP2_QUICK) * _power_of_two(n, "double")


def _quick_power(x: Value, y: Value) -> Value:
    """x**y of floats, x >= 0, by way of double."""
    e = x.emitter
    product = at_least(at_most(e.cast("fpext", y, "double") * _quick_log2(x), 160.0), -160.0)
    return e.cast("fptrunc", _quick_exp2(product), "float")


def _product(a: Value, b: Value) -> tuple[Value, Value]:
    """a * b as a sum."""
    product = a * b
    return product, a.emitter.fma(a, b, -product)


def _sum(a: Value, b: Value) -> tuple[Value, Value]:
    """a + b as a sum, where a is zero or the larger of them."""
    total = a + b
    return total, b - (total - a)


def _long_log(x: Value) -> tuple[Value, Value]:
    """log of a finite double > 0 as a sum, good to 2**-63 of itself: k ln2 + 2 s + s^3 (2/3 + ...)
    for s = f / (2 + f), every term of it a sum."""
    e, form = x.emitter, FORMATS["double"]
    tiny = e.compare("olt", x, form.smallest)
    bits = e.bits(e.select(tiny, x * 2.0**54, x))
    exponent = e.binary("ashr", bits - form.sqrt_half_bits, form.mantissa)
    f = e.cast("bitcast", bits - (exponent << form.mantissa), "double") - 1.0
    k = e.cast("sitofp", exponent - e.select(tiny, e.constant(54, form.integer), 0), "double")
    divisor = f + 2.0
    s = f / divisor
    s_low = (e.fma(-s, divisor, f) - s * (f - (divisor - 2.0))) / divisor
    z, z_low = _product(s, s)
    z_low = e.fma(s * 2.0, s_low, z_low)
    tail = polynomial(z, LOG_TAIL)
    rest, rest_low = _product(z, tail)
    factor, factor_low = _sum(e.constant(2.0 / 3.0, "double"), rest)
    factor_low = factor_low + (e.fma(z_low, tail, rest_low) + TWO_THIRDS_LOW)
    cube, cube_low = _product(s, z)
    cube_low = cube_low + e.fma(s, z_low, s_low * z)
    third, third_low = _product(cube, factor)
    third_low = third_low + e.fma(cube, factor_low, cube_low * factor)
    twos, twos_low = _product(k, e.constant(form.ln2[0], "double"))
    high, low = _sum(twos, s * 2.0)
    high, lower = _sum(high, third)
    return high, low + lower + (e.fma(k, form.ln2[1], twos_low) + e.fma(s_low, 2.0, third_low))


def _long_power(x: Value, y: Value) -> Value:
    """x**y of doubles, x >= 0: the exponential of a product that is kept as a sum."""
    e = x.emitter
    log_high, log_low = _long_log(x)
    low, high = FORMATS["double"].exp_range
    product, rest = _product(y, log_high)
    bounded = at_least(at_most(product, high), low)
    rest = e.select(e.compare("oeq", bounded, product), e.fma(y, log_low, rest), 0.0)
    r, k, n = _reduce_exp(bounded)
    result = _scale(_expm1_small(r + rest) + 1.0, k, n)
    at_end = e.compare("oeq", x, 0.0) | e.compare("oeq", x, inf)
    falls = e.compare("oeq", x, 0.0) ^ e.compare("olt", y, 0.0)
    result = e.select(at_end, e.select(falls, e.constant(0.0, "double"), inf), result)
    return e.select(e.compare("uno", x, y), nan, result)


def power(x: Value, y: Value) -> Value:
    """x**y with C's special cases."""
    e = x.emitter
    magnitude = absolute(x)
    result = (_quick_power if x.type == "float" else _long_power)(magnitude, y)
    whole = e.compare("oeq", e.intrinsic("trunc", (y,)), y)
    half = y * 0.5
    odd = whole & e.compare("one", e.intrinsic("trunc", (half,)), half)
    negative = e.compare("slt", e.bits(x), 0)
    result = e.select(negative & odd, -result, result)
    undefined = e.compare("olt", x, 0.0) & e.compare("ogt", x, -inf) & ~whole
    result = e.select(undefined & e.compare("oeq", y, y), nan, result)
    endless = e.compare("oeq", absolute(y), inf)
    one = (
        e.compare("oeq", y, 0.0)
        | e.compare("oeq", x, 1.0)
        | (e.compare("oeq", magnitude, 1.0) & endless)
    )
    return e.select(one, 1.0, result)


# -- circular
# ------------------------------------------------------------------------------------------------------------


REDUCED = {"float": 2.0**22, "double": 2.0**20}
NEAREST = 2.0**18  # up to here a float's quadrant is the nearest one, but for a hundredth


class _Angle(NamedTuple):
    """The remainder by pi/2, as a sum, and the quadrant's number (two low bits of an integer of the
    float's size)."""

    high: Value
    low: Value
    quadrant: Value


def _reduce_angle(x: Value) -> _Angle:
    """Exact enough up to REDUCED."""
    e = x.emitter
    k, n = _nearest(x, TWO_OVER_PI)
    if x.type == "double":
        rest = e.fma(-k, PI_2, x)  # exact
        high = e.fma(-k, PI_2_LOW, rest)
        return _Angle(high, e.fma(-k, PI_2_LOW, rest - high), n)
    first, second, third = PI_2_PARTS
    rest, product = e.fma(-k, first, x), k * second  # the former is exact
    high = rest - product
    low = e.fma(-k, third, ((rest - high) - product) - e.fma(k, second, -product))
    return _Angle(high, low, n)


def _sine(angle: _Angle) -> Value:
    e, r, z = angle.high.emitter, angle.high, angle.high * angle.high
    return r + e.fma(z * r, polynomial(z, SIN[r.type]), angle.low)


def _cosine(angle: _Angle) -> Value:
    """1 - z/2 and what is left: the rounding error of that and the polynomial."""
    e, r, z = angle.high.emitter, angle.high, angle.high * angle.high
    high = e.fma(z, -0.5, 1.0)
    left = e.fma(-r, angle.low, e.fma(z, -0.5, 1.0 - high))
    return high + e.fma(z * z, polynomial(z, COS[r.type]), left)


def _circular(name: str, quadrants: int) -> Callable[[Value], Value]:
    """sin, or cos as sin shifted by one quadrant."""

    def function(x: Value) -> Value:
        e = x.emitter
        integer = FORMATS[x.type].integer
        angle = _reduce_angle(x)
        n = angle.quadrant + quadrants
        y = e.select(e.compare("ne", n & 1, 0), _cosine(angle), _sine(angle))
        sign = (n & 2) << (FORMATS[x.type].mantissa + (7 if x.type == "float" else 10))
        y = e.cast("bitcast", e.cast("bitcast", y, integer) ^ sign, x.type)
        if name == "sin":
            y = _keep_zero(x, y)
        return _unless_huge(name, x, y)

    return function


def _unless_huge(name: str, x: Value, y: Value, limit: float | None = None) -> Value:
    """`y`, or the C library's function where an argument is too large for the reduction (or
    infinite or NaN): called for each lane, by one function for all bodies."""
    e = x.emitter
    rare = e.compare("uge", absolute(x), limit or REDUCED[x.type])
    type = vector_type(x.type, y.lanes)
    suffix = f"{name}.{mangled(x.type, y.lanes)}"
    e.declare(type, f"llvm.{suffix}", type)
    e.declarations.add(
        f"define internal {type} @huge.{suffix}({type} %x) noinline cold nounwind {{\n"
        f"  %y = call {type} @llvm.{suffix}({type} %x)\n  ret {type} %y\n}}"
    )
    return e.unless_rare(rare, y, f"call {type} @huge.{suffix}({type} {e.argument(x, y.lanes)})")


def _keep_zero(x: Value, y: Value) -> Value:
    """`y`, or `x` where it is a zero: adding a term of the opposite sign to -0 gives +0."""
    return x.emitter.select(x.emitter.compare("oeq", x, 0.0), x, y)


sin = _circular("sin", 0)
cos = _circular("cos", 1)


def tan(x: Value) -> Value:
    e = x.emitter
    angle = _reduce_angle(x)
    odd = e.compare("ne", angle.quadrant & 1, 0)
    if x.type == "float":
        t, rest = _tangent(angle)
        y = e.select(odd, _negative_inverse(t, rest), t + rest)
        return _unless_huge("tan", x, _keep_zero(x, y), NEAREST)
    s, c = _sine(angle), _cosine(angle)
    return _unless_huge("tan", x, _keep_zero(x, e.select(odd, -c, s) / e.select(odd, s, c)))


def _tangent(angle: _Angle) -> tuple[Value, Value]:
    """The tangent of what is left of an angle, a float, as a sum."""
    e, r, z = angle.high.emitter, angle.high, angle.high * angle.high
    cube, p = z * r, polynomial(z, TAN_FLOAT)
    t = e.fma(cube, p, r)
    rest = e.fma(cube, p, e.fma(t * t, angle.low, angle.low))  # the derivative is 1 + tan^2
    return _sum(r, rest)


def _negative_inverse(t: Value, rest: Value) -> Value:
    """-1 / (t + rest), rounded nearly once."""
    e = t.emitter
    y = -1.0 / t
    return e.fma(y, e.fma(y, rest, e.fma(y, t, 1.0)), y)


def _quarter_turn(type: str) -> tuple[float, float]:
    """pi/2 as a sum of two numbers of a type."""
    return (2.0 * PI_4_FLOAT[0], 2.0 * PI_4_FLOAT[1]) if type == "float" else (PI_2, PI_2_LOW)


def asin(x: Value) -> Value:
    e, a = x.emitter, absolute(x)
    large = e.compare("ogt", a, 0.5)
    z = e.select(large, (1.0 - a) * 0.5, a * a)
    root = square_root(z)
    s = e.select(large, root, a)
    rest = s * z * polynomial(z, ASIN_FLOAT if x.type == "float" else ASIN)
    if x.type == "double":  # the rounding error of the root, which counts twice
        rest = rest + e.select(large, e.fma(-root, root, z) / at_least(root * 2.0, 1e-9), 0.0)
    high, low = _quarter_turn(x.type)
    far, lost = _sum(e.constant(high, x.type), s * -2.0)
    return copysign(
        e.select(large, far, s) + e.select(large, e.fma(rest, -2.0, lost + low), rest), x
    )


def acos(x: Value) -> Value:
    e, a = x.emitter, absolute(x)
    large = e.compare("ogt", a, 0.5)
    z = e.select(large, (1.0 - a) * 0.5, a * a)
    s = e.select(large, square_root(z), x)
    p = e.fma(s * z, polynomial(z, ASIN_FLOAT if s.type == "float" else ASIN), s)
    twice = p * 2.0
    high, low = _quarter_turn(x.type)
    far = e.select(e.compare("olt", x, 0.0), 2.0 * high - (twice - 2.0 * low), twice)
    return e.select(large, far, high - (p - low))


def atan(x: Value) -> Value:
    """atan(t) added to 0, pi/4 or pi/2, with t = a, (a-1)/(a+1) or -1/a."""
    e, a = x.emitter, absolute(x)
    if x.type == "float":
        steep, one = e.compare("ogt", a, 1.0), e.constant(1.0, "float")
        angle = _first_octant(e.select(steep, one, a), e.select(steep, a, one))
        whole, part = _quarter_turn("float")
        return copysign(e.select(steep, whole - (angle - part), angle), x)
    middle, large = e.compare("ogt", a, 0.4142135623730950), e.compare("ogt", a, 2.414213562373095)
    over = e.select(large, e.constant(-1.0, x.type), e.select(middle, a - 1.0, a))
    under = e.select(large, a, e.select(middle, a + 1.0, e.constant(1.0, x.type)))
    t = over / under
    z = t * t
    high = e.select(
        large, e.constant(PI_2, x.type), e.select(middle, e.constant(PI_2 / 2, x.type), 0.0)
    )
    low = e.select(
        large, e.constant(PI_2_LOW, x.type), e.select(middle, e.constant(PI_2_LOW / 2, x.type), 0.0)
    )
    return copysign(high + (t + e.fma(t * z, polynomial(z, ATAN), low)), x)


def atan2(y: Value, x: Value) -> Value:
    e = x.emitter
    a, b = absolute(y), absolute(x)
    steep = e.compare("ogt", a, b)
    small, large = e.select(steep, b, a), e.select(steep, a, b)
    if x.type == "float":
        angle = _place_angle(_first_octant(small, large), steep, e.compare("slt", e.bits(x), 0))
        return e.select(e.compare("uno", x, y), nan, copysign(angle, y))
    ratio = e.select(
        e.compare("oeq", a, b), e.select(e.compare("oeq", a, 0.0), a, 1.0), small / large
    )
    angle = atan(ratio)
    angle = e.select(steep, PI_2 - (angle - PI_2_LOW), angle)
    angle = e.select(e.compare("slt", e.bits(x), 0), 2.0 * PI_2 - (angle - 2.0 * PI_2_LOW), angle)
    return e.select(e.compare("uno", x, y), nan, copysign(angle, y))


def _first_octant(small: Value, large: Value) -> Value:
    """atan(small / large) of floats with 0 <= small <= large: atan(t) added to 0 or pi/4, with one
    division. Of what is divided then, the difference is exact."""
    e = small.emitter
    # so that no sum overflows
    scale = e.select(e.compare("ogt", large, 2.0**126), e.constant(0.25, "float"), 1.0)
    equal = e.compare("oeq", small, large)
    small, large = small * scale, large * scale
    upper = e.compare("ogt", small, at_most(large * 0.5, 1e38))  # infinity is above, too
    over, under = e.select(upper, small - large, small), e.select(upper, small + large, large)
    t = e.select(equal, 0.0, over / under)
    z = t * t
    high, low = (e.select(upper, e.constant(part, "float"), 0.0) for part in PI_4_FLOAT)
    angle, rest = _sum(high, t)
    return angle + (rest + e.fma(t * z, polynomial(z, ATAN_FLOAT), low))


def _place_angle(angle: Value, steep: Value, left: Value) -> Value:
    """The angle of the first octant in its place among the first four."""
    e, (high, low) = angle.emitter, PI_4_FLOAT
    quarters = e.select(
        steep, e.constant(2.0, "float"), e.select(left, e.constant(4.0, "float"), 0.0)
    )
    angle = e.select(steep ^ left, -angle, angle)
    return e.fma(quarters, high, e.fma(quarters, low, angle))


# -- hyperbolic
# ----------------------------------------------------------------------------------------------------------


def _half_exp(x: Value) -> Value:
    """exp(x) / 2, which is finite for a little longer than exp(x)."""
    r, k, n = _reduce_exp(at_most(x, FORMATS[x.type].exp_range[1] + 1.0))
    return _scale(_expm1_small(r) + 1.0, k - 1.0, n - 1)


def sinh(x: Value) -> Value:
    e, a = x.emitter, absolute(x)
    half, z = _half_exp(a), x * x
    small = e.fma(x * z, polynomial(z, SINH), x)
    return e.select(e.compare("olt", a, 1.0), small, copysign(half - 0.25 / half, x))


def cosh(x: Value) -> Value:
    half = _half_exp(absolute(x))
    return half + 0.25 / half


def tanh(x: Value) -> Value:
    """A polynomial near 0, and 1 - 2 / (e^(2a) + 1) from there on until it rounds to 1."""
    e = x.emitter
    if x.type == "float":
        a = at_most(absolute(x), 9.1)
        power = _quick_exp(a, 2.0)
    else:
        a = at_most(absolute(x), 19.1)
        r, _, n = _reduce_exp(a * 2.0)
        power = (_expm1_small(r) + 1.0) * _power_of_two(n, x.type)
    z = a * a
    small = e.fma(a * z, polynomial(z, TANH[x.type]), a)
    # NaN takes the polynomial's side: the bits of a power may be anything then.
    return copysign(e.select(e.compare("ult", a, 0.625), small, 1.0 - 2.0 / (power + 1.0)), x)


def _large_log1p(large: Value, a: Value, t: Value) -> Value:
    """log1p(t), or log(2a) where `large`."""
    e = a.emitter
    y = log1p(e.select(large, a - 1.0, t))
    return e.select(large, y + LN2, y)


def asinh(x: Value) -> Value:
    e, a = x.emitter, absolute(x)
    square = a * a
    t = a + square / (square_root(square + 1.0) + 1.0)
    return copysign(_large_log1p(e.compare("ogt", a, 2.0**28), a, t), x)


def acosh(x: Value) -> Value:
    e, t = x.emitter, x - 1.0
    y = _large_log1p(e.compare("ogt", x, 2.0**28), x, t + square_root(e.fma(t, t, t * 2.0)))
    return e.select(e.compare("olt", x, 1.0), nan, y)


def atanh(x: Value) -> Value:
    e, a = x.emitter, absolute(x)
    twice = a * 2.0
    y = log1p(twice + twice * a / (1.0 - a)) * 0.5
    if x.type == "float":
        z = a * a
        y = e.select(e.compare("olt", a, 0.5), e.fma(a * z, polynomial(z, ATANH_FLOAT), a), y)
    return copysign(e.select(e.compare("ogt", a, 1.0), nan, y), x)


# -- the error function
# --------------------------------------------------------------------------------------------------


def _erfc_large(a: Value) -> Value:
    """erfc(a) for a >= 0.47, as exp(-a^2) times a smooth function."""
    e = a.emitter
    a = at_most(a, 27.5)
    square = a * a
    rest = e.fma(a, a, -square)
    power = exp(-square)
    return (
        e.fma(power, -rest, power)
        * polynomial((a - 4.0) / (a + 4.0), ERFC_SCALED)
        / (a * 2.0 + 1.0)
    )


def erf(x: Value) -> Value:
    e = x.emitter
    a = absolute(x)
    if x.type == "float":
        a = at_most(a, 3.95)
        far = 1.0 - _quick_exp(polynomial(a, LOG_ERFC), 1.0)
        return e.select(
            e.compare("ult", a, 0.845), e.fma(x, polynomial(a * a, ERF_FLOAT), x), copysign(far, x)
        )
    small = e.fma(x, polynomial(x * x, ERF_SMALL), x)
    return e.select(e.compare("olt", a, 1.0), small, copysign(1.0 - _erfc_large(a), x))


def erfc(x: Value) -> Value:
    """erfc of floats, in double, which needs no care then: exp(-a^2) times a smooth function, or
    what that lacks to 2."""
    e = x.emitter
    a = at_most(absolute(x), 10.2)
    wide = e.cast("fpext", a, "double")
    under = e.fma(wide, 0.4, 1.0)
    quotient = e.cast("fpext", 1.0 / e.cast("fptrunc", under, "float"), "double")
    u = e.fma(quotient, e.fma(-quotient, under, 1.0), quotient)
    y = _quick_exp2(wide * wide * -LOG2_E) * (u * polynomial(u, ERFC_QUICK))
    y = e.select(e.compare("slt", e.bits(x), 0), 2.0 - y, y)
    return e.cast("fptrunc", e.select(e.compare("ogt", x, 10.06), 0.0, y), "float")


def gelu(x: Value) -> Value:
    """x times the normal distribution function, for floats. 2**p is the tail beyond |x|, and what
    it lacks to 1 the other side: in L2 the error is that of eager's formula with erf, and less
    where x is negative."""
    e, a, form = x.emitter, absolute(x), FORMATS["float"]
    p = polynomial(a, LOG2_TAIL)
    shifted = p + form.shifter
    power = e.bits(polynomial(p - (shifted - form.shifter), EXP2_SHORT)) + (
        e.bits(shifted) << form.mantissa
    )
    tail = e.select(e.compare("olt", a, 5.5), e.cast("bitcast", power, "float"), 0.0)
    return x * e.select(e.compare("olt", x, 0.0), tail, 1.0 - tail)


# -- the table
# -----------------------------------------------------------------------------------------------------------


def in_double(function: Callable[..., Value]) -> Callable[..., Value]:
    """`function`, with float arguments computed in double: one rounding, at the end."""

    def wrapped(*args: Value) -> Value:
        e, type = args[0].emitter, args[0].type
        return e.cast("fptrunc", function(*(e.cast("fpext", a, "double") for a in args)), type)

    return wrapped


def rsqrt(x: Value) -> Value:
    return 1.0 / square_root(x)


# Functions whose float form stays in float; the others are computed in double.
FUNCTIONS: dict[str, Callable[..., Value]] = {
    "exp": exp, "expm1": expm1, "sigmoid": sigmoid, "log": log, "log1p": log1p, "sin": sin,
    "cos": cos, "tanh": tanh, "erf": erf, "sqrt": square_root, "rsqrt": rsqrt, "abs": absolute,
    "exp2": exp2, "log2": log2, "atan2": atan2, "atanh": atanh, "pow": power, "tan": tan,
    "asin": asin, "acos": acos, "atan": atan,
}  # fmt: skip
FUNCTIONS |= {f.__name__: in_double(f) for f in (log10, sinh, cosh, asinh, acosh)}
# In double these would need intermediate results in more than double precision.
FLOAT_ONLY: dict[str, Callable[..., Value]] = {"gelu": gelu, "erfc": erfc}
