"""Symbolic sizes: torch.SymInt over Ingot's own index expressions, and the guards that their comparisons leave."""

from __future__ import annotations


class ShapeContext:
    def __init__(self) -> None:
        self.guards: list = []
