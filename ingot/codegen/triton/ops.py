"""The scalar ops of `loops/ops.py` as Triton: one row each.

A row gives the text of a call: a template with `{0}`, `{1}`, ... for the arguments and `{T}` for
their Triton type, or several by the kind of the arguments' dtype. Arithmetic is rounded as eager
rounds it: divisions and roots are exact, functions are libdevice's, which eager's kernels call too.
"""

from __future__ import annotations

import math
from typing import Any

import torch

TYPES = {
    torch.bool: "tl.int1",
    torch.uint8: "tl.uint8",
    torch.uint16: "tl.uint16",
    torch.uint32: "tl.uint32",
    torch.uint64: "tl.uint64",
    torch.int8: "tl.int8",
    torch.int16: "tl.int16",
    torch.int32: "tl.int32",
    torch.int64: "tl.int64",
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
}


def signature(dtype: torch.dtype) -> str:
    """The name of a dtype in the signature of a kernel."""
    name = TYPES[dtype].removeprefix("tl.")
    for long, short in (("uint", "u"), ("int", "i"), ("bfloat", "bf"), ("float", "fp")):
        if name.startswith(long):
            return name.replace(long, short)
    return name


SINGLE, DOUBLE, HALF = "single", "double", "half"
SIGNED, UNSIGNED, BOOL = "signed", "unsigned", "bool"


def kind(dtype: torch.dtype) -> str:
    """Which of a row's templates is for arguments of `dtype`."""
    if dtype is torch.bool:
        return BOOL
    if dtype.is_floating_point:
        return {2: HALF, 4: SINGLE}.get(dtype.itemsize, DOUBLE)
    if dtype.is_signed:
        return SIGNED
    return UNSIGNED


def _by_kind(**templates: str) -> dict[str, str]:
    """A row from templates for `floats`, `ints` and `reals` (both), or for single kinds."""
    groups = {
        "reals": (SINGLE, DOUBLE, SIGNED, UNSIGNED),
        "floats": (SINGLE, DOUBLE),
        "ints": (SIGNED, UNSIGNED),
    }
    row: dict[str, str] = {}
    for name, template in templates.items():
        row |= dict.fromkeys(groups.get(name, (name,)), template)
    return row


def _reals(template: str, **others: str) -> dict[str, str]:
    return _by_kind(reals=template, **others)


_CALLED = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh "
    "atanh erf pow atan2 rsqrt trunc fmod nextafter"
).split()  # functions of libdevice under the same name, of one or two floats
_SINGLE_ONLY = "erfc erfinv lgamma".split()
REWRITTEN = ("one_plus_tanh", "one_minus_square_of_tanh", "normal_cdf")  # that only `rewrite` makes
_BINARY = {"pow", "atan2", "fmod", "nextafter"}
_RELATIONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}

TABLE: dict[str, dict[str, str]] = {
    "add": _reals("{0} + {1}"),
    "sub": _reals("{0} - {1}"),
    "mul": _reals("{0} * {1}"),
    "div": _by_kind(single="tl.div_rn({0}, {1})", double="{0} / {1}"),
    "reciprocal": _by_kind(single="tl.div_rn(1.0, {0})", double="1.0 / {0}"),
    "floordiv": _by_kind(signed="helpers.floor_divide({0}, {1})", unsigned="{0} // {1}"),
    "truncdiv": _by_kind(ints="{0} // {1}"),
    "remainder": _by_kind(
        floats="helpers.float_remainder({0}, {1})",
        signed="helpers.floor_remainder({0}, {1})",
        unsigned="{0} % {1}",
    ),
    "neg": _by_kind(floats="{0} * -1.0", half="{0} * -1.0", ints="0 - {0}"),
    "abs": _by_kind(floats="tl.abs({0})", half="tl.abs({0})", signed="tl.abs({0})", unsigned="{0}"),
    "sign": _by_kind(
        floats="({0} > 0).to({T}) - ({0} < 0).to({T})",
        signed="({0} > 0).to({T}) - ({0} < 0).to({T})",
        unsigned="({0} != 0).to({T})",
    ),
    "signbit": _by_kind(
        single="{0}.to(tl.int32, bitcast=True) < 0", double="{0}.to(tl.int64, bitcast=True) < 0"
    ),
    "copysign": _by_kind(
        floats="libdevice.copysign({0}, {1})", half="helpers.copy_sign_of_half({0}, {1})"
    ),
    "minimum": _by_kind(floats="helpers.nan_minimum({0}, {1})", ints="tl.minimum({0}, {1})"),
    "maximum": _by_kind(floats="helpers.nan_maximum({0}, {1})", ints="tl.maximum({0}, {1})"),
    "fma": _by_kind(floats="tl.fma({0}, {1}, {2})"),
    "logical_and": _by_kind(bool="{0} & {1}"),
    "logical_or": _by_kind(bool="{0} | {1}"),
    "logical_xor": _by_kind(bool="{0} ^ {1}"),
    "logical_not": _by_kind(bool="~{0}"),
    "bitwise_and": _by_kind(ints="{0} & {1}"),
    "bitwise_or": _by_kind(ints="{0} | {1}"),
    "bitwise_xor": _by_kind(ints="{0} ^ {1}"),
    "bitwise_not": _by_kind(signed="~{0}", unsigned="{0} ^ {ones}"),
    "shift_left": _by_kind(ints="helpers.shift_left({0}, {1}, {bits})"),
    "shift_right": _by_kind(
        signed="helpers.shift_right({0}, {1}, {bits})",
        unsigned="helpers.shift_right_unsigned({0}, {1}, {bits})",
    ),
    "where": dict.fromkeys(
        (SINGLE, DOUBLE, HALF, SIGNED, UNSIGNED, BOOL), "tl.where({0}, {1}, {2})"
    ),
    "isnan": _by_kind(floats="{0} != {0}"),
    "isinf": _by_kind(floats='tl.abs({0}) == float("inf")'),
    "floor": _by_kind(floats="tl.floor({0})"),
    "ceil": _by_kind(floats="tl.ceil({0})"),
    "round": _by_kind(floats="libdevice.rint({0})"),
    "sqrt": _by_kind(single="tl.sqrt_rn({0})", double="tl.sqrt({0})"),
    "sigmoid": _by_kind(
        single="tl.div_rn(1.0, 1.0 + libdevice.exp({0} * -1.0))",
        double="1.0 / (1.0 + libdevice.exp({0} * -1.0))",
    ),
    "gelu": _by_kind(single="{0} * helpers.normal_cdf({0})"),
}
for _name, _sign in _RELATIONS.items():
    TABLE[_name] = _reals(f"{{0}} {_sign} {{1}}", bool=f"{{0}} {_sign} {{1}}")
