"""Functions of TorchScript as nodes of a captured graph.

In: a scripted or traced function. Out: a target of nodes that runs it; on fakes it comes to the
ATen ops that its interpreter calls. Such a run teaches nothing to the optimizer of TorchScript.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ingot.torch_private import (
    create_function_from_graph,
    get_graph_executor_optimize,
    len_torch_dispatch_stack,
    set_graph_executor_optimize,
)

_NOT_OF_TENSORS = frozenset(
    {
        "prim::Print", "prim::PythonOp", "prim::SetAttr", "prim::fork", "aten::wait",
        "prim::Enter", "prim::Exit", "aten::set_grad_enabled",
        "aten::Bool", "aten::Int", "aten::Float", "aten::Complex", "aten::item", "aten::tolist",
        "aten::ScalarImplicit", "aten::IntImplicit", "aten::FloatImplicit",
        "aten::ComplexImplicit", "aten::warn", "aten::manual_seed", "aten::save",
    }
)  # fmt: skip
"""Operators of TorchScript that act, or that ask for what is in a tensor."""


class Scripted:
    """The target of nodes that call a scripted function."""

    __module__, __name__ = __name__, "scripted"

    def __init__(self, function: Any) -> None:
        self.function = function
        self._copy: Any = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not len_torch_dispatch_stack():
            return self.function(*args, **kwargs)
        if self._copy is None:  # which has no plan for tensors that it has been seen with
            self._copy = create_function_from_graph("scripted", self.function.inlined_graph)
        optimizes = get_graph_executor_optimize()
        set_graph_executor_optimize(False)
        try:
            return self._copy(*_bound(self.function.schema, args, kwargs))
        finally:
            set_graph_executor_optimize(optimizes)


def _bound(schema: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments of a call by position; a graph alone knows no names and no defaults."""
    bound, remaining = list(args), dict(kwargs)
    for parameter in schema.arguments[len(args) :]:
        if parameter.name in remaining:
            bound.append(remaining.pop(parameter.name))
        elif parameter.has_default_value():
            bound.append(parameter.default_value)
    if remaining or len(bound) != len(schema.arguments):
        raise TypeError("the arguments do not fit the scripted function")
    return bound


def why_not_run_on_fakes(function: Any) -> str:
    """What a scripted function does that its fakes cannot tell, "" if nothing."""
    for kind in _kinds(function.inlined_graph):
        if kind in _NOT_OF_TENSORS:
            return f"has {kind}"
    return ""


def _kinds(block: Any) -> Iterator[str]:
    for node in block.nodes():
        yield node.kind()
        for inner in node.blocks():
            yield from _kinds(inner)
