"""GPU code through Triton: `compile_kernels` and what it can emit. Triton is imported with the
first kernel."""

from ingot.codegen.triton.kernel import TritonKernel, write_kernel
from ingot.codegen.triton.module import CompiledKernels, Gpu, begin_kernels, compile_kernels
from ingot.codegen.triton.ops import supported

__all__ = [
    "CompiledKernels",
    "Gpu",
    "TritonKernel",
    "begin_kernels",
    "compile_kernels",
    "supported",
    "write_kernel",
]
