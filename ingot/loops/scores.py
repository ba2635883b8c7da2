"""How attention changes its scores, as a text that an op can carry: a list of steps.

In go calls of pointwise ops and views, each of which follows from the product of query and key;
out come the same calls. Values are counted: the product, the captured tensors, then each step's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from ingot.torch_private import OpOverload


@dataclass(frozen=True)
class Value:
    """The value number `number`."""

    number: int


class Step(NamedTuple):
    """A call whose tensors are `Value`s. Its result is contiguous, of these sizes and dtype."""

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    sizes: tuple[int, ...]
    dtype: torch.dtype


def encode(steps: Iterable[Step]) -> str:
    """The text of steps. Raises TypeError for an argument that it has no words for."""
    rows = []
    for step in steps:
        _, name, overload = str(step.op).split(".")
        args, kwargs = _encoded(list(step.args)), _encoded(step.kwargs)
        rows.append([name, overload, args, kwargs, list(step.sizes), _encoded(step.dtype)])
    return json.dumps(rows)


def decode(text: str) -> list[Step]:
    """The steps of a text."""
    steps = []
    for name, overload, args, kwargs, sizes, dtype in json.loads(text):
        op = getattr(getattr(torch.ops.aten, name), overload)
        step = Step(op, tuple(_decoded(args)), _decoded(kwargs), tuple(sizes), _decoded(dtype))
        steps.append(step)
    return steps


def run(steps: Sequence[Step], values: Sequence[Any], call: Callable[[Step, Any, Any], Any]) -> Any:
    """The last value: that of the last step, or of the `values` before them, the product. `call`
    gives a step's result for its arguments."""
    known = list(values)
    result = known[0]
    for step in steps:

        def value_of(leaf: Any) -> Any:
            return known[leaf.number] if isinstance(leaf, Value) else leaf

        result = call(step, _mapped(value_of, step.args), _mapped(value_of, step.kwargs))
        known.append(result)
    return result


def _mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """As `map_leaves`, with values as leaves."""
    if isinstance(tree, Value):
        return function(tree)
    if isinstance(tree, Mapping):
        return dict(zip(tree, map(lambda item: _mapped(function, item), tree.values())))
    if isinstance(tree, (tuple, list)):
        return type(tree)(map(lambda item: _mapped(function, item), tree))
    return function(tree)


def _encoded(tree: Any) -> Any:
    def encoded(leaf: Any) -> Any:
        if isinstance(leaf, Value):
            return {"$value": leaf.number}
        if isinstance(leaf, torch.dtype):
            return {"$dtype": str(leaf).removeprefix("torch.")}
        if leaf is None or isinstance(leaf, (bool, int, float, str)):
            return leaf
        raise TypeError(f"a {type(leaf).__name__} among the arguments of a step")

    return _mapped(encoded, tree)


def _decoded(tree: Any) -> Any:
    if isinstance(tree, list):
        return list(map(_decoded, tree))
    if not isinstance(tree, dict):
        return tree
    if tree.keys() == {"$value"}:
        return Value(tree["$value"])
    if tree.keys() == {"$dtype"}:
        return getattr(torch, tree["$dtype"])
    return dict(zip(tree, map(_decoded, tree.values())))
