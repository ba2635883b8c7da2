"""From the text of kernels to binaries for a device, without a host compiler.

Triton is told the target, and neither its driver nor its launcher is touched. Binaries are kept
from process to process, so that Triton need not be imported for what was compiled before.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from ingot.codegen.installed_triton import available, package_facts, variables_of_triton
from ingot.codegen.loaded_kernels import Image
from ingot.codegen.store import store_in
from ingot.codegen.triton import ops, translation
from ingot.codegen.triton.forms import Form, forms_of, general_form
from ingot.codegen.triton.kernel import Body, TritonKernel, write_kernel
from ingot.codegen.triton.translation import HEADER, Text, Translated
from ingot.codegen.triton.workers import SOON, WORKERS, Job, how_many
from ingot.collection import paused_collection
from ingot.errors import CompilerBug, unsupported
from ingot.loops.expr import Symbol
from ingot.schedule.kernel import AnyKernel, Kernel, anonymous
from ingot.schedule.plan import KernelStep
from ingot.serial import in_threads, whole

# bytes that buffers are aligned to, at least: others are copied before a kernel reads them
ALIGNMENT = 16

_NO_SIZES: Mapping[Symbol, int] = {}


class Gpu(NamedTuple):
    """What a binary is for: ("cuda", 90) or ("hip", "gfx942")."""

    backend: str
    arch: int | str

    @property
    def warp_size(self) -> int:
        if self.backend == "hip" and str(self.arch).startswith("gfx9"):
            return 64
        return 32


@dataclass(frozen=True)
class Binary:
    """A function of a loadable image.

    It takes the buffers, the sizes, and then `hidden` pointers that may be null. `shared` is the
    shared memory of a block in bytes, `threads` the number of its threads.
    """

    image: bytes
    assembly: str
    function: str
    shared: int
    threads: int
    hidden: int

    @property
    def launched(self) -> Image:
        """What a GPU is given of it."""
        return Image(self.image, self.function, self.shared, self.threads, self.hidden)

    def packed(self) -> bytes:
        facts = [self.function, self.shared, self.threads, self.hidden, len(self.image)]
        return json.dumps(facts).encode() + b"\n" + self.image + self.assembly.encode()

    @staticmethod
    def unpacked(content: bytes) -> Binary:
        facts, _, images = content.partition(b"\n")
        function, shared, threads, hidden, size = json.loads(facts)
        return Binary(images[:size], images[size:].decode(), function, shared, threads, hidden)


class CompiledForm:
    """A form of a kernel, by its number, written and compiled when it is asked for. The general one
    is written already.

    It is launched where the `conditions` hold, in `grid` blocks.
    """

    def __init__(
        self,
        kernel: Kernel,
        form: Form,
        general: TritonKernel,
        gpu: Gpu,
        aligned: Sequence[bool],
        number: int,
        is_general: bool,
    ):
        self.number = number
        self._kernel, self._form, self._general = kernel, form, general
        self._gpu, self.aligned = gpu, tuple(aligned)
        self.conditions = form.conditions
        self.is_general = is_general
        self.grid = form.blocks.count(kernel)
        self._written = general if is_general else None
        self._binary: Binary | None = None
        self.job: Job[Binary] | None = None  # that makes the binary

    @property
    def written(self) -> TritonKernel:
        if self._written is None:
            self._written = write_kernel(self._kernel, self._form, self._general.sizes)
            assert self._written.sizes == self._general.sizes
        return self._written

    @property
    def is_compiled(self) -> bool:
        """Whether the binary is there, or a worker is at it."""
        return self._binary is not None or self.job is not None

    @property
    def binary(self) -> Binary:
        if self._binary is None and self.job is not None:
            self._binary, self.job = self.job.result(), None
        if self._binary is None:
            text = self.written, self._gpu, self.aligned
            self._binary = _kept(_key(*text)) or _build_when_called(*text)
        return self._binary

    @binary.setter
    def binary(self, binary: Binary) -> None:
        self._binary = binary


class CompiledKernels:
    """Binaries of kernels for a device.

    Of the `forms` of each the first is launched whose conditions hold; those that the hints of the
    sizes ask for are compiled, each different body once. `seconds` is what writing and compiling
    took. Nothing of it runs on the CPU, which the empty `names` and `objects` say.
    """

    names: tuple[str, ...] = ()
    objects: tuple[bytes, ...] = ()

    def __init__(
        self,
        forms: dict[Kernel, list[CompiledForm]],
        chosen: dict[Kernel, CompiledForm],
        seconds: dict[str, float],
    ) -> None:
        self._forms, self._chosen = forms, chosen
        self.seconds = seconds

    @property
    def is_done(self) -> bool:
        """Whether no worker is at one of the kernels."""
        return all(job.is_done for job in self._jobs())

    def wait(self) -> None:
        """Waits for the kernels that workers are at. Raises their errors."""
        start = perf_counter()
        WORKERS.hurry(list(self._jobs()))
        for form in self._chosen.values():
            _ = form.binary
        self.seconds["compile"] += perf_counter() - start

    def _jobs(self) -> Iterator[Job[Binary]]:
        for form in self._chosen.values():
            if form.job is not None:
                yield form.job

    def forms(self, kernel: Kernel) -> list[CompiledForm]:
        return self._forms[kernel]

    def written(self, kernel: Kernel) -> TritonKernel:
        """The form that the hints of the sizes ask for."""
        return self._chosen[kernel].written

    def binary(self, kernel: Kernel) -> Binary:
        return self._chosen[kernel].binary

    def assembly(self) -> str:
        """The text that the device's assembler reads."""
        return "\n\n".join(binary.assembly for binary in self._binaries().values())

    def ir(self, kernel: AnyKernel) -> str:
        """The kernel's text."""
        assert isinstance(kernel, Kernel)
        return self.written(kernel).source

    def module_text(self, kernels: Iterable[AnyKernel]) -> str:
        """A Python file with these kernels, that imports what they call: equal ones are in it
        once."""
        return HEADER + "\n\n".join(dict.fromkeys(map(self.ir, kernels)))

    @property
    def function_count(self) -> int:
        """How many different bodies were compiled."""
        return len(self._binaries())

    def _binaries(self) -> dict[Body, Binary]:
        compiled = []
        for forms in self._forms.values():
            for form in forms:
                if form.is_compiled:
                    compiled.append(form)
        return {form.written.body: form.binary for form in compiled}


