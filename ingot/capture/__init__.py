"""From a call to a torch graph, its guards and what is left to Python."""

from ingot.capture.captured import Captured, GraphInput, argument_slots, capture_call

__all__ = ["Captured", "GraphInput", "argument_slots", "capture_call"]
