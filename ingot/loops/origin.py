"""Where what a program computes came from: the ops, and the user's line."""

from __future__ import annotations

from typing import NamedTuple


class Origin(NamedTuple):
    """Where a node came from: the ATen ops it computes, and the user's line (`file:line`, or "").

    `nodes` are the ops' names in the ATen graph, for reports. They make no origin another one.
    """

    ops: tuple[str, ...]
    where: str = ""
    nodes: tuple[str, ...] = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Origin) and self[:2] == other[:2]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self[:2])

    def merged(self, other: Origin) -> Origin:
        """The union of two origins, each op kept once per occurrence, the first known line kept."""
        where = self.where or other.where
        return Origin(self.ops + other.ops, where, self.nodes + other.nodes)
