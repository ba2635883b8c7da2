"""Python numbers that the program reads from tensors (`.item()`, `float(t)`, `int(t)`).

In the graph they are tensors of rank 0, so that it goes on where they only meet other tensors.

An operation of a tensor and a Python number converts the number to the type it computes in, as it
does with a tensor of rank 0 that holds it; it differs in the type of the result alone. So `t *
number` is captured as the operation of two tensors, made such that eager's type of the result
follows. Whatever else is done with the number (a branch, an index, a size, text) needs its value,
and breaks the graph there.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ingot.capture.guards import Kind
from ingot.capture.sources import DerivedSource, Source
from ingot.capture.values.base import Constants, Operator, UnaryOperator, Value, in_order
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.drawn_branches import truth_of_draw
from ingot.capture.values.evaluated import Applied, Evaluated
from ingot.capture.values.operator_methods import COMPARISONS, EQUALITIES, in_place_forms
from ingot.capture.values.outside_branches import truth_from_outside
from ingot.capture.values.tensor import SymIntValue, TensorMethod, TensorValue
from ingot.capture.values.wording import described, operator_text
from ingot.errors import Unsupported
from ingot.graph.symbols import to_expr
from ingot.graph.unbacked import require_relation
from ingot.native._native import make_numbers_by, tensor_of
from ingot.origins import is_trusted
from ingot.torch_private import ALL, why_off
from ingot.wrapped import is_transformed, untransformed

if TYPE_CHECKING:
    from ingot.capture.session import Session

FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
INTEGER_DTYPES = frozenset({torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8})
HELD_AS = {float: torch.float64, int: torch.int64, bool: torch.bool}

_ARITHMETIC = frozenset({operator.add, operator.sub, operator.mul, operator.truediv})
_PARTIAL = frozenset({operator.truediv, operator.pow})
"""Where a tensor has infinity or NaN, Python may raise an error."""
_OF_FLOATS = _ARITHMETIC | _PARTIAL
_SAFE = _ARITHMETIC | {operator.neg, operator.pos, abs, operator.abs}
_OF_PYTHON = _OF_FLOATS | {operator.floordiv, operator.mod}
_PLAIN = in_place_forms(_ARITHMETIC | _PARTIAL)
_OF_INTEGERS = frozenset(
    {operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod}
)
_PLAIN_INTEGERS = in_place_forms(_OF_INTEGERS)
LARGEST = 1 << 30  # of such a size, so that a product of two fits 64 bits
_IN_PLACE = frozenset(_PLAIN) - {operator.ipow}
_POWERS = frozenset({operator.pow, operator.ipow})
_ROUNDED = frozenset({operator.mod, operator.floordiv, torch.fmod})
"""Of a number that is rounded to the tensor's type first."""
_OF_BOOLS: dict[Any, Callable[..., Any]] = {
    operator.and_: torch.logical_and,
    operator.or_: torch.logical_or,
    operator.xor: torch.logical_xor,
}
_PLAIN_OF_BOOLS = {
    operator.iand: operator.and_,
    operator.ior: operator.or_,
    operator.ixor: operator.xor,
}
OF_TENSORS = _ARITHMETIC | COMPARISONS
"""Operators that a tensor and a number of the graph have, but for those in place."""
_WITH_TENSORS = OF_TENSORS | _IN_PLACE


