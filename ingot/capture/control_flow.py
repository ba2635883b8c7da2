"""`torch.cond` and its kin as what they do: Python versions, which the interpreter runs in their
place.

Where data decide which branch is taken, or how often a loop runs, these become graphs of their own
(`subgraphs.py`), in one node. Elsewhere the branch that is taken is inlined, and the loop unrolled.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import repeat
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ingot.capture.meanings import How, means
from ingot.capture.recorder import Part
from ingot.capture.sources import ConstSource
from ingot.capture.subgraphs import (
    Subgraph,
    graph_of,
    leaves,
    look_of_tree,
    node_of,
    read_by,
    refused,
    subgraph_of,
    take_out,
    with_leaves,
)
from ingot.capture.values.autograd_functions import may_have_gradient
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.containers import DictValue
from ingot.capture.values.functions import FunctionValue
from ingot.capture.values.sequences import ListValue, TupleValue
from ingot.capture.values.tensor import TensorValue
from ingot.capture.values.tensor_lists import is_tracked
from ingot.graph.ambient import Modes
from ingot.graph.control_ops import Cond, Look, Scan, WhileLoop
from ingot.graph.geometry import contiguous
from ingot.graph.nodes import fake_result
from ingot.graph.symbols import to_expr
from ingot.torch_private import scan_op, tree_leaves, tree_map, tree_map_only

if TYPE_CHECKING:
    from ingot.capture.session import Session

_replaces = partial(means, how=How.POLYFILL)


@means("torch.cond", how=How.UNREALIZED)
def cond(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    bound = _arguments(session, _branch, args, kwargs)
    predicate = session.realize(bound["pred"])
    if isinstance(predicate, TensorValue) and predicate.known_number(session) is None:
        operands = session.unpacked(bound.get("operands", _NO_OPERANDS))
        return _chosen(session, predicate, (bound["true_fn"], bound["false_fn"]), operands)
    return session.inline(_outside(session, _branch), (), bound)


@means("torch._higher_order_ops.cond.CondOp.__call__", how=How.UNREALIZED)
def cond_op(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    return cond(session, args[1:], kwargs)


def _branch(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
    if pred:
        return true_fn(*operands)
    return false_fn(*operands)


_NO_OPERANDS = TupleValue((), tuple)


def _outside(session: Session, function: Any) -> FunctionValue:
    return FunctionValue.outside(session, function, ConstSource(function))


def _arguments(
    session: Session, function: Any, args: Arguments, kwargs: Keywords
) -> dict[str, Value]:
    """The arguments by name. Raises Unsupported for those that eager refuses."""
    try:
        return inspect.signature(function).bind(*args, **kwargs).arguments
    except TypeError as error:
        raise session.unsupported("wrong-arguments", str(error)) from None


def _chosen(
    session: Session, predicate: TensorValue, functions: Sequence[Value], operands: list[Value]
) -> Value:
    """What the branch gives that a tensor chooses, as a node of the graph."""
    if predicate.fake.numel() != 1:
        raise refused(session, "is chosen by a tensor of several elements")
    condition: Value = predicate
    if predicate.fake.dim() > 0:
        condition = session.call_method("reshape", condition, _NO_OPERANDS)
    if predicate.fake.dtype is not torch.bool:
        condition = session.call_method("bool", condition)
    assert isinstance(condition, TensorValue)
    taken = subgraph_of(session, functions[0], operands)
    other = subgraph_of(session, functions[1], operands)
    looks = _looks(taken.tensors)
    if look_of_tree(taken.result) != look_of_tree(other.result) or looks != _looks(other.tensors):
        raise refused(session, "gives another kind of result than the other branch")
    nodes = read_by(session, condition.fx_node, (taken, other))
    graphs = graph_of(taken, *nodes), graph_of(other, *nodes)
    take_out(session, (taken, other))
    op = Cond(graphs, list(map(Look.of, _fakes(taken.tensors))), session.graph.context, Modes.now())
    return with_leaves(taken.result, session.graph.add(session, op, condition.fx_node, *nodes))


def _fakes(tensors: Iterable[TensorValue]) -> list[torch.Tensor]:
    return list(map(attrgetter("fake"), tensors))


def _looks(tensors: Iterable[TensorValue]) -> list[Any]:
    """What tensors have in common that take each other's place."""
    looks = []
    for fake in _fakes(tensors):
        numbers = tuple(map(to_expr, (*fake.shape, *fake.stride())))
        looks.append((fake.dim(), numbers, fake.dtype, fake.device))
    return looks


# -- loops -----------------------------------------------------------------------------------------


@_replaces("torch._higher_order_ops.while_loop.while_loop")
def while_loop(cond_fn: Any, body_fn: Any, carried_inputs: Any) -> Any:
    carried, turns = carried_inputs, 0
    while True:
        predicate = cond_fn(*carried)
        if is_loop(predicate, carried, turns):
            return as_loop(cond_fn, body_fn, carried)
        if not predicate:
            break
        carried, turns = body_fn(*carried), turns + 1
    if turns:
        return carried
    return tree_map_only(torch.Tensor, torch.clone, tuple(carried))


