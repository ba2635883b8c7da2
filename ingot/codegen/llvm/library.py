"""The LLVM library, loaded on first use: it is 180 MB of shared object, and a program that compiles
nothing needs none of it."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from functools import cache
from itertools import count
from typing import Any

from ingot.codegen import perf_map
from ingot.native import _native
from ingot.serial import awaited_by_forks


@cache
def llvm() -> Any:
    """`llvmlite.binding`, with this machine's code generator initialized."""
    import llvmlite.binding as binding

    _replace_lock(binding.ffi)
    _keep_signals_out(binding.ffi.ObjectRef, _native.finalizing(binding.ffi.ObjectRef.__del__))
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


def _replace_lock(ffi: Any) -> None:
    """Give llvmlite a lock in place of its own, which can be lost.

    It is where a signal's handler raises an exception between its acquisition and the beginning of
    the block, or where a thread that holds it does not exist in a fork's child.
    """
    before, functions = getattr(ffi.lib, "_lock", None), getattr(ffi.lib, "_fntab", None)
    callbacks = getattr(before, "_cblist", None)
    if not isinstance(functions, dict) or not isinstance(callbacks, list):
        return  # a version that has another one
    lock = _native.LibraryLock(awaited_by_forks(threading.RLock()), callbacks)
    ffi.lib._lock = lock
    for function in functions.values():
        function._lock = lock


def _keep_signals_out(base: Any, finalizer: Any) -> None:
    """Give derived classes whose objects have something to dispose of another `__del__`.

    Such an object may die where the user's code runs, whose handler of a signal would raise in vain
    in there.
    """
    for derived in base.__subclasses__():
        if "_dispose" in vars(derived):
            derived.__del__ = finalizer
        _keep_signals_out(derived, finalizer)


@cache
def session() -> Any:
    """The process's one ORC session; compiled libraries are added to it and leave it when their
    tracker dies."""
    return llvm().create_lljit_compiler(use_jit_link=True)


_libraries = count()  # names of loaded libraries are never used twice


def link(images: Iterable[bytes], names: Iterable[str]) -> Any:
    """Loads object files; gives the addresses of these functions by name, as long as it lives."""
    images, names = list(images), list(names)
    builder = llvm().JITLibraryBuilder().add_current_process()
    for image in images:
        builder.add_object_img(image)
    for name in names:
        builder.export_symbol(name)
    linked = builder.link(session(), f"ingot{next(_libraries)}")
    if perf_map.IS_ON:
        perf_map.add_code({name: linked[name] for name in names}, images)
    return linked
