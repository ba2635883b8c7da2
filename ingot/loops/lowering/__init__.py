"""Lowering: from a functional ATen graph to loop IR."""

from ingot.loops.lowering.lower import lower

__all__ = ["lower"]
