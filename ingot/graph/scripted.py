"""Functions of TorchScript as nodes of a captured graph.

In: a scripted or traced function. Out: a target of nodes that runs it; on fakes it comes to the
ATen ops that its interpreter calls. Such a run teaches nothing to the optimizer of TorchScript.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ingot.torch_private import (
    ListType,
    create_function_from_graph,
    get_graph_executor_optimize,
    len_torch_dispatch_stack,
    set_graph_executor_optimize,
)

_ACTING = frozenset(
    {
        "prim::Print", "prim::PythonOp", "prim::SetAttr", "prim::fork", "aten::wait",
        "prim::Enter", "prim::Exit", "aten::set_grad_enabled", "aten::warn", "aten::manual_seed",
        "aten::save",
    }
)  # fmt: skip
"""Operators of TorchScript that do something else than compute."""
_ASKING = frozenset(
    {
        "aten::Bool", "aten::Int", "aten::Float", "aten::Complex", "aten::item", "prim::tolist",
        "aten::ScalarImplicit", "aten::IntImplicit", "aten::FloatImplicit",
        "aten::ComplexImplicit",
    }
)  # fmt: skip
"""Those that ask for what is in a tensor, where they are given one."""
_SAME_INT = frozenset({"aten::Int", "aten::IntImplicit"})
_MAKING = frozenset({"aten::tensor", "aten::as_tensor", "prim::NumToTensor"})
"""Those that write numbers into a tensor's memory themselves, where they are given numbers. The
dispatcher does not see it, and a fake has no such memory."""
_NUMBERS: Mapping[str, torch.dtype | None] = {
    "IntType": torch.int64, "BoolType": torch.bool, "FloatType": None
}  # fmt: skip
"""By the type of a number, the dtype of its tensor: that of floats is the default one."""


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
            self._copy = create_function_from_graph("scripted", seen_graph(self.function))
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
    for node in _nodes(seen_graph(function)):
        kind = node.kind()
        takes_tensor = any(value.type().kind() == "TensorType" for value in node.inputs())
        if kind in _ACTING or (kind in _ASKING and takes_tensor):
            return f"has {kind}"
        if kind in _MAKING and not takes_tensor:
            return f"has {kind} of numbers that are not spelled out"
    return ""


def seen_graph(function: Any) -> Any:
    """A copy of a scripted function's graph in which all tensors are made by operators that the
    dispatcher sees. What they are made of by other operators stays as it is."""
    graph = function.inlined_graph
    for replacement in (_number_back, _tensor_of_numbers):
        for node in list(_nodes(graph)):
            value = replacement(graph, node)
            if value is not None:
                node.output().replaceAllUsesWith(value)
                node.destroy()
    return graph


def _number_back(graph: Any, node: Any) -> Any:
    """The int that becomes a tensor and an int again, as sizes do where a function is traced."""
    if node.kind() not in _SAME_INT or node.inputsAt(0).node().kind() != "prim::NumToTensor":
        return None
    number = node.inputsAt(0).node().inputsAt(0)
    return number if number.type().kind() == "IntType" else None


def _tensor_of_numbers(graph: Any, node: Any) -> Any:
    """What stands for a node that makes a tensor of numbers; None for all else. TorchScript gives
    it the dtype of the numbers first, and that which is asked for then: a float64 has the digits of
    the default dtype."""
    if node.kind() not in _MAKING:
        return None
    options = list(node.inputs())[1:]
    if len(options) == 3 and options[2].toIValue() is not False:  # requires_grad
        return None
    tensor = _stacked(graph, node, node.inputsAt(0))
    dtype, device = options[:2] or (None, None)
    if tensor is None or all(o is None or o.type().kind() == "NoneType" for o in (dtype, device)):
        return tensor
    no = graph.insertConstant(False)
    return _inserted(graph, node, "aten::to", [tensor, device, dtype, no, no])


def _stacked(graph: Any, node: Any, data: Any) -> Any:
    """The tensor of a number or of nested lists that are spelled out in the graph, else None."""
    graph.setInsertPoint(node)
    if data.type().kind() in _NUMBERS:
        dtype = _NUMBERS[data.type().kind()]
        none = graph.insertConstant(None)
        kind = none if dtype is None else graph.insertConstant(dtype)
        if dtype == torch.bool:  # which is no Scalar
            data = _inserted(graph, node, "aten::Int", [data]).setTypeAs(kind)
        return _inserted(graph, node, "aten::scalar_tensor", [data, kind, none, none, none])
    if data.node().kind() != "prim::ListConstruct" or len(data.uses()) > 1:
        return None  # who else has a list may write to it
    rows = []
    for item in data.node().inputs():
        rows.append(_stacked(graph, node, item))
    if not rows or any(row is None for row in rows):
        return None
    listed = _inserted(graph, node, "prim::ListConstruct", rows)
    listed.setType(ListType(rows[0].type()))
    return _inserted(graph, node, "aten::stack", [listed, graph.insertConstant(0)])


def _inserted(graph: Any, before: Any, kind: str, inputs: Sequence[Any]) -> Any:
    """The result of a new node in front of another one."""
    node = graph.create(kind, list(inputs), 1)
    node.insertBefore(before)
    return node.output()


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)
