"""The C extension: guard walk, dispatch and the program runner."""

from ingot.native._native import (
    Continue,
    Dispatcher,
    Entry,
    GuardTree,
    Program,
    call_eager,
    runs_eager,
    set_eager,
)

__all__ = [
    "Continue",
    "Dispatcher",
    "Entry",
    "GuardTree",
    "Program",
    "call_eager",
    "runs_eager",
    "set_eager",
]
