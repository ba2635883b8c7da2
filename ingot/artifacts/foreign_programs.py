"""Programs that the user has exported with torch: read as what they show, without torch.export.

In: an object of torch's class `ExportedProgram`. Out: its module, the arguments that it was
exported with, and which of their sizes vary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch


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
    """The module of an exported program and a call of it.

    The call is the one that it was exported with, and its sizes vary as they did there, where the
    user says nothing else."""
    examples = program.example_inputs
    if not args and not kwargs and examples is not None:
        args, kwargs = examples
    if dynamic is None:
        leaves = iter(_dims_of_inputs(program))
        first = args[0] if isinstance(args, list) and args else args
        by_position = _nested(tuple(first), leaves)
        by_name = _nested(dict(kwargs or {}), leaves)
        dynamic = (*by_position, *by_name.values())
    return ForeignCall(program.module(), args, kwargs, dynamic)


def _nested(value: Any, leaves: Iterator[Any]) -> Any:
    """What the leaves of an argument have, nested as it is. None and constants are leaves."""
    if type(value) in (tuple, list):
        return [_nested(item, leaves) for item in value]
    if type(value) is dict:
        return {key: _nested(item, leaves) for key, item in value.items()}
    return next(leaves, None)


def _dims_of_inputs(program: Any) -> Iterator[Any]:
    """The sizes that vary, of each leaf of the arguments."""
    nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    for name in program.graph_signature.user_inputs:
        node = nodes.get(name) if isinstance(name, str) else None
        value = None if node is None else node.meta.get("val")
        if isinstance(value, torch.Tensor):
            yield _dims_of_tensor(value, program.range_constraints) or None
        elif isinstance(value, torch.SymInt):
            yield str(value.node.expr)
        else:
            yield None


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
