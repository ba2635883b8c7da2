"""Differentiation inside the captured function.

`torch.autograd.grad` is an operation of the graph like any other: the fakes carry the history that
eager's tensors would, so running it on them is what tracing the graph does later. `.backward()` is
that, for the leaves that autograd would reach, and what autograd then does to their `.grad`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from ingot.capture.guards import Kind
from ingot.capture.meanings import How, means
from ingot.capture.sources import AttrSource
from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.chosen import refuse_watched
from ingot.capture.values.constant import NONE, ConstantValue
from ingot.capture.values.dtensors import DTensorObject, refuse_watched_object
from ingot.capture.values.input_hooks import refuse_hooked
from ingot.capture.values.sequences import SequenceValue
from ingot.capture.values.tensor import TensorValue, is_none
from ingot.capture.values.tensor_hooks import refuse_changed
from ingot.capture.values.tensor_lists import tensors_in
from ingot.capture.values.tensor_objects import recorded_objects
from ingot.capture.values.wrapper_objects import RULES
from ingot.graph.custom import is_reentrant
from ingot.graph.dtensors import is_dtensor_class
from ingot.reasons import SKIP
from ingot.torch_private import aten

if TYPE_CHECKING:
    from ingot.capture.session import Session

_PARAMETERS_OF_GRAD = (
    "outputs inputs grad_outputs retain_graph create_graph only_inputs allow_unused "
    "is_grads_batched materialize_grads"
).split()
_PARAMETERS_OF_BACKWARD = (
    "tensors grad_tensors retain_graph create_graph grad_variables inputs".split()
)
_PARAMETERS_OF_METHOD = "gradient retain_graph create_graph inputs".split()


@means(torch.autograd.grad, how=How.OPERATION)
def _grad(session: Session, args: Arguments, kwargs: Keywords) -> Value | None:
    """torch.autograd.grad: an operation of the graph, given that all that autograd does for it is
    seen there."""
    arguments = dict(zip(_PARAMETERS_OF_GRAD, args)) | kwargs
    if len(args) > len(_PARAMETERS_OF_GRAD) or not {"outputs", "inputs"} <= arguments.keys():
        raise session.unsupported(
            "wrong-arguments", "torch.autograd.grad is called with the wrong arguments", action=SKIP
        )
    if "is_grads_batched" in arguments and session.known(arguments["is_grads_batched"]):
        raise session.unsupported("inner-gradients", "torch.autograd.grad of a batch of tangents")
    refuse_changed(session)
    heads = _tensors(session, arguments["outputs"])
    if session.frames[-1].function.namespace["__name__"] != __name__:  # as `add_gradients` is
        _refuse_reentrant(session, heads)
    _refuse_unseen(session, heads, _tensors(session, arguments["inputs"]))
    return None


@means(torch.Tensor.backward, how=How.METHOD)
def _backward_of(session: Session, tensor: TensorValue, args: Arguments, kwargs: Keywords) -> Value:
    arguments = dict(zip(_PARAMETERS_OF_METHOD, args)) | kwargs
    return _backward(session, [tensor], [arguments.pop("gradient", NONE)], arguments)


@means(torch.autograd.backward, how=How.OPERATION)
def _backward_function(session: Session, args: Arguments, kwargs: Keywords) -> Value:
    arguments = dict(zip(_PARAMETERS_OF_BACKWARD, args)) | kwargs
    heads, tangents = (
        _tensors(session, arguments.pop("tensors")),
        session.realize(arguments.pop("grad_tensors", NONE)),
    )
    if session.known(arguments.pop("grad_variables", NONE)) is not None:
        raise session.unsupported("inner-gradients", "torch.autograd.backward with grad_variables")
    items: list[Value] = [tangents]
    if is_none(tangents):
        items *= len(heads)
    elif not isinstance(tangents, TensorValue):
        items = session.unpacked(tangents)
    return _backward(session, heads, items, arguments)


def _backward(
    session: Session, heads: list[TensorValue], tangents: list[Value], options: dict[str, Value]
) -> Value:
    """Adds the gradients of the heads to the `.grad` of the leaves."""
    retain, inputs = options.pop("retain_graph", NONE), session.realize(options.pop("inputs", NONE))
    if session.known(options.pop("create_graph", NONE)):
        raise session.unsupported(
            "inner-gradients", "backward() with create_graph=True, of which torch warns"
        )
    if options:
        raise session.unsupported("backward-options", f"backward() is given {', '.join(options)}")
    if is_none(inputs):
        objects = _reached_objects(session, heads)
        reached = _reached_leaves(heads, set(objects))
        plain = list(map(partial(_leaf, session), reached))
        _refuse_watched(session, plain)
        for value in objects.values():
            refuse_watched_object(session, value)
        leaves = [*plain, *objects.values()]
    else:
        tensors = _tensors(session, inputs)
        if not all(leaf.fake.is_leaf for leaf in tensors):
            raise session.unsupported(
                "inner-gradients", "backward() into tensors that are the results of operations"
            )
        _refuse_reentrant(session, heads)
        _refuse_unseen(session, heads, tensors)
        leaves = [*tensors]
    if not leaves:
        raise session.unsupported("inner-gradients", "backward() that reaches no tensor")
    pack = session.tuple_of_values
    operands: list[Value] = [pack(heads), pack(leaves), pack(tangents), retain]
    return session.call_builtin(add_gradients, *operands)


@torch.no_grad()
def add_gradients(heads: Any, leaves: Any, tangents: Any, retain: Any) -> None:
    """Inlined: a backward pass, and what autograd's engine does at its end."""
    for leaf, gradient in zip(
        leaves, torch.autograd.grad(heads, leaves, tangents, retain, allow_unused=True)
    ):
        if gradient is not None:
            if leaf.grad is not None:
                leaf.grad.add_(gradient)
            elif type(leaf) in _PLAIN or _is_dtensor(leaf):
                leaf.grad = _laid_out(gradient, leaf)
            else:
                leaf.grad = gradient.clone()


