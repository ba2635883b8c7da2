"""What NumPy does about numerical errors: `with np.errstate(...)`, and what is set around the
call."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ingot.capture.meanings import How, means
from ingot.capture.results import RECIPES
from ingot.capture.sources import ConstSource
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.constant import NONE
from ingot.capture.values.functions import FunctionValue
from ingot.graph.arrays.private import IS_KNOWN, LINEAR_ALGEBRA_ERRORS, error_state

if TYPE_CHECKING:
    from ingot.capture.session import Session

_USUAL = contextvars.Context().run(error_state.get, None)
"""What NumPy does unless it is told otherwise: it warns."""
_HARMLESS = frozenset({"ignore", "warn"})


class _Entered:
    """The contexts that stand around the instruction that runs, outermost first."""

    def __init__(self) -> None:
        self.contexts: list[ErrorState] = []


class ErrorState(Value):
    """np.errstate. `handler` is the function of numpy.linalg that raises its errors."""

    __slots__ = ("entered_at", "handler")

    def __init__(self, handler: str) -> None:
        super().__init__()
        self.handler = handler
        self.entered_at: int | None = None

    def python_type(self) -> type:
        return np.errstate

    def method___enter__(self, session: Session) -> Value:
        self.entered_at = session.step_of_outermost
        session.state(_Entered).contexts.append(self)
        return NONE

    def method___exit__(self, session: Session, *raised: Value) -> Value:
        self.entered_at = None
        session.state(_Entered).contexts.remove(self)
        return NONE


@means(np.errstate, how=How.INSTANCE)
def _make(session: Session, cls: type, args: Arguments, kwargs: Keywords) -> Value:
    named = session.realize_all(kwargs)
    call, handler, modes = named.pop("call", NONE), "", set[str]()
    if isinstance(call, FunctionValue) and call.namespace.get("__name__") == LINEAR_ALGEBRA_ERRORS:
        handler = call.code.co_name
    for value in named.values():
        modes.add(session.known(value))
    if args or call is not NONE and not handler or modes - _HARMLESS - {"call", None}:
        raise session.unsupported("numpy", "numerical errors are raised (numpy.errstate)")
    return ErrorState(handler)


def handler_of(session: Session) -> str:
    """The function of numpy.linalg that raises errors here; "" outside of it."""
    contexts = session.state(_Entered).contexts
    if contexts:
        return contexts[-1].handler
    return ""


def _refuse(results: Any, value: ErrorState) -> Any:
    session = results.session
    if value.entered_at is not None:
        raise session.unsupported(
            "numpy", "numpy.errstate, which a graph would end in, is entered", step=value.entered_at
        )
    return results._call(np.errstate)


RECIPES[ErrorState] = _refuse


def _raises(_: Any) -> bool:
    """Whether NumPy does more than warn of what it computes."""
    if error_state.get(None) is _USUAL:
        return False
    return not _HARMLESS.issuperset(np.geterr().values())


def refuse_modes(session: Session) -> None:
    """Breaks the graph where the program has numerical errors raised or handled, and within
    autocast, which NumPy does not know."""
    if not IS_KNOWN:
        raise session.unsupported("numpy", "NumPy before version 2")
    if torch.is_autocast_enabled("cpu"):
        raise session.unsupported("mode", "NumPy's functions within autocast")
    if session.guard_derived(_raises, np, ConstSource(np)):
        raise session.unsupported("numpy", "numerical errors are raised (numpy.seterr)")