Written = tuple[TritonKernel, tuple[bool, ...]]
"""A kernel that is written, and which of its parameters are aligned."""


def compile_kernels(
    steps: Sequence[KernelStep],
    gpu: Gpu,
    unaligned: Container[str] = (),
    sizes: Mapping[Symbol, int] = _NO_SIZES,
) -> CompiledKernels:
    """Compile the kernels of `steps` for a device, equal bodies once.

    It compiles the forms for these sizes, or the general ones where they are not said. The buffers
    in `unaligned` may lie anywhere. Raises Unsupported for what has no code.
    """
    compiled = begin_kernels(steps, gpu, unaligned, sizes)
    compiled.wait()
    return compiled


def begin_kernels(
    steps: Sequence[KernelStep],
    gpu: Gpu,
    unaligned: Container[str] = (),
    sizes: Mapping[Symbol, int] = _NO_SIZES,
    when: int = SOON,
) -> CompiledKernels:
    """The same, where workers may still be at them: see `CompiledKernels.wait`. `when` is one of
    `workers`' words."""
    if not available():
        raise unsupported("compiler-missing", "Triton is not installed: pip install triton")
    start = perf_counter()
    shapes: dict[Kernel, Kernel] = {}
    aligned: dict[Kernel, tuple[bool, ...]] = {}  # which parameters are so at each launch
    for step in steps:
        kernel = step.kernel
        assert isinstance(kernel, Kernel)
        shape = shapes[kernel] = anonymous(kernel, keep_lengths=True)
        here = () if step.extents else tuple(name not in unaligned for name in step.arguments)
        aligned[shape] = _both(here, aligned.get(shape, here))
    named = {shape: kernel for kernel, shape in reversed(shapes.items())}
    forms = {shape: _forms(kernel, gpu, aligned[shape]) for shape, kernel in named.items()}
    chosen = {shape: _form_for(of_shape, sizes) for shape, of_shape in forms.items()}
    texts: dict[Body, Written] = {}
    for form in chosen.values():
        body = form.written.body
        _, before = texts.get(body, (form.written, form.aligned))
        texts[body] = form.written, _both(form.aligned, before)
    emitted = perf_counter()
    compiled = _begun(texts, gpu, when)
    for form in chosen.values():
        binary = compiled[form.written.body]
        if isinstance(binary, Job):
            form.job = binary
        else:
            form.binary = binary
    seconds = {"emit": emitted - start, "compile": perf_counter() - emitted}
    each = shapes.items()
    return CompiledKernels({k: forms[s] for k, s in each}, {k: chosen[s] for k, s in each}, seconds)


