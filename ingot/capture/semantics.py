"""What Python's operators and protocols mean on values: calls, truth, identity, equality, iteration, indexing,
arithmetic."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ingot.capture.guards import Kind
from ingot.capture.sources import ConstSource
from ingot.capture.values.base import NULL, Arguments, Keywords, NotConstant, Raised, Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.containers import DictValue, ListValue, SequenceValue, SetValue, TupleValue
from ingot.capture.values.mappings import DictObject
from ingot.capture.values.objects import BINARY_METHODS, INPLACE_METHODS, ExceptionValue, IdentityKey

if TYPE_CHECKING:
    from ingot.capture.session import Session

_PLAIN_OF_INPLACE = {inplace: plain for inplace, (_, plain) in INPLACE_METHODS.items()}
_SYMBOLS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "pow": "** or pow()",
    "matmul": "@",
}


class Semantics:
    """Mixed into Session."""

    # -- conversions ---------------------------------------------------------------------------------------------------

    def realize_all(self: Session, values: Keywords) -> Keywords:  # type: ignore[misc]
        return {name: self.realize(value) for name, value in values.items()}

    def tuple_of_values(self, values: Arguments) -> Value:
        return TupleValue(values, tuple)

    def dict_of_values(self, values: Keywords) -> Value:
        return DictValue(values.items(), dict)

    def unpacked(self: Session, value: Value) -> list[Value]:  # type: ignore[misc]
        """The elements of an iterable, as *args or an unpacking see them."""
        return self.list_of(value).items

    def list_of(self: Session, value: Value) -> ListValue:  # type: ignore[misc]
        """A new list of the elements of an iterable."""
        value = self.realize(value)
        if isinstance(value, SequenceValue):
            return ListValue(value.items, list)
        iterator, made = self.iterate(value), ListValue([], list)
        while (element := iterator.next(self)) is not None:
            made.items.append(element)
            self.count_step()
        return made

    def set_of(self: Session, value: Value, cls: type = set) -> SetValue:  # type: ignore[misc]
        """A new set of the elements of an iterable."""
        value = self.realize(value)
        entries: dict[Any, Value] = {}
        for item in self.list_of(value).items:
            item = self.realize(item)
            entries.setdefault(item.key(self), item)
        made = SetValue(entries.items(), cls)
        if isinstance(value, SetValue):
            made.hashed = cls(value.hashed)
        elif isinstance(value, DictValue):
            made.hashed = cls(value.entries)
        return made

    def entries_of(self: Session, value: Value) -> dict[Any, Value]:  # type: ignore[misc]
        """The entries of a mapping, or of an iterable of pairs."""
        value = self.realize(value)
        if isinstance(value, DictValue):
            return value.entries
        if isinstance(value, DictObject) and not value.overrides(self, "__iter__", "keys", "__getitem__"):
            return value.items(self).entries
        if hasattr(value.python_type(), "keys"):
            keys = self.list_of(self.call(value.get_attribute(self, "keys"), [], {})).items
            return {self.realize(key).key(self): value.get_item(self, self.realize(key)) for key in keys}
        pairs = [self.unpacked(pair) for pair in self.list_of(value).items]
        return {self.realize(key).key(self): item for key, item in pairs}

    def identity_key(self, value: Value) -> IdentityKey:
        """The key of a dict for a value that hashes by identity."""
        session: Any = self
        if value.source is not None:
            session.guard(value.source, Kind.IDENTITY, value.identity())
        return IdentityKey(value.identity(), value)

    def known(self: Session, value: Value) -> Any:  # type: ignore[misc]
        """The Python object of a value that must be known now; symbolic integers are specialized."""
        value = self.realize(value)
        try:
            if isinstance(value, SequenceValue):
                return value._build([self.known(item) for item in value.items])
            if isinstance(value, DictValue):
                return {key: self.known(item) for key, item in value.entries.items()}
            if isinstance(value, SetValue):
                return value.cls([self.known(item) for item in value.entries.values()])
            specialize = getattr(value, "specialize", None)
            return specialize(self) if specialize else value.constant()
        except NotConstant as unknown:
            raise self.unsupported(
                f"the value of {unknown.args[0].describe()} is needed, which is not known during capture"
            ) from None

    def deep(self: Session, value: Value) -> Value:  # type: ignore[misc]
        """The value with all that it holds realized, to be given to an operation of the graph."""
        value = self.realize(value)
        if isinstance(value, SequenceValue):
            value.items[:] = map(self.deep, value.items)
        elif isinstance(value, DictValue):
            value.entries.update({key: self.deep(item) for key, item in value.entries.items()})
        return value

    def index(self: Session, key: Value) -> Any:  # type: ignore[misc]
        """A position in a list or tuple."""
        return self.known(key)

    def text_of(self: Session, value: Value, make: Callable[[Any], str]) -> str:  # type: ignore[misc]
        """str(), repr() or format() of a value."""
        value = self.realize(value)
        if isinstance(value, ExceptionValue) and make is not repr and len(value.args) <= 1:
            return self.text_of(value.args[0], make) if value.args else ""
        special = getattr(value, "special", None)
        if special is not None and make in (str, repr, format):
            names = ("__repr__",) if make is repr else ("__str__", "__repr__")
            for name in names:
                made = special(self, name)
                if made is not None:
                    return made.constant()
        return self.python(make, self.textual(value))

    def textual(self: Session, value: Value) -> Any:  # type: ignore[misc]
        """A Python object that prints as the value would."""
        if isinstance(value, (ListValue, TupleValue)):
            return value._build([self.textual(self.realize(item)) for item in value.items])
        if isinstance(value, DictValue) and value.cls is dict:
            return {k: self.textual(self.realize(v)) for k, v in value.entries.items()}
        return self.known(value)

    # -- protocols -----------------------------------------------------------------------------------------------------

    def call(self: Session, callable_: Value, args: Arguments, kwargs: Keywords) -> Value:  # type: ignore[misc]
        return self.realize(callable_).call(self, args, kwargs)

    def truth(self: Session, value: Value) -> bool:  # type: ignore[misc]
        return self.realize(value).truth(self)

    def iterate(self: Session, value: Value) -> Value:  # type: ignore[misc]
        return self.realize(value).iterate(self)

    def get_item(self: Session, owner: Value, key: Value) -> Value:  # type: ignore[misc]
        return self.realize(owner).get_item(self, self.realize(key))

    def contains(self: Session, container: Value, item: Value) -> bool:  # type: ignore[misc]
        container, item = self.realize(container), self.realize(item)
        try:
            return container.contains(self, item)
        except NotConstant:
            return Value.contains(container, self, item)

    def same(self: Session, a: Value, b: Value) -> bool:  # type: ignore[misc]
        """`a is b`. Between two outside objects the answer is guarded; the nature of either is guarded already."""
        a, b = self.realize(a), self.realize(b)
        answer = a.identity() is b.identity()
        held = (ConstantValue, type(NULL))
        if (
            a.source is not None
            and b.source is not None
            and a.source is not b.source
            and not isinstance(a, held)
            and not isinstance(b, held)
        ):
            if a.python_type() is b.python_type():
                if not (isinstance(a.source, ConstSource) and isinstance(b.source, ConstSource)):
                    self.guard(a.source, Kind.SAME if answer else Kind.DISTINCT, b.source)
        return answer

    def equal(self: Session, a: Value, b: Value) -> bool:  # type: ignore[misc]
        """`a is b or a == b`, as containers compare their elements."""
        if a is b:
            return True
        return self.truth(self.binary(operator.eq, a, b))

    def binary(self: Session, function: Callable[[Any, Any], Any], left: Value, right: Value) -> Value:  # type: ignore[misc]
        """The result of a binary operator or comparison, by the left operand's rule, then by the right one's."""
        left, right = self.realize(left), self.realize(right)
        first = right.python_type() is not left.python_type() and self.comes_first(right, left)
        if first and (made := right.binary(self, self._plain(function), left, True)) is not None:
            return made
        made = left.binary(self, function, right, False)
        if made is None and function in _PLAIN_OF_INPLACE:
            function = _PLAIN_OF_INPLACE[function]
            made = left.binary(self, function, right, False)
        if made is None and not first:
            made = right.binary(self, function, left, True)
        if made is not None:
            return made
        if function in (operator.eq, operator.ne):
            return ConstantValue(self.same(left, right) == (function is operator.eq))
        return self._no_operator(function, left, right)

    @staticmethod
    def _plain(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        return _PLAIN_OF_INPLACE.get(function, function)

    def comes_first(self, right: Value, left: Value) -> bool:
        """Whether the right operand's rule is asked first: a tensor beside a Python object, or an instance of a
        subclass."""
        if getattr(right, "decides_operators", False):
            return not getattr(left, "decides_operators", False)
        return issubclass(right.python_type(), left.python_type()) and hasattr(right, "special")

    def _no_operator(self: Session, function: Callable[[Any, Any], Any], left: Value, right: Value) -> Value:  # type: ignore[misc]
        name = function.__name__.rstrip("_")
        plain = (ConstantValue, ListValue, TupleValue, DictValue, SetValue)
        if (
            isinstance(left, plain)
            and isinstance(right, plain)
            or function in BINARY_METHODS
            and hasattr(left, "special")
        ):
            symbol = _SYMBOLS.get(name, name)
            kinds = f"'{left.python_type().__name__}' and '{right.python_type().__name__}'"
            raise self.raised(TypeError, f"unsupported operand type(s) for {symbol}: {kinds}")
        raise self.unsupported(f"operator.{name} of {left.describe()} and {right.describe()}")

    def until_stop(self, step: Callable[[], Value | None]) -> Value | None:
        """What a `__next__` gives; None where it raises StopIteration."""
        try:
            return step()
        except Raised as raised:
            if issubclass(raised.value.python_type(), StopIteration):
                return None
            raise
