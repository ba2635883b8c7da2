"""What autograd saves, inside of captured code: `torch.autograd.graph.save_on_cpu`,
`saved_tensors_hooks`, `disable_saved_tensors_hooks`, `region_activation_memory_budget`.

In: a call of one of them. Out: a graph break where hooks are put up, since a graph saves other
tensors than eager does, and what is captured behind the break saves by way of the hooks. That they
are forbidden for a while is a mode of the thread, and breaks nothing. A budget is noted for the
partition.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

from ingot.capture.meanings import How, means
from ingot.capture.sources import ConstSource
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.graph.ambient import hooks_are_active
from ingot.options import is_share
from ingot.torch_private import (
    saved_hooks_disable,
    saved_hooks_enable,
    saved_hooks_message,
)

if TYPE_CHECKING:
    from ingot.capture.session import Session


def _refuse_hooks(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    context = session.realize(args[0])
    raise session.unsupported(
        "tensor-hook",
        f"{context.python_type().__name__}() sets hooks on what is saved for the backward",
    )


for _method in (
    save_on_cpu.__init__,
    saved_tensors_hooks.__init__,
    saved_tensors_hooks.__enter__,
    saved_tensors_hooks.__exit__,
):
    means(_method, how=How.UNREALIZED)(_refuse_hooks)


class _Hooks:
    """What a capture has relied on: whether the message of before, and the hooks, are guarded."""

    are_guarded = False


def saved_hooks_forbidden(_: Any) -> str | None:
    """The message of the error that putting up hooks raises; None where that is allowed."""
    message: str | None = saved_hooks_message()
    return message


def saved_hooks_active(_: Any) -> bool:
    return hooks_are_active()


def _guard(session: Session) -> None:
    """Guards the state around the call, before the program changes it."""
    known = session.state(_Hooks)
    if not known.are_guarded:
        known.are_guarded = True
        source = ConstSource(torch.autograd.graph)
        for fact in (saved_hooks_forbidden, saved_hooks_active):
            session.guard_derived(fact, torch.autograd.graph, source)


@means(saved_hooks_message)
def _message(session: Session) -> Value:
    _guard(session)
    return ConstantValue(saved_hooks_message())


@means(saved_hooks_disable)
def _disable(session: Session, message: Value, fail_if_non_empty: Value | None = None) -> Value:
    _guard(session)
    fails = fail_if_non_empty is None or session.known(fail_if_non_empty)
    if fails and hooks_are_active():
        raise session.unsupported("tensor-hook", "hooks are forbidden that are in use")
    session.python(saved_hooks_disable, session.known(message), False)
    session.graph.modes.changed()
    return NONE


@means(saved_hooks_enable)
def _enable(session: Session) -> Value:
    _guard(session)
    saved_hooks_enable()
    session.graph.modes.changed()
    return NONE


@means("torch.autograd.graph.region_activation_memory_budget")
def _note_budget(session: Session, budget: Value) -> Value:
    """The least of them holds for the whole graph."""
    share = session.known(budget)
    if not is_share(share):
        raise session.unsupported("argument-kind", "a memory budget that is no number from 0 to 1")
    session.graph.budgets.append(float(share))
    return session.call(session.wrap_constant(nullcontext), [], {})
