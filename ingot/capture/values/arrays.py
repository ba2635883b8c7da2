"""NumPy's arrays and numbers in the graph.

An array is the tensor on its memory (`torch.from_numpy`), and a number of NumPy's that is computed
is a tensor of rank 0. What is asked of them is said where it is captured: `array_ufuncs`,
`array_methods`, `array_functions` and `array_indexing`.
"""

from __future__ import annotations

import operator
from itertools import repeat
from types import GetSetDescriptorType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ingot.capture.guards import Kind
from ingot.capture.meanings import How, means, stated
from ingot.capture.residual import Call, Constant
from ingot.capture.results import RECIPES
from ingot.capture.sources import DerivedSource, Source
from ingot.capture.values.base import (
    Arguments,
    Keywords,
    Operator,
    OutsideOrMade,
    UnaryOperator,
    Value,
    in_order,
)
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.known_calls import called_for_real
from ingot.capture.values.number_reads import read
from ingot.capture.values.numbers import NumberValue, converted
from ingot.capture.values.operator_methods import in_place_forms
from ingot.capture.values.relations import RELATIONS
from ingot.capture.values.sequences import TupleValue
from ingot.capture.values.tensor import SymIntValue, TensorValue
from ingot.capture.values.wording import described
from ingot.capture.values.wrap import wraps
from ingot.errors import EagerRaises
from ingot.graph.arrays import private
from ingot.graph.arrays.dtypes import NUMPY_DTYPES, TORCH_DTYPES
from ingot.wrapped import is_wrapped

if TYPE_CHECKING:
    from ingot.capture.session import Session

_BINARY: dict[Any, np.ufunc] = {
    operator.add: np.add,
    operator.sub: np.subtract,
    operator.mul: np.multiply,
    operator.truediv: np.divide,
    operator.floordiv: np.floor_divide,
    operator.mod: np.remainder,
    operator.pow: np.power,
    operator.matmul: np.matmul,
    operator.and_: np.bitwise_and,
    operator.or_: np.bitwise_or,
    operator.xor: np.bitwise_xor,
    operator.lshift: np.left_shift,
    operator.rshift: np.right_shift,
    operator.eq: np.equal,
    operator.ne: np.not_equal,
    operator.lt: np.less,
    operator.le: np.less_equal,
    operator.gt: np.greater,
    operator.ge: np.greater_equal,
}
_PLAIN = in_place_forms(
    set(_BINARY) - {operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge}
)
_OF_SIZES = frozenset({*RELATIONS, operator.add, operator.sub, operator.mul})
_UNARY: dict[Any, np.ufunc] = {
    operator.neg: np.negative,
    operator.pos: np.positive,
    operator.invert: np.invert,
    operator.abs: np.absolute,
    abs: np.absolute,
}


CPU = ConstantValue("cpu")
"""Where arrays are, whatever the default device is."""


def torch_dtype(session: Session, dtype: Any) -> torch.dtype:
    """The type of the elements of a tensor for one of NumPy's."""
    if dtype not in TORCH_DTYPES:
        raise session.unsupported("numpy", f"arrays of {dtype!r}")
    return TORCH_DTYPES[dtype]


def filled(session: Session, number: Value, dtype: torch.dtype) -> TensorValue:
    """A tensor of rank 0 that holds a number."""
    rank_0 = TupleValue([], tuple)
    tensor = session.call_function(
        torch.full, rank_0, number, dtype=ConstantValue(dtype), device=CPU
    )
    assert isinstance(tensor, TensorValue)
    return tensor


def as_dtype(session: Session, tensor: TensorValue, dtype: torch.dtype) -> TensorValue:
    """A tensor in this type of elements: itself where it has it."""
    if tensor.fake.dtype is dtype:
        return tensor
    if tensor.fake.is_complex() and not dtype.is_complex and dtype is not torch.bool:
        tensor = session.call_function(getattr, tensor, ConstantValue("real"))  # type: ignore[assignment]
    return converted(session, tensor, dtype)


