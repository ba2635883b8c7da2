"""`torch.cond` and its kin as what they do: Python versions, which the interpreter runs in their
place.

What the branch or the loop depends on may be data: then the graph is broken there, and each branch
is compiled when it is taken.
"""

from __future__ import annotations

from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import torch

from ingot.capture.meanings import How, means
from ingot.capture.sources import ConstSource
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.functions import FunctionValue
from ingot.torch_private import tree_leaves, tree_map, tree_map_only

if TYPE_CHECKING:
    from ingot.capture.session import Session

_replaces = partial(means, how=How.POLYFILL)


@_replaces("torch.cond")
def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    if pred:
        return true_fn(*operands)
    return false_fn(*operands)


@_replaces("torch._higher_order_ops.while_loop.while_loop")
def while_loop(cond_fn: Any, body_fn: Any, carried_inputs: Any) -> Any:
    carried, runs = carried_inputs, False
    while cond_fn(*carried):
        carried, runs = body_fn(*carried), True
    if runs:
        return carried
    return tree_map_only(torch.Tensor, torch.clone, tuple(carried))


@_replaces("torch._higher_order_ops.map.map")
def map_(f: Any, xs: Any, *args: Any) -> Any:
    results = []
    for k in range(tree_leaves(xs)[0].shape[0]):
        results.append(f(tree_map(itemgetter(k), xs), *args))
    return tree_map(lambda *slices: torch.stack(slices), *results)


def _scan(
    combine_fn: Any, init: Any, xs: Any, *, dim: int = 0, reverse: bool = False
) -> tuple[Any, Any]:
    leaves = tree_leaves(xs)
    if not leaves:
        return init, []
    count, carry, outputs = leaves[0].shape[0], init, []
    for k in range(count):
        place = count - 1 - k if reverse else k
        carry, output = combine_fn(carry, tree_map(itemgetter(place), xs))
        outputs.append(output)
    if reverse:
        outputs.reverse()
    return carry, tree_map(lambda *items: torch.stack(items), *outputs)


@means("torch._higher_order_ops.scan.scan", how=How.UNREALIZED)
def scan(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    if "dim" in kwargs and session.known(kwargs["dim"]) != 0:
        # along which dimension the results are stacked then is another matter in each torch
        raise session.unsupported("whole-function", "scan() along another dimension than the first")
    function: Any = _scan
    return session.inline(
        FunctionValue.outside(session, function, ConstSource(function)), args, kwargs
    )
