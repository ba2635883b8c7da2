"""Tables of what the records in `ops/` say of each op in one field, which are read op by op.

Rooms below do not import `ops/`: each declares its tables, and `rules.py` says where their entries
come from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def _nowhere(op: Any, field: str) -> Any:
    raise AssertionError("ingot.rules.hand_over() comes before the first trace")


class Table(dict[Any, T]):
    """What the records say in a field, by overload. An op of which they say nothing is no key.

    An op is looked up in the records when it is asked for first. So the table holds, and iterates
    over, those that were asked for.
    """

    source: Callable[[Any, str], Any] = staticmethod(_nowhere)

    def __init__(self, field: str) -> None:
        super().__init__()
        self.field = field
        self._asked: set[Any] = set()

    def _ask(self, op: Any) -> None:
        fact = Table.source(op, self.field)
        if fact:
            self.setdefault(op, fact)
        self._asked.add(op)

    def get(self, op: Any, default: Any = None) -> Any:
        if op not in self._asked:
            self._ask(op)
        return super().get(op, default)

    def __getitem__(self, op: Any) -> T:
        if op not in self._asked:
            self._ask(op)
        return super().__getitem__(op)

    def __contains__(self, op: object) -> bool:
        if op not in self._asked:
            self._ask(op)
        return super().__contains__(op)
