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

    These are what the user wrote that asked for the ops, each once."""

    ops: tuple[str, ...]
    where: str = ""
    calls: tuple[str, ...] = ()

    @staticmethod
    def of(op: str, where: str) -> Origin:
        """The origin of one op, at a line that may say what is called there."""
        return Origin((op,), where, tuple(filter(None, [call_at(where)])))

    def merged(self, *others: Origin) -> Origin:
        """The union of origins, each op kept once per occurrence, the first known line kept."""
        ops, where, calls = self.ops, self.where, dict.fromkeys(self.calls)
        for other in others:
            ops += other.ops
            where = where or other.where
            calls.update(dict.fromkeys(other.calls))
        return Origin(ops, where, tuple(calls))
