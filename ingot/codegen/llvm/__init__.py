"""CPU code through LLVM: `module.compile_kernels` is where it begins.

Nothing is imported here, so what only links kernels imports no code generator.
"""