_MOST_TURNS = 32
"""Turns of a loop that are unrolled where capture knows whether there is another one."""


def is_loop(predicate: Any, carried: Any, turns: int) -> bool:
    """What capture knows: the body is for frames that go on in eager."""
    return False


def as_loop(cond_fn: Any, body_fn: Any, carried: Any) -> Any:
    """What capture does: the body is for frames that go on in eager."""
    while cond_fn(*carried):
        carried = body_fn(*carried)
    return carried


@means(is_loop)
def _is_loop(session: Session, predicate: Value, carried: Value, turns: Value) -> Value:
    """Whether what remains of a loop becomes a node."""
    if not isinstance(predicate, TensorValue):
        return ConstantValue(False)
    if predicate.known_number(session) is None:
        return ConstantValue(True)
    if session.known(turns) < _MOST_TURNS:
        return ConstantValue(False)
    state = leaves(session, session.deep(carried))
    return ConstantValue(not (torch.is_grad_enabled() and any(map(is_tracked, state))))


@means(as_loop)
def _as_loop(session: Session, cond_fn: Value, body_fn: Value, carried: Value) -> Value:
    recorder, carried = session.graph, session.deep(carried)
    state = leaves(session, carried)
    if not state:
        raise refused(session, "is given no state")
    recorder.modes.reach(recorder.graph, session.where)
    begun = recorder.begin_part(session, state)
    arguments = session.unpacked(with_leaves(carried, begun.tangents))
    condition = subgraph_of(session, cond_fn, arguments, begun.tangents)
    body = subgraph_of(session, body_fn, arguments, begun.tangents)
    looks = _looks(begun.tangents)
    if _looks(state) != looks or _looks(body.tensors) != looks:
        raise refused(session, "gives a state of other sizes, strides or types")
    if look_of_tree(body.result) != look_of_tree(carried):
        raise refused(session, "gives a state of another structure")
    decisions = _looks(condition.tensors)
    if len(decisions) != 1 or decisions[0][:3] != (0, (), torch.bool):
        raise refused(session, "gives a condition that is not a bool of rank 0")
    tensors, integers = read_by(session, state[0].fx_node, (condition, body))
    initial = list(map(node_of, state))
    for node in (*initial, *tensors):
        if torch.is_grad_enabled() and fake_result(node).requires_grad:
            raise refused(session, "computes what requires gradients, in a loop")
    graphs = graph_of(condition, tensors, integers), graph_of(body, tensors, integers)
    take_out(session, (condition, body))
    recorder.drop_part(session, begun)
    op = WhileLoop(
        graphs, list(map(Look.of, _fakes(begun.tangents))), recorder.context, Modes.now()
    )
    return with_leaves(carried, recorder.add(session, op, [*initial, *tensors], integers))


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
    raise session.unsupported("whole-function", "arguments that torch refuses, or warns of")


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


_MOVES_BACK = torch.__version__ >= "2.13"
"""Whether what is stacked lies along the dimension that is scanned, which it does not in 2.11."""


def _scan_along(
    combine_fn: Any, init: Any, xs: Any, *, dim: int, reverse: bool = False
) -> tuple[Any, Any]:
    leaves = tree_leaves(xs)
    if not leaves:
        return init, []
    rank = leaves[0].ndim
    if not -rank <= dim < rank:
        left_to_eager()
    dim %= rank
    for leaf in leaves:
        if leaf.ndim <= dim:
            left_to_eager()
    carry, stacked = scan_op(
        combine_fn, init, tree_map(lambda x: x.movedim(dim, 0), xs), reverse=reverse
    )
    return carry, tree_map(lambda t: t.movedim(0, dim) if dim < t.ndim else t, stacked)


