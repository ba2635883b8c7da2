"""Functions with a cache by functools.lru_cache.

A cached result is looked up in the real cache at each call, so that it is the same object as in
eager, and the function itself runs as often as in eager."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable, Hashable
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

from ingot.capture.guards import Kind
from ingot.capture.sources import Source
from ingot.capture.values.base import (
    Arguments,
    Keywords,
    KnownObject,
    LazyValue,
    Value,
    map_values,
)
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.containers import DictValue
from ingot.capture.values.deferred import is_none, logged_call, user_frames
from ingot.capture.values.keys import is_plain_key
from ingot.capture.values.sequences import ListValue, TupleValue
from ingot.capture.values.subclasses import BuiltinObject
from ingot.capture.values.tensor import SymIntValue, TensorValue
from ingot.capture.values.wrap import wraps
from ingot.errors import Unsupported, without_frames
from ingot.graph.shape_context import ShapeContext

if TYPE_CHECKING:
    from ingot.capture.session import Session


class CachedFunction(KnownObject):
    """A function made by functools.lru_cache.

    Where the cache has no result for the arguments, a pure function is called during capture: that
    this comes too soon, nobody sees. One that only shows something (logger.warning_once) is called
    after the graph has run. A pure function of tensors is captured, and one that makes numbers of
    sizes that vary, or tuples, lists and dicts of such: results are shared within a call, as in
    eager, and not between calls, which nobody sees of a list that stays inside and as it is. Any
    other breaks the graph, or is compiled for the sizes of the call."""

    __slots__ = ("_captured", "_hits")

    def __init__(self, function: Any, source: Source) -> None:
        super().__init__(function, source)
        self._hits: dict[Any, Hit] = {}
        self._captured: dict[Any, tuple[Value, list[Value]]] = {}  # and the arguments

    def inner(self, session: Session) -> Value:
        """The function behind it."""
        return session.builtin(self.object.__wrapped__)

    def get_attribute(self, session: Session, name: str) -> Value:
        if name.startswith("cache_"):
            raise session.unsupported(
                "library-function", f"{name} of {self.inner(session).describe()}"
            )
        inner = self.inner(session)
        if name == "__wrapped__":
            return inner
        return inner.get_attribute(session, name)

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        parameters: dict[str, Any] = getattr(self.object, "cache_parameters", dict)()
        if parameters.get("maxsize", 0) == 0:  # nothing is held
            return session.call(self.inner(session), args, kwargs)
        hit, why = self._hit(session, args, kwargs)
        key = None if hit else _key_of_captured(session, args, kwargs)
        if key is not None and key in self._captured:
            return self._captured[key][0]
        if hit is None or not hit.is_there():
            before = session.steps
            mark, steps, pending = (
                session.effects.mark(),
                session.graph.steps,
                bool(session.effects),
            )
            result = session.call(self.inner(session), args, kwargs)
            count = session.effects.since(mark)
            if count and is_none(session, result):
                return self._show(session, args, kwargs, mark)
            if hit is None:
                if key is None or count != 0:
                    raise why
                if _are_numbers(session, args, kwargs) and not _note_shared(
                    session, result, self.inner(session).describe()
                ):
                    raise why  # a later call in eager is given the same object, as it is then
                self._captured[key] = result, [*args, *kwargs.values()]
                return result
            if count != 0 or session.graph.steps > steps or pending and not hit.would_give(result):
                raise session.unsupported(
                    "library-function",
                    f"{self.inner(session).describe()} is cached, and more than pure Python",
                )
            hit.fill(self.object)
            # a capture that starts over finds the result, and counts as many instructions
            session.steps = before
        assert self.source is not None
        return session.wrap_derived(hit, self.object, self.source)

    def _hit(self, session: Session, args: Arguments, kwargs: Keywords) -> tuple[Hit | None, Any]:
        """The look-up of arguments in the cache; None and the error where one is not known."""
        if any(map(_varies, map(session.realize, (*args, *kwargs.values())))):
            what = f"{self.inner(session).describe()} is cached, and gets a size that varies"
            return None, session.unsupported("symbolic-number", what)
        try:
            argument = functools.partial(_argument, session)
            known, by_name = list(map(argument, args)), map_values(argument, kwargs)
        except Unsupported as unknown:
            return None, without_frames(unknown)
        key = session.python(_key_of, self.object, known, by_name)
        return self._hits.setdefault(key, Hit(self.object, key, known, by_name)), None

    def _show(self, session: Session, args: Arguments, kwargs: Keywords, mark: int) -> Value:
        """Defers the call of a function that only shows something until the graph has run."""
        frames = functools.partial(user_frames, session)
        operation = logged_call(session, self.object, args, kwargs, frames)
        session.effects.take_back(mark)
        session.effects.defer(operation)
        return NONE


class Hit:
    """The look-up of certain arguments in the cache of a function, which counts as a hit.

    Raises LookupError where the cache has no result for them."""

    __slots__ = ("_args", "_cache", "_function", "_key", "_kwargs")
    __name__ = "cached_result"

    def __init__(self, function: Any, key: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
        self._cache, self._key, self._args, self._kwargs = _cache_of(function), key, args, kwargs
        self._function = function.__wrapped__

    def is_there(self) -> bool:
        """Whether the cache has a result."""
        return self._key in self._cache

    def would_give(self, result: Value) -> bool:
        """Whether a call of the function now, before the deferred side effects, gives this
        constant."""
        if not isinstance(result, ConstantValue):
            return False
        try:
            answer = self._function(*self._args, **self._kwargs)
            return type(answer) is type(result.object) and bool(answer == result.object)
        except Exception:  # of what it finds as it was
            return False

    def fill(self, function: Any) -> None:
        """Calls the function."""
        function(*self._args, **self._kwargs)

    def __call__(self, function: Any) -> Any:
        if self._key not in self._cache:
            raise LookupError("it is not cached any more")
        return function(*self._args, **self._kwargs)


def _argument(session: Session, value: Value) -> Any:
    """The object of an argument, if to hash and compare it runs no code of the user's."""
    value = session.realize(value)
    if type(value) is BuiltinObject:
        raise session.unsupported("library-function", f"a cached function gets {value.describe()}")
    try:
        return session.known(value)
    except Unsupported:
        owner = value.identity()
        if (
            value.source is None
            or isinstance(owner, Value)
            or type(owner).__hash__ is not object.__hash__
        ):
            raise
        session.guard(value.source, Kind.IDENTITY, owner)
        return owner


