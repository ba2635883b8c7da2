"""NumPy beside torch. An array that shares its memory with a tensor is that tensor in the graph,
for as long as it is only passed along, asked for its shape, or turned back into a tensor; computing
with arrays breaks the graph and is left to NumPy, whose rules for types, rounding and warnings are
its own. Functions of known numbers are called at capture.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ingot.capture.guards import Kind
from ingot.capture.meanings import How, means
from ingot.capture.residual import Call
from ingot.capture.results import RECIPES
from ingot.capture.sources import ConstSource, DerivedSource, Source
from ingot.capture.values.base import (
    Arguments,
    Keywords,
    Leaf,
    NotConstant,
    OptionalRule,
    OutsideOrMade,
    Value,
)
from ingot.capture.values.builtins import BuiltinValue
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.number_reads import tensor_of_number
from ingot.capture.values.sequences import TupleValue
from ingot.capture.values.tensor import SymIntValue, TensorValue
from ingot.capture.values.tensor_data import tensor_of_numbers
from ingot.capture.values.wrap import WRAPPERS, wrap_as_constant, wrapper_of, wraps

if TYPE_CHECKING:
    from ingot.capture.results import Results
    from ingot.capture.session import Session

# -- arrays that are tensors -----------------------------------------------------------------------


class ArrayValue(OutsideOrMade):
    """An array that shares its memory with a tensor: made from one, or from outside (`object`)."""

    __slots__ = ("_tensor",)

    def __init__(
        self, tensor: TensorValue | None, source: Source | None = None, object: Any = None
    ) -> None:
        super().__init__(source, object)
        self._tensor = tensor

    def python_type(self) -> type:
        return np.ndarray

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

    def length(self, session: Session) -> Any:
        return self.tensor(session).length(session)

    def get_attribute(self, session: Session, name: str) -> Value:
        if name == "shape":
            return TupleValue(self.tensor(session).shape(session).items, tuple)  # type: ignore[attr-defined]
        if name in ("ndim", "itemsize"):
            return self.tensor(session).get_attribute(session, name)
        if name == "dtype":
            return session.wrap_constant(
                torch.empty(0, dtype=self.tensor(session).fake.dtype, device="cpu").numpy().dtype
            )
        if name == "__class__":
            return session.wrap_constant(np.ndarray)
        if not hasattr(np.ndarray, name):
            raise session.raised(
                AttributeError, f"'numpy.ndarray' object has no attribute '{name}'"
            )
        raise session.unsupported("numpy", f"numpy.ndarray.{name}")

    def truth(self, session: Session) -> bool:
        raise session.unsupported("data-branch", "a branch on the values of an array")

    def get_item(self, session: Session, key: Value) -> Value:
        raise session.unsupported("numpy", "an item of an array")

    def iterate(self, session: Session) -> Value:
        raise session.unsupported("numpy", "iteration over an array")

    def contains(self, session: Session, item: Value) -> bool:
        raise session.unsupported("numpy", "a membership test on an array")


def tensor_over(array: Any) -> torch.Tensor:
    """A tensor over the memory of an array. Raises TypeError for what is none or of another type
    than torch has, and ValueError for one that may not be written."""
    if type(array) is not np.ndarray:
        raise TypeError(f"{type(array).__name__} is not numpy.ndarray")
    if not array.flags.writeable:
        raise ValueError("it is not writable")
    return torch.from_numpy(array)


@wraps(np.ndarray)
def wrap_array(session: Session, object_: Any, source: Source) -> Value:
    if type(object_) is not np.ndarray:
        raise session.unsupported(
            "builtin-subclass",
            f"{source.name}, a {type(object_).__name__}: a subclass of numpy.ndarray",
        )
    session.guard(source, Kind.TYPE, np.ndarray)
    return ArrayValue(None, source, object_)


@means(torch.Tensor.numpy, how=How.METHOD)
def _numpy(
    session: Session, tensor: TensorValue, args: Arguments, kwargs: Keywords
) -> Value | None:
    """Tensor.numpy()"""
    fake = tensor.fake
    if (
        args
        or kwargs
        or fake.requires_grad
        or fake.device.type != "cpu"
        or fake.dtype not in _SHARED
    ):
        return None
    return ArrayValue(tensor)


_SHARED = frozenset({
    torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.bool,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
})  # fmt: skip


def _tensor_of_array(copies: bool) -> OptionalRule:
    """torch.from_numpy, torch.as_tensor or torch.tensor of an array and nothing else."""

    def rule(session: Session, args: Arguments, kwargs: Keywords) -> Value | None:
        if len(args) == 1 and not kwargs:
            array = session.realize(args[0])
            if isinstance(array, ArrayValue):
                name = "clone" if copies else "detach"  # a tensor of its own
                return session.call_method(name, array.tensor(session))
        return (
            tensor_of_number(session, args, kwargs)
            or tensor_of_numbers(session, args, kwargs)
            or _of_known_integers(session, args, kwargs)
        )

    return rule


def _of_known_integers(session: Session, args: Arguments, kwargs: Keywords) -> Value | None:
    """torch.tensor and the like of data with symbolic integers in it, of which torch would take 32
    bits."""
    symbolic: list[SymIntValue] = []

    def leaf(value: Any) -> Any:
        if isinstance(value, SymIntValue):
            symbolic.append(value)
        return None

    with contextlib.suppress(NotConstant):
        for value in (*args, *kwargs.values()):
            session.deep(value).argument(leaf)
    for value in symbolic:
        value.specialize(session)
    return None


means(torch.from_numpy, torch.as_tensor, how=How.OPERATION)(_tensor_of_array(copies=False))
means(torch.tensor, how=How.OPERATION)(_tensor_of_array(copies=True))


def _recipe(results: Results, value: ArrayValue) -> Call:
    return Call(torch.Tensor.numpy, (results.recipe(value.tensor(results.session)),))


RECIPES[ArrayValue] = _recipe

# -- numbers ---------------------------------------------------------------------------------------


class NumpyNumber(ConstantValue):
    """A float, integer or truth value of NumPy's. An operation with a tensor takes it as the Python
    number that it holds; a function of torch may look at its type."""

    __slots__ = ()

    def argument(self, leaf: Leaf) -> Any:
        if type(self.object) is np.int64:
            return int(self.object)
        raise NotConstant(self)

    def as_operand(self, session: Session) -> ConstantValue:
        """The Python number that an operation with a tensor takes it for."""
        if isinstance(self.object, np.bool_):
            raise session.unsupported("numpy", "an operation of a tensor and a numpy.bool")
        return ConstantValue(self.object.item())


def _content(number: Any) -> tuple[str, bytes]:
    """What tells one number of NumPy's from another."""
    return number.dtype.str, number.tobytes()


