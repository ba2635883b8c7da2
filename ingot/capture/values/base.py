"""What the interpreter holds in place of Python objects, and the protocol that all values answer.

A value that came from outside knows its source. Facts are guarded when they are used: what is
merely passed along stays a `LazyValue`, which answers no question at all, until `Session.realize`
guards its nature and gives the real value.
"""

from __future__ import annotations

import functools
import operator
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import CellType, CodeType
from typing import TYPE_CHECKING, Any

from ingot.capture.values import signatures
from ingot.capture.values.operator_methods import EQUALITIES
from ingot.capture.values.wording import described, operator_text

if TYPE_CHECKING:
    from ingot.capture.session import Session
    from ingot.capture.sources import Source
    from ingot.capture.values.functions import FunctionValue

Arguments = Sequence["Value"]
Keywords = dict[str, "Value"]
Rule = Callable[..., "Value"]
OptionalRule = Callable[..., "Value | None"]
Operator = Callable[[Any, Any], Any]
UnaryOperator = Callable[[Any], Any]
Constants = tuple[Any, ...]
Leaf = Callable[["Value"], Any]
"""What turns a tensor or a symbolic integer into a node or a fake."""
Callee = tuple["FunctionValue", Arguments, Keywords]


_WITHOUT_ATTRIBUTES = frozenset(
    {
        int,
        float,
        bool,
        complex,
        str,
        bytes,
        type(None),
        type(...),
        list,
        tuple,
        dict,
        set,
        frozenset,
        range,
        slice,
    }
)


class NotConstant(Exception):
    """A value whose Python object is not known during capture was asked for it."""


class Raised(Exception):
    """An exception of the user's program, on its way to the user's handler. `value` is an
    ExceptionValue."""

    def __init__(self, value: Value) -> None:
        super().__init__(value)
        self.value = value
        self.where = ""
        self.stack: list[Any] = []  # how the frames stood, for `session.spots`
        self.is_from_inside = False  # whether frames that have been left raised it

    def is_a(self, *classes: type) -> bool:
        """Whether it is an instance of one of these classes."""
        return issubclass(self.value.python_type(), classes)


