"""Which functions of torch are operations of the graph, which are inlined, which break it.

In goes a function of torch; out comes where it belongs by its module and name. No function of
another library is ever taken for one of torch's.
"""

from __future__ import annotations

from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import torch

from ingot.origins import trusts_function

_WHOLE_MODULES = frozenset({"torch.nn.functional", "torch.functional", "torch._C._nn"})
"""Python functions of these modules go into the graph as they are, when all they are given can."""

_INLINED = frozenset({torch.functional.broadcast_shapes, torch.nn.functional.interpolate})

_MAPPED = torch.vmap(torch.neg).__code__

_MACHINERY = ("torch._functorch.", "torch._higher_order_ops.")
_MACHINERY_OF_AUTOGRAD = frozenset(
    {
        "torch.autograd",
        "torch.autograd.functional",
        "torch.autograd.forward_ad",
        "torch.autograd.graph",
    }
)
_OF_MODES = frozenset({"disable_saved_tensors_hooks"})
"""Functions of these that only set a mode of the thread."""

_INLINED_ALL_THE_SAME = frozenset(
    {
        "torch._functorch.vmap",  # see `ingot.capture.values.transforms`
        "torch._functorch.predispatch",
        "torch._higher_order_ops.associative_scan",
        "torch._higher_order_ops._invoke_quant",
    }
)
_LEFT_TO_EAGER = ("linearize", "functionalize", "_functionalize")
"""How functions of torch.func's begin that are not captured."""

_TRANSFORMS = frozenset(
    {
        "torch._functorch.apis",
        "torch._functorch.eager_transforms",
        "torch._functorch.functional_call",
    }
)
_TOOLS = ("torch.profiler", "torch.autograd.profiler", "torch._inductor")

_RANDOM_STATE = frozenset({"manual_seed", "seed", "initial_seed", "get_rng_state", "set_rng_state"})

_OPERATION_OWNERS = frozenset(
    {
        "_VariableFunctionsClass",
        *(f"torch._C._{n}" for n in ("nn", "linalg", "special", "fft", "sparse")),
    }
)


def why_not_captured(function: FunctionType) -> str:
    """Why a function of torch breaks the graph; "" for one that is captured."""
    module = function.__globals__.get("__name__", "")
    if not (module.startswith("torch.") or function is torch.compile):
        return ""
    if function is torch.vmap or function.__code__ is _MAPPED or module in _INLINED_ALL_THE_SAME:
        return ""
    if module in _TRANSFORMS and not function.__code__.co_qualname.startswith(_LEFT_TO_EAGER):
        return ""
    # within it, tensors are not what they seem
    is_of_autograd = module in _MACHINERY_OF_AUTOGRAD and function.__qualname__ not in _OF_MODES
    if module.startswith(_MACHINERY) or is_of_autograd:
        return "runs functions in a way that is not captured"
    is_tool = module.startswith(_TOOLS) and not function.__qualname__.startswith("record_f")
    if function is torch.compile or is_tool:
        return "is called, which watches or compiles programs"
    return ""


def wrapped_by_dynamo(function: FunctionType) -> FunctionType | None:
    """The function that torch.compile has wrapped, once it is loaded: some of torch's own, and
    `nn.Module.__init__`, where it takes note of modules for itself."""
    original = vars(function).get("_torchdynamo_orig_callable")
    module = function.__globals__.get("__name__")
    if module == "torch._dynamo.mutation_guard" and function.__closure__:
        original = function.__closure__[0].cell_contents
    if isinstance(original, FunctionType):
        return original
    return None


def is_part_of_whole(function: FunctionType) -> bool:
    """Whether a function belongs to torch's modules of operations written in Python."""
    return function.__module__ in _WHOLE_MODULES and trusts_function(function)


def is_whole(function: FunctionType) -> bool:
    """Whether a Python function of torch is one node of the graph."""
    return is_part_of_whole(function) and function not in _INLINED


def is_operation(function: Any) -> bool:
    """Whether a C function is an operation of the graph."""
    if not isinstance(function, BuiltinFunctionType) or function.__name__ in _RANDOM_STATE:
        return False
    owner = function.__self__
    if isinstance(owner, (type, ModuleType)):
        return owner.__name__ in _OPERATION_OWNERS
    return function.__qualname__.partition(".")[0] in _OPERATION_OWNERS
