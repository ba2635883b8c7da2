"""One LLVM module per graph: emit, optimize, compile, load."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from time import perf_counter
from typing import Any

from ingot.codegen.llvm.attention import emit_attention
from ingot.codegen.llvm.attention_backward import emit_attention_backward
from ingot.codegen.llvm.contraction import emit_contraction
from ingot.codegen.llvm.kernel import Function, emit_kernel
from ingot.codegen.llvm.library import llvm, session
from ingot.codegen.llvm.target import Target, chosen
from ingot.loops.expr import Expr, Symbol
from ingot.loops.ir import Body, Fault, Instruction, Origin
from ingot.schedule.kernel import AnyKernel, AttentionBackwardKernel, AttentionKernel

HEADER = """@ingot.zeros = internal constant [64 x i8] zeroinitializer, align 64 !0 = !{!"branch_weights", i32 1, i32
4000}
"""

_libraries = count()  # names of loaded libraries are never used twice


class CompiledKernels:
    """The machine code of some kernels, alive as long as this object.

    `seconds` maps "emit", "parse", "optimize", "generate" and "load" to the time each took.
    """

    def __init__(self, functions: dict[AnyKernel, tuple[str, Function]], text: str, target: Target) -> None:
        self.seconds: dict[str, float] = {}
        self._functions = functions
        self._text = text
        self._target = target
        self._object = b""
        self._loaded: Any = None

    def address(self, kernel: AnyKernel) -> int:
        """The address of the kernel's function. The code must have been loaded."""
        return self._loaded[self._functions[kernel][0]]

    def scratch_bytes(self, kernel: AnyKernel) -> Expr:
        """Bytes of private memory, 64-byte aligned, that each thread must bring."""
        return self._functions[kernel][1].scratch_bytes

    def errors(self, kernel: AnyKernel) -> tuple[Fault, ...]:
        """What a nonzero status stands for: the status 1 + k is the k-th text."""
        return self._functions[kernel][1].errors

    def ir(self, kernel: AnyKernel) -> str:
        """The kernel's LLVM text as emitted, before optimization."""
        name, function = self._functions[kernel]
        return function.text.replace("@KERNEL", f"@{name}")

    def assembly(self) -> str:
        """The assembly of the whole module; compiled once more for it."""
        return self._target.machine().emit_assembly(_optimized(self._text, self._target, {}))

    @property
    def object_code(self) -> bytes:
        """The relocatable object file."""
        return self._object

    @property
    def function_count(self) -> int:
        """How many different bodies were compiled."""
        return len({name for name, _ in self._functions.values()})

    def _compile(self) -> None:
        module = _optimized(self._text, self._target, self.seconds)
        start = perf_counter()
        self._object = self._target.machine().emit_object(module)
        self.seconds["generate"] = perf_counter() - start

    def _load(self) -> None:
        start = perf_counter()
        builder = llvm().JITLibraryBuilder().add_object_img(self._object).add_current_process()
        for name in {name for name, _ in self._functions.values()}:
            builder.export_symbol(name)
        self._loaded = builder.link(session(), f"ingot{next(_libraries)}")
        self.seconds["load"] = perf_counter() - start


def compile_kernels(
    kernels: Sequence[AnyKernel],
    symbols: Sequence[Symbol],
    target: Target | None = None,
    load: bool = True,
    check_bounds: bool | None = None,
) -> CompiledKernels:
    """Compile `kernels`, whose size symbols are passed in the order of `symbols`; equal bodies once.

    `target` is this machine by default (or what INGOT_TARGET names); another can be compiled for with `load=False`.
    With `check_bounds` (by default what INGOT_CHECK_BOUNDS says) every access to a buffer of known length is checked,
    and one outside of it reports the fault `OutOfBounds`. Raises Unsupported for an op that has no code.
    """
    start = perf_counter()
    target = target or chosen()
    if check_bounds is None:
        check_bounds = os.environ.get("INGOT_CHECK_BOUNDS", "0") not in ("", "0")
    functions: dict[AnyKernel, tuple[str, Function]] = {}
    names: dict[str, str] = {}
    emitted: dict[AnyKernel, Function] = {}
    for kernel in kernels:
        shape = anonymous(kernel, keep_lengths=check_bounds)
        function = emitted.get(shape)
        if function is None:
            function = emitted[shape] = _emit(kernel, symbols, target, check_bounds)
        functions[kernel] = names.setdefault(function.text, f"kernel{len(names)}"), function
    different = {name: function for name, function in functions.values()}
    declarations = sorted(set().union(*(f.declarations for f in different.values())))
    bodies = [f.text.replace("@KERNEL", f"@{name}") for name, f in different.items()]
    compiled = CompiledKernels(functions, "\n".join([HEADER, *declarations, *bodies]), target)
    compiled.seconds["emit"] = perf_counter() - start
    if different:
        compiled._compile()
        if load:
            compiled._load()
    return compiled


def _emit(kernel: AnyKernel, symbols: Sequence[Symbol], target: Target, check_bounds: bool) -> Function:
    if isinstance(kernel, AttentionKernel):
        return emit_attention(kernel, symbols, target, check_bounds)
    if isinstance(kernel, AttentionBackwardKernel):
        return emit_attention_backward(kernel, symbols, target, check_bounds)
    emit = emit_kernel if kernel.product is None else emit_contraction
    return emit(kernel, symbols, target, check_bounds)


def anonymous(kernel: AnyKernel, keep_lengths: bool = False) -> AnyKernel:
    """The kernel with its name and origin dropped and its buffers named by position: equal for equal code, which
    depends on the buffers' lengths if those are checked."""
    if isinstance(kernel, (AttentionKernel, AttentionBackwardKernel)):
        declared = kernel.parameters if keep_lengths else tuple(p._replace(length=None) for p in kernel.parameters)
        return replace(kernel, name="", origin=Origin(()), parameters=declared)
    names = {p.name: f"p{k}" for k, p in enumerate(kernel.parameters)} | {
        r.name: f"r{k}" for k, r in enumerate(kernel.rows)
    }

    def rename(i: Instruction) -> Instruction:
        return i._replace(attrs=(names[i.attrs[0]], *i.attrs[1:])) if i.op == "load" else i

    stages = tuple(
        replace(
            stage,
            body=Body(tuple(map(rename, stage.body.instructions)), stage.body.results),
            stores=tuple(replace(s, buffer=names[s.buffer]) for s in stage.stores),
        )
        for stage in kernel.stages
    )
    parameters = tuple(
        p._replace(name=names[p.name], length=p.length if keep_lengths else None) for p in kernel.parameters
    )
    rows = tuple(r._replace(name=names[r.name]) for r in kernel.rows)
    product = kernel.product
    if product is not None:
        left, right = (replace(a, buffer=names[a.buffer]) for a in (product.left, product.right))
        product = replace(product, left=left, right=right)
    return replace(
        kernel, name="", origin=Origin(()), stages=stages, parameters=parameters, rows=rows, product=product
    )


def _optimized(text: str, target: Target, seconds: dict[str, float]) -> Any:
    """The parsed module after the few passes that code which is written loop by loop still needs."""
    binding = llvm()
    start = perf_counter()
    module = binding.parse_assembly(text)
    module.triple = target.triple
    machine = target.machine()
    module.data_layout = str(machine.target_data)
    parsed = perf_counter()
    builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=2))
    passes = binding.create_new_function_pass_manager()
    passes.add_sroa_pass()  # accumulators into registers
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    for function in module.functions:
        if not function.is_declaration:
            passes.run(function, builder)
    seconds["parse"] = parsed - start
    seconds["optimize"] = perf_counter() - parsed
    return module
