"""The tensor that `max(a, b)` and `min(a, b)` choose: eager asks for the truth of a comparison and
gives one of the two objects. Capture has the graph choose between their numbers.

The result is a copy: what would tell it from the object that eager gives breaks the graph before
the choice. That is a write, `is`, or a result of the graph beside one of the arguments. Where
gradients are recorded the arguments are views of one tensor: the gradient of the one that is not
chosen is zero there, where it would be none at all in a tensor of its own.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import fx

from ingot.capture.values.base import Arguments, Keywords, Value
from ingot.capture.values.selected import note_copy
from ingot.capture.values.tensor import TensorValue
from ingot.graph.fakes import FakeTensor, data_of, storage_key
from ingot.graph.tensor_hooks import TensorHook
from ingot.torch_private import is_functorch_wrapped_tensor

if TYPE_CHECKING:
    from ingot.capture.session import Session

_OF_THE_OBJECT = frozenset(
    """
    is_leaf grad grad_fn data _base _version output_nr retains_grad requires_grad_ register_hook
    storage_offset is_set_to _is_view _typed_storage
    """.split()
)
"""Attributes that tell a tensor from another one of the same elements."""

_WITHOUT_GRADIENT = frozenset({"detach", data_of})


class _Watched(dict[fx.Node, "ChosenTensor"]):
    """The nodes between arguments that require gradients and the tensor that they are views of,
    with the choice."""


class ChosenTensor(TensorValue):
    """The number of one of two tensors, in a tensor of its own. `origin` is the node of the tensor
    that both are views of; `step` the number of the instruction that chose."""

    __slots__ = ("origin", "step")

    def __init__(self, session: Session, chosen: TensorValue, origin: fx.Node | None) -> None:
        super().__init__(chosen.fake, chosen.fx_node)
        self.origin, self.step = origin, session.step_of_outermost

    def refuse(self, session: Session, what: str) -> NoReturn:
        raise session.unsupported(
            "number-in-tensor",
            f"the data decide which tensor max() or min() gives, and {what}",
            step=self.step,
        )

    def refuse_identity(self, session: Session, other: Value) -> None:
        if isinstance(other, TensorValue) and other is not self:
            self.refuse(session, f"it is compared with {other.describe()}")

    def key(self, session: Session) -> Any:
        self.refuse(session, "it is a key")

    def get_attribute(self, session: Session, name: str) -> Value:
        if name in _OF_THE_OBJECT or not hasattr(torch.Tensor, name):
            self.refuse(session, f"its attribute {name} is read")
        return super().get_attribute(session, name)

    def set_attribute(self, session: Session, name: str, value: Value) -> None:
        self.refuse(session, f"its attribute {name} is set")

    def delete_attribute(self, session: Session, name: str) -> None:
        self.refuse(session, f"its attribute {name} is deleted")

    def call_named(self, session: Session, name: str, args: Arguments, kwargs: Keywords) -> Value:
        if name in _OF_THE_OBJECT:
            self.refuse(session, f"its method {name} is called")
        return super().call_named(session, name, args, kwargs)


def can_choose(session: Session, item: Value, best: Value) -> bool:
    """Whether the graph may choose between two values: tensors of rank 0 and of one kind, the
    numbers of which are not known."""
    if not isinstance(item, TensorValue) or not isinstance(best, TensorValue):
        return False
    kinds = []
    for value in (item, best):
        fake = value.fake
        if value.cls is not torch.Tensor or fake.dim() or is_functorch_wrapped_tensor(fake):
            return False
        if fake.is_neg() or fake.is_inference() is not session.graph.context.in_inference:
            return False
        kinds.append((fake.dtype, fake.device, fake.layout, fake.requires_grad))
    known = item.known_number(session) is not None is not best.known_number(session)
    if known or kinds[0] != kinds[1] or item.fake.dtype.is_complex:
        return False
    if not item.fake.requires_grad:
        return True
    origins = set(map(_origin, (item, best)))
    return len(origins) == 1 and None not in origins and torch.is_grad_enabled()


def choose(
    session: Session, better: Callable[..., Any], item: TensorValue, best: TensorValue
) -> TensorValue:
    """`item if better(item, best) else best`."""
    condition = session.call_function(better, item, best)
    result = session.call_function(torch.where, condition, item, best)
    assert isinstance(result, TensorValue)
    origin = _origin(item)
    if not item.fake.requires_grad:
        origin = None
    chosen = ChosenTensor(session, result, origin)
    session.graph.by_fake[id(chosen.fake)] = chosen
    for value in (item, best):
        what = "the data decide which tensor max() or min() gives"
        note_copy(session, value, chosen, what, may_leave=True)
        if origin is not None:
            session.state(_Watched).update(dict.fromkeys(_path(value), chosen))
            session.state(_Watched).pop(origin, None)
    return chosen


def refuse_watched(session: Session, tensor: TensorValue) -> None:
    """Breaks the graph before a choice where the gradient of an argument is asked for."""
    chosen = session.state(_Watched).get(tensor.fx_node)
    if isinstance(tensor, ChosenTensor):
        chosen = tensor
    if chosen is not None:
        chosen.refuse(session, f"the gradient of {tensor.describe()} is asked for")


def _origin(value: TensorValue) -> fx.Node | None:
    """The node of the tensor that a value is a view of; None where hooks see its gradient."""
    if isinstance(value, ChosenTensor):
        return value.origin
    node = value.fx_node
    for node in _path(value):
        for user in node.users:
            if isinstance(user.target, TensorHook):
                return None
    return node


def _path(value: TensorValue) -> Iterator[fx.Node]:
    """The nodes from a tensor's to that of the tensor that it is a view of."""
    key, node = storage_key(value.fake), value.fx_node
    while True:
        yield node
        parent = node
        if node.target is operator.getitem and isinstance(node.args[0], fx.Node):
            if isinstance(node.args[0].meta.get("val"), (tuple, list)):
                parent = node.args[0]  # one of several views
        if parent.op == "placeholder" or parent.target in _WITHOUT_GRADIENT or not parent.args:
            return
        first = parent.args[0]
        if not isinstance(first, fx.Node) or not isinstance(first.meta.get("val"), FakeTensor):
            return  # a transform's wrapper is a tensor of its own
        if storage_key(first.meta["val"]) != key:
            return
        node = first
