"""The scalar op table, and the define-by-run layer that records a function of index expressions
into a `Body`.

A body is written as ordinary Python over the functions at the end of this module (`load`,
`constant`, `apply`, ...). They act on the one ambient handler: within `with recording() as r:` that
is a `Recorder`, which makes a compact SSA program.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch

from ingot.loops.expr import Expr, Symbol, as_expr, integer, value_symbol
from ingot.loops.ir import Body, BodyBuilder, Fault, Instruction

BOOL = frozenset((torch.bool,))
UNSIGNED = frozenset((torch.uint8, torch.uint16, torch.uint32, torch.uint64))
INTS = UNSIGNED | frozenset((torch.int8, torch.int16, torch.int32, torch.int64))
FLOATS = frozenset((torch.float32, torch.float64))
# where no inline expansion in double precision exists: ATen is called for those
SINGLE = frozenset((torch.float32,))
NUMBERS = INTS | FLOATS
ALL = NUMBERS | BOOL
HALVES = frozenset((torch.bfloat16, torch.float16))
BYTES = frozenset((torch.int8, torch.uint8, torch.bool))
STORED = ALL | HALVES  # what buffers, loads, stores and conversions may hold

DIVISIONS = frozenset(("floordiv", "truncdiv", "remainder", "fmod"))
"""Those that are an error, on a CPU, where an integer is divided by 0."""


# What an op costs, in vector operations such as an addition, about.
SIMPLE = 1.0
ROUNDING = 2.0  # and the sign
DIVISION = 4.0  # and square roots
LOAD = 4.0
FUNCTION = 15.0  # a polynomial, after the range of its argument was reduced
LONG_FUNCTION = 30.0  # ... several times, or in cases


class ScalarOp(NamedTuple):
    """A row of the table. `result` is "same" (the dtype of the last argument) or "bool"; all
    arguments have one dtype out of `types`, but for the condition of `where`. `reference` works on
    NumPy arrays of that dtype."""

    name: str
    arity: int
    types: frozenset[torch.dtype]
    result: str
    reference: Callable[..., Any]
    cost: float = SIMPLE


def _through_torch(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
    """A NumPy reference for what NumPy itself lacks."""
    return lambda x: function(torch.from_numpy(np.array(x))).numpy()


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _power(x: Any, y: Any) -> Any:
    """Of integers to negative powers only those of 1 and -1 are not 0."""
    if x.dtype.kind == "f":
        return np.power(x, y)
    power = np.power(x, np.where(y < 0, y & 1, y))
    return np.where((y < 0) & (np.abs(x.astype(np.float64)) != 1), np.zeros_like(power), power)


def _float_op(
    name: str, cost: float, reference: Callable[..., Any], types: frozenset[torch.dtype] = FLOATS
) -> ScalarOp:
    return ScalarOp(name, 1, types, "same", reference, cost)


_ROWS = [
    ScalarOp("add", 2, NUMBERS, "same", np.add),
    ScalarOp("sub", 2, NUMBERS, "same", np.subtract),
    ScalarOp("mul", 2, NUMBERS, "same", np.multiply),
    ScalarOp("div", 2, FLOATS, "same", np.divide, DIVISION),
    ScalarOp("floordiv", 2, INTS, "same", np.floor_divide, DIVISION),
    ScalarOp("truncdiv", 2, INTS, "same", lambda a, b: (a - np.fmod(a, b)) // b, DIVISION),
    ScalarOp("remainder", 2, NUMBERS, "same", np.mod, DIVISION),
    ScalarOp("fmod", 2, NUMBERS, "same", np.fmod, DIVISION),
    ScalarOp("gcd", 2, INTS, "same", np.gcd, LONG_FUNCTION),
    ScalarOp("neg", 1, NUMBERS | HALVES, "same", np.negative),
    ScalarOp("abs", 1, NUMBERS | HALVES, "same", np.abs),
    ScalarOp("sign", 1, NUMBERS, "same", np.sign, ROUNDING),
    ScalarOp("signbit", 1, FLOATS, "bool", np.signbit),
    ScalarOp("copysign", 2, FLOATS | HALVES, "same", np.copysign),
    ScalarOp("nextafter", 2, FLOATS, "same", np.nextafter, DIVISION),
    ScalarOp("minimum", 2, NUMBERS, "same", np.minimum),
    ScalarOp("maximum", 2, NUMBERS, "same", np.maximum),
    ScalarOp(
        "fma", 3, FLOATS, "same", lambda a, b, c: (a.astype(np.float64) * b + c).astype(a.dtype)
    ),
    ScalarOp("eq", 2, ALL, "bool", np.equal),
    ScalarOp("ne", 2, ALL, "bool", np.not_equal),
    ScalarOp("lt", 2, NUMBERS, "bool", np.less),
    ScalarOp("le", 2, NUMBERS, "bool", np.less_equal),
    ScalarOp("gt", 2, NUMBERS, "bool", np.greater),
    ScalarOp("ge", 2, NUMBERS, "bool", np.greater_equal),
    ScalarOp("logical_and", 2, BOOL, "bool", np.logical_and),
    ScalarOp("logical_or", 2, BOOL, "bool", np.logical_or),
    ScalarOp("logical_xor", 2, BOOL, "bool", np.logical_xor),
    ScalarOp("logical_not", 1, BOOL, "bool", np.logical_not),
    ScalarOp("bitwise_and", 2, INTS, "same", np.bitwise_and),
    ScalarOp("bitwise_or", 2, INTS, "same", np.bitwise_or),
    ScalarOp("bitwise_xor", 2, INTS, "same", np.bitwise_xor),
    ScalarOp("bitwise_not", 1, INTS, "same", np.invert),
    ScalarOp("shift_left", 2, INTS, "same", np.left_shift),
    ScalarOp("shift_right", 2, INTS, "same", np.right_shift),
    ScalarOp("where", 3, ALL | HALVES, "same", np.where),
    ScalarOp("isnan", 1, FLOATS, "bool", np.isnan),
    ScalarOp("isinf", 1, FLOATS, "bool", np.isinf),
    _float_op("reciprocal", DIVISION, np.reciprocal),
    _float_op("sqrt", DIVISION, np.sqrt),
    _float_op("rsqrt", DIVISION, lambda x: 1 / np.sqrt(x)),
    _float_op("floor", ROUNDING, np.floor),
    _float_op("ceil", ROUNDING, np.ceil),
    _float_op("round", ROUNDING, np.rint),
    _float_op("trunc", ROUNDING, np.trunc),
    _float_op("exp", FUNCTION, np.exp),
    _float_op("exp2", FUNCTION, np.exp2),
    _float_op("expm1", FUNCTION, np.expm1),
    _float_op("log", FUNCTION, np.log),
    _float_op("log2", FUNCTION, np.log2),
    _float_op("log10", FUNCTION, np.log10),
    _float_op("log1p", FUNCTION, np.log1p),
    _float_op("sin", LONG_FUNCTION, np.sin),
    _float_op("cos", LONG_FUNCTION, np.cos),
    _float_op("tan", LONG_FUNCTION, np.tan),
    _float_op("asin", LONG_FUNCTION, np.arcsin),
    _float_op("acos", LONG_FUNCTION, np.arccos),
    _float_op("atan", LONG_FUNCTION, np.arctan),
    _float_op("sinh", LONG_FUNCTION, np.sinh),
    _float_op("cosh", LONG_FUNCTION, np.cosh),
    _float_op("tanh", FUNCTION, np.tanh),
    _float_op("asinh", LONG_FUNCTION, np.arcsinh),
    _float_op("acosh", LONG_FUNCTION, np.arccosh),
    _float_op("atanh", LONG_FUNCTION, np.arctanh),
    _float_op("erf", FUNCTION, _through_torch(torch.special.erf)),
    _float_op("erfc", FUNCTION, _through_torch(torch.special.erfc), types=SINGLE),
    _float_op(
        "gelu",
        FUNCTION,
        lambda x: 0.5 * x * _through_torch(torch.special.erfc)(-x * 0.5**0.5),
        types=SINGLE,
    ),
    _float_op("erfinv", LONG_FUNCTION, _through_torch(torch.special.erfinv), types=SINGLE),
    _float_op("lgamma", LONG_FUNCTION, _through_torch(torch.lgamma), types=SINGLE),
    _float_op("digamma", LONG_FUNCTION, _through_torch(torch.digamma), types=SINGLE),
    _float_op("sigmoid", FUNCTION, _sigmoid),
    ScalarOp("pow", 2, NUMBERS, "same", _power, LONG_FUNCTION),
    ScalarOp("atan2", 2, FLOATS, "same", np.arctan2, LONG_FUNCTION),
]

OPS: dict[str, ScalarOp] = {row.name: row for row in _ROWS}
# the other instructions of bodies, and their costs
STRUCTURAL = {
    "constant": 0.0,
    "index": 0.0,
    "load": LOAD,
    "indirect": SIMPLE,
    "scalar": 0.0,
    "to": SIMPLE,
}
# a value that is made of others costs about as much as a memory access: it is not computed twice
CHEAP = frozenset(row.name for row in _ROWS if row.cost == SIMPLE)
FUNCTIONS = frozenset(row.name for row in _ROWS if row.cost >= FUNCTION)


def cost(op: str) -> float:
    """What an instruction costs, in vector operations; one that is not in the table is simple."""
    row = OPS.get(op)
    if row is None:
        return STRUCTURAL.get(op, SIMPLE)
    return row.cost


def supported(name: str, dtype: torch.dtype) -> bool:
    """Whether the op exists for arguments of `dtype`."""
    return name in STRUCTURAL or dtype in OPS[name].types


# -- recording -------------------------------------------------------------------------------------


class Recorder(BodyBuilder):
    """Builds a `Body` at lowering: values are positions of instructions, and constants fold."""

    def __init__(self) -> None:
        super().__init__()
        # what a lazy value gave at an index, so that shared subexpressions run once
        self.memo: dict[Any, Any] = {}
        self.mask: int | None = None  # the condition under which memory may be touched now
        self._indirect = 0

    def indirect(self, value: int, extent: Expr, fault: Fault) -> Symbol:
        args = (value,) if self.mask is None else (value, self.mask)
        key: Any = ("indirect", args, extent, fault)
        symbol = self.memo.get(key)
        if symbol is None:
            symbol = self.memo[key] = value_symbol(f"v{self._indirect}", extent)
            self._indirect += 1
            self.emit("indirect", args, torch.int64, (symbol, extent, fault))
        return symbol

    def body(self, *results: int) -> Body:
        """The program that computes `results`, without what they do not need.

        Indices are always looked at, since one may be out of range.
        """
        return super().body(*results).without_dead()


class _Ambient(threading.local):
    handler: Recorder | None = None


_ambient = _Ambient()


@contextmanager
def recording() -> Iterator[Recorder]:
    """Make a fresh `Recorder` the ambient handler."""
    outer, recorder = _ambient.handler, Recorder()
    _ambient.handler = recorder
    try:
        yield recorder
    finally:
        _ambient.handler = outer


def recorder() -> Recorder:
    """The ambient handler. Only valid within `recording`."""
    if _ambient.handler is None:
        raise RuntimeError("no body is being recorded")
    return _ambient.handler


def dtype_of(value: int) -> torch.dtype:
    """The dtype of a recorded value."""
    return recorder().instructions[value].dtype


def constant(value: bool | int | float, dtype: torch.dtype) -> int:
    """A constant, converted to `dtype` as a cast of the Python number would be."""
    if dtype in FLOATS:
        value = float(value)
        if dtype is torch.float32 and math.isfinite(value):
            with np.errstate(over="ignore"):
                value = float(np.float32(value))
    elif dtype is torch.bool:
        value = bool(value)
    else:
        info = torch.iinfo(dtype)
        value = (int(value) - info.min) % (info.max - info.min + 1) + info.min
    return recorder().constant(value, dtype)


def index(e: Expr | int, dtype: torch.dtype = torch.int64) -> int:
    """The value of an index expression."""
    e = as_expr(e)
    if e.constant is not None:
        return constant(e.constant, dtype)
    return to(recorder().emit("index", (), torch.int64, (e,)), dtype)


@contextmanager
def masked(condition: int) -> Iterator[None]:
    """Within, memory is touched and errors are reported only where `condition` holds; loads give 0
    elsewhere."""
    r = recorder()
    outer = r.mask
    if outer is None:
        r.mask = condition
    else:
        r.mask = apply("logical_and", outer, condition)
    if r.constant_of(r.mask) is True:
        r.mask = None
    try:
        yield
    finally:
        r.mask = outer


def load(buffer: str, offset: Expr, dtype: torch.dtype) -> int:
    """The element of `buffer` at `offset`."""
    r = recorder()
    return r.emit("load", () if r.mask is None else (r.mask,), dtype, (buffer, offset))


def indirect(value: int, extent: Expr | int, fault: Fault) -> Symbol | Expr:
    """An integer value as an index into `extent` elements, negative ones counting from the end;
    `fault` is reported where it is out of range."""
    extent = as_expr(extent)
    known = recorder().constant_of(value)
    count = extent.constant
    if known is not None and count is not None and -count <= known < count:
        return integer(known % count)
    return recorder().indirect(to(value, torch.int64), extent, fault)


def to(value: int, dtype: torch.dtype) -> int:
    """`value` converted to `dtype`."""
    r = recorder()
    instruction = r.instructions[value]
    if instruction.dtype is dtype:
        return value
    if (
        instruction.op == "constant"
        and dtype not in HALVES
        and not _is_unrepresentable(instruction.attrs[0], dtype)
    ):
        return constant(instruction.attrs[0], dtype)
    narrow = None
    if dtype in HALVES:
        narrow = _narrowed(r, value, dtype)
    elif instruction.op == "to" and instruction.dtype in HALVES:
        (source,) = instruction.args
        while r.instructions[source].op == "to" and r.instructions[source].dtype in FLOATS:
            (source,) = r.instructions[source].args
        if r.instructions[source].dtype in BYTES:  # which halves have exactly
            return to(source, dtype)
    if narrow is None:
        return r.emit("to", (value,), dtype)
    return narrow


# ops whose result is one of the arguments, but for its sign
_EXACT = ("neg", "abs", "copysign", "where")


def _narrowed(r: Recorder, value: int, dtype: torch.dtype) -> int | None:
    """A value as the half `dtype` if it was widened from one; None if it was not.

    So are values made of such by ops that leave nothing to round.
    """
    instruction = r.instructions[value]
    if instruction.op == "to":
        source = instruction.args[0]
        if r.instructions[source].dtype is dtype:
            return source
        return None
    if instruction.op == "constant":
        number = instruction.attrs[0]
        if not isinstance(number, float):
            return None
        is_exact = torch.tensor(number, dtype=dtype, device="cpu").item() == number
        if is_exact:
            return r.constant(number, dtype)
        return None
    if instruction.op not in _EXACT:
        return None
    args = list(instruction.args)
    for k in range(instruction.op == "where", len(args)):
        narrow = _narrowed(r, args[k], dtype)
        if narrow is None:
            return None
        args[k] = narrow
    return r.emit(instruction.op, tuple(args), dtype)


def _is_unrepresentable(number: float, dtype: torch.dtype) -> bool:
    return isinstance(number, float) and dtype in INTS and not abs(number) < 2**31


def apply(name: str, *args: int) -> int:
    """Apply an op of the table to values, whose dtypes must agree."""
    r = recorder()
    if OPS[name].result == "bool":
        result = torch.bool
    else:
        result = r.instructions[args[-1]].dtype
    return r.fold(Instruction(name, args, result))


def total_of(values: Iterable[int]) -> int:
    """The sum of one or more values, from the first to the last."""
    return functools.reduce(lambda a, b: apply("add", a, b), values)


def weighted_sum(terms: Iterable[tuple[int, int]], start: int | None = None) -> int:
    """`start` and the products of values and weights, each added in one rounding."""
    total = start
    for value, weight in terms:
        if total is None:
            total = apply("mul", value, weight)
        else:
            total = apply("fma", value, weight, total)
    assert total is not None
    return total
