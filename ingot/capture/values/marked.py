"""Functions that capture does not look into because it was told so: see `ingot.capture.marks`."""

from __future__ import annotations

from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any

from ingot.capture import marks
from ingot.capture.guards import Kind
from ingot.capture.sources import ConstSource, Source
from ingot.capture.values import torch_functions
from ingot.capture.values.base import Arguments, Callee, Keywords, Value, map_values
from ingot.capture.values.builtins import BuiltinValue
from ingot.capture.values.constant import NONE
from ingot.capture.values.functions import FunctionValue
from ingot.capture.values.objects import ObjectValue
from ingot.capture.values.torch_functions import TorchFunction
from ingot.capture.values.wrap import wraps
from ingot.origins import is_trusted

if TYPE_CHECKING:
    from ingot.capture.session import Session


class DisabledFunction(FunctionValue):
    """A function that runs in eager: a call of it ends the graph."""

    __slots__ = ()

    def callee(self, session: Session, args: Arguments, kwargs: Keywords) -> Callee | None:
        return None

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        assert self.object is not None
        caller = session.frames[-1].function.namespace["__name__"]
        if marks.breaks_graphs(self.object) and is_trusted(caller):
            return NONE  # torch's own code breaks graphs for the sake of torch.compile
        why = marks.why_disabled(self.object)
        assert why is not None
        raise session.unsupported(*why)


class OpaqueFunction(TorchFunction):
    """A function that goes into the graph as one node."""

    __slots__ = ()

    def describe(self) -> str:
        return f"{self.object.__name__}(), which is allowed in the graph,"

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        with session.graph.opaque():
            return super().call(session, args, kwargs)


class ConstantFunction(BuiltinValue):
    """A function that is said to give the same for the same arguments in this process: called while
    capture runs."""

    __slots__ = ()

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        known = list(map(partial(_known_object, session), args))
        named = map_values(partial(_known_object, session), kwargs)
        return session.wrap_result(self.object, *known, **named)


def _nothing(*args: Any) -> None:
    """Inlined."""


def _known_object(session: Session, value: Value) -> Any:
    """The object of an argument; one that existed before the call (a module) is the entry's own."""
    value = session.realize(value)
    if isinstance(value, ObjectValue) and value.source is not None:
        session.guard(value.source, Kind.IDENTITY, value.object)
        return value.object
    return session.known(value)


@wraps(FunctionType)
def wrap_python_function(session: Session, object_: Any, source: Source) -> Value:
    inner = marks.substitute_of(object_) or marks.behind_region(object_)
    if inner is None and marks.sets_for_torch(object_):
        session.guard(source, Kind.IDENTITY, object_)
        return session.builtin(_nothing)
    if inner is not None:
        session.guard(source, Kind.IDENTITY, object_)
        return session.builtin(inner)
    if marks.why_disabled(object_):
        session.guard(source, Kind.IDENTITY, object_)
        return DisabledFunction.outside(session, object_, ConstSource(object_))
    if marks.is_allowed(object_) and not marks.is_traced_through(object_):
        session.guard(source, Kind.IDENTITY, object_)
        return OpaqueFunction(object_, source)
    if marks.is_constant(object_):
        session.guard(source, Kind.IDENTITY, object_)
        return ConstantFunction(object_)
    inner = marks.behind_lazy_disable(object_) or marks.behind_tagging(object_)
    if inner is not None:
        session.guard(source, Kind.IDENTITY, object_)
        return session.builtin(inner)
    return torch_functions.wrap_python_function(session, object_, source)


@wraps(BuiltinFunctionType)
def wrap_c_function(session: Session, object_: Any, source: Source) -> Value:
    if marks.is_allowed(object_):
        session.guard(source, Kind.IDENTITY, object_)
        return OpaqueFunction(object_, source)
    substitute = marks.substitute_of(object_)
    if substitute is not None:
        session.guard(source, Kind.IDENTITY, object_)
        return session.builtin(substitute)
    return torch_functions.wrap_c_function(session, object_, source)
