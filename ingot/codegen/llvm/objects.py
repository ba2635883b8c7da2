"""LLVM text becomes machine code: parsed, optimized and generated, in as many modules at a time as
there are processors."""

from __future__ import annotations

import ctypes
import operator
import os
import threading
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from ingot.codegen.llvm.library import llvm
from ingot.codegen.llvm.target import Target
from ingot.serial import awaited_by_forks, in_threads

_thread = threading.local()

PART = 60_000
"""Characters of text that are worth a module of their own, each of which takes 10 ms before its
first function."""

SHORT = 30_000
"""Characters of text that take no other thread: a signal can wait for them."""

EVEN = 1.1
"""How much longer than the mean a part may be made by a function of which it has already what that
calls."""


def in_parts(functions: Sequence[tuple[str, frozenset[str]]]) -> list[list[int]]:
    """The positions of the functions, in parts that take about as long to compile.

    There is one for each processor at most. A function is its text and those of the functions that
    it calls; the latter are compiled in each part that calls them, so callers stay together.
    """
    called = frozenset().union(*(own for _, own in functions))
    total = sum(len(text) for text, _ in functions) + sum(map(len, called))
    parts: list[list[int]] = [[] for _ in range(max(1, min(_processors(), total // PART)))]
    lengths, known = [0] * len(parts), [frozenset[str]() for _ in parts]
    alone = [len(text) + sum(map(len, own)) for text, own in functions]
    for k in sorted(range(len(functions)), key=lambda k: alone[k], reverse=True):
        text, own = functions[k]
        more = [len(text) + sum(map(len, own - there)) for there in known]
        longer = list(map(operator.add, lengths, more))
        fits = [p for p, length in enumerate(longer) if length <= total * EVEN / len(parts)]
        part = min(
            fits or range(len(parts)),
            key=lambda p: (more[p], longer[p]) if fits else (longer[p], 0),
        )
        parts[part].append(k)
        lengths[part], known[part] = longer[part], known[part] | own
    return [sorted(part) for part in parts if part]


def _processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def objects_of(texts: Sequence[str], target: Target, seconds: dict[str, float]) -> list[bytes]:
    """An object file of each text. Adds what the stages of that which took longest took."""
    llvm()  # is imported by one thread
    times: list[dict[str, float]] = [{} for _ in texts]
    if sum(map(len, texts)) < SHORT:
        made = [_object_of(text, target, time) for text, time in zip(texts, times)]
    else:
        made = in_threads(
            lambda k: _object_of(texts[k], target, times[k]), range(len(texts)), len(texts)
        )
    slowest: dict[str, float] = max(times, key=lambda time: sum(time.values()))
    seconds.update(slowest)
    return made


def _object_of(text: str, target: Target, seconds: dict[str, float]) -> bytes:
    module = optimized(text, target, seconds)
    start = perf_counter()
    made = _generated(target.machine(), module)
    seconds["generate"] = perf_counter() - start
    return made


def optimized(text: str, target: Target, seconds: dict[str, float]) -> Any:
    """The parsed module after the few passes that code which is written loop by loop still
    needs."""
    binding = llvm()
    start = perf_counter()
    module = binding.parse_assembly(text, binding.create_context())  # threads share none
    module.triple = target.triple
    machine = target.machine()
    module.data_layout = str(machine.target_data)
    parsed = perf_counter()
    builder = binding.create_pass_builder(
        machine, binding.create_pipeline_tuning_options(speed_level=2)
    )
    passes = binding.create_new_function_pass_manager()
    passes.add_sroa_pass()  # accumulators into registers
    passes.add_instruction_combine_pass()
    passes.add_simplify_cfg_pass()
    run = _unlocked("LLVMPY_RunNewFunctionPassManager")
    for function in module.functions:
        if not function.is_declaration:
            run(passes, function, builder)
    seconds["parse"] = parsed - start
    seconds["optimize"] = perf_counter() - parsed
    return module


def _generated(machine: Any, module: Any) -> bytes:
    """The module's object file: `machine.emit_object`, beside other threads."""
    ffi = llvm().ffi
    with ffi.OutputString() as problem:
        buffer = _unlocked("LLVMPY_TargetMachineEmitToMemory")(machine, module, 1, problem)
        if not buffer:
            raise RuntimeError(str(problem))
    try:
        return ctypes.string_at(
            ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer)
        )
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def _unlocked(name: str) -> Callable[..., Any]:
    """A function of the library's that several threads may be in. llvmlite lets in one at a time,
    which is more than LLVM asks: that no two work on one context. Each has a lock of its own, that
    a fork waits for."""
    function = getattr(llvm().ffi.lib, name)
    bare = getattr(function, "_cfn", function)

    def call(*args: Any) -> Any:
        with _own_lock():
            return bare(*args)

    return call


def _own_lock() -> Any:
    lock = getattr(_thread, "lock", None)
    if lock is None:
        lock = _thread.lock = awaited_by_forks(threading.RLock())
    return lock
