"""Tensors that are donated: a program has taken their memory, and they have no values any more.

A tensor whose memory was taken becomes an instance of `Donated`, whose every use but that of its
metadata is an error which names the argument and the call. What does not ask a tensor's class, as
code in C++, meets a storage that torch itself forbids to read (`native/donation.c`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ingot.errors import DonationError
from ingot.native import _native

_PACKAGES = [os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(_native.__file__))]
_NOT_THE_USERS = (*[os.path.join(folder, "") for folder in _PACKAGES], "<frozen", "<ingot")


def _getter(name: str) -> Any:
    return getattr(torch.Tensor, name).__get__


_KNOWN = {
    *map(_getter, "shape dtype device layout ndim itemsize nbytes requires_grad is_leaf".split()),
    *map(_getter, "is_cuda is_cpu is_meta grad_fn _version _base".split()),
    *[getattr(torch.Tensor, name) for name in "size dim numel stride element_size".split()],
    torch.Tensor.__len__,
    torch.Tensor.__hash__,
}
"""What a tensor without values still tells."""


class Donated(torch.Tensor):
    """A tensor whose memory a compiled call has taken. It keeps its shape, dtype and device.

    Raises DonationError wherever its values, its memory or a view of it are asked for.
    """

    _donated_by: str

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func in _KNOWN:
            return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[arg-type]
        found = find((args, kwargs))
        assert found is not None
        raise error_of(found)


def find(tree: Any) -> Donated | None:
    """A donated tensor among nested lists, tuples and dicts; None where there is none. No object is
    asked for its class, which might run code of its own."""
    stack, visited = [tree], set[int]()
    while stack:
        item = stack.pop()
        if type(item) is Donated:
            return item
        of_items = issubclass(type(item), (dict, list, tuple))
        if of_items and id(item) not in visited:
            visited.add(id(item))
            stack += dict.values(item) if issubclass(type(item), dict) else item
    return None


def error_of(tensor: Donated) -> DonationError:
    """The error of a use: which argument it was, and of which call."""
    return DonationError(tensor._donated_by)


def refuse(arguments: Any) -> None:
    """Raises DonationError where an argument of a call was donated to another one."""
    found = find(arguments)
    if found is not None:
        raise error_of(found)


def _declare(tensor: torch.Tensor, what: str) -> None:
    """Has each use of a tensor be an error from now on. The frame that calls is the user's, or one
    that he has called."""
    frame: Any = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back
    tensor.__class__ = Donated  # type: ignore[assignment]
    tensor._donated_by = (  # type: ignore[attr-defined]
        f"{what} was donated at {frame.f_code.co_filename}:{frame.f_lineno}: that call has taken "
        "its memory, and it has no values any more (hint: give the call a clone(), or leave the "
        "argument out of options={'donate': ...})"
    )


_native.declare_donated_by(_declare)