class NumberValue(Value):
    """A float, int or bool whose value is known to the running program only; `tensor` holds it, in
    rank 0."""

    __slots__ = ("_size", "_tensor", "cls", "decided")
    decides_operators = True
    can_require_truth = True

    def __init__(self, cls: type, tensor: TensorValue | None, source: Source | None = None) -> None:
        super().__init__(source)
        self.cls, self._tensor = cls, tensor
        self._size: Value | None = None
        self.decided: bool | None = None  # the truth that the graph checks

    @property
    def tensor(self) -> TensorValue:
        assert self._tensor is not None
        return self._tensor

    def python_type(self) -> type:
        return self.cls

    def describe(self) -> str:
        return f"the number in {self.tensor.describe()}"

    def constant(self) -> Any:
        """A bool that has decided a branch."""
        if self.cls is bool and self.decided is not None:
            return self.decided
        return super().constant()

    # -- its truth ---------------------------------------------------------------------------------

    def truth(self, session: Session) -> bool:
        if self.decided is None:
            self.decided = truth_from_outside(session, self.tensor)
        if self.decided is None:
            self.decided = truth_of_draw(session, self.tensor)
        if self.decided is None:
            raise session.unsupported("number-in-tensor", f"a branch on {self.describe()}")
        return self.decided

    def require_truth(self, session: Session, expected: bool) -> bool:
        """Have the graph check whether it is true, as it does that of a tensor."""
        if self.decided is None and self.tensor.require_truth(session, expected):
            self.decided = expected
        return self.decided is expected

    def as_bool(self, session: Session) -> Value:
        """What bool() gives."""
        if self.cls is bool:
            return self
        return NumberValue(bool, call(session, operator.ne, self.tensor, ConstantValue(0)))

    def negation(self, session: Session) -> Value:
        """`not self` of a bool."""
        return NumberValue(bool, call(session, torch.logical_not, self.tensor))

    def is_bool(self, session: Session, other: Value, expected: bool) -> Value | None:
        """Whether it is a constant that is True or False, or that it is not if not `expected`."""
        if (
            not isinstance(other, ConstantValue)
            or type(other.object) is not bool
            or self.cls is not bool
        ):
            return None
        if other.object is expected:
            return self
        return self.negation(session)

    def _joined(self, session: Session, function: Any, other: Value) -> Value | None:
        """`self & other` and the like of two bools; None for others."""
        if isinstance(other, NumberValue) and other.cls is bool:
            return NumberValue(bool, call(session, _OF_BOOLS[function], self.tensor, other.tensor))
        if not isinstance(other, ConstantValue) or type(other.object) is not bool:
            return None
        if function is operator.xor:
            return self.is_bool(session, other, False)
        if other.object is (function is operator.and_):
            return self
        return other

    def _compared(
        self, session: Session, function: Any, other: Value, reflected: bool
    ) -> Value | None:
        """A comparison of two numbers, the other of which may be a constant; None where the types
        differ."""
        if self.cls is float:
            right = self._operand(session, other)
        else:
            right = operand_of_choice(other)
        if right is None or self.cls is int is not other.python_type():
            return None
        pair = in_order(self.tensor, right, reflected)
        return NumberValue(bool, call(session, function, *pair))

    def convert(self, session: Session, cls: type) -> Value:
        if cls is self.cls:
            return self
        if cls is bool:
            return self.as_bool(session)
        if cls is float:
            return NumberValue(float, converted(session, self.tensor, torch.float64))
        if cls is int and self._is_integral(session):
            return NumberValue(int, converted(session, self.tensor, torch.int64))
        raise session.unsupported("number-in-tensor", f"{cls.__name__}() of {self.describe()}")

    def _is_integral(self, session: Session) -> bool:
        """Whether an int64 holds what int() gives of it, which the graph checks of a float."""
        if self.cls is bool:
            return True
        if not session.graph.context.shapes.unbacked.enabled:
            return False
        size = call(session, abs, converted(session, self.tensor, torch.float64))
        return call(session, operator.lt, size, ConstantValue(2.0**63)).require_truth(session, True)

    # -- alone -------------------------------------------------------------------------------------

    def unary(self, session: Session, function: UnaryOperator) -> Value:
        if function is operator.pos and self.cls is not bool:
            return self
        if self.cls is float and function in (operator.neg, abs):
            return NumberValue(float, call(session, function, self.tensor))
        raise session.unsupported(
            "number-in-tensor", f"{operator_text(function)} of {self.describe()}"
        )

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        """Arithmetic of floats, which a float64 tensor does alike; division where it cannot be by
        zero."""
        if isinstance(other, TensorValue):
            return self.with_tensor(session, function, other, not reflected)
        if other.is_numpys:
            return None
        if type(self) is NumberValue and type(other) in (NumberValue, ConstantValue):
            result = self._asked(session, function, other, reflected)
            if result is not None:
                return result
        sizes = self._as_sizes(session, function, other)
        if sizes is not None:
            return sizes[0].binary(session, function, sizes[1], reflected)
        plain = _PLAIN.get(function, function)
        if self.cls is float and plain in _ARITHMETIC and isinstance(other, SymIntValue):
            other = other.convert(session, float)
        right = self._operand(session, other)
        known = plain in _OF_FLOATS
        if plain in _PARTIAL:
            known = _is_defined(session, plain, in_order(self, other, reflected)[1])
        if self.cls is not float or right is None or not known:
            raise session.unsupported(
                "number-in-tensor",
                f"{operator_text(function)} of {self.describe()} and {other.describe()}",
            )
        pair = in_order(self.tensor, right, reflected)
        return NumberValue(float, call(session, plain, *pair))

    def _as_sizes(
        self, session: Session, function: Any, other: Value
    ) -> tuple[Value, Value] | None:
        """The operands of an operator of integers as sizes; None where they are none."""
        is_of_integers = _PLAIN_INTEGERS.get(function, function) in _OF_INTEGERS
        if not is_of_integers or not self._meets_integer(other):
            return None
        size = self.as_size(session)
        other_size: Value | None = other
        if isinstance(other, NumberValue):
            other_size = other.as_size(session)
        if size is None or other_size is None:
            return None
        return size, other_size

    def _asked(
        self, session: Session, function: Any, other: Value, reflected: bool
    ) -> Value | None:
        """What gives a bool, where the program can tell it."""
        if self.cls is not bool:
            if function not in COMPARISONS:
                return None
            return self._compared(session, function, other, reflected)
        if function in EQUALITIES:
            return self.is_bool(session, other, function is operator.eq)
        plain = _PLAIN_OF_BOOLS.get(function, function)
        if plain not in _OF_BOOLS:
            return None
        return self._joined(session, plain, other)

    @staticmethod
    def _meets_integer(other: Value) -> bool:
        if isinstance(other, NumberValue):
            return other.cls is int
        return (
            isinstance(other, SymIntValue)
            or isinstance(other, ConstantValue)
            and type(other.object) is int
        )

    def as_size(self, session: Session) -> Value | None:
        """An int as a size that the data decide, of at most LARGEST, which the graph checks; None
        where none may be."""
        shapes = session.graph.context.shapes
        if (
            self.cls is not int
            or not shapes.unbacked.enabled
            or self.tensor.fake.device.type != "cpu"
        ):
            return None
        if self._size is None:
            self._size = session.call_method("item", self.tensor)
            for pair in ((-LARGEST, self._size), (self._size, LARGEST)):
                session.graph.require(session, require_relation, "<=", *pair)
        return self._size

    def _operand(self, session: Session, other: Value) -> Value | None:
        """What stands for the other operand in float64; None where its value would not be the same
        there."""
        if isinstance(other, NumberValue):
            if other.cls is float:
                return other.tensor
            return None
        if not other.is_constant() or type(other.constant()) not in (float, int, bool):
            return None
        number = other.constant()
        if abs(number) < 2**53 or type(number) is float:
            return ConstantValue(float(number))
        return None

    def element(self, session: Session, dtype: torch.dtype) -> TensorValue | None:
        """A float as an element of a tensor of this type."""
        if self.cls is not float or dtype not in FLOATS or not fits(session, self, dtype):
            return None
        return converted(session, self.tensor, dtype)

    # -- with a tensor -----------------------------------------------------------------------------

    def with_tensor(
        self, session: Session, function: Operator, tensor: TensorValue, reflected: bool
    ) -> Value:
        """`function(tensor, self)`, or `function(self, tensor)` if reflected."""
        dtype = tensor.fake.dtype
        # eager has no such gradient
        if function is operator.mod and reflected and tensor.fake.requires_grad:
            raise session.unsupported(
                "number-in-tensor", f"the remainder of {self.describe()} by {tensor.describe()}"
            )
        if function in _ROUNDED and self.cls is float and dtype in (torch.float32, torch.float64):
            number = converted(session, self.tensor, dtype)
            return call(session, function, *in_order(tensor, number, reflected))
        is_refused = self.cls is bool and _PLAIN.get(function, function) is operator.sub
        if is_refused or not self._fits_type(dtype) or function not in _WITH_TENSORS:
            raise session.unsupported(
                "number-in-tensor",
                f"{operator_text(function)} of {tensor.describe()} and {self.describe()}",
            )
        if not reflected and function in _IN_PLACE:
            return self._write_into(session, function, tensor)
        function = _PLAIN.get(function, function)
        if dtype not in FLOATS and (self.cls is float or function is operator.truediv):
            tensor = converted(session, tensor, torch.get_default_dtype())
        flat = tensor.fake.dim() == 0  # of two tensors of rank 0, the wider type would count
        if flat:
            tensor = method(session, "reshape", tensor, 1)
        number = self._beside(session, tensor)
        if reflected and function is operator.truediv:  # as Tensor.__rtruediv__ does
            result = call(session, operator.mul, method(session, "reciprocal", tensor), number)
        else:
            result = call(session, function, *in_order(tensor, number, reflected))
        if flat:
            return method(session, "reshape", result, ())
        return result

    def _beside(self, session: Session, tensor: TensorValue) -> TensorValue:
        """It as the other operand of a tensor. A bool counts as 0 or 1."""
        if self.cls is bool:
            return converted(session, self.tensor, tensor.fake.dtype)
        return self.tensor

    def _fits_type(self, dtype: torch.dtype) -> bool:
        """Whether a tensor of this type takes it: an integer may not fit a narrower type."""
        if self.cls is bool:
            return dtype in FLOATS or dtype in INTEGER_DTYPES
        if dtype in FLOATS or dtype in (torch.int64, torch.bool):
            return True
        return dtype in INTEGER_DTYPES and self.cls is float

    def _write_into(self, session: Session, function: Operator, tensor: TensorValue) -> Value:
        """An operator in place, of a tensor and it."""
        dtype, flat = tensor.fake.dtype, not tensor.fake.dim()
        if dtype not in FLOATS or flat and dtype not in (torch.float32, torch.float64):
            raise session.unsupported(
                "number-in-tensor", f"{tensor.describe()} is changed by {self.describe()}"
            )
        number = self._beside(session, tensor)
        if flat:
            number = converted(session, number, dtype)
        return call(session, function, tensor, number)


