"""The machine that code is generated for: its name, its features, and how wide its vectors are."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from typing import Any

from ingot.codegen.llvm.library import llvm


@dataclass(frozen=True)
class Target:
    """A triple, a CPU name, a feature string, and the bytes of one vector register.

    `long_text` characters of text are worth a module of their own, each of which takes 10 ms before
    its first function. Less than `short_text` takes no other thread: a signal can wait for it.
    """

    triple: str
    cpu: str
    features: str
    vector_bytes: int
    long_text: int = 60_000
    short_text: int = 30_000

    @property
    def rounds_brains(self) -> bool:
        """Whether there is an instruction that rounds floats to brain floats."""
        return "+avx512bf16" in self.features.split(",")

    @property
    def estimates_roots(self) -> bool:
        """Whether an estimate of a square root and seven multiplications take less time than the
        instruction for it: not on AMD's processors."""
        return self.vector_bytes == 64 and not self.cpu.startswith("znver")

    def machine(self) -> Any:
        """A new llvmlite TargetMachine. Position independent code, because a compiled object may be
        loaded anywhere."""
        target = llvm().Target.from_triple(self.triple)
        return target.create_target_machine(
            cpu=self.cpu, features=self.features, opt=2, reloc="pic", codemodel="small", jit=True
        )


@cache
def host() -> Target:
    """This machine."""
    binding = llvm()
    features = binding.get_host_cpu_features()
    if features.get("avx512f") and features.get("avx512dq"):
        width = 64
    elif features.get("avx2"):
        width = 32
    else:
        width = 16
    return Target(
        binding.get_default_triple(), binding.get_host_cpu_name(), features.flatten(), width
    )


def chosen() -> Target:
    """What code is generated for by default: this machine, or the target that INGOT_TARGET
    names."""
    name = os.environ.get("INGOT_TARGET")
    if not name:
        return host()
    if name not in NAMED:
        raise ValueError(f"INGOT_TARGET must be one of {', '.join(NAMED)}, not {name!r}")
    return named(name)


# Targets by name, for compiling without running, or for running on less than this machine has.
NAMED = {
    "avx2": Target("x86_64-unknown-linux-gnu", "haswell", "", 32),
    "avx512": Target("x86_64-unknown-linux-gnu", "skylake-avx512", "", 64),
    "zen4": Target("x86_64-unknown-linux-gnu", "znver4", "+avx512bf16", 64),
    "neon": Target("aarch64-unknown-linux-gnu", "neoverse-n1", "", 16),
}


def named(name: str) -> Target:
    """The target called `name` in `NAMED`; all of LLVM's targets are initialized. Raises KeyError
    for another name."""
    initialize_all()
    return NAMED[name]


def initialize_all() -> None:
    """Initializes all of LLVM's targets, to generate code for other machines."""
    binding = llvm()
    binding.initialize_all_targets()
    binding.initialize_all_asmprinters()