def refused_by_numpy(session: Session, error: Exception) -> EagerRaises:
    """What stops the capture where NumPy itself has raised an error for what it was given."""
    return EagerRaises(f"NumPy raises {type(error).__name__}: {error}", session.where)


class ArrayValue(OutsideOrMade):
    """An array on the memory of a tensor, made during capture or from outside (`object`)."""

    __slots__ = ("_tensor",)
    decides_operators = True
    can_require_truth = True
    is_numpys = True

    def __init__(
        self, tensor: TensorValue | None, source: Source | None = None, object: Any = None
    ) -> None:
        super().__init__(source, object)
        self._tensor = tensor

    def python_type(self) -> type:
        return np.ndarray

    def describe(self) -> str:
        if self.source is not None:
            return f"the array {self.source.name}"
        return "an array"

    def tensor(self, session: Session) -> TensorValue:
        """The tensor that `torch.from_numpy` would make of it."""
        if self._tensor is None:
            assert self.source is not None
            try:
                tensor = tensor_over(self.object)
            except (TypeError, ValueError) as error:
                raise session.unsupported(
                    "numpy", f"the array {self.source.name}: {error}"
                ) from None
            self._tensor = session.graph.inputs.tensor(
                session, tensor, DerivedSource(self.source, tensor_over)
            )
        return self._tensor

    def dtype(self, session: Session) -> Any:
        return NUMPY_DTYPES[self.tensor(session).fake.dtype]

    # -- attributes --------------------------------------------------------------------------------

    def length(self, session: Session) -> Any:
        if self.tensor(session).fake.dim() == 0:
            raise session.raised(TypeError, "len() of unsized object")
        return self.tensor(session).length(session)

    def sizes(self, session: Session) -> list[Value]:
        return self.tensor(session).shape(session).items  # type: ignore[attr-defined,no-any-return]

    def get_attribute(self, session: Session, name: str) -> Value:
        cls = self.python_type()
        if name == "__class__":
            return session.wrap_constant(cls)
        if not hasattr(cls, name):
            raise session.raised(
                AttributeError, f"'{cls.__qualname__}' object has no attribute '{name}'"
            )
        getter = ATTRIBUTES.get(name)
        if getter is not None:
            result: Value = getter(session, self)
            return result
        meaning = stated(getattr(np.ndarray, name, None))
        if meaning is not None and meaning.how is How.METHOD:
            if isinstance(getattr(np.ndarray, name), GetSetDescriptorType):
                return meaning.rule(session, self, [], {})  # type: ignore[no-any-return]
            return ArrayMethod(self, name)
        raise session.unsupported("numpy", f"{cls.__name__}.{name}")

    def set_attribute(self, session: Session, name: str, value: Value) -> None:
        if name in ("real", "imag") and self.python_type() is np.ndarray:
            part = self.get_attribute(session, name)
            return part.set_item(session, ConstantValue(...), session.realize(value))
        if name == "shape" and self.source is None and self.python_type() is np.ndarray:
            self._tensor = session.call_method(  # type: ignore[assignment]
                "view", self.tensor(session), session.deep(session.realize(value))
            )
            return None
        raise session.unsupported("side-effect", f"side effect: numpy.ndarray.{name} is set")

    # -- numbers -----------------------------------------------------------------------------------

    def number(self, session: Session, cls: type | None = None) -> Value:
        """The Python number that is its one element."""
        tensor = self.tensor(session)
        sizes = tuple(tensor.fake.shape)
        if torch.SymInt in map(type, sizes) or set(sizes) - {1}:
            raise session.unsupported("numpy", f"the number in {self.describe()} of shape {sizes}")
        return read(session, tensor, cls)

    def known_elements(self, session: Session) -> Any:
        """An array of its elements, where they are known; else None."""
        if self._tensor is None:
            return None
        known = session.graph.known.of(self._tensor.fake)
        if known is None:
            return None
        return known.clone().numpy()

    def specialize(self, session: Session) -> Any:
        known = self.known_elements(session)
        if known is None:
            return super().specialize(session)
        return known

    def truth(self, session: Session) -> bool:
        known = self.known_elements(session)
        if known is not None:
            return session.python(bool, known)  # type: ignore[no-any-return]
        raise session.unsupported("data-branch", "a branch on the values of an array")

    def as_bool(self, session: Session) -> Value:
        return self.number(session, bool)

    def require_truth(self, session: Session, expected: bool) -> bool:
        if self.known_elements(session) is not None:
            return self.truth(session) is expected
        return self.tensor(session).require_truth(session, expected)

    def convert(self, session: Session, cls: type) -> Value:
        if cls is not bool and self.tensor(session).fake.dim():
            raise session.unsupported("numpy", f"{cls.__name__}() of an array that is no number")
        return self.number(session, cls)

    # -- elements ----------------------------------------------------------------------------------

    def by_method(self, session: Session, name: str, *args: Value) -> Value:
        meaning = stated(vars(np.ndarray)[name])
        assert meaning is not None
        result: Value = meaning.rule(session, self, list(args), {})
        return result

    def get_item(self, session: Session, key: Value) -> Value:
        return self.by_method(session, "__getitem__", key)

    def set_item(self, session: Session, key: Value, value: Value) -> None:
        self.by_method(session, "__setitem__", key, value)

    def iterate(self, session: Session) -> Value:
        if self.tensor(session).fake.dim() == 0:
            raise session.raised(TypeError, "iteration over a 0-d array")
        length = self.tensor(session).fake.shape[0]
        if isinstance(length, torch.SymInt):
            length = self.sizes(session)[0].specialize(session)
        items = []
        for i in range(length):
            items.append(self.get_item(session, ConstantValue(i)))
        return session.iterate(TupleValue(items, tuple))

    def contains(self, session: Session, item: Value) -> bool:
        raise session.unsupported("numpy", "a membership test on an array")

    # -- operators ---------------------------------------------------------------------------------

    def unary(self, session: Session, function: UnaryOperator) -> Value:
        if function not in _UNARY:
            raise session.unsupported("numpy", f"{function.__name__}() of an array")
        return session.call_builtin(_UNARY[function], self)

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        if isinstance(other, TensorValue) and not reflected:
            return None  # an array leaves the operator to the tensor
        in_place = function in _PLAIN
        ufunc = _BINARY.get(_PLAIN.get(function, function))
        if ufunc is None or in_place and (reflected or self.python_type() is not np.ndarray):
            return None
        if isinstance(other, ConstantValue) and other.object is None:
            if self.python_type() is not np.ndarray and function in (operator.eq, operator.ne):
                return session.wrap_constant(np.bool_(function is operator.ne))
            if function in (operator.eq, operator.ne):
                make = torch.ones_like if function is operator.ne else torch.zeros_like
                dtype = ConstantValue(torch.bool)
                return ArrayValue(session.call_function(make, self.tensor(session), dtype=dtype))  # type: ignore[arg-type]
            raise session.unsupported("numpy", "an operator of an array and None")
        pair = in_order(self, other, reflected)
        if not in_place:
            return session.call_builtin(ufunc, *pair)
        session.call(session.builtin(ufunc), pair, {"out": TupleValue([self], tuple)})
        return self