def _is_defined(session: Session, function: Any, divisor: Value) -> bool:
    """Whether a quotient or power raises no error. Torch's own code divides by no zero, and takes
    powers of what is not negative."""
    if is_trusted(session.frames[-1].function.namespace.get("__name__")):
        return True
    if function is not operator.truediv:
        return False
    if isinstance(divisor, OutsideNumber) and divisor.in_graph:
        return divisor.truth(session)
    return divisor.is_constant() and bool(divisor.constant())


class OutsideNumber(NumberValue):
    """An outside float that may differ between calls.

    A graph break left it behind, or it is observed (`varies`), or expected to differ
    (`scheduled`). Beside a tensor it is an input of the graph. What Python computes of an observed
    one and of constants is computed before the graph runs; where the result is no float, such as
    an integer or the outcome of a comparison, the result alone is guarded. Other uses compile for
    its value; in a continuation, an observed one breaks the graph there."""

    __slots__ = ("_in_graph", "_make_tensor", "_session", "object", "varies")

    def __init__(
        self, session: Session, number: float, source: Source, varies: bool, scheduled: bool = False
    ) -> None:
        super().__init__(float, None, source)
        self._session, self.object, self.varies = session, number, varies
        self._in_graph = varies or scheduled
        self._make_tensor: Callable[[], TensorValue] | None = None  # of other numbers

    @property
    def tensor(self) -> TensorValue:
        if self._tensor is None and self._make_tensor is not None and not is_transformed():
            self._tensor = self._make_tensor()
        elif self._tensor is None:
            assert self.source is not None
            source = DerivedSource(self.source, tensor_of)
            with untransformed():  # or the tensor would belong to a level of torch.func
                tensor = _new_tensor(self.object)  # of its own: one tensor twice is one input
            self._tensor = self._session.graph.inputs.number(self._session, tensor, source)
        return self._tensor

    @property
    def in_graph(self) -> bool:
        return self._in_graph

    @property
    def breaks(self) -> bool:
        return self.varies and self._session.continues

    def describe(self) -> str:
        assert self.source is not None
        return described("varying float", self.source)

    def constant(self) -> Any:
        if self.breaks:
            return super().constant()
        self._session.guard(self.source, Kind.EQUALS, self.object)
        return self.object

    def identity(self) -> Any:
        return self.object

    def applied(
        self,
        session: Session,
        function: Callable[..., Any],
        before: Constants = (),
        after: Constants = (),
    ) -> Value:
        """What a pure function of Python's gives for it and these constants: computed before the
        graph runs."""
        assert self.source is not None
        try:
            result = function(*before, self.object, *after)
        except (ArithmeticError, ValueError, TypeError):
            self.constant()  # the error is that of the value
            return session.wrap_result(function, *before, self.object, *after)
        source = DerivedSource(self.source, Applied.of(function, before, after))
        return outcome(session, function, before, result, source, self.varies)

    def truth(self, session: Session) -> bool:
        return bool(self.applied(session, operator.ne, after=(0.0,)).constant())

    def as_bool(self, session: Session) -> Value:
        return ConstantValue(self.truth(session))

    def require_truth(self, session: Session, expected: bool) -> bool:
        return False

    def convert(self, session: Session, cls: type) -> Value:
        if cls is float:
            return self
        if cls is int and self.in_graph:
            return self.applied(session, int)
        if self.breaks:
            return super().convert(session, cls)
        return session.wrap_result(cls, self.constant())

    def unary(self, session: Session, function: UnaryOperator) -> Value:
        if not self.in_graph or function is operator.invert:
            return ConstantValue(self.constant()).unary(session, function)
        result = self.applied(session, function)
        if isinstance(result, OutsideNumber):
            result._make_tensor = lambda: call(session, function, self.tensor)
        return result

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        known = isinstance(other, ConstantValue)
        plain = _PLAIN.get(function, _PLAIN_INTEGERS.get(function, function))
        if isinstance(other, ConstantValue) and type(other.object) in (int, float, bool):
            if plain in COMPARISONS or self.in_graph and plain in _OF_PYTHON:
                return self._with_constant(session, plain, other, reflected)
        try:
            if not known or self.in_graph:
                return super().binary(session, function, other, reflected)
        except Unsupported:
            if not known or self.breaks:
                raise
        return ConstantValue(self.constant()).binary(session, function, other, reflected)

    def _with_constant(
        self, session: Session, function: Operator, other: ConstantValue, reflected: bool
    ) -> Value:
        before, after = in_order((), (other.object,), reflected)
        result = self.applied(session, function, before, after)
        operand = self._operand(session, other)
        if isinstance(result, OutsideNumber) and operand is not None and function in _ARITHMETIC:
            # a quotient by a number that is not 0
            if function is not operator.truediv or not reflected:
                result._make_tensor = lambda: call(
                    session, function, *in_order(self.tensor, operand, reflected)
                )
        return result

    def method_is_integer(self, session: Session) -> Value:
        return self._answer(session, float.is_integer)

    def method_conjugate(self, session: Session) -> Value:
        return self

    def method_hex(self, session: Session) -> Value:
        return self._answer(session, float.hex)

    def method_as_integer_ratio(self, session: Session) -> Value:
        return self._answer(session, float.as_integer_ratio)

    def _answer(self, session: Session, method: Callable[[float], Any]) -> Value:
        """What a method without arguments gives."""
        if self.in_graph:
            return self.applied(session, method)
        return session.wrap_result(method, self.constant())

    def with_tensor(
        self, session: Session, function: Operator, tensor: TensorValue, reflected: bool
    ) -> Value:
        if (
            function is operator.pow
            and self.in_graph
            and tensor.fake.dtype in (torch.float32, torch.float64)
        ):
            test: Callable[..., bool] | None = None
            if not reflected:
                test = _is_usual_exponent
            elif tensor.fake.requires_grad:
                test = _is_base
            if test is None or self.applied(session, test).constant():
                number = converted(session, self.tensor, tensor.fake.dtype)
                return call(session, torch.pow, *in_order(tensor, number, reflected))
        try:
            if function in _POWERS and not reflected and not fits(session, self, tensor.fake.dtype):
                raise session.unsupported(
                    "number-in-tensor", f"a power of {tensor.describe()} and {self.describe()}"
                )
            return super().with_tensor(session, function, tensor, reflected)
        except Unsupported:
            if self.breaks:
                raise
            result = tensor.binary(session, function, ConstantValue(self.constant()), reflected)
            assert result is not None
            return result


