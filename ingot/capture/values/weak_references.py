"""Weak references: outside ones to objects that the program has as well, and those it makes.

A learning rate scheduler holds the optimizer whose steps it counts by one."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ingot.capture.guards import Kind
from ingot.capture.meanings import means
from ingot.capture.sources import DerivedSource, Source
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.foreign import ForeignValue
from ingot.capture.values.wrap import wraps

if TYPE_CHECKING:
    from ingot.capture.session import Session


class WeakReference(ForeignValue):
    """One of them. What only it leads to might die while the program runs."""

    __slots__ = ()

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        assert self.source is not None
        referent = self.object()
        if not args and not kwargs and referent is not None:
            known = session.effects.known(session, referent, DerivedSource(self.source, _referent))
            if known is not None:
                return known
        return super().call(session, args, kwargs)


def _referent(reference: Any) -> Any:
    return reference()


@means(weakref.ref.__new__)
def _new_reference(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    _refuse_watching(session, args)
    raise session.unsupported("construction", "a weak reference is made", of=cls)


@means(weakref.proxy)
def _proxy(session: Session, *args: Value) -> Value:
    _refuse_watching(session, args)
    raise session.unsupported("c-function", "a weak proxy is made", of=weakref.proxy)


def _refuse_watching(session: Session, args: Sequence[Value]) -> None:
    """What the program makes may live longer in compiled code than in eager."""
    for value in map(session.realize, args[:1]):
        if value.source is None and not value.is_constant():
            what = f"a weak reference to {value.describe()} is made"
            raise session.unsupported("finalizer", what)


@wraps(weakref.ref, guards=Kind.TYPE)
def wrap_weak_reference(session: Session, object_: Any, source: Source) -> Value:
    if type(object_) is weakref.ref:
        return WeakReference(object_, source)
    return ForeignValue(object_, source)
