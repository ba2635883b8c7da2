"""The modes of a thread that the meaning of an op depends on and that a program may change.

These are gradients, autocast and inference mode; `Modes` has those of the process beside them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ingot.graph.process_modes import PROCESS_SWITCHES, ProcessModes, changes_of_thread
from ingot.serial import runs_alone
from ingot.torch_private import (
    enter_autocast,
    exit_autocast,
    func_decrement_nesting,
    get_dynamic_layer_stack_depth,
    grad_decrement_nesting,
    grad_increment_nesting,
    jvp_decrement_nesting,
    len_torch_dispatch_stack,
    peek_interpreter_stack,
    pop_inference_mode,
    pop_saved_tensors_default_hooks,
    pop_torch_dispatch_stack,
    push_inference_mode,
    push_saved_tensors_default_hooks,
    saved_hooks_disable,
    saved_hooks_enable,
    saved_hooks_message,
    set_grad_enabled,
    top_saved_tensors_default_hooks,
    vmap_decrement_nesting,
    vmap_increment_nesting,
)

AUTOCAST_DEVICES = ("cpu", "cuda")

# By the kind of a transform of torch.func. (torch 2.11's own function for that leaves one level too
# many.)
_LEAVE_LEVEL: dict[str, Callable[[], Any]] = {
    "Vmap": vmap_decrement_nesting,
    "Grad": grad_decrement_nesting,
    "Jvp": jvp_decrement_nesting,
    "Functionalize": func_decrement_nesting,
}

Change = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function of torch, and its arguments, that sets a mode."""


class _Inside(threading.local):
    """The contexts of inference mode that a thread has entered by `enter_inference_mode`.

    And whether there are hooks on saved tensors around what it compiles."""

    def __init__(self) -> None:
        self.contexts: list[Any] = []
        self.has_hooks = False


_inside = _Inside()

_abandoned: list[Any] = []
"""Contexts that an error left. They are kept: torch's way out of one would bring back all else that
it found at the way in."""


def enter_inference_mode() -> None:
    """Enter inference mode, which has no gradients, until `leave_inference_mode`."""
    _inside.contexts.append(push_inference_mode(True))


def leave_inference_mode() -> None:
    """Leave the inference mode that was entered last; gradients are recorded if they were
    before."""
    pop_inference_mode(_inside.contexts.pop())


def _abandon_inference_mode(depth: int) -> None:
    """Leave the contexts of inference mode behind the first `depth`, wherever the program is."""
    contexts = _inside.contexts
    if len(contexts) > depth:
        _abandoned.extend((*contexts[depth:], push_inference_mode(False)))
        del contexts[depth:]


