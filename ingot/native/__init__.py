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
from ingot.torch_private import (
    Missing,
    cuda_get_memory_metadata,
    cuda_is_history_enabled,
    cuda_set_memory_metadata,
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

# torch's snapshots of GPU memory have a text beside each allocation; older ones have none
if not isinstance(cuda_set_memory_metadata, Missing):
    _native.name_memory_by(
        cuda_is_history_enabled, cuda_get_memory_metadata, cuda_set_memory_metadata
    )

if os.environ.get("INGOT_NVTX", "0") not in ("", "0"):
    from torch.cuda import nvtx

    _native.mark_steps(nvtx.range_push, nvtx.range_pop)
