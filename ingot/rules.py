"""Hands what the records in `ops/` say of each op to the rooms that use it, as tables by overload.

Rooms below do not import `ops/`: each declares an empty table, filled here before the first
capture.
"""

from __future__ import annotations

from functools import cache


@cache
def hand_over() -> None:
    """Fill the rooms' tables. What this imports takes long enough to wait for the first capture."""
    from ingot.graph import checks, data_dependent, decompositions, geometry, meta, schemas
    from ingot.loops.lowering import rules as lowering
    from ingot.ops import table

    decompositions.DECOMPOSITIONS.update(table("decompose"))
    meta.RULES.update(table("meta"))
    meta.RULES_ON_GPUS.update(table("gpu_meta"))
    checks.REFUSALS.update(table("refuses"))
    schemas.MAY_RAISE.update(table("may_raise"))
    data_dependent.TAKES_NO_ELEMENTS.update(table("takes_no_elements"))
    geometry.LAST_FIRST.update(table("last_operand_first"))
    schemas.COSTS.update(table("cost"))
    lowering.RULES.update(table("lower"))
    lowering.LIBRARY_CALLS.update(table("library"))
    lowering.READS_PART.update(table("reads_part"))
