"""From the text of kernels to binaries for a device, without a host compiler: Triton is told the target, and neither
its driver nor its launcher is touched. Binaries are kept from process to process, so that Triton need not be imported
for what was compiled before."""

from __future__ import annotations

import hashlib
import json
import linecache
import os
import re
from collections.abc import Container, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from ingot.codegen.store import store_in
from ingot.codegen.triton import ops
from ingot.codegen.triton.kernel import Body, TritonKernel, write_kernel
from ingot.collection import paused_collection
from ingot.errors import Unsupported
from ingot.loops.ir import Origin
from ingot.schedule.kernel import AnyKernel, Kernel
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

    def packed(self) -> bytes:
        facts = [self.function, self.shared, self.threads, self.hidden, len(self.image)]
        return json.dumps(facts).encode() + b"\n" + self.image + self.assembly.encode()

    @staticmethod
    def unpacked(content: bytes) -> Binary:
        facts, _, rest = content.partition(b"\n")
        function, shared, threads, hidden, size = json.loads(facts)
        return Binary(rest[:size], rest[size:].decode(), function, shared, threads, hidden)


class CompiledKernels:
    """Binaries of kernels for a device, each different body once. `seconds` is what writing and compiling took; `wide`
    are the forms of those that have a limit, for sizes beyond it."""

    def __init__(
        self,
        written: dict[Kernel, TritonKernel],
        wide: dict[Kernel, TritonKernel],
        binaries: dict[Body, Binary],
        seconds: dict[str, float],
    ) -> None:
        self._written, self._wide, self._binaries = written, wide, binaries
        self.seconds = seconds

    def written(self, kernel: Kernel) -> TritonKernel:
        return self._written[kernel]

    def binary(self, kernel: Kernel) -> Binary:
        return self._binaries[self._written[kernel].body]

    def wide(self, kernel: Kernel) -> Binary | None:
        """What is launched with the same arguments where the sizes are beyond the kernel's limit, if it has one."""
        return self._binaries[self._wide[kernel].body] if kernel in self._wide else None

    def assembly(self) -> str:
        """What the device's assembler was given."""
        return "\n\n".join(binary.assembly for binary in self._binaries.values())

    def ir(self, kernel: AnyKernel) -> str:
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
    wide: dict[Kernel, TritonKernel] = {}
    shapes: dict[Kernel, list[TritonKernel]] = {}
    different: dict[Body, tuple[TritonKernel, tuple[bool, ...]]] = {}  # and which parameters are aligned at each launch
    for step in steps:
        kernel = step.kernel
        assert isinstance(kernel, Kernel)
        shape = _anonymous(kernel)
        if shape not in shapes:
            shapes[shape] = _forms(kernel)
        written[kernel] = shapes[shape][0]
        if len(shapes[shape]) > 1:
            wide[kernel] = shapes[shape][1]
        aligned = () if step.parts else tuple(name not in unaligned for name in step.arguments)
        for made in shapes[shape]:
            _, before = different.get(made.body, (made, aligned))
            different[made.body] = made, tuple(a and b for a, b in zip(aligned, before))
    emitted = perf_counter()
    compiled = {body: kept for body, given in different.items() if (kept := _kept(_key(given[0], gpu, given[1])))}
    missing = {body: given for body, given in different.items() if body not in compiled}
    if missing:
        import_triton()
        # CPython counts the depth of all the syntax trees being made together: a collection in the midst lets them mix.
        with paused_collection(), ThreadPoolExecutor(max(1, min(len(missing), os.cpu_count() or 1))) as pool:
            built = pool.map(lambda given: _build_and_keep(given[0], gpu, given[1]), missing.values())
            compiled.update(zip(missing, built))
    seconds = {"emit": emitted - start, "compile": perf_counter() - emitted}
    return CompiledKernels(written, wide, {body: compiled[body] for body in different}, seconds)


def _forms(kernel: Kernel) -> list[TritonKernel]:
    """A kernel, and beside one that has a limit its form for sizes beyond it."""
    made = write_kernel(kernel)
    if made.limit is None:
        return [made]
    wide = write_kernel(kernel, wide=True)
    assert wide.sizes == made.sizes
    return [made, wide]


@cache
def available() -> bool:
    """Whether Triton is installed."""
    return find_spec("triton") is not None


def import_triton() -> None:
    """Import what is used of Triton, before several threads do, to whom its modules, which import each other, may seem
    to be only half there. Raises Unsupported where that fails."""
    try:
        import triton._C.libtriton
        import triton.backends.compiler
        import triton.compiler.compiler  # noqa: F401

        exec(HEADER, {})
    except ImportError as problem:
        raise Unsupported(f"Triton cannot be imported: {problem}", skip=True) from problem


# -- what was compiled before ------------------------------------------------------------------------------------------

_FORMAT = 1  # of what is kept
# Variables that decide what Triton makes.
_ASKED = re.compile(r"(TRITON_(?!CACHE|HOME|DUMP)|LLVM_|MLIR_|NVPTX_|PTXAS_|AMDGCN_|DISABLE_)")
_binaries: dict[str, Binary] = {}  # by their keys


