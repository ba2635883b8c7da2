"""Compiled modules that are still themselves.

The compiled module is an instance of a subclass made for it, and shares the very `__dict__` of the
original: parameters, buffers, submodules and attributes set on either are set on both, and
state_dict keys carry no prefix. A class that the original is given later (by a parametrization, by
the first call of a lazy module) it takes over.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present
from torch.nn.parallel import DistributedDataParallel

from ingot.capture.marks import disabled
from ingot.compiler import Compiler
from ingot.options import Options


def compiled_module(module: torch.nn.Module, compiler: Compiler) -> torch.nn.Module:
    """An object that is `module` in every respect but that calling it runs the compiled code."""
    dispatcher = compiler.dispatcher
    members = {
        "_orig_mod": property(lambda self: module),  # programs for torch.compile ask for it
        "load_state_dict": _load_state_dict,
        "__ingot_dispatcher__": dispatcher,
        "forward": _CompiledForward(module, compiler.options),
    }
    return _called_by(module, staticmethod(dispatcher), _recompile, compiler.options, members)


def is_data_parallel(module: Any) -> bool:
    """Whether a module communicates around another one as DistributedDataParallel does."""
    return isinstance(module, DistributedDataParallel) and (
        type(module).forward is DistributedDataParallel.forward
    )


def compiled_data_parallel(module: Any, how: tuple[Options, str | None]) -> torch.nn.Module:
    """An object that is a DistributedDataParallel in every respect but that the module inside of it
    is compiled.

    `how` are the options, and what reports call it. What communicates around the module inside runs
    in eager, as it is.
    """

    def inner(self: Any = None) -> torch.nn.Module:
        plain = module._modules["module"]
        if _original_of(compiled[0]) is not plain:  # it was replaced
            compiled[0] = _compiled_inside(plain, *how)
        return compiled[0]

    compiled = [_compiled_inside(module._modules["module"], *how)]
    members = {
        "_orig_mod": property(lambda self: module),
        "load_state_dict": _load_state_dict,
        "__ingot_compiled_inside__": staticmethod(inner),
        "module": property(inner),
    }
    return _called_by(module, type(module).__call__, compiled_data_parallel, how, members)


def _compiled_inside(module: Any, options: Options, name: str | None) -> torch.nn.Module:
    compiler = Compiler(_original_of(module), options)
    compiler.name = name or compiler.name
    return compiled_module(_original_of(module), compiler)


_PREFIX = "_orig_mod."
"""How keys begin in the state_dict of a module that torch.compile has compiled."""


def _load_state_dict(self: torch.nn.Module, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
    """`load_state_dict` of a compiled module, which takes what torch.compile has saved as well."""
    plain = _original_of(self)
    first = next(iter(state_dict), "")
    if first.startswith(_PREFIX) and not hasattr(plain, "_orig_mod"):
        state_dict = OrderedDict(state_dict)
        consume_prefix_in_state_dict_if_present(state_dict, _PREFIX)
    return plain.load_state_dict(state_dict, *args, **kwargs)


class _CompiledForward:
    """`forward` of a compiled module, which is compiled too. What an instance has of that name
    comes first."""

    def __init__(self, module: torch.nn.Module, options: Options) -> None:
        self._module, self._options = module, options
        self._compiled: dict[Any, Any] = {}  # by the function that the class has

    def __get__(self, wrapper: Any, owner: type) -> Any:
        forward = type(self._module).forward
        if wrapper is None:
            return forward
        bound = forward.__get__(self._module)
        if not isinstance(forward, FunctionType):
            return bound
        if forward not in self._compiled:
            self._compiled[forward] = Compiler(bound, self._options).dispatcher
        return self._compiled[forward]


def disabled_module(module: torch.nn.Module, reason: str) -> torch.nn.Module:
    """An object that is `module` in every respect but that calling it runs all of it in eager."""
    call = disabled(type(module).__call__, reason)
    call.__name__ = type(module).__name__
    return _called_by(module, call, disabled_module, reason, {})


def _called_by(
    module: torch.nn.Module,
    call: Callable[..., Any],
    again: Callable[[torch.nn.Module, Any], torch.nn.Module],
    how: Any,
    extra: dict[str, Any],
) -> torch.nn.Module:
    """An object that shares all state with `module`, with `call` as its `__call__`. Its copies:
    `again(copy, how)`."""
    wrapper: torch.nn.Module

    def get_class(self: torch.nn.Module) -> type:
        """The class of the original: what asks for it makes another instance, or shows its name."""
        return type(module)

    def set_class(self: torch.nn.Module, cls: type) -> None:
        module.__class__ = cls  # type: ignore[assignment]
        follow_class()

    def follow_class() -> bool:
        """Take over the class that the original has now (a parametrization gives it another one);
        whether it had changed."""
        changed = type(wrapper).__mro__[1] is not type(module)
        if changed:
            _REAL_CLASS.__set__(wrapper, subclass())
        return changed

    def get_missing(self: torch.nn.Module, name: str) -> Any:
        if self is wrapper and follow_class():
            return getattr(self, name)
        return type(module).__getattr__(self, name)

    def set_attribute(self: torch.nn.Module, name: str, value: Any) -> None:
        follow_class()
        type(module).__setattr__(self, name, value)

    def subclass() -> type[torch.nn.Module]:
        original = type(module)
        members = {
            "__module__": original.__module__,
            "__qualname__": original.__qualname__,
            "__doc__": original.__doc__,
            "__slots__": (),
            "__call__": call,
            "__class__": property(get_class, set_class),
            "__getattr__": get_missing,
            "__setattr__": set_attribute,
            "__ingot_stands_for__": original,
            **_copying(module, again, how),
            **_identity(module),
            **extra,
        }
        return type(original.__name__, (original,), members)

    wrapper = object.__new__(subclass())
    object.__setattr__(wrapper, "__dict__", module.__dict__)
    return wrapper


def _copying(
    module: torch.nn.Module, again: Callable[[torch.nn.Module, Any], torch.nn.Module], how: Any
) -> dict[str, Any]:
    """The methods of a wrapper of `module` that copy and pickle it."""

    def deeply_copied(self: torch.nn.Module, memo: dict[int, Any]) -> torch.nn.Module:
        return again(copy.deepcopy(module, memo), how)

    def copied(self: torch.nn.Module) -> torch.nn.Module:
        return again(copy.copy(module), how)

    def reduced(self: torch.nn.Module, protocol: Any) -> tuple[Any, ...]:
        return again, (module, how)

    return {"__copy__": copied, "__deepcopy__": deeply_copied, "__reduce_ex__": reduced}


def _identity(module: torch.nn.Module) -> dict[str, Any]:
    """The members of a wrapper of `module` that make it equal to that."""

    def hashed(self: torch.nn.Module) -> int:
        """The hash of the original: tables that have it, as those of FSDP, find its state by
        either."""
        return hash(module)

    def equals(self: torch.nn.Module, other: Any) -> Any:
        other = _original_of(other)
        if other is module:
            return True
        return type(module).__eq__(module, other)

    def get_original(self: torch.nn.Module) -> torch.nn.Module:
        return module

    return {"__hash__": hashed, "__eq__": equals, "__ingot_original__": property(get_original)}


def _original_of(module: Any) -> Any:
    """The module that a compiled or disabled one wraps; else itself."""
    if hasattr(type(module), "__ingot_original__"):
        return module.__ingot_original__
    return module


_REAL_CLASS: Any = vars(object)["__class__"]


def _recompile(module: torch.nn.Module, options: Options) -> torch.nn.Module:
    return compiled_module(module, Compiler(module, options))