def _key_of(function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """The key of these arguments in the function's cache, taken from an empty cache of the same
    kind."""
    probe = functools.lru_cache(maxsize=None, typed=function.cache_parameters()["typed"])(_nothing)
    probe(*args, **kwargs)
    return next(iter(_cache_of(probe)))


def _varies(value: Value) -> bool:
    """Whether it is a size that varies, or a tuple with one."""
    if isinstance(value, TupleValue):
        return any(map(_varies, value.items))
    return isinstance(value, SymIntValue)


def _are_numbers(session: Session, args: Arguments, kwargs: Keywords) -> bool:
    """Whether there is no tensor among arguments."""
    for value in (*args, *kwargs.values()):
        if isinstance(session.realize(value), TensorValue):
            return False
    return True


class _Shared(NamedTuple):
    """A list or dict in a cached result, which eager gives to later calls as well. It has what is
    in it, the number of the instruction that made it, and the function in words."""

    value: Value
    members: list[Any]
    step: int
    function: str


class _SharedValues(list[_Shared]):
    """Those of a capture."""


def refuse_shared(session: Session, is_result: Callable[[Value], bool]) -> None:
    """At the end of a graph: raises Unsupported where what a cached function gives is changed, or
    seen from outside."""
    for shared in session.state(_SharedValues):
        if is_result(shared.value) or not _is_unchanged(session, shared):
            raise session.unsupported(
                "symbolic-number",
                f"{shared.function} is cached, gets a size that varies, and what it gives is "
                "changed or leaves the graph",
                step=shared.step,
            )


def _is_unchanged(session: Session, shared: _Shared) -> bool:
    """Whether a list or dict has what it had. Values from outside may have been looked at since."""
    members = _members(shared.value) or []
    for member, before in zip_longest(members, shared.members):
        is_looked_at = isinstance(before, LazyValue) and session.realize(before) is member
        if member is not before and not is_looked_at:
            return False
    return True


def _note_shared(session: Session, result: Value, function: str) -> bool:
    """Whether a result is made of constants, tuples, lists and dicts, which is noted of the last
    two."""
    result = session.realize(result)
    if isinstance(result, (ConstantValue, SymIntValue)) or result.source is not None:
        return True  # what is from outside is the same object in each call
    members = _members(result)
    if members is None:
        return False
    if type(result) is not TupleValue:
        shared = _Shared(result, members, session.step_of_outermost, function)
        session.state(_SharedValues).append(shared)
    for member in members:
        if isinstance(member, Value) and not _note_shared(session, member, function):
            return False
    return True


def _members(value: Value) -> list[Any] | None:
    """What is in a plain tuple, list or dict, with the keys before; None for other values."""
    if type(value) in (TupleValue, ListValue) and value.python_type() in (tuple, list):
        return list(value.items)  # type: ignore[attr-defined]
    if type(value) is DictValue and value.cls is dict and all(map(is_plain_key, value.entries)):
        return [*value.entries, *value.entries.values()]
    return None


def _key_of_captured(session: Session, args: Arguments, kwargs: Keywords) -> Any:
    """A key of arguments that have tensors, or sizes that vary, among them. None where there are
    none, or the hash of one is the user's."""
    parts: list[Any] = []
    is_captured = False
    for name, value in (*enumerate(args), *kwargs.items()):
        value = session.realize(value)
        part = _part_of_key(session, value)
        if part is None:
            return None
        is_captured = is_captured or isinstance(value, TensorValue) or _varies(value)
        parts.append((name, part))
    return tuple(parts) if is_captured else None


def _part_of_key(session: Session, value: Value) -> Any:
    """What stands for an argument in the key; None where its hash is the user's."""
    value = session.realize(value)
    if isinstance(value, ConstantValue) and isinstance(value.object, Hashable):
        return type(value.object), value.object
    if isinstance(value, SymIntValue):
        return ShapeContext.to_expr(value.fake)
    if type(value) is TupleValue:
        keys = list(map(functools.partial(_part_of_key, session), value.items))
        return None if None in keys else (tuple, *keys)
    is_identified = value.python_type().__hash__ is object.__hash__
    return id(value) if isinstance(value, TensorValue) or is_identified else None


def _nothing(*args: Any, **kwargs: Any) -> None:
    pass


def _cache_of(function: Any) -> dict[Any, Any]:
    """The dict of a function's cached results, which is no attribute.

    It is the last of the dicts that the function refers to, its `__dict__` aside."""
    for referent in gc.get_referents(function):
        if type(referent) is dict and referent is not function.__dict__:
            results = referent
    assert len(results) == function.cache_info().currsize
    return results


@wraps(functools._lru_cache_wrapper, guards=Kind.IDENTITY)
def wrap_cached(session: Session, object_: Any, source: Source) -> Value:
    return CachedFunction(object_, source)
