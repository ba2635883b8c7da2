"""Compiled modules that are still themselves.

The compiled module is an instance of a subclass made for it, and shares the very `__dict__` of the original:
parameters, buffers, submodules and attributes set on either are set on both, and state_dict keys carry no prefix.
"""

from __future__ import annotations

import copy
from typing import Any

import torch

from ingot.compiler import Compiler
from ingot.options import Options


def compiled_module(module: torch.nn.Module, compiler: Compiler) -> torch.nn.Module:
    """An object that is `module` in every respect but that calling it runs the compiled code."""
    original = type(module)

    def recompiled(self: torch.nn.Module, memo: dict[int, Any]) -> torch.nn.Module:
        return _recompile(copy.deepcopy(module, memo), compiler.options)

    def copied(self: torch.nn.Module) -> torch.nn.Module:
        return _recompile(copy.copy(module), compiler.options)

    def reduced(self: torch.nn.Module, protocol: Any) -> tuple[Any, ...]:
        return _recompile, (module, compiler.options)

    members = {
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": original.__doc__,
        "__slots__": (),
        "__call__": staticmethod(compiler.dispatcher),
        "__ingot_dispatcher__": compiler.dispatcher,
        "__copy__": copied,
        "__deepcopy__": recompiled,
        "__reduce_ex__": reduced,
    }
    compiled: torch.nn.Module = object.__new__(type(original.__name__, (original,), members))
    object.__setattr__(compiled, "__dict__", module.__dict__)
    return compiled


def _recompile(module: torch.nn.Module, options: Options) -> torch.nn.Module:
    return compiled_module(module, Compiler(module, options))
