"""The values of what operations give: tensors, sizes, and tuples and lists of them.

In: the result of an operation on fakes, and the node that gives it. Out: its value.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ingot.capture.values.base import Operator, Value
from ingot.capture.values.constant import ConstantValue
from ingot.capture.values.sequences import ListValue, TupleValue
from ingot.capture.values.tensor import SymIntValue
from ingot.errors import Unsupported
from ingot.graph.wrapper_sizes import is_ragged

if TYPE_CHECKING:
    from ingot.capture.recorder import GraphRecorder
    from ingot.capture.session import Session


class RaggedSize(SymIntValue):
    """The size of a ragged dimension, which is no number. It can be handed to torch, and compared
    with other sizes."""

    __slots__ = ()
    is_ragged = True

    @property
    def current(self) -> Any:
        return self.fake

    def node(self, recorder: GraphRecorder) -> fx.Node:
        if self._node is None:
            op, target, args = self.recipe
            nodes = []
            for arg in args:
                nodes.append(recorder.node_of(arg) if isinstance(arg, Value) else arg)
            self._node = recorder.graph.create_node(op, target, tuple(nodes))
            self._node.meta.update(val=self.fake, where="")
        return self._node

    def python_type(self) -> type:
        return torch.SymInt

    def describe(self) -> str:
        return "the size of a ragged dimension"

    def _refused(self, session: Session, what: str) -> Unsupported:
        return session.unsupported("nested-tensor", f"{what} {self.describe()}")

    def specialize(self, session: Session) -> int:
        raise self._refused(session, "the value of")

    def is_speculative(self, session: Session) -> bool:
        return False

    def convert(self, session: Session, cls: type) -> Value:
        raise self._refused(session, f"{cls.__name__}() of")

    def truth(self, session: Session) -> bool:
        raise self._refused(session, "the truth of")

    def unary(self, session: Session, function: Any) -> Value:
        raise self._refused(session, f"{function.__name__} of")

    def binary(
        self, session: Session, function: Operator, other: Value, reflected: bool
    ) -> Value | None:
        if function not in (operator.eq, operator.ne):
            raise self._refused(session, f"{function.__name__} of")
        is_number = isinstance(other, ConstantValue) and not isinstance(other.object, torch.SymInt)
        if not is_number and not isinstance(other, SymIntValue):
            raise self._refused(session, f"a comparison of {other.describe()} with")
        are_equal = isinstance(other, RaggedSize) and bool(self.fake == other.fake)
        return ConstantValue(are_equal is (function is operator.eq))


def size_value(size: torch.SymInt, op: str, target: Any, args: tuple[Any, ...]) -> SymIntValue:
    """The value of a symbolic size that a node gives, or that calls of this kind would."""
    if is_ragged(size):
        return RaggedSize(size, op, target, args)
    return SymIntValue(size, op, target, args)


def result_value(session: Session, result: Any, node: fx.Node | None) -> Value:
    """The value of what an operation gave; `node` is its node, None where it was not recorded."""
    if isinstance(result, torch.Tensor):
        assert node is not None
        return session.graph.tensor(result, lambda: node)
    if isinstance(result, (tuple, list)):
        items = []
        for i, item in enumerate(result):
            if isinstance(item, torch.Tensor) and node is not None:
                items.append(
                    session.graph.tensor(
                        item, lambda i=i, item=item: session.graph.item(node, i, item)
                    )
                )
            elif isinstance(item, torch.SymInt) and node is not None:
                items.append(size_value(item, "call_function", operator.getitem, (node, i)))
            elif isinstance(item, (tuple, list)) and node is not None:
                items.append(result_value(session, item, session.graph.item(node, i, item)))
            else:
                items.append(result_value(session, item, None))
        if isinstance(result, list):
            return ListValue(items, list)
        return TupleValue(items, type(result))
    if isinstance(result, torch.SymInt) and node is not None:
        value = size_value(result, node.op, node.target, ())
        value._node = node
        return value
    if isinstance(result, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        raise session.unsupported("symbolic-number", "an operation that gives a symbolic number")
    return session.wrap_constant(result)
