"""Python numbers that are read from tensors while the program runs (`.item()`, `float(t)`, `int(t)`): in the graph they
are tensors of rank 0, so that it goes on where they only meet other tensors.

An operation of a tensor and a Python number converts the number to the type it computes in, as it does with a tensor of
rank 0 that holds it; it differs in the type of the result alone. So `t * number` is captured as the operation of two
tensors, made such that eager's type of the result follows. Whatever else is done with the number (a branch, an index, a
size, text) needs its value, and breaks the graph there.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ingot.capture.guards import Kind
from ingot.capture.sources import DerivedSource, Source
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.tensor import FUNCTIONS, METHODS, SymIntValue, TensorMethod, TensorValue
from ingot.errors import Unsupported
from ingot.graph.symbols import is_decided_by_data
from ingot.graph.unbacked import require_relation
from ingot.wrapped import untransformed

if TYPE_CHECKING:
    from ingot.capture.session import Session

_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_INTEGERS = frozenset({torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8})
_HELD_AS = {float: torch.float64, int: torch.int64, bool: torch.bool}

_COMPARISONS = frozenset({operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne})
_ARITHMETIC = frozenset({operator.add, operator.sub, operator.mul, operator.truediv})
_PARTIAL = frozenset({operator.truediv, operator.pow})
"""Where a tensor has infinity or NaN, Python may raise an error."""
_OF_FLOATS = _ARITHMETIC | _PARTIAL
_PLAIN = {getattr(operator, f"i{f.__name__}"): f for f in _ARITHMETIC | _PARTIAL}
_OF_INTEGERS = frozenset({operator.add, operator.sub, operator.mul, operator.floordiv, operator.mod})
_PLAIN_INTEGERS = {getattr(operator, f"i{f.__name__}"): f for f in _OF_INTEGERS}
LARGEST = 1 << 30  # of such a size, so that a product of two fits 64 bits
_IN_PLACE = frozenset(_PLAIN) - {operator.ipow}
_WITH_TENSORS = _ARITHMETIC | _COMPARISONS | _IN_PLACE
_BY_NAME: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "subtract": operator.sub,
    "mul": operator.mul,
    "multiply": operator.mul,
    "div": operator.truediv,
    "divide": operator.truediv,
    "true_divide": operator.truediv,
    **{name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
    **{f"{name}_": getattr(operator, f"i{name}") for name in ("add", "sub", "mul")},
    "div_": operator.itruediv,
}
"""By the name of a torch function or Tensor method of two arguments: the operator that does the same."""


class NumberValue(Value):
    """A float, int or bool whose value is known to the running program only; `tensor` holds it, in rank 0."""

    __slots__ = ("_size", "_tensor", "cls")
    decides_operators = True

    def __init__(self, cls: type, tensor: TensorValue | None, source: Source | None = None) -> None:
        super().__init__(source)
        self.cls, self._tensor = cls, tensor
        self._size: Value | None = None

    @property
    def tensor(self) -> TensorValue:
        assert self._tensor is not None
        return self._tensor

    def python_type(self) -> type:
        return self.cls

    def describe(self) -> str:
        return f"the number in {self.tensor.describe()}"

    def truth(self, session: Session) -> bool:
        raise session.unsupported(f"a branch on {self.describe()}")

    def convert(self, session: Session, cls: type) -> Value:
        if cls is self.cls:
            return self
        if cls is float:
            return NumberValue(float, _converted(session, self.tensor, torch.float64))
        raise session.unsupported(f"{cls.__name__}() of {self.describe()}")

    # -- alone ---------------------------------------------------------------------------------------------------------

    def unary(self, session: Session, function: Callable[[Any], Any]) -> Value:
        if function is operator.pos and self.cls is not bool:
            return self
        if self.cls is float and function in (operator.neg, abs):
            return NumberValue(float, _call(session, function, self.tensor))
        raise session.unsupported(f"operator.{function.__name__} of {self.describe()}")

    def binary(
        self, session: Session, function: Callable[[Any, Any], Any], other: Value, reflected: bool
    ) -> Value | None:
        """Arithmetic of floats, which a float64 tensor does alike; division where it cannot be by zero. Torch's own
        code is trusted to divide by no zero, and to take powers of what is not negative."""
        if isinstance(other, TensorValue):
            return self.with_tensor(session, function, other, not reflected)
        if _PLAIN_INTEGERS.get(function, function) in _OF_INTEGERS and self._meets_integer(other):
            size, its = self.as_size(session), other.as_size(session) if isinstance(other, NumberValue) else other
            if size is not None and its is not None:
                return size.binary(session, function, its, reflected)
        right = self._operand(session, other)
        plain = _PLAIN.get(function, function)
        known = plain in _OF_FLOATS
        if plain in _PARTIAL and not session.is_trusted(session.frames[-1].function.namespace.get("__name__")):
            divisor = self if reflected else other
            known = plain is operator.truediv and divisor.is_constant() and bool(divisor.constant())
        if self.cls is not float or right is None or not known:
            raise session.unsupported(f"operator.{function.__name__} of {self.describe()} and {other.describe()}")
        function = plain
        pair = (right, self.tensor) if reflected else (self.tensor, right)
        return NumberValue(float, _call(session, function, *pair))

    @staticmethod
    def _meets_integer(other: Value) -> bool:
        if isinstance(other, NumberValue):
            return other.cls is int
        return isinstance(other, SymIntValue) or isinstance(other, ConstantValue) and type(other.object) is int

    def as_size(self, session: Session) -> Value | None:
        """An int as a size that the data decide, of at most LARGEST, which the graph checks; None where none may be."""
        shapes = session.graph.context.shapes
        if self.cls is not int or not shapes.unbacked.enabled or self.tensor.fake.device.type != "cpu":
            return None
        if self._size is None:
            self._size = session.graph.call(session, "call_method", "item", (self.tensor,), {})
            for pair in ((-LARGEST, self._size), (self._size, LARGEST)):
                session.graph.require(session, require_relation, "<=", *pair)
        return self._size

    def _operand(self, session: Session, other: Value) -> Value | None:
        """What stands for the other operand in float64; None where its value would not be the same there."""
        if isinstance(other, NumberValue):
            return other.tensor if other.cls is float else None
        if not other.is_constant() or type(other.constant()) not in (float, int, bool):
            return None
        number = other.constant()
        return ConstantValue(float(number)) if abs(number) < 2**53 or type(number) is float else None

    # -- with a tensor -------------------------------------------------------------------------------------------------

    def with_tensor(
        self, session: Session, function: Callable[[Any, Any], Any], tensor: TensorValue, reflected: bool
    ) -> Value:
        """`function(tensor, self)`, or `function(self, tensor)` if reflected."""
        dtype = tensor.fake.dtype
        # An integer may not fit a narrower type of integers.
        known = dtype in _FLOATS or dtype in (torch.int64, torch.bool) or dtype in _INTEGERS and self.cls is float
        known = known and self.cls is not bool
        if not known or function not in _WITH_TENSORS:
            raise session.unsupported(f"operator.{function.__name__} of {tensor.describe()} and {self.describe()}")
        if reflected:
            function = _PLAIN.get(function, function)
        elif function in _IN_PLACE:
            flat = not tensor.fake.dim()
            if dtype not in _FLOATS or flat and dtype not in (torch.float32, torch.float64):
                raise session.unsupported(f"{tensor.describe()} is changed by {self.describe()}")
            number = _converted(session, self.tensor, dtype) if flat else self.tensor
            return _call(session, function, tensor, number)
        if dtype not in _FLOATS and (self.cls is float or function is operator.truediv):
            tensor = _converted(session, tensor, torch.get_default_dtype())
        flat = tensor.fake.dim() == 0  # of two tensors of rank 0, the wider type would count
        if flat:
            tensor = _method(session, "reshape", tensor, 1)
        if reflected and function is operator.truediv:  # as Tensor.__rtruediv__ does
            made = _call(session, operator.mul, _method(session, "reciprocal", tensor), self.tensor)
        else:
            made = _call(session, function, *((self.tensor, tensor) if reflected else (tensor, self.tensor)))
        return _method(session, "reshape", made, ()) if flat else made


class OutsideNumber(NumberValue):
    """A float from outside that may differ from call to call: one that a graph break left behind, or that was seen to
    (`varies`), or is expected to (`scheduled`). Beside a tensor it is an input of the graph, and of a comparison with a
    constant the outcome alone is guarded. Arithmetic with one that varies is part of the graph. Other uses compile for
    its value; in a continuation, one that was seen to vary breaks the graph there."""

    __slots__ = ("_session", "in_graph", "object", "varies")

    def __init__(
        self, session: Session, number: float, source: Source, varies: bool, scheduled: bool = False
    ) -> None:
        super().__init__(float, None, source)
        self._session, self.object, self.varies, self.in_graph = session, number, varies, varies or scheduled

    @property
    def tensor(self) -> TensorValue:
        if self._tensor is None:
            assert self.source is not None
            held = DerivedSource(self.source, tensor_of)
            with untransformed():  # or the tensor would belong to a level of torch.func
                made = tensor_of(self.object)
            self._tensor = self._session.graph.input(self._session, made, held)
        return self._tensor

    @property
    def breaks(self) -> bool:
        return self.varies and self._session.continues

    def describe(self) -> str:
        assert self.source is not None
        return f"the varying float {self.source.name}"

    def constant(self) -> Any:
        if self.breaks:
            return super().constant()
        self._session.guard(self.source, Kind.EQUALS, self.object)
        return self.object

    def identity(self) -> Any:
        return self.object

    def truth(self, session: Session) -> bool:
        return self._answer(Question(operator.ne, 0.0, False))

    def _answer(self, question: Question) -> bool:
        """What the answer is now, which is guarded in place of the number."""
        assert self.source is not None
        answer = question(self.object)
        self._session.guard(DerivedSource(self.source, question), Kind.EQUALS, answer)
        return answer

    def convert(self, session: Session, cls: type) -> Value:
        if cls is float or self.breaks:
            return super().convert(session, cls)
        return session.wrap_constant(session.python(cls, self.constant()))

    def unary(self, session: Session, function: Callable[[Any], Any]) -> Value:
        try:
            if self.in_graph:
                return super().unary(session, function)
        except Unsupported:
            if self.breaks:
                raise
        return ConstantValue(self.constant()).unary(session, function)

    def binary(
        self, session: Session, function: Callable[[Any, Any], Any], other: Value, reflected: bool
    ) -> Value | None:
        if function in _COMPARISONS and isinstance(other, ConstantValue) and type(other.object) in (int, float, bool):
            return ConstantValue(self._answer(Question(function, other.object, reflected)))
        known = not self.breaks and isinstance(other, ConstantValue)
        try:
            if not known or self.in_graph:
                return super().binary(session, function, other, reflected)
        except Unsupported:
            if not known:
                raise
        return ConstantValue(self.constant()).binary(session, function, other, reflected)

    def with_tensor(
        self, session: Session, function: Callable[[Any, Any], Any], tensor: TensorValue, reflected: bool
    ) -> Value:
        try:
            return super().with_tensor(session, function, tensor, reflected)
        except Unsupported:
            if self.breaks:
                raise
            made = tensor.binary(session, function, ConstantValue(self.constant()), reflected)
            assert made is not None
            return made


class Question:
    """A comparison of a float with a constant."""

    __slots__ = ("function", "other", "reflected")

    def __init__(self, function: Callable[[Any, Any], Any], other: float, reflected: bool) -> None:
        self.function, self.other, self.reflected = function, other, reflected

    @property
    def __name__(self) -> str:
        return f"{self.function.__name__} {self.other!r}"

    def __call__(self, number: float) -> bool:
        if type(number) is not float:
            raise TypeError(f"{type(number).__name__} is not float")
        return self.function(self.other, number) if self.reflected else self.function(number, self.other)


def tensor_of(number: float) -> torch.Tensor:
    """A float as a tensor of rank 0. Raises TypeError for what is none."""
    if type(number) is not float:
        raise TypeError(f"{type(number).__name__} is not float")
    return torch.scalar_tensor(number, dtype=torch.float64, device="cpu")


def read(session: Session, tensor: TensorValue, cls: type | None = None) -> Value:
    """The number in a tensor of one element: `t.item()`, or `cls(t)`. It is read now, whatever is written later."""
    fake, dtype = tensor.fake, tensor.fake.dtype
    known = session.graph.known.of(fake)
    if id(fake) in session.graph.known.sizes and cls in (int, None):
        size: Value = session.graph.known.sizes[id(fake)][1]
        return size
    if known is not None and known.numel() == 1:
        return session.wrap_constant(known.item() if cls is None else session.python(cls, known))
    kind = float if dtype in _FLOATS else int if dtype in _INTEGERS else bool if dtype is torch.bool else None
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(fake)
    sizes = fake.shape
    if kind is None or wrapped or any(isinstance(s, torch.SymInt) or s != 1 for s in sizes):
        raise session.unsupported(f"the value of {tensor.describe()} is read")
    plain = _method(session, "detach", tensor) if fake.requires_grad else tensor
    held = _converted(session, _method(session, "reshape", plain, ()) if sizes else plain, _HELD_AS[kind], copy=True)
    number = NumberValue(kind, held)
    return number if cls is None else number.convert(session, cls)


def with_number(session: Session, name: str, args: Arguments, kwargs: Keywords) -> Value | None:
    """The call of a torch function or Tensor method of a tensor and a number read from one; None if it is none."""
    if name.rstrip("_") in _SCALED and (made := _scaled(session, name, args, kwargs)) is not None:
        return made
    if len(args) != 2 or kwargs or name not in _BY_NAME:
        return None
    left, right = map(session.realize, args)
    if isinstance(left, TensorValue) and isinstance(right, NumberValue):
        return right.with_tensor(session, _BY_NAME[name], left, False)
    if isinstance(left, NumberValue) and isinstance(right, TensorValue):
        return left.with_tensor(session, _BY_NAME[name], right, True)
    return None


_SCALED: dict[str, tuple[str, tuple[str, ...]]] = {
    "add": ("alpha", ("other",)),
    "sub": ("alpha", ("other",)),
    "addcmul": ("value", ("tensor1", "tensor2")),
    "addcdiv": ("value", ("tensor1", "tensor2")),
    "lerp": ("weight", ("end",)),
}
"""Operations of tensors that take a number besides: the name of the number, and those of the further tensors."""


def _scaled(session: Session, name: str, args: Arguments, kwargs: Keywords) -> Value | None:
    """One of these where the number is not known during capture: as the operation that takes a tensor of rank 0, which
    in float32 and float64 holds what eager makes of the number. None where it is known."""
    form = name.rstrip("_")
    label, operands = _SCALED[form]
    given = dict(zip(("self", *operands, label), args)) | kwargs
    number = session.realize(given[label]) if label in given else None
    if isinstance(number, TensorValue) and label != "weight":  # of which there are tensors
        number = read(session, number)
    if not isinstance(number, NumberValue):
        return None
    tensors = [session.realize(value) for key, value in given.items() if key != label]
    dtypes = [value.fake.dtype for value in tensors if isinstance(value, TensorValue)]
    if len(dtypes) != 1 + len(operands) or set(dtypes) not in ({torch.float32}, {torch.float64}):
        raise session.unsupported(f"Tensor.{name} is given {number.describe()}")
    target, first, *rest = tensors
    assert isinstance(target, TensorValue)
    if form == "sub":
        number = number.unary(session, operator.neg)
        assert isinstance(number, NumberValue)
    scale = _converted(session, number.tensor, target.fake.dtype)
    if form == "lerp":
        return _method(session, name, target, first, scale)
    if label == "alpha":
        return _method(session, name.replace(form, "addcmul"), target, first, scale)
    return _method(session, name, target, _call(session, operator.mul, scale, first), *rest)


def choice(session: Session, number: Value, bound: Value, above: Value, below: Value) -> Value:
    """`above if number > bound else below` of a float that is read from a tensor and a constant."""
    number = session.realize(number)
    if not isinstance(number, NumberValue):  # that of a tensor whose elements are known
        return above if session.truth(session.binary(operator.gt, number, bound)) else below
    condition = _call(session, operator.gt, number.tensor, bound)
    operands = [session.realize(side) for side in (above, below)]
    of_tensors = any(isinstance(side, TensorValue) for side in operands)
    made = _call(session, torch.where, condition, *(s.tensor if isinstance(s, NumberValue) else s for s in operands))
    return made if of_tensors else NumberValue(float, made)


def tensor_of_number(session: Session, args: Arguments, kwargs: Keywords) -> Value | None:
    """torch.tensor or torch.as_tensor of a float that is read from a tensor and nothing else; None if it is none."""
    number = session.realize(args[0]) if len(args) == 1 else None
    device = session.known(kwargs.get("device", ConstantValue("cpu"))) if kwargs.keys() <= {"device"} else None
    if not isinstance(number, NumberValue) or number.cls is not float or str(device) != "cpu":
        return None
    return _converted(session, number.tensor, torch.get_default_dtype(), copy=True)


def _quotient_of_sizes(session: Session, args: Arguments, kwargs: Keywords) -> Value | None:
    """torch.div of a size that varies and a number: the tensor is a size as well where it is used as one."""
    size, number = map(session.realize, args) if len(args) == 2 else (None, None)
    mode = session.known(kwargs["rounding_mode"]) if list(kwargs) == ["rounding_mode"] else None
    if not isinstance(size, SymIntValue) or not isinstance(number, ConstantValue) or mode not in ("trunc", "floor"):
        return None
    divisor = number.object
    if type(divisor) is not int or divisor <= 0 or is_decided_by_data(size.fake) or size.fake < 0:
        return None
    quotient, graph = size.binary(session, operator.floordiv, number, False), session.graph
    made = graph.call(session, "call_function", torch.div, (size, number), kwargs)
    if isinstance(quotient, SymIntValue) and isinstance(made, TensorValue):
        graph.known.sizes[id(made.fake)] = made.fake, quotient
    return made


FUNCTIONS[torch.div] = _quotient_of_sizes


def _reads(cls: type | None) -> Callable[..., Value | None]:
    def rule(session: Session, tensor: TensorValue, args: Arguments, kwargs: Keywords) -> Value | None:
        return None if args or kwargs else read(session, tensor, cls)

    return rule


def _computes(name: str) -> Callable[..., Value | None]:
    def rule(session: Session, tensor: TensorValue, args: Arguments, kwargs: Keywords) -> Value | None:
        return with_number(session, name, [tensor, *args], kwargs)

    return rule


METHODS.update({"item": _reads(None), "__float__": _reads(float), "__int__": _reads(int)})
METHODS.update({name: _computes(name) for name in _BY_NAME})
METHODS.update({name: _computes(name) for form in _SCALED for name in (form, f"{form}_")})


def _call(session: Session, function: Callable[..., Any], *args: Value) -> TensorValue:
    made = session.graph.call(session, "call_function", function, args, {})
    assert isinstance(made, TensorValue)
    return made


def _method(session: Session, name: str, tensor: TensorValue, *args: Any) -> TensorValue:
    made = TensorMethod(tensor, name).call(session, [session.wrap_constant(arg) for arg in args], {})
    assert isinstance(made, TensorValue)
    return made


def _converted(session: Session, tensor: TensorValue, dtype: torch.dtype, copy: bool = False) -> TensorValue:
    named: dict[str, Value] = {"copy": ConstantValue(True)} if copy else {}
    made = session.graph.call(session, "call_method", "to", (tensor, ConstantValue(dtype)), named)
    assert isinstance(made, TensorValue)
    return made
