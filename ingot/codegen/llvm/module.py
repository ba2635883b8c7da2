"""The machine code of a graph's kernels: emit, compile, load."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

from ingot.codegen.llvm.attention import emit_attention
from ingot.codegen.llvm.attention_backward import emit_attention_backward
from ingot.codegen.llvm.contraction import emit_contraction
from ingot.codegen.llvm.function import Function
from ingot.codegen.llvm.kernel import emit_kernel
from ingot.codegen.llvm.library import link
from ingot.codegen.llvm.objects import modules_of, objects_of, optimized
from ingot.codegen.llvm.scored_attention import emit_scored_attention
from ingot.codegen.llvm.target import Target, chosen
from ingot.loops.expr import Expr, Symbol
from ingot.loops.ir import Fault
from ingot.schedule.kernel import (
    AnyKernel,
    AttentionBackwardKernel,
    AttentionKernel,
    anonymous,
)
from ingot.serial import safe_point

HEADER = """@ingot.zeros = internal constant [64 x i8] zeroinitializer, align 64
!0 = !{!"branch_weights", i32 1, i32 4000}
"""


class CompiledKernels:
    """The machine code of some kernels, alive as long as this object.

    `seconds` maps "emit", "look up", "parse", "optimize", "generate" and "load" to the time each
    took. `objects` are the object files.
    """

    def __init__(
        self, functions: dict[AnyKernel, tuple[str, Function]], texts: list[str], target: Target
    ) -> None:
        self.seconds: dict[str, float] = {}
        self._functions = functions
        self._texts = texts
        self._target = target
        self.objects: list[bytes] = []
        self._loaded: Any = None

    def address(self, kernel: AnyKernel) -> int:
        """The address of the kernel's function. The code must have been loaded."""
        return self._loaded[self.name(kernel)]

    def name(self, kernel: AnyKernel) -> str:
        """The name of the kernel's function in the object files."""
        return self._functions[kernel][0]

    @property
    def names(self) -> list[str]:
        """The names of all functions."""
        return list(dict(self._functions.values()))

    def scratch_bytes(self, kernel: AnyKernel) -> Expr:
        """Bytes of private memory, 64-byte aligned, that each thread must bring."""
        return self._functions[kernel][1].scratch_bytes

    def unit(self, kernel: AnyKernel) -> int:
        """The number of points of which a thread's share should be a multiple."""
        return self._functions[kernel][1].unit

    def errors(self, kernel: AnyKernel) -> tuple[Fault, ...]:
        """What a nonzero status stands for: the status 1 + k is the k-th text."""
        return self._functions[kernel][1].errors

    def ir(self, kernel: AnyKernel) -> str:
        """The kernel's LLVM text as emitted, before optimization."""
        name, function = self._functions[kernel]
        return function.text.replace("@KERNEL", f"@{name}")

    def module_text(self, kernels: Iterable[AnyKernel]) -> str:
        """One module with these kernels, as emitted: equal functions are in it once."""
        named = list(dict(map(self._functions.__getitem__, kernels)).items())
        return _module_text(named, range(len(named)))

    def assembly(self) -> str:
        """The assembly of all kernels; compiled once more for it."""
        modules = []
        for text in self._texts:
            modules.append(optimized(text, self._target, {}))
        return "\n".join(map(self._target.machine().emit_assembly, modules))

    @property
    def object_code(self) -> bytes:
        """The relocatable object files, one after the other."""
        return b"".join(self.objects)

    @property
    def function_count(self) -> int:
        """How many different bodies were compiled."""
        return len(dict(self._functions.values()))

    def _compile(self) -> None:
        self.objects = objects_of(self._texts, self._target, self.seconds)

    def _load(self) -> None:
        start = perf_counter()
        self._loaded = link(self.objects, self.names)
        self.seconds["load"] = perf_counter() - start