def outcome(
    session: Session,
    function: Callable[..., Any],
    before: Constants,
    result: Any,
    source: Source,
    varies: bool,
) -> Value:
    """The value of what Python computes of a number that varies, and these constants before it."""
    if type(result) is not float:
        return session.realize(session.wrap(result, source))
    if function not in _SAFE or before and function is operator.truediv:
        session.guard(source, Kind.TYPE, float)  # which another number may have none of
    return OutsideNumber(session, result, source, varies, True)


def of_size(
    session: Session,
    size: SymIntValue,
    function: Callable[..., Any],
    before: Constants,
    after: Constants,
) -> Value | None:
    """The result of a pure function of constants and an expression of one symbol.

    It is computed before the graph runs. None where that cannot be, or the symbol is
    speculative."""
    shapes = session.graph.context.shapes
    expr = shapes.simplified(to_expr(size.fake))
    quantities = list(map(session.guards.symbols.get, expr.symbols))
    if len(quantities) != 1 or quantities[0] in (None, *session.graph.inputs.speculative):
        return None
    try:
        result = function(*before, shapes.hint(expr), *after)
    except (ArithmeticError, ValueError, TypeError):
        return None
    evaluated = Evaluated.of(expr, next(iter(expr.symbols)), quantities[0])
    source = DerivedSource(
        DerivedSource(quantities[0].source, evaluated), Applied.of(function, before, after)
    )
    return outcome(session, function, before, result, source, False)


