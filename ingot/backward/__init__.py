"""Backward passes over graph breaks as one compiled graph."""

from ingot.backward.engine import compiled_backward, reset

__all__ = ["compiled_backward", "reset"]