for _name in _CALLED:
    TABLE[_name] = _by_kind(floats=f"libdevice.{_name}({{0}})")
for _name in _BINARY:
    TABLE[_name] = _by_kind(floats=f"libdevice.{_name}({{0}}, {{1}})")
for _name in _SINGLE_ONLY:
    TABLE[_name] = _by_kind(single=f"libdevice.{_name}({{0}})")
for _name in REWRITTEN:
    TABLE[_name] = _by_kind(single=f"helpers.{_name}({{0}})")
TABLE["fmod"] |= _by_kind(ints="{0} % {1}")


def supported(name: str, dtype: torch.dtype) -> bool:
    """Whether there is Triton code for the op on arguments of `dtype`."""
    from ingot.loops.ops import STRUCTURAL
    from ingot.loops.ops import supported as exists

    exists_here = name in REWRITTEN or exists(name, dtype)
    return name in STRUCTURAL or (exists_here and kind(dtype) in TABLE.get(name, {}))


def call(name: str, dtype: torch.dtype, arguments: list[str]) -> str:
    """The expression that applies an op to arguments of `dtype`."""
    bits = 8 * dtype.itemsize
    return TABLE[name][kind(dtype)].format(*arguments, T=TYPES[dtype], bits=bits, ones=2**bits - 1)


def convert(value: str, source: torch.dtype, target: torch.dtype) -> str:
    """`value` of dtype `source` as dtype `target`.

    Floats are truncated to integers, anything not 0 is True.
    """
    if target is torch.bool:
        return f"{value} != 0"
    # as eager: through float
    if source is torch.float64 and target.is_floating_point and target.itemsize == 2:
        return f"{value}.to(tl.float32).to({TYPES[target]})"
    return f"{value}.to({TYPES[target]})"


def literal(number: Any, dtype: torch.dtype) -> str:
    """A Python number as a constant of `dtype`."""
    if isinstance(number, float) and not math.isfinite(number):
        text = f'float("{number}")'
    else:
        text = repr(bool(number) if dtype is torch.bool else number)
    return f"tl.full((), {text}, {TYPES[dtype]})"


# -- reductions ------------------------------------------------------------------------------------


def identity(reduction: str, dtype: torch.dtype) -> str:
    """The number that a reduction of nothing gives."""
    if reduction in ("sum", "prod", "any", "all"):
        return repr(int(reduction in ("prod", "all")))
    largest = reduction in ("min", "argmin")
    if dtype.is_floating_point:
        if largest:
            return 'float("inf")'
        return 'float("-inf")'
    if dtype is torch.bool:
        return repr(int(largest))
    info = torch.iinfo(dtype)
    return repr(info.max if largest else info.min)


def combine(reduction: str, dtype: torch.dtype, a: str, b: str) -> str:
    """The expression that joins two partial results; not for argmax and argmin."""
    if dtype is torch.bool:
        if reduction in ("all", "min", "prod"):
            return f"{a} & {b}"
        return f"{a} | {b}"
    op = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}[reduction]
    return call(op, dtype, [a, b])


def reduce_block(reduction: str, dtype: torch.dtype, value: str) -> str:
    """The expression that reduces the last axis of a block, which is kept with size 1."""
    if dtype is torch.bool:
        function = "max"
        if reduction in ("all", "min", "prod"):
            function = "min"
        return f"tl.{function}({value}.to(tl.int32), 1)[:, None] != 0"
    if reduction == "sum":
        return f"tl.sum({value}, 1)[:, None].to({TYPES[dtype]})"
    if reduction == "prod":
        return f"tl.reduce({value}, 1, helpers.multiply)[:, None]"
    if dtype.is_floating_point:
        return f"tl.reduce({value}, 1, helpers.nan_{reduction}imum)[:, None]"
    return f"tl.{reduction}({value}, 1)[:, None].to({TYPES[dtype]})"