def compile_kernels(
    kernels: Sequence[AnyKernel],
    symbols: Sequence[Symbol],
    target: Target | None = None,
    load: bool = True,
    check_bounds: bool | None = None,
    prefix: str = "kernel",
) -> CompiledKernels:
    """Compile `kernels`, equal bodies once. Size symbols are passed in the order of `symbols`.

    `target` is this machine by default (or what INGOT_TARGET names); another can be compiled for
    with `load=False`. With `check_bounds` (by default what INGOT_CHECK_BOUNDS says) every access to
    a buffer of known length is checked, and one outside of it reports the fault `OutOfBounds`.
    The names of functions begin with `prefix`. Raises Unsupported for an op that has no code.
    """
    start = perf_counter()
    compiled = emit_kernels(kernels, symbols, target, check_bounds, prefix)
    compiled.seconds["emit"] = perf_counter() - start
    if compiled.function_count:
        compiled._compile()
        if load:
            compiled._load()
    return compiled


def emit_kernels(
    kernels: Sequence[AnyKernel],
    symbols: Sequence[Symbol],
    target: Target | None = None,
    check_bounds: bool | None = None,
    prefix: str = "kernel",
) -> CompiledKernels:
    """The LLVM text of `kernels`, and no machine code yet; the arguments are those of
    `compile_kernels`."""
    target = target or chosen()
    if check_bounds is None:
        check_bounds = os.environ.get("INGOT_CHECK_BOUNDS", "0") not in ("", "0")
    functions: dict[AnyKernel, tuple[str, Function]] = {}
    names: dict[str, str] = {}
    emitted: dict[AnyKernel, Function] = {}
    for kernel in kernels:
        safe_point()
        if kernel in functions:  # layers that are alike have the same ones
            continue
        form = shape(kernel, keep_lengths=check_bounds)
        function = emitted.get(form)
        if function is None:
            function = emitted[form] = _emit(kernel, symbols, target, check_bounds)
        functions[kernel] = names.setdefault(function.text, f"{prefix}{len(names)}"), function
    named = list(dict(functions.values()).items())
    texts = [(function.text, function.declarations) for _, function in named]
    modules = modules_of(texts, target)
    return CompiledKernels(functions, [_module_text(named, module) for module in modules], target)


def _module_text(functions: Sequence[tuple[str, Function]], module: Sequence[int]) -> str:
    """The text of a module: of the named functions at these positions, with what they call."""
    members = [functions[k] for k in module]
    declarations = sorted(set().union(*(f.declarations for _, f in members)))
    texts = []
    for name, function in members:
        texts.append(function.text.replace("@KERNEL", f"@{name}"))
    return "\n".join([HEADER, *declarations, *texts])


def _emit(
    kernel: AnyKernel, symbols: Sequence[Symbol], target: Target, check_bounds: bool
) -> Function:
    if isinstance(kernel, AttentionKernel):
        return emit_attention(kernel, symbols, target, check_bounds)
    if isinstance(kernel, AttentionBackwardKernel):
        return emit_attention_backward(kernel, symbols, target, check_bounds)
    emit = emit_contraction
    if kernel.product is None:
        emit = emit_kernel
    elif kernel.product.weights is not None:
        emit = emit_scored_attention
    return emit(kernel, symbols, target, check_bounds)


def shape(kernel: AnyKernel, keep_lengths: bool) -> AnyKernel:
    """The kernel without name and origin, its buffers named by position: equal for equal code.

    Code depends on the buffers' lengths if those are checked.
    """
    if isinstance(kernel, (AttentionKernel, AttentionBackwardKernel)):
        return anonymous(kernel, keep_lengths)
    names = {}
    for k, p in enumerate(kernel.parameters):
        names[p.name] = f"p{k}"
    names |= {r.name: f"r{k}" for k, r in enumerate(kernel.rows)}
    stages = tuple([stage.with_buffers(names.__getitem__) for stage in kernel.stages])
    parameters = tuple([p._replace(name=names[p.name]) for p in kernel.parameters])
    rows = tuple([r._replace(name=names[r.name]) for r in kernel.rows])
    product = kernel.product
    if product is not None:
        left = replace(product.left, buffer=names[product.left.buffer])
        right = replace(product.right, buffer=names[product.right.buffer])
        weights = product.weights and product.weights.with_buffers(names.__getitem__)
        product = replace(product, left=left, right=right, weights=weights)
    kernel = replace(kernel, stages=stages, parameters=parameters, rows=rows, product=product)
    return anonymous(kernel, keep_lengths)
