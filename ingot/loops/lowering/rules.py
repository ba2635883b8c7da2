"""The registry of lowering rules: ATen overload -> function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Rule = Callable[..., Any]

RULES: dict[Any, Rule] = {}


class NotLowered(Exception):
    """Raised by a rule for a form of its op that it does not take: the op is then called in
    ATen."""
