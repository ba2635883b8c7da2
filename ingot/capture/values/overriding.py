"""Whether torch's functions are overridden by what they are given, as `__torch_function__` does."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import overrides

from ingot.capture.meanings import means
from ingot.capture.values.base import Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.function_overrides import overrides_functions
from ingot.capture.values.tensor import TensorValue
from ingot.capture.values.tensor_objects import TensorObject
from ingot.origins import is_trusted
from ingot.torch_private import (
    disabled_torch_function_impl,
    is_torch_function_enabled,
    is_torch_function_mode_enabled,
)

if TYPE_CHECKING:
    from ingot.capture.session import Session

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_NAME = "__torch_function__"
_DISABLED = disabled_torch_function_impl


def _overrides(session: Session, value: Value) -> bool:
    """Whether a value overrides torch's functions, or a mode does."""
    if _mode_is_seen(session) or session.overrides.has_modes:
        return True
    value = session.realize(value)
    if isinstance(value, TensorObject):
        return overrides_functions(session, value)
    cls = value.python_type()
    if cls in _PLAIN or not is_torch_function_enabled():
        return False
    if isinstance(value, TensorValue):
        return getattr(cls, _NAME) is not _DISABLED
    override = session.optional_attribute(value, _NAME)
    return override is not None and session.realize(override).identity() is not _DISABLED


def _mode_is_seen(session: Session) -> bool:
    """Whether a mode overrides torch's functions for who asks: torch's own functions are captured
    as if the mode had called them already."""
    asker = None
    if session.frames:
        asker = session.frames[-1].function.namespace.get("__name__")
    return is_torch_function_mode_enabled() and not is_trusted(asker)


@means(overrides.has_torch_function)
def has_torch_function(session: Session, relevant_args: Value) -> Value:
    values = session.items_of(relevant_args, "expected a sequence")
    return has_torch_function_variadic(session, *values)


@means(overrides.has_torch_function_unary, overrides.has_torch_function_variadic)
def has_torch_function_variadic(session: Session, *values: Value) -> Value:
    return ConstantValue(any(map(partial(_overrides, session), values)))