def _is_dtensor(leaf: Any) -> bool:
    """Inlined: whether it is a DTensor, of which a copy has the placements, and not always a
    clone: the sum of that has arrived."""
    cls = type(leaf)
    return cls.__name__ == "DTensor" and cls.__module__.startswith("torch.distributed.tensor")


_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
_is_dense = aten.is_non_overlapping_and_dense  # looked up here, where nothing is captured


def _laid_out(gradient: Any, leaf: Any) -> Any:
    """Inlined: a gradient in memory of its own, which lies as the leaf does where that has no
    gaps."""
    if _is_dense(leaf):
        return gradient.new_empty_strided(leaf.shape, leaf.stride()).copy_(gradient)
    return gradient.clone(memory_format=torch.contiguous_format)


def _grad_of_dtensors(session: Session, args: Arguments, kwargs: Keywords) -> Value | None:
    """torch.autograd.grad as `add_gradients` calls it, with DTensors among the leaves."""
    if session.frames[-1].function.namespace["__name__"] != __name__:
        return None
    return session.call_function(torch.autograd.grad, *map(session.deep, args), **kwargs)


def _backward_of_dtensor(session: Session, args: Arguments, kwargs: Keywords) -> Value | None:
    """`.backward()` of a DTensor, such as a loss in parallel."""
    (head, *others) = args
    if not isinstance(head, TensorValue) or not is_dtensor_class(type(head.fake)):
        return None
    return _backward_of(session, head, others, kwargs)


RULES[torch.autograd.grad] = _grad_of_dtensors
RULES[torch.Tensor.backward] = _backward_of_dtensor


# -- what autograd does that a graph does not show -------------------------------------------------


def _tensors(session: Session, value: Value) -> list[TensorValue]:
    """The tensors of an argument that is one, or a sequence of them."""
    value = session.deep(value)
    if isinstance(value, SequenceValue):
        items = value.items
    else:
        items = [value]
    tensors = tensors_in(items)
    if len(tensors) != len(items):
        raise session.unsupported("inner-gradients", f"{value.describe()} is differentiated")
    return tensors


def _refuse_unseen(session: Session, heads: list[TensorValue], inputs: list[TensorValue]) -> None:
    """Raises Unsupported where gradients flow from the heads to the inputs by way of what was
    computed before the call, or hooks see them."""
    outside = []
    for t in inputs:
        if t.source is not None:
            outside.append(t)
    beyond = set(map(id, _reached_leaves(heads))) - session.graph.by_fake.keys()
    if beyond and outside:
        alone = len(outside) == 1 and beyond == set(map(id, _reached_leaves(outside)))
        if not alone:  # one tensor cannot be computed from itself
            raise session.unsupported(
                "inner-gradients",
                "gradients flow through what was computed before the compiled function",
            )
    _refuse_watched(session, inputs)


