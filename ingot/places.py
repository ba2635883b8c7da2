"""Places in the user's code, as each step from capture to the machine code hands them on."""

from __future__ import annotations

from typing import NamedTuple


class Place(str):
    """A line of the user's, "file:line", and what ran there.

    `call` is the name of the function of torch, or of the operator, that is called there; `module`
    is the path of the module whose `forward` runs ("self.layers[0].norm"), "" outside of one.
    """

    __slots__ = ("call", "module")
    call: str
    module: str

    def __new__(cls, line: str, call: str = "", module: str = "") -> Place:
        place = super().__new__(cls, line)
        place.call, place.module = call, module
        return place


def call_at(line: str) -> str:
    """What is called at a place, "" where that is not known."""
    return getattr(line, "call", "")


def module_at(line: str) -> str:
    """The path of the module whose `forward` runs there, "" where there is none."""
    return getattr(line, "module", "")


class Origin(NamedTuple):
    """Where a node came from: its ATen ops, the user's line (`file:line`, or ""), and the calls.

    These are what the user wrote that asked for the ops, each once. `nodes` are the ops' names in
    the ATen graph, for reports; they make no origin another one.
    """

    ops: tuple[str, ...]
    where: str = ""
    calls: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()

    @staticmethod
    def of(op: str, where: str, node: str) -> Origin:
        """The origin of one op, at a line that may say what is called there, by its node."""
        return Origin((op,), where, tuple(filter(None, [call_at(where)])), (node,))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Origin) and self[:3] == other[:3]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self[:3])

    def merged(self, *others: Origin) -> Origin:
        """The union of origins, each op kept once per occurrence, the first known line kept."""
        ops, where, nodes, calls = self.ops, self.where, self.nodes, dict.fromkeys(self.calls)
        for other in others:
            ops += other.ops
            nodes += other.nodes
            where = where or other.where
            calls.update(dict.fromkeys(other.calls))
        return Origin(ops, where, tuple(calls), nodes)
