"""Outside weak references to objects that the program has as well.

A learning rate scheduler holds the optimizer whose steps it counts by one."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from ingot.capture.guards import Kind
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


@wraps(weakref.ref, guards=Kind.TYPE)
def wrap_weak_reference(session: Session, object_: Any, source: Source) -> Value:
    if type(object_) is weakref.ref:
        return WeakReference(object_, source)
    return ForeignValue(object_, source)
