"""Calls of hooks on the backward, to be captured."""

from __future__ import annotations

from typing import Any


def call(hook: Any, given: tuple[Any, ...]) -> Any:
    return hook(*given)


def call_of_module(hook: Any, module: Any, given: tuple[Any, ...]) -> Any:
    return hook(module, *given)