@wraps(np.floating, np.integer, np.bool_)
def wrap_number(session: Session, object_: Any, source: Source) -> Value:
    if object_.dtype.itemsize > 8:
        raise session.unsupported("numpy", f"{source.name}, a {type(object_).__name__}")
    if not isinstance(source, ConstSource):
        session.guard(source, Kind.TYPE, type(object_))
        session.guard_derived(_content, object_, source)
    return NumpyNumber(object_, source)


WRAPPERS[np.dtype] = wrap_as_constant


class NumpyFunction(BuiltinValue):
    """A function of NumPy's: called at capture where it is given known numbers only, and gives a
    number."""

    __slots__ = ()

    def describe(self) -> str:
        return f"numpy.{self.object.__name__}()"

    def get_attribute(self, session: Session, name: str) -> Value:
        raise session.unsupported("attribute", f"attribute {name!r} of {self.describe()}")

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        known = list(map(session.known, args))
        if kwargs or not (isinstance(self.object, np.ufunc) or self.object in _OF_NUMBERS):
            raise session.unsupported("compilation-call", f"{self.describe()} is called")
        with np.errstate(all="raise"):
            try:
                result = session.python(self.object, *known)
            except FloatingPointError as error:
                raise session.unsupported("numpy", f"{self.describe()} warns: {error}") from None
        if not isinstance(result, (np.floating, np.integer, np.bool_, int, float, bool)):
            raise session.unsupported("numpy", f"{self.describe()} gives a {type(result).__name__}")
        return session.wrap_constant(result)


_OF_NUMBERS = frozenset({
    np.prod, np.sum, np.mean, np.max, np.min, np.cumsum, np.round, np.ndim, np.size, np.isclose,
    np.median, np.std,
    np.var, np.argmax, np.argmin, np.all, np.any,
})  # fmt: skip
"""Functions other than ufuncs that are called for what they give, and change nothing."""


wraps(np.ufunc, type(np.prod), guards=Kind.IDENTITY)(wrapper_of(NumpyFunction))


@means(np.generic, how=How.INSTANCE)
def _make_number(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    if kwargs or not issubclass(cls, (np.floating, np.integer)):
        raise session.unsupported("construction", f"a numpy.{cls.__name__} is made")
    number = session.python(cls, *map(session.known, args))
    if type(number) is not cls:
        raise session.unsupported(
            "numpy", f"numpy.{cls.__name__}() gives a {type(number).__name__}"
        )
    return session.wrap_constant(number)
