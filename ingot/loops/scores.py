"""How attention changes its scores, as a text that an op can carry: a list of steps.

In go calls of pointwise ops and views, each of which follows from the product of query and key;
out come the same calls. Values are counted: the product, the captured tensors, then each step's.
Symbolic sizes go beside the text, which has their numbers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch

from ingot.loops.expr import Expr
from ingot.torch_private import OpOverload


@dataclass(frozen=True)
class Value:
    """The value number `number`."""

    number: int


class Step(NamedTuple):
    """A call whose tensors are `Value`s. Its result is contiguous, of these sizes and dtype.

    A size is an int or an `Expr`."""

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    sizes: tuple[Any, ...]
    dtype: torch.dtype


def encode(steps: Iterable[Step]) -> tuple[str, list[Expr]]:
    """The text of steps, and the symbolic sizes that it refers to. Raises TypeError for an argument
    that it has no words for."""
    rows, sizes = [], list[Expr]()
    for step in steps:
        _, name, overload = str(step.op).split(".")
        parts = list(step.args), step.kwargs, list(step.sizes), step.dtype
        rows.append([name, overload, *map(partial(_encoded, sizes), parts)])
    return json.dumps(rows), sizes


def decode(text: str, sizes: Sequence[Any]) -> list[Step]:
    """The steps of a text."""
    steps = []
    for name, overload, *parts in json.loads(text):
        op = getattr(getattr(torch.ops.aten, name), overload)
        args, kwargs, shape, dtype = map(partial(_decoded, sizes), parts)
        steps.append(Step(op, tuple(args), kwargs, tuple(shape), dtype))
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


def _encoded(sizes: list[Expr], tree: Any) -> Any:
    def encoded(leaf: Any) -> Any:
        if isinstance(leaf, Value):
            return {"$value": leaf.number}
        if isinstance(leaf, torch.dtype):
            return {"$dtype": str(leaf).removeprefix("torch.")}
        if isinstance(leaf, Expr):
            sizes.append(leaf)
            return {"$size": len(sizes) - 1}
        if leaf is None or isinstance(leaf, (bool, int, float, str)):
            return leaf
        raise TypeError(f"a {type(leaf).__name__} among the arguments of a step")

    return _mapped(encoded, tree)


def _decoded(sizes: Sequence[Any], tree: Any) -> Any:
    if isinstance(tree, list):
        return list(map(partial(_decoded, sizes), tree))
    if not isinstance(tree, dict):
        return tree
    if tree.keys() == {"$value"}:
        return Value(tree["$value"])
    if tree.keys() == {"$dtype"}:
        return getattr(torch, tree["$dtype"])
    if tree.keys() == {"$size"}:
        return sizes[tree["$size"]]
    return dict(zip(tree, map(partial(_decoded, sizes), tree.values())))
