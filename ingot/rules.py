"""Hands what the records in `ops/` say of each op to the rooms that use it (see `tables.py`)."""

from __future__ import annotations

from ingot.tables import Table


def hand_over() -> None:
    """Let the rooms' tables read the records. It comes before the first trace."""
    from ingot.ops import fact

    Table.source = staticmethod(fact)
