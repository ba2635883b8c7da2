"""What Ingot knows of each ATen op: one record each, a file per family.

`tables.py` has the columns of these records, as tables, for the rooms that use them. A family may
use the interfaces of graph and loops; no room imports a family. A family is imported when one of
its ops is asked for first: all of them take a third of the time in which a program that was kept
is found.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any

from ingot.ops.index import NAMES

if TYPE_CHECKING:
    from ingot.ops.op import Op

_FAMILY_OF: dict[str, str] = {}
for _family, _names in NAMES.items():
    _FAMILY_OF.update(dict.fromkeys(_names.split(), _family))


def fact(op: Any, field: str) -> Any:
    """What the record of an overload says in a field; None if it has none, or is no overload."""
    schema = getattr(op, "_schema", None)
    family = _FAMILY_OF.get(getattr(schema, "name", "").removeprefix("aten::"))
    if family is None:
        return None
    return getattr(_records_of(family).get(op), field, None)


@cache
def _records_of(family: str) -> dict[Any, Op]:
    by_overload = {}
    for record in import_module(f"ingot.ops.{family}").OPS:
        by_overload.update(dict.fromkeys(record.overloads, record))
    return by_overload


def records() -> list[Op]:
    """Those of all families, each once."""
    everything = chain.from_iterable([_records_of(family).values() for family in NAMES])
    return list(dict.fromkeys(everything))


def table(field: str) -> dict[Any, Any]:
    """A field of all records as a table by overload, of those that have it."""
    facts: dict[Any, Any] = {}
    for record in records():
        found = getattr(record, field)
        if found:
            facts |= dict.fromkeys(record.overloads, found)
    return facts
