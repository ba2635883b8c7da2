"""Another evaluation function (PEP 523) than Ingot's, as another compiler or a debugger has one: it
counts the frames and hands them on to the function that was there before it."""

from __future__ import annotations

import ctypes

import llvmlite.binding as llvm

_TEXT = """
@below = global ptr null
@seen = global i64 0

define ptr @evaluate(ptr %thread, ptr %frame, i32 %throwflag) {
  %seen = load i64, ptr @seen
  %more = add i64 %seen, 1
  store i64 %more, ptr @seen
  %below = load ptr, ptr @below
  %result = call ptr %below(ptr %thread, ptr %frame, i32 %throwflag)
  ret ptr %result
}
"""

_interpreter = ctypes.pythonapi.PyInterpreterState_Get
_get = ctypes.pythonapi._PyInterpreterState_GetEvalFrameFunc
_set = ctypes.pythonapi._PyInterpreterState_SetEvalFrameFunc
_interpreter.restype = _get.restype = ctypes.c_void_p
_get.argtypes = [ctypes.c_void_p]
_set.argtypes = [ctypes.c_void_p, ctypes.c_void_p]

DEFAULT = ctypes.cast(ctypes.pythonapi._PyEval_EvalFrameDefault, ctypes.c_void_p).value


def current() -> int:
    """The address of the evaluation function that is in place."""
    return _get(_interpreter())


class OtherHook:
    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_default_triple().create_target_machine(jit=True)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(_TEXT), machine)
        self._engine.finalize_object()
        self.address = self._engine.get_function_address("evaluate")
        self.below = ctypes.c_void_p.from_address(self._engine.get_global_value_address("below"))
        self.seen = ctypes.c_int64.from_address(self._engine.get_global_value_address("seen"))

    def install(self) -> None:
        if current() == self.address:
            return
        self.below.value = current()
        _set(_interpreter(), self.address)

    def remove(self) -> None:
        """Puts back what was there, whatever is in place now."""
        _set(_interpreter(), self.below.value)


def reset() -> None:
    """Puts CPython's own in place."""
    _set(_interpreter(), DEFAULT)
