"""Which arguments C functions take, as their signatures say it."""

from __future__ import annotations

import builtins
import inspect
import math
from typing import Any

from ingot.capture.values.signatures import _CLASSES, counts_taken


def functions() -> list[Any]:
    found = [*vars(math).values(), *vars(builtins).values(), [].append, {}.get, dict.fromkeys]
    for cls in _CLASSES:
        found += vars(cls).values()
    return found


def test_counts_are_those_of_the_signature():
    compared = 0
    for function in functions():
        counts = counts_taken(function)
        if counts is None:
            continue
        parameters = inspect.signature(function).parameters.values()
        assert {p.kind for p in parameters} <= {inspect.Parameter.POSITIONAL_ONLY}, function
        required = [p for p in parameters if p.default is p.empty]
        assert counts == range(len(required), len(parameters) + 1), function
        compared += 1
    assert compared > 200


def test_counts_of_methods_have_the_instance():
    assert counts_taken(dict.get) == range(2, 4) and counts_taken({}.get) == range(1, 3)
    assert counts_taken(str.split) is None  # which takes keywords
