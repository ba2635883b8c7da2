"""The functions that kernels in C++ call: small ones as text, elementary ones from `codegen/llvm`.

A file has those that its kernels name, in the namespace `ingot`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from ingot.codegen.cpp.tracer import traced
from ingot.codegen.llvm.math import FLOAT_ONLY, FUNCTIONS, exp_of_negative
from ingot.codegen.llvm.scalar import TABLE
from ingot.codegen.llvm.special import FLOAT_ONLY as SPECIAL

TRACED = FUNCTIONS | FLOAT_ONLY | SPECIAL
"""Functions of floats by name."""

TRACED["exp_of_negative"] = exp_of_negative
for _name in ("nextafter", "fmod"):
    TRACED[_name] = lambda a, b, _rule=TABLE[_name][1]: _rule("float", a, b)

RARE = {
    "sin": "sin", "cos": "cos", "tan": "tan", "fmod": "fmod", "remainder": "remainder_of_floats",
}  # fmt: skip
"""The functions of ops of floats that may have to call the C library. Vector loops take the usual
result, and note whether one has to be repaired behind the loop."""

_BINARY = frozenset(("atan2", "pow", "nextafter", "fmod"))

HEADER = """\
#include <cmath>
#include <cstdint>
#include <cstring>
"""

HELPERS = {
    "bits_as": """\
// the bits of a number as another type
template <class To, class From>
inline To bits_as(From x) {
  To y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}""",
    "smaller": """\
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }""",
    "larger": """\
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }""",
    "minimum": """\
// the smaller one; NaN where one is NaN
template <class T>
inline T minimum(T a, T b) {
  const T less = a < b ? a : b;
  return a != a ? a : less;
}""",
    "maximum": """\
// the larger one; NaN where one is NaN
template <class T>
inline T maximum(T a, T b) {
  const T more = a > b ? a : b;
  return a != a ? a : more;
}""",
    "order": """\
// an integer for each float, in the same order; NaN comes last, or first
template <bool last>
inline int32_t order(float x) {
  const int32_t bits = ingot::bits_as<int32_t>(x), nan = last ? INT32_MAX : INT32_MIN;
  return x != x ? nan : bits ^ ((bits >> 31) & INT32_MAX);
}
template <bool last>
inline int64_t order(double x) {
  const int64_t bits = ingot::bits_as<int64_t>(x), nan = last ? INT64_MAX : INT64_MIN;
  return x != x ? nan : bits ^ ((bits >> 63) & INT64_MAX);
}""",
    "in_order": """\
// the float of such an integer
template <class T, class I>
inline T in_order(I n) {
  return ingot::bits_as<T>(I(n ^ ((n >> (8 * sizeof(I) - 1)) & I(~(I(1) << (8 * sizeof(I) - 1))))));
}""",
    "ranked": """\
// a float and its position as one integer, whose extreme has the first of equal floats
template <bool largest>
inline int64_t ranked(float x, int64_t position) {
  const int64_t value = ingot::order<largest>(x + 0.0f);  // zeros of both signs are equal
  return value * INT64_C(0x100000000) + (largest ? INT32_MAX - position : position);
}""",
    "position_of": """\
template <bool largest>
inline int64_t position_of(int64_t ranked) {
  const int64_t low = ranked & INT64_C(0xffffffff);
  return largest ? INT32_MAX - low : low;
}""",
    "sign": """\
template <class T>
inline T sign(T x) {
  return x > T(0) ? T(1) : x < T(0) ? T(-1) : T(0);
}""",
    "magnitude": """\
// |x|; of the least integer itself
template <class T>
inline T magnitude(T x) {
  return x < T(0) ? T(-x) : x;
}""",
    "quotient": """\
// a / b toward zero, b not 0; narrow integers divide as floats, exactly, which vectors can
template <class T>
inline T quotient(T a, T b) {
  if constexpr (sizeof(T) < 4) return T(int32_t(float(a) / float(b)));
  if constexpr (sizeof(T) == 4) return T(int64_t(double(a) / double(b)));
  if constexpr (T(-1) < T(0)) return b == T(-1) ? T(-a) : T(a / (b == T(-1) ? T(1) : b));
  return T(a / b);
}""",
    "floor_divide": """\