def _refuse_reentrant(session: Session, heads: list[TensorValue]) -> None:
    """Raises Unsupported where torch raises an error: gradients of some tensors alone are asked
    for."""
    if any(map(is_reentrant, _history_nodes(heads))):
        raise session.unsupported(
            "inner-gradients",
            "gradients of some tensors alone, by way of a checkpoint with use_reentrant=True",
        )


def _leaf(session: Session, fake: torch.Tensor) -> TensorValue:
    known = session.graph.by_fake.get(id(fake))
    if known is None:
        raise session.unsupported(
            "inner-gradients", "gradients flow into what was computed before the compiled function"
        )
    return known


def _reached_objects(session: Session, heads: Iterable[TensorValue]) -> dict[Any, DTensorObject]:
    """The DTensors from outside that a backward pass comes to, by the autograd nodes of what stands
    for them."""
    visited = set(_history_nodes(heads))
    found: dict[Any, DTensorObject] = {}
    for value, node in recorded_objects(session):
        if node in visited and isinstance(value, DTensorObject) and value.is_outside_leaf(session):
            found[node] = value
    return found


def _reached_leaves(
    heads: Iterable[TensorValue], ends: Collection[Any] = ()
) -> Iterator[torch.Tensor]:
    """The leaves that a backward pass from the heads comes to, in a fixed order; not those behind
    some nodes."""
    for head in heads:
        if head.fake.requires_grad and head.fake.is_leaf:
            yield head.fake
    for node in _history_nodes(heads, ends):
        if hasattr(node, "variable"):
            yield node.variable


def _history_nodes(heads: Iterable[TensorValue], ends: Collection[Any] = ()) -> Iterator[Any]:
    """The nodes of autograd's graph that a backward pass from the heads comes by, none of them
    behind the `ends`."""
    stack: list[Any] = []
    for h in heads:
        if h.fake.requires_grad and not h.fake.is_leaf:
            stack.append(h.fake.grad_fn)
    visited = set(stack)
    while stack:
        node = stack.pop()
        yield node
        if node in ends:
            continue
        for following, _ in node.next_functions:
            if following is not None and following not in visited:
                visited.add(following)
                stack.append(following)


def _refuse_watched(session: Session, tensors: list[TensorValue]) -> None:
    """Raises Unsupported where hooks of the user's see the gradient of a tensor, or the data decide
    sizes."""
    if session.graph.context.shapes.unbacked.roots:
        raise session.unsupported(
            "inner-gradients", "gradients are taken, and the data decide sizes"
        )
    for tensor in tensors:
        refuse_watched(session, tensor)
        if tensor.source is None:
            continue
        refuse_hooked(session, tensor)
        for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            hooks = getattr(session.graph.inputs.value_of(tensor), name)
            source = AttrSource(tensor.source, name, "slot")
            if hooks:
                raise session.unsupported(
                    "inner-gradients", f"hooks on the gradient of {tensor.describe()}"
                )
            session.guard(source, Kind.IS_NONE if hooks is None else Kind.DICT_EMPTY, hooks is None)


# -- tensors that become leaves --------------------------------------------------------------------


@means(torch.Tensor.requires_grad_, how=How.METHOD)
def _requires_grad(
    session: Session, tensor: TensorValue, args: Arguments, kwargs: Keywords
) -> Value:
    """requires_grad_(): of a tensor from outside, it is done before the graph runs."""
    (requires,) = [*args, *kwargs.values()] or [ConstantValue(True)]
    if session.known(requires) == tensor.fake.requires_grad:
        return tensor
    if tensor.source is not None and not session.known(requires):
        raise session.unsupported(
            "inner-gradients", f"{tensor.describe()} no longer requires a gradient"
        )
    if tensor.source is None:
        tensor.leaf_since = session.step_of_outermost
    yes = ConstantValue(bool(session.known(requires)))
    return session.call_method("requires_grad_", tensor, yes)
