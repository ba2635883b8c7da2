"""The errors of Ingot. A program's own errors are never wrapped: they are raised as eager would raise them."""

from __future__ import annotations

from typing import Any


class IngotError(Exception):
    """Base of every error that Ingot raises on its own account."""


class Unsupported(IngotError):
    """Something cannot be compiled (yet): the call runs in eager and this reason is kept for the report.

    `where` is the user's "file:line", `hint` what to change. `guards` are the facts that led there, set by capture,
    so that the decision to run in eager holds for as long as they do.
    """

    def __init__(self, reason: str, where: str = "", hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.where = where
        self.hint = hint
        self.guards: Any = None

    def __str__(self) -> str:
        place = f" at {self.where}" if self.where else ""
        hint = f" (hint: {self.hint})" if self.hint else ""
        return f"{self.reason}{place}{hint}"


class EagerRaises(Unsupported):
    """The program itself is about to raise an error here: the call runs in eager, under `fullgraph` too, so that it is
    raised as eager raises it."""


class GraphBreakError(IngotError):
    """Raised under `fullgraph=True` where the call would have run in eager; the text has reason, place and hint, which
    are attributes too."""

    def __init__(self, why: Unsupported) -> None:
        super().__init__(str(why))
        self.reason, self.where, self.hint = why.reason, why.where, why.hint


class CompilerBug(IngotError):
    """An invariant of Ingot's own does not hold. Names the stage, the node and the user's line."""

    def __init__(self, stage: str, problem: str, node: str = "", where: str = "") -> None:
        parts = [f"{stage}: {problem}"]
        if node:
            parts.append(f"node {node}")
        if where:
            parts.append(f"from {where}")
        super().__init__("; ".join(parts))
        self.stage, self.problem, self.node, self.where = stage, problem, node, where