template <class T>
inline T floor_divide(T a, T b) {
  const T q = ingot::quotient(a, b), rest = T(a - T(q * b));
  return T(q - T((rest != 0) & (T(rest ^ b) < T(0))));
}""",
    "remainder": """\
// Python's %: the sign of the divisor
template <class T>
inline T remainder(T a, T b) {
  return T(a - T(ingot::floor_divide(a, b) * b));
}""",
    "fmod_of_integers": """\
template <class T>
inline T fmod_of_integers(T a, T b) {
  return T(a - T(ingot::quotient(a, b) * b));
}""",
    "remainder_of_floats": """\
// Python's %: the sign of the divisor
template <class T>
inline T with_sign_of_divisor(T rest, T b) {
  const bool wrong = (rest != T(0)) & ((b < T(0)) ^ (rest < T(0)));
  return wrong ? rest + b : rest;
}
template <class T>
inline T remainder_of_floats(T a, T b) {
  return ingot::with_sign_of_divisor(ingot::fmod(a, b), b);
}
template <class T>
inline T usual_remainder_of_floats(T a, T b) {
  return ingot::with_sign_of_divisor(ingot::usual_fmod(a, b), b);
}
template <class T>
inline bool remainder_of_floats_is_rare(T a, T b) {
  return ingot::fmod_is_rare(a, b);
}
template <class T>
inline void repair_remainder_of_floats(const T *xs, const T *ys, T *results, int64_t count) {
  for (int64_t k = 0; k < count; ++k)
    if (ingot::fmod_is_rare(xs[k], ys[k])) results[k] = ingot::remainder_of_floats(xs[k], ys[k]);
}""",
    "shift_left": """\
// 0 where all bits are shifted out
template <class T>
inline T shift_left(T a, T b) {
  const bool outside = (b < T(0)) | (b >= T(8 * sizeof(T)));
  return outside ? T(0) : T(a << (outside ? T(0) : b));
}""",
    "shift_right": """\
// 0, or the sign, where all bits are shifted out
template <class T>
inline T shift_right(T a, T b) {
  const bool outside = (b < T(0)) | (b >= T(8 * sizeof(T)));
  if constexpr (T(-1) > T(0)) return outside ? T(0) : T(a >> (outside ? T(0) : b));
  return T(a >> (outside ? T(8 * sizeof(T) - 1) : b));
}""",
    "gcd": """\
// by Euclid's algorithm; the least integer is its own absolute value
template <class T>
inline T gcd(T a, T b) {
  T x = a < T(0) ? T(-a) : a, y = b < T(0) ? T(-b) : b;
  while (x != 0) {
    const T rest = T(y - T(ingot::quotient(y, x) * x));
    y = x;
    x = rest;
  }
  return y;
}""",
    "power": """\
// wraps around; to a negative power 0, unless the base is 1 or -1
template <class T>
inline T power(T a, T b) {
  if (b < T(0)) {
    if (a != T(1) && a != T(-1)) return T(0);
    b = T(b & 1);
  }
  T result = 1;
  for (; b != 0; b = T(b >> 1)) {
    if (b & 1) result = T(result * a);
    a = T(a * a);
  }
  return result;
}""",
    "to_uint64": """\
template <class T>
inline uint64_t to_uint64(T x) {
  const bool large = x >= T(9223372036854775808.0);
  const int64_t low = int64_t(large ? x - T(9223372036854775808.0) : x);
  return uint64_t(low) ^ (large ? UINT64_C(0x8000000000000000) : UINT64_C(0));
}""",
    "bfloat16": """\
