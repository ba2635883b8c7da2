"""CPU code through LLVM: `compile_kernels` and what it can emit."""

from ingot.codegen.llvm.module import CompiledKernels, compile_kernels
from ingot.codegen.llvm.prepack import prepack
from ingot.codegen.llvm.scalar import supported_ops
from ingot.codegen.llvm.target import Target, host, named

__all__ = [
    "CompiledKernels",
    "Target",
    "compile_kernels",
    "host",
    "named",
    "prepack",
    "supported_ops",
]
