"""Calls of hooks on the backward, to be captured."""

from __future__ import annotations

from typing import Any


def call(hook: Any, args: tuple[Any, ...]) -> Any:
    return hook(*args)


def call_of_module(hook: Any, module: Any, args: tuple[Any, ...]) -> Any:
    return hook(module, *args)
