"""`torch.cond` and its kin as what they do: Python versions, which the interpreter runs in their
place.

What the branch or the loop depends on may be data: then the graph is broken there, and each branch
is compiled when it is taken.
"""

from __future__ import annotations

from functools import partial
from itertools import repeat
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


@_replaces("torch._higher_order_ops.cond.CondOp.__call__")
def cond_op(operator: Any, pred: Any, true_fn: Any, false_fn: Any, operands: Any) -> Any:
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


@_replaces("torch._higher_order_ops.foreach_map.foreach_map")
def foreach_map(op: Any, *operands: Any) -> Any:
    columns, is_mapped = [], False
    for operand in operands:
        is_list = isinstance(operand, (list, tuple))
        columns.append(operand if is_list else repeat(operand))
        is_mapped = is_mapped or is_list
    if not is_mapped:
        return op(*operands)
    return list(map(op, *columns))


@_replaces("torch.strict_mode")
def strict_mode(callable: Any, operands: Any) -> Any:
    return callable(*operands)


@_replaces("torch._higher_order_ops.hints_wrap.HintsWrapper.__call__")
def hints_wrapper(operator: Any, body_fn: Any, args: Any, kwargs: Any, hints: Any) -> Any:
    if kwargs or not isinstance(hints, dict):
        left_to_eager()
    for arg in args:
        if not isinstance(arg, (torch.Tensor, int, float, bool)):
            left_to_eager()
    for name, hint in hints.items():
        if not isinstance(name, str) or not isinstance(hint, (int, float, bool, str)):
            left_to_eager()
    return body_fn(*args)


def left_to_eager() -> None:
    """What torch raises an error for."""


@means(left_to_eager)
def _left_to_eager(session: Session) -> Value:
    raise session.unsupported("whole-function", "arguments that a higher-order op refuses")


@_replaces("torch._higher_order_ops._invoke_quant.InvokeQuant.__call__")
def invoke_quant(operator: Any, function: Any, *args: Any, scheme: Any = None) -> Any:
    return function(*args)


@_replaces("torch._higher_order_ops.wrap.Wrap.__call__")
def wrap(operator: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
    return func(*args, **kwargs)


@_replaces("torch._higher_order_ops.wrap.WrapWithSetGradEnabled.__call__")
def wrap_with_set_grad_enabled(
    operator: Any, enable_grad: Any, wrapped_func: Any, *args: Any, **kwargs: Any
) -> Any:
    with torch.set_grad_enabled(enable_grad):
        return wrapped_func(*args, **kwargs)


@_replaces("torch._higher_order_ops.wrap.WrapWithAutocast.__call__")
def wrap_with_autocast(
    operator: Any,
    device_type: Any,
    dtype: Any,
    enabled: Any,
    cache_enabled: Any,
    wrapped_func: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    with torch.autocast(device_type, dtype, enabled, cache_enabled):
        return wrapped_func(*args, **kwargs)


@_replaces("torch._higher_order_ops.wrap.DynamoBypassingWrapper.__call__")
def bypassing_wrapper(
    operator: Any, wrapper_fn_or_key: Any, inner_fn: Any, *args: Any, **kwargs: Any
) -> Any:
    return wrapper_fn_or_key(inner_fn)(*args, **kwargs)


@_replaces("torch._higher_order_ops.map.MapImpl.__call__")
def map_impl(operator: Any, f: Any, xs: Any, pos_args: Any) -> Any:
    results = []
    for k in range(xs[0].shape[0]):
        results.append(f(*map(itemgetter(k), xs), *pos_args))
    return tree_map(lambda *slices: torch.stack(slices), *results)


@_replaces("torch._higher_order_ops.out_dtype.OutDtypeOperator.__call__")
def out_dtype(operator: Any, op: Any, output_dtype: Any, *args: Any) -> Any:
    dtype = output_dtype
    for arg in args:
        if isinstance(arg, torch.Tensor):
            dtype = torch.result_type(torch.empty(1, dtype=dtype), arg)
    wide = []
    for arg in args:
        wide.append(arg.to(dtype) if isinstance(arg, torch.Tensor) else arg)
    return op(*wide).to(output_dtype)


@_replaces("torch._higher_order_ops.print.Print.__call__")
def print_(operator: Any, format_str: Any, *args: Any, **kwargs: Any) -> None:
    print(format_str.format(*args, **kwargs))


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
