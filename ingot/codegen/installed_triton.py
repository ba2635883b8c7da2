"""The Triton that is installed: whether there is one, and what tells it from another.

Nothing of it is imported.
"""

from __future__ import annotations

import os
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

# Variables that decide what Triton makes.
_VARIABLE = re.compile(r"(TRITON_(?!CACHE|HOME|DUMP)|LLVM_|MLIR_|NVPTX_|PTXAS_|AMDGCN_|DISABLE_)")


@cache
def available() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


@cache
def package_facts() -> tuple[str, tuple[tuple[int, int], ...]]:
    """The package's first file, and sizes and times of its libraries; empty where there is none."""
    spec = find_spec("triton")
    if spec is None or spec.origin is None:
        return "", ()
    libraries = []
    for file in sorted(Path(spec.origin).parent.glob("_C/libtriton*.so")):
        status = file.stat()
        libraries.append((status.st_size, status.st_mtime_ns))
    return Path(spec.origin).read_text(), tuple(libraries)


def variables_of_triton() -> tuple[tuple[str, str], ...]:
    """The variables of the environment that decide what it makes."""
    found = []
    for item in sorted(os.environ.items()):
        if _VARIABLE.match(item[0]):
            found.append(item)
    return tuple(found)
