"""LLVM text becomes machine code: parsed, optimized and generated, in as many modules at a time as
there are processors. What was generated once is kept for later processes."""

from __future__ import annotations

import ctypes
import hashlib
import operator
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from time import perf_counter
from typing import Any

from ingot.codegen.llvm.library import llvm
from ingot.codegen.llvm.target import Target
from ingot.codegen.store import store_in
from ingot.serial import awaited_by_forks, in_threads

_thread = threading.local()

EVEN = 1.1
"""How much longer than the mean a function may make a module that has its callees already."""


def modules_of(functions: Sequence[tuple[str, frozenset[str]]], target: Target) -> list[list[int]]:
    """The positions of the functions of each module: modules take about as long to compile.

    There is one for each processor at most. A function is its text and those of the functions that
    it calls; the latter are compiled in each module that calls them, so callers stay together.
    """
    called = frozenset().union(*(callees for _, callees in functions))
    total = _length([text for text, _ in functions]) + _length(called)
    count = max(1, min(_processors(), total // target.long_text))
    modules: list[list[int]] = []
    for _ in range(count):
        modules.append([])
    lengths, called_in = [0] * count, [frozenset[str]()] * count
    alone = [len(text) + _length(callees) for text, callees in functions]
    for k in sorted(range(len(functions)), key=lambda k: alone[k], reverse=True):
        text, callees = functions[k]
        more = []
        for there in called_in:
            more.append(len(text) + _length(callees - there))
        longer = list(map(operator.add, lengths, more))
        fitting = []
        for p, length in enumerate(longer):
            if length <= total * EVEN / count:
                fitting.append(p)
        if fitting:
            index = min(fitting, key=lambda p: (more[p], longer[p]))
        else:
            index = longer.index(min(longer))
        modules[index].append(k)
        lengths[index], called_in[index] = longer[index], called_in[index] | callees
    return [sorted(module) for module in modules if module]


def _length(texts: Iterable[str]) -> int:
    return sum(map(len, texts))


def _processors() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def objects_of(texts: Sequence[str], target: Target, seconds: dict[str, float]) -> list[bytes]:
    """An object file of each text. Adds the seconds of the stages, those of the slowest text."""
    start, store = perf_counter(), store_in("llvm")
    known, missing = [], []
    for text in texts:
        known.append(store.get(_key(text, target)))
        if known[-1] is None:
            missing.append(text)
    seconds["look up"] = perf_counter() - start
    generated, objects = iter(_generated(missing, target, seconds)), []
    for text, image in zip(texts, known):
        if image is None:
            image = next(generated)
            store.put(_key(text, target), image)
        objects.append(image)
    return objects


_LEVEL = 2  # of optimization
_PASSES = (
    "sroa",  # accumulators into registers
    "instruction_combine",
    "simplify_cfg",
)
_FORMAT = 1  # of what is kept; another one where another code is made of the same text


def _key(text: str, target: Target) -> str:
    """A digest of all that decides an object file."""
    facts = _FORMAT, _LEVEL, _PASSES, _version(), target.triple, target.cpu, target.features, text
    return hashlib.sha256("\n".join(map(str, facts)).encode()).hexdigest()


@cache
def _version() -> tuple[str, ...]:
    """The versions of LLVM and of what wraps it."""
    import llvmlite

    return llvmlite.__version__, ".".join(map(str, llvm().llvm_version_info))


def _generated(texts: Sequence[str], target: Target, seconds: dict[str, float]) -> list[bytes]:
    """The object files of texts of which none is kept."""
    if not texts:
        return []
    llvm()  # is imported by one thread
    times: list[dict[str, float]] = []
    for _ in texts:
        times.append({})

    def compiled(k: int) -> bytes:
        return _object_of(texts[k], target, times[k])

    numbers = range(len(texts))
    if _length(texts) < target.short_text:
        objects = list(map(compiled, numbers))
    else:
        objects = in_threads(compiled, numbers, len(texts))
    slowest: dict[str, float] = max(times, key=lambda time: sum(time.values()))
    seconds.update(slowest)
    return objects


def object_of(text: str, target: Target) -> bytes:
    """The object file of a text, which is not kept."""
    return _object_of(text, target, {})


def _object_of(text: str, target: Target, seconds: dict[str, float]) -> bytes:
    module = optimized(text, target, seconds)
    start = perf_counter()
    image = _emitted(target.machine(), module)
    seconds["generate"] = perf_counter() - start
    return image


def optimized(text: str, target: Target, seconds: dict[str, float]) -> Any:
    """The parsed module after the few passes that its code still needs."""
    binding = llvm()
    start = perf_counter()
    module = binding.parse_assembly(text, binding.create_context())  # threads share none
    module.triple = target.triple
    machine = target.machine()
    module.data_layout = str(machine.target_data)
    parsed = perf_counter()
    options = binding.create_pipeline_tuning_options(speed_level=_LEVEL)
    builder = binding.create_pass_builder(machine, options)
    passes = binding.create_new_function_pass_manager()
    for name in _PASSES:
        getattr(passes, f"add_{name}_pass")()
    run = _unlocked("LLVMPY_RunNewFunctionPassManager")
    for function in module.functions:
        if not function.is_declaration:
            run(passes, function, builder)
    seconds["parse"] = parsed - start
    seconds["optimize"] = perf_counter() - parsed
    return module


def _emitted(machine: Any, module: Any) -> bytes:
    """The module's object file: `machine.emit_object`, beside other threads."""
    ffi = llvm().ffi
    with ffi.OutputString() as problem:
        buffer = _unlocked("LLVMPY_TargetMachineEmitToMemory")(machine, module, 1, problem)
        if not buffer:
            raise RuntimeError(str(problem))
    try:
        start, size = ffi.lib.LLVMPY_GetBufferStart(buffer), ffi.lib.LLVMPY_GetBufferSize(buffer)
        return ctypes.string_at(start, size)
    finally:
        ffi.lib.LLVMPY_DisposeMemoryBuffer(buffer)


def _unlocked(name: str) -> Callable[..., Any]:
    """A function of the library's that several threads may be in.

    llvmlite lets in one at a time, which is more than LLVM asks: that no two work on one context.
    Each thread has a lock of its own, that a fork waits for.
    """
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
