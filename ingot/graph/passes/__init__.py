"""The passes over an ATen graph."""

from ingot.graph.passes.pipeline import run_passes

__all__ = ["run_passes"]
