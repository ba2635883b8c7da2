"""What profilers call the steps of a program.

`ingot::linear+gelu backward model.py:12 self.layers[0] [gelu_backward, mm]`: the calls that the
user wrote, or the kernel's own name where they are not known; their line; the module whose
`forward` made them; the ATen ops. Tables cut names off behind some 50 characters, so what matters
most comes first.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable

from ingot.places import module_at
from ingot.runtime.traces import Step
from ingot.schedule.plan import KernelStep, Plan

MEMORY_STEPS = {"allocate": "ingot::allocate", "release": "ingot::release"}
"""The names of native steps that take and give back memory, by their kind."""

_MOST_CALLS, _MOST_OPS = 4, 8


def step_names(plan: Plan) -> list[str]:
    """The name of each step of a plan."""
    origins = [_origin(step) for step in plan.steps]
    seen = Counter(map(id, origins))
    names = []
    for step, origin in zip(plan.steps, origins):
        module = module_at(origin.where)
        # the steps of layers that are like others are those of one layer
        if plan.graph.layers is not None and seen[id(origin)] > 1:
            module = re.sub(r"\[\d+\]", "[*]", module)
        words = [_listed("+", origin.calls, _MOST_CALLS) or _own_name(step)]
        if plan.graph.is_backward:
            words.append("backward")
        words += filter(None, [_short_place(origin.where), module])
        names.append(f"ingot::{' '.join(words)} [{_ops_text(origin.ops)}]")
    return names


def _origin(step: Step):
    return step.kernel.origin if isinstance(step, KernelStep) else step.node.origin


def _own_name(step: Step) -> str:
    if isinstance(step, KernelStep):
        return step.kernel.name
    return _short_op(getattr(step.node.function, "__name__", str(step.node.function)))


def _listed(separator: str, items: Iterable[str], most: int) -> str:
    """The first items, and a sign that there are more."""
    shown = list(items)
    if len(shown) > most:
        shown[most:] = ["..."]
    return separator.join(shown)


def _ops_text(ops: Iterable[str]) -> str:
    counts = Counter(map(_short_op, ops))
    texts = []
    for op, count in counts.items():
        texts.append(op if count == 1 else f"{op} x{count}")
    return _listed(", ", texts, _MOST_OPS)


def _short_op(op: str) -> str:
    """An op without its namespace and overload."""
    parts = op.split(".")
    return parts[1] if len(parts) > 2 else parts[0]


def _short_place(where: str) -> str:
    """A place with the name of the file alone."""
    return os.path.basename(where)
