"""From a call to a torch graph, its guards and what is left to Python."""

from ingot.capture.captured import (
    Captured,
    GraphInput,
    Request,
    argument_slots,
    capture_call,
    capture_continuation,
    check_donated,
)
from ingot.capture.chain import Chain

__all__ = [
    "Captured",
    "Chain",
    "GraphInput",
    "Request",
    "argument_slots",
    "capture_call",
    "capture_continuation",
    "check_donated",
]
