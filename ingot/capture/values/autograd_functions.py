"""torch.autograd.Function: where no gradients are wanted, calling one comes to its forward."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.function import FunctionCtx

from ingot.capture.session import SPECIAL_FUNCTIONS
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.tensor import TensorValue

if TYPE_CHECKING:
    from ingot.capture.session import Session


def forward_only(cls: Any, *args: Any) -> Any:
    """Inlined in place of `Function.apply`."""
    context = FunctionCtx()
    context.needs_input_grad = tuple([False for _ in args])  # type: ignore[attr-defined]
    with torch.no_grad():
        if cls.setup_context is torch.autograd.Function.setup_context:
            result = cls.forward(context, *args)
        else:
            result = cls.forward(*args)
            cls.setup_context(context, args, result)
    dirty = getattr(context, "dirty_tensors", ())
    if isinstance(result, tuple):
        return tuple([_returned(part, args, dirty) for part in result])
    return _returned(result, args, dirty)


def _returned(part: Any, args: Any, dirty: Any) -> Any:
    """An argument that is returned is a view of itself, unless it was written."""
    if isinstance(part, torch.Tensor) and _is_among(part, args) and not _is_among(part, dirty):
        return part.view_as(part)
    return part


def _is_among(part: Any, tensors: Any) -> bool:
    for other in tensors:
        if other is part:
            return True
    return False


def _apply(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    values = [session.realize(arg) for arg in args]
    given = values + [session.realize(value) for value in kwargs.values()]
    if torch.is_grad_enabled() and any(isinstance(v, TensorValue) and v.fake.requires_grad for v in given):
        raise session.unsupported(f"gradients are wanted through {values[0].describe()}", skip=True)
    return session.call(session.builtin(forward_only), values, kwargs)


SPECIAL_FUNCTIONS[torch.autograd.Function.apply.__func__] = _apply  # type: ignore[attr-defined]
