"""The modes of the whole process that a program may change.

They are the default dtype, the backends of attention, and whether losses of DTensors are computed
in parallel.

In: the program's calls that set one. Out: what they are now, and the calls that lead from one state
to another. Other threads see each change, in eager as well; only a thread that made one reverts it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ingot.errors import unsupported
from ingot.graph.dtensors import loss_is_parallel, switch_loss_parallel
from ingot.torch_private import (
    attention_order,
    get_sdp_flags,
    set_attention_order,
    set_sdp_flags,
    set_torchs_default_dtype,
)


class AttentionModes(NamedTuple):
    """The backends that attention may use, by `ATTENTION_FLAGS`, and the order of preference."""

    flags: tuple[bool, ...]
    order: tuple[int, ...]

    @staticmethod
    def now() -> AttentionModes:
        """Those of the process."""
        flags = []
        for read in get_sdp_flags:
            flags.append(read())
        return AttentionModes(tuple(flags), tuple(attention_order()))


class ProcessModes(NamedTuple):
    """The modes of the process at one point of a program."""

    default_dtype: torch.dtype
    attention: AttentionModes
    loss_is_parallel: bool

    @staticmethod
    def now() -> ProcessModes:
        """Those of now."""
        dtype, attention = torch.get_default_dtype(), AttentionModes.now()
        return ProcessModes(dtype, attention, loss_is_parallel())

    def changes(self, after: ProcessModes) -> Iterator[tuple[Callable[..., Any], tuple[Any, ...]]]:
        """The calls that lead from these modes to those."""
        if self.default_dtype is not after.default_dtype:
            yield set_default_dtype, (after.default_dtype,)
        old, new = self.attention, after.attention
        for place, (before, flag) in enumerate(zip(old.flags, new.flags, strict=True)):
            if before != flag:
                yield set_attention_flag, (place, flag)
        if old.order != new.order:
            yield set_attention_priority, (new.order,)
        if self.loss_is_parallel != after.loss_is_parallel:
            yield set_loss_parallel, (after.loss_is_parallel,)


class _Thread(threading.local):
    """What a thread has done to the modes of the process."""

    def __init__(self) -> None:
        self.changes = 0
        self.is_background = False


_thread = _Thread()


def changes_of_thread() -> int:
    """How often this thread has set a mode of the process."""
    return _thread.changes


@contextmanager
def left_alone() -> Iterator[None]:
    """Inside, setting a mode of the process raises Unsupported: the program runs in another thread
    meanwhile."""
    _thread.is_background = True
    try:
        yield
    finally:
        _thread.is_background = False


def _note_change() -> None:
    if _thread.is_background:
        raise unsupported("mode", "a mode of the whole process is set, in the background")
    _thread.changes += 1


def set_default_dtype(dtype: torch.dtype) -> None:
    """Sets the dtype of new tensors."""
    _note_change()
    set_torchs_default_dtype(dtype)


def set_attention_flag(place: int, flag: bool) -> None:
    """Allows a backend of attention, or forbids it."""
    _note_change()
    set_sdp_flags[place](flag)


def set_attention_priority(order: tuple[int, ...]) -> None:
    """Sets the order in which backends of attention are preferred."""
    _note_change()
    set_attention_order(list(order))


def set_loss_parallel(enabled: bool) -> None:
    """Has losses of DTensors computed in parallel, as `loss_parallel` does inside."""
    _note_change()
    if loss_is_parallel() is not enabled:
        switch_loss_parallel(enabled)


PROCESS_SWITCHES = frozenset(
    (set_default_dtype, set_attention_flag, set_attention_priority, set_loss_parallel)
)
"""The functions that set a mode of the process."""