class ScalarValue(ArrayValue):
    """A number of NumPy's that the graph computes: `np.sum(a)`, `a[0]`, an argument that varies.

    `held` is the Python number that it holds, where that is one from outside or a size; its tensor
    is made when it is first used then."""

    __slots__ = ("_dtype", "held")

    def __init__(
        self,
        tensor: TensorValue | None,
        held: Value | None = None,
        dtype: Any = None,
        source: Source | None = None,
        object: Any = None,
    ) -> None:
        super().__init__(tensor, source, object)
        self.held, self._dtype = held, dtype
        if tensor is not None:
            self._dtype = NUMPY_DTYPES[tensor.fake.dtype]

    def python_type(self) -> type:
        cls: type = self._dtype.type
        return cls

    def dtype(self, session: Session) -> Any:
        return self._dtype

    def describe(self) -> str:
        if self.source is not None:
            return f"the varying {self.python_type().__name__} {self.source.name}"
        return f"a {self.python_type().__name__} that is computed"

    def tensor(self, session: Session) -> TensorValue:
        if self._tensor is None:
            if isinstance(self.held, NumberValue):
                tensor = self.held.tensor
            else:
                assert self.held is not None
                tensor = filled(session, self.held, torch.int64)
            self._tensor = as_dtype(session, tensor, TORCH_DTYPES[self._dtype])
        return self._tensor

    def length(self, session: Session) -> Any:
        name = self.python_type().__qualname__
        raise session.raised(TypeError, f"object of type 'numpy.{name}' has no len()")

    def number(self, session: Session, cls: type | None = None) -> Value:
        held = self.held
        if held is None:
            return super().number(session, cls)
        if cls is None or held.python_type() is cls:
            return held
        return held.convert(session, cls) or super().number(session, cls)

    def truth(self, session: Session) -> bool:
        if self.held is None:
            return super().truth(session)
        return self.held.truth(session)

    def as_size(self, session: Session) -> Value | None:
        if self._dtype.kind not in "iu":
            return None
        number = self.number(session)
        if isinstance(number, (SymIntValue, ConstantValue)):
            return number
        return number.as_size(session)

    def specialize(self, session: Session) -> Any:
        if isinstance(self.held, SymIntValue):
            return self.python_type()(self.held.specialize(session))
        return super().specialize(session)[()]

    def with_tensor(
        self, session: Session, function: Operator, tensor: Any, reflected: bool
    ) -> Value | None:
        number = self.number(session)
        if isinstance(number, NumberValue):
            return number.with_tensor(session, function, tensor, reflected)
        return tensor.binary(session, function, number, reflected)  # type: ignore[no-any-return]

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        if isinstance(other, TensorValue):
            return self.with_tensor(session, function, other, not reflected)
        result = None
        if function in _OF_SIZES and isinstance(self.held, SymIntValue):
            result = self._of_sizes(session, function, other, reflected)
        return result or super().binary(session, function, other, reflected)

    def _of_sizes(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        """An operator of sizes and integers, which gives a size, or a truth that guards fix."""
        assert self.held is not None
        number: Value | None = other
        if isinstance(other, ScalarValue):
            number = other.held
        elif isinstance(other, ConstantValue) and isinstance(other.object, np.int64):
            number = ConstantValue(int(other.object))
        is_integer = isinstance(number, ConstantValue) and type(number.object) is int
        if self._dtype != np.int64 or not is_integer and not isinstance(number, SymIntValue):
            return None
        assert number is not None
        result = session.binary(function, *in_order(self.held, number, reflected))
        if isinstance(result, SymIntValue):
            return ScalarValue(None, result, self._dtype)
        kind: Any = np.bool_ if function in RELATIONS else np.int64
        return session.wrap_constant(kind(session.known(result)))

    def iterate(self, session: Session) -> Value:
        name = self.python_type().__qualname__
        raise session.raised(TypeError, f"'numpy.{name}' object is not iterable")

    def set_item(self, session: Session, key: Value, value: Value) -> None:
        name = self.python_type().__qualname__
        raise session.raised(TypeError, f"'numpy.{name}' object does not support item assignment")


def element_of(session: Session, tensor: TensorValue) -> Value:
    """An element of an array, in a tensor of its own: a constant where it is known."""
    scalar = ScalarValue(tensor)
    known = scalar.known_elements(session)
    if known is None:
        return scalar
    return session.wrap_constant(known[()])


def result_of(session: Session, tensor: TensorValue) -> ArrayValue:
    """What a function of NumPy's gives that makes numbers of arrays of rank 0."""
    if tensor.fake.dim() == 0:
        return ScalarValue(tensor)
    return ArrayValue(tensor)


_WRITERS = frozenset({"fill", "put", "sort", "partition", "resize", "setflags", "setfield"})


class ArrayMethod(Value):
    """A method of an array or number, bound to it."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: ArrayValue, name: str) -> None:
        super().__init__()
        self.owner, self.name = owner, name

    def python_type(self) -> type:
        return type([].append)

    def describe(self) -> str:
        return f"numpy.ndarray.{self.name}"

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        if self.name not in _WRITERS and self.owner.known_elements(session) is not None:
            function = getattr(np.ndarray, self.name)
            known = called_for_real(session, function, [self.owner, *args], kwargs)
            if known is not None:
                return known
        meaning = stated(getattr(np.ndarray, self.name))
        assert meaning is not None
        result: Value = meaning.rule(session, self.owner, args, kwargs)
        return result


# -- attributes ------------------------------------------------------------------------------------


def _size(session: Session, array: ArrayValue) -> Value:
    size: Value = ConstantValue(1)
    for factor in array.sizes(session):
        size = session.binary(operator.mul, size, factor)
    return size


def _transposed(session: Session, array: ArrayValue) -> Value:
    if isinstance(array, ScalarValue):
        return array
    return array.by_method(session, "transpose")


def _matrix_transposed(session: Session, array: ArrayValue) -> Value:
    tensor = array.tensor(session)
    if tensor.fake.dim() < 2:
        message = "matrix transpose with ndim < 2 is undefined"
        raise session.raised(ValueError, message)
    return ArrayValue(session.call_method("transpose", tensor, *map(ConstantValue, (-2, -1))))  # type: ignore[arg-type]


def _strides(session: Session, array: ArrayValue) -> Value:
    fake = array.tensor(session).fake
    strides = []
    for stride in fake.stride():
        if isinstance(stride, torch.SymInt):
            raise session.unsupported("numpy", "the strides of an array of a size that varies")
        strides.append(ConstantValue(stride * fake.element_size()))
    return TupleValue(strides, tuple)


def _part(name: str) -> Any:
    def getter(session: Session, array: ArrayValue) -> Value:
        tensor = array.tensor(session)
        if tensor.fake.is_complex():
            part = session.call_function(getattr, tensor, ConstantValue(name))
            return type(array)(part)  # type: ignore[arg-type]
        if name == "real":
            return array
        zeros = session.call_function(torch.zeros_like, tensor)
        return type(array)(zeros)  # type: ignore[arg-type]

    return getter


class FlagsValue(Value):
    """What `flags` of an array gives."""

    __slots__ = ("array",)

    def __init__(self, array: ArrayValue) -> None:
        super().__init__()
        self.array = array

    def python_type(self) -> type:
        cls: type = private.flags_type
        return cls

    def get_attribute(self, session: Session, name: str) -> Value:
        fake = self.array.tensor(session).fake
        in_rows, in_columns = fake.is_contiguous(), _is_in_columns(fake)
        answers = {
            "c_contiguous": in_rows,
            "contiguous": in_rows,
            "f_contiguous": in_columns,
            "fortran": in_columns,
            "fnc": in_columns and not in_rows,
            "forc": in_columns or in_rows,
            "writeable": True,
            "aligned": True,
        }
        if name in answers:
            return ConstantValue(answers[name])
        raise session.unsupported("numpy", f"flags.{name} of an array")

    def get_item(self, session: Session, key: Value) -> Value:
        return self.get_attribute(session, str(session.known(key)).lower())


def _is_in_columns(fake: torch.Tensor) -> bool:
    """Whether an array is contiguous in Fortran's order."""
    width = 1
    for size, stride in zip(fake.shape, fake.stride()):
        if size != 1 and stride != width:
            return False
        width *= size
    return True


ATTRIBUTES: dict[str, Any] = {
    "flags": lambda session, array: FlagsValue(array),
    "shape": lambda session, array: TupleValue(array.sizes(session), tuple),
    "ndim": lambda session, array: array.tensor(session).get_attribute(session, "ndim"),
    "itemsize": lambda session, array: ConstantValue(array.dtype(session).itemsize),
    "dtype": lambda session, array: session.wrap_constant(array.dtype(session)),
    "size": _size,
    "nbytes": lambda session, array: session.binary(
        operator.mul, _size(session, array), ConstantValue(array.dtype(session).itemsize)
    ),
    "T": _transposed,
    "mT": _matrix_transposed,
    "real": _part("real"),
    "imag": _part("imag"),
    "strides": _strides,
    "device": lambda session, array: ConstantValue("cpu"),
}

# -- from outside ----------------------------------------------------------------------------------


def tensor_over(array: Any) -> torch.Tensor:
    """A tensor over the memory of an array. Raises TypeError for what is none or of another type
    than torch has, and ValueError for one that may not be written."""
    if type(array) is not np.ndarray:
        raise TypeError(f"{type(array).__name__} is not numpy.ndarray")
    if not array.flags.writeable:
        raise ValueError("it is not writable")
    return torch.from_numpy(array)


def why_foreign(array: Any) -> str:
    """Why an array is no tensor; "" where it is one. Of those, `tensor_over` raises an error."""
    if array.dtype not in TORCH_DTYPES:
        return f"of {array.dtype!r}"
    if not array.flags.writeable:
        return "that is not writable"
    if array.size and min(array.strides, default=0) < 0:
        return "with negative strides"
    if any(map(operator.mod, array.strides, repeat(array.itemsize))):
        return "whose strides are no multiples of its elements"
    return ""


@wraps(np.ndarray)
def wrap_array(session: Session, object_: Any, source: Source) -> Value:
    if type(object_) is not np.ndarray:
        raise session.unsupported(
            "builtin-subclass",
            f"{described(type(object_).__name__, source)}: a subclass of numpy.ndarray",
        )
    session.guard(source, Kind.TYPE, np.ndarray)
    why = why_foreign(object_)
    if why:
        session.guard_derived(why_foreign, object_, source)
        raise session.unsupported("numpy", f"{source.name}, an array {why}")
    return ArrayValue(None, source, object_)


# -- between tensors and arrays --------------------------------------------------------------------


def array_over(session: Session, tensor: TensorValue) -> ArrayValue | None:
    """The array that shares a tensor's memory; None where torch has none."""
    fake = tensor.fake
    if fake.requires_grad or fake.device.type != "cpu" or fake.dtype not in NUMPY_DTYPES:
        return None
    if fake.is_conj() or fake.is_neg() or is_wrapped(fake):
        return None
    return ArrayValue(tensor)


@means(torch.Tensor.numpy, how=How.METHOD)
def _numpy(
    session: Session, tensor: TensorValue, args: Arguments, kwargs: Keywords
) -> Value | None:
    """Tensor.numpy()"""
    if args or kwargs.keys() - {"force"}:
        return None
    if kwargs and session.known(kwargs["force"]):
        for name, args in (("detach", ()), ("cpu", ()), ("resolve_conj", ()), ("resolve_neg", ())):
            tensor = session.call_method(name, tensor, *args)  # type: ignore[assignment]
    if tensor.fake.requires_grad:
        message = "Can't call numpy() on Tensor that requires grad."
        raise EagerRaises(message, session.where)
    return array_over(session, tensor)


@means(torch.Tensor.__array__, how=How.METHOD)
def _array(
    session: Session, tensor: TensorValue, args: Arguments, kwargs: Keywords
) -> Value | None:
    if args or kwargs:
        return None
    return _numpy(session, tensor, args, kwargs)


def _recipe(results: Any, value: ArrayValue) -> Call:
    return Call(torch.Tensor.numpy, (results.recipe(value.tensor(results.session)),))


def _scalar_recipe(results: Any, value: ScalarValue) -> Call:
    return Call(operator.getitem, (_recipe(results, value), Constant(())))


RECIPES[ArrayValue] = _recipe
RECIPES[ScalarValue] = _scalar_recipe
