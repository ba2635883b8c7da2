"""Programs that the user has exported with torch: read as what they show, without torch.export.

In: an object of torch's class `ExportedProgram`. Out: its module, the arguments that it was
exported with, and which of their sizes vary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree


class ForeignCall(NamedTuple):
    """A module and a call of it, as `ingot.export` takes them."""

    module: torch.nn.Module
    args: Any
    kwargs: Mapping[str, Any] | None
    dynamic: Any


def is_exported_program(fn: Any) -> bool:
    """Whether an object is what `torch.export.export` gives."""
    kind = type(fn)
    return kind.__name__ == "ExportedProgram" and kind.__module__.startswith("torch.export")


def foreign_call(program: Any, args: Any, kwargs: Any, dynamic: Any) -> ForeignCall:
    """The module of an exported program and a call of it: the one that it was exported with, and
    its sizes that vary, where the user says nothing else."""
    examples = program.example_inputs
    if not args and not kwargs and examples is not None:
        args, kwargs = examples
    if dynamic is None:
        dynamic = _dims_of(program, args, dict(kwargs or {}))
    return ForeignCall(program.module(), args, kwargs, dynamic)


def _dims_of(program: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The sizes that vary, nested as the arguments are."""
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    leaves, spec = pytree.tree_flatten((args, kwargs))
    dims: list[Any] = []
    for name, _ in zip(program.graph_signature.user_inputs, leaves):
        node = nodes.get(name) if isinstance(name, str) else None
        value = None if node is None else node.meta.get("val")
        found: Any = None
        if isinstance(value, torch.Tensor):
            found = _dims_of_tensor(value, program.range_constraints) or None
        elif isinstance(value, torch.SymInt):
            found = str(value.node.expr)
        dims.append(found)
    if len(dims) != len(leaves):
        return None
    by_position, by_name = pytree.tree_unflatten(dims, spec)
    return (*by_position, *by_name.values())


def _dims_of_tensor(tensor: torch.Tensor, ranges: Mapping[Any, Any]) -> dict[int, Any]:
    found: dict[int, Any] = {}
    for dim, size in enumerate(tensor.shape):
        if isinstance(size, torch.SymInt):
            expression = size.node.expr
            bounds = ranges.get(expression)
            limits = [_number(getattr(bounds, side, None)) for side in ("lower", "upper")]
            found[dim] = (str(expression), *limits)
    return found


def _number(bound: Any) -> int | None:
    """A bound as an int; None where there is none."""
    try:
        number = int(bound)
    except (TypeError, ValueError, OverflowError, AttributeError):
        return None
    return number if number < 1 << 62 else None
