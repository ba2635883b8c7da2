"""From the text of kernels to binaries for a device, without a host compiler: Triton is told the target, and neither
its driver nor its launcher is touched."""

from __future__ import annotations

import linecache
import os
import re
from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from time import perf_counter
from typing import Any, NamedTuple

from ingot.codegen.triton import ops
from ingot.codegen.triton.kernel import TritonKernel, write_kernel
from ingot.collection import paused_collection
from ingot.errors import Unsupported
from ingot.loops.ir import Origin
from ingot.schedule.kernel import AttentionKernel, Kernel
from ingot.schedule.plan import KernelStep

HEADER = """import triton
import triton.language as tl
from triton.language.extra import libdevice

from ingot.codegen.triton import helpers


"""

ALIGNMENT = 16  # bytes that buffers are aligned to, at least: what is not is copied before a kernel reads it

_files = count()


class Gpu(NamedTuple):
    """What a binary is for: ("cuda", 90) or ("hip", "gfx942")."""

    backend: str
    arch: int | str

    @property
    def warp_size(self) -> int:
        return 64 if self.backend == "hip" and str(self.arch).startswith("gfx9") else 32


@dataclass(frozen=True)
class Binary:
    """A function of a loadable image. It takes the buffers, the sizes, and then `hidden` pointers that may be null.
    `shared` is the shared memory of a block in bytes, `threads` the number of its threads."""

    image: bytes
    assembly: str
    function: str
    shared: int
    threads: int
    hidden: int


class CompiledKernels:
    """Binaries of kernels for a device, each different body once. `seconds` is what writing and compiling took."""

    def __init__(self, written: dict[Kernel, TritonKernel], binaries: dict[str, Binary], seconds: dict[str, float]):
        self._written, self._binaries = written, binaries
        self.seconds = seconds

    def written(self, kernel: Kernel) -> TritonKernel:
        return self._written[kernel]

    def binary(self, kernel: Kernel) -> Binary:
        return self._binaries[self._written[kernel].source]

    def assembly(self) -> str:
        """What the device's assembler was given."""
        return "\n\n".join(binary.assembly for binary in self._binaries.values())

    def ir(self, kernel: Kernel | AttentionKernel) -> str:
        """The kernel's text."""
        assert isinstance(kernel, Kernel)
        return self._written[kernel].source

    @property
    def function_count(self) -> int:
        """How many different bodies were compiled."""
        return len(self._binaries)


def compile_kernels(steps: Sequence[KernelStep], gpu: Gpu, unaligned: Container[str] = ()) -> CompiledKernels:
    """Compile the kernels of `steps` for a device, equal bodies once. The buffers in `unaligned` may lie anywhere.
    Raises Unsupported for what has no code."""
    if not available():
        raise Unsupported("Triton is not installed: pip install ingot[gpu]", skip=True)
    start = perf_counter()
    written: dict[Kernel, TritonKernel] = {}
    shapes: dict[Kernel, TritonKernel] = {}
    different: dict[str, tuple[TritonKernel, tuple[bool, ...]]] = {}  # and which parameters are aligned at each launch
    for step in steps:
        kernel = step.kernel
        assert isinstance(kernel, Kernel)
        shape = _anonymous(kernel)
        if shape not in shapes:
            shapes[shape] = write_kernel(kernel)
        written[kernel] = made = shapes[shape]
        aligned = tuple(name not in unaligned for name in step.arguments)
        _, before = different.get(made.source, (made, aligned))
        different[made.source] = made, tuple(a and b for a, b in zip(aligned, before))
    emitted = perf_counter()
    # CPython counts the depth of all the syntax trees being made together, which a collection in the midst lets mix.
    with paused_collection(), ThreadPoolExecutor(max(1, min(len(different), os.cpu_count() or 1))) as pool:
        compiled = list(pool.map(lambda item: build(item[0], gpu, item[1]), different.values()))
    seconds = {"emit": emitted - start, "compile": perf_counter() - emitted}
    return CompiledKernels(written, dict(zip(different, compiled)), seconds)


@cache
def available() -> bool:
    """Whether Triton can be imported."""
    try:
        import triton  # noqa: F401
    except ImportError:
        return False
    return True


def build(kernel: TritonKernel, gpu: Gpu, aligned: Sequence[bool] = ()) -> Binary:
    """Compile one kernel, whose parameters are `aligned` (by default all)."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    pointers = {p.name: f"*{ops.SIGNATURES[p.dtype]}" for p in kernel.parameters}
    sizes = {f"size{k}": "i64" for k in range(len(kernel.sizes))}
    signature = {**pointers, **sizes, **{name: "constexpr" for name, _ in kernel.constants}}
    known = [k for k in range(len(pointers)) if not aligned or aligned[k]]
    attributes = {(k,): [["tt.divisibility", ALIGNMENT]] for k in known}
    source = ASTSource(load(kernel), signature, constexprs=dict(kernel.constants), attrs=attributes)
    target = GPUTarget(gpu.backend, gpu.arch, gpu.warp_size)
    compiled = triton.compile(source, target=target, options=_options(kernel, gpu))
    image, assembly = (compiled.asm[kind] for kind in _ARTEFACTS[gpu.backend])
    given = len(pointers) + len(sizes)
    taken = _parameters(assembly) if gpu.backend == "cuda" else given
    metadata = compiled.metadata
    return Binary(image, assembly, metadata.name, metadata.shared, kernel.warps * gpu.warp_size, taken - given)


_ARTEFACTS = {"cuda": ("cubin", "ptx"), "hip": ("hsaco", "amdgcn")}


def _options(kernel: TritonKernel, gpu: Gpu) -> dict[str, Any]:
    """Arithmetic is rounded where it is written, and numbers too small to be normal are kept, as in eager."""
    options: dict[str, Any] = {"num_warps": kernel.warps, "enable_fp_fusion": False, "debug": kernel.asserts}
    options["sanitize_overflow"] = False
    if gpu.backend == "cuda":
        options["enable_reflect_ftz"] = False
    return options


def load(kernel: TritonKernel) -> Any:
    """The function that Triton compiles. Its text is where `inspect` and tracebacks look for it."""
    text = HEADER + kernel.source
    file = f"<ingot kernel {next(_files)} {kernel.name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict[str, Any] = {"__name__": f"ingot.kernels.{kernel.name}"}
    exec(compile(text, file, "exec"), names)
    return names[kernel.name]


def _parameters(ptx: str) -> int:
    """How many parameters the kernel takes, those that Triton adds included."""
    entry = re.search(r"\.entry [^(]*\(([^)]*)\)", ptx)
    return entry.group(1).count(".param") if entry else 0


def _anonymous(kernel: Kernel) -> Kernel:
    """The kernel without names: equal for equal code."""
    return replace(kernel, name="", origin=Origin(()))