def fits(session: Session, number: Value, dtype: torch.dtype) -> bool:
    """Whether eager takes an outside float for an element of a tensor of this type.

    It refuses finite ones that are too large. Numbers in tensors are not known."""
    if not isinstance(number, OutsideNumber) or dtype is torch.float64 or dtype not in FLOATS:
        return True
    return bool(number.applied(session, _is_element, (torch.finfo(dtype).max,)).constant())


def _is_element(largest: float, number: float) -> bool:
    return not largest < abs(number) < math.inf


def _is_usual_exponent(number: float) -> bool:
    """Not one of those that eager computes powers of in another way."""
    return number not in (0.0, 0.5, 1.0, 2.0, 3.0, -0.5, -1.0, -2.0)


def _is_base(number: float) -> bool:
    """Whether its logarithm, by which gradients are multiplied, is that of the number in
    float32."""
    return not 0 < abs(number) < 2.0**-126 and not 2.0**127 < abs(number) < math.inf


def _new_tensor(number: float) -> torch.Tensor:
    if torch.is_inference_mode_enabled():  # where tensors are of another kind
        with torch.inference_mode(False):
            return _new_tensor(number)
    return torch.scalar_tensor(number, dtype=torch.float64, device="cpu")


if why_off(ALL) is None:
    make_numbers_by(_new_tensor)


