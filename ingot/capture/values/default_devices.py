"""`with torch.device(...)` inside the captured function: the device of new tensors.

In: what enters and leaves such a context. Out: the same factories with that device written out, so
that no mode is active where the graph runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from ingot.capture.guards import Kind
from ingot.capture.meanings import means
from ingot.capture.values.base import Arguments, Keywords, NativeMethod, Value
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.wrap import wrapper_of, wraps
from ingot.torch_private import device_constructors, exchange_device, maybe_exchange_device

if TYPE_CHECKING:
    from ingot.capture.session import Session


class _Entered(NamedTuple):
    """A context that is entered, and the number of the instruction that did so."""

    device: torch.device
    step: int


class DefaultDevices:
    """The contexts of a capture that are entered, the outermost first."""

    def __init__(self) -> None:
        self.entered: list[_Entered] = []

    @property
    def device(self) -> torch.device | None:
        """The device of new tensors, None where the program has not set it."""
        if self.entered:
            return self.entered[-1].device
        return None


_LIBRARY = ("torch.nn.functional", "torch.functional")
"""Modules whose functions take no notice of a default device when they make tensors: the mode is
off inside of them."""


def with_device(session: Session, function: object, kwargs: Keywords) -> Keywords:
    """The keywords of a call, with the device that holds for new tensors."""
    device = session.state(DefaultDevices).device
    if device is None or function not in device_constructors():
        return kwargs
    caller = session.frames[-1].function.namespace.get("__name__", "")
    if caller in _LIBRARY or session.known(kwargs.get("device", NONE)) is not None:
        return kwargs
    return {**kwargs, "device": ConstantValue(device)}


def default_device(session: Session) -> torch.device | None:
    """What torch.get_default_device() gives inside of such a context; None outside of all."""
    device = session.state(DefaultDevices).device
    if device is not None and device.index is None and device.type not in ("cpu", "meta"):
        raise session.unsupported("mode", f"the number of the default device, {device}")
    return device


def refuse_inside(session: Session) -> None:
    """Breaks the graph before the first context was entered, where it would end inside."""
    for entered in session.state(DefaultDevices).entered:
        raise session.unsupported(
            "mode", f"{entered.device} as the device of new tensors", step=entered.step
        )


class DeviceValue(ConstantValue):
    """A torch.device, which is a context manager as well."""

    __slots__ = ()

    def get_attribute(self, session: Session, name: str) -> Value:
        if name == "__enter__":
            return NativeMethod(self, name, DeviceValue.enter)
        if name == "__exit__":
            return NativeMethod(self, name, DeviceValue.leave)
        if name == "__call__":
            raise session.unsupported("mode", f"{self.describe()} as the device of new tensors")
        return super().get_attribute(session, name)

    def call(self, session: Session, args: Arguments, kwargs: Keywords) -> Value:
        raise session.unsupported("mode", f"{self.describe()} as a decorator")

    def enter(self, session: Session) -> Value:
        """`__enter__`."""
        if session.overrides.has_modes:
            raise session.unsupported("mode", f"{self.describe()} within a torch function mode")
        entered = session.state(DefaultDevices).entered
        # a device of its own, as the mode of eager has it
        device = torch.device(self.object)
        entered.append(_Entered(device, session.step_of_outermost))
        return self

    def leave(self, session: Session, *raised: Value) -> Value:
        """`__exit__`."""
        entered = session.state(DefaultDevices).entered
        if not entered or entered[-1].device != self.object:
            raise session.unsupported(
                "mode", f"{self.describe()} is left, which is not the device entered last"
            )
        entered.pop()
        return NONE


wraps(torch.device, guards=Kind.EQUALS)(wrapper_of(DeviceValue))


# -- the current CUDA device -----------------------------------------------------------------------


@means(exchange_device, maybe_exchange_device)
def _exchange_device(session: Session, index: Value) -> Value:
    """What `with torch.cuda.device(...)` calls, which changes nothing where the device is the
    current one. A graph runs on the device of its tensors, whichever is current."""
    device = session.known(index)
    if device < 0:
        return ConstantValue(-1)
    if device != torch.cuda.current_device():
        raise session.unsupported("mode", "the current CUDA device is changed")
    return ConstantValue(device)


@means("torch.cuda.get_device_properties")
def _get_device_properties(session: Session, device: Value = NONE) -> Value:
    """Facts of a device, which do not change."""
    where = session.known(device)
    if torch.cuda.device_count() > 1 and torch.device(where or "cuda").index is None:
        raise session.unsupported("mode", "the properties of the current CUDA device are asked")
    return ConstantValue(session.python(torch.cuda.get_device_properties, where))
