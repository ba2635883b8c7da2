"""The registry of lowering rules: ATen overload -> function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Rule = Callable[..., Any]

RULES: dict[Any, Rule] = {}


class NotLowered(Exception):
    """Raised by a rule for a form of its op that it does not take: the op is then called in
    ATen."""


def lowers(*overloads: Any) -> Callable[[Rule], Rule]:
    """Register a rule `(lowering, out, *args, **kwargs) -> value` for ATen overloads.

    `out` is the `Spec` of the result (a tuple of them for several); tensors among the arguments are
    `TensorValue`s, symbolic ints are `Expr`s. The rule returns a `TensorValue`, or a tuple of them.
    """

    def register(rule: Rule) -> Rule:
        for overload in overloads:
            RULES[overload] = rule
        return rule

    return register