enum class bfloat16 : uint16_t {};  // the bits of the upper half of a float""",
    "from_brain": """\
inline float from_brain(ingot::bfloat16 x) {
  return ingot::bits_as<float>(uint32_t(x) << 16);
}""",
    "to_brain": """\
inline ingot::bfloat16 to_brain(float x) {  // rounded to nearest even
  const uint32_t bits = ingot::bits_as<uint32_t>(x);
  const uint32_t rounded = (bits + ((bits >> 16) & 1) + 0x7fff) >> 16;
  return ingot::bfloat16(uint16_t(x != x ? 0x7fc0u : rounded));
}""",
    "half": """\
enum class half : uint16_t {};  // the bits: a sign, five of exponent, ten of mantissa""",
    "either": """\
// a number where a condition holds, and another elsewhere; no branch, which compilers would make
// of conditions that follow from each other, and which vector loops cannot have
inline uint32_t either(bool condition, uint32_t a, uint32_t b) {
  const uint32_t mask = -uint32_t(condition);
  return (a & mask) | (b & ~mask);
}""",
    "from_half": """\
inline float from_half(ingot::half x) {
#if defined(__clang__) && defined(__F16C__)
  return float(ingot::bits_as<_Float16>(x));  // by instructions, which GCC has no vectors of
#else
  const uint32_t bits = uint32_t(x), sign = (bits & 0x8000) << 16, size = (bits & 0x7fff) << 13;
  const float small = ingot::bits_as<float>(size + 0x38800000) - 6.103515625e-05f;
  const uint32_t subnormal = ingot::bits_as<uint32_t>(small);
  const uint32_t normal = size + ingot::either(size >= 0x0f800000, 0x70000000, 0x38000000);
  return ingot::bits_as<float>(sign | ingot::either(size < 0x00800000, subnormal, normal));
#endif
}""",
    "to_half": """\
inline ingot::half to_half(float x) {  // rounded to nearest even
#if defined(__clang__) && defined(__F16C__)
  return ingot::bits_as<ingot::half>(_Float16(x));
#else
  const uint32_t bits = ingot::bits_as<uint32_t>(x), size = bits & 0x7fffffff;
  const uint32_t small = ingot::bits_as<uint32_t>(ingot::bits_as<float>(size) + 0.5f) - 0x3f000000;
  const uint32_t normal = ((size + 0xfff + ((size >> 13) & 1)) >> 13) - 0x1c000;
  const uint32_t nan = 0x7e00 | ((size >> 13) & 0x3ff);
  const uint32_t large = ingot::either(size > 0x7f800000, nan, 0x7c00);
  const uint32_t not_small = ingot::either(size < 0x47800000, normal, large);
  const uint32_t rounded = ingot::either(size < 0x38800000, small, not_small);
  return ingot::half(uint16_t(rounded | (bits >> 16 & 0x8000)));
#endif
}""",
    "as_half": """\
inline float as_half(float x) {  // rounded to a half, and that as a float
#if defined(__clang__) && defined(__F16C__)
  return float(_Float16(x));
#else
  // a power of two, whose neighbours are as far apart as halves near x
  const uint32_t own = ingot::bits_as<uint32_t>(x) & 0x7f800000;
  const uint32_t large = own > 0x38800000 ? own : 0x38800000;
  const uint32_t exponent = large < 0x47000000 ? large : 0x47000000;
  const float power = ingot::bits_as<float>(exponent + 0x06800000);
  const float rounded = (std::fabs(x) + power) - power;
  return std::copysign(rounded >= 65536.0f ? INFINITY : rounded, x);
#endif
}""",
    "half_negated": """\
template <class T>
inline T half_negated(T x) {
  return ingot::bits_as<T>(uint16_t(ingot::bits_as<uint16_t>(x) ^ 0x8000));
}""",
    "half_magnitude": """\
template <class T>
inline T half_magnitude(T x) {
  return ingot::bits_as<T>(uint16_t(ingot::bits_as<uint16_t>(x) & 0x7fff));
}""",
    "half_copysign": """\
template <class T>
inline T half_copysign(T x, T y) {
  const int size = ingot::bits_as<uint16_t>(x) & 0x7fff;
  const int sign = ingot::bits_as<uint16_t>(y) & 0x8000;
  return ingot::bits_as<T>(uint16_t(size | sign));
}""",
    "log_add_exp": """\
// log(e^x + e^y)
template <class T>
inline T log_add_exp(T x, T y) {
  const T most = ingot::maximum(x, y), least = ingot::minimum(x, y);
  const bool alike = (x == y) & (std::fabs(x) == T(INFINITY));
  return alike ? x : ingot::log1p(ingot::exp(least - most)) + most;
}""",
    "is_further": """\
// whether a value, at a position, takes the place of the most extreme one; NaN is that. That of
// values that are true or false is an int
template <bool largest, class T, class Value>
inline bool is_further(T best, int64_t at, Value value, int64_t position) {
  const bool beyond = (largest ? value > best : value < best) | ((value != value) & (best == best));
  const bool tie = (value == best) | ((value != value) & (best != best));
  return beyond | (tie & (position < at));
}""",
    "multiply": """\
// adds to the sums of a tile of ROWS x COLUMNS the products of `count` steps. Row r and step k have
// left[rows[r] + steps[k]], and the columns of a step lie side by side from right[places[k]] on.
// Rows of sums are `stride` apart
template <int ROWS, int COLUMNS, class T>
inline void multiply(const T *left, const int64_t *rows, const int64_t *steps, const T *right,
                     const int64_t *places, int64_t count, T *sums, int64_t stride) {
  T part[ROWS][COLUMNS] = {};
  for (int64_t k = 0; k < count; ++k) {
    const T *columns = right + places[k];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r) {
      const T element = left[rows[r] + steps[k]];
#pragma omp simd
      for (int c = 0; c < COLUMNS; ++c)
        part[r][c] = std::fma(element, columns[c], part[r][c]);
    }
  }
  for (int r = 0; r < ROWS; ++r)
#pragma omp simd
    for (int c = 0; c < COLUMNS; ++c) sums[r * stride + c] += part[r][c];
}""",
    "sum_of": """\
// the sum of numbers that fill four vectors of so many lanes
template <int lanes, class T>
inline T sum_of(const T (&parts)[4 * lanes]) {
  const T *b = parts + lanes, *c = b + lanes, *d = c + lanes;
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int l = 0; l < lanes; ++l) sum += (parts[l] + b[l]) + (c[l] + d[l]);
  return sum;
}""",
    "add_compensated": """\
// adds to a total, and what is lost by rounding to `error`
inline void add_compensated(double &total, double &error, double more) {
  const double after = total + more, added = after - total;
  error += (total - (after - added)) + (more - added);
  total = after;
}""",
}

