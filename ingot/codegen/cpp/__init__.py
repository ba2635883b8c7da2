"""CPU code through C++: the same kernels as text that people read, ship and port."""

from ingot.codegen.cpp.module import CompiledKernels, compile_kernels

__all__ = ["CompiledKernels", "compile_kernels"]