@means("torch._higher_order_ops.scan.scan", how=How.UNREALIZED)
def scan(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    if "dim" in kwargs and session.known(kwargs["dim"]) != 0:
        if not _MOVES_BACK:
            raise session.unsupported(
                "whole-function", "scan() along another dimension, in torch 2.11"
            )
        return session.inline(_outside(session, _scan_along), args, kwargs)
    bound = _arguments(session, _scan, args, kwargs)
    xs = session.deep(bound["xs"])
    if not _is_long(xs):
        return session.inline(_outside(session, _scan), (), {**bound, "xs": xs})
    is_reversed = session.truth(bound.get("reverse", ConstantValue(False)))
    init = session.deep(bound["init"])
    return _scanned(session, bound["combine_fn"], init, xs, is_reversed=is_reversed)


@means("torch._higher_order_ops.map.map", how=How.UNREALIZED)
def map_(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    if kwargs or len(args) < 2 or not _is_long(xs := session.deep(args[1])):
        return session.inline(_outside(session, _map), args, kwargs)
    return _scanned(session, args[0], None, xs, list(args[2:]))


def _map(f: Any, xs: Any, *args: Any) -> Any:
    results = []
    for k in range(tree_leaves(xs)[0].shape[0]):
        results.append(f(tree_map(itemgetter(k), xs), *args))
    return tree_map(lambda *slices: torch.stack(slices), *results)


_MOST_SLICES = 64
"""Slices up to which a body is taken once for each: one kernel then does the work of several."""


def _is_long(xs: Value) -> bool:
    """Whether there are many slices, or it is not known how many."""
    while isinstance(xs, (ListValue, TupleValue, DictValue)):
        items = list(xs.entries.values()) if isinstance(xs, DictValue) else xs.items
        if not items:
            return False
        xs = items[0]
    if not isinstance(xs, TensorValue) or xs.fake.dim() == 0:
        return False
    length = to_expr(xs.fake.shape[0]).constant
    return length is None or length > _MOST_SLICES


def _scanned(
    session: Session,
    function: Value,
    init: Value | None,
    xs: Value,
    others: Sequence[Value] = (),
    is_reversed: bool = False,
) -> Value:
    """A scan as a node of the graph; a map, where there is no state."""
    recorder, state = session.graph, list[TensorValue]()
    if init is not None:
        state = _dense(session, leaves(session, init))
    mapped = _dense(session, leaves(session, xs))
    slices = []
    for tensor in mapped:
        item = session.call_method("select", tensor, _FIRST, _FIRST)
        assert isinstance(item, TensorValue)
        slices.append(item)
    count, arguments = len(state), list[Value]([xs])
    if init is not None:
        arguments.insert(0, init)
    call = partial(_body_on, session, function, arguments, others, [*state, *slices])
    tracked = torch.is_grad_enabled() and any(map(is_tracked, (*state, *mapped)))
    begun, subgraph = call(tracked)
    if torch.is_grad_enabled() and not tracked and any(map(_requires_gradient, subgraph.reads)):
        take_out(session, (subgraph,))
        recorder.drop_part(session, begun)
        begun, subgraph = call(True)
    rows = subgraph.result
    if init is not None:
        rows = _rows_behind(session, subgraph.result, init)
    if _looks(subgraph.tensors[:count]) != _looks(begun.tangents[:count]):
        raise refused(session, "gives a state of other sizes, strides or types")
    if not all(map(_lies_in_order, _fakes(subgraph.tensors[count:]))):
        raise refused(session, "gives results with gaps, or of another order in memory")
    nodes = [*map(node_of, state), *map(node_of, mapped)]
    tensors, integers = read_by(session, nodes[0], (subgraph,))
    graph = graph_of(subgraph, tensors, integers)
    take_out(session, (subgraph,))
    recorder.drop_part(session, begun)
    length = mapped[0].fake.shape[0]
    looks = list(map(Look.of, _fakes(subgraph.tensors)))
    op = Scan(graph, looks, recorder.context, Modes.now(), count, len(mapped), length, is_reversed)
    op.results = (*looks[:count], *map(op.stacked, looks[count:]))
    results = recorder.add(session, op, [*nodes, *tensors], integers)
    stacked = with_leaves(rows, results[count:])
    if init is None:
        return stacked
    return TupleValue([with_leaves(init, results), stacked], tuple)


def _body_on(
    session: Session,
    function: Value,
    arguments: Sequence[Value],
    others: Sequence[Value],
    like: Sequence[TensorValue],
    tracked: bool,
) -> tuple[Part, Subgraph]:
    """The subgraph of a body on trees of new tensors, which are like others.

    If they are `tracked` they require gradients: the state may, from the second step on.
    """
    recorder = session.graph
    recorder.modes.reach(recorder.graph, session.where)
    begun = recorder.begin_part(session, like)
    for argument in begun.tangents:
        if tracked and may_have_gradient(argument):
            argument.fake.requires_grad_()
    remaining, trees = iter(begun.tangents), []
    for argument in arguments:
        trees.append(with_leaves(argument, remaining))
    return begun, subgraph_of(session, function, [*trees, *others], begun.tangents)


def _requires_gradient(node: fx.Node) -> bool:
    fake = fake_result(node)
    return isinstance(fake, torch.Tensor) and fake.requires_grad


_FIRST = ConstantValue(0)


def _lies_in_order(fake: torch.Tensor) -> bool:
    """Whether its strides are those of a new tensor."""
    return list(map(to_expr, fake.stride())) == list(map(to_expr, contiguous(fake.shape)))


def _dense(session: Session, tensors: Iterable[TensorValue]) -> list[TensorValue]:
    """The tensors with their elements in order, without gaps."""
    results = []
    for tensor in tensors:
        dense = session.call_method("contiguous", tensor)
        assert isinstance(dense, TensorValue)
        results.append(dense)
    return results


def _rows_behind(session: Session, result: Value, init: Value) -> Value:
    """What is stacked, of a body that gives the next state and that."""
    if isinstance(result, (ListValue, TupleValue)) and len(result.items) == 2:
        state, rows = result.items
        if look_of_tree(state) == look_of_tree(init):
            return rows
    raise refused(session, "gives a state of another structure")