_OF_HELPERS = {"log_add_exp": ("log1p", "exp"), "remainder_of_floats": ("fmod",)}


@cache
def function(name: str, type: str) -> str:
    """The text of an elementary function of a type, "float" or "double"."""
    rule = TRACED[name]
    doc = (rule.__doc__ or "").strip().split("\n\n")[0]
    lines = []
    for line in doc.splitlines():
        lines.append(line.strip())
    if rule.__name__ in ("<lambda>", "wrapped"):
        lines = []
    return traced(name, rule, type, 2 if name in _BINARY else 1, "\n".join(lines))


_MENTION = re.compile(r"ingot::(\w+)")


def prelude(texts: Iterable[str], functions: Iterable[tuple[str, str]]) -> str:
    """What a file with these kernels begins with. `functions` are the elementary ones that they
    call, by name and type."""
    wanted: dict[str, None] = {}
    for text in texts:
        wanted |= dict.fromkeys(_MENTION.findall(text))
    of_types: dict[tuple[str, str], None] = {}
    for name, type in sorted(functions):
        wanted[name] = None  # the text may mention a part of it alone
        for part in _OF_HELPERS.get(name, (name,)):
            of_types[part, type] = None
    elementary = []
    for name, type in of_types:
        elementary.append(function(name, type))
    needed: dict[str, None] = {}

    def need(name: str) -> None:
        if name in HELPERS and name not in needed:
            for other in _MENTION.findall(HELPERS[name]):
                if other != name:
                    need(other)
            needed[name] = None

    for text in elementary:
        for name in _MENTION.findall(text):
            need(name)
    for name in wanted:
        need(name)
    first, last = [], []
    for name in needed:
        if name in _OF_HELPERS:
            last.append(HELPERS[name])
        else:
            first.append(HELPERS[name])
    blocks = [*first, *elementary, *last]
    parts = [HEADER]
    if blocks:
        parts += [
            "namespace ingot {\n",
            *[f"{block}\n" for block in blocks],
            "}  // namespace ingot\n",
        ]
    return "\n".join(parts)
