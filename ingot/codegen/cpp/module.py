"""The machine code of a graph's kernels by way of C++: write, compile, load.

Kinds of kernels that have no C++ yet are compiled by `codegen/llvm`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

from ingot.codegen.cpp import compiler, product
from ingot.codegen.cpp.attention import write_attention
from ingot.codegen.cpp.function import Function, comment
from ingot.codegen.cpp.kernel import write_kernel
from ingot.codegen.cpp.prelude import prelude
from ingot.codegen.cpp.scored_attention import ScoredWriter
from ingot.codegen.cpp.single_rows import RowWriter
from ingot.codegen.llvm import module as llvm
from ingot.codegen.llvm.library import link
from ingot.codegen.llvm.objects import modules_of
from ingot.codegen.llvm.target import host
from ingot.loops.expr import Expr, Symbol
from ingot.loops.ir import Fault
from ingot.schedule.kernel import AnyKernel, Kernel
from ingot.serial import in_threads, safe_point

ABI = """\
// A kernel computes the points [begin, end) of its outer loops, which threads share, and returns 0,
// or the number of what went wrong. `buffers` are its arguments in order, `sizes` the sizes that
// vary. To be compiled with -ffp-contract=off -fwrapv -fopenmp-simd.
"""


OPENMP = """\
#ifdef _OPENMP
#include <omp.h>

#include <cstdlib>
#endif
"""

LONG = 6000
"""Characters of text that are worth a file of their own, where there are more processors."""

NOT_WRITTEN = "This kind of kernel has no C++ yet: it is compiled by LLVM."

Label = tuple[str, Sequence[str], Sequence[str]]
"""What people call a kernel, the comments above it, and what they call its buffers."""


def has_code(kernel: AnyKernel, check_bounds: bool = False) -> bool:
    """Whether there is C++ for a kernel of this kind; attention's checks no bounds."""
    if not isinstance(kernel, Kernel):
        return not check_bounds
    if kernel.product is None:
        return True
    if kernel.product.weights is not None:
        return not check_bounds
    return product.has_code(kernel.product)


class CompiledKernels:
    """The machine code of some kernels, alive as long as this object.

    `seconds` maps "emit", "compile" and "load" to the time each took. `rest` has the kernels that
    LLVM compiled.
    """

    def __init__(
        self,
        functions: dict[AnyKernel, tuple[str, Function]],
        rest: llvm.CompiledKernels | None,
        symbols: Sequence[Symbol],
    ) -> None:
        self.seconds: dict[str, float] = {}
        self.rest = rest
        self._symbols = symbols
        self._functions = functions
        self._loaded: Any = None
        self.objects: list[bytes] = []

    def _of(self, kernel: AnyKernel) -> tuple[str, Function]:
        return self._functions[kernel]

    def address(self, kernel: AnyKernel) -> int:
        """The address of the kernel's function. The code must have been loaded."""
        if kernel not in self._functions:
            assert self.rest is not None
            return self.rest.address(kernel)
        return self._loaded[self._of(kernel)[0]]

    def scratch_bytes(self, kernel: AnyKernel) -> Expr:
        """Bytes of private memory, 64-byte aligned, that each thread must bring."""
        if kernel not in self._functions:
            assert self.rest is not None
            return self.rest.scratch_bytes(kernel)
        return self._of(kernel)[1].scratch_bytes

    def unit(self, kernel: AnyKernel) -> int:
        """The number of points of which a thread's share should be a multiple."""
        if kernel not in self._functions:
            assert self.rest is not None
            return self.rest.unit(kernel)
        return self._of(kernel)[1].unit

    def is_written(self, kernel: AnyKernel) -> bool:
        """Whether the kernel was compiled as C++, and not by LLVM."""
        return kernel in self._functions

    def errors(self, kernel: AnyKernel) -> tuple[Fault, ...]:
        """What a nonzero status stands for: the status 1 + k is the k-th text."""
        if kernel not in self._functions:
            assert self.rest is not None
            return self.rest.errors(kernel)
        return self._of(kernel)[1].errors

    def ir(self, kernel: AnyKernel) -> str:
        """The kernel's C++ text, or LLVM's where there is none."""
        if kernel not in self._functions:
            assert self.rest is not None
            return self.rest.ir(kernel)
        name, function = self._of(kernel)
        return function.text.replace("KERNEL", name)

    def text(self) -> str:
        """The whole C++ file, as it was compiled."""
        return file_text(self._functions.values())

    def source(self, labels: Mapping[AnyKernel, Label]) -> str:
        """The whole C++ file for people: kernels and buffers have names, and comments."""
        functions: dict[str, Function | None] = {}
        comments: dict[str, Sequence[str]] = {}
        for kernel, (name, above, buffers) in labels.items():
            functions[name], comments[name] = None, above
            if not self.is_written(kernel):
                comments[name] = [*above, NOT_WRITTEN]
                continue
            functions[name] = _written(kernel, self._symbols, False, buffers)
        return readable(functions, comments)

    def assembly(self) -> str:
        """The assembly of all kernels; compiled once more for it."""
        parts = []
        if self._functions:
            parts.append(compiler.chosen().assembly_of(self.text()))
        if self.rest is not None:
            parts.append(self.rest.assembly())
        return "\n".join(parts)

    @property
    def function_count(self) -> int:
        """How many different bodies were compiled."""
        count = len(dict(self._functions.values()))
        if self.rest is not None:
            count += self.rest.function_count
        return count

    def _compile(self) -> None:
        start = perf_counter()
        chosen, functions = compiler.chosen(), list(dict(self._functions.values()).items())
        texts = []
        target = replace(host(), long_text=LONG)
        for numbers in modules_of([(f.text, frozenset()) for _, f in functions], target):
            texts.append(file_text(map(functions.__getitem__, numbers)))
        self.objects = in_threads(chosen.object_of, texts, len(texts))
        self.seconds["compile"] = perf_counter() - start

    def _load(self) -> None:
        start = perf_counter()
        self._loaded = link(self.objects, dict(self._functions.values()))
        self.seconds["load"] = perf_counter() - start