def _both(a: Sequence[bool], b: Sequence[bool]) -> tuple[bool, ...]:
    return tuple(x and y for x, y in zip(a, b))


def _begun(texts: Mapping[Body, Written], gpu: Gpu, when: int) -> dict[Body, Binary | Job[Binary]]:
    """The binaries of different bodies: those of the store, and the others, or the jobs that make
    these."""
    begun: dict[Body, Binary | Job[Binary]] = {}
    missing: dict[Body, tuple[Written, str]] = {}
    for body, written in texts.items():
        key = _key(written[0], gpu, written[1])
        known = _kept(key) or _jobs.get(key)
        if known is None:
            missing[body] = written, key
        else:
            begun[body] = known
    if not missing:
        return begun
    jobs = {body: _job(*written, gpu, key) for body, (written, key) in missing.items()}
    keys = [key for _, key in missing.values()]
    _jobs.update(zip(keys, jobs.values()))
    if WORKERS.take(list(jobs.values()), how_many(len(jobs)), when):
        return begun | jobs
    for key in keys:
        del _jobs[key]
    import_triton()
    at_once = max(1, min(len(missing), os.cpu_count() or 1))

    def built(missing: tuple[Written, str]) -> Binary:
        (kernel, aligned), _ = missing
        return _build_and_keep(kernel, gpu, aligned)

    # CPython counts the depth of all the syntax trees being made together: a collection in
    # the midst lets them mix.
    with paused_collection():
        begun.update(zip(missing, in_threads(built, missing.values(), at_once)))
    return begun


def _job(kernel: TritonKernel, aligned: tuple[bool, ...], gpu: Gpu, key: str) -> Job[Binary]:
    """What a worker has to do for a kernel."""

    def made(translated: Translated) -> Binary:
        binary = _binary_of(kernel, gpu, translated)
        store_in("triton").put(key, binary.packed())
        binary = _binaries.setdefault(key, binary)
        _jobs.pop(key, None)
        return binary

    def here() -> Binary:
        _jobs.pop(key, None)
        return _build_when_called(kernel, gpu, aligned)

    return Job(_text(kernel, gpu, aligned), made, here)


def _forms(kernel: Kernel, gpu: Gpu, aligned: Sequence[bool]) -> list[CompiledForm]:
    forms, results = forms_of(kernel), list[CompiledForm]()
    general = general_form(kernel, forms)
    written = write_kernel(kernel, general)
    for number, form in enumerate(forms):
        is_general = form == general
        results.append(CompiledForm(kernel, form, written, gpu, aligned, number, is_general))
    return results


def _form_for(forms: Sequence[CompiledForm], sizes: Mapping[Symbol, int]) -> CompiledForm:
    """The form for these sizes, or the general one where they are not said."""
    if not all(e.symbols.issubset(sizes) for form in forms for e, _ in form.conditions):
        return next(form for form in forms if form.is_general)
    for form in forms:
        if all(e.evaluate(sizes) <= most for e, most in form.conditions):
            return form
    raise CompilerBug("codegen", "no form of a kernel is for these sizes", forms[0].written.name)


def import_triton() -> None:
    """Import what is used of Triton, before several threads do.

    Its modules import each other, and may seem to be only half there to the second thread. Raises
    Unsupported where that fails.
    """
    try:
        import triton._C.libtriton
        import triton.backends.compiler
        import triton.compiler.compiler  # noqa: F401

        exec(HEADER, {})
    except ImportError as problem:
        raise unsupported("compiler-missing", f"Triton cannot be imported: {problem}") from problem


# -- what was compiled before ----------------------------------------------------------------------

_FORMAT = 1  # of what is kept
_binaries: dict[str, Binary] = {}  # by their keys
_jobs: dict[str, Job[Binary]] = {}  # that workers are at, by the keys of what they make