def _kept(key: str) -> Binary | None:
    """The binary that was made before, by this process or another."""
    if key not in _binaries and (content := store_in("triton").get(key)) is not None:
        _binaries[key] = Binary.unpacked(content)
    return _binaries.get(key)


def _build_and_keep(kernel: TritonKernel, gpu: Gpu, aligned: Sequence[bool]) -> Binary:
    key, made = _key(kernel, gpu, aligned), build(kernel, gpu, aligned)
    store_in("triton").put(key, made.packed())
    return _binaries.setdefault(key, made)


def _key(kernel: TritonKernel, gpu: Gpu, aligned: Sequence[bool]) -> str:
    """A digest of all that decides a kernel's code; comments, as that of its place, are not of it."""
    text = [line for line in kernel.source.splitlines() if not line.lstrip().startswith("#")]
    dtypes = [f"{p.dtype} {'given' if p.on_host else 'in memory'}" for p in kernel.parameters]
    asked = sorted(item for item in os.environ.items() if _ASKED.match(item[0]))
    options = sorted(_options(kernel, gpu).items())
    form = len(kernel.sizes), kernel.short, kernel.constants
    facts = (_FORMAT, text, dtypes, form, aligned, options, gpu, asked, compiler_digest())
    return hashlib.sha256(repr(facts).encode()).hexdigest()


@cache
def compiler_digest() -> str:
    """What tells the Triton that is installed, and the text that all kernels share, from others."""
    spec = find_spec("triton")
    assert spec is not None and spec.origin is not None
    package, helpers = Path(spec.origin).parent, Path(__file__).with_name("helpers.py")
    found = [file.stat() for file in sorted(package.glob("_C/libtriton*.so"))]
    facts = (Path(spec.origin).read_text(), HEADER, helpers.read_text(), [(f.st_size, f.st_mtime_ns) for f in found])
    return hashlib.sha256(repr(facts).encode()).hexdigest()


# -- what is compiled --------------------------------------------------------------------------------------------------


def build(kernel: TritonKernel, gpu: Gpu, aligned: Sequence[bool] = ()) -> Binary:
    """Compile one kernel, whose parameters are `aligned` (by default all)."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    pointers = {p.name: f"{'' if p.on_host else '*'}{ops.SIGNATURES[p.dtype]}" for p in kernel.parameters}
    integer = "i32" if kernel.short else "i64"  # the native core gives addresses of 64 bits, of which these are the low
    if kernel.table:
        pointers = {"table": "*i64"}
    sizes = {f"size{k}": integer for k in range(len(kernel.sizes))}
    signature = {**pointers, **sizes, **{name: "constexpr" for name, _ in kernel.constants}}
    known = [k for k, p in enumerate(kernel.parameters) if not p.on_host and (not aligned or aligned[k])]
    known = [0] if kernel.table else known
    attributes = {(k,): [["tt.divisibility", ALIGNMENT]] for k in known}
    source = ASTSource(load(kernel), signature, constexprs=dict(kernel.constants), attrs=attributes)
    made, facts = _run_stages(source, GPUTarget(gpu.backend, gpu.arch, gpu.warp_size), _options(kernel, gpu))
    image, assembly = (made[kind] for kind in _ARTEFACTS[gpu.backend])
    given = len(pointers) + len(sizes)
    taken = _parameters(assembly) if gpu.backend == "cuda" else given
    return Binary(image, assembly, facts["name"], facts["shared"], kernel.warps * gpu.warp_size, taken - given)


def _run_stages(source: Any, target: Any, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the stages of Triton's backend make of a kernel, by their names, and the facts that they found. Triton's own
    `compile` also reads all of its library, several hundred megabytes, for the key of its cache."""
    from triton._C.libtriton import ir
    from triton.compiler.compiler import make_backend

    backend = make_backend(target)
    parsed = backend.parse_options(options)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions, modules = backend.get_codegen_implementation(parsed), backend.get_module_map()
    module = source.make_ir(target, parsed, functions, modules, context)
    stages: dict[str, Any] = {}
    backend.add_stages(stages, parsed, source.language)
    facts: dict[str, Any] = {"target": target, **vars(parsed)}
    made: dict[str, Any] = {}
    for name, stage in stages.items():
        made[name] = module = stage(module, facts)
    return made, facts


_ARTEFACTS = {"cuda": ("cubin", "ptx"), "hip": ("hsaco", "amdgcn")}


def _options(kernel: TritonKernel, gpu: Gpu) -> dict[str, Any]:
    """Arithmetic is rounded where it is written, and numbers too small to be normal are kept, as in eager."""
    options: dict[str, Any] = {"num_warps": kernel.warps, "enable_fp_fusion": False, "debug": kernel.asserts}
    options["sanitize_overflow"] = False
    if kernel.stages:
        options["num_stages"] = kernel.stages
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