class Value:
    """The default answers: nothing is known, and each question that cannot be answered raises
    Unsupported."""

    __slots__ = ("source",)

    # whether it is an outside object that can be changed, so that one value stands for it
    is_shared = False
    # whether its operators are asked first, beside a Python object: a tensor, a number in the graph
    decides_operators = False
    # whether the data decide of which type it is: `of_either` gives what an operator does
    has_two_types = False
    # whether it is an array or number of NumPy's, which is asked before a number in the graph
    is_numpys = False
    # whether its class may have special methods that are written in Python
    has_special_methods = False
    # whether it is a symbolic integer, which `specialize` fixes
    is_symbolic = False
    # whether it is a text that is made after the graph has run
    is_late = False
    # whether the graph can check its truth
    can_require_truth = False

    def __init__(self, source: Source | None = None) -> None:
        self.source = source

    # -- what it is --------------------------------------------------------------------------------

    def python_type(self) -> type:
        """The type that type() gives for the Python object."""
        raise NotImplementedError(type(self).__name__)

    def describe(self) -> str:
        """A few words for messages."""
        return described(self.python_type().__name__, self.source)

    def constant(self) -> Any:
        """The Python object itself, where capture knows all of it. Raises NotConstant."""
        raise NotConstant(self)

    def is_constant(self) -> bool:
        """Whether `constant` has an answer."""
        try:
            self.constant()
        except NotConstant:
            return False
        return True

    def identity(self) -> Any:
        """What `is` compares: the outside object, or the value itself when it was made during
        capture."""
        return self

    def refuse_identity(self, session: Session, other: Value) -> None:
        """Breaks the graph where nobody knows whether it is the other object."""

    def key(self, session: Session) -> Any:
        """What stands for it as a key of a dict or a member of a set."""
        if self.python_type().__hash__ is None:
            raise session.raised(TypeError, f"unhashable type: '{type_name(self.python_type())}'")
        try:
            return self.constant()
        except NotConstant:
            raise session.unsupported(
                "key", f"{self.describe()} as a key of a dict or set"
            ) from None

    def argument(self, leaf: Leaf) -> Any:
        """Its form as an argument of a graph node; `leaf` turns tensors and symbolic integers into
        nodes or fakes."""
        return self.constant()

    # -- what it is in the graph -------------------------------------------------------------------

    @property
    def in_graph(self) -> bool:
        """Whether it is a number that the program computes before the graph runs."""
        return False

    def python_object(self, session: Session) -> Any:
        """The Python object, where capture knows all that it holds; a symbolic integer is
        specialized."""
        return self.specialize(session)

    def specialize(self, session: Session) -> Any:
        """Its value in this call; that of a symbolic integer becomes a guard."""
        return self.constant()

    def require_truth(self, session: Session, expected: bool) -> bool:
        """Has the graph check that the value is true, or false if not `expected`.

        Gives False where the graph cannot check it."""
        return False

    def as_size(self, session: Session) -> Value | None:
        """This value as a size of a tensor, if it is a number that the data decide; else None."""
        return None

    def element(self, session: Session, dtype: Any) -> Value | None:
        """This value as an element of a tensor, if it is a number in the graph; else None."""
        return None

    def as_operand(self, session: Session) -> Value:
        """The Python number that stands for this value in an operation with a tensor."""
        return self

    def with_tensor(
        self, session: Session, function: Operator, tensor: Any, reflected: bool
    ) -> Value | None:
        """`function(tensor, self)`, or `function(self, tensor)` if reflected.

        NotImplemented for all but numbers in the graph."""
        return NotImplemented

    def of_either(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value:
        """`function(self, other)`, or `function(other, self)` if reflected, where it is of one of
        two types."""
        raise NotImplementedError

    def applied(
        self,
        session: Session,
        function: Callable[..., Any],
        before: Constants = (),
        after: Constants = (),
    ) -> Value | None:
        """The result of `function(*before, self, *after)`, which is pure, if this is a number that
        varies; else None."""
        return None

    # -- what Python asks of it --------------------------------------------------------------------

    def truth(self, session: Session) -> bool:
        return True

    def as_bool(self, session: Session) -> Value:
        """What bool() gives."""
        return session.wrap_constant(self.truth(session))

    def negation(self, session: Session) -> Value:
        """`not self` of a bool."""
        return session.wrap_constant(not self.constant())

    def is_bool(self, session: Session, other: Value, expected: bool) -> Value | None:
        """`self is other`, or `self is not other` if not `expected`, where that is known when the
        graph has run; else None."""
        return None

    def instance_of(self, session: Session, classes: Any) -> bool | None:
        """isinstance(), where more than its type decides; else None."""
        return None

    def convert(self, session: Session, cls: type) -> Value | None:
        """What int(), float() or complex() gives, where it is in the graph; else None."""
        return None

    def special(self, session: Session, name: str, *args: Value) -> Value | None:
        """Calls a special method of its class; None if it has none of its own."""
        return None

    def length(self, session: Session) -> int:
        raise session.raised(
            TypeError, f"object of type '{type_name(self.python_type())}' has no len()"
        )

    def get_attribute(self, session: Session, name: str) -> Value:
        cls = self.python_type()
        if name == "__class__" and class_is_type(cls):
            return session.wrap_constant(cls)
        if find_missing(cls, name):
            raise session.raised(
                AttributeError, f"'{type_name(cls)}' object has no attribute '{name}'"
            )
        method = getattr(type(self), f"method_{name}", None)
        if method is not None:
            return NativeMethod(self, name, method)
        if isinstance(getattr(getattr(cls, name), "__self__", None), type):  # a class method
            return session.builtin(getattr(cls, name))
        native = session.native_method(self, getattr(cls, name))
        if native is not None:
            return native
        slot = SLOTS.get(name)
        if slot is not None:
            return NativeMethod(self, name, slot)
        if name == "__doc__":
            return session.wrap_constant(self.python_type().__doc__)
        sentence = f"attribute {name!r} of {self.describe()}, for which Ingot has no rule"
        raise session.unsupported("attribute", sentence, of=self)

    def set_attribute(self, session: Session, name: str, value: Value) -> None:
        self._refuse_attribute(session, name)
        raise session.unsupported(
            "side-effect", f"side effect: attribute {name!r} of {self.describe()} is set"
        )

    def _refuse_attribute(self, session: Session, name: str) -> None:
        """Raises AttributeError where instances of the type have no attributes of their own."""
        cls = self.python_type()
        if cls in _WITHOUT_ATTRIBUTES:
            if hasattr(cls, name):
                raise session.raised(
                    AttributeError, f"'{type_name(cls)}' object attribute '{name}' is read-only"
                )
            raise session.raised(
                AttributeError, f"'{type_name(cls)}' object has no attribute '{name}'{NO_DICT}"
            )

    def delete_attribute(self, session: Session, name: str) -> None:
        self._refuse_attribute(session, name)
        raise session.unsupported(
            "side-effect", f"side effect: attribute {name!r} of {self.describe()} is deleted"
        )

    def get_item(self, session: Session, key: Value) -> Value:
        raise session.raised(
            TypeError, f"'{type_name(self.python_type())}' object is not subscriptable"
        )

    def set_item(self, session: Session, key: Value, value: Value) -> None:
        if not hasattr(self.python_type(), "__setitem__"):
            kind = type_name(self.python_type())
            raise session.raised(TypeError, f"'{kind}' object does not support item assignment")
        raise session.unsupported(
            "side-effect", f"side effect: an item of {self.describe()} is set"
        )

    def delete_item(self, session: Session, key: Value) -> None:
        if not hasattr(self.python_type(), "__delitem__"):
            session.python(operator.delitem, session.refused(self), session.refused(key))
        raise session.unsupported(
            "side-effect", f"side effect: an item of {self.describe()} is deleted"
        )

    def contains(self, session: Session, item: Value) -> bool:
        cls = self.python_type()
        has_name = functools.partial(hasattr, cls)
        if not any(map(has_name, ("__contains__", "__iter__", "__getitem__"))):
            raise session.raised(
                TypeError, f"argument of type '{type_name(cls)}' is not {CONTAINER}"
            )
        iterator = session.iterate(self)
        while (element := iterator.next(session)) is not None:
            if session.equal(session.realize(element), item):
                return True
        return False

    def iterate(self, session: Session) -> Value:
        """Its iterator: a value that answers `next`."""
        raise session.raised(TypeError, f"'{type_name(self.python_type())}' object is not iterable")

    def next(self, session: Session) -> Value | None:
        """The next element, None at the end."""
        raise session.raised(
            TypeError, f"'{type_name(self.python_type())}' object is not an iterator"
        )

    def callee(self, session: Session, args: Arguments, kwargs: Keywords) -> Callee | None:
        """The Python function that a call of this value comes down to, and its arguments.

        None where the call does more than that, or something else."""
        return None

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        if find_missing(self.python_type(), "__call__"):
            raise session.raised(
                TypeError, f"'{type_name(self.python_type())}' object is not callable"
            )
        sentence = f"a call of {self.describe()}, for which Ingot has no rule"
        raise session.unsupported("call", sentence, of=self)

    def unary(self, session: Session, function: UnaryOperator) -> Value:
        raise session.unsupported("operator", f"{operator_text(function)} of {self.describe()}")

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        """`function(self, other)`, or `function(other, self)` if reflected.

        None where this value does not implement the operator."""
        return None


class LazyValue(Value):
    """An outside object that was seen but not used yet: nothing is guarded."""

    __slots__ = ("object",)

    def __init__(self, object: Any, source: Source) -> None:
        self.object, self.source = object, source

    def describe(self) -> str:
        return described(type(self.object).__name__, self.source)


class ObjectHolder(Value):
    """A value that stands for one Python object, which it holds."""

    __slots__ = ("object",)

    def __init__(self, object: Any, source: Source | None = None) -> None:
        self.object, self.source = object, source

    def python_type(self) -> type:
        return type(self.object)

    def identity(self) -> Any:
        return self.object


class KnownObject(ObjectHolder):
    """A value that stands for a Python object of which capture knows all."""

    __slots__ = ()

    def constant(self) -> Any:
        return self.object


class OutsideOrMade(Value):
    """A value that stands for an outside object, or was made during capture and has none."""

    __slots__ = ("object",)

    def __init__(self, source: Source | None = None, object: Any = None) -> None:
        self.source, self.object = source, object

    def identity(self) -> Any:
        if self.source is None:
            return self
        return self.object


class IteratorValue(Value):
    """An iterator. It is its own iterator."""

    __slots__ = ()

    def iterate(self, session: Session) -> Value:
        return self


class NullValue(Value):
    """The marker that CPython keeps beside a callable without self, and in variables that are not
    bound."""

    __slots__ = ()

    def python_type(self) -> type:
        return type(None)


NULL = NullValue()


NO_DICT = ""
if sys.version_info >= (3, 13):
    NO_DICT = " and no __dict__ for setting new attributes"


CONTAINER = "iterable"
if sys.version_info >= (3, 14):
    CONTAINER = "a container or iterable"


def not_in(session: Session, item: Value, method: str) -> str:
    """The message of a method that has found no such item."""
    kind = method.partition(".")[0]
    if sys.version_info >= (3, 14):
        return f"{method}(x): x not in {kind}"
    return f"{session.text_of(item, repr)} is not in {kind}"


def type_name(cls: type) -> str:
    """What error messages call the type: those written in C are named with their module."""
    in_c = is_c_class(cls) or hasattr(cls, "n_sequence_fields")
    if in_c and cls.__module__ != "builtins":
        return f"{cls.__module__}.{cls.__qualname__}"
    return cls.__name__


_HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8  # Py_TPFLAGS_...


def is_c_class(cls: type) -> bool:
    """Whether a class is written in C: a static type, or an immutable heap type."""
    return not cls.__flags__ & _HEAP_TYPE or bool(cls.__flags__ & _IMMUTABLE_TYPE)


def full_name(cls: type) -> str:
    """The name of a class with its module, as `%T` gives it to C code."""
    if cls.__module__ in ("builtins", "__main__"):
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


def find_missing(cls: type, name: str) -> bool:
    """Whether no class along the resolution order has the name."""
    return find_owner(cls, name) is None


def find_owner(cls: type, name: str) -> type | None:
    """The first class along the resolution order that has the name."""
    for owner in cls.__mro__:
        if name in vars(owner):
            return owner
    return None


def in_order(value: Any, other: Any, reflected: bool) -> tuple[Any, Any]:
    """The operands of an operator from left to right."""
    if reflected:
        return other, value
    return value, other


def is_not_implemented(answer: Value) -> bool:
    """Whether a special method answered NotImplemented."""
    return answer.python_type() is type(NotImplemented)


def implemented(answer: Value | None) -> Value | None:
    """The answer of a special method; None if there is no method, or it gave NotImplemented."""
    if answer is None or is_not_implemented(answer):
        return None
    return answer


def alive(reference: weakref.ref[Session]) -> Session:
    """The session, which lives as long as its values are used."""
    session = reference()
    assert session is not None
    return session


def map_values(function: Callable[[Any], Any], mapping: Mapping[Any, Any]) -> dict[Any, Any]:
    """A dict of the same keys, with what a function makes of the values."""
    return dict(zip(mapping, map(function, mapping.values())))


def constants(values: Iterable[Value]) -> list[Any]:
    """The Python objects of values, where capture knows all of these. Raises NotConstant."""
    return [value.constant() for value in values]


def empty_cells(code: CodeType) -> tuple[CellType, ...]:
    """A closure for a function of this code that is not to be run."""
    return tuple(CellType() for _ in code.co_freevars)


def positions(test: Callable[[Any], Any], values: Iterable[Any]) -> list[int]:
    """The positions of the values that pass a test."""
    return [k for k, value in enumerate(values) if test(value)]


def class_is_type(cls: type) -> bool:
    """Whether `__class__` of the instances is what type() gives: no class defines another one.

    (No class gets or loses one later: an assignment to its `__class__` sets its own.)"""
    return find_owner(cls, "__class__") is object and cls not in weakref.ProxyTypes


class NativeMethod(Value):
    """A method of a built-in type, carried out by the value itself (`method_append` of ListValue
    and the like)."""

    __slots__ = ("method", "name", "owner")

    def __init__(self, owner: Value, name: str, method: Rule) -> None:
        super().__init__()
        self.owner, self.name, self.method = owner, name, method

    def python_type(self) -> type:
        return type([].append)

    def describe(self) -> str:
        return f"method {self.name!r} of {self.owner.describe()}"

    def get_attribute(self, session: Session, name: str) -> Value:
        if name == "__self__":
            return self.owner
        if name in ("__name__", "__qualname__", "__doc__"):
            return session.wrap_constant(
                getattr(getattr(self.owner.python_type(), self.name), name)
            )
        return super().get_attribute(session, name)

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        if function not in EQUALITIES:
            return None
        same = (
            isinstance(other, NativeMethod)
            and other.name == self.name
            and session.same(self.owner, other.owner)
        )
        return session.wrap_constant(same == (function is operator.eq))

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        cls = self.owner.python_type()
        raw = signatures.method_of(cls, self.name)
        known = raw is not None and cls in signatures.EMPTY
        if known and signatures.refuses(raw, 1 + len(args), tuple(kwargs)):
            nothing = dict.fromkeys(kwargs)
            session.python(raw, signatures.model_of(cls), *[None] * len(args), **nothing)
        try:
            return self.method(
                self.owner, session, *map(session.realize, args), **session.realize_all(kwargs)
            )
        except NotConstant as unknown:
            raise session.unsupported(
                "call", f"{self.describe()} on {unknown.args[0].describe()}"
            ) from None
        except TypeError as error:
            model = None
            if known:
                model = functools.partial(raw, signatures.model_of(cls))
            raise wrong_arguments(session, self, error, model, args, kwargs) from None


PASSES_ON: set[CodeType] = set()
"""The code of wrappers of rules that only pass their arguments on: a TypeError of the rule's
signature comes by way of them."""


def wrong_arguments(
    session: Session, callee: Value, error: TypeError, model: Any, args: Arguments, kwargs: Keywords
) -> Exception:
    """The exception to raise for a TypeError that a call of a rule raised.

    A TypeError of the rule's signature is the program's mistake. Then `model`, which has no
    effects, is called for real, to raise what Python raises."""
    traceback = error.__traceback__
    inside = None
    if traceback is not None:
        inside = traceback.tb_next
    while inside is not None and inside.tb_frame.f_code in PASSES_ON:
        inside = inside.tb_next
    if inside is not None:
        return error
    if model is not None:
        session.python(model, *map(session.stand_in, args), **map_values(session.stand_in, kwargs))
    return session.unsupported(
        "wrong-arguments", f"{callee.describe()} is called with wrong arguments"
    )


SLOTS: dict[str, Rule] = {}
"""Special methods of built-in types by name, as any value carries them out: slot(value, session,
*args)."""