def _kept(key: str) -> Binary | None:
    """The binary that was made before, by this process or another."""
    if key not in _binaries:
        content = store_in("triton").get(key)
        if content is not None:
            _binaries[key] = Binary.unpacked(content)
    return _binaries.get(key)


def _build_and_keep(
    kernel: TritonKernel,
    gpu: Gpu,
    aligned: Sequence[bool],
) -> Binary:
    key, binary = _key(kernel, gpu, aligned), build(kernel, gpu, aligned)
    store_in("triton").put(key, binary.packed())
    return _binaries.setdefault(key, binary)


@whole
def _build_when_called(kernel: TritonKernel, gpu: Gpu, aligned: Sequence[bool]) -> Binary:
    """The same at a launch, which is no compilation: in a thread that no signal cuts off."""
    import_triton()
    with paused_collection():
        return in_threads(lambda kernel: _build_and_keep(kernel, gpu, aligned), [kernel], 1)[0]


def _key(kernel: TritonKernel, gpu: Gpu, aligned: Sequence[bool]) -> str:
    """A digest of all that decides a kernel's code, and so not of comments."""
    text = []
    for line in kernel.source.splitlines():
        if not line.lstrip().startswith("#"):
            text.append(line)
    dtypes = []
    for p in kernel.parameters:
        dtypes.append(f"{p.dtype} {'given' if p.on_host else 'in memory'}")
    variables = variables_of_triton()
    options = sorted(_options(kernel, gpu).items())
    form = len(kernel.sizes), kernel.short, kernel.constants
    facts = (_FORMAT, text, dtypes, form, aligned, options, gpu, variables, compiler_digest())
    return hashlib.sha256(repr(facts).encode()).hexdigest()


@cache
def compiler_digest() -> str:
    """A digest of the Triton that is installed, and of the text that all kernels share."""
    helpers = Path(__file__).with_name("helpers.py")
    facts = package_facts(), HEADER, helpers.read_text()
    return hashlib.sha256(repr(facts).encode()).hexdigest()


# -- what is compiled ------------------------------------------------------------------------------


def build(
    kernel: TritonKernel,
    gpu: Gpu,
    aligned: Sequence[bool] = (),
) -> Binary:
    """Compile one kernel, whose parameters are `aligned` (by default all)."""
    return _binary_of(kernel, gpu, translation.translate(_text(kernel, gpu, aligned)))


def _binary_of(kernel: TritonKernel, gpu: Gpu, done: Translated) -> Binary:
    threads = kernel.warps * gpu.warp_size
    return Binary(done.image, done.assembly, done.function, done.shared, threads, done.hidden)


def _text(kernel: TritonKernel, gpu: Gpu, aligned: Sequence[bool]) -> Text:
    signature: dict[str, str] = {}
    divisible = []
    if kernel.table:
        signature["table"] = "*i64"
        divisible.append(0)
    else:
        for k, p in enumerate(kernel.parameters):
            signature[p.name] = ops.signature(p.dtype)
            if not p.on_host:
                signature[p.name] = "*" + signature[p.name]
                if not aligned or aligned[k]:
                    divisible.append(k)
    for k in range(len(kernel.sizes)):
        # the native core passes 64 bits, of which these are the low
        if kernel.short:
            signature[f"size{k}"] = "i32"
        else:
            signature[f"size{k}"] = "i64"
    target, options = (gpu.backend, gpu.arch, gpu.warp_size), _options(kernel, gpu)
    constants = dict(kernel.constants)
    return Text(
        kernel.name, kernel.source, signature, constants, divisible, ALIGNMENT, target, options
    )


def _options(kernel: TritonKernel, gpu: Gpu) -> dict[str, Any]:
    """As in eager, arithmetic is rounded where it is written, and denormal numbers are kept."""
    options: dict[str, Any] = {
        "num_warps": kernel.warps,
        "enable_fp_fusion": False,
        "debug": kernel.asserts,
        "sanitize_overflow": False,
    }
    if kernel.stages:
        options["num_stages"] = kernel.stages
    if gpu.backend == "cuda":
        options["enable_reflect_ftz"] = False
    return options


def load(kernel: TritonKernel) -> Any:
    """The function that Triton compiles."""
    return translation.load(kernel.name, kernel.source)
