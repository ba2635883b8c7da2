"""Special functions of floats, computed in double, with one rounding at the end.

The coefficients are those of Chebyshev interpolants of the functions named beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan, pi
from math import log as log_of

from ingot.codegen.llvm.emitter import Value
from ingot.codegen.llvm.math import absolute, copysign, in_double, log, polynomial, square_root

# erfinv(x) / x in 0.687.. * sqrt(2 - log(1 - x^2)) - 1.97.., which is between -1 and 1: to 6e-9
ERFINV = (
    -0.0011269138003698368, 0.0017868935143052374, 0.005019045067589369, -0.01074118729980634,
    -0.006127954625964333, 0.027642209652791263, -0.009996616151704328, -0.034837580554881314,
    0.04540651382712017, 0.0034458207610417488, -0.06499980160881356, 0.06713013235429725,
    0.009543110075277904, -0.10259808124504245, 0.13072547829563044, -0.07360620366411591,
    -0.0343004022851806, 1.6422534396006625, 2.3325599051050165,
)  # fmt: skip
ERFINV_SCALE, ERFINV_CENTER = 0.6872530807737756, -1.9719226276129656
# log(gamma(z)) / ((z - 1)(z - 2)) in z - 3/2 on [1/2, 5/2]: to 3e-9
LOG_GAMMA = (
    0.0001728176691878094, -0.00026986490161391534, -0.00039872494380400976, 0.0006201715591646154,
    0.0006758665174686502, -0.0010571918455763993, -0.00013851334488352058, 0.000200192550111008,
    0.0008833142213611757, -0.0014319095021007265, 0.0018815198651649422, -0.0031476238512583164,
    0.005451780605175383, -0.009433908877656487, 0.01679679110053929, -0.031308008761259436,
    0.06291140623571606, -0.14595990394863584, 0.4831289505409809,
)  # fmt: skip
# sin(pi r) / r and cos(pi r) in r^2 on |r| <= 1/2
SIN_PI = (
    -2.113362735205297e-05, 0.0004659870158043378, -0.0073703643265304155, 0.08214587881631043,
    -0.599264528825224, 2.5501640398618677, -5.1677127800497855, 3.1415926535897927,
)  # fmt: skip
COS_PI = (
    4.149564353942586e-06, -0.00010456655338748738, 0.0019295562724817132, -0.025806888737002202,
    0.23533063012953284, -1.335262768843447, 4.058712126416497, -4.934802200544676, 1.0,
)  # fmt: skip
# Stirling's series, in 1/w^2: of log(gamma(w)) times w, and of the rest of digamma(w) times w^2
STIRLING = -1 / 1680, 1 / 1260, -1 / 360, 1 / 12
STIRLING_DIGAMMA = -1 / 132, 1 / 240, -1 / 252, 1 / 120, -1 / 12
FAR = 8  # from where on they are good to 1e-10


def erfinv(x: Value) -> Value:
    """x times a polynomial in the square root of -log(1 - x^2)."""
    e = x.emitter
    w = -log(e.cast("fptrunc", 1.0 - x * x, "float"))
    t = e.fma(square_root(e.cast("fpext", w, "double") + 2.0), ERFINV_SCALE, ERFINV_CENTER)
    at_end = e.compare("oeq", absolute(x), 1.0)
    y = e.select(at_end, copysign(e.constant(inf, "double"), x), x * polynomial(t, ERFINV))
    return e.select(e.compare("ogt", absolute(x), 1.0), nan, y)


def _reflected(x: Value) -> tuple[Value, Value, Value]:
    """Whether x is below 1/2, x or else 1 - x, and the distance of x from the nearest integer."""
    e = x.emitter
    below = e.compare("olt", x, 0.5)
    return below, e.select(below, 1.0 - x, x), x - e.intrinsic("roundeven", (x,))


def lgamma(x: Value) -> Value:
    """log|gamma(x)|.

    It is a polynomial times its zeros on [1/2, 5/2], and Stirling's series, to which small
    arguments are raised by the recurrence; below 1/2 the reflection formula. The logarithms of the
    products are taken together.
    """
    e = x.emitter
    below, z, r = _reflected(x)
    central, near = e.compare("olt", z, 2.5), e.compare("olt", z, FAR)
    product = z
    for k in range(1, FAR):
        product = product * (z + float(k))
    w = e.select(near, z + float(FAR), z)
    inverse = 1.0 / w
    series = polynomial(inverse * inverse, STIRLING) * inverse + (0.5 * log_of(2 * pi) - 0.5)
    far = e.fma(w - 0.5, log(w) - 1.0, series)
    middle = (z - 1.0) * (z - 2.0) * polynomial(z - 1.5, LOG_GAMMA)
    value = e.select(central, middle + 0.0, far)  # lgamma(1) is +0
    factor = e.select(near & ~central, product, 1.0)
    sine = absolute(r * polynomial(r * r, SIN_PI))
    logarithm = log(e.select(below, factor * pi / sine, factor))
    y = e.select(below, logarithm - value, value - logarithm)
    return e.select(e.compare("oeq", absolute(x), inf), inf, y)


def digamma(x: Value) -> Value:
    """The derivative of log(gamma(x)), in the same way; at the poles NaN, at zero an infinity."""
    e = x.emitter
    below, z, r = _reflected(x)
    near = e.compare("olt", z, FAR)
    over, under = e.constant(1.0, "double"), z  # the sum of 1 / (z + k)
    for k in range(1, FAR):
        following = z + float(k)
        over, under = e.fma(over, following, under), under * following
    w = e.select(near, z + float(FAR), z)
    inverse = 1.0 / w
    square = inverse * inverse
    y = log(w) + e.fma(square, polynomial(square, STIRLING_DIGAMMA), inverse * -0.5)
    y = y - e.select(near, over / under, 0.0)
    square = r * r
    y = y - e.select(below, polynomial(square, COS_PI) / (r * polynomial(square, SIN_PI)) * pi, 0.0)
    pole = e.select(e.compare("oeq", x, 0.0), copysign(e.constant(inf, "double"), -x), nan)
    return e.select(below & (e.compare("oeq", r, 0.0) | e.compare("oeq", x, -inf)), pole, y)


FLOAT_ONLY: dict[str, Callable[..., Value]] = {
    f.__name__: in_double(f) for f in (erfinv, lgamma, digamma)
}