def as_inference(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of inference mode in the memory of one that nobody else has."""
    if tensor.is_inference():
        return tensor
    with torch.inference_mode():
        view = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return view.set_(
            tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
        )  # type: ignore[call-overload]


SWITCHES = frozenset(
    {
        enter_inference_mode,
        leave_inference_mode,
        set_grad_enabled,
        enter_autocast,
        exit_autocast,
        vmap_increment_nesting,
        vmap_decrement_nesting,
        grad_increment_nesting,
        grad_decrement_nesting,
        *PROCESS_SWITCHES,
    }
)
"""Functions that switch a mode in a captured graph. A graph ends in the modes that it began with,
unless it raises."""


class Autocast(NamedTuple):
    """Automatic casting for one type of device."""

    enabled: bool
    dtype: torch.dtype


class Modes(NamedTuple):
    """The modes at one point of a program.

    `autocast` has one entry for each of AUTOCAST_DEVICES. `hooks_message` is what an error says
    where the program puts up hooks on saved tensors, None if it may."""

    grad: bool
    autocast: tuple[Autocast, ...]
    autocast_cache: bool
    process: ProcessModes
    hooks_message: str | None

    @staticmethod
    def now() -> Modes:
        """The modes of this thread."""
        autocast = []
        for device in AUTOCAST_DEVICES:
            autocast.append(
                Autocast(torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
            )
        grad, cache = torch.is_grad_enabled(), torch.is_autocast_cache_enabled()
        return Modes(grad, tuple(autocast), cache, ProcessModes.now(), saved_hooks_message())

    def changes(self, after: Modes) -> list[Change]:
        """The calls that lead from these modes to those."""
        changes: list[Change] = []
        for device, old, new in zip(AUTOCAST_DEVICES, self.autocast, after.autocast, strict=True):
            if old.enabled != new.enabled:
                changes.append((torch.set_autocast_enabled, (device, new.enabled)))
            if old.dtype is not new.dtype:
                changes.append((torch.set_autocast_dtype, (device, new.dtype)))
        if self.autocast_cache != after.autocast_cache:
            changes.append((torch.set_autocast_cache_enabled, (after.autocast_cache,)))
        if self.grad != after.grad:
            changes.append((set_grad_enabled, (after.grad,)))
        changes += self.process.changes(after.process)
        if self.hooks_message != after.hooks_message:
            if after.hooks_message is None:
                changes.append((saved_hooks_enable, ()))
            else:
                changes.append((saved_hooks_disable, (after.hooks_message, False)))
        return changes

    def set(self) -> None:
        """Make these the modes of this thread."""
        for function, args in Modes.now().changes(self):
            function(*args)


def autocast_depth() -> int:
    """How many autocast contexts this thread is in."""
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return depth


def snapshot() -> Callable[[], None]:
    """A function that restores the modes of this thread, and leaves the dispatch modes and the
    levels of vmap and grad entered since."""
    modes, depth, levels = Modes.now(), autocast_depth(), get_dynamic_layer_stack_depth()
    entered = len(_inside.contexts)
    dispatch_modes = len_torch_dispatch_stack()
    process_changes = changes_of_thread()

    def restore() -> None:
        # a signal came between a push and its `with`
        while len_torch_dispatch_stack() > dispatch_modes:
            pop_torch_dispatch_stack(None)
        while get_dynamic_layer_stack_depth() > levels:
            _LEAVE_LEVEL[peek_interpreter_stack().key().name]()
        _abandon_inference_mode(entered)
        if changes_of_thread() == process_changes:  # what is different is another thread's
            modes._replace(process=ProcessModes.now()).set()
        else:
            modes.set()
        surplus = autocast_depth() - depth
        for _ in range(surplus):
            torch.autocast_decrement_nesting()
        for _ in range(-surplus):
            torch.autocast_increment_nesting()
        if surplus and depth == 0:
            torch.clear_autocast_cache()

    return restore


@contextmanager
def preserved() -> Iterator[None]:
    """Whatever happens inside, the modes are as before behind it."""
    restore = snapshot()
    try:
        yield
    finally:
        restore()


def hooks_are_active() -> bool:
    """Whether there are hooks on saved tensors, or were before what is compiled now."""
    return _inside.has_hooks or bool(top_saved_tensors_default_hooks(False))


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restore the modes of this thread and the state of torch's generator behind a compilation,
    wherever a signal may cut it short. Inside, hooks on saved tensors see no fakes.

    Modules that torch loads on the way may draw from the generator. Its state stays if there are
    other threads: one of them may have drawn, and is to keep its numbers.
    """
    restore_modes, before = snapshot(), torch.get_rng_state()
    hooks: list[Any] = []
    while top := top_saved_tensors_default_hooks(False):
        hooks.append(top)
        pop_saved_tensors_default_hooks()
    had_hooks = _inside.has_hooks
    _inside.has_hooks = had_hooks or bool(hooks)
    try:
        yield
    finally:
        _inside.has_hooks = had_hooks
        for pair in reversed(hooks):
            push_saved_tensors_default_hooks(*pair)
        restore_modes()
        if runs_alone() and not torch.equal(before, torch.get_rng_state()):
            torch.set_rng_state(before)