def compile_kernels(
    kernels: Sequence[AnyKernel], symbols: Sequence[Symbol], check_bounds: bool | None = None
) -> CompiledKernels:
    """Compile `kernels`, equal bodies once. Size symbols are passed in the order of `symbols`.

    With `check_bounds` (by default what INGOT_CHECK_BOUNDS says) an access outside of a buffer of
    known length reports the fault `OutOfBounds`. Raises Unsupported for an op that has no code, and
    where there is no compiler.
    """
    start = perf_counter()
    if check_bounds is None:
        check_bounds = os.environ.get("INGOT_CHECK_BOUNDS", "0") not in ("", "0")
    functions: dict[AnyKernel, tuple[str, Function]] = {}
    names: dict[str, str] = {}
    written: dict[AnyKernel, Function] = {}
    others = []
    for kernel in kernels:
        safe_point()
        if not has_code(kernel, check_bounds):
            others.append(kernel)
            continue
        shape = llvm.shape(kernel, keep_lengths=check_bounds)
        function = written.get(shape)
        if function is None:
            function = written[shape] = _written(shape, symbols, check_bounds)
        functions[kernel] = names.setdefault(function.text, f"kernel{len(names)}"), function
    emitted = perf_counter() - start
    rest = None
    if others:
        rest = llvm.compile_kernels(others, symbols, check_bounds=check_bounds)
    compiled = CompiledKernels(functions, rest, symbols)
    compiled.seconds["emit"] = emitted
    if functions:
        compiled._compile()
        compiled._load()
    return compiled


def _written(
    kernel: AnyKernel, symbols: Sequence[Symbol], check_bounds: bool, buffers: Sequence[str] = ()
) -> Function:
    if not isinstance(kernel, Kernel):
        return write_attention(kernel, symbols, buffers)
    if kernel.product is None:
        return write_kernel(kernel, symbols, check_bounds, buffers)
    if kernel.product.weights is not None:
        writer = RowWriter if kernel.product.row_block == 1 else ScoredWriter
        return writer(kernel, kernel.product, symbols, buffers).function()
    return product.write_product(kernel, symbols, check_bounds, buffers)


def readable(
    functions: Mapping[str, Function | None], comments: Mapping[str, Sequence[str]]
) -> str:
    """A C++ file with these functions under comments; where there is none, the comments alone."""
    texts: list[str] = []
    called: set[tuple[str, str]] = set()
    for name, function in functions.items():
        lines = []
        for line in comments[name]:
            lines.append(comment(line))
        if function is not None:
            called |= function.functions
            lines.append(f"{function.text}\n{function.driver}".replace("KERNEL", name))
        texts.append("\n".join([*lines, ""]))
    head = prelude(["ingot::smaller", *texts], called)
    return "\n".join([f"{head}\n{OPENMP}", ABI, *texts])


def file_text(functions: Iterable[tuple[str, Function]]) -> str:
    """A C++ file with these functions, by name, and what they call."""
    texts: list[str] = []
    called: set[tuple[str, str]] = set()
    for name, function in dict(functions).items():
        texts.append(function.text.replace("KERNEL", name))
        called |= function.functions
    return "\n".join([prelude(texts, called), ABI, *texts])
