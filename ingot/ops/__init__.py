"""What Ingot knows of each ATen op: one record each, a file per family.

`rules.py` hands the columns of these records, as tables, to the rooms that use them. A family may
use the interfaces of graph and loops; no room imports a family.
"""

from __future__ import annotations

from importlib import import_module
from itertools import chain
from typing import Any

from ingot.ops.op import Op
from ingot.torch_private import OpOverload

_NAMES = (
    "activations arithmetic arrays attention control_flow conversions convolution "
    "convolution_backward creation functions indexing launches logic losses norms pooling products "
    "ragged random rearranging recurrent reductions resampling resampling_backward sampling scans "
    "scatters scored_attention searching softmax special views"
)
FAMILIES = tuple([import_module(f"ingot.ops.{name}") for name in _NAMES.split()])


RECORDS: tuple[Op, ...] = tuple(chain.from_iterable([family.OPS for family in FAMILIES]))


def table(field: str) -> dict[OpOverload, Any]:
    """A field of the records as a table by overload, of those that have it."""
    facts: dict[OpOverload, Any] = {}
    for record in RECORDS:
        fact = getattr(record, field)
        if fact:
            facts |= dict.fromkeys(record.overloads, fact)
    return facts
