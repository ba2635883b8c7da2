"""The C extension: guard walk, dispatch and the program runner."""

import os

from ingot.native import _native
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

if os.environ.get("INGOT_NVTX", "0") not in ("", "0"):
    from torch.cuda import nvtx

    _native.mark_steps(nvtx.range_push, nvtx.range_pop)
