"""Processors that artifacts are made for, by name, and what a processor must have for them."""

from __future__ import annotations

import platform
from typing import Any

V3 = "avx2 bmi bmi2 f16c fma lzcnt movbe sse4.2 popcnt"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"

NAMED: dict[str, tuple[str, str, int, str]] = {
    # name: (triple, name in LLVM, bytes of a vector, features)
    "x86-64-v3": ("x86_64-unknown-linux-gnu", "x86-64-v3", 32, V3),
    "x86-64-v4": ("x86_64-unknown-linux-gnu", "x86-64-v4", 64, V4),
    "aarch64": ("aarch64-unknown-linux-gnu", "generic", 16, "neon"),
}
"""Baselines by the names that users know them by."""

PLAIN = {"x86_64": "x86-64", "aarch64": "generic"}
"""What every processor of an architecture has."""

_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def machine() -> str:
    """The architecture of this processor, as LLVM calls it."""
    name = platform.machine().lower()
    return _MACHINES.get(name, name)


def baseline() -> str:
    """The highest baseline that this processor has; "" where it has none of them."""
    for name in ("x86-64-v4", "x86-64-v3", "aarch64"):
        triple, _, _, features = NAMED[name]
        if not missing_features(triple.partition("-")[0], tuple(features.split())):
            return name
    return ""


def missing_features(architecture: str, features: tuple[str, ...]) -> list[str]:
    """What this processor lacks of what a program needs; the architecture if that is another."""
    if architecture != machine():
        return [architecture]
    if not features:
        return []
    from ingot.codegen.llvm.library import llvm

    known: Any = llvm().get_host_cpu_features()
    return [name for name in features if not known.get(name)]