def operand_of_choice(value: Value) -> Value | None:
    """What stands for a number beside one that a tensor holds; None if nothing does."""
    if isinstance(value, NumberValue):
        return value.tensor
    if not isinstance(value, ConstantValue):
        return None
    number = value.object
    if type(number) is float or type(number) is int and abs(number) < 1 << 63:
        return value
    return None


def call(session: Session, function: Callable[..., Any], *args: Value) -> TensorValue:
    return _tensor(session, session.call_function(function, *args))


def method(session: Session, name: str, tensor: TensorValue, *args: Any) -> TensorValue:
    called = TensorMethod(tensor, name)
    return _tensor(session, called.call(session, list(map(session.wrap_constant, args)), {}))


def _tensor(session: Session, result: Value) -> TensorValue:
    """What a call gave, or the node that stands for it if it is a wrapper."""
    if not isinstance(result, TensorValue):
        result = result.content(session)  # type: ignore[attr-defined]
    assert isinstance(result, TensorValue)
    return result


def converted(
    session: Session, tensor: TensorValue, dtype: torch.dtype, copy: bool = False
) -> TensorValue:
    named: dict[str, Value] = {}
    if copy:
        named = {"copy": ConstantValue(True)}
    return _tensor(session, session.call_method("to", tensor, ConstantValue(dtype), **named))
