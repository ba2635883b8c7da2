"""The LLVM library, loaded on first use: it is 180 MB of shared object, and a program that compiles nothing needs none
of it."""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def llvm() -> Any:
    """`llvmlite.binding`, with this machine's code generator initialized."""
    import llvmlite.binding as binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


@cache
def session() -> Any:
    """The process's one ORC session; compiled libraries are added to it and leave it when their tracker dies."""
    return llvm().create_lljit_compiler(use_jit_link=True)
