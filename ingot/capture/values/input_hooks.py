"""Hooks that the function puts on the gradients of tensors from outside.

In: calls of `register_hook` and `register_post_accumulate_grad_hook`. Out: side effects, which put
the program's own hooks on the very tensors once the graph has run: a backward comes later.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils.hooks import RemovableHandle

from ingot.capture.effects import Operation
from ingot.capture.meanings import How, means
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.constant import NONE
from ingot.capture.values.tensor import TensorValue
from ingot.graph.fakes import fakes_in, storage_key
from ingot.wrapped import is_transformed

if TYPE_CHECKING:
    from ingot.capture.residual import Recipe
    from ingot.capture.results import Results
    from ingot.capture.session import Session

_ON_NO_GRADIENT = "cannot register a hook on a tensor that doesn't require gradient"


class HookBatch(Value):
    """Hooks that are registered one after the other, with nothing between that others can see."""

    __slots__ = ("handles", "is_done")

    def __init__(self) -> None:
        super().__init__()
        self.handles: list[InputHookHandle] = []
        self.is_done = False

    def python_type(self) -> type:
        return tuple

    def operations(self) -> Iterable[Operation]:
        """Registers the hooks, where some are left."""
        if not self.is_done and self.handles:
            yield Operation(len, (self,))
        self.is_done = True

    def recipe(self, results: Results) -> Recipe:
        """The handles, made by registering all hooks in their order."""
        items: list[Any] = []
        for handle in self.handles:
            items += (handle.register, handle.tensor, handle.hook)
        return results._call(_put_on, *items)


def _put_on(*items: Any) -> tuple[Any, ...]:
    handles = []
    for k in range(0, len(items), 3):
        register, tensor, hook = items[k : k + 3]
        handles.append(register(tensor, hook))
    return tuple(handles)


class InputHookHandle(Value):
    """What registering gives."""

    __slots__ = ("batch", "hook", "register", "step", "tensor")

    def __init__(
        self, batch: HookBatch, register: Callable[..., Any], tensor: TensorValue, hook: Value
    ) -> None:
        super().__init__()
        self.batch, self.register, self.tensor, self.hook = batch, register, tensor, hook
        self.step = 0

    def python_type(self) -> type:
        return RemovableHandle

    def method_remove(self, session: Session) -> Value:
        if self in self.batch.handles:
            if self.batch.is_done:
                refuse(session, self, "is removed behind what others can see")
            self.batch.handles.remove(self)
        return NONE

    def recipe(self, results: Results) -> Recipe:
        """The handle that the batch gives for it."""
        if self not in self.batch.handles:
            refuse(results.session, self, "is removed, and alive at the end of a graph")
        return results._call(operator.getitem, self.batch, self.batch.handles.index(self))


class _Registered:
    """The hooks of a capture on tensors from outside."""

    def __init__(self) -> None:
        self.batch = HookBatch()
        self.handles: list[InputHookHandle] = []


def refuse(session: Session, handle: InputHookHandle, why: str) -> NoReturn:
    """Breaks the graph where a hook is registered."""
    sentence = f"a hook on {handle.tensor.describe()} {why}"
    raise session.unsupported("tensor-hook", sentence, step=handle.step)


def register_outside(
    session: Session, register: Callable[..., Any], tensor: TensorValue, hook: Value
) -> Value:
    """The handle of a hook that is registered on a tensor from outside."""
    if is_transformed():
        raise session.unsupported("tensor-hook", f"a hook on {tensor.describe()} in a transform")
    if not tensor.fake.requires_grad:
        raise session.raised(RuntimeError, _ON_NO_GRADIENT)
    registered = session.state(_Registered)
    is_leaf = session.graph.inputs.value_of(tensor).is_leaf
    if not is_leaf and session.graph.writes:
        raise session.unsupported("tensor-hook", f"a hook on {tensor.describe()} behind a write")
    if not registered.handles:
        session.graph.write_checks.append(_refuse_written)
    if registered.batch.is_done:
        registered.batch = HookBatch()
    handle = InputHookHandle(registered.batch, register, tensor, hook)
    handle.step = session.step_of_outermost
    registered.batch.handles.append(handle)
    registered.handles.append(handle)
    session.effects.note(registered.batch)
    return handle


def _refuse_written(session: Session, written: Sequence[Any]) -> None:
    """Breaks the graph before a hook on the result of an operation that is written later.

    In eager the hook stays with what was there before."""
    keys = set(map(storage_key, fakes_in(written)))
    for handle in session.state(_Registered).handles:
        is_leaf = session.graph.inputs.value_of(handle.tensor).is_leaf
        if not is_leaf and storage_key(handle.tensor.fake) in keys:
            refuse(session, handle, "that is written")


def refuse_hooked(session: Session, tensor: TensorValue) -> None:
    """Breaks the graph where a hook is registered that a backward inside of it should run."""
    for handle in session.state(_Registered).handles:
        if handle.tensor is tensor and handle in handle.batch.handles:
            refuse(session, handle, "whose gradient is taken inside")


@means(torch.Tensor.register_post_accumulate_grad_hook, how=How.METHOD)
def _register_behind(
    session: Session, tensor: TensorValue, args: Arguments, kwargs: Keywords
) -> Value:
    """Tensor.register_post_accumulate_grad_hook."""
    (hook,) = (*args, *kwargs.values())
    if not tensor.fake.requires_grad:
        raise session.raised(RuntimeError, _ON_NO_GRADIENT)
    if not tensor.fake.is_leaf or (
        tensor.source is not None and not session.graph.inputs.value_of(tensor).is_leaf
    ):
        raise session.raised(
            RuntimeError, "post accumulate grad hooks cannot be registered on non-leaf tensors"
        )
    if tensor.source is None:
        raise session.unsupported("tensor-hook", f"a hook on {tensor.describe()}, made a leaf")
    return register_outside(session, torch.Tensor.register_post_accumulate_grad_hook, tensor, hook)
